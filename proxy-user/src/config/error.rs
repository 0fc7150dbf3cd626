//! What is wrong with a file, with the place and the remedy.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::path::{KeyPath, Position};

/// At most this many problems are listed; the rest are counted.
pub const MAX_PROBLEMS: usize = 20;

/// One thing that is wrong (or, as a warning, doubtful) in a config file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Where; `None` only when the file could not be read at all. For a key with a bad value it is the key's place;
    /// for something that is missing, the place of what it is missing from.
    #[serde(flatten)]
    pub position: Option<Position>,
    /// Which key; the root path for what concerns the whole file.
    pub key: KeyPath,
    /// What is wrong and what to write instead. Never holds a secret, nor any value that came from the environment or
    /// another file.
    pub message: String,
}

impl fmt::Display for Problem {
    /// `12:5: virtual_clusters.orders.limits.frame: …`; whoever knows the file puts its name in front.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { position, key, message } = self;
        if let Some(Position { line, column }) = position {
            write!(f, "{line}:{column}: ")?;
        }
        if !key.segments().is_empty() {
            write!(f, "{key}: ")?;
        }
        f.write_str(message)
    }
}

/// A file that is refused. Prints one line for each problem, in the order of the file: `file:line:column: key: what`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConfigError {
    /// The file as it was named to us.
    pub file: PathBuf,
    /// At least one, at most [`MAX_PROBLEMS`].
    pub problems: Vec<Problem>,
    /// How many more there are.
    pub omitted: usize,
}

impl ConfigError {
    /// A file is refused for these reasons, and `omitted` more. They are sorted by place and cut to [`MAX_PROBLEMS`].
    pub(super) fn new(file: &Path, mut problems: Vec<Problem>, omitted: usize) -> Self {
        problems.sort_by(|a, b| (a.position, &a.key).cmp(&(b.position, &b.key)));
        let omitted = omitted + problems.len().saturating_sub(MAX_PROBLEMS);
        problems.truncate(MAX_PROBLEMS);
        Self { file: file.to_owned(), problems, omitted }
    }

    /// For `turnout check --format json`.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        let Self { file, problems, omitted } = self;
        serde_json::json!({ "ok": false, "file": file, "problems": problems, "omitted": omitted })
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write_at(f, &self.file, problem)?;
        }
        match self.omitted {
            0 => Ok(()),
            n => write!(f, "\n{}: and {n} more", self.file.display()),
        }
    }
}

impl std::error::Error for ConfigError {}

fn write_at(f: &mut fmt::Formatter<'_>, file: &Path, problem: &Problem) -> fmt::Result {
    let gap = if problem.position.is_some() { "" } else { " " };
    write!(f, "{}:{gap}{problem}", file.display())
}
