//! A config drawn for people, and told to programs: what `turnout check` prints.

use std::fmt::Write as _;

use serde_json::json;

use super::model::{
    Admission, BrokerPorts, ClientRack, Cluster, Config, FastPath, Interfaces, Limits, NewConnections, Racks,
    RacksMode, Versions, VirtualCluster,
};
use super::path::printable;
use super::{Loaded, ports};

/// The topology as a tree: each cluster, and below it the virtual clusters that lead to it. Secrets are not in it.
///
/// ```text
/// cluster east
/// ├─ bootstrap 10.0.4.2:9092
/// ├─ own client: plaintext, no SASL
/// └─ virtual cluster orders
///    ├─ listens on 0.0.0.0, ::
///    └─ bootstrap port 9092
/// ```
#[must_use]
pub fn tree(config: &Config) -> String {
    let mut out = String::new();
    for (name, cluster) in &config.clusters {
        branch(&mut out, "", &format!("cluster {name}"), &cluster_lines(config, name, cluster));
    }
    let admin = config.admin.http.map_or("off".to_owned(), |a| format!("http://{a}"));
    let workers = config.workers.map_or("one per processor".to_owned(), |n| n.to_string());
    // The buffer is taken only where frames are copied, which no key asks for yet.
    let FastPath { mode, interfaces, pin, mirror_buffer: _ } = &config.fast_path;
    let interfaces = match interfaces {
        Interfaces::Auto => "every interface that can carry clients".to_owned(),
        Interfaces::Named(names) if names.is_empty() => "no interface (steering alone)".to_owned(),
        Interfaces::Named(names) => names.iter().map(|name| printable(name)).collect::<Vec<_>>().join(", "),
    };
    let lines = [
        format!("HTTP {admin}, socket {}", printable(&config.admin.socket.display().to_string())),
        format!("kernel path {mode} on {interfaces}, pinned in {}", printable(&pin.display().to_string())),
        admission_line(&config.admission),
        format!("workers {workers}"),
    ];
    branch(&mut out, "", "this host", &lines.map(Line::text));
    out
}

/// The whole config and its warnings as JSON, defaults filled in, secrets masked; for `turnout check --format json`.
#[must_use]
pub fn check_json(loaded: &Loaded) -> serde_json::Value {
    let Loaded { file, config, warnings } = loaded;
    let ports: usize = config.virtual_clusters.values().map(|v| v.listen.len() * ports::count(v)).sum();
    json!({
        "ok": true,
        "file": file,
        "listeners": ports,
        "warnings": warnings,
        // Serialisation fails only for maps with odd keys; a config has none.
        "config": serde_json::to_value(config).unwrap_or_default(),
    })
}

/// A line of the tree and what hangs below it.
struct Line {
    text: String,
    below: Vec<Self>,
}

impl Line {
    fn text(text: String) -> Self {
        Self { text, below: Vec::new() }
    }
}

fn branch(out: &mut String, indent: &str, head: &str, below: &[Line]) {
    // Writing to a String can't fail.
    let _ = writeln!(out, "{head}");
    for (i, line) in below.iter().enumerate() {
        let last = i + 1 == below.len();
        let (knot, pad) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        let _ = write!(out, "{indent}{knot}");
        branch(out, &format!("{indent}{pad}"), &line.text, &line.below);
    }
}

fn cluster_lines(config: &Config, name: &str, cluster: &Cluster) -> Vec<Line> {
    let mut lines = vec![Line::text(format!("bootstrap {}", cluster.bootstrap.join(", ")))];
    let tls = if cluster.tls.is_some() { "TLS" } else { "plaintext" };
    let sasl = match &cluster.sasl {
        Some(sasl) => format!("SASL {} as {}", sasl.mechanism, printable(&sasl.username)),
        None => "no SASL".to_owned(),
    };
    lines.push(Line::text(format!("own client: {tls}, {sasl}")));
    if !cluster.address_map.is_empty() {
        let below = cluster.address_map.iter().map(|(from, to)| Line::text(format!("{from} → {to}"))).collect();
        lines.push(Line { text: "address map".to_owned(), below });
    }
    if !cluster.racks.is_empty() {
        let racks: Vec<_> = cluster.racks.iter().map(|(id, rack)| format!("{id} in {}", printable(rack))).collect();
        lines.push(Line::text(format!("racks: {}", racks.join(", "))));
    }
    let users = config.virtual_clusters.iter().filter(|(_, v)| v.cluster == name);
    let users: Vec<_> = users
        .map(|(name, v)| Line { text: format!("virtual cluster {name}"), below: virtual_cluster_lines(v) })
        .collect();
    if users.is_empty() {
        lines.push(Line::text("no virtual cluster uses it".to_owned()));
    }
    lines.extend(users);
    lines
}

fn virtual_cluster_lines(v: &VirtualCluster) -> Vec<Line> {
    let listen: Vec<_> = v.listen.iter().map(ToString::to_string).collect();
    let BrokerPorts { first, count, first_node_id } = v.broker_ports;
    let (last, last_id) = (u32::from(first) + u32::from(count) - 1, i64::from(first_node_id) + i64::from(count) - 1);
    let versions = match v.versions {
        Versions::Auto => "auto (Fetch up to 15, else all)",
        Versions::Conservative => "conservative (Produce up to 9, Fetch up to 15, transactions V1)",
        Versions::Full => "full (nothing capped)",
    };
    let advertise = v.advertise.as_deref().unwrap_or("the address the client dialled");
    let mut lines = vec![
        format!("listens on {}", listen.join(", ")),
        format!("bootstrap port {}", v.bootstrap_port),
        format!("broker ports {first} to {last} for node ids {first_node_id} to {last_id}"),
        format!("advertises {advertise}"),
        format!("versions {versions}"),
    ];
    if let Some(id) = &v.cluster_id {
        lines.push(format!("cluster id {}", printable(id)));
    }
    lines.push(limits_line(&v.limits));
    let mut lines: Vec<_> = lines.into_iter().map(Line::text).collect();
    lines.extend(v.racks.as_ref().map(racks_line));
    lines
}

/// Rules may be many: the first ones and how many there are.
fn racks_line(racks: &Racks) -> Line {
    const SHOWN: usize = 8;
    let rule = |rule: &ClientRack| {
        let ClientRack { cidr, client_id, listener, rack } = rule;
        let whom = match (cidr, client_id, listener) {
            (Some(cidr), ..) => cidr.to_string(),
            (_, Some(pattern), _) => format!("client id {}", printable(&pattern.to_string())),
            (.., Some(listener)) => format!("who dialled {listener}"),
            (None, None, None) => "nobody".to_owned(),
        };
        Line::text(format!("{whom} → {}", printable(rack)))
    };
    let mut below: Vec<_> = racks.clients.iter().take(SHOWN).map(rule).collect();
    if racks.clients.len() > SHOWN {
        below.push(Line::text(format!("and {} more", racks.clients.len() - SHOWN)));
    }
    let text = match racks.mode {
        RacksMode::Off => "replica routing off".to_owned(),
        mode => format!("replica routing {mode}: clients read in their rack"),
    };
    Line { text, below }
}

/// Lists may be long: their first prefixes and how many there are.
fn admission_line(admission: &Admission) -> String {
    const SHOWN: usize = 4;
    let list = |prefixes: &[super::prefix::Cidr]| {
        let shown: Vec<_> = prefixes.iter().take(SHOWN).map(ToString::to_string).collect();
        let more = prefixes.len().saturating_sub(SHOWN);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{}{more}", shown.join(", "))
    };
    let Admission { deny, allow, new_connections } = admission;
    let who = if allow.is_empty() { "everyone".to_owned() } else { list(allow) };
    let but = if deny.is_empty() { String::new() } else { format!(" but {}", list(deny)) };
    let rate = new_connections.map_or(String::new(), |new| {
        let NewConnections { per, per_v6, rate, burst: _ } = new;
        format!(", {rate} new connections for each {per} or {per_v6}, {} at once", new.burst())
    });
    format!("admits {who}{but}{rate}")
}

fn limits_line(limits: &Limits) -> String {
    let Limits {
        connections,
        connections_per_source,
        frame,
        rewrite_frame,
        in_flight,
        first_byte,
        incomplete_frame,
        idle,
        drain,
    } = limits;
    let per_source = connections_per_source.map_or(String::new(), |n| format!(" ({n} per source)"));
    format!(
        "limits: {connections} connections{per_source}, {in_flight} in flight, frame {frame}, rewrite_frame \
         {rewrite_frame}, first_byte {first_byte}, incomplete_frame {incomplete_frame}, idle {idle}, drain {drain}"
    )
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::config::{Environment, load_str};

    fn config() -> Config {
        let text = "
clusters:
  east:
    bootstrap: ['10.0.4.2:9092', '10.0.4.3:9092']
    address_map: {'k:1': 'c:1'}
    racks: {1: az1, 2: az2}
    tls: {}
    sasl: {mechanism: SCRAM-SHA-512, username: turnout, password: hunter2}
  west: {bootstrap: ['w:1']}
virtual_clusters:
  orders:
    cluster: east
    bootstrap_port: 9092
    broker_ports: {first: 9200, count: 200, first_node_id: 1}
    advertise: kafka.example.com
    limits: {connections_per_source: 7}
    racks: {clients: [{cidr: 10.0.1.0/24, rack: az1}, {client_id: 'a-*', rack: az2}, {listener: '::1', rack: az3}]}
admission: {deny: [192.0.2.0/24], new_connections: {rate: 100/s}}
";
        load_str(text, "t.yaml", &Environment::empty()).unwrap_or_else(|e| panic!("{e}"))
    }

    #[test]
    fn the_tree_shows_what_leads_where_and_no_secret() {
        let drawn = "\
cluster east
├─ bootstrap 10.0.4.2:9092, 10.0.4.3:9092
├─ own client: TLS, SASL SCRAM-SHA-512 as turnout
├─ address map
│  └─ k:1 → c:1
├─ racks: 1 in az1, 2 in az2
└─ virtual cluster orders
   ├─ listens on 0.0.0.0, ::
   ├─ bootstrap port 9092
   ├─ broker ports 9200 to 9399 for node ids 1 to 200
   ├─ advertises kafka.example.com
   ├─ versions auto (Fetch up to 15, else all)
   ├─ limits: 9000 connections (7 per source), 256 in flight, frame 100MiB, rewrite_frame 16MiB, first_byte 10s, incomplete_frame 30s, idle 9m, drain 30s
   └─ replica routing auto: clients read in their rack
      ├─ 10.0.1.0/24 → az1
      ├─ client id a-* → az2
      └─ who dialled ::1 → az3
cluster west
├─ bootstrap w:1
├─ own client: plaintext, no SASL
└─ no virtual cluster uses it
this host
├─ HTTP http://127.0.0.1:9090, socket /run/turnout/turnout.sock
├─ kernel path auto on every interface that can carry clients, pinned in /sys/fs/bpf/turnout
├─ admits everyone but 192.0.2.0/24, 100/s new connections for each /32 or /64, 200 at once
└─ workers one per processor
";
        assert_eq!(tree(&config()), drawn);
    }

    #[test]
    fn an_empty_list_of_interfaces_is_said() {
        let mut config = config();
        config.fast_path.interfaces = Interfaces::Named(Vec::new());
        let drawn = tree(&config);
        assert!(drawn.contains("kernel path auto on no interface (steering alone), pinned in"), "{drawn}");
    }

    #[test]
    fn json_has_defaults_filled_in_and_no_secret() {
        let loaded = Loaded { file: PathBuf::from("t.yaml"), config: config(), warnings: Vec::new() };
        let json = check_json(&loaded);
        assert_eq!(json["ok"], true);
        assert_eq!(json["listeners"], 2 * 201);
        assert_eq!(json["config"]["virtual_clusters"]["orders"]["limits"]["frame"], "100MiB");
        assert_eq!(json["config"]["clusters"]["east"]["sasl"]["password"], crate::config::MASK);
        assert!(!json.to_string().contains("hunter2"));
    }
}
