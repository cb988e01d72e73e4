//! Faults of processes that stand still: a server, and clients for longer than their lease.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::run::{on_one, pace};
use super::server::STRICT;
use crate::harness::{Server, on_every_server, pause, wait_until};

/// What a client that stands still asks for, in milliseconds.
const TTL: u64 = 20;

/// A client that is a process of its own.
struct Process {
    child: Child,
    output: PathBuf,
}

impl Process {
    fn start(server: &Server) -> Self {
        let output = server.dir().join("client.out");
        let child = Command::new("redis-cli")
            .args(["-p", &server.port().to_string()])
            .stdin(Stdio::piped())
            .stdout(File::create(&output).expect("a file for a client's output"))
            .spawn()
            .expect("redis-cli, which `scripts/install-deps` installs");
        Self { child, output }
    }

    fn send(&mut self, command: &str) {
        let input = self.child.stdin.as_mut().expect("the input of a client");
        writeln!(input, "{command}").expect("a client that listens");
    }

    /// The whole lines that it has written so far. It leaves an empty one after an error.
    fn lines(&self) -> Vec<String> {
        let output = fs::read_to_string(&self.output).expect("a client's output");
        let whole = output.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let lines = whole.lines().filter(|line| !line.is_empty());
        lines.map(str::to_owned).collect()
    }

    /// The line of that number. It waits until there is one.
    fn line(&self, index: usize) -> String {
        wait_until("a client's output", || self.lines().len() > index);
        self.lines().swap_remove(index)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether an owner waits for a lock or has it. In this order, since it may be granted in between.
fn is_there(server: &Server, key: &str, owner: &str) -> bool {
    let queue = server.call(("LOCK.QUEUE", key, "COUNT", 1_000));
    let info = server.call(("LOCK.INFO", key));
    queue
        .items()
        .iter()
        .any(|line| *line.field("owner") == *owner)
        || info
            .field("owners")
            .items()
            .iter()
            .any(|item| *item == *owner)
}

on_every_server! {
    fn server_stands_still(flavour) {
        on_one("SIGSTOP of the server", flavour, STRICT, |server, stage| {
            let _paused = server.pause();
            stage.wait_for_time(30);
        });
    }

    /// What it believes to have is somebody else's by then. Stopped with the lock, and while it waits.
    fn client_stands_still(flavour) {
        let mut turn = 0;
        on_one("SIGSTOP of a client", flavour, STRICT, move |server, stage| {
            turn += 1;
            let (key, owner) = ("k0", format!("process-{turn}"));
            let mut client = Process::start(server);
            client.send(&format!("LOCK.ACQUIRE {key} {owner} {TTL} BLOCK 0"));
            if turn % 2 == 0 {
                client.line(0);
            } else {
                wait_until("the client's request", || {
                    is_there(server, key, &owner) || !client.lines().is_empty()
                });
            }
            let paused = pause(client.child.id());
            wait_until("the client's lease to be over", || !is_there(server, key, &owner));
            stage.wait_for_requests(pace() / 10);
            drop(paused);

            let token = client.line(0);
            client.send(&format!("LOCK.GUARD {key} {token} SET guarded 1"));
            assert!(client.line(1).starts_with("NOTHELD"), "{:?}", client.lines());
            client.send(&format!("LOCK.RENEW {key} {owner} {TTL}"));
            client.send(&format!("LOCK.RELEASE {key} {owner} TOKEN {token}"));
            for index in 2..4 {
                let answer = client.line(index);
                assert!(answer == "0" || answer == "-1", "{:?}", client.lines());
            }
            assert!(server.call("GET guarded").is_nil());
        });
    }
}
