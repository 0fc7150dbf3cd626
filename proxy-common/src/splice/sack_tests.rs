// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
use super::*;

/// 100 bytes were forwarded before the segment, which is [5000, 5300) in W, [8000, 8300) in V, 4900 in L, 7900 in S.
fn map(local: bool) -> Map {
    let local = if local { u32::MAX } else { 0 };
    Map { pv: 8_000, v0: 8_300, k: 400, k_old: 100, fwd: 3_000, lpos: 4_900, local }
}

/// In offsets of V from 8000, S from 7900, W from 5000, L from 4900; `None` is the empty block.
fn for_y(local: bool, left: i32, right: i32, ack: i32) -> Option<(i32, i32)> {
    let at = |base: u32, offset: i32| base.wrapping_add_signed(offset);
    let (l, r) = map(local).for_y(OutWire(at(8_000, left)), OutWire(at(8_000, right)), OutLocal(at(7_900, ack)));
    shown(l.0, r.0, 7_900, ack)
}

fn for_x(local: bool, left: i32, right: i32, came_with: i32, ack: i32) -> Option<(i32, i32)> {
    let at = |base: u32, offset: i32| base.wrapping_add_signed(offset);
    let (came_with, ack_x) = (OutWire(at(8_000, came_with)), InWire(at(5_000, ack)));
    let (l, r) = map(local).for_x(OutWire(at(8_000, left)), OutWire(at(8_000, right)), came_with, ack_x);
    shown(l.0, r.0, 5_000, ack)
}

fn of_x(local: bool, left: i32, right: i32, came_with: i32, ack: i32) -> Option<(i32, i32)> {
    let at = |base: u32, offset: i32| base.wrapping_add_signed(offset);
    let (came_with, ack_x) = (InLocal(at(4_900, came_with)), InWire(at(5_000, ack)));
    let (l, r) = map(local).of_x(InLocal(at(4_900, left)), InLocal(at(4_900, right)), came_with, ack_x);
    shown(l.0, r.0, 5_000, ack)
}

fn shown(left: u32, right: u32, base: u32, ack: i32) -> Option<(i32, i32)> {
    let at = |n: u32| n.wrapping_sub(base) as i32;
    if left == right {
        assert_eq!(at(left), ack, "an empty block lies at the acknowledgment");
        return None;
    }
    Some((at(left), at(right)))
}

#[test]
fn ys_blocks_for_y_are_of_what_y_sent() {
    // LOCAL, left, right, y's acknowledgment, what y is shown.
    let cases = [
        ("before the segment", true, -50, -20, -80, Some((-50, -20))),
        ("up to it", false, -50, 0, -80, Some((-50, 0))),
        ("within: not y's", true, 20, 200, 0, None),
        ("behind", true, 350, 380, 0, Some((50, 80))),
        ("from within to behind", true, 100, 340, -10, Some((0, 40))),
        ("the same when y was acknowledged up to the point", true, 100, 340, 0, None),
        ("in PEER nothing of y is behind", false, 350, 380, 0, None),
        ("at the acknowledgment: would be reneging", true, 350, 380, 50, None),
    ];
    for (what, local, left, right, ack, expected) in cases {
        assert_eq!(for_y(local, left, right, ack), expected, "{what}");
    }
}

#[test]
fn ys_blocks_for_x_are_of_the_segment() {
    let cases = [
        ("within", true, 50, 100, 10, 10, Some((50, 100))),
        ("within, in PEER without an end", false, 250, 900, 10, 10, Some((250, 900))),
        ("from before", true, -50, 100, -60, 0, None),
        ("from before, acknowledged less", true, -50, 100, -60, -1, Some((0, 100))),
        ("over its end", true, 250, 900, 10, 10, Some((250, 300))),
        ("behind", true, 300, 400, 10, 10, None),
        ("before", true, -50, -10, -60, 0, None),
        ("old, of an acknowledgment that came late", true, 20, 30, 10, 40, None),
        ("a duplicate report", true, 20, 30, 60, 60, Some((20, 30))),
        ("at the acknowledgment", true, 10, 30, 10, 10, None),
    ];
    for (what, local, left, right, came_with, ack, expected) in cases {
        assert_eq!(for_x(local, left, right, came_with, ack), expected, "{what}");
    }
}

#[test]
fn xs_blocks_for_x_lie_around_the_segment() {
    let cases = [
        ("before it", true, -60, -20, -80, -80, Some((-60, -20))),
        ("behind it", true, 20, 60, 0, 0, Some((320, 360))),
        ("across the point", true, -20, 60, -40, -40, Some((300, 360))),
        ("behind, while the acknowledgment is held back", true, 20, 60, 0, 120, Some((320, 360))),
        ("in PEER x has nothing behind", false, 20, 60, 0, 0, None),
        ("old", true, 20, 60, 10, 370, None),
        ("a duplicate report", true, 20, 60, 70, 370, Some((320, 360))),
        ("at the acknowledgment", true, 20, 60, 0, 320, None),
    ];
    for (what, local, left, right, came_with, ack, expected) in cases {
        assert_eq!(of_x(local, left, right, came_with, ack), expected, "{what}");
    }
}

#[test]
fn blocks_are_mapped_across_the_wrap() {
    let pv = 0u32.wrapping_sub(100);
    let map = Map { pv, v0: 200, k: 300, k_old: 0, fwd: 50, lpos: 10, local: u32::MAX };
    let (l, r) = map.for_x(OutWire(pv.wrapping_add(20)), OutWire(50), OutWire(pv), InWire(pv.wrapping_sub(50)));
    assert_eq!((l.0, r.0), (pv.wrapping_sub(30), 0));
    let (l, r) = map.for_y(OutWire(250), OutWire(300), OutLocal(0u32.wrapping_sub(100)));
    assert_eq!((l.0, r.0), (0u32.wrapping_sub(50), 0));
}
