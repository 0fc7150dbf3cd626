//! The few requests that the gateway's own client sends, and a reader for their answers.
//!
//! Answers are read with a bounded cursor: a declared length or count allocates nothing by itself, and one that the
//! bytes at hand can't hold is an error. Field layouts: Kafka's message schemas (ApiVersions 0–3, Metadata 1–12,
//! SaslHandshake 1, SaslAuthenticate 0–2).

use std::ops::RangeInclusive;

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{
    ApiVersionsRequest, MetadataRequest, RequestHeader, SaslAuthenticateRequest, SaslHandshakeRequest,
};
use kafka_protocol::protocol::{Encodable, HeaderVersion, StrBytes};

use super::endpoint::Endpoint;
use super::merge::{Observed, ObservedBroker};
use super::topology::{VersionRange, VersionTable};
use crate::kafka::ids::{ApiKey, ApiVersion, CorrelationId, NodeId};

/// Versions of Metadata that are understood here: from 1 on it has racks and the controller.
pub(super) const METADATA: RangeInclusive<i16> = 1..=12;
/// Versions of SaslHandshake: 0 is followed by bare tokens, which are not spoken here.
pub(super) const SASL_HANDSHAKE: RangeInclusive<i16> = 1..=1;
/// Versions of SaslAuthenticate.
pub(super) const SASL_AUTHENTICATE: RangeInclusive<i16> = 0..=2;
/// The version of ApiVersions asked first; a broker older than 2.4 refuses it with error 35 and is asked with 0.
pub(super) const API_VERSIONS: i16 = 3;

/// Kafka's error codes that mean something here.
pub(super) mod code {
    pub(in super::super) const UNSUPPORTED_SASL_MECHANISM: i16 = 33;
    pub(in super::super) const ILLEGAL_SASL_STATE: i16 = 34;
    pub(in super::super) const UNSUPPORTED_VERSION: i16 = 35;
    pub(in super::super) const SASL_AUTHENTICATION_FAILED: i16 = 58;
}

/// A request that can be sent.
#[derive(Clone, Debug)]
pub(super) enum Request {
    ApiVersions,
    Metadata,
    SaslHandshake { mechanism: &'static str },
    SaslAuthenticate { token: Bytes },
}

impl Request {
    pub(super) fn key(&self) -> ApiKey {
        match self {
            Self::ApiVersions => ApiKey::API_VERSIONS,
            Self::Metadata => ApiKey::METADATA,
            Self::SaslHandshake { .. } => ApiKey::SASL_HANDSHAKE,
            Self::SaslAuthenticate { .. } => ApiKey::SASL_AUTHENTICATE,
        }
    }

    /// The answer's header has a tag section. ApiVersions' never has: its client doesn't know yet what the broker speaks.
    pub(super) fn answer_header_has_tags(&self, version: i16) -> bool {
        match self {
            Self::ApiVersions | Self::SaslHandshake { .. } => false,
            Self::Metadata => version >= 9,
            Self::SaslAuthenticate { .. } => version >= 2,
        }
    }

    /// The whole frame, size included.
    ///
    /// # Errors
    /// A field that does not exist in `version`, or a text too long for its length field.
    pub(super) fn frame(&self, version: i16, id: CorrelationId, client_id: &str) -> Result<Bytes, Malformed> {
        let header = RequestHeader::default()
            .with_request_api_key(self.key().0)
            .with_request_api_version(version)
            .with_correlation_id(id.0)
            .with_client_id(Some(StrBytes::from_string(client_id.to_owned())));
        let mut frame = BytesMut::new();
        frame.put_i32(0);
        let encoded = match self {
            Self::ApiVersions => {
                let mut request = ApiVersionsRequest::default();
                if version >= 3 {
                    request = request
                        .with_client_software_name(StrBytes::from_static_str("turnout"))
                        .with_client_software_version(StrBytes::from_static_str(env!("CARGO_PKG_VERSION")));
                }
                put(&header, &request, version, &mut frame)
            }
            Self::Metadata => {
                // An empty list is "no topics" from version 1 on.
                let request = MetadataRequest::default()
                    .with_topics(Some(Vec::new()))
                    .with_allow_auto_topic_creation(version < 4);
                put(&header, &request, version, &mut frame)
            }
            Self::SaslHandshake { mechanism } => {
                let request = SaslHandshakeRequest::default().with_mechanism(StrBytes::from_static_str(mechanism));
                put(&header, &request, version, &mut frame)
            }
            Self::SaslAuthenticate { token } => {
                put(&header, &SaslAuthenticateRequest::default().with_auth_bytes(token.clone()), version, &mut frame)
            }
        };
        encoded.map_err(|_| Malformed("a request that its own schema refuses"))?;
        let size = i32::try_from(frame.len() - 4).map_err(|_| Malformed("a request above 2 GiB"))?;
        frame[..4].copy_from_slice(&size.to_be_bytes());
        Ok(frame.freeze())
    }
}

fn put<R: Encodable + HeaderVersion>(
    header: &RequestHeader,
    request: &R,
    version: i16,
    frame: &mut BytesMut,
) -> anyhow::Result<()> {
    header.encode(frame, R::header_version(version))?;
    request.encode(frame, version)
}

/// The highest version that both `ours` and the broker's range of `key` have.
pub(super) fn negotiate(table: &VersionTable, key: ApiKey, ours: &RangeInclusive<i16>) -> Option<i16> {
    let theirs = table.get(&key)?;
    let highest = theirs.max.0.min(*ours.end());
    (highest >= theirs.min.0.max(*ours.start())).then_some(highest)
}

/// An answer that is not what its schema says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Malformed(pub(super) &'static str);

/// A cursor over an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    /// Compact lengths and tag sections.
    flexible: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn new(answer: &'a [u8], flexible: bool) -> Self {
        Self { rest: answer, flexible }
    }

    /// Bytes not read yet.
    pub(super) fn remaining(&self) -> usize {
        self.rest.len()
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.rest.split_at_checked(n).ok_or(Malformed("it ends in the middle of a field"))?;
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(Malformed("it ends in the middle of a field"))?;
        self.rest = rest;
        Ok(*head)
    }

    pub(super) fn i16(&mut self) -> Result<i16, Malformed> {
        self.array().map(i16::from_be_bytes)
    }

    pub(super) fn i32(&mut self) -> Result<i32, Malformed> {
        self.array().map(i32::from_be_bytes)
    }

    pub(super) fn i64(&mut self) -> Result<i64, Malformed> {
        self.array().map(i64::from_be_bytes)
    }

    fn uvarint(&mut self) -> Result<u32, Malformed> {
        let mut value = 0u64;
        for shift in (0..35).step_by(7) {
            let [byte] = self.array()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return u32::try_from(value).map_err(|_| Malformed("a varint above 32 bits"));
            }
        }
        Err(Malformed("a varint above 5 bytes"))
    }

    /// A length or count: `None` is null.
    fn length(&mut self, wide: bool) -> Result<Option<usize>, Malformed> {
        let length = match (self.flexible, wide) {
            (true, _) => i64::from(self.uvarint()?) - 1,
            (false, true) => i64::from(self.i32()?),
            (false, false) => i64::from(self.i16()?),
        };
        match length {
            -1 => Ok(None),
            n => usize::try_from(n).map(Some).map_err(|_| Malformed("a negative length")),
        }
    }

    pub(super) fn text(&mut self) -> Result<Option<&'a str>, Malformed> {
        let Some(n) = self.length(false)? else { return Ok(None) };
        std::str::from_utf8(self.take(n)?).map(Some).map_err(|_| Malformed("a text that is not UTF-8"))
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        match self.length(true)? {
            Some(n) => self.take(n),
            None => Ok(&[]),
        }
    }

    /// Number of elements, each of which takes `at_least` bytes.
    fn count(&mut self, at_least: usize) -> Result<usize, Malformed> {
        let n = self.length(true)?.unwrap_or(0);
        if n > self.rest.len() / at_least {
            return Err(Malformed("a list longer than the answer"));
        }
        Ok(n)
    }

    pub(super) fn tags(&mut self) -> Result<(), Malformed> {
        if self.flexible {
            for _ in 0..self.uvarint()? {
                self.uvarint()?;
                let n = self.uvarint()?;
                self.take(n as usize)?;
            }
        }
        Ok(())
    }
}

/// The body of an ApiVersions answer: its error code and the table. The table is empty where there is an error: a
/// refusal is in version 0's shape whatever was asked (KIP-511), and says nothing that is needed here.
pub(super) fn api_versions(body: &[u8], version: i16) -> Result<(i16, VersionTable), Malformed> {
    let mut reader = Reader::new(body, version >= 3);
    let error = reader.i16()?;
    if error != 0 {
        return Ok((error, VersionTable::new()));
    }
    let mut table = VersionTable::new();
    for _ in 0..reader.count(6)? {
        let key = ApiKey(reader.i16()?);
        let range = VersionRange { min: ApiVersion(reader.i16()?), max: ApiVersion(reader.i16()?) };
        reader.tags()?;
        if range.min <= range.max {
            table.insert(key, range);
        }
    }
    Ok((error, table))
}

/// The brokers, cluster id and controller of a Metadata answer's body; what follows them is not read.
pub(super) fn metadata(body: &[u8], version: i16) -> Result<Observed, Malformed> {
    let mut reader = Reader::new(body, version >= 9);
    if version >= 3 {
        reader.i32()?;
    }
    let mut brokers = Vec::new();
    for _ in 0..reader.count(10)? {
        let id = NodeId(reader.i32()?);
        let host = reader.text()?.ok_or(Malformed("a broker without a host"))?;
        let port = u16::try_from(reader.i32()?).map_err(|_| Malformed("a port outside 0..=65535"))?;
        let rack = reader.text()?.map(str::to_owned);
        reader.tags()?;
        brokers.push(ObservedBroker { id, address: Endpoint::new(host, port), rack });
    }
    let cluster_id = if version >= 2 { reader.text()?.map(str::to_owned) } else { None };
    let controller = Some(NodeId(reader.i32()?)).filter(|c| c.0 >= 0);
    Ok(Observed { brokers, cluster_id, controller, complete: true, detailed: true })
}

/// The body of a SaslHandshake answer: its error code and the mechanisms that the listener enables.
pub(super) fn sasl_handshake(body: &[u8]) -> Result<(i16, Vec<String>), Malformed> {
    let mut reader = Reader::new(body, false);
    let error = reader.i16()?;
    let mut mechanisms = Vec::new();
    for _ in 0..reader.count(2)? {
        mechanisms.push(reader.text()?.unwrap_or_default().to_owned());
    }
    Ok((error, mechanisms))
}

/// The body of a SaslAuthenticate answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Authenticated<'a> {
    pub(super) error: i16,
    pub(super) message: Option<&'a str>,
    pub(super) token: &'a [u8],
}

pub(super) fn sasl_authenticate(body: &[u8], version: i16) -> Result<Authenticated<'_>, Malformed> {
    let mut reader = Reader::new(body, version >= 2);
    let error = reader.i16()?;
    let message = reader.text()?;
    let token = reader.bytes()?;
    if version >= 1 {
        reader.i64()?;
    }
    Ok(Authenticated { error, message, token })
}

#[cfg(test)]
mod tests;
