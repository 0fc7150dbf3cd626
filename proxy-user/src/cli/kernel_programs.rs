//! `turnout attach` and `turnout detach`: kernel programs without the daemon.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use crate::kernel::probe;

/// Attaches the probe and says what it does.
pub(super) fn attach(pin: &Path, interface: &str) -> anyhow::Result<String> {
    probe::attach(pin, interface)?;
    Ok(format!("the probe counts packets on {interface} and passes every one; `turnout detach` ends it\n"))
}

/// Detaches the probe and tells what it counted. Where there is none, that is what was wanted.
pub(super) fn detach(pin: &Path, in_json: bool) -> anyhow::Result<String> {
    let Some(counted) = probe::pinned_counters(pin)? else {
        return Ok(if in_json { "{}\n".into() } else { format!("nothing is attached under {}\n", pin.display()) });
    };
    probe::detach(pin)?;
    if in_json {
        let by_class: BTreeMap<_, _> = counted
            .iter()
            .map(|(class, c)| (class.name(), serde_json::json!({"packets": c.packets, "bytes": c.bytes})))
            .collect();
        return Ok(serde_json::to_string_pretty(&by_class)? + "\n");
    }
    let mut text = format!("{:<10} {:>14} {:>18}\n", "class", "packets", "bytes");
    for (class, counter) in counted.iter().filter(|(_, c)| c.packets > 0) {
        let _ = writeln!(text, "{:<10} {:>14} {:>18}", class.name(), counter.packets, counter.bytes);
    }
    Ok(text)
}
