//! What the host has, asked of the programs themselves rather than of the package manager: a JDK that somebody
//! unpacked is as good as Debian's.

use std::path::Path;

use crate::command::{exists, run};
use crate::kernel::{self, Compiler};

/// Facts that a plan is made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Host {
    /// How packages are installed here.
    pub(crate) packages: Packages,
    /// `rustup` is there.
    pub(crate) rustup: bool,
    /// `cargo fmt` and `cargo clippy` run.
    pub(crate) rustfmt: bool,
    pub(crate) clippy: bool,
    /// A C compiler and linker, and a C++ compiler.
    pub(crate) c: bool,
    pub(crate) cxx: bool,
    /// The compiler for the kernel programs.
    pub(crate) kernel_compiler: Option<Compiler>,
    /// Debian's LLVM 22 with headers.
    pub(crate) llvm: bool,
    pub(crate) bpf_linker: bool,
    /// Major version of the JVM in PATH.
    pub(crate) java: Option<u32>,
    pub(crate) maven: bool,
    /// Version of the Go in PATH.
    pub(crate) go: Option<(u32, u32)>,
    pub(crate) node: Option<u32>,
    pub(crate) npm: bool,
    /// Python 3 can make virtual environments with pip in them.
    pub(crate) python: bool,
    pub(crate) kcat: bool,
    pub(crate) haproxy: bool,
    /// `ip`.
    pub(crate) iproute: bool,
    pub(crate) cargo_deny: bool,
}

/// How packages are installed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Packages {
    /// By apt on Debian, as root or by `sudo`.
    Debian {
        /// Through `sudo -n`.
        sudo: bool,
    },
    /// By apt on another distribution, whose compiler for the kernel programs isn't known to fit.
    Apt {
        /// Through `sudo -n`.
        sudo: bool,
    },
    /// There is apt, but neither root nor a sudo that asks for no password.
    NotRoot,
    /// There is no apt.
    #[default]
    None,
}

impl Host {
    /// Looks at this host.
    pub(crate) fn look() -> Self {
        let answers = |program: &str, args: &[&str]| run(program).args(args).ask().is_some();
        Self {
            packages: packages(),
            rustup: exists("rustup"),
            rustfmt: answers("cargo", &["fmt", "--version"]),
            clippy: answers("cargo", &["clippy", "--version"]),
            c: exists("cc"),
            cxx: exists("c++"),
            kernel_compiler: kernel::compiler(),
            llvm: Path::new(&format!("/usr/lib/llvm-{}/include/llvm-c/Core.h", kernel::DEBIAN_LLVM)).exists()
                || Path::new(&format!("/usr/lib/llvm-{}/bin/llvm-config", kernel::DEBIAN_LLVM)).exists(),
            bpf_linker: kernel::has_linker(),
            java: run("java").arg("--version").ask().and_then(|v| numbers(&v).next()),
            maven: exists("mvn"),
            go: run("go").args(["env", "GOVERSION"]).env("GOTOOLCHAIN", "local").ask().and_then(|v| pair(&v)),
            node: run("node").arg("--version").ask().and_then(|v| numbers(&v).next()),
            npm: exists("npm"),
            python: answers("python3", &["-c", "import ensurepip, venv"]),
            kcat: exists("kcat"),
            haproxy: exists("haproxy") || Path::new("/usr/sbin/haproxy").exists(),
            iproute: exists("ip") || Path::new("/usr/sbin/ip").exists(),
            cargo_deny: answers("cargo", &["deny", "--version"]),
        }
    }
}

fn packages() -> Packages {
    if !exists("apt-get") {
        return Packages::None;
    }
    let root = run("id").arg("-u").ask().is_some_and(|id| id == "0");
    if !root && run("sudo").args(["-n", "true"]).ask().is_none() {
        return Packages::NotRoot;
    }
    let about = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    if about.lines().any(|l| l == "ID=debian") {
        Packages::Debian { sudo: !root }
    } else {
        Packages::Apt { sudo: !root }
    }
}

/// The numbers in a text, in order.
fn numbers(text: &str) -> impl Iterator<Item = u32> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok())
}

fn pair(text: &str) -> Option<(u32, u32)> {
    let mut numbers = numbers(text);
    Some((numbers.next()?, numbers.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_programs_print_them() {
        assert_eq!(numbers("openjdk 17.0.15 2025-04-15").next(), Some(17));
        assert_eq!(numbers("v20.20.2").next(), Some(20));
        assert_eq!(pair("go1.26.8"), Some((1, 26)));
        assert_eq!(pair("devel"), None);
    }
}
