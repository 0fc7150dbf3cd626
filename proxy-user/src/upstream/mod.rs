//! Real clusters: topology, racks, connections, credentials of the gateway's own client.

pub mod topology;
