//! The reference page, made from the model: `docs/configuration.md`.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::diff::needs_restart;
use super::path::KeyPath;
use super::schema::model_schema;
use super::unbuilt::UNBUILT;
use super::{Environment, load_str};

const INTRO: &str = "\
<!-- Generated from proxy-user/src/config; `UPDATE_GENERATED=1 cargo test -p proxy-user --lib config::` writes it. -->
# Configuration

One YAML file describes everything. `turnout check FILE` says whether it is good and draws it; `turnout run --config
FILE` runs it. Examples to start from are in [`config/`](../config). An editor that knows YAML schemas completes and
checks keys when the file begins with

```yaml
# yaml-language-server: $schema=turnout.schema.json
```

with the path or URL of [`config/turnout.schema.json`](../config/turnout.schema.json).

The smallest file:

```yaml
";

const RULES: &str = "```

## Rules of the file

- Unknown keys and keys that are given twice are refused, at every level. So is a key with nothing behind it: leave it
  out to get its default.
- A file is one YAML document of at most 1 MiB. Anchors and aliases may repeat whole values; tags and merge keys (`<<`)
  are refused.
- Names of clusters and virtual clusters have 1 to 64 letters, digits, `-`, `_` or `.`.
- What is wrong is listed together, first for keys and types, then for what they mean; up to 20 problems, each with
  file, line, column, key and remedy:

```text
";

const VALUES: &str = "```

## Values

| type | form |
|---|---|
| duration | a whole number and a unit: `500ms`, `30s`, `5m`, `1h`, `2d`; at most `365d` |
| size | bytes: `512`, `512B`, or in powers of 1024: `64KiB`, `100MiB`, `1GiB`, `1TiB` |
| rate | a whole number a second: `100/s` |
| price | a number and a currency: `0.02 USD` |
| names | a name, or its beginning and `*`: `analytics-*` |
| address prefix | `192.0.2.0/24`, `2001:db8::/32`; an address alone is itself; no bits set behind the length |
| prefix length | leading bits: `/24` |
| `host:port` | `kafka-1.internal:9092`, `10.0.4.2:9092`; IPv6 in brackets: `[::1]:9092` |
| text | what YAML would take for a number or for true and false needs quotes |

Within any value, of whatever type:

| written | stands for |
|---|---|
| `${NAME}` | the environment variable; an error where it is not set |
| `${NAME:-default}` | the same, or the default where it is not set or empty; the default ends at the first `}` |
| `${file:PATH}` | the text of a file, without one line break at its end; at most 64 KiB. A relative path starts at the folder of the config file |
| `$$` | a plain `$` |

So `bootstrap_port: \"${PORT:-9092}\"` is a port. Keys are not interpolated. Values are put in after the YAML is read, so
whatever they hold stays one value. Variables and files are read again at each reload; a variable of a running process
does not change, so what shall change belongs in a file. Passwords, and whatever came from a variable or a file, are
never repeated in an error; passwords are masked in every output.

## Reload

`SIGHUP`, `turnout reload`, or `watch: true` apply a changed file as a difference, whole or not at all: a file with an
error changes nothing. The answer lists each key that changed. Keys marked *restart* below keep their old value until
the daemon is started anew, and the answer says so; all others are applied *live*.

## Keys
";

const UNBUILT_INTRO: &str = "
## Not built yet

These keys belong to parts that this version does not have. They are refused with their place, never ignored.

| key | for |
|---|---|
";

/// The smallest good file.
const MINIMAL: &str = "\
clusters:
  east:
    bootstrap: [\"10.0.4.2:9092\"]
virtual_clusters:
  orders:
    cluster: east
    bootstrap_port: 9092
    broker_ports: {first: 9200, count: 200}
";

/// A file with some mistakes, whose messages the page shows.
const MISTAKEN: &str = "\
clusters:
  east:
    bootstrap: [\"10.0.4.2\"]
virtual_clusters:
  orders:
    cluster: eats
    bootstrap_port: 9205
    broker_ports: {first: 9200, count: 200}
";

/// The page as it is committed in `docs/configuration.md`.
#[must_use]
pub fn reference_markdown() -> String {
    let mut page = format!("{INTRO}{MINIMAL}{RULES}");
    if let Err(error) = load_str(MISTAKEN, "turnout.yaml", &Environment::empty()) {
        // Writing to a String can't fail.
        let _ = writeln!(page, "{error}");
    }
    page.push_str(VALUES);
    if let Value::Object(schema) = model_schema() {
        section(&mut page, &KeyPath::root(), &schema);
    }
    page.push_str(UNBUILT_INTRO);
    for planned in UNBUILT {
        let key = planned.key.replace('*', "NAME");
        let value = planned.value.map(|v| format!(": {v}")).unwrap_or_default();
        let _ = writeln!(page, "| `{key}{value}` | {} |", planned.purpose);
    }
    page
}

/// A heading and a table for the keys of one map, then the sections of the maps inside.
fn section(page: &mut String, path: &KeyPath, schema: &Map<String, Value>) {
    let title = if path.segments().is_empty() { "The top".to_owned() } else { format!("`{path}`") };
    let _ = writeln!(page, "\n### {title}\n");
    if let (Some(about), false) = (schema.get("description").and_then(Value::as_str), path.segments().is_empty()) {
        let _ = writeln!(page, "{}\n", split_default(about).0);
    }
    let _ = writeln!(page, "| key | type | default | reload | meaning |\n|---|---|---|---|---|");
    let Some(keys) = schema.get("properties").and_then(Value::as_object) else { return };
    let required: Vec<_> = schema.get("required").and_then(Value::as_array).into_iter().flatten().collect();
    let mut sections = Vec::new();
    for (key, value) in keys {
        let Some(value) = value.as_object() else { continue };
        let key_path = path.key(key);
        let (about, default) = split_default(value.get("description").and_then(Value::as_str).unwrap_or_default());
        let inner = map_inside(&key_path, value);
        let default = match (value.get("default"), default) {
            _ if required.iter().any(|r| *r == key) => "required".to_owned(),
            (Some(_), _) if inner.is_some() => "as below".to_owned(),
            (Some(default), _) => format!("`{}`", plain(default)),
            (None, Some(prose)) => prose,
            (None, None) => "none".to_owned(),
        };
        let (kind, reload) = match &inner {
            Some((path, _)) => (format!("[map](#{})", anchor(path)), "as below"),
            None => (kind(value), if needs_restart(&key_path) { "restart" } else { "live" }),
        };
        let _ = writeln!(page, "| `{key}` | {kind} | {default} | {reload} | {about} |");
        sections.extend(inner);
    }
    for (path, schema) in sections {
        section(page, &path, schema);
    }
}

/// The map with keys of its own that a key holds, directly or under names.
fn map_inside<'s>(path: &KeyPath, schema: &'s Map<String, Value>) -> Option<(KeyPath, &'s Map<String, Value>)> {
    if schema.contains_key("properties") {
        return Some((path.clone(), schema));
    }
    let named = schema.get("additionalProperties")?.as_object()?;
    named.contains_key("properties").then(|| (path.key("NAME"), named))
}

/// The type of a value, with its unit and range.
fn kind(schema: &Map<String, Value>) -> String {
    let text = |key: &str| schema.get(key).and_then(Value::as_str);
    if let Some(title) = text("title") {
        return title.to_owned();
    }
    if let Some(choices) = schema.get("oneOf").and_then(Value::as_array) {
        let names: Vec<_> = choices.iter().filter_map(|c| c["const"].as_str()).map(|c| format!("`{c}`")).collect();
        return names.join(", ");
    }
    match (text("type"), text("format")) {
        (Some("boolean"), _) => "`true` or `false`".to_owned(),
        (Some("string"), Some("ip")) => "IP address".to_owned(),
        (Some("string"), _) => "text".to_owned(),
        (Some("integer"), _) => {
            let max = schema.get("maximum").map(|m| format!(" to {m}")).unwrap_or_default();
            format!("whole number from {}{max}", schema.get("minimum").unwrap_or(&Value::from(0)))
        }
        (Some("array"), _) => format!("list of {}", schema["items"].as_object().map(kind).unwrap_or_default()),
        (Some("object"), _) => {
            match schema.get("patternProperties").and_then(|by_key| by_key.as_object()?.values().next()) {
                Some(value) => {
                    let value = value.as_object().map(kind).unwrap_or_default();
                    format!("map from node id to {value}")
                }
                None => "map from text to text".to_owned(),
            }
        }
        _ => "value".to_owned(),
    }
}

/// Takes `; default: the host's.` out of a doc comment: what a default is that has no value.
fn split_default(about: &str) -> (String, Option<String>) {
    let Some((before, after)) = about.split_once("; default: ") else { return (about.to_owned(), None) };
    let (default, rest) = after.split_once(". ").unwrap_or((after.trim_end_matches('.'), ""));
    (format!("{before}. {rest}").trim_end().to_owned(), Some(default.to_owned()))
}

/// A default value as a file would have it.
fn plain(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
        single => single.as_str().map_or_else(|| single.to_string(), str::to_owned),
    }
}

/// What a Markdown renderer makes of the heading of a path.
fn anchor(path: &KeyPath) -> String {
    path.to_string().to_lowercase().replace('.', "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::generated::assert_committed;

    #[test]
    fn the_committed_page_is_the_generated_one() {
        assert_committed("docs/configuration.md", &reference_markdown());
    }

    #[test]
    fn the_file_it_shows_first_is_good() {
        assert!(load_str(MINIMAL, "turnout.yaml", &Environment::empty()).is_ok());
    }

    #[test]
    fn rows_have_type_default_reload_and_meaning() {
        let page = reference_markdown();
        for row in [
            "| `idle` | duration | `9m` | live |",
            "| `frame` | size | `100MiB` | live |",
            "| `workers` | whole number from 1 to 1024 | one for each processor this process may use | live |",
            "| `http` | IP address and port, or `off` | `127.0.0.1:9090` | live |",
            "| `bootstrap_port` | whole number from 1 to 65535 | required | live |",
            "| `listen` | list of IP address | `[\"0.0.0.0\", \"::\"]` | live |",
            "| `ca` | text | the host's | live | PEM file with the authorities to trust. |",
            "| `limits` | [map](#virtual_clustersnamelimits) | as below | as below |",
            "| `rate` | rate | required | live |",
            "| `burst` | whole number from 1 to 1000000 | twice the rate | live |",
            "| `per` | prefix length | `/32` | live |",
            "| `deny` | list of address prefix | `[]` | live |",
            "| `interfaces` | `auto`, or list of names | `auto` | live |",
            "| `pin` | text | `/sys/fs/bpf/turnout` | restart |",
            "| `mirror_buffer` | size | `32MiB` | restart |",
            "| `virtual_clusters.NAME.taps` | records of what was read |",
        ] {
            assert!(page.contains(row), "{row}\n{page}");
        }
    }
}
