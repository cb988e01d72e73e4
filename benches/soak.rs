//! A soak of the watchdog: `cargo bench --bench soak [-- SERVER... [CYCLES]]`, a million cycles
//! unless told otherwise. Build the module before that: `cargo build --release`.
//!
//! - Cycles of clients that acquire with `WATCHDOG`, or wait for such a lock, and are killed or hang
//!   up. Afterwards nothing is left of them, and memory is as it was after the first tenth.
//! - The CPU time that 10,000 watched locks cost over half a minute, beside the same server with
//!   none.
//! - A client that holds a lock with a ttl of 2 s for a minute and then dies: how long the next one
//!   waits for it.

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

use harness::{Flavour, Raw, Server, wait_until};
use std::thread;
use std::time::{Duration, Instant};

/// Cycles unless told otherwise.
const CYCLES: usize = 1_000_000;
/// Connections at a time: half of them hold, half of them wait.
const BATCH: usize = 400;
/// The ttl of the locks of the cycles, in milliseconds.
const BRIEF: u64 = 20;
/// Memory that may come and go by itself, in bytes: less than the smallest leak of one cycle in a
/// hundred.
const NOISE: u64 = 128 * 1024;
/// Locks that are watched to see what that costs, their ttl, and for how long.
const WATCHED: usize = 10_000;
const WATCHED_TTL: u64 = 10_000;
const OBSERVED: Duration = Duration::from_secs(30);
/// The lock that is held for long.
const HELD_TTL: u64 = 2_000;
const HELD: Duration = Duration::from_secs(60);

fn main() {
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with('-'))
        .collect();
    let cycles = args.iter().find_map(|arg| arg.parse().ok());
    let named = |flavour: &Flavour| args.iter().any(|name| name == flavour.name());
    let all = !Flavour::ALL.iter().any(named);
    for flavour in Flavour::ALL {
        if all || named(&flavour) {
            println!("{}", flavour.name());
            soak(flavour, cycles.unwrap_or(CYCLES));
            cost_of_watching(flavour);
            long_hold(flavour);
        }
    }
}

fn figure(server: &Server, name: &str) -> u64 {
    server.info_number("lock", &format!("lock_{name}"))
}

/// Acquires, waits and kills, `cycles` times.
fn soak(flavour: Flavour, cycles: usize) {
    let server = start(flavour);
    let start = Instant::now();
    let mut done = 0;
    let mut memory = None;
    let mut reported = 0;
    while done < cycles {
        batch(&server, done);
        done += BATCH;
        if memory.is_none() && done >= cycles / 10 {
            memory = Some(at_rest(&server));
        }
        if done * 10 / cycles > reported {
            reported = done * 10 / cycles;
            let seconds = start.elapsed().as_secs();
            println!("  {done:>9} cycles after {seconds} s");
        }
    }
    let (before, after) = (memory.unwrap(), at_rest(&server));
    let [grants, handovers, expiries, lost] =
        ["grants", "handovers", "expiries_with_waiters", "lost"].map(|name| figure(&server, name));
    println!(
        "  {done} cycles: {grants} grants, {handovers} hand-overs, {expiries} after expiry, {lost} \
         lost; tables empty; used_memory after a tenth {before}, at the end {after}"
    );
    assert!(after <= before + NOISE, "memory grows");
    // The server refuses that as long as a timer or a blocked client is left.
    wait_until("the module to be unloaded", || {
        server.call("MODULE UNLOAD lock") == "OK"
    });
}

fn start(flavour: Flavour) -> Server {
    Server::build(flavour)
        .config("maxclients", "15000")
        .config("slowlog-log-slower-than", "-1")
        .start()
}

/// One round of [`BATCH`] connections: half of them acquire, the others wait for them. All holders
/// go at once, by turns killed and hung up; their locks pass on when the leases have lapsed; and
/// then those go who waited.
fn batch(server: &Server, round: usize) {
    let connect = || (0..BATCH / 2).map(|_| server.raw()).collect::<Vec<_>>();
    let send = |clients: &mut [Raw], rest: &str| {
        for (number, client) in clients.iter_mut().enumerate() {
            let acquire = format!("LOCK.ACQUIRE {round}:{number} {rest}");
            client.send_all(["CLIENT ID", &acquire]);
        }
        clients
            .iter_mut()
            .map(|client| client.read().as_int())
            .collect::<Vec<_>>()
    };
    let (mut holders, mut waiters) = (connect(), connect());
    let holder_ids = send(&mut holders, &format!("o {BRIEF} WATCHDOG"));
    for holder in &mut holders {
        assert!(holder.read().as_int() > 0);
    }
    let waiter_ids = send(&mut waiters, &format!("w {BRIEF} BLOCK 0 WATCHDOG"));
    leave(server, holders, &holder_ids);
    for waiter in &mut waiters {
        assert!(waiter.read().as_int() > 0);
    }
    leave(server, waiters, &waiter_ids);
}

/// Ends connections, every second of them by `CLIENT KILL`.
fn leave(server: &Server, clients: Vec<Raw>, ids: &[i64]) {
    let killed = ids.iter().step_by(2);
    let replies = server
        .raw()
        .pipeline(killed.map(|id| format!("CLIENT KILL ID {id}")));
    assert!(replies.iter().all(|reply| *reply == 1));
    clients.into_iter().for_each(Raw::close);
}

/// The memory in use when everything is over.
fn at_rest(server: &Server) -> u64 {
    wait_until("nothing to be left", || {
        let clients = server.info_number("clients", "connected_clients");
        let tables = ["watchdogs", "waiters", "contended_keys"].map(|name| figure(server, name));
        (clients, tables, server.dbsize(), server.blocked_clients()) == (1, [0; 3], 0, 0)
    });
    // The server gives back what clients and keys took only now and then.
    let start = Instant::now();
    let mut least = u64::MAX;
    while start.elapsed() < Duration::from_secs(3) {
        least = least.min(server.info_number("memory", "used_memory"));
        thread::sleep(Duration::from_millis(100));
    }
    least
}

/// What watching costs, as a share of one core.
fn cost_of_watching(flavour: Flavour) {
    let server = start(flavour);
    let idle = cpu_share(&server);
    let mut client = server.raw();
    let acquire = |n| format!("LOCK.ACQUIRE watched:{n} o {WATCHED_TTL} WATCHDOG");
    client.pipeline((0..WATCHED).map(acquire));
    let before = figure(&server, "watchdog_renewals");
    let busy = cpu_share(&server);
    let renewals = figure(&server, "watchdog_renewals") - before;
    assert_eq!(figure(&server, "lost"), 0);
    println!(
        "  {WATCHED} watched locks of ttl {WATCHED_TTL}: {renewals} renewals in {OBSERVED:?}, CPU \
         {:.2} % of one core, idle {:.2} %, so watching costs {:.2} %",
        busy * 100.0,
        idle * 100.0,
        (busy - idle) * 100.0
    );
}

/// The CPU time that the server uses in [`OBSERVED`], as a share of that.
fn cpu_share(server: &Server) -> f64 {
    let used = || {
        let cpu = server.info("cpu");
        let seconds = |field: &str| cpu[field].parse::<f64>().unwrap();
        seconds("used_cpu_user") + seconds("used_cpu_sys")
    };
    let (start, before) = (Instant::now(), used());
    thread::sleep(OBSERVED);
    (used() - before) / start.elapsed().as_secs_f64()
}

/// A client that sleeps and then dies.
fn long_hold(flavour: Flavour) {
    let server = start(flavour);
    let (mut holder, mut next) = (server.raw(), server.raw());
    let acquire = format!("LOCK.ACQUIRE k o {HELD_TTL} WATCHDOG");
    let token = holder.call(acquire).as_int();
    next.send(format!("LOCK.ACQUIRE k w {HELD_TTL} BLOCK 0"));
    thread::sleep(HELD);
    assert!(!next.has_reply(), "the lock was lost");
    assert_eq!(*server.call("LOCK.INFO k").field("token"), token);
    let start = Instant::now();
    holder.close();
    assert!(next.read().as_int() > token);
    let took = start.elapsed();
    println!(
        "  held for {HELD:?} with ttl {HELD_TTL}; the next holder had it {took:.1?} after the end"
    );
    assert!(took <= Duration::from_millis(HELD_TTL + 50), "too late");
}
