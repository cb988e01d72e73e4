//! The value of a lock's key: who holds it, how often, and under which token.
//!
//! ```text
//! lk1:<token>:<holds>:<owner>
//! lk1r:<token>:<holds>:<length of request>:<request>:<owner>
//! ```
//!
//! Numbers are decimal, without sign or leading zeros, so that a record has one spelling only. The
//! owner stands last because it may contain any byte; a request may too, and so has its length
//! before it. Without a request and with less than a hundred holds, a record is at most 24 bytes
//! longer than its owner. The deadline is the key's own.
//!
//! `lk1` is the version of this layout. Bytes that are not exactly a record are somebody else's
//! value and are read as a plain lock.

use super::fence::Token;
use smallvec::SmallVec;
use std::rc::Rc;

const MARKER: &[u8] = b"lk1:";
const MARKER_WITH_REQUEST: &[u8] = b"lk1r:";

/// The longest owner and the longest request, in bytes. Both are at least one byte long.
pub(crate) const MAX_OWNER_LEN: usize = 512;
/// See [`MAX_OWNER_LEN`].
pub(crate) const MAX_REQUEST_LEN: usize = 64;

/// The most holds that one owner can have of one lock.
pub(crate) const MAX_HOLDS: u64 = u32::MAX as u64;

/// A record as bytes. An owner of up to 100 bytes needs no allocation.
pub(crate) type Encoded = SmallVec<[u8; 128]>;

/// Who a lock is granted to: 1..=[`MAX_OWNER_LEN`] bytes of any value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner<'a>(&'a [u8]);

impl<'a> Owner<'a> {
    /// `None` when `bytes` are too few or too many.
    pub(crate) fn new(bytes: &'a [u8]) -> Option<Self> {
        (1..=MAX_OWNER_LEN)
            .contains(&bytes.len())
            .then_some(Self(bytes))
    }

    /// The bytes themselves.
    pub(crate) fn bytes(self) -> &'a [u8] {
        self.0
    }
}

/// An [`Owner`] that outlives the command it came with. Clones share the bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct OwnerBuf(Rc<[u8]>);

impl OwnerBuf {
    /// The owner.
    pub(crate) fn as_owner(&self) -> Owner<'_> {
        Owner(&self.0)
    }
}

impl From<Owner<'_>> for OwnerBuf {
    fn from(owner: Owner<'_>) -> Self {
        Self(owner.0.into())
    }
}

/// The name that a client gave to one acquire, to recognise it when it is sent again:
/// 1..=[`MAX_REQUEST_LEN`] bytes of any value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestId<'a>(&'a [u8]);

impl<'a> RequestId<'a> {
    /// `None` when `bytes` are too few or too many.
    pub(crate) fn new(bytes: &'a [u8]) -> Option<Self> {
        (1..=MAX_REQUEST_LEN)
            .contains(&bytes.len())
            .then_some(Self(bytes))
    }

    /// The bytes themselves.
    pub(crate) fn bytes(self) -> &'a [u8] {
        self.0
    }
}

/// A [`RequestId`] that outlives the command it came with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestIdBuf(Box<[u8]>);

impl RequestIdBuf {
    /// The name of the request.
    pub(crate) fn as_request(&self) -> RequestId<'_> {
        RequestId(&self.0)
    }
}

impl From<RequestId<'_>> for RequestIdBuf {
    fn from(request: RequestId<'_>) -> Self {
        Self(request.0.into())
    }
}

/// What the value of a lock's key says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    pub(crate) token: Token,
    /// 1..=[`MAX_HOLDS`].
    pub(crate) holds: u64,
    pub(crate) request: Option<RequestId<'a>>,
    pub(crate) owner: Owner<'a>,
}

impl<'a> Record<'a> {
    /// Reads a record. `None` when `bytes` are not exactly what [`Record::encode`] writes.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (rest, has_request) = match bytes.strip_prefix(MARKER) {
            Some(rest) => (rest, false),
            None => (bytes.strip_prefix(MARKER_WITH_REQUEST)?, true),
        };
        let (token, rest) = number(rest)?;
        let (holds, rest) = number(rest)?;
        if holds > MAX_HOLDS {
            return None;
        }
        let (request, owner) = if has_request {
            let (len, rest) = number(rest)?;
            let (request, rest) = rest.split_at_checked(usize::try_from(len).ok()?)?;
            (Some(RequestId::new(request)?), rest.strip_prefix(b":")?)
        } else {
            (None, rest)
        };
        Some(Self {
            token: Token::new(token)?,
            holds,
            request,
            owner: Owner::new(owner)?,
        })
    }

    /// The bytes of the record.
    pub(crate) fn encode(&self) -> Encoded {
        let mut out = Encoded::new();
        let mut digits = itoa::Buffer::new();
        let mut field = |out: &mut Encoded, value: u64| {
            out.extend_from_slice(digits.format(value).as_bytes());
            out.push(b':');
        };
        out.extend_from_slice(match self.request {
            None => MARKER,
            Some(_) => MARKER_WITH_REQUEST,
        });
        field(&mut out, self.token.get());
        field(&mut out, self.holds);
        if let Some(RequestId(request)) = self.request {
            field(&mut out, request.len() as u64);
            out.extend_from_slice(request);
            out.push(b':');
        }
        out.extend_from_slice(self.owner.0);
        out
    }
}

/// Splits a canonical positive decimal and the colon after it off the front.
fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let end = bytes.iter().position(|byte| !byte.is_ascii_digit())?;
    let (digits, rest) = bytes.split_at_checked(end)?;
    let rest = rest.strip_prefix(b":")?;
    if digits.starts_with(b"0") {
        return None;
    }
    let value = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some((value, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_record_reads_as_documented() {
        let record = Record {
            token: Token::new(1_700_000_000_000_000).expect("in range"),
            holds: 2,
            request: None,
            owner: Owner::new(b"a:\0\xff").expect("in range"),
        };
        assert_eq!(
            record.encode().as_slice(),
            b"lk1:1700000000000000:2:a:\0\xff"
        );
        let record = Record {
            request: RequestId::new(b"r:1"),
            ..record
        };
        assert_eq!(
            record.encode().as_slice(),
            b"lk1r:1700000000000000:2:3:r:1:a:\0\xff"
        );
    }

    #[test]
    fn a_record_is_at_most_24_bytes_over_its_owner() {
        let record = Record {
            token: Token::new(Token::MAX).expect("in range"),
            holds: 99,
            request: None,
            owner: Owner::new(b"o").expect("in range"),
        };
        assert_eq!(record.encode().len(), 1 + 24);
    }

    #[test]
    fn what_is_not_exactly_a_record_is_none() {
        for bytes in [
            &b""[..],
            b"hello",
            b"lk1",
            b"lk1:",
            b"lk1:5",
            b"lk1:5:",
            b"lk1:5:1",
            b"lk1:5:1:",
            b"lk2:5:1:o",
            b"LK1:5:1:o",
            b"lk1:0:1:o",
            b"lk1:05:1:o",
            b"lk1:+5:1:o",
            b"lk1:-5:1:o",
            b"lk1: 5:1:o",
            b"lk1:5 :1:o",
            b"lk1:5:0:o",
            b"lk1:5:01:o",
            b"lk1::1:o",
            b"lk1:5::o",
            b"lk1:9007199254740992:1:o",
            b"lk1:99999999999999999999999:1:o",
            b"lk1:5:4294967296:o",
            b"lk1:5:99999999999999999999999:o",
            b"lk1r:5:1:",
            b"lk1r:5:1:o",
            b"lk1r:5:1:1:r",
            b"lk1r:5:1:1:ro",
            b"lk1r:5:1:0::o",
            b"lk1r:5:1:2:r:",
            b"lk1r:5:1:9:r:o",
            b"lk1r:5:1:65:rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr:o",
            b"lk1r:5:1:18446744073709551615:r:o",
        ] {
            assert_eq!(Record::parse(bytes), None, "{}", bytes.escape_ascii());
        }
        let mut long = b"lk1:5:1:".to_vec();
        long.resize(long.len() + MAX_OWNER_LEN + 1, b'o');
        assert_eq!(Record::parse(&long), None);
    }

    proptest! {
        #[test]
        fn parse_is_the_inverse_of_encode(
            token in 1..=Token::MAX,
            holds in 1..=MAX_HOLDS,
            request in prop::option::of(prop::collection::vec(any::<u8>(), 1..=MAX_REQUEST_LEN)),
            owner in prop::collection::vec(any::<u8>(), 1..=MAX_OWNER_LEN),
        ) {
            let record = Record {
                token: Token::new(token).expect("in range"),
                holds,
                request: request.as_deref().map(|id| RequestId::new(id).expect("in range")),
                owner: Owner::new(&owner).expect("in range"),
            };
            let encoded = record.encode();
            prop_assert_eq!(Record::parse(&encoded), Some(record));
        }

        /// No bytes make it panic, and a record has one spelling only.
        #[test]
        fn what_parses_encodes_to_the_same_bytes(
            bytes in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..64),
                "lk1r?:[0-9]{0,3}:[0-9]{0,3}:[0-9]?:[a-z:]{0,8}".prop_map(String::into_bytes),
            ],
        ) {
            if let Some(record) = Record::parse(&bytes) {
                let encoded = record.encode();
                prop_assert_eq!(encoded.as_slice(), bytes.as_slice());
            }
        }
    }
}
