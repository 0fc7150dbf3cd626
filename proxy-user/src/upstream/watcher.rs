//! Keeps the table of partitions fresh for the topics that are read by rack: one connection to some broker, asked every
//! `partition_refresh`, and at once when somebody found the table wrong.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};
use tracing::debug;

use super::client::Connection;
use super::cluster::Shared;
use super::dial::{STAGGER, dial};
use super::endpoint::Endpoint;
use super::reader::Reader;
use super::settings::Settings;
use crate::kafka::fetch::Topic;
use crate::kafka::ids::TopicId;

/// Questions begin at least this far apart.
const MIN_INTERVAL: Duration = Duration::from_millis(200);

/// The same after one that failed.
const RETRY: Duration = Duration::from_secs(1);

/// A broker that takes longer is left for another: one that is frozen still accepts connections.
const PATIENCE: Duration = Duration::from_millis(1500);

/// A topic is asked about for this long after it was last read.
const INTEREST: Duration = Duration::from_secs(300);

/// Topics asked about: a bound for the question's size.
const MAX_TOPICS: usize = 4096;

/// A topic as it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Wanted {
    Name(String),
    Id(TopicId),
}

impl From<Topic<'_>> for Wanted {
    fn from(topic: Topic<'_>) -> Self {
        match topic {
            Topic::Name(name) => Self::Name(name.to_owned()),
            Topic::Id(id) => Self::Id(id),
        }
    }
}

/// Topics that are read, and when they were last.
#[derive(Debug, Default)]
pub(super) struct Interest(HashMap<Wanted, Instant>);

impl Interest {
    /// Notes that a topic is read; whether that is news.
    pub(super) fn note(&mut self, topic: Topic<'_>, now: Instant) -> bool {
        if self.0.len() >= MAX_TOPICS {
            self.expire(now);
        }
        let is_full = self.0.len() >= MAX_TOPICS;
        match self.0.get_mut(&Wanted::from(topic)) {
            Some(last) => {
                *last = now;
                false
            }
            None if is_full => false,
            None => self.0.insert(topic.into(), now).is_none(),
        }
    }

    fn expire(&mut self, now: Instant) {
        self.0.retain(|_, last| now.saturating_duration_since(*last) < INTEREST);
    }

    fn topics(&mut self, now: Instant) -> Vec<Wanted> {
        self.expire(now);
        let mut topics: Vec<_> = self.0.keys().cloned().collect();
        topics.sort_unstable();
        topics
    }
}

/// The task.
pub(super) async fn watch(shared: Arc<Shared>) {
    let mut settings = shared.settings_feed();
    let reader = Reader::default();
    let mut open: Option<(Connection, Endpoint)> = None;
    loop {
        let now = settings.borrow_and_update().clone();
        let began = Instant::now();
        let topics = shared.interest().topics(began);
        let mut earliest = began + MIN_INTERVAL;
        if !topics.is_empty() {
            match ask(&shared, &now, &reader, open.take(), &topics).await {
                Ok(connection) => open = Some(connection),
                Err(why) => {
                    debug!(cluster = shared.name.as_str(), "partitions are not known anew: {why}");
                    earliest = Instant::now() + RETRY;
                }
            }
        }
        let due = async {
            sleep_until(earliest).await;
            tokio::select! {
                () = sleep_until(began + now.config.partition_refresh.0), if !topics.is_empty() => {}
                () = shared.partitions_doubted() => {}
            }
        };
        tokio::select! {
            () = due => {}
            // The cluster may be another one.
            _ = settings.changed() => open = None,
        }
    }
}

async fn ask(
    shared: &Shared,
    settings: &Settings,
    reader: &Reader,
    open: Option<(Connection, Endpoint)>,
    topics: &[Wanted],
) -> Result<(Connection, Endpoint), String> {
    let (mut connection, peer) = match open {
        Some(open) => open,
        None => connect(shared, settings, reader).await?,
    };
    let authenticated = settings.config.sasl.is_some();
    // A broker that is asked by any id leaves out all that is asked by name (KafkaApis.handleTopicMetadataRequest).
    for asked in topics.chunk_by(|a, b| matches!(a, Wanted::Id(_)) == matches!(b, Wanted::Id(_))) {
        match timeout(PATIENCE, connection.topics(asked, authenticated)).await {
            Ok(Ok(seen)) => shared.learn(seen),
            Ok(Err(error)) => {
                shared.note(&peer, false);
                return Err(error.to_string());
            }
            Err(_) => {
                shared.note(&peer, false);
                return Err(format!("{peer} does not answer"));
            }
        }
    }
    Ok((connection, peer))
}

async fn connect(shared: &Shared, settings: &Settings, reader: &Reader) -> Result<(Connection, Endpoint), String> {
    let tls = reader.tls(settings).await.map_err(|error| error.to_string())?;
    let candidates = shared.own_candidates(settings);
    let bound = settings.config.connect_timeout.0.min(PATIENCE);
    let overall = bound + STAGGER * u32::try_from(candidates.len()).unwrap_or(u32::MAX);
    let (stream, peer) = dial(&candidates, bound, overall, None).await.map_err(|error| error.to_string())?;
    let opened = async {
        let mut connection = Connection::open(stream, peer.clone(), tls, bound).await?;
        if let Some(sasl) = &settings.config.sasl {
            connection.authenticate(sasl).await?;
        }
        Ok::<_, super::client::ClientError>(connection)
    };
    match opened.await {
        Ok(connection) => Ok((connection, peer)),
        Err(error) => {
            shared.note(&peer, false);
            Err(error.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interest_is_bounded_and_ends_when_nobody_reads() {
        let mut interest = Interest::default();
        let start = Instant::now();
        assert!(interest.note(Topic::Name("a"), start), "news");
        assert!(!interest.note(Topic::Name("a"), start + INTEREST / 2), "no news");
        assert_eq!(interest.topics(start + INTEREST), [Wanted::Name("a".into())], "read in between");
        assert_eq!(interest.topics(start + INTEREST * 2), []);
        for n in 0..2 * MAX_TOPICS {
            interest.note(Topic::Name(&format!("t{n}")), start);
        }
        assert_eq!(interest.topics(start).len(), MAX_TOPICS);
        assert!(interest.note(Topic::Name("later"), start + INTEREST), "those that nobody reads make room");
    }
}
