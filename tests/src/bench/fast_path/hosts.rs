//! The gateway host and what runs on it, and the ways through it.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::links::{give_queues, retransmitted};
use super::userspace::Userspace;
use crate::bench::haproxy::Haproxy;
use crate::bench::subject::{FAST, HAPROXY, ROUTED, Subject, USERSPACE};
use crate::netns::{Netns, World};
use crate::raw::blocking::dial;
use crate::turnout::Gateway;
use crate::wait;

const SOON: Duration = Duration::from_secs(30);
const FIRST_HAPROXY: u16 = 9300;

/// A way from a client host to the brokers.
pub(super) struct Way<'a> {
    /// Its column, and the brokers' addresses on it.
    pub(super) subject: Subject,
    /// Where clients are.
    pub(super) client: &'a Netns,
    /// Where brokers are.
    pub(super) brokers: Vec<&'a Netns>,
    /// The gateway, where the fast path is expected.
    pub(super) fast: Option<&'a Gateway>,
}

/// Bytes that a gateway has passed on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passed {
    all: f64,
    kernel: f64,
}

impl Passed {
    fn read(gateway: &Gateway) -> Result<Self> {
        let metrics = gateway.metrics()?;
        let sum = |names: [&str; 2]| names.map(|name| metrics.sum(name, &[])).iter().sum();
        Ok(Self {
            all: sum(["turnout_request_bytes_total", "turnout_answer_bytes_total"]),
            kernel: sum(["turnout_spliced_request_bytes_total", "turnout_spliced_answer_bytes_total"]),
        })
    }
}

impl Way<'_> {
    /// What the fast path's gateway has passed on so far; `None` on other ways.
    pub(super) fn passed(&self) -> Result<Option<Passed>> {
        self.fast.map(Passed::read).transpose()
    }

    /// TCP segments that clients and brokers have sent again so far.
    pub(super) fn retransmitted(&self) -> Result<u64> {
        let ends: Vec<_> = [self.client].into_iter().chain(self.brokers.iter().copied()).collect();
        retransmitted(&ends)
    }

    /// Share of the bytes since then that passed in the kernel, in per cent.
    pub(super) fn kernel_share(&self, since: Option<Passed>) -> Result<Option<f64>> {
        let Some((now, then)) = self.passed()?.zip(since) else { return Ok(None) };
        let all = now.all - then.all;
        Ok(Some(if all > 0.0 { (now.kernel - then.kernel) / all * 100.0 } else { 0.0 }))
    }

    /// Why one of these connections is not spliced, if it isn't after `patience`; `None` on other ways.
    pub(super) fn why_not_spliced(&self, streams: &[TcpStream], patience: Duration) -> Result<Option<String>> {
        let Some(gateway) = self.fast else { return Ok(None) };
        let own: Vec<String> =
            streams.iter().map(|stream| Ok(stream.local_addr()?.to_string())).collect::<Result<_>>()?;
        let mut last = None;
        let spliced = wait::until("spliced connections", patience, || {
            let known = gateway.connections()?;
            let (spliced, others): (Vec<_>, Vec<_>) =
                known.into_iter().filter(|c| own.contains(&c.client)).partition(|c| c.splice.is_some());
            last = others.into_iter().map(|connection| connection.path).next();
            ensure!(spliced.len() == own.len(), "{} of {} are", spliced.len(), own.len());
            Ok(())
        });
        Ok(spliced.err().map(|error| last.unwrap_or_else(|| format!("{error:#}"))))
    }
}

/// Everything on the gateway host; ends in the order of its fields.
pub(super) struct Hosts {
    fast: Gateway,
    userspace: Userspace,
    haproxy: Haproxy,
    brokers: Vec<SocketAddr>,
    world: Arc<World>,
}

impl Hosts {
    /// Where clients dial haproxy for the broker at `index`.
    pub(super) fn haproxy_front(world: &World, index: u16) -> SocketAddr {
        SocketAddr::from((world.gateway_seen_by(0), FIRST_HAPROXY + index))
    }

    /// Starts all of it before brokers with the node ids from 1. haproxy dials them at `backs`.
    ///
    /// # Errors
    /// One of them does not start, or has no port for each broker in time.
    pub(super) fn start(world: &Arc<World>, brokers: &[SocketAddr], backs: &[SocketAddr]) -> Result<Self> {
        give_queues(world)?;
        let bootstrap = joined(brokers);
        let fast = Gateway::before_addresses(&bootstrap, 1)
            .world(world)
            .fast_path("required")
            .log_level("warn")
            // No rules: packets pay for the program alone.
            .top_line("admission: {}")
            .start()?;
        let userspace = Userspace::start(world, &bootstrap)?;
        let fronts = (0u16..).map(|index| Self::haproxy_front(world, index));
        let routes: Vec<_> = fronts.zip(backs.iter().copied()).collect();
        let haproxy = Haproxy::start_in(Some(&world.gateway().netns), &routes)?;
        let hosts = Self { fast, userspace, haproxy, brokers: brokers.to_vec(), world: Arc::clone(world) };
        for way in hosts.ways()? {
            for address in way.subject.addresses()? {
                let name = &way.subject.name;
                wait::until(&format!("{name} at {address}"), SOON, || {
                    dial(address, Some(way.client), Duration::from_secs(1))
                })
                .with_context(|| hosts.userspace.log_tail())?;
            }
        }
        Ok(hosts)
    }

    /// The ways through it.
    ///
    /// # Errors
    /// There are more brokers than ports.
    pub(super) fn ways(&self) -> Result<Vec<Way<'_>>> {
        let indices = || 0..self.brokers.len() as u16;
        let fast: Vec<_> = indices().map(|index| self.fast.broker_addr(i32::from(index) + 1)).collect::<Result<_>>()?;
        let userspace: Vec<_> = indices().map(|index| self.userspace.broker(index)).collect();
        let haproxy: Vec<_> = indices().map(|index| Self::haproxy_front(&self.world, index)).collect();
        let client = &self.world.client(0).netns;
        let hosts: Vec<_> = self.world.brokers().iter().map(|host| &host.netns).collect();
        let way = |name, addresses: &[SocketAddr], pid| Way {
            subject: Subject::new(name, &joined(addresses), pid),
            client,
            brokers: hosts.clone(),
            fast: None,
        };
        Ok(vec![
            way(ROUTED, &self.brokers, None),
            Way { fast: Some(&self.fast), ..way(FAST, &fast, Some(self.fast.process().pid())) },
            way(USERSPACE, &userspace, Some(self.userspace.pid())),
            way(HAPROXY, &haproxy, Some(self.haproxy.pid())),
        ])
    }

    /// What the gateway says about its kernel programs.
    ///
    /// # Errors
    /// It does not answer.
    pub(super) fn words(&self) -> Result<String> {
        Ok(self.fast.status()?.fast_path)
    }

    /// What it logged that should not have been, if anything.
    pub(super) fn trouble(&self) -> Option<String> {
        self.fast.check_quiet(&[]).err().map(|error| format!("fast path stage: {error:#}"))
    }

    /// haproxy's version.
    pub(super) fn haproxy_version(&self) -> &str {
        self.haproxy.version()
    }
}

/// A broker's address on the host at `index`.
pub(super) fn broker(world: &World, index: usize, port: u16) -> SocketAddr {
    let host: Ipv4Addr = world.brokers()[index].v4;
    SocketAddr::from((host, port))
}

fn joined(addresses: &[SocketAddr]) -> String {
    let addresses: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
    addresses.join(",")
}
