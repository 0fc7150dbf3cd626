//! Where a connection comes in, whichever socket took it: whose port it is, whether it may, and off to a worker.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tracing::{debug, warn};

use super::admission::{self, Admission};
use super::edge::Reason;
use super::gate::Gate;
use super::registry::{Refusal, role_name};
use super::shared::{Phase, Shared};
use super::steering::Steering;
use super::workers::{Handover, Workers};
use crate::log_gate::LogGate;
use crate::metrics::GatewayMetrics;
use crate::upstream::Target;

/// How long accepting pauses when the process has no file descriptor left.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(250);

/// Between two accepts when one failed, so that an error that stays does not take a whole core.
const ERROR_PAUSE: Duration = Duration::from_millis(1);

/// The same trouble is logged this often.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Looks at the routing table for one connection: a gate that is just being closed means that it is being replaced.
const LOOKS: usize = 3;

/// Where connections of a port lead.
#[derive(Clone)]
pub(crate) struct Route {
    pub(crate) shared: Arc<Shared>,
    pub(crate) target: Target,
    pub(crate) gate: Arc<Gate>,
}

/// See the module.
pub(crate) struct Door {
    pub(crate) workers: Arc<Workers>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) metrics: GatewayMetrics,
    log: LogGate<&'static str>,
}

impl Door {
    pub(crate) fn new(workers: Arc<Workers>, admission: Arc<Admission>, metrics: GatewayMetrics) -> Self {
        Self { workers, admission, metrics, log: LogGate::new(LOG_INTERVAL) }
    }

    fn admit(&self, client: TcpStream, peer: SocketAddr, steering: &Steering) -> io::Result<()> {
        let local = client.local_addr()?;
        let Some((route, phase)) = find(local, steering) else {
            self.metrics.unrouted.inc();
            debug!(%peer, %local, "a connection to a port that is nobody's was ended");
            return reset(&client);
        };
        let Route { shared, target, gate: _ } = route;
        shared.metrics.accepted.inc();
        if let Err(reason) = self.admission.check(peer.ip(), Instant::now()) {
            self.refuse(&shared, peer, target, reason);
            return reset(&client);
        }
        let config = shared.config();
        let limits = &config.limits;
        let record = match shared.registry.admit(peer, target, limits.connections, limits.connections_per_source) {
            Ok(record) => record,
            Err(refusal) => {
                shared.metrics.refused.count(refusal.label());
                shared.metrics.limit_hits.hit(refusal.limit());
                if let Some(suppressed) = shared.may_log(refusal.label()) {
                    let knob = match refusal {
                        Refusal::Connections => u64::from(limits.connections),
                        Refusal::ConnectionsPerSource => u64::from(limits.connections_per_source.unwrap_or_default()),
                    };
                    warn!(
                        virtual_cluster = shared.name, %peer, role = role_name(target), suppressed,
                        "connection refused: {knob} are open already (limits.{})", refusal.label()
                    );
                }
                return Ok(());
            }
        };
        // Whoever denies it from here on finds it in the registry.
        if self.admission.denies(peer.ip()) {
            drop(record);
            self.refuse(&shared, peer, target, Reason::Deny);
            return reset(&client);
        }
        client.set_nodelay(true)?;
        keep_alive(&client)?;
        let client = client.into_std()?;
        drop(config);
        self.workers.serve(Handover { client, peer, local, target, shared, phase, record });
        Ok(())
    }

    fn refuse(&self, shared: &Shared, peer: SocketAddr, target: Target, reason: Reason) {
        let label = admission::label(reason);
        shared.metrics.refused.count(label);
        self.admission.remember(peer.ip(), &shared.name, reason, Instant::now());
        if let Some(suppressed) = shared.may_log(label) {
            warn!(
                virtual_cluster = shared.name, %peer, role = role_name(target), suppressed,
                "connection refused: {}", admission::knob(reason)
            );
        }
    }
}

/// Whose connection it is, and whom it listens to.
fn find(local: SocketAddr, steering: &Steering) -> Option<(Route, watch::Receiver<Phase>)> {
    for _ in 0..LOOKS {
        let route = steering.route(local)?;
        if let Some(phase) = route.gate.subscribe() {
            return Some((route, phase));
        }
        std::thread::yield_now();
    }
    None
}

/// Has the kernel look whether the client is still there.
pub(crate) fn keep_alive(client: &TcpStream) -> io::Result<()> {
    let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(15));
    SockRef::from(client).set_tcp_keepalive(&keepalive.with_retries(4))
}

/// Ends a connection at once, so that the client does not take the end for one that was served.
fn reset(client: &TcpStream) -> io::Result<()> {
    SockRef::from(client).set_linger(Some(Duration::ZERO))
}

/// Takes connections from a listening socket until it is told to end.
pub(crate) async fn accept(socket: Arc<TcpListener>, door: Arc<Door>, steering: Arc<Steering>) {
    loop {
        match socket.accept().await {
            Ok((client, peer)) => {
                if let Err(error) = door.admit(client, peer, &steering) {
                    debug!(%peer, "a connection ended before it was served: {error}");
                }
            }
            Err(error) if is_exhausted(&error) => {
                door.metrics.accept_pauses.inc();
                if let Some(suppressed) = door.log.pass("exhausted", Instant::now()) {
                    warn!(
                        suppressed,
                        "accepting pauses, open connections go on: {error}; raise the open-file limit (LimitNOFILE= in \
                         the unit, ulimit -n) above twice limits.connections"
                    );
                }
                tokio::time::sleep(EXHAUSTED_PAUSE).await;
            }
            // The client gave up before we came to it (accept(2): treat like EAGAIN).
            Err(error) => {
                debug!("accept: {error}");
                tokio::time::sleep(ERROR_PAUSE).await;
            }
        }
    }
}

/// Out of file descriptors or socket memory: nothing is wrong with the listener.
fn is_exhausted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}
