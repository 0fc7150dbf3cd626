//! Keys of the contract whose part is not built yet. They are refused, never ignored: a file that asks for something
//! must not seem to get it.

use super::path::KeyPath;

/// A key, or one value of a key, that is planned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unbuilt {
    /// Path; `*` is any name.
    pub(super) key: &'static str,
    /// Only this value; `None`: the key whatever it holds.
    pub(super) value: Option<&'static str>,
    /// What it will be for.
    pub(super) purpose: &'static str,
}

/// All of them.
pub(super) const UNBUILT: [Unbuilt; 2] = [
    Unbuilt { key: "virtual_clusters.*.branches", value: None, purpose: "copies of produce traffic" },
    Unbuilt { key: "virtual_clusters.*.taps", value: None, purpose: "records of what was read" },
];

/// The message for a key that is planned; `None` for one that is simply unknown.
pub(super) fn key(path: &KeyPath) -> Option<String> {
    let found = UNBUILT.iter().find(|u| u.value.is_none() && path.matches(u.key))?;
    Some(format!("not built yet in this version ({}); take the key out", found.purpose))
}

/// The message for a value that is planned.
pub(super) fn value(path: &KeyPath, value: &str) -> Option<String> {
    let found = UNBUILT.iter().find(|u| u.value == Some(value) && path.matches(u.key))?;
    Some(format!("`{value}` is not built yet in this version ({})", found.purpose))
}
