//! Address prefixes as a file writes them: `192.0.2.0/24`, `/64`.
//!
//! Both parse from the form they print, so what a message shows can be pasted back into a file.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use proxy_common::admission::{Prefix, masked};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

use super::units::UnitError;

/// An address prefix as it is written. Bits behind the length may be set until it was validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr {
    address: IpAddr,
    length: u8,
}

/// Leading bits of an address: `/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrefixLength(pub u8);

const CIDR_EXAMPLE: &str = "not an address prefix; write an address and a length, such as `192.0.2.0/24`";
const CIDR_RANGE: &str = "the length is above the address's 32 or 128 bits; such as `192.0.2.0/24`";
const LENGTH_EXAMPLE: &str = "not a prefix length; write a slash and a number of bits, such as `/24`";

impl Cidr {
    /// As it is written; `None` where the length is above the family's.
    #[must_use]
    pub fn new(address: IpAddr, length: u8) -> Option<Self> {
        Prefix::new(address, length).map(|_| Self { address, length })
    }

    /// The address as it is written.
    #[must_use]
    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// The same without the bits behind the length.
    #[must_use]
    pub fn corrected(&self) -> Self {
        Self { address: masked(self.address, self.length), length: self.length }
    }

    /// What it stands for.
    #[must_use]
    pub fn prefix(&self) -> Option<Prefix> {
        Prefix::new(self.address, self.length)
    }

    /// Whether every address of `other` lies in this one.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.length <= other.length && self.prefix().is_some_and(|prefix| prefix.contains(other.address))
    }
}

fn bits(digits: &str) -> Option<u8> {
    // `/024` and `/+24` are typing errors more likely than meant.
    let plain = digits.bytes().all(|b| b.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    if plain { digits.parse().ok() } else { None }
}

impl FromStr for Cidr {
    type Err = UnitError;

    /// An address alone is the prefix that holds just it.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(bits(length).ok_or(UnitError(CIDR_EXAMPLE))?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| UnitError(CIDR_EXAMPLE))?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        Self::new(address, length.unwrap_or(width)).ok_or(UnitError(CIDR_RANGE))
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl FromStr for PrefixLength {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let length = text.strip_prefix('/').and_then(bits).filter(|bits| *bits <= 128);
        length.map(Self).ok_or(UnitError(LENGTH_EXAMPLE))
    }
}

impl fmt::Display for PrefixLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}", self.0)
    }
}

macro_rules! as_text {
    ($name:ident, $expecting:literal, $example:ident, $schema:tt) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct TextVisitor;
                impl Visitor<'_> for TextVisitor {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expecting)
                    }

                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$name, E> {
                        text.parse().map_err(E::custom)
                    }

                    fn visit_u64<E: de::Error>(self, _: u64) -> Result<$name, E> {
                        Err(E::custom($example))
                    }

                    fn visit_i64<E: de::Error>(self, _: i64) -> Result<$name, E> {
                        Err(E::custom($example))
                    }
                }
                deserializer.deserialize_any(TextVisitor)
            }
        }

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    };
}

as_text!(Cidr, "an address prefix such as `192.0.2.0/24`", CIDR_EXAMPLE, {
    "title": "address prefix", "type": "string", "pattern": "^[0-9A-Fa-f.:]+(/[0-9]{1,3})?$"
});
as_text!(PrefixLength, "a prefix length such as `/24`", LENGTH_EXAMPLE, {
    "title": "prefix length", "type": "string", "pattern": "^/[0-9]{1,3}$"
});

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn prefixes_print_as_they_are_written_and_an_address_alone_is_itself() {
        for (text, printed) in [
            ("192.0.2.0/24", "192.0.2.0/24"),
            ("192.0.2.7", "192.0.2.7/32"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("2001:DB8::/32", "2001:db8::/32"),
            ("::1", "::1/128"),
            ("10.1.2.3/8", "10.1.2.3/8"),
        ] {
            assert_eq!(text.parse::<Cidr>().expect(text).to_string(), printed);
        }
        assert_eq!("10.1.2.3/8".parse::<Cidr>().unwrap().corrected().to_string(), "10.0.0.0/8");
        assert_eq!("/64".parse::<PrefixLength>().unwrap().to_string(), "/64");
    }

    #[test]
    fn nonsense_is_refused_with_a_good_example() {
        for text in ["", "/", "/24", "10.0.0.0/", "10.0.0.0/33", "::/129", "10.0/8", "10.0.0.0/+8", "::/064", "a/8"] {
            let message = text.parse::<Cidr>().expect_err(text).to_string();
            assert!(message.contains("`192.0.2.0/24`"), "{text}: {message}");
        }
        for text in ["", "24", "/", "/129", "/-1", "/ 8", "/08"] {
            let message = text.parse::<PrefixLength>().expect_err(text).to_string();
            assert!(message.contains("`/24`"), "{text}: {message}");
        }
    }

    #[test]
    fn a_prefix_covers_what_lies_in_it() {
        let covers = |a: &str, b: &str| a.parse::<Cidr>().unwrap().covers(&b.parse().unwrap());
        assert!(covers("10.0.0.0/8", "10.1.0.0/16") && covers("10.0.0.0/8", "10.0.0.0/8"));
        assert!(!covers("10.1.0.0/16", "10.0.0.0/8") && !covers("10.0.0.0/8", "11.0.0.0/16"));
        assert!(!covers("0.0.0.0/0", "::/0") && covers("::/0", "2001:db8::1"));
    }

    proptest! {
        #[test]
        fn a_prefix_survives_print_and_parse(address: IpAddr, length in 0u8..=128) {
            if let Some(cidr) = Cidr::new(address, length) {
                prop_assert_eq!(cidr.to_string().parse::<Cidr>(), Ok(cidr));
                prop_assert!(cidr.covers(&cidr.corrected()) && cidr.corrected().covers(&cidr));
            }
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = text.parse::<Cidr>();
            let _ = text.parse::<PrefixLength>();
        }
    }
}
