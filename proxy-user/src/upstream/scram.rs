//! The client's side of SCRAM (RFC 5802, SHA-256 by RFC 7677, SHA-512 as Kafka has it by KIP-84), and of PLAIN (RFC 4616).
//!
//! ```text
//!   start ── client-first ──► First ── server-first ──► Proof ── server-final ──► done
//! ```
//!
//! No channel binding (`n,,`), as Kafka has none. Each step consumes the one before, so none can be skipped: a login
//! counts as done only when the server has proved that it knows the credentials too.
//!
//! SASLprep (RFC 4013) is not applied: Kafka's brokers store and compare the UTF-8 bytes as they are, so normalising here
//! would make a non-ASCII password fail that every other Kafka client gets through with. Control characters, which
//! SASLprep prohibits, are refused.

use std::num::NonZeroU32;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::rand::{SecureRandom, SystemRandom};
use ring::{digest, hmac, pbkdf2};

/// Iteration counts that are accepted. Kafka allows 4096..=16384; RFC 7677 forbids less, and above a million (about a
/// second of CPU) a hostile server would only burn this host's time.
pub(super) const ITERATIONS: std::ops::RangeInclusive<u32> = 4096..=1_000_000;

/// The longest server message that is looked at: nonce, salt and error texts are short.
const MESSAGE: usize = 4096;

/// Which hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hash {
    Sha256,
    Sha512,
}

impl Hash {
    pub(super) fn digest(self) -> &'static digest::Algorithm {
        match self {
            Self::Sha256 => &digest::SHA256,
            Self::Sha512 => &digest::SHA512,
        }
    }

    pub(super) fn hmac(self) -> hmac::Algorithm {
        match self {
            Self::Sha256 => hmac::HMAC_SHA256,
            Self::Sha512 => hmac::HMAC_SHA512,
        }
    }

    pub(super) fn pbkdf2(self) -> pbkdf2::Algorithm {
        match self {
            Self::Sha256 => pbkdf2::PBKDF2_HMAC_SHA256,
            Self::Sha512 => pbkdf2::PBKDF2_HMAC_SHA512,
        }
    }
}

/// Why a login could not go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScramError {
    /// The config's text can't be sent.
    #[error("the {0} is empty or has a control character: set another in the cluster's sasl")]
    Unusable(&'static str),
    /// Not a SCRAM message.
    #[error("the server's SCRAM message is not one: {0}")]
    Malformed(&'static str),
    /// The server's nonce doesn't extend ours: a replay, or not a SCRAM server.
    #[error("the server's nonce does not extend ours")]
    Nonce,
    /// Outside of what is accepted.
    #[error("the server asks for {0} iterations, outside {min}..={max}", min = ITERATIONS.start(), max = ITERATIONS.end())]
    Iterations(u32),
    /// The server said no (`e=`).
    #[error("the server refused: {0}")]
    Refused(String),
    /// The server doesn't know the credentials: an impostor.
    #[error("the server could not prove that it knows the password: this is not the cluster it says it is")]
    ServerSignature,
    /// No randomness to be had.
    #[error("the system has no random numbers")]
    Random,
}

fn usable(text: &str, what: &'static str) -> Result<(), ScramError> {
    if text.is_empty() || text.chars().any(char::is_control) { Err(ScramError::Unusable(what)) } else { Ok(()) }
}

/// The one message of PLAIN: no authorization id, user name, password (RFC 4616).
///
/// # Errors
/// [`ScramError::Unusable`].
pub(super) fn plain(username: &str, password: &str) -> Result<Vec<u8>, ScramError> {
    usable(username, "user name")?;
    usable(password, "password")?;
    Ok(format!("\0{username}\0{password}").into_bytes())
}

/// Waits for server-first.
pub(super) struct First {
    hash: Hash,
    nonce: String,
    /// client-first-message-bare.
    bare: String,
}

/// Waits for server-final.
pub(super) struct Proof {
    hash: Hash,
    server_signature: Vec<u8>,
}

/// What server-first said, checked: enough to derive the proof, which costs CPU.
pub(super) struct Challenge {
    hash: Hash,
    salt: Vec<u8>,
    iterations: NonZeroU32,
    /// AuthMessage.
    auth: String,
    /// client-final-message-without-proof.
    without_proof: String,
}

/// Begins a login; returns client-first too.
///
/// # Errors
/// [`ScramError::Unusable`], [`ScramError::Random`].
pub(super) fn start(hash: Hash, username: &str, password: &str) -> Result<(First, Vec<u8>), ScramError> {
    usable(password, "password")?;
    let mut random = [0u8; 24];
    SystemRandom::new().fill(&mut random).map_err(|_| ScramError::Random)?;
    start_with(hash, username, BASE64.encode(random))
}

fn start_with(hash: Hash, username: &str, nonce: String) -> Result<(First, Vec<u8>), ScramError> {
    usable(username, "user name")?;
    let username = username.replace('=', "=3D").replace(',', "=2C");
    let bare = format!("n={username},r={nonce}");
    let message = format!("n,,{bare}").into_bytes();
    Ok((First { hash, nonce, bare }, message))
}

fn text(message: &[u8]) -> Result<&str, ScramError> {
    if message.len() > MESSAGE {
        return Err(ScramError::Malformed("too long"));
    }
    std::str::from_utf8(message).map_err(|_| ScramError::Malformed("not UTF-8"))
}

/// The value of the next attribute, which must be `name`.
fn attribute<'a>(fields: &mut std::str::Split<'a, char>, name: char) -> Result<&'a str, ScramError> {
    let field = fields.next().ok_or(ScramError::Malformed("an attribute is missing"))?;
    let value = field.strip_prefix(name).and_then(|rest| rest.strip_prefix('='));
    value.ok_or(ScramError::Malformed("attributes are not in their order"))
}

impl First {
    /// Reads server-first: `r=…,s=…,i=…`.
    ///
    /// # Errors
    /// All but [`ScramError::ServerSignature`].
    pub(super) fn server_first(self, message: &[u8]) -> Result<Challenge, ScramError> {
        let Self { hash, nonce, bare } = self;
        let message = text(message)?;
        if let Some(error) = message.strip_prefix("e=") {
            return Err(ScramError::Refused(printable(error)));
        }
        let mut fields = message.split(',');
        let combined = attribute(&mut fields, 'r')?;
        let salt = attribute(&mut fields, 's')?;
        let iterations = attribute(&mut fields, 'i')?;
        if combined.len() <= nonce.len() || !combined.starts_with(&nonce) {
            return Err(ScramError::Nonce);
        }
        let salt = BASE64.decode(salt).map_err(|_| ScramError::Malformed("the salt is not base64"))?;
        let iterations: u32 = iterations.parse().map_err(|_| ScramError::Malformed("iterations are not a number"))?;
        let iterations = NonZeroU32::new(iterations)
            .filter(|i| ITERATIONS.contains(&i.get()))
            .ok_or(ScramError::Iterations(iterations))?;
        // `biws` is base64 of the header `n,,`.
        let without_proof = format!("c=biws,r={combined}");
        let auth = format!("{bare},{message},{without_proof}");
        Ok(Challenge { hash, salt, iterations, auth, without_proof })
    }
}

impl Challenge {
    /// Derives client-final. This is the expensive step: up to a second of CPU at the highest iteration count.
    pub(super) fn answer(self, password: &str) -> (Proof, Vec<u8>) {
        let Self { hash, salt, iterations, auth, without_proof } = self;
        let mut salted = vec![0u8; hash.digest().output_len()];
        pbkdf2::derive(hash.pbkdf2(), iterations, &salt, password.as_bytes(), &mut salted);
        let salted = hmac::Key::new(hash.hmac(), &salted);

        let client_key = hmac::sign(&salted, b"Client Key");
        let stored_key = digest::digest(hash.digest(), client_key.as_ref());
        let client_signature = hmac::sign(&hmac::Key::new(hash.hmac(), stored_key.as_ref()), auth.as_bytes());
        let proof: Vec<u8> = client_key.as_ref().iter().zip(client_signature.as_ref()).map(|(a, b)| a ^ b).collect();

        let server_key = hmac::sign(&salted, b"Server Key");
        let server_signature = hmac::sign(&hmac::Key::new(hash.hmac(), server_key.as_ref()), auth.as_bytes());
        let message = format!("{without_proof},p={}", BASE64.encode(proof)).into_bytes();
        (Proof { hash, server_signature: server_signature.as_ref().to_vec() }, message)
    }
}

impl Proof {
    /// Checks server-final: `v=…`, or `e=…`.
    ///
    /// # Errors
    /// [`ScramError::Refused`], [`ScramError::ServerSignature`], [`ScramError::Malformed`].
    pub(super) fn server_final(self, message: &[u8]) -> Result<(), ScramError> {
        let message = text(message)?;
        if let Some(error) = message.strip_prefix("e=") {
            return Err(ScramError::Refused(printable(error)));
        }
        let signature = attribute(&mut message.split(','), 'v')?;
        let signature = BASE64.decode(signature).map_err(|_| ScramError::Malformed("the signature is not base64"))?;
        // An HMAC of both sides under a fresh key compares them in constant time.
        let mut blind = [0u8; 32];
        SystemRandom::new().fill(&mut blind).map_err(|_| ScramError::Random)?;
        let blind = hmac::Key::new(self.hash.hmac(), &blind);
        let ours = hmac::sign(&blind, &self.server_signature);
        hmac::verify(&blind, &signature, ours.as_ref()).map_err(|_| ScramError::ServerSignature)
    }
}

/// A server's text as it may appear in a log line.
pub(super) fn printable(text: &str) -> String {
    text.chars().take(200).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::fake::server_final;
    use proptest::prelude::*;

    fn texts(message: Vec<u8>) -> String {
        String::from_utf8(message).unwrap()
    }

    #[test]
    fn the_exchange_of_rfc_7677() {
        let (first, message) = start_with(Hash::Sha256, "user", "rOprNGfwEbeRWgbNEkqO".into()).unwrap();
        assert_eq!(texts(message), "n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        let challenge = first
            .server_first(b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
            .unwrap();
        let (proof, message) = challenge.answer("pencil");
        assert_eq!(
            texts(message),
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        );
        proof.server_final(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=").unwrap();
    }

    fn exchange(hash: Hash, username: &str, ours: &str, theirs: &str) -> Option<Result<(), ScramError>> {
        let (first, client_first) = start(hash, username, ours).unwrap();
        let server_first = format!("r={}extended,s={},i=4096", first.nonce, BASE64.encode("salt of this user"));
        let (proof, client_final) = first.server_first(server_first.as_bytes()).unwrap().answer(ours);
        let server_final = server_final(hash, theirs, &client_first, &client_final, &server_first)?;
        Some(proof.server_final(server_final.as_bytes()))
    }

    #[test]
    fn both_hashes_prove_the_password_both_ways() {
        for hash in [Hash::Sha256, Hash::Sha512] {
            assert_eq!(exchange(hash, "user", "pencil", "pencil"), Some(Ok(())));
            assert_eq!(exchange(hash, "us=er,name", "pässwörd", "pässwörd"), Some(Ok(())), "as UTF-8, as Kafka does");
            assert_eq!(exchange(hash, "user", "pencil", "pen"), None);
        }
    }

    #[test]
    fn user_names_are_escaped() {
        let (_, message) = start_with(Hash::Sha512, "a=b,c", "nonce".into()).unwrap();
        assert_eq!(texts(message), "n,,n=a=3Db=2Cc,r=nonce");
    }

    #[test]
    fn empty_texts_and_control_characters_are_refused() {
        for bad in ["", "a\0b", "a\nb", "a\u{85}b"] {
            assert!(matches!(start(Hash::Sha256, bad, "p"), Err(ScramError::Unusable("user name"))));
            assert!(matches!(start(Hash::Sha256, "u", bad), Err(ScramError::Unusable("password"))));
            assert_eq!(plain(bad, "p"), Err(ScramError::Unusable("user name")));
            assert_eq!(plain("u", bad), Err(ScramError::Unusable("password")));
        }
        assert_eq!(plain("u", "p").unwrap(), b"\0u\0p");
    }

    fn server_first(message: &str) -> Result<Challenge, ScramError> {
        start_with(Hash::Sha256, "user", "abc".into()).unwrap().0.server_first(message.as_bytes())
    }

    #[test]
    fn a_server_that_cheats_is_refused() {
        let error = |message: &str| server_first(message).err().unwrap();
        assert_eq!(error("r=abc,s=AAAA,i=4096"), ScramError::Nonce, "nothing added to our nonce");
        assert_eq!(error("r=xyzabc,s=AAAA,i=4096"), ScramError::Nonce);
        assert_eq!(error("r=abcd,s=AAAA,i=1"), ScramError::Iterations(1), "a downgrade");
        assert_eq!(error("r=abcd,s=AAAA,i=0"), ScramError::Iterations(0));
        assert_eq!(error("r=abcd,s=AAAA,i=4294967295"), ScramError::Iterations(u32::MAX), "CPU burnt for nothing");
        assert!(matches!(error("r=abcd,s=AAAA,i=99999999999"), ScramError::Malformed(_)));
        assert!(matches!(error("r=abcd,s=!,i=4096"), ScramError::Malformed(_)));
        assert!(matches!(error("m=ext,r=abcd,s=AAAA,i=4096"), ScramError::Malformed(_)), "mandatory extensions");
        assert!(matches!(error(""), ScramError::Malformed(_)));
        assert!(matches!(error(&format!("r=abc{}", "x".repeat(MESSAGE))), ScramError::Malformed("too long")));
        assert_eq!(error("e=unknown-user\n"), ScramError::Refused("unknown-user ".into()));

        let last = |message: &str| {
            server_first("r=abcd,s=AAAA,i=4096").unwrap().answer("p").0.server_final(message.as_bytes())
        };
        assert_eq!(last(&format!("v={}", BASE64.encode([0; 32]))), Err(ScramError::ServerSignature));
        assert_eq!(last("v="), Err(ScramError::ServerSignature));
        assert_eq!(last("e=invalid-proof"), Err(ScramError::Refused("invalid-proof".into())));
        assert!(matches!(last(""), Err(ScramError::Malformed(_))));
    }

    proptest! {
        #[test]
        fn no_message_panics(bytes in prop::collection::vec(any::<u8>(), 0..64), text in "[rsiev=,a-c0-9]{0,40}") {
            for message in [&bytes[..], text.as_bytes()] {
                let (first, _) = start_with(Hash::Sha256, "user", "abc".into()).unwrap();
                let accepted = first.server_first(message).is_ok();
                prop_assert!(!accepted || message.starts_with(b"r=abc"));
                let proof = Proof { hash: Hash::Sha256, server_signature: vec![1; 32] };
                prop_assert!(proof.server_final(message).is_err());
            }
        }
    }
}
