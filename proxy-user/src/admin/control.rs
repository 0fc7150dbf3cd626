//! The control socket's file: made private, never taken from a living daemon, removed at the end.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Owner and group may steer, others not.
const SOCKET_MODE: u32 = 0o660;

/// Why the control socket could not be had. The message is whole: it has no source that a chain would repeat.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Another daemon has it.
    #[error("{path}: turnout{} answers there already; stop it, or name another `admin.socket`", pid.as_ref().map(|p| format!(" (pid {p})")).unwrap_or_default())]
    InUse {
        /// The socket.
        path: PathBuf,
        /// The daemon's pid, where it is known.
        pid: Option<String>,
    },
    /// A program that isn't turnout listens there.
    #[error("{path}: another program listens there; name another `admin.socket`")]
    Foreign {
        /// The socket.
        path: PathBuf,
    },
    /// Something else has that name.
    #[error("{path}: is there already and is no socket; remove it, or name another `admin.socket`")]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The host refused.
    #[error("{path}: can't {action}: {reason}")]
    Io {
        /// The path that was worked on.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The host's.
        reason: io::Error,
    },
}

/// A bound control socket. Dropping it removes the file.
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    file: SocketFile,
}

/// The name in the file system, and the lock that says whose it is.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode of our socket: a successor's file is not ours to remove.
    identity: (u64, u64),
    /// Held for as long as the name is ours; the kernel lets go of it however the process ends.
    lock: File,
    /// A successor has the socket: the name is its.
    given: Arc<AtomicBool>,
}

impl SocketFile {
    /// Another descriptor of the lock, for a successor.
    pub(super) fn lock(&self) -> io::Result<OwnedFd> {
        self.lock.as_fd().try_clone_to_owned()
    }

    /// Set it, and the name stays when this is dropped.
    pub(super) fn given(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.given)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.given.load(Relaxed) {
            return;
        }
        if fs::symlink_metadata(&self.path).is_ok_and(|m| (m.dev(), m.ino()) == self.identity) {
            // Nobody is left to tell, and the next start removes a stale file anyway.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl ControlSocket {
    /// Binds the socket, making its folder if it isn't there, and taking the place of a file that a dead daemon left.
    ///
    /// A lock on `PATH.lock` decides between two daemons that start at once; that file stays.
    ///
    /// # Errors
    /// See [`ControlError`].
    pub fn bind(path: &Path) -> Result<Self, ControlError> {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        DirBuilder::new().recursive(true).mode(0o755).create(folder).map_err(io_error(folder, "make this folder"))?;
        let lock = lock(path)?;
        refuse_unless_free(path)?;

        // Bound inside a private folder and renamed into place, so that it is never there with wider permissions and
        // replaces a stale file in one step.
        let private = PrivateFolder::make(folder).map_err(io_error(folder, "make a folder in it"))?;
        let unnamed = private.0.join("s");
        let listener = UnixListener::bind(&unnamed).map_err(io_error(path, "listen"))?;
        fs::set_permissions(&unnamed, Permissions::from_mode(SOCKET_MODE))
            .map_err(io_error(path, "set its permissions"))?;
        let meta = fs::symlink_metadata(&unnamed).map_err(io_error(path, "look at it"))?;
        fs::rename(&unnamed, path).map_err(io_error(path, "put the socket in place"))?;
        let file =
            SocketFile { path: path.to_owned(), identity: (meta.dev(), meta.ino()), lock, given: Arc::default() };
        listener.set_nonblocking(true).map_err(io_error(path, "make it non-blocking"))?;
        Ok(Self { listener, file })
    }

    /// The socket of a predecessor, with the lock that says whose the name is. From [`Self::claim`] on it is ours.
    ///
    /// # Errors
    /// The name is not there any more.
    pub(super) fn inherited(path: &Path, listener: OwnedFd, lock: OwnedFd) -> Result<Self, ControlError> {
        let meta = fs::symlink_metadata(path).map_err(io_error(path, "look at it"))?;
        let listener = UnixListener::from(listener);
        listener.set_nonblocking(true).map_err(io_error(path, "make it non-blocking"))?;
        let file = SocketFile {
            path: path.to_owned(),
            identity: (meta.dev(), meta.ino()),
            lock: File::from(lock),
            given: Arc::new(AtomicBool::new(true)),
        };
        Ok(Self { listener, file })
    }

    /// The listener (non-blocking), and what removes the file once it is dropped.
    pub(super) fn into_parts(self) -> (UnixListener, SocketFile) {
        (self.listener, self.file)
    }
}

fn io_error(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> ControlError {
    move |reason| ControlError::Io { path: path.to_owned(), action, reason }
}

impl SocketFile {
    /// The predecessor goes: the name is ours, to be removed at our end.
    pub(super) fn claim(&self) {
        self.given.store(false, Relaxed);
        write_pid(&self.lock);
    }
}

/// For the message of whoever is refused; a lock without it is as good.
fn write_pid(lock: &File) {
    let pid = format!("{}\n", std::process::id());
    let _ = lock.set_len(0).and_then(|()| lock.write_all_at(pid.as_bytes(), 0));
}

fn lock(path: &Path) -> Result<File, ControlError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let name = PathBuf::from(name);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&name)
        .map_err(io_error(&name, "open this file"))?;
    match file.try_lock() {
        Ok(()) => {
            write_pid(&file);
            Ok(file)
        }
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            let _ = file.take(32).read_to_string(&mut pid);
            let pid = Some(pid.trim().to_owned()).filter(|p| !p.is_empty());
            Err(ControlError::InUse { path: path.to_owned(), pid })
        }
        Err(TryLockError::Error(source)) => Err(io_error(&name, "lock this file")(source)),
    }
}

/// Refuses to replace anything but a socket on which nobody listens.
fn refuse_unless_free(path: &Path) -> Result<(), ControlError> {
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(reason) => Err(ControlError::Io { path: path.to_owned(), action: "look at it", reason }),
        Ok(meta) if !meta.file_type().is_socket() => Err(ControlError::NotASocket { path: path.to_owned() }),
        Ok(_) => match UnixStream::connect(path) {
            Ok(_) => Err(ControlError::Foreign { path: path.to_owned() }),
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
            Err(reason) => Err(ControlError::Io { path: path.to_owned(), action: "see whether it is in use", reason }),
        },
    }
}

/// A folder that only its owner may enter, removed when dropped.
struct PrivateFolder(PathBuf);

impl PrivateFolder {
    fn make(parent: &Path) -> io::Result<Self> {
        let path = parent.join(format!(".t{}", std::process::id()));
        let made = DirBuilder::new().mode(0o700).create(&path);
        match made {
            // Left by a daemon of the same pid that died in between: the lock is ours, so nobody uses it.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                fs::remove_dir_all(&path)?;
                DirBuilder::new().mode(0o700).create(&path)?;
            }
            other => other?,
        }
        Ok(Self(path))
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        // Left behind, it is empty and harmless.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listening(path: &Path) -> bool {
        UnixStream::connect(path).is_ok()
    }

    #[test]
    fn the_folder_is_made_and_only_owner_and_group_may_connect() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("run/turnout/t.sock");
        let _socket = ControlSocket::bind(&path).expect("bound");
        assert!(listening(&path));
        assert_eq!(fs::metadata(&path).expect("it is there").mode() & 0o777, SOCKET_MODE);
        let left: Vec<_> = fs::read_dir(path.parent().expect("a parent"))
            .expect("listed")
            .map(|e| e.expect("entry").file_name())
            .collect();
        assert_eq!(left.len(), 2, "the socket and its lock: {left:?}");
    }

    #[test]
    fn it_is_removed_on_exit() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("t.sock");
        drop(ControlSocket::bind(&path).expect("bound"));
        assert!(!path.exists());
        drop(ControlSocket::bind(&path).expect("bound again"));
    }

    #[test]
    fn the_file_of_a_dead_daemon_is_replaced() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("t.sock");
        drop(UnixListener::bind(&path).expect("bound"));
        assert!(path.exists() && !listening(&path));
        let _socket = ControlSocket::bind(&path).expect("a stale file is no obstacle");
        assert!(listening(&path));
    }

    #[test]
    fn a_living_daemon_keeps_its_socket_and_is_named() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("t.sock");
        let _first = ControlSocket::bind(&path).expect("bound");
        let error = ControlSocket::bind(&path).expect_err("in use");
        assert!(matches!(error, ControlError::InUse { .. }));
        let said = error.to_string();
        assert!(said.contains(&format!("turnout (pid {})", std::process::id())), "{said}");
        assert!(listening(&path));
    }

    #[test]
    fn another_programs_socket_is_left_alone() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("t.sock");
        let _other = UnixListener::bind(&path).expect("bound");
        assert!(matches!(ControlSocket::bind(&path), Err(ControlError::Foreign { .. })));
        assert!(listening(&path));
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("t.sock");
        fs::write(&path, "precious").expect("written");
        assert!(matches!(ControlSocket::bind(&path), Err(ControlError::NotASocket { .. })));
        assert_eq!(fs::read_to_string(&path).expect("read"), "precious");
    }

    #[test]
    fn a_successors_file_is_not_removed() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("t.sock");
        let first = ControlSocket::bind(&path).expect("bound");
        fs::remove_file(&path).expect("removed by hand");
        let _successor = UnixListener::bind(&path).expect("bound");
        drop(first);
        assert!(listening(&path));
    }

    #[test]
    fn a_successor_takes_socket_lock_and_name_and_there_is_no_moment_without() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("t.sock");
        let (listener, file) = ControlSocket::bind(&path).expect("bound").into_parts();
        let handle = listener.as_fd().try_clone_to_owned().expect("a descriptor");
        let lock = file.lock().expect("a descriptor");

        // A successor that fails leaves everything as it was.
        let second = handle.try_clone().expect("a descriptor");
        drop(ControlSocket::inherited(&path, second, lock.try_clone().expect("a descriptor")).expect("inherited"));
        assert!(listening(&path));

        let (taken, claimed) = ControlSocket::inherited(&path, handle, lock).expect("inherited").into_parts();
        claimed.claim();
        file.given().store(true, Relaxed);
        drop((listener, file));
        assert!(listening(&path));
        let refused = ControlSocket::bind(&path).expect_err("the lock goes with it");
        assert!(matches!(refused, ControlError::InUse { .. }), "{refused}");
        drop((taken, claimed));
        assert!(!path.exists());
        ControlSocket::bind(&path).expect("free again");
    }

    #[test]
    fn a_path_that_is_too_long_is_refused_in_words() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("x".repeat(120)).join("t.sock");
        let said = ControlSocket::bind(&path).expect_err("too long").to_string();
        assert!(said.contains("can't listen"), "{said}");
    }
}
