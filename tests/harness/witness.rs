//! Looking whether anything happened at all.

use super::events::Events;
use super::replication::ReplicationStream;
use super::server::Server;
use super::snapshot::Snapshot;
use super::words::Words;

/// Sees all that a server stores, replicates and tells from a moment on.
///
/// No key may expire while it looks on.
pub(crate) struct Witness<'s> {
    server: &'s Server,
    stored: Snapshot,
    stream: ReplicationStream,
    events: Events,
    changes: u64,
}

impl Server {
    /// Begins to look on.
    pub(crate) fn witness(&self) -> Witness<'_> {
        let stream = self.replication_stream();
        let events = self.events();
        Witness {
            server: self,
            stored: self.snapshot(),
            stream,
            events,
            // The copy for the stream is done, so nothing but writes changes this number.
            changes: self.changes(),
        }
    }

    /// How many changes the server has counted since it last saved its keys.
    pub(crate) fn changes(&self) -> u64 {
        self.info_number("persistence", "rdb_changes_since_last_save")
    }
}

impl Witness<'_> {
    /// Makes sure that `what` has written nothing, replicated nothing, told no event and counted as
    /// no change.
    pub(crate) fn saw_nothing(&mut self, what: &str) {
        let replicated = self.stream.writes(self.server);
        assert!(replicated.is_empty(), "{what} replicated {replicated:?}");
        let events = self.events.so_far();
        assert!(events.is_empty(), "{what} caused the events {events:?}");
        assert_eq!(self.server.changes(), self.changes, "changes after {what}");
        assert_eq!(self.server.snapshot(), self.stored, "the keys after {what}");
    }

    /// What was replicated since the last look, and the events of the same time.
    pub(crate) fn saw(&mut self) -> (Vec<Words>, Vec<Words>) {
        let replicated = self.stream.writes(self.server);
        self.stored = self.server.snapshot();
        self.changes = self.server.changes();
        (replicated, self.events.so_far())
    }
}
