//! The wire: ids, the version table, headers, and the rewriting of addresses in answers. No sockets, no config.

pub mod ids;
