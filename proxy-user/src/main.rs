//! The `turnout` binary.
use std::process::ExitCode;

fn main() -> ExitCode {
    turnout::cli::main()
}
