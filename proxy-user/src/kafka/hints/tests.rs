use bytes::Bytes;
use kafka_protocol::messages::fetch_response::{FetchResponse, LeaderIdAndEpoch};
use kafka_protocol::messages::share_fetch_response::ShareFetchResponse;
use kafka_protocol::messages::{BrokerId, fetch_response as fetch};
use proptest::prelude::*;

use super::*;
use crate::kafka::testing::*;

/// The answer scrubbed in pieces of these sizes, over and over.
fn scrubbed(mut scrubber: HintScrubber, body: &[u8], sizes: &[usize]) -> Result<Vec<u8>, Malformed> {
    let mut out = body.to_vec();
    let mut left = &mut out[..];
    for size in sizes.iter().cycle() {
        if left.is_empty() {
            break;
        }
        assert!(!scrubber.is_done(), "done before the last byte");
        let (piece, rest) = left.split_at_mut((*size).min(left.len()));
        scrubber.push(piece)?;
        left = rest;
    }
    assert!(scrubber.is_done());
    Ok(out)
}

fn sizes() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1..40usize, 1..8)
}

proptest! {
    #[test]
    fn a_fetch_answer_keeps_everything_but_its_hints((version, message) in versioned(16..=18, fetch_answer), sizes in sizes()) {
        let body = answer(ApiKey::FETCH, version, &message);
        let out = scrubbed(HintScrubber::new(ApiVersion(version)), &body, &sizes).unwrap();
        prop_assert_eq!(&out, &scrubbed(HintScrubber::new(ApiVersion(version)), &body, &[body.len()]).unwrap());
        prop_assert_eq!(out.len(), body.len());
        prop_assert!(!contains(&out, REAL_DOMAIN));

        // Read as clients read it: fields in the order of their numbers, unknown ones skipped.
        let mut read = read_answer::<FetchResponse>(ApiKey::FETCH, version, &out);
        let erased = read.unknown_tagged_fields.remove(&i32::from(UNKNOWN_TAG));
        prop_assert!(erased.iter().flatten().all(|&byte| byte == 0));
        prop_assert_eq!(erased.is_some(), !message.node_endpoints.is_empty());
        let mut wanted = message;
        wanted.unknown_tagged_fields.remove(&i32::from(UNKNOWN_TAG));
        wanted.node_endpoints.clear();
        for p in wanted.responses.iter_mut().flat_map(|t| &mut t.partitions) {
            p.current_leader = LeaderIdAndEpoch::default();
        }
        prop_assert_eq!(read, wanted);
    }

    #[test]
    fn a_share_fetch_answer_keeps_everything_but_its_hints(message in share_fetch_answer(), sizes in sizes()) {
        let body = answer(ApiKey::SHARE_FETCH, 1, &message);
        let out = scrubbed(HintScrubber::share_fetch(ApiVersion(2)), &body, &sizes).unwrap();
        prop_assert_eq!(&out, &scrubbed(HintScrubber::share_fetch(ApiVersion(1)), &body, &[body.len()]).unwrap());
        prop_assert!(!contains(&out, REAL_DOMAIN));

        let read = read_answer::<ShareFetchResponse>(ApiKey::SHARE_FETCH, 1, &out);
        let mut wanted = message;
        let blank = |s: &str| str_bytes(&" ".repeat(s.len()));
        for e in &mut wanted.node_endpoints {
            (e.node_id, e.port) = (BrokerId(-1), -1);
            e.host = blank(&e.host);
            e.rack = e.rack.as_ref().map(|r| blank(r));
        }
        for p in wanted.responses.iter_mut().flat_map(|t| &mut t.partitions) {
            (p.current_leader.leader_id, p.current_leader.leader_epoch) = (-1, -1);
        }
        prop_assert_eq!(read, wanted);
    }

    #[test]
    fn a_cut_answer_is_never_taken_for_a_whole_one((version, message) in versioned(16..=18, fetch_answer), cut in any::<prop::sample::Index>()) {
        let body = answer(ApiKey::FETCH, version, &message);
        let mut scrubber = HintScrubber::new(ApiVersion(version));
        scrubber.push(&mut body[..cut.index(body.len())].to_vec()).unwrap();
        prop_assert!(!scrubber.is_done());
    }

    #[test]
    fn any_bytes_in_any_pieces_give_the_same_bytes_or_the_same_error(
        body in prop::collection::vec(prop_oneof![4 => 0..4u8, 1 => any::<u8>()], 0..300), sizes in sizes(),
    ) {
        for scrubber in [HintScrubber::new(ApiVersion(17)), HintScrubber::share_fetch(ApiVersion(1))] {
            let mut whole = body.clone();
            let at_once = scrubber.clone().push(&mut whole).map(|()| whole);
            let mut pieces = body.clone();
            let mut by_piece = scrubber;
            let mut left = &mut pieces[..];
            let mut outcome = Ok(());
            for size in sizes.iter().cycle() {
                let (piece, rest) = left.split_at_mut((*size).min(left.len()));
                outcome = outcome.and_then(|()| by_piece.push(piece));
                left = rest;
                if left.is_empty() { break; }
            }
            prop_assert_eq!(outcome.map(|()| pieces), at_once);
        }
    }
}

#[test]
fn fetch_answers_without_addresses_pass_unread() {
    let mut scrubber = HintScrubber::new(ApiVersion(15));
    let mut bytes = [0xff; 64];
    scrubber.push(&mut bytes).unwrap();
    assert_eq!(bytes, [0xff; 64]);
    assert!(scrubber.is_done());
}

#[test]
fn a_number_written_longer_than_it_must_be_is_refused() {
    // Header, throttle time, error, session, no topic; one tagged field whose number 0 has two bytes.
    let mut body = [&[0, 0, 0, 1, 0][..], &[0; 10], &[1, 1, 0x80, 0x00, 1, 1]].concat();
    let outcome = HintScrubber::new(ApiVersion(16)).push(&mut body);
    assert_eq!(outcome.unwrap_err().what, "varint longer than needed");
}

#[test]
fn bytes_behind_the_last_field_are_refused() {
    let whole = answer(ApiKey::FETCH, 16, &FetchResponse::default());
    let mut longer = [&whole[..], &[0]].concat();
    assert!(HintScrubber::new(ApiVersion(16)).push(&mut longer).is_err());
}

#[test]
fn the_state_is_small_whatever_the_answer() {
    assert!(size_of::<HintScrubber>() <= 256);
    let big = fetch::PartitionData::default().with_records(Some(Bytes::from(vec![7; 1 << 20])));
    let topic = fetch::FetchableTopicResponse::default().with_partitions(vec![big; 2]);
    let body = answer(ApiKey::FETCH, 17, &FetchResponse::default().with_responses(vec![topic]));
    assert_eq!(scrubbed(HintScrubber::new(ApiVersion(17)), &body, &[65_536]).unwrap(), body);
}
