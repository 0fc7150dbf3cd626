//! Spliced connections end to end, without Kafka: the real gateway on a host of its own, clients and brokers of the suite's
//! own on others, who know what every byte has to be.
//!
//! Every test runs twice: with the daemon passing on every byte, and with the kernel doing so wherever it can. What clients
//! and brokers see must be the same.
//!
//! Needs root, for network namespaces. A failing run prints its seed; `TURNOUT_SEED=<seed>` repeats it.

mod broker;
mod client;
mod content;
mod control;
mod faults;
mod frames;
#[path = "../splice_kernel/rig/loss.rs"]
mod loss;
mod mirror;
mod mix;
mod path;
mod processes;
mod sockets;
mod stage;
#[path = "../splice_kernel/sys.rs"]
#[expect(dead_code, reason = "the suite of the programs uses the rest")]
mod sys;

/// Leaves the calling test with a registered skip where no kernel programs can be had.
macro_rules! need_kernel {
    () => {
        harness::need_root!();
        if ::turnout::kernel::splice_object().is_none() {
            return harness::skip("built without kernel programs");
        }
    };
}
pub(crate) use need_kernel;

/// A test in both modes: a module of the test's name with `daemon` and `kernel` in it, each of which calls the function
/// given with its mode.
macro_rules! in_both_modes {
    ($($(#[$meta:meta])* $name:ident => $test:expr;)*) => { $(
        $(#[$meta])*
        mod $name {
            use super::*;

            #[test]
            fn daemon() -> anyhow::Result<()> {
                harness::need_root!();
                ($test)($crate::stage::Mode::Daemon)
            }

            #[test]
            fn kernel() -> anyhow::Result<()> {
                $crate::need_kernel!();
                ($test)($crate::stage::Mode::Kernel)
            }
        }
    )* };
}
pub(crate) use in_both_modes;
