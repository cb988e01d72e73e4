//! An exhaustive search: every order in which a few clients, their rounds, the nodes and the
//! messages between them can act, within bounds.
//!
//! The rounds are the real ones and the nodes are those of `node.rs`. A message or answer may be
//! lost, late, overtaken, or (so many times in all) carried out twice: once sent, it can arrive at
//! any later moment, or never. A node that crashes and keeps its state is one that messages reach
//! late, so it needs no case of its own. Time passes in ticks; a lease ends at the earliest one
//! tick before its `ttl` is over, which is the difference of clocks that rounds allow for, or at
//! any moment after.
//!
//! What must be true in every state:
//!
//! * two clients never hold the lock at once, each by the validity that it was told;
//! * a client that is told of a new hold gets a higher token than the one who held it last, and
//!   nobody is told of a hold that is older than that;
//! * where it is looked for: once every message has arrived and every client has released what it was
//!   told of, no node has a hold.
//!
//! Each search is followed by others with one rule left out, which have to find that this is not
//! true any more.

use super::node::{Fault, Node};
use crate::lock::fence::Token;
use crate::lock::lease::Ttl;
use crate::lock::time::SteadyMicros;
use crate::quorum::attempt::Attempt;
use crate::quorum::round::{Answer, Member, Message, Nodes, Outcome, Request, Round, Stage, Step};
use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;

/// Milliseconds of a tick: what rounds allow for with a short `ttl`.
const TICK: u32 = 2;

/// What a client does next. Everything but a first acquire needs one that was granted.
#[derive(Clone, Copy, Debug)]
enum Op {
    /// For so many ticks. Tried again, it is another attempt.
    Acquire(u32),
    /// For so many ticks, with or without a token.
    Renew(u32, bool),
    /// With or without a token.
    Release(bool),
}

/// The bounds of a search, and the rules that are left out.
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a misfortune of its own"
)]
#[derive(Clone, Copy)]
struct Setup {
    /// What each client does, in this order, at any time.
    scripts: [&'static [Op]; 2],
    /// The nodes that each client's rounds count as configured.
    reach: [&'static [usize]; 2],
    /// How far the clock of each client's coordinator is behind.
    behind: [u64; 2],
    /// What the nodes' highest tokens are in the beginning. Time begins at [`EPOCH`].
    highest: &'static [u64],
    /// The last tick.
    horizon: u32,
    /// How many ticks pass at once.
    step: u32,
    /// How many messages can be on their way while time passes. Lost ones are that for ever; those
    /// that have come to mean nothing do not count.
    late: usize,
    /// How often a message is carried out again.
    repeats: u8,
    /// How often a node loses its state.
    losses: u8,
    /// For how many ticks it refuses to vote then.
    delay: u32,
    /// Whether a coordinator may give up waiting for a node at any time.
    times_out: bool,
    /// Whether clients may go away before they are told.
    clients_go: bool,
    /// Whether an answer arrives as soon as it is given.
    prompt: bool,
    /// Whether what stays behind is looked for, to the last message.
    tidy: bool,
    /// The rule that is left out.
    fault: Option<Fault>,
}

/// The token of the first tick.
const EPOCH: u64 = 10;

const ALL: &[usize] = &[0, 1, 2];

/// Three nodes that have seen nothing, clocks that agree, and hardly a misfortune.
const PLAIN: Setup = Setup {
    scripts: [&[], &[]],
    reach: [ALL, ALL],
    behind: [0, 0],
    highest: &[0, 0, 0],
    horizon: 2,
    step: 1,
    late: 1,
    repeats: 0,
    losses: 0,
    delay: 2,
    times_out: false,
    clients_go: false,
    prompt: true,
    tidy: false,
    fault: None,
};

/// A message on its way to a node, or there.
#[derive(Clone, Copy, Debug)]
struct Mail {
    message: Message,
    arrived: bool,
}

/// What a round and one node have to do with each other.
#[derive(Clone, Debug, Default)]
struct Link {
    mails: Vec<Mail>,
    /// On its way back.
    answer: Option<Answer>,
}

/// A round of a client.
#[derive(Clone, Debug)]
struct Running {
    ttl: u32,
    round: Round,
    links: Vec<Link>,
    told: bool,
}

/// What a client knows.
#[derive(Clone, Debug, Default)]
struct Client {
    rounds: Vec<Rc<Running>>,
    /// The token of its last grant.
    token: Option<Token>,
    /// The first tick at which it does not rely on holding the lock any more.
    until: u32,
}

/// Everything, at one moment.
#[derive(Clone)]
struct World {
    now: u32,
    nodes: Vec<Node>,
    clients: [Client; 2],
    /// Who was told last of a hold that is not older than any other, and its token.
    last: Option<(usize, Token)>,
    repeats: u8,
    losses: u8,
    /// Whether all nodes play the same part.
    is_symmetric: bool,
    trail: Option<Rc<Trail>>,
}

/// What has happened, latest first.
struct Trail {
    event: Event,
    before: Option<Rc<Trail>>,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Tick,
    Begin {
        client: usize,
    },
    Arrive {
        client: usize,
        round: usize,
        link: usize,
        mail: usize,
        lapsed: bool,
    },
    Answer {
        client: usize,
        round: usize,
        link: usize,
    },
    TimeOut {
        client: usize,
        round: usize,
        link: usize,
    },
    Gone {
        client: usize,
        round: usize,
    },
    Loss {
        node: usize,
    },
}

/// A state that must not be, and what led to it.
struct Violation {
    what: &'static str,
    trail: Option<Rc<Trail>>,
}

impl fmt::Debug for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut events = Vec::new();
        let mut trail = self.trail.as_ref();
        while let Some(step) = trail {
            events.push(step.event);
            trail = step.before.as_ref();
        }
        writeln!(f, "{} after", self.what)?;
        for event in events.iter().rev() {
            writeln!(f, "  {event:?}")?;
        }
        Ok(())
    }
}

/// Looks at every state that can be reached, and says how many there are.
fn search(setup: &Setup) -> Result<usize, Box<Violation>> {
    let mut seen: HashSet<u64, BuildHasherDefault<Hashed>> = HashSet::default();
    let mut level = vec![World::new(setup)];
    while !level.is_empty() {
        let mut next = Vec::new();
        for world in level {
            world.for_each_event(setup, |event| {
                let mut after = world.clone();
                let trail = || {
                    let before = world.trail.clone();
                    Some(Rc::new(Trail { event, before }))
                };
                let happened = after.happen(setup, event);
                happened
                    .and_then(|()| after.is_tidy(setup))
                    .map_err(|what| {
                        let trail = trail();
                        Box::new(Violation { what, trail })
                    })?;
                if seen.insert(after.key()) && !after.is_settled(setup) {
                    after.trail = trail();
                    next.push(after);
                }
                Ok::<_, Box<Violation>>(())
            })?;
        }
        level = next;
    }
    Ok(seen.len())
}

/// For what is a hash already.
#[derive(Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

impl World {
    fn new(setup: &Setup) -> Self {
        Self {
            now: 0,
            nodes: setup
                .highest
                .iter()
                .map(|&highest| Node {
                    highest,
                    ..Node::default()
                })
                .collect(),
            clients: Default::default(),
            last: None,
            repeats: setup.repeats,
            losses: setup.losses,
            is_symmetric: setup.reach == [setup.reach[0]; 2]
                && setup.reach[0].len() == setup.highest.len(),
            trail: None,
        }
    }

    fn millis(&self) -> u32 {
        self.now * TICK
    }

    fn steady(&self) -> SteadyMicros {
        SteadyMicros(u64::from(self.millis()) * 1_000)
    }

    /// Everything that can happen now.
    fn for_each_event<E>(
        &self,
        setup: &Setup,
        mut may: impl FnMut(Event) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.now < setup.horizon && self.on_their_way() <= setup.late {
            may(Event::Tick)?;
        }
        for (node, state) in self.nodes.iter().enumerate() {
            if self.losses > 0 && *state != Node::default() {
                may(Event::Loss { node })?;
            }
        }
        for (client, (state, script)) in self.clients.iter().zip(setup.scripts).enumerate() {
            let is_idle = state.rounds.last().is_none_or(|running| running.told);
            let is_possible = match script.get(state.rounds.len()) {
                None => false,
                Some(Op::Acquire(_)) => state.until <= self.now,
                Some(_) => state.token.is_some(),
            };
            if is_idle && is_possible {
                may(Event::Begin { client })?;
            }
            for (round, running) in state.rounds.iter().enumerate() {
                let is_open = !running.told;
                let is_acquire = matches!(running.round.request, Request::Acquire { .. });
                if setup.clients_go && is_open && is_acquire {
                    may(Event::Gone { client, round })?;
                }
                for (link, (mails, member)) in
                    running.links.iter().zip(&running.round.members).enumerate()
                {
                    for (mail, state) in mails.mails.iter().enumerate() {
                        if self.is_dead(client, running, link, *state) {
                            continue;
                        }
                        let node = self.nodes[setup.reach[client][link]];
                        let lapsed = false;
                        may(Event::Arrive {
                            client,
                            round,
                            link,
                            mail,
                            lapsed,
                        })?;
                        if node
                            .hold
                            .is_some_and(|hold| self.millis() + TICK >= hold.until)
                        {
                            let lapsed = true;
                            may(Event::Arrive {
                                client,
                                round,
                                link,
                                mail,
                                lapsed,
                            })?;
                        }
                    }
                    if mails.answer.is_some() {
                        may(Event::Answer {
                            client,
                            round,
                            link,
                        })?;
                    }
                    if setup.times_out && is_open && !matches!(member, Member::Said(_)) {
                        may(Event::TimeOut {
                            client,
                            round,
                            link,
                        })?;
                    }
                }
            }
        }
        Ok(())
    }

    fn happen(&mut self, setup: &Setup, event: Event) -> Result<(), &'static str> {
        let now = self.steady();
        match event {
            Event::Tick => self.tick(setup),
            Event::Begin { client } => self.begin(setup, client),
            Event::Arrive {
                client,
                round,
                link,
                mail,
                lapsed,
            } => {
                if lapsed {
                    self.nodes[setup.reach[client][link]].hold = None;
                }
                self.arrive(setup, client, round, link, mail)
            }
            Event::Answer {
                client,
                round,
                link,
            } => {
                let running = self.running(client, round);
                let Some(answer) = running.links[link].answer.take() else {
                    return Ok(());
                };
                let steps = running.round.answered(link, answer, now);
                self.follow(setup, client, round, steps)
            }
            Event::TimeOut {
                client,
                round,
                link,
            } => {
                let running = self.running(client, round);
                running.links[link].answer = None;
                let steps = running.round.answered(link, Answer::Unknown, now);
                self.follow(setup, client, round, steps)
            }
            Event::Gone { client, round } => {
                let running = self.running(client, round);
                running.told = true;
                let steps = running.round.client_gone();
                self.follow(setup, client, round, steps)
            }
            Event::Loss { node } => {
                self.losses -= 1;
                let until = self.millis() + setup.delay * TICK;
                self.nodes[node] = Node {
                    restarting_until: Some(until),
                    ..Node::default()
                };
                self.restart(node);
                Ok(())
            }
        }
    }

    fn running(&mut self, client: usize, round: usize) -> &mut Running {
        Rc::make_mut(&mut self.clients[client].rounds[round])
    }

    fn tick(&mut self, setup: &Setup) -> Result<(), &'static str> {
        self.now += setup.step;
        for client in &mut self.clients {
            if client.until <= self.now {
                client.until = 0;
            }
        }
        for node in 0..self.nodes.len() {
            self.restart(node);
        }
        let now = self.steady();
        for client in 0..self.clients.len() {
            for round in 0..self.clients[client].rounds.len() {
                let deadline = self.clients[client].rounds[round].round.deadline();
                if deadline.is_some_and(|deadline| deadline <= now) {
                    let steps = self.running(client, round).round.passed(now);
                    self.follow(setup, client, round, steps)?;
                }
            }
        }
        Ok(())
    }

    /// A node that has waited long enough votes again.
    fn restart(&mut self, node: usize) {
        let (now, millis) = (self.now, self.millis());
        let node = &mut self.nodes[node];
        if node
            .restarting_until
            .take_if(|until| *until <= millis)
            .is_some()
        {
            node.highest = EPOCH + u64::from(now);
        }
    }

    fn begin(&mut self, setup: &Setup, client: usize) -> Result<(), &'static str> {
        let state = &self.clients[client];
        let number = state.rounds.len();
        let ticks = |ticks: u32| {
            (
                Ttl::from_millis(i64::from(ticks * TICK)).expect("small"),
                ticks,
            )
        };
        let (request, ttl) = match setup.scripts[client][number] {
            Op::Acquire(ttl) => {
                let (ttl, length) = ticks(ttl);
                let clock = EPOCH + u64::from(self.now) - setup.behind[client];
                let request = Request::Acquire {
                    ttl,
                    token: Token::new(clock).expect("small"),
                    attempt: Attempt((client * 16 + number) as u64),
                };
                (request, length)
            }
            Op::Renew(ttl, with_token) => {
                let (ttl, length) = ticks(ttl);
                let token = state.token.filter(|_| with_token);
                (Request::Renew { ttl, token }, length)
            }
            Op::Release(with_token) => {
                let token = state.token.filter(|_| with_token);
                self.clients[client].until = 0;
                (Request::Release { token }, 0)
            }
        };
        let nodes = Nodes::new(setup.reach[client].len()).expect("a few");
        let (round, steps) = Round::new(request, nodes, self.steady());
        self.clients[client].rounds.push(Rc::new(Running {
            ttl: ttl * TICK,
            round,
            links: vec![Link::default(); nodes.count()],
            // Nobody waits for the end of a release.
            told: matches!(request, Request::Release { .. }),
        }));
        self.follow(setup, client, number, steps)
    }

    fn arrive(
        &mut self,
        setup: &Setup,
        client: usize,
        round: usize,
        link: usize,
        mail: usize,
    ) -> Result<(), &'static str> {
        let millis = self.millis();
        let running = Rc::make_mut(&mut self.clients[client].rounds[round]);
        let Mail { message, arrived } = &mut running.links[link].mails[mail];
        if std::mem::replace(arrived, true) {
            self.repeats -= 1;
        }
        let owner = u8::try_from(client).expect("two");
        let node = &mut self.nodes[setup.reach[client][link]];
        let answer = node.handle(*message, owner, running.ttl, millis, setup.fault);
        let is_awaited = match running.round.members[link] {
            Member::Asked => mail == 0,
            Member::Settling => matches!(running.round.stage, Stage::Settling(_)) && mail == 1,
            Member::Said(_) => false,
        };
        if !is_awaited || running.round.stage == Stage::Over {
            return Ok(());
        }
        running.links[link].answer = Some(answer);
        if setup.prompt {
            return self.happen(
                setup,
                Event::Answer {
                    client,
                    round,
                    link,
                },
            );
        }
        Ok(())
    }

    fn follow(
        &mut self,
        setup: &Setup,
        client: usize,
        round: usize,
        steps: Vec<Step>,
    ) -> Result<(), &'static str> {
        for step in steps {
            let request = self.clients[client].rounds[round].round.request;
            match step {
                Step::Answer(outcome) => self.tell(setup, client, round, outcome)?,
                Step::Send {
                    message: Message::Unvote { .. },
                    ..
                } if setup.fault == Some(Fault::ReleasesOnce)
                    && matches!(request, Request::Release { .. }) => {}
                Step::Send {
                    node,
                    message: Message::Settle { to, .. },
                } if setup.fault == Some(Fault::SettlesNothing) => {
                    let now = self.steady();
                    let running = self.running(client, round);
                    let steps = running.round.answered(node, Answer::Granted(to), now);
                    self.follow(setup, client, round, steps)?;
                }
                Step::Send { node, message } => {
                    self.running(client, round).links[node].mails.push(Mail {
                        message,
                        arrived: false,
                    });
                }
            }
        }
        // Answers on their way to a round that is over are of no consequence.
        if self.clients[client].rounds[round].round.is_done() {
            for link in &mut self.running(client, round).links {
                link.answer = None;
            }
        }
        Ok(())
    }

    fn tell(
        &mut self,
        setup: &Setup,
        client: usize,
        round: usize,
        outcome: Outcome,
    ) -> Result<(), &'static str> {
        let now = self.now;
        let running = self.running(client, round);
        let is_release = matches!(running.round.request, Request::Release { .. });
        assert!(!running.told || is_release, "told twice");
        running.told = true;
        let lease = running.ttl;
        let (Outcome::Acquired { token, validity } | Outcome::Renewed { token, validity }) =
            outcome
        else {
            return Ok(());
        };
        let validity = u32::try_from(validity).expect("short");
        let valid = if setup.fault == Some(Fault::IgnoresValidity) {
            lease
        } else {
            validity
        };
        // What is less than a tick is not lost.
        let until = now + valid.div_ceil(TICK);
        let state = &mut self.clients[client];
        state.until = state.until.max(until);
        state.token = Some(token);
        if self.clients[1 - client].until > now {
            return Err("two holders");
        }
        if self
            .last
            .is_some_and(|(holder, last)| token < last || token == last && holder != client)
        {
            return Err("a token that does not rise");
        }
        self.last = Some((client, token));
        Ok(())
    }

    /// Whether no node has a hold that everybody is done with.
    fn is_tidy(&self, setup: &Setup) -> Result<(), &'static str> {
        let is_over = |(state, script): (&Client, &[Op])| {
            // A client that is granted nothing has nothing to release.
            let is_through = state.rounds.len() == script.len()
                || state.token.is_none() && !state.rounds.is_empty();
            is_through
                && state.rounds.iter().all(|running| {
                    let has_answers = running.links.iter().any(|link| link.answer.is_some());
                    running.round.is_done() && running.told && !has_answers
                })
        };
        let is_checked = setup.tidy
            && self.on_their_way() == 0
            && self.clients.iter().zip(setup.scripts).all(is_over);
        if is_checked && self.nodes.iter().any(|node| node.hold.is_some()) {
            return Err("a hold that stays behind");
        }
        Ok(())
    }

    /// Whether no client will be told anything any more.
    fn is_settled(&self, setup: &Setup) -> bool {
        if setup.tidy {
            return false;
        }
        self.clients
            .iter()
            .zip(setup.scripts)
            .all(|(state, script)| {
                state.rounds.len() == script.len()
                    && state.rounds.last().is_none_or(|running| running.told)
            })
    }

    /// Whether it makes no difference any more if a message arrives.
    fn is_dead(&self, client: usize, running: &Running, link: usize, mail: Mail) -> bool {
        if self.repeats > 0 {
            return false;
        }
        if mail.arrived {
            return true;
        }
        let is_awaited =
            !running.round.is_done() && !matches!(running.round.members[link], Member::Said(_));
        let grants = |message| matches!(message, Message::Vote { .. } | Message::Relock { .. });
        let may_be_granted = || {
            let rounds = self.clients[client].rounds.iter();
            let mut mails = rounds.flat_map(|running| &running.links[link].mails);
            mails.any(|mail| !mail.arrived && grants(mail.message))
        };
        let holds = || {
            let hold = self.nodes[link].hold;
            hold.is_some_and(|hold| usize::from(hold.owner) == client)
        };
        // Where nodes and links have different numbers, nothing is said to be dead.
        self.is_symmetric && !is_awaited && !grants(mail.message) && !holds() && !may_be_granted()
    }

    /// The number of messages on their way.
    fn on_their_way(&self) -> usize {
        let mut count = 0;
        for (client, state) in self.clients.iter().enumerate() {
            for running in &state.rounds {
                for (index, link) in running.links.iter().enumerate() {
                    let mails = link.mails.iter().filter(|mail| !mail.arrived);
                    count += mails
                        .filter(|mail| !self.is_dead(client, running, index, **mail))
                        .count();
                }
            }
        }
        count
    }

    /// A hash of what tells this state from others. The order of the nodes does not, if all rounds
    /// count all of them.
    fn key(&self) -> u64 {
        let mut nodes: Vec<u64> = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let mut hash = Hash::default();
            hash.put(node.highest);
            hash.put(node.restarting_until.map_or(0, u64::from));
            hash.put(node.ended);
            if let Some(hold) = node.hold {
                hash.put(hold.owner.into());
                hash.put(hold.attempt.0);
                hash.put(hold.token.get());
                hash.put(hold.until.into());
            }
            for (client, state) in self.clients.iter().enumerate() {
                for running in &state.rounds {
                    self.put_link(&mut hash, client, running, index);
                }
            }
            nodes.push(hash.0);
        }
        if self.is_symmetric {
            nodes.sort_unstable();
        }
        let mut hash = Hash::default();
        for node in nodes {
            hash.put(node);
        }
        hash.put(self.now.into());
        hash.put(self.repeats.into());
        hash.put(self.losses.into());
        let token = |token: Option<Token>| token.map_or(0, Token::get);
        hash.put(self.last.map_or(0, |(client, _)| client as u64));
        hash.put(token(self.last.map(|(_, token)| token)));
        for state in &self.clients {
            hash.put(state.until.into());
            hash.put(token(state.token));
            hash.put(state.rounds.len() as u64);
            for Running { round, told, .. } in state.rounds.iter().map(Rc::as_ref) {
                hash.put(u64::from(*told));
                hash.put(round.start.0);
                match round.stage {
                    Stage::Open => hash.put(1),
                    Stage::Settling(token) => hash.put(token.get()),
                    Stage::Held(token, attempt) => {
                        hash.put(token.get());
                        hash.put(attempt.0);
                    }
                    Stage::Ended(attempt) => {
                        hash.put(3);
                        hash.put(attempt.0);
                    }
                    Stage::Over => hash.put(2),
                }
            }
        }
        hash.0
    }

    fn put_link(&self, hash: &mut Hash, client: usize, running: &Running, index: usize) {
        hash.put(LINK);
        let Some(link) = running.links.get(index) else {
            return;
        };
        // A round that is over does not look at what its nodes said.
        if !running.round.is_done() {
            match running.round.members[index] {
                Member::Asked => hash.put(1),
                Member::Settling => hash.put(2),
                Member::Said(answer) => hash.answer(answer),
            }
            match link.answer {
                None => hash.put(3),
                Some(answer) => hash.answer(answer),
            }
        }
        for mail in &link.mails {
            if self.is_dead(client, running, index, *mail) {
                continue;
            }
            hash.put(u64::from(mail.arrived));
            match mail.message {
                Message::Vote { .. } => hash.put(1),
                Message::Settle { from, to, .. } => {
                    hash.put(2);
                    hash.put(from.get());
                    hash.put(to.get());
                }
                Message::Unvote { .. } => hash.put(3),
                Message::Renew { .. } => hash.put(4),
                Message::Relock {
                    token, at, within, ..
                } => {
                    hash.put(5);
                    hash.put(token.get());
                    hash.put(at.0.unsigned_abs());
                    hash.put(within);
                }
                Message::Release { .. } => hash.put(6),
            }
        }
    }
}

/// Keeps apart what belongs to different rounds.
const LINK: u64 = 1 << 40;

/// A quick hash of many small numbers.
#[derive(Default)]
struct Hash(u64);

impl Hash {
    fn put(&mut self, value: u64) {
        let mixed = (self.0 ^ value.wrapping_add(0x9E37_79B9_7F4A_7C15))
            .wrapping_mul(0xD6E8_FEB8_6659_FD93);
        self.0 = mixed ^ (mixed >> 32);
    }

    fn answer(&mut self, answer: Answer) {
        match answer {
            Answer::Granted(token) => {
                self.put(10);
                self.put(token.get());
            }
            Answer::Renewed { token, attempt } => {
                self.put(11);
                self.put(token.get());
                self.put(attempt.0);
            }
            Answer::NoLock { at } => {
                self.put(12);
                self.put(at.0.unsigned_abs());
            }
            Answer::Refused => self.put(13),
            Answer::Released(attempt) => {
                self.put(14);
                self.put(attempt.0);
            }
            Answer::NotYours => self.put(15),
            Answer::Failed => self.put(16),
            Answer::Unknown => self.put(17),
        }
    }
}

const ONCE: &[Op] = &[Op::Acquire(3)];
const RELEASES: &[Op] = &[Op::Acquire(3), Op::Release(true)];

/// Adds to [`Setup::late`] of the searches that find nothing.
const MORE_LATE: &str = "REDIS_LOCK_SEARCH_LATE";

/// Two clients, a node that is ahead of all clocks, and a coordinator whose clock is behind.
const BASE: Setup = Setup {
    scripts: [ONCE, ONCE],
    highest: &[EPOCH + 3, 0, 0],
    behind: [0, 1],
    ..PLAIN
};

/// Searches all of it, and with more messages late if the environment says so.
#[track_caller]
fn holds(setup: Setup) {
    let more = std::env::var(MORE_LATE).map_or(0, |more| more.parse().expect("a number"));
    let late = setup.late + more;
    let states = search(&Setup { late, ..setup }).expect("what must be true");

    assert!(states > 10, "only {states} states");
}

#[track_caller]
fn fails(setup: Setup, what: &str) {
    let violation = search(&setup).expect_err("a rule that nothing depends on");
    assert_eq!(violation.what, what, "{violation:?}");
}

const TWO_HOLDERS: &str = "two holders";
const NO_RISE: &str = "a token that does not rise";
const LEFT: &str = "a hold that stays behind";

#[test]
fn two_rounds_whose_answers_are_late() {
    let prompt = false;
    holds(Setup { prompt, ..BASE });
}

#[test]
fn two_rounds_that_give_up_on_nodes() {
    let times_out = true;
    holds(Setup { times_out, ..BASE });
}

#[test]
fn two_rounds_whose_clients_go() {
    let clients_go = true;
    let late = 2;
    holds(Setup {
        late,
        clients_go,
        ..BASE
    });
}

#[test]
fn two_rounds_with_a_message_that_arrives_twice() {
    let late = 2;
    holds(Setup {
        repeats: 1,
        late,
        ..BASE
    });
}

#[test]
fn a_round_that_is_tried_again() {
    let scripts = [&[Op::Acquire(3), Op::Acquire(3)], ONCE];
    holds(Setup { scripts, ..BASE });
}

#[test]
fn five_nodes() {
    const FIVE: &[usize] = &[0, 1, 2, 3, 4];
    holds(Setup {
        reach: [FIVE, FIVE],
        highest: &[EPOCH + 3, 0, 0, 0, 0],
        late: 2,
        ..BASE
    });
}

#[test]
fn a_majority_is_one_of_those_configured() {
    let reach: [&[usize]; 2] = [&[0], &[1, 2]];
    fails(Setup { reach, ..BASE }, TWO_HOLDERS);
}

#[test]
fn a_lease_has_to_outlast_what_a_client_is_told() {
    let fault = Some(Fault::IgnoresValidity);
    fails(Setup { fault, ..BASE }, TWO_HOLDERS);
}

#[test]
fn a_majority_has_to_store_the_token() {
    let fault = Some(Fault::SettlesNothing);
    fails(Setup { fault, ..BASE }, NO_RISE);
}

#[test]
fn a_node_has_to_grant_more_than_it_was_told_to_store() {
    let scripts = [RELEASES, ONCE];
    let late = 2;
    let right = Setup {
        scripts,
        late,
        ..BASE
    };
    holds(right);
    let fault = Some(Fault::SeesOnlyOwn);
    fails(Setup { fault, ..right }, NO_RISE);
}

#[test]
fn a_release_under_its_token_ends_no_later_hold() {
    const WITH: &[Op] = &[Op::Acquire(3), Op::Release(true), Op::Acquire(3)];
    const WITHOUT: &[Op] = &[Op::Acquire(3), Op::Release(false), Op::Acquire(3)];
    let right = Setup {
        scripts: [WITH, ONCE],
        highest: &[0, 0, 0],
        step: 2,
        late: 0,
        ..BASE
    };
    holds(right);
    fails(
        Setup {
            scripts: [WITHOUT, ONCE],
            ..right
        },
        TWO_HOLDERS,
    );
}

#[test]
fn what_settles_a_token_grants_no_lock() {
    let right = Setup {
        scripts: [&[Op::Acquire(3), Op::Renew(3, true)], RELEASES],
        step: 2,
        late: 0,
        repeats: 1,
        ..BASE
    };
    holds(right);
    let fault = Some(Fault::SettlesAnything);
    fails(Setup { fault, ..right }, NO_RISE);
}

#[test]
fn a_node_is_locked_again_in_time_or_not() {
    let right = Setup {
        scripts: [
            &[Op::Acquire(3), Op::Renew(3, true), Op::Renew(3, true)],
            RELEASES,
        ],
        highest: &[0, 0, 0],
        step: 2,
        ..BASE
    };
    holds(right);
    let fault = Some(Fault::RelocksAtAnyTime);
    fails(Setup { fault, ..right }, NO_RISE);
}

#[test]
fn a_renewal_does_not_shorten_a_lease() {
    let right = Setup {
        scripts: [&[Op::Acquire(6), Op::Renew(2, true)], ONCE],
        late: 2,
        ..BASE
    };
    holds(right);
    let fault = Some(Fault::Shortens);
    fails(Setup { fault, ..right }, TWO_HOLDERS);
}

#[test]
fn a_node_that_lost_its_state_waits_before_it_votes() {
    let right = Setup {
        highest: &[0, 0, 0],
        horizon: 4,
        late: 2,
        losses: 1,
        ..BASE
    };
    holds(right);
    fails(Setup { delay: 0, ..right }, TWO_HOLDERS);
}

/// What a restart cannot make good: the delay is for clocks that differ by less than it.
#[test]
fn a_token_further_ahead_than_the_delay_is_forgotten_with_the_state() {
    fails(
        Setup {
            horizon: 4,
            losses: 1,
            ..BASE
        },
        NO_RISE,
    );
}

/// All that is sent arrives before time passes.
const TIDY: Setup = Setup {
    scripts: [RELEASES, RELEASES],
    horizon: 0,
    tidy: true,
    ..BASE
};

#[test]
fn nothing_stays_behind_when_every_message_has_arrived() {
    holds(Setup {
        clients_go: true,
        ..TIDY
    });
    let renews = &[Op::Acquire(3), Op::Renew(3, true), Op::Release(true)];
    holds(Setup {
        scripts: [renews, RELEASES],
        highest: &[0, 0, 0],
        ..TIDY
    });
    // A release that ends with its answer leaves those behind that had another token, or no vote yet.
    let fault = Some(Fault::ReleasesOnce);
    fails(Setup { fault, ..TIDY }, LEFT);
}

#[test]
fn a_node_that_forgets_what_has_ended_keeps_a_late_vote() {
    let right = Setup { repeats: 1, ..TIDY };
    holds(right);
    let fault = Some(Fault::ForgetsEnds);
    fails(Setup { fault, ..right }, LEFT);
}
