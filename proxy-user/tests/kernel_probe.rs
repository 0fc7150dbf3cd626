//! The probe in a real kernel: loaded, attached to a veth in native mode, fed with packets, read, detached.
//!
//! Each test makes its own world, a network and a mount namespace that end with its thread. Making them takes root;
//! without it, or in a build without kernel programs, the tests are skipped and say why.

use std::ffi::{CStr, CString};
use std::fs;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use proxy_common::packet::{Class, Counter};
use turnout::kernel::probe::{ProbeError, attach, detach, pinned_counters};
use turnout::kernel::{Probe, object};

const NEAR: &str = "near";
const FAR: &str = "far";
const FRAMES: u64 = 50;

#[test]
fn the_probe_counts_what_arrives_on_a_veth_in_native_mode() {
    in_a_world_of_its_own("the_probe_counts_what_arrives_on_a_veth_in_native_mode", |_| {
        let mut probe = Probe::load().expect("loaded");
        probe.attach(FAR).expect("attached");
        assert!(link_details(FAR).contains("prog/xdp"), "native mode, not xdpgeneric: {}", link_details(FAR));

        let (tcp, udp) = (frame(6), frame(17));
        for _ in 0..FRAMES {
            send(NEAR, &tcp);
            send(NEAR, &udp);
        }
        let counted = probe.counters().expect("read");
        let expected = |frame: &[u8]| Counter { packets: FRAMES, bytes: FRAMES * frame.len() as u64 };
        assert_eq!(of(&counted, Class::Tcp4), expected(&tcp));
        assert_eq!(of(&counted, Class::Udp4), expected(&udp));
        assert_eq!(of(&counted, Class::Malformed), Counter::default());

        drop(probe);
        assert!(!link_details(FAR).contains("xdp"), "nothing may be left: {}", link_details(FAR));
    });
}

#[test]
fn a_pinned_probe_outlives_its_loader_and_detaching_leaves_nothing() {
    in_a_world_of_its_own("a_pinned_probe_outlives_its_loader_and_detaching_leaves_nothing", |bpffs| {
        let pin = bpffs.join("turnout");
        attach(&pin, FAR).expect("attached");
        assert!(link_details(FAR).contains("prog/xdp"));
        assert!(matches!(attach(&pin, NEAR), Err(ProbeError::AlreadyAttached(_))), "one probe at a time");
        assert!(!link_details(NEAR).contains("xdp"), "the loser leaves nothing");

        send(NEAR, &frame(6));
        let counted = pinned_counters(&pin).expect("read").expect("attached");
        assert_eq!(of(&counted, Class::Tcp4).packets, 1);

        assert!(detach(&pin).expect("detached"));
        let patience = Instant::now() + Duration::from_secs(5);
        while link_details(FAR).contains("xdp") {
            assert!(Instant::now() < patience, "nothing may be left: {}", link_details(FAR));
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(!pin.exists(), "no pin may be left");
        assert!(!detach(&pin).expect("a second detach is no error"));
        assert!(pinned_counters(&pin).expect("readable").is_none());
    });
}

#[test]
fn a_refused_attachment_leaves_no_pins() {
    in_a_world_of_its_own("a_refused_attachment_leaves_no_pins", |bpffs| {
        let pin = bpffs.join("turnout");
        let refused = attach(&pin, "nosuch0").expect_err("there is no such interface");
        assert!(refused.to_string().contains("nosuch0"), "{refused}");
        assert_eq!(fs::read_dir(&pin).expect("made on the way").count(), 0);
    });
}

/// Runs the body in fresh namespaces with a veth pair that is up, and the path of a bpffs of its own.
fn in_a_world_of_its_own(test: &str, body: impl FnOnce(&Path) + Send + 'static) {
    if object().is_none() {
        return skip(test, "built without kernel programs");
    }
    // SAFETY: takes no argument and can't fail.
    if unsafe { libc::geteuid() } != 0 {
        return skip(test, "needs root");
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mount_point = folder.path().to_owned();
    // Namespaces belong to a thread: a thread of its own keeps the other tests where they are.
    let world = std::thread::spawn(move || {
        // SAFETY: changes only this thread's namespaces and its own view of the file system.
        check(unsafe { libc::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS) }, "unshare");
        mount(c"none", Path::new("/"), None, libc::MS_REC | libc::MS_PRIVATE);
        mount(c"bpf", &mount_point, Some(c"bpf"), 0);
        ip(&format!("link add {NEAR} type veth peer name {FAR}"));
        for end in [NEAR, FAR] {
            // Without a link-local address IPv6 has nothing to announce.
            ip(&format!("link set {end} addrgenmode none"));
            ip(&format!("link set {end} up"));
        }
        body(&mount_point);
    });
    if let Err(panic) = world.join() {
        std::panic::resume_unwind(panic);
    }
}

fn skip(test: &str, reason: &str) {
    println!("skipped: {reason}");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../build");
    fs::create_dir_all(&folder).expect("build folder");
    let mut list = fs::File::options().create(true).append(true).open(folder.join("skips.txt")).expect("list of skips");
    writeln!(list, "{test}\t{reason}").expect("list of skips");
}

fn check(result: libc::c_int, what: &str) {
    assert_eq!(result, 0, "{what}: {}", io::Error::last_os_error());
}

fn mount(source: &CStr, target: &Path, kind: Option<&CStr>, flags: libc::c_ulong) {
    let target = CString::new(target.as_os_str().as_encoded_bytes()).expect("no NUL in a path");
    let kind = kind.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: every pointer is null or a string that ends in NUL and outlives the call.
    let result = unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind, flags, std::ptr::null()) };
    check(result, "mount");
}

fn ip(arguments: &str) -> String {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().expect("ip runs (package iproute2)");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn link_details(interface: &str) -> String {
    ip(&format!("-details link show dev {interface}"))
}

/// An Ethernet and IPv4 header of that protocol, with ports.
fn frame(protocol: u8) -> Vec<u8> {
    let mut bytes = vec![0x02; 12];
    bytes.extend([0x08, 0x00]);
    let mut header = [0u8; 20];
    (header[0], header[9]) = (0x45, protocol);
    bytes.extend(header);
    bytes.extend([0x9c, 0x40, 0x23, 0x84]);
    // Shorter frames are padded by some drivers.
    bytes.resize(60 + usize::from(protocol), 0);
    bytes
}

/// Puts a frame on the wire as it is (packet(7)).
fn send(interface: &str, frame: &[u8]) {
    let name = CString::new(interface).expect("no NUL in a name");
    // SAFETY: the name ends in NUL and outlives the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    assert_ne!(index, 0, "{interface} exists");
    // SAFETY: takes no pointer; the descriptor is owned from here on.
    let socket = unsafe {
        let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0, "packet socket: {}", io::Error::last_os_error());
        OwnedFd::from_raw_fd(fd)
    };
    // SAFETY: a structure of integers, for which zeros are values.
    let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    to.sll_family = libc::AF_PACKET as libc::sa_family_t;
    to.sll_ifindex = index as libc::c_int;
    to.sll_halen = 6;
    // SAFETY: both pointers are valid for the lengths that go with them.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            frame.as_ptr().cast(),
            frame.len(),
            0,
            (&raw const to).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    assert_eq!(sent, frame.len() as isize, "send: {}", io::Error::last_os_error());
}

fn of(counted: &[(Class, Counter)], class: Class) -> Counter {
    counted.iter().find(|(c, _)| *c == class).expect("every class is there").1
}
