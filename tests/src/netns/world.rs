//! The usual arrangement of hosts.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use anyhow::{Context, Result};

use super::Netns;
use crate::relay::{Faults, Relay};

/// A namespace with its addresses.
#[derive(Debug)]
pub struct Host {
    /// The namespace.
    pub netns: Netns,
    /// Its address on the link towards the fabric (brokers, gateway) or the gateway (clients).
    pub v4: Ipv4Addr,
    /// The same for IPv6.
    pub v6: Ipv6Addr,
}

/// A link that can be cut or relayed. Indices count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Link {
    /// Between a client host and the gateway host.
    Client(usize),
    /// Between the gateway host and the fabric: all brokers at once, seen from the gateway.
    Gateway,
    /// Between a broker host and the fabric: the broker loses everyone.
    Broker(usize),
}

/// Client hosts, a gateway host and broker hosts with their links; deleted on drop.
#[derive(Debug)]
pub struct World {
    // Relays stop before their namespaces go.
    relays: BTreeMap<Link, Relay>,
    clients: Vec<Host>,
    gateway: Host,
    brokers: Vec<Host>,
    fabric: Netns,
}

/// What to build: one client host and three broker hosts unless told otherwise.
#[derive(Clone, Debug)]
pub struct WorldBuilder {
    clients: u8,
    brokers: u8,
    relays: BTreeMap<Link, u64>,
}

impl WorldBuilder {
    /// How many client hosts; host i has the address 10.90.i.2, so that rules by network can tell them apart.
    #[must_use]
    pub fn clients(mut self, count: u8) -> Self {
        self.clients = count;
        self
    }

    /// How many broker hosts; host n has the address 10.92.n.2.
    #[must_use]
    pub fn brokers(mut self, count: u8) -> Self {
        self.brokers = count;
        self
    }

    /// Puts a packet relay into `link` (TAP devices instead of a veth pair), transparent until it is given faults.
    #[must_use]
    pub fn relay(mut self, link: Link, seed: u64) -> Self {
        self.relays.insert(link, seed);
        self
    }

    /// Creates it all.
    ///
    /// # Errors
    /// This process is not root, or `ip` refuses.
    pub fn build(self) -> Result<World> {
        let host = |role: String, net: u8, index: u8| -> Result<Host> {
            Ok(Host {
                netns: Netns::create(&role)?,
                v4: Ipv4Addr::new(10, net, index, 2),
                v6: Ipv6Addr::new(0xfd00, u16::from(net), u16::from(index), 0, 0, 0, 0, 2),
            })
        };
        let mut world = World {
            relays: BTreeMap::new(),
            clients: (0..self.clients).map(|i| host(format!("client{i}"), 90, i)).collect::<Result<_>>()?,
            gateway: host("gateway".into(), 91, 0)?,
            brokers: (0..self.brokers).map(|n| host(format!("broker{n}"), 92, n)).collect::<Result<_>>()?,
            fabric: Netns::create("fabric")?,
        };
        for link in world.links() {
            if let Some(relay) = world.connect(link, self.relays.get(&link).copied())? {
                world.relays.insert(link, relay);
            }
        }
        world.route()?;
        Ok(world)
    }
}

/// One end of a link: where, the device's name, its address.
struct End<'a> {
    netns: &'a Netns,
    device: String,
    v4: Ipv4Addr,
    v6: Ipv6Addr,
}

impl World {
    /// Starts describing one.
    #[must_use]
    pub fn builder() -> WorldBuilder {
        WorldBuilder { clients: 1, brokers: 3, relays: BTreeMap::new() }
    }

    /// Names of its namespaces, for [`super::ADOPT`]. For worlds of one client host and one broker host.
    #[must_use]
    pub fn names(&self) -> String {
        let hosts = self.clients.iter().chain([&self.gateway]).chain(&self.brokers);
        let names: Vec<_> = hosts.map(|host| &host.netns).chain([&self.fabric]).map(Netns::name).collect();
        names.join(",")
    }

    /// Whether it is another process's ([`super::around()`]).
    #[must_use]
    pub fn is_adopted(&self) -> bool {
        !self.fabric.is_ours
    }

    /// A world of one client host and one broker host that another process keeps.
    ///
    /// # Panics
    /// The names aren't those of [`Self::names`].
    pub(super) fn adopt(names: &str) -> Self {
        let names: Vec<_> = names.split(',').collect();
        let [client, gateway, broker, fabric] = names.as_slice() else { panic!("four namespaces, not {names:?}") };
        let host = |name: &str, net: u8| Host {
            netns: Netns::adopt(name),
            v4: Ipv4Addr::new(10, net, 0, 2),
            v6: Ipv6Addr::new(0xfd00, u16::from(net), 0, 0, 0, 0, 0, 2),
        };
        Self {
            relays: BTreeMap::new(),
            clients: vec![host(client, 90)],
            gateway: host(gateway, 91),
            brokers: vec![host(broker, 92)],
            fabric: Netns::adopt(fabric),
        }
    }

    /// A client host.
    #[must_use]
    pub fn client(&self, index: usize) -> &Host {
        &self.clients[index]
    }

    /// How many client hosts there are.
    #[must_use]
    pub fn client_count(&self) -> usize {
        self.clients.len()
    }

    /// The gateway host. [`Host::v4`] is its address towards the brokers; clients dial [`Self::gateway_seen_by`].
    #[must_use]
    pub fn gateway(&self) -> &Host {
        &self.gateway
    }

    /// The gateway's address on the link to a client host.
    #[must_use]
    pub fn gateway_seen_by(&self, client: usize) -> Ipv4Addr {
        first_in_net(self.clients[client].v4)
    }

    /// The gateway's IPv6 address on the link to a client host.
    #[must_use]
    pub fn gateway_v6_seen_by(&self, client: usize) -> Ipv6Addr {
        first_in_net_v6(self.clients[client].v6)
    }

    /// Broker hosts.
    #[must_use]
    pub fn brokers(&self) -> &[Host] {
        &self.brokers
    }

    /// The relay in `link`, where the builder was asked for one.
    ///
    /// # Errors
    /// It was not.
    pub fn relay(&self, link: Link) -> Result<&Relay> {
        self.relays.get(&link).with_context(|| format!("{link:?} was built without a relay"))
    }

    /// Takes the link down at the side of the gateway or fabric: packets vanish, nobody is told.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn cut(&self, link: Link) -> Result<()> {
        let [near, _] = self.ends(link);
        near.netns.ip(&["link", "set", &near.device, "down"]).map(drop)
    }

    /// Undoes [`Self::cut`], with the addresses and routes that the kernel dropped.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn restore(&self, link: Link) -> Result<()> {
        let [near, _] = self.ends(link);
        near.netns.ip(&["link", "set", &near.device, "up"])?;
        near.address()?;
        self.route()
    }

    /// From now on the fabric passes to a broker host only packets of up to so many bytes, and says so to who sends larger
    /// ones (ICMP), as a router before a tunnel does. The links are as wide as ever.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn narrow(&self, broker: usize, mtu: u32) -> Result<()> {
        let (host, device, mtu) = (&self.brokers[broker], format!("broker{broker}"), mtu.to_string());
        for (family, to) in [("-4", format!("{}/32", host.v4)), ("-6", format!("{}/128", host.v6))] {
            self.fabric.ip(&[family, "route", "replace", &to, "dev", &device, "mtu", "lock", &mtu])?;
        }
        Ok(())
    }

    fn links(&self) -> Vec<Link> {
        let clients = (0..self.clients.len()).map(Link::Client);
        let brokers = (0..self.brokers.len()).map(Link::Broker);
        clients.chain([Link::Gateway]).chain(brokers).collect()
    }

    /// The two ends of a link, the one nearer to the middle of the picture first.
    fn ends(&self, link: Link) -> [End<'_>; 2] {
        let (near, near_device, far, far_device) = match link {
            Link::Client(i) => (&self.gateway.netns, format!("client{i}"), &self.clients[i], "gateway".to_owned()),
            Link::Gateway => (&self.fabric, "gateway".to_owned(), &self.gateway, "fabric".to_owned()),
            Link::Broker(n) => (&self.fabric, format!("broker{n}"), &self.brokers[n], "fabric".to_owned()),
        };
        [
            End { netns: near, device: near_device, v4: first_in_net(far.v4), v6: first_in_net_v6(far.v6) },
            End { netns: &far.netns, device: far_device, v4: far.v4, v6: far.v6 },
        ]
    }

    fn connect(&self, link: Link, relay_seed: Option<u64>) -> Result<Option<Relay>> {
        let [near, far] = self.ends(link);
        let relay = match relay_seed {
            None => {
                let (a, b) = (near.device.as_str(), far.device.as_str());
                near.netns.ip(&["link", "add", a, "type", "veth", "peer", "name", b, "netns", far.netns.name()])?;
                None
            }
            Some(seed) => {
                Some(Relay::between((near.netns, &near.device), (far.netns, &far.device), Faults::none(), seed)?)
            }
        };
        for end in [near, far] {
            end.netns.ip(&["link", "set", &end.device, "up"])?;
            end.address()?;
        }
        Ok(relay)
    }

    /// Everybody's default route leads towards the middle; the gateway knows the fabric, the fabric the clients.
    fn route(&self) -> Result<()> {
        let towards_middle = (0..self.clients.len()).map(Link::Client);
        let towards_fabric = [Link::Gateway].into_iter().chain((0..self.brokers.len()).map(Link::Broker));
        for link in towards_middle.chain(towards_fabric) {
            let [near, far] = self.ends(link);
            // A link that is cut has no route to give back yet.
            if !far.is_up() {
                continue;
            }
            far.netns.ip(&["route", "replace", "default", "via", &near.v4.to_string()])?;
            far.netns.ip(&["-6", "route", "replace", "default", "via", &near.v6.to_string()])?;
        }
        let [near, gateway] = self.ends(Link::Gateway);
        if near.is_up() {
            near.netns.ip(&["route", "replace", "10.90.0.0/16", "via", &gateway.v4.to_string()])?;
            near.netns.ip(&["-6", "route", "replace", "fd00:5a::/32", "via", &gateway.v6.to_string()])?;
        }
        Ok(())
    }
}

impl End<'_> {
    fn address(&self) -> Result<()> {
        let (v4, v6) = (format!("{}/24", self.v4), format!("{}/64", self.v6));
        self.netns.ip(&["address", "replace", &v4, "dev", &self.device])?;
        self.netns.ip(&["-6", "address", "replace", &v6, "dev", &self.device, "nodad"]).map(drop)
    }

    fn is_up(&self) -> bool {
        // An interface that is down has no IPv6 address in this table; `/proc/net` would be that of the main thread.
        let addresses = Path::new("/proc/thread-self/net/if_inet6");
        self.netns.run(|| std::fs::read_to_string(addresses)).is_ok_and(|table| {
            let table = table.unwrap_or_default();
            table.lines().any(|line| line.split_whitespace().next_back() == Some(self.device.as_str()))
        })
    }
}

impl Host {
    /// Its address as text with a port, for bootstrap lists.
    #[must_use]
    pub fn at(&self, port: u16) -> String {
        std::net::SocketAddr::new(IpAddr::V4(self.v4), port).to_string()
    }
}

fn first_in_net(address: Ipv4Addr) -> Ipv4Addr {
    let [a, b, c, _] = address.octets();
    Ipv4Addr::new(a, b, c, 1)
}

fn first_in_net_v6(address: Ipv6Addr) -> Ipv6Addr {
    let mut segments = address.segments();
    segments[7] = 1;
    Ipv6Addr::from(segments)
}
