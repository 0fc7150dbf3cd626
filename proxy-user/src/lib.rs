//! turnout: a Kafka gateway. Clients dial it as if it were their brokers.
//!
//! Dependencies between the modules point one way:
//! `kafka` and `config` ← `upstream` ← `route` and `racks` ← `gateway` ← `admin` ← `handover` ← `cli`.
//!
//! Not called by the gateway yet: `branch` (copies of produce traffic, on `upstream`) and `splice` (which frames and
//! connections the kernel may have, on `route`).

pub mod admin;
pub mod branch;
pub mod cli;
pub mod config;
pub mod gateway;
pub mod handover;
pub mod kafka;
pub mod kernel;
pub mod log_gate;
pub mod metrics;
pub mod racks;
pub mod route;
pub mod splice;
pub mod systemd;
pub mod upstream;
