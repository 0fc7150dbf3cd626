//! The bench: what turnout costs, beside haproxy and no proxy at all.
//!
//! Every workload runs through every subject once a round, in changing order, so that what the machine does meanwhile
//! hits all of them; ratios are taken within a round.

mod args;
mod counters;
mod edge;
mod fast_path;
mod haproxy;
mod kafka;
mod perf;
mod report;
mod stats;
mod subject;
mod synthetic;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

pub use args::{Args, Peer, Stage};
pub(crate) use stats::percentile;

use crate::{paths, process, turnout};
use counters::{Cpu, CpuSpent, Memory};
use report::{Metric, Report};
use subject::Subject;

/// How long the machine is watched before the start.
const QUIET: Duration = Duration::from_secs(2);
/// Processors that may be busy with other things.
const MOSTLY_IDLE: f64 = 0.2;

/// Runs the stages asked for, prints the report and writes it.
///
/// # Errors
/// A tool is missing, or a subject breaks; the report says so, and has what was measured before.
pub fn run(args: &Args) -> Result<()> {
    let mut report = Report::default();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    report.conditions = conditions(args, now)?;
    let outcome = stages(args, &mut report);
    if let Err(error) = &outcome {
        // What was measured before is not lost.
        report.conditions.push(format!("BROKEN OFF: {error:#}"));
    }
    let text = report.markdown();
    println!("{text}");
    let out = args.out.clone().unwrap_or_else(|| paths::build().join("bench").join(format!("{}.md", stamp(now))));
    write(&out, &text)?;
    let numbers = out.with_extension("json");
    write(&numbers, &(serde_json::to_string_pretty(&report)? + "\n"))?;
    println!("written: {} and {}", out.display(), numbers.display());
    outcome
}

fn stages(args: &Args, report: &mut Report) -> Result<()> {
    if args.wants(Stage::Kafka) {
        kafka::run(args, report).context("the Kafka stage")?;
    }
    if args.wants(Stage::Synthetic) {
        synthetic::run(args, report).context("the synthetic stage")?;
    }
    if args.wants(Stage::Edge) {
        edge::run(args, report).context("the edge stage")?;
    }
    if args.wants(Stage::FastPath) {
        fast_path::run(args, report).context("the fast path's stage")?;
    }
    Ok(())
}

fn write(path: &PathBuf, text: &str) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

fn conditions(args: &Args, now: Duration) -> Result<Vec<String>> {
    let binary = turnout::binary()?;
    let mut version = Command::new(&binary);
    version.arg("version");
    let version = process::run(version, Duration::from_secs(10)).context("asking turnout for its version")?;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    let before = Cpu::read(None)?;
    std::thread::sleep(QUIET);
    let busy = Cpu::read(None)?.since(before).system / QUIET.as_secs_f64();
    let warning = if busy > MOSTLY_IDLE { ": NOT QUIET, trust only ratios with a narrow spread" } else { "" };
    let build = if binary.components().any(|part| part.as_os_str() == "debug") { " (DEBUG BUILD)" } else { "" };
    Ok(vec![
        format!("{} UTC; {} rounds{}", stamp(now), args.rounds(), if args.quick { ", quick" } else { "" }),
        format!("{processors} processors, Linux {}; {busy:.1} of them busy before the start{warning}", kernel.trim()),
        format!("{}{build}", version.lines().next().unwrap_or_default()),
    ])
}

/// `YYYY-MM-DD-hhmm` in UTC.
fn stamp(since_epoch: Duration) -> String {
    let minutes = since_epoch.as_secs() / 60;
    let (days, minutes) = (minutes / (24 * 60), minutes % (24 * 60));
    // Days are counted from 0000-03-01, so that a leap day is the last of its year and of its four-century cycle.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}-{:02}{:02}", minutes / 60, minutes % 60)
}

fn progress(line: &str) {
    eprintln!("  {line}");
}

fn record_cpu(report: &mut Report, workload: &str, subject: &Subject, spent: CpuSpent, bytes: f64) {
    report.add(workload, Metric::SystemCpu, &subject.name, spent.system / (bytes / 1e9));
    if let Some(seconds) = spent.process {
        report.add(workload, Metric::ProxyCpu, &subject.name, seconds / (bytes / 1e9));
    }
}

fn record_memory(report: &mut Report, workload: &str, subject: &Subject) -> Result<()> {
    if let Some(pid) = subject.pid {
        let memory = Memory::read(pid)?;
        report.add(workload, Metric::PeakMemory, &subject.name, synthetic::mib(memory.peak));
        progress(&format!(
            "{}: {:.1} MiB resident now, {:.1} MiB of it its own data, {:.1} MiB at most",
            subject.name,
            synthetic::mib(memory.resident),
            synthetic::mib(memory.anonymous),
            synthetic::mib(memory.peak)
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_has_its_date() {
        let at = |seconds| stamp(Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01-0000");
        assert_eq!(at(951_782_400), "2000-02-29-0000");
        assert_eq!(at(1_709_251_199), "2024-02-29-2359");
        assert_eq!(at(1_735_689_600), "2025-01-01-0000");
    }
}
