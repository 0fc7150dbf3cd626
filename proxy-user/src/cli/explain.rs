//! `turnout explain`: which way a request takes through a config, and why. A pure function of the config and the
//! question: the version table and `route` say what happens, this puts it into words. No cluster is asked.

use std::fmt::Write as _;
use std::net::IpAddr;

use proxy_common::frame::RequestPrefix;
use serde::Serialize;

use crate::config::prefix::Cidr;
use crate::config::{Admission, Config, FastPathMode, NewConnections, RacksMode, Versions, VirtualCluster};
use crate::kafka::api::{self, VersionRange};
use crate::kafka::fetch;
use crate::kafka::header::Partial;
use crate::kafka::ids::{ApiKey, ApiVersion};
use crate::kafka::versions;
use crate::racks::{Client, Places};
use crate::route::{self, AnswerPlan, Plan};
use crate::splice::policy;

/// What becomes of a frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "way", content = "why")]
pub(super) enum Way {
    /// Streams through, byte for byte.
    Forwarded,
    /// Streams through, read along and changed where needed.
    Checked(String),
    /// Held whole, changed where needed, then sent on.
    Rewritten(String),
    /// Made by the gateway itself.
    Answered(String),
    /// The connection is closed.
    Closed(String),
}

impl Way {
    fn sentence(&self) -> String {
        match self {
            Self::Forwarded => "forwarded as it is, never decoded".to_owned(),
            Self::Checked(why) => format!("streamed and read along: {why}"),
            Self::Rewritten(why) => format!("held whole and rewritten: {why}"),
            Self::Answered(why) => format!("made by the gateway: {why}"),
            Self::Closed(why) => format!("the connection is closed: {why}"),
        }
    }
}

/// The question.
#[derive(Clone, Debug)]
pub(super) struct Question {
    /// Where the client dials from.
    pub client: IpAddr,
    /// Its `client.id`.
    pub client_id: Option<String>,
    /// The topic that the request is about.
    pub topic: Option<String>,
    /// Name or number of the API.
    pub api: String,
    /// Version of the request; the highest offered if none.
    pub version: Option<i16>,
    /// Only this virtual cluster.
    pub virtual_cluster: Option<String>,
}

/// The way through one virtual cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Explanation {
    /// The virtual cluster.
    pub virtual_cluster: String,
    /// The real cluster behind it.
    pub cluster: String,
    /// Where the client reaches it.
    pub listeners: Vec<String>,
    /// Name of the API.
    pub api: String,
    /// Its number.
    pub api_key: i16,
    /// Versions offered to clients, at most: brokers may know fewer.
    pub offered: String,
    /// Version that is explained.
    pub version: i16,
    /// What becomes of the request.
    pub request: Way,
    /// What becomes of the answer.
    pub answer: Way,
    /// What the kernel passes on of it, where the connection is spliced.
    pub kernel: String,
    /// What else holds for it.
    pub remarks: Vec<String>,
}

/// Explains the question for every virtual cluster that it concerns.
///
/// # Errors
/// The API's name or the virtual cluster isn't known, in words for the one who asked.
pub(super) fn explain(config: &Config, question: &Question) -> Result<Vec<Explanation>, String> {
    let key = find(&question.api)
        .ok_or_else(|| format!("{}: no such API; give its name (`Fetch`) or number (`1`)", question.api))?;
    if let Some(name) = &question.virtual_cluster
        && !config.virtual_clusters.contains_key(name)
    {
        let known = config.virtual_clusters.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        return Err(format!("{name}: no such virtual cluster; the config has {known}"));
    }
    let asked = |name: &str| question.virtual_cluster.as_deref().is_none_or(|wanted| wanted == name);
    let through = |(name, vc): (&String, &VirtualCluster)| {
        let mut explanation = one(name, vc, config.fast_path.mode, question, key);
        explanation.remarks.splice(0..0, admission(&config.admission, question.client));
        explanation
    };
    Ok(config.virtual_clusters.iter().filter(|(name, _)| asked(name)).map(through).collect())
}

/// An API by its name, in any case, or its number, known or not.
fn find(name_or_number: &str) -> Option<ApiKey> {
    if let Ok(number) = name_or_number.parse() {
        return Some(ApiKey(number));
    }
    api::all().iter().find(|spec| spec.name.eq_ignore_ascii_case(name_or_number)).map(|spec| spec.key)
}

fn one(name: &str, vc: &VirtualCluster, mode: FastPathMode, question: &Question, key: ApiKey) -> Explanation {
    let offered = versions::offered(vc.versions, std::iter::empty()).0.get(&key).copied();
    let version = question.version.map_or_else(|| offered.map_or(ApiVersion(0), |range| range.max), ApiVersion);
    let (request, answer) = ways(vc, key, version);
    Explanation {
        virtual_cluster: name.to_owned(),
        cluster: vc.cluster.clone(),
        listeners: listeners(vc, question.client),
        api: api::name(key).to_owned(),
        api_key: key.0,
        offered: offer(vc.versions, key, offered),
        version: version.0,
        kernel: kernel(vc, mode, key, version),
        remarks: remarks(vc, question, key, version, offered, &request),
        request,
        answer,
    }
}

fn offer(policy: Versions, key: ApiKey, offered: Option<VersionRange>) -> String {
    let (Some(offered), Some(spec)) = (offered, api::spec(key)) else {
        return "never: the gateway doesn't know this API".to_owned();
    };
    let VersionRange { min, max } = offered;
    let policy = policy_name(policy);
    if max < spec.versions.max {
        let first_left_out = ApiVersion(max.0 + 1);
        return format!("v{min}–v{max}: `versions: {policy}` leaves out v{first_left_out}–v{}", spec.versions.max);
    }
    format!("v{min}–v{max}: nothing is left out by `versions: {policy}`")
}

/// What `route` decides, in words. For Produce that wants an answer; acks=0 is a remark.
fn ways(vc: &VirtualCluster, key: ApiKey, version: ApiVersion) -> (Way, Way) {
    let prefix = RequestPrefix { api_key: key.0, api_version: version.0, correlation_id: 0 };
    match route::plan(prefix, || Partial::Done(-1), vc.versions, routes_reads(vc)) {
        Partial::Done(Plan::Forward { answer }) => (Way::Forwarded, answer_way(vc, key, answer)),
        Partial::Done(Plan::Rewrite { answer }) => {
            (Way::Rewritten("the cluster id becomes the real one".to_owned()), answer_way(vc, key, answer))
        }
        Partial::Done(Plan::Route) => (
            Way::Checked(
                "whose rack the client is in decides whether its rack is filled in, and what its answer may become"
                    .to_owned(),
            ),
            answer_way(vc, key, AnswerPlan::Route),
        ),
        Partial::Done(Plan::Answer(_)) => {
            let why = "error 35 and the versions of ApiVersions itself, in the form of v0".to_owned();
            (Way::Answered("it is read and not forwarded".to_owned()), Way::Answered(why))
        }
        Partial::Done(Plan::Close(reason)) => (Way::Closed(reason.to_string()), Way::Closed(reason.to_string())),
        // The prefix is whole and acks is given.
        Partial::NeedMore => (Way::Forwarded, Way::Forwarded),
        Partial::Malformed(why) => (Way::Closed(why.to_owned()), Way::Closed(why.to_owned())),
    }
}

fn answer_way(vc: &VirtualCluster, key: ApiKey, plan: AnswerPlan) -> Way {
    let size = vc.limits.rewrite_frame.0;
    match plan {
        AnswerPlan::None | AnswerPlan::Stream => Way::Forwarded,
        AnswerPlan::CheckProduce => Way::Checked(
            "it passes unless it holds leader hints (errors of a leader that moved), and is then held whole and \
             rewritten"
                .to_owned(),
        ),
        AnswerPlan::FetchHints => Way::Rewritten(format!(
            "addresses in leader hints become the virtual cluster's; above {size} bytes (`limits.rewrite_frame`) it \
             streams and loses its hints"
        )),
        AnswerPlan::FetchScrub => Way::Checked("leader hints, which name real addresses, are taken out".to_owned()),
        AnswerPlan::Route => Way::Checked(
            "partitions that the client is to read from a replica in its rack, or from the leader again, say so and come \
             without records"
                .to_owned(),
        ),
        AnswerPlan::Rewrite => Way::Rewritten(
            match key {
                ApiKey::METADATA | ApiKey::DESCRIBE_CLUSTER => {
                    "addresses of brokers and the cluster id become the virtual cluster's"
                }
                ApiKey::FIND_COORDINATOR => "the coordinator's address becomes the virtual cluster's",
                _ => "addresses of brokers become the virtual cluster's",
            }
            .to_owned(),
        ),
        AnswerPlan::ApiVersions => {
            Way::Rewritten("narrowed to the versions that are offered on every broker".to_owned())
        }
        AnswerPlan::Handshake => Way::Checked("it says whether raw tokens follow".to_owned()),
        AnswerPlan::Authenticate => Way::Checked("it ends the prelude, in which only authentication passes".to_owned()),
    }
}

/// The listeners that a client of this address can dial: IPv4 clients reach `::` only where it is dual-stack, which
/// ours are not.
fn listeners(vc: &VirtualCluster, client: IpAddr) -> Vec<String> {
    let ports = vc.broker_ports;
    let last_port = u32::from(ports.first) + u32::from(ports.count.saturating_sub(1));
    let last_id = i64::from(ports.first_node_id) + i64::from(ports.count.saturating_sub(1));
    vc.listen
        .iter()
        .filter(|address| address.is_ipv4() == client.is_ipv4())
        .map(|address| {
            let host = match address {
                IpAddr::V4(v4) => v4.to_string(),
                IpAddr::V6(v6) => format!("[{v6}]"),
            };
            format!(
                "{host}: port {} to start from, ports {}–{last_port} for nodes {}–{last_id}",
                vc.bootstrap_port, ports.first, ports.first_node_id
            )
        })
        .collect()
}

/// Whether the client may connect at all, where the config says anything about that.
fn admission(admission: &Admission, client: IpAddr) -> Vec<String> {
    let Admission { deny, allow, new_connections } = admission;
    let holding = |list: &[Cidr]| list.iter().find(|cidr| cidr.prefix().is_some_and(|p| p.contains(client))).copied();
    if let Some(prefix) = holding(deny) {
        return vec![format!("{client} can't connect: {prefix} is denied (`admission.deny`)")];
    }
    if !allow.is_empty() && holding(allow).is_none() {
        return vec![format!("{client} can't connect: no prefix of `admission.allow` holds it")];
    }
    let Some(new) = new_connections else { return Vec::new() };
    let NewConnections { per, per_v6, rate, burst: _ } = new;
    let source = match client {
        IpAddr::V4(_) => per,
        IpAddr::V6(_) => per_v6,
    };
    vec![format!(
        "the {source} around {client} may open {} connections at once and {rate} in the long run \
         (`admission.new_connections`)",
        new.burst()
    )]
}

/// What the kernel passes on, by the very table that it goes by.
fn kernel(vc: &VirtualCluster, mode: FastPathMode, key: ApiKey, version: ApiVersion) -> String {
    let table = policy::policy(vc.versions, &vc.limits, routes_reads(vc));
    let rule = table.rule(key.0 as u16, version.0 as u16);
    let sentence = match (mode, rule) {
        (FastPathMode::Off, _) => "nothing: fast_path.mode is off",
        (_, None) => "nothing: the daemon takes it, on spliced connections too",
        (_, Some(_)) if key == ApiKey::PRODUCE && version >= ApiVersion(10) => {
            "on spliced connections the request, unless acks=0, and an answer without errors or tagged fields"
        }
        (_, Some(_)) if key == ApiKey::PRODUCE => "on spliced connections request and answer, unless acks=0",
        (_, Some(_)) => "on spliced connections request and answer",
    };
    sentence.to_owned()
}

fn remarks(
    vc: &VirtualCluster,
    question: &Question,
    api: ApiKey,
    version: ApiVersion,
    offered: Option<VersionRange>,
    request: &Way,
) -> Vec<String> {
    let mut remarks = Vec::new();
    let mut say = |text: String| remarks.push(text);
    if offered.is_none_or(|range| !range.contains(version)) {
        say(format!("v{version} isn't offered; a client that keeps to ApiVersions doesn't send it"));
    }
    if matches!(request, Way::Forwarded | Way::Rewritten(_)) {
        say(format!(
            "its answer is matched by order and checked by correlation id; at most {} requests of a connection wait \
             (`limits.in_flight`), then reading from the client pauses",
            vc.limits.in_flight
        ));
    }
    match api {
        ApiKey::PRODUCE => say("with acks=0 there is no answer and nothing waits for one; on an error the broker \
                                closes the connection, and the gateway the client's"
            .to_owned()),
        ApiKey::SASL_HANDSHAKE | ApiKey::SASL_AUTHENTICATE => say("credentials are the client's own and go to the \
                                                                   broker as they are; with handshake v0 raw tokens \
                                                                   follow"
            .to_owned()),
        _ => {}
    }
    if api == ApiKey::FETCH {
        routing(vc, question, version).into_iter().for_each(&mut say);
    }
    let routed = api == ApiKey::FETCH && routes_reads(vc);
    if let Some(most) = vc.limits.connections_per_source {
        say(format!("{} may hold {most} connections (`limits.connections_per_source`)", question.client));
    }
    if let (Some(topic), false) = (&question.topic, routed) {
        say(format!("topic {topic}: nothing in this virtual cluster depends on the topic"));
    }
    if let (Some(id), false) = (&question.client_id, routed) {
        say(format!("client id {id}: nothing in this virtual cluster depends on the client id"));
    }
    remarks
}

/// Whether consumers are led to replicas.
fn routes_reads(vc: &VirtualCluster) -> bool {
    vc.racks.as_ref().is_some_and(|racks| racks.mode != RacksMode::Off)
}

/// What replica routing makes of a Fetch.
fn routing(vc: &VirtualCluster, question: &Question, version: ApiVersion) -> Vec<String> {
    let Some(racks) = vc.racks.as_ref().filter(|_| routes_reads(vc)) else {
        return vec!["its consumer reads at the leader: replica routing is off (`racks`)".to_owned()];
    };
    if !fetch::is_routable(version) {
        return vec![format!("its consumer reads at the leader: v{version} isn't routed, v11 to v15 are")];
    }
    let mut lines = Vec::new();
    // Which listener it dials is not asked.
    let listener = IpAddr::from([0, 0, 0, 0]);
    let client = Client { address: question.client, listener, id: question.client_id.as_deref() };
    let own = if racks.respect_client_rack { "unless it sets client.rack, " } else { "" };
    lines.push(match Places::of(racks).rack_of(client) {
        Some((rack, by)) => format!("{own}the client is in rack {rack}: by {by}"),
        None if racks.clients.iter().any(|rule| rule.listener.is_some()) => {
            format!("{own}the client's rack depends on the address that it dials (`racks.clients`)")
        }
        None => format!("{own}nothing says in which rack the client is (`racks.clients`), so it reads at the leader"),
    });
    lines.push(
        match (racks.mode, racks.has_preferences()) {
            (RacksMode::Stamp, _) => "its rack is filled in, and the leader's selector names the replica (`mode: stamp`)",
            (RacksMode::Auto, false) => {
                "where the leader runs a rack-aware selector, its rack is filled in; where not, the leader's answer names \
                 the replica (`mode: auto`)"
            }
            _ => "the leader's answer names the replica: one that is alive and in sync",
        }
        .to_owned(),
    );
    let excluded: Vec<_> = racks.exclude_clients.iter().map(ToString::to_string).collect();
    if !excluded.is_empty() {
        lines.push(format!("clients whose software is {} stay at the leader (`exclude_clients`)", excluded.join(", ")));
    }
    let of = question.topic.as_ref().map_or_else(String::new, |topic| format!(" --topic {topic}"));
    lines.push(format!("what becomes of each partition now: turnout racks why --client {}{of}", question.client));
    lines
}

fn policy_name(policy: Versions) -> &'static str {
    match policy {
        Versions::Auto => "auto",
        Versions::Conservative => "conservative",
        Versions::Full => "full",
    }
}

/// For people.
pub(super) fn text(question: &Question, explanations: &[Explanation]) -> String {
    let mut text = String::new();
    for e in explanations {
        if !text.is_empty() {
            text.push('\n');
        }
        let _ = writeln!(text, "virtual cluster {} → cluster {}", e.virtual_cluster, e.cluster);
        if e.listeners.is_empty() {
            let _ = writeln!(text, "  reached   not from {}: no listener of its address family", question.client);
        }
        for listener in &e.listeners {
            let _ = writeln!(text, "  reached   {listener}");
        }
        let _ = writeln!(text, "  offered   {} (key {}) {}", e.api, e.api_key, e.offered);
        let _ = writeln!(text, "  request   v{} {}", e.version, e.request.sentence());
        let _ = writeln!(text, "  answer    {}", e.answer.sentence());
        let _ = writeln!(text, "  kernel    {}", e.kernel);
        for remark in &e.remarks {
            let _ = writeln!(text, "  note      {remark}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::units::{Size, Span};
    use crate::config::{Admin, BrokerPorts, FastPath, Limits, Log, LogFormat};
    use std::collections::BTreeMap;
    use std::time::Duration;

    fn virtual_cluster(versions: Versions) -> VirtualCluster {
        let span = |s| Span(Duration::from_secs(s));
        VirtualCluster {
            cluster: "east".into(),
            listen: vec!["0.0.0.0".parse().expect("v4"), "::".parse().expect("v6")],
            bootstrap_port: 9092,
            broker_ports: BrokerPorts { first: 9200, count: 200, first_node_id: 0 },
            advertise: None,
            versions,
            cluster_id: None,
            racks: None,
            limits: Limits {
                connections: 9000,
                connections_per_source: Some(20),
                frame: Size(100 << 20),
                rewrite_frame: Size(16 << 20),
                in_flight: 256,
                first_byte: span(10),
                incomplete_frame: span(30),
                idle: span(540),
                drain: span(30),
            },
        }
    }

    fn config() -> Config {
        Config {
            clusters: BTreeMap::new(),
            virtual_clusters: BTreeMap::from([
                ("orders".to_owned(), virtual_cluster(Versions::Auto)),
                ("payments".to_owned(), virtual_cluster(Versions::Full)),
            ]),
            fast_path: FastPath::default(),
            admission: Admission::default(),
            admin: Admin { http: None, socket: "/run/turnout/turnout.sock".into() },
            log: Log { format: LogFormat::Human, level: "info".into() },
            workers: None,
            watch: false,
        }
    }

    fn question(api: &str, version: Option<i16>) -> Question {
        let client = "10.0.0.7".parse().expect("an address");
        Question { client, client_id: None, topic: None, api: api.into(), version, virtual_cluster: None }
    }

    #[test]
    fn every_virtual_cluster_is_explained_with_its_own_policy() {
        let all = explain(&config(), &question("fetch", None)).expect("explained");
        let versions: Vec<_> = all.iter().map(|e| (e.virtual_cluster.as_str(), e.version)).collect();
        assert_eq!(versions, [("orders", 15), ("payments", 18)]);
        assert!(all[0].offered.contains("v0–v15") && all[0].offered.contains("leaves out v16–v18"));
        assert!(all[1].offered.contains("nothing is left out"));
    }

    #[test]
    fn a_client_is_shown_the_listeners_of_its_own_address_family() {
        let all = explain(&config(), &question("Fetch", None)).expect("explained");
        assert_eq!(all[0].listeners, ["0.0.0.0: port 9092 to start from, ports 9200–9399 for nodes 0–199"]);
        let v6 = Question { client: "2001:db8::7".parse().expect("an address"), ..question("Fetch", None) };
        assert!(explain(&config(), &v6).expect("explained")[0].listeners[0].starts_with("[::]: "));
    }

    #[test]
    fn a_version_that_is_not_offered_is_remarked_on() {
        let all = explain(&config(), &question("1", Some(17))).expect("explained");
        assert!(all[0].remarks.iter().any(|r| r.contains("v17 isn't offered")));
        assert!(all[1].remarks.iter().all(|r| !r.contains("isn't offered")));
    }

    #[test]
    fn a_closed_request_has_no_answer_to_wait_for() {
        let all = explain(&config(), &question("produce", Some(2))).expect("explained");
        assert!(matches!(all[0].request, Way::Closed(_)));
        assert!(all[0].remarks.iter().all(|r| !r.contains("matched by order")));
        let text = text(&question("produce", Some(2)), &all);
        assert!(text.contains("request   v2 the connection is closed: Produce v2 isn't served, v3 to"), "{text}");
    }

    #[test]
    fn acks_0_is_remarked_on_for_produce_alone() {
        let about_acks = |api: &str| {
            let all = explain(&config(), &question(api, None)).expect("explained");
            all[0].remarks.iter().any(|r| r.contains("acks=0"))
        };
        assert!(about_acks("Produce") && !about_acks("Fetch"));
    }

    #[test]
    fn each_way_that_route_knows_has_its_words() {
        let ways = |api: &str, version| {
            let all = explain(&config(), &question(api, version)).expect("explained");
            (all[0].request.clone(), all[0].answer.clone())
        };
        assert_eq!(ways("Heartbeat", None), (Way::Forwarded, Way::Forwarded));
        assert_eq!(ways("Fetch", None), (Way::Forwarded, Way::Forwarded));
        assert!(matches!(ways("Fetch", Some(17)), (Way::Forwarded, Way::Checked(_))));
        assert!(matches!(ways("Produce", None), (Way::Forwarded, Way::Checked(_))));
        assert!(matches!(ways("metadata", None), (Way::Forwarded, Way::Rewritten(_))));
        assert!(matches!(ways("AddRaftVoter", None), (Way::Rewritten(_), _)));
        assert!(matches!(ways("ApiVersions", Some(99)), (Way::Answered(_), Way::Answered(_))));
        assert!(matches!(ways("10000", None), (Way::Closed(_), Way::Closed(_))));
    }

    #[test]
    fn every_api_and_version_has_an_explanation_that_fits_its_plan() {
        for spec in api::all() {
            for version in spec.served().min.0..=spec.served().max.0 {
                let all = explain(&config(), &question(spec.name, Some(version))).expect("explained");
                assert_eq!((all[0].api_key, all[0].version), (spec.key.0, version));
                assert!(!matches!(all[0].request, Way::Closed(_) | Way::Answered(_)), "{} v{version}", spec.name);
            }
        }
    }

    #[test]
    fn unknown_names_are_refused_with_what_to_give_instead() {
        assert!(explain(&config(), &question("Fletch", None)).expect_err("unknown").contains("`Fetch`"));
        let nowhere = Question { virtual_cluster: Some("nowhere".into()), ..question("Fetch", None) };
        assert!(explain(&config(), &nowhere).expect_err("unknown").contains("orders, payments"));
        let one = Question { virtual_cluster: Some("payments".into()), ..question("Fetch", None) };
        assert_eq!(explain(&config(), &one).expect("explained").len(), 1);
    }

    #[test]
    fn who_may_connect_is_said_first() {
        let remark = |text: &str, client: &str| {
            let text = format!(
                "clusters: {{east: {{bootstrap: ['e:1']}}}}\nvirtual_clusters:\n  orders: {{cluster: east, \
                 bootstrap_port: 9092, broker_ports: {{first: 9200, count: 9}}}}\nadmission: {{{text}}}\n"
            );
            let config = crate::config::load_str(&text, "t.yaml", &crate::config::Environment::empty());
            let question = Question { client: client.parse().expect("an address"), ..question("Fetch", None) };
            explain(&config.unwrap_or_else(|e| panic!("{e}")), &question).expect("explained")[0].remarks[0].clone()
        };
        let deny = "deny: [10.0.0.0/8], allow: [10.0.0.0/8, '::/0']";
        assert_eq!(remark(deny, "10.1.2.3"), "10.1.2.3 can't connect: 10.0.0.0/8 is denied (`admission.deny`)");
        assert!(remark(deny, "11.1.2.3").contains("no prefix of `admission.allow` holds it"));
        assert!(remark(deny, "::1").contains("matched by order"), "nothing is to be said of it");
        let rate = "new_connections: {rate: 5/s, per: /24}";
        assert!(remark(rate, "11.1.2.3").contains("the /24 around 11.1.2.3 may open 10 connections at once and 5/s"));
        assert!(remark(rate, "::1").contains("the /64 around ::1"));
    }
}
