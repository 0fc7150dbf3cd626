//! Address rewriting: any bytes are rewritten or refused, and what comes out names no real broker.
#![no_main]

use libfuzzer_sys::fuzz_target;
use turnout::kafka::api;
use turnout::kafka::ids::{ApiVersion, NodeId};
use turnout::kafka::rewrite::{Addresses, rewrite_answer};

const HOST: &str = "gateway.test";
const PORT: u16 = 9200;

/// Two of three node ids have a virtual broker.
struct Gateway;

impl Addresses for Gateway {
    fn broker(&self, node: NodeId) -> Option<(&str, u16)> {
        (node.0 % 3 != 0).then_some((HOST, PORT))
    }

    fn cluster_id(&self) -> Option<&str> {
        Some("virtual")
    }

    fn real_cluster_id(&self) -> Option<&str> {
        Some("real")
    }
}

fuzz_target!(|bytes: &[u8]| {
    turnout::kafka::fuzzing::rewrite(bytes);

    let [which, version, frame @ ..] = bytes else { return };
    let spec = &api::all()[usize::from(*which) % api::all().len()];
    let version = ApiVersion(i16::from(*version) % (spec.versions.max.0 + 1));
    let Ok(rewritten) = rewrite_answer(spec.key, version, frame, &Gateway) else { return };
    let Some(answer) = rewritten.body else { return };
    let again = rewrite_answer(spec.key, version, &answer, &Gateway).expect("an answer of ours follows the schema");
    assert_eq!(again.body, None, "nothing is left to rewrite");
    for broker in again.seen.iter().flat_map(|seen| &seen.brokers) {
        assert_eq!((broker.host.as_str(), broker.port), (HOST, PORT), "a real address is left");
    }
});
