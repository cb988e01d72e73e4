//! What the thread that drives the clients and the one that makes the faults share.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::history::{Break, Clock, Leap};
use crate::harness::{Server, wait_until};

/// How many locks there are. The last of them are shared at times.
pub(super) const LOCKS: usize = 16;

pub(super) struct Stage {
    pub(super) clock: Clock,
    /// Where the server of each lock listens.
    ports: [AtomicU16; LOCKS],
    breaks: Mutex<Vec<Break>>,
    leaps: Mutex<Vec<Leap>>,
    /// How many requests have ended.
    done: AtomicUsize,
    is_over: AtomicBool,
    /// How many requests lie between two faults.
    pace: usize,
}

impl Stage {
    /// A stage on which all locks are on this server.
    pub(super) fn new(server: &Server, pace: usize) -> Self {
        Self {
            clock: Clock::start(),
            ports: std::array::from_fn(|_| AtomicU16::new(server.port())),
            breaks: Mutex::default(),
            leaps: Mutex::default(),
            done: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
            pace,
        }
    }

    /// Where clients go for this lock.
    pub(super) fn port(&self, key: usize) -> u16 {
        self.ports[key].load(Ordering::Relaxed)
    }

    /// Clients go there for this lock from now on.
    pub(super) fn send_to(&self, key: usize, port: u16) {
        self.ports[key].store(port, Ordering::Relaxed);
    }

    /// Clients go to this server for all locks from now on.
    pub(super) fn send_all_to(&self, port: u16) {
        (0..LOCKS).for_each(|key| self.send_to(key, port));
    }

    /// Does something that may end any hold.
    pub(super) fn may_end_holds<R>(&self, fault: impl FnOnce() -> R) -> R {
        let from = self.clock.now();
        let result = fault();
        let to = self.clock.now();
        let key = None;
        lock(&self.breaks).push(Break { key, from, to });
        result
    }

    /// All faults since the last call.
    pub(super) fn take_faults(&self) -> (Vec<Break>, Vec<Leap>) {
        let breaks = std::mem::take(&mut *lock(&self.breaks));
        (breaks, std::mem::take(&mut *lock(&self.leaps)))
    }

    /// Lets the clients do something between two faults.
    pub(super) fn let_clients_work(&self) {
        self.wait_for_requests(self.pace);
    }

    /// Waits until so many more requests have ended.
    pub(super) fn wait_for_requests(&self, count: usize) {
        let end = self.done.load(Ordering::Relaxed) + count;
        wait_until("the clients to do something", || {
            self.is_over() || self.done.load(Ordering::Relaxed) >= end
        });
    }

    /// Waits until so many milliseconds have passed.
    pub(super) fn wait_for_time(&self, ms: u64) {
        let end = self.clock.now() + ms * super::history::MS;
        wait_until("time to pass", || self.clock.now() >= end);
    }

    pub(super) fn count_done(&self, requests: usize) {
        self.done.fetch_add(requests, Ordering::Relaxed);
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    pub(super) fn set_over(&self, is_over: bool) {
        self.is_over.store(is_over, Ordering::Relaxed);
    }
}

fn lock<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
