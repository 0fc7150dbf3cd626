//! Where in the file: key paths, and positions in the text.

use std::fmt;

use serde::{Serialize, Serializer};

/// One step down from a map or a list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Segment {
    /// The value of a key.
    Key(String),
    /// The n-th item of a list, from 0.
    Item(usize),
}

/// The way from the top of the file to a value, printed as `virtual_clusters.orders.listen[1]`. The empty path is the
/// whole file.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyPath(Vec<Segment>);

impl KeyPath {
    /// The whole file.
    #[must_use]
    pub const fn root() -> Self {
        Self(Vec::new())
    }

    /// A path of keys, from the top.
    #[must_use]
    pub fn of<K: AsRef<str>>(keys: &[K]) -> Self {
        Self(keys.iter().map(|k| Segment::Key(k.as_ref().to_owned())).collect())
    }

    /// The path of a key below this one.
    #[must_use]
    pub fn key(&self, key: impl Into<String>) -> Self {
        self.with(Segment::Key(key.into()))
    }

    /// The path of a list item below this one.
    #[must_use]
    pub fn item(&self, index: usize) -> Self {
        self.with(Segment::Item(index))
    }

    /// The steps from the top.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.0
    }

    /// Whether `self` is `other` or lies below it.
    #[must_use]
    pub fn starts_with(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }

    /// Whether the path has the shape `a.*.b`, where `*` stands for any one key.
    #[must_use]
    pub fn matches(&self, pattern: &str) -> bool {
        let mut wanted = pattern.split('.');
        let fits = self.0.iter().all(|segment| match (segment, wanted.next()) {
            (Segment::Key(_), Some("*")) => true,
            (Segment::Key(key), Some(name)) => key == name,
            _ => false,
        });
        fits && wanted.next().is_none()
    }

    fn with(&self, segment: Segment) -> Self {
        let mut segments = self.0.clone();
        segments.push(segment);
        Self(segments)
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, segment) in self.0.iter().enumerate() {
            match segment {
                Segment::Item(index) => write!(f, "[{index}]")?,
                Segment::Key(key) => {
                    if i > 0 {
                        f.write_str(".")?;
                    }
                    if key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-')) && !key.is_empty() {
                        f.write_str(key)?;
                    } else {
                        write!(f, "\"{}\"", printable(key))?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl Serialize for KeyPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A place in the text, both numbers counted from 1, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Position {
    /// Line.
    pub line: usize,
    /// Column.
    pub column: usize,
}

impl Position {
    /// The first character of the file.
    pub const START: Self = Self { line: 1, column: 1 };

    /// The place of a byte offset. An offset beyond the end, or inside a character, counts as the character before.
    #[must_use]
    pub fn of_offset(text: &[u8], offset: usize) -> Self {
        let before = &text[..offset.min(text.len())];
        let line_start = before.iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1);
        let line = 1 + before.iter().filter(|b| **b == b'\n').count();
        Self { line, column: 1 + String::from_utf8_lossy(&before[line_start..]).chars().count() }
    }
}

/// Text from the file as a message may show it: control characters escaped, cut after 64 characters, so that one
/// message stays one line whatever the file holds.
pub(super) fn printable(text: &str) -> String {
    const MAX: usize = 64;
    let mut out = String::new();
    for c in text.chars().take(MAX) {
        match c {
            '\'' | '"' | '\\' => out.push(c),
            _ => out.extend(c.escape_debug()),
        }
    }
    if text.chars().nth(MAX).is_some() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_print_dotted_and_quote_what_has_dots() {
        let path = KeyPath::of(&["clusters", "east.1", "bootstrap"]).item(2);
        assert_eq!(path.to_string(), "clusters.\"east.1\".bootstrap[2]");
        assert_eq!(KeyPath::root().to_string(), "");
    }

    #[test]
    fn a_pattern_matches_whole_paths_only() {
        let path = KeyPath::of(&["virtual_clusters", "orders", "racks"]);
        assert!(path.matches("virtual_clusters.*.racks"));
        assert!(!path.matches("virtual_clusters.*"));
        assert!(!path.matches("virtual_clusters.*.racks.mode"));
        assert!(!path.matches("clusters.*.racks"));
    }

    #[test]
    fn an_offset_becomes_line_and_column_in_characters() {
        let text = "a: ä\nbé: 1".as_bytes();
        assert_eq!(Position::of_offset(text, 0), Position::START);
        assert_eq!(Position::of_offset(text, 6), Position { line: 2, column: 1 });
        assert_eq!(Position::of_offset(text, text.len()), Position { line: 2, column: 6 });
        assert_eq!(Position::of_offset(text, 999), Position { line: 2, column: 6 });
    }

    #[test]
    fn file_text_in_a_message_stays_one_short_line() {
        assert_eq!(printable("a\nb\u{1b}"), "a\\nb\\u{1b}");
        assert_eq!(printable(&"x".repeat(100)).chars().count(), 65);
    }
}
