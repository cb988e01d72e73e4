//! Clients that wait for their answer.
//!
//! The server's handle of a blocked client has to be given back exactly once, on the main thread,
//! whatever became of the client: [`Blocked`] sees to that. The server's own time-out is not used:
//! several versions lose the answer, or crash, when it runs out in the turn of the event loop in
//! which the module unblocks the client. The wait table keeps the time instead.

use super::api::api;
use super::context::Context;
use super::guard::guard;
use super::reply::{Error, Reply, send, send_error};
use super::state::with_module;
use crate::lock::fence::Token;
use crate::lock::queue::LockName;
use crate::lock::record::{OwnerBuf, RequestId, RequestIdBuf};
use crate::lock::watchdog::ClientId;
use crate::quorum::coordinator::Number;
use redis_module::raw;
use smallvec::SmallVec;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::rc::Rc;

/// A blocked client. Dropped without an answer, it answers that something went wrong.
#[derive(Debug)]
pub(crate) struct Blocked {
    /// `None` once it is given back.
    raw: Option<NonNull<raw::RedisModuleBlockedClient>>,
    /// The client as `CLIENT LIST` shows it.
    pub(crate) client_id: ClientId,
    /// Whether a grant has to tell the owner too, because the server made it.
    pub(crate) tells_owner: bool,
}

/// What the server calls the client by while it is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Handle(usize);

/// A hold of a lock.
#[derive(Debug)]
pub(crate) struct HeldLock {
    pub(crate) lock: LockName,
    pub(crate) owner: OwnerBuf,
    pub(crate) token: Token,
}

/// What was granted to a waiter, under one token: a hold of one lock, or of each that it wanted.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) holds: SmallVec<[HeldLock; 1]>,
    pub(crate) token: Token,
    pub(crate) request: Option<RequestIdBuf>,
    pub(crate) claim: Claim,
}

/// Grants whose clients are yet to be told, which happens before the server sleeps the next time.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    count: usize,
    /// Requests that were sent again since, and were told of the grant.
    repeated: Vec<(Token, RequestIdBuf)>,
}

impl InFlight {
    /// One more is on its way.
    pub(super) fn add(&mut self) {
        self.count += 1;
    }

    /// A request was sent again and has its first answer now. If that was on its way to a
    /// connection that is gone, it has been claimed all the same.
    pub(super) fn repeat(&mut self, token: Token, request: RequestId<'_>) {
        if self.count > 0 {
            self.repeated.push((token, request.into()));
        }
    }

    /// One has arrived or failed. Says whether its holds are to be given back.
    fn remove(&mut self, grant: &Grant) -> bool {
        let is_repeated = grant.request.as_ref().is_some_and(|request| {
            self.repeated
                .iter()
                .any(|(token, other)| *token == grant.token && other == request)
        });
        self.count = self.count.saturating_sub(1);
        if self.count == 0 {
            self.repeated.clear();
        }
        grant.claim.is_void() && !is_repeated
    }
}

/// Whether any of the clients that a hold was granted to has been told. A request that was sent
/// twice has one hold and two clients: the hold goes back only when both of them are gone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claim(Rc<Cell<bool>>);

impl Claim {
    /// A client has been told.
    fn fulfil(&self) {
        self.0.set(true);
    }

    /// Whether this is the last client that could be told, and none was.
    fn is_void(&self) -> bool {
        Rc::strong_count(&self.0) == 1 && !self.0.get()
    }
}

/// An answer on its way to a blocked client.
struct Answer {
    outcome: Result<Reply, Error>,
    /// Goes back when the client is gone before the answer reaches it.
    grant: Option<Grant>,
    /// The same for what a quorum granted to this request.
    quorum: Option<Number>,
    is_told: Cell<bool>,
}

impl Blocked {
    /// Blocks the client of a command. `None` when the server would not, and has told the client.
    ///
    /// To be called only where the client may be blocked.
    pub(crate) fn new(ctx: Context<'_>, tells_owner: bool) -> Option<Self> {
        // SAFETY: the context is that of a command, and the callbacks have the signatures that the
        // server calls them with. Without a time-out, the time-out callback serves CLIENT UNBLOCK.
        unsafe {
            let raw = NonNull::new(api!(RedisModule_BlockClient(
                ctx.as_raw(),
                Some(on_reply),
                Some(on_unblock),
                Some(on_free),
                0
            )))?;
            api!(RedisModule_SetDisconnectCallback(
                raw.as_ptr(),
                Some(on_disconnect)
            ));
            Some(Self {
                raw: Some(raw),
                client_id: ClientId(api!(RedisModule_GetClientId(ctx.as_raw()))),
                tells_owner,
            })
        }
    }

    /// The handle, to find the waiter by.
    pub(crate) fn handle(&self) -> Option<Handle> {
        self.raw.map(|raw| Handle(raw.as_ptr() as usize))
    }

    /// Answers the client. A `grant` goes back if the client turns out to be gone.
    pub(crate) fn answer(mut self, outcome: Result<Reply, Error>, grant: Option<Grant>) {
        self.unblock(Some(Answer {
            outcome,
            grant,
            quorum: None,
            is_told: Cell::new(false),
        }));
    }

    /// Answers the client what a quorum has for it. A grant goes back if the client turns out to be
    /// gone.
    pub(super) fn answer_of_quorum(mut self, outcome: Result<Reply, Error>, grant: Option<Number>) {
        self.unblock(Some(Answer {
            outcome,
            grant: None,
            quorum: grant,
            is_told: Cell::new(false),
        }));
    }

    /// Gives the handle back for a client that is gone or has its answer.
    fn release(mut self) {
        self.unblock(None);
    }

    fn unblock(&mut self, answer: Option<Answer>) {
        let Some(raw) = self.raw.take() else {
            return;
        };
        let data = answer.map_or(ptr::null_mut(), |answer| Box::into_raw(Box::new(answer)));
        // SAFETY: the handle came from the server, was not given back before, and `raw` is taken so
        // that it will not be again. The answer is freed by `on_free`.
        unsafe { api!(RedisModule_UnblockClient(raw.as_ptr(), data.cast())) };
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        self.unblock(Some(Answer {
            outcome: Err(Error::Internal),
            grant: None,
            quorum: None,
            is_told: Cell::new(false),
        }));
    }
}

/// The server is ready to answer a client that was unblocked.
unsafe extern "C" fn on_reply(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    guard(|| {
        // SAFETY: the context lives until this function returns, and its private data is the
        // answer that `unblock` passed, which nobody else refers to before `on_free`.
        let (ctx, answer) = unsafe {
            let data = api!(RedisModule_GetBlockedClientPrivateData(ctx)).cast::<Answer>();
            (Context::from_raw(ctx)?, data.as_ref()?)
        };
        answer.is_told.set(true);
        if let Some(grant) = &answer.grant {
            grant.claim.fulfil();
        }
        match &answer.outcome {
            Ok(reply) => send(ctx, reply),
            Err(error) => send_error(ctx, error),
        }
        Some(())
    });
    super::api::OK
}

/// `CLIENT UNBLOCK` without an error: the client gets what it would have got after waiting in vain.
unsafe extern "C" fn on_unblock(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    guard(|| {
        // SAFETY: the context lives until this function returns.
        let (context, handle) = unsafe {
            (
                Context::from_raw(ctx)?,
                api!(RedisModule_GetBlockedClientHandle(ctx)),
            )
        };
        leave(context, handle);
        send(context, &Reply::Nil);
        Some(())
    });
    super::api::OK
}

/// The client is gone: killed, disconnected, or unblocked with an error.
unsafe extern "C" fn on_disconnect(
    ctx: *mut raw::RedisModuleCtx,
    handle: *mut raw::RedisModuleBlockedClient,
) {
    guard(|| {
        // SAFETY: the context lives until this function returns.
        leave(unsafe { Context::from_raw(ctx)? }, handle);
        Some(())
    });
}

/// Takes a waiter out of its queue. One that was answered already is not there any more.
fn leave(ctx: Context<'_>, handle: *mut raw::RedisModuleBlockedClient) {
    with_module(|module| {
        let handle = Handle(handle as usize);
        if let Some(waiter) = module.take_waiter(handle) {
            waiter.client.release();
        } else if let Some(client) = module.quorum.forget(handle) {
            client.release();
        }
        module.set_alarm(ctx);
    });
}

/// The server is done with an answer, whether it reached its client or not.
unsafe extern "C" fn on_free(ctx: *mut raw::RedisModuleCtx, data: *mut c_void) {
    guard(|| {
        // SAFETY: `data` is the answer that `unblock` made a pointer of; the server passes it here
        // once, after `on_reply`. The context lives until this function returns.
        let (ctx, answer) = unsafe {
            (
                Context::from_raw(ctx)?,
                Box::from_raw(data.cast::<Answer>()),
            )
        };
        if let Some(number) = answer.quorum {
            with_module(|module| {
                if answer.is_told.get() {
                    module.quorum.told(number);
                } else {
                    module.quorum.give_back(number);
                }
            });
        }
        let grant = answer.grant?;
        with_module(|module| {
            // A replica writes nothing: whoever is the master now lets the lease run out.
            if module.in_flight.remove(&grant) && !ctx.is_replica() {
                module.unclaimed.extend(grant.holds);
                module.set_alarm(ctx);
            }
        });
        Some(())
    });
}
