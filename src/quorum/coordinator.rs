//! The coordinator: runs rounds for the clients of this server, on a thread of its own.
//!
//! The thread knows nothing of the server that it lives in. It gets orders through a channel, leaves
//! what it has done where it is fetched from, and rings when there is something.

use super::attempt::Attempt;
use super::info::NodeInfo;
use super::node::Node;
use super::requests::{answer_to, ask_info, command_of, may_repeat};
use super::round::{Answer, Nodes, Outcome, Request, Round, Step};
use super::settings::Settings;
use crate::lock::fence::Token;
use crate::lock::lease::Ttl;
use crate::lock::time::SteadyMicros;
use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::{LocalSet, spawn_local};

/// A request of a client of this server, by a number that is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

enum Order {
    Ask(Number, Job),
    Gone(Number),
    Told(Number),
    Configure(Settings),
}

/// Whether a client was told of its grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Told,
    Gone,
}

/// The thread, which ends when this is dropped.
pub(crate) struct Coordinator {
    /// `None` when it is to end.
    orders: Option<UnboundedSender<Order>>,
    finished: Arc<Mutex<Vec<Done>>>,
    thread: Option<JoinHandle<()>>,
}

impl Coordinator {
    /// Starts the thread. `ring` is called on it whenever there is something to [fetch](Self::take_finished).
    pub(crate) fn start(settings: Settings, ring: impl Fn() + Send + 'static) -> io::Result<Self> {
        let (orders, inbox) = unbounded_channel();
        let finished = Arc::<Mutex<Vec<Done>>>::default();
        let outbox = Arc::clone(&finished);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let thread = std::thread::Builder::new()
            .name("lock-quorum".to_owned())
            .spawn(move || {
                let report = Rc::new(move |done| {
                    outbox
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(done);
                    ring();
                });
                LocalSet::new().block_on(&runtime, take_orders(settings, inbox, report));
            })?;
        Ok(Self {
            orders: Some(orders),
            finished,
            thread: Some(thread),
        })
    }

    /// Begins a request.
    pub(crate) fn ask(&self, number: Number, job: Job) {
        self.order(Order::Ask(number, job));
    }

    /// The client of a request is gone before it was told: what it was granted is released.
    pub(crate) fn client_gone(&self, number: Number) {
        self.order(Order::Gone(number));
    }

    /// The client of a request was told what became of it.
    pub(crate) fn client_told(&self, number: Number) {
        self.order(Order::Told(number));
    }

    /// The settings of all requests from now on.
    pub(crate) fn configure(&self, settings: Settings) {
        self.order(Order::Configure(settings));
    }

    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // The thread ends only after this channel.
            let _ = orders.send(order);
        }
    }

    /// Fetches what has been done.
    pub(crate) fn take_finished(&self) -> Vec<Done> {
        let mut finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut finished)
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // A panic of it was reported by the hook.
            let _ = thread.join();
        }
    }
}

/// What all requests of one setting share.
struct Quorum {
    nodes: Vec<Rc<Node>>,
    count: Nodes,
    settings: Settings,
    /// The highest token that was proposed.
    proposed: Cell<u64>,
}

impl Quorum {
    /// `None` when there are no nodes, or too many.
    fn new(settings: Settings, proposed: u64) -> Option<Self> {
        Some(Self {
            count: Nodes::new(settings.nodes.len())?,
            nodes: settings
                .nodes
                .iter()
                .map(|address| Rc::new(Node::new(address.clone(), &settings)))
                .collect(),
            settings,
            proposed: Cell::new(proposed),
        })
    }

    /// A token as this server would mint it.
    fn propose(&self) -> Option<Token> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |time| {
                u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
            });
        let token = now.max(self.proposed.get().saturating_add(1));
        self.proposed.set(token);
        Token::new(token)
    }

    /// A time to wait before the next attempt.
    fn delay(&self) -> Duration {
        self.settings.retry_delay + self.settings.retry_jitter.mul_f64(fastrand::f64())
    }
}

/// The thread's work: until the channel is closed, which leaves undone what is under way.
async fn take_orders(
    settings: Settings,
    mut inbox: UnboundedReceiver<Order>,
    report: Rc<impl Fn(Done) + 'static>,
) {
    let mut quorum = Quorum::new(settings, 0).map(Rc::new);
    let mut fates: HashMap<Number, oneshot::Sender<Fate>> = HashMap::new();
    while let Some(order) = inbox.recv().await {
        match order {
            Order::Configure(settings) => {
                let proposed = quorum.as_ref().map_or(0, |quorum| quorum.proposed.get());
                quorum = Quorum::new(settings, proposed).map(Rc::new);
            }
            Order::Gone(number) => {
                if let Some(fate) = fates.remove(&number) {
                    let _ = fate.send(Fate::Gone);
                }
            }
            Order::Told(number) => {
                if let Some(fate) = fates.remove(&number) {
                    let _ = fate.send(Fate::Told);
                }
            }
            Order::Ask(number, job) => {
                let (fate, told) = oneshot::channel();
                fates.insert(number, fate);
                let (quorum, report) = (quorum.clone(), Rc::clone(&report));
                spawn_local(async move {
                    let owner = job.owner.clone();
                    let work = spawn_local({
                        let (report, owner) = (Rc::clone(&report), owner.clone());
                        let report = move |result| {
                            report(Done {
                                number,
                                owner: owner.clone(),
                                result,
                            });
                        };
                        async move {
                            match quorum {
                                Some(quorum) => {
                                    carry_out(&quorum, Rc::new(job), told, report).await;
                                }
                                None => report(Finished::Broken),
                            }
                        }
                    });
                    if work.await.is_err() {
                        report(Done {
                            number,
                            owner,
                            result: Finished::Broken,
                        });
                    }
                });
            }
        }
    }
}

/// Carries a request out, to the last message that there is to send for it.
async fn carry_out(
    quorum: &Rc<Quorum>,
    job: Rc<Job>,
    mut fate: oneshot::Receiver<Fate>,
    report: impl Fn(Finished),
) {
    let start = Instant::now();
    let (task, count) = (job.task, quorum.count);
    let request = match task {
        Task::Info => {
            report(Finished::Info(
                ask_info(&quorum.nodes, &job.key).await,
                count,
            ));
            return;
        }
        Task::Renew { ttl, token } => Some(Request::Renew { ttl, token }),
        Task::Release { token } => Some(Request::Release { token }),
        Task::Acquire { .. } => None,
    };
    let clock = || SteadyMicros(u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX));
    loop {
        let request = match (request, task) {
            (Some(request), _) => request,
            (None, Task::Acquire { ttl, .. }) => match quorum.propose() {
                Some(token) => Request::Acquire {
                    ttl,
                    token,
                    attempt: Attempt(fastrand::u64(..)),
                },
                None => return report(Finished::Broken),
            },
            (None, _) => return,
        };
        let (round, steps) = Round::new(request, count, clock());
        let mut drive = Drive::new(quorum, &job, round);
        let Some(outcome) = drive.run(steps, clock, &mut fate).await else {
            return;
        };
        if let Some(pause) = pause_after(&outcome, &task, start.elapsed(), quorum.delay()) {
            tokio::select! {
                () = tokio::time::sleep(pause) => continue,
                _ = &mut fate => return,
            }
        }
        report(Finished::Round(outcome));
        drive.finish(clock, fate).await;
        return;
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

/// A message that is answered when this is dropped: by a mistake in this crate or another one too.
struct Pending {
    node: usize,
    answer: Answer,
    sender: UnboundedSender<(usize, Answer)>,
}

impl Pending {
    /// The node has answered.
    fn end(mut self, answer: Answer) {
        self.answer = answer;
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // Nobody listens any more when the round is over.
        let _ = self.sender.send((self.node, self.answer));
    }
}

/// One round and its messages.
struct Drive<'q> {
    quorum: &'q Quorum,
    job: &'q Rc<Job>,
    round: Round,
    sender: UnboundedSender<(usize, Answer)>,
    answers: UnboundedReceiver<(usize, Answer)>,
}

impl<'q> Drive<'q> {
    fn new(quorum: &'q Quorum, job: &'q Rc<Job>, round: Round) -> Self {
        let (sender, answers) = unbounded_channel();
        Self {
            quorum,
            job,
            round,
            sender,
            answers,
        }
    }

    /// Does what a round says, and returns what the client is to be told, if anything.
    fn take(&self, steps: Vec<Step>) -> Option<Outcome> {
        let mut outcome = None;
        for step in steps {
            match step {
                Step::Answer(answer) => outcome = Some(answer),
                Step::Send { node, message } => {
                    let Some(connection) = self.quorum.nodes.get(node).cloned() else {
                        continue;
                    };
                    let command = command_of(self.job, message);
                    let job = Rc::clone(self.job);
                    let pending = Pending {
                        node,
                        answer: Answer::Unknown,
                        sender: self.sender.clone(),
                    };
                    spawn_local(async move {
                        let sent = connection.send(&command, may_repeat(message)).await;
                        pending.end(answer_to(&job, message, sent));
                    });
                }
            }
        }
        outcome
    }

    /// Runs the round until the client is to be told. `None` when it is gone before.
    async fn run(
        &mut self,
        steps: Vec<Step>,
        clock: impl Fn() -> SteadyMicros,
        fate: &mut oneshot::Receiver<Fate>,
    ) -> Option<Outcome> {
        let mut steps = steps;
        loop {
            if let Some(outcome) = self.take(steps) {
                return Some(outcome);
            }
            let left = self
                .round
                .deadline()
                .map(|deadline| deadline.0.saturating_sub(clock().0));
            steps = tokio::select! {
                Some((node, answer)) = self.answers.recv() => {
                    self.round.answered(node, answer, clock())
                }
                () = sleep(left) => self.round.passed(clock()),
                // Nobody has been told yet. A renewal or a release is wanted all the same, to its
                // last message.
                _ = &mut *fate => {
                    let mut steps = self.round.client_gone();
                    loop {
                        self.take(steps);
                        if self.round.is_done() {
                            return None;
                        }
                        let (node, answer) = self.answers.recv().await?;
                        steps = self.round.answered(node, answer, clock());
                    }
                }
            };
        }
    }

    /// Sends what is still to be sent: to nodes that answer late, and to all if the client turns out
    /// to be gone.
    async fn finish(mut self, clock: impl Fn() -> SteadyMicros, fate: oneshot::Receiver<Fate>) {
        let mut fate = Some(fate);
        while fate.is_some() || !self.round.is_done() {
            let told = async {
                match &mut fate {
                    Some(fate) => fate.await,
                    None => std::future::pending().await,
                }
            };
            let steps = tokio::select! {
                Some((node, answer)) = self.answers.recv(), if !self.round.is_done() => {
                    self.round.answered(node, answer, clock())
                }
                known = told => {
                    fate = None;
                    if known == Ok(Fate::Told) {
                        Vec::new()
                    } else {
                        self.round.client_gone()
                    }
                }
            };
            self.take(steps);
        }
    }
}

/// Sleeps for so many microseconds, or for ever.
async fn sleep(micros: Option<u64>) {
    match micros {
        Some(micros) => tokio::time::sleep(Duration::from_micros(micros)).await,
        None => std::future::pending().await,
    }
}
