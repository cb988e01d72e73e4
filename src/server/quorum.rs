//! Requests to a quorum: their clients, and the answers that the coordinator's thread has for them.
//!
//! The coordinator never touches the server. It writes a byte to a socket when it has answers, and
//! the server's event loop then calls this module on the main thread.

use super::api::{OK, api};
use super::blocked::{Blocked, Handle};
use super::context::Context;
use super::guard::guard;
use super::log::{Level, log};
use super::quorum_info;
use super::reply::{Error, Reply};
use super::state::{Module, with_module};
use crate::quorum::coordinator::{Coordinator, Done, Finished, Job, Number};
use crate::quorum::round::{Counts, Outcome};
use crate::quorum::settings::Settings;
use redis_module::raw;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::ptr;

/// All that waits for an answer of other nodes.
#[derive(Default)]
pub(crate) struct Quorum {
    settings: Settings,
    running: Option<Running>,
    clients: HashMap<Number, Blocked>,
    numbers: HashMap<Handle, Number>,
    next_number: u64,
}

/// The coordinator and the end of the socket on which it calls. The socket goes first: nobody calls
/// for a thread that is gone.
struct Running {
    bell: Bell,
    coordinator: Coordinator,
}

/// The socket, in the server's event loop until it is dropped.
struct Bell(UnixStream);

impl Bell {
    /// The socket, and what rings it from another thread.
    fn new() -> std::io::Result<(Self, impl Fn() + Send + 'static)> {
        let (here, there) = UnixStream::pair()?;
        here.set_nonblocking(true)?;
        there.set_nonblocking(true)?;
        // SAFETY: the descriptor is open, and is taken out of the event loop before it is closed.
        // The callback has the signature that the server calls it with.
        let added = unsafe {
            api!(RedisModule_EventLoopAdd(
                here.as_raw_fd(),
                raw::REDISMODULE_EVENTLOOP_READABLE.cast_signed(),
                Some(on_answers),
                ptr::null_mut()
            ))
        };
        if added != OK {
            return Err(std::io::Error::other("the server watches no more files"));
        }
        // A socket that is full rings already.
        let ring = move || drop((&there).write(&[0]));
        Ok((Self(here), ring))
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        // SAFETY: the descriptor is still open and in the event loop.
        unsafe {
            let mask = raw::REDISMODULE_EVENTLOOP_READABLE.cast_signed();
            api!(RedisModule_EventLoopDel(self.0.as_raw_fd(), mask));
        }
    }
}

impl Quorum {
    /// How many requests wait for an answer.
    pub(super) fn len(&self) -> usize {
        self.clients.len()
    }

    /// The coordinator, which begins to run with the first request.
    fn coordinator(&mut self) -> Result<&Coordinator, Error> {
        if self.settings.nodes.is_empty() {
            return Err(Error::NoNodes);
        }
        if self.running.is_none() {
            let running = Bell::new().and_then(|(bell, ring)| {
                let coordinator = Coordinator::start(self.settings.clone(), ring)?;
                Ok(Running { bell, coordinator })
            });
            match running {
                Ok(running) => self.running = Some(running),
                Err(error) => {
                    log(
                        None,
                        Level::Warning,
                        &format!("redis-lock: no coordinator for quorums: {error}"),
                    );
                    return Err(Error::Internal);
                }
            }
        }
        self.running
            .as_ref()
            .map(|running| &running.coordinator)
            .ok_or(Error::Internal)
    }

    /// The settings.
    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Changes the settings. Requests that are under way go on with the old.
    pub(super) fn configure(&mut self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.settings);
        if let Some(running) = &self.running {
            running.coordinator.configure(self.settings.clone());
        }
    }

    /// Takes note that a client is gone, if it was one of those who wait here.
    pub(super) fn forget(&mut self, handle: Handle) -> Option<Blocked> {
        let number = self.numbers.remove(&handle)?;
        if let Some(running) = &self.running {
            running.coordinator.client_gone(number);
        }
        self.clients.remove(&number)
    }

    /// Takes note that a grant did not reach its client: it is given back.
    pub(super) fn give_back(&self, number: Number) {
        if let Some(running) = &self.running {
            running.coordinator.client_gone(number);
        }
    }

    /// Takes note that an answer has reached its client.
    pub(super) fn told(&self, number: Number) {
        if let Some(running) = &self.running {
            running.coordinator.client_told(number);
        }
    }

    /// Takes everybody out who waits for an answer.
    pub(super) fn take_all(&mut self) -> Vec<Blocked> {
        let handles: Vec<Handle> = self.numbers.keys().copied().collect();
        handles
            .into_iter()
            .filter_map(|handle| self.forget(handle))
            .collect()
    }

    /// Passes answers on to their clients.
    fn answer(&mut self, done: &Done) {
        let Some(client) = self.clients.remove(&done.number) else {
            return;
        };
        if let Some(handle) = client.handle() {
            self.numbers.remove(&handle);
        }
        let owner = client.tells_owner.then_some(done.owner.as_slice());
        let is_grant = matches!(done.result, Finished::Round(Outcome::Acquired { .. }));
        if !is_grant {
            // There is nothing to give back.
            self.told(done.number);
        }
        client.answer_of_quorum(
            reply_to(&done.result, owner),
            is_grant.then_some(done.number),
        );
    }
}

/// What a client is answered.
fn reply_to(result: &Finished, made_owner: Option<&[u8]>) -> Result<Reply, Error> {
    let outcome = match result {
        Finished::Round(outcome) => outcome,
        Finished::Info(nodes, quorum) => return Ok(quorum_info::describe(nodes, *quorum)),
        Finished::Broken => return Err(Error::Internal),
    };
    match *outcome {
        Outcome::Acquired { token, validity } => {
            let mut reply = vec![Reply::token(token), Reply::unsigned(validity)];
            reply.extend(made_owner.map(|owner| Reply::Bulk(owner.to_vec())));
            Ok(Reply::Array(reply))
        }
        Outcome::NotAcquired => Ok(Reply::Nil),
        Outcome::Renewed { validity, .. } => Ok(Reply::unsigned(validity)),
        Outcome::Released => Ok(Reply::DONE),
        Outcome::NotYours => Ok(Reply::NOT_YOURS),
        Outcome::NoLock => Ok(Reply::NO_LOCK),
        Outcome::NoQuorum(counts) => Err(Error::NoQuorum(describe(counts))),
    }
}

/// The answers of the nodes in words.
fn describe(counts: Counts) -> String {
    let Counts {
        agreed,
        refused,
        failed,
        unknown,
        unheard,
    } = counts;
    format!(
        "of the nodes {agreed} agreed, {refused} refused, {failed} failed, {} did not answer",
        unknown + unheard
    )
}

/// Asks the quorum for a client, which waits for the answer.
pub(crate) fn ask(
    ctx: Context<'_>,
    module: &mut Module,
    job: Job,
    tells_owner: bool,
) -> Result<Reply, Error> {
    if !ctx.may_block() {
        return Err(Error::QuorumWithoutConnection);
    }
    module.quorum.coordinator()?;
    let Some(client) = Blocked::new(ctx, tells_owner) else {
        return Ok(Reply::Later);
    };
    let quorum = &mut module.quorum;
    let number = Number(quorum.next_number);
    quorum.next_number += 1;
    if let Some(handle) = client.handle() {
        quorum.numbers.insert(handle, number);
    }
    quorum.clients.insert(number, client);
    quorum.coordinator()?.ask(number, job);
    Ok(Reply::Later)
}

/// The coordinator has answers.
unsafe extern "C" fn on_answers(_fd: c_int, _data: *mut c_void, _mask: c_int) {
    guard(|| {
        with_module(|module| {
            let quorum = &mut module.quorum;
            let mut finished = Vec::new();
            if let Some(Running { bell, coordinator }) = &mut quorum.running {
                // Read before the answers are taken, so that no ring is lost.
                let mut buffer = [0; 256];
                while matches!(bell.0.read(&mut buffer), Ok(read) if read > 0) {}
                finished = coordinator.take_finished();
            }
            for done in finished {
                count(module, &done.result);
                module.quorum.answer(&done);
            }
        });
    });
}

/// Counts what was done, for `INFO lock`.
fn count(module: &mut Module, result: &Finished) {
    let stats = &mut module.stats;
    if let Finished::Round(outcome) = result {
        match outcome {
            Outcome::Acquired { .. } => stats.quorum_grants += 1,
            Outcome::NotAcquired => stats.quorum_refusals += 1,
            Outcome::Renewed { .. } => stats.quorum_renewals += 1,
            Outcome::Released => stats.quorum_releases += 1,
            Outcome::NotYours | Outcome::NoLock => stats.quorum_stale += 1,
            Outcome::NoQuorum(_) => stats.quorum_unavailable += 1,
        }
    }
}
