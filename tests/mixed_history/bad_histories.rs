//! What is wrong in a history is found: each of these was made by hand, and one thing in it should
//! not be.

use super::check::{Rule, check};
use super::record::{Event, History, KEYS, Kind, Mode, Op, Outcome, Snapshot, What};

/// The ttl of everybody.
const TTL: i64 = 1_000;

/// For ever.
const EVER: Option<i64> = Some(0);

/// A history that is being made up.
struct Script {
    history: History,
    now: i64,
    token: i64,
    unit: usize,
}

impl Script {
    fn new() -> Self {
        Self {
            history: History::default(),
            now: 1_000_000,
            token: 0,
            unit: 0,
        }
    }

    fn event(&mut self, what: What) {
        let unit = self.unit;
        self.history.events.push(Event { unit, what });
    }

    fn op(&mut self, owner: &str, keys: &[usize], kind: Kind) -> usize {
        let op = self.history.ops.len();
        self.history.ops.push(Op {
            client: i64::from(owner.as_bytes()[0]),
            owner: owner.to_owned(),
            keys: keys.to_vec(),
            kind,
            sent: self.now,
            took: 0,
            outcome: Outcome::Open,
            stayed: None,
            sent_away: None,
            was_seen: false,
        });
        self.unit += 1;
        self.event(What::Began(op));
        op
    }

    fn ask(&mut self, owner: &str, keys: &[usize], mode: Mode, block: Option<i64>) -> usize {
        let ttl = TTL;
        self.op(owner, keys, Kind::Acquire { mode, ttl, block })
    }

    /// Writes a grant of these locks.
    fn write(&mut self, op: usize, keys: &[usize], token: i64, deadline: i64) {
        let Op { owner, kind, .. } = &self.history.ops[op];
        let owner = owner.clone();
        let is_shared = matches!(kind, Kind::Acquire { mode, .. } if mode.is_shared());
        for &key in keys {
            let owner = owner.clone();
            self.event(if is_shared {
                What::Share {
                    key,
                    token,
                    owner,
                    deadline,
                }
            } else {
                What::Record {
                    key,
                    token,
                    holds: 1,
                    owner,
                    deadline,
                }
            });
        }
    }

    /// The next token.
    fn mint(&mut self) -> i64 {
        self.token += 1;
        self.now * 1_000 + self.token
    }

    /// Grants all that was asked for, and tells so.
    fn grant(&mut self, op: usize) -> i64 {
        let token = self.mint();
        let keys = self.history.ops[op].keys.clone();
        self.write(op, &keys, token, self.now + TTL);
        self.told(op, Outcome::Granted(token));
        token
    }

    fn told(&mut self, op: usize, outcome: Outcome) {
        self.history.ops[op].outcome = outcome;
    }

    /// Asks for locks that are free, and gets them.
    fn take(&mut self, owner: &str, keys: &[usize], mode: Mode) -> usize {
        let op = self.ask(owner, keys, mode, None);
        self.grant(op);
        op
    }

    /// Runs a release, in which `during` happens.
    fn release_and(
        &mut self,
        owner: &str,
        keys: &[usize],
        during: impl FnOnce(&mut Self),
    ) -> usize {
        let op = self.op(owner, keys, Kind::Release);
        during(self);
        self.event(What::Ended(op));
        self.told(op, Outcome::Answers(vec![1; keys.len()]));
        op
    }

    /// Runs a release of one who had the lock alone, after which nobody has it.
    fn release(&mut self, owner: &str, key: usize) -> usize {
        self.release_and(owner, &[key], |script| {
            script.event(What::Deleted { key });
        })
    }

    /// Runs a release of a share that leaves others.
    fn unshare(&mut self, owner: &str, key: usize) -> usize {
        let owner = owner.to_owned();
        self.release_and(&owner.clone(), &[key], |script| {
            script.event(What::Unshared { key, owner });
        })
    }

    /// Sends a request away. It had been waiting.
    fn unblock(&mut self, op: usize) {
        let by = self.op("x", &[], Kind::SendAway);
        self.event(What::Ended(by));
        self.told(by, Outcome::Answers(vec![1]));
        self.history.ops[op].sent_away = Some((by, "ERROR"));
        self.told(op, Outcome::Error("UNBLOCKED".to_owned()));
    }

    /// A mark at which the server shows who waits, for all locks in the same order.
    fn look(&mut self, queue: &[usize], is_quiet: bool) {
        let mark = self.history.marks.len();
        self.history.marks.push((self.now, self.now));
        self.unit += 1;
        self.event(What::Mark(mark));
        let mut queues: [Vec<usize>; KEYS.len()] = Default::default();
        for op in queue {
            for key in &self.history.ops[*op].keys {
                queues[*key].push(*op);
            }
        }
        self.history.snapshots.push(Snapshot {
            mark,
            queues,
            is_quiet,
        });
    }

    /// Time passes.
    fn pass(&mut self, ms: i64) {
        self.now += ms;
        self.unit += 1;
    }

    /// All leases lapse, and the end is checked.
    #[track_caller]
    fn finds(mut self, expected: Option<Rule>) {
        self.pass(10 * TTL);
        for key in 0..KEYS.len() {
            self.event(What::Deleted { key });
        }
        let found = check(&self.history).err();
        assert_eq!(
            found.as_ref().map(|violation| violation.rule),
            expected,
            "{found:?}"
        );
    }
}

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    let mut script = Script::new();
    script.take("a", &[0], Mode::Shared);
    script.take("b", &[0], Mode::Limit(2));
    let writer = script.ask("c", &[0], Mode::Exclusive, EVER);
    let reader = script.ask("d", &[0], Mode::Shared, EVER);
    let many = script.ask("e", &[0, 1], Mode::Exclusive, EVER);
    let late = script.ask("f", &[0], Mode::Reentrant, Some(10));
    script.look(&[writer, reader, many, late], false);
    script.unshare("a", 0);
    script.release_and("b", &[0], |script| {
        script.event(What::Deleted { key: 0 });
        script.grant(writer);
    });
    script.pass(20);
    script.told(late, Outcome::Nil);
    script.history.ops[late].took = 20;
    script.look(&[reader, many], true);
    script.pass(TTL);
    script.event(What::Deleted { key: 0 });
    script.grant(reader);
    script.release_and("d", &[0], |script| {
        script.event(What::Deleted { key: 0 });
        script.grant(many);
    });
    script.look(&[], true);
    script.finds(None);
}

#[test]
fn a_writer_beside_a_reader_is_found() {
    let mut script = Script::new();
    script.take("a", &[0], Mode::Shared);
    script.take("b", &[0], Mode::Exclusive);
    script.finds(Some(Rule::Beside));
}

#[test]
fn a_reader_beside_a_writer_is_found() {
    let mut script = Script::new();
    script.take("a", &[0], Mode::Exclusive);
    script.take("b", &[0], Mode::Shared);
    script.finds(Some(Rule::Beside));
}

#[test]
fn a_writer_beside_a_writer_is_found() {
    let mut script = Script::new();
    script.take("a", &[0], Mode::Exclusive);
    script.take("b", &[1, 0], Mode::Exclusive);
    script.finds(Some(Rule::Beside));
}

#[test]
fn a_lease_lasts_through_its_last_millisecond() {
    for (ms, expected) in [(TTL, Some(Rule::Beside)), (TTL + 1, None)] {
        let mut script = Script::new();
        script.take("a", &[0], Mode::Shared);
        script.pass(ms);
        let writer = script.ask("b", &[0], Mode::Exclusive, None);
        script.grant(writer);
        script.finds(expected);
    }
}

#[test]
fn one_permit_too_many_is_found() {
    for (limit, expected) in [
        (1, Some(Rule::OverLimit)),
        (2, Some(Rule::OverLimit)),
        (3, None),
    ] {
        let mut script = Script::new();
        script.take("a", &[0], Mode::Limit(4));
        script.take("b", &[0], Mode::Shared);
        script.take("c", &[0], Mode::Limit(limit));
        script.finds(expected);
    }
}

#[test]
fn a_lapsed_permit_makes_room() {
    let mut script = Script::new();
    script.take("a", &[0], Mode::Limit(1));
    script.pass(TTL + 1);
    script.take("b", &[0], Mode::Limit(1));
    script.finds(None);
}

#[test]
fn several_locks_without_one_of_them_are_found() {
    let mut script = Script::new();
    let several = script.ask("a", &[0, 1, 2], Mode::Exclusive, None);
    let token = script.mint();
    script.write(several, &[0, 2], token, script.now + TTL);
    script.told(several, Outcome::Granted(token));
    script.finds(Some(Rule::InPart));
}

#[test]
fn several_locks_one_after_the_other_are_found() {
    let mut script = Script::new();
    let several = script.ask("a", &[0, 1], Mode::Exclusive, EVER);
    let token = script.mint();
    script.write(several, &[0], token, script.now + TTL);
    script.unit += 1;
    script.write(several, &[1], token, script.now + TTL);
    script.told(several, Outcome::Granted(token));
    script.finds(Some(Rule::InPart));
}

#[test]
fn part_of_several_locks_for_one_who_is_gone_is_found() {
    let mut script = Script::new();
    let several = script.ask("a", &[0, 1], Mode::Exclusive, EVER);
    let token = script.mint();
    script.write(several, &[0], token, script.now + TTL);
    script.told(several, Outcome::Gone);
    script.finds(Some(Rule::InPart));
}

#[test]
fn a_waiter_that_is_overtaken_is_found() {
    let mut script = Script::new();
    script.take("a", &[0], Mode::Shared);
    let writer = script.ask("b", &[0], Mode::Exclusive, EVER);
    script.take("c", &[0], Mode::Shared);
    script.unshare("a", 0);
    script.release_and("c", &[0], |script| {
        script.event(What::Deleted { key: 0 });
        script.grant(writer);
    });
    script.finds(Some(Rule::Overtaken));
}

#[test]
fn a_waiter_for_several_locks_that_is_overtaken_is_found() {
    let mut script = Script::new();
    script.take("a", &[0], Mode::Exclusive);
    let several = script.ask("b", &[0, 1], Mode::Exclusive, EVER);
    script.take("c", &[1], Mode::Exclusive);
    script.release("c", 1);
    script.release_and("a", &[0], |script| {
        script.event(What::Deleted { key: 0 });
        script.grant(several);
    });
    script.finds(Some(Rule::Overtaken));
}

#[test]
fn a_waiter_that_is_overtaken_and_then_leaves_is_found() {
    let mut script = Script::new();
    script.take("a", &[0], Mode::Shared);
    let writer = script.ask("b", &[0], Mode::Exclusive, EVER);
    script.take("c", &[0], Mode::Shared);
    script.unblock(writer);
    script.finds(Some(Rule::Overtaken));
}

#[test]
fn nobody_overtakes_one_who_has_left() {
    let mut script = Script::new();
    script.take("a", &[0], Mode::Shared);
    let writer = script.ask("b", &[0], Mode::Exclusive, EVER);
    script.unblock(writer);
    script.take("c", &[0], Mode::Shared);
    script.finds(None);
}

#[test]
fn one_who_may_have_left_is_not_taken_for_overtaken() {
    let mut script = Script::new();
    script.take("a", &[0], Mode::Shared);
    let writer = script.ask("b", &[0], Mode::Exclusive, Some(5));
    script.look(&[writer], false);
    script.history.ops[writer].stayed = Some(0);
    script.pass(4);
    script.take("c", &[0], Mode::Shared);
    script.told(writer, Outcome::Nil);
    script.history.ops[writer].took = 5;
    script.finds(None);
}

#[test]
fn an_old_token_is_found() {
    let mut script = Script::new();
    script.take("a", &[0], Mode::Exclusive);
    script.release("a", 0);
    script.token -= 1;
    let other = script.ask("b", &[0], Mode::Exclusive, None);
    let token = script.mint() - 5;
    script.write(other, &[0], token, script.now + TTL);
    script.told(other, Outcome::Granted(token));
    script.finds(Some(Rule::Token));
}

#[test]
fn one_grant_for_two_requests_is_found() {
    let mut script = Script::new();
    let one = script.ask("a", &[0], Mode::Exclusive, None);
    let token = script.grant(one);
    let other = script.ask("a", &[0], Mode::Exclusive, None);
    script.told(other, Outcome::Granted(token));
    script.finds(Some(Rule::Twice));
}

#[test]
fn two_grants_for_one_request_are_found() {
    let mut script = Script::new();
    let one = script.ask("a", &[0], Mode::Exclusive, EVER);
    script.grant(one);
    script.release("a", 0);
    script.grant(one);
    script.finds(Some(Rule::Untold));
}

#[test]
fn a_second_share_is_found() {
    let mut script = Script::new();
    script.take("a", &[0], Mode::Shared);
    script.take("a", &[0], Mode::Shared);
    script.finds(Some(Rule::Twice));
}

#[test]
fn a_grant_to_one_whose_time_was_over_is_found() {
    let mut script = Script::new();
    let one = script.ask("a", &[0], Mode::Exclusive, Some(5));
    script.pass(6);
    script.grant(one);
    script.told(one, Outcome::Nil);
    script.history.ops[one].took = 6;
    script.finds(Some(Rule::Untold));
}

#[test]
fn a_grant_to_one_who_was_sent_away_before_is_found() {
    let mut script = Script::new();
    script.take("a", &[0], Mode::Exclusive);
    let other = script.ask("b", &[0], Mode::Exclusive, EVER);
    script.unblock(other);
    script.release_and("a", &[0], |script| {
        script.grant(other);
    });
    script.told(other, Outcome::Error("UNBLOCKED".to_owned()));
    script.finds(Some(Rule::Untold));
}

#[test]
fn a_grant_that_is_not_in_the_stream_is_found() {
    let mut script = Script::new();
    let one = script.ask("a", &[0], Mode::Exclusive, None);
    script.told(one, Outcome::Granted(1));
    script.finds(Some(Rule::Unfounded));
}

#[test]
fn the_grant_of_another_owner_is_found() {
    let mut script = Script::new();
    let one = script.ask("a", &[0], Mode::Exclusive, None);
    let token = script.grant(one);
    script.told(one, Outcome::Nil);
    let other = script.ask("b", &[0], Mode::Exclusive, EVER);
    script.told(other, Outcome::Granted(token));
    script.finds(Some(Rule::Unfounded));
}

#[test]
fn a_lease_of_another_length_is_found() {
    for (more, expected) in [(-1, Some(Rule::Lease)), (0, None), (1, Some(Rule::Lease))] {
        let mut script = Script::new();
        let one = script.ask("a", &[0], Mode::Exclusive, None);
        let token = script.mint();
        script.write(one, &[0], token, script.now + TTL + more);
        script.told(one, Outcome::Granted(token));
        script.look(&[], true);
        script.finds(expected);
    }
}

#[test]
fn a_hold_that_ends_for_no_reason_is_found() {
    let mut script = Script::new();
    script.take("a", &[0], Mode::Exclusive);
    script.event(What::Deleted { key: 0 });
    script.look(&[], false);
    script.finds(Some(Rule::Lost));
}

#[test]
fn a_share_that_another_releases_is_found() {
    let mut script = Script::new();
    script.take("a", &[0], Mode::Shared);
    script.take("b", &[0], Mode::Shared);
    script.release_and("b", &[0], |script| {
        let owner = "a".to_owned();
        script.event(What::Unshared { key: 0, owner });
    });
    script.look(&[], false);
    script.finds(Some(Rule::Lost));
}

#[test]
fn a_release_that_does_not_say_what_it_did_is_found() {
    for answer in [-1, 0] {
        let mut script = Script::new();
        script.take("a", &[0], Mode::Exclusive);
        let release = script.release("a", 0);
        script.told(release, Outcome::Answers(vec![answer]));
        script.look(&[], false);
        script.finds(Some(Rule::Answer));
    }
    let mut script = Script::new();
    script.take("a", &[0], Mode::Exclusive);
    script.release_and("a", &[0], |_| ());
    script.finds(Some(Rule::Answer));
}

#[test]
fn a_hold_that_comes_back_is_found() {
    let mut script = Script::new();
    let one = script.take("a", &[0], Mode::Exclusive);
    let Outcome::Granted(token) = script.history.ops[one].outcome else {
        panic!("granted");
    };
    script.release("a", 0);
    script.unit += 1;
    script.write(one, &[0], token, script.now + TTL);
    script.finds(Some(Rule::Lost));
}

#[test]
fn one_who_could_have_the_lock_and_waits_is_found() {
    let mut script = Script::new();
    script.take("a", &[0], Mode::Shared);
    let writer = script.ask("b", &[0], Mode::Exclusive, EVER);
    let reader = script.ask("c", &[0], Mode::Shared, EVER);
    script.look(&[writer, reader], true);
    script.unblock(writer);
    script.look(&[reader], true);
    script.unblock(reader);
    script.finds(Some(Rule::Asleep));
}

#[test]
fn one_who_waits_for_ever_is_found() {
    let mut script = Script::new();
    script.take("a", &[0], Mode::Exclusive);
    script.ask("b", &[0], Mode::Exclusive, EVER);
    script.finds(Some(Rule::Open));
}

#[test]
fn one_who_is_sent_away_too_early_is_found() {
    for (block, took) in [(Some(0), 100), (Some(50), 48)] {
        let mut script = Script::new();
        script.take("a", &[0], Mode::Exclusive);
        let other = script.ask("b", &[0], Mode::Exclusive, block);
        script.told(other, Outcome::Nil);
        script.history.ops[other].took = took;
        script.look(&[], false);
        script.history.ops[other].stayed = Some(0);
        script.history.snapshots.clear();
        script.finds(Some(Rule::Answer));
    }
}

#[test]
fn a_deadlock_of_one_who_holds_nothing_is_found() {
    let mut script = Script::new();
    script.take("a", &[0], Mode::Exclusive);
    let other = script.ask("b", &[0], Mode::Exclusive, EVER);
    script.told(other, Outcome::Error("DEADLOCK".to_owned()));
    script.finds(Some(Rule::Answer));
}

#[test]
fn a_queue_that_is_out_of_order_or_lacks_somebody_is_found() {
    for queue in [&[2, 1][..], &[2], &[1], &[1, 2, 0]] {
        let mut script = Script::new();
        script.take("a", &[0], Mode::Exclusive);
        let one = script.ask("b", &[0], Mode::Exclusive, EVER);
        let other = script.ask("c", &[0], Mode::Shared, EVER);
        script.look(queue, false);
        script.unblock(one);
        script.unblock(other);
        script.finds(Some(Rule::Queue));
    }
}

#[test]
fn a_hold_that_nobody_was_told_of_and_that_stays_is_found() {
    let mut script = Script::new();
    script.take("a", &[0], Mode::Exclusive);
    let other = script.ask("b", &[0], Mode::Exclusive, EVER);
    script.release_and("a", &[0], |script| {
        script.grant(other);
    });
    script.unblock(other);
    script.look(&[], true);
    script.finds(Some(Rule::Untold));
}

#[test]
fn what_is_left_behind_is_found() {
    let mut script = Script::new();
    script.take("a", &[0], Mode::Exclusive);
    assert_eq!(
        check(&script.history).err().map(|found| found.rule),
        Some(Rule::LeftBehind)
    );
}

#[test]
fn requests_of_one_owner_are_granted_together() {
    for (untold, told) in [
        (Mode::Exclusive, Mode::Reentrant),
        (Mode::Reentrant, Mode::Reentrant),
    ] {
        let mut script = Script::new();
        script.take("b", &[0], Mode::Exclusive);
        let gone = script.ask("a", &[0], untold, EVER);
        let other = script.ask("a", &[0], told, EVER);
        script.look(&[gone, other], false);
        let token = script.mint();
        script.release_and("b", &[0], |script| {
            let deadline = script.now + TTL;
            script.event(What::Record {
                key: 0,
                token,
                holds: 2,
                owner: "a".to_owned(),
                deadline,
            });
        });
        script.told(gone, Outcome::Gone);
        script.told(other, Outcome::Granted(token));
        script.look(&[], true);
        script.finds(None);
    }
}
