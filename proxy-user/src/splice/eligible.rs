//! Whether two connections can be spliced, by what their sockets say of them. Pure; the first thing in the way is the
//! reason that operators see.
//!
//! The kernel keeps the ends of two connections in step by numbers alone. What it can't translate must not be on the wire:
//! timestamps are of two clocks, congestion marks and MPTCP of one connection. What is seen here was agreed on in the
//! handshake and stays so for the connection's life.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use proxy_common::splice::state::Side;

// Of `tcpi_options`, include/uapi/linux/tcp.h.
const TIMESTAMPS: u8 = 1;
const SACK: u8 = 2;
const WINDOW_SCALE: u8 = 4;
const ECN: u8 = 8;

/// `tcpi_state` of an established connection (TCP_ESTABLISHED).
pub const ESTABLISHED: u8 = 1;

/// Round trips of both legs together must stay below this: the client's retransmission timer was learnt on the short leg.
pub const LONGEST_ROUND_TRIP: Duration = Duration::from_millis(100);

/// What TCP_INFO says of a connection, of that what matters (`struct tcp_info`, include/uapi/linux/tcp.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpInfo {
    /// `tcpi_state`.
    pub state: u8,
    /// `tcpi_options`.
    pub options: u8,
    /// Scale of the peer's windows (`tcpi_snd_wscale`).
    pub peer_scale: u8,
    /// Scale of our windows (`tcpi_rcv_wscale`).
    pub own_scale: u8,
    /// Largest segment that goes out, bytes (`tcpi_snd_mss`).
    pub send_mss: u32,
    /// Largest segment that the peer was told to send, bytes (`tcpi_advmss`).
    pub advertised_mss: u32,
    /// Smoothed round trip (`tcpi_rtt`).
    pub round_trip: Duration,
}

impl TcpInfo {
    /// Length of what is read: up to and with `tcpi_advmss`.
    const LENGTH: usize = 88;

    /// Out of the bytes that the kernel gives; `None`: it gave too few.
    #[must_use]
    pub fn read(info: &[u8]) -> Option<Self> {
        let info: &[u8; Self::LENGTH] = info.first_chunk()?;
        let word = |at: usize| info[at..].first_chunk().map_or(0, |word| u32::from_ne_bytes(*word));
        // One byte with two bit fields, the first in the lower half on little-endian machines.
        let (low, high) = (info[6] & 15, info[6] >> 4);
        let (peer_scale, own_scale) = if cfg!(target_endian = "little") { (low, high) } else { (high, low) };
        Some(Self {
            state: info[0],
            options: info[5],
            peer_scale,
            own_scale,
            send_mss: word(16),
            advertised_mss: word(84),
            round_trip: Duration::from_micros(word(68).into()),
        })
    }
}

/// One of the two connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leg {
    /// This host's address.
    pub ours: SocketAddr,
    /// The peer's.
    pub theirs: SocketAddr,
    /// What TCP says.
    pub tcp: TcpInfo,
    /// The programs run on the interface that leads to the peer.
    pub attached: bool,
}

/// Why two connections stay the daemon's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// It is being opened or closed.
    NotEstablished(Side),
    /// The peer is on this host.
    Loopback(Side),
    /// One is IPv4, the other IPv6.
    Families,
    /// The programs don't run where its packets come in.
    NotAttached(Side),
    /// Timestamps were agreed on: it was opened past the programs, or before they were there.
    Timestamps(Side),
    /// Congestion marks were agreed on.
    Ecn(Side),
    /// No window scale: opened under a SYN flood (cookies), or by a peer without.
    NoScale(Side),
    /// One has selective acknowledgments and the other has not.
    Sack,
    /// Segments of this end's peer are too large for the other end's path.
    SegmentSize(Side),
    /// Both round trips together are too long ([`LONGEST_ROUND_TRIP`]).
    Distance(Duration),
}

impl Obstacle {
    /// A bounded label for metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::NotEstablished(_) => "not_established",
            Self::Loopback(_) => "loopback",
            Self::Families => "families",
            Self::NotAttached(_) => "not_attached",
            Self::Timestamps(_) => "timestamps",
            Self::Ecn(_) => "ecn",
            Self::NoScale(_) => "no_window_scale",
            Self::Sack => "sack",
            Self::SegmentSize(_) => "segment_size",
            Self::Distance(_) => "distance",
        }
    }
}

impl fmt::Display for Obstacle {
    /// Completes "it stays the daemon's: …".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let the = |side: &Side| match side {
            Side::Client => "the client",
            Side::Broker => "the broker",
        };
        match self {
            Self::NotEstablished(end) => write!(f, "the connection to {} is being opened or closed", the(end)),
            Self::Loopback(end) => write!(f, "{} is on this host", the(end)),
            Self::Families => f.write_str("one leg is IPv4 and the other IPv6"),
            Self::NotAttached(end) => write!(f, "no program is on the interface that leads to {}", the(end)),
            Self::Timestamps(end) => {
                write!(f, "TCP timestamps were agreed on with {}: its SYN did not pass the programs", the(end))
            }
            Self::Ecn(end) => write!(f, "congestion notification was agreed on with {}", the(end)),
            Self::NoScale(end) => {
                write!(f, "no window scale was agreed on with {} (a SYN cookie, or its own choice)", the(end))
            }
            Self::Sack => f.write_str("one leg has selective acknowledgments and the other has not"),
            Self::SegmentSize(end) => write!(f, "{} sends larger segments than the other leg takes", the(end)),
            Self::Distance(both) => write!(
                f,
                "the legs' round trips are {} ms together, {} ms or more",
                both.as_millis(),
                LONGEST_ROUND_TRIP.as_millis()
            ),
        }
    }
}

/// Whether the two can be spliced.
///
/// # Errors
/// The first thing in the way.
pub fn check(client: &Leg, broker: &Leg) -> Result<(), Obstacle> {
    let both = [(Side::Client, client), (Side::Broker, broker)];
    let find = |is_so: &dyn Fn(&Leg) -> bool| both.iter().find(|(_, leg)| is_so(leg)).map(|(end, _)| *end);
    let refuse = |obstacle: Option<Obstacle>| obstacle.map_or(Ok(()), Err);

    refuse(find(&|leg| leg.tcp.state != ESTABLISHED).map(Obstacle::NotEstablished))?;
    refuse(find(&is_local).map(Obstacle::Loopback))?;
    refuse((is_v4(client) != is_v4(broker)).then_some(Obstacle::Families))?;
    refuse(find(&|leg| !leg.attached).map(Obstacle::NotAttached))?;
    refuse(find(&|leg| leg.tcp.options & TIMESTAMPS != 0).map(Obstacle::Timestamps))?;
    refuse(find(&|leg| leg.tcp.options & ECN != 0).map(Obstacle::Ecn))?;
    refuse(find(&|leg| leg.tcp.options & WINDOW_SCALE == 0).map(Obstacle::NoScale))?;
    refuse(((client.tcp.options ^ broker.tcp.options) & SACK != 0).then_some(Obstacle::Sack))?;
    let too_large = |from: &Leg, to: &Leg| from.tcp.advertised_mss > to.tcp.send_mss;
    refuse(too_large(client, broker).then_some(Obstacle::SegmentSize(Side::Client)))?;
    refuse(too_large(broker, client).then_some(Obstacle::SegmentSize(Side::Broker)))?;
    let together = client.tcp.round_trip + broker.tcp.round_trip;
    refuse((together >= LONGEST_ROUND_TRIP).then_some(Obstacle::Distance(together)))
}

/// Sockets that take both families show IPv4 addresses as mapped ones.
fn is_v4(leg: &Leg) -> bool {
    leg.ours.ip().to_canonical().is_ipv4()
}

fn is_local(leg: &Leg) -> bool {
    let (ours, theirs) = (leg.ours.ip().to_canonical(), leg.theirs.ip().to_canonical());
    theirs.is_loopback() || ours == theirs
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd as _;

    use proptest::prelude::*;

    use super::*;

    fn leg(ours: &str, theirs: &str) -> Leg {
        Leg {
            ours: ours.parse().expect("an address"),
            theirs: theirs.parse().expect("an address"),
            tcp: TcpInfo {
                state: ESTABLISHED,
                options: SACK | WINDOW_SCALE,
                peer_scale: 7,
                own_scale: 7,
                send_mss: 1460,
                advertised_mss: 1460,
                round_trip: Duration::from_millis(2),
            },
            attached: true,
        }
    }

    fn both() -> [Leg; 2] {
        [leg("10.0.0.1:9092", "10.0.1.2:40000"), leg("10.0.2.1:50000", "10.0.2.9:9092")]
    }

    #[test]
    fn two_ordinary_connections_can_be_spliced() {
        let [client, broker] = both();
        assert_eq!(check(&client, &broker), Ok(()));
        let mapped = Leg { ours: "[::ffff:10.0.0.1]:9092".parse().expect("one"), ..client };
        assert_eq!(check(&mapped, &broker), Ok(()), "a socket of both families");
        let [mut client, mut broker] = [leg("[fd00::1]:9092", "[fd00::2]:1"), leg("[fd00:1::1]:1", "[fd00:1::2]:9092")];
        (client.tcp.options, broker.tcp.options) = (WINDOW_SCALE, WINDOW_SCALE);
        assert_eq!(check(&client, &broker), Ok(()), "neither has selective acknowledgments");
    }

    #[test]
    fn each_obstacle_is_told_with_its_end() {
        type Row = (fn(&mut Leg), fn(Side) -> Obstacle);
        let rows: [Row; 7] = [
            (|leg| leg.tcp.state = 8, Obstacle::NotEstablished),
            (|leg| leg.theirs = "127.0.0.1:1".parse().expect("one"), Obstacle::Loopback),
            (|leg| leg.theirs = leg.ours, Obstacle::Loopback),
            (|leg| leg.attached = false, Obstacle::NotAttached),
            (|leg| leg.tcp.options |= TIMESTAMPS, Obstacle::Timestamps),
            (|leg| leg.tcp.options |= ECN, Obstacle::Ecn),
            (|leg| leg.tcp.options &= !WINDOW_SCALE, Obstacle::NoScale),
        ];
        for (change, obstacle) in rows {
            for (nth, end) in [Side::Client, Side::Broker].into_iter().enumerate() {
                let mut legs = both();
                change(&mut legs[nth]);
                assert_eq!(check(&legs[0], &legs[1]), Err(obstacle(end)), "{}", obstacle(end));
            }
        }
        let [client, broker] = both();
        let six = leg("[fd00::1]:50000", "[fd00::9]:9092");
        assert_eq!(check(&client, &six), Err(Obstacle::Families));
        let mut plain = broker;
        plain.tcp.options = WINDOW_SCALE;
        assert_eq!(check(&client, &plain), Err(Obstacle::Sack));
        let mut narrow = broker;
        narrow.tcp.send_mss = 1459;
        assert_eq!(check(&client, &narrow), Err(Obstacle::SegmentSize(Side::Client)));
        let mut narrow = client;
        narrow.tcp.send_mss = 1400;
        assert_eq!(check(&narrow, &broker), Err(Obstacle::SegmentSize(Side::Broker)));
        let mut far = broker;
        far.tcp.round_trip = Duration::from_millis(98);
        assert_eq!(check(&client, &far), Err(Obstacle::Distance(LONGEST_ROUND_TRIP)));
        far.tcp.round_trip = Duration::from_micros(97_999);
        assert_eq!(check(&client, &far), Ok(()));
    }

    #[test]
    fn what_the_kernel_says_of_a_real_connection_is_read_from_the_right_places() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let mut bytes = [0u8; 256];
        let mut length = bytes.len() as libc::socklen_t;
        // SAFETY: both pointers are to variables of the length given, which outlive the call.
        let result = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                bytes.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        assert_eq!(result, 0);
        let info = TcpInfo::read(&bytes[..length as usize]).expect("enough");
        assert_eq!(info.state, ESTABLISHED);
        assert_ne!(info.options & WINDOW_SCALE, 0);
        assert!(info.own_scale <= 14 && info.peer_scale <= 14, "{info:?}");
        // Loopback's packets are large, and its round trips short.
        assert!((536..=65_535).contains(&info.advertised_mss) && info.send_mss >= 536, "{info:?}");
        assert!(info.round_trip < Duration::from_secs(1), "{info:?}");
        assert_eq!(TcpInfo::read(&bytes[..87]), None);
    }

    proptest! {
        /// Whatever is said of two connections, those that may be spliced have nothing on the wire that can't be
        /// translated.
        #[test]
        fn what_is_spliced_can_be_translated(
            options: [u8; 2], state in prop::array::uniform2(0u8..12), mss in prop::array::uniform4(500u32..1500),
            micros in prop::array::uniform2(0u64..200_000), attached: [bool; 2],
        ) {
            let mut legs = both();
            for (nth, leg) in legs.iter_mut().enumerate() {
                leg.tcp.options = options[nth];
                leg.tcp.state = state[nth];
                (leg.tcp.send_mss, leg.tcp.advertised_mss) = (mss[2 * nth], mss[2 * nth + 1]);
                leg.tcp.round_trip = Duration::from_micros(micros[nth]);
                leg.attached = attached[nth];
            }
            let expected = options.iter().all(|o| o & (TIMESTAMPS | ECN) == 0 && o & WINDOW_SCALE != 0)
                && (options[0] ^ options[1]) & SACK == 0
                && state == [ESTABLISHED; 2]
                && mss[1] <= mss[2] && mss[3] <= mss[0]
                && micros[0] + micros[1] < 100_000
                && attached == [true; 2];
            prop_assert_eq!(check(&legs[0], &legs[1]).is_ok(), expected);
        }
    }
}
