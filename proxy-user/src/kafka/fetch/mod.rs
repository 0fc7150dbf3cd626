//! Fetch as replica routing sees it: what a consumer asks for, and answers in which a partition is turned over to
//! another broker (KIP-392).
//!
//! The rules of what clients accept are in [`answer`]. Versions 11 to 15 are read: below, there is no rack and no
//! preferred replica; above, answers end with addresses, which is [`super::hints`]' and [`super::rewrite`]'s part.

pub mod answer;
mod made;
pub mod request;
#[cfg(test)]
mod tests;

use super::api;
use super::ids::{ApiKey, ApiVersion, TopicId};

pub use answer::AnswerPatcher;
pub use made::{Word, api_versions_answer, made_answer};
pub use request::FetchRequest;

/// The first version with a rack, and with a preferred replica in the answer.
const FIRST: ApiVersion = ApiVersion(11);
/// The last version without addresses in the answer.
const LAST: ApiVersion = ApiVersion(15);
/// From here on topics are named by their id (KIP-516).
const WITH_TOPIC_IDS: ApiVersion = ApiVersion(13);

/// FETCH_SESSION_ID_NOT_FOUND: the client begins a new session, in which it names all of its partitions.
const NO_SUCH_SESSION: i16 = 70;

/// Whether Fetch of this version can be routed.
#[must_use]
pub fn is_routable(version: ApiVersion) -> bool {
    (FIRST..=LAST).contains(&version)
}

fn is_flexible(version: ApiVersion) -> bool {
    api::spec(ApiKey::FETCH).is_some_and(|spec| spec.is_flexible(version))
}

/// A topic as a frame names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Topic<'a> {
    /// Up to v12.
    Name(&'a str),
    /// From v13 on.
    Id(TopicId),
}
