//! Waiting: `BLOCK` on the two acquires, and the lock passed on in the step that frees it.
//!
//! A test that wants a lock to change hands in just one moment sends the commands in one go: the
//! server runs them one after the other, and nobody comes in between. `DEBUG SLEEP` among them lets
//! a lease of a millisecond lapse there.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::{
    Events, Raw, Reply, Server, ToWord, ToWords, Words, on_every_server, wait_until,
};

/// A client that has sent a request and waits with it. Requests stand in the queue in the order of
/// these calls.
pub(crate) fn waiter(server: &Server, request: impl ToWords) -> Raw {
    waiter_in(server, 0, request)
}

/// A client that waits for a lock of this database.
pub(crate) fn waiter_in(server: &Server, database: u32, request: impl ToWords) -> Raw {
    let before = server.blocked_clients();
    let mut client = server.raw();
    assert_eq!(client.call(format!("SELECT {database}")), "OK");
    client.send(request);
    server.wait_for_blocked(before + 1);
    client
}

/// Asserts that nobody waits and nothing is left of those who did: the module can be unloaded,
/// which a server refuses while a client is blocked or a timer pends.
pub(crate) fn assert_nobody_waits(server: &Server) {
    server.wait_for_blocked(0);
    assert_eq!(server.info_number("lock", "lock_waiters"), 0);
    assert_eq!(server.info_number("lock", "lock_contended_keys"), 0);
    assert_eq!(server.call("LOCK.CONTENDED"), Reply::Array(Vec::new()));
    wait_until("the module to be unloaded", || {
        server.call("MODULE UNLOAD lock") == "OK"
    });
}

/// Asserts who holds a lock, and how often.
pub(crate) fn assert_held(server: &Server, key: impl ToWord, owner: impl ToWord, holds: i64) {
    let owners = vec![Reply::bulk(owner.to_word()), Reply::Int(holds)];
    let info = server.call(("LOCK.INFO", key));
    assert_eq!(*info.field("owners"), Reply::Array(owners));
}

/// Ends the only hold of a lock for which nobody waits.
fn release_last(server: &Server, key: impl ToWord, owner: impl ToWord) {
    let key = key.to_word();
    assert_eq!(server.call(("LOCK.RELEASE", &key, owner)), 1);
    assert_eq!(server.call(("EXISTS", &key)), 0);
}

/// The owners in the queue of a lock.
fn queue(server: &Server, key: &str) -> Words {
    let queue = server.call(("LOCK.QUEUE", key, "COUNT", 1000));
    let owner = |line: &Reply| line.field("owner").as_bytes().to_vec();
    Words(queue.items().iter().map(owner).collect())
}

/// How long the first in a queue has waited, in milliseconds.
fn waited(server: &Server, key: &str) -> i64 {
    server.call(("LOCK.QUEUE", key)).items()[0]
        .field("waited")
        .as_int()
}

/// The numbers of the connections in a queue.
fn clients(server: &Server, key: &str) -> Vec<i64> {
    let queue = server.call(("LOCK.QUEUE", key));
    let client = |line: &Reply| line.field("client-id").as_int();
    queue.items().iter().map(client).collect()
}

/// Runs commands in a transaction.
fn transaction<'a>(client: &mut Raw, commands: impl IntoIterator<Item = &'a str>) -> Vec<Reply> {
    let commands = commands.into_iter();
    let all = ["MULTI"].into_iter().chain(commands).chain(["EXEC"]);
    let replies = client.pipeline(all);
    replies.last().expect("a reply").items().to_vec()
}

/// A script that runs the command in its arguments, and the same as a function.
const RUN: &str = "return redis.call(unpack(ARGV))";
const RUN_LIBRARY: &str = "#!lua name=lib\n\
    redis.register_function('run', function(keys, args) return redis.call(unpack(args)) end)";

/// `EVAL` or `FCALL` of a script with one key, with all other words as arguments.
fn call_script(kind: &str, script: &str, key: &str, args: &str) -> Words {
    let head = [kind, script, "1", key].into_iter();
    Words(head.chain(args.split_whitespace()).map(Vec::from).collect())
}

/// What happened to a lock, without what happened to its key.
fn lock_events(events: &mut Events) -> Vec<Words> {
    let mut seen = events.so_far();
    seen.retain(|event| event.text(1).starts_with("lock."));
    seen
}

on_every_server! {
    /// redisson#763, redisson#5761, redisson#3891, redisson#4744, python-redis-lock#71
    fn the_first_to_come_is_the_first_to_be_granted(flavour) {
        let server = Server::start(flavour);
        let mut token = server.call("LOCK.ACQUIRE k holder 600000").as_int();
        let requests = [
            ("w0", "LOCK.ACQUIRE k w0 600000 BLOCK 0"),
            ("w1", "LOCK.RACQUIRE k w1 600000 BLOCK 600000"),
            ("w2", "lock.acquire k w2 600000 REQID r block 600000"),
            ("w3", "LOCK.RACQUIRE k w3 600000 BLOCK 0"),
        ];
        let mut waiting: VecDeque<_> = requests
            .map(|(owner, request)| (owner, waiter(&server, request)))
            .into();
        assert_eq!(queue(&server, "k"), "w0 w1 w2 w3");
        let mut holder = "holder";
        while let Some((owner, mut client)) = waiting.pop_front() {
            assert_eq!(server.call(("LOCK.RELEASE", "k", holder)), 1);
            let granted = client.read().as_int();
            assert!(granted > token, "{granted} after {token}");
            (holder, token) = (owner, granted);
            assert_held(&server, "k", owner, 1);
            for (_, behind) in &mut waiting {
                assert!(!behind.has_reply());
            }
        }
        release_last(&server, "k", holder);
        assert_nobody_waits(&server);
    }

    fn a_release_is_the_next_grant(flavour) {
        let server = Server::start(flavour);
        let replica = Server::build(flavour).replica_of(&server).start();
        server.call("LOCK.ACQUIRE k a 600000");
        let mut b = waiter(&server, "LOCK.ACQUIRE k b 500000 BLOCK 0");
        let mut c = waiter(&server, "LOCK.RACQUIRE k c 400000 BLOCK 0 REQID r:1");
        let (mut stream, mut events) = (server.replication_stream(), server.events());
        for (holder, next, client, marker, tail) in [
            ("a", "b", &mut b, "lk1", "b"),
            ("b", "c", &mut c, "lk1r", "3:r:1:c"),
        ] {
            assert_eq!(server.call(("LOCK.RELEASE", "k", holder)), 1);
            let token = client.read().as_int();
            let expires = server.call("PEXPIRETIME k").as_int();
            // The record of the next holder over that of the last one is all that is written.
            let write = format!("SET k {marker}:{token}:1:{tail} PXAT {expires}");
            assert_eq!(stream.writes(&server), [write.as_str()]);
            let seen = ["0 lock.released k", "0 set k", "0 expire k", "0 lock.handover k"];
            assert_eq!(events.so_far(), seen);
            assert_held(&server, "k", next, 1);
            replica.wait_in_sync_with(&server);
            assert_eq!(server.snapshot(), replica.snapshot());
        }
        assert_eq!(server.call("LOCK.RELEASE k c"), 1);
        assert_eq!(stream.writes(&server), ["DEL k"]);
        assert_eq!(events.so_far(), ["0 lock.released k", "0 del k"]);
        replica.wait_in_sync_with(&server);
        assert_eq!(replica.snapshot().len(), 0);
        assert_eq!(server.info_number("lock", "lock_handovers"), 2);
        assert_nobody_waits(&server);
        assert_nobody_waits(&replica);
    }

    fn the_lease_counts_from_the_grant(flavour) {
        let server = Server::start(flavour);
        for free in ["LOCK.RELEASE k a", "DEL k", "PEXPIRE k 1"] {
            server.call("LOCK.ACQUIRE k a 600000");
            let mut b = waiter(&server, "LOCK.ACQUIRE k b 50000 BLOCK 0");
            wait_until("a wait of 20 ms", || waited(&server, "k") >= 20);
            let time = server.call("TIME").to_words();
            assert_eq!(server.call(free), 1);
            let token = b.read().as_int();
            assert!(token >= time.int(0) * 1_000_000 + time.int(1), "{token}, {time}");
            assert_eq!(server.call("PEXPIRETIME k"), token / 1_000 + 50_000, "{free}");
            release_last(&server, "k", "b");
        }
        assert_nobody_waits(&server);
    }

    /// redisson#543, python-redis-lock#73
    fn a_wait_of_zero_lasts_until_the_grant(flavour) {
        let server = Server::start(flavour);
        server.call("LOCK.ACQUIRE k a 600000");
        let mut patient = waiter(&server, "LOCK.ACQUIRE k b 600000 BLOCK 0");
        let mut longest = waiter(&server, "LOCK.ACQUIRE k c 600000 BLOCK 9007199254740991");
        // Whoever came later and waits for a moment is sent away, and those two are not.
        assert_eq!(server.raw().call("LOCK.ACQUIRE k d 600000 BLOCK 1"), Reply::NilBulk);
        assert!(!patient.has_reply());
        assert!(!longest.has_reply());
        assert_eq!(queue(&server, "k"), "b c");
        server.call("LOCK.RELEASE k a");
        assert!(patient.read().as_int() > 0);
        server.call("LOCK.RELEASE k b");
        assert!(longest.read().as_int() > 0);
        assert_nobody_waits(&server);
    }

    /// redisson#543, python-redis-lock#73, python-redis-lock#74
    fn a_timeout_that_is_none_is_an_error(flavour) {
        let server = Server::start(flavour);
        server.call("LOCK.ACQUIRE held a 600000");
        let (before, mut stream) = (server.snapshot(), server.replication_stream());
        let mut client = server.raw();
        let no_integer = "ERR timeout is not an integer or out of range";
        for (option, error) in [
            ("BLOCK -1", "ERR timeout is negative"),
            ("BLOCK -9223372036854775808", "ERR timeout is negative"),
            ("BLOCK -9223372036854775809", no_integer),
            ("BLOCK 9007199254740992", no_integer),
            ("BLOCK 9223372036854775808", no_integer),
            ("BLOCK x", no_integer),
            ("BLOCK 1.5", no_integer),
            ("BLOCK 1e3", no_integer),
            ("BLOCK +1", no_integer),
            ("BLOCK -0", no_integer),
            ("BLOCK 007", no_integer),
            ("BLOCK WATCHDOG", no_integer),
            ("BLOCK", "ERR option BLOCK needs a value"),
            ("BLOCK 1 block 1", "ERR option BLOCK is given twice"),
        ] {
            for request in ["ACQUIRE held", "RACQUIRE held", "ACQUIRE free", "RACQUIRE free"] {
                let reply = client.call(format!("LOCK.{request} b 600000 {option}"));
                assert_eq!(reply, Reply::Error(error.to_owned()), "{request} {option}");
            }
        }
        for timeout in ["", " 1", "1 ", "1\0"] {
            let reply = client.call(("LOCK.ACQUIRE", "held", "b", 600_000, "BLOCK", timeout));
            assert_eq!(reply, Reply::Error(no_integer.to_owned()), "{timeout:?}");
        }
        assert!(stream.writes(&server).is_empty());
        assert_eq!(server.snapshot(), before);
        assert_nobody_waits(&server);
    }

    fn who_waited_in_vain_is_gone(flavour) {
        let server = Server::start(flavour);
        server.call("LOCK.ACQUIRE k a 600000");
        let (mut resp2, mut resp3) = (server.raw(), server.raw_resp3());
        let start = Instant::now();
        assert_eq!(resp2.call("LOCK.ACQUIRE k b 600000 BLOCK 20"), Reply::NilBulk);
        // The server counts in whole milliseconds, and the first of them may have begun.
        assert!(start.elapsed() >= Duration::from_millis(19), "{:?}", start.elapsed());
        assert_eq!(resp3.call("LOCK.RACQUIRE k b 600000 BLOCK 1"), Reply::Null);
        // What a client has sent behind its request comes after it.
        let replies = resp3.pipeline(["LOCK.ACQUIRE k b 600000 BLOCK 1", "LOCK.RELEASE k b"]);
        assert_eq!(replies, [Reply::Null, Reply::Int(0)]);
        assert_eq!(resp2.call("LOCK.ACQUIRE k * 600000 BLOCK 1"), Reply::NilBulk);
        assert_eq!(queue(&server, "k"), "");
        // One who leaves from the middle of a queue changes nothing for the others.
        let mut first = waiter(&server, "LOCK.ACQUIRE k c 600000 BLOCK 0");
        let mut last = server.raw();
        resp2.send("LOCK.ACQUIRE k b 600000 BLOCK 50");
        last.send("LOCK.ACQUIRE k d 600000 BLOCK 0");
        assert_eq!(resp2.read(), Reply::NilBulk);
        server.wait_for_blocked(2);
        assert_eq!(queue(&server, "k"), "c d");
        for (holder, client) in [("a", &mut first), ("c", &mut last)] {
            assert_eq!(server.call(("LOCK.RELEASE", "k", holder)), 1);
            assert!(client.read().as_int() > 0);
        }
        release_last(&server, "k", "d");
        assert_eq!(server.info_number("lock", "lock_timeouts"), 5);
        assert!(!resp2.has_reply());
        assert_nobody_waits(&server);
    }

    /// python-redis-lock#58
    fn nobody_overtakes_when_a_lock_is_freed(flavour) {
        let server = Server::start(flavour);
        let mut hasty = server.raw();
        for free in ["LOCK.RELEASE k a", "DEL k", "UNLINK k", "PEXPIREAT k 1"] {
            for request in ["LOCK.ACQUIRE k new 600000", "LOCK.RACQUIRE k new 600000"] {
                for way in ["pipeline", "MULTI", "EVAL"] {
                    server.call("LOCK.ACQUIRE k a 600000");
                    let mut next = waiter(&server, "LOCK.ACQUIRE k b 600000 BLOCK 0");
                    let reply = match way {
                        "pipeline" => hasty.pipeline([free, request]).remove(1),
                        "MULTI" => transaction(&mut hasty, [free, request]).remove(1),
                        _ => {
                            let script = format!(
                                "redis.call(unpack(ARGV)) return redis.call('{}')",
                                request.replace(' ', "', '")
                            );
                            hasty.call(call_script("EVAL", &script, "k", free))
                        }
                    };
                    assert_eq!(reply, Reply::NilBulk, "{free}, {request}, {way}");
                    assert!(next.read().as_int() > 0);
                    release_last(&server, "k", "b");
                }
                // One who is content to wait gets in line.
                server.call("LOCK.ACQUIRE k a 600000");
                let mut next = waiter(&server, "LOCK.ACQUIRE k b 600000 BLOCK 0");
                hasty.send_all([free, &format!("{request} BLOCK 0")]);
                assert_eq!(hasty.read(), 1);
                let token = next.read().as_int();
                assert_held(&server, "k", "b", 1);
                assert!(!hasty.has_reply());
                server.call("LOCK.RELEASE k b");
                assert!(hasty.read().as_int() > token);
                release_last(&server, "k", "new");
            }
        }
        assert_nobody_waits(&server);
    }

    /// python-redis-lock#58
    fn nobody_overtakes_when_a_lease_lapses(flavour) {
        let server = Server::start(flavour);
        let mut events = server.events();
        for request in ["LOCK.ACQUIRE k new 600000", "LOCK.RACQUIRE k new 600000"] {
            // The newcomer is the first to find that the lease is over.
            server.call("LOCK.ACQUIRE k a 600000");
            let mut next = waiter(&server, "LOCK.ACQUIRE k b 600000 BLOCK 0");
            events.so_far();
            let mut hasty = server.raw();
            let replies = hasty.pipeline(["LOCK.RENEW k a 1", "DEBUG SLEEP 0.01", request]);
            assert_eq!(replies[2], Reply::NilBulk, "{request}");
            let token = next.read().as_int();
            let seen = ["0 lock.renewed k", "0 lock.expired k", "0 lock.handover k"];
            assert_eq!(lock_events(&mut events), seen);
            // One who is content to wait gets in line.
            let mut next = waiter(&server, "LOCK.ACQUIRE k c 600000 BLOCK 0");
            let patient = format!("{request} BLOCK 0");
            hasty.send_all(["LOCK.RENEW k b 1", "DEBUG SLEEP 0.01", &patient]);
            assert_eq!(hasty.read(), 1);
            assert_eq!(hasty.read(), "OK");
            assert!(next.read().as_int() > token);
            assert_held(&server, "k", "c", 1);
            assert!(!hasty.has_reply());
            server.call("LOCK.RELEASE k c");
            assert!(hasty.read().as_int() > token);

            // The server is the first to find it, at any moment between many newcomers.
            let mut next = waiter(&server, "LOCK.ACQUIRE k d 600000 BLOCK 0");
            server.call("LOCK.RENEW k new 5");
            wait_until("the grant", || {
                let other = request.replace("new", "other");
                let replies = hasty.pipeline(vec![other; 20]);
                assert!(replies.iter().all(Reply::is_nil), "{replies:?}");
                next.has_reply()
            });
            release_last(&server, "k", "d");
        }
        assert_eq!(server.info_number("lock", "lock_expiries_with_waiters"), 6);
        assert_nobody_waits(&server);
    }

    fn a_lease_that_was_shortened_by_hand_lapses_like_any_other(flavour) {
        let server = Server::start(flavour);
        let (mut client, mut events) = (server.raw(), server.events());
        for lapse in [&["PEXPIRE k 1"][..], &["PEXPIRE k 1", "DEBUG SLEEP 0.01"]] {
            server.call("LOCK.ACQUIRE k a 600000");
            let mut next = waiter(&server, "LOCK.ACQUIRE k b 600000 BLOCK 0");
            // With the second command, the server is told late.
            client.pipeline(lapse);
            assert!(next.read().as_int() > 0);
            let seen = ["0 lock.acquired k", "0 lock.expired k", "0 lock.handover k"];
            assert_eq!(lock_events(&mut events), seen, "{lapse:?}");
            release_last(&server, "k", "b");
            events.so_far();
        }
        assert_eq!(server.info_number("lock", "lock_expiries_with_waiters"), 2);
        assert_nobody_waits(&server);
    }

    /// redisson#2355, node-redlock#313
    fn a_release_of_a_lapsed_lock_answers_at_once(flavour) {
        let server = Server::start(flavour);
        let mut late = server.raw();
        let release = ["DEBUG SLEEP 0.01", "LOCK.RELEASE k a", "LOCK.RENEW k a 600000"];
        let replies = late.pipeline(["LOCK.ACQUIRE k a 1"].into_iter().chain(release));
        assert_eq!(replies[2..], [Reply::Int(-1), Reply::Int(-1)]);
        // When somebody waits, it is his by then.
        server.call("LOCK.ACQUIRE k a 600000");
        let mut next = waiter(&server, "LOCK.ACQUIRE k b 600000 BLOCK 0");
        let replies = late.pipeline(["PEXPIRE k 1"].into_iter().chain(release));
        assert_eq!(replies[2..], [Reply::Int(0), Reply::Int(0)]);
        assert!(next.read().as_int() > 0);
        assert_eq!(late.call("LOCK.RELEASE k a"), 0);
        assert_held(&server, "k", "b", 1);
        release_last(&server, "k", "b");
        assert_eq!(late.call("LOCK.RELEASE k a"), -1);
        assert_nobody_waits(&server);
    }

    fn the_holder_enters_again_although_others_wait(flavour) {
        let server = Server::start(flavour);
        let token = server.call("LOCK.RACQUIRE k a 600000").as_int();
        let mut b = waiter(&server, "LOCK.RACQUIRE k b 600000 BLOCK 0");
        assert_eq!(server.call("LOCK.RACQUIRE k a 600000"), token);
        assert_eq!(server.call("LOCK.RACQUIRE k a 600000 BLOCK 0"), token);
        for holds in [3, 2, 1] {
            assert_held(&server, "k", "a", holds);
            assert!(!b.has_reply());
            assert_eq!(server.call("LOCK.RELEASE k a"), 1);
        }
        assert!(b.read().as_int() > token);
        assert_held(&server, "k", "b", 1);
        release_last(&server, "k", "b");
        assert_nobody_waits(&server);
    }

    fn a_place_in_the_queue_is_no_hold(flavour) {
        let server = Server::start(flavour);
        let token = server.call("LOCK.ACQUIRE k a 600000").as_int();
        let mut b = waiter(&server, "LOCK.RACQUIRE k b 600000 BLOCK 0");
        let (before, mut stream) = (server.snapshot(), server.replication_stream());
        for command in ["LOCK.RELEASE k b", "LOCK.RENEW k b 900000"] {
            assert_eq!(server.call(command), 0);
            assert_eq!(server.call(format!("{command} TOKEN {token}")), 0);
        }
        assert_eq!(server.call("LOCK.RACQUIRE k b 600000"), Reply::NilBulk);
        assert!(stream.writes(&server).is_empty());
        assert_eq!(server.snapshot(), before);
        assert_eq!(queue(&server, "k"), "b");
        assert!(!b.has_reply());
        server.call("LOCK.RELEASE k a");
        assert!(b.read().as_int() > token);
        release_last(&server, "k", "b");
        assert_nobody_waits(&server);
    }

    fn an_owner_that_the_server_makes_is_told_with_the_grant(flavour) {
        let server = Server::start(flavour);
        server.call("LOCK.ACQUIRE k a 600000");
        let mut waiting = [
            waiter(&server, "LOCK.ACQUIRE k * 600000 BLOCK 0"),
            waiter(&server, "LOCK.RACQUIRE k * 600000 BLOCK 0"),
        ];
        let owners = queue(&server, "k");
        assert_ne!(owners[0], owners[1]);
        let mut holder = b"a".to_vec();
        for (client, owner) in waiting.iter_mut().zip(owners.iter()) {
            assert_eq!(server.call(("LOCK.RELEASE", "k", &holder)), 1);
            let reply = client.read();
            let [token, told] = reply.items() else {
                panic!("no token and owner: {reply:?}");
            };
            assert!(token.as_int() > 0);
            assert_eq!(told.as_bytes(), owner);
            assert_eq!(owner.len(), 36);
            assert_held(&server, "k", owner, 1);
            holder.clone_from(owner);
        }
        release_last(&server, "k", &holder);
        assert_nobody_waits(&server);
    }

    /// redisson#7367
    fn a_request_that_waits_twice_has_one_hold(flavour) {
        let server = Server::start(flavour);
        let request = "LOCK.RACQUIRE k b 600000 BLOCK 0 REQID r";
        let mut stream = server.replication_stream();
        // Which of its two connections are killed in the turn in which the grant is on its way.
        for killed in [&[][..], &[0], &[1], &[0, 1], &[1, 0]] {
            let before = server.info_number("lock", "lock_unclaimed_grants");
            server.call("LOCK.ACQUIRE k a 600000");
            let mut copies = [waiter(&server, request), waiter(&server, request)];
            let mut next = waiter(&server, "LOCK.ACQUIRE k c 600000 BLOCK 0");
            let ids = clients(&server, "k");
            stream.writes(&server);
            let kills = killed.iter().map(|&copy| format!("CLIENT KILL ID {}", ids[copy]));
            let turn: Vec<_> = ["LOCK.RELEASE k a".to_owned()].into_iter().chain(kills).collect();
            let replies = transaction(&mut server.raw(), turn.iter().map(String::as_str));
            assert!(replies.iter().all(|reply| *reply == 1), "{replies:?}");

            let mut tokens = Vec::new();
            for (copy, client) in copies.iter_mut().enumerate() {
                if !killed.contains(&copy) {
                    tokens.push(client.read().as_int());
                }
            }
            if let Some(&token) = tokens.first() {
                assert!(tokens.iter().all(|&other| other == token), "{tokens:?}");
                assert_held(&server, "k", "b", 1);
                assert_eq!(queue(&server, "k"), "c");
                assert!(!next.has_reply());
                // To send it once more does no harm either.
                assert_eq!(server.call(request), token);
                assert_eq!(server.call("LOCK.RELEASE k b"), 1);
            }
            assert!(next.read().as_int() > tokens.first().copied().unwrap_or(0));
            assert_held(&server, "k", "c", 1);
            let writes = stream.writes(&server);
            assert_eq!(writes.len(), 2, "{writes:?}");
            assert!(writes[0].matches("SET k * PXAT *"), "{writes:?}");
            assert!(writes[0].text(2).ends_with(":1:1:r:b"), "{writes:?}");
            assert!(writes[1].text(2).ends_with(":1:c"), "{writes:?}");
            let unclaimed = server.info_number("lock", "lock_unclaimed_grants") - before;
            assert_eq!(unclaimed, u64::from(tokens.is_empty()));
            release_last(&server, "k", "c");
        }
        assert_nobody_waits(&server);
    }

    /// redisson#7367
    fn a_request_that_is_sent_again_in_the_turn_of_the_grant_keeps_its_hold(flavour) {
        let server = Server::start(flavour);
        let request = "LOCK.ACQUIRE k b 600000 REQID r";
        server.call("LOCK.ACQUIRE k a 600000");
        let _lost = waiter(&server, format!("{request} BLOCK 0"));
        let mut next = waiter(&server, "LOCK.ACQUIRE k c 600000 BLOCK 0");
        // The client has lost its connection, has made a new one and asks what became of it.
        let kill = format!("CLIENT KILL ID {}", clients(&server, "k")[0]);
        let replies = transaction(&mut server.raw(), ["LOCK.RELEASE k a", &kill, request]);
        let token = replies[2].as_int();
        assert_eq!(server.call(format!("LOCK.RENEW k b 600000 TOKEN {token}")), 1);
        wait_until("the lost connection's end", || server.blocked_clients() < 2);
        assert_held(&server, "k", "b", 1);
        assert!(!next.has_reply());
        assert_eq!(server.call("LOCK.RELEASE k b"), 1);
        assert!(next.read().as_int() > token);
        release_last(&server, "k", "c");
        assert_nobody_waits(&server);
    }

    fn an_owner_that_waits_twice_to_reenter_has_two_holds(flavour) {
        let server = Server::start(flavour);
        let requests = [
            "LOCK.RACQUIRE k b 500000 BLOCK 0",
            "LOCK.ACQUIRE k c 600000 BLOCK 0",
            "LOCK.ACQUIRE k b 600000 BLOCK 0",
            "LOCK.RACQUIRE k b 900000 BLOCK 0",
        ];
        server.call("LOCK.ACQUIRE k a 600000");
        let mut waiting = requests.map(|request| waiter(&server, request));
        let mut stream = server.replication_stream();
        server.call("LOCK.RELEASE k a");
        let token = waiting[0].read().as_int();
        assert_eq!(waiting[3].read(), token);
        // The lease is the longer one of the two.
        let write = format!("SET k lk1:{token}:2:b PXAT {}", token / 1_000 + 900_000);
        assert_eq!(stream.writes(&server), [write.as_str()]);
        // What is not re-entrant stands in line, be it of the same owner.
        assert_eq!(queue(&server, "k"), "c b");
        server.call("LOCK.RELEASE k b");
        assert_held(&server, "k", "b", 1);
        assert!(!waiting[1].has_reply());
        server.call("LOCK.RELEASE k b");
        assert!(waiting[1].read().as_int() > token);
        server.call("LOCK.RELEASE k c");
        assert!(waiting[2].read().as_int() > token);
        release_last(&server, "k", "b");

        // The hold of a client that is gone by the time of the grant is not counted.
        for killed in [0, 1] {
            server.call("LOCK.ACQUIRE k a 600000");
            let mut waiting = [requests[0], requests[3]].map(|request| waiter(&server, request));
            let kill = format!("CLIENT KILL ID {}", clients(&server, "k")[killed]);
            transaction(&mut server.raw(), ["LOCK.RELEASE k a", &kill]);
            assert!(waiting[1 - killed].read().as_int() > token);
            wait_until("one hold to go back", || {
                let info = server.call("LOCK.INFO k");
                info.field("owners").items()[1] == 1
            });
            release_last(&server, "k", "b");
        }
        assert_nobody_waits(&server);
    }

    fn a_queue_is_shown_in_the_order_of_the_grants(flavour) {
        let server = Server::start(flavour);
        assert_eq!(server.call("LOCK.QUEUE k"), Reply::Array(Vec::new()));
        server.call("LOCK.ACQUIRE k a 600000");
        assert_eq!(server.call("LOCK.QUEUE k"), Reply::Array(Vec::new()));
        let mut waiting = Vec::new();
        for number in 0..12 {
            let mut client = server.raw();
            let id = client.id();
            client.send(format!("LOCK.ACQUIRE k w{number} 600000 BLOCK 0"));
            server.wait_for_blocked(number + 1);
            waiting.push((format!("w{number}"), id, client));
        }
        for (mut asking, resp3) in [(server.raw(), false), (server.raw_resp3(), true)] {
            for (option, shown) in [("", 10), ("COUNT 1", 1), ("COUNT 11", 11), ("count 99", 12)] {
                let queue = asking.call(format!("LOCK.QUEUE k {option}"));
                assert_eq!(queue.items().len(), shown, "{option}");
                for (line, (owner, id, _)) in queue.items().iter().zip(&waiting) {
                    let fields = [
                        (Reply::bulk("owner"), Reply::bulk(owner)),
                        (Reply::bulk("client-id"), Reply::Int(*id)),
                        (Reply::bulk("waited"), line.field("waited").clone()),
                        (Reply::bulk("mode"), Reply::bulk("exclusive")),
                        (Reply::bulk("limit"), if resp3 { Reply::Null } else { Reply::NilBulk }),
                    ];
                    let expected = if resp3 {
                        Reply::Map(fields.into())
                    } else {
                        Reply::Array(fields.into_iter().flat_map(<[Reply; 2]>::from).collect())
                    };
                    assert_eq!(*line, expected);
                }
                // Who came first has waited longest.
                let waits = queue.items().iter().map(|line| line.field("waited").as_int());
                assert!(waits.clone().all(|waited| waited >= 0), "{queue:?}");
                assert!(waits.is_sorted_by(|first, then| first >= then), "{queue:?}");
            }
            for (option, error) in [
                ("COUNT 0", "ERR COUNT must be positive"),
                ("COUNT -1", "ERR COUNT must be positive"),
                ("COUNT x", "ERR COUNT is not an integer or out of range"),
                ("COUNT", "ERR option COUNT needs a value"),
                ("COUNT 1 COUNT 1", "ERR option COUNT is given twice"),
                ("BLOCK 1", "ERR unknown option 'BLOCK'"),
            ] {
                let error = Reply::Error(error.to_owned());
                assert_eq!(asking.call(format!("LOCK.QUEUE k {option}")), error);
                assert_eq!(asking.call(format!("LOCK.CONTENDED {option}")), error);
            }
        }
        let before = waited(&server, "k");
        wait_until("a longer wait", || waited(&server, "k") > before);
        assert_eq!(server.info_number("lock", "lock_waiters_peak"), 12);
        for (_, _, client) in waiting {
            client.close();
        }
        server.wait_for_blocked(0);
        release_last(&server, "k", "a");
        assert_nobody_waits(&server);
    }

    fn contended_locks_are_shown_with_the_longest_queue_first(flavour) {
        let server = Server::start(flavour);
        let wait_for_lock = |database, key: &str| {
            let acquire = format!("LOCK.ACQUIRE {key}");
            let mut client = server.raw();
            client.pipeline([format!("SELECT {database}"), format!("{acquire} a 600000")]);
            waiter_in(&server, database, format!("{acquire} b 600000 BLOCK 0"))
        };
        let mut waiting: Vec<_> = [(0, "busy"), (0, "b"), (0, "a"), (0, "busy"), (7, "busy"), (0, "busy")]
            .map(|(database, key)| wait_for_lock(database, key))
            .into();
        let expected = |locks: &[(&str, i64)]| {
            let line = |&(key, waiters)| Reply::Array(vec![Reply::bulk(key), Reply::Int(waiters)]);
            Reply::Array(locks.iter().map(line).collect())
        };
        for mut asking in [server.raw(), server.raw_resp3()] {
            let all = [("busy", 3), ("a", 1), ("b", 1)];
            for (database, option, locks) in [
                (0, "", &all[..]),
                (0, "COUNT 3", &all),
                (0, "count 2", &all[..2]),
                (7, "", &[("busy", 1)]),
                (1, "", &[]),
            ] {
                asking.call(format!("SELECT {database}"));
                let reply = asking.call(format!("LOCK.CONTENDED {option}"));
                assert_eq!(reply, expected(locks), "database {database}, {option}");
                for (key, waiters) in locks {
                    let info = asking.call(("LOCK.INFO", key));
                    assert_eq!(*info.field("waiters"), *waiters);
                }
            }
            assert_eq!(*asking.call("LOCK.INFO free").field("waiters"), 0);
            assert_eq!(*asking.call("LOCK.INFO busy").field("waiters"), 0);
        }
        waiting.extend((0..10).map(|number| wait_for_lock(0, &format!("more{number}"))));
        assert_eq!(server.call("LOCK.CONTENDED").items().len(), 10);
        assert_eq!(server.call("LOCK.CONTENDED COUNT 99").items().len(), 13);
        assert_eq!(server.info_number("lock", "lock_contended_keys"), 14);
        assert_eq!(server.info_number("lock", "lock_waiters"), 16);
        for client in waiting {
            client.close();
        }
        assert_nobody_waits(&server);
    }

    fn every_database_has_queues_of_its_own(flavour) {
        let server = Server::start(flavour);
        let databases = [0, 3, 15];
        let mut clients = databases.map(|database| {
            let mut client = server.raw();
            client.call(format!("SELECT {database}"));
            client.call("LOCK.ACQUIRE k a 600000");
            client
        });
        let mut waiting = databases.map(|database| {
            waiter_in(&server, database, "LOCK.ACQUIRE k b 600000 BLOCK 0")
        });
        let mut stream = server.replication_stream();
        stream.until_marker(&server);
        // The first one is passed on by the command, the others by the server itself.
        for (place, free) in [(1, "LOCK.RELEASE k a"), (0, "DEL k"), (2, "PEXPIRE k 1")] {
            assert_eq!(clients[place].call(free), 1);
            let token = waiting[place].read().as_int();
            let (snapshot, mut written_to) = (server.snapshot(), 0);
            let record = &snapshot.get(databases[place], "k").expect("a lock").value;
            assert_eq!(*record, format!("lk1:{token}:1:b").as_str());
            // The mark before these commands is in the first database.
            for command in stream.until_marker(&server) {
                match command.text(0) {
                    "SELECT" => written_to = command.int(1),
                    "SET" => assert_eq!(written_to, i64::from(databases[place])),
                    _ => {}
                }
            }
            assert!(waiting.iter_mut().all(|client| !client.has_reply()), "{free}");
        }
        assert_nobody_waits(&server);
    }

    fn nobody_waits_in_a_transaction_or_a_script(flavour) {
        let server = Server::start(flavour);
        assert_eq!(server.call(("FUNCTION", "LOAD", RUN_LIBRARY)), "lib");
        server.call("LOCK.ACQUIRE held a 600000");
        let (before, mut stream) = (server.snapshot(), server.replication_stream());
        let (mut client, mut resp3) = (server.raw(), server.raw_resp3());
        for command in ["LOCK.ACQUIRE", "LOCK.RACQUIRE"] {
            for timeout in [0, 1, 600_000] {
                let request = format!("{command} held b 600000 BLOCK {timeout}");
                assert_eq!(transaction(&mut client, [request.as_str()]), [Reply::NilBulk]);
                for (kind, script) in [("EVAL", RUN), ("FCALL", "run")] {
                    let call = call_script(kind, script, "held", &request);
                    assert_eq!(client.call(&call), Reply::NilBulk, "{kind} {request}");
                    assert_eq!(resp3.call(&call), Reply::Null, "{kind} {request}");
                    client.call("MULTI");
                    client.call(&call);
                    assert_eq!(client.call("EXEC"), Reply::Array(vec![Reply::NilBulk]));
                }
            }
        }
        assert_eq!(server.blocked_clients(), 0);
        assert_eq!(queue(&server, "held"), "");
        assert!(stream.writes(&server).is_empty());
        assert_eq!(server.snapshot(), before);
        // A lock that is free is granted there.
        let granted = transaction(&mut client, ["LOCK.ACQUIRE free b 600000 BLOCK 0"]);
        assert!(granted[0].as_int() > 0);
        let request = "LOCK.RACQUIRE free b 600000 BLOCK 0";
        assert_eq!(client.call(call_script("EVAL", RUN, "free", request)), granted[0]);
        assert_nobody_waits(&server);
    }

    fn a_release_in_a_transaction_or_a_script_passes_the_lock_on(flavour) {
        let server = Server::start(flavour);
        assert_eq!(server.call(("FUNCTION", "LOAD", RUN_LIBRARY)), "lib");
        let mut client = server.raw();
        let release = "LOCK.RELEASE k a";
        let mut stream = server.replication_stream();
        for way in ["MULTI", "EVAL", "FCALL"] {
            server.call("LOCK.ACQUIRE k a 600000");
            let mut b = waiter(&server, "LOCK.ACQUIRE k b 600000 BLOCK 0");
            let mut c = waiter(&server, "LOCK.ACQUIRE k c 600000 BLOCK 0");
            stream.writes(&server);
            match way {
                "MULTI" => {
                    // The second one is not the holder's any more.
                    let replies = transaction(&mut client, [release, release]);
                    assert_eq!(replies, [Reply::Int(1), Reply::Int(0)]);
                }
                kind => {
                    let script = if kind == "EVAL" { RUN } else { "run" };
                    assert_eq!(client.call(call_script(kind, script, "k", release)), 1);
                }
            }
            let token = b.read().as_int();
            let expires = server.call("PEXPIRETIME k").as_int();
            let write = format!("SET k lk1:{token}:1:b PXAT {expires}");
            assert_eq!(stream.writes(&server), [write.as_str()], "{way}");
            assert_held(&server, "k", "b", 1);
            assert!(!c.has_reply());
            server.call("LOCK.RELEASE k b");
            assert!(c.read().as_int() > token);
            release_last(&server, "k", "c");
        }
        assert_nobody_waits(&server);
    }

    fn a_lock_may_pass_through_several_hands_in_one_step(flavour) {
        let server = Server::start(flavour);
        server.call("LOCK.ACQUIRE k a 600000");
        let owners = ["b", "c", "d", "e"];
        let mut waiting = owners.map(|owner| {
            waiter(&server, format!("LOCK.ACQUIRE k {owner} 600000 BLOCK 0"))
        });
        let mut watching = server.raw();
        watching.pipeline(["WATCH k", "MULTI", "PING"]);
        let mut stream = server.replication_stream();
        // All have had it when the answers are sent, be it for no time; one cannot be told.
        let kill = format!("CLIENT KILL ID {}", clients(&server, "k")[1]);
        let turn = ["LOCK.RELEASE k a", "LOCK.RELEASE k b", "LOCK.RELEASE k c", "DEL k", &kill];
        let replies = transaction(&mut server.raw(), turn);
        assert!(replies.iter().all(|reply| *reply == 1), "{replies:?}");
        let mut tokens = Vec::new();
        for place in [0, 2, 3] {
            tokens.push(waiting[place].read().as_int());
        }
        assert!(tokens.is_sorted_by(|first, then| first < then), "{tokens:?}");
        assert_held(&server, "k", "e", 1);
        let mut writes = stream.writes(&server);
        writes.retain(|command| command.len() > 1);
        let patterns = ["b", "c", "d", "k", "e"];
        assert_eq!(writes.len(), patterns.len(), "{writes:?}");
        for (write, end) in writes.iter().zip(patterns) {
            let record = if end == "k" { 1 } else { 2 };
            assert!(write.text(record).ends_with(end), "{writes:?}");
        }
        assert!(watching.call("EXEC").is_nil());
        release_last(&server, "k", "e");
        assert_nobody_waits(&server);
    }

    /// redisson#970, redisson#2896
    fn names_are_of_any_bytes(flavour) {
        let server = Server::start(flavour);
        let mut stream = server.replication_stream();
        for key in [
            &b""[..], b"\0", b"\0a", b"\xff\xfe", b"a b", b"a\r\nb", b"{a", b"}a{", b"%s%n", b"*",
        ] {
            let owner = [key, b":1"].concat();
            let acquire = |owner: &[u8]| {
                Words(vec![b"LOCK.ACQUIRE".to_vec(), key.into(), owner.into(), b"600000".into()])
            };
            let block = [b"BLOCK".to_vec(), b"0".to_vec(), b"REQID".to_vec(), key.to_vec()];
            let block = if key.is_empty() { &block[..2] } else { &block };
            server.call(acquire(b"holder"));
            let request = Words([&acquire(&owner)[..], block].concat());
            let mut next = waiter(&server, request);
            let line = server.call(("LOCK.QUEUE", key)).items()[0].clone();
            assert_eq!(line.field("owner").as_bytes(), owner);
            let contended = Reply::Array(vec![Reply::bulk(key), Reply::Int(1)]);
            assert_eq!(server.call("LOCK.CONTENDED"), Reply::Array(vec![contended]));
            stream.writes(&server);
            assert_eq!(server.call(("LOCK.RELEASE", key, "holder")), 1);
            let token = next.read().as_int();
            let (marker, request) = match key.len() {
                0 => ("lk1", Vec::new()),
                len => ("lk1r", [format!("{len}:").as_bytes(), key, b":"].concat()),
            };
            let record = [format!("{marker}:{token}:1:").as_bytes(), &request, &owner].concat();
            let expires = server.call(("PEXPIRETIME", key)).as_int();
            let write = ("SET", key, &record, "PXAT", expires.unsigned_abs()).to_words();
            assert_eq!(stream.writes(&server), [write]);
            assert_held(&server, key, &owner, 1);
            release_last(&server, key, &owner);
        }
        assert_nobody_waits(&server);
    }

    /// redisson#763, redisson#5761, redisson#3891, redisson#4744, python-redis-lock#71
    fn thousands_of_hand_overs_keep_the_order(flavour) {
        const CLIENTS: usize = 60;
        const HAND_OVERS: usize = 2_000;
        let server = Server::start(flavour);
        let request = |owner: usize| format!("LOCK.ACQUIRE k w{owner} 600000 BLOCK 0");
        let mut holder = (0, server.raw());
        let mut token = holder.1.call(request(0)).as_int();
        let mut waiting: VecDeque<_> = (1..CLIENTS)
            .map(|owner| (owner, waiter(&server, request(owner))))
            .collect();
        for _ in 0..HAND_OVERS {
            // Whoever has had its turn goes to the end of the queue in the same step.
            let (owner, client) = &mut holder;
            client.send_all([format!("LOCK.RELEASE k w{owner}"), request(*owner)]);
            assert_eq!(client.read(), 1);
            let (next, mut client) = waiting.pop_front().expect("a waiter");
            let granted = client.read().as_int();
            assert!(granted > token, "{granted} after {token}");
            token = granted;
            waiting.push_back(std::mem::replace(&mut holder, (next, client)));
        }
        assert_eq!(server.info_number("lock", "lock_handovers"), HAND_OVERS as u64);
        assert_eq!(server.info_number("lock", "lock_waiters_peak"), CLIENTS as u64 - 1);
        let mut owner = holder.0;
        for (next, mut client) in waiting {
            assert!(!client.has_reply());
            assert_eq!(server.call(format!("LOCK.RELEASE k w{owner}")), 1);
            assert!(client.read().as_int() > token);
            owner = next;
        }
        release_last(&server, "k", format!("w{owner}"));
        assert_nobody_waits(&server);
    }

    /// redisson#763, redisson#5761, redisson#3891, redisson#4744, python-redis-lock#71
    fn no_wake_up_is_lost_and_no_lock_is_held_twice(flavour) {
        const THREADS: i64 = 8;
        const ROUNDS: i64 = 60;
        let server = Server::start(flavour);
        server.call("MSET sum 0 token 0");
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let mut client = server.raw();
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        let token = client.call(format!("LOCK.ACQUIRE k t{thread} 600000 BLOCK 0"));
                        // Two holders at a time would lose a step of the sum.
                        let seen = client.call("MGET sum token").to_words();
                        assert!(token.as_int() > seen.int(1));
                        client.call(("MSET", "sum", seen.int(0) + 1, "token", token.as_int()));
                        assert_eq!(client.call(format!("LOCK.RELEASE k t{thread}")), 1);
                    }
                });
            }
        });
        assert_eq!(server.call("MGET k sum").items()[1], (THREADS * ROUNDS).to_string().as_str());
        assert_nobody_waits(&server);
    }
}
