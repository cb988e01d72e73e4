//! Many clients over sockets, driven by one thread.
//!
//! Each client is one owner and has one request on its way. When its connection ends it is dead, and
//! another takes its place under another name; what the dead one held it holds until its lease is
//! over, or until the caretaker releases it. The caretaker is a client of another kind: it looks who
//! holds a lock and who waits for it, deletes one now and then, and hangs up for others.

use std::fmt::Write;
use std::io;
use std::mem;
use std::time::Duration;

use mio::{Events, Poll};

use super::connection::{Connection, encode};
use super::history::{Break, History, Kind, Look, MS, Mode, NEVER, Op, Outcome};
use super::stage::{LOCKS, Stage};
use crate::harness::Reply;
use crate::random::Random;
use crate::waiters::LONG;

/// How many clients there are, besides the caretaker.
const CLIENTS: usize = 48;

/// The first lock that is shared at times.
const FIRST_SHARED: usize = LOCKS - 4;

/// How many may have a lock together that is asked for with a limit.
const LIMIT: usize = 3;

/// How long a client rests when its server is not there.
const REST: u64 = 3 * MS;

/// How often the caretaker looks at something.
const ROUND: u64 = MS / 2;

/// How long everybody has to end what it does.
const DRAIN: u64 = 60_000 * MS;

/// What a server may answer to a request that it does not carry out.
#[derive(Clone, Copy)]
pub(super) struct Manners {
    /// Codes of errors, besides those of every run.
    pub(super) errors: &'static [&'static str],
    /// Whether locks lie on several servers, so that nobody can ask for two at once.
    pub(super) is_cluster: bool,
}

/// A lock that a client has, as far as it knows.
#[derive(Clone, Copy)]
struct Held {
    key: usize,
    token: i64,
    count: u64,
    mode: Mode,
}

enum Request {
    /// For these locks.
    Lock {
        keys: Vec<usize>,
        kind: Kind,
    },
    /// Who holds this lock and who waits for it, which are two replies.
    Look {
        key: usize,
        info: Option<Reply>,
    },
    /// Releases the lock of one who is dead.
    ReleaseFor {
        key: usize,
        owner: u32,
    },
    Delete {
        key: usize,
    },
}

impl Request {
    /// Any lock that it is about.
    fn key(&self) -> usize {
        match self {
            Self::Lock { keys, .. } => keys[0],
            Self::Look { key, .. } | Self::ReleaseFor { key, .. } | Self::Delete { key } => *key,
        }
    }
}

struct Pending {
    request: Request,
    text: String,
    sent: u64,
    connection: usize,
    /// Replies that come before its own.
    before: usize,
}

struct Client {
    owner: u32,
    /// Places of its connections.
    connections: Vec<usize>,
    pending: Option<Pending>,
    holds: Vec<Held>,
    rests_until: u64,
}

/// The clients of a run, and what is written down of them.
pub(super) struct Driver<'a> {
    stage: &'a Stage,
    manners: Manners,
    random: Random,
    poll: Poll,
    events: Events,
    /// The connections with the clients that they belong to.
    connections: Vec<Option<(Connection, usize)>>,
    /// The caretaker is the last.
    clients: Vec<Client>,
    /// Whether each owner is dead.
    dead: Vec<bool>,
    history: History,
    /// Replies that no server should give.
    odd: Vec<String>,
    is_draining: bool,
    /// How many locks, one after the other, the caretaker has found free while everybody was idle.
    found_free: usize,
    /// The next lock to look at.
    next_look: usize,
    /// What the caretaker is to release.
    to_release: Vec<(usize, u32)>,
}

impl<'a> Driver<'a> {
    pub(super) fn new(stage: &'a Stage, manners: Manners, random: Random) -> io::Result<Self> {
        let mut driver = Self {
            stage,
            manners,
            random,
            poll: Poll::new()?,
            events: Events::with_capacity(CLIENTS * 2),
            connections: Vec::new(),
            clients: Vec::new(),
            dead: Vec::new(),
            history: History::default(),
            odd: Vec::new(),
            is_draining: false,
            found_free: 0,
            next_look: 0,
            to_release: Vec::new(),
        };
        for _ in 0..=CLIENTS {
            let owner = driver.new_owner();
            driver.clients.push(Client {
                owner,
                connections: Vec::new(),
                pending: None,
                holds: Vec::new(),
                rests_until: 0,
            });
        }
        Ok(driver)
    }

    /// Lets everybody do something.
    pub(super) fn turn(&mut self) {
        let now = self.stage.clock.now();
        for index in 0..self.clients.len() {
            let client = &self.clients[index];
            if client.pending.is_none() && client.rests_until <= now {
                self.act(index);
            }
        }
        let mut events = mem::replace(&mut self.events, Events::with_capacity(0));
        let polled = self.poll.poll(&mut events, Some(Duration::from_millis(1)));
        if let Err(error) = polled {
            assert_eq!(error.kind(), io::ErrorKind::Interrupted, "{error}");
        }
        let before = self.history.ops.len();
        for event in &events {
            self.receive(event.token().0);
        }
        self.events = events;
        self.stage.count_done(self.history.ops.len() - before);
    }

    /// How many requests have been written down.
    pub(super) fn done(&self) -> usize {
        self.history.ops.len()
    }

    /// Lets everybody have what it waits for and give back what it has. What does not end is written
    /// down as open. Returns what was written down since the last time, and odd replies.
    pub(super) fn drain(&mut self) -> (History, Vec<String>) {
        self.is_draining = true;
        self.found_free = 0;
        let end = self.stage.clock.now() + DRAIN;
        while self.found_free < LOCKS && self.stage.clock.now() < end {
            self.turn();
        }
        if self.found_free < LOCKS {
            self.odd
                .push("something is left when everybody is gone".to_owned());
            for index in 0..CLIENTS {
                if let Some(pending) = self.clients[index].pending.take() {
                    self.write_down(index, &pending, NEVER, Outcome::Open);
                }
                self.die(index);
            }
        }
        self.is_draining = false;
        (mem::take(&mut self.history), mem::take(&mut self.odd))
    }

    fn new_owner(&mut self) -> u32 {
        self.dead.push(false);
        u32::try_from(self.dead.len() - 1).unwrap()
    }

    /// Has an idle client send something, if there is something for it.
    fn act(&mut self, index: usize) {
        let request = if index == CLIENTS {
            Some(self.next_care())
        } else {
            self.next_request(index)
        };
        if let Some((request, text)) = request {
            let port = self.stage.port(request.key());
            self.send(index, request, text, port, false);
        }
    }

    /// What the caretaker does next.
    fn next_care(&mut self) -> (Request, String) {
        let now = self.stage.clock.now();
        self.clients[CLIENTS].rests_until = now + ROUND;
        if let Some((key, owner)) = self.to_release.pop() {
            let text = format!("LOCK.RELEASE {} {}", name(key), owner_name(owner));
            return (Request::ReleaseFor { key, owner }, text);
        }
        if !self.is_draining {
            match self.random.below(400) {
                0..3 => {
                    let key = self.random.below(LOCKS);
                    return (Request::Delete { key }, format!("DEL {}", name(key)));
                }
                3..5 => {
                    let index = self.random.below(CLIENTS);
                    self.die(index);
                }
                _ => {}
            }
        }
        let key = self.next_look % LOCKS;
        self.next_look += 1;
        let text = format!("LOCK.INFO {0}\nLOCK.QUEUE {0} COUNT 1000", name(key));
        (Request::Look { key, info: None }, text)
    }

    /// What a client asks for next.
    fn next_request(&mut self, index: usize) -> Option<(Request, String)> {
        let client = &self.clients[index];
        let owner = owner_name(client.owner);
        let held = match client.holds.len() {
            0 => None,
            count => Some(client.holds[self.random.below(count)]),
        };
        let Some(held) = held else {
            if self.is_draining {
                return None;
            }
            return Some(match self.random.below(25) {
                0 => lock_request(self.random.below(LOCKS), Kind::Release, &owner, 0),
                _ => self.acquire(index),
            });
        };
        let chance = self.random.below(100);
        let ttl = self.ttl();
        let (key, token) = (held.key, held.token);
        Some(match chance {
            _ if self.is_draining => lock_request(key, Kind::Release, &owner, token),
            0..55 => lock_request(key, Kind::Release, &owner, token),
            55..64 => lock_request(key, Kind::Renew { ttl }, &owner, token),
            64..71 => lock_request(key, Kind::Guard, &owner, token),
            71..80 if held.mode == Mode::Exclusive => {
                self.acquire_of(key, Mode::Exclusive, true, &owner)
            }
            71..82 => {
                let kind = Kind::Acquire {
                    mode: held.mode,
                    is_reentrant: false,
                    ttl,
                    block: None,
                };
                lock_request(key, kind, &owner, token)
            }
            _ => self.acquire(index),
        })
    }

    fn ttl(&mut self) -> u64 {
        if self.random.chance(85) {
            u64::try_from(LONG).unwrap()
        } else {
            self.random.brief().unsigned_abs()
        }
    }

    /// Asks for a lock that the client does not have.
    fn acquire(&mut self, index: usize) -> (Request, String) {
        let owner = owner_name(self.clients[index].owner);
        let holds: Vec<usize> = self.clients[index]
            .holds
            .iter()
            .map(|held| held.key)
            .collect();
        let mut key = self.random.below(LOCKS);
        while holds.contains(&key) && holds.len() < LOCKS {
            key = (key + 1) % LOCKS;
        }
        let other = (key + 1) % FIRST_SHARED;
        let may_be_several = !self.manners.is_cluster && key < FIRST_SHARED;
        if may_be_several && !holds.contains(&other) && self.random.chance(5) {
            return self.acquire_several(&[key, other], &owner);
        }
        let mode = match self.random.below(5) {
            _ if key < FIRST_SHARED => Mode::Exclusive,
            0..2 => Mode::Shared,
            2..4 => Mode::Limit(LIMIT),
            _ => Mode::Exclusive,
        };
        let is_reentrant = mode == Mode::Exclusive && self.random.chance(50);
        self.acquire_of(key, mode, is_reentrant, &owner)
    }

    fn block(&mut self) -> Option<u64> {
        match self.random.below(10) {
            0..5 => Some(0),
            5..7 => Some(self.random.brief().unsigned_abs()),
            _ => None,
        }
    }

    fn acquire_of(
        &mut self,
        key: usize,
        mode: Mode,
        is_reentrant: bool,
        owner: &str,
    ) -> (Request, String) {
        let kind = Kind::Acquire {
            mode,
            is_reentrant,
            ttl: self.ttl(),
            block: self.block(),
        };
        let (request, mut text) = lock_request(key, kind, owner, 0);
        if self.random.chance(5) {
            text.push_str(" WATCHDOG");
        }
        if self.random.chance(10) {
            let _ = write!(text, " REQID r{}", self.history.ops.len());
        }
        (request, text)
    }

    fn acquire_several(&mut self, keys: &[usize], owner: &str) -> (Request, String) {
        let (ttl, block) = (self.ttl(), self.block());
        let mut text = format!("LOCK.MACQUIRE {}", keys.len());
        for key in keys {
            let _ = write!(text, " {}", name(*key));
        }
        let _ = write!(text, " {owner} {ttl}");
        if let Some(timeout) = block {
            let _ = write!(text, " BLOCK {timeout}");
        }
        let kind = Kind::Acquire {
            mode: Mode::Exclusive,
            is_reentrant: false,
            ttl,
            block,
        };
        let keys = keys.to_vec();
        (Request::Lock { keys, kind }, text)
    }

    /// Sends a request of a client to the server on this port.
    fn send(&mut self, index: usize, request: Request, text: String, port: u16, is_asking: bool) {
        let Some(connection) = self.connection(index, port) else {
            self.rest(index);
            return;
        };
        let mut bytes = String::with_capacity(160);
        if is_asking {
            encode("ASKING", &mut bytes);
        }
        text.lines().for_each(|line| encode(line, &mut bytes));
        let sent = self.stage.clock.now();
        self.clients[index].pending = Some(Pending {
            request,
            text,
            sent,
            connection,
            before: usize::from(is_asking),
        });
        let stream = self.connections[connection].as_mut();
        if stream.is_none_or(|(stream, _)| stream.send(bytes.as_bytes()).is_err()) {
            self.die(index);
        }
    }

    /// The place of a client's connection to this port.
    fn connection(&mut self, index: usize, port: u16) -> Option<usize> {
        let open = self.clients[index].connections.iter().find(|place| {
            let connection = self.connections[**place].as_ref();
            connection.is_some_and(|(connection, _)| connection.port() == port)
        });
        if let Some(place) = open {
            return Some(*place);
        }
        let free = self.connections.iter().position(Option::is_none);
        let place = free.unwrap_or(self.connections.len());
        let connection = Connection::open(port, self.poll.registry(), place).ok()?;
        if place == self.connections.len() {
            self.connections.push(None);
        }
        self.connections[place] = Some((connection, index));
        self.clients[index].connections.push(place);
        Some(place)
    }

    fn rest(&mut self, index: usize) {
        self.clients[index].rests_until = self.stage.clock.now() + REST;
    }

    /// Takes what has come over a connection.
    fn receive(&mut self, place: usize) {
        let Some(Some((connection, index))) = self.connections.get_mut(place) else {
            return;
        };
        let index = *index;
        let is_open = connection.receive();
        while let Some(Some((connection, _))) = self.connections.get_mut(place) {
            let Some(reply) = connection.next_reply() else {
                break;
            };
            self.take_reply(index, reply);
        }
        if !is_open && self.connections.get(place).is_some_and(Option::is_some) {
            self.die(index);
        }
    }

    /// The connection of a client has ended, or is ended now: it holds what it holds, and waits no
    /// more.
    fn die(&mut self, index: usize) {
        if let Some(pending) = self.clients[index].pending.take() {
            self.write_down(index, &pending, NEVER, Outcome::Unknown);
        }
        for place in mem::take(&mut self.clients[index].connections) {
            self.connections[place] = None;
        }
        self.dead[self.clients[index].owner as usize] = true;
        let owner = self.new_owner();
        let client = &mut self.clients[index];
        client.owner = owner;
        client.holds.clear();
        self.rest(index);
    }

    fn write_down(&mut self, index: usize, pending: &Pending, returned: u64, outcome: Outcome) {
        let (keys, kind, owner, is_for_dead) = match &pending.request {
            Request::Lock { keys, kind } => (&keys[..], *kind, self.clients[index].owner, false),
            Request::ReleaseFor { key, owner } => {
                (std::slice::from_ref(key), Kind::Release, *owner, true)
            }
            Request::Delete { key } => {
                let (key, from, to) = (Some(*key), pending.sent, returned);
                self.history.breaks.push(Break { key, from, to });
                return;
            }
            Request::Look { .. } => return,
        };
        for key in keys {
            self.history.ops.push(Op {
                owner,
                key: *key,
                kind,
                sent: pending.sent,
                returned,
                outcome,
                is_for_dead,
            });
        }
    }

    fn take_reply(&mut self, index: usize, reply: Reply) {
        let returned = self.stage.clock.now();
        let Some(mut pending) = self.clients[index].pending.take() else {
            self.odd.push(format!("a reply to nothing: {reply:?}"));
            return;
        };
        if pending.before > 0 {
            pending.before -= 1;
            self.clients[index].pending = Some(pending);
            return;
        }
        if let Request::Look { key, info } = &mut pending.request
            && reply.error_code().is_none()
        {
            if let Some(info) = info.take() {
                let key = *key;
                self.look(key, pending.sent, returned, &info, &reply);
            } else {
                *info = Some(reply);
                self.clients[index].pending = Some(pending);
            }
            return;
        }
        if let Some(code) = reply.error_code() {
            let is_guard = matches!(
                &pending.request,
                Request::Lock {
                    kind: Kind::Guard,
                    ..
                }
            );
            if !(is_guard && code == "NOTHELD") {
                self.take_error(index, pending, returned, &reply);
                return;
            }
        }
        let outcome = match (&pending.request, &reply) {
            (
                Request::Lock {
                    kind: Kind::Acquire { .. },
                    ..
                },
                Reply::Int(token),
            ) => Outcome::Granted(*token),
            (
                Request::Lock {
                    kind: Kind::Acquire { .. },
                    ..
                },
                reply,
            ) if reply.is_nil() => Outcome::Nil,
            (
                Request::Lock {
                    kind: Kind::Guard, ..
                },
                Reply::Error(_),
            ) => Outcome::Answer(0),
            (_, Reply::Int(answer)) => Outcome::Answer(*answer),
            _ => {
                self.odd.push(format!("{}: {reply:?}", pending.text));
                Outcome::Refused
            }
        };
        self.write_down(index, &pending, returned, outcome);
        if let Request::Lock { keys, kind } = pending.request {
            self.learn(index, &keys, kind, outcome);
        }
    }

    /// What a client knows now.
    fn learn(&mut self, index: usize, keys: &[usize], kind: Kind, outcome: Outcome) {
        let holds = &mut self.clients[index].holds;
        for key in keys {
            let held = holds.iter_mut().find(|held| held.key == *key);
            match (kind, outcome, held) {
                (Kind::Acquire { .. }, Outcome::Granted(token), Some(held))
                    if held.token == token =>
                {
                    held.count += 1;
                }
                (Kind::Acquire { mode, .. }, Outcome::Granted(token), _) => {
                    holds.retain(|held| held.key != *key);
                    let (key, count) = (*key, 1);
                    holds.push(Held {
                        key,
                        token,
                        count,
                        mode,
                    });
                }
                (Kind::Release, Outcome::Answer(1), Some(held)) if held.count > 1 => {
                    held.count -= 1;
                }
                (Kind::Release, Outcome::Answer(_), _) | (_, Outcome::Answer(0 | -1), _) => {
                    holds.retain(|held| held.key != *key);
                }
                _ => {}
            }
        }
    }

    /// A request was not carried out.
    fn take_error(&mut self, index: usize, pending: Pending, returned: u64, reply: &Reply) {
        let code = reply.error_code().unwrap_or_default();
        let is_known = matches!(code, "DEADLOCK") || self.manners.errors.contains(&code);
        if !is_known {
            self.odd.push(format!("{}: {reply:?}", pending.text));
        }
        self.write_down(index, &pending, returned, Outcome::Refused);
        let Pending {
            request,
            text,
            connection,
            ..
        } = pending;
        match code {
            "MOVED" | "ASK" | "TRYAGAIN" => {
                let address = reply.as_text().rsplit(':').next();
                let named = address.and_then(|port| port.parse().ok());
                let key = request.key();
                if let (Some(port), "MOVED") = (named, code) {
                    self.stage.send_to(key, port);
                }
                let port = named.unwrap_or_else(|| self.stage.port(key));
                let is_look = matches!(request, Request::Look { .. });
                if is_look {
                    // The reply to the second half of it would come, too.
                    self.close(index, connection);
                } else if code == "MOVED" && named.is_none() {
                    self.rest(index);
                } else {
                    self.send(index, request, text, port, code == "ASK");
                }
            }
            // A wait that the server ended.
            "UNBLOCKED" => self.die(index),
            "DEADLOCK" | "OOM" | "QUEUEFULL" => {}
            _ => {
                // It is not the server to ask, or not yet.
                self.close(index, connection);
                self.rest(index);
            }
        }
    }

    /// Ends one connection of a client that has no request on its way.
    fn close(&mut self, index: usize, place: usize) {
        self.connections[place] = None;
        self.clients[index]
            .connections
            .retain(|other| *other != place);
    }

    /// What the caretaker has seen of a lock.
    fn look(&mut self, key: usize, sent: u64, returned: u64, info: &Reply, queue: &Reply) {
        let owners = info.field("owners").items();
        let names = owners.chunks(2).map(|owner| &owner[0]);
        let holders: Vec<u32> = names.filter_map(owner_of).collect();
        for owner in &holders {
            if self.dead[*owner as usize] {
                self.to_release.push((key, *owner));
            }
        }
        let queue: Vec<u32> = queue
            .items()
            .iter()
            .filter_map(|line| owner_of(line.field("owner")))
            .collect();
        let is_idle = |client: &Client| client.pending.is_none() && client.holds.is_empty();
        let is_free = holders.is_empty() && queue.is_empty();
        if is_free && self.is_draining && self.clients[..CLIENTS].iter().all(is_idle) {
            self.found_free += 1;
        } else {
            self.found_free = 0;
        }
        if queue.len() > 1 || !queue.is_empty() && self.random.chance(20) {
            self.history.looks.push(Look {
                key,
                sent,
                returned,
                queue,
            });
        }
    }
}

/// A request for one lock.
fn lock_request(key: usize, kind: Kind, owner: &str, token: i64) -> (Request, String) {
    let lock = name(key);
    let text = match kind {
        Kind::Acquire {
            mode,
            is_reentrant,
            ttl,
            block,
        } => {
            let command = if is_reentrant { "RACQUIRE" } else { "ACQUIRE" };
            let mut text = format!("LOCK.{command} {lock} {owner} {ttl}");
            if let Some(timeout) = block {
                let _ = write!(text, " BLOCK {timeout}");
            }
            match mode {
                Mode::Exclusive => {}
                Mode::Shared => text.push_str(" SHARED"),
                Mode::Limit(limit) => {
                    let _ = write!(text, " LIMIT {limit}");
                }
            }
            text
        }
        Kind::Release => format!("LOCK.RELEASE {lock} {owner}"),
        Kind::Renew { ttl } => format!("LOCK.RENEW {lock} {owner} {ttl}"),
        Kind::Guard => format!("LOCK.GUARD {lock} {token} EXISTS {lock}"),
    };
    let keys = vec![key];
    (Request::Lock { keys, kind }, text)
}

fn name(key: usize) -> String {
    format!("k{key}")
}

fn owner_name(owner: u32) -> String {
    format!("o{owner}")
}

/// The owner that a server names.
fn owner_of(reply: &Reply) -> Option<u32> {
    reply.as_text().strip_prefix('o')?.parse().ok()
}
