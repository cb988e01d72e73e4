//! Waiting for a lock, and passing it on.

use super::blocked::{Blocked, Grant};
use super::clock;
use super::context::Context;
use super::key::Key;
use super::reply::{Error, Printable, Reply};
use super::state::Module;
use super::string::OwnedStr;
use crate::lock::deadlock::{Wait, circle};
use crate::lock::lease::Deadline;
use crate::lock::queue::{Full, HandOver, LockName, Waiter};
use crate::lock::record::{OwnerBuf, RequestIdBuf};
use crate::lock::rules::{Acquire, Released, release};
use crate::lock::time::SteadyMillis;
use std::num::NonZeroU64;

/// How long a client is content to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    Forever,
    Millis(NonZeroU64),
}

/// Opens the key of a lock to change it, with everything done that was due for it: what the caller
/// finds is what the last one in the queue will have found, and nobody overtakes.
pub(crate) fn open<'c>(ctx: Context<'c>, key: super::Arg<'c>, module: &mut Module) -> Key<'c> {
    return_unclaimed(ctx, module);
    let mut key = Key::for_writing(ctx, key);
    if let Some(name) = module.waits.name(ctx.db(), key.name().bytes()) {
        settle(module, &name, &mut key);
    }
    key
}

/// The lock of `key` is free: passes it to the head of its queue, or deletes the key.
pub(crate) fn free(ctx: Context<'_>, module: &mut Module, key: &mut Key<'_>) {
    let name = module.waits.name(ctx.db(), key.name().bytes());
    let passed_on = name.is_some_and(|name| {
        let outcome = module
            .waits
            .settle(&name, None, clock::wall_clock(), &mut module.fence);
        match outcome {
            Ok(Some(hand_over)) => {
                grant(module, &name, key, hand_over);
                true
            }
            Ok(None) => false,
            Err(error) => {
                dismiss(module, &name, || error.into());
                false
            }
        }
    });
    if !passed_on {
        key.delete();
    }
}

/// The lease of a lock that somebody waits for may end earlier than it did.
pub(crate) fn lease_changed(
    ctx: Context<'_>,
    module: &mut Module,
    key: &Key<'_>,
    deadline: Deadline,
) {
    if let Some(name) = module.waits.name(ctx.db(), key.name().bytes()) {
        module.waits.watch(&name, Some(deadline));
    }
}

/// Lets the client of `ctx` wait for a lock that is held up to `deadline`.
///
/// Where a client cannot be blocked, in a transaction, in a script, it is answered as if it had
/// not wanted to wait.
pub(crate) fn wait(
    ctx: Context<'_>,
    module: &mut Module,
    key: &Key<'_>,
    asked: &Acquire<'_>,
    patience: Patience,
    deadline: Option<Deadline>,
    tells_owner: bool,
) -> Result<Reply, Error> {
    if !ctx.may_block() {
        return Ok(Reply::Nil);
    }
    let (db, name) = (ctx.db(), key.name().bytes());
    let lock = LockName {
        db,
        key: name.into(),
    };
    if let Some(circle) = circle(&module.waits, asked.owner.bytes(), lock, |lock| {
        holder_of(ctx, lock)
    }) {
        return Err(Error::Deadlock(describe(&circle)));
    }
    module
        .waits
        .check_room(db, name, module.limits)
        .map_err(|full| {
            Error::QueueFull(match full {
                Full::Total => "lock.max-waiters",
                Full::PerLock => "lock.max-waiters-per-key",
            })
        })?;
    module.listening.start(ctx);
    let Some(client) = Blocked::new(ctx, tells_owner) else {
        return Ok(Reply::Later);
    };
    let since = clock::clocks().steady;
    let handle = client.handle();
    let ticket = module.waits.join(
        db,
        name,
        deadline,
        Waiter {
            owner: OwnerBuf::from(asked.owner),
            ttl: asked.ttl,
            request: asked.request.map(RequestIdBuf::from),
            reentrant: asked.reentrant,
            since,
            until: match patience {
                Patience::Forever => None,
                Patience::Millis(ms) => Some(SteadyMillis(since.0.saturating_add(ms.get()))),
            },
            client,
        },
    );
    module.remember(handle, ticket);
    Ok(Reply::Later)
}

/// Who holds a lock. What is no lock is held by nobody.
fn holder_of(ctx: Context<'_>, lock: &LockName) -> Option<Vec<u8>> {
    let key = OwnedStr::new(&lock.key);
    ctx.in_db(lock.db, |ctx| {
        let key = Key::for_reading(ctx, key.as_str());
        let hold = key.hold().ok()??;
        Some(hold.owner.to_vec())
    })
}

/// Puts a circle of waits into words.
fn describe(circle: &[Wait]) -> String {
    let holders = circle.iter().cycle().skip(1);
    let steps: Vec<String> = circle
        .iter()
        .zip(holders)
        .map(|(wait, holder)| {
            format!(
                "{} waits for {} held by {}",
                Printable::new(&wait.owner),
                Printable::new(&wait.lock.key),
                Printable::new(&holder.owner)
            )
        })
        .collect();
    steps.join(", ")
}

/// Looks at a lock that somebody waits for, and passes it on when it is free. Whoever waits for
/// what turns out to be no lock is told so.
fn settle(module: &mut Module, name: &LockName, key: &mut Key<'_>) {
    let outcome = match key.hold() {
        Ok(hold) => {
            module.observe(hold.as_ref());
            module
                .waits
                .settle(name, hold.as_ref(), clock::wall_clock(), &mut module.fence)
                .map_err(Error::from)
        }
        Err(error) => Err(error),
    };
    match outcome {
        Ok(Some(hand_over)) => grant(module, name, key, hand_over),
        Ok(None) => {}
        Err(error) => dismiss(module, name, || error.clone()),
    }
}

/// Writes the record of a new holder and tells it.
fn grant(module: &mut Module, name: &LockName, key: &mut Key<'_>, hand_over: HandOver<Blocked>) {
    key.put(&hand_over.put);
    for granted in hand_over.granted {
        let waiter = granted.waiter;
        module.forget(&waiter);
        let owner = waiter.client.tells_owner.then(|| waiter.owner.as_owner());
        let reply = Reply::grant(granted.token, owner);
        let grant = granted.is_its_own.then(|| Grant {
            lock: name.clone(),
            owner: waiter.owner.clone(),
            token: granted.token,
        });
        waiter.client.answer(Ok(reply), grant);
    }
}

/// Sends everybody away who waits for a lock.
fn dismiss(module: &mut Module, name: &LockName, error: impl Fn() -> Error) {
    for waiter in module.waits.dismiss(name) {
        module.forget(&waiter);
        waiter.client.answer(Err(error()), None);
    }
}

/// Ends holds whose client was gone before it could be told that it has them.
fn return_unclaimed(ctx: Context<'_>, module: &mut Module) {
    while let Some(grant) = module.unclaimed.pop() {
        let key = OwnedStr::new(&grant.lock.key);
        ctx.in_db(grant.lock.db, |ctx| {
            let mut key = Key::for_writing(ctx, key.as_str());
            let decision = match key.hold() {
                Ok(hold) => release(hold.as_ref(), grant.owner.as_owner(), Some(grant.token)),
                Err(_) => Released::NotYours,
            };
            match decision {
                Released::Freed => free(ctx, module, &mut key),
                Released::Reduced(put) => key.put(&put),
                // A foreign hash has no token, so it is never a grant of ours.
                Released::ReducedHash(_) | Released::NotYours | Released::NoLock => {}
            }
        });
    }
}

/// Does what the alarm went off for.
pub(super) fn do_what_is_due(ctx: Context<'_>, module: &mut Module) {
    return_unclaimed(ctx, module);
    let due = module.waits.take_due(clock::clocks());
    for waiter in due.impatient {
        module.forget(&waiter);
        waiter.client.answer(Ok(Reply::Nil), None);
    }
    for name in due.locks {
        let key = OwnedStr::new(&name.key);
        ctx.in_db(name.db, |ctx| {
            let mut key = Key::for_writing(ctx, key.as_str());
            settle(module, &name, &mut key);
        });
    }
    if module.waits.is_empty() && module.listening.can_stop() {
        module.listening.stop(ctx);
    }
}
