//! The connection to one node: made when something is to be sent, kept, and made anew when it breaks.
//!
//! All requests share it, and go out without waiting for each other's answers. Nothing here waits:
//! the event loop of the server says when the connection is ready and when time has passed.

use super::settings::{Address, Settings};
use super::transport::{Tls, Transport};
use crate::lock::time::SteadyMicros;
use redis::{Cmd, Parser, Value, cmd};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::mem;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::thread::JoinHandle;

/// How long to wait between two attempts to connect, at least and at most, in microseconds. It
/// doubles with each that fails.
const RETRY_AFTER: (u64, u64) = (50_000, 1_000_000);

/// A connection on which an answer is so late, in microseconds, is given up. What a node that stands
/// still is not told would pile up otherwise.
const STALLED_AFTER: u64 = 10_000_000;

/// The server that this runs in.
pub(crate) trait Host {
    /// Has [`Link::ready`] called while the descriptor can be read from, and, if `writes`, while it
    /// can be written to. To be called again when that changes.
    fn watch(&self, fd: RawFd, writes: bool) -> io::Result<()>;

    /// Ends that, before the descriptor is closed.
    fn forget(&self, fd: RawFd);

    /// Whether a connection of this very server has this number and comes from this address.
    fn has_connection(&self, id: u64, from: SocketAddr) -> bool;
}

/// What all connections of one setting have in common.
pub(super) struct Login {
    timeout: u64,
    /// The commands that come before all others.
    commands: Vec<u8>,
    has_password: bool,
    /// The error says what is wrong with the settings.
    tls: Result<Option<Tls>, String>,
}

impl Login {
    pub(super) fn new(settings: &Settings) -> Self {
        let mut commands = Vec::new();
        let password = &settings.password.0;
        if !password.is_empty() {
            let mut auth = cmd("AUTH");
            if !settings.user.is_empty() {
                auth.arg(&settings.user);
            }
            auth.arg(password).write_packed_command(&mut commands);
        }
        cmd("CLIENT").arg("ID").write_packed_command(&mut commands);
        Self {
            timeout: settings.node_timeout_micros(),
            commands,
            has_password: !password.is_empty(),
            tls: if settings.tls {
                Tls::new(&settings.tls_ca, &settings.tls_cert, &settings.tls_key).map(Some)
            } else {
                Ok(None)
            },
        }
    }
}

/// What came of a request to a node.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Sent {
    /// It answered.
    Answered(Value),
    /// It did nothing, because it could not be reached or answered an error.
    Failed(String),
    /// Nobody knows whether it did what it was asked for.
    Unknown(String),
}

impl Sent {
    /// What an answer says.
    pub(super) fn of(value: Value) -> Self {
        match value {
            Value::ServerError(error) => {
                let detail = error.details().unwrap_or_default();
                Self::Failed(format!("{} {detail}", error.code()))
            }
            value => Self::Answered(value),
        }
    }
}

/// A request to a node. `T` is what whoever sends it knows it by.
pub(super) struct Letter<T> {
    pub(super) tag: T,
    pub(super) command: Rc<Cmd>,
    /// Whether it does no harm if it is carried out twice.
    pub(super) may_repeat: bool,
}

/// A request of which nothing is known yet.
struct Unanswered<T> {
    letter: Letter<T>,
    due: SteadyMicros,
    was_sent: bool,
}

/// See the [module](self).
pub(super) struct Link<T> {
    address: Address,
    login: Rc<Login>,
    host: Rc<dyn Host>,
    state: State<T>,
    /// Waits for a connection.
    waiting: VecDeque<Unanswered<T>>,
    /// What came of requests, to be taken from here.
    answers: Vec<(T, Sent)>,
    /// How long to wait after the next failure.
    retry_after: u64,
    /// Whether the node turned out to be the server that this runs in.
    is_here: bool,
}

enum State<T> {
    /// There is no connection. The next is not made before `retry`; `reason` says what became of
    /// the last.
    Closed {
        retry: SteadyMicros,
        reason: String,
    },
    /// The host's addresses are looked up.
    Resolving(Lookup, SteadyMicros),
    /// The connection is being made, until this moment. The rest of the host's addresses follow.
    Connecting(Socket, Vec<SocketAddr>, SteadyMicros),
    Open(Open<T>),
}

/// A connection in the event loop.
struct Socket {
    transport: Transport,
    host: Rc<dyn Host>,
    writes: bool,
}

impl Socket {
    fn new(transport: Transport, host: Rc<dyn Host>) -> io::Result<Self> {
        host.watch(transport.fd(), true)?;
        Ok(Self {
            transport,
            host,
            writes: true,
        })
    }

    fn watch(&mut self, writes: bool) -> io::Result<()> {
        if mem::replace(&mut self.writes, writes) != writes {
            self.host.watch(self.transport.fd(), writes)?;
        }
        Ok(())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.host.forget(self.transport.fd());
    }
}

/// A connection that was made.
struct Open<T> {
    socket: Socket,
    parser: Parser,
    /// What is still to be written, from `written` on.
    out: Vec<u8>,
    written: usize,
    /// What the next answers belong to, in their order.
    expected: VecDeque<Expected<T>>,
    /// How many of them come too late. They are the first: every request has the same time.
    late: usize,
    /// Whether all was read that had arrived when the event loop said that there is something.
    is_drained: bool,
}

/// What an answer belongs to.
enum Expected<T> {
    Auth(SteadyMicros),
    ClientId(SteadyMicros),
    Letter(Unanswered<T>),
    /// A request that was given up.
    Late(SteadyMicros),
}

impl<T> Expected<T> {
    /// When the answer should have been there.
    fn due(&self) -> SteadyMicros {
        match self {
            Self::Auth(due) | Self::ClientId(due) | Self::Late(due) => *due,
            Self::Letter(letter) => letter.due,
        }
    }
}

impl<T> Link<T> {
    /// Nothing is sent yet.
    pub(super) fn new(address: Address, login: Rc<Login>, host: Rc<dyn Host>) -> Self {
        Self {
            address,
            login,
            host,
            state: State::Closed {
                retry: SteadyMicros(0),
                reason: String::new(),
            },
            waiting: VecDeque::new(),
            answers: Vec::new(),
            retry_after: 0,
            is_here: false,
        }
    }

    /// Whether the node is the server that this runs in and has answered everything: what is carried
    /// out without the connection then overtakes nothing.
    pub(super) fn is_here_and_idle(&self) -> bool {
        self.is_here
            && self.waiting.is_empty()
            && matches!(&self.state, State::Open(open) if open.expected.is_empty())
    }

    /// Whether this can be dropped without waiting for a thread.
    pub(super) fn can_be_dropped(&self) -> bool {
        !matches!(self.state, State::Resolving(..))
    }

    /// The descriptor that is watched.
    pub(super) fn fd(&self) -> Option<RawFd> {
        match &self.state {
            State::Closed { .. } => None,
            State::Resolving(lookup, _) => Some(lookup.bell.as_raw_fd()),
            State::Connecting(socket, ..) | State::Open(Open { socket, .. }) => {
                Some(socket.transport.fd())
            }
        }
    }

    /// What came of requests since this was asked before.
    pub(super) fn take_answers(&mut self) -> Vec<(T, Sent)> {
        mem::take(&mut self.answers)
    }

    /// Accepts a request. It goes out with [`flush`](Self::flush), and has an answer, or is given
    /// up, when the time that a node has is over.
    pub(super) fn send(&mut self, letter: Letter<T>, now: SteadyMicros) {
        let letter = Unanswered {
            letter,
            due: SteadyMicros(now.0.saturating_add(self.login.timeout)),
            was_sent: false,
        };
        match &mut self.state {
            State::Open(open) if open.is_logged_in() => open.post(letter),
            State::Closed { retry, reason } if *retry > letter.due => {
                let reason = reason.clone();
                self.give_up(letter, &reason);
            }
            _ => self.waiting.push_back(letter),
        }
    }

    /// Writes what there is to write, over a new connection if there is none.
    pub(super) fn flush(&mut self, now: SteadyMicros) {
        if let State::Closed { retry, .. } = &self.state
            && *retry <= now
            && !self.waiting.is_empty()
        {
            self.open(now);
        }
        if let State::Open(open) = &mut self.state
            && let Err(error) = open.write()
        {
            self.broke(&error, now);
        }
    }

    /// The descriptor is ready: goes on with what it was waited for.
    pub(super) fn ready(&mut self, now: SteadyMicros) {
        match &mut self.state {
            State::Closed { .. } => {}
            State::Resolving(lookup, until) => {
                let until = *until;
                match lookup.take() {
                    None => {}
                    Some(Ok(addresses)) => self.connect(addresses, until, now),
                    Some(Err(error)) => self.failed(&error.to_string(), now),
                }
            }
            State::Connecting(socket, ..) => match socket.transport.is_connected() {
                Ok(false) => {}
                Ok(true) => self.connected(now),
                Err(error) => self.refused(&error, now),
            },
            State::Open(_) => self.read(now),
        }
    }

    /// Gives up what is due.
    pub(super) fn pass(&mut self, now: SteadyMicros) {
        while let Some(letter) = self.waiting.front()
            && letter.due <= now
            && let Some(letter) = self.waiting.pop_front()
        {
            let reason = match &self.state {
                State::Closed { reason, .. } if !reason.is_empty() => reason.clone(),
                _ => TIMED_OUT.to_owned(),
            };
            self.give_up(letter, &reason);
        }
        match &mut self.state {
            // The thread cannot be stopped, so it is waited for by others that come.
            State::Resolving(_, until) if *until <= now => {
                *until = SteadyMicros(now.0.saturating_add(self.login.timeout));
                self.fail_waiting("its address could not be looked up in time");
            }
            State::Connecting(_, _, until) if *until <= now => {
                self.failed("could not be connected to in time", now);
            }
            State::Open(open) => {
                while let Some(expected) = open.expected.get_mut(open.late)
                    && let due = expected.due()
                    && due <= now
                    && matches!(expected, Expected::Letter(_))
                {
                    if let Expected::Letter(late) = mem::replace(expected, Expected::Late(due)) {
                        let sent = Sent::Unknown(TIMED_OUT.to_owned());
                        self.answers.push((late.letter.tag, sent));
                    }
                    open.late += 1;
                }
                let is_stalled = match open.expected.front() {
                    Some(Expected::Auth(due) | Expected::ClientId(due)) => *due <= now,
                    Some(expected) => expected.due().0.saturating_add(STALLED_AFTER) <= now.0,
                    None => false,
                };
                if is_stalled {
                    self.broke(&ErrorKind::TimedOut.into(), now);
                }
            }
            _ => {}
        }
    }

    /// When to call [`pass`](Self::pass) and [`flush`](Self::flush) at the latest.
    pub(super) fn next_wake(&self) -> Option<SteadyMicros> {
        let waiting = self.waiting.front().map(|letter| letter.due);
        let state = match &self.state {
            State::Closed { retry, .. } => waiting.map(|_| *retry),
            State::Resolving(_, until) | State::Connecting(_, _, until) => Some(*until),
            State::Open(open) => open.expected.get(open.late).map(Expected::due),
        };
        waiting.into_iter().chain(state).min()
    }

    /// Begins to make a connection.
    fn open(&mut self, now: SteadyMicros) {
        if let Err(reason) = &self.login.tls {
            let reason = reason.clone();
            return self.failed(&reason, now);
        }
        let until = SteadyMicros(now.0.saturating_add(self.login.timeout));
        let (host, port) = (&self.address.host, self.address.port);
        if let Ok(ip) = host.parse::<IpAddr>() {
            return self.connect(vec![SocketAddr::new(ip, port)], until, now);
        }
        match Lookup::start(self.address.clone(), Rc::clone(&self.host)) {
            Ok(lookup) => self.state = State::Resolving(lookup, until),
            Err(error) => self.failed(&error.to_string(), now),
        }
    }

    /// Connects to the first address that this can be begun with.
    fn connect(&mut self, addresses: Vec<SocketAddr>, until: SteadyMicros, now: SteadyMicros) {
        let mut addresses = addresses;
        let mut reason = "the host has no address".to_owned();
        while !addresses.is_empty() {
            let address = addresses.remove(0);
            let tls = self.login.tls.as_ref().ok().and_then(Option::as_ref);
            let socket = Transport::connect(address, &self.address.host, tls)
                .and_then(|transport| Socket::new(transport, Rc::clone(&self.host)));
            match socket {
                Ok(socket) => {
                    self.state = State::Connecting(socket, addresses, until);
                    return;
                }
                Err(error) => reason = error.to_string(),
            }
        }
        self.failed(&reason, now);
    }

    /// An address cannot be connected to: the next one is tried.
    fn refused(&mut self, error: &io::Error, now: SteadyMicros) {
        if let State::Connecting(_, rest, until) = &mut self.state
            && !rest.is_empty()
        {
            let (rest, until) = (mem::take(rest), *until);
            return self.connect(rest, until, now);
        }
        self.failed(&error.to_string(), now);
    }

    /// The connection is made: logs in.
    fn connected(&mut self, now: SteadyMicros) {
        let closed = State::Closed {
            retry: now,
            reason: String::new(),
        };
        let State::Connecting(socket, _, until) = mem::replace(&mut self.state, closed) else {
            return;
        };
        let mut open = Open {
            socket,
            parser: Parser::new(),
            out: self.login.commands.clone(),
            written: 0,
            expected: VecDeque::new(),
            late: 0,
            is_drained: false,
        };
        if self.login.has_password {
            open.expected.push_back(Expected::Auth(until));
        }
        open.expected.push_back(Expected::ClientId(until));
        let written = open.write();
        self.state = State::Open(open);
        if let Err(error) = written {
            self.broke(&error, now);
        }
    }

    /// Reads what the node has answered.
    fn read(&mut self, now: SteadyMicros) {
        if let State::Open(open) = &mut self.state {
            open.is_drained = false;
        }
        while let State::Open(open) = &mut self.state {
            let value = match open.next_value() {
                Ok(Some(value)) => value,
                Ok(None) => {
                    // TLS may have something to say.
                    if let Err(error) = open.write() {
                        self.broke(&error, now);
                    }
                    return;
                }
                Err(error) => return self.broke(&error, now),
            };
            match open.expected.pop_front() {
                Some(Expected::Letter(letter)) => {
                    self.retry_after = 0;
                    self.answers.push((letter.letter.tag, Sent::of(value)));
                }
                Some(Expected::Late(_)) => {
                    self.retry_after = 0;
                    open.late = open.late.saturating_sub(1);
                }
                Some(Expected::Auth(_)) => {
                    if let Sent::Failed(reason) = Sent::of(value) {
                        return self.failed(&reason, now);
                    }
                }
                Some(Expected::ClientId(_)) => {
                    if let Value::ServerError(error) = &value
                        && error.code() == "NOAUTH"
                    {
                        if let Sent::Failed(reason) = Sent::of(value) {
                            self.failed(&reason, now);
                        }
                        return;
                    }
                    self.logged_in(&value);
                }
                // An answer to nothing.
                None => return self.broke(&ErrorKind::InvalidData.into(), now),
            }
        }
    }

    /// The node takes requests: sends those that have waited.
    fn logged_in(&mut self, client_id: &Value) {
        let State::Open(open) = &mut self.state else {
            return;
        };
        self.is_here = match (client_id, open.socket.transport.local_address()) {
            (Value::Int(id), Ok(address)) => {
                u64::try_from(*id).is_ok_and(|id| self.host.has_connection(id, address))
            }
            // A user that may not ask is told nothing, and the node counts as another one.
            _ => false,
        };
        for letter in mem::take(&mut self.waiting) {
            open.post(letter);
        }
    }

    /// The connection is gone. What may be sent again waits for the next one.
    fn broke(&mut self, error: &io::Error, now: SteadyMicros) {
        let reason = error.to_string();
        let is_logged_in = matches!(&self.state, State::Open(open) if open.is_logged_in());
        let State::Open(open) = self.close(now, &reason) else {
            return;
        };
        if !is_logged_in {
            return self.fail_waiting(&reason);
        }
        let mut again = VecDeque::new();
        for expected in open.expected {
            match expected {
                Expected::Letter(letter) if letter.letter.may_repeat => again.push_back(letter),
                Expected::Letter(letter) => self.give_up(letter, &reason),
                _ => {}
            }
        }
        again.append(&mut self.waiting);
        self.waiting = again;
    }

    /// No connection could be made.
    fn failed(&mut self, reason: &str, now: SteadyMicros) {
        self.close(now, reason);
        self.fail_waiting(reason);
    }

    /// Ends the state that there is, and returns it.
    fn close(&mut self, now: SteadyMicros, reason: &str) -> State<T> {
        self.is_here = false;
        let retry = SteadyMicros(now.0.saturating_add(self.retry_after));
        self.retry_after = (self.retry_after * 2).clamp(RETRY_AFTER.0, RETRY_AFTER.1);
        let reason = reason.to_owned();
        mem::replace(&mut self.state, State::Closed { retry, reason })
    }

    fn fail_waiting(&mut self, reason: &str) {
        for letter in mem::take(&mut self.waiting) {
            self.give_up(letter, reason);
        }
    }

    /// Says that nothing came of a request.
    fn give_up(&mut self, letter: Unanswered<T>, reason: &str) {
        let sent = if letter.was_sent {
            Sent::Unknown(reason.to_owned())
        } else {
            Sent::Failed(reason.to_owned())
        };
        self.answers.push((letter.letter.tag, sent));
    }
}

const TIMED_OUT: &str = "timed out";

impl<T> Open<T> {
    fn is_logged_in(&self) -> bool {
        !matches!(
            self.expected.front(),
            Some(Expected::Auth(_) | Expected::ClientId(_))
        )
    }

    /// Puts a request where it will be written from.
    fn post(&mut self, letter: Unanswered<T>) {
        letter.letter.command.write_packed_command(&mut self.out);
        self.expected.push_back(Expected::Letter(Unanswered {
            was_sent: true,
            ..letter
        }));
    }

    /// Writes as much as the connection takes.
    fn write(&mut self) -> io::Result<()> {
        let Self {
            socket,
            out,
            written,
            ..
        } = self;
        while let Some(rest @ [_, ..]) = out.get(*written..) {
            match socket.transport.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => *written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if *written >= out.len() {
            out.clear();
            *written = 0;
        }
        if socket.transport.wants_write() {
            match socket.transport.flush() {
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
        let writes = !out.is_empty() || socket.transport.wants_write();
        socket.watch(writes)
    }

    /// The next answer. `None` when there is none yet.
    fn next_value(&mut self) -> io::Result<Option<Value>> {
        let mut source = Source {
            transport: &mut self.socket.transport,
            is_drained: &mut self.is_drained,
            error: None,
        };
        match (self.parser.parse_value(&mut source), source.error) {
            (Ok(value), _) => Ok(Some(value)),
            (Err(_), Some(error)) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            (Err(_), Some(error)) => Err(error),
            (Err(error), None) => Err(io::Error::other(error)),
        }
    }
}

/// What answers are read from. It keeps the error that reading ended with: the parser makes another
/// one of it.
struct Source<'t> {
    transport: &'t mut Transport,
    is_drained: &'t mut bool,
    error: Option<io::Error>,
}

impl Read for Source<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = if *self.is_drained {
            Err(ErrorKind::WouldBlock.into())
        } else {
            self.transport.read(buffer)
        };
        let error = match read {
            Ok(0) => ErrorKind::UnexpectedEof.into(),
            Ok(count) => {
                // The event loop says when there is more.
                *self.is_drained = count < buffer.len() && self.transport.tells_all();
                return Ok(count);
            }
            Err(error) => error,
        };
        let kind = error.kind();
        if kind != ErrorKind::Interrupted {
            self.error = Some(error);
        }
        Err(kind.into())
    }
}

/// The addresses of a host, looked up on a thread, since the system's way of doing that waits.
struct Lookup {
    bell: UnixStream,
    thread: Option<JoinHandle<io::Result<Vec<SocketAddr>>>>,
    host: Rc<dyn Host>,
}

impl Lookup {
    fn start(address: Address, host: Rc<dyn Host>) -> io::Result<Self> {
        let (bell, ring) = UnixStream::pair()?;
        let thread = std::thread::Builder::new()
            .name("lock-resolver".to_owned())
            .spawn(move || {
                // Closed when this thread ends, which makes the other end readable.
                let _ring = ring;
                (address.host.as_str(), address.port)
                    .to_socket_addrs()
                    .map(Iterator::collect)
            })?;
        host.watch(bell.as_raw_fd(), false)?;
        Ok(Self {
            bell,
            thread: Some(thread),
            host,
        })
    }

    /// What was found, when the descriptor is ready.
    fn take(&mut self) -> Option<io::Result<Vec<SocketAddr>>> {
        let found = self.thread.take()?.join();
        // A panic was reported by the hook.
        Some(found.unwrap_or_else(|_| Err(ErrorKind::Other.into())))
    }
}

impl Drop for Lookup {
    fn drop(&mut self) {
        self.host.forget(self.bell.as_raw_fd());
        // The module's code must not go away under a thread.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
