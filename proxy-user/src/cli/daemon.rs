//! The daemon as one piece: gateway, admin server, log and signals, and what operators may ask of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Mutex, Notify};
use tracing::{error, info, warn};

use super::logging::LogHandle;
use crate::admin::server::AdminServer;
use crate::admin::{BoxFuture, Operator};
use crate::config::{self, Loaded};
use crate::gateway::Gateway;
use crate::gateway::edge::EdgeSource;
use crate::gateway::racks_report::WhyQuestion;
use crate::gateway::status::{
    AdmissionReport, ConnectionStatus, RacksReport, Readiness, RefusedReport, ReloadReport, Status, UpgradeReport,
    WhyReport,
};
use crate::handover::{self, Handover, Predecessor, Successor};
use crate::kernel::KernelSource;
use crate::metrics::Metrics;
use crate::splice::mirror::Consumers;
use crate::systemd::{self, State};

/// How often the file is looked at where the config says `watch: true`. A change is applied once it has been the same
/// for one such interval, so that a file that is being written is not read.
const WATCH: Duration = Duration::from_secs(2);

struct Daemon {
    this: Weak<Self>,
    gateway: Gateway,
    metrics: Metrics,
    config_path: PathBuf,
    log: LogHandle,
    admin: Mutex<Option<AdminServer>>,
    drain: Notify,
    /// A successor has taken over.
    succeeded: Notify,
    /// One hand-over at a time.
    upgrade: Mutex<()>,
}

/// How the daemon came to be told to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Drain,
    Successor,
}

/// Serves until a drain has ended, or a second signal ends it at once. `inherited`: what a predecessor hands over.
/// `consumers`: who wants copies of frames.
pub(super) async fn serve(
    config_path: PathBuf,
    loaded: Loaded,
    log: LogHandle,
    inherited: Option<(Predecessor, Handover)>,
    consumers: Option<Arc<dyn Consumers>>,
) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("watching for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("watching for SIGINT")?;
    let mut hangup = signal(SignalKind::hangup()).context("watching for SIGHUP")?;

    let daemon = match inherited {
        None => Daemon::start(config_path, loaded, log, consumers).await?,
        Some((mut predecessor, handover)) => {
            match Daemon::start_from(config_path, loaded, log, handover, consumers).await {
                Ok(daemon) => {
                    let pid = predecessor.pid;
                    predecessor.ready()?;
                    info!("took over from pid {pid}, which drains");
                    daemon
                }
                Err(error) => {
                    predecessor.failed(&format!("{error:#}"));
                    return Err(error);
                }
            }
        }
    };
    tell(State::Ready);
    info!("serving");

    let mut watch = FileWatch::new(&daemon.config_path);
    let mut look = tokio::time::interval(WATCH);
    let end = loop {
        tokio::select! {
            _ = terminate.recv() => {
                info!("SIGTERM: draining; a second signal ends it at once");
                break End::Drain;
            }
            _ = interrupt.recv() => {
                info!("SIGINT: draining; a second signal ends it at once");
                break End::Drain;
            }
            () = daemon.drain.notified() => break End::Drain,
            () = daemon.succeeded.notified() => break End::Successor,
            _ = hangup.recv() => {
                // Said and counted by `reload` itself.
                let _ = daemon.reload().await;
            }
            () = daemon.gateway.edge_lost() => daemon.gateway.go_on_without_edge().await,
            _ = look.tick() => {
                let wanted = daemon.gateway.config().is_some_and(|config| config.watch);
                if watch.changed(&daemon.config_path) && wanted {
                    let _ = daemon.reload().await;
                }
            }
        }
    };
    if end == End::Successor {
        // The service manager watches the successor; what operators ask goes there, too.
        if let Some(server) = daemon.admin.lock().await.take() {
            server.stop_behind_successor().await;
        }
    } else {
        tell(State::Stopping);
    }
    tokio::select! {
        () = daemon.end(end) => match daemon.gateway.open_connections() {
            0 => info!("drained"),
            left => warn!("the drain's time is over: {left} connections are cut (limits.drain)"),
        },
        _ = terminate.recv() => warn!("a second signal: ended with {} connections", daemon.gateway.open_connections()),
        _ = interrupt.recv() => warn!("a second signal: ended with {} connections", daemon.gateway.open_connections()),
    }
    if let Some(server) = daemon.admin.lock().await.take() {
        server.stop().await;
    }
    Ok(())
}

/// Where the kernel's programs come from.
fn edges() -> Option<Arc<dyn EdgeSource>> {
    Some(Arc::new(KernelSource))
}

impl Daemon {
    async fn start(
        config_path: PathBuf,
        loaded: Loaded,
        log: LogHandle,
        consumers: Option<Arc<dyn Consumers>>,
    ) -> anyhow::Result<Arc<Self>> {
        let (metrics, admin) = (Metrics::default(), loaded.config.admin.clone());
        let shown = config_path.display().to_string();
        let gateway = Gateway::start_mirroring(loaded.config, shown, metrics.clone(), edges(), consumers).await?;
        let daemon = Self::of(gateway, metrics, config_path, log);
        let server = AdminServer::start(&admin, Arc::clone(&daemon) as Arc<dyn Operator>)?;
        *daemon.admin.lock().await = Some(server);
        Ok(daemon)
    }

    /// With what a predecessor handed over. It serves on until this returns.
    async fn start_from(
        config_path: PathBuf,
        loaded: Loaded,
        log: LogHandle,
        handover: Handover,
        consumers: Option<Arc<dyn Consumers>>,
    ) -> anyhow::Result<Arc<Self>> {
        let (metrics, admin) = (Metrics::default(), loaded.config.admin.clone());
        let shown = config_path.display().to_string();
        let Handover { gateway, admin: sockets } = handover;
        let gateway = Gateway::start_from(loaded.config, shown, metrics.clone(), edges(), consumers, gateway).await?;
        gateway.take_over(handover::CLUSTERS_PATIENCE).await?;
        let daemon = Self::of(gateway, metrics, config_path, log);
        let server = AdminServer::start_from(&admin, Arc::clone(&daemon) as Arc<dyn Operator>, sockets)?;
        *daemon.admin.lock().await = Some(server);
        Ok(daemon)
    }

    fn of(gateway: Gateway, metrics: Metrics, config_path: PathBuf, log: LogHandle) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            gateway,
            metrics,
            config_path,
            log,
            admin: Mutex::default(),
            drain: Notify::new(),
            succeeded: Notify::new(),
            upgrade: Mutex::default(),
        })
    }

    async fn end(&self, end: End) {
        match end {
            End::Drain => self.gateway.drain().await,
            End::Successor => self.gateway.drain_behind_successor().await,
        }
    }

    /// Starts a successor and hands everything over.
    async fn upgrade_now(&self) -> anyhow::Result<UpgradeReport> {
        let Ok(_one_at_a_time) = self.upgrade.try_lock() else { anyhow::bail!("an upgrade is under way") };
        // What it would refuse, it refuses before anything is started.
        let path = self.config_path.clone();
        tokio::task::spawn_blocking(move || config::load(&path)).await.context("reading the config")??;
        let mut given = self.gateway.give().await?;
        let handover = Handover {
            gateway: std::mem::take(&mut given.parcel),
            admin: match &*self.admin.lock().await {
                Some(server) => server.parcel().context("descriptors of the admin server")?,
                None => anyhow::bail!("a drain is under way"),
            },
        };
        let successor = Successor::start()?;
        info!("pid {} is to take over", successor.pid().unwrap_or_default());
        let new_pid = successor.hand_over(&handover).await.context("the successor did not take over")?;
        given.keep_given();
        tell(State::MainPid(new_pid));
        self.succeeded.notify_one();
        Ok(UpgradeReport { old_pid: std::process::id(), new_pid })
    }

    /// Loads the file and applies the difference: whole or not at all.
    async fn reload_now(&self) -> anyhow::Result<ReloadReport> {
        let path = self.config_path.clone();
        let loaded = tokio::task::spawn_blocking(move || config::load(&path)).await.context("reading the config")??;
        for warning in &loaded.warnings {
            warn!("{warning}");
        }
        let new = loaded.config;
        let Some(old) = self.gateway.config() else { anyhow::bail!("no config is in force yet") };
        let diff = config::diff(&old, &new);
        // Programs that could not be had before are tried again, also where nothing else is to be done.
        if diff.is_empty() && !self.gateway.lacks_edge() {
            self.gateway.set_reload_error(None);
            return Ok(ReloadReport::default());
        }
        super::logging::check(&new.log.level)?;
        let mut server = self.admin.lock().await;
        let prepared = match &*server {
            Some(server) if old.admin != new.admin => Some(server.prepare(&new.admin)?),
            _ => None,
        };
        let (log, admin_changed) = (new.log.clone(), prepared.is_some());
        self.gateway.apply(new).await?;
        if let (Some(server), Some(prepared)) = (&mut *server, prepared)
            && let Err(error) = server.apply(prepared)
        {
            error!("the admin server could not move: {error}");
        }
        if let Err(error) = self.log.set(log.format, &log.level) {
            error!("the log stays as it is: {error}");
        }
        if admin_changed {
            info!("the admin server moved");
        }
        Ok(ReloadReport { changed: diff.live(), needs_restart: diff.after_restart() })
    }
}

impl Operator for Daemon {
    fn status(&self) -> Status {
        self.gateway.status()
    }

    fn connections(&self) -> Vec<ConnectionStatus> {
        self.gateway.connections()
    }

    fn ready(&self) -> Readiness {
        self.gateway.ready()
    }

    fn reload(&self) -> BoxFuture<'_, Result<ReloadReport, String>> {
        let this = self.this.clone();
        Box::pin(async move {
            // A task of its own, so that whoever asked may go away.
            let Some(daemon) = this.upgrade() else { return Err("the daemon is ending".to_owned()) };
            let outcome = tokio::spawn(async move {
                tell(State::Reloading);
                let outcome = daemon.reload_now().await;
                let counters = daemon.metrics.gateway();
                match &outcome {
                    Ok(ReloadReport { changed, needs_restart }) => {
                        counters.reloads_applied.inc();
                        info!(?changed, ?needs_restart, "config reloaded");
                    }
                    Err(error) => {
                        counters.reloads_refused.inc();
                        daemon.gateway.set_reload_error(Some(format!("{error:#}")));
                        error!("config refused, the old one stays in force: {error:#}");
                    }
                }
                tell(State::Ready);
                outcome.map_err(|error| format!("{error:#}"))
            });
            outcome.await.unwrap_or_else(|error| Err(format!("the reload failed: {error}")))
        })
    }

    fn drain(&self, reason: &str) {
        info!("draining: {reason}");
        self.drain.notify_one();
    }

    fn admission(&self) -> AdmissionReport {
        self.gateway.admission()
    }

    fn racks(&self) -> BTreeMap<String, RacksReport> {
        self.gateway.racks()
    }

    fn racks_why(&self, question: &WhyQuestion) -> BTreeMap<String, WhyReport> {
        self.gateway.racks_why(question)
    }

    fn refused_sources(&self, limit: usize) -> Vec<RefusedReport> {
        self.gateway.refused_sources(limit)
    }

    fn upgrade(&self) -> BoxFuture<'_, Result<UpgradeReport, String>> {
        let this = self.this.clone();
        Box::pin(async move {
            let Some(daemon) = this.upgrade() else { return Err("the daemon is ending".to_owned()) };
            let outcome = tokio::spawn(async move {
                let outcome = daemon.upgrade_now().await;
                match &outcome {
                    Ok(UpgradeReport { new_pid, .. }) => info!("pid {new_pid} has taken over; draining"),
                    Err(error) => error!("no upgrade, this process serves on: {error:#}"),
                }
                outcome.map_err(|error| format!("{error:#}"))
            });
            outcome.await.unwrap_or_else(|error| Err(format!("the upgrade failed: {error}")))
        })
    }

    fn metrics(&self) -> String {
        self.gateway.metrics()
    }
}

fn tell(state: State<'_>) {
    if let Err(error) = systemd::notify(state) {
        warn!("the service manager can't be told: {error}");
    }
}

/// Notices that a file has changed and has come to rest.
struct FileWatch {
    applied: Option<Signature>,
    last: Option<Signature>,
}

type Signature = (SystemTime, u64);

impl FileWatch {
    fn new(path: &Path) -> Self {
        let now = signature(path);
        Self { applied: now, last: now }
    }

    /// Whether the file differs from the one last told of, and didn't change since the last look.
    fn changed(&mut self, path: &Path) -> bool {
        let now = signature(path);
        let rests = now == self.last;
        self.last = now;
        if rests && now.is_some() && now != self.applied {
            self.applied = now;
            return true;
        }
        false
    }
}

fn signature(path: &Path) -> Option<Signature> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_once_and_only_when_the_file_has_come_to_rest() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path();
        let mut watch = FileWatch::new(path);
        assert!(!watch.changed(path));
        std::fs::write(path, "a").unwrap();
        assert!(!watch.changed(path), "it may still be being written");
        std::fs::write(path, "ab").unwrap();
        assert!(!watch.changed(path));
        assert!(watch.changed(path));
        assert!(!watch.changed(path));
        std::fs::remove_file(path).unwrap();
        assert!(!watch.changed(path) && !watch.changed(path), "a file that is gone is no config");
    }
}
