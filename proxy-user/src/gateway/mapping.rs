//! Where a client finds the virtual brokers: the port from the config, the host from the config or the client.

use std::cell::OnceCell;
use std::sync::Arc;

use super::reads::{OnConnection, Reads};
use super::session::World;
use super::shared::Shared;
use crate::config::{BrokerPorts, VirtualCluster};
use crate::kafka::ids::{ApiKey, NodeId, VirtualNodeId};
use crate::kafka::rewrite::Addresses;
use crate::kafka::versions::Offered;

/// The port of a virtual broker; `None` outside the configured range.
#[must_use]
pub(crate) fn port_of(ports: &BrokerPorts, node: VirtualNodeId) -> Option<u16> {
    let offset = u16::try_from(node.0.checked_sub(ports.first_node_id)?).ok()?;
    if offset < ports.count { ports.first.checked_add(offset) } else { None }
}

/// The addresses one client is told.
pub(crate) struct Mapping<'a> {
    config: &'a VirtualCluster,
    host: &'a str,
    shared: &'a Shared,
    reads: Option<OnConnection<'a>>,
    /// Asked for by few requests; held here because they borrow it.
    real_cluster_id: OnceCell<Option<String>>,
}

impl<'a> Mapping<'a> {
    /// `dialled`: the address the client dialled, told where the config advertises no other. `reads`: who routes its reads.
    pub(crate) fn new(
        config: &'a VirtualCluster,
        dialled: &'a str,
        shared: &'a Shared,
        reads: Option<OnConnection<'a>>,
    ) -> Self {
        let host = config.advertise.as_deref().unwrap_or(dialled);
        Self { config, host, shared, reads, real_cluster_id: OnceCell::new() }
    }
}

impl Addresses for Mapping<'_> {
    fn broker(&self, node: NodeId) -> Option<(&str, u16)> {
        port_of(&self.config.broker_ports, node.to_virtual()).map(|port| (self.host, port))
    }

    fn cluster_id(&self) -> Option<&str> {
        self.config.cluster_id.as_deref()
    }

    fn real_cluster_id(&self) -> Option<&str> {
        self.real_cluster_id.get_or_init(|| self.shared.cluster().topology().cluster_id.clone()).as_deref()
    }

    fn learns_topics(&self) -> bool {
        self.shared.racks.is_on()
    }
}

impl World for Mapping<'_> {
    fn offered(&self) -> Option<Arc<Offered>> {
        self.shared.offered()
    }

    fn addresses(&self) -> &dyn Addresses {
        self
    }

    fn began(&self, key: ApiKey) {
        self.shared.metrics.requests.count(key.0);
    }

    fn reads(&self) -> Option<&dyn Reads> {
        self.reads.as_ref().map(|reads| reads as &dyn Reads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_id_has_the_port_at_its_offset_and_none_outside_the_range() {
        let ports = BrokerPorts { first: 9200, count: 3, first_node_id: 100 };
        assert_eq!(port_of(&ports, VirtualNodeId(100)), Some(9200));
        assert_eq!(port_of(&ports, VirtualNodeId(102)), Some(9202));
        assert_eq!(port_of(&ports, VirtualNodeId(103)), None);
        assert_eq!(port_of(&ports, VirtualNodeId(99)), None);
        assert_eq!(port_of(&ports, VirtualNodeId(i32::MAX)), None);
        assert_eq!(port_of(&ports, VirtualNodeId(i32::MIN)), None);
    }

    #[test]
    fn the_last_port_may_be_65535_and_none_is_beyond() {
        let ports = BrokerPorts { first: 65_530, count: 6, first_node_id: 0 };
        assert_eq!(port_of(&ports, VirtualNodeId(5)), Some(65_535));
        assert_eq!(port_of(&ports, VirtualNodeId(6)), None);
    }
}
