//! Requests and answers whose every byte follows from the request's id, so that the broker knows what must have arrived
//! and the client what must come back.
//!
//! ```text
//!  request   header │ [transactional id, acks, timeout] │ wanted: u32 │ payload          forwarded kinds
//!  answer    header │ which answer of the connection: u32 │ payload of `wanted` bytes
//! ```
//! Neither the gateway nor the kernel reads these bodies. Those of Metadata, FindCoordinator, ApiVersions and of answers to
//! Produce v10 and above are true to their schemas, and say which answer of the connection they are as the throttle time.

use anyhow::{Context, Result, bail, ensure};
use bytes::{Buf, BufMut, Bytes};
use harness::raw::{AnswerFrame, answer, decode_answer, request_with_header};
use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::messages::find_coordinator_response::Coordinator;
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::produce_response::{
    LeaderIdAndEpoch, NodeEndpoint, PartitionProduceResponse, TopicProduceResponse,
};
use kafka_protocol::messages::{
    ApiKey, ApiVersionsRequest, ApiVersionsResponse, FindCoordinatorRequest, FindCoordinatorResponse, MetadataRequest,
    MetadataResponse, ProduceRequest, ProduceResponse, RequestHeader, TopicName,
};
use kafka_protocol::protocol::StrBytes;

use crate::content::{Random, piece};

pub(crate) const PRODUCE: i16 = 0;
pub(crate) const METADATA: i16 = 3;
pub(crate) const FIND_COORDINATOR: i16 = 10;
pub(crate) const API_VERSIONS: i16 = 18;

/// Versions that typed requests use.
const METADATA_VERSION: i16 = 12;
const FIND_COORDINATOR_VERSION: i16 = 4;
const API_VERSIONS_VERSION: i16 = 3;
/// No broker knows it: the gateway answers.
const UNKNOWN_VERSION: i16 = 99;
const UNSUPPORTED_VERSION: i16 = 35;
const NOT_LEADER: i16 = 6;
/// First Produce whose answers may carry addresses.
const PRODUCE_WITH_ENDPOINTS: i16 = 10;
const PRODUCE_WITH_IDS: i16 = 13;

/// By this a broker knows the connections of these clients from the gateway's own.
pub(crate) const CLIENT_ID: &str = "load";

/// Requests that are passed on as they are, and so are their answers: key, version, whether the header is flexible.
const PLAIN: [(i16, i16, bool); 7] = [
    (12, 3, false), // Heartbeat
    (12, 4, true),
    (1, 11, false), // Fetch
    (1, 15, true),
    (2, 5, false), // ListOffsets
    (2, 7, true),
    (8, 8, true), // OffsetCommit
];

/// Correlation id of a request: which connection of the test, which request of it, whether the gateway answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id(pub(crate) u32);

impl Id {
    const NUMBERS: u32 = 1 << 20;

    pub(crate) fn new(connection: u32, number: u32, is_gateways: bool) -> Self {
        Self((connection & 1023) << 21 | u32::from(is_gateways) << 20 | (number % Self::NUMBERS))
    }

    pub(crate) const fn connection(self) -> u32 {
        self.0 >> 21
    }

    /// Among the requests that the broker gets.
    pub(crate) const fn number(self) -> u32 {
        self.0 % Self::NUMBERS
    }

    pub(crate) const fn follows(self, number: u32) -> bool {
        self.number() == number % Self::NUMBERS
    }

    const fn correlation(self) -> i32 {
        self.0.cast_signed()
    }
}

/// Where brokers are, as somebody is told: node id, host, port.
#[derive(Clone, Debug)]
pub(crate) struct Addresses(pub(crate) Vec<(i32, String, u16)>);

/// What a broker of the newer kind says to a Produce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Said {
    /// All is well; the kernel can tell.
    Clean,
    /// All is well, for more partitions than the kernel looks at.
    CleanAndLong,
    /// Another broker leads now, with its address (KIP-951).
    Moved,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One of [`PLAIN`].
    Plain(usize),
    /// Produce up to v9 with an answer.
    Produce {
        version: i16,
    },
    /// Produce v10 and above with an answer.
    ProduceTyped {
        version: i16,
        said: Said,
    },
    /// Produce with acks = 0: no answer ever comes.
    ProduceUnanswered {
        version: i16,
    },
    Metadata,
    FindCoordinator,
    ApiVersions,
    /// ApiVersions of a version that nobody knows.
    Unknown,
}

impl Kind {
    /// One that the kernel may pass on, and its answer too.
    pub(crate) fn forwarded(random: &mut Random) -> Self {
        match random.below(10) {
            0 => Self::Produce { version: 9 },
            1 => Self::ProduceTyped { version: 10 + random.below(4) as i16, said: Said::Clean },
            _ => Self::Plain(random.below(PLAIN.len() as u64) as usize),
        }
    }

    /// One that needs the daemon, or its answer does.
    pub(crate) fn daemons(random: &mut Random) -> Self {
        let version = 10 + random.below(4) as i16;
        match random.below(10) {
            0 | 1 => Self::Metadata,
            2 | 3 => Self::FindCoordinator,
            4 => Self::ApiVersions,
            5 | 6 => Self::Unknown,
            7 => Self::ProduceTyped { version, said: Said::Moved },
            8 => Self::ProduceTyped { version, said: Said::CleanAndLong },
            _ => Self::ProduceUnanswered { version: [3, 9, 11][random.below(3) as usize] },
        }
    }

    /// Whether the daemon has to do with it or its answer.
    pub(crate) const fn is_daemons(self) -> bool {
        !matches!(self, Self::Plain(_) | Self::Produce { .. } | Self::ProduceTyped { said: Said::Clean, .. })
    }

    pub(crate) const fn is_produce(self) -> bool {
        self.acks().is_some()
    }

    /// Whether its bytes are the sender's to choose.
    pub(crate) const fn has_payload(self) -> bool {
        !matches!(self, Self::Metadata | Self::FindCoordinator | Self::ApiVersions)
    }

    /// Whose answer it is.
    pub(crate) const fn answered_by(self) -> Answers {
        match self {
            Self::ProduceUnanswered { .. } => Answers::Nobody,
            Self::Unknown => Answers::Gateway,
            _ => Answers::Broker,
        }
    }

    const fn head(self) -> (i16, i16, bool) {
        match self {
            Self::Plain(which) => PLAIN[which],
            Self::Produce { version } | Self::ProduceTyped { version, .. } | Self::ProduceUnanswered { version } => {
                (PRODUCE, version, version >= 9)
            }
            Self::Metadata => (METADATA, METADATA_VERSION, true),
            Self::FindCoordinator => (FIND_COORDINATOR, FIND_COORDINATOR_VERSION, true),
            Self::ApiVersions => (API_VERSIONS, API_VERSIONS_VERSION, true),
            Self::Unknown => (API_VERSIONS, UNKNOWN_VERSION, true),
        }
    }

    const fn acks(self) -> Option<i16> {
        match self {
            Self::Produce { .. } | Self::ProduceTyped { .. } => Some(-1),
            Self::ProduceUnanswered { .. } => Some(0),
            _ => None,
        }
    }
}

/// Who answers a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    Broker,
    Gateway,
    Nobody,
}

/// A request with all that its bytes follow from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) id: Id,
    pub(crate) kind: Kind,
    /// Bytes of payload, where the kind has any.
    pub(crate) payload: usize,
    /// Bytes of payload in the answer, where it has any.
    pub(crate) wanted: usize,
}

impl Ask {
    /// A client's name now and then, a very long one, or none. The kernel does not look for the acks of a Produce behind a
    /// very long one.
    fn client_id(&self) -> Option<StrBytes> {
        match self.id.number() % 8 {
            0 => Some(StrBytes::from_static_str(CLIENT_ID)),
            5 if self.payload > 1000 && matches!(self.kind, Kind::Plain(_)) => {
                Some(StrBytes::from_string("load".repeat(75)))
            }
            _ => None,
        }
    }

    /// The whole frame, size field included.
    pub(crate) fn encode(&self) -> Result<Bytes> {
        let (key, version, flexible) = self.kind.head();
        let header = || {
            RequestHeader::default()
                .with_request_api_key(key)
                .with_request_api_version(version)
                .with_correlation_id(self.id.correlation())
                .with_client_id(self.client_id())
        };
        let name = || StrBytes::from_string(format!("of-{}", self.id.0));
        match self.kind {
            Kind::Metadata => {
                return request_with_header(&header(), &MetadataRequest::default().with_topics(None));
            }
            Kind::FindCoordinator => {
                let body = FindCoordinatorRequest::default().with_coordinator_keys(vec![name()]);
                return request_with_header(&header(), &body);
            }
            Kind::ApiVersions => {
                let body = ApiVersionsRequest::default()
                    .with_client_software_name(StrBytes::from_static_str("load"))
                    .with_client_software_version(StrBytes::from_static_str("1"));
                return request_with_header(&header(), &body);
            }
            Kind::Plain(_)
            | Kind::Unknown
            | Kind::Produce { .. }
            | Kind::ProduceTyped { .. }
            | Kind::ProduceUnanswered { .. } => {}
        }
        let mut out = Vec::with_capacity(self.payload + 400);
        out.put_i32(0);
        out.put_i16(key);
        out.put_i16(version);
        out.put_i32(self.id.correlation());
        match self.client_id() {
            Some(id) => {
                out.put_i16(id.len() as i16);
                out.put_slice(id.as_bytes());
            }
            None => out.put_i16(-1),
        }
        if flexible {
            out.put_u8(0);
        }
        if let Some(acks) = self.kind.acks() {
            // No transactional id.
            if flexible {
                out.put_u8(0)
            } else {
                out.put_i16(-1)
            }
            out.put_i16(acks);
            out.put_i32(30_000);
        }
        out.put_u32(match self.kind {
            Kind::ProduceTyped { said, .. } => said as u32,
            _ => self.wanted as u32,
        });
        out.put_slice(piece(self.id.0, self.payload));
        let size = (out.len() - 4) as i32;
        out[..4].copy_from_slice(&size.to_be_bytes());
        Ok(out.into())
    }

    /// What a broker has got. `body`: the frame behind its size field.
    ///
    /// # Errors
    /// One byte is another than it must be.
    pub(crate) fn read(body: &[u8]) -> Result<Self> {
        let ask = Self::guess(body)?;
        let expected = ask.encode()?;
        let (expected, at) = (&expected[4..], || body.iter().zip(&expected[4..]).position(|(a, b)| a != b));
        ensure!(
            body == expected,
            "request {ask:?} is damaged: {} bytes instead of {}, the first other one at {:?}",
            body.len(),
            expected.len(),
            at()
        );
        Ok(ask)
    }

    /// What it must be if nothing is wrong with it.
    fn guess(mut body: &[u8]) -> Result<Self> {
        ensure!(body.len() >= 10, "a request of {} bytes", body.len());
        let (key, version, id) = (body.get_i16(), body.get_i16(), Id(body.get_u32()));
        let own = |kind| Ok(Self { id, kind, payload: 0, wanted: 0 });
        match (key, version) {
            (METADATA, METADATA_VERSION) => return own(Kind::Metadata),
            (FIND_COORDINATOR, FIND_COORDINATOR_VERSION) => return own(Kind::FindCoordinator),
            (API_VERSIONS, API_VERSIONS_VERSION) => return own(Kind::ApiVersions),
            _ => {}
        }
        let plain = PLAIN.iter().position(|&(k, v, _)| (k, v) == (key, version));
        let flexible = plain.map_or(version >= 9, |which| PLAIN[which].2);
        ensure!(plain.is_some() || key == PRODUCE, "a request of api key {key} version {version}, which nobody sent");
        let name = usize::try_from(body.get_i16()).unwrap_or(0);
        let is_produce = key == PRODUCE;
        // Tags of a flexible header; of a Produce also that it has no transactional id.
        let skipped = name + if is_produce { 2 } else { usize::from(flexible) };
        let fixed = skipped + if is_produce { 6 } else { 0 };
        ensure!(body.len() >= fixed + 4, "request {id:?} of api key {key} version {version} is cut short");
        body.advance(skipped);
        let acks = is_produce.then(|| (body.get_i16(), body.get_i32()).0);
        let wanted = body.get_u32();
        let kind = match (plain, acks) {
            (Some(which), _) => Kind::Plain(which),
            (None, Some(0)) => Kind::ProduceUnanswered { version },
            (None, _) if version < PRODUCE_WITH_ENDPOINTS => Kind::Produce { version },
            (None, _) => {
                let said = [Said::Clean, Said::CleanAndLong, Said::Moved].into_iter().find(|s| *s as u32 == wanted);
                Kind::ProduceTyped { version, said: said.context("a Produce that asks for nothing known")? }
            }
        };
        let wanted = if matches!(kind, Kind::ProduceTyped { .. }) { 0 } else { wanted as usize };
        Ok(Self { id, kind, payload: body.len(), wanted })
    }

    /// What the broker answers, size field included: its `nth` answer on the connection. `None`: nothing.
    pub(crate) fn answer(&self, nth: u32, brokers: &Addresses) -> Result<Option<Bytes>> {
        let (_, version, flexible) = self.kind.head();
        let id = self.id.correlation();
        Ok(Some(match self.kind {
            Kind::ProduceUnanswered { .. } | Kind::Unknown => return Ok(None),
            Kind::Metadata => answer::<MetadataRequest>(version, id, &self.metadata(nth, brokers))?,
            Kind::FindCoordinator => answer::<FindCoordinatorRequest>(version, id, &self.coordinator(nth, brokers))?,
            Kind::ApiVersions => answer::<ApiVersionsRequest>(version, id, &api_versions(nth))?,
            Kind::ProduceTyped { version, said } => {
                answer::<ProduceRequest>(version, id, &self.produced(version, said, nth, brokers))?
            }
            Kind::Plain(_) | Kind::Produce { .. } => {
                let mut out = Vec::with_capacity(self.wanted + 16);
                out.put_i32((8 + usize::from(flexible) + self.wanted) as i32);
                out.put_i32(id);
                if flexible {
                    out.put_u8(0);
                }
                out.put_u32(nth);
                out.put_slice(piece(!self.id.0, self.wanted));
                out.into()
            }
        }))
    }

    /// Checks what a client got. `body`: the frame behind its size field. `brokers`: as the client must be told of them.
    ///
    /// # Errors
    /// One byte is another than it must be.
    pub(crate) fn check(&self, body: &[u8], nth: u32, brokers: &Addresses) -> Result<()> {
        let got = body.first_chunk().map(|id| u32::from_be_bytes(*id));
        ensure!(got == Some(self.id.0), "an answer to {:?} came where that to {self:?} is due", got.map(Id));
        let version = self.kind.head().1;
        let frame = || AnswerFrame::new(Bytes::copy_from_slice(body));
        match self.kind {
            Kind::ApiVersions => {
                // What is offered is the gateway's to say.
                let got = decode_answer::<ApiVersionsRequest>(&frame()?, version)?;
                let is_due = got.throttle_time_ms == nth.cast_signed() && got.error_code == 0;
                ensure!(is_due && got.api_keys.len() > 20, "{self:?}: {got:?}");
            }
            Kind::Unknown => {
                let error = body.get(4..6).map(|error| i16::from_be_bytes([error[0], error[1]]));
                ensure!(error == Some(UNSUPPORTED_VERSION), "{self:?}: {body:?}");
            }
            Kind::ProduceUnanswered { .. } => bail!("{self:?} was answered: {body:?}"),
            _ => {
                // Addresses are changed in place, so that nothing else differs from what the broker sent.
                let due = self.answer(nth, brokers)?.unwrap_or_default();
                let at = || body.iter().zip(&due[4..]).position(|(a, b)| a != b);
                ensure!(
                    body == &due[4..],
                    "the answer to {self:?}, number {nth}, is damaged: {} bytes instead of {}, the first other one at {:?}",
                    body.len(),
                    due.len() - 4,
                    at()
                );
            }
        }
        Ok(())
    }

    fn random(&self) -> Random {
        Random::new(u64::from(self.id.0) << 1 | 1)
    }

    /// Of a few topics up to some that fill several packets.
    fn metadata(&self, nth: u32, brokers: &Addresses) -> MetadataResponse {
        let topics = [3, 1, 60][self.id.number() as usize % 3];
        let partition = |index| {
            MetadataResponsePartition::default()
                .with_partition_index(index)
                .with_leader_id(brokers.0[0].0.into())
                .with_replica_nodes(brokers.0.iter().map(|(node, ..)| (*node).into()).collect())
                .with_isr_nodes(vec![brokers.0[0].0.into()])
        };
        let topic = |n: u32| {
            MetadataResponseTopic::default()
                .with_name(Some(topic_name(self.id.0.wrapping_add(n))))
                .with_partitions((0..2).map(partition).collect())
        };
        metadata_of(brokers).with_throttle_time_ms(nth.cast_signed()).with_topics((0..topics).map(topic).collect())
    }

    fn coordinator(&self, nth: u32, brokers: &Addresses) -> FindCoordinatorResponse {
        let (node, host, port) = &brokers.0[self.id.number() as usize % brokers.0.len()];
        let coordinator = Coordinator::default()
            .with_key(StrBytes::from_string(format!("of-{}", self.id.0)))
            .with_node_id((*node).into())
            .with_host(StrBytes::from_string(host.clone()))
            .with_port((*port).into());
        FindCoordinatorResponse::default().with_throttle_time_ms(nth.cast_signed()).with_coordinators(vec![coordinator])
    }

    fn produced(&self, version: i16, said: Said, nth: u32, brokers: &Addresses) -> ProduceResponse {
        let mut random = self.random();
        let count = match said {
            Said::Clean => 1 + random.below(3),
            Said::CleanAndLong => 20 + random.below(40),
            Said::Moved => 2,
        };
        let (node, host, port) = &brokers.0[random.below(brokers.0.len() as u64) as usize];
        let partitions = (0..count).map(|index| {
            let partition = PartitionProduceResponse::default().with_index(index as i32);
            if said == Said::Moved && index == 0 {
                let leader = LeaderIdAndEpoch::default().with_leader_id((*node).into()).with_leader_epoch(nth as i32);
                return partition.with_error_code(NOT_LEADER).with_base_offset(-1).with_current_leader(leader);
            }
            partition.with_base_offset(random.next() as i64 >> 1).with_log_append_time_ms(-1)
        });
        let mut topic = TopicProduceResponse::default().with_partition_responses(partitions.collect());
        // Ids of topics may all be zero.
        if version < PRODUCE_WITH_IDS {
            topic.name = topic_name(self.id.0);
        }
        let mut response =
            ProduceResponse::default().with_throttle_time_ms(nth.cast_signed()).with_responses(vec![topic]);
        if said == Said::Moved {
            response.node_endpoints = vec![
                NodeEndpoint::default()
                    .with_node_id((*node).into())
                    .with_host(StrBytes::from_string(host.clone()))
                    .with_port((*port).into()),
            ];
        }
        response
    }
}

fn topic_name(of: u32) -> TopicName {
    StrBytes::from_string(format!("topic-{of}")).into()
}

/// What every broker offers: all that the schemas know.
pub(crate) fn api_versions(nth: u32) -> ApiVersionsResponse {
    let keys = ApiKey::iter().map(|key| {
        let versions = key.valid_versions();
        ApiVersion::default().with_api_key(key as i16).with_min_version(versions.min).with_max_version(versions.max)
    });
    ApiVersionsResponse::default().with_throttle_time_ms(nth.cast_signed()).with_api_keys(keys.collect())
}

/// The cluster.
pub(crate) fn metadata_of(brokers: &Addresses) -> MetadataResponse {
    let broker = |(node, host, port): &(i32, String, u16)| {
        MetadataResponseBroker::default()
            .with_node_id((*node).into())
            .with_host(StrBytes::from_string(host.clone()))
            .with_port((*port).into())
    };
    MetadataResponse::default()
        .with_brokers(brokers.0.iter().map(broker).collect())
        .with_controller_id(brokers.0[0].0.into())
        .with_cluster_id(Some(StrBytes::from_static_str("of-the-splice")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every kind, with payloads and without.
    fn asks() -> Vec<Ask> {
        let said = [Said::Clean, Said::CleanAndLong, Said::Moved];
        let typed = (10..=13).flat_map(|version| said.map(|said| Kind::ProduceTyped { version, said }));
        let unanswered = [3, 9, 11].map(|version| Kind::ProduceUnanswered { version });
        let kinds = (0..PLAIN.len()).map(Kind::Plain).chain(typed).chain(unanswered);
        let own = [Kind::Produce { version: 9 }, Kind::Metadata, Kind::FindCoordinator, Kind::ApiVersions];
        let kinds = kinds.chain(own);
        kinds
            .zip(0..)
            .flat_map(|(kind, number)| {
                [0, 1_200].map(|length| {
                    let payload = if kind.has_payload() { length } else { 0 };
                    let wanted = if matches!(kind, Kind::ProduceTyped { .. }) { 0 } else { payload };
                    Ask { id: Id::new(5, number, false), kind, payload, wanted }
                })
            })
            .collect()
    }

    fn brokers() -> Addresses {
        Addresses(vec![(1, "10.92.0.2".into(), 9092), (2, "10.92.1.2".into(), 9092)])
    }

    /// Every byte of the beginning, and some of what follows.
    fn some(length: usize) -> impl Iterator<Item = usize> {
        (0..length).filter(move |at| *at < 80 || at % 41 == 0 || at + 1 == length)
    }

    fn flipped(bytes: &[u8], at: usize) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        bytes[at] ^= 0x10;
        bytes
    }

    #[test]
    fn a_broker_reads_what_was_asked_and_finds_any_byte_that_is_wrong() -> Result<()> {
        for ask in asks() {
            let frame = ask.encode()?;
            assert_eq!(frame.len() - 4, u32::from_be_bytes(frame[..4].try_into()?) as usize);
            assert_eq!(Ask::read(&frame[4..])?, ask);
            for at in some(frame.len()).filter(|at| *at >= 4) {
                // Another length that is wanted, or another id, may be what another client asks.
                let read = Ask::read(&flipped(&frame, at)[4..]);
                assert!(read.is_err() || read.is_ok_and(|read| read != ask), "{ask:?}: byte {at}");
            }
            assert!(Ask::read(&frame[4..frame.len() - 1]).map_or(true, |read| read != ask), "{ask:?} cut short");
        }
        Ok(())
    }

    #[test]
    fn a_client_knows_its_answer_and_finds_any_byte_that_is_wrong() -> Result<()> {
        for ask in asks() {
            let Some(frame) = ask.answer(7, &brokers())? else {
                assert_ne!(ask.kind.answered_by(), Answers::Broker, "{ask:?}");
                continue;
            };
            let body = &frame[4..];
            ask.check(body, 7, &brokers())?;
            assert!(ask.check(body, 8, &brokers()).is_err(), "{ask:?}: another one's place");
            assert!(ask.check(&body[..body.len() - 1], 7, &brokers()).is_err(), "{ask:?}: cut short");
            let is_gateways = ask.kind == Kind::ApiVersions;
            for at in some(body.len()).filter(|_| !is_gateways) {
                assert!(ask.check(&flipped(body, at), 7, &brokers()).is_err(), "{ask:?}: byte {at}");
            }
        }
        Ok(())
    }

    #[test]
    fn a_client_finds_an_address_that_is_the_real_brokers() -> Result<()> {
        let told = Addresses(vec![(1, "10.90.0.1".into(), 9200), (2, "10.90.0.1".into(), 9201)]);
        let moved = Kind::ProduceTyped { version: 12, said: Said::Moved };
        for kind in [Kind::Metadata, Kind::FindCoordinator, moved] {
            let ask = Ask { id: Id::new(1, 3, false), kind, payload: 0, wanted: 0 };
            let real = ask.answer(0, &brokers())?.context("an answer")?;
            assert!(ask.check(&real[4..], 0, &told).is_err(), "{kind:?}");
        }
        Ok(())
    }
}
