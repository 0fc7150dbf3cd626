//! The part of a session that the kernel shares: which frames either passes on is known by counting them, requests that
//! get an answer and answers, each from the moment the connection was spliced.

use proxy_common::frame::SIZE_LEN;
use proxy_common::splice::notes::{Kind, Note, Notes, RING};
use proxy_common::splice::requests::{FIRST_TOPIC_IDS, produce_kind};

use super::{AnswerState, Due, Head, Pending, RequestState, Session, View};
use crate::gateway::close::CloseReason;
use crate::gateway::lane::Lane;
use crate::kafka::ids::{ApiKey, ApiVersion, CorrelationId};
use crate::route::AnswerPlan;
use crate::splice::mirror::Tap;

/// Stand for every version whose answers look the same: those of v10 up to the last that names topics, and of all that
/// have ids instead.
const PRODUCE_WITH_NAMES: ApiVersion = ApiVersion(FIRST_TOPIC_IDS as i16 - 1);
const PRODUCE_WITH_IDS: ApiVersion = ApiVersion(FIRST_TOPIC_IDS as i16);

/// While spliced: where the two sequences of frames are, whoever passes them on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Indexes {
    /// Of the next request that gets an answer.
    pub(super) request: u32,
    /// Of the next answer.
    pub(super) answer: u32,
    /// The kernel may be passing answers on: nothing is said to the client before they have been taken back.
    pub(super) answers_away: bool,
}

impl Pending {
    /// What the kernel has to know of its answer.
    pub(super) fn note(&self) -> Note {
        let kind = match &self.due {
            Due::Broker(AnswerPlan::Stream) => Kind::Plain,
            Due::Broker(AnswerPlan::CheckProduce) => produce_kind(self.head.version.0 as u16),
            _ => Kind::Local,
        };
        Note { kind, mirrored: self.mirrored }
    }
}

impl Session {
    /// Whether the prelude is over, and frames can be counted from here on, by the daemon and the kernel: nothing but
    /// requests of Kafka comes, and the broker answers each.
    pub(crate) fn can_splice(&self) -> bool {
        let by_broker = |pending: &Pending| matches!(pending.due, Due::Broker(_) | Due::Fetch(_));
        self.is_routine
            && !self.stands_in
            && !self.shaking_hands
            && self.sasl.is_kafka()
            && self.pending.len() < RING as usize / 2
            && self.pending.iter().all(by_broker)
    }

    /// From now on frames are counted, and the kernel may pass some on. See [`Self::can_splice`].
    pub(crate) fn splice(&mut self, notes: &Notes) {
        self.base = self.asked.wrapping_sub(self.pending.len() as u32);
        for (pending, index) in self.pending.iter_mut().zip(0..) {
            pending.index = index;
            notes.set(index, pending.note());
        }
        notes.set_answered(0);
        self.splice = Some(Indexes { request: self.pending.len() as u32, answer: 0, answers_away: false });
    }

    /// While spliced: indexes of the next request that gets an answer, and of the next answer.
    pub(crate) fn indexes(&self) -> Option<(u32, u32)> {
        self.splice.map(|at| (at.request, at.answer))
    }

    /// The kernel has passed requests on, up to the one with this index.
    pub(crate) fn requests_passed(&mut self, next: u32) {
        let Some(at) = &mut self.splice else { return };
        let more = ahead(next, at.request);
        at.request = at.request.wrapping_add(more);
        self.begun += u64::from(more);
    }

    /// The kernel has passed answers on, up to the one with this index.
    pub(crate) fn answers_passed(&mut self, next: u32) {
        let Some(at) = &mut self.splice else { return };
        at.answer = at.answer.wrapping_add(ahead(next, at.answer));
        let at = *at;
        let is_over = |pending: &Pending| ahead(at.answer, pending.index) > 0 && !matches!(pending.due, Due::Ready(_));
        while self.pending.front().is_some_and(is_over) {
            self.pending.pop_front();
        }
    }

    /// Requests are the daemon's again: so many raw bytes come before the next frame, which has this index.
    pub(crate) fn requests_resume(&mut self, prefix: u32, next: u32) {
        debug_assert!(matches!(self.request, RequestState::Header | RequestState::Passing { .. }));
        self.requests_passed(next);
        self.size = prefix.into();
        self.request = if prefix == 0 { RequestState::Header } else { RequestState::Passing { left: prefix.into() } };
    }

    /// Answers are the daemon's again, likewise.
    pub(crate) fn answers_resume(&mut self, prefix: u32, next: u32) {
        debug_assert!(matches!(self.answer, AnswerState::Header | AnswerState::Passing { .. }));
        self.answers_passed(next);
        self.splice.iter_mut().for_each(|at| at.answers_away = false);
        self.answer = if prefix == 0 { AnswerState::Header } else { AnswerState::Passing { left: prefix.into() } };
    }

    /// Where the kernel may go on with the requests: index of the next frame, and bytes left of the one before. `None`:
    /// the daemon has not done with what it has.
    pub(crate) fn requests_at(&self, requests: &Lane) -> Option<(u32, u32)> {
        let at = self.splice.filter(|_| requests.is_idle() && !self.shaking_hands && self.sasl.is_kafka())?;
        let left = match self.request {
            RequestState::Header => 0,
            RequestState::Passing { .. } if self.tap.as_ref().is_some_and(Tap::is_within_unanswered) => return None,
            RequestState::Passing { left } => u32::try_from(left).ok()?,
            RequestState::Holding { .. } | RequestState::Dropping { .. } => return None,
        };
        Some((at.request, left))
    }

    /// Where the kernel may go on with the answers, likewise.
    pub(crate) fn answers_at(&self, answers: &Lane) -> Option<(u32, u32)> {
        let at = self.splice.filter(|_| answers.is_idle() && !self.owes())?;
        let left = match self.answer {
            AnswerState::Header => 0,
            AnswerState::Passing { left } => u32::try_from(left).ok()?,
            AnswerState::Scrubbing { .. } | AnswerState::Routing { .. } | AnswerState::Holding { .. } => return None,
        };
        Some((at.answer, left))
    }

    /// The kernel was given leave to pass answers on.
    pub(crate) fn give_answers_away(&mut self) {
        self.splice.iter_mut().for_each(|at| at.answers_away = true);
    }

    /// The answers are the daemon's, and no leave is given.
    pub(crate) fn take_answers_back(&mut self) {
        self.splice.iter_mut().for_each(|at| at.answers_away = false);
    }

    /// The kernel has passed nothing on, and won't.
    pub(crate) fn unsplice(&mut self) {
        let Some(at) = self.splice.take() else { return };
        self.asked = self.base.wrapping_add(at.request);
        self.pending.iter_mut().for_each(|pending| pending.index = pending.index.wrapping_add(self.base));
        self.base = 0;
        self.tap.iter_mut().for_each(Tap::unsplice);
    }

    /// Says to the client what the gateway has to say, where its turn has come.
    pub(crate) fn say_own(&mut self, answers: &mut Lane) {
        self.send_ready(answers);
    }

    /// Whether the gateway has something of its own to say to the client.
    pub(crate) fn owes(&self) -> bool {
        self.pending.iter().any(|pending| matches!(pending.due, Due::Ready(_)))
    }

    /// Whether the kernel passed on the request whose answer is due.
    pub(super) fn is_of_kernel(&self) -> bool {
        let Some(at) = self.splice else { return false };
        let broker_owes = at.request != at.answer;
        broker_owes && self.pending.front().is_none_or(|front| front.index != at.answer)
    }

    /// An answer to a request that the kernel passed on, and that the kernel left to the daemon: a Produce that failed, or
    /// one that merely came in a daemon's turn.
    pub(super) fn on_kernels_answer(
        &mut self,
        size: i32,
        answers: &mut Lane,
        view: &View<'_>,
    ) -> Result<bool, CloseReason> {
        let Some(at) = self.splice else { return Ok(false) };
        let kind = view.notes.map_or(Kind::Unknown, |notes| notes.get(at.answer).kind);
        let version = match kind {
            Kind::Plain | Kind::LocalIfSmaller => None,
            Kind::Produce => Some(PRODUCE_WITH_NAMES),
            Kind::ProduceIds => Some(PRODUCE_WITH_IDS),
            Kind::Unknown | Kind::Local => return Err(CloseReason::Unsolicited),
        };
        let (key, shown) = (ApiKey::PRODUCE, version.unwrap_or(ApiVersion(0)));
        let malformed = |what: String| CloseReason::MalformedAnswer { key, version: shown, what };
        let body_len = u64::try_from(size).map_err(|_| malformed("its size is negative".to_owned()))?;
        let mirrored = view.notes.is_some_and(|notes| notes.get(at.answer).mirrored);
        let Some(version) = version else {
            self.answer_begins(view);
            self.mirror_answer(mirrored, at.answer, body_len);
            self.answer = AnswerState::Passing { left: SIZE_LEN as u64 + body_len };
            return Ok(true);
        };
        if body_len > view.rewrite_frame {
            return Err(CloseReason::HoldTooLarge { size, limit: view.rewrite_frame });
        }
        self.answer_begins(view);
        self.mirror_answer(mirrored, at.answer, body_len);
        // The correlation id is the client's to check: only the kernel saw that of the request.
        let head = Head { key, version, correlation: CorrelationId(0) };
        self.hold_answer(body_len, Pending::new(head, Due::Broker(AnswerPlan::CheckProduce)), answers, view)?;
        Ok(true)
    }
}

/// How far an index is ahead of another; 0 where it is not. Indexes wrap.
pub(crate) const fn ahead(index: u32, of: u32) -> u32 {
    let more = index.wrapping_sub(of);
    if more <= u32::MAX / 2 { more } else { 0 }
}
