//! Every job of the project, from an empty machine to a package: `cargo xtask help`.
//!
//! The crate depends on little, so that the first command on a fresh machine answers within seconds.

mod attach;
mod bootstrap;
mod build;
mod command;
mod fuzz;
mod harness;
mod kernel;
mod lint;
mod package;
mod test;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Every job of the project, from an empty machine to a package",
    after_help = "A fresh machine needs two commands:\n  cargo xtask demo         set up, and see real Kafka traffic through turnout\n  cargo xtask test         set up, and prove it",
    disable_help_subcommand = false
)]
struct Cli {
    #[command(subcommand)]
    job: Job,
}

#[derive(Subcommand)]
enum Job {
    /// Install what a job needs and this host lacks; prints it first, does nothing twice
    Bootstrap(bootstrap::Args),
    /// Build the kernel programs, and turnout with them inside
    Build(build::Args),
    /// Build turnout and run it; by default the daemon with the smallest example config
    Run(harness::RunArgs),
    /// Load the kernel programs on an interface without the daemon (root)
    Attach(attach::AttachArgs),
    /// Take off what `attach` left (root)
    Detach(attach::DetachArgs),
    /// Real Kafka, turnout in front of it, real traffic, a live table: half a minute
    Demo(harness::DemoArgs),
    /// Compare direct, turnout and haproxy on real Kafka
    Bench(harness::BenchArgs),
    /// Set up, build, and run the tests of the CI tier, or with --full all of them
    Test(test::Args),
    /// Run the fuzz targets for a while
    Fuzz(fuzz::Args),
    /// Formatting, clippy, licences and sources of dependencies, documentation
    Lint(lint::Args),
    /// Make a tarball and a Debian package of the release build
    Package(package::Args),
}

fn main() -> ExitCode {
    let Cli { job } = Cli::parse();
    let done = match job {
        Job::Bootstrap(args) => bootstrap::main(&args),
        Job::Build(args) => build::main(&args),
        Job::Run(args) => harness::run(&args),
        Job::Attach(args) => attach::attach(&args),
        Job::Detach(args) => attach::detach(&args),
        Job::Demo(args) => harness::demo(&args),
        Job::Bench(args) => harness::bench(&args),
        Job::Test(args) => test::main(&args),
        Job::Fuzz(args) => fuzz::main(&args),
        Job::Lint(args) => lint::main(&args),
        Job::Package(args) => package::main(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
