//! What is written down of a run: what the server replicated, and what each client was told.
//!
//! The server's replication stream is the one order of all that happened. Every grant is in it, as a
//! `SET` or a `ZADD` with its token and its deadline, and every end of a hold, as a `DEL`, a `ZREM`
//! or a `SET` with one hold less. To say where in this order a request arrived, the client sends a
//! `PUBLISH` with the number of the request before the request itself, in one write. The server
//! replicates the `PUBLISH`, and runs what one client sent at once without anything in between. A
//! request that does not block is followed by a second `PUBLISH`, so that it is known which writes
//! are its own. Marks are published over a connection of their own, and tell which time it was.

use crate::harness::Words;

/// The locks, which are called by their place in here.
pub(super) const KEYS: [&str; 4] = ["k0", "k1", "k2", "k3"];

/// The channels of the messages that say where a request arrived, and where it was done.
pub(super) const BEGAN: &str = "history.began";
pub(super) const ENDED: &str = "history.ended";
/// The channel of marks.
pub(super) const MARK: &str = "history.mark";

/// How a request wants to hold its locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Alone.
    Exclusive,
    /// Alone, or once more.
    Reentrant,
    /// Beside any number.
    Shared,
    /// As one of so many.
    Limit(usize),
}

impl Mode {
    /// Whether others can hold the lock at the same time.
    pub(super) fn is_shared(self) -> bool {
        matches!(self, Self::Shared | Self::Limit(_))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Acquire {
        mode: Mode,
        ttl: i64,
        /// How long it is content to wait, in milliseconds; 0 is for ever.
        block: Option<i64>,
    },
    Release,
    Renew {
        ttl: i64,
    },
    /// Somebody deletes the keys by hand.
    Delete,
    /// Somebody ends the wait of a client, or its connection.
    SendAway,
}

/// What a client was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing so far.
    Open,
    /// Nothing, because its connection ended.
    Gone,
    /// It has the locks, under this token.
    Granted(i64),
    /// It was not granted.
    Nil,
    /// An error with this code.
    Error(String),
    /// 1, 0 or -1 for each key.
    Answers(Vec<i64>),
}

/// Something that was sent to the server.
#[derive(Clone, Debug)]
pub(super) struct Op {
    /// The server's number of the connection.
    pub(super) client: i64,
    pub(super) owner: String,
    pub(super) keys: Vec<usize>,
    pub(super) kind: Kind,
    /// A moment before it was sent, in unix milliseconds.
    pub(super) sent: i64,
    /// The most milliseconds that it can have taken.
    pub(super) took: i64,
    pub(super) outcome: Outcome,
    /// The last mark that came back while the request cannot have left by its own time-out or by
    /// hanging up.
    pub(super) stayed: Option<usize>,
    /// What sent it away, and in which form of `CLIENT UNBLOCK`, or `KILL`.
    pub(super) sent_away: Option<(usize, &'static str)>,
    /// Whether it was seen in a queue.
    pub(super) was_seen: bool,
}

impl Op {
    /// Whether both want some lock.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.keys.iter().any(|key| other.keys.contains(key))
    }

    /// The mode of a request for locks.
    pub(super) fn mode(&self) -> Option<Mode> {
        match self.kind {
            Kind::Acquire { mode, .. } => Some(mode),
            _ => None,
        }
    }

    /// Whether its client may not have been told of a grant, although there was one.
    pub(super) fn may_have_missed_a_grant(&self) -> bool {
        self.mode().is_some()
            && match self.outcome {
                Outcome::Gone => true,
                Outcome::Nil | Outcome::Error(_) => self.sent_away.is_some(),
                _ => false,
            }
    }
}

/// One thing in the order of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A request has arrived and is run next.
    Began(usize),
    /// A request that does not wait has been run.
    Ended(usize),
    /// A mark.
    Mark(usize),
    /// Somebody holds a lock alone.
    Record {
        key: usize,
        token: i64,
        holds: usize,
        owner: String,
        deadline: i64,
    },
    /// Somebody has a share of a lock.
    Share {
        key: usize,
        token: i64,
        owner: String,
        deadline: i64,
    },
    /// A share has another deadline.
    ShareDeadline {
        key: usize,
        owner: String,
        deadline: i64,
    },
    /// A key has another deadline.
    KeyDeadline { key: usize, deadline: i64 },
    /// Somebody has a share no longer.
    Unshared { key: usize, owner: String },
    /// A key is gone.
    Deleted { key: usize },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    /// What was replicated in one transaction has one number.
    pub(super) unit: usize,
    pub(super) what: What,
}

/// Who waited for each of the locks at a mark, as the server told it in the same step.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) mark: usize,
    pub(super) queues: [Vec<usize>; KEYS.len()],
    /// Whether the server had been left in peace until nobody more was to be granted.
    pub(super) is_quiet: bool,
}

/// A whole run.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    pub(super) ops: Vec<Op>,
    pub(super) events: Vec<Event>,
    pub(super) snapshots: Vec<Snapshot>,
    /// For each mark a moment before it was sent, and one after it came back, in unix milliseconds.
    pub(super) marks: Vec<(i64, i64)>,
}

/// Reads the replication stream.
#[derive(Default)]
pub(super) struct StreamReader {
    unit: usize,
    is_in_transaction: bool,
}

impl StreamReader {
    /// What these commands say, which follow those that were read before.
    pub(super) fn read(&mut self, commands: &[Words]) -> Vec<Event> {
        let mut events = Vec::new();
        for command in commands {
            let name = command.text(0).to_ascii_uppercase();
            match name.as_str() {
                "MULTI" => self.is_in_transaction = true,
                "EXEC" => self.is_in_transaction = false,
                _ => {
                    let unit = self.unit;
                    let what = read_command(&name, command);
                    events.extend(what.into_iter().map(|what| Event { unit, what }));
                }
            }
            self.unit += usize::from(!self.is_in_transaction);
        }
        events
    }
}

/// What a command says.
fn read_command(name: &str, command: &Words) -> Vec<What> {
    let key = || {
        KEYS.iter()
            .position(|key| *key == command.text(1))
            .unwrap_or_else(|| panic!("not one of the keys: {command}"))
    };
    let number = || usize::try_from(command.int(2)).unwrap();
    match name {
        "SELECT" | "PING" => vec![],
        "PUBLISH" => vec![match command.text(1) {
            BEGAN => What::Began(number()),
            ENDED => What::Ended(number()),
            MARK => What::Mark(number()),
            _ => panic!("not a message of these tests: {command}"),
        }],
        "SET" => {
            assert!(command.len() == 5 && command.text(3) == "PXAT", "{command}");
            let parts: Vec<&str> = command.text(2).splitn(4, ':').collect();
            let ["lk1", token, holds, owner] = parts[..] else {
                panic!("not a record: {command}");
            };
            vec![What::Record {
                key: key(),
                token: token.parse().unwrap(),
                holds: holds.parse().unwrap(),
                owner: owner.to_owned(),
                deadline: command.int(4),
            }]
        }
        "ZADD" => vec![read_shares(key(), command)],
        "PEXPIREAT" => vec![What::KeyDeadline {
            key: key(),
            deadline: command.int(2),
        }],
        "ZREM" => read_members(key(), command),
        "DEL" | "UNLINK" => {
            assert_eq!(command.len(), 2, "{command}");
            vec![What::Deleted { key: key() }]
        }
        _ => panic!("nobody should write this: {command}"),
    }
}

/// What a `ZADD` says.
fn read_shares(key: usize, command: &Words) -> What {
    let (mut token, mut holder) = (None, None);
    for index in (2..command.len()).step_by(2) {
        let (score, member) = (command.int(index), command.text(index + 1));
        if let Some(owner) = member.strip_prefix("o:") {
            holder = Some((owner.to_owned(), score));
        } else if let Some(owner) = member.strip_prefix("t:") {
            token = Some((owner.to_owned(), -score));
        } else {
            assert!(member == "lk1s" && score == 0, "{command}");
        }
    }
    let (owner, deadline) = holder.unwrap_or_else(|| panic!("nobody's share: {command}"));
    match token {
        Some((other, token)) => {
            assert_eq!(other, owner, "{command}");
            What::Share {
                key,
                token,
                owner,
                deadline,
            }
        }
        None => What::ShareDeadline {
            key,
            owner,
            deadline,
        },
    }
}

/// What a `ZREM` says: whose shares are gone, with all that belongs to them.
fn read_members(key: usize, command: &Words) -> Vec<What> {
    let members: Vec<&str> = (2..command.len())
        .map(|index| command.text(index))
        .collect();
    let owners: Vec<&str> = members
        .iter()
        .filter_map(|member| member.strip_prefix("o:"))
        .collect();
    for owner in &owners {
        let token = format!("t:{owner}");
        assert!(members.iter().any(|member| *member == token), "{command}");
    }
    assert_eq!(members.len(), 2 * owners.len(), "{command}");
    owners
        .into_iter()
        .map(|owner| What::Unshared {
            key,
            owner: owner.to_owned(),
        })
        .collect()
}
