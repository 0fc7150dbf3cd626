//! Real packets between a client's and a gateway's network namespace.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use harness::netns::Netns;
use harness::turnout::PinFolder;
use turnout::gateway::edge::{Edge as _, Port, PortTable, Reason, Slot};
use turnout::kernel::KernelEdge;

use crate::need_programs;
use crate::support::{listener, open, ports, refused, rules, xdp_of};

const G4: &str = "10.80.0.1";
const G6: &str = "[fd80::1]";

/// A client host and a gateway host with a veth between them, and the edge in the latter.
struct World {
    client: Netns,
    gateway: Netns,
    pin: PinFolder,
}

impl World {
    fn new() -> Self {
        let (client, gateway) = (Netns::create("client").expect("netns"), Netns::create("gate").expect("netns"));
        gateway
            .ip(&["link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", client.name()])
            .expect("veth");
        for (netns, last) in [(&gateway, 1), (&client, 2)] {
            netns.ip(&["link", "set", "eth0", "up"]).expect("up");
            netns.ip(&["address", "add", &format!("10.80.0.{last}/24"), "dev", "eth0"]).expect("an address");
            netns
                .ip(&["-6", "address", "add", &format!("fd80::{last}/64"), "dev", "eth0", "nodad"])
                .expect("an address");
        }
        client.ip(&["address", "add", "10.80.0.3/24", "dev", "eth0"]).expect("a second address");
        Self { client, gateway, pin: PinFolder::reserve() }
    }

    fn open(&self) -> KernelEdge {
        self.gateway.run(|| open(&self.pin)).expect("inside")
    }

    /// On the gateway's side: upkeep and interfaces belong to its namespace.
    fn on_gateway<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.gateway.run(work).expect("inside")
    }

    fn connect(&self, to: &str) -> std::io::Result<TcpStream> {
        let to: SocketAddr = to.parse().expect("an address");
        self.client.run(|| TcpStream::connect_timeout(&to, Duration::from_secs(1))).expect("inside")
    }
}

/// Answers every connection with one byte, then echoes.
fn serve(listener: &TcpListener, greeting: u8) {
    let listener = listener.try_clone().expect("a copy");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let _ = stream.write_all(&[greeting]);
                let mut buffer = [0u8; 1024];
                while let Ok(n @ 1..) = stream.read(&mut buffer) {
                    if stream.write_all(&buffer[..n]).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

fn greeting(mut stream: TcpStream) -> u8 {
    stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    let mut byte = [0u8];
    stream.read_exact(&mut byte).expect("a greeting");
    byte[0]
}

#[test]
fn hundreds_of_ports_of_both_families_come_to_one_listener_each_and_keep_their_number() {
    need_programs!();
    let world = World::new();
    let edge = world.open();
    let (v4, v6) = world.on_gateway(|| (listener("127.0.0.1:0"), listener("[::1]:0")));
    let brokers = 9200..9600u16;
    let table: PortTable = brokers
        .clone()
        .flat_map(|port| [format!("0.0.0.0:{port}"), format!("[::]:{port}")])
        .map(|at| (at.parse().expect("an address"), Port { slot: Slot(1), open: true }))
        .collect();
    edge.set_ports(&table).expect("ports");
    edge.set_sockets(&[v4.as_fd(), v6.as_fd()]).expect("sockets");
    for port in brokers.clone() {
        for (host, listener) in [(G4, &v4), (G6, &v6)] {
            let to = format!("{host}:{port}");
            let _client = world.connect(&to).unwrap_or_else(|e| panic!("{to}: {e}"));
            let (accepted, from) = listener.accept().expect("accepted");
            assert_eq!(accepted.local_addr().expect("bound").to_string(), to, "the port that was dialled is kept");
            assert_eq!(accepted.peer_addr().expect("connected"), from);
        }
    }
    assert_eq!(edge.counters()[&Slot(1)].steered, 2 * brokers.len() as u64);
}

#[test]
fn a_port_without_a_broker_answers_rst_at_once_and_a_strangers_service_is_untouched() {
    need_programs!();
    let world = World::new();
    let edge = world.open();
    let ours = world.on_gateway(|| listener("127.0.0.1:0"));
    serve(&ours, b'k');
    // A stranger on all addresses, with one of its ports in the middle of our range.
    let strangers: Vec<_> = ["0.0.0.0:7000", "0.0.0.0:9205"].map(|at| world.on_gateway(|| listener(at))).into();
    strangers.iter().for_each(|l| serve(l, b's'));
    let table = [("0.0.0.0:9200", 1, true), ("0.0.0.0:9201", 1, false), ("0.0.0.0:9205", 1, false)];
    edge.set_ports(&ports(&table)).expect("ports");
    edge.set_sockets(&[ours.as_fd()]).expect("sockets");

    assert_eq!(greeting(world.connect("10.80.0.1:9200").expect("ours")), b'k');
    assert_eq!(greeting(world.connect("10.80.0.1:7000").expect("the stranger's")), b's');
    for port in [9201, 9205] {
        let begin = Instant::now();
        let refused =
            world.connect(&format!("10.80.0.1:{port}")).expect_err("no broker, and never a stranger's socket");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{port}: {refused}");
        assert!(begin.elapsed() < Duration::from_millis(500), "{port}: {:?}", begin.elapsed());
    }
    assert_eq!(refused(&edge.counters(), 1, Reason::NoBroker), 2);

    // A broker appears and goes: no bind, no moment without the others.
    edge.set_ports(&ports(&[("0.0.0.0:9200", 1, true), ("0.0.0.0:9201", 1, true)])).expect("ports");
    assert_eq!(greeting(world.connect("10.80.0.1:9201").expect("ours now")), b'k');
    assert_eq!(greeting(world.connect("10.80.0.1:9205").expect("not ours any more")), b's');
}

#[test]
fn native_xdp_drops_a_denied_source_and_cuts_its_live_connection() {
    need_programs!();
    let world = World::new();
    let edge = world.open();
    let ours = world.on_gateway(|| listener("127.0.0.1:0"));
    serve(&ours, b'k');
    edge.set_ports(&ports(&[("0.0.0.0:9092", 1, true), ("[::]:9092", 1, true)])).expect("ports");
    edge.set_sockets(&[ours.as_fd()]).expect("sockets");
    world.on_gateway(|| edge.set_interfaces(None));
    assert_eq!(xdp_of(&world.gateway, "eth0"), Some("native"));

    let mut live = world.connect("10.80.0.1:9092").expect("allowed so far");
    live.set_read_timeout(Some(Duration::from_millis(700))).expect("a timeout");
    let mut byte = [0u8];
    live.read_exact(&mut byte).expect("a greeting");
    let from = live.local_addr().expect("bound").ip();
    edge.set_admission(&rules(&[&format!("{from}/32")], &[], None)).expect("rules");
    live.write_all(b"x").expect("into the socket's buffer");
    let silent = live.read(&mut byte).expect_err("nothing comes through");
    assert!(matches!(silent.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{silent}");
    let refused_now = world.connect("10.80.0.1:9092").expect_err("and nothing new");
    assert_eq!(refused_now.kind(), ErrorKind::TimedOut, "{refused_now}");
    assert!(refused(&edge.counters(), 1, Reason::Deny) >= 2);
    let worst = &edge.refused_sources(1)[0];
    assert_eq!((worst.address, worst.reason), (from, Reason::Deny));

    // Lifted, the very connection goes on where it stood: TCP sent again meanwhile.
    edge.set_admission(&rules(&[], &[], None)).expect("rules");
    live.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    live.read_exact(&mut byte).expect("what was sent");
    assert_eq!(&byte, b"x");
}

#[test]
fn bulk_data_in_the_kernels_own_super_packets_passes_in_both_modes_and_families() {
    need_programs!();
    const BYTES: usize = 24 << 20;
    let world = World::new();
    let edge = world.open();
    let (v4, v6) = world.on_gateway(|| (listener("127.0.0.1:0"), listener("[::1]:0")));
    serve(&v4, b'k');
    serve(&v6, b'k');
    edge.set_ports(&ports(&[("0.0.0.0:9092", 1, true), ("[::]:9092", 1, true)])).expect("ports");
    edge.set_sockets(&[v4.as_fd(), v6.as_fd()]).expect("sockets");
    let echo = |to: &str| {
        let stream = world.connect(to).unwrap_or_else(|e| panic!("{to}: {e}"));
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        let mut writer = stream.try_clone().expect("a copy");
        let sender = std::thread::spawn(move || writer.write_all(&vec![7u8; BYTES]));
        let mut left = BYTES + 1;
        let mut buffer = vec![0u8; 1 << 20];
        while left > 0 {
            match (&stream).read(&mut buffer) {
                Ok(0) | Err(_) => panic!("{to}: {left} bytes did not come back"),
                Ok(n) => left -= n,
            }
        }
        sender.join().expect("no panic").expect("all was sent");
    };
    for mode in ["native", "generic"] {
        let device = if mode == "native" { "eth0" } else { "br0" };
        if mode == "generic" {
            // A bridge has no XDP of its own: its packets come as the kernel merged them.
            let ip = |args: &str| world.gateway.ip(&args.split(' ').collect::<Vec<_>>()).expect("ip");
            ip("link add br0 type bridge");
            ip("address flush dev eth0");
            ip("link set eth0 master br0");
            ip("link set br0 up");
            ip("address add 10.80.0.1/24 dev br0");
            ip("-6 address add fd80::1/64 dev br0 nodad");
        }
        world.on_gateway(|| edge.set_interfaces(Some(&[device.to_owned()])));
        assert_eq!(xdp_of(&world.gateway, device), Some(mode));
        let admitted = edge.counters().get(&Slot(1)).map_or(0, |c| c.admitted);
        echo("10.80.0.1:9092");
        echo("[fd80::1]:9092");
        let counted = &edge.counters()[&Slot(1)];
        assert_eq!(counted.admitted - admitted, 2, "{mode}: admission saw them");
        assert!(counted.refused.is_empty(), "{mode}: {counted:?}");
    }
}

#[test]
fn a_new_owner_under_load_refuses_and_resets_nobody() {
    need_programs!();
    let world = World::new();
    let ours = world.on_gateway(|| listener("127.0.0.1:0"));
    serve(&ours, b'k');
    let fill = |edge: &KernelEdge| {
        edge.set_ports(&ports(&[("0.0.0.0:9092", 1, true)])).expect("ports");
        edge.set_admission(&rules(&["192.0.2.0/24"], &[], Some((100_000, 1000)))).expect("rules");
        edge.set_sockets(&[ours.as_fd()]).expect("sockets");
        world.on_gateway(|| edge.set_interfaces(None));
    };
    fill(&world.open());
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            world
                .client
                .run(|| {
                    let mut served = 0u32;
                    let to: SocketAddr = "10.80.0.1:9092".parse().expect("an address");
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        let stream = TcpStream::connect_timeout(&to, Duration::from_secs(1))
                            .unwrap_or_else(|e| panic!("after {served}: {e}"));
                        assert_eq!(greeting(stream), b'k');
                        served += 1;
                    }
                    served
                })
                .expect("nobody was refused")
        });
        for round in 0..6 {
            if round % 2 == 1 {
                let edge = world.pin.edge();
                let mark =
                    std::fs::read_dir(&edge).expect("there").map(|e| e.expect("an entry").path()).find(|p| p.is_dir());
                std::fs::rename(mark.expect("a mark"), edge.join("layout-0000000000000000")).expect("aged");
            }
            fill(&world.open());
            std::thread::sleep(Duration::from_millis(100));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let served = client.join().expect("the client");
        assert!(served > 100, "{served} connections were meant to meet the changes");
    });
    assert_eq!(xdp_of(&world.gateway, "eth0"), Some("native"));
}
