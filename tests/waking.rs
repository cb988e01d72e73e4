//! A key that changes under a queue wakes whoever stands first, and never at a bad moment.

use std::iter;

use crate::harness::{Flavour, Raw, Reply, Server, ToWords, Words, on_every_server, wait_until};
use crate::waiters::{
    LONG, clear, clock_of, granted, nobody_waits, queue, take, unload, wait_in, waiter,
    with_time_enough,
};

/// How a client sends commands: as they are, or several of them as one step.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Plain,
    Transaction,
    Script,
}

/// Calls each of the commands in `ARGV`, before each of which stands how many words it has.
const SCRIPT: &str = "
    local replies, i = {}, 1
    while i <= #ARGV do
        local words = tonumber(ARGV[i])
        replies[#replies + 1] = redis.pcall(unpack(ARGV, i + 1, i + words))
        i = i + words + 1
    end
    return replies";

impl Form {
    const ALL: [Self; 3] = [Self::Plain, Self::Transaction, Self::Script];

    /// Has `client` run `commands`, and returns all their replies.
    fn run(self, client: &mut Raw, commands: &[Words]) -> Vec<Reply> {
        match self {
            Self::Plain => client.pipeline(commands),
            Self::Transaction => {
                let (first, last) = ("MULTI".to_words(), "EXEC".to_words());
                let commands = iter::once(&first).chain(commands).chain([&last]);
                let replies = client.pipeline(commands);
                replies.last().unwrap().items().to_vec()
            }
            Self::Script => {
                let mut call = Words(vec!["EVAL".into(), SCRIPT.into(), "0".into()]);
                for command in commands {
                    call.0.push(command.len().to_string().into_bytes());
                    call.0.extend(command.iter().cloned());
                }
                client.call(call).items().to_vec()
            }
        }
    }
}

/// What becomes of a client that waits while the key changes.
#[derive(Clone, Copy, Debug)]
enum End {
    /// It is granted.
    Granted,
    /// It is granted when a lease of [`BRIEF`] has lapsed, and not before.
    GrantedAtLapse,
    /// It goes on waiting, until the key is deleted.
    Waits,
    /// It is told that the key is no lock.
    WrongType,
}

/// The length of the leases in `PX 20` and the like, in milliseconds.
const BRIEF: i64 = 20;

/// Changes after which nobody holds the lock. Commands are divided by semicolons and are one step.
/// `a` holds the key `k` of database 0, and there are some other keys: see [`prepare`].
const RELEASES: [&str; 24] = [
    "LOCK.RELEASE k a",
    "DEL k",
    "UNLINK k",
    "GETDEL k",
    "EXPIRE k 0",
    "PEXPIRE k -1",
    "EXPIREAT k 1",
    "PEXPIREAT k 1",
    "GETEX k PXAT 1",
    "RENAME k elsewhere",
    "RENAME k string",
    "RENAMENX k elsewhere",
    "MOVE k 1",
    "FLUSHDB SYNC",
    "FLUSHDB ASYNC",
    "FLUSHALL SYNC",
    "FLUSHALL ASYNC",
    "SWAPDB 0 1",
    "SUNIONSTORE k none",
    "DEL k;SET k x;DEL k",
    "DEL k;RPUSH k v;DEL k",
    "DEL k;RPUSH k v;LPOP k",
    "DEL k;HSET k x 1;HDEL k x",
    "RENAME string k;RENAME k elsewhere",
];

/// Changes after which the lock is held for [`BRIEF`].
const SHORTER_LEASES: [&str; 12] = [
    "PEXPIRE k 20",
    "PEXPIREAT k {brief}",
    "GETEX k PX 20",
    "LOCK.RENEW k a 20",
    "SET k x PX 20",
    "PSETEX k 20 x",
    "RESTORE k 20 {dump} REPLACE",
    "DEL k;RESTORE k {brief} {dump} ABSTTL",
    "SET brief x PX 20;RENAME brief k",
    "SET brief x PX 20;COPY brief k REPLACE",
    "DEL k;SELECT 2;PEXPIRE k 20;MOVE k 0;SELECT 0",
    "PERSIST k;PEXPIRE k 20",
];

/// Changes after which the lock is held, by whomever, for longer than any test takes.
const OTHER_HOLDS: [&str; 19] = [
    "PEXPIRE k 20;PERSIST k",
    "PEXPIRE k 20;PEXPIRE k 100000",
    "PEXPIRE k 20;LOCK.RENEW k a 100000",
    "PERSIST k",
    "GETEX k PERSIST",
    "SET k x",
    "SET k x KEEPTTL",
    "SET k x PX 100000",
    "GETSET k x",
    "DEL k;SET k x",
    "DEL k;HSET k x 1",
    "RENAME string k",
    "RENAME k elsewhere;RENAME elsewhere k",
    "COPY string k REPLACE",
    "RESTORE k 0 {dump} REPLACE",
    "SWAPDB 0 2",
    "DEL k;SELECT 2;MOVE k 0;SELECT 0",
    "MOVE k 1;SELECT 1;MOVE k 0;SELECT 0",
    "LOCK.RACQUIRE k a 100000;LOCK.RELEASE k a",
];

/// Changes after which the key is no lock.
const OTHER_TYPES: [&str; 5] = [
    "RENAME list k",
    "COPY list k REPLACE",
    "DEL k;RPUSH k v",
    "DEL k;HSET k x 1 y 1",
    "DEL k;XADD k * f v",
];

/// Changes after which the deadline that the holder had is none any more. They make the lock last
/// longer; or another lock of it; or something that is no lock, of which some servers do not tell
/// until they are asked at the old deadline.
const LATER_DEADLINES: [(&str, End); 9] = [
    ("LOCK.RENEW k a 100000", End::Waits),
    ("LOCK.RACQUIRE k a 100000", End::Waits),
    ("PEXPIRE k 100000", End::Waits),
    ("PERSIST k", End::Waits),
    ("SET k x", End::Waits),
    ("SET k x PX 100000", End::Waits),
    ("GETEX k PERSIST", End::Waits),
    ("SUNIONSTORE k set", End::WrongType),
    ("SORT list BY none STORE k", End::WrongType),
];

/// An empty server but for a lock `k` that `a` holds for `ttl`, and some other keys. In database 2
/// there is another lock `k`.
fn prepare(server: &Server, ttl: i64) {
    clear(server);
    let mut client = server.raw();
    let keys = [
        "SET string x",
        "RPUSH list v",
        "SADD set v",
        "SELECT 2",
        "SET k x",
    ];
    let replies = client.pipeline(keys);
    assert!(
        replies.iter().all(|reply| reply.error_code().is_none()),
        "{replies:?}"
    );
    assert!(server.call(("LOCK.ACQUIRE", "k", "a", ttl)).as_int() > 0);
}

/// The commands of a line of the tables, to be sent at `now`.
fn commands(server: &Server, line: &str, now: i64) -> Vec<Words> {
    let line = line.replace("{brief}", &(now + BRIEF).to_string());
    let mut commands: Vec<Words> = line.split(';').map(ToWords::to_words).collect();
    for word in commands.iter_mut().flat_map(|command| &mut command.0) {
        if word == b"{dump}" {
            *word = server.call("DUMP string").as_bytes().to_vec();
        }
    }
    commands
}

/// Has `k` changed in each of these ways, in each form, while somebody waits for it; and once more
/// with a client that asks for it in the same step, which never gets it.
fn check_changes(flavour: Flavour, changes: &[&str], end: End) {
    let server = Server::start(flavour);
    // What comes at a deadline comes by the module's own timer.
    assert_eq!(server.call("DEBUG SET-ACTIVE-EXPIRE 0"), "OK");
    for change in changes {
        for form in Form::ALL {
            // Several commands would not be one step.
            if form == Form::Plain && change.contains(';') {
                continue;
            }
            for newcomer in [None, Some("LOCK.ACQUIRE k c 100000")] {
                prepare(&server, LONG);
                let client = waiter(&server, "b");
                let start = clock_of(&server);
                let mut commands = commands(&server, change, start);
                commands.extend(newcomer.map(ToWords::to_words));
                let mut replies = form.run(&mut server.raw(), &commands);
                let what = format!("{form:?}, {change}, {newcomer:?}: {replies:?}");
                assert_eq!(replies.len(), commands.len(), "{what}");
                if newcomer.is_some() {
                    refused(&replies.pop().unwrap(), end, &what);
                }
                assert!(
                    replies.iter().all(|reply| reply.error_code().is_none()),
                    "{what}"
                );
                ends(&server, client, end, start, &what);
            }
        }
    }
}

/// A client that came later has been refused.
fn refused(reply: &Reply, end: End, what: &str) {
    match end {
        End::WrongType => assert_eq!(reply.error_code(), Some("WRONGTYPE"), "{what}"),
        _ => assert!(reply.is_nil(), "{what}"),
    }
}

/// The wait of `client` as `b` ends as `end` says, after a change that came after `start`.
fn ends(server: &Server, mut client: Raw, end: End, start: i64, what: &str) {
    if let End::Waits | End::WrongType = end {
        refused(&server.call(("LOCK.ACQUIRE", "k", "c", LONG)), end, what);
    }
    if let End::WrongType = end {
        assert_eq!(client.read().error_code(), Some("WRONGTYPE"), "{what}");
        return nobody_waits(server);
    }
    let mut earlier = start * 1_000;
    if let End::GrantedAtLapse = end {
        // A lease lasts through its last millisecond.
        earlier += (BRIEF + 1) * 1_000 - 1;
    }
    if let End::Waits = end {
        assert!(!client.has_reply(), "{what}");
        // All tokens are of one clock, so this one comes between what was before and the grant.
        earlier = server.call(("LOCK.ACQUIRE", "other", "c", LONG)).as_int();
        assert_eq!(server.call("DEL k"), 1, "{what}");
    }
    let token = granted(server, &mut client, "b");
    assert!(token > earlier, "{token} is not after {earlier}: {what}");
    nobody_waits(server);
    assert_eq!(
        server.call(("LOCK.RELEASE", "k", "b", "TOKEN", token)),
        1,
        "{what}"
    );
}

/// Ways for a lock to come free by the module's alarm: what, and the commands that begin it. `{id}`
/// is the first waiter's client.
const ENDS: [(&str, &str); 3] = [
    ("its lease lapses", "PEXPIRE k 1"),
    ("somebody deletes it", "DEL k"),
    (
        "it was granted to a client that is gone",
        "LOCK.RELEASE k a; CLIENT KILL ID {id}",
    ),
];

/// A client that waits for `key`, the `place`th client that waits, and its number.
fn waiter_with_id(server: &Server, place: u64, key: &str, owner: &str, timeout: u64) -> (Raw, i64) {
    let mut client = server.raw();
    let id = client.id();
    client.send(("LOCK.ACQUIRE", key, owner, 100_000, "BLOCK", timeout));
    server.wait_for_blocked(place);
    (client, id)
}

/// Runs `commands`, divided by semicolons, and then a pause, as one step, so that nothing that
/// they bring about comes before the pause.
fn pause_after(server: &Server, commands: &str, pause: &str) {
    let commands: Vec<&str> = commands.split(';').collect();
    let mut request = vec!["MULTI"];
    request.extend(&commands);
    request.extend([pause, "EXEC"]);
    let replies = server.raw().pipeline(request);
    let last = replies.last().unwrap();
    assert_eq!(last.items().len(), commands.len() + 1, "{replies:?}");
    assert_eq!(last.items().last().unwrap(), &"OK", "{replies:?}");
}

on_every_server! {
    /// `redisson#763`, `redisson#5761`, `redisson#4744`, `python-redis-lock#71`: the one who waits
    /// misses that the lock is free. `python-redis-lock#58`: a newcomer overtakes.
    fn a_waiter_is_granted_when_the_lock_is_free(flavour) {
        check_changes(flavour, &RELEASES, End::Granted);
    }

    /// `redisson#3891`: the one who waits is not woken when the lease lapses.
    fn a_waiter_is_granted_when_a_shorter_lease_lapses(flavour) {
        check_changes(flavour, &SHORTER_LEASES, End::GrantedAtLapse);
    }

    fn a_waiter_stays_while_the_key_is_held(flavour) {
        check_changes(flavour, &OTHER_HOLDS, End::Waits);
    }

    fn a_waiter_is_told_when_the_key_is_no_lock_any_more(flavour) {
        check_changes(flavour, &OTHER_TYPES, End::WrongType);
    }

    fn a_waiter_is_not_granted_at_a_deadline_that_was_moved(flavour) {
        let server = Server::start(flavour);
        for (change, end) in LATER_DEADLINES {
            with_time_enough(|ttl| {
                prepare(&server, ttl);
                let deadline = server.call("PEXPIRETIME k").as_int();
                let mut client = server.raw();
                wait_in(&server, &mut client, "b", 0);
                let start = clock_of(&server);
                let step = [change, "LOCK.QUEUE k"].map(ToWords::to_words);
                let replies = Form::Transaction.run(&mut server.raw(), &step);
                let what = format!("{change}: {replies:?}");
                // The change came upon the lock of `a`, and nobody has been granted it since.
                let came_upon_it = match &replies[0] {
                    Reply::Int(number) => *number > 0,
                    reply => !reply.is_nil(),
                };
                let is_in_time = came_upon_it && !replies[1].items().is_empty();
                if is_in_time {
                    wait_until("the old deadline to be over", || clock_of(&server) > deadline + 2);
                    ends(&server, client, end, start, &what);
                }
                is_in_time
            });
        }
    }

    /// `redisson#3891`: nobody ever releases the lock.
    fn a_queue_moves_on_by_itself_when_every_lease_lapses(flavour) {
        let server = Server::start(flavour);
        assert_eq!(server.call("DEBUG SET-ACTIVE-EXPIRE 0"), "OK");
        take(&server);
        let mut clients = ["b", "c", "d", "e"].map(|owner| {
            let mut client = server.raw();
            client.send(("LOCK.ACQUIRE", "k", owner, BRIEF, "BLOCK", 0));
            wait_until("the client to wait", || queue(&server).iter().any(|other| other == owner));
            client
        });
        let mut earlier = clock_of(&server) * 1_000;
        assert_eq!(server.call("LOCK.RENEW k a 20"), 1);
        for client in &mut clients {
            let token = client.read().as_int();
            assert!(token > earlier + BRIEF * 1_000, "{token} is not after {earlier}");
            // A lease begins in the millisecond of its token.
            earlier = token - token % 1_000;
        }
        assert_eq!(server.info_number("lock", "lock_expiries_with_waiters"), 4);
        nobody_waits(&server);
    }

    /// There is no moment at which the lock is free, also for whoever reads from a replica.
    fn a_release_is_the_next_grant(flavour) {
        let server = Server::start(flavour);
        take(&server);
        let mut client = waiter(&server, "b");
        let mut stream = server.replication_stream();
        assert_eq!(server.call("LOCK.RELEASE k a"), 1);
        let record = server.call("GET k");
        let token = granted(&server, &mut client, "b");
        let writes = stream.writes(&server);
        let write = format!("SET k {} PXAT {}", record.as_text(), token / 1_000 + LONG);
        assert_eq!(writes, [write.as_str()]);
    }

    fn every_database_has_queues_of_its_own(flavour) {
        let server = Server::start(flavour);
        take(&server);
        let mut here = waiter(&server, "b");
        let [mut there, mut holder] = [(); 2].map(|()| {
            let mut client = server.raw();
            assert_eq!(client.call("SELECT 1"), "OK");
            client
        });
        assert!(holder.call(("LOCK.ACQUIRE", "k", "c", LONG)).as_int() > 0);
        there.send(("LOCK.ACQUIRE", "k", "d", LONG, "BLOCK", 0));
        server.wait_for_blocked(2);
        assert_eq!(holder.call("DEL k"), 1);
        let token = there.read().as_int();
        assert_eq!(holder.call(("LOCK.RELEASE", "k", "d", "TOKEN", token)), 1);
        assert!(!here.has_reply());
        assert_eq!(server.call("DEL k"), 1);
        granted(&server, &mut here, "b");
        nobody_waits(&server);
    }

    fn a_waiter_is_granted_when_the_lock_is_evicted(flavour) {
        let server = Server::build(flavour).config("maxmemory-policy", "volatile-ttl").start();
        // The lock goes first because its lease is the shorter one, but only with the large key is
        // it enough: what is granted then is not evicted.
        server.raw().pipeline(["SETRANGE large 5000000 x", "PEXPIRE large 1000000"]);
        take(&server);
        let mut client = waiter(&server, "b");
        let limit = server.info_number("memory", "used_memory") - 1_000_000;
        assert_eq!(server.call(("CONFIG", "SET", "maxmemory", limit)), "OK");
        granted(&server, &mut client, "b");
        nobody_waits(&server);
        assert_eq!(server.info_number("stats", "evicted_keys"), 2);
    }

    fn a_waiter_stays_when_the_server_loads_the_same_keys_again(flavour) {
        let server = Server::start(flavour);
        take(&server);
        let client = waiter(&server, "b");
        assert_eq!(server.call("DEBUG RELOAD"), "OK");
        ends(&server, client, End::Waits, 0, "DEBUG RELOAD");
    }

    fn a_waiter_is_granted_when_the_server_loads_keys_without_the_lock(flavour) {
        let server = Server::start(flavour);
        assert_eq!(server.call("SAVE"), "OK");
        take(&server);
        let client = waiter(&server, "b");
        assert_eq!(server.call("DEBUG RELOAD NOSAVE"), "OK");
        ends(&server, client, End::Granted, 0, "DEBUG RELOAD");
    }

    fn a_waiter_is_told_when_the_server_loads_another_key(flavour) {
        let server = Server::start(flavour);
        server.raw().pipeline(["RPUSH k v", "SAVE", "DEL k"]);
        take(&server);
        let mut client = waiter(&server, "b");
        assert_eq!(server.call("DEBUG RELOAD MERGE NOFLUSH NOSAVE"), "OK");
        assert_eq!(client.read().error_code(), Some("WRONGTYPE"));
        nobody_waits(&server);
    }

    fn a_waiter_is_granted_when_the_key_goes_to_another_server(flavour) {
        let (server, target) = (Server::start(flavour), Server::start(flavour));
        take(&server);
        let record = server.snapshot();
        let client = waiter(&server, "b");
        let migrate = format!("MIGRATE 127.0.0.1 {} k 0 10000", target.port());
        assert_eq!(server.call(migrate), "OK");
        ends(&server, client, End::Granted, 0, "MIGRATE");
        assert_eq!(target.snapshot().get(0, "k").unwrap().value, record.get(0, "k").unwrap().value);
    }

    /// While the server is paused nothing may be written: it aborts when something is. Expiry
    /// stands still then too, so a key that has lapsed looks free but is still there.
    fn nothing_is_granted_while_the_server_is_paused(flavour) {
        for (what, commands) in ENDS {
            let server = Server::build(flavour).aof().start();
            assert!(server.call("LOCK.ACQUIRE k a 100000").as_int() > 0);
            assert!(server.call("LOCK.ACQUIRE other a 100000").as_int() > 0);
            let (first, id) = waiter_with_id(&server, 1, "k", "b", 0);
            let (second, _) = waiter_with_id(&server, 2, "k", "c", 0);
            // Its time-out shows that the alarm went off, when all else that was due has been done.
            let (mut alarm, _) = waiter_with_id(&server, 3, "other", "d", 300);
            let commands = commands.replace("{id}", &id.to_string());
            let is_killed = commands.contains("KILL");
            pause_after(&server, &commands, "CLIENT PAUSE 100000 WRITE");

            assert!(alarm.read().is_nil(), "{what}");
            assert_eq!(server.call("PING"), "PONG", "{what}");
            let mut next = if is_killed { second } else { first };
            assert!(!next.has_reply(), "{what}");
            assert_eq!(server.call("CLIENT UNPAUSE"), "OK");
            let token = next.read().as_int();
            assert_eq!(*server.call("LOCK.INFO k").field("token"), token, "{what}");
            let owner = if is_killed { "c" } else { "b" };
            assert_eq!(server.call(("LOCK.RELEASE", "k", owner, "TOKEN", token)), 1, "{what}");
        }
    }

    /// `CLIENT PAUSE ALL` stops even the command that would end it.
    fn nothing_is_granted_while_all_is_paused(flavour) {
        for (what, commands) in ENDS {
            let server = Server::build(flavour).aof().start();
            assert!(server.call("LOCK.ACQUIRE k a 100000").as_int() > 0);
            let (mut first, id) = waiter_with_id(&server, 1, "k", "b", 0);
            let (mut second, _) = waiter_with_id(&server, 2, "k", "c", 0);
            let commands = commands.replace("{id}", &id.to_string());
            pause_after(&server, &commands, "CLIENT PAUSE 100 ALL");
            let next = if commands.contains("KILL") { &mut second } else { &mut first };
            let token = next.read().as_int();
            assert_eq!(*server.call("LOCK.INFO k").field("token"), token, "{what}");
        }
    }

    /// A server that ends waits for its replicas to catch up, and is paused for that time.
    fn a_lease_may_lapse_while_the_server_shuts_down(flavour) {
        let server = Server::build(flavour).config("shutdown-timeout", "1").start();
        // A replica that never says how far it is.
        let stream = server.replication_stream();
        assert!(server.call("LOCK.ACQUIRE k a 100000").as_int() > 0);
        let (first, _) = waiter_with_id(&server, 1, "k", "b", 0);
        let mut client = server.raw();
        client.send("PEXPIRE k 100");
        client.send("SHUTDOWN NOSAVE");
        let stopped = server.wait_for_end();
        assert!(stopped.status().success(), "{:?}", stopped.status());
        assert!(!stopped.log().contains("ASSERTION FAILED"));
        first.wait_until_closed();
        drop(stream);
    }

    /// Servers tell of a change of a key while the command that made it still uses the value that it
    /// wrote: a module that reads the value then has the server replace it. What the server keeps,
    /// writes down and answers is all the same what the client sent.
    fn a_command_that_changes_a_contended_key_keeps_its_value(flavour) {
        for change in [
            "SET k value",
            "SET k value KEEPTTL",
            "SET k value PX 100000",
            "SETEX k 100 value",
            "MSET k value other value",
            "APPEND other value;RENAME other k",
            "SET other value;COPY other k REPLACE",
        ] {
            for mode in ["", "SHARED"] {
                let server = Server::build(flavour).aof().overwriting_freed_memory().start();
                server.call(format!("LOCK.ACQUIRE k a 100000 {mode}"));
                let _client = waiter(&server, "b");
                for command in change.split(';') {
                    server.call(command);
                }
                let what = format!("{mode} {change}");
                assert_eq!(server.call("GET k"), "value", "{what}");
                let commands = server.aof_commands();
                let is_kept = commands.iter().any(|command| command.contains(&b"value".to_vec()));
                assert!(is_kept, "{what}: {commands:?}");
                assert_eq!(server.call("DEBUG LOADAOF"), "OK", "{what}");
                assert_eq!(server.call("GET k"), "value", "{what}");
            }
        }
    }

    /// The alarm of a paused server does not keep the module from being unloaded afterwards.
    fn no_alarm_is_left_of_a_pause(flavour) {
        let server = Server::build(flavour).aof().start();
        assert!(server.call("LOCK.ACQUIRE k a 100000").as_int() > 0);
        let (mut first, _) = waiter_with_id(&server, 1, "k", "b", 0);
        pause_after(&server, "DEL k", "CLIENT PAUSE 50 WRITE");
        assert!(first.read().as_int() > 0);
        unload(&server);
    }
}
