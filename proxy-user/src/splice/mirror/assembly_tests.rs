use std::collections::VecDeque;

use bytes::Bytes;
use proptest::prelude::*;
use proptest::sample::Index;
use proxy_common::splice::mirror::LARGEST;

use super::*;
use crate::splice::mirror::Cause;

const Q: Side = Side::Client;

/// A frame of so many bytes, told from all others.
fn frame(number: u32, length: u32) -> Vec<u8> {
    let mut frame = (length - 4).to_be_bytes().to_vec();
    frame.extend((0..length - 4).map(|n| (number.wrapping_mul(31).wrapping_add(n * 7) >> 1) as u8));
    frame
}

/// A packet's pieces.
#[derive(Clone, Debug)]
struct Packet(Vec<(Head, Vec<u8>)>);

/// What happens, in the order in which each source sees it.
#[derive(Clone, Debug)]
enum Step {
    Local(Local),
    Kernel(Packet),
}

/// A direction's stream, and how it is passed on.
#[derive(Debug, Default)]
struct Script {
    steps: Vec<Step>,
    /// Those that are mirrored, by index.
    frames: Vec<(u32, Vec<u8>)>,
    tally: Tally,
}

/// How a stream is made: its frames' lengths and whether they are mirrored, and how far each turn goes.
#[derive(Clone, Debug)]
struct Plan {
    frames: Vec<(u32, bool)>,
    /// Bytes of a packet or a read, and whether the next one is the kernel's.
    cuts: Vec<(u32, bool)>,
}

impl Script {
    fn of(plan: &Plan) -> Self {
        let mut script = Self::default();
        let mut stream = vec![];
        let mut starts = vec![];
        for (index, (length, mirrored)) in (0..).zip(&plan.frames) {
            let bytes = frame(index, *length);
            starts.push((stream.len(), *length as usize, *mirrored));
            stream.extend_from_slice(&bytes);
            if *mirrored {
                script.frames.push((index, bytes));
            }
        }
        let (mut at, mut was_kernel) = (0, false);
        for (length, kernel) in plan.cuts.iter().cycle() {
            if at == stream.len() {
                break;
            }
            let mut end = (at + *length as usize).min(stream.len());
            // The walk takes no packet that ends within a frame's header.
            if let Some((start, ..)) = starts.iter().find(|(start, ..)| *kernel && *start < end && end < start + 8) {
                end = start + 8;
            }
            let range = at..end.min(stream.len());
            if *kernel {
                script.kernel(&stream, &starts, range.clone());
            } else {
                script.daemon(&stream, &starts, range.clone(), was_kernel);
            }
            (at, was_kernel) = (range.end, *kernel);
        }
        if was_kernel {
            let tally = script.tally;
            script.steps.push(Step::Local(Local::Resume { tally, prefix: 0 }));
        }
        script
    }

    fn daemon(&mut self, stream: &[u8], starts: &[(usize, usize, bool)], range: std::ops::Range<usize>, resumes: bool) {
        let under_way = starts.iter().find(|(start, length, _)| *start < range.start && range.start < start + length);
        if resumes {
            let prefix = under_way.map_or(0, |(start, length, _)| start + length - range.start);
            self.steps.push(Step::Local(Local::Resume { tally: self.tally, prefix: prefix as u32 }));
        }
        for (index, (start, length, mirrored)) in (0..).zip(starts) {
            let bytes = range.start.max(*start)..range.end.min(start + length);
            if !mirrored || bytes.is_empty() {
                continue;
            }
            if range.contains(start) {
                self.steps.push(Step::Local(Local::Begin { index: Some(index), length: *length as u64 }));
            }
            self.steps.push(Step::Local(Local::Bytes(Bytes::copy_from_slice(&stream[bytes]))));
        }
    }

    fn kernel(&mut self, stream: &[u8], starts: &[(usize, usize, bool)], range: std::ops::Range<usize>) {
        let under_way = starts.iter().find(|(start, length, _)| *start < range.start && range.start < start + length);
        let begun: Vec<_> = starts.iter().filter(|(start, ..)| range.contains(start)).collect();
        let mut head = Head {
            packet: self.tally.packets,
            begun: self.tally.frames,
            frames: starts.iter().filter(|(start, ..)| *start < range.start).count() as u32,
            remain: under_way.map_or(0, |(start, length, _)| start + length - range.start) as u32,
            continues: under_way.map_or(0, |(.., mirrored)| u32::from(*mirrored)),
            mirrored: (0..).zip(&begun).map(|(nth, (.., mirrored))| u64::from(*mirrored) << nth).sum(),
            begins: begun.len() as u32,
            total: range.len() as u32,
            ..Head::default()
        };
        assert!(begun.len() <= 64);
        if head.mirrored == 0 && head.continues == 0 {
            return;
        }
        self.tally.packets += 1;
        self.tally.frames += head.mirrored.count_ones();
        let mut pieces = vec![];
        for bytes in stream[range].chunks(300.min(LARGEST as usize)) {
            head.length = bytes.len() as u32;
            pieces.push((head, bytes.to_vec()));
            head.from += head.length;
        }
        self.steps.push(Step::Kernel(Packet(pieces)));
    }
}

/// What came out.
#[derive(Debug, Default)]
struct Came {
    frames: Vec<(u32, Bytes)>,
    lost: u32,
    ended: u32,
}

impl Came {
    fn event(&mut self, event: Event) {
        match event {
            Event::Frame { side, index, frame } => {
                assert_eq!(side, Q);
                self.frames.push((index.expect("answered"), frame));
            }
            Event::Lost { frames, .. } => self.lost += frames,
            Event::Ended => self.ended += 1,
        }
    }
}

/// Plays a script: `late` says how far the kernel's pieces are read behind what the daemon does, `drop` which pieces had
/// no room, `swap` which packets were overtaken.
fn play(script: &Script, late: &[Index], drop: &[(Index, Index)], swap: &[Index], room: &Room) -> Came {
    let mut kernel: Vec<Packet> = script
        .steps
        .iter()
        .filter_map(|step| match step {
            Step::Kernel(packet) => Some(packet.clone()),
            Step::Local(_) => None,
        })
        .collect();
    if !kernel.is_empty() {
        for (packet, from) in drop {
            let pieces = &mut packet.get_mut(&mut kernel).0;
            if !pieces.is_empty() {
                pieces.truncate(from.index(pieces.len()));
            }
        }
    }
    if kernel.len() > 1 {
        for at in swap {
            let at = at.index(kernel.len() - 1);
            kernel.swap(at, at + 1);
        }
    }
    let mut numbers: Vec<u32> = vec![];
    let mut came = Came::default();
    let mut assembly = Assembly::default();
    let mut ring: VecDeque<Packet> = VecDeque::new();
    let mut kernel = kernel.into_iter();
    let mut late = late.iter().cycle();
    for step in &script.steps {
        match step {
            Step::Local(local) => assembly.local(Q, local.clone(), room, &mut |event| came.event(event)),
            Step::Kernel(_) => ring.extend(kernel.next()),
        }
        // The reader reads some of what is there.
        let reads = late.next().map_or(usize::MAX, |late| late.index(3));
        for _ in 0..reads {
            let Some(packet) = ring.pop_front() else { break };
            numbers.extend(packet.0.first().map(|(head, _)| head.packet));
            for (head, bytes) in packet.0 {
                assembly.piece(head, &bytes, room, &mut |event| came.event(event));
            }
        }
    }
    for (head, bytes) in ring.into_iter().flat_map(|packet| packet.0) {
        assembly.piece(head, &bytes, room, &mut |event| came.event(event));
    }
    let end = |assembly: &mut Assembly, came: &mut Came| {
        assembly.end([script.tally, Tally::default()], room, &mut |event| came.event(event));
    };
    end(&mut assembly, &mut came);
    let mut patience = 10_000;
    while !assembly.is_over() {
        assert!(assembly.is_waiting());
        assembly.give_up(room, &mut |event| came.event(event));
        patience -= 1;
        assert!(patience > 0, "it goes on for ever: {assembly:?}");
    }
    end(&mut assembly, &mut came);
    assert_eq!(came.ended, 1);
    assert_eq!(room.used(), 0, "everything is given back");
    came
}

/// Only frames that were sent came, each once, whole and in order, and each other one was counted.
fn check(script: &Script, came: &Came) {
    let mut sent = script.frames.iter();
    for (index, frame) in &came.frames {
        let (_, bytes) = sent.find(|(sent, _)| sent == index).expect("one that was sent, and in order");
        assert!(bytes[..] == frame[..], "frame {index} is not what was sent");
    }
    assert_eq!(came.frames.len() as u32 + came.lost, script.frames.len() as u32, "each one is given or counted");
}

fn plan() -> impl Strategy<Value = Plan> {
    let length = prop_oneof![4 => 8..60u32, 2 => 60..700u32, 1 => 700..5_000u32];
    let cut = prop_oneof![2 => 1..40u32, 2 => 40..400u32, 1 => 400..3_000u32];
    let frames = prop::collection::vec((length, prop::bool::weighted(0.8)), 1..40);
    (frames, prop::collection::vec((cut, any::<bool>()), 1..12)).prop_map(|(frames, cuts)| Plan { frames, cuts })
}

fn indexes(most: usize) -> impl Strategy<Value = Vec<Index>> {
    prop::collection::vec(any::<Index>(), 0..most)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn without_loss_every_frame_comes_whatever_overtakes(plan in plan(), late in indexes(8), swap in indexes(6)) {
        let script = Script::of(&plan);
        let came = play(&script, &late, &[], &swap, &Room::new(1 << 20));
        check(&script, &came);
        prop_assert_eq!(came.lost, 0);
    }

    #[test]
    fn whatever_is_lost_only_whole_frames_come_and_the_others_are_counted(
        plan in plan(),
        late in indexes(8),
        swap in indexes(4),
        drop in prop::collection::vec(any::<(Index, Index)>(), 1..8),
    ) {
        let script = Script::of(&plan);
        check(&script, &play(&script, &late, &drop, &swap, &Room::new(1 << 20)));
    }

    #[test]
    fn without_room_frames_are_counted_and_none_is_damaged(
        plan in plan(),
        late in indexes(8),
        swap in indexes(4),
        drop in prop::collection::vec(any::<(Index, Index)>(), 0..3),
        room in 0..6_000usize,
    ) {
        let script = Script::of(&plan);
        check(&script, &play(&script, &late, &drop, &swap, &Room::new(room)));
    }
}

/// Everything in one go, for examples.
fn run(steps: Vec<Step>, last: Tally) -> Vec<Event> {
    let (room, mut events, mut assembly) = (Room::new(1 << 20), vec![], Assembly::default());
    let mut give = |event| events.push(event);
    for step in steps {
        match step {
            Step::Local(local) => assembly.local(Q, local, &room, &mut give),
            Step::Kernel(packet) => {
                packet.0.into_iter().for_each(|(head, bytes)| assembly.piece(head, &bytes, &room, &mut give));
            }
        }
    }
    assembly.end([last, Tally::default()], &room, &mut give);
    assembly.give_up(&room, &mut give);
    assembly.give_up(&room, &mut give);
    assert!(assembly.is_over());
    events
}

#[test]
fn a_frame_that_changes_hands_twice_is_one_frame() {
    let bytes = frame(7, 100);
    let head = Head { frames: 8, remain: 70, continues: 1, length: 30, total: 30, ..Head::default() };
    let tally = Tally { packets: 1, frames: 0 };
    let events = run(
        vec![
            Step::Local(Local::Begin { index: Some(7), length: 100 }),
            Step::Local(Local::Bytes(Bytes::copy_from_slice(&bytes[..30]))),
            Step::Kernel(Packet(vec![(head, bytes[30..60].to_vec())])),
            Step::Local(Local::Resume { tally, prefix: 40 }),
            Step::Local(Local::Bytes(Bytes::copy_from_slice(&bytes[60..]))),
        ],
        tally,
    );
    assert_eq!(events, [Event::Frame { side: Q, index: Some(7), frame: bytes.into() }, Event::Ended]);
}

#[test]
fn what_the_kernel_could_not_copy_is_counted_by_cause() {
    let tally = Tally { packets: 3, frames: 5 };
    let bytes = frame(9, 20);
    let last = Tally { packets: 4, frames: 6 };
    let head =
        Head { packet: 3, begun: 5, frames: 9, mirrored: 1, begins: 1, length: 20, total: 20, ..Head::default() };
    let events = run(
        vec![
            Step::Local(Local::Begin { index: None, length: 50 }),
            Step::Local(Local::Bytes(Bytes::from_static(&[0; 10]))),
            Step::Local(Local::Resume { tally, prefix: 0 }),
            Step::Kernel(Packet(vec![(head, bytes.clone())])),
            Step::Local(Local::Resume { tally: last, prefix: 0 }),
            Step::Local(Local::Begin { index: Some(10), length: 50 }),
        ],
        last,
    );
    let lost = |frames, cause| Event::Lost { side: Q, frames, cause };
    assert_eq!(
        events,
        [
            lost(1, Cause::Ring),
            lost(5, Cause::Ring),
            Event::Frame { side: Q, index: Some(9), frame: bytes.into() },
            lost(1, Cause::Cut),
            Event::Ended,
        ]
    );
}

#[test]
fn pieces_that_come_after_they_were_given_up_are_no_news() {
    let (room, mut events, mut assembly) = (Room::new(1 << 20), vec![], Assembly::default());
    let mut give = |event| events.push(event);
    let head = |packet| Head {
        packet,
        begun: packet,
        frames: packet,
        mirrored: 1,
        begins: 1,
        length: 20,
        total: 20,
        ..Head::default()
    };
    let frames = [0, 1].map(|n| frame(n, 20));
    assembly.piece(head(1), &frames[1], &room, &mut give);
    assembly.give_up(&room, &mut give);
    assembly.piece(head(0), &frames[0], &room, &mut give);
    let lost = Event::Lost { side: Q, frames: 1, cause: Cause::Ring };
    assert_eq!(events, [lost, Event::Frame { side: Q, index: Some(1), frame: frames[1].clone().into() }]);
}
