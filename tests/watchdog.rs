//! The watchdog: leases that the server renews for as long as a connection lives.

use crate::harness::{Raw, Reply, Server, Words, on_every_server, unix_millis, wait_until};
use crate::waiters::unload;

/// The ttl of most watched leases, in milliseconds. They are renewed at a third of it, so a server
/// may stand still for the other two before a lease lapses that should not.
const TTL: i64 = 1_000;

/// How far the clocks may be apart that leases and watches go by, in milliseconds.
const CLOCKS_APART: i64 = 50;

/// How many watches there are.
fn watchdogs(server: &Server) -> u64 {
    server.info_number("lock", "lock_watchdogs")
}

/// How many watched holds were found to be lost.
fn lost(server: &Server) -> u64 {
    server.info_number("lock", "lock_lost")
}

/// Takes `key` for `o` and has it watched for `client`. Returns the token.
fn watch(client: &mut Raw, key: &str) -> i64 {
    let acquire = ("LOCK.ACQUIRE", key, "o", TTL, "WATCHDOG");
    client.call(acquire).as_int()
}

/// Waits until the lease of `key` ends later than it does now.
fn renewal(server: &Server, key: &str) {
    let deadline = server.deadline(key);
    wait_until(&format!("a renewal of {key}"), || {
        server.deadline(key) > deadline
    });
}

/// A client that waits for `key` as `w`, without a watch, or has it already.
fn waiter(server: &Server, key: &str) -> Raw {
    let mut client = server.raw();
    let waiting = server.blocked_clients();
    client.send(("LOCK.ACQUIRE", key, "w", TTL, "BLOCK", 0));
    wait_until("the client to wait", || {
        server.blocked_clients() > waiting || client.has_reply()
    });
    client
}

/// Whether a lock was granted after the lease of this deadline: its token is the moment of the
/// grant. Newer servers take keys within the millisecond of their deadline.
fn is_after(token: i64, deadline: i64) -> bool {
    token / 1_000 >= deadline
}

/// The deadlines that `commands` give `key`, in order.
fn deadlines(commands: &[Words], key: &str) -> Vec<i64> {
    let pattern = format!("PEXPIREAT {key} *");
    let renewals = commands.iter().filter(|command| command.matches(&pattern));
    renewals.map(|renewal| renewal.int(2)).collect()
}

/// What may stand before a command that has a hold watched, and that command.
const WAYS: [(&str, &str); 7] = [
    ("PING", "LOCK.ACQUIRE k o $ttl WATCHDOG"),
    ("PING", "LOCK.ACQUIRE k * $ttl watchdog"),
    ("PING", "LOCK.ACQUIRE k o $ttl WATCHDOG BLOCK 0"),
    (
        "LOCK.ACQUIRE k o $ttl REQID r",
        "LOCK.ACQUIRE k o $ttl REQID r WATCHDOG",
    ),
    ("PING", "LOCK.RACQUIRE k o $ttl WATCHDOG"),
    (
        "LOCK.ACQUIRE k o $ttl",
        "LOCK.RACQUIRE k o $ttl BLOCK 0 WATCHDOG",
    ),
    ("LOCK.ACQUIRE k o $ttl", "LOCK.RENEW k o $ttl WATCHDOG"),
];

/// Ends a connection: the server, the connection, and the number of that.
type Goodbye = fn(&Server, Raw, i64);

/// How a connection ends, by a name that is the key of its lock.
const GOODBYES: [(&str, Goodbye); 6] = [
    ("close", |_, client, _| client.close()),
    ("quit", |_, mut client, _| {
        client.send("QUIT");
        client.wait_until_closed();
    }),
    ("killed", |server, client, id| {
        assert_eq!(server.call(("CLIENT", "KILL", "ID", id)), 1);
        client.wait_until_closed();
    }),
    ("kills_itself", |_, mut client, id| {
        client.send(("CLIENT", "KILL", "ID", id, "SKIPME", "no"));
        client.wait_until_closed();
    }),
    ("killed_in_transaction", |server, client, id| {
        let kill = format!("CLIENT KILL ID {id}");
        server.raw().pipeline(["MULTI", &kill, "EXEC"]);
        client.wait_until_closed();
    }),
    // The lock is its own once more, and its last word.
    ("asks_and_closes", |_, mut client, _| {
        client.send("LOCK.RACQUIRE asks_and_closes o 1 WATCHDOG");
        client.close();
    }),
];

/// What takes a watched hold of `o` away: the key, and commands on it. The keys that are left do
/// not lapse.
const LOSSES: [(&str, &[&str]); 12] = [
    ("deleted", &["DEL deleted"]),
    ("unlinked", &["GETDEL unlinked"]),
    ("renamed", &["PERSIST renamed", "RENAME renamed elsewhere"]),
    ("moved", &["PERSIST moved", "MOVE moved 1"]),
    ("lapsed", &["PEXPIREAT lapsed 1"]),
    ("overwritten", &["SET overwritten x"]),
    // The same owner by its name, but not by that grant.
    ("same_owner", &["SET same_owner o"]),
    ("older_grant", &["SET older_grant lk1:5:1:o"]),
    (
        "newer_grant",
        &["DEL newer_grant", "LOCK.ACQUIRE newer_grant o 600000"],
    ),
    (
        "other_owner",
        &["DEL other_owner", "LOCK.ACQUIRE other_owner x 600000"],
    ),
    ("hash", &["DEL hash", "HSET hash o 1"]),
    ("list", &["DEL list", "RPUSH list o"]),
];

/// What lengthens the lease of a watched lock and leaves the watch: the key, and the command.
const LENGTHENINGS: [(&str, &str); 4] = [
    ("renewed", "LOCK.RENEW renewed o 600000"),
    ("reentered", "LOCK.RACQUIRE reentered o 600000"),
    ("expire", "PEXPIRE expire 600000"),
    ("persist", "PERSIST persist"),
];

/// Ways to run a command with the keys `k` and `r` from a script.
const SCRIPTS: [&str; 4] = ["EVAL", "EVALSHA", "FCALL", "EVAL in MULTI"];

on_every_server! {
    /// At a third of the ttl the lease is set to the whole of it, and nothing else changes.
    fn every_command_that_grants_or_renews_can_have_the_hold_watched(flavour) {
        let server = Server::start(flavour);
        let mut clients = Vec::new();
        for (db, (before, command)) in WAYS.iter().enumerate() {
            let mut client = server.raw();
            assert_eq!(client.call(("SELECT", db)), "OK");
            for command in [before, command] {
                let reply = client.call(command.replace("$ttl", &TTL.to_string()));
                assert!(reply.error_code().is_none() && !reply.is_nil(), "{command}: {reply:?}");
            }
            clients.push(client);
        }
        assert_eq!(watchdogs(&server), WAYS.len() as u64);
        let before = server.snapshot();
        let mut events = server.events();
        let mut stream = server.replication_stream();

        let mut db = 0;
        let mut renewals = vec![Vec::new(); WAYS.len()];
        while renewals.iter().any(|deadlines| deadlines.len() < 3) {
            let command = stream.read();
            match command.text(0) {
                "SELECT" => db = usize::try_from(command.int(1)).unwrap(),
                "PEXPIREAT" => renewals[db].push(command.int(2)),
                _ => {}
            }
            assert!(renewals[db].len() < 10, "not all are renewed: {renewals:?}");
        }
        for (row, deadlines) in WAYS.iter().zip(&renewals) {
            let early = deadlines.windows(2).any(|pair| pair[1] - pair[0] < TTL / 4);
            assert!(!early, "{row:?}: {deadlines:?}");
            assert!(deadlines.last() <= Some(&(unix_millis() + TTL)), "{row:?}: {deadlines:?}");
        }
        let seen = events.so_far();
        assert!(seen.iter().all(|event| event.matches("* expire k")), "{seen:?}");
        let after = server.snapshot();
        for (db, row) in (0..).zip(WAYS) {
            let (before, after) = (before.get(db, "k").unwrap(), after.get(db, "k").unwrap());
            assert!(after.expires >= before.expires + 2 * TTL / 4, "{row:?}");
            assert_eq!((&after.kind, &after.value), (&before.kind, &before.value), "{row:?}");
        }
        assert!(server.info_number("lock", "lock_watchdog_renewals") >= 3 * WAYS.len() as u64);
    }

    /// redisson#5697: the lock of a client that works and says nothing is not renewed now and then.
    ///
    /// A machine that stands still for two thirds of a lease loses it, and rightly so: then it is
    /// tried with a longer one.
    fn a_client_that_is_silent_for_thirty_times_its_ttl_still_holds(flavour) {
        let server = Server::start(flavour);
        let mut client = server.raw();
        let held = [200, 400, 800, 1_600].into_iter().any(|ttl| {
            let mut stream = server.replication_stream();
            let token = client.call(("LOCK.ACQUIRE", "k", "o", ttl, "WATCHDOG")).as_int();
            let (mut renewals, mut deadline) = (0, 0);
            while deadline < token / 1_000 + 31 * ttl {
                let command = stream.read();
                if command.matches("PEXPIREAT k *") {
                    assert!(command.int(2) > deadline);
                    (renewals, deadline) = (renewals + 1, command.int(2));
                } else if matches!(command.text(0), "DEL" | "UNLINK") {
                    return false;
                }
            }
            // Each one adds at most what had passed of the lease.
            assert!(renewals >= 30, "{renewals}");
            assert_eq!(watchdogs(&server), 1);
            assert_eq!(server.call(("LOCK.RELEASE", "k", "o", "TOKEN", token)), 1);
            true
        });
        assert!(held);
    }

    /// redisson#7272: a renewal that is scheduled while the lock is released goes on for ever.
    fn the_last_release_ends_the_watch(flavour) {
        let server = Server::start(flavour);
        let mut client = server.raw();
        let acquire = format!("LOCK.RACQUIRE k o {TTL} WATCHDOG");
        let token = client.call(&acquire).as_int();
        assert_eq!(client.call(&acquire), token);
        assert_eq!(watchdogs(&server), 1);
        // Neither the first release of two ends it, nor one that is refused.
        for (command, reply) in [
            ("LOCK.RELEASE k o", 1),
            ("LOCK.RELEASE k x", 0),
            ("LOCK.RELEASE k o TOKEN 5", 0),
            ("LOCK.RELEASE none o", -1),
        ] {
            assert_eq!(client.call(command), reply);
            assert_eq!(watchdogs(&server), 1, "{command}");
        }
        renewal(&server, "k");
        // The last one does, from whichever connection it comes.
        assert_eq!(server.call("LOCK.RELEASE k o"), 1);
        assert_eq!(watchdogs(&server), 0);

        let pair = [acquire.as_str(), "LOCK.RELEASE k o"];
        let replies = client.pipeline((0..1_000).flat_map(|_| pair));
        assert!(replies.iter().skip(1).step_by(2).all(|reply| *reply == 1));
        assert_eq!((watchdogs(&server), server.dbsize()), (0, 0));
        unload(&server);
    }

    /// redisson#1626, redisson#1966: a lock whose holder is gone, or never heard that it has it, is
    /// renewed for ever.
    fn a_lease_runs_out_when_its_connection_is_gone(flavour) {
        let server = Server::start(flavour);
        let mut stream = server.replication_stream();
        let (mut holders, mut waiters) = (Vec::new(), Vec::new());
        for (way, leave) in GOODBYES {
            let mut holder = server.raw();
            let id = holder.id();
            holder.send(("LOCK.ACQUIRE", way, "o", TTL, "WATCHDOG"));
            wait_until("the grant", || server.call(("EXISTS", way)) == 1);
            holders.push((holder, id, leave));
            waiters.push(waiter(&server, way));
        }
        for (way, _) in GOODBYES {
            renewal(&server, way);
        }
        for (holder, id, leave) in holders {
            leave(&server, holder, id);
        }
        wait_until("all watches to end", || watchdogs(&server) == 0);
        let gone = unix_millis();
        let before = stream.writes(&server);
        for ((way, _), mut waiter) in GOODBYES.into_iter().zip(waiters) {
            let deadline = *deadlines(&before, way).last().unwrap();
            assert!(deadline <= gone + TTL, "{way}");
            assert!(is_after(waiter.read().as_int(), deadline), "{way}");
        }
        let after = stream.writes(&server);
        assert!(!after.iter().any(|command| command.text(0) == "PEXPIREAT"), "{after:?}");
        assert_eq!((watchdogs(&server), lost(&server)), (0, 0));
    }

    /// RedLock.net#68: a client that hangs extends its lock without end.
    fn a_hold_is_renewed_for_as_long_as_the_server_allows_at_most(flavour) {
        let server = Server::start(flavour);
        let mut events = server.events();
        let mut stream = server.replication_stream();
        for longest in [1, TTL] {
            assert_eq!(server.call(("CONFIG", "SET", "lock.watchdog-max-hold", longest)), "OK");
            let mut holder = server.raw();
            let granted = watch(&mut holder, "k") / 1_000;
            let last = unix_millis() + longest + CLOCKS_APART;
            let token = waiter(&server, "k").read().as_int();

            let renewals = deadlines(&stream.writes(&server), "k");
            assert_eq!(renewals.is_empty(), longest < TTL / 3, "{renewals:?}");
            let deadline = renewals.last().copied().unwrap_or(granted + TTL);
            assert!(deadline - TTL <= last, "{renewals:?}, not after {last}");
            assert!(is_after(token, deadline));
            assert_eq!((watchdogs(&server), lost(&server)), (0, 0));
            assert_eq!(server.call("LOCK.RELEASE k w"), 1);
            assert_eq!(holder.call("PING"), "PONG", "the connection lived all the time");
        }
        assert!(!events.so_far().iter().any(|event| event.matches("0 lock.lost k")));
    }

    /// Who is a master now lets the lease run out, and a replica must not renew what may have
    /// passed to others.
    fn a_server_that_becomes_a_replica_watches_nothing(flavour) {
        let server = Server::start(flavour);
        let mut events = server.events();
        let mut holder = server.raw();
        watch(&mut holder, "k");
        renewal(&server, "k");
        // Nobody is at that address, so the keys stay as they are.
        assert_eq!(server.call("REPLICAOF 127.0.0.1 1"), "OK");
        assert_eq!(watchdogs(&server), 0);
        let renew = format!("LOCK.RENEW k o {TTL} WATCHDOG");
        assert_eq!(holder.call(&renew).error_code(), Some("READONLY"));
        wait_until("the lease to lapse", || server.call("PTTL k") == -2);

        assert_eq!(server.call("REPLICAOF NO ONE"), "OK");
        assert_eq!(holder.call(&renew), -1);
        assert_eq!((watchdogs(&server), lost(&server)), (0, 0));
        assert!(!events.so_far().iter().any(|event| event.matches("0 lock.lost k")));
    }

    /// aioredlock#48: a lock that was lost is taken back from whoever has it now.
    fn a_watched_hold_that_is_gone_is_not_taken_back(flavour) {
        let server = Server::start(flavour);
        let mut events = server.events();
        let mut client = server.raw();
        for (key, _) in LOSSES {
            watch(&mut client, key);
        }
        for command in LOSSES.iter().flat_map(|(_, commands)| *commands) {
            let reply = server.call(*command);
            assert!(reply.error_code().is_none() && reply != 0, "{command}: {reply:?}");
        }
        let stored = server.snapshot();
        let mut stream = server.replication_stream();
        // Another one is none the worse for it.
        watch(&mut client, "kept");
        wait_until("the losses", || lost(&server) == LOSSES.len() as u64);
        renewal(&server, "kept");
        assert_eq!(watchdogs(&server), 1);
        assert_eq!(client.call("LOCK.RELEASE kept o"), 1);

        let writes = stream.writes(&server);
        assert!(writes.iter().all(|write| write.text(1) == "kept"), "{writes:?}");
        assert_eq!(server.snapshot(), stored);
        assert_eq!(lost(&server), LOSSES.len() as u64);
        let seen = events.so_far();
        let log = server.log();
        for (key, _) in LOSSES {
            let event = format!("0 lock.lost {key}");
            assert_eq!(seen.iter().filter(|seen| seen.matches(&event)).count(), 1, "{event}");
            let line = format!("redis-lock: the watched lock {key} of o is lost\n");
            assert_eq!(log.matches(&line).count(), 1, "{line}");
        }
        assert_eq!(log.matches("is lost").count(), LOSSES.len());
    }

    fn watched_holds_are_lost_with_all_keys(flavour) {
        let server = Server::start(flavour);
        for (round, command) in (1..).zip(["FLUSHALL", "FLUSHDB ASYNC", "SWAPDB 0 1"]) {
            let mut client = server.raw();
            for key in ["a", "b", "c"] {
                watch(&mut client, key);
            }
            assert_eq!(server.call(command), "OK");
            wait_until("the losses", || lost(&server) == 3 * round);
            assert_eq!((watchdogs(&server), server.dbsize()), (0, 0), "{command}");
        }
    }

    /// A later lock of the same owner could not be told from the one that is watched.
    fn a_lock_without_a_token_cannot_be_watched(flavour) {
        let server = Server::start(flavour);
        for write in ["SET k o PX 600000", "SET k o", "HSET k o 2"] {
            server.call("DEL k");
            server.call(write);
            let before = server.snapshot();
            let reply = server.call("LOCK.RENEW k o 1000 WATCHDOG");
            let Reply::Error(text) = &reply else {
                panic!("{write}: {reply:?}");
            };
            assert!(text.contains("WATCHDOG needs a lock with a token"), "{text}");
            assert_eq!(server.snapshot(), before, "{write}");
            assert_eq!(server.call("LOCK.RENEW k x 1000 WATCHDOG"), 0);
        }
        assert_eq!(watchdogs(&server), 0);
    }

    /// The watch goes on, and is in time for the shorter lease.
    fn a_lease_that_its_owner_shortens_is_renewed_sooner(flavour) {
        let server = Server::start(flavour);
        let mut holder = server.raw();
        holder.call("LOCK.ACQUIRE k o 600000 WATCHDOG");
        assert_eq!(server.call(("LOCK.RENEW", "k", "o", TTL)), 1);
        let shortened = server.deadline("k");
        wait_until("the renewal", || server.deadline("k") > shortened + TTL);
        assert_eq!((watchdogs(&server), lost(&server)), (1, 0));
    }

    fn a_hold_that_two_connections_watch_is_lost_once(flavour) {
        let server = Server::start(flavour);
        let mut events = server.events();
        let (mut first, mut second) = (server.raw(), server.raw());
        watch(&mut first, "k");
        assert_eq!(second.call(format!("LOCK.RENEW k o {TTL} WATCHDOG")), 1);
        server.call("DEL k");
        wait_until("both watches to end", || watchdogs(&server) == 0);
        let seen = events.so_far();
        let count = seen.iter().filter(|event| event.matches("0 lock.lost k")).count();
        let lines = server.log().matches("the watched lock k of o is lost").count();
        assert_eq!((count, lines, lost(&server)), (1, 1, 1));
    }

    /// A lease that lapsed while the server stood still has lapsed, and the lock is the next one's.
    fn a_server_that_stood_still_renews_no_lapsed_lease(flavour) {
        let server = Server::start(flavour);
        let mut holder = server.raw();
        let mut next = server.raw();
        for waits in [false, true] {
            let before = lost(&server);
            // Both commands in one go, so that the lease lapses in the sleep on any machine.
            let acquire = format!("LOCK.ACQUIRE k o {} WATCHDOG", if waits { TTL } else { 30 });
            if waits {
                let old = holder.call(acquire).as_int();
                next.send("LOCK.ACQUIRE k w 100000 BLOCK 0");
                server.wait_for_blocked(1);
                assert_eq!(server.call("DEBUG SLEEP 1.1"), "OK");
                assert!(is_after(next.read().as_int(), old / 1_000 + TTL));
            } else {
                holder.pipeline([acquire.as_str(), "DEBUG SLEEP 0.05"]);
            }
            wait_until("the loss", || lost(&server) == before + 1);
            assert_eq!((watchdogs(&server), server.dbsize()), (0, i64::from(waits)));
        }
    }

    /// redisson#3712: a lock that was lost and acquired again is not renewed any more.
    fn a_lock_that_is_acquired_again_is_watched_again(flavour) {
        let server = Server::start(flavour);
        let mut client = server.raw();
        let mut token = watch(&mut client, "k");
        server.call("DEL k");
        wait_until("the loss", || lost(&server) == 1);
        // Once after the loss was noticed, and once before it can be: that is told all the same.
        let acquire = format!("LOCK.ACQUIRE k o {TTL} WATCHDOG");
        for (before, losses) in [("PING", 1), ("DEL k", 2)] {
            let old = token;
            token = client.pipeline([before, &acquire])[1].as_int();
            assert!(token > old);
            wait_until("the losses", || lost(&server) == losses);
            assert_eq!(watchdogs(&server), 1);
            renewal(&server, "k");
            renewal(&server, "k");
            assert_eq!(server.call("LOCK.INFO k").field("token"), token);
        }
        assert_eq!(lost(&server), 2);
    }

    /// A renewal by hand, a re-entry and `PEXPIRE` neither end the watch nor are undone by it.
    fn a_renewal_never_shortens_a_lease(flavour) {
        let server = Server::start(flavour);
        let mut client = server.raw();
        for (key, _) in LENGTHENINGS {
            watch(&mut client, key);
        }
        watch(&mut client, "metronome");
        for (_, command) in LENGTHENINGS {
            assert!(server.call(command).as_int() > 0, "{command}");
        }
        let all = || LENGTHENINGS.map(|(key, _)| server.deadline(key));
        let before = all();
        // In this time each of them was looked at.
        for _ in 0..3 {
            renewal(&server, "metronome");
        }
        assert_eq!(all(), before);
        assert_eq!((watchdogs(&server), lost(&server)), (LENGTHENINGS.len() as u64 + 1, 0));
        // A lease that is shorter again is renewed as before.
        for (key, _) in LENGTHENINGS {
            assert_eq!(server.call(("LOCK.RENEW", key, "o", TTL)), 1);
            renewal(&server, key);
        }
    }

    fn a_hold_is_renewed_while_any_connection_of_its_owner_lives(flavour) {
        let server = Server::start(flavour);
        let acquire = format!("LOCK.RACQUIRE k o {TTL} WATCHDOG");
        let mut clients = [(); 3].map(|()| server.raw());
        for client in &mut clients {
            assert!(client.call(&acquire).as_int() > 0);
        }
        for (client, left) in clients.into_iter().zip([2, 1, 0]) {
            assert_eq!(watchdogs(&server), left + 1);
            renewal(&server, "k");
            client.close();
            wait_until("the watch to end", || watchdogs(&server) == left);
        }
        let deadline = server.deadline("k");
        assert!(is_after(waiter(&server, "k").read().as_int(), deadline));
        assert_eq!(lost(&server), 0);
        // One connection may release for all of them.
        assert_eq!(server.call("LOCK.RELEASE k w"), 1);
        let mut clients = [(); 3].map(|()| server.raw());
        for client in &mut clients {
            assert!(client.call(&acquire).as_int() > 0);
        }
        for left in [3, 3, 0] {
            assert_eq!(clients[0].call("LOCK.RELEASE k o"), 1);
            assert_eq!(watchdogs(&server), left);
        }
    }

    fn a_waiter_is_watched_from_its_grant_on(flavour) {
        let server = Server::start(flavour);
        let mut holder = server.raw();
        for (key, free) in [("a", "LOCK.RELEASE a o"), ("b", "DEL b"), ("c", "PEXPIRE c 1")] {
            holder.call(("LOCK.ACQUIRE", key, "o", 600_000));
            let mut waiter = server.raw();
            waiter.send(("LOCK.ACQUIRE", key, "w", TTL, "BLOCK", 0, "WATCHDOG"));
            server.wait_for_blocked(1);
            assert_eq!(watchdogs(&server), 0, "{free}");
            assert_eq!(holder.call(free), 1);
            let token = waiter.read().as_int();
            assert_eq!(watchdogs(&server), 1, "{free}");
            renewal(&server, key);
            assert_eq!(server.call(("LOCK.INFO", key)).field("token"), token, "{free}");
            waiter.close();
            wait_until("the watch to end", || watchdogs(&server) == 0);
        }
        assert_eq!(lost(&server), 0);
    }

    fn a_waiter_that_leaves_is_not_watched(flavour) {
        let server = Server::start(flavour);
        let request = format!("LOCK.ACQUIRE k w {TTL} BLOCK 0 WATCHDOG");
        assert!(server.call("LOCK.ACQUIRE k o 600000").as_int() > 0);
        let mut waiter = server.raw();
        let kill = format!("CLIENT KILL ID {}", waiter.id());
        waiter.send(&request);
        server.wait_for_blocked(1);
        // It leaves in the turn of its grant.
        let replies = server.raw().pipeline(["MULTI", "LOCK.RELEASE k o", &kill, "EXEC"]);
        assert_eq!(replies[3], Reply::Array(vec![Reply::Int(1), Reply::Int(1)]));
        wait_until("the grant to go back", || server.dbsize() == 0);
        assert_eq!(watchdogs(&server), 0);
        // It leaves before that.
        assert!(server.call("LOCK.ACQUIRE k o 600000").as_int() > 0);
        let in_vain = format!("LOCK.ACQUIRE k w {TTL} BLOCK 1 WATCHDOG");
        assert!(server.raw().call(in_vain).is_nil());
        let mut waiter = server.raw();
        waiter.send(&request);
        server.wait_for_blocked(1);
        waiter.close();
        server.wait_for_blocked(0);
        assert_eq!(server.call("LOCK.RELEASE k o"), 1);
        assert_eq!((watchdogs(&server), server.dbsize()), (0, 0));
        unload(&server);
    }

    fn only_what_is_granted_is_watched(flavour) {
        let server = Server::start(flavour);
        server.call("LOCK.ACQUIRE held x 600000 REQID r");
        server.call("RPUSH list a");
        for command in [
            "LOCK.ACQUIRE held o 1000 WATCHDOG",
            "LOCK.ACQUIRE held x 1000 WATCHDOG",
            "LOCK.RACQUIRE held o 1000 WATCHDOG",
            "LOCK.ACQUIRE held o 1000 BLOCK 1 WATCHDOG",
            "LOCK.RENEW held o 1000 WATCHDOG",
            "LOCK.RENEW held x 1000 WATCHDOG TOKEN 5",
            "LOCK.RENEW none x 1000 WATCHDOG",
            "LOCK.ACQUIRE list o 1000 WATCHDOG",
            "LOCK.RENEW list o 1000 WATCHDOG",
            "LOCK.ACQUIRE free o 0 WATCHDOG",
            "LOCK.ACQUIRE free o 1000 WATCHDOG WATCHDOG",
            "LOCK.RELEASE held o WATCHDOG",
        ] {
            server.call(command);
            assert_eq!(watchdogs(&server), 0, "{command}");
        }
        assert_eq!(server.dbsize(), 2);
        // Nothing of the kind keeps the module.
        assert_eq!(server.call("MODULE UNLOAD lock"), "OK");
    }

    fn a_transaction_is_watched_for_its_connection(flavour) {
        let server = Server::start(flavour);
        let mut client = server.raw();
        let acquire = format!("LOCK.ACQUIRE k o {TTL} WATCHDOG");
        client.pipeline(["MULTI", &acquire, "DISCARD"]);
        assert_eq!(watchdogs(&server), 0);
        let replies = client.pipeline(["MULTI", &acquire, "EXEC"]);
        assert!(replies[2].items()[0].as_int() > 0);
        assert_eq!(watchdogs(&server), 1);
        renewal(&server, "k");
        renewal(&server, "k");
        client.close();
        wait_until("the watch to end", || watchdogs(&server) == 0);
        let deadline = server.deadline("k");
        assert!(is_after(waiter(&server, "k").read().as_int(), deadline));

        // A connection that ends with the transaction, whatever comes first in it.
        for kill_first in [true, false] {
            server.call("DEL k");
            let mut client = server.raw();
            let kill = format!("CLIENT KILL ID {} SKIPME no", client.id());
            let commands = if kill_first { [&kill, &acquire] } else { [&acquire, &kill] };
            client.send_all(["MULTI", commands[0], commands[1], "EXEC"]);
            client.wait_until_closed();
            wait_until("the watch to end", || watchdogs(&server) == 0);
        }
        unload(&server);
    }

    /// The server does not tell a module whose script it is. A watch that would never end is worse
    /// than none, so whoever asks for one is told, and is granted nothing.
    fn a_script_is_refused_a_watch(flavour) {
        let server = Server::start(flavour);
        assert!(server.call("LOCK.ACQUIRE r o 600000").as_int() > 0);
        let before = (server.info("lock"), server.snapshot());
        for command in [
            "'LOCK.ACQUIRE', KEYS[1], 'o', 1000",
            "'LOCK.RACQUIRE', KEYS[2], 'o', 1000",
            "'LOCK.RENEW', KEYS[2], 'o', 1000",
        ] {
            let body = format!("return redis.call({command}, 'WATCHDOG')");
            for way in SCRIPTS {
                let mut client = server.raw();
                let reply = match way {
                    "EVALSHA" => {
                        let sha = client.call(("SCRIPT", "LOAD", &body));
                        client.call(("EVALSHA", sha.as_bytes(), 2, "k", "r"))
                    }
                    "FCALL" => {
                        let body = body.replace("KEYS", "keys");
                        let library = format!(
                            "#!lua name=lib\nredis.register_function('f', function(keys) {body} end)"
                        );
                        client.call(("FUNCTION", "LOAD", "REPLACE", library));
                        client.call("FCALL f 2 k r")
                    }
                    "EVAL" => client.call(("EVAL", &body, 2, "k", "r")),
                    _ => {
                        client.call("MULTI");
                        client.call(("EVAL", &body, 2, "k", "r"));
                        client.call("EXEC").items()[0].clone()
                    }
                };
                assert_eq!(reply.error_code(), Some("ERR"), "{way}: {reply:?}");
                let reason = "WATCHDOG needs a connection to watch, and a script has none";
                assert!(reply.as_text().contains(reason), "{way}: {reply:?}");
                assert_eq!((server.info("lock"), server.snapshot()), before, "{way}: {command}");
            }
        }
    }

    /// A pooled connection is reset when it goes back to its pool, and lives on.
    fn a_watch_outlives_what_the_connection_does_next(flavour) {
        let server = Server::start(flavour);
        let mut client = server.raw();
        assert_eq!(client.call("SELECT 3"), "OK");
        watch(&mut client, "k");
        for command in ["SELECT 1", "RESET", "MULTI", "DISCARD", "HELLO 3", "SUBSCRIBE x", "RESET"] {
            let reply = client.call(command);
            assert_eq!(reply.error_code(), None, "{command}");
            assert_eq!(watchdogs(&server), 1, "{command}");
        }
        let mut reader = server.raw();
        reader.call("SELECT 3");
        let mut deadline = || reader.call("PEXPIRETIME k").as_int();
        for _ in 0..2 {
            let before = deadline();
            wait_until("a renewal", || deadline() > before);
        }
        client.close();
        wait_until("the watch to end", || watchdogs(&server) == 0);
    }

    fn one_connection_may_have_thousands_of_locks_watched(flavour) {
        const COUNT: u64 = 2_000;
        const LONGER: i64 = 4_500;
        let server = Server::start(flavour);
        let mut client = server.raw();
        let acquire = |n| ("LOCK.ACQUIRE", format!("k{n}"), "o", LONGER, "WATCHDOG");
        let tokens = client.pipeline((0..COUNT).map(acquire));
        assert_eq!(watchdogs(&server), COUNT);
        wait_until("all renewals", || {
            server.info_number("lock", "lock_watchdog_renewals") >= COUNT
        });
        let deadlines = server.raw().pipeline((0..COUNT).map(|n| format!("PEXPIRETIME k{n}")));
        for (token, deadline) in tokens.iter().zip(deadlines) {
            assert!(deadline.as_int() > token.as_int() / 1_000 + LONGER);
        }
        assert_eq!((watchdogs(&server), lost(&server)), (COUNT, 0));
        client.close();
        wait_until("all watches to end", || watchdogs(&server) == 0);
        unload(&server);
    }

    /// What is watched needs a timer, and the server unloads no module that has one.
    fn the_module_stays_while_something_is_watched(flavour) {
        let server = Server::start(flavour);
        let path = crate::harness::module_path();
        for end in ["LOCK.RELEASE k o", "CLIENT KILL ID $id", "DEL k", "PING"] {
            // The last of them ends by itself.
            let longest = if end == "PING" { 1 } else { 600_000 };
            assert_eq!(server.call(("CONFIG", "SET", "lock.watchdog-max-hold", longest)), "OK");
            let mut client = server.raw();
            let end = end.replace("$id", &client.id().to_string());
            watch(&mut client, "k");
            assert_eq!(server.call("MODULE UNLOAD lock").error_code(), Some("ERR"), "{end}");
            server.call(&end);
            unload(&server);
            server.call("DEL k");
            assert_eq!(server.call(("MODULE", "LOAD", path.to_str().unwrap())), "OK");
            assert_eq!(watchdogs(&server), 0);
        }
    }

    /// The client has to ask again, which it can, since the lock is still its own.
    fn a_server_that_starts_or_is_promoted_knows_no_watch(flavour) {
        let server = Server::start(flavour);
        let mut holder = server.raw();
        let token = watch(&mut holder, "k");
        let replica = Server::build(flavour).replica_of(&server).start();
        // The replica follows the renewals and makes none.
        renewal(&replica, "k");
        assert_eq!(watchdogs(&replica), 0);
        assert_eq!(server.call("LOCK.RENEW k o 600000"), 1);
        replica.wait_in_sync_with(&server);
        let deadline = server.deadline("k");
        let server = server.restart();
        assert_eq!(replica.call("REPLICAOF NO ONE"), "OK");
        for server in [server, replica] {
            assert_eq!((watchdogs(&server), server.deadline("k")), (0, deadline));
            let mut holder = server.raw();
            let renew = format!("LOCK.RENEW k o {TTL} TOKEN {token} WATCHDOG");
            assert_eq!(holder.call(renew), 1);
            assert_eq!(watchdogs(&server), 1);
            renewal(&server, "k");
        }
    }

    /// A write would break what the server promises while it is paused: it aborts.
    fn nothing_is_renewed_while_the_server_is_paused(flavour) {
        const LONGER: i64 = 3_000;
        let server = Server::start(flavour);
        let mut holder = server.raw();
        assert!(holder.call(("LOCK.ACQUIRE", "k", "o", LONGER, "WATCHDOG")).as_int() > 0);
        assert_eq!(server.call("CLIENT PAUSE 100000 WRITE"), "OK");
        wait_until("the time of the renewal to pass", || {
            server.call("PTTL k").as_int() < LONGER * 6 / 10
        });
        assert_eq!(server.info_number("lock", "lock_watchdog_renewals"), 0);
        assert_eq!(server.call("CLIENT UNPAUSE"), "OK");
        renewal(&server, "k");
        assert_eq!((watchdogs(&server), lost(&server)), (1, 0));
    }
}
