//! Loading, unloading and upgrading the module while locks are held, its load arguments, and what
//! happens when it has a bug.

use std::fs;
use std::path::Path;

use crate::harness::{Flavour, Reply, Server, module_path, on_every_server, wait_until};
use crate::waiters::unload;

/// Makes a lock in each layout.
fn fill(server: &Server) {
    let replies = server.raw().pipeline([
        "LOCK.ACQUIRE held o 1000000",
        "LOCK.RACQUIRE twice o 1000000 REQID r",
        "LOCK.RACQUIRE twice o 1000000",
        "SET plain o PX 1000000",
        "HSET hash o 2",
    ]);
    assert!(
        replies.iter().all(|reply| reply.error_code().is_none()),
        "{replies:?}"
    );
}

/// Loads the module from this file.
fn load(server: &Server, path: &Path) -> Reply {
    server.call(("MODULE", "LOAD", path.to_str().unwrap()))
}

/// What `MODULE LIST` says of the module.
fn listed(server: &Server) -> Reply {
    let modules = server.call("MODULE LIST");
    let mut modules = modules.items().iter();
    modules
        .find(|module| *module.field("name") == *"lock")
        .unwrap()
        .clone()
}

/// The commands of the ACL category of the module, in order. Redis 7.0 has no such categories.
fn category(server: &Server) -> Vec<String> {
    let reply = server.call("ACL CAT lock");
    if server.flavour().at_least_7_2() {
        let mut commands: Vec<String> = reply
            .items()
            .iter()
            .map(|name| name.as_text().to_lowercase())
            .collect();
        commands.sort();
        assert!(
            commands.contains(&"lock.acquire".to_owned()),
            "{commands:?}"
        );
        commands
    } else {
        assert_eq!(reply.error_code(), Some("ERR"), "{reply:?}");
        Vec::new()
    }
}

/// Uses the locks that [`fill`] made, of which this is the token of one.
fn use_up(server: &Server, token: i64) {
    assert_eq!(server.call("LOCK.INFO held").field("token"), token);
    for command in [
        "LOCK.ACQUIRE held x 1",
        "LOCK.RACQUIRE plain o 1",
        "LOCK.ACQUIRE hash o 1",
    ] {
        assert_eq!(server.call(command), Reply::NilBulk, "{command}");
    }
    assert_eq!(server.call("LOCK.RACQUIRE held o 100000"), token);
    assert_eq!(server.call("LOCK.RENEW twice o 100000"), 1);
    for (key, holds) in [("held", 2), ("twice", 2), ("plain", 1), ("hash", 2)] {
        for _ in 0..holds {
            assert_eq!(server.call(("LOCK.RELEASE", key, "o")), 1, "{key}");
        }
        assert_eq!(server.call(("LOCK.RELEASE", key, "o")), -1, "{key}");
    }
    assert!(server.call("LOCK.ACQUIRE held x 100000").as_int() > token);
    server.call("FLUSHALL");
}

/// The lines of the log that this module wrote.
fn own_lines(log: &str) -> Vec<&str> {
    log.lines()
        .filter(|line| line.contains("redis-lock:") || line.contains("redis-lock "))
        .collect()
}

on_every_server! {
    fn the_module_has_the_version_of_the_package(flavour) {
        let server = Server::start(flavour);
        let [major, minor, patch] = [
            env!("CARGO_PKG_VERSION_MAJOR"),
            env!("CARGO_PKG_VERSION_MINOR"),
            env!("CARGO_PKG_VERSION_PATCH"),
        ]
        .map(|number| number.parse::<i64>().unwrap());
        assert_eq!(listed(&server).field("ver"), major * 10_000 + minor * 100 + patch);
        let log = server.log();
        let [line] = own_lines(&log)[..] else {
            panic!("not just one line about the module\n{log}");
        };
        let loaded = concat!("<lock> redis-lock ", env!("CARGO_PKG_VERSION"), " loaded: ");
        assert!(line.contains(loaded), "{line}");
    }

    fn locks_outlive_the_module(flavour) {
        let server = Server::start(flavour);
        let categories = category(&server);
        // Three times, because a server cannot take all back that a module once added.
        for round in 1..=3 {
            fill(&server);
            let token = server.call("LOCK.INFO held").field("token").as_int();
            let stored = server.snapshot();
            assert_eq!(server.call("MODULE UNLOAD lock"), "OK", "round {round}");
            assert_eq!(server.call("LOCK.INFO held").error_code(), Some("ERR"));
            assert_eq!(server.call("SET held x NX"), Reply::NilBulk);
            assert_eq!(server.snapshot(), stored);
            assert_eq!(load(&server, &module_path()), "OK", "round {round}");
            assert_eq!(server.snapshot(), stored);
            assert_eq!(category(&server), categories);
            use_up(&server, token);
        }
        assert_eq!(own_lines(&server.log()).len(), 4, "a line each time that it is loaded");
    }

    fn a_new_version_takes_over_live_locks(flavour) {
        let server = Server::start(flavour);
        fill(&server);
        let token = server.call("LOCK.INFO held").field("token").as_int();
        let stored = server.snapshot();
        // The file of the version in use stays as it is: the server has it mapped.
        let new = server.dir().join("libredis_lock_new.so");
        fs::copy(module_path(), &new).unwrap();
        assert_eq!(server.call("MODULE UNLOAD lock"), "OK");
        assert_eq!(load(&server, &new), "OK");
        assert_eq!(*listed(&server).field("path"), *new.to_str().unwrap());
        assert_eq!(server.snapshot(), stored);
        use_up(&server, token);
    }

    /// As in the ACL file of a server that is upgraded: nobody edits it for that.
    fn permissions_outlive_the_module(flavour) {
        let server = Server::start(flavour);
        let allowed = if flavour.at_least_7_2() { "+@lock" } else { "+lock.acquire" };
        server.call(format!("ACL SETUSER worker on nopass ~lock:* -@all {allowed}"));
        for round in 1..=2 {
            let mut worker = server.raw();
            assert_eq!(worker.call("AUTH worker any"), "OK");
            let granted = worker.call(("LOCK.ACQUIRE", format!("lock:{round}"), "o", 100_000));
            assert!(granted.as_int() > 0);
            assert_eq!(worker.call("LOCK.ACQUIRE other o 1").error_code(), Some("NOPERM"));
            assert_eq!(worker.call("GET lock:1").error_code(), Some("NOPERM"));
            assert_eq!(server.call("MODULE UNLOAD lock"), "OK");
            assert_eq!(load(&server, &module_path()), "OK");
        }
    }

    /// The server refuses by itself, as long as anything of the module is pending.
    fn the_module_stays_while_somebody_waits_or_is_watched(flavour) {
        let server = Server::start(flavour);
        let holder = "LOCK.ACQUIRE k o 1000000";
        server.call(holder);
        let mut waiter = server.raw();
        waiter.send("LOCK.ACQUIRE k x 1000000 BLOCK 0");
        server.wait_for_blocked(1);
        assert_eq!(server.call("MODULE UNLOAD lock").error_code(), Some("ERR"));
        assert_eq!(server.call("LOCK.RELEASE k o"), 1);
        let token = waiter.read().as_int();
        unload(&server);
        // Nothing of it is called any more: not for keys, not for connections.
        for command in ["SET a v PX 1", "DEL k", "EXPIRE a 0", "FLUSHALL", "SWAPDB 0 1"] {
            assert_eq!(server.call(command).error_code(), None, "{command}");
        }
        server.raw().close();
        assert_eq!(load(&server, &module_path()), "OK");

        assert!(server.call("LOCK.ACQUIRE k o 1000000 WATCHDOG").as_int() > token);
        assert_eq!(server.call("MODULE UNLOAD lock").error_code(), Some("ERR"));
        assert_eq!(server.call("LOCK.RELEASE k o"), 1);
        unload(&server);
        server.raw().close();
        assert_eq!(server.call("CONFIG SET maxmemory-policy allkeys-lru"), "OK");
        assert_eq!(server.call("PING"), "PONG");
    }

    fn a_second_copy_is_refused_and_does_no_harm(flavour) {
        let server = Server::start(flavour);
        fill(&server);
        let token = server.call("LOCK.INFO held").field("token").as_int();
        let copy = server.dir().join("copy.so");
        fs::copy(module_path(), &copy).unwrap();
        for path in [module_path(), copy] {
            assert_eq!(load(&server, &path).error_code(), Some("ERR"));
        }
        assert_eq!(own_lines(&server.log()).len(), 1);
        use_up(&server, token);
    }

    fn load_arguments_are_defaults_of_the_settings(flavour) {
        let waiters = |server: &Server| {
            let all = server.call("CONFIG GET lock.*");
            ["lock.max-waiters", "lock.max-waiters-per-key", "lock.watchdog-max-hold"]
                .map(|name| all.field(name).as_text().to_owned())
        };
        for (args, expected) in [
            (&[][..], ["100000", "10000", "86400000"]),
            (&["max-waiters", "0"], ["0", "10000", "86400000"]),
            (&["MAX-Waiters-Per-Key", "10000000"], ["100000", "10000000", "86400000"]),
            (
                &["watchdog-max-hold", "9007199254740991", "max-waiters", "7"],
                ["7", "10000", "9007199254740991"],
            ),
        ] {
            let server = Server::build(flavour).module_args(args).start();
            assert_eq!(waiters(&server), expected, "{args:?}");
            let [total, per_key, hold] = expected;
            let line = format!(
                "loaded: max-waiters {total}, max-waiters-per-key {per_key}, \
                 watchdog-max-hold {hold}"
            );
            assert!(server.log().contains(&line), "{line}");
        }
        // A line of the configuration counts more.
        let server = Server::build(flavour)
            .module_args(&["max-waiters", "5", "max-waiters-per-key", "6"])
            .config("lock.max-waiters", "8")
            .start();
        assert_eq!(waiters(&server), ["8", "6", "86400000"]);
    }

    fn bad_load_arguments_are_refused_with_one_line(flavour) {
        let server = Server::build(flavour).without_module().start();
        let path = module_path();
        let path = path.to_str().unwrap().as_bytes();
        let waiters = "load argument max-waiters needs an integer from 0 to 10000000";
        let per_key = "load argument max-waiters-per-key needs an integer from 0 to 10000000";
        let hold = "load argument watchdog-max-hold needs an integer from 1 to 9007199254740991";
        let rows: [(&[&[u8]], &str); 18] = [
            (&[b"nope"], "unknown load argument 'nope'"),
            (&[b"nope", b"1"], "unknown load argument 'nope'"),
            (&[b"lock.max-waiters", b"1"], "unknown load argument 'lock.max-waiters'"),
            (&[b"%s%n", b"1"], "unknown load argument '%s%n'"),
            (&[b"\0\xff\n", b"1"], "unknown load argument '\\x00\\xff\\n'"),
            (&[b"", b"1"], "unknown load argument ''"),
            (&[b"max-waiters", b"5", b"nope"], "unknown load argument 'nope'"),
            (&[b"max-waiters"], waiters),
            (&[b"max-waiters", b""], waiters),
            (&[b"max-waiters", b"x"], waiters),
            (&[b"max-waiters", b"-1"], waiters),
            (&[b"max-waiters", b"1.5"], waiters),
            (&[b"max-waiters", b"10000001"], waiters),
            (&[b"max-waiters", b"18446744073709551616"], waiters),
            (&[b"max-waiters", b"%s\xff"], waiters),
            (&[b"max-waiters", b"5", b"max-waiters-per-key"], per_key),
            (&[b"watchdog-max-hold", b"0"], hold),
            (&[b"watchdog-max-hold", b"9007199254740992"], hold),
        ];
        for (args, line) in rows {
            let before = server.log().len();
            let command = [&[&b"MODULE"[..], b"LOAD", path], args].concat();
            assert_eq!(server.call(command).error_code(), Some("ERR"), "{line}");
            let log = server.log();
            let [own] = own_lines(&log[before..])[..] else {
                panic!("not just one line about {line}\n{}", &log[before..]);
            };
            assert!(own.ends_with(&format!("# <lock> redis-lock: {line}")), "{own}");
        }
        // Nothing is left of those attempts.
        assert_eq!(server.call("LOCK.HELP").error_code(), Some("ERR"));
        assert!(server.call("CONFIG GET lock.*").items().is_empty());
        assert_eq!(load(&server, &module_path()), "OK");

        let refused = |args: &[&str], setting: &str, value: &str| {
            Server::build(flavour).module_args(args).config(setting, value).start_refused()
        };
        let log = refused(&["nope"], "save", "");
        let [own] = own_lines(&log)[..] else {
            panic!("not just one line\n{log}");
        };
        assert!(own.ends_with("redis-lock: unknown load argument 'nope'"), "{own}");
        for (setting, value, line) in [
            ("lock.max-waiters", "-1", "redis-lock: a setting in the configuration is wrong"),
            ("lock.nope", "1", "Module Configuration detected without"),
        ] {
            let log = refused(&[], setting, value);
            assert!(log.contains(line), "{setting} {value}\n{log}");
        }
    }

    /// The message is printed as it is, or the server would be gone: `%n` writes to memory.
    fn a_bug_is_an_error_and_a_line_in_the_log(flavour) {
        let server = Server::start(flavour);
        if !cfg!(debug_assertions) {
            let reply = server.call("LOCK.DEBUG PANIC");
            assert!(reply.as_text().starts_with("ERR unknown command"), "{reply:?}");
            return;
        }
        fill(&server);
        let token = server.call("LOCK.INFO held").field("token").as_int();
        let mut waiter = server.raw();
        waiter.send("LOCK.ACQUIRE held x 1000000 BLOCK 0");
        server.wait_for_blocked(1);
        let stored = server.snapshot();
        let error = Reply::Error("ERR internal error, see the log of the server".to_owned());
        let mut stream = server.replication_stream();
        wait_until("the last word on the copy for the stream", || {
            server.log().contains("Synchronization with replica")
        });
        let lines = server.log().lines().count();

        assert_eq!(server.call("LOCK.DEBUG PANIC"), error);
        assert_eq!(server.raw_resp3().call("lock.debug panic"), error);
        let mut transaction = server.raw();
        transaction.pipeline(["MULTI", "LOCK.RENEW plain o 1000000", "LOCK.DEBUG PANIC"]);
        assert_eq!(transaction.call("EXEC"), Reply::Array(vec![Reply::Int(1), error.clone()]));
        let script = "return redis.pcall('LOCK.DEBUG', 'PANIC')";
        assert_eq!(server.call(("EVAL", script, 0)), error);

        let log = server.log();
        let new: Vec<&str> = log.lines().skip(lines).collect();
        assert_eq!(new.len(), 4, "{new:?}");
        for line in new {
            let (_, bug) = line.split_once("redis-lock: a bug, the command is given up: ").unwrap();
            let (place, message) = bug.split_once(": ").unwrap();
            assert!(place.starts_with("panicked at src/commands/debug.rs:"), "{line}");
            assert_eq!(message, "on purpose, with a %s and a %n", "{line}");
        }
        let deadline = server.deadline("plain");
        assert_eq!(stream.writes(&server), [format!("PEXPIREAT plain {deadline}").as_str()]);
        // The other locks are as they were, and so is what the module keeps for itself.
        for key in ["held", "twice", "hash"] {
            assert_eq!(server.snapshot().get(0, key), stored.get(0, key), "{key}");
        }
        assert_eq!(server.call("LOCK.INFO held").field("waiters"), 1);
        assert_eq!(server.call("LOCK.RELEASE held o"), 1);
        let next = waiter.read().as_int();
        assert!(next > token);
        assert_eq!(server.call("LOCK.RELEASE held x"), 1);
        assert!(server.call("LOCK.ACQUIRE held o 1000000").as_int() > next);
        // Another argument is no bug.
        let other = Reply::Error("ERR unknown option 'NOPE'".to_owned());
        assert_eq!(server.call("LOCK.DEBUG NOPE"), other);
        // The hook that wrote the lines goes with the module, and comes back with it.
        unload(&server);
        assert_eq!(load(&server, &module_path()), "OK");
        assert_eq!(server.call("LOCK.DEBUG PANIC"), error);
        assert_eq!(server.log().matches("a bug, the command is given up").count(), 5);
    }

    /// Names from outside come into the log too, where nothing may read them as a format.
    fn a_name_in_the_log_is_no_format(flavour) {
        let server = Server::start(flavour);
        for (key, owner, line) in [
            (&b"%s%n"[..], &b"%d%n%n"[..], "the watched lock %s%n of %d%n%n is lost"),
            (b"\0\xff\n", b"a\r\nb", "the watched lock \\x00\\xff\\n of a\\r\\nb is lost"),
        ] {
            let acquire = ("LOCK.ACQUIRE", key, owner, 30, "WATCHDOG");
            assert!(server.call(acquire).as_int() > 0);
            server.call(("DEL", key));
            wait_until("the loss to be logged", || server.log().contains(line));
        }
        let mut other = server.raw();
        server.call(("LOCK.ACQUIRE", "%s%n", "%n%s", 1_000_000));
        server.call(("LOCK.ACQUIRE", "%n%s", "%s%n", 1_000_000));
        other.send(("LOCK.ACQUIRE", "%s%n", "%s%n", 1_000_000, "BLOCK", 0));
        server.wait_for_blocked(1);
        let refused = server.call(("LOCK.ACQUIRE", "%n%s", "%n%s", 1_000_000, "BLOCK", 0));
        let circle = "DEADLOCK %n%s waits for %n%s held by %s%n, %s%n waits for %s%n held by %n%s";
        assert_eq!(refused, Reply::Error(circle.to_owned()));
    }
}

#[test]
fn a_server_that_is_too_old_refuses_with_one_clear_line() {
    let log = Server::build(Flavour::Redis62).start_refused();
    let [own] = own_lines(&log)[..] else {
        panic!("not just one line\n{log}");
    };
    let line = "# <lock> redis-lock: needs Redis 7.0 or Valkey 8.0 or newer, this server is 6.2.14";
    assert!(own.contains(line), "{own}");

    // Loaded into a server that runs, it is refused too, and the server goes on.
    let server = Server::build(Flavour::Redis62).without_module().start();
    assert_eq!(load(&server, &module_path()).error_code(), Some("ERR"));
    assert_eq!(own_lines(&server.log()).len(), 1);
    assert_eq!(server.call("SET k v"), "OK");
}
