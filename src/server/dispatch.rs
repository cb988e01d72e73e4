//! The way of a command from the server to its handler and back.

use super::api::OK;
use super::args::Args;
use super::context::Context;
use super::guard::guard;
use super::metadata::Spec;
use super::reply::{Error, Reply, send, send_error};
use super::state::{Module, with_module};
use super::{guarded, key_positions, own_part};
use redis_module::raw;
use std::ffi::c_int;

/// A command: what it says of itself, and what it does.
pub(crate) trait Command {
    const SPEC: &'static Spec;

    /// Checks all arguments, decides, writes. An error is answered with nothing written.
    fn run(ctx: Context<'_>, args: Args<'_>, module: &mut Module) -> Result<Reply, Error>;
}

/// A line in the table of commands.
pub(crate) struct Entry {
    pub(crate) spec: &'static Spec,
    pub(super) handler: raw::RedisModuleCmdFunc,
}

impl Entry {
    /// The line of one command.
    pub(crate) const fn of<C: Command>() -> Self {
        Self {
            spec: C::SPEC,
            handler: Some(handle::<C>),
        }
    }
}

/// What the server calls.
unsafe extern "C" fn handle<C: Command>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the server passes a context and arguments that live until this function returns.
    let (ctx, args) = unsafe { (Context::from_raw(ctx), Args::of_command(argv, argc)) };
    let Some(ctx) = ctx else {
        return OK;
    };
    if key_positions::is_asked_for(ctx, C::SPEC.keys) {
        guard(|| key_positions::tell(ctx, args, C::SPEC.keys));
        return OK;
    }
    let outcome = guard(|| {
        with_module(|module| {
            let outcome = C::run(ctx, args.clone(), module);
            if !module.has_nothing_due() {
                module.set_alarm(ctx);
            }
            outcome
        })
    })
    .unwrap_or(Some(Err(Error::Internal)))
    .unwrap_or(Err(Error::Nested));
    guard(|| match outcome {
        // The state is not lent any more: the command can be one of this module's, and its events
        // come here.
        Ok(Reply::OfCommandAfter(skipped)) => guarded::run(ctx, args, skipped),
        Ok(Reply::OfQuorum) => own_part::carry_out(ctx),
        Ok(reply) => send(ctx, &reply),
        Err(error) => send_error(ctx, &error),
    });
    OK
}
