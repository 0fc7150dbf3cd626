//! placeholder
use crate::netns::Netns;
use anyhow::Result;
/// f
#[derive(Debug)]
pub struct Relay;
/// g
#[derive(Debug)]
pub struct Faults;
impl Faults {
    /// n
    #[must_use]
    pub fn none() -> Self {
        Self
    }
}
impl Relay {
    /// b
    pub fn between(_a: (&Netns, &str), _b: (&Netns, &str), _f: Faults, _s: u64) -> Result<Self> {
        anyhow::bail!("x")
    }
}
