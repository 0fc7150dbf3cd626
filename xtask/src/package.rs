//! `cargo xtask package`: a tarball and a Debian package of the release build. The host they go to needs no compiler.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::build::{self, Ebpf};
use crate::command::{self, run};
use crate::workspace;

/// Make a tarball and a Debian package of the release build, in target/package.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Go on where the kernel programs can't be built
    #[arg(long)]
    without_ebpf: bool,
}

const VERSION: &str = env!("CARGO_PKG_VERSION");
const SERVICE: &str = include_str!("../package/turnout.service");
const USERS: &str = include_str!("../package/turnout.sysusers");
/// What dpkg runs: the dedicated user, the hand-over to a new version, and nothing left in the kernel after removal.
const SCRIPTS: [(&str, &str); 3] = [
    ("postinst", include_str!("../package/debian/postinst")),
    ("prerm", include_str!("../package/debian/prerm")),
    ("postrm", include_str!("../package/debian/postrm")),
];
const SHELLS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/turnout"),
    ("zsh", "usr/share/zsh/vendor-completions/_turnout"),
    ("fish", "usr/share/fish/vendor_completions.d/turnout.fish"),
];

pub(crate) fn main(&Args { without_ebpf }: &Args) -> Result<()> {
    build::build(true, if without_ebpf { Ebpf::Auto } else { Ebpf::Required })?;
    let place = workspace::target().join("package");
    let name = format!("turnout-{VERSION}-{}", std::env::consts::ARCH);
    let tree = place.join(&name);
    if tree.exists() {
        fs::remove_dir_all(&tree).with_context(|| format!("emptying {}", tree.display()))?;
    }
    fill(&tree)?;

    let tarball = place.join(format!("{name}.tar.gz"));
    run("tar")
        .args(["--owner=0", "--group=0", "--sort=name", "-czf"])
        .arg(&tarball)
        .arg("-C")
        .arg(&place)
        .arg(&name)
        .go()?;
    println!("made {}", tarball.display());
    if !command::exists("dpkg-deb") {
        println!("no dpkg-deb here: no Debian package");
        return Ok(());
    }
    let deb = place.join(format!("turnout_{VERSION}_{}.deb", architecture()?));
    control(&tree)?;
    run("dpkg-deb").args(["--root-owner-group", "--build"]).arg(&tree).arg(&deb).go()?;
    fs::remove_dir_all(tree.join("DEBIAN"))?;
    println!("made {}", deb.display());
    Ok(())
}

/// Lays the files out as they are installed.
fn fill(tree: &Path) -> Result<()> {
    let turnout = workspace::turnout();
    let root = workspace::root();
    copy(&turnout, &tree.join("usr/bin/turnout"))?;
    write(&tree.join("usr/lib/systemd/system/turnout.service"), SERVICE)?;
    write(&tree.join("usr/lib/sysusers.d/turnout.conf"), USERS)?;
    for page in ["concepts.md", "configuration.md", "operations.md", "metrics.md"] {
        copy(&root.join("docs").join(page), &tree.join("usr/share/doc/turnout").join(page))?;
    }
    copy(&root.join("LICENSE"), &tree.join("usr/share/doc/turnout/copyright"))?;
    for example in examples(&root.join("config"))? {
        let name = example.file_name().context("an example without a name")?;
        copy(&example, &tree.join("usr/share/doc/turnout/examples").join(name))?;
    }
    for (shell, path) in SHELLS {
        let completions = run(&turnout)
            .args(["completions", shell])
            .ask()
            .filter(|text| !text.is_empty())
            .with_context(|| format!("`turnout completions {shell}` says nothing"))?;
        write(&tree.join(path), &completions)?;
    }
    Ok(())
}

fn examples(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut files: Vec<_> = entries.filter_map(|e| Some(e.ok()?.path())).filter(|p| p.is_file()).collect();
    files.sort();
    Ok(files)
}

/// The control file. The package brings no config: which clusters there are is the one thing without a default.
fn control(tree: &Path) -> Result<()> {
    let text = format!(
        "Package: turnout\nVersion: {VERSION}\nArchitecture: {}\nSection: net\nPriority: optional\n\
         Maintainer: the turnout project\nDepends: libc6 (>= 2.36), passwd\nRecommends: systemd\n\
         Description: Kafka gateway\n Clients dial it as if it were their brokers. The config belongs at\n \
         /etc/turnout/turnout.yaml; examples are in /usr/share/doc/turnout/examples.\n",
        architecture()?
    );
    write(&tree.join("DEBIAN/control"), &text)?;
    for (name, script) in SCRIPTS {
        let path = tree.join("DEBIAN").join(name);
        write(&path, script)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
            .with_context(|| format!("making {} executable", path.display()))?;
    }
    Ok(())
}

/// This machine in Debian's words.
fn architecture() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => bail!("no Debian name is known for {other}"),
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    make_parent(to)?;
    fs::copy(from, to).with_context(|| format!("copying {} to {}", from.display(), to.display()))?;
    Ok(())
}

fn write(to: &Path, text: &str) -> Result<()> {
    make_parent(to)?;
    fs::write(to, text).with_context(|| format!("writing {}", to.display()))
}

fn make_parent(path: &Path) -> Result<()> {
    let parent = path.parent().context("in a folder")?;
    fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))
}
