//! Several locks at once: `LOCK.MACQUIRE`, `LOCK.MRELEASE` and `LOCK.MRENEW`. All of the locks or
//! none of them, under one token; and who waits for them holds nothing and is not overtaken.

use std::thread;
use std::time::{Duration, Instant};

use crate::harness::{Raw, Reply, Server, ToWords, Words, on_every_server, wait_until};
use crate::waiting::{assert_held, assert_nobody_waits, waiter};

/// The ttl of most leases here, in milliseconds. It lapses in no test.
const LONG: i64 = 600_000;

/// Takes locks, which must be free, and returns the token.
fn take(server: &Server, keys: &str, owner: &str) -> i64 {
    server.call(acquire(keys, owner)).as_int()
}

/// The command that takes locks for an owner.
fn acquire(keys: &str, owner: &str) -> String {
    let numkeys = keys.split(' ').count();
    format!("LOCK.MACQUIRE {numkeys} {keys} {owner} {LONG}")
}

/// A client that stands last in the queue of each of these locks.
fn wait_for_all(server: &Server, keys: &str, owner: &str) -> Raw {
    waiter(server, format!("{} BLOCK 0", acquire(keys, owner)))
}

/// A client that stands last in the queue of one lock, as it is asked for in `mode`.
fn wait_for_one(server: &Server, key: &str, owner: &str, mode: &str) -> Raw {
    let request = format!("LOCK.ACQUIRE {key} {owner} {LONG} BLOCK 0 {mode}");
    waiter(server, request)
}

/// Asserts that an owner has all of these locks by one grant, with a lease that counts from it.
fn assert_granted(server: &Server, keys: &str, owner: &str, token: i64) {
    for key in keys.split(' ') {
        let record = format!("lk1:{token}:1:{owner}");
        assert_eq!(server.call(("GET", key)), record.as_str(), "{key}");
        assert_eq!(server.deadline(key), token / 1_000 + LONG, "{key}");
    }
}

/// Reads the grant of locks to a client that waited for them. Returns the token.
fn granted(server: &Server, client: &mut Raw, keys: &str, owner: &str) -> i64 {
    let token = client.read().as_int();
    assert_granted(server, keys, owner, token);
    token
}

/// Releases all of these locks, each of which must be held by the owner.
fn release(server: &Server, keys: &str, owner: &str) {
    let numkeys = keys.split(' ').count();
    let reply = server.call(format!("LOCK.MRELEASE {numkeys} {keys} {owner}"));
    assert_eq!(reply, Reply::Array(vec![Reply::Int(1); numkeys]), "{keys}");
}

/// The owners in the queue of a lock.
fn queue(server: &Server, key: &str) -> Words {
    let queue = server.call(("LOCK.QUEUE", key));
    let owner = |line: &Reply| line.field("owner").as_bytes().to_vec();
    Words(queue.items().iter().map(owner).collect())
}

/// The number of a client that stands first in the queue of a lock.
fn first_client(server: &Server, key: &str) -> i64 {
    let queue = server.call(("LOCK.QUEUE", key));
    queue.items()[0].field("client-id").as_int()
}

/// A reply of numbers.
fn numbers(numbers: impl IntoIterator<Item = i64>) -> Reply {
    Reply::Array(numbers.into_iter().map(Reply::Int).collect())
}

/// The last reply of commands that are run in a transaction.
fn transaction(server: &Server, commands: &[&str]) -> Vec<Reply> {
    let mut client = server.raw();
    client.call("MULTI");
    for command in commands {
        assert_eq!(client.call(command), "QUEUED", "{command}");
    }
    client.call("EXEC").items().to_vec()
}

/// What keeps a lock from being taken, and the commands that make it so.
const TAKEN: [(&str, &str); 7] = [
    ("held", "LOCK.ACQUIRE taken h 600000"),
    ("shared", "LOCK.ACQUIRE taken h 600000 SHARED"),
    ("with permits", "LOCK.ACQUIRE taken h 600000 LIMIT 9"),
    ("plain", "SET taken h PX 600000"),
    ("plain for ever", "SET taken h"),
    ("hash", "HSET taken h 1"),
    ("the asker's own", "LOCK.ACQUIRE taken o 600000"),
];

/// How a hold of `x` by `a` ends.
const ENDS: [&[&str]; 8] = [
    &["LOCK.RELEASE x a"],
    &["LOCK.MRELEASE 1 x a"],
    &["LOCK.MRELEASE 2 none x a"],
    &["DEL x"],
    &["PEXPIRE x 1"],
    &["LOCK.MRENEW 1 x a 1"],
    &["LOCK.RENEW x a 1", "DEBUG SLEEP 0.01"],
    &["RENAME x elsewhere", "DEL elsewhere"],
];

/// How a client leaves its queues, and what it is told: nil, an error, or nothing any more.
const WAYS: [(&str, Option<&str>); 6] = [
    (TIME_OUT, Some("nil")),
    ("CLIENT UNBLOCK $id", Some("nil")),
    ("CLIENT UNBLOCK $id TIMEOUT", Some("nil")),
    ("CLIENT UNBLOCK $id ERROR", Some("UNBLOCKED")),
    ("CLIENT KILL ID $id", None),
    (HANG_UP, None),
];
const TIME_OUT: &str = "its time is over";
const HANG_UP: &str = "it hangs up";

/// Sends a request and waits until it stands in the queue of `key` or is answered.
fn ask(server: &Server, client: &mut Raw, key: &str, owner: &str, request: &str) {
    client.send(request);
    wait_until("the request to be seen", || {
        let queue = queue(server, key);
        queue.iter().any(|waiter| waiter == owner.as_bytes()) || client.has_reply()
    });
}

on_every_server! {
    /// Each release lets the one who waits for all of them look whether it can have them. If it looked
    /// at all of them each time, this would take minutes.
    fn locks_are_given_up_one_by_one_before_one_who_waits_for_thousands(flavour) {
        const LOCKS: usize = 5_000;
        let server = Server::start(flavour);
        let keys: Vec<String> = (0..LOCKS).map(|number| format!("k{number}")).collect();
        for order in ["forwards", "backwards", "odd ones first"] {
            take(&server, &keys.join(" "), "a");
            let mut b = wait_for_all(&server, &keys.join(" "), "b");
            let mut released = keys.clone();
            match order {
                "forwards" => {}
                "backwards" => released.reverse(),
                _ => released.sort_by_key(|key| key.ends_with(['0', '2', '4', '6', '8'])),
            }
            let started = Instant::now();
            release(&server, &released.join(" "), "a");
            assert!(started.elapsed() < Duration::from_secs(5), "{order}: {:?}", started.elapsed());
            assert!(b.read().as_int() > 0, "{order}");
            release(&server, &keys.join(" "), "b");
            assert_eq!(server.dbsize(), 0, "{order}");
        }
    }

    fn several_locks_are_taken_under_one_token(flavour) {
        let server = Server::start(flavour);
        let token = take(&server, "x y z", "o");
        assert_granted(&server, "x y z", "o", token);
        for key in ["x", "y", "z"] {
            assert_held(&server, key, "o", 1);
            assert_eq!(*server.call(("LOCK.INFO", key)).field("token"), token);
            assert_eq!(server.call(("LOCK.GUARD", key, token, "DEL", "nothing")), 0);
        }
        release(&server, "z x y", "o");
        assert_eq!(server.dbsize(), 0);
        assert!(take(&server, "y", "o") > token);
        // Options change nothing of what is free.
        let later = server.call("lock.macquire 2 x z o 600000 watchdog block 0").as_int();
        assert_granted(&server, "x z", "o", later);
        release(&server, "x z", "o");
        assert_nobody_waits(&server);
    }

    fn the_server_makes_one_owner_for_all(flavour) {
        let server = Server::start(flavour);
        let reply = server.call("LOCK.MACQUIRE 2 x y * 600000");
        let [token, owner] = reply.items() else {
            panic!("no token and owner: {reply:?}");
        };
        assert_eq!(owner.as_bytes().len(), 36);
        assert_granted(&server, "x y", owner.as_text(), token.as_int());
        // One who waits is told as well.
        let mut waiting = wait_for_all(&server, "y x", "*");
        let line = server.call("LOCK.QUEUE x").items()[0].clone();
        release(&server, "x y", owner.as_text());
        let reply = waiting.read();
        assert_eq!(reply.items()[1], *line.field("owner"));
        assert_granted(&server, "x y", reply.items()[1].as_text(), reply.items()[0].as_int());
        assert_nobody_waits(&server);
    }

    fn all_are_granted_or_none(flavour) {
        let server = Server::start(flavour);
        for (what, take) in TAKEN {
            assert_eq!(server.call(take).error_code(), None, "{take}");
            let mut witness = server.witness();
            for keys in ["taken x y", "x taken y", "x y taken", "taken"] {
                assert_eq!(server.call(acquire(keys, "o")), Reply::NilBulk, "{what}: {keys}");
                assert_eq!(server.raw_resp3().call(acquire(keys, "*")), Reply::Null, "{what}");
            }
            witness.saw_nothing(what);
            assert_eq!(server.call("DEL taken"), 1);
        }
        assert_eq!(server.info_number("lock", "lock_refusals"), 8 * TAKEN.len() as u64);
        assert_nobody_waits(&server);
    }

    /// Whatever is wrong with the arguments, the keys are not looked at.
    fn wrong_arguments_are_named_and_change_nothing(flavour) {
        let server = Server::start(flavour);
        for command in ["LOCK.ACQUIRE held o 600000", "RPUSH list v"] {
            assert_eq!(server.call(command).error_code(), None);
        }
        let mut witness = server.witness();
        let numkeys = "ERR numkeys is not an integer or out of range";
        let greater = "ERR numkeys is greater than the number of keys given";
        let mut rows = Vec::new();
        for (name, rest) in [("MACQUIRE", "o 5"), ("MRELEASE", "o"), ("MRENEW", "o 5")] {
            let arity = format!("ERR wrong number of arguments for 'LOCK.{name}' command");
            for (args, error) in [
                ("0 held free $", "ERR numkeys must be positive"),
                ("-1 held free $", "ERR numkeys must be positive"),
                ("-9223372036854775808 held free $", "ERR numkeys must be positive"),
                ("x held free $", numkeys),
                ("2.0 held free $", numkeys),
                ("02 held free $", numkeys),
                ("+2 held free $", numkeys),
                ("9223372036854775808 held free $", numkeys),
                ("18446744073709551618 held free $", numkeys),
                ("5 held free $", greater),
                ("2147483648 held free $", greater),
                ("4294967298 held free $", greater),
                ("9223372036854775807 held free $", greater),
                ("2 held held $", "ERR key 'held' is given twice"),
                ("3 free list free $", "ERR key 'free' is given twice"),
                ("3 a list list $", "ERR key 'list' is given twice"),
                // The owner is missing.
                ("2 held free", &arity),
                ("3 held free list", &arity),
            ] {
                rows.push((format!("LOCK.{name} {}", args.replace('$', rest)), error.to_owned()));
            }
        }
        let arity = |name: &str| format!("ERR wrong number of arguments for 'LOCK.{name}' command");
        let ttl = "ERR ttl is not an integer or out of range";
        for (command, error) in [
            ("MACQUIRE 2 held free o", arity("MACQUIRE")),
            ("MRENEW 2 held free o", arity("MRENEW")),
            ("MRENEW 2 held free o 5 5", arity("MRENEW")),
            ("MRENEW 2 held free o 5 WATCHDOG", arity("MRENEW")),
            ("MRELEASE 2 held free o o", arity("MRELEASE")),
            ("MRELEASE 2 held free o TOKEN 5", arity("MRELEASE")),
            ("MACQUIRE 2 held free o 0", "ERR ttl must be positive".to_owned()),
            ("MRENEW 2 held free o -1", "ERR ttl must be positive".to_owned()),
            ("MACQUIRE 2 held free o x", ttl.to_owned()),
            ("MACQUIRE 2 held free o 9007199254740992", ttl.to_owned()),
            ("MRENEW 2 held free o 1.5", ttl.to_owned()),
            ("MACQUIRE 2 held free o 5 BLOCK", "ERR option BLOCK needs a value".to_owned()),
            ("MACQUIRE 2 held free o 5 BLOCK -1", "ERR timeout is negative".to_owned()),
            ("MACQUIRE 2 held free o 5 BLOCK 1 BLOCK 1",
                "ERR option BLOCK is given twice".to_owned()),
            ("MACQUIRE 2 held free o 5 REQID r", "ERR unknown option 'REQID'".to_owned()),
            ("MACQUIRE 2 held free o 5 SHARED", "ERR unknown option 'SHARED'".to_owned()),
            ("MACQUIRE 2 held free o 5 LIMIT 2", "ERR unknown option 'LIMIT'".to_owned()),
            ("MACQUIRE 2 held free o 5 TOKEN 5", "ERR unknown option 'TOKEN'".to_owned()),
            ("MACQUIRE 2 held free o 5 BLOCK 0 more", "ERR unknown option 'more'".to_owned()),
            // The name of a key too few, and the owner stands where the ttl should.
            ("MACQUIRE 1 held free o 5", ttl.to_owned()),
        ] {
            rows.push((format!("LOCK.{command}"), error));
        }
        for (command, error) in rows {
            assert_eq!(server.call(&command), Reply::Error(error), "{command}");
        }
        for owner in [&b""[..], &[b'o'; 513]] {
            let error = Reply::Error("ERR owner must be 1 to 512 bytes long".to_owned());
            assert_eq!(server.call(("LOCK.MACQUIRE", 2, "held", "free", owner, 5)), error);
            assert_eq!(server.call(("LOCK.MRELEASE", 2, "held", "free", owner)), error);
            assert_eq!(server.call(("LOCK.MRENEW", 2, "held", "free", owner, 5)), error);
        }
        let twice = server.call(("LOCK.MACQUIRE", 2, b"\0\xff", b"\0\xff", "o", 5));
        assert_eq!(twice, Reply::Error("ERR key '\\x00\\xff' is given twice".to_owned()));
        let script = "return redis.pcall('LOCK.MACQUIRE', 1, 'free', 'o', 5, 'WATCHDOG')";
        assert_eq!(server.call(("EVAL", script, 0)).error_code(), Some("ERR"));
        witness.saw_nothing("one of the commands");
        assert_nobody_waits(&server);
    }

    /// What is no lock is an error for all, wherever it stands.
    fn a_key_that_is_no_lock_leaves_the_others_as_they_are(flavour) {
        let server = Server::start(flavour);
        take(&server, "x y", "o");
        for (name, make) in [
            ("list", "RPUSH list v"),
            ("set", "SADD set v"),
            ("zset", "ZADD zset 1 o"),
            ("stream", "XADD stream * f v"),
            ("fields", "HSET fields o 1 p 1"),
            ("zero", "HSET zero o 0"),
        ] {
            server.call(make);
            let mut witness = server.witness();
            for keys in ["$ x free", "x $ free", "x free $", "free $", "$"] {
                let keys = keys.replace('$', name);
                let numkeys = keys.split(' ').count();
                for command in [
                    format!("LOCK.MACQUIRE {numkeys} {keys} o 600000"),
                    format!("LOCK.MACQUIRE {numkeys} {keys} o 600000 BLOCK 0"),
                    format!("LOCK.MRELEASE {numkeys} {keys} o"),
                    format!("LOCK.MRENEW {numkeys} {keys} o 900000"),
                ] {
                    let reply = server.call(&command);
                    assert_eq!(reply.error_code(), Some("WRONGTYPE"), "{command}: {reply:?}");
                }
            }
            witness.saw_nothing(name);
        }
        assert_nobody_waits(&server);
    }

    fn a_release_of_several_says_what_became_of_each(flavour) {
        let server = Server::start(flavour);
        take(&server, "x y", "o");
        for command in [
            "LOCK.ACQUIRE other p 600000",
            "LOCK.RACQUIRE twice o 600000",
            "LOCK.RACQUIRE twice o 600000",
            "SET plain o",
            "HSET hash o 2",
            "LOCK.ACQUIRE shared o 600000 SHARED",
            "LOCK.ACQUIRE shared p 600000 SHARED",
            "LOCK.ACQUIRE theirs p 600000 LIMIT 2",
        ] {
            assert_eq!(server.call(command).error_code(), None, "{command}");
        }
        let all = "x other none twice plain hash shared theirs y";
        let reply = server.call(format!("LOCK.MRELEASE 9 {all} o"));
        assert_eq!(reply, numbers([1, 0, -1, 1, 1, 1, 1, 0, 1]));
        // One hold of each has ended.
        for (key, owner, holds) in
            [("other", "p", 1), ("twice", "o", 1), ("hash", "o", 1), ("shared", "p", 1)]
        {
            assert_held(&server, key, owner, holds);
        }
        let reply = server.call(format!("LOCK.MRELEASE 9 {all} o"));
        assert_eq!(reply, numbers([-1, 0, -1, 1, -1, 1, 0, 0, -1]));
        assert_eq!(server.call("LOCK.MRELEASE 2 theirs shared p"), numbers([1, 1]));
        assert_eq!(server.dbsize(), 1);
        assert_eq!(server.info_number("lock", "lock_releases"), 10);
        assert_eq!(server.info_number("lock", "lock_stale_releases"), 10);
    }

    fn a_renewal_of_several_replaces_each_lease(flavour) {
        let server = Server::start(flavour);
        take(&server, "x y", "o");
        for command in [
            "LOCK.ACQUIRE other p 600000",
            "SET plain o",
            "HSET hash o 2",
            "LOCK.ACQUIRE shared o 600000 SHARED",
            "LOCK.ACQUIRE shared p 100000 SHARED",
        ] {
            assert_eq!(server.call(command).error_code(), None, "{command}");
        }
        // Longer than the lease is, and shorter.
        for ttl in [900_000, 300_000] {
            let renew = format!("LOCK.MRENEW 7 x other none plain hash shared y o {ttl}");
            let mut deadlines = Vec::new();
            for key in ["x", "plain", "hash", "shared", "y"] {
                let reply = server.leased(key, ttl, || server.call(&renew));
                assert_eq!(reply, numbers([1, 0, -1, 1, 1, 1, 1]));
                deadlines.push(server.deadline(key));
            }
            assert!(deadlines.is_sorted(), "{deadlines:?}");
            assert!(server.deadline("other") > 0);
        }
        assert_eq!(server.info_number("lock", "lock_renewals"), 50);
        assert_eq!(server.info_number("lock", "lock_stale_renewals"), 20);
        // The holds are those that they were.
        assert_held(&server, "hash", "o", 2);
        release(&server, "x y", "o");
    }

    fn each_lock_is_a_lock_of_its_own(flavour) {
        let server = Server::start(flavour);
        let token = take(&server, "x y z", "o");
        // Some of them are released, renewed and entered again, and the others are not.
        server.leased("x", 900_000, || {
            assert_eq!(server.call(format!("LOCK.RENEW x o 900000 TOKEN {token}")), 1);
        });
        assert_eq!(server.call("LOCK.RACQUIRE y o 1"), token);
        assert_held(&server, "y", "o", 2);
        assert_granted(&server, "z", "o", token);
        assert_eq!(server.call(format!("LOCK.RELEASE z o TOKEN {token}")), 1);
        assert_eq!(server.call("LOCK.MRELEASE 3 x y z o"), numbers([1, 1, -1]));
        assert_granted(&server, "y", "o", token);
        // What is held is refused to its owner too, without harm.
        assert_eq!(server.call(acquire("z y x", "o")), Reply::NilBulk);
        assert_granted(&server, "y", "o", token);
        assert_eq!(server.dbsize(), 1);
        assert!(take(&server, "z x", "o") > token);
        release(&server, "x y z", "o");
        assert_eq!(server.dbsize(), 0);
    }

    fn leases_that_were_taken_together_lapse_together(flavour) {
        let server = Server::start(flavour);
        let taken = server.call("LOCK.MACQUIRE 3 x y z o 1").as_int();
        let mut client = server.raw();
        let requests = [
            "DEBUG SLEEP 0.01",
            "LOCK.MRENEW 3 x y z o 600000",
            "LOCK.MRELEASE 3 x y z o",
            "LOCK.MACQUIRE 3 x y z p 600000",
        ];
        let replies = client.pipeline(requests);
        assert_eq!(replies[1..3], [numbers([-1, -1, -1]), numbers([-1, -1, -1])]);
        assert!(replies[3].as_int() > taken);
        assert_granted(&server, "x y z", "p", replies[3].as_int());
    }

    /// One plain command for each lock, in one transaction: a replica has all of them or none, too.
    fn all_that_is_written_is_one_transaction_of_plain_commands(flavour) {
        let server = Server::build(flavour).aof().start();
        let bare = Server::build(flavour).without_module().start();
        let replica = Server::build(flavour).replica_of(&server).start();
        let (mut stream, mut events) = (server.replication_stream(), server.events());
        let mut replicated = Vec::new();
        for (command, writes, seen) in [
            (
                "LOCK.MACQUIRE 2 x y o 600000",
                "MULTI|SET x $x PXAT $at|SET y $y PXAT $at|EXEC",
                "set x|expire x|lock.acquired x|set y|expire y|lock.acquired y",
            ),
            ("LOCK.MACQUIRE 2 y z o 600000", "", ""),
            ("LOCK.MACQUIRE 1 z o 600000", "SET z $z PXAT *", "set z|expire z|lock.acquired z"),
            (
                "LOCK.MRENEW 3 none x y o 900000",
                "MULTI|PEXPIREAT x $at|PEXPIREAT y $at|EXEC",
                "expire x|lock.renewed x|expire y|lock.renewed y",
            ),
            ("LOCK.MRENEW 3 none x y p 900000", "", ""),
            (
                "LOCK.RACQUIRE x o 600000",
                "SET x $x PXAT $at",
                "set x|expire x|lock.reentered x",
            ),
            (
                "LOCK.MRELEASE 3 y none x o",
                "MULTI|DEL y|SET x $x PXAT $at|EXEC",
                "lock.released y|del y|lock.released x|set x|expire x",
            ),
            ("LOCK.MRELEASE 3 y none z p", "", ""),
            ("LOCK.MRELEASE 1 z o", "DEL z", "lock.released z|del z"),
            ("LOCK.MACQUIRE 2 v w o 600000", "MULTI|SET v * PXAT *|SET w * PXAT *|EXEC",
                "set v|expire v|lock.acquired v|set w|expire w|lock.acquired w"),
        ] {
            let reply = server.call(command);
            assert_eq!(reply.error_code(), None, "{command}: {reply:?}");
            let written = stream.writes(&server);
            let mut writes = writes.replace("$at", &server.deadline("x").to_string());
            for key in ["x", "y", "z"] {
                if let Reply::Bulk(value) = server.call(("GET", key)) {
                    writes = writes.replace(&format!("${key}"), str::from_utf8(&value).unwrap());
                }
            }
            let patterns: Vec<&str> = writes.split('|').filter(|write| !write.is_empty()).collect();
            assert_eq!(written.len(), patterns.len(), "{command}: {written:?}");
            for (write, pattern) in written.iter().zip(patterns) {
                assert!(write.matches(pattern), "{command}: {write} is not {pattern}");
            }
            let events: Vec<String> = events.so_far().iter().map(Words::to_string).collect();
            let seen: Vec<String> = seen
                .split('|')
                .filter(|event| !event.is_empty())
                .map(|event| format!("0 {event}"))
                .collect();
            assert_eq!(events, seen, "{command}");
            for write in &written {
                assert_eq!(bare.call(write).error_code(), None, "{write}");
            }
            assert_eq!(server.snapshot(), bare.snapshot(), "{command}");
            replicated.extend(written);
        }
        replica.wait_in_sync_with(&server);
        assert_eq!(server.snapshot(), replica.snapshot());
        let mut aof = server.aof_commands();
        aof.retain(|command| command.text(0) != "SELECT");
        assert_eq!(aof, replicated);
        // All of it is there after a restart, and is the same lock.
        let before = server.snapshot();
        let server = server.kill().start();
        assert_eq!(server.snapshot(), before);
        assert_eq!(server.call("LOCK.MRELEASE 3 v w x o"), numbers([1, 1, 1]));
    }

    fn names_of_locks_are_of_any_bytes(flavour) {
        let server = Server::start(flavour);
        let request = ("LOCK.MACQUIRE", 4, "", b"\0\xff", "a b", b"2\r\n", "o", 600_000);
        assert!(server.call(request).as_int() > 0);
        assert_eq!(server.dbsize(), 4);
        let reply = server.call(("LOCK.MRELEASE", 4, b"2\r\n", "a b", b"\0\xff", "", "o"));
        assert_eq!(reply, numbers([1; 4]));
        let names: Vec<String> = (0..1_000).map(|number| format!("k{number}")).collect();
        assert!(take(&server, &names.join(" "), "o") > 0);
        assert_eq!(server.dbsize(), 1_000);
        release(&server, &names.join(" "), "o");
        assert_eq!(server.dbsize(), 0);
    }

    /// Nothing is held for the sake of one who waits, and it is granted as soon as the last of its
    /// locks is free, however that comes.
    fn who_waits_is_granted_when_the_last_lock_is_free(flavour) {
        let server = Server::start(flavour);
        for end in ENDS {
            for keys in ["x free y", "y x free"] {
                let before = take(&server, "x y", "a");
                let mut client = wait_for_all(&server, keys, "m");
                assert_eq!(server.call("EXISTS free"), 0);
                assert_eq!(server.call("LOCK.RELEASE y a"), 1);
                assert_eq!(server.call("EXISTS free y"), 0);
                assert_eq!(server.call("LOCK.MRELEASE 3 x free y m"), numbers([0, -1, -1]));
                assert_eq!(server.call("LOCK.RACQUIRE free m 600000"), Reply::NilBulk);
                assert!(!client.has_reply(), "{end:?}");
                let replies = server.raw().pipeline(end);
                assert!(replies.iter().all(|reply| reply.error_code().is_none()), "{replies:?}");
                assert!(granted(&server, &mut client, keys, "m") > before, "{end:?}");
                release(&server, keys, "m");
                assert_eq!(server.dbsize(), 0);
            }
        }
        assert_nobody_waits(&server);
    }

    fn who_waits_is_granted_when_a_holder_of_another_kind_is_gone(flavour) {
        let server = Server::start(flavour);
        for (what, take, end) in [
            ("the last reader", "LOCK.ACQUIRE x h 600000 SHARED", "LOCK.RELEASE x h"),
            ("a reader's lease", "LOCK.ACQUIRE x h 600000 SHARED", "LOCK.RENEW x h 1"),
            ("a permit", "LOCK.ACQUIRE x h 600000 LIMIT 2", "LOCK.MRELEASE 2 x y h"),
            ("a plain lock", "SET x h", "LOCK.RELEASE x h"),
            ("a plain lock's TTL", "SET x h", "PEXPIRE x 1"),
            ("a hash", "HSET x h 1", "LOCK.MRELEASE 1 x h"),
            ("a hash deleted", "HSET x h 1", "HDEL x h"),
        ] {
            assert_eq!(server.call(take).error_code(), None, "{what}");
            assert!(server.call("LOCK.ACQUIRE y r 600000 SHARED").as_int() > 0);
            let mut client = wait_for_all(&server, "x y", "m");
            // Who would share waits behind it.
            let mut reader = wait_for_one(&server, "y", "s", "SHARED");
            assert_eq!(server.call(end).error_code(), None, "{what}");
            assert!(!client.has_reply(), "{what}");
            assert_eq!(server.call("LOCK.RELEASE y r"), 1);
            granted(&server, &mut client, "x y", "m");
            assert!(!reader.has_reply(), "{what}");
            release(&server, "y x", "m");
            assert!(reader.read().as_int() > 0);
            assert_eq!(server.call("LOCK.RELEASE y s"), 1);
            assert_eq!(server.dbsize(), 0);
        }
        assert_nobody_waits(&server);
    }

    fn requests_are_granted_in_the_order_in_which_they_came(flavour) {
        let server = Server::start(flavour);
        take(&server, "x y", "a");
        let mut before = wait_for_one(&server, "x", "b", "");
        let mut several = wait_for_all(&server, "y z x", "m");
        let mut behind_x = wait_for_one(&server, "x", "c", "");
        let mut behind_z = wait_for_one(&server, "z", "d", "");
        let mut last = wait_for_all(&server, "z y", "n");
        let mut reader = wait_for_one(&server, "z", "r", "SHARED");
        for (key, owners) in [("x", "b m c"), ("y", "m n"), ("z", "m d n r")] {
            assert_eq!(queue(&server, key), owners);
        }
        release(&server, "x y", "a");
        assert!(before.read().as_int() > 0);
        // The others wait for their turn, although `y` and `z` are free.
        assert_eq!(server.call("EXISTS y z"), 0);
        for client in [&mut several, &mut behind_x, &mut behind_z, &mut last, &mut reader] {
            assert!(!client.has_reply());
        }
        assert_eq!(server.call("LOCK.RELEASE x b"), 1);
        granted(&server, &mut several, "x y z", "m");
        assert_eq!(server.call("LOCK.RELEASE z m"), 1);
        assert!(behind_z.read().as_int() > 0);
        assert_eq!(server.call("LOCK.RELEASE y m"), 1);
        assert!(!behind_x.has_reply() && !last.has_reply() && !reader.has_reply());
        assert_eq!(server.call("LOCK.RELEASE z d"), 1);
        granted(&server, &mut last, "y z", "n");
        assert!(!reader.has_reply());
        assert_eq!(server.call("LOCK.RELEASE x m"), 1);
        assert!(behind_x.read().as_int() > 0);
        release(&server, "y z", "n");
        assert!(reader.read().as_int() > 0);
        assert_eq!(server.call("DEL x z"), 2);
        assert_nobody_waits(&server);
    }

    fn nobody_overtakes_on_a_lock_that_is_free(flavour) {
        let server = Server::start(flavour);
        take(&server, "x", "a");
        let mut first = wait_for_all(&server, "x free", "m");
        let mut witness = server.witness();
        let mut newcomer = server.raw();
        for request in [
            "LOCK.ACQUIRE free n 600000",
            "LOCK.ACQUIRE free n 600000 BLOCK 1",
            "LOCK.ACQUIRE free n 600000 SHARED",
            "LOCK.ACQUIRE free n 600000 LIMIT 9",
            "LOCK.ACQUIRE free a 600000",
            "LOCK.RACQUIRE free n 600000 REQID r",
            "LOCK.MACQUIRE 1 free n 600000",
            "LOCK.MACQUIRE 2 other free n 600000",
            "LOCK.MACQUIRE 2 free other n 600000 BLOCK 1",
        ] {
            assert_eq!(newcomer.call(request), Reply::NilBulk, "{request}");
            if !request.contains("BLOCK") {
                assert_eq!(transaction(&server, &[request]), [Reply::NilBulk], "{request}");
            }
        }
        witness.saw_nothing("the newcomers");
        // One who is content to wait gets in line, and has the turn after.
        let mut second = wait_for_one(&server, "free", "n", "");
        // In the step in which all are free, too.
        let turn = ["LOCK.RELEASE x a", "LOCK.ACQUIRE x z 600000", "LOCK.ACQUIRE free z 600000"];
        let replies = newcomer.pipeline(turn);
        assert_eq!(replies, [Reply::Int(1), Reply::NilBulk, Reply::NilBulk]);
        granted(&server, &mut first, "x free", "m");
        assert!(!second.has_reply());
        release(&server, "free x", "m");
        assert!(second.read().as_int() > 0);
        assert_eq!(server.call("LOCK.RELEASE free n"), 1);
        assert_eq!(server.dbsize(), 0);
        assert_nobody_waits(&server);
    }

    fn a_hand_over_from_several_to_several_is_one_step(flavour) {
        let server = Server::start(flavour);
        let replica = Server::build(flavour).replica_of(&server).start();
        take(&server, "x y", "a");
        let mut b = wait_for_all(&server, "y x", "b");
        let mut c = wait_for_all(&server, "x y z", "c");
        let (mut stream, mut events) = (server.replication_stream(), server.events());
        release(&server, "x y", "a");
        let token = granted(&server, &mut b, "x y", "b");
        assert!(!c.has_reply());
        let at = token / 1_000 + LONG;
        let writes = stream.writes(&server);
        // What is free for no time is deleted before it is written again.
        let set = |key: &str| format!("SET {key} lk1:{token}:1:b PXAT {at}");
        assert_eq!(writes.len(), 5, "{writes:?}");
        assert_eq!(writes[..2], ["MULTI", "DEL x"]);
        assert_eq!(writes[4], "EXEC");
        assert!(writes.contains(&set("x").to_words()), "{writes:?}");
        assert!(writes.contains(&set("y").to_words()), "{writes:?}");
        let mut seen = events.so_far();
        seen.retain(|event| event.text(1).starts_with("lock."));
        assert_eq!(seen.len(), 4, "{seen:?}");
        assert_eq!(seen[..2], ["0 lock.released x", "0 lock.released y"]);
        for key in ["x", "y"] {
            let handed_over = format!("0 lock.handover {key}");
            assert!(seen.iter().any(|event| *event == handed_over.as_str()), "{seen:?}");
        }
        assert_eq!(server.info_number("lock", "lock_handovers"), 2);
        replica.wait_in_sync_with(&server);
        assert_eq!(server.snapshot(), replica.snapshot());
        // Nobody sees a moment in between.
        let replies = transaction(
            &server,
            &["LOCK.MRELEASE 2 y x b", "EXISTS x y z", "LOCK.MACQUIRE 1 z d 600000"],
        );
        assert_eq!(replies[1..], [Reply::Int(3), Reply::NilBulk]);
        assert!(granted(&server, &mut c, "x y z", "c") > token);
        release(&server, "x y z", "c");
        replica.wait_in_sync_with(&server);
        assert_eq!(replica.snapshot().len(), 0);
        assert_nobody_waits(&server);
    }

    /// Each takes the locks in its own order, as no careful program would.
    fn opposite_orders_are_no_deadlock(flavour) {
        const ROUNDS: i64 = 60;
        const ORDERS: [&str; 6] = ["x y", "y x", "x y z", "z y x", "z x", "y"];
        let server = Server::start(flavour);
        server.call("MSET sum:x 0 sum:y 0 sum:z 0");
        thread::scope(|scope| {
            for (number, keys) in ORDERS.into_iter().enumerate() {
                let mut client = server.raw();
                scope.spawn(move || {
                    let numkeys = keys.split(' ').count();
                    let owner = format!("t{number}");
                    for _ in 0..ROUNDS {
                        let request = format!("{} BLOCK 0", acquire(keys, &owner));
                        assert!(client.call(request).as_int() > 0);
                        for key in keys.split(' ') {
                            // Two holders at a time would lose a step of the sum.
                            let sum = format!("sum:{key}");
                            let seen: i64 = client.call(("GET", &sum)).as_text().parse().unwrap();
                            client.call(("SET", &sum, seen + 1));
                        }
                        let release = format!("LOCK.MRELEASE {numkeys} {keys} {owner}");
                        assert_eq!(client.call(release), numbers(vec![1; numkeys]));
                    }
                });
            }
        });
        for key in ["x", "y", "z"] {
            let users = ORDERS.iter().filter(|keys| keys.contains(key)).count();
            let sum = (i64::try_from(users).unwrap() * ROUNDS).to_string();
            assert_eq!(server.call(("GET", format!("sum:{key}"))), sum.as_str(), "{key}");
        }
        assert_eq!(server.dbsize(), 3);
        assert_eq!(server.info_number("lock", "lock_deadlocks"), 0);
        assert_nobody_waits(&server);
    }

    /// A place in the queue of a free lock keeps nobody away any longer than it is there.
    fn who_leaves_lets_those_behind_have_what_is_free(flavour) {
        let server = Server::start(flavour);
        for way in WAYS {
            take(&server, "x", "a");
            let mut leaver = server.raw();
            let id = leaver.id();
            let timeout = if way.0 == TIME_OUT { 100 } else { 0 };
            let request = format!("{} BLOCK {timeout}", acquire("x y z", "m"));
            ask(&server, &mut leaver, "y", "m", &request);
            let mut single = server.raw();
            ask(&server, &mut single, "y", "b", "LOCK.ACQUIRE y b 600000 BLOCK 0");
            let mut reader = server.raw();
            ask(&server, &mut reader, "z", "c", "LOCK.ACQUIRE z c 600000 BLOCK 0 SHARED");
            let mut several = server.raw();
            ask(&server, &mut several, "z", "n", &format!("{} BLOCK 0", acquire("y z", "n")));
            match way.0 {
                TIME_OUT | HANG_UP => {}
                command => assert_eq!(server.call(command.replace("$id", &id.to_string())), 1),
            }
            match way {
                (HANG_UP, _) => leaver.close(),
                (_, None) => leaver.wait_until_closed(),
                (_, Some("nil")) => assert!(leaver.read().is_nil(), "{way:?}"),
                (_, code) => assert_eq!(leaver.read().error_code(), code, "{way:?}"),
            }
            assert!(single.read().as_int() > 0, "{way:?}");
            assert!(reader.read().as_int() > 0, "{way:?}");
            assert_eq!(queue(&server, "x"), "", "{way:?}");
            assert_eq!(queue(&server, "y"), "n", "{way:?}");
            assert!(!several.has_reply(), "{way:?}");
            assert_eq!(server.call("LOCK.RELEASE y b"), 1);
            assert!(!several.has_reply(), "{way:?}");
            assert_eq!(server.call("LOCK.RELEASE z c"), 1);
            granted(&server, &mut several, "y z", "n");
            release(&server, "z y", "n");
            release(&server, "x", "a");
            assert_eq!(server.dbsize(), 0);
        }
        assert_nobody_waits(&server);
    }

    fn who_leaves_from_the_middle_changes_nothing_for_the_others(flavour) {
        let server = Server::start(flavour);
        take(&server, "x", "a");
        let mut first = wait_for_all(&server, "x y", "m");
        let middle = wait_for_all(&server, "y x z", "n");
        let mut last = wait_for_all(&server, "z y", "o");
        assert_eq!(queue(&server, "z"), "n o");
        middle.close();
        server.wait_for_blocked(2);
        assert_eq!(queue(&server, "y"), "m o");
        assert_eq!(queue(&server, "z"), "o");
        assert!(!last.has_reply());
        release(&server, "x", "a");
        granted(&server, &mut first, "x y", "m");
        assert!(!last.has_reply());
        assert_eq!(server.call("LOCK.RELEASE y m"), 1);
        granted(&server, &mut last, "y z", "o");
        assert_nobody_waits(&server);
    }

    fn a_grant_to_a_client_that_is_killed_in_the_same_turn_goes_back_whole(flavour) {
        let server = Server::start(flavour);
        for is_followed in [true, false] {
            let unclaimed = server.info_number("lock", "lock_unclaimed_grants");
            take(&server, "x", "a");
            let first = wait_for_all(&server, "x y z", "m");
            let mut followers: Vec<(Raw, &str, &str)> = Vec::new();
            if is_followed {
                followers.push((wait_for_one(&server, "y", "b", ""), "y", "b"));
                followers.push((wait_for_all(&server, "x z", "n"), "x z", "n"));
            }
            let kill = format!("CLIENT KILL ID {}", first_client(&server, "x"));
            let replies = transaction(&server, &["LOCK.RELEASE x a", "EXISTS x y z", &kill]);
            assert_eq!(replies, [1, 3, 1].map(Reply::Int));
            first.wait_until_closed();
            for (client, keys, owner) in &mut followers {
                granted(&server, client, keys, owner);
                release(&server, keys, owner);
            }
            wait_until("all of it to be given back", || server.dbsize() == 0);
            let counted = server.info_number("lock", "lock_unclaimed_grants") - unclaimed;
            assert_eq!(counted, 3);
        }
        assert_nobody_waits(&server);
    }

    fn requests_of_the_same_owner_are_granted_with_it(flavour) {
        let server = Server::start(flavour);
        for is_killed in [false, true] {
            take(&server, "x", "a");
            let mut first = wait_for_all(&server, "x y", "m");
            let mut stranger = wait_for_one(&server, "y", "b", "");
            let request = "LOCK.RACQUIRE y m 900000 BLOCK 0 REQID r";
            let mut copies = [waiter(&server, request), waiter(&server, request)];
            let mut again = waiter(&server, "LOCK.RACQUIRE x m 600000 BLOCK 0");
            if is_killed {
                // What was granted on top of it stays.
                let kill = format!("CLIENT KILL ID {}", first_client(&server, "x"));
                transaction(&server, &["LOCK.RELEASE x a", &kill]);
                first.wait_until_closed();
            } else {
                release(&server, "x", "a");
                assert!(first.read().as_int() > 0);
            }
            let token = copies[0].read().as_int();
            assert_eq!(copies[1].read(), token);
            assert_eq!(again.read(), token);
            let holds = if is_killed { 1 } else { 2 };
            wait_until("the right number of holds", || {
                ["x", "y"].iter().all(|key| {
                    let info = server.call(("LOCK.INFO", key));
                    *info.field("owners") == Reply::Array(vec![Reply::bulk("m"), Reply::Int(holds)])
                })
            });
            assert_eq!(server.deadline("y"), token / 1_000 + 900_000);
            for _ in 0..holds {
                assert!(!stranger.has_reply());
                release(&server, "x y", "m");
            }
            assert!(stranger.read().as_int() > token);
            release(&server, "y", "b");
            assert_eq!(server.dbsize(), 0);
        }
        assert_nobody_waits(&server);
    }

    fn what_turns_out_to_be_no_lock_lets_the_other_queues_go_on(flavour) {
        let server = Server::start(flavour);
        for is_free in [true, false] {
            take(&server, "y z", "a");
            if !is_free {
                take(&server, "x", "h");
            }
            let mut several = wait_for_all(&server, "x y", "m");
            let mut on_x = wait_for_one(&server, "x", "b", "");
            let mut on_y = wait_for_one(&server, "y", "c", "");
            let mut elsewhere = wait_for_all(&server, "x z", "n");
            server.raw().pipeline(["RPUSH list v", "RENAME list y"]);
            for client in [&mut several, &mut on_y] {
                assert_eq!(client.read().error_code(), Some("WRONGTYPE"));
            }
            if !is_free {
                assert!(!on_x.has_reply());
                release(&server, "x", "h");
            }
            assert!(on_x.read().as_int() > 0);
            assert_eq!(server.call("LLEN y"), 1);
            release(&server, "x", "b");
            assert!(!elsewhere.has_reply());
            release(&server, "z", "a");
            granted(&server, &mut elsewhere, "x z", "n");
            assert_eq!(server.call("DEL x y z"), 3);
        }
        assert_nobody_waits(&server);
    }

    /// The release finds it out, and is a release all the same.
    fn a_release_is_carried_out_when_another_lock_turns_out_to_be_none(flavour) {
        let server = Server::start(flavour);
        for (is_followed, command) in [(true, "RELEASE x"), (false, "RELEASE x"), (true, "MRELEASE 1 x")] {
            take(&server, "x y", "a");
            let mut several = wait_for_all(&server, "x y", "m");
            let mut behind = is_followed.then(|| wait_for_one(&server, "x", "b", "SHARED"));
            let release = format!("LOCK.{command} a");
            let replies = transaction(&server, &["DEL y", "RPUSH y v", &release, "EXISTS x"]);
            assert_eq!(replies[3], i64::from(is_followed), "{replies:?}");
            assert_eq!(several.read().error_code(), Some("WRONGTYPE"));
            if let Some(behind) = &mut behind {
                assert!(behind.read().as_int() > 0);
                assert_held(&server, "x", "b", 1);
                assert_eq!(server.call("LOCK.RELEASE x b"), 1);
            }
            assert_eq!(server.call("LOCK.INFO x").field("state"), "free");
            assert_eq!(server.call("DEL y"), 1);
            assert_eq!(server.dbsize(), 0);
        }
        assert_nobody_waits(&server);
    }

    /// The lock is free, and a plain `SET` knows no queue.
    fn what_others_write_meanwhile_is_waited_for_too(flavour) {
        let server = Server::start(flavour);
        for (write, end) in [
            ("SET free other", "DEL free"),
            ("SET free other PX 600000", "LOCK.RELEASE free other"),
            ("SET free other PX 600000", "PEXPIRE free 1"),
            ("SET free other PX 20", "PING"),
            ("HSET free other 1", "LOCK.MRELEASE 1 free other"),
        ] {
            take(&server, "x", "a");
            let mut client = wait_for_all(&server, "free x", "m");
            server.raw().pipeline([write, "LOCK.RELEASE x a"]);
            if end != "PING" {
                assert_eq!(server.call("EXISTS x"), 0, "{write}");
                assert!(!client.has_reply(), "{write}");
            }
            server.call(end);
            granted(&server, &mut client, "x free", "m");
            release(&server, "x free", "m");
        }
        assert_nobody_waits(&server);
    }

    /// A pause keeps what was free, and the order.
    fn nothing_is_granted_during_a_pause(flavour) {
        let server = Server::start(flavour);
        take(&server, "x y", "a");
        let mut first = wait_for_all(&server, "y x", "m");
        let mut second = wait_for_one(&server, "x", "b", "");
        let pause = ["LOCK.RELEASE x a", "PEXPIRE y 1", "CLIENT PAUSE 100000 WRITE"];
        transaction(&server, &pause);
        // The alarm has gone off in vain by then.
        assert!(server.raw().call("LOCK.QUEUE y COUNT 5").items().len() == 1);
        let before = server.info_number("server", "uptime_in_seconds");
        wait_until("the lease to be over", || {
            server.info_number("server", "uptime_in_seconds") > before
        });
        assert!(!first.has_reply() && !second.has_reply());
        assert_eq!(server.call("CLIENT UNPAUSE"), "OK");
        granted(&server, &mut first, "x y", "m");
        assert!(!second.has_reply());
        release(&server, "y x", "m");
        assert!(second.read().as_int() > 0);
        assert_nobody_waits(&server);
    }

    fn whole_databases_may_change(flavour) {
        let server = Server::start(flavour);
        let mut stream = server.replication_stream();
        for change in ["FLUSHALL", "FLUSHDB", "FLUSHALL ASYNC", "SWAPDB 0 1"] {
            take(&server, "x y", "a");
            let mut first = wait_for_all(&server, "x y", "m");
            let mut second = wait_for_all(&server, "free y", "n");
            stream.writes(&server);
            assert_eq!(server.call(change), "OK");
            let token = granted(&server, &mut first, "x y", "m");
            assert!(!second.has_reply());
            let writes = stream.writes(&server);
            let set = |key| format!("SET {key} lk1:{token}:1:m PXAT {}", token / 1_000 + LONG);
            assert_eq!(writes.len(), 5, "{change}: {writes:?}");
            let sets = &writes[2..4];
            for key in ["x", "y"] {
                assert!(sets.iter().any(|write| *write == set(key).as_str()), "{writes:?}");
            }
            release(&server, "y x", "m");
            granted(&server, &mut second, "free y", "n");
            assert_eq!(server.call("FLUSHALL"), "OK");
        }
        assert_nobody_waits(&server);
    }

    fn one_client_in_several_queues_counts_once(flavour) {
        let server = Server::start(flavour);
        take(&server, "x y", "a");
        let mut several = wait_for_all(&server, "x y free", "m");
        let single = wait_for_one(&server, "x", "b", "");
        let gauge = |name| server.info_number("lock", name);
        assert_eq!((gauge("lock_waiters"), gauge("lock_contended_keys")), (2, 3));
        assert_eq!(gauge("lock_waiters_peak"), 2);
        let id = first_client(&server, "free");
        for (key, owners) in [("x", "m b"), ("y", "m"), ("free", "m")] {
            assert_eq!(queue(&server, key), owners);
            assert_eq!(first_client(&server, key), id);
            let line = server.call(("LOCK.QUEUE", key)).items()[0].clone();
            assert_eq!(line.field("mode"), "exclusive");
            let waiters = i64::try_from(owners.split(' ').count()).unwrap();
            assert_eq!(*server.call(("LOCK.INFO", key)).field("waiters"), waiters);
        }
        let line = |key, waiters| Reply::Array(vec![Reply::bulk(key), Reply::Int(waiters)]);
        let contended = vec![line("x", 2), line("free", 1), line("y", 1)];
        assert_eq!(server.call("LOCK.CONTENDED"), Reply::Array(contended));
        assert_eq!(server.call("LOCK.INFO free").field("state"), "free");
        single.close();
        server.wait_for_blocked(1);
        release(&server, "x y", "a");
        granted(&server, &mut several, "x y free", "m");
        assert_eq!((gauge("lock_waiters"), gauge("lock_contended_keys")), (0, 0));
        assert_eq!((gauge("lock_handovers"), gauge("lock_grants")), (3, 2));
        assert_nobody_waits(&server);
    }

    fn limits_hold_for_each_queue_and_count_a_client_once(flavour) {
        let server = Server::start(flavour);
        take(&server, "x", "a");
        let full = |limit| Reply::Error(format!("QUEUEFULL as many clients wait as {limit} allows"));
        assert_eq!(server.call("CONFIG SET lock.max-waiters 2"), "OK");
        assert_eq!(server.call("CONFIG SET lock.max-waiters-per-key 1"), "OK");
        let first = wait_for_all(&server, "x y z", "m");
        let mut witness = server.witness();
        for keys in ["w z", "z w", "y", "x y z"] {
            let reply = server.call(format!("{} BLOCK 0", acquire(keys, "n")));
            assert_eq!(reply, full("lock.max-waiters-per-key"), "{keys}");
        }
        let reply = server.call("LOCK.ACQUIRE y n 600000 BLOCK 0");
        assert_eq!(reply, full("lock.max-waiters-per-key"));
        assert_eq!(queue(&server, "w"), "");
        witness.saw_nothing("a full queue");
        assert_eq!(server.call("CONFIG SET lock.max-waiters-per-key 9"), "OK");
        let mut second = wait_for_all(&server, "w y", "n");
        let reply = server.call(format!("{} BLOCK 0", acquire("x v", "o")));
        assert_eq!(reply, full("lock.max-waiters"));
        assert_eq!(server.info_number("lock", "lock_queue_full"), 6);
        assert_eq!(queue(&server, "v"), "");
        // What is free needs no room.
        assert!(take(&server, "u v", "o") > 0);
        first.close();
        granted(&server, &mut second, "w y", "n");
        assert_nobody_waits(&server);
    }

    fn the_watchdog_renews_all_of_them(flavour) {
        let server = Server::start(flavour);
        let watchdogs = || server.info_number("lock", "lock_watchdogs");
        for waits in [false, true] {
            if waits {
                take(&server, "x", "a");
            }
            let mut client = server.raw();
            let request = "LOCK.MACQUIRE 3 x y z o 1000 BLOCK 0 WATCHDOG";
            if waits {
                ask(&server, &mut client, "x", "o", request);
                assert_eq!(watchdogs(), 0);
                release(&server, "x", "a");
                assert!(client.read().as_int() > 0);
            } else {
                assert!(client.call(request).as_int() > 0);
            }
            assert_eq!(watchdogs(), 3);
            let before = ["x", "y", "z"].map(|key| server.deadline(key));
            wait_until("a renewal of each", || {
                ["x", "y", "z"].iter().zip(before).all(|(key, at)| server.deadline(key) > at)
            });
            // One that is released is watched no longer, and the others are.
            assert_eq!(server.call("LOCK.RELEASE y o"), 1);
            assert_eq!(watchdogs(), 2);
            let before = server.deadline("z");
            wait_until("another renewal", || server.deadline("z") > before);
            assert_eq!(server.call("EXISTS y"), 0);
            if waits {
                client.close();
                wait_until("the watches to end", || watchdogs() == 0);
                wait_until("the leases to lapse", || server.dbsize() == 0);
            } else {
                release(&server, "z x", "o");
                assert_eq!(watchdogs(), 0);
            }
        }
        assert_eq!(server.info_number("lock", "lock_lost"), 0);
        assert_nobody_waits(&server);
    }

    fn a_watched_lock_that_is_lost_leaves_the_others_watched(flavour) {
        let server = Server::start(flavour);
        let mut client = server.raw();
        assert!(client.call("LOCK.MACQUIRE 2 x y o 1000 WATCHDOG").as_int() > 0);
        assert_eq!(server.call("DEL x"), 1);
        wait_until("the loss to be found", || {
            server.info_number("lock", "lock_lost") == 1
        });
        let before = server.deadline("y");
        wait_until("a renewal", || server.deadline("y") > before);
        assert_eq!(server.info_number("lock", "lock_watchdogs"), 1);
        assert_eq!(client.call("LOCK.MRELEASE 2 x y o"), numbers([-1, 1]));
        assert_nobody_waits(&server);
    }

    fn nobody_waits_for_several_in_a_transaction_or_a_script(flavour) {
        let server = Server::start(flavour);
        take(&server, "x", "a");
        let mut waiting = wait_for_all(&server, "x y", "m");
        let mut witness = server.witness();
        for keys in ["x free", "y free"] {
            let request = format!("{} BLOCK 0", acquire(keys, "o"));
            assert_eq!(transaction(&server, &[&request]), [Reply::NilBulk]);
            let script = format!("return redis.call('{}')", request.replace(' ', "','"));
            assert_eq!(server.call(("EVAL", script, 0)), Reply::NilBulk);
        }
        assert_eq!(queue(&server, "x"), "m");
        witness.saw_nothing("who could not wait");
        // What is free is granted there, and what is released there is passed on.
        let script = "local token = redis.call('LOCK.MACQUIRE', 2, 'u', 'v', 'o', 600000) \
            local replies = redis.call('LOCK.MRELEASE', 2, 'v', 'x', 'a') \
            return {token, replies}";
        let reply = server.call(("EVAL", script, 0));
        assert_granted(&server, "u v", "o", reply.items()[0].as_int());
        assert_eq!(reply.items()[1], numbers([0, 1]));
        granted(&server, &mut waiting, "x y", "m");
        assert_nobody_waits(&server);
    }

    fn who_waits_for_several_is_sent_away_when_the_server_becomes_a_replica(flavour) {
        let server = Server::start(flavour);
        take(&server, "x", "a");
        let waiting = [wait_for_all(&server, "x y", "m"), wait_for_all(&server, "y z", "n")];
        let keys = server.snapshot();
        // Nobody listens there.
        assert_eq!(server.call("REPLICAOF 127.0.0.1 1"), "OK");
        for mut client in waiting {
            assert_eq!(client.read().error_code(), Some("UNBLOCKED"));
            client.wait_until_closed();
        }
        for command in [
            "LOCK.MACQUIRE 2 y z o 600000",
            "LOCK.MRELEASE 1 x a",
            "LOCK.MRENEW 1 x a 600000",
        ] {
            assert_eq!(server.raw().call(command).error_code(), Some("READONLY"), "{command}");
        }
        assert_eq!(server.snapshot(), keys);
        assert_eq!(server.call("REPLICAOF NO ONE"), "OK");
        assert!(take(&server, "y z", "o") > 0);
        release(&server, "x", "a");
        assert_nobody_waits(&server);
    }

    fn queues_of_several_locks_are_those_of_one_database(flavour) {
        let server = Server::start(flavour);
        take(&server, "x y", "a");
        let mut other = server.raw();
        other.call("SELECT 9");
        let token = other.call(acquire("x y", "b")).as_int();
        let mut waiting = server.raw();
        waiting.call("SELECT 9");
        waiting.send(format!("{} BLOCK 0", acquire("y x", "m")));
        server.wait_for_blocked(1);
        release(&server, "x y", "a");
        assert!(!waiting.has_reply());
        assert_eq!(server.dbsize(), 0);
        assert!(take(&server, "x y", "a") > token);
        assert_eq!(other.call("LOCK.MRELEASE 2 x y b"), numbers([1, 1]));
        assert!(waiting.read().as_int() > token);
        assert_eq!(other.call("DEL x y"), 2);
        assert_granted(&server, "x y", "a", server.call("LOCK.INFO x").field("token").as_int());
        assert_nobody_waits(&server);
    }

    /// Every key is looked at, be it the last one.
    fn all_keys_are_declared_to_the_server(flavour) {
        let server = Server::start(flavour);
        for (command, numkeys) in [
            ("LOCK.MACQUIRE 3 a1 b1 c1 o 600000 BLOCK 0", 3),
            ("LOCK.MRELEASE 2 a1 b1 o", 2),
            ("LOCK.MRENEW 1 a1 o 600000", 1),
        ] {
            let keys = server.call(format!("COMMAND GETKEYS {command}"));
            assert_eq!(keys.to_words(), ["a1", "b1", "c1"][..numkeys].to_words());
            for wrong in ["0", "-1", "x", "9", "9223372036854775807"] {
                let command = command.split(' ').enumerate();
                let words: Vec<&str> =
                    command.map(|(place, word)| if place == 1 { wrong } else { word }).collect();
                let reply = server.call(format!("COMMAND GETKEYS {}", words.join(" ")));
                assert_eq!(reply.error_code(), Some("ERR"), "{words:?}: {reply:?}");
            }
        }
        assert_eq!(server.call("ACL SETUSER worker reset on nopass ~a* +@all"), "OK");
        let mut client = server.raw();
        assert_eq!(client.call("AUTH worker any"), "OK");
        let mut witness = server.witness();
        for keys in ["a1 b1", "b1 a1", "a1 a2 b1", "b1"] {
            let numkeys = keys.split(' ').count();
            for command in [
                format!("LOCK.MACQUIRE {numkeys} {keys} o 600000"),
                format!("LOCK.MACQUIRE {numkeys} {keys} o 600000 BLOCK 0"),
                format!("LOCK.MRELEASE {numkeys} {keys} o"),
                format!("LOCK.MRENEW {numkeys} {keys} o 600000"),
            ] {
                let reply = client.call(&command);
                assert_eq!(reply.error_code(), Some("NOPERM"), "{command}: {reply:?}");
            }
        }
        witness.saw_nothing("who may not");
        // What is no number of keys gets nobody through.
        for numkeys in ["0", "-1", "1x", "99", "4294967298"] {
            let reply = client.call(format!("LOCK.MACQUIRE {numkeys} b1 b2 o 600000"));
            assert!(reply.error_code().is_some(), "{numkeys}: {reply:?}");
        }
        witness.saw_nothing("who may not count");
        assert!(client.call("LOCK.MACQUIRE 2 a1 a2 b1 600000").as_int() > 0);
        assert_eq!(client.call("LOCK.MRENEW 2 a1 a2 b1 600000"), numbers([1, 1]));
        assert_eq!(client.call("LOCK.MRELEASE 2 a1 a2 b1"), numbers([1, 1]));
    }

    fn in_a_cluster_all_locks_are_of_one_slot(flavour) {
        let server = Server::build(flavour).config("cluster-enabled", "yes").start();
        assert_eq!(server.call("CLUSTER ADDSLOTSRANGE 0 16383"), "OK");
        wait_until("the cluster is up", || {
            server.call("CLUSTER INFO").as_text().contains("cluster_state:ok")
        });
        for command in [
            "LOCK.MACQUIRE 2 x y o 600000",
            "LOCK.MACQUIRE 3 {t}x {t}y z o 600000 BLOCK 0",
            "LOCK.MRELEASE 2 {t}x y o",
            "LOCK.MRENEW 2 x {t}y o 600000",
        ] {
            assert_eq!(server.call(command).error_code(), Some("CROSSSLOT"), "{command}");
        }
        assert_eq!(server.dbsize(), 0);
        take(&server, "{t}x {t}y", "a");
        let mut waiting = wait_for_all(&server, "{t}y {t}x {t}z", "m");
        assert_eq!(server.call("DEL {t}x"), 1);
        assert!(!waiting.has_reply());
        assert_eq!(server.call("LOCK.RELEASE {t}y a"), 1);
        granted(&server, &mut waiting, "{t}x {t}y {t}z", "m");
        release(&server, "{t}x {t}z {t}y", "m");
        assert_nobody_waits(&server);
    }
}
