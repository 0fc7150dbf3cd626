//! Copies of frames: for which virtual clusters, and what is counted of them.

use std::sync::Arc;

use proxy_common::splice::state::Side;

use crate::metrics::MirrorMetrics;
use crate::splice::mirror::{ConnectionId, Consumers, Event, Mirror, Mirrored, Tap};

/// Of the whole gateway.
#[derive(Clone)]
pub(crate) struct Mirrors {
    mirror: Arc<Mirror>,
    consumers: Arc<dyn Consumers>,
}

/// Of a virtual cluster.
#[derive(Clone)]
pub(crate) struct Mirroring {
    mirror: Arc<Mirror>,
    consumer: Arc<dyn Mirrored>,
}

/// Counts what a consumer is given.
struct Counted {
    consumer: Arc<dyn Mirrored>,
    metrics: MirrorMetrics,
}

impl Mirrored for Counted {
    fn take(&self, connection: ConnectionId, event: Event) {
        match &event {
            Event::Frame { side, frame, .. } => {
                self.metrics.frames[side.index()].inc();
                self.metrics.bytes.inc_by(frame.len() as u64);
            }
            Event::Lost { frames, cause, .. } => self.metrics.lose(*cause, *frames),
            Event::Ended => {}
        }
        self.consumer.take(connection, event);
    }
}

const _: () = assert!(Side::Client.index() == 0, "requests are counted first");

impl Mirrors {
    /// With so many bytes for frames that aren't whole.
    pub(crate) fn new(buffer: u64, consumers: Arc<dyn Consumers>) -> Self {
        let room = usize::try_from(buffer).unwrap_or(usize::MAX);
        Self { mirror: Mirror::new(room), consumers }
    }

    /// Those of a virtual cluster, if anybody wants them.
    pub(crate) fn of(&self, virtual_cluster: &str, metrics: &MirrorMetrics) -> Option<Mirroring> {
        let consumer = self.consumers.of(virtual_cluster)?;
        let consumer = Arc::new(Counted { consumer, metrics: metrics.clone() });
        Some(Mirroring { mirror: Arc::clone(&self.mirror), consumer })
    }
}

impl Mirroring {
    /// Where the kernel's copies go.
    pub(crate) fn mirror(&self) -> &Arc<Mirror> {
        &self.mirror
    }

    /// For a connection that has just begun.
    pub(crate) fn tap(&self) -> Tap {
        Tap::new(&self.mirror, Arc::clone(&self.consumer))
    }
}
