//! `turnout top`: what passes now, and whether the kernel or the daemon passes it on. The difference of two looks at every
//! connection.

use std::collections::{BTreeMap, HashMap};
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::table::{Align::Left, Align::Right, Column, bytes, count, render};
use crate::admin::client::Client;
use crate::gateway::status::ConnectionStatus;

/// Between two looks.
const REFRESH: Duration = Duration::from_secs(1);
/// Width of the tables.
const WIDTH: usize = 110;
/// Connections that are listed, the busiest.
const BUSIEST: usize = 20;

/// Bytes a second, by who passed them on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Rate {
    kernel: u64,
    daemon: u64,
}

impl Rate {
    fn all(self) -> u64 {
        self.kernel.saturating_add(self.daemon)
    }

    fn add(&mut self, other: Self) {
        self.kernel = self.kernel.saturating_add(other.kernel);
        self.daemon = self.daemon.saturating_add(other.daemon);
    }

    /// `12.5 MiB/s`, and the share of the kernel.
    fn cells(self) -> [String; 2] {
        let share = match self.all() {
            0 => "-".to_owned(),
            all => format!("{} %", u128::from(self.kernel) * 100 / u128::from(all)),
        };
        [format!("{}/s", bytes(self.all())), share]
    }
}

/// What a connection, or many, did between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Pace {
    requests: u64,
    from_clients: Rate,
    to_clients: Rate,
    /// Turns that the kernel was given.
    switches: u64,
}

impl Pace {
    fn add(&mut self, other: Self) {
        self.requests = self.requests.saturating_add(other.requests);
        self.from_clients.add(other.from_clients);
        self.to_clients.add(other.to_clients);
        self.switches += other.switches;
    }
}

/// A virtual cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Row {
    connections: u64,
    spliced: u64,
    #[serde(flatten)]
    pace: Pace,
}

/// What passed between two looks.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Picture {
    virtual_clusters: BTreeMap<String, Row>,
    /// The busiest, with their path.
    connections: Vec<(Pace, Shown)>,
}

/// A connection, to be told from others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Shown {
    id: u64,
    at: String,
    client: String,
    client_id: Option<String>,
    path: String,
}

/// Compares two looks, so much time apart. Connections that are new count from zero; those that have ended don't count.
pub(super) fn picture(before: &[ConnectionStatus], after: &[ConnectionStatus], apart: Duration) -> Picture {
    let known: HashMap<u64, &ConnectionStatus> = before.iter().map(|c| (c.id, c)).collect();
    let mut picture = Picture::default();
    for now in after {
        let pace = pace(known.get(&now.id).copied(), now, apart);
        let row = picture.virtual_clusters.entry(now.virtual_cluster.clone()).or_default();
        row.connections += 1;
        row.spliced += u64::from(now.splice.is_some());
        row.pace.add(pace);
        picture.connections.push((
            pace,
            Shown {
                id: now.id,
                at: format!("{} {}", now.virtual_cluster, now.role),
                client: now.client.clone(),
                client_id: now.client_id.clone(),
                path: now.path.clone(),
            },
        ));
    }
    picture.connections.retain(|(pace, _)| *pace != Pace::default());
    picture.connections.sort_by_key(|(pace, shown)| {
        (std::cmp::Reverse(pace.from_clients.all().saturating_add(pace.to_clients.all())), shown.id)
    });
    picture.connections.truncate(BUSIEST);
    picture
}

fn pace(before: Option<&ConnectionStatus>, now: &ConnectionStatus, apart: Duration) -> Pace {
    let each_second = |was: u64, is: u64| {
        let new = u128::from(is.saturating_sub(was)) * 1000 / apart.as_millis().max(1);
        u64::try_from(new).unwrap_or(u64::MAX)
    };
    let kernel = |c: &ConnectionStatus| c.splice.as_ref().map_or((0, 0), |s| (s.requests.bytes, s.answers.bytes));
    let turns = |c: &ConnectionStatus| {
        c.splice.as_ref().map_or(0, |s| u64::from(s.requests.turns) + u64::from(s.answers.turns))
    };
    let (kernel_before, kernel_now) = (before.map_or((0, 0), kernel), kernel(now));
    let rate = |all: [u64; 2], kernel: [u64; 2]| {
        let kernel = each_second(kernel[0], kernel[1]);
        Rate { kernel, daemon: each_second(all[0], all[1]).saturating_sub(kernel) }
    };
    Pace {
        requests: each_second(before.map_or(0, |c| c.requests), now.requests),
        from_clients: rate([before.map_or(0, |c| c.request_bytes), now.request_bytes], [kernel_before.0, kernel_now.0]),
        to_clients: rate([before.map_or(0, |c| c.answer_bytes), now.answer_bytes], [kernel_before.1, kernel_now.1]),
        switches: each_second(before.map_or(0, turns), turns(now)),
    }
}

/// For people.
pub(super) fn text(picture: &Picture) -> String {
    if picture.virtual_clusters.is_empty() {
        return "no connection is open\n".to_owned();
    }
    let pace = |p: &Pace| {
        let ([into, kernel_in], [out, kernel_out]) = (p.from_clients.cells(), p.to_clients.cells());
        [format!("{}/s", count(p.requests)), into, kernel_in, out, kernel_out, format!("{}/s", count(p.switches))]
    };
    let heads = [
        Column("REQUESTS", Right),
        Column("IN", Right),
        Column("KERNEL", Right),
        Column("OUT", Right),
        Column("KERNEL", Right),
        Column("TURNS", Right),
    ];
    let columns: Vec<_> = [Column("VIRTUAL CLUSTER", Left), Column("OPEN", Right), Column("SPLICED", Right)]
        .into_iter()
        .chain(heads)
        .collect();
    let rows: Vec<Vec<String>> = picture
        .virtual_clusters
        .iter()
        .map(|(name, row)| {
            [name.clone(), row.connections.to_string(), row.spliced.to_string()]
                .into_iter()
                .chain(pace(&row.pace))
                .collect()
        })
        .collect();
    let mut text = render(&columns, &rows, WIDTH);
    if picture.connections.is_empty() {
        return text + "\nnothing passes\n";
    }
    let columns: Vec<_> = [Column("ID", Right), Column("AT", Left), Column("CLIENT", Left), Column("CLIENT ID", Left)]
        .into_iter()
        .chain(heads)
        .chain([Column("PATH", Left)])
        .collect();
    let rows: Vec<Vec<String>> = picture
        .connections
        .iter()
        .map(|(p, c)| {
            let name = c.client_id.clone().unwrap_or_else(|| "-".to_owned());
            [c.id.to_string(), c.at.clone(), c.client.clone(), name]
                .into_iter()
                .chain(pace(p))
                .chain([c.path.clone()])
                .collect()
        })
        .collect();
    text.push('\n');
    text + &render(&columns, &rows, WIDTH)
}

/// What passes in the next second.
///
/// # Errors
/// The daemon doesn't answer.
pub(super) async fn once(client: &Client) -> anyhow::Result<Picture> {
    let (at, before) = (Instant::now(), client.connections().await?);
    tokio::time::sleep(REFRESH).await;
    let apart = at.elapsed();
    Ok(picture(&before, &client.connections().await?, apart))
}

/// Shows it anew each second, until it is interrupted or the daemon is gone. Into a pipe or a file, pictures follow each
/// other.
///
/// # Errors
/// The daemon doesn't answer.
pub(super) async fn live(client: &Client) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout();
    // Home, and clear below: what is drawn over does not flicker.
    let start = if stdout.is_terminal() { "\u{1b}[H\u{1b}[J" } else { "" };
    let (mut at, mut before) = (Instant::now(), client.connections().await?);
    loop {
        tokio::time::sleep(REFRESH).await;
        let apart = at.elapsed();
        at = Instant::now();
        let after = client.connections().await?;
        let text = text(&picture(&before, &after, apart));
        before = after;
        let written = stdout.write_all(format!("{start}{text}").as_bytes()).and_then(|()| stdout.flush());
        match written {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            other => other?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::status::{SessionStatus, WayStatus};

    fn connection(id: u64, bytes: [u64; 2], kernel: Option<[u64; 2]>) -> ConnectionStatus {
        let way = |bytes| WayStatus { kernel: true, turns: 1, bytes, packets: 1 };
        ConnectionStatus {
            id,
            virtual_cluster: "orders".into(),
            role: "broker 1".into(),
            client: "[2001:db8:1234:5678:9abc:def0:1234:5678]:54321".into(),
            broker: None,
            client_id: Some("an-application-with-a-long-client-id".into()),
            software: None,
            age_seconds: 1,
            in_flight: 0,
            requests: bytes[0] / 100,
            request_bytes: bytes[0],
            answer_bytes: bytes[1],
            path: if kernel.is_some() { "spliced" } else { "local: the client is on this host" }.into(),
            splice: kernel.map(|[q, r]| SessionStatus { session: 1, requests: way(q), answers: way(r) }),
        }
    }

    #[test]
    fn what_passed_between_two_looks_is_told_apart_by_who_passed_it_on() {
        let before = [connection(1, [1000, 500], Some([600, 0])), connection(2, [100, 100], None)];
        let after = [
            connection(1, [5000, 700], Some([4400, 0])),
            connection(2, [100, 100], None),
            connection(3, [0, 2000], Some([0, 2000])),
        ];
        let picture = picture(&before, &after, Duration::from_secs(2));
        let row = picture.virtual_clusters["orders"];
        assert_eq!((row.connections, row.spliced), (3, 2));
        assert_eq!(row.pace.from_clients, Rate { kernel: 1900, daemon: 100 });
        assert_eq!(row.pace.to_clients, Rate { kernel: 1000, daemon: 100 });
        assert_eq!(row.pace.requests, 20);
        let busiest: Vec<_> = picture.connections.iter().map(|(_, c)| c.id).collect();
        assert_eq!(busiest, [1, 3], "the second did nothing");
    }

    #[test]
    fn a_picture_is_at_most_a_hundred_and_ten_columns_wide() {
        let after: Vec<_> = (0..50).map(|id| connection(id, [u64::MAX, u64::MAX], Some([u64::MAX / 2, 0]))).collect();
        let text = text(&picture(&[], &after, Duration::from_secs(1)));
        assert!(text.lines().all(|l| l.chars().count() <= WIDTH), "{text}");
        assert!(text.contains("49 %"), "{text}");
        assert_eq!(text.lines().count(), 2 + 1 + 1 + BUSIEST, "{text}");
    }

    #[test]
    fn nothing_is_said_so() {
        assert_eq!(text(&Picture::default()), "no connection is open\n");
        let idle = [connection(1, [5, 5], None)];
        assert!(text(&picture(&idle, &idle, REFRESH)).ends_with("nothing passes\n"));
    }
}
