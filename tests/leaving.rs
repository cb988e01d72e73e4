//! A waiter that leaves, in whatever way, takes nothing with it and leaves nothing behind.

use crate::harness::{Flavour, Raw, Reply, Server, on_every_server, wait_until};
use crate::waiters::{
    LONG, clear, granted, nobody_waits, queue, take, unload, wait_in, waiter, with_time_enough,
};

/// How a client leaves the queue, and what it is told: nil, an error, or nothing any more.
const WAYS: [(&str, Option<&str>); 6] = [
    (TIME_OUT, Some("nil")),
    ("CLIENT UNBLOCK {id}", Some("nil")),
    ("CLIENT UNBLOCK {id} TIMEOUT", Some("nil")),
    ("CLIENT UNBLOCK {id} ERROR", Some("UNBLOCKED")),
    ("CLIENT KILL ID {id}", None),
    (HANG_UP, None),
];
const TIME_OUT: &str = "its time is over";
const HANG_UP: &str = "it hangs up";

/// Has `client`, which waits, leave.
fn leave(server: &Server, mut client: Raw, id: i64, (way, told): (&str, Option<&str>)) {
    match way {
        TIME_OUT => {}
        HANG_UP => return client.close(),
        _ => assert_eq!(
            server.call(way.replace("{id}", &id.to_string())),
            1,
            "{way}"
        ),
    }
    match told {
        None => return client.wait_until_closed(),
        Some("nil") => assert!(client.read().is_nil(), "{way}"),
        Some(code) => assert_eq!(client.read().error_code(), Some(code), "{way}"),
    }
    assert_eq!(client.call("PING"), "PONG", "{way}");
}

/// Clients that wait for `k` as `b` and `c`, while `a` holds it, and the number of the first.
fn contended(server: &Server) -> (Raw, Raw, i64) {
    take(server);
    let mut first = server.raw();
    let id = first.id();
    wait_in(server, &mut first, "b", 0);
    (first, waiter(server, "c"), id)
}

/// Releases `k`, which `a` holds, and kills the client that it is granted to before it is told.
fn release_and_kill(server: &Server, id: i64) {
    let kill = format!("CLIENT KILL ID {id}");
    let replies = server.raw().pipeline(["LOCK.RELEASE k a", &kill]);
    assert_eq!(replies, [Reply::Int(1), Reply::Int(1)]);
}

/// Releases `k` and makes sure that nothing of it is left.
fn release_last(server: &Server, owner: &str) {
    assert_eq!(server.call(("LOCK.RELEASE", "k", owner)), 1);
    assert_eq!(server.dbsize(), 0);
    nobody_waits(server);
}

/// Lets `width` clients wait at a time: `rounds` times until their time is over, as often until
/// they are granted, and as often until they hang up.
fn waits(server: &Server, width: u64, rounds: i32) {
    let clients = || (0..width).map(|_| server.raw()).collect::<Vec<Raw>>();
    take(server);
    let mut waiting = clients();
    for client in &mut waiting {
        for _ in 0..rounds {
            client.send(("LOCK.ACQUIRE", "k", "b", LONG, "BLOCK", 1));
        }
    }
    for client in &mut waiting {
        (0..rounds).for_each(|_| assert!(client.read().is_nil()));
    }
    for (number, client) in waiting.iter_mut().enumerate() {
        for _ in 0..rounds {
            client.send(("LOCK.ACQUIRE", "k", number, LONG, "BLOCK", 0));
            client.send(("LOCK.RELEASE", "k", number));
        }
    }
    server.wait_for_blocked(width);
    assert_eq!(server.call("LOCK.RELEASE k a"), 1);
    for client in &mut waiting {
        for _ in 0..rounds {
            assert!(client.read().as_int() > 0);
            assert_eq!(client.read(), 1);
        }
    }
    take(server);
    for _ in 0..rounds {
        waiting = clients();
        for (number, client) in waiting.iter_mut().enumerate() {
            client.send(("LOCK.ACQUIRE", "k", number, LONG, "BLOCK", 0));
        }
        server.wait_for_blocked(width);
        waiting.drain(..).for_each(Raw::close);
        server.wait_for_blocked(0);
    }
    release_last(server, "a");
    wait_until("the connections to end", || {
        server.info_number("clients", "connected_clients") == 1
    });
}

on_every_server! {
    /// `redisson#2883`, `redisson#5019`, `redisson#2278`: the queue waits for one that is dead.
    fn a_waiter_may_leave_from_any_place(flavour) {
        const OWNERS: [&str; 3] = ["b", "c", "d"];
        let server = Server::start(flavour);
        for (way, place) in WAYS.into_iter().flat_map(|way| [0, 1, 2].map(|place| (way, place))) {
            with_time_enough(|time| {
                clear(&server);
                take(&server);
                let mut clients = Vec::from(OWNERS.map(|owner| (owner, server.raw())));
                let id = clients[place].1.id();
                for (index, (owner, client)) in clients.iter_mut().enumerate() {
                    let timeout = if index == place && way.0 == TIME_OUT { time } else { 0 };
                    wait_in(&server, client, owner, timeout);
                }
                if queue(&server) != OWNERS {
                    assert_eq!(way.0, TIME_OUT);
                    return false;
                }
                let (_, leaver) = clients.remove(place);
                leave(&server, leaver, id, way);
                let owners = [clients[0].0, clients[1].0];
                wait_until("it to be gone", || queue(&server) == owners);
                let mut holder = "a";
                for (owner, client) in &mut clients {
                    assert_eq!(server.call(("LOCK.RELEASE", "k", holder)), 1);
                    granted(&server, client, owner);
                    holder = owner;
                }
                release_last(&server, holder);
                true
            });
        }
        unload(&server);
    }

    /// There is no moment at which a connection that ends leaves something behind.
    fn a_client_may_hang_up_at_any_moment(flavour) {
        let server = Server::start(flavour);
        take(&server);
        let mut kept = Vec::new();
        for round in 0..400 {
            let mut client = server.raw();
            // Who is told that it has the lock keeps it up to the end of its lease.
            client.send(("LOCK.ACQUIRE", "k", round, 1, "BLOCK", 0));
            match round % 5 {
                0 => kept.push(client),
                1 => client.close(),
                2 => {
                    client.send("PING");
                    client.close();
                }
                3 => {
                    server.call("PING");
                    client.close();
                }
                _ => {
                    server.call("DEL k");
                    client.close();
                }
            }
        }
        kept.into_iter().for_each(Raw::close);
        let mut client = waiter(&server, "b");
        granted(&server, &mut client, "b");
        release_last(&server, "b");
        unload(&server);
    }

    fn all_waiters_may_be_killed_at_once(flavour) {
        let server = Server::start(flavour);
        take(&server);
        let owners = (0..100).map(|number| number.to_string());
        let clients: Vec<Raw> = owners.map(|owner| waiter(&server, &owner)).collect();
        assert_eq!(server.call("CLIENT KILL TYPE normal"), 100);
        nobody_waits(&server);
        clients.into_iter().for_each(Raw::wait_until_closed);
        release_last(&server, "a");
        unload(&server);
    }

    fn a_grant_to_a_client_that_is_killed_in_the_same_turn_goes_to_the_next(flavour) {
        let server = Server::start(flavour);
        let (first, mut second, id) = contended(&server);
        release_and_kill(&server, id);
        first.wait_until_closed();
        let token = second.read().as_int();
        assert_eq!(*server.call("LOCK.INFO k").field("token"), token);
        release_last(&server, "c");
        unload(&server);
    }

    fn a_grant_to_a_client_that_is_killed_in_the_same_turn_ends_when_nobody_else_waits(flavour) {
        let server = Server::start(flavour);
        take(&server);
        let mut client = server.raw();
        let id = client.id();
        wait_in(&server, &mut client, "b", 0);
        release_and_kill(&server, id);
        client.wait_until_closed();
        unload(&server);
        assert_eq!(server.dbsize(), 0);
    }

    /// Whichever of the two comes first, the client is told, and what it is told is so.
    ///
    /// Redis 7.0 itself answers nothing when `CLIENT UNBLOCK` without an error finds a client that
    /// the module unblocked in the same turn: it asks the module for the answer only to a handle
    /// that is still blocked, and then takes the client for answered. So there the client is not
    /// told, but the lock is not its own either, and its connection goes on.
    fn a_grant_and_client_unblock_in_the_same_turn_agree(flavour) {
        for form in ["TIMEOUT", "ERROR"] {
            let server = Server::start(flavour);
            let (mut first, mut second, id) = contended(&server);
            let unblock = format!("CLIENT UNBLOCK {id} {form}");
            let replies = server.raw().pipeline(["LOCK.RELEASE k a", &unblock]);
            assert_eq!(replies[0], 1, "{form}");
            let is_silent = flavour == Flavour::Redis70 && form == "TIMEOUT" && replies[1] == 1;
            if !is_silent && let Reply::Int(token) = first.read() {
                assert_eq!(server.call(("LOCK.RELEASE", "k", "b", "TOKEN", token)), 1, "{form}");
            }
            // There is one reply and not two.
            assert_eq!(first.call("PING"), "PONG", "{form}");
            granted(&server, &mut second, "c");
            release_last(&server, "c");
            unload(&server);
        }
    }

    /// What a connection is told to forget is not the lock, which belongs to an owner.
    fn a_reset_waits_for_its_turn_and_leaves_the_grant(flavour) {
        let server = Server::start(flavour);
        take(&server);
        let mut client = waiter(&server, "b");
        client.send("RESET");
        assert_eq!(server.call("LOCK.RELEASE k a"), 1);
        let token = granted(&server, &mut client, "b");
        assert_eq!(client.read(), "RESET");
        assert_eq!(*server.call("LOCK.INFO k").field("token"), token);
        release_last(&server, "b");
    }

    fn all_waiters_are_sent_away_when_the_server_becomes_a_replica(flavour) {
        let server = Server::start(flavour);
        let (first, second, _) = contended(&server);
        assert!(server.call(("LOCK.ACQUIRE", "l", "a", LONG)).as_int() > 0);
        let mut third = server.raw();
        third.send(("LOCK.ACQUIRE", "l", "b", LONG, "BLOCK", 0));
        server.wait_for_blocked(3);
        let keys = server.snapshot();
        // Nobody listens there.
        assert_eq!(server.call("REPLICAOF 127.0.0.1 1"), "OK");
        for mut client in [first, second, third] {
            assert_eq!(client.read().error_code(), Some("UNBLOCKED"));
            client.wait_until_closed();
        }
        nobody_waits(&server);
        assert_eq!(server.snapshot(), keys);
        assert_eq!(server.call("REPLICAOF NO ONE"), "OK");
        let mut client = waiter(&server, "d");
        assert_eq!(server.call("LOCK.RELEASE k a"), 1);
        granted(&server, &mut client, "d");
        unload(&server);
    }

    /// A replica writes nothing of its own accord, not even to give back what was granted to a
    /// client that it then sent away: its key is that of its primary.
    fn a_grant_just_before_the_server_becomes_a_replica_stays_as_it_is(flavour) {
        let server = Server::start(flavour);
        take(&server);
        let mut client = waiter(&server, "b");
        // Nobody listens there, so nothing comes from the primary either.
        let replies =
            server.raw().pipeline(["LOCK.RELEASE k a", "GET k", "REPLICAOF 127.0.0.1 1"]);
        assert_eq!((&replies[0], &replies[2]), (&Reply::Int(1), &Reply::ok()));
        assert_eq!(client.read().error_code(), Some("UNBLOCKED"));
        unload(&server);
        assert!(!replies[1].is_nil());
        assert_eq!(server.call("GET k"), replies[1]);
    }

    /// The same for what was to be given back when a pause is over.
    fn a_hold_that_is_to_be_given_back_stays_when_the_server_becomes_a_replica(flavour) {
        let server = Server::start(flavour);
        take(&server);
        let mut client = server.raw();
        let id = client.id();
        wait_in(&server, &mut client, "b", 0);
        let kill = format!("CLIENT KILL ID {id}");
        let pause = "CLIENT PAUSE 100000 WRITE";
        server.raw().pipeline(["MULTI", "LOCK.RELEASE k a", &kill, pause, "EXEC"]);
        client.wait_until_closed();
        let record = server.call("GET k");
        // Nobody listens there.
        assert_eq!(server.call("REPLICAOF 127.0.0.1 1"), "OK");
        assert_eq!(server.call("CLIENT UNPAUSE"), "OK");
        unload(&server);
        assert!(!record.is_nil());
        assert_eq!(server.call("GET k"), record);
    }

    /// Locks that are held need no module, only those that somebody waits for do.
    fn the_module_is_unloaded_when_nobody_waits_any_more(flavour) {
        let server = Server::start(flavour);
        let modules = server.call("MODULE LIST");
        let module = modules.items().iter().find(|module| *module.field("name") == "lock").unwrap();
        take(&server);
        let (mut first, mut second) = (server.raw(), server.raw());
        let id = second.id();
        wait_in(&server, &mut first, "b", 0);
        wait_in(&server, &mut second, "c", 0);
        for _ in 0..2 {
            assert_eq!(server.call("MODULE UNLOAD lock").error_code(), Some("ERR"));
        }
        assert_eq!(queue(&server), ["b", "c"]);
        assert_eq!(server.call("LOCK.RELEASE k a"), 1);
        granted(&server, &mut first, "b");
        assert_eq!(server.call("MODULE UNLOAD lock").error_code(), Some("ERR"));
        assert_eq!(server.call(("CLIENT", "UNBLOCK", id)), 1);
        assert!(second.read().is_nil());
        unload(&server);
        assert_eq!(server.call(("MODULE", "LOAD", module.field("path").as_text())), "OK");
        assert_eq!(server.call("LOCK.INFO k").field("owners").items()[0], "b");
    }

    fn a_server_with_waiters_shuts_down(flavour) {
        let server = Server::build(flavour).aof().start();
        let (first, second, _) = contended(&server);
        let keys = server.snapshot();
        server.raw().send("SHUTDOWN");
        let stopped = server.wait_for_end();
        assert!(stopped.status().success(), "{:?}", stopped.status());
        first.wait_until_closed();
        second.wait_until_closed();
        let server = stopped.start();
        assert_eq!(server.snapshot(), keys);
        nobody_waits(&server);
    }

    /// `redisson#6510`, `redisson#4620`: what locks leave behind fills the memory.
    fn memory_is_back_when_thousands_have_waited(flavour) {
        let server = Server::build(flavour).config("slowlog-log-slower-than", "-1").start();
        // The server has two clients of its own for each that a module blocks, and frees all but
        // eight of them when it has not needed them for some time.
        waits(&server, 4, 2);
        let before = server.info_number("memory", "used_memory");
        waits(&server, 25, 70);
        // Less than two bytes for each.
        wait_until("the memory to be freed", || {
            server.info_number("memory", "used_memory") <= before + 8 * 1024
        });
        nobody_waits(&server);
        assert_eq!(server.dbsize(), 0);
        unload(&server);
    }
}
