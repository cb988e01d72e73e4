//! `LOCK.QEND key owner [TOKEN token]`

use super::SINCE;
use super::args::{Options, Word, owner, required};
use crate::lock::record::RequestIdBuf;
use crate::lock::rules::Asker;
use crate::quorum::vote::{PartEnded, end_part};
use crate::server::{
    ArgKind, ArgSpec, Args, Command, Context, Error, KeyUse, Keys, LockEvent, Module, Reply, Spec,
    end_hold, open,
};

/// Ends this node's part of a lock over a quorum, and says by which attempt it came about, so that
/// other nodes can be asked to end what they have of it. Coordinators send it.
pub(crate) struct End;

impl Command for End {
    const SPEC: &'static Spec = &Spec {
        name: c"LOCK.QEND",
        summary: c"Ends this node's part of a lock over a quorum, for coordinators",
        complexity: c"O(1), or O(log N) for a share, N being the number of holders",
        since: SINCE,
        arity: -3,
        flags: c"write fast",
        categories: "write fast",
        tips: None,
        keys: Keys::First(KeyUse::Delete),
        args: &[
            ArgSpec::new(c"key", ArgKind::Key),
            ArgSpec::new(c"owner", ArgKind::Text),
            ArgSpec::option(c"TOKEN", c"token", ArgKind::Integer),
        ],
    };

    /// The reply is the attempt, as a string since it can be higher than any integer of the protocol;
    /// 0 if the lock is not the owner's by an attempt; -1 if nobody holds it.
    fn run(ctx: Context<'_>, mut args: Args<'_>, module: &mut Module) -> Result<Reply, Error> {
        let key = required(&mut args)?;
        let owner = owner(required(&mut args)?.bytes())?;
        let options = Options::parse(&mut args, &[Word::Token])?;

        let mut key = open(ctx, module, key);
        let of_share = key.request_of_share(owner);
        let of_share = of_share.as_ref().map(RequestIdBuf::as_request);
        let state = key.state(Asker::of(owner), &mut module.fence)?;
        let decision = end_part(&state, owner, of_share, options.token);
        drop(state);
        match decision {
            PartEnded::By(token, attempt, remainder) => {
                module.ended_attempts.insert(attempt);
                module.stats.releases += 1;
                key.notify(LockEvent::Released);
                end_hold(ctx, module, &mut key, owner, Some(token), remainder);
                Ok(Reply::Bulk(attempt.0.to_string().into_bytes()))
            }
            PartEnded::NotYours => {
                module.stats.stale_releases += 1;
                Ok(Reply::NOT_YOURS)
            }
            PartEnded::NoLock => {
                module.stats.stale_releases += 1;
                Ok(Reply::NO_LOCK)
            }
        }
    }
}
