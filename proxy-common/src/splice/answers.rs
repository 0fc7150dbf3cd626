// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! An answer's frame start: does it pass?

use super::notes::{Kind, Note};
use super::payload::{Cursor, Payload};
use super::policy::Policy;
use crate::produce::MAX_PARTITIONS;

/// The least that an answer's size field can say: the correlation id.
const MIN_SIZE: u32 = 4;

/// Length of the frame that begins at `at`, size field included; `None` where it is the daemon's, or can't be told.
/// `end` is the payload's.
#[inline(always)]
pub fn read<P: Payload + ?Sized>(payload: &P, at: u32, end: u32, note: Note, policy: &Policy) -> Option<u32> {
    let mut cursor = Cursor { at, end };
    let size = u32::from_be_bytes(cursor.take::<4, P>(payload)?);
    if size < MIN_SIZE || size > policy.max_frame {
        return None;
    }
    let passes = match note.kind {
        Kind::Plain => true,
        Kind::LocalIfSmaller => size >= policy.small_answer,
        Kind::Produce => is_clean(payload, cursor, size, false),
        Kind::ProduceIds => is_clean(payload, cursor, size, true),
        Kind::Local | Kind::Unknown => false,
    };
    if passes { Some(size + 4) } else { None }
}

/// Whether a flexible Produce answer says that all was written and nothing else, as [`crate::produce::is_clean_answer`]
/// has it: whole, at most [`MAX_PARTITIONS`] partitions, every error 0, no message, no tagged field.
#[inline(always)]
fn is_clean<P: Payload + ?Sized>(payload: &P, mut cursor: Cursor, size: u32, topic_ids: bool) -> bool {
    if cursor.left() < size {
        return false;
    }
    cursor.end = cursor.at + size;
    walk(payload, &mut cursor, topic_ids) == Some(()) && cursor.left() == 0
}

/// One loop over partitions, with the topics' heads in between: nested loops would cost the verifier their product.
#[inline(always)]
fn walk<P: Payload + ?Sized>(payload: &P, cursor: &mut Cursor, topic_ids: bool) -> Option<()> {
    cursor.skip(4)?;
    no_tags(payload, cursor)?;
    let mut topics = count(payload, cursor, MAX_PARTITIONS)?;
    let (mut partitions, mut partitions_left) = (0, MAX_PARTITIONS);
    let mut steps = 0;
    // Each topic takes a step for its head, each partition one.
    while steps < 2 * MAX_PARTITIONS {
        steps += 1;
        if partitions > 0 {
            clean_partition(payload, cursor)?;
            partitions -= 1;
            if partitions == 0 {
                no_tags(payload, cursor)?;
            }
        } else if topics > 0 {
            topics -= 1;
            if topic_ids {
                cursor.skip(16)?;
            } else {
                cursor.skip_compact_string(payload)?;
            }
            partitions = count(payload, cursor, partitions_left)?;
            partitions_left -= partitions;
            if partitions == 0 {
                no_tags(payload, cursor)?;
            }
        } else {
            break;
        }
    }
    cursor.skip(4)?;
    no_tags(payload, cursor)
}

/// index, error = 0, base offset, append time, log start; no record errors, a null message, no tagged fields.
#[inline(always)]
fn clean_partition<P: Payload + ?Sized>(payload: &P, cursor: &mut Cursor) -> Option<()> {
    cursor.skip(4)?;
    if cursor.i16(payload)? != 0 {
        return None;
    }
    cursor.skip(24)?;
    if cursor.take::<3, P>(payload)? == [1, 0, 0] { Some(()) } else { None }
}

/// Length of an array that isn't null, at most `most`.
#[inline(always)]
fn count<P: Payload + ?Sized>(payload: &P, cursor: &mut Cursor, most: u32) -> Option<u32> {
    let n = cursor.short_uvarint(payload)?.checked_sub(1)?;
    if n <= most { Some(n) } else { None }
}

#[inline(always)]
fn no_tags<P: Payload + ?Sized>(payload: &P, cursor: &mut Cursor) -> Option<()> {
    if cursor.byte(payload)? == 0 { Some(()) } else { None }
}
