//! Waiting for shared locks and permits, and the watchdog over shares.
//!
//! A test that comes from a report about another lock names it as `repository#number`.

use std::iter;

use crate::harness::{Raw, Reply, Server, on_every_server, unix_millis, wait_until};
use crate::sharing::{assert_expires_with_the_last, deadline_of, holders, members, outwait, share};
use crate::waiters::{LONG, clear, nobody_waits, queue, unload, with_time_enough};

/// A client that waits for `k` as `owner`, in a mode, for as long as it takes.
fn waiter(server: &Server, owner: &str, mode: &str) -> Raw {
    let mut client = server.raw();
    wait_in(server, &mut client, owner, mode);
    client
}

/// Sends `client` into the queue of `k`, with options that may have a mode.
fn wait_in(server: &Server, client: &mut Raw, owner: &str, options: &str) {
    let before = server.blocked_clients();
    client.send(format!("LOCK.ACQUIRE k {owner} {LONG} BLOCK 0 {options}"));
    server.wait_for_blocked(before + 1);
}

/// Reads the grant of a share of `k` to `client`, and returns its token.
fn granted(server: &Server, client: &mut Raw, owner: &str) -> i64 {
    let token = client.read().as_int();
    let members = members(server, "k");
    let own = members.get(format!("t:{owner}").as_bytes());
    assert_eq!(own, Some(&-token), "{owner}, {members:?}");
    // The lease counts from the grant and not from the request.
    assert_eq!(
        members[format!("o:{owner}").as_bytes()],
        token / 1_000 + LONG
    );
    assert_expires_with_the_last(server);
    token
}

/// Releases the share or the lock of `owner`.
fn release(server: &Server, owner: &str) {
    assert_eq!(server.call(("LOCK.RELEASE", "k", owner)), 1, "{owner}");
}

/// Makes sure that nothing is left of the lock and of those who waited, and unloads the module.
fn nothing_is_left(server: &Server) {
    assert_eq!(server.dbsize(), 0);
    nobody_waits(server);
    unload(server);
}

/// How many watches there are.
fn watchdogs(server: &Server) -> u64 {
    server.info_number("lock", "lock_watchdogs")
}

on_every_server! {
    fn a_writer_is_granted_after_the_last_reader_and_no_reader_overtakes_it(flavour) {
        let server = Server::start(flavour);
        let mut last = ["a", "b", "c"].map(|owner| share(&server, owner))[2];
        let mut writer = waiter(&server, "w", "");
        // Who comes now stands behind it, or goes away.
        for mode in ["SHARED", "LIMIT 9"] {
            assert!(server.call(format!("LOCK.ACQUIRE k d 1 {mode}")).is_nil());
        }
        let mut later = ["d", "e"].map(|owner| (owner, waiter(&server, owner, "SHARED")));
        for owner in ["b", "a"] {
            release(&server, owner);
            assert!(!writer.has_reply(), "while one reader is left");
            assert!(server.call("LOCK.ACQUIRE k f 1 SHARED").is_nil());
        }
        release(&server, "c");
        let token = writer.read().as_int();
        assert!(token > last);
        assert_eq!(holders(&server, "k"), [b"w"]);
        assert_eq!(server.call("LOCK.INFO k").field("mode"), &Reply::bulk("exclusive"));
        assert_eq!(queue(&server), ["d", "e"]);
        last = token;
        // The readers at the head are granted together.
        release(&server, "w");
        for (owner, client) in &mut later {
            let token = granted(&server, client, owner);
            assert!(token > last, "each has a token of its own");
            last = token;
        }
        assert_eq!(holders(&server, "k"), [b"d", b"e"]);
        for owner in ["d", "e"] {
            release(&server, owner);
        }
        nothing_is_left(&server);
    }

    fn readers_at_the_head_are_granted_up_to_the_next_writer(flavour) {
        let server = Server::start(flavour);
        server.call(("LOCK.ACQUIRE", "k", "a", LONG));
        let queued = [
            ("b", "SHARED"), ("c", "LIMIT 2"), ("d", "SHARED"), ("w", ""), ("e", "SHARED"),
            ("v", ""), ("f", "LIMIT 1"), ("g", "LIMIT 1"), ("h", "SHARED"),
        ];
        let mut clients = queued.map(|(owner, mode)| (owner, waiter(&server, owner, mode)));
        // Who is released, and who is granted by that.
        let steps: [(&str, &[&str]); 10] = [
            ("a", &["b", "c", "d"]), ("c", &[]), ("b", &[]), ("d", &["w"]), ("w", &["e"]),
            ("e", &["v"]), ("v", &["f"]), ("f", &["g", "h"]), ("h", &[]), ("g", &[]),
        ];
        let mut waiting: Vec<&str> = queued.map(|(owner, _)| owner).into();
        for (holder, next) in steps {
            release(&server, holder);
            for owner in next {
                let (_, client) = clients.iter_mut().find(|(other, _)| other == owner).unwrap();
                assert!(client.read().as_int() > 0, "{owner} after {holder}");
            }
            waiting.drain(..next.len());
            assert_eq!(queue(&server), waiting, "after {holder}");
        }
        nothing_is_left(&server);
    }

    fn a_queue_tells_in_which_mode_each_waits(flavour) {
        let server = Server::start(flavour);
        share(&server, "a");
        let modes =
            [("", "exclusive"), ("SHARED", "shared"), ("LIMIT 7", "limit"), ("LIMIT 1", "limit")];
        let clients = modes.map(|(mode, _)| waiter(&server, "w", mode));
        let mut resp3 = server.raw_resp3();
        for (connection, is_map) in [(&mut resp3, true), (&mut server.raw(), false)] {
            let lines = connection.call("LOCK.QUEUE k");
            assert_eq!(lines.items().len(), clients.len());
            for (line, (mode, name)) in lines.items().iter().zip(modes) {
                assert_eq!(matches!(line, Reply::Map(_)), is_map);
                assert_eq!(line.field("owner"), &Reply::bulk("w"));
                assert_eq!(line.field("mode"), &Reply::bulk(name), "{mode}");
                let limit = line.field("limit");
                match mode.strip_prefix("LIMIT ") {
                    Some(number) => assert_eq!(limit, number.parse::<i64>().unwrap()),
                    None => assert!(limit.is_nil(), "{mode}"),
                }
            }
        }
        assert_eq!(server.call("LOCK.INFO k").field("waiters"), 4);
        assert_eq!(server.info_number("lock", "lock_waiters"), 4);
        assert_eq!(server.info_number("lock", "lock_contended_keys"), 1);
        clear(&server);
        clients.into_iter().for_each(Raw::wait_until_closed);
        nothing_is_left(&server);
    }

    /// Whoever stood behind a head that leaves does not wait for anything to happen to the lock.
    fn those_behind_a_head_that_leaves_are_granted_at_once(flavour) {
        let server = Server::start(flavour);
        for way in ["TIMEOUT", "CLIENT UNBLOCK", "CLIENT UNBLOCK ERROR", "CLIENT KILL", "HANG UP"] {
            for (mode, held) in [("", 1), ("LIMIT 1", 1), ("LIMIT 2", 2)] {
                with_time_enough(|time| {
                    server.call("DEL k");
                    for owner in ["a", "b"].into_iter().take(held) {
                        share(&server, owner);
                    }
                    let mut head = server.raw();
                    let id = head.id();
                    let mut readers = Vec::from([(); 3].map(|()| server.raw()));
                    let timeout = if way == "TIMEOUT" { time } else { 0 };
                    head.send(format!("LOCK.ACQUIRE k w {LONG} BLOCK {timeout} {mode}"));
                    wait_until("the head to wait", || queue(&server) == ["w"] || head.has_reply());
                    let rest = [("c", "SHARED"), ("d", "LIMIT 4"), ("v", "")];
                    for (client, (owner, mode)) in readers.iter_mut().zip(rest) {
                        client.send(format!("LOCK.ACQUIRE k {owner} {LONG} BLOCK 0 {mode}"));
                    }
                    wait_until("all to wait", || {
                        queue(&server).last().is_some_and(|last| last == "v")
                    });
                    let was_in_time = queue(&server) == ["w", "c", "d", "v"];
                    if !was_in_time {
                        assert_eq!(way, "TIMEOUT");
                    }
                    match way {
                        "TIMEOUT" => assert!(head.read().is_nil()),
                        "CLIENT UNBLOCK" => {
                            assert_eq!(server.call(("CLIENT", "UNBLOCK", id)), 1);
                            assert!(head.read().is_nil());
                        }
                        "CLIENT UNBLOCK ERROR" => {
                            assert_eq!(server.call(("CLIENT", "UNBLOCK", id, "ERROR")), 1);
                            assert_eq!(head.read().error_code(), Some("UNBLOCKED"));
                        }
                        "CLIENT KILL" => {
                            assert_eq!(server.call(("CLIENT", "KILL", "ID", id)), 1);
                            head.wait_until_closed();
                        }
                        _ => head.close(),
                    }
                    for (client, (owner, _)) in readers.iter_mut().zip(rest).take(2) {
                        granted(&server, client, owner);
                    }
                    assert_eq!(queue(&server), ["v"], "{way}, {mode}");
                    assert!(!readers[2].has_reply());
                    assert_eq!(holders(&server, "k").len(), held + 2);
                    readers.pop().unwrap().close();
                    server.wait_for_blocked(0);
                    was_in_time
                });
            }
        }
        server.call("DEL k");
        nothing_is_left(&server);
    }

    /// redisson#2045, redisson#2444
    fn a_permit_is_handed_over_whatever_frees_it(flavour) {
        let server = Server::start(flavour);
        for (way, commands, freed) in [
            ("release", "LOCK.RELEASE k a", 1),
            ("lapse", "LOCK.RENEW k a 20", 1),
            ("shorter lease", "LOCK.RENEW k b 1", 1),
            ("deleted", "DEL k", 2),
            ("unlinked", "UNLINK k", 2),
            ("shorter by hand", "PEXPIRE k 20", 2),
            ("over by hand", "PEXPIREAT k 1", 2),
            ("renamed", "RENAME k elsewhere", 2),
            ("moved", "MOVE k 1", 2),
            ("flushed", "FLUSHALL", 2),
            ("swapped", "SWAPDB 0 1", 2),
        ] {
            let tokens = [share(&server, "a"), share(&server, "b")];
            let mut waiting =
                ["c", "d", "e"].map(|owner| (owner, waiter(&server, owner, "LIMIT 2")));
            // On Valkey 8.1 a MOVE leaves the connection in the other database when a module
            // listens to events (valkey#4024).
            assert!(server.raw().call(commands) != 0, "{way}");
            for (owner, client) in waiting.iter_mut().take(freed) {
                assert!(granted(&server, client, owner) > tokens[1], "{way}");
            }
            assert_eq!(queue(&server), ["c", "d", "e"][freed..], "{way}");
            assert_eq!(holders(&server, "k").len(), 2, "{way}");
            drop(waiting);
            server.wait_for_blocked(0);
            server.call("FLUSHALL");
        }
        nothing_is_left(&server);
    }

    /// The set is a plain key, and whoever mends it by hand need not know of those who wait.
    fn a_permit_is_handed_over_when_somebody_takes_it_out_by_hand(flavour) {
        let server = Server::start(flavour);
        for (commands, freed) in [
            ("ZREM k o:a", 1),
            ("ZREM k o:a t:a", 1),
            ("ZREM k o:a o:b", 2),
            ("ZADD k XX 1 o:b", 1),
            ("ZINCRBY k -200000 o:b", 1),
            ("ZREMRANGEBYSCORE k (0 +inf", 2),
            ("ZPOPMAX k 1", 1),
        ] {
            share(&server, "a");
            share(&server, "b");
            let mut waiting =
                ["c", "d", "e"].map(|owner| (owner, waiter(&server, owner, "LIMIT 2")));
            server.call(commands);
            for (owner, client) in waiting.iter_mut().take(freed) {
                granted(&server, client, owner);
            }
            assert_eq!(queue(&server), ["c", "d", "e"][freed..], "{commands}");
            assert_eq!(holders(&server, "k").len(), 2, "{commands}");
            clear(&server);
        }
        // Without the mark it is no lock any more.
        share(&server, "a");
        let mut client = waiter(&server, "b", "LIMIT 1");
        server.call("ZREM k lk1s");
        assert_eq!(client.read().error_code(), Some("WRONGTYPE"));
        server.call("DEL k");
        nothing_is_left(&server);
    }

    fn a_permit_that_lapses_is_handed_over_in_any_database(flavour) {
        let server = Server::start(flavour);
        for db in [0, 3, 15] {
            let mut holder = server.raw();
            holder.call(("SELECT", db));
            holder.call("LOCK.ACQUIRE k a 100000 LIMIT 2");
            holder.call("LOCK.ACQUIRE k b 20 LIMIT 2");
            let mut client = server.raw();
            client.call(("SELECT", db));
            let token = client.call("LOCK.ACQUIRE k c 100000 LIMIT 2 BLOCK 0").as_int();
            assert_eq!(holder.call("ZSCORE k t:c"), format!("-{token}").as_str());
            assert!(holder.call("LOCK.ACQUIRE k d 1 LIMIT 2").is_nil());
            let count = holder.call("ZCARD k");
            assert_eq!(count, 5);
        }
        assert_eq!(server.info_number("lock", "lock_expiries_with_waiters"), 3);
        server.call("FLUSHALL");
        nothing_is_left(&server);
    }

    /// The key has no TTL then, and each share goes on having its deadline.
    fn shares_lapse_in_a_key_that_was_made_to_persist(flavour) {
        let server = Server::start(flavour);
        for mode in ["", "LIMIT 1", "SHARED"] {
            let writer = (mode == "SHARED").then(|| {
                server.call("LOCK.ACQUIRE k x 40 SHARED");
                waiter(&server, "w", "")
            });
            server.raw().pipeline(["LOCK.ACQUIRE k a 40 SHARED", "LOCK.ACQUIRE k b 20 SHARED"]);
            let mut client = waiter(&server, "c", mode);
            server.call("PERSIST k");
            if let Some(mut writer) = writer {
                assert!(writer.read().as_int() > 0);
                release(&server, "w");
            }
            assert!(client.read().as_int() > 0, "{mode}");
            assert_eq!(holders(&server, "k"), [b"c"], "{mode}");
            release(&server, "c");
            assert_eq!(server.dbsize(), 0, "{mode}");
        }
        nothing_is_left(&server);
    }

    fn a_renewal_keeps_those_who_wait_waiting(flavour) {
        let server = Server::start(flavour);
        let mut client = server.raw();
        client.call("LOCK.ACQUIRE k a 60000 LIMIT 1");
        let mut waiting = waiter(&server, "b", "LIMIT 1");
        let replies = client.pipeline(["LOCK.RENEW k a 30", "LOCK.RENEW k a 100000", "TIME"]);
        assert_eq!(replies[..2], [Reply::Int(1), Reply::Int(1)]);
        outwait(40);
        assert_eq!(server.call("PING"), "PONG");
        assert!(!waiting.has_reply());
        assert_eq!(queue(&server), ["b"]);
        // The lease that it waits for is the shortest.
        client.call("LOCK.RENEW k a 20");
        let deadline = deadline_of(&server, "a");
        let token = waiting.read().as_int();
        assert!(token / 1_000 >= deadline, "{token}, {deadline}");
        release(&server, "b");
        nothing_is_left(&server);
    }

    fn two_copies_of_a_request_that_wait_have_one_share(flavour) {
        let server = Server::start(flavour);
        server.call(("LOCK.ACQUIRE", "k", "x", LONG));
        let mode = "LIMIT 2 REQID r";
        let (mut first, mut second) = (waiter(&server, "a", mode), waiter(&server, "a", mode));
        let mut other = waiter(&server, "b", "LIMIT 2");
        let mut third = waiter(&server, "a", mode);
        assert_eq!(queue(&server), ["a", "a", "b", "a"]);
        release(&server, "x");
        let token = granted(&server, &mut first, "a");
        assert_eq!(second.read(), token);
        assert_eq!(third.read(), token);
        assert!(granted(&server, &mut other, "b") > token);
        assert_eq!(holders(&server, "k"), [b"a", b"b"]);
        // And so has one that comes when they were answered.
        assert_eq!(server.call("LOCK.ACQUIRE k a 1 SHARED REQID r"), token);
        assert_eq!(members(&server, "k").len(), 6);
        release(&server, "a");
        assert_eq!(server.call("LOCK.RELEASE k a"), 0);
        release(&server, "b");
        nothing_is_left(&server);
    }

    /// The copies behind others do not jump the queue for a place of their own.
    fn two_requests_of_one_owner_have_one_share_after_the_other(flavour) {
        let server = Server::start(flavour);
        server.call(("LOCK.ACQUIRE", "k", "x", LONG));
        let mut first = waiter(&server, "a", "SHARED REQID r");
        let mut second = waiter(&server, "a", "SHARED REQID s");
        release(&server, "x");
        let token = granted(&server, &mut first, "a");
        assert!(!second.has_reply());
        assert_eq!(queue(&server), ["a"]);
        release(&server, "a");
        assert!(granted(&server, &mut second, "a") > token);
        release(&server, "a");
        nothing_is_left(&server);
    }

    fn a_share_for_a_client_that_is_killed_in_the_same_turn_goes_to_the_next(flavour) {
        let server = Server::start(flavour);
        for mode in ["SHARED", "LIMIT 2", "LIMIT 2 REQID r"] {
            for next_mode in ["", "SHARED", "LIMIT 2"] {
                server.call(("LOCK.ACQUIRE", "k", "x", LONG));
                let mut gone = server.raw();
                let id = gone.id();
                wait_in(&server, &mut gone, "a", mode);
                let mut kept = waiter(&server, "b", "SHARED");
                let mut next = waiter(&server, "c", next_mode);
                let kill = format!("CLIENT KILL ID {id}");
                let replies = server.raw().pipeline(["LOCK.RELEASE k x", &kill]);
                assert_eq!(replies, [Reply::Int(1), Reply::Int(1)]);
                gone.wait_until_closed();
                granted(&server, &mut kept, "b");
                if next_mode.is_empty() {
                    assert!(!next.has_reply());
                    release(&server, "b");
                    assert!(next.read().as_int() > 0);
                } else {
                    granted(&server, &mut next, "c");
                    release(&server, "b");
                }
                assert_eq!(holders(&server, "k"), [b"c"], "{mode}, {next_mode}");
                release(&server, "c");
                assert_eq!(server.dbsize(), 0);
            }
        }
        assert_eq!(server.info_number("lock", "lock_unclaimed_grants"), 9);
        nothing_is_left(&server);
    }

    /// A share goes back only when all who were told of it, or were to be, are gone.
    fn a_share_of_two_copies_goes_back_when_both_are_gone(flavour) {
        let server = Server::start(flavour);
        for both in [false, true] {
            server.call(("LOCK.ACQUIRE", "k", "x", LONG));
            let (mut first, mut second) = (server.raw(), server.raw());
            let ids = [first.id(), second.id()];
            wait_in(&server, &mut first, "a", "SHARED REQID r");
            wait_in(&server, &mut second, "a", "SHARED REQID r");
            let kills = ids.map(|id| format!("CLIENT KILL ID {id}"));
            let count = if both { 2 } else { 1 };
            let commands = iter::once("LOCK.RELEASE k x").chain(kills.iter().map(String::as_str));
            let replies = server.raw().pipeline(commands.take(1 + count));
            assert!(replies.iter().all(|reply| *reply == 1), "{replies:?}");
            first.wait_until_closed();
            if both {
                second.wait_until_closed();
            } else {
                granted(&server, &mut second, "a");
                release(&server, "a");
            }
            wait_until("the share to go back", || server.dbsize() == 0);
        }
        nothing_is_left(&server);
    }

    /// The release of one of several holders is no business of those who wait for the others.
    fn an_unclaimed_share_leaves_those_of_others(flavour) {
        let server = Server::start(flavour);
        share(&server, "a");
        share(&server, "b");
        let mut gone = server.raw();
        let id = gone.id();
        wait_in(&server, &mut gone, "c", "LIMIT 2");
        let kill = format!("CLIENT KILL ID {id}");
        server.raw().pipeline(["LOCK.RELEASE k a", &kill]);
        gone.wait_until_closed();
        wait_until("the share to go back", || holders(&server, "k") == [b"b"]);
        assert_eq!(members(&server, "k").len(), 3);
        assert_expires_with_the_last(&server);
        release(&server, "b");
        nothing_is_left(&server);
    }

    fn an_upgrade_behind_others_is_a_deadlock_and_the_queue_goes_on(flavour) {
        let server = Server::start(flavour);
        share(&server, "a");
        share(&server, "b");
        let mut writer = waiter(&server, "w", "");
        let reply = server.call("LOCK.ACQUIRE k a 1000 BLOCK 0");
        assert_eq!(reply.error_code(), Some("DEADLOCK"), "{reply:?}");
        assert_eq!(queue(&server), ["w"]);
        release(&server, "a");
        release(&server, "b");
        assert!(writer.read().as_int() > 0);
        release(&server, "w");
        nothing_is_left(&server);
    }

    fn limits_of_the_queue_hold_for_shares(flavour) {
        let server = Server::start(flavour);
        server.call("CONFIG SET lock.max-waiters-per-key 1");
        share(&server, "a");
        let writer = waiter(&server, "w", "");
        for mode in ["SHARED", "LIMIT 9"] {
            let reply = server.call(format!("LOCK.ACQUIRE k b 1000 BLOCK 0 {mode}"));
            assert_eq!(reply.error_code(), Some("QUEUEFULL"), "{mode}: {reply:?}");
        }
        writer.close();
        server.wait_for_blocked(0);
        release(&server, "a");
        nothing_is_left(&server);
    }

    /// Every waiter's place is another: it is the shares that are counted, and not the queue.
    fn many_readers_and_writers_all_have_their_turn(flavour) {
        let server = Server::start(flavour);
        let owners: Vec<String> = (0..40).map(|number| number.to_string()).collect();
        let mode = |number: usize| ["SHARED", "LIMIT 3", "", "LIMIT 1"][number % 4];
        share(&server, "x");
        let mut clients: Vec<Raw> = Vec::new();
        for (number, owner) in owners.iter().enumerate() {
            let mode = if number == 0 { "" } else { mode(number) };
            clients.push(waiter(&server, owner, mode));
        }
        release(&server, "x");
        let mut last = 0;
        for (owner, client) in owners.iter().zip(&mut clients) {
            let mut releases = 0;
            while !client.has_reply() {
                let held = holders(&server, "k");
                let first = String::from_utf8(held[0].clone()).unwrap();
                release(&server, &first);
                releases += 1;
                assert!(releases < 10, "{owner} is not granted, {held:?}");
            }
            let token = client.read().as_int();
            assert!(token > last, "in the order of the queue");
            last = token;
        }
        for owner in holders(&server, "k") {
            release(&server, &String::from_utf8(owner).unwrap());
        }
        nothing_is_left(&server);
    }

    /// redisson#1966 for readers: each share has a watch of its own.
    fn each_watched_share_is_renewed_until_its_own_end(flavour) {
        const TTL: i64 = 1_000;
        let server = Server::start(flavour);
        let mut holder = server.raw();
        let acquire = |owner: &str| format!("LOCK.ACQUIRE k {owner} {TTL} SHARED WATCHDOG");
        let tokens = ["a", "b"].map(|owner| holder.call(acquire(owner)).as_int());
        let mut other = server.raw();
        other.call(acquire("c"));
        assert_eq!(watchdogs(&server), 3);
        let renewal = |owner: &str| {
            let before = deadline_of(&server, owner);
            wait_until("a renewal", || deadline_of(&server, owner) > before);
        };
        ["a", "b", "c"].into_iter().for_each(renewal);
        assert_expires_with_the_last(&server);
        assert_eq!(server.call(("LOCK.RELEASE", "k", "a", "TOKEN", tokens[0])), 1);
        assert_eq!(watchdogs(&server), 2);
        ["b", "c"].into_iter().for_each(renewal);
        // One that is not watched lapses beside them, and one that is renewed early stays watched.
        server.call("LOCK.ACQUIRE k d 1 SHARED");
        assert_eq!(server.call(("LOCK.RENEW", "k", "b", TTL / 2)), 1);
        renewal("b");
        assert_eq!(holders(&server, "k"), [b"b", b"c"]);
        holder.close();
        wait_until("the watch to end", || watchdogs(&server) == 1);
        wait_until("the lease to run out", || holders(&server, "k") == [b"c"]);
        renewal("c");
        assert_eq!(server.call("LOCK.RELEASE k c"), 1);
        assert_eq!(watchdogs(&server), 0);
        assert_eq!(server.info_number("lock", "lock_lost"), 0);
        nothing_is_left(&server);
    }

    fn a_watched_share_that_is_taken_out_by_hand_is_lost(flavour) {
        let server = Server::start(flavour);
        let mut events = server.events();
        let mut holder = server.raw();
        for (owner, command) in [
            ("a", "ZREM k o:a"), ("b", "ZREM k o:b t:b"), ("c", "ZADD k -5 t:c"), ("d", "DEL k"),
        ] {
            let request = format!("LOCK.ACQUIRE k {owner} 300 SHARED WATCHDOG");
            assert!(holder.call(request).as_int() > 0);
            share(&server, "z");
            let lost = server.info_number("lock", "lock_lost");
            server.call(command);
            wait_until("the loss to be found", || {
                server.info_number("lock", "lock_lost") == lost + 1
            });
            assert_eq!(watchdogs(&server), 0, "{command}");
            server.call("DEL k");
        }
        let seen = events.so_far();
        let lost = seen.iter().filter(|event| event.matches("0 lock.lost k"));
        assert_eq!(lost.count(), 4);
        nothing_is_left(&server);
    }

    fn a_share_that_was_waited_for_is_watched_from_its_grant(flavour) {
        let server = Server::start(flavour);
        server.call(("LOCK.ACQUIRE", "k", "x", LONG));
        let mut clients = ["a", "b"].map(|owner| {
            let mut client = server.raw();
            client.send(format!("LOCK.ACQUIRE k {owner} 1000 SHARED BLOCK 0 WATCHDOG"));
            client
        });
        server.wait_for_blocked(2);
        assert_eq!(watchdogs(&server), 0);
        release(&server, "x");
        for client in &mut clients {
            assert!(client.read().as_int() > 0);
        }
        assert_eq!(watchdogs(&server), 2);
        let before = ["a", "b"].map(|owner| deadline_of(&server, owner));
        wait_until("both to be renewed", || {
            let mut owners = ["a", "b"].iter().zip(before);
            owners.all(|(owner, before)| deadline_of(&server, owner) > before)
        });
        let begun = unix_millis();
        clients.into_iter().for_each(Raw::close);
        wait_until("both leases to run out", || server.dbsize() == 0);
        assert!(unix_millis() >= begun);
        assert_eq!(watchdogs(&server), 0);
        nothing_is_left(&server);
    }

    fn all_who_wait_for_shares_leave_a_server_that_becomes_a_replica(flavour) {
        let server = Server::start(flavour);
        share(&server, "a");
        let waiting = [("w", ""), ("b", "SHARED"), ("c", "LIMIT 2")];
        let clients = waiting.map(|(owner, mode)| waiter(&server, owner, mode));
        let stored = server.snapshot();
        // Nobody listens there.
        assert_eq!(server.call("REPLICAOF 127.0.0.1 1"), "OK");
        for mut client in clients {
            assert_eq!(client.read().error_code(), Some("UNBLOCKED"));
        }
        assert_eq!(server.snapshot(), stored);
        nobody_waits(&server);
        assert_eq!(holders(&server, "k"), [b"a"]);
        assert_eq!(server.call("LOCK.ACQUIRE k b 1 SHARED").error_code(), Some("READONLY"));
    }

    fn who_waits_for_what_is_no_lock_any_more_is_told(flavour) {
        let server = Server::start(flavour);
        for command in ["RENAME board k", "COPY board k REPLACE"] {
            server.call("ZADD board 10 anna");
            share(&server, "a");
            let clients = [waiter(&server, "w", ""), waiter(&server, "b", "SHARED")];
            server.call(command);
            for mut client in clients {
                assert_eq!(client.read().error_code(), Some("WRONGTYPE"), "{command}");
            }
            assert_eq!(server.call("ZRANGE k 0 -1").items(), [Reply::bulk("anna")]);
            server.call("FLUSHALL");
        }
        nothing_is_left(&server);
    }
}
