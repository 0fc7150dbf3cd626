//! The page as a scraper reads it.

use std::collections::{BTreeMap, BTreeSet};

use super::catalog::{CATALOG, Kind};
use super::*;

/// A page, parsed: type of each family, and value of each series by its text.
#[derive(Debug, Default)]
struct Page {
    families: BTreeMap<String, String>,
    series: BTreeMap<String, f64>,
}

impl Page {
    /// Parses and checks what OpenMetrics asks of every page: one `# TYPE` before a family's samples, families not
    /// interleaved, no series twice, `# EOF` at the end.
    fn parse(text: &str) -> Self {
        let mut page = Self::default();
        let mut family = String::new();
        let body = text.strip_suffix("# EOF\n").expect("the page ends with # EOF");
        for line in body.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("a type");
                family = name.to_owned();
                assert!(page.families.insert(name.into(), kind.into()).is_none(), "{name} comes twice");
            } else if !line.starts_with("# HELP ") {
                let (series, value) = line.rsplit_once(' ').expect("a value");
                assert!(series.starts_with(&family), "{series} is outside of its family {family}");
                let value = value.parse().unwrap_or_else(|_| panic!("{line}: not a number"));
                assert!(page.series.insert(series.into(), value).is_none(), "{series} comes twice");
            }
        }
        page
    }

    fn get(&self, series: &str) -> f64 {
        *self.series.get(series).unwrap_or_else(|| panic!("no {series} in {:#?}", self.series))
    }
}

fn busy() -> Metrics {
    let metrics = Metrics::default();
    let orders = metrics.virtual_cluster("orders");
    orders.accepted.inc_by(3);
    orders.open.set(2);
    orders.refused.count("connections");
    orders.closed.get_or_create(&Reason { reason: "client" }).inc();
    orders.limit_hits.hit(Limit::Frame);
    orders.requests.count(0);
    orders.requests.count(1);
    orders.requests.count(20_000);
    orders.not_spliced.count("loopback");
    orders.mirror.frames[1].inc_by(4);
    orders.mirror.lose(Cause::Torn, 3);
    orders.dial_seconds.observe(0.003);
    orders.broker_read_pauses.inc_by(7);
    let counts = Counts { in_rack_bytes: 7, redirects: 1, ..Counts::default() };
    orders.racks.set(RacksReading {
        by_racks: [(("az1".to_owned(), "az1".to_owned()), counts)].into(),
        stays: [("held_down", 2)].into(),
        ..RacksReading::default()
    });
    orders.edge.set(5, 4, [("deny", 2)].into(), 9);
    metrics.gateway().set_interfaces([Some("native"), None, Some("native")].into_iter());
    metrics.cluster("east").set_state(ClusterState::Reached);
    metrics.gateway().reloads_refused.inc();
    metrics
}

#[test]
fn the_page_has_exactly_the_declared_metrics() {
    let page = Page::parse(&busy().encode());
    let declared: BTreeMap<String, String> =
        CATALOG.iter().map(|d| (d.family().to_owned(), d.kind.word().to_owned())).collect();
    assert_eq!(page.families, declared);
    for d in CATALOG.iter().filter(|d| d.kind != Kind::Histogram) {
        let is_there = page.series.keys().any(|s| s.split('{').next() == Some(d.name));
        assert!(is_there, "{} has no series", d.name);
    }
}

#[test]
fn every_series_carries_the_labels_that_its_declaration_names() {
    let page = Page::parse(&busy().encode());
    for series in page.series.keys() {
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels: BTreeSet<&str> =
            labels.trim_end_matches('}').split(',').filter_map(|l| l.split_once('=')).map(|(n, _)| n).collect();
        let declaration = CATALOG
            .iter()
            .find(|d| name.strip_prefix(d.name).is_some_and(|s| ["", "_sum", "_count", "_bucket"].contains(&s)))
            .unwrap_or_else(|| panic!("{name} is not declared"));
        let mut declared: BTreeSet<&str> = declaration.labels.iter().map(|l| l.name()).collect();
        if name.ends_with("_bucket") {
            declared.insert("le");
        }
        assert_eq!(labels, declared, "{series}");
    }
}

#[test]
fn what_was_counted_is_what_is_scraped() {
    let page = Page::parse(&busy().encode());
    assert_eq!(page.get(r#"turnout_connections_accepted_total{virtual_cluster="orders"}"#), 3.0);
    assert_eq!(page.get(r#"turnout_connections{virtual_cluster="orders"}"#), 2.0);
    assert_eq!(page.get(r#"turnout_connections_refused_total{virtual_cluster="orders",reason="connections"}"#), 1.0);
    assert_eq!(page.get(r#"turnout_connections_closed_total{virtual_cluster="orders",reason="client"}"#), 1.0);
    assert_eq!(page.get(r#"turnout_limit_hits_total{virtual_cluster="orders",limit="frame"}"#), 1.0);
    assert_eq!(page.get(r#"turnout_requests_total{virtual_cluster="orders",api="Produce"}"#), 1.0);
    assert_eq!(page.get(r#"turnout_requests_total{virtual_cluster="orders",api="other"}"#), 1.0);
    assert_eq!(page.get(r#"turnout_read_pauses_total{virtual_cluster="orders",side="broker"}"#), 7.0);
    assert_eq!(page.get(r#"turnout_dial_seconds_count{virtual_cluster="orders"}"#), 1.0);
    assert_eq!(page.get(r#"turnout_dial_seconds_bucket{le="0.005",virtual_cluster="orders"}"#), 1.0);
    assert_eq!(page.get(r#"turnout_cluster_state{cluster="east",state="reached"}"#), 1.0);
    assert_eq!(page.get(r#"turnout_cluster_state{cluster="east",state="degraded"}"#), 0.0);
    assert_eq!(page.get(r#"turnout_config_reloads_total{result="refused"}"#), 1.0);
    assert_eq!(page.get(concat!("turnout_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"}")), 1.0);
    assert_eq!(page.get(r#"turnout_mirrored_frames_total{virtual_cluster="orders",side="broker"}"#), 4.0);
    assert_eq!(page.get(r#"turnout_mirror_lost_frames_total{virtual_cluster="orders",reason="torn"}"#), 3.0);
    assert_eq!(page.get(r#"turnout_mirror_lost_frames_total{virtual_cluster="orders",reason="ring"}"#), 0.0);
    assert_eq!(page.get(r#"turnout_edge_admitted_total{virtual_cluster="orders"}"#), 5.0);
    assert_eq!(page.get(r#"turnout_edge_refused_total{virtual_cluster="orders",reason="deny"}"#), 2.0);
    assert_eq!(page.get(r#"turnout_edge_steered_ports{virtual_cluster="orders"}"#), 9.0);
    assert_eq!(page.get(r#"turnout_edge_interfaces{mode="native"}"#), 2.0);
    assert_eq!(page.get(r#"turnout_edge_interfaces{mode="generic"}"#), 0.0);
    assert_eq!(page.get(r#"turnout_edge_interfaces{mode="none"}"#), 1.0);
    assert!(page.get("process_resident_memory_bytes") > 0.0);
}

#[test]
fn a_limit_that_was_never_hit_is_scraped_as_zero_so_that_alerts_see_the_first_hit() {
    let page = Page::parse(&busy().encode());
    for limit in Limit::ALL {
        let series = format!(r#"turnout_limit_hits_total{{virtual_cluster="orders",limit="{}"}}"#, limit.key());
        assert!(page.series.contains_key(&series), "{series}");
    }
}

#[test]
fn what_a_reload_removes_leaves_the_page() {
    let metrics = busy();
    let kept = metrics.virtual_cluster("payments");
    metrics.retain(|name| name == "payments", |_| false);
    kept.accepted.inc();
    let page = Page::parse(&metrics.encode());
    assert!(page.series.keys().all(|s| !s.contains("orders") && !s.contains("east")));
    assert_eq!(page.get(r#"turnout_connections_accepted_total{virtual_cluster="payments"}"#), 1.0);
}

#[test]
fn a_name_with_quotes_and_newlines_stays_one_label() {
    let metrics = Metrics::default();
    metrics.virtual_cluster("a\"b\nc\\").accepted.inc();
    let page = Page::parse(&metrics.encode());
    assert_eq!(page.get(r#"turnout_connections_accepted_total{virtual_cluster="a\"b\nc\\"}"#), 1.0);
}

#[test]
fn a_gauge_below_zero_for_a_moment_is_shown_as_zero() {
    let metrics = Metrics::default();
    metrics.virtual_cluster("v").open.dec();
    assert_eq!(Page::parse(&metrics.encode()).get(r#"turnout_connections{virtual_cluster="v"}"#), 0.0);
}

#[test]
fn what_the_kernel_counted_never_goes_back() {
    let metrics = busy();
    metrics.virtual_cluster("orders").edge.set(1, 9, [("deny", 1), ("rate", 3)].into(), 0);
    let page = Page::parse(&metrics.encode());
    assert_eq!(page.get(r#"turnout_edge_admitted_total{virtual_cluster="orders"}"#), 5.0);
    assert_eq!(page.get(r#"turnout_edge_steered_total{virtual_cluster="orders"}"#), 9.0);
    assert_eq!(page.get(r#"turnout_edge_refused_total{virtual_cluster="orders",reason="deny"}"#), 2.0);
    assert_eq!(page.get(r#"turnout_edge_refused_total{virtual_cluster="orders",reason="rate"}"#), 3.0);
    assert_eq!(page.get(r#"turnout_edge_steered_ports{virtual_cluster="orders"}"#), 0.0);
}
