//! Many clients at once with everything that there is to ask for: locks alone and once more, shares,
//! permits, several locks at once, leases that lapse, clients that go away while they hold and while
//! they wait. A recorded history of it never shows a lock that broke its promise.
//!
//! One thread drives all connections, a few requests at a time, so that the server finds several of
//! them in one turn of its event loop. [`record`] says what is written down and in which order,
//! [`check`] what must hold and why it can be told on any machine. `bad_histories` shows that what is
//! wrong is found.
//!
//! - `REDIS_LOCK_SEED`: the random choices of a run, as a failure shows it. How the requests meet in
//!   the server is not repeated by it.
//! - `REDIS_LOCK_OPERATIONS`: how many requests are sent to each server. A long run:
//!   `REDIS_LOCK_OPERATIONS=1000000 cargo test mixed_history -- --nocapture`
//!
//! The machine's clock must not be set back meanwhile.

mod bad_histories;
mod check;
mod record;

use std::array;
use std::collections::{HashMap, HashSet};
use std::env;
use std::mem;
use std::time::{Duration, Instant};

use self::check::{Counts, Room, around, asleep, check};
use self::record::{
    BEGAN, ENDED, History, KEYS, Kind, MARK, Mode, Op, Outcome, Snapshot, StreamReader,
};
use crate::harness::{
    Flavour, Raw, ReplicationStream, Reply, Server, ToWords, Words, on_every_server, unix_millis,
    wait_until,
};
use crate::random::Random;
use crate::waiters::{LONG, nobody_waits, unload};

/// How many connections there are.
const CLIENTS: usize = 16;

/// How many of them share their owner with the one before.
const TWINS: usize = 2;

/// How many requests are sent before the history is looked at and begins anew.
const ROUND: usize = 2_000;

/// How many requests a server gets if nobody says otherwise.
const OPERATIONS: usize = 5_000;

/// How often a server is left in peace, in percent of all turns.
const QUIET: usize = 25;

/// A request without a reply so far.
struct Pending {
    op: usize,
    sent: Instant,
    /// Replies to come before that to the request, and after it.
    before: usize,
    after: usize,
}

struct Client {
    raw: Raw,
    id: i64,
    owner: String,
    pending: Option<Pending>,
    /// The locks that it has, as far as it knows.
    holds: Vec<usize>,
}

/// What the server says of all locks in one step.
struct Look {
    rooms: [Room; KEYS.len()],
    /// Owners, tokens, and what is left of the leases.
    grants: Vec<(String, i64, i64)>,
}

/// The clients of one server, and what is written down of them.
struct Run<'a> {
    server: &'a Server,
    random: &'a mut Random,
    /// The connection of those who hold nothing.
    control: Raw,
    stream: ReplicationStream,
    reader: StreamReader,
    clients: Vec<Client>,
    history: History,
    /// When each mark came back.
    marked: Vec<Instant>,
    /// The last request of each connection.
    last_of: HashMap<i64, usize>,
    /// The tokens that clients were told.
    told: HashSet<i64>,
    /// Owners of whose connections one ended before it was answered.
    unsure: HashSet<String>,
    /// Whether keys are deleted by hand.
    by_hand: bool,
}

impl<'a> Run<'a> {
    fn new(server: &'a Server, random: &'a mut Random, by_hand: bool) -> Self {
        let mut run = Self {
            server,
            random,
            control: server.raw(),
            stream: server.replication_stream(),
            reader: StreamReader::default(),
            clients: Vec::new(),
            history: History::default(),
            marked: Vec::new(),
            last_of: HashMap::new(),
            told: HashSet::new(),
            unsure: HashSet::new(),
            by_hand,
        };
        for index in 0..CLIENTS {
            let client = run.new_client(index);
            run.clients.push(client);
        }
        run
    }

    /// A client for a place. Twins have the owner of the client before them, for all time.
    fn new_client(&self, index: usize) -> Client {
        let mut raw = self.server.raw();
        let id = raw.id();
        let pair = index / 2;
        let owner = if pair < TWINS {
            format!("twins-{pair}")
        } else {
            format!("owner-{id}")
        };
        Client {
            raw,
            id,
            owner,
            pending: None,
            holds: Vec::new(),
        }
    }

    /// Writes down what is about to be sent, and returns its number.
    fn note(&mut self, client: i64, owner: &str, keys: &[usize], kind: Kind) -> usize {
        let op = self.history.ops.len();
        self.history.ops.push(Op {
            client,
            owner: owner.to_owned(),
            keys: keys.to_vec(),
            kind,
            sent: unix_millis(),
            took: 0,
            outcome: Outcome::Open,
            stayed: None,
            sent_away: None,
            was_seen: false,
        });
        op
    }

    /// The command of a request of an owner.
    fn command(owner: &str, keys: &[usize], kind: Kind) -> Words {
        let names: Vec<&str> = keys.iter().map(|key| KEYS[*key]).collect();
        let names = match names[..] {
            [name] => name.to_owned(),
            _ => format!("{} {}", names.len(), names.join(" ")),
        };
        let m = if keys.len() > 1 { "M" } else { "" };
        let text = match kind {
            Kind::Acquire { mode, ttl, block } => {
                let r = if mode == Mode::Reentrant { "R" } else { "" };
                let mode = match mode {
                    Mode::Exclusive | Mode::Reentrant => String::new(),
                    Mode::Shared => "SHARED".to_owned(),
                    Mode::Limit(limit) => format!("LIMIT {limit}"),
                };
                let block = block.map_or(String::new(), |timeout| format!("BLOCK {timeout}"));
                format!("LOCK.{m}{r}ACQUIRE {names} {owner} {ttl} {mode} {block}")
            }
            Kind::Release => format!("LOCK.{m}RELEASE {names} {owner}"),
            Kind::Renew { ttl } => format!("LOCK.{m}RENEW {names} {owner} {ttl}"),
            Kind::Delete => format!("DEL {names}"),
            Kind::SendAway => unreachable!("these have commands of their own"),
        };
        text.to_words()
    }

    /// Has a client send a request.
    fn send(&mut self, index: usize, keys: &[usize], kind: Kind) {
        let Client { id, owner, .. } = &self.clients[index];
        let (id, owner) = (*id, owner.clone());
        let op = self.note(id, &owner, keys, kind);
        self.last_of.insert(id, op);
        let waits = matches!(kind, Kind::Acquire { block: Some(_), .. });
        let mut commands = vec![
            ("PUBLISH", BEGAN, op).to_words(),
            Self::command(&owner, keys, kind),
        ];
        if !waits {
            commands.push(("PUBLISH", ENDED, op).to_words());
        }
        let client = &mut self.clients[index];
        client.pending = Some(Pending {
            op,
            sent: Instant::now(),
            before: 1,
            after: usize::from(!waits),
        });
        client.raw.send_all(commands);
    }

    /// Does things on behalf of those who hold nothing, all in one turn of the server, and returns
    /// the replies.
    fn control(&mut self, requests: &[(usize, Words)]) -> Vec<Reply> {
        let commands = requests.iter().flat_map(|(op, command)| {
            [
                ("PUBLISH", BEGAN, *op).to_words(),
                command.clone(),
                ("PUBLISH", ENDED, *op).to_words(),
            ]
        });
        let replies = self.control.pipeline(commands.collect::<Vec<_>>());
        replies
            .chunks(3)
            .zip(requests)
            .map(|(replies, (op, _))| {
                self.history.ops[*op].outcome = answers(&replies[1]);
                replies[1].clone()
            })
            .collect()
    }

    /// Marks the stream.
    fn mark(&mut self) {
        let (mark, sent) = (self.marked.len(), unix_millis());
        self.control.call(("PUBLISH", MARK, mark));
        self.marked(sent);
    }

    /// Takes note of a mark that came back.
    fn marked(&mut self, sent: i64) {
        self.marked.push(Instant::now());
        self.history.marks.push((sent, unix_millis()));
    }

    /// Marks the stream, and looks at all queues and holders in the same step.
    fn look(&mut self) -> Look {
        let (mark, sent) = (self.marked.len(), unix_millis());
        let mut commands = vec!["MULTI".to_words(), ("PUBLISH", MARK, mark).to_words()];
        commands.extend(KEYS.map(|key| ("LOCK.QUEUE", key, "COUNT", 1_000).to_words()));
        commands.extend(KEYS.map(|key| ("LOCK.INFO", key).to_words()));
        commands.push("EXEC".to_words());
        let replies = self.control.pipeline(commands).pop().unwrap();
        self.marked(sent);
        let replies = replies.items();
        let queues = array::from_fn(|key| {
            let ids = replies[1 + key].items().iter();
            let ids = ids.map(|line| line.field("client-id").as_int());
            ids.map(|id| self.last_of[&id]).collect::<Vec<usize>>()
        });
        for op in queues.iter().flatten() {
            self.history.ops[*op].was_seen = true;
        }
        self.history.snapshots.push(Snapshot {
            mark,
            queues,
            is_quiet: false,
        });
        let infos = &replies[1 + KEYS.len()..];
        let grants = |info: &Reply| {
            let grants = info.field("grants").items().iter().map(|grant| {
                let owner = grant.field("owner").as_text().to_owned();
                let (token, ttl) = (grant.field("token"), grant.field("ttl"));
                (owner, token.as_int(), ttl.as_int())
            });
            grants.collect::<Vec<_>>()
        };
        Look {
            rooms: array::from_fn(|key| {
                let mode = infos[key].field("mode");
                let is_taken = !mode.is_nil() && *mode == "exclusive";
                let owners = grants(&infos[key]).into_iter().map(|(owner, ..)| owner);
                Room {
                    is_taken,
                    sharing: owners.collect(),
                }
            }),
            grants: infos.iter().flat_map(grants).collect(),
        }
    }

    /// Takes all replies that are there.
    fn read_replies(&mut self) {
        for index in 0..self.clients.len() {
            loop {
                let client = &mut self.clients[index];
                let Some(pending) = client.pending.as_mut() else {
                    break;
                };
                if !client.raw.has_reply() {
                    break;
                }
                let reply = client.raw.read();
                if pending.before > 0 {
                    pending.before -= 1;
                    continue;
                }
                for _ in 0..pending.after {
                    client.raw.read();
                }
                self.answered(index, &reply);
            }
        }
    }

    /// Writes down what a client was told.
    fn answered(&mut self, index: usize, reply: &Reply) {
        let client = &mut self.clients[index];
        let Some(pending) = client.pending.take() else {
            return;
        };
        let op = &mut self.history.ops[pending.op];
        op.took = i64::try_from(pending.sent.elapsed().as_millis()).unwrap() + 1;
        op.outcome = match (op.kind, reply) {
            (Kind::Acquire { .. }, Reply::Int(token)) => Outcome::Granted(*token),
            (Kind::Acquire { .. }, reply) if reply.is_nil() => Outcome::Nil,
            _ => answers(reply),
        };
        match (op.kind, &op.outcome) {
            (Kind::Acquire { .. }, Outcome::Granted(token)) => {
                self.told.insert(*token);
                client.holds.extend(&op.keys);
            }
            (Kind::Release, _) => {
                for key in &op.keys {
                    if let Some(hold) = client.holds.iter().position(|hold| hold == key) {
                        client.holds.remove(hold);
                    }
                }
            }
            (Kind::Renew { .. }, Outcome::Answers(answers)) => {
                let lost = op
                    .keys
                    .iter()
                    .zip(answers)
                    .filter(|(_, answer)| **answer != 1);
                let lost: Vec<usize> = lost.map(|(key, _)| *key).collect();
                client.holds.retain(|hold| !lost.contains(hold));
            }
            _ => {}
        }
        self.note_stay(&pending);
    }

    /// Writes down up to which mark a request cannot have left by itself.
    fn note_stay(&mut self, pending: &Pending) {
        let op = &mut self.history.ops[pending.op];
        let Kind::Acquire {
            block: Some(block), ..
        } = op.kind
        else {
            return;
        };
        let before = match u64::try_from(block).unwrap() {
            0 => self.marked.len(),
            // The server counts whole milliseconds from the middle of one.
            block => {
                let earliest = pending.sent + Duration::from_millis(block.saturating_sub(2));
                self.marked.partition_point(|marked| *marked < earliest)
            }
        };
        op.stayed = before.checked_sub(1);
    }

    /// Lets a few things happen at once. False when nobody could do anything.
    fn act(&mut self) -> bool {
        self.read_replies();
        let mut has_acted = false;
        for _ in 0..=self.random.below(6) {
            has_acted |= self.act_once();
        }
        if self.random.chance(60) {
            self.look();
        } else {
            self.mark();
        }
        has_acted
    }

    /// Lets something happen. False when it came to nothing because no client is free for it.
    fn act_once(&mut self) -> bool {
        let is_idle = |index: &usize| self.clients[*index].pending.is_none();
        let idle: Vec<usize> = (0..self.clients.len()).filter(is_idle).collect();
        match self.random.below(100) {
            0..2 => self.send_away("ERROR"),
            // Redis 7.0 may answer nothing to this: see the tests of leaving.
            2..4 if self.server.flavour() != Flavour::Redis70 => self.send_away("TIMEOUT"),
            4..6 => self.send_away("KILL"),
            6..8 => self.hang_up(),
            8..10 if self.by_hand => {
                let key = self.random.below(KEYS.len());
                self.delete(key);
            }
            10..14 => drop(self.release_for_the_dead()),
            _ if idle.is_empty() => {
                // Perhaps all of them wait for one who is dead, or for one another by way of twins.
                if !self.release_for_the_dead() && self.random.chance(20) {
                    self.send_away("KILL");
                }
                return false;
            }
            _ => {
                let index = self.random.pick(&idle);
                self.ask(index);
            }
        }
        true
    }

    /// Has an idle client send something.
    fn ask(&mut self, index: usize) {
        let holds = self.clients[index].holds.clone();
        let ttl = if self.random.chance(70) {
            LONG
        } else {
            self.random.brief()
        };
        match self.random.below(100) {
            0..45 if !holds.is_empty() => {
                let mut keys = vec![self.random.pick(&holds)];
                if self.random.chance(50) {
                    keys = holds;
                    if self.random.chance(10) {
                        keys.push(self.random.below(KEYS.len()));
                    }
                    keys.sort_unstable();
                    keys.dedup();
                }
                self.send(index, &keys, Kind::Release);
            }
            45..53 if !holds.is_empty() => {
                let key = self.random.pick(&holds);
                self.send(index, &[key], Kind::Renew { ttl });
            }
            53..58 if !holds.is_empty() => {
                let key = self.random.pick(&holds);
                self.acquire(index, &[key], Mode::Reentrant, ttl);
            }
            // One who holds something and waits for more makes others wait for long.
            58..80 if !holds.is_empty() => {
                let key = self.random.pick(&holds);
                self.send(index, &[key], Kind::Release);
            }
            _ => {
                let key = self.random.below(KEYS.len());
                let (mode, keys) = match self.random.below(100) {
                    0..20 => (Mode::Exclusive, vec![key]),
                    20..32 => (Mode::Reentrant, vec![key]),
                    32..58 => (Mode::Shared, vec![key]),
                    58..80 => (Mode::Limit(1 + self.random.below(4)), vec![key]),
                    _ => (Mode::Exclusive, self.several()),
                };
                self.acquire(index, &keys, mode, ttl);
            }
        }
    }

    /// Two or three locks, in any order.
    fn several(&mut self) -> Vec<usize> {
        let mut keys: Vec<usize> = (0..KEYS.len()).collect();
        let count = 2 + self.random.below(2);
        while keys.len() > count {
            keys.remove(self.random.below(keys.len()));
        }
        if self.random.chance(50) {
            keys.reverse();
        }
        keys
    }

    /// Has a client ask for locks.
    fn acquire(&mut self, index: usize, keys: &[usize], mode: Mode, ttl: i64) {
        let block = match self.random.below(10) {
            0..6 => Some(0),
            6..8 => Some(self.random.brief()),
            _ => None,
        };
        self.send(index, keys, Kind::Acquire { mode, ttl, block });
    }

    /// Somebody deletes a lock.
    fn delete(&mut self, key: usize) {
        let op = self.note(0, "", &[key], Kind::Delete);
        self.control(&[(op, Self::command("", &[key], Kind::Delete))]);
    }

    /// Ends the wait of a client, or its connection, perhaps in the turn in which it is granted.
    fn send_away(&mut self, form: &'static str) {
        let waits = |index: &usize| {
            let pending = self.clients[*index].pending.as_ref();
            pending.is_some_and(|pending| pending.after == 0)
        };
        let waiting: Vec<usize> = (0..self.clients.len()).filter(waits).collect();
        let index = if waiting.is_empty() || form == "KILL" && self.random.chance(20) {
            self.random.below(self.clients.len())
        } else {
            self.random.pick(&waiting)
        };
        let id = self.clients[index].id;
        let pending = self.clients[index].pending.as_ref();
        let pending = pending.map(|pending| pending.op);
        let mut requests = Vec::new();
        if let Some(op) = pending
            && self.by_hand
            && self.random.chance(50)
        {
            // The lock passes to the first in the queue, who may be this one.
            let keys = self.history.ops[op].keys.clone();
            for (kind, owner) in [(Kind::Delete, ""), (Kind::Renew { ttl: 1 }, "nobody")] {
                let op = self.note(0, owner, &keys[..1], kind);
                requests.push((op, Self::command(owner, &keys[..1], kind)));
            }
        }
        let by = self.note(0, "", &[], Kind::SendAway);
        let command = match form {
            "KILL" => ("CLIENT", "KILL", "ID", id).to_words(),
            _ => ("CLIENT", "UNBLOCK", id, form).to_words(),
        };
        requests.push((by, command));
        let reply = self.control(&requests).pop().unwrap();
        if form == "KILL" {
            assert_eq!(reply, 1);
        }
        if let Some(op) = pending
            && reply == 1
            && self.history.ops[op].sent_away.is_none()
        {
            self.history.ops[op].sent_away = Some((by, form));
        }
        if form == "KILL" {
            self.replace(index);
        }
    }

    /// Ends a connection, whatever it is doing.
    fn hang_up(&mut self) {
        let index = self.random.below(self.clients.len());
        self.replace(index).close();
    }

    /// Has another client take the place of one that is gone.
    fn replace(&mut self, index: usize) -> Raw {
        let client = self.new_client(index);
        let client = mem::replace(&mut self.clients[index], client);
        if let Some(pending) = client.pending {
            self.note_stay(&pending);
            self.history.ops[pending.op].outcome = Outcome::Gone;
            self.unsure.insert(client.owner);
        }
        client.raw
    }

    /// Releases what those hold who are gone. False when they hold nothing.
    fn release_for_the_dead(&mut self) -> bool {
        let grants = self.look().rooms;
        let mut requests = Vec::new();
        for (key, room) in grants.iter().enumerate() {
            for owner in &room.sharing {
                let is_twin = owner.starts_with("twins");
                let is_alive = self.clients.iter().any(|client| client.owner == *owner);
                if !is_alive || is_twin && self.random.chance(20) {
                    let op = self.note(0, owner, &[key], Kind::Release);
                    requests.push((op, Self::command(owner, &[key], Kind::Release)));
                }
            }
        }
        self.control(&requests);
        !requests.is_empty()
    }

    /// Leaves the server in peace until nobody more is to be granted, or to give a grant back; a long
    /// time: until all brief leases have lapsed.
    fn rest(&mut self, is_long: bool) {
        wait_until("everybody to be granted who can be", || {
            self.read_replies();
            let look = self.look();
            let snapshot = self.history.snapshots.last_mut().unwrap();
            let sleeper = asleep(&self.history.ops, &snapshot.queues, &look.rooms);
            let is_unclaimed = look.grants.iter().any(|(owner, token, _)| {
                !self.told.contains(token) && !self.unsure.contains(owner)
            });
            let is_brief = |grant: &(String, i64, i64)| grant.2 < LONG / 2;
            let will_lapse = is_long && look.grants.iter().any(is_brief);
            snapshot.is_quiet = sleeper.is_none() && !is_unclaimed && !will_lapse;
            snapshot.is_quiet
        });
        self.read_stream();
    }

    /// Takes what the server has replicated.
    fn read_stream(&mut self) {
        let commands = self.stream.until_marker(self.server);
        self.history.events.extend(self.reader.read(&commands));
    }

    /// Lets everybody have what it waits for, and releases what anybody has.
    fn drain(&mut self) {
        wait_until("every queue to drain", || {
            self.read_replies();
            let look = self.look();
            let mut requests = Vec::new();
            for (key, room) in look.rooms.iter().enumerate() {
                for owner in &room.sharing {
                    let op = self.note(0, owner, &[key], Kind::Release);
                    requests.push((op, Self::command(owner, &[key], Kind::Release)));
                }
            }
            self.control(&requests);
            requests.is_empty() && self.clients.iter().all(|client| client.pending.is_none())
        });
        wait_until("the last leases to lapse", || self.server.dbsize() == 0);
        self.mark();
        self.read_stream();
    }

    /// Sends so many requests and looks at what came of them.
    fn run(mut self, operations: usize) -> Counts {
        while self.history.ops.len() < operations {
            wait_until("a client that can do something", || self.act());
            if self.random.chance(QUIET) {
                let is_long = self.random.chance(15);
                self.rest(is_long);
            }
        }
        self.rest(true);
        self.drain();
        nobody_waits(self.server);
        check(&self.history)
            .unwrap_or_else(|violation| panic!("{}", around(&self.history, &violation)))
    }
}

/// The answers of a request that asks for no lock, or an error.
fn answers(reply: &Reply) -> Outcome {
    match reply {
        Reply::Int(answer) => Outcome::Answers(vec![*answer]),
        Reply::Array(answers) => Outcome::Answers(answers.iter().map(Reply::as_int).collect()),
        other => Outcome::Error(other.error_code().unwrap_or_default().to_owned()),
    }
}

on_every_server! {
    #[allow(clippy::print_stderr, reason = "the harness shows it when the test fails")]
    fn a_mixed_history_shows_no_lock_that_broke_its_promise(flavour) {
        let operations = env::var("REDIS_LOCK_OPERATIONS").map_or(OPERATIONS, |number| {
            number.parse().expect("REDIS_LOCK_OPERATIONS is a number")
        });
        let mut random = Random::new();
        let server = Server::start(flavour);
        let mut counts = Counts::default();
        let mut by_hand = false;
        while counts.ops < operations {
            let operations = ROUND.min(operations - counts.ops);
            counts.add(&Run::new(&server, &mut random, by_hand).run(operations));
            by_hand = !by_hand;
            eprintln!("{}: {counts:?}", flavour.name());
        }
        // There was something to see.
        assert!(
            counts.grants > operations / 10
                && counts.waited > operations / 50
                && counts.shared > operations / 200
                && counts.several > operations / 200
                && counts.compared > operations / 10
                && counts.left > operations / 50
                && (counts.untold > 0 || operations < ROUND),
            "{counts:?}"
        );
        unload(&server);
    }
}
