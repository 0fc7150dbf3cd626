//! Values with units: durations, sizes.

use std::time::Duration;

/// A duration: `500ms`, `30s`, `5m`, `1h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub Duration);

/// A number of bytes: `512`, `64KiB`, `100MiB`, `1GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(pub u64);
