//! Calls of the module API.
//!
//! The server fills in one function pointer for each name it knows. Those in the list
//! below (`required!`) exist from Redis 7.0 on and are checked once, when the module is loaded;
//! every other one has to be asked for where it is used.

use redis_module::raw;
use std::ffi::c_int;

/// `REDISMODULE_OK`: the server did what it was asked to.
pub(super) const OK: c_int = 0;
/// `REDISMODULE_ERR`: it did not.
pub(super) const ERR: c_int = 1;

/// Calls a function of the list below. To be used in an `unsafe` block that says why its arguments
/// are what the function expects.
macro_rules! api {
    ($name:ident($($argument:expr),* $(,)?)) => {
        match redis_module::raw::$name {
            Some(function) => function($($argument),*),
            None => $crate::server::api::missing(stringify!($name)),
        }
    };
}
pub(super) use api;

macro_rules! required {
    ($($name:ident),* $(,)?) => {
        /// The name of a function that this module cannot do without and that the server does not
        /// have.
        pub(super) fn first_missing() -> Option<&'static str> {
            $(
                // SAFETY: the server writes the pointer while it loads the module, on this very
                // thread, and never again.
                if unsafe { raw::$name }.is_none() {
                    return Some(stringify!($name));
                }
            )*
            None
        }
    };
}

required! {
    RedisModule_AvoidReplicaTraffic,
    RedisModule_BlockClient,
    RedisModule_Call,
    RedisModule_CallReplyArrayElement,
    RedisModule_CallReplyInteger,
    RedisModule_CallReplyLength,
    RedisModule_CallReplySetElement,
    RedisModule_CallReplyStringPtr,
    RedisModule_CallReplyType,
    RedisModule_CloseKey,
    RedisModule_CreateCommand,
    RedisModule_CreateString,
    RedisModule_CreateTimer,
    RedisModule_DeleteKey,
    RedisModule_EventLoopAdd,
    RedisModule_EventLoopDel,
    RedisModule_Free,
    RedisModule_FreeCallReply,
    RedisModule_FreeServerInfo,
    RedisModule_FreeString,
    RedisModule_FreeThreadSafeContext,
    RedisModule_GetAbsExpire,
    RedisModule_GetBlockedClientHandle,
    RedisModule_GetBlockedClientPrivateData,
    RedisModule_GetClientId,
    RedisModule_GetClientInfoById,
    RedisModule_GetCommand,
    RedisModule_GetCommandKeysWithFlags,
    RedisModule_GetContextFlags,
    RedisModule_GetDetachedThreadSafeContext,
    RedisModule_GetSelectedDb,
    RedisModule_GetServerInfo,
    RedisModule_GetServerVersion,
    RedisModule_HashSet,
    RedisModule_InfoAddFieldULongLong,
    RedisModule_InfoAddSection,
    RedisModule_IsKeysPositionRequest,
    RedisModule_KeyAtPosWithFlags,
    RedisModule_KeyType,
    RedisModule_LoadConfigs,
    RedisModule_Log,
    RedisModule_NotifyKeyspaceEvent,
    RedisModule_OpenKey,
    RedisModule_RegisterInfoFunc,
    RedisModule_RegisterBoolConfig,
    RedisModule_RegisterNumericConfig,
    RedisModule_RegisterStringConfig,
    RedisModule_Replicate,
    RedisModule_ReplyWithArray,
    RedisModule_ReplyWithCallReply,
    RedisModule_ReplyWithError,
    RedisModule_ReplyWithLongLong,
    RedisModule_ReplyWithMap,
    RedisModule_ReplyWithNull,
    RedisModule_ReplyWithStringBuffer,
    RedisModule_ScanCursorCreate,
    RedisModule_ScanCursorDestroy,
    RedisModule_ScanKey,
    RedisModule_SelectDb,
    RedisModule_ServerInfoGetFieldUnsigned,
    RedisModule_SetAbsExpire,
    RedisModule_SetCommandInfo,
    RedisModule_SetDisconnectCallback,
    RedisModule_SetModuleOptions,
    RedisModule_SignalModifiedKey,
    RedisModule_StopTimer,
    RedisModule_StringDMA,
    RedisModule_StringPtrLen,
    RedisModule_StringSet,
    RedisModule_SubscribeToKeyspaceEvents,
    RedisModule_SubscribeToServerEvent,
    RedisModule_UnblockClient,
    RedisModule_ValueLength,
    RedisModule_WrongArity,
    RedisModule_ZsetAdd,
    RedisModule_ZsetFirstInScoreRange,
    RedisModule_ZsetLastInScoreRange,
    RedisModule_ZsetRangeCurrentElement,
    RedisModule_ZsetRangeEndReached,
    RedisModule_ZsetRangeNext,
    RedisModule_ZsetRangeStop,
    RedisModule_ZsetRem,
    RedisModule_ZsetScore,
}

/// Reports a function that is called without standing in the list: a mistake in this crate,
/// which the guard of the callback turns into an error reply.
#[expect(clippy::panic, reason = "the guard of every callback catches it")]
#[cold]
pub(super) fn missing(name: &'static str) -> ! {
    panic!("the server has no {name}")
}
