//! A daemon in miniature for the tests of pins: opens the kernel edge at the pin folder of its first argument, on the
//! interface of its second, serves 127.0.0.1:9092 by steering, says `ready`, and stays until its input ends.

use std::io::Read as _;
use std::net::TcpListener;
use std::os::fd::AsFd as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use turnout::gateway::edge::{AdmissionRules, Edge as _, Port, Slot};
use turnout::kernel::KernelEdge;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let pin = args.next().context("no pin folder")?;
    let interface = args.next().context("no interface")?;
    let edge = KernelEdge::open(Path::new(&pin))?;
    edge.set_ports(&[("0.0.0.0:9092".parse()?, Port { slot: Slot(0), open: true })].into())?;
    edge.set_admission(&AdmissionRules::default())?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    edge.set_sockets(&[listener.as_fd()])?;
    edge.set_interfaces(Some(&[interface]));
    println!("ready");
    let mut rest = Vec::new();
    std::io::stdin().read_to_end(&mut rest)?;
    Ok(())
}
