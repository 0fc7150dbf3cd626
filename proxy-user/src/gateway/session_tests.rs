//! The session as a specification: what leaves, in which order, under any cut of the bytes and any timing of answers.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use proptest::prelude::*;

use super::close::CloseReason;
use super::lane::{CAPACITY, Lane, MAX_SLICES};
use super::reads::Reads;
use super::session::{Event, Session, View, World};
use crate::config::Versions;
use crate::kafka::ids::{ApiKey, NodeId};
use crate::kafka::rewrite::Addresses;
use crate::kafka::versions::Offered;

struct Nowhere;

impl Addresses for Nowhere {
    fn broker(&self, node: NodeId) -> Option<(&str, u16)> {
        Some(("gateway.test", 9200 + u16::try_from(node.0).ok()?))
    }
    fn cluster_id(&self) -> Option<&str> {
        None
    }
    fn real_cluster_id(&self) -> Option<&str> {
        None
    }
}

impl World for Nowhere {
    fn offered(&self) -> Option<Arc<Offered>> {
        None
    }
    fn addresses(&self) -> &dyn Addresses {
        self
    }
    fn began(&self, _: ApiKey) {}
    fn reads(&self) -> Option<&dyn Reads> {
        None
    }
}

pub(super) fn view(draining: bool) -> View<'static> {
    View {
        policy: Versions::Auto,
        frame: 1_000_000,
        rewrite_frame: 100_000,
        in_flight: 16,
        world: &Nowhere,
        draining,
        notes: None,
    }
}

/// The two lanes and the session between them.
pub(super) struct Bench {
    pub(super) session: Session,
    pub(super) requests: Lane,
    pub(super) answers: Lane,
}

impl Bench {
    pub(super) fn new() -> Self {
        Self { session: Session::new(), requests: Lane::default(), answers: Lane::default() }
    }

    pub(super) fn client_sends(&mut self, bytes: &[u8]) -> Result<(), CloseReason> {
        self.client_sends_while(bytes, &view(false))
    }

    pub(super) fn client_sends_while(&mut self, bytes: &[u8], view: &View<'_>) -> Result<(), CloseReason> {
        fill(&mut self.requests, bytes);
        self.session.on_request_bytes(&mut self.requests, &mut self.answers, view)
    }

    pub(super) fn broker_sends(&mut self, bytes: &[u8]) -> Result<(), CloseReason> {
        self.broker_sends_while(bytes, &view(false))
    }

    pub(super) fn broker_sends_while(&mut self, bytes: &[u8], view: &View<'_>) -> Result<(), CloseReason> {
        fill(&mut self.answers, bytes);
        self.session.on_answer_bytes(&mut self.answers, view)?;
        self.session.on_request_bytes(&mut self.requests, &mut self.answers, view)
    }

    pub(super) fn throttled(&self) -> bool {
        self.session.pause(&self.answers, 16).is_some()
    }

    pub(super) fn at_broker(&mut self) -> Vec<u8> {
        empty(&mut self.requests)
    }

    pub(super) fn at_client(&mut self) -> Vec<u8> {
        empty(&mut self.answers)
    }
}

fn fill(lane: &mut Lane, bytes: &[u8]) {
    lane.space()[..bytes.len()].copy_from_slice(bytes);
    lane.filled(bytes.len());
}

fn empty(lane: &mut Lane) -> Vec<u8> {
    let mut all = Vec::new();
    while lane.waiting() > 0 {
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let used = lane.slices(&mut slices);
        let before = all.len();
        slices[..used].iter().for_each(|slice| all.extend_from_slice(slice));
        let n = all.len() - before;
        lane.wrote(n);
    }
    all
}

/// A request frame with header v1 (or v2, whose tag buffer is then part of `body`).
pub(super) fn request(key: i16, version: i16, correlation: i32, body: &[u8]) -> Vec<u8> {
    let mut frame = BytesMut::new();
    frame.put_i32(10 + 1 + body.len() as i32);
    frame.put_i16(key);
    frame.put_i16(version);
    frame.put_i32(correlation);
    frame.put_i16(1);
    frame.put_slice(b"c");
    frame.put_slice(body);
    frame.to_vec()
}

pub(super) fn answer(correlation: i32, body: &[u8]) -> Vec<u8> {
    let mut frame = BytesMut::new();
    frame.put_i32(4 + body.len() as i32);
    frame.put_i32(correlation);
    frame.put_slice(body);
    frame.to_vec()
}

/// Produce v3: transactional_id null, acks, timeout, no topics.
fn produce(correlation: i32, acks: i16) -> Vec<u8> {
    let [high, low] = acks.to_be_bytes();
    request(0, 3, correlation, &[0xff, 0xff, high, low, 0, 0, 0x75, 0x30, 0, 0, 0, 0])
}

pub(super) const HEARTBEAT: i16 = 12;

/// An ApiVersions request of a version nobody speaks yet (flexible header: empty tag buffer), answered by the gateway.
pub(super) fn api_versions_99(correlation: i32) -> Vec<u8> {
    request(18, 99, correlation, &[0])
}

/// Correlation ids of answers.
pub(super) fn correlation_ids(bytes: &[u8]) -> Vec<i32> {
    ids_at(bytes, 0)
}

/// Correlation ids of requests, behind key and version.
fn request_ids(bytes: &[u8]) -> Vec<i32> {
    ids_at(bytes, 4)
}

fn ids_at(mut bytes: &[u8], offset: usize) -> Vec<i32> {
    let mut ids = Vec::new();
    while let Some((size, rest)) = bytes.split_first_chunk::<4>() {
        let (frame, rest) = rest.split_at(u32::from_be_bytes(*size) as usize);
        ids.push(i32::from_be_bytes(*frame[offset..].first_chunk().unwrap()));
        bytes = rest;
    }
    ids
}

#[test]
fn a_frame_that_needs_no_decision_passes_untouched_both_ways() {
    let mut bench = Bench::new();
    let frame = request(HEARTBEAT, 0, 7, b"whatever");
    bench.client_sends(&frame).unwrap();
    assert_eq!(bench.at_broker(), frame);
    let reply = answer(7, b"\0\0");
    bench.broker_sends(&reply).unwrap();
    assert_eq!(bench.at_client(), reply);
    assert_eq!(bench.session.in_flight(), 0);
}

#[test]
fn the_gateways_own_answer_waits_for_its_turn() {
    let mut bench = Bench::new();
    bench.client_sends(&request(HEARTBEAT, 0, 1, b"")).unwrap();
    bench.client_sends(&api_versions_99(2)).unwrap();
    bench.client_sends(&request(HEARTBEAT, 0, 3, b"")).unwrap();
    assert!(bench.at_client().is_empty(), "answer 2 may not overtake answer 1");
    bench.broker_sends(&answer(1, b"")).unwrap();
    assert_eq!(correlation_ids(&bench.at_client()), [1, 2]);
    bench.broker_sends(&answer(3, b"")).unwrap();
    assert_eq!(correlation_ids(&bench.at_client()), [3]);
}

#[test]
fn the_gateways_own_answer_needs_no_broker() {
    let mut bench = Bench::new();
    bench.client_sends(&api_versions_99(2)).unwrap();
    assert!(bench.at_broker().is_empty());
    // v0-shaped: correlation id, error 35.
    assert_eq!(bench.at_client()[4..10], [0, 0, 0, 2, 0, 35]);
}

#[test]
fn produce_with_acks_0_awaits_no_answer() {
    let mut bench = Bench::new();
    bench.client_sends(&[produce(1, 0), produce(2, 0), request(HEARTBEAT, 0, 3, b"")].concat()).unwrap();
    assert_eq!(bench.session.in_flight(), 1);
    bench.broker_sends(&answer(3, b"")).unwrap();
    assert_eq!(correlation_ids(&bench.at_client()), [3]);
}

#[test]
fn a_size_of_zero_is_refused_and_so_is_a_negative_one() {
    for size in [0i32, -1, i32::MIN, 7] {
        let mut bytes = size.to_be_bytes().to_vec();
        bytes.extend([0; 7]);
        let error = Bench::new().client_sends(&bytes).unwrap_err();
        assert!(matches!(error, CloseReason::BadSize { size: s } if s == size), "{error}");
    }
}

#[test]
fn a_frame_above_the_limit_is_refused_by_its_size_alone() {
    let error = Bench::new().client_sends(&1_000_001i32.to_be_bytes()).unwrap_err();
    assert!(matches!(error, CloseReason::FrameTooLarge { size: 1_000_001, .. }), "{error}");
}

#[test]
fn tls_and_http_are_named() {
    for (bytes, label) in [
        (&b"\x16\x03\x01\x02\x00\x01"[..], "tls_on_plaintext"),
        (b"\x15\x03\x03\x00\x02", "tls_on_plaintext"),
        (b"GET / HTTP/1.1\r\n", "http_on_kafka"),
    ] {
        assert_eq!(Bench::new().client_sends(bytes).unwrap_err().label(), label);
    }
}

#[test]
fn an_unknown_key_ends_the_connection_as_a_broker_would() {
    for key in [999, 10_000, -1] {
        let error = Bench::new().client_sends(&request(key, 0, 1, b"")).unwrap_err();
        assert_eq!(error.label(), "unknown_request", "{error}");
    }
}

#[test]
fn produce_v2_is_refused_when_used() {
    let frame = request(0, 2, 1, &[0, 1, 0, 0, 0x75, 0x30, 0, 0, 0, 0]);
    assert_eq!(Bench::new().client_sends(&frame).unwrap_err().label(), "unknown_request");
}

#[test]
fn an_answer_without_a_request_ends_the_connection() {
    assert_eq!(Bench::new().broker_sends(&answer(1, b"")).unwrap_err().label(), "unsolicited_answer");
}

#[test]
fn an_answer_to_another_request_than_the_oldest_ends_the_connection() {
    let mut bench = Bench::new();
    bench.client_sends(&[request(HEARTBEAT, 0, 1, b""), request(HEARTBEAT, 0, 2, b"")].concat()).unwrap();
    assert_eq!(bench.broker_sends(&answer(2, b"")).unwrap_err().label(), "correlation");
}

#[test]
fn the_limit_of_requests_in_flight_holds_back_the_rest_until_an_answer_leaves() {
    let mut bench = Bench::new();
    let frames: Vec<u8> = (0..20).flat_map(|id| request(HEARTBEAT, 0, id, b"")).collect();
    bench.client_sends(&frames).unwrap();
    assert!(bench.throttled());
    assert_eq!(request_ids(&bench.at_broker()), (0..16).collect::<Vec<_>>());
    bench.broker_sends(&[answer(0, b""), answer(1, b"")].concat()).unwrap();
    assert_eq!(request_ids(&bench.at_broker()), [16, 17]);
}

#[test]
fn a_pause_ends_with_the_answer_even_when_nothing_more_had_been_read() {
    let mut bench = Bench::new();
    let frames: Vec<u8> = (0..16).flat_map(|id| request(HEARTBEAT, 0, id, b"")).collect();
    bench.client_sends(&frames).unwrap();
    assert!(bench.throttled(), "16 are in flight, and no byte of a 17th has come");
    bench.at_broker();
    bench.broker_sends(&answer(0, b"")).unwrap();
    assert!(!bench.throttled());
}

#[test]
fn a_header_cut_by_the_end_of_the_buffer_is_only_late() {
    let mut bench = Bench::new();
    let next = produce(2, 1);
    for there in 1..next.len() {
        let first = request(HEARTBEAT, 0, 1, &vec![0; CAPACITY - there - 15]);
        let bytes = [&first, &next[..there]].concat();
        assert_eq!(bytes.len(), CAPACITY);
        bench.client_sends(&bytes).unwrap_or_else(|e| panic!("{there} bytes of the next header: {e}"));
        let mut got = bench.at_broker();
        bench.client_sends(&next[there..]).unwrap();
        got.extend(bench.at_broker());
        assert!(got == [&first[..], &next].concat());
        bench.broker_sends(&[answer(1, b""), answer(2, b"")].concat()).unwrap();
        bench.at_client();
    }
}

#[test]
fn a_header_longer_than_the_buffer_is_malformed() {
    // Produce v9 whose header has a tagged field of 128 KiB.
    let mut frame = request(0, 9, 1, &[1, 0, 0x80, 0x80, 0x08]);
    frame[..4].copy_from_slice(&900_000i32.to_be_bytes());
    frame.resize(CAPACITY, 0);
    let error = Bench::new().client_sends(&frame).unwrap_err();
    assert_eq!(error.label(), "malformed_request", "{error}");
}

/// Answers that the client doesn't take stop what asks for more: the gateway's own ones.
#[test]
fn own_answers_that_are_not_taken_hold_back_the_requests_behind_them() {
    let mut bench = Bench::new();
    for _ in 0..CAPACITY / 10 {
        if bench.throttled() {
            break;
        }
        bench.client_sends(&api_versions_99(1)).unwrap();
    }
    assert!(bench.throttled(), "{} bytes wait for the client", bench.answers.waiting());
    assert!(bench.answers.waiting() < 2 * CAPACITY);
    assert!(!bench.at_client().is_empty());
    assert!(!bench.throttled());
}

/// The same where the broker's answers are rewritten, so that they are no longer in the buffer they were read into.
#[test]
fn rewritten_answers_that_are_not_taken_hold_back_the_broker() {
    let metadata = |id| request(3, 0, id, &[0, 0, 0, 0]);
    let told = |id| answer(id, b"\0\0\0\x01\0\0\0\x01\0\x01h\0\0\x23\x84\0\0\0\0");
    let mut bench = Bench::new();
    let mut taken = 0;
    while bench.answers.has_space() && !bench.throttled() {
        taken += 1;
        assert!(taken < 10_000, "{} bytes wait for the client", bench.answers.waiting());
        bench.client_sends(&metadata(taken)).unwrap();
        bench.at_broker();
        bench.broker_sends(&told(taken)).unwrap();
    }
    assert!(bench.answers.waiting() < 2 * CAPACITY);
    assert_eq!(correlation_ids(&bench.at_client()), (1..=taken).collect::<Vec<_>>());
    assert!(bench.answers.has_space());
}

#[test]
fn answers_left_in_the_buffer_for_want_of_room_follow_once_there_is_some() {
    let metadata = |id| request(3, 0, id, &[0, 0, 0, 0]);
    // One broker with a short name, listed many times, becomes four times as long.
    let told = |id| {
        let brokers: Vec<u8> = b"\0\0\0\x01\0\0\0\0\x23\x84".repeat(3000);
        answer(id, &[&3000i32.to_be_bytes()[..], &brokers, &[0; 4]].concat())
    };
    let mut bench = Bench::new();
    let questions: Vec<u8> = (1..=12).flat_map(metadata).collect();
    bench.client_sends(&questions).unwrap();
    bench.at_broker();
    let mut bytes = Vec::new();
    for id in 1..=12 {
        for piece in told(id).chunks(5000) {
            while !bench.answers.has_space() {
                bytes.extend(bench.at_client());
                bench.broker_sends(&[]).unwrap();
            }
            let there = bench.answers.space().len().min(piece.len());
            bench.broker_sends(&piece[..there]).unwrap();
            bytes.extend(if there < piece.len() { bench.at_client() } else { Vec::new() });
            bench.broker_sends(&piece[there..]).unwrap();
            assert!(bench.answers.waiting() < 3 * CAPACITY);
        }
    }
    while bench.session.in_flight() > 0 || bench.answers.waiting() > 0 {
        bytes.extend(bench.at_client());
        bench.broker_sends(&[]).unwrap();
    }
    assert_eq!(correlation_ids(&bytes), (1..=12).collect::<Vec<_>>());
}

#[test]
fn a_drain_finishes_the_frame_that_was_begun_and_begins_no_other() {
    let mut bench = Bench::new();
    let frames = [request(HEARTBEAT, 0, 1, b"abcdef"), request(HEARTBEAT, 0, 2, b"")].concat();
    bench.client_sends(&frames[..18]).unwrap();
    bench.client_sends_while(&frames[18..], &view(true)).unwrap();
    assert_eq!(request_ids(&bench.at_broker()), [1]);
    assert!(!bench.session.at_rest());
    bench.broker_sends(&answer(1, b"")).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(correlation_ids(&bench.at_client()), [1]);
}

#[test]
fn the_first_request_names_the_client() {
    let mut bench = Bench::new();
    bench.client_sends(&request(HEARTBEAT, 0, 1, b"")).unwrap();
    assert!(bench.session.take_events().any(|event| event == Event::ClientId("c".into())));
}

#[test]
fn negative_and_repeated_correlation_ids_are_the_clients_business() {
    let mut bench = Bench::new();
    for id in [i32::MIN, -1, i32::MAX, i32::MAX] {
        bench.client_sends(&request(HEARTBEAT, 0, id, b"")).unwrap();
    }
    for id in [i32::MIN, -1, i32::MAX, i32::MAX] {
        bench.broker_sends(&answer(id, b"x")).unwrap();
    }
    assert_eq!(correlation_ids(&bench.at_client()), [i32::MIN, -1, i32::MAX, i32::MAX]);
}

#[test]
fn handshake_v0_is_followed_by_raw_tokens_and_then_by_requests() {
    let mut bench = Bench::new();
    let handshake = request(17, 0, 1, b"\0\x05PLAIN");
    bench.client_sends(&handshake).unwrap();
    assert_eq!(bench.at_broker(), handshake);
    let told = answer(1, b"\0\0\0\0\0\x01\0\x05PLAIN");
    bench.broker_sends(&told).unwrap();
    assert_eq!(bench.at_client(), told);
    let token = b"\0\0\0\x0d\0alice\0secret";
    bench.client_sends(token).unwrap();
    assert_eq!(bench.at_broker(), token);
    bench.broker_sends(&[0, 0, 0, 0]).unwrap();
    assert_eq!(bench.at_client(), [0, 0, 0, 0]);
    let next = request(HEARTBEAT, 0, 2, b"");
    bench.client_sends(&next).unwrap();
    assert_eq!(bench.at_broker(), next);
    bench.broker_sends(&answer(2, b"")).unwrap();
    assert_eq!(correlation_ids(&bench.at_client()), [2]);
}

#[derive(Clone, Debug)]
enum Kind {
    Pass(Vec<u8>, Vec<u8>),
    Acks0,
    Acks1(Vec<u8>),
    Own,
}

fn kind() -> impl Strategy<Value = Kind> {
    let bytes = || prop_oneof![3 => prop::collection::vec(any::<u8>(), 0..60), 1 => prop::collection::vec(any::<u8>(), 0..9000)];
    prop_oneof![
        4 => (bytes(), bytes()).prop_map(|(question, reply)| Kind::Pass(question, reply)),
        1 => Just(Kind::Acks0),
        2 => bytes().prop_map(Kind::Acks1),
        1 => Just(Kind::Own),
    ]
}

proptest! {
    /// Whatever the requests, however the bytes are cut on both sides, and whenever answers come: the broker gets
    /// exactly what the client sent (less what the gateway answers), the client gets every answer once, in the order of
    /// its requests.
    #[test]
    fn order_and_bytes_hold_under_any_cut_and_any_timing(
        kinds in prop::collection::vec(kind(), 1..40),
        cuts in prop::collection::vec((1usize..4000, any::<bool>()), 1..400),
    ) {
        let mut sent = Vec::new();
        let mut expected_broker: Vec<u8> = Vec::new();
        let mut replies = VecDeque::new();
        let mut expected_client: Vec<Option<Vec<u8>>> = Vec::new();
        for (id, kind) in kinds.iter().enumerate() {
            let id = id as i32;
            match kind {
                Kind::Pass(question, reply) => {
                    let frame = request(HEARTBEAT, 0, id, question);
                    sent.extend(&frame);
                    expected_broker.extend(&frame);
                    replies.push_back((frame.len(), answer(id, reply)));
                    expected_client.push(Some(answer(id, reply)));
                }
                Kind::Acks0 | Kind::Acks1(_) => {
                    let frame = produce(id, i16::from(!matches!(kind, Kind::Acks0)));
                    sent.extend(&frame);
                    expected_broker.extend(&frame);
                    if let Kind::Acks1(reply) = kind {
                        replies.push_back((frame.len(), answer(id, reply)));
                        expected_client.push(Some(answer(id, reply)));
                    } else {
                        replies.push_back((frame.len(), Vec::new()));
                    }
                }
                Kind::Own => {
                    sent.extend(api_versions_99(id));
                    expected_client.push(None);
                }
            }
        }

        let mut bench = Bench::new();
        let (mut broker_got, mut client_got): (Vec<u8>, Vec<u8>) = (Vec::new(), Vec::new());
        let (mut sent_to, mut on_the_way) = (0, Vec::new());
        let mut handled = 0;
        let mut cuts = cuts.iter().cycle();
        let mut rounds = 0;
        while client_got.len() < usize::MAX {
            rounds += 1;
            prop_assert!(rounds < 200_000, "no progress");
            let &(n, from_client) = cuts.next().unwrap();
            if (from_client || on_the_way.is_empty()) && sent_to < sent.len() && !bench.throttled() {
                let n = n.min(sent.len() - sent_to);
                bench.client_sends(&sent[sent_to..sent_to + n]).map_err(|e| TestCaseError::fail(e.to_string()))?;
                sent_to += n;
            } else if !on_the_way.is_empty() {
                let rest = on_the_way.split_off(n.min(on_the_way.len()));
                let piece = std::mem::replace(&mut on_the_way, rest);
                bench.broker_sends(&piece).map_err(|e| TestCaseError::fail(e.to_string()))?;
            }
            broker_got.extend(bench.at_broker());
            client_got.extend(bench.at_client());
            // The broker answers what it has got whole.
            while let Some((len, reply)) = replies.front() {
                if broker_got.len() < handled + len {
                    break;
                }
                handled += len;
                on_the_way.extend(reply);
                replies.pop_front();
            }
            if sent_to == sent.len() && replies.is_empty() && on_the_way.is_empty() {
                break;
            }
        }
        client_got.extend(bench.at_client());
        broker_got.extend(bench.at_broker());
        prop_assert!(broker_got == expected_broker);
        prop_assert_eq!(bench.session.in_flight(), 0);
        let mut rest = Bytes::from(client_got);
        for expected in expected_client {
            let size = u32::from_be_bytes(*rest.first_chunk::<4>().unwrap()) as usize + 4;
            let frame = rest.split_to(size);
            if let Some(expected) = expected {
                prop_assert!(frame == expected);
            } else {
                prop_assert_eq!(&frame[8..10], [0, 35]);
            }
        }
        prop_assert!(rest.is_empty());
    }
}
