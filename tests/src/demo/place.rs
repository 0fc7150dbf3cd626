//! Where the demo takes place: on hosts of its own where it may, else on loopback.

use std::sync::Arc;

use ::turnout::kernel::{Finding, findings};

use crate::netns::{Netns, World};
use crate::{is_root, turnout};

/// Why loopback shows less.
const ON_LOOPBACK: &str = "Everything is on loopback, where the kernel passes nothing on";

/// What `turnout doctor` looks at that decides whether the kernel may pass anything on.
const DECIDES: [&str; 6] = ["kernel", "kernel programs", "BTF", "privileges", "loading", "tcx"];

/// A client host, a gateway host and a host for each broker; or none.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    world: Option<Arc<World>>,
}

impl Place {
    /// Makes hosts, or says in a line why it does not.
    pub(crate) fn find(wants_loopback: bool, brokers: u8) -> Self {
        let world = match obstacle(wants_loopback, is_root(), findings) {
            Some(why) => Err(why),
            // As in a container without CAP_NET_ADMIN.
            None => World::builder().clients(1).brokers(brokers).build().map_err(|error| one_line(&error)),
        };
        match world {
            Ok(world) => Self { world: Some(Arc::new(world)) },
            Err(why) => Self::loopback(&why),
        }
    }

    /// Loopback, for this reason.
    pub(crate) fn loopback(why: &str) -> Self {
        println!("{ON_LOOPBACK}: {why}.");
        Self { world: None }
    }

    /// The hosts, if there are any.
    pub(crate) fn world(&self) -> Option<&Arc<World>> {
        self.world.as_ref()
    }

    /// Where clients are.
    pub(crate) fn client(&self) -> Option<&Netns> {
        self.world.as_ref().map(|world| &world.client(0).netns)
    }

    /// What comes before a client's command in a terminal of this machine.
    pub(crate) fn prefix(&self) -> String {
        self.client().map(|netns| format!("ip netns exec {} ", netns.name())).unwrap_or_default()
    }

    /// A gateway that is made to fit: on its host, with the fast path where that can do something.
    pub(crate) fn settle(&self, gateway: turnout::GatewayBuilder) -> turnout::GatewayBuilder {
        match &self.world {
            Some(world) => gateway.world(world).fast_path("auto"),
            None => gateway,
        }
    }

    /// Says who is where.
    pub(crate) fn introduce(&self) {
        let Some(world) = &self.world else { return };
        let brokers: Vec<_> = world.brokers().iter().map(|host| host.v4.to_string()).collect();
        println!(
            "Client, gateway and brokers have hosts of their own (network namespaces {}):\n  \
             client {} -- {} gateway {} -- brokers {}\n\
             \"direct\" is the client's own connection to a broker: the gateway host routes it, as plain IP packets.",
            world.names().replace(',', " "),
            world.client(0).v4,
            world.gateway_seen_by(0),
            world.gateway().v4,
            brokers.join(", "),
        );
    }
}

/// Why there can't be hosts, or shan't.
fn obstacle(wants_loopback: bool, is_root: bool, findings: impl FnOnce() -> Vec<Finding>) -> Option<String> {
    if wants_loopback {
        return Some("as asked for".into());
    }
    if !is_root {
        return Some("network namespaces need root".into());
    }
    let against = findings().into_iter().find(|finding| !finding.ok && DECIDES.contains(&finding.topic));
    against.map(|finding| finding.sentence.trim_end_matches('.').to_owned())
}

fn one_line(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    let words: Vec<_> = text.split_whitespace().collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_and_a_wish_comes_first() {
        let finding = |topic, ok| Finding { topic, ok, sentence: format!("About {topic}."), remedy: None };
        let good = || vec![finding("kernel", true), finding("open files", false), finding("XDP", false)];
        let bad = || vec![finding("kernel", true), finding("kernel programs", false), finding("tcx", false)];
        assert_eq!(obstacle(false, true, good), None);
        assert_eq!(obstacle(true, false, bad).unwrap(), "as asked for");
        assert!(obstacle(false, false, bad).unwrap().contains("root"));
        assert_eq!(obstacle(false, true, bad).unwrap(), "About kernel programs");
    }

    #[test]
    fn what_decides_is_what_doctor_looks_at() {
        let topics: Vec<_> = findings().into_iter().map(|finding| finding.topic).collect();
        // The trial is only made by who may load programs.
        let named = DECIDES.iter().filter(|topic| **topic != "loading");
        assert!(named.clone().all(|topic| topics.contains(topic)), "{topics:?}");
    }

    #[test]
    fn a_reason_fits_in_a_line() {
        let error = anyhow::anyhow!("exit code 1\n\nOperation not permitted\n").context("ip netns add x");
        assert_eq!(one_line(&error), "ip netns add x: exit code 1 Operation not permitted");
    }

    #[test]
    fn commands_on_loopback_need_no_prefix() {
        assert_eq!(Place { world: None }.prefix(), "");
    }
}
