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
use crate::lock::deadlock::{Holders, Keys, Step, circle};
use crate::lock::fence::{Fence, Token};
use crate::lock::lease::Deadline;
use crate::lock::queue::{HandOver, LockName, Locks, NoTokenLeft, Passed, Settled, Ticket, Waiter};
use crate::lock::record::{Owner, OwnerBuf, RequestIdBuf};
use crate::lock::rules::{Acquire, Asker, LockState, Released, Remainder, Write, release};
use crate::lock::time::SteadyMillis;
use redis_module::raw;
use std::num::NonZeroU64;

/// How long a client is content to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timeout {
    Forever,
    Millis(NonZeroU64),
}

/// Opens the key of a lock to change it, with everything done that was due for it: what the caller
/// finds is what the last one in the queue will have found, and nobody overtakes.
///
/// This can change other keys too, those that a waiter for several locks is granted. So none of
/// them may be open.
pub(crate) fn open<'c>(ctx: Context<'c>, module: &mut Module, key: super::Arg<'c>) -> Key<'c> {
    return_unclaimed(ctx, module);
    let mut key = Key::for_writing(ctx, key);
    key.drop_lapsed_shares();
    if let Some(name) = module.waits.name(ctx.db(), key.name().bytes()) {
        settle(ctx, module, &name, &mut key);
    }
    key
}

/// Ends a hold, which leaves `remainder` of the lock. What becomes free passes to those who wait.
pub(crate) fn end_hold(
    ctx: Context<'_>,
    module: &mut Module,
    key: &mut Key<'_>,
    owner: Owner<'_>,
    token: Option<Token>,
    remainder: Remainder,
) {
    match remainder {
        Remainder::Free => {
            watching::end(ctx, module, key, token);
            free(ctx, module, key);
        }
        Remainder::Record(put) => key.put(&put),
        Remainder::HashCount(holds) => key.set_hash_count(owner.bytes(), holds),
        Remainder::OtherShares => {
            watching::end(ctx, module, key, token);
            key.remove_share(owner);
            if let Some(name) = module.waits.name(ctx.db(), key.name().bytes()) {
                settle(ctx, module, &name, key);
            }
        }
    }
}

/// The lock of `key`, which one owner had alone, is free: passes it to the head of its queue, or
/// deletes the key.
fn free(ctx: Context<'_>, module: &mut Module, key: &mut Key<'_>) {
    let Some(name) = module.waits.name(ctx.db(), key.name().bytes()) else {
        return key.delete();
    };
    // The key has the record of the last holder until somebody else's is written over it.
    loop {
        let outcome = module.waits.settle(
            &name,
            &LockState::Free,
            clock::wall_clock(),
            &mut module.fence,
        );
        match carry_out(ctx, module, &name, key, outcome.map_err(Error::from)) {
            Next::Nobody => return key.delete(),
            Next::Taken => return,
            // Others may share it.
            Next::Shared => return settle(ctx, module, &name, key),
            Next::HeadIsGone => {}
        }
    }
}

/// The lease of a hold, which somebody may wait for or watch, ends at another moment than it did.
pub(crate) fn lease_changed(
    ctx: Context<'_>,
    module: &mut Module,
    key: &Key<'_>,
    token: Option<Token>,
    deadline: Option<Deadline>,
) {
    watching::lease_changed(ctx, module, key, token, deadline);
    if let Some(name) = module.waits.name(ctx.db(), key.name().bytes()) {
        let next_lapse = key.next_lapse();
        module.waits.note_deadline(&name, next_lapse);
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

/// A lock to wait for: its key, and when a present hold of it lapses next.
#[derive(Clone, Copy)]
pub(crate) struct Held<'a> {
    pub(crate) key: super::Arg<'a>,
    pub(crate) next_lapse: Option<Deadline>,
}

/// Lets the client of `ctx` wait for locks that are held or waited for. Their keys are closed: the
/// search for a deadlock opens keys, perhaps these.
///
/// Where a client cannot be blocked, in a transaction, in a script, it is answered as if it had
/// not wanted to wait.
pub(crate) fn wait(
    ctx: Context<'_>,
    module: &mut Module,
    held: &[Held<'_>],
    wait: &Wait<'_>,
) -> Result<Reply, Error> {
    if !ctx.may_block() {
        module.stats.refusals += 1;
        return Ok(Reply::Nil);
    }
    let asked = wait.asked;
    let locks: Locks = held
        .iter()
        .map(|held| LockName {
            db: ctx.db(),
            key: held.key.bytes().into(),
        })
        .collect();
    let mut keys = KeyReader {
        ctx,
        fence: &mut module.fence,
    };
    if let Some(circle) = circle(&module.waits, asked.owner, &locks, asked.mode, &mut keys) {
        module.stats.deadlocks += 1;
        if let Some(first) = circle.first() {
            ctx.notify_lock(LockEvent::Deadlock, OwnedStr::new(&first.lock.key).as_str());
        }
        return Err(Error::Deadlock(describe(&circle)));
    }
    module.check_room(&locks)?;
    module.listening.start(ctx);
    let Some(client) = Blocked::new(ctx, wait.tells_owner) else {
        return Ok(Reply::Later);
    };
    let since = clock::clocks().steady;
    let handle = client.handle();
    let ticket = module.waits.join(
        locks
            .into_iter()
            .zip(held.iter().map(|held| held.next_lapse)),
        Waiter {
            owner: OwnerBuf::from(asked.owner),
            ttl: asked.ttl,
            request: asked.request.map(RequestIdBuf::from),
            mode: asked.mode,
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

/// The keys, as the search for deadlocks reads them.
struct KeyReader<'c, 'm> {
    ctx: Context<'c>,
    fence: &'m mut Fence,
}

impl KeyReader<'_, '_> {
    /// Looks at the key of a lock.
    fn look<R>(&mut self, lock: &LockName, look: impl FnOnce(&Key<'_>, &mut Fence) -> R) -> R {
        let name = OwnedStr::new(&lock.key);
        self.ctx.in_db(lock.db, |ctx| {
            look(&Key::for_reading(ctx, name.as_str()), self.fence)
        })
    }
}

impl Keys for KeyReader<'_, '_> {
    /// The value of a plain lock can be of any size, and one that is no owner of a command is nobody
    /// who could wait for another.
    fn holders(&mut self, lock: &LockName) -> Holders {
        self.look(lock, |key, fence| {
            if key.kind() == Some(raw::REDISMODULE_KEYTYPE_ZSET) {
                return Holders::Sharing(key.sharing_estimate());
            }
            match key.exclusive(fence) {
                Ok(LockState::Exclusive(hold)) => Owner::new(&hold.owner)
                    .map_or(Holders::Nobody, |owner| Holders::One(OwnerBuf::from(owner))),
                _ => Holders::Nobody,
            }
        })
    }

    fn sharing_among(
        &mut self,
        lock: &LockName,
        owners: &mut dyn Iterator<Item = &OwnerBuf>,
    ) -> Vec<OwnerBuf> {
        self.look(lock, |key, _| {
            if key.kind() == Some(raw::REDISMODULE_KEYTYPE_ZSET) {
                key.sharing_among(owners)
            } else {
                Vec::new()
            }
        })
    }

    fn sharing(&mut self, lock: &LockName) -> Vec<OwnerBuf> {
        self.look(lock, |key, fence| {
            key.holders(fence)
                .unwrap_or_default()
                .iter()
                .filter_map(|holder| Owner::new(&holder.owner).map(OwnerBuf::from))
                .collect()
        })
    }
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
                "{} waits for {} {} {}",
                Printable::new(wait.owner.as_owner().bytes()),
                Printable::new(&wait.lock.key),
                if wait.is_behind { "behind" } else { "held by" },
                Printable::new(holder.owner.as_owner().bytes())
            )
        })
        .collect();
    if let Some(more) = circle.len().checked_sub(MAX_STEPS_SHOWN).filter(|&n| n > 0) {
        steps.push(format!("and {more} more"));
    }
    steps.join(", ")
}

/// What there is to do after a look at a queue.
enum Next {
    /// Nobody was granted, and the lock is as it was.
    Nobody,
    /// Somebody has the lock alone now.
    Taken,
    /// Somebody has a share of the lock now, and the next in the queue may get one too.
    Shared,
    /// Who stood first is gone, and the next in the queue may be granted.
    HeadIsGone,
}

/// Looks at a lock that somebody waits for, and passes it on to as many as can have it. Whoever
/// waits for what turns out to be no lock is told so.
fn settle(ctx: Context<'_>, module: &mut Module, name: &LockName, key: &mut Key<'_>) {
    while let Some(head) = module.waits.head(name) {
        let is_served = key.kind().is_some() || ctx.serves(key.name());
        let outcome = match key.state(head.asked().asker(), &mut module.fence) {
            Ok(LockState::Free) if !is_served => Err(Error::SlotMoving),
            Ok(state) => module
                .waits
                .settle(name, &state, clock::wall_clock(), &mut module.fence)
                .map_err(Error::from),
            Err(error) => Err(error),
        };
        match carry_out(ctx, module, name, key, outcome) {
            Next::Shared | Next::HeadIsGone => {}
            Next::Nobody | Next::Taken => break,
        }
    }
}

/// Does what came of a look at a queue. `key` is that of the lock.
fn carry_out(
    ctx: Context<'_>,
    module: &mut Module,
    name: &LockName,
    key: &mut Key<'_>,
    outcome: Result<Settled<Blocked>, Error>,
) -> Next {
    match outcome {
        Ok(Settled::Waiting) => Next::Nobody,
        Ok(Settled::Passed(hand_over)) => {
            let is_shared = hand_over
                .locks
                .iter()
                .any(|passed| matches!(passed.write, Write::Share(_)));
            grant(ctx, module, name, key, hand_over);
            if is_shared { Next::Shared } else { Next::Taken }
        }
        Ok(Settled::Several(ticket)) => match are_free(ctx, module, ticket, name) {
            Ok(true) => {
                let outcome = module
                    .waits
                    .pass_all(ticket, clock::wall_clock(), &mut module.fence);
                let outcome = outcome.map_err(|NoTokenLeft| Error::NoTokenLeft);
                carry_out(ctx, module, name, key, outcome)
            }
            Ok(false) => Next::Nobody,
            Err((lock, error)) => {
                reject_all(module, &lock, || error.clone());
                Next::HeadIsGone
            }
        },
        Err(error) => {
            reject_all(module, name, || error.clone());
            Next::Nobody
        }
    }
}

/// Whether all locks that somebody waits for are free, of which one is known to be. An error when
/// one of them is no lock, or is another server's.
fn are_free(
    ctx: Context<'_>,
    module: &mut Module,
    ticket: Ticket,
    known: &LockName,
) -> Result<bool, (LockName, Error)> {
    for looked_at in 0.. {
        let Some(lock) = module.waits.wanted(ticket, looked_at).cloned() else {
            break;
        };
        if lock == *known {
            continue;
        }
        let name = OwnedStr::new(&lock.key);
        let mut key = Key::for_writing(ctx, name.as_str());
        key.drop_lapsed_shares();
        let Some(head) = module.waits.head(&lock) else {
            return Ok(false);
        };
        let is_served = key.kind().is_some() || ctx.serves(key.name());
        match key.state(head.asked().asker(), &mut module.fence) {
            Ok(LockState::Free) if !is_served => return Err((lock, Error::SlotMoving)),
            Ok(LockState::Free) => {}
            Ok(state) => {
                module.waits.note_deadline(&lock, state.next_lapse());
                module.waits.found_held(ticket, looked_at);
                return Ok(false);
            }
            Err(error) => return Err((lock, error)),
        }
    }
    Ok(true)
}

/// Writes what makes the new holder one, and tells it. `key` is that of the lock `name`.
fn grant(
    ctx: Context<'_>,
    module: &mut Module,
    name: &LockName,
    key: &mut Key<'_>,
    hand_over: HandOver<Blocked>,
) {
    let token = hand_over.token;
    if let Some(first) = hand_over.granted.first() {
        let asked = first.waiter.asked();
        for passed in &hand_over.locks {
            module.stats.handovers += 1;
            module.stats.expiries += u64::from(passed.after_expiry);
            if passed.name == *name {
                hand_over_key(key, &asked, token, passed);
            } else {
                let other = OwnedStr::new(&passed.name.key);
                let mut key = Key::for_writing(ctx, other.as_str());
                hand_over_key(&mut key, &asked, token, passed);
            }
        }
    }
    let now = clock::clocks().steady;
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
            for lock in &granted.locks {
                watching::begin(ctx, module, lock.clone(), client, owner, token, waiter.ttl);
            }
        }
        let owner = waiter.client.tells_owner.then(|| waiter.owner.as_owner());
        let reply = Reply::grant(token, owner);
        if claims.len() <= granted.hold {
            claims.resize_with(granted.hold + 1, Claim::default);
        }
        let grant = claims.get(granted.hold).map(|claim| Grant {
            holds: granted
                .locks
                .into_iter()
                .map(|lock| HeldLock {
                    lock,
                    owner: waiter.owner.clone(),
                    token,
                })
                .collect(),
            token,
            request: waiter.request.clone(),
            claim: claim.clone(),
        });
        module.in_flight.add();
        waiter.client.answer(Ok(reply), grant);
    }
}

/// Writes what makes the one who asked a holder of one lock.
fn hand_over_key(key: &mut Key<'_>, asked: &Acquire<'_>, token: Token, passed: &Passed) {
    if passed.after_expiry {
        key.notify(LockEvent::Expired);
    }
    key.grant(asked.owner, asked.request, token, &passed.write);
    key.notify(LockEvent::HandedOver);
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
        let owner = hold.owner.as_owner();
        ctx.in_db(hold.lock.db, |ctx| {
            let mut key = Key::for_writing(ctx, key.as_str());
            key.drop_lapsed_shares();
            let decision = key
                .state(Asker::of(owner), &mut module.fence)
                .map(|state| release(&state, owner, Some(hold.token)));
            if let Ok(Released::Ended(token, remainder)) = decision {
                end_hold(ctx, module, &mut key, owner, token, remainder);
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
    module.quorum.pass();
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
            key.drop_lapsed_shares();
            settle(ctx, module, &name, &mut key);
        });
    }
    watching::renew_due(ctx, module);
}
