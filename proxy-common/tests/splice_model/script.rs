// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! What client and broker say to each other: the oracle. Which bytes each must receive follows from the script alone,
//! whatever way they take.

use proxy_common::splice::notes::RING;
use proxy_common::splice::policy::{FORWARD, Policy, Rule, SMALL_ANSWERS_LOCAL};

use crate::net::Rng;

/// API keys as they are used here.
pub(crate) const PRODUCE: u16 = 0;
pub(crate) const FETCH: u16 = 1;
pub(crate) const METADATA: u16 = 3;
pub(crate) const API_VERSIONS: u16 = 18;
/// Requests that the daemon makes up.
pub(crate) const OWN: u16 = 19;

/// Answers to Fetch below this are the daemon's, if the policy says so.
pub(crate) const SMALL_ANSWER: u32 = 60;
/// Versions of Fetch above it are the daemon's.
pub(crate) const FETCH_CAP: u16 = 15;

/// What is special about a request and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Fetch; forwarded both ways.
    Fetch,
    /// Fetch above the cap: the daemon passes it on, and changes the answer.
    NewFetch,
    /// Produce whose answer needs no look, or is clean.
    Produce,
    /// Produce whose answer the daemon changes.
    FailedProduce,
    /// Produce without an answer.
    SilentProduce,
    /// The daemon changes the request and the answer.
    Metadata,
    /// The daemon answers alone.
    ApiVersions,
}

/// A request and what becomes of it.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    /// As the client sends it.
    pub(crate) request: Vec<u8>,
    /// As the broker receives it, if it does.
    pub(crate) for_broker: Option<Vec<u8>>,
    /// As the broker sends it, if it does.
    pub(crate) answer: Option<Vec<u8>>,
    /// As the client receives it, if it does.
    pub(crate) for_client: Option<Vec<u8>>,
}

/// How a script is made.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) exchanges: usize,
    /// Most bytes of filler in a request or answer.
    pub(crate) largest: u64,
    /// Per mille of requests that are the daemon's.
    pub(crate) local: u32,
    /// Small Fetch answers are the daemon's.
    pub(crate) small_answers_local: bool,
}

impl Shape {
    /// The policy under which the kernel runs.
    pub(crate) fn policy(&self) -> Policy {
        let mut policy = Policy { max_frame: 1 << 20, small_answer: SMALL_ANSWER, in_flight: RING, ..Policy::NOTHING };
        policy.rules[usize::from(PRODUCE)] = Rule { flags: FORWARD, min_version: 3, max_version: 13 };
        let small = if self.small_answers_local { SMALL_ANSWERS_LOCAL } else { 0 };
        policy.rules[usize::from(FETCH)] =
            Rule { flags: FORWARD | small, min_version: 4, max_version: FETCH_CAP as u8 };
        policy
    }

    /// The exchanges of a seed.
    pub(crate) fn script(&self, rng: &mut Rng) -> Vec<Exchange> {
        (0..self.exchanges).map(|nth| self.exchange(nth as u32, rng)).collect()
    }

    fn exchange(&self, nth: u32, rng: &mut Rng) -> Exchange {
        let local = rng.chance(self.local);
        let kind = match (local, rng.below(10)) {
            (true, 0..=4) => Kind::Metadata,
            (true, 5..=6) => Kind::ApiVersions,
            (true, 7) => Kind::SilentProduce,
            (true, 8) => Kind::FailedProduce,
            (true, _) => Kind::NewFetch,
            (false, 0..=5) => Kind::Fetch,
            (false, _) => Kind::Produce,
        };
        let bytes = self.filler(rng);
        let answer = self.filler(rng);
        match kind {
            Kind::Fetch | Kind::NewFetch => {
                let version = if kind == Kind::Fetch { 4 + rng.below(12) as u16 } else { FETCH_CAP + 1 };
                let request = frame(&request_header(FETCH, version, nth, Some(7)), &bytes);
                let answer = frame(&nth.to_be_bytes(), &answer);
                let small = self.small_answers_local && answer.len() < 4 + SMALL_ANSWER as usize;
                let changed = kind == Kind::NewFetch || small;
                let for_client = if changed { rewritten_answer(&answer) } else { answer.clone() };
                let for_broker = Some(request.clone());
                Exchange { request, for_broker, answer: Some(answer), for_client: Some(for_client) }
            }
            Kind::Produce | Kind::FailedProduce | Kind::SilentProduce => self.produce(kind, nth, bytes, rng),
            Kind::Metadata => {
                let request = frame(&request_header(METADATA, 12, nth, Some(7)), &bytes);
                let answer = frame(&nth.to_be_bytes(), &answer);
                let (for_broker, for_client) = (rewritten_request(&request), rewritten_answer(&answer));
                let (for_broker, for_client) = (Some(for_broker), Some(for_client));
                Exchange { request, for_broker, answer: Some(answer), for_client }
            }
            Kind::ApiVersions => {
                let request = frame(&request_header(API_VERSIONS, 3, nth, Some(7)), &bytes);
                let for_client = Some(own_answer(&request));
                Exchange { request, for_broker: None, answer: None, for_client }
            }
        }
    }

    fn produce(&self, kind: Kind, nth: u32, bytes: Vec<u8>, rng: &mut Rng) -> Exchange {
        let hints = kind == Kind::FailedProduce;
        let versions: &[u16] = if hints { &[10, 11, 12, 13] } else { &[3, 8, 9, 10, 12, 13] };
        let version = versions[rng.below(versions.len() as u64) as usize];
        let id = match rng.below(8) {
            0 => None,
            1 => Some(300),
            _ => Some(rng.below(40) as usize),
        };
        let mut header = request_header(PRODUCE, version, nth, id);
        header.extend_from_slice(if version >= 9 { &[0, 0] } else { &[0xff, 0xff] });
        let acks: i16 = if kind == Kind::SilentProduce { 0 } else { -1 };
        header.extend_from_slice(&acks.to_be_bytes());
        let request = frame(&header, &bytes);
        let for_broker = Some(request.clone());
        if kind == Kind::SilentProduce {
            return Exchange { request, for_broker, answer: None, for_client: None };
        }
        let partitions = 1 + rng.below(4) as u8;
        let answer = frame(&nth.to_be_bytes(), &produce_answer(version, partitions, hints));
        let for_client = Some(if hints { rewritten_answer(&answer) } else { answer.clone() });
        Exchange { request, for_broker, answer: Some(answer), for_client }
    }

    fn filler(&self, rng: &mut Rng) -> Vec<u8> {
        let most = match rng.below(10) {
            0..=5 => 200,
            6..=8 => 4_000,
            _ => self.largest,
        };
        let length = rng.below(most.min(self.largest) + 1) as usize;
        let mut own = rng.fork();
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            bytes.extend_from_slice(&own.next().to_le_bytes());
        }
        bytes.truncate(length);
        bytes
    }
}

/// A frame of these parts, with its size in front.
pub(crate) fn frame(header: &[u8], body: &[u8]) -> Vec<u8> {
    let mut frame = ((header.len() + body.len()) as u32).to_be_bytes().to_vec();
    frame.extend_from_slice(header);
    frame.extend_from_slice(body);
    frame
}

/// Key, version, correlation id and a client id of so many bytes (`None`: null). Tagged fields, where there are any, are
/// left to the caller.
pub(crate) fn request_header(api_key: u16, version: u16, correlation: u32, id: Option<usize>) -> Vec<u8> {
    let mut header = api_key.to_be_bytes().to_vec();
    header.extend_from_slice(&version.to_be_bytes());
    header.extend_from_slice(&correlation.to_be_bytes());
    header.extend_from_slice(&id.map_or(-1, |n| n as i16).to_be_bytes());
    header.resize(header.len() + id.unwrap_or(0), b'c');
    header
}

/// The body behind the correlation id; with `hints` one partition has an error.
fn produce_answer(version: u16, partitions: u8, hints: bool) -> Vec<u8> {
    if version < 9 {
        return vec![0x11; 40];
    }
    let mut body = vec![0, 2];
    if version >= 13 {
        body.extend_from_slice(&[9; 16]);
    } else {
        body.extend_from_slice(&[3, b't', b'x']);
    }
    body.push(partitions + 1);
    for partition in 0..partitions {
        body.extend_from_slice(&u32::from(partition).to_be_bytes());
        let failed = hints && partition == 0;
        body.extend_from_slice(if failed { &[0, 6] } else { &[0, 0] });
        body.extend_from_slice(&[partition; 24]);
        body.extend_from_slice(&[1, 0, 0]);
    }
    body.extend_from_slice(&[0, 0, 0, 0, 0, 0]);
    body
}

/// What the daemon makes of a request that it changes: shorter if it can be, else longer.
pub(crate) fn rewritten_request(request: &[u8]) -> Vec<u8> {
    let body = &request[4..];
    if body.len() > 40 { frame(&body[..body.len() - 5], &[]) } else { frame(body, b"more") }
}

/// What the daemon makes of an answer that it changes.
pub(crate) fn rewritten_answer(answer: &[u8]) -> Vec<u8> {
    let body = &answer[4..];
    let more = answer.len() % 97 + 1;
    if body.len() > 100 && more.is_multiple_of(3) {
        frame(&body[..body.len() - 30], &[])
    } else {
        frame(body, &vec![0xa5; more])
    }
}

/// What the daemon answers alone.
pub(crate) fn own_answer(request: &[u8]) -> Vec<u8> {
    frame(&request[8..12], &vec![0x5a; request.len() % 50])
}
