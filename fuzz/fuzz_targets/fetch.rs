//! Replica routing on the wire: any bytes are read or refused; what is patched keeps its size field right, and patching it
//! again finds nothing to do.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| turnout::kafka::fuzzing::fetch(bytes));
