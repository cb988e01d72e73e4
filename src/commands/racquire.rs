//! `LOCK.RACQUIRE key owner ttl [BLOCK timeout] [WATCHDOG] [REQID id]`

use super::SINCE;
use super::acquire::{ARGS, acquire};
use crate::server::{Args, Command, Context, Error, KeyUse, Module, Reply, Spec};

/// Takes the lock when nobody holds it, or once more when the owner does.
pub(crate) struct ReentrantAcquire;

impl Command for ReentrantAcquire {
    const SPEC: &'static Spec = &Spec {
        name: c"LOCK.RACQUIRE",
        summary: c"Acquires a lock, or adds one hold if the owner has it already",
        complexity: c"O(1)",
        since: SINCE,
        arity: -4,
        flags: c"write deny-oom fast blocking",
        categories: "write fast blocking",
        tips: None,
        key: Some(KeyUse::Insert),
        args: ARGS,
    };

    fn run(ctx: Context<'_>, args: Args<'_>, module: &mut Module) -> Result<Reply, Error> {
        acquire(ctx, args, module, true)
    }
}
