//! Where operators look and steer: HTTP for metrics, health and status, and a control socket for commands.
//!
//! | path | TCP (`admin.http`) | control socket (`admin.socket`) |
//! |---|---|---|
//! | `GET /` `/metrics` `/livez` `/readyz` `/status` `/connections` | yes | yes |
//! | `GET /admission` `/admission/refused` `/racks` `/racks/why` | yes | yes |
//! | `POST /reload` `/drain` `/upgrade` | no | yes |
//!
//! Whoever may open the socket file may steer the daemon; over TCP nobody can. Both speak HTTP/1.1 within the bounds of
//! [`server`], and see the daemon only through [`Operator`].

pub mod client;
pub mod control;
mod http;
pub mod server;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;

use serde::{Deserialize, Serialize};

use crate::gateway::racks_report::WhyQuestion;
use crate::gateway::status::{
    AdmissionReport, ConnectionStatus, RacksReport, Readiness, RefusedReport, ReloadReport, Status, UpgradeReport,
    WhyReport,
};

/// A boxed future, for traits that are used as objects.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What the daemon shows and does for whoever operates it.
pub trait Operator: Send + Sync + 'static {
    /// The whole daemon at this moment.
    fn status(&self) -> Status;

    /// Every open client connection, in any order.
    fn connections(&self) -> Vec<ConnectionStatus>;

    /// Whether traffic may be sent here.
    fn ready(&self) -> Readiness;

    /// Loads the config file again and applies it, whole or not at all. Runs to its end even if whoever asked for it
    /// goes away.
    ///
    /// # Errors
    /// Why the file was refused, with line and column where it has them; the old config stays.
    fn reload(&self) -> BoxFuture<'_, Result<ReloadReport, String>>;

    /// Begins a drain: no new connections, those in flight are finished, then the daemon ends. Returns at once; a
    /// second call changes nothing.
    fn drain(&self, reason: &str);

    /// Who may connect, and what became of those who tried.
    fn admission(&self) -> AdmissionReport;

    /// Who was refused lately, the latest first; at most `limit`.
    fn refused_sources(&self, limit: usize) -> Vec<RefusedReport>;

    /// What was read in which rack, for each virtual cluster that routes.
    fn racks(&self) -> BTreeMap<String, RacksReport>;

    /// Why a client reads partitions where it does, for each virtual cluster that routes.
    fn racks_why(&self, question: &WhyQuestion) -> BTreeMap<String, WhyReport>;

    /// Starts the binary anew, hands everything over to it, and ends once it serves.
    ///
    /// # Errors
    /// Why it did not come about; this daemon goes on as before.
    fn upgrade(&self) -> BoxFuture<'_, Result<UpgradeReport, String>>;

    /// The numbers, in OpenMetrics text.
    fn metrics(&self) -> String;
}

/// One page of `GET /connections?after=ID&limit=N&virtual_cluster=NAME`, ordered by id.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConnectionsPage {
    /// Connections that match, on every page together.
    pub total: usize,
    /// Those of this page.
    pub connections: Vec<ConnectionStatus>,
    /// `after` of the next page; none on the last one.
    pub next: Option<u64>,
}

/// Body of an answer whose status is an error.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Refusal {
    /// What was refused, and why.
    pub error: String,
}
