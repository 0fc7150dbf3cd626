//! Pins: made whole or not at all, one owner, kept over an upgrade, cleared after a crash, gone after a detach.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::process::{Command, Stdio};
use std::time::Duration;

use harness::netns::Netns;
use harness::process::Process;
use harness::turnout::PinFolder;
use turnout::gateway::edge::{Edge as _, Reason};
use turnout::kernel::{self, EdgeError, KernelEdge};

use crate::need_programs;
use crate::packets::{SYN, tcp};
use crate::support::{besides_splices, gone, inside, listener, open, pinned_objects, ports, refused, rules, xdp_of};
use crate::test_run::{XDP_DROP, object_at, run_xdp};

/// A veth pair in the namespace, both ends up.
fn veth(netns: &Netns, near: &str, far: &str) {
    netns.ip(&["link", "add", near, "type", "veth", "peer", "name", far]).expect("veth");
    for end in [near, far] {
        netns.ip(&["link", "set", end, "up"]).expect("up");
    }
}

fn marker(pin: &PinFolder) -> std::path::PathBuf {
    let entries = fs::read_dir(pin.edge()).expect("pinned");
    let mut folders = entries.map(|e| e.expect("an entry").path()).filter(|p| p.is_dir());
    folders.next().expect("the layout's mark")
}

/// Makes the pins look like those of a version with another layout.
fn age(pin: &PinFolder) {
    let marker = marker(pin);
    fs::rename(&marker, marker.with_file_name("layout-0000000000000000")).expect("renamed");
}

#[test]
fn an_equal_layout_keeps_counters_ports_sockets_and_links() {
    need_programs!();
    inside("upgrade", |netns, pin| {
        veth(netns, "near", "far");
        netns.ip(&["address", "add", "10.0.0.1/32", "dev", "lo"]).expect("an address");
        let edge = open(pin);
        edge.set_ports(&ports(&[("0.0.0.0:9092", 1, true)])).expect("ports");
        edge.set_admission(&rules(&["192.0.2.0/24"], &[], None)).expect("rules");
        let socket = listener("127.0.0.1:0");
        edge.set_sockets(&[socket.as_fd()]).expect("sockets");
        edge.set_interfaces(Some(&["far".to_owned()]));
        let frame = tcp("192.0.2.7:1", "10.0.0.1:9092", SYN).bytes();
        let drop_one = || {
            let program = object_at(&pin.edge().join("turnout_admit")).expect("the program");
            assert_eq!(run_xdp(&program, &frame).expect("the program runs").0, XDP_DROP);
        };
        drop_one();
        let before = edge.status();
        let (maps, links): (Vec<_>, Vec<_>) = pinned_objects(&pin.edge())
            .into_iter()
            .filter(|o| !o.0.starts_with("turnout_"))
            .partition(|o| o.1 == crate::support::Kind::Map);
        drop(edge);
        TcpStream::connect("127.0.0.1:9092").expect("steering goes on without the one who made it");

        let edge = open(pin);
        let after = edge.status();
        assert_eq!(after.layout, before.layout);
        assert_eq!(after.interfaces, before.interfaces);
        for (name, (id, tag)) in &before.programs {
            assert_ne!(after.programs[name].0, *id, "{name} is a new one");
            assert_eq!(after.programs[name].1, *tag, "{name} of the same code");
        }
        let now = pinned_objects(&pin.edge());
        assert!(maps.iter().chain(&links).all(|old| now.contains(old)), "{maps:?} {links:?} {now:?}");
        drop_one();
        assert_eq!(refused(&edge.counters(), 1, Reason::Deny), 2, "the counter went on");
        TcpStream::connect("127.0.0.1:9092").expect("the socket is still steered to");
        assert!(!pin.edge().join("turnout_admit-next").exists());
    });
}

#[test]
fn another_layout_gets_fresh_tables_which_are_filled_before_they_are_used() {
    need_programs!();
    inside("relayout", |netns, pin| {
        veth(netns, "near", "far");
        netns.ip(&["address", "add", "10.0.0.1/32", "dev", "lo"]).expect("an address");
        let table = ports(&[("0.0.0.0:9092", 1, true)]);
        let socket = listener("127.0.0.1:0");
        let old = open(pin);
        old.set_ports(&table).expect("ports");
        old.set_admission(&rules(&["192.0.2.0/24"], &[], None)).expect("rules");
        old.set_sockets(&[socket.as_fd()]).expect("sockets");
        old.set_interfaces(Some(&["far".to_owned()]));
        drop(old);
        age(pin);
        let old_objects = pinned_objects(&pin.edge());
        let is_link = |o: &&(String, crate::support::Kind, u32)| o.1 == crate::support::Kind::Link;
        let links: Vec<_> = old_objects.iter().filter(is_link).cloned().collect();
        assert_eq!(links.len(), 2, "{old_objects:?}");

        let new = open(pin);
        let connects = |when: &str| {
            TcpStream::connect("127.0.0.1:9092").unwrap_or_else(|e| panic!("{when}: {e}"));
        };
        let still_old = || {
            assert_eq!(pinned_objects(&pin.edge()), old_objects);
            assert_eq!(xdp_of(netns, "far"), Some("native"));
        };
        still_old();
        connects("opened");
        new.set_ports(&table).expect("ports");
        new.set_admission(&rules(&["192.0.2.0/24"], &[], None)).expect("rules");
        new.set_interfaces(Some(&["far".to_owned()]));
        still_old();
        connects("half filled");
        new.set_sockets(&[socket.as_fd()]).expect("sockets");
        connects("switched");
        assert_eq!(xdp_of(netns, "far"), Some("native"));
        let now = pinned_objects(&pin.edge());
        assert!(links.iter().all(|link| now.contains(link)), "the same links, never let go: {links:?} {now:?}");
        assert!(marker(pin).file_name().expect("a name") != "layout-0000000000000000");
        assert_eq!(besides_splices(pin), ["edge"], "no draft is left");
        let replaced: Vec<_> = old_objects.into_iter().filter(|o| !links.contains(o)).collect();
        gone(&replaced);
        let frame = tcp("192.0.2.7:1", "10.0.0.1:9092", SYN).bytes();
        let program = object_at(&pin.edge().join("turnout_admit")).expect("the program");
        assert_eq!(run_xdp(&program, &frame).expect("the program runs").0, XDP_DROP, "the new tables are in force");
    });
}

#[test]
fn pins_that_are_not_what_they_say_are_not_trusted() {
    need_programs!();
    inside("forged", |_, pin| {
        drop(open(pin));
        // A map of another shape under a name of ours, and the layout's mark as it should be.
        let other = object_at(&pin.edge().join("COUNTERS")).expect("a map");
        fs::remove_file(pin.edge().join("SETTINGS")).expect("removed");
        let path = std::ffi::CString::new(pin.edge().join("SETTINGS").as_os_str().as_encoded_bytes()).expect("a path");
        crate::test_run::pin_at(&other, &path).expect("pinned");
        let edge = open(pin);
        edge.set_ports(&ports(&[("0.0.0.0:9092", 1, true)])).expect("ports");
        edge.set_admission(&rules(&[], &[], Some((5, 5)))).expect("a table that fits");
        edge.set_sockets(&[]).expect("sockets");
        let names: Vec<_> = pinned_objects(&pin.edge()).into_iter().filter(|o| o.0 == "SETTINGS").collect();
        assert!(!names.is_empty());
        assert_eq!(besides_splices(pin), ["edge"]);
    });
}

#[test]
fn a_second_daemon_is_refused_and_told_who_holds_the_pins() {
    need_programs!();
    inside("two", |_, pin| {
        let first = open(pin);
        let refused = KernelEdge::open(pin.path()).expect_err("one owner");
        assert!(matches!(refused, EdgeError::Held { .. }), "{refused}");
        assert!(refused.to_string().contains(&format!("process {}", std::process::id())), "{refused}");
        let refused = kernel::detach(pin.path(), false).expect_err("not under a daemon");
        assert!(matches!(refused, EdgeError::Held { .. }), "{refused}");

        // A planned hand-over: the lock goes along, and the first one touches nothing any more.
        let lock = first.lock_fd().expect("a descriptor").expect("held");
        first.release();
        assert!(matches!(KernelEdge::open(pin.path()), Err(EdgeError::Held { .. })), "locked all the while");
        let second = KernelEdge::open_with_lock(pin.path(), lock).expect("handed over");
        let too_late = first.set_ports(&ports(&[])).expect_err("released");
        assert!(too_late.to_string().contains("handed over"), "{too_late:#}");
        second.set_ports(&ports(&[("0.0.0.0:9092", 1, true)])).expect("the new owner's");
        drop(second);
        open(pin);
    });
}

#[test]
fn a_descriptor_of_something_else_is_no_lock() {
    need_programs!();
    inside("badlock", |_, pin| {
        let other = PinFolder::reserve();
        drop(open(&other));
        drop(open(pin));
        let folder = fs::File::open(other.path()).expect("a folder");
        let refused = KernelEdge::open_with_lock(pin.path(), folder.into()).expect_err("another folder's");
        assert!(matches!(refused, EdgeError::WrongLock(_)), "{refused}");
    });
}

#[test]
fn what_a_crashed_attempt_left_is_cleared() {
    need_programs!();
    inside("crash", |_, pin| {
        drop(open(pin));
        let draft = pin.path().join("new-1");
        fs::create_dir(&draft).expect("a folder");
        fs::create_dir(draft.join("layout-1")).expect("a folder");
        for (name, at) in [("PORTS", draft.join("PORTS")), ("turnout_admit", pin.edge().join("turnout_admit-next"))] {
            let object = object_at(&pin.edge().join(name)).expect("pinned");
            let path = std::ffi::CString::new(at.as_os_str().as_encoded_bytes()).expect("a path");
            crate::test_run::pin_at(&object, &path).expect("pinned twice");
        }
        let _edge = open(pin);
        assert!(!draft.exists() && !pin.edge().join("turnout_admit-next").exists());
    });
}

#[test]
fn a_crash_before_the_switch_leaves_the_old_tables_in_force() {
    need_programs!();
    inside("staged", |_, pin| {
        let socket = listener("127.0.0.1:0");
        let old = open(pin);
        old.set_ports(&ports(&[("0.0.0.0:9092", 1, true)])).expect("ports");
        old.set_sockets(&[socket.as_fd()]).expect("sockets");
        drop(old);
        age(pin);
        let before = pinned_objects(&pin.edge());
        for _ in 0..2 {
            let new = open(pin);
            new.set_ports(&ports(&[("0.0.0.0:9093", 1, true)])).expect("ports");
            // Nothing more comes: its draft stays behind, as after a kill.
            drop(new);
            assert_eq!(fs::read_dir(pin.path()).expect("there").count(), 2, "a draft beside what is in use");
            assert_eq!(pinned_objects(&pin.edge()), before);
            TcpStream::connect("127.0.0.1:9092").expect("the old port");
            TcpStream::connect("127.0.0.1:9093").expect_err("not the new one");
        }
        let status = kernel::attach(pin.path(), None).expect("without a daemon the fresh tables are used as they are");
        assert!(status.steering);
        TcpStream::connect("127.0.0.1:9092").expect_err("they are empty: not ours, and nobody listens");
        assert_eq!(fs::read_dir(pin.path()).expect("there").count(), 1);
    });
}

#[test]
fn steering_that_somebody_took_off_comes_back() {
    need_programs!();
    inside("repair", |_, pin| {
        let edge = open(pin);
        let socket = listener("127.0.0.1:0");
        edge.set_ports(&ports(&[("0.0.0.0:9092", 1, true)])).expect("ports");
        edge.set_sockets(&[socket.as_fd()]).expect("sockets");
        fs::remove_file(pin.edge().join("steering")).expect("unpinned");
        harness::wait::until_true("the kernel lets go of it", Duration::from_secs(5), || {
            TcpStream::connect("127.0.0.1:9092").is_err()
        })
        .expect("nobody steers");
        edge.upkeep();
        TcpStream::connect("127.0.0.1:9092").expect("steered again");
        assert!(edge.status().steering);
    });
}

#[test]
fn pins_taken_away_under_a_daemon_by_force_are_said_to_be_gone() {
    need_programs!();
    inside("force", |netns, pin| {
        veth(netns, "near", "far");
        let edge = open(pin);
        edge.set_interfaces(Some(&["far".to_owned()]));
        assert!(kernel::detach(pin.path(), true).expect("by force"));
        assert_eq!(xdp_of(netns, "far"), None);
        edge.upkeep();
        let status = edge.status();
        assert!(!status.steering && status.interfaces[0].mode.is_none(), "{status:?}");
        let reason = status.interfaces[0].reason.as_deref().expect("a reason");
        assert!(reason.contains("are gone"), "{reason}");
        assert_eq!(edge.lost().as_deref(), Some(reason));
        assert_eq!(xdp_of(netns, "far"), None, "and nothing comes back by itself");
        edge.set_ports(&ports(&[])).expect("its own tables live as long as it does");
        // Somebody else's, from now on.
        let other = open(pin);
        edge.upkeep();
        edge.detach().expect("nothing of its own is left to take off");
        assert!(other.lost().is_none() && pin.edge().exists());
        other.upkeep();
        assert!(other.lost().is_none());
    });
}

#[test]
fn detaching_leaves_nothing_also_after_a_kill() {
    need_programs!();
    let netns = Netns::create("killed").expect("a namespace");
    let pin = PinFolder::reserve();
    veth(&netns, "near", "far");
    let qdiscs = || netns.run(|| run("tc", &["qdisc", "show"])).expect("inside");
    let before = qdiscs();
    let mut command = Command::new(env!("CARGO_BIN_EXE_edge-holder"));
    command.arg(pin.path()).arg("far").stdin(Stdio::piped()).stdout(Stdio::piped());
    let holder = Process::spawn("edge-holder", command, Some(&netns), None).expect("started");
    let (_stdin, stdout) = holder.take_pipes().expect("pipes");
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).expect("it says when it is ready");
    assert_eq!(line.trim(), "ready");
    assert_eq!(xdp_of(&netns, "far"), Some("native"));
    let connect = || {
        netns.run(|| {
            let to: SocketAddr = "127.0.0.1:9092".parse().expect("an address");
            TcpStream::connect_timeout(&to, Duration::from_secs(2)).map(drop)
        })
    };
    connect().expect("inside").expect("served while it lives");
    let objects = pinned_objects(&pin.edge());
    assert!(objects.len() >= 16, "{objects:?}");

    holder.kill();
    drop(holder);
    let refused = connect().expect("inside").expect_err("nobody is there");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused, "refused at once, not black-holed");
    assert_eq!(xdp_of(&netns, "far"), Some("native"), "admission outlives the daemon");

    assert!(netns.run(|| kernel::detach(pin.path(), false)).expect("inside").expect("nobody holds it now"));
    assert_eq!(xdp_of(&netns, "far"), None);
    gone(&objects);
    assert!(!pin.path().exists());
    assert_eq!(qdiscs(), before);
    assert!(!kernel::detach(pin.path(), false).expect("a second detach is no error"));
}

#[test]
fn attaching_without_a_daemon_lets_everything_pass_and_detaching_ends_it() {
    need_programs!();
    inside("attach", |netns, pin| {
        veth(netns, "near", "far");
        let status = kernel::attach(pin.path(), Some(&["far".to_owned(), "nosuch0".to_owned()])).expect("attached");
        assert!(status.steering, "{status:?}");
        let modes: Vec<_> = status.interfaces.iter().map(|i| (i.name.as_str(), i.mode)).collect();
        assert_eq!(modes, [("far", Some("native")), ("nosuch0", None)]);
        assert!(status.interfaces[1].reason.as_deref().expect("a reason").contains("no such interface"));
        assert_eq!(kernel::status(pin.path()).interfaces.len(), 1, "anybody can look");
        assert_eq!(kernel::status(pin.path()).layout, status.layout);
        assert!(kernel::counters(pin.path()).expect("readable").expect("pinned").is_empty());
        let service = listener("127.0.0.1:0");
        TcpStream::connect(service.local_addr().expect("bound")).expect("a service of the host");
        let objects = pinned_objects(&pin.edge());
        assert!(kernel::detach(pin.path(), false).expect("detached"));
        gone(&objects);
        assert!(!pin.path().exists());
        assert!(kernel::counters(pin.path()).expect("readable").is_none());
    });
}

#[test]
fn interfaces_that_come_go_or_are_made_anew_are_followed() {
    need_programs!();
    inside("come", |netns, pin| {
        let edge = open(pin);
        edge.set_interfaces(None);
        assert!(edge.status().interfaces.is_empty(), "only the loopback is there: {:?}", edge.status());
        let attached = || -> Vec<(String, Option<&'static str>)> {
            edge.upkeep();
            edge.status().interfaces.into_iter().map(|i| (i.name, i.mode)).collect()
        };
        let both = [("far".to_owned(), Some("native")), ("near".to_owned(), Some("native"))];
        for _ in 0..2 {
            veth(netns, "near", "far");
            assert_eq!(attached(), both);
            netns.ip(&["link", "del", "near"]).expect("deleted");
            assert_eq!(attached(), []);
            assert!(!pinned_objects(&pin.edge()).iter().any(|o| o.0.starts_with("xdp-")), "no pin of what is gone");
        }
        veth(netns, "near", "far");
        edge.set_interfaces(Some(&["far".to_owned()]));
        assert_eq!(attached(), both[..1]);
        assert_eq!(xdp_of(netns, "near"), None);
        // An address that came is ours within the next look.
        edge.set_ports(&ports(&[("0.0.0.0:9092", 1, true)])).expect("ports");
        edge.set_admission(&rules(&["0.0.0.0/0"], &[], None)).expect("rules");
        let program = object_at(&pin.edge().join("turnout_admit")).expect("the program");
        let verdict = || run_xdp(&program, &tcp("192.0.2.7:1", "10.7.7.7:9092", SYN).bytes()).expect("runs").0;
        assert_ne!(verdict(), XDP_DROP);
        netns.ip(&["address", "add", "10.7.7.7/24", "dev", "far"]).expect("an address");
        edge.upkeep();
        assert_eq!(verdict(), XDP_DROP);
    });
}

#[test]
fn a_driver_without_xdp_gets_the_generic_mode_with_the_reason() {
    need_programs!();
    inside("generic", |netns, pin| {
        netns.ip(&["link", "add", "br0", "type", "bridge"]).expect("a bridge");
        netns.ip(&["link", "set", "br0", "up"]).expect("up");
        let edge = open(pin);
        edge.set_interfaces(Some(&["br0".to_owned()]));
        let status = edge.status();
        assert_eq!(status.interfaces[0].mode, Some("generic"), "{status:?}");
        assert!(status.interfaces[0].reason.as_deref().expect("a reason").contains("refused native XDP"));
        assert_eq!(xdp_of(netns, "br0"), Some("generic"));
        edge.set_interfaces(None);
        assert!(edge.status().interfaces.is_empty(), "a bridge gets its packets from others: {:?}", edge.status());
        assert_eq!(xdp_of(netns, "br0"), None);
    });
}

#[test]
fn an_interface_with_anothers_program_is_left_to_it_and_said_so() {
    need_programs!();
    inside("taken", |netns, pin| {
        veth(netns, "near", "far");
        let other = PinFolder::reserve();
        kernel::attach(other.path(), Some(&["far".to_owned()])).expect("attached");
        let edge = open(pin);
        edge.set_interfaces(Some(&["far".to_owned()]));
        let status = edge.status();
        assert_eq!(status.interfaces[0].mode, None, "{status:?}");
        assert!(
            status.interfaces[0].reason.as_deref().expect("a reason").contains("another XDP program"),
            "{status:?}"
        );
        assert!(kernel::detach(other.path(), false).expect("detached"));
        edge.upkeep();
        assert_eq!(edge.status().interfaces[0].mode, Some("native"), "tried again by the upkeep");
        assert!(edge.lock_fd().expect("a descriptor").is_some_and(|fd| fd.as_raw_fd() >= 0));
    });
}

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().expect("it runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
