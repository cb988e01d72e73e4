//! What the lock commands mean: grants and refusals, re-entry, leases, tokens, and the answers.
//!
//! A test that comes from a report about another lock names it as `repository#number`.

use std::collections::HashMap;

use uuid::{Uuid, Version};

use crate::harness::{Reply, Server, on_every_server, unix_micros, unix_millis, wait_until};

/// A record as it is stored.
fn record(token: i64, holds: u32, owner: &str) -> Reply {
    Reply::bulk(format!("lk1:{token}:{holds}:{owner}"))
}

/// Makes a hold of `o` and returns its token.
fn acquire(server: &Server, key: &str) -> i64 {
    server.call(("LOCK.ACQUIRE", key, "o", 100_000)).as_int()
}

/// Waits until a lease of one millisecond that began before this call is over.
fn outwait_a_millisecond() {
    let begun = unix_millis();
    wait_until("a lease of 1 ms to lapse", || unix_millis() > begun + 1);
}

/// Names and owners that other locks have tripped over.
const ODD_NAMES: [&[u8]; 16] = [
    b"a{b",
    b"a}b{",
    b"{}",
    b"{a}{b}",
    b" ",
    b"a b\tc",
    b"a\r\nb",
    b"\0",
    b"a\0b",
    b"\xff",
    b"\xc3\x28\xfe",
    b"%s%n%s%n%s%n",
    b"%d:%.9999999s",
    b"lk1:5:1:o",
    b":1:",
    &[b'x'; 512],
];

on_every_server! {
    fn a_free_lock_is_granted_with_a_lease_and_a_token(flavour) {
        let server = Server::start(flavour);
        for command in ["LOCK.ACQUIRE k o 100000", "LOCK.RACQUIRE k o 100000"] {
            let before = unix_micros();
            let token = server.leased("k", 100_000, || server.call(command)).as_int();
            assert!((before..=unix_micros()).contains(&token), "{command}: {token}");
            assert_eq!(server.call("GET k"), record(token, 1, "o"), "{command}");
            assert_eq!(server.call("LOCK.RELEASE k o"), 1);
        }
    }

    fn the_longest_times_are_no_trouble(flavour) {
        let server = Server::start(flavour);
        let longest: i64 = 9_007_199_254_740_991;
        let options = format!("BLOCK {longest} WATCHDOG");
        let acquire = |owner: &str| format!("LOCK.ACQUIRE k {owner} {longest} {options}");
        server.leased("k", longest, || assert!(server.call(acquire("o")).as_int() > 0));
        let renew = format!("LOCK.RENEW k o {longest} WATCHDOG");
        server.leased("k", longest, || assert_eq!(server.call(renew), 1));
        let mut waiter = server.raw();
        waiter.send(acquire("x"));
        server.wait_for_blocked(1);
        server.leased("k", longest, || {
            assert_eq!(server.call("LOCK.RELEASE k o"), 1);
            assert!(waiter.read().as_int() > 0);
        });
        let server = server.restart();
        assert_eq!(server.call("LOCK.INFO k").field("state"), "held");
        assert_eq!(server.call("LOCK.RELEASE k x"), 1);
    }

    /// A plain acquire is `SET NX`: the holder is refused like anybody else.
    fn a_held_lock_is_refused_and_left_as_it_is(flavour) {
        let server = Server::start(flavour);
        acquire(&server, "k");
        let before = server.snapshot();
        for command in [
            "LOCK.ACQUIRE k other 200000",
            "LOCK.ACQUIRE k other 1",
            "LOCK.ACQUIRE k other 200000 REQID r",
            "LOCK.ACQUIRE k O 200000",
            "LOCK.ACQUIRE k oo 200000",
            "LOCK.ACQUIRE k o 200000",
            "LOCK.ACQUIRE k o 200000 REQID r",
            "LOCK.ACQUIRE k * 200000",
            "LOCK.RACQUIRE k other 200000",
            "LOCK.RACQUIRE k other 200000 REQID r",
            "LOCK.RACQUIRE k * 200000",
        ] {
            assert_eq!(server.call(command), Reply::NilBulk, "{command}");
            assert_eq!(server.raw_resp3().call(command), Reply::Null, "{command}");
            assert_eq!(server.snapshot(), before, "{command}");
        }
    }

    fn locks_of_other_keys_and_databases_are_other_locks(flavour) {
        let server = Server::start(flavour);
        let mut other = server.raw();
        other.call("SELECT 1");
        let tokens = [
            acquire(&server, "k"),
            acquire(&server, "k2"),
            other.call("LOCK.ACQUIRE k o2 100000").as_int(),
        ];
        assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
        assert_eq!(other.call("LOCK.RELEASE k o"), 0);
        assert_eq!(other.call("LOCK.RELEASE k o2"), 1);
        assert_eq!(server.call("GET k"), record(tokens[0], 1, "o"));
    }

    fn the_server_makes_an_owner_for_an_asterisk(flavour) {
        let server = Server::start(flavour);
        let mut last = String::new();
        for command in ["LOCK.ACQUIRE k * 100000", "LOCK.RACQUIRE k * 100000"] {
            let reply = server.leased("k", 100_000, || server.call(command));
            let [token, owner] = reply.items() else {
                panic!("{command}: {reply:?}");
            };
            let (token, owner) = (token.as_int(), owner.as_text());
            let uuid = Uuid::try_parse(owner).unwrap();
            assert_eq!(uuid.get_version(), Some(Version::Random), "{owner}");
            assert_eq!(uuid.get_variant(), uuid::Variant::RFC4122, "{owner}");
            assert_eq!(uuid.hyphenated().to_string(), owner, "in the usual spelling");
            assert_ne!(owner, last, "a new one for every acquire");
            assert_eq!(server.call("GET k"), record(token, 1, owner));
            // To release and to renew, an asterisk is an owner like any other.
            assert_eq!(server.call("LOCK.RELEASE k *"), 0);
            assert_eq!(server.call("LOCK.RENEW k * 1"), 0);
            assert_eq!(server.call(("LOCK.RACQUIRE", "k", owner, 1)), token);
            assert_eq!(server.call(("LOCK.RELEASE", "k", owner)), 1);
            assert_eq!(server.call(("LOCK.RELEASE", "k", owner)), 1);
            owner.clone_into(&mut last);
        }
        assert_eq!(server.dbsize(), 0);
    }

    /// Redisson's fenced lock counts its token up on re-entry, so that the writes of the outer
    /// scope are rejected.
    fn a_re_entry_keeps_the_token(flavour) {
        let server = Server::start(flavour);
        let token = acquire(&server, "k");
        for holds in 2..=4 {
            assert_eq!(server.call("LOCK.RACQUIRE k o 100000"), token);
            assert_eq!(server.call("GET k"), record(token, holds, "o"));
            assert_eq!(server.call("LOCK.ACQUIRE k o 100000"), Reply::NilBulk);
        }
    }

    fn a_re_entry_lengthens_the_lease_and_never_shortens_it(flavour) {
        let server = Server::start(flavour);
        server.leased("k", 100_000, || server.call("LOCK.RACQUIRE k o 100000"));
        let outer = server.deadline("k");
        for ttl in [1, 50_000] {
            server.call(("LOCK.RACQUIRE", "k", "o", ttl));
            assert_eq!(server.deadline("k"), outer, "after an inner hold of {ttl} ms");
        }
        server.leased("k", 200_000, || server.call("LOCK.RACQUIRE k o 200000"));
        let inner = server.deadline("k");
        for _ in 0..3 {
            assert_eq!(server.call("LOCK.RELEASE k o"), 1);
            assert_eq!(server.deadline("k"), inner, "a release of an inner hold");
        }
    }

    fn a_lock_is_free_after_as_many_releases_as_holds(flavour) {
        let server = Server::start(flavour);
        let token = acquire(&server, "k");
        for _ in 0..2 {
            server.call("LOCK.RACQUIRE k o 100000");
        }
        for holds in [2, 1] {
            assert_eq!(server.call("LOCK.RELEASE k o"), 1);
            assert_eq!(server.call("GET k"), record(token, holds, "o"));
            assert_eq!(server.call("LOCK.RACQUIRE k other 100000"), Reply::NilBulk);
        }
        assert_eq!(server.call("LOCK.RELEASE k o"), 1);
        assert_eq!(server.call("EXISTS k"), 0);
        assert_eq!(server.call("LOCK.RELEASE k o"), -1);
    }

    fn a_token_names_one_grant(flavour) {
        let server = Server::start(flavour);
        let old = acquire(&server, "k");
        server.call("LOCK.RELEASE k o");
        let token = acquire(&server, "k");
        let deadline = server.deadline("k");
        for command in [
            format!("LOCK.RELEASE k o TOKEN {old}"),
            format!("LOCK.RELEASE k o TOKEN {}", token + 1),
            format!("LOCK.RELEASE k other TOKEN {token}"),
            format!("LOCK.RENEW k o 200000 TOKEN {old}"),
            format!("LOCK.RENEW k o 200000 TOKEN {}", token + 1),
            format!("LOCK.RENEW k other 200000 TOKEN {token}"),
        ] {
            assert_eq!(server.call(&command), 0, "{command}");
            assert_eq!(server.call("GET k"), record(token, 1, "o"), "{command}");
            assert_eq!(server.deadline("k"), deadline, "{command}");
        }
        let renew = format!("LOCK.RENEW k o 200000 TOKEN {token}");
        let release = format!("LOCK.RELEASE k o TOKEN {token}");
        assert_eq!(server.leased("k", 200_000, || server.call(&renew)), 1);
        // A re-entry is the same grant.
        server.call("LOCK.RACQUIRE k o 1");
        for (command, answer) in [(&release, 1), (&release, 1), (&release, -1), (&renew, -1)] {
            assert_eq!(server.call(command), answer, "{command}");
        }
    }

    // redisson#7367
    fn an_acquire_that_is_sent_again_counts_once(flavour) {
        let server = Server::start(flavour);
        let mut last = 0;
        for command in ["LOCK.ACQUIRE k o 100000 REQID r", "LOCK.RACQUIRE k o 100000 REQID r"] {
            let token = server.leased("k", 100_000, || server.call(command)).as_int();
            assert!(token > last, "{command}: the id of a lock that was released means nothing");
            last = token;
            let before = server.snapshot();
            for again in [
                "LOCK.ACQUIRE k o 100000 REQID r",
                "LOCK.RACQUIRE k o 100000 REQID r",
                "LOCK.RACQUIRE k o 200000 REQID r",
            ] {
                assert_eq!(server.call(again), token, "{again}");
                assert_eq!(server.snapshot(), before, "{again}");
            }
            for refused in [
                "LOCK.ACQUIRE k other 100000 REQID r",
                "LOCK.RACQUIRE k other 100000 REQID r",
                "LOCK.ACQUIRE k o 100000 REQID R",
                "LOCK.ACQUIRE k o 100000 REQID rr",
                "LOCK.ACQUIRE k o 100000",
            ] {
                assert_eq!(server.call(refused), Reply::NilBulk, "{refused}");
                assert_eq!(server.snapshot(), before, "{refused}");
            }
            assert_eq!(server.call("LOCK.RELEASE k o"), 1);
            assert_eq!(server.call("LOCK.RELEASE k o"), -1, "{command}");
        }
    }

    // redisson#7367
    fn a_re_entry_that_is_sent_again_counts_once(flavour) {
        let server = Server::start(flavour);
        let token = acquire(&server, "k");
        for (command, holds) in [
            ("LOCK.RACQUIRE k o 100000 REQID a", 2),
            ("LOCK.RACQUIRE k o 100000 REQID a", 2),
            ("LOCK.RACQUIRE k o 100000 REQID b", 3),
            ("LOCK.RACQUIRE k o 100000 REQID b", 3),
            // Without an id it is a hold more, and the last id is known still.
            ("LOCK.RACQUIRE k o 100000", 4),
            ("LOCK.RACQUIRE k o 100000 REQID b", 4),
            ("LOCK.ACQUIRE k o 100000 REQID b", 4),
        ] {
            assert_eq!(server.call(command), token, "{command}");
            assert_eq!(server.call("LOCK.INFO k").field("owners").field("o"), holds, "{command}");
        }
        for answer in [1, 1, 1, 1, -1] {
            assert_eq!(server.call("LOCK.RELEASE k o"), answer);
        }
    }

    fn a_request_id_is_of_any_bytes(flavour) {
        let server = Server::start(flavour);
        for id in [&b"\0"[..], b"\xff\xfe", b":", b"1:2:", b" ", b"%s%n", &[b':'; 64]] {
            let command = ("LOCK.RACQUIRE", "k", ":o:", 100_000, "REQID", id);
            let token = server.call(command).as_int();
            assert_eq!(server.call(command), token, "{}", id.escape_ascii());
            assert_eq!(server.call("LOCK.INFO k").field("owners").field(":o:"), 1);
            assert_eq!(server.call("LOCK.RELEASE k :o:"), 1);
        }
    }

    // redis-py#629
    fn a_renewal_replaces_what_is_left_of_the_lease(flavour) {
        let server = Server::start(flavour);
        let token = acquire(&server, "k");
        for ttl in [200_000, 200_000, 50_000, 50_000, 1_000_000, 60_001, 60_999] {
            let renewed = server.leased("k", ttl, || server.call(("LOCK.RENEW", "k", "o", ttl)));
            assert_eq!(renewed, 1, "{ttl}");
        }
        assert_eq!(server.call("GET k"), record(token, 1, "o"));
        // The lease is that of all holds.
        server.call("LOCK.RACQUIRE k o 1");
        assert_eq!(server.leased("k", 50_000, || server.call("LOCK.RENEW k o 50000")), 1);
        assert_eq!(server.call("GET k"), record(token, 2, "o"));
    }

    // redis-py#370, python-redis-lock#16. The lease is read off the replication stream, because
    // the key may have expired before anybody can ask for it.
    fn a_lease_below_a_second_is_kept_to_the_millisecond(flavour) {
        let server = Server::start(flavour);
        let mut stream = server.replication_stream();
        for ttl in [1, 250, 999, 1_001] {
            let before = unix_millis();
            server.call(("LOCK.ACQUIRE", "k", "o", ttl));
            let after = unix_millis();
            let set = stream.writes(&server).remove(0);
            assert!(set.matches("SET k * PXAT *"), "{set}");
            assert!((before + ttl..=after + ttl).contains(&set.int(4)), "{ttl}: {set}");

            server.call("DEL k");
            acquire(&server, "k");
            stream.writes(&server);
            let before = unix_millis();
            assert_eq!(server.call(("LOCK.RENEW", "k", "o", ttl)), 1);
            let after = unix_millis();
            let renewal = stream.writes(&server).remove(0);
            assert!(renewal.matches("PEXPIREAT k *"), "{renewal}");
            assert!((before + ttl..=after + ttl).contains(&renewal.int(2)), "{ttl}: {renewal}");
            server.call("DEL k");
            stream.writes(&server);
        }
    }

    // node-redlock#168, node-redlock#288, redsync#72, redsync#107
    fn mine_others_and_none_are_three_answers(flavour) {
        let server = Server::start(flavour);
        for command in ["LOCK.RENEW k o 100000", "LOCK.RELEASE k o"] {
            assert_eq!(server.call(command), -1, "{command}: never held");
            server.call("LOCK.ACQUIRE k other 100000");
            assert_eq!(server.call(command), 0, "{command}: somebody else's");
            assert_eq!(server.call("LOCK.RELEASE k other"), 1);
            assert_eq!(server.call(command), -1, "{command}: released");
            acquire(&server, "k");
            assert_eq!(server.call(command), 1, "{command}: mine");
            server.call("LOCK.RACQUIRE k o 1");
            server.call("PEXPIRE k 0");
            assert_eq!(server.call(command), -1, "{command}: lapsed");
            server.call("RPUSH k v");
            assert_eq!(server.call(command).error_code(), Some("WRONGTYPE"), "{command}");
            server.call("DEL k");
        }
    }

    // aioredlock#48
    fn a_lost_lock_is_never_taken_back(flavour) {
        let server = Server::start(flavour);
        let mut token = 0;
        for loss in ["DEL k", "UNLINK k", "PEXPIRE k 0", "RENAME k other", "FLUSHDB", "FLUSHALL"] {
            token = acquire(&server, "k");
            server.call(loss);
            server.call("DEL other");
            for command in [
                "LOCK.RENEW k o 100000".to_owned(),
                "LOCK.RENEW k o 100000 WATCHDOG".to_owned(),
                format!("LOCK.RENEW k o 100000 TOKEN {token}"),
                "LOCK.RELEASE k o".to_owned(),
            ] {
                assert_eq!(server.call(&command), -1, "{command} after {loss}");
                assert_eq!(server.dbsize(), 0, "{command} after {loss}");
            }
        }
        server.call("LOCK.ACQUIRE k other 100000");
        let before = server.snapshot();
        for command in [
            "LOCK.RENEW k o 200000".to_owned(),
            "LOCK.RENEW k o 200000 WATCHDOG".to_owned(),
            format!("LOCK.RENEW k o 200000 TOKEN {token}"),
            "LOCK.RELEASE k o".to_owned(),
        ] {
            assert_eq!(server.call(&command), 0, "{command}");
            assert_eq!(server.snapshot(), before, "{command}");
        }
    }

    /// Nobody deletes the keys of lapsed leases here, so every command meets one.
    fn a_lapsed_lease_counts_as_none(flavour) {
        let server = Server::start(flavour);
        server.call("DEBUG SET-ACTIVE-EXPIRE 0");
        let commands = ["ACQUIRE", "RACQUIRE", "RELEASE", "RENEW", "INFO"];
        let mut raw = server.raw();
        let held = raw.pipeline(commands.map(|key| ("LOCK.ACQUIRE", key, "o", 1)));
        outwait_a_millisecond();
        assert_eq!(server.dbsize(), 5);
        assert!(server.call("LOCK.ACQUIRE ACQUIRE other 100000").as_int() > held[0].as_int());
        // Also for who held it before: its holds do not go on.
        let token = server.call("LOCK.RACQUIRE RACQUIRE o 100000").as_int();
        assert!(token > held[1].as_int());
        assert_eq!(server.call("GET RACQUIRE"), record(token, 1, "o"));
        assert_eq!(server.call("LOCK.RELEASE RELEASE o"), -1);
        assert_eq!(server.call("LOCK.RENEW RENEW o 100000"), -1);
        assert_eq!(server.call("LOCK.INFO INFO").field("state"), "free");
    }

    fn tokens_rise_however_a_lock_becomes_free(flavour) {
        let mut server = Server::start(flavour);
        let mut last = acquire(&server, "k");
        for end in [
            "LOCK.RELEASE k o",
            "DEL k",
            "UNLINK k",
            "PEXPIRE k 0",
            "RENAME k elsewhere",
            "FLUSHDB",
            "FLUSHALL",
            "restart",
        ] {
            if end == "restart" {
                server = server.restart();
                assert_eq!(server.call("GET k"), record(last, 1, "o"));
                server.call("DEL k");
            } else {
                server.call(end);
            }
            let token = acquire(&server, "k");
            assert!(token > last, "{end}: {token} after {last}");
            last = token;
        }
    }

    fn tokens_rise_within_a_microsecond(flavour) {
        let server = Server::start(flavour);
        let commands = (0..1_000).map(|key| ("LOCK.ACQUIRE", key, "o", 100_000));
        let tokens: Vec<i64> = server.raw().pipeline(commands).iter().map(Reply::as_int).collect();
        assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    }

    /// A record that a server wrote whose clock is ahead, or that somebody forged.
    fn tokens_rise_over_every_record_that_a_command_reads(flavour) {
        let server = Server::start(flavour);
        let mut last = acquire(&server, "k");
        for reader in [
            "LOCK.INFO k",
            "LOCK.ACQUIRE k o 100000",
            "LOCK.RACQUIRE k o 100000",
            "LOCK.RELEASE k o",
            "LOCK.RENEW k o 100000",
        ] {
            let ahead = last + 3_600_000_000;
            server.call(("SET", "k", format!("lk1:{ahead}:1:x"), "PX", 100_000));
            server.call(reader);
            server.call("DEL k");
            last = acquire(&server, "k");
            assert_eq!(last, ahead + 1, "{reader}");
        }
        // Also where it is the first that a server reads, and what it reads is its own.
        server.call("LOCK.RACQUIRE k o 100000");
        let server = server.restart();
        assert_eq!(server.call("LOCK.RACQUIRE k o 100000"), last);
        assert_eq!(acquire(&server, "other"), last + 1);
    }

    fn a_forged_record_cannot_use_the_tokens_up(flavour) {
        let server = Server::start(flavour);
        server.call("SET k lk1:9007199254740991:1:x");
        assert_eq!(server.call("LOCK.INFO k").field("token"), 9_007_199_254_740_991);
        let before = unix_micros();
        let token = acquire(&server, "other");
        assert!((before..=unix_micros()).contains(&token), "{token}");
        // The lock itself is one: its holder can use it and give it back.
        assert_eq!(server.call("LOCK.RENEW k x 100000 TOKEN 9007199254740991"), 1);
        assert_eq!(server.call("LOCK.RACQUIRE k x 100000"), 9_007_199_254_740_991);
        assert_eq!(server.call("LOCK.RELEASE k x TOKEN 9007199254740991"), 1);
        assert_eq!(server.call("LOCK.RELEASE k x"), 1);
    }

    // redisson#6510, redisson#4620
    fn no_key_outlives_its_lock(flavour) {
        let server = Server::start(flavour);
        let mut raw = server.raw();
        let mut call_for_all = |command: &str| {
            let keys = (0..2_000).map(|key| command.replace('k', &format!("lock:{key}")));
            raw.pipeline(keys);
        };
        for (command, left) in [
            ("LOCK.ACQUIRE k o 100000", 2_000),
            ("LOCK.ACQUIRE k x 100000", 2_000),
            ("LOCK.RELEASE k x", 2_000),
            ("LOCK.RELEASE k o", 0),
            ("LOCK.RELEASE k o", 0),
            ("LOCK.RENEW k o 100000", 0),
            ("LOCK.INFO k", 0),
            ("LOCK.RACQUIRE k o 100000 REQID r", 2_000),
            ("LOCK.RACQUIRE k o 100000 REQID s", 2_000),
            ("LOCK.RELEASE k o", 2_000),
            ("LOCK.RENEW k o 200000", 2_000),
            ("LOCK.RELEASE k o", 0),
        ] {
            call_for_all(command);
            assert_eq!(server.dbsize(), left, "{command}");
        }
        call_for_all("LOCK.ACQUIRE k o 1");
        wait_until("all leases to lapse", || server.dbsize() == 0);
    }

    // redisson#970, redisson#2896, redis-py#694
    fn names_and_owners_are_of_any_bytes(flavour) {
        let server = Server::start(flavour);
        let mut resp3 = server.raw_resp3();
        // An empty key is a key as good as any, but nobody has an empty name.
        let keys = ODD_NAMES.into_iter().chain([&b""[..]]);
        for (key, owner) in keys.zip(ODD_NAMES.into_iter().rev().cycle()) {
            let shown = key.escape_ascii();
            let token = server.call(("LOCK.ACQUIRE", key, owner, 100_000)).as_int();
            let stored = [format!("lk1:{token}:1:").as_bytes(), owner].concat();
            assert_eq!(server.call(("GET", key)), Reply::Bulk(stored), "{shown}");
            assert_eq!(server.call(("LOCK.ACQUIRE", key, owner, 1)), Reply::NilBulk, "{shown}");
            assert_eq!(server.call(("LOCK.RACQUIRE", key, owner, 1)), token, "{shown}");
            let owners = Reply::Map(vec![(Reply::bulk(owner), Reply::Int(2))]);
            assert_eq!(*resp3.call(("LOCK.INFO", key)).field("owners"), owners, "{shown}");
            assert_eq!(server.call(("LOCK.RENEW", key, owner, 100_000)), 1, "{shown}");
            for longer in [[owner, &b"\0"[..]].concat(), [b"\0", owner].concat()] {
                if longer.len() <= 512 {
                    assert_eq!(server.call(("LOCK.RENEW", key, &longer, 1)), 0, "{shown}");
                    assert_eq!(server.call(("LOCK.RELEASE", key, &longer)), 0, "{shown}");
                }
            }
            for answer in [1, 1, -1] {
                assert_eq!(server.call(("LOCK.RELEASE", key, owner)), answer, "{shown}");
            }
        }
        assert_eq!(server.dbsize(), 0);
    }

    fn options_stand_in_any_order_and_case(flavour) {
        let server = Server::start(flavour);
        let watchdogs = || server.info_number("lock", "lock_watchdogs");
        for options in [
            "BLOCK 0 WATCHDOG REQID r",
            "BLOCK 0 REQID r WATCHDOG",
            "WATCHDOG BLOCK 0 REQID r",
            "watchdog reqid r block 0",
            "ReqId r Block 0 WatchDog",
            "reqid r WATCHDOG block 0",
        ] {
            for command in ["LOCK.ACQUIRE", "lock.acquire", "LOCK.RACQUIRE", "Lock.Racquire"] {
                let command = format!("{command} k o 100000 {options}");
                let token = server.call(&command).as_int();
                // The request is known, so it was read; and so is the watchdog.
                let stored = format!("lk1r:{token}:1:1:r:o");
                assert_eq!(server.call("GET k"), stored.as_str(), "{command}");
                assert_eq!(watchdogs(), 1, "{command}");
                for (renewal, answer) in [
                    (format!("LOCK.RENEW k o 200000 TOKEN {token} WATCHDOG"), 1),
                    (format!("lock.renew k o 200000 watchdog token {token}"), 1),
                    (format!("LOCK.RENEW k o 100000 Watchdog Token {}", token + 1), 0),
                    (format!("lock.release k o token {}", token + 1), 0),
                    (format!("Lock.Release k o Token {token}"), 1),
                ] {
                    assert_eq!(server.call(&renewal), answer, "{renewal} after {command}");
                }
                assert_eq!(watchdogs(), 0, "{command}");
            }
        }
        // What an option is followed by is its value, whatever it looks like.
        let token = server.call("LOCK.ACQUIRE k o 100000 REQID BLOCK").as_int();
        assert_eq!(server.call("LOCK.ACQUIRE k o 100000 REQID BLOCK"), token);
        assert_eq!(server.call("LOCK.RELEASE k TOKEN"), 0);
        assert_eq!(server.call("LOCK.RELEASE k o"), 1);
        server.call("LOCK.ACQUIRE k TOKEN 100000");
        assert_eq!(server.call("LOCK.RELEASE k TOKEN"), 1);
    }

    fn info_shows_a_free_lock_and_a_held_one(flavour) {
        let server = Server::start(flavour);
        let map = |fields: &[(&str, Reply)]| {
            Reply::Map(
                fields.iter().map(|(name, value)| (Reply::bulk(name), value.clone())).collect(),
            )
        };
        let free = map(&[
            ("state", Reply::bulk("free")),
            ("mode", Reply::Null),
            ("owners", Reply::Map(vec![])),
            ("token", Reply::Null),
            ("ttl", Reply::Int(-2)),
            ("waiters", Reply::Int(0)),
            ("layout", Reply::Null),
            ("age", Reply::Null),
            ("grants", Reply::Array(vec![])),
        ]);
        let mut resp3 = server.raw_resp3();
        assert_eq!(resp3.call("LOCK.INFO k"), free);

        let token = acquire(&server, "k");
        server.call("LOCK.RACQUIRE k o 200000 REQID r");
        for _ in 0..2 {
            let earliest = unix_millis();
            let info = resp3.call("LOCK.INFO k");
            let latest = unix_millis();
            let (ttl, age) = (info.field("ttl").as_int(), info.field("age").as_int());
            let deadline = server.deadline("k");
            assert!((deadline - latest..=deadline - earliest).contains(&ttl), "{info:?}");
            // The token is the moment of the grant.
            let granted = token / 1_000;
            assert!((earliest - granted..=latest - granted).contains(&age), "{info:?}");
            let grant = map(&[
                ("owner", Reply::bulk("o")),
                ("token", Reply::Int(token)),
                ("ttl", Reply::Int(ttl)),
            ]);
            let held = map(&[
                ("state", Reply::bulk("held")),
                ("mode", Reply::bulk("exclusive")),
                ("owners", Reply::Map(vec![(Reply::bulk("o"), Reply::Int(2))])),
                ("token", Reply::Int(token)),
                ("ttl", Reply::Int(ttl)),
                ("waiters", Reply::Int(0)),
                ("layout", Reply::bulk("module")),
                ("age", Reply::Int(age)),
                ("grants", Reply::Array(vec![grant])),
            ]);
            assert_eq!(info, held);
        }
        server.call("PERSIST k");
        assert_eq!(resp3.call("LOCK.INFO k").field("ttl"), -1);

        // RESP2 has the same in flat arrays.
        let flat = server.call("LOCK.INFO k");
        assert_eq!(flat.items().len(), 18);
        let owners = Reply::Array(vec![Reply::bulk("o"), Reply::Int(2)]);
        assert_eq!(*flat.field("owners"), owners);
        assert_eq!(*server.call("LOCK.INFO none").field("mode"), Reply::NilBulk);
        assert_eq!(*server.call("LOCK.INFO none").field("owners"), Reply::Array(vec![]));
    }

    fn info_counts_those_who_wait(flavour) {
        let server = Server::start(flavour);
        acquire(&server, "k");
        let mut waiter = server.raw();
        waiter.send("LOCK.ACQUIRE k x 100000 BLOCK 0");
        server.wait_for_blocked(1);
        assert_eq!(server.call("LOCK.INFO k").field("waiters"), 1);
        assert_eq!(server.call("LOCK.INFO other").field("waiters"), 0);
        server.call("LOCK.RELEASE k o");
        assert_eq!(server.call("LOCK.INFO k").field("waiters"), 0);
    }

    fn help_has_a_line_for_each_command(flavour) {
        let server = Server::start(flavour);
        let mut expected = vec![
            "LOCK.ACQUIRE key owner ttl [BLOCK timeout] [SHARED | LIMIT n] [WATCHDOG] [REQID id]",
            "LOCK.RACQUIRE key owner ttl [BLOCK timeout] [WATCHDOG] [REQID id]",
            "LOCK.RELEASE key owner [TOKEN token]",
            "LOCK.RENEW key owner ttl [TOKEN token] [WATCHDOG]",
            "LOCK.MACQUIRE numkeys key [key ...] owner ttl [BLOCK timeout] [WATCHDOG]",
            "LOCK.MRELEASE numkeys key [key ...] owner",
            "LOCK.MRENEW numkeys key [key ...] owner ttl",
            "LOCK.GUARD key token command [arg [arg ...]]",
            "LOCK.QACQUIRE key owner ttl [BLOCK timeout] [SHARED]",
            "LOCK.QRENEW key owner ttl [TOKEN token]",
            "LOCK.QRELEASE key owner [TOKEN token]",
            "LOCK.QINFO key",
            "LOCK.QVOTE key owner ttl token attempt [SHARED]",
            "LOCK.QSETTLE key owner ttl attempt from to [SHARED]",
            "LOCK.QUNVOTE key owner attempt",
            "LOCK.QEXTEND key owner ttl [TOKEN token]",
            "LOCK.QRELOCK key owner ttl token attempt at within [SHARED]",
            "LOCK.QEND key owner [TOKEN token]",
            "LOCK.INFO key",
            "LOCK.QUEUE key [COUNT count]",
            "LOCK.CONTENDED [COUNT count]",
            "LOCK.HELP",
        ];
        if cfg!(debug_assertions) {
            expected.push("LOCK.DEBUG subcommand");
        }
        let lines = server.call("LOCK.HELP");
        let lines: Vec<(&str, &str)> = lines
            .items()
            .iter()
            .map(|line| line.as_text().split_once(": ").unwrap())
            .collect();
        let syntaxes: Vec<&str> = lines.iter().map(|(syntax, _)| *syntax).collect();
        assert_eq!(syntaxes, expected);
        for (syntax, summary) in lines {
            let name = syntax.split(' ').next().unwrap();
            let docs = server.call(("COMMAND", "DOCS", name));
            assert_eq!(*docs.field(name).field("summary"), *summary, "{syntax}");
        }
    }

    fn a_client_of_the_redis_crate_reads_the_answers(flavour) {
        let server = Server::start(flavour);
        let mut client = server.client();
        let mut acquire = redis::cmd("LOCK.RACQUIRE");
        acquire.arg("k").arg("*").arg(100_000);
        let (token, owner): (u64, String) = acquire.query(&mut client).unwrap();
        let busy: Option<(u64, String)> = acquire.query(&mut client).unwrap();
        assert_eq!(busy, None);
        let mut again = redis::cmd("LOCK.RACQUIRE");
        again.arg("k").arg(&owner).arg(100_000);
        assert_eq!(again.query(&mut client), Ok(Some(token)));
        let info: HashMap<String, redis::Value> =
            redis::cmd("LOCK.INFO").arg("k").query(&mut client).unwrap();
        assert_eq!(redis::from_redis_value_ref(&info["owners"]), Ok(vec![(owner, 2)]));
    }
}
