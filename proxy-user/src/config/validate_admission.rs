//! Checks of who may connect, and of what runs in the kernel.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;

use super::model::{Admission, FastPath, Interfaces, NewConnections};
use super::path::{KeyPath, printable};
use super::prefix::{Cidr, PrefixLength};
use super::units::Size;
use super::validate::Check;
use super::yaml::Node;

/// Prefixes of one list: what the kernel's tables have room for.
pub(super) const MAX_PREFIXES: usize = 16_384;

/// `IFNAMSIZ` of include/uapi/linux/if.h, without the closing zero.
const MAX_INTERFACE_NAME: usize = 15;

/// Least and most memory for copies of frames: a few packets of the largest kind, and what a ring of the kernel's may have
/// on every host.
const MIRROR_BUFFER: [Size; 2] = [Size(64 << 10), Size(1 << 30)];

impl Check<'_> {
    pub(super) fn fast_path(&mut self, path: &KeyPath, fast_path: &FastPath) {
        let FastPath { mode: _, interfaces, pin, mirror_buffer } = fast_path;
        if !pin.is_absolute() {
            self.error(&path.key("pin"), "must be an absolute path on a bpffs, such as `/sys/fs/bpf/turnout`");
        }
        if !(MIRROR_BUFFER[0]..=MIRROR_BUFFER[1]).contains(mirror_buffer) {
            let [least, most] = MIRROR_BUFFER;
            self.error(&path.key("mirror_buffer"), format!("must be from `{least}` to `{most}`, such as `32MiB`"));
        }
        let Interfaces::Named(names) = interfaces else { return };
        let path = path.key("interfaces");
        let mut seen = HashSet::new();
        for (i, name) in names.iter().enumerate() {
            let fits = (1..=MAX_INTERFACE_NAME).contains(&name.len())
                && !matches!(name.as_str(), "." | "..")
                && name.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'/' | b':'));
            if !fits {
                self.error(&path.item(i), "no name of an interface: 1 to 15 letters, digits and signs, such as `eth0`");
            } else if !seen.insert(name) {
                self.error(&path.item(i), "this interface is listed twice");
            }
        }
    }

    pub(super) fn admission(&mut self, path: &KeyPath, admission: &Admission) {
        let Admission { deny, allow, new_connections } = admission;
        self.prefixes(&path.key("deny"), deny);
        self.prefixes(&path.key("allow"), allow);
        // One look for each length that occurs, so that long lists don't cost their product.
        let denied: HashSet<Cidr> = deny.iter().map(Cidr::corrected).collect();
        let lengths: BTreeSet<u8> = deny.iter().filter_map(Cidr::prefix).map(|prefix| prefix.length()).collect();
        for (i, allowed) in allow.iter().enumerate() {
            let covering =
                lengths.iter().filter_map(|&length| Cidr::new(allowed.address(), length)).map(|c| c.corrected());
            if let Some(covering) = covering.filter(|c| c.covers(allowed)).find(|c| denied.contains(c)) {
                let shown = self.shown_prefix(&path.key("deny"), deny, covering);
                self.warn(&path.key("allow").item(i), format!("never let in: {shown} is denied"));
            }
        }
        let Some(NewConnections { per, per_v6, rate: _, burst }) = new_connections else { return };
        let path = path.key("new_connections");
        for (key, PrefixLength(bits), most) in [("per", *per, 32), ("per_v6", *per_v6, 128)] {
            if !(1..=most).contains(&bits) {
                self.error(&path.key(key), format!("must be from `/1` to `/{most}`; such as `/{}`", most.min(64)));
            }
        }
        if burst.is_some_and(|burst| !(1..=1_000_000).contains(&burst)) {
            self.error(&path.key("burst"), "must be from 1 to 1000000; leave it out for twice the rate");
        }
    }

    fn prefixes(&mut self, path: &KeyPath, prefixes: &[Cidr]) {
        if prefixes.len() > MAX_PREFIXES {
            self.error(path, format!("{} prefixes; the tables have room for {MAX_PREFIXES}", prefixes.len()));
            return;
        }
        let mut seen = HashSet::new();
        for (i, cidr) in prefixes.iter().enumerate() {
            let path = path.item(i);
            if self.prefix(&path, cidr) && !seen.insert(*cidr) {
                self.error(&path, "this prefix is listed twice");
            }
        }
    }

    /// Whether it is written as it must be; else it is an error.
    pub(super) fn prefix(&mut self, path: &KeyPath, cidr: &Cidr) -> bool {
        let is_shown = !matches!(self.root.get(path), Some(Node::Text(raw)) if raw.contains('$'));
        match cidr.address() {
            IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
                self.error(path, "an IPv4 address in IPv6 clothes; write it as IPv4");
                false
            }
            _ if *cidr != cidr.corrected() => {
                let written = if is_shown { format!("; write `{}`", cidr.corrected()) } else { String::new() };
                self.error(path, format!("has bits set behind its length{written}"));
                false
            }
            _ => true,
        }
    }

    /// A prefix of a list as a message may show it.
    fn shown_prefix(&self, path: &KeyPath, list: &[Cidr], wanted: Cidr) -> String {
        let index = list.iter().position(|cidr| *cidr == wanted);
        match index.and_then(|i| self.root.get(&path.item(i))) {
            Some(Node::Text(raw)) => format!("`{}`", printable(raw)),
            _ => "a prefix around it".to_owned(),
        }
    }
}
