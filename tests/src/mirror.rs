//! What a mirror gave, by way of a file: from the gateway's process (`turnout-mirroring`) to the test.
//!
//! ```text
//!  kind: u8 │ connection: u64 │ side: u8 │ index, or frames lost: u32 │ 1 if there is an index: u8 │ length: u32 │ frame
//! ```

use std::io::{self, Read as _, Write};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use proxy_common::splice::state::Side;
use turnout::splice::mirror::{ConnectionId, Event};

/// Variable with the file's name.
pub const FILE: &str = "TURNOUT_MIRROR_FILE";

const FRAME: u8 = 0;
const LOST: u8 = 1;
const ENDED: u8 = 2;

/// What was given, without the cause of losses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Given {
    /// A frame.
    Frame {
        /// Whose.
        side: Side,
        /// Which, where it has an answer.
        index: Option<u32>,
        /// With its size field.
        frame: Bytes,
    },
    /// So many could not be given.
    Lost(u32),
    /// The connection's end.
    Ended,
}

/// Writes an event.
///
/// # Errors
/// As the file has them.
pub fn write(file: &mut impl Write, connection: ConnectionId, event: &Event) -> io::Result<()> {
    let nothing = Bytes::new();
    let (kind, side, number, has_index, frame) = match event {
        Event::Frame { side, index, frame } => (FRAME, *side, index.unwrap_or(0), index.is_some(), frame),
        Event::Lost { side, frames, .. } => (LOST, *side, *frames, false, &nothing),
        Event::Ended => (ENDED, Side::Client, 0, false, &nothing),
    };
    let mut out = vec![kind];
    out.extend(connection.0.to_be_bytes());
    out.push(side as u8);
    out.extend(number.to_be_bytes());
    out.push(has_index.into());
    out.extend((frame.len() as u32).to_be_bytes());
    out.extend_from_slice(frame);
    file.write_all(&out)
}

/// Reads the events that are in a file whole.
///
/// # Errors
/// There is something else in it.
pub fn read(path: &Path) -> Result<Vec<(ConnectionId, Given)>> {
    let bytes = Bytes::from(std::fs::read(path).with_context(|| path.display().to_string())?);
    let mut events = Vec::new();
    let mut rest = bytes.clone();
    loop {
        let mut head = [0; 19];
        if (&rest[..]).read_exact(&mut head).is_err() {
            return Ok(events);
        }
        let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let connection = ConnectionId(u64::from(word(1)) << 32 | u64::from(word(5)));
        let end = head.len() + word(15) as usize;
        if rest.len() < end {
            return Ok(events);
        }
        let frame = rest.split_to(end).slice(head.len()..);
        let side = if head[9] == 0 { Side::Client } else { Side::Broker };
        events.push((
            connection,
            match head[0] {
                FRAME => Given::Frame { side, index: (head[14] == 1).then(|| word(10)), frame },
                LOST => Given::Lost(word(10)),
                ENDED => Given::Ended,
                other => bail!("an event of kind {other}"),
            },
        ));
    }
}
