//! A client's, a gateway's and a broker's host, and the gateway's daemon on its own.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use aya::sys::{Stats, enable_stats};
use harness::netns::World;
use harness::wait;
use proxy_common::flows::{Recalled, Traffic};
use proxy_common::splice::state::{Leg, Side};

use super::daemon::{Daemon, Relayed, Shared};
use super::loss::Loss;
use super::mirror;
use super::origin::{Place, origin};
use super::traffic::{Load, Seen, run, serve};
use crate::fixtures::{Family, index};
use crate::programs::Programs;
use crate::session::{FORWARDED, begin, leg, policy};
use crate::sys::{set_option, without_offloads};

const PORT: u16 = 9092;
const GENERATION: u32 = 1;
const MARK: i32 = 0x7a11;
const SO_BINDTOIFINDEX: libc::c_int = 62;
/// Room of sockets from the first packet on: without it a switch waits for a small window to grow.
const RECEIVE_BUFFER: i32 = 4 << 20;
/// The gateway's interfaces, as the harness calls them.
const INTERFACES: [&str; 2] = ["client0", "fabric"];

/// What to try.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    pub(super) family: Family,
    pub(super) load: Load,
    /// Packets in a million that are lost on each link, each way.
    pub(super) loss: u32,
    /// Whether interfaces merge and cut packets and leave checksums to be made by others.
    pub(super) offloads: bool,
    /// Whether directions are taken back all the time, wherever they are.
    pub(super) recalls: bool,
    /// Without it everything is the daemon's.
    pub(super) splices: bool,
    /// Bytes of the ring, where frames are mirrored.
    pub(super) mirror: Option<u32>,
}

/// What came of it.
pub(super) struct Outcome {
    pub(super) seen: Arc<Seen>,
    pub(super) relayed: Arc<Relayed>,
    /// Of all sessions, by direction.
    pub(super) traffic: [Traffic; 2],
    /// Turns of the kernel that were ended by a recall.
    pub(super) recalled: u32,
    /// Turns of the kernel, by direction.
    pub(super) turns: [u32; 2],
    /// Of frames that are mirrored.
    pub(super) copied: mirror::Copied,
    pub(super) programs: Programs,
}

/// Runs a trial. Whatever a client or broker finds wrong is a panic.
pub(super) fn attempt(trial: &Trial) -> Outcome {
    let world = World::builder().brokers(1).build().expect("hosts");
    let v4 = trial.family == Family::V4;
    let of = |v4_address: IpAddr, v6_address: IpAddr| if v4 { v4_address } else { v6_address };
    let gateway = SocketAddr::new(of(world.gateway_seen_by(0).into(), world.gateway_v6_seen_by(0).into()), PORT);
    let broker = SocketAddr::new(of(world.brokers()[0].v4.into(), world.brokers()[0].v6.into()), PORT);

    if !trial.offloads {
        let hosts = [&world.client(0).netns, &world.gateway().netns, &world.brokers()[0].netns];
        for (host, devices) in hosts.into_iter().zip([&["gateway"][..], &INTERFACES, &["fabric"]]) {
            let off = || devices.iter().try_for_each(|device| without_offloads(device));
            host.run(off).expect("inside").expect("offloads are off");
        }
    }
    let listener = world.brokers()[0].netns.run(|| TcpListener::bind(broker).expect("a broker")).expect("inside");
    serve(listener, trial.load.in_pieces);

    let counting = enable_stats(Stats::RunTime).expect("statistics of programs");
    let mut programs = trial.mirror.map_or_else(Programs::load, Programs::load_with_ring);
    let mut policy = policy();
    if trial.mirror.is_some() {
        policy.mirror(FORWARDED);
    }
    programs.set_policy(0, &policy);
    let mirror = trial.mirror.map(|_| mirror::Trial::new(programs.take_ring()));
    programs.listen(gateway);
    programs.dial_with(MARK as u32);
    let interfaces = world
        .gateway()
        .netns
        .run(|| {
            INTERFACES.map(|name| {
                programs.attach(name);
                index(name)
            })
        })
        .expect("inside");
    let relayed = Arc::new(Relayed::default());
    let listener = world.gateway().netns.run(|| listen(gateway)).expect("inside");
    let programs = Arc::new(Mutex::new(programs));

    let mut daemons = vec![];
    let mut clients = vec![];
    for session in 0..trial.load.connections {
        let dial = || TcpStream::connect_timeout(&gateway, Duration::from_secs(5)).expect("the gateway answers");
        clients.push(world.client(0).netns.run(dial).expect("inside"));
        let (client, _) = listener.accept().expect("a client");
        let broker = world.gateway().netns.run(|| dial_broker(broker)).expect("inside");
        let sockets = [client, broker];
        let daemon = start(&programs, interfaces, session as u32, sockets, trial.splices, &relayed, mirror.as_ref());
        daemons.push(thread::spawn(move || daemon.run()));
    }
    let lost = [
        (&world.client(0).netns, "gateway"),
        (&world.gateway().netns, INTERFACES[0]),
        (&world.gateway().netns, INTERFACES[1]),
        (&world.brokers()[0].netns, "fabric"),
    ]
    .map(|(host, device)| host.run(|| Loss::on(index(device), trial.loss).expect("losses")).expect("inside"));

    let seen = Arc::new(Seen::default());
    let over = AtomicBool::new(false);
    let recalled = thread::scope(|scope| {
        let recaller = trial.recalls.then(|| scope.spawn(|| recall(&programs, trial.load.connections as u32, &over)));
        run(clients, trial.load, &seen);
        over.store(true, Ordering::Relaxed);
        recaller.map_or(0, |r| r.join().expect("no panic"))
    });
    drop(lost);
    drop(counting);
    wait::until_true("every session ends in order", Duration::from_secs(20), || {
        daemons.iter().all(thread::JoinHandle::is_finished)
    })
    .unwrap_or_else(|e| panic!("{e:#}"));
    for daemon in daemons {
        daemon.join().expect("no daemon panics").expect("no socket fails");
    }
    let copied = mirror.map(|mirror| mirror.finish(trial.load.connections as u64)).unwrap_or_default();
    let programs = Arc::into_inner(programs).expect("all daemons are gone").into_inner().expect("no panic");
    let mut traffic = [Traffic::default(); 2];
    let mut turns = [0; 2];
    for session in 0..trial.load.connections {
        // SAFETY: the slot is mapped, and no packet is under way any more.
        let slot = unsafe { &*programs.slot(session as u32) };
        for (nth, sum) in traffic.iter_mut().enumerate() {
            sum.packets += slot.traffic[nth].packets;
            sum.bytes += slot.traffic[nth].bytes;
            turns[nth] += slot.session.dirs[nth].epoch.div_ceil(2);
        }
    }
    Outcome { seen, relayed, traffic, turns, recalled, copied, programs }
}

/// Begins a session on two connections.
fn start(
    programs: &Mutex<Programs>,
    interfaces: [u32; 2],
    session: u32,
    sockets: [TcpStream; 2],
    splices: bool,
    relayed: &Arc<Relayed>,
    mirror: Option<&mirror::Trial>,
) -> Daemon {
    let legs: [Leg; 2] = [Side::Client, Side::Broker].map(|side| {
        let socket = &sockets[side.index()];
        socket.set_nodelay(true).expect("no delay");
        let interface = interfaces[side.index()];
        set_option(socket, libc::SOL_SOCKET, SO_BINDTOIFINDEX, interface as i32).expect("bound to the interface");
        leg(interface, socket.local_addr().expect("bound"), socket.peer_addr().expect("connected"))
    });
    let mut programs = programs.lock().expect("no panic");
    let places = [&sockets[0], &sockets[1]].map(|s| Place::of(s).expect("the socket says"));
    let [client, broker] = &places;
    let shared = Shared(programs.slot(session));
    // SAFETY: no flow leads to the slot yet.
    unsafe { begin(shared.0, GENERATION, legs, [origin(client, broker), origin(broker, client)]) };
    programs.enter(session, GENERATION, &legs, 0);
    for socket in &sockets {
        programs.guard(socket);
    }
    let tap = mirror.map(|mirror| {
        let slots: Vec<_> = (0..=session).map(|session| Shared(programs.slot(session))).collect();
        mirror.tap(&slots, session, GENERATION)
    });
    Daemon::new(shared, sockets, places, splices, Arc::clone(relayed), tap)
}

/// Takes directions back, one after the other, until it is over.
fn recall(programs: &Mutex<Programs>, sessions: u32, over: &AtomicBool) -> u32 {
    let mut recalled = 0;
    let directions = (0..sessions).flat_map(|session| [(session, Side::Client), (session, Side::Broker)]).cycle();
    for (session, direction) in directions {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let answer = programs.lock().expect("no panic").recall(session, direction, GENERATION);
        recalled += u32::from(answer == Recalled::WasPeer);
        thread::sleep(Duration::from_micros(300));
    }
    recalled
}

fn listen(at: SocketAddr) -> TcpListener {
    let listener = TcpListener::bind(at).expect("the gateway's port");
    set_option(&listener, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER).expect("room");
    listener
}

/// Connects a marked socket.
fn dial_broker(to: SocketAddr) -> TcpStream {
    let domain = if to.is_ipv4() { socket2::Domain::IPV4 } else { socket2::Domain::IPV6 };
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None).expect("a socket");
    set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER).expect("room");
    set_option(&socket, libc::SOL_SOCKET, libc::SO_MARK, MARK).expect("a mark");
    socket.connect(&to.into()).expect("the broker answers");
    socket.into()
}
