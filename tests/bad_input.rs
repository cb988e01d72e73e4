//! Arguments that are wrong: one clear error that names the argument, whatever the key holds, and
//! nothing else happens.

use crate::harness::{Reply, Server, ToWords, Words, on_every_server};

/// A command with the arguments that it must have, and its options.
struct Command {
    words: &'static str,
    options: &'static [&'static str],
}

/// Every command.
const COMMANDS: [Command; 17] = [
    Command {
        words: "LOCK.ACQUIRE key owner 100000",
        options: &["BLOCK 0", "WATCHDOG", "REQID r", "SHARED"],
    },
    Command {
        words: "LOCK.RACQUIRE key owner 100000",
        options: &["BLOCK 0", "WATCHDOG", "REQID r"],
    },
    Command {
        words: "LOCK.RELEASE key owner",
        options: &["TOKEN 5"],
    },
    Command {
        words: "LOCK.RENEW key owner 100000",
        options: &["TOKEN 5", "WATCHDOG"],
    },
    Command {
        words: "LOCK.MACQUIRE 1 key owner 100000",
        options: &["BLOCK 0", "WATCHDOG"],
    },
    Command {
        words: "LOCK.MRELEASE 1 key owner",
        options: &[],
    },
    Command {
        words: "LOCK.MRENEW 1 key owner 100000",
        options: &[],
    },
    Command {
        words: "LOCK.QVOTE key owner 100000 5 7",
        options: &["SHARED"],
    },
    Command {
        words: "LOCK.QSETTLE key owner 100000 7 5 6",
        options: &["SHARED"],
    },
    Command {
        words: "LOCK.QUNVOTE key owner 7",
        options: &[],
    },
    Command {
        words: "LOCK.QEXTEND key owner 100000",
        options: &["TOKEN 5"],
    },
    Command {
        words: "LOCK.QEND key owner",
        options: &["TOKEN 5"],
    },
    Command {
        words: "LOCK.QRELOCK key owner 100000 5 7 5 5",
        options: &["SHARED"],
    },
    Command {
        words: "LOCK.INFO key",
        options: &[],
    },
    Command {
        words: "LOCK.QUEUE key",
        options: &["COUNT 5"],
    },
    Command {
        words: "LOCK.CONTENDED",
        options: &["COUNT 5"],
    },
    Command {
        words: "LOCK.HELP",
        options: &[],
    },
];

/// What stands at the place of each key when the tables are played: no lock, a lock of the owner's
/// in every layout, somebody else's, no lock at all, and names that are unusual.
const KEYS: [&[u8]; 12] = [
    b"free",
    b"held",
    b"held with a request",
    b"plain",
    b"hash",
    b"other's",
    b"list",
    b"two fields",
    b"",
    b"{a}b{",
    b"\0\xff\r\n",
    b"%s%n%s%n",
];

/// Makes the keys.
fn fill(server: &Server) {
    let owner = "owner";
    server.call(("LOCK.ACQUIRE", "held", owner, 1_000_000));
    server.call((
        "LOCK.RACQUIRE",
        "held with a request",
        owner,
        1_000_000,
        "REQID",
        "r",
    ));
    server.call(("SET", "plain", owner, "PX", 1_000_000));
    server.call(("HSET", "hash", owner, 2));
    server.call(("LOCK.ACQUIRE", "other's", "*", 1_000_000));
    server.call(("RPUSH", "list", owner));
    server.call(("HSET", "two fields", owner, 1, "f", 1));
    assert_eq!(server.dbsize(), 7);
}

/// A row of a table: a command and the error that it must be answered with.
type Row = (Words, String);

/// Plays the rows, with each of the keys where there is one, and sees that nothing comes of it.
fn play(server: &Server, rows: impl IntoIterator<Item = Row>) {
    fill(server);
    let mut witness = server.witness();
    let mut last = String::new();
    for (command, error) in rows {
        let keys = if command.get(1).is_some_and(|word| word == b"key") {
            &KEYS[..]
        } else {
            &[]
        };
        let with_key = |key: &&[u8]| {
            let mut command = command.clone();
            command.0[1] = key.to_vec();
            command
        };
        let commands: Vec<Words> = keys.iter().map(with_key).collect();
        for command in if commands.is_empty() {
            vec![command]
        } else {
            commands
        } {
            last = command.to_string();
            assert_eq!(server.call(&command), Reply::Error(error.clone()), "{last}");
        }
    }
    witness.saw_nothing(&format!("one of the commands up to {last}"));
    assert_eq!(server.call("PING"), "PONG");
    assert!(!last.is_empty(), "the table has rows");
}

impl Command {
    /// All words of the command, with these after them.
    fn and(&self, words: impl ToWords) -> Words {
        Words([self.words.to_words().0, words.to_words().0].concat())
    }

    /// The command with another value for an argument, which stands in its place by name.
    fn with(&self, place: &str, value: &[u8]) -> Option<Words> {
        let mut words = self.words.to_words();
        let found = words.0.iter_mut().find(|word| *word == place.as_bytes())?;
        *found = value.to_vec();
        Some(words)
    }
}

/// A row for each command that has such an argument, and for each of the values.
fn rows_for<'v>(place: &str, values: &[(&'v [u8], &'v str)]) -> Vec<Row> {
    let row = |command: &Command, (value, error): &(&[u8], &str)| {
        Some((command.with(place, value)?, format!("ERR {error}")))
    };
    values
        .iter()
        .flat_map(|value| {
            COMMANDS
                .iter()
                .filter_map(move |command| row(command, value))
        })
        .collect()
}

/// A row for each command that has such an option, and for each of its values.
fn rows_for_option(option: &str, values: &[(&[u8], &str)]) -> Vec<Row> {
    let has_it = |command: &&Command| {
        command
            .options
            .iter()
            .any(|own| own.split(' ').next() == Some(option))
    };
    let row = |command: &Command, (value, error): &(&[u8], &str)| {
        (command.and((option, *value)), format!("ERR {error}"))
    };
    values
        .iter()
        .flat_map(|value| {
            COMMANDS
                .iter()
                .filter(has_it)
                .map(move |command| row(command, value))
        })
        .collect()
}

on_every_server! {
    fn a_wrong_number_of_arguments_is_refused(flavour) {
        let server = Server::start(flavour);
        let mut rows = Vec::new();
        for command in &COMMANDS {
            let words = command.words.to_words();
            let name = words.text(0).to_owned();
            let error = format!("ERR wrong number of arguments for '{name}' command");
            for length in 1..words.len() {
                rows.push((Words(words[..length].to_vec()), error.clone()));
            }
            if command.options.is_empty() {
                rows.push((command.and("more"), error.clone()));
                rows.push((command.and(["", ""]), error.clone()));
                rows.push((command.and(vec!["more"; 10_000]), error));
            }
        }
        play(&server, rows);
    }

    fn an_owner_that_is_too_short_or_too_long_is_refused(flavour) {
        let server = Server::start(flavour);
        let error = "owner must be 1 to 512 bytes long";
        play(&server, rows_for("owner", &[
            (b"", error),
            (&[b'o'; 513], error),
            (&[b'*'; 513], error),
            (&[0; 513], error),
            (&[0xff; 10_000], error),
        ]));
    }

    fn a_ttl_that_is_no_positive_integer_is_refused(flavour) {
        let server = Server::start(flavour);
        let no_integer = "ttl is not an integer or out of range";
        play(&server, rows_for("100000", &[
            (b"0", "ttl must be positive"),
            (b"-1", "ttl must be positive"),
            (b"-9223372036854775808", "ttl must be positive"),
            (b"1.5", no_integer),
            (b"1e3", no_integer),
            (b"9007199254740992", no_integer),
            (b"9223372036854775807", no_integer),
            (b"9223372036854775808", no_integer),
            (b"18446744073709551616", no_integer),
            (b"-9223372036854775809", no_integer),
            (&[b'9'; 10_000], no_integer),
            (b"", no_integer),
            (b" 1", no_integer),
            (b"1 ", no_integer),
            (b"1\0", no_integer),
            (b"\x001", no_integer),
            (b"+1", no_integer),
            (b"-0", no_integer),
            (b"01", no_integer),
            (b"0x10", no_integer),
            (b"1_000", no_integer),
            (b"1,000", no_integer),
            (b"10s", no_integer),
            (b"inf", no_integer),
            (b"nan", no_integer),
            (b"o", no_integer),
            (b"%d", no_integer),
            (b"\xff", no_integer),
            ("\u{661}".as_bytes(), no_integer),
        ]));
    }

    fn a_word_that_is_no_option_is_refused(flavour) {
        let server = Server::start(flavour);
        let mut rows = Vec::new();
        for command in COMMANDS.iter().filter(|command| !command.options.is_empty()) {
            for (word, shown) in [
                (&b"NOPE"[..], "NOPE"),
                (b"PX", "PX"),
                (b"NX", "NX"),
                (b"BLOCKS", "BLOCKS"),
                (b"BLOC", "BLOC"),
                (b"WATCHDOG\0", "WATCHDOG\\x00"),
                (b" TOKEN", " TOKEN"),
                (b"--reqid", "--reqid"),
                (b"1", "1"),
                (b"", ""),
                (b"%s%n", "%s%n"),
                (b"a\r\nb", "a\\r\\nb"),
                (b"\0\xff", "\\x00\\xff"),
                // Just the beginning of it: the error is for people.
                (&[b'x'; 10_000], &"x".repeat(64)),
            ] {
                let error = format!("ERR unknown option '{shown}'");
                rows.push((command.and([word]), error.clone()));
                rows.push((command.and([word, b"1"]), error.clone()));
                // Also behind one that is right.
                let option: Vec<&[u8]> =
                    command.options[0].split(' ').map(str::as_bytes).collect();
                rows.push((command.and([&option[..], &[word]].concat()), error));
            }
            // What is an option elsewhere is none here.
            let has_limit = |option: &str| option == "LIMIT 5" && command.words.starts_with("LOCK.ACQUIRE");
            for option in
                ["BLOCK 0", "WATCHDOG", "REQID r", "TOKEN 5", "COUNT 5", "SHARED", "LIMIT 5"]
            {
                if !command.options.contains(&option) && !has_limit(option) {
                    let word = option.split(' ').next().unwrap();
                    rows.push((command.and(option), format!("ERR unknown option '{word}'")));
                }
            }
        }
        play(&server, rows);
    }

    fn an_option_that_is_repeated_or_has_no_value_is_refused(flavour) {
        let server = Server::start(flavour);
        let mut rows = Vec::new();
        for command in &COMMANDS {
            for option in command.options {
                let (word, value) = option.split_once(' ').unwrap_or((option, ""));
                let lower = option.to_lowercase();
                let twice = format!("ERR option {word} is given twice");
                rows.push((command.and(format!("{option} {option}")), twice.clone()));
                rows.push((command.and(format!("{option} {lower}")), twice.clone()));
                rows.push((command.and(vec![*option; 1_000].join(" ")), twice.clone()));
                for other in command.options.iter().filter(|other| *other != option) {
                    let words = format!("{option} {other} {option}");
                    rows.push((command.and(words), twice.clone()));
                }
                if value.is_empty() {
                    // An option that has no value takes none.
                    rows.push((command.and((word, "1")), "ERR unknown option '1'".to_owned()));
                } else {
                    let without = format!("ERR option {word} needs a value");
                    rows.push((command.and(word), without.clone()));
                    rows.push((command.and(word.to_lowercase()), without.clone()));
                    for other in command.options.iter().filter(|other| *other != option) {
                        rows.push((command.and(format!("{other} {word}")), without.clone()));
                    }
                }
            }
        }
        play(&server, rows);
    }

    fn an_option_with_a_wrong_value_is_refused(flavour) {
        let server = Server::start(flavour);
        let mut rows = Vec::new();
        for (option, name, positive) in [
            ("BLOCK", "timeout", None),
            ("TOKEN", "TOKEN", Some("TOKEN must be positive")),
            ("COUNT", "COUNT", Some("COUNT must be positive")),
        ] {
            let no_integer = format!("{name} is not an integer or out of range");
            let negative = format!("{name} is negative");
            let negative = positive.unwrap_or(&negative);
            rows.extend(rows_for_option(option, &[
                (b"-1", negative),
                (b"-9223372036854775808", negative),
                (b"", &no_integer),
                (b"1.5", &no_integer),
                (b"1e3", &no_integer),
                (b"01", &no_integer),
                (b"+1", &no_integer),
                (b"1 ", &no_integer),
                (b"x", &no_integer),
                (b"%s%n", &no_integer),
                (b"\0\xff", &no_integer),
                (b"9223372036854775808", &no_integer),
                (b"18446744073709551616", &no_integer),
                (b"-9223372036854775809", &no_integer),
            ]));
            if let Some(positive) = positive {
                rows.extend(rows_for_option(option, &[(b"0", positive)]));
            }
            if option != "COUNT" {
                rows.extend(rows_for_option(option, &[
                    (b"9007199254740992", &no_integer),
                    (b"9223372036854775807", &no_integer),
                ]));
            }
        }
        let length = "REQID must be 1 to 64 bytes long";
        rows.extend(rows_for_option("REQID", &[
            (b"", length),
            (&[b'r'; 65], length),
            (&[0xff; 10_000], length),
        ]));
        for command in &COMMANDS[..2] {
            let mut command = command.and("REQID r");
            command.0[2] = b"*".to_vec();
            rows.push((command, "ERR REQID needs an owner of yours, not '*'".to_owned()));
        }
        play(&server, rows);
    }

    fn a_bad_command_does_no_harm_in_a_transaction_or_a_script(flavour) {
        let server = Server::start(flavour);
        fill(&server);
        let mut witness = server.witness();
        let bad = [
            ("LOCK.ACQUIRE free owner 0", "ERR ttl must be positive"),
            ("LOCK.RACQUIRE free owner 1.5", "ERR ttl is not an integer or out of range"),
            ("LOCK.RELEASE held owner TOKEN", "ERR option TOKEN needs a value"),
            ("LOCK.RENEW held owner 5 NOPE", "ERR unknown option 'NOPE'"),
        ];
        let mut transaction = server.raw();
        transaction.call("MULTI");
        for (command, _) in bad {
            assert_eq!(transaction.call(command), "QUEUED", "{command}");
        }
        let errors = bad.map(|(_, error)| Reply::Error(error.to_owned()));
        assert_eq!(transaction.call("EXEC"), Reply::Array(errors.to_vec()));
        witness.saw_nothing("a transaction of bad commands");

        transaction.call("MULTI");
        assert_eq!(transaction.call("LOCK.RELEASE held owner"), "QUEUED");
        assert_eq!(transaction.call("LOCK.RELEASE held").error_code(), Some("ERR"));
        assert_eq!(transaction.call("EXEC").error_code(), Some("EXECABORT"));
        witness.saw_nothing("a transaction that was given up");

        for (command, error) in bad {
            let words = command.replace(' ', "', '");
            let script = format!("return redis.pcall('{words}')");
            let reply = server.call(("EVAL", script, 0));
            assert_eq!(reply, Reply::Error(error.to_owned()), "{command}");
            let script = format!("return redis.call('{words}')");
            let reply = server.call(("EVAL", script, 0));
            let message = error.strip_prefix("ERR ").unwrap();
            assert!(reply.as_text().contains(message), "{command}: {reply:?}");
        }
        witness.saw_nothing("scripts of bad commands");
    }

    /// Odd bytes are no bad input: they are owners and keys like any others, and name nobody here.
    fn odd_owners_are_answered_like_any_other(flavour) {
        let server = Server::start(flavour);
        fill(&server);
        let mut witness = server.witness();
        for owner in [&b"%s%n%s%n"[..], b"\0", b"\xff\xfe", b"a b\r\n", b"*x", &[b'o'; 512]] {
            for key in [&b"held"[..], b"held with a request", b"plain", b"hash", b"other's"] {
                let shown = owner.escape_ascii();
                for command in ["LOCK.ACQUIRE", "LOCK.RACQUIRE"] {
                    let reply = server.call((command, key, owner, 100_000));
                    assert_eq!(reply, Reply::NilBulk, "{command} of {shown}");
                }
                assert_eq!(server.call(("LOCK.RELEASE", key, owner)), 0, "{shown}");
                assert_eq!(server.call(("LOCK.RENEW", key, owner, 100_000)), 0, "{shown}");
            }
            for key in [&b""[..], b"{a}b{", b"\0\xff\r\n", b"%s%n%s%n"] {
                let shown = owner.escape_ascii();
                assert_eq!(server.call(("LOCK.RELEASE", key, owner)), -1, "{shown}");
                assert_eq!(server.call(("LOCK.RENEW", key, owner, 100_000)), -1, "{shown}");
                assert_eq!(server.call(("LOCK.INFO", key)).field("state"), "free");
            }
        }
        witness.saw_nothing("the odd owners");
    }
}
