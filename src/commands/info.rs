//! `LOCK.INFO key`

use super::SINCE;
use super::args::{end, required};
use crate::lock::fence::Token;
use crate::lock::lease::Deadline;
use crate::lock::time::UnixMillis;
use crate::server::{
    ArgKind, ArgSpec, Args, Command, Context, Error, Holder, HolderLayout, Key, KeyUse, Keys,
    Module, Reply, Spec, wall_clock,
};

/// Shows who holds a lock.
pub(crate) struct Info;

impl Command for Info {
    const SPEC: &'static Spec = &Spec {
        name: c"LOCK.INFO",
        summary: c"Shows who holds a lock, how often, for how long, and under which token",
        complexity: c"O(N) where N is the number of holders",
        since: SINCE,
        arity: 2,
        flags: c"readonly",
        categories: "read slow",
        tips: Some(c"nondeterministic_output"),
        keys: Keys::First(KeyUse::Read),
        args: &[ArgSpec::new(c"key", ArgKind::Key)],
    };

    fn run(ctx: Context<'_>, mut args: Args<'_>, module: &mut Module) -> Result<Reply, Error> {
        let name = required(&mut args)?;
        end(&mut args)?;

        let waiters = module.waits.waiting_for(ctx.db(), name.bytes());
        let key = Key::for_reading(ctx, name);
        let holders = key.holders(&mut module.fence)?;
        Ok(describe(&holders, waiters, wall_clock().as_millis()))
    }
}

/// The same fields in the same order for every lock, so that nobody has to look whether one is
/// there. `ttl` follows `PTTL`: -1 without a TTL, -2 without a key. Where several share the lock,
/// the token and the age are those of the last grant, and the ttl that of the longest lease.
fn describe(holders: &[Holder], waiters: usize, now: UnixMillis) -> Reply {
    let ttl = |deadline: Option<Deadline>| deadline.map_or(-1, |deadline| deadline.left(now));
    let last = holders.iter().max_by_key(|holder| holder.token);
    let token = last.and_then(|holder| holder.token);
    let mode = last.map(|holder| match holder.layout {
        HolderLayout::Share => "shared",
        _ => "exclusive",
    });
    let layout = last.map(|holder| match holder.layout {
        HolderLayout::Record | HolderLayout::Share => "module",
        HolderLayout::Plain => "plain",
        HolderLayout::Hash => "hash",
    });
    let state = if holders.is_empty() { "free" } else { "held" };
    let token_or_nil = |token: Option<Token>| token.map_or(Reply::Nil, Reply::token);
    let owners = holders
        .iter()
        .map(|holder| {
            (
                Reply::Bulk(holder.owner.clone()),
                Reply::unsigned(holder.holds),
            )
        })
        .collect();
    let grants = holders
        .iter()
        .map(|holder| {
            Reply::Map(vec![
                (Reply::Word("owner"), Reply::Bulk(holder.owner.clone())),
                (Reply::Word("token"), token_or_nil(holder.token)),
                (Reply::Word("ttl"), Reply::Integer(ttl(holder.deadline))),
            ])
        })
        .collect();
    let longest = holders.iter().map(|holder| ttl(holder.deadline)).max();
    Reply::Map(vec![
        (Reply::Word("state"), Reply::Word(state)),
        (Reply::Word("mode"), mode.map_or(Reply::Nil, Reply::Word)),
        (Reply::Word("owners"), Reply::Map(owners)),
        (Reply::Word("token"), token_or_nil(token)),
        (Reply::Word("ttl"), Reply::Integer(longest.unwrap_or(-2))),
        (Reply::Word("waiters"), Reply::count(waiters)),
        (
            Reply::Word("layout"),
            layout.map_or(Reply::Nil, Reply::Word),
        ),
        (
            Reply::Word("age"),
            token.map_or(Reply::Nil, |token| Reply::Integer(token.age(now))),
        ),
        (Reply::Word("grants"), Reply::Array(grants)),
    ])
}
