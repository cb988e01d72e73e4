//! The rules of a lock: what each request does to those who hold it.
//!
//! A rule looks at the present state and answers with a decision that carries what to write. It
//! changes nothing but the fence, so a caller that fails half-way has at most wasted a token.

use super::fence::{Fence, Token};
use super::lease::{Deadline, Ttl};
use super::record::{Encoded, MAX_HOLDS, Owner, Record, RequestId};
use super::share::MAX_DEADLINE;
use super::time::{UnixMicros, UnixMillis};
use std::borrow::Cow;
use std::num::NonZeroU32;

/// What the key of a lock says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LockState<'a> {
    /// Nobody holds the lock.
    Free,
    /// One owner holds it alone.
    Exclusive(Hold<'a>),
    /// One or more owners hold it side by side.
    Shared(Shares),
}

/// For whom the state of a lock is read. It says as much of those who share the lock as this one
/// has to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker<'a> {
    pub(crate) owner: Owner<'a>,
    pub(crate) request: Option<RequestId<'a>>,
    /// Whether it has to know how many share the lock.
    pub(crate) counts: bool,
}

impl<'a> Asker<'a> {
    /// An owner that has asked for nothing yet.
    pub(crate) fn of(owner: Owner<'a>) -> Self {
        Self {
            owner,
            request: None,
            counts: false,
        }
    }
}

/// Those who share a lock, as far as one owner's request has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    /// The share of the owner that the state was read for.
    pub(crate) own: Option<Share>,
    /// How many hold the lock. Counted only for a request with a limit.
    pub(crate) count: Option<usize>,
    /// When the first of them lapses.
    pub(crate) next_lapse: Deadline,
}

/// One owner's share of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// `None` when somebody took it out of the set by hand.
    pub(crate) token: Option<Token>,
    pub(crate) deadline: Deadline,
    /// Whether it was granted to the very request that the state was read for.
    pub(crate) is_repeated: bool,
}

/// The grant by which one owner holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Own {
    /// Foreign layouts have none.
    pub(crate) token: Option<Token>,
    /// `None`: until it is released or deleted.
    pub(crate) deadline: Option<Deadline>,
}

/// When a lease ends that begins at `now`. That of a share has to fit into a score.
pub(crate) fn lease(is_shared: bool, ttl: Ttl, now: UnixMillis) -> Deadline {
    let deadline = ttl.deadline(now);
    if is_shared {
        deadline.min(MAX_DEADLINE)
    } else {
        deadline
    }
}

impl LockState<'_> {
    /// Whether it is held side by side.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// The grant by which `owner`, for whom the state was read, holds the lock.
    pub(crate) fn own(&self, owner: Owner<'_>) -> Option<Own> {
        match self {
            Self::Free => None,
            Self::Exclusive(hold) => hold.is_of(owner).then(|| Own {
                token: hold.token(),
                deadline: hold.deadline,
            }),
            Self::Shared(shares) => shares.own.map(|share| Own {
                token: share.token,
                deadline: Some(share.deadline),
            }),
        }
    }

    /// When a hold of the lock lapses next.
    pub(crate) fn next_lapse(&self) -> Option<Deadline> {
        match self {
            Self::Free => None,
            Self::Exclusive(hold) => hold.deadline,
            Self::Shared(shares) => Some(shares.next_lapse),
        }
    }
}

/// The hold of an owner that has a lock alone.
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

    /// Whether it is the owner's.
    pub(crate) fn is_of(&self, owner: Owner<'_>) -> bool {
        *self.owner == *owner.bytes()
    }
}

/// How a request wants to hold a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Alone.
    Exclusive {
        /// Whether the owner that already holds the lock gets one hold more.
        reentrant: bool,
    },
    /// Beside others that want the same.
    Shared {
        /// The most that may hold it then, the new one counted. `None`: any number.
        limit: Option<NonZeroU32>,
    },
}

impl Mode {
    /// Whether it is side by side.
    fn is_shared(self) -> bool {
        matches!(self, Self::Shared { .. })
    }
}

/// What an acquire asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acquire<'a> {
    pub(crate) owner: Owner<'a>,
    pub(crate) ttl: Ttl,
    pub(crate) request: Option<RequestId<'a>>,
    pub(crate) mode: Mode,
}

impl<'a> Acquire<'a> {
    /// For whom the state is to be read.
    pub(crate) fn asker(&self) -> Asker<'a> {
        Asker {
            owner: self.owner,
            request: self.request,
            counts: matches!(self.mode, Mode::Shared { limit: Some(_) }),
        }
    }
}

/// A record to write, and when its key expires.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Put {
    pub(crate) value: Encoded,
    /// `None`: never.
    pub(crate) deadline: Option<Deadline>,
}

/// What makes a grant, once it is written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Write {
    /// The record of an owner that has the lock alone.
    Record(Put),
    /// A share that ends at this deadline, beside those of others.
    Share(Deadline),
}

impl Write {
    /// When the lease that it makes ends; `None`: never.
    pub(crate) fn deadline(&self) -> Option<Deadline> {
        match self {
            Self::Record(put) => put.deadline,
            Self::Share(deadline) => Some(*deadline),
        }
    }
}

/// The answer to an [`Acquire`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    /// The lock is the owner's once `Write` is done.
    Granted(Token, Write),
    /// The owner holds it once more, under the token of its first hold.
    Reentered(Token, Put),
    /// The request was sent again: it gets its first answer, and nothing changes.
    Repeated(Token),
    /// Somebody holds it in a way that leaves no room, or waits for it.
    Busy,
    /// The owner has [`MAX_HOLDS`] holds already.
    TooManyHolds,
    /// No token is left to mint.
    NoTokenLeft,
}

/// Decides an acquire. `is_queued` says whether somebody waits whom the request must not overtake.
///
/// A re-entry keeps the token and sets the lease to the longer of what is left and `ttl`, so an
/// inner hold never shortens the outer one. A foreign hold has no token to give again: its owner
/// is refused like anybody else. A share is not re-entrant, and an owner that has one gets neither
/// a second nor the lock alone.
pub(crate) fn acquire(
    state: &LockState<'_>,
    asked: &Acquire<'_>,
    is_queued: bool,
    now: UnixMicros,
    fence: &mut Fence,
) -> Acquired {
    match state {
        LockState::Free if is_queued => Acquired::Busy,
        LockState::Free => grant(asked, now, fence),
        LockState::Exclusive(hold) => match asked.mode {
            Mode::Exclusive { reentrant } => acquire_held(hold, asked, reentrant, now),
            Mode::Shared { .. } => Acquired::Busy,
        },
        LockState::Shared(shares) => match (asked.mode, shares.own) {
            (Mode::Exclusive { .. }, _) => Acquired::Busy,
            (Mode::Shared { .. }, Some(own)) => match own.token {
                Some(token) if own.is_repeated => Acquired::Repeated(token),
                _ => Acquired::Busy,
            },
            (Mode::Shared { limit }, None) => {
                if is_queued || limit.is_some_and(|limit| shares.is_full(limit)) {
                    Acquired::Busy
                } else {
                    grant(asked, now, fence)
                }
            }
        },
    }
}

impl Shares {
    /// Whether no more than these may hold the lock by `limit`.
    fn is_full(&self, limit: NonZeroU32) -> bool {
        self.count
            .is_none_or(|count| u32::try_from(count).map_or(true, |count| count >= limit.get()))
    }
}

/// Grants a lock that is free, or has room.
fn grant(asked: &Acquire<'_>, now: UnixMicros, fence: &mut Fence) -> Acquired {
    let Some(token) = fence.mint(now) else {
        return Acquired::NoTokenLeft;
    };
    Acquired::Granted(token, grant_under(token, asked, now))
}

/// What makes a grant under a token. Several locks that are granted together have one token.
pub(crate) fn grant_under(token: Token, asked: &Acquire<'_>, now: UnixMicros) -> Write {
    let lease = lease(asked.mode.is_shared(), asked.ttl, now.as_millis());
    match asked.mode {
        Mode::Exclusive { .. } => Write::Record(Put {
            value: Record {
                token,
                holds: 1,
                request: asked.request,
                owner: asked.owner,
            }
            .encode(),
            deadline: Some(lease),
        }),
        Mode::Shared { .. } => Write::Share(lease),
    }
}

/// Decides a request for a lock that one owner has alone.
fn acquire_held(
    hold: &Hold<'_>,
    asked: &Acquire<'_>,
    reentrant: bool,
    now: UnixMicros,
) -> Acquired {
    let Layout::Module { token, request } = hold.layout else {
        return Acquired::Busy;
    };
    if !hold.is_of(asked.owner) {
        Acquired::Busy
    } else if asked.request.is_some() && asked.request == request {
        Acquired::Repeated(token)
    } else if !reentrant {
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
        let lease = asked.ttl.deadline(now.as_millis());
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
    /// One hold ended, under this token if it had one, and this is left of the lock.
    Ended(Option<Token>, Remainder),
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
    /// What others share of it, if any do: the owner's share is to be taken out.
    OtherShares,
}

/// Decides a release of one hold, by one very grant when a token is given.
pub(crate) fn release(state: &LockState<'_>, owner: Owner<'_>, token: Option<Token>) -> Released {
    if *state == LockState::Free {
        return Released::NoLock;
    }
    let Some(own) = state.own(owner).filter(|own| own.is_by(token)) else {
        return Released::NotYours;
    };
    let remainder = match state {
        LockState::Free => Remainder::Free,
        LockState::Shared(_) => Remainder::OtherShares,
        LockState::Exclusive(hold) => remainder_of(hold, owner),
    };
    Released::Ended(own.token, remainder)
}

impl Own {
    /// Whether it is the very grant that a request names, if it names one.
    pub(crate) fn is_by(&self, token: Option<Token>) -> bool {
        token.is_none() || token == self.token
    }
}

/// What is left of a hold when its owner ends one.
fn remainder_of(hold: &Hold<'_>, owner: Owner<'_>) -> Remainder {
    let holds = hold.holds - 1;
    match hold.layout {
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
    }
}

/// The answer to a renewal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    /// The lease of the hold under this token, if it has one, ends at this deadline once it is
    /// written.
    Until(Option<Token>, Deadline),
    /// Somebody else holds the lock, or the owner holds it by another grant.
    NotYours,
    /// Nobody holds the lock. A lost lock is never taken back.
    NoLock,
}

/// Decides a renewal: `ttl` from now *replaces* what is left of the lease, longer or shorter.
pub(crate) fn renew(
    state: &LockState<'_>,
    owner: Owner<'_>,
    token: Option<Token>,
    ttl: Ttl,
    now: UnixMicros,
) -> Renewed {
    if *state == LockState::Free {
        return Renewed::NoLock;
    }
    match state.own(owner).filter(|own| own.is_by(token)) {
        None => Renewed::NotYours,
        Some(own) => Renewed::Until(own.token, lease(state.is_shared(), ttl, now.as_millis())),
    }
}
