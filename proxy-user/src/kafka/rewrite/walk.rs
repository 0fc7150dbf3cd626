//! A walk over one frame: reads it, patches it, and notes what it told about the real cluster.

use std::ops::Range;

use super::{Addresses, SeenBroker};
use crate::kafka::ids::{NodeId, VirtualNodeId};
use crate::kafka::topics::SeenTopic;
use crate::kafka::wire::{MAX_STRING, Malformed, Patch, Reader, put_count, put_string, put_uvarint};

type Result<T> = std::result::Result<T, Malformed>;

/// Reading position, replacements so far and brokers seen so far.
pub(super) struct Walk<'a> {
    pub(super) r: Reader<'a>,
    pub(super) patch: Patch<'a>,
    pub(super) seen: Vec<SeenBroker>,
    /// Topics, where they are worth noting.
    pub(super) topics: Option<Vec<SeenTopic>>,
    body: &'a [u8],
    to: &'a dyn Addresses,
}

/// Which fields follow node id, host and port in an array of brokers.
#[derive(Clone, Copy)]
pub(super) struct BrokerFields {
    /// A nullable rack.
    pub(super) rack: bool,
    /// A flag for fenced brokers (DescribeCluster v2).
    pub(super) fenced: bool,
    /// Whether clients can reach them at all: controllers have no virtual broker.
    pub(super) reachable: bool,
}

/// Endpoints beside errors (KIP-951).
pub(super) const ENDPOINT_FIELDS: BrokerFields = BrokerFields { rack: true, fenced: false, reachable: true };

/// A node with its address.
struct Address<'a> {
    node: NodeId,
    host: &'a str,
    port: i32,
    /// Where the three fields lie: they are neighbours in every schema.
    range: Range<usize>,
}

struct Broker<'a> {
    address: Address<'a>,
    rack: Option<&'a [u8]>,
    fenced: bool,
    range: Range<usize>,
}

/// What becomes of a tagged field.
pub(super) enum Fate {
    Keep,
    Drop,
    /// New data.
    Replace(Vec<u8>),
}

impl<'a> Walk<'a> {
    pub(super) fn new(body: &'a [u8], flexible: bool, to: &'a dyn Addresses) -> Self {
        let topics = to.learns_topics().then(Vec::new);
        Self { r: Reader::new(body, flexible), patch: Patch::new(body), seen: Vec::new(), topics, body, to }
    }

    /// A walk over some bytes of the same frame, e.g. the data of a tagged field.
    fn inside(&self, range: Range<usize>) -> Walk<'a> {
        Walk::new(&self.body[range], self.r.flexible(), self.to)
    }

    /// Where clients reach `node`, if a virtual broker stands for it.
    fn address_of(&self, node: NodeId) -> Option<(&'a str, u16)> {
        if node.0 < 0 {
            return None;
        }
        self.to.broker(node).filter(|(host, _)| host.len() <= MAX_STRING as usize)
    }

    /// A node id: −1 and below pass.
    pub(super) fn node_id(&mut self) -> Result<Option<NodeId>> {
        let start = self.r.at();
        let raw = self.r.i32()?;
        if raw < 0 {
            return Ok(None);
        }
        let node = NodeId(raw);
        let VirtualNodeId(shown) = node.to_virtual();
        self.patch.replace(start..start + 4, &shown.to_be_bytes());
        Ok(Some(node))
    }

    /// An array of node ids; those that are worth noting, −1 left out.
    pub(super) fn node_ids(&mut self) -> Result<Vec<NodeId>> {
        let mut noted = Vec::new();
        for _ in 0..self.r.count()? {
            let node = self.node_id()?;
            if self.topics.is_some() {
                noted.extend(node);
            }
        }
        Ok(noted)
    }

    /// The cluster id in an answer. Empty and null pass: they stand beside an error.
    pub(super) fn cluster_id(&mut self) -> Result<Option<String>> {
        let start = self.r.at();
        let Some(real) = self.r.nullable_string()?.filter(|id| !id.is_empty()) else { return Ok(None) };
        if let Some(shown) = self.to.cluster_id() {
            self.replace_string(start, shown);
        }
        Ok(Some(String::from_utf8_lossy(real).into_owned()))
    }

    /// The cluster id in a request: the virtual one becomes the real one, any other passes (the broker refuses it).
    pub(super) fn real_cluster_id(&mut self) -> Result<()> {
        let start = self.r.at();
        let named = self.r.nullable_string()?;
        if let (Some(named), Some(shown), Some(real)) = (named, self.to.cluster_id(), self.to.real_cluster_id())
            && named == shown.as_bytes()
        {
            self.replace_string(start, real);
        }
        Ok(())
    }

    /// Replaces the string that was just read from `start` on.
    fn replace_string(&mut self, start: usize, with: &str) {
        let mut new = Vec::new();
        put_string(&mut new, self.r.flexible(), with);
        self.patch.replace(start..self.r.at(), &new);
    }

    /// Node id, host and port of a coordinator. Returns whether clients may use it; if not, it was blanked.
    pub(super) fn coordinator(&mut self) -> Result<bool> {
        let address = read_address(&mut self.r)?;
        let shown = self.address_of(address.node);
        let mut new = Vec::new();
        match shown {
            Some((host, port)) => {
                put_address(&mut new, self.r.flexible(), address.node.to_virtual(), host, port.into())
            }
            None => put_address(&mut new, self.r.flexible(), VirtualNodeId(-1), "", -1),
        }
        self.patch.replace(address.range.clone(), &new);
        self.note(&address, None);
        Ok(shown.is_some())
    }

    /// Whether clients may use the coordinator whose address is next; doesn't move.
    pub(super) fn coordinator_ahead(&self) -> Result<bool> {
        let address = read_address(&mut self.r.clone())?;
        Ok(self.address_of(address.node).is_some())
    }

    /// Listeners (name, host, port of 16 bits): the array becomes empty.
    pub(super) fn drop_listeners(&mut self) -> Result<()> {
        let start = self.r.at();
        for _ in 0..self.r.count()? {
            self.r.string()?;
            self.r.string()?;
            self.r.take(2)?;
            self.r.skip_tags()?;
        }
        let mut new = Vec::new();
        put_count(&mut new, self.r.flexible(), 0);
        self.patch.replace(start..self.r.at(), &new);
        Ok(())
    }

    /// An array of brokers: those that clients can't reach are left out.
    pub(super) fn brokers(&mut self, fields: BrokerFields) -> Result<()> {
        let start = self.r.at();
        let count = self.r.count()?;
        let kept = self.count_shown(count, fields)?;
        if kept != count {
            let mut new = Vec::new();
            put_count(&mut new, self.r.flexible(), kept);
            self.patch.replace(start..self.r.at(), &new);
        }
        let mut new = Vec::new();
        for _ in 0..count {
            let broker = read_broker(&mut self.r, fields)?;
            match self.address_of(broker.address.node).filter(|_| fields.reachable) {
                Some((host, port)) => {
                    new.clear();
                    let node = broker.address.node.to_virtual();
                    put_address(&mut new, self.r.flexible(), node, host, port.into());
                    self.patch.replace(broker.address.range.clone(), &new);
                }
                None => self.patch.replace(broker.range.clone(), &[]),
            }
            if fields.reachable && !broker.fenced {
                self.note(&broker.address, broker.rack);
            }
        }
        Ok(())
    }

    /// How many of the brokers ahead are shown; reads ahead without moving.
    fn count_shown(&self, count: u32, fields: BrokerFields) -> Result<u32> {
        let mut ahead = self.r.clone();
        let mut shown = 0;
        for _ in 0..count {
            let broker = read_broker(&mut ahead, fields)?;
            shown += u32::from(fields.reachable && self.address_of(broker.address.node).is_some());
        }
        Ok(shown)
    }

    fn note(&mut self, address: &Address<'_>, rack: Option<&[u8]>) {
        let (node, Ok(port)) = (address.node, u16::try_from(address.port)) else { return };
        if node.0 >= 0 && !address.host.is_empty() {
            let rack = rack.map(|rack| String::from_utf8_lossy(rack).into_owned());
            self.seen.push(SeenBroker { node, host: address.host.to_owned(), port, rack });
        }
    }

    /// A leader hint as plain fields (share APIs). It means something beside an error only; without one its
    /// fields are the schema's zeros, not an id.
    pub(super) fn leader(&mut self, beside_error: bool) -> Result<()> {
        let start = self.r.at();
        let raw = self.r.i32()?;
        self.r.i32()?;
        if beside_error && raw >= 0 {
            match self.address_of(NodeId(raw)) {
                Some(_) => self.patch.replace(start..start + 4, &NodeId(raw).to_virtual().0.to_be_bytes()),
                None => self.patch.replace(start..start + 8, &[0xff; 8]),
            }
        }
        self.r.skip_tags()
    }

    /// A section of tagged fields in which `wanted` is a leader hint: removed when clients can't reach the leader.
    pub(super) fn tags_with_leader(&mut self, wanted: u32) -> Result<()> {
        self.tags(wanted, |on| {
            let raw = on.r.i32()?;
            on.r.i32()?;
            on.r.skip_tags()?;
            on.r.end()?;
            if raw >= 0 && on.address_of(NodeId(raw)).is_none() {
                return Ok(Fate::Drop);
            }
            if raw >= 0 {
                on.patch.replace(0..4, &NodeId(raw).to_virtual().0.to_be_bytes());
            }
            Ok(on.patch_fate())
        })
    }

    /// A section of tagged fields in which `wanted` is an array of endpoints.
    pub(super) fn tags_with_endpoints(&mut self, wanted: u32) -> Result<()> {
        self.tags(wanted, |on| {
            on.brokers(ENDPOINT_FIELDS)?;
            on.r.end()?;
            Ok(on.patch_fate())
        })
    }

    fn patch_fate(&mut self) -> Fate {
        std::mem::replace(&mut self.patch, Patch::new(self.body)).finish().map_or(Fate::Keep, Fate::Replace)
    }

    /// A section of tagged fields: `decide` walks the data of the field `wanted`; all others are kept byte for byte.
    fn tags(&mut self, wanted: u32, decide: impl FnOnce(&mut Walk<'a>) -> Result<Fate>) -> Result<()> {
        let start = self.r.at();
        let count = self.r.tag_count()?;
        let fields_start = self.r.at();
        let mut found = None;
        for _ in 0..count {
            let at = self.r.at();
            let (number, data) = self.r.tag()?;
            if number == wanted && found.replace((at, data)).is_some() {
                return self.r.fail("tagged field given twice");
            }
        }
        let Some((at, data)) = found else { return Ok(()) };
        let mut inside = self.inside(data.clone());
        let fate = decide(&mut inside).map_err(|e| Malformed { at: e.at + data.start, ..e })?;
        self.seen.append(&mut inside.seen);
        match fate {
            Fate::Keep => {}
            Fate::Drop => {
                let mut new = Vec::new();
                put_uvarint(&mut new, count - 1);
                self.patch.replace(start..fields_start, &new);
                self.patch.replace(at..data.end, &[]);
            }
            Fate::Replace(with) => {
                let mut new = Vec::with_capacity(with.len() + 10);
                put_uvarint(&mut new, wanted);
                put_uvarint(&mut new, with.len() as u32);
                new.extend_from_slice(&with);
                self.patch.replace(at..data.end, &new);
            }
        }
        Ok(())
    }
}

fn read_address<'a>(r: &mut Reader<'a>) -> Result<Address<'a>> {
    let start = r.at();
    let node = NodeId(r.i32()?);
    let host = r.text()?;
    let port = r.i32()?;
    Ok(Address { node, host, port, range: start..r.at() })
}

fn read_broker<'a>(r: &mut Reader<'a>, fields: BrokerFields) -> Result<Broker<'a>> {
    let start = r.at();
    let address = read_address(r)?;
    let rack = if fields.rack { r.nullable_string()? } else { None };
    let fenced = fields.fenced && r.i8()? != 0;
    r.skip_tags()?;
    Ok(Broker { address, rack, fenced, range: start..r.at() })
}

fn put_address(out: &mut Vec<u8>, flexible: bool, node: VirtualNodeId, host: &str, port: i32) {
    out.extend_from_slice(&node.0.to_be_bytes());
    put_string(out, flexible, host);
    out.extend_from_slice(&port.to_be_bytes());
}
