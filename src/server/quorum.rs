//! Requests to a quorum: their clients, and the event loop that carries them out.
//!
//! All of it happens on the main thread. The connections to the nodes are in the server's event
//! loop and never wait; what there is to send goes out in one go before the loop sleeps.

use super::api::{OK, api};
use super::blocked::{Blocked, Handle};
use super::clock::{steady_clock, wall_clock};
use super::context::Context;
use super::events::Subscription;
use super::guard::guard;
use super::quorum_info;
use super::reply::{Error, Reply};
use super::state::{Module, with_module};
use crate::lock::time::SteadyMicros;
use crate::quorum::coordinator::{Done, Finished, Job, Number};
use crate::quorum::link::Host;
use crate::quorum::network::{Network, Own};
use crate::quorum::round::{Counts, Outcome};
use crate::quorum::settings::Settings;
use redis::Value;
use redis_module::raw;
use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::ptr;
use std::rc::Rc;

/// All that waits for an answer of other nodes.
#[derive(Default)]
pub(crate) struct Quorum {
    settings: Settings,
    /// Made with the first request.
    network: Option<Network>,
    /// Those of earlier settings, which still have something to do.
    former: Vec<Network>,
    clients: HashMap<Number, Blocked>,
    numbers: HashMap<Handle, Number>,
    next_number: u64,
    /// The server tells when it is about to sleep: then everything is sent.
    sleeping: Subscription,
    /// Whether something may have to be sent before the server sleeps.
    is_stirred: bool,
}

/// The event loop of the server.
struct EventLoop;

impl Host for EventLoop {
    fn watch(&self, fd: RawFd, writes: bool) -> io::Result<()> {
        let (readable, writable) = (
            raw::REDISMODULE_EVENTLOOP_READABLE.cast_signed(),
            raw::REDISMODULE_EVENTLOOP_WRITABLE.cast_signed(),
        );
        let add = |mask| {
            // SAFETY: the descriptor is open, and `forget` is called before it is closed. The
            // callback has the signature that the server calls it with.
            unsafe {
                api!(RedisModule_EventLoopAdd(
                    fd,
                    mask,
                    Some(on_ready),
                    ptr::null_mut()
                ))
            }
        };
        if add(readable) != OK || writes && add(writable) != OK {
            self.forget(fd);
            return Err(io::Error::other("the server watches no more files"));
        }
        if !writes {
            // SAFETY: the descriptor is open. To take it out where it is not does nothing.
            unsafe { api!(RedisModule_EventLoopDel(fd, writable)) };
        }
        Ok(())
    }

    fn forget(&self, fd: RawFd) {
        let mask = raw::REDISMODULE_EVENTLOOP_READABLE | raw::REDISMODULE_EVENTLOOP_WRITABLE;
        // SAFETY: the descriptor is open. To take it out where it is not does nothing.
        unsafe { api!(RedisModule_EventLoopDel(fd, mask.cast_signed())) };
    }

    fn has_connection(&self, id: u64, from: SocketAddr) -> bool {
        // SAFETY: the structure is made of numbers, for which zero is a value, and says which
        // version it is. The server fills it in, the address with a NUL at its end.
        let (ip, port) = unsafe {
            let mut info: raw::RedisModuleClientInfoV1 = std::mem::zeroed();
            info.version = 1;
            if api!(RedisModule_GetClientInfoById((&raw mut info).cast(), id)) != OK {
                return false;
            }
            let ip = CStr::from_ptr(info.addr.as_ptr()).to_str().map(str::parse);
            (ip, info.port)
        };
        let canonical = |ip: IpAddr| ip.to_canonical();
        port == from.port() && matches!(ip, Ok(Ok(ip)) if canonical(ip) == canonical(from.ip()))
    }
}

impl Quorum {
    /// How many requests wait for an answer.
    pub(super) fn len(&self) -> usize {
        self.clients.len()
    }

    /// The network, which begins to work with the first request.
    fn network(&mut self, ctx: Context<'_>) -> Result<&mut Network, Error> {
        if self.network.is_none() {
            let host: Rc<dyn Host> = Rc::new(EventLoop);
            let former = self.former.iter().map(Network::proposed).max();
            self.network = Network::new(&self.settings, &host, former.unwrap_or(0));
            self.sleeping.start(ctx, raw::REDISMODULE_EVENT_EVENTLOOP);
        }
        self.network.as_mut().ok_or(Error::NoNodes)
    }

    /// That of the present settings and those of earlier ones.
    fn networks(&mut self) -> impl Iterator<Item = &mut Network> {
        self.network.iter_mut().chain(&mut self.former)
    }

    /// The settings.
    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Changes the settings. Requests that are under way go on with the old.
    pub(super) fn configure(&mut self, change: impl FnOnce(&mut Settings)) {
        let before = self.settings.clone();
        change(&mut self.settings);
        if self.settings != before {
            self.former.extend(self.network.take());
        }
    }

    /// When there is something to do, in microseconds from now.
    pub(super) fn next_wake(&self) -> Option<u64> {
        let networks = self.network.iter().chain(&self.former);
        let next = networks.filter_map(Network::next_wake).min()?;
        Some(next.0.saturating_sub(steady_clock().0))
    }

    /// Does what is due.
    pub(super) fn pass(&mut self) {
        let (now, wall) = (steady_clock(), wall_clock());
        for network in self.networks() {
            network.pass(now, wall);
        }
        self.is_stirred = true;
    }

    /// Whether [`flush`] would do anything.
    pub(super) fn is_stirred(&self) -> bool {
        self.is_stirred
    }

    /// Takes note that a client is gone, if it was one of those who wait here.
    pub(super) fn forget(&mut self, handle: Handle) -> Option<Blocked> {
        let number = self.numbers.remove(&handle)?;
        self.give_back(number);
        self.clients.remove(&number)
    }

    /// Takes note that a grant did not reach its client: it is given back. This may be said when
    /// the server is done with what it does before it sleeps, so nothing waits for that.
    pub(super) fn give_back(&mut self, number: Number) {
        let now = steady_clock();
        for network in self.networks() {
            network.client_gone(number, now);
            network.flush(now);
        }
        self.is_stirred = true;
    }

    /// Takes note that an answer has reached its client.
    pub(super) fn told(&mut self, number: Number) {
        for network in self.networks() {
            network.client_told(number);
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

    /// What this server is asked as one of the nodes.
    pub(super) fn take_own(&mut self) -> Vec<Own> {
        self.network
            .as_mut()
            .map(Network::take_own)
            .unwrap_or_default()
    }

    /// What came of that.
    pub(super) fn own_answered(
        &mut self,
        own: &Own,
        answer: Result<Value, String>,
        now: SteadyMicros,
    ) {
        if let Some(network) = &mut self.network {
            network.own_answered(own, answer, now);
        }
    }

    /// What has been done.
    fn take_done(&mut self) -> Vec<Done> {
        self.networks().flat_map(Network::take_done).collect()
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

/// Sends what there is to send, and passes on what there is to tell. To be called before the server
/// sleeps.
pub(super) fn flush(module: &mut Module) {
    let quorum = &mut module.quorum;
    quorum.is_stirred = false;
    let now = steady_clock();
    for network in quorum.networks() {
        network.flush(now);
    }
    deliver(module);
    module.quorum.former.retain(|network| !network.is_idle());
}

/// Passes on what there is to tell.
fn deliver(module: &mut Module) {
    for done in module.quorum.take_done() {
        count(module, &done.result);
        module.quorum.answer(&done);
    }
}

/// A descriptor of a connection is ready.
unsafe extern "C" fn on_ready(fd: c_int, _data: *mut c_void, _mask: c_int) {
    guard(|| {
        with_module(|module| {
            let now = steady_clock();
            module
                .quorum
                .networks()
                .any(|network| network.ready(fd, now));
            deliver(module);
            module.quorum.is_stirred = true;
        });
    });
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
    let quorum = &mut module.quorum;
    quorum.network(ctx)?;
    let Some(client) = Blocked::new(ctx, tells_owner) else {
        return Ok(Reply::Later);
    };
    let number = Number(quorum.next_number);
    quorum.next_number += 1;
    if let Some(handle) = client.handle() {
        quorum.numbers.insert(handle, number);
    }
    quorum.clients.insert(number, client);
    quorum
        .network(ctx)?
        .ask(number, job, steady_clock(), wall_clock());
    quorum.is_stirred = true;
    Ok(Reply::OfQuorum)
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
