//! What a lock over a quorum costs: `cargo bench --bench quorum [-- PART... SERVER...]`, on the
//! newest server unless told otherwise. Build the module before that: `cargo build --release`.
//!
//! Five nodes on this machine, one of which a client talks to:
//!
//! - `pair`: `LOCK.QACQUIRE` and `LOCK.QRELEASE` beside `LOCK.ACQUIRE` and `LOCK.RELEASE` on one
//!   node, in turns, and beside the floor: a client that sends `SET NX PX` and `DEL` to all nodes
//!   itself, has no library, and goes on
//!   when a majority answered.
//! - `many`: acquires per second of 64 clients, each with a key of its own, beside those of the
//!   locks that clients make on the same nodes: `rslock`, and `redlock` for Node if there is `npm`.
//!   The 64 are clients as the nodes see them, with connections of their own, and once more 64 tasks
//!   of one process that share one connection to each node.
//! - `stopped`: how long an acquire takes when one node is stopped, beside the same with all.
//! - `kills`: a thousand rounds of two clients in which a random node is killed, possibly the one
//!   that is asked, and started again. A round more or less is no matter: a number says how many.
//!
//! The first three run without an append only file and with one that is written at every command.
//! Machines differ and are shared: only figures of one run can be compared, so ratios are printed.
//! Every answer is checked.

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

use harness::{Flavour, Raw, Reply, Server, Stopped, wait_until};
use redis::aio::MultiplexedConnection;
use redis::{Client, Connection, ErrorKind, RedisResult, Value, cmd};
use rslock::LockManager;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const NODES: usize = 5;
/// Of the locks that are measured, and the longest of all: a node without an append only file does
/// not vote before so many milliseconds are over.
const TTL: u64 = 1_000;
/// How often one way and the other are measured in turn.
const ROUNDS: usize = 10;
/// Pairs that one round measures.
const PAIRS: usize = 500;
/// Clients at a time.
const CLIENTS: usize = 64;
/// How often all are measured in turn, and for how long each.
const MANY_ROUNDS: usize = 3;
const MANY_TIME: Duration = Duration::from_secs(2);
/// Before that, for connections to be made.
const WARM_UP: Duration = Duration::from_millis(300);
/// The longest time to wait for a node.
const NODE_TIMEOUT: u64 = 100;
/// Rounds with kills, unless told otherwise, and the ttl of their locks.
const KILL_ROUNDS: usize = 1_000;
const KILL_TTL: u64 = 200;
/// How long a client of theirs waits for a lock.
const BLOCK: u64 = 150;

fn main() {
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with('-'))
        .collect();
    let parts: Vec<&str> = ["pair", "many", "stopped", "kills"]
        .into_iter()
        .filter(|part| args.iter().any(|arg| arg == part))
        .collect();
    let is_wanted = |part| parts.is_empty() || parts.contains(&part);
    let kill_rounds = args.iter().find_map(|arg| arg.parse().ok());
    let named: Vec<Flavour> = Flavour::ALL
        .into_iter()
        .filter(|flavour| args.iter().any(|arg| arg == flavour.name()))
        .collect();
    let flavours = if named.is_empty() {
        vec![Flavour::Valkey91]
    } else {
        named
    };
    for flavour in flavours {
        for has_aof in [false, true] {
            if !["pair", "many", "stopped"].into_iter().any(is_wanted) {
                break;
            }
            println!("{}, {}", flavour.name(), aof_name(has_aof));
            let nodes = start(flavour, has_aof);
            if is_wanted("pair") {
                pairs(&nodes);
            }
            if is_wanted("many") {
                many(&nodes);
            }
            if is_wanted("stopped") {
                stopped(&nodes);
            }
        }
        if is_wanted("kills") {
            println!("{}, {}", flavour.name(), aof_name(true));
            kills(flavour, kill_rounds.unwrap_or(KILL_ROUNDS));
        }
    }
}

fn aof_name(has_aof: bool) -> &'static str {
    if has_aof {
        "appendfsync always"
    } else {
        "no append only file"
    }
}

/// Nodes that know each other and vote.
fn start(flavour: Flavour, has_aof: bool) -> Vec<Server> {
    let nodes: Vec<Server> = (0..NODES)
        .map(|_| {
            let node = Server::build(flavour);
            if has_aof { node.aof() } else { node }.start()
        })
        .collect();
    for node in &nodes {
        configure(node, &ports(&nodes));
    }
    for node in &nodes {
        wait_until("a majority that votes", || {
            let acquired = node.call(format!("LOCK.QACQUIRE first o {TTL}"));
            matches!(acquired, Reply::Array(_)) && node.call("LOCK.QRELEASE first o") == 1
        });
    }
    nodes
}

fn configure(node: &Server, ports: &[u16]) {
    let addresses: Vec<String> = ports
        .iter()
        .map(|port| format!("{}:{port}", Ipv4Addr::LOCALHOST))
        .collect();
    for (setting, value) in [
        ("quorum-max-ttl", TTL.to_string()),
        ("quorum-node-timeout", NODE_TIMEOUT.to_string()),
        ("quorum-nodes", addresses.join(",")),
    ] {
        assert_eq!(
            node.call(format!("CONFIG SET lock.{setting} {value}")),
            "OK"
        );
    }
}

fn ports(nodes: &[Server]) -> Vec<u16> {
    nodes.iter().map(Server::port).collect()
}

/// The token of a grant of a quorum.
fn granted(reply: &Reply) -> i64 {
    let items = reply.items();
    let validity = u64::try_from(items[1].as_int()).expect("a time");
    assert!((1..TTL).contains(&validity), "{reply:?}");
    items[0].as_int()
}

/// One pair on one node after another, and over all nodes, in turns.
fn pairs(nodes: &[Server]) {
    let mut client = nodes[0].raw();
    let mut clients: Vec<Raw> = nodes.iter().map(Server::raw).collect();
    let (set, deleted) = (Reply::Simple("OK".to_owned()), Reply::Int(1));
    let (mut one, mut all, mut floor) = (Vec::new(), Vec::new(), Vec::new());
    let (mut acquires, mut last) = (Vec::new(), 0);
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        let from = one.len();
        for _ in 0..PAIRS {
            let start = Instant::now();
            let token = client.call(format!("LOCK.ACQUIRE one o {TTL}"));
            let released = client.call("LOCK.RELEASE one o");
            one.push(start.elapsed());
            assert!(token.as_int() > 0);
            assert_eq!(released, 1);
        }
        for _ in 0..PAIRS {
            let start = Instant::now();
            let acquired = client.call(format!("LOCK.QACQUIRE all o {TTL}"));
            acquires.push(start.elapsed());
            let released = client.call("LOCK.QRELEASE all o");
            all.push(start.elapsed());
            let token = granted(&acquired);
            assert!(token > last, "tokens rise");
            last = token;
            assert_eq!(released, 1);
        }
        for _ in 0..PAIRS {
            let start = Instant::now();
            let before = (!floor.is_empty()).then_some(&deleted);
            ask_all(
                &mut clients,
                &format!("SET floor o NX PX {TTL}"),
                before,
                &set,
            );
            ask_all(&mut clients, "DEL floor", Some(&set), &deleted);
            floor.push(start.elapsed());
        }
        ratios.push(ratio(
            percentile(&all[from..], 50),
            percentile(&one[from..], 50),
        ));
    }
    ratios.sort_by(f64::total_cmp);
    println!(
        "  pair p50: one node {:.1?}, quorum {:.1?} (its acquire {:.1?}), quorum/one {:.2}, in \
         single rounds {:.2} to {:.2}",
        percentile(&one, 50),
        percentile(&all, 50),
        percentile(&acquires, 50),
        ratio(percentile(&all, 50), percentile(&one, 50)),
        ratios[0],
        ratios[ratios.len() - 1],
    );
    println!(
        "    the floor {:.1?}, floor/one {:.2}, quorum/floor {:.2}",
        percentile(&floor, 50),
        ratio(percentile(&floor, 50), percentile(&one, 50)),
        ratio(percentile(&all, 50), percentile(&floor, 50)),
    );
}

/// Sends a command to all nodes at once and waits for the first three of five to answer. The others
/// still owe the answers to the command before, if there was one: these are read first.
fn ask_all(clients: &mut [Raw], command: &str, before: Option<&Reply>, expected: &Reply) {
    let majority = clients.len() / 2 + 1;
    if let Some(before) = before {
        for client in &mut clients[majority..] {
            assert_eq!(client.read(), *before);
        }
    }
    for client in &mut *clients {
        client.send(command);
    }
    for client in &mut clients[..majority] {
        assert_eq!(client.read(), *expected);
    }
}

fn ratio(time: Duration, base: Duration) -> f64 {
    time.as_secs_f64() / base.as_secs_f64()
}

/// Acquires per second of 64 clients.
fn many(nodes: &[Server]) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let ports = ports(nodes);
    let redlocks = Redlock::install();
    let (mut first, mut spread) = (Vec::new(), Vec::new());
    let mut rivals: Vec<(String, Vec<f64>)> = Vec::new();
    for round in 0..MANY_ROUNDS {
        let mut add = |title: String, rate| {
            if round == 0 {
                rivals.push((title, vec![rate]));
            } else if let Some((_, rates)) = rivals.iter_mut().find(|(known, _)| *known == title) {
                rates.push(rate);
            }
        };
        first.push(runtime.block_on(quorum_rate(&ports[..1])));
        for are_shared in [false, true] {
            let connections = if are_shared { "shared" } else { "own" };
            let rate = runtime.block_on(rslock_rate(&ports, are_shared));
            add(format!("rslock, {connections} connections"), rate);
            for package in &redlocks {
                let rate = package.rate(&ports, connections);
                add(
                    format!("{}, {connections} connections", package.title),
                    rate,
                );
            }
        }
        spread.push(runtime.block_on(quorum_rate(&ports)));
    }
    let (first, spread) = (median(first), median(spread));
    println!(
        "  {CLIENTS} clients: {first:.0} acquires/s by one node, {spread:.0} by all in equal parts"
    );
    for (title, rates) in rivals {
        let rate = median(rates);
        println!(
            "    {title}: {rate:.0} acquires/s; this is {:.2} times that, {:.2} by all",
            first / rate,
            spread / rate,
        );
    }
}

/// What counts acquires from the end of the warm-up on.
#[derive(Default)]
struct Counter(AtomicU64);

impl Counter {
    fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// How many are added in a second, and from when on to add none.
    async fn rate(&self) -> f64 {
        tokio::time::sleep(WARM_UP).await;
        let (start, before) = (Instant::now(), self.0.load(Ordering::Relaxed));
        tokio::time::sleep(MANY_TIME).await;
        let added = self.0.load(Ordering::Relaxed) - before;
        #[expect(clippy::cast_precision_loss, reason = "so many are never counted")]
        let added = added as f64;
        added / start.elapsed().as_secs_f64()
    }
}

/// That of clients that ask these nodes in equal parts, each on a connection of its own.
async fn quorum_rate(ports: &[u16]) -> f64 {
    let counter = Arc::new(Counter::default());
    let until = Instant::now() + WARM_UP + MANY_TIME;
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let address = (Ipv4Addr::LOCALHOST.to_string(), ports[number % ports.len()]);
        let client = Client::open(address).expect("an address");
        let connection = client.get_multiplexed_async_connection().await;
        clients.push(connection.expect("a connection"));
    }
    let tasks: Vec<_> = clients
        .into_iter()
        .enumerate()
        .map(|(number, mut client)| {
            let counter = Arc::clone(&counter);
            tokio::spawn(async move {
                let key = format!("many:{number}");
                while Instant::now() < until {
                    let (token, validity): (i64, u64) = cmd("LOCK.QACQUIRE")
                        .arg(&key)
                        .arg("o")
                        .arg(TTL)
                        .query_async(&mut client)
                        .await
                        .expect("a grant");
                    assert!(token > 0 && (1..TTL).contains(&validity));
                    counter.add();
                    let released: i64 = cmd("LOCK.QRELEASE")
                        .arg(&key)
                        .arg("o")
                        .query_async(&mut client)
                        .await
                        .expect("a release");
                    assert_eq!(released, 1);
                }
            })
        })
        .collect();
    let rate = counter.rate().await;
    for task in tasks {
        task.await.expect("a client");
    }
    rate
}

/// That of `rslock`. A manager has one connection to each node: all tasks share one, or each has
/// its own.
async fn rslock_rate(ports: &[u16], are_shared: bool) -> f64 {
    let addresses: Vec<String> = ports
        .iter()
        .map(|port| format!("redis://{}:{port}", Ipv4Addr::LOCALHOST))
        .collect();
    let manager = || {
        let mut locks = LockManager::new(addresses.clone());
        locks.set_retry(0, Duration::ZERO);
        locks
    };
    let shared = manager();
    let counter = Arc::new(Counter::default());
    let until = Instant::now() + WARM_UP + MANY_TIME;
    let tasks: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let counter = Arc::clone(&counter);
            let locks = if are_shared {
                shared.clone()
            } else {
                manager()
            };
            tokio::spawn(async move {
                let key = format!("rslock:{number}");
                while Instant::now() < until {
                    let lock = locks
                        .lock(key.as_str(), Duration::from_millis(TTL))
                        .await
                        .expect("a lock");
                    assert!(lock.validity_time > 0);
                    counter.add();
                    locks.unlock(&lock).await;
                }
            })
        })
        .collect();
    let rate = counter.rate().await;
    for task in tasks {
        task.await.expect("a client");
    }
    rate
}

/// A version of `redlock` for Node.
struct Redlock {
    title: &'static str,
    package: &'static str,
    dir: &'static Path,
}

impl Redlock {
    /// Installs them outside of the sources, by the lock file. None if that cannot be done.
    fn install() -> Vec<Self> {
        let dir = Path::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/rivals"));
        let sources = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/benches/rivals"));
        fs::create_dir_all(dir).expect("a folder");
        for file in ["package.json", "package-lock.json", "redlock.mjs"] {
            fs::copy(sources.join(file), dir.join(file)).expect("a copy");
        }
        let install = ["ci", "--no-audit", "--no-fund", "--ignore-scripts"];
        match Command::new("npm").args(install).current_dir(dir).output() {
            Ok(output) if output.status.success() => [
                ("redlock 5.0.0-beta.2 (Node)", "redlock"),
                ("redlock 4.2.0 (Node)", "redlock4"),
            ]
            .map(|(title, package)| Self {
                title,
                package,
                dir,
            })
            .into(),
            Ok(_) => {
                println!("  redlock for Node is left out: npm did not install it");
                Vec::new()
            }
            Err(error) => {
                println!("  redlock for Node is left out: npm does not run: {error}");
                Vec::new()
            }
        }
    }

    /// Its acquires per second.
    fn rate(&self, ports: &[u16], connections: &str) -> f64 {
        let output = Command::new("node")
            .args(["redlock.mjs", self.package, connections])
            .args([
                CLIENTS.to_string(),
                MANY_TIME.as_millis().to_string(),
                TTL.to_string(),
            ])
            .args(ports.iter().map(u16::to_string))
            .current_dir(self.dir)
            .output()
            .expect("node");
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert!(output.status.success(), "{err}");
        out.trim().parse().expect("a number")
    }
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// How much longer pairs take when one node is stopped.
fn stopped(nodes: &[Server]) {
    let mut client = nodes[0].raw();
    let mut pair = |times: &mut Vec<Duration>| {
        let start = Instant::now();
        let acquired = client.call(format!("LOCK.QACQUIRE all o {TTL}"));
        let released = client.call("LOCK.QRELEASE all o");
        times.push(start.elapsed());
        assert!(granted(&acquired) > 0);
        assert_eq!(released, 1);
    };
    let (mut all, mut fewer) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        (0..PAIRS).for_each(|_| pair(&mut all));
        let victim = &nodes[1 + round % (NODES - 1)];
        signal(victim, "STOP");
        (0..PAIRS).for_each(|_| pair(&mut fewer));
        signal(victim, "CONT");
        // It catches up.
        wait_until("the node to answer", || victim.raw().call("PING") == "PONG");
        thread::sleep(Duration::from_millis(2 * NODE_TIMEOUT));
        pair(&mut Vec::new());
    }
    let [all_50, fewer_50] = [&all, &fewer].map(|times| percentile(times, 50));
    let [all_99, fewer_99] = [&all, &fewer].map(|times| percentile(times, 99));
    println!(
        "  pair with one node stopped: p50 {all_50:.1?} to {fewer_50:.1?}, p99 {all_99:.1?} to \
         {fewer_99:.1?}, so by {:.1?}, most {:.1?} to {:.1?}; a node has {NODE_TIMEOUT} ms",
        fewer_99.saturating_sub(all_99),
        percentile(&all, 100),
        percentile(&fewer, 100),
    );
    assert!(fewer_99.saturating_sub(all_99) <= Duration::from_millis(NODE_TIMEOUT));
}

/// Stops or continues the process of a server.
fn signal(server: &Server, name: &str) {
    thread_local! {
        // A server that is stopped does not tell.
        static IDS: std::cell::RefCell<Vec<(u16, u64)>> = const { std::cell::RefCell::new(Vec::new()) };
    }
    let known = IDS.with_borrow(|ids| {
        ids.iter()
            .find_map(|(port, id)| (*port == server.port()).then_some(*id))
    });
    let id = known.unwrap_or_else(|| {
        let id = server.info_number("server", "process_id");
        IDS.with_borrow_mut(|ids| ids.push((server.port(), id)));
        id
    });
    let status = Command::new("kill")
        .args([format!("-{name}"), id.to_string()])
        .status();
    assert!(status.expect("kill").success());
}

fn percentile(times: &[Duration], percent: usize) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    times[(times.len() * percent / 100).min(times.len() - 1)]
}

/// When a client had a lock, as it may believe, and under which token.
struct Hold {
    token: i64,
    from: Instant,
    to: Instant,
}

/// What has come of the rounds.
#[derive(Default)]
struct Tally {
    grants: usize,
    refusals: usize,
    no_quorum: usize,
    asked_dead: usize,
    slowest: Duration,
}

/// Two clients want a lock, by different nodes, while a node is killed.
fn kills(flavour: Flavour, rounds: usize) {
    let mut nodes = start(flavour, true);
    let ports = ports(&nodes);
    let mut tally = Tally::default();
    let mut keys = Vec::new();
    let start = Instant::now();
    for round in 0..rounds {
        let key = format!("round:{round}");
        let victim = random(NODES);
        let delay = Duration::from_micros(random(3_000) as u64);
        let killed = nodes.swap_remove(victim);
        let asked = [random(NODES), random(NODES)].map(|asked| ports[asked]);
        let dead = killed.port();
        let (killed, holds) = thread::scope(|scope| {
            let killed = scope.spawn(|| {
                thread::sleep(delay);
                killed.kill()
            });
            let clients: Vec<_> = asked
                .into_iter()
                .enumerate()
                .map(|(owner, port)| {
                    let key = &key;
                    scope.spawn(move || hold(key, owner, port, port == dead))
                })
                .collect();
            let mut holds = Vec::new();
            for client in clients {
                let (hold, took) = client.join().expect("a client");
                tally.slowest = tally.slowest.max(took);
                match hold {
                    Ok(hold) => {
                        tally.grants += 1;
                        holds.push(hold);
                    }
                    Err(why) => *why.of(&mut tally) += 1,
                }
            }
            (killed.join().expect("a kill"), holds)
        });
        if let [one, other] = holds.as_slice() {
            let (first, second) = if one.from < other.from {
                (one, other)
            } else {
                (other, one)
            };
            assert!(first.to <= second.from, "two had {key} at once");
            assert!(first.token < second.token, "tokens rise");
        }
        nodes.push(killed.start());
        let node = &nodes[NODES - 1];
        configure(node, &ports);
        keys.push(key);
        if keys.len() == 100 || round + 1 == rounds {
            // The last message of a round may still be on its way when its client is answered.
            thread::sleep(Duration::from_millis(KILL_TTL + 2 * NODE_TIMEOUT));
            for node in &nodes {
                for key in &keys {
                    assert_eq!(node.call(format!("EXISTS {key}")), 0, "{key} is left");
                }
                assert_eq!(node.blocked_clients(), 0);
            }
            keys.clear();
        }
    }
    println!(
        "  {rounds} rounds with a kill in {:.0?}: {} grants, {} refusals, {} without a quorum, {} \
         by the node that was killed; slowest answer {:.1?}; no lock and no client was left",
        start.elapsed(),
        tally.grants,
        tally.refusals,
        tally.no_quorum,
        tally.asked_dead,
        tally.slowest,
    );
}

/// Why a client did not get its lock.
enum Why {
    Refused,
    NoQuorum,
    AskedDead,
}

impl Why {
    fn of<'t>(&self, tally: &'t mut Tally) -> &'t mut usize {
        match self {
            Self::Refused => &mut tally.refusals,
            Self::NoQuorum => &mut tally.no_quorum,
            Self::AskedDead => &mut tally.asked_dead,
        }
    }
}

/// One client: waits for a lock, has it for a moment, and releases it or, now and then, does not.
/// Also returns how long an answer took at most.
fn hold(key: &str, owner: usize, port: u16, is_victim: bool) -> (Result<Hold, Why>, Duration) {
    let start = Instant::now();
    let client = match connect(port) {
        Ok(client) => client,
        Err(_) if is_victim => return (Err(Why::AskedDead), Duration::ZERO),
        Err(error) => panic!("{error}"),
    };
    let mut client = client;
    let acquire = format!("LOCK.QACQUIRE {key} {owner} {KILL_TTL} BLOCK {BLOCK}");
    let acquired = ask(&mut client, &acquire);
    let from = Instant::now();
    let took = start.elapsed();
    let (token, validity) = match acquired {
        Ok(Value::Nil) => return (Err(Why::Refused), took),
        Ok(value) => redis::from_redis_value::<(i64, u64)>(value).expect("a grant"),
        Err(error) if error.code() == Some("NOQUORUM") => return (Err(Why::NoQuorum), took),
        Err(_) if is_victim => return (Err(Why::AskedDead), took),
        Err(error) => panic!("{error} after {took:?}"),
    };
    assert!((1..KILL_TTL).contains(&validity));
    let lapse = from + Duration::from_millis(validity);
    thread::sleep(Duration::from_micros(random(2_000) as u64));
    if random(4) == 0 {
        return (
            Ok(Hold {
                token,
                from,
                to: lapse,
            }),
            took,
        );
    }
    let to = lapse.min(Instant::now());
    let released = ask(&mut client, &format!("LOCK.QRELEASE {key} {owner}"));
    match released {
        // A majority of those that granted it is enough to have it, but not all of them may be left.
        Ok(Value::Int(-1..=1)) => {}
        Err(error) if is_victim || error.code() == Some("NOQUORUM") => {}
        other => panic!("{other:?}"),
    }
    (Ok(Hold { token, from, to }), took.max(to.elapsed()))
}

fn connect(port: u16) -> RedisResult<Connection> {
    let connection = Client::open((Ipv4Addr::LOCALHOST.to_string(), port))?.get_connection()?;
    // Longer than anything that a client may be made to wait for.
    connection.set_read_timeout(Some(Duration::from_millis(BLOCK + KILL_TTL + 2_000)))?;
    Ok(connection)
}

fn ask(client: &mut Connection, command: &str) -> RedisResult<Value> {
    let mut words = command.split(' ');
    let mut request = cmd(words.next().unwrap_or_default());
    words.for_each(|word| {
        request.arg(word);
    });
    request.query(client)
}

/// A random number below `limit`.
fn random(limit: usize) -> usize {
    let random = RandomState::new().hash_one(0);
    usize::try_from(random % limit as u64).expect("a small number")
}
