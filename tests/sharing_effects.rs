//! What shared locks leave behind: the stream to replicas, the append only file and the events.
//! All of it is what plain commands would leave, with absolute times.

use crate::harness::{
    Events, Flavour, Raw, ReplicationStream, Reply, Server, Words, on_every_server,
};
use crate::sharing::{holders, members, outwait, share};
use crate::waiters::LONG;
use crate::waiting::waiter;

/// Commands with what they replicate and the events that they cause, one after the other on `k`.
///
/// `$o:x`, `$t:x` and `$key` stand for the score of that member and the key's deadline afterwards.
/// A command that replicates several has them in a transaction.
const STEPS: [(&str, &[&str], &[&str]); 17] = [
    (
        "LOCK.ACQUIRE k a 200000 SHARED",
        &["ZADD k 0 lk1s $o:a o:a $t:a t:a", "PEXPIREAT k $key"],
        &["zadd", "expire", "lock.acquired"],
    ),
    // Beside a longer lease.
    (
        "LOCK.ACQUIRE k b 100000 SHARED",
        &["ZADD k $o:b o:b $t:b t:b"],
        &["zadd", "lock.acquired"],
    ),
    (
        "LOCK.ACQUIRE k c 300000 LIMIT 3 REQID r:1",
        &[
            "ZADD k $o:c o:c $t:c t:c $t:c r:3:r:1:c",
            "PEXPIREAT k $key",
        ],
        &["zadd", "expire", "lock.acquired"],
    ),
    ("LOCK.ACQUIRE k c 300000 LIMIT 3 REQID r:1", &[], &[]),
    ("LOCK.ACQUIRE k d 300000 LIMIT 3", &[], &[]),
    ("LOCK.ACQUIRE k d 300000", &[], &[]),
    ("LOCK.RELEASE k d", &[], &[]),
    ("LOCK.RENEW k d 1", &[], &[]),
    (
        "LOCK.RENEW k a 250000",
        &["ZADD k $o:a o:a"],
        &["zadd", "lock.renewed"],
    ),
    (
        "LOCK.RENEW k a 400000",
        &["ZADD k $o:a o:a", "PEXPIREAT k $key"],
        &["zadd", "expire", "lock.renewed"],
    ),
    (
        "LOCK.RENEW k a 50000 WATCHDOG",
        &["ZADD k $o:a o:a", "PEXPIREAT k $key"],
        &["zadd", "expire", "lock.renewed"],
    ),
    (
        "LOCK.RELEASE k a",
        &["ZREM k t:a o:a"],
        &["lock.released", "zrem"],
    ),
    // The longest lease.
    (
        "LOCK.RELEASE k c",
        &["ZREM k r:3:r:1:c t:c o:c", "PEXPIREAT k $key"],
        &["lock.released", "zrem", "expire"],
    ),
    // The last one.
    ("LOCK.RELEASE k b", &["DEL k"], &["lock.released", "del"]),
    (
        "LOCK.ACQUIRE k a 100000 LIMIT 1 WATCHDOG",
        &["ZADD k 0 lk1s $o:a o:a $t:a t:a", "PEXPIREAT k $key"],
        &["zadd", "expire", "lock.acquired"],
    ),
    ("PERSIST k", &["PERSIST k"], &["persist"]),
    // A share gives the key its TTL again.
    (
        "LOCK.ACQUIRE k b 1000 SHARED BLOCK 0",
        &["ZADD k $o:b o:b $t:b t:b", "PEXPIREAT k $key"],
        &["zadd", "expire", "lock.acquired"],
    ),
];

/// Puts what the key `k` says now in the places of a text that are marked by `$`.
fn fill(server: &Server, text: &str) -> String {
    let members = members(server, "k");
    let word = |word: &str| match word.strip_prefix('$') {
        Some("key") => server.deadline("k").to_string(),
        Some(member) => members[member.as_bytes()].to_string(),
        None => word.to_owned(),
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// What the commands of a stream read like, several of them in a transaction.
fn shown(commands: &[Words]) -> Vec<String> {
    commands.iter().map(Words::to_string).collect()
}

/// These commands, in a transaction if they are several.
fn in_transaction(mut commands: Vec<String>) -> Vec<String> {
    if commands.len() > 1 {
        commands.insert(0, "MULTI".to_owned());
        commands.push("EXEC".to_owned());
    }
    commands
}

/// The names of events on `k`.
fn names(events: &[Words]) -> Vec<String> {
    let name = |event: &Words| {
        assert!(event.matches("0 * k"), "{event}");
        event.text(1).to_owned()
    };
    events.iter().map(name).collect()
}

/// The first word of a deletion by the server itself, of a key that it finds to have expired.
fn deletion_of_expired(flavour: Flavour) -> String {
    let command = if flavour.is_redis() { "DEL" } else { "UNLINK" };
    format!("{command} k")
}

/// Sees what is replicated of `k` and which events are told.
struct Onlooker<'s> {
    server: &'s Server,
    stream: ReplicationStream,
    events: Events,
}

impl<'s> Onlooker<'s> {
    fn of(server: &'s Server) -> Self {
        Self {
            server,
            stream: server.replication_stream(),
            events: server.events(),
        }
    }

    /// Forgets what it has seen.
    fn skip(&mut self) {
        self.stream.writes(self.server);
        self.events.so_far();
    }

    /// Makes sure that these commands were replicated and these events told since the last look.
    /// The commands are filled with what the key says now.
    fn saw(&mut self, commands: &[&str], events: &[&str], what: &str) {
        let expected = commands.iter().map(|command| fill(self.server, command));
        let expected = in_transaction(expected.collect());
        assert_eq!(shown(&self.stream.writes(self.server)), expected, "{what}");
        assert_eq!(names(&self.events.so_far()), events, "{what}");
    }
}

/// Releases `k`, and reads the grants that come of it.
fn hand_over<const N: usize>(server: &Server, owner: &str, clients: [&mut Raw; N]) -> [i64; N] {
    assert_eq!(server.call(("LOCK.RELEASE", "k", owner)), 1);
    clients.map(|client| client.read().as_int())
}

on_every_server! {
    fn every_change_of_a_share_has_the_effects_of_plain_commands(flavour) {
        let server = Server::build(flavour).aof().start();
        let bare = Server::build(flavour).without_module().start();
        let replica = Server::build(flavour).replica_of(&server).start();
        let (mut stream, mut events, mut bare_events) =
            (server.replication_stream(), server.events(), bare.events());
        let mut replicated = Vec::new();
        for (command, expected, expected_events) in STEPS {
            let reply = server.call(command);
            assert_eq!(reply.error_code(), None, "{command}: {reply:?}");
            let writes = stream.writes(&server);
            let expected = expected.iter().map(|text| fill(&server, text)).collect();
            assert_eq!(shown(&writes), in_transaction(expected), "{command}");
            assert_eq!(names(&events.so_far()), expected_events, "{command}");

            for write in &writes {
                let reply = bare.call(write);
                assert_eq!(reply.error_code(), None, "{command}: {write}: {reply:?}");
            }
            let plain = expected_events.iter().filter(|event| !event.starts_with("lock."));
            assert!(names(&bare_events.so_far()).iter().eq(plain), "{command}");
            replica.wait_in_sync_with(&server);
            for other in [&bare, &replica] {
                assert_eq!(other.snapshot(), server.snapshot(), "{command}");
            }
            replicated.extend(writes);
        }
        let mut aof = server.aof_commands();
        aof.retain(|command| command.text(0) != "SELECT");
        assert_eq!(aof, replicated);
        assert!(replicated.len() > 30);
    }

    fn a_lapsed_share_is_taken_out_before_anything_else_is_done(flavour) {
        let server = Server::start(flavour);
        let mut onlooker = Onlooker::of(&server);
        server.call("LOCK.ACQUIRE k a 100000 SHARED");
        let grant = "ZADD k $o:c o:c $t:c t:c";
        let gone = "ZREM k r:1:r:b t:b o:b";
        for (command, writes, events) in [
            ("LOCK.RELEASE k b", vec![gone], vec!["zrem"]),
            ("LOCK.RENEW k b 100000", vec![gone], vec!["zrem"]),
            ("LOCK.ACQUIRE k w 100000", vec![gone], vec!["zrem"]),
            (
                "LOCK.ACQUIRE k c 10000 LIMIT 2",
                vec![gone, grant],
                vec!["zrem", "zadd", "lock.acquired"],
            ),
            (
                "LOCK.RELEASE k c",
                vec![gone, "ZREM k t:c o:c"],
                vec!["zrem", "lock.released", "zrem"],
            ),
        ] {
            server.call("LOCK.ACQUIRE k b 1 SHARED REQID r");
            outwait(1);
            onlooker.skip();
            server.call(command);
            onlooker.saw(&writes, &events, command);
        }
        // Who only looks writes nothing.
        server.call("LOCK.ACQUIRE k b 1 SHARED REQID r");
        outwait(1);
        onlooker.skip();
        assert_eq!(holders(&server, "k"), [b"a"]);
        onlooker.saw(&[], &[], "a look");
        assert_eq!(members(&server, "k").len(), 6);
    }

    /// The key's TTL is that of the last share, so the server does away with it by itself.
    fn a_key_whose_last_share_lapsed_is_deleted_by_the_server(flavour) {
        let server = Server::start(flavour);
        server.call("DEBUG SET-ACTIVE-EXPIRE 0");
        let mut onlooker = Onlooker::of(&server);
        server.raw().pipeline(["LOCK.ACQUIRE k a 2 SHARED", "LOCK.ACQUIRE k b 1 SHARED"]);
        outwait(2);
        onlooker.skip();
        share(&server, "c");
        let deletion = deletion_of_expired(flavour);
        let grant = ["ZADD k 0 lk1s $o:c o:c $t:c t:c", "PEXPIREAT k $key"];
        let events = ["expired", "zadd", "expire", "lock.acquired"];
        onlooker.saw(&[&deletion, grant[0], grant[1]], &events, "the next share");
    }

    fn a_hand_over_is_one_step_from_readers_to_a_writer_and_back(flavour) {
        let server = Server::start(flavour);
        let replica = Server::build(flavour).replica_of(&server).start();
        share(&server, "a");
        let mut writer = waiter(&server, ("LOCK.ACQUIRE", "k", "w", 200_000, "BLOCK", 0));
        let mut reader = waiter(&server, "LOCK.ACQUIRE k b 300000 BLOCK 0 SHARED");
        let mut permit = waiter(&server, "LOCK.ACQUIRE k c 100000 BLOCK 0 LIMIT 2 REQID r");
        let mut onlooker = Onlooker::of(&server);

        let [token] = hand_over(&server, "a", [&mut writer]);
        let deadline = server.deadline("k");
        assert_eq!(deadline, token / 1_000 + 200_000);
        let record = format!("SET k lk1:{token}:1:w PXAT {deadline}");
        let writes = shown(&onlooker.stream.writes(&server));
        assert_eq!(writes, in_transaction(vec!["DEL k".to_owned(), record]));
        let events = ["lock.released", "del", "set", "expire", "lock.handover"];
        assert_eq!(names(&onlooker.events.so_far()), events);

        let tokens = hand_over(&server, "w", [&mut reader, &mut permit]);
        assert!(token < tokens[0] && tokens[0] < tokens[1]);
        let writes = [
            "DEL k",
            "ZADD k 0 lk1s $o:b o:b $t:b t:b", "PEXPIREAT k $key",
            "ZADD k $o:c o:c $t:c t:c $t:c r:1:r:c",
        ];
        let events = [
            "lock.released", "del", "zadd", "expire", "lock.handover", "zadd", "lock.handover",
        ];
        onlooker.saw(&writes, &events, "from the writer to both readers");
        replica.wait_in_sync_with(&server);
        assert_eq!(replica.snapshot(), server.snapshot());
        assert_eq!(holders(&replica, "k"), [b"b", b"c"]);
        assert_eq!(server.info_number("lock", "lock_handovers"), 3);
    }

    fn a_permit_is_handed_over_in_one_step(flavour) {
        let server = Server::start(flavour);
        let replica = Server::build(flavour).replica_of(&server).start();
        for owner in ["a", "b"] {
            server.call(("LOCK.ACQUIRE", "k", owner, 5 * LONG, "LIMIT", 2));
        }
        let mut client = waiter(&server, "LOCK.ACQUIRE k c 100000 BLOCK 0 LIMIT 2");
        let mut onlooker = Onlooker::of(&server);
        // Given back.
        hand_over(&server, "a", [&mut client]);
        let mut seen = shown(&onlooker.stream.writes(&server));
        // The key's deadline is moved only if it was that of the one that is gone.
        seen.retain(|command| !command.starts_with("PEXPIREAT"));
        let writes = ["ZREM k t:a o:a", "ZADD k $o:c o:c $t:c t:c"];
        let writes = writes.map(|write| fill(&server, write));
        assert_eq!(seen, in_transaction(writes.into()));
        let mut seen = names(&onlooker.events.so_far());
        seen.retain(|event| event != "expire");
        assert_eq!(seen, ["lock.released", "zrem", "zadd", "lock.handover"]);
        // Lapsed.
        let mut client = waiter(&server, "LOCK.ACQUIRE k d 100000 BLOCK 0 LIMIT 2");
        server.call("LOCK.RENEW k c 20");
        onlooker.skip();
        assert!(client.read().as_int() > 0);
        let writes = ["ZREM k t:c o:c", "ZADD k $o:d o:d $t:d t:d"];
        let events = ["zrem", "lock.expired", "zadd", "lock.handover"];
        onlooker.saw(&writes, &events, "lapsed");
        replica.wait_in_sync_with(&server);
        assert_eq!(replica.snapshot(), server.snapshot());
    }

    fn a_write_to_a_share_touches_a_watched_key_and_a_look_does_not(flavour) {
        let server = Server::start(flavour);
        let mut watcher = server.raw();
        for (command, is_write) in [
            ("LOCK.ACQUIRE k a 100000 SHARED", true),
            ("LOCK.ACQUIRE k b 100000 LIMIT 2 REQID r", true),
            ("LOCK.ACQUIRE k b 100000 LIMIT 2 REQID r", false),
            ("LOCK.ACQUIRE k c 100000 LIMIT 2", false),
            ("LOCK.ACQUIRE k w 100000", false),
            ("LOCK.INFO k", false),
            ("LOCK.QUEUE k", false),
            ("LOCK.RELEASE k c", false),
            ("LOCK.RENEW k c 1", false),
            ("LOCK.RENEW k b 200000", true),
            ("LOCK.RELEASE k b", true),
            ("LOCK.RELEASE k a", true),
        ] {
            watcher.call("WATCH k");
            server.call(command);
            let replies = watcher.pipeline(["MULTI", "PING", "EXEC"]);
            assert_eq!(replies[2].is_nil(), is_write, "{command}");
        }
    }

    /// A server that never heard of locks loads them, and those who have them can still see it.
    fn shares_load_without_the_module_and_with_it_again(flavour) {
        let server = Server::build(flavour).aof().start();
        let token = server.call("LOCK.ACQUIRE k a 1000000 LIMIT 2 REQID r").as_int();
        share(&server, "b");
        let stored = server.snapshot();
        let bare = Server::build(flavour).aof().without_module().dir_of(server.kill()).start();
        assert_eq!(bare.snapshot(), stored);
        assert_eq!(bare.call("TYPE k"), "zset");
        assert_eq!(bare.call("SET k x NX"), Reply::NilBulk);
        let server = Server::build(flavour).aof().dir_of(bare.kill()).start();
        assert_eq!(server.snapshot(), stored);
        assert_eq!(server.call("LOCK.ACQUIRE k a 1 LIMIT 2 REQID r"), token);
        assert!(server.call("LOCK.ACQUIRE k c 1 LIMIT 2").is_nil());
    }

    fn a_replica_shows_shares_and_goes_on_with_them_as_a_primary(flavour) {
        let primary = Server::start(flavour);
        let replica = Server::build(flavour).replica_of(&primary).start();
        let tokens = ["a", "b"].map(|owner| share(&primary, owner));
        primary.call("LOCK.ACQUIRE k c 1 SHARED");
        outwait(1);
        replica.wait_in_sync_with(&primary);
        let stored = replica.snapshot();
        // What has lapsed is shown no more, and stays until the primary takes it out.
        assert_eq!(holders(&replica, "k"), [b"a", b"b"]);
        for command in [
            "LOCK.ACQUIRE k d 1 SHARED", "LOCK.ACQUIRE k d 1 LIMIT 9 BLOCK 0",
            "LOCK.RELEASE k a", "LOCK.RENEW k a 1",
        ] {
            assert_eq!(replica.call(command).error_code(), Some("READONLY"), "{command}");
        }
        assert_eq!(replica.snapshot(), stored);
        assert_eq!(replica.call("REPLICAOF NO ONE"), "OK");
        assert!(replica.call("LOCK.ACQUIRE k d 1 LIMIT 2").is_nil());
        assert_eq!(replica.call(("LOCK.RELEASE", "k", "a", "TOKEN", tokens[0])), 1);
        let token = replica.call("LOCK.ACQUIRE k d 100000 LIMIT 2").as_int();
        assert!(token > tokens[1]);
        assert_eq!(holders(&replica, "k"), [b"b", b"d"]);
        assert_eq!(members(&replica, "k").len(), 5);
    }

    /// Those who have shares can keep them and give them back.
    fn a_server_out_of_memory_grants_no_shares(flavour) {
        let server = Server::start(flavour);
        for owner in ["a", "b"] {
            share(&server, owner);
        }
        let mut witness = server.witness();
        server.call("CONFIG SET maxmemory-policy noeviction");
        server.call("CONFIG SET maxmemory 1");
        for command in ["LOCK.ACQUIRE k c 1 SHARED", "LOCK.ACQUIRE free c 1 LIMIT 2 BLOCK 0"] {
            assert_eq!(server.call(command).error_code(), Some("OOM"), "{command}");
        }
        assert_eq!(holders(&server, "k"), [b"a", b"b"]);
        witness.saw_nothing("a full server");
        for command in ["LOCK.RENEW k a 200000", "LOCK.RELEASE k a", "LOCK.RELEASE k b"] {
            assert_eq!(server.call(command), 1, "{command}");
        }
        assert_eq!(server.dbsize(), 0);
    }
}
