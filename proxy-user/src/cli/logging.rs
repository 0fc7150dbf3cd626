//! The daemon's own log: one line per event to stderr, for people or as JSON.

use std::io::IsTerminal;

use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::Registry;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::LogFormat;

type Filtered = tracing_subscriber::layer::Layered<reload::Layer<EnvFilter, Registry>, Registry>;
type Lines = Box<dyn Layer<Filtered> + Send + Sync>;

/// Why the log can't be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// `log.level` isn't a level or filter.
    #[error("log.level: {level:?} is no level (error, warn, info, debug, trace) and no filter: {reason}")]
    Level {
        /// As configured.
        level: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A log was set up in this process before.
    #[error("the log is set up already")]
    Twice,
}

/// The running log; turns it to another format or level.
#[derive(Clone)]
pub struct LogHandle {
    filter: reload::Handle<EnvFilter, Registry>,
    lines: reload::Handle<Lines, Filtered>,
}

/// Sends this process's log to stderr.
///
/// # Errors
/// The level can't be parsed, or there is a log already.
pub fn init(format: LogFormat, level: &str) -> Result<LogHandle, LogError> {
    let (filter, filter_handle) = reload::Layer::new(parse(level)?);
    let (lines, lines_handle) = reload::Layer::new(layer(format));
    tracing_subscriber::registry().with(filter).with(lines).try_init().map_err(|_| LogError::Twice)?;
    Ok(LogHandle { filter: filter_handle, lines: lines_handle })
}

/// Whether `log.level` can be used, so that a config can be refused before it is applied.
///
/// # Errors
/// It can't.
pub fn check(level: &str) -> Result<(), LogError> {
    parse(level).map(drop)
}

impl LogHandle {
    /// Applies another format and level from the next line on.
    ///
    /// # Errors
    /// The level can't be parsed; nothing changed.
    pub fn set(&self, format: LogFormat, level: &str) -> Result<(), LogError> {
        let filter = parse(level)?;
        // Both fail only once the subscriber is gone, which is when there is no log any more.
        let _ = self.lines.reload(layer(format));
        let _ = self.filter.reload(filter);
        Ok(())
    }
}

fn parse(level: &str) -> Result<EnvFilter, LogError> {
    let refuse = |reason: String| LogError::Level { level: level.to_owned(), reason };
    if level.trim().is_empty() {
        return Err(refuse("it is empty".to_owned()));
    }
    // A single word that is no level would be taken as the name of a module, and silence everything else.
    if !level.contains(['=', ',', '[']) {
        level.parse::<tracing::level_filters::LevelFilter>().map_err(|e| refuse(e.to_string()))?;
    }
    EnvFilter::builder().parse(level).map_err(|e| refuse(e.to_string()))
}

fn layer(format: LogFormat) -> Lines {
    let stderr = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    match format {
        LogFormat::Human => stderr.with_ansi(std::io::stderr().is_terminal()).with_target(false).boxed(),
        LogFormat::Json => stderr.json().flatten_event(true).boxed(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_filters_are_taken() {
        for level in ["error", "INFO", "trace", "off", "info,turnout::upstream=debug", "turnout=debug"] {
            assert!(check(level).is_ok(), "{level}");
        }
    }

    #[test]
    fn a_misspelt_level_is_refused_and_not_taken_for_a_module() {
        for level in ["inof", "", "info,turnout=chatty"] {
            let said = check(level).expect_err(level).to_string();
            assert!(said.starts_with("log.level: "), "{said}");
        }
    }
}
