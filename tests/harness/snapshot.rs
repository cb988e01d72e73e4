//! All that a server stores, to compare two servers or two moments.

use std::collections::BTreeMap;
use std::fmt;

use super::raw::Raw;
use super::reply::Reply;
use super::server::Server;
use super::words::Words;

/// Every key of every database with its type, its value and the time at which it expires.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Snapshot(BTreeMap<(u32, Vec<u8>), Entry>);

/// What is stored at a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The type, as `TYPE` names it.
    pub(crate) kind: String,
    /// The elements, sorted where the server gives them in no order. A type without a command that
    /// gives all of it, such as a stream, is what `DUMP` makes of it.
    pub(crate) value: Words,
    /// The time in unix milliseconds, or -1 for never.
    pub(crate) expires: i64,
}

impl Snapshot {
    /// Reads all keys of `server`. A key that expires meanwhile is left out.
    pub(super) fn of(server: &Server) -> Self {
        let mut connection = server.raw();
        let mut entries = BTreeMap::new();
        for database in server.info("keyspace").keys() {
            let number: u32 = database.strip_prefix("db").unwrap().parse().unwrap();
            assert_eq!(connection.call(format!("SELECT {number}")), "OK");
            for key in connection.call("KEYS *").to_words().0 {
                if let Some(entry) = Entry::read(&mut connection, &key) {
                    entries.insert((number, key), entry);
                }
            }
        }
        Self(entries)
    }

    /// What is stored at a key of a database.
    pub(crate) fn get(&self, database: u32, key: impl AsRef<[u8]>) -> Option<&Entry> {
        self.0.get(&(database, key.as_ref().to_vec()))
    }

    /// The number of keys.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl Entry {
    /// Reads what is stored at `key`, in the database that the connection has selected.
    fn read(connection: &mut Raw, key: &[u8]) -> Option<Self> {
        let kind = connection.call(("TYPE", key)).as_text().to_owned();
        let expires = connection.call(("PEXPIRETIME", key)).as_int();
        let value = match kind.as_str() {
            "string" => connection.call(("GET", key)),
            "hash" => connection.call(("HGETALL", key)),
            "list" => connection.call(("LRANGE", key, 0, -1)),
            "set" => connection.call(("SMEMBERS", key)),
            "zset" => connection.call(("ZRANGE", key, 0, -1, "WITHSCORES")),
            _ => connection.call(("DUMP", key)),
        };
        let value = match value {
            Reply::Bulk(bytes) => Words(vec![bytes]),
            Reply::Array(_) => value.to_words(),
            // It expired between the two commands.
            _ => return None,
        };
        let value = match kind.as_str() {
            "hash" => sorted(&value, 2),
            "set" => sorted(&value, 1),
            _ => value,
        };
        Some(Self {
            kind,
            value,
            expires,
        })
    }
}

/// The words in order, where each `size` of them belong together.
fn sorted(words: &Words, size: usize) -> Words {
    let mut groups: Vec<&[Vec<u8>]> = words.chunks(size).collect();
    groups.sort();
    Words(groups.concat())
}

impl fmt::Debug for Snapshot {
    /// One line per key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((database, key), entry) in &self.0 {
            let Entry {
                kind,
                value,
                expires,
            } = entry;
            writeln!(
                f,
                "db{database} {}: {kind} {value:?} expires {expires}",
                key.escape_ascii()
            )?;
        }
        Ok(())
    }
}
