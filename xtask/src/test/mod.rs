//! `cargo xtask test`: set up, build, run every suite, say what passed, failed and was skipped.

mod libtest;
mod report;
mod suite;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::bootstrap::{self, Purpose, is_ci};
use crate::{build, fuzz, lint, workspace};

use report::{Report, Row};
use suite::Edge;

/// Set up, build, and run the tests of the CI tier, or with --full all of them.
///
/// Unit and property tests, documentation tests, the fuzz targets for half a minute, then the suites of the `tests`
/// crate against real Kafka, one at a time. The last line is `N passed, N failed, N skipped`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Everything: long soaks, a million seeds, all clients in both modes (two hours and more)
    #[arg(long)]
    full: bool,
    /// Only the suites of the `tests` crate whose name contains this
    #[arg(long, value_name = "NAME")]
    suite: Option<String>,
    /// Also run `cargo xtask lint`
    #[arg(long)]
    lint: bool,
}

/// Share of the fuzz targets, in seconds.
const FUZZ_CI: u32 = 30;
const FUZZ_FULL: u32 = 600;

/// Seeds of the splice's model.
const SEEDS_FULL: u64 = 1_000_000;

/// A suite that takes longer hangs. It is ended, and what it started goes with it.
const PATIENCE_CI: Duration = Duration::from_secs(15 * 60);
const PATIENCE_FULL: Duration = Duration::from_secs(3 * 60 * 60);

pub(crate) fn main(Args { full, suite, lint }: &Args) -> Result<()> {
    let started = Instant::now();
    bootstrap::or_go_on(Purpose::Test)?;
    build::release()?;
    let skips = workspace::scratch().join("skips.txt");
    fs::create_dir_all(workspace::scratch())?;
    fs::write(&skips, "").with_context(|| format!("emptying {}", skips.display()))?;

    let tier = suite::Tier {
        name: if *full { "full" } else { "ci" },
        patience: if *full { PATIENCE_FULL } else { PATIENCE_CI },
        seeds: full.then_some(SEEDS_FULL),
    };
    let mut report = Report::default();
    if suite.is_none() {
        if *lint {
            let began = Instant::now();
            let result = lint::check(false);
            report.add(Row::of_result("lint", began.elapsed(), result));
        }
        report.add(suite::cargo_test("unit and property", &["--lib", "--bins"], &tier)?);
        report.add(suite::cargo_test("documentation", &["--doc"], &tier)?);
        report.add(suite::components(&tier)?);
        fuzz(&mut report, if *full { FUZZ_FULL } else { FUZZ_CI });
    }
    for name in suite::names()? {
        if suite.as_ref().is_none_or(|part| name.contains(part.as_str())) {
            report.add(suite::run(&name, &tier, Edge::AsWritten)?);
            for edge in with_kernel(&name, *full) {
                report.add(match can_load_programs() {
                    true => suite::run(&name, &tier, *edge)?,
                    false => Row::skipped(&edge.heading(&name), "needs root and the kernel programs"),
                });
            }
        }
    }

    report.note_skips(&fs::read_to_string(&skips).with_context(|| format!("reading {}", skips.display()))?);
    let unproven = if is_ci() { report.unproven() } else { Vec::new() };
    print!("{report}");
    println!("took {}", report::minutes(started.elapsed()));
    for suite in &unproven {
        println!("suite {suite}: nothing of it ran, which CI counts as a failure");
    }
    println!("\n{}", report.closing_line(unproven.len()));
    if report.failed() + unproven.len() > 0 {
        bail!("tests failed");
    }
    Ok(())
}

/// How a suite of the mainline runs once more with the kernel's programs in front of its gateways: what clients see must
/// be the same.
fn with_kernel(suite: &str, full: bool) -> &'static [Edge] {
    const MAINLINE: [&str; 6] = ["e2e_admin", "e2e_clients", "e2e_sasl", "e2e_topology", "e2e_versions", "equivalence"];
    match suite {
        // Theirs say for themselves, or start no gateway.
        "edge_kernel" | "e2e_edge" | "e2e_splice" | "e2e_upgrade" | "harness" | "splice_kernel"
        | "e2e_branch_writer" => &[],
        // Spliced means steered as well.
        "e2e_clients" if !full => &[Edge::Spliced],
        "e2e_sasl" if !full => &[Edge::Kernel],
        "cases" => &[Edge::Kernel],
        // They run gateways beside each other; on one host only one can have its admission in an interface's XDP.
        "e2e_faults" | "e2e_racks" if full => &[Edge::Kernel],
        _ if !full => &[],
        mainline if MAINLINE.contains(&mainline) => &[Edge::Kernel, Edge::Spliced],
        _ => &[Edge::Kernel],
    }
}

/// Root, in a tree where the kernel programs were built.
fn can_load_programs() -> bool {
    let is_root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    is_root && workspace::kernel_object().is_file()
}

fn fuzz(report: &mut Report, seconds: u32) {
    let outcomes = fuzz::targets_there().and_then(|targets| fuzz::go(&targets, seconds));
    match outcomes {
        Ok(outcomes) => {
            for fuzz::Outcome { target, took, result } in outcomes {
                report.add(Row::of_result(&format!("fuzz {target}"), took, result));
            }
        }
        Err(error) => report.add(Row::of_result("fuzz", Duration::ZERO, Err(error))),
    }
}
