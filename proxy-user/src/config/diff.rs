//! What differs between two configs, key by key, and what of it needs a restart.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::model::{Config, MASK, Named, Sasl};
use super::path::{KeyPath, Segment};

/// Keys that only a restart applies: what is pinned stays where it is for as long as something runs on it. Threads,
/// ports and the operators' sockets all move in a reload.
pub const RESTART_KEYS: [&str; 2] = ["fast_path.pin", "fast_path.mirror_buffer"];

/// Whether a reload leaves this key as it was at the start.
#[must_use]
pub fn needs_restart(key: &KeyPath) -> bool {
    RESTART_KEYS.iter().any(|pattern| key.matches(pattern))
}

/// One key whose value differs. Values are as `Display` and messages may show them: secrets are masked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyChange {
    /// The key, from the top of the file.
    pub key: KeyPath,
    /// What it was; `None`: it was not set, and there is no default.
    pub old: Option<String>,
    /// What it is.
    pub new: Option<String>,
    /// A reload does not apply it.
    pub needs_restart: bool,
}

impl fmt::Display for KeyChange {
    /// `virtual_clusters.orders.limits.frame: 100MiB → 50MiB`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, old, new, needs_restart: _ } = self;
        match (old, new) {
            (Some(old), Some(new)) if old == new => write!(f, "{key}: changed"),
            (Some(old), Some(new)) => write!(f, "{key}: {old} → {new}"),
            (Some(old), None) => write!(f, "{key}: {old} → not set"),
            (None, Some(new)) => write!(f, "{key}: not set → {new}"),
            (None, None) => write!(f, "{key}: changed"),
        }
    }
}

/// What happened to one cluster or virtual cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// It is new.
    Added,
    /// It is gone.
    Removed,
    /// These keys of it differ, at least one, in the order of their paths.
    Changed(Vec<KeyChange>),
}

/// The difference between two configs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ConfigDiff {
    /// Clusters that differ, by name.
    pub clusters: BTreeMap<String, Change>,
    /// Virtual clusters that differ, by name. One whose cluster changed is not in it for that reason alone.
    pub virtual_clusters: BTreeMap<String, Change>,
    /// Every other key that differs: `fast_path`, `admission`, `admin`, `log`, `workers`, `watch`.
    pub settings: Vec<KeyChange>,
}

impl ConfigDiff {
    /// Nothing differs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { clusters, virtual_clusters, settings } = self;
        clusters.is_empty() && virtual_clusters.is_empty() && settings.is_empty()
    }

    /// Every key that differs, those of added and removed clusters aside.
    pub fn keys(&self) -> impl Iterator<Item = &KeyChange> {
        let named = self.clusters.values().chain(self.virtual_clusters.values());
        let changed = named.filter_map(|c| match c {
            Change::Changed(keys) => Some(keys),
            Change::Added | Change::Removed => None,
        });
        changed.flatten().chain(&self.settings)
    }

    /// One sentence for each thing that a reload applies.
    #[must_use]
    pub fn live(&self) -> Vec<String> {
        let mut sentences = Vec::new();
        for (section, changes) in [("clusters", &self.clusters), ("virtual_clusters", &self.virtual_clusters)] {
            for (name, change) in changes {
                let path = KeyPath::of(&[section, name.as_str()]);
                match change {
                    Change::Added => sentences.push(format!("{path}: added")),
                    Change::Removed => sentences.push(format!("{path}: removed")),
                    Change::Changed(keys) => sentences.extend(keys.iter().map(ToString::to_string)),
                }
            }
        }
        sentences.extend(self.settings.iter().filter(|c| !c.needs_restart).map(ToString::to_string));
        sentences
    }

    /// One sentence for each key that waits for a restart.
    #[must_use]
    pub fn after_restart(&self) -> Vec<String> {
        self.settings.iter().filter(|c| c.needs_restart).map(ToString::to_string).collect()
    }
}

/// Compares two configs.
#[must_use]
pub fn diff(old: &Config, new: &Config) -> ConfigDiff {
    let mut diff = ConfigDiff {
        clusters: come_and_gone(&old.clusters, &new.clusters),
        virtual_clusters: come_and_gone(&old.virtual_clusters, &new.virtual_clusters),
        settings: Vec::new(),
    };
    for change in changes(&leaves(old), &leaves(new)) {
        let named = match change.key.segments() {
            [Segment::Key(section), Segment::Key(name), ..] if section == "clusters" => {
                Some((&mut diff.clusters, name.clone()))
            }
            [Segment::Key(section), Segment::Key(name), ..] if section == "virtual_clusters" => {
                Some((&mut diff.virtual_clusters, name.clone()))
            }
            _ => None,
        };
        match named {
            None => diff.settings.push(change),
            Some((changes, name)) => {
                if let Change::Changed(keys) = changes.entry(name).or_insert(Change::Changed(Vec::new())) {
                    keys.push(change);
                }
            }
        }
    }
    diff
}

/// The names that only one side has.
fn come_and_gone<T>(old: &Named<T>, new: &Named<T>) -> BTreeMap<String, Change> {
    let gone = old.keys().filter(|name| !new.contains_key(*name)).map(|name| (name.clone(), Change::Removed));
    let come = new.keys().filter(|name| !old.contains_key(*name)).map(|name| (name.clone(), Change::Added));
    gone.chain(come).collect()
}

/// The value of a key. A list is one value, and so is a map that is there and empty.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Leaf {
    shown: String,
    /// What is behind a mask, to compare.
    secret: Option<String>,
}

/// What a map shows that is there and has no key.
const EMPTY_MAP: &str = "{}";

/// Every key of a config with its value, defaults included.
fn leaves(config: &Config) -> BTreeMap<KeyPath, Leaf> {
    let mut leaves = BTreeMap::new();
    // Serialisation fails only for maps with odd keys and for a full disk; a config has neither.
    flatten(KeyPath::root(), &serde_json::to_value(config).unwrap_or_default(), &mut leaves);
    for (name, cluster) in &config.clusters {
        // Destructured so that another secret can't be forgotten here.
        if let Some(Sasl { mechanism: _, username: _, password }) = &cluster.sasl {
            let leaf = Leaf { shown: MASK.to_owned(), secret: Some(password.clone()) };
            leaves.insert(KeyPath::of(&["clusters", name.as_str(), "sasl", "password"]), leaf);
        }
    }
    leaves
}

fn flatten(path: KeyPath, value: &Value, leaves: &mut BTreeMap<KeyPath, Leaf>) {
    let shown = match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                flatten(path.key(key), value, leaves);
            }
            return;
        }
        Value::Object(_) => EMPTY_MAP.to_owned(),
        Value::Array(items) => format!("[{}]", items.iter().map(shown).collect::<Vec<_>>().join(", ")),
        single => shown(single),
    };
    leaves.insert(path, Leaf { shown, secret: None });
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn changes(old: &BTreeMap<KeyPath, Leaf>, new: &BTreeMap<KeyPath, Leaf>) -> Vec<KeyChange> {
    let keys: BTreeSet<&KeyPath> = old.keys().chain(new.keys()).collect();
    keys.into_iter()
        .filter(|key| old.get(*key) != new.get(*key))
        // An empty map that got keys, or lost all, is told by these keys.
        .filter(|key| !(filled(key, old, new) || filled(key, new, old)))
        .map(|key| KeyChange {
            key: key.clone(),
            old: old.get(key).map(|leaf| leaf.shown.clone()),
            new: new.get(key).map(|leaf| leaf.shown.clone()),
            needs_restart: needs_restart(key),
        })
        .collect()
}

/// Whether a key is an empty map on one side and has keys on the other.
fn filled(key: &KeyPath, empty: &BTreeMap<KeyPath, Leaf>, other: &BTreeMap<KeyPath, Leaf>) -> bool {
    let is_empty_map = empty.get(key).is_some_and(|leaf| leaf.shown == EMPTY_MAP);
    is_empty_map
        && other.range(key..).nth(usize::from(other.contains_key(key))).is_some_and(|(k, _)| k.starts_with(key))
}

#[cfg(test)]
#[path = "diff_tests.rs"]
mod tests;
