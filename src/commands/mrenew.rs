//! `LOCK.MRENEW numkeys key [key ...] owner ttl`

use super::SINCE;
use super::args::{end, keys, owner, required, ttl};
use super::renew::{Lease, renew};
use crate::lock::rules::Asker;
use crate::server::{
    ArgKind, ArgSpec, Args, Command, Context, Error, Key, KeyUse, Keys, Module, Reply, Spec,
};

/// Replaces what is left of the owner's lease of each of several locks.
pub(crate) struct MultiRenew;

impl Command for MultiRenew {
    const SPEC: &'static Spec = &Spec {
        name: c"LOCK.MRENEW",
        summary: c"Replaces what is left of an owner's leases of several locks",
        complexity: c"O(N) where N is the number of keys",
        since: SINCE,
        arity: -5,
        flags: c"write getkeys-api",
        categories: "write slow",
        tips: None,
        keys: Keys::Numbered(KeyUse::Update),
        args: &[
            ArgSpec::new(c"numkeys", ArgKind::Integer),
            ArgSpec::several(c"key", ArgKind::Key),
            ArgSpec::new(c"owner", ArgKind::Text),
            ArgSpec::new(c"ttl", ArgKind::Integer),
        ],
    };

    fn run(ctx: Context<'_>, mut args: Args<'_>, module: &mut Module) -> Result<Reply, Error> {
        let names = keys(&mut args)?;
        let owner = owner(required(&mut args)?.bytes())?;
        let ttl = ttl(required(&mut args)?.bytes())?;
        end(&mut args)?;

        // A key that is no lock is an error before any lease is renewed.
        for name in &names {
            Key::for_reading(ctx, *name).state(Asker::of(owner), &mut module.fence)?;
        }
        let lease = Lease {
            owner,
            ttl,
            token: None,
            watcher: None,
        };
        names
            .into_iter()
            .map(|name| renew(ctx, module, name, &lease))
            .collect::<Result<_, _>>()
            .map(Reply::Array)
    }
}
