//! `turnout attach` and `turnout detach`: the programs without the daemon.

use std::path::Path;

use super::{EdgeError, KernelEdge, pins};
use crate::gateway::edge::{Edge as _, EdgeStatus};

/// Loads the programs and attaches them to these interfaces (`None`: all that can carry clients) and this network
/// namespace, held by pins. Tables that a daemon left stay in force; where there are none, everything passes.
///
/// # Errors
/// As [`KernelEdge::open`].
pub fn attach(pin: &Path, interfaces: Option<&[String]>) -> Result<EdgeStatus, EdgeError> {
    let edge = KernelEdge::open(pin)?;
    edge.attach_as_it_is()?;
    edge.set_interfaces(interfaces);
    Ok(edge.status())
}

/// Takes everything off that is held by pins under `pin`: links, programs, maps, folders. `false`: there was nothing.
/// While a daemon holds the pins this is refused, unless `force`.
///
/// # Errors
/// A daemon holds the pins, or a pin can't be removed.
pub fn detach(pin: &Path, force: bool) -> Result<bool, EdgeError> {
    if !pin.exists() {
        return Ok(false);
    }
    let had = pins::edge(pin).exists();
    match pins::lock(pin) {
        Ok(_lock) => pins::end(pin)?,
        Err(EdgeError::Held { .. }) if force => pins::end(pin)?,
        Err(e) => return Err(e),
    }
    Ok(had)
}
