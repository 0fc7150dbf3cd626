//! Where the programs stand: on the interfaces that clients and brokers are reached by, before all others.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as _;
use std::path::Path;

use aya::Ebpf;
use aya::programs::links::FdLink;
use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType};

use super::programs::{classifier, name};
use super::sets::{self, Set};
use super::sys::{Way, chain};
use crate::gateway::edge::SpliceInterface;
use crate::kernel::EdgeError;
use crate::kernel::backoff::Backoff;
use crate::kernel::offloads::obstacle;
use crate::kernel::programs::{pin_link, refused};

/// What may be changed now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leave {
    /// New interfaces get the programs; not those of a process that gave the pins away.
    pub(super) attach: bool,
    /// No session needs the programs where they are: they may be taken off for a moment.
    pub(super) move_about: bool,
}

/// What stands where.
#[derive(Debug)]
pub(super) struct Chain {
    /// Kernel ids of the programs, by way.
    programs: [u32; 2],
    /// By interface: its name, and why sessions can't use it.
    known: BTreeMap<u32, (String, Option<String>)>,
    retries: Backoff<u32>,
}

impl Chain {
    /// Of programs that are loaded.
    pub(super) fn new(programs: [u32; 2]) -> Self {
        Self { programs, known: BTreeMap::new(), retries: Backoff::default() }
    }

    /// What was tried in vain is tried again at once.
    pub(super) fn hurry(&mut self) {
        self.retries = Backoff::default();
    }

    /// Interfaces that sessions may use.
    pub(super) fn usable(&self) -> BTreeSet<u32> {
        self.known.iter().filter(|(_, (_, trouble))| trouble.is_none()).map(|(index, _)| *index).collect()
    }

    /// For operators.
    pub(super) fn status(&self) -> Vec<SpliceInterface> {
        let of =
            |(name, reason): &(String, Option<String>)| SpliceInterface { name: name.clone(), reason: reason.clone() };
        let mut all: Vec<_> = self.known.values().map(of).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Nothing stands anywhere any more.
    pub(super) fn lose(&mut self, why: &str) {
        self.known.values_mut().for_each(|(_, trouble)| *trouble = Some(why.to_owned()));
    }

    /// Brings it up to date: programs on the interfaces that are wanted, in front of all others, and on no other one.
    pub(super) fn upkeep(
        &mut self,
        ebpf: &mut Ebpf,
        pin: &Path,
        set: &Set,
        wanted: &BTreeMap<u32, String>,
        leave: Leave,
    ) {
        let mut attached = BTreeSet::new();
        for interface in set.interfaces() {
            if wanted.contains_key(&interface) && set.holds(interface) {
                attached.insert(interface);
            } else if let Err(error) = set.end(interface) {
                tracing::warn!("splice, interface {interface}: {error}");
            }
        }
        self.known.retain(|index, _| wanted.contains_key(index));
        self.retries.retain(|index| wanted.contains_key(index));
        for (&index, name) in wanted {
            let trouble = if attached.contains(&index) {
                self.look(ebpf, pin, set, index, name, leave)
            } else if !leave.attach {
                Some("the programs of another process are on it now".to_owned())
            } else if self.retries.is_due(&index) {
                self.attach(ebpf, set, index, name)
            } else {
                continue;
            };
            let was = self.known.insert(index, (name.clone(), trouble.clone())).and_then(|(_, trouble)| trouble);
            match trouble {
                Some(why) if was.as_ref() != Some(&why) => tracing::warn!("no splice by {name}: {why}"),
                None if was.is_some() => tracing::info!("connections by {name} can be spliced again"),
                _ => {}
            }
        }
    }

    /// Why an interface that has the programs can't be used.
    fn look(&mut self, ebpf: &mut Ebpf, pin: &Path, set: &Set, index: u32, name: &str, leave: Leave) -> Option<String> {
        if let Some(obstacle) = obstacle(name, index) {
            return Some(obstacle.to_string());
        }
        let ahead = match self.ahead(pin, index) {
            Ok(None) => {
                self.retries.retain(|other| *other != index);
                return None;
            }
            Ok(Some(ahead)) => ahead,
            Err(error) => return Some(format!("what stands on {name} can't be seen: {error}")),
        };
        if leave.attach && leave.move_about && self.retries.is_due(&index) {
            self.retries.failed(index);
            let again = set.end(index).err().map(|error| error.to_string());
            return again.or_else(|| self.attach(ebpf, set, index, name));
        }
        Some(format!(
            "another program (id {ahead}) stands before ours on {name}; attach it behind (`bpftool net show dev {name}`)"
        ))
    }

    /// Id of a program that stands before ours and is of no set: such take only what is theirs.
    fn ahead(&self, pin: &Path, index: u32) -> std::io::Result<Option<u32>> {
        for (way, own) in Way::BOTH.into_iter().zip(self.programs) {
            let ids = chain(index, way)?;
            let ahead = first_stranger(&ids, own, || sets::programs(pin));
            if ahead.is_some() {
                return Ok(ahead);
            }
        }
        Ok(None)
    }

    /// Puts both programs first; why not, where that fails.
    fn attach(&mut self, ebpf: &mut Ebpf, set: &Set, index: u32, name: &str) -> Option<String> {
        if let Some(obstacle) = obstacle(name, index) {
            return Some(obstacle.to_string());
        }
        let attached = Way::BOTH.into_iter().try_for_each(|way| attach_at(ebpf, set, way, index, name));
        let error = attached.err()?;
        self.retries.failed(index);
        // One way without the other is of no use.
        let _ = set.end(index);
        Some(explain(&error))
    }
}

fn attach_at(ebpf: &mut Ebpf, set: &Set, way: Way, index: u32, interface: &str) -> Result<(), EdgeError> {
    let program: &mut SchedClassifier = classifier(ebpf, name(way))?;
    let at = match way {
        Way::In => TcAttachType::Ingress,
        Way::Out => TcAttachType::Egress,
    };
    let first = TcAttachOptions::TcxOrder(LinkOrder::first());
    let link = program.attach_with_options(interface, at, first).map_err(refused(name(way)))?;
    let link = program.take_link(link).map_err(refused(name(way)))?;
    let link = FdLink::try_from(link).map_err(|e| EdgeError::Object(e.to_string()))?;
    pin_link(link, &set.link(way, index))
}

/// The innermost reason.
fn explain(error: &EdgeError) -> String {
    if let EdgeError::Pin { .. } = error {
        return error.to_string();
    }
    let mut why = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        why = error.to_string();
        next = error.source();
    }
    why
}

/// The first of the programs before our own that isn't one of `kin`.
fn first_stranger(chain: &[u32], own: u32, kin: impl FnOnce() -> BTreeSet<u32>) -> Option<u32> {
    let mut ahead = chain.iter().take_while(|id| **id != own).peekable();
    ahead.peek()?;
    let kin = kin();
    ahead.find(|id| !kin.contains(id)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_strangers_before_the_own_program_count() {
        let kin = || BTreeSet::from([7, 8]);
        assert_eq!(first_stranger(&[5, 1, 2], 5, || unreachable!("first")), None);
        assert_eq!(first_stranger(&[7, 8, 5, 1], 5, kin), None, "sets of other processes");
        assert_eq!(first_stranger(&[7, 1, 8, 5], 5, kin), Some(1));
        assert_eq!(first_stranger(&[1], 5, kin), Some(1), "ours isn't there at all");
    }
}
