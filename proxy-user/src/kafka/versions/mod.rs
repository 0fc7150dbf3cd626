//! Which versions clients are offered: ApiVersions answers, read and rewritten.
//!
//! The header of an ApiVersions answer is v0 whatever the version, and an answer to a version that its sender doesn't
//! know has the body of v0 with error 35 and the range of key 18 (KIP-511).

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use proxy_common::frame::RESPONSE_FIXED_LEN;

use super::api::{self, VersionRange};
use super::ids::{ApiKey, ApiVersion, CorrelationId};
use super::wire::{Malformed, Patch, Reader, put_count};
use crate::config::Versions;

/// UNSUPPORTED_VERSION.
pub const UNSUPPORTED_VERSION: i16 = 35;

/// Highest Fetch without endpoints in its answers; v16 to v18 add nothing else that a consumer uses (KIP-951).
const FETCH_WITHOUT_ENDPOINTS: ApiVersion = ApiVersion(15);

/// Highest Produce without endpoints and leader hints in its answers.
const PRODUCE_WITHOUT_ENDPOINTS: ApiVersion = ApiVersion(9);

/// The feature that makes clients count on Produce v12 (KIP-890); level 1 is the first protocol of transactions.
const TRANSACTION_VERSION: &[u8] = b"transaction.version";
const TRANSACTIONS_V1: i16 = 1;

/// What clients of a virtual cluster are offered: the same on all its virtual brokers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offered(pub BTreeMap<ApiKey, VersionRange>);

/// What a broker answered to ApiVersions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrokerVersions {
    /// Kafka's error code: 0, or 35 when the broker doesn't know the request's version.
    pub error: i16,
    /// Every key of the answer, those that turnout doesn't know included.
    pub apis: BTreeMap<ApiKey, VersionRange>,
}

/// Highest version that the policy offers of an API; `None`: as high as audited.
fn cap(policy: Versions, key: ApiKey) -> Option<ApiVersion> {
    match (policy, key) {
        (Versions::Auto | Versions::Conservative, ApiKey::FETCH) => Some(FETCH_WITHOUT_ENDPOINTS),
        (Versions::Conservative, ApiKey::PRODUCE) => Some(PRODUCE_WITHOUT_ENDPOINTS),
        _ => None,
    }
}

/// The versions of one API that all brokers speak, narrowed by the audited table and the policy. A cap that would
/// leave nothing is not applied: turnout can serve what it caps.
fn narrow(policy: Versions, key: ApiKey, spoken: VersionRange) -> Option<VersionRange> {
    let audited = spoken.intersect(api::spec(key)?.versions)?;
    match cap(policy, key) {
        Some(cap) if cap >= audited.min => Some(VersionRange { min: audited.min, max: audited.max.min(cap) }),
        _ => Some(audited),
    }
}

/// What all `brokers` speak, narrowed by the audited table and the policy. Without any broker: the table and the
/// policy alone.
pub fn offered<'a>(policy: Versions, brokers: impl Iterator<Item = &'a BTreeMap<ApiKey, VersionRange>>) -> Offered {
    let mut common: BTreeMap<_, _> = api::all().iter().map(|spec| (spec.key, spec.versions)).collect();
    for broker in brokers {
        common =
            common.into_iter().filter_map(|(key, range)| Some((key, range.intersect(*broker.get(&key)?)?))).collect();
    }
    Offered(common.into_iter().filter_map(|(key, range)| Some((key, narrow(policy, key, range)?))).collect())
}

/// Reads an ApiVersions answer to a request of `version`; `body` is the whole frame behind the size field.
///
/// # Errors
/// When the bytes don't follow the schema.
pub fn parse_api_versions(version: ApiVersion, body: &[u8]) -> Result<BrokerVersions, Malformed> {
    let (mut r, error) = open(version, body)?;
    let mut apis = BTreeMap::new();
    for _ in 0..r.count()? {
        let (key, range) = read_api(&mut r)?;
        apis.insert(key, range);
    }
    Ok(BrokerVersions { error, apis })
}

/// Rewrites an ApiVersions answer to what is offered, as far as the answering broker speaks it too; `None` for
/// `offered` stands for that broker alone. Under `conservative` the feature `transaction.version` is lowered in the
/// same answer. An answer with error 35 comes back untouched.
///
/// # Errors
/// When the bytes don't follow the schema.
pub fn rewrite_api_versions(
    version: ApiVersion,
    body: &[u8],
    offered: Option<&Offered>,
    policy: Versions,
) -> Result<Bytes, Malformed> {
    let (mut r, error) = open(version, body)?;
    if error == UNSUPPORTED_VERSION {
        return Ok(Bytes::copy_from_slice(body));
    }
    let mut patch = Patch::new(body);
    rewrite_apis(&mut r, &mut patch, |key, spoken| {
        let shown = narrow(policy, key, spoken)?;
        match offered {
            Some(Offered(offered)) => offered.get(&key)?.intersect(shown),
            None => Some(shown),
        }
    })?;
    if version >= ApiVersion(1) {
        r.i32()?;
    }
    for _ in 0..r.tag_count()? {
        let (number, data) = r.tag()?;
        if policy == Versions::Conservative && matches!(number, SUPPORTED_FEATURES | FINALIZED_FEATURES) {
            lower_transaction_version(body, data, &mut patch)?;
        }
    }
    r.end()?;
    Ok(patch.finish().map_or_else(|| Bytes::copy_from_slice(body), Bytes::from))
}

/// Tagged fields of an ApiVersions answer.
const SUPPORTED_FEATURES: u32 = 0;
const FINALIZED_FEATURES: u32 = 2;

/// Behind header and error code. The form of an error 35 is that of v0.
fn open(version: ApiVersion, body: &[u8]) -> Result<(Reader<'_>, i16), Malformed> {
    let error = body[RESPONSE_FIXED_LEN.min(body.len())..].first_chunk().map(|b| i16::from_be_bytes(*b));
    let flexible = error != Some(UNSUPPORTED_VERSION)
        && api::spec(ApiKey::API_VERSIONS).is_some_and(|spec| spec.is_flexible(version));
    let mut r = Reader::new(body, flexible);
    r.take(RESPONSE_FIXED_LEN)?;
    let error = r.i16()?;
    Ok((r, error))
}

fn read_api(r: &mut Reader<'_>) -> Result<(ApiKey, VersionRange), Malformed> {
    let key = ApiKey(r.i16()?);
    let (min, max) = (ApiVersion(r.i16()?), ApiVersion(r.i16()?));
    r.skip_tags()?;
    Ok((key, VersionRange { min, max }))
}

fn rewrite_apis(
    r: &mut Reader<'_>,
    patch: &mut Patch<'_>,
    show: impl Fn(ApiKey, VersionRange) -> Option<VersionRange>,
) -> Result<(), Malformed> {
    let start = r.at();
    let count = r.count()?;
    let mut ahead = r.clone();
    let mut kept = 0;
    for _ in 0..count {
        let (key, spoken) = read_api(&mut ahead)?;
        kept += u32::from(show(key, spoken).is_some());
    }
    let mut new = Vec::new();
    put_count(&mut new, r.flexible(), kept);
    patch.replace(start..r.at(), &new);
    for _ in 0..count {
        let at = r.at();
        let (key, spoken) = read_api(r)?;
        match show(key, spoken) {
            Some(shown) => {
                patch.replace(at + 2..at + 4, &shown.min.0.to_be_bytes());
                patch.replace(at + 4..at + 6, &shown.max.0.to_be_bytes());
            }
            None => patch.replace(at..r.at(), &[]),
        }
    }
    Ok(())
}

/// Lowers `transaction.version` to the first protocol: both numbers of each entry, wherever they are higher.
fn lower_transaction_version(
    body: &[u8],
    data: std::ops::Range<usize>,
    patch: &mut Patch<'_>,
) -> Result<(), Malformed> {
    let base = data.start;
    let within = |e: Malformed| Malformed { at: e.at + base, ..e };
    let mut r = Reader::new(&body[data], true);
    for _ in 0..r.count().map_err(within)? {
        let name = r.string().map_err(within)?;
        for _ in 0..2 {
            let at = base + r.at();
            let level = r.i16().map_err(within)?;
            if name == TRANSACTION_VERSION && level > TRANSACTIONS_V1 {
                patch.replace(at..at + 2, &TRANSACTIONS_V1.to_be_bytes());
            }
        }
        r.skip_tags().map_err(within)?;
    }
    r.end().map_err(within)
}

/// The answer to an ApiVersions request of a version that isn't served: error 35 in the shape of v0 with the range
/// that is. The whole frame behind the size field.
#[must_use]
pub fn unsupported_api_versions(correlation: CorrelationId, range: VersionRange) -> Bytes {
    let mut body = BytesMut::with_capacity(16);
    body.extend_from_slice(&correlation.0.to_be_bytes());
    body.extend_from_slice(&UNSUPPORTED_VERSION.to_be_bytes());
    body.extend_from_slice(&1i32.to_be_bytes());
    for field in [ApiKey::API_VERSIONS.0, range.min.0, range.max.0] {
        body.extend_from_slice(&field.to_be_bytes());
    }
    body.freeze()
}

/// Name and version of the client's software, which ApiVersions requests carry from v3 on; `None` before, and when
/// the request can't be read. `body` is the whole frame behind the size field.
#[must_use]
pub fn client_software(version: ApiVersion, body: &[u8]) -> Option<(String, String)> {
    if !(ApiVersion(3)..=ApiVersion(4)).contains(&version) {
        return None;
    }
    let mut r = Reader::new(body, true);
    r.skip_request_header().ok()?;
    let name = r.text().ok()?.to_owned();
    let version = r.text().ok()?.to_owned();
    Some((name, version))
}

#[cfg(test)]
mod tests;
