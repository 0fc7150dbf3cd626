//! `turnout` with a mirror: every copied frame of every virtual cluster is written to the file that
//! `TURNOUT_MIRROR_FILE` names, for a test to compare with what was sent ([`harness::mirror`]).

use std::fs::File;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use harness::mirror::{FILE, write};
use turnout::splice::mirror::{ConnectionId, Consumers, Event, Mirrored};

struct Writer(Mutex<File>);

impl Mirrored for Writer {
    fn take(&self, connection: ConnectionId, event: Event) {
        if let Ok(mut file) = self.0.lock()
            && let Err(error) = write(&mut *file, connection, &event)
        {
            eprintln!("turnout-mirroring: {error}");
            std::process::abort();
        }
    }
}

struct All(Arc<Writer>);

impl Consumers for All {
    fn of(&self, _: &str) -> Option<Arc<dyn Mirrored>> {
        Some(Arc::<Writer>::clone(&self.0))
    }
}

fn main() -> ExitCode {
    let file = std::env::var_os(FILE).map(|path| File::options().create(true).append(true).open(path));
    match file {
        Some(Ok(file)) => turnout::cli::main_mirroring(Some(Arc::new(All(Arc::new(Writer(Mutex::new(file))))))),
        Some(Err(error)) => {
            eprintln!("turnout-mirroring: {error}");
            ExitCode::FAILURE
        }
        // A command, and not the daemon.
        None => turnout::cli::main(),
    }
}
