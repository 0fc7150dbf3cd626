//! From the tree to the typed model: a serde deserializer that interpolates every value before it is parsed, and knows
//! where it is.
//!
//! Because values are interpolated here, a derived `Deserialize` needs no help to accept `${PORT:-9092}` for a port or
//! an address, and because the path is known here, every error names its key.

use serde::Deserialize;
use serde::de::value::{StrDeserializer, StringDeserializer};
use serde::de::{self, DeserializeSeed, Deserializer, IntoDeserializer, Visitor};

use super::error::MAX_PROBLEMS;
use super::interpolate::Environment;
use super::path::{KeyPath, printable};
use super::unbuilt;
use super::yaml::Node;

/// What is wrong at a key. Serde's own messages come without a path and get one on their way up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    /// Which key.
    pub(super) path: Option<KeyPath>,
    /// What is wrong and what to do. No values from outside the file.
    pub(super) message: String,
    /// The key that `path` lacks.
    missing: Option<&'static str>,
}

impl Finding {
    /// A finding at a key.
    pub(super) fn at(path: &KeyPath, message: impl Into<String>) -> Self {
        Self { path: Some(path.clone()), message: message.into(), missing: None }
    }

    fn or_at(mut self, path: &KeyPath) -> Self {
        self.path.get_or_insert_with(|| path.clone());
        self
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Finding {}

impl de::Error for Finding {
    fn custom<T: std::fmt::Display>(message: T) -> Self {
        Self { path: None, message: message.to_string(), missing: None }
    }

    fn missing_field(field: &'static str) -> Self {
        Self { path: None, message: format!("`{field}` is missing here"), missing: Some(field) }
    }
}

/// Reads the model from the tree, and goes on after a problem as far as it can: the key at fault is taken out of a copy
/// of the tree and the rest read again.
///
/// # Errors
/// Every finding, at least one.
pub(super) fn read<T: for<'de> Deserialize<'de>>(root: &Node, environment: &Environment) -> Result<T, Vec<Finding>> {
    let mut root = root.clone();
    let mut findings: Vec<Finding> = Vec::new();
    loop {
        let finding = match T::deserialize(Reader { node: &root, path: KeyPath::root(), environment }) {
            Ok(value) if findings.is_empty() => return Ok(value),
            Ok(_) => return Err(findings),
            Err(finding) => finding.or_at(&KeyPath::root()),
        };
        let path = finding.path.clone().unwrap_or_default();
        // A key that was taken out because of an earlier finding is not missing.
        let known = finding.missing.is_some_and(|field| {
            let missing = path.key(field);
            findings.iter().any(|f| f.path.as_ref().is_some_and(|p| p.starts_with(&missing)))
        });
        if !known {
            findings.push(finding);
        }
        if findings.len() > MAX_PROBLEMS || !root.remove(&path) {
            return Err(findings);
        }
    }
}

/// The known key that was probably meant, if any is near.
pub(super) fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let lower = word.to_lowercase();
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&lower, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= candidate.len().max(3) / 3)
        .min()
        .map(|(_, candidate)| candidate)
}

fn list_of(names: &[&str]) -> String {
    names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ")
}

/// One value of the tree, on its way into the model.
struct Reader<'a> {
    node: &'a Node,
    path: KeyPath,
    environment: &'a Environment,
}

impl<'a> Reader<'a> {
    fn fail(&self, message: impl Into<String>) -> Finding {
        Finding::at(&self.path, message)
    }

    fn expected(&self, what: &str) -> Finding {
        match self.node {
            Node::Null => self.fail(format!("expected {what}, found nothing; write a value or leave the key out")),
            other => self.fail(format!("expected {what}, found {}", other.kind())),
        }
    }

    fn expand(&self, raw: &str) -> Result<String, Finding> {
        self.environment.expand(raw).map_err(|why| self.fail(why))
    }

    /// The value as the file has it: never what it stands for.
    fn shown(&self) -> String {
        match self.node {
            Node::Text(raw) => format!("`{}`", printable(raw)),
            Node::Int(number) => format!("`{number}`"),
            Node::Bool(value) => format!("`{value}`"),
            other => other.kind().to_owned(),
        }
    }

    /// Completes what a value's own parser said.
    fn refine(&self, finding: Finding) -> Finding {
        match finding.path {
            Some(_) => finding,
            None => self.fail(format!("{} is refused: {}", self.shown(), finding.message)),
        }
    }

    fn integer(&self, min: i128, max: i128) -> Result<i128, Finding> {
        let number = match self.node {
            Node::Int(number) => Some(*number),
            Node::Text(raw) => self.expand(raw)?.parse().ok(),
            _ => return Err(self.expected("a whole number")),
        };
        number
            .filter(|n| (min..=max).contains(n))
            .ok_or_else(|| self.fail(format!("{} is no whole number from {min} to {max}", self.shown())))
    }

    fn text(&self) -> Result<String, Finding> {
        match self.node {
            Node::Text(raw) => self.expand(raw),
            Node::Int(_) | Node::Float | Node::Bool(_) => {
                Err(self.fail(format!("expected text, found {}; put it in quotes", self.node.kind())))
            }
            _ => Err(self.expected("text")),
        }
    }
}

macro_rules! integers {
    ($($method:ident $visit:ident $type:ty;)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Finding> {
            let number = self.integer(<$type>::MIN.into(), <$type>::MAX.into())?;
            // `integer` has checked the range.
            visitor.$visit(number as $type).map_err(|e: Finding| self.refine(e))
        }
    )*};
}

impl<'de> Deserializer<'de> for Reader<'de> {
    type Error = Finding;

    integers! {
        deserialize_i8 visit_i8 i8;
        deserialize_i16 visit_i16 i16;
        deserialize_i32 visit_i32 i32;
        deserialize_i64 visit_i64 i64;
        deserialize_u8 visit_u8 u8;
        deserialize_u16 visit_u16 u16;
        deserialize_u32 visit_u32 u32;
        deserialize_u64 visit_u64 u64;
    }

    /// For values with a parser of their own that take text, a number or a list.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Finding> {
        let result = match self.node {
            Node::Text(raw) => visitor.visit_string(self.expand(raw)?),
            Node::Int(number) => match (u64::try_from(*number), i64::try_from(*number)) {
                (Ok(number), _) => visitor.visit_u64(number),
                (_, Ok(number)) => visitor.visit_i64(number),
                _ => return Err(self.fail(format!("{} is out of range", self.shown()))),
            },
            other => {
                struct Wanted<'v, V>(&'v V);
                impl<'de, V: Visitor<'de>> std::fmt::Display for Wanted<'_, V> {
                    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        self.0.expecting(f)
                    }
                }
                let wanted = Wanted(&visitor).to_string();
                let Node::List(items) = other else { return Err(self.expected(&wanted)) };
                let items = Items { items: items.iter().enumerate(), path: &self.path, environment: self.environment };
                // What is wrong with an item has the item's path; a visitor that takes no list has none to give.
                return visitor.visit_seq(items).map_err(|e| if e.path.is_some() { e } else { self.expected(&wanted) });
            }
        };
        result.map_err(|e| self.refine(e))
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Finding> {
        let value = match self.node {
            Node::Bool(value) => Some(*value),
            Node::Text(raw) => self.expand(raw)?.parse().ok(),
            _ => return Err(self.expected("true or false")),
        };
        match value {
            Some(value) => visitor.visit_bool(value),
            None => Err(self.fail(format!("{} is neither `true` nor `false`", self.shown()))),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Finding> {
        let text = self.text()?;
        visitor.visit_string(text).map_err(|e| self.refine(e))
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Finding> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Finding> {
        if matches!(self.node, Node::Null) { Err(self.expected("a value")) } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Finding> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Finding> {
        let Node::List(items) = self.node else { return Err(self.expected("a list, as in `[a, b]`")) };
        let items = Items { items: items.iter().enumerate(), path: &self.path, environment: self.environment };
        visitor.visit_seq(items).map_err(|e| e.or_at(&self.path))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Finding> {
        let Node::Map(entries) = self.node else { return Err(self.expected("a map, as in `{name: …}`")) };
        let entries =
            Entries { entries: entries.iter(), current: None, path: &self.path, environment: self.environment };
        visitor.visit_map(entries).map_err(|e| e.or_at(&self.path))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Finding> {
        let entries = if let Node::Map(entries) = self.node { entries.as_slice() } else { &[] };
        if let Some((key, _)) = entries.iter().find(|(key, _)| !fields.contains(&key.as_str())) {
            let path = self.path.key(key);
            let message = unbuilt::key(&path).unwrap_or_else(|| match nearest(key, fields.iter().copied()) {
                Some(near) => format!("unknown key; did you mean `{near}`?"),
                None => format!("unknown key; known here: {}", list_of(fields)),
            });
            return Err(Finding::at(&path, message));
        }
        self.deserialize_map(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Finding> {
        let name = self.text()?;
        if variants.contains(&name.as_str()) {
            return visitor.visit_enum(StringDeserializer::<Finding>::new(name));
        }
        Err(self.fail(unbuilt::value(&self.path, &name).unwrap_or_else(|| {
            let near = nearest(&name, variants.iter().copied()).map(|n| format!("; did you mean `{n}`?"));
            format!("{} is none of {}{}", self.shown(), list_of(variants), near.unwrap_or_default())
        })))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Finding> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        i128 u128 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct identifier
    }
}

struct Items<'a, 'p> {
    items: std::iter::Enumerate<std::slice::Iter<'a, Node>>,
    path: &'p KeyPath,
    environment: &'a Environment,
}

impl<'de> de::SeqAccess<'de> for Items<'de, '_> {
    type Error = Finding;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Finding> {
        let Some((index, node)) = self.items.next() else { return Ok(None) };
        let path = self.path.item(index);
        seed.deserialize(Reader { node, path: path.clone(), environment: self.environment })
            .map(Some)
            .map_err(|e| e.or_at(&path))
    }
}

struct Entries<'a, 'p> {
    entries: std::slice::Iter<'a, (String, Node)>,
    current: Option<&'a (String, Node)>,
    path: &'p KeyPath,
    environment: &'a Environment,
}

impl<'de> de::MapAccess<'de> for Entries<'de, '_> {
    type Error = Finding;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Finding> {
        self.current = self.entries.next();
        let Some((key, _)) = self.current else { return Ok(None) };
        seed.deserialize(KeyReader(key)).map(Some).map_err(|e| e.or_at(&self.path.key(key)))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Finding> {
        let Some((key, node)) = self.current.take() else { return Err(de::Error::custom("a value without a key")) };
        let path = self.path.key(key);
        seed.deserialize(Reader { node, path: path.clone(), environment: self.environment }).map_err(|e| e.or_at(&path))
    }
}

/// A key: text, or a number where the map is keyed by numbers.
struct KeyReader<'a>(&'a str);

impl<'de> Deserializer<'de> for KeyReader<'_> {
    type Error = Finding;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Finding> {
        let text: StrDeserializer<'_, Finding> = self.0.into_deserializer();
        text.deserialize_any(visitor)
    }

    /// Only the plain spelling, since `01` beside `1` would be a repeated key in disguise.
    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Finding> {
        match self.0.parse::<i32>() {
            Ok(number) if number.to_string() == self.0 => visitor.visit_i32(number),
            _ => Err(de::Error::custom("this key must be a whole number, such as `1`")),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}
