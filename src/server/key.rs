//! The key of a lock.
//!
//! A write does all that the plain command for it would do: it changes the key, replicates that
//! command with absolute times, touches `WATCH`es, and sends the command's keyspace events. A key
//! that is only looked at does none of this.
//!
//! Shared locks are sorted sets: what is special about those is in [`super::share_set`].

use super::api::api;
use super::clock::wall_clock;
use super::context::Context;
use super::notify::{EventClass, LockEvent};
use super::reply::Error;
use super::share_set::is_share_set;
use super::string::{OwnedStr, Str};
use crate::lock::fence::{Fence, Token};
use crate::lock::lease::Deadline;
use crate::lock::record::{Owner, Record, RequestId};
use crate::lock::rules::{Asker, Hold, Layout, LockState, Put, Write};
use redis_module::raw;
use std::ffi::{CStr, c_int, c_longlong, c_void};
use std::ptr;

const READ: c_int = raw::REDISMODULE_READ.cast_signed();
const READ_WRITE: c_int = (raw::REDISMODULE_READ | raw::REDISMODULE_WRITE).cast_signed();

/// One of those who hold a lock.
pub(crate) struct Holder {
    /// Foreign layouts know no limit of its length.
    pub(crate) owner: Vec<u8>,
    pub(crate) holds: u64,
    pub(crate) token: Option<Token>,
    pub(crate) deadline: Option<Deadline>,
    pub(crate) layout: HolderLayout,
}

/// How a hold is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HolderLayout {
    Record,
    Share,
    Plain,
    Hash,
}

/// An open key, closed when dropped.
pub(crate) struct Key<'c> {
    pub(super) ctx: Context<'c>,
    pub(super) name: Str<'c>,
    /// Null when the key was opened for reading and does not exist.
    pub(super) raw: *mut raw::RedisModuleKey,
    mode: c_int,
}

impl<'c> Key<'c> {
    /// Opens a key to look at it.
    pub(crate) fn for_reading(ctx: Context<'c>, name: Str<'c>) -> Self {
        Self::open(ctx, name, READ)
    }

    /// Opens a key to change it. One that has lapsed is deleted by this.
    pub(crate) fn for_writing(ctx: Context<'c>, name: Str<'c>) -> Self {
        Self::open(ctx, name, READ_WRITE)
    }

    fn open(ctx: Context<'c>, name: Str<'c>, mode: c_int) -> Self {
        // SAFETY: context and name are alive for 'c, which outlives the handle.
        let raw = unsafe { api!(RedisModule_OpenKey(ctx.as_raw(), name.as_raw(), mode)) };
        Self {
            ctx,
            name,
            raw: raw.cast(),
            mode,
        }
    }

    /// Runs `f` with the key closed, for what may look the key up by itself: on some servers that can
    /// delete a lapsed key under an open handle.
    pub(super) fn while_closed<R>(&mut self, f: impl FnOnce(Context<'c>, Str<'c>) -> R) -> R {
        // SAFETY: the handle came from the server and is given back here; null, which stands for no
        // key, takes its place.
        unsafe { api!(RedisModule_CloseKey(self.raw)) };
        self.raw = ptr::null_mut();
        let result = f(self.ctx, self.name);
        *self = Self::open(self.ctx, self.name, self.mode);
        result
    }

    /// What type of value the key has, by the server's numbers; `None` without a key.
    pub(super) fn kind(&self) -> Option<isize> {
        // SAFETY: the handle is open or null, and the server takes both.
        let kind = unsafe { api!(RedisModule_KeyType(self.raw)) };
        isize::try_from(kind)
            .ok()
            .filter(|&kind| kind != raw::REDISMODULE_KEYTYPE_EMPTY)
    }

    /// The key's name.
    pub(super) fn name(&self) -> Str<'c> {
        self.name
    }

    /// What the key says to one who asks; an error when it is no lock. Its tokens raise those that
    /// are still to be minted.
    pub(crate) fn state(
        &mut self,
        asker: Asker<'_>,
        fence: &mut Fence,
    ) -> Result<LockState<'_>, Error> {
        let count = (asker.counts && self.kind() == Some(raw::REDISMODULE_KEYTYPE_ZSET))
            .then(|| self.count_sharing());
        match self.kind() {
            Some(raw::REDISMODULE_KEYTYPE_ZSET) => self.shares(asker, count, fence),
            _ => self.exclusive(fence),
        }
    }

    /// What a key says that is not shared. A sorted set is no such lock.
    pub(super) fn exclusive(&self, fence: &mut Fence) -> Result<LockState<'_>, Error> {
        let hold = match self.kind() {
            None => return Ok(LockState::Free),
            Some(raw::REDISMODULE_KEYTYPE_STRING) => {
                Hold::of_string(self.string(), self.deadline())
            }
            Some(raw::REDISMODULE_KEYTYPE_HASH) => self
                .only_field()
                .and_then(|(owner, count)| Hold::of_hash(owner, &count, self.deadline()))
                .ok_or(Error::WrongType)?,
            _ => return Err(Error::WrongType),
        };
        if let Some(token) = hold.token() {
            fence.observe(token, wall_clock());
        }
        Ok(LockState::Exclusive(hold))
    }

    /// All that hold the lock; an error when it is none.
    pub(crate) fn holders(&self, fence: &mut Fence) -> Result<Vec<Holder>, Error> {
        if self.kind() == Some(raw::REDISMODULE_KEYTYPE_ZSET) {
            return self.sharers(fence);
        }
        let LockState::Exclusive(hold) = self.exclusive(fence)? else {
            return Ok(Vec::new());
        };
        Ok(vec![Holder {
            owner: hold.owner.to_vec(),
            holds: hold.holds,
            token: hold.token(),
            deadline: hold.deadline,
            layout: match hold.layout {
                Layout::Module { .. } => HolderLayout::Record,
                Layout::Plain => HolderLayout::Plain,
                Layout::Hash => HolderLayout::Hash,
            },
        }])
    }

    /// Whether somebody holds the lock by a token; an error when it is no lock.
    pub(crate) fn is_held_by(&self, token: Token, fence: &mut Fence) -> Result<bool, Error> {
        if self.kind() == Some(raw::REDISMODULE_KEYTYPE_ZSET) {
            return self.is_shared_by(token, fence);
        }
        Ok(match self.exclusive(fence)? {
            LockState::Exclusive(hold) => hold.token() == Some(token),
            _ => false,
        })
    }

    /// When a hold of the lock lapses next, if anything is known of that.
    ///
    /// This is asked in the middle of other commands too, when the server tells that they changed
    /// the key. So it does not look into a string: that can have the server put another object in
    /// the place of one that such a command still uses.
    pub(super) fn next_lapse(&self) -> Option<Deadline> {
        match self.kind()? {
            raw::REDISMODULE_KEYTYPE_ZSET => self.next_share_lapse(),
            raw::REDISMODULE_KEYTYPE_STRING | raw::REDISMODULE_KEYTYPE_HASH => self.deadline(),
            _ => None,
        }
    }

    /// When the key expires. Only for a key that exists.
    pub(super) fn deadline(&self) -> Option<Deadline> {
        // SAFETY: the caller found a value, so the handle is open.
        let at = unsafe { api!(RedisModule_GetAbsExpire(self.raw)) };
        (at >= 0).then_some(Deadline(at))
    }

    /// The value of a string key.
    fn string(&self) -> &[u8] {
        // SAFETY: the caller found a string, so the handle is open. The bytes stay until the key
        // is written, which takes `&mut self`.
        unsafe { string_of(self.raw) }
    }

    /// Field and value of a hash that has just one.
    fn only_field(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        // SAFETY: the caller found a hash, so the handle is open.
        if unsafe { api!(RedisModule_ValueLength(self.raw)) } != 1 {
            return None;
        }
        let mut found = None;
        // SAFETY: `collect_field` gets back the pointer to `found`, which outlives the scan; the
        // cursor is destroyed by the one who made it.
        unsafe {
            let cursor = api!(RedisModule_ScanCursorCreate());
            while found.is_none()
                && api!(RedisModule_ScanKey(
                    self.raw,
                    cursor,
                    Some(collect_field),
                    (&raw mut found).cast()
                )) != 0
            {}
            api!(RedisModule_ScanCursorDestroy(cursor));
        }
        found
    }

    /// Writes what makes `owner` a holder.
    pub(crate) fn grant(
        &mut self,
        owner: Owner<'_>,
        request: Option<RequestId<'_>>,
        token: Token,
        write: &Write,
    ) {
        match write {
            Write::Record(put) => self.put(put),
            Write::Share(deadline) => self.add_share(owner, request, token, *deadline),
        }
    }

    /// Writes a record, like `SET key value PXAT deadline`.
    pub(crate) fn put(&mut self, put: &Put) {
        let value = OwnedStr::new(&put.value);
        let (ctx, key, value) = (self.ctx.as_raw(), self.name.as_raw(), value.as_str());
        // SAFETY: the handle is open for writing, all strings are alive, and each letter of the
        // format has its argument: two strings of the server, a C string, a long long.
        unsafe {
            api!(RedisModule_StringSet(self.raw, value.as_raw()));
            match put.deadline {
                Some(Deadline(at)) => {
                    api!(RedisModule_SetAbsExpire(self.raw, at));
                    api!(RedisModule_Replicate(
                        ctx,
                        c"SET".as_ptr(),
                        c"sscl".as_ptr(),
                        key,
                        value.as_raw(),
                        c"PXAT".as_ptr(),
                        c_longlong::from(at)
                    ));
                }
                None => {
                    api!(RedisModule_Replicate(
                        ctx,
                        c"SET".as_ptr(),
                        c"ss".as_ptr(),
                        key,
                        value.as_raw()
                    ));
                }
            }
        }
        self.written(EventClass::String, c"set");
        if put.deadline.is_some() {
            self.ctx.notify(EventClass::Generic, c"expire", self.name);
        }
    }

    /// Moves the deadline of the key, like `PEXPIREAT key deadline`.
    pub(super) fn set_deadline(&mut self, Deadline(at): Deadline) {
        // SAFETY: the handle is open for writing, the name is alive, and each letter of the format
        // has its argument: a string of the server, a long long.
        unsafe {
            api!(RedisModule_SetAbsExpire(self.raw, at));
            api!(RedisModule_Replicate(
                self.ctx.as_raw(),
                c"PEXPIREAT".as_ptr(),
                c"sl".as_ptr(),
                self.name.as_raw(),
                c_longlong::from(at)
            ));
        }
        self.written(EventClass::Generic, c"expire");
    }

    /// Moves the deadline of one owner's lease.
    pub(crate) fn renew(&mut self, owner: Owner<'_>, deadline: Deadline) {
        match self.kind() {
            Some(raw::REDISMODULE_KEYTYPE_ZSET) => self.renew_share(owner, deadline),
            _ => self.set_deadline(deadline),
        }
    }

    /// Writes the count of a foreign hash, like `HSET key owner holds`.
    pub(crate) fn set_hash_count(&mut self, owner: &[u8], holds: u64) {
        let owner = OwnedStr::new(owner);
        let count = OwnedStr::new(itoa::Buffer::new().format(holds).as_bytes());
        let (owner, count) = (owner.as_str().as_raw(), count.as_str().as_raw());
        // SAFETY: the handle is open for writing and all strings are alive. The list of pairs ends
        // with a null pointer; each letter of the format has its string.
        unsafe {
            api!(RedisModule_HashSet(
                self.raw,
                raw::REDISMODULE_HASH_NONE.cast_signed(),
                owner,
                count,
                ptr::null_mut::<c_void>()
            ));
            api!(RedisModule_Replicate(
                self.ctx.as_raw(),
                c"HSET".as_ptr(),
                c"sss".as_ptr(),
                self.name.as_raw(),
                owner,
                count
            ));
        }
        self.written(EventClass::Hash, c"hset");
    }

    /// Deletes the key, like `DEL key`.
    pub(crate) fn delete(&mut self) {
        // SAFETY: the handle is open for writing, the name is alive, and the format's letter has
        // its string.
        unsafe {
            api!(RedisModule_DeleteKey(self.raw));
            api!(RedisModule_Replicate(
                self.ctx.as_raw(),
                c"DEL".as_ptr(),
                c"s".as_ptr(),
                self.name.as_raw()
            ));
        }
        self.written(EventClass::Generic, c"del");
    }

    /// Sends an event of this module's own about the key.
    pub(crate) fn notify(&self, event: LockEvent) {
        self.ctx.notify_lock(event, self.name);
    }

    /// What every write ends with.
    pub(super) fn written(&self, class: EventClass, event: &CStr) {
        // SAFETY: context and name are alive.
        unsafe {
            api!(RedisModule_SignalModifiedKey(
                self.ctx.as_raw(),
                self.name.as_raw()
            ));
        }
        self.ctx.notify(class, event, self.name);
    }
}

/// The value of a string key.
///
/// # Safety
/// `key` is an open key that holds a string, and is not written during `'a`.
unsafe fn string_of<'a>(key: *mut raw::RedisModuleKey) -> &'a [u8] {
    let mut len = 0;
    // SAFETY: passed on to the caller; the server answers with a pointer to as many bytes as it
    // says.
    unsafe {
        let start = api!(RedisModule_StringDMA(key, &raw mut len, READ));
        if start.is_null() {
            return &[];
        }
        std::slice::from_raw_parts(start.cast::<u8>(), len)
    }
}

/// Whether a key that the server has opened holds a lock that this module granted.
///
/// # Safety
/// `key` is open, or null.
pub(super) unsafe fn is_own_lock(key: *mut raw::RedisModuleKey) -> bool {
    // SAFETY: passed on to the caller; only a key that holds a string is read as one, and a set as
    // one.
    unsafe {
        match api!(RedisModule_KeyType(key)).try_into() {
            Ok(raw::REDISMODULE_KEYTYPE_STRING) => Record::parse(string_of(key)).is_some(),
            Ok(raw::REDISMODULE_KEYTYPE_ZSET) => is_share_set(key),
            _ => false,
        }
    }
}

impl Drop for Key<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle came from the server and is given back here, once; null is allowed.
        unsafe { api!(RedisModule_CloseKey(self.raw)) }
    }
}

/// Takes a copy of the first field that a scan comes by.
unsafe extern "C" fn collect_field(
    _key: *mut raw::RedisModuleKey,
    field: *mut raw::RedisModuleString,
    value: *mut raw::RedisModuleString,
    found: *mut c_void,
) {
    super::guard::guard(|| {
        if value.is_null() {
            return;
        }
        // SAFETY: `only_field` passes a pointer to its own variable, and the server keeps both
        // strings until this function returns.
        unsafe {
            let found = &mut *found.cast::<Option<(Vec<u8>, Vec<u8>)>>();
            found.get_or_insert_with(|| {
                (
                    Str::from_raw(field).bytes().to_vec(),
                    Str::from_raw(value).bytes().to_vec(),
                )
            });
        }
    });
}
