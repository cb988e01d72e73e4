//! Whether a history can be true of locks that keep their promises.
//!
//! [`check`] is a function of what was written down and knows nothing of servers. It never guesses:
//! what it calls a violation is one, however slow the machine was.
//!
//! - **A definite hold** begins when its client is told of the grant. It ends when the client sends
//!   its last release, or when its lease may have lapsed, which is `ttl` after the request was sent,
//!   or when something happens that may end it, whichever is first. That a release or a renewal or a
//!   guard found the hold proves that it lasted until that was sent, whatever was feared before.
//! - **Answers** to the owner of a definite hold: it is found, and found as often as it was granted.
//! - **Tokens**: a grant that was asked for after another had been told of has the higher token. A
//!   re-entry has that of the hold.
//! - **Order**: those who were seen in a queue are granted in its order, and before all who asked
//!   after that.

use std::collections::HashMap;

use super::history::{Break, History, Kind, Leap, MS, Mode, NEVER, Op, Outcome};

/// What was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// Two definite holds of a lock at the same time, of which one is exclusive.
    Overlap,
    /// More definite holds of a lock than the last of them wanted.
    OverLimit,
    /// A token that is not higher than those before it, or another one for the same hold.
    Token,
    /// A later request was granted first.
    Order,
    /// The owner of a definite hold was told that it has none.
    Lost,
    /// More holds were ended than were granted.
    Balance,
    /// A request that never ended.
    Open,
}

/// What is wrong, and the requests that show it.
#[derive(Clone, Debug)]
pub(super) struct Violation {
    pub(super) rule: Rule,
    pub(super) ops: Vec<Op>,
}

/// The time by which a lease can be shorter than its ttl: the server counts in milliseconds, and can
/// look for lapsed keys at the beginning of one.
const SLACK: u64 = 2 * MS;

/// All that is wrong in a history.
pub(super) fn check(history: &History) -> Vec<Violation> {
    let mut checker = Checker {
        history,
        limits: Limits::of(history),
        violations: Vec::new(),
    };
    let mut holds = checker.holds();
    holds.sort_unstable_by_key(|hold| (hold.op.key, hold.op.returned));
    for of_key in holds.chunk_by(|one, next| one.op.key == next.op.key) {
        checker.check_overlap(of_key);
        checker.check_tokens(of_key);
    }
    checker.check_order(&holds);
    checker.violations
}

/// A hold of a lock, from its grant on.
#[derive(Clone, Copy, Debug)]
struct Hold {
    /// The request that was granted.
    op: Op,
    mode: Mode,
    token: i64,
    /// How often it was granted, less how often it was ended.
    count: u64,
    /// When its lease may end at the earliest.
    lease: u64,
    /// Until when it lasts for certain.
    until: u64,
}

/// What may end a hold that its owner does not end.
struct Limits {
    /// For each lock and for all of them: ends of breaks, rising, and the earliest beginning of those
    /// that end then or later.
    breaks: HashMap<Option<usize>, Vec<(u64, u64)>>,
    /// In the order in which they came.
    leaps: Vec<Leap>,
}

impl Limits {
    fn of(history: &History) -> Self {
        let mut breaks: HashMap<_, Vec<_>> = HashMap::new();
        for Break { key, from, to } in &history.breaks {
            breaks.entry(*key).or_default().push((*to, *from));
        }
        for of_key in breaks.values_mut() {
            of_key.sort_unstable();
            let mut earliest = NEVER;
            for (_, from) in of_key.iter_mut().rev() {
                earliest = earliest.min(*from);
                *from = earliest;
            }
        }
        Self {
            breaks,
            leaps: history.leaps.clone(),
        }
    }

    /// When the lease of a request may end at the earliest.
    fn lease(&self, sent: u64, ttl: u64) -> u64 {
        let mut end = sent + (ttl * MS).saturating_sub(SLACK);
        for leap in self.leaps.iter().filter(|leap| leap.to >= sent) {
            if leap.from >= end {
                break;
            }
            end = end.saturating_sub(leap.by).max(leap.from).max(sent);
        }
        end
    }

    /// When something that is not over at this moment may have ended a hold of the lock.
    fn next_break(&self, key: usize, after: u64) -> u64 {
        let first = |of: &Option<usize>| {
            let breaks = self.breaks.get(of)?;
            let index = breaks.partition_point(|(to, _)| *to < after);
            breaks.get(index).map(|(_, from)| *from)
        };
        let own = first(&Some(key)).unwrap_or(NEVER);
        own.min(first(&None).unwrap_or(NEVER))
    }
}

impl Hold {
    /// The lease ends at this moment, or something else ends it before.
    fn lasts_until(&mut self, lease: u64, after: u64, limits: &Limits) {
        self.lease = lease;
        self.until = lease.min(limits.next_break(self.op.key, after));
    }

    /// Something that was sent at this moment found the hold.
    fn was_found(&mut self, sent: u64, limits: &Limits) {
        let lease = self.lease;
        self.lasts_until(lease, sent, limits);
        self.until = self.until.max(sent);
    }
}

struct Checker<'a> {
    history: &'a History,
    limits: Limits,
    violations: Vec<Violation>,
}

impl Checker<'_> {
    fn wrong(&mut self, rule: Rule, ops: &[Op]) {
        let ops = ops.to_vec();
        self.violations.push(Violation { rule, ops });
    }

    /// All holds that somebody was told of. Looks whether the answers to each owner fit together.
    fn holds(&mut self) -> Vec<Hold> {
        let mut open: HashMap<(u32, usize), Hold> = HashMap::new();
        let mut closed = Vec::new();
        for op in &self.history.ops {
            let of = (op.owner, op.key);
            let hold = open.remove(&of);
            let (over, hold) = self.follow(op, hold);
            closed.extend(over);
            if let Some(hold) = hold {
                open.insert(of, hold);
            }
        }
        closed.extend(open.into_values());
        closed
    }

    /// What a request tells of the hold that its owner had before: whether it is over, and what the
    /// owner has now.
    fn follow(&mut self, op: &Op, hold: Option<Hold>) -> (Option<Hold>, Option<Hold>) {
        if op.outcome == Outcome::Open {
            self.wrong(Rule::Open, &[*op]);
        }
        match op.kind {
            Kind::Acquire { mode, ttl, .. } => self.follow_acquire(op, mode, ttl, hold),
            Kind::Release => self.follow_release(op, hold),
            Kind::Renew { ttl } => {
                let lease = self.limits.lease(op.sent, ttl);
                self.follow_use(op, hold, Some(lease))
            }
            Kind::Guard => self.follow_use(op, hold, None),
        }
    }

    fn follow_acquire(
        &mut self,
        op: &Op,
        mode: Mode,
        ttl: u64,
        hold: Option<Hold>,
    ) -> (Option<Hold>, Option<Hold>) {
        let Outcome::Granted(token) = op.outcome else {
            return (None, hold);
        };
        let lease = self.limits.lease(op.sent, ttl);
        let is_reentrant = matches!(op.kind, Kind::Acquire { is_reentrant, .. } if is_reentrant);
        match hold {
            Some(mut hold) if hold.token == token => {
                if !is_reentrant {
                    self.wrong(Rule::Overlap, &[hold.op, *op]);
                }
                hold.count += 1;
                hold.was_found(op.sent, &self.limits);
                let later = hold.lease.max(lease);
                let proven = hold.until;
                hold.lasts_until(later, op.sent, &self.limits);
                hold.until = hold.until.max(proven);
                (None, Some(hold))
            }
            before => {
                if let Some(hold) = before.filter(|hold| hold.until > op.returned) {
                    let rule = if is_reentrant {
                        Rule::Token
                    } else {
                        Rule::Overlap
                    };
                    self.wrong(rule, &[hold.op, *op]);
                }
                let over = before.map(|hold| ended(hold, op.sent));
                let mut hold = Hold {
                    op: *op,
                    mode,
                    token,
                    count: 1,
                    lease,
                    until: 0,
                };
                hold.lasts_until(lease, op.sent, &self.limits);
                (over, Some(hold))
            }
        }
    }

    fn follow_release(&mut self, op: &Op, hold: Option<Hold>) -> (Option<Hold>, Option<Hold>) {
        let Some(mut hold) = hold else {
            if op.outcome == Outcome::Answer(1) && !op.is_for_dead {
                self.wrong(Rule::Balance, &[*op]);
            }
            return (None, None);
        };
        match op.outcome {
            // What the dead have asked for last can have been more than they knew.
            _ if op.is_for_dead => (None, Some(ended(hold, op.sent))),
            Outcome::Answer(1) => {
                hold.was_found(op.sent, &self.limits);
                hold.count -= 1;
                if hold.count == 0 {
                    (Some(ended(hold, op.sent)), None)
                } else {
                    (None, Some(hold))
                }
            }
            Outcome::Answer(_) => {
                if hold.until > op.returned {
                    self.wrong(Rule::Lost, &[hold.op, *op]);
                }
                (Some(ended(hold, op.sent)), None)
            }
            Outcome::Refused => (None, Some(hold)),
            _ => (None, Some(ended(hold, op.sent))),
        }
    }

    /// A renewal, or something under a guard, which leaves the lease as it is.
    fn follow_use(
        &mut self,
        op: &Op,
        hold: Option<Hold>,
        lease: Option<u64>,
    ) -> (Option<Hold>, Option<Hold>) {
        let Some(mut hold) = hold else {
            if op.outcome == Outcome::Answer(1) {
                self.wrong(Rule::Balance, &[*op]);
            }
            return (None, None);
        };
        match op.outcome {
            Outcome::Answer(1) => {
                hold.was_found(op.sent, &self.limits);
                if let Some(lease) = lease {
                    hold.lasts_until(lease, op.sent, &self.limits);
                    hold.until = hold.until.max(op.sent);
                }
            }
            Outcome::Answer(_) => {
                if hold.until > op.returned {
                    self.wrong(Rule::Lost, &[hold.op, *op]);
                }
                return (Some(ended(hold, op.sent)), None);
            }
            Outcome::Refused => {}
            // The lease may be shorter now.
            _ => {
                let shorter = lease.unwrap_or(op.sent).max(op.sent);
                hold.until = hold.until.min(shorter);
            }
        }
        (None, Some(hold))
    }

    /// Looks at the holds of one lock, in the order in which they were told.
    fn check_overlap(&mut self, holds: &[Hold]) {
        // The holds that lasted longest of those before.
        let (mut alone, mut beside): (Option<Hold>, Option<Hold>) = (None, None);
        let mut sharing: Vec<Hold> = Vec::new();
        for hold in holds {
            let overlaps = |other: &Hold| {
                // The grant lies between the two times of its request.
                let is_certain = hold.until > hold.op.returned || other.op.returned <= hold.op.sent;
                other.until > hold.op.returned && is_certain
            };
            let is_alone = hold.mode == Mode::Exclusive;
            let others = [alone, beside.filter(|_| is_alone)];
            for other in others.into_iter().flatten().filter(overlaps) {
                self.wrong(Rule::Overlap, &[other.op, hold.op]);
            }
            if !is_alone {
                sharing.retain(|other| other.until > hold.op.returned);
                let surely = sharing
                    .iter()
                    .filter(|other| other.op.returned <= hold.op.sent);
                if matches!(hold.mode, Mode::Limit(limit) if surely.clone().count() >= limit) {
                    let mut ops: Vec<Op> = surely.map(|other| other.op).collect();
                    ops.push(hold.op);
                    self.wrong(Rule::OverLimit, &ops);
                }
                sharing.push(*hold);
            }
            let longest = if is_alone { &mut alone } else { &mut beside };
            if longest.is_none_or(|longest| longest.until < hold.until) {
                *longest = Some(*hold);
            }
        }
    }

    /// Looks at the tokens of one lock, whose holds are in the order in which they were told.
    fn check_tokens(&mut self, holds: &[Hold]) {
        let mut asked: Vec<&Hold> = holds.iter().collect();
        asked.sort_unstable_by_key(|hold| hold.op.sent);
        let mut told = holds.iter().peekable();
        let mut highest: Option<&Hold> = None;
        for hold in asked {
            while let Some(before) = told.next_if(|before| before.op.returned < hold.op.sent) {
                if highest.is_none_or(|highest| highest.token < before.token) {
                    highest = Some(before);
                }
            }
            if let Some(before) = highest.filter(|before| before.token >= hold.token) {
                self.wrong(Rule::Token, &[before.op, hold.op]);
            }
        }
    }

    /// Looks whether who stood in a queue was granted in its order. The holds are sorted by lock.
    fn check_order(&mut self, holds: &[Hold]) {
        let mut waits: HashMap<(u32, usize), Vec<&Op>> = HashMap::new();
        for op in &self.history.ops {
            if matches!(op.kind, Kind::Acquire { block: Some(_), .. }) {
                waits.entry((op.owner, op.key)).or_default().push(op);
            }
        }
        // For each lock: when its grants were asked for, and the lowest token from there on.
        let mut later: HashMap<usize, Vec<(u64, &Hold)>> = HashMap::new();
        for hold in holds {
            let of_key = later.entry(hold.op.key).or_default();
            of_key.push((hold.op.sent, hold));
        }
        for of_key in later.values_mut() {
            of_key.sort_unstable_by_key(|(sent, _)| *sent);
            let mut lowest: Option<&Hold> = None;
            for (_, hold) in of_key.iter_mut().rev() {
                let found = lowest.filter(|lowest| lowest.token < hold.token);
                *hold = found.unwrap_or(hold);
                lowest = Some(hold);
            }
        }
        for look in &self.history.looks {
            let mut before: Option<Op> = None;
            let mut last = i64::MIN;
            for owner in &look.queue {
                let of = waits.get(&(*owner, look.key)).map_or(&[][..], |ops| ops);
                let first = of.partition_point(|op| op.returned < look.sent);
                let now: Vec<&&Op> = of[first..]
                    .iter()
                    .take_while(|op| op.sent <= look.returned)
                    .collect();
                // One who began to wait anew meanwhile could be either.
                let [op] = now[..] else { continue };
                let Outcome::Granted(token) = op.outcome else {
                    continue;
                };
                if let Some(before) = before.filter(|_| token <= last) {
                    self.wrong(Rule::Order, &[before, **op]);
                }
                (before, last) = (Some(**op), last.max(token));
            }
            let of_key = later.get(&look.key).map_or(&[][..], |grants| grants);
            let index = of_key.partition_point(|(sent, _)| *sent <= look.returned);
            if let (Some((_, hold)), Some(before)) = (of_key.get(index), before)
                && hold.token <= last
            {
                self.wrong(Rule::Order, &[before, hold.op]);
            }
        }
    }
}

/// The hold as it is when its end was asked for at this moment.
fn ended(mut hold: Hold, sent: u64) -> Hold {
    hold.until = hold.until.min(sent);
    hold
}
