//! The wire: ids, the version table, headers, and the rewriting of addresses in answers. No sockets, no clocks.
//!
//! Everywhere in this module `body` means *all* bytes behind a frame's size field, header included.

pub mod api;
pub mod fetch;
pub mod fuzzing;
pub mod header;
pub mod hints;
pub mod ids;
pub mod rewrite;
pub mod sasl;
#[cfg(test)]
mod testing;
pub mod topics;
pub mod versions;
pub mod wire;

pub use wire::Malformed;
