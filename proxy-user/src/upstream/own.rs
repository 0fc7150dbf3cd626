//! Connections of the gateway's own client for other rooms: logged in, and theirs from then on.

use std::sync::{Arc, Mutex, PoisonError};

use rustls::ClientConfig;

use super::candidates::Target;
use super::client::{Connection, Stream};
use super::cluster::Cluster;
use super::dial::{STAGGER, dial};
use super::endpoint::Endpoint;
use super::error::ReadError;
use super::settings::Settings;
use super::tls;
use super::topology::VersionTable;

/// A connection that is open and logged in, with nothing in flight.
pub struct Opened {
    /// Both directions.
    pub stream: Box<dyn Stream>,
    /// What the broker speaks.
    pub versions: VersionTable,
    /// Whom it leads to.
    pub peer: Endpoint,
}

/// Why there is no connection, in a sentence.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct OpenError(#[from] ReadError);

impl OpenError {
    /// Short name of the kind, from a fixed set.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.0.kind()
    }

    /// Only a change of the config or of the cluster's users can help, and trying often does harm.
    #[must_use]
    pub fn is_final(&self) -> bool {
        self.0.is_final()
    }
}

/// Opens connections to one cluster as the config's `tls` and `sasl` say. Cloning shares it.
#[derive(Clone)]
pub struct Door {
    cluster: Cluster,
    tls: Arc<Mutex<tls::Cache>>,
}

impl Door {
    /// To this cluster.
    #[must_use]
    pub fn new(cluster: Cluster) -> Self {
        Self { cluster, tls: Arc::default() }
    }

    /// The cluster behind it.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Opens a connection. Every step is bounded by `connect_timeout`.
    ///
    /// # Errors
    /// [`OpenError`], with the step that failed.
    pub async fn open(&self, target: Target) -> Result<Opened, OpenError> {
        let settings = self.cluster.settings();
        let candidates = self.candidates(target, &settings);
        let bound = settings.config.connect_timeout.0;
        let tls = self.tls(&settings).await?;
        let overall = bound + STAGGER * u32::try_from(candidates.len()).unwrap_or(u32::MAX);
        let dialled = dial(&candidates, bound, overall, None).await;
        if dialled.is_err() {
            candidates.iter().for_each(|candidate| self.cluster.report(candidate, false));
        }
        let (stream, peer) = dialled.map_err(ReadError::from)?;
        let mut connection = Connection::open(stream, peer, tls, bound).await.map_err(ReadError::from)?;
        if let Some(sasl) = &settings.config.sasl {
            connection.authenticate(sasl).await.map_err(ReadError::from)?;
        }
        Ok(connection.into_opened())
    }

    fn candidates(&self, target: Target, settings: &Settings) -> Vec<Endpoint> {
        match target {
            Target::Bootstrap => self.cluster.own_candidates(settings),
            Target::Node(id) => {
                let topology = self.cluster.topology();
                topology.brokers.get(&id).and_then(|broker| broker.own_address.clone()).into_iter().collect()
            }
        }
    }

    async fn tls(&self, settings: &Settings) -> Result<Option<Arc<ClientConfig>>, ReadError> {
        let Some(config) = settings.config.tls.clone() else { return Ok(None) };
        let cache = self.tls.clone();
        // It reads files.
        let built =
            tokio::task::spawn_blocking(move || cache.lock().unwrap_or_else(PoisonError::into_inner).get(&config));
        match built.await {
            Ok(built) => Ok(Some(built?)),
            Err(e) => Err(ReadError::Config(format!("tls: {e}"))),
        }
    }
}
