// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! The splice: two TCP connections whose bytes the kernel passes on, frame by frame, until one is the daemon's.
//!
//! A session has two directions with the same code. Q, requests: X is the client, x the daemon's socket to it, Y the
//! broker, y the daemon's socket to it. R, answers: the other way round. X sends, x would receive, y would send, Y
//! receives.
//!
//! ```text
//!              W              L                        S              V
//!   host X ─────────► kernel ────► x   daemon   y ────► kernel ─────────► host Y     LOCAL
//!   host X ─────────► kernel ─────────────────────────► kernel ─────────► host Y     PEER
//! ```
//!
//! # Spaces
//! The stream alternates between LOCAL segments (to x; the daemon writes to y whatever it likes) and PEER segments
//! (forwarded untouched). With k = bytes in PEER segments so far: **L = W − k and V = S + k**, the same k. [`seq`] has a
//! type for each space.
//!
//! Only the last PEER segment is remembered: [pw, w0) in W and [pv, v0) in V is one point in L, `lpos`, and one in S,
//! `s0`; k_old bytes before it, k with it. From W to V within it: fwd = pv − pw.
//!
//! ```text
//!            W:   …──── k_old ────┤pw ░░░░░░░░░░░░ w0├──── k ────…
//!            L:   …───────────────┤lpos──────────────────────────…
//!            S:   …───────────────┤s0────────────────────────────…
//!            V:   …──── k_old ────┤pv ░░░░░░░░░░░░ v0├──── k ────…
//! ```
//!
//! # States
//! ```text
//!                    arm names this epoch and point; x's, y's and Y's books are even (arm::may_open);
//!                    everything in the packet is the kernel's (walk)
//!          ┌───────────────────────────────────────────────────────────────┐
//!          │                                                               ▼
//!   ┌──────┴──────┐                                                 ┌─────────────┐ ─┐ in order, all the
//!   │ LOCAL, even │                                                 │  PEER, odd  │  │ kernel's: exp goes on
//!   │   epoch     │                                                 │   epoch     │ ◄┘
//!   └─────────────┘                                                 └──────┬──────┘
//!      ▲   ▲                                                               │
//!      │   │ a frame for the daemon or not told, a hole, FIN, RST, URG,    │
//!      │   │ too large, raced, recalled; y sends FIN or RST                │
//!      │   │                                                               ▼
//!      │   │ Y has the whole segment                             ┌────────────────────┐
//!      │   └─────────────────────────────────────────────────────┤ LOCAL, clamped: X  │
//!      │                                                         │ is told Y's ack    │
//!      └── nothing was forwarded since the switch ◄──────────────┤ until Y has v0     │
//!                                                                └────────────────────┘
//! ```
//!
//! # Invariants
//! 1. LOCAL→PEER only at a packet's start, where all ever passed to x was consumed and relayed, y has sent all that the
//!    daemon wrote, Y has acknowledged it, and y knows. So Y has everything before `pv`, always.
//! 2. PEER→LOCAL is allowed at any time, at `exp`. Whatever can't be decided goes to the daemon.
//! 3. Acknowledgments and windows on a wire are functions of the state ([`acks`]).
//! 4. No local socket is acknowledged what it did not send.
//! 5. Bytes below `w0` go where they went first, or to x as duplicates once Y has them.
//! 6. A packet that begins inside a frame says how many raw bytes (`prefix`) the daemon relays before the next start.
//! 7. Nothing of a packet that the [`gate`] refuses changes the state.
//! 8. Every byte is translated while k ≠ 0; that is the program's to see to.
//! 9. y sending below `y_lacked` proves that y was not told.
//! 10. No window shrinks: what X or y was promised stays promised, unless the one whose acknowledgment is waited for
//!     closes its window altogether (a host out of memory): a 0 is passed on as it is.
//! 11. x is given a FIN only once Y has the whole PEER segment. So a local socket that is gone has nothing left to
//!     answer for.
//!
//! # Use
//! The program parses a packet ([`segment`]), reads the arm, walks the frames outside the lock ([`walk::survey`]), and
//! under it calls [`ingress::ingress`] or [`egress::egress`]; then it carries the verdict out. The daemon gives leave
//! with [`arm::Arm::arm`] and takes it back with [`arm::Arm::disarm`] and a call of [`switch::recall`] under the lock.
//! After each read it compares [`state::Dir::epoch`] with the one it knew; if they differ, it differs by two, and the
//! kernel forwarded before these bytes: `prefix` raw bytes come first, then frame `frames` begins.

pub mod acks;
pub mod age;
pub mod answers;
pub mod arm;
pub mod egress;
pub mod forget;
pub mod gate;
pub mod ingress;
pub mod mirror;
pub mod notes;
pub mod payload;
pub mod policy;
pub mod quoted;
pub mod requests;
pub mod sack;
pub mod segment;
pub mod seq;
pub mod state;
pub mod switch;
#[cfg(test)]
mod testing;
pub mod verdict;
pub mod walk;
pub mod word;
