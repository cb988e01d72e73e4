//! Renewing the leases that the watchdog watches.

use super::clock::clocks;
use super::context::Context;
use super::key::Key;
use super::log::{Level, log};
use super::notify::LockEvent;
use super::reply::Printable;
use super::state::Module;
use super::string::OwnedStr;
use crate::lock::fence::Token;
use crate::lock::lease::{Deadline, Ttl};
use crate::lock::queue::LockName;
use crate::lock::record::Owner;
use crate::lock::rules::Asker;
use crate::lock::watchdog::{ClientId, Due, Lost, Watch};
use redis_module::raw;

/// Begins to renew the lease of a hold for as long as a connection lives.
pub(super) fn begin(
    ctx: Context<'_>,
    module: &mut Module,
    lock: LockName,
    client: ClientId,
    owner: Owner<'_>,
    token: Token,
    ttl: Ttl,
) {
    let watch = Watch::new(owner, token, ttl, clocks().steady, module.max_hold_ms);
    module.watches.watch(lock, client, watch);
    module
        .client_events
        .start(ctx, raw::REDISMODULE_EVENT_CLIENT_CHANGE);
}

/// Begins to watch a lock for the client of a command.
pub(crate) fn watch(
    ctx: Context<'_>,
    module: &mut Module,
    key: super::Arg<'_>,
    client: ClientId,
    owner: Owner<'_>,
    token: Token,
    ttl: Ttl,
) {
    let lock = LockName {
        db: ctx.db(),
        key: key.bytes().into(),
    };
    begin(ctx, module, lock, client, owner, token, ttl);
}

/// Ends all watches over a hold of the lock of an open key.
pub(super) fn end(ctx: Context<'_>, module: &mut Module, key: &Key<'_>, token: Option<Token>) {
    if let Some(token) = token.filter(|_| !module.watches.is_empty()) {
        let lock = LockName {
            db: ctx.db(),
            key: key.name().bytes().into(),
        };
        module.watches.end_hold(&lock, token);
    }
}

/// The lease of a hold ends at another moment than it did: its watches are in time for it.
pub(super) fn lease_changed(
    ctx: Context<'_>,
    module: &mut Module,
    key: &Key<'_>,
    token: Option<Token>,
    deadline: Option<Deadline>,
) {
    if module.watches.is_empty() {
        return;
    }
    if let Some((token, deadline)) = token.zip(deadline) {
        let lock = LockName {
            db: ctx.db(),
            key: key.name().bytes().into(),
        };
        let now = clocks();
        let left = deadline.left(now.wall.as_millis()).unsigned_abs();
        module.watches.note_lease(&lock, token, left, now.steady);
    }
}

/// Renews the leases that are due. A hold that is gone is not taken back: its watch ends.
pub(super) fn renew_due(ctx: Context<'_>, module: &mut Module) {
    let now = clocks();
    while let Some((lock, watch, due)) = module.watches.take_due(now.steady) {
        let name = OwnedStr::new(&lock.key);
        match due {
            Due::Renewal => ctx.in_db(lock.db, |ctx| {
                let mut key = Key::for_writing(ctx, name.as_str());
                renew(ctx, module, &mut key, &lock, &watch);
            }),
            Due::End => report(
                ctx,
                &lock,
                &watch,
                "has been watched for as long as lock.watchdog-max-hold allows",
            ),
        }
    }
}

/// Renews one lease, or finds that it is lost.
fn renew(ctx: Context<'_>, module: &mut Module, key: &mut Key<'_>, lock: &LockName, watch: &Watch) {
    // What is no lock any more is a lost lock too.
    let owner = watch.owner.as_owner();
    let outcome = match key.state(Asker::of(owner), &mut module.fence) {
        Ok(state) => watch.renew(&state, clocks().wall.as_millis()),
        Err(_) => Err(Lost),
    };
    match outcome {
        Ok(None) => {}
        Ok(Some(deadline)) => {
            module.stats.watchdog_renewals += 1;
            key.renew(owner, deadline);
            if let Some(name) = module.waits.name(lock.db, &lock.key) {
                let next_lapse = key.next_lapse();
                module.waits.note_deadline(&name, next_lapse);
            }
        }
        Err(Lost) => {
            module.stats.lost += 1;
            key.notify(LockEvent::Lost);
            report(ctx, lock, watch, "is lost");
            module.watches.end_hold(lock, watch.token);
        }
    }
}

/// Writes a line about a watched lock.
fn report(ctx: Context<'_>, lock: &LockName, watch: &Watch, what: &str) {
    log(
        Some(ctx),
        Level::Notice,
        &format!(
            "redis-lock: the watched lock {} of {} {what}",
            Printable::new(&lock.key),
            Printable::new(watch.owner.as_owner().bytes())
        ),
    );
}
