//! Commands under a token: what runs and what does not, what is answered, with whose rights, and
//! with which effects.

use crate::harness::{
    Flavour, Raw, Reply, Server, ToWord, ToWords, Words, on_every_server, unix_millis, wait_until,
};

/// A lease that no test outlives.
const LONG: i64 = 1_000_000;

/// A command under a token of a lock.
fn guard(lock: impl ToWord, token: impl ToWord, command: impl ToWords) -> Words {
    let mut words = ("LOCK.GUARD", lock, token).to_words();
    words.0.extend(command.to_words().0);
    words
}

/// Takes a lock for the owner `o` and returns its token.
fn take(server: &Server, lock: &str) -> i64 {
    server.call(("LOCK.ACQUIRE", lock, "o", LONG)).as_int()
}

/// Takes a share of a lock and returns its token.
fn share(server: &Server, lock: &str, owner: &str, ttl: i64) -> i64 {
    server
        .call(("LOCK.ACQUIRE", lock, owner, ttl, "SHARED"))
        .as_int()
}

/// The answer to a token that does not hold the lock.
fn not_held() -> Reply {
    Reply::Error("NOTHELD the token does not hold this lock".to_owned())
}

/// Waits until the clock is past a deadline, so that the lease has lapsed.
fn wait_past(deadline: i64) {
    wait_until("the clock to be past the deadline", || {
        unix_millis() > deadline + 1
    });
}

/// A number in `INFO lock`.
fn counted(server: &Server, field: &str) -> u64 {
    server.info_number("lock", field)
}

/// How often a command ran, by a name in any case.
fn calls(server: &Server, command: &str) -> u64 {
    let line = format!("cmdstat_{command}").to_lowercase();
    let info = server.info("commandstats");
    let found = info.iter().find(|(name, _)| name.to_lowercase() == line);
    found.map_or(0, |(_, stats)| {
        let calls = stats.split(',').next().unwrap();
        calls.strip_prefix("calls=").unwrap().parse().unwrap()
    })
}

/// Makes keys of every type.
fn fill(server: &Server) {
    let commands: Vec<Words> = vec![
        "SET string value".to_words(),
        ("SET", "bytes", b"\0a\r\n\xff$5\r\n").to_words(),
        "SET number 10".to_words(),
        "RPUSH list a b c".to_words(),
        "HSET hash f 1 g 2".to_words(),
        "SADD set a b c".to_words(),
        "ZADD zset 1 one 2.5 two inf more".to_words(),
        "XADD stream 1-1 f v g w".to_words(),
        "XADD stream 2-1 f x".to_words(),
        "XGROUP CREATE stream group 0".to_words(),
        "GEOADD geo 13.361389 38.115556 Palermo".to_words(),
    ];
    let replies = server.raw().pipeline(commands);
    assert!(
        replies.iter().all(|reply| reply.error_code().is_none()),
        "{replies:?}"
    );
}

on_every_server! {
    fn a_command_runs_while_its_token_holds_the_lock(flavour) {
        let server = Server::start(flavour);
        let token = take(&server, "lock");
        for (command, reply) in [
            ("SET k v", Reply::ok()),
            ("GET k", Reply::bulk("v")),
            ("get k", Reply::bulk("v")),
            ("gEt k", Reply::bulk("v")),
            ("DEL k", Reply::Int(1)),
            ("GET k", Reply::NilBulk),
            ("INCR n", Reply::Int(1)),
            ("INCR n", Reply::Int(2)),
            ("MSET a 1 b 2", Reply::ok()),
            ("DBSIZE", Reply::Int(4)),
            ("OBJECT ENCODING n", Reply::bulk("int")),
        ] {
            assert_eq!(server.call(guard("lock", token, command)), reply, "{command}");
        }
        assert_eq!(server.call("GET n"), "2");
        // A lock that was locked once more is held by the same token until its last release.
        assert_eq!(server.call(("LOCK.RACQUIRE", "lock", "o", LONG)), token);
        assert_eq!(server.call("LOCK.RELEASE lock o"), 1);
        assert_eq!(server.call(guard("lock", token, "INCR n")), 3);
        assert_eq!(server.call(("LOCK.RENEW", "lock", "o", 2 * LONG)), 1);
        assert_eq!(server.call(guard("lock", token, "INCR n")), 4);
        assert_eq!(server.call("LOCK.RELEASE lock o"), 1);
        assert_eq!(server.call(guard("lock", token, "INCR n")), not_held());
        assert_eq!(server.call("GET n"), "4");
    }

    fn nothing_runs_under_a_token_that_does_not_hold_the_lock(flavour) {
        let server = Server::start(flavour);
        let released = take(&server, "released");
        assert_eq!(server.call("LOCK.RELEASE released o"), 1);
        let before = take(&server, "again");
        assert_eq!(server.call("LOCK.RELEASE again o"), 1);
        let again = take(&server, "again");
        let lost = take(&server, "taken over");
        server.call(("DEL", "taken over"));
        server.call(("LOCK.ACQUIRE", "taken over", "other", LONG));
        let held = take(&server, "held");
        server.call("SET plain o");
        server.call("SET with-ttl o PX 1000000");
        server.call(("SET", "number", held));
        server.call("HSET hash o 1");
        server.call(("HSET", "token-hash", held, 1));
        let shared = share(&server, "shared", "a", LONG);
        assert_eq!(server.call("LOCK.RELEASE shared a"), 1);
        share(&server, "shared", "a", LONG);
        share(&server, "shared", "b", LONG);
        let over = take(&server, "over");
        server.call("SET over o PX 1000000");
        let mut elsewhere = server.raw();
        elsewhere.call("SELECT 1");
        let in_another = elsewhere.call(("LOCK.ACQUIRE", "db", "o", LONG)).as_int();
        server.call("SET victim safe");

        let mut witness = server.witness();
        let cases = [
            ("held", held + 1),
            ("held", held - 1),
            ("held", 1),
            ("held", (1 << 53) - 1),
            ("held", again),
            ("free", held),
            ("", held),
            ("released", released),
            ("again", before),
            ("taken over", lost),
            ("plain", held),
            ("with-ttl", held),
            ("number", held),
            ("hash", held),
            ("hash", 1),
            ("token-hash", held),
            ("shared", shared),
            ("shared", held),
            ("over", over),
            ("db", in_another),
        ];
        for (number, (lock, token)) in (1..).zip(cases) {
            for command in ["SET victim gone", "FLUSHALL", "DEL victim", "GET victim", "GET"] {
                let reply = server.call(guard(lock, token, command));
                assert_eq!(reply, not_held(), "{lock} {token} {command}");
            }
            assert_eq!(counted(&server, "lock_stale_guards"), number * 5);
        }
        witness.saw_nothing("a stale guard");
        assert_eq!(counted(&server, "lock_guarded"), 0);
        assert_eq!(server.call(guard("held", held, "GET victim")), "safe");
        assert_eq!(server.call(guard("again", again, "GET victim")), "safe");
        assert_eq!(elsewhere.call(guard("db", in_another, "GET victim")), Reply::NilBulk);
        assert_eq!(counted(&server, "lock_guarded"), 3);
    }

    /// Whether the server has found the lapsed key by itself or not.
    fn a_lapsed_lease_guards_nothing(flavour) {
        let server = Server::start(flavour);
        assert_eq!(server.call("DEBUG SET-ACTIVE-EXPIRE 0"), "OK");
        for ttl in [1, 30] {
            let token = server.call(("LOCK.ACQUIRE", "lock", "o", ttl)).as_int();
            wait_past(token / 1_000 + ttl);
            assert_eq!(server.call(guard("lock", token, "SET k v")), not_held());
            assert_eq!(server.call("EXISTS k lock"), 0);

            let token = server.call(("LOCK.ACQUIRE", "lock", "o", ttl)).as_int();
            wait_past(token / 1_000 + ttl);
            let next = take(&server, "lock");
            assert_eq!(server.call(guard("lock", token, "SET k v")), not_held());
            assert_eq!(server.call("EXISTS k"), 0);
            assert_eq!(server.call(guard("lock", next, "EXISTS k")), 0);
            assert_eq!(server.call("LOCK.RELEASE lock o"), 1);
        }
    }

    fn a_share_guards_by_its_own_token_until_it_ends(flavour) {
        let server = Server::start(flavour);
        let tokens = ["a", "b", "c"].map(|owner| share(&server, "lock", owner, LONG));
        let brief = share(&server, "lock", "brief", 40);
        let brief_until = unix_millis() + 40;
        for token in tokens {
            assert_eq!(server.call(guard("lock", token, "SET k v")), "OK");
            assert_eq!(server.call(guard("lock", token + 1_000_000, "SET k w")), not_held());
        }
        wait_past(brief_until);
        assert_eq!(server.call(guard("lock", brief, "SET k w")), not_held());
        assert_eq!(server.call("LOCK.RELEASE lock b"), 1);
        assert_eq!(server.call(guard("lock", tokens[1], "SET k w")), not_held());
        for token in [tokens[0], tokens[2]] {
            assert_eq!(server.call(guard("lock", token, "GET k")), "v");
        }
        // Another grant to the same owner is another token.
        let again = share(&server, "lock", "b", LONG);
        assert_eq!(server.call(guard("lock", tokens[1], "SET k w")), not_held());
        assert_eq!(server.call(guard("lock", again, "GET k")), "v");
        // A key that is lost ends all shares.
        server.call("DEL lock");
        for token in [tokens[0], tokens[2], again] {
            assert_eq!(server.call(guard("lock", token, "SET k w")), not_held());
        }
        let limited = server.call(("LOCK.ACQUIRE", "permits", "a", LONG, "LIMIT", 2)).as_int();
        assert_eq!(server.call(guard("permits", limited, "GET k")), "v");
    }

    fn one_token_for_several_locks_guards_by_each_of_them(flavour) {
        let server = Server::start(flavour);
        let token = server.call(("LOCK.MACQUIRE", 2, "a", "b", "o", LONG)).as_int();
        assert_eq!(server.call(guard("a", token, "INCR n")), 1);
        assert_eq!(server.call(guard("b", token, "INCR n")), 2);
        assert_eq!(server.call("LOCK.RELEASE a o"), 1);
        assert_eq!(server.call(guard("a", token, "INCR n")), not_held());
        assert_eq!(server.call(guard("b", token, "INCR n")), 3);
    }

    fn a_key_that_is_no_lock_guards_nothing(flavour) {
        let server = Server::start(flavour);
        fill(&server);
        let mut witness = server.witness();
        for key in ["list", "hash", "set", "zset", "stream", "geo"] {
            for command in ["SET list gone", "GET string", "FLUSHALL"] {
                let reply = server.call(guard(key, 5, command));
                assert_eq!(reply.error_code(), Some("WRONGTYPE"), "{key}");
            }
        }
        witness.saw_nothing("a guard by no lock");
        assert_eq!(counted(&server, "lock_guarded"), 0);
    }

    fn a_token_that_is_none_is_refused(flavour) {
        let server = Server::start(flavour);
        take(&server, "lock");
        let mut witness = server.witness();
        let positive = "ERR token must be positive";
        let no_integer = "ERR token is not an integer or out of range";
        for (token, error) in [
            (&b"0"[..], positive),
            (b"-1", positive),
            (b"-9223372036854775808", positive),
            (b"x", no_integer),
            (b"", no_integer),
            (b"1.5", no_integer),
            (b"01", no_integer),
            (b"+1", no_integer),
            (b" 1", no_integer),
            (b"1\0", no_integer),
            (b"%s%n", no_integer),
            (b"9007199254740992", no_integer),
            (b"9223372036854775807", no_integer),
            (b"9223372036854775808", no_integer),
            (b"18446744073709551617", no_integer),
            (&[b'9'; 10_000], no_integer),
        ] {
            for lock in ["lock", "free"] {
                let reply = server.call(guard(lock, token, "SET k v"));
                assert_eq!(reply, Reply::Error(error.to_owned()), "{}", token.escape_ascii());
            }
        }
        for command in ["LOCK.GUARD", "LOCK.GUARD lock", "LOCK.GUARD lock 5"] {
            let error = "ERR wrong number of arguments for 'LOCK.GUARD' command";
            assert_eq!(server.call(command), Reply::Error(error.to_owned()), "{command}");
        }
        witness.saw_nothing("a guard by no token");
    }

    fn a_name_that_no_command_has_is_refused(flavour) {
        let server = Server::start(flavour);
        let token = take(&server, "lock");
        let mut witness = server.witness();
        for (name, shown) in [
            (&b""[..], ""),
            (b"nosuch", "nosuch"),
            (b"lock.nosuch", "lock.nosuch"),
            (b"|", "|"),
            (b"||", "||"),
            (b"set|", "set|"),
            (b"|set", "|set"),
            (b"set|k", "set|k"),
            (b" ", " "),
            (b"set ", "set "),
            (b" set", " set"),
            (b"set k", "set k"),
            (b"set\0", "set\\x00"),
            (b"\0set", "\\x00set"),
            (b"lock.guard\0", "lock.guard\\x00"),
            (b"%s%n", "%s%n"),
            (b"\r\n", "\\r\\n"),
            (b"\xff", "\\xff"),
            (b"*", "*"),
            (&[b'x'; 10_000], &"x".repeat(64)),
            (&[b'|'; 10_000], &"|".repeat(64)),
        ] {
            for arguments in ["", "k v", "list", "k v PX 100000"] {
                let command = [vec![name.to_vec()], arguments.to_words().0].concat();
                let reply = server.call(guard("lock", token, command));
                let error = format!("ERR unknown command '{shown}'");
                assert_eq!(reply, Reply::Error(error), "{shown} {arguments}");
            }
        }
        witness.saw_nothing("an unknown command");
        assert_eq!(counted(&server, "lock_guarded"), 0);
    }

    /// The names of subcommands are no names of commands.
    fn a_name_with_a_subcommand_in_it_runs_nothing(flavour) {
        let server = Server::start(flavour);
        let token = take(&server, "lock");
        let mut witness = server.witness();
        for command in [
            "client|list", "CLIENT|KILL id 1", "client|reply off", "config|set maxmemory 1",
            "script|flush", "module|list", "acl|whoami", "object|encoding lock",
            "memory|usage lock", "function|flush", "CLIENT|LIST|x", "command|count",
            "config set|maxmemory 1", "client kill|id 1", "memory usage|x lock",
        ] {
            let reply = server.call(guard("lock", token, command));
            let name = command.split(' ').next().unwrap();
            let error = reply.error_code().unwrap_or_else(|| panic!("{command}: {reply:?}"));
            assert_eq!(error, "ERR", "{command}");
            assert!(
                reply.as_text().contains(name) || command.contains(' '),
                "{command}: {reply:?}"
            );
        }
        witness.saw_nothing("the name of a subcommand");
        assert_eq!(server.call("CONFIG GET maxmemory").items()[1], "0");
    }
}

/// Commands that wait or that are about the connection, and those that cannot run in scripts.
const REFUSED: [&str; 84] = [
    "BLPOP list 0",
    "BRPOP list 0",
    "BLPOP empty 0",
    "BRPOPLPUSH list k 0",
    "BLMOVE list k LEFT LEFT 0",
    "BLMPOP 0 1 list LEFT",
    "BZPOPMIN zset 0",
    "BZPOPMAX zset 0",
    "BZMPOP 0 1 zset MIN",
    "XREAD STREAMS stream 0",
    "XREAD BLOCK 0 STREAMS stream 0",
    "XREADGROUP GROUP group c STREAMS stream >",
    "XREADGROUP GROUP group c BLOCK 0 STREAMS stream >",
    "WAIT 1 0",
    "LOCK.ACQUIRE k o 100000",
    "LOCK.ACQUIRE k o 100000 BLOCK 0",
    "LOCK.RACQUIRE k o 100000 BLOCK 0",
    "LOCK.MACQUIRE 1 k o 100000 BLOCK 0",
    "SUBSCRIBE c",
    "UNSUBSCRIBE c",
    "PSUBSCRIBE c",
    "PUNSUBSCRIBE",
    "SSUBSCRIBE c",
    "SUNSUBSCRIBE",
    "MULTI",
    "EXEC",
    "DISCARD",
    "WATCH k",
    "UNWATCH",
    "AUTH password",
    "AUTH default password",
    "HELLO",
    "HELLO 3",
    "HELLO 3 SETNAME x",
    "SELECT 1",
    "PING",
    "ECHO x",
    "QUIT",
    "RESET",
    "ASKING",
    "READONLY",
    "READWRITE",
    "COMMAND",
    "COMMAND COUNT",
    "CLIENT LIST",
    "CLIENT KILL TYPE normal SKIPME no",
    "CLIENT REPLY OFF",
    "CLIENT REPLY SKIP",
    "CLIENT PAUSE 100000",
    "CLIENT SETNAME x",
    "CLIENT TRACKING ON",
    "CLIENT NO-EVICT ON",
    "CLIENT UNBLOCK 1",
    "MONITOR",
    "SYNC",
    "PSYNC ? -1",
    "REPLCONF listening-port 1",
    "REPLICAOF 127.0.0.1 1",
    "SLAVEOF 127.0.0.1 1",
    "FAILOVER",
    "EVAL return 0",
    "EVAL_RO return 0",
    "EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0",
    "EVALSHA_RO e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0",
    "FCALL f 0",
    "FCALL_RO f 0",
    "SCRIPT LOAD return",
    "SCRIPT FLUSH",
    "SCRIPT KILL",
    "FUNCTION FLUSH",
    "FUNCTION LIST",
    "CONFIG SET maxmemory 1",
    "CONFIG GET maxmemory",
    "CONFIG RESETSTAT",
    "ACL SETUSER intruder on nopass +@all",
    "ACL WHOAMI",
    "SAVE",
    "BGSAVE",
    "SHUTDOWN",
    "SHUTDOWN NOSAVE",
    "DEBUG SEGFAULT",
    "DEBUG SLEEP 100",
    "MODULE UNLOAD lock",
    "MODULE LIST",
];

on_every_server! {
    fn commands_that_make_no_sense_under_a_guard_are_refused(flavour) {
        let server = Server::start(flavour);
        fill(&server);
        let token = take(&server, "lock");
        let mut client = server.raw();
        let id = client.id();
        let mut witness = server.witness();
        for command in REFUSED.iter().copied().chain(["LOCK.GUARD lock 1 GET string"]) {
            let written = [command.to_owned(), command.to_lowercase(), odd_case(command)];
            for command in written {
                let name = command.split(' ').next().unwrap();
                // The token does not matter.
                for token in [token, 5] {
                    let reply = client.call(guard("lock", token, &command));
                    let error = format!("ERR command '{name}' can't run under LOCK.GUARD: ");
                    let refused = matches!(&reply, Reply::Error(text) if text.starts_with(&error));
                    assert!(refused, "{command}: {reply:?}");
                }
            }
        }
        assert_eq!(server.blocked_clients(), 0);
        witness.saw_nothing("one of the refused commands");
        assert_eq!(counted(&server, "lock_guarded") + counted(&server, "lock_stale_guards"), 0);

        // The connection is as it was, and so are the server's users and settings.
        assert_eq!(client.id(), id);
        assert_eq!(client.call("GET string"), "value");
        let about = client.call(("CLIENT", "LIST", "ID", id));
        for same in [" db=0 ", " sub=0 ", " psub=0 ", " multi=-1 ", " name= ", " user=default "] {
            assert!(about.as_text().contains(same), "{same}: {about:?}");
        }
        assert_eq!(client.call("ACL USERS").items().len(), 1);
        assert_eq!(client.call("CONFIG GET maxmemory").items()[1], "0");
        assert_eq!(server.info("replication")["role"], "master");
        // Not in a script either, where some of them would just not block.
        for command in ["BLPOP list 0", "XREAD STREAMS stream 0", "LOCK.ACQUIRE k o 100 BLOCK 0"] {
            let reply = server.call(scripted("pcall", &guard("lock", token, command)));
            assert!(reply.as_bytes().starts_with(b"ERR command '"), "{command}: {reply:?}");
        }
        witness.saw_nothing("a refused command in a script");
    }

    /// Each level of guards would take its share of the stack when the server asks for keys.
    fn guards_under_guards_are_refused_however_many_there_are(flavour) {
        let server = Server::start(flavour);
        let token = take(&server, "lock");
        let mut witness = server.witness();
        for levels in [2, 10, 1_000, 100_000] {
            let level = ["LOCK.GUARD".to_owned(), "lock".to_owned(), token.to_string()];
            let inner = ["SET", "k", "v"].map(str::to_owned);
            let nested = [vec![level; levels].concat(), inner.to_vec()].concat();
            let reply = server.call(&nested);
            assert!(reply.as_text().contains("it is a guard itself"), "{levels}: {reply:?}");
            let asked = [vec!["COMMAND".to_owned(), "GETKEYS".to_owned()], nested].concat();
            assert_eq!(server.call(asked).to_words(), "lock", "{levels}");
        }
        witness.saw_nothing("nested guards");
        // A server compares the names of commands up to a NUL, if they fall into the same place of
        // its table. Which names do is another matter for each process.
        let mut client = server.raw();
        let commands = (0..6_000).map(|number| {
            let name = format!("LOCK.GUARD\0{number}");
            let words = ["COMMAND", "GETKEYS", "LOCK.GUARD", "lock", "1", &name, "k", "1", "GET", "x"];
            words.map(str::to_owned)
        });
        for reply in client.pipeline(commands) {
            assert_eq!(reply.to_words(), "lock");
        }
    }
}

/// The text with every other letter in the other case.
fn odd_case(text: &str) -> String {
    let flip = |(index, letter): (usize, char)| {
        if index % 2 == 0 {
            letter.to_ascii_lowercase()
        } else {
            letter.to_ascii_uppercase()
        }
    };
    text.chars().enumerate().map(flip).collect()
}

/// A script that makes one call. It declares no keys.
fn scripted(call: &str, command: &Words) -> Words {
    let script = format!(
        "local reply = redis.{call}(unpack(ARGV)) \
         if type(reply) == 'table' and reply.err then return reply.err end return reply"
    );
    let mut words = ("EVAL", script, 0).to_words();
    words.0.extend(command.0.iter().cloned());
    words
}

/// Commands that change nothing, with replies of every kind. The keys are those of [`fill`].
const QUESTIONS: [&str; 50] = [
    "GET string",
    "GET bytes",
    "GET none",
    "STRLEN string",
    "EXISTS none",
    "TYPE list",
    "TTL none",
    "MGET string none bytes number list",
    "LRANGE list 0 -1",
    "LRANGE none 0 -1",
    "LRANGE many 0 -1",
    "LINDEX list 7",
    "LPOP none",
    "LPOP none 2",
    "LMPOP 1 none LEFT",
    "HGETALL hash",
    "HGETALL none",
    "HGET hash none",
    "HMGET hash f none",
    "HRANDFIELD hash 5 WITHVALUES",
    "SMEMBERS set",
    "SMEMBERS none",
    "SMISMEMBER set a x",
    "SINTER set none",
    "ZSCORE zset two",
    "ZSCORE zset more",
    "ZSCORE zset none",
    "ZMSCORE zset one none more",
    "ZRANGE zset 0 -1",
    "ZRANGE zset 0 -1 WITHSCORES",
    "ZPOPMIN none",
    "ZRANK zset none",
    "XRANGE stream - +",
    "XRANGE none - +",
    "XINFO STREAM stream FULL",
    "XINFO GROUPS stream",
    "XPENDING stream group",
    "GEOPOS geo Palermo none",
    "GEOSEARCH geo FROMLONLAT 13 38 BYRADIUS 900 km ASC WITHCOORD WITHDIST",
    "GEODIST geo Palermo none",
    "OBJECT ENCODING string",
    "OBJECT HELP",
    "MEMORY DOCTOR",
    "SCAN 0 COUNT 100",
    "LCS string number IDX",
    "LCS string number",
    "BITPOS none 1",
    "LOCK.INFO lock",
    "LOCK.QUEUE lock",
    "LOCK.HELP",
];

/// Commands that fail, each with its own error.
const MISTAKES: [&str; 22] = [
    "GET",
    "SET k",
    "GET string more",
    "GET list",
    "LPUSH string x",
    "INCR string",
    "INCR list",
    "HINCRBY string f 1",
    "SET k v PX 0",
    "SET k v PX x",
    "SET k v NX XX",
    "SET k v NOPE",
    "EXPIRE string x",
    "ZADD zset NX XX 1 m",
    "ZADD zset x m",
    "XADD stream 1-1 f v",
    "XGROUP CREATE stream group 0",
    "RENAME none k",
    "RESTORE string 0 x",
    "LSET none 0 x",
    "OBJECT NOSUCH string",
    "LOCK.RENEW lock o 0",
];

on_every_server! {
    fn replies_are_those_of_the_command_itself(flavour) {
        let server = Server::start(flavour);
        fill(&server);
        let many: Vec<String> = (0..20_000).map(|number| format!("item {number}")).collect();
        server.call([vec!["RPUSH".to_owned(), "many".to_owned()], many].concat());
        let token = take(&server, "lock");
        for mut client in [server.raw(), server.raw_resp3()] {
            for command in QUESTIONS {
                let direct = client.call(command);
                assert_eq!(direct.error_code(), None, "{command}: {direct:?}");
                let guarded = client.call(guard("lock", token, command));
                // Hashes have an order of their own for random fields, and locks grow older.
                if command.starts_with("HRANDFIELD") || command.starts_with("LOCK.INFO") {
                    assert_eq!(kind(&guarded), kind(&direct), "{command}");
                } else {
                    assert_eq!(guarded, direct, "{command}");
                }
            }
            assert_eq!(client.call(guard("lock", token, "LRANGE many 0 -1")).items().len(), 20_000);
            // The connection is in step.
            assert_eq!(client.call("PING"), "PONG");
        }
        let mut client = server.raw_resp3();
        for (command, wanted) in [
            ("HGETALL hash", "map"),
            ("SMEMBERS set", "set"),
            ("ZSCORE zset two", "double"),
            ("ZSCORE zset none", "null"),
            ("MEMORY DOCTOR", "verbatim"),
            ("LOCK.INFO lock", "map"),
            ("STRLEN bytes", "integer"),
            ("GET bytes", "bulk"),
            ("TYPE list", "simple"),
        ] {
            let reply = client.call(guard("lock", token, command));
            assert_eq!(kind(&reply), wanted, "{command}: {reply:?}");
        }
    }

    fn errors_are_those_of_the_command_itself(flavour) {
        let server = Server::start(flavour);
        fill(&server);
        let token = take(&server, "lock");
        let mut witness = server.witness();
        for mut client in [server.raw(), server.raw_resp3()] {
            for command in MISTAKES {
                let direct = client.call(command);
                assert!(direct.error_code().is_some(), "{command}: {direct:?}");
                let guarded = client.call(guard("lock", token, command));
                assert_eq!(guarded, direct, "{command}");
            }
            assert_eq!(client.call("PING"), "PONG");
        }
        witness.saw_nothing("a command that failed");
    }
}

/// What kind of reply it is.
fn kind(reply: &Reply) -> &'static str {
    match reply {
        Reply::Simple(_) => "simple",
        Reply::Error(_) => "error",
        Reply::Int(_) => "integer",
        Reply::Bulk(_) => "bulk",
        Reply::NilBulk | Reply::NilArray | Reply::Null => "null",
        Reply::Array(_) => "array",
        Reply::Map(_) => "map",
        Reply::Set(_) => "set",
        Reply::Push(_) => "push",
        Reply::Bool(_) => "boolean",
        Reply::Double(_) => "double",
        Reply::Verbatim(..) => "verbatim",
    }
}

on_every_server! {
    fn lock_commands_run_under_a_guard(flavour) {
        let server = Server::start(flavour);
        let token = take(&server, "lock");
        let info = server.call(guard("lock", token, "LOCK.INFO lock"));
        assert_eq!(info.field("token").as_int(), token);
        server.leased("lock", 2 * LONG, || {
            let renewal = ("LOCK.RENEW", "lock", "o", 2 * LONG);
            assert_eq!(server.call(guard("lock", token, renewal)), 1);
        });
        assert_eq!(server.call(guard("lock", token, "LOCK.RELEASE lock x")), 0);
        // There is no connection to watch, since the server makes one up.
        let watched = guard("lock", token, ("LOCK.RENEW", "lock", "o", LONG, "WATCHDOG"));
        assert_eq!(server.call(&watched).error_code(), Some("ERR"));
        let direct = ("LOCK.RENEW", "lock", "o", LONG, "WATCHDOG").to_words();
        let multi = "MULTI".to_words();
        let replies = server.raw().pipeline([&multi, &watched, &"EXEC".to_words()]);
        assert_eq!(replies[2].items()[0].error_code(), Some("ERR"));
        assert!(server.call(scripted("pcall", &watched)).as_bytes().starts_with(b"ERR"));
        assert_eq!(counted(&server, "lock_watchdogs"), 0);
        // A transaction has one.
        let mut client = server.raw();
        let replies = client.pipeline([&multi, &direct, &"EXEC".to_words()]);
        assert_eq!(replies[2].items()[0], 1);
        assert_eq!(counted(&server, "lock_watchdogs"), 1);
        client.close();
        wait_until("the watch to end", || counted(&server, "lock_watchdogs") == 0);
        // Another lock, and another way to release several.
        let other = take(&server, "other");
        assert_eq!(server.call(guard("lock", token, "LOCK.RELEASE other o")), 1);
        assert_eq!(server.call(guard("other", other, "GET k")), not_held());
        take(&server, "other");
        let all = "LOCK.MRELEASE 2 lock other o";
        let ended = Reply::Array(vec![Reply::Int(1), Reply::Int(1)]);
        assert_eq!(server.call(guard("lock", token, all)), ended);
        assert_eq!(server.call(guard("lock", token, all)), not_held());
        assert_eq!(server.dbsize(), 0);
    }

    fn a_release_under_its_own_guard_hands_the_lock_over(flavour) {
        let server = Server::start(flavour);
        let token = take(&server, "lock");
        let mut waiters = ["x", "y"].map(|owner| {
            let mut waiter = server.raw();
            let before = server.blocked_clients();
            waiter.send(("LOCK.ACQUIRE", "lock", owner, LONG, "BLOCK", 0));
            server.wait_for_blocked(before + 1);
            waiter
        });
        assert_eq!(server.call(guard("lock", token, "LOCK.RELEASE lock o")), 1);
        assert_eq!(server.call(guard("lock", token, "SET k v")), not_held());
        let first = waiters[0].read().as_int();
        assert!(first > token);
        assert_eq!(server.call(guard("lock", first, "LOCK.RELEASE lock x")), 1);
        let second = waiters[1].read().as_int();
        assert!(second > first);
        assert_eq!(waiters[1].call(guard("lock", second, "SET k v")), "OK");
        assert_eq!(counted(&server, "lock_handovers"), 2);
    }

    /// A guarded command can write the key of the lock itself. That wakes who waits for it, as if
    /// the command had come by itself.
    fn a_guarded_command_that_ends_the_lock_wakes_who_waits(flavour) {
        let server = Server::start(flavour);
        for command in [
            "DEL lock",
            "UNLINK lock",
            "GETDEL lock",
            "EXPIRE lock 0",
            "PEXPIRE lock 20",
            "PEXPIREAT lock 1",
            "SET lock other PX 20",
            "RENAME lock elsewhere",
            "MOVE lock 3",
            "FLUSHDB",
            "FLUSHALL",
            "FLUSHALL ASYNC",
            "SWAPDB 0 1",
            "MSET k v lock other",
        ] {
            let mut client = server.raw();
            let token = take(&server, "lock");
            let mut waiter = server.raw();
            waiter.send(("LOCK.ACQUIRE", "lock", "waiter", LONG, "BLOCK", 0));
            server.wait_for_blocked(1);
            let reply = client.call(guard("lock", token, command));
            assert_eq!(reply.error_code(), None, "{command}: {reply:?}");
            if command.starts_with("MSET") {
                // A plain lock is in its place.
                assert_eq!(client.call(guard("lock", token, "SET k w")), not_held());
                assert_eq!(server.blocked_clients(), 1);
                assert_eq!(server.call("DEL lock"), 1);
            }
            let next = waiter.read().as_int();
            assert!(next > token, "{command}");
            assert_eq!(client.call(guard("lock", token, "SET k w")), not_held(), "{command}");
            assert_eq!(client.call(guard("lock", next, "SET k w")), "OK", "{command}");
            assert_eq!(server.call("FLUSHALL"), "OK");
        }
    }

    fn a_guard_by_a_key_with_waiters_settles_the_queue_first(flavour) {
        let server = Server::start(flavour);
        assert_eq!(server.call("DEBUG SET-ACTIVE-EXPIRE 0"), "OK");
        let token = take(&server, "lock");
        let mut waiter = server.raw();
        waiter.send(("LOCK.ACQUIRE", "lock", "waiter", LONG, "BLOCK", 0));
        server.wait_for_blocked(1);
        // In one step with the deletion, before the module was told of it.
        let replies = server.raw().pipeline([
            "MULTI".to_words(),
            "DEL lock".to_words(),
            guard("lock", token, "SET k v"),
            "EXEC".to_words(),
        ]);
        assert_eq!(replies[3], Reply::Array(vec![Reply::Int(1), not_held()]));
        let next = waiter.read().as_int();
        assert_eq!(server.call(guard("lock", next, "EXISTS k")), 0);
    }

    fn a_transaction_is_guarded_command_by_command(flavour) {
        let server = Server::start(flavour);
        let token = take(&server, "lock");
        let mut client = server.raw();
        let replies = client.pipeline([
            "MULTI".to_words(),
            guard("lock", token, "SET k v"),
            guard("lock", token, "INCR k"),
            guard("lock", token, "BLPOP list 0"),
            guard("lock", token, "LOCK.RELEASE lock o"),
            guard("lock", token, "SET k late"),
            "EXEC".to_words(),
        ]);
        let items = replies[6].items();
        assert_eq!(items[0], "OK");
        assert_eq!(items[1].as_text(), "ERR value is not an integer or out of range");
        assert!(items[2].as_text().contains("can't run under LOCK.GUARD"), "{:?}", items[2]);
        assert_eq!(items[3], 1);
        assert_eq!(items[4], not_held());
        assert_eq!(server.call("GET k"), "v");
        // Too few arguments are found when the command is queued.
        client.call("MULTI");
        assert_eq!(client.call("LOCK.GUARD lock 5").error_code(), Some("ERR"));
        assert_eq!(client.call("EXEC").error_code(), Some("EXECABORT"));
    }

    /// Within one script the clock may stand still, but what the script itself did is seen.
    fn scripts_and_functions_run_guarded_commands(flavour) {
        let server = Server::start(flavour);
        fill(&server);
        let token = take(&server, "lock");
        assert_eq!(server.call(scripted("call", &guard("lock", token, "SET k v"))), "OK");
        assert_eq!(server.call(scripted("call", &guard("lock", token, "GET k"))), "v");
        let list = server.call(scripted("call", &guard("lock", token, "LRANGE list 0 -1")));
        assert_eq!(list.to_words(), "a b c");
        let nil = server.call(scripted("call", &guard("lock", token, "GET none")));
        assert!(nil.is_nil(), "{nil:?}");
        let error = server.call(scripted("pcall", &guard("lock", token, "LPUSH string x")));
        assert!(error.as_bytes().starts_with(b"WRONGTYPE"), "{error:?}");
        let error = server.call(scripted("pcall", &guard("lock", 5, "SET k w")));
        assert!(error.as_bytes().starts_with(b"NOTHELD"), "{error:?}");
        let error = server.call(scripted("call", &guard("lock", 5, "SET k w")));
        assert_eq!(error.error_code(), Some("NOTHELD"));
        let maps = "redis.setresp(3) local map = redis.call(unpack(ARGV)) return map.map.f";
        let mut words = ("EVAL", maps, 0).to_words();
        words.0.extend(guard("lock", token, "HGETALL hash").0);
        assert_eq!(server.call(words), "1");

        let ended = "redis.call('PEXPIRE', 'lock', 0) \
             return redis.pcall('LOCK.GUARD', 'lock', ARGV[1], 'SET', 'k', 'late')";
        assert_eq!(server.call(("EVAL", ended, 0, token)), not_held());
        let token = take(&server, "lock");
        let released = "redis.call('LOCK.GUARD', 'lock', ARGV[1], 'LOCK.RELEASE', 'lock', 'o') \
             return redis.pcall('LOCK.GUARD', 'lock', ARGV[1], 'SET', 'k', 'late')";
        assert_eq!(server.call(("EVAL", released, 0, token)), not_held());
        assert_eq!(server.call("GET k"), "v");

        let token = take(&server, "lock");
        let library = "#!lua name=lib\n redis.register_function('guarded', \
             function(keys, args) return redis.call('LOCK.GUARD', keys[1], unpack(args)) end)";
        assert_eq!(server.call(("FUNCTION", "LOAD", library)), "lib");
        let called = ("FCALL", "guarded", 1, "lock", token, "SET", "k", "f");
        assert_eq!(server.call(called), "OK");
        let called = ("FCALL", "guarded", 1, "lock", 5, "SET", "k", "g");
        assert_eq!(server.call(called).error_code(), Some("NOTHELD"));
        assert_eq!(server.call("GET k"), "f");
        // A script that may only read cannot write through a guard.
        let script = "return redis.call('LOCK.GUARD', 'lock', ARGV[1], 'SET', 'k', 'ro')";
        assert!(server.call(("EVAL_RO", script, 0, token)).error_code().is_some());
        let script = format!("#!lua flags=no-writes\n{script}");
        assert!(server.call(("EVAL", script, 0, token)).error_code().is_some());
        assert_eq!(server.call("GET k"), "f");
    }

    fn long_and_many_arguments_are_passed_on(flavour) {
        let server = Server::start(flavour);
        let token = take(&server, "lock");
        let long: Vec<u8> = (0..5_000_000_u32).map(|byte| byte.to_le_bytes()[0]).collect();
        let set = vec![b"SET".to_vec(), b"k".to_vec(), long.clone()];
        assert_eq!(server.call(guard("lock", token, set)), "OK");
        assert_eq!(server.call(guard("lock", token, "GET k")), Reply::Bulk(long.clone()));
        let set = vec![b"SET".to_vec(), long.clone(), b"v".to_vec()];
        assert_eq!(server.call(guard("lock", token, set)), "OK");
        assert_eq!(server.call(("GET", &long)), "v");
        // A key of that many bars would be that many parts of a name.
        let bars = vec![b'|'; 2_000_000];
        let set = vec![b"SET".to_vec(), bars.clone(), b"v".to_vec()];
        assert_eq!(server.call(guard("lock", token, set)), "OK");
        assert_eq!(server.call(("GET", &bars)), "v");
        let mut push = vec!["RPUSH".to_owned(), "list".to_owned()];
        push.extend((0..10_000).map(|number| number.to_string()));
        assert_eq!(server.call(guard("lock", token, push)), 10_000);
        assert_eq!(server.call("LINDEX list -1"), "9999");
        let mut set = vec!["MSET".to_owned()];
        set.extend((0..10_000).map(|number| format!("key:{number}")));
        assert_eq!(server.call(guard("lock", token, &set)), "OK");
        assert_eq!(server.call("GET key:9998"), "key:9999");
        "DEL".clone_into(&mut set[0]);
        assert_eq!(server.call(guard("lock", token, &set)), 5_000);
        // The key of a lock may be anything, too.
        for lock in [&b""[..], b"\0\xff\r\n", b"%s%n", &vec![b'x'; 1_000_000]] {
            let token = server.call(("LOCK.ACQUIRE", lock, "o", LONG)).as_int();
            assert_eq!(server.call(guard(lock, token, "INCR n")).error_code(), None);
            assert_eq!(server.call(guard(lock, token + 1, "INCR n")), not_held());
        }
        assert_eq!(server.call("GET n"), "4");
    }

    fn a_client_that_subscribes_is_answered_like_any_other_command(flavour) {
        let server = Server::start(flavour);
        let token = take(&server, "lock");
        let mut client = server.raw();
        client.call("SUBSCRIBE c");
        let refused = client.call(guard("lock", token, "SET k v"));
        assert_eq!(refused.error_code(), Some("ERR"), "{refused:?}");
        assert_eq!(server.call("EXISTS k"), 0);
        let mut client = server.raw_resp3();
        client.call("SUBSCRIBE c");
        assert_eq!(client.call(guard("lock", token, "SET k v")), "OK");
        assert_eq!(client.call(guard("lock", token, "SUBSCRIBE d")).error_code(), Some("ERR"));
        assert_eq!(server.call("PUBSUB CHANNELS").to_words(), "c");
        // Whether a message of its own comes before the reply depends on the server.
        client.send(guard("lock", token, "PUBLISH c hello"));
        let (messages, replies): (Vec<Reply>, Vec<Reply>) = [client.read(), client.read()]
            .into_iter()
            .partition(|reply| matches!(reply, Reply::Push(_)));
        assert_eq!(messages[0].to_words(), "message c hello");
        assert_eq!(replies, [Reply::Int(2)]);
    }

    fn a_paused_server_runs_no_guarded_command(flavour) {
        let server = Server::start(flavour);
        let token = take(&server, "lock");
        let mut client = server.raw();
        assert_eq!(server.call("CLIENT PAUSE 100000 WRITE"), "OK");
        client.send(guard("lock", token, "SET k v"));
        assert_eq!(server.call("EXISTS k"), 0);
        assert!(!client.has_reply());
        assert_eq!(server.call("CLIENT UNPAUSE"), "OK");
        assert_eq!(client.read(), "OK");
    }
}

/// Makes a user with these rules and no password, and logs in.
fn login(server: &Server, name: &str, rules: &str) -> Raw {
    let rules = format!("ACL SETUSER {name} reset on nopass -@all {rules}");
    assert_eq!(server.call(rules), "OK");
    let mut client = server.raw();
    assert_eq!(client.call(("AUTH", name, "any")), "OK");
    client
}

/// Whether it is the answer to one who has no right. Redis before 7.2 tells modules in its own way.
fn is_denied(flavour: Flavour, reply: &Reply) -> bool {
    match reply {
        Reply::Error(text) => {
            text.starts_with("NOPERM ")
                || flavour == Flavour::Redis70 && text.starts_with("ERR acl verification failed")
        }
        _ => false,
    }
}

on_every_server! {
    fn a_guarded_command_has_the_rights_of_its_user(flavour) {
        let server = Server::start(flavour);
        let token = take(&server, "lock");
        server.call("MSET mine:a 1 other 1 ro 1 wo 1");
        let users = server.call("ACL LIST");
        let mut witness = server.witness();
        // Rules, commands that are denied, and those that are not and change nothing.
        let cases: [(&str, &[&str], &[&str]); 11] = [
            (
                "+lock.guard +get ~*",
                &["SET mine:a v", "DEL mine:a", "FLUSHALL", "LOCK.RELEASE lock o", "INFO"],
                &["GET mine:a", "GET lock"],
            ),
            (
                "+lock.guard +set +get +mget +copy +del ~lock ~mine:*",
                &[
                    "SET other v", "GET other", "MGET mine:a other", "COPY mine:a other",
                    "COPY other mine:b", "DEL other mine:a", "LOCK.INFO lock", "KEYS *",
                ],
                &["GET mine:a", "SET mine:a v XX GET IFNONE", "MGET mine:a mine:b", "DEL mine:b"],
            ),
            (
                "+lock.guard +set +get ~mine:*",
                &["SET mine:a v", "GET mine:a", "GET lock"],
                &[],
            ),
            ("+lock.guard +set %W~lock ~mine:*", &["SET mine:a v"], &[]),
            (
                "+lock.guard +set +get +getset +rename %R~lock %R~ro %W~wo",
                &["SET ro v", "GET wo", "SET wo v GET", "GETSET ro v", "RENAME ro wo", "SET lock v"],
                &["GET ro", "GET lock"],
            ),
            (
                "+lock.guard +publish ~lock resetchannels &yes",
                &["PUBLISH no m"],
                &["PUBLISH yes m"],
            ),
            (
                "+lock.guard +object|encoding ~*",
                &["OBJECT FREQ lock", "OBJECT REFCOUNT lock", "MEMORY USAGE lock"],
                &["OBJECT ENCODING lock"],
            ),
            ("+set +get ~*", &["GET mine:a", "SET mine:a v", "NOSUCH"], &[]),
            ("+@all -get ~*", &["GET mine:a"], &["EXISTS mine:a"]),
            ("+@all -@dangerous ~*", &["KEYS *", "FLUSHALL", "SWAPDB 0 1"], &["GET mine:a"]),
            ("+@all -lock.guard ~*", &["GET mine:a"], &[]),
        ];
        for (rules, denied, allowed) in cases {
            let mut client = login(&server, "user", rules);
            for command in denied {
                let command = guard("lock", token, *command);
                let reply = client.call(&command);
                assert!(is_denied(flavour, &reply), "{rules}: {command}: {reply:?}");
                client.call("MULTI");
                client.call(&command);
                let reply = client.call("EXEC");
                assert!(is_denied(flavour, &reply)
                    || reply.error_code().is_some()
                    || is_denied(flavour, &reply.items()[0]), "{rules}: {command}: {reply:?}");
                // The rights in a script are those of its caller.
                assert_eq!(server.call("ACL SETUSER user +eval"), "OK");
                let reply = client.call(scripted("pcall", &command));
                let text = Reply::Error(String::from_utf8_lossy(reply.as_bytes()).into_owned());
                // The right to a key of the guard's is looked at by the script already.
                let is_error = is_denied(flavour, &text)
                    || text.as_text().starts_with("ERR ACL failure in script: ")
                    || flavour == Flavour::Redis70
                        && text.as_text().starts_with("ERR The user executing the script");
                assert!(is_error, "{rules}: {command} in a script: {reply:?}");
                assert_eq!(server.call("ACL SETUSER user -eval"), "OK");
                witness.saw_nothing(&format!("{command} without the right to"));
            }
            for command in allowed {
                let reply = client.call(guard("lock", token, *command));
                assert!(!is_denied(flavour, &reply), "{rules}: {command}: {reply:?}");
            }
            witness.saw();
        }
        assert_eq!(server.call("ACL DELUSER user"), 1);
        assert_eq!(server.call("ACL LIST"), users);
        assert_eq!(server.call("ACL WHOAMI"), "default");
    }

    fn rights_to_write_alone_are_enough_to_write(flavour) {
        let server = Server::start(flavour);
        let token = take(&server, "lock");
        let mut client = login(&server, "user", "+lock.guard +set +get %R~lock %W~wo (+incr ~n ~lock)");
        assert_eq!(client.call(guard("lock", token, "SET wo v")), "OK");
        assert!(is_denied(flavour, &client.call(guard("lock", token, "GET wo"))));
        // The guard needs its own right to the key, by one selector.
        assert!(is_denied(flavour, &client.call(guard("lock", token, "INCR n"))));
        let mut client = login(&server, "user", "+lock.guard ~lock ~n (+incr ~n)");
        assert_eq!(client.call(guard("lock", token, "INCR n")), 1);
        assert!(is_denied(flavour, &client.call(guard("lock", token, "DECR n"))));
    }

    fn rights_count_at_the_moment_of_the_call(flavour) {
        let server = Server::start(flavour);
        let token = take(&server, "lock");
        let mut client = login(&server, "user", "+lock.guard +set +multi +exec ~*");
        client.call("MULTI");
        assert_eq!(client.call(guard("lock", token, "SET k v")), "QUEUED");
        assert_eq!(server.call("ACL SETUSER user -set"), "OK");
        let reply = client.call("EXEC");
        assert!(is_denied(flavour, &reply.items()[0]), "{reply:?}");
        assert_eq!(server.call("EXISTS k"), 0);
    }

    fn a_command_without_the_right_to_is_in_the_log_of_the_server(flavour) {
        let server = Server::start(flavour);
        let token = take(&server, "lock");
        let mut client = login(&server, "user", "+lock.guard +set ~lock ~mine resetchannels");
        let of_last = |server: &Server| {
            let log = server.call("ACL LOG 1");
            let entry = &log.items()[0];
            ["reason", "object", "username"].map(|field| entry.field(field).as_text().to_lowercase())
        };
        assert_eq!(server.call("ACL LOG RESET"), "OK");
        client.call(guard("lock", token, "GET mine"));
        assert_eq!(of_last(&server), ["command", "get", "user"]);
        client.call(guard("lock", token, "SET other v"));
        assert_eq!(of_last(&server), ["key", "other", "user"]);
        client.call(guard("elsewhere", token, "SET mine v"));
        assert_eq!(of_last(&server), ["key", "elsewhere", "user"]);
        assert_eq!(server.call("ACL LOG").items().len(), 3);
        client.call(guard("lock", token, "SET mine v"));
        assert_eq!(server.call("ACL LOG").items().len(), 3);
        assert_eq!(server.call("GET mine"), "v");
    }
}

/// Commands, and their keys in the order of the server.
const KEYS: [(&str, &[&str]); 27] = [
    ("GET a", &["a"]),
    ("get a", &["a"]),
    ("SET a v", &["a"]),
    ("SET a v GET", &["a"]),
    ("MSET a 1 b 2 c 3", &["a", "b", "c"]),
    ("DEL a b c", &["a", "b", "c"]),
    ("COPY a b", &["a", "b"]),
    ("SORT a STORE b", &["a", "b"]),
    ("ZUNIONSTORE a 2 b c", &["a", "b", "c"]),
    ("ZUNIONSTORE a 99 b c", &[]),
    ("LMPOP 2 a b LEFT", &["a", "b"]),
    ("OBJECT ENCODING a", &["a"]),
    ("XREAD STREAMS a b 0 0", &["a", "b"]),
    ("MIGRATE host 1 a 0 1", &["a"]),
    ("LOCK.RELEASE a o", &["a"]),
    ("LOCK.MACQUIRE 2 a b o 1000", &["a", "b"]),
    ("LOCK.MRELEASE 2 a b o", &["a", "b"]),
    ("LOCK.MRENEW 2 a b o 1000", &["a", "b"]),
    ("LOCK.MRELEASE 99 a b o", &[]),
    ("LOCK.MRELEASE -1 a b o", &[]),
    ("LOCK.MRELEASE 2147483648 a b o", &[]),
    ("LOCK.MRELEASE x a b o", &[]),
    ("LOCK.GUARD a 1 SET b v", &[]),
    ("NOSUCH a", &[]),
    ("SET a", &[]),
    ("PUBLISH a b", &[]),
    ("PING", &[]),
];

on_every_server! {
    fn the_server_knows_the_keys_of_a_guarded_command(flavour) {
        let server = Server::start(flavour);
        let mut witness = server.witness();
        for (command, keys) in KEYS {
            let asked = |name: &str| {
                let mut words = ("COMMAND", name).to_words();
                words.0.extend(guard("lock", 5, command).0);
                server.call(words)
            };
            let sorted = |mut words: Vec<String>| {
                words.sort();
                words
            };
            let mut wanted = vec!["lock".to_owned()];
            wanted.extend(keys.iter().map(|key| (*key).to_owned()));
            let found = asked("GETKEYS").to_words();
            assert_eq!(found.text(0), "lock", "{command}");
            let found = (0..found.len()).map(|index| found.text(index).to_owned()).collect();
            assert_eq!(sorted(found), sorted(wanted.clone()), "{command}");

            let found = asked("GETKEYSANDFLAGS");
            let pairs = found.items().iter().map(Reply::items);
            let lock = found.items()[0].items();
            assert_eq!((lock[0].as_text(), &lock[1].to_words()), ("lock", &"RO access".to_words()));
            let found = pairs.map(|pair| pair[0].as_text().to_owned()).collect();
            assert_eq!(sorted(found), sorted(wanted), "{command}");
        }
        for command in ["LOCK.GUARD", "LOCK.GUARD lock", "LOCK.GUARD lock 5"] {
            let reply = server.call(format!("COMMAND GETKEYS {command}"));
            assert_eq!(reply.error_code(), Some("ERR"), "{command}");
        }
        witness.saw_nothing("to ask for keys");
    }

    fn a_guarded_command_is_redirected_by_all_of_its_keys(flavour) {
        let server = Server::build(flavour)
            .config("cluster-enabled", "yes")
            .config("cluster-require-full-coverage", "no")
            .start();
        // All slots but that of `away`.
        let away = server.call("CLUSTER KEYSLOT away").as_int();
        let slots = format!("CLUSTER ADDSLOTSRANGE 0 {} {} 16383", away - 1, away + 1);
        assert_eq!(server.call(slots), "OK");
        wait_until("the cluster is up", || {
            server.call("CLUSTER INFO").as_text().contains("cluster_state:ok")
        });
        let token = take(&server, "{a}lock");
        assert_eq!(server.call(guard("{a}lock", token, "SET {a}k v")), "OK");
        assert_eq!(server.call(guard("{a}lock", token, "MSET {a}k v {a}l v")), "OK");
        assert_eq!(server.call(guard("{a}lock", token, "PUBLISH c m")), 0);
        let stored = server.snapshot();
        for command in [
            "LOCK.MRELEASE 2 {a}k {b}k o", "LOCK.RELEASE {b}k o", "SET {b}k v", "MSET {a}k w {b}k v", "DEL {b}k", "SET away v", "GET {b}k"] {
            for lock in ["{a}lock", "{a}free"] {
                let command = guard(lock, token, command);
                assert_eq!(server.call(&command).error_code(), Some("CROSSSLOT"), "{command}");
                let reply = server.call(scripted("pcall", &command));
                let refused = String::from_utf8_lossy(reply.as_bytes()).into_owned();
                assert!(refused.starts_with("ERR ") || refused.starts_with("CROSSSLOT "), "{refused}");
                let mut client = server.raw();
                client.call("MULTI");
                assert_eq!(client.call(&command).error_code(), Some("CROSSSLOT"), "{command}");
                assert_eq!(client.call("EXEC").error_code(), Some("EXECABORT"), "{command}");
            }
        }
        let unserved = server.call(guard("away", token, "SET away v"));
        assert_eq!(unserved.error_code(), Some("CLUSTERDOWN"), "{unserved:?}");
        assert_eq!(server.snapshot(), stored);
        assert_eq!(calls(&server, "set"), 1);
    }
}

/// Commands on `k` and `l`, with what makes the keys before them.
const WRITES: [(&str, &str); 26] = [
    ("", "SET k v"),
    ("", "SET k v PX 1000000"),
    ("", "SET k v EX 1000"),
    ("SET k v", "SET k w KEEPTTL GET"),
    ("SET k v", "SET k w NX"),
    ("SET k v", "GETEX k PX 1000000"),
    ("SET k v", "GETDEL k"),
    ("SET k v", "EXPIRE k 1000"),
    ("SET k v", "EXPIRE k -1"),
    ("SET k v PX 1000000", "PERSIST k"),
    ("", "INCR k"),
    ("", "INCRBYFLOAT k 1.5"),
    ("", "MSET k v l w"),
    ("SADD k m", "SPOP k"),
    ("SADD k m", "SPOP k 2"),
    ("RPUSH k a b", "LMOVE k l LEFT RIGHT"),
    ("RPUSH k c b a", "SORT k ALPHA STORE l"),
    ("", "XADD k 1-1 f v"),
    ("SET k v", "RENAME k l"),
    ("SET k v", "COPY k l"),
    ("SET k v", "DEL k l"),
    ("SET k v", "GET k"),
    ("SET k v", "LPUSH k x"),
    ("", "DEL k"),
    ("LOCK.ACQUIRE k o 1000000", "LOCK.RELEASE k o"),
    ("LOCK.ACQUIRE k o 1000000", "LOCK.RENEW k o 2000000"),
];

/// Commands without those that mark a step of several, and deadlines by a word.
fn effects(commands: &[Words]) -> Vec<String> {
    let is_time = |word: &str| word.len() == 13 && word.bytes().all(|byte| byte.is_ascii_digit());
    commands
        .iter()
        .map(|command| {
            let words: Vec<&str> = (0..command.len())
                .map(|index| command.text(index))
                .map(|word| if is_time(word) { "$deadline" } else { word })
                .collect();
            words.join(" ")
        })
        .collect()
}

on_every_server! {
    /// To replicas, to the append only file, and to those who listen.
    fn effects_are_those_of_the_command_itself(flavour) {
        let server = Server::build(flavour).aof().start();
        let token = take(&server, "lock");
        let mut witness = server.witness();
        let mut all = Vec::new();
        for (before, command) in WRITES {
            let mut seen = Vec::new();
            for guarded in [false, true] {
                server.call("DEL k l");
                if !before.is_empty() {
                    assert_eq!(server.call(before).error_code(), None, "{before}");
                }
                witness.saw();
                let changes = server.changes();
                let reply = if guarded {
                    server.call(guard("lock", token, command))
                } else {
                    server.call(command)
                };
                let changes = server.changes() - changes;
                let (replicated, events) = witness.saw();
                all.extend(replicated.clone());
                seen.push((reply, effects(&replicated), effects(&events), changes));
            }
            assert_eq!(seen[1], seen[0], "{command}");
            if command.contains("PX") {
                assert!(seen[1].1[0].contains(" PXAT $deadline")
                    || seen[1].1[0].contains("PEXPIREAT k $deadline"), "{:?}", seen[1]);
            }
        }
        assert!(all.len() > WRITES.len());
        server.call(guard("lock", token, "FLUSHDB"));
        assert_eq!(effects(&witness.saw().0), ["flushdb".to_owned()].map(|name| {
            // The server keeps the case in which it was written.
            name.to_uppercase()
        }));
        for command in server.aof_commands() {
            assert!(!command.text(0).to_uppercase().starts_with("LOCK."), "{command}");
        }
        let token = take(&server, "lock");
        server.call(guard("lock", token, "SET k v PX 1000000"));
        let stored = server.snapshot();
        assert_eq!(server.kill().start().snapshot(), stored);
    }

    /// What the guard itself has to do and the command are one step for replicas, too.
    fn a_guard_that_ends_a_lapsed_share_is_one_step_with_its_command(flavour) {
        let server = Server::start(flavour);
        let brief = share(&server, "lock", "brief", 30);
        let token = share(&server, "lock", "b", LONG);
        wait_past(brief / 1_000 + 40);
        let mut stream = server.replication_stream();
        assert_eq!(server.call(guard("lock", token, "SET k v")), "OK");
        let writes = effects(&stream.writes(&server));
        assert_eq!(writes.first().map(String::as_str), Some("MULTI"), "{writes:?}");
        assert!(writes.iter().any(|write| write.starts_with("ZREM lock ")), "{writes:?}");
        assert_eq!(writes[writes.len() - 2..], ["SET k v", "EXEC"]);
    }

    fn a_replica_has_what_was_guarded_and_guards_nothing_itself(flavour) {
        let server = Server::start(flavour);
        let replica = Server::build(flavour).replica_of(&server).start();
        let token = take(&server, "lock");
        for (before, command) in WRITES {
            server.call("DEL k l");
            if !before.is_empty() {
                server.call(before);
            }
            server.call(guard("lock", token, command));
        }
        server.call(guard("lock", token, "SET k v PX 1000000"));
        replica.wait_in_sync_with(&server);
        assert_eq!(replica.snapshot(), server.snapshot());
        for command in ["SET k w", "GET k"] {
            let reply = replica.call(guard("lock", token, command));
            assert_eq!(reply.error_code(), Some("READONLY"), "{command}");
        }
        // The token is good where the lock went.
        assert_eq!(replica.call("REPLICAOF NO ONE"), "OK");
        assert_eq!(replica.call(guard("lock", token, "SET k w")), "OK");
        assert_eq!(replica.call(guard("lock", token + 1, "SET k x")), not_held());
    }

    fn a_guarded_command_obeys_the_limits_of_the_server(flavour) {
        let server = Server::start(flavour);
        let token = take(&server, "lock");
        server.call("SET k v");
        assert_eq!(server.call("CONFIG SET maxmemory-policy noeviction maxmemory 1"), "OK");
        let mut witness = server.witness();
        for command in ["SET x v", "LPUSH x v", "SET lock x", "APPEND k x"] {
            let direct = server.call(command);
            assert_eq!(direct.error_code(), Some("OOM"), "{command}");
            assert_eq!(server.call(guard("lock", token, command)), direct, "{command}");
        }
        witness.saw_nothing("a command for which there was no memory");
        assert_eq!(server.call(guard("lock", token, "GET k")), "v");
        assert_eq!(server.call(guard("lock", token, "DEL k")), 1);
        assert_eq!(server.call(guard("lock", token, ("LOCK.RENEW", "lock", "o", LONG))), 1);
        assert_eq!(server.call("CONFIG SET maxmemory 0"), "OK");
        witness.saw();

        assert_eq!(server.call("CONFIG SET min-replicas-to-write 5"), "OK");
        let reply = server.call(guard("lock", token, "SET x v"));
        assert_eq!(reply.error_code(), Some("NOREPLICAS"));
        witness.saw_nothing("a command for which there were too few replicas");
        assert_eq!(server.call("CONFIG SET min-replicas-to-write 0"), "OK");
        assert_eq!(server.call(guard("lock", token, "LOCK.RELEASE lock o")), 1);
        assert_eq!(server.dbsize(), 0);
    }

    fn who_watches_or_tracks_a_key_hears_of_guarded_writes(flavour) {
        let server = Server::start(flavour);
        let token = take(&server, "lock");
        server.call("SET k v");
        let mut watcher = server.raw();
        let mut touched = |command: &str| {
            assert_eq!(watcher.call("WATCH k"), "OK");
            server.call(guard("lock", token, command));
            watcher.call("MULTI");
            watcher.call("PING");
            watcher.call("EXEC").is_nil()
        };
        assert!(touched("SET k w"));
        assert!(touched("MSET k w l w"));
        assert!(touched("DEL k"));
        assert!(!touched("GET k"));
        assert!(!touched("SET l w"));
        assert!(!touched("BLPOP k 0"));
        assert!(touched("SET k x"));

        let mut tracker = server.raw_resp3();
        assert_eq!(tracker.call("CLIENT TRACKING ON"), "OK");
        assert_eq!(tracker.call("GET k"), "x");
        assert_eq!(server.call(guard("lock", token, "SET k y")), "OK");
        let told = tracker.read();
        assert_eq!(told.items()[0], "invalidate");
        assert_eq!(told.items()[1].to_words(), "k");
        // Older servers do not track what a module reads.
        assert_eq!(tracker.call(guard("lock", token, "GET k")), "y");
        if flavour.at_least_7_2() {
            server.call("SET k z");
            assert_eq!(tracker.read().items()[1].to_words(), "k");
        }
        assert_eq!(tracker.call("PING"), "PONG");
    }

    fn the_server_counts_both_commands_and_shows_them(flavour) {
        let server = Server::start(flavour);
        let token = take(&server, "lock");
        server.call("CONFIG SET slowlog-log-slower-than 0");
        let mut monitor = server.raw();
        monitor.call("MONITOR");
        for number in 1..=3 {
            assert_eq!(server.call(guard("lock", token, "SET k %s%n")), "OK");
            assert_eq!(calls(&server, "set"), number);
            assert_eq!(calls(&server, "lock.guard"), number);
        }
        assert_eq!(server.call(guard("lock", 5, "SET k v")), not_held());
        assert_eq!(server.call(guard("lock", token, "BLPOP k 0")).error_code(), Some("ERR"));
        assert_eq!((calls(&server, "set"), calls(&server, "blpop")), (3, 0));
        assert_eq!(counted(&server, "lock_guarded"), 3);
        assert_eq!(counted(&server, "lock_stale_guards"), 1);
        let shown = |name: &str, monitor: &mut Raw| loop {
            let line = monitor.read();
            if line.as_text().contains(name) {
                return line;
            }
        };
        assert!(shown("\"SET\" \"k\" \"%s%n\"", &mut monitor).as_text().contains("SET"));
        assert!(shown("\"LOCK.GUARD\" \"lock\"", &mut monitor).as_text().contains("SET"));
        let log = server.call("SLOWLOG GET 100");
        let logged = log.items().iter().any(|entry| entry.items()[3].to_words().text(0) == "LOCK.GUARD");
        assert!(logged, "{log:?}");
        assert!(server.call("LATENCY HISTOGRAM lock.guard set").error_code().is_none());
        assert!(server.call("INFO everything").as_text().contains("lock_guarded:3"));
    }

    /// The server's own names count, and without `COMMAND` nobody can tell what a command is.
    fn renamed_commands_are_guarded_by_their_new_names(flavour) {
        let server = Server::build(flavour)
            .config("rename-command BLPOP", "waitpop")
            .config("rename-command SET", "write")
            .config("rename-command STRLEN", "")
            .start();
        let token = take(&server, "lock");
        assert_eq!(server.call(guard("lock", token, "write k v")), "OK");
        let mut witness = server.witness();
        for (command, error) in [
            ("SET k w", "ERR unknown command 'SET'"),
            ("STRLEN k", "ERR unknown command 'STRLEN'"),
            ("BLPOP list 0", "ERR unknown command 'BLPOP'"),
            ("waitpop list 0", "ERR command 'waitpop' can't run under LOCK.GUARD: it may block"),
        ] {
            let reply = server.call(guard("lock", token, command));
            assert_eq!(reply, Reply::Error(error.to_owned()), "{command}");
        }
        witness.saw_nothing("a command by another name");
    }

    fn without_the_command_that_describes_commands_nothing_is_guarded(flavour) {
        for name in ["", "describe"] {
            let server = Server::build(flavour).config("rename-command COMMAND", name).start();
            let token = take(&server, "lock");
            let mut witness = server.witness();
            for command in ["SET k v", "BLPOP list 0", "LOCK.RELEASE lock o", "NOSUCH"] {
                let reply = server.call(guard("lock", token, command));
                let name = command.split(' ').next().unwrap();
                let error = format!(
                    "ERR command '{name}' can't run under LOCK.GUARD: the server does not say what it is"
                );
                assert_eq!(reply, Reply::Error(error), "{command}");
            }
            witness.saw_nothing("a guard by a server without COMMAND");
        }
    }
}

on_every_server! {
    fn a_guarded_command_may_move_the_lock_itself_to_another_server(flavour) {
        let (server, target) = (Server::start(flavour), Server::start(flavour));
        let token = take(&server, "lock");
        let mut waiter = server.raw();
        waiter.send(("LOCK.ACQUIRE", "lock", "waiter", LONG, "BLOCK", 0));
        server.wait_for_blocked(1);
        let migrate = format!("MIGRATE 127.0.0.1 {} lock 0 5000", target.port());
        assert_eq!(server.call(guard("lock", token, migrate)), "OK");
        assert!(waiter.read().as_int() > token);
        assert_eq!(server.call(guard("lock", token, "SET k v")), not_held());
        assert_eq!(target.call(guard("lock", token, "SET k v")), "OK");
    }

    /// The key is what counts, however it came there.
    fn a_lock_that_is_copied_or_restored_keeps_its_token(flavour) {
        let server = Server::start(flavour);
        let token = take(&server, "lock");
        let dump = server.call("DUMP lock").as_bytes().to_vec();
        let restore: Vec<Vec<u8>> = ["RESTORE", "lock", "1000000"]
            .map(Vec::from)
            .into_iter()
            .chain([dump, b"REPLACE".to_vec()])
            .collect();
        assert_eq!(server.call(guard("lock", token, restore)), "OK");
        assert_eq!(server.call(guard("lock", token, "RENAME lock lock")), "OK");
        assert_eq!(server.call(guard("lock", token, "COPY lock copy")), 1);
        assert_eq!(server.call(guard("copy", token, "RENAME copy lock")), "OK");
        assert_eq!(server.call(guard("copy", token, "SET k v")), not_held());
        assert_eq!(server.call(guard("lock", token, "SET k v")), "OK");
    }

    fn clients_that_want_no_reply_or_are_gone_do_no_harm(flavour) {
        let server = Server::start(flavour);
        let token = take(&server, "lock");
        let mut client = server.raw();
        client.send("CLIENT REPLY OFF");
        client.send(guard("lock", token, "INCR n"));
        client.send(guard("lock", 5, "INCR n"));
        client.send(guard("lock", token, "BLPOP list 0"));
        assert_eq!(client.call("CLIENT REPLY ON"), "OK");
        assert_eq!(client.call(guard("lock", token, "INCR n")), 2);
        let mut push = vec!["RPUSH".to_owned(), "list".to_owned()];
        push.extend(vec!["x".repeat(1_000); 5_000]);
        server.call(push);
        for _ in 0..5 {
            let mut client = server.raw();
            client.send(guard("lock", token, "LRANGE list 0 -1"));
            client.close();
        }
        // A reply that is more than the server keeps for a client.
        let limit = ("CONFIG", "SET", "client-output-buffer-limit", "normal 100000 0 0");
        assert_eq!(server.call(limit), "OK");
        let mut client = server.raw();
        client.send(guard("lock", token, "LRANGE list 0 -1"));
        client.wait_until_closed();
        assert_eq!(server.call(guard("lock", token, "INCR n")), 3);
    }
}
