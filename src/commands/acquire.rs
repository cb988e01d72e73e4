//! `LOCK.ACQUIRE key owner ttl [REQID id]`

use super::SINCE;
use super::args::{Options, OwnerArg, Word, required, ttl};
use crate::lock::rules::{self, Acquired};
use crate::server::{
    ArgKind, ArgSpec, Args, Command, Context, Error, Key, KeyUse, Module, Reply, Spec, now,
};

/// Takes the lock when nobody holds it.
pub(crate) struct Acquire;

impl Command for Acquire {
    const SPEC: &'static Spec = &Spec {
        name: c"LOCK.ACQUIRE",
        summary: c"Acquires a lock for an owner if nobody holds it",
        complexity: c"O(1)",
        since: SINCE,
        arity: -4,
        flags: c"write deny-oom fast",
        categories: "write fast",
        tips: None,
        key: Some(KeyUse::Insert),
        args: ARGS,
    };

    fn run(ctx: Context<'_>, args: Args<'_>, module: &mut Module) -> Result<Reply, Error> {
        acquire(ctx, args, module, false)
    }
}

/// The arguments of both acquires.
pub(super) const ARGS: &[ArgSpec] = &[
    ArgSpec::new(c"key", ArgKind::Key),
    ArgSpec::new(c"owner", ArgKind::Text),
    ArgSpec::new(c"ttl", ArgKind::Integer),
    ArgSpec::option(c"REQID", c"id", ArgKind::Text),
];

/// An acquire, plain or re-entrant.
pub(super) fn acquire(
    ctx: Context<'_>,
    mut args: Args<'_>,
    module: &mut Module,
    reentrant: bool,
) -> Result<Reply, Error> {
    let key = required(&mut args)?;
    let owner_arg = OwnerArg::parse(required(&mut args)?.bytes())?;
    let ttl = ttl(required(&mut args)?.bytes())?;
    let options = Options::parse(&mut args, &[Word::Request])?;
    if owner_arg.is_made() && options.request.is_some() {
        return Err(Error::RequestOfGeneratedOwner);
    }
    let owner = owner_arg.owner()?;
    let asked = rules::Acquire {
        owner,
        ttl,
        request: options.request,
        reentrant,
    };

    let mut key = Key::for_writing(ctx, key);
    let hold = key.hold()?;
    module.observe(hold.as_ref());
    let decision = rules::acquire(hold.as_ref(), &asked, now(), &mut module.fence);
    drop(hold);
    let token = match decision {
        Acquired::Granted(token, put) | Acquired::Reentered(token, put) => {
            key.put(&put);
            token
        }
        Acquired::Repeated(token) => token,
        Acquired::Busy => return Ok(Reply::Nil),
        Acquired::TooManyHolds => return Err(Error::TooManyHolds),
        Acquired::NoToken => return Err(Error::NoToken),
    };
    Ok(if owner_arg.is_made() {
        Reply::Array(vec![
            Reply::token(token),
            Reply::Bulk(owner.bytes().to_vec()),
        ])
    } else {
        Reply::token(token)
    })
}
