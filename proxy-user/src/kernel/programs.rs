//! The two programs: loaded against maps, pinned, given to links.

use std::error::Error;
use std::fs;
use std::os::fd::AsFd as _;
use std::path::Path;

use aya::pin::PinError;
use aya::programs::links::FdLink;
use aya::programs::{ProgramError, ProgramFd, SkLookup, Xdp};
use aya::{Ebpf, EbpfLoader};

use super::interfaces::has_lro;
use super::tables::Tables;
use super::{EdgeError, layout, object, pins, sys};

/// The XDP program.
pub(super) const ADMIT: &str = "turnout_admit";
/// The sk_lookup program.
pub(super) const STEER: &str = "turnout_steer";
/// Loads both programs with the maps of a folder, which are made where they aren't there.
pub(super) fn load(
    folder: &Path,
    object: &[u8],
    definitions: &layout::Definitions,
) -> Result<(Ebpf, Tables), EdgeError> {
    let mut loader = EbpfLoader::new();
    for name in definitions.keys() {
        loader.map_pin_path(name, folder.join(name));
    }
    let mut ebpf = loader.load(object)?;
    let tables = Tables::new(|name| ebpf.take_map(name).ok_or(EdgeError::Missing { what: "map", name }))?;
    load_programs(&mut ebpf)?;
    Ok((ebpf, tables))
}

/// Tries whether the kernel takes both programs; nothing is pinned or attached.
pub(super) fn try_to_load() -> Result<(), EdgeError> {
    let object = object().ok_or(EdgeError::NotBuilt)?;
    load_programs(&mut EbpfLoader::new().load(object)?)
}

fn load_programs(ebpf: &mut Ebpf) -> Result<(), EdgeError> {
    admit(ebpf)?.load().map_err(refused(ADMIT))?;
    steer(ebpf)?.load().map_err(refused(STEER))
}

/// The XDP program of an object.
pub(super) fn admit(ebpf: &mut Ebpf) -> Result<&mut Xdp, EdgeError> {
    let program = ebpf.program_mut(ADMIT).ok_or(EdgeError::Missing { what: "program", name: ADMIT })?;
    program.try_into().map_err(refused(ADMIT))
}

/// The sk_lookup program of an object.
pub(super) fn steer(ebpf: &mut Ebpf) -> Result<&mut SkLookup, EdgeError> {
    let program = ebpf.program_mut(STEER).ok_or(EdgeError::Missing { what: "program", name: STEER })?;
    program.try_into().map_err(refused(STEER))
}

pub(super) fn refused(name: &'static str) -> impl Fn(ProgramError) -> EdgeError {
    move |source| EdgeError::Program { name, source: Box::new(source) }
}

pub(super) fn program_fd(ebpf: &Ebpf, name: &'static str) -> Result<ProgramFd, EdgeError> {
    let program = ebpf.program(name).ok_or(EdgeError::Missing { what: "program", name })?;
    let fd = program.fd().map_err(refused(name))?;
    fd.try_clone().map_err(|source| EdgeError::System { what: "copying a program's descriptor", source })
}

/// Pins a program over its predecessor.
pub(super) fn pin_program(ebpf: &mut Ebpf, name: &'static str, folder: &Path) -> Result<(), EdgeError> {
    let (next, place) = (folder.join(format!("{name}{}", pins::NEXT)), folder.join(name));
    sys::pin_at(program_fd(ebpf, name)?.as_fd(), &next).map_err(EdgeError::pin("pin a program at", &next))?;
    fs::rename(&next, &place).map_err(EdgeError::pin("rename a program to", &place))
}

pub(super) fn pin_link(link: FdLink, path: &Path) -> Result<(), EdgeError> {
    // Of an interface that had this number before.
    let _ = fs::remove_file(path);
    let failed = |e: PinError| EdgeError::Pin {
        action: "pin a link at",
        path: path.to_owned(),
        source: match e {
            PinError::SyscallError(e) => e.io_error,
            e => std::io::Error::other(e),
        },
    };
    link.pin(path).map(drop).map_err(failed)
}

pub(super) fn replace_program(path: &Path, program: &ProgramFd) -> Result<(), EdgeError> {
    let link = sys::object_at(path).map_err(EdgeError::pin("open", path))?;
    match sys::replace_program(link.as_fd(), program.as_fd()) {
        // ENOLINK: the interface, or namespace, is gone.
        Err(e) if e.raw_os_error() == Some(libc::ENOLINK) => Ok(()),
        other => other.map_err(EdgeError::pin("replace the program of", path)),
    }
}

/// Why an interface takes no program, with what usually helps.
pub(super) fn explain(name: &str, error: &EdgeError) -> String {
    if let EdgeError::Pin { .. } = error {
        return error.to_string();
    }
    let mut why = String::new();
    let mut code = None;
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            code = io.raw_os_error().or(code);
        }
        why = error.to_string();
        next = error.source();
    }
    let remedy = match code {
        Some(libc::EBUSY | libc::EEXIST) => format!(
            "another XDP program is on {name}: take it off with `ip link set dev {name} xdp off` or whatever put it there"
        ),
        _ if has_lro(name) => format!("large receive offload is on: `ethtool -K {name} lro off`"),
        Some(libc::EOPNOTSUPP) => "the driver has no XDP of its own".to_owned(),
        Some(libc::EINVAL | libc::ERANGE) => "the MTU may be too large for the driver's XDP".to_owned(),
        _ => return why,
    };
    format!("{why} ({remedy})")
}
