//! `LOCK.ACQUIRE key owner ttl [BLOCK timeout] [WATCHDOG] [REQID id]`

use super::SINCE;
use super::args::{Options, OwnerArg, Word, required, ttl};
use crate::lock::rules::{self, Acquired};
use crate::server::{
    ArgKind, ArgSpec, Args, Command, Context, Error, KeyUse, LockEvent, Module, Reply, Spec, Wait,
    lease_changed, open, wait, wall_clock, watch,
};

/// Takes the lock when nobody holds it.
pub(crate) struct Acquire;

impl Command for Acquire {
    const SPEC: &'static Spec = &Spec {
        name: c"LOCK.ACQUIRE",
        summary: c"Acquires a lock for an owner if nobody holds it, or waits for it",
        complexity: c"O(1)",
        since: SINCE,
        arity: -4,
        flags: c"write deny-oom fast blocking",
        categories: "write fast blocking",
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
    ArgSpec::option(c"BLOCK", c"timeout", ArgKind::Integer),
    ArgSpec::word(c"WATCHDOG", c"watchdog"),
    ArgSpec::option(c"REQID", c"id", ArgKind::Text),
];

/// An acquire, plain or re-entrant.
pub(super) fn acquire(
    ctx: Context<'_>,
    mut args: Args<'_>,
    module: &mut Module,
    reentrant: bool,
) -> Result<Reply, Error> {
    let name = required(&mut args)?;
    let owner_arg = OwnerArg::parse(required(&mut args)?.bytes())?;
    let ttl = ttl(required(&mut args)?.bytes())?;
    let options = Options::parse(&mut args, &[Word::Block, Word::Watchdog, Word::Request])?;
    if owner_arg.is_made() && options.request.is_some() {
        return Err(Error::RequestOfGeneratedOwner);
    }
    let owner = owner_arg.owner()?;
    // Whoever cannot be watched is told so before anything is granted.
    let watcher = options.watchdog.then(|| ctx.connection()).transpose()?;
    let asked = rules::Acquire {
        owner,
        ttl,
        request: options.request,
        reentrant,
    };

    let mut key = open(ctx, module, name);
    let hold = key.hold(&mut module.fence)?;
    let decision = rules::acquire(hold.as_ref(), &asked, wall_clock(), &mut module.fence);
    let deadline = hold.as_ref().and_then(|hold| hold.deadline);
    drop(hold);
    let token = match decision {
        Acquired::Granted(token, put) => {
            module.stats.grants += 1;
            key.put(&put);
            key.notify(LockEvent::Acquired);
            token
        }
        Acquired::Reentered(token, put) => {
            module.stats.reentries += 1;
            key.put(&put);
            key.notify(LockEvent::Reentered);
            lease_changed(ctx, module, &key, put.deadline);
            token
        }
        Acquired::Repeated(token) => {
            module.repeated(token, options.request);
            token
        }
        Acquired::Busy => {
            let Some(timeout) = options.timeout else {
                module.stats.refusals += 1;
                return Ok(Reply::Nil);
            };
            let request = Wait {
                asked: &asked,
                timeout,
                watch: options.watchdog,
                tells_owner: owner_arg.is_made(),
            };
            drop(key);
            return wait(ctx, module, name, deadline, &request);
        }
        Acquired::TooManyHolds => return Err(Error::TooManyHolds),
        Acquired::NoTokenLeft => return Err(Error::NoTokenLeft),
    };
    if let Some(client) = watcher {
        watch(ctx, module, &key, client, owner, token, ttl);
    }
    Ok(Reply::grant(token, owner_arg.is_made().then_some(owner)))
}
