//! Where the keys of a command stand, for the commands where that depends on the arguments.
//!
//! The server asks a command itself, to find its slot in a cluster and to check the rights of its
//! user: what it makes of key specs alone is not enough for the former.

use super::api::api;
use super::args::Args;
use super::context::Context;
use super::during::During;
use super::guarded::GUARD;
use super::metadata::Keys;
use redis_module::raw;
use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;

/// How many arguments of `LOCK.GUARD` stand before the guarded command.
const BEFORE_GUARDED: usize = 2;

/// Whether the server does not run the command but asks where its keys are.
pub(super) fn is_asked_for(ctx: Context<'_>, keys: Keys) -> bool {
    // SAFETY: the context is alive.
    matches!(keys, Keys::Numbered(_) | Keys::FirstAndGuarded)
        && unsafe { api!(RedisModule_IsKeysPositionRequest(ctx.as_raw())) != 0 }
}

/// Tells the server where the keys are. Of wrong arguments it is told as much as can be.
pub(super) fn tell(ctx: Context<'_>, args: Args<'_>, keys: Keys) {
    match keys {
        Keys::Numbered(usage) => tell_numbered(ctx, args, usage.flags()),
        Keys::FirstAndGuarded => tell_guarded(ctx, args),
        // Known from the key specs.
        Keys::None | Keys::First(_) => {}
    }
}

/// Tells one position, counted from the name of the command on.
fn tell_one(ctx: Context<'_>, position: c_int, flags: c_int) {
    // SAFETY: the context is that of a request for keys.
    unsafe { api!(RedisModule_KeyAtPosWithFlags(ctx.as_raw(), position, flags)) };
}

/// `numkeys key [key ...]`
fn tell_numbered(ctx: Context<'_>, mut args: Args<'_>, flags: u32) {
    let numkeys = args
        .next()
        .and_then(|numkeys| std::str::from_utf8(numkeys.bytes()).ok()?.parse().ok())
        .filter(|numkeys| *numkeys <= args.len())
        .unwrap_or(0);
    for position in (2..).take(numkeys) {
        tell_one(ctx, position, flags.cast_signed());
    }
}

/// `key token command [arg ...]`: the lock, and the command's own keys. The server will see for
/// itself if there is no such command.
fn tell_guarded(ctx: Context<'_>, mut args: Args<'_>) {
    let lock = raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS;
    tell_one(ctx, 1, lock.cast_signed());
    args.by_ref().take(BEFORE_GUARDED).for_each(drop);
    let (words, count) = args.as_raw();
    let is_runnable = args.next().is_some_and(|name| is_runnable(name.bytes()));
    let (Ok(count), true) = (c_int::try_from(count), is_runnable) else {
        return;
    };
    // However a guard comes to stand under a guard, it is not followed: each level would take its
    // share of the stack, and there is no limit to them.
    if IS_ASKING.get() {
        return;
    }
    let _asking = During::begin(&IS_ASKING);
    // The name of this command, and what stands before the other.
    let offset = 1 + c_int::try_from(BEFORE_GUARDED).unwrap_or(c_int::MAX);
    let mut number = 0;
    let mut flags: *mut c_int = ptr::null_mut();
    // SAFETY: the words are the rest of the arguments. The server answers with two lists of as many
    // elements as it says, which are freed here, or with null.
    unsafe {
        let positions = api!(RedisModule_GetCommandKeysWithFlags(
            ctx.as_raw(),
            words,
            count,
            &raw mut number,
            &raw mut flags
        ));
        if positions.is_null() {
            return;
        }
        let number = usize::try_from(number).unwrap_or(0);
        let found = std::slice::from_raw_parts(positions, number);
        for (position, flags) in found.iter().zip(std::slice::from_raw_parts(flags, number)) {
            tell_one(ctx, position.saturating_add(offset), *flags);
        }
        api!(RedisModule_Free(positions.cast()));
        api!(RedisModule_Free(flags.cast()));
    }
}

thread_local! {
    /// Whether the server is being asked for the keys of a guarded command.
    static IS_ASKING: Cell<bool> = const { Cell::new(false) };
}

/// Whether a guarded command could be run by this name. No command has a NUL in its name, but the
/// server compares names up to there, and may take such a name for another: that of a guard, for
/// one.
fn is_runnable(name: &[u8]) -> bool {
    !name.contains(&0) && !name.eq_ignore_ascii_case(GUARD)
}
