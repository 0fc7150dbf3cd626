//! Fetch requests: who asks, for what, and the rack in them.

use std::ops::Range;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use proxy_common::frame::read_request_prefix;

use super::{Topic, WITH_TOPIC_IDS, is_flexible, is_routable};
use crate::kafka::ids::{ApiVersion, TopicId};
use crate::kafka::wire::{Malformed, Reader, put_string};

/// Number of the tagged field that says which replica asks, from v15 on.
const REPLICA_STATE: u32 = 1;

/// What a Fetch request asks for. Refers to the whole frame behind the size field, of which it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchRequest<'a> {
    version: ApiVersion,
    body: &'a [u8],
    topics: Range<usize>,
    rack_at: Range<usize>,
    /// A replica asks, not a consumer.
    pub is_follower: bool,
    /// How long the broker may wait for records.
    pub max_wait: Duration,
    /// It goes on with a session (KIP-227): it names only what changed.
    pub is_incremental: bool,
    /// `client.rack`, empty where there is none.
    pub rack: &'a str,
}

impl<'a> FetchRequest<'a> {
    /// Reads a request of a routable version.
    ///
    /// # Errors
    /// When the bytes don't follow the schema.
    pub fn read(version: ApiVersion, body: &'a [u8]) -> Result<Self, Malformed> {
        let mut r = Reader::new(body, is_flexible(version));
        r.skip_request_header()?;
        let mut is_follower = version < ApiVersion(15) && r.i32()? >= 0;
        let max_wait = Duration::from_millis(u64::try_from(r.i32()?).unwrap_or(0));
        r.take(4 + 4 + 1)?;
        r.i32()?;
        let epoch = r.i32()?;
        let start = r.at();
        for _ in 0..r.count()? {
            topic(&mut r, version)?;
            for _ in 0..r.count()? {
                partition(&mut r, version)?;
            }
            r.skip_tags()?;
        }
        let topics = start..r.at();
        for _ in 0..r.count()? {
            topic(&mut r, version)?;
            let n = r.count()? as usize;
            r.take(n.saturating_mul(4))?;
            r.skip_tags()?;
        }
        let start = r.at();
        let rack = match std::str::from_utf8(r.nullable_string()?.unwrap_or_default()) {
            Ok(rack) => rack,
            Err(_) => return r.fail("rack that isn't UTF-8"),
        };
        let rack_at = start..r.at();
        for _ in 0..r.tag_count()? {
            let (number, data) = r.tag()?;
            if number == REPLICA_STATE && version >= ApiVersion(15) {
                is_follower |= body[data].first_chunk().is_some_and(|id| i32::from_be_bytes(*id) >= 0);
            }
        }
        r.end()?;
        Ok(Self { version, body, topics, rack_at, is_follower, max_wait, is_incremental: epoch > 0, rack })
    }

    /// Reads a request by the version in its header.
    ///
    /// # Errors
    /// When the bytes don't follow the schema, or the version isn't routable.
    pub fn read_again(body: &'a [u8]) -> Result<Self, Malformed> {
        let malformed = Malformed { what: "Fetch of another version", at: 0 };
        let prefix = read_request_prefix(body).ok_or(malformed)?;
        let version = ApiVersion(prefix.api_version);
        if is_routable(version) { Self::read(version, body) } else { Err(malformed) }
    }

    /// The same request with this rack: the whole frame behind the size field.
    #[must_use]
    pub fn with_rack(&self, rack: &str) -> Bytes {
        let mut new = Vec::with_capacity(rack.len() + 5);
        put_string(&mut new, is_flexible(self.version), rack);
        let mut body = BytesMut::with_capacity(self.body.len() + new.len());
        body.put_slice(&self.body[..self.rack_at.start]);
        body.put_slice(&new);
        body.put_slice(&self.body[self.rack_at.end..]);
        body.freeze()
    }

    /// The partitions it names, in its order.
    pub(super) fn each_partition(&self, mut each: impl FnMut(Item<'a>)) -> Result<(), Malformed> {
        let mut r = Reader::new(&self.body[self.topics.clone()], is_flexible(self.version));
        for _ in 0..r.count()? {
            let topic = topic(&mut r, self.version)?;
            let count = r.count()?;
            each(Item::Topic { topic, partitions: count });
            for _ in 0..count {
                each(Item::Partition { topic, index: partition(&mut r, self.version)? });
            }
            r.skip_tags()?;
        }
        Ok(())
    }

    /// Whether it names a partition of which `wanted` is true. `false` where it can't be read.
    pub fn names(&self, mut wanted: impl FnMut(Topic<'a>, i32) -> bool) -> bool {
        let mut found = false;
        let read = self.each_partition(|item| {
            if let Item::Partition { topic, index } = item {
                found |= wanted(topic, index);
            }
        });
        read.is_ok() && found
    }

    /// How many topics it names.
    pub(super) fn topic_count(&self) -> u32 {
        Reader::new(&self.body[self.topics.clone()], is_flexible(self.version)).count().unwrap_or(0)
    }
}

/// What a walk over the topics comes by.
pub(super) enum Item<'a> {
    /// A topic begins.
    Topic { topic: Topic<'a>, partitions: u32 },
    /// One of its partitions.
    Partition { topic: Topic<'a>, index: i32 },
}

fn topic<'a>(r: &mut Reader<'a>, version: ApiVersion) -> Result<Topic<'a>, Malformed> {
    if version < WITH_TOPIC_IDS {
        return r.text().map(Topic::Name);
    }
    let bytes = r.take(16)?;
    // `take` gave as many.
    Ok(Topic::Id(TopicId(bytes.first_chunk().copied().unwrap_or_default())))
}

fn partition(r: &mut Reader<'_>, version: ApiVersion) -> Result<i32, Malformed> {
    let index = r.i32()?;
    // Leader epoch, offset, epoch of the last record, log start, bytes.
    r.take(4 + 8 + if version >= ApiVersion(12) { 4 } else { 0 } + 8 + 4)?;
    r.skip_tags()?;
    Ok(index)
}
