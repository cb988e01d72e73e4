//! Whether a history can be true of locks that keep their promises.
//!
//! [`check`] is a function of what was written down and knows nothing of servers. It never guesses:
//! what it calls a violation is one, however slow the machine was.
//!
//! - **Who holds what** is read off the stream. A hold lasts until the stream ends it, or until its
//!   lease has lapsed. Nothing in the stream says what time it was, but a grant does: its deadline
//!   less the `ttl` that was asked for is when it was made, to the millisecond, by the server's clock.
//!   A lease has lapsed when that clock is past its deadline, so another grant must not come at the
//!   deadline or before. Between grants, the messages of requests and the marks give bounds. A hold
//!   that ends must have been released by its owner, deleted by hand, have lapsed by the latest
//!   moment that it can have been, or have been granted to a client that was gone.
//! - **Who was granted** is known by the token, which is told to the client and stands in the stream. A
//!   grant that nobody was told of must belong to a request that was killed, hung up or unblocked.
//! - **Who came first** is the order of the messages before the requests.
//! - **Who waits** at a moment is known of a request that has arrived, if it is granted later, or if
//!   it is sent away later, or if a mark that came back before its time-out was over comes later. Of
//!   one whose connection is gone it is believed only if it was once seen in a queue: it may have been
//!   refused. A request that is granted while another waits that came before it, and wants one of the
//!   same locks, has overtaken.
//!
//! A request of the owner that holds the lock already is no grant but a re-entry, and overtakes nobody.
//! The same owner's requests may be granted together with the first of them.

use super::record::{Event, History, KEYS, Kind, Mode, Op, Outcome, Snapshot, What};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// What was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// Somebody holds a lock beside one who has it alone.
    Beside,
    /// More hold a lock than the last of them wanted.
    OverLimit,
    /// Several locks that were granted in part, or one after the other.
    InPart,
    /// A later request was granted first.
    Overtaken,
    /// A token is not higher than those before it.
    Token,
    /// A grant that nobody was told of who could have been.
    Untold,
    /// Somebody was told of a grant that there was not.
    Unfounded,
    /// A grant went to two requests, or a request got two.
    Twice,
    /// A lease is not as long as was asked for.
    Lease,
    /// A hold ended or changed and nobody had a right to that.
    Lost,
    /// An answer that does not fit to what happened.
    Answer,
    /// A queue is not the one that it should be.
    Queue,
    /// Somebody waits for a lock that he could have.
    Asleep,
    /// A request never ended.
    Open,
    /// Something is left when everybody is gone.
    LeftBehind,
}

/// What is wrong, and around which event.
#[derive(Clone, Debug)]
pub(super) struct Violation {
    pub(super) rule: Rule,
    pub(super) at: Option<usize>,
    pub(super) what: String,
}

/// How much there was to check.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) ops: usize,
    pub(super) grants: usize,
    /// Grants to requests that had waited.
    pub(super) waited: usize,
    /// Of these: of shares beside other shares.
    pub(super) shared: usize,
    /// Of these: of several locks.
    pub(super) several: usize,
    /// Grants that came when a lease had lapsed.
    pub(super) lapsed: usize,
    /// Grants that nobody was told of.
    pub(super) untold: usize,
    /// Pairs of a grant and a request that waits, which came later.
    pub(super) compared: usize,
    /// Requests that left without a grant.
    pub(super) left: usize,
}

impl Counts {
    /// Adds another run to this one.
    pub(super) fn add(&mut self, other: &Self) {
        self.ops += other.ops;
        self.grants += other.grants;
        self.waited += other.waited;
        self.shared += other.shared;
        self.several += other.several;
        self.lapsed += other.lapsed;
        self.untold += other.untold;
        self.compared += other.compared;
        self.left += other.left;
    }
}

/// Who holds a lock, as far as one who waits has to know.
#[derive(Clone, Debug, Default)]
pub(super) struct Room {
    /// Whether somebody has it alone.
    pub(super) is_taken: bool,
    /// Who have a share.
    pub(super) sharing: Vec<String>,
}

/// A request that could be granted and waits, if there is one: it is the head of all its queues, and
/// there is room for it.
pub(super) fn asleep(
    ops: &[Op],
    queues: &[Vec<usize>; KEYS.len()],
    rooms: &[Room; KEYS.len()],
) -> Option<usize> {
    let heads = queues.iter().filter_map(|queue| queue.first().copied());
    heads.into_iter().find(|head| {
        let op = &ops[*head];
        op.keys.iter().all(|key| {
            let room = &rooms[*key];
            queues[*key].first() == Some(head)
                && !room.is_taken
                && match op.mode() {
                    Some(Mode::Shared) => !room.sharing.contains(&op.owner),
                    Some(Mode::Limit(limit)) => {
                        room.sharing.len() < limit && !room.sharing.contains(&op.owner)
                    }
                    _ => room.sharing.is_empty(),
                }
        })
    })
}

/// Looks for the first thing that is wrong.
pub(super) fn check(history: &History) -> Result<Counts, Violation> {
    let mut checker = Checker::new(history);
    checker.find_grants()?;
    checker.find_who_was_granted()?;
    checker.find_times()?;
    checker.replay()?;
    checker.check_answers()?;
    Ok(checker.counts)
}

/// A grant of one lock, or of several together, by its token.
#[derive(Debug)]
struct Grant {
    owner: String,
    unit: usize,
    at: usize,
    is_shared: bool,
    /// For each lock the holds now, and how many there have been.
    holds: BTreeMap<usize, (usize, usize)>,
    /// Whether some of the locks came later.
    is_split: bool,
    /// The request that it was granted to. Others of `told` and `untold` are re-entries.
    first: usize,
    told: Vec<usize>,
    /// Requests that may have missed that they were granted.
    untold: Vec<usize>,
    /// More such requests than there are grants: it is any of these, and nothing is said of which.
    maybe: Vec<usize>,
}

/// A hold, as the stream has it.
#[derive(Clone, Debug)]
struct Hold {
    owner: String,
    token: i64,
    holds: usize,
    deadline: i64,
    is_shared: bool,
    since: usize,
}

/// A request that is being run, and what it has done.
struct Running {
    op: usize,
    /// For each lock whether the same could have happened without the request.
    did: BTreeMap<usize, bool>,
}

struct Checker<'h> {
    history: &'h History,
    /// Where each request arrived, if it did.
    began: Vec<Option<usize>>,
    marks: Vec<Option<usize>>,
    grants: BTreeMap<i64, Grant>,
    /// The token that each request was granted.
    tokens: Vec<Option<i64>>,
    /// Where requests may have been granted that nobody was told of.
    perhaps_granted: BTreeMap<usize, usize>,
    /// Bounds of the time at each event.
    low: Vec<i64>,
    high: Vec<i64>,
    /// When grants were made, as their deadlines tell it.
    made: Vec<(usize, i64)>,
    counts: Counts,
}

type Checked = Result<(), Violation>;

impl<'h> Checker<'h> {
    fn new(history: &'h History) -> Self {
        let mut began = vec![None; history.ops.len()];
        let mut marks = vec![None; history.marks.len()];
        for (at, event) in history.events.iter().enumerate() {
            match event.what {
                What::Began(op) => began[op] = Some(at),
                What::Mark(mark) => marks[mark] = Some(at),
                _ => {}
            }
        }
        Self {
            history,
            began,
            marks,
            grants: BTreeMap::new(),
            tokens: vec![None; history.ops.len()],
            perhaps_granted: BTreeMap::new(),
            low: Vec::new(),
            high: Vec::new(),
            made: Vec::new(),
            counts: Counts {
                ops: history.ops.len(),
                ..Counts::default()
            },
        }
    }

    fn ops(&self) -> &'h [Op] {
        &self.history.ops
    }

    /// Something is wrong at an event.
    fn wrong<T>(&self, rule: Rule, at: usize, what: &str) -> Result<T, Violation> {
        Err(Violation {
            rule,
            at: Some(at),
            what: format!("{what}: {:?}", self.history.events[at]),
        })
    }

    /// Something is wrong with a request.
    fn wrong_of<T>(&self, rule: Rule, op: usize, what: &str) -> Result<T, Violation> {
        Err(Violation {
            rule,
            at: self.began[op],
            what: format!("{what}: {op} {:?}", self.ops()[op]),
        })
    }

    /// Collects the grants in the stream.
    fn find_grants(&mut self) -> Checked {
        let mut highest = 0;
        for (at, event) in self.history.events.iter().enumerate() {
            let (key, token, holds, owner, is_shared) = match &event.what {
                What::Record {
                    key,
                    token,
                    holds,
                    owner,
                    ..
                } => (*key, *token, *holds, owner, false),
                What::Share {
                    key, token, owner, ..
                } => (*key, *token, 1, owner, true),
                _ => continue,
            };
            if let Some(grant) = self.grants.get_mut(&token) {
                if grant.owner != *owner || grant.is_shared || is_shared {
                    return self.wrong(Rule::Token, at, "one token for two grants");
                }
                grant.is_split |= !grant.holds.contains_key(&key) && grant.unit != event.unit;
                let (now, ever) = grant.holds.entry(key).or_insert((0, 0));
                *ever += holds.saturating_sub(*now);
                *now = holds;
                continue;
            }
            if token <= highest {
                return self.wrong(Rule::Token, at, "a token that is not the highest");
            }
            highest = token;
            self.grants.insert(
                token,
                Grant {
                    owner: owner.clone(),
                    unit: event.unit,
                    at,
                    is_shared,
                    holds: BTreeMap::from([(key, (holds, holds))]),
                    is_split: false,
                    first: usize::MAX,
                    told: Vec::new(),
                    untold: Vec::new(),
                    maybe: Vec::new(),
                },
            );
        }
        Ok(())
    }

    /// Finds out for each grant which requests have it.
    fn find_who_was_granted(&mut self) -> Checked {
        for (index, op) in self.ops().iter().enumerate() {
            let Outcome::Granted(token) = op.outcome else {
                continue;
            };
            let has_arrived = self.began[index].is_some();
            match self.grants.get_mut(&token) {
                Some(grant) if has_arrived && grant.owner == op.owner => {
                    grant.told.push(index);
                    self.tokens[index] = Some(token);
                }
                _ => return self.wrong_of(Rule::Unfounded, index, "told of no grant"),
            }
        }
        let mut missed: BTreeMap<&str, BTreeSet<(usize, usize)>> = BTreeMap::new();
        for (index, op) in self.ops().iter().enumerate() {
            if let Some(began) = self.began[index].filter(|_| op.may_have_missed_a_grant()) {
                missed.entry(&op.owner).or_default().insert((began, index));
            }
        }
        for (token, mut grant) in std::mem::take(&mut self.grants) {
            let missed = missed.entry(self.owner_of(&grant)).or_default();
            self.find_holders_of(&mut grant, missed)?;
            for op in &grant.untold {
                self.tokens[*op] = Some(token);
            }
            for op in &grant.maybe {
                let granted = self.perhaps_granted.entry(*op).or_insert(grant.at);
                *granted = grant.at.min(*granted);
            }
            self.counts.untold += usize::from(!grant.untold.is_empty());
            self.grants.insert(token, grant);
        }
        Ok(())
    }

    /// The owner of a grant, as the history has it.
    fn owner_of(&self, grant: &Grant) -> &'h str {
        match &self.history.events[grant.at].what {
            What::Record { owner, .. } | What::Share { owner, .. } => owner,
            _ => "",
        }
    }

    /// Finds the request that a grant is for and its re-entries, among those who were told and those
    /// of the same owner who may have missed that they were granted.
    fn find_holders_of(&self, grant: &mut Grant, missed: &mut BTreeSet<(usize, usize)>) -> Checked {
        let ops = self.ops();
        for index in &grant.told {
            let is_reentrant = ops[*index].mode() == Some(Mode::Reentrant);
            let has_all = ops[*index]
                .keys
                .iter()
                .all(|key| grant.holds.contains_key(key));
            if !has_all || !is_reentrant && !self.is_for_all(grant, *index) {
                return self.wrong_of(Rule::InPart, *index, "not all of the locks");
            }
        }
        let (untold, maybe) = self.find_untold(grant, missed)?;
        let all = || grant.told.iter().chain(&untold);
        let first = all()
            .filter(|op| self.is_for_all(grant, **op) && self.came_before(grant, **op))
            .min_by_key(|op| self.began[**op])
            .copied();
        let Some(first) = first else {
            return self.wrong(Rule::Unfounded, grant.at, "granted before it was asked for");
        };
        if let Some(other) =
            all().find(|op| **op != first && ops[**op].mode() != Some(Mode::Reentrant))
        {
            return self.wrong_of(Rule::Twice, *other, "the grant of another request");
        }
        if grant.is_split {
            return self.wrong(Rule::InPart, grant.at, "not granted together");
        }
        (grant.first, grant.untold, grant.maybe) = (first, untold, maybe);
        Ok(())
    }

    /// Whether a request wants just the locks of a grant.
    fn is_for_all(&self, grant: &Grant, op: usize) -> bool {
        let keys = &self.ops()[op].keys;
        keys.len() == grant.holds.len() && keys.iter().all(|key| grant.holds.contains_key(key))
    }

    /// Whether a request came before a grant.
    fn came_before(&self, grant: &Grant, op: usize) -> bool {
        self.began[op].is_some_and(|began| began < grant.at)
    }

    /// Finds the requests that have a grant and were not told, among those of the same owner that may
    /// have missed it. Where there are more of them than have it, all those come second.
    fn find_untold(
        &self,
        grant: &Grant,
        missed: &mut BTreeSet<(usize, usize)>,
    ) -> Result<(Vec<usize>, Vec<usize>), Violation> {
        let ops = self.ops();
        let is_for_all = |op: &usize| self.is_for_all(grant, *op);
        let came_before = |op: &usize| self.came_before(grant, *op);
        let lacking = |key: &usize, told: &[usize], untold: &[usize]| {
            let ever = grant.holds[key].1;
            let known = told
                .iter()
                .chain(untold)
                .filter(|op| ops[**op].keys.contains(key))
                .count();
            ever.checked_sub(known)
        };
        let (mut untold, mut maybe) = (Vec::new(), Vec::new());
        for key in grant.holds.keys() {
            loop {
                match lacking(key, &grant.told, &untold) {
                    Some(0) => break,
                    None => {
                        return self.wrong(Rule::Twice, grant.at, "more told than granted");
                    }
                    Some(_) => {}
                }
                let holders = || grant.told.iter().chain(&untold);
                let is_reentrant = |op: &usize| ops[*op].mode() == Some(Mode::Reentrant);
                // The first may be reentrant itself.
                let has_first = holders().any(|op| is_for_all(op) && came_before(op));
                let other = holders().find(|op| !is_reentrant(op)).copied();
                // One who is not reentrant was the first of all.
                let is_behind =
                    |op: &usize| other.is_none_or(|other| self.began[other] < self.began[*op]);
                let is_before_all =
                    |op: &usize| holders().all(|other| self.began[*op] < self.began[*other]);
                let fits = |op: &usize| {
                    let is_gone = ops[*op]
                        .sent_away
                        .is_some_and(|(by, _)| self.began[by] < Some(grant.at));
                    ops[*op].keys.contains(key)
                        && !is_gone
                        && ops[*op].mode().is_some_and(Mode::is_shared) == grant.is_shared
                        && if is_reentrant(op) {
                            is_behind(op) && (has_first || is_for_all(op) && came_before(op))
                        } else {
                            other.is_none()
                                && is_before_all(op)
                                && is_for_all(op)
                                && came_before(op)
                        }
                };
                let all: Vec<(usize, usize)> =
                    missed.iter().filter(|(_, op)| fits(op)).copied().collect();
                if all.len() > 1 {
                    maybe.extend(all.iter().map(|(_, op)| *op));
                }
                // The first that will be gone, so that those are left that later grants can be for.
                let found = all.into_iter().min_by_key(|(began, op)| {
                    let end = ops[*op].sent_away.and_then(|(by, _)| self.began[by]);
                    (end.unwrap_or(usize::MAX), *began)
                });
                let Some(found) = found else {
                    // Part of several locks, if there is one who wanted those and more.
                    let wanted_more = ops.iter().enumerate().any(|(op, wanted)| {
                        wanted.owner == grant.owner
                            && wanted.mode().is_some()
                            && came_before(&op)
                            && wanted.may_have_missed_a_grant()
                            && wanted.keys.len() > grant.holds.len()
                            && grant.holds.keys().all(|key| wanted.keys.contains(key))
                    });
                    let rule = if wanted_more {
                        Rule::InPart
                    } else {
                        Rule::Untold
                    };
                    return self.wrong(rule, grant.at, "nobody was told");
                };
                missed.remove(&found);
                untold.push(found.1);
            }
        }
        Ok((untold, maybe))
    }

    /// Finds bounds for the time at each event: it never goes back.
    fn find_times(&mut self) -> Checked {
        let count = self.history.events.len();
        (self.low, self.high) = (vec![i64::MIN; count], vec![i64::MAX; count]);
        for (at, event) in self.history.events.iter().enumerate() {
            match &event.what {
                What::Began(op) => self.low[at] = self.ops()[*op].sent,
                What::Mark(mark) => (self.low[at], self.high[at]) = self.history.marks[*mark],
                What::Record {
                    token,
                    deadline,
                    holds: 1,
                    ..
                } => {
                    let grant = &self.grants[token];
                    // Later records of the same hold have the longest of several leases.
                    let is_first = grant.unit == event.unit;
                    if is_first && grant.maybe.is_empty() {
                        self.made.push((at, deadline - self.ttl_of(grant)));
                    }
                }
                What::Share {
                    token, deadline, ..
                } => {
                    let grant = &self.grants[token];
                    if grant.maybe.is_empty() {
                        self.made.push((at, deadline - self.ttl_of(grant)));
                    }
                }
                _ => {}
            }
        }
        self.spread_times();
        for (at, made) in self.made.clone() {
            if made < self.low[at] || made > self.high[at] {
                return self.wrong(Rule::Lease, at, "a lease that is too short or too long");
            }
            (self.low[at], self.high[at]) = (made, made);
        }
        self.spread_times();
        Ok(())
    }

    fn spread_times(&mut self) {
        for at in 1..self.low.len() {
            self.low[at] = self.low[at].max(self.low[at - 1]);
        }
        for at in (1..self.high.len()).rev() {
            self.high[at - 1] = self.high[at - 1].min(self.high[at]);
        }
    }

    /// The ttl that a grant was asked for with.
    fn ttl_of(&self, grant: &Grant) -> i64 {
        match self.ops()[grant.first].kind {
            Kind::Acquire { ttl, .. } => ttl,
            _ => 0,
        }
    }

    /// Up to which event a request is known to wait, from its arrival on.
    fn waits_until(&self, op: usize) -> Option<usize> {
        let began = self.began[op]?;
        let asked = &self.ops()[op];
        let Kind::Acquire { block, .. } = asked.kind else {
            return None;
        };
        if let Some(token) = self.tokens[op] {
            let grant = &self.grants[&token];
            if !grant.maybe.contains(&op) {
                return Some(grant.at.max(began));
            }
        }
        let block = block?;
        let has_waited = match &asked.outcome {
            Outcome::Gone => asked.was_seen,
            Outcome::Nil => true,
            Outcome::Error(code) => code == "UNBLOCKED",
            _ => false,
        };
        if !has_waited {
            return Some(began);
        }
        let left_by_itself = block > 0 || asked.sent_away.is_none();
        let stayed = match asked.stayed {
            _ if !left_by_itself => usize::MAX,
            Some(mark) => self.marks[mark]?,
            None => began,
        };
        let sent_away = match asked.sent_away {
            Some((by, _)) => self.began[by]?,
            None => usize::MAX,
        };
        let perhaps = self.perhaps_granted.get(&op).copied();
        Some(stayed.min(sent_away).min(perhaps.unwrap_or(usize::MAX)))
    }

    /// Follows the stream.
    fn replay(&mut self) -> Checked {
        let mut holds: [Vec<Hold>; KEYS.len()] = Default::default();
        let mut running: Option<Running> = None;
        // Those who have arrived, with the event up to which they are known to wait.
        let mut waiting: Vec<(usize, usize)> = Vec::new();
        let ends: BTreeSet<usize> = self
            .history
            .events
            .iter()
            .filter_map(|event| match event.what {
                What::Ended(op) => Some(op),
                _ => None,
            })
            .collect();
        let snapshots: BTreeMap<usize, &Snapshot> = self
            .history
            .snapshots
            .iter()
            .map(|snapshot| (snapshot.mark, snapshot))
            .collect();
        for (at, event) in self.history.events.iter().enumerate() {
            match &event.what {
                What::Began(op) => {
                    running = ends.contains(op).then(|| Running {
                        op: *op,
                        did: BTreeMap::new(),
                    });
                    self.check_deadlock(*op, &holds)?;
                    waiting.retain(|(_, until)| *until > at);
                    if let Some(until) = self.waits_until(*op).filter(|until| *until > at) {
                        waiting.push((*op, until));
                    }
                }
                What::Ended(_) => {
                    if let Some(running) = running.take() {
                        self.check_done(at, &running, &holds)?;
                    }
                }
                What::Mark(mark) => {
                    if let Some(snapshot) = snapshots.get(mark) {
                        self.check_snapshot(at, snapshot, &waiting, &holds)?;
                    }
                }
                What::Record { key, token, .. } | What::Share { key, token, .. } => {
                    let present = holds[*key].iter().any(|hold| hold.token == *token);
                    if present {
                        self.more_or_less(at, &mut holds[*key], running.as_mut())?;
                    } else {
                        self.granted(at, &mut holds[*key], &waiting, running.as_mut())?;
                    }
                }
                What::ShareDeadline { key, deadline, .. } | What::KeyDeadline { key, deadline } => {
                    self.renewed(at, *key, *deadline, &mut holds, running.as_mut())?;
                }
                What::Unshared { key, owner } => {
                    let index = holds[*key]
                        .iter()
                        .position(|hold| hold.is_shared && hold.owner == *owner);
                    let Some(index) = index else {
                        return self.wrong(Rule::Lost, at, "no such share");
                    };
                    let hold = holds[*key].remove(index);
                    self.check_end(at, *key, &hold, running.as_mut(), Rule::Lost)?;
                }
                What::Deleted { key } => {
                    for hold in std::mem::take(&mut holds[*key]) {
                        self.check_end(at, *key, &hold, running.as_mut(), Rule::Lost)?;
                    }
                }
            }
        }
        if let Some(hold) = holds.iter().flatten().next() {
            return Err(Violation {
                rule: Rule::LeftBehind,
                at: Some(hold.since),
                what: format!("{hold:?}"),
            });
        }
        Ok(())
    }

    /// A hold ends. There must be a reason.
    fn check_end(
        &self,
        at: usize,
        key: usize,
        hold: &Hold,
        running: Option<&mut Running>,
        rule: Rule,
    ) -> Checked {
        let has_lapsed = self.high[at] >= hold.deadline;
        let was_missed = !self.grants[&hold.token].untold.is_empty();
        let is_excused = has_lapsed || was_missed;
        if let Some(running) = running {
            let op = &self.ops()[running.op];
            let by_owner = op.kind == Kind::Release && op.owner == hold.owner;
            let by_hand = op.kind == Kind::Delete;
            // What may have ended before by itself was not this one's doing.
            let is_new = by_hand || running.did.get(&key).is_none_or(|excused| *excused);
            if op.keys.contains(&key) && is_new && (by_owner || by_hand) {
                running.did.insert(key, is_excused);
                return Ok(());
            }
        }
        if is_excused {
            return Ok(());
        }
        self.wrong(rule, at, &format!("{hold:?} ends here for no reason"))
    }

    /// A lock is granted.
    fn granted(
        &mut self,
        at: usize,
        holds: &mut Vec<Hold>,
        waiting: &[(usize, usize)],
        mut running: Option<&mut Running>,
    ) -> Checked {
        let (key, token, count, owner, deadline, is_shared) = match &self.history.events[at].what {
            What::Record {
                key,
                token,
                holds,
                owner,
                deadline,
            } => (*key, *token, *holds, owner, *deadline, false),
            What::Share {
                key,
                token,
                owner,
                deadline,
            } => (*key, *token, 1, owner, *deadline, true),
            _ => return Ok(()),
        };
        let grant = &self.grants[&token];
        if grant.unit != self.history.events[at].unit {
            return self.wrong(Rule::Lost, at, "a hold that had ended is back");
        }
        // One who had the lock alone makes room: it may be his release that is being run.
        let before = holds.len();
        for hold in holds.extract_if(.., |hold| !hold.is_shared) {
            self.check_end(at, key, &hold, running.as_deref_mut(), Rule::Beside)?;
        }
        let has_made_room = holds.len() < before && running.is_none();
        // A lease that has lapsed counts no more, whether or not the server has cleared it away.
        let now = self.high[at];
        let beside: Vec<&Hold> = holds.iter().filter(|hold| hold.deadline >= now).collect();
        if !is_shared && !beside.is_empty() {
            return self.wrong(Rule::Beside, at, &format!("beside {beside:?}"));
        }
        let has_lapsed = matches!(
            at.checked_sub(1).map(|at| &self.history.events[at].what),
            Some(What::Deleted { key: other }) if *other == key
        ) && running.is_none();
        if beside.iter().any(|hold| hold.owner == *owner) {
            return self.wrong(Rule::Twice, at, "a second share");
        }
        let first = grant.first;
        let op = &self.ops()[first];
        let is_sure = grant.maybe.is_empty();
        if let Some(Mode::Limit(limit)) = op.mode()
            && is_sure
            && beside.len() >= limit
        {
            return self.wrong(Rule::OverLimit, at, &format!("beside {beside:?}"));
        }
        for (other, until) in waiting {
            let came_first = self.began[*other] < self.began[first];
            if *other == first || *until <= at || !self.ops()[*other].overlaps(op) {
                continue;
            }
            if came_first && is_sure {
                return self.wrong_of(
                    Rule::Overtaken,
                    *other,
                    &format!("overtaken by {first} {op:?} at {at}, waits until {until}"),
                );
            }
            self.counts.compared += 1;
        }
        if grant.at == at {
            let waited = self.history.events[self.began[first].unwrap_or(at)..at]
                .iter()
                .any(|event| matches!(event.what, What::Began(other) if other != first));
            let waited = usize::from(waited);
            self.counts.grants += 1;
            self.counts.waited += waited;
            self.counts.shared += waited * usize::from(is_shared && !beside.is_empty());
            self.counts.several += waited * usize::from(op.keys.len() > 1);
            self.counts.lapsed += usize::from(has_lapsed || has_made_room);
        }
        holds.retain(|hold| is_shared && hold.owner != *owner);
        holds.push(Hold {
            owner: owner.clone(),
            token,
            holds: count,
            deadline,
            is_shared,
            since: at,
        });
        Ok(())
    }

    /// The owner of a lock holds it once more, or once less.
    fn more_or_less(
        &self,
        at: usize,
        holds: &mut [Hold],
        running: Option<&mut Running>,
    ) -> Checked {
        let What::Record {
            key,
            token,
            holds: count,
            deadline,
            ..
        } = self.history.events[at].what
        else {
            return self.wrong(Rule::Twice, at, "a share that there was");
        };
        let Some(hold) = holds.iter_mut().find(|hold| hold.token == token) else {
            return Ok(());
        };
        let before = hold.clone();
        (hold.holds, hold.deadline) = (count, deadline);
        if deadline < before.deadline {
            return self.wrong(Rule::Lease, at, "an inner hold made the lease shorter");
        }
        if count == before.holds + 1 {
            Ok(())
        } else if count + 1 == before.holds {
            self.check_end(at, key, &before, running, Rule::Lost)
        } else {
            self.wrong(Rule::Lost, at, "not one hold more or less")
        }
    }

    /// A lease has another deadline.
    fn renewed(
        &self,
        at: usize,
        key: usize,
        deadline: i64,
        holds: &mut [Vec<Hold>; KEYS.len()],
        running: Option<&mut Running>,
    ) -> Checked {
        let of = match &self.history.events[at].what {
            What::ShareDeadline { owner, .. } => Some(owner),
            _ => None,
        };
        let hold = match of {
            Some(owner) => holds[key]
                .iter_mut()
                .find(|hold| hold.is_shared && hold.owner == *owner),
            // That of a key with shares follows from theirs.
            None if holds[key].iter().any(|hold| hold.is_shared) => return Ok(()),
            None => holds[key].first_mut(),
        };
        let Some(hold) = hold else {
            return self.wrong(Rule::Lost, at, "nobody's lease");
        };
        if let Some(running) = running
            && let op = &self.ops()[running.op]
            && let Kind::Renew { ttl } = op.kind
            && op.owner == hold.owner
            && op.keys.contains(&key)
        {
            running.did.insert(key, false);
            hold.deadline = deadline;
            let made = deadline - ttl;
            if made < self.low[at] || made > self.high[at] {
                return self.wrong(Rule::Lease, at, "not the lease that was asked for");
            }
            return Ok(());
        }
        self.wrong(Rule::Lease, at, "a renewal that nobody asked for")
    }

    /// A release or a renewal is done: its answers say what it did.
    fn check_done(&self, at: usize, running: &Running, holds: &[Vec<Hold>; KEYS.len()]) -> Checked {
        let op = &self.ops()[running.op];
        let Outcome::Answers(answers) = &op.outcome else {
            return Ok(());
        };
        if !matches!(op.kind, Kind::Release | Kind::Renew { .. }) {
            return Ok(());
        }
        if answers.len() != op.keys.len() {
            return self.wrong_of(Rule::Answer, running.op, "not an answer for each lock");
        }
        for (key, answer) in op.keys.iter().zip(answers) {
            let did = running.did.get(key);
            let has_still = holds[*key].iter().any(|hold| {
                hold.owner == op.owner
                    && hold.deadline > self.high[at]
                    && Some(hold.since) < self.began[running.op]
            });
            let is_right = match answer {
                1 => did.is_some(),
                0 | -1 => did.is_none_or(|is_excused| *is_excused) && !has_still,
                _ => false,
            };
            if !is_right {
                return self.wrong_of(Rule::Answer, running.op, "not what was done");
            }
        }
        Ok(())
    }

    /// One that is refused because of a deadlock holds something, or waits for something else.
    fn check_deadlock(&self, op: usize, holds: &[Vec<Hold>; KEYS.len()]) -> Checked {
        let asked = &self.ops()[op];
        if asked.outcome != Outcome::Error("DEADLOCK".to_owned()) {
            return Ok(());
        }
        let holds_any = holds.iter().flatten().any(|hold| hold.owner == asked.owner);
        let has_others = self.ops().iter().any(|other| {
            other.mode().is_some() && other.owner == asked.owner && other.client != asked.client
        });
        if holds_any || has_others {
            return Ok(());
        }
        self.wrong_of(Rule::Answer, op, "a deadlock of one that holds nothing")
    }

    /// What the server says of its queues fits to who waits, in the order in which they came.
    fn check_snapshot(
        &self,
        at: usize,
        snapshot: &Snapshot,
        waiting: &[(usize, usize)],
        holds: &[Vec<Hold>; KEYS.len()],
    ) -> Checked {
        for (key, queue) in snapshot.queues.iter().enumerate() {
            let arrivals: Vec<Option<usize>> = queue.iter().map(|op| self.began[*op]).collect();
            if !arrivals.is_sorted_by(|one, next| one < next) {
                return self.wrong(Rule::Queue, at, &format!("{queue:?} is not in order"));
            }
            for op in queue {
                let asked = &self.ops()[*op];
                let may_wait = matches!(asked.kind, Kind::Acquire { block: Some(_), .. })
                    && asked.keys.contains(&key)
                    && self.began[*op].is_some_and(|began| began < at)
                    && self.tokens[*op].is_none_or(|token| {
                        let grant = &self.grants[&token];
                        grant.at > at || !grant.maybe.is_empty()
                    });
                if !may_wait {
                    return self.wrong_of(Rule::Queue, *op, &format!("waits for {key} at {at}"));
                }
            }
            for (op, until) in waiting {
                if *until > at && self.ops()[*op].keys.contains(&key) && !queue.contains(op) {
                    return self.wrong_of(
                        Rule::Queue,
                        *op,
                        &format!("does not wait for {key} at {at}, but does until {until}"),
                    );
                }
            }
        }
        if !snapshot.is_quiet {
            return Ok(());
        }
        let rooms = std::array::from_fn(|key| {
            let lasting = holds[key]
                .iter()
                .filter(|hold| hold.deadline >= self.low[at]);
            Room {
                is_taken: lasting.clone().any(|hold| !hold.is_shared),
                sharing: lasting.map(|hold| hold.owner.clone()).collect(),
            }
        });
        if let Some(op) = asleep(self.ops(), &snapshot.queues, &rooms) {
            return self.wrong_of(Rule::Asleep, op, &format!("not granted at {at}"));
        }
        // What went to one who was told otherwise has been given back. An owner of whom a connection
        // ended before it was answered may have been told.
        let kept = holds.iter().flatten().find(|hold| {
            let is_unsure = |op: &Op| op.owner == hold.owner && op.outcome == Outcome::Gone;
            hold.deadline > self.high[at]
                && self.grants[&hold.token].told.is_empty()
                && !self.ops().iter().any(is_unsure)
        });
        match kept {
            Some(hold) => self.wrong(Rule::Untold, at, &format!("not given back: {hold:?}")),
            None => Ok(()),
        }
    }

    /// Each answer is one that the request could get.
    fn check_answers(&mut self) -> Checked {
        for (index, op) in self.ops().iter().enumerate() {
            if op.outcome == Outcome::Open {
                return self.wrong_of(Rule::Open, index, "never ended");
            }
            let Kind::Acquire { block, .. } = op.kind else {
                continue;
            };
            let form = op.sent_away.map(|(_, form)| form);
            let is_right = match &op.outcome {
                Outcome::Nil => match block {
                    None => true,
                    Some(_) if form == Some("TIMEOUT") => true,
                    Some(0) => false,
                    // Both clocks may be in the middle of a millisecond.
                    Some(ms) => op.took + 1 >= ms,
                },
                Outcome::Error(code) => match code.as_str() {
                    "DEADLOCK" => block.is_some(),
                    "UNBLOCKED" => form == Some("ERROR"),
                    _ => false,
                },
                Outcome::Granted(_) | Outcome::Gone => true,
                Outcome::Open | Outcome::Answers(_) => false,
            };
            if !is_right {
                return self.wrong_of(Rule::Answer, index, "not an answer to this");
            }
            self.counts.left += usize::from(self.tokens[index].is_none() && block.is_some());
        }
        Ok(())
    }
}

/// What happened around a violation.
pub(super) fn around(history: &History, violation: &Violation) -> String {
    let at = violation.at.unwrap_or(history.events.len());
    let (from, to) = (at.saturating_sub(60), (at + 60).min(history.events.len()));
    let mut text = format!("{:?}: {}\n", violation.rule, violation.what);
    for (at, Event { unit, what }) in history.events.iter().enumerate().take(to).skip(from) {
        let op = match what {
            What::Began(op) => format!(" {:?}", history.ops[*op]),
            What::Mark(mark) => format!(" {:?}", history.marks[*mark]),
            _ => String::new(),
        };
        let _ = writeln!(text, "{at} [{unit}] {what:?}{op}");
    }
    text
}
