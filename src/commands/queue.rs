//! `LOCK.QUEUE key [COUNT count]`

use super::SINCE;
use super::args::{DEFAULT_COUNT, Options, Word, required};
use crate::lock::queue::Waiter;
use crate::lock::rules::Mode;
use crate::lock::time::SteadyMillis;
use crate::server::{
    ArgKind, ArgSpec, Args, Blocked, Command, Context, Error, KeyUse, Keys, Module, Reply, Spec,
    clocks,
};

/// Shows who waits for a lock, in the order in which they will be granted.
pub(crate) struct Queue;

impl Command for Queue {
    const SPEC: &'static Spec = &Spec {
        name: c"LOCK.QUEUE",
        summary: c"Shows who waits for a lock, in the order in which they will be granted",
        complexity: c"O(N) where N is the number of waiters shown",
        since: SINCE,
        arity: -2,
        flags: c"readonly",
        categories: "read slow",
        tips: Some(c"nondeterministic_output"),
        keys: Keys::First(KeyUse::Read),
        args: &[
            ArgSpec::new(c"key", ArgKind::Key),
            ArgSpec::option(c"COUNT", c"count", ArgKind::Integer),
        ],
    };

    fn run(ctx: Context<'_>, mut args: Args<'_>, module: &mut Module) -> Result<Reply, Error> {
        let key = required(&mut args)?.bytes();
        let options = Options::parse(&mut args, &[Word::Count])?;

        let now = clocks().steady;
        Ok(Reply::Array(
            module
                .waits
                .queue_of(ctx.db(), key)
                .take(options.count.unwrap_or(DEFAULT_COUNT))
                .map(|waiter| describe(waiter, now))
                .collect(),
        ))
    }
}

/// The line of one waiter.
fn describe(waiter: &Waiter<Blocked>, now: SteadyMillis) -> Reply {
    let owner = waiter.owner.as_owner().bytes().to_vec();
    let waited = now.0.saturating_sub(waiter.since.0);
    let (mode, limit) = match waiter.mode {
        Mode::Exclusive { .. } => ("exclusive", None),
        Mode::Shared { limit: None } => ("shared", None),
        Mode::Shared { limit } => ("limit", limit),
    };
    let limit = limit.map_or(Reply::Nil, |limit| Reply::Integer(limit.get().into()));
    Reply::Map(vec![
        (Reply::Word("owner"), Reply::Bulk(owner)),
        (
            Reply::Word("client-id"),
            Reply::unsigned(waiter.client.client_id.0),
        ),
        (Reply::Word("waited"), Reply::unsigned(waited)),
        (Reply::Word("mode"), Reply::Word(mode)),
        (Reply::Word("limit"), limit),
    ])
}
