//! Random histories of one exclusive lock, against a model that is too simple to be wrong.
//!
//! The rules work on what a key holds: bytes and a deadline. The model knows no bytes; it keeps the
//! holder as a struct, and for the token only whether it rose.

use crate::lock::fence::{Fence, Token};
use crate::lock::lease::{Deadline, Ttl};
use crate::lock::record::{Owner, RequestId};
use crate::lock::rules::{
    Acquire, Acquired, Hold, LockState, Mode, Put, Released, Remainder, Renewed, Write, acquire,
    release, renew,
};
use crate::lock::time::{UnixMicros, UnixMillis};
use proptest::prelude::*;

/// A key, as the server keeps it.
#[derive(Default)]
struct Keyspace {
    value: Option<(Vec<u8>, Option<Deadline>)>,
}

impl Keyspace {
    fn state(&self) -> LockState<'_> {
        self.value
            .as_ref()
            .map_or(LockState::Free, |(value, deadline)| {
                LockState::Exclusive(Hold::of_string(value, *deadline))
            })
    }

    fn put(&mut self, put: &Put) {
        self.value = Some((put.value.to_vec(), put.deadline));
    }

    fn expire(&mut self, now: UnixMillis) {
        self.value
            .take_if(|(_, deadline)| deadline.is_some_and(|deadline| deadline.has_lapsed(now)));
    }
}

/// The holder, as one would tell it to a colleague.
#[derive(Clone, Debug)]
struct Holder {
    owner: &'static str,
    /// `None`: by a plain `SET`.
    token: Option<Token>,
    holds: u64,
    request: Option<u8>,
    /// The last millisecond; `None`: for ever.
    until: Option<i64>,
}

#[derive(Clone, Debug)]
enum Op {
    Acquire {
        owner: &'static str,
        ttl: i64,
        request: Option<u8>,
        reentrant: bool,
    },
    Release {
        owner: &'static str,
        with_token: Option<bool>,
    },
    Renew {
        owner: &'static str,
        ttl: i64,
        with_token: Option<bool>,
    },
    /// `SET key owner PX ttl` by a client that knows nothing of this module.
    Set { owner: &'static str, ttl: i64 },
    /// `DEL key`.
    Delete,
    /// `PERSIST key`.
    Persist,
    /// The clock moves, in either direction.
    Clock(i64),
}

fn op() -> impl Strategy<Value = Op> {
    let owner = || prop::sample::select(vec!["a", "b", "lk1:1:1:a"]);
    let ttl = || 1..50i64;
    let request = prop::option::of(0..3u8);
    // Some(true): the token of the present hold; Some(false): another one.
    let with_token = || prop::option::of(any::<bool>());
    prop_oneof![
        6 => (owner(), ttl(), request, any::<bool>()).prop_map(|(owner, ttl, request, reentrant)| {
            Op::Acquire { owner, ttl, request, reentrant }
        }),
        4 => (owner(), with_token()).prop_map(|(owner, with_token)| Op::Release { owner, with_token }),
        2 => (owner(), ttl(), with_token())
            .prop_map(|(owner, ttl, with_token)| Op::Renew { owner, ttl, with_token }),
        1 => (prop::sample::select(vec!["a", "b"]), ttl()).prop_map(|(owner, ttl)| Op::Set { owner, ttl }),
        1 => Just(Op::Delete),
        1 => Just(Op::Persist),
        4 => (-5..30i64).prop_map(Op::Clock),
    ]
}

/// The token that an op names, and whether a hold with `token` may be touched under it.
fn named(with_token: Option<bool>, token: Option<Token>) -> (Option<Token>, bool) {
    match with_token {
        None => (None, true),
        Some(true) => (token.or(Token::new(7)), token.is_some()),
        Some(false) => (Token::new(3), false),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_rules_do_what_the_model_does(ops in prop::collection::vec(op(), 1..80)) {
        let mut keyspace = Keyspace::default();
        let mut fence = Fence::default();
        let mut model: Option<Holder> = None;
        let mut highest = 0;
        let mut now = 1_000_000i64;

        for op in ops {
            let micros = UnixMicros(now.unsigned_abs() * 1_000);
            let millis = UnixMillis(now);
            keyspace.expire(millis);
            model.take_if(|holder| holder.until.is_some_and(|until| now > until));

            match op {
                Op::Acquire { owner, ttl, request, reentrant } => {
                    let request_bytes = request.map(|id| [id]);
                    let asked = Acquire {
                        owner: Owner::new(owner.as_bytes()).expect("in range"),
                        ttl: Ttl::from_millis(ttl).expect("in range"),
                        request: request_bytes.as_ref().map(|id| RequestId::new(id).expect("in range")),
                        mode: Mode::Exclusive { reentrant },
                    };
                    let decision = acquire(&keyspace.state(), &asked, false, micros, &mut fence);
                    match &mut model {
                        None => {
                            let Acquired::Granted(token, Write::Record(put)) = decision else {
                                return Err(TestCaseError::fail(format!("{decision:?} of a free lock")));
                            };
                            prop_assert!(token.get() > highest);
                            highest = token.get();
                            keyspace.put(&put);
                            model = Some(Holder {
                                owner, token: Some(token), holds: 1, request, until: Some(now + ttl),
                            });
                        }
                        Some(holder) if holder.owner != owner || holder.token.is_none() => {
                            prop_assert_eq!(decision, Acquired::Busy);
                        }
                        Some(holder) if request.is_some() && request == holder.request => {
                            prop_assert_eq!(Some(decision), holder.token.map(Acquired::Repeated));
                        }
                        Some(_) if !reentrant => prop_assert_eq!(decision, Acquired::Busy),
                        Some(holder) => {
                            let Acquired::Reentered(token, put) = decision else {
                                return Err(TestCaseError::fail(format!("{decision:?} of a re-entry")));
                            };
                            prop_assert_eq!(Some(token), holder.token);
                            keyspace.put(&put);
                            holder.holds += 1;
                            holder.request = request.or(holder.request);
                            holder.until = holder.until.map(|until| until.max(now + ttl));
                        }
                    }
                }
                Op::Release { owner, with_token } => {
                    let (token, matches) =
                        named(with_token, model.as_ref().and_then(|holder| holder.token));
                    let asked = Owner::new(owner.as_bytes()).expect("in range");
                    let decision = release(&keyspace.state(), asked, token);
                    match &mut model {
                        None => prop_assert_eq!(decision, Released::NoLock),
                        Some(holder) if holder.owner != owner || !matches => {
                            prop_assert_eq!(decision, Released::NotYours);
                        }
                        Some(holder) if holder.holds > 1 => {
                            let Released::Ended(_, Remainder::Record(put)) = decision else {
                                return Err(TestCaseError::fail(format!("{decision:?} of an inner hold")));
                            };
                            keyspace.put(&put);
                            holder.holds -= 1;
                        }
                        Some(holder) => {
                            prop_assert_eq!(decision, Released::Ended(holder.token, Remainder::Free));
                            keyspace.value = None;
                            model = None;
                        }
                    }
                }
                Op::Renew { owner, ttl, with_token } => {
                    let (token, matches) =
                        named(with_token, model.as_ref().and_then(|holder| holder.token));
                    let asked = Owner::new(owner.as_bytes()).expect("in range");
                    let ttl_ms = Ttl::from_millis(ttl).expect("in range");
                    let decision = renew(&keyspace.state(), asked, token, ttl_ms, micros);
                    match &mut model {
                        None => prop_assert_eq!(decision, Renewed::NoLock),
                        Some(holder) if holder.owner != owner || !matches => {
                            prop_assert_eq!(decision, Renewed::NotYours);
                        }
                        Some(holder) => {
                            prop_assert_eq!(decision, Renewed::Until(holder.token, Deadline(now + ttl)));
                            if let Some((_, deadline)) = &mut keyspace.value {
                                *deadline = Some(Deadline(now + ttl));
                            }
                            holder.until = Some(now + ttl);
                        }
                    }
                }
                Op::Set { owner, ttl } => {
                    keyspace.value = Some((owner.as_bytes().to_vec(), Some(Deadline(now + ttl))));
                    model = Some(Holder {
                        owner, token: None, holds: 1, request: None, until: Some(now + ttl),
                    });
                }
                Op::Delete => {
                    keyspace.value = None;
                    model = None;
                }
                Op::Persist => {
                    if let Some((_, deadline)) = &mut keyspace.value {
                        *deadline = None;
                    }
                    if let Some(holder) = &mut model {
                        holder.until = None;
                    }
                }
                Op::Clock(step) => now += step,
            }

            // What an operator sees is what the model knows.
            let hold = match keyspace.state() {
                LockState::Exclusive(hold) => Some(hold),
                _ => None,
            };
            prop_assert_eq!(
                hold.as_ref().map(|hold| (&*hold.owner, hold.holds, hold.token(), hold.deadline)),
                model.as_ref().map(|holder| (
                    holder.owner.as_bytes(), holder.holds, holder.token, holder.until.map(Deadline),
                )),
            );
        }
    }
}
