//! Fetch answers, patched as they stream past: a partition can be turned over to another broker.
//!
//! ```text
//!   collecting ── end of the answer ──► size and what was kept ──► done
//!       │ more than the bound is kept
//!       └──► size and what was kept ──► passing (only what keeps its length is changed) ──► done
//! ```
//!
//! A partition that is turned over gets error 0, `preferred_read_replica` = the broker, and empty records: of length 0,
//! never null, for some clients take null for a fault. The rest of the answer stays byte for byte, so that the client's
//! fetch session stays valid. Its records are dropped as they come, and the frame's size is known only at the end: until
//! then what is kept is collected, up to a bound. Where the length does not change, as with the errors of a replica,
//! nothing needs to be collected.
//!
//! Partitions with a diverging epoch (KIP-595) and those that the broker itself turns over are never changed.

use bytes::{Bytes, BytesMut};

use super::{NO_SUCH_SESSION, Topic, WITH_TOPIC_IDS, is_flexible};
use crate::kafka::ids::{ApiVersion, NodeId, TopicId};
use crate::kafka::wire::{Malformed, Reader};

/// Longest piece that is looked at as a whole: the longest name, or a partition with tagged fields nobody knows yet.
/// Below the buffer that holds it.
const MAX_UNIT: usize = 100 * 1024;

/// Number of the tagged field with the diverging epoch.
const DIVERGING_EPOCH: u32 = 0;

/// A partition in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition<'a> {
    /// Its topic.
    pub topic: Topic<'a>,
    /// Its index.
    pub index: i32,
    /// Kafka's error code.
    pub error: i16,
    /// `preferred_read_replica`, if there is one.
    pub preferred: Option<NodeId>,
    /// Bytes of its records.
    pub records: u64,
    /// It can be turned over.
    pub is_free: bool,
}

/// What the patcher asks about an answer.
pub trait Decide {
    /// The start of the answer: Kafka's error code of the whole. Asked where it names no partition; `true`: it becomes
    /// FETCH_SESSION_ID_NOT_FOUND, and the client's next request names all of its partitions.
    fn ends_session(&mut self, error: i16) -> bool;

    /// A partition: the broker it is turned over to. `None` leaves it as it is, and so does whatever is said of one
    /// that isn't free.
    fn turn_over(&mut self, partition: &Partition<'_>) -> Option<NodeId>;
}

/// What is to be done with the next bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Advance {
    /// So many of them pass.
    Forward(usize),
    /// So many of them were taken.
    Skip(usize),
    /// This goes out now.
    Emit(Bytes),
    /// More must come first.
    NeedMore,
    /// The answer has ended.
    Done,
}

#[derive(Clone, Debug)]
enum State {
    Start,
    Topic { left: u32 },
    Partition { topics: u32, left: u32 },
    Aborted { topics: u32, left: u32, head: Head, aborted: u32 },
    Tail { topics: u32, left: u32, head: Head },
    Records { topics: u32, left: u32, bytes: u64, keep: bool },
    PartitionTags { topics: u32, left: u32 },
    TopicTags { topics: u32 },
    LastTags,
    End,
}

/// The first fields of a partition, behind which a list of aborted transactions may be long.
#[derive(Clone, Copy, Debug)]
struct Head {
    index: i32,
    error: i16,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct AnswerPatcher {
    version: ApiVersion,
    flexible: bool,
    state: State,
    /// Bytes of the frame not looked at, size field excluded.
    left: u64,
    /// What waits for the size; `None`: it is out.
    kept: Option<BytesMut>,
    bound: usize,
    topic: OwnTopic,
    overflowed: bool,
    changed: bool,
}

#[derive(Clone, Debug)]
enum OwnTopic {
    Name(String),
    Id(TopicId),
}

impl OwnTopic {
    fn get(&self) -> Topic<'_> {
        match self {
            Self::Name(name) => Topic::Name(name),
            Self::Id(id) => Topic::Id(*id),
        }
    }
}

/// What came of the next bytes.
enum Unit {
    /// So many were read and go on as they are now.
    Pass(usize),
    /// So many are seen to: they are kept already, or left out.
    Taken(usize),
    /// They aren't all there.
    NeedMore,
    /// There are none.
    End,
}

impl AnswerPatcher {
    /// For the answer to a request of `version`, of `size` bytes behind its size field. Where it `collects`, the size
    /// field is the patcher's to send, and about `bound` bytes are held at most; else it has passed already.
    #[must_use]
    pub fn new(version: ApiVersion, size: u64, collects: bool, bound: usize) -> Self {
        Self {
            version,
            flexible: is_flexible(version),
            state: State::Start,
            left: size,
            kept: collects.then(BytesMut::new),
            bound,
            topic: OwnTopic::Id(TopicId::default()),
            overflowed: false,
            changed: false,
        }
    }

    /// Bytes that wait for the size.
    #[must_use]
    pub fn held(&self) -> usize {
        self.kept.as_ref().map_or(0, BytesMut::len)
    }

    /// The bound was passed, so that the rest passes as it is.
    #[must_use]
    pub fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// Something was changed.
    #[must_use]
    pub fn changed(&self) -> bool {
        self.changed
    }

    /// Looks at the next bytes of the answer; they may be changed in place. To be called again until it needs more or is
    /// done, with what lies behind the bytes that were forwarded or skipped.
    ///
    /// # Errors
    /// When the bytes don't follow the schema. Some may have been forwarded: the connection must end.
    pub fn advance(&mut self, bytes: &mut [u8], decide: &mut dyn Decide) -> Result<Advance, Malformed> {
        if self.held() > self.bound {
            self.overflowed = true;
            return Ok(Advance::Emit(self.release()));
        }
        let there = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
        let whole = there as u64 == self.left;
        let bytes = &mut bytes[..there];
        match self.unit(bytes, decide) {
            Ok(Unit::Pass(n)) => {
                self.left -= n as u64;
                Ok(match &mut self.kept {
                    Some(kept) => {
                        kept.extend_from_slice(&bytes[..n]);
                        Advance::Skip(n)
                    }
                    None => Advance::Forward(n),
                })
            }
            Ok(Unit::Taken(n)) => {
                self.left -= n as u64;
                Ok(Advance::Skip(n))
            }
            Ok(Unit::End) if self.left > 0 => Err(Malformed { what: "bytes behind the last field", at: 0 }),
            Ok(Unit::End) if self.kept.is_some() => Ok(Advance::Emit(self.release())),
            Ok(Unit::End) => Ok(Advance::Done),
            Ok(Unit::NeedMore) if whole => Err(Malformed { what: "answer cut short", at: there }),
            Ok(Unit::NeedMore) => Ok(Advance::NeedMore),
            // What looks wrong may only be cut.
            Err(_) if !whole && there < MAX_UNIT => Ok(Advance::NeedMore),
            Err(malformed) => Err(malformed),
        }
    }

    /// Size field and what was kept.
    fn release(&mut self) -> Bytes {
        let kept = self.kept.take().unwrap_or_default();
        let to_drop = match self.state {
            State::Records { bytes, keep: false, .. } => bytes,
            _ => 0,
        };
        let size = self.left - to_drop + kept.len() as u64;
        let mut frame = BytesMut::with_capacity(kept.len() + 4);
        // The answer only became smaller, and its size fitted.
        frame.extend_from_slice(&u32::try_from(size).unwrap_or(u32::MAX).to_be_bytes());
        frame.extend_from_slice(&kept);
        frame.freeze()
    }

    /// Length of an array; null counts as empty. The array may go beyond `r`.
    fn array(&self, r: &mut Reader<'_>) -> Result<u32, Malformed> {
        let n = self.length(r)?.unwrap_or(0);
        if u64::from(n) > self.left {
            return r.fail("array longer than the frame");
        }
        Ok(n)
    }

    /// Length of an array or of records; `None`: null.
    fn length(&self, r: &mut Reader<'_>) -> Result<Option<u32>, Malformed> {
        if self.flexible {
            return Ok(r.uvarint()?.checked_sub(1));
        }
        match r.i32()? {
            -1 => Ok(None),
            n => match u32::try_from(n) {
                Ok(n) => Ok(Some(n)),
                Err(_) => r.fail("negative length"),
            },
        }
    }

    fn at_topic(&self, left: u32) -> State {
        match (left, self.flexible) {
            (0, true) => State::LastTags,
            (0, false) => State::End,
            (left, _) => State::Topic { left: left - 1 },
        }
    }

    fn at_partition(&self, topics: u32, left: u32) -> State {
        match (left, self.flexible) {
            (0, true) => State::TopicTags { topics },
            (0, false) => self.at_topic(topics),
            (left, _) => State::Partition { topics, left: left - 1 },
        }
    }

    fn unit(&mut self, bytes: &mut [u8], decide: &mut dyn Decide) -> Result<Unit, Malformed> {
        let mut r = Reader::new(bytes, self.flexible);
        match self.state {
            State::Start => {
                r.skip_response_header()?;
                r.i32()?;
                let error_at = r.at();
                let error = r.i16()?;
                r.i32()?;
                let topics = self.array(&mut r)?;
                let n = r.at();
                if topics == 0 && decide.ends_session(error) {
                    bytes[error_at..error_at + 2].copy_from_slice(&NO_SUCH_SESSION.to_be_bytes());
                    bytes[error_at + 2..error_at + 6].fill(0);
                    self.changed = true;
                }
                self.state = self.at_topic(topics);
                Ok(Unit::Pass(n))
            }
            State::Topic { left } => {
                let topic = if self.version < WITH_TOPIC_IDS {
                    OwnTopic::Name(r.text()?.to_owned())
                } else {
                    OwnTopic::Id(TopicId(r.take(16)?.first_chunk().copied().unwrap_or_default()))
                };
                let partitions = self.array(&mut r)?;
                self.topic = topic;
                self.state = self.at_partition(left, partitions);
                Ok(Unit::Pass(r.at()))
            }
            State::Partition { topics, left } => {
                let head = Head { index: r.i32()?, error: r.i16()? };
                r.take(8 + 8 + 8)?;
                let aborted = self.array(&mut r)?;
                if aborted > 0 {
                    self.state = State::Aborted { topics, left, head, aborted };
                    return Ok(Unit::Pass(r.at()));
                }
                let at = r.at();
                self.tail(bytes, at, topics, left, head, decide)
            }
            State::Aborted { topics, left, head, aborted } => {
                r.take(8 + 8)?;
                r.skip_tags()?;
                self.state = match aborted - 1 {
                    0 => State::Tail { topics, left, head },
                    aborted => State::Aborted { topics, left, head, aborted },
                };
                Ok(Unit::Pass(r.at()))
            }
            State::Tail { topics, left, head } => self.tail(bytes, 0, topics, left, head, decide),
            State::Records { topics, left, bytes: records, keep } => {
                let n = usize::try_from(records).unwrap_or(usize::MAX).min(bytes.len());
                if n == 0 {
                    return Ok(Unit::NeedMore);
                }
                self.state = match (records - n as u64, self.flexible) {
                    (0, true) => State::PartitionTags { topics, left },
                    (0, false) => self.at_partition(topics, left),
                    (bytes, _) => State::Records { topics, left, bytes, keep },
                };
                Ok(if keep { Unit::Pass(n) } else { Unit::Taken(n) })
            }
            State::PartitionTags { topics, left } => {
                r.skip_tags()?;
                self.state = self.at_partition(topics, left);
                Ok(Unit::Pass(r.at()))
            }
            State::TopicTags { topics } => {
                r.skip_tags()?;
                self.state = self.at_topic(topics);
                Ok(Unit::Pass(r.at()))
            }
            State::LastTags => {
                r.skip_tags()?;
                self.state = State::End;
                Ok(Unit::Pass(r.at()))
            }
            State::End => Ok(Unit::End),
        }
    }

    /// The fields behind the aborted transactions, which begin at `at`; before them, where it is not 0, lie the first
    /// fields of the partition.
    fn tail(
        &mut self,
        bytes: &mut [u8],
        at: usize,
        topics: u32,
        left: u32,
        head: Head,
        decide: &mut dyn Decide,
    ) -> Result<Unit, Malformed> {
        let mut r = Reader::new(bytes, self.flexible);
        r.take(at)?;
        let preferred_at = r.at();
        let preferred = r.i32()?;
        let length_at = r.at();
        let length = self.length(&mut r)?;
        let records_at = r.at();
        let records = u64::from(length.unwrap_or(0));
        if records_at as u64 + records > self.left {
            return r.fail("records longer than the frame");
        }
        let diverges = records == 0 && self.diverges(bytes, &mut r)?;
        let n = r.at();

        // An error can only be taken back while it is here.
        let is_sound = head.error == 0;
        let fits = if records == 0 { is_sound || at > 0 } else { is_sound && self.kept.is_some() };
        let preferred = (preferred >= 0).then_some(NodeId(preferred));
        let is_free = fits && !diverges && preferred.is_none() && records_at - length_at <= 5;
        let partition =
            Partition { topic: self.topic.get(), index: head.index, error: head.error, preferred, records, is_free };
        let to = decide.turn_over(&partition).filter(|_| is_free);
        self.state = match (records, to) {
            (0, _) => self.at_partition(topics, left),
            (bytes, to) => State::Records { topics, left, bytes, keep: to.is_none() },
        };
        let Some(to) = to else { return Ok(Unit::Pass(n)) };

        self.changed = true;
        if at > 0 {
            bytes[4..6].fill(0);
        }
        bytes[preferred_at..length_at].copy_from_slice(&to.to_virtual().0.to_be_bytes());
        let empty: &[u8] = if self.flexible { &[1] } else { &[0; 4] };
        if records == 0 {
            if length.is_none() && records_at - length_at == empty.len() {
                bytes[length_at..records_at].copy_from_slice(empty);
            }
            return Ok(Unit::Pass(n));
        }
        // Only what is collected may change its length.
        if let Some(kept) = &mut self.kept {
            kept.extend_from_slice(&bytes[..length_at]);
            kept.extend_from_slice(empty);
        }
        Ok(Unit::Taken(n))
    }

    /// Whether the tagged fields ahead tell of a diverging epoch. Reads them.
    fn diverges(&self, bytes: &[u8], r: &mut Reader<'_>) -> Result<bool, Malformed> {
        let mut diverges = false;
        for _ in 0..r.tag_count()? {
            let (number, data) = r.tag()?;
            // Its fields are epoch and end offset; −1 is none.
            diverges |= number == DIVERGING_EPOCH
                && bytes[data].first_chunk().is_none_or(|epoch| i32::from_be_bytes(*epoch) >= 0);
        }
        Ok(diverges)
    }
}
