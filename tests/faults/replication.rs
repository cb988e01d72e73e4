//! Faults of a primary and its replica: full copies under load, and replicas that take over.

use super::driver::Manners;
use super::run::{pace, run};
use super::server::STRICT;
use super::stage::Stage;
use crate::harness::{Flavour, Server, on_every_server, wait_until};
use crate::waiters::nobody_waits;

/// A server that is a replica now, sends those away who wait, and may be loading its copy.
const DEMOTED: Manners = Manners {
    errors: &["READONLY", "UNBLOCKED", "LOADING", "MASTERDOWN"],
    is_cluster: false,
};

/// Gives a server a new replica again and again.
fn full_copy(class: &str, flavour: Flavour, is_diskless: &str) {
    let primary = Server::build(flavour)
        .config("repl-diskless-sync", is_diskless)
        .start();
    let stage = Stage::new(&primary, pace());
    run(class, flavour, &stage, STRICT, |stage| {
        let replica = Server::build(flavour).replica_of(&primary).start();
        stage.let_clients_work();
        assert_eq!(primary.call("CLIENT PAUSE 60000 WRITE"), "OK");
        wait_until("the replica to have what the primary has", || {
            primary.snapshot() == replica.snapshot()
        });
        assert_eq!(primary.call("CLIENT UNPAUSE"), "OK");
    });
    nobody_waits(&primary);
}

/// Whether a server is a primary that has this replica, in sync.
fn has_replica(server: &Server) -> bool {
    let info = server.info("replication");
    info["role"] == "master"
        && info
            .get("slave0")
            .is_some_and(|of| of.contains("state=online"))
}

on_every_server! {
    fn full_copy_without_disk(flavour) {
        full_copy("full copy, diskless", flavour, "yes");
    }

    fn full_copy_by_disk(flavour) {
        full_copy("full copy, by disk", flavour, "no");
    }

    /// The primary waits until the replica has everything, and nothing is granted meanwhile.
    fn failover(flavour) {
        let primary = Server::start(flavour);
        let replica = Server::build(flavour).replica_of(&primary).start();
        let stage = Stage::new(&primary, pace());
        let mut pair = (primary, replica);
        run("FAILOVER", flavour, &stage, DEMOTED, |stage| {
            let (primary, replica) = &pair;
            wait_until("the replica", || has_replica(primary));
            assert_eq!(primary.call("FAILOVER"), "OK");
            wait_until("the new primary", || has_replica(replica));
            stage.send_all_to(replica.port());
            std::mem::swap(&mut pair.0, &mut pair.1);
        });
        nobody_waits(&pair.0);
    }

    /// What had not reached the replica is lost, as any write would be.
    fn promotion(flavour) {
        let primary = Server::start(flavour);
        let replica = Server::build(flavour).replica_of(&primary).start();
        let stage = Stage::new(&primary, pace());
        let mut pair = Some((primary, replica));
        run("kill -9 of a primary", flavour, &stage, DEMOTED, |stage| {
            let (primary, replica) = pair.take().expect("two servers");
            stage.may_end_holds(|| {
                primary.kill();
                assert_eq!(replica.call("REPLICAOF NO ONE"), "OK");
                stage.send_all_to(replica.port());
            });
            let next = Server::build(flavour).replica_of(&replica).start();
            pair = Some((replica, next));
        });
        nobody_waits(&pair.expect("two servers").0);
    }
}
