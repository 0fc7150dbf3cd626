//! Real clusters: topology, racks, connections, credentials of the gateway's own client.
//!
//! ```text
//!            config                     Metadata answers that pass
//!              │                                   │ Observed
//!              ▼                                   ▼
//!   ┌─ cluster (task) ──read──► client      merge (pure) ──► Topology ──► watch
//!   │   refresh, poke, backoff    │                ▲
//!   │                             └── Observed ────┘
//!   ├─ candidates ──► dial ──► TcpStream (mainline)
//!   └─ watcher (task) ──► PartitionTable, for the topics that are read by rack
//! ```
//!
//! # Two address books
//!
//! A Kafka broker advertises one address for each of its listeners, and a Metadata answer names the addresses of the
//! listener it was asked on. Without `tls` the gateway's own client uses the listener that the mainline uses, so one
//! book serves both. With `tls` it asks a TLS listener, whose addresses are of no use to the mainline (plaintext bytes
//! to a TLS port), so [`topology::Broker`] keeps both: `address` for the mainline, learned only from the answers that
//! pass on mainline connections, and `own_address` for the gateway's own client.

mod candidates;
pub mod client;
pub mod cluster;
pub mod dial;
pub mod endpoint;
mod error;
mod merge;
mod own;
pub mod partitions;
mod reader;
mod scram;
mod settings;
mod tls;
pub mod topology;
mod watcher;
mod wire;

#[cfg(test)]
mod fake;

pub use candidates::Target;
pub use cluster::Cluster;
pub use dial::{DialError, dial};
pub use endpoint::Endpoint;
pub use merge::{Observed, ObservedBroker};
pub use own::{Door, OpenError, Opened};
