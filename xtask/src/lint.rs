//! `cargo xtask lint`: everything that is checked without running the code.

use anyhow::{Result, bail};

use crate::bootstrap::{self, Purpose};
use crate::command::{Run, cargo};
use crate::workspace;

/// Check formatting, clippy, licences and sources of dependencies, and documentation.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Repair what can be repaired (formatting)
    #[arg(long)]
    fix: bool,
}

/// A check whose failure is noted, so that one run names everything.
struct Check {
    name: &'static str,
    run: Run,
}

pub(crate) fn main(&Args { fix }: &Args) -> Result<()> {
    check(fix)
}

/// Runs every check; the error names those that failed.
pub(crate) fn check(fix: bool) -> Result<()> {
    bootstrap::or_go_on(Purpose::Lint)?;
    let mut failed = Vec::new();
    for Check { name, run } in checks(fix) {
        if let Err(error) = run.go() {
            eprintln!("{error:#}");
            failed.push(name);
        }
    }
    if !advisories() {
        failed.push("advisories");
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    println!("lint: all is well");
    Ok(())
}

fn checks(fix: bool) -> Vec<Check> {
    let root = workspace::root();
    let (ebpf, fuzz) = (root.join("proxy-ebpf"), root.join("fuzz"));
    let format = |run: Run| {
        let run = run.args(["fmt", "--all"]);
        if fix { run } else { run.arg("--check") }
    };
    let clippy = |args: &[&str]| cargo().arg("clippy").args(args).args(["--", "-D", "warnings"]);
    let deny = |manifest: &str| {
        cargo().args([
            "deny",
            "--manifest-path",
            manifest,
            "check",
            "--hide-inclusion-graph",
            "licenses",
            "bans",
            "sources",
        ])
    };
    // The programs are checked for the host: stable clippy has no other target's `core`.
    let host = crate::command::run("rustc").args(["--print", "host-tuple"]).ask().unwrap_or_default();
    vec![
        Check { name: "formatting", run: format(cargo()) },
        Check { name: "formatting of the kernel programs", run: format(cargo()).dir(&ebpf) },
        Check { name: "formatting of the fuzz targets", run: format(cargo()).dir(&fuzz) },
        Check { name: "clippy", run: clippy(&["--workspace", "--all-targets"]) },
        Check {
            name: "clippy of the kernel programs",
            run: clippy(&["--target", &host, "--target-dir", "target/host"]).dir(&ebpf),
        },
        Check {
            name: "clippy of the fuzz targets",
            run: clippy(&["--target-dir", "target/clippy"]).env("RUSTFLAGS", "--cfg=fuzzing").dir(&fuzz),
        },
        Check { name: "dependencies", run: deny("Cargo.toml") },
        Check { name: "dependencies of the kernel programs", run: deny("proxy-ebpf/Cargo.toml") },
        Check { name: "dependencies of the fuzz targets", run: deny("fuzz/Cargo.toml") },
        Check {
            name: "documentation",
            run: cargo().args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"),
        },
    ]
}

/// Known vulnerabilities, where their database can be had: then they fail like any other check. Returns whether they are
/// in order, or could not be looked up.
fn advisories() -> bool {
    if cargo().args(["deny", "fetch", "db"]).go().is_err() {
        println!("advisories: skipped, RustSec's database can't be had from here");
        return true;
    }
    cargo().args(["deny", "check", "advisories"]).go().is_ok()
}
