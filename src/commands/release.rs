//! `LOCK.RELEASE key owner [TOKEN token]`

use super::SINCE;
use super::args::{Options, Word, owner, required};
use crate::lock::fence::Token;
use crate::lock::record::Owner;
use crate::lock::rules::{self, Asker, Released};
use crate::server::{
    ArgKind, ArgSpec, Args, Command, Context, Error, Key, KeyUse, Keys, LockEvent, Module, Reply,
    Spec, end_hold, open,
};

/// Ends one hold of the owner's.
pub(crate) struct Release;

impl Command for Release {
    const SPEC: &'static Spec = &Spec {
        name: c"LOCK.RELEASE",
        summary: c"Ends one hold of an owner; the lock is free after the last one",
        complexity: c"O(1), or O(log N) for a share, N being the number of holders",
        since: SINCE,
        arity: -3,
        flags: c"write fast",
        categories: "write fast",
        tips: None,
        keys: Keys::First(KeyUse::Delete),
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
        release(ctx, module, &mut key, owner, options.token)
    }
}

/// Ends one hold of the lock of an open key.
pub(super) fn release(
    ctx: Context<'_>,
    module: &mut Module,
    key: &mut Key<'_>,
    owner: Owner<'_>,
    token: Option<Token>,
) -> Result<Reply, Error> {
    let state = key.state(Asker::of(owner), &mut module.fence)?;
    let decision = rules::release(&state, owner, token);
    drop(state);
    match decision {
        Released::Ended(token, remainder) => {
            module.stats.releases += 1;
            key.notify(LockEvent::Released);
            end_hold(ctx, module, key, owner, token, remainder);
            Ok(Reply::DONE)
        }
        Released::NotYours => {
            module.stats.stale_releases += 1;
            Ok(Reply::NOT_YOURS)
        }
        Released::NoLock => {
            module.stats.stale_releases += 1;
            Ok(Reply::NO_LOCK)
        }
    }
}
