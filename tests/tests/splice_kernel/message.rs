//! What routers say of a packet (ICMP and ICMPv6), made by hand with its checksums, and read back.

use std::net::{IpAddr, SocketAddr};

use crate::frame::checksum;

/// "Packet too big" for a path of this MTU.
const MTU: u16 = 1400;

/// A message, and the packet that it quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    /// Destination and source of the Ethernet header.
    pub(crate) link: [[u8; 6]; 2],
    pub(crate) hops: u8,
    /// Source of the packet.
    pub(crate) source: SocketAddr,
    /// Destination of the packet.
    pub(crate) destination: SocketAddr,
    /// Its sequence number.
    pub(crate) seq: u32,
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn ip(from: IpAddr, to: IpAddr, protocol: u8, hops: u8, length: usize) -> Vec<u8> {
    let ends = [octets(from), octets(to)].concat();
    if from.is_ipv6() {
        let mut header = vec![0x60, 0, 0, 0];
        header.extend((length as u16).to_be_bytes());
        header.extend([protocol, hops]);
        header.extend(ends);
        return header;
    }
    let mut header = vec![0x45, 0xc0];
    header.extend((20 + length as u16).to_be_bytes());
    header.extend([0x43, 0x21, 0, 0, hops, protocol, 0, 0]);
    header.extend(ends);
    let check = checksum(&[&header]);
    header[10..12].copy_from_slice(&check.to_be_bytes());
    header
}

fn pseudo(from: IpAddr, to: IpAddr, length: usize) -> Vec<u8> {
    if from.is_ipv4() {
        return vec![];
    }
    [octets(from), octets(to), (length as u32).to_be_bytes().to_vec(), vec![0, 0, 0, 58]].concat()
}

impl Message {
    /// The frame; the packet is quoted with its first eight bytes of TCP, as the least that a router sends.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let six = self.from.is_ipv6();
        let mut body = if six { vec![2, 0, 0, 0, 0, 0] } else { vec![3, 4, 0, 0, 0, 0] };
        body.extend(MTU.to_be_bytes());
        body.extend(ip(self.source.ip(), self.destination.ip(), 6, 60, 1460));
        body.extend(self.source.port().to_be_bytes());
        body.extend(self.destination.port().to_be_bytes());
        body.extend(self.seq.to_be_bytes());
        let check = checksum(&[&pseudo(self.from, self.to, body.len()), &body]);
        body[2..4].copy_from_slice(&check.to_be_bytes());
        let mut frame = self.link.concat();
        frame.extend(if six { [0x86, 0xdd] } else { [8, 0] });
        frame.extend(ip(self.from, self.to, if six { 58 } else { 1 }, self.hops, body.len()));
        frame.extend(body);
        frame
    }

    /// Reads a frame back, and checks every checksum in it and that the rest is as [`Self::bytes`] makes it.
    pub(crate) fn read(frame: &[u8]) -> Self {
        let six = frame[12..14] == [0x86, 0xdd];
        let (address, header) = if six { (16, 40) } else { (4, 20) };
        let ends = |ip: &[u8]| -> [IpAddr; 2] {
            let at = |at: usize| -> IpAddr {
                let octets = &ip[at..at + address];
                if six {
                    <[u8; 16]>::try_from(octets).expect("sixteen").into()
                } else {
                    <[u8; 4]>::try_from(octets).expect("four").into()
                }
            };
            let first = if six { 8 } else { 12 };
            [at(first), at(first + address)]
        };
        let (outer, body) = frame[14..].split_at(header);
        let (inner, tcp) = body[8..].split_at(header);
        let ([from, to], [source, destination]) = (ends(outer), ends(inner));
        assert_eq!(checksum(&[&pseudo(from, to, body.len()), body]), 0, "the message's checksum");
        if !six {
            assert_eq!(checksum(&[outer]), 0, "the IP header's checksum");
            assert_eq!(checksum(&[inner]), 0, "the quoted IP header's checksum");
        }
        let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        let message = Self {
            from,
            to,
            link: [frame[..6].try_into().expect("six"), frame[6..12].try_into().expect("six")],
            hops: outer[if six { 7 } else { 8 }],
            source: SocketAddr::new(source, port(0)),
            destination: SocketAddr::new(destination, port(2)),
            seq: u32::from_be_bytes(tcp[4..8].try_into().expect("four")),
        };
        assert_eq!(message.bytes(), frame, "nothing else has changed");
        message
    }
}
