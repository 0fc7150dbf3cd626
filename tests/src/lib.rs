//! The test harness.
