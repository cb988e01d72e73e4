//! How a node remembers which round a hold came about by: as the hold's request id.
//!
//! The id is `q:` and the attempt as sixteen lower-case hexadecimal digits. A hold with any other
//! id, or without one, was brought about by no attempt. A client may choose such an id for a lock
//! of its own, which then is taken for a quorum's when the same owner asks as one; it has a token
//! that no quorum decided on, so no majority is found for it.

use crate::lock::record::RequestId;
use std::io::Write;

/// The name of a round that asks for a lock: random, so that no two have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Attempt(pub(crate) u64);

const PREFIX: &[u8] = b"q:";

/// How many digits follow the prefix.
const DIGITS: usize = 16;

/// The request id that stands for an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttemptId([u8; PREFIX.len() + DIGITS]);

impl AttemptId {
    /// The id as a record has it. It is always there.
    pub(crate) fn as_request(&self) -> Option<RequestId<'_>> {
        RequestId::new(&self.0)
    }
}

impl Attempt {
    /// The request id of the holds that it brings about.
    pub(crate) fn id(self) -> AttemptId {
        let mut id = [0; PREFIX.len() + DIGITS];
        // The array has room for just these bytes, so nothing fails.
        let _ = write!(id.as_mut_slice(), "q:{:016x}", self.0);
        AttemptId(id)
    }

    /// The attempt that a request id stands for, if it is exactly one of [`Attempt::id`].
    pub(crate) fn of_request(request: RequestId<'_>) -> Option<Self> {
        let digits = request.bytes().strip_prefix(PREFIX)?;
        let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if digits.len() != DIGITS || !digits.iter().all(is_digit) {
            return None;
        }
        let digits = std::str::from_utf8(digits).ok()?;
        u64::from_str_radix(digits, 16).ok().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(bytes: &[u8]) -> Option<Attempt> {
        Attempt::of_request(RequestId::new(bytes).expect("in range"))
    }

    #[test]
    fn an_id_reads_as_documented() {
        let id = Attempt(0xfe_dcba_9876).id();
        let id = id.as_request().map(RequestId::bytes);
        assert_eq!(id, Some(&b"q:000000fedcba9876"[..]));
    }

    #[test]
    fn other_ids_are_no_attempts() {
        for id in [
            &b"q"[..],
            b"q:",
            b"r:1",
            b"q:000000fedcba987",
            b"q:000000fedcba98760",
            b"q:000000FEDCBA9876",
            b"Q:000000fedcba9876",
            b"q:+00000fedcba9876",
            b"q:000000fedcba987g",
            b"q:000000fedcba987\xff",
        ] {
            assert_eq!(of(id), None, "{}", id.escape_ascii());
        }
    }

    proptest! {
        #[test]
        fn an_id_stands_for_its_attempt(attempt: u64) {
            let id = Attempt(attempt).id();
            prop_assert_eq!(id.as_request().and_then(Attempt::of_request), Some(Attempt(attempt)));
        }
    }
}
