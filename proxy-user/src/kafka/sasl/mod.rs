//! Which of a client's frames during SASL are Kafka requests and which are bare tokens.
//!
//! SaslHandshake v1 is followed by SaslAuthenticate requests, which are ordinary frames. Handshake v0 is followed by
//! size-prefixed tokens without any header, and a client of Kafka 0.9's GSSAPI sends such tokens from the first byte
//! on, without a handshake. Nothing on the wire says when bare tokens end, so this is decided here:
//!
//! ```text
//!            first frame starts 0x60, no known key
//!   Fresh ────────────────────────────────────────► Raw(GSSAPI)
//!     │ a Kafka frame                                 │ tokens of the mechanism are used up, or
//!     ▼                                               ▼ a frame looks like a Kafka request
//!   Kafka ◄───────────────────────────────────────────┘
//!     │ SaslHandshake v0           ▲ answer: an error       ▲
//!     ▼                            │                        │
//!   Asked(mechanism) ──────────────┴── answer: no error ► Raw(mechanism)
//! ```
//!
//! Sources: the protocol guide ("SASL authentication sequence"), KIP-43, KIP-152, KIP-368 and the broker's
//! SaslServerAuthenticator.

use proxy_common::frame::{self, REQUEST_FIXED_LEN, RESPONSE_FIXED_LEN};

use super::api;
use super::header::{MAX_PREFIX, Partial};
use super::ids::{ApiKey, ApiVersion};
use super::wire::Reader;

/// Largest frame that a broker takes during SASL (`sasl.server.max.receive.size`), size field excluded.
pub const MAX_SASL_FRAME: i32 = 524_288;

/// First byte of a GSSAPI initial token (RFC 2743, section 3.1).
const GSSAPI_INITIAL: u8 = 0x60;

/// Error code 0 of SaslHandshake: the mechanism is enabled.
const NONE: i16 = 0;

/// Version and mechanism of a SaslHandshake request; `None` when it can't be read. `body` is the whole frame behind
/// the size field.
#[must_use]
pub fn handshake(body: &[u8]) -> Option<(ApiVersion, String)> {
    let prefix = frame::read_request_prefix(body).filter(|p| p.api_key == ApiKey::SASL_HANDSHAKE.0)?;
    let mut r = Reader::new(body, false);
    r.skip_request_header().ok()?;
    let mechanism = r.text().ok()?.to_owned();
    Some((ApiVersion(prefix.api_version), mechanism))
}

/// What a client's frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientFrame {
    /// A Kafka request with a header.
    Request,
    /// A bare token, of any size, 0 included. The broker's answer, if one comes, is a bare token too: it has no
    /// correlation id, and the last token of some mechanisms gets none. So relay answers as they come, and when the
    /// first request after it is forwarded, forget that this token was waiting for one.
    Token,
    /// Can't be told until SaslHandshake v0 is answered ([`SaslTracker::handshake_answered`]): leave it unread.
    AfterHandshake,
}

/// How many bare tokens a mechanism's client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tokens {
    /// Exactly so many more.
    Left(u8),
    /// Until a frame looks like a Kafka request.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Fresh,
    Kafka,
    Asked(Mechanism),
    Raw(Mechanism, Tokens),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mechanism {
    Plain,
    OauthBearer,
    Scram,
    Other,
}

impl Mechanism {
    fn named(name: &str) -> Self {
        match name {
            "PLAIN" => Self::Plain,
            "OAUTHBEARER" => Self::OauthBearer,
            _ if name.starts_with("SCRAM-") => Self::Scram,
            _ => Self::Other,
        }
    }

    fn tokens(self) -> Tokens {
        match self {
            Self::Plain | Self::OauthBearer => Tokens::Left(1),
            Self::Scram => Tokens::Left(2),
            Self::Other => Tokens::Unknown,
        }
    }
}

/// Follows one client connection. Call [`client_frame`](Self::client_frame) once for every frame of the client, in
/// order, until it says something else than `NeedMore` or [`ClientFrame::AfterHandshake`].
#[derive(Clone, Debug)]
pub struct SaslTracker {
    state: State,
}

impl Default for SaslTracker {
    fn default() -> Self {
        Self::new()
    }
}

impl SaslTracker {
    /// A connection on which nothing was sent yet.
    #[must_use]
    pub fn new() -> Self {
        Self { state: State::Fresh }
    }

    /// What the client's next frame is. `size` is its size field; `bytes` are those behind it, as many as are there.
    /// A size below 0 is the caller's to refuse.
    pub fn client_frame(&mut self, size: i32, bytes: &[u8]) -> Partial<ClientFrame> {
        if let State::Asked(_) = self.state {
            return Partial::Done(ClientFrame::AfterHandshake);
        }
        match self.is_token(size, bytes) {
            Partial::Done(true) if size > MAX_SASL_FRAME => Partial::Malformed("SASL token larger than 524288 bytes"),
            Partial::Done(true) => {
                self.token_sent();
                Partial::Done(ClientFrame::Token)
            }
            Partial::Done(false) => self.request(size, bytes),
            Partial::NeedMore => Partial::NeedMore,
            Partial::Malformed(why) => Partial::Malformed(why),
        }
    }

    /// The broker's answer to SaslHandshake: the whole frame behind the size field. Without an error, tokens follow a
    /// v0 handshake; with one, the client may ask again.
    pub fn handshake_answered(&mut self, body: &[u8]) {
        if let State::Asked(mechanism) = self.state {
            let error = body.get(RESPONSE_FIXED_LEN..).and_then(|b| b.first_chunk()).map(|b| i16::from_be_bytes(*b));
            self.state = if error == Some(NONE) { State::Raw(mechanism, mechanism.tokens()) } else { State::Kafka };
        }
    }

    /// Whether nothing but requests can come next, whatever the broker answers.
    #[must_use]
    pub fn is_kafka(&self) -> bool {
        matches!(self.state, State::Kafka)
    }

    /// Whether bare tokens are expected now: the broker's frames are then bare too, and size 0 is legal both ways.
    #[must_use]
    pub fn is_raw(&self) -> bool {
        matches!(self.state, State::Raw(..))
    }

    fn is_token(&self, size: i32, bytes: &[u8]) -> Partial<bool> {
        match self.state {
            State::Kafka | State::Asked(_) => Partial::Done(false),
            State::Fresh => match bytes.first() {
                _ if size == 0 => Partial::Done(false),
                None => Partial::NeedMore,
                // As an api key this is 24576 and above.
                Some(&first) => Partial::Done(first == GSSAPI_INITIAL),
            },
            State::Raw(_, Tokens::Left(1..)) => Partial::Done(true),
            // RFC 7628, section 3.2.3: a client that was refused says so with one byte before it gives up.
            State::Raw(Mechanism::OauthBearer, Tokens::Left(0)) if size == 1 => Partial::Done(true),
            State::Raw(_, Tokens::Left(0)) => Partial::Done(false),
            State::Raw(_, Tokens::Unknown) => looks_like_a_request(size, bytes).map(|request| !request),
        }
    }

    fn token_sent(&mut self) {
        self.state = match self.state {
            State::Raw(mechanism, Tokens::Left(n)) => State::Raw(mechanism, Tokens::Left(n.saturating_sub(1))),
            raw @ State::Raw(_, Tokens::Unknown) => raw,
            State::Fresh | State::Kafka | State::Asked(_) => State::Raw(Mechanism::Other, Tokens::Unknown),
        };
    }

    fn request(&mut self, size: i32, bytes: &[u8]) -> Partial<ClientFrame> {
        if size < REQUEST_FIXED_LEN as i32 {
            return Partial::Malformed("frame too short for a request header");
        }
        let Some(prefix) = frame::read_request_prefix(bytes) else { return Partial::NeedMore };
        let key = ApiKey(prefix.api_key);
        if matches!(key, ApiKey::SASL_HANDSHAKE | ApiKey::SASL_AUTHENTICATE) && size > MAX_SASL_FRAME {
            return Partial::Malformed("SASL frame larger than 524288 bytes");
        }
        self.state = State::Kafka;
        if key == ApiKey::SASL_HANDSHAKE && prefix.api_version == 0 {
            if size as usize > MAX_PREFIX {
                return Partial::Malformed("SaslHandshake longer than any mechanism's name");
            }
            let Some(whole) = bytes.get(..size as usize) else { return Partial::NeedMore };
            let Some((_, mechanism)) = handshake(whole) else {
                return Partial::Malformed("SaslHandshake that can't be read");
            };
            self.state = State::Asked(Mechanism::named(&mechanism));
        }
        Partial::Done(ClientFrame::Request)
    }
}

/// Whether a frame has a plausible request header: known key, known version, a client id that fits.
fn looks_like_a_request(size: i32, bytes: &[u8]) -> Partial<bool> {
    const WITH_CLIENT_ID: i32 = REQUEST_FIXED_LEN as i32 + 2;
    if size < WITH_CLIENT_ID {
        return Partial::Done(false);
    }
    let Some(prefix) = frame::read_request_prefix(bytes) else { return Partial::NeedMore };
    if !api::spec(ApiKey(prefix.api_key)).is_some_and(|s| s.versions.contains(ApiVersion(prefix.api_version))) {
        return Partial::Done(false);
    }
    let Some(length) = bytes[REQUEST_FIXED_LEN..].first_chunk().map(|b| i16::from_be_bytes(*b)) else {
        return Partial::NeedMore;
    };
    Partial::Done(length >= -1 && i32::from(length.max(0)) <= size - WITH_CLIENT_ID)
}

/// Whether an answer to SaslAuthenticate carries no error, as far as its start is there. `body` begins behind the size
/// field. With mechanisms of several rounds that is true of each round that the broker goes along with.
#[must_use]
pub fn is_accepted(version: ApiVersion, body: &[u8]) -> bool {
    let flexible = api::spec(ApiKey::SASL_AUTHENTICATE).is_some_and(|spec| spec.is_flexible(version));
    let mut r = Reader::new(body, flexible);
    r.skip_response_header().and_then(|()| r.i16()) == Ok(0)
}

#[cfg(test)]
mod tests;
