//! What the version table and the route say, in the words of `explain`.

use proxy_common::frame::RequestPrefix;

use super::explain::{ApiFacts, Facts, Plan, Way};
use crate::config::Versions;
use crate::kafka::api::{self, ApiSpec};
use crate::kafka::header::Partial;
use crate::kafka::ids::{ApiKey, ApiVersion};
use crate::kafka::versions;
use crate::route::{self, AnswerPlan};

/// What the version table and the route say, for `explain`.
pub(super) struct Table;

impl Facts for Table {
    fn api(&self, name_or_number: &str) -> Option<ApiFacts> {
        let number = name_or_number.parse().ok().map(ApiKey);
        let asked = |spec: &&ApiSpec| Some(spec.key) == number || spec.name.eq_ignore_ascii_case(name_or_number);
        let spec = api::all().iter().find(asked)?;
        Some(ApiFacts { key: spec.key, name: spec.name.to_owned(), min: spec.served().min, max: spec.versions.max })
    }

    fn cap(&self, policy: Versions, api: ApiKey) -> Option<ApiVersion> {
        versions::offered(policy, std::iter::empty()).0.get(&api).map(|range| range.max)
    }

    fn plan(&self, policy: Versions, api: ApiKey, version: ApiVersion) -> Plan {
        let prefix = RequestPrefix { api_key: api.0, api_version: version.0, correlation_id: 0 };
        // Whether a Produce wants an answer is the request's own business: `explain` speaks of one that does.
        match route::plan(prefix, || Partial::Done(1), policy) {
            Partial::Done(route::Plan::Forward { answer }) => {
                Plan { request: Way::Forwarded, answer: answer_way(answer) }
            }
            Partial::Done(route::Plan::Rewrite { answer }) => {
                Plan { request: Way::Rewritten("it may name the cluster id".to_owned()), answer: answer_way(answer) }
            }
            Partial::Done(route::Plan::Answer(_)) => {
                let why = "error 35 with the range turnout speaks, as the version is newer than that";
                Plan { request: Way::Answered(why.to_owned()), answer: Way::Answered(why.to_owned()) }
            }
            Partial::Done(route::Plan::Close(why)) => closed(why.to_string()),
            Partial::NeedMore => closed("its header is cut short".to_owned()),
            Partial::Malformed(why) => closed(why.to_owned()),
        }
    }
}

fn closed(why: String) -> Plan {
    Plan { request: Way::Closed(why.clone()), answer: Way::Closed(why) }
}

fn answer_way(answer: AnswerPlan) -> Way {
    let rewritten = |why: &str| Way::Rewritten(why.to_owned());
    match answer {
        AnswerPlan::None => Way::Answered("nothing: acks=0 awaits none".to_owned()),
        AnswerPlan::Stream | AnswerPlan::Authenticate | AnswerPlan::Handshake => Way::Forwarded,
        AnswerPlan::CheckProduce => rewritten("only if it holds an error or a hint where a leader is (KIP-951)"),
        AnswerPlan::FetchHints => rewritten("it may hold hints where leaders are (KIP-951)"),
        AnswerPlan::FetchScrub => rewritten("hints where leaders are (KIP-951) are taken out as it streams"),
        AnswerPlan::ApiVersions => rewritten("it lists what clients of this virtual cluster are offered"),
        AnswerPlan::Rewrite => rewritten("it may hold brokers' addresses or the cluster id"),
    }
}
