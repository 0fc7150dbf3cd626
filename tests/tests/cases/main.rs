//! Known bugs of Kafka proxies, one test each, named after the symptom that must not show.
//!
//! The comment above a test names where the bug was seen: an issue tracker (`owner/repository#number`), a KIP, or the
//! rule of the protocol that was broken. Where it names none, the test is the other direction of the one above it, or
//! holds the gateway to what docs/configuration.md says of a limit, a drain or a reload. Most need only a scripted broker, which can be made to misbehave; what a real cluster answers
//! is compared in the `equivalence` suite.

mod support;

mod addresses;
mod framing;
mod hints;
mod lifecycle;
mod limits;
mod losses;
mod operation;
mod order;
mod racks;
mod sasl;
mod slowness;
mod versions;
