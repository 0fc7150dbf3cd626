//! Which topics a branch copies.

use std::fmt;
use std::str::FromStr;

use regex_lite::Regex;

/// A set of topic names.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// Texts between the stars: one without any star, else the first is a prefix and the last a suffix.
    Parts(Vec<String>),
    Regex(Box<Regex>),
}

/// Why a text is no pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// It is empty.
    #[error("an empty pattern matches no topic: name one, or take the entry out")]
    Empty,
    /// It begins with a slash and doesn't end with one.
    #[error("`{0}` begins like a regular expression: end it with `/`")]
    Unclosed(String),
    /// It isn't a regular expression.
    #[error("`{0}` is no regular expression: {1}")]
    Regex(String, String),
    /// It has a character that no topic name has.
    #[error("`{0}` matches no topic: names have letters, digits, `.`, `_` and `-`, and `*` stands for any of them")]
    Character(String),
}

impl FromStr for Pattern {
    type Err = PatternError;

    /// `name`, `prefix*` (stars may stand anywhere), or `/regular expression/`, which must match the whole name.
    fn from_str(text: &str) -> Result<Self, PatternError> {
        let kind = match text.strip_prefix('/') {
            _ if text.is_empty() => return Err(PatternError::Empty),
            Some(rest) => {
                let inner = rest.strip_suffix('/').ok_or_else(|| PatternError::Unclosed(text.to_owned()))?;
                let whole = Regex::new(&format!("^(?:{inner})$"));
                Kind::Regex(Box::new(whole.map_err(|e| PatternError::Regex(text.to_owned(), e.to_string()))?))
            }
            None if text.bytes().all(|b| b == b'*' || is_legal(b)) => {
                Kind::Parts(text.split('*').map(str::to_owned).collect())
            }
            None => return Err(PatternError::Character(text.to_owned())),
        };
        Ok(Self { text: text.to_owned(), kind })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Pattern {
    /// Whether this topic is in it.
    #[must_use]
    pub fn matches(&self, topic: &str) -> bool {
        match &self.kind {
            Kind::Regex(regex) => regex.is_match(topic),
            Kind::Parts(parts) => match &parts[..] {
                [] => false,
                [name] => name == topic,
                [prefix, middle @ .., suffix] => {
                    between(topic, prefix, suffix).is_some_and(|rest| in_order(rest, middle))
                }
            },
        }
    }
}

/// What is left of `topic` without both ends, which may not overlap.
fn between<'a>(topic: &'a str, prefix: &str, suffix: &str) -> Option<&'a str> {
    topic.strip_prefix(prefix)?.strip_suffix(suffix)
}

/// Whether `parts` occur in `text`, one behind the other. The leftmost place is as good as any for each.
fn in_order(mut text: &str, parts: &[String]) -> bool {
    parts.iter().all(|part| match text.split_once(part.as_str()) {
        Some((_, rest)) => {
            text = rest;
            true
        }
        None => false,
    })
}

/// A byte that may be in a topic's name.
pub(super) fn is_legal(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

/// The topics that a branch copies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selection {
    /// Those in any of these …
    pub include: Vec<Pattern>,
    /// … and in none of these.
    pub exclude: Vec<Pattern>,
}

impl Selection {
    /// Whether this topic is copied.
    #[must_use]
    pub fn selects(&self, topic: &str) -> bool {
        self.include.iter().any(|p| p.matches(topic)) && !self.exclude.iter().any(|p| p.matches(topic))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn patterns(texts: &[&str]) -> Vec<Pattern> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn matches(pattern: &str, topic: &str) -> bool {
        pattern.parse::<Pattern>().unwrap().matches(topic)
    }

    #[test]
    fn topics_are_chosen_by_name_by_stars_and_by_regular_expression() {
        assert!(matches("orders", "orders"));
        assert!(!matches("orders", "orders.eu") && !matches("orders", "my-orders"));
        assert!(matches("payments.*", "payments.eu") && matches("payments.*", "payments."));
        assert!(!matches("payments.*", "payments"));
        assert!(matches("*.internal", "eu.internal") && !matches("*.internal", "eu.internal.x"));
        assert!(matches("a*b*c", "abc") && matches("a*b*c", "a-b-b-c") && !matches("a*b*c", "acb"));
        assert!(matches("*", "anything"));
        assert!(matches("/orders-[0-9]+/", "orders-17"));
        assert!(!matches("/orders-[0-9]+/", "orders-17x"), "the whole name must match");
        assert!(matches("/a|b/", "b") && !matches("/a|b/", "bc"), "alternatives too");
    }

    #[test]
    fn the_ends_of_a_pattern_dont_overlap() {
        assert!(!matches("ab*ba", "aba") && matches("ab*ba", "abba"));
    }

    #[test]
    fn an_excluded_topic_is_not_copied_whatever_includes_it() {
        let selection =
            Selection { include: patterns(&["orders", "payments.*"]), exclude: patterns(&["*.internal", "/.*-dlq/"]) };
        let chosen =
            ["orders", "payments.eu", "payments.internal", "payments.eu-dlq", "clicks"].map(|t| selection.selects(t));
        assert_eq!(chosen, [true, true, false, false, false]);
        assert!(!Selection::default().selects("orders"));
    }

    #[test]
    fn what_can_match_nothing_is_refused_with_a_reason() {
        let error = |text: &str| text.parse::<Pattern>().unwrap_err();
        assert_eq!(error(""), PatternError::Empty);
        assert_eq!(error("/orders"), PatternError::Unclosed("/orders".into()));
        assert!(matches!(error("/(/"), PatternError::Regex(text, _) if text == "/(/"));
        assert_eq!(error("or ders"), PatternError::Character("or ders".into()));
    }

    proptest! {
        #[test]
        fn stars_mean_what_they_mean_in_a_regular_expression(pattern in "[ab*]{1,6}", topic in "[ab]{0,8}") {
            let expression = Regex::new(&format!("^{}$", pattern.replace('*', "[ab]*"))).unwrap();
            prop_assert_eq!(matches(&pattern, &topic), expression.is_match(&topic));
        }
    }
}
