//! Verdicts of `turnout_admit`, by BPF_PROG_TEST_RUN: description, packet, tables, verdict, counters. What passes comes
//! out as it went in.

use turnout::gateway::edge::{Edge as _, Reason, Slot};

use crate::need_programs;
use crate::packets::{ACK, FIN, Frame, RST, SYN, tcp};
use crate::support::{inside, open, ports, prefix, refused, rules};
use crate::test_run::{XDP_DROP, XDP_PASS, object_at, run_xdp};

const C4: &str = "192.0.2.7:40000";
const G4: &str = "10.0.0.1:9092";
const C6: &str = "[2001:db8:1::7]:40000";
const G6: &str = "[2001:db8::1]:9092";

/// What is expected of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    /// Passed and not counted.
    Pass,
    /// Passed and counted as a new connection of the slot.
    Admit(u16),
    /// Dropped and counted for the slot.
    Drop(u16, Reason),
}

/// Runs frames through the program with the tables of a host that has 10.0.0.1 and 2001:db8::1.
fn judge(deny: &[&str], allow: &[&str], rate: Option<(u32, u32)>, fixtures: &[(&str, Vec<u8>, Expect)]) {
    inside("admit", |netns, pin| {
        netns.ip(&["address", "add", "10.0.0.1/32", "dev", "lo"]).expect("an address");
        netns.ip(&["-6", "address", "add", "2001:db8::1/128", "dev", "lo", "nodad"]).expect("an address");
        let edge = open(pin);
        let table =
            [("0.0.0.0:9092", 1, true), ("[::]:9092", 1, true), ("10.0.0.1:9093", 2, true), ("0.0.0.0:9200", 1, false)];
        edge.set_ports(&ports(&table)).expect("ports");
        edge.set_admission(&rules(deny, allow, rate)).expect("rules");
        edge.upkeep();
        let program = object_at(&pin.edge().join("turnout_admit")).expect("the program");
        for (what, frame, expected) in fixtures {
            let before = edge.counters();
            let (verdict, out) = run_xdp(&program, frame).expect("the program runs");
            let after = edge.counters();
            let admitted = |slot: u16| {
                let of = |c: &std::collections::BTreeMap<Slot, _>| c.get(&Slot(slot)).map_or(0, admitted_of);
                of(&after) - of(&before)
            };
            let expected_verdict = if matches!(expected, Expect::Drop(..)) { XDP_DROP } else { XDP_PASS };
            assert_eq!(verdict, expected_verdict, "{what}: {expected:?}");
            if verdict == XDP_PASS {
                assert_eq!(&out, frame, "{what}: what passes is not changed");
            }
            match *expected {
                Expect::Pass => assert_eq!(after, before, "{what}: not counted"),
                Expect::Admit(slot) => assert_eq!(admitted(slot), 1, "{what}: {after:?}"),
                Expect::Drop(slot, reason) => {
                    assert_eq!(refused(&after, slot, reason) - refused(&before, slot, reason), 1, "{what}: {after:?}");
                }
            }
        }
    });
}

fn admitted_of(counters: &turnout::gateway::edge::EdgeCounters) -> u64 {
    counters.admitted
}

/// A row of a table of fixtures.
fn row(what: &str, frame: Frame, expected: Expect) -> (&str, Vec<u8>, Expect) {
    (what, frame.bytes(), expected)
}

#[test]
fn only_ports_of_ours_on_this_host_are_touched() {
    need_programs!();
    let drop = Expect::Drop(1, Reason::Deny);
    judge(
        &["0.0.0.0/0", "::/0"],
        &[],
        None,
        &[
            row("our port", tcp(C4, G4, SYN), drop),
            row("our port, IPv6", tcp(C6, G6, SYN), drop),
            row("a closed port of the range", tcp(C4, "10.0.0.1:9200", SYN), drop),
            row("a port on one address only", tcp(C4, "10.0.0.1:9093", SYN), Expect::Drop(2, Reason::Deny)),
            row("another service", tcp(C4, "10.0.0.1:22", SYN), Expect::Pass),
            row("another service, IPv6", tcp(C6, "[2001:db8::1]:22", SYN), Expect::Pass),
            row("routed through this host", tcp(C4, "10.0.0.2:9092", SYN), Expect::Pass),
            row("routed through this host, IPv6", tcp(C6, "[2001:db8::2]:9092", SYN), Expect::Pass),
            row("UDP", tcp(C4, G4, SYN).protocol(17), Expect::Pass),
            row("UDP, IPv6", tcp(C6, G6, SYN).protocol(17), Expect::Pass),
            row("IPsec", tcp(C6, G6, SYN).protocol(50), Expect::Pass),
        ],
    );
}

#[test]
fn deny_applies_to_every_packet_of_its_sources_only() {
    need_programs!();
    let denied = Expect::Drop(1, Reason::Deny);
    judge(
        &["192.0.2.0/29", "2001:db8:1::/64"],
        &[],
        None,
        &[
            row("SYN", tcp(C4, G4, SYN), denied),
            row("data", tcp(C4, G4, ACK).payload(1000), denied),
            row("FIN", tcp(C4, G4, FIN | ACK), denied),
            row("RST", tcp(C4, G4, RST), denied),
            row("data, IPv6", tcp(C6, G6, ACK).payload(1000), denied),
            row("a neighbour", tcp("192.0.2.8:1", G4, SYN), Expect::Admit(1)),
            row("a neighbour, IPv6", tcp("[2001:db8:2::7]:1", G6, SYN), Expect::Admit(1)),
            row("a neighbour's data", tcp("192.0.2.8:1", G4, ACK).payload(10), Expect::Pass),
        ],
    );
}

#[test]
fn allow_applies_to_new_connections_of_both_families() {
    need_programs!();
    let refused = Expect::Drop(1, Reason::NotAllowed);
    judge(
        &["192.0.2.9/32"],
        &["192.0.2.8/29"],
        None,
        &[
            row("allowed", tcp("192.0.2.10:1", G4, SYN), Expect::Admit(1)),
            row("allowed, but denied", tcp("192.0.2.9:1", G4, SYN), Expect::Drop(1, Reason::Deny)),
            row("not allowed", tcp(C4, G4, SYN), refused),
            row("not allowed, IPv6, which the list doesn't name", tcp(C6, G6, SYN), refused),
            row("not allowed, but established", tcp(C4, G4, ACK), Expect::Pass),
            row("an answer to ours from there", tcp(C4, G4, SYN | ACK), Expect::Pass),
        ],
    );
}

#[test]
fn a_source_above_its_rate_is_refused_and_its_connections_go_on() {
    need_programs!();
    let above = Expect::Drop(1, Reason::Rate);
    // One a second, two at once; IPv6 sources are counted by /64.
    judge(
        &[],
        &[],
        Some((1, 2)),
        &[
            row("first", tcp(C4, G4, SYN), Expect::Admit(1)),
            row("second", tcp(C4, "10.0.0.1:9093", SYN), Expect::Admit(2)),
            row("third", tcp(C4, G4, SYN), above),
            row("third, with flags of congestion notification", tcp(C4, G4, SYN | 0xc0), above),
            row("data", tcp(C4, G4, ACK), Expect::Pass),
            row("another source", tcp("192.0.2.8:1", G4, SYN), Expect::Admit(1)),
            row("IPv6, first", tcp("[2001:db8:1::7]:1", G6, SYN), Expect::Admit(1)),
            row("IPv6, second of its prefix", tcp("[2001:db8:1::8]:1", G6, SYN), Expect::Admit(1)),
            row("IPv6, third of its prefix", tcp("[2001:db8:1::9]:1", G6, SYN), above),
            row("IPv6, another prefix", tcp("[2001:db8:1:1::9]:1", G6, SYN), Expect::Admit(1)),
        ],
    );
}

/// A frame of its bytes changed.
fn with(frame: Frame, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = frame.bytes();
    change(&mut bytes);
    bytes
}

#[test]
fn packets_that_contradict_themselves_are_dropped_on_our_ports() {
    need_programs!();
    let bad = Expect::Drop(1, Reason::Malformed);
    let syn4 = || tcp(C4, G4, SYN);
    let syn6 = || tcp(C6, G6, SYN);
    judge(
        &[],
        &[],
        None,
        &[
            row("SYN and FIN", tcp(C4, G4, SYN | FIN), bad),
            row("SYN and RST", tcp(C4, G4, SYN | RST), bad),
            row("no flags", tcp(C4, G4, 0), bad),
            row("no flags, IPv6", tcp(C6, G6, 0), bad),
            row("source port 0", tcp("192.0.2.7:0", G4, SYN), bad),
            ("header of 16 bytes", with(syn4(), |b| b[46] = 0x40), bad),
            ("header beyond the packet", with(syn4(), |b| b[46] = 0x60), bad),
            ("header beyond the packet, IPv6", with(syn6(), |b| b[66] = 0x60), bad),
            ("IP length beyond the frame", with(syn4(), |b| b[17] = 41), bad),
            ("IP length beyond the frame, IPv6", with(syn6(), |b| b[19] = 21), bad),
            ("IP length short of the TCP header", with(syn4(), |b| b[17] = 39), bad),
            ("cut behind the ports", with(syn4(), |b| b.truncate(40)), bad),
            ("cut before the ports", with(syn4(), |b| b.truncate(37)), Expect::Pass),
            ("IPv4 that says it is version 6", with(syn4(), |b| b[14] = 0x65), Expect::Pass),
            row("SYN and FIN to another service", tcp(C4, "10.0.0.1:22", SYN | FIN), Expect::Pass),
            ("padded to the least frame", with(syn4(), |b| b.resize(60, 0)), Expect::Admit(1)),
            ("of unknown length", with(tcp(C4, G4, ACK), |b| b[16..18].fill(0)), Expect::Pass),
        ],
    );
}

#[test]
fn tags_options_extensions_and_fragments_follow_the_rules() {
    need_programs!();
    let denied = Expect::Drop(1, Reason::Deny);
    let options = [0u8; 6];
    let ext = |kinds: &[u8]| kinds.iter().map(|&kind| (kind, options)).collect::<Vec<_>>();
    judge(
        &["0.0.0.0/0", "::/0"],
        &[],
        None,
        &[
            row("one tag", tcp(C4, G4, SYN).tags(&[0x8100]), denied),
            row("two tags", tcp(C4, G4, SYN).tags(&[0x88a8, 0x8100]), denied),
            row("two tags, IPv6", tcp(C6, G6, SYN).tags(&[0x88a8, 0x8100]), denied),
            row("three tags", tcp(C4, G4, SYN).tags(&[0x88a8, 0x8100, 0x8100]), Expect::Pass),
            row("all IPv4 options", tcp(C4, G4, SYN).options(10), denied),
            row("four extension headers", tcp(C6, G6, SYN).extensions(&ext(&[0, 60, 43, 60])), denied),
            row("five extension headers", tcp(C6, G6, SYN).extensions(&ext(&[0, 60, 43, 60, 60])), Expect::Pass),
            row("still on its way", tcp(C6, G6, SYN).extensions(&[(43, [0, 1, 0, 0, 0, 0])]), Expect::Pass),
            row("behind a header of authentication", tcp(C6, G6, SYN).extensions(&[(51, options)]), Expect::Pass),
            row("the first fragment", tcp(C4, G4, SYN).fragment(0, true), denied),
            row("the first fragment, IPv6", tcp(C6, G6, SYN).fragment(0, true), denied),
            row("a later fragment", tcp(C4, G4, SYN).fragment(3, true), Expect::Pass),
            row("a later fragment, IPv6", tcp(C6, G6, SYN).fragment(3, false), Expect::Pass),
        ],
    );
}

#[test]
fn a_frame_larger_than_a_page_is_judged_by_its_headers() {
    need_programs!();
    judge(
        &["192.0.2.0/24"],
        &[],
        None,
        &[
            row("denied", tcp(C4, G4, ACK).payload(3000), Expect::Drop(1, Reason::Deny)),
            row("not denied", tcp("192.0.3.1:1", G4, ACK).payload(9000), Expect::Pass),
            row("a jumbo frame, denied", tcp(C4, G4, ACK).payload(9000), Expect::Drop(1, Reason::Deny)),
        ],
    );
}

#[test]
fn who_was_refused_is_remembered_by_address_cluster_and_reason() {
    need_programs!();
    inside("refused", |netns, pin| {
        netns.ip(&["address", "add", "10.0.0.1/32", "dev", "lo"]).expect("an address");
        let edge = open(pin);
        edge.set_ports(&ports(&[("0.0.0.0:9092", 1, true), ("0.0.0.0:9093", 2, true)])).expect("ports");
        edge.set_admission(&rules(&["192.0.2.0/24"], &[], None)).expect("rules");
        edge.upkeep();
        let program = object_at(&pin.edge().join("turnout_admit")).expect("the program");
        let send = |frame: Frame| run_xdp(&program, &frame.bytes()).expect("the program runs");
        for _ in 0..3 {
            send(tcp(C4, G4, SYN));
        }
        send(tcp(C4, "10.0.0.1:9093", SYN));
        send(tcp("203.0.113.1:5", G4, 0));
        let all = edge.refused_sources(10);
        let named: Vec<_> = all.iter().map(|r| (r.address.to_string(), r.slot.0, r.reason, r.packets)).collect();
        let expected = [
            ("192.0.2.7".to_owned(), 1, Reason::Deny, 3),
            ("192.0.2.7".to_owned(), 2, Reason::Deny, 1),
            ("203.0.113.1".to_owned(), 1, Reason::Malformed, 1),
        ];
        assert_eq!(named, expected);
        assert!(all.iter().all(|r| r.last_ms_ago < 60_000), "{all:?}");
        assert_eq!(edge.refused_sources(1).len(), 1);
        assert_eq!(
            turnout::kernel::refused(pin.path(), 10).expect("readable").expect("pinned").len(),
            3,
            "without the lock"
        );
    });
}

#[test]
fn a_hundred_thousand_spoofed_sources_lock_nobody_out() {
    need_programs!();
    inside("spoofed", |netns, pin| {
        netns.ip(&["address", "add", "10.0.0.1/32", "dev", "lo"]).expect("an address");
        let edge = open(pin);
        edge.set_ports(&ports(&[("0.0.0.0:9092", 1, true)])).expect("ports");
        edge.set_admission(&rules(&[], &[], Some((1, 1)))).expect("rules");
        edge.upkeep();
        let program = object_at(&pin.edge().join("turnout_admit")).expect("the program");
        // More than the table of buckets has room for.
        let mut frame = tcp("172.16.0.0:40000", G4, SYN).bytes();
        for source in 0..100_000u32 {
            frame[27..30].copy_from_slice(&source.to_be_bytes()[1..]);
            assert_eq!(run_xdp(&program, &frame).expect("the program runs").0, XDP_PASS, "source {source}");
        }
        let client = tcp(C4, G4, SYN).bytes();
        assert_eq!(run_xdp(&program, &client).expect("the program runs").0, XDP_PASS, "a client that comes now");
        assert_eq!(run_xdp(&program, &client).expect("the program runs").0, XDP_DROP, "and it is limited as ever");
    });
}

#[test]
fn lists_change_without_refusing_what_both_allow() {
    need_programs!();
    inside("lists", |netns, pin| {
        netns.ip(&["address", "add", "10.0.0.1/32", "dev", "lo"]).expect("an address");
        let edge = open(pin);
        edge.set_ports(&ports(&[("0.0.0.0:9092", 1, true)])).expect("ports");
        edge.upkeep();
        let program = object_at(&pin.edge().join("turnout_admit")).expect("the program");
        let frame = tcp(C4, G4, SYN).bytes();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                let mut runs = 0u32;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    assert_eq!(run_xdp(&program, &frame).expect("the program runs").0, XDP_PASS, "run {runs}");
                    runs += 1;
                }
                runs
            });
            let many: Vec<String> = (0..500).map(|n| format!("198.18.{}.{}/32", n / 256, n % 256)).collect();
            for round in 0..20 {
                let mut allow: Vec<&str> =
                    if round % 2 == 0 { many.iter().map(String::as_str).collect() } else { vec![] };
                allow.push(if round % 4 < 2 { "192.0.2.0/24" } else { "192.0.2.7/32" });
                edge.set_admission(&rules(&["203.0.113.0/24"], &allow, None)).expect("rules");
                edge.set_admission(&rules(&[], &[], None)).expect("rules");
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(client.join().expect("never refused") > 100);
        });
        assert_eq!(prefix("192.0.2.0/24").length(), 24);
    });
}
