//! Frames made by hand.

use std::net::{IpAddr, SocketAddr};

pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const ACK: u8 = 0x10;

/// A TCP segment over Ethernet, with whatever stands in between.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    from: SocketAddr,
    to: SocketAddr,
    flags: u8,
    tags: Vec<u16>,
    options: u8,
    /// Fragment offset and flags of IPv4; of IPv6 where `fragmented`.
    fragment: Option<u16>,
    extensions: Vec<Vec<u8>>,
    protocol: u8,
    payload: usize,
}

/// A segment without options and payload.
pub(crate) fn tcp(from: &str, to: &str, flags: u8) -> Frame {
    Frame {
        from: from.parse().expect("an address"),
        to: to.parse().expect("an address"),
        flags,
        tags: vec![],
        options: 0,
        fragment: None,
        extensions: vec![],
        protocol: 6,
        payload: 0,
    }
}

impl Frame {
    pub(crate) fn tags(mut self, tags: &[u16]) -> Self {
        self.tags = tags.to_vec();
        self
    }

    /// IPv4 options, in words of four bytes.
    pub(crate) fn options(mut self, words: u8) -> Self {
        self.options = words;
        self
    }

    /// Fragment offset in units of eight bytes, and whether more follow.
    pub(crate) fn fragment(mut self, offset: u16, more: bool) -> Self {
        let v4 = self.to.is_ipv4();
        self.fragment = Some(match (v4, more) {
            (true, more) => offset | u16::from(more) << 13,
            (false, more) => offset << 3 | u16::from(more),
        });
        self
    }

    /// IPv6 extension headers, each by its number and body of 6 bytes.
    pub(crate) fn extensions(mut self, headers: &[(u8, [u8; 6])]) -> Self {
        self.extensions = headers.iter().map(|(kind, body)| [&[*kind, 0], &body[..]].concat()).collect();
        self
    }

    pub(crate) fn protocol(mut self, protocol: u8) -> Self {
        self.protocol = protocol;
        self
    }

    pub(crate) fn payload(mut self, bytes: usize) -> Self {
        self.payload = bytes;
        self
    }

    /// The bytes, without checksums: no program looks at them.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut segment = [self.from.port().to_be_bytes(), self.to.port().to_be_bytes()].concat();
        segment.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, self.flags, 0xff, 0xff, 0, 0, 0, 0]);
        segment.resize(segment.len() + self.payload, 0xaa);
        let mut frame = vec![2; 12];
        for tag in &self.tags {
            frame.extend(tag.to_be_bytes());
            frame.extend([0, 7]);
        }
        match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let header = 20 + usize::from(self.options) * 4;
                frame.extend([8, 0, 0x45 + self.options, 0]);
                frame.extend(((header + segment.len()) as u16).to_be_bytes());
                frame.extend([0, 0]);
                frame.extend(self.fragment.unwrap_or(0).to_be_bytes());
                frame.extend([64, self.protocol, 0, 0]);
                frame.extend(from.octets());
                frame.extend(to.octets());
                frame.resize(frame.len() + usize::from(self.options) * 4, 1);
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                // Each header names the one behind it.
                let mut headers = self.extensions.clone();
                if let Some(fragment) = self.fragment {
                    headers.push([&[44, 0][..], &fragment.to_be_bytes(), &[0; 4]].concat());
                }
                let kinds: Vec<u8> = headers.iter().map(|h| h[0]).chain([self.protocol]).collect();
                let chain: Vec<u8> =
                    headers.iter().zip(&kinds[1..]).flat_map(|(h, next)| [&[*next], &h[1..]].concat()).collect();
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                frame.extend(((chain.len() + segment.len()) as u16).to_be_bytes());
                frame.extend([kinds[0], 64]);
                frame.extend(from.octets());
                frame.extend(to.octets());
                frame.extend(chain);
            }
            _ => panic!("one family"),
        }
        frame.extend(segment);
        frame
    }
}
