//! Real connections through a gateway that splices: clients and brokers that check every byte, and between them a small
//! daemon that relays, changes the frames that are its own, and gives the kernel leave for the rest.
//!
//! The frames are Kafka's in length and header; what follows is the test's:
//! ```text
//!  request: size u32 │ api key u16 │ version u16 │ correlation u32 │ answer's payload u32 │ payload │ (trailer)
//!  answer:  size u32 │ correlation u32 │ nth on the connection u32 │ payload │ (tag)
//! ```
//! Requests of the daemon's API end in a trailer that the daemon takes off, and their answers get a tag from it: whoever
//! is bypassed is found out.

mod daemon;
mod loss;
mod mirror;
mod origin;
mod tests;
mod traffic;
mod world;
