//! The JSON schema of a config file, made from the model, for editors.

use schemars::Schema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::model::Config;

/// The schema as it is committed in `config/turnout.schema.json`. An editor finds it by a first line such as
/// `# yaml-language-server: $schema=turnout.schema.json`.
#[must_use]
pub fn schema_json() -> String {
    let mut schema = model_schema();
    interpolatable(&mut schema);
    schema["title"] = json!("turnout configuration");
    // A schema is a JSON value, whose serialisation can't fail.
    let mut text = serde_json::to_string_pretty(&schema).unwrap_or_default();
    text.push('\n');
    text
}

/// The schema of the model alone, without references: what the reference page is made of.
pub(super) fn model_schema() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|s| s.inline_subschemas = true);
    let schema: Schema = settings.into_generator().into_root_schema_for::<Config>();
    let mut schema = Value::from(schema);
    tidy(&mut schema);
    schema
}

/// The schemas directly inside of one.
fn inner(schema: &mut Map<String, Value>) -> impl Iterator<Item = &mut Value> {
    schema.iter_mut().flat_map(|(key, value)| -> Vec<&mut Value> {
        match (key.as_str(), value) {
            ("properties" | "patternProperties", Value::Object(map)) => map.values_mut().collect(),
            ("items" | "additionalProperties", value) => vec![value],
            ("oneOf" | "anyOf", Value::Array(schemas)) => schemas.iter_mut().collect(),
            _ => Vec::new(),
        }
    })
}

/// Takes out what the derived schema has and files don't: `null` (a key is left out instead) and the line breaks of
/// doc comments.
fn tidy(schema: &mut Value) {
    let Value::Object(schema) = schema else { return };
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|t| t != "null");
        if let [only] = types.as_slice() {
            schema["type"] = only.clone();
        }
    }
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = text.replace('\n', " ");
    }
    inner(schema).for_each(tidy);
}

/// Lets every value that is more than plain text also be a text with `${…}` in it.
fn interpolatable(schema: &mut Value) {
    let Value::Object(map) = schema else { return };
    let narrow = ["pattern", "format", "oneOf"].iter().any(|key| map.contains_key(*key))
        || map.get("type").is_some_and(|t| t == "integer" || t == "boolean");
    if !narrow {
        inner(map).for_each(interpolatable);
        return;
    }
    let mut outer = Map::new();
    for key in ["title", "description", "default"] {
        if let Some(value) = map.shift_remove(key) {
            outer.insert(key.to_owned(), value);
        }
    }
    outer.insert("anyOf".to_owned(), json!([map, { "type": "string", "pattern": r"\$\{" }]));
    *schema = Value::Object(outer);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::generated::assert_committed;

    #[test]
    fn the_committed_schema_is_the_generated_one() {
        assert_committed("config/turnout.schema.json", &schema_json());
    }

    #[test]
    fn no_key_may_be_null_and_every_narrow_value_may_be_interpolated() {
        let schema: Value = serde_json::from_str(&schema_json()).expect("JSON");
        assert!(!schema_json().contains("\"null\""));
        let virtual_cluster = &schema["properties"]["virtual_clusters"]["additionalProperties"]["properties"];
        let port = &virtual_cluster["bootstrap_port"];
        assert_eq!(port["anyOf"][0]["maximum"], 65535);
        assert_eq!(port["anyOf"][1]["pattern"], r"\$\{");
        assert_eq!(virtual_cluster["limits"]["properties"]["idle"]["default"], "9m");
        assert_eq!(virtual_cluster["listen"]["items"]["anyOf"][0]["format"], "ip");
    }
}
