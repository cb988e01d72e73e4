//! The context that the server passes to every callback.

use super::api::{OK, api};
use super::guarded;
use super::reply::Error;
use super::string::Str;
use crate::lock::watchdog::ClientId;
use redis_module::raw;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

/// The server, as seen from a callback that runs for `'c`.
#[derive(Clone, Copy)]
pub(crate) struct Context<'c> {
    raw: NonNull<raw::RedisModuleCtx>,
    life: PhantomData<&'c ()>,
}

/// Selects a database when dropped.
struct SelectAgain<'c> {
    ctx: Context<'c>,
    db: i32,
}

impl Drop for SelectAgain<'_> {
    fn drop(&mut self) {
        self.ctx.select(self.db);
    }
}

impl Context<'_> {
    /// `None` for a null pointer.
    ///
    /// # Safety
    /// `raw` is what the server passed to a callback, and the callback runs for `'c`; or it is a
    /// context that the server made for this module, and not freed for `'c`.
    pub(super) unsafe fn from_raw(raw: *mut raw::RedisModuleCtx) -> Option<Self> {
        Some(Self {
            raw: NonNull::new(raw)?,
            life: PhantomData,
        })
    }

    /// The context as the server's functions take it.
    pub(super) fn as_raw(self) -> *mut raw::RedisModuleCtx {
        self.raw.as_ptr()
    }

    /// The number of the selected database.
    pub(crate) fn db(self) -> i32 {
        // SAFETY: the context is alive.
        unsafe { api!(RedisModule_GetSelectedDb(self.as_raw())) }
    }

    /// Runs `f` with another database selected. The client finds its own again, also after a panic.
    pub(super) fn in_db<R>(self, db: i32, f: impl FnOnce(Self) -> R) -> R {
        let _restore = SelectAgain {
            ctx: self,
            db: self.db(),
        };
        self.select(db);
        f(self)
    }

    /// Selects a database that exists: its number came from the server.
    fn select(self, db: i32) {
        // SAFETY: the context is alive. Numbers out of range are refused and change nothing.
        unsafe { api!(RedisModule_SelectDb(self.as_raw(), db)) };
    }

    /// The connection of the client. An error in a script, and when it is another module that calls:
    /// then the server makes up a client, and does not tell for which connection it runs.
    pub(crate) fn connection(self) -> Result<ClientId, Error> {
        // Some servers keep the clients of scripts and of modules among the connections, so a number
        // alone does not tell. A connection may be blocked except in a transaction.
        let is_made_up = self.has_flag(raw::REDISMODULE_CTX_FLAGS_LUA)
            || guarded::is_running()
            || self.has_flag(raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING)
                && !self.has_flag(raw::REDISMODULE_CTX_FLAGS_MULTI);
        if is_made_up {
            return Err(Error::WatchWithoutConnection);
        }
        // SAFETY: the context is alive. Without a struct to fill in, the server only says whether
        // a connection with this number exists.
        unsafe {
            let id = api!(RedisModule_GetClientId(self.as_raw()));
            if api!(RedisModule_GetClientInfoById(ptr::null_mut(), id)) == OK {
                Ok(ClientId(id))
            } else {
                Err(Error::WatchWithoutConnection)
            }
        }
    }

    /// Whether this server is a replica.
    pub(super) fn is_replica(self) -> bool {
        self.has_flag(raw::REDISMODULE_CTX_FLAGS_SLAVE)
    }

    /// Whether nothing may be written at present, because clients are paused: by `CLIENT PAUSE`, or
    /// for a failover or a shutdown that waits for replicas.
    pub(super) fn server_is_paused() -> bool {
        // SAFETY: the function takes no arguments.
        unsafe { api!(RedisModule_AvoidReplicaTraffic()) != 0 }
    }

    /// Whether this server may write a key that no client has asked it for. In a cluster it may not
    /// once the key's slot has moved away, and while it moves, for keys that are gone already: the
    /// other server may have granted the lock. The server refuses a command on such a key.
    pub(super) fn serves(self, key: Str<'_>) -> bool {
        if !self.has_flag(raw::REDISMODULE_CTX_FLAGS_CLUSTER) {
            return true;
        }
        // SAFETY: context and key are alive, and the format's letter has its string. The reply is
        // freed by the one who got it; there is none when the command is refused.
        unsafe {
            let reply = api!(RedisModule_Call(
                self.as_raw(),
                c"EXISTS".as_ptr(),
                c"s".as_ptr(),
                key.as_raw()
            ));
            if reply.is_null() {
                return false;
            }
            api!(RedisModule_FreeCallReply(reply));
            true
        }
    }

    /// Whether the server may evict keys, locks among them, to free memory.
    pub(super) fn may_evict(self) -> bool {
        self.has_flag(raw::REDISMODULE_CTX_FLAGS_EVICT)
    }

    /// Whether the client can be blocked: not in a transaction or a script, and not when it is
    /// another module that calls.
    pub(super) fn may_block(self) -> bool {
        !self.has_flag(
            raw::REDISMODULE_CTX_FLAGS_MULTI
                | raw::REDISMODULE_CTX_FLAGS_LUA
                | raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING,
        )
    }

    /// Whether the server sets any of these flags for this context.
    fn has_flag(self, flags: u32) -> bool {
        // SAFETY: the context is alive.
        unsafe { api!(RedisModule_GetContextFlags(self.as_raw())) & flags.cast_signed() != 0 }
    }
}
