//! Neutralising KIP-951 hints in answers that are too large to be held: as the bytes stream past, without changing
//! any length.
//!
//! A leader hint becomes leader −1, epoch −1, the values that mean "none". The tagged field with the endpoints gets a
//! number that no client knows, of the same length, and its data are zeroed; clients skip unknown tagged fields. In
//! ShareFetch answers both are plain fields: there the endpoints keep their place, with node id −1, port −1 and hosts
//! and racks blanked, and no leader hint is left that would make a client look at them.
//!
//! The schema is a table that a small interpreter walks; its memory is a stack of a few levels, whatever the size
//! of the answer and wherever it is cut.

use proxy_common::frame::RESPONSE_FIXED_LEN;

use super::ids::{ApiKey, ApiVersion};
use super::wire::Malformed;

/// A field of a flexible schema.
#[derive(Debug)]
enum Field {
    /// So many bytes that pass.
    Pass(u32),
    /// Compact string, bytes or records, passing.
    PassBlob,
    /// So many bytes that become 0xff: −1 in every integer type.
    Unset(u32),
    /// Compact string whose bytes become spaces.
    BlankBlob,
    /// Compact array of structures.
    Each(&'static [Field]),
    /// Tagged fields; at most one of them is a hint.
    Tags(Option<(u32, Hint)>),
}

/// How a tagged field is neutralised.
#[derive(Clone, Copy, Debug)]
enum Hint {
    /// Its first eight bytes are leader id and epoch.
    Leader,
    /// An array of endpoints: renumbered and zeroed.
    Endpoints,
}

use Field::{BlankBlob, Each, Pass, PassBlob, Tags, Unset};

const NO_HINT: Field = Tags(None);

/// Number of a tagged field that no schema has: the highest of one byte, so that the order stays ascending.
const UNKNOWN_TAG: u8 = 0x7f;

const LEADER_LEN: u32 = 8;

/// Fetch v16 to v18.
static FETCH: &[Field] = &[
    Pass(RESPONSE_FIXED_LEN as u32),
    NO_HINT,
    Pass(4 + 2 + 4),
    Each(&[
        Pass(16),
        Each(&[
            Pass(4 + 2 + 8 + 8 + 8),
            Each(&[Pass(8 + 8), NO_HINT]),
            Pass(4),
            PassBlob,
            Tags(Some((1, Hint::Leader))),
        ]),
        NO_HINT,
    ]),
    Tags(Some((0, Hint::Endpoints))),
];

/// ShareFetch v1 and v2.
static SHARE_FETCH: &[Field] = &[
    Pass(RESPONSE_FIXED_LEN as u32),
    NO_HINT,
    Pass(4 + 2),
    PassBlob,
    Pass(4),
    Each(&[
        Pass(16),
        Each(&[
            Pass(4 + 2),
            PassBlob,
            Pass(2),
            PassBlob,
            Unset(LEADER_LEN),
            NO_HINT,
            PassBlob,
            Each(&[Pass(8 + 8 + 2), NO_HINT]),
            NO_HINT,
        ]),
        NO_HINT,
    ]),
    Each(&[Unset(4), BlankBlob, Unset(4), BlankBlob, NO_HINT]),
    NO_HINT,
];

/// Answers whose hints aren't known to need anything.
static NOTHING: &[Field] = &[];

/// Deepest nesting of the schemas above.
const DEPTH: usize = 4;

/// A place in the schema: the next field of a structure that comes `left` more times after this one.
#[derive(Clone, Copy, Debug)]
struct Level {
    fields: &'static [Field],
    next: usize,
    left: u32,
}

/// What the next bytes are.
#[derive(Clone, Copy, Debug)]
enum Expect {
    /// So many bytes with one treatment.
    Run { left: u32, treat: Treat },
    /// A varint, of which these bits and this many bytes were read.
    Varint { bits: u32, bytes: u32, of: Of },
    /// Nothing: the answer ended.
    End,
}

#[derive(Clone, Copy, Debug)]
enum Treat {
    Pass,
    Fill(u8),
}

/// What a varint means.
#[derive(Clone, Copy, Debug)]
enum Of {
    Blob(Treat),
    Each(&'static [Field]),
    TagCount(Option<(u32, Hint)>),
    TagNumber(Option<(u32, Hint)>),
    TagLength(Option<Hint>),
}

/// Neutralises the hints of one answer. The bytes may be handed over in pieces of any size.
#[derive(Clone, Debug)]
pub struct HintScrubber {
    levels: [Level; DEPTH],
    depth: usize,
    expect: Expect,
    /// Tagged fields of the current section still to come, after the current one, and the hint among them.
    tags_left: u32,
    hint: Option<(u32, Hint)>,
    /// Rest of a tagged field behind the bytes that were treated.
    tag_rest: u32,
    offset: usize,
    idle: bool,
}

impl HintScrubber {
    /// For one answer of `key`; of other APIs than Fetch and ShareFetch everything passes unread.
    #[must_use]
    pub fn of(key: ApiKey, version: ApiVersion) -> Self {
        match key {
            ApiKey::FETCH => Self::new(version),
            ApiKey::SHARE_FETCH => Self::share_fetch(version),
            _ => Self::over(NOTHING),
        }
    }

    /// For one Fetch answer. Below v16 there is no address in it, and everything passes unread.
    #[must_use]
    pub fn new(version: ApiVersion) -> Self {
        Self::over(if version >= ApiVersion(16) { FETCH } else { NOTHING })
    }

    /// For one ShareFetch answer.
    #[must_use]
    pub fn share_fetch(version: ApiVersion) -> Self {
        Self::over(if version >= ApiVersion(1) { SHARE_FETCH } else { NOTHING })
    }

    fn over(fields: &'static [Field]) -> Self {
        let level = Level { fields, next: 0, left: 0 };
        let mut scrubber = Self {
            levels: [level; DEPTH],
            depth: 1,
            expect: Expect::End,
            tags_left: 0,
            hint: None,
            tag_rest: 0,
            offset: 0,
            idle: fields.is_empty(),
        };
        scrubber.next_field();
        scrubber
    }

    /// The next bytes of the answer behind its size field, the header included; changed in place.
    ///
    /// # Errors
    /// When the bytes don't follow the schema. They may have been forwarded up to there: the connection must end.
    pub fn push(&mut self, bytes: &mut [u8]) -> Result<(), Malformed> {
        if self.idle {
            return Ok(());
        }
        let mut at = 0;
        while at < bytes.len() {
            match self.expect {
                Expect::Run { left, treat } => {
                    let n = (left as usize).min(bytes.len() - at);
                    if let Treat::Fill(with) = treat {
                        bytes[at..at + n].fill(with);
                    }
                    at += n;
                    self.expect = Expect::Run { left: left - n as u32, treat };
                    if n == left as usize {
                        self.run_ended();
                    }
                }
                Expect::Varint { bits, bytes: read, of } => {
                    self.varint_byte(&mut bytes[at], bits, read, of, self.offset + at)?;
                    at += 1;
                }
                Expect::End => return Err(Malformed { what: "bytes behind the last field", at: self.offset + at }),
            }
        }
        self.offset += bytes.len();
        Ok(())
    }

    /// Whether the whole answer was read.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.idle || matches!(self.expect, Expect::End)
    }

    fn varint_byte(&mut self, byte: &mut u8, bits: u32, read: u32, of: Of, at: usize) -> Result<(), Malformed> {
        let value = *byte;
        if read == 4 && value > 0x0f {
            return Err(Malformed { what: "varint longer than 32 bits", at });
        }
        // A tag number written longer than it must be couldn't be recognised before its first byte is gone.
        if read > 0 && value == 0 {
            return Err(Malformed { what: "varint longer than needed", at });
        }
        let bits = bits | u32::from(value & 0x7f) << (7 * read);
        if value & 0x80 != 0 {
            self.expect = Expect::Varint { bits, bytes: read + 1, of };
            return Ok(());
        }
        if let Of::TagNumber(Some((number, Hint::Endpoints))) = of
            && number == bits
        {
            *byte = UNKNOWN_TAG;
        }
        self.varint_ended(bits, of, at)
    }

    fn varint_ended(&mut self, value: u32, of: Of, at: usize) -> Result<(), Malformed> {
        match of {
            Of::Blob(treat) => self.run(value.saturating_sub(1), treat),
            Of::Each(fields) => {
                if let Some(left) = value.checked_sub(2) {
                    self.levels[self.depth] = Level { fields, next: 0, left };
                    self.depth += 1;
                }
                self.next_field();
            }
            Of::TagCount(hint) => {
                self.hint = hint;
                self.tags_left = value;
                self.next_tag();
            }
            Of::TagNumber(hint) => {
                let hint = hint.filter(|(number, _)| *number == value).map(|(_, hint)| hint);
                self.varint(Of::TagLength(hint));
            }
            Of::TagLength(None) => self.run(value, Treat::Pass),
            Of::TagLength(Some(Hint::Endpoints)) => self.run(value, Treat::Fill(0)),
            Of::TagLength(Some(Hint::Leader)) => {
                let Some(rest) = value.checked_sub(LEADER_LEN) else {
                    return Err(Malformed { what: "leader hint too short", at });
                };
                self.tag_rest = rest;
                self.run(LEADER_LEN, Treat::Fill(0xff));
            }
        }
        Ok(())
    }

    fn varint(&mut self, of: Of) {
        self.expect = Expect::Varint { bits: 0, bytes: 0, of };
    }

    /// Expects a run of bytes, or what comes behind it when it is empty.
    fn run(&mut self, left: u32, treat: Treat) {
        self.expect = Expect::Run { left, treat };
        if left == 0 {
            self.run_ended();
        }
    }

    fn run_ended(&mut self) {
        if self.tag_rest > 0 {
            let left = std::mem::take(&mut self.tag_rest);
            self.expect = Expect::Run { left, treat: Treat::Pass };
        } else {
            self.next_tag();
        }
    }

    /// The next tagged field of the section, or what comes behind the section. Outside of one none is left.
    fn next_tag(&mut self) {
        match self.tags_left.checked_sub(1) {
            Some(left) => {
                self.tags_left = left;
                self.varint(Of::TagNumber(self.hint));
            }
            None => self.next_field(),
        }
    }

    fn next_field(&mut self) {
        while let Some(level) = self.depth.checked_sub(1).map(|top| &mut self.levels[top]) {
            let Some(field) = level.fields.get(level.next) else {
                match level.left.checked_sub(1) {
                    Some(left) => *level = Level { next: 0, left, ..*level },
                    None => self.depth -= 1,
                }
                continue;
            };
            level.next += 1;
            self.expect = match field {
                Pass(n) => Expect::Run { left: *n, treat: Treat::Pass },
                Unset(n) => Expect::Run { left: *n, treat: Treat::Fill(0xff) },
                PassBlob => Expect::Varint { bits: 0, bytes: 0, of: Of::Blob(Treat::Pass) },
                BlankBlob => Expect::Varint { bits: 0, bytes: 0, of: Of::Blob(Treat::Fill(b' ')) },
                Each(fields) => Expect::Varint { bits: 0, bytes: 0, of: Of::Each(fields) },
                Tags(hint) => Expect::Varint { bits: 0, bytes: 0, of: Of::TagCount(*hint) },
            };
            return;
        }
        self.expect = Expect::End;
    }
}

#[cfg(test)]
mod tests;
