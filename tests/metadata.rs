//! What the commands say of themselves: to clients, to proxies, to `redis-cli`, and to the ACL.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use crate::harness::{Flavour, Raw, Reply, Server, on_every_server, wait_until};

/// All that is to be known of a command.
struct Described {
    name: &'static str,
    summary: &'static str,
    complexity: &'static str,
    /// The arguments as `redis-cli` shows them.
    syntax: &'static str,
    /// The arguments as `COMMAND DOCS` describes them: the name, the type and, for an option, the
    /// word that introduces it.
    args: &'static [(&'static str, &'static str, &'static str)],
    arity: i64,
    flags: &'static str,
    categories: &'static str,
    tips: &'static str,
    /// What happens to the key, which is the first argument if there is one; or to the keys, of
    /// which the first argument says how many there are.
    key: &'static str,
}

const KEY: (&str, &str, &str) = ("key", "key", "");
const OWNER: (&str, &str, &str) = ("owner", "string", "");
const TTL: (&str, &str, &str) = ("ttl", "integer", "");
const BLOCK: (&str, &str, &str) = ("timeout", "integer", "BLOCK");
const WATCHDOG: (&str, &str, &str) = ("watchdog", "pure-token", "WATCHDOG");
const MODE: (&str, &str, &str) = ("mode", "oneof", "SHARED LIMIT");
const NUMKEYS: (&str, &str, &str) = ("numkeys", "integer", "");
const KEYS: (&str, &str, &str) = ("key", "keys", "");
const REQID: (&str, &str, &str) = ("id", "string", "REQID");
const TOKEN: (&str, &str, &str) = ("token", "integer", "TOKEN");
const ATTEMPT: (&str, &str, &str) = ("attempt", "integer", "");
const SHARED: (&str, &str, &str) = ("shared", "pure-token", "SHARED");
const COUNT: (&str, &str, &str) = ("count", "integer", "COUNT");

/// Every command, in the order of `LOCK.HELP`.
const COMMANDS: &[Described] = &[
    Described {
        name: "LOCK.ACQUIRE",
        summary: "Acquires a lock for an owner if nobody holds it, or waits for it",
        complexity: "O(1), or O(log N) for a share, N being the number of holders",
        syntax: "key owner ttl [BLOCK timeout] [SHARED | LIMIT n] [WATCHDOG] [REQID id]",
        args: &[KEY, OWNER, TTL, BLOCK, MODE, WATCHDOG, REQID],
        arity: -4,
        flags: "write denyoom module blocking fast",
        categories: "@write @fast @blocking @lock",
        tips: "",
        key: "RW access insert",
    },
    Described {
        name: "LOCK.RACQUIRE",
        summary: "Acquires a lock, or adds one hold if the owner has it already",
        complexity: "O(1)",
        syntax: "key owner ttl [BLOCK timeout] [WATCHDOG] [REQID id]",
        args: &[KEY, OWNER, TTL, BLOCK, WATCHDOG, REQID],
        arity: -4,
        flags: "write denyoom module blocking fast",
        categories: "@write @fast @blocking @lock",
        tips: "",
        key: "RW access insert",
    },
    Described {
        name: "LOCK.RELEASE",
        summary: "Ends one hold of an owner; the lock is free after the last one",
        complexity: "O(1), or O(log N) for a share, N being the number of holders",
        syntax: "key owner [TOKEN token]",
        args: &[KEY, OWNER, TOKEN],
        arity: -3,
        flags: "write module fast",
        categories: "@write @fast @lock",
        tips: "",
        key: "RW access delete",
    },
    Described {
        name: "LOCK.RENEW",
        summary: "Replaces what is left of an owner's lease",
        complexity: "O(1), or O(log N) for a share, N being the number of holders",
        syntax: "key owner ttl [TOKEN token] [WATCHDOG]",
        args: &[KEY, OWNER, TTL, TOKEN, WATCHDOG],
        arity: -4,
        flags: "write module fast",
        categories: "@write @fast @lock",
        tips: "",
        key: "RW access update",
    },
    Described {
        name: "LOCK.MACQUIRE",
        summary: "Acquires several locks for an owner, all of them or none, or waits for them",
        complexity: "O(N) where N is the number of keys",
        syntax: "numkeys key [key ...] owner ttl [BLOCK timeout] [WATCHDOG]",
        args: &[NUMKEYS, KEYS, OWNER, TTL, BLOCK, WATCHDOG],
        arity: -5,
        flags: "write denyoom module blocking movablekeys",
        categories: "@write @slow @blocking @lock",
        tips: "",
        key: "RW access insert",
    },
    Described {
        name: "LOCK.MRELEASE",
        summary: "Ends one hold of an owner of each of several locks",
        complexity: "O(N) where N is the number of keys",
        syntax: "numkeys key [key ...] owner",
        args: &[NUMKEYS, KEYS, OWNER],
        arity: -4,
        flags: "write module movablekeys",
        categories: "@write @slow @lock",
        tips: "",
        key: "RW access delete",
    },
    Described {
        name: "LOCK.MRENEW",
        summary: "Replaces what is left of an owner's leases of several locks",
        complexity: "O(N) where N is the number of keys",
        syntax: "numkeys key [key ...] owner ttl",
        args: &[NUMKEYS, KEYS, OWNER, TTL],
        arity: -5,
        flags: "write module movablekeys",
        categories: "@write @slow @lock",
        tips: "",
        key: "RW access update",
    },
    Described {
        name: "LOCK.GUARD",
        summary: "Runs a command if a token holds the lock, and refuses it otherwise",
        complexity: "That of the command",
        syntax: "key token command [arg [arg ...]]",
        args: &[
            KEY,
            ("token", "integer", ""),
            ("command", "string", ""),
            ("arg", "string", "..."),
        ],
        arity: -4,
        flags: "write module movablekeys",
        categories: "@write @slow @lock",
        tips: "",
        key: "RO access incomplete",
    },
    Described {
        name: "LOCK.QACQUIRE",
        summary: "Acquires a lock over a quorum of independent servers, or tries until it can",
        complexity: "O(N) where N is the number of nodes",
        syntax: "key owner ttl [BLOCK timeout] [SHARED]",
        args: &[KEY, OWNER, TTL, BLOCK, SHARED],
        arity: -4,
        flags: "write module blocking",
        categories: "@write @slow @blocking @lock",
        tips: "",
        key: "RW access insert",
    },
    Described {
        name: "LOCK.QRENEW",
        summary: "Replaces what is left of an owner's lease over a quorum of servers",
        complexity: "O(N) where N is the number of nodes",
        syntax: "key owner ttl [TOKEN token]",
        args: &[KEY, OWNER, TTL, TOKEN],
        arity: -4,
        flags: "write module blocking",
        categories: "@write @slow @blocking @lock",
        tips: "",
        key: "RW access update",
    },
    Described {
        name: "LOCK.QRELEASE",
        summary: "Ends the hold that an owner has over a quorum of servers",
        complexity: "O(N) where N is the number of nodes",
        syntax: "key owner [TOKEN token]",
        args: &[KEY, OWNER, TOKEN],
        arity: -3,
        flags: "write module blocking",
        categories: "@write @slow @blocking @lock",
        tips: "",
        key: "RW access delete",
    },
    Described {
        name: "LOCK.QINFO",
        summary: "Shows who holds a lock over a quorum of servers, and what each of them says",
        complexity: "O(N) where N is the number of nodes",
        syntax: "key",
        args: &[KEY],
        arity: 2,
        flags: "readonly module blocking",
        categories: "@read @slow @blocking @lock",
        tips: "nondeterministic_output",
        key: "RO access",
    },
    Described {
        name: "LOCK.QVOTE",
        summary: "Grants this node's part of a lock over a quorum, for coordinators",
        complexity: "O(1), or O(log N) for a share, N being the number of holders",
        syntax: "key owner ttl token attempt [SHARED]",
        args: &[KEY, OWNER, TTL, ("token", "integer", ""), ATTEMPT, SHARED],
        arity: -6,
        flags: "write denyoom module fast",
        categories: "@write @fast @lock",
        tips: "",
        key: "RW access insert",
    },
    Described {
        name: "LOCK.QSETTLE",
        summary: "Sets the token of this node's part of a lock over a quorum, for coordinators",
        complexity: "O(1), or O(log N) for a share, N being the number of holders",
        syntax: "key owner ttl attempt from to [SHARED]",
        args: &[
            KEY,
            OWNER,
            TTL,
            ATTEMPT,
            ("from", "integer", ""),
            ("to", "integer", ""),
            SHARED,
        ],
        arity: -7,
        flags: "write module fast",
        categories: "@write @fast @lock",
        tips: "",
        key: "RW access update",
    },
    Described {
        name: "LOCK.QUNVOTE",
        summary: "Takes back this node's part of a lock over a quorum, for coordinators",
        complexity: "O(1), or O(log N) for a share, N being the number of holders",
        syntax: "key owner attempt",
        args: &[KEY, OWNER, ATTEMPT],
        arity: 4,
        flags: "write module fast",
        categories: "@write @fast @lock",
        tips: "",
        key: "RW access delete",
    },
    Described {
        name: "LOCK.QEXTEND",
        summary: "Renews this node's part of a lock over a quorum, for coordinators",
        complexity: "O(1), or O(log N) for a share, N being the number of holders",
        syntax: "key owner ttl [TOKEN token]",
        args: &[KEY, OWNER, TTL, TOKEN],
        arity: -4,
        flags: "write module fast",
        categories: "@write @fast @lock",
        tips: "",
        key: "RW access update",
    },
    Described {
        name: "LOCK.QEND",
        summary: "Ends this node's part of a lock over a quorum, for coordinators",
        complexity: "O(1), or O(log N) for a share, N being the number of holders",
        syntax: "key owner [TOKEN token]",
        args: &[KEY, OWNER, TOKEN],
        arity: -3,
        flags: "write module fast",
        categories: "@write @fast @lock",
        tips: "",
        key: "RW access delete",
    },
    Described {
        name: "LOCK.QRELOCK",
        summary: "Takes up a lock again that a quorum holds and this node lost, for coordinators",
        complexity: "O(1), or O(log N) for a share, N being the number of holders",
        syntax: "key owner ttl token attempt at within [SHARED]",
        args: &[
            KEY,
            OWNER,
            TTL,
            ("token", "integer", ""),
            ATTEMPT,
            ("at", "integer", ""),
            ("within", "integer", ""),
            SHARED,
        ],
        arity: -8,
        flags: "write denyoom module fast",
        categories: "@write @fast @lock",
        tips: "",
        key: "RW access insert",
    },
    Described {
        name: "LOCK.INFO",
        summary: "Shows who holds a lock, how often, for how long, and under which token",
        complexity: "O(N) where N is the number of holders",
        syntax: "key",
        args: &[KEY],
        arity: 2,
        flags: "readonly module",
        categories: "@read @slow @lock",
        tips: "nondeterministic_output",
        key: "RO access",
    },
    Described {
        name: "LOCK.QUEUE",
        summary: "Shows who waits for a lock, in the order in which they will be granted",
        complexity: "O(N) where N is the number of waiters shown",
        syntax: "key [COUNT count]",
        args: &[KEY, COUNT],
        arity: -2,
        flags: "readonly module",
        categories: "@read @slow @lock",
        tips: "nondeterministic_output",
        key: "RO access",
    },
    Described {
        name: "LOCK.CONTENDED",
        summary: "Shows the locks of this database that somebody waits for, longest queue first",
        complexity: "O(N log N) where N is the number of locks that somebody waits for",
        syntax: "[COUNT count]",
        args: &[COUNT],
        arity: -1,
        flags: "readonly module",
        categories: "@read @slow @lock",
        tips: "nondeterministic_output request_policy:all_shards response_policy:special",
        key: "",
    },
    Described {
        name: "LOCK.HELP",
        summary: "Shows one line for each lock command",
        complexity: "O(N) where N is the number of lock commands",
        syntax: "",
        args: &[],
        arity: 1,
        flags: "readonly module loading stale fast",
        categories: "@read @fast @lock",
        tips: "",
        key: "",
    },
    // Exists in debug builds only.
    #[cfg(debug_assertions)]
    Described {
        name: "LOCK.DEBUG",
        summary: "Panics on purpose, in debug builds",
        complexity: "O(1)",
        syntax: "subcommand",
        args: &[("subcommand", "string", "")],
        arity: 2,
        flags: "module admin",
        categories: "@admin @dangerous @lock",
        tips: "",
        key: "",
    },
];

impl Described {
    /// What `COMMAND INFO` has to say.
    fn info(&self, flavour: Flavour) -> String {
        let Self {
            name,
            arity,
            flags,
            tips,
            key,
            ..
        } = self;
        // A module can say so only from 7.2 on.
        let categories = if flavour.at_least_7_2() {
            self.categories
        } else {
            ""
        };
        let (positions, key_specs) = if key.is_empty() {
            ("0 0 0", String::new())
        } else {
            let search = "begin_search (type index spec (index 1))";
            let (positions, find) = if self.has_several() {
                ("0 0 0", "keynum spec (keynumidx 0 firstkey 1 keystep 1)")
            } else {
                ("1 1 1", "range spec (lastkey 0 keystep 1 limit 0)")
            };
            let find = format!("find_keys (type {find})");
            (positions, format!("(flags ({key}) {search} {find})"))
        };
        format!("{name} {arity} ({flags}) {positions} ({categories}) ({tips}) ({key_specs}) ()")
    }

    /// Whether it has as many keys as its first argument says.
    fn has_several(&self) -> bool {
        self.args.contains(&KEYS)
    }

    /// What `COMMAND DOCS` has to say.
    fn docs(&self, flavour: Flavour) -> String {
        let argument = |(name, kind, word): &(&str, &str, &str)| {
            let shown = if flavour.at_least_7_2() {
                format!(" display_text {name}")
            } else {
                String::new()
            };
            let display = |name: &str| {
                if shown.is_empty() {
                    String::new()
                } else {
                    format!(" display_text {name}")
                }
            };
            match (*kind, *word) {
                ("oneof", _) => {
                    let shared = display("shared");
                    let limit = display("n");
                    format!(
                        "(name mode type oneof flags (optional) arguments \
                         ((name shared type pure-token{shared} token SHARED) \
                         (name n type integer{limit} token LIMIT)))"
                    )
                }
                ("keys", _) => {
                    format!("(name {name} type key{shown} key_spec_index 0 flags (multiple))")
                }
                ("key", _) => format!("(name {name} type key{shown} key_spec_index 0)"),
                (_, "") => format!("(name {name} type {kind}{shown})"),
                (_, "...") => format!("(name {name} type {kind}{shown} flags (optional multiple))"),
                _ => format!("(name {name} type {kind}{shown} token {word} flags (optional))"),
            }
        };
        let args: Vec<String> = self.args.iter().map(argument).collect();
        format!(
            "{} (summary {} since 0.1.0 group module complexity {} module lock arguments ({}))",
            self.name,
            self.summary,
            self.complexity,
            args.join(" ")
        )
    }

    /// The command with arguments that are right, on the key `key`.
    fn call(&self, key: &str) -> Vec<String> {
        let value = |(name, kind, _): &(&str, &str, &str)| match (*name, *kind) {
            (_, "key" | "keys") => key.to_owned(),
            ("numkeys", _) => "1".to_owned(),
            ("command", _) => "LOCK.HELP".to_owned(),
            (_, "integer") => "100000".to_owned(),
            _ => "o".to_owned(),
        };
        let mandatory = self.args.iter().filter(|(_, _, word)| word.is_empty());
        [self.name.to_owned()]
            .into_iter()
            .chain(mandatory.map(value))
            .collect()
    }
}

/// A reply as one line, with brackets around what is inside another.
fn text(reply: &Reply) -> String {
    match reply {
        Reply::Int(number) => number.to_string(),
        Reply::Array(items) => {
            let words: Vec<String> = items
                .iter()
                .map(|item| match item {
                    Reply::Array(_) => format!("({})", text(item)),
                    _ => text(item),
                })
                .collect();
            words.join(" ")
        }
        other => other.as_text().to_owned(),
    }
}

/// Whether the ACL let a command pass; what comes of it does not matter.
fn is_allowed(client: &mut Raw, command: &[String]) -> bool {
    client.call(command).error_code() != Some("NOPERM")
}

/// A connection of a new user with these permissions.
fn user(server: &Server, rules: &str) -> Raw {
    let rules = format!("ACL SETUSER worker reset on nopass -@all {rules}");
    assert_eq!(server.call(rules), "OK");
    let mut client = server.raw();
    assert_eq!(client.call("AUTH worker any"), "OK");
    client
}

/// `redis-cli` at a terminal.
struct Cli {
    process: Child,
    keyboard: ChildStdin,
    screen: Receiver<Vec<u8>>,
    shown: String,
}

impl Cli {
    /// Starts it, in a terminal that `script` makes, and waits for its prompt.
    fn start(server: &Server) -> Self {
        // Without a width it would ask the terminal, and there is nobody to answer.
        let command = format!("stty cols 200; exec redis-cli -p {}", server.port());
        let mut process = Command::new("script")
            .args(["--quiet", "--return", "--command", &command, "/dev/null"])
            .env("TERM", "xterm")
            .env("HOME", server.dir())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program `script`");
        let keyboard = process.stdin.take().unwrap();
        let mut output = process.stdout.take().unwrap();
        let (sender, screen) = channel();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut buffer) {
                if sender.send(buffer[..length].to_vec()).is_err() {
                    return;
                }
            }
        });
        let mut cli = Self {
            process,
            keyboard,
            screen,
            shown: String::new(),
        };
        cli.wait_for(&format!("{}> ", server.port()));
        cli
    }

    /// Waits until the screen shows this, after what it was looked at for before.
    fn wait_for(&mut self, wanted: &str) {
        wait_until(&format!("redis-cli to show {wanted:?}"), || {
            for bytes in self.screen.try_iter() {
                self.shown.push_str(&String::from_utf8_lossy(&bytes));
            }
            self.shown.contains(wanted)
        });
        self.shown.clear();
    }

    /// Presses keys.
    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
        self.keyboard.flush().unwrap();
    }
}

impl Drop for Cli {
    fn drop(&mut self) {
        // The terminal goes with `script`, and `redis-cli` with its terminal.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

on_every_server! {
    fn every_command_is_described_completely(flavour) {
        let server = Server::start(flavour);
        for command in COMMANDS {
            let reply = server.call(("COMMAND", "INFO", command.name));
            assert_eq!(text(&reply.items()[0]), command.info(flavour));
            let reply = server.call(("COMMAND", "DOCS", command.name));
            assert_eq!(text(&reply), command.docs(flavour));
        }
    }

    fn there_are_no_other_commands(flavour) {
        let server = Server::start(flavour);
        let bare = Server::build(flavour).without_module().start();
        let sorted = |reply: &Reply| {
            let mut names: Vec<String> =
                reply.items().iter().map(|name| name.as_text().to_uppercase()).collect();
            names.sort();
            names
        };
        let mut names: Vec<&str> = COMMANDS.iter().map(|command| command.name).collect();
        names.sort_unstable();
        assert_eq!(sorted(&server.call("COMMAND LIST FILTERBY MODULE lock")), names);
        let count = |server: &Server| server.call("COMMAND COUNT").as_int();
        let more = i64::try_from(COMMANDS.len()).unwrap();
        assert_eq!(count(&server), count(&bare) + more);
        if flavour.at_least_7_2() {
            assert_eq!(sorted(&server.call("ACL CAT lock")), names);
        }
    }

    // python-redis-lock#59, node-redlock#64. Proxies and cluster clients find a key in this way.
    fn the_key_of_every_command_is_found(flavour) {
        let server = Server::start(flavour);
        for command in COMMANDS {
            let words = command.call("k");
            let ask = |subcommand: &str| {
                let mut ask = vec!["COMMAND".to_owned(), subcommand.to_owned()];
                ask.extend(words.clone());
                server.call(ask)
            };
            let (keys, flags) = (ask("GETKEYS"), ask("GETKEYSANDFLAGS"));
            if command.key.is_empty() {
                assert_eq!(keys.error_code(), Some("ERR"), "{words:?}: {keys:?}");
                assert_eq!(flags.error_code(), Some("ERR"), "{words:?}: {flags:?}");
            } else {
                assert_eq!(text(&keys), "k", "{words:?}");
                // The guarded command of the example has no keys.
                let usage = command.key.trim_end_matches(" incomplete");
                assert_eq!(text(&flags), format!("(k ({usage}))"), "{words:?}");
            }
        }
    }

    // python-redis-lock#59, node-redlock#64. This node has no slots, so it knows of every key that
    // is declared that it is not there.
    fn a_node_of_a_cluster_serves_no_key_of_a_slot_that_it_has_not(flavour) {
        let server = Server::build(flavour).config("cluster-enabled", "yes").start();
        for command in COMMANDS {
            let reply = server.call(command.call("k"));
            let is_refused = reply.error_code() == Some("CLUSTERDOWN");
            assert_eq!(is_refused, !command.key.is_empty(), "{}: {reply:?}", command.name);
        }
    }

    fn a_user_of_the_category_can_lock_what_is_his_and_nothing_else(flavour) {
        let server = Server::start(flavour);
        let names: Vec<String> =
            COMMANDS.iter().map(|command| format!("+{}", command.name.to_lowercase())).collect();
        let by_name = names.join(" ");
        let rules = if flavour.at_least_7_2() { "+@lock" } else { by_name.as_str() };
        for rules in [rules, &by_name] {
            let mut client = user(&server, &format!("~lock:* {rules}"));
            for command in COMMANDS {
                let own = command.call("lock:1");
                assert!(is_allowed(&mut client, &own), "{own:?} with {rules}");
                if !command.key.is_empty() {
                    for key in ["other", "lock", "", "LOCK:1"] {
                        let foreign = command.call(key);
                        assert!(!is_allowed(&mut client, &foreign), "{foreign:?} with {rules}");
                    }
                }
            }
            for command in ["GET lock:1", "DEL lock:1", "SET lock:1 v", "KEYS *", "CONFIG GET *"] {
                assert_eq!(client.call(command).error_code(), Some("NOPERM"), "{command}");
            }
            // Nor by way of a script, were that allowed.
            server.call("ACL SETUSER worker +eval");
            let script = "return redis.pcall('LOCK.ACQUIRE', 'other', 'o', 1)";
            let reply = client.call(("EVAL", script, 0));
            assert!(reply.as_text().contains("access"), "{reply:?}");
        }
        assert_eq!(server.dbsize(), 0, "the last of them release what the first acquired");
    }

    /// Who may only read keys may look at locks; who may only write them can neither look nor
    /// lock, because each answer tells something of what a key holds.
    fn a_key_that_may_only_be_read_may_be_looked_at(flavour) {
        let server = Server::start(flavour);
        for (rules, may_use) in [
            ("%R~lock:* +@all", "RO"),
            ("%W~lock:* +@all", ""),
            ("%RW~lock:* +@all", "RO RW"),
        ] {
            let mut client = user(&server, rules);
            for command in COMMANDS.iter().filter(|command| !command.key.is_empty()) {
                let words = command.call("lock:1");
                let may = may_use.contains(&command.key[..2]);
                assert_eq!(is_allowed(&mut client, &words), may, "{words:?} with {rules}");
            }
        }
        if flavour.at_least_7_2() {
            for category in ["write", "read", "fast", "slow", "blocking", "dangerous", "admin"] {
                let mut client = user(&server, &format!("~* +@{category}"));
                for command in COMMANDS {
                    let words = command.call("lock:1");
                    let may = command.categories.contains(&format!("@{category}"));
                    assert_eq!(is_allowed(&mut client, &words), may, "{words:?} in {category}");
                }
            }
        }
    }

    fn redis_cli_shows_the_arguments(flavour) {
        let server = Server::start(flavour);
        let mut cli = Cli::start(&server);
        // Hints are grey.
        let hinted = |typed: &str, hint: &str| format!("> {typed}\x1b[0;90;49m{hint}\x1b[0m");
        for command in COMMANDS.iter().filter(|command| !command.syntax.is_empty()) {
            for name in [command.name.to_owned(), command.name.to_lowercase()] {
                let typed = format!("{name} ");
                cli.press(&typed);
                // It sets no spaces around the bars.
                cli.wait_for(&hinted(&typed, &command.syntax.replace(" | ", "|")));
                // Ctrl-U empties the line.
                cli.press("\x15");
                cli.wait_for("> \r");
            }
        }
        let typed = "LOCK.ACQUIRE lock:1 me ";
        cli.press(typed);
        cli.wait_for(&hinted(typed, "ttl [BLOCK timeout] [SHARED|LIMIT n] [WATCHDOG] [REQID id]"));
        assert_eq!(server.dbsize(), 0);
    }
}
