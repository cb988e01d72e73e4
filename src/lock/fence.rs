//! Fencing tokens: a number with every grant that is higher than that of every earlier grant of
//! the lock.
//!
//! The formula is that of a hybrid logical clock,
//! `token = max(now in microseconds since the Unix epoch, highest token minted or seen + 1)`:
//! one integer for the whole server, and no key that would have to outlive its lock. Tokens go on
//! rising over a restart, a failover and a lost write, because time does.
//!
//! What this cannot cover: a lock that one server freed and another server, whose clock is behind,
//! grants again within the difference of their clocks. `docs/design.md` says so to users.

use super::time::{UnixMicros, UnixMillis};

/// The token of one grant: 1..=[`Token::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Token(u64);

impl Token {
    /// 2^53 - 1: `JavaScript` and `Lua` read every integer up to here exactly.
    pub(crate) const MAX: u64 = (1 << 53) - 1;

    /// `None` when `value` is out of range.
    pub(crate) fn new(value: u64) -> Option<Self> {
        (1..=Self::MAX).contains(&value).then_some(Self(value))
    }

    /// The number itself.
    pub(crate) fn get(self) -> u64 {
        self.0
    }

    /// Milliseconds since the grant at `now`: a token is the moment of its grant, unless the
    /// clock has been set back or more than one grant fell into a microsecond.
    pub(crate) fn age(self, now: UnixMillis) -> i64 {
        now.0
            .saturating_sub(UnixMicros(self.0).as_millis().0)
            .max(0)
    }
}

/// How far ahead of the clock a token in a record can be and still raise those to come: a day, in
/// microseconds. A clock that was set back by no more is made good.
///
/// Records are data that anybody with write access can forge. Without this limit one forged record
/// would put the tokens of this server years ahead, until a restart lets them fall.
const MAX_AHEAD: u64 = 24 * 60 * 60 * 1_000_000;

/// The source of tokens: one for the whole server.
#[derive(Debug, Default)]
pub(crate) struct Fence {
    highest: u64,
}

impl Fence {
    /// A token above all that were minted or seen. `None` once they are used up, which takes the
    /// clock to stand beyond the year 2255.
    pub(crate) fn mint(&mut self, now: UnixMicros) -> Option<Token> {
        let token = Token::new(now.0.max(self.highest.saturating_add(1)))?;
        self.highest = token.0;
        Some(token)
    }

    /// The token `floor`, or one above all that were minted or seen if that is higher: for a grant
    /// that another server proposes a token for. `None` once they are used up.
    pub(crate) fn mint_from(&mut self, floor: Token) -> Option<Token> {
        let token = Token::new(floor.0.max(self.highest.saturating_add(1)))?;
        self.highest = token.0;
        Some(token)
    }

    /// Takes the clock for the highest token, unless a higher one is known: for a server that may
    /// have forgotten what it minted, and is about to mint by another clock than its own.
    pub(crate) fn begin(&mut self, now: UnixMicros) {
        self.highest = self.highest.max(now.0);
    }

    /// Whether a token is so far ahead of `now` that no server can have minted it.
    pub(crate) fn is_forged(token: Token, now: UnixMicros) -> bool {
        token.0 > now.0.saturating_add(MAX_AHEAD)
    }

    /// Takes note of a token that was found in a record: later grants get a higher one, unless it
    /// is so far ahead of `now` that no server can have minted it.
    pub(crate) fn observe(&mut self, token: Token, now: UnixMicros) {
        if !Self::is_forged(token, now) {
            self.highest = self.highest.max(token.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn token(value: u64) -> Token {
        Token::new(value).expect("in range")
    }

    #[test]
    fn a_token_is_the_time_of_its_grant() {
        let mut fence = Fence::default();
        let minted = fence.mint(UnixMicros(1_700_000_000_000_000));
        assert_eq!(minted, Some(token(1_700_000_000_000_000)));
        assert_eq!(
            token(1_700_000_000_000_000).age(UnixMillis(1_700_000_000_250)),
            250
        );
    }

    #[test]
    fn a_forged_record_does_not_put_the_tokens_ahead() {
        let mut fence = Fence::default();
        fence.observe(token(Token::MAX), UnixMicros(5));
        assert_eq!(fence.mint(UnixMicros(5)), Some(token(5)));
        fence.observe(token(MAX_AHEAD + 7), UnixMicros(6));
        assert_eq!(fence.mint(UnixMicros(6)), Some(token(6)));
        fence.observe(token(MAX_AHEAD + 7), UnixMicros(7));
        assert_eq!(fence.mint(UnixMicros(7)), Some(token(MAX_AHEAD + 8)));
    }

    #[test]
    fn a_proposed_token_is_taken_if_it_is_the_highest() {
        let mut fence = Fence::default();
        assert_eq!(fence.mint_from(token(7)), Some(token(7)));
        assert_eq!(fence.mint_from(token(7)), Some(token(8)));
        assert_eq!(fence.mint_from(token(3)), Some(token(9)));
        assert_eq!(fence.mint(UnixMicros(5)), Some(token(10)));
        fence.begin(UnixMicros(4));
        assert_eq!(fence.mint_from(token(3)), Some(token(11)));
        fence.begin(UnixMicros(20));
        assert_eq!(fence.mint_from(token(3)), Some(token(21)));
        assert_eq!(fence.mint_from(token(Token::MAX)), Some(token(Token::MAX)));
        assert_eq!(fence.mint_from(token(1)), None);
    }

    #[test]
    fn no_token_is_minted_beyond_the_largest_exact_integer() {
        let mut fence = Fence::default();
        assert_eq!(fence.mint(UnixMicros(Token::MAX)), Some(token(Token::MAX)));
        assert_eq!(fence.mint(UnixMicros(Token::MAX)), None);
        assert_eq!(fence.mint(UnixMicros(1)), None);
    }

    proptest! {
        /// Whatever the clock does, and whatever is read in between.
        #[test]
        fn tokens_rise(steps in prop::collection::vec((0..2_000u64, prop::option::of(1..3_000u64)), 1..100)) {
            let mut fence = Fence::default();
            let mut floor = 0;
            for (now, seen) in steps {
                if let Some(seen) = seen {
                    fence.observe(token(seen), UnixMicros(now));
                    floor = floor.max(seen);
                }
                let minted = fence.mint(UnixMicros(now)).expect("far from the end").get();
                prop_assert!(minted > floor);
                floor = minted;
            }
        }
    }
}
