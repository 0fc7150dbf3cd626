//! `cargo xtask fuzz`: coverage-guided fuzzing on a stable compiler.
//!
//! cargo-fuzz wants a nightly for its sanitizers. The targets are safe Rust, where a sanitizer finds little that a
//! panic doesn't, and the coverage that guides libFuzzer is a matter of stable code generation options.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::command::{cargo, run};
use crate::workspace;

/// Run the fuzz targets for a while, sharing the time. What they find lies in fuzz/artifacts/TARGET.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Targets; none: all
    targets: Vec<String>,
    /// For how long in all
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    seconds: u32,
}

/// SanitizerCoverage as libFuzzer reads it.
const FLAGS: &[&str] = &[
    "--cfg=fuzzing",
    "-Ccodegen-units=1",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
];

/// A run of one target.
pub(crate) struct Outcome {
    pub(crate) target: String,
    pub(crate) took: Duration,
    pub(crate) result: Result<()>,
}

pub(crate) fn main(Args { targets, seconds }: &Args) -> Result<()> {
    let known = targets_there()?;
    for target in targets {
        ensure!(known.contains(target), "there is no fuzz target `{target}`; there are: {}", known.join(", "));
    }
    let chosen = if targets.is_empty() { &known } else { targets };
    let failed: Vec<_> = go(chosen, *seconds)?.into_iter().filter_map(|o| o.result.err()).collect();
    if let Some(first) = failed.first() {
        bail!("{} of {} targets failed: {first:#}", failed.len(), chosen.len());
    }
    Ok(())
}

/// The names of all targets.
pub(crate) fn targets_there() -> Result<Vec<String>> {
    let folder = workspace::root().join("fuzz/fuzz_targets");
    let mut names: Vec<String> = fs::read_dir(&folder)
        .with_context(|| format!("reading {}", folder.display()))?
        .filter_map(|entry| Some(entry.ok()?.path().file_stem()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    Ok(names)
}

/// Builds the targets and runs each for its share of the time.
pub(crate) fn go(targets: &[String], seconds: u32) -> Result<Vec<Outcome>> {
    let fuzz = workspace::root().join("fuzz");
    let host = run("rustc").args(["--print", "host-tuple"]).ask().context("rustc doesn't name its host")?;
    // A named target keeps the flags away from build scripts and macros.
    let build = cargo().args(["build", "--release", "--target", &host, "--target-dir", "target"]);
    let build = targets.iter().fold(build, |build, target| build.args(["--bin", target]));
    build.env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\x1f")).dir(&fuzz).go()?;

    let share = (seconds / u32::try_from(targets.len().max(1))?).max(1);
    let mut outcomes = Vec::new();
    for target in targets {
        let (corpus, artifacts) = (fuzz.join("corpus").join(target), fuzz.join("artifacts").join(target));
        fs::create_dir_all(&corpus)?;
        fs::create_dir_all(&artifacts)?;
        let started = std::time::Instant::now();
        let result = run(fuzz.join("target").join(&host).join("release").join(target))
            .arg(corpus)
            .arg(format!("-artifact_prefix={}/", artifacts.display()))
            .arg(format!("-max_total_time={share}"))
            // Longer inputs than this say nothing new about headers, and slow the search down.
            .args(["-max_len=16384", "-timeout=10", "-rss_limit_mb=2048", "-verbosity=0", "-print_final_stats=1"])
            .go();
        outcomes.push(Outcome { target: target.clone(), took: started.elapsed(), result });
    }
    Ok(outcomes)
}
