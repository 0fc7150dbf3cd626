//! Apache Kafka's jars, resolved once into the build folder.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::{paths, process};

/// The version under test, as in `tests/kafka/pom.xml`.
pub const VERSION: &str = "4.3.1";

/// Resolved jars.
#[derive(Clone, Debug)]
pub struct Artifacts {
    libs: PathBuf,
}

impl Artifacts {
    /// Resolves the pinned jars into `build/kafka/<version>/libs` unless they are there.
    ///
    /// # Errors
    /// Java or Maven is missing, or Maven can't resolve the artifacts; the text says what to install.
    pub fn prepare() -> Result<Self> {
        let java = process::run(command("java", &["-version"]), Duration::from_secs(30));
        java.context("no Java runtime: install a JDK 17 or newer (`java` and `javac` on PATH)")?;
        let libs = paths::build().join("kafka").join(VERSION).join("libs");
        let pom = paths::tests().join("kafka").join("pom.xml");
        let fingerprint = paths::fingerprint(std::slice::from_ref(&pom), &[])?;
        paths::once(&libs, &fingerprint, |draft| {
            eprintln!("resolving Apache Kafka {VERSION} with Maven (once)");
            // Maven writes beside the pom it is given; a copy keeps the sources clean.
            let work = tempfile::tempdir()?;
            let copy = work.path().join("pom.xml");
            std::fs::copy(&pom, &copy)?;
            let mut maven = command("mvn", &["--quiet", "--batch-mode", "dependency:copy-dependencies"]);
            maven.arg("-f").arg(copy).arg(format!("-DoutputDirectory={}", draft.display()));
            process::run(maven, Duration::from_secs(600))
                .context("no Kafka jars: Maven (`mvn`) is missing or failed")?;
            let name = format!("kafka_2.13-{VERSION}.jar");
            anyhow::ensure!(draft.join(&name).exists(), "Maven did not bring {name}");
            Ok(())
        })?;
        Ok(Self { libs })
    }

    /// Folder of the jars.
    #[must_use]
    pub fn libs(&self) -> &Path {
        &self.libs
    }

    /// A `java` command with the jars on its class path, behind `extra` ones, and a heap of `heap_mb`.
    ///
    /// Set for many short-lived JVMs on few cores: serial collector, first-tier compiler only.
    #[must_use]
    pub fn java(&self, heap_mb: u32, extra: &[&Path]) -> Command {
        let log4j = paths::tests().join("kafka").join("log4j2.properties");
        let jars = self.libs.join("*");
        let class_path: Vec<_> =
            extra.iter().copied().chain([jars.as_path()]).map(|p| p.display().to_string()).collect();
        let mut java = command("java", &["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]);
        java.arg(format!("-Xmx{heap_mb}m"))
            .arg(format!("-Dlog4j2.configurationFile={}", log4j.display()))
            .args(["-cp", &class_path.join(":")]);
        java
    }

    /// Runs one of Kafka's tools, e.g. `org.apache.kafka.tools.TopicCommand`, and returns its stdout.
    ///
    /// # Errors
    /// The tool fails; the error carries the end of its output.
    pub fn tool(&self, class: &str, args: &[&str]) -> Result<String> {
        let mut java = self.java(256, &[]);
        java.arg("-Dturnout.log=warn");
        // The class comes after every option of the JVM.
        java.arg(class).args(args);
        process::run(java, Duration::from_secs(120)).with_context(|| format!("{class} {}", args.join(" ")))
    }
}

fn command(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args);
    command
}
