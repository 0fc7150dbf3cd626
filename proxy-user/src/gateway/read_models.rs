//! What the gateway tells operators: status, readiness, admission, metrics.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use super::edge::{EdgeCounters, RefusedSource};
use super::status::{
    AdmissionCounts, AdmissionReport, BrokerStatus, ClusterStatus, ConnectionStatus, EdgeReport, Readiness,
    RefusedReport, Status,
};
use super::{Gateway, admission, listeners, racks_report};
use crate::metrics::ClusterState;
use crate::upstream::topology::{Reach, Topology};

impl Gateway {
    /// For operators.
    #[must_use]
    pub fn status(&self) -> Status {
        let running = self.running.load_full();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: self.started.elapsed().as_secs(),
            config: self.config_path.clone(),
            config_generation: self.generation.load(Relaxed),
            last_reload_error: self.last_reload_error.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            draining: self.draining.load(Relaxed),
            fast_path: self.edge.sentence(),
            edge: self
                .edge
                .steering
                .edge()
                .map(|edge| EdgeReport { splice: edge.splice_status().map(Into::into), ..edge.status().into() }),
            clusters: running.clusters.iter().map(|(n, c)| (n.clone(), cluster_status(&c.topology()))).collect(),
            virtual_clusters: running.virtual_clusters.iter().map(|(n, v)| (n.clone(), v.status())).collect(),
        }
    }

    /// Every open connection.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionStatus> {
        let running = self.running.load_full();
        running.all().flat_map(|shared| shared.registry.status(&shared.name)).collect()
    }

    /// Whether traffic may be sent here: the config is loaded, ports are open, and each cluster was reached or is
    /// known to be degraded.
    #[must_use]
    pub fn ready(&self) -> Readiness {
        let running = self.running.load_full();
        let mut reasons = Vec::new();
        let mut ready = running.config.is_some();
        if self.draining.load(Relaxed) {
            ready = false;
            reasons.push("a drain is under way".to_owned());
        }
        for (name, cluster) in &running.clusters {
            match &cluster.topology().reach {
                Reach::Reached => {}
                Reach::Unknown => {
                    ready = false;
                    reasons.push(format!("cluster {name} has not been reached yet"));
                }
                Reach::Degraded(why) => reasons.push(format!("cluster {name} is degraded: {why}")),
                Reach::Passive(why) => {
                    reasons.push(format!("cluster {name} is known only from answers that pass: {why}"))
                }
            }
        }
        for (name, virtual_cluster) in &running.virtual_clusters {
            let bootstrap = virtual_cluster.shared.config().bootstrap_port;
            let open = virtual_cluster.open_ports();
            if !open.iter().any(|address| address.port() == bootstrap) {
                ready = false;
                reasons.push(format!("virtual cluster {name} has no bootstrap port open"));
            }
            reasons.extend(virtual_cluster.status().degraded.into_iter().map(|why| format!("{name}: {why}")));
        }
        Readiness { ready, reasons }
    }

    /// The numbers, brought up to date.
    #[must_use]
    pub fn metrics(&self) -> String {
        let running = self.running.load_full();
        for (name, cluster) in &running.clusters {
            let topology = cluster.topology();
            let metrics = self.metrics.cluster(name);
            metrics.set_state(match topology.reach {
                Reach::Unknown => ClusterState::Unknown,
                Reach::Reached => ClusterState::Reached,
                Reach::Degraded(_) => ClusterState::Degraded,
                Reach::Passive(_) => ClusterState::Passive,
            });
            let present = topology.brokers.values().filter(|broker| broker.absent_since.is_none()).count();
            metrics.brokers.set(i64::try_from(present).unwrap_or(i64::MAX));
        }
        for virtual_cluster in running.virtual_clusters.values() {
            let shared = &virtual_cluster.shared;
            let outside = listeners::unreachable(&shared.config(), &shared.cluster().topology()).len();
            shared.metrics.unreachable_brokers.set(i64::try_from(outside).unwrap_or(i64::MAX));
            shared.metrics.racks.set(racks_report::reading(shared));
            shared.registry.count_kernel(&shared.metrics);
        }
        self.edge_metrics();
        self.metrics.encode()
    }

    fn edge_metrics(&self) {
        let gateway = self.metrics.gateway();
        let edge = self.edge.steering.edge();
        gateway.steering.set(i64::from(edge.is_some() && self.edge.steering.steers().is_ok()));
        gateway.set_interfaces(edge.map(|edge| edge.status().interfaces).unwrap_or_default().iter().map(|i| i.mode));
        for (name, EdgeCounters { admitted, steered, refused }) in self.edge.steering.counters() {
            if self.running.load().virtual_clusters.contains_key(&name) {
                let refused = refused.into_iter().map(|(reason, n)| (admission::label(reason), n)).collect();
                let ports = self.edge.steering.steered(&name) as u64;
                self.metrics.virtual_cluster(&name).edge.set(admitted, steered, refused, ports);
            }
        }
    }

    /// Who may connect, and what became of those who tried.
    #[must_use]
    pub fn admission(&self) -> AdmissionReport {
        let running = self.running.load_full();
        let rules = self.edge.admission.given();
        let list = |prefixes: &[proxy_common::admission::Prefix]| {
            prefixes.iter().map(|prefix| format!("{}/{}", prefix.address(), prefix.length())).collect()
        };
        let new_connections = running.config.as_ref().and_then(|config| config.admission.new_connections);
        let mut counted = self.edge.steering.counters();
        let counts = |(name, virtual_cluster): (&String, &std::sync::Arc<super::VirtualCluster>)| {
            let EdgeCounters { admitted, steered: _, refused } = counted.remove(name).unwrap_or_default();
            let by_daemon = virtual_cluster.shared.metrics.refused.snapshot();
            let counts = AdmissionCounts {
                admitted_by_kernel: admitted,
                refused_by_kernel: refused.into_iter().map(|(r, n)| (admission::label(r).to_owned(), n)).collect(),
                refused_by_daemon: by_daemon.into_iter().map(|(reason, n)| (reason.to_owned(), n)).collect(),
            };
            (name.clone(), counts)
        };
        let virtual_clusters = running.virtual_clusters.iter().map(counts).collect();
        let edge = self.edge.steering.edge();
        let interfaces = edge.map(|edge| edge.status().interfaces).unwrap_or_default();
        AdmissionReport {
            deny: list(&rules.deny),
            allow: list(&rules.allow),
            new_connections: new_connections
                .map(|new| format!("{} for each {} or {}, {} at once", new.rate, new.per, new.per_v6, new.burst())),
            in_kernel: interfaces.into_iter().filter_map(|i| Some(format!("{} ({})", i.name, i.mode?))).collect(),
            virtual_clusters,
        }
    }

    /// Who was refused lately, the latest first; at most `limit`.
    #[must_use]
    pub fn refused_sources(&self, limit: usize) -> Vec<RefusedReport> {
        let now = Instant::now();
        let by_daemon = self.edge.admission.refused().into_iter().map(|((address, name, reason), refusals)| {
            let last = refusals.last.map_or(0, |last| now.saturating_duration_since(last).as_millis());
            RefusedReport {
                address,
                virtual_cluster: Some(name),
                reason: admission::label(reason).to_owned(),
                by: "daemon".to_owned(),
                times: refusals.times,
                last_ms_ago: u64::try_from(last).unwrap_or(u64::MAX),
            }
        });
        let kernel = self.edge.steering.edge().map(|edge| edge.refused_sources(limit)).unwrap_or_default();
        let by_kernel =
            kernel.into_iter().map(|RefusedSource { address, slot, reason, packets, last_ms_ago }| RefusedReport {
                address,
                virtual_cluster: self.edge.steering.name_of(slot),
                reason: admission::label(reason).to_owned(),
                by: "kernel".to_owned(),
                times: packets,
                last_ms_ago,
            });
        let mut all: Vec<_> = by_daemon.chain(by_kernel).collect();
        all.sort_by_key(|refused| (refused.last_ms_ago, std::cmp::Reverse(refused.times), refused.address));
        all.truncate(limit);
        all
    }
}

fn cluster_status(topology: &Topology) -> ClusterStatus {
    let (state, reason) = match &topology.reach {
        Reach::Unknown => (ClusterState::Unknown, None),
        Reach::Reached => (ClusterState::Reached, None),
        Reach::Degraded(why) => (ClusterState::Degraded, Some(why.clone())),
        Reach::Passive(why) => (ClusterState::Passive, Some(why.clone())),
    };
    ClusterStatus {
        state: state.name().to_owned(),
        reason,
        cluster_id: topology.cluster_id.clone(),
        controller: topology.controller.map(|node| node.0),
        brokers: topology
            .brokers
            .iter()
            .map(|(node, broker)| {
                let status = BrokerStatus {
                    address: broker.address.as_ref().map_or_else(|| "not known yet".to_owned(), ToString::to_string),
                    rack: broker.rack.clone(),
                    present: broker.absent_since.is_none(),
                };
                (node.0, status)
            })
            .collect(),
    }
}
