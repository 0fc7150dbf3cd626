//! Every example in `config/` is a good file without warnings.

use std::path::{Path, PathBuf};

use super::units::{Size, Span};
use super::*;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../config")
}

/// What the examples take from outside.
fn environment() -> Environment {
    Environment::empty()
        .with_variable("EAST_PASSWORD", "open sesame")
        .with_file("/run/secrets/turnout-east", "open sesame\n")
}

fn example(name: &str) -> (Config, Vec<Problem>) {
    let text = std::fs::read_to_string(folder().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    parse(&text, Path::new(name), &environment()).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn every_example_is_good_names_the_schema_and_is_not_doubtful() {
    let files = std::fs::read_dir(folder()).expect("config/").map(|f| f.expect("an entry").file_name());
    let names: Vec<String> = files.map(|n| n.to_string_lossy().into_owned()).filter(|n| n.ends_with(".yaml")).collect();
    for expected in
        ["minimal.yaml", "loopback-demo.yaml", "production.yaml", "two-clusters.yaml", "edge.yaml", "racks.yaml"]
    {
        assert!(names.iter().any(|n| n == expected), "{expected} is missing");
    }
    for name in names {
        let (config, warnings) = example(&name);
        assert_eq!(warnings, [], "{name}");
        assert!(!tree(&config).contains("sesame"), "{name}");
        let text = std::fs::read_to_string(folder().join(&name)).expect("readable");
        assert!(text.starts_with("# yaml-language-server: $schema=turnout.schema.json\n"), "{name}");
    }
}

#[test]
fn the_production_example_shows_every_key() {
    let (config, _) = example("production.yaml");
    let shown = serde_json::to_value(&config).expect("serialised");
    let text = std::fs::read_to_string(folder().join("production.yaml")).expect("readable");
    fn keys(value: &serde_json::Value, found: &mut Vec<String>) {
        for (key, value) in value.as_object().into_iter().flatten() {
            found.push(key.clone());
            keys(value, found);
        }
    }
    let mut found = Vec::new();
    keys(&shown, &mut found);
    for key in found {
        assert!(text.contains(&format!("{key}:")) || text.contains(&format!("\"{key}\":")), "{key} is not shown");
    }
    assert_eq!(config.clusters["east"].sasl.as_ref().map(|s| s.password.as_str()), Some("open sesame"));
}

#[test]
fn the_values_that_the_production_example_calls_defaults_are() {
    let (config, _) = example("production.yaml");
    let limits = Limits { connections_per_source: None, ..config.virtual_clusters["orders"].limits.clone() };
    assert_eq!(limits, Limits::default());
}

#[test]
fn an_alias_repeats_a_value_in_the_two_clusters_example() {
    let (config, _) = example("two-clusters.yaml");
    let [audit, orders] = ["audit", "orders"].map(|name| &config.virtual_clusters[name].limits);
    assert_eq!(audit, orders);
    assert_eq!((audit.frame, audit.idle), (Size::mib(50), Span::mins(5)));
}

#[test]
fn what_a_config_serialises_to_loads_as_the_same_config() {
    for name in
        ["minimal.yaml", "loopback-demo.yaml", "production.yaml", "two-clusters.yaml", "edge.yaml", "racks.yaml"]
    {
        let (mut config, _) = example(name);
        // The mask stands in for the password, so that is all that differs.
        for sasl in config.clusters.values_mut().filter_map(|c| c.sasl.as_mut()) {
            sasl.password = MASK.to_owned();
        }
        let json = serde_json::to_string(&config).expect("serialised");
        let again = load_str(&json, name, &Environment::empty()).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(again, config, "{name}");
        assert!(diff(&config, &again).is_empty(), "{name}");
    }
}

proptest::proptest! {
    /// A file in any state of being edited is accepted or refused: no panic, never a secret, always a place.
    #[test]
    fn a_damaged_example_is_accepted_or_refused_with_a_place(
        edits in proptest::collection::vec((proptest::arbitrary::any::<proptest::sample::Index>(), 0usize..12, "\\PC{0,3}|[\\[\\]{}:,&*!|>'\"%@`#$\n\t ?-]{1,3}"), 1..6),
    ) {
        let text = std::fs::read_to_string(folder().join("production.yaml")).expect("readable");
        let mut text: Vec<char> = text.chars().collect();
        for (at, cut, insert) in edits {
            let at = at.index(text.len());
            let end = (at + cut).min(text.len());
            text.splice(at..end, insert.chars());
            if text.is_empty() {
                break;
            }
        }
        let text: String = text.into_iter().collect();
        if let Err(error) = load_str(&text, "damaged.yaml", &environment()) {
            proptest::prop_assert!(!error.to_string().contains("sesame"));
            proptest::prop_assert!(!error.problems.is_empty());
            proptest::prop_assert!(error.problems.iter().all(|p| p.position.is_some()));
        }
    }
}
