//! Loading and unloading.

use super::api::{ERR, OK, api, first_missing};
use super::args::Args;
use super::clock::wall_clock;
use super::context::Context;
use super::guard::{guard, install_hook, remove_hook};
use super::log::{Level, log};
use super::metadata::{add_category, register};
use super::state::{Module, with_module};
use super::voting::Voting;
use super::{config, events, info_section};
use crate::{COMMANDS, NAME};
use redis_module::raw;
use std::ffi::c_int;

/// The version that `MODULE LIST` shows: `major * 10000 + minor * 100 + patch` of the package.
const VERSION: c_int = version_number(env!("CARGO_PKG_VERSION"));

/// Writes to a key are signalled by [`super::key`], so that looking at a key touches no `WATCH`.
const OPTIONS: c_int = raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED.cast_signed();

/// The server calls this first.
///
/// # Safety
/// Called by the server only, with the context of a module being loaded and its load arguments.
#[unsafe(no_mangle)]
unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // Nothing may allocate before this: it tells the allocator where the server's is.
    // SAFETY: the context is the one that the server passed for this purpose.
    let initialised = unsafe {
        raw::Export_RedisModule_Init(
            ctx,
            NAME.as_ptr(),
            VERSION,
            raw::REDISMODULE_APIVER_1.cast_signed(),
        )
    };
    if initialised != OK {
        return ERR;
    }
    // SAFETY: context and arguments are alive until this function returns.
    let (ctx, args) = unsafe { (Context::from_raw(ctx), Args::of_load(argv, argc)) };
    let Some(ctx) = ctx else {
        return ERR;
    };
    install_hook();
    match guard(|| load(ctx, args)) {
        Some(Ok(())) => OK,
        Some(Err(reason)) => {
            log(Some(ctx), Level::Warning, &format!("redis-lock: {reason}"));
            remove_hook();
            ERR
        }
        None => {
            remove_hook();
            ERR
        }
    }
}

/// The server calls this last. It refuses by itself while clients are blocked or timers pend.
///
/// # Safety
/// Called by the server only.
#[unsafe(no_mangle)]
unsafe extern "C" fn RedisModule_OnUnload(_ctx: *mut raw::RedisModuleCtx) -> c_int {
    guard(|| with_module(|module| *module = Module::default()));
    remove_hook();
    OK
}

fn load(ctx: Context<'_>, mut args: Args<'_>) -> Result<(), String> {
    if let Some(name) = first_missing() {
        return Err(format!(
            "needs Redis 7.0 or Valkey 8.0 or newer, this server is {} and has no {name}",
            server_version()
        ));
    }
    // SAFETY: the context is alive.
    unsafe { api!(RedisModule_SetModuleOptions(ctx.as_raw(), OPTIONS)) };
    config::register(ctx, &mut args)?;
    events::subscribe(ctx)?;
    add_category(ctx);
    for entry in COMMANDS {
        register(ctx, entry.spec, entry.handler)?;
    }
    info_section::register(ctx)?;
    let settings = with_module(|module| {
        module.voting = Voting::of_server(ctx);
        if module.voting == Voting::Ready {
            module.fence.begin(wall_clock());
        }
        module.eviction.check(ctx);
        config::describe(module)
    });
    log(
        Some(ctx),
        Level::Notice,
        &format!(
            "redis-lock {} loaded: {}",
            env!("CARGO_PKG_VERSION"),
            settings.unwrap_or_default()
        ),
    );
    Ok(())
}

/// The server's version as it says itself. Valkey says the Redis version that it is compatible to.
fn server_version() -> String {
    // SAFETY: reading a pointer that the server set while loading the module, and calling it.
    let version = unsafe { raw::RedisModule_GetServerVersion.map_or(0, |version| version()) };
    format!(
        "{}.{}.{}",
        version >> 16,
        (version >> 8) & 0xff,
        version & 0xff
    )
}

/// Reads `major.minor.patch` at compile time, where a malformed version stops the build.
const fn version_number(text: &str) -> c_int {
    let mut bytes = text.as_bytes();
    let (mut number, mut part) = (0, 0);
    while let [byte, rest @ ..] = bytes {
        match *byte {
            b'.' => {
                number = (number + part) * 100;
                part = 0;
            }
            digit => part = part * 10 + (digit - b'0') as c_int,
        }
        bytes = rest;
    }
    number + part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_has_two_digits_for_each_part() {
        assert_eq!(version_number("0.1.0"), 100);
        assert_eq!(version_number("1.2.3"), 1_02_03);
        assert_eq!(version_number("12.34.56"), 12_34_56);
    }
}
