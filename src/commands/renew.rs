//! `LOCK.RENEW key owner ttl [TOKEN token]`

use super::SINCE;
use super::args::{Options, Word, owner, required, ttl};
use crate::lock::rules::{self, Renewed};
use crate::server::{
    ArgKind, ArgSpec, Args, Command, Context, Error, KeyUse, Module, Reply, Spec, lease_changed,
    open, wall_clock,
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
        ],
    };

    fn run(ctx: Context<'_>, mut args: Args<'_>, module: &mut Module) -> Result<Reply, Error> {
        let key = required(&mut args)?;
        let owner = owner(required(&mut args)?.bytes())?;
        let ttl = ttl(required(&mut args)?.bytes())?;
        let options = Options::parse(&mut args, &[Word::Token])?;

        let mut key = open(ctx, key, module);
        let hold = key.hold()?;
        module.observe(hold.as_ref());
        let decision = rules::renew(hold.as_ref(), owner, options.token, ttl, wall_clock());
        drop(hold);
        Ok(match decision {
            Renewed::Until(deadline) => {
                key.set_deadline(deadline);
                lease_changed(ctx, module, &key, deadline);
                Reply::DONE
            }
            Renewed::NotYours => Reply::NOT_YOURS,
            Renewed::NoLock => Reply::NO_LOCK,
        })
    }
}
