//! What the kernel side needs: each test drops everything and raises only what it lists.

use std::io;
use std::os::fd::AsFd as _;

use turnout::gateway::edge::Edge as _;
use turnout::kernel::capabilities::{Capability, NEEDED, Set, keep_only, raise_only};
use turnout::kernel::{self, KernelEdge};

use crate::need_programs;
use crate::support::{inside, listener, ports, rules, xdp_of};

const USER: u32 = 65_533;

/// Makes this thread another user's, who keeps these capabilities and nothing else.
fn become_user(keep: &[Capability]) {
    // SAFETY: the calls change credentials of this thread only, and take no pointer but a null one for no groups.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0), 0);
        let nobody = (USER, USER, USER);
        assert_eq!(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()), 0);
        assert_eq!(libc::syscall(libc::SYS_setresgid, nobody.0, nobody.1, nobody.2), 0);
        assert_eq!(libc::syscall(libc::SYS_setresuid, nobody.0, nobody.1, nobody.2), 0);
    }
    raise_only(keep.iter().copied()).expect("still permitted");
    keep_only(keep.iter().copied()).expect("given up");
    let has = Set::effective().expect("readable");
    assert_eq!(has, keep.iter().copied().collect(), "nothing else is left");
}

#[test]
fn a_user_with_the_three_capabilities_does_everything_once_the_folder_is_prepared() {
    need_programs!();
    inside("user", |netns, pin| {
        netns.ip(&["link", "add", "near", "type", "veth", "peer", "name", "far"]).expect("veth");
        netns.ip(&["link", "set", "far", "up"]).expect("up");
        kernel::prepare(pin.path(), USER, USER).expect("prepared");
        let open_as_user = || {
            std::thread::scope(|scope| {
                let work = scope.spawn(|| {
                    become_user(&NEEDED);
                    let edge = KernelEdge::open(pin.path()).map_err(anyhow::Error::new)?;
                    edge.set_ports(&ports(&[("0.0.0.0:9092", 1, true)]))?;
                    edge.set_admission(&rules(&["192.0.2.0/24"], &[], None))?;
                    let socket = listener("127.0.0.1:0");
                    edge.set_sockets(&[socket.as_fd()])?;
                    edge.set_interfaces(Some(&["far".to_owned()]));
                    std::net::TcpStream::connect("127.0.0.1:9092")?;
                    anyhow::Ok((edge.status(), edge.counters().len()))
                });
                work.join().expect("no panic")
            })
        };
        let (status, counted) = open_as_user().unwrap_or_else(|e| panic!("{e:#}"));
        assert!(status.steering && status.interfaces[0].mode == Some("native"), "{status:?}");
        assert_eq!(counted, 1);
        assert_eq!(xdp_of(netns, "far"), Some("native"));
        let again = open_as_user().unwrap_or_else(|e| panic!("an upgrade: {e:#}")).0;
        assert_ne!(again.programs["turnout_admit"].0, status.programs["turnout_admit"].0);
        // A start as root in between, then as the user again.
        drop(KernelEdge::open(pin.path()).expect("as root"));
        kernel::prepare(pin.path(), USER, USER).expect("prepared again");
        open_as_user().unwrap_or_else(|e| panic!("after root: {e:#}"));
    });
}

#[test]
fn without_one_of_the_three_it_is_refused_with_a_reason() {
    need_programs!();
    for lacking in NEEDED {
        inside("lacking", |_, pin| {
            kernel::prepare(pin.path(), USER, USER).expect("prepared");
            let refused = std::thread::scope(|scope| {
                let work = scope.spawn(|| {
                    let rest: Vec<_> = NEEDED.into_iter().filter(|&c| c != lacking).collect();
                    become_user(&rest);
                    KernelEdge::open(pin.path()).map(drop)
                });
                work.join().expect("no panic").expect_err("one is lacking")
            });
            let text = refused.to_string();
            assert!(text.contains("refused") && text.contains("turnout doctor"), "{lacking:?}: {text}");
            assert!(!pin.edge().exists(), "{lacking:?}: nothing is left of the attempt");
        });
    }
}

#[test]
fn a_folder_that_is_not_the_users_is_refused_with_the_step_that_helps() {
    need_programs!();
    inside("notmine", |_, pin| {
        kernel::prepare(pin.path(), USER + 1, USER + 1).expect("prepared for somebody else");
        let refused = std::thread::scope(|scope| {
            let work = scope.spawn(|| {
                become_user(&NEEDED);
                KernelEdge::open(pin.path()).map(drop)
            });
            work.join().expect("no panic").expect_err("not this user's")
        });
        assert!(refused.to_string().contains("ExecStartPre"), "{refused}");
        let kind = std::error::Error::source(&refused).and_then(|e| e.downcast_ref::<io::Error>()).map(io::Error::kind);
        assert_eq!(kind, Some(io::ErrorKind::PermissionDenied));
    });
}

/// Runs on a thread with a file system of its own view.
fn in_own_mounts<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let work = scope.spawn(|| {
            // SAFETY: changes only this thread's view; both strings end in NUL.
            unsafe {
                assert_eq!(libc::unshare(libc::CLONE_NEWNS), 0, "{}", io::Error::last_os_error());
                let (none, root) = (c"none".as_ptr(), c"/".as_ptr());
                assert_eq!(libc::mount(none, root, none, libc::MS_REC | libc::MS_PRIVATE, std::ptr::null()), 0);
            }
            body()
        });
        work.join().expect("no panic")
    })
}

/// Unmounts the system's bpffs, however often it is mounted.
fn unmount_bpffs() {
    // SAFETY: the string ends in NUL.
    while unsafe { libc::umount2(c"/sys/fs/bpf".as_ptr(), libc::MNT_DETACH) } == 0 {}
}

#[test]
fn a_bpffs_is_mounted_where_there_is_none_and_only_by_who_may() {
    need_programs!();
    inside("mount", |_, pin| {
        in_own_mounts(|| {
            unmount_bpffs();
            let refused = std::thread::scope(|scope| {
                let work = scope.spawn(|| {
                    become_user(&NEEDED);
                    KernelEdge::open(pin.path()).map(drop)
                });
                work.join().expect("no panic").expect_err("mounting takes more")
            });
            assert!(refused.to_string().contains("mount -t bpf bpf /sys/fs/bpf"), "{refused}");
            drop(KernelEdge::open(pin.path()).expect("root mounts it"));
            assert!(pin.edge().join("PORTS").exists());
            assert!(kernel::detach(pin.path(), false).expect("detached"));
        });
    });
}

#[test]
fn a_bpffs_that_is_closed_to_others_as_systemd_mounts_it_is_opened_for_passing_through_only() {
    need_programs!();
    inside("systemd", |_, pin| {
        in_own_mounts(|| {
            unmount_bpffs();
            let (kind, at, options) = (c"bpf", c"/sys/fs/bpf", c"mode=0700");
            // SAFETY: every string ends in NUL and outlives the call.
            let mounted = unsafe { libc::mount(kind.as_ptr(), at.as_ptr(), kind.as_ptr(), 0, options.as_ptr().cast()) };
            assert_eq!(mounted, 0, "{}", io::Error::last_os_error());
            kernel::prepare(pin.path(), USER, USER).expect("prepared");
            std::thread::scope(|scope| {
                let work = scope.spawn(|| {
                    become_user(&NEEDED);
                    assert!(std::fs::read_dir("/sys/fs/bpf").is_err(), "what others pinned isn't listed");
                    drop(KernelEdge::open(pin.path()).expect("its own folder is reached"));
                    kernel::detach(pin.path(), false).expect("detached")
                });
                assert!(work.join().expect("no panic"));
            });
            assert!(!pin.edge().exists());
        });
    });
}

#[test]
fn the_programs_load_with_these_capabilities_effective_and_no_other() {
    need_programs!();
    inside("raised", |_, pin| {
        // Root without its rights over files: the folder is root's, and the bpffs is mounted already.
        kernel::prepare(pin.path(), 0, 0).expect("prepared");
        raise_only(NEEDED).expect("root may");
        let opened = KernelEdge::open(pin.path());
        raise_only((0..41).filter_map(known)).expect("root may");
        opened.expect("three are enough");
    });
}

fn known(number: u8) -> Option<Capability> {
    [Capability::NetAdmin, Capability::SysAdmin, Capability::Perfmon, Capability::Bpf]
        .into_iter()
        .find(|c| *c as u8 == number)
}
