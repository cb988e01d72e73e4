//! What waiting costs: `cargo bench --bench waiting [-- [lapses] [SERVER...]]`.
//!
//! One run on one server measures, interleaved over several rounds, with 2, 100 and 10,000 clients
//! in the queue: from a holder's `LOCK.RELEASE` to the next holder's reply, and from an `LPUSH` to
//! the reply of the client that waits for it with `BLPOP`, which is the fastest wake-up that Redis
//! has of its own. Then, and with `lapses` only: from the deadline of a lease to the next grant by
//! the server's own clock, which is what its token says, beside the same of a thread that sleeps. A lease lasts through the millisecond of
//! its deadline, so the first of these milliseconds is the server's rule. Every answer that is timed
//! is checked.
//!
//! Machines differ and are shared: only figures of one run can be compared. `lock/blpop` and the
//! growth over the smallest queue are such ratios.

#![allow(
    missing_docs,
    dead_code,
    unused_imports,
    unused_macros,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout
)]

#[path = "../tests/harness/mod.rs"]
mod harness;

use harness::{Flavour, Raw, Reply, Server};
use std::time::{Duration, Instant};

/// The lengths of the queue that are compared, the smallest first.
const QUEUES: [usize; 3] = [2, 100, 10_000];
/// How often the two ways are measured in turn.
const ROUNDS: usize = 3;
/// Hand-overs that one round measures.
const HAND_OVERS: usize = 2_000;
/// Leases that are left to lapse.
const LAPSES: usize = 500;

fn main() {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with('-'))
        .collect();
    let (only, servers): (Vec<String>, Vec<String>) =
        wanted.into_iter().partition(|word| word == "lapses");
    for flavour in Flavour::ALL {
        if servers.is_empty() || servers.iter().any(|name| name == flavour.name()) {
            println!("{}", flavour.name());
            let server = Server::build(flavour).config("maxclients", "15000").start();
            if only.is_empty() {
                measure_hand_overs(&server);
            }
            measure_lapses(&server);
        }
    }
}

fn measure_hand_overs(server: &Server) {
    let mut base = None;
    for queue in QUEUES {
        let mut clients: Vec<Raw> = (0..queue).map(|_| server.raw()).collect();
        let mut lock = Vec::new();
        let mut blpop = Vec::new();
        for _ in 0..ROUNDS {
            lock.extend(hand_overs(server, &mut clients));
            blpop.extend(pushes(server, &mut clients));
        }
        let (lock, blpop) = (median(lock), median(blpop));
        let growth = lock.as_secs_f64() / base.get_or_insert(lock).as_secs_f64();
        println!(
            "  {queue:>6} in the queue: release to next holder {lock:>9.1?}, \
             LPUSH to BLPOP {blpop:>9.1?}, lock/blpop {:.2}, growth {growth:.2}",
            lock.as_secs_f64() / blpop.as_secs_f64(),
        );
    }
}

fn measure_lapses(server: &Server) {
    // A process that does nothing but sleep is late too, and no server can be earlier than that.
    let sleeper = std::thread::spawn(sleeps);
    let late = lapses(server);
    for (what, mut late) in [
        ("from a deadline to the next grant", late),
        (
            "late is a thread that sleeps as long",
            sleeper.join().unwrap(),
        ),
    ] {
        late.sort_unstable();
        let [p50, p90, p99] = [50, 90, 99].map(|percent| late[late.len() * percent / 100]);
        println!(
            "  {what}: p50 {p50} µs, p90 {p90} µs, p99 {p99} µs, of {}",
            late.len()
        );
    }
}

/// The time to live of a lease, in milliseconds. Leases of different lengths meet the server's own
/// cycle at different moments.
fn ttl(turn: usize) -> u64 {
    5 + turn as u64 * 8 % 21
}

/// How many microseconds after the time that it wanted to sleep a thread wakes up.
fn sleeps() -> Vec<i64> {
    (0..LAPSES)
        .map(|turn| {
            let wait = Duration::from_millis(ttl(turn));
            let start = Instant::now();
            std::thread::sleep(wait);
            i64::try_from(start.elapsed().saturating_sub(wait).as_micros()).unwrap()
        })
        .collect()
}

/// Each client waits, gets the lock, releases it, and waits again, so that the queue keeps its
/// length.
fn hand_overs(server: &Server, clients: &mut [Raw]) -> Vec<Duration> {
    const ACQUIRE: (&str, &str) = ("LOCK.ACQUIRE bench", "600000 BLOCK 0");
    let acquire = |owner: usize| format!("{} {owner} {}", ACQUIRE.0, ACQUIRE.1);
    assert!(clients[0].call(acquire(0)).as_int() > 0);
    // One after the other: a server that finds many of them readable takes them in any order.
    for (owner, client) in clients.iter_mut().enumerate().skip(1) {
        client.send(acquire(owner));
        server.wait_for_blocked(owner as u64);
    }
    let mut last = 0;
    let mut times = Vec::with_capacity(HAND_OVERS);
    for turn in 0..HAND_OVERS {
        let (holder, next) = (turn % clients.len(), (turn + 1) % clients.len());
        let start = Instant::now();
        clients[holder].send(format!("LOCK.RELEASE bench {holder}"));
        let token = clients[next].read().as_int();
        times.push(start.elapsed());
        assert!(token > last, "tokens rise");
        last = token;
        assert_eq!(clients[holder].read(), 1);
        clients[holder].send(acquire(holder));
        // The next release must find this client in the queue.
        assert_eq!(clients[next].call("PING"), "PONG");
    }
    // All of them let go, in order, for whoever measures next.
    for turn in HAND_OVERS..HAND_OVERS + clients.len() {
        let holder = turn % clients.len();
        assert_eq!(
            clients[holder].call(format!("LOCK.RELEASE bench {holder}")),
            1
        );
        if turn + 1 < HAND_OVERS + clients.len() {
            assert!(clients[(turn + 1) % clients.len()].read().as_int() > last);
        }
    }
    server.wait_for_blocked(0);
    times
}

/// The same with a list: who is woken pushes for the next.
fn pushes(server: &Server, clients: &mut [Raw]) -> Vec<Duration> {
    for (waiting, client) in (1..).zip(&mut clients[1..]) {
        client.send("BLPOP bench-list 0");
        server.wait_for_blocked(waiting);
    }
    let mut times = Vec::with_capacity(HAND_OVERS);
    for turn in 0..HAND_OVERS {
        let (holder, next) = (turn % clients.len(), (turn + 1) % clients.len());
        let start = Instant::now();
        clients[holder].send("LPUSH bench-list x");
        let popped = clients[next].read();
        times.push(start.elapsed());
        assert_eq!(popped.items()[1], Reply::bulk("x"));
        assert_eq!(clients[holder].read(), 1);
        clients[holder].send("BLPOP bench-list 0");
        assert_eq!(clients[next].call("PING"), "PONG");
    }
    for turn in HAND_OVERS..HAND_OVERS + clients.len() - 1 {
        let (holder, next) = (turn % clients.len(), (turn + 1) % clients.len());
        assert_eq!(clients[holder].call("LPUSH bench-list x"), 1);
        assert_eq!(clients[next].read().items().len(), 2);
    }
    server.wait_for_blocked(0);
    times
}

/// How many microseconds after the deadline of a lease the next holder has its grant.
fn lapses(server: &Server) -> Vec<i64> {
    let (mut first, mut second) = (server.raw(), server.raw());
    let mut late = Vec::with_capacity(LAPSES);
    for turn in 0.. {
        let key = format!("lapse{turn}");
        let ttl = ttl(turn);
        assert!(first.call(format!("LOCK.ACQUIRE {key} a {ttl}")).as_int() > 0);
        let deadline = first.call(format!("PEXPIRETIME {key}")).as_int();
        let reply = second.call(format!("LOCK.ACQUIRE {key} b 60000 BLOCK 0"));
        // A request that came when the lease had lapsed did not wait for it.
        if server.info_number("lock", "lock_expiries_with_waiters") > late.len() as u64 {
            late.push(reply.as_int() - deadline * 1_000);
        }
        if late.len() == LAPSES {
            break;
        }
    }
    late
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
