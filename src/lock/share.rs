//! The members of a shared lock's sorted set: who holds it, until when, and under which tokens.
//!
//! ```text
//! member                              score
//! lk1s                                0            says that the set is a lock
//! o:<owner>                           deadline     of that holder, unix time in milliseconds
//! t:<owner>                           -token       of that holder's grant
//! r:<length of request>:<request>:<owner>  -token  if the grant was asked for with a request id
//! ```
//!
//! Deadlines are positive, tokens are negative, and the mark is zero. So those whose lease has
//! lapsed are one range of scores, and so is all that belongs to one token; both are found in
//! O(log n). An owner has one share at most. The key's own TTL is the latest deadline.
//!
//! `lk1s` is the version of this layout. A set without it is no lock and is not touched.

use super::fence::Token;
use super::lease::Deadline;
use super::record::{Owner, RequestId};
use smallvec::SmallVec;

/// The member that says that a set is a lock. Its score is 0.
pub(crate) const MARK: &[u8] = b"lk1s";

const HOLDER: &[u8] = b"o:";
const TOKEN: &[u8] = b"t:";
const REQUEST: &[u8] = b"r:";

/// The latest deadline of a share, in unix milliseconds: scores are floating-point numbers, which
/// are exact up to here. A longer lease ends then.
pub(crate) const MAX_DEADLINE: Deadline = Deadline((1 << 53) - 1);

/// A member as bytes. An owner of up to 100 bytes needs no allocation.
pub(crate) type Member = SmallVec<[u8; 128]>;

/// The member whose score is the owner's deadline.
pub(crate) fn holder(owner: Owner<'_>) -> Member {
    join(HOLDER, owner)
}

/// The member whose score is the owner's token, negated.
pub(crate) fn token(owner: Owner<'_>) -> Member {
    join(TOKEN, owner)
}

/// The member that is there if the owner's grant was asked for by `request`.
pub(crate) fn request(request: RequestId<'_>, owner: Owner<'_>) -> Member {
    let mut member = Member::from_slice(REQUEST);
    let id = request.bytes();
    member.extend_from_slice(itoa::Buffer::new().format(id.len()).as_bytes());
    member.push(b':');
    member.extend_from_slice(id);
    member.push(b':');
    member.extend_from_slice(owner.bytes());
    member
}

fn join(kind: &[u8], owner: Owner<'_>) -> Member {
    let mut member = Member::from_slice(kind);
    member.extend_from_slice(owner.bytes());
    member
}

/// The owner that a holder's member names. `None` for every other member.
pub(crate) fn owner_of_holder(member: &[u8]) -> Option<Owner<'_>> {
    Owner::new(member.strip_prefix(HOLDER)?)
}

/// The owner that a token's member names. `None` for every other member.
pub(crate) fn owner_of_token(member: &[u8]) -> Option<Owner<'_>> {
    Owner::new(member.strip_prefix(TOKEN)?)
}

/// The request that a request's member names, if the member is one of this owner's.
pub(crate) fn request_of<'m>(member: &'m [u8], owner: Owner<'_>) -> Option<RequestId<'m>> {
    parse_request(member)
        .filter(|(_, named)| *named == owner)
        .map(|(request, _)| request)
}

/// The owner of the grant that a member with a token's score belongs to. `None` for every other
/// member.
pub(crate) fn owner_of_grant(member: &[u8]) -> Option<Owner<'_>> {
    owner_of_token(member).or_else(|| parse_request(member).map(|(_, owner)| owner))
}

/// What a request's member names. `None` for what is not exactly as [`request`] writes it.
fn parse_request(member: &[u8]) -> Option<(RequestId<'_>, Owner<'_>)> {
    let rest = member.strip_prefix(REQUEST)?;
    let colon = rest.iter().position(|byte| *byte == b':')?;
    let (digits, rest) = rest.split_at_checked(colon)?;
    let len: usize = std::str::from_utf8(digits).ok()?.parse().ok()?;
    // A length has one spelling only.
    if itoa::Buffer::new().format(len).as_bytes() != digits {
        return None;
    }
    let (id, owner) = rest.strip_prefix(b":")?.split_at_checked(len)?;
    Some((RequestId::new(id)?, Owner::new(owner.strip_prefix(b":")?)?))
}

/// The score of a token.
pub(crate) fn score_of_token(token: Token) -> i64 {
    -i64::try_from(token.get()).unwrap_or(i64::MAX)
}

/// The token that a score stands for. `None` for every other score.
pub(crate) fn token_of_score(score: f64) -> Option<Token> {
    let value = whole(score).filter(|value| *value < 0)?;
    Token::new(value.unsigned_abs())
}

/// The deadline that a score stands for. `None` for every other score.
///
/// A fraction, which somebody wrote by hand, is over at the same millisecond as without it. To
/// take it for no deadline would hide all those after it.
pub(crate) fn deadline_of_score(score: f64) -> Option<Deadline> {
    let value = whole(score.trunc())?;
    (1..=MAX_DEADLINE.0)
        .contains(&value)
        .then_some(Deadline(value))
}

/// A score as an integer of at most 53 bits, if it is one.
fn whole(score: f64) -> Option<i64> {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "what is no such integer is another number afterwards"
    )]
    let value = score as i64;
    (value.unsigned_abs() <= Token::MAX && exact(value).total_cmp(&score).is_eq()).then_some(value)
}

/// An integer of at most 53 bits as a score.
pub(crate) fn exact(value: i64) -> f64 {
    #[expect(
        clippy::cast_precision_loss,
        reason = "tokens and deadlines of shares have at most 53 bits"
    )]
    let score = value as f64;
    score
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn owner(bytes: &[u8]) -> Owner<'_> {
        Owner::new(bytes).expect("in range")
    }

    #[test]
    fn members_read_as_documented() {
        assert_eq!(holder(owner(b"a")).as_slice(), b"o:a");
        assert_eq!(token(owner(b"a")).as_slice(), b"t:a");
        let id = RequestId::new(b"r:1").expect("in range");
        assert_eq!(request(id, owner(b"a:\0")).as_slice(), b"r:3:r:1:a:\0");
    }

    #[test]
    fn a_request_is_found_by_its_owner_only() {
        let id = RequestId::new(b"r:1").expect("in range");
        let member = request(id, owner(b"a:\0"));
        assert_eq!(request_of(&member, owner(b"a:\0")), Some(id));
        assert_eq!(owner_of_grant(&member), Some(owner(b"a:\0")));
        for other in [&b"\0"[..], b"a", b"1:a:\0", b"x", &member] {
            assert_eq!(
                request_of(&member, owner(other)),
                None,
                "{}",
                other.escape_ascii()
            );
            assert_ne!(owner_of_grant(&member), Some(owner(other)));
        }
        for member in [
            &b"r:"[..],
            b"r::a",
            b"r:0::a",
            b"r:2:x:a",
            b"r:01:x:a",
            b"r:x:a",
            b"o:a",
        ] {
            assert_eq!(
                request_of(member, owner(b"a")),
                None,
                "{}",
                member.escape_ascii()
            );
            assert_ne!(owner_of_grant(member), Some(owner(b"a")));
        }
    }

    #[test]
    fn only_a_holders_member_names_a_holder() {
        assert_eq!(owner_of_holder(b"o:a"), Some(owner(b"a")));
        assert_eq!(owner_of_token(b"t:a"), Some(owner(b"a")));
        for member in [&b"lk1s"[..], b"", b"o:", b"a", b"r:1:1:a", b"t:a"] {
            assert_eq!(owner_of_holder(member), None, "{}", member.escape_ascii());
        }
        for member in [&b"lk1s"[..], b"", b"t:", b"a", b"r:1:1:a", b"o:a"] {
            assert_eq!(owner_of_token(member), None, "{}", member.escape_ascii());
        }
    }

    #[test]
    fn a_member_of_a_grant_names_its_owner() {
        assert_eq!(owner_of_grant(b"t:a"), Some(owner(b"a")));
        assert_eq!(owner_of_grant(b"r:3:r:1:a:\0"), Some(owner(b"a:\0")));
        for member in [
            &b"lk1s"[..],
            b"",
            b"o:a",
            b"t:",
            b"r:",
            b"r:1",
            b"r::a",
            b"r:1:x",
            b"r:1:x:",
            b"r:9:x:a",
            b"r:-1:x:a",
            b"r:99999999999999999999:x:a",
        ] {
            assert_eq!(owner_of_grant(member), None, "{}", member.escape_ascii());
        }
    }

    #[test]
    fn a_score_is_a_deadline_or_a_token_or_nothing() {
        for score in [
            0.0,
            -0.0,
            0.5,
            -0.5,
            1e300,
            -1e300,
            f64::INFINITY,
            f64::NEG_INFINITY,
        ] {
            assert_eq!(deadline_of_score(score), None, "{score}");
            assert_eq!(token_of_score(score), None, "{score}");
        }
        assert_eq!(deadline_of_score(-7.0), None);
        assert_eq!(deadline_of_score(exact(MAX_DEADLINE.0) + 1.0), None);
        assert_eq!(token_of_score(7.0), None);
        assert_eq!(deadline_of_score(7.5), Some(Deadline(7)));
        assert_eq!(token_of_score(-7.5), None);
    }

    proptest! {
        #[test]
        fn scores_are_exact(value in 1..=Token::MAX) {
            let number = i64::try_from(value).expect("53 bits");
            let token = Token::new(value).expect("in range");
            prop_assert_eq!(token_of_score(exact(score_of_token(token))), Some(token));
            prop_assert_eq!(deadline_of_score(exact(number)), Some(Deadline(number)));
        }

        /// Members of different kinds, owners or requests are never the same.
        #[test]
        fn members_are_told_apart(
            a in prop::collection::vec(any::<u8>(), 1..6),
            b in prop::collection::vec(any::<u8>(), 1..6),
            id_a in prop::collection::vec(any::<u8>(), 1..4),
            id_b in prop::collection::vec(any::<u8>(), 1..4),
        ) {
            let request_id = |id| RequestId::new(id).expect("in range");
            let members = [
                holder(owner(&a)),
                token(owner(&a)),
                request(request_id(&id_a), owner(&a)),
                Member::from_slice(MARK),
            ];
            for (i, one) in members.iter().enumerate() {
                for other in members.iter().skip(i + 1) {
                    prop_assert_ne!(one, other);
                }
            }
            prop_assert_eq!(owner_of_grant(&members[1]), Some(owner(&a)));
            prop_assert_eq!(owner_of_grant(&members[2]), Some(owner(&a)));
            let same = request(request_id(&id_a), owner(&a)) == request(request_id(&id_b), owner(&b));
            prop_assert_eq!(same, (id_a, a) == (id_b, b));
        }
    }
}
