//! `turnout run` from start to end. Its cluster refuses every connection, which is no reason not to start.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(20);

/// A daemon and its files. Dropping it ends the process.
struct Daemon {
    folder: tempfile::TempDir,
    process: Child,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Ports below the range that outgoing connections use, apart for each test process and test.
fn first_port(test: u16) -> u16 {
    10_000 + (std::process::id() % 500) as u16 * 40 + test * 20
}

fn turnout(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_turnout"));
    command.args(args).env_remove("TURNOUT_SOCKET").env_remove("TURNOUT_CONFIG").stdin(Stdio::null());
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

impl Daemon {
    fn start(port: u16) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("turnout.yaml");
        fs::write(&config, Self::yaml(&folder, port, 3)).expect("written");
        let log = fs::File::create(folder.path().join("log")).expect("a log");
        let process = turnout(&["run", "--config"]).arg(&config).stderr(log).spawn().expect("the binary runs");
        let daemon = Self { folder, process };
        let deadline = Instant::now() + PATIENCE;
        while !daemon.ask(&["status"]).status.success() {
            assert!(Instant::now() < deadline, "not up in time:\n{}", daemon.log());
            sleep(Duration::from_millis(50));
        }
        daemon
    }

    fn yaml(folder: &tempfile::TempDir, port: u16, brokers: u16) -> String {
        format!(
            "clusters:\n  east: {{bootstrap: [\"127.0.0.1:1\"]}}\n\
             virtual_clusters:\n  orders:\n    cluster: east\n    listen: [\"127.0.0.1\"]\n    bootstrap_port: {port}\n    \
             broker_ports: {{first: {}, count: {brokers}}}\n\
             admin: {{http: \"127.0.0.1:{}\", socket: \"{}\"}}\nlog: {{format: json}}\n\
             fast_path: {{mode: \"off\"}}\n",
            port + 1,
            port + 9,
            folder.path().join("t.sock").display()
        )
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("turnout.yaml")
    }

    fn socket(&self) -> String {
        self.folder.path().join("t.sock").display().to_string()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).expect("a log")
    }

    fn ask(&self, args: &[&str]) -> Output {
        turnout(args).args(["--socket", &self.socket()]).output().expect("the binary runs")
    }

    fn status(&self) -> Value {
        serde_json::from_slice(&self.ask(&["status", "--format", "json"]).stdout).expect("JSON")
    }

    /// Waits for the process to end by itself, and returns its exit code.
    fn ended(&mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.process.try_wait().expect("a child") {
                return status.code();
            }
            assert!(Instant::now() < deadline, "it doesn't end:\n{}", self.log());
            sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_daemon_starts_reloads_refuses_and_drains() {
    let port = first_port(0);
    let mut daemon = Daemon::start(port);
    assert_eq!(daemon.status()["virtual_clusters"]["orders"]["cluster"], "east");

    fs::write(daemon.config(), Daemon::yaml(&daemon.folder, port, 4)).expect("written");
    let reloaded = daemon.ask(&["reload"]);
    assert!(reloaded.status.success(), "{}", stderr(&reloaded));
    assert_eq!(String::from_utf8_lossy(&reloaded.stdout), "virtual_clusters.orders.broker_ports.count: 3 → 4\n");

    fs::write(daemon.config(), Daemon::yaml(&daemon.folder, port, 5).replace("count", "cuont")).expect("written");
    let refused = daemon.ask(&["reload"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("turnout.yaml:8:") && stderr(&refused).contains("did you mean `count`?"));
    let status = daemon.status();
    assert_eq!(status["config_generation"], 2);
    assert!(status["last_reload_error"].as_str().is_some_and(|e| e.contains("cuont")));

    let drained = daemon.ask(&["drain", "--wait"]);
    assert!(drained.status.success(), "{}", stderr(&drained));
    assert_eq!(daemon.ended(), Some(0), "{}", daemon.log());
    assert!(!PathBuf::from(daemon.socket()).exists());
    for line in daemon.log().lines() {
        assert!(serde_json::from_str::<Value>(line).is_ok(), "not JSON: {line}");
    }
}

#[test]
fn a_second_daemon_leaves_the_first_ones_socket_and_a_killed_ones_socket_is_taken() {
    let port = first_port(1);
    let mut first = Daemon::start(port);
    // Other ports, the same socket.
    let rival = first.folder.path().join("rival.yaml");
    fs::write(&rival, Daemon::yaml(&first.folder, port + 4, 3)).expect("written");
    let refused = turnout(&["run", "--config"]).arg(&rival).output().expect("the binary runs");
    assert_eq!(refused.status.code(), Some(1));
    let said = stderr(&refused);
    assert!(said.contains(&format!("turnout (pid {}) answers there already", first.process.id())), "{said}");
    assert_eq!(said.matches("answers there already").count(), 1, "said once: {said}");
    assert_eq!(first.status()["pid"], first.process.id());

    first.process.kill().expect("killed");
    first.process.wait().expect("ended");
    assert!(PathBuf::from(first.socket()).exists(), "a killed daemon leaves its file");
    let log = fs::File::create(first.folder.path().join("log")).expect("a log");
    first.process = turnout(&["run", "--config"]).arg(first.config()).stderr(log).spawn().expect("the binary runs");
    let deadline = Instant::now() + PATIENCE;
    while !first.ask(&["status"]).status.success() {
        assert!(Instant::now() < deadline, "not up in time:\n{}", first.log());
        sleep(Duration::from_millis(50));
    }
    assert_eq!(first.status()["pid"], first.process.id());
}
