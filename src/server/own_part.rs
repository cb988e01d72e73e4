//! What this server is asked as one of its own nodes: it carries that out at once, as a command of
//! the client's command, and not over a connection to itself.

use super::api::api;
use super::clock::steady_clock;
use super::context::Context;
use super::state::with_module;
use super::string::OwnedStr;
use crate::quorum::network::Own;
use redis::Value;
use redis_module::raw;
use std::ffi::CString;

/// The database that nodes keep the locks of a quorum in: that of a connection which selects none.
const DB: i32 = 0;

/// Carries out what this server was asked by the command of a client that waits for a quorum, with
/// this context. To be called when the state is not lent any more.
pub(super) fn carry_out(ctx: Context<'_>) {
    let own = with_module(|module| module.quorum.take_own()).unwrap_or_default();
    for own in own {
        let answer = ctx.in_db(DB, |ctx| call(ctx, &own));
        with_module(|module| module.quorum.own_answered(&own, answer, steady_clock()));
    }
}

/// The answer to a command of a coordinator; the error is that which it was answered.
fn call(ctx: Context<'_>, own: &Own) -> Result<Value, String> {
    let mut words = own.words();
    let name = words.next().map(CString::new);
    let strings: Vec<OwnedStr> = words.map(OwnedStr::new).collect();
    let mut argv: Vec<_> = strings.iter().map(|word| word.as_str().as_raw()).collect();
    let Some(Ok(name)) = name else {
        return Err("no command".to_owned());
    };
    // SAFETY: the context is that of a command, and the format's vector is of strings that live
    // until this function returns. The reply is read before it is freed, both by the one who got
    // it.
    //
    // "S" and "M" check all that the server checks of a command in a script, such as whether it may
    // write, and "E" makes errors replies.
    unsafe {
        let reply = api!(RedisModule_Call(
            ctx.as_raw(),
            name.as_ptr(),
            c"SMEv".as_ptr(),
            argv.as_mut_ptr(),
            argv.len()
        ));
        let answer = if api!(RedisModule_CallReplyType(reply)).try_into()
            == Ok(raw::REDISMODULE_REPLY_ERROR)
        {
            Err(String::from_utf8_lossy(&text(reply)).into_owned())
        } else {
            Ok(value(reply))
        };
        if !reply.is_null() {
            api!(RedisModule_FreeCallReply(reply));
        }
        answer
    }
}

/// What a reply says that is no error.
///
/// # Safety
/// `reply` is alive, or null.
unsafe fn value(reply: *mut raw::RedisModuleCallReply) -> Value {
    // SAFETY: passed on to the caller; the server takes null too.
    unsafe {
        match api!(RedisModule_CallReplyType(reply)).try_into() {
            Ok(raw::REDISMODULE_REPLY_INTEGER) => {
                Value::Int(api!(RedisModule_CallReplyInteger(reply)))
            }
            Ok(raw::REDISMODULE_REPLY_STRING) => Value::BulkString(text(reply)),
            Ok(raw::REDISMODULE_REPLY_ARRAY) => Value::Array(
                (0..api!(RedisModule_CallReplyLength(reply)))
                    .map(|index| value(api!(RedisModule_CallReplyArrayElement(reply, index))))
                    .collect(),
            ),
            _ => Value::Nil,
        }
    }
}

/// The text of a reply, empty for what has none.
///
/// # Safety
/// `reply` is alive, or null.
unsafe fn text(reply: *mut raw::RedisModuleCallReply) -> Vec<u8> {
    let mut len = 0;
    // SAFETY: passed on to the caller; the server takes null too. It answers with a pointer to as
    // many bytes as it says, or with null.
    unsafe {
        let start = api!(RedisModule_CallReplyStringPtr(reply, &raw mut len));
        if start.is_null() {
            return Vec::new();
        }
        std::slice::from_raw_parts(start.cast::<u8>(), len).to_vec()
    }
}
