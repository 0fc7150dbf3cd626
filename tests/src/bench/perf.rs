//! Kafka's own perf tools.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::kafka::Artifacts;
use crate::netns::Netns;
use crate::process;

const PATIENCE: Duration = Duration::from_secs(300);

/// What a tool reported.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Throughput {
    /// Records moved.
    pub(crate) records: u64,
    /// Records a second.
    pub(crate) per_second: f64,
}

/// `kafka-producer-perf-test`: writes as fast as it goes, with the tool's defaults (acks all, idempotent, 16 KiB
/// batches), from `netns` if given.
///
/// # Errors
/// The tool fails or sends fewer records.
pub(crate) fn produce(
    artifacts: &Artifacts,
    bootstrap: &str,
    topic: &str,
    records: u64,
    size: usize,
    netns: Option<&Netns>,
) -> Result<Throughput> {
    let mut java = artifacts.java(512, &[]);
    java.args(["-Dturnout.log=warn", "org.apache.kafka.tools.ProducerPerformance", "--throughput", "-1"]);
    java.args(["--bootstrap-server", bootstrap, "--topic", topic]);
    java.args(["--num-records", &records.to_string(), "--record-size", &size.to_string()]);
    let output = process::run(inside(java, netns), PATIENCE).context("ProducerPerformance")?;
    let found = produced(&output).with_context(|| format!("ProducerPerformance wrote {output}"))?;
    ensure!(found.records == records, "ProducerPerformance sent {} of {records} records", found.records);
    Ok(found)
}

/// `kafka-consumer-perf-test`: reads as fast as it goes, with the tool's defaults, from `netns` if given.
///
/// The rate leaves out the time to join the group.
///
/// # Errors
/// The tool fails or reads fewer records.
pub(crate) fn consume(
    artifacts: &Artifacts,
    bootstrap: &str,
    topic: &str,
    group: &str,
    records: u64,
    netns: Option<&Netns>,
) -> Result<Throughput> {
    let mut java = artifacts.java(512, &[]);
    java.args(["-Dturnout.log=warn", "org.apache.kafka.tools.ConsumerPerformance", "--hide-header"]);
    java.args(["--bootstrap-server", bootstrap, "--topic", topic, "--group", group]);
    java.args(["--num-records", &records.to_string(), "--timeout", "60000"]);
    let output = process::run(inside(java, netns), PATIENCE).context("ConsumerPerformance")?;
    let found = consumed(&output).with_context(|| format!("ConsumerPerformance wrote {output}"))?;
    ensure!(found.records >= records, "ConsumerPerformance read {} of {records} records", found.records);
    Ok(found)
}

/// The same command on a host of its own.
fn inside(command: Command, netns: Option<&Netns>) -> Command {
    let Some(netns) = netns else { return command };
    let mut entering = Command::new("ip");
    entering.args(["netns", "exec", netns.name()]).arg(command.get_program()).args(command.get_args());
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => entering.env(key, value),
            None => entering.env_remove(key),
        };
    }
    entering
}

/// The last line, e.g. `500000 records sent, 123456.7 records/sec (117.74 MB/sec), 9.8 ms avg latency, …`.
fn produced(output: &str) -> Option<Throughput> {
    let line = output.lines().rfind(|line| line.contains("99.9th"))?;
    let (records, rest) = line.split_once(" records sent, ")?;
    let (per_second, _) = rest.split_once(" records/sec")?;
    Some(Throughput { records: records.trim().parse().ok()?, per_second: number(per_second)? })
}

/// The line `start, end, MB, MB/s, records, records/s, rebalance ms, fetch ms, MB/s of fetching, records/s of it`.
fn consumed(output: &str) -> Option<Throughput> {
    let line = output.lines().rfind(|line| line.matches(", ").count() == 9)?;
    let fields: Vec<_> = line.split(", ").collect();
    Some(Throughput { records: fields[4].trim().parse().ok()?, per_second: number(fields[9])? })
}

/// A number as Java formats it in the C or an English locale.
fn number(text: &str) -> Option<f64> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tools_are_understood() {
        let output = "60000 records sent, 11998.4 records/sec (11.72 MB/sec), 500.1 ms avg latency, 700.0 ms max latency.\n\
             100000 records sent, 24937.655860 records/sec (24.35 MB/sec), 400.00 ms avg latency, 700.00 ms max latency, \
             390 ms 50th, 600 ms 95th, 690 ms 99th, 699 ms 99.9th.\n";
        assert_eq!(produced(output), Some(Throughput { records: 100_000, per_second: 24_937.655_86 }));
        let output = "2025-01-01 10:00:00:000, 2025-01-01 10:00:02:500, 97.6562, 39.0625, 100000, 40000.0000, 500, 2000, \
             48.8281, 50000.0000\n";
        assert_eq!(consumed(output), Some(Throughput { records: 100_000, per_second: 50_000.0 }));
    }
}
