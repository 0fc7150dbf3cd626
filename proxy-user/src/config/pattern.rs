//! Names as a file lists them: whole, or their beginning and `*`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error as _};
use serde::{Serialize, Serializer};

use super::units::UnitError;

const EXAMPLE: &str = "no name or beginning of one; a `*` stands at the end alone, such as `analytics-*`";

/// A name, or all names that begin with something.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pattern {
    start: String,
    /// Whatever follows fits as well.
    open: bool,
}

impl Pattern {
    /// This name alone.
    #[must_use]
    pub fn exact(name: &str) -> Self {
        Self { start: name.to_owned(), open: false }
    }

    /// Whether a name fits.
    #[must_use]
    pub fn fits(&self, name: &str) -> bool {
        if self.open { name.starts_with(&self.start) } else { name == self.start }
    }
}

impl FromStr for Pattern {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (start, open) = text.strip_suffix('*').map_or((text, false), |start| (start, true));
        if text.is_empty() || start.contains('*') {
            return Err(UnitError(EXAMPLE));
        }
        Ok(Self { start: start.to_owned(), open })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.start, if self.open { "*" } else { "" })
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl JsonSchema for Pattern {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Pattern".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "title": "names", "type": "string" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_at_the_end_stands_for_any_rest() {
        let fits = |pattern: &str, name: &str| pattern.parse::<Pattern>().expect(pattern).fits(name);
        assert!(fits("analytics-*", "analytics-7") && fits("analytics-*", "analytics-") && fits("*", ""));
        assert!(!fits("analytics-*", "analytics") && !fits("a", "ab") && fits("a", "a"));
    }

    #[test]
    fn a_star_elsewhere_is_refused_and_what_is_accepted_prints_as_it_was() {
        for text in ["", "a*b", "**", "*a"] {
            assert!(text.parse::<Pattern>().expect_err(text).to_string().contains("`analytics-*`"));
        }
        for text in ["a", "a*", "*"] {
            assert_eq!(text.parse::<Pattern>().expect(text).to_string(), text);
        }
    }
}
