//! What replica routing tells operators: what was read where, what is held down, and why a partition is read where it is.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Instant;

use super::Gateway;
use super::mapping::port_of;
use super::shared::Shared;
use super::status::{HeldReport, RackRow, RacksReport, WhyPartition, WhyReport};
use crate::config::VirtualCluster;
use crate::kafka::ids::NodeId;
use crate::metrics::RacksReading;
use crate::racks::decide::{self, How, View};
use crate::racks::tally::Counts;
use crate::racks::{By, Client, Rack, Settings, Spot};
use crate::upstream::topology::{Broker, Topology};

/// Partitions in an explanation, so that its answer stays readable.
const MAX_PARTITIONS: usize = 2000;

/// Holds in a report.
const MAX_HELD: usize = 200;

/// The question why partitions are read where they are.
#[derive(Clone, Debug)]
pub struct WhyQuestion {
    /// Only this virtual cluster.
    pub virtual_cluster: Option<String>,
    /// Where the client dials from.
    pub client: IpAddr,
    /// Its client id.
    pub client_id: Option<String>,
    /// Its own `client.rack`.
    pub client_rack: Option<String>,
    /// Only this topic.
    pub topic: Option<String>,
}

impl Gateway {
    /// What was read where, for each virtual cluster that routes.
    #[must_use]
    pub fn racks(&self) -> BTreeMap<String, RacksReport> {
        let running = self.running.load_full();
        let routing = running.virtual_clusters.iter().filter_map(|(name, virtual_cluster)| {
            let shared = &virtual_cluster.shared;
            Some((name.clone(), report(shared, &*shared.racks.settings()?)))
        });
        routing.collect()
    }

    /// Why a client reads partitions where it does, for each virtual cluster that routes.
    #[must_use]
    pub fn racks_why(&self, question: &WhyQuestion) -> BTreeMap<String, WhyReport> {
        let running = self.running.load_full();
        let wanted = |name: &String| question.virtual_cluster.as_ref().is_none_or(|wanted| wanted == name);
        let routing =
            running.virtual_clusters.iter().filter(|(name, _)| wanted(name)).filter_map(|(name, virtual_cluster)| {
                let shared = &virtual_cluster.shared;
                Some((name.clone(), why(shared, &*shared.racks.settings()?, question)))
            });
        routing.collect()
    }
}

fn how(settings: &Settings, shared: &Shared, node: NodeId, broker: &Broker) -> &'static str {
    let rack_aware = broker.rack_aware.or_else(|| shared.racks.has_chosen(node).then_some(true));
    match decide::how(&settings.config, rack_aware) {
        Some(How::Stamp) => "stamp",
        Some(How::Patch) => "patch",
        None => "off",
    }
}

fn report(shared: &Shared, settings: &Settings) -> RacksReport {
    let topology = shared.cluster().topology();
    let rows: Vec<_> = shared.racks.tally().all().into_iter().map(row).collect();
    let mut total = Counts::default();
    rows.iter().for_each(|row| total.add(&row.counts));
    let cost = |bytes| settings.config.price_per_gb.as_ref().map(|price| price.of_bytes(bytes));
    // A lock is let go at the end of its statement, and the holds are read under the same one.
    let redirected = shared.racks.book().redirected() as u64;
    let how = |(node, broker): (&NodeId, &Broker)| (node.0, how(settings, shared, *node, broker).to_owned());
    RacksReport {
        mode: settings.config.mode.to_string(),
        brokers: topology.brokers.iter().map(how).collect(),
        redirected,
        held: held(shared),
        stays: shared.racks.stays().filter(|(_, n)| *n > 0).map(|(stay, n)| (stay.label().to_owned(), n)).collect(),
        overflows: shared.racks.overflows(),
        stood_in: shared.racks.stood_in(),
        saved_cost: cost(total.saved_bytes),
        across_cost: cost(total.across_bytes),
        total,
        rows,
    }
}

fn row(((client_rack, broker_rack, topic), counts): ((Rack, Rack, std::sync::Arc<str>), Counts)) -> RackRow {
    RackRow {
        client_rack: client_rack.to_string(),
        broker_rack: broker_rack.to_string(),
        topic: topic.to_string(),
        counts,
    }
}

fn held(shared: &Shared) -> Vec<HeldReport> {
    let held = shared.racks.book().held(Instant::now());
    let report = |held: crate::racks::Held| HeldReport {
        broker: held.node.0,
        partition: held.spot.map(|Spot { topic, partition }| format!("{topic}-{partition}")),
        seconds_left: held.left.as_secs() + 1,
    };
    held.into_iter().take(MAX_HELD).map(report).collect()
}

fn why(shared: &Shared, settings: &Settings, question: &WhyQuestion) -> WhyReport {
    let config = shared.config();
    let topology = shared.cluster().topology();
    // Which listener it dials is not asked; where one is the only one, it is that.
    let listener = match config.listen.as_slice() {
        [only] => *only,
        _ => IpAddr::from([0, 0, 0, 0]),
    };
    let client = Client { address: question.client, listener, id: question.client_id.as_deref() };
    let by_rule = settings.places.rack_of(client);
    let own = question.client_rack.as_deref().map(|rack| (Rack::from(rack), By::Itself));
    let placed = if settings.config.respect_client_rack { own.or(by_rule) } else { by_rule.or(own) };

    let table = shared.cluster().partitions();
    let mut partitions = Vec::new();
    let wanted = |name: &str| question.topic.as_deref().is_none_or(|wanted| wanted == name);
    for topic in table.topics().filter(|topic| wanted(&topic.name)) {
        for partition in topic.partitions() {
            let outcome = match &placed {
                None => Err(decide::Stay::UnknownRack),
                Some((rack, _)) => {
                    let spot = Spot { topic: std::sync::Arc::clone(&topic.name), partition: partition.index };
                    decide_now(shared, settings, &config, &topology, rack, question, &topic.name, &spot, partition)
                }
            };
            let leader = partition.leader;
            let rack = |node: NodeId| topology.brokers.get(&node).and_then(|broker| broker.rack.clone());
            partitions.push(WhyPartition {
                topic: topic.name.to_string(),
                partition: partition.index,
                leader: leader.map(|leader| leader.0),
                in_sync: partition.in_sync.iter().map(|node| node.0).collect(),
                reads_from: outcome.ok().or(leader).map(|node| node.0),
                broker_rack: outcome.ok().or(leader).and_then(rack),
                why: match outcome {
                    Ok(_) => "it is an in-sync replica in the client's rack".to_owned(),
                    Err(stay) => stay.to_string(),
                },
            });
        }
    }
    partitions.sort_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
    let more = partitions.len().saturating_sub(MAX_PARTITIONS);
    partitions.truncate(MAX_PARTITIONS);
    WhyReport {
        rack: placed.as_ref().map(|(rack, _)| rack.to_string()),
        by: placed.map(|(_, by)| by.to_string()),
        partitions,
        more: more as u64,
    }
}

#[expect(clippy::too_many_arguments, reason = "the pieces of one question, each known to the caller alone")]
fn decide_now(
    shared: &Shared,
    settings: &Settings,
    config: &VirtualCluster,
    topology: &Topology,
    rack: &Rack,
    question: &WhyQuestion,
    topic: &str,
    spot: &Spot,
    partition: &crate::kafka::topics::SeenPartition,
) -> Result<NodeId, decide::Stay> {
    let has_port = |node: NodeId| port_of(&config.broker_ports, node.to_virtual()).is_some();
    let view = View { config: &settings.config, topology, has_port: &has_port };
    let now = Instant::now();
    let is_held = |node| shared.racks.book().is_held(node, spot, now);
    decide::replica_for(view, rack, question.client_id.as_deref().unwrap_or_default(), topic, partition, is_held)
}

/// One sentence for `status`; `None` where nothing is routed.
pub(super) fn sentence(shared: &Shared) -> Option<String> {
    let settings = shared.racks.settings()?;
    let (redirected, held) = {
        let book = shared.racks.book();
        (book.redirected(), book.held(Instant::now()).len())
    };
    let mut total = Counts::default();
    shared.racks.tally().by_racks().values().for_each(|counts| total.add(counts));
    let share = match total.in_rack_bytes + total.across_bytes {
        0 => "nothing read yet".to_owned(),
        all => format!("{} % of what was read stayed in its rack", total.in_rack_bytes * 100 / all),
    };
    Some(format!("{}: {share}, {redirected} redirects in force, {held} replicas held down", settings.config.mode))
}

/// For a scrape.
pub(super) fn reading(shared: &Shared) -> RacksReading {
    if shared.racks.settings().is_none() {
        return RacksReading::default();
    }
    let by_racks = shared.racks.tally().by_racks();
    RacksReading {
        by_racks: by_racks.into_iter().map(|((c, b), counts)| ((c.to_string(), b.to_string()), counts)).collect(),
        stays: shared.racks.stays().map(|(stay, n)| (stay.label(), n)).collect(),
        held: shared.racks.book().held(Instant::now()).len() as u64,
        stood_in: shared.racks.stood_in(),
        overflows: shared.racks.overflows(),
    }
}
