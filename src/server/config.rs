//! Settings: `CONFIG GET lock.*`, `CONFIG SET`, lines of the configuration file, and the same names
//! without `lock.` as load arguments.

use super::api::{OK, api};
use super::args::Args;
use super::context::Context;
use super::guard::guard;
use super::reply::Printable;
use super::state::{Module, with_module};
use crate::lock::lease::MAX_TTL_MS;
use redis_module::raw;
use std::ffi::{CStr, c_char, c_int, c_longlong, c_void};

/// A setting that is a number.
struct Setting {
    name: &'static CStr,
    default: i64,
    min: i64,
    max: i64,
    /// What it is now.
    get: fn(&Module) -> u64,
    /// Sets it to what is within its range.
    set: fn(&mut Module, u64),
}

/// The most waiters that a limit can be set to: far more than a server has connections.
const MAX_WAITERS: i64 = 10_000_000;

/// A day in milliseconds.
const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

/// All settings.
static SETTINGS: [Setting; 4] = [
    Setting {
        name: c"max-waiters",
        default: 100_000,
        min: 0,
        max: MAX_WAITERS,
        get: |module| module.limits.total as u64,
        set: |module, value| module.limits.total = to_size(value),
    },
    Setting {
        name: c"max-waiters-per-key",
        default: 10_000,
        min: 0,
        max: MAX_WAITERS,
        get: |module| module.limits.per_lock as u64,
        set: |module, value| module.limits.per_lock = to_size(value),
    },
    Setting {
        name: c"watchdog-max-hold",
        default: DAY_MS,
        min: 1,
        max: MAX_TTL_MS,
        get: |module| module.max_hold_ms,
        set: |module, value| module.max_hold_ms = value,
    },
    Setting {
        name: c"quorum-max-ttl",
        default: 60_000,
        min: 1,
        max: MAX_TTL_MS,
        get: |module| module.quorum_max_ttl_ms,
        set: |module, value| module.quorum_max_ttl_ms = value,
    },
];

fn to_size(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// Registers all settings with their defaults, over which go the load arguments, over which go
/// the lines of the configuration file.
pub(super) fn register(ctx: Context<'_>, args: &mut Args<'_>) -> Result<(), String> {
    let mut defaults = SETTINGS.each_ref().map(|setting| setting.default);
    while let Some(name) = args.next() {
        let name = name.bytes();
        let (setting, default) = SETTINGS
            .iter()
            .zip(&mut defaults)
            .find(|(setting, _)| setting.name.to_bytes().eq_ignore_ascii_case(name))
            .ok_or_else(|| format!("unknown load argument '{}'", Printable::new(name)))?;
        *default = args
            .next()
            .and_then(|value| std::str::from_utf8(value.bytes()).ok()?.parse().ok())
            .filter(|value| (setting.min..=setting.max).contains(value))
            .ok_or_else(|| {
                format!(
                    "load argument {} needs an integer from {} to {}",
                    setting.name.to_string_lossy(),
                    setting.min,
                    setting.max
                )
            })?;
    }
    for (setting, default) in SETTINGS.iter().zip(defaults) {
        // SAFETY: the context is that of the module being loaded, the name ends with a NUL, and the
        // callbacks get back a pointer to a static.
        let outcome = unsafe {
            api!(RedisModule_RegisterNumericConfig(
                ctx.as_raw(),
                setting.name.as_ptr(),
                default,
                raw::REDISMODULE_CONFIG_DEFAULT,
                setting.min,
                setting.max,
                Some(get),
                Some(set),
                None,
                std::ptr::from_ref(setting).cast_mut().cast()
            ))
        };
        if outcome != OK {
            return Err(format!("the setting {:?} is taken", setting.name));
        }
    }
    // SAFETY: the context is that of the module being loaded, with all its settings registered.
    if unsafe { api!(RedisModule_LoadConfigs(ctx.as_raw())) } == OK {
        Ok(())
    } else {
        Err("a setting in the configuration is wrong".to_owned())
    }
}

/// All settings and their values, for the log.
pub(super) fn describe(module: &Module) -> String {
    SETTINGS
        .iter()
        .map(|setting| {
            format!(
                "{} {}",
                setting.name.to_string_lossy(),
                (setting.get)(module)
            )
        })
        .collect::<Vec<_>>()
        .join(", ")
}

/// The server wants to know a setting.
unsafe extern "C" fn get(_name: *const c_char, setting: *mut c_void) -> c_longlong {
    guard(|| {
        // SAFETY: `register` passed a pointer to a static.
        let setting = unsafe { setting.cast::<Setting>().as_ref()? };
        with_module(|module| i64::try_from((setting.get)(module)).unwrap_or(setting.max))
    })
    .flatten()
    .unwrap_or(0)
}

/// The server sets a setting, having checked its range.
unsafe extern "C" fn set(
    _name: *const c_char,
    value: c_longlong,
    setting: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    guard(|| {
        // SAFETY: `register` passed a pointer to a static.
        let setting = unsafe { setting.cast::<Setting>().as_ref()? };
        with_module(|module| (setting.set)(module, value.unsigned_abs()))
    })
    .flatten()
    .map_or(super::api::ERR, |()| OK)
}
