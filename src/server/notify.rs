//! Keyspace events that this module sends.

use super::api::api;
use super::context::Context;
use super::string::Str;
use redis_module::raw;
use std::ffi::CStr;

/// Classes of keyspace events that this module sends.
#[derive(Clone, Copy)]
pub(super) enum EventClass {
    Generic,
    String,
    Hash,
    SortedSet,
    /// Events of this module's own, whose names begin with `lock.`.
    Module,
}

/// What can happen to a lock, as told to those who listen to keyspace events of class `d`.
#[derive(Clone, Copy)]
pub(crate) enum LockEvent {
    /// It was free, and was granted to who asked for it.
    Acquired,
    /// Its owner holds it once more.
    Reentered,
    /// Its owner renewed the lease.
    Renewed,
    /// Its owner ended a hold.
    Released,
    /// It passed to the first of those who waited for it.
    HandedOver,
    /// The lease lapsed while somebody waited for it.
    Expired,
    /// A hold that the watchdog renews was found to be gone.
    Lost,
    /// A request for it was refused that would have closed a circle of waits.
    Deadlock,
}

impl LockEvent {
    fn name(self) -> &'static CStr {
        match self {
            Self::Acquired => c"lock.acquired",
            Self::Reentered => c"lock.reentered",
            Self::Renewed => c"lock.renewed",
            Self::Released => c"lock.released",
            Self::HandedOver => c"lock.handover",
            Self::Expired => c"lock.expired",
            Self::Lost => c"lock.lost",
            Self::Deadlock => c"lock.deadlock",
        }
    }
}

impl Context<'_> {
    /// Sends an event of this module's own about a lock.
    pub(super) fn notify_lock(self, event: LockEvent, key: Str<'_>) {
        self.notify(EventClass::Module, event.name(), key);
    }

    /// Tells clients and modules that listen to keyspace events what happened to `key`.
    pub(super) fn notify(self, class: EventClass, event: &CStr, key: Str<'_>) {
        let class = match class {
            EventClass::Generic => raw::REDISMODULE_NOTIFY_GENERIC,
            EventClass::String => raw::REDISMODULE_NOTIFY_STRING,
            EventClass::Hash => raw::REDISMODULE_NOTIFY_HASH,
            EventClass::SortedSet => raw::REDISMODULE_NOTIFY_ZSET,
            EventClass::Module => raw::REDISMODULE_NOTIFY_MODULE,
        };
        // SAFETY: context and key are alive, and the event ends with a NUL. The only failure is a
        // context without a client, which then has no database to notify about either.
        unsafe {
            api!(RedisModule_NotifyKeyspaceEvent(
                self.as_raw(),
                class,
                event.as_ptr(),
                key.as_raw()
            ));
        }
    }
}
