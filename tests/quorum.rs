//! Locks over a quorum of servers that know nothing of one another but their addresses.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use crate::harness::{
    Flavour, Raw, Reply, Server, on_every_server, unix_micros, wait_for, wait_until,
};
use crate::waiters::LONG;

/// The ttl of a lock that is released before all nodes have answered: one that was not in the majority
/// may learn of the release before it learns of its token, and keeps its part for as long as this.
const SHORT: i64 = 3_000;

/// Servers of which each knows all as its nodes, and which vote at once after a restart.
fn nodes(flavour: Flavour, count: usize) -> Vec<Server> {
    let nodes: Vec<Server> = (0..count)
        .map(|_| {
            Server::build(flavour)
                .aof()
                .module_args(&["quorum-max-ttl", "1000000000"])
                .start()
        })
        .collect();
    for node in &nodes {
        // Tests on a slow machine wait, and do not fail. Those that stop nodes set it anew.
        introduce(node, &nodes, 10_000);
    }
    nodes
}

/// Tells a server of its nodes, and for how long to wait for each.
fn introduce(server: &Server, nodes: &[Server], timeout: u32) {
    let addresses: Vec<String> = nodes.iter().map(address).collect();
    for (name, value) in [
        ("lock.quorum-nodes", addresses.join(",")),
        ("lock.quorum-node-timeout", timeout.to_string()),
        ("lock.quorum-max-ttl", "1000000000".to_owned()),
    ] {
        assert_eq!(server.call(("CONFIG", "SET", name, value)), "OK", "{name}");
    }
}

fn address(node: &Server) -> String {
    format!("127.0.0.1:{}", node.port())
}

/// Stops a server where it stands, or lets it go on.
fn signal(node: &Server, signal: &str, pid: u64) {
    let status = Command::new("kill")
        .arg(signal)
        .arg(pid.to_string())
        .status();
    assert!(status.expect("kill").success(), "{signal} {}", node.port());
}

/// A server that stands still for as long as this lives.
struct Stopped<'s> {
    node: &'s Server,
    pid: u64,
}

impl<'s> Stopped<'s> {
    fn new(node: &'s Server) -> Self {
        let pid = node.info_number("server", "process_id");
        signal(node, "-STOP", pid);
        Self { node, pid }
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        signal(self.node, "-CONT", self.pid);
    }
}

/// The token and the validity of a grant.
fn grant(reply: &Reply) -> (i64, i64) {
    assert_eq!(reply.items().len(), 2, "{reply:?}");
    (reply.items()[0].as_int(), reply.items()[1].as_int())
}

/// The token under which a node has the lock `k` for somebody, 0 without one.
fn token_on(node: &Server) -> i64 {
    match node.call("LOCK.INFO k").field("token") {
        Reply::Int(token) => *token,
        _ => 0,
    }
}

/// Waits until the nodes that are meant have the lock under this token; 0: do not have it.
fn all_have<'n>(nodes: impl IntoIterator<Item = &'n Server>, token: i64) {
    for node in nodes {
        wait_until("the node to have what the quorum has", || {
            token_on(node) == token
        });
    }
}

/// A client that waits for a quorum.
fn asking(server: &Server, command: impl AsRef<str>) -> Raw {
    let mut client = server.raw();
    let before = server.blocked_clients();
    client.send(command.as_ref());
    server.wait_for_blocked(before + 1);
    client
}

/// Makes an authority and a certificate of it for this machine.
fn make_certificates(folder: &Path) {
    let san = folder.join("san");
    std::fs::write(&san, "subjectAltName=IP:127.0.0.1").unwrap();
    for line in [
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 2 -subj /CN=authority",
        "req -newkey rsa:2048 -nodes -keyout node.key -out node.csr -subj /CN=node",
        "x509 -req -in node.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out node.crt -days 2 \
         -extfile san",
    ] {
        let output = Command::new("openssl")
            .args(line.split_whitespace())
            .current_dir(folder)
            .output()
            .expect("the program `openssl`");
        assert!(output.status.success(), "{output:?}");
    }
}

/// A port that nobody has taken just now.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// How many connections to a node come from other nodes.
fn links(node: &Server) -> usize {
    let list = node.call("CLIENT LIST");
    let list = list.as_text().to_lowercase();
    let mut clients = list.lines();
    clients
        .by_ref()
        .filter(|client| client.contains(" cmd=lock.q"))
        .count()
}

on_every_server! {
    fn a_grant_is_on_every_node_under_one_token(flavour) {
        let nodes = nodes(flavour, 5);
        for (number, coordinator) in nodes.iter().enumerate() {
            let before = unix_micros();
            let start = Instant::now();
            let reply = coordinator.call(format!("LOCK.QACQUIRE k o{number} {LONG}"));
            let elapsed = i64::try_from(start.elapsed().as_millis()).unwrap() + 1;
            let (token, validity) = grant(&reply);
            assert!(token >= before);
            let longest = LONG - LONG / 100 - 2;
            assert!((longest - elapsed..=longest).contains(&validity), "{validity} {elapsed}");
            all_have(&nodes, token);
            let released = coordinator.call(format!("LOCK.QRELEASE k o{number} TOKEN {token}"));
            assert_eq!(released, 1);
            all_have(&nodes, 0);
        }
        // The last one is given back twice, and nobody else's is.
        assert_eq!(nodes[0].call("LOCK.QRELEASE k o4"), -1);
        grant(&nodes[0].call(format!("LOCK.QACQUIRE k a {LONG}")));
        assert_eq!(nodes[1].call("LOCK.QRELEASE k b"), 0);
        assert_eq!(nodes[1].call("LOCK.QRELEASE k a TOKEN 5"), 0);
        assert_eq!(nodes[1].call(format!("LOCK.QRENEW k b {LONG}")), 0);
        assert_eq!(nodes[1].call(format!("LOCK.QRENEW none b {LONG}")), -1);
        assert!(nodes[2].call(format!("LOCK.QRENEW k a {LONG}")).as_int() > 0);
    }

    fn who_cannot_have_it_leaves_nothing_behind(flavour) {
        let nodes = nodes(flavour, 5);
        let (token, _) = grant(&nodes[0].call(format!("LOCK.QACQUIRE k a {LONG}")));
        assert!(nodes[1].call(format!("LOCK.QACQUIRE k b {LONG}")).is_nil());
        assert!(nodes[1].call(format!("LOCK.QACQUIRE k a {LONG}")).is_nil(), "as SET NX");
        assert!(nodes[1].call(format!("LOCK.QACQUIRE k b {LONG} BLOCK 1")).is_nil());
        all_have(&nodes, token);
        assert_eq!(nodes[0].call("LOCK.QRELEASE k a"), 1);
        // Somebody else has it on three nodes by hand.
        for node in &nodes[..3] {
            node.call("SET k someone");
        }
        assert!(nodes[4].call(format!("LOCK.QACQUIRE k b {LONG}")).is_nil());
        for node in &nodes[3..] {
            wait_until("the vote to be taken back", || node.dbsize() == 0);
        }
        // On two it is not enough to keep others from it.
        nodes[0].call("DEL k");
        let (token, _) = grant(&nodes[4].call(format!("LOCK.QACQUIRE k b {LONG}")));
        all_have([&nodes[0], &nodes[3], &nodes[4]], token);
    }

    fn who_waits_gets_it_when_it_is_released(flavour) {
        let nodes = nodes(flavour, 3);
        let (token, _) = grant(&nodes[0].call(format!("LOCK.QACQUIRE k a {LONG}")));
        let mut waiting = asking(&nodes[1], format!("LOCK.QACQUIRE k b {LONG} BLOCK 0"));
        let mut patient = asking(&nodes[2], format!("LOCK.QACQUIRE k * {LONG} BLOCK 600000"));
        assert_eq!(nodes[0].call(format!("LOCK.QRELEASE k a TOKEN {token}")), 1);
        let first = wait_for("one of both to have it", || {
            [&mut waiting, &mut patient].into_iter().position(Raw::has_reply)
        });
        let (owner, got) = if first == 0 {
            ("b".to_owned(), grant(&waiting.read()).0)
        } else {
            let reply = patient.read();
            (reply.items()[2].as_text().to_owned(), reply.items()[0].as_int())
        };
        assert!(got > token);
        assert_eq!(nodes[0].call(format!("LOCK.QRELEASE k {owner} TOKEN {got}")), 1);
        let reply = if first == 0 { patient.read() } else { waiting.read() };
        assert!(reply.items()[0].as_int() > got);
    }

    fn readers_share_it_and_permits_are_refused(flavour) {
        let nodes = nodes(flavour, 3);
        let (first, _) = grant(&nodes[0].call(format!("LOCK.QACQUIRE k a {LONG} SHARED")));
        let (second, _) = grant(&nodes[1].call(format!("LOCK.QACQUIRE k b {LONG} SHARED")));
        assert!(second > first);
        assert!(nodes[2].call(format!("LOCK.QACQUIRE k w {LONG}")).is_nil());
        // A node that lost a share takes it up again as a share.
        nodes[2].call("DEL k");
        assert!(nodes[0].call(format!("LOCK.QRENEW k a {LONG}")).as_int() > 0);
        wait_until("the share", || nodes[2].call("TYPE k") == "zset");
        assert_eq!(nodes[0].call("LOCK.QRELEASE k a"), 1);
        assert_eq!(nodes[0].call("LOCK.QRELEASE k b"), 1);
        grant(&nodes[2].call(format!("LOCK.QACQUIRE k w {LONG}")));
        let reply = nodes[0].call(format!("LOCK.QACQUIRE j w {LONG} LIMIT 2"));
        let error = "ERR LIMIT can't be kept over a quorum: two majorities can each see room";
        assert_eq!(reply, Reply::Error(error.to_owned()));
        assert_eq!(nodes[0].call("EXISTS j"), 0);
    }

    // redlock-py PR#6: a majority is one of the nodes that are configured.
    fn a_majority_is_one_of_all_nodes(flavour) {
        for (count, down) in [(5, 3), (4, 2)] {
            let mut nodes = nodes(flavour, count);
            for node in &nodes {
                introduce(node, &nodes, 300);
            }
            let mut ended = Vec::new();
            for _ in 1..down {
                ended.push(nodes.pop().unwrap().kill());
            }
            let (token, _) = grant(&nodes[0].call(format!("LOCK.QACQUIRE k a {LONG}")));
            assert_eq!(nodes[0].call(format!("LOCK.QRELEASE k a TOKEN {token}")), 1);
            ended.push(nodes.pop().unwrap().kill());
            for command in ["LOCK.QACQUIRE k a 100000", "LOCK.QACQUIRE k a 100000 BLOCK 1"] {
                let reply = nodes[0].call(command);
                assert_eq!(reply.error_code(), Some("NOQUORUM"), "{count} {reply:?}");
            }
            all_have(&nodes, 0);
            for command in ["LOCK.QRENEW k a 100000", "LOCK.QRELEASE k a"] {
                // Half of them are enough to know that no majority has it.
                let reply = nodes[0].call(command);
                if down > count / 2 {
                    assert_eq!(reply.error_code(), Some("NOQUORUM"), "{count} {reply:?}");
                } else {
                    assert_eq!(reply, -1, "{count}");
                }
            }
            let info = nodes[0].call("LOCK.QINFO k");
            let up = i64::try_from(nodes.len()).unwrap();
            assert_eq!(info.field("reachable"), up);
            // Those who say nothing could have it, if they are a majority.
            let state = if down > count / 2 { "unknown" } else { "free" };
            assert_eq!(*info.field("state").as_text(), *state);
            // The votes are there again with the nodes.
            nodes.push(ended.pop().unwrap().start());
            wait_until("a majority", || {
                nodes[0].call(format!("LOCK.QACQUIRE k a {LONG}")).error_code().is_none()
            });
        }
    }

    // redsync#140, redsync#186: one slow node delays nobody, and is told all the same.
    fn a_slow_node_is_not_waited_for_and_is_told_later(flavour) {
        let nodes = nodes(flavour, 3);
        let stopped = Stopped::new(&nodes[2]);
        let (token, _) = grant(&nodes[0].call(format!("LOCK.QACQUIRE k a {LONG}")));
        all_have(&nodes[..2], token);
        assert!(nodes[1].call(format!("LOCK.QACQUIRE k b {LONG}")).is_nil() , "not with one of three");
        drop(stopped);
        all_have(&nodes[2..], token);
        let stopped = Stopped::new(&nodes[1]);
        assert_eq!(nodes[0].call(format!("LOCK.QRELEASE k a TOKEN {token}")), 1);
        drop(stopped);
        all_have(&nodes, 0);
    }

    /// A majority that answers when the lease has nearly run out is none.
    fn a_slow_majority_uses_up_the_validity(flavour) {
        let nodes = nodes(flavour, 3);
        let stopped = [Stopped::new(&nodes[1]), Stopped::new(&nodes[2])];
        let reply = nodes[0].call("LOCK.QACQUIRE k a 300");
        assert_eq!(reply.error_code(), Some("NOQUORUM"), "{reply:?}");
        drop(stopped);
        for node in &nodes {
            wait_until("nothing to be left", || node.dbsize() == 0);
        }
    }

    fn who_goes_away_is_granted_nothing(flavour) {
        let nodes = nodes(flavour, 3);
        for end in ["", "CLIENT KILL ID $id", "CLIENT UNBLOCK $id", "CLIENT UNBLOCK $id ERROR"] {
            // The round cannot end while two of three say nothing.
            let stopped = [Stopped::new(&nodes[1]), Stopped::new(&nodes[2])];
            let mut client = nodes[0].raw();
            let id = client.id().to_string();
            client.send(format!("LOCK.QACQUIRE k a {LONG}"));
            nodes[0].wait_for_blocked(1);
            wait_until("a vote", || token_on(&nodes[0]) > 0);
            if !end.is_empty() {
                assert_eq!(nodes[0].call(end.replace("$id", &id)), 1, "{end}");
            }
            match end {
                "CLIENT UNBLOCK $id" => assert!(client.read().is_nil()),
                "CLIENT UNBLOCK $id ERROR" => {
                    assert_eq!(client.read().error_code(), Some("UNBLOCKED"));
                }
                _ => drop(client),
            }
            wait_until("nobody to wait", || nodes[0].blocked_clients() == 0);
            drop(stopped);
            all_have(&nodes, 0);
            assert_eq!(nodes[0].info_number("lock", "lock_quorum_waiting"), 0);
        }
    }

    // redsync#151: a renewal that fails releases nothing.
    fn a_renewal_locks_nodes_again_that_lost_it(flavour) {
        let nodes = nodes(flavour, 5);
        let (token, _) = grant(&nodes[0].call(format!("LOCK.QACQUIRE k a {LONG}")));
        all_have(&nodes, token);
        for node in &nodes[..2] {
            node.call("DEL k");
        }
        let validity = nodes[0].call(format!("LOCK.QRENEW k a {} TOKEN {token}", 2 * LONG));
        assert!(validity.as_int() > LONG, "{validity:?}");
        all_have(&nodes, token);
        for node in &nodes[..3] {
            node.call("DEL k");
        }
        assert_eq!(nodes[0].call(format!("LOCK.QRENEW k a {LONG} TOKEN {token}")), -1);
        all_have(&nodes[3..], token);
        all_have(&nodes[..3], 0);
        for node in &nodes[..3] {
            node.call("SET k other");
        }
        assert_eq!(nodes[0].call(format!("LOCK.QRENEW k a {LONG}")), 0);
        assert_eq!(nodes[0].call("LOCK.QRELEASE k a"), 0);
    }

    fn tokens_rise_over_all_majorities(flavour) {
        let nodes = nodes(flavour, 3);
        let mut last = 0;
        for round in 0..12 {
            let stopped = Stopped::new(&nodes[round % 3]);
            let coordinator = &nodes[(round + 1 + round / 3 % 2) % 3];
            let command = format!("LOCK.QACQUIRE k o{round} {SHORT} BLOCK 0");
            let (token, _) = grant(&coordinator.call(command));
            assert!(token > last, "{token} after {last} in round {round}");
            last = token;
            assert_eq!(coordinator.call(format!("LOCK.QRELEASE k o{round} TOKEN {token}")), 1);
            drop(stopped);
            all_have(&nodes, 0);
        }
    }

    // node-redlock#369: neither a tie that never ends nor two holders.
    fn two_coordinators_take_turns(flavour) {
        let nodes = nodes(flavour, 3);
        for node in &nodes {
            assert_eq!(node.call("CONFIG SET lock.quorum-retry-delay 1"), "OK");
            assert_eq!(node.call("CONFIG SET lock.quorum-retry-jitter 5"), "OK");
        }
        let is_held = AtomicBool::new(false);
        let last = AtomicU64::new(0);
        thread::scope(|scope| {
            for (number, node) in nodes.iter().enumerate().take(2) {
                let (is_held, last) = (&is_held, &last);
                scope.spawn(move || {
                    for _ in 0..15 {
                        let command = format!("LOCK.QACQUIRE k o{number} {SHORT} BLOCK 0");
                        let (token, _) = grant(&node.call(command));
                        assert!(!is_held.swap(true, Ordering::SeqCst), "two hold it");
                        let token = u64::try_from(token).unwrap();
                        assert!(last.swap(token, Ordering::SeqCst) < token);
                        is_held.store(false, Ordering::SeqCst);
                        assert_eq!(node.call(format!("LOCK.QRELEASE k o{number} TOKEN {token}")), 1);
                    }
                });
            }
        });
        all_have(&nodes, 0);
    }

    /// A node that may have forgotten a lock does not vote; one that cannot have does.
    fn a_node_that_may_have_forgotten_does_not_vote(flavour) {
        let mut nodes = nodes(flavour, 3);
        let forgetful = Server::start(flavour);
        assert_eq!(forgetful.call("CONFIG SET lock.quorum-max-ttl 1000000000"), "OK");
        nodes.push(forgetful);
        let (kept, forgetful) = (&nodes[..3], &nodes[3]);
        introduce(&nodes[0], &nodes, 10_000);
        let (token, _) = grant(&nodes[0].call(format!("LOCK.QACQUIRE k a {LONG}")));
        all_have(kept, token);
        assert_eq!(forgetful.dbsize(), 0);
        let reply = forgetful.call("LOCK.QVOTE k x 100000 5 7");
        assert_eq!(reply.error_code(), Some("NOVOTE"), "{reply:?}");
        let again = nodes.remove(2).kill().start();
        assert!(token_on(&again) == token, "it has what it granted");
        nodes.insert(2, again);
        assert_eq!(nodes[0].call(format!("LOCK.QRELEASE k a TOKEN {token}")), 1);
        all_have(&nodes[2..3], 0);
        introduce(&nodes[0], &nodes[..3], 10_000);
        wait_until("its vote", || {
            let command = format!("LOCK.QACQUIRE k b {SHORT} BLOCK 0");
            let (token, _) = grant(&nodes[0].call(command));
            let has_voted = token_on(&nodes[2]) == token;
            assert_eq!(nodes[0].call(format!("LOCK.QRELEASE k b TOKEN {token}")), 1);
            all_have(&nodes[..3], 0);
            has_voted
        });
    }

    fn nodes_that_need_a_password_get_it(flavour) {
        let nodes = nodes(flavour, 3);
        for node in &nodes[1..] {
            node.call("ACL SETUSER coordinator on >sesame ~* +@all");
            let rules = "ACL SETUSER default -@all +lock.info +ping +info +config +acl +client +auth";
            node.call(rules);
        }
        let no_rights = nodes[0].call(format!("LOCK.QACQUIRE k a {LONG}"));
        assert_eq!(no_rights.error_code(), Some("NOQUORUM"), "{no_rights:?}");
        nodes[0].call("ACL SETUSER coordinator on >sesame ~* +@all");
        for (password, is_right) in [("wrong", false), ("sesame", true)] {
            let command = ("CONFIG", "SET", "lock.quorum-user", "coordinator",
                "lock.quorum-password", password);
            assert_eq!(nodes[0].call(command), "OK");
            let reply = nodes[0].call(format!("LOCK.QACQUIRE k a {LONG}"));
            if is_right {
                grant(&reply);
            } else {
                assert_eq!(reply.error_code(), Some("NOQUORUM"), "{reply:?}");
            }
        }
        assert!(!nodes[0].log().contains("sesame"));
    }

    fn what_cannot_be_asked_is_refused(flavour) {
        let server = Server::start(flavour);
        let commands = [
            "LOCK.QACQUIRE k o 1000", "LOCK.QRENEW k o 1000", "LOCK.QRELEASE k o",
            "LOCK.QINFO k",
        ];
        for command in commands {
            let reply = server.call(command);
            assert_eq!(reply, Reply::Error("ERR lock.quorum-nodes is not set".to_owned()));
        }
        introduce(&server, std::slice::from_ref(&server), 100);
        let error = "ERR a quorum can't be asked in a transaction or a script";
        for command in commands {
            let replies = server.raw().pipeline(["MULTI", command, "EXEC"]);
            assert_eq!(replies[2].items()[0], Reply::Error(error.to_owned()), "{command}");
        }
        assert_eq!(server.call("CONFIG SET lock.quorum-max-ttl 1000"), "OK");
        for (ttl, error) in [
            (1_001, "ERR ttl is longer than lock.quorum-max-ttl allows"),
            (2, "ERR ttl is too short for a quorum: the clocks of its nodes may differ by as much"),
        ] {
            for command in ["LOCK.QACQUIRE", "LOCK.QRENEW"] {
                let reply = server.call((command, "k", "o", ttl));
                assert_eq!(reply, Reply::Error(error.to_owned()), "{command} {ttl}");
            }
        }
        for (list, reason) in [
            ("a", "a has no port"),
            ("a:1,b:0", "b:0 has no port from 1 to 65535"),
            ("a:1 a:1", "a:1 is given twice, and would vote twice"),
        ] {
            let before = server.call("CONFIG GET lock.quorum-nodes");
            let reply = server.call(("CONFIG", "SET", "lock.quorum-nodes", list));
            let Reply::Error(text) = &reply else { panic!("{list}: {reply:?}") };
            assert!(text.contains(reason), "{text}");
            assert_eq!(server.call("CONFIG GET lock.quorum-nodes"), before);
        }
        assert_eq!(server.dbsize(), 0);
    }

    fn the_coordinator_ends_with_the_module(flavour) {
        let nodes = nodes(flavour, 3);
        let server = &nodes[0];
        let others = &nodes[1..];
        assert!(others.iter().all(|node| links(node) == 0), "nobody has asked yet");
        let (token, _) = grant(&server.call(format!("LOCK.QACQUIRE k a {LONG}")));
        all_have(&nodes, token);
        assert!(others.iter().all(|node| links(node) == 1));
        let mut waiting = asking(server, format!("LOCK.QACQUIRE k b {LONG} BLOCK 0"));
        assert_eq!(server.call("MODULE UNLOAD lock").error_code(), Some("ERR"));
        assert_eq!(server.call(format!("LOCK.QRELEASE k a TOKEN {token}")), 1);
        let (token, _) = grant(&waiting.read());
        wait_until("the module to be unloaded", || server.call("MODULE UNLOAD lock") == "OK");
        for node in others {
            wait_until("the connections to be closed", || links(node) == 0);
        }
        let path = crate::harness::module_path();
        assert_eq!(server.call(("MODULE", "LOAD", path.to_str().unwrap())), "OK");
        introduce(server, &nodes, 10_000);
        assert_eq!(server.call(format!("LOCK.QRELEASE k b TOKEN {token}")), 1);
        assert_eq!(server.info_number("lock", "lock_quorum_releases"), 1);
    }

    fn many_clients_are_served_at_once(flavour) {
        let nodes = nodes(flavour, 3);
        let mut clients: Vec<Raw> = (0..64).map(|_| nodes[0].raw()).collect();
        for (number, client) in clients.iter_mut().enumerate() {
            client.send(format!("LOCK.QACQUIRE k{number} o {LONG}"));
        }
        for client in &mut clients {
            grant(&client.read());
        }
        let info = nodes[1].call("LOCK.QINFO k7");
        assert_eq!(*info.field("state").as_text(), *"held");
        assert_eq!(info.field("nodes").items().len(), 3);
        for (number, client) in clients.iter_mut().enumerate() {
            client.send(format!("LOCK.QRELEASE k{number} o"));
        }
        for client in &mut clients {
            assert_eq!(client.read(), 1);
        }
        for node in &nodes {
            wait_until("all to be released", || node.dbsize() == 0);
        }
        for (field, count) in [("grants", 64), ("releases", 64), ("waiting", 0)] {
            let found = nodes[0].info_number("lock", &format!("lock_quorum_{field}"));
            assert_eq!(found, count, "{field}");
        }
    }

    /// Debian's server speaks TLS. The others here do not, and are not reached by it.
    fn nodes_are_reached_by_tls(flavour) {
        let speaks_tls = flavour == Flavour::Redis70;
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        make_certificates(folder.path());
        let ports: Vec<u16> = (0..3).map(|_| free_port()).collect();
        let nodes: Vec<Server> = ports
            .iter()
            .map(|port| {
                let node = Server::build(flavour).aof();
                let settings = [
                    ("tls-port", port.to_string()),
                    ("tls-cert-file", path("node.crt")),
                    ("tls-key-file", path("node.key")),
                    ("tls-ca-cert-file", path("ca.crt")),
                    ("tls-auth-clients", "yes".to_owned()),
                ];
                let node = if speaks_tls {
                    settings.iter().fold(node, |node, (name, value)| node.config(name, value))
                } else {
                    node
                };
                node.start()
            })
            .collect();
        let addresses: Vec<String> = if speaks_tls {
            ports.iter().map(|port| format!("127.0.0.1:{port}")).collect()
        } else {
            nodes.iter().map(address).collect()
        };
        for (name, value) in [
            ("lock.quorum-nodes", addresses.join(",")),
            ("lock.quorum-node-timeout", if speaks_tls { "10000" } else { "200" }.to_owned()),
            ("lock.quorum-tls", "yes".to_owned()),
            ("lock.quorum-tls-ca-cert-file", path("ca.crt")),
        ] {
            assert_eq!(nodes[0].call(("CONFIG", "SET", name, value)), "OK", "{name}");
        }
        // The nodes want to know who asks.
        let reply = nodes[0].call("LOCK.QACQUIRE k a 50000");
        assert_eq!(reply.error_code(), Some("NOQUORUM"), "{reply:?}");
        for (name, file) in [
            ("lock.quorum-tls-cert-file", "node.crt"),
            ("lock.quorum-tls-key-file", "node.key"),
        ] {
            assert_eq!(nodes[0].call(("CONFIG", "SET", name, path(file))), "OK", "{name}");
        }
        let reply = nodes[0].call("LOCK.QACQUIRE k a 50000");
        if speaks_tls {
            let (token, _) = grant(&reply);
            all_have(&nodes, token);
            assert_eq!(nodes[0].call("LOCK.QRELEASE k a"), 1);
        } else {
            assert_eq!(reply.error_code(), Some("NOQUORUM"), "{reply:?}");
        }
        // A file that is not there is no reason to go on without it.
        assert_eq!(nodes[0].call("CONFIG SET lock.quorum-tls-ca-cert-file /nowhere"), "OK");
        let reply = nodes[0].call("LOCK.QACQUIRE k a 50000");
        assert_eq!(reply.error_code(), Some("NOQUORUM"), "{reply:?}");
    }
}
