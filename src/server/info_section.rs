//! `INFO lock`: what happened since the module was loaded, and what is now.

use super::api::{OK, api};
use super::context::Context;
use super::guard::guard;
use super::state::{Module, with_module};
use redis_module::raw;
use std::ffi::{CStr, c_int};

/// Adds the section to the server's `INFO`.
pub(super) fn register(ctx: Context<'_>) -> Result<(), String> {
    // SAFETY: the context is that of the module being loaded, and the callback has the signature
    // that the server calls it with.
    if unsafe { api!(RedisModule_RegisterInfoFunc(ctx.as_raw(), Some(on_info))) } == OK {
        Ok(())
    } else {
        Err("the server refuses a section of INFO".to_owned())
    }
}

/// The server puts its `INFO` together.
unsafe extern "C" fn on_info(info: *mut raw::RedisModuleInfoCtx, for_crash_report: c_int) {
    // A crash can happen on any thread and in the middle of anything: nothing is safe to look at.
    if for_crash_report != 0 {
        return;
    }
    guard(|| {
        with_module(|module| {
            // SAFETY: the context is the one passed for this purpose. Without a name the section
            // has that of the module.
            if unsafe { api!(RedisModule_InfoAddSection(info, c"".as_ptr())) } != OK {
                // The client asked for other sections only.
                return;
            }
            for (name, value) in fields(module) {
                // SAFETY: as above, and the name ends with a NUL.
                unsafe {
                    api!(RedisModule_InfoAddFieldULongLong(
                        info,
                        name.as_ptr(),
                        value
                    ))
                };
            }
        });
    });
}

/// The lines of the section, which the server prefixes with `lock_`.
fn fields(module: &Module) -> [(&'static CStr, u64); 37] {
    let Module { stats, waits, .. } = module;
    [
        (c"grants", stats.grants),
        (c"reentries", stats.reentries),
        (c"repetitions", stats.repetitions),
        (c"refusals", stats.refusals),
        (c"releases", stats.releases),
        (c"stale_releases", stats.stale_releases),
        (c"renewals", stats.renewals),
        (c"stale_renewals", stats.stale_renewals),
        (c"handovers", stats.handovers),
        (c"expiries_with_waiters", stats.expiries),
        (c"timeouts", stats.timeouts),
        (c"deadlocks", stats.deadlocks),
        (c"queue_full", stats.queue_full),
        (c"guarded", stats.guarded),
        (c"stale_guards", stats.stale_guards),
        (c"quorum_grants", stats.quorum_grants),
        (c"quorum_refusals", stats.quorum_refusals),
        (c"quorum_renewals", stats.quorum_renewals),
        (c"quorum_releases", stats.quorum_releases),
        (c"quorum_stale", stats.quorum_stale),
        (c"quorum_unavailable", stats.quorum_unavailable),
        (c"quorum_waiting", module.quorum.len() as u64),
        (c"votes", stats.votes),
        (c"refused_votes", stats.refused_votes),
        (c"watchdogs", module.watches.len() as u64),
        (c"watchdog_renewals", stats.watchdog_renewals),
        (c"lost", stats.lost),
        (c"evicted_locks", stats.evicted),
        (c"waiters", waits.len() as u64),
        (c"waiters_peak", stats.waiters_peak as u64),
        (c"contended_keys", waits.contended_len() as u64),
        (c"unclaimed_grants", stats.unclaimed),
        (c"wait_ms_p50", stats.waits.percentile(50.0)),
        (c"wait_ms_p90", stats.waits.percentile(90.0)),
        (c"wait_ms_p99", stats.waits.percentile(99.0)),
        (c"wait_ms_p999", stats.waits.percentile(99.9)),
        (c"wait_ms_max", stats.waits.max()),
    ]
}
