//! A packet's TCP headers: any bytes have an answer, a well-formed segment keeps what the rules ask for, and padding
//! changes neither addresses nor ports. The same bytes as a router's message: what it quotes lies in the packet.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proxy_common::headers::Frame;
use proxy_common::packet::{FIN, NotTcp, RST, SYN, segment};
use proxy_common::quote::{Quote, read};

/// A message that quotes a packet has room for what it quotes, and says the same whatever follows.
fn as_a_routers_message(bytes: &[u8], longer: &[u8]) {
    let ethertype = bytes.get(12..14).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]));
    let frame = Frame { ethertype, tagged: false, ours: true, length: bytes.len() as u32, merged: false };
    let (mut quote, mut again) = (Quote::default(), Quote::default());
    if read(bytes, &frame, &mut quote) {
        assert!(quote.quoted_ports() as usize + 8 <= bytes.len());
        assert!(read(longer, &frame, &mut again) && again == quote);
    }
}

fuzz_target!(|bytes: &[u8]| {
    let answer = segment(bytes);
    let longer = [bytes, &[0xff; 16]].concat();
    as_a_routers_message(bytes, &longer);
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
