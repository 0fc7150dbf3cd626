//! `turnout racks`: what was read where, and why.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::table::{Align::Left, Align::Right, Column, bytes, count, render};
use crate::gateway::status::{HeldReport, RackRow, RacksReport, WhyPartition, WhyReport};
use crate::racks::tally::Counts;

/// Width of every table.
const WIDTH: usize = 110;

/// Rows of a table; the rest is counted.
const MAX_ROWS: usize = 40;

/// What was read where; by topic too, if asked.
pub(super) fn list(reports: &BTreeMap<String, RacksReport>, topics: bool) -> String {
    if reports.is_empty() {
        return "no virtual cluster routes reads by rack: give one `racks`\n".to_owned();
    }
    let mut text = String::new();
    for (name, report) in reports {
        if !text.is_empty() {
            text.push('\n');
        }
        one(&mut text, name, report, topics);
    }
    text
}

fn one(text: &mut String, name: &str, report: &RacksReport, topics: bool) {
    let RacksReport {
        mode,
        brokers,
        rows,
        total,
        redirected,
        held,
        stays,
        overflows,
        stood_in,
        saved_cost,
        across_cost,
    } = report;
    // Writing to a String can't fail.
    let _ = writeln!(text, "virtual cluster {name}, mode {mode}: {}", share(total));
    let mut ways: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (node, way) in brokers {
        ways.entry(way).or_default().push(node.to_string());
    }
    for (way, nodes) in ways {
        let _ = writeln!(text, "  {way:<11} at brokers {}", nodes.join(", "));
    }
    let _ = writeln!(text, "  redirects   {redirected} in force");
    if let (Some(saved), Some(across)) = (saved_cost, across_cost) {
        let _ = writeln!(text, "  estimate    {saved} saved, {across} spent on what crossed racks");
    }
    if *stood_in > 0 {
        let _ = writeln!(text, "  stood in    {stood_in} times for a broker that was out of reach");
    }
    if *overflows > 0 {
        let _ = writeln!(text, "  too large   {overflows} answers (racks.patch_buffer)");
    }
    for (reason, n) in stays {
        let _ = writeln!(text, "  at leader   {} times: {reason}", count(*n));
    }
    for HeldReport { broker, partition, seconds_left } in held {
        let what = partition.as_deref().unwrap_or("every partition: it is out of reach");
        let _ = writeln!(text, "  held down   broker {broker} for {seconds_left} s more, {what}");
    }
    let mut heads = vec![Column("CLIENTS IN", Left), Column("READ IN", Left)];
    if topics {
        heads.push(Column("TOPIC", Left));
    }
    for head in ["IN RACK", "SAVED", "ACROSS", "AVOIDABLE", "UNKNOWN", "REDIRECTS", "BOUNCES"] {
        heads.push(Column(head, Right));
    }
    let rows = table(rows, topics);
    let more = rows.len().saturating_sub(MAX_ROWS);
    let _ = write!(text, "\n{}", render(&heads, &rows[..rows.len().min(MAX_ROWS)], WIDTH));
    if more > 0 {
        let _ = writeln!(text, "and {more} more: --format json has them all");
    }
}

fn share(total: &Counts) -> String {
    match total.in_rack_bytes + total.across_bytes {
        0 => "nothing was read yet where both racks are known".to_owned(),
        all => {
            let permille = total.in_rack_bytes * 1000 / all;
            format!("{}.{} % of {} stayed in its rack", permille / 10, permille % 10, bytes(all))
        }
    }
}

fn table(rows: &[RackRow], topics: bool) -> Vec<Vec<String>> {
    let mut sums: BTreeMap<(&str, &str, &str), Counts> = BTreeMap::new();
    for RackRow { client_rack, broker_rack, topic, counts } in rows {
        let topic = if topics { topic.as_str() } else { "" };
        sums.entry((client_rack, broker_rack, topic)).or_default().add(counts);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.bytes()));
    let line = |((client, broker, topic), counts): ((&str, &str, &str), Counts)| {
        let Counts { in_rack_bytes, saved_bytes, across_bytes, avoidable_bytes, unknown_bytes, redirects, bounces } =
            counts;
        let mut line = vec![client.to_owned(), broker.to_owned()];
        if topics {
            line.push(topic.to_owned());
        }
        line.extend([in_rack_bytes, saved_bytes, across_bytes, avoidable_bytes, unknown_bytes].map(bytes));
        line.extend([redirects, bounces].map(count));
        line
    };
    sums.into_iter().map(line).collect()
}

/// Why partitions are read where they are.
pub(super) fn why(reports: &BTreeMap<String, WhyReport>) -> String {
    let mut text = String::new();
    for (name, WhyReport { rack, by, partitions, more }) in reports {
        let place = match (rack, by) {
            (Some(rack), Some(by)) => format!("in rack {rack}, by {by}"),
            _ => "in no rack that is known".to_owned(),
        };
        let _ = writeln!(text, "virtual cluster {name}: the client is {place}");
        let heads = [
            Column("TOPIC", Left),
            Column("PARTITION", Right),
            Column("LEADER", Right),
            Column("IN SYNC", Left),
            Column("READS FROM", Right),
            Column("RACK", Left),
            Column("WHY", Left),
        ];
        let row = |partition: &WhyPartition| {
            let WhyPartition { topic, partition, leader, in_sync, reads_from, broker_rack, why } = partition;
            let node = |node: &Option<i32>| node.map_or_else(|| "none".to_owned(), |node| node.to_string());
            let in_sync = in_sync.iter().map(i32::to_string).collect::<Vec<_>>().join(",");
            let rack = broker_rack.clone().unwrap_or_else(|| "-".to_owned());
            vec![topic.clone(), partition.to_string(), node(leader), in_sync, node(reads_from), rack, why.clone()]
        };
        text.push_str(&render(&heads, &partitions.iter().map(row).collect::<Vec<_>>(), WIDTH + 40));
        if partitions.is_empty() {
            let _ = writeln!(text, "no such topic has been read or listed yet");
        }
        if *more > 0 {
            let _ = writeln!(text, "and {more} more: name a topic");
        }
    }
    if reports.is_empty() {
        text.push_str("no such virtual cluster routes reads by rack\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> RacksReport {
        let row = |broker: &str, topic: &str, counts| RackRow {
            client_rack: "az1".into(),
            broker_rack: broker.into(),
            topic: topic.into(),
            counts,
        };
        let home = Counts { in_rack_bytes: 3 << 30, saved_bytes: 2 << 30, ..Counts::default() };
        let away = Counts { across_bytes: 1 << 30, avoidable_bytes: 1 << 20, redirects: 12, ..Counts::default() };
        let mut total = home;
        total.add(&away);
        RacksReport {
            mode: "auto".into(),
            brokers: [(1, "patch".to_owned()), (2, "patch".to_owned()), (3, "stamp".to_owned())].into(),
            rows: vec![row("az1", "orders", home), row("az2", "orders", away), row("az2", "audit", Counts::default())],
            total,
            redirected: 12,
            held: vec![
                HeldReport { broker: 2, partition: Some("orders-3".into()), seconds_left: 8 },
                HeldReport { broker: 3, partition: None, seconds_left: 2 },
            ],
            stays: [("leader_in_rack".to_owned(), 5)].into(),
            overflows: 1,
            stood_in: 2,
            saved_cost: Some("0.04 USD".into()),
            across_cost: Some("0.02 USD".into()),
        }
    }

    #[test]
    fn the_share_the_money_and_what_is_held_down_are_said() {
        let text = list(&[("orders".to_owned(), report())].into(), false);
        for words in [
            "virtual cluster orders, mode auto: 75.0 % of",
            "patch       at brokers 1, 2",
            "stamp       at brokers 3",
            "0.04 USD saved, 0.02 USD spent",
            "held down   broker 2 for 8 s more, orders-3",
            "held down   broker 3 for 2 s more, every partition",
            "at leader   5 times: leader_in_rack",
        ] {
            assert!(text.contains(words), "{words}\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    }

    #[test]
    fn topics_are_summed_unless_they_are_asked_for() {
        let rows = |topics| table(&report().rows, topics);
        assert_eq!((rows(false).len(), rows(true).len()), (2, 3));
        assert_eq!(rows(false)[0][..2], ["az1", "az1"], "the most bytes first");
        assert!(list(&BTreeMap::new(), false).contains("no virtual cluster"));
    }

    #[test]
    fn each_partition_has_its_reason() {
        let partition = WhyPartition {
            topic: "orders".into(),
            partition: 3,
            leader: Some(1),
            in_sync: vec![1, 2],
            reads_from: Some(2),
            broker_rack: Some("az2".into()),
            why: "it is an in-sync replica in the client's rack".into(),
        };
        let report = WhyReport {
            rack: Some("az2".into()),
            by: Some("its own client.rack".into()),
            partitions: vec![partition],
            more: 4,
        };
        let text = why(&[("orders".to_owned(), report)].into());
        assert!(text.contains("in rack az2, by its own client.rack") && text.contains("and 4 more"), "{text}");
        let line = text.lines().find(|line| line.starts_with("orders ")).expect("a row");
        assert!(line.contains("1,2") && line.ends_with("in the client's rack"), "{line}");
    }
}
