//! Free TCP ports that no other test process takes meanwhile.
//!
//! Ports lie below 32768: above, an outgoing connection may hold the port just when a process restarts on it
//! (`net.ipv4.ip_local_port_range`). A port is reserved by a lock file shared by all test processes of this host and
//! stays reserved until this process ends, so a broker or gateway can be restarted on it.

use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::Mutex;

use anyhow::{Result, bail};

use crate::paths::FileLock;

const FIRST: u16 = 12_000;
const END: u16 = 32_000;

static HELD: Mutex<Vec<FileLock>> = Mutex::new(Vec::new());

/// One free port.
///
/// # Errors
/// None is free.
pub fn one() -> Result<u16> {
    block(1)
}

/// The first of `count` adjacent free ports.
///
/// # Errors
/// No such block was found.
pub fn block(count: u16) -> Result<u16> {
    let span = END - FIRST - count;
    for _ in 0..1000 {
        let first = FIRST + rand::random_range(0..span);
        if let Some(locks) = reserve(first, count)? {
            HELD.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend(locks);
            return Ok(first);
        }
    }
    bail!("no {count} adjacent free ports found between {FIRST} and {END}")
}

fn reserve(first: u16, count: u16) -> Result<Option<Vec<FileLock>>> {
    let mut locks = Vec::new();
    for port in first..first + count {
        match FileLock::try_acquire(&lock_path(port))? {
            Some(lock) if is_free(port) => locks.push(lock),
            _ => return Ok(None),
        }
    }
    Ok(Some(locks))
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok()
}

fn lock_path(port: u16) -> PathBuf {
    std::env::temp_dir().join("turnout-test-ports").join(port.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_do_not_overlap_while_the_process_lives() {
        let mut taken: Vec<u16> = Vec::new();
        for count in [1, 5, 20] {
            let first = block(count).unwrap();
            taken.extend(first..first + count);
        }
        let unique: std::collections::BTreeSet<_> = taken.iter().collect();
        assert_eq!(unique.len(), 26);
        assert!(taken.iter().all(|port| *port < 32_768));
    }
}
