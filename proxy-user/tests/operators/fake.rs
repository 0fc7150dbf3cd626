//! A daemon without a gateway behind it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use turnout::admin::server::AdminServer;
use turnout::admin::{BoxFuture, Operator};
use turnout::config::Admin;
use turnout::gateway::racks_report::WhyQuestion;
use turnout::gateway::status::{
    AdmissionCounts, AdmissionReport, BrokerStatus, ClusterStatus, ConnectionStatus, ListenerStatus, RacksReport,
    Readiness, RefusedReport, ReloadReport, Status, UpgradeReport, VirtualClusterStatus, WhyReport,
};
use turnout::metrics::Metrics;

/// What a test sets and looks at.
#[derive(Debug, Default)]
pub(crate) struct Fake {
    pub(crate) not_ready: AtomicBool,
    pub(crate) connections: AtomicUsize,
    /// What the next reload answers.
    pub(crate) reload: Mutex<Option<Result<ReloadReport, String>>>,
    /// Held while a reload runs, if a test wants to see one in the middle.
    pub(crate) reload_gate: tokio::sync::Mutex<()>,
    pub(crate) reloads_ended: AtomicUsize,
    pub(crate) drained: Mutex<Vec<String>>,
    /// What an upgrade answers; `None`: it is refused.
    pub(crate) successor: Mutex<Option<u32>>,
    pub(crate) metrics: Metrics,
}

impl Operator for Fake {
    fn status(&self) -> Status {
        let broker = |address: &str| BrokerStatus { address: address.into(), rack: Some("az1".into()), present: true };
        let cluster = ClusterStatus {
            state: "reached".into(),
            reason: None,
            cluster_id: Some("4L6g3nShT-eMCtK--X86sw".into()),
            controller: Some(1),
            brokers: [(0, broker("10.0.4.2:9092")), (1, broker("10.0.4.3:9092"))].into(),
        };
        let listener =
            ListenerStatus { address: "0.0.0.0:9092".into(), role: "bootstrap".into(), steered: false, error: None };
        let virtual_cluster = VirtualClusterStatus {
            cluster: "east".into(),
            ports: "bound one by one: fast_path.mode is off".into(),
            strangers: vec![],
            refused: [("deny".to_owned(), 7)].into(),
            listeners: vec![listener],
            unreachable_brokers: vec![],
            connections: 12,
            accepted: 3456,
            request_bytes: 1_288_490_188,
            answer_bytes: 3_650_722_201,
            requests: 98_765,
            closed: [("idle".to_owned(), 3)].into(),
            racks: None,
            degraded: vec![],
        };
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime_seconds: 93_600,
            config: "/etc/turnout/turnout.yaml".into(),
            config_generation: 2,
            last_reload_error: None,
            draining: !self.drained.lock().expect("unpoisoned").is_empty(),
            fast_path: "off: fast_path.mode is off".into(),
            edge: None,
            clusters: [("east".to_owned(), cluster)].into(),
            virtual_clusters: [("orders".to_owned(), virtual_cluster)].into(),
        }
    }

    fn connections(&self) -> Vec<ConnectionStatus> {
        // Backwards: no order is promised.
        (0..self.connections.load(Ordering::Relaxed) as u64).rev().map(connection).collect()
    }

    fn ready(&self) -> Readiness {
        if self.not_ready.load(Ordering::Relaxed) {
            Readiness { ready: false, reasons: vec!["cluster east was not reached yet".into()] }
        } else {
            Readiness { ready: true, reasons: vec!["cluster west is degraded: no route".into()] }
        }
    }

    fn reload(&self) -> BoxFuture<'_, Result<ReloadReport, String>> {
        Box::pin(async {
            let _gate = self.reload_gate.lock().await;
            self.reloads_ended.fetch_add(1, Ordering::Relaxed);
            self.reload.lock().expect("unpoisoned").take().unwrap_or_else(|| Ok(ReloadReport::default()))
        })
    }

    fn drain(&self, reason: &str) {
        self.drained.lock().expect("unpoisoned").push(reason.to_owned());
    }

    fn admission(&self) -> AdmissionReport {
        let counts = AdmissionCounts {
            admitted_by_kernel: 3456,
            refused_by_kernel: [("deny".to_owned(), 12), ("rate".to_owned(), 3)].into(),
            refused_by_daemon: [("deny".to_owned(), 7)].into(),
        };
        AdmissionReport {
            deny: vec!["192.0.2.0/24".into()],
            allow: vec![],
            new_connections: Some("100/s for each /32 or /64, 200 at once".into()),
            in_kernel: vec!["eth0 (native)".into()],
            virtual_clusters: [("orders".to_owned(), counts)].into(),
        }
    }

    fn racks(&self) -> BTreeMap<String, RacksReport> {
        [("orders".to_owned(), RacksReport { mode: "auto".into(), redirected: 12, ..RacksReport::default() })].into()
    }

    fn racks_why(&self, question: &WhyQuestion) -> BTreeMap<String, WhyReport> {
        let by = question.topic.clone();
        let report = WhyReport { rack: Some(question.client.to_string()), by, partitions: Vec::new(), more: 0 };
        [("orders".to_owned(), report)].into()
    }

    fn refused_sources(&self, limit: usize) -> Vec<RefusedReport> {
        let refused = |n: u8| RefusedReport {
            address: [192, 0, 2, n].into(),
            virtual_cluster: Some("orders".into()),
            reason: "deny".into(),
            by: if n.is_multiple_of(2) { "kernel" } else { "daemon" }.into(),
            times: 1000 * u64::from(n),
            last_ms_ago: 1500,
        };
        (1..=50).map(refused).take(limit).collect()
    }

    fn upgrade(&self) -> BoxFuture<'_, Result<UpgradeReport, String>> {
        let successor = *self.successor.lock().expect("unpoisoned");
        Box::pin(async move {
            let new_pid = successor.ok_or_else(|| "the successor did not take over: exec format error".to_owned())?;
            Ok(UpgradeReport { old_pid: std::process::id(), new_pid })
        })
    }

    fn metrics(&self) -> String {
        self.metrics.encode()
    }
}

fn connection(id: u64) -> ConnectionStatus {
    ConnectionStatus {
        id,
        virtual_cluster: if id.is_multiple_of(2) { "orders" } else { "payments" }.into(),
        role: "broker 1".into(),
        client: format!("10.0.1.7:{}", 40_000 + id % 20_000),
        broker: Some("10.0.4.3:9092".into()),
        client_id: Some("analytics-1".into()),
        software: Some("apache-kafka-java 4.3.1".into()),
        age_seconds: 75,
        in_flight: 1,
        requests: 1234,
        request_bytes: 123_456,
        answer_bytes: 7_654_321,
        path: "local: fast_path.mode is off".into(),
        splice: None,
    }
}

/// A fake behind a real admin server, on a port and a socket of its own.
pub(crate) struct Daemon {
    pub(crate) fake: Arc<Fake>,
    pub(crate) server: AdminServer,
    pub(crate) folder: tempfile::TempDir,
}

impl Daemon {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let fake = Arc::new(Fake::default());
        let config = Admin { http: Some(([127, 0, 0, 1], 0).into()), socket: folder.path().join("t.sock") };
        let server = AdminServer::start(&config, fake.clone()).expect("the admin server starts");
        Self { fake, server, folder }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.server.control_path().to_owned()
    }
}
