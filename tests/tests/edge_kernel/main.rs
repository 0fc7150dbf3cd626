//! The kernel programs around the gateway's sockets, on the kernel that runs the tests: verdicts of both programs by
//! BPF_PROG_TEST_RUN, pins through upgrades and crashes, privileges, and real packets in network namespaces.
//!
//! Needs root and a binary with kernel programs (`cargo xtask build`); skipped with the reason otherwise.

mod admission;
mod packets;
mod pins;
mod privileges;
mod steering;
mod support;
mod test_run;
mod traffic;
