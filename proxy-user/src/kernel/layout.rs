//! The fingerprint of the map layout: what must be equal before a new daemon may use the maps of an older one.
//!
//! It is made from the object's map definitions and from `proxy-common`'s description of keys and values, so nobody has
//! to remember to change a number.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use aya_obj::{EbpfSectionKind, Object};
use proxy_common::tables::{Count, LAYOUTS, Layout, Reason};

use super::EdgeError;

/// A map as the object defines it, and the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MapDefinition {
    /// Number of the kind of map.
    pub(super) kind: u32,
    /// Bytes of a key.
    pub(super) key_size: u32,
    /// Bytes of a value.
    pub(super) value_size: u32,
    /// Entries it has room for.
    pub(super) max_entries: u32,
    /// Flags of its creation.
    pub(super) flags: u32,
}

/// The maps that programs and daemon share, by name.
pub(super) type Definitions = BTreeMap<String, MapDefinition>;

/// Reads the map definitions of an object. Global data isn't among them: it belongs to one load.
pub(super) fn definitions(object: &[u8]) -> Result<Definitions, EdgeError> {
    let object = Object::parse(object).map_err(|e| EdgeError::Object(e.to_string()))?;
    let shared = |kind| matches!(kind, EbpfSectionKind::Maps | EbpfSectionKind::BtfMaps);
    Ok(object
        .maps
        .iter()
        .filter(|(_, map)| shared(map.section_kind()))
        .map(|(name, map)| {
            let definition = MapDefinition {
                kind: map.map_type(),
                key_size: map.key_size(),
                value_size: map.value_size(),
                max_entries: map.max_entries(),
                flags: map.map_flags(),
            };
            (name.clone(), definition)
        })
        .collect())
}

/// Sixteen hexadecimal digits.
pub(super) fn fingerprint(definitions: &Definitions) -> String {
    format!("{:016x}", fnv1a(describe(definitions, LAYOUTS).as_bytes()))
}

fn describe(definitions: &Definitions, layouts: &[Layout]) -> String {
    let mut text = String::new();
    for (name, definition) in definitions {
        let _ = writeln!(text, "map {name} {definition:?}");
    }
    for layout in layouts {
        let _ = writeln!(text, "{layout:?}");
    }
    // What the numbers in those layouts mean.
    for reason in Reason::ALL {
        let _ = writeln!(text, "{reason:?} {}", Count::Refused(reason).index());
    }
    let _ = writeln!(text, "{} {}", Count::Admitted.index(), Count::Steered.index());
    text
}

/// The hash of Fowler, Noll and Vo: no adversary chooses layouts, so spread is all that is asked of it.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &b| (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one() -> Definitions {
        let ports = MapDefinition { kind: 1, key_size: 24, value_size: 4, max_entries: 10, flags: 1 };
        [("PORTS".to_owned(), ports)].into()
    }

    #[test]
    fn any_change_of_a_map_changes_the_fingerprint() {
        let known = fingerprint(&one());
        assert_eq!(known, fingerprint(&one()));
        type Change = fn(&mut MapDefinition);
        let changes: [Change; 5] =
            [|m| m.kind += 1, |m| m.key_size += 4, |m| m.value_size += 4, |m| m.max_entries += 1, |m| m.flags = 0];
        for change in changes {
            let mut other = one();
            change(other.get_mut("PORTS").unwrap());
            assert_ne!(fingerprint(&other), known, "{other:?}");
        }
    }

    #[test]
    fn a_field_that_moves_within_the_same_size_changes_it_too() {
        const NOW: [Layout; 1] = [Layout { name: "A", size: 8, fields: &[("a", "u32", 0), ("b", "u32", 4)] }];
        const THEN: [Layout; 1] = [Layout { name: "A", size: 8, fields: &[("b", "u32", 0), ("a", "u32", 4)] }];
        assert_ne!(describe(&one(), &NOW), describe(&one(), &THEN));
    }

    #[test]
    fn the_embedded_object_defines_the_tables() {
        let Some(object) = crate::kernel::object() else { return };
        let definitions = definitions(object).unwrap();
        for name in super::super::tables::NAMES {
            assert!(definitions.contains_key(name), "{name} of {:?}", definitions.keys());
        }
    }
}
