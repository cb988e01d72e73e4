//! What is wrong in a history is found: each of these was made by hand, and one thing in it should
//! not be. Beside each stands one that is alike and right.

use super::check::{Rule, check};
use super::history::{Break, History, Kind, Leap, Look, MS, Mode, NEVER, Op, Outcome};

/// A long lease, in milliseconds.
const TTL: u64 = 1_000;

/// A history that is being made up. Times are in milliseconds.
#[derive(Default)]
struct Script(History);

impl Script {
    fn op(&mut self, owner: u32, kind: Kind, times: (u64, u64), outcome: Outcome) -> &mut Self {
        self.0.ops.push(Op {
            owner,
            key: 0,
            kind,
            sent: times.0 * MS,
            returned: times.1.saturating_mul(MS),
            outcome,
            is_for_dead: false,
        });
        self
    }

    fn grant(&mut self, owner: u32, mode: Mode, ttl: u64, at: u64, token: i64) -> &mut Self {
        let kind = acquire(mode, ttl, false, None);
        self.op(owner, kind, (at, at + 1), Outcome::Granted(token))
    }

    fn alone(&mut self, owner: u32, at: u64, token: i64) -> &mut Self {
        self.grant(owner, Mode::Exclusive, TTL, at, token)
    }

    fn again(&mut self, owner: u32, at: u64, token: i64) -> &mut Self {
        let kind = acquire(Mode::Exclusive, TTL, true, None);
        self.op(owner, kind, (at, at + 1), Outcome::Granted(token))
    }

    fn wait(&mut self, owner: u32, times: (u64, u64), outcome: Outcome) -> &mut Self {
        let kind = acquire(Mode::Exclusive, TTL, false, Some(0));
        self.op(owner, kind, times, outcome)
    }

    fn release(&mut self, owner: u32, at: u64, answer: i64) -> &mut Self {
        self.op(owner, Kind::Release, (at, at + 1), Outcome::Answer(answer))
    }

    fn renew(&mut self, owner: u32, ttl: u64, at: u64, answer: i64) -> &mut Self {
        let outcome = Outcome::Answer(answer);
        self.op(owner, Kind::Renew { ttl }, (at, at + 1), outcome)
    }

    fn look(&mut self, at: u64, queue: &[u32]) -> &mut Self {
        self.0.looks.push(Look {
            key: 0,
            sent: at * MS,
            returned: (at + 1) * MS,
            queue: queue.to_vec(),
        });
        self
    }

    fn ended_by_hand(&mut self, key: Option<usize>, at: u64) -> &mut Self {
        let (from, to) = (at * MS, (at + 1) * MS);
        self.0.breaks.push(Break { key, from, to });
        self
    }

    /// What is found to be wrong.
    fn rules(&self) -> Vec<Rule> {
        check(&self.0)
            .into_iter()
            .map(|violation| violation.rule)
            .collect()
    }
}

fn acquire(mode: Mode, ttl: u64, is_reentrant: bool, block: Option<u64>) -> Kind {
    Kind::Acquire {
        mode,
        is_reentrant,
        ttl,
        block,
    }
}

fn script() -> Script {
    Script::default()
}

#[test]
fn two_holders_at_once() {
    let mut wrong = script();
    wrong.alone(1, 0, 10).alone(2, 5, 11);
    assert_eq!(wrong.rules(), [Rule::Overlap]);
    let mut right = script();
    right.alone(1, 0, 10).release(1, 3, 1).alone(2, 5, 11);
    assert_eq!(right.rules(), []);
}

#[test]
fn a_grant_in_the_middle_of_a_hold_whose_own_end_nobody_knows() {
    let mut wrong = script();
    wrong
        .alone(1, 0, 10)
        .grant(2, Mode::Exclusive, 1, 5, 11)
        .renew(2, 1, 20, -1);
    assert_eq!(wrong.rules(), [Rule::Overlap]);
    // The release may have been carried out before.
    let mut right = script();
    right.alone(1, 0, 10);
    right.op(1, Kind::Release, (4, NEVER), Outcome::Unknown);
    right.grant(2, Mode::Exclusive, 1, 5, 11);
    assert_eq!(right.rules(), []);
}

#[test]
fn a_lease_that_lapses_too_early() {
    let mut wrong = script();
    wrong.alone(1, 0, 10).alone(2, TTL - 10, 11);
    assert_eq!(wrong.rules(), [Rule::Overlap]);
    let mut right = script();
    right.alone(1, 0, 10).alone(2, TTL, 11);
    assert_eq!(right.rules(), []);
}

#[test]
fn a_renewal_that_did_not_renew() {
    let mut wrong = script();
    wrong
        .alone(1, 0, 10)
        .renew(1, TTL, 900, 1)
        .alone(2, TTL + 100, 11);
    assert_eq!(wrong.rules(), [Rule::Overlap]);
    // It can make the lease shorter as well.
    let mut right = script();
    right.alone(1, 0, 10).renew(1, 10, 100, 1).alone(2, 200, 11);
    assert_eq!(right.rules(), []);
}

#[test]
fn a_hold_that_is_found_although_another_had_the_lock_meanwhile() {
    let mut wrong = script();
    wrong
        .grant(1, Mode::Exclusive, 10, 0, 10)
        .alone(2, 20, 11)
        .release(2, 30, 1)
        .release(1, 40, 1);
    assert_eq!(wrong.rules(), [Rule::Overlap]);
    let mut right = script();
    right
        .grant(1, Mode::Exclusive, 10, 0, 10)
        .alone(2, 20, 11)
        .release(2, 30, 1)
        .release(1, 40, -1);
    assert_eq!(right.rules(), []);
}

#[test]
fn a_share_beside_one_who_has_the_lock_alone() {
    let mut wrong = script();
    wrong.alone(1, 0, 10).grant(2, Mode::Shared, TTL, 5, 11);
    assert_eq!(wrong.rules(), [Rule::Overlap]);
    let mut wrong = script();
    wrong.grant(1, Mode::Shared, TTL, 0, 10).alone(2, 5, 11);
    assert_eq!(wrong.rules(), [Rule::Overlap]);
    let mut right = script();
    right
        .grant(1, Mode::Shared, TTL, 0, 10)
        .grant(2, Mode::Shared, TTL, 5, 11);
    assert_eq!(right.rules(), []);
}

#[test]
fn more_permits_than_there_are() {
    let limit = Mode::Limit(2);
    let mut wrong = script();
    wrong
        .grant(1, limit, TTL, 0, 10)
        .grant(2, limit, TTL, 2, 11)
        .grant(3, limit, TTL, 4, 12);
    assert_eq!(wrong.rules(), [Rule::OverLimit]);
    let mut right = script();
    right
        .grant(1, limit, TTL, 0, 10)
        .grant(2, limit, TTL, 2, 11)
        .release(1, 4, 1)
        .grant(3, limit, TTL, 6, 12);
    assert_eq!(right.rules(), []);
}

#[test]
fn a_token_that_falls() {
    let mut wrong = script();
    wrong.alone(1, 0, 10).release(1, 2, 1).alone(2, 4, 9);
    assert_eq!(wrong.rules(), [Rule::Token]);
    let mut wrong = script();
    wrong.alone(1, 0, 10).release(1, 2, 1).alone(2, 4, 10);
    assert_eq!(wrong.rules(), [Rule::Token]);
    // Nobody knows which of two that overlap was first.
    let mut right = script();
    right.op(
        1,
        acquire(Mode::Shared, TTL, false, None),
        (0, 5),
        Outcome::Granted(10),
    );
    right.op(
        2,
        acquire(Mode::Shared, TTL, false, None),
        (1, 6),
        Outcome::Granted(9),
    );
    assert_eq!(right.rules(), []);
}

#[test]
fn a_reentry_with_another_token() {
    let mut wrong = script();
    wrong.alone(1, 0, 10).again(1, 5, 11);
    assert_eq!(wrong.rules(), [Rule::Token]);
    let mut right = script();
    right.alone(1, 0, 10).again(1, 5, 10);
    assert_eq!(right.rules(), []);
    // After the lease it is a new hold.
    let mut right = script();
    right.alone(1, 0, 10).again(1, TTL + 5, 11);
    assert_eq!(right.rules(), []);
}

#[test]
fn a_grant_to_one_who_holds_the_lock_and_did_not_ask_to_reenter() {
    let mut wrong = script();
    wrong.alone(1, 0, 10).alone(1, 5, 11);
    assert_eq!(wrong.rules(), [Rule::Overlap]);
    let mut wrong = script();
    wrong.alone(1, 0, 10).alone(1, 5, 10);
    assert_eq!(wrong.rules(), [Rule::Overlap]);
}

#[test]
fn a_hold_that_is_not_found() {
    for answer in [0, -1] {
        let mut wrong = script();
        wrong.alone(1, 0, 10).release(1, 5, answer);
        assert_eq!(wrong.rules(), [Rule::Lost]);
        let mut wrong = script();
        wrong.alone(1, 0, 10).renew(1, TTL, 5, answer);
        assert_eq!(wrong.rules(), [Rule::Lost]);
        let mut wrong = script();
        wrong.alone(1, 0, 10);
        wrong.op(1, Kind::Guard, (5, 6), Outcome::Answer(answer));
        assert_eq!(wrong.rules(), [Rule::Lost]);
        let mut right = script();
        right.alone(1, 0, 10).release(1, TTL, answer);
        assert_eq!(right.rules(), []);
    }
}

#[test]
fn holds_that_do_not_balance() {
    let mut wrong = script();
    wrong
        .alone(1, 0, 10)
        .again(1, 5, 10)
        .release(1, 10, 1)
        .release(1, 15, -1);
    assert_eq!(wrong.rules(), [Rule::Lost]);
    let mut wrong = script();
    wrong.alone(1, 0, 10).release(1, 5, 1).release(1, 10, 1);
    assert_eq!(wrong.rules(), [Rule::Balance]);
    let mut right = script();
    right
        .alone(1, 0, 10)
        .again(1, 5, 10)
        .release(1, 10, 1)
        .release(1, 15, 1)
        .release(1, 20, -1);
    assert_eq!(right.rules(), []);
}

#[test]
fn one_who_overtakes_in_the_queue() {
    let (early, late) = (Outcome::Granted(11), Outcome::Granted(12));
    let mut wrong = script();
    wrong.alone(1, 0, 10).release(1, 20, 1);
    wrong.wait(2, (2, 30), late).release(2, 31, 1);
    wrong.wait(3, (3, 22), early).release(3, 24, 1);
    wrong.look(10, &[2, 3]);
    assert_eq!(wrong.rules(), [Rule::Order]);
    // Nobody saw who stood first.
    wrong.0.looks.clear();
    assert_eq!(wrong.rules(), []);
}

#[test]
fn one_who_comes_later_and_is_granted_before_those_in_the_queue() {
    let mut wrong = script();
    wrong.alone(1, 0, 10).release(1, 20, 1);
    wrong.wait(2, (2, 30), Outcome::Granted(12));
    wrong.look(10, &[2]).alone(3, 21, 11).release(3, 23, 1);
    assert_eq!(wrong.rules(), [Rule::Order]);
    // Who was not granted was not overtaken.
    let mut right = script();
    right.alone(1, 0, 10).release(1, 20, 1);
    right.wait(2, (2, 30), Outcome::Nil);
    right.look(10, &[2]).alone(3, 21, 11);
    assert_eq!(right.rules(), []);
}

#[test]
fn a_wait_without_an_end() {
    let mut wrong = script();
    wrong.wait(1, (0, NEVER), Outcome::Open);
    assert_eq!(wrong.rules(), [Rule::Open]);
}

#[test]
fn a_hold_that_may_have_been_ended_is_not_a_definite_one() {
    let hands = [Some(0), None];
    for key in hands {
        let mut right = script();
        right.alone(1, 0, 10).ended_by_hand(key, 5).alone(2, 8, 11);
        right.release(1, 12, 0);
        assert_eq!(right.rules(), []);
        // What it may have ended was there before.
        let mut wrong = script();
        wrong.ended_by_hand(key, 5).alone(1, 8, 10).alone(2, 12, 11);
        assert_eq!(wrong.rules(), [Rule::Overlap]);
        // It has not ended a hold that is found afterwards.
        let mut wrong = script();
        wrong.alone(1, 0, 10).ended_by_hand(key, 5);
        wrong.renew(1, TTL, 10, 1).alone(2, 20, 11);
        assert_eq!(wrong.rules(), [Rule::Overlap]);
    }
    let mut wrong = script();
    wrong
        .alone(1, 0, 10)
        .ended_by_hand(Some(1), 5)
        .alone(2, 8, 11);
    assert_eq!(wrong.rules(), [Rule::Overlap]);
}

#[test]
fn a_clock_that_is_set_ahead_ends_leases_by_as_much_and_not_by_more() {
    for (by, expected) in [(TTL, vec![]), (TTL / 2, vec![Rule::Overlap])] {
        let mut script = script();
        script.alone(1, 0, 10).alone(2, 100, 11);
        let (from, to, by) = (50 * MS, 51 * MS, by * MS);
        script.0.leaps.push(Leap { from, to, by });
        assert_eq!(script.rules(), expected);
    }
}
