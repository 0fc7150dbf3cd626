//! `host:port`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Where something listens: a name or an IP address, and a port. Prints as `host:port`, an IPv6 address in brackets.
#[derive(Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Endpoint {
    /// A DNS name or an IP address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl Endpoint {
    /// An endpoint of its parts; brackets around an IPv6 address are dropped.
    #[must_use]
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        let host = host.into();
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).map(str::to_owned);
        Self { host: bare.unwrap_or(host), port }
    }

    /// The host, where it is an IP address.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    /// `0.0.0.0` or `::`: "any address" when listening, this very host when dialled.
    #[must_use]
    pub fn is_unspecified(&self) -> bool {
        self.ip().is_some_and(|ip| ip.is_unspecified())
    }

    /// This very host, by its spelling: a loopback address or `localhost`.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.ip().is_some_and(|ip| ip.to_canonical().is_loopback()) || self.host.eq_ignore_ascii_case("localhost")
    }

    /// The same endpoint in the spelling used to compare: DNS names know no case.
    #[must_use]
    pub fn key(&self) -> Self {
        Self { host: self.host.to_ascii_lowercase(), port: self.port }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Text that is not `host:port`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an address: write host:port, an IPv6 address as [::1]:9092, the port between 1 and 65535")]
pub struct NotAnEndpoint(pub String);

impl FromStr for Endpoint {
    type Err = NotAnEndpoint;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = || NotAnEndpoint(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(refused)?;
        let port = port.parse::<u16>().ok().filter(|p| *p != 0).ok_or_else(refused)?;
        let endpoint = Self::new(host, port);
        let bracketed = endpoint.host.len() != host.len();
        // A bare IPv6 address is refused: whether its last group is the port can't be told.
        let sound = match bracketed {
            true => endpoint.ip().is_some_and(|ip| ip.is_ipv6()),
            false => !host.is_empty() && !host.contains([':', '[', ']', '/', ' ']),
        };
        if sound { Ok(endpoint) } else { Err(refused()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        for text in ["kafka-1.internal:9092", "10.0.4.2:1", "[::1]:65535", "[fe80::1]:9092"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        assert_eq!(Endpoint::new("[::1]", 9), Endpoint { host: "::1".into(), port: 9 });
    }

    #[test]
    fn what_is_not_host_and_port_is_refused_and_named() {
        for text in [
            "",
            "kafka",
            "kafka:",
            ":9092",
            "kafka:0",
            "kafka:65536",
            "::1:9092",
            "[kafka]:9092",
            "a b:1",
            "http://k:1",
        ] {
            let error = text.parse::<Endpoint>().unwrap_err();
            assert!(error.to_string().contains(&format!("`{text}`")), "{error}");
        }
    }

    #[test]
    fn this_very_host() {
        let at = |host: &str| Endpoint::new(host, 1);
        assert!(["127.0.0.1", "127.3.2.1", "::1", "::ffff:127.0.0.1", "LocalHost"].iter().all(|h| at(h).is_loopback()));
        assert!(["0.0.0.0", "::"].iter().all(|h| at(h).is_unspecified() && !at(h).is_loopback()));
        assert!(["10.0.0.1", "kafka"].iter().all(|h| !at(h).is_loopback() && !at(h).is_unspecified()));
    }
}
