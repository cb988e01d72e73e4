//! `LOCK.QRENEW key owner ttl [TOKEN token]`

use super::SINCE;
use super::args::{Options, Word, owner, required, ttl};
use crate::quorum::coordinator::{Job, Task};
use crate::server::{
    ArgKind, ArgSpec, Args, Command, Context, Error, KeyUse, Keys, Module, Reply, Spec, ask_quorum,
    check_round_ttl,
};
use std::cell::Cell;

/// Renews a lease over a quorum of servers.
pub(crate) struct QuorumRenew;

impl Command for QuorumRenew {
    const SPEC: &'static Spec = &Spec {
        name: c"LOCK.QRENEW",
        summary: c"Replaces what is left of an owner's lease over a quorum of servers",
        complexity: c"O(N) where N is the number of nodes",
        since: SINCE,
        arity: -4,
        flags: c"write blocking",
        categories: "write slow blocking",
        tips: None,
        keys: Keys::First(KeyUse::Update),
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
        check_round_ttl(module, ttl)?;
        let job = Job {
            key: key.bytes().to_vec(),
            owner: owner.bytes().to_vec(),
            task: Task::Renew {
                ttl,
                token: options.token,
            },
            is_shared: Cell::new(false),
        };
        ask_quorum(ctx, module, job, false)
    }
}
