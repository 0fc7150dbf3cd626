//! The test harness: everything a suite needs to stand up the world around a gateway.
//!
//! | module | brings |
//! |---|---|
//! | [`kafka`] | real Apache Kafka clusters, whose brokers can be stopped, killed, frozen and cut off |
//! | [`netns`] | network namespaces: client hosts, a gateway host, broker hosts, links that can be cut |
//! | [`turnout`] | the real gateway binary with a config on free ports |
//! | [`clients`] | client programs of other languages behind one line protocol |
//! | [`raw`] | a client that sends and reads frames cut at will |
//! | [`mock`] | a scriptable broker |
//! | [`relay`] | a packet relay that delays, reorders, doubles, damages and drops by a seed |
//! | [`procfs`] | whom a process is connected to, and the most memory it had |
//! | [`mod@bench`] | what `cargo xtask bench` runs |
//! | [`demo`] | what `cargo xtask demo` runs |
//! | [`interrupt`] | Ctrl-C that leaves nothing behind |
//! | [`mod@skip`] | the register of tests that could not run here |
//!
//! A suite that only needs a healthy cluster shares one per test binary ([`kafka::shared`]); a suite that hurts
//! brokers starts its own. All child processes end with the test process, whichever way it ends.

pub mod bench;
pub mod clients;
pub mod demo;
pub mod interrupt;
pub mod kafka;
pub mod mirror;
pub mod mock;
pub mod netns;
pub mod paths;
pub mod ports;
pub mod process;
pub mod procfs;
pub mod raw;
pub mod relay;
pub mod rundir;
pub mod skip;
pub mod turnout;
pub mod wait;

pub use skip::{Tier, is_root, skip, tier};
