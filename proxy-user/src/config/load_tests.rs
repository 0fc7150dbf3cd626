use std::net::Ipv4Addr;

use super::units::{Size, Span};
use super::*;

const MINIMAL: &str = "\
clusters:
  east: {bootstrap: ['10.0.4.2:9092']}
virtual_clusters:
  orders:
    cluster: east
    bootstrap_port: 9092
    broker_ports: {first: 9200, count: 200}
";

fn environment() -> Environment {
    Environment::empty()
        .with_variable("PORT", "19092")
        .with_variable("ADDRESS", "127.0.0.1")
        .with_variable("SIZE", "2MiB")
        .with_variable("MODE", "off")
        .with_variable("WATCH", "true")
        .with_variable("NASTY", "x\"\n  watch: true # ': {[")
        .with_variable("LEAK", "tr0ub4dor")
        .with_file("/run/secrets/east", "correct horse: \"battery\"\n")
}

fn loaded(text: &str) -> Config {
    load_str(text, "t.yaml", &environment()).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// The lines of the error of a text that must be refused.
fn refused(text: &str) -> Vec<String> {
    match load_str(text, "t.yaml", &environment()) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(error) => error.to_string().lines().map(str::to_owned).collect(),
    }
}

#[test]
fn what_is_left_out_has_its_default() {
    let config = loaded(MINIMAL);
    let orders = &config.virtual_clusters["orders"];
    assert_eq!(orders.listen, VirtualCluster::listen());
    assert_eq!(orders.limits, Limits::default());
    assert_eq!(orders.versions, Versions::Auto);
    assert_eq!(orders.broker_ports, BrokerPorts { first: 9200, count: 200, first_node_id: 0 });
    assert_eq!(config.clusters["east"].connect_timeout, Span::secs(5));
    assert_eq!(config.clusters["east"].refresh, Span::secs(30));
    assert_eq!(config.clusters["east"].forget_after, Span::mins(10));
    assert_eq!((&config.admin, &config.log), (&Admin::default(), &Log::default()));
    assert_eq!((config.workers, config.watch, config.fast_path.mode), (None, false, FastPathMode::Auto));
}

#[test]
fn every_kind_of_value_can_be_interpolated() {
    let config = loaded(
        "
clusters:
  east:
    bootstrap: ['${ADDRESS}:9092', '${HOST:-kafka.internal}:9093']
    connect_timeout: ${TIMEOUT:-250ms}
    racks: {7: '${RACK:-az7}'}
    sasl: {mechanism: '${MECHANISM:-SCRAM-SHA-512}', username: 'a$$b', password: '${file:/run/secrets/east}'}
virtual_clusters:
  orders:
    cluster: ${CLUSTER:-east}
    listen: ['${ADDRESS}']
    bootstrap_port: ${PORT}
    broker_ports: {first: '${FIRST:-20000}', count: \"${COUNT:-3}\", first_node_id: '${NODE:-1}'}
    versions: ${VERSIONS:-full}
    limits: {frame: '${SIZE}', rewrite_frame: '${SIZE}', connections_per_source: '${PER:-5}'}
fast_path: {mode: '${MODE}'}
admin: {http: '${ADDRESS}:${ADMIN:-9099}', socket: '${DIR:-/run}/t.sock'}
workers: ${WORKERS:-2}
watch: ${WATCH}
",
    );
    let east = &config.clusters["east"];
    assert_eq!(east.bootstrap, ["127.0.0.1:9092", "kafka.internal:9093"]);
    assert_eq!(east.connect_timeout.to_string(), "250ms");
    assert_eq!(east.racks[&7], "az7");
    let sasl = east.sasl.as_ref().expect("sasl");
    assert_eq!((sasl.mechanism, sasl.username.as_str()), (Mechanism::ScramSha512, "a$b"));
    assert_eq!(sasl.password, "correct horse: \"battery\"");
    let orders = &config.virtual_clusters["orders"];
    assert_eq!(orders.listen, [Ipv4Addr::LOCALHOST]);
    assert_eq!((orders.bootstrap_port, orders.versions), (19092, Versions::Full));
    assert_eq!(orders.broker_ports, BrokerPorts { first: 20000, count: 3, first_node_id: 1 });
    assert_eq!((orders.limits.frame, orders.limits.connections_per_source), (Size::mib(2), Some(5)));
    assert_eq!(config.fast_path.mode, FastPathMode::Off);
    assert_eq!(config.admin.http.map(|a| a.port()), Some(9099));
    assert_eq!(config.admin.socket, Path::new("/run/t.sock"));
    assert_eq!((config.workers, config.watch), (Some(2), true));
}

#[test]
fn what_a_variable_holds_cannot_change_the_structure() {
    let config = loaded(&format!("{MINIMAL}    cluster_id: ${{NASTY}}\n"));
    assert_eq!(config.virtual_clusters["orders"].cluster_id.as_deref(), Some("x\"\n  watch: true # ': {["));
    assert!(!config.watch);
}

#[test]
fn the_http_server_can_be_switched_off_by_name_only() {
    assert_eq!(loaded(&format!("{MINIMAL}admin: {{http: off}}\n")).admin.http, None);
    assert!(refused(&format!("{MINIMAL}admin: {{http: }}\n"))[0].contains("found nothing"));
    assert!(refused(&format!("{MINIMAL}admin: {{http: 9090}}\n"))[0].contains("expected text"));
    assert!(refused(&format!("{MINIMAL}admin: {{http: '9090'}}\n"))[0].contains("`127.0.0.1:9090`"));
}

#[test]
fn unknown_keys_are_refused_everywhere_with_the_nearest_known_one() {
    let lines = refused(
        "
clustres: {}
clusters:
  east: {bootstrap: ['a:1'], conect_timeout: 5s, tls: {cafile: x}}
virtual_clusters:
  orders:
    cluster: east
    bootstrapPort: 9092
    bootstrap_port: 9092
    broker_ports: {first: 9200, count: 2, frist: 1}
    limits: {framee: 1MiB, zzz: 1}
",
    );
    assert_eq!(
        lines,
        [
            "t.yaml:2:1: clustres: unknown key; did you mean `clusters`?",
            "t.yaml:4:30: clusters.east.conect_timeout: unknown key; did you mean `connect_timeout`?",
            "t.yaml:4:56: clusters.east.tls.cafile: unknown key; known here: `ca`, `cert`, `key`, `bootstrap`",
            "t.yaml:8:5: virtual_clusters.orders.bootstrapPort: unknown key; did you mean `bootstrap_port`?",
            "t.yaml:10:43: virtual_clusters.orders.broker_ports.frist: unknown key; did you mean `first`?",
            "t.yaml:11:14: virtual_clusters.orders.limits.framee: unknown key; did you mean `frame`?",
            "t.yaml:11:28: virtual_clusters.orders.limits.zzz: unknown key; known here: `connections`, \
             `connections_per_source`, `frame`, `rewrite_frame`, `in_flight`, `first_byte`, `incomplete_frame`, `idle`, \
             `drain`",
        ]
    );
}

#[test]
fn repeated_keys_are_refused_in_structs_and_in_named_maps() {
    let lines = refused(
        "
clusters:
  east:
    bootstrap: ['a:1']
    address_map: {'a:1': 'b:1', 'a:1': 'c:1'}
    racks: {1: x, 1: y}
  east: {bootstrap: ['b:1']}
virtual_clusters: {}
watch: true
watch: false
",
    );
    assert_eq!(
        lines,
        [
            "t.yaml:5:33: clusters.east.address_map.\"a:1\": this key is already given at line 5; keep one of them",
            "t.yaml:6:19: clusters.east.racks.1: this key is already given at line 6; keep one of them",
            "t.yaml:7:3: clusters.east: this key is already given at line 3; keep one of them",
            "t.yaml:10:1: watch: this key is already given at line 9; keep one of them",
        ]
    );
}

#[test]
fn a_node_id_in_disguise_is_no_second_key() {
    let text = MINIMAL.replace("['10.0.4.2:9092']", "['a:1'], racks: {1: x, 01: y}");
    assert_eq!(refused(&text), ["t.yaml:2:44: clusters.east.racks.01: this key must be a whole number, such as `1`"]);
}

#[test]
fn keys_of_later_parts_are_not_built_yet_which_is_not_unknown() {
    let lines = refused(
        "
clusters: {east: {bootstrap: ['a:1']}}
virtual_clusters:
  orders:
    cluster: east
    bootstrap_port: 9092
    broker_ports: {first: 9200, count: 2}
    branches: {}
    taps:
fast_path:
  mode: required
",
    );
    let places: Vec<_> = lines.iter().map(|l| l.split(": ").take(2).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(places, ["t.yaml:8:5 virtual_clusters.orders.branches", "t.yaml:9:5 virtual_clusters.orders.taps",]);
    assert!(lines.iter().all(|l| l.contains("not built yet")), "{lines:#?}");
}

#[test]
fn missing_keys_are_named_once_and_the_rest_is_still_read() {
    let lines = refused(
        "
clusters: {east: {}}
virtual_clusters:
  a: {cluster: east, broker_ports: {first: 1}}
  b: {cluster: east, bootstrap_port: nine, broker_ports: {first: 1, count: 1}}
  c: {bootstrap_port: 70000, broker_ports: {first: 1, count: -1}}
log: {level: 7}
",
    );
    assert_eq!(
        lines,
        [
            "t.yaml:2:12: clusters.east: `bootstrap` is missing here",
            "t.yaml:4:3: virtual_clusters.a: `bootstrap_port` is missing here",
            "t.yaml:4:22: virtual_clusters.a.broker_ports: `count` is missing here",
            "t.yaml:5:22: virtual_clusters.b.bootstrap_port: `nine` is no whole number from 0 to 65535",
            "t.yaml:6:3: virtual_clusters.c: `cluster` is missing here",
            "t.yaml:6:7: virtual_clusters.c.bootstrap_port: `70000` is no whole number from 0 to 65535",
            "t.yaml:6:55: virtual_clusters.c.broker_ports.count: `-1` is no whole number from 0 to 65535",
            "t.yaml:7:7: log.level: expected text, found a whole number; put it in quotes",
        ]
    );
}

#[test]
fn a_value_of_the_wrong_kind_says_what_is_wanted() {
    for (key, message) in [
        ("listen: 0.0.0.0", "expected a list, as in `[a, b]`, found text"),
        ("listen: [300.1.1.1]", "listen[0]: `300.1.1.1` is refused: invalid IP address syntax"),
        ("limits: 5", "expected a map, as in `{name: …}`, found a whole number"),
        ("limits:", "expected a map, as in `{name: …}`, found nothing; write a value or leave the key out"),
        ("limits: {idle: 30}", "`30` is refused: not a duration"),
        ("limits: {idle: -5}", "`-5` is refused: not a duration"),
        ("limits: {frame: -5}", "`-5` is refused: not a size"),
        ("limits: {frame: 1.5}", "expected a size such as `64KiB`, found a number with a fraction"),
        ("limits: {frame: 10MB}", "`10MB` is refused: not a size: units are powers of 1024"),
        ("limits: {connections: many}", "`many` is no whole number from 0 to 4294967295"),
        (
            "versions: conservativ",
            "`conservativ` is none of `auto`, `conservative`, `full`; did you mean `conservative`?",
        ),
        ("versions: [auto]", "expected text, found a list"),
        ("advertise: 5", "expected text, found a whole number; put it in quotes"),
        ("cluster_id: ~", "expected a value, found nothing"),
    ] {
        let lines = refused(&format!("{MINIMAL}    {key}\n"));
        assert!(lines.len() == 1 && lines[0].contains(message), "{key}: {lines:#?}");
        assert!(lines[0].starts_with("t.yaml:8:"), "{key}: {lines:#?}");
    }
    assert!(refused(&format!("{MINIMAL}watch: maybe\n"))[0].contains("`maybe` is neither `true` nor `false`"));
}

#[test]
fn a_missing_variable_or_file_is_named_at_its_place() {
    let lines = refused(&format!("{MINIMAL}    cluster_id: 'a${{NOPE}}'\n    advertise: '${{file:/nope}}'\n"));
    assert_eq!(
        lines,
        [
            "t.yaml:8:5: virtual_clusters.orders.cluster_id: the environment variable NOPE is not set; set it, or give \
             a default as `${NOPE:-default}`",
            "t.yaml:9:5: virtual_clusters.orders.advertise: the file /nope does not exist",
        ]
    );
}

#[test]
fn what_came_from_outside_is_never_shown() {
    for key in [
        "bootstrap_port: ${LEAK}",
        "listen: ['${LEAK}']",
        "limits: {frame: '${LEAK}'}",
        "limits: {idle: '${LEAK}'}",
        "versions: ${LEAK}",
        "advertise: '${LEAK}:1'",
        "cluster: ${LEAK}",
    ] {
        let name = key.split(':').next().unwrap_or_default();
        let kept: String =
            MINIMAL.lines().filter(|l| !l.contains(&format!("    {name}:"))).map(|l| format!("{l}\n")).collect();
        let lines = refused(&format!("{kept}    {key}\n"));
        assert!(lines.iter().all(|l| !l.contains("tr0ub4dor")), "{lines:#?}");
        assert!(lines[0].contains("${LEAK}"), "{lines:#?}");
    }
    for top in ["log: {level: '${LEAK}'}", "watch: ${LEAK}", "workers: ${LEAK}", "admin: {http: '${LEAK}'}"] {
        let lines = refused(&format!("{MINIMAL}{top}\n"));
        assert!(lines.iter().all(|l| !l.contains("tr0ub4dor")), "{lines:#?}");
    }
}

#[test]
fn a_password_is_in_no_error_and_no_debug() {
    let with = |sasl: &str| MINIMAL.replace("['10.0.4.2:9092']", &format!("['a:1'], sasl: {{{sasl}}}"));
    for sasl in [
        "mechanism: PLAIN, username: u, password: [hunter2]",
        "mechanism: PLAIN, username: u, password: {hunter2: 1}",
        "mechanism: PLAIN, username: u, pasword: hunter2",
        "mechanism: PLAIN, username: u, password: 'hunter2${'",
        "mechanism: PLAIN, username: u, password: '${hunter2!}'",
        "mechanism: PLAIN, username: u, password: 'hunter2$x'",
        "mechanism: PLAIN, username: '', password: hunter2",
        "mechanism: X, username: u, password: hunter2",
    ] {
        let lines = refused(&with(sasl));
        // A key is shown, and a map's key is one.
        assert!(lines.iter().all(|l| !l.contains("hunter2")), "{sasl}: {lines:#?}");
    }
    let config = loaded(&with("mechanism: PLAIN, username: u, password: hunter2"));
    assert!(!format!("{config:?}").contains("hunter2"));
    let json = serde_json::to_string(&config).expect("serialised");
    assert!(!json.contains("hunter2") && json.contains(MASK), "{json}");
}

#[test]
fn a_long_list_of_problems_is_cut_and_counted() {
    let hosts: Vec<_> = (0..50).map(|i| format!("'bad host {i}'")).collect();
    let text = MINIMAL.replace("'10.0.4.2:9092'", &hosts.join(", "));
    let error = load_str(&text, "t.yaml", &environment()).expect_err("refused");
    assert_eq!((error.problems.len(), error.omitted), (MAX_PROBLEMS, 30));
    assert!(error.to_string().ends_with("t.yaml: and 30 more"));
    assert_eq!(error.to_json()["problems"][0]["line"], 2);
}

#[test]
fn files_are_loaded_with_their_own_folder_as_the_base() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("turnout.yaml");
    std::fs::write(folder.path().join("host"), "kafka.internal\n").expect("written");
    std::fs::write(&file, MINIMAL.replace("10.0.4.2", "${file:host}")).expect("written");
    let loaded = load(&file).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(loaded.config.clusters["east"].bootstrap, ["kafka.internal:9092"]);
    assert_eq!(loaded.file, file);
}

#[test]
fn files_that_are_no_text_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("turnout.yaml");
    let message = |bytes: &[u8]| {
        std::fs::write(&file, bytes).expect("written");
        load(&file).expect_err("refused").to_string()
    };
    assert!(message(b"a: 1\nb: \xff\n").ends_with("turnout.yaml:2:4: not UTF-8 text"));
    assert!(message(&b"# \xc3\xa4\n".repeat(2_000_000)).contains("1 MiB"));
    assert!(message(&vec![0; 10 << 20]).contains("1 MiB"));
    assert!(
        load(&folder.path().join("none.yaml")).expect_err("refused").to_string().contains("none.yaml: can't be read")
    );
    assert!(load(folder.path()).expect_err("refused").to_string().contains("can't be read"));
}

/// `head`, pieces up to the largest size, `tail`.
fn filled(head: &str, piece: &dyn Fn(usize) -> String, tail: &str) -> String {
    let mut text = head.to_owned();
    for i in 0.. {
        if text.len() + 64 > yaml::MAX_TEXT {
            break;
        }
        text.push_str(&piece(i));
    }
    text + tail
}

#[test]
fn a_hostile_file_of_the_largest_size_is_refused_with_a_short_list() {
    for (text, message) in [
        (filled("a:\n  ", &|_| "- ".to_owned(), "x"), "nested deeper"),
        (filled("", &|_| "k: 1\n".to_owned(), ""), "too many values"),
        (
            filled("clusters: {a: {bootstrap: [", &|i| format!("'host-{i}:9092',"), "]}}\nvirtual_clusters: {}\n"),
            "at least one",
        ),
    ] {
        let lines = refused(&text);
        assert!(lines.len() <= MAX_PROBLEMS + 1 && lines.iter().all(|l| l.len() < 1000), "{lines:#?}");
        assert!(lines[0].contains(message), "{lines:#?}");
    }
}
