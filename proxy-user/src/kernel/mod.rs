//! The kernel side: loading, attaching and pinning programs, and what this host can do.
//!
//! Two programs stand around the gateway's sockets: `turnout_admit` (XDP) drops what must not reach a port of ours, and
//! `turnout_steer` (sk_lookup) gives connections to every such port to the daemon's listening sockets. [`KernelEdge`]
//! owns them on behalf of the gateway.

mod backoff;
pub mod capabilities;
pub mod doctor;
mod edge;
mod error;
mod interfaces;
mod layout;
#[cfg(feature = "kernel-log")]
mod logs;
mod netdev;
pub mod object;
mod offloads;
mod pins;
mod programs;
mod source;
mod splice;
mod standalone;
mod sys;
mod tables;
mod view;

pub use doctor::{Finding, findings, findings_for};
pub use edge::KernelEdge;
pub use error::EdgeError;
pub use object::{object, splice_object};
pub use pins::prepare;
pub use source::KernelSource;
pub use standalone::{attach, detach};
pub use view::{counters, refused, status};

/// Where programs and maps are pinned unless the config says otherwise.
pub const PIN_DIRECTORY: &str = "/sys/fs/bpf/turnout";
