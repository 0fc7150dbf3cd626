//! A blocking connection for simple calls.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kafka_protocol::protocol::Request;

use super::frame::{AnswerFrame, request};
use crate::netns::Netns;

/// Largest answer that is read.
const MAX_ANSWER: usize = 64 << 20;

/// Dials `address`, from inside `netns` if given.
///
/// # Errors
/// The peer does not accept in time.
pub fn dial(address: SocketAddr, netns: Option<&Netns>, patience: Duration) -> Result<TcpStream> {
    let connect = || TcpStream::connect_timeout(&address, patience);
    let stream = match netns {
        Some(netns) => netns.run(connect)?,
        None => connect(),
    };
    stream.with_context(|| format!("connecting to {address}"))
}

/// One connection, one request at a time.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    next_correlation: i32,
}

impl Connection {
    /// Dials; `patience` bounds the dial and each read.
    ///
    /// # Errors
    /// The peer does not accept in time.
    pub fn open(address: SocketAddr, netns: Option<&Netns>, patience: Duration) -> Result<Self> {
        let stream = dial(address, netns, patience)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        Ok(Self { stream, next_correlation: 1 })
    }

    /// Sends a request and reads its answer.
    ///
    /// # Errors
    /// The peer is gone or silent, or its answer has another correlation id or does not fit the schema.
    pub fn call<R: Request>(&mut self, version: i16, body: &R) -> Result<R::Response> {
        let correlation_id = self.next_correlation;
        self.next_correlation += 1;
        self.stream.write_all(&request(version, correlation_id, body)?)?;
        let mut size = [0; 4];
        self.stream.read_exact(&mut size).context("reading the answer's size")?;
        let size = usize::try_from(i32::from_be_bytes(size)).context("a negative size")?;
        ensure!(size <= MAX_ANSWER, "an answer of {size} bytes");
        let mut bytes = vec![0; size];
        self.stream.read_exact(&mut bytes).context("reading the answer")?;
        let answer = AnswerFrame::new(bytes.into())?;
        ensure!(
            answer.correlation_id == correlation_id,
            "answer {} to request {correlation_id}",
            answer.correlation_id
        );
        answer.decode::<R>(version)
    }
}
