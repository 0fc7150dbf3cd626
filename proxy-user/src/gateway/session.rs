//! One client connection as a state machine without sockets or clocks: bytes come in through a [`Lane`], leave
//! through it, and answers stay in the order of their requests.
//!
//! ```text
//!  requests   Header ──► Passing ──► Header        the frame flows as it arrives
//!                 ├────► Holding ──► Header        collected whole, looked at, maybe rewritten
//!                 └────► Dropping ─► Header        the gateway answers it
//!  answers    Header ──► Passing | Scrubbing | Routing ──► Header
//!                 └────► Holding ──► Header
//! ```
//!
//! Methods named `on_*` take what arrived; getters say what is wanted; [`Session::take_events`] tells what was
//! learnt on the way. An error ends the connection.

mod mirror;
mod splice;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use proxy_common::frame::{self, REQUEST_FIXED_LEN, RequestPrefix, SIZE_LEN};
use proxy_common::splice::notes::Notes;
use proxy_common::splice::state::Side;

use self::splice::Indexes;
pub(crate) use self::splice::ahead;
use super::close::CloseReason;
use super::lane::Lane;
use super::reads::{Asked, Reads};
use crate::config::Versions;
use crate::kafka::api;
use crate::kafka::fetch::answer::{Advance, Decide, Partition};
use crate::kafka::fetch::{self, AnswerPatcher, FetchRequest};
use crate::kafka::header::{self, Partial};
use crate::kafka::hints::HintScrubber;
use crate::kafka::ids::{ApiKey, ApiVersion, CorrelationId, NodeId};
use crate::kafka::rewrite::{self, Addresses, Seen};
use crate::kafka::sasl::{self, ClientFrame, SaslTracker};
use crate::kafka::versions::{self, Offered};
use crate::route::{self, AnswerPlan, Plan};
use crate::splice::mirror::Tap;

/// What the session needs to know of the world at this moment.
pub(crate) struct View<'a> {
    /// Version policy.
    pub(crate) policy: Versions,
    /// `limits.frame`.
    pub(crate) frame: u64,
    /// `limits.rewrite_frame`.
    pub(crate) rewrite_frame: u64,
    /// `limits.in_flight`.
    pub(crate) in_flight: usize,
    /// Where clients find brokers, and what those offer.
    pub(crate) world: &'a dyn World,
    /// No new request is begun.
    pub(crate) draining: bool,
    /// Where the kernel looks up what answers belong to, and says it; `None`: the connection isn't spliced.
    pub(crate) notes: Option<&'a Notes>,
}

/// What changes with the cluster, asked for only by frames that need it.
pub(crate) trait World: Addresses {
    /// What every virtual broker offers; `None` while no broker of the cluster has told.
    fn offered(&self) -> Option<Arc<Offered>>;
    /// As the rewriters take it.
    fn addresses(&self) -> &dyn Addresses;
    /// A request frame of this key began; bare SASL tokens count as SaslAuthenticate.
    fn began(&self, key: ApiKey);
    /// Who routes the consumer's reads; `None`: they pass.
    fn reads(&self) -> Option<&dyn Reads>;
}

/// Why nothing more is taken from the client for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// `limits.in_flight` requests wait for their answer.
    InFlight,
    /// The client doesn't take the answers it has.
    Answers,
    /// What comes next depends on the answer of SaslHandshake v0.
    Handshake,
}

/// A request that isn't here to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arriving {
    /// Its header was whole and it was begun; else only some bytes of the header are here.
    pub(crate) begun: bool,
    /// Its size, 0 while it isn't begun.
    pub(crate) size: u64,
}

/// Something learnt from the bytes that passed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// An answer listed brokers.
    Seen(Seen),
    /// The client named its software and version.
    Software(String, String),
    /// The client id of the first request.
    ClientId(String),
    /// A frame was held and rewritten.
    Rewritten,
    /// The gateway answered by itself.
    Answered,
}

#[derive(Debug)]
enum RequestState {
    Header,
    Passing { left: u64 },
    Holding { frame: BytesMut, left: usize, head: Head, answer: AnswerPlan },
    Dropping { left: u64 },
}

#[derive(Debug)]
enum AnswerState {
    Header,
    Passing { left: u64 },
    Scrubbing { left: u64, scrubber: HintScrubber, head: Head },
    Routing { patcher: Box<AnswerPatcher>, asked: Box<Asked>, head: Head },
    Holding { frame: BytesMut, left: usize, pending: Pending },
}

/// Between two looks at a broker that is silent, but not for too long yet.
const LOOK: Duration = Duration::from_millis(500);

/// What any broker may answer in the place of one that is out of reach: what a client needs to get on. Whatever else it
/// asks, it asks of that very broker.
const ANYWHERE: [ApiKey; 5] = [
    ApiKey::API_VERSIONS,
    ApiKey::SASL_HANDSHAKE,
    ApiKey::SASL_AUTHENTICATE,
    ApiKey::METADATA,
    ApiKey::FIND_COORDINATOR,
];

/// Room for requests and events that an idle session keeps.
const KEPT: usize = 8;

/// A request's ids, in types that don't mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    key: ApiKey,
    version: ApiVersion,
    correlation: CorrelationId,
}

impl From<RequestPrefix> for Head {
    fn from(prefix: RequestPrefix) -> Self {
        let RequestPrefix { api_key, api_version, correlation_id } = prefix;
        Self { key: ApiKey(api_key), version: ApiVersion(api_version), correlation: CorrelationId(correlation_id) }
    }
}

/// A request whose answer has not been passed on yet.
#[derive(Debug)]
struct Pending {
    head: Head,
    due: Due,
    /// When it is time to ask whether its broker is dead, where the gateway may answer in its place.
    patience: Option<Instant>,
    /// While spliced: which of the requests that get an answer of the broker it is. Of one that the gateway answers: how
    /// many the broker answers before. Not spliced: which of the connection's.
    index: u32,
    /// It is mirrored, and its answer.
    mirrored: bool,
}

impl Pending {
    fn new(head: Head, due: Due) -> Self {
        Self { head, due, patience: None, index: 0, mirrored: false }
    }
}

#[derive(Debug)]
enum Due {
    /// The broker answers; what to do with its answer.
    Broker(AnswerPlan),
    /// The broker answers a Fetch that is routed.
    Fetch(Box<Asked>),
    /// The gateway answered; whole frame, waiting for its turn.
    Ready(Bytes),
    /// A raw SASL token, without a header.
    Token,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Session {
    request: RequestState,
    answer: AnswerState,
    pending: VecDeque<Pending>,
    sasl: SaslTracker,
    /// Requests begun.
    begun: u64,
    /// Size of the last one begun.
    size: u64,
    named: bool,
    /// SaslHandshake v0 was passed on and isn't answered yet.
    shaking_hands: bool,
    /// Fetch is answered here, in the place of a broker that is out of reach.
    stands_in: bool,
    /// Everything that the gateway had to say in the broker's place was said.
    stood_in: bool,
    /// The last answer to SaslAuthenticate, or to a raw token, was none of an error.
    authenticated: bool,
    events: Vec<Event>,
    /// A request was passed on that the kernel could have passed on: the prelude is over.
    is_routine: bool,
    splice: Option<Indexes>,
    /// Not spliced: requests begun that get an answer of the broker; indexes wrap.
    asked: u32,
    /// Spliced: which of the connection's requests has the index 0.
    base: u32,
    /// Takes what is mirrored.
    tap: Option<Tap>,
}

/// Where reads aren't routed any more, while an answer is under way.
struct Leave;

impl Decide for Leave {
    fn ends_session(&mut self, _: i16) -> bool {
        false
    }

    fn turn_over(&mut self, _: &Partition<'_>) -> Option<NodeId> {
        None
    }
}

impl Session {
    pub(crate) fn new() -> Self {
        Self {
            request: RequestState::Header,
            answer: AnswerState::Header,
            pending: VecDeque::new(),
            sasl: SaslTracker::new(),
            begun: 0,
            size: 0,
            named: false,
            shaking_hands: false,
            stands_in: false,
            stood_in: false,
            authenticated: false,
            events: Vec::new(),
            is_routine: false,
            splice: None,
            asked: 0,
            base: 0,
            tap: None,
        }
    }

    /// Frames that are mirrored are given to this.
    pub(crate) fn set_tap(&mut self, tap: Option<Tap>) {
        self.tap = tap;
    }

    /// From now on Fetch is answered here: the broker is out of reach. Nothing that is in flight was sent to it, or
    /// [`Self::take_over`] answered it.
    pub(crate) fn stand_in(&mut self) {
        self.stands_in = true;
    }

    /// Whether Fetch is answered here, and a consumer was told where to read instead.
    pub(crate) fn has_stood_in(&self) -> bool {
        self.stood_in
    }

    /// When it is time to ask [`Self::is_broker_dead`], because of the request that the broker should answer next.
    pub(crate) fn patience(&self) -> Option<Instant> {
        let is_due = matches!(self.answer, AnswerState::Header) && !self.stands_in;
        self.pending.front().filter(|_| is_due).and_then(|front| front.patience)
    }

    /// Whether the client may be told anything that only brokers tell.
    fn may_be_told(&self, reads: &dyn Reads) -> bool {
        self.authenticated || !reads.needs_authentication()
    }

    /// Whether the broker is taken for dead: it is silent for too long, or for long enough where more is known against it.
    pub(crate) fn is_broker_dead(&mut self, world: &dyn World, now: Instant) -> bool {
        let Some(front) = self.pending.front_mut() else { return false };
        let Due::Fetch(asked) = &front.due else { return true };
        let is_dead = world.reads().is_some_and(|reads| reads.is_dead(asked, now));
        if !is_dead {
            front.patience = Some(now + LOOK);
        }
        is_dead
    }

    /// Nothing more is expected of the broker: what it owes is answered here, and each later Fetch. `false`: it owes
    /// something that only a broker can answer, or nobody reads here who could read elsewhere; then nothing has changed but
    /// that it is not taken for dead again for the requests in flight.
    pub(crate) fn take_over(&mut self, answers: &mut Lane, world: &dyn World) -> bool {
        self.pending.iter_mut().for_each(|pending| pending.patience = None);
        // A spliced broker can't be replaced: the kernel keeps its connection and the client's in step.
        let is_between = matches!(self.answer, AnswerState::Header)
            && self.splice.is_none()
            && matches!(self.request, RequestState::Header | RequestState::Dropping { .. });
        let (Some(reads), Some(offered)) = (world.reads(), world.offered()) else { return false };
        if !self.may_be_told(reads) {
            return false;
        }
        let mut any = false;
        let can = |pending: &Pending| match &pending.due {
            Due::Broker(AnswerPlan::ApiVersions) | Due::Ready(_) => true,
            Due::Fetch(asked) => {
                any |= FetchRequest::read_again(&asked.body).is_ok_and(|request| reads.may_stand_in(&request));
                true
            }
            Due::Broker(_) | Due::Token => false,
        };
        let all = self.pending.iter().all(can);
        if !is_between || self.stands_in || !all || self.pending.is_empty() {
            return false;
        }
        let fetches = self.pending.iter().any(|pending| matches!(pending.due, Due::Fetch(_)));
        if fetches && !any {
            return false;
        }
        for pending in &mut self.pending {
            let Head { version, correlation, .. } = pending.head;
            let body = match &pending.due {
                Due::Broker(_) => Some(fetch::api_versions_answer(version, correlation, &offered)),
                Due::Fetch(asked) => made_fetch_answer(pending.head, &asked.body, reads, &mut self.stood_in),
                Due::Ready(_) | Due::Token => None,
            };
            if let Some(body) = body {
                self.events.push(Event::Answered);
                pending.due = Due::Ready(framed(&body));
            }
        }
        self.stands_in = true;
        self.send_ready(answers);
        true
    }

    /// Requests waiting for their answer.
    pub(crate) fn in_flight(&self) -> usize {
        self.unanswered() + usize::from(!matches!(self.answer, AnswerState::Header))
    }

    /// Requests whose answer hasn't begun.
    fn unanswered(&self) -> usize {
        let Some(at) = self.splice else { return self.pending.len() };
        let ready = self.pending.iter().filter(|pending| matches!(pending.due, Due::Ready(_))).count();
        at.request.wrapping_sub(at.answer) as usize + ready
    }

    /// Requests begun so far.
    pub(crate) fn begun(&self) -> u64 {
        self.begun
    }

    /// Why nothing more is taken from the client until an answer comes or leaves, given `limits.in_flight`.
    pub(crate) fn pause(&self, answers: &Lane, in_flight: usize) -> Option<Pause> {
        if self.unanswered() >= in_flight {
            Some(Pause::InFlight)
        } else if answers.is_backed_up() {
            Some(Pause::Answers)
        } else {
            self.shaking_hands.then_some(Pause::Handshake)
        }
    }

    /// The request that is arriving; `None` between frames.
    pub(crate) fn arriving(&self, requests: &Lane) -> Option<Arriving> {
        match &self.request {
            RequestState::Header if requests.unparsed().is_empty() => None,
            RequestState::Header => Some(Arriving { begun: false, size: 0 }),
            RequestState::Passing { .. } | RequestState::Dropping { .. } | RequestState::Holding { .. } => {
                Some(Arriving { begun: true, size: self.size })
            }
        }
    }

    /// Gives back memory that a burst needed.
    pub(crate) fn release(&mut self) {
        if self.pending.is_empty() && self.pending.capacity() > KEPT {
            self.pending = VecDeque::new();
        }
        if self.events.is_empty() && self.events.capacity() > KEPT {
            self.events = Vec::new();
        }
    }

    /// Bytes of frames that are held whole until they are complete.
    pub(crate) fn held(&self) -> usize {
        let request = if let RequestState::Holding { frame, .. } = &self.request { frame.len() } else { 0 };
        let answer = match &self.answer {
            AnswerState::Holding { frame, .. } => frame.len(),
            AnswerState::Routing { patcher, .. } => patcher.held(),
            AnswerState::Header | AnswerState::Passing { .. } | AnswerState::Scrubbing { .. } => 0,
        };
        request + answer
    }

    /// Nothing is half passed on in either direction and no answer is outstanding.
    pub(crate) fn at_rest(&self) -> bool {
        matches!(self.request, RequestState::Header) && self.in_flight() == 0
    }

    /// What was learnt since the last call.
    pub(crate) fn take_events(&mut self) -> impl Iterator<Item = Event> {
        self.events.drain(..)
    }

    /// Looks at the bytes the client sent: passes them on, holds them, or answers.
    pub(crate) fn on_request_bytes(
        &mut self,
        requests: &mut Lane,
        answers: &mut Lane,
        view: &View<'_>,
    ) -> Result<(), CloseReason> {
        loop {
            match &mut self.request {
                RequestState::Header => {
                    if !self.on_request_header(requests, answers, view)? {
                        return Ok(());
                    }
                }
                RequestState::Passing { left } => {
                    let n = take(left, requests.unparsed().len());
                    mirror(&mut self.tap, Side::Client, &requests.unparsed()[..n]);
                    requests.forward(n);
                    if *left > 0 {
                        return Ok(());
                    }
                    self.request = RequestState::Header;
                }
                RequestState::Dropping { left } => {
                    requests.skip(take(left, requests.unparsed().len()));
                    if *left > 0 {
                        return Ok(());
                    }
                    self.request = RequestState::Header;
                }
                RequestState::Holding { frame, left, .. } => {
                    let n = (*left).min(requests.unparsed().len());
                    frame.put_slice(&requests.unparsed()[..n]);
                    requests.skip(n);
                    *left -= n;
                    if *left > 0 {
                        return Ok(());
                    }
                    let RequestState::Holding { frame, head, answer, .. } =
                        std::mem::replace(&mut self.request, RequestState::Header)
                    else {
                        return Ok(());
                    };
                    let body = frame.freeze();
                    if answer == AnswerPlan::Route {
                        self.on_fetch(body, head, requests, answers, view)?;
                    } else {
                        self.on_held_request(body, head, answer, requests, view)?;
                    }
                }
            }
        }
    }

    /// Decides over the next request once enough of it is there. `false`: not yet.
    fn on_request_header(
        &mut self,
        requests: &mut Lane,
        answers: &mut Lane,
        view: &View<'_>,
    ) -> Result<bool, CloseReason> {
        if view.draining || self.pause(answers, view.in_flight).is_some() {
            return Ok(false);
        }
        let bytes = requests.unparsed();
        let Some(size) = frame::read_size(bytes) else { return Ok(false) };
        if self.begun == 0
            && let Some(what) = bytes.first_chunk::<4>().and_then(|first| header::foreign(*first))
        {
            return Err(CloseReason::Foreign(what));
        }
        let Ok(body_len) = u64::try_from(size) else { return Err(CloseReason::BadSize { size }) };
        if body_len > view.frame {
            return Err(CloseReason::FrameTooLarge { size, limit: view.frame });
        }
        let body = &bytes[SIZE_LEN..];
        let body = &body[..body.len().min(body_len as usize)];
        let whole = body.len() as u64 == body_len;

        match self.sasl.client_frame(size, body) {
            Partial::Done(ClientFrame::Request) => {
                // The last token of some mechanisms gets no answer (SaslServer.evaluateChallenge gave none).
                if matches!(self.pending.back(), Some(Pending { due: Due::Token, .. })) {
                    self.pending.pop_back();
                    let asked = self.splice.as_mut().map_or(&mut self.asked, |at| &mut at.request);
                    *asked = asked.wrapping_sub(1);
                }
            }
            Partial::Done(ClientFrame::Token) => {
                self.begin(ApiKey::SASL_AUTHENTICATE, body_len, view);
                let head = Head { key: ApiKey::SASL_HANDSHAKE, version: ApiVersion(0), correlation: CorrelationId(0) };
                self.expect(head, Due::Token, None, view);
                self.pass(requests, body_len);
                return Ok(true);
            }
            Partial::Done(ClientFrame::AfterHandshake) => return Ok(false),
            Partial::NeedMore if !whole => return Ok(false),
            Partial::NeedMore => return Err(CloseReason::BadSize { size }),
            Partial::Malformed(_) if body_len < REQUEST_FIXED_LEN as u64 => return Err(CloseReason::BadSize { size }),
            Partial::Malformed(what) => return Err(CloseReason::MalformedFrame { size, what }),
        }

        let Some(prefix) = frame::read_request_prefix(body) else {
            return if whole { Err(CloseReason::BadSize { size }) } else { Ok(false) };
        };
        let head = Head::from(prefix);
        let malformed =
            |what: &str| CloseReason::MalformedRequest { key: head.key, version: head.version, what: what.to_owned() };
        let reads = view.world.reads();
        let plan = match route::plan(prefix, || header::produce_acks(head.version, body), view.policy, reads.is_some())
        {
            Partial::Done(plan) => plan,
            // A header that fills the buffer, or is cut off by the frame's own end, will never be complete.
            Partial::NeedMore if whole || requests.is_full_of_unparsed() => {
                return Err(malformed("its header is cut short"));
            }
            Partial::NeedMore => return Ok(false),
            Partial::Malformed(what) => return Err(malformed(what)),
        };
        if self.stands_in && !(plan == Plan::Route || ANYWHERE.contains(&head.key)) {
            return Err(CloseReason::StoodIn);
        }
        if !self.named {
            match header::client_id(body) {
                Partial::Done(id) => {
                    self.named = true;
                    self.events.extend(id.map(|id| Event::ClientId(id.to_owned())));
                }
                Partial::NeedMore => {}
                Partial::Malformed(what) => return Err(malformed(what)),
            }
        }

        match plan {
            Plan::Close(why) => Err(CloseReason::UnknownRequest(why)),
            Plan::Forward { answer } => {
                if answer == AnswerPlan::ApiVersions && whole {
                    let software = versions::client_software(head.version, body);
                    self.events.extend(software.map(|(name, version)| Event::Software(name, version)));
                }
                self.begin(head.key, body_len, view);
                self.shaking_hands = answer == AnswerPlan::Handshake && head.version == ApiVersion(0);
                if answer != AnswerPlan::None {
                    let is_first = answer == AnswerPlan::ApiVersions;
                    let patience = reads.filter(|_| is_first).and_then(Reads::patience);
                    self.expect(head, Due::Broker(answer), patience, view);
                }
                self.is_routine |= matches!(answer, AnswerPlan::Stream | AnswerPlan::CheckProduce);
                self.mirror_request(head.key, answer != AnswerPlan::None, body_len);
                self.pass(requests, body_len);
                Ok(true)
            }
            Plan::Route if body_len > view.rewrite_frame && !self.stands_in => {
                self.begin(head.key, body_len, view);
                self.expect(head, Due::Broker(AnswerPlan::Stream), None, view);
                self.pass(requests, body_len);
                Ok(true)
            }
            Plan::Route => {
                if body_len > view.rewrite_frame {
                    return Err(CloseReason::HoldTooLarge { size, limit: view.rewrite_frame });
                }
                self.begin(head.key, body_len, view);
                if whole {
                    let body = Bytes::copy_from_slice(body);
                    requests.skip(SIZE_LEN + body_len as usize);
                    self.on_fetch(body, head, requests, answers, view)?;
                } else {
                    requests.skip(SIZE_LEN);
                    let frame = BytesMut::new();
                    self.request =
                        RequestState::Holding { frame, left: body_len as usize, head, answer: AnswerPlan::Route };
                }
                Ok(true)
            }
            Plan::Rewrite { answer } => {
                if body_len > view.rewrite_frame {
                    return Err(CloseReason::HoldTooLarge { size, limit: view.rewrite_frame });
                }
                self.begin(head.key, body_len, view);
                requests.skip(SIZE_LEN);
                self.request = RequestState::Holding { frame: BytesMut::new(), left: body_len as usize, head, answer };
                Ok(true)
            }
            Plan::Answer(body) => {
                self.begin(head.key, body_len, view);
                self.answer_here(head, &body);
                requests.skip(SIZE_LEN);
                self.request = RequestState::Dropping { left: body_len };
                self.send_ready(answers);
                Ok(true)
            }
        }
    }

    /// The broker will answer the request that is about to be passed on.
    fn expect(&mut self, head: Head, due: Due, patience: Option<Instant>, view: &View<'_>) {
        let asked = self.splice.as_mut().map_or(&mut self.asked, |at| &mut at.request);
        let mirrored = self.tap.is_some() && Tap::wants(head.key);
        let pending = Pending { head, due, patience, index: *asked, mirrored };
        *asked = asked.wrapping_add(1);
        // Before the request can reach the broker, and so before its answer.
        let notes = view.notes.filter(|_| self.splice.is_some());
        notes.iter().for_each(|notes| notes.set(pending.index, pending.note()));
        self.pending.push_back(pending);
    }

    /// The gateway answers the request.
    fn answer_here(&mut self, head: Head, body: &[u8]) {
        self.events.push(Event::Answered);
        let index = self.splice.map_or(0, |at| at.request);
        self.pending.push_back(Pending { index, ..Pending::new(head, Due::Ready(framed(body))) });
    }

    fn begin(&mut self, key: ApiKey, size: u64, view: &View<'_>) {
        self.begun += 1;
        self.size = size;
        view.world.began(key);
    }

    /// Passes on a frame, size field included.
    fn pass(&mut self, requests: &mut Lane, body_len: u64) {
        self.request = RequestState::Passing { left: SIZE_LEN as u64 + body_len };
        let RequestState::Passing { left } = &mut self.request else { return };
        let n = take(left, requests.unparsed().len());
        mirror(&mut self.tap, Side::Client, &requests.unparsed()[..n]);
        requests.forward(n);
        if *left == 0 {
            self.request = RequestState::Header;
        }
    }

    fn on_held_request(
        &mut self,
        body: Bytes,
        head: Head,
        answer: AnswerPlan,
        requests: &mut Lane,
        view: &View<'_>,
    ) -> Result<(), CloseReason> {
        let rewritten =
            rewrite::rewrite_request(head.key, head.version, &body, view.world.addresses()).map_err(|what| {
                CloseReason::MalformedRequest { key: head.key, version: head.version, what: what.to_string() }
            })?;
        if rewritten.is_some() {
            self.events.push(Event::Rewritten);
        }
        requests.push(framed(&rewritten.unwrap_or(body)));
        self.expect(head, Due::Broker(answer), None, view);
        Ok(())
    }

    /// A whole Fetch: goes to the broker, with a rack where it needs one, or is answered here. A replica's own, and one
    /// that can't be read, pass: the broker will judge them.
    fn on_fetch(
        &mut self,
        body: Bytes,
        head: Head,
        requests: &mut Lane,
        answers: &mut Lane,
        view: &View<'_>,
    ) -> Result<(), CloseReason> {
        let request = FetchRequest::read(head.version, &body).ok().filter(|request| !request.is_follower);
        let (Some(reads), Some(request)) = (view.world.reads(), request) else {
            if self.stands_in {
                return Err(CloseReason::StoodIn);
            }
            requests.push(framed(&body));
            self.expect(head, Due::Broker(AnswerPlan::Stream), None, view);
            return Ok(());
        };
        if self.stands_in {
            // Who reads at this broker as the leader is told nothing: it looks for another by itself.
            let is_elsewhere = request.is_incremental || reads.may_stand_in(&request);
            if !is_elsewhere || !self.may_be_told(reads) {
                return Err(CloseReason::StoodIn);
            }
            let made = made_fetch_answer(head, &body, reads, &mut self.stood_in).ok_or(CloseReason::StoodIn)?;
            self.answer_here(head, &made);
            self.send_ready(answers);
            return Ok(());
        }
        let asked = reads.asked(&request, body.clone());
        match &asked.stamp {
            Some(rack) => {
                self.events.push(Event::Rewritten);
                requests.push(framed(&request.with_rack(rack)));
            }
            None => requests.push(framed(&body)),
        }
        let patience = Some(asked.look);
        self.expect(head, Due::Fetch(Box::new(asked)), patience, view);
        Ok(())
    }

    /// Looks at the bytes the broker sent: passes them on, or holds and rewrites them. Leaves some unparsed while
    /// `answers` is backed up; call again once it isn't.
    pub(crate) fn on_answer_bytes(&mut self, answers: &mut Lane, view: &View<'_>) -> Result<(), CloseReason> {
        loop {
            match &mut self.answer {
                AnswerState::Header => {
                    self.send_ready(answers);
                    // A small answer may become a large one: what is not taken stays as small as it came.
                    if answers.is_backed_up() || !self.on_answer_header(answers, view)? {
                        return Ok(());
                    }
                }
                AnswerState::Passing { left } => {
                    let n = take(left, answers.unparsed().len());
                    mirror(&mut self.tap, Side::Broker, &answers.unparsed()[..n]);
                    answers.forward(n);
                    if *left > 0 {
                        return Ok(());
                    }
                    self.answer = AnswerState::Header;
                }
                AnswerState::Scrubbing { left, scrubber, head } => {
                    let n = take(left, answers.unparsed().len());
                    scrubber.push(&mut answers.unparsed_mut()[..n]).map_err(|what| CloseReason::MalformedAnswer {
                        key: head.key,
                        version: head.version,
                        what: what.to_string(),
                    })?;
                    answers.forward(n);
                    if *left > 0 {
                        return Ok(());
                    }
                    self.answer = AnswerState::Header;
                }
                AnswerState::Routing { patcher, asked, head } => {
                    let reads = view.world.reads();
                    let decide = reads.map_or_else(|| Box::new(Leave) as Box<dyn Decide>, |reads| reads.decide(asked));
                    if !route_answer(patcher, answers, decide, *head)? {
                        return Ok(());
                    }
                    reads.iter().for_each(|reads| reads.answered(patcher));
                    if patcher.changed() {
                        self.events.push(Event::Rewritten);
                    }
                    self.answer = AnswerState::Header;
                }
                AnswerState::Holding { frame, left, .. } => {
                    let n = (*left).min(answers.unparsed().len());
                    mirror(&mut self.tap, Side::Broker, &answers.unparsed()[..n]);
                    frame.put_slice(&answers.unparsed()[..n]);
                    answers.skip(n);
                    *left -= n;
                    if *left > 0 {
                        return Ok(());
                    }
                    let AnswerState::Holding { frame, pending, .. } =
                        std::mem::replace(&mut self.answer, AnswerState::Header)
                    else {
                        return Ok(());
                    };
                    let body = frame.freeze();
                    let changed = self.on_held_answer(&body, &pending, view)?;
                    answers.push(framed(&changed.unwrap_or(body)));
                }
            }
        }
    }

    fn on_answer_header(&mut self, answers: &mut Lane, view: &View<'_>) -> Result<bool, CloseReason> {
        let bytes = answers.unparsed();
        let Some(size) = frame::read_size(bytes) else { return Ok(false) };
        if self.is_of_kernel() {
            return self.on_kernels_answer(size, answers, view);
        }
        let Some(front) = self.pending.front() else { return Err(CloseReason::Unsolicited) };
        let Head { key, version, correlation } = front.head;
        let malformed = |what: &str| CloseReason::MalformedAnswer { key, version, what: what.to_owned() };
        let body_len = u64::try_from(size).map_err(|_| malformed("its size is negative"))?;
        let frame_len = SIZE_LEN as u64 + body_len;
        let plan = match &front.due {
            Due::Broker(plan) => *plan,
            Due::Fetch(_) => AnswerPlan::Route,
            Due::Token => {
                // After handshake v0 a broker answers wrong credentials by a close.
                self.authenticated = true;
                self.take_next(view);
                self.answer = AnswerState::Passing { left: frame_len };
                return Ok(true);
            }
            // `send_ready` ran before: what is left at the front is the broker's.
            Due::Ready(_) => return Err(CloseReason::Unsolicited),
        };
        let body = &bytes[SIZE_LEN..];
        let body = &body[..body.len().min(body_len as usize)];
        let Some(got) = frame::read_response_correlation_id(body) else {
            return if body_len < 4 { Err(malformed("it has no correlation id")) } else { Ok(false) };
        };
        if CorrelationId(got) != correlation {
            return Err(CloseReason::Correlation { expected: correlation, got: CorrelationId(got) });
        }
        if plan == AnswerPlan::Authenticate {
            self.authenticated = sasl::is_accepted(version, body);
        }
        let hold = match plan {
            AnswerPlan::None
            | AnswerPlan::Stream
            | AnswerPlan::Authenticate
            | AnswerPlan::FetchScrub
            | AnswerPlan::Route => false,
            AnswerPlan::FetchHints => body_len <= view.rewrite_frame,
            AnswerPlan::CheckProduce | AnswerPlan::Rewrite | AnswerPlan::ApiVersions | AnswerPlan::Handshake => true,
        };
        if hold && body_len > view.rewrite_frame {
            return Err(CloseReason::HoldTooLarge { size, limit: view.rewrite_frame });
        }
        let Some(pending) = self.take_next(view) else { return Ok(false) };
        self.mirror_answer(pending.mirrored, pending.index, body_len);
        if let Pending { head, due: Due::Fetch(asked), .. } = pending {
            if asked.collects {
                answers.skip(SIZE_LEN);
            } else {
                answers.forward(SIZE_LEN);
            }
            let patcher = Box::new(AnswerPatcher::new(version, body_len, asked.collects, asked.bound));
            self.answer = AnswerState::Routing { patcher, asked, head };
            return Ok(true);
        }
        if !hold {
            self.answer = match plan {
                AnswerPlan::FetchHints | AnswerPlan::FetchScrub => {
                    answers.forward(SIZE_LEN);
                    let scrubber = match key {
                        ApiKey::SHARE_FETCH => HintScrubber::share_fetch(version),
                        _ => HintScrubber::new(version),
                    };
                    AnswerState::Scrubbing { left: body_len, scrubber, head: pending.head }
                }
                _ => AnswerState::Passing { left: frame_len },
            };
            return Ok(true);
        }
        self.hold_answer(body_len, pending, answers, view)?;
        Ok(true)
    }

    /// Looks at an answer as soon as it is whole.
    fn hold_answer(
        &mut self,
        body_len: u64,
        pending: Pending,
        answers: &mut Lane,
        view: &View<'_>,
    ) -> Result<(), CloseReason> {
        let whole = answers.unparsed().get(..SIZE_LEN + body_len as usize);
        // What comes of it later is mirrored as it comes.
        mirror(&mut self.tap, Side::Broker, whole.unwrap_or(&answers.unparsed()[..SIZE_LEN]));
        if let Some(body) = whole.map(|whole| &whole[SIZE_LEN..]) {
            // Whole in the buffer: looked at in place, and passed on from there when nothing changes.
            match self.on_held_answer(body, &pending, view)? {
                Some(changed) => {
                    answers.skip(SIZE_LEN + body_len as usize);
                    answers.push(framed(&changed));
                }
                None => answers.forward(SIZE_LEN + body_len as usize),
            }
        } else {
            answers.skip(SIZE_LEN);
            self.answer = AnswerState::Holding { frame: BytesMut::new(), left: body_len as usize, pending };
        }
        Ok(())
    }

    /// The request whose answer begins.
    fn take_next(&mut self, view: &View<'_>) -> Option<Pending> {
        self.answer_begins(view);
        self.pending.pop_front()
    }

    fn answer_begins(&mut self, view: &View<'_>) {
        if let Some(at) = &mut self.splice {
            at.answer = at.answer.wrapping_add(1);
            view.notes.iter().for_each(|notes| notes.set_answered(at.answer));
        }
    }

    /// Rewrites an answer where it must be. `None`: it passes as it is.
    fn on_held_answer(
        &mut self,
        body: &[u8],
        pending: &Pending,
        view: &View<'_>,
    ) -> Result<Option<Bytes>, CloseReason> {
        let Head { key, version, .. } = pending.head;
        let Due::Broker(plan) = &pending.due else { return Ok(None) };
        let malformed = |what: String| CloseReason::MalformedAnswer { key, version, what };
        let changed = match plan {
            AnswerPlan::CheckProduce if rewrite::is_clean_produce_answer(version, body) => None,
            AnswerPlan::ApiVersions => {
                let offered = view.world.offered();
                let table = versions::rewrite_api_versions(version, body, offered.as_deref(), view.policy);
                Some(table.map_err(|e| malformed(e.to_string()))?)
            }
            AnswerPlan::Handshake => {
                self.sasl.handshake_answered(body);
                self.shaking_hands = false;
                None
            }
            _ => {
                let rewritten = rewrite::rewrite_answer(key, version, body, view.world.addresses())
                    .map_err(|e| malformed(e.to_string()))?;
                self.events.extend(rewritten.seen.map(Event::Seen));
                rewritten.body
            }
        };
        if changed.is_some() {
            self.events.push(Event::Rewritten);
        }
        Ok(changed)
    }

    /// Sends the gateway's own answers whose turn has come.
    fn send_ready(&mut self, answers: &mut Lane) {
        if !matches!(self.answer, AnswerState::Header) || self.splice.is_some_and(|at| at.answers_away) {
            return;
        }
        let splice = self.splice;
        let is_due = |index: u32| splice.is_none_or(|at| index == at.answer);
        while self.pending.front().is_some_and(|front| matches!(front.due, Due::Ready(_)) && is_due(front.index)) {
            if let Some(Pending { due: Due::Ready(frame), .. }) = self.pending.pop_front() {
                answers.push(frame);
            }
        }
    }

    /// Name of the API whose answer is due next, for the log.
    pub(crate) fn oldest(&self) -> Option<&'static str> {
        self.pending.front().map(|pending| api::name(pending.head.key))
    }
}

/// Gives bytes that pass to who wants those of mirrored frames.
fn mirror(tap: &mut Option<Tap>, side: Side, bytes: &[u8]) {
    tap.iter_mut().for_each(|tap| tap.bytes(side, bytes));
}

/// Moves a routed answer on. Whether it came to its end.
fn route_answer(
    patcher: &mut AnswerPatcher,
    answers: &mut Lane,
    mut decide: Box<dyn Decide + '_>,
    head: Head,
) -> Result<bool, CloseReason> {
    loop {
        let advance = patcher.advance(answers.unparsed_mut(), &mut *decide).map_err(|what| {
            CloseReason::MalformedAnswer { key: head.key, version: head.version, what: what.to_string() }
        })?;
        match advance {
            Advance::Forward(n) => answers.forward(n),
            Advance::Skip(n) => answers.skip(n),
            Advance::Emit(bytes) => answers.push(bytes),
            Advance::NeedMore => return Ok(false),
            Advance::Done => return Ok(true),
        }
    }
}

/// What a consumer is told in its broker's place; `None` where the request can't be read. `stood_in` becomes true where it
/// was told about partitions.
fn made_fetch_answer(head: Head, body: &[u8], reads: &dyn Reads, stood_in: &mut bool) -> Option<Bytes> {
    let request = FetchRequest::read(head.version, body).ok()?;
    *stood_in |= !request.is_incremental;
    let word = |topic: fetch::Topic<'_>, partition| reads.word(topic, partition);
    fetch::made_answer(head.version, head.correlation, &request, word).ok()
}

/// Takes what is there of `left`, and counts it down.
fn take(left: &mut u64, there: usize) -> usize {
    let n = (*left).min(there as u64);
    *left -= n;
    n as usize
}

/// A body behind its size field.
fn framed(body: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(SIZE_LEN + body.len());
    frame.put_i32(body.len() as i32);
    frame.put_slice(body);
    frame.freeze()
}
