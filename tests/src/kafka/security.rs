//! Listeners, users and certificates of a cluster.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::artifacts::Artifacts;
use crate::{paths, process};

/// A listener that clients may use, beside the controller's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Listener {
    /// No TLS, no authentication; also used between brokers. Always there; ANONYMOUS is a super user.
    Plaintext,
    /// SASL without TLS: PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512 with the cluster's users.
    Sasl,
    /// TLS, no authentication; the certificate is [`Certificates`]'.
    Tls,
    /// SASL over TLS.
    SaslTls,
}

impl Listener {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Plaintext => "PLAINTEXT",
            Self::Sasl => "SASL",
            Self::Tls => "TLS",
            Self::SaslTls => "SASLTLS",
        }
    }

    pub(super) fn protocol(self) -> &'static str {
        match self {
            Self::Plaintext => "PLAINTEXT",
            Self::Sasl => "SASL_PLAINTEXT",
            Self::Tls => "SSL",
            Self::SaslTls => "SASL_SSL",
        }
    }

    pub(super) fn is_sasl(self) -> bool {
        matches!(self, Self::Sasl | Self::SaslTls)
    }

    pub(super) fn is_tls(self) -> bool {
        matches!(self, Self::Tls | Self::SaslTls)
    }
}

/// Someone who may log in on the SASL listeners, with any of the mechanisms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Name.
    pub name: String,
    /// Password.
    pub password: String,
}

impl User {
    /// A user whose password is the name with `-secret` appended.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), password: format!("{name}-secret") }
    }
}

/// A self-signed certificate that all brokers present, made once into the build folder.
#[derive(Clone, Debug)]
pub struct Certificates {
    dir: PathBuf,
}

impl Certificates {
    /// Password of the stores.
    pub const PASSWORD: &str = "turnout-tests";

    /// Makes them unless they are there. Valid for `localhost`, 127.0.0.1, ::1 and the addresses of
    /// [`crate::netns::World`].
    ///
    /// # Errors
    /// `keytool` fails.
    pub fn prepare(_artifacts: &Artifacts) -> Result<Self> {
        let dir = paths::build().join("kafka").join("certificates");
        let hosts = (0..3u8).map(|n| format!("ip:10.90.{n}.1")).chain((0..6u8).map(|n| format!("ip:10.92.{n}.2")));
        let names: Vec<_> = ["dns:localhost", "ip:127.0.0.1", "ip:0:0:0:0:0:0:0:1", "ip:10.91.0.2"]
            .into_iter()
            .map(str::to_owned)
            .chain(hosts)
            .collect();
        let extension = format!("SAN={}", names.join(","));
        paths::once(&dir, &paths::fingerprint(&[], &[&extension])?, |draft| {
            let store = |name: &str| draft.join(name).display().to_string();
            let (key, trust, pem) = (store("broker.p12"), store("trust.p12"), store("ca.pem"));
            let common = ["-storetype", "PKCS12", "-storepass", Self::PASSWORD, "-alias", "broker"];
            keytool(
                &["-genkeypair", "-keyalg", "EC", "-groupname", "secp256r1", "-validity", "3650"],
                &common,
                &["-dname", "CN=localhost", "-ext", &extension, "-ext", "bc:c", "-keystore", &key],
            )?;
            keytool(&["-exportcert", "-rfc"], &common, &["-keystore", &key, "-file", &pem])?;
            keytool(&["-importcert", "-noprompt"], &common, &["-keystore", &trust, "-file", &pem])
        })?;
        Ok(Self { dir })
    }

    /// PKCS#12 store with the brokers' key.
    #[must_use]
    pub fn key_store(&self) -> PathBuf {
        self.dir.join("broker.p12")
    }

    /// PKCS#12 store with what a Java client must trust.
    #[must_use]
    pub fn trust_store(&self) -> PathBuf {
        self.dir.join("trust.p12")
    }

    /// The same as PEM.
    #[must_use]
    pub fn ca_pem(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    /// Broker properties of the TLS listeners.
    pub(super) fn properties(&self) -> Vec<(String, String)> {
        let store = |path: &Path| path.display().to_string();
        [
            ("ssl.keystore.location", store(&self.key_store())),
            ("ssl.keystore.type", "PKCS12".into()),
            ("ssl.keystore.password", Self::PASSWORD.into()),
            ("ssl.key.password", Self::PASSWORD.into()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
    }
}

fn keytool(action: &[&str], common: &[&str], rest: &[&str]) -> Result<()> {
    let mut command = Command::new("keytool");
    command.args(action).args(common).args(rest);
    process::run(command, Duration::from_secs(60)).map(drop).context("making the brokers' certificate")
}

/// Broker properties that let `users` in on a SASL listener.
pub(super) fn sasl_properties(listener: Listener, users: &[User]) -> Vec<(String, String)> {
    let prefix = format!("listener.name.{}", listener.name().to_lowercase());
    let plain: String = users.iter().map(|user| format!(" user_{}=\"{}\"", user.name, user.password)).collect();
    let scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;".to_owned();
    vec![
        (format!("{prefix}.sasl.enabled.mechanisms"), "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512".into()),
        (
            format!("{prefix}.plain.sasl.jaas.config"),
            format!("org.apache.kafka.common.security.plain.PlainLoginModule required{plain};"),
        ),
        (format!("{prefix}.scram-sha-256.sasl.jaas.config"), scram.clone()),
        (format!("{prefix}.scram-sha-512.sasl.jaas.config"), scram),
    ]
}
