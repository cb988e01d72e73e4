//! `LOCK.RACQUIRE key owner ttl [BLOCK timeout] [WATCHDOG] [REQID id]`

use super::SINCE;
use super::acquire::acquire;
use super::args::Word;
use crate::server::{
    ArgKind, ArgSpec, Args, Command, Context, Error, KeyUse, Keys, Module, Reply, Spec,
};

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
        keys: Keys::First(KeyUse::Insert),
        args: &[
            ArgSpec::new(c"key", ArgKind::Key),
            ArgSpec::new(c"owner", ArgKind::Text),
            ArgSpec::new(c"ttl", ArgKind::Integer),
            ArgSpec::option(c"BLOCK", c"timeout", ArgKind::Integer),
            ArgSpec::word(c"WATCHDOG", c"watchdog"),
            ArgSpec::option(c"REQID", c"id", ArgKind::Text),
        ],
    };

    fn run(ctx: Context<'_>, args: Args<'_>, module: &mut Module) -> Result<Reply, Error> {
        let words = [Word::Block, Word::Watchdog, Word::Request];
        acquire(ctx, args, module, &words, true)
    }
}
