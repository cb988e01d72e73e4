//! The command that `LOCK.GUARD` runs: which it may be, and running it.

use super::api::api;
use super::args::Args;
use super::context::Context;
use super::during::During;
use super::reply::{Error, Printable, send_error};
use redis_module::raw;
use std::cell::Cell;
use std::ffi::CString;
use std::ptr;

/// The command that stands in front of a guarded one. Under itself it would only nest.
pub(super) const GUARD: &[u8] = b"LOCK.GUARD";

/// Refuses commands that make no sense under a guard, by what the server says of them: those that
/// would wait, and those that change or are about the connection. So does the server for most of
/// them when they come from a script, but not in words that a caller of `LOCK.GUARD` would expect.
///
/// `args` begin with the command.
pub(crate) fn check_guardable(ctx: Context<'_>, mut args: Args<'_>) -> Result<(), Error> {
    let name = args.next().ok_or(Error::WrongArity)?.bytes();
    let refuse = |reason| Err(Error::Unguardable(Printable::new(name), reason));
    if name.eq_ignore_ascii_case(GUARD) {
        return refuse("it is a guard itself");
    }
    // No name has this byte, but the server takes a name to pieces by it: a key of millions of them,
    // which is no subcommand, would keep it busy for seconds.
    let is_divided = |name: &[u8]| name.contains(&b'|');
    if is_divided(name) {
        return Err(Error::UnknownCommand(Printable::new(name)));
    }
    let full_name = args
        .next()
        .map(super::Arg::bytes)
        .filter(|subcommand| !is_divided(subcommand))
        .map(|subcommand| [name, b"|", subcommand].concat());
    let known = full_name
        .and_then(|full_name| traits_of(ctx, &full_name).transpose())
        .or_else(|| traits_of(ctx, name).transpose());
    let traits = match known {
        None => return Err(Error::UnknownCommand(Printable::new(name))),
        Some(Err(NoAnswer)) => return refuse("the server does not say what it is"),
        Some(Ok(traits)) => traits,
    };
    let has = |word: &str| traits.iter().any(|known| known == word.as_bytes());
    if has("blocking") || has("@blocking") {
        refuse("it may block")
    } else if has("@connection") {
        refuse("it is about the connection")
    } else if has("noscript") {
        refuse("it can't run in a script either")
    } else {
        Ok(())
    }
}

/// The server does not answer `COMMAND INFO`, because it is renamed or switched off.
struct NoAnswer;

/// The flags and the ACL categories of a command. `None` when there is no such command.
fn traits_of(ctx: Context<'_>, name: &[u8]) -> Result<Option<Vec<Vec<u8>>>, NoAnswer> {
    // SAFETY: the context is alive, and each letter of the format has its argument: a C string, a
    // buffer and its length. The reply is freed by the one who got it; what is taken out of it
    // belongs to it, and is copied.
    unsafe {
        let reply = api!(RedisModule_Call(
            ctx.as_raw(),
            c"COMMAND".as_ptr(),
            c"cb".as_ptr(),
            c"INFO".as_ptr(),
            name.as_ptr(),
            name.len()
        ));
        if reply.is_null() {
            return Err(NoAnswer);
        }
        let command = element(reply, 0);
        let traits = [FLAGS, CATEGORIES].map(|index| texts(element(command, index)));
        let is_known = !command.is_null() && kind(command) == raw::REDISMODULE_REPLY_ARRAY;
        api!(RedisModule_FreeCallReply(reply));
        Ok(is_known.then(|| traits.concat()))
    }
}

/// Where a command's flags stand in the answer of `COMMAND INFO`.
const FLAGS: usize = 2;
/// Where its ACL categories stand.
const CATEGORIES: usize = 6;

/// The type of a reply, by the server's numbers.
///
/// # Safety
/// `reply` is alive, or null.
unsafe fn kind(reply: *mut raw::RedisModuleCallReply) -> isize {
    // SAFETY: passed on to the caller; the server takes null too.
    unsafe { api!(RedisModule_CallReplyType(reply)) }
        .try_into()
        .unwrap_or(raw::REDISMODULE_REPLY_UNKNOWN)
}

/// An element of an array. Null when it is no array or not so long.
///
/// # Safety
/// `reply` is alive, or null.
unsafe fn element(
    reply: *mut raw::RedisModuleCallReply,
    index: usize,
) -> *mut raw::RedisModuleCallReply {
    // SAFETY: passed on to the caller.
    unsafe {
        let is_list =
            [raw::REDISMODULE_REPLY_ARRAY, raw::REDISMODULE_REPLY_SET].contains(&kind(reply));
        if !is_list || index >= api!(RedisModule_CallReplyLength(reply)) {
            ptr::null_mut()
        } else if kind(reply) == raw::REDISMODULE_REPLY_ARRAY {
            api!(RedisModule_CallReplyArrayElement(reply, index))
        } else {
            api!(RedisModule_CallReplySetElement(reply, index))
        }
    }
}

/// The texts of a list of texts.
///
/// # Safety
/// `reply` is alive, or null.
unsafe fn texts(reply: *mut raw::RedisModuleCallReply) -> Vec<Vec<u8>> {
    let mut texts = Vec::new();
    // SAFETY: passed on to the caller. The server answers with a pointer to as many bytes as it
    // says, or with null for what is no text.
    unsafe {
        while let Some(item) = element(reply, texts.len()).as_mut() {
            let mut len = 0;
            let start = api!(RedisModule_CallReplyStringPtr(item, &raw mut len));
            texts.push(if start.is_null() {
                Vec::new()
            } else {
                std::slice::from_raw_parts(start.cast::<u8>(), len).to_vec()
            });
        }
    }
    texts
}

/// Runs the command that stands in the arguments behind so many of them, as the user that the client
/// has, and answers with what it answers. Its effects are replicated as those of the command itself.
pub(super) fn run(ctx: Context<'_>, mut args: Args<'_>, skipped: usize) {
    args.by_ref().take(skipped).for_each(drop);
    let name = args.next().map(super::Arg::bytes).unwrap_or_default();
    let (words, count) = args.as_raw();
    let Ok(command) = CString::new(name) else {
        send_error(ctx, &Error::UnknownCommand(Printable::new(name)));
        return;
    };
    let _running = During::begin(&IS_RUNNING);
    // SAFETY: the context is that of a command, and the format's vector is the rest of its
    // arguments. The reply is sent before it is freed, both by the one who got it.
    //
    // "!" replicates, "0" answers by the client's protocol, "C" checks the rights of its user, "S"
    // and "M" check all that the server checks of a command in a script, and "E" makes errors
    // replies.
    unsafe {
        let reply = api!(RedisModule_Call(
            ctx.as_raw(),
            command.as_ptr(),
            c"!0CSMEv".as_ptr(),
            words,
            count
        ));
        if reply.is_null() {
            send_error(ctx, &Error::Internal);
            return;
        }
        api!(RedisModule_ReplyWithCallReply(ctx.as_raw(), reply));
        api!(RedisModule_FreeCallReply(reply));
    }
}

thread_local! {
    /// Whether a guarded command runs.
    static IS_RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// Whether a guarded command runs. Its client is one that the server made up.
pub(super) fn is_running() -> bool {
    IS_RUNNING.get()
}
