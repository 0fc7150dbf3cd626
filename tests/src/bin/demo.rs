//! `cargo xtask demo`: real Kafka traffic through turnout, watched and checked.

use std::process::ExitCode;

use clap::Parser;
use harness::demo::{self, Args};
use harness::interrupt;

fn main() -> ExitCode {
    let args = Args::parse();
    let result = interrupt::guard().and_then(|()| demo::run(&args));
    interrupt::give_way();
    match result {
        Ok(()) => {
            interrupt::remove_run_directories();
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("demo: {error:#}");
            eprintln!("logs are in build/runs, in the folders that begin with {}-", std::process::id());
            ExitCode::FAILURE
        }
    }
}
