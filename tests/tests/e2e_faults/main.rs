//! What may befall a gateway in production, with real brokers and real clients: brokers that die, freeze, come and
//! go, leaders that move, restarts and reloads of the gateway itself, large batches, many connections, idle ones.
//!
//! The proof is the same each time: afterwards every record is there once, and in order within its partition.

mod brokers;
mod gateway;
mod load;
mod support;
