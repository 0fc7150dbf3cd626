//! Fetching and building the client programs, once.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::Family;
use crate::kafka::Artifacts;
use crate::{paths, process};

const PATIENCE: Duration = Duration::from_secs(600);

/// A client program that can be started.
#[derive(Clone, Debug)]
pub struct Prepared {
    family: Family,
    /// Folder of what was built.
    dir: PathBuf,
    artifacts: Option<Artifacts>,
}

/// Builds a family's program into `build/clients/<family>` unless it is there. Parallel calls wait for each other.
///
/// # Errors
/// The family's tools are missing or fail; the text says which.
pub fn prepare(family: Family) -> Result<Prepared> {
    let source = clients().join(family.name());
    let dir = paths::build().join("clients").join(family.name());
    let artifacts = (family == Family::Java).then(Artifacts::prepare).transpose()?;
    let mut inputs = files(&source)?;
    inputs.extend(shared(family)?);
    let fingerprint = paths::fingerprint(&inputs, &[])?;
    paths::once(&dir, &fingerprint, |draft| {
        eprintln!("preparing the client program {family} (once)");
        match family {
            Family::Java => java(&source, draft, artifacts.as_ref()),
            Family::Librdkafka | Family::KafkaPython => python(&source, draft),
            Family::Franz | Family::Sarama => go(&source, draft),
            Family::Kafkajs => node(&source, draft),
        }
        .with_context(|| format!("preparing the client program {family}"))
    })?;
    Ok(Prepared { family, dir, artifacts })
}

impl Prepared {
    /// The command that starts it.
    #[must_use]
    pub fn command(&self) -> Command {
        match (self.family, &self.artifacts) {
            (Family::Java, Some(artifacts)) => {
                let mut java = artifacts.java(384, &[&self.dir]);
                java.args(["-Dturnout.log=warn", "turnout.client.Main"]);
                java
            }
            (Family::Librdkafka | Family::KafkaPython, _) => {
                let mut python = Command::new("python3");
                python.args(["-B", "-u"]).arg(self.dir.join("client.py"));
                python.env("PYTHONPATH", self.dir.join("packages"));
                python
            }
            (Family::Kafkajs, _) => {
                let mut node = Command::new("node");
                node.arg(self.dir.join("client.js")).env("KAFKAJS_NO_PARTITIONER_WARNING", "1");
                node
            }
            _ => Command::new(self.dir.join("client")),
        }
    }
}

fn java(source: &Path, draft: &Path, artifacts: Option<&Artifacts>) -> Result<()> {
    let libs = artifacts.context("the Java client needs Kafka's jars")?.libs().join("*");
    let mut javac = Command::new("javac");
    javac.args(["-nowarn", "-Xlint:-options", "-Xlint:-removal", "-d"]).arg(draft).arg("-cp").arg(libs);
    javac.args(files(source)?.iter().filter(|file| file.extension().is_some_and(|ext| ext == "java")));
    process::run(javac, PATIENCE).map(drop).context("`javac` is missing (install a JDK) or failed")
}

fn python(source: &Path, draft: &Path) -> Result<()> {
    copy(source, draft)?;
    std::fs::copy(clients().join("protocol.py"), draft.join("protocol.py"))?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-compile"]);
    pip.arg("--target").arg(draft.join("packages")).arg("-r").arg(draft.join("requirements.txt"));
    process::run(pip, PATIENCE).map(drop).context("`python3 -m pip` is missing or failed")
}

fn go(source: &Path, draft: &Path) -> Result<()> {
    let mut go = Command::new("go");
    go.current_dir(source).env("GOFLAGS", "-mod=readonly").env("CGO_ENABLED", "0");
    go.args(["build", "-trimpath", "-o"]).arg(draft.join("client")).arg(".");
    process::run(go, PATIENCE).map(drop).context("`go` is missing or failed")
}

fn node(source: &Path, draft: &Path) -> Result<()> {
    copy(source, draft)?;
    let mut npm = Command::new("npm");
    npm.current_dir(draft).args(["ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]);
    process::run(npm, PATIENCE).map(drop).context("`npm` is missing or failed")
}

fn clients() -> PathBuf {
    paths::tests().join("clients")
}

/// What programs of one language share, beside their folders.
fn shared(family: Family) -> Result<Vec<PathBuf>> {
    match family {
        Family::Librdkafka | Family::KafkaPython => Ok(vec![clients().join("protocol.py")]),
        Family::Franz | Family::Sarama => files(&clients().join("protocol-go")),
        Family::Java | Family::Kafkajs => Ok(Vec::new()),
    }
}

/// All files under a folder, in a stable order, without what tools leave there.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries = std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let is_litter = path.file_name().is_some_and(|name| name == "node_modules" || name == "__pycache__");
        if is_litter {
            continue;
        } else if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn copy(source: &Path, draft: &Path) -> Result<()> {
    for file in files(source)?.iter().filter(|file| file.parent() == Some(source)) {
        std::fs::copy(file, draft.join(file.file_name().unwrap_or_default()))?;
    }
    Ok(())
}
