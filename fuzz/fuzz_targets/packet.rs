//! A packet's summary: any bytes have a class, ports belong to TCP and UDP, and bytes behind the ports change nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proxy_common::packet::{Class, MAX_VLAN_TAGS, summarize};

fuzz_target!(|bytes: &[u8]| {
    let summary = summarize(bytes);
    let has_ports = matches!(summary.class, Class::Tcp4 | Class::Udp4 | Class::Tcp6 | Class::Udp6);
    assert_eq!(summary.ports.is_some(), has_ports);
    assert!(summary.vlan_tags <= MAX_VLAN_TAGS);

    if summary.class != Class::Malformed {
        let longer = [bytes, &[0xff; 16]].concat();
        assert_eq!(summarize(longer.as_slice()), summary);
    }
});
