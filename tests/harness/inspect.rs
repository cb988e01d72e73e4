//! What a server tells about itself.

use std::collections::HashMap;

use super::aof;
use super::events::Events;
use super::replication::ReplicationStream;
use super::server::Server;
use super::snapshot::Snapshot;
use super::wait::{wait_for, wait_until};
use super::words::Words;

/// The counters that a server has for a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CommandStats {
    /// How often it ran.
    pub(crate) calls: u64,
    /// How long it ran in all, in microseconds.
    pub(crate) usec: u64,
    /// How often it was refused before it ran, such as for a wrong number of arguments.
    pub(crate) rejected: u64,
    /// How often it ran and answered with an error.
    pub(crate) failed: u64,
}

impl Server {
    /// A section of `INFO`.
    pub(crate) fn info(&self, section: &str) -> HashMap<String, String> {
        let info = self.call(("INFO", section));
        info.as_text()
            .lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(field, value)| (field.to_owned(), value.to_owned()))
            .collect()
    }

    /// A number in a section of `INFO`.
    pub(crate) fn info_number(&self, section: &str, field: &str) -> u64 {
        self.info(section)
            .get(field)
            .and_then(|value| value.parse().ok())
            .unwrap_or_else(|| panic!("no number `{field}` in INFO {section}"))
    }

    /// How many clients wait in a blocking command.
    pub(crate) fn blocked_clients(&self) -> u64 {
        self.info_number("clients", "blocked_clients")
    }

    /// Waits until just so many clients wait in a blocking command.
    pub(crate) fn wait_for_blocked(&self, clients: u64) {
        wait_until(&format!("{clients} blocked clients"), || {
            self.blocked_clients() == clients
        });
    }

    /// The number of keys in database 0.
    pub(crate) fn dbsize(&self) -> i64 {
        self.call("DBSIZE").as_int()
    }

    /// The counters for a command, all zero when it never ran.
    pub(crate) fn command_stats(&self, command: &str) -> CommandStats {
        let info = self.info("commandstats");
        // Servers write the names of a module's commands as the module does.
        let name = format!("cmdstat_{command}");
        let Some((_, line)) = info
            .iter()
            .find(|(field, _)| field.eq_ignore_ascii_case(&name))
        else {
            return CommandStats::default();
        };
        let fields: HashMap<&str, &str> = line
            .split(',')
            .filter_map(|field| field.split_once('='))
            .collect();
        let number = |name: &str| fields[name].parse().unwrap();
        CommandStats {
            calls: number("calls"),
            usec: number("usec"),
            rejected: number("rejected_calls"),
            failed: number("failed_calls"),
        }
    }

    /// Every command that the server sends to replicas from now on.
    pub(crate) fn replication_stream(&self) -> ReplicationStream {
        ReplicationStream::of(self)
    }

    /// Every keyspace event from now on.
    pub(crate) fn events(&self) -> Events {
        Events::of(self)
    }

    /// All commands in the append only file. See [`ServerBuilder::aof`].
    pub(crate) fn aof_commands(&self) -> Vec<Words> {
        // The file is written before the server answers, so this answer comes after all that
        // happened before, also by a timer.
        self.call("PING");
        aof::commands(self.dir())
    }

    /// All keys with all that is stored.
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot::of(self)
    }

    /// Waits until this replica has all that `primary` had written when this was called.
    pub(crate) fn wait_in_sync_with(&self, primary: &Self) {
        let wanted = primary.info_number("replication", "master_repl_offset");
        wait_for("the replica to catch up", || {
            (self.is_linked() && self.info_number("replication", "slave_repl_offset") >= wanted)
                .then_some(())
        });
    }

    /// Whether this replica has its copy and gets what is new.
    pub(super) fn is_linked(&self) -> bool {
        self.info("replication")
            .get("master_link_status")
            .is_some_and(|status| status == "up")
    }
}
