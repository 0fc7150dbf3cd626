// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! The model test of the splice: everything around the state machine is simulated, deterministically, from a seed.

mod net;
mod tcp;
