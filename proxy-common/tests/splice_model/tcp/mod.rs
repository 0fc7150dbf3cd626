// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! One end of a TCP connection in virtual time, with the habits of Linux that a splice has to live with.
//!
//! ```text
//!  write, shutdown, abort ─►┌──────────┐◄─ on_segment(now, &segment)
//!                    read ◄─│ Endpoint │─► poll(now), until it is None, after every other call
//!              the queues ◄─└──────────┘─► next_timer: when to poll again if nothing else happens
//! ```
//! [`Endpoint::new`] takes one's own [`Config`] and the peer's and starts in ESTABLISHED: no handshake, and the
//! window, the scales and the decision about SACK are what a handshake would have settled. Time is [`Micros`]; nothing
//! reads a clock or draws a random number, so a run is a function of its calls.
//!
//! An application that closes without reading everything, or that dies, is [`Endpoint::abort`]; one that has said
//! everything is [`Endpoint::shutdown`]. A reset or an acknowledgment can be lost like anything else: a side that is
//! silent afterwards doesn't learn of it.
//!
//! Inside, a place in a stream is a `u64` that doesn't wrap; numbers are 32 bits wide on [`Segment`]s and in what the
//! daemon asks a socket for, and are found again as the place nearest to the one in use.
//!
//! Modelled after Linux (net/ipv4/tcp_input.c, tcp_output.c, tcp_timer.c), where it goes beyond RFC 9293: windows that
//! never shrink except to zero for want of memory, silly-window avoidance on both sides, zero-window probes one below
//! `snd_una`, segments of many MSS (`gso_size`), quick and delayed acknowledgments, SACK with the newest block first,
//! loss found by three duplicate or selective acknowledgments or by a timer, acceptability and challenge
//! acknowledgments with their rate limit (RFC 5961).
//!
//! Not modelled: timestamps, ECN, urgent data, what a sender learns from D-SACK, RACK and tail loss probes (a lost tail waits for the timer),
//! SACK compression, autotuning of buffers, keepalive, the end of TIME_WAIT, `SO_LINGER`.

mod config;
mod endpoint;
mod place;
mod receiver;
mod rtt;
mod segment;
mod sender;

pub(crate) use config::Config;
pub(crate) use endpoint::{Endpoint, Failure, Outcome, State};
pub(crate) use segment::{ACK, FIN, PSH, RST, SYN, Segment, Socket, URG};

/// Virtual time in microseconds.
pub(crate) type Micros = u64;

/// A millisecond of virtual time.
pub(crate) const MILLI: Micros = 1_000;
