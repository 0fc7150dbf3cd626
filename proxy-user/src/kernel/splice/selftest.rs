//! What the loaded programs do on this kernel, before anybody's bytes are trusted to them: packets made by hand go through
//! them (BPF_PROG_TEST_RUN), of a session that nobody has. Bytes are passed on, a frame is the daemon's, bytes are passed on
//! again, and the direction is taken back; every number and checksum of what comes out is compared.
//!
//! It takes no right that the daemon hasn't, no interface and no packet of anybody, and some milliseconds.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;

use proxy_common::checksum::{Sum, ipv4, pseudo};
use proxy_common::flows::{FlowEntry, POLICIES, Recalled, SESSIONS, Slot};
use proxy_common::headers::{Found, Frame, Headers, read};
use proxy_common::packet::{ACK, ETHERNET_LEN};
use proxy_common::splice::arm::Armed;
use proxy_common::splice::notes::RING;
use proxy_common::splice::policy::{FORWARD, Policy, Rule};
use proxy_common::splice::seq::{InLocal, OutLocal};
use proxy_common::splice::state::{Dir, Leg, Origin, Session, Side};
use proxy_common::tables::Address;

use super::sys::{Memory, Way, run_classifier, run_on};
use super::tables::Tables;
use crate::kernel::EdgeError;

/// Taken last by sessions, so that it is free.
const SESSION: u32 = SESSIONS - 1;
const GENERATION: u32 = 1;
/// The last one, for virtual clusters take the first.
const POLICY: u16 = POLICIES as u16 - 1;
/// The loopback: every namespace has it, at this number.
const INTERFACE: u32 = 1;

/// Requests of this API are passed on.
const PASSED: u16 = 1;
/// And of this one they are the daemon's.
const DAEMONS: u16 = 3;

const SCALE: u32 = 7;
const WINDOW: u16 = 500;

/// What the programs answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// To the socket, or out by the interface that it was on its way to.
    Next = -1,
    /// To the other host.
    Redirect = 7,
}

/// The loaded programs.
pub(super) struct Programs<'a> {
    /// At the way in, and out.
    pub(super) ways: [BorrowedFd<'a>; 2],
    /// Takes a direction back.
    pub(super) recall: BorrowedFd<'a>,
}

/// Runs it, once for each family.
///
/// # Errors
/// What came out is not what should have; or the kernel runs no programs by hand.
pub(super) fn run(programs: &Programs<'_>, tables: &mut Tables, memory: &Memory) -> Result<(), EdgeError> {
    let mut policy = Policy { max_frame: 1 << 20, in_flight: RING, ..Policy::NOTHING };
    policy.rules[usize::from(PASSED)] = Rule { flags: FORWARD, min_version: 0, max_version: 15 };
    tables.set_policy(POLICY, &policy)?;
    for family in [Family::V4, Family::V6] {
        let probe = Probe { programs, memory, family };
        memory.put(SESSION, probe.slot());
        let keys = memory.flows(SESSION);
        let entry = |role| FlowEntry { session: SESSION, generation: GENERATION, role, policy: POLICY.into() };
        tables.enter(&keys, entry)?;
        let result = probe.go();
        tables.leave(&keys, SESSION, GENERATION);
        // The generation stays, so that the next session of the slot has another one.
        memory.put(SESSION, Slot { generation: GENERATION, ..Slot::default() });
        result.map_err(|what| EdgeError::SelfTest(format!("{family:?}, {what}")))?;
    }
    tables.set_policy(POLICY, &Policy::NOTHING)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

struct Probe<'a> {
    programs: &'a Programs<'a>,
    memory: &'a Memory,
    family: Family,
}

impl Probe<'_> {
    /// Of the addresses that documentation has (RFC 5737, RFC 3849), so nobody's.
    fn at(&self, nth: u8, port: u16) -> SocketAddr {
        let address = match self.family {
            Family::V4 => IpAddr::from([192, 0, 2, nth]),
            Family::V6 => IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(nth)]),
        };
        SocketAddr::new(address, port)
    }

    fn ours(&self, side: Side) -> SocketAddr {
        match side {
            Side::Client => self.at(1, 9092),
            Side::Broker => self.at(2, 50_000),
        }
    }

    fn theirs(&self, side: Side) -> SocketAddr {
        match side {
            Side::Client => self.at(3, 40_000),
            Side::Broker => self.at(4, 9093),
        }
    }

    /// The client's next byte is 1000 and the daemon's next one to it 3000, the broker's 7000 and the daemon's to it 5000.
    fn slot(&self) -> Slot {
        let leg = |side| {
            let (ours, theirs) = (self.ours(side), self.theirs(side));
            Leg {
                interface: INTERFACE,
                family: if ours.is_ipv4() { 4 } else { 6 },
                ours: Address::from(ours.ip()).words,
                theirs: Address::from(theirs.ip()).words,
                ports: u32::from(ours.port().to_be()) | u32::from(theirs.port().to_be()) << 16,
                ..Leg::default()
            }
        };
        let window = u32::from(WINDOW) << SCALE;
        let origin = |rcv_nxt, write_seq, y_wl| Origin {
            rcv_nxt,
            unread: 0,
            write_seq,
            unacked: 0,
            x_scale: SCALE,
            y_scale: SCALE,
            x_window: window,
            x_had_early: false,
            y_window: window,
            y_wl,
        };
        let dirs = [origin(1000, 5000, 7000), origin(7000, 3000, 1000)].each_ref().map(Dir::new);
        let session = Session { legs: [leg(Side::Client), leg(Side::Broker)], dirs, ..Session::default() };
        Slot { generation: GENERATION, session, ..Slot::default() }
    }

    fn from(&self, side: Side, seq: u32, ack: u32, payload: &[u8]) -> Packet {
        Packet { from: self.theirs(side), to: self.ours(side), seq, ack, payload: payload.to_vec() }
    }

    fn to(&self, side: Side, seq: u32, ack: u32, payload: &[u8]) -> Packet {
        Packet { from: self.ours(side), to: self.theirs(side), seq, ack, payload: payload.to_vec() }
    }

    /// The steps. What is wrong with one is the error.
    fn go(&self) -> Result<(), String> {
        use Side::{Broker, Client};
        let (passed, daemons, relayed) = (request(PASSED, 100), request(DAEMONS, 60), [7; 60]);
        self.arm(1000, 5000, 0, 0);
        let out = self.to(Broker, 5000, 7000, &passed);
        self.arrives("a request", &self.from(Client, 1000, 3000, &passed), Verdict::Redirect, &out)?;
        let out = self.to(Client, 3000, 1100, b"");
        self.arrives("its acknowledgment", &self.from(Broker, 7000, 5100, b""), Verdict::Redirect, &out)?;
        let out = self.from(Client, 1000, 3000, &daemons);
        self.arrives("a daemon's request", &self.from(Client, 1100, 3000, &daemons), Verdict::Next, &out)?;
        let out = self.to(Client, 3000, 1160, b"");
        self.leaves("the daemon's acknowledgment", &self.to(Client, 3000, 1060, b""), &out)?;
        let out = self.to(Broker, 5100, 7000, &relayed);
        self.leaves("the daemon's bytes", &self.to(Broker, 5000, 7000, &relayed), &out)?;
        let out = self.from(Broker, 7000, 5060, b"");
        self.arrives("their acknowledgment", &self.from(Broker, 7000, 5160, b""), Verdict::Next, &out)?;
        self.arm(1060, 5060, 2, 2);
        let out = self.to(Broker, 5160, 7000, &passed);
        self.arrives("a request again", &self.from(Client, 1160, 3000, &passed), Verdict::Redirect, &out)?;
        let taken = run_classifier(self.programs.recall, [SESSION, Client as u32, GENERATION])
            .map_err(|error| format!("taking requests back: {error}"))?;
        if taken == Recalled::WasPeer as u32 { Ok(()) } else { Err(format!("requests taken back: answer {taken}")) }
    }

    /// The daemon's leave for requests.
    fn arm(&self, at: u32, sent: u32, frames: u32, epoch: u32) {
        let armed = Armed { at: InLocal(at), sent: OutLocal(sent), frames, remain: 0, epoch };
        self.memory.arm(SESSION, Side::Client, &armed);
    }

    fn arrives(&self, what: &str, packet: &Packet, verdict: Verdict, expected: &Packet) -> Result<(), String> {
        self.passes(Way::In, what, packet, verdict, expected)
    }

    fn leaves(&self, what: &str, packet: &Packet, expected: &Packet) -> Result<(), String> {
        self.passes(Way::Out, what, packet, Verdict::Next, expected)
    }

    fn passes(&self, way: Way, what: &str, packet: &Packet, verdict: Verdict, expected: &Packet) -> Result<(), String> {
        let [way_in, way_out] = self.programs.ways;
        let (program, came_in_by) = match way {
            Way::In => (way_in, INTERFACE),
            Way::Out => (way_out, 0),
        };
        let (answer, frame) =
            run_on(program, &packet.frame(), INTERFACE, came_in_by).map_err(|error| format!("{what}: {error}"))?;
        if answer != verdict as i32 {
            return Err(format!("{what}: verdict {answer}, {} is right", verdict as i32));
        }
        match Packet::read(&frame) {
            Some(out) if out == *expected => Ok(()),
            Some(out) => Err(format!("{what}: {} comes out, {} is right", out.told(), expected.told())),
            None => Err(format!("{what}: no packet with right checksums comes out")),
        }
    }
}

/// A request of so many bytes in all.
fn request(api_key: u16, length: u32) -> Vec<u8> {
    let mut frame = (length - 4).to_be_bytes().to_vec();
    frame.extend(api_key.to_be_bytes());
    frame.extend((6..length).map(|n| if n < 8 { 0 } else { n as u8 }));
    frame
}

/// A TCP segment without options.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Packet {
    from: SocketAddr,
    to: SocketAddr,
    seq: u32,
    ack: u32,
    payload: Vec<u8>,
}

impl Packet {
    /// As it is told when it is wrong.
    fn told(&self) -> String {
        let Self { from, to, seq, ack, payload } = self;
        format!("{from} → {to} seq {seq} ack {ack} with {} bytes", payload.len())
    }

    /// With right checksums.
    fn frame(&self) -> Vec<u8> {
        let mut tcp = [self.from.port().to_be_bytes(), self.to.port().to_be_bytes()].concat();
        tcp.extend([self.seq.to_be_bytes(), self.ack.to_be_bytes()].concat());
        tcp.extend([0x50, ACK]);
        tcp.extend(WINDOW.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(&self.payload);
        let (source, destination) = (Address::from(self.from.ip()), Address::from(self.to.ip()));
        let payload = self.payload.len() as u32;
        let headers = Headers { source, destination, tcp_length: 20, payload, ..Headers::default() };
        let check = !added(pseudo(&headers), &tcp).folded();
        tcp[16..18].copy_from_slice(&check.to_ne_bytes());
        // To the loopback's own address, and from it.
        let mut frame = vec![0; 12];
        if self.from.is_ipv4() {
            let first = (0x4500_0000 | (20 + tcp.len() as u32)).to_be();
            let mut words =
                [first, 0x4000_u32.to_be(), (64_u32 << 24 | 6 << 16).to_be(), source.words[0], destination.words[0]];
            words[2] |= u32::from(ipv4(&words)) << 16;
            frame.extend([8, 0]);
            frame.extend(words.map(u32::to_ne_bytes).concat());
        } else {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend((tcp.len() as u16).to_be_bytes());
            frame.extend([6, 64]);
            frame.extend([source.words, destination.words].concat().iter().flat_map(|word| word.to_ne_bytes()));
        }
        frame.extend(tcp);
        frame
    }

    /// Reads a frame; `None`: it is none in the form, or a checksum is wrong.
    fn read(frame: &[u8]) -> Option<Self> {
        let ethertype = u16::from_be_bytes(*frame.get(12..)?.first_chunk()?);
        let about = Frame { ethertype, tagged: false, ours: true, length: frame.len() as u32, merged: false };
        let mut h = Headers::default();
        if read(frame, &about, &mut h) != Found::Plain || h.tcp_length != 20 {
            return None;
        }
        let tcp = frame.get(h.tcp_offset() as usize..)?;
        let sound = added(pseudo(&h), tcp).folded() == u16::MAX;
        let ip = frame.get(ETHERNET_LEN..h.tcp_offset() as usize)?;
        let ip_sound = !h.source.is_v4() || added(Sum(0), ip).folded() == u16::MAX;
        let at = |address: Address, port: u32| SocketAddr::new(address_of(&address), u16::from_be(port as u16));
        let payload = frame.get(h.payload_offset() as usize..)?.to_vec();
        (sound && ip_sound && payload.len() == h.payload as usize).then(|| Self {
            from: at(h.source, h.tcp[0]),
            to: at(h.destination, h.tcp[0] >> 16),
            seq: u32::from_be(h.tcp[1]),
            ack: u32::from_be(h.tcp[2]),
            payload,
        })
    }
}

fn address_of(address: &Address) -> IpAddr {
    let bytes = address.words.map(u32::to_ne_bytes);
    if address.is_v4() {
        return bytes[0].into();
    }
    let [a, b, c, d] = bytes.map(u32::from_be_bytes);
    Ipv6Addr::from(u128::from(a) << 96 | u128::from(b) << 64 | u128::from(c) << 32 | u128::from(d)).into()
}

/// The sum of more bytes, which begin at a word.
fn added(sum: Sum, bytes: &[u8]) -> Sum {
    let word = |chunk: &[u8]| {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        u32::from_ne_bytes(word)
    };
    bytes.chunks(4).fold(sum, |sum, chunk| sum.plus(word(chunk)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(family: Family) -> Packet {
        let at = |nth: u8| match family {
            Family::V4 => IpAddr::from([192, 0, 2, nth]),
            Family::V6 => IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(nth)]),
        };
        let (from, to) = (SocketAddr::new(at(1), 9092), SocketAddr::new(at(2), 40_000));
        Packet { from, to, seq: 7, ack: u32::MAX, payload: b"some bytes".to_vec() }
    }

    #[test]
    fn a_packet_is_read_back_and_a_wrong_bit_is_found() {
        for family in [Family::V4, Family::V6] {
            let packet = packet(family);
            let frame = packet.frame();
            assert_eq!(Packet::read(&frame).as_ref(), Some(&packet));
            for at in ETHERNET_LEN..frame.len() {
                let mut spoilt = frame.clone();
                spoilt[at] ^= 1;
                let seen = Packet::read(&spoilt);
                // IPv6 has no checksum over these: class, flow label, hop limit.
                let free = family == Family::V6 && matches!(at - ETHERNET_LEN, 0..=3 | 7);
                assert!(free || seen.is_none(), "{family:?} at {at}: {seen:?}");
            }
            for length in 0..frame.len() {
                assert_eq!(Packet::read(&frame[..length]), None, "cut at {length}");
            }
        }
    }
}
