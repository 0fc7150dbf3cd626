//! A small broker for tests: a real socket, scripted answers, scripted misbehaviour.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::{Buf, Bytes, BytesMut};
use kafka_protocol::messages::api_versions_response::ApiVersion as Row;
use kafka_protocol::messages::metadata_response::MetadataResponseBroker;
use kafka_protocol::messages::{
    ApiKey as Key, ApiVersionsResponse, BrokerId, MetadataResponse, RequestHeader, SaslAuthenticateRequest,
    SaslAuthenticateResponse, SaslHandshakeRequest, SaslHandshakeResponse,
};
use kafka_protocol::protocol::{Decodable, Encodable, StrBytes};
use ring::{digest, hmac, pbkdf2};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use super::endpoint::Endpoint;
use super::scram::Hash;

/// What happens instead of an answer.
#[derive(Clone, Debug)]
pub(super) enum Trouble {
    Close,
    Silence,
    /// These bytes, then nothing.
    Bytes(Vec<u8>),
    WrongCorrelation,
    /// Half of the answer, then a close.
    Cut,
    /// This body instead of the right one.
    Body(Vec<u8>),
    /// Error code at the start of the body.
    Error(i16),
}

/// How the broker behaves; may be changed while it runs.
#[derive(Clone)]
pub(super) struct Script {
    pub(super) brokers: Vec<(i32, Endpoint, Option<&'static str>)>,
    pub(super) cluster_id: &'static str,
    pub(super) api_versions: Vec<(i16, i16, i16)>,
    /// Mechanisms, user, password: wants authentication.
    pub(super) sasl: Option<(Vec<&'static str>, &'static str, &'static str)>,
    pub(super) trouble: HashMap<i16, Trouble>,
    pub(super) tls: Option<Arc<rustls::ServerConfig>>,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            brokers: Vec::new(),
            cluster_id: "fake",
            api_versions: vec![(0, 3, 13), (3, 0, 13), (17, 0, 1), (18, 0, 4), (36, 0, 2)],
            sasl: None,
            trouble: HashMap::new(),
            tls: None,
        }
    }
}

pub(super) struct Fake {
    pub(super) at: Endpoint,
    script: Arc<Mutex<Script>>,
    seen: Arc<Mutex<Vec<(i16, i16)>>>,
    task: JoinHandle<()>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Fake {
    pub(super) async fn start(script: Script) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").await.unwrap(), script)
    }

    pub(super) fn on(listener: TcpListener, script: Script) -> Self {
        let address = listener.local_addr().unwrap();
        let (script, seen) = (Arc::new(Mutex::new(script)), Arc::new(Mutex::new(Vec::new())));
        let (scripts, log) = (script.clone(), seen.clone());
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(accept(stream, scripts.clone(), log.clone()));
            }
        });
        Self { at: Endpoint::new(address.ip().to_string(), address.port()), script, seen, task }
    }

    /// Lists itself as the only broker.
    pub(super) async fn single(id: i32, script: Script) -> Self {
        let fake = Self::start(script).await;
        let at = fake.at.clone();
        fake.change(|s| s.brokers = vec![(id, at, None)]);
        fake
    }

    pub(super) fn change(&self, f: impl FnOnce(&mut Script)) {
        f(&mut self.script.lock().unwrap());
    }

    /// Requests so far: key and version.
    pub(super) fn seen(&self) -> Vec<(i16, i16)> {
        self.seen.lock().unwrap().clone()
    }

    pub(super) fn count(&self, key: i16) -> usize {
        self.seen().iter().filter(|(k, _)| *k == key).count()
    }
}

async fn accept(stream: TcpStream, script: Arc<Mutex<Script>>, seen: Arc<Mutex<Vec<(i16, i16)>>>) -> Option<()> {
    let tls = script.lock().unwrap().tls.clone();
    match tls {
        None => serve(stream, script, seen).await,
        Some(config) => serve(TlsAcceptor::from(config).accept(stream).await.ok()?, script, seen).await,
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    script: Arc<Mutex<Script>>,
    seen: Arc<Mutex<Vec<(i16, i16)>>>,
) -> Option<()> {
    let mut login = Login::default();
    loop {
        let size = stream.read_i32().await.ok()?;
        if !(0..1 << 20).contains(&size) {
            return None;
        }
        let mut frame = vec![0; size as usize];
        stream.read_exact(&mut frame).await.ok()?;
        let mut frame = Bytes::from(frame);
        let (key, version) = ((&frame[0..]).get_i16(), (&frame[2..]).get_i16());
        seen.lock().unwrap().push((key, version));
        let script = script.lock().unwrap().clone();
        let api = Key::try_from(key).ok()?;
        let header = RequestHeader::decode(&mut frame, api.request_header_version(version)).ok()?;
        let mut correlation = header.correlation_id;
        let mut body = answer(&script, &mut login, api, version, &mut frame)?;
        match script.trouble.get(&key) {
            None => {}
            Some(Trouble::Close) => return None,
            Some(Trouble::Silence) => return std::future::pending().await,
            Some(Trouble::Bytes(bytes)) => {
                stream.write_all(bytes).await.ok()?;
                return std::future::pending().await;
            }
            Some(Trouble::WrongCorrelation) => correlation += 1,
            Some(Trouble::Cut) => {
                stream.write_i32(body.len() as i32 + 4).await.ok()?;
                stream.write_i32(correlation).await.ok()?;
                stream.write_all(&body[..body.len() / 2]).await.ok()?;
                return None;
            }
            Some(Trouble::Body(bytes)) => body = BytesMut::from(&bytes[..]),
            Some(Trouble::Error(code)) => body[..2].copy_from_slice(&code.to_be_bytes()),
        }
        let tagged = matches!((key, version), (3, 9..) | (36, 2..));
        stream.write_i32((body.len() + 4 + usize::from(tagged)) as i32).await.ok()?;
        stream.write_i32(correlation).await.ok()?;
        if tagged {
            stream.write_u8(0).await.ok()?;
        }
        stream.write_all(&body).await.ok()?;
        stream.flush().await.ok()?;
    }
}

#[derive(Default)]
struct Login {
    mechanism: String,
    client_first: Vec<u8>,
    server_first: String,
    done: bool,
}

fn text(s: &str) -> StrBytes {
    StrBytes::from_string(s.to_owned())
}

/// The right answer's body; `None` closes, as a broker does on a request before authentication.
fn answer(script: &Script, login: &mut Login, key: Key, version: i16, request: &mut Bytes) -> Option<BytesMut> {
    let mut body = BytesMut::new();
    match key {
        Key::ApiVersions => {
            let rows = script
                .api_versions
                .iter()
                .map(|(key, min, max)| Row::default().with_api_key(*key).with_min_version(*min).with_max_version(*max));
            let mut answer = ApiVersionsResponse::default().with_api_keys(rows.collect());
            let known = script.api_versions.iter().any(|(key, _, max)| *key == 18 && *max >= version);
            let version = if known { version } else { 0 };
            if !known {
                answer = answer.with_error_code(35);
            }
            answer.encode(&mut body, version).unwrap();
        }
        Key::SaslHandshake => {
            let wanted = SaslHandshakeRequest::decode(request, version).unwrap().mechanism.to_string();
            let enabled = script.sasl.as_ref().map_or(vec![], |(enabled, ..)| enabled.clone());
            let error = match (&script.sasl, enabled.contains(&wanted.as_str())) {
                (None, _) => 34,
                (Some(_), false) => 33,
                (Some(_), true) => 0,
            };
            login.mechanism = wanted;
            SaslHandshakeResponse::default()
                .with_error_code(error)
                .with_mechanisms(enabled.into_iter().map(text).collect())
                .encode(&mut body, version)
                .unwrap();
        }
        Key::SaslAuthenticate => {
            let token = SaslAuthenticateRequest::decode(request, version).unwrap().auth_bytes;
            let answer = match authenticate(script, login, &token) {
                Some(token) => SaslAuthenticateResponse::default().with_auth_bytes(token.into()),
                None => SaslAuthenticateResponse::default()
                    .with_error_code(58)
                    .with_error_message(Some(text("invalid credentials"))),
            };
            answer.encode(&mut body, version).unwrap();
        }
        Key::Metadata if script.sasl.is_none() || login.done => {
            let brokers = script.brokers.iter().map(|(id, at, rack)| {
                MetadataResponseBroker::default()
                    .with_node_id(BrokerId(*id))
                    .with_host(text(&at.host))
                    .with_port(i32::from(at.port))
                    .with_rack(rack.map(text))
            });
            let first = script.brokers.first().map_or(-1, |(id, ..)| *id);
            MetadataResponse::default()
                .with_brokers(brokers.collect())
                .with_cluster_id((version >= 2).then(|| text(script.cluster_id)))
                .with_controller_id(BrokerId(first))
                .encode(&mut body, version)
                .unwrap();
        }
        _ => return None,
    }
    Some(body)
}

fn authenticate(script: &Script, login: &mut Login, token: &[u8]) -> Option<Vec<u8>> {
    let (_, username, password) = script.sasl.as_ref()?;
    if login.mechanism == "PLAIN" {
        login.done = token == format!("\0{username}\0{password}").as_bytes();
        return login.done.then(Vec::new);
    }
    if login.client_first.is_empty() {
        let first = std::str::from_utf8(token).ok()?;
        let (user, nonce) = first.strip_prefix("n,,n=")?.split_once(",r=")?;
        login.client_first = token.to_vec();
        login.server_first = format!("r={nonce}server,s={},i=4096", BASE64.encode("salt"));
        return (user == *username).then(|| login.server_first.clone().into_bytes());
    }
    let hash = if login.mechanism == "SCRAM-SHA-256" { Hash::Sha256 } else { Hash::Sha512 };
    let last = server_final(hash, password, &login.client_first, token, &login.server_first)?;
    login.done = true;
    Some(last.into_bytes())
}

/// A SCRAM server's last message, `None` when the proof is wrong. RFC 5802, section 3, from the server's side.
pub(super) fn server_final(
    hash: Hash,
    password: &str,
    client_first: &[u8],
    client_final: &[u8],
    server_first: &str,
) -> Option<String> {
    let bare = std::str::from_utf8(client_first).unwrap().strip_prefix("n,,").unwrap();
    let (without, proof) = std::str::from_utf8(client_final).unwrap().rsplit_once(",p=").unwrap();
    let auth = format!("{bare},{server_first},{without}");
    let salt = BASE64.decode(server_first.split(',').nth(1).unwrap().strip_prefix("s=").unwrap()).unwrap();
    let mut salted = vec![0; hash.digest().output_len()];
    pbkdf2::derive(hash.pbkdf2(), NonZeroU32::new(4096).unwrap(), &salt, password.as_bytes(), &mut salted);
    let key = |bytes: &[u8]| hmac::Key::new(hash.hmac(), bytes);
    let stored = digest::digest(hash.digest(), hmac::sign(&key(&salted), b"Client Key").as_ref());
    let signature = hmac::sign(&key(stored.as_ref()), auth.as_bytes());
    let proof = BASE64.decode(proof).unwrap();
    let client_key: Vec<u8> = proof.iter().zip(signature.as_ref()).map(|(a, b)| a ^ b).collect();
    (digest::digest(hash.digest(), &client_key).as_ref() == stored.as_ref()).then(|| {
        let server_key = hmac::sign(&key(&salted), b"Server Key");
        format!("v={}", BASE64.encode(hmac::sign(&key(server_key.as_ref()), auth.as_bytes())))
    })
}

/// An authority and certificates made for the test.
pub(super) struct Authority {
    certificate: rcgen::Certificate,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

impl Authority {
    pub(super) fn new() -> Self {
        Self::named("authority")
    }

    pub(super) fn named(name: &str) -> Self {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self { certificate, issuer: rcgen::Issuer::new(params, key) }
    }

    pub(super) fn pem(&self) -> String {
        self.certificate.pem()
    }

    /// A certificate for `name`, and its key, in PEM form.
    pub(super) fn issue(&self, name: &str) -> (String, String) {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    /// A server that is `name`; `clients`: wants certificates of this authority.
    pub(super) fn server(&self, name: &str, clients: bool) -> Arc<rustls::ServerConfig> {
        use rustls_pki_types::pem::PemObject;
        use rustls_pki_types::{CertificateDer, PrivateKeyDer};
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = if clients {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(self.certificate.der().clone()).unwrap();
            let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        } else {
            builder.with_no_client_auth()
        };
        let (certificate, key) = self.issue(name);
        let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
        Arc::new(builder.with_single_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap()).unwrap())
    }
}

/// A server that is `name` by a self-signed certificate marked as an authority, as `openssl req -x509` makes it, and
/// that certificate in PEM form. `expired`: its time is over.
pub(super) fn self_signed_server(name: &str, expired: bool) -> (Arc<rustls::ServerConfig>, String) {
    use rustls_pki_types::PrivateKeyDer;
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    if expired {
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    }
    let certificate = params.self_signed(&key).unwrap();
    let private = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private)
        .unwrap();
    (Arc::new(server), certificate.pem())
}
