//! The kernel side: loading, attaching and pinning programs, and what this host can do.
//!
//! So far there is one program, the probe ([`probe`]): it counts packets by what they are and passes every one.

pub mod doctor;
pub mod object;
pub mod probe;

pub use doctor::{Finding, findings, findings_for};
pub use object::object;
pub use probe::Probe;

/// Where programs and maps are pinned unless the config says otherwise.
pub const PIN_DIRECTORY: &str = "/sys/fs/bpf/turnout";
