//! `LOCK.QEXTEND key owner ttl [TOKEN token]`

use super::SINCE;
use super::args::{Options, Word, owner, required, ttl};
use crate::lock::record::RequestIdBuf;
use crate::lock::rules::{Asker, LockState};
use crate::quorum::vote::{Extended, extend};
use crate::server::{
    ArgKind, ArgSpec, Args, Command, Context, Error, KeyUse, Keys, LockEvent, Module, Reply, Spec,
    check_quorum_ttl, lease_changed, open, wall_clock,
};

/// Renews this node's part of a lock over a quorum, and says what another node has to know to take
/// part again. Coordinators send it.
pub(crate) struct Extend;

impl Command for Extend {
    const SPEC: &'static Spec = &Spec {
        name: c"LOCK.QEXTEND",
        summary: c"Renews this node's part of a lock over a quorum, for coordinators",
        complexity: c"O(1), or O(log N) for a share, N being the number of holders",
        since: SINCE,
        arity: -4,
        flags: c"write fast",
        categories: "write fast",
        tips: None,
        keys: Keys::First(KeyUse::Update),
        args: &[
            ArgSpec::new(c"key", ArgKind::Key),
            ArgSpec::new(c"owner", ArgKind::Text),
            ArgSpec::new(c"ttl", ArgKind::Integer),
            ArgSpec::option(c"TOKEN", c"token", ArgKind::Integer),
        ],
    };

    /// The reply is `[token, attempt, mode]`, the attempt as a string since it can be higher than any
    /// integer of the protocol, and the mode `exclusive` or `shared`; 0 if the lock is not the owner's by an attempt; `[-1, time]` if
    /// nobody holds it, the time being that of this server in milliseconds.
    fn run(ctx: Context<'_>, mut args: Args<'_>, module: &mut Module) -> Result<Reply, Error> {
        let key = required(&mut args)?;
        let owner = owner(required(&mut args)?.bytes())?;
        let ttl = ttl(required(&mut args)?.bytes())?;
        let options = Options::parse(&mut args, &[Word::Token])?;
        check_quorum_ttl(module, ttl)?;

        let mut key = open(ctx, module, key);
        let of_share = key.request_of_share(owner);
        let of_share = of_share.as_ref().map(RequestIdBuf::as_request);
        let state = key.state(Asker::of(owner), &mut module.fence)?;
        let decision = extend(&state, owner, of_share, options.token, ttl, wall_clock());
        let mode = match state {
            LockState::Shared(_) => "shared",
            _ => "exclusive",
        };
        match decision {
            Extended::Until(token, attempt, deadline) => {
                module.stats.renewals += 1;
                if let Some(deadline) = deadline {
                    key.renew(owner, deadline);
                }
                key.notify(LockEvent::Renewed);
                lease_changed(ctx, module, &key, Some(token), deadline);
                let attempt = Reply::Bulk(attempt.0.to_string().into_bytes());
                Ok(Reply::Array(vec![
                    Reply::token(token),
                    attempt,
                    Reply::Word(mode),
                ]))
            }
            Extended::NotYours => {
                module.stats.stale_renewals += 1;
                Ok(Reply::NOT_YOURS)
            }
            Extended::NoLock(at) => {
                module.stats.stale_renewals += 1;
                Ok(Reply::Array(vec![Reply::NO_LOCK, Reply::Integer(at.0)]))
            }
        }
    }
}
