//! The settings of a quorum: which texts are none, when they take effect, passwords and TLS.

use crate::harness::{Quorum, Reply, Server, address, module_path, on_every_server, wait_until};
use crate::quorum_locking::{
    ask, held, take, token, wait_asking, wait_free, wait_held, wait_held_by_most,
};
use crate::waiters::{LONG, unload};

/// Sets something on a node.
fn set(node: &Server, name: &str, value: &str) {
    assert_eq!(node.call(("CONFIG", "SET", name, value)), "OK", "{name}");
}

/// What a setting is.
fn get(node: &Server, name: &str) -> String {
    node.call(("CONFIG", "GET", name)).items()[1]
        .as_text()
        .to_owned()
}

on_every_server! {
    fn what_is_no_list_of_nodes_is_told_why(flavour) {
        let server = Server::start(flavour);
        assert_eq!(get(&server, "lock.quorum-nodes"), "");
        set(&server, "lock.quorum-nodes", "a:1, [::1]:2 b.example:3");
        let many: Vec<String> = (1..=16).map(|port| format!("a:{port}")).collect();
        for (list, reason) in [
            ("a", "a has no port"),
            ("a:1,b", "b has no port"),
            ("a:", "a: has no port from 1 to 65535"),
            ("a:x", "a:x has no port from 1 to 65535"),
            ("a:0", "a:0 has no port from 1 to 65535"),
            ("a:65536", "a:65536 has no port from 1 to 65535"),
            (":1", ":1 has no host that can be told from its port"),
            ("::1:7000", "::1:7000 has no host that can be told from its port"),
            ("[::1:7000", "[::1:7000 has no host that can be told from its port"),
            ("a:1,b:1,a:1", "a:1 is given twice, and would vote twice"),
            (&many.join(","), "there are more than 15 nodes"),
        ] {
            let reply = server.call(("CONFIG", "SET", "lock.quorum-nodes", list));
            assert!(matches!(&reply, Reply::Error(text) if text.contains(reason)), "{reply:?}");
            assert_eq!(get(&server, "lock.quorum-nodes"), "a:1,[::1]:2,b.example:3");
        }
        let reply = server.call(("CONFIG", "SET", "lock.quorum-nodes", b"a\xff:1"));
        assert!(matches!(&reply, Reply::Error(text) if text.contains("no text")), "{reply:?}");
        set(&server, "lock.quorum-nodes", &many[..15].join(","));
        set(&server, "lock.quorum-nodes", "");
        let none = Reply::Error("ERR lock.quorum-nodes is not set".to_owned());
        assert_eq!(server.call("LOCK.QACQUIRE k o 50000"), none);
    }

    fn a_configuration_file_can_have_all_settings(flavour) {
        let other = Server::build(flavour).aof().start();
        let server = Server::build(flavour)
            .aof()
            .config("lock.quorum-nodes", &address(&other))
            .config("lock.quorum-node-timeout", "60000")
            .config("lock.quorum-user", "coordinator")
            .config("lock.quorum-password", "open-sesame")
            .start();
        assert_eq!(get(&server, "lock.quorum-nodes"), address(&other));
        other.call("ACL SETUSER coordinator on >open-sesame ~* +@all");
        let reply = server.call("LOCK.QACQUIRE k o 50000");
        let token = token(&reply);
        assert_eq!(held(&other, "o"), Some(token));
        assert_eq!(server.call("EXISTS k"), 0);
        // The one that writes the file is the one that knows the password.
        assert_eq!(server.call("CONFIG REWRITE"), "OK");
        let server = server.shutdown().start();
        assert_eq!(server.call("LOCK.QRELEASE k o"), 1);
        assert!(!server.log().contains("open-sesame"));
        assert!(!other.log().contains("open-sesame"));
    }

    fn a_bad_list_in_a_configuration_file_ends_the_server(flavour) {
        let log = Server::build(flavour).config("lock.quorum-nodes", "a:0").start_refused();
        assert!(log.contains("quorum-nodes"), "{log}");
    }

    fn another_list_of_nodes_counts_from_the_next_request(flavour) {
        let quorum = Quorum::start(flavour, 3);
        let node = &quorum[0];
        let token = take(&quorum[1], "a");
        wait_held(&quorum, "a", token);
        let mut client = node.raw();
        client.send(("LOCK.QACQUIRE", "k", "b", LONG, "BLOCK", 0));
        wait_asking(node, 1);
        let alone = Server::build(flavour).aof().start();
        set(&alone, "lock.quorum-max-ttl", "1000000");
        set(node, "lock.quorum-nodes", &address(&alone));
        let other = take(node, "o");
        assert_eq!(held(&alone, "o"), Some(other));
        wait_held(&quorum, "a", token);
        // Who has asked before has asked the nodes that there were.
        assert_eq!(quorum[1].call("LOCK.QRELEASE k a"), 1);
        let granted = crate::quorum_locking::token(&client.read());
        wait_held_by_most(&quorum, "b", granted);
        assert_eq!(held(&alone, "o"), Some(other));
        // A host can have a name.
        set(node, "lock.quorum-nodes", &format!("localhost:{}", alone.port()));
        assert_eq!(node.call("LOCK.QRELEASE k o"), 1);
        assert_eq!(alone.call("EXISTS k"), 0);
    }

    fn a_shorter_time_for_the_nodes_counts_at_once(flavour) {
        let quorum = Quorum::start(flavour, 3);
        let token = take(&quorum[0], "o");
        wait_held(&quorum, "o", token);
        let paused = [quorum[1].pause(), quorum[2].pause()];
        set(&quorum[0], "lock.quorum-node-timeout", "100");
        for command in ["LOCK.QACQUIRE free o 100000", "LOCK.QRENEW k o 100000", "LOCK.QRELEASE k o"] {
            let reply = quorum[0].call(command);
            assert_eq!(reply.error_code(), Some("NOQUORUM"), "{command} {reply:?}");
        }
        let info = quorum[0].call("LOCK.QINFO k");
        assert_eq!(*info.field("state"), *"unknown");
        assert_eq!(info.field("reachable"), 1);
        drop(paused);
    }

    fn a_password_is_needed_and_kept_secret(flavour) {
        let quorum = Quorum::start(flavour, 3);
        let node = &quorum[0];
        quorum.set("requirepass", "open-sesame");
        let mut shown = vec![ask(node, "o")];
        quorum.set("lock.quorum-password", "open-barley");
        shown.push(ask(node, "o"));
        for (reply, reason) in shown.iter().zip(["NOAUTH", "WRONGPASS"]) {
            assert_eq!(reply.error_code(), Some("NOQUORUM"), "{reply:?}");
            assert!(format!("{reply:?}").contains(reason), "{reply:?}");
        }
        let info = node.call("LOCK.QINFO k");
        assert_eq!(info.field("reachable"), 0);
        for line in info.field("nodes").items() {
            let error = line.field("error").as_text();
            assert!(error.starts_with("WRONGPASS"), "{error}");
        }
        quorum.set("lock.quorum-password", "open-sesame");
        let token = take(node, "o");
        wait_held(&quorum, "o", token);
        // The user is another when one is named.
        set(node, "lock.quorum-user", "coordinator");
        assert_eq!(node.call("LOCK.QRELEASE k o").error_code(), Some("NOQUORUM"));
        for other in quorum.iter() {
            other.call("ACL SETUSER coordinator on >open-sesame ~* +@all");
        }
        wait_until("the release", || node.call("LOCK.QRELEASE k o") == 1);
        wait_free(&quorum);
        // Nobody is shown it who does not ask for just that.
        shown.extend([
            info,
            node.call("LOCK.QINFO k"),
            node.call("CONFIG GET lock.*"),
            node.call("INFO everything"),
            node.call(("CONFIG", "SET", "lock.quorum-password", b"open-sesame\xff")),
            node.call("CONFIG SET lock.quorum-password open-sesame lock.quorum-nodes none"),
        ]);
        let names = format!("{:?}", node.call("CONFIG GET lock.*"));
        assert!(names.contains("quorum-user") && !names.contains("quorum-password"), "{names}");
        assert_eq!(get(node, "lock.quorum-password"), "open-sesame");
        for secret in ["open-sesame", "open-barley"] {
            assert!(shown.iter().all(|reply| !format!("{reply:?}").contains(secret)), "{shown:?}");
            assert!(quorum.iter().all(|node| !node.log().contains(secret)));
        }
    }

    fn a_user_needs_no_more_than_the_commands_of_a_node(flavour) {
        let quorum = Quorum::start(flavour, 3);
        for node in quorum.iter() {
            node.call(
                "ACL SETUSER coordinator on >sesame ~* -@all +lock.qvote +lock.qsettle \
                 +lock.qunvote +lock.qextend +lock.qrelock +lock.qend +lock.info",
            );
        }
        quorum.set("lock.quorum-user", "coordinator");
        quorum.set("lock.quorum-password", "sesame");
        let token = take(&quorum[0], "o");
        wait_held(&quorum, "o", token);
        assert!(ask(&quorum[1], "x").is_nil());
        quorum[2].call("DEL k");
        assert!(quorum[0].call(("LOCK.QRENEW", "k", "o", LONG)).as_int() > 0);
        wait_held(&quorum, "o", token);
        assert_eq!(*quorum[0].call("LOCK.QINFO k").field("state"), *"held");
        assert_eq!(quorum[0].call("LOCK.QRELEASE k o"), 1);
        wait_free(&quorum);
    }

    fn nodes_that_do_not_speak_tls_are_not_spoken_to_without(flavour) {
        let quorum = Quorum::start(flavour, 3);
        quorum.set("lock.quorum-node-timeout", "200");
        set(&quorum[0], "lock.quorum-tls", "yes");
        assert_eq!(ask(&quorum[0], "o").error_code(), Some("NOQUORUM"));
        assert_eq!(quorum[0].call("LOCK.QINFO k").field("reachable"), 0);
        wait_free(&quorum);
        set(&quorum[0], "lock.quorum-node-timeout", "60000");
        set(&quorum[0], "lock.quorum-tls", "no");
        let token = take(&quorum[0], "o");
        wait_held(&quorum, "o", token);
    }

    fn the_module_can_go_while_a_node_is_still_asked(flavour) {
        let quorum = Quorum::start(flavour, 3);
        let node = &quorum[0];
        let addresses = quorum.addresses();
        // Who waits keeps the module.
        let token = take(&quorum[1], "a");
        wait_held(&quorum, "a", token);
        let mut client = node.raw();
        client.send(("LOCK.QACQUIRE", "k", "b", LONG, "BLOCK", 0));
        wait_asking(node, 1);
        let refused = node.call("MODULE UNLOAD lock");
        assert!(matches!(refused, Reply::Error(_)), "{refused:?}");
        client.close();
        wait_asking(node, 0);
        assert_eq!(quorum[1].call("LOCK.QRELEASE k a"), 1);
        wait_free(&quorum);
        // The module stays for as long as a node has for its answer.
        set(node, "lock.quorum-node-timeout", "200");
        let paused = quorum[2].pause();
        let token = take(node, "o");
        unload(node);
        assert_eq!(held(&quorum[1], "o"), Some(token));
        let path = module_path();
        assert_eq!(node.call(("MODULE", "LOAD", path.to_str().unwrap())), "OK");
        assert_eq!(ask(node, "o").error_code(), Some("ERR"));
        set(node, "lock.quorum-max-ttl", "1000000");
        set(node, "lock.quorum-node-timeout", "60000");
        set(node, "lock.quorum-nodes", &addresses);
        assert!(ask(node, "x").is_nil());
        assert!(node.call(("LOCK.QRENEW", "k", "o", LONG)).as_int() > 0);
        assert_eq!(node.call(("LOCK.QRELEASE", "k", "o", "TOKEN", token)), 1);
        drop(paused);
        wait_until("every node to be empty", || quorum.iter().all(|node| node.dbsize() == 0));
    }

    /// A node has one connection from each server that coordinates, however many clients that has.
    fn connections_to_nodes_are_few_and_end_with_the_module(flavour) {
        let quorum = Quorum::start(flavour, 3);
        let (node, others) = quorum.split_first().unwrap();
        let links = |other: &Server| {
            let clients = other.call("CLIENT LIST").as_text().to_lowercase();
            clients.lines().filter(|client| client.contains(" cmd=lock.q")).count()
        };
        assert!(others.iter().all(|other| links(other) == 0));
        let token = take(node, "o");
        wait_held(&quorum, "o", token);
        let mut clients: Vec<_> = (0..10).map(|_| node.raw()).collect();
        for client in &mut clients {
            client.send(("LOCK.QACQUIRE", "k", "*", LONG, "BLOCK", 0));
        }
        wait_asking(node, 10);
        assert!(others.iter().all(|other| links(other) == 1));
        for client in clients {
            client.close();
        }
        wait_asking(node, 0);
        assert_eq!(node.call("LOCK.QRELEASE k o"), 1);
        wait_free(&quorum);
        unload(node);
        wait_until("the connections to end", || others.iter().all(|other| links(other) == 0));
    }
}

/// Nodes that speak TLS; one of the servers that the tests fetch was built for it.
#[cfg(target_os = "linux")]
mod tls {
    use std::path::Path;
    use std::process::Command;

    use tempfile::TempDir;

    use super::set;
    use crate::harness::{Flavour, Server, free_port};
    use crate::quorum_locking::{ask, take, wait_free, wait_held};

    /// Runs `openssl` in a directory.
    fn openssl(dir: &Path, command: &str) {
        let output = Command::new("openssl")
            .args(command.split(' '))
            .current_dir(dir)
            .output()
            .expect("the `openssl` command, which makes the certificates");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}\n{said}");
    }

    /// Makes an authority of this name and a certificate of it for 127.0.0.1.
    fn certify(dir: &Path, name: &str) {
        std::fs::write(dir.join("names"), "subjectAltName=IP:127.0.0.1").unwrap();
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
        for command in [
            format!(
                "req -x509 {key} -keyout {name}-ca.key -out {name}-ca.crt -days 2 -subj /CN={name}"
            ),
            format!("req {key} -keyout {name}.key -out {name}.csr -subj /CN=node"),
            format!(
                "x509 -req -in {name}.csr -CA {name}-ca.crt -CAkey {name}-ca.key -CAcreateserial \
                 -days 2 -extfile names -out {name}.crt"
            ),
        ] {
            openssl(dir, &command);
        }
    }

    /// The path of a file in a directory, as text.
    fn path(dir: &TempDir, name: &str) -> String {
        dir.path().join(name).display().to_string()
    }

    #[test]
    fn nodes_are_reached_by_tls_with_certificates_on_both_sides() {
        let dir = tempfile::tempdir().unwrap();
        certify(dir.path(), "ours");
        certify(dir.path(), "theirs");
        let mut ports = Vec::new();
        let nodes: Vec<Server> = (0..3)
            .map(|_| {
                let port = free_port();
                ports.push(port);
                Server::build(Flavour::Redis70)
                    .aof()
                    .config("tls-port", &port.to_string())
                    .config("tls-ca-cert-file", &path(&dir, "ours-ca.crt"))
                    .config("tls-cert-file", &path(&dir, "ours.crt"))
                    .config("tls-key-file", &path(&dir, "ours.key"))
                    .config("tls-auth-clients", "yes")
                    .start()
            })
            .collect();
        let node = &nodes[0];
        let list = |host: &str| {
            let addresses = ports.iter().map(|port| format!("{host}:{port}"));
            addresses.collect::<Vec<_>>().join(",")
        };
        for node in &nodes {
            set(node, "lock.quorum-max-ttl", "1000000");
        }
        let ours = [
            ("lock.quorum-nodes", list("127.0.0.1")),
            ("lock.quorum-node-timeout", "60000".to_owned()),
            ("lock.quorum-tls", "yes".to_owned()),
            ("lock.quorum-tls-ca-cert-file", path(&dir, "ours-ca.crt")),
            ("lock.quorum-tls-cert-file", path(&dir, "ours.crt")),
            ("lock.quorum-tls-key-file", path(&dir, "ours.key")),
        ];
        let restore = || {
            for (name, value) in &ours {
                set(node, name, value);
            }
        };
        restore();
        let token = take(node, "o");
        wait_held(&nodes, "o", token);
        assert!(node.call("LOCK.QRENEW k o 100000").as_int() > 0);
        assert!(ask(node, "x").is_nil());
        assert_eq!(node.call("LOCK.QRELEASE k o"), 1);
        wait_free(&nodes);
        for wrong in [
            // It speaks another protocol.
            &[("lock.quorum-tls", "no".to_owned())][..],
            // Nobody knows who certifies the nodes.
            &[("lock.quorum-tls-ca-cert-file", path(&dir, "theirs-ca.crt"))],
            &[("lock.quorum-tls-ca-cert-file", String::new())],
            // The nodes do not know who certifies the coordinator.
            &[
                ("lock.quorum-tls-cert-file", path(&dir, "theirs.crt")),
                ("lock.quorum-tls-key-file", path(&dir, "theirs.key")),
            ],
            &[
                ("lock.quorum-tls-cert-file", String::new()),
                ("lock.quorum-tls-key-file", String::new()),
            ],
            // The certificate is not for this name.
            &[("lock.quorum-nodes", list("localhost"))],
            &[("lock.quorum-tls-ca-cert-file", path(&dir, "missing.crt"))],
            &[("lock.quorum-tls-ca-cert-file", path(&dir, "names"))],
            &[("lock.quorum-tls-key-file", path(&dir, "missing.key"))],
        ] {
            set(node, "lock.quorum-node-timeout", "500");
            for (name, value) in wrong {
                set(node, name, value);
            }
            let reply = ask(node, "o");
            assert_eq!(reply.error_code(), Some("NOQUORUM"), "{wrong:?} {reply:?}");
            wait_free(&nodes);
            let info = node.call("LOCK.QINFO k");
            assert_eq!(info.field("reachable"), 0, "{wrong:?}");
            let error = info.field("nodes").items()[0]
                .field("error")
                .as_text()
                .to_owned();
            assert!(!error.is_empty());
            if wrong[0].1.contains("missing") {
                assert!(error.contains("missing"), "{error}");
            }
            restore();
        }
        let again = take(node, "o");
        assert!(again > token);
        wait_held(&nodes, "o", again);
    }
}
