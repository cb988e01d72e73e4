//! `LOCK.RENEW key owner ttl [TOKEN token] [WATCHDOG]`

use super::SINCE;
use super::args::{Options, Word, owner, required, ttl};
use crate::lock::rules::{self, Hold, Renewed};
use crate::server::{
    ArgKind, ArgSpec, Args, Command, Context, Error, KeyUse, LockEvent, Module, Reply, Spec,
    lease_changed, open, wall_clock, watch,
};

/// Replaces what is left of the owner's lease.
pub(crate) struct Renew;

impl Command for Renew {
    const SPEC: &'static Spec = &Spec {
        name: c"LOCK.RENEW",
        summary: c"Replaces what is left of an owner's lease",
        complexity: c"O(1)",
        since: SINCE,
        arity: -4,
        flags: c"write fast",
        categories: "write fast",
        tips: None,
        key: Some(KeyUse::Update),
        args: &[
            ArgSpec::new(c"key", ArgKind::Key),
            ArgSpec::new(c"owner", ArgKind::Text),
            ArgSpec::new(c"ttl", ArgKind::Integer),
            ArgSpec::option(c"TOKEN", c"token", ArgKind::Integer),
            ArgSpec::word(c"WATCHDOG", c"watchdog"),
        ],
    };

    fn run(ctx: Context<'_>, mut args: Args<'_>, module: &mut Module) -> Result<Reply, Error> {
        let key = required(&mut args)?;
        let owner = owner(required(&mut args)?.bytes())?;
        let ttl = ttl(required(&mut args)?.bytes())?;
        let options = Options::parse(&mut args, &[Word::Token, Word::Watchdog])?;
        let watcher = options.watchdog.then(|| ctx.connection()).transpose()?;

        let mut key = open(ctx, module, key);
        let hold = key.hold(&mut module.fence)?;
        let decision = rules::renew(hold.as_ref(), owner, options.token, ttl, wall_clock());
        let token = hold.as_ref().and_then(Hold::token);
        drop(hold);
        match decision {
            // Without a token, a later hold of the same owner would pass for the one watched.
            Renewed::Until(_) if watcher.is_some() && token.is_none() => {
                Err(Error::WatchWithoutToken)
            }
            Renewed::Until(deadline) => {
                module.stats.renewals += 1;
                key.set_deadline(deadline);
                key.notify(LockEvent::Renewed);
                lease_changed(ctx, module, &key, Some(deadline));
                if let Some((client, token)) = watcher.zip(token) {
                    watch(ctx, module, &key, client, owner, token, ttl);
                }
                Ok(Reply::DONE)
            }
            Renewed::NotYours => {
                module.stats.stale_renewals += 1;
                Ok(Reply::NOT_YOURS)
            }
            Renewed::NoLock => {
                module.stats.stale_renewals += 1;
                Ok(Reply::NO_LOCK)
            }
        }
    }
}
