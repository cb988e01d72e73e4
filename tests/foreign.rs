//! Keys that something else wrote: locks of other clients, which count as locks while old and new
//! clients run side by side, and data that is no lock at all, which is never trusted or touched.
//!
//! A test that comes from a report names it as `repository#number`.

use crate::harness::{Reply, Server, on_every_server, unix_millis};

/// The release of nearly every client of `SET key token NX PX ttl`.
const COMPARE_AND_DELETE: &str = "\
    if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end \
    return 0";

/// The renewal of such clients.
const COMPARE_AND_EXPIRE: &str = "\
    if redis.call('GET', KEYS[1]) == ARGV[1] then \
        return redis.call('PEXPIRE', KEYS[1], ARGV[2]) \
    end \
    return 0";

/// The acquire of clients that count holds in a hash. It answers nil when it is granted.
const ENTER_HASH: &str = "\
    if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then \
        return redis.call('PTTL', KEYS[1]) \
    end \
    redis.call('HINCRBY', KEYS[1], ARGV[1], 1) \
    redis.call('PEXPIRE', KEYS[1], ARGV[2]) \
    return nil";

/// The release of such clients. It answers 1 when the lock is free.
const LEAVE_HASH: &str = "\
    if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return nil end \
    if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) > 0 then return 0 end \
    return redis.call('DEL', KEYS[1])";

/// Makes sure that `LOCK.INFO` says of `key` just this.
fn assert_held(server: &Server, key: &str, layout: &str, owner: &[u8], holds: i64) {
    let earliest = unix_millis();
    let info = server.call(("LOCK.INFO", key));
    let latest = unix_millis();
    let ttl = info.field("ttl").as_int();
    match server.deadline(key) {
        -1 => assert_eq!(ttl, -1, "{info:?}"),
        at => assert!((at - latest..=at - earliest).contains(&ttl), "{info:?}"),
    }
    let owners = vec![Reply::bulk(owner), Reply::Int(holds)];
    let grant = vec![
        Reply::bulk("owner"),
        Reply::bulk(owner),
        Reply::bulk("token"),
        Reply::NilBulk,
        Reply::bulk("ttl"),
        Reply::Int(ttl),
    ];
    let expected = [
        (Reply::bulk("state"), Reply::bulk("held")),
        (Reply::bulk("mode"), Reply::bulk("exclusive")),
        (Reply::bulk("owners"), Reply::Array(owners)),
        (Reply::bulk("token"), Reply::NilBulk),
        (Reply::bulk("ttl"), Reply::Int(ttl)),
        (Reply::bulk("waiters"), Reply::Int(0)),
        (Reply::bulk("layout"), Reply::bulk(layout)),
        (Reply::bulk("age"), Reply::NilBulk),
        (
            Reply::bulk("grants"),
            Reply::Array(vec![Reply::Array(grant)]),
        ),
    ];
    let expected = expected.into_iter().flat_map(|(name, value)| [name, value]);
    assert_eq!(info, Reply::Array(expected.collect()));
}

/// Makes sure that a lock without a token is refused to everybody, is nobody else's, and stays as
/// it is meanwhile. Its owner is refused too, since there is no token to give again.
fn assert_refused(server: &Server, key: &str, owner: &[u8]) {
    let shown = owner.escape_ascii();
    let before = server.snapshot();
    for command in ["LOCK.ACQUIRE", "LOCK.RACQUIRE"] {
        for asking in [&b"nobody"[..], b"*", owner] {
            let reply = server.call((command, key, asking, 200_000));
            assert_eq!(reply, Reply::NilBulk, "{command} of {shown}");
        }
    }
    // Its owner neither by a token: it has none.
    for (asking, token) in [
        (&b"nobody"[..], &[][..]),
        (b"*", &[]),
        (owner, &[&b"TOKEN"[..], b"5"]),
    ] {
        let release = [&[&b"LOCK.RELEASE"[..], key.as_bytes(), asking], token].concat();
        assert_eq!(server.call(release), 0, "release of {shown}");
        let renew = [
            &[&b"LOCK.RENEW"[..], key.as_bytes(), asking, b"200000"],
            token,
        ]
        .concat();
        assert_eq!(server.call(renew), 0, "renewal of {shown}");
    }
    assert_eq!(server.snapshot(), before, "{shown}");
}

/// Makes sure that `owner` can renew a plain lock, and then release it.
fn assert_usable(server: &Server, key: &str, owner: &[u8]) {
    let shown = owner.escape_ascii();
    let renew = ("LOCK.RENEW", key, owner, 300_000);
    assert_eq!(
        server.leased(key, 300_000, || server.call(renew)),
        1,
        "{shown}"
    );
    assert_eq!(server.call(("GET", key)), Reply::bulk(owner), "{shown}");
    assert_eq!(server.call(("LOCK.RELEASE", key, owner)), 1, "{shown}");
    assert_eq!(server.call(("EXISTS", key)), 0, "{shown}");
    assert_eq!(server.call(("LOCK.RELEASE", key, owner)), -1, "{shown}");
}

on_every_server! {
    fn a_plain_string_is_a_lock_of_its_value(flavour) {
        let server = Server::start(flavour);
        for value in [
            &b"5f0c9a8e-3f7e-4a53-9d0e-5a1d7e0f2b11"[..],
            // The server keeps these as integers, small ones shared with other keys.
            b"0",
            b"7",
            b"-12345",
            b"9223372036854775807",
            b"3.14",
            b"%s%n",
            b"\0\xff \r\n",
            &[b'x'; 45],
            &[b'x'; 512],
        ] {
            for ttl in ["", "PX"] {
                let mut set = vec![&b"SET"[..], b"k", value];
                if !ttl.is_empty() {
                    set.extend([ttl.as_bytes(), b"100000"]);
                }
                assert_eq!(server.call(set), "OK");
                assert_held(&server, "k", "plain", value, 1);
                assert_refused(&server, "k", value);
                assert_usable(&server, "k", value);
            }
        }
    }

    /// However the server keeps the value: it was not always set in one piece.
    fn a_value_that_was_put_together_is_one_value(flavour) {
        let server = Server::start(flavour);
        for (write, value) in [
            (("APPEND", "k", "token"), &b"token"[..]),
            (("INCRBY", "k", "41"), b"41"),
            (("INCRBYFLOAT", "k", "0.5"), b"0.5"),
        ] {
            server.call(write);
            assert_held(&server, "k", "plain", value, 1);
            assert_refused(&server, "k", value);
            assert_usable(&server, "k", value);
        }
        server.call("SETRANGE k 2 x");
        assert_held(&server, "k", "plain", b"\0\0x", 1);
        assert_usable(&server, "k", b"\0\0x");
        server.call("SETBIT k 7 1");
        assert_held(&server, "k", "plain", b"\x01", 1);
        assert_usable(&server, "k", b"\x01");
    }

    fn a_lock_whose_owner_cannot_be_named_stays_taken(flavour) {
        let server = Server::start(flavour);
        for value in [vec![], vec![b'x'; 513], vec![b'x'; 100_000]] {
            server.call(("SET", "k", &value, "PX", 100_000));
            assert_held(&server, "k", "plain", &value, 1);
            let before = server.snapshot();
            for command in ["LOCK.ACQUIRE k o 1", "LOCK.RACQUIRE k o 1"] {
                assert_eq!(server.call(command), Reply::NilBulk);
            }
            assert_eq!(server.call("LOCK.RELEASE k o"), 0);
            assert_eq!(server.call("LOCK.RENEW k o 1"), 0);
            let refused = Reply::Error("ERR owner must be 1 to 512 bytes long".into());
            assert_eq!(server.call(("LOCK.RELEASE", "k", &value)), refused);
            assert_eq!(server.call(("LOCK.RENEW", "k", &value, 1)), refused);
            assert_eq!(server.snapshot(), before);
        }
    }

    fn a_hash_with_a_count_is_a_lock_of_its_field(flavour) {
        let server = Server::start(flavour);
        for owner in [&b"o"[..], b"12345", b"uuid:7", b"\0\xff %s%n", &[b'x'; 300], &[b'x'; 512]] {
            let shown = owner.escape_ascii();
            for deadline in [4_000_000_000_000, -1] {
                server.call(("HSET", "k", owner, 3));
                if deadline > 0 {
                    server.call(("PEXPIREAT", "k", deadline));
                }
                assert_held(&server, "k", "hash", owner, 3);
                assert_refused(&server, "k", owner);
                for left in [2, 1] {
                    assert_eq!(server.call(("LOCK.RELEASE", "k", owner)), 1, "{shown}");
                    assert_held(&server, "k", "hash", owner, left);
                    assert_eq!(server.deadline("k"), deadline, "{shown}");
                }
                let renew = ("LOCK.RENEW", "k", owner, 200_000);
                assert_eq!(server.leased("k", 200_000, || server.call(renew)), 1, "{shown}");
                assert_held(&server, "k", "hash", owner, 1);
                assert_eq!(server.call(("LOCK.RELEASE", "k", owner)), 1, "{shown}");
                assert_eq!(server.call(("LOCK.RELEASE", "k", owner)), -1, "{shown}");
                assert_eq!(server.dbsize(), 0, "{shown}");
            }
        }
    }

    fn a_hash_is_read_whatever_its_count_and_encoding(flavour) {
        let server = Server::start(flavour);
        for (owner, count) in [("o", i64::MAX), ("o", 1), ("", 2), (&"x".repeat(600), 2)] {
            server.call(("HSET", "k", owner, count));
            assert_held(&server, "k", "hash", owner.as_bytes(), count);
            if owner == "o" {
                assert_eq!(server.call("LOCK.RELEASE k o"), 1);
            }
            if count == i64::MAX {
                assert_held(&server, "k", "hash", b"o", i64::MAX - 1);
            }
            server.call("DEL k");
        }
        // A hash that once had many fields is kept in a large table still.
        let fields: Vec<String> = (0..2_000).map(|field| format!("field:{field}")).collect();
        for field in &fields {
            server.call(("HSET", "k", field, 1));
        }
        let mut delete = vec!["HDEL", "k"];
        delete.extend(fields[1..].iter().map(String::as_str));
        assert_eq!(server.call(delete), 1_999);
        assert_held(&server, "k", "hash", b"field:0", 1);
        assert_eq!(server.call("LOCK.RELEASE k field:0"), 1);
        // A field with a time of its own, where there is such a thing.
        server.call("HSET k o 2");
        server.call("HPEXPIRE k 100000 FIELDS 1 o");
        assert_held(&server, "k", "hash", b"o", 2);
        assert_eq!(server.call("LOCK.RELEASE k o"), 1);
        assert_held(&server, "k", "hash", b"o", 1);
        assert_eq!(server.call("LOCK.RELEASE k o"), 1);
        assert_eq!(server.dbsize(), 0);
    }

    fn what_is_no_lock_is_refused_and_left_alone(flavour) {
        let server = Server::start(flavour);
        for write in [
            "RPUSH k o",
            "SADD k o",
            "SADD k 1",
            "ZADD k 1 o",
            "XADD k 1-1 o 1",
            "GEOADD k 13.4 52.5 o",
            "HSET k o 1 p 1",
            "HSET k o 1 p x",
            "HSET k o x",
            "HSET k o 0",
            "HSET k o -1",
            "HSET k o 1.5",
            "HSET k o 1e3",
            "HSET k o 0x1",
            "HSET k o nan",
            "HSET k o lk1:5:1:o",
            "HSET k o 9223372036854775808",
            "HSET k o -9223372036854775808",
            "HSET k o 99999999999999999999999999",
        ] {
            assert_eq!(server.call(write).error_code(), None, "{write}");
            refuse_all(&server, write);
            server.call("PEXPIRE k 100000");
            refuse_all(&server, write);
            server.call("DEL k");
        }
        for count in [&b""[..], b" 1", b"1 ", b"1\0", b"\xff", &[b'1'; 500]] {
            server.call(("HSET", "k", "o", count));
            refuse_all(&server, &count.escape_ascii().to_string());
            server.call("DEL k");
        }
    }

    // redis-cell#91
    fn half_a_record_is_a_plain_lock(flavour) {
        let server = Server::start(flavour);
        let long_owner = format!("lk1:5:1:{}", "o".repeat(504));
        for value in [
            "hello",
            "lk1",
            "lk1:",
            "lk1r:",
            "lk1:5",
            "lk1:5:",
            "lk1:5:1",
            "lk1:5:1:",
            "lk1::1:o",
            "lk1:5::o",
            "lk1:0:1:o",
            "lk1:5:0:o",
            "lk1:05:1:o",
            "lk1:5:01:o",
            "lk1:-5:1:o",
            "lk1:+5:1:o",
            "lk1:5.0:1:o",
            "lk1: 5:1:o",
            "lk1:x:1:o",
            "LK1:5:1:o",
            "lk2:5:1:o",
            " lk1:5:1:o",
            // Numbers that are too large: a token, a count of holds.
            "lk1:9007199254740992:1:o",
            "lk1:18446744073709551616:1:o",
            "lk1:99999999999999999999999999999999999999:1:o",
            "lk1:5:4294967296:o",
            "lk1:5:18446744073709551617:o",
            "lk1:5:99999999999999999999999999999999999999:o",
            // Requests whose length is not that of what follows.
            "lk1r:5:1:o",
            "lk1r:5:1:1:",
            "lk1r:5:1:1:r",
            "lk1r:5:1:1:r:",
            "lk1r:5:1:0::o",
            "lk1r:5:1:2:r:o",
            "lk1r:5:1:1:rr:o",
            "lk1r:5:1:64:r:o",
            "lk1r:5:1:-1:r:o",
            "lk1r:5:1:18446744073709551615:r:o",
            "lk1r:5:1:18446744073709551616:r:o",
        ] {
            server.call(("SET", "k", value, "PX", 100_000));
            assert_held(&server, "k", "plain", value.as_bytes(), 1);
            assert_refused(&server, "k", value.as_bytes());
            // It is nobody's but that of whoever knows the whole value.
            assert_eq!(server.call("LOCK.RELEASE k o"), 0, "{value}");
            assert_usable(&server, "k", value.as_bytes());
        }
        // The owner in it is as long as owners can be, so this one is a record.
        server.call(("SET", "k", &long_owner));
        assert_eq!(server.call("LOCK.INFO k").field("layout"), "module");
        server.call(("SET", "k", format!("{}ooooooooo", &long_owner)));
        assert_eq!(server.call("LOCK.INFO k").field("layout"), "plain");
    }

    fn a_whole_record_is_a_lock_whoever_wrote_it(flavour) {
        let server = Server::start(flavour);
        for (value, token, holds, owner) in [
            ("lk1:5:1:o", 5, 1, "o"),
            ("lk1:1:4294967295:o", 1, 4_294_967_295, "o"),
            ("lk1:9007199254740991:2:o:p", 9_007_199_254_740_991, 2, "o:p"),
            ("lk1:5:1:lk1:5:1:o", 5, 1, "lk1:5:1:o"),
            ("lk1r:5:3:1:r:o", 5, 3, "o"),
            ("lk1r:5:3:3:1:r:o", 5, 3, "o"),
        ] {
            server.call(("SET", "k", value, "PX", 100_000));
            let info = server.call("LOCK.INFO k");
            let owners = Reply::Array(vec![Reply::bulk(owner), Reply::Int(holds)]);
            assert_eq!(*info.field("owners"), owners, "{value}");
            assert_eq!(info.field("token"), token, "{value}");
            assert_eq!(info.field("layout"), "module", "{value}");
            assert_eq!(server.call(("LOCK.RACQUIRE", "k", "x", 1)), Reply::NilBulk, "{value}");
            let renew = ("LOCK.RENEW", "k", owner, 200_000, "TOKEN", token);
            assert_eq!(server.leased("k", 200_000, || server.call(renew)), 1, "{value}");
            assert_eq!(server.call(("LOCK.RELEASE", "k", owner, "TOKEN", token)), 1, "{value}");
            assert_eq!(server.call("EXISTS k"), i64::from(holds > 1), "{value}");
        }
    }

    fn holds_are_counted_up_to_a_limit(flavour) {
        let server = Server::start(flavour);
        server.call("SET k lk1:5:4294967294:o PX 100000");
        assert_eq!(server.call("LOCK.RACQUIRE k o 100000"), 5);
        let before = server.snapshot();
        let refused = Reply::Error("ERR owner has too many holds of this lock".into());
        for command in ["LOCK.RACQUIRE k o 200000", "LOCK.RACQUIRE k o 200000 REQID r"] {
            assert_eq!(server.call(command), refused, "{command}");
            assert_eq!(server.snapshot(), before, "{command}");
        }
        assert_eq!(server.call("LOCK.RELEASE k o"), 1);
        assert_eq!(server.call("GET k"), "lk1:5:4294967294:o");
    }

    fn a_lock_without_a_ttl_is_held_until_it_is_released(flavour) {
        let server = Server::start(flavour);
        server.call("SET k lk1:5:1:o");
        assert_eq!(server.call("LOCK.INFO k").field("ttl"), -1);
        // What lasts for ever is the longer lease, also of two holds.
        assert_eq!(server.call("LOCK.RACQUIRE k o 100000"), 5);
        assert_eq!((server.call("GET k"), server.deadline("k")), (Reply::bulk("lk1:5:2:o"), -1));
        assert_eq!(server.call("LOCK.RELEASE k o"), 1);
        assert_eq!((server.call("GET k"), server.deadline("k")), (Reply::bulk("lk1:5:1:o"), -1));
        // A renewal says how long it is to last from now on.
        assert_eq!(server.leased("k", 100_000, || server.call("LOCK.RENEW k o 100000")), 1);
    }

    fn old_clients_of_plain_locks_and_new_clients_exclude_each_other(flavour) {
        let server = Server::start(flavour);
        let old = |script: &str| server.call(("EVAL", script, 1, "k", "old", 200_000));

        // The old client has the lock.
        assert_eq!(server.call("SET k old NX PX 100000"), "OK");
        for command in ["LOCK.ACQUIRE k new 100000", "LOCK.RACQUIRE k new 100000"] {
            assert_eq!(server.call(command), Reply::NilBulk, "{command}");
        }
        assert_eq!(server.call("LOCK.RELEASE k new"), 0);
        assert_eq!(server.leased("k", 200_000, || old(COMPARE_AND_EXPIRE)), 1);
        assert_eq!(server.call("GET k"), "old");
        assert_eq!(old(COMPARE_AND_DELETE), 1);

        // The new client has it, also under the very name that the old one uses.
        for owner in ["new", "old"] {
            assert!(server.call(("LOCK.ACQUIRE", "k", owner, 100_000)).as_int() > 0);
            let before = server.snapshot();
            assert_eq!(server.call("SET k old NX PX 100000"), Reply::NilBulk);
            assert_eq!(old(COMPARE_AND_EXPIRE), 0);
            assert_eq!(old(COMPARE_AND_DELETE), 0);
            assert_eq!(server.snapshot(), before);
            assert_eq!(server.call(("LOCK.RELEASE", "k", owner)), 1);
        }
        assert_eq!(server.call("SET k old NX PX 100000"), "OK");

        // An application that changes sides half-way gives back what it had taken before.
        assert_eq!(server.call("LOCK.RENEW k old 200000"), 1);
        assert_eq!(old(COMPARE_AND_EXPIRE), 1);
        assert_eq!(server.call("LOCK.RELEASE k old"), 1);
        assert_eq!(old(COMPARE_AND_DELETE), 0);
    }

    fn old_clients_of_hashes_and_new_clients_exclude_each_other(flavour) {
        let server = Server::start(flavour);
        let enter = || server.call(("EVAL", ENTER_HASH, 1, "k", "old", 100_000));
        let leave = || server.call(("EVAL", LEAVE_HASH, 1, "k", "old"));

        // The old client has the lock, twice; either command ends a hold.
        for _ in 0..3 {
            assert_eq!(enter(), Reply::NilBulk);
        }
        assert_held(&server, "k", "hash", b"old", 3);
        assert_refused(&server, "k", b"old");
        assert_eq!(leave(), 0);
        assert_eq!(server.call("LOCK.RELEASE k old"), 1);
        assert_held(&server, "k", "hash", b"old", 1);
        assert_eq!(leave(), 1);

        // The new client has it: the old one's script fails, and changes nothing.
        server.call("LOCK.ACQUIRE k new 100000");
        let before = server.snapshot();
        for reply in [enter(), leave()] {
            assert!(reply.as_text().contains("WRONGTYPE"), "{reply:?}");
        }
        assert_eq!(server.snapshot(), before);
        assert_eq!(server.call("LOCK.RELEASE k new"), 1);
        assert_eq!(enter(), Reply::NilBulk);
    }
}

/// Makes sure that no command takes what `k` holds for a lock, or changes it.
fn refuse_all(server: &Server, what: &str) {
    let before = server.snapshot();
    for command in [
        "LOCK.ACQUIRE k o 100000",
        "LOCK.ACQUIRE k * 100000",
        "LOCK.ACQUIRE k o 100000 REQID r",
        "LOCK.RACQUIRE k o 100000",
        "LOCK.RELEASE k o",
        "LOCK.RELEASE k o TOKEN 5",
        "LOCK.RENEW k o 100000",
        "LOCK.RENEW k o 100000 TOKEN 5",
        "LOCK.INFO k",
    ] {
        let reply = server.call(command);
        let refused = "WRONGTYPE Operation against a key holding the wrong kind of value";
        assert_eq!(reply, Reply::Error(refused.into()), "{command} on {what}");
        assert_eq!(server.snapshot(), before, "{command} on {what}");
    }
}
