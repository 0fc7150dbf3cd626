//! Produce requests and answers, and the record batches in them.
//!
//! ```text
//!   frame ─► request (partitions, where their records lie) ─► batch (header view) ─► stamp (new producer, CRC fix-up)
//!   answer ─► per partition: error, base offset
//! ```
//!
//! Records are neither copied nor decompressed: a batch is its own header, 61 bytes, and a slice of the frame it came in.

pub mod answer;
pub mod batch;
mod crc;
pub mod records;
pub mod request;
pub mod stamp;
#[cfg(test)]
pub(crate) mod testing;
