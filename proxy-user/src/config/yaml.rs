//! YAML text as a tree, within bounds, and the place of any value in the text.
//!
//! The YAML library gives places only with errors. So the tree carries none, and [`locate`] walks the text again to
//! the value in question and fails there on purpose. That costs a second pass for each problem found and nothing for a
//! good file.

use std::cell::Cell;
use std::fmt;

use serde::de::{
    self, DeserializeSeed, Deserializer, EnumAccess, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use super::error::Problem;
use super::path::{KeyPath, Position, Segment};

/// Largest config file. A thousand virtual clusters with every key take less than half of it.
pub(super) const MAX_TEXT: usize = 1 << 20;
/// Most values a file may have once its aliases are expanded.
const MAX_VALUES: usize = 100_000;
/// Most bytes of keys and scalars a file may have once its aliases are expanded.
const MAX_EXPANDED: usize = 4 * MAX_TEXT;
/// Deepest nesting of flow brackets. The scanner's work grows with depth × length, so depth is bounded before it runs.
const MAX_BRACKETS: usize = 128;

/// A YAML value.
#[derive(Clone, PartialEq)]
pub(super) enum Node {
    /// `null`, `~` or nothing.
    Null,
    /// `true` or `false`, unquoted.
    Bool(bool),
    /// A whole number, unquoted.
    Int(i128),
    /// Any other number, unquoted.
    Float,
    /// Everything else that is one value.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// A map in the order of the file, repeated keys included.
    Map(Vec<(String, Node)>),
}

impl Node {
    /// What it is, for a message. Never the value.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Bool(_) => "true or false",
            Self::Int(_) => "a whole number",
            Self::Float => "a number with a fraction or exponent",
            Self::Text(_) => "text",
            Self::List(_) => "a list",
            Self::Map(_) => "a map",
        }
    }

    /// The value at the end of a path; of a repeated key the first.
    pub(super) fn get(&self, path: &KeyPath) -> Option<&Self> {
        path.segments().iter().try_fold(self, |node, segment| match (node, segment) {
            (Self::Map(entries), Segment::Key(key)) => entries.iter().find(|(k, _)| k == key).map(|(_, v)| v),
            (Self::List(items), Segment::Item(index)) => items.get(*index),
            _ => None,
        })
    }

    /// Takes the key at the end of a path away; a list item takes the key that holds the list with it. False where
    /// there is no such key.
    pub(super) fn remove(&mut self, path: &KeyPath) -> bool {
        let segments = path.segments();
        let Some(last_key) = segments.iter().rposition(|s| matches!(s, Segment::Key(_))) else { return false };
        let mut node = self;
        for segment in &segments[..last_key] {
            let next = match (node, segment) {
                (Self::Map(entries), Segment::Key(key)) => entries.iter_mut().find(|(k, _)| k == key).map(|(_, v)| v),
                (Self::List(items), Segment::Item(index)) => items.get_mut(*index),
                _ => None,
            };
            let Some(next) = next else { return false };
            node = next;
        }
        let (Self::Map(entries), Segment::Key(key)) = (node, &segments[last_key]) else { return false };
        let before = entries.len();
        entries.retain(|(k, _)| k != key);
        entries.len() < before
    }

    /// Every key that stands a second time in its map.
    fn repeated_keys(&self, here: &KeyPath, steps: &mut Vec<usize>, found: &mut Vec<(KeyPath, Vec<usize>)>) {
        match self {
            Self::Map(entries) => {
                let mut seen = std::collections::HashSet::new();
                for (index, (key, value)) in entries.iter().enumerate() {
                    let path = here.key(key);
                    steps.push(index);
                    if !seen.insert(key) {
                        found.push((path.clone(), steps.clone()));
                    }
                    value.repeated_keys(&path, steps, found);
                    steps.pop();
                }
            }
            Self::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    steps.push(index);
                    item.repeated_keys(&here.item(index), steps, found);
                    steps.pop();
                }
            }
            _ => {}
        }
    }

    /// The path as entry and item numbers, as far as it exists.
    fn steps(&self, path: &KeyPath) -> Vec<usize> {
        let mut node = self;
        let mut steps = Vec::new();
        for segment in path.segments() {
            let next = match (node, segment) {
                (Self::Map(entries), Segment::Key(key)) => entries.iter().position(|(k, _)| k == key),
                (Self::List(items), Segment::Item(index)) => (*index < items.len()).then_some(*index),
                _ => None,
            };
            let Some(index) = next else { break };
            steps.push(index);
            node = match node {
                Self::Map(entries) => &entries[index].1,
                Self::List(items) => &items[index],
                _ => break,
            };
        }
        steps
    }
}

/// Reads one document whose top level is a map without repeated keys anywhere.
///
/// # Errors
/// Text that is too large, deep or repetitive, is no YAML, holds no or several documents, tags, merge keys, or maps
/// with repeated keys: each with its place.
pub(super) fn parse(text: &str) -> Result<Node, Vec<Problem>> {
    let whole = |position, message: String| vec![Problem { position: Some(position), key: KeyPath::root(), message }];
    if text.len() > MAX_TEXT {
        return Err(whole(Position::START, TOO_LARGE.to_owned()));
    }
    if let Some(offset) = too_many_brackets(text) {
        let message = format!("more than {MAX_BRACKETS} brackets inside each other");
        return Err(whole(Position::of_offset(text.as_bytes(), offset), message));
    }
    let budget = Budget { values: Cell::new(MAX_VALUES), bytes: Cell::new(MAX_EXPANDED) };
    let mut documents = serde_yaml::Deserializer::from_str(text);
    let empty = || whole(Position::START, "empty; it needs at least `clusters` and `virtual_clusters`".to_owned());
    let Some(first) = documents.next() else { return Err(empty()) };
    let root = NodeSeed(&budget).deserialize(first).map_err(|error| {
        let position = error.location().map_or(Position::START, |l| Position { line: l.line(), column: l.column() });
        whole(position, describe(&error))
    })?;
    if let Some(second) = documents.next() {
        let refused = Locate { steps: &[] }.deserialize(second).err();
        return Err(match refused {
            Some(error) if error.to_string().contains(HERE) => {
                whole(place_of(&error), "a second document starts here; a config is one document".to_owned())
            }
            Some(error) => whole(place_of(&error), describe(&error)),
            None => whole(Position::START, "more than one document; a config is one".to_owned()),
        });
    }
    match &root {
        Node::Map(_) => {}
        Node::Null => return Err(empty()),
        other => {
            let message =
                format!("expected a map at the top, with `clusters` and `virtual_clusters`; found {}", other.kind());
            return Err(whole(locate_steps(text, &[]), message));
        }
    }
    let mut repeated = Vec::new();
    root.repeated_keys(&KeyPath::root(), &mut Vec::new(), &mut repeated);
    if repeated.is_empty() {
        return Ok(root);
    }
    repeated.truncate(super::error::MAX_PROBLEMS + 1);
    Err(repeated
        .into_iter()
        .map(|(key, steps)| {
            let first = locate(text, &root, &key);
            let message = format!("this key is already given at line {}; keep one of them", first.line);
            Problem { position: Some(locate_steps(text, &steps)), key, message }
        })
        .collect())
}

/// The place of a value: of its key where it has one, else of the nearest thing around it that the text has.
pub(super) fn locate(text: &str, root: &Node, path: &KeyPath) -> Position {
    locate_steps(text, &root.steps(path))
}

fn locate_steps(text: &str, steps: &[usize]) -> Position {
    let Some(document) = serde_yaml::Deserializer::from_str(text).next() else { return Position::START };
    Locate { steps }.deserialize(document).err().map_or(Position::START, |error| place_of(&error))
}

fn place_of(error: &serde_yaml::Error) -> Position {
    error.location().map_or(Position::START, |l| Position { line: l.line(), column: l.column() })
}

/// The library's message without the place that it appends: ours goes in front.
fn describe(error: &serde_yaml::Error) -> String {
    let text = error.to_string();
    let place = error.location().map(|l| format!(" at line {} column {}", l.line(), l.column())).unwrap_or_default();
    let message = text.replacen(&place, "", 1);
    if message == "repetition limit exceeded" { ALIASES.to_owned() } else { message }
}

/// Why a text beyond [`MAX_TEXT`] is refused.
pub(super) const TOO_LARGE: &str = "larger than 1 MiB; a config this large is a mistake";
const ALIASES: &str = "too many values; do aliases (`*name`) repeat each other?";

/// Where flow brackets are nested deeper than any config needs. Quotes and comments are not told apart: a text that
/// fails this unjustly has over a hundred brackets in one quoted string and never closes them.
fn too_many_brackets(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (offset, byte) in text.bytes().enumerate() {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_BRACKETS {
            return Some(offset);
        }
    }
    None
}

/// What a file may still grow to while its aliases are expanded.
struct Budget {
    values: Cell<usize>,
    bytes: Cell<usize>,
}

impl Budget {
    fn take<E: de::Error>(&self, bytes: usize) -> Result<(), E> {
        match (self.values.get().checked_sub(1), self.bytes.get().checked_sub(bytes)) {
            (Some(values), Some(bytes)) => {
                self.values.set(values);
                self.bytes.set(bytes);
                Ok(())
            }
            _ => Err(E::custom(ALIASES)),
        }
    }
}

#[derive(Clone, Copy)]
struct NodeSeed<'b>(&'b Budget);

impl<'de> DeserializeSeed<'de> for NodeSeed<'_> {
    type Value = Node;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for NodeSeed<'_> {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Node, E> {
        self.0.take(0).map(|()| Node::Null)
    }

    /// The library calls this for a text without any document.
    fn visit_none<E: de::Error>(self) -> Result<Node, E> {
        self.visit_unit()
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Node, E> {
        self.0.take(0).map(|()| Node::Bool(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Node, E> {
        self.0.take(0).map(|()| Node::Int(value.into()))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Node, E> {
        self.0.take(0).map(|()| Node::Int(value.into()))
    }

    fn visit_u128<E: de::Error>(self, value: u128) -> Result<Node, E> {
        // No key takes a number this large, so a bound keeps it refused as too large.
        self.0.take(0).map(|()| Node::Int(i128::try_from(value).unwrap_or(i128::MAX)))
    }

    fn visit_i128<E: de::Error>(self, value: i128) -> Result<Node, E> {
        self.0.take(0).map(|()| Node::Int(value))
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Node, E> {
        self.0.take(0).map(|()| Node::Float)
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Node, E> {
        self.0.take(value.len()).map(|()| Node::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        self.0.take(0)?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        self.0.take(0)?;
        let mut map = Vec::new();
        while let Some(key) = entries.next_key_seed(KeySeed(self.0))? {
            map.push((key, entries.next_value_seed(self)?));
        }
        Ok(Node::Map(map))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, _: A) -> Result<Node, A::Error> {
        Err(A::Error::custom("YAML tags (`!name`) have no meaning here; quote a text that starts with `!`"))
    }
}

/// A key: one value, taken as text.
struct KeySeed<'b>(&'b Budget);

impl<'de> DeserializeSeed<'de> for KeySeed<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_any(self)
    }
}

const BAD_KEY: &str = "a key must be one name or number";

impl<'de> Visitor<'de> for KeySeed<'_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: de::Error>(self, key: &str) -> Result<String, E> {
        if key == "<<" {
            return Err(E::custom("merge keys (`<<`) are not supported; aliases (`*name`) are, for whole values"));
        }
        if key.contains("${") {
            return Err(E::custom("keys are not interpolated; `${…}` works in values only"));
        }
        self.0.take(key.len()).map(|()| key.to_owned())
    }

    fn visit_bool<E: de::Error>(self, key: bool) -> Result<String, E> {
        self.visit_str(if key { "true" } else { "false" })
    }

    fn visit_u64<E: de::Error>(self, key: u64) -> Result<String, E> {
        self.visit_str(&key.to_string())
    }

    fn visit_i64<E: de::Error>(self, key: i64) -> Result<String, E> {
        self.visit_str(&key.to_string())
    }

    fn visit_u128<E: de::Error>(self, _: u128) -> Result<String, E> {
        Err(E::custom(BAD_KEY))
    }

    fn visit_i128<E: de::Error>(self, _: i128) -> Result<String, E> {
        Err(E::custom(BAD_KEY))
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<String, E> {
        Err(E::custom(BAD_KEY))
    }

    fn visit_unit<E: de::Error>(self) -> Result<String, E> {
        Err(E::custom(BAD_KEY))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<String, A::Error> {
        Err(A::Error::custom(BAD_KEY))
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<String, A::Error> {
        Err(A::Error::custom(BAD_KEY))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, _: A) -> Result<String, A::Error> {
        Err(A::Error::custom(BAD_KEY))
    }
}

/// The message of the error that marks a place; its text never reaches anybody.
const HERE: &str = "the place looked for";

/// Walks down entry and item numbers and fails at the end: at the key of a map entry, at the value of a list item.
#[derive(Clone, Copy)]
struct Locate<'s> {
    steps: &'s [usize],
}

impl<'de> DeserializeSeed<'de> for Locate<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Locate<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HERE)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Some((index, rest)) = self.steps.split_first() else { return Err(A::Error::custom(HERE)) };
        for _ in 0..*index {
            items.next_element::<IgnoredAny>()?;
        }
        items.next_element_seed(Locate { steps: rest })?;
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let Some((index, rest)) = self.steps.split_first() else { return Err(A::Error::custom(HERE)) };
        for _ in 0..*index {
            entries.next_entry::<IgnoredAny, IgnoredAny>()?;
        }
        if rest.is_empty() {
            entries.next_key_seed(Locate { steps: &[] })?;
        } else {
            entries.next_key::<IgnoredAny>()?;
            entries.next_value_seed(Locate { steps: rest })?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "yaml_tests.rs"]
mod tests;
