//! The connection to a node, over real sockets to a node that the test plays.

use crate::lock::time::SteadyMicros;
use crate::quorum::link::{Host, Letter, Link, Login, Sent};
use crate::quorum::settings::{Address, Secret, Settings};
use redis::{Value, cmd};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::RawFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long a test waits before it fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// The time that a node has, in the tests' own time.
const TIMEOUT: u64 = 100_000;

const AUTH: &str = "*2\r\n$4\r\nAUTH\r\n$6\r\nsecret\r\n";
const CLIENT_ID: &str = "*2\r\n$6\r\nCLIENT\r\n$2\r\nID\r\n";

/// Remembers what is watched.
#[derive(Default)]
struct Watched(RefCell<BTreeMap<RawFd, bool>>);

impl Host for Watched {
    fn watch(&self, fd: RawFd, writes: bool) -> io::Result<()> {
        self.0.borrow_mut().insert(fd, writes);
        Ok(())
    }

    fn forget(&self, fd: RawFd) {
        assert!(self.0.borrow_mut().remove(&fd).is_some());
    }

    fn has_connection(&self, id: u64, _from: SocketAddr) -> bool {
        id == 7
    }
}

/// A link and the node that it leads to. Time passes only when a test says so.
struct Play {
    link: Link<u32>,
    host: Rc<Watched>,
    listener: TcpListener,
    now: SteadyMicros,
    answers: Vec<(u32, Sent)>,
}

impl Play {
    fn new(host: &str, password: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let watched = Rc::<Watched>::default();
        let settings = Settings {
            node_timeout: Duration::from_micros(TIMEOUT),
            password: Secret(password.to_owned()),
            ..Settings::default()
        };
        let address = Address {
            host: host.to_owned(),
            port: listener.local_addr().expect("an address").port(),
        };
        let login = Rc::new(Login::new(&settings));
        Self {
            link: Link::new(address, login, Rc::clone(&watched) as Rc<dyn Host>),
            host: watched,
            listener,
            now: SteadyMicros(1_000_000),
            answers: Vec::new(),
        }
    }

    fn send(&mut self, tag: u32, may_repeat: bool) {
        let command = Rc::new(cmd("PING").arg(tag).clone());
        let letter = Letter {
            tag,
            command,
            may_repeat,
        };
        self.link.send(letter, self.now);
        self.turn();
    }

    /// A turn of the event loop.
    fn turn(&mut self) {
        self.link.flush(self.now);
        self.link.ready(self.now);
        self.link.flush(self.now);
        self.answers.extend(self.link.take_answers());
    }

    fn pass(&mut self, micros: u64) {
        self.now = SteadyMicros(self.now.0 + micros);
        self.link.pass(self.now);
        self.turn();
    }

    fn turn_until<T>(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.turn();
            if let Some(done) = done(self) {
                return done;
            }
            assert!(Instant::now() < deadline, "no {what}");
            std::thread::yield_now();
        }
    }

    /// The node's end of the connection that is being made.
    fn accept(&mut self) -> TcpStream {
        self.listener.set_nonblocking(true).expect("a mode");
        let (stream, _) = self.turn_until("connection", |play| play.listener.accept().ok());
        stream.set_nonblocking(true).expect("a mode");
        stream
    }

    /// Reads what was sent, which has to be this.
    fn expect(&mut self, stream: &mut TcpStream, text: &str) {
        let mut read = Vec::new();
        self.turn_until(text, |_| {
            let mut byte = [0; 1];
            if stream.read(&mut byte).is_ok_and(|count| count == 1) {
                read.push(byte[0]);
            }
            (read.len() == text.len()).then_some(())
        });
        assert_eq!(String::from_utf8_lossy(&read), text);
    }

    /// A connection that is logged in as client number `id`.
    fn logged_in(&mut self, id: &str) -> TcpStream {
        let mut stream = self.accept();
        self.expect(&mut stream, CLIENT_ID);
        stream
            .write_all(format!(":{id}\r\n").as_bytes())
            .expect("an answer");
        stream
    }

    fn wait_for(&mut self, count: usize) -> &[(u32, Sent)] {
        self.turn_until("answers", |play| {
            (play.answers.len() >= count).then_some(())
        });
        assert_eq!(self.answers.len(), count, "{:?}", self.answers);
        &self.answers
    }

    /// Whether nothing is answered for now.
    fn is_silent(&mut self) -> bool {
        self.turn();
        self.answers.is_empty()
    }
}

fn ping(tag: u32) -> String {
    format!("*2\r\n$4\r\nPING\r\n$1\r\n{tag}\r\n")
}

fn int(value: i64) -> Sent {
    Sent::Answered(Value::Int(value))
}

fn failed(reason: &str) -> Sent {
    Sent::Failed(reason.to_owned())
}

#[test]
fn answers_find_their_requests_however_they_are_cut_up() {
    let mut play = Play::new("127.0.0.1", "");
    assert!(
        play.host.0.borrow().is_empty(),
        "nothing is connected before the first request"
    );
    play.send(1, true);
    play.send(2, true);
    let mut node = play.logged_in("5");
    play.expect(&mut node, &(ping(1) + &ping(2)));
    for byte in b":11\r\n*2\r\n$3\r\na\r\n\r\n$-1\r\n" {
        node.write_all(&[*byte]).expect("a byte");
        play.turn();
    }
    let list = Value::Array(vec![Value::BulkString(b"a\r\n".to_vec()), Value::Nil]);
    assert_eq!(play.wait_for(2), [(1, int(11)), (2, Sent::Answered(list))]);
    play.send(3, true);
    play.expect(&mut node, &ping(3));
    node.write_all(b"-ERR a reason\r\n").expect("an answer");
    assert_eq!(play.wait_for(3)[2], (3, failed("ERR a reason")));
    assert!(!play.link.is_here_and_idle());
}

#[test]
fn a_node_that_is_this_server_is_known_while_it_owes_no_answer() {
    let mut play = Play::new("127.0.0.1", "");
    play.send(1, true);
    let mut node = play.logged_in("7");
    play.expect(&mut node, &ping(1));
    assert!(!play.link.is_here_and_idle());
    node.write_all(b":1\r\n").expect("an answer");
    play.wait_for(1);
    assert!(play.link.is_here_and_idle());
    drop(node);
    play.turn_until("end", |play| (!play.link.is_here_and_idle()).then_some(()));
}

#[test]
fn a_wrong_password_is_what_requests_fail_by() {
    let mut play = Play::new("127.0.0.1", "secret");
    play.send(1, true);
    let mut node = play.accept();
    play.expect(&mut node, &format!("{AUTH}{CLIENT_ID}"));
    node.write_all(b"-WRONGPASS no\r\n-NOAUTH no\r\n")
        .expect("answers");
    assert_eq!(play.wait_for(1), [(1, failed("WRONGPASS no"))]);

    let mut play = Play::new("127.0.0.1", "");
    play.send(1, true);
    let mut node = play.accept();
    play.expect(&mut node, CLIENT_ID);
    node.write_all(b"-NOAUTH Authentication required.\r\n")
        .expect("an answer");
    assert_eq!(
        play.wait_for(1),
        [(1, failed("NOAUTH Authentication required."))]
    );
}

#[test]
fn a_user_that_may_not_ask_for_its_number_is_served_all_the_same() {
    let mut play = Play::new("127.0.0.1", "");
    play.send(1, true);
    let mut node = play.accept();
    play.expect(&mut node, CLIENT_ID);
    node.write_all(b"-NOPERM no\r\n").expect("an answer");
    play.expect(&mut node, &ping(1));
    node.write_all(b":1\r\n").expect("an answer");
    assert_eq!(play.wait_for(1), [(1, int(1))]);
}

#[test]
fn a_request_that_may_be_repeated_goes_out_again_over_the_next_connection() {
    let mut play = Play::new("127.0.0.1", "");
    play.send(1, true);
    play.send(2, false);
    play.send(3, true);
    let mut node = play.logged_in("5");
    play.expect(&mut node, &(ping(1) + &ping(2) + &ping(3)));
    node.write_all(b":1\r\n").expect("an answer");
    play.wait_for(1);
    drop(node);
    let mut node = play.logged_in("5");
    play.expect(&mut node, &ping(3));
    node.write_all(b":3\r\n").expect("an answer");
    let answers = play.wait_for(3);
    assert!(matches!(answers[1], (2, Sent::Unknown(_))), "{answers:?}");
    assert_eq!(answers[2], (3, int(3)));
}

#[test]
fn a_node_that_hangs_up_is_not_connected_to_in_a_hurry() {
    let mut play = Play::new("127.0.0.1", "");
    play.send(1, true);
    drop(play.logged_in("5"));
    // The first time it may have been an old connection.
    drop(play.logged_in("5"));
    play.turn_until("end", |play| play.link.fd().is_none().then_some(()));
    for _ in 0..100 {
        play.turn();
        assert!(play.listener.accept().is_err());
    }
    play.pass(50_000);
    drop(play.accept());
}

#[test]
fn a_node_that_refuses_fails_requests_at_once_or_when_it_refuses_again() {
    let mut play = Play::new("127.0.0.1", "");
    let port = play.listener.local_addr().expect("an address");
    play.listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    play.send(1, true);
    let answers = play.wait_for(1);
    assert!(
        matches!(&answers[0], (1, Sent::Failed(reason)) if reason.contains("refused")),
        "{answers:?}"
    );
    // Whether a request waits for the next attempt or has no time for that.
    for tag in 2..9 {
        let before = play.answers.len();
        play.send(tag, true);
        play.pass(1_000_000);
        play.wait_for(before + 1);
    }
    play.listener = TcpListener::bind(port).expect("the port again");
    play.pass(1_000_000);
    play.send(9, true);
    let mut node = play.logged_in("5");
    play.expect(&mut node, &ping(9));
}

#[test]
fn what_is_not_answered_in_time_is_given_up_and_its_answer_dropped() {
    let mut play = Play::new("127.0.0.1", "");
    play.send(1, true);
    let mut node = play.logged_in("5");
    play.expect(&mut node, &ping(1));
    play.pass(TIMEOUT - 1);
    play.send(2, true);
    assert!(play.is_silent());
    play.pass(1);
    assert_eq!(
        play.wait_for(1),
        [(1, Sent::Unknown("timed out".to_owned()))]
    );
    node.write_all(b":1\r\n:2\r\n").expect("answers");
    assert_eq!(play.wait_for(2)[1], (2, int(2)));
}

#[test]
fn a_node_that_stands_still_is_connected_to_again_some_time() {
    let mut play = Play::new("127.0.0.1", "");
    play.send(1, true);
    let mut node = play.logged_in("5");
    play.expect(&mut node, &ping(1));
    play.pass(TIMEOUT);
    play.pass(9_999_999);
    assert!(play.link.fd().is_some());
    play.pass(1);
    assert!(play.link.fd().is_none());
    play.send(2, true);
    let mut node = play.logged_in("5");
    play.expect(&mut node, &ping(2));
}

#[test]
fn a_node_that_does_not_even_log_one_in_is_given_up_in_time() {
    let mut play = Play::new("127.0.0.1", "");
    play.send(1, true);
    let mut node = play.accept();
    play.expect(&mut node, CLIENT_ID);
    play.pass(TIMEOUT - 1);
    assert!(play.is_silent());
    play.pass(1);
    assert!(matches!(play.wait_for(1)[0], (1, Sent::Failed(_))));
}

#[test]
fn answers_to_nothing_and_what_is_no_answer_end_the_connection() {
    for garbage in [&b":1\r\n:2\r\n"[..], b"!\r\n", b"$x\r\n"] {
        let mut play = Play::new("127.0.0.1", "");
        play.send(1, false);
        let mut node = play.logged_in("5");
        play.expect(&mut node, &ping(1));
        node.write_all(garbage).expect("bytes");
        play.turn_until("end", |play| play.link.fd().is_none().then_some(()));
        assert_eq!(play.answers.len(), 1);
    }
}

#[test]
fn a_host_is_looked_up_by_its_name() {
    let mut play = Play::new("localhost", "");
    play.send(1, true);
    let mut node = play.logged_in("5");
    play.expect(&mut node, &ping(1));
}

#[test]
fn what_is_watched_is_forgotten_before_it_is_closed() {
    let mut play = Play::new("127.0.0.1", "");
    play.send(1, true);
    let mut node = play.logged_in("5");
    play.expect(&mut node, &ping(1));
    let fd = play.link.fd().expect("a connection");
    assert_eq!(*play.host.0.borrow(), BTreeMap::from([(fd, false)]));
    let Play { link, host, .. } = play;
    drop(link);
    assert!(host.0.borrow().is_empty());
}
