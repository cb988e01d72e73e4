//! Each rule of a round by itself, and all of them in random histories.

use super::node::Node;
use crate::lock::fence::Token;
use crate::lock::lease::{MAX_TTL_MS, Ttl};
use crate::lock::time::{SteadyMicros, UnixMillis};
use crate::quorum::attempt::Attempt;
use crate::quorum::round::{
    Answer, Counts, MAX_NODES, Message, Nodes, Outcome, Request, Round, Step, validity,
};
use proptest::prelude::*;
use std::collections::VecDeque;

const ATTEMPT: Attempt = Attempt(1);
const TTL: i64 = 1_000;
/// What is left of [`TTL`] if no time has passed.
const LONGEST: u64 = 1_000 - 10 - 2;
const NO_LOCK: Answer = Answer::NoLock { at: UnixMillis(77) };
const RELEASED: Answer = Answer::Released(ATTEMPT);
const ACQUIRE_ANSWERS: [Answer; 3] = [Answer::Refused, Answer::Failed, Answer::Unknown];

fn token(value: u64) -> Token {
    Token::new(value).expect("in range")
}

fn granted(value: u64) -> Answer {
    Answer::Granted(token(value))
}

fn renewed(value: u64) -> Answer {
    Answer::Renewed {
        token: token(value),
        attempt: ATTEMPT,
    }
}

fn ttl() -> Ttl {
    Ttl::from_millis(TTL).expect("in range")
}

fn acquire() -> Request {
    Request::Acquire {
        ttl: ttl(),
        token: token(5),
        attempt: ATTEMPT,
    }
}

fn renew() -> Request {
    let token = None;
    Request::Renew { ttl: ttl(), token }
}

fn at(millis: u64) -> SteadyMicros {
    SteadyMicros(1_000_000 + millis * 1_000)
}

fn begin(request: Request, nodes: usize) -> Round {
    let nodes = Nodes::new(nodes).expect("a few");
    let (round, steps) = Round::new(request, nodes, at(0));
    assert_eq!(steps.len(), nodes.count());
    assert_eq!(sent_to(&steps), (0..nodes.count()).collect::<Vec<_>>());
    round
}

/// What comes of answers at once, one from each node in order.
fn all_answer(round: &mut Round, answers: &[Answer]) -> Vec<Step> {
    let steps = |(node, answer): (usize, &Answer)| round.answered(node, *answer, at(0));
    answers.iter().enumerate().flat_map(steps).collect()
}

fn outcomes(steps: &[Step]) -> Vec<Outcome> {
    let outcome = |step: &Step| match step {
        Step::Answer(outcome) => Some(*outcome),
        Step::Send { .. } => None,
    };
    steps.iter().filter_map(outcome).collect()
}

fn sent_to(steps: &[Step]) -> Vec<usize> {
    let node = |step: &Step| match step {
        Step::Send { node, .. } => Some(*node),
        Step::Answer(_) => None,
    };
    steps.iter().filter_map(node).collect()
}

fn send(node: usize, message: Message) -> Step {
    Step::Send { node, message }
}

fn settle(node: usize, from: u64, to: u64) -> Step {
    let (attempt, from, to) = (ATTEMPT, token(from), token(to));
    send(node, Message::Settle { attempt, from, to })
}

fn unvotes(nodes: usize) -> Vec<Step> {
    let attempt = ATTEMPT;
    let message = Message::Unvote { attempt };
    (0..nodes).map(|node| send(node, message)).collect()
}

fn acquired(value: u64, validity: u64) -> Outcome {
    let token = token(value);
    Outcome::Acquired { token, validity }
}

#[test]
fn a_majority_is_more_than_half_of_those_configured() {
    assert_eq!(Nodes::new(0), None);
    assert_eq!(Nodes::new(MAX_NODES + 1), None);
    for (nodes, majority) in [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (15, 8)] {
        assert_eq!(Nodes::new(nodes).map(Nodes::majority), Some(majority));
    }
}

#[test]
fn validity_is_what_is_left_of_the_lease_by_any_clock() {
    let of = |millis, elapsed| validity(Ttl::from_millis(millis).expect("in range"), elapsed);
    assert_eq!(of(1_000, 0), Some(988));
    assert_eq!(of(1_000, 1), Some(987));
    assert_eq!(of(1_000, 1_000), Some(987));
    assert_eq!(of(1_000, 1_001), Some(986));
    assert_eq!(of(1_000, 987_000), Some(1));
    assert_eq!(of(1_000, 987_001), None);
    assert_eq!(of(1_000, u64::MAX), None);
    assert_eq!(of(3, 0), Some(1));
    assert_eq!(of(2, 0), None);
    assert_eq!(of(1, 0), None);
    assert!(of(MAX_TTL_MS, u64::MAX).is_none_or(|left| left < u64::MAX / 1_000));
}

#[test]
fn a_majority_of_one_token_has_the_lock() {
    let mut round = begin(acquire(), 3);
    assert_eq!(round.answered(2, granted(5), at(3)), []);
    assert!(!round.is_done());
    let steps = round.answered(0, granted(5), at(7));
    assert_eq!(steps, [Step::Answer(acquired(5, LONGEST - 7))]);
    assert!(!round.is_done());
    assert_eq!(round.answered(1, granted(5), at(8)), []);
    assert!(round.is_done());
}

/// redlock-py PR#6: half of the nodes, or a majority of the nodes that answer, is none.
#[test]
fn half_of_the_nodes_is_no_majority() {
    let mut round = begin(acquire(), 4);
    let steps = all_answer(&mut round, &[granted(5), granted(5)]);
    assert_eq!(steps, []);
    assert_eq!(round.answered(2, Answer::Unknown, at(1)), []);
    let steps = round.answered(3, Answer::Unknown, at(2));
    assert_eq!(steps[..4], unvotes(4));
    let counts = Counts {
        agreed: 2,
        unknown: 2,
        ..Counts::default()
    };
    assert_eq!(steps[4..], [Step::Answer(Outcome::NoQuorum(counts))]);
}

#[test]
fn one_node_is_a_quorum() {
    let mut round = begin(acquire(), 1);
    let steps = round.answered(0, granted(9), at(1));
    assert_eq!(steps, [Step::Answer(acquired(9, LONGEST - 1))]);
    assert!(round.is_done());
}

#[test]
fn the_highest_token_is_written_back_before_the_client_is_told() {
    let mut round = begin(acquire(), 5);
    assert_eq!(all_answer(&mut round, &[granted(5), granted(9)]), []);
    let steps = round.answered(2, granted(7), at(1));
    assert_eq!(steps, [settle(0, 5, 9), settle(2, 7, 9)]);
    // One that comes later is told as well, also if its own is higher.
    assert_eq!(round.answered(3, granted(11), at(2)), [settle(3, 11, 9)]);
    assert_eq!(round.answered(3, granted(9), at(3)), []);
    let steps = round.answered(2, granted(9), at(4));
    assert_eq!(steps, [Step::Answer(acquired(9, LONGEST - 4))]);
    assert_eq!(round.answered(0, Answer::Unknown, at(5)), []);
    assert!(!round.is_done());
    assert_eq!(round.answered(4, granted(6), at(6)), [settle(4, 6, 9)]);
    assert!(round.is_done());
    assert_eq!(round.answered(4, granted(9), at(7)), []);
}

#[test]
fn a_node_that_does_not_store_the_token_is_no_member() {
    for answer in [Answer::Refused, Answer::Failed, Answer::Unknown, granted(6)] {
        let mut round = begin(acquire(), 3);
        let steps = all_answer(&mut round, &[granted(5), granted(9)]);
        assert_eq!(steps, [settle(0, 5, 9)]);
        assert_eq!(round.answered(0, answer, at(1)), []);
        // The third can still make up for it.
        let mut other = round.clone();
        let steps = other.answered(2, granted(9), at(2));
        assert_eq!(steps, [Step::Answer(acquired(9, LONGEST - 2))]);
        let steps = round.answered(2, Answer::Refused, at(2));
        assert_eq!(steps[..3], unvotes(3));
        assert_eq!(outcomes(&steps), [Outcome::NotAcquired]);
        assert!(round.is_done());
    }
}

#[test]
fn who_did_not_grant_is_left_alone_after_a_success() {
    for answer in ACQUIRE_ANSWERS {
        let mut round = begin(acquire(), 3);
        all_answer(&mut round, &[granted(5), granted(5)]);
        assert_eq!(round.answered(2, answer, at(1)), []);
        assert!(round.is_done());
    }
}

#[test]
fn a_late_node_is_told_only_while_the_majority_surely_has_the_lock() {
    let mut round = begin(acquire(), 3);
    all_answer(&mut round, &[granted(5), granted(5)]);
    assert_eq!(round.answered(2, granted(6), at(LONGEST)), []);
    assert!(round.is_done());
}

/// node-redlock#369.
#[test]
fn a_slow_majority_uses_up_the_validity() {
    let mut round = begin(acquire(), 3);
    assert_eq!(round.answered(0, granted(5), at(1)), []);
    let mut late = round.clone();
    let steps = late.answered(1, granted(5), at(LONGEST));
    assert_eq!(steps[..3], unvotes(3));
    let counts = Counts {
        agreed: 2,
        unknown: 1,
        ..Counts::default()
    };
    assert_eq!(outcomes(&steps), [Outcome::NoQuorum(counts)]);
    assert!(late.is_done());

    let steps = round.answered(1, granted(5), at(LONGEST - 1));
    assert_eq!(steps, [Step::Answer(acquired(5, 1))]);
}

#[test]
fn the_deadline_ends_a_round_that_nobody_answers() {
    let mut round = begin(acquire(), 3);
    let deadline = round.deadline().expect("one");
    assert_eq!(deadline, at(LONGEST));
    assert_eq!(round.passed(SteadyMicros(deadline.0 - 1_000)), []);
    let steps = round.passed(deadline);
    assert_eq!(steps[..3], unvotes(3));
    let counts = Counts {
        unknown: 3,
        ..Counts::default()
    };
    assert_eq!(outcomes(&steps), [Outcome::NoQuorum(counts)]);
    assert_eq!(round.deadline(), None);
    assert_eq!(round.passed(deadline), []);
}

#[test]
fn a_write_back_that_takes_too_long_is_a_failure() {
    let mut round = begin(acquire(), 3);
    all_answer(&mut round, &[granted(5), granted(9)]);
    let steps = round.passed(at(LONGEST));
    assert_eq!(steps[..3], unvotes(3));
    let counts = Counts {
        agreed: 1,
        unknown: 2,
        ..Counts::default()
    };
    assert_eq!(outcomes(&steps), [Outcome::NoQuorum(counts)]);
}

#[test]
fn a_round_fails_as_soon_as_it_is_clear_why() {
    let (no, bad, lost) = (Answer::Refused, Answer::Failed, Answer::Unknown);
    for (answers, outcome) in [
        // A majority has refused, or cannot answer any more.
        (&[no, no, no][..], Some(Outcome::NotAcquired)),
        (&[no, no, granted(5), no], Some(Outcome::NotAcquired)),
        (&[bad, lost, no, bad], None),
        (&[bad, lost, lost], None),
        // Three cannot grant it, and it depends on the others whether a majority answers.
        (
            &[no, bad, lost, granted(5), granted(5)],
            Some(Outcome::NotAcquired),
        ),
        (&[no, bad, lost, no, granted(5)], Some(Outcome::NotAcquired)),
        (&[no, bad, lost, no, no], Some(Outcome::NotAcquired)),
        (&[no, bad, lost, lost], None),
        (&[no, no, lost, granted(5)], Some(Outcome::NotAcquired)),
    ] {
        let mut round = begin(acquire(), 5);
        let (last, before) = answers.split_last().expect("some");
        assert_eq!(all_answer(&mut round, before), [], "{answers:?}");
        let steps = round.answered(before.len(), *last, at(1));
        assert_eq!(steps[..5], unvotes(5), "{answers:?}");
        let [told] = outcomes(&steps)[..] else {
            panic!("{steps:?}");
        };
        match outcome {
            Some(outcome) => assert_eq!(told, outcome, "{answers:?}"),
            None => assert!(matches!(told, Outcome::NoQuorum(_)), "{answers:?}"),
        }
        assert!(round.is_done());
        for node in answers.len()..5 {
            assert_eq!(round.answered(node, granted(5), at(2)), []);
        }
    }
}

#[test]
fn the_reason_is_told_if_nodes_are_missing_and_not_if_they_refuse() {
    let outcome = |answers: &[Answer]| {
        let mut round = begin(acquire(), answers.len());
        outcomes(&all_answer(&mut round, answers))[0]
    };
    let (no, bad, lost) = (Answer::Refused, Answer::Failed, Answer::Unknown);
    assert_eq!(outcome(&[no, no, granted(5)]), Outcome::NotAcquired);
    assert_eq!(outcome(&[no, granted(5), bad]), Outcome::NotAcquired);
    let counts = Counts {
        agreed: 1,
        failed: 1,
        unknown: 1,
        ..Counts::default()
    };
    assert_eq!(outcome(&[bad, granted(5), lost]), Outcome::NoQuorum(counts));
    // Of four, two are enough to keep the rest from it, but are no majority that answered.
    let counts = Counts {
        refused: 2,
        failed: 1,
        unknown: 1,
        ..Counts::default()
    };
    assert_eq!(outcome(&[no, no, bad, lost]), Outcome::NoQuorum(counts));
    let counts = Counts {
        agreed: 1,
        failed: 1,
        unknown: 1,
        unheard: 1,
        ..Counts::default()
    };
    let answers = [granted(5), bad, lost, granted(5)];
    assert_eq!(outcome(&answers), Outcome::NoQuorum(counts));
}

#[test]
fn an_answer_to_something_else_is_a_failure() {
    for answer in [renewed(5), RELEASED, Answer::NotYours, NO_LOCK] {
        let mut round = begin(acquire(), 1);
        let steps = round.answered(0, answer, at(0));
        assert!(matches!(outcomes(&steps)[..], [Outcome::NoQuorum(counts)] if counts.failed == 1));
    }
    let mut round = begin(renew(), 1);
    assert!(matches!(
        outcomes(&round.answered(0, granted(5), at(0)))[..],
        [Outcome::NoQuorum(_)]
    ));
    let mut round = begin(acquire(), 1);
    assert_eq!(round.answered(1, granted(5), at(0)), []);
    assert_eq!(round.answered(usize::MAX, granted(5), at(0)), []);
}

#[test]
fn a_renewal_needs_a_majority_in_time() {
    let mut round = begin(renew(), 3);
    assert_eq!(round.answered(0, renewed(5), at(1)), []);
    let mut late = round.clone();
    let told = Outcome::Renewed {
        token: token(5),
        validity: LONGEST - 2,
    };
    assert_eq!(round.answered(1, renewed(5), at(2)), [Step::Answer(told)]);
    assert_eq!(round.answered(2, Answer::NotYours, at(2)), []);
    assert!(round.is_done());

    let steps = late.answered(1, renewed(5), at(LONGEST));
    assert!(
        matches!(steps[..], [Step::Answer(Outcome::NoQuorum(counts))] if counts.agreed == 2),
        "{steps:?}"
    );
    assert!(late.is_done());
}

#[test]
fn a_renewal_counts_those_that_agree_on_the_hold() {
    let other = Answer::Renewed {
        token: token(5),
        attempt: Attempt(2),
    };
    for second in [renewed(6), other] {
        let mut round = begin(renew(), 3);
        assert_eq!(all_answer(&mut round, &[renewed(5), second]), []);
        let mut none = round.clone();
        let steps = none.answered(2, NO_LOCK, at(0));
        assert_eq!(steps, [Step::Answer(Outcome::NoLock)]);
        let steps = round.answered(2, renewed(5), at(0));
        assert!(matches!(
            steps[0],
            Step::Answer(Outcome::Renewed { token: told, .. }) if told == token(5)
        ));
        // A hold of another attempt is not touched.
        let settles = if second == other {
            vec![]
        } else {
            vec![settle(1, 6, 5)]
        };
        assert_eq!(steps[1..], settles);
    }
}

/// redsync#186.
#[test]
fn a_renewal_locks_those_again_that_lost_it() {
    let relock = |node, within| {
        send(
            node,
            Message::Relock {
                token: token(5),
                attempt: ATTEMPT,
                at: UnixMillis(77),
                within,
            },
        )
    };
    let mut round = begin(renew(), 5);
    let answers = [NO_LOCK, renewed(5), renewed(5)];
    assert_eq!(all_answer(&mut round, &answers), []);
    let steps = round.answered(3, renewed(5), at(4));
    assert_eq!(steps[1..], [relock(0, LONGEST - 4)]);
    let mut late = round.clone();
    let steps = round.answered(4, NO_LOCK, at(6));
    assert_eq!(steps, [relock(4, LONGEST - 6)]);
    assert_eq!(late.answered(4, NO_LOCK, at(LONGEST)), []);
    assert!(round.is_done());
}

#[test]
fn a_renewal_says_why_it_failed() {
    let outcome = |answers: &[Answer]| {
        let mut round = begin(renew(), answers.len());
        let steps = all_answer(&mut round, answers);
        let [Step::Answer(outcome)] = steps[..] else {
            panic!("{steps:?}");
        };
        outcome
    };
    let (not_yours, bad, lost) = (Answer::NotYours, Answer::Failed, Answer::Unknown);
    assert_eq!(outcome(&[NO_LOCK, NO_LOCK, bad]), Outcome::NoLock);
    assert_eq!(outcome(&[NO_LOCK, not_yours, bad]), Outcome::NotYours);
    assert_eq!(
        outcome(&[renewed(5), not_yours, NO_LOCK]),
        Outcome::NotYours
    );
    assert_eq!(outcome(&[lost, not_yours, NO_LOCK]), Outcome::NotYours);
    assert_eq!(outcome(&[renewed(5), NO_LOCK, NO_LOCK]), Outcome::NoLock);
    for answers in [
        [renewed(5), NO_LOCK, lost],
        [renewed(5), not_yours, bad],
        [renewed(5), lost, bad],
        [NO_LOCK, lost, bad],
    ] {
        assert!(
            matches!(outcome(&answers), Outcome::NoQuorum(_)),
            "{answers:?}"
        );
    }
    // A third answer can tell more.
    let mut round = begin(renew(), 3);
    assert_eq!(all_answer(&mut round, &[NO_LOCK, lost]), []);
    assert_eq!(
        outcomes(&round.answered(2, not_yours, at(0))),
        [Outcome::NotYours]
    );
}

#[test]
fn a_release_is_what_a_majority_says() {
    let outcome = |answers: &[Answer]| {
        let mut round = begin(Request::Release { token: None }, answers.len());
        assert_eq!(round.deadline(), None);
        let steps = all_answer(&mut round, answers);
        assert!(round.is_done());
        let [outcome] = outcomes(&steps)[..] else {
            panic!("{steps:?}");
        };
        outcome
    };
    let (yes, not_yours, lost) = (RELEASED, Answer::NotYours, Answer::Unknown);
    assert_eq!(outcome(&[yes, yes, lost]), Outcome::Released);
    assert_eq!(outcome(&[NO_LOCK, yes, yes]), Outcome::Released);
    assert_eq!(outcome(&[NO_LOCK, NO_LOCK, yes]), Outcome::NoLock);
    assert_eq!(outcome(&[not_yours, NO_LOCK, lost]), Outcome::NotYours);
    assert_eq!(outcome(&[yes, yes, NO_LOCK, NO_LOCK]), Outcome::NoLock);
    let counts = Counts {
        agreed: 1,
        refused: 1,
        unknown: 1,
        ..Counts::default()
    };
    assert_eq!(outcome(&[yes, NO_LOCK, lost]), Outcome::NoQuorum(counts));
}

#[test]
fn a_release_is_carried_to_nodes_that_did_not_end_the_hold() {
    let unvote = |node, attempt| send(node, Message::Unvote { attempt });
    let released = Step::Answer(Outcome::Released);
    for other in [
        Answer::NotYours,
        NO_LOCK,
        Answer::Failed,
        Answer::Unknown,
        Answer::Released(Attempt(2)),
    ] {
        // Before the client is told, and after.
        let mut round = begin(Request::Release { token: None }, 3);
        assert_eq!(all_answer(&mut round, &[RELEASED, other]), []);
        let steps = round.answered(2, RELEASED, at(0));
        assert_eq!(steps, [released, unvote(1, ATTEMPT)]);
        assert!(round.is_done());
        let mut round = begin(Request::Release { token: None }, 3);
        assert_eq!(all_answer(&mut round, &[RELEASED, RELEASED]), [released]);
        assert!(!round.is_done());
        assert_eq!(round.answered(2, other, at(1)), [unvote(2, ATTEMPT)]);
        assert!(round.is_done());
    }
    // Where all have ended it there is nothing to send.
    let mut round = begin(Request::Release { token: None }, 3);
    let answers = [RELEASED, RELEASED, RELEASED];
    assert_eq!(all_answer(&mut round, &answers), [released]);
    // A minority can have ended another hold of the owner's.
    let mut round = begin(Request::Release { token: None }, 3);
    let other = Answer::Released(Attempt(2));
    let told = Step::Answer(Outcome::NoLock);
    assert_eq!(all_answer(&mut round, &[RELEASED, other, NO_LOCK]), [told]);
    assert!(round.is_done());
}

/// Every answer that three and four nodes can give, in every order: what is decided does not depend
/// on the order, but for how much was heard by then.
#[test]
fn every_order_of_all_answers() {
    let answers = [granted(5), Answer::Refused, Answer::Failed, Answer::Unknown];
    for nodes in [3, 4] {
        let majority = nodes / 2 + 1;
        for combination in 0..4usize.pow(u32::try_from(nodes).expect("small")) {
            let said: Vec<_> = (0..nodes)
                .map(|node| {
                    answers[combination / 4usize.pow(u32::try_from(node).expect("small")) % 4]
                })
                .collect();
            let answered = said
                .iter()
                .filter(|it| matches!(it, Answer::Granted(_) | Answer::Refused))
                .count();
            let is_granted = said.iter().filter(|it| **it == answers[0]).count() >= majority;
            for order in orders(nodes) {
                let mut round = begin(acquire(), nodes);
                let mut steps = Vec::new();
                for node in order {
                    let more = round.answered(node, said[node], at(1));
                    assert!(more.is_empty() || steps.is_empty());
                    steps.extend(more);
                    assert_eq!(round.answered(node, granted(8), at(1)), []);
                }
                assert!(round.is_done());
                if is_granted {
                    assert_eq!(steps, [Step::Answer(acquired(5, LONGEST - 1))]);
                } else {
                    assert_eq!(steps[..nodes], unvotes(nodes));
                    let [outcome] = outcomes(&steps)[..] else {
                        panic!("{steps:?}");
                    };
                    assert_eq!(outcome == Outcome::NotAcquired, answered >= majority);
                }
            }
        }
    }
}

fn orders(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![vec![]];
    }
    let mut all = Vec::new();
    for shorter in orders(count - 1) {
        for place in 0..count {
            let mut order = shorter.clone();
            order.insert(place, count - 1);
            all.push(order);
        }
    }
    all
}

/// What becomes of the messages to one node.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Normal,
    /// It answers with an error and does nothing.
    Broken,
    /// Nothing arrives.
    Lost,
    /// Everything arrives, and no answer comes back.
    Mute,
}

#[derive(Clone, Debug)]
struct Plan {
    fate: Fate,
    highest: u64,
    /// Somebody else holds the lock.
    is_held: bool,
}

fn plan() -> impl Strategy<Value = Plan> {
    let fate = prop_oneof![
        6 => Just(Fate::Normal),
        1 => Just(Fate::Broken),
        1 => Just(Fate::Lost),
        1 => Just(Fate::Mute),
    ];
    let held = prop::bool::weighted(0.2);
    (fate, 0..8u64, held).prop_map(|(fate, highest, is_held)| Plan {
        fate,
        highest,
        is_held,
    })
}

/// Rounds with nodes, whose messages arrive in the order in which they were sent.
struct Network {
    round: Round,
    nodes: Vec<Node>,
    plans: Vec<Plan>,
    queues: Vec<VecDeque<Message>>,
    outcomes: Vec<Outcome>,
    sent: Vec<Message>,
    now: u64,
}

impl Network {
    fn new(request: Request, plans: &[Plan]) -> Self {
        let count = Nodes::new(plans.len()).expect("a few");
        let (round, steps) = Round::new(request, count, at(0));
        let mut network = Self {
            round,
            nodes: Vec::new(),
            plans: plans.to_vec(),
            queues: vec![VecDeque::new(); plans.len()],
            outcomes: Vec::new(),
            sent: Vec::new(),
            now: 0,
        };
        for plan in plans {
            let mut node = Node {
                highest: plan.highest,
                ..Node::default()
            };
            if plan.is_held {
                let message = Message::Vote {
                    token: token(1),
                    attempt: Attempt(99),
                };
                node.handle(message, 9, 1_000_000, 0, None);
            }
            network.nodes.push(node);
        }
        network.follow(steps);
        network
    }

    fn follow(&mut self, steps: Vec<Step>) {
        for step in steps {
            match step {
                Step::Send { node, message } => {
                    self.queues[node].push_back(message);
                    self.sent.push(message);
                }
                Step::Answer(outcome) => self.outcomes.push(outcome),
            }
        }
    }

    /// One message arrives and is answered, if there is any.
    fn deliver(&mut self, pick: prop::sample::Index) -> bool {
        let busy: Vec<_> = (0..self.queues.len())
            .filter(|node| !self.queues[*node].is_empty())
            .collect();
        if busy.is_empty() {
            return false;
        }
        let index = busy[pick.index(busy.len())];
        let Some(message) = self.queues[index].pop_front() else {
            return false;
        };
        let now = u32::try_from(self.now).expect("soon");
        let ttl = u32::try_from(TTL).expect("short");
        let mut handle = || self.nodes[index].handle(message, 1, ttl, now, None);
        let answer = match self.plans[index].fate {
            Fate::Normal => handle(),
            Fate::Broken => Answer::Failed,
            Fate::Lost => Answer::Unknown,
            Fate::Mute => {
                handle();
                Answer::Unknown
            }
        };
        let was_done = self.round.is_done();
        let steps = self.round.answered(index, answer, at(self.now));
        assert!(!was_done || steps.is_empty(), "{steps:?} after the end");
        self.follow(steps);
        true
    }

    fn holders(&self) -> Vec<(usize, Token)> {
        let hold = |(index, node): (usize, &Node)| {
            let hold = node.hold.filter(|hold| hold.owner == 1)?;
            Some((index, hold.token))
        };
        self.nodes.iter().enumerate().filter_map(hold).collect()
    }

    fn is_reached(&self, node: usize) -> bool {
        matches!(self.plans[node].fate, Fate::Normal | Fate::Mute)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Whatever the nodes do and the order of answers is: the client is told once; it has the lock
    /// only if a majority stores its token; and of an attempt that failed nothing is left.
    #[test]
    fn an_acquire_is_all_or_nothing(
        plans in prop::collection::vec(plan(), 1..=MAX_NODES),
        picks in prop::collection::vec((any::<prop::sample::Index>(), 0..40u64), 60),
    ) {
        let count = plans.len();
        let mut network = Network::new(acquire(), &plans);
        for (pick, passes) in picks {
            network.now += passes;
            if !network.deliver(pick) {
                break;
            }
            if let [Outcome::Acquired { token, validity }] = network.outcomes[..] {
                let have = network.holders().iter().filter(|(_, it)| *it == token).count();
                prop_assert!(have > count / 2);
                prop_assert!(validity <= LONGEST);
            }
        }
        prop_assert!(network.round.is_done());
        prop_assert_eq!(network.outcomes.len(), 1);
        let unvoted = network.sent.iter().filter(|it| matches!(it, Message::Unvote { .. })).count();
        if let Outcome::Acquired { token, .. } = network.outcomes[0] {
            prop_assert_eq!(unvoted, 0);
            // Those that were late for the answer have the same token, if they were in time at all.
            for (node, held) in network.holders() {
                let is_told = matches!(plans[node].fate, Fate::Normal) && network.now < LONGEST;
                prop_assert!(held == token || !is_told);
            }
        } else {
            prop_assert_eq!(unvoted, count);
            prop_assert_eq!(network.holders(), []);
        }
    }

    /// A client that goes, at any moment, leaves nothing behind, and nothing is told after that.
    #[test]
    fn a_client_that_goes_leaves_nothing(
        plans in prop::collection::vec(plan(), 1..=7),
        before in 0..20usize,
        picks in prop::collection::vec(any::<prop::sample::Index>(), 40),
    ) {
        let count = plans.len();
        let mut network = Network::new(acquire(), &plans);
        for pick in &picks[..before] {
            network.deliver(*pick);
        }
        let has_failed = network.sent.iter().any(|it| matches!(it, Message::Unvote { .. }));
        let told = network.outcomes.len();
        let steps = network.round.client_gone();
        prop_assert_eq!(&steps, &if has_failed { vec![] } else { unvotes(count) });
        network.follow(steps);
        prop_assert!(network.round.is_done());
        prop_assert_eq!(network.round.client_gone(), []);
        prop_assert_eq!(network.round.deadline(), None);
        for pick in picks {
            network.deliver(pick);
        }
        prop_assert_eq!(network.outcomes.len(), told);
        for (node, _) in network.holders() {
            prop_assert!(!network.is_reached(node));
        }
    }

    /// redsync#151: no renewal releases anything. One that fails sends nothing after the renewal
    /// itself, one that succeeds only to nodes that do not agree.
    #[test]
    fn a_renewal_releases_nothing(
        answers in prop::collection::vec(
            prop_oneof![
                3 => (5..7u64).prop_map(renewed),
                1 => Just(Answer::NotYours),
                1 => Just(NO_LOCK),
                1 => Just(Answer::Failed),
                1 => Just(Answer::Unknown),
            ],
            1..=MAX_NODES,
        ),
        order in any::<prop::sample::Index>(),
        slow in 0..400u64,
    ) {
        let count = answers.len();
        let mut round = begin(renew(), count);
        let mut steps = Vec::new();
        for turn in 0..count {
            let node = (turn + order.index(count)) % count;
            let now = at(turn as u64 * slow);
            steps.extend(round.answered(node, answers[node], now));
            if turn % 3 == 0 {
                prop_assert_eq!(round.client_gone(), []);
            }
        }
        prop_assert!(round.is_done());
        let [outcome] = outcomes(&steps)[..] else {
            return Err(TestCaseError::fail(format!("{steps:?}")));
        };
        let agreed = |value| answers.iter().filter(|it| **it == renewed(value)).count();
        let best = agreed(5).max(agreed(6));
        if let Outcome::Renewed { token, .. } = outcome {
            prop_assert!(agreed(token.get()) > count / 2);
            for step in steps {
                match step {
                    Step::Send { node, message: Message::Relock { .. } } => {
                        prop_assert_eq!(answers[node], NO_LOCK);
                    }
                    Step::Send { node, message: Message::Settle { from, .. } } => {
                        prop_assert_eq!(answers[node], renewed(from.get()));
                        prop_assert!(from != token);
                    }
                    Step::Send { message, .. } => {
                        return Err(TestCaseError::fail(format!("{message:?}")));
                    }
                    Step::Answer(_) => {}
                }
            }
        } else {
            prop_assert_eq!(steps.len(), 1);
            // Too late is no reason to say that there is no lock.
            prop_assert!(best <= count / 2 || matches!(outcome, Outcome::NoQuorum(_)));
            if matches!(outcome, Outcome::NotYours) {
                prop_assert!(answers.contains(&Answer::NotYours));
            }
        }
    }
}
