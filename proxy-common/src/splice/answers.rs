// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! An answer's frame start: does it pass?

use super::notes::{Kind, Note};
use super::payload::{Cursor, Payload};
use super::policy::Policy;
use crate::produce::MAX_PARTITIONS;

/// The least that an answer's size field can say: the correlation id.
const MIN_SIZE: u32 = 4;

/// What an answer's frame start says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// It passes; so many bytes, size field included.
    Passes(u32),
    /// So many bytes; it passes if it is clean, which is to be looked at from here.
    IfClean(u32, Clean),
    /// It is the daemon's, or can't be told.
    Daemons,
}

/// Reads the frame start at `at`; `end` is the payload's.
#[inline(always)]
pub fn read<P: Payload + ?Sized>(payload: &P, at: u32, end: u32, note: Note, policy: &Policy) -> Start {
    let mut cursor = Cursor { at, end };
    let Some(size) = cursor.take::<4, P>(payload) else { return Start::Daemons };
    let size = u32::from_be_bytes(size);
    if size < MIN_SIZE || size > policy.max_frame {
        return Start::Daemons;
    }
    let passes = match note.kind {
        Kind::Plain => true,
        Kind::LocalIfSmaller => size >= policy.small_answer,
        Kind::Produce | Kind::ProduceIds => {
            return match Clean::begin(payload, cursor, size, matches!(note.kind, Kind::ProduceIds)) {
                Some(clean) => Start::IfClean(size + 4, clean),
                None => Start::Daemons,
            };
        }
        Kind::Local | Kind::Unknown => false,
    };
    if passes { Start::Passes(size + 4) } else { Start::Daemons }
}

/// A look at whether a flexible Produce answer says that all was written and nothing else, as
/// [`crate::produce::is_clean_answer`] has it: whole, at most [`MAX_PARTITIONS`] partitions, every error 0, no message,
/// no tagged field. A step reads a topic's head, a partition, or the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clean {
    /// Place in the payload.
    at: u32,
    /// The answer's end.
    end: u32,
    /// Topics whose heads are still to come.
    topics: u32,
    /// Partitions of this topic that are still to come.
    partitions: u32,
    /// Partitions that the other topics may have.
    partitions_left: u32,
    /// Steps taken.
    steps: u32,
    topic_ids: bool,
}

/// Where a look is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// There is more to read.
    More,
    /// The answer is clean.
    Clean,
    /// It is not, or is too long.
    Unclean,
}

impl Clean {
    #[inline(always)]
    fn begin<P: Payload + ?Sized>(payload: &P, mut cursor: Cursor, size: u32, topic_ids: bool) -> Option<Self> {
        if cursor.left() < size {
            return None;
        }
        cursor.end = cursor.at + size;
        cursor.skip(4)?;
        no_tags(payload, &mut cursor)?;
        let topics = count(payload, &mut cursor, MAX_PARTITIONS)?;
        let (at, end, partitions_left) = (cursor.at, cursor.end, MAX_PARTITIONS);
        Some(Self { at, end, topics, partitions: 0, partitions_left, steps: 0, topic_ids })
    }

    /// Goes on.
    #[inline(always)]
    pub fn step<P: Payload + ?Sized>(&mut self, payload: &P) -> Look {
        // Each topic takes a step for its head, each partition one, and the end one.
        self.steps += 1;
        if self.steps > 2 * MAX_PARTITIONS + 1 {
            return Look::Unclean;
        }
        let mut cursor = Cursor { at: self.at, end: self.end };
        let at_end = self.partitions == 0 && self.topics == 0;
        let read = if at_end { last(payload, &mut cursor) } else { self.next(payload, &mut cursor) };
        self.at = cursor.at;
        match read {
            Some(()) if at_end => Look::Clean,
            Some(()) => Look::More,
            None => Look::Unclean,
        }
    }

    /// A partition, or a topic's head.
    #[inline(always)]
    fn next<P: Payload + ?Sized>(&mut self, payload: &P, cursor: &mut Cursor) -> Option<()> {
        if self.partitions > 0 {
            clean_partition(payload, cursor)?;
            self.partitions -= 1;
        } else {
            self.topics -= 1;
            if self.topic_ids {
                cursor.skip(16)?;
            } else {
                cursor.skip_compact_string(payload)?;
            }
            self.partitions = count(payload, cursor, self.partitions_left)?;
            self.partitions_left -= self.partitions;
        }
        if self.partitions == 0 { no_tags(payload, cursor) } else { Some(()) }
    }
}

/// Throttle time and tagged fields, and nothing behind them.
#[inline(always)]
fn last<P: Payload + ?Sized>(payload: &P, cursor: &mut Cursor) -> Option<()> {
    cursor.skip(4)?;
    no_tags(payload, cursor)?;
    (cursor.left() == 0).then_some(())
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
