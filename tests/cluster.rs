//! Locks in a cluster: a lock lives where its slot does.

use crate::harness::{Flavour, Reply, Server, on_every_server, wait_until};

/// A server of a cluster, which does not mind that slots are not served.
fn node(flavour: Flavour) -> Server {
    Server::build(flavour)
        .config("cluster-enabled", "yes")
        .config("cluster-require-full-coverage", "no")
        .start()
}

/// Two servers of one cluster, of which the first serves all slots.
fn two_nodes(flavour: Flavour) -> (Server, Server) {
    let (first, second) = (node(flavour), node(flavour));
    assert_eq!(first.call("CLUSTER ADDSLOTSRANGE 0 16383"), "OK");
    let meet = format!("CLUSTER MEET 127.0.0.1 {}", second.port());
    assert_eq!(first.call(meet), "OK");
    for server in [&first, &second] {
        wait_until("both servers know the cluster", || {
            let info = server.call("CLUSTER INFO");
            let nodes = server.call("CLUSTER NODES");
            info.as_text().contains("cluster_state:ok")
                && info.as_text().contains("cluster_slots_assigned:16384")
                && info.as_text().contains("cluster_known_nodes:2")
                && !nodes.as_text().contains("handshake")
        });
    }
    (first, second)
}

on_every_server! {
    /// The key goes away because it moves, not because the lock is free: who waits for it must not
    /// get it here, while its holder has it there. A cluster client that is told to try again asks
    /// the same server, which redirects it like any other command.
    fn a_waiter_is_not_granted_a_lock_that_moves_to_another_server(flavour) {
        let (source, target) = two_nodes(flavour);
        let (source_id, target_id) = (source.call("CLUSTER MYID"), target.call("CLUSTER MYID"));
        let slot = source.call("CLUSTER KEYSLOT job").as_int();

        let token = source.call("LOCK.ACQUIRE job holder 600000").as_int();
        let mut waiter = source.raw();
        waiter.send("LOCK.ACQUIRE job waiter 600000 BLOCK 0");
        source.wait_for_blocked(1);

        let importing = format!("CLUSTER SETSLOT {slot} IMPORTING {}", source_id.as_text());
        assert_eq!(target.call(importing), "OK");
        let migrating = format!("CLUSTER SETSLOT {slot} MIGRATING {}", target_id.as_text());
        assert_eq!(source.call(migrating), "OK");
        let migrate = format!("MIGRATE 127.0.0.1 {} job 0 5000", target.port());
        assert_eq!(source.call(migrate), "OK");

        assert_eq!(waiter.read().error_code(), Some("TRYAGAIN"));
        source.wait_for_blocked(0);
        let again = waiter.call("LOCK.ACQUIRE job waiter 600000 BLOCK 0");
        assert_eq!(again.error_code(), Some("ASK"));

        for server in [&target, &source] {
            let node = format!("CLUSTER SETSLOT {slot} NODE {}", target_id.as_text());
            assert_eq!(server.call(node), "OK");
        }
        let again = waiter.call("LOCK.ACQUIRE job waiter 600000 BLOCK 0");
        assert_eq!(again.error_code(), Some("MOVED"));
        assert_eq!(target.call("LOCK.INFO job").field("token").as_int(), token);
        assert_eq!(target.call("LOCK.RELEASE job holder"), 1);
    }

    /// A slot that stays changes nothing.
    fn a_waiter_is_granted_a_lock_whose_key_is_deleted_in_a_cluster(flavour) {
        let server = node(flavour);
        assert_eq!(server.call("CLUSTER ADDSLOTSRANGE 0 16383"), "OK");
        wait_until("the cluster is up", || {
            server.call("CLUSTER INFO").as_text().contains("cluster_state:ok")
        });
        let first = server.call("LOCK.ACQUIRE job holder 600000").as_int();
        let mut waiter = server.raw();
        waiter.send("LOCK.ACQUIRE job waiter 600000 BLOCK 0");
        server.wait_for_blocked(1);
        assert_eq!(server.call("DEL job"), 1);
        assert!(waiter.read().as_int() > first);
    }

    /// One of the locks is elsewhere, so the request is, too. What is left here goes on.
    fn who_waits_for_several_is_sent_on_when_one_of_them_moves(flavour) {
        let (source, target) = two_nodes(flavour);
        let (source_id, target_id) = (source.call("CLUSTER MYID"), target.call("CLUSTER MYID"));
        let slot = source.call("CLUSTER KEYSLOT {t}").as_int();
        let importing = format!("CLUSTER SETSLOT {slot} IMPORTING {}", source_id.as_text());
        assert_eq!(target.call(importing), "OK");
        let migrating = format!("CLUSTER SETSLOT {slot} MIGRATING {}", target_id.as_text());

        assert!(source.call("LOCK.MACQUIRE 3 {t}x {t}y {t}z holder 600000").as_int() > 0);
        let mut several = source.raw();
        several.send("LOCK.MACQUIRE 2 {t}x {t}y waiter 600000 BLOCK 0");
        source.wait_for_blocked(1);
        let mut single = source.raw();
        single.send("LOCK.ACQUIRE {t}y other 600000 BLOCK 0");
        source.wait_for_blocked(2);
        // In one turn, so that it is the release that finds the other lock gone.
        let migrate = format!("MIGRATE 127.0.0.1 {} {{t}}x 0 5000", target.port());
        let release = "LOCK.RELEASE {t}y holder";
        let replies = source.raw().pipeline([&migrating, &migrate, release]);
        assert_eq!(replies[..2], ["OK", "OK"].map(|ok| Reply::Simple(ok.to_owned())));
        assert_eq!(replies[2], 1);
        assert_eq!(several.read().error_code(), Some("TRYAGAIN"));
        assert!(single.read().as_int() > 0);
        let again = several.call("LOCK.MACQUIRE 2 {t}x {t}y waiter 600000 BLOCK 0");
        assert_eq!(again.error_code(), Some("TRYAGAIN"));
        assert_eq!(source.call("LOCK.INFO {t}y").field("owners").items()[0], "other");

        for key in ["{t}y", "{t}z"] {
            let migrate = format!("MIGRATE 127.0.0.1 {} {key} 0 5000", target.port());
            assert_eq!(source.call(migrate), "OK");
        }
        for server in [&target, &source] {
            let node = format!("CLUSTER SETSLOT {slot} NODE {}", target_id.as_text());
            assert_eq!(server.call(node), "OK");
        }
        let again = several.call("LOCK.MACQUIRE 2 {t}x {t}y waiter 600000 BLOCK 0");
        assert_eq!(again.error_code(), Some("MOVED"));
        assert_eq!(source.info_number("lock", "lock_waiters"), 0);
        assert_eq!(target.call("LOCK.MRELEASE 2 {t}x {t}z holder").items(), [1, 1].map(Reply::Int));
    }
}
