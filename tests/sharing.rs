//! What shared locks and permits mean: who may hold one beside whom, until when, and under which
//! token.
//!
//! A test that comes from a report about another lock names it as `repository#number`. Those who
//! wait are in `sharing_queue.rs`, and what is written is in `sharing_effects.rs`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use uuid::{Uuid, Version};

use crate::harness::{
    Raw, Reply, Server, ToWord, ToWords, on_every_server, unix_micros, unix_millis, wait_until,
};
use crate::waiters::LONG;

/// The latest deadline that a share can have: what a score holds exactly.
const LATEST: i64 = 9_007_199_254_740_991;

/// Owners that could be taken for something else in the set.
const ODD_OWNERS: [&[u8]; 14] = [
    b"lk1s",
    b"o:x",
    b"o:o:x",
    b"t:x",
    b"r:1:x:y",
    b":",
    b"0",
    b"-5",
    b"\0",
    b"a\r\nb",
    b"\xff\xfe",
    b"%s%n",
    b"lk1:5:1:o",
    &[b'x'; 512],
];

/// Asks for a share of `k` that lapses in no test, and returns its token.
pub(crate) fn share(server: &Server, owner: &str) -> i64 {
    let request = ("LOCK.ACQUIRE", "k", owner, LONG, "SHARED");
    server.call(request).as_int()
}

/// Those who hold a lock, as `LOCK.INFO` says.
pub(crate) fn holders(server: &Server, key: impl ToWord) -> Vec<Vec<u8>> {
    let info = server.call(("LOCK.INFO", key));
    let owners = info.field("owners").items().chunks(2);
    let mut owners: Vec<Vec<u8>> = owners
        .map(|owner| {
            assert_eq!(owner[1], 1, "a share is one hold");
            owner[0].as_bytes().to_vec()
        })
        .collect();
    owners.sort();
    owners
}

/// The members of a sorted set with their scores.
pub(crate) fn members(server: &Server, key: impl ToWord) -> BTreeMap<Vec<u8>, i64> {
    let set = server.call(("ZRANGE", key, 0, -1, "WITHSCORES"));
    let member = |pair: &[Reply]| {
        let score = pair[1].as_text().parse().unwrap();
        (pair[0].as_bytes().to_vec(), score)
    };
    set.items().chunks(2).map(member).collect()
}

/// The deadline of one owner's share.
pub(crate) fn deadline_of(server: &Server, owner: &str) -> i64 {
    members(server, "k")[format!("o:{owner}").as_bytes()]
}

/// Makes sure that the TTL of `k` is the latest of all deadlines.
pub(crate) fn assert_expires_with_the_last(server: &Server) {
    let members = members(server, "k");
    let deadlines = members
        .iter()
        .filter(|(member, _)| member.starts_with(b"o:"));
    let latest = deadlines.map(|(_, score)| *score).max();
    assert_eq!(Some(server.deadline("k")), latest, "{members:?}");
}

/// Lets leases of up to `ttl` milliseconds lapse that began before this call.
pub(crate) fn outwait(ttl: i64) {
    let begun = unix_millis();
    wait_until("leases to lapse", || unix_millis() > begun + ttl);
}

/// Sends commands in one go that end with one that must be answered with an integer, and returns
/// that.
fn last_of(client: &mut Raw, commands: &[&str]) -> i64 {
    client.pipeline(commands).last().unwrap().as_int()
}

/// An error in these words.
fn error(text: &str) -> Reply {
    Reply::Error(text.to_owned())
}

on_every_server! {
    fn readers_hold_a_lock_side_by_side_and_a_writer_alone(flavour) {
        let server = Server::start(flavour);
        let mut last = 0;
        for owner in ["a", "b", "c"] {
            let before = unix_micros();
            let token = share(&server, owner);
            assert!((before..=unix_micros()).contains(&token), "{token}");
            assert!(token > last, "{token} after {last}");
            last = token;
        }
        assert_eq!(holders(&server, "k"), [b"a", b"b", b"c"]);
        let stored = server.snapshot();
        for command in ["ACQUIRE k w", "RACQUIRE k w", "ACQUIRE k a", "RACQUIRE k a"] {
            assert_eq!(server.call(format!("LOCK.{command} 1")), Reply::NilBulk, "{command}");
            assert_eq!(server.snapshot(), stored, "{command}");
        }
        for owner in ["b", "c", "a"] {
            assert!(server.call("LOCK.ACQUIRE k w 1").is_nil());
            assert_eq!(server.call(("LOCK.RELEASE", "k", owner)), 1);
        }
        assert_eq!(server.dbsize(), 0);

        assert!(server.call("LOCK.ACQUIRE k w 100000").as_int() > last);
        let stored = server.snapshot();
        // The one that has the lock alone is refused like anybody else.
        for owner in ["a", "w", "*"] {
            for mode in ["SHARED", "LIMIT 1", "LIMIT 4294967295"] {
                let request = format!("LOCK.ACQUIRE k {owner} 1 {mode}");
                assert_eq!(server.call(&request), Reply::NilBulk, "{request}");
                assert_eq!(server.raw_resp3().call(&request), Reply::Null, "{request}");
            }
        }
        assert_eq!(server.snapshot(), stored);
        assert_eq!(server.call("LOCK.RELEASE k w"), 1);
        assert!(share(&server, "a") > last);
    }

    fn shares_are_kept_as_documented(flavour) {
        let server = Server::start(flavour);
        let a = server.call("LOCK.ACQUIRE k a 100000 SHARED").as_int();
        let b = server.call("LOCK.ACQUIRE k b 50000 LIMIT 2 REQID r:1").as_int();
        let expected = [
            (&b"lk1s"[..], 0),
            (b"o:a", a / 1_000 + 100_000),
            (b"t:a", -a),
            (b"o:b", b / 1_000 + 50_000),
            (b"t:b", -b),
            (b"r:3:r:1:b", -b),
        ];
        let expected = expected.map(|(member, score)| (member.to_vec(), score));
        assert_eq!(members(&server, "k"), BTreeMap::from(expected));
        assert_eq!(server.deadline("k"), a / 1_000 + 100_000);
        assert_eq!(server.call("LOCK.RELEASE k b"), 1);
        let left = members(&server, "k");
        assert_eq!(left.into_keys().collect::<Vec<_>>(), [&b"lk1s"[..], b"o:a", b"t:a"]);
        assert_eq!(server.call("LOCK.RELEASE k a"), 1);
        assert_eq!(server.dbsize(), 0);
    }

    fn as_many_permits_are_granted_as_each_request_allows(flavour) {
        let server = Server::start(flavour);
        for limit in [1, 2, 5, 64] {
            let acquire = |owner: i32| ("LOCK.ACQUIRE", "k", owner, LONG, "LIMIT", limit);
            for owner in 0..limit {
                assert!(server.call(acquire(owner)).as_int() > 0, "{owner} of {limit}");
            }
            assert_eq!(server.call(acquire(limit)), Reply::NilBulk, "one more than {limit}");
            // Whichever of them is given back, there is room for one.
            for gone in [limit - 1, 0, limit / 2] {
                assert_eq!(server.call(("LOCK.RELEASE", "k", gone)), 1);
                assert!(server.call(acquire(gone)).as_int() > 0);
                assert_eq!(server.call(acquire(limit)), Reply::NilBulk, "one more than {limit}");
            }
            assert_eq!(holders(&server, "k").len(), usize::try_from(limit).unwrap());
            assert_eq!(server.call("DEL k"), 1);
        }
    }

    fn every_request_counts_all_holders_by_its_own_limit(flavour) {
        let server = Server::start(flavour);
        let rows = [
            ("LIMIT 1", true), ("LIMIT 1", false), ("SHARED", true), ("LIMIT 2", false),
            ("limit 3", true), ("LIMIT 1", false), ("LIMIT 3", false), ("shared", true),
            ("LIMIT 4", false), ("LIMIT 5", true), ("LIMIT 4294967295", true), ("LIMIT 6", false),
        ];
        let mut held = 0;
        for (owner, (mode, is_granted)) in rows.into_iter().enumerate() {
            let reply = server.call(format!("LOCK.ACQUIRE k {owner} 100000 {mode}"));
            assert_eq!(!reply.is_nil(), is_granted, "{mode} beside {held}");
            held += usize::from(is_granted);
            assert_eq!(holders(&server, "k").len(), held);
        }
        assert_eq!(held, 6);
    }

    fn an_owner_has_one_share_at_most(flavour) {
        let server = Server::start(flavour);
        let token = server.call("LOCK.ACQUIRE k a 100000 SHARED REQID r").as_int();
        share(&server, "b");
        let stored = server.snapshot();
        for options in [
            "SHARED", "LIMIT 1", "LIMIT 3", "SHARED REQID s", "LIMIT 9 REQID s", "SHARED WATCHDOG",
        ] {
            let request = format!("LOCK.ACQUIRE k a 200000 {options}");
            assert_eq!(server.call(&request), Reply::NilBulk, "{options}");
            assert_eq!(server.snapshot(), stored, "{options}");
        }
        assert_eq!(server.info_number("lock", "lock_watchdogs"), 0);
        assert_eq!(server.call(("LOCK.RELEASE", "k", "a", "TOKEN", token)), 1);
        assert!(share(&server, "a") > token, "it may have a share again");
    }

    /// Nobody can wait for the end of a share that is its own.
    fn who_holds_and_asks_to_wait_is_told_of_the_deadlock_at_once(flavour) {
        let server = Server::start(flavour);
        let mut client = server.raw();
        share(&server, "a");
        share(&server, "b");
        let mut requests = vec!["LOCK.ACQUIRE k a 1000", "LOCK.RACQUIRE k a 1000"];
        requests.extend(["LOCK.ACQUIRE k a 1000 SHARED", "LOCK.ACQUIRE k a 1000 LIMIT 9"]);
        for alone in [false, true] {
            if alone {
                server.call("DEL k");
                server.call("LOCK.ACQUIRE k a 100000");
                requests.retain(|request| !request.starts_with("LOCK.RACQUIRE"));
            }
            let stored = server.snapshot();
            for request in &requests {
                assert!(client.call(request).is_nil(), "{request}");
                let reply = client.call(format!("{request} BLOCK 0"));
                let circle = "DEADLOCK a waits for k held by a";
                assert_eq!(reply, error(circle), "{request}");
                let reply = client.pipeline(["MULTI", &format!("{request} BLOCK 0"), "EXEC"]);
                assert!(reply[2].items()[0].is_nil(), "{request}");
            }
            assert_eq!(server.snapshot(), stored);
        }
        assert_eq!(server.info_number("lock", "lock_waiters"), 0);
    }

    /// redisson#2144: the lease of all readers ends with that of the one that came last.
    fn a_short_lease_shortens_no_other(flavour) {
        let server = Server::start(flavour);
        let a = server.leased("k", 100_000, || share(&server, "a"));
        let (deadline, mut client) = (server.deadline("k"), server.raw());
        client.call("LOCK.ACQUIRE k b 1 SHARED");
        assert_eq!(server.deadline("k"), deadline);
        outwait(1);
        // Whoever looks first sees it gone.
        assert_eq!(holders(&server, "k"), [b"a"]);
        assert_eq!(server.call("LOCK.RELEASE k b"), 0);
        assert_eq!(server.call("LOCK.RENEW k b 100000"), 0);
        assert_eq!(holders(&server, "k"), [b"a"]);
        assert_eq!(deadline_of(&server, "a"), deadline);
        assert_eq!(server.deadline("k"), deadline);
        assert_eq!(server.call(("LOCK.RELEASE", "k", "a", "TOKEN", a)), 1);

        // It does not matter which of them comes first.
        let commands = ["LOCK.ACQUIRE k b 1 SHARED", "LOCK.ACQUIRE k a 100000 SHARED"];
        server.leased("k", 100_000, || last_of(&mut client, &commands));
        outwait(1);
        assert!(server.call("LOCK.ACQUIRE k w 1").is_nil());
        assert_eq!(holders(&server, "k"), [b"a"]);
    }

    /// redisson#2045, redisson#2444: a permit that lapsed is not given back, or takes others along.
    fn a_permit_that_lapsed_frees_its_place_and_no_other(flavour) {
        let server = Server::start(flavour);
        let mut client = server.raw();
        for round in 0..3 {
            let commands = [
                "LOCK.ACQUIRE k a 100000 LIMIT 3", "LOCK.ACQUIRE k b 1 LIMIT 3 REQID r",
                "LOCK.ACQUIRE k c 100000 LIMIT 3", "DEBUG SLEEP 0.005",
                "LOCK.ACQUIRE k d 100000 LIMIT 3", "LOCK.ACQUIRE k e 100000 LIMIT 3",
                "LOCK.RELEASE k b", "LOCK.RELEASE k a", "LOCK.ACQUIRE k e 100000 LIMIT 3",
            ];
            let replies = client.pipeline(commands);
            let granted: Vec<bool> = replies.iter().map(|reply| !reply.is_nil()).collect();
            let expected = [true, true, true, true, true, false, true, true, true];
            assert_eq!(granted, expected, "round {round}: {replies:?}");
            assert_eq!(replies[6..8], [Reply::Int(0), Reply::Int(1)]);
            assert_eq!(holders(&server, "k"), [b"c", b"d", b"e"]);
            let kept = members(&server, "k").into_keys();
            assert!(!kept.into_iter().any(|member| member.ends_with(b"b")));
            assert_eq!(server.call("DEL k"), 1);
        }
    }

    fn a_release_ends_just_the_share_of_its_owner_and_token(flavour) {
        let server = Server::start(flavour);
        assert_eq!(server.call("LOCK.RELEASE k a"), -1);
        let (a, b) = (share(&server, "a"), share(&server, "b"));
        let stored = server.snapshot();
        for (request, reply) in [
            ("LOCK.RELEASE k c".to_owned(), 0),
            ("LOCK.RELEASE k A".to_owned(), 0),
            ("LOCK.RELEASE k o:a".to_owned(), 0),
            (format!("LOCK.RELEASE k a TOKEN {b}"), 0),
            (format!("LOCK.RELEASE k a TOKEN {}", a - 1), 0),
            (format!("LOCK.RELEASE k b TOKEN {a}"), 0),
            (format!("LOCK.RELEASE k c TOKEN {a}"), 0),
            (format!("LOCK.RELEASE none a TOKEN {a}"), -1),
        ] {
            assert_eq!(server.call(&request), reply, "{request}");
            assert_eq!(server.snapshot(), stored, "{request}");
        }
        assert_eq!(server.call(("LOCK.RELEASE", "k", "a", "TOKEN", a)), 1);
        assert_eq!(server.call(("LOCK.RELEASE", "k", "a", "TOKEN", a)), 0);
        assert_eq!(holders(&server, "k"), [b"b"]);
        // An old token does not end a later share of the same owner.
        share(&server, "a");
        assert_eq!(server.call(("LOCK.RELEASE", "k", "a", "TOKEN", a)), 0);
        assert_eq!(server.call("LOCK.RELEASE k a"), 1);
        assert_eq!(server.call("LOCK.RELEASE k b"), 1);
        assert_eq!(server.call("LOCK.RELEASE k b"), -1);
        assert_eq!(server.dbsize(), 0);
    }

    fn a_renewal_moves_one_lease_and_the_key_expires_with_the_last(flavour) {
        let server = Server::start(flavour);
        let tokens = [share(&server, "a"), share(&server, "b"), share(&server, "c")];
        let others = deadline_of(&server, "b");
        let renewals =
            [(200_000, ""), (50_000, " TOKEN"), (300_000, " WATCHDOG"), (1_000, "")];
        for (ttl, option) in renewals {
            let option = option.replace("TOKEN", &format!("TOKEN {}", tokens[0]));
            let before = unix_millis();
            assert_eq!(server.call(format!("LOCK.RENEW k a {ttl}{option}")), 1);
            let deadline = deadline_of(&server, "a");
            assert!((before + ttl..=unix_millis() + ttl).contains(&deadline), "{ttl}");
            assert_eq!(deadline_of(&server, "b"), others);
            assert_expires_with_the_last(&server);
        }
        let stored = server.snapshot();
        for (request, reply) in [
            ("LOCK.RENEW k d 1".to_owned(), 0),
            (format!("LOCK.RENEW k b 1 TOKEN {}", tokens[2]), 0),
            (format!("LOCK.RENEW k d 1 TOKEN {}", tokens[1]), 0),
            ("LOCK.RENEW none a 1".to_owned(), -1),
        ] {
            assert_eq!(server.call(&request), reply, "{request}");
            assert_eq!(server.snapshot(), stored, "{request}");
        }
        // What remains is the token, whatever became of the lease.
        let grants = server.call("LOCK.INFO k");
        let grant = |owner: &str| {
            let grants = grants.field("grants").items();
            let grant = grants.iter().find(|grant| *grant.field("owner") == owner);
            grant.unwrap().field("token").as_int()
        };
        assert_eq!([grant("a"), grant("b"), grant("c")], tokens);
    }

    fn the_key_lives_as_long_as_the_longest_lease_that_is_left(flavour) {
        let server = Server::start(flavour);
        for (owner, ttl) in [("a", 300_000), ("b", 100_000), ("c", 200_000)] {
            server.call(("LOCK.ACQUIRE", "k", owner, ttl, "SHARED"));
        }
        for (owner, last) in [("a", "c"), ("c", "b")] {
            assert_eq!(server.deadline("k"), deadline_of(&server, owner));
            assert_eq!(server.call(("LOCK.RELEASE", "k", owner)), 1);
            assert_eq!(server.deadline("k"), deadline_of(&server, last));
        }
        assert_eq!(server.call("LOCK.RENEW k b 1"), 1);
        outwait(1);
        assert_eq!(server.call("LOCK.INFO k").field("state"), "free");
        assert_eq!(server.call("LOCK.RELEASE k b"), -1);
        assert_eq!(server.dbsize(), 0);
    }

    /// A score is exact up to there, and no clock will be there.
    fn the_longest_lease_ends_where_scores_end(flavour) {
        let server = Server::start(flavour);
        for mode in ["SHARED", "LIMIT 2"] {
            let request = format!("LOCK.ACQUIRE k a {LATEST} {mode} WATCHDOG");
            assert!(server.call(&request).as_int() > 0);
            assert_eq!((deadline_of(&server, "a"), server.deadline("k")), (LATEST, LATEST));
            assert_eq!(server.call("LOCK.RENEW k a 1000"), 1);
            assert_eq!(server.call(format!("LOCK.RENEW k a {LATEST} WATCHDOG")), 1);
            assert_eq!((deadline_of(&server, "a"), server.deadline("k")), (LATEST, LATEST));
            assert!(server.call("LOCK.ACQUIRE k b 1 LIMIT 1").is_nil());
            assert!(server.call("LOCK.ACQUIRE k b 1").is_nil());
            assert_eq!(server.call("LOCK.RELEASE k a"), 1);
        }
        assert_eq!(server.dbsize(), 0);
    }

    fn a_request_that_is_sent_again_gets_its_token_and_no_second_place(flavour) {
        let server = Server::start(flavour);
        let first = "LOCK.ACQUIRE k a 100000 LIMIT 2 REQID r";
        let token = server.call(first).as_int();
        let stored = server.snapshot();
        for again in [
            first,
            "LOCK.ACQUIRE k a 200000 SHARED REQID r",
            "LOCK.ACQUIRE k a 200000 LIMIT 1 REQID r",
            "LOCK.ACQUIRE k a 200000 LIMIT 2 REQID r BLOCK 0",
        ] {
            assert_eq!(server.call(again), token, "{again}");
            assert_eq!(server.snapshot(), stored, "{again}");
        }
        for other in [
            "LOCK.ACQUIRE k a 100000 SHARED", "LOCK.ACQUIRE k a 100000 SHARED REQID R",
            "LOCK.ACQUIRE k a 100000 SHARED REQID rr", "LOCK.ACQUIRE k a 100000 REQID r",
            "LOCK.RACQUIRE k a 100000 REQID r",
        ] {
            assert_eq!(server.call(other), Reply::NilBulk, "{other}");
        }
        assert_eq!(server.snapshot(), stored);
        // The same id of another owner is another request, and there is room for just one more.
        assert!(server.call("LOCK.ACQUIRE k b 100000 LIMIT 2 REQID r").as_int() > token);
        assert_eq!(server.call("LOCK.ACQUIRE k c 100000 LIMIT 2 REQID r"), Reply::NilBulk);
        assert_eq!(server.call(first), token, "also where there is no room any more");
        // After the release it is a new request.
        assert_eq!(server.call("LOCK.RELEASE k a"), 1);
        assert!(server.call(first).as_int() > token);
        assert_eq!(members(&server, "k").len(), 7);
        // A share without an id remembers none.
        server.call("LOCK.RELEASE k a");
        share(&server, "a");
        assert_eq!(server.call(first), Reply::NilBulk);
        assert_eq!(members(&server, "k").len(), 6);
    }

    fn tokens_rise_whatever_becomes_of_the_shares(flavour) {
        let server = Server::build(flavour).start();
        let mut last = 0;
        let mut rises = |token: i64, what: &str| {
            assert!(token > last, "{token} after {last}, {what}");
            last = token;
        };
        for owner in ["a", "b", "c"] {
            rises(share(&server, owner), owner);
        }
        server.call("LOCK.RELEASE k b");
        rises(share(&server, "b"), "released");
        server.call("DEL k");
        rises(share(&server, "a"), "deleted");
        // The highest token in a set counts, whoever has it.
        let ahead = unix_micros() + 1_000_000_000;
        server.call(("ZADD", "k", -ahead, "t:a"));
        let server = server.restart();
        rises(ahead, "by hand");
        rises(share(&server, "b"), "after a restart");
        rises(server.call("LOCK.ACQUIRE other x 1000").as_int(), "another lock");
        server.call("FLUSHALL");
        rises(share(&server, "a"), "flushed");
        server.call("LOCK.RELEASE k a");
        rises(server.call("LOCK.ACQUIRE k w 1000").as_int(), "alone");
    }

    fn the_server_makes_owners_of_shares_too(flavour) {
        let server = Server::start(flavour);
        let mut owners = Vec::new();
        for mode in ["SHARED", "LIMIT 3", "LIMIT 3"] {
            let reply = server.call(format!("LOCK.ACQUIRE k * 100000 {mode}"));
            let owner = reply.items()[1].as_text().to_owned();
            let uuid = Uuid::try_parse(&owner).unwrap();
            assert_eq!(uuid.get_version(), Some(Version::Random), "{owner}");
            let token = members(&server, "k")[format!("t:{owner}").as_bytes()];
            assert_eq!(reply.items()[0], -token);
            owners.push(owner);
        }
        assert_eq!(server.call("LOCK.ACQUIRE k * 100000 LIMIT 3"), Reply::NilBulk);
        assert_eq!(holders(&server, "k").len(), 3);
        for owner in owners {
            assert_eq!(server.call(("LOCK.RELEASE", "k", owner)), 1);
        }
        let refused = error("ERR REQID needs an owner of yours, not '*'");
        assert_eq!(server.call("LOCK.ACQUIRE k * 1 SHARED REQID r"), refused);
        assert_eq!(server.dbsize(), 0);
    }

    fn any_bytes_can_be_a_key_an_owner_or_a_request(flavour) {
        let server = Server::start(flavour);
        for key in [&b""[..], b"\0\xff\r\n", b"%s%n", b"lk1s", b"{a}b{"] {
            let mut tokens = Vec::new();
            for (count, owner) in (1..).zip(ODD_OWNERS) {
                let id = &owner[..owner.len().min(64)];
                let request = [
                    b"LOCK.ACQUIRE", key, owner, b"100000", b"LIMIT", b"14", b"REQID", id,
                ];
                let shown = owner.escape_ascii();
                let token = server.call(&request[..]).as_int();
                assert_eq!(server.call(&request[..]), token, "{shown}");
                assert_eq!(holders(&server, key).len(), count, "{shown}");
                assert_eq!(members(&server, key).len(), 1 + 3 * count, "{shown}");
                tokens.push(token);
            }
            assert!(server.call(("LOCK.ACQUIRE", key, "y", 1, "LIMIT", 14)).is_nil());
            let mut sorted: Vec<Vec<u8>> = ODD_OWNERS.map(<[u8]>::to_vec).into();
            sorted.sort();
            assert_eq!(holders(&server, key), sorted);
            for (owner, token) in ODD_OWNERS.into_iter().zip(tokens) {
                let shown = owner.escape_ascii();
                let renew = ("LOCK.RENEW", key, owner, 200_000, "TOKEN", token);
                assert_eq!(server.call(renew), 1, "{shown}");
                let release = ("LOCK.RELEASE", key, owner, "TOKEN", token);
                assert_eq!(server.call(release), 1, "{shown}");
            }
            assert_eq!(server.dbsize(), 0);
        }
    }

    fn what_is_shared_is_shown_by_info(flavour) {
        let server = Server::start(flavour);
        let free = server.call("LOCK.INFO k");
        assert_eq!(*free.field("grants"), Reply::Array(Vec::new()));
        assert!(free.field("mode").is_nil());
        let tokens = [
            server.call("LOCK.ACQUIRE k a 300000 SHARED").as_int(),
            server.call("LOCK.ACQUIRE k b 100000 LIMIT 2").as_int(),
        ];
        let (mut resp3, earliest) = (server.raw_resp3(), unix_millis());
        let info = resp3.call("LOCK.INFO k");
        let latest = unix_millis();
        let Reply::Map(fields) = &info else {
            panic!("{info:?}");
        };
        let names: Vec<&str> = fields.iter().map(|(name, _)| name.as_text()).collect();
        let expected = [
            "state", "mode", "owners", "token", "ttl", "waiters", "layout", "age", "grants",
        ];
        assert_eq!(names, expected);
        for (field, value) in [("state", "held"), ("mode", "shared"), ("layout", "module")] {
            assert_eq!(info.field(field), &Reply::bulk(value), "{field}");
        }
        // Each has its own lease; the longest is that of the lock, and the last token.
        let Reply::Map(owners) = info.field("owners") else {
            panic!("{info:?}");
        };
        assert_eq!(owners.len(), 2);
        let grants = info.field("grants").items();
        for (owner, token) in ["a", "b"].into_iter().zip(tokens) {
            assert_eq!(info.field("owners").field(owner), 1);
            let grant = grants.iter().find(|grant| *grant.field("owner") == owner).unwrap();
            assert_eq!(grant.field("token"), token);
            let deadline = deadline_of(&server, owner);
            let ttl = grant.field("ttl").as_int();
            assert!((deadline - latest..=deadline - earliest).contains(&ttl), "{owner}: {ttl}");
            if owner == "a" {
                assert_eq!(info.field("ttl"), ttl);
            }
        }
        assert_eq!(grants.len(), 2);
        assert_eq!(info.field("token"), tokens[1]);
        assert_eq!(info.field("waiters"), 0);
        let age = info.field("age").as_int();
        let granted = tokens[1] / 1_000;
        assert!((earliest - granted..=latest - granted).contains(&age), "{age}");
        // A lock that is held alone has one grant of the same shape.
        server.call("DEL k");
        let token = server.call("LOCK.ACQUIRE k w 100000").as_int();
        let info = server.call("LOCK.INFO k");
        assert_eq!(info.field("mode"), &Reply::bulk("exclusive"));
        let grant = &info.field("grants").items()[0];
        assert_eq!(grant.field("owner"), &Reply::bulk("w"));
        assert_eq!(grant.field("token"), token);
        assert_eq!(grant.field("ttl"), info.field("ttl"));
    }

    fn a_guard_lets_every_share_pass_and_nothing_else(flavour) {
        let server = Server::start(flavour);
        let (a, b) = (share(&server, "a"), share(&server, "b"));
        for (token, value) in [(a, "1"), (b, "2")] {
            assert_eq!(server.call(("LOCK.GUARD", "k", token, "SET", "data", value)), "OK");
        }
        server.call("LOCK.RELEASE k a");
        for token in [a, a - 1, b + 1] {
            let reply = server.call(("LOCK.GUARD", "k", token, "SET", "data", "3"));
            assert_eq!(reply.error_code(), Some("NOTHELD"), "{token}");
        }
        assert_eq!(server.call(("LOCK.GUARD", "k", b, "GET", "data")), "2");
        server.raw().pipeline(["LOCK.RENEW k b 1", "LOCK.ACQUIRE k c 100000 SHARED"]);
        outwait(1);
        let reply = server.call(("LOCK.GUARD", "k", b, "GET", "data"));
        assert_eq!(reply.error_code(), Some("NOTHELD"));
    }

    fn shares_are_taken_in_transactions_and_scripts_too(flavour) {
        let server = Server::start(flavour);
        let mut client = server.raw();
        let replies = client.pipeline([
            "MULTI",
            "LOCK.ACQUIRE k a 100000 SHARED", "LOCK.ACQUIRE k b 100000 LIMIT 2",
            "LOCK.ACQUIRE k c 100000 LIMIT 2 BLOCK 0", "LOCK.ACQUIRE k w 100000 BLOCK 0",
            "LOCK.RENEW k a 200000", "LOCK.RELEASE k b",
            "EXEC",
        ]);
        let replies = replies[7].items();
        assert!(replies[0].as_int() < replies[1].as_int());
        assert_eq!(replies[2..4], [Reply::NilBulk, Reply::NilBulk]);
        assert_eq!(replies[4..], [Reply::Int(1), Reply::Int(1)]);
        let script = "\
            return redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[1], 100000, 'LIMIT', 2, 'BLOCK', 0)";
        assert!(server.call(("EVAL", script, 1, "k", "b")).as_int() > replies[1].as_int());
        assert!(server.call(("EVAL", script, 1, "k", "c")).is_nil());
        assert_eq!(holders(&server, "k"), [b"a", b"b"]);
    }

    fn shares_of_other_keys_and_databases_are_other_shares(flavour) {
        let server = Server::start(flavour);
        let mut other = server.raw();
        other.call("SELECT 1");
        let request = |key: &str| format!("LOCK.ACQUIRE {key} a 100000 LIMIT 1");
        let tokens = [
            server.call(request("k")).as_int(),
            server.call(request("k2")).as_int(),
            other.call(request("k")).as_int(),
        ];
        assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
        assert_eq!(other.call("LOCK.RELEASE k a"), 1);
        assert_eq!(other.call("LOCK.RELEASE k a"), -1);
        assert_eq!(holders(&server, "k"), [b"a"]);
    }

    fn a_sorted_set_without_the_mark_is_no_lock(flavour) {
        let server = Server::start(flavour);
        let (token, deadline) = (-unix_micros(), unix_millis() + LONG);
        let sets = [
            ("leaderboard", vec![(10, "anna"), (20, "bert")]),
            ("no mark", vec![(deadline, "o:a"), (token, "t:a")]),
            ("another score", vec![(1, "lk1s"), (deadline, "o:a"), (token, "t:a")]),
            ("lapsed", vec![(1, "o:a"), (-5, "t:a")]),
            ("another version", vec![(0, "lk2s"), (deadline, "o:a"), (token, "t:a")]),
            ("another case", vec![(0, "LK1S"), (deadline, "o:a"), (token, "t:a")]),
        ];
        for (key, members) in &sets {
            for (score, member) in members {
                server.call(("ZADD", *key, *score, *member));
            }
        }
        let mut witness = server.witness();
        let wrong = error("WRONGTYPE Operation against a key holding the wrong kind of value");
        for (key, _) in &sets {
            for words in [
                "LOCK.ACQUIRE $ a 1000 SHARED", "LOCK.ACQUIRE $ a 1000 LIMIT 2",
                "LOCK.ACQUIRE $ a 1000 SHARED BLOCK 0 REQID r",
                "LOCK.ACQUIRE $ a 1000 LIMIT 2 WATCHDOG",
                "LOCK.ACQUIRE $ a 1000", "LOCK.ACQUIRE $ a 1000 BLOCK 0", "LOCK.RACQUIRE $ a 1000",
                "LOCK.RELEASE $ a", "LOCK.RELEASE $ a TOKEN 5", "LOCK.RENEW $ a 1000",
                "LOCK.RENEW $ a 1000 WATCHDOG", "LOCK.INFO $", "LOCK.GUARD $ 5 GET data",
                "LOCK.MACQUIRE 2 $ free a 1000", "LOCK.MACQUIRE 2 free $ a 1000 BLOCK 0",
            ] {
                let mut command = words.to_words();
                for word in &mut command.0 {
                    if word == b"$" {
                        *word = key.as_bytes().to_vec();
                    }
                }
                assert_eq!(server.call(&command), wrong, "{command}");
            }
            // Nobody waits there.
            assert_eq!(server.call(("LOCK.QUEUE", *key)), Reply::Array(Vec::new()));
        }
        witness.saw_nothing("commands on sorted sets that are no locks");
        assert_eq!(server.info_number("lock", "lock_watchdogs"), 0);
    }

    /// Whatever somebody writes into the set, those who have a share have it, the server lives on,
    /// and nobody is locked out for longer than there is a deadline.
    fn a_set_that_was_tampered_with_harms_nobody(flavour) {
        let server = Server::start(flavour);
        let (soon, late) = (unix_millis() + 50_000, unix_millis() + 5_000_000);
        let long = "x".repeat(513);
        let mut rows: Vec<(String, String)> = Vec::new();
        for score in [
            "inf", "-inf", "1e300", "-1e300", "9007199254740992", "-9007199254740992",
            "9007199254740991", "0.5", "-0.5", "1", "-1", "-1.5", "0", "5e-324",
        ].map(str::to_owned).into_iter().chain([
            soon.to_string(), late.to_string(), format!("{soon}.5"), format!("{late}.25"),
            format!("-{}.5", unix_micros()),
        ]) {
            for member in [
                "junk", "", "o:", "o:x", "t:", "t:x", "t:a", "r:1:x:a", "r:99:x", "r:", "LK1S",
                &format!("o:{long}"), &format!("t:{long}"),
            ] {
                rows.push((score.clone(), member.to_owned()));
            }
        }
        for (score, member) in rows {
            let shown = format!("{score} {}", &member[..member.len().min(8)]);
            let token = server.call("LOCK.ACQUIRE k a 100000 SHARED").as_int();
            assert!(token > 0, "{shown}");
            server.call(("ZADD", "k", &score, &member));
            for (command, reply) in [
                ("LOCK.ACQUIRE k w 1000", Reply::NilBulk),
                ("LOCK.RACQUIRE k a 1000", Reply::NilBulk),
                ("LOCK.ACQUIRE k b 1000 LIMIT 1", Reply::NilBulk),
                ("LOCK.ACQUIRE k a 1000 LIMIT 9", Reply::NilBulk),
                ("LOCK.RELEASE k c", Reply::Int(0)),
                ("LOCK.RENEW k c 1000", Reply::Int(0)),
                ("LOCK.RENEW k a 200000", Reply::Int(1)),
            ] {
                assert_eq!(server.call(command), reply, "{command}, {shown}");
            }
            let info = server.call("LOCK.INFO k");
            assert_eq!(info.field("owners").field("a"), 1, "{shown}");
            assert!(server.call("LOCK.ACQUIRE k b 400000 SHARED").as_int() > 0, "{shown}");
            let ttl = server.call("PTTL k").as_int();
            assert!(ttl > 300_000, "a lease of 400000 is {ttl}, {shown}");
            assert_eq!(server.call("LOCK.RELEASE k a"), 1, "{shown}");
            assert!(server.call("LOCK.INFO k").field("owners").items().len() >= 2, "{shown}");
            assert_eq!(server.call("LOCK.RELEASE k b"), 1, "{shown}");
            // What stays of it, if anything, has a deadline.
            if server.dbsize() > 0 {
                assert!(server.call("PTTL k").as_int() > 0, "{shown}");
            }
            server.call("DEL k");
        }
    }

    /// The members that go with a share can be missing.
    fn a_share_without_its_token_is_still_a_share(flavour) {
        let server = Server::start(flavour);
        let request = "LOCK.ACQUIRE k a 100000 SHARED REQID r";
        let token = server.call(request).as_int();
        share(&server, "b");
        assert_eq!(server.call("ZREM k t:a"), 1);
        assert_eq!(holders(&server, "k"), [b"a", b"b"]);
        assert!(server.call(request).is_nil());
        assert!(server.call("LOCK.ACQUIRE k c 1 LIMIT 2").is_nil());
        assert_eq!(server.call(("LOCK.RELEASE", "k", "a", "TOKEN", token)), 0);
        let refused = server.call("LOCK.RENEW k a 1000 WATCHDOG");
        assert_eq!(refused.error_code(), Some("ERR"), "{refused:?}");
        assert_eq!(server.call("LOCK.RENEW k a 200000"), 1);
        assert_eq!(server.call("LOCK.RELEASE k a"), 1);
        assert_eq!(holders(&server, "k"), [b"b"]);
        assert!(server.call(request).as_int() > token);
        // A share that was taken out by hand is gone, whatever is left of it.
        assert_eq!(server.call("ZREM k o:a"), 1);
        assert_eq!(holders(&server, "k"), [b"b"]);
        assert_eq!(server.call("LOCK.RELEASE k a"), 0);
        assert!(share(&server, "a") > token);
        // Without any share the lock is free.
        for owner in ["o:a", "o:b"] {
            assert_eq!(server.call(("ZREM", "k", owner)), 1);
        }
        assert_eq!(server.call("LOCK.INFO k").field("state"), "free");
        assert_eq!(server.call("LOCK.RELEASE k a"), -1);
        assert!(server.call("LOCK.ACQUIRE k w 100000").as_int() > 0);
        assert_eq!(server.call("TYPE k"), "string");
    }

    /// By a token one owner is found, or in a forged set as many as there are. What looked for all of
    /// them once for each would take hours.
    fn shares_under_one_token_are_taken_out_in_one_go(flavour) {
        const OWNERS: i32 = 20_000;
        let server = Server::start(flavour);
        let mut client = server.raw();
        server.call(format!("ZADD k 0 lk1s {LATEST} o:live -5 t:live -5 r:1:x:live"));
        client.pipeline((0..OWNERS).map(|owner| {
            format!("ZADD k 1 o:{owner} -5 t:{owner} -5 r:1:x:{owner}")
        }));
        let started = Instant::now();
        assert_eq!(server.call("LOCK.RELEASE k nobody"), 0);
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        let members = server.call("ZRANGE k 0 -1");
        assert_eq!(members.items(), ["r:1:x:live", "t:live", "lk1s", "o:live"]);

        // The share of one owner takes no other along.
        server.call(format!("ZADD k {LATEST} o:next -5 t:next"));
        assert_eq!(server.call("LOCK.RELEASE k live TOKEN 5"), 1);
        assert_eq!(server.call("ZRANGE k 0 -1").items(), ["t:next", "lk1s", "o:next"]);
        assert_eq!(server.call("LOCK.RELEASE k next TOKEN 5"), 1);
        assert_eq!(server.dbsize(), 0);
    }

    /// What a set says that is made by hand is over when its deadlines are, also without a TTL.
    fn a_set_that_was_made_by_hand_locks_nobody_out_for_ever(flavour) {
        let server = Server::start(flavour);
        for member in ["junk", "o:", "o:x", "t:x", "r:1:x:x"] {
            for score in ["inf", "1e300", "-inf", "-5", "0.5", "0", "30", "30.5"] {
                let score = match score {
                    "30" => (unix_millis() + 30).to_string(),
                    "30.5" => format!("{}.5", unix_millis() + 30),
                    other => other.to_owned(),
                };
                for mode in ["", "SHARED", "LIMIT 1"] {
                    let request = format!("LOCK.ACQUIRE k a 100000 BLOCK 0 {mode}");
                    server.call(("ZADD", "k", 0, "lk1s", &score, member));
                    let mut client = server.raw();
                    let token = client.call(&request).as_int();
                    assert!(token > 0, "{member} {score} {mode}");
                    assert_eq!(server.call("LOCK.RELEASE k a"), 1, "{member} {score} {mode}");
                    server.call("DEL k");
                }
            }
        }
    }

    fn a_mode_that_is_none_is_an_error(flavour) {
        let server = Server::start(flavour);
        share(&server, "a");
        server.call("LOCK.ACQUIRE other a 100000");
        let mut witness = server.witness();
        let no_integer = "ERR LIMIT is not an integer or out of range";
        let not_positive = "ERR LIMIT must be positive";
        let both = "ERR SHARED and LIMIT can't be given together";
        for (options, text) in [
            ("SHARED LIMIT 2", both), ("LIMIT 2 SHARED", both), ("LIMIT 2 BLOCK 0 shared", both),
            ("SHARED SHARED", "ERR option SHARED is given twice"),
            ("SHARED BLOCK 0 shared", "ERR option SHARED is given twice"),
            ("LIMIT 2 LIMIT 2", "ERR option LIMIT is given twice"),
            ("LIMIT", "ERR option LIMIT needs a value"),
            ("BLOCK 0 LIMIT", "ERR option LIMIT needs a value"),
            ("LIMIT 0", not_positive), ("LIMIT -1", not_positive),
            ("LIMIT -9223372036854775808", not_positive),
            ("LIMIT 4294967296", no_integer), ("LIMIT 9223372036854775807", no_integer),
            ("LIMIT 9223372036854775808", no_integer), ("LIMIT x", no_integer),
            ("LIMIT 1.5", no_integer), ("LIMIT 1e3", no_integer), ("LIMIT +1", no_integer),
            ("LIMIT 01", no_integer), ("LIMIT SHARED", no_integer),
            ("SHARE", "ERR unknown option 'SHARE'"), ("SHARED 2", "ERR unknown option '2'"),
            ("LIMIT 2 3", "ERR unknown option '3'"),
        ] {
            for key in ["free", "k", "other"] {
                let request = format!("LOCK.ACQUIRE {key} b 100000 {options}");
                assert_eq!(server.call(&request), error(text), "{request}");
            }
        }
        for empty in ["", " 1", "1 ", "1\0"] {
            let request = ("LOCK.ACQUIRE", "free", "b", LONG, "LIMIT", empty);
            assert_eq!(server.call(request), error(no_integer), "{empty:?}");
        }
        for word in ["SHARED", "LIMIT"] {
            let unknown = error(&format!("ERR unknown option '{word}'"));
            for command in [
                "LOCK.RACQUIRE free b 100000", "LOCK.RELEASE k a", "LOCK.RENEW k a 100000",
                "LOCK.MACQUIRE 2 free k b 100000", "LOCK.QUEUE k",
            ] {
                let request = format!("{command} {word} 2");
                assert_eq!(server.call(&request), unknown, "{request}");
            }
        }
        let owner = error("ERR owner must be 1 to 512 bytes long");
        for bad in [vec![], vec![b'x'; 513]] {
            assert_eq!(server.call(("LOCK.ACQUIRE", "k", &bad, LONG, "SHARED")), owner);
        }
        witness.saw_nothing("errors");
        assert_eq!(server.info_number("lock", "lock_waiters"), 0);
    }

    fn ten_thousand_permits_are_counted_right(flavour) {
        const PERMITS: i32 = 10_000;
        let server = Server::start(flavour);
        let mut client = server.raw();
        let acquire = |owner: i32| format!("LOCK.ACQUIRE k o{owner} 1000000 LIMIT {PERMITS}");
        let release = |owner: i32| format!("LOCK.RELEASE k o{owner}");
        for first in (0..PERMITS).step_by(500) {
            let replies = client.pipeline((first..first + 500).map(acquire));
            assert!(replies.iter().all(|reply| reply.as_int() > 0), "{first}");
        }
        let full = [acquire(PERMITS), acquire(PERMITS + 1), acquire(0)];
        assert!(client.pipeline(&full).iter().all(Reply::is_nil));
        assert_eq!(server.call("ZCARD k"), i64::from(2 * PERMITS + 1));
        assert_eq!(server.call("LOCK.INFO k").field("grants").items().len(), 10_000);
        // Each that is given back makes room for just one.
        for owner in [0, 9_999, 5_000, 1, 9_998] {
            let next = [acquire(PERMITS + 1 + owner), acquire(2 * PERMITS + owner)];
            let replies = client.pipeline([&release(owner), &next[0], &next[1]]);
            assert_eq!(replies[0], 1);
            assert!(replies[1].as_int() > 0);
            assert!(replies[2].is_nil());
        }
        for first in (0..PERMITS).step_by(500) {
            let replies = client.pipeline((first..first + 500).map(release));
            let gone = replies.iter().filter(|reply| **reply == 0).count();
            let expected = match first { 0 | 9_500 => 2, 5_000 => 1, _ => 0 };
            assert_eq!(gone, expected, "{first}");
        }
        assert_eq!(holders(&server, "k").len(), 5);
        for owner in [0, 9_999, 5_000, 1, 9_998] {
            assert_eq!(server.call(release(PERMITS + 1 + owner)), 1);
        }
        assert_eq!(server.dbsize(), 0);
    }

    /// What walked through all holders would take a hundred times as long.
    fn a_permit_takes_about_as_long_beside_many_as_beside_few(flavour) {
        const FEW: i32 = 100;
        const MANY: i32 = 10_000;
        let server = Server::start(flavour);
        let mut client = server.raw();
        let fill = |owner: i32| format!("LOCK.ACQUIRE k o{owner} 1000000 SHARED");
        let pair = [
            format!("LOCK.ACQUIRE k x 900000 LIMIT {}", MANY + 1),
            "LOCK.RENEW k x 950000".to_owned(),
            "LOCK.RELEASE k x".to_owned(),
        ];
        let mut usec = |owners: std::ops::Range<i32>| {
            for first in owners.clone().step_by(100) {
                client.pipeline((first..first + 100).map(fill));
            }
            assert_eq!(server.call("ZCARD k"), i64::from(2 * owners.end + 1));
            server.call("CONFIG RESETSTAT");
            let replies = client.pipeline((0..1_000).flat_map(|_| &pair));
            assert!(replies.iter().all(|reply| reply.as_int() > 0));
            let commands = ["lock.acquire", "lock.renew", "lock.release"];
            commands.map(|command| server.command_stats(command).usec).iter().sum::<u64>()
        };
        let (few, many) = (usec(0..FEW), usec(FEW..MANY));
        assert!(many < 10 * few, "{few} us beside {FEW}, {many} us beside {MANY}");
    }

    /// The module keeps nothing of them in memory, so they outlive it.
    fn shares_outlive_the_module_and_the_server(flavour) {
        for way in ["module", "snapshot", "append only file"] {
            let server = Server::build(flavour);
            let server = if way == "snapshot" { server } else { server.aof() }.start();
            let tokens = [share(&server, "a"), share(&server, "b")];
            server.call("LOCK.ACQUIRE k c 1 SHARED");
            let again = "LOCK.ACQUIRE k d 100000 LIMIT 9 REQID r";
            let last = server.call(again).as_int();
            outwait(1);
            let stored = server.snapshot();
            let server = match way {
                "snapshot" => server.restart(),
                "append only file" => server.kill().start(),
                _ => {
                    let modules = server.call("MODULE LIST");
                    let mut modules = modules.items().iter();
                    let module = modules.find(|module| *module.field("name") == "lock");
                    let path = module.unwrap().field("path").as_text();
                    crate::waiters::unload(&server);
                    assert_eq!(server.call("ZSCORE k lk1s"), "0");
                    assert_eq!(server.call(("MODULE", "LOAD", path)), "OK");
                    server
                }
            };
            assert_eq!(server.snapshot(), stored, "{way}");
            assert_eq!(holders(&server, "k"), [b"a", b"b", b"d"], "{way}");
            assert!(server.call("LOCK.ACQUIRE k w 1").is_nil(), "{way}");
            assert!(server.call("LOCK.ACQUIRE k e 1 LIMIT 3").is_nil(), "{way}");
            assert_eq!(server.call(again), last, "{way}");
            for (owner, token) in ["a", "b"].into_iter().zip(tokens) {
                let renew = ("LOCK.RENEW", "k", owner, LONG, "TOKEN", token);
                assert_eq!(server.call(renew), 1, "{way}");
                let release = ("LOCK.RELEASE", "k", owner, "TOKEN", token);
                assert_eq!(server.call(release), 1, "{way}");
            }
            assert!(share(&server, "c") > last, "{way}");
        }
    }
}
