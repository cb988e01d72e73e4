//! The harness does what tests rely on. Most of these servers run without the module.

use std::net::{Ipv4Addr, TcpListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::thread;

use redis::Commands;

use crate::harness::{
    Flavour, Reply, Server, find_server, module_errors, on_every_server, wait_for, wait_until,
};

/// A server without the module.
fn bare(flavour: Flavour) -> Server {
    Server::build(flavour).without_module().start()
}

/// What a panic said.
fn panic_of<T>(body: impl FnOnce() -> T) -> String {
    let Err(panic) = catch_unwind(AssertUnwindSafe(body)) else {
        panic!("it did not panic");
    };
    panic
        .downcast_ref::<String>()
        .expect("a panic with a text")
        .clone()
}

on_every_server! {
    fn the_server_is_the_flavour_that_was_asked_for(flavour) {
        let server = bare(flavour);
        let info = server.info("server");
        let version = info.get("valkey_version").unwrap_or(&info["redis_version"]);
        let product = if server.flavour().is_redis() { "redis" } else { "valkey" };
        assert_eq!(format!("{product}-{version}"), flavour.name());
        // An option of 7.2: where it is unknown, the module API is the old one as well.
        let knows_no_touch = server.call("CLIENT NO-TOUCH ON") == "OK";
        assert_eq!(knows_no_touch, flavour.at_least_7_2());
    }

    fn the_module_is_loaded_unless_told_otherwise(flavour) {
        let is_loaded = |server: &Server| {
            let modules = server.call("MODULE LIST");
            let mut paths = modules.items().iter().map(|module| module.field("path").as_text());
            paths.any(|path| path.contains("redis_lock"))
        };
        assert!(is_loaded(&Server::start(flavour)));
        assert!(!is_loaded(&bare(flavour)));
    }

    fn words_and_replies_are_of_any_bytes(flavour) {
        let server = bare(flavour);
        let mut raw = server.raw();
        assert_eq!(raw.call("SET k v"), Reply::ok());
        assert_eq!(raw.call(("SET", b"\xff \0\r\n", "a b", "PX", 100_000)), "OK");
        assert_eq!(raw.call(["GET", "k"]), Reply::bulk("v"));
        assert_eq!(raw.call(vec![b"GET".to_vec(), b"\xff \0\r\n".to_vec()]), "a b");
        assert_eq!(raw.call(("SET", "k", "")), "OK");
        assert_eq!(raw.call("GET k"), "");
        assert_eq!(raw.call("STRLEN k"), 0);
        assert_eq!(raw.call("GET none"), Reply::NilBulk);
        assert_eq!(raw.call("BLPOP none 0.001"), Reply::NilArray);
        assert_eq!(raw.call("LPUSH k 1").error_code(), Some("WRONGTYPE"));
        assert_eq!(raw.call("GET k").error_code(), None);
        assert_eq!(raw.call("MGET k none"), Reply::Array(vec![Reply::bulk(""), Reply::NilBulk]));
        let replies = raw.pipeline((1..=1000).map(|number| ("INCRBY", "sum", number)));
        assert_eq!(replies[999], 500_500);
        assert_eq!(format!("{:?}", raw.call("MGET sum none")), r#"["500500", $-1]"#);
    }

    fn resp3_types_are_kept_apart(flavour) {
        let server = bare(flavour);
        let mut raw = server.raw_resp3();
        raw.call("HSET h f v");
        assert_eq!(raw.call("HGETALL h"), Reply::Map(vec![(Reply::bulk("f"), Reply::bulk("v"))]));
        assert_eq!(raw.call("HGETALL h").field("f"), "v");
        assert_eq!(server.call("HGETALL h").field("f"), "v");
        raw.call("SADD s m");
        assert_eq!(raw.call("SMEMBERS s"), Reply::Set(vec![Reply::bulk("m")]));
        raw.call("ZADD z 1.5 m");
        assert_eq!(raw.call("ZSCORE z m"), Reply::Double(1.5));
        assert_eq!(raw.call("GET none"), Reply::Null);
        assert!(raw.call("GET none").is_nil());
        assert_eq!(raw.call("DEBUG PROTOCOL true"), Reply::Bool(true));
        let verbatim = raw.call("DEBUG PROTOCOL verbatim");
        assert_eq!(verbatim, Reply::Verbatim("txt".into(), b"This is a verbatim\nstring".to_vec()));
        raw.send("SUBSCRIBE channel");
        let subscribed = vec![Reply::bulk("subscribe"), Reply::bulk("channel"), Reply::Int(1)];
        assert_eq!(raw.read(), Reply::Push(subscribed));
    }

    fn a_client_of_the_redis_crate_connects(flavour) {
        let server = bare(flavour);
        let mut client = server.client();
        let () = client.set("k", 7).unwrap();
        assert_eq!(client.get::<_, i64>("k").unwrap(), 7);
        assert_eq!(server.dbsize(), 1);
    }

    fn blocked_clients_are_counted_and_their_replies_seen(flavour) {
        let server = bare(flavour);
        assert_eq!(server.blocked_clients(), 0);
        let mut waiter = server.raw();
        waiter.send("BLPOP list 0");
        let mut other = server.raw();
        other.send("BLPOP list 0");
        server.wait_for_blocked(2);
        assert!(!waiter.has_reply());
        assert_eq!(server.call("RPUSH list v"), 1);
        wait_until("the waiter's reply", || waiter.has_reply());
        assert_eq!(waiter.read().to_words(), "list v");
        assert!(!waiter.has_reply());
        other.close();
        server.wait_for_blocked(0);
        let id = waiter.id();
        assert_eq!(server.call(("CLIENT", "KILL", "ID", id)), 1);
        waiter.wait_until_closed();
    }

    fn threads_share_a_server(flavour) {
        let server = bare(flavour);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut own = server.raw();
                    for _ in 0..100 {
                        own.call("INCR own");
                        server.call("INCR shared");
                    }
                });
            }
        });
        assert_eq!(server.call("MGET own shared").to_words(), "400 400");
    }

    fn a_condition_is_awaited(flavour) {
        let server = bare(flavour);
        server.call("SET k v PX 20");
        wait_until("the key to expire", || server.call("GET k").is_nil());
        server.raw().send("SET later 5");
        let value = wait_for("the key to be set", || {
            let reply = server.call("GET later");
            (!reply.is_nil()).then_some(reply)
        });
        assert_eq!(value, "5");
    }

    fn command_counters_are_read(flavour) {
        let server = bare(flavour);
        assert_eq!(server.command_stats("set").calls, 0);
        let mut raw = server.raw();
        raw.pipeline(["SET k 1"; 300]);
        assert_eq!(raw.call("INCR k"), 2);
        assert_eq!(raw.call("SET k v wrong").error_code(), Some("ERR"));
        assert_eq!(raw.call("SET k").error_code(), Some("ERR"));
        let stats = server.command_stats("SET");
        assert_eq!((stats.calls, stats.rejected, stats.failed), (301, 1, 1));
        assert!(stats.usec > 0, "{stats:?}");
    }

    fn a_restart_keeps_the_keys(flavour) {
        let server = bare(flavour);
        let (port, dir) = (server.port(), server.dir().to_owned());
        server.call("SET k v");
        let run = server.info("server")["run_id"].clone();
        let server = server.restart();
        assert_ne!(server.info("server")["run_id"], run);
        assert_eq!((server.port(), server.dir()), (port, dir.as_path()));
        assert_eq!(server.call("GET k"), "v");
        assert_eq!(server.log().matches("Ready to accept connections").count(), 2);
    }

    fn a_killed_server_starts_again_with_what_it_had_saved(flavour) {
        let server = bare(flavour);
        server.call("SET saved v");
        assert_eq!(server.call("SAVE"), "OK");
        server.call("SET unsaved v");
        let stopped = server.kill();
        assert!(!stopped.status().success());
        assert!(!stopped.log().contains("User requested shutdown"));
        let server = stopped.start();
        assert_eq!(server.call("GET saved"), "v");
        assert_eq!(server.call("GET unsaved"), Reply::NilBulk);
    }

    fn another_server_takes_over_a_directory(flavour) {
        let server = bare(flavour);
        server.call("SET k v");
        let stopped = server.shutdown();
        assert!(stopped.dir().join("dump.rdb").is_file());
        let other = Server::build(flavour).without_module().config("databases", "3");
        let server = other.dir_of(stopped).start();
        assert_eq!(server.call("GET k"), "v");
        assert_eq!(server.call("SELECT 3").error_code(), Some("ERR"));
    }

    fn a_server_may_be_told_to_end(flavour) {
        let server = bare(flavour);
        server.raw().send("SHUTDOWN NOSAVE");
        assert!(server.wait_for_end().log().contains("User requested shutdown"));
    }

    fn a_server_that_does_not_start_leaves_its_log(flavour) {
        let wrong = Server::build(flavour).without_module().config("no-such-setting", "1");
        let log = wrong.start_refused();
        assert!(log.contains("no-such-setting"), "{log}");
    }

    fn a_server_moves_on_from_a_port_that_is_taken(flavour) {
        // Several free ones, because another process may take one meanwhile.
        let listen = |()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut listeners = Vec::from([(); 5].map(listen));
        let port_of = |listener: &TcpListener| listener.local_addr().unwrap().port();
        let ports: Vec<u16> = listeners.iter().map(port_of).collect();
        listeners.truncate(1);
        let server = Server::build(flavour).without_module().start_on(ports.clone());
        assert!(ports[1..].contains(&server.port()));
    }

    fn a_crash_fails_the_test_and_shows_the_log(flavour) {
        let server = bare(flavour);
        server.raw().send("DEBUG SEGFAULT");
        wait_until("the crash", || server.log().contains("crashed by signal"));
        let message = panic_of(|| drop(server));
        assert!(message.contains("during the test"), "{message}");
        assert!(message.contains("crashed by signal"), "{message}");
    }

    fn the_replication_stream_shows_every_command(flavour) {
        let server = bare(flavour);
        server.call("SET before v");
        let mut stream = server.replication_stream();
        server.call("SET k v PX 100000");
        server.call("GET k");
        server.call(("SET", b"\xff", "a b"));
        let writes = stream.writes(&server);
        assert!(writes[0].matches("SET k v PXAT *"), "{writes:?}");
        assert!(writes[0].int(4) > 1_600_000_000_000, "{writes:?}");
        assert_eq!(format!("{:?}", writes[1]), r#"`SET \xff "a b"`"#);
        assert_eq!(writes.len(), 2);
        assert!(stream.writes(&server).is_empty());
        let mut raw = server.raw();
        raw.pipeline(["SELECT 1", "INCR n", "MULTI", "INCR n", "INCR n", "EXEC"]);
        let commands = stream.until_marker(&server);
        assert_eq!(commands[..6], ["SELECT 1", "INCR n", "MULTI", "INCR n", "INCR n", "EXEC"]);
        raw.call("SET last v");
        assert_eq!(stream.read(), "SELECT 1");
        assert_eq!(stream.read(), "SET last v");
        assert_eq!(server.dbsize(), 3, "the marks are no keys");
    }

    fn the_append_only_file_shows_every_command(flavour) {
        let server = Server::build(flavour).without_module().aof().start();
        server.call("SET k v PX 100000");
        server.call("GET k");
        server.call("DEL k");
        let commands = server.aof_commands();
        assert_eq!(commands.len(), 3, "{commands:?}");
        assert_eq!(commands[0], "SELECT 0");
        assert!(commands[1].matches("SET k v PXAT *"), "{commands:?}");
        assert_eq!(commands[2], "DEL k");
        server.call("SET left v");
        server.call("BGREWRITEAOF");
        wait_until("the rewrite", || {
            let info = server.info("persistence");
            info["aof_rewrite_in_progress"] == "0" && info["aof_rewrite_scheduled"] == "0"
        });
        assert_eq!(server.aof_commands(), ["SELECT 0", "SET left v"]);
        let stopped = server.kill();
        assert_eq!(stopped.aof_commands(), ["SELECT 0", "SET left v"]);
        assert_eq!(stopped.start().call("GET left"), "v");
    }

    fn events_are_seen_in_order(flavour) {
        let server = bare(flavour);
        let mut events = server.events();
        server.call("SET k v");
        server.call("GET k");
        server.raw().pipeline(["SELECT 2", "SET other v PX 20"]);
        let seen = events.so_far();
        assert_eq!(seen[..3], ["0 set k", "2 set other", "2 expire other"]);
        if seen.len() == 3 {
            assert_eq!(events.read(), "2 expired other");
        }
        server.call("GET k");
        assert!(events.so_far().is_empty());
    }

    fn a_replica_has_what_its_primary_has(flavour) {
        let primary = bare(flavour);
        fill(&primary);
        let replica = Server::build(flavour).without_module().replica_of(&primary).start();
        primary.call("SET k2 v PX 100000");
        replica.wait_in_sync_with(&primary);
        let snapshot = primary.snapshot();
        assert_eq!(snapshot, replica.snapshot());
        assert_eq!(snapshot.len(), 8);
        primary.call("PEXPIRE k2 200000");
        assert_ne!(primary.snapshot(), snapshot);
    }

    fn a_snapshot_has_every_key_of_every_database(flavour) {
        let server = bare(flavour);
        assert_eq!(server.snapshot().len(), 0);
        fill(&server);
        let snapshot = server.snapshot();
        assert_eq!(snapshot, server.snapshot());
        let entry = |database, key: &str| snapshot.get(database, key).unwrap();
        assert_eq!(entry(0, "hash").value, "a 1 b 2");
        assert_eq!(entry(0, "list").value, "z y x");
        assert_eq!(entry(0, "set").value, "p q r");
        assert_eq!(entry(0, "zset").value, "m 1 n 2.5");
        assert_eq!(entry(0, "stream").kind, "stream");
        assert_eq!(entry(0, "string").expires, -1);
        assert_eq!(entry(9, "string").expires, 4_000_000_000_000);
        assert!(snapshot.get(1, "string").is_none());
        let text = format!("{snapshot:?}");
        assert!(text.contains("db9 string: string `v` expires 4000000000000\n"), "{text}");
    }
}

/// Stores a key of each type, and one in another database.
fn fill(server: &Server) {
    let replies = server.raw().pipeline([
        "SET string v",
        "HSET hash b 2 a 1",
        "RPUSH list z y x",
        "SADD set r q p",
        "ZADD zset 1 m 2.5 n",
        "XADD stream 1-1 f v",
        "SELECT 9",
        "SET string v PXAT 4000000000000",
    ]);
    assert!(
        replies.iter().all(|reply| reply.error_code().is_none()),
        "{replies:?}"
    );
}

#[test]
fn the_server_that_is_too_old_runs_without_the_module() {
    let server = bare(Flavour::Redis62);
    assert_eq!(
        format!("redis-{}", server.info("server")["redis_version"]),
        Flavour::Redis62.name()
    );
    assert!(!Flavour::Redis62.at_least_7_2());
}

#[test]
fn every_server_has_a_name_of_its_own() {
    let mut names = Flavour::ALL.map(Flavour::name).to_vec();
    names.push(Flavour::Redis62.name());
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 5);
}

#[test]
fn a_server_that_was_not_fetched_is_an_error() {
    let problem = find_server(Path::new("nowhere"), "redis-1.0").unwrap_err();
    assert_eq!(
        problem,
        "no server at nowhere/redis-1.0/server: `make servers` fetches it"
    );
}

#[test]
fn only_errors_with_a_frame_of_the_module_count() {
    let report = "\
==7== Memcheck, a memory error detector
==7== Command: redis-server server.conf --loadmodule libredis_lock.so
==7== 
==7== Invalid read of size 1
==7==    at 0x1234: zmalloc (in /usr/bin/redis-server)
==7==    by 0x5678: main (in /usr/bin/redis-server)
==7== 
==7== 8 bytes in 1 blocks are definitely lost in loss record 1 of 2
==7==    at 0x1234: malloc (in /usr/lib/vgpreload.so)
==7==    by 0x5678: ??? (in /lib/libredis_lock.so)
==7== 
==7== 9 bytes in 1 blocks are definitely lost in loss record 2 of 2
==7==    at 0x1234: malloc (in /usr/lib/vgpreload.so)
==7==    by 0x5678: acquire (acquire.rs:12)
==7== 
==7== ERROR SUMMARY: 3 errors from 3 contexts
";
    let errors = module_errors(report);
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors[0].starts_with("8 bytes"), "{errors:?}");
    assert!(errors[1].starts_with("9 bytes"), "{errors:?}");
}
