//! A client is never told an address that is not the gateway's.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::mock::{Mock, Reply};
use harness::raw::{Client, answer};
use harness::turnout::Gateway;
use harness::wait;
use kafka_protocol::protocol::StrBytes;

use crate::support::*;

/// Host of the brokers as they name themselves; the gateway can't dial it.
const INTERNAL: &str = "kafka.internal";

fn told(list: &[(i32, u16)]) -> Told {
    let told = Told::default();
    told.set(&list.iter().map(|(id, port)| (*id, INTERNAL, *port)).collect::<Vec<_>>());
    told
}

/// A mock that tells clients and gateway of these brokers.
fn telling(told: &Told) -> harness::mock::MockBuilder {
    let told = told.clone();
    Mock::builder().script(move |request| match request.frame.api_key {
        METADATA => Reply::Bytes(told.answer(&request.frame)),
        HEARTBEAT => Reply::Bytes(heartbeat_answer(&request.frame)),
        _ => Reply::Default,
    })
}

/// What Metadata v1 tells: (id, host, port).
async fn brokers(client: &mut Client) -> Result<Vec<(i32, String, i32)>> {
    let metadata = client.call(1, &m::MetadataRequest::default()).await?;
    Ok(metadata.brokers.iter().map(|b| (b.node_id.0, b.host.to_string(), b.port)).collect())
}

fn virtual_broker(gateway: &Gateway, id: i32) -> Result<(i32, String, i32)> {
    let address = gateway.broker_addr(id)?;
    Ok((id, address.ip().to_string(), address.port().into()))
}

// grepplabs/kafka-proxy#203, #182: every version of Metadata tells the gateway's addresses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_of_every_version_tells_the_gateways_addresses() -> Result<()> {
    let bench = plain_bench(telling(&told(&[(1, 9092), (2, 9093), (3, 9094)]))).await?;
    let mut client = bench.client().await?;
    for version in 0..=13 {
        let request = m::MetadataRequest::default().with_topics((version >= 1).then(Vec::new).or(Some(Vec::new())));
        let metadata = client.call(version, &request).await?;
        let told: Vec<_> = metadata.brokers.iter().map(|b| (b.node_id.0, b.host.to_string(), b.port)).collect();
        let expected: Vec<_> = [1, 2, 3].iter().map(|id| virtual_broker(&bench.gateway, *id)).collect::<Result<_>>()?;
        assert_eq!(told, expected, "v{version}");
    }
    Ok(())
}

// grepplabs/kafka-proxy#223 (what has to be rewritten); from v4 on the answer is an array.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn find_coordinator_of_every_version_tells_the_gateways_address() -> Result<()> {
    use m::find_coordinator_response::Coordinator;
    let told = told(&[(1, 9092), (2, 9093)]);
    let topology = told.clone();
    let mock = Mock::builder().script(move |request| {
        let (version, id) = (request.frame.api_version, request.frame.correlation_id);
        match request.frame.api_key {
            METADATA => Reply::Bytes(topology.answer(&request.frame)),
            10 => {
                let host = StrBytes::from_static_str(INTERNAL);
                let coordinator = |key: &'static str, node: i32, port: i32| {
                    Coordinator::default()
                        .with_key(StrBytes::from_static_str(key))
                        .with_node_id(node.into())
                        .with_host(host.clone())
                        .with_port(port)
                };
                // The second has no coordinator yet, the third one without a port.
                let body = if version < 4 {
                    m::FindCoordinatorResponse::default().with_node_id(2.into()).with_host(host).with_port(9093)
                } else {
                    let none = Coordinator::default()
                        .with_key(StrBytes::from_static_str("none"))
                        .with_node_id((-1).into())
                        .with_port(-1)
                        .with_error_code(15);
                    let all = vec![coordinator("a", 2, 9093), none, coordinator("far", 99, 9999)];
                    m::FindCoordinatorResponse::default().with_coordinators(all)
                };
                match answer::<m::FindCoordinatorRequest>(version, id, &body) {
                    Ok(bytes) => Reply::Bytes(bytes),
                    Err(_) => Reply::Reset,
                }
            }
            _ => Reply::Default,
        }
    });
    let bench = plain_bench(mock).await?;
    let mut client = bench.client().await?;
    let (_, host, port) = virtual_broker(&bench.gateway, 2)?;
    for version in 0..=6 {
        let request = match version {
            0..=3 => m::FindCoordinatorRequest::default().with_key(StrBytes::from_static_str("a")),
            _ => m::FindCoordinatorRequest::default().with_coordinator_keys(vec![StrBytes::from_static_str("a")]),
        };
        let body = client.call(version, &request).await?;
        if version < 4 {
            assert_eq!((body.node_id.0, body.host.to_string(), body.port, body.error_code), (2, host.clone(), port, 0));
            continue;
        }
        let seen: Vec<_> =
            body.coordinators.iter().map(|c| (c.node_id.0, c.host.to_string(), c.port, c.error_code)).collect();
        assert_eq!(seen[0], (2, host.clone(), port, 0), "v{version}");
        assert_eq!(seen[1], (-1, String::new(), -1, 15), "v{version}");
        // COORDINATOR_NOT_AVAILABLE: clients look again.
        assert_eq!((seen[2].3, seen[2].1.contains(INTERNAL)), (15, false), "v{version}: {:?}", seen[2]);
    }
    Ok(())
}

// KIP-700: the Admin client of Java takes its brokers from DescribeCluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn describe_cluster_of_every_version_tells_the_gateways_addresses() -> Result<()> {
    use m::describe_cluster_response::DescribeClusterBroker;
    let told = told(&[(1, 9092)]);
    let mock = Mock::builder().script(move |request| {
        let (version, id) = (request.frame.api_version, request.frame.correlation_id);
        match request.frame.api_key {
            METADATA => Reply::Bytes(told.answer(&request.frame)),
            60 => {
                let broker = |id: i32| {
                    DescribeClusterBroker::default()
                        .with_broker_id(id.into())
                        .with_host(StrBytes::from_static_str(INTERNAL))
                        .with_port(9092)
                        .with_is_fenced(version >= 2 && id == 2)
                };
                let body = m::DescribeClusterResponse::default()
                    .with_cluster_id(StrBytes::from_static_str("mock-cluster"))
                    .with_controller_id(1.into())
                    .with_brokers(vec![broker(1), broker(2)]);
                match answer::<m::DescribeClusterRequest>(version, id, &body) {
                    Ok(bytes) => Reply::Bytes(bytes),
                    Err(_) => Reply::Reset,
                }
            }
            _ => Reply::Default,
        }
    });
    let bench = bench(mock, |gateway| gateway.virtual_line("cluster_id: virtual-id")).await?;
    let mut client = bench.client().await?;
    for version in 0..=2 {
        let body = client.call(version, &m::DescribeClusterRequest::default()).await?;
        let seen: Vec<_> = body.brokers.iter().map(|b| (b.broker_id.0, b.host.to_string(), b.port)).collect();
        assert_eq!(seen, [virtual_broker(&bench.gateway, 1)?, virtual_broker(&bench.gateway, 2)?], "v{version}");
        assert_eq!(body.cluster_id.as_str(), "virtual-id");
    }
    Ok(())
}

// A stable cluster id, whatever cluster is behind: KIP-1242 and tools compare it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_see_the_configured_cluster_id() -> Result<()> {
    let bench = bench(heartbeats(), |gateway| gateway.virtual_line("cluster_id: orders-v1")).await?;
    let mut client = bench.client().await?;
    for version in [2, 7, 12, 13] {
        let metadata = client.call(version, &m::MetadataRequest::default()).await?;
        assert_eq!(metadata.cluster_id.as_deref(), Some("orders-v1"), "v{version}");
    }
    assert_eq!(bench.gateway.status()?.clusters["real"].cluster_id.as_deref(), Some("mock-cluster"));
    Ok(())
}

// kroxylicious/kroxylicious#1045 ("Cannot generate broker address for node id 1", and the client hangs): a broker
// outside the ports is left out, the others work, the operator is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_outside_the_ports_is_left_out_and_reported() -> Result<()> {
    let told = told(&[(1, 9092), (2, 9093), (4, 9094), (0, 9095)]);
    let bench = bench(telling(&told), |gateway| gateway.broker_count(3)).await?;
    assert_eq!(
        brokers(&mut bench.client().await?).await?,
        [virtual_broker(&bench.gateway, 1)?, virtual_broker(&bench.gateway, 2)?]
    );
    let status = bench.gateway.status()?.virtual_clusters["virtual"].clone();
    assert_eq!(status.unreachable_brokers, [0, 4]);
    assert!(status.degraded.iter().any(|why| why.contains("broker_ports.count")), "{:?}", status.degraded);
    assert_eq!(bench.gateway.metrics()?.sum("turnout_unreachable_brokers", &[]), 2.0);
    bench.gateway.wait_log(&["WARN", "broker 4 is outside broker_ports"], SOON)?;
    Ok(())
}

// kroxylicious/kroxylicious#902, #1210: node ids with gaps and a high start keep ports that depend on the id alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_ids_with_gaps_keep_their_ports() -> Result<()> {
    let mock = Mock::builder().brokers(&[100, 107, 119]).script(|request| match request.frame.api_key {
        HEARTBEAT => Reply::Bytes(heartbeat_answer(&request.frame)),
        _ => Reply::Default,
    });
    let mock = mock.start().await?;
    let gateway = Gateway::before_addresses(&mock.bootstrap(), 100).start()?;
    let first = gateway.broker_addr(100)?.port();
    let told = brokers(&mut Client::connect(gateway.bootstrap_addr()).await?).await?;
    let ports: Vec<_> = told.iter().map(|(id, _, port)| (*id, *port)).collect();
    assert_eq!(ports, [(100, i32::from(first)), (107, i32::from(first) + 7), (119, i32::from(first) + 19)]);
    for id in [100, 107, 119] {
        let mut client = dial(gateway.broker_addr(id)?).await?;
        client.call(0, &heartbeat()).await?;
        let last = mock.received().into_iter().rfind(|r| r.frame.api_key == HEARTBEAT);
        assert_eq!(last.map(|r| r.node_id), Some(id));
    }
    assert!(Client::connect(gateway.broker_addr(101)?).await.is_err(), "no broker 101, no port");
    Ok(())
}

// linkedin/kafka-monitor#345, grepplabs/kafka-proxy#191: a broker that comes back at another address is found there,
// behind the same port, and connections to the old one end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_moves_is_followed_behind_the_same_port() -> Result<()> {
    let old = heartbeats().brokers(&[2]).start().await?;
    let new = heartbeats().brokers(&[2]).start().await?;
    let told = Told::default();
    let bootstrap = telling(&told).start().await?;
    let (at_old, at_new) = (old.address(2)?.port(), new.address(2)?.port());
    told.set(&[(1, "127.0.0.1", bootstrap.address(1)?.port()), (2, "127.0.0.1", at_old)]);
    let gateway = Gateway::before_addresses(&bootstrap.bootstrap(), 1).start()?;
    let mut before = dial(gateway.broker_addr(2)?).await?;
    before.call(0, &heartbeat()).await?;
    assert_eq!(heartbeats_at(&old), 1);

    told.set(&[(1, "127.0.0.1", bootstrap.address(1)?.port()), (2, "127.0.0.1", at_new)]);
    // Any client's Metadata tells the gateway too.
    brokers(&mut Client::connect(gateway.bootstrap_addr()).await?).await?;
    ends_within(&mut before, SOON).await.context("the connection to the old address ends")?;
    wait_closed(&gateway, "drained", 1)?;
    let mut after = dial(gateway.broker_addr(2)?).await?;
    after.call(0, &heartbeat()).await?;
    assert_eq!((heartbeats_at(&old), heartbeats_at(&new)), (1, 1));
    Ok(())
}

fn heartbeats_at(mock: &Mock) -> usize {
    mock.received().iter().filter(|r| r.frame.api_key == HEARTBEAT).count()
}

// kroxylicious/kroxylicious#271: a broker that joins gets its port, without a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_joins_gets_its_port() -> Result<()> {
    let second = heartbeats().brokers(&[2]).start().await?;
    let told = Told::default();
    let bootstrap = telling(&told).start().await?;
    let first = (1, "127.0.0.1", bootstrap.address(1)?.port());
    told.set(&[first]);
    let gateway = Gateway::before_addresses(&bootstrap.bootstrap(), 1).start()?;
    assert!(Client::connect(gateway.broker_addr(2)?).await.is_err());
    told.set(&[first, (2, "127.0.0.1", second.address(2)?.port())]);
    let mut client = Client::connect(gateway.bootstrap_addr()).await?;
    assert_eq!(brokers(&mut client).await?.len(), 2);
    // The client dials at once what it was just told.
    let mut client = dial(gateway.broker_addr(2)?).await?;
    assert_eq!(client.call(0, &heartbeat()).await?.error_code, 0);
    Ok(())
}

// A broker that is down leaves Metadata; its port stays, so that clients which still know it are closed and not
// refused or, worse, answered by another broker; and when it is back, so is the way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_port_of_an_absent_broker_stays_its_own() -> Result<()> {
    let second = heartbeats().brokers(&[2]).start().await?;
    let told = Told::default();
    let bootstrap = telling(&told).start().await?;
    let all = [(1, "127.0.0.1", bootstrap.address(1)?.port()), (2, "127.0.0.1", second.address(2)?.port())];
    told.set(&all);
    let gateway = Gateway::before_addresses(&bootstrap.bootstrap(), 1).start()?;
    let mut client = dial(gateway.broker_addr(2)?).await?;
    client.call(0, &heartbeat()).await?;

    told.set(&all[..1]);
    drop(second);
    brokers(&mut Client::connect(gateway.bootstrap_addr()).await?).await?;
    wait::until("node 2 to be absent", SOON, || {
        ensure!(!gateway.status()?.clusters["real"].brokers[&2].present);
        Ok(())
    })?;
    let mut client = Client::connect(gateway.broker_addr(2)?).await?;
    client.send(&heartbeat_frame(1)).await?;
    assert!(ends_within(&mut client, PROMPT).await?.is_empty());
    wait_closed(&gateway, "unreachable", 1)?;
    assert_eq!(heartbeats_at(&bootstrap), 0, "another broker answered for it");
    Ok(())
}

// grepplabs/kafka-proxy#114, #203: brokers that advertise 0.0.0.0. It is never dialled and never told; the operator
// is told what to configure, and with address_map it works.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_advertised_as_0_0_0_0_is_reached_by_the_address_map() -> Result<()> {
    let second = heartbeats().brokers(&[2]).start().await?;
    let told = Told::default();
    let bootstrap = telling(&told).start().await?;
    told.set(&[(1, "127.0.0.1", bootstrap.address(1)?.port()), (2, "0.0.0.0", 29_092)]);
    let mapped = format!("address_map: {{\"0.0.0.0:29092\": \"{}\"}}", second.address(2)?);
    let gateway = Gateway::before_addresses(&bootstrap.bootstrap(), 1).cluster_line(&mapped).start()?;
    let told = brokers(&mut Client::connect(gateway.bootstrap_addr()).await?).await?;
    assert_eq!(told[1], virtual_broker(&gateway, 2)?);
    let mut client = dial(gateway.broker_addr(2)?).await?;
    assert_eq!(client.call(0, &heartbeat()).await?.error_code, 0);
    assert_eq!(heartbeats_at(&second), 1);
    Ok(())
}

// twmb/franz-go#611: names that only resolve inside. Mapped, they work; the client sees neither.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_does_not_resolve_here_is_reached_by_the_address_map() -> Result<()> {
    let second = heartbeats().brokers(&[2]).start().await?;
    let told = Told::default();
    let bootstrap = telling(&told).start().await?;
    told.set(&[(1, "127.0.0.1", bootstrap.address(1)?.port()), (2, "KAFKA-2.invalid", 9092)]);
    let mapped = format!("address_map: {{\"kafka-2.invalid:9092\": \"{}\"}}", second.address(2)?);
    let gateway = Gateway::before_addresses(&bootstrap.bootstrap(), 1).cluster_line(&mapped).start()?;
    let mut client = dial(gateway.broker_addr(2)?).await?;
    assert_eq!(client.call(0, &heartbeat()).await?.error_code, 0);
    Ok(())
}

// grepplabs/kafka-proxy#203 ("dial tcp 0.0.0.0:39081: connect: connection refused"): a gateway that listens on every
// address tells each client the one that this client dialled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_is_told_the_address_it_dialled() -> Result<()> {
    let mock = heartbeats().start().await?;
    let gateway = Gateway::before_addresses(&mock.bootstrap(), 1)
        .edit(|text| text.replace("listen: [\"127.0.0.1\"]", "listen: [\"0.0.0.0\", \"::\"]"))
        .start()?;
    let (bootstrap, broker) = (gateway.bootstrap_addr().port(), gateway.broker_addr(1)?.port());
    for host in ["127.0.0.1", "127.0.0.9", "::1"] {
        let ip: std::net::IpAddr = host.parse()?;
        if std::net::TcpListener::bind((ip, 0)).is_err() {
            harness::skip::record("a_client_is_told_the_address_it_dialled", &format!("this host has no {ip}"));
            continue;
        }
        let told = brokers(&mut Client::connect(SocketAddr::new(ip, bootstrap)).await?).await?;
        assert_eq!(told, [(1, host.to_owned(), i32::from(broker))]);
        // And what it is told works.
        let mut client = dial(SocketAddr::new(ip, broker)).await?;
        assert_eq!(client.call(0, &heartbeat()).await?.error_code, 0);
    }
    Ok(())
}

// kroxylicious/kroxylicious#3591: the configured name wins over the dialled address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_is_told_the_advertised_name() -> Result<()> {
    let bench = bench(heartbeats(), |gateway| gateway.virtual_line("advertise: kafka.example.com")).await?;
    let port = bench.gateway.broker_addr(1)?.port().into();
    assert_eq!(brokers(&mut bench.client().await?).await?, [(1, "kafka.example.com".to_owned(), port)]);
    Ok(())
}

// A broker that is still starting lists nobody: that is no news of anybody, and clients are told just that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_metadata_answer_without_brokers_closes_no_port() -> Result<()> {
    let told = Told::default();
    let bootstrap = telling(&told).start().await?;
    told.set(&[(1, "127.0.0.1", bootstrap.address(1)?.port())]);
    let gateway = Gateway::before_addresses(&bootstrap.bootstrap(), 1).start()?;
    let mut client = dial(gateway.broker_addr(1)?).await?;
    told.set(&[]);
    assert_eq!(brokers(&mut Client::connect(gateway.bootstrap_addr()).await?).await?, []);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(client.call(0, &heartbeat()).await?.error_code, 0);
    assert_eq!(dial(gateway.broker_addr(1)?).await?.call(0, &heartbeat()).await?.error_code, 0);
    Ok(())
}
