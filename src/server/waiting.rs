//! Waiting for a lock, and passing it on.

use super::blocked::{Blocked, Claim, Grant, HeldLock};
use super::clock;
use super::context::Context;
use super::key::Key;
use super::notify::LockEvent;
use super::reply::{Error, Printable, Reply};
use super::state::Module;
use super::string::OwnedStr;
use super::watching;
use crate::lock::deadlock::{Step, circle};
use crate::lock::fence::Fence;
use crate::lock::lease::Deadline;
use crate::lock::queue::{Full, HandOver, LockName, Waiter};
use crate::lock::record::{Owner, OwnerBuf, RequestIdBuf};
use crate::lock::rules::{Acquire, Released, Remainder, release};
use crate::lock::time::SteadyMillis;
use std::num::NonZeroU64;

/// How long a client is content to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timeout {
    Forever,
    Millis(NonZeroU64),
}

/// Opens the key of a lock to change it, with everything done that was due for it: what the caller
/// finds is what the last one in the queue will have found, and nobody overtakes.
pub(crate) fn open<'c>(ctx: Context<'c>, module: &mut Module, key: super::Arg<'c>) -> Key<'c> {
    return_unclaimed(ctx, module);
    let mut key = Key::for_writing(ctx, key);
    if let Some(name) = module.waits.name(ctx.db(), key.name().bytes()) {
        settle(ctx, module, &name, &mut key);
    }
    key
}

/// The lock of `key` is free: passes it to the head of its queue, or deletes the key.
pub(crate) fn free(ctx: Context<'_>, module: &mut Module, key: &mut Key<'_>) {
    watching::end(ctx, module, key);
    let name = module.waits.name(ctx.db(), key.name().bytes());
    let passed_on = name.is_some_and(|name| {
        let outcome = module
            .waits
            .settle(&name, None, clock::wall_clock(), &mut module.fence);
        match outcome {
            Ok(Some(hand_over)) => {
                grant(ctx, module, &name, key, hand_over);
                true
            }
            Ok(None) => false,
            Err(error) => {
                reject_all(module, &name, || error.into());
                false
            }
        }
    });
    if !passed_on {
        key.delete();
    }
}

/// The lease of a lock, which somebody may wait for or watch, ends at another moment than it did.
pub(crate) fn lease_changed(
    ctx: Context<'_>,
    module: &mut Module,
    key: &Key<'_>,
    deadline: Option<Deadline>,
) {
    watching::lease_changed(ctx, module, key, deadline);
    if let Some(name) = module.waits.name(ctx.db(), key.name().bytes()) {
        module.waits.note_deadline(&name, deadline);
    }
}

/// A request that its client wants to wait with.
pub(crate) struct Wait<'a> {
    pub(crate) asked: &'a Acquire<'a>,
    pub(crate) timeout: Timeout,
    /// Whether the watchdog is to renew the lease once it is granted.
    pub(crate) watch: bool,
    /// Whether a grant has to tell the owner too, because the server made it.
    pub(crate) tells_owner: bool,
}

/// Lets the client of `ctx` wait for a lock that is held up to `deadline`. Its key is closed: the
/// search for a deadlock opens keys, perhaps this one.
///
/// Where a client cannot be blocked, in a transaction, in a script, it is answered as if it had
/// not wanted to wait.
pub(crate) fn wait(
    ctx: Context<'_>,
    module: &mut Module,
    key: super::Arg<'_>,
    deadline: Option<Deadline>,
    wait: &Wait<'_>,
) -> Result<Reply, Error> {
    if !ctx.may_block() {
        module.stats.refusals += 1;
        return Ok(Reply::Nil);
    }
    let asked = wait.asked;
    let (db, name) = (ctx.db(), key.bytes());
    let lock = LockName {
        db,
        key: name.into(),
    };
    if let Some(circle) = circle(&module.waits, asked.owner, lock, |lock| {
        holder_of(ctx, &mut module.fence, lock)
    }) {
        module.stats.deadlocks += 1;
        ctx.notify_lock(LockEvent::Deadlock, key);
        return Err(Error::Deadlock(describe(&circle)));
    }
    module
        .waits
        .check_room(db, name, module.limits)
        .map_err(|full| {
            module.stats.queue_full += 1;
            Error::QueueFull(match full {
                Full::Total => "lock.max-waiters",
                Full::PerLock => "lock.max-waiters-per-key",
            })
        })?;
    module.listening.start(ctx);
    let Some(client) = Blocked::new(ctx, wait.tells_owner) else {
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
            watch: wait.watch,
            since,
            until: match wait.timeout {
                Timeout::Forever => None,
                Timeout::Millis(ms) => Some(SteadyMillis(since.0.saturating_add(ms.get()))),
            },
            client,
        },
    );
    module.remember(handle, ticket);
    module.stats.waiters_peak = module.stats.waiters_peak.max(module.waits.len());
    Ok(Reply::Later)
}

/// Who holds a lock, if it is somebody who could wait for another: the value of a plain lock can
/// be of any size, and one that is no owner of a command closes no circle.
fn holder_of(ctx: Context<'_>, fence: &mut Fence, lock: &LockName) -> Option<OwnerBuf> {
    let key = OwnedStr::new(&lock.key);
    ctx.in_db(lock.db, |ctx| {
        let key = Key::for_reading(ctx, key.as_str());
        let hold = key.hold(fence).ok()??;
        Owner::new(&hold.owner).map(OwnerBuf::from)
    })
}

/// The most steps of a circle of waits that an error names.
const MAX_STEPS_SHOWN: usize = 8;

/// Puts a circle of waits into words.
fn describe(circle: &[Step]) -> String {
    let holders = circle.iter().cycle().skip(1);
    let mut steps: Vec<String> = circle
        .iter()
        .zip(holders)
        .take(MAX_STEPS_SHOWN)
        .map(|(wait, holder)| {
            format!(
                "{} waits for {} held by {}",
                Printable::new(wait.owner.as_owner().bytes()),
                Printable::new(&wait.lock.key),
                Printable::new(holder.owner.as_owner().bytes())
            )
        })
        .collect();
    if let Some(more) = circle.len().checked_sub(MAX_STEPS_SHOWN).filter(|&n| n > 0) {
        steps.push(format!("and {more} more"));
    }
    steps.join(", ")
}

/// Looks at a lock that somebody waits for, and passes it on when it is free. Whoever waits for
/// what turns out to be no lock is told so.
fn settle(ctx: Context<'_>, module: &mut Module, name: &LockName, key: &mut Key<'_>) {
    let outcome = match key.hold(&mut module.fence) {
        Ok(None) if !ctx.serves(key.name()) => Err(Error::SlotMoving),
        Ok(hold) => module
            .waits
            .settle(name, hold.as_ref(), clock::wall_clock(), &mut module.fence)
            .map_err(Error::from),
        Err(error) => Err(error),
    };
    match outcome {
        Ok(Some(hand_over)) => grant(ctx, module, name, key, hand_over),
        Ok(None) => {}
        Err(error) => reject_all(module, name, || error.clone()),
    }
}

/// Writes the record of a new holder and tells it.
fn grant(
    ctx: Context<'_>,
    module: &mut Module,
    name: &LockName,
    key: &mut Key<'_>,
    hand_over: HandOver<Blocked>,
) {
    let now = clock::clocks().steady;
    if hand_over.after_expiry {
        module.stats.expiries += 1;
        key.notify(LockEvent::Expired);
    }
    module.stats.handovers += 1;
    key.put(&hand_over.put);
    key.notify(LockEvent::HandedOver);
    let mut claims: Vec<Claim> = Vec::new();
    for granted in hand_over.granted {
        let waiter = granted.waiter;
        module.forget(&waiter);
        module
            .stats
            .waits
            .record(now.0.saturating_sub(waiter.since.0));
        if waiter.watch {
            let owner = waiter.owner.as_owner();
            let client = waiter.client.client_id;
            watching::begin(
                ctx,
                module,
                name.clone(),
                client,
                owner,
                granted.token,
                waiter.ttl,
            );
        }
        let owner = waiter.client.tells_owner.then(|| waiter.owner.as_owner());
        let reply = Reply::grant(granted.token, owner);
        if claims.len() <= granted.hold {
            claims.push(Claim::default());
        }
        let grant = claims.get(granted.hold).map(|claim| Grant {
            hold: HeldLock {
                lock: name.clone(),
                owner: waiter.owner.clone(),
                token: granted.token,
            },
            request: waiter.request.clone(),
            claim: claim.clone(),
        });
        module.in_flight.add();
        waiter.client.answer(Ok(reply), grant);
    }
}

/// Sends everybody away who waits for a lock.
fn reject_all(module: &mut Module, name: &LockName, error: impl Fn() -> Error) {
    for waiter in module.waits.reject_all(name) {
        module.forget(&waiter);
        waiter.client.answer(Err(error()), None);
    }
}

/// Ends holds whose client was gone before it could be told that it has them.
fn return_unclaimed(ctx: Context<'_>, module: &mut Module) {
    while let Some(hold) = module.unclaimed.pop() {
        module.stats.unclaimed += 1;
        let key = OwnedStr::new(&hold.lock.key);
        ctx.in_db(hold.lock.db, |ctx| {
            let mut key = Key::for_writing(ctx, key.as_str());
            let decision = match key.hold(&mut module.fence) {
                Ok(found) => release(found.as_ref(), hold.owner.as_owner(), Some(hold.token)),
                Err(_) => Released::NotYours,
            };
            match decision {
                Released::Ended(Remainder::Free) => free(ctx, module, &mut key),
                Released::Ended(Remainder::Record(put)) => key.put(&put),
                // A foreign hash has no token, so it is never a grant of ours.
                Released::Ended(Remainder::HashCount(_))
                | Released::NotYours
                | Released::NoLock => {}
            }
        });
    }
}

/// Does what the alarm went off for.
pub(super) fn do_what_is_due(ctx: Context<'_>, module: &mut Module) {
    let now = clock::clocks();
    for waiter in module.waits.take_timed_out(now.steady) {
        module.forget(&waiter);
        module.stats.timeouts += 1;
        waiter.client.answer(Ok(Reply::Nil), None);
    }
    // A write now would break the promise that the server is giving to its replicas. Leases stand
    // still as long: the server expires nothing either.
    if Context::server_is_paused() {
        return;
    }
    return_unclaimed(ctx, module);
    // Each of them once: the server's own clock stands still meanwhile, so a lease that has lapsed
    // by ours may not have by its own, and is looked at again when the alarm goes off next.
    for name in module.waits.due(now.wall.as_millis()) {
        module.waits.unmark(&name);
        let key = OwnedStr::new(&name.key);
        ctx.in_db(name.db, |ctx| {
            let mut key = Key::for_writing(ctx, key.as_str());
            settle(ctx, module, &name, &mut key);
        });
    }
    watching::renew_due(ctx, module);
}
