//! What a topic is called on the branch.

use std::fmt;
use std::str::FromStr;

use super::select::is_legal;

/// Longest name of a topic, in bytes.
const MAX_NAME: usize = 249;

/// Stands for the topic's name on the mainline.
const PLACEHOLDER: &str = "{topic}";

/// A name with places for the topic's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// Texts around the placeholders.
    parts: Vec<String>,
}

/// Why a text is no template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// It is empty.
    #[error("an empty name: `{PLACEHOLDER}` stands for the topic's own")]
    Empty,
    /// It has a character that no topic name has.
    #[error(
        "`{0}` makes no topic names: they have letters, digits, `.`, `_` and `-`, and `{PLACEHOLDER}` stands for the topic's own"
    )]
    Character(String),
    /// Nothing that it makes is short enough.
    #[error("names of this template are longer than {MAX_NAME} bytes")]
    TooLong,
}

/// The name that a template makes of a topic isn't one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` can't be a topic's name")]
pub struct NameError(pub String);

impl FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        if text.is_empty() {
            return Err(TemplateError::Empty);
        }
        let parts: Vec<_> = text.split(PLACEHOLDER).map(str::to_owned).collect();
        if !parts.iter().all(|part| part.bytes().all(is_legal)) {
            return Err(TemplateError::Character(text.to_owned()));
        }
        let fixed: usize = parts.iter().map(String::len).sum();
        // A topic's own name has one byte at least.
        if fixed + parts.len() - 1 > MAX_NAME {
            return Err(TemplateError::TooLong);
        }
        Ok(Self { parts })
    }
}

impl Default for Template {
    /// The topic's own name.
    fn default() -> Self {
        Self { parts: vec![String::new(); 2] }
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.parts.join(PLACEHOLDER))
    }
}

impl Template {
    /// The branch's name for `topic`.
    ///
    /// # Errors
    /// The result is too long, or a name that Kafka refuses.
    pub fn apply(&self, topic: &str) -> Result<String, NameError> {
        let name = self.parts.join(topic);
        let legal = (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_legal) && name != "." && name != "..";
        if legal { Ok(name) } else { Err(NameError(name)) }
    }

    /// Whether different topics stay different.
    #[must_use]
    pub fn keeps_topics_apart(&self) -> bool {
        self.parts.len() > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(template: &str, topic: &str) -> Result<String, NameError> {
        template.parse::<Template>().unwrap().apply(topic)
    }

    #[test]
    fn the_placeholder_stands_for_the_topics_own_name() {
        assert_eq!(apply("shadow.{topic}", "orders").unwrap(), "shadow.orders");
        assert_eq!(apply("{topic}-{topic}", "a").unwrap(), "a-a");
        assert_eq!(apply("all", "orders").unwrap(), "all");
        assert_eq!(Template::default().apply("orders").unwrap(), "orders");
        assert_eq!("x.{topic}".parse::<Template>().unwrap().to_string(), "x.{topic}");
    }

    #[test]
    fn only_a_template_with_a_placeholder_keeps_topics_apart() {
        assert!("x.{topic}".parse::<Template>().unwrap().keeps_topics_apart());
        assert!(!"all".parse::<Template>().unwrap().keeps_topics_apart());
    }

    #[test]
    fn what_makes_no_names_is_refused() {
        assert_eq!("".parse::<Template>(), Err(TemplateError::Empty));
        assert!(matches!("a b".parse::<Template>(), Err(TemplateError::Character(_))));
        assert!(matches!("{tpoic}".parse::<Template>(), Err(TemplateError::Character(_))));
        assert_eq!("x".repeat(250).parse::<Template>(), Err(TemplateError::TooLong));
        assert_eq!(format!("{}{{topic}}", "x".repeat(249)).parse::<Template>(), Err(TemplateError::TooLong));
    }

    #[test]
    fn a_name_that_kafka_refuses_is_an_error_of_that_topic() {
        let long = "x".repeat(245);
        assert_eq!(apply("{topic}", &long).unwrap(), long);
        assert_eq!(apply("copy.{topic}", &long), Err(NameError(format!("copy.{long}"))));
        assert_eq!(apply("{topic}", ".."), Err(NameError("..".into())));
        assert_eq!(apply("{topic}", ""), Err(NameError(String::new())));
    }
}
