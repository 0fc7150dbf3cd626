//! `turnout attach` and `turnout detach`: the programs without the daemon.

use std::path::Path;

use super::pins::{self, Splices};
use super::{EdgeError, KernelEdge};
use crate::gateway::edge::{Edge as _, EdgeStatus};

/// Loads the programs and attaches them to these interfaces (`None`: all that can carry clients) and this network
/// namespace, held by pins. Tables that a daemon left stay in force; where there are none, everything passes.
///
/// # Errors
/// As [`KernelEdge::open`].
pub fn attach(pin: &Path, interfaces: Option<&[String]>) -> Result<EdgeStatus, EdgeError> {
    let edge = KernelEdge::open_without_splice(pin)?;
    edge.attach_as_it_is()?;
    edge.set_interfaces(interfaces);
    Ok(edge.status())
}

/// Takes everything off that is held by pins under `pin`: links, programs, maps, folders. `false`: there was nothing.
/// While a daemon holds the pins this is refused, unless `force`.
///
/// # Errors
/// A daemon holds the pins, or a pin can't be removed. Or one that has given the pins away still has spliced connections;
/// the rest is taken off then.
pub fn detach(pin: &Path, force: bool) -> Result<bool, EdgeError> {
    if !pin.exists() {
        return Ok(false);
    }
    let had = pins::edge(pin).exists();
    let splices = if force { Splices::All } else { Splices::OfTheDead };
    let spared = match pins::lock(pin) {
        Ok(_lock) => pins::end(pin, splices)?,
        Err(EdgeError::Held { .. }) if force => pins::end(pin, splices)?,
        Err(e) => return Err(e),
    };
    match spared {
        Some(pin) => Err(EdgeError::Held { holder: pins::holder(&pin), pin }),
        None => Ok(had),
    }
}
