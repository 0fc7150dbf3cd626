//! Embeds the kernel programs, where they were built: `cargo xtask build` leaves them in `target/bpf/`.
//!
//! `TURNOUT_EBPF_OBJECT` names another object; set to nothing it means "build without". A plain `cargo build` on a
//! host without the kernel toolchain embeds nothing, and the daemon says so. The splice's object is looked for beside it.

use std::path::{Path, PathBuf};
use std::{env, fs};

const VARIABLE: &str = "TURNOUT_EBPF_OBJECT";

fn main() {
    println!("cargo::rustc-check-cfg=cfg(kernel_programs, splice_programs)");
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    println!("cargo::rerun-if-changed=build.rs");

    let Some(object) = object() else { return };
    embed(&object, "turnout-ebpf", "kernel_programs");
    let splice = object.with_file_name("turnout-splice");
    if splice.is_file() {
        embed(&splice, "turnout-splice", "splice_programs");
    }
}

fn embed(object: &Path, name: &str, cfg: &str) {
    println!("cargo::rerun-if-changed={}", object.display());
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join(name);
    match fs::copy(object, &out) {
        Ok(_) => println!("cargo::rustc-cfg={cfg}"),
        Err(e) => println!("cargo::error=can't copy {} to {}: {e}", object.display(), out.display()),
    }
}

/// The object to embed, if any; tells cargo when to ask again.
fn object() -> Option<PathBuf> {
    if let Some(named) = env::var_os(VARIABLE) {
        if named.is_empty() {
            return None;
        }
        return Some(PathBuf::from(named));
    }
    let folder = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../target/bpf");
    // Cargo reruns a script for ever while a path it watches is missing: make the folder, and watch that. Where it
    // can't be made (a read-only source tree) there is nothing to embed either.
    if fs::create_dir_all(&folder).is_err() {
        return None;
    }
    println!("cargo::rerun-if-changed={}", folder.display());
    let object = folder.join("turnout-ebpf");
    object.is_file().then_some(object)
}
