//! The threads that serve connections: one runtime each, so that a connection's task and both its sockets stay on
//! one core and no wake-up crosses threads. New connections go to the thread with the fewest.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use anyhow::Context;
use arc_swap::ArcSwap;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};

use super::connection::{self, Accepted, Connection};
use super::registry::ConnectionRecord;
use super::shared::{Phase, Shared};
use crate::upstream::Target;

/// A connection on its way to its worker.
pub(crate) struct Handover {
    pub(crate) client: std::net::TcpStream,
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) target: Target,
    pub(crate) shared: Arc<Shared>,
    pub(crate) phase: watch::Receiver<Phase>,
    pub(crate) record: Arc<ConnectionRecord>,
}

struct Worker {
    queue: mpsc::UnboundedSender<Handover>,
    load: Arc<AtomicUsize>,
}

/// See the module.
pub(crate) struct Workers(ArcSwap<Vec<Arc<Worker>>>);

impl Workers {
    /// Starts `count` threads. They end when the handle is dropped and their connections have ended.
    pub(crate) fn start(count: usize) -> anyhow::Result<Self> {
        let workers = Self(ArcSwap::default());
        workers.resize(count)?;
        Ok(workers)
    }

    /// Starts threads, or gives some no more connections; those end with their last one.
    pub(crate) fn resize(&self, count: usize) -> anyhow::Result<()> {
        let mut workers = Vec::clone(&self.0.load());
        workers.truncate(count.max(1));
        while workers.len() < count.max(1) {
            workers.push(Arc::new(start_one(workers.len())?));
        }
        self.0.store(Arc::new(workers));
        Ok(())
    }

    /// Gives a connection to the thread with the fewest. The queue is bounded by `limits.connections`.
    pub(crate) fn serve(&self, mut handover: Handover) {
        let workers = self.0.load();
        for _ in 0..workers.len() {
            let Some(worker) = workers.iter().min_by_key(|worker| worker.load.load(Relaxed)) else { return };
            worker.load.fetch_add(1, Relaxed);
            match worker.queue.send(handover) {
                Ok(()) => return,
                Err(mpsc::error::SendError(back)) => {
                    tracing::error!("a worker thread is gone; the others go on, restart turnout");
                    // Never the one with the fewest again.
                    worker.load.store(usize::MAX / 2, Relaxed);
                    handover = back;
                }
            }
        }
    }
}

fn start_one(index: usize) -> anyhow::Result<Worker> {
    let (queue, mut incoming) = mpsc::unbounded_channel::<Handover>();
    let load = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&load);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Sockets are looked at after so many tasks, also when some never run out of bytes.
        .event_interval(16)
        .max_blocking_threads(4)
        .build()
        .context("starting a worker's runtime")?;
    std::thread::Builder::new()
        .name(format!("worker-{index}"))
        .spawn(move || {
            runtime.block_on(async move {
                let mut connections = JoinSet::new();
                loop {
                    tokio::select! {
                        handover = incoming.recv() => match handover {
                            Some(handover) => {
                                connections.spawn(serve_one(handover));
                            }
                            None => break,
                        },
                        Some(ended) = connections.join_next() => on_end(&counted, ended),
                    }
                }
                while let Some(ended) = connections.join_next().await {
                    on_end(&counted, ended);
                }
            });
        })
        .context("starting a worker thread")?;
    Ok(Worker { queue, load })
}

fn on_end(load: &AtomicUsize, ended: Result<(), JoinError>) {
    load.fetch_sub(1, Relaxed);
    if let Err(error) = ended {
        tracing::error!("a connection's task failed, which is a bug in turnout: {error}");
    }
}

async fn serve_one(handover: Handover) {
    let Handover { client, peer, local, target, shared, phase, record } = handover;
    match TcpStream::from_std(client) {
        Ok(client) => {
            shared.metrics.open.inc();
            let open = OpenGauge(Arc::clone(&shared));
            let accepted = Accepted { client, peer, local, target, shared, phase, record };
            connection::serve(Connection::new(accepted)).await;
            drop(open);
        }
        Err(error) => tracing::warn!(%peer, "a connection can't be watched: {error}"),
    }
}

/// Counts down even when the connection's task panics.
struct OpenGauge(Arc<Shared>);

impl Drop for OpenGauge {
    fn drop(&mut self) {
        self.0.metrics.open.dec();
    }
}
