//! Whose rack: that of a client, by the rules of the config or its own word.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use proxy_common::admission::Prefix;

use crate::config::pattern::Pattern;
use crate::config::{ClientRack, Racks};

/// Name of a rack.
pub type Rack = Arc<str>;

/// What tells a client's rack.
#[derive(Clone, Copy, Debug)]
pub struct Client<'a> {
    /// Where it dials from.
    pub address: IpAddr,
    /// Where it dialled.
    pub listener: IpAddr,
    /// Its client id.
    pub id: Option<&'a str>,
}

/// By what a client's rack is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// It said so (`client.rack`).
    Itself,
    /// The longest prefix around its address.
    Address(String),
    /// The first pattern that its client id fits.
    ClientId(String),
    /// The address that it dialled.
    Listener(IpAddr),
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Itself => f.write_str("its own client.rack"),
            Self::Address(prefix) => write!(f, "its address, in {prefix}"),
            Self::ClientId(pattern) => write!(f, "its client id, which fits {pattern}"),
            Self::Listener(address) => write!(f, "the listener {address}"),
        }
    }
}

/// The rules of a config, ready to be asked.
#[derive(Debug, Default)]
pub struct Places {
    /// Longest prefix first.
    prefixes: Vec<(Prefix, Rack, String)>,
    patterns: Vec<(Pattern, Rack)>,
    listeners: HashMap<IpAddr, Rack>,
}

impl Places {
    /// The rules of a config; those that validation refuses are left out.
    #[must_use]
    pub fn of(config: &Racks) -> Self {
        let mut places = Self::default();
        for ClientRack { cidr, client_id, listener, rack } in &config.clients {
            let rack = Rack::from(rack.as_str());
            if let Some(cidr) = cidr {
                places.prefixes.extend(cidr.prefix().map(|prefix| (prefix, rack.clone(), cidr.to_string())));
            }
            if let Some(pattern) = client_id {
                places.patterns.push((pattern.clone(), rack.clone()));
            }
            if let Some(listener) = listener {
                places.listeners.insert(listener.to_canonical(), rack);
            }
        }
        places.prefixes.sort_by_key(|(prefix, ..)| std::cmp::Reverse(prefix.length()));
        places
    }

    /// The rack by the rules, and by which of them.
    #[must_use]
    pub fn rack_of(&self, client: Client<'_>) -> Option<(Rack, By)> {
        let address = client.address.to_canonical();
        if let Some((_, rack, cidr)) = self.prefixes.iter().find(|(prefix, ..)| prefix.contains(address)) {
            return Some((rack.clone(), By::Address(cidr.clone())));
        }
        let by_id = client.id.and_then(|id| self.patterns.iter().find(|(pattern, _)| pattern.fits(id)));
        if let Some((pattern, rack)) = by_id {
            return Some((rack.clone(), By::ClientId(pattern.to_string())));
        }
        let listener = client.listener.to_canonical();
        self.listeners.get(&listener).map(|rack| (rack.clone(), By::Listener(listener)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn places(rules: &[(&str, &str, &str)]) -> Places {
        let rule = |(kind, value, rack): &(&str, &str, &str)| {
            let mut rule = ClientRack { cidr: None, client_id: None, listener: None, rack: (*rack).to_owned() };
            match *kind {
                "cidr" => rule.cidr = value.parse().ok(),
                "id" => rule.client_id = value.parse().ok(),
                _ => rule.listener = value.parse().ok(),
            }
            rule
        };
        Places::of(&Racks { clients: rules.iter().map(rule).collect(), ..Racks::default() })
    }

    fn rack(places: &Places, address: &str, listener: &str, id: Option<&str>) -> Option<String> {
        let client =
            Client { address: address.parse().expect("an address"), listener: listener.parse().expect("one"), id };
        places.rack_of(client).map(|(rack, _)| rack.to_string())
    }

    #[test]
    fn the_longest_prefix_decides_in_both_families() {
        let places = places(&[
            ("cidr", "10.0.0.0/8", "wide"),
            ("cidr", "10.0.3.77", "host"),
            ("cidr", "10.0.3.0/24", "net"),
            ("cidr", "2001:db8::/32", "six"),
        ]);
        for (address, expected) in [
            ("10.0.3.77", Some("host")),
            ("10.0.3.78", Some("net")),
            ("10.9.9.9", Some("wide")),
            ("::ffff:10.0.3.77", Some("host")),
            ("2001:db8::1", Some("six")),
            ("11.0.0.1", None),
            ("::1", None),
        ] {
            assert_eq!(rack(&places, address, "127.0.0.1", None).as_deref(), expected, "{address}");
        }
    }

    #[test]
    fn address_goes_before_client_id_and_that_before_the_listener() {
        let places = places(&[
            ("listener", "127.0.0.2", "l"),
            ("id", "a*", "first"),
            ("id", "ab", "second"),
            ("cidr", "10.0.0.0/8", "c"),
        ]);
        assert_eq!(rack(&places, "10.0.0.1", "127.0.0.2", Some("ab")).as_deref(), Some("c"));
        assert_eq!(rack(&places, "11.0.0.1", "127.0.0.2", Some("ab")).as_deref(), Some("first"), "the first that fits");
        assert_eq!(rack(&places, "11.0.0.1", "127.0.0.2", Some("x")).as_deref(), Some("l"));
        assert_eq!(rack(&places, "11.0.0.1", "::ffff:127.0.0.2", None).as_deref(), Some("l"));
        assert_eq!(rack(&places, "11.0.0.1", "127.0.0.1", None), None);
    }

    proptest! {
        #[test]
        fn no_shorter_prefix_than_the_longest_that_holds_it_is_taken(
            prefixes in prop::collection::vec((any::<u32>(), 0u8..=32), 0..20), address: u32,
        ) {
            let cidr = |(a, l): &(u32, u8)| crate::config::prefix::Cidr::new(IpAddr::from(a.to_be_bytes()), *l).expect("in range").corrected();
            let rules: Vec<_> = prefixes.iter().map(cidr).collect();
            let texts: Vec<_> = rules.iter().map(|cidr| (cidr.to_string(), cidr.to_string())).collect();
            let places = places(&texts.iter().map(|(c, r)| ("cidr", c.as_str(), r.as_str())).collect::<Vec<_>>());
            let address = IpAddr::from(address.to_be_bytes());
            let found = places.rack_of(Client { address, listener: address, id: None }).map(|(rack, _)| rack.to_string());
            let holding = rules.iter().filter_map(|c| c.prefix()).filter(|p| p.contains(address)).map(|p| p.length()).max();
            prop_assert_eq!(found.map(|rack| rack.rsplit_once('/').map(|(_, l)| l.parse::<u8>().ok())), holding.map(|l| Some(Some(l))));
        }
    }
}
