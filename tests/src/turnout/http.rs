//! As much of HTTP as reading a status page takes.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::netns::Netns;
use crate::raw::blocking;

const PATIENCE: Duration = Duration::from_secs(5);

/// `GET`: status code and body. HTTP/1.0, so that the body ends with the connection and is not chunked.
pub(super) fn get(address: SocketAddr, netns: Option<&Netns>, path: &str) -> Result<(u16, String)> {
    let mut stream = blocking::dial(address, netns, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer without a header's end")?;
    let code = head.split_whitespace().nth(1).and_then(|code| code.parse().ok()).context("an answer without a code")?;
    Ok((code, body.to_owned()))
}
