use std::io::Write;

use super::*;
use crate::config;
use crate::kafka::ids::{ApiKey, ApiVersion, NodeId};
use crate::upstream::dial::dial;
use crate::upstream::fake::{Authority, Fake, Script, Trouble, self_signed_server};
use crate::upstream::tls::{Cache, TlsConfigError};
use crate::upstream::topology::VersionRange;

const BOUND: Duration = Duration::from_secs(5);

fn sasl(mechanism: Mechanism, username: &str, password: &str) -> Sasl {
    Sasl { mechanism, username: username.into(), password: password.into() }
}

async fn open(at: &Endpoint, tls: Option<Arc<ClientConfig>>, bound: Duration) -> Result<Connection, ClientError> {
    let (stream, peer) = dial(std::slice::from_ref(at), BOUND, BOUND, None).await.unwrap();
    Connection::open(stream, peer, tls, bound).await
}

async fn read(fake: &Fake, sasl: Option<&Sasl>, bound: Duration) -> Result<Observed, ClientError> {
    let mut connection = open(&fake.at, None, bound).await?;
    if let Some(sasl) = sasl {
        connection.authenticate(sasl).await?;
    }
    connection.metadata(sasl.is_some()).await
}

#[tokio::test]
async fn a_plaintext_cluster_tells_its_brokers_and_versions() {
    let fake = Fake::single(7, Script::default()).await;
    let mut connection = open(&fake.at, None, BOUND).await.unwrap();
    assert_eq!(connection.versions()[&ApiKey(0)], VersionRange { min: ApiVersion(3), max: ApiVersion(13) });
    let seen = connection.metadata(false).await.unwrap();
    assert_eq!((seen.brokers[0].id, &seen.brokers[0].address), (NodeId(7), &fake.at));
    assert_eq!((seen.cluster_id.as_deref(), seen.controller), (Some("fake"), Some(NodeId(7))));
}

#[tokio::test]
async fn an_old_broker_is_asked_again_in_its_own_version() {
    let script = Script { api_versions: vec![(3, 0, 1), (18, 0, 0)], ..Script::default() };
    let fake = Fake::single(1, script).await;
    assert_eq!(read(&fake, None, BOUND).await.unwrap().brokers.len(), 1);
    assert_eq!(fake.seen(), [(18, 3), (18, 0), (3, 1)]);
}

#[tokio::test]
async fn every_mechanism_logs_in() {
    let all = [
        (Mechanism::Plain, "PLAIN"),
        (Mechanism::ScramSha256, "SCRAM-SHA-256"),
        (Mechanism::ScramSha512, "SCRAM-SHA-512"),
    ];
    for (mechanism, name) in all {
        let fake = Fake::single(1, Script { sasl: Some((vec![name], "user", "secret")), ..Script::default() }).await;
        let seen = read(&fake, Some(&sasl(mechanism, "user", "secret")), BOUND).await.unwrap();
        assert_eq!(seen.brokers.len(), 1, "{name}");
    }
}

#[tokio::test]
async fn a_wrong_password_or_user_names_both_and_where_to_look() {
    let all = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"];
    let fake = Fake::single(1, Script { sasl: Some((all.to_vec(), "user", "secret")), ..Script::default() }).await;
    for mechanism in [Mechanism::Plain, Mechanism::ScramSha256, Mechanism::ScramSha512] {
        for (user, password) in [("user", "wrong"), ("nobody", "secret")] {
            let error = read(&fake, Some(&sasl(mechanism, user, password)), BOUND).await.unwrap_err();
            assert_eq!((error.step, error.problem.kind()), (Step::SaslAuthenticate, "credentials"));
            let text = error.to_string();
            for part in [&fake.at.to_string(), user, name(mechanism), "invalid credentials", "sasl.password"] {
                assert!(text.contains(part), "{text}");
            }
            assert!(!text.contains(password), "no password in a log");
        }
    }
}

#[tokio::test]
async fn a_mechanism_that_is_not_enabled_lists_those_that_are() {
    let enabled = vec!["SCRAM-SHA-512", "OAUTHBEARER"];
    let fake = Fake::single(1, Script { sasl: Some((enabled, "u", "p")), ..Script::default() }).await;
    let error = read(&fake, Some(&sasl(Mechanism::Plain, "u", "p")), BOUND).await.unwrap_err();
    assert!(matches!(error.problem, Problem::MechanismNotEnabled { wanted: "PLAIN", .. }));
    assert!(error.to_string().contains("SCRAM-SHA-512, OAUTHBEARER"), "{error}");
}

#[tokio::test]
async fn sasl_on_a_listener_without_it_is_told_apart() {
    let fake = Fake::single(1, Script::default()).await;
    let error = read(&fake, Some(&sasl(Mechanism::Plain, "u", "p")), BOUND).await.unwrap_err();
    assert!(matches!(error.problem, Problem::SaslNotUsed), "{error}");
}

#[tokio::test]
async fn no_credentials_for_a_cluster_that_wants_them_is_told_apart() {
    let fake = Fake::single(1, Script { sasl: Some((vec!["PLAIN"], "u", "p")), ..Script::default() }).await;
    let error = read(&fake, None, BOUND).await.unwrap_err();
    assert!(matches!(error.problem, Problem::NeedsAuthentication), "{error}");
}

#[tokio::test]
async fn a_scram_server_that_does_not_know_the_password_is_an_impostor() {
    // Version 2 of SaslAuthenticate: error 0, no message, a token recorded elsewhere, lifetime, no tags.
    let fake = Fake::single(1, Script { sasl: Some((vec!["SCRAM-SHA-256"], "u", "p")), ..Script::default() }).await;
    let replay = |token: &[u8]| {
        let mut body = vec![0, 0, 0];
        body.push(token.len() as u8 + 1);
        body.extend(token);
        body.extend([0; 9]);
        Trouble::Body(body)
    };
    fake.change(|s| s.trouble = [(36, replay(b"r=replayed,s=AAAA,i=4096"))].into());
    let error = read(&fake, Some(&sasl(Mechanism::ScramSha256, "u", "p")), BOUND).await.unwrap_err();
    assert!(matches!(error.problem, Problem::Scram(ScramError::Nonce)), "{error}");
}

#[tokio::test]
async fn misbehaviour_ends_in_a_typed_error_at_its_step() {
    let bound = Duration::from_millis(200);
    let size = |n: i32| Trouble::Bytes(n.to_be_bytes().to_vec());
    let cases: Vec<(i16, Trouble, Step, &str)> = vec![
        (18, Trouble::Close, Step::ApiVersions, "closed"),
        (18, Trouble::Silence, Step::ApiVersions, "timeout"),
        (18, Trouble::Bytes(b"\x15\x03\x03\0\x02\x02\x28".to_vec()), Step::ApiVersions, "tls"),
        (18, Trouble::Bytes(b"HTTP/1.1 400 Bad Request\r\n".to_vec()), Step::ApiVersions, "not_kafka"),
        (18, Trouble::Bytes(b"SSH-2.0-OpenSSH\r\n".to_vec()), Step::ApiVersions, "not_kafka"),
        (18, size(i32::MAX), Step::ApiVersions, "not_kafka"),
        (18, size(-1), Step::ApiVersions, "not_kafka"),
        (18, size(3), Step::ApiVersions, "not_kafka"),
        (18, size(16 << 20), Step::ApiVersions, "timeout"),
        (18, Trouble::WrongCorrelation, Step::ApiVersions, "not_kafka"),
        (18, Trouble::Cut, Step::ApiVersions, "closed"),
        (18, Trouble::Body([vec![0, 0], vec![0xff; 64]].concat()), Step::ApiVersions, "not_kafka"),
        (18, Trouble::Body(vec![]), Step::ApiVersions, "not_kafka"),
        (18, Trouble::Error(35), Step::ApiVersions, "broker_error"),
        (18, Trouble::Error(1), Step::ApiVersions, "broker_error"),
        (3, Trouble::Silence, Step::Metadata, "timeout"),
        (3, Trouble::WrongCorrelation, Step::Metadata, "not_kafka"),
        (3, Trouble::Body(b"\0\0\0\0\xff\xff\xff\xff\x0f".to_vec()), Step::Metadata, "not_kafka"),
    ];
    for (key, trouble, step, kind) in cases {
        let fake = Fake::single(1, Script { trouble: [(key, trouble.clone())].into(), ..Script::default() }).await;
        let error = read(&fake, None, bound).await.unwrap_err();
        assert_eq!((error.step, error.problem.kind()), (step, kind), "{trouble:?}: {error}");
        assert!(error.to_string().starts_with(&format!("{}, {step}: ", fake.at)), "{error}");
    }
}

#[tokio::test]
async fn misbehaviour_during_a_login_ends_in_a_typed_error_at_its_step() {
    let login = sasl(Mechanism::Plain, "u", "p");
    let cases = [
        (17, Trouble::Close, Step::SaslHandshake, "closed"),
        (17, Trouble::Error(42), Step::SaslHandshake, "broker_error"),
        (17, Trouble::Body(vec![0, 0, 0x7f, 0xff, 0xff, 0xff]), Step::SaslHandshake, "not_kafka"),
        (36, Trouble::Close, Step::SaslAuthenticate, "closed"),
        (36, Trouble::Silence, Step::SaslAuthenticate, "timeout"),
    ];
    for (key, trouble, step, kind) in cases {
        let sasl = Some((vec!["PLAIN"], "u", "p"));
        let fake = Fake::single(1, Script { sasl, trouble: [(key, trouble)].into(), ..Script::default() }).await;
        let error = read(&fake, Some(&login), Duration::from_millis(300)).await.unwrap_err();
        assert_eq!((error.step, error.problem.kind()), (step, kind), "{error}");
    }
}

#[tokio::test]
async fn a_broker_without_a_common_version_is_told_apart() {
    let script = Script { api_versions: vec![(18, 0, 4), (3, 14, 20)], ..Script::default() };
    let error = read(&Fake::single(1, script).await, None, BOUND).await.unwrap_err();
    assert!(matches!(error.problem, Problem::NoCommonVersion(ApiKey(3))), "{error}");
}

fn file(text: &str) -> tempfile::TempPath {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.into_temp_path()
}

fn trusting(authority: &Authority, identity: Option<(String, String)>) -> Arc<ClientConfig> {
    let ca = file(&authority.pem());
    let identity = identity.map(|(cert, key)| (file(&cert), file(&key)));
    let tls = config::Tls {
        ca: Some(ca.to_path_buf()),
        cert: identity.as_ref().map(|(cert, _)| cert.to_path_buf()),
        key: identity.as_ref().map(|(_, key)| key.to_path_buf()),
        bootstrap: vec![],
    };
    Cache::default().get(&tls).unwrap()
}

async fn tls_server(authority: &Authority, name: &str, clients: bool) -> Fake {
    Fake::single(1, Script { tls: Some(authority.server(name, clients)), ..Script::default() }).await
}

#[tokio::test]
async fn tls_with_the_clusters_own_authority() {
    let authority = Authority::new();
    let fake = tls_server(&authority, "127.0.0.1", false).await;
    let mut connection = open(&fake.at, Some(trusting(&authority, None)), BOUND).await.unwrap();
    assert_eq!(connection.metadata(false).await.unwrap().brokers.len(), 1);
}

#[tokio::test]
async fn a_client_certificate_is_shown_where_it_is_wanted() {
    let authority = Authority::new();
    let fake = tls_server(&authority, "127.0.0.1", true).await;
    let identity = Some(authority.issue("turnout"));
    assert!(open(&fake.at, Some(trusting(&authority, identity)), BOUND).await.is_ok());

    let error = open(&fake.at, Some(trusting(&authority, None)), BOUND).await.err().unwrap();
    assert!(error.to_string().contains("tls.cert"), "{error}");
}

/// Trusts the certificates of a PEM text.
fn trusting_pem(pem: &str) -> Arc<ClientConfig> {
    let ca = file(pem);
    Cache::default().get(&config::Tls { ca: Some(ca.to_path_buf()), ..config::Tls::default() }).unwrap()
}

#[tokio::test]
async fn a_self_signed_broker_certificate_is_trusted_when_it_is_the_ca() {
    let serve = async |server| Fake::single(1, Script { tls: Some(server), ..Script::default() }).await;
    let (server, pem) = self_signed_server("127.0.0.1", false);
    let fake = serve(server).await;
    assert!(open(&fake.at, Some(trusting_pem(&pem)), BOUND).await.is_ok());
    // Trusted among others as well, and by nobody who doesn't list it.
    let (_, another) = self_signed_server("127.0.0.1", false);
    assert!(open(&fake.at, Some(trusting_pem(&format!("{another}{pem}"))), BOUND).await.is_ok());
    let error = open(&fake.at, Some(trusting_pem(&another)), BOUND).await.err().unwrap();
    assert_eq!(error.step, Step::Tls, "{error}");

    // Its name and its dates count all the same.
    let (server, pem) = self_signed_server("kafka-1.internal", false);
    let misnamed = open(&serve(server).await.at, Some(trusting_pem(&pem)), BOUND).await.err().unwrap();
    assert!(misnamed.to_string().contains("kafka-1.internal"), "{misnamed}");
    let (server, pem) = self_signed_server("127.0.0.1", true);
    let expired = open(&serve(server).await.at, Some(trusting_pem(&pem)), BOUND).await.err().unwrap();
    assert!(expired.to_string().contains("expired"), "{expired}");
}

#[tokio::test]
async fn tls_failures_say_what_to_do() {
    let ours = Authority::new();
    let error = async |fake: &Fake, tls| open(&fake.at, tls, BOUND).await.err().unwrap();

    for theirs in [Authority::named("another"), Authority::new()] {
        let unknown = error(&tls_server(&theirs, "127.0.0.1", false).await, Some(trusting(&ours, None))).await;
        assert_eq!(unknown.step, Step::Tls);
        assert!(unknown.to_string().contains("set tls.ca"), "{unknown}");
    }

    let misnamed = error(&tls_server(&ours, "kafka-1.internal", false).await, Some(trusting(&ours, None))).await;
    assert!(
        misnamed.to_string().contains("kafka-1.internal") && misnamed.to_string().contains("127.0.0.1"),
        "{misnamed}"
    );

    let to_plaintext = error(&Fake::single(1, Script::default()).await, Some(trusting(&ours, None))).await;
    assert_eq!(to_plaintext.step, Step::Tls);
    assert!(to_plaintext.to_string().contains("plaintext"), "{to_plaintext}");

    let from_plaintext = error(&tls_server(&ours, "127.0.0.1", false).await, None).await;
    assert!(matches!(from_plaintext.problem, Problem::SpeaksTls), "{from_plaintext}");
    assert!(from_plaintext.to_string().contains("set tls"), "{from_plaintext}");
}

#[test]
fn tls_files_that_are_missing_or_wrong_are_named() {
    let of = |ca: Option<&str>, cert: Option<&str>, key: Option<&str>| {
        let path = |p: Option<&str>| p.map(Into::into);
        Cache::default().get(&config::Tls { ca: path(ca), cert: path(cert), key: path(key), bootstrap: vec![] })
    };
    let empty = file("nothing here");
    let empty = empty.to_str().unwrap();
    let missing = of(Some("/nonexistent/ca.pem"), None, None).unwrap_err();
    assert!(missing.to_string().contains("/nonexistent/ca.pem"), "{missing}");
    assert!(matches!(of(Some(empty), None, None), Err(TlsConfigError::Empty { what: "certificate", .. })));
    assert!(matches!(of(None, Some(empty), None), Err(TlsConfigError::Half)));
    let authority = Authority::new();
    let (ca, (cert, key), (_, other)) = (file(&authority.pem()), authority.issue("a"), authority.issue("b"));
    let (ca, cert, key, other) = (ca.to_str(), file(&cert), file(&key), file(&other));
    assert!(of(ca, cert.to_str(), key.to_str()).is_ok());
    assert!(matches!(of(ca, cert.to_str(), other.to_str()), Err(TlsConfigError::Identity { .. })));
    assert!(matches!(of(ca, cert.to_str(), Some(empty)), Err(TlsConfigError::Empty { what: "private key", .. })));
}

#[test]
fn a_renewed_certificate_is_noticed_and_an_unchanged_one_is_not_built_again() {
    let ca = file(&Authority::new().pem());
    let tls = config::Tls { ca: Some(ca.to_path_buf()), ..config::Tls::default() };
    let mut cache = Cache::default();
    let first = cache.get(&tls).unwrap();
    assert!(Arc::ptr_eq(&first, &cache.get(&tls).unwrap()));
    std::fs::write(&ca, Authority::new().pem()).unwrap();
    assert!(!Arc::ptr_eq(&first, &cache.get(&tls).unwrap()));
}
