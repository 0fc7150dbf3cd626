//! Child processes that can't outlive the test process.

use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::netns::Netns;

/// A running program in its own process group, killed on drop.
///
/// All methods take `&self`, so that a process can belong to something shared between tests.
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: i32,
    child: Mutex<Child>,
    log: Option<PathBuf>,
}

impl Process {
    /// Starts `command`, in `netns` if given. With `log`, stdout and stderr are appended to that file.
    ///
    /// # Errors
    /// The program can't be started.
    pub fn spawn(name: &str, mut command: Command, netns: Option<&Netns>, log: Option<&Path>) -> Result<Self> {
        if let Some(log) = log {
            let file = File::options().create(true).append(true).open(log)?;
            command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        }
        let child = spawn(command, netns).with_context(|| format!("starting {name}"))?;
        let pid = i32::try_from(child.id()).context("pid out of range")?;
        Ok(Self { name: name.to_owned(), pid, child: Mutex::new(child), log: log.map(Path::to_path_buf) })
    }

    /// Process id, also that of the process group.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The pipes of a process that was started with piped stdin and stdout; `None` when taken before.
    #[must_use]
    pub fn take_pipes(&self) -> Option<(ChildStdin, ChildStdout)> {
        let mut child = self.child();
        child.stdin.take().zip(child.stdout.take())
    }

    /// Whether it still runs (a frozen one does).
    #[must_use]
    pub fn is_running(&self) -> bool {
        matches!(self.child().try_wait(), Ok(None))
    }

    /// Sends a signal to the process.
    ///
    /// # Errors
    /// It has ended already.
    pub fn signal(&self, signal: libc::c_int) -> Result<()> {
        let mut child = self.child();
        // Holding the lock between the check and the signal: the pid can't be reaped, hence not reused, meanwhile.
        if let Some(status) = child.try_wait()? {
            return Err(anyhow!("{} has ended ({status}){}", self.name, self.log_hint()));
        }
        // SAFETY: plain syscall; the pid is our unreaped child.
        match unsafe { libc::kill(self.pid, signal) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()).with_context(|| format!("signal {signal} to {}", self.name)),
        }
    }

    /// Stops it where it stands (SIGSTOP): connections stay open, nothing answers.
    ///
    /// # Errors
    /// It has ended already.
    pub fn freeze(&self) -> Result<()> {
        self.signal(libc::SIGSTOP)
    }

    /// Undoes [`Self::freeze`].
    ///
    /// # Errors
    /// It has ended already.
    pub fn thaw(&self) -> Result<()> {
        self.signal(libc::SIGCONT)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It still runs after `patience`.
    pub fn wait(&self, patience: Duration) -> Result<ExitStatus> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child().try_wait()? {
                return Ok(status);
            }
            if begin.elapsed() > patience {
                return Err(anyhow!("{} still runs after {patience:?}{}", self.name, self.log_hint()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Asks it to end (SIGTERM) and waits; after `patience` it is killed, which is an error.
    ///
    /// # Errors
    /// It had to be killed.
    pub fn stop(&self, patience: Duration) -> Result<ExitStatus> {
        if self.signal(libc::SIGTERM).is_ok() {
            let ended = self.wait(patience);
            if ended.is_err() {
                self.kill();
            }
            return ended;
        }
        self.wait(Duration::ZERO)
    }

    /// Kills its process group (SIGKILL) and reaps it.
    pub fn kill(&self) {
        let mut child = self.child();
        if !matches!(child.try_wait(), Ok(Some(_))) {
            // SAFETY: plain syscall; the group leader is our unreaped child.
            unsafe { libc::killpg(self.pid, libc::SIGKILL) };
            let _ = child.wait();
        }
    }

    /// The last `lines` lines of its log.
    #[must_use]
    pub fn log_tail(&self, lines: usize) -> String {
        self.log.as_deref().map(|path| tail(path, lines)).unwrap_or_default()
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log_hint(&self) -> String {
        self.log.as_ref().map(|log| format!(", log {}", log.display())).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The last `lines` lines of a file; empty when it can't be read.
#[must_use]
pub fn tail(path: &Path, lines: usize) -> String {
    let text = std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let all: Vec<_> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Runs a tool to its end and returns its stdout.
///
/// # Errors
/// It can't be started, fails, or takes longer than `patience`; the error carries the end of its output.
pub fn run(mut command: Command, patience: Duration) -> Result<String> {
    let name = format!("{:?}", command.get_program());
    let out = tempfile::NamedTempFile::new()?;
    let err = tempfile::NamedTempFile::new()?;
    command.stdin(Stdio::null()).stdout(out.reopen()?).stderr(err.reopen()?);
    let process = Process::spawn(&name, command, None, None)?;
    let status = process.wait(patience);
    let stdout = String::from_utf8_lossy(&std::fs::read(out.path())?).into_owned();
    match status {
        Ok(status) if status.success() => Ok(stdout),
        ended => {
            let how = ended.map_or_else(
                |error| error.to_string(),
                |status| match status.signal() {
                    Some(signal) => format!("ended by signal {signal}"),
                    None => format!("exit code {}", status.code().unwrap_or_default()),
                },
            );
            Err(anyhow!("{name}: {how}\n{}\n{}", tail(out.path(), 20), tail(err.path(), 20)))
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Held while a child is being started.
static STARTING: Mutex<()> = Mutex::new(());

/// While this is held, no child is started: whoever asks for one waits.
pub(crate) fn hold_starts() -> MutexGuard<'static, ()> {
    STARTING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a child in its own process group that the kernel kills when this process ends, however it ends.
///
/// The parent-death signal fires when the *thread* that forked ends, and test threads come and go; so one thread that
/// lives as long as the process does all the forking.
fn spawn(mut command: Command, netns: Option<&Netns>) -> Result<Child> {
    static FORKER: OnceLock<Mutex<Sender<Job>>> = OnceLock::new();

    let netns = netns.map(Netns::open).transpose()?;
    let parent = std::process::id();
    command.process_group(0);
    // SAFETY: between fork and exec only async-signal-safe calls are made (prctl, getppid, setns, _exit).
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            if libc::getppid().cast_unsigned() != parent {
                libc::_exit(1);
            }
            if let Some(netns) = &netns {
                netns.enter()?;
            }
            Ok(())
        });
    }
    let forker = FORKER.get_or_init(|| {
        let (send, jobs) = channel::<Job>();
        std::thread::spawn(move || jobs.into_iter().for_each(|job| job()));
        Mutex::new(send)
    });
    let (send, result) = sync_channel(1);
    let job: Job = Box::new(move || {
        let started = {
            let _starting = hold_starts();
            command.spawn()
        };
        let _ = send.send(started);
    });
    forker
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .send(job)
        .map_err(|_| anyhow!("the thread that starts processes has ended"))?;
    Ok(result.recv()??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_outlives_the_thread_that_asked_for_it_and_ends_on_drop() {
        let process = std::thread::spawn(|| {
            let mut command = Command::new("sleep");
            command.arg("60");
            Process::spawn("sleep", command, None, None).unwrap()
        })
        .join()
        .unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert!(process.is_running());
        let pid = process.pid();
        drop(process);
        assert!(!Path::new("/proc").join(pid.to_string()).exists());
    }

    #[test]
    fn a_failing_tool_reports_its_code_and_words() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo why >&2; exit 3"]);
        let error = run(command, Duration::from_secs(5)).unwrap_err().to_string();
        assert!(error.contains("exit code 3") && error.contains("why"), "{error}");
    }
}
