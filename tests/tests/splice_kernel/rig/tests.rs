//! Trials: what goes through the kernel, what comes to the daemon, and that no byte is wrong.

use std::sync::atomic::Ordering;
use std::time::Duration;

use proxy_common::flows::Count;
use proxy_common::splice::verdict::Reason;

use super::traffic::Load;
use super::world::{Outcome, Trial, attempt};
use crate::fixtures::Family;
use crate::need_splice;

const LOAD: Load =
    Load { connections: 1, depth: 4, daemons: 0, largest: 60_000, in_pieces: false, lasts: Duration::from_secs(3) };

fn report(trial: &Trial, outcome: &Outcome) {
    let Outcome { seen, relayed, traffic, turns, recalled, copied, programs } = outcome;
    let load = |n: &std::sync::atomic::AtomicU64| n.load(Ordering::Relaxed);
    eprintln!(
        "{:?} {} connections, loss {} ppm: {} frames ({} the daemon's), {} MB, {} above 150 ms; in the kernel {} MB, by \
         the daemon {} requests, {} answers, {} MB; turns of the kernel {turns:?}, {recalled} \
         taken back",
        trial.family,
        trial.load.connections,
        trial.loss,
        load(&seen.frames),
        load(&seen.daemons),
        load(&seen.bytes) / 1_000_000,
        load(&seen.slow),
        (traffic[0].bytes + traffic[1].bytes) / 1_000_000,
        load(&relayed.requests),
        load(&relayed.answers),
        load(&relayed.bytes) / 1_000_000,
    );
    let counts = [
        ("busy", Count::Busy),
        ("unchanged", Count::Unchanged),
        ("unsent", Count::Unsent),
        ("frame", Count::Judged(Reason::Frame)),
        ("hole", Count::Judged(Reason::Hole)),
        ("too large", Count::Judged(Reason::TooLarge)),
        ("raced", Count::Judged(Reason::Raced)),
        ("again", Count::Judged(Reason::Again)),
        ("straddling", Count::Judged(Reason::Straddling)),
        ("probe", Count::Judged(Reason::Probe)),
        ("bad form", Count::Judged(Reason::BadForm)),
        ("bad checksum", Count::Judged(Reason::BadChecksum)),
        ("bad sequence", Count::Judged(Reason::BadSequence)),
        ("bad ack", Count::Judged(Reason::BadAck)),
        ("withheld", Count::Judged(Reason::Withheld)),
        ("unannounced", Count::Judged(Reason::Unannounced)),
    ];
    let counted: Vec<_> = counts.iter().map(|&(what, c)| (what, programs.count(c))).filter(|(_, n)| *n > 0).collect();
    if trial.mirror.is_some() {
        eprintln!("  copied {copied:?}; {:?}", programs.copies());
    }
    eprintln!("  {counted:?}; runs in and out, and nanoseconds each: {:?}", programs.cost());
}

const TRIAL: Trial =
    Trial { family: Family::V4, load: LOAD, loss: 0, offloads: true, recalls: false, splices: true, mirror: None };

/// Runs a trial in both families, and checks what holds in every one.
fn in_both_families(trial: Trial, check: impl Fn(&Outcome)) {
    for family in [Family::V4, Family::V6] {
        let trial = Trial { family, ..trial };
        let outcome = attempt(&trial);
        report(&trial, &outcome);
        let Outcome { seen, relayed, programs, .. } = &outcome;
        assert!(seen.frames.load(Ordering::Relaxed) > 0, "{trial:?}: nothing was asked");
        assert_eq!(relayed.ended.load(Ordering::Relaxed), trial.load.connections as u64, "{trial:?}");
        for reason in [Reason::BadForm, Reason::BadChecksum, Reason::BadAck, Reason::BadReset, Reason::Unannounced] {
            assert_eq!(programs.count(Count::Judged(reason)), 0, "{trial:?}: {reason:?} of genuine traffic");
        }
        assert_eq!(programs.count(Count::Unchanged), 0, "{trial:?}");
        check(&outcome);
    }
}

/// Both took part, in many turns.
fn was_mixed(outcome: &Outcome) {
    assert!(outcome.seen.daemons.load(Ordering::Relaxed) > 0);
    assert!(outcome.turns.iter().all(|n| *n > 8), "the kernel had many turns: {:?}", outcome.turns);
    assert!(outcome.traffic.iter().all(|t| t.bytes > 0), "{:?}", outcome.traffic);
}

#[test]
fn without_leave_everything_comes_to_the_daemon() {
    need_splice!();
    let load = Load { daemons: 100, lasts: Duration::from_secs(1), ..LOAD };
    let trial = Trial { load, splices: false, ..TRIAL };
    let outcome = attempt(&trial);
    report(&trial, &outcome);
    assert_eq!((outcome.traffic[0].bytes, outcome.traffic[1].bytes), (0, 0));
    let frames = outcome.seen.frames.load(Ordering::Relaxed);
    assert_eq!(outcome.relayed.requests.load(Ordering::Relaxed), frames);
    assert_eq!(outcome.relayed.answers.load(Ordering::Relaxed), frames);
}

#[test]
fn a_connection_without_frames_of_the_daemons_stays_in_the_kernel() {
    need_splice!();
    in_both_families(TRIAL, |outcome| {
        let all = outcome.seen.bytes.load(Ordering::Relaxed);
        let spliced = outcome.traffic[0].bytes + outcome.traffic[1].bytes;
        let daemons = outcome.relayed.bytes.load(Ordering::Relaxed);
        assert!(spliced >= all - daemons, "{spliced} of {all} spliced, {daemons} by the daemon");
        assert!(daemons * 20 < all, "the daemon had {daemons} of {all} bytes");
    });
}

#[test]
fn frames_of_the_daemons_come_out_in_order_between_the_kernels() {
    need_splice!();
    let load = Load { connections: 8, depth: 8, daemons: 30, in_pieces: true, ..LOAD };
    in_both_families(Trial { load, ..TRIAL }, was_mixed);
}

#[test]
fn lost_packets_cost_time_and_no_byte() {
    need_splice!();
    // In pieces, so that there is always something behind what is lost.
    let load = Load { connections: 8, depth: 16, daemons: 10, in_pieces: true, lasts: Duration::from_secs(8), ..LOAD };
    in_both_families(Trial { load, loss: 10_000, ..TRIAL }, |outcome| {
        was_mixed(outcome);
        assert!(outcome.programs.count(Count::Judged(Reason::Hole)) > 0, "nothing was lost in the kernel's turn");
    });
}

#[test]
fn without_offloads_every_checksum_is_verified_by_the_receiver() {
    need_splice!();
    let load = Load { connections: 4, depth: 8, daemons: 10, lasts: Duration::from_secs(6), ..LOAD };
    in_both_families(Trial { load, loss: 2_000, offloads: false, ..TRIAL }, was_mixed);
}

#[test]
fn a_recall_at_any_moment_is_only_a_switch() {
    need_splice!();
    let load = Load { connections: 4, depth: 8, daemons: 10, lasts: Duration::from_secs(6), ..LOAD };
    in_both_families(Trial { load, loss: 1_000, recalls: true, ..TRIAL }, |outcome| {
        was_mixed(outcome);
        assert!(outcome.recalled > 100, "{} turns were ended", outcome.recalled);
    });
}

/// Every frame that is mirrored was given, or counted as lost.
fn all_accounted_for(outcome: &Outcome) {
    let Outcome { seen, copied, .. } = outcome;
    let mirrored = seen.frames.load(Ordering::Relaxed) - seen.daemons.load(Ordering::Relaxed);
    for side in 0..2 {
        let known = copied.frames[side] + copied.lost[side];
        assert_eq!(known, mirrored, "{side}: {copied:?}");
    }
    assert_eq!(copied.torn, 0, "{copied:?}");
}

fn nothing_lost(outcome: &Outcome) {
    all_accounted_for(outcome);
    assert_eq!(outcome.copied.lost, [0, 0], "{:?}", outcome.copied);
    assert!(outcome.programs.copies().pieces > 0, "the kernel had a part of it");
}

/// Frames of 20 bytes to 1 MB.
const MIRRORED: Load = Load {
    connections: 4,
    depth: 16,
    daemons: 30,
    largest: 1_000_000,
    in_pieces: false,
    lasts: Duration::from_secs(4),
};
const RING: u32 = 32 << 20;

#[test]
fn what_is_mirrored_comes_whole_and_exact() {
    need_splice!();
    for (depth, in_pieces, daemons) in [(1, false, 0), (4, true, 30), (16, false, 30)] {
        let load = Load { depth, in_pieces, daemons, ..MIRRORED };
        in_both_families(Trial { load, mirror: Some(RING), ..TRIAL }, nothing_lost);
    }
}

#[test]
fn loss_and_turns_taken_back_cost_the_mirror_nothing() {
    need_splice!();
    for offloads in [true, false] {
        let load = Load { in_pieces: true, daemons: 10, lasts: Duration::from_secs(6), ..MIRRORED };
        let trial = Trial { load, loss: 5_000, offloads, recalls: true, mirror: Some(RING), ..TRIAL };
        in_both_families(trial, |outcome| {
            was_mixed(outcome);
            nothing_lost(outcome);
        });
    }
}

#[test]
fn a_ring_that_is_too_small_loses_whole_frames_and_counts_them() {
    need_splice!();
    let load = Load { in_pieces: true, connections: 8, ..MIRRORED };
    in_both_families(Trial { load, loss: 1_000, mirror: Some(64 << 10), ..TRIAL }, |outcome| {
        all_accounted_for(outcome);
        let Outcome { copied, programs, .. } = outcome;
        assert!(copied.lost.iter().sum::<u64>() > 0 && programs.copies().lost > 0, "64 KiB have room for all of it?");
        assert!(copied.frames.iter().all(|n| *n > 0), "{copied:?}");
    });
}

#[test]
fn a_long_mix_of_everything() {
    need_splice!();
    harness::full_tier!();
    for (nth, largest) in [200, 3_000, 60_000, 1_500_000].into_iter().enumerate() {
        for (loss, offloads) in [(0, true), (1_000, true), (20_000, true), (2_000, false)] {
            let load = Load {
                connections: 16,
                depth: [1, 4, 32, 8][nth],
                daemons: [100, 5, 300, 20][nth],
                largest,
                in_pieces: nth % 2 == 1,
                lasts: Duration::from_secs(15),
            };
            let recalls = nth == 2;
            in_both_families(Trial { load, loss, offloads, recalls, ..TRIAL }, was_mixed);
        }
    }
}
