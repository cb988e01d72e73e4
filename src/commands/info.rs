//! `LOCK.INFO key`

use super::SINCE;
use super::args::{end, required};
use crate::lock::rules::{Hold, Layout};
use crate::lock::time::UnixMillis;
use crate::server::{
    ArgKind, ArgSpec, Args, Command, Context, Error, Key, KeyUse, Module, Reply, Spec, wall_clock,
};

/// Shows who holds a lock.
pub(crate) struct Info;

impl Command for Info {
    const SPEC: &'static Spec = &Spec {
        name: c"LOCK.INFO",
        summary: c"Shows who holds a lock, how often, for how long, and under which token",
        complexity: c"O(1)",
        since: SINCE,
        arity: 2,
        flags: c"readonly fast",
        categories: "read fast",
        tips: Some(c"nondeterministic_output"),
        key: Some(KeyUse::Read),
        args: &[ArgSpec::new(c"key", ArgKind::Key)],
    };

    fn run(ctx: Context<'_>, mut args: Args<'_>, module: &mut Module) -> Result<Reply, Error> {
        let name = required(&mut args)?;
        end(&mut args)?;

        let waiters = module.waits.waiting_for(ctx.db(), name.bytes());
        let key = Key::for_reading(ctx, name);
        let hold = key.hold(&mut module.fence)?;
        Ok(describe(hold.as_ref(), waiters, wall_clock().as_millis()))
    }
}

/// The same fields in the same order for every lock, so that nobody has to look whether one is
/// there. `ttl` follows `PTTL`: -1 without a TTL, -2 without a key.
fn describe(hold: Option<&Hold<'_>>, waiters: usize, now: UnixMillis) -> Reply {
    let (state, mode, ttl) = match hold {
        None => ("free", Reply::Nil, -2),
        Some(Hold { deadline, .. }) => (
            "held",
            Reply::Word("exclusive"),
            deadline.map_or(-1, |deadline| deadline.left(now)),
        ),
    };
    let owners = hold.map(|hold| {
        (
            Reply::Bulk(hold.owner.to_vec()),
            Reply::Integer(i64::try_from(hold.holds).unwrap_or(i64::MAX)),
        )
    });
    let token = hold.and_then(Hold::token);
    let layout = hold.map(|hold| match hold.layout {
        Layout::Module { .. } => "module",
        Layout::Plain => "plain",
        Layout::Hash => "hash",
    });
    Reply::Map(vec![
        (Reply::Word("state"), Reply::Word(state)),
        (Reply::Word("mode"), mode),
        (
            Reply::Word("owners"),
            Reply::Map(owners.into_iter().collect()),
        ),
        (Reply::Word("token"), token.map_or(Reply::Nil, Reply::token)),
        (Reply::Word("ttl"), Reply::Integer(ttl)),
        (Reply::Word("waiters"), Reply::count(waiters)),
        (
            Reply::Word("layout"),
            layout.map_or(Reply::Nil, Reply::Word),
        ),
        (
            Reply::Word("age"),
            token.map_or(Reply::Nil, |token| Reply::Integer(token.age(now))),
        ),
    ])
}
