//! The splice's programs and tables, loaded for one test.

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, AsRawFd};

use aya::maps::{Array, HashMap, Map, MapData, PerCpuArray, RingBuf};
use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, SchedClassifier, SocketFilter, TcAttachType};
use aya::{Ebpf, EbpfLoader, Pod};
use proxy_common::flows::{COUNTS, Count, Counts, Dialing, FlowEntry, FlowKey, Recalled, Role, Slot};
use proxy_common::splice::mirror::{Copies, Head};
use proxy_common::splice::policy::Policy;
use proxy_common::splice::state::{Leg, Side};
use proxy_common::tables::{Address, Plain, PortKey};

use crate::sys::{Context, Mapping, run_classifier, set_option};

/// Bytes of the ring for copies of frames, where a test asks for no other.
const RING: u32 = 256 << 10;

/// Sessions in a test; the tables of the daemon are larger.
pub(crate) const SESSIONS: u32 = 256;

const IN: &str = "turnout_splice_in";
const OUT: &str = "turnout_splice_out";
const RECALL: &str = "turnout_recall";
const STAMPED: &str = "turnout_stamped";

/// A layout of `proxy-common`, for aya.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Raw<T>(pub(crate) T);

// SAFETY: `Plain` promises a layout without padding in which every bit pattern is a value.
unsafe impl<T: Plain> Pod for Raw<T> {}

/// A policy, for aya.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
struct RawPolicy(Policy);

// SAFETY: repr(C), made of integers, and without padding by an assertion beside its definition.
unsafe impl Pod for RawPolicy {}

/// All of it.
pub(crate) struct Programs {
    ebpf: Ebpf,
    flows: HashMap<MapData, Raw<FlowKey>, Raw<FlowEntry>>,
    policies: Array<MapData, RawPolicy>,
    listeners: HashMap<MapData, Raw<PortKey>, u32>,
    dialing: Array<MapData, Raw<Dialing>>,
    counters: PerCpuArray<MapData, Raw<Counts>>,
    copies: PerCpuArray<MapData, Raw<Copies>>,
    ring: Option<RingBuf<MapData>>,
    slots: Mapping<Slot>,
}

impl Programs {
    /// Loads the programs with tables of their own.
    pub(crate) fn load() -> Self {
        Self::load_with_ring(RING)
    }

    /// The same with a ring of so many bytes.
    pub(crate) fn load_with_ring(ring: u32) -> Self {
        let object = turnout::kernel::splice_object().expect("built with kernel programs");
        let mut ebpf = EbpfLoader::new()
            .map_max_entries("SESSIONS", SESSIONS)
            .map_max_entries("LOCKS", SESSIONS)
            .map_max_entries("MIRROR", ring)
            .load(object)
            .expect("the object loads");
        for name in [IN, OUT, RECALL] {
            let program: &mut SchedClassifier = ebpf.program_mut(name).expect(name).try_into().expect("a classifier");
            program.load().unwrap_or_else(|e| panic!("{name}: {e}"));
        }
        let filter: &mut SocketFilter = ebpf.program_mut(STAMPED).expect(STAMPED).try_into().expect("a filter");
        filter.load().unwrap_or_else(|e| panic!("{STAMPED}: {e}"));
        macro_rules! table {
            ($name:literal) => {
                ebpf.take_map($name).expect($name).try_into().expect($name)
            };
        }
        let Some(Map::Array(sessions)) = ebpf.take_map("SESSIONS") else { panic!("SESSIONS is an array") };
        let slots = Mapping::new(sessions.fd().as_fd(), SESSIONS as usize).expect("the sessions' memory");
        Self {
            flows: table!("FLOWS"),
            policies: table!("POLICIES"),
            listeners: table!("LISTENERS"),
            dialing: table!("DIALING"),
            counters: table!("COUNTERS"),
            copies: table!("COPIES"),
            ring: Some(table!("MIRROR")),
            slots,
            ebpf,
        }
    }

    fn classifier(&self, name: &str) -> &SchedClassifier {
        self.ebpf.program(name).expect(name).try_into().expect("a classifier")
    }

    /// Instructions that the verifier went through for each program.
    pub(crate) fn verified(&self) -> Vec<(&'static str, u32)> {
        [IN, OUT, RECALL]
            .into_iter()
            .map(|name| {
                let info = self.classifier(name).info().expect("info");
                (name, info.verified_instruction_count().expect("the kernel says"))
            })
            .collect()
    }

    /// Runs and nanoseconds each, of the programs on the way in and out; the time of what they call is in it. Counted
    /// while [`aya::sys::enable_stats`] holds.
    pub(crate) fn cost(&self) -> [(u64, u64); 2] {
        [IN, OUT].map(|name| {
            let info = self.classifier(name).info().expect("info");
            (info.run_count(), (info.run_time().as_nanos() as u64).checked_div(info.run_count()).unwrap_or(0))
        })
    }

    /// Puts both programs first on an interface of the calling thread's namespace, until this is dropped.
    pub(crate) fn attach(&mut self, interface: &str) {
        for (name, direction) in [(IN, TcAttachType::Ingress), (OUT, TcAttachType::Egress)] {
            let program: &mut SchedClassifier =
                self.ebpf.program_mut(name).expect(name).try_into().expect("a classifier");
            program
                .attach_with_options(interface, direction, TcAttachOptions::TcxOrder(LinkOrder::first()))
                .unwrap_or_else(|e| panic!("{name} on {interface}: {e}"));
        }
    }

    /// Lets a socket have stamped packets only, for its life.
    pub(crate) fn guard(&self, socket: &impl AsRawFd) {
        let filter: &SocketFilter = self.ebpf.program(STAMPED).expect(STAMPED).try_into().expect("a filter");
        let filter = filter.fd().expect("loaded").as_fd().as_raw_fd();
        set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, filter).expect("the filter is taken");
    }

    /// What a policy says.
    pub(crate) fn set_policy(&mut self, index: u32, policy: &Policy) {
        self.policies.set(index, RawPolicy(*policy), 0).expect("a policy");
    }

    /// Makes connections to a port spliceable.
    pub(crate) fn listen(&mut self, at: SocketAddr) {
        let key = PortKey { address: Address::from(at.ip()), port: at.port().into() };
        self.listeners.insert(Raw(key), 1, 0).expect("a listener");
    }

    /// Makes connections of sockets with a mark spliceable.
    pub(crate) fn dial_with(&mut self, mark: u32) {
        self.dialing.set(0, Raw(Dialing { mark, reserved: 0 }), 0).expect("a mark");
    }

    /// A slot, in memory shared with the programs.
    pub(crate) fn slot(&self, session: u32) -> *mut Slot {
        self.slots.at(session as usize)
    }

    /// Enters a session's flows.
    pub(crate) fn enter(&mut self, session: u32, generation: u32, legs: &[Leg; 2], policy: u32) {
        for role in Role::ALL {
            let key = FlowKey::of(role, &legs[role.side().index()]);
            let entry = FlowEntry { session, generation, role: role.number(), policy };
            self.flows.insert(Raw(key), Raw(entry), 0).expect("a flow");
        }
    }

    /// Roles that still lead to a session of these legs.
    pub(crate) fn entered(&self, legs: &[Leg; 2]) -> Vec<Role> {
        let known = |role: &Role| self.flows.get(&Raw(FlowKey::of(*role, &legs[role.side().index()])), 0).is_ok();
        Role::ALL.into_iter().filter(known).collect()
    }

    /// Removes a session's flows.
    pub(crate) fn leave(&mut self, legs: &[Leg; 2]) {
        for role in Role::ALL {
            let _ = self.flows.remove(&Raw(FlowKey::of(role, &legs[role.side().index()])));
        }
    }

    /// What was counted since they were loaded.
    pub(crate) fn counts(&self) -> Counts {
        let mut sum = Counts { counts: [0; COUNTS] };
        for Raw(cpu) in self.counters.get(&0, 0).expect("counters").iter() {
            sum.counts.iter_mut().zip(cpu.counts).for_each(|(sum, n)| *sum += n);
        }
        sum
    }

    /// One of them.
    pub(crate) fn count(&self, what: Count) -> u64 {
        self.counts().counts[what.index()]
    }

    /// What was copied since they were loaded.
    pub(crate) fn copies(&self) -> Copies {
        let mut sum = Copies::default();
        for Raw(cpu) in self.copies.get(&0, 0).expect("counters").iter() {
            sum.pieces += cpu.pieces;
            sum.bytes += cpu.bytes;
            sum.lost += cpu.lost;
            sum.lost_bytes += cpu.lost_bytes;
        }
        sum
    }

    /// The ring, for who reads it.
    pub(crate) fn take_ring(&mut self) -> RingBuf<MapData> {
        self.ring.take().expect("nobody has it yet")
    }

    /// Everything in the ring: heads, their bytes, and the room that each takes.
    pub(crate) fn pieces(&mut self) -> Vec<(Head, Vec<u8>, usize)> {
        let ring = self.ring.as_mut().expect("nobody has it");
        let mut pieces = vec![];
        while let Some(record) = ring.next() {
            let (head, bytes) = record.split_at(size_of::<Head>());
            // SAFETY: as many bytes as a head has, which is made of integers (`Plain`).
            let head = unsafe { head.as_ptr().cast::<Head>().read_unaligned() };
            pieces.push((head, bytes[..head.length as usize].to_vec(), record.len()));
        }
        pieces
    }

    /// Forgets all listeners.
    pub(crate) fn listen_nowhere(&mut self) {
        let keys: Vec<_> = self.listeners.keys().map_while(Result::ok).collect();
        keys.iter().for_each(|key| self.listeners.remove(key).expect("a listener"));
    }

    /// Runs the program at the way in.
    pub(crate) fn run_in(&self, frame: &[u8], context: &Context) -> (i32, Vec<u8>) {
        let program = self.classifier(IN).fd().expect("loaded");
        run_classifier(program.as_fd(), frame, context).expect("the program runs")
    }

    /// Runs the program at the way out.
    pub(crate) fn run_out(&self, frame: &[u8], context: &Context) -> (i32, Vec<u8>) {
        let program = self.classifier(OUT).fd().expect("loaded");
        run_classifier(program.as_fd(), frame, context).expect("the program runs")
    }

    /// Takes a direction back.
    pub(crate) fn recall(&self, session: u32, direction: Side, generation: u32) -> Recalled {
        let program = self.classifier(RECALL).fd().expect("loaded");
        let cb = [session, direction as u32, generation, 0, 0];
        let context = Context { cb, ..Context::default() };
        let (verdict, _) = run_classifier(program.as_fd(), &[0; 64], &context).expect("the program runs");
        match verdict {
            0 => Recalled::WasLocal,
            1 => Recalled::WasPeer,
            2 => Recalled::Unknown,
            3 => Recalled::Busy,
            other => panic!("recall said {other}"),
        }
    }
}
