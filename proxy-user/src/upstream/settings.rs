//! A cluster's config, with its addresses parsed.

use super::endpoint::Endpoint;
use super::merge::Rules;
use crate::config;

/// What the topology task works with.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) config: config::Cluster,
    /// For the mainline.
    pub(super) bootstrap: Vec<Endpoint>,
    /// For the gateway's own client: the TLS listeners, where they are named apart.
    pub(super) own_bootstrap: Vec<Endpoint>,
    pub(super) rules: Rules,
    /// Addresses that are none, in sentences. The config's validation refuses them, so this is the second line.
    pub(super) problems: Vec<String>,
}

impl Settings {
    pub(super) fn of(config: config::Cluster) -> Self {
        let mut problems = Vec::new();
        let mut parse = |text: &String| text.parse::<Endpoint>().map_err(|e| problems.push(e.to_string())).ok();
        let bootstrap: Vec<_> = config.bootstrap.iter().filter_map(&mut parse).collect();
        let own: Vec<_> = config.tls.iter().flat_map(|tls| &tls.bootstrap).filter_map(&mut parse).collect();
        let address_map = config
            .address_map
            .iter()
            .filter_map(|(advertised, dialled)| Some((parse(advertised)?.key(), parse(dialled)?)))
            .collect();
        let own_bootstrap = if own.is_empty() { bootstrap.clone() } else { own };
        let rules = Rules {
            address_map,
            racks: config.racks.clone(),
            forget_after: config.forget_after.0,
            local: bootstrap.iter().chain(&own_bootstrap).any(Endpoint::is_loopback),
        };
        Self { config, bootstrap, own_bootstrap, rules, problems }
    }
}
