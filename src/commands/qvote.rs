//! `LOCK.QVOTE key owner ttl token attempt [SHARED]`

use super::SINCE;
use super::args::{Options, Word, attempt, owner, required, token, ttl};
use crate::lock::fence::{Fence, Token};
use crate::quorum::vote::{Ballot, Voted, vote};
use crate::server::{
    ArgKind, ArgSpec, Args, Command, Context, Error, Key, KeyUse, Keys, LockEvent, Module, Reply,
    Spec, check_may_vote, check_quorum_ttl, lease_changed, open, wall_clock,
};

/// Grants this node's part of a lock over a quorum. Coordinators send it.
pub(crate) struct Vote;

impl Command for Vote {
    const SPEC: &'static Spec = &Spec {
        name: c"LOCK.QVOTE",
        summary: c"Grants this node's part of a lock over a quorum, for coordinators",
        complexity: c"O(1), or O(log N) for a share, N being the number of holders",
        since: SINCE,
        arity: -6,
        flags: c"write deny-oom fast",
        categories: "write fast",
        tips: None,
        keys: Keys::First(KeyUse::Insert),
        args: &[
            ArgSpec::new(c"key", ArgKind::Key),
            ArgSpec::new(c"owner", ArgKind::Text),
            ArgSpec::new(c"ttl", ArgKind::Integer),
            ArgSpec::new(c"token", ArgKind::Integer),
            ArgSpec::new(c"attempt", ArgKind::Integer),
            ArgSpec::word(c"SHARED", c"shared"),
        ],
    };

    fn run(ctx: Context<'_>, mut args: Args<'_>, module: &mut Module) -> Result<Reply, Error> {
        let name = required(&mut args)?;
        let owner = owner(required(&mut args)?.bytes())?;
        let ttl = ttl(required(&mut args)?.bytes())?;
        let token = token(required(&mut args)?.bytes(), "token")?;
        let attempt = attempt(required(&mut args)?.bytes())?;
        let options = Options::parse(&mut args, &[Word::Shared])?;
        check_ahead(token, "token")?;
        check_quorum_ttl(module, ttl)?;
        check_may_vote(module)?;
        let ballot = Ballot::new(owner, ttl, attempt, options.shared.is_some());

        let mut key = open(ctx, module, name);
        let state = key.state(ballot.asked().asker(), &mut module.fence)?;
        let is_queued = module.waits.waiting_for(ctx.db(), name.bytes()) > 0;
        let now = wall_clock();
        let (ended, fence) = (&module.ended_attempts, &mut module.fence);
        let decision = vote(&state, &ballot, token, is_queued, ended, now, fence);
        drop(state);
        carry_out(ctx, module, &mut key, &ballot, decision)
    }
}

/// Makes sure that a token is one that a server can have minted.
pub(super) fn check_ahead(token: Token, name: &'static str) -> Result<(), Error> {
    if Fence::is_forged(token, wall_clock()) {
        return Err(Error::TokenAhead(name));
    }
    Ok(())
}

/// Writes what was decided about the lock of an open key.
pub(super) fn carry_out(
    ctx: Context<'_>,
    module: &mut Module,
    key: &mut Key<'_>,
    ballot: &Ballot<'_>,
    decision: Voted,
) -> Result<Reply, Error> {
    let owner = ballot.owner;
    let token = match decision {
        Voted::Granted(token, write) => {
            module.stats.votes += 1;
            key.grant(owner, ballot.asked().request, token, &write);
            key.notify(LockEvent::Acquired);
            token
        }
        Voted::Kept(token, deadline) => {
            if let Some(deadline) = deadline {
                key.renew(owner, deadline);
            }
            key.notify(LockEvent::Renewed);
            lease_changed(ctx, module, key, Some(token), deadline);
            token
        }
        Voted::Settled(token, write) => {
            key.grant(owner, ballot.asked().request, token, &write);
            key.notify(LockEvent::Renewed);
            lease_changed(ctx, module, key, Some(token), write.deadline());
            token
        }
        Voted::Refused => {
            module.stats.refused_votes += 1;
            return Ok(Reply::Nil);
        }
        Voted::NoTokenLeft => return Err(Error::NoTokenLeft),
    };
    Ok(Reply::token(token))
}
