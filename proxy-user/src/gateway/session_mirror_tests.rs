//! What a session gives to the mirror of what it passes on, and how that fits what the kernel copies.

use std::sync::{Arc, Mutex, PoisonError};

use proxy_common::splice::mirror::{Head, Tally};
use proxy_common::splice::notes::{Kind, Note, Notes};
use proxy_common::splice::state::Side;

use super::session::View;
use super::session_tests::{Bench, HEARTBEAT, answer, request, view};
use super::splicing_tests::{Kernel, kernel_session};
use crate::splice::mirror::{Cause, ConnectionId, Event, Mirror, Mirrored, Tap};

const PRODUCE: i16 = 0;

/// Remembers what it is given.
#[derive(Default)]
struct Taker(Mutex<Vec<Event>>);

impl Mirrored for Taker {
    fn take(&self, _: ConnectionId, event: Event) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }
}

impl Taker {
    fn took(&self) -> Vec<Event> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A session that is mirrored.
struct Tapped {
    bench: Bench,
    taker: Arc<Taker>,
    mirror: Arc<Mirror>,
}

impl Tapped {
    fn new() -> Self {
        let (mut bench, taker, mirror) = (Bench::new(), Arc::new(Taker::default()), Mirror::new(1 << 20));
        bench.session.set_tap(Some(Tap::new(&mirror, Arc::<Taker>::clone(&taker))));
        Self { bench, taker, mirror }
    }
}

/// Produce v3 without a transactional id, with a body of so many bytes.
fn produce(correlation: i32, acks: i16, length: usize) -> Vec<u8> {
    let body = [&[0xff, 0xff][..], &acks.to_be_bytes(), &vec![correlation as u8; length]].concat();
    request(PRODUCE, 3, correlation, &body)
}

fn frame(side: Side, index: Option<u32>, bytes: &[u8]) -> Event {
    Event::Frame { side, index, frame: bytes.to_vec().into() }
}

#[test]
fn of_what_the_daemon_passes_on_produce_and_its_answers_are_given() {
    let mut tapped = Tapped::new();
    tapped.bench.client_sends(&request(HEARTBEAT, 0, 5, b"")).unwrap();
    let first = produce(6, 1, 40);
    for byte in &first {
        tapped.bench.client_sends(&[*byte]).unwrap();
    }
    assert_eq!(tapped.taker.took(), [frame(Side::Client, Some(1), &first)], "once it is whole");
    let silent = produce(7, 0, 40);
    tapped.bench.client_sends(&silent).unwrap();
    assert_eq!(tapped.taker.took(), [frame(Side::Client, None, &silent)], "it gets no answer");
    let second = produce(8, -1, 10);
    tapped.bench.client_sends(&second).unwrap();
    let answers = [answer(5, b""), answer(6, b"one"), answer(8, b"two")];
    for answer in &answers {
        tapped.bench.broker_sends(answer).unwrap();
    }
    let expected = [
        frame(Side::Client, Some(2), &second),
        frame(Side::Broker, Some(1), &answers[1]),
        frame(Side::Broker, Some(2), &answers[2]),
    ];
    assert_eq!(tapped.taker.took(), expected);
    let cut = produce(9, 1, 100);
    tapped.bench.client_sends(&cut[..60]).unwrap();
    drop(tapped.bench);
    let lost = Event::Lost { side: Side::Client, frames: 1, cause: Cause::Cut };
    assert_eq!(tapped.taker.took(), [lost, Event::Ended]);
    assert_eq!(tapped.mirror.used(), 0);
}

#[test]
fn an_answer_that_is_held_is_given_as_the_broker_sent_it() {
    let mut tapped = Tapped::new();
    // Header tags, no transactional id, acks 1; behind them what is not read here.
    let asked = request(PRODUCE, 12, 1, &[0, 0, 0, 1, 9, 9, 9]);
    tapped.bench.client_sends(&asked).unwrap();
    // An endpoint tag (KIP-951) for no node, which is taken out.
    let tagged = answer(1, &[0, 1, 0, 0, 0, 0, 1, 0, 1, 1]);
    let (start, rest) = tagged.split_at(9);
    tapped.bench.broker_sends(start).unwrap();
    tapped.bench.broker_sends(rest).unwrap();
    let expected = [frame(Side::Client, Some(0), &asked), frame(Side::Broker, Some(0), &tagged)];
    assert_eq!(tapped.taker.took(), expected);
}

#[test]
fn frames_keep_their_count_when_the_kernel_takes_over_and_gives_back() {
    let mut tapped = Tapped::new();
    tapped.bench.client_sends(&request(HEARTBEAT, 0, 0, b"")).unwrap();
    let before = produce(1, 1, 20);
    tapped.bench.client_sends(&before).unwrap();
    tapped.bench.broker_sends(&answer(0, b"")).unwrap();
    let notes = Notes::default();
    tapped.bench.session.splice(&notes);
    assert_eq!(notes.get(0), Note { kind: Kind::Plain, mirrored: true }, "its answer may be the kernel's");
    let session = kernel_session(&Kernel::new());
    tapped.bench.session.splice_tap(&session);
    assert_eq!(tapped.taker.took(), [frame(Side::Client, Some(1), &before)]);

    // The kernel passes a request on, and half of the next.
    let (second, third) = (produce(2, 1, 30), produce(3, 1, 50));
    let both = [&second[..], &third[..20]].concat();
    let head = Head {
        session: session.index(),
        generation: 1,
        frames: 1,
        mirrored: 0b11,
        begins: 2,
        length: both.len() as u32,
        total: both.len() as u32,
        ..Head::default()
    };
    let tally = Tally { packets: 1, frames: 2 };
    let left = (third.len() - 20) as u32;
    (1..3).for_each(|index| notes.set(index, Note { kind: Kind::Plain, mirrored: true }));
    tapped.bench.session.requests_resume(left, 3);
    tapped.bench.session.tap_resumes(Side::Client, tally, left, true);
    let spliced = View { notes: Some(&notes), ..view(false) };
    let fourth = produce(4, 1, 5);
    tapped.bench.client_sends_while(&[&third[20..], &fourth].concat(), &spliced).unwrap();
    assert_eq!(tapped.taker.took(), [], "the kernel's copy is read later");
    assert!(tapped.mirror.is_waiting());
    tapped.mirror.piece(0, &record(&head, &both));
    let expected = [
        frame(Side::Client, Some(2), &second),
        frame(Side::Client, Some(3), &third),
        frame(Side::Client, Some(4), &fourth),
    ];
    assert_eq!(tapped.taker.took(), expected);

    let answers = [answer(1, b"1"), answer(2, b"2"), answer(3, b"3"), answer(4, b"4")];
    for answer in &answers {
        tapped.bench.broker_sends_while(answer, &spliced).unwrap();
    }
    let expected: Vec<_> = (1..).zip(&answers).map(|(n, answer)| frame(Side::Broker, Some(n), answer)).collect();
    assert_eq!(tapped.taker.took(), expected, "also those that only the kernel saw the request of");
}

#[test]
fn the_rest_of_a_request_without_an_answer_is_not_the_kernels() {
    let mut tapped = Tapped::new();
    tapped.bench.session.splice(&Notes::default());
    for (acks, left) in [(0, None), (1, Some((1, 60)))] {
        let frame = produce(1, acks, 100);
        tapped.bench.client_sends(&frame[..frame.len() - 60]).unwrap();
        tapped.bench.at_broker();
        assert_eq!(tapped.bench.session.requests_at(&tapped.bench.requests), left, "acks {acks}");
        tapped.bench.client_sends(&frame[frame.len() - 60..]).unwrap();
        tapped.bench.at_broker();
        assert!(tapped.bench.session.requests_at(&tapped.bench.requests).is_some());
    }
}

#[test]
fn what_the_kernel_could_not_copy_is_given_up_after_a_while() {
    use std::time::{Duration, Instant};
    let mut tapped = Tapped::new();
    tapped.bench.session.splice(&Notes::default());
    let session = kernel_session(&Kernel::new());
    tapped.bench.session.splice_tap(&session);
    tapped.bench.session.requests_resume(0, 3);
    tapped.bench.session.tap_resumes(Side::Client, Tally { packets: 2, frames: 3 }, 0, false);
    let now = Instant::now();
    tapped.mirror.look(now);
    tapped.mirror.look(now + Duration::from_millis(50));
    assert_eq!(tapped.taker.took(), []);
    tapped.mirror.look(now + Duration::from_millis(101));
    assert_eq!(tapped.taker.took(), [Event::Lost { side: Side::Client, frames: 3, cause: Cause::Ring }]);
    tapped.mirror.look(now + Duration::from_millis(102));
    assert!(!tapped.mirror.is_waiting());
    drop(tapped.bench);
    assert_eq!(tapped.taker.took(), [], "the kernel may still pass something on");
    assert!(tapped.mirror.is_waiting());
    (1..4).for_each(|nth| tapped.mirror.look(now + nth * Duration::from_secs(1)));
    assert_eq!(tapped.taker.took(), [Event::Ended]);
}

/// As it lies in the ring: a head, bytes, and room that is not used.
fn record(head: &Head, bytes: &[u8]) -> Vec<u8> {
    // SAFETY: a head is made of integers, without padding (`Plain`).
    let head = unsafe { std::slice::from_raw_parts(std::ptr::from_ref(head).cast::<u8>(), size_of::<Head>()) };
    [head, bytes, &[0xee; 40]].concat()
}
