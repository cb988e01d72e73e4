//! The sorted set of a shared lock, see [`crate::lock::share`] for its members.
//!
//! Each change is the plain command that would make it: `ZADD`, `ZREM`, and `PEXPIREAT` so that the
//! key's TTL is always the latest deadline. The set goes, by `DEL`, with the last share.

use super::api::{OK, api};
use super::clock::wall_clock;
use super::key::{Holder, HolderLayout, Key};
use super::notify::EventClass;
use super::reply::Error;
use super::string::{OwnedStr, Str};
use crate::lock::fence::{Fence, Token};
use crate::lock::lease::Deadline;
use crate::lock::record::{Owner, OwnerBuf, RequestId, RequestIdBuf};
use crate::lock::rules::{Asker, LockState, Share, Shares};
use crate::lock::share::{self, MARK, MAX_DEADLINE, Member};
use crate::lock::time::UnixMillis;
use redis_module::raw;
use std::collections::HashSet;
use std::ffi::{CStr, c_int, c_longlong};
use std::ptr;

/// A range of scores.
#[derive(Clone, Copy)]
struct Range {
    min: f64,
    max: f64,
    /// Whether `min` and `max` themselves are left out.
    is_open: bool,
}

impl Range {
    /// The deadlines of leases that last at `now`.
    fn lasting(now: UnixMillis) -> Self {
        Self {
            min: share::exact(now.0),
            max: share::exact(MAX_DEADLINE.0),
            is_open: false,
        }
    }

    /// The deadlines of leases that have lapsed at `now`.
    fn lapsed(now: UnixMillis) -> Self {
        Self {
            min: 0.0,
            max: share::exact(now.0),
            is_open: true,
        }
    }

    /// All that belongs to one token.
    fn of_token(token: Token) -> Self {
        let score = share::exact(share::score_of_token(token));
        Self {
            min: score,
            max: score,
            is_open: false,
        }
    }

    /// All tokens, the highest first.
    const TOKENS: Self = Self {
        min: f64::NEG_INFINITY,
        max: 0.0,
        is_open: true,
    };

    /// All deadlines. What is above the latest possible one is none, and is nobody's.
    fn deadlines() -> Self {
        Self {
            min: 0.0,
            max: share::exact(MAX_DEADLINE.0) + 1.0,
            is_open: true,
        }
    }
}

/// What there is to replicate of a change: scores and members, or members alone.
#[derive(Default)]
struct Words(Vec<OwnedStr>);

impl Words {
    fn push(&mut self, bytes: &[u8]) {
        self.0.push(OwnedStr::new(bytes));
    }

    fn push_score(&mut self, score: i64) {
        self.push(itoa::Buffer::new().format(score).as_bytes());
    }
}

impl Key<'_> {
    /// What the set says to one who asks. `count` is how many share the lock, if that was counted.
    pub(super) fn shares(
        &self,
        asker: Asker<'_>,
        count: Option<usize>,
        fence: &mut Fence,
    ) -> Result<LockState<'_>, Error> {
        self.check_mark(fence)?;
        let Some(next_lapse) = self.next_share_lapse() else {
            return Ok(LockState::Free);
        };
        let owner = asker.owner;
        let own = self.share_deadline(owner).map(|deadline| {
            let score = self.score(&share::token(owner));
            Share {
                token: score.and_then(share::token_of_score),
                deadline,
                is_repeated: score.is_some()
                    && asker.request.is_some_and(|request| {
                        self.score(&share::request(request, owner)) == score
                    }),
            }
        });
        Ok(LockState::Shared(Shares {
            own,
            count,
            next_lapse,
        }))
    }

    /// An error when the set is no lock. The highest of its tokens raises those to come.
    fn check_mark(&self, fence: &mut Fence) -> Result<(), Error> {
        if self.score(MARK) != Some(0.0) {
            return Err(Error::WrongType);
        }
        if let Some(token) = self
            .first(Range::TOKENS)
            .and_then(|(_, score)| share::token_of_score(score))
        {
            fence.observe(token, wall_clock());
        }
        Ok(())
    }

    /// When the lease of an owner's share ends. `None` without one, or when it has lapsed.
    fn share_deadline(&self, owner: Owner<'_>) -> Option<Deadline> {
        let deadline = share::deadline_of_score(self.score(&share::holder(owner))?)?;
        (!deadline.has_lapsed(wall_clock().as_millis())).then(|| self.capped(deadline))
    }

    /// No share outlives the key.
    fn capped(&self, deadline: Deadline) -> Deadline {
        self.deadline()
            .map_or(deadline, |of_key| of_key.min(deadline))
    }

    /// When the next share lapses. `None` when all have.
    pub(super) fn next_share_lapse(&self) -> Option<Deadline> {
        let (_, score) = self.first(Range::lasting(wall_clock().as_millis()))?;
        share::deadline_of_score(score).map(|deadline| self.capped(deadline))
    }

    /// Whether the owner of a token has a share by it.
    pub(super) fn is_shared_by(&self, token: Token, fence: &mut Fence) -> Result<bool, Error> {
        self.check_mark(fence)?;
        Ok(self
            .members(Range::of_token(token))
            .iter()
            .filter_map(|member| share::owner_of_token(member))
            .any(|owner| self.share_deadline(owner).is_some()))
    }

    /// About how many share the lock, at no cost: lapsed shares are counted, and one with a request
    /// id counts for one and a half.
    pub(super) fn sharing_estimate(&self) -> usize {
        // SAFETY: the caller found a set, so the handle is open.
        unsafe { api!(RedisModule_ValueLength(self.raw)) / 2 }
    }

    /// How many share the lock now: O(log n), by the server's own `ZCOUNT`.
    pub(super) fn count_sharing(&mut self) -> usize {
        let now = wall_clock().as_millis();
        let count = self.while_closed(|ctx, name| {
            // SAFETY: context and name are alive, and each letter of the format has its argument: a
            // string of the server, two of long long. The reply is freed by the one who got it;
            // there is none when the command is refused.
            unsafe {
                let reply = api!(RedisModule_Call(
                    ctx.as_raw(),
                    c"ZCOUNT".as_ptr(),
                    c"sll".as_ptr(),
                    name.as_raw(),
                    c_longlong::from(now.0),
                    c_longlong::from(MAX_DEADLINE.0)
                ));
                if reply.is_null() {
                    return None;
                }
                let kind = api!(RedisModule_CallReplyType(reply));
                let count = (kind.try_into() == Ok(raw::REDISMODULE_REPLY_INTEGER))
                    .then(|| api!(RedisModule_CallReplyInteger(reply)));
                api!(RedisModule_FreeCallReply(reply));
                count.and_then(|count| usize::try_from(count).ok())
            }
        });
        // A server whose ZCOUNT is renamed or switched off.
        count.unwrap_or_else(|| match self.kind() {
            Some(raw::REDISMODULE_KEYTYPE_ZSET) => self.members(Range::lasting(now)).len(),
            _ => 0,
        })
    }

    /// All that share the lock now.
    pub(super) fn sharers(&self, fence: &mut Fence) -> Result<Vec<Holder>, Error> {
        self.check_mark(fence)?;
        Ok(self
            .members(Range::lasting(wall_clock().as_millis()))
            .iter()
            .filter_map(|member| {
                let owner = share::owner_of_holder(member)?;
                Some(Holder {
                    owner: owner.bytes().to_vec(),
                    holds: 1,
                    token: self.token_of(owner),
                    deadline: Some(self.share_deadline(owner)?),
                    layout: HolderLayout::Share,
                })
            })
            .collect())
    }

    /// Those of `owners` that share the lock now.
    pub(super) fn sharing_among(
        &self,
        owners: &mut dyn Iterator<Item = &OwnerBuf>,
    ) -> Vec<OwnerBuf> {
        owners
            .filter(|owner| self.share_deadline(owner.as_owner()).is_some())
            .cloned()
            .collect()
    }

    /// Gives an owner a share, like `ZADD`. What is no set of shares, a lock that was held alone
    /// until now, makes room for it.
    pub(super) fn add_share(
        &mut self,
        owner: Owner<'_>,
        request: Option<RequestId<'_>>,
        token: Token,
        deadline: Deadline,
    ) {
        if self
            .kind()
            .is_some_and(|kind| kind != raw::REDISMODULE_KEYTYPE_ZSET)
        {
            self.delete();
        }
        let by_token = share::score_of_token(token);
        let mut members: Vec<(i64, Member)> = Vec::new();
        if self.kind().is_none() {
            members.push((0, Member::from_slice(MARK)));
        }
        members.push((deadline.0, share::holder(owner)));
        members.push((by_token, share::token(owner)));
        members.extend(request.map(|request| (by_token, share::request(request, owner))));
        self.add(&members);
    }

    /// Moves the deadline of an owner's share.
    pub(super) fn renew_share(&mut self, owner: Owner<'_>, deadline: Deadline) {
        self.add(&[(deadline.0, share::holder(owner))]);
    }

    /// Takes the share of an owner out, like `ZREM`.
    pub(crate) fn remove_share(&mut self, owner: Owner<'_>) {
        let mut members = self.members_of(owner);
        members.push(share::holder(owner));
        self.remove(&members);
    }

    /// Takes all shares out whose lease has lapsed.
    pub(super) fn drop_lapsed_shares(&mut self) {
        if self.kind() != Some(raw::REDISMODULE_KEYTYPE_ZSET) || self.score(MARK) != Some(0.0) {
            return;
        }
        let mut lapsed = self.members(Range::lapsed(wall_clock().as_millis()));
        if lapsed.is_empty() {
            return;
        }
        let owners: HashSet<&[u8]> = lapsed
            .iter()
            .filter_map(|member| Some(share::owner_of_holder(member)?.bytes()))
            .collect();
        // Each token once: in a set that somebody forged, all owners can have the same.
        let mut tokens = HashSet::new();
        let mut members: Vec<Member> = Vec::new();
        for owner in lapsed
            .iter()
            .filter_map(|member| share::owner_of_holder(member))
        {
            let token = self.token_of(owner).filter(|token| tokens.insert(*token));
            let mut of_token =
                token.map_or_else(Vec::new, |token| self.members(Range::of_token(token)));
            of_token.retain(|member| {
                share::owner_of_grant(member).is_some_and(|owner| owners.contains(owner.bytes()))
            });
            members.append(&mut of_token);
        }
        members.append(&mut lapsed);
        self.remove(&members);
    }

    /// The token of an owner's grant.
    fn token_of(&self, owner: Owner<'_>) -> Option<Token> {
        self.score(&share::token(owner))
            .and_then(share::token_of_score)
    }

    /// The members that go with an owner's share, except for the one with its deadline. Others can
    /// have a share under the same token, if a quorum decided on it for both.
    fn members_of(&self, owner: Owner<'_>) -> Vec<Member> {
        let mut members = self
            .token_of(owner)
            .map_or_else(Vec::new, |token| self.members(Range::of_token(token)));
        members.retain(|member| share::owner_of_grant(member) == Some(owner));
        members
    }

    /// The request that an owner's share was granted to, if it had an id and the key is shared.
    pub(crate) fn request_of_share(&self, owner: Owner<'_>) -> Option<RequestIdBuf> {
        if self.kind() != Some(raw::REDISMODULE_KEYTYPE_ZSET) {
            return None;
        }
        self.members_of(owner)
            .iter()
            .find_map(|member| share::request_of(member, owner))
            .map(RequestIdBuf::from)
    }

    /// Adds members or moves their scores, and sets the key's deadline.
    fn add(&mut self, members: &[(i64, Member)]) {
        let mut words = Words::default();
        for (score, member) in members {
            words.push_score(*score);
            let member_of_set = OwnedStr::new(member);
            // SAFETY: the handle is open for writing and holds a set or nothing; the member is
            // alive, and null stands for no options.
            unsafe {
                api!(RedisModule_ZsetAdd(
                    self.raw,
                    share::exact(*score),
                    member_of_set.as_str().as_raw(),
                    ptr::null_mut()
                ));
            }
            words.0.push(member_of_set);
        }
        self.replicate(c"ZADD", &words);
        self.written(EventClass::SortedSet, c"zadd");
        self.move_deadline();
    }

    /// Removes members; the whole set when nobody shares the lock any more.
    fn remove(&mut self, members: &[Member]) {
        let mut words = Words::default();
        for member in members {
            words.push(member);
        }
        for word in &words.0 {
            // SAFETY: the handle is open for writing and holds a set, in which the mark stays; the
            // member is alive, and null stands for no answer.
            unsafe {
                api!(RedisModule_ZsetRem(
                    self.raw,
                    word.as_str().as_raw(),
                    ptr::null_mut()
                ));
            }
        }
        if self.first(Range::deadlines()).is_none() {
            self.delete();
            return;
        }
        self.replicate(c"ZREM", &words);
        self.written(EventClass::SortedSet, c"zrem");
        self.move_deadline();
    }

    /// Sets the key's deadline to the latest of all shares, if it is another one.
    fn move_deadline(&mut self) {
        let latest = self
            .last(Range::deadlines())
            .and_then(|(_, score)| share::deadline_of_score(score));
        if let Some(latest) = latest.filter(|latest| self.deadline() != Some(*latest)) {
            self.set_deadline(latest);
        }
    }

    /// Replicates a command on the key with these words.
    fn replicate(&self, command: &CStr, words: &Words) {
        let mut words: Vec<_> = words.0.iter().map(|word| word.as_str().as_raw()).collect();
        // SAFETY: context, name and words are alive, and each letter of the format has its
        // arguments: a string of the server, a vector of such and its length.
        unsafe {
            api!(RedisModule_Replicate(
                self.ctx.as_raw(),
                command.as_ptr(),
                c"sv".as_ptr(),
                self.name.as_raw(),
                words.as_mut_ptr(),
                words.len()
            ));
        }
    }

    /// The score of a member.
    fn score(&self, member: &[u8]) -> Option<f64> {
        let member = OwnedStr::new(member);
        // SAFETY: the caller found a set, so the handle is open.
        unsafe { score_of(self.raw, member.as_str()) }
    }

    /// The member with the lowest score of a range, and the score.
    fn first(&self, range: Range) -> Option<(Member, f64)> {
        let mut found = None;
        self.scan(range, Side::First, |member, score| {
            found = Some((Member::from_slice(member), score));
            false
        });
        found
    }

    /// The member with the highest score of a range, and the score.
    fn last(&self, range: Range) -> Option<(Member, f64)> {
        let mut found = None;
        self.scan(range, Side::Last, |member, score| {
            found = Some((Member::from_slice(member), score));
            false
        });
        found
    }

    /// All members with a score in a range.
    fn members(&self, range: Range) -> Vec<Member> {
        let mut found = Vec::new();
        self.scan(range, Side::First, |member, _| {
            found.push(Member::from_slice(member));
            true
        });
        found
    }

    /// Walks through a range of scores from one side, for as long as `next` wants more. The set must
    /// not change meanwhile.
    fn scan(&self, range: Range, from: Side, mut next: impl FnMut(&[u8], f64) -> bool) {
        let (key, is_open) = (self.raw, c_int::from(range.is_open));
        // SAFETY: the caller found a set, so the handle is open. Each member is a string of the
        // caller's, freed here after its last use. The walk is stopped by the one who began it.
        unsafe {
            let begun = match from {
                Side::First => api!(RedisModule_ZsetFirstInScoreRange(
                    key, range.min, range.max, is_open, is_open
                )),
                Side::Last => api!(RedisModule_ZsetLastInScoreRange(
                    key, range.min, range.max, is_open, is_open
                )),
            };
            if begun != OK {
                return;
            }
            while api!(RedisModule_ZsetRangeEndReached(key)) == 0 {
                let mut score = 0.0;
                let member = api!(RedisModule_ZsetRangeCurrentElement(key, &raw mut score));
                if member.is_null() {
                    break;
                }
                let goes_on = next(Str::from_raw(member).bytes(), score);
                api!(RedisModule_FreeString(ptr::null_mut(), member));
                if !goes_on || api!(RedisModule_ZsetRangeNext(key)) == 0 {
                    break;
                }
            }
            api!(RedisModule_ZsetRangeStop(key));
        }
    }
}

/// From which side a range is walked through.
#[derive(Clone, Copy)]
enum Side {
    First,
    Last,
}

/// The score of a member.
///
/// # Safety
/// `key` is open and holds a sorted set.
unsafe fn score_of(key: *mut raw::RedisModuleKey, member: Str<'_>) -> Option<f64> {
    let mut score = 0.0;
    // SAFETY: passed on to the caller; the score is written where there is one.
    let found = unsafe { api!(RedisModule_ZsetScore(key, member.as_raw(), &raw mut score)) };
    (found == OK).then_some(score)
}

/// Whether a sorted set is that of a shared lock.
///
/// # Safety
/// `key` is open and holds a sorted set.
pub(super) unsafe fn is_share_set(key: *mut raw::RedisModuleKey) -> bool {
    let mark = OwnedStr::new(MARK);
    // SAFETY: passed on to the caller.
    unsafe { score_of(key, mark.as_str()) == Some(0.0) }
}
