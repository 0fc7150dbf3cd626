//! A world for each test: a network namespace, a pin folder of its own on the bpffs, and what the gateway would say.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::time::Duration;

use harness::netns::Netns;
use harness::turnout::PinFolder;
use harness::wait;
use turnout::gateway::edge::{AdmissionRules, EdgeCounters, NewConnections, Port, PortTable, Reason, Slot};
use turnout::kernel::KernelEdge;

use proxy_common::admission::{Prefix, Rate};

/// Leaves the calling test with a registered skip where the programs can't be had.
#[macro_export]
macro_rules! need_programs {
    () => {
        harness::need_root!();
        if turnout::kernel::object().is_none() {
            return harness::skip("built without kernel programs");
        }
    };
}

/// Runs a test's body inside a fresh network namespace.
pub(crate) fn inside<T: Send>(role: &str, body: impl FnOnce(&Netns, &PinFolder) -> T + Send) -> T {
    let netns = Netns::create(role).expect("a network namespace");
    let pin = PinFolder::reserve();
    netns.run(|| body(&netns, &pin)).expect("the body ran")
}

/// The edge, opened.
pub(crate) fn open(pin: &PinFolder) -> KernelEdge {
    KernelEdge::open(pin.path()).unwrap_or_else(|e| panic!("{:#}", anyhow::Error::new(e)))
}

/// A table of ports from `address:port`, slot and whether something answers there.
pub(crate) fn ports(ports: &[(&str, u16, bool)]) -> PortTable {
    let port = |&(at, slot, open): &(&str, u16, bool)| {
        (at.parse::<SocketAddr>().expect("an address"), Port { slot: Slot(slot), open })
    };
    ports.iter().map(port).collect()
}

/// A prefix from `address/length`.
pub(crate) fn prefix(text: &str) -> Prefix {
    let (address, length) = text.split_once('/').expect("a length");
    Prefix::new(address.parse().expect("an address"), length.parse().expect("a number")).expect("within the family")
}

/// Rules from lists of prefixes.
pub(crate) fn rules(deny: &[&str], allow: &[&str], rate: Option<(u32, u32)>) -> AdmissionRules {
    AdmissionRules {
        deny: deny.iter().map(|p| prefix(p)).collect(),
        allow: allow.iter().map(|p| prefix(p)).collect(),
        new_connections: rate.map(|(per_second, burst)| NewConnections {
            bits_v4: 32,
            bits_v6: 64,
            rate: Rate::new(per_second, burst),
        }),
    }
}

/// What one slot counted for a reason.
pub(crate) fn refused(counters: &BTreeMap<Slot, EdgeCounters>, slot: u16, reason: Reason) -> u64 {
    counters.get(&Slot(slot)).and_then(|c| c.refused.get(&reason)).copied().unwrap_or(0)
}

/// Names of what is in the pin folder, but for the splices of processes.
pub(crate) fn besides_splices(pin: &PinFolder) -> Vec<String> {
    let entries = fs::read_dir(pin.path()).expect("the folder is there");
    let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    names.filter(|name| !name.starts_with("splice-")).collect()
}

/// Kernel ids of everything pinned in a folder, with the file's name; they are asked while it is there.
pub(crate) fn pinned_objects(folder: &Path) -> Vec<(String, Kind, u32)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            continue;
        }
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let fd = crate::test_run::object_at(&path).expect("a pinned object");
        let (kind, id) = identity(&fd);
        found.push((name, kind, id));
    }
    found
}

/// Kinds of kernel object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A program.
    Program,
    /// A map.
    Map,
    /// A link.
    Link,
}

/// What `/proc/self/fdinfo` says of a descriptor.
fn identity(fd: &OwnedFd) -> (Kind, u32) {
    let info = fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", fd.as_raw_fd())).expect("fdinfo");
    let field = |name: &str| info.lines().find_map(|l| l.strip_prefix(name)?.trim().parse::<u32>().ok());
    if let Some(id) = field("link_id:") {
        (Kind::Link, id)
    } else if let Some(id) = field("map_id:") {
        (Kind::Map, id)
    } else {
        (Kind::Program, field("prog_id:").expect("one of the three"))
    }
}

/// Waits until none of the objects is in the kernel any more.
pub(crate) fn gone(objects: &[(String, Kind, u32)]) {
    wait::until_true("the kernel forgets the objects", Duration::from_secs(10), || {
        objects.iter().all(|&(_, kind, id)| !crate::test_run::exists(kind, id))
    })
    .unwrap_or_else(|e| panic!("{objects:?}: {e:#}"));
}

/// A listening socket of this namespace at any port.
pub(crate) fn listener(at: &str) -> std::net::TcpListener {
    std::net::TcpListener::bind(at).expect("a listener")
}

/// Whether an interface has a program, as `ip` tells.
pub(crate) fn xdp_of(netns: &Netns, interface: &str) -> Option<&'static str> {
    let text = netns.ip(&["-details", "link", "show", "dev", interface]).expect("the interface is there");
    if text.contains("xdpgeneric") {
        Some("generic")
    } else if text.contains("prog/xdp") {
        Some("native")
    } else {
        None
    }
}
