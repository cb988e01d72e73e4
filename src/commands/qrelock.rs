//! `LOCK.QRELOCK key owner ttl token attempt at within [SHARED]`

use super::SINCE;
use super::args::{Options, Word, attempt, millis, owner, required, token, ttl};
use super::qvote::{carry_out, check_ahead};
use crate::lock::time::UnixMillis;
use crate::quorum::vote::{Ballot, Window, relock};
use crate::server::{
    ArgKind, ArgSpec, Args, Command, Context, Error, KeyUse, Keys, Module, Reply, Spec,
    check_may_vote, check_quorum_ttl, open, wall_clock,
};

/// Takes up again a lock that a majority of a quorum holds and this node lost. Coordinators send
/// it.
pub(crate) struct Relock;

impl Command for Relock {
    const SPEC: &'static Spec = &Spec {
        name: c"LOCK.QRELOCK",
        summary: c"Takes up a lock again that a quorum holds and this node lost, for coordinators",
        complexity: c"O(1), or O(log N) for a share, N being the number of holders",
        since: SINCE,
        arity: -8,
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
            ArgSpec::new(c"at", ArgKind::Integer),
            ArgSpec::new(c"within", ArgKind::Integer),
            ArgSpec::word(c"SHARED", c"shared"),
        ],
    };

    fn run(ctx: Context<'_>, mut args: Args<'_>, module: &mut Module) -> Result<Reply, Error> {
        let name = required(&mut args)?;
        let owner = owner(required(&mut args)?.bytes())?;
        let ttl = ttl(required(&mut args)?.bytes())?;
        let token = token(required(&mut args)?.bytes(), "token")?;
        let attempt = attempt(required(&mut args)?.bytes())?;
        let at = millis(required(&mut args)?.bytes(), "at")?;
        let within = millis(required(&mut args)?.bytes(), "within")?;
        let options = Options::parse(&mut args, &[Word::Shared])?;
        check_ahead(token, "token")?;
        check_quorum_ttl(module, ttl)?;
        check_may_vote(module)?;
        let ballot = Ballot::new(owner, ttl, attempt, options.shared.is_some());
        let window = Window {
            at: UnixMillis(at),
            within: within.unsigned_abs(),
        };

        let mut key = open(ctx, module, name);
        let state = key.state(ballot.asked().asker(), &mut module.fence)?;
        let is_queued = module.waits.waiting_for(ctx.db(), name.bytes()) > 0;
        let now = wall_clock();
        let (ended, fence) = (&module.ended_attempts, &mut module.fence);
        let decision = relock(&state, &ballot, token, window, is_queued, ended, now, fence);
        drop(state);
        carry_out(ctx, module, &mut key, &ballot, decision)
    }
}
