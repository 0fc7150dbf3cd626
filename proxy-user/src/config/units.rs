//! Values with units: durations, sizes and rates.
//!
//! All parse from the form they print, so what a message shows can be pasted back into a file.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

/// A duration: `500ms`, `30s`, `5m`, `1h`, `2d`. At most 365 days, in whole milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub Duration);

/// A number of bytes: `512`, `512B`, `64KiB`, `100MiB`, `1GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(pub u64);

/// A whole number of events a second: `100/s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PerSecond(pub u32);

/// Why a text is no value of its type: a clause that ends in a good example and never repeats the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnitError(pub(super) &'static str);

const SPAN_EXAMPLE: &str = "not a duration; write a whole number and a unit (ms, s, m, h or d), such as `30s`";
const SPAN_RANGE: &str = "longer than a year; write a duration of at most `365d`, such as `30s`";
const SIZE_EXAMPLE: &str = "not a size; write a whole number of bytes or one with KiB, MiB or GiB, such as `64KiB`";
const SIZE_DECIMAL: &str = "not a size: units are powers of 1024; write KiB, MiB or GiB, such as `64KiB`";
const RATE_EXAMPLE: &str = "not a rate; write a whole number a second, such as `100/s`";
const RATE_RANGE: &str = "not from `1/s` to `1000000/s`; such as `100/s`";
const SIZE_RANGE: &str = "larger than 8388607 TiB; write a smaller size, such as `100MiB`";

/// Milliseconds of each unit, largest first.
const SPAN_UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Bytes of each unit, largest first.
const SIZE_UNITS: [(&str, u64); 5] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl Span {
    /// The longest duration a config may name. A year is beyond any sensible timeout and far from the overflow of
    /// every clock the duration is added to.
    pub const MAX: Self = Self(Duration::from_secs(365 * 86_400));

    /// Whole seconds.
    #[must_use]
    pub const fn secs(n: u64) -> Self {
        Self(Duration::from_secs(n))
    }

    /// Whole minutes.
    #[must_use]
    pub const fn mins(n: u64) -> Self {
        Self(Duration::from_secs(n * 60))
    }

    /// Nothing at all.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0.is_zero()
    }
}

impl Size {
    /// The largest size a config may name: what fits in a signed 64-bit number.
    pub const MAX: Self = Self(i64::MAX as u64);

    /// Whole KiB.
    #[must_use]
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }

    /// Whole MiB.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }
}

/// Splits `12KiB` into its digits and its unit. `None` where there is no digit in front.
fn split_number(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

impl FromStr for Span {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (digits, unit) = split_number(text).ok_or(UnitError(SPAN_EXAMPLE))?;
        let (_, scale) = SPAN_UNITS.iter().find(|(name, _)| *name == unit).ok_or(UnitError(SPAN_EXAMPLE))?;
        // Only digits are left, so a failure to parse is an overflow.
        let number: u64 = digits.parse().map_err(|_| UnitError(SPAN_RANGE))?;
        let span = Self(Duration::from_millis(number.checked_mul(*scale).ok_or(UnitError(SPAN_RANGE))?));
        if span > Self::MAX { Err(UnitError(SPAN_RANGE)) } else { Ok(span) }
    }
}

impl fmt::Display for Span {
    /// The largest unit that divides it, so `90s` stays `90s` and `120s` prints as `2m`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        if millis == 0 {
            return f.write_str("0s");
        }
        let exact = SPAN_UNITS.iter().find(|(_, scale)| millis.is_multiple_of(u128::from(*scale)));
        let (unit, scale) = exact.copied().unwrap_or(("ms", 1));
        write!(f, "{}{unit}", millis / u128::from(scale))
    }
}

impl FromStr for Size {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (digits, unit) = split_number(text).ok_or(UnitError(SIZE_EXAMPLE))?;
        let scale = match unit {
            "" => 1,
            "KB" | "MB" | "GB" | "TB" | "kB" | "K" | "M" | "G" | "k" => return Err(UnitError(SIZE_DECIMAL)),
            _ => SIZE_UNITS.iter().find(|(name, _)| *name == unit).ok_or(UnitError(SIZE_EXAMPLE))?.1,
        };
        let number: u64 = digits.parse().map_err(|_| UnitError(SIZE_RANGE))?;
        let size = Self(number.checked_mul(scale).ok_or(UnitError(SIZE_RANGE))?);
        if size > Self::MAX { Err(UnitError(SIZE_RANGE)) } else { Ok(size) }
    }
}

impl fmt::Display for Size {
    /// The largest unit that divides it; bare bytes have no unit.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match SIZE_UNITS.iter().find(|(_, scale)| self.0 != 0 && *scale > 1 && self.0.is_multiple_of(*scale)) {
            Some((unit, scale)) => write!(f, "{}{unit}", self.0 / scale),
            None => write!(f, "{}", self.0),
        }
    }
}

impl PerSecond {
    /// The highest rate a config may name: above it a bound bounds nothing.
    pub const MAX: Self = Self(1_000_000);
}

impl FromStr for PerSecond {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (digits, unit) = split_number(text).ok_or(UnitError(RATE_EXAMPLE))?;
        if unit != "/s" {
            return Err(UnitError(RATE_EXAMPLE));
        }
        let rate = digits.parse().map(Self).map_err(|_| UnitError(RATE_RANGE))?;
        if (Self(1)..=Self::MAX).contains(&rate) { Ok(rate) } else { Err(UnitError(RATE_RANGE)) }
    }
}

impl fmt::Display for PerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/s", self.0)
    }
}

impl Serialize for PerSecond {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PerSecond {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RateVisitor;
        impl Visitor<'_> for RateVisitor {
            type Value = PerSecond;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a rate such as `100/s`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<PerSecond, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, _: u64) -> Result<PerSecond, E> {
                Err(E::custom(RATE_EXAMPLE))
            }

            fn visit_i64<E: de::Error>(self, _: i64) -> Result<PerSecond, E> {
                Err(E::custom(RATE_EXAMPLE))
            }
        }
        deserializer.deserialize_any(RateVisitor)
    }
}

impl JsonSchema for PerSecond {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Rate".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "title": "rate", "type": "string", "pattern": "^[0-9]+/s$" })
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SpanVisitor;
        impl Visitor<'_> for SpanVisitor {
            type Value = Span;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as `30s`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, _: u64) -> Result<Span, E> {
                Err(E::custom(SPAN_EXAMPLE))
            }

            fn visit_i64<E: de::Error>(self, _: i64) -> Result<Span, E> {
                Err(E::custom(SPAN_EXAMPLE))
            }
        }
        deserializer.deserialize_any(SpanVisitor)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SizeVisitor;
        impl Visitor<'_> for SizeVisitor {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as `64KiB`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Size, E> {
                if bytes > Size::MAX.0 { Err(E::custom(SIZE_RANGE)) } else { Ok(Size(bytes)) }
            }

            fn visit_i64<E: de::Error>(self, _: i64) -> Result<Size, E> {
                Err(E::custom(SIZE_EXAMPLE))
            }
        }
        deserializer.deserialize_any(SizeVisitor)
    }
}

impl JsonSchema for Span {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "title": "duration", "type": "string", "pattern": "^[0-9]+(ms|s|m|h|d)$" })
    }
}

impl JsonSchema for Size {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "title": "size", "type": ["string", "integer"], "minimum": 0, "pattern": "^[0-9]+(B|KiB|MiB|GiB|TiB)?$"
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_print_in_the_largest_unit_that_divides_them() {
        for (text, printed) in [
            ("500ms", "500ms"),
            ("30s", "30s"),
            ("90s", "90s"),
            ("120s", "2m"),
            ("9m", "9m"),
            ("60m", "1h"),
            ("48h", "2d"),
            ("0ms", "0s"),
            ("365d", "365d"),
        ] {
            assert_eq!(text.parse::<Span>().expect(text).to_string(), printed);
        }
    }

    #[test]
    fn sizes_print_in_the_largest_unit_that_divides_them() {
        for (text, printed) in [
            ("512", "512"),
            ("512B", "512"),
            ("64KiB", "64KiB"),
            ("1024KiB", "1MiB"),
            ("100MiB", "100MiB"),
            ("1GiB", "1GiB"),
            ("0", "0"),
        ] {
            assert_eq!(text.parse::<Size>().expect(text).to_string(), printed);
        }
    }

    #[test]
    fn nonsense_negatives_and_overflow_are_refused_with_a_good_example() {
        for text in ["", "s", "30", "-30s", "+30s", "1.5s", "30 s", "30S", "30sec", "1h30m", "٣s", "366d"] {
            let message = text.parse::<Span>().expect_err(text).to_string();
            assert!(message.contains("`30s`"), "{text}: {message}");
        }
        assert!("99999999999999999999d".parse::<Span>().is_err());
        for text in ["", "KiB", "-1", "1.5MiB", "64 KiB", "64kib", "64KB", "10G", "1PiB", "0x10"] {
            let message = text.parse::<Size>().expect_err(text).to_string();
            assert!(message.contains("`64KiB`"), "{text}: {message}");
        }
        assert!("99999999999999999999".parse::<Size>().is_err());
        assert!("8388608TiB".parse::<Size>().is_err());
        for text in ["", "/s", "100", "100/m", "100 /s", "-1/s", "0/s", "1000001/s", "99999999999999999999/s"] {
            let message = text.parse::<PerSecond>().expect_err(text).to_string();
            assert!(message.contains("`100/s`"), "{text}: {message}");
        }
        assert_eq!("1000000/s".parse::<PerSecond>().unwrap().to_string(), "1000000/s");
    }

    proptest! {
        #[test]
        fn a_duration_survives_print_and_parse(millis in 0..=Span::MAX.0.as_millis() as u64) {
            let span = Span(Duration::from_millis(millis));
            prop_assert_eq!(span.to_string().parse::<Span>(), Ok(span));
        }

        #[test]
        fn a_size_survives_print_and_parse(bytes in 0..=Size::MAX.0, shift in 0u32..60) {
            let size = Size(bytes >> shift << shift);
            prop_assert_eq!(size.to_string().parse::<Size>(), Ok(size));
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = text.parse::<Span>();
            let _ = text.parse::<Size>();
            let _ = text.parse::<PerSecond>();
        }
    }
}
