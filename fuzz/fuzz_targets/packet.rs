//! A packet's TCP headers: any bytes have an answer, a well-formed segment keeps what the rules ask for, and padding
//! changes neither addresses nor ports.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proxy_common::packet::{FIN, NotTcp, RST, SYN, segment};

fuzz_target!(|bytes: &[u8]| {
    let answer = segment(bytes);
    let longer = [bytes, &[0xff; 16]].concat();
    match answer {
        Ok(found) => {
            if found.well_formed {
                assert!(found.source_port != 0 && found.flags != 0);
                assert!(found.flags & SYN == 0 || found.flags & (FIN | RST) == 0);
            }
            let padded = segment(longer.as_slice()).expect("still a segment");
            assert_eq!((padded.source, padded.source_port), (found.source, found.source_port));
            assert_eq!((padded.destination, padded.destination_port), (found.destination, found.destination_port));
            assert!(padded.well_formed || !found.well_formed);
        }
        Err(NotTcp::Cut) => {}
        Err(why) => assert_eq!(segment(longer.as_slice()), Err(why)),
    }
});
