//! Arguments that several commands share. All of them are checked before a key is looked at.

use crate::lock::fence::Token;
use crate::lock::lease::{MAX_TTL_MS, Ttl};
use crate::lock::record::{MAX_OWNER_LEN, MAX_REQUEST_LEN, Owner, RequestId};
use crate::lock::rules::Mode;
use crate::quorum::attempt::Attempt;
use crate::server::{Arg, Args, Error, Printable, Timeout};
use std::collections::HashSet;
use std::num::{NonZeroU32, NonZeroU64};
use uuid::Uuid;

/// How many lines a command shows that was not told.
pub(super) const DEFAULT_COUNT: usize = 10;

/// The next mandatory argument.
pub(super) fn required<'a>(args: &mut Args<'a>) -> Result<Arg<'a>, Error> {
    args.next().ok_or(Error::WrongArity)
}

/// Makes sure that nothing is left.
pub(super) fn end(args: &mut Args<'_>) -> Result<(), Error> {
    match args.next() {
        None => Ok(()),
        Some(_) => Err(Error::WrongArity),
    }
}

/// An owner.
pub(super) fn owner(bytes: &[u8]) -> Result<Owner<'_>, Error> {
    Owner::new(bytes).ok_or(Error::BadLength {
        name: "owner",
        max: MAX_OWNER_LEN,
    })
}

/// A ttl in milliseconds.
pub(super) fn ttl(bytes: &[u8]) -> Result<Ttl, Error> {
    let value = integer(bytes).ok_or(Error::NotAnInteger("ttl"))?;
    if value <= 0 {
        return Err(Error::NotPositive("ttl"));
    }
    Ttl::from_millis(value).ok_or(Error::NotAnInteger("ttl"))
}

/// An integer as the server itself reads it: decimal, without plus sign, spaces or leading zeros.
fn integer(bytes: &[u8]) -> Option<i64> {
    let value = std::str::from_utf8(bytes).ok()?.parse().ok()?;
    (itoa::Buffer::new().format::<i64>(value).as_bytes() == bytes).then_some(value)
}

/// The owner of an acquire: the client's own, or one that the server made for `*`.
pub(super) struct OwnerArg<'a> {
    given: &'a [u8],
    made: Option<[u8; uuid::fmt::Hyphenated::LENGTH]>,
}

impl<'a> OwnerArg<'a> {
    /// Reads the argument.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        owner(bytes)?;
        let made = (bytes == b"*").then(|| {
            let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
            Uuid::new_v4().hyphenated().encode_lower(&mut text);
            text
        });
        Ok(Self { given: bytes, made })
    }

    /// The owner to write down.
    pub(super) fn owner(&self) -> Result<Owner<'_>, Error> {
        owner(self.made.as_ref().map_or(self.given, <[u8; 36]>::as_slice))
    }

    /// Whether the server made it, so that the reply has to tell it.
    pub(super) fn is_made(&self) -> bool {
        self.made.is_some()
    }
}

/// What stands behind the mandatory arguments of a command: words in any order and any case, each
/// at most once. A command allows those that it names.
#[derive(Default)]
pub(super) struct Options<'a> {
    pub(super) watchdog: bool,
    pub(super) timeout: Option<Timeout>,
    pub(super) request: Option<RequestId<'a>>,
    pub(super) token: Option<Token>,
    pub(super) count: Option<usize>,
    /// The mode that `SHARED` or `LIMIT` stands for.
    pub(super) shared: Option<Mode>,
}

/// An option's word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    Block,
    Count,
    Limit,
    Request,
    Shared,
    Token,
    Watchdog,
}

impl Word {
    fn text(self) -> &'static str {
        match self {
            Self::Block => "BLOCK",
            Self::Count => "COUNT",
            Self::Limit => "LIMIT",
            Self::Request => "REQID",
            Self::Shared => "SHARED",
            Self::Token => "TOKEN",
            Self::Watchdog => "WATCHDOG",
        }
    }
}

impl<'a> Options<'a> {
    /// Reads all that is left of the arguments.
    pub(super) fn parse(args: &mut Args<'a>, allowed: &[Word]) -> Result<Self, Error> {
        let mut options = Self::default();
        let mut limit = None;
        let mut is_shared = false;
        while let Some(arg) = args.next() {
            let word = allowed
                .iter()
                .find(|word| arg.bytes().eq_ignore_ascii_case(word.text().as_bytes()))
                .ok_or_else(|| Error::UnknownOption(Printable::new(arg.bytes())))?;
            let mut value = || {
                args.next()
                    .map(Arg::bytes)
                    .ok_or(Error::OptionWithoutValue(word.text()))
            };
            let repeated = match word {
                Word::Block => options.timeout.replace(timeout(value()?)?).is_some(),
                Word::Count => options.count.replace(count(value()?)?).is_some(),
                Word::Request => {
                    let id = RequestId::new(value()?).ok_or(Error::BadLength {
                        name: "REQID",
                        max: MAX_REQUEST_LEN,
                    })?;
                    options.request.replace(id).is_some()
                }
                Word::Limit => limit.replace(limit_of(value()?)?).is_some(),
                Word::Shared => std::mem::replace(&mut is_shared, true),
                Word::Watchdog => std::mem::replace(&mut options.watchdog, true),
                Word::Token => options.token.replace(token(value()?, "TOKEN")?).is_some(),
            };
            if repeated {
                return Err(Error::RepeatedOption(word.text()));
            }
        }
        if is_shared && limit.is_some() {
            return Err(Error::SharedAndLimit);
        }
        options.shared = (is_shared || limit.is_some()).then_some(Mode::Shared { limit });
        Ok(options)
    }
}

/// How long to wait, in milliseconds; 0 is for ever.
fn timeout(bytes: &[u8]) -> Result<Timeout, Error> {
    let value = integer(bytes).ok_or(Error::NotAnInteger("timeout"))?;
    if value > MAX_TTL_MS {
        return Err(Error::NotAnInteger("timeout"));
    }
    let value = u64::try_from(value).map_err(|_| Error::Negative("timeout"))?;
    Ok(NonZeroU64::new(value).map_or(Timeout::Forever, Timeout::Millis))
}

/// How many lines to show at most.
fn count(bytes: &[u8]) -> Result<usize, Error> {
    let value = integer(bytes).ok_or(Error::NotAnInteger("COUNT"))?;
    if value <= 0 {
        return Err(Error::NotPositive("COUNT"));
    }
    usize::try_from(value).map_err(|_| Error::NotAnInteger("COUNT"))
}

/// The most holders that a shared lock may have.
fn limit_of(bytes: &[u8]) -> Result<NonZeroU32, Error> {
    let value = integer(bytes).ok_or(Error::NotAnInteger("LIMIT"))?;
    if value <= 0 {
        return Err(Error::NotPositive("LIMIT"));
    }
    u32::try_from(value)
        .ok()
        .and_then(NonZeroU32::new)
        .ok_or(Error::NotAnInteger("LIMIT"))
}

/// A fencing token, as an option or as the argument of this name.
pub(super) fn token(bytes: &[u8], name: &'static str) -> Result<Token, Error> {
    let value = integer(bytes).ok_or(Error::NotAnInteger(name))?;
    if value <= 0 {
        return Err(Error::NotPositive(name));
    }
    u64::try_from(value)
        .ok()
        .and_then(Token::new)
        .ok_or(Error::NotAnInteger(name))
}

/// A moment or a duration in milliseconds.
pub(super) fn millis(bytes: &[u8], name: &'static str) -> Result<i64, Error> {
    let value = integer(bytes).ok_or(Error::NotAnInteger(name))?;
    if value < 0 {
        return Err(Error::Negative(name));
    }
    Ok(value)
}

/// The name of an attempt: any unsigned integer of 64 bits.
pub(super) fn attempt(bytes: &[u8]) -> Result<Attempt, Error> {
    if integer(bytes).is_some_and(i64::is_negative) {
        return Err(Error::Negative("attempt"));
    }
    std::str::from_utf8(bytes)
        .ok()
        .and_then(|text| text.parse().ok())
        .filter(|value| itoa::Buffer::new().format::<u64>(*value).as_bytes() == bytes)
        .map(Attempt)
        .ok_or(Error::NotAnInteger("attempt"))
}

/// `numkeys key [key ...]`: several locks, none of them named twice.
pub(super) fn keys<'a>(args: &mut Args<'a>) -> Result<Vec<Arg<'a>>, Error> {
    let numkeys = integer(required(args)?.bytes()).ok_or(Error::NotAnInteger("numkeys"))?;
    if numkeys <= 0 {
        return Err(Error::NotPositive("numkeys"));
    }
    let numkeys = usize::try_from(numkeys).map_err(|_| Error::NotAnInteger("numkeys"))?;
    // Nothing is allocated for keys that are not there.
    if numkeys > args.len() {
        return Err(Error::TooManyKeys);
    }
    let keys: Vec<Arg<'a>> = args.take(numkeys).collect();
    let mut seen = HashSet::new();
    match keys.iter().find(|key| !seen.insert(key.bytes())) {
        Some(key) => Err(Error::RepeatedKey(Printable::new(key.bytes()))),
        None => Ok(keys),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_like_the_server_reads_them() {
        for good in [
            "0",
            "1",
            "-1",
            "9223372036854775807",
            "-9223372036854775808",
        ] {
            assert_eq!(integer(good.as_bytes()), good.parse().ok(), "{good}");
        }
        for bad in [
            "",
            " 1",
            "1 ",
            "+1",
            "01",
            "-0",
            "1.5",
            "1e3",
            "0x1",
            "9223372036854775808",
            "\u{661}",
        ] {
            assert_eq!(integer(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn an_attempt_is_any_unsigned_integer() {
        for good in ["0", "1", "9223372036854775808", "18446744073709551615"] {
            let value = good.parse().expect("an integer");
            assert_eq!(attempt(good.as_bytes()), Ok(Attempt(value)));
        }
        for bad in [
            "",
            "01",
            "+1",
            "18446744073709551616",
            "-9223372036854775809",
            "a",
            "-0",
        ] {
            let error = Error::NotAnInteger("attempt");
            assert_eq!(attempt(bad.as_bytes()), Err(error), "{bad}");
        }
        assert_eq!(attempt(b"-1"), Err(Error::Negative("attempt")));
    }

    #[test]
    fn a_made_owner_is_a_random_uuid() {
        let first = OwnerArg::parse(b"*").expect("an owner");
        let second = OwnerArg::parse(b"*").expect("an owner");
        let text = first.owner().expect("an owner").bytes();
        let uuid = Uuid::try_parse_ascii(text).expect("a UUID");
        assert_eq!(uuid.get_version_num(), 4);
        assert_ne!(text, second.owner().expect("an owner").bytes());
    }
}
