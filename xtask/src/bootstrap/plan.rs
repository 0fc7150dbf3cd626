//! What to install: a pure function of the host and the job.

use std::fmt;

use super::Purpose;
use super::host::{Host, Packages};
use crate::kernel::{self, Compiler};

/// The version of cargo-deny that is installed where there is none.
pub(crate) const CARGO_DENY: &str = "0.20.2";
/// Go for the clients that are tested: their modules ask for 1.26.
pub(crate) const GO: &str = "1.26.0";
/// From this version on a `go` fetches the toolchain that a module asks for by itself.
const GO_THAT_UPGRADES: (u32, u32) = (1, 21);
/// Kafka 4 brokers want Java 17.
const JAVA: u32 = 17;
const NODE: u32 = 18;

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Install Debian packages, all in one go.
    Packages { sudo: bool, packages: Vec<Package> },
    /// Add components to the rustup toolchain in use.
    Components(Vec<&'static str>),
    /// Have rustup install a nightly with the source of `core`.
    Nightly,
    /// Compile bpf-linker; `debian`: against Debian's LLVM.
    BpfLinker { debian: bool },
    /// Compile cargo-deny.
    CargoDeny,
    /// Fetch a newer Go through the module proxy into the build folder.
    Go,
}

/// A package and what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Package {
    pub(crate) name: &'static str,
    pub(crate) why: &'static str,
}

/// Something that is missing and can't be had here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lack {
    what: String,
    remedy: String,
}

/// What to do, in order, and what can't be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    pub(crate) lacks: Vec<Lack>,
}

impl Plan {
    /// There is nothing to do and nothing to complain about.
    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.lacks.is_empty()
    }
}

impl Step {
    /// What it brings, in a few words.
    pub(crate) fn what(&self) -> String {
        match self {
            Self::Packages { packages, .. } => packages.iter().map(|p| p.name).collect::<Vec<_>>().join(" "),
            Self::Components(names) => format!("rustup components {}", names.join(" ")),
            Self::Nightly => "a Rust nightly with rust-src".into(),
            Self::BpfLinker { .. } => format!("bpf-linker {}", kernel::BPF_LINKER),
            Self::CargoDeny => format!("cargo-deny {CARGO_DENY}"),
            Self::Go => format!("Go {GO}"),
        }
    }

    fn why(&self) -> &'static str {
        match self {
            Self::Packages { .. } => "",
            Self::Components(_) => "formatting and lints",
            Self::Nightly => "compiles the kernel programs",
            Self::BpfLinker { .. } => "links the kernel programs; compiled by cargo, about a minute",
            Self::CargoDeny => "checks licences and sources of dependencies; compiled by cargo, some minutes",
            Self::Go => {
                "compiles the Go clients; through the Go module proxy into build/tools, for the host's is too old"
            }
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { steps, lacks } = self;
        if self.is_empty() {
            return writeln!(f, "nothing to do");
        }
        if !steps.is_empty() {
            writeln!(f, "To install:")?;
        }
        for step in steps {
            if let Step::Packages { sudo, packages } = step {
                let by = if *sudo { "apt, through sudo" } else { "apt" };
                for Package { name, why } in packages {
                    writeln!(f, "  {name:<24} {why} ({by})")?;
                }
            } else {
                writeln!(f, "  {:<24} {}", step.what(), step.why())?;
            }
        }
        if !lacks.is_empty() {
            writeln!(f, "Missing, and not to be had here:")?;
        }
        for Lack { what, remedy } in lacks {
            writeln!(f, "  {what}: {remedy}")?;
        }
        Ok(())
    }
}

/// Plans for a job on a host.
pub(crate) fn plan(host: &Host, purpose: Purpose) -> Plan {
    use Purpose::{All, Bench, Demo, Lint, Test};
    let mut planner = Planner { host, packages: Vec::new(), plan: Plan::default() };

    planner.compiler();
    planner.kernel();
    if matches!(purpose, Test | Demo | Bench | All) {
        planner.kafka();
    }
    if matches!(purpose, Test | All) {
        planner.clients();
        planner.need(host.cxx, "g++", "compiles the fuzzer's runtime");
    }
    if matches!(purpose, Bench | All) {
        planner.need(host.haproxy, "haproxy", "what turnout is compared with");
    }
    if matches!(purpose, Lint | All) {
        planner.lint();
    }
    planner.finish()
}

struct Planner<'a> {
    host: &'a Host,
    packages: Vec<Package>,
    plan: Plan,
}

impl Planner<'_> {
    fn need(&mut self, there: bool, name: &'static str, why: &'static str) {
        if !there && !self.packages.iter().any(|p| p.name == name) {
            self.packages.push(Package { name, why });
        }
    }

    fn lack(&mut self, what: impl Into<String>, remedy: impl Into<String>) {
        self.plan.lacks.push(Lack { what: what.into(), remedy: remedy.into() });
    }

    fn compiler(&mut self) {
        self.need(self.host.c, "gcc", "linker, and compiler of the C parts of dependencies");
        self.need(self.host.c, "libc6-dev", "C library's headers");
    }

    fn kernel(&mut self) {
        const WHY: &str = "compiles the kernel programs";
        let host = self.host;
        let debian = matches!(host.packages, Packages::Debian { .. });
        match host.kernel_compiler {
            Some(_) => {}
            None if debian => {
                for name in ["rustc-web", "cargo-web", "rust-web-src"] {
                    self.need(false, name, WHY);
                }
            }
            None if host.rustup => self.plan.steps.push(Step::Nightly),
            None => self.lack(
                "a compiler for the kernel programs",
                "needs rustup (https://rustup.rs) or root on Debian; turnout can be built without",
            ),
        }
        if host.bpf_linker {
            return;
        }
        let with_debian = match host.kernel_compiler {
            Some(compiler) => compiler == Compiler::Debian,
            None => debian,
        };
        if with_debian {
            self.need(host.llvm, "llvm-22-dev", "what bpf-linker is linked with");
        }
        self.plan.steps.push(Step::BpfLinker { debian: with_debian });
    }

    fn kafka(&mut self) {
        let java = self.host.java.is_some_and(|major| major >= JAVA);
        self.need(java, "openjdk-17-jdk-headless", "runs Apache Kafka and compiles the Java client");
        self.need(self.host.maven, "maven", "fetches Apache Kafka");
        self.need(self.host.kcat, "kcat", "a Kafka client on the command line");
        self.need(self.host.iproute, "iproute2", "makes network namespaces");
    }

    fn clients(&mut self) {
        let host = self.host;
        self.need(host.go.is_some(), "golang-go", "compiles the Go clients");
        // Debian 12's Go is 1.19: it can fetch a module, and a newer Go is one.
        if host.go.is_none_or(|version| version < GO_THAT_UPGRADES) {
            self.plan.steps.push(Step::Go);
        }
        self.need(host.node.is_some_and(|major| major >= NODE), "nodejs", "runs the JavaScript client");
        self.need(host.npm, "npm", "fetches the JavaScript client");
        self.need(host.python, "python3-venv", "runs the Python clients");
    }

    fn lint(&mut self) {
        let host = self.host;
        let missing: Vec<_> =
            [("rustfmt", host.rustfmt), ("clippy", host.clippy)].iter().filter(|c| !c.1).map(|c| c.0).collect();
        if !missing.is_empty() {
            if host.rustup {
                self.plan.steps.push(Step::Components(missing));
            } else {
                self.lack(missing.join(" and "), "add them to this Rust installation, or use rustup");
            }
        }
        if !host.cargo_deny {
            self.plan.steps.push(Step::CargoDeny);
        }
    }

    /// Packages come first: what is compiled needs them.
    fn finish(mut self) -> Plan {
        if self.packages.is_empty() {
            return self.plan;
        }
        let names = self.packages.iter().map(|p| p.name).collect::<Vec<_>>().join(" ");
        match self.host.packages {
            Packages::Debian { sudo } | Packages::Apt { sudo } => {
                self.plan.steps.insert(0, Step::Packages { sudo, packages: self.packages });
            }
            Packages::NotRoot => self.lack(names.clone(), format!("needs root: apt-get install {names}")),
            Packages::None => self.lack(names, "there is no apt here: install them with this system's packages"),
        }
        self.plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete() -> Host {
        Host {
            packages: Packages::Debian { sudo: false },
            rustup: true,
            rustfmt: true,
            clippy: true,
            c: true,
            cxx: true,
            kernel_compiler: Some(Compiler::Debian),
            llvm: true,
            bpf_linker: true,
            java: Some(17),
            maven: true,
            go: Some((1, 26)),
            node: Some(20),
            npm: true,
            python: true,
            kcat: true,
            haproxy: true,
            iproute: true,
            cargo_deny: true,
        }
    }

    fn fresh(packages: Packages) -> Host {
        Host { packages, rustup: true, rustfmt: true, clippy: true, ..Host::default() }
    }

    fn package_names(plan: &Plan) -> Vec<&str> {
        match plan.steps.first() {
            Some(Step::Packages { packages, .. }) => packages.iter().map(|p| p.name).collect(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn a_complete_host_has_nothing_to_do() {
        let plan = plan(&complete(), Purpose::All);
        assert!(plan.is_empty(), "{plan}");
        assert_eq!(plan.to_string(), "nothing to do\n");
    }

    #[test]
    fn a_fresh_debian_gets_its_kernel_toolchain_from_packages_and_bpf_linker_after_them() {
        let plan = plan(&fresh(Packages::Debian { sudo: false }), Purpose::Build);
        assert_eq!(package_names(&plan), ["gcc", "libc6-dev", "rustc-web", "cargo-web", "rust-web-src", "llvm-22-dev"]);
        assert_eq!(plan.steps[1..], [Step::BpfLinker { debian: true }]);
        assert_eq!(plan.lacks, []);
    }

    #[test]
    fn another_distribution_gets_a_nightly() {
        let plan = plan(&Host { c: true, ..fresh(Packages::Apt { sudo: true }) }, Purpose::Build);
        assert_eq!(plan.steps, [Step::Nightly, Step::BpfLinker { debian: false }]);
    }

    #[test]
    fn a_nightly_that_is_there_is_used_on_debian_too() {
        let host = Host { kernel_compiler: Some(Compiler::Nightly), bpf_linker: false, llvm: false, ..complete() };
        assert_eq!(plan(&host, Purpose::Build).steps, [Step::BpfLinker { debian: false }]);
    }

    #[test]
    fn an_old_go_is_used_to_fetch_a_newer_one_and_a_new_one_helps_itself() {
        for (go, steps) in [(Some((1, 19)), vec![Step::Go]), (Some((1, 21)), vec![])] {
            assert_eq!(plan(&Host { go, ..complete() }, Purpose::Test).steps, steps);
        }
        let none = plan(&Host { go: None, ..complete() }, Purpose::Test);
        assert_eq!(package_names(&none), ["golang-go"]);
        assert_eq!(none.steps[1..], [Step::Go]);
    }

    #[test]
    fn without_root_or_apt_what_is_missing_is_named_and_nothing_is_installed_by_package() {
        for packages in [Packages::NotRoot, Packages::None] {
            let plan = plan(&Host { java: Some(11), packages, ..complete() }, Purpose::Demo);
            assert_eq!(plan.steps, []);
            assert_eq!(plan.lacks[0].what, "openjdk-17-jdk-headless");
        }
    }

    #[test]
    fn a_job_gets_no_more_than_it_needs() {
        let nothing = fresh(Packages::Debian { sudo: false });
        let build = plan(&nothing, Purpose::Build).to_string();
        for other in ["maven", "haproxy", "cargo-deny", "golang-go"] {
            assert!(!build.contains(other), "{build}");
        }
        let demo = plan(&nothing, Purpose::Demo).to_string();
        assert!(demo.contains("maven") && !demo.contains("haproxy") && !demo.contains("golang-go"), "{demo}");
    }
}
