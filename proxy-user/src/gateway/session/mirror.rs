//! What a session gives to the mirror: the frames that it passes on itself, and where the kernel had a turn in between.

use proxy_common::frame::SIZE_LEN;
use proxy_common::splice::mirror::Tally;
use proxy_common::splice::state::Side;

use super::Session;
use crate::kafka::ids::ApiKey;
use crate::splice::mirror::Tap;
use crate::splice::session as kernel;

impl Session {
    /// The connection has a session in the kernel from now on; see [`Session::splice`].
    pub(crate) fn splice_tap(&mut self, session: &kernel::Session) {
        let base = self.base;
        self.tap.iter_mut().for_each(|tap| tap.splice(session, base));
    }

    /// A direction is the daemon's again: all that the kernel has marked in it, and bytes left of the frame under way.
    pub(crate) fn tap_resumes(&mut self, side: Side, tally: Tally, prefix: u32, mirrored: bool) {
        self.tap.iter_mut().for_each(|tap| tap.resume(side, tally, prefix, mirrored));
    }

    /// A request that is passed on begins.
    pub(super) fn mirror_request(&mut self, key: ApiKey, is_answered: bool, body_len: u64) {
        let newest = self.pending.back().filter(|_| is_answered).map(|pending| pending.index);
        let index = newest.map(|index| self.base.wrapping_add(index));
        if let Some(tap) = self.tap.as_mut().filter(|_| Tap::wants(key)) {
            tap.begin(Side::Client, index, SIZE_LEN as u64 + body_len);
        }
    }

    /// An answer of the broker's begins.
    pub(super) fn mirror_answer(&mut self, mirrored: bool, index: u32, body_len: u64) {
        let index = self.base.wrapping_add(index);
        if let Some(tap) = self.tap.as_mut().filter(|_| mirrored) {
            tap.begin(Side::Broker, Some(index), SIZE_LEN as u64 + body_len);
        }
    }
}
