//! `cargo xtask bench`: direct, turnout, haproxy and any other proxy, in interleaved rounds.

use std::process::ExitCode;

use clap::Parser;
use harness::bench::{self, Args};
use harness::interrupt;

fn main() -> ExitCode {
    let args = Args::parse();
    match interrupt::guard().and_then(|()| bench::run(&args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
