//! See docs/concepts.md.
