//! `LOCK.QSETTLE key owner ttl attempt from to [SHARED]`

use super::SINCE;
use super::args::{Options, Word, attempt, owner, required, token, ttl};
use super::qvote::{carry_out, check_ahead};
use crate::quorum::vote::{Ballot, settle};
use crate::server::{
    ArgKind, ArgSpec, Args, Command, Context, Error, KeyUse, Keys, Module, Reply, Spec,
    check_may_vote, check_quorum_ttl, open, wall_clock,
};

/// Gives this node's part of a lock over a quorum the token that the quorum decided on.
/// Coordinators send it.
pub(crate) struct Settle;

impl Command for Settle {
    /// It takes no more memory than the vote did, so a full server does not refuse it.
    const SPEC: &'static Spec = &Spec {
        name: c"LOCK.QSETTLE",
        summary: c"Sets the token of this node's part of a lock over a quorum, for coordinators",
        complexity: c"O(1), or O(log N) for a share, N being the number of holders",
        since: SINCE,
        arity: -7,
        flags: c"write fast",
        categories: "write fast",
        tips: None,
        keys: Keys::First(KeyUse::Update),
        args: &[
            ArgSpec::new(c"key", ArgKind::Key),
            ArgSpec::new(c"owner", ArgKind::Text),
            ArgSpec::new(c"ttl", ArgKind::Integer),
            ArgSpec::new(c"attempt", ArgKind::Integer),
            ArgSpec::new(c"from", ArgKind::Integer),
            ArgSpec::new(c"to", ArgKind::Integer),
            ArgSpec::word(c"SHARED", c"shared"),
        ],
    };

    fn run(ctx: Context<'_>, mut args: Args<'_>, module: &mut Module) -> Result<Reply, Error> {
        let key = required(&mut args)?;
        let owner = owner(required(&mut args)?.bytes())?;
        let ttl = ttl(required(&mut args)?.bytes())?;
        let attempt = attempt(required(&mut args)?.bytes())?;
        let from = token(required(&mut args)?.bytes(), "from")?;
        let to = token(required(&mut args)?.bytes(), "to")?;
        let options = Options::parse(&mut args, &[Word::Shared])?;
        check_ahead(to, "to")?;
        check_quorum_ttl(module, ttl)?;
        check_may_vote(module)?;
        let ballot = Ballot::new(owner, ttl, attempt, options.shared.is_some());

        let mut key = open(ctx, module, key);
        let state = key.state(ballot.asked().asker(), &mut module.fence)?;
        let tokens = (from, to);
        let decision = settle(&state, &ballot, tokens, wall_clock(), &mut module.fence);
        drop(state);
        carry_out(ctx, module, &mut key, &ballot, decision)
    }
}
