//! The part of the model that is about replica routing.

use std::collections::BTreeMap;
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::pattern::Pattern;
use super::prefix::Cidr;
use super::price::Price;
use super::units::{Size, Span};

/// Replica routing: consumers read from a replica in their own rack, without a setting of their own. What is not said
/// here of a broker's rack comes from `broker.rack`, completed by `racks` of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Racks {
    /// How consumers are led to a replica. `auto`: `stamp` at brokers that run a rack-aware selector, `patch` at others;
    /// with `weights` or `exclude_brokers`, which no selector knows, always `patch`. `stamp`: the client's rack is filled
    /// in as its `client.rack`, and the broker chooses. `patch`: the leader's answer names the replica. `off`: not at all.
    pub mode: RacksMode,
    /// Where clients are: `{cidr: PREFIX, rack: NAME}`, `{client_id: PATTERN, rack: NAME}` or
    /// `{listener: ADDRESS, rack: NAME}`. The longest prefix around the client's address decides, else the first pattern
    /// that its client id fits, else the listener: the address of this host that it dialled.
    pub clients: Vec<ClientRack>,
    /// A rack that a client names by itself (`client.rack`) stands; `false`: `clients` goes before it.
    pub respect_client_rack: bool,
    /// Clients that are left at the leader, by the software name of their ApiVersions: a name, or its beginning and `*`.
    /// kafka-python forgets where it was sent with every answer, and would go back and forth.
    pub exclude_clients: Vec<Pattern>,
    /// Brokers that nobody is sent to, by node id.
    pub exclude_brokers: Vec<i32>,
    /// How much of the readers a broker gets, beside others of its rack, by node id from 1 to 1000; default: 1 for each.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<i32, u16>,
    /// Bytes of one answer that may wait for its size to be known, records that go to the client alone: those that it is
    /// to read elsewhere are dropped as they come. Above it the rest of the answer passes as it is. It bounds the memory
    /// of one connection.
    pub patch_buffer: Size,
    /// Times a minute that one connection may be sent to a replica for one partition.
    #[schemars(range(min = 1))]
    pub redirects_per_minute: u32,
    /// How long nobody is sent to a replica for a partition that it could not serve; twice as long each next time.
    pub hold_down: Span,
    /// The longest that `hold_down` becomes. A replica that serves for as long starts anew.
    pub hold_down_max: Span,
    /// A replica that answers no Fetch for this long beyond its `max.wait` is taken for dead, and its readers go back to
    /// the leader; one that has fallen out of sync as well, for this long alone.
    pub silence: Span,
    /// What a GB (10⁹ bytes) costs that crosses racks, for the estimate of `turnout racks`: `0.02 USD`; default: no
    /// estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price_per_gb: Option<Price>,
}

impl Default for Racks {
    fn default() -> Self {
        Self {
            mode: RacksMode::Auto,
            clients: Vec::new(),
            respect_client_rack: true,
            exclude_clients: vec![Pattern::exact("kafka-python")],
            exclude_brokers: Vec::new(),
            weights: BTreeMap::new(),
            patch_buffer: Size::mib(1),
            redirects_per_minute: 6,
            hold_down: Span::secs(10),
            hold_down_max: Span::mins(5),
            silence: Span::secs(2),
            price_per_gb: None,
        }
    }
}

impl Racks {
    /// The mode in which a broker's selector plays no part, because it knows nothing of these.
    #[must_use]
    pub fn has_preferences(&self) -> bool {
        !self.exclude_brokers.is_empty() || !self.weights.is_empty()
    }
}

/// How consumers are led to a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RacksMode {
    /// As the brokers can.
    #[default]
    Auto,
    /// The client's rack is written into its requests.
    Stamp,
    /// The replica is written into the leader's answers.
    Patch,
    /// Not at all.
    Off,
}

impl std::fmt::Display for RacksMode {
    /// As in a file.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Stamp => "stamp",
            Self::Patch => "patch",
            Self::Off => "off",
        })
    }
}

/// Which clients are in a rack: by one of `cidr`, `client_id` and `listener`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "rules")]
pub struct ClientRack {
    /// Those whose address is in this prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cidr: Option<Cidr>,
    /// Those whose client id fits: an id, or its beginning and `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<Pattern>,
    /// Those that dialled this address of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listener: Option<IpAddr>,
    /// Their rack.
    pub rack: String,
}
