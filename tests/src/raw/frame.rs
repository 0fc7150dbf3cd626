//! Frames to and from typed messages.
//!
//! Source: the Kafka protocol guide and KIP-482 (flexible headers); schemas from `kafka-protocol`.

use anyhow::{Context, Result, ensure};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{RequestHeader, ResponseHeader};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};

/// A request as it was received, without its size field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestFrame {
    /// Which request.
    pub api_key: i16,
    /// Version of its schema.
    pub api_version: i16,
    /// The sender's correlation id.
    pub correlation_id: i32,
    /// Header and body.
    pub bytes: Bytes,
}

/// An answer as it was received, without its size field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerFrame {
    /// The correlation id it carries.
    pub correlation_id: i32,
    /// Header and body.
    pub bytes: Bytes,
}

impl RequestFrame {
    /// Reads the fixed part of the header.
    ///
    /// # Errors
    /// There are fewer than eight bytes.
    pub fn new(bytes: Bytes) -> Result<Self> {
        ensure!(bytes.len() >= 8, "a request of {} bytes has no complete header", bytes.len());
        let mut view = &bytes[..];
        let (api_key, api_version, correlation_id) = (view.get_i16(), view.get_i16(), view.get_i32());
        Ok(Self { api_key, api_version, correlation_id, bytes })
    }

    /// Decodes header and body.
    ///
    /// # Errors
    /// It is another request, or the bytes don't fit the schema, bytes left over included.
    pub fn decode<R: Request>(&self) -> Result<(RequestHeader, R)> {
        decode_request(self)
    }
}

impl AnswerFrame {
    /// Reads the correlation id.
    ///
    /// # Errors
    /// There are fewer than four bytes.
    pub fn new(bytes: Bytes) -> Result<Self> {
        ensure!(bytes.len() >= 4, "an answer of {} bytes has no correlation id", bytes.len());
        Ok(Self { correlation_id: (&bytes[..]).get_i32(), bytes })
    }

    /// Decodes the answer to a request `R` of `version`.
    ///
    /// # Errors
    /// The bytes don't fit the schema, bytes left over included.
    pub fn decode<R: Request>(&self, version: i16) -> Result<R::Response> {
        decode_answer::<R>(self, version)
    }
}

/// Puts the size field in front of `payload`.
#[must_use]
pub fn frame(payload: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(payload.len() + 4);
    bytes.put_i32(payload.len() as i32);
    bytes.put_slice(payload);
    bytes.freeze()
}

/// A whole request frame, size field included, with the client id `raw`.
///
/// # Errors
/// The message holds something that this version can't express.
pub fn request<R: Request>(version: i16, correlation_id: i32, body: &R) -> Result<Bytes> {
    let header = RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_correlation_id(correlation_id)
        .with_client_id(Some(StrBytes::from_static_str("raw")));
    request_with_header(&header, body)
}

/// A whole request frame with any header: a null client id, unknown tags, a version the body does not have.
///
/// # Errors
/// The message holds something that the header's version can't express.
pub fn request_with_header<R: Request>(header: &RequestHeader, body: &R) -> Result<Bytes> {
    let version = header.request_api_version;
    let mut payload = BytesMut::new();
    header.encode(&mut payload, R::header_version(version))?;
    body.encode(&mut payload, version).with_context(|| format!("encoding request {} v{version}", R::KEY))?;
    Ok(frame(&payload))
}

/// A whole answer frame to a request `R` of `version`.
///
/// # Errors
/// The message holds something that this version can't express.
pub fn answer<R: Request>(version: i16, correlation_id: i32, body: &R::Response) -> Result<Bytes> {
    let mut payload = BytesMut::new();
    let header = ResponseHeader::default().with_correlation_id(correlation_id);
    header.encode(&mut payload, R::Response::header_version(version))?;
    body.encode(&mut payload, version).with_context(|| format!("encoding the answer to {} v{version}", R::KEY))?;
    Ok(frame(&payload))
}

/// Decodes a request's header and body.
///
/// # Errors
/// It is another request, or the bytes don't fit the schema, bytes left over included.
pub fn decode_request<R: Request>(frame: &RequestFrame) -> Result<(RequestHeader, R)> {
    ensure!(frame.api_key == R::KEY, "expected request {}, found {}", R::KEY, frame.api_key);
    let mut bytes = frame.bytes.clone();
    let header = RequestHeader::decode(&mut bytes, R::header_version(frame.api_version))?;
    let body = R::decode(&mut bytes, frame.api_version)
        .with_context(|| format!("decoding request {} v{}", R::KEY, frame.api_version))?;
    ensure!(bytes.is_empty(), "request {} v{} has {} bytes too many", R::KEY, frame.api_version, bytes.len());
    Ok((header, body))
}

/// Decodes the answer to a request `R` of `version`.
///
/// # Errors
/// The bytes don't fit the schema, bytes left over included.
pub fn decode_answer<R: Request>(frame: &AnswerFrame, version: i16) -> Result<R::Response> {
    let mut bytes = frame.bytes.clone();
    ResponseHeader::decode(&mut bytes, R::Response::header_version(version))?;
    let body = R::Response::decode(&mut bytes, version)
        .with_context(|| format!("decoding the answer to {} v{version}", R::KEY))?;
    ensure!(bytes.is_empty(), "the answer to {} v{version} has {} bytes too many", R::KEY, bytes.len());
    Ok(body)
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::{ApiVersionsRequest, ApiVersionsResponse, MetadataRequest};

    use super::*;

    #[test]
    fn a_request_survives_its_frame() {
        let body = MetadataRequest::default().with_topics(None).with_allow_auto_topic_creation(true);
        for version in 1..=12 {
            let mut bytes = request(version, -7, &body).unwrap();
            let size = bytes.get_i32();
            assert_eq!(size as usize, bytes.len());
            let frame = RequestFrame::new(bytes).unwrap();
            let (header, decoded) = frame.decode::<MetadataRequest>().unwrap();
            assert_eq!((header.correlation_id, header.client_id.as_deref()), (-7, Some("raw")));
            assert_eq!(decoded.topics, None);
        }
    }

    #[test]
    fn the_header_of_an_api_versions_answer_is_never_flexible() {
        let bytes = answer::<ApiVersionsRequest>(4, 9, &ApiVersionsResponse::default()).unwrap();
        // Size, correlation id, then at once the error code: no tagged fields between.
        assert_eq!(&bytes[4..10], &[0, 0, 0, 9, 0, 0]);
    }
}
