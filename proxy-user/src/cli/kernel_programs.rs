//! `turnout attach` and `turnout detach`: kernel programs without the daemon.

use std::fmt::Write as _;
use std::path::Path;

use crate::kernel;

/// Attaches the programs and says what they do.
pub(super) fn attach(pin: &Path, interface: &str) -> anyhow::Result<String> {
    let status = kernel::attach(pin, Some(&[interface.to_owned()]))?;
    let mut text = String::new();
    for interface in &status.interfaces {
        let reason = interface.reason.as_deref().map(|r| format!(" ({r})")).unwrap_or_default();
        let _ = writeln!(text, "{}: {}{reason}", interface.name, interface.mode.unwrap_or("not attached"));
    }
    anyhow::ensure!(status.interfaces.iter().any(|i| i.mode.is_some()), "nothing was attached\n{text}");
    let _ = writeln!(text, "steering: {}", if status.steering { "attached" } else { "not attached" });
    let _ = writeln!(
        text,
        "ports and lists are the daemon's to fill; until then everything passes. `turnout detach` ends it"
    );
    Ok(text)
}

/// Detaches the programs. Where there are none, that is what was wanted.
pub(super) fn detach(pin: &Path, in_json: bool) -> anyhow::Result<String> {
    let had = kernel::detach(pin, false)?;
    if in_json {
        return Ok(serde_json::to_string_pretty(&serde_json::json!({ "detached": had }))? + "\n");
    }
    Ok(if had { "detached\n".into() } else { format!("nothing is attached under {}\n", pin.display()) })
}
