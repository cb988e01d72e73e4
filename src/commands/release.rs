//! `LOCK.RELEASE key owner [TOKEN token]`

use super::SINCE;
use super::args::{Options, Word, owner, required};
use crate::lock::rules::{self, Released, Remainder};
use crate::server::{
    ArgKind, ArgSpec, Args, Command, Context, Error, KeyUse, LockEvent, Module, Reply, Spec, free,
    open,
};

/// Ends one hold of the owner's.
pub(crate) struct Release;

impl Command for Release {
    const SPEC: &'static Spec = &Spec {
        name: c"LOCK.RELEASE",
        summary: c"Ends one hold of an owner; the lock is free after the last one",
        complexity: c"O(1)",
        since: SINCE,
        arity: -3,
        flags: c"write fast",
        categories: "write fast",
        tips: None,
        key: Some(KeyUse::Delete),
        args: &[
            ArgSpec::new(c"key", ArgKind::Key),
            ArgSpec::new(c"owner", ArgKind::Text),
            ArgSpec::option(c"TOKEN", c"token", ArgKind::Integer),
        ],
    };

    fn run(ctx: Context<'_>, mut args: Args<'_>, module: &mut Module) -> Result<Reply, Error> {
        let key = required(&mut args)?;
        let owner = owner(required(&mut args)?.bytes())?;
        let options = Options::parse(&mut args, &[Word::Token])?;

        let mut key = open(ctx, module, key);
        let hold = key.hold(&mut module.fence)?;
        let decision = rules::release(hold.as_ref(), owner, options.token);
        drop(hold);
        let remainder = match decision {
            Released::Ended(remainder) => remainder,
            Released::NotYours => {
                module.stats.stale_releases += 1;
                return Ok(Reply::NOT_YOURS);
            }
            Released::NoLock => {
                module.stats.stale_releases += 1;
                return Ok(Reply::NO_LOCK);
            }
        };
        module.stats.releases += 1;
        key.notify(LockEvent::Released);
        match remainder {
            Remainder::Free => free(ctx, module, &mut key),
            Remainder::Record(put) => key.put(&put),
            Remainder::HashCount(holds) => key.set_hash_count(owner.bytes(), holds),
        }
        Ok(Reply::DONE)
    }
}
