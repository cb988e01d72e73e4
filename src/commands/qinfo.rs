//! `LOCK.QINFO key`

use super::SINCE;
use super::args::{end, required};
use crate::quorum::coordinator::{Job, Task};
use crate::server::{
    ArgKind, ArgSpec, Args, Command, Context, Error, KeyUse, Keys, Module, Reply, Spec, ask_quorum,
};
use std::cell::Cell;

/// Shows who holds a lock over a quorum of servers, and what each of them says.
pub(crate) struct QuorumInfo;

impl Command for QuorumInfo {
    const SPEC: &'static Spec = &Spec {
        name: c"LOCK.QINFO",
        summary: c"Shows who holds a lock over a quorum of servers, and what each of them says",
        complexity: c"O(N) where N is the number of nodes",
        since: SINCE,
        arity: 2,
        flags: c"readonly blocking",
        categories: "read slow blocking",
        tips: Some(c"nondeterministic_output"),
        keys: Keys::First(KeyUse::Read),
        args: &[ArgSpec::new(c"key", ArgKind::Key)],
    };

    fn run(ctx: Context<'_>, mut args: Args<'_>, module: &mut Module) -> Result<Reply, Error> {
        let key = required(&mut args)?;
        end(&mut args)?;
        let job = Job {
            key: key.bytes().to_vec(),
            owner: Vec::new(),
            task: Task::Info,
            is_shared: Cell::new(false),
        };
        ask_quorum(ctx, module, job, false)
    }
}
