//! `LOCK.QACQUIRE key owner ttl [BLOCK timeout] [SHARED]`

use super::SINCE;
use super::args::{Options, OwnerArg, Word, required, ttl};
use crate::lock::rules::Mode;
use crate::quorum::coordinator::{Job, Patience, Task};
use crate::server::Timeout;
use crate::server::{
    ArgKind, ArgSpec, Args, Command, Context, Error, KeyUse, Keys, Module, Reply, Spec, ask_quorum,
    check_round_ttl,
};
use std::cell::Cell;
use std::time::Duration;

/// Acquires a lock over a quorum of servers.
pub(crate) struct QuorumAcquire;

impl Command for QuorumAcquire {
    const SPEC: &'static Spec = &Spec {
        name: c"LOCK.QACQUIRE",
        summary: c"Acquires a lock over a quorum of independent servers, or tries until it can",
        complexity: c"O(N) where N is the number of nodes",
        since: SINCE,
        arity: -4,
        flags: c"write blocking",
        categories: "write slow blocking",
        tips: None,
        keys: Keys::First(KeyUse::Insert),
        args: &[
            ArgSpec::new(c"key", ArgKind::Key),
            ArgSpec::new(c"owner", ArgKind::Text),
            ArgSpec::new(c"ttl", ArgKind::Integer),
            ArgSpec::option(c"BLOCK", c"timeout", ArgKind::Integer),
            ArgSpec::word(c"SHARED", c"shared"),
        ],
    };

    fn run(ctx: Context<'_>, mut args: Args<'_>, module: &mut Module) -> Result<Reply, Error> {
        let key = required(&mut args)?;
        let owner_arg = OwnerArg::parse(required(&mut args)?.bytes())?;
        let ttl = ttl(required(&mut args)?.bytes())?;
        let options = Options::parse(&mut args, &[Word::Block, Word::Shared, Word::Limit])?;
        // Two majorities can each see room for one more.
        let is_shared = match options.shared {
            None => false,
            Some(Mode::Shared { limit: None }) => true,
            Some(_) => return Err(Error::LimitOverQuorum),
        };
        check_round_ttl(module, ttl)?;
        let job = Job {
            key: key.bytes().to_vec(),
            owner: owner_arg.owner()?.bytes().to_vec(),
            task: Task::Acquire {
                ttl,
                patience: match options.timeout {
                    None => Patience::None,
                    Some(Timeout::Forever) => Patience::Forever,
                    Some(Timeout::Millis(ms)) => Patience::For(Duration::from_millis(ms.get())),
                },
            },
            is_shared: Cell::new(is_shared),
        };
        ask_quorum(ctx, module, job, owner_arg.is_made())
    }
}
