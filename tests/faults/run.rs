//! One run: clients, faults, and what is found in the end.

use std::env;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::panic;
use std::thread;
use std::time::Instant;

use super::check::{Rule, Violation, check};
use super::driver::{Driver, Manners};
use super::history::{History, MS, Outcome};
use super::stage::Stage;
use crate::harness::{Flavour, Server};
use crate::random::Random;
use crate::waiters::nobody_waits;

/// How many requests are sent if nobody says otherwise.
const OPERATIONS: usize = 2_000;

/// How many requests are sent before the history is looked at and begins anew.
const ROUND: usize = 100_000;

/// How many faults there are at least in each round.
const FAULTS: usize = 2;

/// How many violations a failure shows.
const SHOWN: usize = 5;

/// How many requests are to be sent.
pub(super) fn operations() -> usize {
    env::var("REDIS_LOCK_OPERATIONS").map_or(OPERATIONS, |count| {
        count.parse().expect("REDIS_LOCK_OPERATIONS is a number")
    })
}

/// How many requests lie between two faults: more in a long run, so that it has time for both.
pub(super) fn pace() -> usize {
    (operations() / 200).max(300)
}

/// What a run came to.
#[derive(Default)]
struct Findings {
    operations: usize,
    grants: usize,
    faults: usize,
    /// Holds that a fault ended which is known to do so.
    ended: usize,
    violations: Vec<Violation>,
    odd: Vec<String>,
}

/// Runs clients on a server and makes faults on it.
pub(super) fn on_one(
    class: &str,
    flavour: Flavour,
    manners: Manners,
    mut fault: impl FnMut(&Server, &Stage) + Send,
) {
    let server = Server::start(flavour);
    let stage = Stage::new(&server, pace());
    run(class, flavour, &stage, manners, |stage| {
        fault(&server, stage);
    });
    nobody_waits(&server);
}

/// Runs clients on a stage, makes a fault again and again, and looks at all that happened. A fault
/// is over and healed when `fault` returns.
pub(super) fn run(
    class: &str,
    flavour: Flavour,
    stage: &Stage,
    manners: Manners,
    mut fault: impl FnMut(&Stage) + Send,
) {
    let (random, seed) = Random::with_seed();
    let start = Instant::now();
    let mut driver = Driver::new(stage, manners, random).expect("a driver");
    let mut findings = Findings::default();
    while findings.operations < operations() {
        let target = (operations() - findings.operations).min(ROUND);
        findings.faults += drive(&mut driver, stage, target, &mut fault);
        let (mut history, odd) = driver.drain();
        let (breaks, leaps) = stage.take_faults();
        history.breaks.extend(breaks);
        history.leaps = leaps;
        findings.add(history, odd);
        if !findings.violations.is_empty() || !findings.odd.is_empty() {
            break;
        }
    }
    findings.record(class, flavour, start, seed);
    findings.assert_none();
}

/// Lets clients send so many requests while faults are made. Returns how many were made.
fn drive(
    driver: &mut Driver<'_>,
    stage: &Stage,
    target: usize,
    fault: &mut (impl FnMut(&Stage) + Send),
) -> usize {
    stage.set_over(false);
    thread::scope(|scope| {
        let faults = scope.spawn(|| {
            let mut faults = 0;
            while faults < FAULTS || !stage.is_over() {
                stage.let_clients_work();
                fault(stage);
                faults += 1;
            }
            faults
        });
        while !faults.is_finished() {
            driver.turn();
            stage.set_over(driver.done() >= target);
        }
        let made = faults.join();
        made.unwrap_or_else(|panic| panic::resume_unwind(panic))
    })
}

impl Findings {
    fn add(&mut self, mut history: History, odd: Vec<String>) {
        self.operations += history.ops.len();
        let granted = |outcome| matches!(outcome, Outcome::Granted(_));
        self.grants += history.ops.iter().filter(|op| granted(op.outcome)).count();
        self.violations.extend(check(&history));
        self.odd.extend(odd);
        if self.violations.is_empty() {
            // What would be wrong if the faults had no right to end a hold.
            history.breaks.retain(|of| of.key.is_some());
            history.leaps.clear();
            self.ended += check(&history).len();
        }
    }

    /// Appends a row to the file of results, if one is wanted.
    fn record(&self, class: &str, flavour: Flavour, start: Instant, seed: u64) {
        let Ok(path) = env::var("REDIS_LOCK_RESULTS") else {
            return;
        };
        let mut file = File::options()
            .create(true)
            .append(true)
            .open(path)
            .expect("the file that REDIS_LOCK_RESULTS names");
        let row = format!(
            "{class}\t{}\t{}\t{}\t{}\t{}\t{}\t{:.1}\t{seed}\n",
            flavour.name(),
            self.operations,
            self.grants,
            self.faults,
            self.violations.len() + self.odd.len(),
            self.ended,
            start.elapsed().as_secs_f64(),
        );
        file.write_all(row.as_bytes()).expect("a row of results");
    }

    fn assert_none(&self) {
        let mut text = String::new();
        for Violation { rule, ops } in self.violations.iter().take(SHOWN) {
            let _ = writeln!(text, "{rule:?}: {}", meaning(*rule));
            for op in ops {
                let (sent, returned) = (op.sent / MS, op.returned / MS);
                let _ = writeln!(text, "  {sent} ms to {returned} ms: {op:?}");
            }
        }
        for odd in self.odd.iter().take(SHOWN) {
            let _ = writeln!(text, "{odd}");
        }
        let count = self.violations.len() + self.odd.len();
        assert!(count == 0, "{count} violations\n{text}");
        let (grants, operations) = (self.grants, self.operations);
        assert!(grants > operations / 20, "{grants} grants");
    }
}

fn meaning(rule: Rule) -> &'static str {
    match rule {
        Rule::Overlap => "two hold the lock at the same time",
        Rule::OverLimit => "more hold the lock than may",
        Rule::Token => "the token is not the right one",
        Rule::Order => "the later request was granted first",
        Rule::Lost => "a hold was lost",
        Rule::Balance => "a hold was ended that there was not",
        Rule::Open => "a request never ended",
    }
}
