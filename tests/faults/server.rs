//! Faults of one server: it is killed, saved and loaded, paused, without memory, configured.

use super::driver::Manners;
use super::run::{on_one, pace, run};
use super::stage::Stage;
use crate::harness::{Flavour, Server, ServerBuilder, on_every_server};
use crate::waiters::nobody_waits;

/// Nothing but what locks answer.
pub(super) const STRICT: Manners = Manners {
    errors: &[],
    is_cluster: false,
};

/// A server that is not there for a while.
const LOADING: Manners = Manners {
    errors: &["LOADING"],
    is_cluster: false,
};

/// Kills a server again and again and starts it with what it has stored.
fn kill(class: &str, builder: ServerBuilder, flavour: Flavour, is_safe: bool) {
    let server = builder.start();
    let stage = Stage::new(&server, pace());
    let mut server = Some(server);
    run(class, flavour, &stage, LOADING, |stage| {
        let running = server.take();
        let restart = || running.map(|server| server.kill().start());
        server = if is_safe {
            restart()
        } else {
            stage.may_end_holds(restart)
        };
    });
    nobody_waits(server.as_ref().expect("a server"));
}

fn set(server: &Server, name: &str, value: &str) {
    assert_eq!(server.call(("CONFIG", "SET", name, value)), "OK", "{name}");
}

on_every_server! {
    /// What the others are compared with.
    fn no_fault(flavour) {
        on_one("no fault", flavour, STRICT, |_, _| {});
    }

    /// A file that has each write before it is answered.
    fn kill_with_aof_always(flavour) {
        let builder = Server::build(flavour)
            .config("appendonly", "yes")
            .config("appendfsync", "always");
        kill("kill -9, AOF always", builder, flavour, true);
    }

    fn kill_with_aof_everysec(flavour) {
        let builder = Server::build(flavour)
            .config("appendonly", "yes")
            .config("appendfsync", "everysec");
        kill("kill -9, AOF everysec", builder, flavour, false);
    }

    fn kill_with_rdb(flavour) {
        let builder = Server::build(flavour).config("save", "1 1");
        kill("kill -9, RDB", builder, flavour, false);
    }

    fn kill_with_nothing_stored(flavour) {
        kill("kill -9, nothing stored", Server::build(flavour), flavour, false);
    }

    fn reload(flavour) {
        on_one("DEBUG RELOAD", flavour, LOADING, |server, _| {
            assert_eq!(server.call("DEBUG RELOAD"), "OK");
        });
    }

    fn client_pause(flavour) {
        let mut pauses_all = false;
        on_one("CLIENT PAUSE", flavour, STRICT, move |server, stage| {
            pauses_all = !pauses_all;
            let mode = if pauses_all { "ALL" } else { "WRITE" };
            assert_eq!(server.call(("CLIENT", "PAUSE", 30, mode)), "OK");
            stage.wait_for_time(30);
        });
    }

    fn settings(flavour) {
        let manners = Manners { errors: &["QUEUEFULL"], is_cluster: false };
        let mut turn = 0;
        on_one("CONFIG SET", flavour, manners, move |server, stage| {
            turn += 1;
            let (name, value) = [
                ("lock.max-waiters", "3"),
                ("lock.max-waiters-per-key", "1"),
                ("appendonly", "yes"),
                ("notify-keyspace-events", "KEA"),
                ("hz", "100"),
                ("lock.watchdog-max-hold", "1"),
            ][turn % 6];
            let before = server.call(("CONFIG", "GET", name)).items()[1].as_text().to_owned();
            set(server, name, value);
            stage.wait_for_requests(pace() / 4);
            set(server, name, &before);
        });
    }

    fn no_memory(flavour) {
        let manners = Manners { errors: &["OOM"], is_cluster: false };
        on_one("maxmemory, noeviction", flavour, manners, |server, stage| {
            set(server, "maxmemory", "1");
            stage.wait_for_requests(pace() / 4);
            set(server, "maxmemory", "0");
        });
    }

    fn eviction(flavour) {
        let manners = Manners { errors: &["OOM"], is_cluster: false };
        let policies = [
            "allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-lfu",
            "volatile-random", "volatile-ttl",
        ];
        let mut policies = policies.into_iter().cycle();
        on_one("maxmemory, eviction", flavour, manners, move |server, stage| {
            set(server, "maxmemory-policy", policies.next().expect("a policy"));
            stage.may_end_holds(|| {
                set(server, "maxmemory", "1");
                stage.wait_for_requests(pace() / 4);
                set(server, "maxmemory", "0");
            });
        });
    }
}
