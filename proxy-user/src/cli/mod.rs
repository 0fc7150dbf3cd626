//! The command line: `turnout run`, `check`, `explain`, `status`, `reload`, `drain`, `doctor`, …
//!
//! A command computes a text and an exit code; this module alone prints. Exit codes: 0 done, 1 refused or failed,
//! 2 usage.

mod account;
mod admission;
mod args;
mod daemon;
mod explain;
mod kernel_programs;
pub mod logging;
mod racks;

mod run;
mod status;
mod table;
mod top;

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::{CommandFactory, Parser};

use crate::admin::client::{Client, ClientError};
use crate::gateway::racks_report::WhyQuestion;
use crate::splice::mirror::Consumers;
use crate::{config, kernel};
use args::{Admission, Cli, Command, ExplainArgs, Racks};

/// Exit code of a wrong command line.
const USAGE: u8 = 2;

/// What a command leaves behind.
struct Outcome {
    /// To stdout.
    text: String,
    ok: bool,
}

impl Outcome {
    fn done(text: impl Into<String>) -> Self {
        Self { text: text.into(), ok: true }
    }
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    main_mirroring(None)
}

/// The same, with copies of frames for somebody while it serves.
#[must_use]
pub fn main_mirroring(consumers: Option<Arc<dyn Consumers>>) -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(asked) => {
            // Help and version are asked for too, and go to stdout.
            let code = if asked.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
            let _ = asked.print();
            return code;
        }
    };
    match execute(cli.command, consumers) {
        Ok(Outcome { text, ok }) => match print(&text) {
            Ok(()) if ok => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        },
        Err(error) => {
            eprintln!("turnout: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        // `turnout status | head` has what it wanted.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

fn execute(command: Command, consumers: Option<Arc<dyn Consumers>>) -> anyhow::Result<Outcome> {
    match command {
        Command::Run(args) => run::run(&args.config, consumers).map(|()| Outcome::done("")),
        Command::Check { file, format } => check(&file, format.is_json()),
        Command::Explain(args) => explain(&args),
        Command::Status { connections, format, socket } => {
            remote(async { show_status(&Client::new(&socket.socket), connections, format.is_json()).await })
        }
        Command::Top { once, format, socket } => {
            remote(async { show_top(&Client::new(&socket.socket), once, format.is_json()).await })
        }
        Command::Reload { format, socket } => {
            remote(async { reload(&Client::new(&socket.socket), format.is_json()).await })
        }
        Command::Drain { wait, socket } => remote(async { drain(&Client::new(&socket.socket), wait).await }),
        Command::Version => Ok(Outcome::done(concat!("turnout ", env!("CARGO_PKG_VERSION"), "\n"))),
        Command::Doctor { format } => doctor(format.is_json()),
        Command::Upgrade { format, socket } => {
            remote(async { upgrade(&Client::new(&socket.socket), format.is_json()).await })
        }
        Command::Admission(Admission::List { format, socket }) => {
            remote(async { show_admission(&Client::new(&socket.socket), format.is_json()).await })
        }
        Command::Admission(Admission::Top { once, format, socket }) => {
            remote(async { show_refused(&Client::new(&socket.socket), once, format.is_json()).await })
        }
        Command::Racks { why: None, topics, format, socket } => {
            remote(async { show_racks(&Client::new(&socket.socket), topics, format.is_json()).await })
        }
        Command::Racks { why: Some(why), .. } => {
            let Racks::Why { client, client_id, client_rack, topic, virtual_cluster, format, socket } = why;
            let question = WhyQuestion { virtual_cluster, client, client_id, client_rack, topic };
            remote(async { show_why(&Client::new(&socket.socket), &question, format.is_json()).await })
        }
        Command::Attach(args) => kernel_programs::attach(&args),
        Command::Detach { format, force, pins } => kernel_programs::detach(&pins.pin, force, format.is_json()),
        Command::Prepare { config, user } => kernel_programs::prepare(&config, &user),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "turnout", &mut script);
            Ok(Outcome::done(String::from_utf8(script)?))
        }
        Command::Later(command) => anyhow::bail!("{}: not built yet", command.name()),
    }
}

fn json(value: &impl serde::Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

fn check(file: &Path, in_json: bool) -> anyhow::Result<Outcome> {
    match (config::load(file), in_json) {
        (Ok(loaded), false) => {
            warn(&loaded);
            Ok(Outcome::done(config::tree(&loaded.config)))
        }
        (Ok(loaded), true) => json(&config::check_json(&loaded)).map(Outcome::done),
        (Err(error), false) => Err(error.into()),
        (Err(error), true) => Ok(Outcome { text: json(&error.to_json())?, ok: false }),
    }
}

fn warn(loaded: &config::Loaded) {
    for warning in &loaded.warnings {
        eprintln!("turnout: warning: {warning}");
    }
}

fn explain(args: &ExplainArgs) -> anyhow::Result<Outcome> {
    let loaded = config::load(&args.config)?;
    warn(&loaded);
    let question = args.question();
    let all = explain::explain(&loaded.config, &question).map_err(anyhow::Error::msg)?;
    Ok(Outcome::done(if args.format.is_json() { json(&all)? } else { explain::text(&question, &all) }))
}

fn doctor(in_json: bool) -> anyhow::Result<Outcome> {
    let findings = kernel::findings();
    if in_json {
        return json(&findings).map(Outcome::done);
    }
    let mut text = String::new();
    for kernel::Finding { topic, ok, sentence, remedy } in &findings {
        let _ = writeln!(text, "{} {topic}: {sentence}", if *ok { "yes" } else { "no " });
        if let Some(remedy) = remedy {
            let _ = writeln!(text, "    → {remedy}");
        }
    }
    Ok(Outcome::done(text))
}

/// Runs a conversation with the daemon to its end.
fn remote(conversation: impl Future<Output = anyhow::Result<Outcome>>) -> anyhow::Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    runtime.block_on(conversation)
}

async fn show_status(client: &Client, connections: bool, in_json: bool) -> anyhow::Result<Outcome> {
    Ok(Outcome::done(match (connections, in_json) {
        (false, false) => status::status(&client.status().await?),
        (false, true) => json(&client.status().await?)?,
        (true, false) => status::connections(&client.connections().await?),
        (true, true) => json(&client.connections().await?)?,
    }))
}

async fn reload(client: &Client, in_json: bool) -> anyhow::Result<Outcome> {
    let report = match client.reload().await {
        Ok(report) => report,
        Err(ClientError::Refused(reason)) if in_json => {
            return Ok(Outcome { text: json(&serde_json::json!({ "ok": false, "error": reason }))?, ok: false });
        }
        Err(ClientError::Refused(reason)) => {
            anyhow::bail!("the reload was refused, the old config keeps running\n{reason}")
        }
        Err(error) => return Err(error.into()),
    };
    if in_json {
        return json(&report).map(Outcome::done);
    }
    let mut text = String::new();
    if report.changed.is_empty() && report.needs_restart.is_empty() {
        text.push_str("nothing changed\n");
    }
    for change in &report.changed {
        let _ = writeln!(text, "{change}");
    }
    for change in &report.needs_restart {
        let _ = writeln!(text, "takes effect with a restart: {change}");
    }
    Ok(Outcome::done(text))
}

async fn upgrade(client: &Client, in_json: bool) -> anyhow::Result<Outcome> {
    let report = match client.upgrade().await {
        Ok(report) => report,
        Err(ClientError::Refused(reason)) if in_json => {
            return Ok(Outcome { text: json(&serde_json::json!({ "ok": false, "error": reason }))?, ok: false });
        }
        Err(ClientError::Refused(reason)) => {
            anyhow::bail!("there was no upgrade, the old process serves on\n{reason}")
        }
        Err(error) => return Err(error.into()),
    };
    if in_json {
        return json(&report).map(Outcome::done);
    }
    Ok(Outcome::done(format!("pid {} has taken over from pid {}, which drains\n", report.new_pid, report.old_pid)))
}

async fn show_admission(client: &Client, in_json: bool) -> anyhow::Result<Outcome> {
    let report = client.admission().await?;
    Ok(Outcome::done(if in_json { json(&report)? } else { admission::list(&report) }))
}

async fn show_racks(client: &Client, topics: bool, in_json: bool) -> anyhow::Result<Outcome> {
    let reports = client.racks().await?;
    Ok(Outcome::done(if in_json { json(&reports)? } else { racks::list(&reports, topics) }))
}

async fn show_why(client: &Client, question: &WhyQuestion, in_json: bool) -> anyhow::Result<Outcome> {
    let reports = client.racks_why(question).await?;
    Ok(Outcome::done(if in_json { json(&reports)? } else { racks::why(&reports) }))
}

async fn show_refused(client: &Client, once: bool, in_json: bool) -> anyhow::Result<Outcome> {
    if !once && !in_json {
        return admission::live(client).await.map(|()| Outcome::done(""));
    }
    let refused = client.refused_sources(admission::SOURCES).await?;
    Ok(Outcome::done(if in_json { json(&refused)? } else { admission::top(&refused) }))
}

async fn show_top(client: &Client, once: bool, in_json: bool) -> anyhow::Result<Outcome> {
    if !once && !in_json {
        return top::live(client).await.map(|()| Outcome::done(""));
    }
    let picture = top::once(client).await?;
    Ok(Outcome::done(if in_json { json(&picture)? } else { top::text(&picture) }))
}

async fn drain(client: &Client, wait: bool) -> anyhow::Result<Outcome> {
    client.drain().await?;
    if !wait {
        return Ok(Outcome::done("draining\n"));
    }
    loop {
        match client.status().await {
            // Its bound is the daemon's: `limits.drain`.
            Ok(_) => tokio::time::sleep(std::time::Duration::from_millis(200)).await,
            Err(ClientError::NoDaemon { .. }) => return Ok(Outcome::done("drained\n")),
            // The connection ended with the daemon.
            Err(ClientError::Failed { .. }) => tokio::time::sleep(std::time::Duration::from_millis(200)).await,
            Err(error) => return Err(error.into()),
        }
    }
}
