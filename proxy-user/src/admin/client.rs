//! Asks a running daemon over its control socket.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use super::http::MAX_PAGE;
use super::{ConnectionsPage, Refusal};
use crate::gateway::racks_report::WhyQuestion;
use crate::gateway::status::{
    AdmissionReport, ConnectionStatus, RacksReport, Readiness, RefusedReport, ReloadReport, Status, UpgradeReport,
    WhyReport,
};

/// Largest answer that is read.
const MAX_ANSWER: usize = 64 * 1024 * 1024;
/// How long a question may take. A reload that binds ports and reaches clusters is the slowest.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Why a daemon could not be asked, or refused.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No daemon listens there.
    #[error("{socket}: no turnout answers there; is it running? (`--socket` names another socket)")]
    NoDaemon {
        /// The socket.
        socket: PathBuf,
    },
    /// The socket's permissions.
    #[error("{socket}: permission denied; run this as the daemon's user or in its group")]
    Denied {
        /// The socket.
        socket: PathBuf,
    },
    /// The daemon's own refusal, in its words.
    #[error("{0}")]
    Refused(String),
    /// It was reached, but the exchange failed.
    #[error("{socket}: {reason}")]
    Failed {
        /// The socket.
        socket: PathBuf,
        /// What went wrong.
        reason: String,
    },
}

/// A client of one control socket; each question is a connection of its own.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// A client of the daemon that listens there.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    /// The whole daemon at this moment.
    ///
    /// # Errors
    /// See [`ClientError`], here and below.
    pub async fn status(&self) -> Result<Status, ClientError> {
        self.ask(Method::GET, "/status").await
    }

    /// Every open client connection, ordered by id.
    pub async fn connections(&self) -> Result<Vec<ConnectionStatus>, ClientError> {
        let mut all = Vec::new();
        let mut path = format!("/connections?limit={MAX_PAGE}");
        loop {
            let page: ConnectionsPage = self.ask(Method::GET, &path).await?;
            let last = page.connections.last().map(|c| c.id);
            all.extend(page.connections);
            match page.next {
                Some(next) if last == Some(next) => path = format!("/connections?limit={MAX_PAGE}&after={next}"),
                _ => return Ok(all),
            }
        }
    }

    /// Makes the daemon load its config file again.
    pub async fn reload(&self) -> Result<ReloadReport, ClientError> {
        self.ask(Method::POST, "/reload").await
    }

    /// Makes the daemon drain and end; returns once the drain began.
    pub async fn drain(&self) -> Result<Readiness, ClientError> {
        self.ask(Method::POST, "/drain?reason=turnout%20drain").await
    }

    /// Makes the daemon start its successor; returns once that serves.
    pub async fn upgrade(&self) -> Result<UpgradeReport, ClientError> {
        self.ask(Method::POST, "/upgrade").await
    }

    /// Who may connect, and what became of those who tried.
    pub async fn admission(&self) -> Result<AdmissionReport, ClientError> {
        self.ask(Method::GET, "/admission").await
    }

    /// Who was refused lately, the latest first.
    pub async fn refused_sources(&self, limit: usize) -> Result<Vec<RefusedReport>, ClientError> {
        self.ask(Method::GET, &format!("/admission/refused?limit={limit}")).await
    }

    /// What was read in which rack, by virtual cluster.
    pub async fn racks(&self) -> Result<BTreeMap<String, RacksReport>, ClientError> {
        self.ask(Method::GET, "/racks").await
    }

    /// Why a client reads partitions where it does, by virtual cluster.
    pub async fn racks_why(&self, question: &WhyQuestion) -> Result<BTreeMap<String, WhyReport>, ClientError> {
        let WhyQuestion { virtual_cluster, client, client_id, client_rack, topic } = question;
        let mut path = format!("/racks/why?client={}", escaped(&client.to_string()));
        for (key, value) in [
            ("client_id", client_id),
            ("client_rack", client_rack),
            ("topic", topic),
            ("virtual_cluster", virtual_cluster),
        ] {
            if let Some(value) = value {
                path.push_str(&format!("&{key}={}", escaped(value)));
            }
        }
        self.ask(Method::GET, &path).await
    }

    async fn ask<T: DeserializeOwned>(&self, method: Method, path: &str) -> Result<T, ClientError> {
        match tokio::time::timeout(TIMEOUT, self.exchange(method, path)).await {
            Ok(answer) => answer,
            Err(_) => Err(self.failed(format!("no answer within {} s", TIMEOUT.as_secs()))),
        }
    }

    async fn exchange<T: DeserializeOwned>(&self, method: Method, path: &str) -> Result<T, ClientError> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|e| self.unreachable(&e))?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|e| self.failed(e.to_string()))?;
        // Ends with the sender or the daemon; its error reaches the request.
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "turnout")
            .body(Empty::<Bytes>::new())
            .map_err(|e| self.failed(e.to_string()))?;
        let answer = sender.send_request(request).await.map_err(|e| self.failed(e.to_string()))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        let body = body.map_err(|e| self.failed(e.to_string()))?.to_bytes();
        if status.is_success() {
            return serde_json::from_slice(&body)
                .map_err(|e| self.failed(format!("an answer that this version doesn't understand: {e}")));
        }
        Err(self.refused(status, &body))
    }

    fn refused(&self, status: StatusCode, body: &[u8]) -> ClientError {
        match serde_json::from_slice::<Refusal>(body) {
            Ok(Refusal { error }) => ClientError::Refused(error),
            Err(_) => self.failed(format!("{status}: {}", String::from_utf8_lossy(body).trim())),
        }
    }

    fn unreachable(&self, error: &io::Error) -> ClientError {
        let socket = self.socket.clone();
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ClientError::NoDaemon { socket },
            io::ErrorKind::PermissionDenied => ClientError::Denied { socket },
            _ => self.failed(error.to_string()),
        }
    }

    fn failed(&self, reason: String) -> ClientError {
        ClientError::Failed { socket: self.socket.clone(), reason }
    }
}

/// A value as it stands in a query (RFC 3986: everything but unreserved characters is escaped).
fn escaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => text.push(char::from(byte)),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_in_queries_are_escaped() {
        assert_eq!(escaped("orders-7.a_b~"), "orders-7.a_b~");
        assert_eq!(escaped("a b&c=é/::1"), "a%20b%26c%3D%C3%A9%2F%3A%3A1");
    }
}
