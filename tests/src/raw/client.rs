//! The asynchronous raw client.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::{Buf, Bytes, BytesMut};
use kafka_protocol::protocol::Request;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::blocking;
use super::frame::{AnswerFrame, request};
use crate::netns::Netns;

/// How long a read waits before the test fails instead of hanging.
const PATIENCE: Duration = Duration::from_secs(30);

/// Largest frame that is read: above any that a suite sends.
const MAX_FRAME: usize = 256 << 20;

/// One connection.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    received: BytesMut,
    next_correlation: i32,
    patience: Duration,
}

impl Client {
    /// Connects from this host.
    ///
    /// # Errors
    /// The peer does not accept.
    pub async fn connect(address: SocketAddr) -> Result<Self> {
        let stream = timeout(PATIENCE, TcpStream::connect(address))
            .await
            .with_context(|| format!("{address} did not accept within {PATIENCE:?}"))?;
        Self::over(stream.with_context(|| format!("connecting to {address}"))?)
    }

    /// Connects from a host of its own.
    ///
    /// # Errors
    /// The peer does not accept.
    pub async fn connect_in(netns: &Netns, address: SocketAddr) -> Result<Self> {
        let stream = blocking::dial(address, Some(netns), PATIENCE)?;
        stream.set_nonblocking(true)?;
        Self::over(TcpStream::from_std(stream)?)
    }

    /// Takes over a connected stream.
    ///
    /// # Errors
    /// The socket refuses TCP_NODELAY.
    pub fn over(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, received: BytesMut::new(), next_correlation: 1, patience: PATIENCE })
    }

    /// How long each read waits (30 s unless set).
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// The stream, for socket options.
    #[must_use]
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// The address this client dialled from.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        Ok(self.stream.local_addr()?)
    }

    /// Sends bytes as they stand.
    ///
    /// # Errors
    /// The peer is gone.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(bytes).await?)
    }

    /// Sends bytes in pieces that end at the offsets `cuts` (ascending), with a pause between, so that each piece is a
    /// segment of its own.
    ///
    /// # Errors
    /// The peer is gone, or a cut is out of order or range.
    pub async fn send_cut(&mut self, bytes: &[u8], cuts: &[usize], pause: Duration) -> Result<()> {
        let mut from = 0;
        for &cut in cuts {
            let piece = bytes.get(from..cut).with_context(|| format!("cut {cut} of {} bytes", bytes.len()))?;
            self.send(piece).await?;
            tokio::time::sleep(pause).await;
            from = cut;
        }
        self.send(&bytes[from..]).await
    }

    /// Sends a request and returns its correlation id.
    ///
    /// # Errors
    /// The peer is gone, or the version can't express the message.
    pub async fn send_request<R: Request>(&mut self, version: i16, body: &R) -> Result<i32> {
        let correlation_id = self.next_correlation;
        self.next_correlation = self.next_correlation.wrapping_add(1);
        self.send(&request(version, correlation_id, body)?).await?;
        Ok(correlation_id)
    }

    /// Reads the next frame without its size field; `None` when the peer has closed in an orderly way between frames.
    ///
    /// # Errors
    /// Nothing comes in time, the connection is reset, or it ends inside a frame.
    pub async fn read_frame(&mut self) -> Result<Option<Bytes>> {
        loop {
            if let Some(size) = self.received.first_chunk::<4>().map(|size| i32::from_be_bytes(*size)) {
                let size = usize::try_from(size).with_context(|| format!("a frame of {size} bytes"))?;
                ensure!(size <= MAX_FRAME, "a frame of {size} bytes, more than any suite sends");
                if self.received.len() >= 4 + size {
                    self.received.advance(4);
                    return Ok(Some(self.received.split_to(size).freeze()));
                }
            }
            if self.fill().await? == 0 {
                let left = self.received.len();
                ensure!(left == 0, "the peer closed inside a frame, after {left} of its bytes");
                return Ok(None);
            }
        }
    }

    /// Reads the next answer.
    ///
    /// # Errors
    /// As for [`Self::read_frame`]; also when the peer has closed.
    pub async fn read_answer(&mut self) -> Result<AnswerFrame> {
        AnswerFrame::new(self.read_frame().await?.context("the peer closed instead of answering")?)
    }

    /// Sends a request and reads its answer.
    ///
    /// # Errors
    /// As for the two; also when the correlation id differs.
    pub async fn call<R: Request>(&mut self, version: i16, body: &R) -> Result<R::Response> {
        let correlation_id = self.send_request(version, body).await?;
        let answer = self.read_answer().await?;
        ensure!(
            answer.correlation_id == correlation_id,
            "answer {} to request {correlation_id}",
            answer.correlation_id
        );
        answer.decode::<R>(version)
    }

    /// Sends FIN; reading goes on.
    ///
    /// # Errors
    /// The connection is gone.
    pub async fn half_close(&mut self) -> Result<()> {
        Ok(self.stream.shutdown().await?)
    }

    /// Sends RST.
    ///
    /// # Errors
    /// The socket refuses SO_LINGER.
    pub fn reset(self) -> Result<()> {
        socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO))?;
        drop(self.stream);
        Ok(())
    }

    /// Reads until the peer closes; returns what came. `Ok(None)` when the connection was reset instead.
    ///
    /// # Errors
    /// The peer does not close in time.
    pub async fn read_to_end(&mut self) -> Result<Option<Bytes>> {
        loop {
            match self.fill().await {
                Ok(0) => return Ok(Some(self.received.split().freeze())),
                Ok(_) => {}
                Err(error) if is_reset(&error) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    async fn fill(&mut self) -> Result<usize> {
        let patience = self.patience;
        let read = timeout(patience, self.stream.read_buf(&mut self.received));
        Ok(read.await.with_context(|| format!("nothing came within {patience:?}"))??)
    }
}

fn is_reset(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
}
