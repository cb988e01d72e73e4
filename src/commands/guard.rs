//! `LOCK.GUARD key token command [arg [arg ...]]`

use super::SINCE;
use super::args::{required, token};
use crate::server::{
    ArgKind, ArgSpec, Args, Command, Context, Error, Keys, Module, Reply, Spec, check_guardable,
    open,
};

/// Runs a command only while a token holds the lock.
pub(crate) struct Guard;

/// How many arguments stand before the guarded command.
const OWN_ARGS: usize = 2;

impl Command for Guard {
    const SPEC: &'static Spec = &Spec {
        name: c"LOCK.GUARD",
        summary: c"Runs a command if a token holds the lock, and refuses it otherwise",
        complexity: c"That of the command",
        since: SINCE,
        arity: -4,
        flags: c"write getkeys-api",
        categories: "write slow",
        tips: None,
        keys: Keys::FirstAndGuarded,
        args: &[
            ArgSpec::new(c"key", ArgKind::Key),
            ArgSpec::new(c"token", ArgKind::Integer),
            ArgSpec::new(c"command", ArgKind::Text),
            ArgSpec::rest(c"arg", ArgKind::Text),
        ],
    };

    fn run(ctx: Context<'_>, mut args: Args<'_>, module: &mut Module) -> Result<Reply, Error> {
        let key = required(&mut args)?;
        let token = token(required(&mut args)?.bytes(), "token")?;
        check_guardable(ctx, args)?;

        let key = open(ctx, module, key);
        if key.is_held_by(token, &mut module.fence)? {
            module.stats.guarded += 1;
            Ok(Reply::OfCommandAfter(OWN_ARGS))
        } else {
            module.stats.stale_guards += 1;
            Err(Error::NotHeld)
        }
    }
}
