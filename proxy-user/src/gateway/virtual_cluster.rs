//! One virtual cluster at run time, as the gateway holds it: the [`Keeper`] does the work.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

use super::keeper::{Bound, Command, Keeper, View, Way};
use super::listeners;
use super::registry::role_name;
use super::shared::{Phase, Shared};
use super::status::{ListenerStatus, VirtualClusterStatus};
use super::steering::Steering;
use crate::config;

/// Handle of a running virtual cluster.
pub(crate) struct VirtualCluster {
    pub(crate) shared: Arc<Shared>,
    commands: mpsc::Sender<Command>,
    view: Arc<Mutex<View>>,
}

impl VirtualCluster {
    /// Opens the ports and keeps them right from then on.
    pub(crate) async fn start(shared: Arc<Shared>, steering: Arc<Steering>, bound: Bound) -> Self {
        let (commands, incoming) = mpsc::channel(8);
        let view = Arc::default();
        let mut keeper = Keeper::new(Arc::clone(&shared), steering, Arc::clone(&view));
        keeper.reconcile(bound).await;
        tokio::spawn(keeper.run(incoming));
        Self { shared, commands, view }
    }

    /// Goes on with another config, or another way to have its ports. Returns once they are open.
    pub(crate) async fn reconfigure(&self, config: config::VirtualCluster, bound: Bound) {
        let (done, applied) = oneshot::channel();
        if self.commands.send(Command::Reconfigure(Box::new(config), bound, done)).await.is_ok() {
            let _ = applied.await;
        }
    }

    /// Closes the ports for good; connections end by `phase`. They are closed when this returns.
    pub(crate) async fn close(&self, phase: Phase) {
        let (done, closed) = oneshot::channel();
        if self.commands.send(Command::Close(phase, done)).await.is_ok() {
            let _ = closed.await;
        }
    }

    fn view(&self) -> View {
        self.view.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The ports that are bound now, also those that won't be for long.
    pub(crate) fn bound_ports(&self) -> BTreeMap<SocketAddr, Arc<TcpListener>> {
        let View { ports, mut retiring, .. } = self.view();
        retiring.extend(ports.into_iter().filter_map(|(address, state)| match state.way {
            Ok(Way::Bound(socket)) => Some((address, socket)),
            Ok(Way::Steered) | Err(_) => None,
        }));
        retiring
    }

    /// The ports by which connections come in, in whatever way.
    pub(crate) fn open_ports(&self) -> BTreeSet<SocketAddr> {
        self.view().ports.into_iter().filter(|(_, state)| state.way.is_ok()).map(|(address, _)| address).collect()
    }

    /// The ports that the kernel steers.
    pub(crate) fn steered_ports(&self) -> BTreeSet<SocketAddr> {
        let is_steered = |state: &super::keeper::PortState| matches!(state.way, Ok(Way::Steered));
        self.view().ports.into_iter().filter(|(_, state)| is_steered(state)).map(|(address, _)| address).collect()
    }

    /// The ports that should be open and aren't.
    pub(crate) fn failing_ports(&self) -> BTreeSet<SocketAddr> {
        self.view().ports.into_iter().filter(|(_, state)| state.way.is_err()).map(|(address, _)| address).collect()
    }

    /// For operators.
    pub(crate) fn status(&self) -> VirtualClusterStatus {
        let config = self.shared.config();
        let topology = self.shared.cluster().topology();
        let metrics = &self.shared.metrics;
        self.shared.registry.count_kernel(metrics);
        let View { ports, why_bound, strangers, retiring: _ } = self.view();
        let outside: Vec<i32> = listeners::unreachable(&config, &topology).iter().map(|node| node.0).collect();
        let mut degraded = Vec::new();
        if !outside.is_empty() {
            degraded.push(format!(
                "brokers {outside:?} have no port: raise broker_ports.count or move broker_ports.first_node_id"
            ));
        }
        for (address, state) in &ports {
            if let Err(error) = &state.way {
                degraded.push(format!("{address} ({}) is not open: {error}", role_name(state.target)));
            }
        }
        VirtualClusterStatus {
            cluster: config.cluster.clone(),
            ports: why_bound.map_or_else(|| "steered".to_owned(), |why| format!("bound one by one: {why}")),
            strangers: strangers.iter().map(ToString::to_string).collect(),
            listeners: ports
                .into_iter()
                .map(|(address, state)| ListenerStatus {
                    address: address.to_string(),
                    role: role_name(state.target),
                    steered: matches!(state.way, Ok(Way::Steered)),
                    error: state.way.err(),
                })
                .collect(),
            unreachable_brokers: outside,
            connections: self.shared.registry.len() as u64,
            accepted: metrics.accepted.get(),
            request_bytes: metrics.request_bytes.get(),
            answer_bytes: metrics.answer_bytes.get(),
            requests: metrics.requests.total(),
            refused: metrics.refused.snapshot().into_iter().map(|(reason, n)| (reason.to_owned(), n)).collect(),
            closed: metrics.closed.snapshot().into_iter().map(|(reason, n)| (reason.to_owned(), n)).collect(),
            racks: super::racks_report::sentence(&self.shared),
            degraded,
        }
    }
}
