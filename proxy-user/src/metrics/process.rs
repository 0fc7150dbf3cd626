//! What the kernel says about this process.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// One reading. A field is `None` where this host doesn't tell.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Process {
    /// CPU time, user and system.
    pub cpu: Option<Duration>,
    /// Resident memory, bytes.
    pub resident: Option<u64>,
    /// Virtual memory, bytes.
    pub virtual_memory: Option<u64>,
    /// Open file descriptors.
    pub open_fds: Option<u64>,
    /// Soft limit of file descriptors; `None` also for unlimited.
    pub max_fds: Option<u64>,
}

impl Process {
    /// Reads the figures of this process.
    #[must_use]
    pub fn read() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
        Self {
            cpu: cpu_time(),
            resident: kibibytes(&status, "VmRSS:"),
            virtual_memory: kibibytes(&status, "VmSize:"),
            open_fds: open_fds(),
            max_fds: soft_limit(&limits, "Max open files"),
        }
    }
}

/// A `Name:  123 kB` line of proc(5) `status`, in bytes.
fn kibibytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|l| l.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The soft limit of a line of proc(5) `limits`.
fn soft_limit(limits: &str, name: &str) -> Option<u64> {
    limits.lines().find_map(|l| l.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

fn open_fds() -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    // Since Linux 6.2 the size of the directory is the number of descriptors; listing it costs a walk over all of them.
    match fs::metadata("/proc/self/fd") {
        Ok(meta) if meta.size() > 0 => Some(meta.size()),
        _ => {
            let listed = fs::read_dir("/proc/self/fd").ok()?.count() as u64;
            // The listing itself holds one.
            Some(listed.saturating_sub(1))
        }
    }
}

fn cpu_time() -> Option<Duration> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is valid for one `rusage`, which the call fills; all-zero is a valid `rusage`.
    let usage = unsafe {
        if libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) != 0 {
            return None;
        }
        usage.assume_init()
    };
    let of = |t: libc::timeval| {
        Duration::from_secs(t.tv_sec.try_into().unwrap_or(0)) + Duration::from_micros(t.tv_usec.try_into().unwrap_or(0))
    };
    Some(of(usage.ru_utime) + of(usage.ru_stime))
}

/// Seconds since the epoch; 0 for a clock before it.
#[must_use]
pub(super) fn unix_seconds(at: SystemTime) -> f64 {
    at.duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_plausible_figures() {
        let before = Process::read();
        let held: Vec<_> = (0..10).map(|_| fs::File::open("/dev/null").expect("/dev/null")).collect();
        let after = Process::read();
        assert!(before.resident.is_some_and(|b| b > 100_000));
        assert!(before.virtual_memory >= before.resident);
        // Other tests open and close descriptors meanwhile, never as many as a thousand.
        let (a, b) = (before.open_fds.expect("open_fds"), after.open_fds.expect("open_fds"));
        assert!(b + 1000 > a && b >= held.len() as u64, "{a} then {b}");
        assert!(after.max_fds.is_none_or(|max| max >= b));
        assert!(after.cpu >= before.cpu);
    }

    #[test]
    fn proc_files_are_read_by_name() {
        assert_eq!(kibibytes("VmSize:\t  8 kB\nVmRSS:\t    4321 kB\n", "VmRSS:"), Some(4321 * 1024));
        assert_eq!(kibibytes("Name:\tx\n", "VmRSS:"), None);
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max open files            20000                20000                files\n";
        assert_eq!(soft_limit(limits, "Max open files"), Some(20_000));
        assert_eq!(soft_limit("Max open files            unlimited  unlimited  files", "Max open files"), None);
    }
}
