//! The few requests that the gateway's own client sends, and a reader for their answers.
//!
//! Answers are read with a bounded cursor: a declared length or count allocates nothing by itself, and one that the
//! bytes at hand can't hold is an error. Field layouts: Kafka's message schemas (ApiVersions 0–3, Metadata 1–12,
//! SaslHandshake 1, SaslAuthenticate 0–2).

use std::ops::RangeInclusive;

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{
    ApiVersionsRequest, DescribeConfigsRequest, MetadataRequest, RequestHeader, SaslAuthenticateRequest,
    SaslHandshakeRequest, TopicName,
};
use kafka_protocol::protocol::{Encodable, HeaderVersion, StrBytes};

use super::endpoint::Endpoint;
use super::merge::{Observed, ObservedBroker};
use super::topology::{VersionRange, VersionTable};
use super::watcher::Wanted;
use crate::kafka::ids::{ApiKey, ApiVersion, CorrelationId, NodeId, TopicId};
use crate::kafka::topics::{SeenPartition, SeenTopic};

/// Versions of Metadata that are understood here: from 1 on it has racks and the controller.
pub(super) const METADATA: RangeInclusive<i16> = 1..=12;
/// Versions of SaslHandshake: 0 is followed by bare tokens, which are not spoken here.
pub(super) const SASL_HANDSHAKE: RangeInclusive<i16> = 1..=1;
/// Versions of SaslAuthenticate.
pub(super) const SASL_AUTHENTICATE: RangeInclusive<i16> = 0..=2;
/// Versions of DescribeConfigs.
pub(super) const DESCRIBE_CONFIGS: RangeInclusive<i16> = 1..=4;
/// The first version of Metadata that may be asked by topic ids.
const METADATA_BY_ID: i16 = 12;
/// Resource type of DescribeConfigs.
const BROKER: i8 = 4;
/// Which class chooses a replica for a consumer (KIP-392).
const SELECTOR: &str = "replica.selector.class";
/// The class that does so by rack, in whatever package: vendors have their own.
pub(super) const RACK_AWARE: &str = "RackAwareReplicaSelector";
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
    Topics { topics: Vec<Wanted> },
    Selector { broker: NodeId },
    SaslHandshake { mechanism: &'static str },
    SaslAuthenticate { token: Bytes },
}

impl Request {
    pub(super) fn key(&self) -> ApiKey {
        match self {
            Self::ApiVersions => ApiKey::API_VERSIONS,
            Self::Metadata | Self::Topics { .. } => ApiKey::METADATA,
            Self::Selector { .. } => ApiKey::DESCRIBE_CONFIGS,
            Self::SaslHandshake { .. } => ApiKey::SASL_HANDSHAKE,
            Self::SaslAuthenticate { .. } => ApiKey::SASL_AUTHENTICATE,
        }
    }

    /// The answer's header has a tag section. ApiVersions' never has: its client doesn't know yet what is spoken.
    pub(super) fn answer_header_has_tags(&self, version: i16) -> bool {
        match self {
            Self::ApiVersions | Self::SaslHandshake { .. } => false,
            Self::Metadata | Self::Topics { .. } => version >= 9,
            Self::Selector { .. } => version >= 4,
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
            Self::Topics { topics } => {
                let topic = |wanted: &Wanted| match wanted {
                    Wanted::Name(name) => {
                        let name = TopicName(StrBytes::from_string(name.clone()));
                        Some(MetadataRequestTopic::default().with_name(Some(name)))
                    }
                    Wanted::Id(id) => (version >= METADATA_BY_ID).then(|| {
                        let mut topic = MetadataRequestTopic::default().with_name(None);
                        // 32 hexadecimal digits always are one.
                        topic.topic_id = id.to_string().parse().unwrap_or_default();
                        topic
                    }),
                };
                let request = MetadataRequest::default()
                    .with_topics(Some(topics.iter().filter_map(topic).collect()))
                    // Below version 4 there is no such field, and the default is its only value.
                    .with_allow_auto_topic_creation(version < 4);
                put(&header, &request, version, &mut frame)
            }
            Self::Selector { broker } => {
                let resource = DescribeConfigsResource::default()
                    .with_resource_type(BROKER)
                    .with_resource_name(StrBytes::from_string(broker.to_string()))
                    .with_configuration_keys(Some(vec![StrBytes::from_static_str(SELECTOR)]));
                put(&header, &DescribeConfigsRequest::default().with_resources(vec![resource]), version, &mut frame)
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

    /// A list of node ids.
    fn nodes(&mut self) -> Result<Vec<NodeId>, Malformed> {
        (0..self.count(4)?).map(|_| self.i32().map(NodeId)).collect()
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
    brokers(&mut Reader::new(body, version >= 9), version)
}

fn brokers(reader: &mut Reader<'_>, version: i16) -> Result<Observed, Malformed> {
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

/// The topics of a Metadata answer's body.
pub(super) fn topics(body: &[u8], version: i16) -> Result<Vec<SeenTopic>, Malformed> {
    let mut reader = Reader::new(body, version >= 9);
    brokers(&mut reader, version)?;
    let mut topics = Vec::new();
    for _ in 0..reader.count(4)? {
        let error = reader.i16()?;
        let name = reader.text()?.map(str::to_owned);
        let id = if version >= 10 { TopicId(reader.array()?) } else { TopicId::default() };
        reader.take(1)?;
        let mut partitions = Vec::new();
        for _ in 0..reader.count(14)? {
            reader.i16()?;
            partitions.push(SeenPartition {
                index: reader.i32()?,
                leader: Some(NodeId(reader.i32()?)).filter(|leader| leader.0 >= 0),
                epoch: if version >= 7 { reader.i32()? } else { -1 },
                replicas: reader.nodes()?,
                in_sync: reader.nodes()?,
                offline: if version >= 5 { reader.nodes()? } else { Vec::new() },
            });
            reader.tags()?;
        }
        if (8..).contains(&version) {
            reader.i32()?;
        }
        reader.tags()?;
        topics.push(SeenTopic { error, name, id, partitions });
    }
    Ok(topics)
}

/// The body of the answer to [`Request::Selector`]: its error code and the class, if one is set.
pub(super) fn selector(body: &[u8], version: i16) -> Result<(i16, Option<&str>), Malformed> {
    let mut reader = Reader::new(body, version >= 4);
    reader.i32()?;
    let (mut error, mut class) = (0, None);
    for _ in 0..reader.count(8)? {
        error = reader.i16()?;
        reader.text()?;
        reader.take(1)?;
        reader.text()?;
        for _ in 0..reader.count(6)? {
            let name = reader.text()?;
            let value = reader.text()?;
            if name == Some(SELECTOR) {
                class = value.filter(|value| !value.is_empty());
            }
            // Read-only, source, sensitive.
            reader.take(3)?;
            for _ in 0..reader.count(5)? {
                reader.text()?;
                reader.text()?;
                reader.take(1)?;
                reader.tags()?;
            }
            if version >= 3 {
                reader.take(1)?;
                reader.text()?;
            }
            reader.tags()?;
        }
        reader.tags()?;
    }
    Ok((error, class))
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
