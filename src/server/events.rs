//! What the server tells the module: keys that somebody else changed, and changes of the server
//! itself.
//!
//! Nothing may be written inside of these callbacks. They mark what has to be looked at, and the
//! alarm goes off as soon as the server is done with what it is doing.

use super::api::{OK, api};
use super::context::Context;
use super::eviction::on_evicted_lock;
use super::guard::guard;
use super::key::{Key, is_own_lock};
use super::quorum;
use super::reply::Error;
use super::state::{Module, with_module};
use super::string::Str;
use super::voting::Voting;
use crate::lock::watchdog::{ClientId, WatchTable};
use redis_module::raw;
use std::ffi::{c_char, c_int, c_void};

/// Whether the module listens to keyspace events. It does while somebody waits, since every event
/// costs every command that causes one. Servers that cannot end a subscription keep it, and then an
/// event that nobody waits for costs a branch.
#[derive(Default)]
pub(super) struct Listening(bool);

impl Listening {
    /// Begins to listen.
    pub(super) fn start(&mut self, ctx: Context<'_>) {
        if !self.0 {
            // SAFETY: the context is alive and the callback has the signature that the server
            // calls it with. The server can only refuse when it is out of memory.
            let outcome = unsafe {
                api!(RedisModule_SubscribeToKeyspaceEvents(
                    ctx.as_raw(),
                    classes(),
                    Some(on_keyspace_event)
                ))
            };
            self.0 = outcome == OK;
        }
    }

    /// Whether [`Listening::stop`] would do anything.
    pub(super) fn can_stop(&self) -> bool {
        // SAFETY: reading a pointer that the server set while loading the module.
        self.0 && unsafe { raw::RedisModule_UnsubscribeFromKeyspaceEvents }.is_some()
    }

    /// Ends the subscription where the server can. Not to be called while it sends an event.
    ///
    /// The server refuses only what is no subscription, so there is nothing to try again.
    pub(super) fn stop(&mut self, ctx: Context<'_>) {
        self.0 = false;
        // SAFETY: reading a pointer that the server set while loading the module, and calling it
        // with what `start` passed.
        unsafe {
            if let Some(unsubscribe) = raw::RedisModule_UnsubscribeFromKeyspaceEvents {
                unsubscribe(ctx.as_raw(), classes(), Some(on_keyspace_event));
            }
        }
    }
}

/// The classes of events by which a key can go away or change its deadline. The class of strings is
/// not among them, because a `SET` over a lock leaves it taken; if the `SET` has a TTL, that comes
/// with an event of the generic class. That of sorted sets is, because a `ZREM` can end a share. So
/// is a change of type, where the server tells it.
fn classes() -> c_int {
    // SAFETY: reading a pointer that the server set while loading the module, and calling it.
    let known = unsafe { raw::RedisModule_GetKeyspaceNotificationFlagsAll.map_or(0, |all| all()) };
    raw::REDISMODULE_NOTIFY_GENERIC
        | raw::REDISMODULE_NOTIFY_EXPIRED
        | raw::REDISMODULE_NOTIFY_EVICTED
        | raw::REDISMODULE_NOTIFY_ZSET
        | (raw::REDISMODULE_NOTIFY_TYPE_CHANGED & known)
}

/// A key was changed.
unsafe extern "C" fn on_keyspace_event(
    ctx: *mut raw::RedisModuleCtx,
    _class: c_int,
    _event: *const c_char,
    key: *mut raw::RedisModuleString,
) -> c_int {
    guard(|| {
        // While the state is lent, it is this module that writes, and knows.
        with_module(|module| {
            if module.waits.is_empty() {
                return;
            }
            // SAFETY: context and key live until this function returns.
            let (ctx, key) = unsafe { (Context::from_raw(ctx), Str::from_raw(key)) };
            let Some(ctx) = ctx else {
                return;
            };
            if let Some(lock) = module.waits.name(ctx.db(), key.bytes()) {
                // What the deadline is now tells later whether the lease lapsed.
                let key = Key::for_reading(ctx, key);
                if key.kind().is_some() {
                    module.waits.note_deadline(&lock, key.next_lapse());
                }
                module.waits.mark(lock);
                module.set_alarm(ctx);
            }
        });
    });
    OK
}

/// An event of the server that the module listens to only while it has a use for it.
#[derive(Default)]
pub(super) struct Subscription {
    is_active: bool,
}

impl Subscription {
    /// Begins to listen to the event with this number.
    pub(super) fn start(&mut self, ctx: Context<'_>, event: u64) {
        if !self.is_active {
            self.is_active = listen_to(ctx, event, true);
        }
    }

    /// Whether [`Subscription::stop`] would do anything.
    pub(super) fn is_active(&self) -> bool {
        self.is_active
    }

    /// Ends to listen. Not to be called while the server tells any event: it walks the list of
    /// those who listen.
    pub(super) fn stop(&mut self, ctx: Context<'_>, event: u64) {
        if self.is_active {
            self.is_active = false;
            listen_to(ctx, event, false);
        }
    }
}

/// Begins or ends to listen to an event of the server. False when the server does not know it.
fn listen_to(ctx: Context<'_>, id: u64, on: bool) -> bool {
    let event = raw::RedisModuleEvent { id, dataver: 1 };
    let callback: raw::RedisModuleEventCallback = if on { Some(on_server_event) } else { None };
    // SAFETY: the context is alive, and the callback has the signature that the server calls it
    // with. Without a callback the subscription ends.
    unsafe {
        api!(RedisModule_SubscribeToServerEvent(
            ctx.as_raw(),
            event,
            callback
        )) == OK
    }
}

/// Asks for the events of the server itself, for as long as the module is loaded.
pub(super) fn subscribe(ctx: Context<'_>) -> Result<(), String> {
    for id in [
        raw::REDISMODULE_EVENT_FLUSHDB,
        raw::REDISMODULE_EVENT_SWAPDB,
        raw::REDISMODULE_EVENT_LOADING,
        raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
        raw::REDISMODULE_EVENT_CONFIG,
        raw::REDISMODULE_EVENT_CRON_LOOP,
    ] {
        if !listen_to(ctx, id, true) {
            return Err(format!("the server has no event {id}"));
        }
    }
    Ok(())
}

/// Something happened to the server.
unsafe extern "C" fn on_server_event(
    ctx: *mut raw::RedisModuleCtx,
    event: raw::RedisModuleEvent,
    step: u64,
    data: *mut c_void,
) {
    guard(|| {
        // SAFETY: the context lives until this function returns.
        let ctx = unsafe { Context::from_raw(ctx)? };
        with_module(|module| {
            match event.id {
                raw::REDISMODULE_EVENT_FLUSHDB if step == raw::REDISMODULE_SUBEVENT_FLUSHDB_END => {
                    // SAFETY: this is the data that this event comes with.
                    let flush = unsafe { data.cast::<raw::RedisModuleFlushInfoV1>().as_ref() };
                    // All databases go by the number -1.
                    let db = flush.map(|flush| flush.dbnum).filter(|&db| db >= 0);
                    module.waits.mark_all(db);
                }
                raw::REDISMODULE_EVENT_SWAPDB => {
                    // SAFETY: this is the data that this event comes with.
                    let swap = unsafe { data.cast::<raw::RedisModuleSwapDbInfoV1>().as_ref() };
                    if let Some(swap) = swap {
                        module.waits.mark_all(Some(swap.dbnum_first));
                        module.waits.mark_all(Some(swap.dbnum_second));
                    }
                }
                raw::REDISMODULE_EVENT_LOADING
                    if step == raw::REDISMODULE_SUBEVENT_LOADING_ENDED =>
                {
                    module.waits.mark_all(None);
                }
                raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED
                    if step == raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_REPLICA =>
                {
                    demote(module);
                }
                raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED => {
                    module.voting = Voting::of_promoted();
                }
                raw::REDISMODULE_EVENT_CLIENT_CHANGE
                    if step == raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED =>
                {
                    // SAFETY: this is the data that this event comes with.
                    let client = unsafe { data.cast::<raw::RedisModuleClientInfoV1>().as_ref() };
                    if let Some(client) = client {
                        module.watches.end_client(ClientId(client.id));
                    }
                }
                // Several times a second: finds a timer that is overdue, see `Alarm`.
                raw::REDISMODULE_EVENT_CRON_LOOP if module.has_nothing_due() => return,
                raw::REDISMODULE_EVENT_EVENTLOOP
                    if step == raw::REDISMODULE_SUBEVENT_EVENTLOOP_BEFORE_SLEEP
                        && module.quorum.is_stirred() =>
                {
                    quorum::flush(module);
                }
                raw::REDISMODULE_EVENT_EVENTLOOP => return,
                raw::REDISMODULE_EVENT_CONFIG => module.eviction.check(ctx),
                raw::REDISMODULE_EVENT_KEY if step == raw::REDISMODULE_SUBEVENT_KEY_EVICTED => {
                    // SAFETY: this is the data that this event comes with, and its key is open.
                    let is_lock = unsafe {
                        data.cast::<raw::RedisModuleKeyInfoV1>()
                            .as_ref()
                            .is_some_and(|info| is_own_lock(info.key))
                    };
                    if is_lock {
                        on_evicted_lock(ctx, module);
                    }
                }
                _ => {}
            }
            module.set_alarm(ctx);
        });
        Some(())
    });
}

/// This server is a replica now: others grant, and nobody can wait here. The server itself unblocks
/// its clients with the same error; this is for any that it might leave to the module.
fn demote(module: &mut Module) {
    module.unclaimed.clear();
    module.watches = WatchTable::default();
    for waiter in module.take_all_waiters() {
        waiter.client.answer(Err(Error::Demoted), None);
    }
    for client in module.quorum.take_all() {
        client.answer(Err(Error::Demoted), None);
    }
}
