//! Reading Kafka's primitive types from untrusted bytes, and copying a frame with a few ranges replaced.
//!
//! Nothing here allocates by a length that was read: a declared length only says how far to walk, and the walk ends
//! at the frame's end. Source: the protocol guide ("Protocol primitive types"), KIP-482 for the compact forms.

use std::ops::Range;

use proxy_common::frame::{REQUEST_FIXED_LEN, RESPONSE_FIXED_LEN};

/// Bytes that don't follow the schema their header names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at} behind the size field")]
pub struct Malformed {
    /// What is wrong.
    pub what: &'static str,
    /// Where: an offset behind the size field.
    pub at: usize,
}

type Result<T> = std::result::Result<T, Malformed>;

/// Longest string that a Kafka peer accepts, compact ones included.
pub(crate) const MAX_STRING: u32 = i16::MAX as u32;

/// A cursor over a frame. Strings, arrays and byte fields are read in the classic or the flexible form, as the
/// schema's version says.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    flexible: bool,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], flexible: bool) -> Self {
        Self { bytes, at: 0, flexible }
    }

    /// Offset of the next byte.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn flexible(&self) -> bool {
        self.flexible
    }

    /// Skips a request's header. Its client id has the classic form in every version.
    pub(crate) fn skip_request_header(&mut self) -> Result<()> {
        self.take(REQUEST_FIXED_LEN)?;
        let flexible = std::mem::replace(&mut self.flexible, false);
        self.nullable_string()?;
        self.flexible = flexible;
        self.skip_tags()
    }

    /// Skips an answer's header.
    pub(crate) fn skip_response_header(&mut self) -> Result<()> {
        self.take(RESPONSE_FIXED_LEN)?;
        self.skip_tags()
    }

    pub(crate) fn fail<T>(&self, what: &'static str) -> Result<T> {
        Err(Malformed { what, at: self.at })
    }

    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(crate) fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        match self.bytes[self.at..].get(..n) {
            Some(taken) => {
                self.at += n;
                Ok(taken)
            }
            None => self.fail("field past the frame's end"),
        }
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        match self.bytes[self.at..].first_chunk::<N>() {
            Some(chunk) => {
                self.at += N;
                Ok(*chunk)
            }
            None => self.fail("field past the frame's end"),
        }
    }

    pub(crate) fn i8(&mut self) -> Result<i8> {
        self.array().map(i8::from_be_bytes)
    }

    pub(crate) fn i16(&mut self) -> Result<i16> {
        self.array().map(i16::from_be_bytes)
    }

    pub(crate) fn i32(&mut self) -> Result<i32> {
        self.array().map(i32::from_be_bytes)
    }

    /// An unsigned varint of at most 32 bits.
    pub(crate) fn uvarint(&mut self) -> Result<u32> {
        let mut value = 0u32;
        for shift in (0..=28).step_by(7) {
            let byte = self.array::<1>()?[0];
            if shift == 28 && byte > 0x0f {
                break;
            }
            value |= u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        self.fail("varint longer than 32 bits")
    }

    /// A length that may be null, in either form; `wide` classic lengths have 32 bits, others 16.
    fn length(&mut self, wide: bool) -> Result<Option<u32>> {
        if self.flexible {
            return Ok(self.uvarint()?.checked_sub(1));
        }
        let length = if wide { self.i32()? } else { i32::from(self.i16()?) };
        match length {
            -1 => Ok(None),
            n => match u32::try_from(n) {
                Ok(n) => Ok(Some(n)),
                Err(_) => self.fail("negative length"),
            },
        }
    }

    /// A string that may be null.
    pub(crate) fn nullable_string(&mut self) -> Result<Option<&'a [u8]>> {
        match self.length(false)? {
            None => Ok(None),
            Some(n) if n > MAX_STRING => self.fail("string longer than 32767 bytes"),
            Some(n) => self.take(n as usize).map(Some),
        }
    }

    /// A string that may not be null.
    pub(crate) fn string(&mut self) -> Result<&'a [u8]> {
        match self.nullable_string()? {
            Some(s) => Ok(s),
            None => self.fail("null string where the schema has none"),
        }
    }

    /// A string that may not be null, as text.
    pub(crate) fn text(&mut self) -> Result<&'a str> {
        let bytes = self.string()?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text),
            Err(_) => self.fail("string that isn't UTF-8"),
        }
    }

    /// Bytes or records that may be null, skipped.
    pub(crate) fn skip_bytes(&mut self) -> Result<()> {
        self.nullable_bytes().map(drop)
    }

    /// Where bytes or records lie that may be null.
    pub(crate) fn nullable_bytes(&mut self) -> Result<Option<Range<usize>>> {
        let Some(n) = self.length(true)? else { return Ok(None) };
        let start = self.at;
        self.take(n as usize)?;
        Ok(Some(start..self.at))
    }

    /// Length of an array; null counts as empty. Every element of every schema has at least one byte.
    pub(crate) fn count(&mut self) -> Result<u32> {
        let n = self.length(true)?.unwrap_or(0);
        if n as usize > self.left() {
            return self.fail("array longer than the frame");
        }
        Ok(n)
    }

    /// One tagged field: its number and where its data lie.
    pub(crate) fn tag(&mut self) -> Result<(u32, Range<usize>)> {
        let number = self.uvarint()?;
        let length = self.uvarint()? as usize;
        let start = self.at;
        self.take(length)?;
        Ok((number, start..start + length))
    }

    /// Number of tagged fields of a section; 0 in the classic form, which has none.
    pub(crate) fn tag_count(&mut self) -> Result<u32> {
        if self.flexible { self.uvarint() } else { Ok(0) }
    }

    pub(crate) fn skip_tags(&mut self) -> Result<()> {
        for _ in 0..self.tag_count()? {
            self.tag()?;
        }
        Ok(())
    }

    /// Every byte must have been read.
    pub(crate) fn end(&self) -> Result<()> {
        if self.left() == 0 { Ok(()) } else { self.fail("bytes behind the last field") }
    }
}

pub(crate) fn put_uvarint(out: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends an array's length in the form of the schema.
pub(crate) fn put_count(out: &mut Vec<u8>, flexible: bool, n: u32) {
    if flexible {
        put_uvarint(out, n + 1);
    } else {
        out.extend_from_slice(&n.to_be_bytes());
    }
}

/// Appends a string; `s` must have at most [`MAX_STRING`] bytes.
pub(crate) fn put_string(out: &mut Vec<u8>, flexible: bool, s: &str) {
    debug_assert!(s.len() <= MAX_STRING as usize);
    if flexible {
        put_uvarint(out, s.len() as u32 + 1);
    } else {
        out.extend_from_slice(&(s.len() as u16).to_be_bytes());
    }
    out.extend_from_slice(s.as_bytes());
}

/// A copy of `source` with some ranges replaced. Nothing is copied until the first replacement that differs.
#[derive(Debug)]
pub(crate) struct Patch<'a> {
    source: &'a [u8],
    out: Vec<u8>,
    copied: usize,
    changed: bool,
}

impl<'a> Patch<'a> {
    pub(crate) fn new(source: &'a [u8]) -> Self {
        Self { source, out: Vec::new(), copied: 0, changed: false }
    }

    /// Replaces `range`. Ranges come in ascending order and don't overlap.
    pub(crate) fn replace(&mut self, range: Range<usize>, with: &[u8]) {
        debug_assert!(range.start >= self.copied && range.end <= self.source.len());
        if self.source[range.clone()] == *with {
            return;
        }
        if !self.changed {
            self.changed = true;
            self.out.reserve(self.source.len());
        }
        self.out.extend_from_slice(&self.source[self.copied..range.start]);
        self.out.extend_from_slice(with);
        self.copied = range.end;
    }

    /// The changed copy; `None` when nothing differs.
    pub(crate) fn finish(mut self) -> Option<Vec<u8>> {
        if !self.changed {
            return None;
        }
        self.out.extend_from_slice(&self.source[self.copied..]);
        Some(self.out)
    }
}
