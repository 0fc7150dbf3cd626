use crate::config::{Environment, Problem, load_str};

/// A config with two virtual clusters that don't touch; each test adds lines to `orders`, to `east` or to the top.
fn text(east: &str, orders: &str, top: &str) -> String {
    format!(
        "clusters:
  east:
    bootstrap: ['10.0.4.2:9092']
{east}
virtual_clusters:
  orders:
{orders}
  payments:
    cluster: east
    listen: [127.0.0.2]
    bootstrap_port: 9092
    broker_ports: {{first: 9200, count: 10}}
{top}
"
    )
}

const ORDERS: &str =
    "    cluster: east\n    listen: [127.0.0.1]\n    bootstrap_port: 9092\n    broker_ports: {first: 9200, count: 10}";

fn problems(text: &str) -> Vec<Problem> {
    match load_str(text, "t.yaml", &Environment::empty()) {
        Ok(_) => Vec::new(),
        Err(error) => error.problems,
    }
}

/// Exactly one problem, at this key, on the line of the key's last part, with these words.
fn one_problem(text: &str, key: &str, words: &str) {
    let found = problems(text);
    let lines: Vec<_> = found.iter().map(ToString::to_string).collect();
    assert_eq!(lines.len(), 1, "{lines:#?}\n{text}");
    assert_eq!(found[0].key.to_string(), key, "{lines:#?}");
    assert!(found[0].message.contains(words), "{lines:#?}");
    let line = found[0].position.map_or(0, |p| p.line);
    let last = key.rsplit('.').next().unwrap_or_default();
    let last = last.split('[').next().unwrap_or_default().trim_matches('"');
    assert!(text.lines().nth(line - 1).is_some_and(|l| l.contains(last)), "line {line}: {lines:#?}\n{text}");
}

fn orders(change: &str) -> String {
    let key = change.split(':').next().unwrap_or_default();
    let kept: Vec<_> = ORDERS.lines().filter(|l| !l.starts_with(&format!("    {key}:"))).collect();
    text("", &format!("{}\n    {change}", kept.join("\n")), "")
}

fn east(change: &str) -> String {
    let base = text(&format!("    {change}"), ORDERS, "");
    if change.starts_with("bootstrap") { base.replacen("    bootstrap: ['10.0.4.2:9092']\n", "", 1) } else { base }
}

fn top(change: &str) -> String {
    text("", ORDERS, change)
}

#[test]
fn the_base_of_these_tests_is_good() {
    assert_eq!(problems(&text("", ORDERS, "")), []);
}

#[test]
fn at_least_one_of_each_is_needed() {
    let found = problems("clusters: {}\nvirtual_clusters: {}\n");
    let keys: Vec<_> = found.iter().map(|p| p.key.to_string()).collect();
    assert_eq!(keys, ["clusters", "virtual_clusters"]);
}

#[test]
fn a_named_cluster_exists() {
    one_problem(&orders("cluster: eats"), "virtual_clusters.orders.cluster", "no cluster `eats`; did you mean `east`?");
    one_problem(&orders("cluster: zzzzzz"), "virtual_clusters.orders.cluster", "`clusters` has `east`");
}

#[test]
fn names_are_short_and_plain() {
    let named = |name: &str| top("").replace("  orders:\n", &format!("  {name}:\n"));
    one_problem(&named("'or ders'"), "virtual_clusters.\"or ders\"", "a name is");
    one_problem(&named("''"), "virtual_clusters.\"\"", "a name is");
    assert_eq!(problems(&named("orders.v2_eu-1")), []);
}

#[test]
fn endpoints_are_well_formed() {
    one_problem(&east("bootstrap: []"), "clusters.east.bootstrap", "at least one");
    one_problem(&east("bootstrap: ['a:1', 'b']"), "clusters.east.bootstrap[1]", "`b` is refused: not `host:port`");
    one_problem(&east("bootstrap: ['a:0']"), "clusters.east.bootstrap[0]", "1 to 65535");
    one_problem(&east("bootstrap: ['::1:9092']"), "clusters.east.bootstrap[0]", "brackets");
    one_problem(&east("bootstrap: ['a:1', 'A:1']"), "clusters.east.bootstrap[1]", "twice");
    assert_eq!(problems(&east("bootstrap: ['[::1]:9092', '[::2]:9092']")), []);
    one_problem(&east("address_map: {'k': 'a:1'}"), "clusters.east.address_map.k", "advertised address");
    one_problem(&east("address_map: {'k:1': 'a'}"), "clusters.east.address_map.\"k:1\"", "`a` is refused");
    one_problem(&east("address_map: {'k:1': 'a:1', 'K:1': 'b:1'}"), "clusters.east.address_map.\"k:1\"", "twice");
    one_problem(&east("tls: {bootstrap: [x]}"), "clusters.east.tls.bootstrap[0]", "not `host:port`");
}

#[test]
fn cluster_settings_make_sense() {
    one_problem(&east("racks: {-1: a}"), "clusters.east.racks.-1", "0 or more");
    one_problem(&east("racks: {1: ''}"), "clusters.east.racks.1", "needs a name");
    one_problem(&east("connect_timeout: 0s"), "clusters.east.connect_timeout", "longer than 0");
    one_problem(&east("refresh: 99ms"), "clusters.east.refresh", "at least `100ms`");
    one_problem(&east("forget_after: 0s"), "clusters.east.forget_after", "longer than 0");
    one_problem(&east("tls: {cert: a.pem}"), "clusters.east.tls.cert", "needs its `key`");
    one_problem(&east("tls: {key: a.pem}"), "clusters.east.tls.key", "needs its `cert`");
    one_problem(&east("tls: {ca: ''}"), "clusters.east.tls.ca", "names no file");
    let sasl = "sasl: {mechanism: PLAIN, username: u, password: ''}";
    one_problem(&east(sasl), "clusters.east.sasl.password", "must not be empty");
}

#[test]
fn listen_addresses_can_be_listened_on() {
    let key = "virtual_clusters.orders.listen";
    one_problem(&orders("listen: []"), key, "at least one");
    one_problem(&orders("listen: ['::1', '127.0.0.1', '::1']"), &format!("{key}[2]"), "twice");
    one_problem(&orders("listen: ['::ffff:127.0.0.1']"), &format!("{key}[0]"), "write it as IPv4");
    one_problem(&orders("listen: [224.0.0.1]"), &format!("{key}[0]"), "multicast");
}

#[test]
fn ports_fit() {
    let key = "virtual_clusters.orders.broker_ports";
    one_problem(&orders("bootstrap_port: 0"), "virtual_clusters.orders.bootstrap_port", "1 to 65535");
    one_problem(&orders("broker_ports: {first: 0, count: 1}"), &format!("{key}.first"), "1 to 65535");
    one_problem(&orders("broker_ports: {first: 9200, count: 0}"), &format!("{key}.count"), "at least 1");
    one_problem(&orders("broker_ports: {first: 65535, count: 2}"), &format!("{key}.count"), "there are only 1");
    assert_eq!(problems(&orders("broker_ports: {first: 65535, count: 1}")), []);
    let nodes = |id: i64| orders(&format!("broker_ports: {{first: 9200, count: 2, first_node_id: {id}}}"));
    one_problem(&nodes(-1), &format!("{key}.first_node_id"), "0 or more");
    one_problem(&nodes(2_147_483_647), &format!("{key}.first_node_id"), "don't fit");
    assert_eq!(problems(&nodes(2_147_483_646)), []);
}

#[test]
fn overlapping_listeners_are_refused_where_addresses_collide() {
    let wide = "virtual_clusters.payments.broker_ports";
    // The wildcard of one family meets all of its addresses, and none of the other family.
    let wildcard = orders("listen: [0.0.0.0]");
    let found = problems(&wildcard);
    let keys: Vec<_> = found.iter().map(|p| p.key.to_string()).collect();
    assert_eq!(keys, ["virtual_clusters.payments.bootstrap_port", wide]);
    assert!(found[1].message.contains("ports 9200 to 9209 are also used by virtual_clusters.orders.broker_ports"));
    assert_eq!(problems(&orders("listen: ['::']")), []);
    assert_eq!(problems(&orders("listen: ['127.0.0.3']")), []);
    // Within one virtual cluster.
    let own = orders("bootstrap_port: 9209");
    one_problem(
        &own,
        "virtual_clusters.orders.broker_ports",
        "port 9209 is also used by virtual_clusters.orders.bootstrap_port",
    );
    assert_eq!(problems(&orders("bootstrap_port: 9210")), []);
    // With the admin server.
    one_problem(
        &top("admin: {http: '127.0.0.1:9092'}"),
        "virtual_clusters.orders.bootstrap_port",
        "also used by admin.http",
    );
    assert_eq!(problems(&top("admin: {http: '127.0.0.3:9092'}")), []);
    assert_eq!(problems(&top("admin: {http: '[::]:9092'}")), []);
}

#[test]
fn advertised_hosts_can_be_dialled() {
    let key = "virtual_clusters.orders.advertise";
    for (host, words) in [
        ("''", "must not be empty"),
        ("0.0.0.0", "can't be dialled"),
        ("'::'", "can't be dialled"),
        ("kafka.example.com:9092", "has a port"),
        ("'[::1]:9092'", "has a port"),
        ("'[::1]'", "without brackets"),
        ("'kafka example'", "not a host name"),
    ] {
        one_problem(&orders(&format!("advertise: {host}")), key, words);
    }
    for host in ["kafka.example.com", "10.0.0.1", "'2001:db8::1'", "localhost"] {
        assert_eq!(problems(&orders(&format!("advertise: {host}"))), [], "{host}");
    }
    one_problem(&orders("cluster_id: ''"), "virtual_clusters.orders.cluster_id", "must not be empty");
}

#[test]
fn limits_are_never_off() {
    for key in ["first_byte", "incomplete_frame", "idle", "drain"] {
        let path = format!("virtual_clusters.orders.limits.{key}");
        one_problem(&orders(&format!("limits: {{{key}: 0s}}")), &path, "longer than 0");
    }
    for key in ["connections", "connections_per_source", "in_flight"] {
        let path = format!("virtual_clusters.orders.limits.{key}");
        one_problem(&orders(&format!("limits: {{{key}: 0}}")), &path, "at least 1");
    }
    let frame = "virtual_clusters.orders.limits.frame";
    let rewrite = "virtual_clusters.orders.limits.rewrite_frame";
    one_problem(&orders("limits: {frame: 2GiB}"), frame, "at most 2147483647");
    assert_eq!(problems(&orders("limits: {frame: 2147483647}")), []);
    one_problem(&orders("limits: {rewrite_frame: 1023}"), rewrite, "at least `1KiB`");
    one_problem(&orders("limits: {frame: 1MiB}"), frame, "`16MiB` is larger than `frame` (`1MiB`)");
    one_problem(&orders("limits: {frame: 1MiB, rewrite_frame: 2MiB}"), rewrite, "larger than `frame`");
}

#[test]
fn the_daemon_s_own_settings_make_sense() {
    one_problem(&top("workers: 0"), "workers", "1 to 1024");
    one_problem(&top("workers: 1025"), "workers", "1 to 1024");
    one_problem(&top("log: {level: inof}"), "log.level", "did you mean `info`?");
    one_problem(&top("admin: {http: '127.0.0.1:0'}"), "admin.http", "1 to 65535");
    one_problem(&top("admin: {socket: ''}"), "admin.socket", "names no file");
    one_problem(&top(&format!("admin: {{socket: /{}}}", "x".repeat(107))), "admin.socket", "108 bytes");
}

#[test]
fn prefixes_are_written_as_they_count() {
    let deny = |list: &str| top(&format!("admission: {{deny: [{list}]}}"));
    one_problem(&deny("192.0.2.7/24"), "admission.deny[0]", "behind its length; write `192.0.2.0/24`");
    one_problem(&deny("'2001:db8::1/32'"), "admission.deny[0]", "write `2001:db8::/32`");
    one_problem(&deny("10.0.0.0/8, 10.0.0.0/8"), "admission.deny[1]", "twice");
    one_problem(&deny("'::ffff:10.0.0.0/104'"), "admission.deny[0]", "write it as IPv4");
    one_problem(&deny("10.0.0.0/33"), "admission.deny[0]", "above the address's 32 or 128 bits");
    one_problem(&deny("example.com"), "admission.deny[0]", "not an address prefix");
    assert_eq!(problems(&deny("10.0.0.0/8, 192.0.2.7, '::/0', '2001:db8::1'")), []);
    let secret = problems(&deny("'${ADDRESS:-10.0.0.1/8}'"));
    assert!(secret.len() == 1 && !secret[0].message.contains("10.0"), "{secret:?}");
    let many: Vec<_> =
        (0..=super::super::validate_admission::MAX_PREFIXES).map(|n| format!("10.{}.{}.1", n / 256, n % 256)).collect();
    one_problem(&deny(&many.join(", ")), "admission.deny", "have room for 16384");
}

#[test]
fn a_rate_bounds_something() {
    let new = |keys: &str| top(&format!("admission: {{new_connections: {{{keys}}}}}"));
    let key = "admission.new_connections";
    one_problem(&new("per: /24"), key, "`rate` is missing");
    one_problem(&new("rate: 100"), &format!("{key}.rate"), "such as `100/s`");
    one_problem(&new("rate: 100/m"), &format!("{key}.rate"), "`100/m` is refused: not a rate");
    one_problem(&new("rate: 0/s"), &format!("{key}.rate"), "from `1/s`");
    one_problem(&new("rate: 1/s, burst: 0"), &format!("{key}.burst"), "from 1 to 1000000");
    one_problem(&new("rate: 1/s, per: /33"), &format!("{key}.per"), "from `/1` to `/32`");
    one_problem(&new("rate: 1/s, per: /0"), &format!("{key}.per"), "from `/1` to `/32`");
    one_problem(&new("rate: 1/s, per_v6: 64"), &format!("{key}.per_v6"), "such as `/24`");
    assert_eq!(problems(&new("rate: 1/s, per: /1, per_v6: /128, burst: 1")), []);
}

#[test]
fn interfaces_are_auto_or_names_and_the_pin_is_a_path() {
    let fast = |keys: &str| top(&format!("fast_path: {{{keys}}}"));
    let key = "fast_path.interfaces";
    one_problem(&fast("interfaces: eth0"), key, "write names as a list, such as `[eth0]`");
    one_problem(&fast("interfaces: {a: b}"), key, "expected `auto`, or a list");
    one_problem(&fast("interfaces: [eth0, eth0]"), &format!("{key}[1]"), "twice");
    one_problem(&fast("interfaces: [an-interface-too-long]"), &format!("{key}[0]"), "no name of an interface");
    one_problem(&fast("interfaces: [1]"), &format!("{key}[0]"), "put it in quotes");
    one_problem(&fast("pin: sys/fs/bpf"), "fast_path.pin", "absolute path");
    one_problem(&fast("mirror_buffer: 63KiB"), "fast_path.mirror_buffer", "from `64KiB` to `1GiB`");
    one_problem(&fast("mirror_buffer: 2GiB"), "fast_path.mirror_buffer", "from `64KiB` to `1GiB`");
    assert_eq!(problems(&fast("mode: required, interfaces: [eth0, 'wan.5@x'], pin: /sys/fs/bpf/t")), []);
    assert_eq!(problems(&fast("interfaces: auto")), []);
    assert_eq!(problems(&fast("interfaces: []")), [], "steering alone");
}

#[test]
fn doubtful_things_are_warned_of_and_allowed() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("t.yaml");
    let clusters = "    sasl: {mechanism: PLAIN, username: u, password: p}\n  west: {bootstrap: ['127.0.0.1:9203']}";
    let orders = format!("{ORDERS}\n    limits: {{idle: 11m, connections: 5, connections_per_source: 6}}");
    let top = "admission: {deny: [10.0.0.0/8, 192.0.2.0/24], allow: ['::/0', 10.1.0.0/16]}";
    std::fs::write(&file, text(clusters, &orders, top)).expect("written");
    let loaded = crate::config::load(&file).unwrap_or_else(|e| panic!("{e}"));
    let warnings: Vec<_> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "4:12: clusters.east.sasl.mechanism: PLAIN without `tls` sends the password in clear text",
            "5:3: clusters.west: no virtual cluster uses this cluster",
            "5:22: clusters.west.bootstrap[0]: virtual_clusters.orders.broker_ports listens there too: is this the \
             gateway itself?",
            "12:14: virtual_clusters.orders.limits.idle: longer than the 10m after which brokers close by default",
            "12:41: virtual_clusters.orders.limits.connections_per_source: larger than `connections`, so it bounds \
             nothing",
            "18:63: admission.allow[1]: never let in: `10.0.0.0/8` is denied",
        ]
    );
}

#[test]
fn all_problems_are_found_at_once() {
    let mut text = orders("limits: {idle: 0s, drain: 0s}");
    text.push_str("workers: 0\n");
    assert_eq!(problems(&text).len(), 3);
}

#[test]
fn a_rule_for_clients_names_one_kind_of_them_once() {
    let rule = |rule: &str| orders(&format!("racks: {{clients: [{rule}]}}"));
    let at = "virtual_clusters.orders.racks.clients[0]";
    one_problem(&rule("{rack: a}"), at, "exactly one of");
    one_problem(&rule("{cidr: 10.0.0.0/8, client_id: x, rack: a}"), at, "exactly one of");
    one_problem(&rule("{cidr: 10.0.0.1/8, rack: a}"), &format!("{at}.cidr"), "write `10.0.0.0/8`");
    one_problem(&rule("{cidr: \"::ffff:10.0.0.1\", rack: a}"), &format!("{at}.cidr"), "IPv6 clothes");
    one_problem(&rule("{client_id: 'a*b', rack: a}"), &format!("{at}.client_id"), "`analytics-*`");
    one_problem(&rule("{listener: 10.0.0.1, rack: ''}"), &format!("{at}.rack"), "1 to 249 bytes");
    let twice = rule("{client_id: x, rack: a}, {client_id: x, rack: b}");
    one_problem(&twice, "virtual_clusters.orders.racks.clients[1]", "have a rule already");
    assert_eq!(problems(&rule("{client_id: x*, rack: a}, {client_id: x, rack: b}")), []);
}

#[test]
fn what_makes_no_sense_in_replica_routing_is_refused() {
    let racks = |keys: &str| orders(&format!("racks: {{{keys}}}"));
    for (keys, key, words) in [
        ("weights: {1: 0}", "weights.1", "from 1 to 1000"),
        ("weights: {-1: 1}", "weights.-1", "0 or more"),
        ("exclude_brokers: [1, 1]", "exclude_brokers[1]", "twice"),
        ("exclude_clients: [x, x]", "exclude_clients[1]", "twice"),
        ("patch_buffer: 1", "patch_buffer", "at least `1KiB`"),
        ("redirects_per_minute: 0", "redirects_per_minute", "at least 1"),
        ("hold_down: 0s", "hold_down", "longer than 0"),
        ("silence: 0s", "silence", "longer than 0"),
        ("hold_down: 1h", "hold_down", "is shorter than"),
        ("hold_down_max: 1s", "hold_down_max", "is shorter than"),
        ("price_per_gb: free", "price_per_gb", "`0.02 USD`"),
    ] {
        one_problem(&racks(keys), &format!("virtual_clusters.orders.racks.{key}"), words);
    }
    one_problem(&east("partition_refresh: 1ms"), "clusters.east.partition_refresh", "at least `100ms`");
}

#[test]
fn doubtful_replica_routing_is_warned_of() {
    let warnings = |keys: &str| -> Vec<String> {
        let text = orders(keys);
        let parsed = super::super::parse(&text, std::path::Path::new("t.yaml"), &Environment::empty());
        parsed.expect("good").1.into_iter().map(|warning| warning.message).collect()
    };
    assert!(warnings("racks: {}")[0].contains("without `clients`"));
    assert_eq!(warnings("racks: {mode: off}"), [""; 0]);
    assert_eq!(warnings("racks: {clients: [{cidr: 10.0.0.0/8, rack: a}]}"), [""; 0]);
    let full = "versions: full\n    racks: {clients: [{cidr: 10.0.0.0/8, rack: a}]}";
    assert!(warnings(full)[0].contains("is not routed"));
}
