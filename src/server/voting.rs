//! Whether this server may vote in a quorum.
//!
//! A node that restarts and has forgotten a lock would vote for a second holder. With
//! `appendfsync always` it has forgotten none. Otherwise it does not vote until every lock that it
//! can have forgotten has lapsed: for `lock.quorum-max-ttl`, the longest ttl that a node grants.
//!
//! Both are looked at while the module is loaded, since a setting that is changed later says
//! nothing about what was on disk before. From then on a clock counts that nobody sets.
//!
//! A server that was a replica has what its primary sent it. That may lack the last votes of the
//! primary, and has lost those of its own from before. So it waits as well when it is promoted.

use super::api::api;
use super::clock::clocks;
use super::context::Context;
use super::reply::Error;
use super::state::Module;
use crate::lock::lease::Ttl;
use crate::lock::time::SteadyMillis;
use crate::quorum::round::validity;
use redis_module::raw;
use std::ffi::CStr;

/// What is known of it. By default it is just being started, and may have forgotten everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Voting {
    /// It may have forgotten what was granted before it started, or before it was promoted.
    Forgetful {
        /// When the module was loaded, or the server was promoted.
        since: SteadyMillis,
        /// For how many milliseconds the server had been running then, at least; 0 if it was
        /// promoted.
        ran_ms: u64,
    },
    /// It remembers what it has granted, and has not voted yet.
    Ready,
    /// It has voted. What it granted since then it remembers, or is gone with it.
    Begun,
}

impl Default for Voting {
    fn default() -> Self {
        Self::Forgetful {
            since: SteadyMillis(0),
            ran_ms: 0,
        }
    }
}

impl Voting {
    /// What is known when the module is loaded.
    pub(super) fn of_server(ctx: Context<'_>) -> Self {
        if forgets_nothing(ctx) {
            return Self::Ready;
        }
        // The server counts from the beginning of one second to that of another, and so can be
        // nearly one second ahead.
        let uptime = uptime_seconds(ctx).saturating_sub(1);
        Self::Forgetful {
            since: clocks().steady,
            ran_ms: uptime.saturating_mul(1_000),
        }
    }

    /// What is known of a server that was a replica until now.
    pub(super) fn of_promoted() -> Self {
        Self::Forgetful {
            since: clocks().steady,
            ran_ms: 0,
        }
    }

    /// Whether it may vote, when locks can have been granted for so many milliseconds.
    fn may_vote(self, now: SteadyMillis, max_ttl_ms: u64) -> bool {
        match self {
            Self::Forgetful { since, ran_ms } => {
                let loaded_ms = now.0.saturating_sub(since.0);
                ran_ms.saturating_add(loaded_ms) > max_ttl_ms
            }
            Self::Ready | Self::Begun => true,
        }
    }
}

/// Makes sure that the server may vote.
///
/// It begins with its clock as the highest token: it has forgotten the tokens of locks that are gone,
/// and a coordinator's clock can be behind. One that has forgotten no lock does so when the module is
/// loaded, and not later: its first vote can then be for the token that is proposed.
pub(crate) fn check_may_vote(module: &mut Module) -> Result<(), Error> {
    if module.voting == Voting::Begun {
        return Ok(());
    }
    let now = clocks();
    if !module.voting.may_vote(now.steady, module.quorum_max_ttl_ms) {
        return Err(Error::MayNotVote);
    }
    if module.voting != Voting::Ready {
        module.fence.begin(now.wall);
    }
    module.voting = Voting::Begun;
    Ok(())
}

/// Makes sure that a ttl is one that a restarted node waits for.
pub(crate) fn check_quorum_ttl(module: &Module, ttl: Ttl) -> Result<(), Error> {
    if ttl.millis() > module.quorum_max_ttl_ms {
        return Err(Error::TtlOverMax);
    }
    Ok(())
}

/// Makes sure that a ttl is one that a round can grant.
pub(crate) fn check_round_ttl(module: &Module, ttl: Ttl) -> Result<(), Error> {
    check_quorum_ttl(module, ttl)?;
    validity(ttl, 0).map(drop).ok_or(Error::TtlTooShort)
}

/// Whether every write of this server is on disk before it is answered.
fn forgets_nothing(ctx: Context<'_>) -> bool {
    has_setting(ctx, c"appendonly", b"yes")
        && has_setting(ctx, c"appendfsync", b"always")
        && has_setting(ctx, c"no-appendfsync-on-rewrite", b"no")
}

/// Whether a setting of the server has a value. False if the server does not tell.
fn has_setting(ctx: Context<'_>, name: &CStr, value: &[u8]) -> bool {
    // SAFETY: the context is alive, and each letter of the format has its C string. What is taken
    // out of the reply belongs to it, and is compared before the one who got it frees it.
    unsafe {
        let reply = api!(RedisModule_Call(
            ctx.as_raw(),
            c"CONFIG".as_ptr(),
            c"cc".as_ptr(),
            c"GET".as_ptr(),
            name.as_ptr()
        ));
        if reply.is_null() {
            return false;
        }
        let kind = api!(RedisModule_CallReplyType(reply));
        let mut is_so = false;
        if kind.try_into() == Ok(raw::REDISMODULE_REPLY_ARRAY)
            && api!(RedisModule_CallReplyLength(reply)) == 2
        {
            let found = api!(RedisModule_CallReplyArrayElement(reply, 1));
            let mut len = 0;
            let start = api!(RedisModule_CallReplyStringPtr(found, &raw mut len));
            is_so = !start.is_null()
                && std::slice::from_raw_parts(start.cast::<u8>(), len).eq_ignore_ascii_case(value);
        }
        api!(RedisModule_FreeCallReply(reply));
        is_so
    }
}

/// For how many whole seconds the server runs.
fn uptime_seconds(ctx: Context<'_>) -> u64 {
    let mut error = 0;
    // SAFETY: the context is alive, names end with a NUL, and the data is freed by the one who got
    // it.
    unsafe {
        let data = api!(RedisModule_GetServerInfo(ctx.as_raw(), c"server".as_ptr()));
        if data.is_null() {
            return 0;
        }
        let uptime = api!(RedisModule_ServerInfoGetFieldUnsigned(
            data,
            c"uptime_in_seconds".as_ptr(),
            &raw mut error
        ));
        api!(RedisModule_FreeServerInfo(ctx.as_raw(), data));
        if error == 0 { uptime } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forgetful_server_votes_when_the_longest_ttl_is_over() {
        let voting = Voting::Forgetful {
            since: SteadyMillis(500),
            ran_ms: 2_000,
        };
        for (now, max_ttl_ms, may) in [
            (500, 2_000, false),
            (501, 2_000, true),
            (500, 1_999, true),
            (0, 1_999, true),
            (8_500, 10_000, false),
            (8_501, 10_000, true),
            (u64::MAX, u64::MAX, false),
        ] {
            assert_eq!(voting.may_vote(SteadyMillis(now), max_ttl_ms), may, "{now}");
        }
        assert!(!Voting::default().may_vote(SteadyMillis(60_000), 60_000));
        for voting in [Voting::Ready, Voting::Begun] {
            assert!(voting.may_vote(SteadyMillis(0), u64::MAX));
        }
    }
}
