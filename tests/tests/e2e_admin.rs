//! Everything the Java Admin client can ask, and what brokers refuse, is the same through the gateway.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use harness::clients::{Client, ClientError, Consume, Family, Produce, Sasl};
use harness::kafka::{self, Cluster, Listener};
use harness::turnout::Gateway;
use harness::{need_client, need_kafka};
use serde_json::Value;

/// Replaces the gateway's addresses by those of the brokers behind them, wherever a text holds one.
fn undo(value: &mut Value, pairs: &[(String, String)]) {
    match value {
        Value::String(text) => pairs.iter().for_each(|(ours, real)| *text = text.replace(ours, real)),
        Value::Array(items) => items.iter_mut().for_each(|item| undo(item, pairs)),
        Value::Object(fields) => fields.values_mut().for_each(|field| undo(field, pairs)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[test]
fn every_method_of_the_java_admin_client_gives_the_same() -> Result<()> {
    need_kafka!();
    let cluster = kafka::shared()?;
    let gateway = Gateway::before(cluster).start()?;
    let mut client = Client::start(Family::Java)?;
    client.connect(&cluster.bootstrap())?;
    let direct = client.admin_sweep(&kafka::unique("sweep"))?;
    client.connect(&gateway.bootstrap())?;
    let through = client.admin_sweep(&kafka::unique("sweep"))?;

    ensure!(direct.methods.len() > 50, "the sweep covers only {} methods", direct.methods.len());
    assert_eq!(direct.missing, Vec::<String>::new(), "methods of the Admin interface that the sweep does not know");
    let addresses = cluster
        .brokers()
        .map(|broker| Ok((gateway.broker_addr(broker.node_id())?.to_string(), broker.plaintext().to_string())));
    let addresses: Vec<_> = addresses.collect::<Result<_>>()?;
    let mut different = BTreeMap::new();
    for (method, result) in &direct.methods {
        let mut seen = through.methods.get(method).cloned().unwrap_or(Value::Null);
        undo(&mut seen, &addresses);
        if seen != *result {
            different.insert(method, (result, seen));
        }
    }
    assert!(different.is_empty(), "(direct, through the gateway) differ: {different:#?}");
    assert_eq!(through.methods.len(), direct.methods.len());
    let strange: Vec<_> = through.addresses.iter().filter(|address| !gateway.owns(address)).collect();
    assert!(strange.is_empty() && !through.addresses.is_empty(), "the client was told {strange:?}");
    gateway.check_quiet(&[])?;
    client.close()
}

fn sasl(mechanism: &str, user: &str, password: &str) -> Sasl {
    Sasl { mechanism: mechanism.into(), username: user.into(), password: password.into() }
}

/// A gateway before the SASL listeners. It has no credentials of its own: what it knows comes from answers that pass.
fn sasl_gateway(cluster: &Cluster) -> Result<Gateway> {
    Gateway::before(cluster).bootstrap(&cluster.bootstrap_of(Listener::Sasl)?).start()
}

/// What an operation that must fail fails with, as Kafka and the library name it.
fn refusal<T: std::fmt::Debug>(result: Result<T>) -> Result<(Option<String>, String)> {
    let error = result.err().context("what is forbidden was allowed")?;
    let ClientError { class, kafka, .. } = error.downcast()?;
    Ok((kafka, class))
}

/// What `bob`, who may do nothing, is told when he tries.
fn refusals(client: &mut Client, topic: &str) -> Result<BTreeMap<&'static str, (Option<String>, String)>> {
    Ok(BTreeMap::from([
        ("produce", refusal(client.produce(&Produce::to(topic).count(1)))?),
        ("create", refusal(client.create_topic(&format!("{topic}-new"), 1))?),
        ("delete", refusal(client.delete_topics(&[topic]))?),
        ("group", refusal(client.consume(&Consume::from(topic).group("forbidden").count(1).timeout_ms(15_000)))?),
    ]))
}

fn authorization_is_the_brokers(family: Family, mechanism: &str) -> Result<()> {
    let cluster = kafka::shared()?;
    let gateway = sasl_gateway(cluster)?;
    let direct = cluster.bootstrap_of(Listener::Sasl)?;
    let mut client = Client::start(family)?;
    let topic = kafka::unique(&format!("acl-{family}"));

    // alice may do everything, and her login passes whatever the mechanism.
    client.connect_sasl(&gateway.bootstrap(), &sasl(mechanism, "alice", "alice-secret"), None)?;
    cluster.create_topic(&mut client, &topic, 2)?;
    client.produce(&Produce::to(&topic).partitions(2).count(50))?;
    let read = client.consume(&Consume::from(&topic).group(&topic).count(50))?;
    read.check_complete(50)?;
    let told = client.metadata(&[&topic])?.addresses;
    let strange: Vec<_> = told.iter().filter(|address| !gateway.owns(address)).collect();
    assert!(strange.is_empty(), "the client was told {strange:?}");

    let bob = sasl(mechanism, "bob", "bob-secret");
    client.connect_sasl(&direct, &bob, None)?;
    let expected = refusals(&mut client, &topic)?;
    assert_eq!(expected["produce"].0.as_deref(), Some("TOPIC_AUTHORIZATION_FAILED"));
    client.connect_sasl(&gateway.bootstrap(), &bob, None)?;
    assert_eq!(refusals(&mut client, &topic)?, expected);
    client.close()
}

#[test]
fn java_with_plain_is_authorized_as_directly() -> Result<()> {
    need_kafka!();
    authorization_is_the_brokers(Family::Java, "PLAIN")
}

#[test]
fn librdkafka_with_scram_is_authorized_as_directly() -> Result<()> {
    need_kafka!();
    need_client!(Family::Librdkafka);
    authorization_is_the_brokers(Family::Librdkafka, "SCRAM-SHA-512")
}

#[test]
fn the_other_families_are_authorized_as_directly() -> Result<()> {
    need_kafka!();
    harness::full_tier!();
    for (family, mechanism) in [
        (Family::KafkaPython, "SCRAM-SHA-256"),
        (Family::Franz, "SCRAM-SHA-256"),
        (Family::Sarama, "SCRAM-SHA-512"),
        (Family::Kafkajs, "PLAIN"),
    ] {
        need_client!(family);
        authorization_is_the_brokers(family, mechanism).with_context(|| format!("{family} with {mechanism}"))?;
    }
    Ok(())
}

#[test]
fn a_wrong_password_is_refused_as_directly() -> Result<()> {
    need_kafka!();
    let cluster = kafka::shared()?;
    let gateway = sasl_gateway(cluster)?;
    let mut client = Client::start(Family::Java)?;
    for mechanism in ["PLAIN", "SCRAM-SHA-512"] {
        let wrong = sasl(mechanism, "alice", "guessed");
        let told = [cluster.bootstrap_of(Listener::Sasl)?, gateway.bootstrap()].map(|bootstrap| {
            client.connect_sasl(&bootstrap, &wrong, None)?;
            refusal(client.metadata(&[]))
        });
        let [direct, through] = told;
        let direct = direct?;
        assert_eq!(direct.0.as_deref(), Some("SASL_AUTHENTICATION_FAILED"), "{mechanism}");
        assert_eq!(through?, direct, "{mechanism}");
    }
    client.close()
}
