//! Servers that are the nodes of one quorum.

use std::ops::Deref;
use std::process::Command;
use std::thread;

use super::builder::ServerBuilder;
use super::flavour::Flavour;
use super::server::{Server, Stopped};
use super::wait::wait_until;

/// Servers that know all of them as the nodes of a quorum. Each can be asked for its locks.
///
/// A node has a minute for an answer, which is longer than any test waits: who gets an answer did
/// not wait for a node that is stopped. A test that wants a node to be given up sets a short time.
pub(crate) struct Quorum {
    nodes: Vec<Server>,
}

impl Quorum {
    /// So many servers of one kind, with files that let them vote at once.
    pub(crate) fn start(flavour: Flavour, count: usize) -> Self {
        Self::start_all((0..count).map(|_| Server::build(flavour).aof()))
    }

    /// The servers that are described here.
    pub(crate) fn start_all(builders: impl IntoIterator<Item = ServerBuilder>) -> Self {
        let starting: Vec<_> = builders
            .into_iter()
            .map(|builder| thread::spawn(|| builder.start()))
            .collect();
        let nodes: Vec<Server> = starting
            .into_iter()
            .map(|node| node.join().expect("a server"))
            .collect();
        let quorum = Self { nodes };
        let addresses = quorum.addresses();
        for node in &quorum.nodes {
            configure(node, &addresses);
        }
        quorum
    }

    /// The list of all nodes, as the setting has it.
    pub(crate) fn addresses(&self) -> String {
        let addresses = self.nodes.iter().map(address);
        addresses.collect::<Vec<_>>().join(",")
    }

    /// Sets something on every node that has the module.
    pub(crate) fn set(&self, name: &str, value: &str) {
        for node in &self.nodes {
            assert_eq!(node.call(("CONFIG", "SET", name, value)), "OK", "{name}");
        }
    }

    /// Kills the last node, as `kill -9` does. The others have it in their lists all the same.
    pub(crate) fn kill_last(&mut self) -> Stopped {
        self.nodes.pop().expect("a node").kill()
    }

    /// Takes a node in that was killed and has been started again.
    pub(crate) fn rejoin(&mut self, node: Server, addresses: &str) {
        configure(&node, addresses);
        self.nodes.push(node);
    }
}

impl Deref for Quorum {
    type Target = [Server];

    fn deref(&self) -> &[Server] {
        &self.nodes
    }
}

/// Where a server listens, as the setting has it.
pub(crate) fn address(node: &Server) -> String {
    format!("127.0.0.1:{}", node.port())
}

/// Tells a node of all nodes. One without the module is left alone.
fn configure(node: &Server, addresses: &str) {
    for (name, value) in [
        ("lock.quorum-nodes", addresses),
        ("lock.quorum-node-timeout", "60000"),
        ("lock.quorum-max-ttl", "1000000"),
        ("lock.quorum-retry-delay", "2"),
        ("lock.quorum-retry-jitter", "20"),
    ] {
        let set = node.call(("CONFIG", "SET", name, value));
        let modules = node.call("MODULE LIST");
        let has_module = modules
            .items()
            .iter()
            .any(|module| *module.field("name") == *"lock");
        assert!(set == "OK" || !has_module, "{name}: {set:?}");
    }
}

/// A process that stands still until this is dropped.
pub(crate) struct Paused {
    pid: u32,
}

impl Server {
    /// Stops the process, which keeps its connections and gets what is sent to it later.
    pub(crate) fn pause(&self) -> Paused {
        pause(self.pid())
    }
}

/// Stops a process that a test has started.
pub(crate) fn pause(pid: u32) -> Paused {
    let paused = Paused { pid };
    paused.signal("-STOP");
    wait_until("the process to stand still", || {
        let state = Command::new("ps")
            .args(["-o", "stat=", "-p", &pid.to_string()])
            .output()
            .expect("the state of a process");
        state.stdout.starts_with(b"T")
    });
    paused
}

impl Paused {
    fn signal(&self, signal: &str) {
        let status = Command::new("kill")
            .args([signal, &self.pid.to_string()])
            .status()
            .expect("a signal to send");
        assert!(status.success(), "{signal}: {status}");
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        self.signal("-CONT");
    }
}
