//! `${…}` in values: from the environment and from files.
//!
//! A value is interpolated after the YAML is read, so whatever a variable or a file holds (quotes, colons, newlines) it
//! stays one value and can't change the structure of the config.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::path::printable;

/// Largest file that `${file:…}` reads. Secrets are short; a key store belongs in a path.
const MAX_FILE: u64 = 64 << 10;

const BAD_NAME: &str = "what stands in `${…}` is no variable name; write `${NAME}`, `${NAME:-default}` or \
                        `${file:PATH}`, and `$$` for a plain `$`";

/// What `${NAME}` and `${file:PATH}` mean. `Debug` prints no values.
pub struct Environment {
    variables: Variables,
    files: Files,
}

enum Variables {
    Process,
    Given(BTreeMap<String, String>),
}

enum Files {
    /// Relative paths start here.
    Disk(PathBuf),
    Given(BTreeMap<PathBuf, String>),
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let variables = match &self.variables {
            Variables::Process => "process".to_owned(),
            Variables::Given(map) => format!("{:?}", map.keys()),
        };
        let files = match &self.files {
            Files::Disk(base) => format!("below {}", base.display()),
            Files::Given(map) => format!("{:?}", map.keys()),
        };
        f.debug_struct("Environment").field("variables", &variables).field("files", &files).finish()
    }
}

impl Environment {
    /// The process's own variables and the host's files; a relative `${file:PATH}` starts at `base`, the folder of the
    /// config file.
    #[must_use]
    pub fn process(base: impl Into<PathBuf>) -> Self {
        Self { variables: Variables::Process, files: Files::Disk(base.into()) }
    }

    /// No variables and no files: nothing outside is touched. Tests and fuzzers add what they need.
    #[must_use]
    pub fn empty() -> Self {
        Self { variables: Variables::Given(BTreeMap::new()), files: Files::Given(BTreeMap::new()) }
    }

    /// Adds a variable; the process's own are then no longer seen.
    #[must_use]
    pub fn with_variable(mut self, name: &str, value: &str) -> Self {
        if let Variables::Process = self.variables {
            self.variables = Variables::Given(BTreeMap::new());
        }
        if let Variables::Given(map) = &mut self.variables {
            map.insert(name.to_owned(), value.to_owned());
        }
        self
    }

    /// Adds a file; the host's own are then no longer seen.
    #[must_use]
    pub fn with_file(mut self, path: impl Into<PathBuf>, text: &str) -> Self {
        if let Files::Disk(_) = self.files {
            self.files = Files::Given(BTreeMap::new());
        }
        if let Files::Given(map) = &mut self.files {
            map.insert(path.into(), text.to_owned());
        }
        self
    }

    /// Replaces every `${…}` and `$$` in a value.
    ///
    /// # Errors
    /// A clause that names the variable or file that is missing, or the bad spelling. It holds no value.
    pub(super) fn expand(&self, text: &str) -> Result<String, String> {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            out.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix('$') {
                out.push('$');
                rest = after;
            } else if let Some(after) = rest.strip_prefix('{') {
                let end = after.find('}').ok_or("a `${` without its `}`; write `$$` for a plain `$`")?;
                out.push_str(&self.lookup(&after[..end])?);
                rest = &after[end + 1..];
            } else {
                return Err("a lone `$`; write `$$` for a plain `$`, or `${NAME}`".to_owned());
            }
        }
        out.push_str(rest);
        Ok(out)
    }

    fn lookup(&self, reference: &str) -> Result<String, String> {
        if let Some(path) = reference.strip_prefix("file:") {
            return self.read_file(path);
        }
        let (name, default) = match reference.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (reference, None),
        };
        let well_formed = !name.starts_with(|c: char| c.is_ascii_digit())
            && !name.is_empty()
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !well_formed {
            // The text is not shown: it may be a part of a password with a `$` that is not doubled.
            return Err(BAD_NAME.to_owned());
        }
        match (self.variable(name)?, default) {
            (Some(value), None) => Ok(value),
            (Some(value), Some(_)) if !value.is_empty() => Ok(value),
            (_, Some(default)) => Ok(default.to_owned()),
            (None, None) => Err(format!(
                "the environment variable {name} is not set; set it, or give a default as `${{{name}:-default}}`"
            )),
        }
    }

    fn variable(&self, name: &str) -> Result<Option<String>, String> {
        match &self.variables {
            Variables::Given(map) => Ok(map.get(name).cloned()),
            Variables::Process => match std::env::var(name) {
                Ok(value) => Ok(Some(value)),
                Err(std::env::VarError::NotPresent) => Ok(None),
                Err(std::env::VarError::NotUnicode(_)) => Err(format!("the environment variable {name} is not UTF-8")),
            },
        }
    }

    fn read_file(&self, path: &str) -> Result<String, String> {
        let shown = printable(path);
        if path.is_empty() {
            return Err("`${file:}` names no file; write `${file:/run/secrets/name}`".to_owned());
        }
        let text = match &self.files {
            Files::Given(map) => map.get(Path::new(path)).cloned().ok_or(format!("the file {shown} does not exist"))?,
            Files::Disk(base) => read_bounded(&base.join(path)).map_err(|why| format!("the file {shown} {why}"))?,
        };
        let text = text.strip_suffix('\n').map_or(text.as_str(), |t| t.strip_suffix('\r').unwrap_or(t));
        Ok(text.to_owned())
    }
}

fn read_bounded(path: &Path) -> Result<String, String> {
    let unreadable = |error: std::io::Error| format!("can't be read: {error}");
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err("is larger than 64 KiB; is it the right one?".to_owned());
    }
    // The error of `from_utf8` carries the bytes, so it is not passed on.
    String::from_utf8(bytes).map_err(|_| "is not UTF-8 text".to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn environment() -> Environment {
        Environment::empty()
            .with_variable("PORT", "9092")
            .with_variable("EMPTY", "")
            .with_variable("ODD", "a: \"b\"\n- ${PORT} $$")
            .with_file("/run/secrets/east", "hunter2\n")
            .with_file("two-lines", "one\r\ntwo\r\n")
    }

    #[test]
    fn variables_defaults_files_and_dollars_are_replaced() {
        for (text, expanded) in [
            ("plain", "plain"),
            ("${PORT}", "9092"),
            ("a${PORT}b${PORT}", "a9092b9092"),
            ("${NONE:-5s}", "5s"),
            ("${PORT:-1}", "9092"),
            ("${EMPTY:-x}", "x"),
            ("${EMPTY}", ""),
            ("${NONE:-}", ""),
            ("${NONE:-a:-b}", "a:-b"),
            ("${file:/run/secrets/east}", "hunter2"),
            ("${file:two-lines}", "one\r\ntwo"),
            ("$$", "$"),
            ("$${PORT}", "${PORT}"),
            ("a$$$$b", "a$$b"),
        ] {
            assert_eq!(environment().expand(text).as_deref(), Ok(expanded), "{text}");
        }
    }

    #[test]
    fn what_a_variable_holds_is_not_interpolated_again() {
        assert_eq!(environment().expand("${ODD}").as_deref(), Ok("a: \"b\"\n- ${PORT} $$"));
    }

    #[test]
    fn what_is_missing_is_named() {
        for (text, named) in [
            ("${NONE}", "variable NONE is not set"),
            ("${file:/no/such}", "/no/such does not exist"),
            ("${file:}", "names no file"),
            ("${PORT", "without its `}`"),
            ("cost: $5", "a lone `$`"),
            ("x$", "a lone `$`"),
            ("${}", "is no variable name"),
            ("${9A}", "is no variable name"),
            ("${A B}", "is no variable name"),
        ] {
            let message = environment().expand(text).expect_err(text);
            assert!(message.contains(named), "{text}: {message}");
        }
    }

    #[test]
    fn files_are_read_beside_the_config_and_bounded() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("secret"), "s3cret\n").expect("written");
        std::fs::write(folder.path().join("large"), "x".repeat(MAX_FILE as usize + 1)).expect("written");
        std::fs::write(folder.path().join("binary"), [0xff, 0xfe]).expect("written");
        let environment = Environment::process(folder.path());
        assert_eq!(environment.expand("${file:secret}").as_deref(), Ok("s3cret"));
        assert!(environment.expand("${file:large}").is_err_and(|e| e.contains("64 KiB")));
        assert!(environment.expand("${file:binary}").is_err_and(|e| e.contains("UTF-8")));
        assert!(environment.expand("${file:.}").is_err_and(|e| e.contains("can't be read")));
        assert!(environment.expand("${file:/dev/zero}").is_err_and(|e| e.contains("64 KiB")));
    }

    #[test]
    fn debug_prints_names_and_no_values() {
        let shown = format!("{:?}", environment());
        assert!(shown.contains("PORT") && !shown.contains("9092") && !shown.contains("hunter2"), "{shown}");
    }

    proptest! {
        #[test]
        fn escaped_text_comes_back_as_it_was(text in ".*") {
            prop_assert_eq!(environment().expand(&text.replace('$', "$$")), Ok(text));
        }

        #[test]
        fn no_text_panics(text in "[${}:A-C_ -]{0,40}") {
            let _ = environment().expand(&text);
        }
    }
}
