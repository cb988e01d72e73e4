//! `LOCK.MACQUIRE numkeys key [key ...] owner ttl [BLOCK timeout] [WATCHDOG]`

use super::SINCE;
use super::args::{Options, OwnerArg, Word, keys, required, ttl};
use crate::lock::rules::{self, Acquired, LockState, Mode};
use crate::server::{
    ArgKind, ArgSpec, Args, Command, Context, Error, Held, Key, KeyUse, Keys, LockEvent, Module,
    Reply, Spec, Wait, open, wait, wall_clock, watch,
};

/// Takes several locks when nobody holds any of them, or waits until it can have all.
pub(crate) struct MultiAcquire;

impl Command for MultiAcquire {
    const SPEC: &'static Spec = &Spec {
        name: c"LOCK.MACQUIRE",
        summary: c"Acquires several locks for an owner, all of them or none, or waits for them",
        complexity: c"O(N) where N is the number of keys",
        since: SINCE,
        arity: -5,
        flags: c"write deny-oom blocking getkeys-api",
        categories: "write slow blocking",
        tips: None,
        keys: Keys::Numbered(KeyUse::Insert),
        args: &[
            ArgSpec::new(c"numkeys", ArgKind::Integer),
            ArgSpec::several(c"key", ArgKind::Key),
            ArgSpec::new(c"owner", ArgKind::Text),
            ArgSpec::new(c"ttl", ArgKind::Integer),
            ArgSpec::option(c"BLOCK", c"timeout", ArgKind::Integer),
            ArgSpec::word(c"WATCHDOG", c"watchdog"),
        ],
    };

    fn run(ctx: Context<'_>, mut args: Args<'_>, module: &mut Module) -> Result<Reply, Error> {
        let names = keys(&mut args)?;
        let owner_arg = OwnerArg::parse(required(&mut args)?.bytes())?;
        let ttl = ttl(required(&mut args)?.bytes())?;
        let options = Options::parse(&mut args, &[Word::Block, Word::Watchdog])?;
        let owner = owner_arg.owner()?;
        let watcher = options.watchdog.then(|| ctx.connection()).transpose()?;
        let asked = rules::Acquire {
            owner,
            ttl,
            request: None,
            mode: Mode::Exclusive { reentrant: false },
        };

        // What is due for one of the keys can change the others, so none is open meanwhile.
        for name in &names {
            drop(open(ctx, module, *name));
        }
        let mut held = Vec::new();
        let mut are_free = true;
        for name in &names {
            let mut key = Key::for_writing(ctx, *name);
            let state = key.state(asked.asker(), &mut module.fence)?;
            let is_queued = module.waits.waiting_for(ctx.db(), name.bytes()) > 0;
            are_free &= state == LockState::Free && !is_queued;
            held.push(Held {
                key: *name,
                next_lapse: state.next_lapse(),
            });
        }
        if !are_free {
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
            return wait(ctx, module, &held, &request);
        }
        // One grant, of which each key gets a copy.
        let granted = rules::acquire(
            &LockState::Free,
            &asked,
            false,
            wall_clock(),
            &mut module.fence,
        );
        let Acquired::Granted(token, write) = granted else {
            return Err(Error::NoTokenLeft);
        };
        for name in names {
            let mut key = Key::for_writing(ctx, name);
            module.stats.grants += 1;
            key.grant(owner, None, token, &write);
            key.notify(LockEvent::Acquired);
            if let Some(client) = watcher {
                watch(ctx, module, name, client, owner, token, ttl);
            }
        }
        Ok(Reply::grant(token, owner_arg.is_made().then_some(owner)))
    }
}
