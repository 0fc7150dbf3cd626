//! Lines that the kernel programs log, passed on as events of the daemon's own log at level debug. Only in builds with
//! `cargo xtask build --ebpf-log`: each line costs the packet that caused it some hundred nanoseconds.

use aya::Ebpf;
use aya_log::EbpfLogger;
use log::{Log, Metadata, Record};

/// The reader of the programs' ring buffer.
pub(super) struct Logs(EbpfLogger<ToTracing>);

impl Logs {
    /// `None`: the programs were built without log lines.
    pub(super) fn of(ebpf: &mut Ebpf) -> Option<Self> {
        EbpfLogger::init_with_logger(ebpf, ToTracing).map(Self).ok()
    }

    /// Passes on what came since the last time.
    pub(super) fn flush(&mut self) {
        self.0.flush();
    }
}

struct ToTracing;

impl Log for ToTracing {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        tracing::debug!(program = record.target(), "{}", record.args());
    }

    fn flush(&self) {}
}
