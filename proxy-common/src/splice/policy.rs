// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! Which frames the kernel may pass on: a table by API key, made by the daemon for each virtual cluster.

/// API keys that the table has room for; higher ones (vendors') are the daemon's.
pub const API_KEYS: usize = 128;

/// Produce's API key.
pub const PRODUCE: u16 = 0;

/// What holds for an API. All zero: every frame of it is the daemon's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Rule {
    /// Bits of [`FORWARD`], [`MIRROR`], [`SMALL_ANSWERS_LOCAL`].
    pub flags: u16,
    /// Lowest version that is passed on.
    pub min_version: u8,
    /// Highest version that is passed on.
    pub max_version: u8,
}

/// The kernel may forward requests of this API.
pub const FORWARD: u16 = 1;
/// Requests and answers of this API are copied to the mirror.
pub const MIRROR: u16 = 2;
/// Answers below [`Policy::small_answer`] are the daemon's.
pub const SMALL_ANSWERS_LOCAL: u16 = 4;

/// The table, and what else holds for a virtual cluster's sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Policy {
    /// By API key.
    pub rules: [Rule; API_KEYS],
    /// Largest frame that is forwarded, as its size field says it; the daemon refuses the others. At most 2³⁰.
    pub max_frame: u32,
    /// Bytes below which an answer of an API with [`SMALL_ANSWERS_LOCAL`] is the daemon's, as its size field says it.
    pub small_answer: u32,
    /// Requests that may be unanswered while more are forwarded; beyond [`super::notes::RING`] it says nothing.
    pub in_flight: u32,
    /// 1: some API has [`MIRROR`]. 0: nothing is looked for, and nothing copied.
    pub mirrors: u32,
}

impl Policy {
    /// A table by which every frame is the daemon's.
    pub const NOTHING: Self = Self {
        rules: [Rule { flags: 0, min_version: 0, max_version: 0 }; API_KEYS],
        max_frame: 0,
        small_answer: 0,
        in_flight: 0,
        mirrors: 0,
    };

    /// Has the frames of an API copied to the mirror, as far as the kernel passes them on at all.
    pub const fn mirror(&mut self, api_key: u16) {
        if (api_key as usize) < API_KEYS && self.rules[api_key as usize].flags & FORWARD != 0 {
            self.rules[api_key as usize].flags |= MIRROR;
            self.mirrors = 1;
        }
    }

    /// The rule for a request, `None` where it is the daemon's.
    #[must_use]
    #[inline(always)]
    pub fn rule(&self, api_key: u16, api_version: u16) -> Option<Rule> {
        let rule = *self.rules.get(usize::from(api_key))?;
        let known = (u16::from(rule.min_version)..=u16::from(rule.max_version)).contains(&api_version);
        (known && rule.flags & FORWARD != 0).then_some(rule)
    }
}

const _: () = assert!(size_of::<Policy>() == 4 * API_KEYS + 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_needs_a_rule_that_forwards_its_version() {
        let mut policy = Policy::NOTHING;
        assert_eq!(policy.rule(1, 0), None, "no rule");
        policy.rules[1] = Rule { flags: FORWARD, min_version: 4, max_version: 15 };
        policy.rules[2] = Rule { flags: MIRROR, min_version: 0, max_version: 15 };
        assert!(policy.rule(1, 4).is_some() && policy.rule(1, 15).is_some());
        assert_eq!(policy.rule(1, 3), None, "below");
        assert_eq!(policy.rule(1, 16), None, "above the cap");
        assert_eq!(policy.rule(1, 0xffff), None, "a negative version");
        assert_eq!(policy.rule(2, 4), None, "mirrored, but not forwarded");
        assert_eq!(policy.rule(128, 0), None, "beyond the table");
        assert_eq!(policy.rule(0xffff, 0), None, "a negative key");
    }
}
