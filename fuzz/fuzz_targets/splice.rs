//! The splice's frame walk: any payload has an answer, and what it forwards to the broker is what the daemon would read
//! the same way.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proxy_common::frame::{read_request_prefix, read_size};
use proxy_common::produce::is_clean_answer;
use proxy_common::request::{Partial, produce_acks};
use proxy_common::splice::arm::Armed;
use proxy_common::splice::notes::{Kind, Note, Notes, RING};
use proxy_common::splice::policy::{FORWARD, Policy, Rule};
use proxy_common::splice::segment::{Arriving, Segment, Soundness};
use proxy_common::splice::seq::{InLocal, InWire, OutLocal, OutWire};
use proxy_common::splice::state::{Dir, Origin, Side};
use proxy_common::splice::walk::{Survey, survey};

fn walked(side: Side, payload: &[u8], notes: &Notes) -> Survey {
    let origin = Origin {
        rcv_nxt: 1,
        unread: 0,
        write_seq: 1,
        unacked: 0,
        x_scale: 0,
        y_scale: 0,
        x_window: 1 << 20,
        x_had_early: false,
        y_window: 1 << 20,
        y_wl: 1,
    };
    let mut policy = Policy { max_frame: 1 << 20, in_flight: RING, ..Policy::NOTHING };
    policy.rules[0] = Rule { flags: FORWARD, min_version: 3, max_version: 13 };
    policy.rules[1] = Rule { flags: FORWARD, min_version: 4, max_version: 15 };
    let p: Arriving = Segment {
        seq: InWire(1),
        ack: OutWire(1),
        window: 0,
        length: payload.len() as u32,
        flags: proxy_common::packet::ACK,
        sack_blocks: 0,
        gso: 0,
        room: u32::MAX,
        soundness: Soundness::Sound,
    };
    let armed = Armed { at: InLocal(1), sent: OutLocal(1), frames: 0, remain: 0, epoch: 0 };
    survey(&Dir::new(&origin), side, &p, Some(armed), payload, &policy, notes)
}

/// The frames that begin in the bytes, without their size fields, the last one as far as it is there.
fn frames(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut frames = vec![];
    while let Some(size) = read_size(bytes).and_then(|size| usize::try_from(size).ok()) {
        let body = &bytes[4..];
        let (frame, rest) = body.split_at(size.min(body.len()));
        frames.push(frame);
        bytes = rest;
    }
    frames
}

fuzz_target!(|input: &[u8]| {
    let Some((kind, payload)) = input.split_first() else { return };
    let notes = Notes::default();
    let requests = walked(Side::Client, payload, &notes);
    if requests.forward {
        let frames = frames(payload);
        assert_eq!(requests.frames as usize, frames.len());
        for frame in frames {
            // The walk wants key and version in the packet, the daemon's reader the correlation id too.
            let Some(prefix) = read_request_prefix(frame) else { continue };
            assert!(matches!((prefix.api_key, prefix.api_version), (0, 3..=13) | (1, 4..=15)));
            if prefix.api_key == 0 {
                assert!(matches!(produce_acks(prefix.api_version, frame), Partial::Done(acks) if acks != 0));
            }
        }
    }
    let note = Note::from_bits(u32::from(*kind));
    for index in 0..64 {
        notes.set(index, note);
    }
    let answers = walked(Side::Broker, payload, &notes);
    if answers.forward {
        let frames = frames(payload);
        assert_eq!(answers.frames as usize, frames.len());
        match note.kind {
            Kind::Produce => assert!(frames.iter().all(|frame| is_clean_answer(12, frame))),
            Kind::ProduceIds => assert!(frames.iter().all(|frame| is_clean_answer(13, frame))),
            Kind::Local | Kind::Unknown => panic!("the daemon's"),
            Kind::Plain | Kind::LocalIfSmaller => {}
        }
    }
});
