//! The splice's programs and maps, loaded for one process.

use std::os::fd::AsFd as _;

use aya::maps::Map;
use aya::programs::{ProgramFd, SchedClassifier, SocketFilter};
use aya::{Ebpf, EbpfLoader};
use proxy_common::flows::SESSIONS;

use super::ring::{self, Ring};
use super::selftest;
use super::sys::{Memory, Way};
use super::tables::Tables;
use crate::kernel::EdgeError;
use crate::kernel::programs::{program_fd, refused};
use crate::kernel::tables::failed;

/// Run by hand.
const RECALL: &str = "turnout_recall";
/// The socket filter.
const STAMPED: &str = "turnout_stamped";
/// What the programs know their stamp by.
const STAMP: &str = "SET_STAMP";

/// The program at the way in, or out.
pub(super) const fn name(way: Way) -> &'static str {
    match way {
        Way::In => "turnout_splice_in",
        Way::Out => "turnout_splice_out",
    }
}

/// Everything that was loaded.
pub(super) struct Loaded {
    pub(super) ebpf: Ebpf,
    pub(super) tables: Tables,
    pub(super) memory: Memory,
    /// Where copies of frames are put; `None`: nobody wants any.
    pub(super) ring: Option<Ring>,
    pub(super) recall: ProgramFd,
    pub(super) stamped: ProgramFd,
    /// Kernel ids of the programs that stand on interfaces, by way.
    pub(super) ids: [u32; 2],
}

/// Loads it, with maps of its own, and tries it. `mirror`: bytes for copies of frames, if there are to be any.
pub(super) fn load(object: &[u8], mirror: Option<u64>) -> Result<Loaded, EdgeError> {
    let stamp = stamp(rand::random());
    let mut loader = EbpfLoader::new();
    loader.override_global(STAMP, &stamp, true);
    if let Some(buffer) = mirror {
        loader.map_max_entries("MIRROR", ring::size(buffer));
    }
    let mut ebpf = loader.load(object)?;
    for name in [name(Way::In), name(Way::Out), RECALL] {
        classifier(&mut ebpf, name)?.load().map_err(refused(name))?;
    }
    let filter: &mut SocketFilter = ebpf
        .program_mut(STAMPED)
        .ok_or(EdgeError::Missing { what: "program", name: STAMPED })?
        .try_into()
        .map_err(refused(STAMPED))?;
    filter.load().map_err(refused(STAMPED))?;
    macro_rules! table {
        ($name:literal) => {
            ebpf.take_map($name)
                .ok_or(EdgeError::Missing { what: "map", name: $name })?
                .try_into()
                .map_err(failed($name, 0))?
        };
    }
    let mut tables = Tables {
        flows: table!("FLOWS"),
        policies: table!("POLICIES"),
        listeners: table!("LISTENERS"),
        dialing: table!("DIALING"),
        counters: table!("COUNTERS"),
        copies: table!("COPIES"),
    };
    let ring = match mirror {
        Some(buffer) => Some(Ring { map: table!("MIRROR"), size: ring::size(buffer) }),
        None => None,
    };
    let Some(Map::Array(sessions)) = ebpf.take_map("SESSIONS") else {
        return Err(EdgeError::Missing { what: "map", name: "SESSIONS" });
    };
    let memory = Memory::of(sessions.fd().as_fd(), SESSIONS)
        .map_err(|source| EdgeError::System { what: "mapping the memory of sessions", source })?;
    let ids = [id(&mut ebpf, name(Way::In))?, id(&mut ebpf, name(Way::Out))?];
    let (recall, stamped) = (program_fd(&ebpf, RECALL)?, program_fd(&ebpf, STAMPED)?);
    let ways = [program_fd(&ebpf, name(Way::In))?, program_fd(&ebpf, name(Way::Out))?];
    let programs = selftest::Programs { ways: ways.each_ref().map(|fd| fd.as_fd()), recall: recall.as_fd() };
    selftest::run(&programs, &mut tables, &memory)?;
    Ok(Loaded { ebpf, tables, memory, ring, recall, stamped, ids })
}

fn id(ebpf: &mut Ebpf, name: &'static str) -> Result<u32, EdgeError> {
    Ok(classifier(ebpf, name)?.info().map_err(refused(name))?.id())
}

/// One of the classifiers.
pub(super) fn classifier<'a>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut SchedClassifier, EdgeError> {
    let program = ebpf.program_mut(name).ok_or(EdgeError::Missing { what: "program", name })?;
    program.try_into().map_err(refused(name))
}

/// Another value for each process: even, because the one above it is the set's as well, and none that packets have by
/// themselves.
const fn stamp(random: u16) -> u16 {
    0x4000 + 2 * (random & 0x3fff)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without the right to load programs, or without programs, there is nothing to see.
    #[test]
    fn the_self_test_finds_programs_that_do_something_else() {
        let Some(object) = crate::kernel::splice_object() else { return };
        let Ok(Loaded { ebpf, mut tables, memory, recall, .. }) = load(object, None) else { return };
        let [way_in, way_out] = Way::BOTH.map(|way| program_fd(&ebpf, name(way)).expect("loaded"));
        let mut go = |ways| {
            let programs = selftest::Programs { ways, recall: recall.as_fd() };
            selftest::run(&programs, &mut tables, &memory)
        };
        go([way_in.as_fd(), way_out.as_fd()]).expect("it was fine at loading");
        let error = go([way_out.as_fd(), way_in.as_fd()]).expect_err("each in the place of the other");
        assert!(matches!(&error, EdgeError::SelfTest(what) if what.contains("a request: verdict")), "{error}");
    }

    #[test]
    fn two_stamps_are_the_same_or_have_nothing_in_common() {
        for random in 0..=u16::MAX {
            let stamp = stamp(random);
            assert!(stamp >= 0x4000 && stamp.is_multiple_of(2), "{stamp:#x}");
        }
    }
}
