//! Locks over a quorum, when all goes well: what each command answers, and what the nodes store.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use crate::harness::{Flavour, Quorum, Raw, Reply, Server, on_every_server, wait_until};
use crate::waiters::LONG;

/// The longest validity that a grant of [`LONG`] can have.
pub(crate) const LONGEST: i64 = LONG - (LONG / 100 + 2);

/// Asks a node for `k`.
pub(crate) fn ask(node: &Server, owner: &str) -> Reply {
    node.call(("LOCK.QACQUIRE", "k", owner, LONG))
}

/// Takes `k`, which is free, and returns the token.
pub(crate) fn take(node: &Server, owner: &str) -> i64 {
    token(&ask(node, owner))
}

/// The token of a grant.
pub(crate) fn token(grant: &Reply) -> i64 {
    match grant {
        Reply::Array(items) if items.len() == 2 && items[1].as_int() > 0 => items[0].as_int(),
        other => panic!("{other:?} is no grant"),
    }
}

/// By which token a node has `k` for this owner.
pub(crate) fn held(node: &Server, owner: &str) -> Option<i64> {
    let info = node.call("LOCK.INFO k");
    let mut grants = info.field("grants").items().iter();
    let grant = grants.find(|grant| *grant.field("owner") == *owner)?;
    Some(grant.field("token").as_int())
}

/// Waits until all these nodes have `k` for this owner by this token.
pub(crate) fn wait_held(nodes: &[Server], owner: &str, token: i64) {
    wait_until("the token on every node", || {
        nodes.iter().all(|node| held(node, owner) == Some(token))
    });
}

/// Waits until a majority of these nodes has `k` for this owner by this token. A node that had not
/// heard of the release of another owner yet does not have it.
pub(crate) fn wait_held_by_most(nodes: &[Server], owner: &str, token: i64) {
    wait_until("the token on a majority", || {
        let has = |node: &&Server| held(node, owner) == Some(token);
        nodes.iter().filter(has).count() > nodes.len() / 2
    });
}

/// Waits until `k` is free on all these nodes.
pub(crate) fn wait_free(nodes: &[Server]) {
    wait_until("no node to have the lock", || {
        nodes.iter().all(|node| node.call("EXISTS k") == 0)
    });
}

/// Waits until a node has so many requests under way.
pub(crate) fn wait_asking(node: &Server, clients: u64) {
    wait_until("the requests to be under way", || {
        node.info_number("lock", "lock_quorum_waiting") == clients
    });
}

/// Runs a command that grants or renews for [`LONG`], and checks the validity that `of` finds in
/// its answer.
fn checked(run: impl FnOnce() -> Reply, of: impl FnOnce(&Reply) -> i64) -> Reply {
    let start = Instant::now();
    let reply = run();
    let elapsed = i64::try_from(start.elapsed().as_micros().div_ceil(1_000)).unwrap();
    let validity = of(&reply);
    assert!(
        (LONGEST - elapsed..=LONGEST).contains(&validity),
        "{validity} after {elapsed}"
    );
    reply
}

/// Takes a lock, releases it and takes it again, through a different node every time.
fn there_and_back(quorum: &Quorum) {
    let mut last = 0;
    for (index, node) in quorum.iter().enumerate() {
        let next = &quorum[(index + 1) % quorum.len()];
        let grant = checked(|| ask(node, "o"), |grant| grant.items()[1].as_int());
        let token = token(&grant);
        assert!(token > last, "{token} after {last}");
        last = token;
        wait_held(quorum, "o", token);
        assert!(ask(next, "x").is_nil());
        // The owner has no second hold.
        assert!(ask(next, "o").is_nil());
        wait_held(quorum, "o", token);
        checked(
            || next.call(("LOCK.QRENEW", "k", "o", LONG, "TOKEN", token)),
            Reply::as_int,
        );
        assert_eq!(next.call(("LOCK.QRELEASE", "k", "o", "TOKEN", token)), 1);
        wait_free(quorum);
    }
}

on_every_server! {
    fn a_free_lock_is_granted_on_every_node_under_one_rising_token(flavour) {
        there_and_back(&Quorum::start(flavour, 5));
    }

    fn a_quorum_can_have_one_node_or_any_other_number(flavour) {
        for count in [1, 2, 3, 4] {
            there_and_back(&Quorum::start(flavour, count));
        }
    }

    fn a_held_lock_is_tried_for_until_it_is_released(flavour) {
        let quorum = Quorum::start(flavour, 3);
        for timeout in [0, 100_000] {
            let first = take(&quorum[0], "a");
            let mut client = quorum[1].raw();
            client.send(("LOCK.QACQUIRE", "k", "b", LONG, "BLOCK", timeout));
            wait_asking(&quorum[1], 1);
            // Others see through the same coordinator that it is still held.
            assert!(ask(&quorum[1], "c").is_nil());
            assert!(!client.has_reply());
            assert_eq!(quorum[0].call("LOCK.QRELEASE k a"), 1);
            let second = token(&client.read());
            assert!(second > first);
            wait_held_by_most(&quorum, "b", second);
            assert_eq!(quorum[2].call("LOCK.QRELEASE k b"), 1);
            wait_free(&quorum);
        }
    }

    /// They take room that others who wait on this server have then no more.
    fn who_waits_for_a_quorum_counts_as_a_waiter(flavour) {
        let quorum = Quorum::start(flavour, 3);
        let node = &quorum[0];
        let token = take(&quorum[1], "a");
        wait_held(&quorum, "a", token);
        assert!(node.call("LOCK.ACQUIRE own a 100000").as_int() > 0);
        assert_eq!(node.call("CONFIG SET lock.max-waiters 2"), "OK");
        let mut remote = node.raw();
        remote.send(("LOCK.QACQUIRE", "k", "b", LONG, "BLOCK", 0));
        wait_asking(node, 1);
        let mut local = node.raw();
        local.send("LOCK.ACQUIRE own b 100000 BLOCK 0");
        node.wait_for_blocked(2);
        let full = "QUEUEFULL as many clients wait as lock.max-waiters allows";
        for command in ["LOCK.QACQUIRE k c 100000 BLOCK 0", "LOCK.ACQUIRE own c 100000 BLOCK 0"] {
            assert_eq!(node.call(command), Reply::Error(full.to_owned()), "{command}");
        }
        assert_eq!(node.info_number("lock", "lock_queue_full"), 2);
        // Who does not wait for a lock is not refused.
        assert!(node.call("LOCK.QACQUIRE k c 100000").is_nil());
        assert!(node.call("LOCK.QRENEW k a 100000").as_int() > 0);
        // Whoever is gone or answered leaves room.
        remote.close();
        wait_asking(node, 0);
        assert!(node.call("LOCK.QACQUIRE k c 100000 BLOCK 1").is_nil());
        assert!(node.call("LOCK.QACQUIRE k c 100000 BLOCK 1").is_nil());
        assert_eq!(node.call("LOCK.RELEASE own a"), 1);
        assert!(local.read().as_int() > 0);
        let mut both = [node.raw(), node.raw()];
        for client in &mut both {
            client.send(("LOCK.QACQUIRE", "k", "*", LONG, "BLOCK", 0));
        }
        wait_asking(node, 2);
        assert_eq!(node.call("LOCK.QACQUIRE k c 100000 BLOCK 0"), Reply::Error(full.to_owned()));
    }

    fn who_waits_in_vain_gets_nothing_and_leaves_nothing(flavour) {
        let quorum = Quorum::start(flavour, 3);
        let token = take(&quorum[0], "a");
        let start = Instant::now();
        assert!(quorum[1].call(("LOCK.QACQUIRE", "k", "b", LONG, "BLOCK", 60)).is_nil());
        assert!(start.elapsed().as_millis() >= 60);
        assert_eq!(quorum[1].info_number("lock", "lock_quorum_waiting"), 0);
        wait_held(&quorum, "a", token);
        assert_eq!(quorum[2].call("LOCK.QRELEASE k a"), 1);
        wait_free(&quorum);
    }

    fn readers_hold_side_by_side_and_keep_writers_out(flavour) {
        let quorum = Quorum::start(flavour, 5);
        let shared = |node: &Server, owner: &str| {
            token(&node.call(("LOCK.QACQUIRE", "k", owner, LONG, "SHARED")))
        };
        let (first, second) = (shared(&quorum[0], "r1"), shared(&quorum[1], "r2"));
        wait_held(&quorum, "r1", first);
        wait_held(&quorum, "r2", second);
        assert!(ask(&quorum[2], "w").is_nil());
        assert!(quorum[3].call(("LOCK.QRENEW", "k", "r1", LONG)).as_int() > 0);
        assert_eq!(quorum[4].call("LOCK.QRELEASE k r1"), 1);
        wait_until("one reader on every node", || {
            quorum.iter().all(|node| held(node, "r1").is_none())
        });
        wait_held(&quorum, "r2", second);
        assert!(ask(&quorum[2], "w").is_nil());
        assert_eq!(quorum[4].call("LOCK.QRELEASE k r2"), 1);
        wait_free(&quorum);
        let writer = take(&quorum[2], "w");
        assert!(writer > first.max(second));
        wait_held(&quorum, "w", writer);
        assert!(quorum[0].call(("LOCK.QACQUIRE", "k", "r1", LONG, "SHARED")).is_nil());
        wait_held(&quorum, "w", writer);
    }

    fn an_owner_is_made_for_who_wants_one(flavour) {
        let quorum = Quorum::start(flavour, 3);
        let reply = ask(&quorum[0], "*");
        let [token, validity, owner] = reply.items() else {
            panic!("{reply:?}");
        };
        assert!((1..=LONGEST).contains(&validity.as_int()));
        let owner = owner.as_text();
        assert_eq!(owner.len(), 36, "{owner}");
        wait_held(&quorum, owner, token.as_int());
        assert!(ask(&quorum[1], "*").is_nil());
        assert_eq!(quorum[1].call(("LOCK.QRELEASE", "k", owner)), 1);
        wait_free(&quorum);
    }

    fn renewals_and_releases_tell_who_holds(flavour) {
        let quorum = Quorum::start(flavour, 3);
        let renew = |owner: &str| quorum[1].call(("LOCK.QRENEW", "k", owner, LONG));
        assert_eq!(renew("o"), -1);
        assert_eq!(quorum[2].call("LOCK.QRELEASE k o"), -1);
        let token = take(&quorum[0], "o");
        wait_held(&quorum, "o", token);
        assert_eq!(renew("x"), 0);
        assert_eq!(quorum[2].call("LOCK.QRELEASE k x"), 0);
        for stale in [token - 1, token + 1] {
            assert_eq!(quorum[1].call(("LOCK.QRENEW", "k", "o", LONG, "TOKEN", stale)), 0);
            assert_eq!(quorum[1].call(("LOCK.QRELEASE", "k", "o", "TOKEN", stale)), 0);
        }
        wait_held(&quorum, "o", token);
        assert!(renew("o").as_int() > 0);
        assert_eq!(quorum[1].call(("LOCK.QRELEASE", "k", "o", "TOKEN", token)), 1);
        assert_eq!(quorum[1].call(("LOCK.QRELEASE", "k", "o", "TOKEN", token)), -1);
        wait_free(&quorum);
    }

    fn what_a_quorum_cannot_do_is_told(flavour) {
        let alone = Server::start(flavour);
        for command in ["LOCK.QACQUIRE k o 1000", "LOCK.QRENEW k o 1000", "LOCK.QRELEASE k o", "LOCK.QINFO k"]
        {
            let error = "ERR lock.quorum-nodes is not set";
            assert_eq!(alone.call(command), Reply::Error(error.to_owned()), "{command}");
        }
        let quorum = Quorum::start(flavour, 3);
        let node = &quorum[0];
        for (command, error) in [
            ("LOCK.QACQUIRE k o 100000 LIMIT 2", "ERR LIMIT can't be kept over a quorum"),
            ("LOCK.QACQUIRE k o 1000001", "ERR ttl is longer than lock.quorum-max-ttl allows"),
            ("LOCK.QRENEW k o 1000001", "ERR ttl is longer than lock.quorum-max-ttl allows"),
            ("LOCK.QACQUIRE k o 2", "ERR ttl is too short for a quorum"),
            ("LOCK.QRENEW k o 2", "ERR ttl is too short for a quorum"),
        ] {
            let reply = node.call(command);
            assert!(matches!(&reply, Reply::Error(text) if text.starts_with(error)), "{reply:?}");
        }
        for command in
            ["LOCK.QACQUIRE k o 100000", "LOCK.QRENEW k o 100000", "LOCK.QRELEASE k o", "LOCK.QINFO k"]
        {
            let error = "ERR a quorum can't be asked in a transaction or a script";
            let replies = node.raw().pipeline(["MULTI", command, "EXEC"]);
            assert_eq!(replies[2].items()[0], Reply::Error(error.to_owned()), "{command}");
            let words: Vec<String> =
                command.split(' ').map(|word| format!("'{word}'")).collect();
            let script = format!("return redis.call({})", words.join(","));
            let reply = node.call(("EVAL", script.as_str(), 0));
            assert!(matches!(&reply, Reply::Error(text) if text.contains(&error[4..])), "{reply:?}");
        }
        for node in quorum.iter() {
            assert_eq!(node.dbsize(), 0);
            assert_eq!(node.info_number("lock", "lock_votes"), 0);
        }
    }

    fn what_the_nodes_say_is_shown(flavour) {
        let mut quorum = Quorum::start(flavour, 3);
        let mut clients = [quorum[0].raw(), quorum[0].raw_resp3()];
        for client in &mut clients {
            let info = client.call("LOCK.QINFO k");
            assert_eq!(*info.field("state"), *"free");
            assert!(info.field("mode").is_nil());
            assert!(info.field("owners").items().is_empty());
            assert!(info.field("token").is_nil());
            assert_eq!(info.field("ttl"), -2);
            assert_eq!(info.field("reachable"), 3);
            assert_eq!(info.field("majority"), 2);
            assert_eq!(info.field("nodes").items().len(), 3);
        }
        let token = take(&quorum[1], "o");
        wait_held(&quorum, "o", token);
        quorum.set("lock.quorum-node-timeout", "2000");
        let ports: Vec<u16> = quorum.iter().map(Server::port).collect();
        let gone = quorum.kill_last();
        for (client, is_map) in clients.iter_mut().zip([false, true]) {
            let info = client.call("LOCK.QINFO k");
            assert_eq!(matches!(info, Reply::Map(_)), is_map, "{info:?}");
            assert_eq!(*info.field("state"), *"held");
            assert_eq!(*info.field("mode"), *"exclusive");
            assert_eq!(*info.field("owners"), Reply::Array(vec![Reply::bulk("o")]));
            assert_eq!(info.field("token"), token);
            assert!((1..=LONG).contains(&info.field("ttl").as_int()));
            assert_eq!(info.field("reachable"), 2);
            assert_eq!(info.field("majority"), 2);
            for (index, (line, port)) in info.field("nodes").items().iter().zip(&ports).enumerate() {
                assert_eq!(matches!(line, Reply::Map(_)), is_map, "{line:?}");
                assert_eq!(*line.field("node"), *format!("127.0.0.1:{port}"));
                assert!(line.field("latency-us").as_int() >= 0);
                if index < 2 {
                    assert!(line.field("error").is_nil(), "{line:?}");
                    assert_eq!(*line.field("owners"), Reply::Array(vec![Reply::bulk("o")]));
                    assert_eq!(line.field("token"), token);
                    assert!((1..=LONG).contains(&line.field("ttl").as_int()));
                } else {
                    assert!(!line.field("error").as_text().is_empty());
                    assert!(line.field("owners").items().is_empty());
                    assert!(line.field("token").is_nil());
                    assert!(line.field("ttl").is_nil());
                }
            }
        }
        assert!(gone.dir().exists());
        quorum.kill_last();
        let info = clients[1].call("LOCK.QINFO k");
        assert_eq!(*info.field("state"), *"unknown");
        assert_eq!(info.field("reachable"), 1);
        assert_eq!(info.field("ttl"), -2);
    }

    fn many_clients_are_served_at_once(flavour) {
        let quorum = Quorum::start(flavour, 5);
        let mut clients: Vec<Raw> = (0..64).map(|_| quorum[0].raw()).collect();
        for (number, client) in clients.iter_mut().enumerate() {
            client.send(format!("LOCK.QACQUIRE k{number} o {LONG}"));
        }
        for client in &mut clients {
            token(&client.read());
        }
        for (number, client) in clients.iter_mut().enumerate() {
            client.send(format!("LOCK.QRELEASE k{number} o"));
        }
        for client in &mut clients {
            assert_eq!(client.read(), 1);
        }
        for node in quorum.iter() {
            wait_until("all to be released", || node.dbsize() == 0);
        }
        for (field, count) in [("grants", 64), ("releases", 64), ("waiting", 0)] {
            let found = quorum[0].info_number("lock", &format!("lock_quorum_{field}"));
            assert_eq!(found, count, "{field}");
        }
    }

    fn every_answer_of_a_quorum_is_counted(flavour) {
        let mut quorum = Quorum::start(flavour, 3);
        take(&quorum[0], "o");
        let node = &quorum[0];
        assert!(ask(node, "x").is_nil());
        assert!(node.call(("LOCK.QRENEW", "k", "o", LONG)).as_int() > 0);
        assert_eq!(node.call(("LOCK.QRENEW", "k", "x", LONG)), 0);
        assert_eq!(node.call("LOCK.QRELEASE k o"), 1);
        assert_eq!(node.call("LOCK.QRELEASE k o"), -1);
        quorum.set("lock.quorum-node-timeout", "200");
        quorum.kill_last();
        quorum.kill_last();
        assert_eq!(ask(&quorum[0], "o").error_code(), Some("NOQUORUM"));
        for (field, count) in [
            ("grants", 1),
            ("refusals", 1),
            ("renewals", 1),
            ("releases", 1),
            ("stale", 2),
            ("unavailable", 1),
            ("waiting", 0),
        ] {
            let name = format!("lock_quorum_{field}");
            assert_eq!(quorum[0].info_number("lock", &name), count, "{name}");
        }
    }

    fn coordinators_that_race_never_let_two_in_and_all_get_their_turns(flavour) {
        const TURNS: usize = 8;
        let quorum = Quorum::start(flavour, 3);
        let is_in = AtomicBool::new(false);
        let tokens = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for node in quorum.iter() {
                let (is_in, tokens) = (&is_in, &tokens);
                scope.spawn(move || {
                    let owner = format!("o{}", node.port());
                    for _ in 0..TURNS {
                        let grant =
                            node.call(("LOCK.QACQUIRE", "k", &owner, LONG, "BLOCK", 0));
                        let token = token(&grant);
                        assert!(!is_in.swap(true, Ordering::SeqCst), "two are in");
                        tokens.lock().unwrap().push(token);
                        is_in.store(false, Ordering::SeqCst);
                        assert_eq!(node.call(("LOCK.QRELEASE", "k", &owner, "TOKEN", token)), 1);
                    }
                });
            }
        });
        let tokens = tokens.into_inner().unwrap();
        assert_eq!(tokens.len(), 3 * TURNS);
        assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
        wait_free(&quorum);
    }
}

#[test]
fn nodes_can_be_servers_of_different_kinds() {
    let flavours = Flavour::ALL.into_iter().chain([Flavour::Redis70]);
    let quorum = Quorum::start_all(flavours.map(|flavour| Server::build(flavour).aof()));
    there_and_back(&quorum);
}
