//! What types can't say: names that must exist, ports that must not meet, limits that must make sense.
//!
//! Every check runs, so that one look at the list is enough to repair a file.

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::Path;

use super::endpoint::{Endpoint, check_host};
use super::model::*;
use super::path::{KeyPath, printable};
use super::read::{Finding, nearest};
use super::units::{Size, Span};
use super::yaml::Node;
use super::{ports, validate_log};

/// What was found, in no particular order.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Each refuses the file.
    pub(super) errors: Vec<Finding>,
    /// Doubtful, yet allowed.
    pub(super) warnings: Vec<Finding>,
}

/// Checks a config. The tree it came from tells which values were interpolated and so must not be shown.
pub(super) fn validate(config: &Config, root: &Node) -> Outcome {
    let mut check = Check { root, outcome: Outcome::default() };
    // Destructured so that a new key can't be forgotten here.
    let Config { clusters, virtual_clusters, fast_path, admission, admin, log, workers, watch: _ } = config;
    let top = KeyPath::root();
    for (key, is_empty) in [("clusters", clusters.is_empty()), ("virtual_clusters", virtual_clusters.is_empty())] {
        if is_empty {
            check.error(&top.key(key), "at least one is needed");
        }
    }
    for (name, cluster) in clusters {
        check.name(&top.key("clusters"), name);
        check.cluster(&top.key("clusters").key(name), cluster);
    }
    for (name, virtual_cluster) in virtual_clusters {
        check.name(&top.key("virtual_clusters"), name);
        check.virtual_cluster(&top.key("virtual_clusters").key(name), virtual_cluster, clusters);
    }
    check.fast_path(&top.key("fast_path"), fast_path);
    check.admission(&top.key("admission"), admission);
    check.admin(&top.key("admin"), admin);
    if let Err(why) = validate_log::check(&log.level) {
        let path = top.key("log").key("level");
        let shown = check.shown(&path, &log.level);
        check.error(&path, format!("{shown} is refused: {why}"));
    }
    if workers.is_some_and(|n| !(1..=1024).contains(&n)) {
        check.error(&top.key("workers"), "must be from 1 to 1024; leave it out for one per processor");
    }
    let listeners = ports::Listeners::of(config);
    check.outcome.errors.extend(listeners.overlaps());
    check.used(config);
    check.loops(config, &listeners);
    check.outcome
}

pub(super) struct Check<'a> {
    pub(super) root: &'a Node,
    outcome: Outcome,
}

impl Check<'_> {
    pub(super) fn error(&mut self, path: &KeyPath, message: impl Into<String>) {
        self.outcome.errors.push(Finding::at(path, message));
    }

    pub(super) fn warn(&mut self, path: &KeyPath, message: impl Into<String>) {
        self.outcome.warnings.push(Finding::at(path, message));
    }

    /// A value as a message may show it: what came from the environment or a file is shown as the file names it.
    fn shown(&self, path: &KeyPath, value: &str) -> String {
        match self.root.get(path) {
            Some(Node::Text(raw)) if raw.contains('$') => format!("`{}`", printable(raw)),
            _ => format!("`{}`", printable(value)),
        }
    }

    /// Names become metric labels and parts of key paths.
    fn name(&mut self, parent: &KeyPath, name: &str) {
        let fits = (1..=64).contains(&name.len())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
        if !fits {
            self.error(&parent.key(name), "a name is 1 to 64 letters, digits, `-`, `_` or `.`");
        }
    }

    fn endpoint(&mut self, path: &KeyPath, text: &str) -> Option<Endpoint> {
        match text.parse() {
            Ok(endpoint) => Some(endpoint),
            Err(why) => {
                let shown = self.shown(path, text);
                self.error(path, format!("{shown} is refused: {why}"));
                None
            }
        }
    }

    fn endpoints(&mut self, path: &KeyPath, texts: &[String]) {
        let mut seen = HashSet::new();
        for (i, text) in texts.iter().enumerate() {
            let path = path.item(i);
            if let Some(endpoint) = self.endpoint(&path, text)
                && !seen.insert(endpoint)
            {
                let shown = self.shown(&path, text);
                self.error(&path, format!("{shown} is listed twice"));
            }
        }
    }

    pub(super) fn positive(&mut self, path: &KeyPath, span: Span, why: &str) {
        if span.is_zero() {
            self.error(path, format!("must be longer than 0; {why}"));
        }
    }

    fn cluster(&mut self, path: &KeyPath, cluster: &Cluster) {
        let Cluster {
            bootstrap,
            address_map,
            racks,
            connect_timeout,
            refresh,
            partition_refresh,
            forget_after,
            tls,
            sasl,
        } = cluster;
        if bootstrap.is_empty() {
            self.error(&path.key("bootstrap"), "at least one `host:port` is needed");
        }
        self.endpoints(&path.key("bootstrap"), bootstrap);
        let mut mapped = HashSet::new();
        for (from, to) in address_map {
            let path = path.key("address_map").key(from);
            match from.parse::<Endpoint>() {
                Ok(endpoint) if !mapped.insert(endpoint.clone()) => {
                    self.error(&path, format!("the address {endpoint} is mapped twice"));
                }
                Ok(_) => {}
                Err(why) => self.error(&path, format!("the advertised address is refused: {why}")),
            }
            self.endpoint(&path, to);
        }
        for (node, rack) in racks {
            let path = path.key("racks").key(node.to_string());
            if *node < 0 {
                self.error(&path, "a node id is 0 or more");
            }
            if rack.is_empty() {
                self.error(&path, "a rack needs a name; leave the key out to keep the broker's own");
            }
        }
        self.positive(&path.key("connect_timeout"), *connect_timeout, "a connection takes some time, such as `5s`");
        self.positive(&path.key("forget_after"), *forget_after, "write for instance `10m`");
        for (key, span, example) in [("refresh", refresh, "30s"), ("partition_refresh", partition_refresh, "5s")] {
            if span.0 < std::time::Duration::from_millis(100) {
                self.error(
                    &path.key(key),
                    format!("must be at least `100ms`, so that brokers are not flooded; such as `{example}`"),
                );
            }
        }
        if let Some(tls) = tls {
            self.tls(&path.key("tls"), tls);
        }
        if let Some(Sasl { mechanism, username, password }) = sasl {
            let path = path.key("sasl");
            for (key, value) in [("username", username), ("password", password)] {
                if value.is_empty() {
                    self.error(&path.key(key), "must not be empty");
                }
            }
            if *mechanism == Mechanism::Plain && tls.is_none() {
                self.warn(&path.key("mechanism"), "PLAIN without `tls` sends the password in clear text");
            }
        }
    }

    fn tls(&mut self, path: &KeyPath, tls: &Tls) {
        let Tls { ca, cert, key, bootstrap } = tls;
        match (cert, key) {
            (Some(_), None) => self.error(&path.key("cert"), "a certificate needs its `key`; give both or neither"),
            (None, Some(_)) => self.error(&path.key("key"), "a key needs its `cert`; give both or neither"),
            _ => {}
        }
        for (name, file) in [("ca", ca), ("cert", cert), ("key", key)] {
            if file.as_deref().is_some_and(|f| f == Path::new("")) {
                self.error(&path.key(name), "names no file; write a path, or leave the key out");
            }
        }
        self.endpoints(&path.key("bootstrap"), bootstrap);
    }

    fn virtual_cluster(&mut self, path: &KeyPath, virtual_cluster: &VirtualCluster, clusters: &Named<Cluster>) {
        let VirtualCluster {
            cluster,
            listen,
            bootstrap_port,
            broker_ports,
            advertise,
            versions,
            cluster_id,
            limits,
            racks,
        } = virtual_cluster;
        if !clusters.contains_key(cluster) {
            let path = path.key("cluster");
            let shown = self.shown(&path, cluster);
            let known: Vec<_> = clusters.keys().take(8).map(|n| format!("`{}`", printable(n))).collect();
            let remedy = match nearest(cluster, clusters.keys().map(String::as_str)) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("`clusters` has {}", known.join(", ")),
            };
            self.error(&path, format!("there is no cluster {shown}; {remedy}"));
        }
        self.listen(&path.key("listen"), listen);
        if *bootstrap_port == 0 {
            self.error(&path.key("bootstrap_port"), "must be a port from 1 to 65535");
        }
        self.broker_ports(&path.key("broker_ports"), *broker_ports);
        if let Some(host) = advertise {
            self.advertise(&path.key("advertise"), host);
        }
        if cluster_id.as_deref() == Some("") {
            self.error(&path.key("cluster_id"), "must not be empty; leave it out for the cluster's own");
        }
        self.limits(&path.key("limits"), limits);
        if let Some(racks) = racks {
            self.racks(&path.key("racks"), racks, *versions);
        }
    }

    fn listen(&mut self, path: &KeyPath, listen: &[IpAddr]) {
        if listen.is_empty() {
            self.error(path, "at least one address is needed; leave it out to listen on all");
        }
        let mut seen = HashSet::new();
        for (i, address) in listen.iter().enumerate() {
            if !seen.insert(address) {
                self.error(&path.item(i), "this address is listed twice");
            }
            match address {
                IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
                    self.error(&path.item(i), "an IPv4 address in IPv6 clothes can't be listened on; write it as IPv4");
                }
                _ if address.is_multicast() => self.error(&path.item(i), "a multicast address can't be listened on"),
                _ => {}
            }
        }
    }

    fn broker_ports(&mut self, path: &KeyPath, ports: BrokerPorts) {
        let BrokerPorts { first, count, first_node_id } = ports;
        if first == 0 {
            self.error(&path.key("first"), "must be a port from 1 to 65535");
        }
        if count == 0 {
            self.error(&path.key("count"), "must be at least 1, better more than there are brokers");
        }
        if u32::from(first) + u32::from(count) > 65_536 {
            let room = 65_536 - u32::from(first);
            self.error(&path.key("count"), format!("ports end at 65535, so from {first} on there are only {room}"));
        }
        if first_node_id < 0 {
            self.error(&path.key("first_node_id"), "a node id is 0 or more");
        } else if i64::from(first_node_id) + i64::from(count) - 1 > i64::from(i32::MAX) {
            self.error(
                &path.key("first_node_id"),
                "node ids end at 2147483647, so `count` of them don't fit from here on",
            );
        }
    }

    fn advertise(&mut self, path: &KeyPath, host: &str) {
        let shown = self.shown(path, host);
        let why = if host.is_empty() {
            "must not be empty; leave it out for the address the client dialled".to_owned()
        } else if host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified()) {
            format!("{shown} can't be dialled by clients; write the host they reach, or leave the key out")
        } else if host.parse::<Endpoint>().is_ok() {
            format!("{shown} has a port; ports come from `bootstrap_port` and `broker_ports`, so write the host alone")
        } else if host.starts_with('[') {
            format!("{shown} is refused: write an IPv6 address without brackets")
        } else if let Err(why) = check_host(host) {
            format!("{shown} is refused: {why}")
        } else {
            return;
        };
        self.error(path, why);
    }

    fn limits(&mut self, path: &KeyPath, limits: &Limits) {
        let Limits {
            connections,
            connections_per_source,
            frame,
            rewrite_frame,
            in_flight,
            first_byte,
            incomplete_frame,
            idle,
            drain,
        } = limits;
        const MAX_FRAME: Size = Size(i32::MAX as u64);
        const MIN_FRAME: Size = Size::kib(1);
        for (key, is_zero) in [
            ("connections", *connections == 0),
            ("connections_per_source", *connections_per_source == Some(0)),
            ("in_flight", *in_flight == 0),
        ] {
            if is_zero {
                self.error(&path.key(key), "must be at least 1");
            }
        }
        if connections_per_source.is_some_and(|n| n > *connections) {
            self.warn(&path.key("connections_per_source"), "larger than `connections`, so it bounds nothing");
        }
        if *frame > MAX_FRAME {
            self.error(&path.key("frame"), format!("a Kafka frame is at most {MAX_FRAME} bytes; such as `100MiB`"));
        }
        for (key, size) in [("frame", *frame), ("rewrite_frame", *rewrite_frame)] {
            if size < MIN_FRAME {
                self.error(&path.key(key), format!("must be at least `{MIN_FRAME}`, or no client can connect"));
            }
        }
        if rewrite_frame > frame {
            let why = format!("`{rewrite_frame}` is larger than `frame` (`{frame}`); lower it or raise `frame`");
            // Where only `frame` was lowered, that is the key to look at.
            let given = self.root.get(&path.key("rewrite_frame")).is_some();
            self.error(&path.key(if given { "rewrite_frame" } else { "frame" }), format!("`rewrite_frame` of {why}"));
        }
        for (key, span, why) in [
            ("first_byte", first_byte, "it can't be off, or silent connections pile up; such as `10s`"),
            ("incomplete_frame", incomplete_frame, "it can't be off, or half-sent frames pile up; such as `30s`"),
            ("idle", idle, "it can't be off, or dead connections pile up; such as `9m`"),
            ("drain", drain, "what is in flight needs some time; such as `30s`"),
        ] {
            self.positive(&path.key(key), *span, why);
        }
        if *idle > Span::mins(10) {
            self.warn(&path.key("idle"), "longer than the 10m after which brokers close by default");
        }
    }

    fn admin(&mut self, path: &KeyPath, admin: &Admin) {
        let Admin { http, socket } = admin;
        if http.is_some_and(|a| a.port() == 0) {
            self.error(&path.key("http"), "the port must be from 1 to 65535; write `off` for no HTTP server");
        }
        // A socket's path lives in `sockaddr_un.sun_path`, 108 bytes with the closing zero (unix(7)).
        match socket.as_os_str().len() {
            0 => self.error(&path.key("socket"), "names no file; such as `/run/turnout/turnout.sock`"),
            n if n > 107 => {
                self.error(&path.key("socket"), format!("{n} bytes long; the path of a socket has at most 107"));
            }
            _ => {}
        }
    }

    fn used(&mut self, config: &Config) {
        let used: HashSet<&String> = config.virtual_clusters.values().map(|v| &v.cluster).collect();
        for name in config.clusters.keys().filter(|name| !used.contains(name)) {
            self.warn(&KeyPath::of(&["clusters", name.as_str()]), "no virtual cluster uses this cluster");
        }
    }

    /// A cluster whose bootstrap is one of our own listeners would be dialled by itself, round and round.
    fn loops(&mut self, config: &Config, listeners: &ports::Listeners) {
        for (name, cluster) in &config.clusters {
            for (i, text) in cluster.bootstrap.iter().enumerate() {
                let Ok(endpoint) = text.parse::<Endpoint>() else { continue };
                let Ok(address) = endpoint.host.parse::<IpAddr>() else { continue };
                if let Some(owner) = listeners.reached_by(address, endpoint.port) {
                    let path = KeyPath::of(&["clusters", name.as_str(), "bootstrap"]).item(i);
                    self.warn(&path, format!("{owner} listens there too: is this the gateway itself?"));
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "validate_tests.rs"]
mod tests;
