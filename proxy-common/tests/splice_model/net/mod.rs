// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! Links with faults, and the order in which things happen: all a function of a seed.
//!
//! ```text
//!  Node ── poll ──► Link: split (TSO, middlebox) · lose · damage · double · delay ──► merge (GRO) ── receive ──► Node
//! ```
//! A [`Link`] goes one way and has its own [`Faults`] and seed. A [`Network`] holds the links between [`Host`]s and the
//! time. [`Network::step`] lets every [`Node`] send what it has, moves the time to the next arrival or timer, and
//! delivers; it is `false` when nothing will ever happen again. [`Network::calm`] ends all faults from now on, so that
//! progress can be demanded. A test that drives its nodes by hand uses [`Network::send`], [`Network::advance`] and
//! [`Network::receive`] instead.

mod faults;
mod link;
mod network;
mod reshape;
mod rng;

#[cfg(test)]
mod exchange_tests;

pub(crate) use faults::Faults;
pub(crate) use link::Link;
pub(crate) use network::{Arrival, Host, Network, Node};
pub(crate) use reshape::{merge, split};
pub(crate) use rng::Rng;
