//! The YAML model, its validation with line numbers, and the difference between two configs.
//!
//! A file passes four stages, each pure but for the first and the interpolation, and each reports all it can find:
//!
//! ```text
//! text ─ yaml ─→ tree ─ read ─→ model ─ validate ─→ Config
//!        bounds,        keys, types,       meaning: names, ports,
//!        syntax,        ${…}, units        limits, overlaps
//!        repeated keys
//! ```
//!
//! A problem names its key; its line and column are looked up in the text when there is one.

mod diff;
mod endpoint;
mod error;
#[cfg(test)]
mod generated;
mod interpolate;
pub mod model;
mod model_edge;
mod model_racks;
mod path;
pub mod pattern;
mod ports;
pub mod prefix;
pub mod price;
mod read;
mod reference;
mod schema;
mod tree;
mod unbuilt;
pub mod units;
mod validate;
mod validate_admission;
mod validate_log;
mod validate_racks;
mod yaml;

use std::io::Read;
use std::path::{Path, PathBuf};

pub use diff::{Change, ConfigDiff, KeyChange, RESTART_KEYS, diff, needs_restart};
pub use endpoint::{Endpoint, EndpointError};
pub use error::{ConfigError, MAX_PROBLEMS, Problem};
pub use interpolate::Environment;
pub use model::*;
pub use path::{KeyPath, Position, Segment};
pub use reference::reference_markdown;
pub use schema::schema_json;
pub use tree::{check_json, tree};

/// A config that may be run.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The file it came from, as it was named to us.
    pub file: PathBuf,
    /// What it says.
    pub config: Config,
    /// What is allowed but doubtful, in the order of the file.
    pub warnings: Vec<Problem>,
}

/// Reads, interpolates and checks a file. `${file:PATH}` with a relative path starts at the file's own folder.
///
/// # Errors
/// Everything that is wrong with it, with line and column; nothing is applied of a file that has an error.
pub fn load(path: &Path) -> Result<Loaded, ConfigError> {
    let refuse = |position, message: String| {
        ConfigError::new(path, vec![Problem { position, key: KeyPath::root(), message }], 0)
    };
    let unreadable = |error: std::io::Error| refuse(None, format!("can't be read: {error}"));
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    // One byte more than is allowed, so that the parser sees that it is too much.
    file.take(yaml::MAX_TEXT as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    let text = match std::str::from_utf8(&bytes) {
        Ok(text) => text,
        // What is cut inside a character is cut because it is too large.
        Err(error) if error.error_len().is_none() && bytes.len() > yaml::MAX_TEXT => {
            return Err(refuse(Some(Position::START), yaml::TOO_LARGE.to_owned()));
        }
        Err(error) => {
            let position = Position::of_offset(&bytes, error.valid_up_to());
            return Err(refuse(Some(position), "not UTF-8 text".to_owned()));
        }
    };
    let environment = Environment::process(path.parent().unwrap_or(Path::new("")));
    let (config, warnings) = parse(text, path, &environment)?;
    Ok(Loaded { file: path.to_owned(), config, warnings })
}

/// Interpolates and checks a text. `file_name` only names it in errors. Nothing outside is touched but what
/// `environment` allows, so it is also what a fuzzer drives.
///
/// # Errors
/// As for [`load`].
pub fn load_str(text: &str, file_name: &str, environment: &Environment) -> Result<Config, ConfigError> {
    parse(text, Path::new(file_name), environment).map(|(config, _)| config)
}

fn parse(text: &str, file: &Path, environment: &Environment) -> Result<(Config, Vec<Problem>), ConfigError> {
    let root = yaml::parse(text).map_err(|problems| ConfigError::new(file, problems, 0))?;
    // Each place costs a walk through the text, so none is looked up that won't be shown.
    let placed = |findings: Vec<read::Finding>| -> Vec<Problem> {
        let place = |finding: read::Finding| {
            let key = finding.path.unwrap_or_default();
            Problem { position: Some(yaml::locate(text, &root, &key)), key, message: finding.message }
        };
        findings.into_iter().take(MAX_PROBLEMS).map(place).collect()
    };
    let refuse = |findings: Vec<read::Finding>| {
        let omitted = findings.len().saturating_sub(MAX_PROBLEMS);
        ConfigError::new(file, placed(findings), omitted)
    };
    let config: Config = read::read(&root, environment).map_err(refuse)?;
    let validate::Outcome { errors, warnings } = validate::validate(&config, &root);
    if !errors.is_empty() {
        return Err(refuse(errors));
    }
    let mut warnings = placed(warnings);
    warnings.sort_by_key(|w| w.position);
    Ok((config, warnings))
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;

#[cfg(test)]
mod examples_tests;
