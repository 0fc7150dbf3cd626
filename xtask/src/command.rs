//! Running other programs: each is printed before it runs, and a failure names it.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::workspace;

/// A program to run from the workspace's root, with the project's own tools first in PATH.
#[must_use]
pub(crate) struct Run {
    command: Command,
    shown: String,
}

/// Begins a command line.
pub(crate) fn run(program: impl AsRef<OsStr>) -> Run {
    let mut command = Command::new(&program);
    command.current_dir(workspace::root());
    let mut path = workspace::tools().into_os_string();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    command.env("PATH", path);
    Run { command, shown: program.as_ref().to_string_lossy().into_owned() }
}

/// The cargo that runs this xtask.
pub(crate) fn cargo() -> Run {
    run(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())).named("cargo")
}

impl Run {
    fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.shown);
        self
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.shown.push(' ');
        self.shown.push_str(&arg.as_ref().to_string_lossy());
        self.command.arg(arg);
        self
    }

    pub(crate) fn args<S: AsRef<OsStr>>(self, args: impl IntoIterator<Item = S>) -> Self {
        args.into_iter().fold(self, Self::arg)
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.shown = format!("{name}={} {}", value.as_ref().to_string_lossy(), self.shown);
        self.command.env(name, value);
        self
    }

    pub(crate) fn env_remove(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    pub(crate) fn dir(mut self, dir: impl AsRef<Path>) -> Self {
        self.command.current_dir(dir);
        self
    }

    /// The command itself, for those who read its output as it comes.
    pub(crate) fn into_command(self) -> Command {
        eprintln!("$ {}", self.shown);
        self.command
    }

    /// Runs it with this terminal's streams; an exit code other than 0 is an error.
    pub(crate) fn go(mut self) -> Result<()> {
        eprintln!("$ {}", self.shown);
        let status = self.command.status().with_context(|| format!("can't run `{}`", self.shown))?;
        if !status.success() {
            bail!("`{}` failed ({status})", self.shown);
        }
        Ok(())
    }

    /// What it says on standard output, quietly; `None` if it can't run or fails.
    pub(crate) fn ask(mut self) -> Option<String> {
        let output = self.command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}

/// Whether a program of that name is in PATH, or beside the project.
pub(crate) fn exists(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::iter::once(workspace::tools()).chain(std::env::split_paths(&path)).any(|dir| dir.join(program).is_file())
}
