//! Many clients at once: whatever happens in between, what they are told fits together.
//!
//! One thread drives all connections, so that all it sends and reads is in one order, counted in
//! steps. A request runs in the server at some moment between the step that sent it and the one
//! that read its reply. All that is claimed here holds whenever in between that was.

use std::collections::{BTreeMap, HashSet};
use std::mem;

use crate::harness::{Flavour, Raw, Reply, Server, on_every_server, wait_until};
use crate::random::Random;
use crate::waiters::{LONG, nobody_waits, unload};

/// The locks.
const LOCKS: [&str; 3] = ["k0", "k1", "k2"];

/// What a client knows of its hold of a lock.
#[derive(Clone, Copy, Debug)]
struct Hold {
    token: i64,
    count: i64,
    /// Whether it cannot have lost the lock: its lease is long, it has begun no release of its last
    /// hold, and nobody has touched the key.
    is_firm: bool,
}

/// An owner, alive or dead. Each has one connection.
#[derive(Debug)]
struct Owner {
    name: String,
    holds: [Option<Hold>; LOCKS.len()],
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Acquire { ttl: i64, block: Option<i64> },
    Release,
    Renew { ttl: i64 },
}

/// A request without a reply so far.
#[derive(Clone, Copy, Debug)]
struct Request {
    step: usize,
    lock: usize,
    kind: Kind,
    /// The hold when it was sent.
    hold: Option<Hold>,
    /// The highest token that had been seen when it was sent.
    highest: i64,
    /// How `CLIENT UNBLOCK` was called for it.
    unblocked: Option<&'static str>,
}

struct Client {
    raw: Raw,
    id: i64,
    owner: Owner,
    request: Option<Request>,
}

/// The clients of one server, and all that they were told.
struct History<'a> {
    server: &'a Server,
    /// The connection of those who hold nothing.
    control: Raw,
    random: &'a mut Random,
    clients: Vec<Client>,
    dead: Vec<Owner>,
    /// The connections that were closed without telling the server.
    hung_up: HashSet<i64>,
    step: usize,
    /// The last step in which somebody who does not hold a lock changed its key.
    touched: [usize; LOCKS.len()],
    highest: i64,
    /// The tokens of all grants, by lock and by the step of the request.
    grants: BTreeMap<(usize, usize), i64>,
    /// The steps of the requests that stood in the queue of a lock in a step, in order.
    queues: Vec<(usize, usize, Vec<usize>)>,
}

impl<'a> History<'a> {
    fn new(server: &'a Server, random: &'a mut Random, clients: usize) -> Self {
        let mut history = Self {
            server,
            control: server.raw(),
            random,
            clients: Vec::new(),
            dead: Vec::new(),
            hung_up: HashSet::new(),
            step: 0,
            touched: [0; LOCKS.len()],
            highest: 0,
            grants: BTreeMap::new(),
            queues: Vec::new(),
        };
        history.clients = (0..clients).map(|_| history.new_client()).collect();
        history
    }

    fn new_client(&self) -> Client {
        let mut raw = self.server.raw();
        let id = raw.id();
        let owner = Owner {
            name: format!("owner-{id}"),
            holds: Default::default(),
        };
        Client {
            raw,
            id,
            owner,
            request: None,
        }
    }

    /// Lets something happen. False when it came to nothing because no client is free for it.
    fn act(&mut self) -> bool {
        self.read_replies();
        self.step += 1;
        let lock = self.random.below(LOCKS.len());
        match self.random.below(100) {
            0..2 => drop(self.touch(lock, &[format!("DEL {}", LOCKS[lock])])),
            2..4 => drop(self.touch(lock, &[format!("PEXPIRE {} 1", LOCKS[lock])])),
            4..6 => self.unblock(lock),
            6..8 => self.kill(lock),
            8..10 => self.hang_up(),
            10..20 => return self.look_at_holder(lock),
            20..40 => self.look_at_queue(lock),
            _ => {
                let is_idle = |index: &usize| self.clients[*index].request.is_none();
                let idle: Vec<usize> = (0..self.clients.len()).filter(is_idle).collect();
                if idle.is_empty() {
                    // Perhaps all of them wait for one who is dead.
                    self.look_at_holder(lock);
                    return false;
                }
                let index = self.random.pick(&idle);
                self.ask(index);
            }
        }
        true
    }

    /// Has an idle client send something.
    fn ask(&mut self, index: usize) {
        let held = |lock: &usize| self.clients[index].owner.holds[*lock].is_some();
        let (held, others): (Vec<usize>, Vec<usize>) = (0..LOCKS.len()).partition(held);
        let ttl = if self.random.below(5) > 0 {
            LONG
        } else {
            self.random.brief()
        };
        let block = match self.random.below(10) {
            0..6 => Some(0),
            6..8 => Some(self.random.brief()),
            _ => None,
        };
        let acquire = Kind::Acquire { ttl, block };
        match self.random.below(20) {
            0..9 if !held.is_empty() => self.send(index, &held, Kind::Release),
            9..11 if !held.is_empty() => self.send(index, &held, Kind::Renew { ttl }),
            11..13 if !held.is_empty() => self.send(index, &held, acquire),
            _ if !others.is_empty() => self.send(index, &others, acquire),
            _ => self.send(index, &held, Kind::Release),
        }
    }

    /// Sends a request for one of these locks.
    fn send(&mut self, index: usize, locks: &[usize], kind: Kind) {
        let lock = self.random.pick(locks);
        let is_reentrant = self.random.below(2) == 0;
        let Client {
            raw,
            owner,
            request,
            ..
        } = &mut self.clients[index];
        let (key, hold) = (LOCKS[lock], &mut owner.holds[lock]);
        let (step, highest, unblocked) = (self.step, self.highest, None);
        *request = Some(Request {
            step,
            lock,
            kind,
            hold: *hold,
            highest,
            unblocked,
        });
        match kind {
            Kind::Acquire { ttl, block } => {
                let command = if is_reentrant || hold.is_some() {
                    "RACQUIRE"
                } else {
                    "ACQUIRE"
                };
                let block = block.map_or(String::new(), |timeout| format!("BLOCK {timeout}"));
                raw.send(format!("LOCK.{command} {key} {} {ttl} {block}", owner.name));
            }
            Kind::Release => {
                *hold = hold.map(|hold| Hold {
                    count: hold.count - 1,
                    ..hold
                });
                *hold = hold.filter(|hold| hold.count > 0);
                raw.send(("LOCK.RELEASE", key, &owner.name));
            }
            Kind::Renew { ttl } => {
                *hold = hold.map(|hold| Hold {
                    is_firm: hold.is_firm && ttl == LONG,
                    ..hold
                });
                raw.send(("LOCK.RENEW", key, &owner.name, ttl));
            }
        }
    }

    /// Takes all replies that are there.
    fn read_replies(&mut self) {
        for index in 0..self.clients.len() {
            let client = &mut self.clients[index];
            if client.request.is_some() && client.raw.has_reply() {
                let reply = client.raw.read();
                let request = client.request.take().unwrap();
                self.check(index, request, &reply);
            }
        }
    }

    /// Looks whether a reply fits to all that is known.
    fn check(&mut self, index: usize, request: Request, reply: &Reply) {
        let lock = request.lock;
        let what = format!("{request:?}: {reply:?}");
        let is_untouched = self.touched[lock] < request.step;
        let was_firm = is_untouched && request.hold.is_some_and(|hold| hold.is_firm);
        let holds = &mut self.clients[index].owner.holds;
        let holds_any = holds.iter().any(Option::is_some);
        let hold = &mut holds[lock];
        let lasts = match (request.kind, reply) {
            (Kind::Acquire { ttl, .. }, Reply::Int(token)) => {
                match hold {
                    Some(hold) if hold.token == *token => hold.count += 1,
                    _ => {
                        assert!(!was_firm && *token > request.highest, "{what}");
                        *hold = Some(Hold {
                            token: *token,
                            count: 1,
                            is_firm: false,
                        });
                        self.grants.insert((lock, request.step), *token);
                        self.highest = self.highest.max(*token);
                    }
                }
                ttl == LONG
            }
            (Kind::Acquire { block, .. }, _) => {
                assert!(!was_firm, "{what}");
                match reply.error_code() {
                    None if reply.is_nil() => {
                        assert!(
                            block != Some(0) || request.unblocked == Some("TIMEOUT"),
                            "{what}"
                        );
                    }
                    // Nobody waits for one who holds nothing.
                    Some("DEADLOCK") => assert!(holds_any, "{what}"),
                    Some("UNBLOCKED") => assert_eq!(request.unblocked, Some("ERROR"), "{what}"),
                    _ => panic!("{what}"),
                }
                false
            }
            (kind, Reply::Int(1)) => matches!(kind, Kind::Renew { ttl: LONG }),
            (_, Reply::Int(0 | -1)) => {
                assert!(!was_firm, "{what}");
                *hold = None;
                false
            }
            _ => panic!("{what}"),
        };
        if lasts
            && is_untouched
            && let Some(hold) = hold
        {
            hold.is_firm = true;
            let others = self
                .clients
                .iter()
                .map(|client| &client.owner)
                .chain(&self.dead);
            let firm = |owner: &&Owner| owner.holds[lock].is_some_and(|hold| hold.is_firm);
            let holders: Vec<&Owner> = others.filter(firm).collect();
            assert_eq!(holders.len(), 1, "{what}: {holders:?}");
        }
    }

    /// Runs a command that may end any hold of a lock, and others in the same turn of the server.
    /// Returns the last reply.
    fn touch(&mut self, lock: usize, commands: &[String]) -> Reply {
        self.touched[lock] = self.step;
        for owner in self
            .clients
            .iter_mut()
            .map(|client| &mut client.owner)
            .chain(&mut self.dead)
        {
            owner.holds[lock] = owner.holds[lock].map(|hold| Hold {
                is_firm: false,
                ..hold
            });
        }
        self.control.pipeline(commands).pop().unwrap()
    }

    /// Deletes a lock, has it passed on at once, and does this to a client in the same turn, which
    /// is one that waits for it if there is any.
    fn pass_on_and(&mut self, lock: usize, command: &str) -> (usize, Reply) {
        let waits = |index: &usize| {
            self.clients[*index]
                .request
                .is_some_and(|request| request.lock == lock)
        };
        let waiting: Vec<usize> = (0..self.clients.len()).filter(waits).collect();
        let index = if waiting.is_empty() {
            self.random.below(self.clients.len())
        } else {
            self.random.pick(&waiting)
        };
        let key = LOCKS[lock];
        let command = command.replace("{id}", &self.clients[index].id.to_string());
        let commands = [
            format!("DEL {key}"),
            format!("LOCK.RENEW {key} nobody 1"),
            command,
        ];
        (index, self.touch(lock, &commands))
    }

    /// Unblocks a client.
    fn unblock(&mut self, lock: usize) {
        // Redis 7.0 may answer nothing to the other form: see the tests of leaving.
        let forms = ["ERROR", "TIMEOUT"];
        let forms = if self.server.flavour() == Flavour::Redis70 {
            &forms[..1]
        } else {
            &forms
        };
        let form = self.random.pick(forms);
        let (index, reply) = self.pass_on_and(lock, &format!("CLIENT UNBLOCK {{id}} {form}"));
        if reply == 1 {
            self.clients[index].request.as_mut().unwrap().unblocked = Some(form);
        }
    }

    /// Kills a client.
    fn kill(&mut self, lock: usize) {
        let (index, reply) = self.pass_on_and(lock, "CLIENT KILL ID {id}");
        assert_eq!(reply, 1);
        self.replace(index);
    }

    /// Ends a connection, whatever it is doing.
    fn hang_up(&mut self) {
        let index = self.random.below(self.clients.len());
        self.hung_up.insert(self.clients[index].id);
        self.replace(index).close();
    }

    /// Has another client take the place of one that is dead.
    fn replace(&mut self, index: usize) -> Raw {
        let client = self.new_client();
        let client = mem::replace(&mut self.clients[index], client);
        self.dead.push(client.owner);
        client.raw
    }

    /// Looks who holds a lock. For one who is dead it releases the lock. False if nobody does.
    fn look_at_holder(&mut self, lock: usize) -> bool {
        let info = self.server.call(("LOCK.INFO", LOCKS[lock]));
        let owners = info.field("owners").items();
        let name = owners.first().map(|owner| owner.as_text().to_owned());
        for Client { owner, request, .. } in &self.clients {
            if let Some(hold) = owner.holds[lock].filter(|hold| hold.is_firm) {
                assert_eq!(name.as_deref(), Some(&*owner.name), "{info:?}");
                assert_eq!(*info.field("token"), hold.token);
                assert!(
                    request.is_some() || owners[1] == hold.count,
                    "{info:?}: {hold:?}"
                );
            }
        }
        for owner in &mut self.dead {
            let is_holder = name.as_ref() == Some(&owner.name);
            let is_firm = owner.holds[lock].is_some_and(|hold| hold.is_firm);
            assert!(is_holder || !is_firm, "{info:?}: {owner:?}");
            if is_holder {
                owner.holds[lock] = None;
                self.server.call(("LOCK.RELEASE", LOCKS[lock], &owner.name));
            }
        }
        name.is_some()
    }

    /// Looks who waits for a lock, among whom is nobody who is known to be gone.
    fn look_at_queue(&mut self, lock: usize) {
        let queue = self
            .server
            .call(("LOCK.QUEUE", LOCKS[lock], "COUNT", 1_000));
        let mut waiting = Vec::new();
        for line in queue.items() {
            let id = line.field("client-id").as_int();
            match self.clients.iter().find(|client| client.id == id) {
                None => assert!(self.hung_up.contains(&id), "{queue:?}"),
                Some(client) => {
                    let request = client.request.expect("a client that waits");
                    assert!(request.lock == lock, "{queue:?}: {request:?}");
                    waiting.push(request.step);
                }
            }
        }
        self.queues.push((lock, self.step, waiting));
    }

    /// Lets everybody have what it waits for, and give back what it has.
    fn drain(&mut self) {
        wait_until("every queue to drain", || {
            self.read_replies();
            self.step += 1;
            for index in 0..self.clients.len() {
                let Client { owner, request, .. } = &self.clients[index];
                let held = owner.holds.iter().position(Option::is_some);
                if let (None, Some(lock)) = (request, held) {
                    self.send(index, &[lock], Kind::Release);
                }
            }
            let held = (0..LOCKS.len())
                .filter(|lock| self.look_at_holder(*lock))
                .count();
            held == 0 && self.clients.iter().all(|client| client.request.is_none())
        });
    }

    /// Looks whether those who stood in a queue were granted in its order, and before all those who
    /// asked later.
    fn check_order(&self) {
        for (lock, step, waiting) in &self.queues {
            let tokens = waiting
                .iter()
                .filter_map(|step| self.grants.get(&(*lock, *step)));
            let later = self
                .grants
                .range((*lock, *step)..(lock + 1, 0))
                .map(|(_, token)| token);
            let tokens: Vec<&i64> = tokens.chain(later.min()).collect();
            assert!(
                tokens.is_sorted_by(|one, next| one < next),
                "{step}: {waiting:?} {tokens:?}"
            );
        }
    }

    /// Lets so much happen, up to the end.
    fn run(mut self, actions: usize) {
        for _ in 0..actions {
            wait_until("a client that can do something", || self.act());
        }
        self.drain();
        self.check_order();
        assert!(self.grants.len() > actions / 10, "{}", self.grants.len());
        nobody_waits(self.server);
    }
}

on_every_server! {
    /// `redisson#4706`, `redisson#4822`: holds that nobody has any more.
    fn what_many_clients_are_told_fits_together(flavour) {
        let mut random = Random::new();
        let server = Server::build(flavour)
            .config("slowlog-log-slower-than", "-1")
            .config("latency-tracking", "no")
            .start();
        let used_memory = || {
            wait_until("the connections to end", || {
                server.info_number("clients", "connected_clients") == 1
            });
            server.info_number("memory", "used_memory")
        };
        History::new(&server, &mut random, 4).run(300);
        let before = used_memory();
        History::new(&server, &mut random, 16).run(3_000);
        // The server keeps up to eight clients of its own for those that a module blocks, of which
        // the few before may have needed less.
        wait_until("the memory to be freed", || used_memory() <= before + 64 * 1024);
        unload(&server);
    }
}
