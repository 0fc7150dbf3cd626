//! Replica routing on real Kafka in three racks: no client sets `client.rack`, all of them read in their own rack, and
//! every record is counted, whatever happens to the replica they read from.

mod faults;
mod offsets;
mod reading;
mod support;
