//! Locks over a quorum when nodes are slow, dead, forgetful or hold something else, and when clients
//! leave before they are answered.

use crate::harness::{Paused, Quorum, Reply, Server, address, on_every_server, wait_until};
use crate::quorum_locking::{ask, held, take, token, wait_asking, wait_free, wait_held};
use crate::waiters::LONG;

/// How long to wait for nodes that are known to be gone, in milliseconds.
const SHORT: &str = "200";

/// Stops these nodes.
fn pause(nodes: &[Server]) -> Vec<Paused> {
    nodes.iter().map(Server::pause).collect()
}

/// The answer says that there was no majority.
fn no_quorum(reply: &Reply) {
    assert_eq!(reply.error_code(), Some("NOQUORUM"), "{reply:?}");
}

/// Waits until so many votes of each of these nodes are counted.
fn wait_voted(nodes: &[Server], votes: u64) {
    wait_until("the votes", || {
        nodes
            .iter()
            .all(|node| node.info_number("lock", "lock_votes") == votes)
    });
}

on_every_server! {
    fn three_of_five_are_enough_and_two_are_not(flavour) {
        let mut quorum = Quorum::start(flavour, 5);
        let first = take(&quorum[0], "o");
        wait_held(&quorum, "o", first);
        quorum.kill_last();
        quorum.kill_last();
        assert!(quorum[1].call(("LOCK.QRENEW", "k", "o", LONG)).as_int() > 0);
        assert!(ask(&quorum[1], "x").is_nil());
        assert_eq!(quorum[2].call("LOCK.QRELEASE k o"), 1);
        let second = take(&quorum[1], "p");
        assert!(second > first);
        wait_held(&quorum, "p", second);
        quorum.set("lock.quorum-node-timeout", SHORT);
        quorum.kill_last();
        // What was granted stays where it is, but nobody can say that it is held.
        no_quorum(&quorum[0].call(("LOCK.QRENEW", "k", "p", LONG)));
        wait_held(&quorum, "p", second);
        for node in quorum.iter() {
            node.call("DEL k");
        }
        no_quorum(&ask(&quorum[0], "x"));
        no_quorum(&quorum[1].call(("LOCK.QACQUIRE", "k", "x", LONG, "BLOCK", 20)));
        wait_free(&quorum);
    }

    fn half_of_an_even_number_is_no_majority(flavour) {
        let mut quorum = Quorum::start(flavour, 4);
        quorum.kill_last();
        let token = take(&quorum[0], "o");
        wait_held(&quorum, "o", token);
        assert_eq!(quorum[1].call("LOCK.QRELEASE k o"), 1);
        wait_free(&quorum);
        quorum.set("lock.quorum-node-timeout", SHORT);
        quorum.kill_last();
        no_quorum(&ask(&quorum[0], "o"));
        wait_free(&quorum);
        // It is enough to know that no majority has it.
        assert_eq!(quorum[1].call(("LOCK.QRENEW", "k", "o", LONG)), -1);
        assert_eq!(quorum[1].call("LOCK.QRELEASE k o"), -1);
        assert_eq!(*quorum[1].call("LOCK.QINFO k").field("state"), *"free");
    }

    fn a_dead_node_is_one_again_when_it_is_back(flavour) {
        let mut quorum = Quorum::start(flavour, 3);
        let addresses = quorum.addresses();
        let first = take(&quorum[0], "o");
        wait_held(&quorum, "o", first);
        let gone = quorum.kill_last();
        assert_eq!(quorum[1].call("LOCK.QRELEASE k o"), 1);
        wait_free(&quorum);
        // Both of the others are needed now, and the one that comes back has an old hold.
        let second = take(&quorum[0], "p");
        assert!(second > first);
        quorum.rejoin(gone.start(), &addresses);
        assert_eq!(held(&quorum[2], "o"), Some(first));
        assert_eq!(quorum[2].call("LOCK.QRELEASE k o"), 0);
        wait_held(&quorum[..2], "p", second);
        // It is asked again and tells who has it there, or is told.
        wait_until("the node to have what the others have", || {
            quorum[0].call(("LOCK.QRENEW", "k", "p", LONG)).as_int() > 0
                && held(&quorum[2], "p") == Some(second)
        });
    }

    fn nobody_waits_for_slow_nodes_and_they_get_the_lock_later(flavour) {
        let quorum = Quorum::start(flavour, 5);
        let slow = pause(&quorum[3..]);
        let first = take(&quorum[0], "o");
        wait_held(&quorum[..3], "o", first);
        assert!(ask(&quorum[1], "x").is_nil());
        assert!(quorum[2].call(("LOCK.QRENEW", "k", "o", LONG)).as_int() > 0);
        drop(slow);
        wait_held(&quorum, "o", first);
        let slow = pause(&quorum[..2]);
        assert_eq!(quorum[4].call(("LOCK.QRELEASE", "k", "o", "TOKEN", first)), 1);
        drop(slow);
        wait_free(&quorum);
    }

    fn a_node_that_granted_another_token_is_told_the_one_that_counts(flavour) {
        let quorum = Quorum::start(flavour, 3);
        // This node has seen a higher token than the others will see for a while.
        let ahead = crate::harness::unix_micros() + 3_600_000_000;
        assert_eq!(quorum[2].call(("LOCK.QVOTE", "other", "o", LONG, ahead, 7)), ahead);
        let slow = pause(&quorum[2..]);
        let low = take(&quorum[0], "o");
        assert!(low < ahead);
        wait_held(&quorum[..2], "o", low);
        drop(slow);
        wait_held(&quorum, "o", low);
        assert_eq!(quorum[1].call("LOCK.QRELEASE k o"), 1);
        wait_free(&quorum);
        // When it is one of the majority, its token counts for all.
        let slow = pause(&quorum[1..2]);
        let high = take(&quorum[0], "o");
        assert!(high > ahead);
        drop(slow);
        wait_held(&quorum, "o", high);
    }

    /// The vote, the token that counts and the release reach a node in any order.
    fn a_release_leaves_nothing_on_a_node_that_was_slow(flavour) {
        let quorum = Quorum::start(flavour, 5);
        // It grants another token than the others.
        let ahead = crate::harness::unix_micros() + 3_600_000_000;
        quorum[4].call(("LOCK.QVOTE", "other", "o", LONG, ahead, 7));
        let asked = || {
            let count = |name| quorum[4].info_number("lock", name);
            count("lock_votes") + count("lock_refused_votes")
        };
        for timeout in ["60000", SHORT] {
            quorum.set("lock.quorum-node-timeout", timeout);
            wait_until("both coordinators to be connected to all nodes", || {
                quorum[..2]
                    .iter()
                    .all(|node| node.call("LOCK.QINFO k").field("reachable") == 5)
            });
            for has_token in [true, false] {
                let before = asked();
                let slow = quorum[4].pause();
                let token = take(&quorum[0], "o");
                let words = if has_token {
                    format!("TOKEN {token}")
                } else {
                    String::new()
                };
                let release = format!("LOCK.QRELEASE k o {words}");
                assert_eq!(quorum[1].call(release), 1, "{timeout}");
                wait_free(&quorum[..4]);
                if timeout == SHORT {
                    // This one waits for the slow node, and when it is over nobody else does.
                    assert_eq!(quorum[1].call("LOCK.QINFO k").field("reachable"), 4);
                }
                drop(slow);
                wait_until("the vote to arrive", || asked() > before);
                wait_free(&quorum);
            }
        }
    }

    fn what_others_hold_by_hand_is_left_and_nothing_else(flavour) {
        let quorum = Quorum::start(flavour, 5);
        for node in &quorum[..3] {
            assert!(node.call(("LOCK.ACQUIRE", "k", "x", LONG)).as_int() > 0);
        }
        let snapshots: Vec<_> = quorum[..3].iter().map(Server::snapshot).collect();
        for node in quorum.iter() {
            assert!(ask(node, "o").is_nil());
            assert!(node.call(("LOCK.QACQUIRE", "k", "o", LONG, "SHARED")).is_nil());
            wait_free(&quorum[3..]);
        }
        for (node, snapshot) in quorum.iter().zip(snapshots) {
            assert_eq!(node.snapshot(), snapshot);
        }
        // A minority of such nodes is no hindrance.
        quorum[0].call("DEL k");
        let token = take(&quorum[4], "o");
        wait_held(&quorum[3..], "o", token);
        wait_held(&quorum[..1], "o", token);
        assert!(held(&quorum[1], "x").is_some());
        assert_eq!(quorum[4].call("LOCK.QRELEASE k o"), 1);
        assert!(held(&quorum[1], "x").is_some());
    }

    fn a_slow_majority_has_no_say_when_the_ttl_is_over(flavour) {
        let quorum = Quorum::start(flavour, 5);
        let slow = pause(&quorum[..3]);
        // The nodes have a minute, but the lease has not.
        no_quorum(&quorum[3].call("LOCK.QACQUIRE k o 100"));
        wait_free(&quorum[3..]);
        no_quorum(&quorum[4].call("LOCK.QRENEW k o 100"));
        drop(slow);
        wait_voted(&quorum[..3], 1);
        wait_free(&quorum);
    }

    fn a_majority_that_lost_the_lock_ends_it_and_touches_nothing(flavour) {
        let quorum = Quorum::start(flavour, 5);
        let token = take(&quorum[0], "o");
        wait_held(&quorum, "o", token);
        for (lost, renewed) in [(1, true), (2, true), (3, false)] {
            for node in &quorum[..lost] {
                node.call("DEL k");
            }
            let reply = quorum[4].call(("LOCK.QRENEW", "k", "o", LONG)).as_int();
            assert_eq!(reply > 0, renewed, "{lost} {reply}");
            if renewed {
                wait_held(&quorum, "o", token);
            }
        }
        assert_eq!(quorum[4].call(("LOCK.QRENEW", "k", "o", LONG)), -1);
        wait_held(&quorum[3..], "o", token);
        wait_free(&quorum[..3]);
        // Somebody else gets it from a majority that has forgotten it, and then says so.
        let next = take(&quorum[0], "x");
        assert!(next > token);
        assert_eq!(quorum[4].call(("LOCK.QRENEW", "k", "o", LONG)), 0);
        assert_eq!(quorum[4].call(("LOCK.QRELEASE", "k", "o", "TOKEN", token)), 0);
        wait_held(&quorum[..3], "x", next);
        // The answer is known before the last nodes have carried the release out.
        wait_free(&quorum[3..]);
    }

    fn a_reader_is_locked_again_as_a_reader(flavour) {
        let quorum = Quorum::start(flavour, 3);
        let grant = quorum[0].call(("LOCK.QACQUIRE", "k", "o", LONG, "SHARED"));
        let token = token(&grant);
        wait_held(&quorum, "o", token);
        quorum[1].call("DEL k");
        assert!(quorum[2].call(("LOCK.QRENEW", "k", "o", LONG)).as_int() > 0);
        wait_held(&quorum, "o", token);
        for node in quorum.iter() {
            assert_eq!(*node.call("LOCK.INFO k").field("mode"), *"shared");
        }
    }

    fn tokens_rise_whichever_nodes_and_coordinators_there_are(flavour) {
        let quorum = Quorum::start(flavour, 5);
        let mut last = 0;
        for round in 0..10 {
            let slow = [quorum[round % 5].pause(), quorum[(round + 2) % 5].pause()];
            let node = &quorum[(round + 1) % 5];
            // Messages of the round before can be late at nodes that stood still.
            let owner = format!("o{round}");
            let grant = node.call(("LOCK.QACQUIRE", "k", &owner, LONG, "BLOCK", 0));
            let token = token(&grant);
            assert!(token > last, "{token} after {last}");
            last = token;
            assert_eq!(node.call(("LOCK.QRELEASE", "k", &owner, "TOKEN", token)), 1);
            drop(slow);
        }
        wait_free(&quorum);
    }

    fn the_votes_for_a_client_that_leaves_are_taken_back(flavour) {
        let quorum = Quorum::start(flavour, 5);
        let coordinator = &quorum[0];
        for (round, leave) in ["hang up", "KILL ID", "UNBLOCK", "UNBLOCK ERROR"].iter().enumerate() {
            let slow = pause(&quorum[1..4]);
            let mut client = coordinator.raw();
            let id = client.id();
            client.send(("LOCK.QACQUIRE", "k", "o", LONG, "BLOCK", 0));
            wait_until("two votes", || {
                held(&quorum[0], "o").is_some() && held(&quorum[4], "o").is_some()
            });
            match *leave {
                "hang up" => client.close(),
                "KILL ID" => {
                    assert_eq!(coordinator.call(("CLIENT", "KILL", "ID", id)), 1);
                    client.wait_until_closed();
                }
                "UNBLOCK" => {
                    assert_eq!(coordinator.call(("CLIENT", "UNBLOCK", id)), 1);
                    assert!(client.read().is_nil());
                    assert_eq!(client.call("PING"), "PONG");
                }
                _ => {
                    assert_eq!(coordinator.call(("CLIENT", "UNBLOCK", id, "ERROR")), 1);
                    assert_eq!(client.read().error_code(), Some("UNBLOCKED"));
                    assert_eq!(client.call("PING"), "PONG");
                }
            }
            wait_asking(coordinator, 0);
            wait_free(&quorum[..1]);
            wait_free(&quorum[4..]);
            drop(slow);
            wait_voted(&quorum, u64::try_from(round).unwrap() + 1);
            wait_free(&quorum);
        }
        assert_eq!(coordinator.info_number("lock", "lock_quorum_grants"), 0);
    }

    fn a_client_that_leaves_between_two_attempts_gets_nothing(flavour) {
        let quorum = Quorum::start(flavour, 3);
        let token = take(&quorum[1], "a");
        wait_held(&quorum, "a", token);
        quorum.set("lock.quorum-retry-delay", "86400000");
        let mut client = quorum[0].raw();
        client.send(("LOCK.QACQUIRE", "k", "b", LONG, "BLOCK", 0));
        wait_until("the attempt to fail", || {
            quorum.iter().all(|node| node.info_number("lock", "lock_refused_votes") == 1)
        });
        client.close();
        wait_asking(&quorum[0], 0);
        quorum[0].wait_for_blocked(0);
        assert_eq!(quorum[1].call("LOCK.QRELEASE k a"), 1);
        wait_free(&quorum);
    }

    fn a_grant_whose_client_is_gone_is_given_back(flavour) {
        let quorum = Quorum::start(flavour, 5);
        let (coordinator, others) = quorum.split_first().unwrap();
        assert_eq!(coordinator.call("LOCK.QINFO k").field("reachable"), 5);
        let slow = pause(others);
        let mut client = coordinator.raw();
        client.send(("LOCK.QACQUIRE", "k", "o", LONG));
        wait_asking(coordinator, 1);
        // The votes and the end of the connection come to it at the same moment.
        let busy = coordinator.pause();
        drop(slow);
        wait_until("the lock on all other nodes", || {
            others.iter().all(|node| held(node, "o").is_some())
        });
        client.close();
        drop(busy);
        wait_asking(coordinator, 0);
        wait_free(&quorum);
    }

    fn who_waits_at_a_server_that_becomes_a_replica_is_told(flavour) {
        let quorum = Quorum::start(flavour, 3);
        let token = take(&quorum[1], "a");
        wait_held(&quorum, "a", token);
        let mut client = quorum[0].raw();
        client.send(("LOCK.QACQUIRE", "k", "b", LONG, "BLOCK", 0));
        wait_asking(&quorum[0], 1);
        assert_eq!(quorum[0].call("REPLICAOF 127.0.0.1 1"), "OK");
        assert_eq!(client.read().error_code(), Some("UNBLOCKED"));
        // The server hangs up on those who were blocked.
        client.wait_until_closed();
        wait_asking(&quorum[0], 0);
        let mut client = quorum[0].raw();
        assert_eq!(client.call(("LOCK.QACQUIRE", "k", "b", LONG)).error_code(), Some("READONLY"));
        assert_eq!(*client.call("LOCK.QINFO k").field("state"), *"held");
        // A replica votes for nobody, and two nodes are enough.
        assert_eq!(quorum[1].call("LOCK.QRELEASE k a"), 1);
        let second = take(&quorum[2], "b");
        wait_held(&quorum[1..], "b", second);
        assert_eq!(quorum[0].call("REPLICAOF NO ONE"), "OK");
        assert_eq!(client.call("LOCK.QRELEASE k b"), 1);
        wait_free(&quorum[1..]);
    }

    fn servers_without_the_module_are_no_nodes(flavour) {
        for (without, is_enough) in [(2, true), (3, false)] {
            let quorum = Quorum::start_all((0..5).map(|index| {
                let node = Server::build(flavour).aof();
                if index < without { node.without_module() } else { node }
            }));
            let nodes = &quorum[without..];
            if is_enough {
                let token = take(&nodes[0], "o");
                wait_held(nodes, "o", token);
                assert!(nodes[1].call(("LOCK.QRENEW", "k", "o", LONG)).as_int() > 0);
                assert_eq!(nodes[1].call("LOCK.QRELEASE k o"), 1);
            } else {
                for command in ["LOCK.QACQUIRE k o 1000", "LOCK.QRENEW k o 1000", "LOCK.QRELEASE k o"] {
                    let reply = nodes[0].call(command);
                    no_quorum(&reply);
                    let text = format!("{reply:?}");
                    for node in &quorum[..without] {
                        assert!(text.contains(&address(node)), "{text}");
                    }
                    assert!(text.contains("unknown command"), "{text}");
                }
            }
            wait_free(nodes);
            let info = nodes[0].call("LOCK.QINFO k");
            assert_eq!(info.field("reachable"), i64::try_from(5 - without).unwrap());
            for line in &info.field("nodes").items()[..without] {
                let error = line.field("error").as_text().to_owned();
                assert!(error.contains("unknown command"), "{error}");
            }
        }
    }

    fn what_became_of_each_node_is_told(flavour) {
        /// Asks until a reason is told for each of the last three of five nodes.
        fn told(addresses: &str, coordinator: &Server, reasons: [&str; 3]) {
            let addresses: Vec<&str> = addresses.split(',').collect();
            wait_until("the reasons", || {
                let reply = ask(coordinator, "o");
                no_quorum(&reply);
                let text = format!("{reply:?}");
                assert!(text.contains("of 5 nodes agreed, 0 refused, 3 are needed: "), "{text}");
                let expected = addresses[2..].iter().zip(reasons);
                expected.map(|(address, reason)| format!("{address} {reason}")).all(|part| text.contains(&part))
            });
        }
        let start = || Server::build(flavour).aof();
        let mut quorum = Quorum::start_all([start(), start(), start().without_module(), start(), start()]);
        let addresses = quorum.addresses();
        quorum[0].call("CONFIG SET lock.quorum-node-timeout 1000");
        let paused = quorum[3].pause();
        let gone = quorum.kill_last();
        told(&addresses, &quorum[0], ["ERR unknown command", "timed out", "Connection refused"]);
        let info = quorum[0].call("LOCK.QINFO k");
        let error = |index: usize| info.field("nodes").items()[index].field("error").clone();
        assert!(error(0).is_nil());
        for (index, reason) in [(2, "unknown command"), (3, "timed out"), (4, "Connection refused")] {
            assert!(error(index).as_text().contains(reason), "{info:?}");
        }
        drop((paused, gone, quorum));

        let quorum = Quorum::start(flavour, 5);
        let addresses = quorum.addresses();
        for (node, password) in quorum.iter().zip(["sesame", "sesame", "barley", "sesame", "sesame"]) {
            node.call(format!("ACL SETUSER coordinator on >{password} ~* +@all"));
        }
        quorum[3].call("ACL SETUSER coordinator -lock.qvote");
        assert_eq!(quorum[4].call("CONFIG SET maxmemory 1"), "OK");
        quorum.set("lock.quorum-user", "coordinator");
        quorum.set("lock.quorum-password", "sesame");
        told(&addresses, &quorum[0], ["WRONGPASS", "NOPERM", "OOM"]);
        let info = quorum[0].call("LOCK.QINFO k");
        let error = info.field("nodes").items()[2].field("error");
        assert!(error.as_text().starts_with("WRONGPASS"), "{info:?}");
        for (node, command) in [
            (2, "ACL SETUSER coordinator >sesame"),
            (2, "REPLICAOF 127.0.0.1 1"),
            (3, "ACL SETUSER coordinator +lock.qvote"),
            (3, "RPUSH k x"),
            (4, "CONFIG SET maxmemory 0"),
            (4, "REPLICAOF 127.0.0.1 1"),
            (4, "REPLICAOF NO ONE"),
        ] {
            assert_eq!(quorum[node].call(command).error_code(), None, "{command}");
        }
        told(&addresses, &quorum[0], ["READONLY", "WRONGTYPE", "NOVOTE"]);
        wait_free(&quorum[..3]);
    }

    /// One that refuses is no reason to say that others have the lock, if too few answer.
    fn nil_is_the_answer_of_a_majority(flavour) {
        let mut quorum = Quorum::start(flavour, 5);
        quorum.set("lock.quorum-node-timeout", SHORT);
        quorum[1].call("SET k x");
        quorum.kill_last();
        quorum.kill_last();
        wait_until("nil", || ask(&quorum[0], "o").is_nil());
        quorum.kill_last();
        no_quorum(&ask(&quorum[0], "o"));
        wait_free(&quorum[..1]);
    }

    fn nodes_that_may_have_forgotten_are_no_majority(flavour) {
        let mut quorum = Quorum::start(flavour, 5);
        let addresses = quorum.addresses();
        let first = take(&quorum[0], "o");
        wait_held(&quorum, "o", first);
        // Those with a safe file remember.
        for _ in 0..3 {
            let again = quorum.kill_last().start();
            assert_eq!(held(&again, "o"), Some(first));
            quorum.rejoin(again, &addresses);
        }
        assert!(ask(&quorum[4], "x").is_nil());
        assert_eq!(quorum[4].call("LOCK.QRELEASE k o"), 1);
        wait_free(&quorum);
        // Those without do not vote, and the others have to agree all by themselves.
        let mut forgetful = Vec::new();
        for count in 1..=3 {
            let port = quorum.last().unwrap().port();
            let gone = quorum.kill_last();
            let node = Server::build(flavour)
                .config("appendonly", "yes")
                .config("appendfsync", "everysec")
                .dir_of(gone)
                .start_on([port]);
            assert_eq!(node.call("CONFIG SET lock.quorum-max-ttl 1000000"), "OK");
            forgetful.push(node);
            let reply = ask(&quorum[0], "o");
            if count < 3 {
                let token = token(&reply);
                wait_held(&quorum, "o", token);
                assert_eq!(quorum[1].call("LOCK.QRELEASE k o"), 1);
            } else {
                no_quorum(&reply);
                assert!(format!("{reply:?}").contains("NOVOTE"), "{reply:?}");
            }
            wait_free(&quorum);
        }
        assert!(forgetful.iter().all(|node| node.call("EXISTS k") == 0));
    }

    fn a_node_that_allows_shorter_leases_only_does_not_vote_for_longer_ones(flavour) {
        let quorum = Quorum::start(flavour, 3);
        for node in &quorum[1..] {
            assert_eq!(node.call("CONFIG SET lock.quorum-max-ttl 1000"), "OK");
        }
        no_quorum(&ask(&quorum[0], "o"));
        wait_free(&quorum);
        let reply = ask(&quorum[1], "o");
        assert!(matches!(&reply, Reply::Error(text) if text.contains("lock.quorum-max-ttl")), "{reply:?}");
        assert_eq!(quorum[1].call("CONFIG SET lock.quorum-max-ttl 1000000"), "OK");
        let token = take(&quorum[0], "o");
        wait_held(&quorum[..2], "o", token);
    }
}
