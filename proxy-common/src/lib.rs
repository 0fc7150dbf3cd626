// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! What the kernel programs and the daemon agree on.
//!
//! Everything here is a pure function or a plain layout, `no_std`, without allocation, so that the same code is
//! compiled for `bpfel-unknown-none`, checked by the verifier, and property-tested on the host.
#![no_std]

pub mod admission;
pub mod admit;
pub mod checksum;
pub mod flows;
pub mod frame;
pub mod headers;
pub mod packet;
pub mod produce;
pub mod quote;
pub mod request;
pub mod splice;
pub mod steer;
pub mod syn;
pub mod tables;
