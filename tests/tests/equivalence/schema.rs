//! Kafka's own message schemas, as the jar of the cluster under test carries them (`common/message/*.json`).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use harness::kafka::{Artifacts, VERSION};
use harness::{paths, process};
use serde_json::Value;

/// `none`, `3`, `1-4` or `2+`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Versions {
    pub(crate) min: i16,
    pub(crate) max: i16,
}

impl Versions {
    const NONE: Self = Self { min: 1, max: 0 };

    pub(crate) fn contains(self, version: i16) -> bool {
        self.min <= version && version <= self.max
    }

    fn parse(text: &str) -> Result<Self> {
        let number = |text: &str| text.parse::<i16>().with_context(|| format!("versions {text}"));
        Ok(match text {
            "none" => Self::NONE,
            _ => match (text.strip_suffix('+'), text.split_once('-')) {
                (Some(min), _) => Self { min: number(min)?, max: i16::MAX },
                (None, Some((min, max))) => Self { min: number(min)?, max: number(max)? },
                (None, None) => Self { min: number(text)?, max: number(text)? },
            },
        })
    }
}

/// What a field holds.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Bool,
    Int8,
    Int16,
    Uint16,
    Int32,
    Int64,
    Float64,
    Uuid,
    String,
    /// `bytes` and `records`.
    Bytes,
    Struct(Vec<Field>),
    Array(Box<Kind>),
}

/// A field of a message.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    /// As in the schema, with a small first letter.
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) versions: Versions,
    pub(crate) nullable: Versions,
    /// Tag, and the versions in which the field is tagged.
    pub(crate) tag: Option<(u32, Versions)>,
    /// As the schema spells it.
    pub(crate) default: Option<String>,
}

/// One request or answer.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) versions: Versions,
    pub(crate) flexible: Versions,
    pub(crate) fields: Vec<Field>,
}

/// Request and answer of an API.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    pub(crate) name: String,
    pub(crate) request: Message,
    pub(crate) response: Message,
}

/// All APIs of the release, by key.
///
/// # Errors
/// The jar can't be read, or a schema has something unknown in it.
pub(crate) fn load() -> Result<BTreeMap<i16, Api>> {
    let jar = Artifacts::prepare()?.libs().join(format!("kafka-clients-{VERSION}.jar"));
    let dir = paths::build().join("kafka").join(VERSION).join("schemas");
    paths::once(&dir, VERSION, |draft| {
        let mut unpack = Command::new("jar");
        unpack.arg("xf").arg(&jar).arg("common/message").current_dir(draft);
        process::run(unpack, Duration::from_secs(60)).map(drop).context("unpacking the schemas with the JDK's `jar`")
    })?;
    let mut requests = BTreeMap::new();
    let mut responses = BTreeMap::new();
    for entry in fs::read_dir(dir.join("common/message"))? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let json = read(&path).with_context(|| path.display().to_string())?;
        let into = match json["type"].as_str() {
            Some("request") => &mut requests,
            Some("response") => &mut responses,
            _ => continue,
        };
        let key = i16::try_from(json["apiKey"].as_i64().context("apiKey")?)?;
        let name = json["name"].as_str().context("name")?.trim_end_matches("Request").to_owned();
        into.insert(key, (name, message(&json).with_context(|| path.display().to_string())?));
    }
    let pair = |(key, (name, request))| {
        let (_, response) = responses.remove(&key).with_context(|| format!("no answer to {name}"))?;
        Ok((key, Api { name, request, response }))
    };
    requests.into_iter().map(pair).collect()
}

/// JSON with whole-line comments.
fn read(path: &Path) -> Result<Value> {
    let text = fs::read_to_string(path)?;
    let lines: Vec<_> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    Ok(serde_json::from_str(&lines.join("\n"))?)
}

fn message(json: &Value) -> Result<Message> {
    let mut common = BTreeMap::new();
    for shared in json["commonStructs"].as_array().into_iter().flatten() {
        common.insert(shared["name"].as_str().context("a struct's name")?, &shared["fields"]);
    }
    Ok(Message {
        versions: versions(json, "validVersions")?.unwrap_or(Versions::NONE),
        flexible: versions(json, "flexibleVersions")?.unwrap_or(Versions::NONE),
        fields: fields(&json["fields"], &common)?,
    })
}

fn versions(json: &Value, key: &str) -> Result<Option<Versions>> {
    json[key].as_str().map(Versions::parse).transpose()
}

fn fields(json: &Value, common: &BTreeMap<&str, &Value>) -> Result<Vec<Field>> {
    json.as_array().into_iter().flatten().map(|field| self::field(field, common)).collect()
}

fn field(json: &Value, common: &BTreeMap<&str, &Value>) -> Result<Field> {
    let name = json["name"].as_str().context("a field's name")?;
    ensure!(json["flexibleVersions"].is_null(), "{name} has flexible versions of its own");
    let default = match &json["default"] {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    };
    let tag = match (json["tag"].as_u64(), versions(json, "taggedVersions")?) {
        (Some(tag), Some(versions)) => Some((u32::try_from(tag)?, versions)),
        _ => None,
    };
    let mut letters = name.chars();
    let name: String = letters.next().iter().flat_map(|c| c.to_lowercase()).chain(letters).collect();
    Ok(Field {
        kind: kind(json["type"].as_str().context("a type")?, json, common)?,
        name,
        versions: versions(json, "versions")?.context("versions")?,
        nullable: versions(json, "nullableVersions")?.unwrap_or(Versions::NONE),
        tag,
        default,
    })
}

fn kind(name: &str, json: &Value, common: &BTreeMap<&str, &Value>) -> Result<Kind> {
    Ok(match name {
        "bool" => Kind::Bool,
        "int8" => Kind::Int8,
        "int16" => Kind::Int16,
        "uint16" => Kind::Uint16,
        "int32" => Kind::Int32,
        "int64" => Kind::Int64,
        "float64" => Kind::Float64,
        "uuid" => Kind::Uuid,
        "string" => Kind::String,
        "bytes" | "records" => Kind::Bytes,
        _ => match name.strip_prefix("[]") {
            Some(of) => Kind::Array(Box::new(kind(of, json, common)?)),
            None if json["fields"].is_array() => Kind::Struct(fields(&json["fields"], common)?),
            None => match common.get(name) {
                Some(shared) => Kind::Struct(fields(shared, common)?),
                None => bail!("unknown type {name}"),
            },
        },
    })
}
