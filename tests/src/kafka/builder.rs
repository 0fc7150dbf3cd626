//! What a cluster shall be.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use anyhow::{Result, ensure};

use super::artifacts::Artifacts;
use super::broker::{self, Broker};
use super::security::{self, Certificates, Listener, User};
use super::storage::{self, Format};
use super::{Addresses, Cluster};
use crate::netns::{World, around};
use crate::ports;
use crate::rundir::RunDir;

/// Ports of the listeners on hosts of their own, where they need not differ between brokers.
const NAMESPACE_PORTS: [(Listener, u16); 4] =
    [(Listener::Plaintext, 9092), (Listener::Sasl, 9093), (Listener::Tls, 9094), (Listener::SaslTls, 9095)];
const NAMESPACE_CONTROLLER_PORT: u16 = 9099;

/// Describes a cluster; [`Self::start`] makes it.
#[derive(Clone, Debug)]
pub struct ClusterBuilder {
    name: String,
    node_ids: Vec<i32>,
    racks: Vec<String>,
    rack_aware_selector: bool,
    listeners: Vec<Listener>,
    super_users: Option<Vec<String>>,
    properties: Vec<(String, String)>,
    heap_mb: u32,
    format: Format,
    world: Option<Arc<World>>,
}

impl Default for ClusterBuilder {
    fn default() -> Self {
        Self {
            name: "kafka".into(),
            node_ids: vec![1],
            racks: Vec::new(),
            rack_aware_selector: false,
            listeners: vec![Listener::Plaintext],
            super_users: None,
            properties: Vec::new(),
            heap_mb: 256,
            format: Format::default(),
            world: None,
        }
    }
}

impl ClusterBuilder {
    /// A name for its run directory.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = name.to_owned();
        self
    }

    /// How many brokers, with node ids from 1.
    #[must_use]
    pub fn brokers(mut self, count: i32) -> Self {
        self.node_ids = (1..=count).collect();
        self
    }

    /// Brokers with these node ids, gaps allowed.
    #[must_use]
    pub fn node_ids(mut self, ids: &[i32]) -> Self {
        self.node_ids = ids.to_vec();
        self
    }

    /// `broker.rack` of the brokers in order; repeated from the start when there are more brokers.
    #[must_use]
    pub fn racks(mut self, racks: &[&str]) -> Self {
        self.racks = racks.iter().map(|&rack| rack.to_owned()).collect();
        self
    }

    /// Whether brokers choose a replica by the consumer's rack (KIP-392).
    #[must_use]
    pub fn rack_aware_selector(mut self, on: bool) -> Self {
        self.rack_aware_selector = on;
        self
    }

    /// Listeners beside the plaintext one.
    #[must_use]
    pub fn listeners(mut self, listeners: &[Listener]) -> Self {
        self.listeners.extend(listeners);
        self.listeners.sort_unstable();
        self.listeners.dedup();
        self
    }

    /// Users of the SASL listeners, each with the password `<name>-secret`.
    #[must_use]
    pub fn users(mut self, names: &[&str]) -> Self {
        self.format.users = names.iter().map(|name| User::new(name)).collect();
        self
    }

    /// StandardAuthorizer: only ANONYMOUS (the plaintext listener) and these users may do what no ACL allows.
    #[must_use]
    pub fn authorizer(mut self, super_users: &[&str]) -> Self {
        self.super_users = Some(super_users.iter().map(|&user| user.to_owned()).collect());
        self
    }

    /// Level of a feature at format time, e.g. `transaction.version` 1 for transactions of the first kind.
    #[must_use]
    pub fn feature(mut self, name: &str, level: i16) -> Self {
        self.format.features.insert(name.to_owned(), level);
        self
    }

    /// A broker property; it wins over the harness's own.
    #[must_use]
    pub fn property(mut self, key: &str, value: &str) -> Self {
        self.properties.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Heap of each broker in MiB (default 256; batches of 50 MB want 768).
    #[must_use]
    pub fn heap_mb(mut self, heap_mb: u32) -> Self {
        self.heap_mb = heap_mb;
        self
    }

    /// Puts each broker on a host of its own instead of loopback ports.
    #[must_use]
    pub fn world(mut self, world: &Arc<World>) -> Self {
        self.world = Some(Arc::clone(world));
        self
    }

    /// Starts all brokers and waits until the cluster is ready.
    ///
    /// # Errors
    /// Java, Maven or Kafka's jars are missing, or the cluster does not become ready.
    pub fn start(self) -> Result<Cluster> {
        let cluster = self.build()?;
        for broker in cluster.brokers() {
            broker.launch()?;
        }
        cluster.wait_ready()?;
        Ok(cluster)
    }

    /// Lays everything out without starting a broker: for tests of brokers that come late.
    ///
    /// # Errors
    /// As for [`Self::start`], readiness apart.
    pub fn build(self) -> Result<Cluster> {
        ensure!(!self.node_ids.is_empty(), "a cluster needs a broker");
        let artifacts = Artifacts::prepare()?;
        let wants_tls = self.listeners.iter().any(|listener| listener.is_tls());
        let certificates = wants_tls.then(|| Certificates::prepare(&artifacts)).transpose()?;
        let dir = RunDir::create(&self.name)?;
        let cluster_id = storage::random_uuid();
        let nodes = self.node_ids.iter().enumerate().map(|(index, id)| Ok((*id, self.addresses(index)?)));
        let nodes: BTreeMap<i32, (Addresses, SocketAddr)> = nodes.collect::<Result<_>>()?;
        let voters: Vec<_> = nodes.iter().map(|(id, (_, controller))| format!("{id}@{controller}")).collect();

        let mut brokers = BTreeMap::new();
        for (index, node_id) in self.node_ids.iter().enumerate() {
            let (addresses, controller) = nodes[node_id].clone();
            let broker_dir = dir.path().join(format!("broker-{node_id}"));
            let data = broker::data(&broker_dir);
            self.format.write(&artifacts, &data, &cluster_id, *node_id)?;
            let rack = (!self.racks.is_empty()).then(|| self.racks[index % self.racks.len()].clone());
            let mut properties = self.own_properties(certificates.as_ref());
            properties.extend([
                ("node.id".into(), node_id.to_string()),
                ("controller.quorum.voters".into(), voters.join(",")),
                ("log.dirs".into(), data.display().to_string()),
            ]);
            properties.extend(listener_properties(&addresses, controller));
            properties.extend(rack.iter().map(|rack| ("broker.rack".to_owned(), rack.clone())));
            // Later keys win, as in Java's Properties.
            properties.extend(self.properties.iter().cloned());
            let text = properties.iter().fold(String::new(), |mut text, (key, value)| {
                let _ = writeln!(text, "{key}={value}");
                text
            });
            fs::write(broker_dir.join("server.properties"), text)?;
            brokers.insert(
                *node_id,
                Broker {
                    node_id: *node_id,
                    rack,
                    addresses,
                    dir: broker_dir,
                    heap_mb: self.heap_mb,
                    artifacts: artifacts.clone(),
                    place: self.place(index),
                    process: Mutex::new(None),
                },
            );
        }
        Ok(Cluster { brokers, cluster_id, artifacts, users: self.format.users, certificates, dir })
    }

    /// The host of the broker at `index`, if it has one.
    fn place(&self, index: usize) -> Option<(Arc<World>, usize)> {
        let own = self.world.clone().map(|world| (world, index));
        // The world around a suite has one host for all.
        own.or_else(|| Some((Arc::clone(around()?), 0)))
    }

    /// Addresses of the client listeners, and of the controller, of the broker at `index`.
    fn addresses(&self, index: usize) -> Result<(Addresses, SocketAddr)> {
        if let Some(world) = &self.world {
            ensure!(index < world.brokers().len(), "the world has only {} broker hosts", world.brokers().len());
            let host = IpAddr::V4(world.brokers()[index].v4);
            let wanted = NAMESPACE_PORTS.into_iter().filter(|(listener, _)| self.listeners.contains(listener));
            let addresses = wanted.map(|(listener, port)| (listener, SocketAddr::new(host, port))).collect();
            return Ok((addresses, SocketAddr::new(host, NAMESPACE_CONTROLLER_PORT)));
        }
        let host = around().map_or(Ipv4Addr::LOCALHOST, |world| world.brokers()[0].v4);
        let local = |port: u16| SocketAddr::new(IpAddr::V4(host), port);
        let addresses = self.listeners.iter().map(|listener| Ok((*listener, local(ports::one()?))));
        Ok((addresses.collect::<Result<_>>()?, local(ports::one()?)))
    }

    fn own_properties(&self, certificates: Option<&Certificates>) -> Vec<(String, String)> {
        let nodes = self.node_ids.len();
        let copies = nodes.min(3).to_string();
        let in_sync = nodes.min(2).to_string();
        let fixed = [
            ("process.roles", "broker,controller"),
            ("controller.listener.names", "CONTROLLER"),
            ("inter.broker.listener.name", "PLAINTEXT"),
            ("default.replication.factor", &copies),
            ("min.insync.replicas", &in_sync),
            ("auto.create.topics.enable", "false"),
            // Few partitions for the internal topics: each costs files and time at every start.
            ("offsets.topic.num.partitions", "4"),
            ("offsets.topic.replication.factor", &copies),
            ("transaction.state.log.num.partitions", "4"),
            ("transaction.state.log.replication.factor", &copies),
            ("transaction.state.log.min.isr", &in_sync),
            ("share.coordinator.state.topic.num.partitions", "4"),
            ("share.coordinator.state.topic.replication.factor", &copies),
            ("share.coordinator.state.topic.min.isr", &in_sync),
            ("group.initial.rebalance.delay.ms", "0"),
            ("num.network.threads", "2"),
            ("num.io.threads", "4"),
            ("background.threads", "2"),
            ("log.cleaner.dedupe.buffer.size", "2097152"),
        ];
        let mut properties: Vec<_> = fixed.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        if self.rack_aware_selector {
            let class = "org.apache.kafka.common.replica.RackAwareReplicaSelector";
            properties.push(("replica.selector.class".into(), class.into()));
        }
        if let Some(super_users) = &self.super_users {
            let users: String = super_users.iter().map(|user| format!(";User:{user}")).collect();
            let class = "org.apache.kafka.metadata.authorizer.StandardAuthorizer";
            properties.push(("authorizer.class.name".into(), class.into()));
            properties.push(("super.users".into(), format!("User:ANONYMOUS{users}")));
        }
        for listener in self.listeners.iter().filter(|listener| listener.is_sasl()) {
            properties.extend(security::sasl_properties(*listener, &self.format.users));
        }
        properties.extend(certificates.map(Certificates::properties).unwrap_or_default());
        properties
    }
}

fn listener_properties(addresses: &Addresses, controller: SocketAddr) -> Vec<(String, String)> {
    let clients: Vec<_> = addresses.iter().map(|(listener, at)| format!("{}://{at}", listener.name())).collect();
    let protocols: Vec<_> =
        addresses.keys().map(|listener| format!("{}:{}", listener.name(), listener.protocol())).collect();
    vec![
        ("listeners".into(), format!("{},CONTROLLER://{controller}", clients.join(","))),
        ("advertised.listeners".into(), clients.join(",")),
        ("listener.security.protocol.map".into(), format!("{},CONTROLLER:PLAINTEXT", protocols.join(","))),
    ]
}
