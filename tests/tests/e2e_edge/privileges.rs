//! The daemon as a unit runs it: one step as root, and then a user with three capabilities.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use harness::{process, turnout};

use crate::support::*;

const USER: u32 = 65_534;

/// What ExecStartPre=, User=, AmbientCapabilities= and CapabilityBoundingSet= do.
const UNIT: &str = r#"#!/bin/sh
set -e
turnout="$(dirname "$0")/turnout"
chmod 0777 "$(dirname "$3")"
"$turnout" prepare --config "$3" --user USER >&2
caps=+bpf,+net_admin,+perfmon
exec setpriv --reuid USER --regid USER --clear-groups --no-new-privs --inh-caps=-all,$caps --ambient-caps=-all,$caps \
    --bounding-set=-all,$caps "$turnout" "$@"
"#;

#[test]
fn a_daemon_without_root_steers_admits_and_is_upgraded_with_three_capabilities() -> Result<()> {
    need_edge!();
    let folder = tempfile::tempdir()?;
    let (binary, unit) = (folder.path().join("turnout"), folder.path().join("unit"));
    fs::copy(turnout::binary()?, &binary)?;
    fs::write(&unit, UNIT.replace("USER", &USER.to_string()))?;
    for path in [folder.path(), &binary, &unit] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    }
    let stage = Stage::start(&[1, 2], |builder| builder.binary(&unit).top_line("admission: {deny: []}"))?;

    let check = |pid: u32| -> Result<()> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let uids = field("Uid:").context("no Uid")?;
        ensure!(uids.split_whitespace().all(|uid| uid == USER.to_string()), "{uids}");
        // CAP_NET_ADMIN (12), CAP_PERFMON (38) and CAP_BPF (39), as capability.h numbers them.
        let allowed = 1u64 << 12 | 1 << 38 | 1 << 39;
        for set in ["CapEff:", "CapPrm:", "CapBnd:"] {
            let held = u64::from_str_radix(field(set).context(set)?, 16)?;
            ensure!(held & !allowed == 0, "{set} {held:x}");
        }
        Ok(())
    };
    check(stage.gateway.status()?.pid)?;
    ensure!(stage.gateway.status()?.edge.is_some_and(|edge| edge.steering), "it binds its ports");
    ensure!(call(&mut stage.connect(0, None, stage.at(0, 2, true))?)? == 2);

    stage.reload(|config| config.replace("deny: []", "deny: [10.90.1.0/24]"))?;
    let (netns, to) = (&stage.world.client(1).netns, stage.at(1, 1, false));
    ensure!(netns.run(|| connect(None, to, PROMPT))?.is_err(), "a denied client is let in");
    ensure!(stage.refused("deny")? > 0.0, "by the kernel");

    let before = stage.gateway.status()?.pid;
    stage.gateway.cli(&["upgrade", "--socket", "{socket}"])?;
    let after = stage.gateway.status()?.pid;
    ensure!(before != after, "the same process answers");
    check(after)?;
    ensure!(call(&mut stage.connect(0, None, stage.at(0, 1, false))?)? == 1);
    stage.gateway.cli(&["drain", "--wait", "--socket", "{socket}"]).map(drop)
}

/// As a unit's ExecStartPre, which has a mount namespace of its own also with full privileges: on a host without a bpffs
/// what it mounted there would be seen by nobody.
#[test]
fn a_step_in_a_mount_namespace_of_its_own_prepares_the_host() -> Result<()> {
    need_edge!();
    let folder = tempfile::tempdir()?;
    let pin = Path::new("/sys/fs/bpf").join(format!("turnout-test-{}-prepare", std::process::id()));
    let config = folder.path().join("turnout.yaml");
    fs::write(
        &config,
        format!(
            "clusters: {{k: {{bootstrap: [\"127.0.0.1:1\"]}}}}\n\
             virtual_clusters: {{v: {{cluster: k, listen: [\"127.0.0.1\"], bootstrap_port: 1, \
             broker_ports: {{first: 2, count: 1, first_node_id: 0}}}}}}\n\
             fast_path: {{mode: auto, pin: {}}}\n",
            pin.display()
        ),
    )?;
    // Process 1 of a namespace of its own stands for the host's; behind it runs the step.
    let inner = r#"unshare --mount sh -c 'umount -l /sys/fs/bpf; exec "$@"' sh "$@"; exit $?"#;
    let mut step = Command::new("unshare");
    step.args(["--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", inner, "sh"]);
    step.arg(turnout::binary()?).args(["prepare", "--config"]).arg(&config).args(["--user", &USER.to_string()]);
    let said = process::run(step, SOON);
    let owner = fs::metadata(&pin).map(|made| made.uid());
    // Ours, and empty; gone before anything is judged.
    let _ = fs::remove_dir(&pin);
    said?;
    ensure!(owner.as_ref().is_ok_and(|uid| *uid == USER), "{}: {owner:?}", pin.display());
    Ok(())
}
