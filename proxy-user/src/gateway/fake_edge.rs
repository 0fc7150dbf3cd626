//! A kernel that does what it is told, for tests: it keeps what it was given, and fails on demand.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::edge::{
    AdmissionRules, Edge, EdgeCounters, EdgeSource, EdgeStatus, InterfaceStatus, PortTable, RefusedSource, Slot,
    SpliceInterface, SpliceStatus,
};
use super::splicing_tests::{Kernel, Source};
use crate::splice::session::Splicer;

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) ports: PortTable,
    /// Every table so far.
    pub(super) tables: Vec<PortTable>,
    pub(super) admission: AdmissionRules,
    pub(super) sockets: Vec<SocketAddr>,
    pub(super) interfaces: Vec<InterfaceStatus>,
    pub(super) wanted: Option<Vec<String>>,
    pub(super) counters: BTreeMap<Slot, EdgeCounters>,
    pub(super) refused: Vec<RefusedSource>,
    pub(super) detached: bool,
    pub(super) lost: Option<String>,
    pub(super) upkeeps: u32,
    /// Ports that the table has room for.
    pub(super) room: Option<usize>,
    pub(super) refuses_admission: bool,
    pub(super) refuses_sockets: bool,
    /// Why no connection can be spliced.
    pub(super) lacks_splice: Option<&'static str>,
    /// Ports that were open and left the table while nobody listened on them.
    pub(super) gaps: Vec<SocketAddr>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct FakeEdge(Mutex<State>);

impl FakeEdge {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An interface with the program on it, or why not.
    pub(super) fn interface(&self, name: &str, mode: Option<&'static str>) {
        let reason = mode.is_none().then(|| "its driver has no XDP".to_owned());
        self.state().interfaces.push(InterfaceStatus { name: name.to_owned(), mode, reason });
    }

    /// Open ports of the table.
    pub(super) fn open(&self) -> Vec<String> {
        let state = self.state();
        state.ports.iter().filter(|(_, port)| port.open).map(|(address, _)| address.to_string()).collect()
    }

    /// Ports of the table that are refused.
    pub(super) fn closed(&self) -> usize {
        self.state().ports.values().filter(|port| !port.open).count()
    }

    /// Port of the first shared IPv4 socket. A virtual cluster that has it as its own gets connections as if they were
    /// steered.
    pub(super) fn shared_port(&self) -> u16 {
        self.state().sockets.iter().find(|address| address.is_ipv4()).expect("a shared socket").port()
    }
}

impl Edge for FakeEdge {
    fn set_ports(&self, ports: &PortTable) -> anyhow::Result<()> {
        let mut state = self.state();
        if state.room.is_some_and(|room| ports.len() > room) {
            anyhow::bail!("the map of ports is full");
        }
        assert!(!state.detached, "told after it was detached");
        assert!(ports.values().all(|port| !port.open) || !state.sockets.is_empty(), "open before there are sockets");
        let left: Vec<_> = state.ports.iter().filter(|(at, port)| port.open && !ports.contains_key(at)).collect();
        let deaf = |at: &SocketAddr| TcpStream::connect_timeout(at, Duration::from_secs(1)).is_err();
        let gaps: Vec<_> = left.into_iter().map(|(at, _)| *at).filter(deaf).collect();
        state.gaps.extend(gaps);
        state.tables.push(ports.clone());
        state.ports = ports.clone();
        Ok(())
    }

    fn set_admission(&self, rules: &AdmissionRules) -> anyhow::Result<()> {
        let mut state = self.state();
        if state.refuses_admission && !rules.deny.is_empty() {
            anyhow::bail!("the map of prefixes is full");
        }
        state.admission = rules.clone();
        Ok(())
    }

    fn set_sockets(&self, sockets: &[BorrowedFd<'_>]) -> anyhow::Result<()> {
        let mut state = self.state();
        if state.refuses_sockets {
            anyhow::bail!("EOPNOTSUPP");
        }
        let address = |socket: &BorrowedFd<'_>| {
            let socket = socket2::SockRef::from(socket).local_addr().expect("a socket");
            socket.as_socket().expect("an IP address")
        };
        state.sockets = sockets.iter().map(address).collect();
        Ok(())
    }

    fn set_interfaces(&self, wanted: Option<&[String]>) {
        self.state().wanted = wanted.map(<[String]>::to_vec);
    }

    fn upkeep(&self) {
        self.state().upkeeps += 1;
    }

    fn lost(&self) -> Option<String> {
        self.state().lost.clone()
    }

    fn counters(&self) -> BTreeMap<Slot, EdgeCounters> {
        self.state().counters.clone()
    }

    fn refused_sources(&self, limit: usize) -> Vec<RefusedSource> {
        self.state().refused.iter().take(limit).cloned().collect()
    }

    fn status(&self) -> EdgeStatus {
        let state = self.state();
        EdgeStatus {
            interfaces: state.interfaces.clone(),
            steering: !state.sockets.is_empty(),
            ..EdgeStatus::default()
        }
    }

    fn splicer(&self) -> Result<Arc<dyn Splicer>, String> {
        match self.state().lacks_splice {
            Some(why) => Err(why.to_owned()),
            None => Ok(Arc::new(Source(Kernel::of_loopback()))),
        }
    }

    fn splice_status(&self) -> Option<SpliceStatus> {
        let interfaces = vec![SpliceInterface { name: "wg0".into(), reason: Some("it has LRO".into()) }];
        Some(SpliceStatus { interfaces, sessions: 3, room: 100, ..SpliceStatus::default() })
    }

    fn release(&self) {}

    fn lock(&self) -> Option<OwnedFd> {
        std::fs::File::open("/dev/null").ok().and_then(|file| file.as_fd().try_clone_to_owned().ok())
    }

    fn detach(&self) -> anyhow::Result<()> {
        self.state().detached = true;
        Ok(())
    }
}

/// Gives a [`FakeEdge`], or refuses.
#[derive(Debug, Default)]
pub(super) struct FakeSource {
    pub(super) edge: Mutex<Arc<FakeEdge>>,
    pub(super) refuse: Mutex<Option<&'static str>>,
    pub(super) pins: Mutex<Vec<PathBuf>>,
}

impl FakeSource {
    pub(super) fn edge(&self) -> Arc<FakeEdge> {
        Arc::clone(&self.edge.lock().unwrap())
    }

    pub(super) fn refuse(&self, why: Option<&'static str>) {
        *self.refuse.lock().unwrap() = why;
    }
}

impl EdgeSource for FakeSource {
    fn open(&self, pin: &Path, _lock: Option<OwnedFd>, _mirror: Option<u64>) -> anyhow::Result<Arc<dyn Edge>> {
        if let Some(why) = *self.refuse.lock().unwrap() {
            anyhow::bail!("{why}");
        }
        self.pins.lock().unwrap().push(pin.to_owned());
        let mut edge = self.edge.lock().unwrap();
        if edge.state().detached {
            *edge = Arc::default();
        }
        Ok(Arc::clone(&*edge) as Arc<dyn Edge>)
    }
}
