//! The built binary: exit codes, and what it prints where.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::Ordering;

use turnout::gateway::status::ReloadReport;

use crate::fake::Daemon;

fn turnout(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_turnout"))
        .args(args)
        .env_remove("TURNOUT_SOCKET")
        .env_remove("TURNOUT_CONFIG")
        .stdin(Stdio::null())
        .output()
        .expect("the binary runs")
}

/// Runs a command against a fake daemon, beside the runtime that serves it.
async fn asking(socket: &Path, args: &[&str]) -> Output {
    let mut args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
    args.extend(["--socket".to_owned(), socket.display().to_string()]);
    tokio::task::spawn_blocking(move || turnout(&args.iter().map(String::as_str).collect::<Vec<_>>()))
        .await
        .expect("ran")
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("not ended by a signal")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

#[test]
fn help_and_version_exit_with_0_and_go_to_stdout() {
    for args in [&["--help"][..], &["run", "--help"], &["status", "-h"], &["--version"], &["version"]] {
        let output = turnout(args);
        assert_eq!(code(&output), 0, "{args:?}");
        assert!(stdout(&output).contains("turnout") && stderr(&output).is_empty(), "{args:?}");
    }
    assert_eq!(stdout(&turnout(&["version"])), concat!("turnout ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn a_wrong_command_line_exits_with_2_and_says_what_is_wrong() {
    for (args, said) in [
        (&["statsu"][..], "status"),
        (&[], "Usage"),
        (&["run"], "--config"),
        (&["status", "--format", "xml"], "table"),
        (&["explain", "--config", "x", "--client", "kafka.example.com", "Fetch"], "not an IP address"),
        (&["explain", "--config", "x", "--client", "10.0.0.1"], "<API>"),
    ] {
        let output = turnout(args);
        assert_eq!(code(&output), 2, "{args:?}");
        assert!(stderr(&output).contains(said), "{args:?}: {}", stderr(&output));
        assert!(stdout(&output).is_empty(), "{args:?}");
    }
}

#[test]
fn commands_of_later_parts_are_refused_with_1_and_are_not_in_the_help() {
    let help = stdout(&turnout(&["--help"]));
    for name in ["branch", "verify"] {
        let output = turnout(&[name, "list", "--anything", "-x"]);
        assert_eq!((code(&output), stderr(&output)), (1, format!("turnout: {name}: not built yet\n")));
        assert!(!help.lines().any(|l| l.trim_start().starts_with(&format!("{name} "))), "{help}");
    }
}

#[test]
fn completions_are_made_for_every_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let output = turnout(&["completions", shell]);
        assert_eq!(code(&output), 0);
        assert!(stdout(&output).contains("explain"), "{shell}");
    }
    assert_eq!(code(&turnout(&["completions", "cmd.exe"])), 2);
}

#[test]
fn a_config_that_cannot_be_read_exits_with_1_and_names_the_file() {
    for args in [
        &["run", "--config", "/nonexistent/turnout.yaml"][..],
        &["check", "/nonexistent/turnout.yaml"],
        &["explain", "--config", "/nonexistent/turnout.yaml", "--client", "10.0.0.1", "Fetch"],
    ] {
        let output = turnout(args);
        assert_eq!(code(&output), 1, "{args:?}");
        assert!(stderr(&output).contains("/nonexistent/turnout.yaml"), "{args:?}: {}", stderr(&output));
    }
    let output = turnout(&["check", "/nonexistent/turnout.yaml", "--format", "json"]);
    assert_eq!(code(&output), 1);
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON on a refusal too");
    assert_eq!(said["ok"], false);
}

#[test]
fn no_daemon_is_an_error_that_names_the_socket() {
    for args in [
        &["status"][..],
        &["status", "--connections"],
        &["reload"],
        &["drain"],
        &["drain", "--wait"],
        &["upgrade"],
        &["admission", "list"],
        &["racks"],
        &["racks", "why", "--client", "10.0.0.1"],
        &["admission", "top"],
        &["top"],
        &["top", "--once"],
    ] {
        let output = turnout(&[args, &["--socket", "/nonexistent/t.sock"]].concat());
        assert_eq!(code(&output), 1, "{args:?}");
        let said = stderr(&output);
        assert!(said.contains("/nonexistent/t.sock: no turnout answers there"), "{args:?}: {said}");
    }
}

#[test]
fn the_socket_is_also_taken_from_the_environment() {
    let output = Command::new(env!("CARGO_BIN_EXE_turnout"))
        .arg("status")
        .env("TURNOUT_SOCKET", "/nonexistent/env.sock")
        .output()
        .expect("the binary runs");
    assert!(stderr(&output).contains("/nonexistent/env.sock"));
}

#[tokio::test]
async fn status_is_a_table_or_json() {
    let daemon = Daemon::start();
    let table = asking(&daemon.socket(), &["status"]).await;
    assert_eq!(code(&table), 0, "{}", stderr(&table));
    let text = stdout(&table);
    assert!(text.contains("up 1d 2h") && text.contains("VIRTUAL CLUSTER"), "{text}");
    assert!(text.lines().any(|l| l.starts_with("orders") && l.contains("1.2 GiB") && l.contains("98.8k")), "{text}");
    assert!(text.lines().all(|l| l.chars().count() <= 100) && !text.contains('\u{1b}'), "{text}");

    let json = asking(&daemon.socket(), &["status", "--format", "json"]).await;
    let status: turnout::gateway::status::Status = serde_json::from_slice(&json.stdout).expect("the read model");
    assert_eq!(status.virtual_clusters["orders"].requests, 98_765);
}

#[tokio::test]
async fn all_connections_are_listed_whatever_the_pages() {
    let daemon = Daemon::start();
    daemon.fake.connections.store(2345, Ordering::Relaxed);
    let json = asking(&daemon.socket(), &["status", "--connections", "--format", "json"]).await;
    let all: Vec<turnout::gateway::status::ConnectionStatus> = serde_json::from_slice(&json.stdout).expect("a list");
    assert!(all.iter().map(|c| c.id).eq(0..2345));
    let table = asking(&daemon.socket(), &["status", "--connections"]).await;
    assert_eq!(stdout(&table).lines().count(), 2345 + 2);
}

#[tokio::test]
async fn a_reload_says_what_changed_or_why_it_was_refused() {
    let daemon = Daemon::start();
    let unchanged = asking(&daemon.socket(), &["reload"]).await;
    assert_eq!((code(&unchanged), stdout(&unchanged).as_str()), (0, "nothing changed\n"));

    let report = ReloadReport {
        changed: vec!["virtual cluster orders: limits.idle 9m → 5m".into()],
        needs_restart: vec!["fast_path.pin".into()],
    };
    *daemon.fake.reload.lock().expect("unpoisoned") = Some(Ok(report));
    let changed = asking(&daemon.socket(), &["reload"]).await;
    assert_eq!(
        stdout(&changed),
        "virtual cluster orders: limits.idle 9m → 5m\ntakes effect with a restart: fast_path.pin\n"
    );

    let refuse = || *daemon.fake.reload.lock().expect("unpoisoned") = Some(Err("t.yaml:3:5: unknown key".into()));
    refuse();
    let refused = asking(&daemon.socket(), &["reload"]).await;
    assert_eq!(code(&refused), 1);
    assert!(stderr(&refused).contains("the old config keeps running") && stderr(&refused).contains("t.yaml:3:5"));
    refuse();
    let refused = asking(&daemon.socket(), &["reload", "--format", "json"]).await;
    let said: serde_json::Value = serde_json::from_slice(&refused.stdout).expect("JSON on a refusal too");
    assert_eq!((code(&refused), said["error"].as_str()), (1, Some("t.yaml:3:5: unknown key")));
}

#[tokio::test]
async fn a_drain_is_begun_and_can_be_waited_for() {
    let daemon = Daemon::start();
    let begun = asking(&daemon.socket(), &["drain"]).await;
    assert_eq!((code(&begun), stdout(&begun).as_str()), (0, "draining\n"));
    assert_eq!(*daemon.fake.drained.lock().expect("unpoisoned"), ["turnout drain"]);

    let socket = daemon.socket();
    let waiting = tokio::spawn(async move { asking(&socket, &["drain", "--wait"]).await });
    while daemon.fake.drained.lock().expect("unpoisoned").len() < 2 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert!(!waiting.is_finished(), "it waits for the daemon to end");
    daemon.server.stop().await;
    let drained = waiting.await.expect("ran");
    assert_eq!((code(&drained), stdout(&drained).as_str()), (0, "drained\n"));
}

#[tokio::test]
async fn an_upgrade_says_who_took_over_or_why_nobody_did() {
    let daemon = Daemon::start();
    let refused = asking(&daemon.socket(), &["upgrade"]).await;
    assert_eq!(code(&refused), 1);
    let said = stderr(&refused);
    assert!(said.contains("the old process serves on") && said.contains("exec format error"), "{said}");
    let refused = asking(&daemon.socket(), &["upgrade", "--format", "json"]).await;
    let said: serde_json::Value = serde_json::from_slice(&refused.stdout).expect("JSON on a refusal too");
    assert_eq!((code(&refused), said["ok"].as_bool()), (1, Some(false)));

    *daemon.fake.successor.lock().expect("unpoisoned") = Some(4242);
    let upgraded = asking(&daemon.socket(), &["upgrade"]).await;
    let ours = std::process::id();
    assert_eq!(stdout(&upgraded), format!("pid 4242 has taken over from pid {ours}, which drains\n"));
}

#[tokio::test]
async fn admission_is_listed_and_its_refused_sources_are_shown_once_or_live() {
    let daemon = Daemon::start();
    let list = stdout(&asking(&daemon.socket(), &["admission", "list"]).await);
    assert!(list.contains("deny             192.0.2.0/24") && list.contains("100/s for each /32"), "{list}");
    assert!(list.lines().any(|l| l.starts_with("orders") && l.contains("3456") && l.contains("deny")), "{list}");
    let json = asking(&daemon.socket(), &["admission", "list", "--format", "json"]).await;
    let report: turnout::gateway::status::AdmissionReport = serde_json::from_slice(&json.stdout).expect("a report");
    assert_eq!(report.virtual_clusters["orders"].refused_by_kernel["deny"], 12);

    let once = stdout(&asking(&daemon.socket(), &["admission", "top", "--once"]).await);
    assert_eq!(once.lines().count(), 1 + 20, "{once}");
    assert!(once.contains("192.0.2.1 ") && once.contains("1.5 s ago") && !once.contains('\u{1b}'), "{once}");
    let json = asking(&daemon.socket(), &["admission", "top", "--format", "json"]).await;
    let all: Vec<turnout::gateway::status::RefusedReport> = serde_json::from_slice(&json.stdout).expect("a list");
    assert_eq!((all.len(), all[1].by.as_str(), all[1].times), (20, "kernel", 2000));

    // Live: pictures follow each other until the daemon is gone.
    let socket = daemon.socket();
    let live = tokio::spawn(async move { asking(&socket, &["admission", "top"]).await });
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    assert!(!live.is_finished());
    daemon.server.stop().await;
    let live = live.await.expect("ran");
    assert!(stdout(&live).matches("SOURCE").count() >= 2 && code(&live) == 1, "{}", stdout(&live));
}

#[tokio::test]
async fn what_passes_is_shown_once_or_live() {
    let daemon = Daemon::start();
    daemon.fake.connections.store(7, Ordering::Relaxed);
    let once = stdout(&asking(&daemon.socket(), &["top", "--once"]).await);
    assert!(once.starts_with("VIRTUAL CLUSTER") && once.ends_with("nothing passes\n"), "{once}");
    assert!(once.lines().any(|l| l.starts_with("payments")), "{once}");
    let json = asking(&daemon.socket(), &["top", "--format", "json"]).await;
    let picture: serde_json::Value = serde_json::from_slice(&json.stdout).expect("a picture");
    assert_eq!(picture["virtual_clusters"]["orders"]["from_clients"]["kernel"], 0, "{picture}");

    let socket = daemon.socket();
    let live = tokio::spawn(async move { asking(&socket, &["top"]).await });
    tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
    assert!(!live.is_finished());
    daemon.server.stop().await;
    let live = live.await.expect("ran");
    assert!(stdout(&live).matches("VIRTUAL CLUSTER").count() >= 2 && code(&live) == 1, "{}", stdout(&live));
}

#[tokio::test]
async fn replica_routing_is_shown_and_explained() {
    let daemon = Daemon::start();
    let list = stdout(&asking(&daemon.socket(), &["racks"]).await);
    assert!(list.contains("virtual cluster orders, mode auto") && list.contains("12 in force"), "{list}");
    let json = asking(&daemon.socket(), &["racks", "--format", "json"]).await;
    let report: std::collections::BTreeMap<String, turnout::gateway::status::RacksReport> =
        serde_json::from_slice(&json.stdout).expect("a report");
    assert_eq!(report["orders"].redirected, 12);
    let why = ["racks", "why", "--client", "10.0.1.7:50000", "--topic", "a b&c"];
    let why = stdout(&asking(&daemon.socket(), &why).await);
    assert!(why.contains("in rack 10.0.1.7, by a b&c"), "the question arrives whole: {why}");
}
