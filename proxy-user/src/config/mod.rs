//! The YAML model, its validation with line numbers, and the difference between two configs.

pub mod model;
pub mod units;

pub use model::*;
