//! Why the kernel side can't do what it was asked.

use std::io;
use std::path::{Path, PathBuf};

use aya::EbpfError;
use aya::maps::MapError;
use aya::programs::ProgramError;

/// Why the edge's programs could not be loaded, attached, filled, read or removed.
#[derive(Debug, thiserror::Error)]
pub enum EdgeError {
    /// The binary carries no kernel programs.
    #[error("this turnout was built without kernel programs; build it with `cargo xtask build --release`")]
    NotBuilt,
    /// The kernel is older than the programs were written for.
    #[error("Linux {found} is older than {}.{}, which the kernel programs need; run with `fast_path: {{mode: off}}`", .needed.0, .needed.1)]
    OldKernel {
        /// Release of this kernel.
        found: String,
        /// Major and minor of the oldest one that will do.
        needed: (u32, u32),
    },
    /// The pin folder is not on a bpffs, and this process may not mount one.
    #[error(
        "{} is not on a bpffs; mount one (`mount -t bpf bpf {}`), or run the unit's ExecStartPre step as root",
        .pin.display(), .mount_point.display()
    )]
    NoBpffs {
        /// Where the pins should be.
        pin: PathBuf,
        /// Where a bpffs would have to be mounted.
        mount_point: PathBuf,
        /// What the kernel said to mounting, where that was tried.
        source: Option<io::Error>,
    },
    /// Another process holds the pins.
    #[error(
        "{} is held by {holder}: one daemon owns the pins; stop it, hand over with `turnout upgrade`, or give this one \
         another `fast_path.pin`",
        .pin.display()
    )]
    Held {
        /// Where the pins are.
        pin: PathBuf,
        /// Process id and name, as far as they can be known.
        holder: String,
    },
    /// The pins were let go of.
    #[error("the pins at {} were handed over; this process no longer changes them", .0.display())]
    Released(PathBuf),
    /// The descriptor that was handed over is not the lock of these pins.
    #[error("the descriptor that was handed over isn't the lock of {}", .0.display())]
    WrongLock(PathBuf),
    /// A pin or its folder could not be made, moved, opened or removed.
    #[error("can't {action} {}: {source}; {}", .path.display(), hint(.source))]
    Pin {
        /// What was tried, as a verb.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The object can't be read.
    #[error("the kernel object can't be read: {0}; build daemon and programs from the same source")]
    Object(String),
    /// The object is not what this daemon was written for.
    #[error("the kernel object has no {what} `{name}`; build daemon and programs from the same source")]
    Missing {
        /// `program` or `map`.
        what: &'static str,
        /// Its name.
        name: &'static str,
    },
    /// The splice's programs, loaded, do something else than they should.
    #[error(
        "the splice's self-test fails on this kernel ({0}), so nobody's bytes are given to it; report it with the kernel's \
         version, and run with `fast_path: {{mode: auto}}` or another kernel meanwhile"
    )]
    SelfTest(String),
    /// The kernel refused the object.
    #[error("the kernel refused the programs (`turnout doctor` says what this host lacks)")]
    Load(#[from] EbpfError),
    /// The kernel refused a program.
    #[error("the kernel refused program `{name}` (`turnout doctor` says what this host lacks)")]
    Program {
        /// Its name.
        name: &'static str,
        /// What the kernel said.
        source: Box<ProgramError>,
    },
    /// A table could not be read or written.
    #[error("table {table}: {source}{}", why(.source, *.room))]
    Table {
        /// Its name.
        table: &'static str,
        /// Entries that it has room for.
        room: u32,
        /// What the kernel said.
        source: MapError,
    },
    /// More entries than the table has room for.
    #[error("table {table} has room for {room} entries, {wanted} are wanted; {remedy}")]
    NoRoom {
        /// Its name.
        table: &'static str,
        /// Entries that it has room for.
        room: u32,
        /// Entries that were asked for.
        wanted: usize,
        /// What to do about it.
        remedy: &'static str,
    },
    /// A socket is not one that can be steered to.
    #[error("a socket of address family {0} can't be steered to; only listening TCP sockets over IPv4 and IPv6 can")]
    Socket(libc::c_int),
    /// A system call failed otherwise.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
}

impl EdgeError {
    pub(super) fn pin(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Pin { action, path, source }
    }
}

/// What usually is behind an error on a bpffs.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "it must belong to this user (the unit's ExecStartPre step sees to that), who needs CAP_BPF and CAP_NET_ADMIN"
        }
        io::ErrorKind::NotFound => "somebody removed it; `turnout reload` makes it anew",
        _ => "look with `bpftool` and `ls` at what is there; `turnout detach` clears it",
    }
}

fn why(error: &MapError, room: u32) -> String {
    let full = |e: &io::Error| matches!(e.raw_os_error(), Some(libc::E2BIG | libc::ENOSPC));
    match error {
        MapError::SyscallError(e) if full(&e.io_error) => {
            format!(" (there is room for {room}; while it changes, old and new entries are there together)")
        }
        MapError::SyscallError(e) => format!(" ({})", e.io_error),
        _ => String::new(),
    }
}
