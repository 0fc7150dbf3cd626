// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! A request's frame start: is it the kernel's, and what will its answer need?

use super::notes::{Kind, Note};
use super::payload::{Cursor, Payload};
use super::policy::{MIRROR, PRODUCE, Policy, SMALL_ANSWERS_LOCAL};
use crate::produce::FIRST_FLEXIBLE;

/// The least that a request's size field can say: the fixed part of its header.
const MIN_SIZE: u32 = 8;
/// `acks` is read only if it lies within so many bytes of the frame's start.
pub const ACKS_WITHIN: u32 = 256;
/// First Produce with a transactional id (KIP-98).
const FIRST_TRANSACTIONAL: u16 = 3;
/// First Produce whose answers can carry endpoints and leader hints (KIP-951).
const FIRST_HINTS: u16 = 10;
/// First Produce with topic ids (KIP-516).
pub const FIRST_TOPIC_IDS: u16 = 13;

/// A request that the kernel forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Bytes of the frame, size field included.
    pub length: u32,
    /// What its answer needs.
    pub note: Note,
}

/// Reads the frame that begins at `at`; `None` where it is the daemon's, or can't be told. `end` is the payload's.
#[inline(always)]
pub fn read<P: Payload + ?Sized>(payload: &P, at: u32, end: u32, policy: &Policy) -> Option<Request> {
    let mut cursor = Cursor { at, end };
    let [s0, s1, s2, s3, k0, k1, v0, v1] = cursor.take::<8, P>(payload)?;
    let size = u32::from_be_bytes([s0, s1, s2, s3]);
    if size < MIN_SIZE || size > policy.max_frame {
        return None;
    }
    let (api_key, api_version) = (u16::from_be_bytes([k0, k1]), u16::from_be_bytes([v0, v1]));
    let rule = policy.rule(api_key, api_version)?;
    let mut kind = if rule.flags & SMALL_ANSWERS_LOCAL != 0 { Kind::LocalIfSmaller } else { Kind::Plain };
    if api_key == PRODUCE {
        // The size field bounds the frame, the packet what can be read of it.
        let frame_end = at.wrapping_add(if size < ACKS_WITHIN - 4 { size + 4 } else { ACKS_WITHIN });
        let mut header = Cursor { at: cursor.at, end: if frame_end < end { frame_end } else { end } };
        if produce_acks(payload, &mut header, api_version)? == 0 {
            return None;
        }
        kind = produce_kind(api_version);
    }
    Some(Request { length: size + 4, note: Note { kind, mirrored: rule.flags & MIRROR != 0 } })
}

/// What the answer of a Produce needs, whoever passes the request on.
#[must_use]
#[inline(always)]
pub const fn produce_kind(api_version: u16) -> Kind {
    if api_version < FIRST_HINTS {
        Kind::Plain
    } else if api_version < FIRST_TOPIC_IDS {
        Kind::Produce
    } else {
        Kind::ProduceIds
    }
}

/// `acks` of a Produce request; the cursor stands at the correlation id. A header with tagged fields is not read on: no
/// client sends any with Produce, and the daemon can read them.
#[inline(always)]
fn produce_acks<P: Payload + ?Sized>(payload: &P, cursor: &mut Cursor, api_version: u16) -> Option<i16> {
    cursor.skip(4)?;
    cursor.skip_string(payload)?;
    if api_version >= FIRST_FLEXIBLE as u16 {
        if cursor.byte(payload)? != 0 {
            return None;
        }
        cursor.skip_compact_string(payload)?;
    } else if api_version >= FIRST_TRANSACTIONAL {
        cursor.skip_string(payload)?;
    }
    cursor.i16(payload)
}
