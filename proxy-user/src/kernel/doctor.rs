//! What this host can and can't do, one sentence each: facts are gathered, then judged by a pure function.

use std::fs;
use std::iter;
use std::path::Path;

use serde::Serialize;

use super::capabilities::{Capability, Set};
use super::interfaces::{self, Network};
use super::offloads::{self, Obstacle};
use super::{PIN_DIRECTORY, netdev, object, programs, sys};

/// The oldest kernel the programs are written for: 6.6, the long-term release with BPF links for TC (`tcx`).
pub const OLDEST_KERNEL: (u32, u32) = (6, 6);

/// Connections a virtual cluster accepts by default; each takes a descriptor on both sides.
const DEFAULT_CONNECTIONS: u64 = 9000;

/// Descriptors besides those of connections: listeners, logs, the admin socket, the gateway's own client, maps.
const OTHER_DESCRIPTORS: u64 = 500;

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at, in a word or two.
    pub topic: &'static str,
    /// It is as it should be.
    pub ok: bool,
    /// What was found and what follows from it.
    pub sentence: String,
    /// What to do about it, where it isn't as it should be.
    pub remedy: Option<String>,
}

/// Looks at this host and process, for a config with the default number of connections.
#[must_use]
pub fn findings() -> Vec<Finding> {
    findings_for(DEFAULT_CONNECTIONS)
}

/// Looks at this host and process, for a config that allows `connections` client connections over all virtual clusters.
#[must_use]
pub fn findings_for(connections: u64) -> Vec<Finding> {
    judge(&Facts::gather(), connections)
}

/// What was seen. Everything that can't be read is `None`, and judged as such.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Facts {
    /// Whole release string, e.g. `6.6.13-amd64`.
    release: Option<String>,
    /// The kernel describes its own types.
    btf: bool,
    /// `/sys/fs/bpf` is a bpffs.
    bpffs: bool,
    /// The JIT compiler: 0 off, 1 on, 2 on with debug output.
    jit: Option<u8>,
    /// Effective capabilities.
    capabilities: Option<Set>,
    /// Soft limit of open files.
    open_files: Option<u64>,
    /// Kernel programs are embedded.
    built: bool,
    /// The kernel took the programs; why not, otherwise. `None`: not tried.
    loads: Option<Result<(), String>>,
    /// Interfaces that admission would run on.
    interfaces: Vec<Interface>,
}

/// What an interface can do for XDP.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Interface {
    name: String,
    driver: Option<String>,
    /// The driver runs XDP by itself; `None`: the kernel doesn't tell (before 6.3).
    native: Option<bool>,
    lro: bool,
    /// What prevents the splice.
    obstacle: Option<Obstacle>,
}

impl Facts {
    fn gather() -> Self {
        let mut facts = Self {
            release: read("/proc/sys/kernel/osrelease"),
            btf: Path::new("/sys/kernel/btf/vmlinux").exists(),
            bpffs: sys::is_bpffs(Path::new("/sys/fs/bpf")),
            jit: read("/proc/sys/net/core/bpf_jit_enable").and_then(|s| s.parse().ok()),
            capabilities: Set::effective().ok(),
            open_files: open_files(),
            built: object().is_some(),
            loads: None,
            interfaces: Network::look().map(|n| look_at(&n)).unwrap_or_default(),
        };
        if facts.built && missing_capabilities(facts.capabilities).is_empty() {
            facts.loads = Some(programs::try_to_load().map_err(|e| format!("{:#}", anyhow::Error::new(e))));
        }
        facts
    }
}

fn look_at(network: &Network) -> Vec<Interface> {
    let wanted = network.wanted(None);
    let features = netdev::Netdev::open().ok();
    let look = |(index, name): (u32, String)| Interface {
        driver: interfaces::driver(&name),
        native: features.as_ref().and_then(|netdev| netdev.runs_xdp(index).ok()),
        lro: interfaces::has_lro(&name),
        obstacle: offloads::obstacle(&name, index),
        name,
    };
    wanted.into_iter().map(look).collect()
}

/// Release, major and minor of the kernel that runs.
pub(super) fn running_kernel() -> Option<(String, (u32, u32))> {
    let release = read("/proc/sys/kernel/osrelease")?;
    let version = version(&release)?;
    Some((release, version))
}

fn judge(facts: &Facts, connections: u64) -> Vec<Finding> {
    let Facts { release, btf, bpffs, jit, capabilities, open_files, built, loads, interfaces } = facts;
    let mut findings = vec![
        kernel(release.as_deref()),
        programs(*built),
        finding(
            "BTF",
            *btf,
            "The kernel describes its own types (BTF).",
            "The kernel has no BTF: programs that read its structures can't be loaded.",
            "Use a kernel built with CONFIG_DEBUG_INFO_BTF=y; the kernels of the large distributions are.",
        ),
        finding(
            "bpffs",
            *bpffs,
            &format!("A bpffs is mounted, so programs can outlive the daemon under {PIN_DIRECTORY}."),
            "No bpffs is mounted at /sys/fs/bpf: programs can't be pinned and end with the daemon.",
            "mount -t bpf bpf /sys/fs/bpf",
        ),
        finding(
            "BPF JIT",
            !matches!(jit, Some(0)),
            "Kernel programs are compiled to machine code.",
            "The BPF JIT is off: kernel programs are interpreted, and slower than the daemon.",
            "sysctl net.core.bpf_jit_enable=1",
        ),
        privileges(*capabilities),
        descriptors(*open_files, connections),
    ];
    match loads {
        Some(Ok(())) => findings.push(Finding {
            topic: "loading",
            ok: true,
            sentence: "The kernel took admission (XDP) and steering (sk_lookup) on trial and let them go again.".into(),
            remedy: None,
        }),
        Some(Err(why)) => findings.push(Finding {
            topic: "loading",
            ok: false,
            sentence: format!("The kernel refused the programs on trial: {why}."),
            remedy: Some("Run with `fast_path: {mode: off}`; everything works through the daemon.".into()),
        }),
        None => {}
    }
    findings.push(tcx(release.as_deref()));
    findings.extend(interfaces.iter().flat_map(|i| iter::once(interface(i)).chain(splice(i))));
    findings
}

/// BPF links for TC came with 6.6; there is nothing to ask for them without attaching something.
fn tcx(release: Option<&str>) -> Finding {
    finding(
        "tcx",
        release.and_then(version).is_some_and(|v| v >= (6, 6)),
        "TC programs can be held by links (tcx), so the fast path can be attached and replaced in one step.",
        "The kernel has no links for TC programs (tcx): the fast path can't be attached.",
        "Use Linux 6.6 or newer; admission and steering need only 5.9, and are held to the same minimum.",
    )
}

fn interface(interface: &Interface) -> Finding {
    let Interface { name, driver, native, lro, .. } = interface;
    let driver = driver.as_deref().unwrap_or("unknown driver");
    let (ok, sentence, remedy) = match (lro, native) {
        (true, _) => (
            false,
            format!("{name} ({driver}) joins packets in the card (LRO), beside which most drivers refuse XDP."),
            Some(format!("ethtool -K {name} lro off")),
        ),
        (_, Some(true)) => (true, format!("{name} ({driver}) runs XDP natively: refusing a packet costs least."), None),
        (_, Some(false)) => (
            false,
            format!(
                "{name} ({driver}) has no native XDP: admission runs in generic mode, behind the kernel's own packet \
                 structure, and refusing a packet costs more."
            ),
            Some("Nothing has to be done; under floods a card with native XDP helps.".to_owned()),
        ),
        (_, None) => (
            true,
            format!("{name} ({driver}) may or may not run XDP natively: this kernel doesn't tell before it is tried."),
            None,
        ),
    };
    Finding { topic: "XDP", ok, sentence, remedy }
}

/// What of an interface prevents the splice. Of LRO its own finding speaks.
fn splice(interface: &Interface) -> Option<Finding> {
    let Interface { name, obstacle, lro: false, .. } = interface else { return None };
    let Obstacle { why, remedy } = obstacle.as_ref()?;
    let sentence = format!("Connections by {name} stay the daemon's: {why}.");
    Some(Finding { topic: "fast path", ok: false, sentence, remedy: Some(remedy.clone()) })
}

fn finding(topic: &'static str, ok: bool, good: &str, bad: &str, remedy: &str) -> Finding {
    Finding { topic, ok, sentence: if ok { good } else { bad }.to_owned(), remedy: (!ok).then(|| remedy.to_owned()) }
}

fn kernel(release: Option<&str>) -> Finding {
    let (major, minor) = OLDEST_KERNEL;
    let remedy =
        format!("Use Linux {major}.{minor} or newer for the kernel path; the daemon itself runs on older ones.");
    let Some((release, version)) = release.and_then(|r| Some((r, version(r)?))) else {
        return finding("kernel", false, "", "The kernel's version can't be read.", &remedy);
    };
    finding(
        "kernel",
        version >= OLDEST_KERNEL,
        &format!("Linux {release} is new enough for the kernel path ({major}.{minor})."),
        &format!("Linux {release} is older than {major}.{minor}: everything goes through the daemon."),
        &remedy,
    )
}

/// Major and minor of a release string.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn programs(built: bool) -> Finding {
    finding(
        "kernel programs",
        built,
        "Built with kernel programs.",
        "Built without kernel programs: everything goes through the daemon.",
        "Build with `cargo xtask bootstrap --for build && cargo xtask build --release`.",
    )
}

fn privileges(capabilities: Option<Set>) -> Finding {
    let missing: Vec<_> = missing_capabilities(capabilities).into_iter().map(Capability::name).collect();
    finding(
        "privileges",
        missing.is_empty(),
        "This process may load and attach kernel programs.",
        &format!("This process can't load or attach kernel programs: it lacks {}.", missing.join(", ")),
        "Run as root, or give the service AmbientCapabilities=CAP_BPF CAP_NET_ADMIN CAP_PERFMON.",
    )
}

fn missing_capabilities(capabilities: Option<Set>) -> Vec<Capability> {
    capabilities.unwrap_or_default().missing()
}

fn descriptors(open_files: Option<u64>, connections: u64) -> Finding {
    let wanted = connections.saturating_mul(2).saturating_add(OTHER_DESCRIPTORS);
    let remedy = format!("Raise it: LimitNOFILE={wanted} in the service, or `ulimit -n {wanted}`.");
    let Some(limit) = open_files else {
        return finding("open files", false, "", "The limit of open files can't be read.", &remedy);
    };
    finding(
        "open files",
        limit >= wanted,
        &format!("{limit} open files are enough for {connections} connections, two files each."),
        &format!(
            "{limit} open files are enough for {} of {connections} connections; then accepting pauses.",
            limit.saturating_sub(OTHER_DESCRIPTORS) / 2
        ),
        &remedy,
    )
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|s| s.trim().to_owned())
}

fn open_files() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` outlives the call, which writes only to it.
    (unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0).then_some(limit.rlim_cur)
}

#[cfg(test)]
mod tests {
    use super::*;

    use super::super::capabilities::NEEDED;

    fn good() -> Facts {
        Facts {
            release: Some("6.6.13-amd64".into()),
            btf: true,
            bpffs: true,
            jit: Some(1),
            capabilities: Some(NEEDED.into_iter().collect()),
            open_files: Some(20_000),
            built: true,
            loads: Some(Ok(())),
            interfaces: vec![eth0()],
        }
    }

    fn eth0() -> Interface {
        Interface { name: "eth0".into(), driver: Some("ixgbe".into()), native: Some(true), lro: false, obstacle: None }
    }

    fn complaints(facts: &Facts, connections: u64) -> Vec<&'static str> {
        judge(facts, connections).into_iter().filter(|f| !f.ok).map(|f| f.topic).collect()
    }

    #[test]
    fn a_good_host_has_no_complaint() {
        assert_eq!(complaints(&good(), 9000), [""; 0]);
    }

    #[test]
    fn each_lack_is_one_complaint_with_a_remedy() {
        type Lack = fn(&mut Facts);
        let lacks: [(&str, Lack); 10] = [
            ("fast path", |f| {
                f.interfaces[0].obstacle = Some(Obstacle { why: "lists".into(), remedy: "off".into() });
            }),
            ("XDP", |f| f.interfaces[0].lro = true),
            ("XDP", |f| f.interfaces[0].native = Some(false)),
            ("kernel programs", |f| f.built = false),
            ("BTF", |f| f.btf = false),
            ("bpffs", |f| f.bpffs = false),
            ("BPF JIT", |f| f.jit = Some(0)),
            ("privileges", |f| f.capabilities = Some(Set::default())),
            ("open files", |f| f.open_files = Some(1024)),
            ("loading", |f| f.loads = Some(Err("no".into()))),
        ];
        for (topic, lack) in lacks {
            let mut facts = good();
            lack(&mut facts);
            assert_eq!(complaints(&facts, 9000), [topic]);
            let all = judge(&facts, 9000);
            assert!(all.iter().all(|f| f.ok == f.remedy.is_none() && !f.sentence.is_empty()), "{all:?}");
        }
    }

    #[test]
    fn versions_compare_as_numbers() {
        assert!(kernel(Some("6.18.44")).ok);
        assert!(kernel(Some("10.0.0-rc1")).ok);
        assert!(!kernel(Some("5.15.0-generic")).ok);
        assert!(!kernel(Some("nonsense")).ok);
    }

    #[test]
    fn an_old_or_unknown_kernel_lacks_tcx_as_well() {
        for release in [Some("6.5.99".to_owned()), None] {
            let facts = Facts { release, ..good() };
            assert_eq!(complaints(&facts, 9000), ["kernel", "tcx"]);
        }
    }

    #[test]
    fn an_interface_that_the_kernel_says_nothing_about_is_no_complaint() {
        let unknown = interface(&Interface { driver: None, native: None, ..eth0() });
        assert!(unknown.ok && unknown.sentence.contains("eth0"), "{unknown:?}");
        let lro = interface(&Interface { lro: true, ..eth0() });
        assert_eq!(lro.remedy.as_deref(), Some("ethtool -K eth0 lro off"));
    }

    #[test]
    fn open_files_are_counted_against_the_connections_of_the_config() {
        assert!(descriptors(Some(2 * 10 + OTHER_DESCRIPTORS), 10).ok);
        let short = descriptors(Some(2 * 10 + OTHER_DESCRIPTORS - 1), 10);
        assert!(!short.ok);
        assert!(short.sentence.contains("enough for 9 of 10"), "{}", short.sentence);
    }

    #[test]
    fn this_host_can_be_looked_at() {
        let findings = findings();
        assert!(findings.len() >= 7, "{findings:?}");
    }
}
