//! The start of a client's frame: every function that reads it takes any bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| turnout::kafka::fuzzing::header(bytes));
