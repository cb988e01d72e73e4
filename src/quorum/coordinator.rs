//! The coordinator: carries the requests of clients out, by rounds. No I/O, and time is an argument.
//!
//! It is told what clients want, what nodes answer and what time it is, and says what to send to
//! whom and what to tell the clients.

use super::attempt::Attempt;
use super::info::NodeInfo;
use super::link::Sent;
use super::requests::{answer_to, command_of, info_command, info_of, may_repeat};
use super::round::{Message, Nodes, Outcome, Request, Round, Step};
use super::settings::Settings;
use crate::lock::fence::Token;
use crate::lock::lease::Ttl;
use crate::lock::time::{SteadyMicros, UnixMicros};
use redis::Cmd;
use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::rc::Rc;
use std::time::Duration;

/// A request of a client of this server, by a number that is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Number(pub(crate) u64);

/// What a client wants of the quorum.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) key: Vec<u8>,
    pub(crate) owner: Vec<u8>,
    pub(crate) task: Task,
    /// Whether the lock is held beside others: what an acquire asks for, and what a renewal finds.
    pub(crate) is_shared: Cell<bool>,
}

/// See [`Job`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Task {
    Acquire { ttl: Ttl, patience: Patience },
    Renew { ttl: Ttl, token: Option<Token> },
    Release { token: Option<Token> },
    Info,
}

impl Task {
    /// The ttl that it asks for; that of what has none is not sent.
    pub(super) fn ttl(&self) -> Option<Ttl> {
        match *self {
            Self::Acquire { ttl, .. } | Self::Renew { ttl, .. } => Some(ttl),
            Self::Release { .. } | Self::Info => None,
        }
    }
}

/// For how long an acquire that failed is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    None,
    For(Duration),
    Forever,
}

/// What became of a request.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) number: Number,
    pub(crate) owner: Vec<u8>,
    pub(crate) result: Finished,
}

/// See [`Done`].
#[derive(Debug)]
pub(crate) enum Finished {
    Round(Outcome),
    /// What each node says of a lock, and how many there are.
    Info(Vec<NodeInfo>, Nodes),
    /// A mistake in this crate ended it.
    Broken,
}

/// One message to one node, as whoever carries it knows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tag {
    course: Course,
    pub(super) node: usize,
    what: What,
}

/// What a message is about.
#[derive(Clone, Copy, Debug)]
enum What {
    Round(Message),
    Info,
}

/// A message on its way out.
pub(super) struct Outgoing {
    pub(super) tag: Tag,
    pub(super) command: Rc<Cmd>,
    pub(super) may_repeat: bool,
}

/// One round, or one survey of the nodes, by a number that is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Course(u64);

/// See the [module](self).
pub(super) struct Coordinator {
    nodes: Nodes,
    /// Where they listen.
    addresses: Vec<String>,
    retry_delay: Duration,
    retry_jitter: Duration,
    /// The highest token that was proposed.
    proposed: u64,
    last_course: u64,
    requests: HashMap<Number, Asked>,
    rounds: HashMap<Course, Running>,
    surveys: HashMap<Course, Survey>,
    due: BTreeSet<(SteadyMicros, Due)>,
    outgoing: Vec<Outgoing>,
    done: Vec<Done>,
}

/// A request of which the client was not told yet, or of which it is not known whether it was.
struct Asked {
    job: Rc<Job>,
    start: SteadyMicros,
    stage: Stage,
}

#[derive(Clone, Copy)]
enum Stage {
    /// This round is carried out, or its outcome is on its way to the client.
    Asking(Course),
    /// Until this moment, before the next round.
    Pausing(SteadyMicros),
}

/// A round that messages are on their way for, or that may have to be taken back.
struct Running {
    number: Number,
    job: Rc<Job>,
    round: Round,
    /// When the round has to be looked at, as it stands in the list of what is due.
    deadline: Option<SteadyMicros>,
    unanswered: usize,
    /// Whether nothing that becomes of the client matters to the round any more.
    is_settled: bool,
}

/// What the nodes say of a lock.
struct Survey {
    number: Number,
    job: Rc<Job>,
    start: SteadyMicros,
    infos: Vec<Option<NodeInfo>>,
}

/// What there is to do at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Look(Course),
    Retry(Number),
}

impl Coordinator {
    /// `None` when there are no nodes, or too many. No token is proposed that is not above
    /// `proposed`.
    pub(super) fn new(settings: &Settings, proposed: u64) -> Option<Self> {
        Some(Self {
            nodes: Nodes::new(settings.nodes.len())?,
            addresses: settings.nodes.iter().map(ToString::to_string).collect(),
            retry_delay: settings.retry_delay,
            retry_jitter: settings.retry_jitter,
            proposed,
            last_course: 0,
            requests: HashMap::new(),
            rounds: HashMap::new(),
            surveys: HashMap::new(),
            due: BTreeSet::new(),
            outgoing: Vec::new(),
            done: Vec::new(),
        })
    }

    /// The highest token that was proposed.
    pub(super) fn proposed(&self) -> u64 {
        self.proposed
    }

    /// Whether nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.rounds.is_empty() && self.surveys.is_empty()
    }

    /// What is to be sent since this was asked before.
    pub(super) fn take_outgoing(&mut self) -> Vec<Outgoing> {
        mem::take(&mut self.outgoing)
    }

    /// What clients are to be told since this was asked before.
    pub(super) fn take_done(&mut self) -> Vec<Done> {
        mem::take(&mut self.done)
    }

    /// When to call [`pass`](Self::pass).
    pub(super) fn next_wake(&self) -> Option<SteadyMicros> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Begins a request.
    pub(super) fn ask(&mut self, number: Number, job: Job, now: SteadyMicros, wall: UnixMicros) {
        let job = Rc::new(job);
        if matches!(job.task, Task::Info) {
            return self.survey(number, job, now);
        }
        let stage = Stage::Pausing(now);
        let start = now;
        self.requests.insert(number, Asked { job, start, stage });
        self.begin_round(number, now, wall);
    }

    /// The client of a request is gone before it was told: what it was granted is released.
    pub(super) fn client_gone(&mut self, number: Number, now: SteadyMicros) {
        match self.requests.remove(&number).map(|request| request.stage) {
            Some(Stage::Pausing(until)) => {
                self.due.remove(&(until, Due::Retry(number)));
            }
            Some(Stage::Asking(course)) => {
                let Some(running) = self.rounds.get_mut(&course) else {
                    return;
                };
                running.is_settled = true;
                let steps = running.round.client_gone();
                self.follow(course, steps, now);
            }
            None => {}
        }
    }

    /// The client of a request was told what became of it.
    pub(super) fn client_told(&mut self, number: Number) {
        if let Some(Stage::Asking(course)) =
            self.requests.remove(&number).map(|request| request.stage)
        {
            if let Some(running) = self.rounds.get_mut(&course) {
                running.is_settled = true;
            }
            self.tidy(course);
        }
    }

    /// What came of a message. Each that was taken from [`take_outgoing`](Self::take_outgoing) has to
    /// come here once.
    pub(super) fn answered(&mut self, tag: Tag, sent: Sent, now: SteadyMicros) {
        match tag.what {
            What::Round(message) => {
                let Some(running) = self.rounds.get_mut(&tag.course) else {
                    return;
                };
                running.unanswered = running.unanswered.saturating_sub(1);
                let answer = answer_to(&running.job, message, sent);
                let steps = running.round.answered(tag.node, answer, now);
                self.follow(tag.course, steps, now);
            }
            What::Info => self.surveyed(tag, sent, now),
        }
    }

    /// Does what is due.
    pub(super) fn pass(&mut self, now: SteadyMicros, wall: UnixMicros) {
        while let Some((at, due)) = self.due.first().copied()
            && at <= now
        {
            self.due.pop_first();
            match due {
                Due::Retry(number) => self.begin_round(number, now, wall),
                Due::Look(course) => {
                    let Some(running) = self.rounds.get_mut(&course) else {
                        continue;
                    };
                    running.deadline = None;
                    let steps = running.round.passed(now);
                    self.follow(course, steps, now);
                }
            }
        }
    }

    /// Begins a round of a request.
    fn begin_round(&mut self, number: Number, now: SteadyMicros, wall: UnixMicros) {
        let course = self.next_course();
        let proposal = self.propose(wall);
        let Some(asked) = self.requests.get_mut(&number) else {
            return;
        };
        let job = Rc::clone(&asked.job);
        let request = match (job.task, proposal) {
            (Task::Acquire { ttl, .. }, Some(token)) => Request::Acquire {
                ttl,
                token,
                attempt: Attempt(fastrand::u64(..)),
            },
            (Task::Renew { ttl, token }, _) => Request::Renew { ttl, token },
            (Task::Release { token }, _) => Request::Release { token },
            (Task::Acquire { .. } | Task::Info, _) => {
                self.requests.remove(&number);
                let owner = job.owner.clone();
                let result = Finished::Broken;
                return self.done.push(Done {
                    number,
                    owner,
                    result,
                });
            }
        };
        asked.stage = Stage::Asking(course);
        let (round, steps) = Round::new(request, self.nodes, now);
        let running = Running {
            number,
            job,
            round,
            deadline: None,
            unanswered: 0,
            is_settled: false,
        };
        self.rounds.insert(course, running);
        self.follow(course, steps, now);
    }

    /// Does what a round says.
    fn follow(&mut self, course: Course, steps: Vec<Step>, now: SteadyMicros) {
        let mut outcome = None;
        if let Some(running) = self.rounds.get_mut(&course) {
            let mut last: Option<(Message, Rc<Cmd>)> = None;
            for step in steps {
                match step {
                    Step::Answer(answer) => outcome = Some(answer),
                    Step::Send { node, message } => {
                        // Most messages are the same for all nodes.
                        let command = match &last {
                            Some((same, command)) if *same == message => Rc::clone(command),
                            _ => Rc::new(command_of(&running.job, message)),
                        };
                        running.unanswered += 1;
                        last = Some((message, Rc::clone(&command)));
                        self.outgoing.push(Outgoing {
                            tag: Tag {
                                course,
                                node,
                                what: What::Round(message),
                            },
                            command,
                            may_repeat: may_repeat(message),
                        });
                    }
                }
            }
        }
        if let Some(outcome) = outcome {
            self.conclude(course, outcome, now);
        }
        self.tidy(course);
    }

    /// A round has come to an end: tells the client, or tries again after a while.
    fn conclude(&mut self, course: Course, outcome: Outcome, now: SteadyMicros) {
        let delay = self.delay();
        let Some(running) = self.rounds.get_mut(&course) else {
            return;
        };
        let number = running.number;
        let Some(asked) = self.requests.get_mut(&number) else {
            return;
        };
        let elapsed = Duration::from_micros(now.0.saturating_sub(asked.start.0));
        if let Some(pause) = pause_after(&outcome, &asked.job.task, elapsed, delay) {
            running.is_settled = true;
            let pause = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX);
            let until = SteadyMicros(now.0.saturating_add(pause));
            asked.stage = Stage::Pausing(until);
            self.due.insert((until, Due::Retry(number)));
        } else {
            self.done.push(Done {
                number,
                owner: running.job.owner.clone(),
                result: Finished::Round(outcome),
            });
        }
    }

    /// Sees to it that a round is looked at in time, and forgotten when nothing more comes of it.
    fn tidy(&mut self, course: Course) {
        let Some(running) = self.rounds.get_mut(&course) else {
            return;
        };
        let is_over = running.is_settled && running.unanswered == 0;
        let deadline = running.round.deadline().filter(|_| !is_over);
        let before = mem::replace(&mut running.deadline, deadline);
        if before != deadline {
            if let Some(before) = before {
                self.due.remove(&(before, Due::Look(course)));
            }
            if let Some(deadline) = deadline {
                self.due.insert((deadline, Due::Look(course)));
            }
        }
        if is_over {
            self.rounds.remove(&course);
        }
    }

    /// Asks all nodes at once what they say of a lock.
    fn survey(&mut self, number: Number, job: Rc<Job>, start: SteadyMicros) {
        let course = self.next_course();
        let command = Rc::new(info_command(&job));
        for node in 0..self.nodes.count() {
            self.outgoing.push(Outgoing {
                tag: Tag {
                    course,
                    node,
                    what: What::Info,
                },
                command: Rc::clone(&command),
                may_repeat: true,
            });
        }
        let infos = (0..self.nodes.count()).map(|_| None).collect();
        let survey = Survey {
            number,
            job,
            start,
            infos,
        };
        self.surveys.insert(course, survey);
    }

    /// What a node says of a lock.
    fn surveyed(&mut self, tag: Tag, sent: Sent, now: SteadyMicros) {
        let Some(survey) = self.surveys.get_mut(&tag.course) else {
            return;
        };
        if let Some(info) = survey.infos.get_mut(tag.node) {
            *info = Some(NodeInfo {
                address: self.addresses.get(tag.node).cloned().unwrap_or_default(),
                latency: Duration::from_micros(now.0.saturating_sub(survey.start.0)),
                lock: info_of(sent),
            });
        }
        if survey.infos.iter().all(Option::is_some)
            && let Some(survey) = self.surveys.remove(&tag.course)
        {
            self.done.push(Done {
                number: survey.number,
                owner: survey.job.owner.clone(),
                result: Finished::Info(survey.infos.into_iter().flatten().collect(), self.nodes),
            });
        }
    }

    fn next_course(&mut self) -> Course {
        self.last_course += 1;
        Course(self.last_course)
    }

    /// A token as this server would mint it.
    fn propose(&mut self, wall: UnixMicros) -> Option<Token> {
        self.proposed = wall.0.max(self.proposed.saturating_add(1));
        Token::new(self.proposed)
    }

    /// A time to wait before the next round.
    fn delay(&self) -> Duration {
        self.retry_delay + self.retry_jitter.mul_f64(fastrand::f64())
    }
}

/// How long to wait before an acquire is tried again; `None` when it is not.
fn pause_after(
    outcome: &Outcome,
    task: &Task,
    elapsed: Duration,
    delay: Duration,
) -> Option<Duration> {
    let Task::Acquire { patience, .. } = task else {
        return None;
    };
    if !matches!(outcome, Outcome::NotAcquired | Outcome::NoQuorum(_)) {
        return None;
    }
    match patience {
        Patience::None => None,
        Patience::Forever => Some(delay),
        // The last round begins when the time is over, if not before.
        Patience::For(time) => time
            .checked_sub(elapsed)
            .filter(|left| !left.is_zero())
            .map(|left| left.min(delay)),
    }
}
