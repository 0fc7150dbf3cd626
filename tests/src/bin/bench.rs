//! `cargo xtask bench`: direct, turnout, haproxy and any other proxy, in interleaved rounds.

use std::process::ExitCode;

use clap::Parser;
use harness::bench::{self, Args};
use harness::interrupt;

fn main() -> ExitCode {
    let args = Args::parse();
    let result = interrupt::guard().and_then(|()| bench::run(&args));
    interrupt::give_way();
    match result {
        Ok(()) => {
            interrupt::remove_run_directories();
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("bench: {error:#}");
            eprintln!("logs are in build/runs, in the folders that begin with {}-", std::process::id());
            ExitCode::FAILURE
        }
    }
}
