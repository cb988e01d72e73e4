//! `LOCK.ACQUIRE key owner ttl [BLOCK timeout] [SHARED | LIMIT n] [WATCHDOG] [REQID id]`

use super::SINCE;
use super::args::{Options, OwnerArg, Word, required, ttl};
use crate::lock::rules::{self, Acquired, Mode};
use crate::server::{
    ArgKind, ArgSpec, Args, Command, Context, Error, Held, KeyUse, Keys, LockEvent, Module, Reply,
    Spec, Wait, lease_changed, open, wait, wall_clock, watch,
};

/// Takes the lock when nobody holds it, or a share of it when it has room.
pub(crate) struct Acquire;

impl Command for Acquire {
    const SPEC: &'static Spec = &Spec {
        name: c"LOCK.ACQUIRE",
        summary: c"Acquires a lock for an owner if nobody holds it, or waits for it",
        complexity: c"O(1), or O(log N) for a share, N being the number of holders",
        since: SINCE,
        arity: -4,
        flags: c"write deny-oom fast blocking",
        categories: "write fast blocking",
        tips: None,
        keys: Keys::First(KeyUse::Insert),
        args: &[
            ArgSpec::new(c"key", ArgKind::Key),
            ArgSpec::new(c"owner", ArgKind::Text),
            ArgSpec::new(c"ttl", ArgKind::Integer),
            ArgSpec::option(c"BLOCK", c"timeout", ArgKind::Integer),
            ArgSpec::one_of(
                c"mode",
                &[
                    ArgSpec::word(c"SHARED", c"shared").choice(),
                    ArgSpec::option(c"LIMIT", c"n", ArgKind::Integer).choice(),
                ],
            ),
            ArgSpec::word(c"WATCHDOG", c"watchdog"),
            ArgSpec::option(c"REQID", c"id", ArgKind::Text),
        ],
    };

    fn run(ctx: Context<'_>, args: Args<'_>, module: &mut Module) -> Result<Reply, Error> {
        let words = [
            Word::Block,
            Word::Shared,
            Word::Limit,
            Word::Watchdog,
            Word::Request,
        ];
        acquire(ctx, args, module, &words, false)
    }
}

/// An acquire, plain or re-entrant, with the options that it knows.
pub(super) fn acquire(
    ctx: Context<'_>,
    mut args: Args<'_>,
    module: &mut Module,
    words: &[Word],
    reentrant: bool,
) -> Result<Reply, Error> {
    let name = required(&mut args)?;
    let owner_arg = OwnerArg::parse(required(&mut args)?.bytes())?;
    let ttl = ttl(required(&mut args)?.bytes())?;
    let options = Options::parse(&mut args, words)?;
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
        mode: options.shared.unwrap_or(Mode::Exclusive { reentrant }),
    };

    let mut key = open(ctx, module, name);
    let state = key.state(asked.asker(), &mut module.fence)?;
    let is_queued = module.waits.waiting_for(ctx.db(), name.bytes()) > 0;
    let decision = rules::acquire(&state, &asked, is_queued, wall_clock(), &mut module.fence);
    let next_lapse = state.next_lapse();
    drop(state);
    let token = match decision {
        Acquired::Granted(token, write) => {
            module.stats.grants += 1;
            key.grant(owner, asked.request, token, &write);
            key.notify(LockEvent::Acquired);
            token
        }
        Acquired::Reentered(token, put) => {
            module.stats.reentries += 1;
            key.put(&put);
            key.notify(LockEvent::Reentered);
            lease_changed(ctx, module, &key, Some(token), put.deadline);
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
            let held = Held {
                key: name,
                next_lapse,
            };
            drop(key);
            return wait(ctx, module, &[held], &request);
        }
        Acquired::TooManyHolds => return Err(Error::TooManyHolds),
        Acquired::NoTokenLeft => return Err(Error::NoTokenLeft),
    };
    if let Some(client) = watcher {
        watch(ctx, module, name, client, owner, token, ttl);
    }
    Ok(Reply::grant(token, owner_arg.is_made().then_some(owner)))
}
