//! What the commands leave behind: the stream to replicas, the append only file, the keys, events
//! and touched `WATCH`es. All of it is what plain commands would leave, so that it means the same
//! to a server without the module.

use crate::harness::{
    Flavour, Raw, Reply, Server, ServerBuilder, Stopped, Words, on_every_server, unix_millis,
    wait_until,
};

/// Commands with what they replicate and the events that they cause.
///
/// `$value` and `$deadline` stand for what the key, the second word of the replicated command, has
/// afterwards. Events are without their database.
const STEPS: [(&str, &str, &[&str]); 34] = [
    (
        "LOCK.ACQUIRE k o 100000",
        "SET k $value PXAT $deadline",
        GRANTED,
    ),
    ("LOCK.RENEW k o 200000", "PEXPIREAT k $deadline", RENEWED),
    ("LOCK.RENEW k o 100000", "PEXPIREAT k $deadline", RENEWED),
    (
        "LOCK.RACQUIRE k o 300000",
        "SET k $value PXAT $deadline",
        REENTERED,
    ),
    (
        "LOCK.RACQUIRE k o 1",
        "SET k $value PXAT $deadline",
        REENTERED,
    ),
    (
        "LOCK.RELEASE k o",
        "SET k $value PXAT $deadline",
        INNER_RELEASED,
    ),
    (
        "LOCK.RELEASE k o",
        "SET k $value PXAT $deadline",
        INNER_RELEASED,
    ),
    ("LOCK.RELEASE k o", "DEL k", RELEASED),
    (
        "LOCK.RACQUIRE k o 100000",
        "SET k $value PXAT $deadline",
        GRANTED,
    ),
    ("LOCK.RELEASE k o TOKEN $token", "DEL k", RELEASED),
    (
        "LOCK.ACQUIRE k o 100000 REQID r",
        "SET k $value PXAT $deadline",
        GRANTED,
    ),
    ("LOCK.ACQUIRE k o 100000 REQID r", "", &[]),
    (
        "LOCK.RACQUIRE k o 100000 REQID s",
        "SET k $value PXAT $deadline",
        REENTERED,
    ),
    ("LOCK.RACQUIRE k o 100000 REQID s", "", &[]),
    (
        "LOCK.RENEW k o 100000 TOKEN $token",
        "PEXPIREAT k $deadline",
        RENEWED,
    ),
    (
        "LOCK.RELEASE k o",
        "SET k $value PXAT $deadline",
        INNER_RELEASED,
    ),
    ("PERSIST k", "PERSIST k", &["persist k"]),
    // A lock that has no TTL gets none from a re-entry.
    (
        "LOCK.RACQUIRE k o 100000",
        "SET k $value",
        &["set k", "lock.reentered k"],
    ),
    (
        "LOCK.RELEASE k o",
        "SET k $value",
        &["lock.released k", "set k"],
    ),
    ("LOCK.RELEASE k o", "DEL k", RELEASED),
    (
        "LOCK.ACQUIRE k * 100000",
        "SET k $value PXAT $deadline",
        GRANTED,
    ),
    (
        "LOCK.ACQUIRE watched o 100000 WATCHDOG",
        "SET watched $value PXAT $deadline",
        &["set watched", "expire watched", "lock.acquired watched"],
    ),
    (
        "LOCK.RENEW watched o 100000 WATCHDOG",
        "PEXPIREAT watched $deadline",
        &["expire watched", "lock.renewed watched"],
    ),
    (
        "LOCK.RELEASE watched o",
        "DEL watched",
        &["lock.released watched", "del watched"],
    ),
    (
        "LOCK.ACQUIRE at_once o 100000 BLOCK 0",
        "SET at_once $value PXAT $deadline",
        &["set at_once", "expire at_once", "lock.acquired at_once"],
    ),
    ("SET plain o", "SET plain o", &["set plain"]),
    (
        "LOCK.RENEW plain o 100000",
        "PEXPIREAT plain $deadline",
        &["expire plain", "lock.renewed plain"],
    ),
    (
        "LOCK.RELEASE plain o",
        "DEL plain",
        &["lock.released plain", "del plain"],
    ),
    ("HSET hash o 2", "HSET hash o 2", &["hset hash"]),
    (
        "LOCK.RENEW hash o 100000",
        "PEXPIREAT hash $deadline",
        &["expire hash", "lock.renewed hash"],
    ),
    (
        "LOCK.RELEASE hash o",
        "HSET hash o 1",
        &["lock.released hash", "hset hash"],
    ),
    (
        "LOCK.RELEASE hash o",
        "DEL hash",
        &["lock.released hash", "del hash"],
    ),
    (
        "LOCK.ACQUIRE left o 100000 REQID r",
        "SET left $value PXAT $deadline",
        &["set left", "expire left", "lock.acquired left"],
    ),
    (
        "HSET left_hash o 2",
        "HSET left_hash o 2",
        &["hset left_hash"],
    ),
];
const GRANTED: &[&str] = &["set k", "expire k", "lock.acquired k"];
const REENTERED: &[&str] = &["set k", "expire k", "lock.reentered k"];
const RENEWED: &[&str] = &["expire k", "lock.renewed k"];
const RELEASED: &[&str] = &["lock.released k", "del k"];
const INNER_RELEASED: &[&str] = &["lock.released k", "set k", "expire k"];

/// Commands that change nothing, on the keys that [`fill`] makes.
const IDLE: [&str; 22] = [
    "LOCK.ACQUIRE held x 100000",
    "LOCK.ACQUIRE held o 100000",
    "LOCK.ACQUIRE held * 100000",
    "LOCK.ACQUIRE held o 100000 REQID r",
    "LOCK.RACQUIRE held x 100000",
    "LOCK.RACQUIRE held o 100000 REQID r",
    "LOCK.RACQUIRE hash o 100000",
    "LOCK.ACQUIRE plain o 100000",
    "LOCK.RELEASE held x",
    "LOCK.RELEASE held o TOKEN 5",
    "LOCK.RELEASE free o",
    "LOCK.RENEW held x 100000",
    "LOCK.RENEW held o 100000 TOKEN 5",
    "LOCK.RENEW free o 100000 WATCHDOG",
    "LOCK.ACQUIRE list o 100000",
    "LOCK.RELEASE list o",
    "LOCK.ACQUIRE held o 0",
    "LOCK.INFO held",
    "LOCK.INFO free",
    "LOCK.QUEUE held",
    "LOCK.CONTENDED",
    "LOCK.HELP",
];

/// Makes a key in each layout.
fn fill(server: &Server) {
    let replies = server.raw().pipeline([
        "LOCK.RACQUIRE held o 1000000 REQID r",
        "LOCK.RACQUIRE twice o 1000000",
        "LOCK.RACQUIRE twice o 1000000",
        "SET plain o PX 1000000",
        "HSET hash o 2",
        "RPUSH list o",
        "SELECT 5",
        "LOCK.ACQUIRE held o 1000000",
    ]);
    let failed = |reply: &Reply| reply.error_code().is_some() || reply.is_nil();
    assert!(!replies.iter().any(failed), "{replies:?}");
}

/// The token of the lock `key`.
fn token(server: &Server, key: &str) -> i64 {
    server.call(("LOCK.INFO", key)).field("token").as_int()
}

/// Events without their database, which must be 0.
fn without_database(events: &[Words]) -> Vec<String> {
    let event = |event: &Words| {
        assert_eq!(event.text(0), "0", "{event}");
        format!("{} {}", event.text(1), event.text(2))
    };
    events.iter().map(event).collect()
}

/// What the server does to a key that it finds to have expired.
fn deletion_of_expired(flavour: Flavour) -> &'static str {
    if flavour.is_redis() {
        "DEL k"
    } else {
        "UNLINK k"
    }
}

/// The commands of a stream that change keys, with `MULTI` and `EXEC`.
fn without_select(mut commands: Vec<Words>) -> Vec<Words> {
    commands.retain(|command| command.text(0) != "SELECT");
    commands
}

/// Calls a command while `WATCH` is on, and tells whether it was touched.
fn touches(watcher: &mut Raw, key: &str, call: impl FnOnce()) -> bool {
    assert_eq!(watcher.call(("WATCH", key)), "OK");
    call();
    assert_eq!(watcher.call("MULTI"), "OK");
    assert_eq!(watcher.call("PING"), "QUEUED");
    watcher.call("EXEC").is_nil()
}

on_every_server! {
    /// The stream, the append only file and the events are those of the plain commands, so a
    /// server that never heard of locks comes to the same.
    fn every_command_has_the_effects_of_plain_commands(flavour) {
        let server = Server::build(flavour).aof().start();
        let bare = Server::build(flavour).without_module().start();
        let mut stream = server.replication_stream();
        let mut events = server.events();
        let mut bare_events = bare.events();
        let mut replicated = Vec::new();
        for (command, expected, expected_events) in STEPS {
            let command = if command.contains("$token") {
                command.replace("$token", &token(&server, "k").to_string())
            } else {
                command.to_owned()
            };
            let changes = (server.changes(), bare.changes());
            let reply = server.call(&command);
            assert_eq!(reply.error_code(), None, "{command}: {reply:?}");

            let writes = stream.writes(&server);
            let key = expected.split(' ').nth(1).unwrap_or_default();
            let mut expected = expected.to_owned();
            if expected.contains("$value") {
                expected = expected.replace("$value", server.call(("GET", key)).as_text());
            }
            if expected.contains("$deadline") {
                expected = expected.replace("$deadline", &server.deadline(key).to_string());
            }
            let shown: Vec<String> = writes.iter().map(Words::to_string).collect();
            assert_eq!(shown.join(", "), expected, "{command}");
            let seen = without_database(&events.so_far());
            assert_eq!(seen, expected_events, "{command}");

            for write in &writes {
                let reply = bare.call(write);
                assert_eq!(reply.error_code(), None, "{command}: {write}: {reply:?}");
            }
            let plain: Vec<&str> = expected_events
                .iter()
                .copied()
                .filter(|event| !event.starts_with("lock."))
                .collect();
            assert_eq!(without_database(&bare_events.so_far()), plain, "{command}");
            assert_eq!(server.snapshot(), bare.snapshot(), "{command}");
            let changed = (server.changes() - changes.0, bare.changes() - changes.1);
            assert_eq!(changed.0, changed.1, "counted changes of {command}");
            replicated.extend(writes);
        }
        assert_eq!(without_select(server.aof_commands()), replicated);
        assert_eq!(server.dbsize(), 4);
    }

    fn what_changes_nothing_has_no_effects(flavour) {
        let server = Server::build(flavour).aof().start();
        fill(&server);
        let mut witness = server.witness();
        let aof = server.aof_commands();
        for command in IDLE {
            server.call(command);
            witness.saw_nothing(command);
        }
        assert_eq!(server.aof_commands(), aof);
    }

    /// The server itself deletes the key; then it is granted as any free one is.
    fn a_lapsed_lock_is_deleted_before_it_is_granted_again(flavour) {
        let server = Server::build(flavour).aof().start();
        server.call("DEBUG SET-ACTIVE-EXPIRE 0");
        let mut stream = server.replication_stream();
        let mut events = server.events();
        for command in ["LOCK.ACQUIRE k p 100000", "LOCK.RACQUIRE k o 100000"] {
            server.call("LOCK.ACQUIRE k o 1");
            let begun = unix_millis();
            wait_until("the lease to lapse", || unix_millis() > begun + 1);
            stream.writes(&server);
            events.so_far();
            let token = server.call(command).as_int();
            let owner = command.split(' ').nth(2).unwrap();
            let deadline = server.deadline("k");
            let set = format!("SET k lk1:{token}:1:{owner} PXAT {deadline}");
            let expected = ["MULTI", deletion_of_expired(flavour), &set, "EXEC"];
            assert_eq!(stream.writes(&server), expected, "{command}");
            let seen = ["expired k", "set k", "expire k", "lock.acquired k"];
            assert_eq!(without_database(&events.so_far()), seen, "{command}");
            server.call("DEL k");
        }
    }

    // valkey#1975, valkey#2120
    fn a_command_that_only_releases_counts_like_any_write(flavour) {
        let server = Server::start(flavour);
        fill(&server);
        let mut witness = server.witness();
        let changes = server.changes();
        for (count, key) in (1..).zip(["held", "plain"]) {
            assert_eq!(server.call(("LOCK.RELEASE", key, "o")), 1);
            assert_eq!(server.changes(), changes + count, "{key}");
            let (replicated, events) = witness.saw();
            assert_eq!(replicated, [format!("DEL {key}").as_str()]);
            let expected = [format!("lock.released {key}"), format!("del {key}")];
            assert_eq!(without_database(&events), expected);
        }
    }

    fn a_transaction_replicates_as_one(flavour) {
        let server = Server::build(flavour).aof().start();
        let mut stream = server.replication_stream();
        let mut client = server.raw();
        client.call("MULTI");
        for command in [
            "LOCK.ACQUIRE k o 100000",
            "LOCK.RACQUIRE k o 1",
            "LOCK.ACQUIRE k x 100000",
            "LOCK.ACQUIRE k x 100000 BLOCK 0",
            "LOCK.RENEW k o 200000",
            "LOCK.RELEASE k o",
            "LOCK.INFO k",
            "LOCK.RELEASE k x",
            "LOCK.ACQUIRE k2 o 100000 WATCHDOG",
            "LOCK.RELEASE k2 o",
            "LOCK.RELEASE k2 o",
        ] {
            assert_eq!(client.call(command), "QUEUED", "{command}");
        }
        let replies = client.call("EXEC");
        let replies = replies.items();
        let token = replies[0].as_int();
        assert_eq!(replies[1], token);
        assert_eq!(replies[2..4], [Reply::NilBulk, Reply::NilBulk]);
        assert_eq!(replies[4..6], [Reply::Int(1), Reply::Int(1)]);
        assert_eq!(replies[6].field("token"), token);
        assert_eq!(replies[7], 0);
        assert!(replies[8].as_int() > token);
        assert_eq!(replies[9..], [Reply::Int(1), Reply::Int(-1)]);

        let writes = stream.writes(&server);
        let deadline = server.deadline("k");
        let patterns = [
            "MULTI".to_owned(),
            format!("SET k lk1:{token}:1:o PXAT *"),
            format!("SET k lk1:{token}:2:o PXAT *"),
            format!("PEXPIREAT k {deadline}"),
            format!("SET k lk1:{token}:1:o PXAT {deadline}"),
            "SET k2 * PXAT *".to_owned(),
            "DEL k2".to_owned(),
            "EXEC".to_owned(),
        ];
        assert_eq!(writes.len(), patterns.len(), "{writes:?}");
        for (write, pattern) in writes.iter().zip(&patterns) {
            assert!(write.matches(pattern), "{write} is not {pattern}");
        }
        // The inner hold did not shorten the lease.
        assert_eq!(writes[1][4], writes[2][4]);
        assert_eq!(without_select(server.aof_commands()), writes);
    }

    fn a_script_replicates_its_effects(flavour) {
        let server = Server::build(flavour).aof().start();
        let mut stream = server.replication_stream();
        let eval = |script: &str| server.call(("EVAL", script, 1, "k"));
        // Numbers in Lua are floating point, and hold a token exactly.
        let reply = eval("\
            local token = redis.call('LOCK.ACQUIRE', KEYS[1], 'o', 100000) \
            redis.call('LOCK.RACQUIRE', KEYS[1], 'o', 200000) \
            redis.call('LOCK.RELEASE', KEYS[1], 'o') \
            return {token, string.format('%.0f', token)}");
        let deadline = server.deadline("k");
        let token = reply.items()[0].as_int();
        assert_eq!(reply.items()[1], token.to_string().as_str());
        let writes = stream.writes(&server);
        let patterns = [
            "MULTI".to_owned(),
            format!("SET k lk1:{token}:1:o PXAT *"),
            format!("SET k lk1:{token}:2:o PXAT {deadline}"),
            format!("SET k lk1:{token}:1:o PXAT {deadline}"),
            "EXEC".to_owned(),
        ];
        assert_eq!(writes.len(), patterns.len(), "{writes:?}");
        for (write, pattern) in writes.iter().zip(&patterns) {
            assert!(write.matches(pattern), "{write} is not {pattern}");
        }
        assert_eq!(without_select(server.aof_commands()), writes);

        // What cannot wait does not: nil is false in Lua, and false is nil to the client.
        for refused in [
            "return redis.call('LOCK.ACQUIRE', KEYS[1], 'x', 100000)",
            "return redis.call('LOCK.ACQUIRE', KEYS[1], 'x', 100000, 'BLOCK', 0)",
            "return redis.call('LOCK.RACQUIRE', KEYS[1], 'x', 100000, 'BLOCK', 100000)",
        ] {
            assert_eq!(eval(refused), Reply::NilBulk, "{refused}");
        }
        let info = "return redis.call('LOCK.INFO', KEYS[1])[2]";
        assert_eq!(server.call(("EVAL_RO", info, 1, "k")), "held");
        let acquire = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'o', 100000)";
        let refused = server.call(("EVAL_RO", acquire, 1, "free"));
        assert!(refused.as_text().contains("read-only script"), "{refused:?}");
        assert!(stream.writes(&server).is_empty());
        assert_eq!(server.dbsize(), 1);
    }

    /// The watchdog ends with a connection, and would never end without one. So whoever cannot be
    /// watched is told, and is granted nothing.
    fn a_script_cannot_be_watched(flavour) {
        let server = Server::start(flavour);
        fill(&server);
        let mut witness = server.witness();
        for command in [
            "'LOCK.ACQUIRE', 'free', 'o', 100000",
            "'LOCK.RACQUIRE', 'twice', 'o', 100000",
            "'LOCK.RENEW', 'held', 'o', 100000",
        ] {
            let script = format!("return redis.pcall({command}, 'WATCHDOG')");
            let reply = server.call(("EVAL", script, 0));
            let error = "ERR WATCHDOG needs a connection to watch, and a script has none";
            assert_eq!(reply, Reply::Error(error.to_owned()), "{command}");
            witness.saw_nothing(command);
        }
        assert_eq!(server.info_number("lock", "lock_watchdogs"), 0);
    }

    /// A replica needs no module to follow, and with the module it shows locks and grants none.
    fn a_replica_has_what_its_primary_has_and_grants_nothing(flavour) {
        let primary = Server::start(flavour);
        let replica = Server::build(flavour).replica_of(&primary).start();
        let bare = Server::build(flavour).without_module().replica_of(&primary).start();
        fill(&primary);
        primary.raw().pipeline([
            "LOCK.ACQUIRE k o 1000000",
            "LOCK.RACQUIRE k o 2000000",
            "LOCK.RENEW k o 3000000",
            "LOCK.RELEASE k o",
            "LOCK.RELEASE hash o",
            "LOCK.RENEW plain o 1000000",
            "LOCK.ACQUIRE gone o 1000000",
            "LOCK.RELEASE gone o",
            "LOCK.ACQUIRE own * 1000000",
        ]);
        for other in [&replica, &bare] {
            other.wait_in_sync_with(&primary);
            assert_eq!(other.snapshot(), primary.snapshot());
        }
        let before = replica.snapshot();
        for command in [
            "LOCK.ACQUIRE free o 100000",
            "LOCK.ACQUIRE k o 100000",
            "LOCK.ACQUIRE k x 100000 BLOCK 0",
            "LOCK.RACQUIRE k o 100000",
            "LOCK.RELEASE k o",
            "LOCK.RENEW k o 100000",
        ] {
            let reply = replica.call(command);
            assert_eq!(reply.error_code(), Some("READONLY"), "{command}");
        }
        assert_eq!(replica.snapshot(), before);
        assert_eq!(replica.call("LOCK.HELP"), primary.call("LOCK.HELP"));
        for (key, state, holds) in [("k", "held", 1), ("twice", "held", 2), ("hash", "held", 1)] {
            let info = replica.call(("LOCK.INFO", key));
            assert_eq!(info.field("state"), state, "{key}");
            assert_eq!(info.field("owners").field("o"), holds, "{key}");
            let there = primary.call(("LOCK.INFO", key));
            assert_eq!(info.field("token"), there.field("token"), "{key}");
        }
        assert_eq!(replica.call("LOCK.INFO free").field("state"), "free");

        // Once it is the primary, the holders hold on, and tokens go on rising.
        let highest = token(&replica, "own");
        assert_eq!(replica.call("REPLICAOF NO ONE"), "OK");
        assert_eq!(replica.call("LOCK.ACQUIRE k x 100000"), Reply::NilBulk);
        assert_eq!(replica.call("LOCK.RELEASE k o"), 1);
        assert!(replica.call("LOCK.ACQUIRE k x 100000").as_int() > highest);
    }

    /// A replica waits for its primary to delete what has lapsed, but shows it no more.
    fn a_lapsed_lock_is_free_on_a_replica_too(flavour) {
        let primary = Server::start(flavour);
        let replica = Server::build(flavour).replica_of(&primary).start();
        for server in [&primary, &replica] {
            server.call("DEBUG SET-ACTIVE-EXPIRE 0");
        }
        primary.call("LOCK.ACQUIRE k o 1");
        let begun = unix_millis();
        wait_until("the lease to lapse", || unix_millis() > begun + 1);
        replica.wait_in_sync_with(&primary);
        assert_eq!(replica.dbsize(), 1);
        assert_eq!(replica.call("LOCK.INFO k").field("state"), "free");
        assert_eq!(replica.dbsize(), 1);
    }

    fn a_write_touches_a_watched_key_and_a_look_does_not(flavour) {
        let server = Server::start(flavour);
        let mut watcher = server.raw();
        for command in [
            "LOCK.ACQUIRE k o 100000",
            "LOCK.RENEW k o 200000",
            "LOCK.RACQUIRE k o 100000",
            "LOCK.RACQUIRE k o 100000 REQID r",
            "LOCK.RELEASE k o",
            "LOCK.RELEASE k o",
            "LOCK.RELEASE k o",
            "LOCK.RACQUIRE k o 100000",
            "LOCK.RELEASE k o",
        ] {
            let touched = touches(&mut watcher, "k", || assert!(server.call(command).as_int() > 0));
            assert!(touched, "{command}");
        }
        fill(&server);
        for (key, command) in [
            ("plain", "LOCK.RENEW plain o 100000"),
            ("plain", "LOCK.RELEASE plain o"),
            ("hash", "LOCK.RENEW hash o 100000"),
            ("hash", "LOCK.RELEASE hash o"),
            ("hash", "LOCK.RELEASE hash o"),
        ] {
            let touched = touches(&mut watcher, key, || assert_eq!(server.call(command), 1));
            assert!(touched, "{command}");
        }
        server.call("FLUSHALL");
        fill(&server);
        for command in IDLE.iter().chain(&["LOCK.ACQUIRE other o 100000", "LOCK.RELEASE other o"]) {
            for key in ["held", "free", "plain", "hash", "list", "twice"] {
                let touched = touches(&mut watcher, key, || drop(server.call(command)));
                assert!(!touched, "{command} touched {key}");
            }
        }
    }

    fn a_client_that_caches_keys_is_told_of_writes(flavour) {
        let server = Server::start(flavour);
        let mut client = server.raw_resp3();
        assert_eq!(client.call("CLIENT TRACKING ON"), "OK");
        let key = Reply::Array(vec![Reply::bulk("k")]);
        let invalidation = Reply::Push(vec![Reply::bulk("invalidate"), key]);
        for (look, command, is_told) in [
            ("GET k", "LOCK.ACQUIRE k o 100000", true),
            ("GET k", "LOCK.ACQUIRE k x 100000", false),
            ("GET k", "LOCK.RENEW k o 200000", true),
            ("LOCK.INFO k", "LOCK.RACQUIRE k o 100000", true),
            ("LOCK.INFO k", "LOCK.INFO k", false),
            ("LOCK.INFO k", "LOCK.RELEASE k x", false),
            ("LOCK.INFO k", "LOCK.RELEASE k o", true),
            ("LOCK.INFO k", "LOCK.RELEASE k o", true),
            ("LOCK.INFO k", "LOCK.RELEASE k o", false),
        ] {
            client.call(look);
            server.call(command);
            client.send("PING");
            if is_told {
                assert_eq!(client.read(), invalidation, "{command} after {look}");
            }
            assert_eq!(client.read(), "PONG", "{command} after {look}");
        }
    }

    /// From the RDB file of an orderly end.
    fn a_snapshot_loads_without_the_module_and_with_it_again(flavour) {
        there_and_back(|| Server::build(flavour), Server::shutdown);
    }

    /// From the append only file after a crash.
    fn an_append_only_file_loads_without_the_module_and_with_it_again(flavour) {
        there_and_back(|| Server::build(flavour).aof(), Server::kill);
    }

    /// A full server grants no more, but those who hold locks can keep them and give them back.
    fn a_server_out_of_memory_refuses_what_takes_more(flavour) {
        let server = Server::start(flavour);
        fill(&server);
        let mut witness = server.witness();
        server.call("CONFIG SET maxmemory-policy noeviction");
        server.call("CONFIG SET maxmemory 1");
        for command in [
            "LOCK.ACQUIRE free o 100000",
            "LOCK.ACQUIRE held x 100000 BLOCK 0",
            "LOCK.RACQUIRE free o 100000",
            "LOCK.RACQUIRE held o 100000",
        ] {
            assert_eq!(server.call(command).error_code(), Some("OOM"), "{command}");
        }
        let script = "return redis.pcall('LOCK.ACQUIRE', KEYS[1], 'o', 100000)";
        assert_eq!(server.call(("EVAL", script, 1, "free")).error_code(), Some("OOM"));
        assert_eq!(server.call("LOCK.INFO held").field("state"), "held");
        assert!(!server.call("LOCK.HELP").items().is_empty());
        witness.saw_nothing("a full server");
        for (command, answer) in [
            ("LOCK.RENEW held x 100000", 0),
            ("LOCK.RENEW held o 100000", 1),
            ("LOCK.RELEASE held o", 1),
            ("LOCK.RELEASE held o", -1),
            ("LOCK.RELEASE twice o", 1),
            ("LOCK.RELEASE twice o", 1),
            ("LOCK.RENEW plain o 100000", 1),
            ("LOCK.RELEASE plain o", 1),
            ("LOCK.RELEASE hash o", 1),
            ("LOCK.RELEASE hash o", 1),
        ] {
            assert_eq!(server.call(command), answer, "{command}");
        }
        server.call("CONFIG SET maxmemory 0");
        assert!(server.call("LOCK.ACQUIRE held x 100000").as_int() > 0);
    }
}

/// Ends a server that has locks, loads what it stored without the module and then with it again.
fn there_and_back(build: impl Fn() -> ServerBuilder, end: fn(Server) -> Stopped) {
    let server = build().start();
    fill(&server);
    server.raw().pipeline([
        "LOCK.ACQUIRE gone o 1000000",
        "LOCK.RELEASE gone o",
        "LOCK.RENEW held o 2000000",
        "LOCK.RELEASE hash o",
        "LOCK.ACQUIRE old o 1000000",
    ]);
    let (stored, token) = (server.snapshot(), token(&server, "held"));

    let bare = build().without_module().dir_of(end(server)).start();
    assert_eq!(bare.snapshot(), stored);
    assert_eq!(bare.call("LOCK.INFO held").error_code(), Some("ERR"));
    // Clients that know nothing of the module read the locks and do away with them.
    assert_eq!(
        bare.call("GET held"),
        format!("lk1r:{token}:1:1:r:o").as_str()
    );
    assert!(bare.call("PTTL held").as_int() > 0);
    assert_eq!(bare.call("SET held x NX"), Reply::NilBulk);
    assert_eq!(bare.call("DEL old"), 1);

    let server = build().dir_of(end(bare)).start();
    assert_eq!(server.call("LOCK.INFO held").field("token"), token);
    let acquire = "LOCK.ACQUIRE held x 100000";
    assert_eq!(server.call(acquire), Reply::NilBulk);
    assert_eq!(server.call("LOCK.RACQUIRE held o 1 REQID r"), token);
    assert_eq!(server.call(format!("LOCK.RELEASE held o TOKEN {token}")), 1);
    assert!(server.call(acquire).as_int() > token);
    for answer in [1, 1, -1] {
        assert_eq!(server.call("LOCK.RELEASE twice o"), answer);
    }
    assert_eq!(server.call("LOCK.INFO old").field("state"), "free");
    assert_eq!(server.call("LOCK.INFO hash").field("owners").field("o"), 1);
}
