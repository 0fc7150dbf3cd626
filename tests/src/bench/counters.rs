//! What the kernel counts about processes and the whole system.

use std::fs;

use anyhow::{Context, Result};

/// Clock ticks a second of `/proc`'s times (`USER_HZ`): 100 on every architecture that Rust's std supports on Linux.
const TICKS: f64 = 100.0;

/// CPU time spent, read at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cpu {
    system: f64,
    process: Option<f64>,
}

/// CPU seconds between two readings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuSpent {
    /// Of all processors: everything but idle and waiting for disks.
    pub(crate) system: f64,
    /// Of the process: user and kernel time of all its threads, ended ones included.
    pub(crate) process: Option<f64>,
}

impl Cpu {
    /// Reads the counters, those of a process too where one is given.
    ///
    /// # Errors
    /// The process has ended.
    pub(crate) fn read(pid: Option<i32>) -> Result<Self> {
        let system = busy(&fs::read_to_string("/proc/stat")?).context("/proc/stat has no cpu line")?;
        let process = pid.map(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("process {pid}"))?;
            spent(&stat).with_context(|| format!("/proc/{pid}/stat has another shape"))
        });
        Ok(Self { system, process: process.transpose()? })
    }

    /// What was spent since an earlier reading.
    #[must_use]
    pub(crate) fn since(self, earlier: Self) -> CpuSpent {
        let process = self.process.zip(earlier.process).map(|(now, then)| now - then);
        CpuSpent { system: self.system - earlier.system, process }
    }
}

/// Busy seconds from `/proc/stat`: user, nice, system, irq and softirq (proc(5)). Steal is another machine's.
fn busy(stat: &str) -> Option<f64> {
    let fields: Vec<f64> =
        stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let [user, nice, system, _idle, _iowait, irq, softirq, ..] = fields[..] else { return None };
    Some((user + nice + system + irq + softirq) / TICKS)
}

/// utime + stime from `/proc/PID/stat`, fields 14 and 15 of proc(5).
fn spent(stat: &str) -> Option<f64> {
    // The second field, the command's name, may hold blanks and parentheses itself.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(11);
    let (user, system): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some((user + system) / TICKS)
}

/// Memory of a process in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// `VmRSS`: resident now, mapped files (its own program text) included.
    pub(crate) resident: u64,
    /// `RssAnon`: the part that is its own data.
    pub(crate) anonymous: u64,
    /// `VmHWM`: the most that was resident since its start.
    pub(crate) peak: u64,
}

impl Memory {
    /// Reads `/proc/PID/status`.
    ///
    /// # Errors
    /// The process has ended.
    pub(crate) fn read(pid: i32) -> Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).with_context(|| format!("process {pid}"))?;
        let field = |name: &str| -> Result<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("no {name}"))?;
            let kib: u64 = line.trim_start_matches(':').trim().trim_end_matches(" kB").parse()?;
            Ok(kib * 1024)
        };
        Ok(Self { resident: field("VmRSS")?, anonymous: field("RssAnon")?, peak: field("VmHWM")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_stolen_time_is_not_busy() {
        assert_eq!(busy("cpu  100 20 300 9999 555 7 3 777 0 0\ncpu0 1 2"), Some(4.3));
    }

    #[test]
    fn a_process_may_have_any_name() {
        let stat = "17 (a) b (c) S 1 17 17 0 -1 4194560 5 0 0 0 250 50 0 0 20 0 3 0 900 1 2";
        assert_eq!(spent(stat), Some(3.0));
    }

    #[test]
    fn this_process_has_memory_and_spends_time() {
        let pid = std::process::id() as i32;
        let memory = Memory::read(pid).unwrap();
        assert!(memory.peak >= memory.resident && memory.resident > memory.anonymous);
        let spent = Cpu::read(Some(pid)).unwrap().since(Cpu::read(Some(pid)).unwrap());
        assert!(spent.system <= 0.0 && spent.process.is_some_and(|seconds| seconds <= 0.0));
    }
}
