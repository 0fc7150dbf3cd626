//! What the process may do: read, and given up.
//!
//! The running daemon needs three capabilities and no root: CAP_BPF and CAP_PERFMON to load programs and read their
//! maps, CAP_NET_ADMIN to attach them and to load those of the network. Capabilities belong to threads: give them up
//! before others are started.

use std::fmt;
use std::fs;
use std::io;

/// A capability that turnout knows by name (capabilities(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Capability {
    /// Read files whatever their owner: what a reload may have to, when started as root.
    DacReadSearch = 2,
    /// Listen on ports below 1024.
    NetBindService = 10,
    /// Attach programs to interfaces and namespaces, load network programs.
    NetAdmin = 12,
    /// Before 5.8 what CAP_BPF and CAP_PERFMON are now; still needed to mount.
    SysAdmin = 21,
    /// Read what programs read; pointer arithmetic that the verifier otherwise refuses.
    Perfmon = 38,
    /// Load programs and make maps.
    Bpf = 39,
}

/// What the running daemon keeps.
pub const NEEDED: [Capability; 3] = [Capability::Bpf, Capability::NetAdmin, Capability::Perfmon];

/// What the running daemon also keeps where it has it, so that a reload can do what the start could.
pub const USEFUL: [Capability; 2] = [Capability::NetBindService, Capability::DacReadSearch];

impl Capability {
    /// As it is written in units and manual pages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DacReadSearch => "CAP_DAC_READ_SEARCH",
            Self::NetBindService => "CAP_NET_BIND_SERVICE",
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::Perfmon => "CAP_PERFMON",
            Self::Bpf => "CAP_BPF",
        }
    }
}

/// A set of capabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Set(u64);

impl Set {
    /// Those that the kernel applies to this thread.
    ///
    /// # Errors
    /// `/proc` can't be read.
    pub fn effective() -> io::Result<Self> {
        of_status(&fs::read_to_string("/proc/thread-self/status")?, "CapEff:")
    }

    /// Those that this thread and what it executes can ever have.
    ///
    /// # Errors
    /// `/proc` can't be read.
    pub fn bounding() -> io::Result<Self> {
        of_status(&fs::read_to_string("/proc/thread-self/status")?, "CapBnd:")
    }

    /// Whether the capability is among them.
    #[must_use]
    pub const fn has(self, capability: Capability) -> bool {
        self.0 & 1 << capability as u8 != 0
    }

    /// Needed ones that are not among them. CAP_SYS_ADMIN stands in for the two that were split from it in 5.8.
    #[must_use]
    pub fn missing(self) -> Vec<Capability> {
        let stands_in = |c| c != Capability::NetAdmin && self.has(Capability::SysAdmin);
        NEEDED.into_iter().filter(|&c| !self.has(c) && !stands_in(c)).collect()
    }

    /// Whether it is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl FromIterator<Capability> for Set {
    fn from_iter<I: IntoIterator<Item = Capability>>(capabilities: I) -> Self {
        Self(capabilities.into_iter().fold(0, |set, c| set | 1 << c as u8))
    }
}

impl From<u64> for Set {
    fn from(bits: u64) -> Self {
        Self(bits)
    }
}

impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

fn of_status(status: &str, field: &str) -> io::Result<Set> {
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let bits = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    bits.map(Set).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("no {field} in /proc")))
}

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// `_LINUX_CAPABILITY_VERSION_3`: two words for each set.
const VERSION: u32 = 0x2008_0522;

fn get() -> io::Result<[Data; 2]> {
    let mut header = Header { version: VERSION, pid: 0 };
    let mut data = [Data::default(); 2];
    // SAFETY: header and data are of the version's layout and outlive the call.
    match unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) } {
        0 => Ok(data),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set(data: &[Data; 2]) -> io::Result<()> {
    let mut header = Header { version: VERSION, pid: 0 };
    // SAFETY: header and data are of the version's layout and outlive the call.
    match unsafe { libc::syscall(libc::SYS_capset, &raw mut header, data.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn prctl(option: libc::c_int, a: libc::c_ulong, b: libc::c_ulong) -> io::Result<libc::c_int> {
    // SAFETY: none of the options used here takes a pointer.
    match unsafe { libc::prctl(option, a, b, 0, 0) } {
        result @ 0.. => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives up all but these, for this thread and whatever it starts or executes. Those of them that it doesn't have are
/// not gained. The bounding set needs CAP_SETPCAP to be cut; without it, it stays, and only a set-user-ID program could
/// bring back what is given up here.
///
/// # Errors
/// The kernel refused; nothing is gained, some may be given up already.
pub fn keep_only(keep: impl IntoIterator<Item = Capability>) -> io::Result<()> {
    let Set(keep) = keep.into_iter().collect();
    for capability in 0..64 {
        // Not a capability of this kernel: the end of the list.
        if prctl(libc::PR_CAPBSET_READ, capability, 0).is_err() {
            break;
        }
        if keep & 1 << capability == 0 {
            match prctl(libc::PR_CAPBSET_DROP, capability, 0) {
                Err(e) if e.kind() != io::ErrorKind::PermissionDenied => return Err(e),
                _ => {}
            }
            prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_LOWER as libc::c_ulong, capability)?;
        }
    }
    let mut data = get()?;
    for (word, keep) in data.iter_mut().zip([keep as u32, (keep >> 32) as u32]) {
        word.permitted &= keep;
        word.effective &= keep;
        word.inheritable &= keep;
    }
    set(&data)
}

/// Makes these effective for this thread and takes the others out of effect, without giving any up: what a test does
/// that documents what its subject needs.
///
/// # Errors
/// One of them is not permitted.
pub fn raise_only(wanted: impl IntoIterator<Item = Capability>) -> io::Result<()> {
    let Set(wanted) = wanted.into_iter().collect();
    let mut data = get()?;
    data[0].effective = wanted as u32;
    data[1].effective = (wanted >> 32) as u32;
    set(&data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_read_from_proc() {
        assert_eq!(of_status("CapPrm:\t0\nCapEff:\t000001ffffffffff\n", "CapEff:").unwrap(), Set(0x1ff_ffff_ffff));
        assert!(of_status("CapPrm:\t0\n", "CapEff:").is_err());
    }

    #[test]
    fn sys_admin_stands_in_for_bpf_and_perfmon_but_not_for_net_admin() {
        assert_eq!(Set::from_iter([Capability::SysAdmin]).missing(), [Capability::NetAdmin]);
        assert_eq!(Set::from_iter(NEEDED).missing(), []);
        assert_eq!(Set::default().missing(), NEEDED);
    }

    #[test]
    fn what_is_given_up_is_gone_from_every_set_of_this_thread() {
        std::thread::spawn(|| {
            let had = Set::effective().unwrap();
            keep_only([Capability::NetAdmin]).unwrap();
            let has = Set::effective().unwrap();
            assert_eq!(has.has(Capability::NetAdmin), had.has(Capability::NetAdmin), "nothing is gained");
            assert!(!has.has(Capability::Bpf) && !has.has(Capability::SysAdmin));
            assert!(raise_only([Capability::Bpf]).is_err(), "and can't be raised again");
            // Cutting the bounding set takes a right that root has.
            assert!(!had.has(Capability::SysAdmin) || !Set::bounding().unwrap().has(Capability::Bpf));
        })
        .join()
        .unwrap();
    }
}
