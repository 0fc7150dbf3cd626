//! The part of the model that is about the edge: the kernel's programs, and who may connect.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::de::{self, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use super::prefix::{Cidr, PrefixLength};
use super::units::{PerSecond, Size};

/// The kernel path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FastPath {
    /// `off`: no kernel program at all; `auto`: what the host can, the rest in the daemon; `required`: the start fails
    /// if a program can't be loaded or attached.
    pub mode: FastPathMode,
    /// Network interfaces that admission runs on before there is a socket: `auto` for every one that can carry clients
    /// (Ethernet, up, not loopback), or their names; an empty list for steering
    /// alone. Connections that come in elsewhere are checked by the daemon.
    pub interfaces: Interfaces,
    /// Folder on a bpffs in which programs and maps are pinned. It is mounted if it isn't and the daemon may.
    pub pin: PathBuf,
    /// Memory for copies of frames, of the kernel's until they are read and as much again of the daemon's until they are
    /// whole; 64KiB to 1GiB. Taken only where a virtual cluster has frames copied. The kernel's part is rounded up to a
    /// power of two.
    pub mirror_buffer: Size,
}

impl Default for FastPath {
    fn default() -> Self {
        Self {
            mode: FastPathMode::default(),
            interfaces: Interfaces::default(),
            pin: PathBuf::from("/sys/fs/bpf/turnout"),
            mirror_buffer: Size::mib(32),
        }
    }
}

/// How much of the kernel path to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FastPathMode {
    /// No kernel program at all.
    Off,
    /// What the host can, the rest in the daemon.
    #[default]
    Auto,
    /// The start fails without it.
    Required,
}

impl std::fmt::Display for FastPathMode {
    /// As in a file.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Auto => "auto",
            Self::Required => "required",
        })
    }
}

/// Which network interfaces.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Interfaces {
    /// Every one that can carry clients.
    #[default]
    Auto,
    /// These.
    Named(Vec<String>),
}

impl Interfaces {
    /// The names; `None`: every one that can carry clients.
    #[must_use]
    pub fn names(&self) -> Option<&[String]> {
        match self {
            Self::Auto => None,
            Self::Named(names) => Some(names),
        }
    }
}

impl Serialize for Interfaces {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Named(names) => names.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Interfaces {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AutoOrNames;
        impl<'de> Visitor<'de> for AutoOrNames {
            type Value = Interfaces;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("`auto`, or a list of interface names such as `[eth0]`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Interfaces, E> {
                match text {
                    "auto" => Ok(Interfaces::Auto),
                    _ => Err(E::custom("not `auto`; write names as a list, such as `[eth0]`")),
                }
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut names: A) -> Result<Interfaces, A::Error> {
                let mut all = Vec::new();
                while let Some(name) = names.next_element()? {
                    all.push(name);
                }
                Ok(Interfaces::Named(all))
            }
        }
        deserializer.deserialize_any(AutoOrNames)
    }
}

impl JsonSchema for Interfaces {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Interfaces".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "title": "`auto`, or list of names", "type": ["string", "array"], "items": { "type": "string" }
        })
    }
}

/// Who may connect. Everyone, unless something is said here.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Admission {
    /// Prefixes that are refused, whatever `allow` says. A reload also ends the connections that are open from there.
    pub deny: Vec<Cidr>,
    /// Prefixes that new connections may come from. Empty: everyone who isn't denied.
    pub allow: Vec<Cidr>,
    /// How many new connections a source may open; default: no bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new_connections: Option<NewConnections>,
}

/// A bound of new connections for each source: a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewConnections {
    /// IPv4 addresses that agree in so many leading bits are one source.
    #[serde(default = "NewConnections::per")]
    pub per: PrefixLength,
    /// IPv6 addresses that agree in so many leading bits are one source.
    #[serde(default = "NewConnections::per_v6")]
    pub per_v6: PrefixLength,
    /// New connections of one source, in the long run; at most 1000000/s.
    pub rate: PerSecond,
    /// New connections that a source may open at once, 1 to 1000000; default: twice the rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub burst: Option<u32>,
}

impl NewConnections {
    /// Default of `per`: each address.
    #[must_use]
    pub const fn per() -> PrefixLength {
        PrefixLength(32)
    }

    /// Default of `per_v6`: what one site is given at least.
    #[must_use]
    pub const fn per_v6() -> PrefixLength {
        PrefixLength(64)
    }

    /// `burst`, or its default.
    #[must_use]
    pub fn burst(&self) -> u32 {
        self.burst.unwrap_or(self.rate.0.saturating_mul(2))
    }
}
