//! `LOCK.RENEW key owner ttl [TOKEN token] [WATCHDOG]`

use super::SINCE;
use super::args::{Options, Word, owner, required, ttl};
use crate::lock::fence::Token;
use crate::lock::lease::Ttl;
use crate::lock::record::Owner;
use crate::lock::rules::{self, Asker, Renewed};
use crate::lock::watchdog::ClientId;
use crate::server::{
    Arg, ArgKind, ArgSpec, Args, Command, Context, Error, KeyUse, Keys, LockEvent, Module, Reply,
    Spec, lease_changed, open, wall_clock, watch,
};

/// Replaces what is left of the owner's lease.
pub(crate) struct Renew;

impl Command for Renew {
    const SPEC: &'static Spec = &Spec {
        name: c"LOCK.RENEW",
        summary: c"Replaces what is left of an owner's lease",
        complexity: c"O(1), or O(log N) for a share, N being the number of holders",
        since: SINCE,
        arity: -4,
        flags: c"write fast",
        categories: "write fast",
        tips: None,
        keys: Keys::First(KeyUse::Update),
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

        let lease = Lease {
            owner,
            ttl,
            token: options.token,
            watcher,
        };
        renew(ctx, module, key, &lease)
    }
}

/// The lease that a renewal asks for.
pub(super) struct Lease<'a> {
    pub(super) owner: Owner<'a>,
    pub(super) ttl: Ttl,
    /// The grant that it is for, if not just any of the owner's.
    pub(super) token: Option<Token>,
    /// The connection for which the watchdog is to renew it from now on.
    pub(super) watcher: Option<ClientId>,
}

/// Renews the lease of one lock.
pub(super) fn renew(
    ctx: Context<'_>,
    module: &mut Module,
    name: Arg<'_>,
    lease: &Lease<'_>,
) -> Result<Reply, Error> {
    let &Lease {
        owner,
        ttl,
        token,
        watcher,
    } = lease;
    let mut key = open(ctx, module, name);
    let state = key.state(Asker::of(owner), &mut module.fence)?;
    let decision = rules::renew(&state, owner, token, ttl, wall_clock());
    drop(state);
    match decision {
        // Without a token, a later hold of the same owner would pass for the one watched.
        Renewed::Until(None, _) if watcher.is_some() => Err(Error::WatchWithoutToken),
        Renewed::Until(token, deadline) => {
            module.stats.renewals += 1;
            key.renew(owner, deadline);
            key.notify(LockEvent::Renewed);
            lease_changed(ctx, module, &key, token, Some(deadline));
            if let Some((client, token)) = watcher.zip(token) {
                watch(ctx, module, name, client, owner, token, ttl);
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
