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
    server.call(("LOCK.ACQUIRE", lock, owner, ttl, "SHARED")).as_int()
}

/// The answer to a token that does not hold the lock.
fn not_held() -> Reply {
    Reply::Error("NOTHELD the token does not hold this lock".to_owned())
}

/// Waits until the clock is past a deadline, so that the lease has lapsed.
fn wait_past(deadline: i64) {
    wait_until("the clock to be past the deadline", || unix_millis() > deadline + 1);
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

/// The words of a command with another name for each key `from`.
fn renamed(words: &Words, from: &str, to: &str) -> Words {
    let rename = |word: &Vec<u8>| if word == from.as_bytes() { to.into() } else { word.clone() };
    Words(words.iter().map(rename).collect())
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
    assert!(replies.iter().all(|reply| reply.error_code().is_none()), "{replies:?}");
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
            (&[b'x'; 100_000], &"x".repeat(64)),
            (&[b'|'; 100_000], &"|".repeat(64)),
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
                reply.as_text().contains(name) || command.contains(" "),
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
