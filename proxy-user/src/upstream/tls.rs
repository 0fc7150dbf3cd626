//! TLS of the gateway's own client: the config's files, and what goes wrong in a handshake, in an operator's words.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::server::ParsedCertificate;
use rustls::{AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use crate::config;

/// Why the config's TLS can't be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum TlsConfigError {
    #[error("tls: {path} can't be read: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("tls: {path} has no {what} in PEM form")]
    Empty { path: PathBuf, what: &'static str },
    #[error("tls: {path} has a certificate that can't be used: {reason}")]
    Certificate { path: PathBuf, reason: String },
    #[error("tls: `cert` and `key` go together: set both or neither")]
    Half,
    #[error("tls: this host trusts no authority: install ca-certificates, or set tls.ca")]
    NoRoots,
    #[error("tls: {cert} and {key} don't fit: {source}")]
    Identity { cert: PathBuf, key: PathBuf, source: rustls::Error },
    #[error("tls: {0}")]
    Other(#[from] rustls::Error),
}

/// Bytes of the config's files. Equal bytes make an equal TLS config, so that a renewed certificate is noticed and an
/// unchanged one keeps its sessions.
#[derive(Clone, PartialEq, Eq)]
struct Files {
    ca: Option<Vec<u8>>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// The TLS config in use, built anew when the files' content changes.
#[derive(Default)]
pub(super) struct Cache {
    built: Option<(config::Tls, Files, Arc<ClientConfig>)>,
}

impl Cache {
    /// The TLS config for `tls`. Reads files: not for a runtime's worker thread.
    pub(super) fn get(&mut self, tls: &config::Tls) -> Result<Arc<ClientConfig>, TlsConfigError> {
        let files = read(tls)?;
        if let Some((of, with, built)) = &self.built
            && of == tls
            && *with == files
        {
            return Ok(built.clone());
        }
        let built = build(tls, &files)?;
        self.built = Some((tls.clone(), files, built.clone()));
        Ok(built)
    }
}

fn read(tls: &config::Tls) -> Result<Files, TlsConfigError> {
    let bytes =
        |path: &PathBuf| std::fs::read(path).map_err(|source| TlsConfigError::Read { path: path.clone(), source });
    let identity = match (&tls.cert, &tls.key) {
        (Some(cert), Some(key)) => Some((bytes(cert)?, bytes(key)?)),
        (None, None) => None,
        _ => return Err(TlsConfigError::Half),
    };
    Ok(Files { ca: tls.ca.as_ref().map(bytes).transpose()?, identity })
}

fn build(tls: &config::Tls, files: &Files) -> Result<Arc<ClientConfig>, TlsConfigError> {
    let mut roots = RootCertStore::empty();
    let mut trusted = Vec::new();
    match (&tls.ca, &files.ca) {
        (Some(path), Some(pem)) => {
            trusted = certificates(path, pem)?;
            for certificate in &trusted {
                roots.add(certificate.clone()).map_err(|e| refused(path, &e))?;
            }
        }
        _ => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err(TlsConfigError::NoRoots);
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chains = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .build()
        .map_err(|error| rustls::Error::General(error.to_string()))?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Verifier { chains, trusted }));
    let built = match (&tls.cert, &tls.key, &files.identity) {
        (Some(cert), Some(key), Some((chain, private))) => {
            let chain = certificates(cert, chain)?;
            let private = PrivateKeyDer::from_pem_slice(private)
                .map_err(|_| TlsConfigError::Empty { path: key.clone(), what: "private key" })?;
            builder.with_client_auth_cert(chain, private).map_err(|source| TlsConfigError::Identity {
                cert: cert.clone(),
                key: key.clone(),
                source,
            })?
        }
        _ => builder.with_no_client_auth(),
    };
    Ok(Arc::new(built))
}

/// The usual verification of chains, but for one case: a broker's certificate that itself stands in `tls.ca`.
///
/// `openssl req -x509` and many guides make self-signed broker certificates that are marked as an authority, and Java,
/// OpenSSL and Go take them from a trust store. RFC 5280 (6.1.4 k) lets nobody be both, so webpki refuses them.
#[derive(Debug)]
struct Verifier {
    chains: Arc<WebPkiServerVerifier>,
    /// Certificates of `tls.ca`.
    trusted: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verdict = self.chains.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verdict {
            // What has no name of its own in rustls; webpki looks at the dates before, so they are right.
            Err(rustls::Error::InvalidCertificate(CertificateError::Other(_)))
                if self.trusted.iter().any(|trusted| trusted.as_ref() == end_entity.as_ref()) =>
            {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsConfigError> {
    let all: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|e| refused(path, &e))?;
    if all.is_empty() {
        return Err(TlsConfigError::Empty { path: path.to_owned(), what: "certificate" });
    }
    Ok(all)
}

fn refused(path: &Path, reason: &dyn std::fmt::Display) -> TlsConfigError {
    TlsConfigError::Certificate { path: path.to_owned(), reason: reason.to_string() }
}

/// The TLS error inside of an I/O error, if that is what it is.
pub(super) fn inside(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// What a failed handshake means, and what to do.
pub(super) fn explain(error: &rustls::Error) -> String {
    use rustls::Error as E;
    match error {
        E::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "its certificate is signed by an authority that is not trusted: set tls.ca to the cluster's CA".into()
        }
        E::InvalidCertificate(CertificateError::BadSignature) => {
            "its certificate is signed by another authority than the trusted one of that name (was it made anew?): set \
             tls.ca to the cluster's CA"
                .into()
        }
        E::InvalidCertificate(CertificateError::NotValidForName) => {
            "its certificate is for another name: dial it by a name of the certificate".into()
        }
        E::InvalidCertificate(CertificateError::NotValidForNameContext { expected, presented }) => {
            let presented = if presented.is_empty() { "no name at all".into() } else { presented.join(", ") };
            format!(
                "its certificate is for {presented}, not for {}: dial it by a name of the certificate \
                 (tls.bootstrap, advertised.listeners, address_map)",
                expected.to_str()
            )
        }
        E::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "its certificate has expired: renew it, or check this host's clock".into()
        }
        E::InvalidCertificate(CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }) => {
            "its certificate is not valid yet: check this host's clock".into()
        }
        E::InvalidMessage(_) => {
            "it does not speak TLS: name a TLS listener in tls.bootstrap, or remove tls for a plaintext cluster".into()
        }
        E::AlertReceived(AlertDescription::CertificateRequired) => {
            "it wants a client certificate: set tls.cert and tls.key".into()
        }
        E::AlertReceived(
            alert @ (AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateExpired
            | AlertDescription::HandshakeFailure
            | AlertDescription::AccessDenied),
        ) => format!(
            "it refused the handshake ({alert:?}): check tls.cert and tls.key, or set them if it wants a client \
             certificate"
        ),
        other => format!("TLS failed: {other}"),
    }
}
