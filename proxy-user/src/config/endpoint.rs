//! `host:port`, as the config writes it.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// A host name or IP address and a port: `kafka-1.internal:9092`, `10.0.4.2:9092`, `[::1]:9092`. The host has no
/// brackets; `Display` puts them back. Host names are lower case, so that equal ones compare equal (RFC 4343).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// Host name or IP address.
    pub host: String,
    /// Port, never 0.
    pub port: u16,
}

/// Why a text is no endpoint, or no host: a clause that says what to write. It never repeats the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EndpointError(pub(super) &'static str);

const SHAPE: &str = "not `host:port`; write it such as `10.0.4.2:9092`, `kafka-1.internal:9092` or `[::1]:9092`";
const BARE_V6: &str = "an IPv6 address needs brackets before its port, such as `[::1]:9092`";
const PORT: &str = "the port must be a number from 1 to 65535";
const SCHEME: &str = "a listener or URL, not `host:port`; leave `…://` out";
const HOST: &str = "not a host name or IP address";
const BRACKETS: &str = "what stands in brackets must be an IPv6 address";

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        if text.contains("://") {
            return Err(EndpointError(SCHEME));
        }
        let (host, port) = text.rsplit_once(':').ok_or(EndpointError(SHAPE))?;
        let host = match host.strip_prefix('[') {
            Some(inner) => {
                let inner = inner.strip_suffix(']').ok_or(EndpointError(SHAPE))?;
                inner.parse::<Ipv6Addr>().map_err(|_| EndpointError(BRACKETS))?.to_string()
            }
            None if text.parse::<Ipv6Addr>().is_ok() || host.parse::<Ipv6Addr>().is_ok() => {
                return Err(EndpointError(BARE_V6));
            }
            None if host.contains(':') => return Err(EndpointError(SHAPE)),
            None => host.to_ascii_lowercase(),
        };
        check_host(&host)?;
        let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
        match port.parse() {
            Ok(port) if digits && port != 0 => Ok(Self { host, port }),
            _ => Err(EndpointError(PORT)),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// Whether a text may be a host: an IP address, or a name by RFC 1123 with underscores, which container networks use.
pub(super) fn check_host(host: &str) -> Result<(), EndpointError> {
    if host.parse::<IpAddr>().is_ok() {
        return Ok(());
    }
    let name = host.strip_suffix('.').unwrap_or(host);
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // A last label of digits only would be an IPv4 address with a mistake in it.
    let numeric = name.rsplit('.').next().is_some_and(|last| last.bytes().all(|b| b.is_ascii_digit()));
    if (1..=253).contains(&name.len()) && name.split('.').all(label) && !numeric {
        Ok(())
    } else {
        Err(EndpointError(HOST))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_and_addresses_of_both_families_are_read() {
        for (text, host, port) in [
            ("10.0.4.2:9092", "10.0.4.2", 9092),
            ("kafka-1.internal:9092", "kafka-1.internal", 9092),
            ("Kafka_1:1", "kafka_1", 1),
            ("a.b.:65535", "a.b.", 65535),
            ("[::1]:9092", "::1", 9092),
            ("[2001:DB8::1]:9092", "2001:db8::1", 9092),
        ] {
            let endpoint = text.parse::<Endpoint>().unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!((endpoint.host.as_str(), endpoint.port), (host, port));
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, message) in [
            ("", SHAPE),
            ("host", SHAPE),
            (":9092", HOST),
            ("host:", PORT),
            ("host:0", PORT),
            ("host:65536", PORT),
            ("host:+1", PORT),
            ("host:９", PORT),
            ("host:9092:9093", SHAPE),
            ("::1", BARE_V6),
            ("fe80::1:9092", BARE_V6),
            ("[::1]", SHAPE),
            ("[::1", SHAPE),
            ("[host]:1", BRACKETS),
            ("PLAINTEXT://host:9092", SCHEME),
            ("ho st:1", HOST),
            ("-a:1", HOST),
            ("10.0.0.256:1", HOST),
            ("a..b:1", HOST),
        ] {
            assert_eq!(text.parse::<Endpoint>(), Err(EndpointError(message)), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(text in "(\\[[0-9a-f:]{2,20}\\]|[a-z0-9.-]{1,20}):[0-9]{1,5}") {
            if let Ok(endpoint) = text.parse::<Endpoint>() {
                prop_assert_eq!(endpoint.to_string().parse::<Endpoint>(), Ok(endpoint));
            }
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = text.parse::<Endpoint>();
        }
    }
}
