//! Waits that could not end well: circles of owners, and more waiters than there is room for.

use crate::harness::{Raw, Reply, Server, Words, on_every_server, wait_until};
use crate::waiting::{assert_held, assert_nobody_waits, waiter, waiter_in};

/// The answer to a request that would close a circle.
fn deadlock(circle: &str) -> Reply {
    Reply::Error(format!("DEADLOCK {circle}"))
}

/// The answer to a request for which a limit leaves no room.
fn queue_full(limit: &str) -> Reply {
    Reply::Error(format!("QUEUEFULL as many clients wait as {limit} allows"))
}

/// A connection to a database.
fn connect(server: &Server, database: u32) -> Raw {
    let mut client = server.raw();
    assert_eq!(client.call(format!("SELECT {database}")), "OK");
    client
}

/// The value of a setting of the module.
fn setting(server: &Server, name: &str) -> Words {
    server.call(("CONFIG", "GET", name)).to_words()
}

on_every_server! {
    fn two_owners_that_wait_for_each_other_are_a_deadlock(flavour) {
        let server = Server::start(flavour);
        let mut stream = server.replication_stream();
        for (command, round) in [("ACQUIRE", 1), ("RACQUIRE", 2)] {
            server.call("LOCK.ACQUIRE x a 600000");
            let token = server.call("LOCK.ACQUIRE y b 600000").as_int();
            let mut a = waiter(&server, format!("LOCK.{command} y a 600000 BLOCK 0"));
            let (before, mut events) = (server.snapshot(), server.events());
            stream.writes(&server);
            let mut b = server.raw();
            let circle = deadlock("b waits for x held by a, a waits for y held by b");
            for timeout in [0, 1, 600_000] {
                let reply = b.call(format!("LOCK.{command} x b 600000 BLOCK {timeout}"));
                assert_eq!(reply, circle);
            }
            // One who does not want to wait is only told that the lock is taken.
            assert_eq!(b.call(format!("LOCK.{command} x b 600000")), Reply::NilBulk);
            assert_eq!(events.so_far(), ["0 lock.deadlock x"; 3]);
            assert!(stream.writes(&server).is_empty());
            assert_eq!(server.snapshot(), before);
            assert_eq!(server.info_number("lock", "lock_deadlocks"), 3 * round);
            // The refused request waits for nothing, and the other one goes on.
            assert_eq!(server.blocked_clients(), 1);
            assert_eq!(server.call("LOCK.QUEUE x"), Reply::Array(Vec::new()));
            assert!(!a.has_reply());
            assert_eq!(b.call("LOCK.RELEASE y b"), 1);
            assert!(a.read().as_int() > token);
            // With that the circle is open, and the same request waits.
            let mut b = waiter(&server, format!("LOCK.{command} x b 600000 BLOCK 0"));
            for lock in ["y", "x"] {
                assert_eq!(server.call(("LOCK.RELEASE", lock, "a")), 1);
            }
            assert!(b.read().as_int() > token);
            assert_eq!(b.call("LOCK.RELEASE x b"), 1);
        }
        assert_nobody_waits(&server);
    }

    fn a_longer_circle_is_a_deadlock_over_databases_too(flavour) {
        let server = Server::start(flavour);
        let (mut zero, mut five, mut nine) =
            (connect(&server, 0), connect(&server, 5), connect(&server, 9));
        // The same name in each database: three locks.
        zero.call("LOCK.ACQUIRE k a 600000");
        five.call("LOCK.ACQUIRE k b 600000");
        nine.call("LOCK.ACQUIRE k c 600000");
        let mut events = server.events();
        let mut a = waiter_in(&server, 5, "LOCK.ACQUIRE k a 600000 BLOCK 0");
        let mut b = waiter_in(&server, 9, "LOCK.ACQUIRE k b 600000 BLOCK 0");
        // Others in the same queues are no part of the circle, and waiting for one is none.
        let mut d = waiter_in(&server, 9, "LOCK.ACQUIRE k d 600000 BLOCK 0");
        let mut e = waiter_in(&server, 0, "LOCK.ACQUIRE k e 600000 BLOCK 0");
        assert_eq!(
            zero.call("LOCK.ACQUIRE k c 600000 BLOCK 0"),
            deadlock("c waits for k held by a, a waits for k held by b, b waits for k held by c")
        );
        assert_eq!(events.so_far(), ["0 lock.deadlock k"]);
        assert_eq!(server.blocked_clients(), 4);
        // In the third database it is a wait for oneself.
        assert_eq!(
            nine.call("LOCK.ACQUIRE k c 600000 BLOCK 0"),
            deadlock("c waits for k held by c")
        );
        assert_eq!(events.so_far(), ["9 lock.deadlock k"]);
        for (client, owner, waiter) in [
            (&mut nine, "c", &mut b),
            (&mut five, "b", &mut a),
            (&mut zero, "a", &mut e),
        ] {
            assert_eq!(client.call(("LOCK.RELEASE", "k", owner)), 1);
            assert!(waiter.read().as_int() > 0);
        }
        assert_eq!(nine.call("LOCK.RELEASE k b"), 1);
        assert!(d.read().as_int() > 0);
        assert_nobody_waits(&server);
    }

    fn an_owner_that_waits_for_itself_is_a_deadlock(flavour) {
        let server = Server::start(flavour);
        server.call("LOCK.ACQUIRE k a 600000 REQID r");
        let mut client = server.raw();
        let circle = deadlock("a waits for k held by a");
        for request in ["LOCK.ACQUIRE k a 600000 BLOCK 0", "LOCK.ACQUIRE k a 1 REQID s BLOCK 5"] {
            assert_eq!(client.call(request), circle);
            // Where nobody waits, there is none.
            client.pipeline(["MULTI", request]);
            assert_eq!(client.call("EXEC"), Reply::Array(vec![Reply::NilBulk]));
        }
        // What is granted at once is none either: a re-entry, and a request that is sent again.
        let token = client.call("LOCK.ACQUIRE k a 600000 BLOCK 0 REQID r");
        assert_eq!(client.call("LOCK.RACQUIRE k a 600000 BLOCK 0"), token);
        assert_held(&server, "k", "a", 2);
        assert_eq!(server.info_number("lock", "lock_deadlocks"), 2);
        assert_nobody_waits(&server);
    }

    fn what_is_no_circle_is_not_refused(flavour) {
        let server = Server::start(flavour);
        for (lock, owner) in [("x", "a"), ("y", "b"), ("z", "c")] {
            server.call(("LOCK.ACQUIRE", lock, owner, 600_000));
        }
        // A chain, a second way to its end, two that want the same, and one that holds nothing.
        let mut waiting = [
            waiter(&server, "LOCK.ACQUIRE y a 600000 BLOCK 0"),
            waiter(&server, "LOCK.ACQUIRE z b 600000 BLOCK 0"),
            waiter(&server, "LOCK.ACQUIRE z a 600000 BLOCK 0"),
            waiter(&server, "LOCK.ACQUIRE x d 600000 BLOCK 0"),
            waiter(&server, "LOCK.ACQUIRE y d 600000 BLOCK 0"),
        ];
        // Who waited in vain is out of it.
        let mut c = server.raw();
        let closing = "LOCK.ACQUIRE x c 600000 BLOCK 0";
        assert_eq!(c.call(closing).error_code(), Some("DEADLOCK"));
        assert_eq!(c.call("LOCK.ACQUIRE w c 600000 BLOCK 0").error_code(), None);
        let mut brief = server.raw();
        assert!(brief.call("LOCK.ACQUIRE w a 600000 BLOCK 1").is_nil());
        // One that is gone, too: without the waits for `z` the circle is open.
        let [y, _, _, x, y2] = waiting.each_mut();
        assert!(![y, x, y2].into_iter().any(Raw::has_reply));
        for line in server.call("LOCK.QUEUE z").items() {
            let id = line.field("client-id").as_int();
            assert_eq!(server.call(("CLIENT", "KILL", "ID", id)), 1);
        }
        server.wait_for_blocked(3);
        c.send(closing);
        server.wait_for_blocked(4);
        assert!(!c.has_reply());
        // All of them are granted in the end.
        let [y, _, _, x, y2] = &mut waiting;
        for (lock, owner, next) in
            [("y", "b", y), ("y", "a", y2), ("x", "a", x), ("x", "d", &mut c)]
        {
            assert_eq!(server.call(("LOCK.RELEASE", lock, owner)), 1);
            assert!(next.read().as_int() > 0, "{lock} of {owner}");
        }
        assert_eq!(server.info_number("lock", "lock_deadlocks"), 1);
        assert_nobody_waits(&server);
    }

    fn a_hold_that_has_lapsed_is_in_no_circle(flavour) {
        let server = Server::start(flavour);
        server.call("LOCK.ACQUIRE x a 600000");
        server.call("LOCK.ACQUIRE y b 600000");
        let mut a = waiter(&server, "LOCK.ACQUIRE y a 600000 BLOCK 0");
        let mut b = server.raw();
        b.send_all(["LOCK.RENEW y b 1", "DEBUG SLEEP 0.01", "LOCK.ACQUIRE x b 600000 BLOCK 0"]);
        assert_eq!(b.read(), 1);
        assert_eq!(b.read(), "OK");
        let token = a.read().as_int();
        assert_eq!(server.call("LOCK.RELEASE x a"), 1);
        assert!(b.read().as_int() > token);
        assert_eq!(server.info_number("lock", "lock_deadlocks"), 0);
        assert_nobody_waits(&server);
    }

    fn holders_that_know_no_module_are_in_the_circle(flavour) {
        let server = Server::start(flavour);
        // Both layouts of others, with and without a lease.
        for leases in [["PERSIST x", "PERSIST y"], ["PEXPIRE x 600000", "PEXPIRE y 600000"]] {
            server.call("SET x a");
            server.call("HSET y b 2");
            server.raw().pipeline(leases);
            let mut a = waiter(&server, "LOCK.RACQUIRE y a 600000 BLOCK 0");
            for (request, circle) in [
                ("ACQUIRE x b", "b waits for x held by a, a waits for y held by b"),
                ("RACQUIRE x b", "b waits for x held by a, a waits for y held by b"),
                // Their holds cannot be entered again, so this would be a wait for oneself.
                ("RACQUIRE x a", "a waits for x held by a"),
                ("RACQUIRE y b", "b waits for y held by b"),
            ] {
                let request = format!("LOCK.{request} 600000 BLOCK 0");
                assert_eq!(server.call(&request), deadlock(circle), "{request}");
            }
            let mut c = waiter(&server, "LOCK.ACQUIRE x c 600000 BLOCK 0");
            assert_eq!(server.call("LOCK.RELEASE x a"), 1);
            assert!(c.read().as_int() > 0);
            for _ in 0..2 {
                assert!(!a.has_reply());
                assert_eq!(server.call("LOCK.RELEASE y b"), 1);
            }
            assert!(a.read().as_int() > 0);
            assert_eq!(server.call("DEL x y"), 2);
        }
        assert_nobody_waits(&server);
    }

    fn a_circle_is_named_in_printable_letters(flavour) {
        let server = Server::start(flavour);
        let long = "o".repeat(65);
        for (key, owner, key_text, owner_text) in [
            (&b"k\0\xff"[..], &b"\r\n%s"[..], r"k\x00\xff", r"\r\n%s"),
            (b"", b"a b", "", "a b"),
            (b"\"'\\", b"\t", r#"\"\'\\"#, r"\t"),
            (long.as_bytes(), long.as_bytes(), &long[..64], &long[..64]),
        ] {
            server.call(("LOCK.ACQUIRE", key, owner, 600_000));
            server.call("LOCK.ACQUIRE other b 600000");
            let request = ("LOCK.ACQUIRE", "other", owner, 600_000, "BLOCK", 0);
            let mut first = waiter(&server, request);
            let circle = deadlock(&format!(
                "b waits for {key_text} held by {owner_text}, {owner_text} waits for other held by b"
            ));
            assert_eq!(server.call(("LOCK.ACQUIRE", key, "b", 600_000, "BLOCK", 0)), circle);
            assert_eq!(server.call("LOCK.RELEASE other b"), 1);
            assert!(first.read().as_int() > 0);
            assert_eq!(server.call(("DEL", key, "other")), 2);
        }
        assert_nobody_waits(&server);
    }

    /// Neither has anything to gain by waiting: what it waits for is its own, or the other's who
    /// waits for it.
    fn two_owners_that_want_what_both_of_them_have_are_a_deadlock(flavour) {
        let server = Server::start(flavour);
        server.call("LOCK.ACQUIRE x a 600000");
        server.call("LOCK.ACQUIRE y b 600000");
        let mut witness = server.witness();
        for keys in ["x y", "y x"] {
            let reply = server.call(format!("LOCK.MACQUIRE 2 {keys} a 600000 BLOCK 0"));
            assert_eq!(reply, deadlock("a waits for x held by a"));
            // Without a wait there is none.
            let reply = server.call(format!("LOCK.MACQUIRE 2 {keys} a 600000"));
            assert_eq!(reply, Reply::NilBulk);
        }
        let (replicated, events) = witness.saw();
        assert!(replicated.is_empty(), "{replicated:?}");
        assert_eq!(events.len(), 2, "{events:?}");
        let mut a = waiter(&server, "LOCK.MACQUIRE 2 y v a 600000 BLOCK 0");
        let circle = deadlock("b waits for x held by a, a waits for y held by b");
        for keys in ["2 x w", "2 w x", "3 u x v", "1 x"] {
            let reply = server.call(format!("LOCK.MACQUIRE {keys} b 600000 BLOCK 0"));
            assert_eq!(reply, circle, "{keys}");
        }
        assert_eq!(server.info_number("lock", "lock_deadlocks"), 6);
        assert_eq!(server.call("LOCK.QUEUE w"), Reply::Array(Vec::new()));
        assert_eq!(server.call("LOCK.RELEASE y b"), 1);
        assert!(a.read().as_int() > 0);
        assert_nobody_waits(&server);
    }

    /// The reader could share the lock with those who hold it, but stands behind a writer who cannot.
    fn who_stands_behind_a_writer_waits_for_all_that_he_waits_for(flavour) {
        let server = Server::start(flavour);
        server.call("LOCK.ACQUIRE z a 600000");
        for owner in ["p", "q"] {
            server.call(format!("LOCK.ACQUIRE s {owner} 600000 LIMIT 2"));
        }
        let waiters = [
            waiter(&server, "LOCK.ACQUIRE z p 600000 BLOCK 0"),
            waiter(&server, "LOCK.ACQUIRE s r 600000 LIMIT 2 BLOCK 0"),
            waiter(&server, "LOCK.ACQUIRE s e 600000 BLOCK 0"),
        ];
        let reply = server.call("LOCK.ACQUIRE s a 600000 SHARED BLOCK 0");
        assert_eq!(reply, deadlock("a waits for s held by p, p waits for z held by a"));
        drop(waiters);
    }

    /// Both permits are held by owners who wait for the one that wants a permit, or for the asker.
    fn permits_that_are_all_stuck_are_a_deadlock_whoever_asks_last(flavour) {
        let server = Server::start(flavour);
        for owner in ["p", "q"] {
            server.call(format!("LOCK.ACQUIRE s {owner} 600000 LIMIT 2"));
        }
        server.call("LOCK.ACQUIRE z w 600000");
        let mut p = waiter(&server, "LOCK.ACQUIRE z p 600000 BLOCK 0");
        let _w = waiter(&server, "LOCK.ACQUIRE s w 600000 LIMIT 2 BLOCK 0");
        let reply = server.call("LOCK.ACQUIRE z q 600000 BLOCK 0");
        assert_eq!(reply, deadlock("q waits for z held by w, w waits for s held by q"));
        // With one of them who can go on there is none.
        assert_eq!(server.call("LOCK.RELEASE s q"), 1);
        assert_eq!(server.call("LOCK.RELEASE z w"), 1);
        assert!(p.read().as_int() > 0);
    }

    /// The lock is free, but not for the one who asks.
    fn who_stands_before_is_in_the_circle(flavour) {
        let server = Server::start(flavour);
        server.call("LOCK.ACQUIRE y h 600000");
        let mut several = waiter(&server, "LOCK.MACQUIRE 2 x y m 600000 BLOCK 0");
        let circle = deadlock("h waits for x behind m, m waits for y held by h");
        for request in [
            "LOCK.ACQUIRE x h 600000 BLOCK 0",
            "LOCK.ACQUIRE x h 600000 BLOCK 0 SHARED",
            "LOCK.RACQUIRE x h 600000 BLOCK 0",
            "LOCK.MACQUIRE 2 free x h 600000 BLOCK 0",
        ] {
            assert_eq!(server.call(request), circle, "{request}");
        }
        // Who holds nothing that the other waits for may stand behind it.
        let mut behind = waiter(&server, "LOCK.ACQUIRE x c 600000 BLOCK 0");
        let mut second = waiter(&server, "LOCK.MACQUIRE 2 z x d 600000 BLOCK 0");
        // Also from far behind.
        let reply = server.call("LOCK.ACQUIRE z h 600000 BLOCK 0");
        let circle = "h waits for z behind d, d waits for x behind m, m waits for y held by h";
        assert_eq!(reply, deadlock(circle));
        assert_eq!(server.call("LOCK.RELEASE y h"), 1);
        for (client, owner) in [(&mut several, "m"), (&mut behind, "c"), (&mut second, "d")] {
            assert!(client.read().as_int() > 0, "{owner}");
            server.call(("LOCK.MRELEASE", 3, "x", "y", "z", owner));
        }
        assert_nobody_waits(&server);
    }

    /// A client that has lost its connection asks again while the server has not noticed yet. Its
    /// first request holds nothing, and waits for nothing that the second one has.
    fn a_request_that_waits_twice_is_no_circle(flavour) {
        let server = Server::start(flavour);
        server.call("LOCK.ACQUIRE x h 600000");
        let request = |owner| format!("LOCK.MACQUIRE 2 x y {owner} 600000 BLOCK 0");
        let first = waiter(&server, request("a"));
        let mut other = waiter(&server, request("b"));
        let mut again = waiter(&server, request("a"));
        first.close();
        server.wait_for_blocked(2);
        assert_eq!(server.call("LOCK.RELEASE x h"), 1);
        assert!(other.read().as_int() > 0);
        server.call("LOCK.MRELEASE 2 x y b");
        assert!(again.read().as_int() > 0);
        assert_eq!(server.info_number("lock", "lock_deadlocks"), 0);
        assert_nobody_waits(&server);
    }

    fn those_who_share_a_lock_are_in_the_circle(flavour) {
        let server = Server::start(flavour);
        for (lock, owner, mode) in
            [("s", "r1", "SHARED"), ("s", "r2", "SHARED"), ("s", "r3", "LIMIT 9"), ("z", "w", "")]
        {
            server.call(format!("LOCK.ACQUIRE {lock} {owner} 600000 {mode}"));
        }
        for request in ["LOCK.ACQUIRE s w 600000 BLOCK 0", "LOCK.MACQUIRE 2 s v w 600000 BLOCK 0"] {
            let writer = waiter(&server, request);
            for reader in ["r1", "r2", "r3"] {
                let circle = format!("{reader} waits for z held by w, w waits for s held by {reader}");
                for mode in ["", "SHARED", "LIMIT 1"] {
                    let request = format!("LOCK.ACQUIRE z {reader} 600000 BLOCK 0 {mode}");
                    assert_eq!(server.call(request), deadlock(&circle), "{reader} {mode}");
                }
                let request = format!("LOCK.MACQUIRE 2 u z {reader} 600000 BLOCK 0");
                assert_eq!(server.call(request), deadlock(&circle), "{reader}");
            }
            writer.close();
            server.wait_for_blocked(0);
        }
        // The other way round: the writer comes last.
        let mut reader = waiter(&server, "LOCK.ACQUIRE z r2 600000 BLOCK 0 SHARED");
        let circle = deadlock("w waits for s held by r2, r2 waits for z held by w");
        assert_eq!(server.call("LOCK.ACQUIRE s w 600000 BLOCK 0"), circle);
        assert_eq!(server.call("LOCK.MACQUIRE 2 v s w 600000 BLOCK 0"), circle);
        assert_eq!(server.call("LOCK.RELEASE z w"), 1);
        assert!(reader.read().as_int() > 0);
        assert_nobody_waits(&server);
    }

    /// Both would wait for the other to give up its share, so the first one is told already.
    fn a_share_that_waits_to_be_the_only_one_is_a_deadlock(flavour) {
        let server = Server::start(flavour);
        for owner in ["r1", "r2"] {
            server.call(("LOCK.ACQUIRE", "k", owner, 600_000, "SHARED"));
        }
        for owner in ["r1", "r2"] {
            let circle = deadlock(&format!("{owner} waits for k held by {owner}"));
            for request in [
                format!("LOCK.ACQUIRE k {owner} 600000 BLOCK 0"),
                format!("LOCK.RACQUIRE k {owner} 600000 BLOCK 0"),
                format!("LOCK.MACQUIRE 2 free k {owner} 600000 BLOCK 0"),
                // Nor does it get a second one.
                format!("LOCK.ACQUIRE k {owner} 600000 BLOCK 0 SHARED"),
                format!("LOCK.ACQUIRE k {owner} 600000 BLOCK 0 LIMIT 9"),
            ] {
                assert_eq!(server.call(&request), circle, "{request}");
            }
        }
        assert_nobody_waits(&server);
    }

    /// A share whose lease has lapsed holds nobody up, although others keep its set alive.
    fn a_share_that_has_lapsed_is_in_no_circle(flavour) {
        let server = Server::start(flavour);
        server.call("LOCK.ACQUIRE z w 600000");
        server.call("LOCK.ACQUIRE s r2 600000 SHARED");
        let mut client = server.raw();
        let requests = [
            "LOCK.ACQUIRE s r1 1 SHARED",
            "DEBUG SLEEP 0.01",
            "MULTI",
            "EXEC",
            "LOCK.ACQUIRE z r1 600000 BLOCK 0",
        ];
        let mut writer = waiter(&server, "LOCK.ACQUIRE s w 600000 BLOCK 0");
        assert_eq!(server.call("LOCK.QUEUE s").items().len(), 1);
        // A reader that comes behind a writer would wait: the writer goes first.
        server.call("LOCK.RELEASE s r2");
        assert!(writer.read().as_int() > 0);
        server.call("LOCK.RELEASE s w");
        server.call("LOCK.ACQUIRE s r2 600000 SHARED");
        client.send_all(requests);
        for _ in 0..4 {
            client.read();
        }
        server.wait_for_blocked(1);
        let mut writer = waiter(&server, "LOCK.ACQUIRE s w 600000 BLOCK 0");
        assert_eq!(server.call("LOCK.RELEASE s r2"), 1);
        assert!(writer.read().as_int() > 0);
        assert_eq!(server.call("LOCK.RELEASE z w"), 1);
        assert!(client.read().as_int() > 0);
        assert_eq!(server.info_number("lock", "lock_deadlocks"), 0);
        assert_nobody_waits(&server);
    }

    /// One of the permits may become free while another holder is stuck.
    fn permits_are_a_deadlock_only_when_all_of_them_are_stuck(flavour) {
        let server = Server::start(flavour);
        let take = || {
            server.call("LOCK.ACQUIRE z a 600000");
            for owner in ["p1", "p2"] {
                assert!(server.call(("LOCK.ACQUIRE", "s", owner, 600_000, "LIMIT", 2)).as_int() > 0);
            }
        };
        let permit = "LOCK.ACQUIRE s a 600000 BLOCK 0 LIMIT 2";
        take();
        let mut p1 = waiter(&server, "LOCK.ACQUIRE z p1 600000 BLOCK 0");
        // With a lower limit, or none to share with, one is enough.
        for request in [
            "LOCK.ACQUIRE s a 600000 BLOCK 0 LIMIT 1",
            "LOCK.ACQUIRE s a 600000 BLOCK 0",
            "LOCK.MACQUIRE 2 s free a 600000 BLOCK 0",
        ] {
            let circle = deadlock("a waits for s held by p1, p1 waits for z held by a");
            assert_eq!(server.call(request), circle, "{request}");
        }
        let mut a = waiter(&server, permit);
        assert_eq!(server.call("LOCK.RELEASE s p2"), 1);
        assert!(a.read().as_int() > 0);
        for (lock, owner) in [("s", "a"), ("z", "a")] {
            assert_eq!(server.call(("LOCK.RELEASE", lock, owner)), 1);
        }
        assert!(p1.read().as_int() > 0);
        server.call("LOCK.RELEASE z p1");
        server.call("LOCK.RELEASE s p1");

        // All are stuck: with the last holder of a permit before the one who asks for another ...
        take();
        let waiting = ["p1", "p2"].map(|owner| {
            waiter(&server, format!("LOCK.ACQUIRE z {owner} 600000 BLOCK 0"))
        });
        let reply = server.call(permit);
        assert_eq!(reply.error_code(), Some("DEADLOCK"), "{reply:?}");
        assert!(reply.as_text().ends_with("waits for z held by a"), "{reply:?}");
        waiting.into_iter().for_each(Raw::close);
        server.wait_for_blocked(0);

        // ... and after it.
        let mut p1 = waiter(&server, "LOCK.ACQUIRE z p1 600000 BLOCK 0");
        let mut a = waiter(&server, permit);
        let reply = server.call("LOCK.ACQUIRE z p2 600000 BLOCK 0");
        assert_eq!(reply, deadlock("p2 waits for z held by a, a waits for s held by p2"));
        assert_eq!(server.call("LOCK.RELEASE s p2"), 1);
        assert!(a.read().as_int() > 0);
        assert_eq!(server.call("LOCK.RELEASE z a"), 1);
        assert!(p1.read().as_int() > 0);
        assert_nobody_waits(&server);
    }

    /// Who waits for those who are in a circle of their own has closed none, and waits for as long
    /// as they do.
    fn a_wait_for_a_circle_of_others_is_none(flavour) {
        let server = Server::start(flavour);
        // A circle that came about by a hand, behind the module's back.
        server.call("LOCK.ACQUIRE x a 600000");
        server.call("LOCK.ACQUIRE y c 600000");
        let mut a = waiter(&server, "LOCK.ACQUIRE y a 600000 BLOCK 0");
        let mut b = waiter(&server, "LOCK.ACQUIRE x b 600000 BLOCK 0");
        server.call("SET y b");
        let mut other = waiter(&server, "LOCK.MACQUIRE 2 x y d 600000 BLOCK 0");
        let mut third = waiter(&server, "LOCK.ACQUIRE x e 600000 BLOCK 0");
        assert!(![&mut a, &mut b, &mut other, &mut third].into_iter().any(Raw::has_reply));
        assert_eq!(server.call("DEL x"), 1);
        assert!(b.read().as_int() > 0);
        assert_eq!(server.call("DEL y"), 1);
        assert!(a.read().as_int() > 0);
        server.call("LOCK.RELEASE x b");
        server.call("LOCK.RELEASE y a");
        assert!(other.read().as_int() > 0);
        server.call("LOCK.RELEASE x d");
        assert!(third.read().as_int() > 0);
        assert_nobody_waits(&server);
    }

    fn a_circle_of_hundreds_is_found_at_once(flavour) {
        const OWNERS: usize = 200;
        let server = Server::start(flavour);
        for number in 0..OWNERS {
            assert!(server.call(format!("LOCK.ACQUIRE k{number} o{number} 600000")).as_int() > 0);
        }
        let clients: Vec<Raw> = (0..OWNERS - 1)
            .map(|number| {
                let next = number + 1;
                let request = format!("LOCK.MACQUIRE 2 f{next} k{next} o{number} 600000 BLOCK 0");
                let single = format!("LOCK.ACQUIRE k{next} o{number} 600000 BLOCK 0");
                waiter(&server, if number % 2 == 0 { request } else { single })
            })
            .collect();
        let before = server.command_stats("lock.acquire").usec;
        let reply = server.call(format!("LOCK.ACQUIRE k0 o{} 600000 BLOCK 0", OWNERS - 1));
        let took = server.command_stats("lock.acquire").usec - before;
        let text = reply.as_text();
        assert!(text.starts_with("DEADLOCK o199 waits for k0 held by o0, "), "{text}");
        assert!(text.contains(" more"), "{text}");
        assert!(text.len() < 1_000, "{text}");
        // Even of a build for tests on a machine that is busy.
        assert!(took < 1_000_000, "{took} us");
        clients.into_iter().for_each(Raw::close);
        assert_nobody_waits(&server);
    }

    /// To stand behind many takes a step for each of them, and not one for each two of them.
    fn a_long_queue_for_several_locks_is_gone_through_once(flavour) {
        const OWNERS: usize = 300;
        let server = Server::start(flavour);
        server.call("LOCK.ACQUIRE x h 600000");
        let mut clients: Vec<Raw> = (0..OWNERS)
            .map(|number| {
                let mut client = server.raw();
                client.send(format!("LOCK.MACQUIRE 2 x y o{number} 600000 BLOCK 0"));
                client
            })
            .collect();
        server.wait_for_blocked(OWNERS as u64);
        // From its end, the head is in the circle.
        let reply = server.call("LOCK.ACQUIRE y h 600000 BLOCK 0");
        assert_eq!(reply.error_code(), Some("DEADLOCK"), "{reply:?}");
        assert!(reply.as_text().starts_with("DEADLOCK h waits for y behind o"), "{reply:?}");
        assert_eq!(server.call("LOCK.RELEASE x h"), 1);
        wait_until("the first grant", || clients.iter_mut().any(Raw::has_reply));
        let answered = clients.iter_mut().map(Raw::has_reply).filter(|answered| *answered);
        assert_eq!(answered.count(), 1);
        clients.into_iter().for_each(Raw::close);
        assert_nobody_waits(&server);
    }

    fn a_full_queue_takes_nobody(flavour) {
        let server = Server::start(flavour);
        for lock in ["x", "y"] {
            server.call(("LOCK.ACQUIRE", lock, "a", 600_000));
        }
        assert_eq!(server.call("CONFIG SET lock.max-waiters-per-key 2"), "OK");
        assert_eq!(server.call("CONFIG SET lock.max-waiters 3"), "OK");
        let mut client = server.raw();
        let mut first = waiter(&server, "LOCK.ACQUIRE x b 600000 BLOCK 0");
        let mut second = waiter(&server, "LOCK.RACQUIRE x c 600000 BLOCK 0");
        let mut stream = server.replication_stream();
        for timeout in [0, 1] {
            let request = format!("LOCK.ACQUIRE x d 600000 BLOCK {timeout}");
            assert_eq!(client.call(request), queue_full("lock.max-waiters-per-key"));
        }
        assert!(stream.writes(&server).is_empty());
        // A queue of the same name in another database is another one, but not another server.
        let mut other = connect(&server, 1);
        other.call("LOCK.ACQUIRE x a 600000");
        let third = waiter_in(&server, 1, "LOCK.ACQUIRE x b 600000 BLOCK 0");
        let request = "LOCK.RACQUIRE y d 600000 BLOCK 0";
        assert_eq!(client.call(request), queue_full("lock.max-waiters"));
        assert_eq!(server.info_number("lock", "lock_queue_full"), 3);
        assert_eq!(server.info_number("lock", "lock_waiters"), 3);
        // One who does not wait needs no room: refused, granted, granted again.
        assert_eq!(client.call("LOCK.ACQUIRE x d 600000"), Reply::NilBulk);
        assert!(client.call("LOCK.RACQUIRE z d 600000 BLOCK 0").as_int() > 0);
        assert!(client.call("LOCK.RACQUIRE z d 600000 BLOCK 0").as_int() > 0);
        assert_eq!(server.call("DEL z"), 1);
        // A limit that is lowered sends nobody away, and one that is raised lets others in.
        assert_eq!(server.call("CONFIG SET lock.max-waiters 1"), "OK");
        assert_eq!(server.call("CONFIG SET lock.max-waiters-per-key 1"), "OK");
        assert_eq!(server.call("LOCK.QUEUE x").items().len(), 2);
        assert_eq!(server.call("CONFIG SET lock.max-waiters 4"), "OK");
        let fourth = waiter(&server, request);
        // One that leaves makes room for another.
        fourth.close();
        server.wait_for_blocked(3);
        let fourth = waiter(&server, request);
        assert_eq!(server.call("LOCK.RELEASE x a"), 1);
        assert!(first.read().as_int() > 0);
        let wait_for_x = "LOCK.ACQUIRE x d 600000 BLOCK 0";
        assert_eq!(client.call(wait_for_x), queue_full("lock.max-waiters-per-key"));
        assert_eq!(server.call("LOCK.RELEASE x b"), 1);
        assert!(second.read().as_int() > 0);
        let mut last = waiter(&server, wait_for_x);
        assert_eq!(server.call("LOCK.RELEASE x c"), 1);
        assert!(last.read().as_int() > 0);
        third.close();
        fourth.close();
        assert_nobody_waits(&server);
    }

    fn a_limit_of_zero_lets_nobody_wait(flavour) {
        for limit in ["max-waiters", "max-waiters-per-key"] {
            let server = Server::build(flavour).module_args(&[limit, "0"]).start();
            let name = format!("lock.{limit}");
            server.call("LOCK.ACQUIRE k a 600000");
            let request = "LOCK.ACQUIRE k b 600000 BLOCK 0";
            assert_eq!(server.call(request), queue_full(&name));
            assert_eq!(server.call("LOCK.ACQUIRE k b 600000"), Reply::NilBulk);
            assert!(server.call("LOCK.ACQUIRE free b 600000 BLOCK 0").as_int() > 0);
            assert_eq!(server.call(("CONFIG", "SET", &name, 1)), "OK");
            let mut b = waiter(&server, request);
            assert_eq!(server.call("LOCK.RELEASE k a"), 1);
            assert!(b.read().as_int() > 0);
            assert_nobody_waits(&server);
        }
    }

    fn limits_are_settings(flavour) {
        let server = Server::start(flavour);
        assert_eq!(setting(&server, "lock.max-waiters"), "lock.max-waiters 100000");
        let per_key = "lock.max-waiters-per-key";
        assert_eq!(setting(&server, per_key), "lock.max-waiters-per-key 10000");
        for name in ["lock.max-waiters", per_key] {
            for good in ["0", "1", "10000000"] {
                assert_eq!(server.call(("CONFIG", "SET", name, good)), "OK");
                assert_eq!(setting(&server, name), format!("{name} {good}").as_str());
            }
            for bad in ["-1", "10000001", "9223372036854775808", "1.5", "x", "", "1 "] {
                let reply = server.call(("CONFIG", "SET", name, bad));
                assert_eq!(reply.error_code(), Some("ERR"), "{name} {bad}");
                assert_eq!(setting(&server, name), format!("{name} 10000000").as_str());
            }
        }
        // Load arguments are the defaults, and lines of the configuration go over them.
        let server = Server::build(flavour)
            .module_args(&["MAX-WAITERS", "7", "max-waiters-per-key", "6"])
            .config("lock.max-waiters-per-key", "5")
            .start();
        assert_eq!(setting(&server, "lock.max-waiters"), "lock.max-waiters 7");
        assert_eq!(setting(&server, per_key), "lock.max-waiters-per-key 5");
        // What was set at run time is kept when it is asked for, and only then.
        assert_eq!(server.call("CONFIG SET lock.max-waiters-per-key 4"), "OK");
        let server = server.restart();
        assert_eq!(setting(&server, per_key), "lock.max-waiters-per-key 5");
        assert_eq!(server.call("CONFIG SET lock.max-waiters 3 lock.max-waiters-per-key 2"), "OK");
        assert_eq!(server.call("CONFIG REWRITE"), "OK");
        let server = server.restart();
        assert_eq!(setting(&server, "lock.max-waiters"), "lock.max-waiters 3");
        assert_eq!(setting(&server, per_key), "lock.max-waiters-per-key 2");
        server.call("LOCK.ACQUIRE k a 600000");
        let waiting = ["b", "c"].map(|owner| {
            waiter(&server, format!("LOCK.ACQUIRE k {owner} 600000 BLOCK 0"))
        });
        let reply = server.call("LOCK.ACQUIRE k d 600000 BLOCK 0");
        assert_eq!(reply, queue_full(per_key));
        waiting.into_iter().for_each(Raw::close);
        assert_nobody_waits(&server);
    }

    fn a_module_with_a_wrong_limit_is_not_loaded(flavour) {
        let range = "needs an integer from 0 to 10000000";
        for (args, reason) in [
            (&["max-waiters", "-1"][..], format!("load argument max-waiters {range}")),
            (&["max-waiters", "10000001"], format!("load argument max-waiters {range}")),
            (&["max-waiters-per-key", "x"], format!("load argument max-waiters-per-key {range}")),
            (&["max-waiters-per-key"], format!("load argument max-waiters-per-key {range}")),
            (&["max-waiter", "1"], "unknown load argument 'max-waiter'".to_owned()),
        ] {
            let log = Server::build(flavour).module_args(args).start_refused();
            assert!(log.contains(&reason), "{args:?}: {log}");
        }
        for (line, value) in [("lock.max-waiters", "-1"), ("lock.max-waiters-per-key", "10000001")] {
            let log = Server::build(flavour).config(line, value).start_refused();
            assert!(log.contains("a setting in the configuration is wrong"), "{log}");
        }
    }
}
