//! What a command answers.

use super::api::api;
use super::context::Context;
use crate::lock::fence::Token;
use crate::lock::queue::NoTokenLeft;
use crate::lock::record::Owner;
use std::ffi::{CString, c_long};

/// An answer.
#[derive(Debug)]
pub(crate) enum Reply {
    Integer(i64),
    Nil,
    Bulk(Vec<u8>),
    /// A word of this module's own, as a bulk string.
    Word(&'static str),
    Array(Vec<Reply>),
    /// Nothing yet: the client waits, or the server has answered it already.
    Later,
    /// Nothing yet: the client waits for a quorum, of which this server may be a node.
    OfQuorum,
    /// That of the command that stands in the arguments behind so many of them.
    OfCommandAfter(usize),
    /// Pairs in order; RESP2 clients get them as one flat array.
    Map(Vec<(Reply, Reply)>),
}

impl Reply {
    /// One hold of the owner's ended, or its lease was renewed.
    pub(crate) const DONE: Self = Self::Integer(1);
    /// Somebody else holds the lock, or the owner holds it by another grant.
    pub(crate) const NOT_YOURS: Self = Self::Integer(0);
    /// Nobody holds the lock: it lapsed, or was never held.
    pub(crate) const NO_LOCK: Self = Self::Integer(-1);

    /// A grant, with its owner where the server made that.
    pub(crate) fn grant(token: Token, made_owner: Option<Owner<'_>>) -> Self {
        match made_owner {
            None => Self::token(token),
            Some(owner) => {
                Self::Array(vec![Self::token(token), Self::Bulk(owner.bytes().to_vec())])
            }
        }
    }

    /// A number of things.
    pub(crate) fn count(number: usize) -> Self {
        Self::Integer(i64::try_from(number).unwrap_or(i64::MAX))
    }

    /// A number that is never negative.
    pub(crate) fn unsigned(number: u64) -> Self {
        Self::Integer(i64::try_from(number).unwrap_or(i64::MAX))
    }

    /// The token of a grant.
    pub(crate) fn token(token: Token) -> Self {
        Self::unsigned(token.get())
    }
}

/// An error answer. Its text is the reply, and the first word of that its code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    /// Answered in the server's own words.
    #[error("ERR wrong number of arguments")]
    WrongArity,
    #[error("ERR {0} is not an integer or out of range")]
    NotAnInteger(&'static str),
    #[error("ERR {0} must be positive")]
    NotPositive(&'static str),
    #[error("ERR {0} is negative")]
    Negative(&'static str),
    #[error("ERR {name} must be 1 to {max} bytes long")]
    BadLength { name: &'static str, max: usize },
    #[error("ERR unknown option '{0}'")]
    UnknownOption(Printable),
    #[error("ERR option {0} is given twice")]
    RepeatedOption(&'static str),
    #[error("ERR option {0} needs a value")]
    OptionWithoutValue(&'static str),
    #[error("ERR SHARED and LIMIT can't be given together")]
    SharedAndLimit,
    #[error("ERR numkeys is greater than the number of keys given")]
    TooManyKeys,
    #[error("ERR key '{0}' is given twice")]
    RepeatedKey(Printable),
    #[error("NOTHELD the token does not hold this lock")]
    NotHeld,
    #[error("ERR unknown command '{0}'")]
    UnknownCommand(Printable),
    #[error("ERR command '{0}' can't run under LOCK.GUARD: {1}")]
    Unguardable(Printable, &'static str),
    #[error("NOQUORUM {0}")]
    NoQuorum(String),
    #[error("ERR lock.quorum-nodes is not set")]
    NoNodes,
    #[error("ERR a quorum can't be asked in a transaction or a script")]
    QuorumWithoutConnection,
    #[error("ERR LIMIT can't be kept over a quorum: two majorities can each see room")]
    LimitOverQuorum,
    #[error("ERR {0} is ahead of the clock of this server by more than a day")]
    TokenAhead(&'static str),
    #[error("ERR ttl is longer than lock.quorum-max-ttl allows")]
    TtlOverMax,
    #[error("ERR ttl is too short for a quorum: the clocks of its nodes may differ by as much")]
    TtlTooShort,
    #[error(
        "NOVOTE this server restarted without appendfsync always, or was a replica, less than \
         lock.quorum-max-ttl ago and may have forgotten locks"
    )]
    MayNotVote,
    #[error("ERR REQID needs an owner of yours, not '*'")]
    RequestOfGeneratedOwner,
    #[error("ERR WATCHDOG needs a connection to watch, and a script has none")]
    WatchWithoutConnection,
    #[error("WRONGTYPE Operation against a key holding the wrong kind of value")]
    WrongType,
    #[error("ERR owner has too many holds of this lock")]
    TooManyHolds,
    #[error("ERR no token is left, the clock of this server is too far ahead")]
    NoTokenLeft,
    #[error("ERR WATCHDOG needs a lock with a token, and other software wrote this one")]
    WatchWithoutToken,
    #[error("DEADLOCK {0}")]
    Deadlock(String),
    #[error("QUEUEFULL as many clients wait as {0} allows")]
    QueueFull(&'static str),
    #[error("UNBLOCKED this server is a replica now, the lock is granted elsewhere")]
    Demoted,
    /// Cluster clients send such a request again, and the server then redirects them.
    #[error("TRYAGAIN the slot of this lock is moving to another server")]
    SlotMoving,
    #[error("ERR lock commands can't run inside a keyspace notification of this module")]
    Nested,
    #[error("ERR internal error, see the log of the server")]
    Internal,
}

/// The start of some bytes from outside, with everything unprintable escaped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Printable(String);

impl Printable {
    /// Keeps the first 64 bytes.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let start = bytes.get(..64).unwrap_or(bytes);
        Self(start.escape_ascii().to_string())
    }
}

impl From<NoTokenLeft> for Error {
    fn from(NoTokenLeft: NoTokenLeft) -> Self {
        Self::NoTokenLeft
    }
}

impl std::fmt::Display for Printable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Sends an answer to the client of `ctx`.
pub(super) fn send(ctx: Context<'_>, reply: &Reply) {
    let raw = ctx.as_raw();
    // SAFETY: the context is alive, and buffers are passed with their own length. The server
    // refuses only contexts that have no client, where there is nobody to answer.
    unsafe {
        match reply {
            Reply::Integer(value) => api!(RedisModule_ReplyWithLongLong(raw, *value)),
            Reply::Later | Reply::OfQuorum | Reply::OfCommandAfter(_) => super::api::OK,
            Reply::Nil => api!(RedisModule_ReplyWithNull(raw)),
            Reply::Bulk(bytes) => api!(RedisModule_ReplyWithStringBuffer(
                raw,
                bytes.as_ptr().cast(),
                bytes.len()
            )),
            Reply::Word(word) => api!(RedisModule_ReplyWithStringBuffer(
                raw,
                word.as_ptr().cast(),
                word.len()
            )),
            Reply::Array(items) => api!(RedisModule_ReplyWithArray(raw, length(items.len()))),
            Reply::Map(pairs) => api!(RedisModule_ReplyWithMap(raw, length(pairs.len()))),
        }
    };
    match reply {
        Reply::Array(items) => items.iter().for_each(|item| send(ctx, item)),
        Reply::Map(pairs) => pairs.iter().for_each(|(name, value)| {
            send(ctx, name);
            send(ctx, value);
        }),
        _ => {}
    }
}

/// Sends an error to the client of `ctx`.
pub(super) fn send_error(ctx: Context<'_>, error: &Error) {
    if *error == Error::WrongArity {
        // SAFETY: the context is alive.
        unsafe { api!(RedisModule_WrongArity(ctx.as_raw())) };
        return;
    }
    // Bytes from outside are escaped, so no text contains a NUL.
    let text = CString::new(error.to_string()).unwrap_or_default();
    // SAFETY: the context is alive and the text ends with a NUL.
    unsafe { api!(RedisModule_ReplyWithError(ctx.as_raw(), text.as_ptr())) };
}

fn length(items: usize) -> c_long {
    c_long::try_from(items).unwrap_or(c_long::MAX)
}
