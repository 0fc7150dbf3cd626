//! The daemon's own log: one line per event to stderr, for people or as JSON.

use std::io::IsTerminal;

use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
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
    output: fn() -> Output,
}

/// Where lines go.
struct Output {
    writer: BoxMakeWriter,
    colours: bool,
}

fn stderr() -> Output {
    Output { writer: BoxMakeWriter::new(std::io::stderr), colours: std::io::stderr().is_terminal() }
}

/// Sends this process's log to stderr.
///
/// # Errors
/// The level can't be parsed, or there is a log already.
pub fn init(format: LogFormat, level: &str) -> Result<LogHandle, LogError> {
    let (subscriber, handle) = build(format, level, stderr)?;
    subscriber.try_init().map_err(|_| LogError::Twice)?;
    Ok(handle)
}

fn build(
    format: LogFormat,
    level: &str,
    output: fn() -> Output,
) -> Result<(impl Subscriber + Send + Sync, LogHandle), LogError> {
    let (filter, filter_handle) = reload::Layer::new(parse(level)?);
    let (lines, lines_handle) = reload::Layer::new(layer(format, output()));
    let subscriber = tracing_subscriber::registry().with(filter).with(lines);
    Ok((subscriber, LogHandle { filter: filter_handle, lines: lines_handle, output }))
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
        let _ = self.lines.reload(layer(format, (self.output)()));
        let _ = self.filter.reload(filter);
        Ok(())
    }
}

/// The loader says how it links each function of the kernel programs, half of all lines of a start. Whoever wants them
/// names it in a filter.
const QUIET: &str = ",aya=info,aya_obj=info";

fn parse(level: &str) -> Result<EnvFilter, LogError> {
    let refuse = |reason: String| LogError::Level { level: level.to_owned(), reason };
    if level.trim().is_empty() {
        return Err(refuse("it is empty".to_owned()));
    }
    // A single word that is no level would be taken as the name of a module, and silence everything else.
    if !level.contains(['=', ',', '[']) {
        let bare = level.parse::<LevelFilter>().map_err(|e| refuse(e.to_string()))?;
        if bare > LevelFilter::INFO {
            return EnvFilter::builder().parse(format!("{bare}{QUIET}")).map_err(|e| refuse(e.to_string()));
        }
    }
    EnvFilter::builder().parse(level).map_err(|e| refuse(e.to_string()))
}

fn layer(format: LogFormat, output: Output) -> Lines {
    let Output { writer, colours } = output;
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    match format {
        LogFormat::Human => lines.with_ansi(colours).with_target(false).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

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

    static WRITTEN: Mutex<Vec<u8>> = Mutex::new(Vec::new());

    fn to_memory() -> Output {
        struct Memory;
        impl std::io::Write for Memory {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                WRITTEN.lock().expect("unpoisoned").write(bytes)
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        Output { writer: BoxMakeWriter::new(|| Memory), colours: false }
    }

    #[test]
    fn format_and_level_can_be_turned_while_it_runs() {
        let written = || String::from_utf8(std::mem::take(&mut *WRITTEN.lock().expect("unpoisoned"))).expect("text");
        let (subscriber, handle) = build(LogFormat::Human, "info", to_memory).expect("built");
        tracing::subscriber::with_default(subscriber, || {
            tracing::debug!("not yet");
            tracing::info!(port = 9092, "listening");
            let human = written();
            assert!(human.ends_with(" INFO listening port=9092\n") && human.lines().count() == 1, "{human:?}");

            handle.set(LogFormat::Json, "debug").expect("turned");
            tracing::debug!(port = 9092, "listening");
            let line = written();
            let json: serde_json::Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
            assert_eq!((json["level"].as_str(), json["message"].as_str()), (Some("DEBUG"), Some("listening")));
            assert_eq!(json["port"], 9092);
            tracing::debug!(target: "aya_obj::relocation", "relocating");
            assert_eq!(written(), "", "a bare level is about turnout");

            assert!(handle.set(LogFormat::Human, "chatty").is_err());
            tracing::debug!("as before");
            assert!(written().starts_with('{'), "a level that is refused changes nothing");
        });
    }
}
