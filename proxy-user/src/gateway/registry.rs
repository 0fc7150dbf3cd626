//! Who is connected: one record a connection, for status, and the counts that limits are held against.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use proxy_common::splice::state::Side;

use super::session::ahead;
use super::status::{ConnectionStatus, SessionStatus, WayStatus};
use crate::metrics::{Limit, VirtualClusterMetrics};
use crate::splice::session as splice;
use crate::upstream::{Endpoint, Target};

/// What is kept of a client's own words, in bytes: they are shown to operators, not used.
const SHOWN: usize = 128;

/// What one connection tells of itself.
#[derive(Debug)]
pub(crate) struct ConnectionRecord {
    id: u64,
    peer: SocketAddr,
    target: Target,
    since: Instant,
    in_flight: AtomicU32,
    requests: AtomicU64,
    request_bytes: AtomicU64,
    answer_bytes: AtomicU64,
    indexes: AtomicU64,
    words: Mutex<Words>,
    splice: Mutex<SpliceRecord>,
    /// It is to look at what follows, or at what has changed around it.
    call: tokio::sync::Notify,
    denied: AtomicBool,
    torn: AtomicBool,
    registry: Arc<Registry>,
}

/// Its session in the kernel, or why it has none.
#[derive(Debug, Default)]
struct SpliceRecord {
    session: Option<Weak<splice::Session>>,
    why_not: Option<String>,
    /// Bytes of the kernel's that were counted already, by direction.
    counted: [u64; 2],
}

#[derive(Debug, Default)]
struct Words {
    client_id: Option<String>,
    software: Option<String>,
    broker: Option<String>,
}

impl ConnectionRecord {
    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Resolves once there is something for it, at once where there was already.
    pub(crate) async fn called(&self) -> Call {
        self.call.notified().await;
        if self.denied.load(Relaxed) {
            Call::Denied
        } else if self.torn.load(Relaxed) {
            Call::Torn
        } else {
            Call::Look
        }
    }

    fn call(&self, what: Call) {
        match what {
            Call::Denied => self.denied.store(true, Relaxed),
            Call::Torn => self.torn.store(true, Relaxed),
            Call::Look => {}
        }
        self.call.notify_one();
    }

    pub(crate) fn set_requests(&self, n: u64) {
        self.requests.store(n, Relaxed);
    }

    /// While spliced: indexes of the next request and the next answer, as far as the daemon knows.
    pub(crate) fn set_indexes(&self, (request, answer): (u32, u32)) {
        self.indexes.store(u64::from(request) << 32 | u64::from(answer), Relaxed);
    }

    pub(crate) fn count_request_bytes(&self, n: u64) {
        self.request_bytes.fetch_add(n, Relaxed);
    }

    pub(crate) fn count_answer_bytes(&self, n: u64) {
        self.answer_bytes.fetch_add(n, Relaxed);
    }

    pub(crate) fn set_in_flight(&self, n: usize) {
        self.in_flight.store(u32::try_from(n).unwrap_or(u32::MAX), Relaxed);
    }

    pub(crate) fn set_client_id(&self, id: String) {
        lock(&self.words).client_id = Some(shown(&id));
    }

    pub(crate) fn set_software(&self, name: &str, version: &str) {
        lock(&self.words).software = Some(format!("{} {}", shown(name), shown(version)));
    }

    pub(crate) fn set_broker(&self, endpoint: &Endpoint) {
        lock(&self.words).broker = Some(endpoint.to_string());
    }

    /// The connection has a session in the kernel now, or not, for this reason.
    pub(crate) fn set_splice(&self, session: Option<&Arc<splice::Session>>, why_not: Option<&str>) {
        let mut record = lock(&self.splice);
        record.session = session.map(Arc::downgrade);
        record.why_not = why_not.map(str::to_owned);
    }

    /// Adds what passed in the kernel since it was counted last.
    pub(crate) fn count_kernel(&self, metrics: &VirtualClusterMetrics) {
        let mut record = lock(&self.splice);
        let Some(session) = record.session.as_ref().and_then(Weak::upgrade) else { return };
        for side in [Side::Client, Side::Broker] {
            let bytes = session.traffic(side).bytes;
            let new = bytes.saturating_sub(record.counted[side.index()]);
            record.counted[side.index()] = bytes;
            let (own, all, spliced) = match side {
                Side::Client => (&self.request_bytes, &metrics.request_bytes, &metrics.spliced_request_bytes),
                Side::Broker => (&self.answer_bytes, &metrics.answer_bytes, &metrics.spliced_answer_bytes),
            };
            own.fetch_add(new, Relaxed);
            all.inc_by(new);
            spliced.inc_by(new);
        }
    }

    fn path(&self) -> (String, Option<SessionStatus>) {
        let record = lock(&self.splice);
        match record.session.as_ref().and_then(Weak::upgrade) {
            Some(session) => {
                let [requests, answers] = [Side::Client, Side::Broker].map(|side| {
                    let (turn, traffic) = (session.turn(side), session.traffic(side));
                    WayStatus {
                        kernel: turn.is_peer(),
                        turns: turn.epoch.div_ceil(2),
                        bytes: traffic.bytes,
                        packets: traffic.packets,
                    }
                });
                let path = if requests.kernel || answers.kernel { "spliced" } else { "spliced, now the daemon's" };
                (path.to_owned(), Some(SessionStatus { session: session.index(), requests, answers }))
            }
            None => match &record.why_not {
                Some(why) => (format!("local: {why}"), None),
                None => ("local".to_owned(), None),
            },
        }
    }

    /// Requests so far and in flight, those that the kernel passed on since the daemon looked last among them.
    fn requests(&self) -> (u64, u32) {
        let (requests, in_flight) = (self.requests.load(Relaxed), self.in_flight.load(Relaxed));
        let Some(session) = lock(&self.splice).session.as_ref().and_then(Weak::upgrade) else {
            return (requests, in_flight);
        };
        let indexes = self.indexes.load(Relaxed);
        // What the kernel says of a direction that is the daemon's is old, and not ahead.
        let asked = ahead(session.turn(Side::Client).frames, (indexes >> 32) as u32);
        let told = ahead(session.turn(Side::Broker).frames, indexes as u32);
        (requests + u64::from(asked), (in_flight + asked).saturating_sub(told))
    }

    fn status(&self, virtual_cluster: &str) -> ConnectionStatus {
        let (path, splice) = self.path();
        let (requests, in_flight) = self.requests();
        let words = lock(&self.words);
        ConnectionStatus {
            id: self.id,
            virtual_cluster: virtual_cluster.to_owned(),
            role: role_name(self.target),
            client: self.peer.to_string(),
            broker: words.broker.clone(),
            client_id: words.client_id.clone(),
            software: words.software.clone(),
            age_seconds: self.since.elapsed().as_secs(),
            in_flight,
            requests,
            request_bytes: self.request_bytes.load(Relaxed),
            answer_bytes: self.answer_bytes.load(Relaxed),
            path,
            splice,
        }
    }
}

impl Drop for ConnectionRecord {
    fn drop(&mut self) {
        let mut inner = lock(&self.registry.inner);
        inner.records.remove(&self.id);
        if let Some(count) = inner.sources.get_mut(&self.peer.ip()) {
            *count -= 1;
            if *count == 0 {
                inner.sources.remove(&self.peer.ip());
            }
        }
        drop(inner);
        self.registry.left.notify_waiters();
    }
}

/// What a connection is called for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// Its source is denied.
    Denied,
    /// The kernel's programs are gone from under it.
    Torn,
    /// What it may do has changed.
    Look,
}

/// Why a connection was not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// `limits.connections`.
    Connections,
    /// `limits.connections_per_source`.
    ConnectionsPerSource,
}

impl Refusal {
    /// Label of the counter.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::ConnectionsPerSource => "connections_per_source",
        }
    }

    /// The knob.
    pub(crate) fn limit(self) -> Limit {
        match self {
            Self::Connections => Limit::Connections,
            Self::ConnectionsPerSource => Limit::ConnectionsPerSource,
        }
    }
}

/// The connections of one virtual cluster.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    inner: Mutex<Inner>,
    left: tokio::sync::Notify,
}

#[derive(Debug, Default)]
struct Inner {
    /// Weak, so that the record's end is the connection's end.
    records: HashMap<u64, Weak<ConnectionRecord>>,
    sources: HashMap<IpAddr, u32>,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Registry {
    /// Admits a connection within the limits.
    pub(crate) fn admit(
        self: &Arc<Self>,
        peer: SocketAddr,
        target: Target,
        connections: u32,
        per_source: Option<u32>,
    ) -> Result<Arc<ConnectionRecord>, Refusal> {
        let mut inner = lock(&self.inner);
        if inner.records.len() >= connections as usize {
            return Err(Refusal::Connections);
        }
        let from_source = inner.sources.get(&peer.ip()).copied().unwrap_or(0);
        if per_source.is_some_and(|most| from_source >= most) {
            return Err(Refusal::ConnectionsPerSource);
        }
        inner.sources.insert(peer.ip(), from_source + 1);
        let record = Arc::new(ConnectionRecord {
            id: NEXT_ID.fetch_add(1, Relaxed),
            peer,
            target,
            since: Instant::now(),
            in_flight: AtomicU32::new(0),
            requests: AtomicU64::new(0),
            request_bytes: AtomicU64::new(0),
            answer_bytes: AtomicU64::new(0),
            indexes: AtomicU64::new(0),
            words: Mutex::default(),
            splice: Mutex::default(),
            call: tokio::sync::Notify::new(),
            denied: AtomicBool::new(false),
            torn: AtomicBool::new(false),
            registry: Arc::clone(self),
        });
        inner.records.insert(record.id, Arc::downgrade(&record));
        Ok(record)
    }

    /// Connections open.
    pub(crate) fn len(&self) -> usize {
        lock(&self.inner).records.len()
    }

    /// Adds up what passed in the kernel.
    pub(crate) fn count_kernel(&self, metrics: &VirtualClusterMetrics) {
        self.records().iter().for_each(|record| record.count_kernel(metrics));
    }

    /// Ends those from sources that are denied; how many.
    pub(crate) fn end_denied(&self, denies: impl Fn(IpAddr) -> bool) -> usize {
        let records = self.records();
        let denied = records.iter().filter(|record| denies(record.peer.ip()));
        denied.map(|record| record.call(Call::Denied)).count()
    }

    fn records(&self) -> Vec<Arc<ConnectionRecord>> {
        lock(&self.inner).records.values().filter_map(Weak::upgrade).collect()
    }

    /// Calls those that have a session of this kind; how many.
    fn call_spliced(&self, what: Call, is_meant: impl Fn(&splice::Session) -> bool) -> usize {
        let has_session = |record: &&Arc<ConnectionRecord>| {
            let session = lock(&record.splice).session.as_ref().and_then(Weak::upgrade);
            session.is_some_and(|session| is_meant(&session))
        };
        self.records().iter().filter(has_session).map(|record| record.call(what)).count()
    }

    /// Ends those that are spliced, because the programs are gone; how many.
    pub(crate) fn end_spliced(&self) -> usize {
        self.call_spliced(Call::Torn, |_| true)
    }

    /// Ends those whose packets the programs can't keep in step any more; how many.
    pub(crate) fn end_torn(&self) -> usize {
        self.call_spliced(Call::Torn, |session| !session.stands())
    }

    /// Has those that are spliced look whether they still may: the kernel wakes nobody while it passes frames on.
    pub(crate) fn recall_spliced(&self) {
        self.call_spliced(Call::Look, |_| true);
    }

    /// Every connection, oldest first.
    pub(crate) fn status(&self, virtual_cluster: &str) -> Vec<ConnectionStatus> {
        let mut records = self.records();
        records.sort_by_key(|record| record.id);
        records.iter().map(|record| record.status(virtual_cluster)).collect()
    }

    /// Resolves once no connection is left.
    pub(crate) async fn emptied(&self) {
        loop {
            let left = self.left.notified();
            if self.len() == 0 {
                return;
            }
            left.await;
        }
    }
}

/// `bootstrap` or `broker N`.
pub(crate) fn role_name(target: Target) -> String {
    match target {
        Target::Bootstrap => "bootstrap".to_owned(),
        Target::Node(node) => format!("broker {}", node.to_virtual()),
    }
}

/// A client's own words, cut and without control characters, fit for a terminal.
fn shown(words: &str) -> String {
    words.chars().filter(|c| !c.is_control()).take(SHOWN).collect()
}

/// A panic elsewhere must not take the registry with it: its data are plain counts and stay valid.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(host: u8, port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, host], port))
    }

    #[test]
    fn limits_hold_in_all_and_per_source_and_free_up_again() {
        let registry = Arc::new(Registry::default());
        let a = registry.admit(peer(1, 1), Target::Bootstrap, 3, Some(2)).unwrap();
        let b = registry.admit(peer(1, 2), Target::Bootstrap, 3, Some(2)).unwrap();
        assert_eq!(
            registry.admit(peer(1, 3), Target::Bootstrap, 3, Some(2)).unwrap_err(),
            Refusal::ConnectionsPerSource
        );
        let c = registry.admit(peer(2, 1), Target::Bootstrap, 3, Some(2)).unwrap();
        assert_eq!(registry.admit(peer(3, 1), Target::Bootstrap, 3, Some(2)).unwrap_err(), Refusal::Connections);
        drop(a);
        assert_eq!(registry.len(), 2);
        let d = registry.admit(peer(1, 3), Target::Bootstrap, 3, Some(2)).unwrap();
        drop((b, c, d));
        assert_eq!(registry.len(), 0);
        assert!(lock(&registry.inner).sources.is_empty());
    }

    #[test]
    fn a_clients_words_are_cut_and_cleaned() {
        assert_eq!(shown("a\u{1b}[31mb\n"), "a[31mb");
        assert_eq!(shown(&"x".repeat(40_000)).len(), SHOWN);
    }
}
