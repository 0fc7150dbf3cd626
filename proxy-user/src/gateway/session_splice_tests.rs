//! A session whose frames pass partly here and partly in the kernel. The kernel is the tests: it notes what its answers
//! belong to, and says where the daemon goes on.

use proptest::prelude::*;
use proxy_common::splice::notes::{Kind, Note, Notes};

use super::close::CloseReason;
use super::session::{Pause, View};
use super::session_tests::{Bench, HEARTBEAT, answer, api_versions_99, correlation_ids, request, view};

const PLAIN: Note = Note { kind: Kind::Plain, mirrored: false };
const METADATA: i16 = 3;

/// A spliced session: one request was passed on and answered by the daemon before.
struct Spliced {
    bench: Bench,
    notes: Notes,
}

impl Spliced {
    fn new() -> Self {
        let mut bench = Bench::new();
        bench.client_sends(&api_versions(0)).unwrap();
        assert!(!bench.session.can_splice(), "the prelude isn't over");
        bench.broker_sends(&answer(0, &[0, 35, 0, 0, 0, 0])).unwrap();
        bench.client_sends(&request(HEARTBEAT, 0, 0, b"")).unwrap();
        assert!(bench.session.can_splice());
        bench.broker_sends(&answer(0, b"")).unwrap();
        let notes = Notes::default();
        bench.session.splice(&notes);
        bench.at_broker();
        bench.at_client();
        Self { bench, notes }
    }

    fn view(&self) -> View<'_> {
        View { notes: Some(&self.notes), ..view(false) }
    }

    fn client_sends(&mut self, bytes: &[u8]) -> Result<(), CloseReason> {
        let view = View { notes: Some(&self.notes), ..view(false) };
        self.bench.client_sends_while(bytes, &view)
    }

    fn broker_sends(&mut self, bytes: &[u8]) -> Result<(), CloseReason> {
        let view = View { notes: Some(&self.notes), ..view(false) };
        self.bench.broker_sends_while(bytes, &view)
    }

    /// The kernel passes requests on, up to this index.
    fn kernel_passes(&mut self, indexes: std::ops::Range<u32>, note: Note) {
        indexes.clone().for_each(|index| self.notes.set(index, note));
        self.bench.session.requests_resume(0, indexes.end);
    }
}

/// ApiVersions v0, answered by the broker.
fn api_versions(correlation: i32) -> Vec<u8> {
    request(18, 0, correlation, b"")
}

/// An answer to Produce v12 for no topic: clean, but for the tag.
fn produce_answer(correlation: i32, tag: bool) -> Vec<u8> {
    // header tags, topics, throttle, then tags: one, NodeEndpoints (KIP-951), for no node.
    let body: &[u8] = if tag { &[0, 1, 0, 0, 0, 0, 1, 0, 1, 1] } else { &[0, 1, 0, 0, 0, 0, 0] };
    answer(correlation, body)
}

#[test]
fn an_answer_to_what_the_kernel_passed_on_is_passed_on_here_too() {
    let mut spliced = Spliced::new();
    spliced.kernel_passes(0..2, PLAIN);
    assert_eq!(spliced.bench.session.in_flight(), 2);
    let both = [answer(10, b"one"), answer(11, b"two")].concat();
    spliced.broker_sends(&both).unwrap();
    assert_eq!(spliced.bench.at_client(), both);
    assert_eq!(spliced.bench.session.in_flight(), 0);
}

#[test]
fn the_daemons_turn_begins_within_a_frame() {
    let mut spliced = Spliced::new();
    spliced.notes.set(0, PLAIN);
    spliced.bench.session.requests_resume(5, 1);
    let next = request(HEARTBEAT, 0, 8, b"next");
    spliced.client_sends(&[b"12345", &next[..]].concat()).unwrap();
    assert_eq!(spliced.bench.at_broker(), [b"12345", &next[..]].concat());
    assert_eq!(spliced.notes.get(1).kind, Kind::Plain, "noted before it went out");
    spliced.bench.session.answers_resume(3, 1);
    let reply = answer(8, b"");
    spliced.broker_sends(&[b"abc", &reply[..]].concat()).unwrap();
    assert_eq!(spliced.bench.at_client(), [b"abc", &reply[..]].concat());
    assert_eq!(spliced.bench.session.in_flight(), 0);
}

#[test]
fn an_answer_that_is_the_daemons_is_found_behind_those_that_the_kernel_passed_on() {
    let mut spliced = Spliced::new();
    spliced.kernel_passes(0..3, PLAIN);
    spliced.client_sends(&request(METADATA, 0, 3, &[0, 0, 0, 0])).unwrap();
    assert_eq!(spliced.notes.get(3).kind, Kind::Local);
    spliced.kernel_passes(4..6, PLAIN);
    spliced.bench.session.answers_resume(0, 3);
    assert_eq!(spliced.bench.session.in_flight(), 3);
    // One broker, whose address is changed, and no topic.
    let metadata = answer(3, b"\0\0\0\x01\0\0\0\x05\0\x04host\0\0\x23\x84\0\0\0\0");
    spliced.broker_sends(&metadata).unwrap();
    let told = spliced.bench.at_client();
    assert!(told.windows(12).any(|w| w == b"gateway.test"), "{told:?}");
    spliced.broker_sends(&answer(4, b"")).unwrap();
    assert_eq!(correlation_ids(&spliced.bench.at_client()), [4]);
}

#[test]
fn the_gateways_own_answer_waits_until_the_kernel_has_passed_on_those_before_it() {
    let mut spliced = Spliced::new();
    spliced.kernel_passes(0..2, PLAIN);
    spliced.bench.session.give_answers_away();
    spliced.client_sends(&api_versions_99(9)).unwrap();
    assert!(spliced.bench.session.owes());
    assert!(spliced.bench.at_client().is_empty());
    assert_eq!(spliced.bench.session.answers_at(&spliced.bench.answers), None, "no leave while something is owed");
    // The kernel passed on one of the two, and the answers were taken back.
    spliced.bench.session.answers_resume(0, 1);
    spliced.bench.session.say_own(&mut spliced.bench.answers);
    assert!(spliced.bench.at_client().is_empty());
    spliced.broker_sends(&answer(7, b"")).unwrap();
    assert_eq!(correlation_ids(&spliced.bench.at_client()), [7, 9]);
    assert_eq!(spliced.bench.session.answers_at(&spliced.bench.answers), Some((2, 0)));
}

#[test]
fn a_produce_answer_that_the_kernel_did_not_take_is_looked_at() {
    let mut spliced = Spliced::new();
    spliced.kernel_passes(0..3, Note { kind: Kind::Produce, mirrored: false });
    let clean = produce_answer(1, false);
    spliced.broker_sends(&clean).unwrap();
    assert_eq!(spliced.bench.at_client(), clean);
    let tagged = produce_answer(2, true);
    spliced.broker_sends(&tagged[..9]).unwrap();
    assert!(spliced.bench.at_client().is_empty(), "held until it is whole");
    spliced.broker_sends(&tagged[9..]).unwrap();
    assert_eq!(correlation_ids(&spliced.bench.at_client()), [2]);
    let broken = spliced.broker_sends(&answer(3, &[0, 200])).unwrap_err();
    assert!(matches!(broken, CloseReason::MalformedAnswer { .. }), "{broken}");
}

#[test]
fn an_answer_that_nobody_noted_ends_the_connection() {
    let mut spliced = Spliced::new();
    assert!(matches!(spliced.broker_sends(&answer(1, b"")).unwrap_err(), CloseReason::Unsolicited));
    let mut spliced = Spliced::new();
    spliced.bench.session.requests_resume(0, 1);
    assert!(matches!(spliced.broker_sends(&answer(1, b"")).unwrap_err(), CloseReason::Unsolicited));
}

#[test]
fn what_the_kernel_has_in_flight_counts_against_the_limit() {
    let mut spliced = Spliced::new();
    spliced.kernel_passes(0..16, PLAIN);
    assert_eq!(spliced.bench.session.pause(&spliced.bench.answers, 16), Some(Pause::InFlight));
    spliced.bench.session.answers_passed(1);
    assert_eq!(spliced.bench.session.pause(&spliced.bench.answers, 16), None);
}

#[test]
fn indexes_wrap() {
    let mut spliced = Spliced::new();
    spliced.bench.session.requests_passed(u32::MAX / 2);
    spliced.bench.session.answers_passed(u32::MAX / 2);
    for next in [u32::MAX - 1, 1] {
        spliced.bench.session.requests_passed(next);
        assert!(spliced.bench.session.in_flight() > 0);
        spliced.bench.session.answers_passed(next);
        assert_eq!(spliced.bench.session.in_flight(), 0);
    }
    spliced.client_sends(&request(HEARTBEAT, 0, 5, b"")).unwrap();
    assert_eq!(spliced.notes.get(1).kind, Kind::Plain);
    spliced.broker_sends(&answer(5, b"")).unwrap();
    assert_eq!(correlation_ids(&spliced.bench.at_client()), [5]);
}

#[test]
fn nothing_is_given_away_while_the_daemon_is_not_done() {
    let mut spliced = Spliced::new();
    assert_eq!(spliced.bench.session.requests_at(&spliced.bench.requests), Some((0, 0)));
    let frame = request(HEARTBEAT, 0, 5, b"12345678");
    spliced.client_sends(&frame[..4]).unwrap();
    assert_eq!(spliced.bench.session.requests_at(&spliced.bench.requests), None, "some bytes of a header");
    spliced.client_sends(&frame[4..20]).unwrap();
    assert_eq!(spliced.bench.session.requests_at(&spliced.bench.requests), None, "not written yet");
    spliced.bench.at_broker();
    let left = frame.len() as u32 - 20;
    assert_eq!(spliced.bench.session.requests_at(&spliced.bench.requests), Some((1, left)), "within a frame");
    spliced.client_sends(&frame[20..]).unwrap();
    spliced.client_sends(&request(17, 0, 6, b"\0\x05PLAIN")).unwrap();
    spliced.bench.at_broker();
    assert_eq!(spliced.bench.session.requests_at(&spliced.bench.requests), None, "bare tokens may come next");
}

#[derive(Clone, Copy, Debug)]
enum Asked {
    Plain,
    Held,
    Own,
}

fn asked() -> impl Strategy<Value = Asked> {
    prop_oneof![4 => Just(Asked::Plain), 1 => Just(Asked::Held), 1 => Just(Asked::Own)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whoever passes what on, in whatever turns, the client gets every answer once and in the order of its requests.
    #[test]
    fn answers_stay_in_order_whoever_passes_them_on(
        requests in prop::collection::vec((asked(), any::<bool>()), 1..60),
        pace in prop::collection::vec((0usize..4, any::<bool>()), 1..60),
    ) {
        let mut spliced = Spliced::new();
        // What the broker has to answer, and whether the kernel may pass the answer on.
        let mut owed = std::collections::VecDeque::new();
        let (mut next_request, mut next_answer) = (0u32, 0u32);
        let mut told = Vec::new();
        let mut pace = pace.into_iter().cycle();
        for (correlation, (what, by_kernel)) in (0i32..).zip(requests.iter().copied()) {
            match what {
                Asked::Plain if by_kernel => {
                    spliced.kernel_passes(next_request..next_request + 1, PLAIN);
                    owed.push_back((correlation, true));
                }
                Asked::Plain => {
                    spliced.client_sends(&request(HEARTBEAT, 0, correlation, b"")).unwrap();
                    owed.push_back((correlation, true));
                }
                Asked::Held => {
                    spliced.client_sends(&request(METADATA, 0, correlation, &[0, 0, 0, 0])).unwrap();
                    owed.push_back((correlation, false));
                }
                Asked::Own => spliced.client_sends(&api_versions_99(correlation)).unwrap(),
            }
            if !matches!(what, Asked::Own) {
                next_request += 1;
            }
            told.extend(correlation_ids(&spliced.bench.at_client()));
            let (answers, kernels) = pace.next().unwrap();
            // More than `limits.in_flight` wait at the client.
            let answers = answers.max(owed.len().saturating_sub(10));
            for _ in 0..answers {
                let Some((correlation, may_pass)) = owed.pop_front() else { break };
                let at = spliced.bench.session.answers_at(&spliced.bench.answers);
                if kernels && may_pass && at.is_some() {
                    prop_assert_eq!(at, Some((next_answer, 0)));
                    spliced.bench.session.give_answers_away();
                    told.push(correlation);
                    spliced.bench.session.answers_resume(0, next_answer + 1);
                } else {
                    let body: &[u8] = if may_pass { b"" } else { &[0; 8] };
                    spliced.broker_sends(&answer(correlation, body)).unwrap();
                    told.extend(correlation_ids(&spliced.bench.at_client()));
                }
                next_answer += 1;
            }
        }
        while let Some((correlation, may_pass)) = owed.pop_front() {
            let body: &[u8] = if may_pass { b"" } else { &[0; 8] };
            spliced.broker_sends(&answer(correlation, body)).unwrap();
            told.extend(correlation_ids(&spliced.bench.at_client()));
        }
        prop_assert_eq!(told, (0..requests.len() as i32).collect::<Vec<_>>());
        prop_assert_eq!(spliced.bench.session.in_flight(), 0);
        prop_assert!(!spliced.view().draining);
    }
}
