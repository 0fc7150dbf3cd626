//! `turnout status`: the daemon's read models as text.

use std::fmt::Write as _;

use super::table::{Align::Left, Align::Right, Column, bytes, count, duration, render};
use crate::gateway::status::{ConnectionStatus, EdgeReport, InterfaceReport, ProgramReport, SpliceReport, Status};

/// Width of every table: fits a terminal beside another, a pager and a mail.
const WIDTH: usize = 100;
/// Ports of other services that are named.
const MAX_STRANGERS: usize = 3;
/// Degraded listeners that are listed; more are counted.
const MAX_LISTED: usize = 10;

/// The whole daemon.
pub(super) fn status(s: &Status) -> String {
    let mut text = String::new();
    let draining = if s.draining { ", draining" } else { "" };
    let _ = writeln!(text, "turnout {}, pid {}, up {}{draining}", s.version, s.pid, duration(s.uptime_seconds));
    let _ = writeln!(text, "config {}, generation {}", s.config, s.config_generation);
    let _ = writeln!(text, "fast path {}", s.fast_path);
    if let Some(edge) = &s.edge {
        let _ = write!(text, "\n{}", programs(edge));
    }

    let columns = [
        Column("CLUSTER", Left),
        Column("STATE", Left),
        Column("BROKERS", Right),
        Column("ABSENT", Right),
        Column("CONTROLLER", Right),
        Column("CLUSTER ID", Left),
    ];
    let rows: Vec<Vec<String>> = s
        .clusters
        .iter()
        .map(|(name, c)| {
            let present = c.brokers.values().filter(|b| b.present).count();
            vec![
                name.clone(),
                c.state.clone(),
                present.to_string(),
                (c.brokers.len() - present).to_string(),
                c.controller.map_or("-".to_owned(), |id| id.to_string()),
                c.cluster_id.clone().unwrap_or_else(|| "-".to_owned()),
            ]
        })
        .collect();
    let _ = write!(text, "\n{}", render(&columns, &rows, WIDTH));

    let columns = [
        Column("VIRTUAL CLUSTER", Left),
        Column("CLUSTER", Left),
        Column("LISTENERS", Right),
        Column("OPEN", Right),
        Column("ACCEPTED", Right),
        Column("REQUESTS", Right),
        Column("IN", Right),
        Column("OUT", Right),
    ];
    let rows: Vec<Vec<String>> = s
        .virtual_clusters
        .iter()
        .map(|(name, v)| {
            let up = v.listeners.iter().filter(|l| l.error.is_none()).count();
            vec![
                name.clone(),
                v.cluster.clone(),
                format!("{up}/{}", v.listeners.len()),
                count(v.connections),
                count(v.accepted),
                count(v.requests),
                bytes(v.request_bytes),
                bytes(v.answer_bytes),
            ]
        })
        .collect();
    let _ = write!(text, "\n{}", render(&columns, &rows, WIDTH));

    if !s.virtual_clusters.is_empty() {
        text.push_str("\nPorts:\n");
    }
    for (name, v) in &s.virtual_clusters {
        let _ = writeln!(text, "- {name}: ports are {}", v.ports);
        if !v.strangers.is_empty() {
            let few = v.strangers.iter().take(MAX_STRANGERS).cloned().collect::<Vec<_>>().join(", ");
            let more = v.strangers.len().saturating_sub(MAX_STRANGERS);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let _ = writeln!(text, "- {name}: other services of this host have {few}{more}, and keep them");
        }
    }

    let routing: Vec<_> = s.virtual_clusters.iter().filter_map(|(name, v)| Some((name, v.racks.as_ref()?))).collect();
    if !routing.is_empty() {
        text.push_str("\nReplica routing:\n");
    }
    for (name, sentence) in routing {
        let _ = writeln!(text, "- {name}: {sentence}");
    }

    let troubles = troubles(s);
    if !troubles.is_empty() {
        text.push_str("\nNot as it should be:\n");
        for trouble in troubles {
            let _ = writeln!(text, "- {trouble}");
        }
    }
    text
}

/// What runs in the kernel: programs, and the interfaces that admission runs on.
fn programs(edge: &EdgeReport) -> String {
    let EdgeReport { pin, layout, programs, interfaces, steering, splice } = edge;
    let columns = [Column("PROGRAM", Left), Column("ID", Right), Column("TAG", Left)];
    let row =
        |(name, ProgramReport { id, tag }): (&String, &ProgramReport)| vec![name.clone(), id.to_string(), tag.clone()];
    let mut text = render(&columns, &programs.iter().map(row).collect::<Vec<_>>(), WIDTH);
    let steering = if *steering { "steering" } else { "not steering" };
    let _ = writeln!(text, "pinned in {pin}, map layout {layout}, {steering}\n");
    let columns = [Column("INTERFACE", Left), Column("MODE", Left), Column("WHY", Left)];
    let row = |InterfaceReport { name, mode, reason }: &InterfaceReport| {
        vec![
            name.clone(),
            mode.clone().unwrap_or_else(|| "not attached".to_owned()),
            reason.clone().unwrap_or_else(|| "-".to_owned()),
        ]
    };
    text.push_str(&render(&columns, &interfaces.iter().map(row).collect::<Vec<_>>(), WIDTH));
    if let Some(SpliceReport { interfaces, sessions, room, counters: _ }) = splice {
        let able = interfaces.iter().filter(|(_, reason)| reason.is_none()).map(|(name, _)| name.as_str());
        let able = able.collect::<Vec<_>>().join(", ");
        let on = if able.is_empty() { "no interface" } else { &able };
        let _ = writeln!(text, "\nspliced by {on}: {sessions} of {room} sessions");
    }
    text
}

/// Everything that is wrong, one sentence each.
fn troubles(s: &Status) -> Vec<String> {
    let mut troubles = Vec::new();
    for interface in s.edge.iter().flat_map(|edge| &edge.interfaces).filter(|interface| interface.mode.is_none()) {
        let why = interface.reason.as_deref().unwrap_or("for no known reason");
        troubles.push(format!("{} has no admission program, the daemon does its part: {why}", interface.name));
    }
    for (name, reason) in s.edge.iter().filter_map(|edge| edge.splice.as_ref()).flat_map(|splice| &splice.interfaces) {
        troubles.extend(reason.iter().map(|why| format!("no connection is spliced by {name}: {why}")));
    }
    if let Some(error) = &s.last_reload_error {
        troubles.push(format!("the last reload was refused: {error}"));
    }
    for (name, cluster) in &s.clusters {
        if let Some(reason) = &cluster.reason {
            troubles.push(format!("cluster {name} is {}: {reason}", cluster.state));
        }
    }
    for (name, vc) in &s.virtual_clusters {
        troubles.extend(vc.degraded.iter().map(|reason| format!("virtual cluster {name}: {reason}")));
        if !vc.unreachable_brokers.is_empty() {
            let ids = vc.unreachable_brokers.iter().map(i32::to_string).collect::<Vec<_>>().join(", ");
            troubles.push(format!(
                "virtual cluster {name}: clients can't reach broker {ids}: outside of broker_ports, widen them"
            ));
        }
        let down: Vec<String> = vc
            .listeners
            .iter()
            .filter_map(|l| {
                let error = l.error.as_ref()?;
                Some(format!("virtual cluster {name}: {} ({}) isn't listening: {error}", l.address, l.role))
            })
            .collect();
        let more = down.len().saturating_sub(MAX_LISTED);
        troubles.extend(down.into_iter().take(MAX_LISTED));
        if more > 0 {
            troubles.push(format!("virtual cluster {name}: {more} more ports aren't listening"));
        }
    }
    troubles
}

/// Every connection.
pub(super) fn connections(all: &[ConnectionStatus]) -> String {
    let columns = [
        Column("ID", Right),
        Column("AT", Left),
        Column("CLIENT", Left),
        Column("CLIENT ID", Left),
        Column("AGE", Right),
        Column("WAITING", Right),
        Column("REQUESTS", Right),
        Column("IN", Right),
        Column("OUT", Right),
        Column("PATH", Left),
    ];
    let rows: Vec<Vec<String>> = all
        .iter()
        .map(|c| {
            vec![
                c.id.to_string(),
                format!("{} {}", c.virtual_cluster, c.role),
                c.client.clone(),
                c.client_id.clone().unwrap_or_else(|| "-".to_owned()),
                duration(c.age_seconds),
                c.in_flight.to_string(),
                count(c.requests),
                bytes(c.request_bytes),
                bytes(c.answer_bytes),
                c.path.clone(),
            ]
        })
        .collect();
    let things = if all.len() == 1 { "connection" } else { "connections" };
    format!("{} {things}\n{}", all.len(), if rows.is_empty() { String::new() } else { render(&columns, &rows, WIDTH) })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::gateway::status::{ClusterStatus, ListenerStatus, VirtualClusterStatus};

    fn busy() -> Status {
        let listener = |port: u16, error: Option<&str>| ListenerStatus {
            address: format!("0.0.0.0:{port}"),
            role: "bootstrap".into(),
            steered: error.is_none(),
            error: error.map(str::to_owned),
        };
        let vc = VirtualClusterStatus {
            ports: "steered".into(),
            strangers: ["0.0.0.0:9300", "0.0.0.0:9301", "0.0.0.0:9302", "0.0.0.0:9303"].map(str::to_owned).into(),
            refused: BTreeMap::new(),
            cluster: "a-cluster-with-quite-a-long-name".into(),
            listeners: vec![listener(9092, None), listener(9093, Some("address in use"))],
            unreachable_brokers: vec![500, 501],
            connections: u64::MAX,
            accepted: u64::MAX,
            request_bytes: u64::MAX,
            answer_bytes: u64::MAX,
            requests: u64::MAX,
            closed: BTreeMap::new(),
            racks: Some("auto: nothing read yet".into()),
            degraded: vec!["something".into()],
        };
        let cluster = ClusterStatus {
            state: "degraded".into(),
            reason: Some("10.0.4.2:9092: connection refused".into()),
            cluster_id: Some("4L6g3nShT-eMCtK--X86sw".into()),
            controller: Some(1),
            brokers: BTreeMap::new(),
        };
        Status {
            version: "0.1.0".into(),
            pid: 4242,
            uptime_seconds: 90_000,
            config: "/etc/turnout/turnout.yaml".into(),
            config_generation: 3,
            last_reload_error: Some("turnout.yaml:3:1: unknown key".into()),
            draining: true,
            fast_path: "on: admission on eth0 (native); steering to shared sockets".into(),
            edge: Some(EdgeReport {
                pin: "/sys/fs/bpf/turnout".into(),
                layout: "5f2c".into(),
                programs: [("turnout_admit".to_owned(), ProgramReport { id: 77, tag: "a04f5eef06a7f555".into() })]
                    .into(),
                interfaces: vec![
                    InterfaceReport { name: "eth0".into(), mode: Some("native".into()), reason: None },
                    InterfaceReport { name: "wg0".into(), mode: None, reason: Some("the driver has no XDP".into()) },
                ],
                steering: true,
                splice: Some(SpliceReport {
                    interfaces: [("eth0".to_owned(), None), ("wg0".to_owned(), Some("it has LRO".to_owned()))].into(),
                    sessions: 12,
                    room: 16_384,
                    counters: BTreeMap::new(),
                }),
            }),
            clusters: BTreeMap::from([("east".to_owned(), cluster)]),
            virtual_clusters: BTreeMap::from([("orders-of-the-whole-company".to_owned(), vc)]),
        }
    }

    #[test]
    fn the_tables_fit_a_hundred_columns_whatever_the_numbers() {
        let text = status(&busy());
        let (tables, _) = text.split_once("\nPorts:").expect("both parts");
        for line in tables.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }

    #[test]
    fn everything_that_is_wrong_is_said() {
        let text = status(&busy());
        for said in [
            "up 1d 1h, draining",
            "the last reload was refused: turnout.yaml:3:1: unknown key",
            "cluster east is degraded: 10.0.4.2:9092: connection refused",
            "clients can't reach broker 500, 501",
            "0.0.0.0:9093 (bootstrap) isn't listening: address in use",
            "orders-of-the-whole-company: something",
            "wg0 has no admission program, the daemon does its part: the driver has no XDP",
            "no connection is spliced by wg0: it has LRO",
        ] {
            assert!(text.contains(said), "no {said:?} in\n{text}");
        }
    }

    #[test]
    fn what_runs_in_the_kernel_and_how_ports_are_had_is_shown() {
        let text = status(&busy());
        for said in [
            "turnout_admit  77  a04f5eef06a7f555",
            "pinned in /sys/fs/bpf/turnout, map layout 5f2c, steering",
            "spliced by eth0: 12 of 16384 sessions",
            "orders-of-the-whole-company: ports are steered",
            "other services of this host have 0.0.0.0:9300, 0.0.0.0:9301, 0.0.0.0:9302 and 1 more, and keep them",
        ] {
            assert!(text.contains(said), "no {said:?} in\n{text}");
        }
        assert!(text.lines().any(|l| l.starts_with("eth0") && l.contains("native")), "{text}");
        assert!(text.lines().any(|l| l.starts_with("wg0") && l.contains("not attached")), "{text}");
    }

    #[test]
    fn nothing_wrong_is_not_a_heading() {
        let mut calm = busy();
        calm.last_reload_error = None;
        calm.edge = None;
        calm.clusters.clear();
        calm.virtual_clusters.clear();
        assert!(!status(&calm).contains("Not as it should be"));
    }

    #[test]
    fn a_connection_is_one_line_of_at_most_a_hundred_columns() {
        let connection = ConnectionStatus {
            id: 123_456,
            virtual_cluster: "orders".into(),
            role: "broker 12".into(),
            client: "[2001:db8:1234:5678:9abc:def0:1234:5678]:54321".into(),
            broker: Some("10.0.4.2:9092".into()),
            client_id: Some("an-application-with-a-long-client-id".into()),
            software: None,
            age_seconds: 90_061,
            in_flight: 256,
            requests: 1_234_567,
            request_bytes: 9_876_543_210,
            answer_bytes: 9_876_543_210,
            path: "local: the fast path is off".into(),
            splice: None,
        };
        let text = connections(&[connection]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert_eq!(lines[0], "1 connection");
        assert!(lines.iter().all(|l| l.chars().count() <= 100), "{text}");
        assert_eq!(connections(&[]), "0 connections\n");
    }
}
