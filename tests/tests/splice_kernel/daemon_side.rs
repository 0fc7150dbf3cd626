//! The kernel side of the splice as the daemon has it (`KernelEdge`): loaded, attached and pinned, sessions begun on real
//! connections, taken back and ended. All as a user with the daemon's three capabilities and no other right.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use aya::programs::{SchedClassifier, TcAttachType};
use harness::netns::{Netns, World};
use harness::process::Process;
use harness::turnout::PinFolder;
use harness::wait;
use proxy_common::splice::arm::Armed;
use proxy_common::splice::notes::{Kind, Note};
use proxy_common::splice::seq::{InLocal, OutLocal};
use proxy_common::splice::state::Side;
use turnout::gateway::edge::{Edge as _, Port, Slot};
use turnout::kernel::capabilities::{NEEDED, keep_only, raise_only};
use turnout::kernel::{self, KernelEdge};
use turnout::splice::eligible::Obstacle;
use turnout::splice::mirror::{ConnectionId, Event, Mirror, Mirrored, Tap};
use turnout::splice::session::{Refusal, Session, Splicer};

use crate::fixtures::Family;
use crate::need_splice;
use crate::programs::Programs;
use crate::session::{FORWARDED, policy};
use crate::sys::set_option;

const PORT: u16 = 9092;
const USER: u32 = 65_534;
const SIDES: [Side; 2] = [Side::Client, Side::Broker];
const INTERFACES: [&str; 2] = ["client0", "fabric"];
const PATIENCE: Duration = Duration::from_secs(10);

/// Makes this thread, and those it starts, another user's with the daemon's capabilities.
fn become_user() {
    // SAFETY: the calls change credentials of this thread only, and take no pointer but a null one for no groups.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0), 0);
        assert_eq!(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()), 0);
        assert_eq!(libc::syscall(libc::SYS_setresgid, USER, USER, USER), 0);
        assert_eq!(libc::syscall(libc::SYS_setresuid, USER, USER, USER), 0);
    }
    raise_only(NEEDED).expect("still permitted");
    keep_only(NEEDED).expect("given up");
}

/// The hosts, and a broker that answers.
struct Hosts {
    world: World,
    gateway: SocketAddr,
    broker: SocketAddr,
}

impl Hosts {
    fn new(family: Family) -> Self {
        let world = World::builder().brokers(1).build().expect("hosts");
        let of = |v4: IpAddr, v6: IpAddr| if family == Family::V4 { v4 } else { v6 };
        let gateway = SocketAddr::new(of(world.gateway_seen_by(0).into(), world.gateway_v6_seen_by(0).into()), PORT);
        let broker = SocketAddr::new(of(world.brokers()[0].v4.into(), world.brokers()[0].v6.into()), PORT);
        let listener = world.brokers()[0].netns.run(|| TcpListener::bind(broker).expect("a broker")).expect("inside");
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                thread::spawn(move || answer(stream));
            }
        });
        Self { world, gateway, broker }
    }

    /// Runs on the gateway's host, as the daemon's user.
    fn on_gateway<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let as_user = || {
            become_user();
            work()
        };
        self.world.gateway().netns.run(as_user).expect("inside")
    }

    /// An edge whose programs stand on both interfaces, for connections to a port of the gateway's.
    fn edge(&self, pin: &PinFolder, port: u16) -> KernelEdge {
        self.edge_with(pin, port, None)
    }

    /// The same, with so many bytes for copies of frames.
    fn edge_with(&self, pin: &PinFolder, port: u16, mirror: Option<u64>) -> KernelEdge {
        kernel::prepare(pin.path(), USER, USER).expect("prepared");
        self.on_gateway(|| {
            let edge = KernelEdge::open_mirroring(pin.path(), None, mirror);
            let edge = edge.unwrap_or_else(|e| panic!("{:#}", anyhow::Error::new(e)));
            let at = SocketAddr::new(self.gateway.ip(), port);
            edge.set_ports(&[(at, Port { slot: Slot(0), open: true })].into()).expect("ports");
            edge.set_interfaces(Some(&INTERFACES.map(str::to_owned)));
            splicer(&edge).set_policy(0, &policy()).expect("a policy");
            edge
        })
    }

    /// A client's connection through the gateway: the client's end, and the gateway's to the client and to a broker.
    fn connections(&self, splicer: &dyn Splicer) -> (TcpStream, [TcpStream; 2]) {
        let opening = splicer.opening();
        let room = |socket: &socket2::Socket| {
            set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, opening.receive_buffer as i32).expect("room");
        };
        let socket = |to: SocketAddr| {
            let domain = if to.is_ipv4() { socket2::Domain::IPV4 } else { socket2::Domain::IPV6 };
            let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None).expect("a socket");
            room(&socket);
            socket
        };
        let listener = self.on_gateway(|| {
            let listener = socket(self.gateway);
            listener.set_reuse_address(true).expect("an option");
            listener.bind(&self.gateway.into()).expect("the gateway's port");
            listener.listen(8).expect("a listener");
            TcpListener::from(listener)
        });
        let dial = || TcpStream::connect_timeout(&self.gateway, PATIENCE).expect("the gateway answers");
        let client = self.world.client(0).netns.run(dial).expect("inside");
        let (accepted, _) = listener.accept().expect("a client");
        let broker = self.on_gateway(|| {
            let dialling = socket(self.broker);
            set_option(&dialling, libc::SOL_SOCKET, libc::SO_MARK, opening.mark as i32).expect("a mark");
            dialling.connect(&self.broker.into()).expect("the broker answers");
            TcpStream::from(dialling)
        });
        for stream in [&client, &accepted, &broker] {
            stream.set_nodelay(true).expect("no delay");
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        }
        (client, [accepted, broker])
    }
}

fn splicer(edge: &KernelEdge) -> Arc<dyn Splicer> {
    edge.splicer().unwrap_or_else(|why| panic!("no splice: {why}"))
}

fn begin(splicer: &dyn Splicer, [client, broker]: &[TcpStream; 2]) -> Result<Session, Refusal> {
    splicer.begin(client.as_fd(), broker.as_fd(), 0)
}

fn read_frame(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut size = [0; 4];
    stream.read_exact(&mut size)?;
    let mut frame = vec![0; u32::from_be_bytes(size) as usize];
    stream.read_exact(&mut frame)?;
    Ok(frame)
}

/// The broker: sends back what it got, from the correlation id on.
fn answer(mut stream: TcpStream) {
    stream.set_nodelay(true).expect("no delay");
    while let Ok(request) = read_frame(&mut stream) {
        let answer = &request[4..];
        let whole = [&(answer.len() as u32).to_be_bytes(), answer].concat();
        if stream.write_all(&whole).is_err() {
            return;
        }
    }
}

/// A request, and its answer.
fn exchange(n: u32) -> (Vec<u8>, Vec<u8>) {
    let body = vec![n as u8; 100 + 13 * (n as usize % 97)];
    let header = [&FORWARDED.to_be_bytes()[..], &9u16.to_be_bytes(), &n.to_be_bytes()].concat();
    let request = [&((8 + body.len()) as u32).to_be_bytes()[..], &header, &body].concat();
    let answer = [&((4 + body.len()) as u32).to_be_bytes()[..], &n.to_be_bytes(), &body].concat();
    (request, answer)
}

/// A client's requests, one after the other, each with its answer.
fn ask(client: &mut TcpStream, numbers: std::ops::Range<u32>) {
    for n in numbers {
        let (request, expected) = exchange(n);
        client.write_all(&request).unwrap_or_else(|e| panic!("request {n}: {e}"));
        let answer = read_frame(client).unwrap_or_else(|e| panic!("answer {n}: {e}"));
        assert!(answer == expected[4..], "answer {n} is damaged");
    }
}

/// The daemon's part: relays what reaches its sockets, and gives leave when nothing is under way. Ends with the client.
struct Relay {
    session: Session,
    sockets: [TcpStream; 2],
    /// By direction: place in x's stream and in y's, the epoch, and the index of the next frame.
    lanes: [(u32, u32, u32, u32); 2],
    arms: Arc<AtomicBool>,
    armed: [Option<Armed>; 2],
    tap: Option<Tap>,
    /// Bytes that it relayed.
    relayed: u64,
}

impl Relay {
    fn new(session: Session, sockets: [TcpStream; 2], arms: &Arc<AtomicBool>) -> Self {
        sockets.iter().for_each(|s| s.set_nonblocking(true).expect("an option"));
        let lanes = SIDES.map(|side| (session.place(side).reads, session.place(side.other()).writes, 0, 0));
        Self { session, sockets, lanes, arms: Arc::clone(arms), armed: [None; 2], tap: None, relayed: 0 }
    }

    /// With copies of every frame for somebody.
    fn mirrored(self, mirror: &Arc<Mirror>, consumer: Arc<dyn Mirrored>) -> Self {
        let mut tap = Tap::new(mirror, consumer);
        tap.splice(&self.session, 0);
        Self { tap: Some(tap), ..self }
    }

    fn run(mut self) -> (Session, u64) {
        let mut whole = None;
        loop {
            let mut progress = false;
            for side in SIDES {
                match self.pass_on(side) {
                    Some(true) => progress = true,
                    Some(false) => {}
                    None => return (self.session, self.relayed),
                }
            }
            if progress {
                continue;
            }
            let arms = self.arms.load(Ordering::SeqCst);
            if arms && self.session.is_seen() {
                let [client, broker] = &self.sockets;
                let whole = *whole.get_or_insert_with(|| self.session.is_whole(client.as_fd(), broker.as_fd()));
                assert!(whole, "nothing came out of order here");
                SIDES.into_iter().for_each(|side| self.arm(side));
            } else if !arms {
                assert!(SIDES.into_iter().all(|side| self.session.recall(side)), "taken back");
            }
            thread::sleep(Duration::from_micros(200));
        }
    }

    /// Frames come whole here, for the client waits for each answer. `None`: the stream has ended.
    fn pass_on(&mut self, side: Side) -> Option<bool> {
        let mut bytes = [0; 65_536];
        let length = match (&self.sockets[side.index()]).read(&mut bytes) {
            Ok(0) => return None,
            Ok(length) => length,
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Some(false),
            Err(e) => panic!("{side:?}: {e}"),
        };
        let turn = self.session.turn(side);
        let (reads, writes, epoch, index) = &mut self.lanes[side.index()];
        if turn.epoch != *epoch {
            assert_eq!((turn.epoch, turn.prefix), (*epoch + 2, 0), "{side:?}: one turn, and it ends between frames");
            (*epoch, *index) = (turn.epoch, turn.frames);
            self.tap.iter_mut().for_each(|tap| tap.resume(side, self.session.tally(side), 0, false));
        }
        if let Some(tap) = &mut self.tap {
            tap.begin(side, Some(*index), length as u64);
            tap.bytes(side, &bytes[..length]);
        }
        let mirrored = self.tap.is_some();
        match side {
            Side::Client => self.session.notes().set(*index, Note { kind: Kind::Plain, mirrored }),
            Side::Broker => self.session.notes().set_answered(index.wrapping_add(1)),
        }
        *index += 1;
        *reads = reads.wrapping_add(length as u32);
        *writes = writes.wrapping_add(length as u32);
        self.relayed += length as u64;
        (&self.sockets[side.other().index()]).write_all(&bytes[..length]).expect("room for a frame");
        Some(true)
    }

    fn arm(&mut self, side: Side) {
        let (reads, writes, epoch, frames) = self.lanes[side.index()];
        let armed = Armed { at: InLocal(reads), sent: OutLocal(writes), frames, remain: 0, epoch };
        if self.armed[side.index()].replace(armed) != Some(armed) {
            self.session.arm(side, &armed);
        }
    }
}

/// Tcx programs on an interface of the calling thread's namespace.
fn chain(interface: &str) -> [Vec<u32>; 2] {
    [TcAttachType::Ingress, TcAttachType::Egress].map(|way| {
        let (_, programs) = SchedClassifier::query_tcx(interface, way).expect("asked");
        programs.iter().map(|program| program.id()).collect()
    })
}

fn sets(pin: &PinFolder) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(pin.path()).into_iter().flatten();
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.filter(|path| path.file_name().is_some_and(|n| n.to_string_lossy().contains("splice-"))).collect()
}

#[test]
fn connections_go_through_the_kernel_until_they_are_taken_back() {
    need_splice!();
    for family in [Family::V4, Family::V6] {
        let hosts = Hosts::new(family);
        let pin = PinFolder::reserve();
        let edge = hosts.edge(&pin, PORT);
        let splicer = splicer(&edge);
        let (mut client, sockets) = hosts.connections(splicer.as_ref());
        let session = hosts.on_gateway(|| begin(splicer.as_ref(), &sockets)).unwrap_or_else(|e| panic!("{e}"));
        assert!(!session.is_seen(), "no packet has come yet");
        assert_eq!(edge.splice_status().expect("a splice").sessions, 1);

        let arms = Arc::new(AtomicBool::new(true));
        let relay = Relay::new(session, sockets, &arms);
        let relay = thread::spawn({
            let netns = hosts.world.gateway().netns.open().expect("open");
            move || {
                netns.enter().expect("inside");
                become_user();
                relay.run()
            }
        });
        ask(&mut client, 0..300);
        arms.store(false, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(50));
        ask(&mut client, 300..310);
        drop(client);
        let (session, relayed) = relay.join().expect("no panic");
        for side in SIDES {
            let traffic = session.traffic(side);
            assert!(traffic.packets > 200, "{family:?} {side:?}: {traffic:?} by the kernel, {relayed} by the daemon");
            assert!(traffic.bytes > 4 * relayed, "{family:?} {side:?}: {traffic:?} by the kernel, {relayed} otherwise");
            assert!(!session.turn(side).is_peer(), "taken back");
        }
        assert_eq!(session.malformed(), 0);
        let counters = edge.splice_status().expect("a splice").counters;
        assert!(counters["opened"] >= 2 && counters["opening"] >= 2, "{counters:?}");
        assert_eq!(counters["bad_form"] + counters["bad_checksum"] + counters["unannounced"], 0, "{counters:?}");

        drop(session);
        assert_eq!(edge.splice_status().expect("a splice").sessions, 0);
        assert_eq!(sets(&pin).len(), 1);
        edge.detach().expect("taken off");
        assert!(edge.splicer().is_err(), "nothing begins any more");
        assert!(sets(&pin).is_empty(), "{:?}", sets(&pin));
        let none = hosts.world.gateway().netns.run(|| INTERFACES.map(chain)).expect("inside");
        assert_eq!(none, <[[Vec<u32>; 2]; 2]>::default());
    }
}

/// Frames as they were copied, by direction; and what was lost.
#[derive(Default)]
struct Taker {
    frames: Mutex<[Vec<Vec<u8>>; 2]>,
    lost: AtomicU32,
    ended: AtomicBool,
}

impl Mirrored for Taker {
    fn take(&self, _: ConnectionId, event: Event) {
        match event {
            Event::Frame { side, index, frame } => {
                let frames = &mut self.frames.lock().expect("no panic")[side.index()];
                assert_eq!(index, Some(frames.len() as u32), "{side:?}");
                frames.push(frame.to_vec());
            }
            Event::Lost { frames, .. } => drop(self.lost.fetch_add(frames, Ordering::SeqCst)),
            Event::Ended => self.ended.store(true, Ordering::SeqCst),
        }
    }
}

#[test]
fn every_frame_is_copied_whoever_passes_it_on() {
    need_splice!();
    for family in [Family::V4, Family::V6] {
        let hosts = Hosts::new(family);
        let pin = PinFolder::reserve();
        let mirror = Mirror::new(1 << 20);
        let edge = hosts.edge(&pin, PORT);
        let without = splicer(&edge).mirror_to(&mirror).expect_err("loaded without a ring");
        assert!(without.to_string().contains("without room for copies"), "{without}");
        drop(edge);
        let edge = hosts.edge_with(&pin, PORT, Some(1 << 20));
        let splicer = splicer(&edge);
        let mut table = policy();
        table.mirror(FORWARDED);
        splicer.set_policy(0, &table).expect("a policy");
        hosts.on_gateway(|| splicer.mirror_to(&mirror).expect("there is a ring"));
        splicer.mirror_to(&mirror).expect("the same");
        splicer.mirror_to(&Mirror::new(1)).expect_err("another");

        let (mut client, sockets) = hosts.connections(splicer.as_ref());
        let session = hosts.on_gateway(|| begin(splicer.as_ref(), &sockets)).unwrap_or_else(|e| panic!("{e}"));
        let (taker, arms) = (Arc::new(Taker::default()), Arc::new(AtomicBool::new(true)));
        let relay = Relay::new(session, sockets, &arms).mirrored(&mirror, Arc::<Taker>::clone(&taker));
        let relay = hosts.on_gateway(|| thread::spawn(|| relay.run()));
        ask(&mut client, 0..200);
        arms.store(false, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(50));
        ask(&mut client, 200..210);
        arms.store(true, Ordering::SeqCst);
        ask(&mut client, 210..400);
        drop(client);
        let (session, relayed) = relay.join().expect("no panic");
        assert!(session.tally(Side::Client).packets > 200, "{relayed} bytes by the daemon");
        wait::until_true("the mirror says that the connection has ended", PATIENCE, || {
            taker.ended.load(Ordering::SeqCst)
        })
        .unwrap_or_else(|e| panic!("{e:#}"));
        assert_eq!((taker.lost.load(Ordering::SeqCst), mirror.used()), (0, 0));
        let [requests, answers] = std::mem::take(&mut *taker.frames.lock().expect("no panic"));
        assert_eq!((requests.len(), answers.len()), (400, 400));
        for (n, (request, answer)) in (0u32..).zip(requests.iter().zip(&answers)) {
            let (asked, answered) = exchange(n);
            assert!(*request == asked, "request {n} is not what was sent");
            assert!(*answer == answered, "answer {n} is not what was sent");
        }
        let counters = edge.splice_status().expect("a splice").counters;
        assert!(counters["mirror_pieces"] > 400 && counters["mirror_lost_packets"] == 0, "{counters:?}");
        drop(session);
    }
}

#[test]
fn two_daemons_in_one_chain_do_not_touch_each_others_connections() {
    need_splice!();
    let hosts = Hosts::new(Family::V4);
    let pins = [PinFolder::reserve(), PinFolder::reserve()];
    let mut running = vec![];
    let mut edges = vec![];
    for (nth, pin) in pins.iter().enumerate() {
        let edge = hosts.edge(pin, PORT);
        let splicer = splicer(&edge);
        let (mut client, sockets) = hosts.connections(splicer.as_ref());
        let session = hosts.on_gateway(|| begin(splicer.as_ref(), &sockets)).unwrap_or_else(|e| panic!("{e}"));
        let relay = Relay::new(session, sockets, &Arc::new(AtomicBool::new(true)));
        let relay = hosts.on_gateway(|| thread::spawn(|| relay.run()));
        ask(&mut client, 0..50);
        running.push((nth, client, relay));
        edges.push(edge);
    }
    for (nth, mut client, relay) in running {
        ask(&mut client, 50..200);
        drop(client);
        let (session, relayed) = relay.join().expect("no panic");
        let traffic = SIDES.map(|side| session.traffic(side));
        assert!(traffic.iter().all(|t| t.packets > 100), "daemon {nth}: {traffic:?}, {relayed} otherwise");
    }
}

#[test]
fn a_connection_opened_past_the_programs_stays_the_daemons() {
    need_splice!();
    let hosts = Hosts::new(Family::V4);
    let pin = PinFolder::reserve();
    let edge = hosts.edge(&pin, PORT + 1);
    let splicer = splicer(&edge);
    let (mut client, sockets) = hosts.connections(splicer.as_ref());
    let refused = hosts.on_gateway(|| begin(splicer.as_ref(), &sockets)).expect_err("its SYN was not changed");
    assert!(matches!(refused, Refusal::Obstacle(Obstacle::Timestamps(Side::Client))), "{refused}");
    assert_eq!(edge.splice_status().expect("a splice").sessions, 0);

    // As usable as before.
    let [mut near, mut far] = sockets;
    let relay = thread::spawn(move || {
        let request = read_frame(&mut near).expect("a request");
        far.write_all(&[&(request.len() as u32).to_be_bytes()[..], &request].concat()).expect("written");
        let answer = read_frame(&mut far).expect("an answer");
        near.write_all(&[&(answer.len() as u32).to_be_bytes()[..], &answer].concat()).expect("written");
    });
    ask(&mut client, 0..1);
    relay.join().expect("no panic");
}

#[test]
fn behind_another_program_no_session_begins_until_the_own_ones_are_first_again() {
    need_splice!();
    let hosts = Hosts::new(Family::V4);
    let pin = PinFolder::reserve();
    let edge = hosts.edge(&pin, PORT);
    let splicer = splicer(&edge);
    let (_client, sockets) = hosts.connections(splicer.as_ref());
    let session = hosts.on_gateway(|| begin(splicer.as_ref(), &sockets)).unwrap_or_else(|e| panic!("{e}"));

    let mut strangers = Programs::load();
    hosts.world.gateway().netns.run(|| strangers.attach(INTERFACES[1])).expect("inside");
    hosts.on_gateway(|| edge.upkeep());
    let reasons =
        || -> Vec<_> { edge.splice_status().expect("a splice").interfaces.into_iter().map(|i| i.reason).collect() };
    assert!(
        matches!(&reasons()[..], [None, Some(why)] if why.contains("stands before ours on fabric")),
        "{:?}",
        reasons()
    );
    let refused = hosts.on_gateway(|| begin(splicer.as_ref(), &sockets)).expect_err("not there");
    assert!(matches!(refused, Refusal::Obstacle(Obstacle::NotAttached(Side::Broker))), "{refused}");

    drop(strangers);
    wait::until_true("the interface can be used again", PATIENCE, || {
        hosts.on_gateway(|| edge.upkeep());
        reasons() == [None, None]
    })
    .unwrap_or_else(|e| panic!("{e:#}"));
    drop(session);
    hosts.on_gateway(|| begin(splicer.as_ref(), &sockets)).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn without_sessions_the_programs_move_to_the_front_again() {
    need_splice!();
    let hosts = Hosts::new(Family::V4);
    let pin = PinFolder::reserve();
    let edge = hosts.edge(&pin, PORT);
    let chains = || hosts.world.gateway().netns.run(|| chain(INTERFACES[0])).expect("inside");
    let own = chains();
    let mut strangers = Programs::load();
    hosts.world.gateway().netns.run(|| strangers.attach(INTERFACES[0])).expect("inside");
    assert_ne!(chains().map(|c| c[0]), own.clone().map(|c| c[0]));
    hosts.on_gateway(|| edge.upkeep());
    assert_eq!(chains().map(|c| c[0]), own.map(|c| c[0]));
    assert!(chains().iter().all(|c| c.len() == 2));
}

#[test]
fn an_interface_that_is_made_anew_gets_the_programs_again() {
    need_splice!();
    let netns = Netns::create("anew").expect("a namespace");
    let pin = PinFolder::reserve();
    let make = || {
        netns.ip(&["link", "add", "near", "type", "veth", "peer", "name", "far"]).expect("veth");
        netns.ip(&["link", "set", "near", "up"]).expect("up");
        netns.ip(&["link", "set", "far", "up"]).expect("up");
    };
    make();
    let edge = netns.run(|| KernelEdge::open(pin.path()).expect("opened")).expect("inside");
    netns.run(|| edge.set_interfaces(Some(&["far".to_owned()]))).expect("inside");
    let attached = || netns.run(|| chain("far").map(|c| c.len())).expect("inside");
    assert_eq!(attached(), [1, 1]);
    netns.ip(&["link", "del", "far"]).expect("deleted");
    netns.run(|| edge.upkeep()).expect("inside");
    assert_eq!(edge.splice_status().expect("a splice").interfaces, []);
    make();
    netns.run(|| edge.upkeep()).expect("inside");
    assert_eq!(attached(), [1, 1]);
}

#[test]
fn what_a_killed_daemon_left_goes_on_and_is_taken_off_by_a_detach() {
    need_splice!();
    let netns = Netns::create("killed").expect("a namespace");
    let pin = PinFolder::reserve();
    netns.ip(&["link", "add", "near", "type", "veth", "peer", "name", "far"]).expect("veth");
    netns.ip(&["link", "set", "near", "up"]).expect("up");
    netns.ip(&["link", "set", "far", "up"]).expect("up");
    let mut command = Command::new(env!("CARGO_BIN_EXE_edge-holder"));
    command.arg(pin.path()).arg("far").stdin(Stdio::piped()).stdout(Stdio::piped());
    let holder = Process::spawn("edge-holder", command, Some(&netns), None).expect("started");
    let (_stdin, stdout) = holder.take_pipes().expect("pipes");
    let mut line = String::new();
    io::BufRead::read_line(&mut io::BufReader::new(stdout), &mut line).expect("it says when it is ready");
    assert_eq!(line.trim(), "ready");
    let attached = || netns.run(|| chain("far").map(|c| c.len())).expect("inside");
    assert_eq!((attached(), sets(&pin).len()), ([1, 1], 1));
    holder.kill();
    drop(holder);
    assert_eq!((attached(), sets(&pin).len()), ([1, 1], 1), "it outlives the daemon");

    // A successor has its own in front, and leaves the other in peace for now.
    let edge = netns.run(|| KernelEdge::open(pin.path()).expect("opened")).expect("inside");
    netns.run(|| edge.set_interfaces(Some(&["far".to_owned()]))).expect("inside");
    netns.run(|| edge.upkeep()).expect("inside");
    assert_eq!((attached(), sets(&pin).len()), ([2, 2], 2));
    assert_eq!(edge.splice_status().expect("a splice").interfaces[0].reason, None);
    drop(edge);
    assert_eq!((attached(), sets(&pin).len()), ([1, 1], 1), "a set without flows goes with its owner");

    assert!(netns.run(|| kernel::detach(pin.path(), false)).expect("inside").expect("nobody holds it"));
    assert_eq!(attached(), [0, 0]);
    assert!(!pin.path().exists());
}
