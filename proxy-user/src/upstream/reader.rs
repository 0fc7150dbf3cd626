//! One reading of a cluster: Metadata from the first bootstrap broker that gives it, then ApiVersions of every broker.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::stream::{self, StreamExt};
use rustls::ClientConfig;
use tracing::debug;

use super::client::Connection;
use super::cluster::Shared;
use super::dial::{STAGGER, dial};
use super::endpoint::Endpoint;
use super::error::{ClientError, Problem, ReadError, Step};
use super::merge::{Book, Observed, merge};
use super::settings::Settings;
use super::tls;
use super::topology::{Reach, Topology, VersionTable};
use crate::kafka::ids::NodeId;

/// Brokers asked for their versions at the same time.
const CONCURRENT: usize = 8;

/// Why no broker gave its Metadata; never empty.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) errors: Vec<ReadError>,
}

impl Failure {
    /// Kind of the most telling error: what a broker said rather than that another could not be reached.
    pub(super) fn kind(&self) -> &'static str {
        self.errors.first().map_or("unknown", ReadError::kind)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMED: usize = 3;
        for (n, error) in self.errors.iter().take(NAMED).enumerate() {
            write!(f, "{}{error}", if n == 0 { "" } else { "; " })?;
        }
        match self.errors.len().saturating_sub(NAMED) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        Self { errors: vec![error] }
    }
}

/// Reads clusters; keeps the TLS config between readings.
#[derive(Default)]
pub(super) struct Reader {
    tls: Arc<Mutex<tls::Cache>>,
}

impl Reader {
    /// Reads the cluster and writes what it finds to `shared`, as it finds it.
    ///
    /// # Errors
    /// [`Failure`] when no broker gave its Metadata. A broker that doesn't answer ApiVersions is no failure.
    pub(super) async fn read(&self, shared: &Shared, settings: &Settings) -> Result<(), Failure> {
        let tls = self.tls(settings).await?;
        let metadata = read_metadata(shared, settings, tls.clone()).await;
        let ask = match &metadata {
            Ok(_) => true,
            Err(failure) => failure.errors.iter().any(ReadError::needs_authentication),
        };
        if let Ok(seen) = &metadata {
            let book = if tls.is_some() { Book::Own } else { Book::Both };
            let rules = shared.rules();
            let was = shared.topology().reach.clone();
            shared.change(|topology| {
                let merged = merge(topology, seen, book, &rules, SystemTime::now());
                Topology { reach: Reach::Reached, ..merged }
            });
            if was != Reach::Reached {
                let (cluster, brokers) = (shared.name.as_str(), seen.brokers.len());
                tracing::info!(cluster, brokers, "cluster {cluster} is reached");
            }
        }
        if ask {
            read_versions(shared, settings, tls).await;
        }
        metadata.map(drop)
    }

    pub(super) async fn tls(&self, settings: &Settings) -> Result<Option<Arc<ClientConfig>>, ReadError> {
        let Some(config) = settings.config.tls.clone() else { return Ok(None) };
        let cache = self.tls.clone();
        let built =
            tokio::task::spawn_blocking(move || cache.lock().unwrap_or_else(PoisonError::into_inner).get(&config));
        match built.await {
            Ok(built) => Ok(Some(built?)),
            Err(e) => Err(ReadError::Config(format!("tls: {e}"))),
        }
    }
}

async fn read_metadata(
    shared: &Shared,
    settings: &Settings,
    tls: Option<Arc<ClientConfig>>,
) -> Result<Observed, Failure> {
    let mut candidates = shared.own_candidates(settings);
    if candidates.is_empty() {
        return Err(ReadError::Config(settings.problems.join("; ")).into());
    }
    let bound = settings.config.connect_timeout.0;
    let mut errors = Vec::new();
    while !candidates.is_empty() {
        // Every candidate gets its full time, though they start one after another.
        let overall = bound + STAGGER * u32::try_from(candidates.len()).unwrap_or(u32::MAX);
        let (stream, peer) = match dial(&candidates, bound, overall, None).await {
            Ok(connected) => connected,
            Err(e) => {
                candidates.iter().for_each(|c| shared.note(c, false));
                errors.push(e.into());
                break;
            }
        };
        if settings.own_bootstrap.contains(&peer) && stream.peer_addr().is_ok_and(is_here) {
            shared.is_local();
        }
        match ask_metadata(shared, settings, stream, &peer, tls.clone(), bound).await {
            Ok(seen) => {
                shared.note(&peer, true);
                return Ok(seen);
            }
            Err(e) => {
                debug!(cluster = shared.name.as_str(), "{e}");
                // A broker that wants other credentials is alive, and good enough for the mainline.
                let login = matches!(e.problem, Problem::NeedsAuthentication)
                    || matches!(e.step, Step::SaslHandshake | Step::SaslAuthenticate);
                shared.note(&peer, login);
                let last = e.problem.is_final();
                errors.push(e.into());
                if last {
                    break;
                }
            }
        }
        candidates.retain(|c| *c != peer);
    }
    // What a broker said comes before who could not be reached, and the most definite word first.
    errors.sort_by_key(|e: &ReadError| (!e.is_final(), !e.needs_authentication(), matches!(e, ReadError::Dial(_))));
    Err(Failure { errors })
}

fn is_here(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

async fn ask_metadata(
    shared: &Shared,
    settings: &Settings,
    stream: tokio::net::TcpStream,
    peer: &Endpoint,
    tls: Option<Arc<ClientConfig>>,
    bound: Duration,
) -> Result<Observed, ClientError> {
    let mut connection = Connection::open(stream, peer.clone(), tls, bound).await?;
    shared.change(|t| Topology { bootstrap_versions: Some(connection.versions().clone()), ..t.clone() });
    if let Some(sasl) = &settings.config.sasl {
        connection.authenticate(sasl).await?;
    }
    connection.metadata(settings.config.sasl.is_some()).await
}

/// Asks every present broker for its versions. One that doesn't answer keeps the versions it had.
async fn read_versions(shared: &Shared, settings: &Settings, tls: Option<Arc<ClientConfig>>) {
    let bound = settings.config.connect_timeout.0;
    let topology = shared.topology();
    let mut questions = Vec::new();
    for (id, broker) in topology.present() {
        // With TLS and no own address (nobody let us ask), the mainline's listener answers ApiVersions as well.
        match (&broker.own_address, &broker.address) {
            (Some(own), _) => questions.push((id, own.clone(), tls.clone())),
            (None, Some(mainline)) => questions.push((id, mainline.clone(), None)),
            (None, None) => {}
        }
    }
    let mut answers = stream::iter(questions)
        .map(|(id, at, tls)| async move {
            let answer = ask_versions(shared, settings, id, &at, tls, bound).await;
            (id, at, answer)
        })
        .buffer_unordered(CONCURRENT);
    while let Some((id, at, answer)) = answers.next().await {
        shared.note(&at, answer.is_ok());
        match answer {
            Ok((table, rack_aware)) => note_versions(shared, id, &at, table, rack_aware),
            Err(e) => debug!(cluster = shared.name.as_str(), broker = id.0, "versions unknown: {e}"),
        }
    }
}

/// What a broker speaks, and, where that matters, whether it runs a rack-aware selector: only the broker itself knows.
async fn ask_versions(
    shared: &Shared,
    settings: &Settings,
    id: NodeId,
    at: &Endpoint,
    tls: Option<Arc<ClientConfig>>,
    bound: Duration,
) -> Result<(VersionTable, Option<bool>), ReadError> {
    let (stream, peer) = dial(std::slice::from_ref(at), bound, bound, None).await?;
    let mut connection = Connection::open(stream, peer, tls, bound).await?;
    let table = connection.versions().clone();
    if !shared.routes_reads() {
        return Ok((table, None));
    }
    let asked = async {
        if let Some(sasl) = &settings.config.sasl {
            connection.authenticate(sasl).await?;
        }
        connection.is_rack_aware(id).await
    };
    let rack_aware = asked.await.unwrap_or_else(|error| {
        debug!(cluster = shared.name.as_str(), broker = id.0, "its replica selector is not known: {error}");
        None
    });
    Ok((table, rack_aware))
}

fn note_versions(shared: &Shared, id: NodeId, asked: &Endpoint, table: VersionTable, rack_aware: Option<bool>) {
    shared.change(|topology| {
        let mut new = topology.clone();
        if let Some(broker) = new.brokers.get_mut(&id)
            && (broker.own_address.as_ref() == Some(asked) || broker.address.as_ref() == Some(asked))
        {
            broker.versions = Some(table);
            broker.rack_aware = rack_aware.or(broker.rack_aware);
        }
        new
    });
}
