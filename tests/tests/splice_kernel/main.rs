//! The splice's programs on the kernel that runs the tests: packet by packet through BPF_PROG_TEST_RUN, and real
//! connections between network namespaces, with a small daemon that relays and arms. And the daemon's own loading, attaching
//! and beginning of sessions.
//!
//! Needs root and a binary with kernel programs (`cargo xtask build`); skipped with the reason otherwise.

mod daemon_side;
mod fixtures;
mod frame;
mod message;
mod programs;
mod rig;
mod session;
mod sys;

/// Leaves the calling test with a registered skip where the programs can't be had.
#[macro_export]
macro_rules! need_splice {
    () => {
        harness::need_root!();
        if turnout::kernel::splice_object().is_none() {
            return harness::skip("built without kernel programs");
        }
    };
}
