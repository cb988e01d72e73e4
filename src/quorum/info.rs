//! What the nodes say of one lock, put together. Pure.

use super::round::Nodes;
use crate::lock::fence::Token;
use std::time::Duration;

/// What one node says of a lock, or why it says nothing.
#[derive(Debug)]
pub(crate) struct NodeInfo {
    pub(crate) address: String,
    pub(crate) latency: Duration,
    pub(crate) lock: Result<LockInfo, String>,
}

/// A lock on one node, or on a majority.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LockInfo {
    pub(crate) is_held: bool,
    pub(crate) is_shared: bool,
    pub(crate) owners: Vec<Vec<u8>>,
    pub(crate) token: Option<Token>,
    /// What is left of it in milliseconds, as `PTTL` counts: -1 for ever, -2 if it is not held.
    pub(crate) ttl: i64,
}

/// A lock on a quorum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// A majority has it under one token, or has the shares of these owners. The ttl is what is left
    /// until so many nodes have let go that there is no majority.
    Held(LockInfo),
    /// No majority has it, whatever those have that say nothing.
    Free,
    /// Those who say nothing could make it a majority.
    Unknown,
}

/// What a majority of all nodes has.
pub(crate) fn state(nodes: &[NodeInfo], quorum: Nodes) -> State {
    let majority = quorum.majority();
    let held: Vec<&LockInfo> = nodes
        .iter()
        .filter_map(|node| node.lock.as_ref().ok())
        .filter(|lock| lock.is_held)
        .collect();
    let alone = held
        .iter()
        .filter(|lock| !lock.is_shared)
        .map(|lock| alike(&held, lock))
        .max_by_key(Vec::len)
        .unwrap_or_default();
    let shared: Vec<&LockInfo> = held.into_iter().filter(|lock| lock.is_shared).collect();
    let owners = owners_by_nodes(&shared);
    let most = owners
        .iter()
        .map(|(_, count)| *count)
        .chain([alone.len()])
        .max()
        .unwrap_or(0);
    if most < majority {
        let silent = nodes.iter().filter(|node| node.lock.is_err()).count();
        return if most + silent < majority {
            State::Free
        } else {
            State::Unknown
        };
    }
    State::Held(match alone.first() {
        Some(first) if alone.len() >= majority => LockInfo {
            ttl: ttl_of_majority(&alone, majority),
            ..(*first).clone()
        },
        _ => LockInfo {
            is_held: true,
            is_shared: true,
            owners: owners
                .into_iter()
                .filter(|(_, count)| *count >= majority)
                .map(|(owner, _)| owner)
                .collect(),
            token: shared.iter().filter_map(|lock| lock.token).max(),
            ttl: ttl_of_majority(&shared, majority),
        },
    })
}

/// Those that are the same hold as one that somebody has alone.
fn alike<'l>(held: &[&'l LockInfo], one: &LockInfo) -> Vec<&'l LockInfo> {
    held.iter()
        .copied()
        .filter(|lock| !lock.is_shared && lock.token == one.token && lock.owners == one.owners)
        .collect()
}

/// The owners of shares, in order, and on how many nodes each has one.
fn owners_by_nodes(shared: &[&LockInfo]) -> Vec<(Vec<u8>, usize)> {
    let mut owners: Vec<&Vec<u8>> = shared.iter().flat_map(|lock| &lock.owners).collect();
    owners.sort_unstable();
    owners
        .chunk_by(|a, b| a == b)
        .filter_map(|same| Some(((*same.first()?).clone(), same.len())))
        .collect()
}

/// The longest time for which a majority of these have what they have now.
fn ttl_of_majority(locks: &[&LockInfo], majority: usize) -> i64 {
    let mut ttls: Vec<i64> = locks
        .iter()
        .map(|lock| if lock.ttl < 0 { i64::MAX } else { lock.ttl })
        .collect();
    ttls.sort_unstable_by(|a, b| b.cmp(a));
    match ttls.get(majority.saturating_sub(1)) {
        Some(&i64::MAX) => -1,
        Some(&ttl) => ttl,
        None => -2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(lock: Result<LockInfo, String>) -> NodeInfo {
        NodeInfo {
            address: String::new(),
            latency: Duration::ZERO,
            lock,
        }
    }

    fn free() -> NodeInfo {
        node(Ok(LockInfo {
            ttl: -2,
            ..LockInfo::default()
        }))
    }

    fn silent() -> NodeInfo {
        node(Err("timed out".to_owned()))
    }

    fn lock(is_shared: bool, owners: &[&str], token: u64, ttl: i64) -> LockInfo {
        LockInfo {
            is_held: true,
            is_shared,
            owners: owners
                .iter()
                .map(|owner| owner.as_bytes().to_vec())
                .collect(),
            token: Token::new(token),
            ttl,
        }
    }

    fn alone(owner: &str, token: u64, ttl: i64) -> NodeInfo {
        node(Ok(lock(false, &[owner], token, ttl)))
    }

    fn shared(owners: &[&str], token: u64, ttl: i64) -> NodeInfo {
        node(Ok(lock(true, owners, token, ttl)))
    }

    fn state_of(nodes: &[NodeInfo]) -> State {
        state(nodes, Nodes::new(nodes.len()).expect("a number of nodes"))
    }

    #[test]
    fn a_majority_of_one_hold_is_held_until_it_is_none() {
        let nodes = [
            alone("a", 5, 10),
            alone("a", 5, 30),
            alone("a", 5, 20),
            alone("a", 5, 40),
            free(),
        ];
        assert_eq!(state_of(&nodes), State::Held(lock(false, &["a"], 5, 20)));
        // For ever is longer than any time.
        let nodes = [alone("a", 5, -1), alone("a", 5, 7), alone("a", 5, -1)];
        assert_eq!(state_of(&nodes), State::Held(lock(false, &["a"], 5, -1)));
    }

    #[test]
    fn holds_that_differ_are_no_majority() {
        for nodes in [
            [alone("a", 5, 9), alone("a", 6, 9), free()],
            [alone("a", 5, 9), alone("b", 5, 9), free()],
            [alone("a", 5, 9), shared(&["a"], 5, 9), free()],
            [shared(&["a"], 5, 9), shared(&["b"], 6, 9), free()],
            [free(), free(), free()],
        ] {
            assert_eq!(state_of(&nodes), State::Free, "{nodes:?}");
        }
    }

    #[test]
    fn owners_of_shares_are_those_of_a_majority() {
        let nodes = [
            shared(&["a", "b"], 6, 9),
            shared(&["b", "a"], 7, 8),
            shared(&["b"], 5, 7),
            shared(&["a", "c"], 5, 6),
            silent(),
        ];
        assert_eq!(state_of(&nodes), State::Held(lock(true, &["a", "b"], 7, 7)));
    }

    #[test]
    fn who_says_nothing_could_make_it_a_majority_or_not() {
        for (nodes, expected) in [
            (vec![alone("a", 5, 9), silent(), free()], State::Unknown),
            (vec![shared(&["a"], 5, 9), silent(), free()], State::Unknown),
            (vec![silent(), silent(), free()], State::Unknown),
            (vec![silent(), free(), free()], State::Free),
            (vec![silent(), silent(), free(), free()], State::Free),
            (
                vec![alone("a", 5, 9), silent(), silent(), free()],
                State::Unknown,
            ),
        ] {
            assert_eq!(state_of(&nodes), expected, "{nodes:?}");
        }
    }
}
