//! Which frames the kernel may pass on: the router's own plans, put into the table that its programs read. A frame that
//! the daemon would pass on without a look at it or its answer is the kernel's; so are Produce requests whose answers are
//! clean (`proxy_common::splice::answers`).

use proxy_common::frame::RequestPrefix;
use proxy_common::splice::policy::{API_KEYS, FORWARD, Policy, Rule};

use crate::config::{Limits, Versions};
use crate::kafka::api::{self, ApiSpec};
use crate::kafka::header::Partial;
use crate::kafka::ids::{ApiKey, ApiVersion};
use crate::route::{self, AnswerPlan, Plan};
use crate::splice::mirror::Tap;

/// Largest frame the table can allow ([`Policy::max_frame`]).
const MAX_FRAME: u64 = 1 << 30;

/// The table of a virtual cluster. `routes_reads`: consumers of these connections are led to replicas, so that the daemon
/// looks at their Fetch.
#[must_use]
pub fn policy(versions: Versions, limits: &Limits, routes_reads: bool) -> Policy {
    let max_frame = limits.frame.0.min(MAX_FRAME) as u32;
    let mut policy = Policy { max_frame, in_flight: limits.in_flight, ..Policy::NOTHING };
    for spec in api::all() {
        let place = usize::try_from(spec.key.0).ok().filter(|key| *key < API_KEYS);
        if let (Some(place), Some(rule)) = (place, rule(spec, versions, routes_reads)) {
            policy.rules[place] = rule;
        }
    }
    policy
}

/// Has what somebody wants copies of copied to the mirror.
pub fn mirror(policy: &mut Policy) {
    for spec in api::all().iter().filter(|spec| Tap::wants(spec.key)) {
        policy.mirror(spec.key.0 as u16);
    }
}

/// The versions from the first that passes up to the first that doesn't.
fn rule(spec: &ApiSpec, versions: Versions, routes_reads: bool) -> Option<Rule> {
    let served = spec.served();
    let passes = |version: &i16| passes(spec.key, ApiVersion(*version), versions, routes_reads);
    let mut passing = (served.min.0..=served.max.0).skip_while(|version| !passes(version)).take_while(passes);
    let min = passing.next()?;
    let max = passing.last().unwrap_or(min);
    Some(Rule { flags: FORWARD, min_version: u8::try_from(min).ok()?, max_version: u8::try_from(max).ok()? })
}

/// Whether the daemon would pass the frame on as it is, and the answer as it is or clean. A Produce that gets no answer is
/// no frame of the table's: the walk reads its acks.
fn passes(key: ApiKey, version: ApiVersion, versions: Versions, routes_reads: bool) -> bool {
    let prefix = RequestPrefix { api_key: key.0, api_version: version.0, correlation_id: 0 };
    let plan = route::plan(prefix, || Partial::Done(1), versions, routes_reads);
    matches!(plan, Partial::Done(Plan::Forward { answer: AnswerPlan::Stream | AnswerPlan::CheckProduce }))
}

#[cfg(test)]
mod tests {
    use proxy_common::splice::policy::MIRROR;

    use super::*;
    use crate::config::units::Size;

    const POLICIES: [Versions; 3] = [Versions::Auto, Versions::Conservative, Versions::Full];

    #[test]
    fn a_frame_is_the_kernels_where_the_daemon_would_pass_it_on_and_nowhere_else() {
        for versions in POLICIES {
            for routes_reads in [false, true] {
                let table = policy(versions, &Limits::default(), routes_reads);
                for key in -1..=300i16 {
                    for version in -1..=40i16 {
                        let ruled = table.rule(key as u16, version as u16).is_some();
                        let expected = passes(ApiKey(key), ApiVersion(version), versions, routes_reads);
                        assert_eq!(ruled, expected, "key {key} v{version} {versions:?} routes {routes_reads}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_changes_addresses_versions_or_authentication_is_the_daemons() {
        let table = policy(Versions::Auto, &Limits::default(), false);
        for (key, version) in [(3, 12), (10, 4), (17, 1), (18, 3), (36, 2), (60, 1), (78, 1), (79, 1), (80, 0), (1, 16)]
        {
            assert_eq!(table.rule(key, version), None, "key {key} v{version}");
        }
        for (key, version) in [(0, 3), (0, 13), (1, 4), (1, 15), (8, 2), (11, 5), (12, 4), (22, 0), (26, 5), (68, 0)] {
            assert!(table.rule(key, version).is_some(), "key {key} v{version}");
        }
        let routed = policy(Versions::Auto, &Limits::default(), true);
        assert_eq!((routed.rule(1, 11), routed.rule(1, 15)), (None, None), "Fetch is looked at");
        assert!(routed.rule(1, 10).is_some() && routed.rule(0, 13).is_some());
    }

    #[test]
    fn of_produce_everything_that_passes_is_mirrored_and_nothing_else() {
        let mut table = policy(Versions::Auto, &Limits::default(), false);
        assert_eq!(table.mirrors, 0, "unless somebody asks");
        mirror(&mut table);
        assert_eq!(table.mirrors, 1);
        for key in 0..API_KEYS {
            assert_eq!(table.rules[key].flags & MIRROR != 0, key == 0, "key {key}");
        }
    }

    #[test]
    fn the_limits_are_the_configs_up_to_what_the_table_can_say() {
        let of = |frame, in_flight| {
            let limits = Limits { frame: Size(frame), in_flight, ..Limits::default() };
            let table = policy(Versions::Auto, &limits, false);
            (table.max_frame, table.in_flight)
        };
        assert_eq!(of(1000, 7), (1000, 7));
        assert_eq!(of(u64::MAX, u32::MAX), (1 << 30, u32::MAX));
    }
}
