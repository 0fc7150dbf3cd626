//! Starts a cluster of three racks and a gateway in front of it, and waits for the end of standard input.
use std::io::Read;
use harness::{kafka::Cluster, turnout::Gateway};
fn main() -> anyhow::Result<()> {
    let cluster = Cluster::builder().brokers(3).racks(&["az1","az2","az3"]).heap_mb(256).start()?;
    let gateway = Gateway::before(&cluster).start()?;
    println!("direct {}", cluster.bootstrap());
    println!("gateway {}", gateway.bootstrap());
    println!("{}", gateway.process().pid());
    let mut line = String::new();
    std::io::stdin().read_to_string(&mut line)?;
    Ok(())
}
