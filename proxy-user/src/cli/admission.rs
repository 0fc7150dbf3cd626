//! `turnout admission`: who may connect, and who tried.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::time::Duration;

use super::table::{Align::Left, Align::Right, Column, count, render};
use crate::admin::client::Client;
use crate::gateway::status::{AdmissionCounts, AdmissionReport, RefusedReport};

/// Width of every table.
const WIDTH: usize = 100;

/// Prefixes of a list that are shown; more are counted.
const MAX_LISTED: usize = 20;

/// Refused sources that `top` shows.
pub(super) const SOURCES: usize = 20;

/// Between two pictures of `top`.
const REFRESH: Duration = Duration::from_secs(1);

/// The rules and what they did.
pub(super) fn list(report: &AdmissionReport) -> String {
    let AdmissionReport { deny, allow, new_connections, in_kernel, virtual_clusters } = report;
    let mut text = String::new();
    let _ = writeln!(text, "deny             {}", prefixes(deny, "nobody"));
    let _ = writeln!(text, "allow            {}", prefixes(allow, "everyone who isn't denied"));
    let _ = writeln!(text, "new connections  {}", new_connections.as_deref().unwrap_or("no bound"));
    let kernel = match in_kernel.as_slice() {
        [] => "the daemon alone, at accept".to_owned(),
        some => format!("the kernel on {}, and the daemon at accept", some.join(", ")),
    };
    let _ = writeln!(text, "decided by       {kernel}\n");

    let columns = [
        Column("VIRTUAL CLUSTER", Left),
        Column("LET IN BY KERNEL", Right),
        Column("REASON", Left),
        Column("KERNEL", Right),
        Column("DAEMON", Right),
    ];
    let mut rows = Vec::new();
    for (name, AdmissionCounts { admitted_by_kernel, refused_by_kernel, refused_by_daemon }) in virtual_clusters {
        let reasons: std::collections::BTreeSet<_> = refused_by_kernel.keys().chain(refused_by_daemon.keys()).collect();
        let of = |counts: &std::collections::BTreeMap<String, u64>, reason: &String| {
            counts.get(reason).map_or_else(|| "-".to_owned(), |n| count(*n))
        };
        let mut head = [name.clone(), count(*admitted_by_kernel)];
        if reasons.is_empty() {
            rows.push(vec![head[0].clone(), head[1].clone(), "nothing refused".into(), "-".into(), "-".into()]);
        }
        for reason in reasons {
            let [name, admitted] = std::mem::take(&mut head);
            let (kernel, daemon) = (of(refused_by_kernel, reason), of(refused_by_daemon, reason));
            rows.push(vec![name, admitted, reason.clone(), kernel, daemon]);
        }
    }
    text.push_str(&render(&columns, &rows, WIDTH));
    text
}

fn prefixes(list: &[String], none: &str) -> String {
    let shown = list.iter().take(MAX_LISTED).cloned().collect::<Vec<_>>().join(", ");
    match list.len() {
        0 => none.to_owned(),
        n if n > MAX_LISTED => format!("{shown} and {} more", n - MAX_LISTED),
        _ => shown,
    }
}

/// Who was refused, the latest first.
pub(super) fn top(refused: &[RefusedReport]) -> String {
    if refused.is_empty() {
        return "nobody was refused lately\n".to_owned();
    }
    let columns = [
        Column("SOURCE", Left),
        Column("VIRTUAL CLUSTER", Left),
        Column("REASON", Left),
        Column("BY", Left),
        Column("TIMES", Right),
        Column("LAST", Right),
    ];
    let row = |refused: &RefusedReport| {
        let RefusedReport { address, virtual_cluster, reason, by, times, last_ms_ago } = refused;
        vec![
            address.to_string(),
            virtual_cluster.clone().unwrap_or_else(|| "-".to_owned()),
            reason.clone(),
            by.clone(),
            count(*times),
            format!("{}.{} s ago", last_ms_ago / 1000, last_ms_ago % 1000 / 100),
        ]
    };
    render(&columns, &refused.iter().map(row).collect::<Vec<_>>(), WIDTH)
}

/// Shows `top` anew each second, until it is interrupted or the daemon is gone. Into a pipe or a file, pictures follow
/// each other.
///
/// # Errors
/// The daemon doesn't answer.
pub(super) async fn live(client: &Client) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout();
    // Home, and clear below: what is drawn over does not flicker.
    let start = if stdout.is_terminal() { "\u{1b}[H\u{1b}[J" } else { "" };
    loop {
        let text = top(&client.refused_sources(SOURCES).await?);
        let written = stdout.write_all(format!("{start}{text}").as_bytes()).and_then(|()| stdout.flush());
        match written {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            other => other?,
        }
        tokio::time::sleep(REFRESH).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> AdmissionReport {
        AdmissionReport {
            deny: (0..25).map(|n| format!("10.{n}.0.0/16")).collect(),
            allow: Vec::new(),
            new_connections: Some("100/s for each /32 or /64, 200 at once".into()),
            in_kernel: vec!["eth0 (native)".into()],
            virtual_clusters: [
                (
                    "orders".to_owned(),
                    AdmissionCounts {
                        admitted_by_kernel: 1234,
                        refused_by_kernel: [("deny".to_owned(), 5), ("malformed".to_owned(), 1)].into(),
                        refused_by_daemon: [("deny".to_owned(), 2), ("rate".to_owned(), 9)].into(),
                    },
                ),
                ("quiet".to_owned(), AdmissionCounts::default()),
            ]
            .into(),
        }
    }

    #[test]
    fn rules_and_counts_are_one_table() {
        let text = list(&report());
        assert!(text.contains("10.19.0.0/16 and 5 more"), "{text}");
        assert!(text.contains("everyone who isn't denied"), "{text}");
        assert!(text.contains("the kernel on eth0 (native), and the daemon at accept"), "{text}");
        let line = |word: &str| text.lines().find(|l| l.contains(word)).unwrap_or_else(|| panic!("{word}: {text}"));
        let words = |word: &str| line(word).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(" malformed "), ["malformed", "1", "-"]);
        assert_eq!(words(" rate "), ["rate", "-", "9"]);
        assert!(line("nothing refused").starts_with("quiet"));
        let nobody = list(&AdmissionReport::default());
        assert!(nobody.contains("deny             nobody") && nobody.contains("no bound"), "{nobody}");
    }

    #[test]
    fn a_refused_source_is_one_line_of_at_most_a_hundred_columns() {
        let refused = RefusedReport {
            address: "2001:db8:1234:5678:9abc:def0:1234:5678".parse().unwrap(),
            virtual_cluster: Some("orders-of-the-whole-company".into()),
            reason: "not_allowed".into(),
            by: "kernel".into(),
            times: u64::MAX,
            last_ms_ago: 1_234_567,
        };
        let text = top(&[refused]);
        assert!(text.lines().all(|l| l.chars().count() <= 100), "{text}");
        assert!(text.contains("not_allowed") && text.contains("1234.5 s ago"), "{text}");
        assert_eq!(top(&[]), "nobody was refused lately\n");
    }
}
