//! The splice's tables, typed.

use std::collections::BTreeMap;

use aya::Pod;
use aya::maps::{Array, MapData, MapError, PerCpuArray};
use proxy_common::flows::{COUNTS, Counts, Dialing, FLOWS, FlowEntry, FlowKey, LISTENERS, POLICIES};
use proxy_common::splice::mirror::Copies;
use proxy_common::splice::policy::Policy;
use proxy_common::tables::PortKey;

use super::counts;
use crate::gateway::edge::PortTable;
use crate::kernel::EdgeError;
use crate::kernel::tables::{Hash, Raw, enough, failed, replace};

/// A policy, for aya.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct RawPolicy(Policy);

// SAFETY: repr(C), made of integers, and without padding by an assertion beside its definition.
unsafe impl Pod for RawPolicy {}

/// All but the sessions, which are mapped memory.
pub(super) struct Tables {
    pub(super) flows: Hash<FlowKey, FlowEntry>,
    pub(super) policies: Array<MapData, RawPolicy>,
    pub(super) listeners: Hash<PortKey, u32>,
    pub(super) dialing: Array<MapData, Raw<Dialing>>,
    pub(super) counters: PerCpuArray<MapData, Raw<Counts>>,
    pub(super) copies: PerCpuArray<MapData, Raw<Copies>>,
}

impl Tables {
    /// Enters a session's flows; where one can't be had, none is.
    pub(super) fn enter(&mut self, keys: &[FlowKey; 4], entry: impl Fn(u32) -> FlowEntry) -> Result<(), EdgeError> {
        for (role, key) in (0..).zip(keys) {
            if let Err(error) = self.flows.insert(Raw(*key), Raw(entry(role)), 0) {
                let FlowEntry { session, generation, .. } = entry(role);
                self.leave(keys, session, generation);
                return Err(failed("FLOWS", FLOWS)(error));
            }
        }
        Ok(())
    }

    /// Removes those of the flows that still are the session's own.
    pub(super) fn leave(&mut self, keys: &[FlowKey; 4], session: u32, generation: u32) {
        for key in keys {
            let own = |Raw(flow): Raw<FlowEntry>| (flow.session, flow.generation) == (session, generation);
            if self.flows.get(&Raw(*key), 0).is_ok_and(own) {
                // Gone meanwhile: a program removes flows whose addresses begin another connection.
                let _ = self.flows.remove(&Raw(*key));
            }
        }
    }

    /// What the kernel may pass on.
    pub(super) fn set_policy(&mut self, index: u16, policy: &Policy) -> Result<(), EdgeError> {
        self.policies.set(index.into(), RawPolicy(*policy), 0).map_err(failed("POLICIES", POLICIES))
    }

    /// Replaces the ports whose connections are to be spliceable: those that something answers at.
    pub(super) fn set_listeners(&mut self, ports: &PortTable) -> Result<(), EdgeError> {
        let wanted = listeners(ports);
        enough("LISTENERS", LISTENERS, wanted.len(), "give the virtual clusters shorter ranges or fewer addresses")?;
        replace(&mut self.listeners, wanted).map_err(failed("LISTENERS", LISTENERS))
    }

    /// Makes connections of sockets with a mark spliceable.
    pub(super) fn dial_with(&mut self, mark: u32) -> Result<(), EdgeError> {
        self.dialing.set(0, Raw(Dialing { mark, reserved: 0 }), 0).map_err(failed("DIALING", 1))
    }

    /// What was counted since the programs were loaded, by name.
    pub(super) fn counts(&self) -> Result<BTreeMap<&'static str, u64>, MapError> {
        let mut sum = [0u64; COUNTS];
        for Raw(cpu) in self.counters.get(&0, 0)?.iter() {
            sum.iter_mut().zip(cpu.counts).for_each(|(sum, n)| *sum += n);
        }
        let mut named = counts::named(&sum);
        let mut copies = Copies::default();
        for Raw(cpu) in self.copies.get(&0, 0)?.iter() {
            copies.pieces += cpu.pieces;
            copies.bytes += cpu.bytes;
            copies.lost += cpu.lost;
            copies.lost_bytes += cpu.lost_bytes;
        }
        named.extend(counts::of_copies(&copies));
        Ok(named)
    }
}

fn listeners(ports: &PortTable) -> BTreeMap<PortKey, u32> {
    let open = ports.iter().filter(|(_, port)| port.open);
    open.map(|(at, _)| (PortKey { address: at.ip().into(), port: at.port().into() }, 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::edge::{Port, Slot};

    #[test]
    fn listeners_are_the_ports_that_something_answers_at() {
        let port = |open| Port { slot: Slot(3), open };
        let at = |text: &str| text.parse().expect("an address");
        let ports =
            [(at("0.0.0.0:9092"), port(true)), (at("[::1]:9093"), port(true)), (at("0.0.0.0:9094"), port(false))];
        let found = listeners(&ports.into());
        let expected = [("0.0.0.0", 9092), ("::1", 9093)].map(|(address, port)| {
            let address: std::net::IpAddr = address.parse().expect("an address");
            PortKey { address: address.into(), port }
        });
        assert_eq!(found.into_keys().collect::<Vec<_>>(), expected);
    }
}
