//! `LOCK.QUNVOTE key owner attempt`

use super::SINCE;
use super::args::{attempt, end, owner, required};
use crate::lock::rules::Asker;
use crate::quorum::vote::unvote;
use crate::server::{
    ArgKind, ArgSpec, Args, Command, Context, Error, KeyUse, Keys, LockEvent, Module, Reply, Spec,
    end_hold, open,
};

/// Takes back this node's part of a lock over a quorum that was not granted. Coordinators send it.
pub(crate) struct Unvote;

impl Command for Unvote {
    const SPEC: &'static Spec = &Spec {
        name: c"LOCK.QUNVOTE",
        summary: c"Takes back this node's part of a lock over a quorum, for coordinators",
        complexity: c"O(1), or O(log N) for a share, N being the number of holders",
        since: SINCE,
        arity: 4,
        flags: c"write fast",
        categories: "write fast",
        tips: None,
        keys: Keys::First(KeyUse::Delete),
        args: &[
            ArgSpec::new(c"key", ArgKind::Key),
            ArgSpec::new(c"owner", ArgKind::Text),
            ArgSpec::new(c"attempt", ArgKind::Integer),
        ],
    };

    fn run(ctx: Context<'_>, mut args: Args<'_>, module: &mut Module) -> Result<Reply, Error> {
        let key = required(&mut args)?;
        let owner = owner(required(&mut args)?.bytes())?;
        let attempt = attempt(required(&mut args)?.bytes())?;
        end(&mut args)?;

        let id = attempt.id();
        let asker = Asker {
            request: id.as_request(),
            ..Asker::of(owner)
        };
        let mut key = open(ctx, module, key);
        let state = key.state(asker, &mut module.fence)?;
        let decision = unvote(&state, owner, attempt);
        drop(state);
        // The vote may be on its way still.
        module.ended_attempts.insert(attempt);
        Ok(match decision {
            Some((token, remainder)) => {
                module.stats.releases += 1;
                key.notify(LockEvent::Released);
                end_hold(ctx, module, &mut key, owner, token, remainder);
                Reply::DONE
            }
            None => Reply::NOT_YOURS,
        })
    }
}
