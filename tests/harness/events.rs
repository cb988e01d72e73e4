//! The keyspace events of a server.

use super::raw::Raw;
use super::server::Server;
use super::words::Words;

/// A subscription to all keyspace events of all databases. An event is the words
/// `<database> <event> <key>`: `assert_eq!(events.so_far(), ["0 set k", "0 del k"])`.
pub(crate) struct Events {
    connection: Raw,
    /// How often the stream was marked, so that no two marks are alike.
    marks: u32,
}

impl Events {
    /// Switches events on and subscribes.
    pub(super) fn of(server: &Server) -> Self {
        assert_eq!(server.call("CONFIG SET notify-keyspace-events AE"), "OK");
        let mut connection = server.raw();
        connection.call("PSUBSCRIBE __keyevent@*__:*");
        Self {
            connection,
            marks: 0,
        }
    }

    /// The events that were published since the last look. It waits for none: an event of a command
    /// that was answered is there.
    pub(crate) fn so_far(&mut self) -> Vec<Words> {
        self.marks += 1;
        let mark = format!("mark-{}", self.marks);
        // A subscriber may send `PING`, and its answer comes after what was published before.
        self.connection.send(("PING", &mark));
        let mut events = Vec::new();
        loop {
            let message = self.connection.read().to_words();
            if message.matches(&format!("pong {mark}")) {
                return events;
            }
            events.push(event(&message));
        }
    }

    /// The next event. It waits until there is one.
    pub(crate) fn read(&mut self) -> Words {
        event(&self.connection.read().to_words())
    }
}

/// The event in a message of the subscription.
fn event(message: &Words) -> Words {
    // `pmessage <pattern> __keyevent@<database>__:<event> <key>`
    let (database, name) = message
        .text(2)
        .strip_prefix("__keyevent@")
        .and_then(|channel| channel.split_once("__:"))
        .unwrap_or_else(|| panic!("not a keyspace event: {message}"));
    Words(vec![database.into(), name.into(), message[3].clone()])
}
