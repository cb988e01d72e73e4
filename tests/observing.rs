//! What an operator sees: events of the module's own, `INFO lock`, settings, the log, and the shape
//! of every reply in both protocols.

use std::collections::{BTreeMap, BTreeSet};

use crate::harness::{
    Events, Raw, Reply, Server, module_path, on_every_server, unix_millis, wait_for, wait_until,
};
use crate::waiters::unload;

/// The fields of `INFO lock`.
const FIELDS: [&str; 37] = [
    "contended_keys",
    "deadlocks",
    "evicted_locks",
    "expiries_with_waiters",
    "grants",
    "guarded",
    "handovers",
    "lost",
    "queue_full",
    "quorum_grants",
    "quorum_refusals",
    "quorum_releases",
    "quorum_renewals",
    "quorum_stale",
    "quorum_unavailable",
    "quorum_waiting",
    "reentries",
    "refusals",
    "refused_votes",
    "releases",
    "renewals",
    "repetitions",
    "stale_guards",
    "stale_releases",
    "stale_renewals",
    "timeouts",
    "unclaimed_grants",
    "votes",
    "wait_ms_max",
    "wait_ms_p50",
    "wait_ms_p90",
    "wait_ms_p99",
    "wait_ms_p999",
    "waiters",
    "waiters_peak",
    "watchdog_renewals",
    "watchdogs",
];

/// Commands in order, with what each of them adds to the fields of `INFO lock`.
const COUNTED: [(&str, &str); 70] = [
    ("LOCK.ACQUIRE k o 100000", "grants 1"),
    ("LOCK.ACQUIRE k o 100000", "refusals 1"),
    ("LOCK.ACQUIRE k * 100000", "refusals 1"),
    ("LOCK.RACQUIRE k x 100000", "refusals 1"),
    ("LOCK.RACQUIRE k o 100000 REQID r", "reentries 1"),
    ("LOCK.RACQUIRE k o 100000 REQID r", "repetitions 1"),
    ("LOCK.ACQUIRE k o 100000 REQID r", "repetitions 1"),
    ("LOCK.RACQUIRE k o 100000 BLOCK 0", "reentries 1"),
    ("LOCK.RENEW k o 100000", "renewals 1"),
    ("LOCK.RENEW k x 100000", "stale_renewals 1"),
    ("LOCK.RENEW k o 100000 TOKEN 5", "stale_renewals 1"),
    ("LOCK.RENEW none o 100000", "stale_renewals 1"),
    ("LOCK.RELEASE k x", "stale_releases 1"),
    ("LOCK.RELEASE k o TOKEN 5", "stale_releases 1"),
    ("LOCK.RELEASE none o", "stale_releases 1"),
    ("LOCK.RELEASE k o", "releases 1"),
    ("LOCK.RELEASE k o", "releases 1"),
    ("LOCK.RELEASE k o", "releases 1"),
    ("LOCK.RELEASE k o", "stale_releases 1"),
    ("LOCK.RACQUIRE k o 100000 WATCHDOG", "grants 1, watchdogs 1"),
    ("LOCK.RACQUIRE k o 100000 WATCHDOG", "reentries 1"),
    ("LOCK.RENEW k o 100000 WATCHDOG", "renewals 1"),
    ("LOCK.RELEASE k o", "releases 1"),
    ("LOCK.RELEASE k o", "releases 1, watchdogs -1"),
    ("LOCK.ACQUIRE k * 100000 BLOCK 0", "grants 1"),
    // What is refused before it is looked at, and what only looks.
    ("RPUSH list a", ""),
    ("LOCK.ACQUIRE list o 100000", ""),
    ("LOCK.ACQUIRE list o 100000 BLOCK 1", ""),
    ("LOCK.RELEASE list o", ""),
    ("LOCK.RENEW list o 100000 WATCHDOG", ""),
    ("LOCK.ACQUIRE free o 0", ""),
    ("LOCK.ACQUIRE free o 100000 NOPE", ""),
    ("LOCK.RELEASE k", ""),
    ("LOCK.INFO k", ""),
    ("LOCK.QUEUE k", ""),
    ("LOCK.CONTENDED", ""),
    ("LOCK.HELP", ""),
    ("INFO lock", ""),
    // Locks of other software.
    ("SET plain o", ""),
    ("LOCK.RENEW plain o 100000", "renewals 1"),
    ("LOCK.RELEASE plain o", "releases 1"),
    ("HSET hash o 2", ""),
    ("LOCK.RELEASE hash o", "releases 1"),
    ("LOCK.RELEASE hash x", "stale_releases 1"),
    ("LOCK.ACQUIRE s o 100000 SHARED", "grants 1"),
    ("LOCK.ACQUIRE s p 100000 LIMIT 2", "grants 1"),
    ("LOCK.ACQUIRE s q 100000 LIMIT 2", "refusals 1"),
    ("LOCK.MACQUIRE 2 m n o 100000", "grants 2"),
    ("LOCK.MACQUIRE 2 n l o 100000", "refusals 1"),
    (
        "LOCK.MRENEW 3 m n none o 100000",
        "renewals 2, stale_renewals 1",
    ),
    ("LOCK.MRELEASE 3 m n none o", "releases 2, stale_releases 1"),
    ("LOCK.GUARD none 5 GET v", "stale_guards 1"),
    ("LOCK.QVOTE v o 50000 5 7", "votes 1"),
    ("LOCK.QVOTE v o 50000 5 7", ""),
    ("LOCK.QVOTE v o 50000 5 8", "refused_votes 1"),
    ("LOCK.QVOTE v o 60001 5 8", ""),
    ("LOCK.QSETTLE v o 50000 7 5 6", "refused_votes 1"),
    ("LOCK.QEXTEND v o 50000", "renewals 1"),
    ("LOCK.QEXTEND v x 50000", "stale_renewals 1"),
    ("LOCK.QEXTEND none o 50000", "stale_renewals 1"),
    ("LOCK.QRELOCK v o 50000 5 7 5 5", "refused_votes 1"),
    ("LOCK.QUNVOTE v o 8", ""),
    ("LOCK.QUNVOTE v o 7", "releases 1"),
    ("LOCK.QUNVOTE v o 7", ""),
    ("LOCK.QVOTE v o 50000 5 7", "refused_votes 1"),
    ("LOCK.QRELOCK v o 50000 5 9 5 9007199254740991", "votes 1"),
    ("LOCK.QSETTLE v o 50000 9 5 6", ""),
    ("LOCK.QEND v x", "stale_releases 1"),
    ("LOCK.QEND none o", "stale_releases 1"),
    ("LOCK.QEND v o", "releases 1"),
];

/// The settings with their defaults and their ranges.
const SETTINGS: [(&str, i64, i64, i64); 7] = [
    ("lock.max-waiters", 100_000, 0, 10_000_000),
    ("lock.max-waiters-per-key", 10_000, 0, 10_000_000),
    (
        "lock.watchdog-max-hold",
        86_400_000,
        1,
        9_007_199_254_740_991,
    ),
    ("lock.quorum-node-timeout", 100, 1, 86_400_000),
    ("lock.quorum-retry-delay", 50, 1, 86_400_000),
    ("lock.quorum-retry-jitter", 100, 0, 86_400_000),
    ("lock.quorum-max-ttl", 60_000, 1, 9_007_199_254_740_991),
];

/// The settings that are no numbers, without the password: no pattern finds that.
const OTHER_SETTINGS: usize = 6;

/// Settings in order, and whether the module warns of each.
const EVICTION: [(&str, &str, bool); 10] = [
    // Without a limit nothing is evicted.
    ("maxmemory-policy", "allkeys-lru", false),
    ("maxmemory", "100mb", true),
    ("maxmemory-policy", "volatile-ttl", false),
    ("maxmemory-policy", "noeviction", false),
    ("maxmemory", "200mb", false),
    ("lock.max-waiters", "5", false),
    ("maxmemory-policy", "volatile-random", true),
    ("maxmemory", "0", false),
    ("maxmemory-policy", "allkeys-lfu", false),
    ("maxmemory", "100mb", true),
];

/// Commands in order, with the shapes of their replies in RESP3: see [`shape`]. The key `k` is held
/// by `o`.
const SHAPES: [(&str, &str); 64] = [
    ("LOCK.ACQUIRE k o 100000", "#"),
    ("LOCK.ACQUIRE k o 100000", "nil"),
    ("LOCK.ACQUIRE k x 100000 BLOCK 1", "nil"),
    ("LOCK.ACQUIRE made * 100000", "[# $]"),
    ("LOCK.ACQUIRE made * 100000", "nil"),
    ("LOCK.ACQUIRE made * 100000 BLOCK 1", "nil"),
    ("LOCK.RACQUIRE k o 100000", "#"),
    ("LOCK.RACQUIRE k x 100000", "nil"),
    ("LOCK.RACQUIRE remade * 100000", "[# $]"),
    ("LOCK.RACQUIRE remade * 100000 BLOCK 1", "nil"),
    ("LOCK.RELEASE k o", "#"),
    ("LOCK.RELEASE k x", "#"),
    ("LOCK.RELEASE none o", "#"),
    ("LOCK.RENEW k o 100000", "#"),
    ("LOCK.RENEW k x 100000", "#"),
    ("LOCK.RENEW none o 100000", "#"),
    (
        "LOCK.INFO k",
        "{state held mode exclusive owners {o #} token # ttl # waiters # layout module age # \
         grants [{owner o token # ttl #}]}",
    ),
    (
        "LOCK.INFO none",
        "{state free mode nil owners {} token nil ttl # waiters # layout nil age nil \
         grants []}",
    ),
    ("SET plain p", "+OK"),
    (
        "LOCK.INFO plain",
        "{state held mode exclusive owners {p #} token nil ttl # waiters # layout plain age nil \
         grants [{owner p token nil ttl #}]}",
    ),
    ("HSET hash h 2", "#"),
    (
        "LOCK.INFO hash",
        "{state held mode exclusive owners {h #} token nil ttl # waiters # layout hash age nil \
         grants [{owner h token nil ttl #}]}",
    ),
    ("LOCK.ACQUIRE shared s 100000 SHARED", "#"),
    ("LOCK.ACQUIRE shared x 100000 LIMIT 1", "nil"),
    (
        "LOCK.INFO shared",
        "{state held mode shared owners {s #} token # ttl # waiters # layout module age # \
         grants [{owner s token # ttl #}]}",
    ),
    ("LOCK.MACQUIRE 2 m n o 100000", "#"),
    ("LOCK.MACQUIRE 2 n l x 100000", "nil"),
    ("LOCK.MACQUIRE 2 p q * 100000", "[# $]"),
    ("LOCK.MRENEW 3 m n none o 100000", "[# # #]"),
    ("LOCK.GUARD m 5 GET v", "-NOTHELD"),
    ("LOCK.MRELEASE 3 m n none o", "[# # #]"),
    ("LOCK.QVOTE v o 50000 5 7", "#"),
    ("LOCK.QVOTE v x 50000 5 8", "nil"),
    ("LOCK.QSETTLE v o 50000 8 5 6", "nil"),
    ("LOCK.QEXTEND v o 50000", "[# 7 exclusive]"),
    ("LOCK.QEXTEND v x 50000", "#"),
    ("LOCK.QEXTEND none o 50000", "[# #]"),
    ("LOCK.QUNVOTE v x 7", "#"),
    ("LOCK.QUNVOTE v o 7", "#"),
    ("LOCK.QRELOCK v o 50000 5 7 5 5", "nil"),
    ("LOCK.QRELOCK v o 50000 5 9 5 9007199254740991", "#"),
    ("LOCK.QSETTLE v o 50000 9 5 6", "#"),
    ("LOCK.QEND v x", "#"),
    ("LOCK.QEND v o", "9"),
    ("LOCK.QEND v o", "#"),
    ("LOCK.QVOTE v o 60001 5 7", "-ERR"),
    // Their own tests have the answers of a quorum; this server has no nodes.
    ("LOCK.QACQUIRE v o 50000", "-ERR"),
    ("LOCK.QRENEW v o 50000", "-ERR"),
    ("LOCK.QRELEASE v o", "-ERR"),
    ("LOCK.QINFO v", "-ERR"),
    ("LOCK.QUEUE k", "[]"),
    ("LOCK.QUEUE none", "[]"),
    ("LOCK.CONTENDED", "[]"),
    ("RPUSH list a", "#"),
    ("LOCK.ACQUIRE list o 1", "-WRONGTYPE"),
    ("LOCK.RACQUIRE list o 1 BLOCK 0", "-WRONGTYPE"),
    ("LOCK.RELEASE list o", "-WRONGTYPE"),
    ("LOCK.RENEW list o 1", "-WRONGTYPE"),
    ("LOCK.INFO list", "-WRONGTYPE"),
    ("LOCK.ACQUIRE k", "-ERR"),
    ("LOCK.ACQUIRE k o 0", "-ERR"),
    ("LOCK.INFO k k", "-ERR"),
    ("LOCK.QUEUE k COUNT 0", "-ERR"),
    ("LOCK.CONTENDED COUNT", "-ERR"),
];

/// Requests of `w` that wait for `k`, which `o` holds, the commands that end this, and the shape of
/// the reply.
const SHAPES_OF_WAITS: [(&str, &[&str], &str); 6] = [
    (
        "LOCK.ACQUIRE k w 100000 BLOCK 0",
        &["LOCK.RELEASE k o"],
        "#",
    ),
    ("LOCK.RACQUIRE k w 100000 BLOCK 0", &["DEL k"], "#"),
    (
        "LOCK.ACQUIRE k w 100000 BLOCK 0",
        &["CLIENT UNBLOCK $id"],
        "nil",
    ),
    (
        "LOCK.RACQUIRE k w 100000 BLOCK 0",
        &["CLIENT UNBLOCK $id TIMEOUT"],
        "nil",
    ),
    (
        "LOCK.ACQUIRE k w 100000 BLOCK 0",
        &["CLIENT UNBLOCK $id ERROR"],
        "-UNBLOCKED",
    ),
    (
        "LOCK.ACQUIRE k w 100000 BLOCK 0",
        &["MULTI", "DEL k", "RPUSH k a", "EXEC"],
        "-WRONGTYPE",
    ),
];

/// The numbers of a section of `INFO` that the module has written.
fn fields(server: &Server, section: &str) -> BTreeMap<String, u64> {
    let lines = server.info(section);
    let own = lines.iter().filter_map(|(field, value)| {
        let field = field.strip_prefix("lock_")?;
        let number = value.parse().unwrap_or_else(|_| panic!("{field}: {value}"));
        Some((field.to_owned(), number))
    });
    own.collect()
}

/// `INFO lock` as it was when it was last looked at.
struct Ledger<'s> {
    server: &'s Server,
    fields: BTreeMap<String, u64>,
    /// The fields that have changed at some time.
    changed: BTreeSet<String>,
}

impl<'s> Ledger<'s> {
    fn of(server: &'s Server) -> Self {
        let fields = fields(server, "lock");
        let changed = BTreeSet::new();
        Self {
            server,
            fields,
            changed,
        }
    }

    /// Makes sure that `what` has changed the fields in just this way. How long anybody waited is
    /// left out, because it depends on the machine.
    fn counts(&mut self, what: &str, expected: &str) {
        let now = fields(self.server, "lock");
        let mut changes = Vec::new();
        for (field, value) in &now {
            let change = value.wrapping_sub(self.fields[field]).cast_signed();
            if change != 0 {
                self.changed.insert(field.clone());
                if !field.starts_with("wait_ms") {
                    changes.push(format!("{field} {change}"));
                }
            }
        }
        assert_eq!(changes.join(", "), expected, "{what}");
        self.fields = now;
    }
}

/// Waiting, and the ways in which it ends.
fn count_waits(server: &Server, client: &mut Raw, ledger: &mut Ledger<'_>) {
    client.call("FLUSHALL");
    client.call("LOCK.ACQUIRE k o 100000");
    ledger.counts("a grant", "grants 1");
    let mut waiter = waiting(server, "LOCK.ACQUIRE k w 100000 BLOCK 0");
    ledger.counts("a wait", "contended_keys 1, waiters 1, waiters_peak 1");
    let second = waiting(server, "LOCK.ACQUIRE k w 100000 BLOCK 0");
    ledger.counts("a second wait", "waiters 1, waiters_peak 1");
    second.close();
    server.wait_for_blocked(1);
    ledger.counts("one who hangs up", "waiters -1");
    client.call("LOCK.RELEASE k o");
    assert!(waiter.read().as_int() > 0);
    let passed_on = "contended_keys -1, handovers 1, releases 1, waiters -1";
    ledger.counts("a release", passed_on);
    assert!(client.call("LOCK.ACQUIRE k x 100000 BLOCK 1").is_nil());
    ledger.counts("a wait in vain", "timeouts 1");
    let id = client.id();
    client.send("LOCK.ACQUIRE k x 100000 BLOCK 0");
    server.wait_for_blocked(1);
    ledger.counts("a wait", "contended_keys 1, waiters 1");
    assert_eq!(server.call(("CLIENT", "UNBLOCK", id)), 1);
    assert!(client.read().is_nil());
    ledger.counts("CLIENT UNBLOCK", "contended_keys -1, waiters -1");
    client.pipeline(["MULTI", "LOCK.ACQUIRE k x 100000 BLOCK 0", "EXEC"]);
    ledger.counts("a wait in a transaction", "refusals 1");
    let script = "return redis.call('LOCK.ACQUIRE', 'k', 'x', 100000, 'BLOCK', 0)";
    client.call(("EVAL", script, 0));
    ledger.counts("a wait in a script", "refusals 1");
}

/// Leases that lapse, with and without anybody who waits, and a grant that nobody hears of.
fn count_lapses(server: &Server, client: &mut Raw, ledger: &mut Ledger<'_>) {
    let mut waiter = waiting(server, "LOCK.ACQUIRE k v 100000 BLOCK 0 WATCHDOG");
    ledger.counts("a wait", "contended_keys 1, waiters 1");
    client.call("LOCK.RENEW k w 20");
    assert!(waiter.read().as_int() > 0);
    let lapsed = "contended_keys -1, expiries_with_waiters 1, handovers 1, renewals 1, \
                  waiters -1, watchdogs 1";
    ledger.counts("a lapsed lease", lapsed);
    waiter.close();
    wait_until("the watch to end", || {
        fields(server, "lock")["watchdogs"] == 0
    });
    ledger.counts("a watcher that is gone", "watchdogs -1");
    client.call("LOCK.ACQUIRE brief o 1");
    wait_until("the lease to lapse", || server.call("EXISTS brief") == 0);
    ledger.counts("a lease that lapses for nobody", "grants 1");
    client.call("LOCK.RELEASE brief o");
    ledger.counts("a release that comes too late", "stale_releases 1");

    let mut waiter = server.raw();
    let kill = format!("CLIENT KILL ID {}", waiter.id());
    waiter.send("LOCK.ACQUIRE k w 100000 BLOCK 0");
    server.wait_for_blocked(1);
    client.pipeline(["MULTI", "LOCK.RELEASE k v", &kill, "EXEC"]);
    wait_until("the grant to go back", || server.call("EXISTS k") == 0);
    let unclaimed = "handovers 1, releases 1, unclaimed_grants 1";
    ledger.counts("an unclaimed grant", unclaimed);
}

/// Requests that may not wait.
fn count_refused_waits(server: &Server, client: &mut Raw, ledger: &mut Ledger<'_>) {
    client.call("LOCK.ACQUIRE k o 100000");
    client.call("LOCK.ACQUIRE j p 100000");
    let waiter = waiting(server, "LOCK.ACQUIRE j o 100000 BLOCK 0");
    ledger.counts(
        "two grants and a wait",
        "contended_keys 1, grants 2, waiters 1",
    );
    client.call("LOCK.ACQUIRE k p 100000 BLOCK 0");
    ledger.counts("a deadlock", "deadlocks 1");
    client.call("CONFIG SET lock.max-waiters 0");
    client.call("LOCK.ACQUIRE k x 100000 BLOCK 0");
    ledger.counts("a full queue", "queue_full 1");
    waiter.close();
    server.wait_for_blocked(0);
    ledger.counts("one who hangs up", "contended_keys -1, waiters -1");
}

/// Renewals by the watchdog, and a loss. How often it renews before that depends on the machine.
fn count_renewals(server: &Server, client: &mut Raw, ledger: &mut Ledger<'_>) {
    let mut stream = server.replication_stream();
    client.call("LOCK.RENEW k o 1000 WATCHDOG");
    let deadline = server.deadline("k");
    wait_until("a renewal", || server.deadline("k") > deadline);
    client.call("DEL k");
    wait_until("the loss", || fields(server, "lock")["lost"] == 1);
    let writes = stream.writes(server);
    let renewals = writes.iter().filter(|write| write.matches("PEXPIREAT k *"));
    // The first is that of the client.
    let renewals = renewals.count() - 1;
    let expected = format!("lost 1, renewals 1, watchdog_renewals {renewals}");
    ledger.counts("a watched hold that is lost", &expected);
}

/// The events since the last look, of database 0.
fn told(events: &mut Events) -> Vec<String> {
    let events = events.so_far();
    let text = |event: &_| format!("{event}").strip_prefix("0 ").unwrap().to_owned();
    events.iter().map(text).collect()
}

/// A client that waits in `command`.
fn waiting(server: &Server, command: &str) -> Raw {
    let mut client = server.raw();
    let before = server.blocked_clients();
    client.send(command);
    server.wait_for_blocked(before + 1);
    client
}

/// What a subscriber was sent since the last look: channels and messages.
fn messages(subscriber: &mut Raw) -> Vec<(String, String)> {
    subscriber.send("PING mark");
    let read = || {
        let message = subscriber.read().to_words();
        (message.text(0) == "pmessage").then(|| (message.text(2).into(), message.text(3).into()))
    };
    std::iter::from_fn(read).collect()
}

/// The lines of the log that warn of eviction.
fn warnings(server: &Server) -> usize {
    let log = server.log();
    log.matches("redis-lock: maxmemory-policy can evict locks")
        .count()
}

/// What a reply is made of: `#` for an integer, short strings as they are and `$` for long ones,
/// `[]` for arrays and `{}` for maps, the code of an error, and one name for every nil.
fn shape(reply: &Reply) -> String {
    let all = |items: &[Reply]| items.iter().map(shape).collect::<Vec<_>>().join(" ");
    match reply {
        Reply::Int(_) => "#".to_owned(),
        Reply::Bulk(bytes) if bytes.len() > 20 => "$".to_owned(),
        Reply::Bulk(_) => reply.as_text().to_owned(),
        Reply::Simple(text) => format!("+{text}"),
        Reply::Error(_) => format!("-{}", reply.error_code().unwrap()),
        Reply::NilBulk | Reply::Null => "nil".to_owned(),
        Reply::Array(items) => format!("[{}]", all(items)),
        Reply::Map(pairs) => {
            let items: Vec<Reply> = pairs
                .iter()
                .flat_map(|(a, b)| [a.clone(), b.clone()])
                .collect();
            format!("{{{}}}", all(&items))
        }
        other => panic!("{other:?} has no place here"),
    }
}

/// Makes sure that a reply has this shape, in the protocol of its client.
fn has_shape(reply: &Reply, expected: &str, is_resp3: bool, what: &str) {
    let expected = if is_resp3 {
        expected.to_owned()
    } else {
        expected.replace('{', "[").replace('}', "]")
    };
    assert_eq!(shape(reply), expected, "{what}");
    let text = format!("{reply:?}");
    let nil = if is_resp3 { "$-1" } else { "_" };
    let parts = text.split([' ', '[', ']', '{', '}', ',', '(', ')']);
    assert!(!parts.into_iter().any(|part| part == nil), "{what}: {text}");
}

on_every_server! {
    /// What a command alone causes stands in `effects.rs`; this is what happens between clients.
    fn events_tell_what_happens_to_a_lock(flavour) {
        let server = Server::start(flavour);
        let mut holder = server.raw();
        let mut events = server.events();
        let acquire = |ttl: i64| format!("LOCK.ACQUIRE k o {ttl}");
        let wait = "LOCK.ACQUIRE k w 100000 BLOCK 0";
        let passed_on = ["set k", "expire k", "lock.handover k"];

        holder.call(acquire(100_000));
        holder.call("LOCK.RACQUIRE k o 100000");
        told(&mut events);
        let mut waiter = waiting(&server, wait);
        assert!(told(&mut events).is_empty(), "a wait is no event");
        holder.call("LOCK.RELEASE k o");
        assert_eq!(told(&mut events), ["lock.released k", "set k", "expire k"]);
        holder.call("LOCK.RELEASE k o");
        assert_eq!(told(&mut events), [&["lock.released k"], &passed_on[..]].concat());
        assert!(waiter.read().as_int() > 0);

        // Whoever deletes the key, it passes on.
        let mut next = waiting(&server, "LOCK.ACQUIRE k o 100000 BLOCK 0");
        holder.call("DEL k");
        assert!(next.read().as_int() > 0);
        assert_eq!(told(&mut events), [&["del k"], &passed_on[..]].concat());
        holder.call("LOCK.RELEASE k o");
        told(&mut events);

        // A lease that lapses is an event of the module's only when somebody waits.
        holder.call(acquire(1));
        wait_until("the lease to lapse", || server.call("EXISTS k") == 0);
        assert_eq!(told(&mut events), ["set k", "expire k", "lock.acquired k", "expired k"]);
        // The watchdog renews without a word of its own, and tells a loss.
        holder.call("LOCK.ACQUIRE k o 1000 WATCHDOG");
        told(&mut events);
        let seen = wait_for("a renewal", || {
            let seen = told(&mut events);
            (!seen.is_empty()).then_some(seen)
        });
        assert!(seen.iter().all(|event| event == "expire k"), "{seen:?}");
        holder.call("DEL k");
        let mut seen = Vec::new();
        wait_until("the loss", || {
            seen.extend(told(&mut events));
            seen.contains(&"lock.lost k".to_owned())
        });
        seen.retain(|event| event != "expire k");
        assert_eq!(seen, ["del k", "lock.lost k"]);
    }

    fn a_lapsed_lease_with_waiters_is_told_in_order(flavour) {
        let server = Server::start(flavour);
        let mut events = server.events();
        let mut holder = server.raw();
        holder.call("LOCK.ACQUIRE k o 100000");
        let mut waiter = waiting(&server, "LOCK.ACQUIRE k w 100000 BLOCK 0");
        told(&mut events);
        // Shorter only now, so that somebody waits on any machine.
        holder.call("LOCK.RENEW k o 30");
        assert!(waiter.read().as_int() > 0);
        let seen = told(&mut events);
        let expected = [
            "expire k", "lock.renewed k", "expired k", "lock.expired k", "set k", "expire k",
            "lock.handover k",
        ];
        assert_eq!(seen, expected);
    }

    /// Redis 8 may delete a key in the very millisecond of its deadline. With so short a cycle it
    /// does so for many of these.
    fn every_lease_that_lapses_with_waiters_is_told_and_counted(flavour) {
        const COUNT: i64 = 100;
        let server = Server::build(flavour).config("hz", "500").start();
        let mut holder = server.raw();
        let mut waiters = Vec::new();
        for number in 0..COUNT {
            holder.call(("LOCK.ACQUIRE", number, "o", 100_000));
            let mut waiter = server.raw();
            waiter.send(("LOCK.ACQUIRE", number, "w", 100_000, "BLOCK", 0));
            waiters.push(waiter);
        }
        server.wait_for_blocked(COUNT.unsigned_abs());
        let mut events = server.events();
        holder.pipeline((0..COUNT).map(|number| ("LOCK.RENEW", number, "o", 20 + number)));
        for waiter in &mut waiters {
            assert!(waiter.read().as_int() > 0);
        }
        let seen = told(&mut events);
        let expired = seen.iter().filter(|event| event.starts_with("lock.expired "));
        let counted = fields(&server, "lock")["expiries_with_waiters"];
        let expected = COUNT.unsigned_abs();
        assert_eq!((expired.count() as u64, counted), (expected, expected));
    }

    fn a_deadlock_is_told_of_the_lock_that_closes_the_circle(flavour) {
        let server = Server::start(flavour);
        server.call("LOCK.ACQUIRE a x 100000");
        server.call("LOCK.ACQUIRE b y 100000");
        let mut events = server.events();
        let waiter = waiting(&server, "LOCK.ACQUIRE b x 100000 BLOCK 0");
        let refused = server.call("LOCK.ACQUIRE a y 100000 BLOCK 0");
        assert_eq!(refused.error_code(), Some("DEADLOCK"));
        assert_eq!(told(&mut events), ["lock.deadlock a"]);
        waiter.close();
        server.wait_for_blocked(0);
        assert!(told(&mut events).is_empty());
    }

    fn who_leaves_or_is_refused_causes_no_event(flavour) {
        let server = Server::start(flavour);
        server.call("LOCK.ACQUIRE k o 100000");
        let mut events = server.events();
        assert!(server.call("LOCK.ACQUIRE k x 100000 BLOCK 1").is_nil());
        for unblock in ["TIMEOUT", "ERROR"] {
            let mut waiter = server.raw();
            let id = waiter.id();
            waiter.send("LOCK.ACQUIRE k x 100000 BLOCK 0");
            server.wait_for_blocked(1);
            assert_eq!(server.call(("CLIENT", "UNBLOCK", id, unblock)), 1);
            waiter.read();
        }
        waiting(&server, "LOCK.ACQUIRE k x 100000 BLOCK 0").close();
        server.wait_for_blocked(0);
        server.call("CONFIG SET lock.max-waiters 0");
        let full = server.call("LOCK.ACQUIRE k x 100000 BLOCK 0");
        assert_eq!(full.error_code(), Some("QUEUEFULL"));
        for command in ["LOCK.ACQUIRE k x 1", "LOCK.ACQUIRE k x 0", "LOCK.RENEW k x 1", "LOCK.RELEASE k"] {
            server.call(command);
        }
        let pcall = "return redis.pcall('LOCK.ACQUIRE', 'free', 'o', 1000, 'WATCHDOG')";
        assert_eq!(server.call(("EVAL", pcall, 0)).error_code(), Some("ERR"));
        assert!(told(&mut events).is_empty());
    }

    fn a_transaction_and_a_script_cause_the_same_events(flavour) {
        let server = Server::start(flavour);
        let mut events = server.events();
        let expected = [
            "set k", "expire k", "lock.acquired k", "expire k", "lock.renewed k",
            "lock.released k", "del k",
        ];
        let commands = ["LOCK.ACQUIRE k o 100000", "LOCK.RENEW k o 100000", "LOCK.RELEASE k o"];
        server.raw().pipeline([&["MULTI"], &commands[..], &["EXEC"]].concat());
        assert_eq!(told(&mut events), expected);
        let script = "for _, line in ipairs(ARGV) do
            local words = {}
            for word in string.gmatch(line, '%S+') do words[#words + 1] = word end
            redis.call(unpack(words))
        end";
        server.call([&["EVAL", script, "0"], &commands[..]].concat());
        assert_eq!(told(&mut events), expected);
    }

    fn events_of_the_module_are_a_class_of_their_own(flavour) {
        const FLOW: [&str; 5] = [
            "LOCK.ACQUIRE k o 100000",
            "LOCK.RACQUIRE k o 100000",
            "LOCK.RENEW k o 100000",
            "LOCK.RELEASE k o",
            "LOCK.RELEASE k o",
        ];
        let names = ["acquired", "reentered", "renewed", "released", "released"];
        let server = Server::start(flavour);
        let mut subscriber = server.raw();
        subscriber.call("PSUBSCRIBE __key*__:*");
        for (classes, by_event, by_key, has_others) in [
            ("", false, false, false),
            ("d", false, false, false),
            ("Ed", true, false, false),
            ("Kd", false, true, false),
            ("KEd", true, true, false),
            ("Eg$lshzxet", false, false, true),
            ("KEA", true, true, true),
        ] {
            assert_eq!(server.call(("CONFIG", "SET", "notify-keyspace-events", classes)), "OK");
            server.raw().pipeline(FLOW);
            let (own, others): (Vec<_>, Vec<_>) = messages(&mut subscriber)
                .into_iter()
                .partition(|(channel, message)| format!("{channel} {message}").contains("lock."));
            assert_eq!(!others.is_empty(), has_others, "{classes}: {others:?}");
            let expected = names.iter().flat_map(|name| {
                let key = ("__keyspace@0__:k".to_owned(), format!("lock.{name}"));
                let event = (format!("__keyevent@0__:lock.{name}"), "k".to_owned());
                [by_key.then_some(key), by_event.then_some(event)]
            });
            assert_eq!(own, expected.flatten().collect::<Vec<_>>(), "{classes}");
        }
    }

    /// Each counter counts what it is named for, and nothing else.
    fn every_counter_counts_what_it_says(flavour) {
        // With such a file it votes at once.
        let server = Server::build(flavour).aof().start();
        let mut ledger = Ledger::of(&server);
        let mut client = server.raw();
        for (command, expected) in COUNTED {
            client.call(command);
            ledger.counts(command, expected);
        }
        let token = client.call("LOCK.ACQUIRE guarded o 100000").as_int();
        ledger.counts("LOCK.ACQUIRE guarded o 100000", "grants 1");
        client.call(("LOCK.GUARD", "guarded", token, "GET", "v"));
        ledger.counts("LOCK.GUARD guarded", "guarded 1");
        count_waits(&server, &mut client, &mut ledger);
        count_lapses(&server, &mut client, &mut ledger);
        count_refused_waits(&server, &mut client, &mut ledger);
        count_renewals(&server, &mut client, &mut ledger);
        let is_seen = |field: &str| ledger.changed.contains(field) || field.starts_with("wait_ms");
        let unseen: Vec<&str> = FIELDS.into_iter().filter(|field| !is_seen(field)).collect();
        // Their tests need a server that evicts, and other nodes.
        let (evicted, quorum) = unseen.split_first().expect("some are not seen here");
        assert_eq!(*evicted, "evicted_locks");
        assert_eq!(quorum.len(), 7, "{quorum:?}");
        assert!(quorum.iter().all(|field| field.starts_with("quorum_")), "{quorum:?}");
    }

    fn the_section_is_shown_wherever_modules_are(flavour) {
        let server = Server::start(flavour);
        server.call("LOCK.ACQUIRE k o 100000");
        server.call("LOCK.RELEASE k o");
        let own = fields(&server, "lock");
        assert_eq!(own.keys().collect::<Vec<_>>(), FIELDS);
        assert_eq!((own["grants"], own["releases"]), (1, 1));
        for sections in [&["lock"][..], &["everything"], &["modules"], &["server", "lock"]] {
            let info = server.call([&["INFO"], sections].concat());
            let info = info.as_text();
            assert_eq!(info.matches("# lock\r\n").count(), 1, "{sections:?}");
            let section = info.split("# lock\r\n").nth(1).unwrap();
            let section = section.split("\r\n#").next().unwrap();
            let lines: BTreeSet<_> = section.lines().filter(|line| !line.is_empty()).collect();
            let expected: Vec<_> =
                own.iter().map(|(field, value)| format!("lock_{field}:{value}")).collect();
            let expected: BTreeSet<_> = expected.iter().map(String::as_str).collect();
            assert_eq!(lines, expected, "{sections:?}");
        }
        for section in ["default", "all", "server"] {
            assert!(fields(&server, section).is_empty(), "{section}");
        }
    }

    /// Each wait is longer than the one before, so that each percentile is one of them.
    fn percentiles_tell_how_long_clients_waited(flavour) {
        let server = Server::start(flavour);
        let figure = |name: &str| fields(&server, "lock")[&format!("wait_ms_{name}")].cast_signed();
        let names = ["p50", "p90", "p99", "p999", "max"];
        server.call("LOCK.ACQUIRE k o 100000");
        assert_eq!(names.map(figure), [0; 5], "nobody has waited");
        let mut waits = Vec::new();
        let mut longer_than = 0;
        for (holder, next) in [("o", "a"), ("a", "b"), ("b", "c")] {
            let start = unix_millis();
            let mut waiter =
                waiting(&server, &format!("LOCK.ACQUIRE k {next} 100000 BLOCK 0"));
            let waited = wait_for("a wait that is long enough", || {
                let queue = server.call("LOCK.QUEUE k");
                let waited = queue.items()[0].field("waited").as_int();
                (waited > longer_than + 10).then_some(waited)
            });
            assert_eq!(server.call(("LOCK.RELEASE", "k", holder)), 1);
            assert!(waiter.read().as_int() > 0);
            longer_than = unix_millis() - start;
            waits.push(waited..=longer_than);
        }
        for (name, wait) in names.into_iter().zip([1, 2, 2, 2, 2]) {
            let (found, wait) = (figure(name), &waits[wait]);
            // Waits are told apart to a hundredth.
            let range = wait.start() * 99 / 100..=wait.end() * 101 / 100 + 1;
            assert!(range.contains(&found), "{name}: {found}, of {waits:?}");
        }
        // Who is granted at once, and who waits in vain, is not among them.
        let before = names.map(figure);
        server.call("LOCK.ACQUIRE free o 100000 BLOCK 0");
        server.call("LOCK.ACQUIRE k x 100000 BLOCK 1");
        assert_eq!(names.map(figure), before);
    }

    fn counters_count_since_the_module_was_loaded(flavour) {
        let server = Server::start(flavour);
        let mut waiter = server.raw();
        server.call("LOCK.ACQUIRE k o 100000");
        waiter.send("LOCK.ACQUIRE k w 100000 BLOCK 0");
        server.wait_for_blocked(1);
        server.call("LOCK.RELEASE k o");
        assert!(waiter.read().as_int() > 0);
        let before = fields(&server, "lock");
        assert_eq!(server.command_stats("lock.acquire").calls, 2);
        assert_eq!(server.call("CONFIG RESETSTAT"), "OK");
        assert_eq!(server.command_stats("lock.acquire").calls, 0);
        assert_eq!(fields(&server, "lock"), before);
        unload(&server);
        assert!(fields(&server, "everything").is_empty());
        assert_eq!(server.call(("MODULE", "LOAD", module_path().to_str().unwrap())), "OK");
        let after = fields(&server, "lock");
        assert!(after.values().all(|value| *value == 0), "{after:?}");
        assert_eq!(after.len(), before.len());
    }

    fn settings_are_read_set_and_kept(flavour) {
        let server = Server::start(flavour);
        let get = |server: &Server, name: &str| {
            let value = server.call(("CONFIG", "GET", name)).field(name).as_text().to_owned();
            value.parse::<i64>().unwrap()
        };
        for (name, default, min, max) in SETTINGS {
            assert_eq!(get(&server, name), default);
            for good in [min, max, min + 1] {
                assert_eq!(server.call(("CONFIG", "SET", name, good)), "OK", "{name} {good}");
                assert_eq!(get(&server, name), good);
            }
            let (low, high) = ((min - 1).to_string(), (max + 1).to_string());
            for bad in [&low, &high, "", "x", "1.5", "1k", " 1", "1 ", "0x1", "9223372036854775808"] {
                let reply = server.call(("CONFIG", "SET", name.to_uppercase(), bad));
                assert_eq!(reply.error_code(), Some("ERR"), "{name} '{bad}': {reply:?}");
                assert_eq!(get(&server, name), min + 1, "{name} '{bad}'");
            }
        }
        // All or none.
        let command = "CONFIG SET lock.max-waiters 5 lock.watchdog-max-hold 0";
        assert_eq!(server.call(command).error_code(), Some("ERR"));
        assert_eq!(get(&server, "lock.max-waiters"), 1);
        assert_eq!(server.call("CONFIG SET lock.nope 1").error_code(), Some("ERR"));
        let all = server.call("CONFIG GET LOCK.*");
        assert_eq!(all.items().len(), 2 * (SETTINGS.len() + OTHER_SETTINGS), "{all:?}");

        // What is not written down is forgotten.
        let server = server.restart();
        assert_eq!(SETTINGS.map(|(name, ..)| get(&server, name)), SETTINGS.map(|row| row.1));
        for (name, ..) in SETTINGS {
            assert_eq!(server.call(("CONFIG", "SET", name, 77)), "OK");
        }
        assert_eq!(server.call("CONFIG REWRITE"), "OK");
        let server = server.restart();
        assert_eq!(SETTINGS.map(|(name, ..)| get(&server, name)), [77; 7]);
        let line = "loaded: max-waiters 77, max-waiters-per-key 77, watchdog-max-hold 77, \
                    quorum-node-timeout 77, quorum-retry-delay 77, quorum-retry-jitter 77, \
                    quorum-max-ttl 77";
        assert_eq!(server.log().matches(line).count(), 1, "{line}");
    }

    fn settings_may_come_with_the_command_that_loads_the_module(flavour) {
        let server = Server::build(flavour).without_module().start();
        let path = module_path();
        let reply = server.call((
            "MODULE", "LOADEX", path.to_str().unwrap(), "CONFIG", "lock.max-waiters", 8,
            "ARGS", "max-waiters", 7, "watchdog-max-hold", 6,
        ));
        assert_eq!(reply, "OK");
        let all = server.call("CONFIG GET lock.*");
        let values = SETTINGS.map(|(name, ..)| all.field(name).as_text());
        assert_eq!(values, ["8", "10000", "6", "100", "50", "100", "60000"]);
    }

    fn reading_a_setting_costs_no_memory(flavour) {
        let server = Server::start(flavour);
        let memory_after = |count| {
            let mut client = server.raw();
            for _ in 0..count / 100 {
                client.pipeline(["CONFIG GET lock.*"; 100]);
            }
            client.close();
            wait_until("the client to be gone", || {
                server.info_number("clients", "connected_clients") == 1
            });
            server.info_number("memory", "used_memory")
        };
        memory_after(2_000);
        let before = memory_after(2_000);
        // Each command reads fourteen settings: less than a byte for each.
        wait_until("no growth", || memory_after(10_000) < before + 30_000);
    }

    fn a_policy_that_can_evict_locks_is_warned_of(flavour) {
        let server = Server::start(flavour);
        let mut expected = 0;
        for (setting, value, warns) in EVICTION {
            assert_eq!(server.call(("CONFIG", "SET", setting, value)), "OK");
            expected += usize::from(warns);
            assert_eq!(warnings(&server), expected, "{setting} {value}");
        }
        for (policy, memory, expected) in [
            ("noeviction", "100mb", 0),
            ("allkeys-lru", "0", 0),
            ("allkeys-lru", "100mb", 1),
            ("volatile-ttl", "100mb", 1),
        ] {
            let server = Server::build(flavour)
                .config("maxmemory-policy", policy)
                .config("maxmemory", memory)
                .start();
            assert_eq!(warnings(&server), expected, "{policy} {memory}");
        }
    }

    /// Redis 7.0 does not tell modules what it evicts.
    fn locks_that_are_evicted_are_counted_and_logged(flavour) {
        let server = Server::build(flavour).config("maxmemory-policy", "volatile-ttl").start();
        server.call("SET other v PX 1000000");
        server.call("SET forever v");
        for key in ["a", "b", "%s%n"] {
            assert!(server.call(("LOCK.ACQUIRE", key, "o", 1_000_000)).as_int() > 0);
        }
        assert_eq!(server.call("CONFIG SET maxmemory 1"), "OK");
        wait_until("all that can go to go", || server.dbsize() == 1);
        assert_eq!(server.call("CONFIG SET maxmemory 0"), "OK");
        let counted = if flavour.at_least_7_2() { 3 } else { 0 };
        assert_eq!(fields(&server, "lock")["evicted_locks"], counted);
        // Many of them make one line.
        let line = "redis-lock: a lock was evicted to free memory, 1 since the module was loaded";
        assert_eq!(server.log().matches(line).count(), usize::from(flavour.at_least_7_2()));
        assert_eq!(server.log().matches("was evicted").count(), usize::from(flavour.at_least_7_2()));
        // A key that goes in another way is not evicted, and nor is one that is no lock.
        for end in ["DEL a", "LOCK.RELEASE a o", "SET a v", "FLUSHALL"] {
            server.call("LOCK.ACQUIRE a o 1000000");
            server.call(end);
        }
        assert_eq!(fields(&server, "lock")["evicted_locks"], counted);
    }

    /// Bytes from outside stand escaped in one line, in the log as in an error.
    fn odd_names_break_no_line(flavour) {
        let server = Server::start(flavour);
        let names = [&b"%s%n%d"[..], b"a\r\nb", b"\0\xff\x1b[31m", b"'\\\"", &[b'x'; 500]];
        let mut lines = Vec::new();
        let mut client = server.raw();
        for key in names {
            for owner in names {
                let reply = client.call(("LOCK.ACQUIRE", key, owner, 60, "WATCHDOG"));
                assert!(reply.as_int() > 0);
                server.call(("DEL", key));
                let show = |name: &[u8]| name[..name.len().min(64)].escape_ascii().to_string();
                let line = format!("the watched lock {} of {} is lost", show(key), show(owner));
                wait_until(&line, || server.log().contains(&line));
                lines.push(line);
            }
        }
        let log = server.log();
        let own: Vec<&str> = log.lines().filter(|line| line.contains(" is lost")).collect();
        assert_eq!(own.len(), lines.len());
        for (own, line) in own.iter().zip(lines) {
            assert!(own.ends_with(&format!("<lock> redis-lock: {line}")), "{own}");
        }
        for key in names {
            let reply = client.call(("LOCK.ACQUIRE", "k", "o", 60, key));
            assert_eq!(reply.error_code(), Some("ERR"), "{reply:?}");
            assert_eq!(client.call("PING"), "PONG", "the error was one line");
        }
    }

    /// RESP2 has no maps and another nil.
    fn every_reply_has_its_shape_in_both_protocols(flavour) {
        let mut called = BTreeSet::new();
        for is_resp3 in [false, true] {
            let server = Server::build(flavour).aof().start();
            let connect = || if is_resp3 { server.raw_resp3() } else { server.raw() };
            let mut client = connect();
            let mut check = |command: &str, expected: &str| {
                called.insert(command.split(' ').next().unwrap().to_lowercase());
                has_shape(&client.call(command), expected, is_resp3, command);
            };
            for (command, expected) in SHAPES {
                check(command, expected);
            }
            let lines = server.call("LOCK.HELP").items().len();
            check("LOCK.HELP", &format!("[{}]", vec!["$"; lines].join(" ")));
            for (command, end, expected) in SHAPES_OF_WAITS {
                let mut waiter = connect();
                let id = waiter.id().to_string();
                server.call("SET k o");
                waiter.send(command);
                server.wait_for_blocked(1);
                check("LOCK.QUEUE k", "[{owner w client-id # waited # mode exclusive limit nil}]");
                check("LOCK.CONTENDED", "[[k #]]");
                server.raw().pipeline(end.iter().map(|line| line.replace("$id", &id)));
                has_shape(&waiter.read(), expected, is_resp3, command);
            }
        }
        let commands = Server::start(flavour).call("COMMAND LIST FILTERBY MODULE lock");
        for command in commands.items() {
            let command = command.as_text().to_lowercase();
            assert!(called.contains(&command) || command == "lock.debug", "{command}");
        }
    }

    fn a_waiter_is_told_its_made_owner_and_its_refusal_in_both_protocols(flavour) {
        let server = Server::start(flavour);
        for is_resp3 in [false, true] {
            let connect = || if is_resp3 { server.raw_resp3() } else { server.raw() };
            for command in ["LOCK.ACQUIRE", "LOCK.RACQUIRE"] {
                server.call("LOCK.ACQUIRE k o 100000");
                let mut waiter = connect();
                waiter.send((command, "k", "*", 100_000, "BLOCK", 0));
                server.wait_for_blocked(1);
                server.call("LOCK.RELEASE k o");
                has_shape(&waiter.read(), "[# $]", is_resp3, command);
                // Nobody may wait for one who waits for him.
                server.call("LOCK.ACQUIRE j p 100000");
                server.call("SET k o");
                waiter.send((command, "k", "p", 1, "BLOCK", 0));
                server.wait_for_blocked(1);
                let deadlock = connect().call((command, "j", "o", 1, "BLOCK", 0));
                has_shape(&deadlock, "-DEADLOCK", is_resp3, command);
                server.call("CONFIG SET lock.max-waiters 1");
                let full = connect().call((command, "j", "w", 1, "BLOCK", 0));
                has_shape(&full, "-QUEUEFULL", is_resp3, command);
                server.call("CONFIG SET lock.max-waiters 10");
                server.call("FLUSHALL");
                waiter.read();
                server.call("FLUSHALL");
            }
        }
    }
}
