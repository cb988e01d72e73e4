//! `LOCK.CONTENDED [COUNT count]`

use super::SINCE;
use super::args::{DEFAULT_COUNT, Options, Word};
use crate::server::{ArgKind, ArgSpec, Args, Command, Context, Error, Keys, Module, Reply, Spec};
use std::cmp::Reverse;

/// Shows the locks that most clients wait for.
pub(crate) struct Contended;

impl Command for Contended {
    const SPEC: &'static Spec = &Spec {
        name: c"LOCK.CONTENDED",
        summary: c"Shows the locks of this database that somebody waits for, longest queue first",
        complexity: c"O(N log N) where N is the number of locks that somebody waits for",
        since: SINCE,
        arity: -1,
        flags: c"readonly",
        categories: "read slow",
        tips: Some(c"nondeterministic_output request_policy:all_shards response_policy:special"),
        keys: Keys::None,
        args: &[ArgSpec::option(c"COUNT", c"count", ArgKind::Integer)],
    };

    fn run(ctx: Context<'_>, mut args: Args<'_>, module: &mut Module) -> Result<Reply, Error> {
        let options = Options::parse(&mut args, &[Word::Count])?;

        let mut locks: Vec<_> = module.waits.contended(ctx.db()).collect();
        locks.sort_by_key(|&(key, waiters)| (Reverse(waiters), key));
        Ok(Reply::Array(
            locks
                .into_iter()
                .take(options.count.unwrap_or(DEFAULT_COUNT))
                .map(|(key, waiters)| {
                    Reply::Array(vec![Reply::Bulk(key.to_vec()), Reply::count(waiters)])
                })
                .collect(),
        ))
    }
}
