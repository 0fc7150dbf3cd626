//! Accounts of this host, by name.

use std::ffi::CString;
use std::{io, mem, ptr};

use anyhow::{Context, bail};

/// Longest entry of the account database that is read.
const ENTRY: usize = 64 * 1024;

/// User and group id of a `NAME`, or of a number, which then stands for both.
///
/// # Errors
/// There is no such account, or the account database can't be read.
pub(super) fn find(name: &str) -> anyhow::Result<(u32, u32)> {
    if let Ok(uid) = name.parse::<u32>() {
        return Ok((uid, uid));
    }
    let c_name = CString::new(name).with_context(|| format!("user name {name:?}"))?;
    let mut entry = mem::MaybeUninit::<libc::passwd>::uninit();
    let mut strings = vec![0; ENTRY];
    let mut found = ptr::null_mut();
    // SAFETY: every pointer is to memory that outlives the call, the length is that of `strings`, and `entry` is read
    // only if the call says through `found` that it filled it (getpwnam(3)).
    let (error, ids) = unsafe {
        let error =
            libc::getpwnam_r(c_name.as_ptr(), entry.as_mut_ptr(), strings.as_mut_ptr(), strings.len(), &raw mut found);
        (error, (!found.is_null()).then(|| ((*found).pw_uid, (*found).pw_gid)))
    };
    match ids {
        Some(ids) => Ok(ids),
        None if error == 0 => bail!("there is no user {name:?} on this host; create it, or name another with --user"),
        None => Err(io::Error::from_raw_os_error(error)).with_context(|| format!("looking for user {name:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_found_by_name_and_by_number() {
        assert_eq!(find("root").unwrap(), (0, 0));
        assert_eq!(find("1234").unwrap(), (1234, 1234));
        let error = find("no-such-user-here").unwrap_err().to_string();
        assert!(error.contains("no-such-user-here") && error.contains("--user"), "{error}");
        assert!(find("nul\0byte").is_err());
    }
}
