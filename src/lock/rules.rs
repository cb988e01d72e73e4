//! The rules of an exclusive lock: what each request does to the hold that stands.
//!
//! A rule looks at the present hold and answers with a decision that carries the bytes and the
//! deadline to write. It changes nothing but the fence, so a caller that fails half-way has at
//! most wasted a token.

use super::fence::{Fence, Token};
use super::lease::{Deadline, Ttl};
use super::record::{Encoded, MAX_HOLDS, Owner, Record, RequestId};
use super::time::UnixMicros;
use std::borrow::Cow;

/// The hold that a key stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hold<'a> {
    /// Who holds the lock. Foreign layouts know no limit of length.
    pub(crate) owner: Cow<'a, [u8]>,
    /// How often, at least 1.
    pub(crate) holds: u64,
    pub(crate) layout: Layout<'a>,
    /// `None` when the key has no TTL: the lock is held until it is released or deleted.
    pub(crate) deadline: Option<Deadline>,
}

/// How a hold is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout<'a> {
    /// A record of this module.
    Module {
        token: Token,
        request: Option<RequestId<'a>>,
    },
    /// A string that other software wrote, usually by `SET key owner NX PX ttl`: the whole value
    /// is the owner.
    Plain,
    /// A hash of one field that other software wrote: the field is the owner, its value the count.
    Hash,
}

impl<'a> Hold<'a> {
    /// What the value of a string key says.
    pub(crate) fn of_string(value: &'a [u8], deadline: Option<Deadline>) -> Self {
        match Record::parse(value) {
            Some(record) => Self {
                owner: Cow::Borrowed(record.owner.bytes()),
                holds: record.holds,
                layout: Layout::Module {
                    token: record.token,
                    request: record.request,
                },
                deadline,
            },
            None => Self {
                owner: Cow::Borrowed(value),
                holds: 1,
                layout: Layout::Plain,
                deadline,
            },
        }
    }

    /// What the only field of a hash and its value say. `None` when the value is no count.
    pub(crate) fn of_hash(
        owner: Vec<u8>,
        count: &[u8],
        deadline: Option<Deadline>,
    ) -> Option<Self> {
        let holds = std::str::from_utf8(count).ok()?.parse::<i64>().ok()?;
        Some(Self {
            owner: Cow::Owned(owner),
            holds: u64::try_from(holds).ok().filter(|&holds| holds > 0)?,
            layout: Layout::Hash,
            deadline,
        })
    }

    /// The token of the grant. Foreign layouts have none.
    pub(crate) fn token(&self) -> Option<Token> {
        match self.layout {
            Layout::Module { token, .. } => Some(token),
            Layout::Plain | Layout::Hash => None,
        }
    }

    /// Whether `owner` holds the lock, by this very grant when a token is given.
    pub(super) fn is_of(&self, owner: Owner<'_>, token: Option<Token>) -> bool {
        *self.owner == *owner.bytes() && (token.is_none() || token == self.token())
    }
}

/// What an acquire asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acquire<'a> {
    pub(crate) owner: Owner<'a>,
    pub(crate) ttl: Ttl,
    pub(crate) request: Option<RequestId<'a>>,
    /// Whether the owner that already holds the lock gets one hold more.
    pub(crate) reentrant: bool,
}

/// A record to write, and when its key expires.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Put {
    pub(crate) value: Encoded,
    /// `None`: never.
    pub(crate) deadline: Option<Deadline>,
}

/// The answer to an [`Acquire`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    /// The lock was free and is the owner's once `Put` is written.
    Granted(Token, Put),
    /// The owner holds it once more, under the token of its first hold.
    Reentered(Token, Put),
    /// The request was sent again: it gets its first answer, and nothing changes.
    Repeated(Token),
    /// Somebody holds it.
    Busy,
    /// The owner has [`MAX_HOLDS`] holds already.
    TooManyHolds,
    /// No token is left to mint.
    NoTokenLeft,
}

/// Decides an acquire.
///
/// A re-entry keeps the token and sets the lease to the longer of what is left and `ttl`, so an
/// inner hold never shortens the outer one. A foreign hold has no token to give again: its owner
/// is refused like anybody else.
pub(crate) fn acquire(
    hold: Option<&Hold<'_>>,
    asked: &Acquire<'_>,
    now: UnixMicros,
    fence: &mut Fence,
) -> Acquired {
    let lease = asked.ttl.deadline(now.as_millis());
    let Some(hold) = hold else {
        return match fence.mint(now) {
            None => Acquired::NoTokenLeft,
            Some(token) => {
                let record = Record {
                    token,
                    holds: 1,
                    request: asked.request,
                    owner: asked.owner,
                };
                Acquired::Granted(
                    token,
                    Put {
                        value: record.encode(),
                        deadline: Some(lease),
                    },
                )
            }
        };
    };
    let Layout::Module { token, request } = hold.layout else {
        return Acquired::Busy;
    };
    if !hold.is_of(asked.owner, None) {
        Acquired::Busy
    } else if asked.request.is_some() && asked.request == request {
        Acquired::Repeated(token)
    } else if !asked.reentrant {
        Acquired::Busy
    } else if hold.holds >= MAX_HOLDS {
        Acquired::TooManyHolds
    } else {
        let record = Record {
            token,
            holds: hold.holds + 1,
            request: asked.request.or(request),
            owner: asked.owner,
        };
        Acquired::Reentered(
            token,
            Put {
                value: record.encode(),
                deadline: hold.deadline.map(|current| current.max(lease)),
            },
        )
    }
}

/// The answer to a release.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Released {
    /// One hold ended, and this is left of the lock.
    Ended(Remainder),
    /// Somebody else holds the lock, or the owner holds it by another grant.
    NotYours,
    /// Nobody holds the lock.
    NoLock,
}

/// What is left of a lock of which one hold ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Remainder {
    /// Nothing: the lock is free once its key is deleted.
    Free,
    /// Other holds of the same owner: the record is to be written over the old one.
    Record(Put),
    /// Other holds of the same owner, in a foreign hash: their number is to be written into it.
    HashCount(u64),
}

/// Decides a release of one hold.
pub(crate) fn release(hold: Option<&Hold<'_>>, owner: Owner<'_>, token: Option<Token>) -> Released {
    let Some(hold) = hold else {
        return Released::NoLock;
    };
    if !hold.is_of(owner, token) {
        return Released::NotYours;
    }
    let holds = hold.holds - 1;
    Released::Ended(match hold.layout {
        _ if holds == 0 => Remainder::Free,
        Layout::Plain => Remainder::Free,
        Layout::Hash => Remainder::HashCount(holds),
        Layout::Module { token, request } => {
            let record = Record {
                token,
                holds,
                request,
                owner,
            };
            Remainder::Record(Put {
                value: record.encode(),
                deadline: hold.deadline,
            })
        }
    })
}

/// The answer to a renewal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    /// The lease ends at this deadline once it is written.
    Until(Deadline),
    /// Somebody else holds the lock, or the owner holds it by another grant.
    NotYours,
    /// Nobody holds the lock. A lost lock is never taken back.
    NoLock,
}

/// Decides a renewal: `ttl` from now *replaces* what is left of the lease, longer or shorter.
pub(crate) fn renew(
    hold: Option<&Hold<'_>>,
    owner: Owner<'_>,
    token: Option<Token>,
    ttl: Ttl,
    now: UnixMicros,
) -> Renewed {
    match hold {
        None => Renewed::NoLock,
        Some(hold) if !hold.is_of(owner, token) => Renewed::NotYours,
        Some(_) => Renewed::Until(ttl.deadline(now.as_millis())),
    }
}
