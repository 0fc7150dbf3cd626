//! Prices as a file writes them: `0.02 USD`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error as _};
use serde::{Serialize, Serializer};

use super::units::UnitError;

const EXAMPLE: &str = "not a price; write a number with at most six decimals and a currency, such as `0.02 USD`";

/// Millionths of a unit of currency.
const MICROS: u64 = 1_000_000;
const DECIMALS: usize = 6;

/// Longest name of a currency.
const MAX_CURRENCY: usize = 8;

/// An amount of some currency.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Price {
    micros: u64,
    currency: String,
}

impl Price {
    /// What `bytes` cost when a GB (10⁹ bytes) costs this: `1.23 USD`.
    #[must_use]
    pub fn of_bytes(&self, bytes: u64) -> String {
        let micros = u128::from(bytes) * u128::from(self.micros) / 1_000_000_000;
        let cents = (micros + 5000) / 10_000;
        format!("{}.{:02} {}", cents / 100, cents % 100, self.currency)
    }
}

impl FromStr for Price {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let refused = UnitError(EXAMPLE);
        let (amount, currency) = text.split_once(' ').ok_or(refused.clone())?;
        let named = (1..=MAX_CURRENCY).contains(&currency.len()) && currency.bytes().all(|b| b.is_ascii_alphabetic());
        let (whole, part) = amount.split_once('.').unwrap_or((amount, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !named || !digits(whole) || !digits(part) || part.len() > DECIMALS {
            return Err(refused);
        }
        let whole: u64 = whole.parse().map_err(|_| refused.clone())?;
        let part: u64 = format!("{part:0<DECIMALS$}").parse().map_err(|_| refused.clone())?;
        let micros = whole.checked_mul(MICROS).and_then(|micros| micros.checked_add(part)).ok_or(refused)?;
        Ok(Self { micros, currency: currency.to_owned() })
    }
}

impl fmt::Display for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = format!("{:06}", self.micros % MICROS);
        let part = part.trim_end_matches('0');
        let dot = if part.is_empty() { "" } else { "." };
        write!(f, "{}{dot}{part} {}", self.micros / MICROS, self.currency)
    }
}

impl Serialize for Price {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Price {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl JsonSchema for Price {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Price".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "title": "price", "type": "string", "pattern": "^[0-9]+(\\.[0-9]{1,6})? [A-Za-z]{1,8}$" })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn prices_print_as_they_are_written_and_cost_by_the_gigabyte() {
        for text in ["0.02 USD", "1 EUR", "0.000001 x", "12.5 CHF"] {
            assert_eq!(text.parse::<Price>().expect(text).to_string(), text);
        }
        let cent: Price = "0.01 USD".parse().expect("a price");
        assert_eq!(cent.of_bytes(0), "0.00 USD");
        assert_eq!(cent.of_bytes(1_234_500_000_000), "12.35 USD", "rounded");
    }

    #[test]
    fn nonsense_is_refused_with_a_good_example() {
        for text in
            ["", "0.02", "USD", ".5 USD", "1. USD", "-1 USD", "0.0000001 USD", "1 U5D", "1  USD", "1 toolongname"]
        {
            assert!(text.parse::<Price>().expect_err(text).to_string().contains("`0.02 USD`"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_price_survives_print_and_parse(micros: u64, currency in "[A-Z]{3}") {
            let price = Price { micros, currency };
            prop_assert_eq!(price.to_string().parse::<Price>(), Ok(price));
        }
    }
}
