use proptest::prelude::*;

use super::*;
use ClientFrame::{AfterHandshake, Request, Token};

/// A request's header with a null client id and some body.
fn request(key: i16, version: i16, rest: &[u8]) -> Vec<u8> {
    [&key.to_be_bytes()[..], &version.to_be_bytes(), &7i32.to_be_bytes(), &[0xff, 0xff], rest].concat()
}

fn handshake_request(version: i16, mechanism: &str) -> Vec<u8> {
    request(17, version, &[&(mechanism.len() as i16).to_be_bytes()[..], mechanism.as_bytes()].concat())
}

fn handshake_answer(error: i16) -> Vec<u8> {
    [&7i32.to_be_bytes()[..], &error.to_be_bytes(), &[0, 0, 0, 0]].concat()
}

fn metadata() -> Vec<u8> {
    request(3, 12, &[0, 1, 0, 0, 0])
}

/// Shows a frame to the tracker byte by byte until it knows.
fn show(tracker: &mut SaslTracker, frame: &[u8]) -> ClientFrame {
    for have in 0..=frame.len() {
        match tracker.client_frame(frame.len() as i32, &frame[..have]) {
            Partial::Done(known) => return known,
            Partial::NeedMore => {}
            Partial::Malformed(why) => panic!("{why}"),
        }
    }
    panic!("a whole frame must be told apart");
}

/// A tracker behind an accepted handshake of version 0.
fn after_handshake(mechanism: &str) -> SaslTracker {
    let mut t = SaslTracker::new();
    assert_eq!(show(&mut t, &request(18, 3, &[0, 1, 1, 0])), Request);
    assert_eq!(show(&mut t, &handshake_request(0, mechanism)), Request);
    assert!(!t.is_raw());
    t.handshake_answered(&handshake_answer(0));
    assert!(t.is_raw());
    t
}

#[test]
fn plain_and_oauthbearer_send_one_token_and_scram_two() {
    for (mechanism, tokens) in [("PLAIN", 1), ("OAUTHBEARER", 1), ("SCRAM-SHA-256", 2), ("SCRAM-SHA-512", 2)] {
        let mut t = after_handshake(mechanism);
        for _ in 0..tokens {
            // Even a token that looks like a request is one: it is known how many there are.
            assert_eq!(show(&mut t, &metadata()), Token, "{mechanism}");
        }
        assert_eq!(show(&mut t, &metadata()), Request, "{mechanism}");
        assert!(!t.is_raw());
    }
}

#[test]
fn other_mechanisms_send_tokens_until_a_frame_looks_like_a_request() {
    let mut t = after_handshake("GSSAPI");
    for token in [&[0x60, 0x82, 2, 1][..], &[], &[5, 4, 1, 0xff, 0, 0, 0, 0, 1, 2, 3, 4], &[1; 400]] {
        assert_eq!(show(&mut t, token), Token);
        assert!(t.is_raw());
    }
    assert_eq!(show(&mut t, &metadata()), Request);
    assert_eq!(show(&mut t, &[0x60; 20]), Request, "no token after the first request");
}

#[test]
fn what_only_begins_like_a_request_is_a_token() {
    let with_client_id = |length: i16| [&[0, 3, 0, 12, 0, 0, 0, 1][..], &length.to_be_bytes(), b"abc"].concat();
    assert_eq!(show(&mut after_handshake("X"), &with_client_id(3)), Request);
    assert_eq!(show(&mut after_handshake("X"), &with_client_id(-1)), Request);
    for (token, why) in [
        (with_client_id(4), "client id past the end"),
        (with_client_id(-2), "negative client id"),
        (request(3, 14, &[]), "unknown version"),
        (request(4, 0, &[]), "key that isn't offered"),
        (metadata()[..9].to_vec(), "too short"),
    ] {
        assert_eq!(show(&mut after_handshake("X"), &token), Token, "{why}");
    }
}

#[test]
fn a_gssapi_token_may_come_with_no_handshake_at_all() {
    let mut t = SaslTracker::new();
    assert_eq!(show(&mut t, &[0x60, 0x82, 0x02, 0x5d, 6, 9]), Token);
    assert!(t.is_raw());
    assert_eq!(show(&mut t, &[]), Token);
    assert_eq!(show(&mut t, &metadata()), Request);
}

#[test]
fn a_gssapi_token_after_the_first_frame_is_not_taken_for_one() {
    let mut t = SaslTracker::new();
    assert_eq!(show(&mut t, &metadata()), Request);
    assert_eq!(show(&mut t, &[0x60; 12]), Request);
}

#[test]
fn a_refused_handshake_is_followed_by_requests() {
    let mut t = SaslTracker::new();
    assert_eq!(show(&mut t, &handshake_request(0, "PLAIN")), Request);
    t.handshake_answered(&handshake_answer(33));
    assert!(!t.is_raw());
    assert_eq!(show(&mut t, &handshake_request(0, "SCRAM-SHA-256")), Request);
    t.handshake_answered(&handshake_answer(0));
    assert_eq!(show(&mut t, b"n,,n=user,r=abc"), Token);
}

#[test]
fn frames_pipelined_behind_a_v0_handshake_wait_for_its_answer() {
    let mut t = SaslTracker::new();
    assert_eq!(show(&mut t, &handshake_request(0, "PLAIN")), Request);
    assert_eq!(show(&mut t, b"\0user\0password"), AfterHandshake);
    t.handshake_answered(&handshake_answer(0));
    assert_eq!(show(&mut t, b"\0user\0password"), Token);
}

#[test]
fn a_v1_handshake_never_leads_to_bare_tokens() {
    let mut t = SaslTracker::new();
    for _ in 0..2 {
        // Twice: re-authentication begins the same way (KIP-368).
        assert_eq!(show(&mut t, &handshake_request(1, "PLAIN")), Request);
        t.handshake_answered(&handshake_answer(0));
        assert_eq!(show(&mut t, &request(36, 2, &[0, 4, 1, 2, 3, 0])), Request);
        assert_eq!(show(&mut t, &metadata()), Request);
    }
}

#[test]
fn the_byte_that_ends_a_refused_oauthbearer_exchange_is_a_token() {
    let mut t = after_handshake("OAUTHBEARER");
    assert_eq!(show(&mut t, b"n,,\x01auth=Bearer x\x01\x01"), Token);
    assert_eq!(show(&mut t, &[1]), Token);
}

#[test]
fn sasl_frames_are_bounded_and_size_0_is_legal_for_tokens_only() {
    let too_large = |t: &mut SaslTracker, frame: &[u8]| t.client_frame(MAX_SASL_FRAME + 1, frame);
    assert!(matches!(too_large(&mut after_handshake("PLAIN"), &[1; 12]), Partial::Malformed(_)));
    assert!(matches!(too_large(&mut SaslTracker::new(), &handshake_request(1, "PLAIN")), Partial::Malformed(_)));
    assert!(matches!(too_large(&mut SaslTracker::new(), &request(36, 1, &[0; 9])), Partial::Malformed(_)));
    assert_eq!(too_large(&mut SaslTracker::new(), &metadata()), Partial::Done(Request));
    assert!(matches!(SaslTracker::new().client_frame(0, &[]), Partial::Malformed(_)));
    assert_eq!(after_handshake("PLAIN").client_frame(0, &[]), Partial::Done(Token));
    // Nobody has to keep half a mebibyte to learn a mechanism's name.
    assert!(matches!(
        SaslTracker::new().client_frame(MAX_SASL_FRAME, &handshake_request(0, "PLAIN")),
        Partial::Malformed(_)
    ));
}

#[test]
fn a_handshake_names_its_version_and_mechanism() {
    assert_eq!(handshake(&handshake_request(1, "GSSAPI")), Some((ApiVersion(1), "GSSAPI".to_owned())));
    assert_eq!(handshake(&metadata()), None);
    assert_eq!(handshake(&handshake_request(1, "GSSAPI")[..14]), None);
}

#[test]
fn an_answer_without_an_error_is_an_acceptance() {
    for (version, header) in [(0, &[0, 0, 0, 9][..]), (1, &[0, 0, 0, 9]), (2, &[0, 0, 0, 9, 0])] {
        let answer = |error: i16| [header, &error.to_be_bytes(), &[0; 9]].concat();
        assert!(is_accepted(ApiVersion(version), &answer(0)), "v{version}");
        assert!(!is_accepted(ApiVersion(version), &answer(58)), "v{version}");
        assert!(!is_accepted(ApiVersion(version), &answer(0)[..header.len() + 1]), "v{version}: cut");
    }
}

proptest! {
    #[test]
    fn any_frames_are_told_apart_without_a_panic(
        frames in prop::collection::vec((prop_oneof![Just(handshake_request(0, "X")), Just(metadata()), prop::collection::vec(any::<u8>(), 0..40)], any::<bool>()), 0..12),
    ) {
        let mut t = SaslTracker::new();
        for (frame, answered) in frames {
            if let Partial::Done(Token) = t.client_frame(frame.len() as i32, &frame) {
                prop_assert!(t.is_raw());
            }
            if answered { t.handshake_answered(&frame); }
        }
    }
}
