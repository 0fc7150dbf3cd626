//! `turnout attach` and `turnout detach`: kernel programs without the daemon.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::bail;

use super::args::AttachArgs;
use super::{Outcome, account, json};
use crate::config;
use crate::gateway::status::{EdgeReport, InterfaceReport};
use crate::kernel::{self, EdgeError};

/// Attaches the programs and says where. It is a failure where an interface that was named can't have them, or none
/// has.
pub(super) fn attach(args: &AttachArgs) -> anyhow::Result<Outcome> {
    let AttachArgs { config: file, interface, format, pins } = args;
    let (pin, names) = match file {
        Some(file) => {
            let config::FastPath { mode: _, interfaces, pin, mirror_buffer: _ } = config::load(file)?.config.fast_path;
            (pin, interfaces.names().map(<[String]>::to_vec))
        }
        None => (pins.pin.clone(), (!interface.is_empty()).then(|| interface.clone())),
    };
    let report: EdgeReport = kernel::attach(&pin, names.as_deref())?.into();
    let ok = match &names {
        Some(_) => report.interfaces.iter().all(|interface| interface.mode.is_some()),
        None => report.steering,
    };
    Ok(Outcome { text: if format.is_json() { json(&report)? } else { attached(&report) }, ok })
}

/// Makes the pin folder for a user that can't.
pub(super) fn prepare(file: &Path, user: &str) -> anyhow::Result<Outcome> {
    let config::FastPath { mode, interfaces: _, pin, mirror_buffer: _ } = config::load(file)?.config.fast_path;
    if mode == config::FastPathMode::Off {
        return Ok(Outcome::done("fast_path.mode is off: nothing to prepare\n".to_owned()));
    }
    let (uid, gid) = account::find(user)?;
    match kernel::prepare(&pin, uid, gid) {
        Ok(()) => Ok(Outcome::done(format!("{} belongs to {user}\n", pin.display()))),
        // The daemon will serve without, and say so; its start is not to fail for it.
        Err(error) if mode == config::FastPathMode::Auto => {
            Ok(Outcome::done(format!("no kernel programs on this host: {:#}\n", anyhow::Error::from(error))))
        }
        Err(error) => Err(error.into()),
    }
}

fn attached(report: &EdgeReport) -> String {
    let mut text = String::new();
    for InterfaceReport { name, mode, reason } in &report.interfaces {
        let reason = reason.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        let _ = writeln!(text, "admission on {name}: {}{reason}", mode.as_deref().unwrap_or("not attached"));
    }
    if report.interfaces.is_empty() {
        text.push_str("admission: no interface can carry clients\n");
    }
    let _ = writeln!(text, "steering: {}", if report.steering { "attached" } else { "not attached" });
    let _ = writeln!(text, "pinned in {}; everything passes until a daemon sets ports and rules", report.pin);
    text
}

/// Detaches the programs. Where there are none, that is what was wanted.
pub(super) fn detach(pin: &Path, force: bool, in_json: bool) -> anyhow::Result<Outcome> {
    let had = match kernel::detach(pin, force) {
        Err(EdgeError::Held { pin, holder }) => bail!(
            "{} is held by {holder}: set `fast_path: {{mode: off}}` and reload it, or take its programs off with \
             --force, after which it refuses new connections until it has noticed, about a second",
            pin.display()
        ),
        had => had?,
    };
    Ok(Outcome::done(match (in_json, had) {
        (true, _) => json(&serde_json::json!({ "detached": had }))?,
        (false, true) => "detached\n".to_owned(),
        (false, false) => format!("nothing is attached under {}\n", pin.display()),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_attached_where_is_said_in_a_line_each() {
        let interface = |name: &str, mode: Option<&str>, reason: Option<&str>| InterfaceReport {
            name: name.into(),
            mode: mode.map(str::to_owned),
            reason: reason.map(str::to_owned),
        };
        let report = EdgeReport {
            pin: "/sys/fs/bpf/turnout".into(),
            interfaces: vec![
                interface("eth0", Some("native"), None),
                interface("wg0", None, Some("its driver has no XDP")),
            ],
            steering: true,
            ..EdgeReport::default()
        };
        assert_eq!(
            attached(&report),
            "admission on eth0: native\nadmission on wg0: not attached (its driver has no XDP)\nsteering: attached\n\
             pinned in /sys/fs/bpf/turnout; everything passes until a daemon sets ports and rules\n"
        );
        assert!(attached(&EdgeReport::default()).contains("no interface can carry clients"));
    }
}
