//! A world around a whole test process, for suites that are written for loopback: the process itself is on a client host,
//! its gateways run on the gateway host, its clusters on a broker host. So every byte of theirs crosses real interfaces.
//!
//! `in-world` makes the world and runs a suite in it.

use std::env;
use std::sync::{Arc, OnceLock};

use super::World;

/// The variable that says which world: its namespaces by name.
pub const ADOPT: &str = "TURNOUT_WORLD";

/// The variable with the path of a file to which gateways write, a line each, how many bytes the kernel passed on of how
/// many.
pub const TALLY: &str = "TURNOUT_WORLD_TALLY";

/// The world around this process, if there is one.
#[must_use]
pub fn around() -> Option<&'static Arc<World>> {
    static AROUND: OnceLock<Option<Arc<World>>> = OnceLock::new();
    AROUND.get_or_init(|| Some(Arc::new(World::adopt(&env::var(ADOPT).ok()?)))).as_ref()
}
