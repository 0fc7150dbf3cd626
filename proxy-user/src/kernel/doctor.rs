//! What this host can and can't do, one sentence each: facts are gathered, then judged by a pure function.

use std::ffi::CString;
use std::fs;
use std::path::Path;

use serde::Serialize;

use super::{PIN_DIRECTORY, Probe, object};

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
    /// Bits of the effective capabilities.
    capabilities: Option<u64>,
    /// Soft limit of open files.
    open_files: Option<u64>,
    /// Kernel programs are embedded.
    built: bool,
    /// The kernel took the probe; why not, otherwise. `None`: not tried.
    loads: Option<Result<(), String>>,
}

const CAP_NET_ADMIN: (u32, &str) = (12, "CAP_NET_ADMIN");
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: (u32, &str) = (38, "CAP_PERFMON");
const CAP_BPF: (u32, &str) = (39, "CAP_BPF");

impl Facts {
    fn gather() -> Self {
        let mut facts = Self {
            release: read("/proc/sys/kernel/osrelease"),
            btf: Path::new("/sys/kernel/btf/vmlinux").exists(),
            bpffs: is_bpffs(Path::new("/sys/fs/bpf")),
            jit: read("/proc/sys/net/core/bpf_jit_enable").and_then(|s| s.parse().ok()),
            capabilities: fs::read_to_string("/proc/self/status").ok().and_then(|s| effective_capabilities(&s)),
            open_files: open_files(),
            built: object().is_some(),
            loads: None,
        };
        if facts.built && missing_capabilities(facts.capabilities).is_empty() {
            facts.loads = Some(Probe::load().map(|_| ()).map_err(|e| format!("{:#}", anyhow::Error::new(e))));
        }
        facts
    }
}

fn judge(facts: &Facts, connections: u64) -> Vec<Finding> {
    let Facts { release, btf, bpffs, jit, capabilities, open_files, built, loads } = facts;
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
            sentence: "The kernel loaded the probe program on trial and let it go again.".into(),
            remedy: None,
        }),
        Some(Err(why)) => findings.push(Finding {
            topic: "loading",
            ok: false,
            sentence: format!("The kernel refused the probe program on trial: {why}."),
            remedy: Some("Run with `fast_path: {mode: off}`; everything works through the daemon.".into()),
        }),
        None => {}
    }
    findings
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

fn privileges(capabilities: Option<u64>) -> Finding {
    let missing = missing_capabilities(capabilities);
    finding(
        "privileges",
        missing.is_empty(),
        "This process may load and attach kernel programs.",
        &format!("This process can't load or attach kernel programs: it lacks {}.", missing.join(", ")),
        "Run as root, or give the service AmbientCapabilities=CAP_BPF CAP_NET_ADMIN CAP_PERFMON.",
    )
}

fn missing_capabilities(capabilities: Option<u64>) -> Vec<&'static str> {
    let has = |bit: u32| capabilities.is_some_and(|c| c & (1 << bit) != 0);
    // CAP_SYS_ADMIN stands in for the two capabilities that were split from it in 5.8, not for CAP_NET_ADMIN.
    [CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON]
        .into_iter()
        .filter(|&(bit, _)| !(has(bit) || bit != CAP_NET_ADMIN.0 && has(CAP_SYS_ADMIN)))
        .map(|(_, name)| name)
        .collect()
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

/// The `CapEff` line of `/proc/PID/status` (proc(5)).
fn effective_capabilities(status: &str) -> Option<u64> {
    status.lines().find_map(|l| l.strip_prefix("CapEff:")).and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
}

fn open_files() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` outlives the call, which writes only to it.
    (unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0).then_some(limit.rlim_cur)
}

/// Whether the path is on a bpffs.
pub(super) fn is_bpffs(path: &Path) -> bool {
    /// `BPF_FS_MAGIC` of include/uapi/linux/magic.h.
    const MAGIC: u64 = 0xcafe_4a11;
    use std::os::unix::ffi::OsStrExt as _;
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    let mut stat = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the path ends in NUL and `stat` outlives the call, which writes only to it.
    if unsafe { libc::statfs(path.as_ptr(), stat.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: the call succeeded, so it filled the structure.
    let kind = unsafe { stat.assume_init() }.f_type;
    // The field's width and sign differ between architectures.
    u64::from(kind as u32) == MAGIC
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = 1 << 12 | 1 << 38 | 1 << 39;

    fn good() -> Facts {
        Facts {
            release: Some("6.6.13-amd64".into()),
            btf: true,
            bpffs: true,
            jit: Some(1),
            capabilities: Some(ALL),
            open_files: Some(20_000),
            built: true,
            loads: Some(Ok(())),
        }
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
        let lacks: [(&str, Lack); 9] = [
            ("kernel", |f| f.release = Some("6.5.99".into())),
            ("kernel", |f| f.release = None),
            ("kernel programs", |f| f.built = false),
            ("BTF", |f| f.btf = false),
            ("bpffs", |f| f.bpffs = false),
            ("BPF JIT", |f| f.jit = Some(0)),
            ("privileges", |f| f.capabilities = Some(0)),
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
    fn sys_admin_stands_in_for_bpf_and_perfmon_but_not_for_net_admin() {
        assert_eq!(missing_capabilities(Some(1 << CAP_SYS_ADMIN)), ["CAP_NET_ADMIN"]);
        assert_eq!(missing_capabilities(Some(ALL & !(1 << 39))), ["CAP_BPF"]);
        assert_eq!(missing_capabilities(None).len(), 3);
    }

    #[test]
    fn open_files_are_counted_against_the_connections_of_the_config() {
        assert!(descriptors(Some(2 * 10 + OTHER_DESCRIPTORS), 10).ok);
        let short = descriptors(Some(2 * 10 + OTHER_DESCRIPTORS - 1), 10);
        assert!(!short.ok);
        assert!(short.sentence.contains("enough for 9 of 10"), "{}", short.sentence);
    }

    #[test]
    fn effective_capabilities_are_read_from_proc() {
        assert_eq!(effective_capabilities("CapPrm:\t0\nCapEff:\t000001ffffffffff\n"), Some(0x1ff_ffff_ffff));
        assert_eq!(effective_capabilities("CapPrm:\t0\n"), None);
    }

    #[test]
    fn this_host_can_be_looked_at() {
        let findings = findings();
        assert!(findings.len() >= 7, "{findings:?}");
    }
}
