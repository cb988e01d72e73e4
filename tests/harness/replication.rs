//! The commands that a server sends to its replicas.

use std::io::{self, BufRead, Read};

use super::raw::Raw;
use super::server::Server;
use super::words::Words;

/// What the marks are published to. Nobody listens there.
const MARKS: &str = "harness.marks";

/// A connection that the server takes for a replica, and that shows every command it is sent.
pub(crate) struct ReplicationStream {
    connection: Raw,
    /// How often the stream was marked, so that no two marks are alike.
    marks: u32,
}

impl ReplicationStream {
    /// Makes a full synchronisation with `server`, and starts with what comes after it.
    pub(super) fn of(server: &Server) -> Self {
        let mut connection = server.raw();
        // The oldest form of the request: the server answers with the file and its length, and does
        // not expect a replica that speaks of its progress.
        connection.send("SYNC");
        skip_rdb(connection.reader()).expect("a full synchronisation");
        Self {
            connection,
            marks: 0,
        }
    }

    /// The next command. It waits until there is one.
    pub(crate) fn read(&mut self) -> Words {
        self.connection.read().to_words()
    }

    /// All commands that `server` has sent since the last look, `SELECT` and `PING` included.
    ///
    /// The end is marked by a message that `server` publishes, which changes no key.
    pub(crate) fn until_marker(&mut self, server: &Server) -> Vec<Words> {
        self.marks += 1;
        let mark = format!("PUBLISH {MARKS} {}", self.marks);
        server.call(&mark);
        let mut commands = Vec::new();
        loop {
            let command = self.read();
            if command == mark.as_str() {
                return commands;
            }
            commands.push(command);
        }
    }

    /// The commands that changed keys: those of [`Self::until_marker`] without what replication
    /// needs for itself.
    pub(crate) fn writes(&mut self, server: &Server) -> Vec<Words> {
        let mut commands = self.until_marker(server);
        commands.retain(|command| {
            let name = command.text(0).to_ascii_uppercase();
            !matches!(name.as_str(), "SELECT" | "PING" | "REPLCONF")
        });
        commands
    }
}

/// Reads the file of a full synchronisation away.
fn skip_rdb(from: &mut impl BufRead) -> io::Result<()> {
    let mut header = String::new();
    // While the server writes the file, it sends empty lines to show that it is alive.
    while header.trim().is_empty() {
        header.clear();
        if from.read_line(&mut header)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let length = header
        .trim()
        .strip_prefix('$')
        .and_then(|length| length.parse().ok())
        .ok_or_else(|| io::Error::other(format!("not the header of a file: {header:?}")))?;
    io::copy(&mut from.take(length), &mut io::sink())?;
    Ok(())
}
