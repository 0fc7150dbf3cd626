//! The real client: a Java program on Apache Kafka's own library (`tests/demo`).

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, Result};

use super::traffic::{Plan, Report};
use crate::kafka::Artifacts;
use crate::netns::Netns;
use crate::paths;
use crate::process::{self, Process};
use crate::rundir::RunDir;

/// A compiled client.
#[derive(Debug)]
pub(crate) struct Java {
    classes: PathBuf,
    artifacts: Artifacts,
}

impl Java {
    /// Compiles the program unless it was.
    ///
    /// # Errors
    /// There is no Java compiler, or Kafka's jars can't be had.
    pub(crate) fn prepare() -> Result<Self> {
        let artifacts = Artifacts::prepare()?;
        let folder = paths::tests().join("demo").join("turnout").join("demo");
        let entries = fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
        let mut sources: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        sources.sort();
        let classes = paths::build().join("demo");
        paths::once(&classes, &paths::fingerprint(&sources, &[])?, |draft| {
            let mut javac = Command::new("javac");
            javac.arg("-d").arg(draft).arg("-cp").arg(artifacts.libs().join("*")).args(&sources);
            let done = process::run(javac, Duration::from_secs(120));
            done.map(drop).context("no Java compiler (`javac`, in a JDK), or it failed")
        })?;
        Ok(Self { classes, artifacts })
    }

    /// Starts it, in `netns` if given.
    ///
    /// # Errors
    /// Java can't be started.
    pub(crate) fn start(&self, plan: &Plan, netns: Option<&Netns>) -> Result<Running> {
        let dir = RunDir::create("demo-client")?;
        let log = dir.path().join("client.log");
        let mut java = self.artifacts.java(384, &[&self.classes]);
        java.args(["-Dturnout.log=warn", "turnout.demo.Traffic", &plan.direct, &plan.gateway, plan.topic]);
        java.args([
            plan.partitions.to_string(),
            plan.seconds.to_string(),
            plan.rate.to_string(),
            plan.size.to_string(),
        ]);
        java.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(fs::File::create(&log)?);
        let process = Process::spawn("the demo's client", java, netns, None)?;
        let (_, stdout) = process.take_pipes().context("the client has no pipes")?;
        let (send, reports) = channel();
        // Ends with the pipe, that is with the process.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let report = serde_json::from_str(&line).with_context(|| format!("the client wrote {line}"));
                if send.send(report).is_err() {
                    return;
                }
            }
            let _ = send.send(Err(anyhow::anyhow!("the client ended too early:\n{}", process::tail(&log, 15))));
        });
        Ok(Running { reports, _process: process, _dir: dir })
    }
}

/// A client at work; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    /// A report a second, then the outcome.
    pub(crate) reports: Receiver<Result<Report>>,
    _process: Process,
    _dir: RunDir,
}
