//! The routes.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;

use super::{ConnectionsPage, Operator, Refusal};
use crate::gateway::racks_report::WhyQuestion;
use crate::metrics::CONTENT_TYPE;

/// Whether a listener takes commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Control {
    /// Look only.
    Refused,
    /// Look and steer.
    Allowed,
}

/// Connections on a page where `limit` isn't given.
const DEFAULT_PAGE: usize = 100;
/// Connections on a page at most.
pub(super) const MAX_PAGE: usize = 1000;

type Shared = Arc<dyn Operator>;

pub(super) fn router(operator: Shared, control: Control) -> Router {
    let routes = Router::new()
        .route("/", get(index))
        .route("/metrics", get(metrics))
        .route("/livez", get(|| async { "alive\n" }))
        .route("/readyz", get(readyz))
        .route("/status", get(status))
        .route("/connections", get(connections))
        .route("/admission", get(admission))
        .route("/admission/refused", get(refused))
        .route("/racks", get(racks))
        .route("/racks/why", get(racks_why));
    let routes = match control {
        Control::Allowed => {
            routes.route("/reload", post(reload)).route("/drain", post(drain)).route("/upgrade", post(upgrade))
        }
        Control::Refused => ["/reload", "/drain", "/upgrade"]
            .into_iter()
            .fold(routes, |routes, path| routes.route(path, post(control_refused))),
    };
    routes.with_state(operator)
}

async fn index() -> &'static str {
    "turnout\n\n\
     /metrics      numbers, OpenMetrics text\n\
     /livez        200 while the process serves\n\
     /readyz       200 when traffic may be sent here, 503 and the reasons when not\n\
     /status       clusters, virtual clusters and listeners, JSON\n\
     /connections  client connections, JSON: ?limit=100&after=ID&virtual_cluster=NAME\n\
     /racks        what was read in which rack, JSON; /racks/why?client=ADDR&topic=NAME: why there\n\
     /admission    who may connect, and what was refused, JSON; /admission/refused?limit=100: the sources\n\n\
     Commands (POST /reload, /drain, /upgrade) are taken on the control socket only.\n"
}

async fn metrics(State(operator): State<Shared>) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], operator.metrics()).into_response()
}

async fn readyz(State(operator): State<Shared>, headers: HeaderMap) -> Response {
    let readiness = operator.ready();
    let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let wants_json = headers
        .get_all(header::ACCEPT)
        .iter()
        .any(|accept| accept.to_str().is_ok_and(|accept| accept.contains("application/json")));
    if wants_json {
        return (status, Json(readiness)).into_response();
    }
    let mut text = String::from(if readiness.ready { "ready\n" } else { "not ready\n" });
    for reason in &readiness.reasons {
        let _ = writeln!(text, "- {reason}");
    }
    (status, text).into_response()
}

async fn status(State(operator): State<Shared>) -> Response {
    Json(operator.status()).into_response()
}

#[derive(Debug, Deserialize)]
struct PageQuery {
    after: Option<u64>,
    limit: Option<usize>,
    virtual_cluster: Option<String>,
}

async fn connections(State(operator): State<Shared>, Query(query): Query<PageQuery>) -> Response {
    Json(page(operator.connections(), &query)).into_response()
}

fn page(mut all: Vec<crate::gateway::status::ConnectionStatus>, query: &PageQuery) -> ConnectionsPage {
    if let Some(name) = &query.virtual_cluster {
        all.retain(|c| c.virtual_cluster == *name);
    }
    let total = all.len();
    if let Some(after) = query.after {
        all.retain(|c| c.id > after);
    }
    all.sort_unstable_by_key(|c| c.id);
    let limit = query.limit.unwrap_or(DEFAULT_PAGE).clamp(1, MAX_PAGE);
    let more = all.len() > limit;
    all.truncate(limit);
    let next = all.last().map(|c| c.id).filter(|_| more);
    ConnectionsPage { total, connections: all, next }
}

async fn reload(State(operator): State<Shared>) -> Response {
    // A task of its own: the future of a handler is dropped when its client goes away, and a reload is whole.
    let reload = tokio::spawn(async move { operator.reload().await });
    match reload.await {
        Ok(Ok(report)) => Json(report).into_response(),
        Ok(Err(error)) => refusal(StatusCode::CONFLICT, error),
        Err(panicked) => refusal(StatusCode::INTERNAL_SERVER_ERROR, format!("the reload failed: {panicked}")),
    }
}

async fn admission(State(operator): State<Shared>) -> Response {
    Json(operator.admission()).into_response()
}

#[derive(Debug, Deserialize)]
struct LimitQuery {
    limit: Option<usize>,
}

async fn refused(State(operator): State<Shared>, Query(query): Query<LimitQuery>) -> Response {
    let limit = query.limit.unwrap_or(DEFAULT_PAGE).clamp(1, MAX_PAGE);
    Json(operator.refused_sources(limit)).into_response()
}

async fn racks(State(operator): State<Shared>) -> Response {
    Json(operator.racks()).into_response()
}

#[derive(Debug, Deserialize)]
struct WhyQuery {
    client: std::net::IpAddr,
    client_id: Option<String>,
    client_rack: Option<String>,
    topic: Option<String>,
    virtual_cluster: Option<String>,
}

async fn racks_why(State(operator): State<Shared>, Query(query): Query<WhyQuery>) -> Response {
    let WhyQuery { client, client_id, client_rack, topic, virtual_cluster } = query;
    let question = WhyQuestion { virtual_cluster, client, client_id, client_rack, topic };
    Json(operator.racks_why(&question)).into_response()
}

async fn upgrade(State(operator): State<Shared>) -> Response {
    // A task of its own, as for a reload.
    let upgrade = tokio::spawn(async move { operator.upgrade().await });
    match upgrade.await {
        Ok(Ok(report)) => Json(report).into_response(),
        Ok(Err(error)) => refusal(StatusCode::CONFLICT, error),
        Err(panicked) => refusal(StatusCode::INTERNAL_SERVER_ERROR, format!("the upgrade failed: {panicked}")),
    }
}

#[derive(Debug, Deserialize)]
struct DrainQuery {
    reason: Option<String>,
}

async fn drain(State(operator): State<Shared>, Query(query): Query<DrainQuery>) -> Response {
    operator.drain(query.reason.as_deref().unwrap_or("asked for over the control socket"));
    (StatusCode::ACCEPTED, Json(operator.ready())).into_response()
}

async fn control_refused() -> Response {
    let error = "commands are taken on the control socket only: use `turnout reload`, `drain` or `upgrade` on the host";
    refusal(StatusCode::FORBIDDEN, error.to_owned())
}

fn refusal(status: StatusCode, error: String) -> Response {
    (status, Json(Refusal { error })).into_response()
}
