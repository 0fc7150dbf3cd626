//! Carrying a plan out.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::plan::{CARGO_DENY, GO, Package, Plan, Step};
use crate::command::{cargo, run};
use crate::{kernel, workspace};

/// Does the steps in order; the first that fails ends it.
pub(crate) fn carry_out(plan: &Plan) -> Result<()> {
    for step in &plan.steps {
        take(step).with_context(|| format!("installing {}", step.what()))?;
    }
    Ok(())
}

fn take(step: &Step) -> Result<()> {
    match step {
        Step::Packages { sudo, packages } => apt(*sudo, packages),
        Step::Components(names) => run("rustup").args(["component", "add"]).args(names).go(),
        Step::Nightly => run("rustup")
            .args(["toolchain", "install", "nightly", "--profile", "minimal", "--component", "rust-src"])
            .go(),
        Step::BpfLinker { debian } => bpf_linker(*debian),
        Step::CargoDeny => cargo()
            .args(["install", "cargo-deny", "--version", CARGO_DENY, "--locked", "--no-default-features"])
            .dir("/")
            .go(),
        Step::Go => go(),
    }
}

fn apt(sudo: bool, packages: &[Package]) -> Result<()> {
    let apt = |args: &[&str]| {
        if sudo { run("sudo").args(["-n", "env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]) } else { run("apt-get") }
            .args(args)
            .env("DEBIAN_FRONTEND", "noninteractive")
    };
    apt(&["update", "-qq"]).go().context("the package lists can't be had; is there a network?")?;
    apt(&["install", "-y", "-qq", "--no-install-recommends"]).args(packages.iter().map(|p| p.name)).go()
}

fn bpf_linker(debian: bool) -> Result<()> {
    let install = cargo().args(["install", "bpf-linker", "--version", kernel::BPF_LINKER, "--locked"]);
    let install = if debian {
        let llvm = format!("/usr/lib/llvm-{}", kernel::DEBIAN_LLVM);
        install
            .args(["--no-default-features", "--features", &format!("llvm-{}", kernel::DEBIAN_LLVM)])
            .env("LLVM_PREFIX", &llvm)
            .env("LLVM_SYS_221_PREFIX", &llvm)
    } else {
        install
    };
    // Outside the workspace: its settings are not the linker's.
    install.dir("/").go()
}

/// A Go toolchain is a module like any other to the module proxy and the checksum database; a `go` from 1.21 on fetches
/// it by itself, an older one can be told to.
fn go() -> Result<()> {
    let platform = run("go").args(["env", "GOOS", "GOARCH"]).ask().context("go doesn't name its platform")?;
    let platform: Vec<_> = platform.split_whitespace().collect();
    ensure!(platform.len() == 2, "go doesn't name its platform");
    let module = format!("golang.org/toolchain@v0.0.1-go{GO}.{}-{}", platform[0], platform[1]);
    // The command wants a module around it.
    let around = workspace::scratch().join("tools/go");
    fs::create_dir_all(&around)?;
    fs::write(around.join("go.mod"), "module tools\n")?;
    run("go").args(["mod", "download", &module]).dir(&around).go()?;

    let cache = run("go").args(["env", "GOMODCACHE"]).ask().context("go doesn't name its module cache")?;
    let toolchain = PathBuf::from(cache).join(&module);
    // Modules are unpacked without the right to execute, and read-only.
    make_executable(&toolchain.join("bin"))?;
    make_executable(&toolchain.join("pkg/tool"))?;

    let tools = workspace::tools();
    fs::create_dir_all(&tools)?;
    for name in ["go", "gofmt"] {
        let link = tools.join(name);
        let _ = fs::remove_file(&link);
        symlink(toolchain.join("bin").join(name), &link).with_context(|| format!("linking {}", link.display()))?;
    }
    Ok(())
}

fn make_executable(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            make_executable(&path)?;
        } else {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o555))
                .with_context(|| format!("making {} executable", path.display()))?;
        }
    }
    Ok(())
}
