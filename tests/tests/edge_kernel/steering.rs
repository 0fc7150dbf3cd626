//! Verdicts of `turnout_steer`, by BPF_PROG_TEST_RUN: description, connection, tables, verdict and socket, counters.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsFd as _;

use turnout::gateway::edge::{Edge as _, Reason, Slot};

use crate::need_programs;
use crate::support::{inside, listener, open, ports, refused};
use crate::test_run::{Lookup, SK_DROP, SK_PASS, cookie, object_at, run_lookup};

const TCP: u32 = 6;
const UDP: u32 = 17;

fn lookup(protocol: u32, from: &str, to: &str) -> Lookup {
    let (from, to): (SocketAddr, SocketAddr) = (from.parse().expect("an address"), to.parse().expect("an address"));
    let mut lookup =
        Lookup { protocol, remote_port: from.port().to_be_bytes(), local_port: to.port().into(), ..Lookup::default() };
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            lookup.family = libc::AF_INET as u32;
            (lookup.remote_ip4, lookup.local_ip4) = (from.octets(), to.octets());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            lookup.family = libc::AF_INET6 as u32;
            (lookup.remote_ip6, lookup.local_ip6) = (from.octets(), to.octets());
        }
        _ => panic!("one family"),
    }
    lookup
}

const C4: &str = "192.0.2.7:40000";
const C6: &str = "[2001:db8:1::7]:40000";

/// What is expected of a connection.
#[derive(Clone, Copy, Debug)]
enum Expect {
    /// Left alone.
    Pass,
    /// Given to the listener of its family, counted for the slot.
    Socket(u16),
    /// Refused and counted for the slot.
    Refuse(u16, Reason),
}

#[test]
fn connections_go_to_our_sockets_are_refused_or_are_left_alone() {
    need_programs!();
    let table = [
        ("0.0.0.0:9092", 1, true),
        ("[::]:9092", 1, true),
        ("0.0.0.0:9200", 1, true),
        ("0.0.0.0:9201", 1, false),
        ("[::]:9201", 1, false),
        ("10.0.0.1:9092", 2, true),
        ("[2001:db8::1]:9200", 3, true),
    ];
    let no_broker = |slot| Expect::Refuse(slot, Reason::NoBroker);
    let fixtures = [
        ("the bootstrap", TCP, C4, "10.0.0.2:9092", Expect::Socket(1)),
        ("the bootstrap, IPv6", TCP, C6, "[2001:db8::9]:9092", Expect::Socket(1)),
        ("a broker", TCP, C4, "127.0.0.1:9200", Expect::Socket(1)),
        ("the exact address before the unspecified one", TCP, C4, "10.0.0.1:9092", Expect::Socket(2)),
        ("another cluster on one address, IPv6", TCP, C6, "[2001:db8::1]:9200", Expect::Socket(3)),
        ("that port on another address", TCP, C6, "[2001:db8::2]:9200", Expect::Pass),
        ("a port without a broker", TCP, C4, "10.0.0.1:9201", no_broker(1)),
        ("a port without a broker, IPv6", TCP, C6, "[2001:db8::1]:9201", no_broker(1)),
        ("another service", TCP, C4, "10.0.0.1:22", Expect::Pass),
        ("another service, IPv6", TCP, C6, "[2001:db8::1]:22", Expect::Pass),
        ("UDP to the same port", UDP, C4, "10.0.0.1:9092", Expect::Pass),
        ("UDP to the same port, IPv6", UDP, C6, "[2001:db8::1]:9092", Expect::Pass),
    ];
    inside("steer", |_, pin| {
        let edge = open(pin);
        edge.set_ports(&ports(&table)).expect("ports");
        let (v4, v6) = (listener("127.0.0.1:0"), listener("[::1]:0"));
        edge.set_sockets(&[v4.as_fd(), v6.as_fd()]).expect("sockets");
        let program = object_at(&pin.edge().join("turnout_steer")).expect("the program");
        for (what, protocol, from, to, expected) in fixtures {
            let before = edge.counters();
            let (verdict, chosen) = run_lookup(&program, &lookup(protocol, from, to)).expect("the program runs");
            let after = edge.counters();
            let steered = |slot| {
                let of = |c: &std::collections::BTreeMap<Slot, turnout::gateway::edge::EdgeCounters>| {
                    c.get(&Slot(slot)).map_or(0, |c| c.steered)
                };
                of(&after) - of(&before)
            };
            match expected {
                Expect::Pass => {
                    assert_eq!((verdict, chosen), (SK_PASS, 0), "{what}");
                    assert_eq!(before, after, "{what}: not counted");
                }
                Expect::Socket(slot) => {
                    let listener = if to.starts_with('[') { &v6 } else { &v4 };
                    assert_eq!((verdict, chosen), (SK_PASS, cookie(listener)), "{what}");
                    assert_eq!(steered(slot), 1, "{what}");
                }
                Expect::Refuse(slot, reason) => {
                    assert_eq!((verdict, chosen), (SK_DROP, 0), "{what}");
                    assert_eq!(refused(&after, slot, reason) - refused(&before, slot, reason), 1, "{what}");
                }
            }
        }
    });
}

#[test]
fn a_family_without_a_socket_is_refused_also_when_its_sockets_were_closed() {
    need_programs!();
    inside("nosocket", |_, pin| {
        let edge = open(pin);
        edge.set_ports(&ports(&[("0.0.0.0:9092", 4, true), ("[::]:9092", 4, true)])).expect("ports");
        let program = object_at(&pin.edge().join("turnout_steer")).expect("the program");
        let verdict = |from, to| run_lookup(&program, &lookup(TCP, from, to)).expect("the program runs").0;
        assert_eq!(verdict(C4, "10.0.0.1:9092"), SK_DROP, "no socket was given yet");
        let v4 = listener("127.0.0.1:0");
        edge.set_sockets(&[v4.as_fd()]).expect("sockets");
        assert_eq!(verdict(C4, "10.0.0.1:9092"), SK_PASS);
        assert_eq!(verdict(C6, "[2001:db8::1]:9092"), SK_DROP, "a listener of the other family doesn't stand in");
        drop(v4);
        assert_eq!(verdict(C4, "10.0.0.1:9092"), SK_DROP, "the daemon is gone");
        assert_eq!(refused(&edge.counters(), 4, Reason::NoSocket), 3);
    });
}

#[test]
fn connections_are_spread_over_the_sockets_and_fewer_of_them_take_over() {
    need_programs!();
    inside("spread", |_, pin| {
        let edge = open(pin);
        edge.set_ports(&ports(&[("0.0.0.0:9092", 1, true)])).expect("ports");
        let program = object_at(&pin.edge().join("turnout_steer")).expect("the program");
        let listeners: Vec<TcpListener> = (0..4).map(|_| listener("127.0.0.1:0")).collect();
        let chosen = || -> BTreeSet<u64> {
            (0..200)
                .map(|n| {
                    let from = format!("192.0.2.7:{}", 40_000 + n);
                    let (verdict, chosen) =
                        run_lookup(&program, &lookup(TCP, &from, "10.0.0.1:9092")).expect("the program runs");
                    assert_eq!(verdict, SK_PASS);
                    chosen
                })
                .collect()
        };
        for count in [4, 2, 3, 1] {
            let sockets: Vec<_> = listeners[..count].iter().map(|l| l.as_fd()).collect();
            edge.set_sockets(&sockets).expect("sockets");
            assert_eq!(chosen(), listeners[..count].iter().map(cookie).collect(), "{count} sockets");
        }
    });
}

#[test]
fn a_socket_that_cannot_be_steered_to_is_refused_by_name() {
    need_programs!();
    inside("badsocket", |_, pin| {
        let edge = open(pin);
        let unix = std::os::unix::net::UnixDatagram::unbound().expect("a socket");
        let refused = edge.set_sockets(&[unix.as_fd()]).expect_err("not TCP");
        assert!(refused.to_string().contains("address family 1"), "{refused:#}");
    });
}
