//! Settings: `CONFIG GET lock.*`, `CONFIG SET`, lines of the configuration file, and the same names
//! without `lock.` as load arguments. Texts are settings of the configuration only.

use super::api::{OK, api};
use super::args::Args;
use super::context::Context;
use super::guard::guard;
use super::reply::Printable;
use super::state::{Module, with_module};
use super::string::{OwnedStr, Str};
use crate::lock::lease::MAX_TTL_MS;
use crate::quorum::settings::{Secret, parse_nodes};
use redis_module::raw;
use std::ffi::{CStr, c_char, c_int, c_longlong, c_void};
use std::time::Duration;

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

/// All settings that are numbers.
static SETTINGS: [Setting; 7] = [
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
        name: c"quorum-node-timeout",
        default: 100,
        min: 1,
        max: DAY_MS,
        get: |module| to_millis(module.quorum.settings().node_timeout),
        set: |module, value| {
            module
                .quorum
                .configure(|settings| settings.node_timeout = Duration::from_millis(value));
        },
    },
    Setting {
        name: c"quorum-retry-delay",
        default: 50,
        min: 1,
        max: DAY_MS,
        get: |module| to_millis(module.quorum.settings().retry_delay),
        set: |module, value| {
            module
                .quorum
                .configure(|settings| settings.retry_delay = Duration::from_millis(value));
        },
    },
    Setting {
        name: c"quorum-retry-jitter",
        default: 100,
        min: 0,
        max: DAY_MS,
        get: |module| to_millis(module.quorum.settings().retry_jitter),
        set: |module, value| {
            module
                .quorum
                .configure(|settings| settings.retry_jitter = Duration::from_millis(value));
        },
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

/// A setting that is a text.
struct TextSetting {
    name: &'static CStr,
    /// Whether it is kept out of logs, and shown only to who asks for it by its whole name.
    is_secret: bool,
    /// What it is now.
    get: fn(&Module) -> String,
    /// Sets it, or says what is wrong with it.
    set: fn(&mut Module, &str) -> Result<(), String>,
}

/// All settings that are texts. They are empty by default.
static TEXTS: [TextSetting; 6] = [
    TextSetting {
        name: c"quorum-nodes",
        is_secret: false,
        get: |module| {
            let nodes = module.quorum.settings().nodes.iter();
            nodes.map(ToString::to_string).collect::<Vec<_>>().join(",")
        },
        set: |module, text| {
            let nodes = parse_nodes(text)?;
            module.quorum.configure(|settings| settings.nodes = nodes);
            Ok(())
        },
    },
    TextSetting {
        name: c"quorum-user",
        is_secret: false,
        get: |module| module.quorum.settings().user.clone(),
        set: |module, text| {
            module
                .quorum
                .configure(|settings| text.clone_into(&mut settings.user));
            Ok(())
        },
    },
    TextSetting {
        name: c"quorum-password",
        is_secret: true,
        // As the server shows its own: CONFIG REWRITE writes what is shown here.
        get: |module| module.quorum.settings().password.0.clone(),
        set: |module, text| {
            let password = Secret(text.to_owned());
            module
                .quorum
                .configure(|settings| settings.password = password);
            Ok(())
        },
    },
    TextSetting {
        name: c"quorum-tls-ca-cert-file",
        is_secret: false,
        get: |module| module.quorum.settings().tls_ca.display().to_string(),
        set: |module, text| {
            module
                .quorum
                .configure(|settings| settings.tls_ca = text.into());
            Ok(())
        },
    },
    TextSetting {
        name: c"quorum-tls-cert-file",
        is_secret: false,
        get: |module| module.quorum.settings().tls_cert.display().to_string(),
        set: |module, text| {
            module
                .quorum
                .configure(|settings| settings.tls_cert = text.into());
            Ok(())
        },
    },
    TextSetting {
        name: c"quorum-tls-key-file",
        is_secret: false,
        get: |module| module.quorum.settings().tls_key.display().to_string(),
        set: |module, text| {
            module
                .quorum
                .configure(|settings| settings.tls_key = text.into());
            Ok(())
        },
    },
];

fn to_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

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
    for setting in &TEXTS {
        let flags = if setting.is_secret {
            raw::REDISMODULE_CONFIG_SENSITIVE | raw::REDISMODULE_CONFIG_HIDDEN
        } else {
            raw::REDISMODULE_CONFIG_DEFAULT
        };
        // SAFETY: the context is that of the module being loaded, names and defaults end with a NUL,
        // and the callbacks get back a pointer to a static.
        let outcome = unsafe {
            api!(RedisModule_RegisterStringConfig(
                ctx.as_raw(),
                setting.name.as_ptr(),
                c"".as_ptr(),
                flags,
                Some(get_text),
                Some(set_text),
                None,
                std::ptr::from_ref(setting).cast_mut().cast()
            ))
        };
        if outcome != OK {
            return Err(format!("the setting {:?} is taken", setting.name));
        }
    }
    // SAFETY: the context is that of the module being loaded, the name ends with a NUL, and the
    // callbacks take no data.
    let outcome = unsafe {
        api!(RedisModule_RegisterBoolConfig(
            ctx.as_raw(),
            c"quorum-tls".as_ptr(),
            0,
            raw::REDISMODULE_CONFIG_DEFAULT,
            Some(get_tls),
            Some(set_tls),
            None,
            std::ptr::null_mut()
        ))
    };
    if outcome != OK {
        return Err("the setting quorum-tls is taken".to_owned());
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

/// The server wants to know a setting that is a text. It copies the string, which is kept until it is
/// asked the next time.
unsafe extern "C" fn get_text(
    _name: *const c_char,
    setting: *mut c_void,
) -> *mut raw::RedisModuleString {
    guard(|| {
        // SAFETY: `register` passed a pointer to a static.
        let setting = unsafe { setting.cast::<TextSetting>().as_ref()? };
        with_module(|module| {
            let text = OwnedStr::new((setting.get)(module).as_bytes());
            let raw = text.as_str().as_raw();
            module.shown_setting = Some(text);
            raw
        })
    })
    .flatten()
    .unwrap_or(std::ptr::null_mut())
}

/// The server sets a setting that is a text.
unsafe extern "C" fn set_text(
    _name: *const c_char,
    value: *mut raw::RedisModuleString,
    setting: *mut c_void,
    error: *mut *mut raw::RedisModuleString,
) -> c_int {
    let outcome = guard(|| {
        // SAFETY: `register` passed a pointer to a static; the value lives until this function
        // returns.
        let (setting, value) = unsafe {
            (
                setting.cast::<TextSetting>().as_ref()?,
                Str::from_raw(value),
            )
        };
        let Ok(text) = std::str::from_utf8(value.bytes()) else {
            return Some(Err("the value is no text".to_owned()));
        };
        with_module(|module| (setting.set)(module, text))
    });
    match outcome.flatten() {
        Some(Ok(())) => OK,
        Some(Err(reason)) => {
            // SAFETY: the server passes a place for the reason and frees what is put there.
            unsafe {
                if !error.is_null() {
                    *error = api!(RedisModule_CreateString(
                        std::ptr::null_mut(),
                        reason.as_ptr().cast(),
                        reason.len()
                    ));
                }
            }
            super::api::ERR
        }
        None => super::api::ERR,
    }
}

/// The server wants to know whether the nodes are reached by TLS.
unsafe extern "C" fn get_tls(_name: *const c_char, _data: *mut c_void) -> c_int {
    guard(|| with_module(|module| c_int::from(module.quorum.settings().tls)))
        .flatten()
        .unwrap_or(0)
}

/// The server sets whether the nodes are reached by TLS.
unsafe extern "C" fn set_tls(
    _name: *const c_char,
    value: c_int,
    _data: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    guard(|| {
        with_module(|module| {
            module
                .quorum
                .configure(|settings| settings.tls = value != 0);
        })
    })
    .flatten()
    .map_or(super::api::ERR, |()| OK)
}
