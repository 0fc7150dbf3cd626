//! What one connection adds to the numbers of its virtual cluster while it lives.

use std::sync::Arc;

use tracing::info;

use super::registry::ConnectionRecord;
use super::session::Pause;
use super::shared::Shared;
use crate::metrics::Limit;

/// Where a connection stands.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Level {
    /// Requests without an answer.
    pub(crate) in_flight: usize,
    /// Bytes of frames held whole.
    pub(crate) held: usize,
    /// The client isn't read, because of its requests or because the broker takes no more.
    pub(crate) client_paused: bool,
    /// Which pause of the session it is, if it is one.
    pub(crate) pause: Option<Pause>,
    /// The broker isn't read, because the client takes no more.
    pub(crate) broker_paused: bool,
}

/// Keeps the gauges right, and takes the connection's share back when it ends, even by a panic.
pub(crate) struct Gauges {
    shared: Arc<Shared>,
    was: Level,
}

impl Gauges {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, was: Level::default() }
    }

    /// Brings the gauges up to date, and counts pauses as they begin.
    pub(crate) fn set(&mut self, now: Level, record: &ConnectionRecord) {
        let was = std::mem::replace(&mut self.was, now);
        let metrics = &self.shared.metrics;
        add(&metrics.in_flight, was.in_flight, now.in_flight);
        add(&metrics.held_bytes, was.held, now.held);
        record.set_in_flight(now.in_flight);
        if now.broker_paused && !was.broker_paused {
            metrics.broker_read_pauses.inc();
        }
        if now.client_paused && !was.client_paused {
            metrics.client_read_pauses.inc();
        }
        if now.pause == Some(Pause::InFlight) && was.pause != now.pause {
            metrics.limit_hits.hit(Limit::InFlight);
            if let Some(suppressed) = self.shared.may_log("in_flight") {
                info!(
                    virtual_cluster = self.shared.name, peer = %record.peer(), suppressed,
                    "reading pauses at {} requests in flight until one is answered (limits.in_flight)", now.in_flight
                );
            }
        }
    }
}

impl Drop for Gauges {
    fn drop(&mut self) {
        add(&self.shared.metrics.in_flight, self.was.in_flight, 0);
        add(&self.shared.metrics.held_bytes, self.was.held, 0);
    }
}

fn add(gauge: &prometheus_client::metrics::gauge::Gauge, was: usize, now: usize) {
    if was != now {
        gauge.inc_by(i64::try_from(now).unwrap_or(i64::MAX) - i64::try_from(was).unwrap_or(i64::MAX));
    }
}
