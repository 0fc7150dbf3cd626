//! Running suites and reading what they print as it comes.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::libtest::Tally;
use super::report::Row;
use crate::command::{Run, cargo};
use crate::workspace;

/// How much is asked of the suites.
pub(crate) struct Tier {
    /// TURNOUT_TIER.
    pub(crate) name: &'static str,
    /// How long one suite may take.
    pub(crate) patience: Duration,
    /// Seeds of the splice's model; `None`: as many as it takes by itself.
    pub(crate) seeds: Option<u64>,
}

/// Runs cargo's tests of the workspace that `which` selects.
///
/// Every test is built for the whole workspace: naming a package would choose other features, and compile the
/// dependencies once more for each.
pub(crate) fn cargo_test<S: AsRef<OsStr>>(heading: &str, which: &[S], tier: &Tier) -> Result<Row> {
    let run = cargo().args(["test", "--workspace", "--no-fail-fast"]).args(which);
    let run = with_environment(run, tier.name);
    let run = tier.seeds.iter().fold(run, |run, seeds| run.env("SPLICE_SEEDS", seeds.to_string()));
    read(heading, run.into_command(), None)
}

/// The integration tests of the crates that are shipped.
pub(crate) fn components(tier: &Tier) -> Result<Row> {
    let mut which = Vec::new();
    for package in ["proxy-common", "proxy-user"] {
        for name in sources(&workspace::root().join(package).join("tests"))? {
            which.extend(["--test".to_owned(), name]);
        }
    }
    cargo_test("integration", &which, tier)
}

/// The suites of the `tests` crate.
pub(crate) fn names() -> Result<Vec<String>> {
    sources(&workspace::root().join("tests/tests"))
}

/// Names of the test sources in a folder, in order.
fn sources(folder: &Path) -> Result<Vec<String>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut names: Vec<String> = fs::read_dir(folder)
        .with_context(|| format!("reading {}", folder.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "rs") || path.join("main.rs").is_file())
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    Ok(names)
}

/// How the gateways of a suite get their connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Edge {
    /// As the suite says; without kernel programs where it says nothing.
    AsWritten,
    /// Steered and admitted by kernel programs.
    Kernel,
    /// The same on hosts of their own, so that connections are spliced.
    Spliced,
}

impl Edge {
    /// The suite, in the table at the end.
    pub(crate) fn heading(self, name: &str) -> String {
        match self {
            Self::AsWritten => name.to_owned(),
            Self::Kernel => format!("{name}, steered"),
            Self::Spliced => format!("{name}, spliced"),
        }
    }
}

/// The program that makes hosts for a suite.
const WORLD: &str = "in-world";

/// Runs one suite, its tests one after the other: each may start a cluster.
pub(crate) fn run(name: &str, tier: &Tier, edge: Edge) -> Result<Row> {
    let started = Instant::now();
    let heading = edge.heading(name);
    let row = match build(name) {
        Ok(suite) => {
            let run = match edge {
                Edge::Spliced => crate::command::run(beside(&suite, WORLD)).arg(&suite),
                Edge::AsWritten | Edge::Kernel => crate::command::run(&suite),
            };
            let run = run.args(["--test-threads", "1"]);
            let run = run.dir(workspace::root().join("tests"));
            let run = match edge {
                Edge::AsWritten => run,
                Edge::Kernel | Edge::Spliced => run.env("TURNOUT_FAST_PATH", "required"),
            };
            read(&heading, with_environment(run, tier.name).into_command(), Some(tier.patience))?
        }
        Err(error) => Row::of_result(&heading, started.elapsed(), Err(error)),
    };
    Ok(Row { must_run: true, ..row })
}

fn with_environment(run: Run, tier: &str) -> Run {
    // Errors say where they come from by their context; a backtrace for each would bury them.
    let run = run.env("RUST_BACKTRACE", "0").env("RUST_LIB_BACKTRACE", "0");
    run.env("TURNOUT_BIN", workspace::turnout()).env("TURNOUT_TIER", tier)
}

/// Compiles a suite: run by itself and not by cargo, it is the process that is ended when it hangs.
fn build(name: &str) -> Result<PathBuf> {
    let mut command = cargo().args(["test", "--workspace", "--no-run", "--test", name]).into_command();
    let mut child = command.stderr(Stdio::piped()).spawn().context("running cargo")?;
    let mut binary = None;
    for line in BufReader::new(child.stderr.take().context("cargo's messages")?).lines() {
        let line = line?;
        eprintln!("{line}");
        if let Some(path) = executable(&line) {
            binary = Some(workspace::root().join(path));
        }
    }
    anyhow::ensure!(child.wait()?.success(), "it does not compile");
    binary.context("cargo names no test binary")
}

/// A program of the same package as a suite: cargo builds those for its tests.
fn beside(suite: &Path, program: &str) -> PathBuf {
    let folder = suite.parent().and_then(Path::parent).unwrap_or(suite);
    folder.join(program)
}

/// The path in `  Executable tests/x.rs (target/debug/deps/x-0123)`.
fn executable(line: &str) -> Option<&str> {
    let line = line.trim();
    line.starts_with("Executable ").then_some(())?;
    line.rsplit_once('(')?.1.strip_suffix(')')
}

/// Runs a command, passing its output on and counting.
fn read(heading: &str, mut command: Command, patience: Option<Duration>) -> Result<Row> {
    let started = Instant::now();
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("running suite {heading}"))?;
    let output = child.stdout.take().context("the suite's output")?;
    let reader = thread::spawn(move || {
        let mut tally = Tally::default();
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            tally.line(&line);
        }
        tally
    });
    let status = wait(&mut child, patience.map(|p| started + p))?;
    // What a suite left running may hold its output open; it is read no longer than the suite itself lives.
    let grace = Instant::now() + Duration::from_secs(10);
    while !reader.is_finished() && Instant::now() < grace {
        thread::sleep(Duration::from_millis(20));
    }
    let (tally, left_running) =
        if reader.is_finished() { (reader.join().unwrap_or_default(), false) } else { (Tally::default(), true) };
    let trouble = match status {
        None => Some("it hung and was ended".to_owned()),
        _ if left_running => Some("it left a process that holds its output open".to_owned()),
        Some(status) if tally.broke_off() => Some(format!("it broke off ({status})")),
        Some(status) if !status.success() && tally.failed == 0 => Some(format!("it did not run ({status})")),
        Some(_) => None,
    };
    Ok(Row { suite: heading.to_owned(), tally, took: started.elapsed(), trouble, ..Row::default() })
}

/// Waits for a child; `None` if it had to be ended at the deadline.
fn wait(child: &mut Child, deadline: Option<Instant>) -> Result<Option<ExitStatus>> {
    let Some(deadline) = deadline else { return Ok(Some(child.wait()?)) };
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_binary_is_read_from_cargos_message() {
        let line = "  Executable tests/clients.rs (target/debug/deps/clients-0123abc)";
        assert_eq!(executable(line), Some("target/debug/deps/clients-0123abc"));
        assert_eq!(executable("   Compiling clients v0.1.0 (/somewhere)"), None);
    }

    #[test]
    fn a_command_that_hangs_is_ended_and_is_trouble() {
        let mut sleep = Command::new("sleep");
        sleep.arg("60");
        let row = read("sleep", sleep, Some(Duration::from_millis(200))).unwrap();
        assert_eq!(row.trouble.as_deref(), Some("it hung and was ended"));
        assert!(row.took < Duration::from_secs(30));
    }

    #[test]
    fn output_is_counted_as_it_comes() {
        let mut echo = Command::new("printf");
        echo.arg("running 1 test\\ntest a ... ok\\ntest result: ok. 1 passed; 0 failed; 0 ignored\\n");
        let row = read("echo", echo, None).unwrap();
        assert_eq!((row.tally.passed, row.trouble), (1, None));
    }
}
