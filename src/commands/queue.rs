//! `LOCK.QUEUE key [COUNT count]`

use super::SINCE;
use super::args::{DEFAULT_COUNT, Options, Word, required};
use crate::server::{
    ArgKind, ArgSpec, Args, Command, Context, Error, KeyUse, Module, Reply, Spec, clocks,
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
        key: Some(KeyUse::Read),
        args: &[
            ArgSpec::new(c"key", ArgKind::Key),
            ArgSpec::option(c"COUNT", c"count", ArgKind::Integer),
        ],
    };

    fn run(ctx: Context<'_>, mut args: Args<'_>, module: &mut Module) -> Result<Reply, Error> {
        let key = required(&mut args)?.bytes();
        let options = Options::parse(&mut args, &[Word::Count])?;

        let now = clocks().steady;
        let line = |owner: &[u8], client: u64, waited: u64| {
            Reply::Map(vec![
                (Reply::Word("owner"), Reply::Bulk(owner.to_vec())),
                (Reply::Word("client-id"), Reply::unsigned(client)),
                (Reply::Word("waited"), Reply::unsigned(waited)),
                (Reply::Word("mode"), Reply::Word("exclusive")),
            ])
        };
        Ok(Reply::Array(
            module
                .waits
                .queue_of(ctx.db(), key)
                .take(options.count.unwrap_or(DEFAULT_COUNT))
                .map(|waiter| {
                    line(
                        waiter.owner.as_owner().bytes(),
                        waiter.client.client_id.0,
                        now.0.saturating_sub(waiter.since.0),
                    )
                })
                .collect(),
        ))
    }
}
