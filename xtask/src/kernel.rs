//! The kernel programs' toolchain: which of the two ways this host has, and the build with it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::command::{self, Run, run};
use crate::workspace;

/// Version of bpf-linker that is installed and tested.
pub(crate) const BPF_LINKER: &str = "0.13.0";

/// Debian's compiler, beside the one of rustup.
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const DEBIAN_CARGO: &str = "/usr/bin/cargo";
/// The LLVM that Debian's compiler and `llvm-22-dev` share.
pub(crate) const DEBIAN_LLVM: &str = "22";

/// A compiler that can build `core` for the kernel's virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compiler {
    /// A nightly of rustup with the component rust-src.
    Nightly,
    /// Debian's rustc-web, cargo-web and rust-web-src.
    Debian,
}

/// The compiler this host has, if any.
pub(crate) fn compiler() -> Option<Compiler> {
    let nightly = || {
        let sysroot = run("rustc").args(["+nightly", "--print", "sysroot"]).ask()?;
        has_core(Path::new(&sysroot)).then_some(Compiler::Nightly)
    };
    let debian = || {
        let about = run(DEBIAN_RUSTC).arg("-vV").ask()?;
        let sysroot = run(DEBIAN_RUSTC).args(["--print", "sysroot"]).ask()?;
        let fits = llvm_major(&about) == Some(DEBIAN_LLVM) && has_core(Path::new(&sysroot));
        (fits && Path::new(DEBIAN_CARGO).exists()).then_some(Compiler::Debian)
    };
    nightly().or_else(debian)
}

fn has_core(sysroot: &Path) -> bool {
    sysroot.join("lib/rustlib/src/rust/library/core/src/lib.rs").is_file()
}

/// Major version in the `LLVM version:` line of `rustc -vV`.
fn llvm_major(about: &str) -> Option<&str> {
    about.lines().find_map(|l| l.strip_prefix("LLVM version: "))?.split('.').next()
}

/// Whether the linker is there.
pub(crate) fn has_linker() -> bool {
    command::exists("bpf-linker")
}

/// What is missing to build the programs, in one sentence; `None` when nothing is.
pub(crate) fn lacking() -> Option<&'static str> {
    match (compiler(), has_linker()) {
        (None, _) => Some("no compiler with the source of `core` (a nightly with rust-src, or Debian's rustc-web)"),
        (_, false) => Some("no bpf-linker"),
        _ => None,
    }
}

/// Cargo in `proxy-ebpf` with the right compiler.
fn cargo_for(compiler: Compiler) -> Run {
    let run = match compiler {
        Compiler::Nightly => run("cargo").arg("+nightly"),
        Compiler::Debian => run(DEBIAN_CARGO).env("RUSTC", DEBIAN_RUSTC).env("RUSTC_BOOTSTRAP", "1"),
    };
    // Flags and paths meant for the daemon's build; the programs have their own in proxy-ebpf/.cargo/config.toml.
    ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_TARGET_DIR", "CARGO_BUILD_TARGET", "RUSTUP_TOOLCHAIN", "CARGO"]
        .into_iter()
        .fold(run, Run::env_remove)
        .dir(workspace::root().join("proxy-ebpf"))
}

/// The objects: programs around the gateway's sockets, and the splice.
const OBJECTS: [&str; 2] = ["turnout-ebpf", "turnout-splice"];

/// Builds the objects and puts them where the daemon's build finds them; with `log`, programs that log what they refuse.
pub(crate) fn build(log: bool) -> Result<()> {
    let compiler = compiler().context("no compiler for the kernel programs")?;
    let build = cargo_for(compiler).args(["build", "--release", "--locked"]);
    if log { build.args(["--features", "log"]) } else { build }.go()?;
    OBJECTS.iter().try_for_each(|name| install(name))
}

fn install(name: &str) -> Result<()> {
    let built = workspace::root().join("proxy-ebpf/target/bpfel-unknown-none/release").join(name);
    let object = fs::read(&built).with_context(|| format!("reading {}", built.display()))?;
    let place = workspace::kernel_objects().join(name);
    // An object that is the same keeps its time, or the daemon would be built again.
    if fs::read(&place).is_ok_and(|there| there == object) {
        return Ok(());
    }
    fs::create_dir_all(workspace::kernel_objects())?;
    let draft = place.with_extension("new");
    fs::write(&draft, object)
        .and_then(|()| fs::rename(&draft, &place))
        .with_context(|| format!("writing {}", place.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_llvm_of_a_compiler_is_read_from_its_description() {
        assert_eq!(llvm_major("rustc 1.96.0\nhost: x86_64-unknown-linux-gnu\nLLVM version: 22.1.8\n"), Some("22"));
        assert_eq!(llvm_major("rustc 1.96.0"), None);
    }
}
