//! Frames made by hand, with their checksums, and read back.

use std::net::{IpAddr, SocketAddr};

pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const PSH: u8 = 0x08;
pub(crate) const ACK: u8 = 0x10;
pub(crate) const URG: u8 = 0x20;

/// A TCP segment over Ethernet and IP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    /// Destination and source of the Ethernet header.
    pub(crate) link: [[u8; 6]; 2],
    pub(crate) class: u8,
    pub(crate) hops: u8,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    /// The flags of RFC 9293.
    pub(crate) flags: u8,
    /// The window field.
    pub(crate) window: u16,
    /// A multiple of four bytes.
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

/// A segment without options and payload.
pub(crate) fn segment(from: SocketAddr, to: SocketAddr) -> Segment {
    Segment {
        from,
        to,
        link: [[0; 6], [0x02, 0, 0, 0, 0, 0x99]],
        class: 0,
        hops: 61,
        seq: 0,
        ack: 0,
        flags: ACK,
        window: 500,
        options: vec![],
        payload: vec![],
    }
}

impl Segment {
    pub(crate) fn seq(mut self, seq: u32) -> Self {
        self.seq = seq;
        self
    }

    pub(crate) fn ack(mut self, ack: u32) -> Self {
        self.ack = ack;
        self
    }

    pub(crate) fn flags(mut self, flags: u8) -> Self {
        self.flags = flags;
        self
    }

    pub(crate) fn class(mut self, class: u8) -> Self {
        self.class = class;
        self
    }

    pub(crate) fn options(mut self, options: &[u8]) -> Self {
        assert!(options.len().is_multiple_of(4), "whole words");
        self.options = options.to_vec();
        self
    }

    pub(crate) fn payload(mut self, payload: &[u8]) -> Self {
        self.payload = payload.to_vec();
        self
    }

    /// SACK blocks, as Linux writes them without timestamps.
    pub(crate) fn sack(self, blocks: &[(u32, u32)]) -> Self {
        let mut options = vec![1, 1, 5, 2 + 8 * blocks.len() as u8];
        options.extend(blocks.iter().flat_map(|(l, r)| [l.to_be_bytes(), r.to_be_bytes()].concat()));
        self.options(&options)
    }

    /// The blocks of [`Self::sack`].
    pub(crate) fn sack_blocks(&self) -> Vec<(u32, u32)> {
        assert_eq!(self.options[..3], [1, 1, 5], "{self:?}");
        let word = |b: &[u8]| u32::from_be_bytes(b.try_into().expect("four bytes"));
        self.options[4..].chunks(8).map(|b| (word(&b[..4]), word(&b[4..]))).collect()
    }

    /// The frame.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut tcp = [self.from.port().to_be_bytes(), self.to.port().to_be_bytes()].concat();
        tcp.extend(self.seq.to_be_bytes());
        tcp.extend(self.ack.to_be_bytes());
        tcp.extend([((5 + self.options.len() / 4) << 4) as u8, self.flags]);
        tcp.extend(self.window.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(&self.options);
        tcp.extend(&self.payload);
        let check = checksum(&[&pseudo(self.from.ip(), self.to.ip(), tcp.len()), &tcp]);
        tcp[16..18].copy_from_slice(&check.to_be_bytes());
        let mut frame = self.link.concat();
        match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let mut ip = vec![0x45, self.class];
                ip.extend((20 + tcp.len() as u16).to_be_bytes());
                ip.extend([0x12, 0x34, 0x40, 0, self.hops, 6, 0, 0]);
                ip.extend([from.octets(), to.octets()].concat());
                let check = checksum(&[&ip]);
                ip[10..12].copy_from_slice(&check.to_be_bytes());
                frame.extend([8, 0]);
                frame.extend(ip);
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                frame.extend([0x86, 0xdd]);
                frame.extend((0x6000_0000 | u32::from(self.class) << 20).to_be_bytes());
                frame.extend((tcp.len() as u16).to_be_bytes());
                frame.extend([6, self.hops]);
                frame.extend([from.octets(), to.octets()].concat());
            }
            _ => panic!("one family"),
        }
        frame.extend(tcp);
        frame
    }

    /// Whether a frame's TCP checksum is right.
    pub(crate) fn is_sound(frame: &[u8]) -> bool {
        let (header, addresses) = if frame[12] == 8 { (34, 26..34) } else { (54, 22..54) };
        let length = (frame.len() - header) as u32;
        checksum(&[&frame[addresses], &length.to_be_bytes(), &[0, 0, 0, 6], &frame[header..]]) == 0
    }

    /// Reads a frame back, and checks every length and checksum in it.
    pub(crate) fn read(frame: &[u8]) -> Self {
        let link = [frame[..6].try_into().expect("six"), frame[6..12].try_into().expect("six")];
        let (from, to, class, hops, tcp): (IpAddr, IpAddr, u8, u8, &[u8]) = match frame[12..14] {
            [8, 0] => {
                let ip = &frame[14..34];
                assert_eq!(checksum(&[ip]), 0, "the IP header's checksum");
                assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), frame.len() - 14, "the IP length");
                let address = |at: usize| <[u8; 4]>::try_from(&ip[at..at + 4]).expect("four").into();
                (address(12), address(16), ip[1], ip[8], &frame[34..])
            }
            [0x86, 0xdd] => {
                let ip = &frame[14..54];
                assert_eq!(usize::from(u16::from_be_bytes([ip[4], ip[5]])), frame.len() - 54, "the IP length");
                let address = |at: usize| <[u8; 16]>::try_from(&ip[at..at + 16]).expect("sixteen").into();
                let class = (u16::from_be_bytes([ip[0], ip[1]]) >> 4) as u8;
                (address(8), address(24), class, ip[7], &frame[54..])
            }
            _ => panic!("not IP: {frame:x?}"),
        };
        assert_eq!(checksum(&[&pseudo(from, to, tcp.len()), tcp]), 0, "TCP's checksum");
        let word = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().expect("four"));
        let half = |at: usize| u16::from_be_bytes(tcp[at..at + 2].try_into().expect("two"));
        let header = usize::from(tcp[12] >> 4) * 4;
        Self {
            from: SocketAddr::new(from, half(0)),
            to: SocketAddr::new(to, half(2)),
            link,
            class,
            hops,
            seq: word(4),
            ack: word(8),
            flags: tcp[13],
            window: half(14),
            options: tcp[20..header].to_vec(),
            payload: tcp[header..].to_vec(),
        }
    }
}

fn pseudo(from: IpAddr, to: IpAddr, length: usize) -> Vec<u8> {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    [&octets(from)[..], &octets(to), &(length as u32).to_be_bytes(), &[0, 0, 0, 6]].concat()
}

/// RFC 1071.
pub(crate) fn checksum(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let word = |pair: &[u8]| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
    let mut sum: u64 = bytes.chunks(2).map(word).sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
