//! `LOCK.MRELEASE numkeys key [key ...] owner`

use super::SINCE;
use super::args::{end, keys, owner, required};
use super::release::release;
use crate::lock::rules::Asker;
use crate::server::{
    ArgKind, ArgSpec, Args, Command, Context, Error, Key, KeyUse, Keys, Module, Reply, Spec, open,
};

/// Ends one hold of each of several locks.
pub(crate) struct MultiRelease;

impl Command for MultiRelease {
    const SPEC: &'static Spec = &Spec {
        name: c"LOCK.MRELEASE",
        summary: c"Ends one hold of an owner of each of several locks",
        complexity: c"O(N) where N is the number of keys",
        since: SINCE,
        arity: -4,
        flags: c"write getkeys-api",
        categories: "write slow",
        tips: None,
        keys: Keys::Numbered(KeyUse::Delete),
        args: &[
            ArgSpec::new(c"numkeys", ArgKind::Integer),
            ArgSpec::several(c"key", ArgKind::Key),
            ArgSpec::new(c"owner", ArgKind::Text),
        ],
    };

    fn run(ctx: Context<'_>, mut args: Args<'_>, module: &mut Module) -> Result<Reply, Error> {
        let names = keys(&mut args)?;
        let owner = owner(required(&mut args)?.bytes())?;
        end(&mut args)?;

        // A key that is no lock is an error before any hold has ended.
        for name in &names {
            Key::for_reading(ctx, *name).state(Asker::of(owner), &mut module.fence)?;
        }
        names
            .into_iter()
            .map(|name| {
                let mut key = open(ctx, module, name);
                release(ctx, module, &mut key, owner, None)
            })
            .collect::<Result<_, _>>()
            .map(Reply::Array)
    }
}
