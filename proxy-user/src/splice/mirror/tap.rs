//! The daemon's own part of a mirrored connection: what it passes on itself, and what it learns of the kernel's turns.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use proxy_common::splice::mirror::Tally;
use proxy_common::splice::state::Side;

use super::Mirrored;
use super::assembly::Local;
use super::desk::{Feed, Key, Mirror};
use crate::kafka::ids::ApiKey;
use crate::splice::session::Session;

/// A connection's. Dropped at its end.
pub struct Tap {
    mirror: Arc<Mirror>,
    feed: Arc<Feed>,
    /// Its session, once the kernel may have a part.
    session: Option<Key>,
    /// By direction: bytes left of the mirrored frame under way.
    left: [u64; 2],
    /// The last request that began here gets no answer.
    is_unanswered: bool,
}

impl std::fmt::Debug for Tap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tap").field("session", &self.session).field("left", &self.left).finish_non_exhaustive()
    }
}

impl Tap {
    /// Of a connection that has just begun.
    #[must_use]
    pub fn new(mirror: &Arc<Mirror>, consumer: Arc<dyn Mirrored>) -> Self {
        Self {
            mirror: Arc::clone(mirror),
            feed: mirror.feed(consumer),
            session: None,
            left: [0; 2],
            is_unanswered: false,
        }
    }

    /// Whether requests of this API are mirrored, and their answers.
    #[must_use]
    pub fn wants(key: ApiKey) -> bool {
        key == ApiKey::PRODUCE
    }

    /// The kernel may have a part from now on. `base`: index of the frame that is the session's first, in both directions.
    pub fn splice(&mut self, session: &Session, base: u32) {
        self.session = Some(self.mirror.enter(session.watch(), base, &self.feed));
    }

    /// The kernel had no part, and won't.
    pub fn unsplice(&mut self) {
        self.session.take().into_iter().for_each(|key| self.mirror.leave(key, &self.feed));
    }

    /// A mirrored frame begins, of so many bytes with its size field.
    pub fn begin(&mut self, side: Side, index: Option<u32>, length: u64) {
        self.left[side.index()] = length;
        if side == Side::Client {
            self.is_unanswered = index.is_none();
        }
        self.local(side, Local::Begin { index, length });
    }

    /// Whether a mirrored request is under way that gets no answer. The kernel must not have the rest of it: such a request
    /// has no note, and so the kernel could not tell that it is mirrored.
    #[must_use]
    pub fn is_within_unanswered(&self) -> bool {
        self.is_unanswered && self.left[Side::Client.index()] > 0
    }

    /// Bytes are passed on; those that are of a mirrored frame are taken.
    pub fn bytes(&mut self, side: Side, bytes: &[u8]) {
        let left = &mut self.left[side.index()];
        let n = (*left).min(bytes.len() as u64) as usize;
        if n == 0 {
            return;
        }
        *left -= n as u64;
        self.local(side, Local::Bytes(Bytes::copy_from_slice(&bytes[..n])));
    }

    /// The kernel had a turn: all that it has marked, bytes left of the frame under way, and whether that is mirrored.
    pub fn resume(&mut self, side: Side, tally: Tally, prefix: u32, mirrored: bool) {
        self.left[side.index()] = if mirrored { prefix.into() } else { 0 };
        self.local(side, Local::Resume { tally, prefix });
    }

    fn local(&self, side: Side, local: Local) {
        let is_waiting = self.feed.with(|assembly, give| assembly.local(side, local, self.mirror.room(), give));
        if let Some(key) = self.session.filter(|_| is_waiting) {
            self.mirror.list(key, &self.feed);
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        match self.session {
            Some(key) => self.mirror.end(key, &self.feed, Instant::now()),
            None => {
                self.feed.with(|assembly, give| assembly.end([Tally::default(); 2], self.mirror.room(), give));
            }
        }
    }
}
