//! The answer to `LOCK.QINFO`.

use super::reply::Reply;
use crate::lock::fence::Token;
use crate::quorum::coordinator::{LockInfo, NodeInfo};

/// What a majority holds, and what each node says. `ttl` is what is left until so many nodes have let
/// go that there is no majority; it follows `PTTL`.
pub(super) fn describe(nodes: &[NodeInfo]) -> Reply {
    let majority = nodes.len() / 2 + 1;
    let held = agreed(nodes, majority);
    let reachable = nodes.iter().filter(|node| node.lock.is_ok()).count();
    let state = match held {
        Some(_) => "held",
        // Those who say nothing could make it a majority.
        None if most_alike(nodes) + nodes.len() - reachable >= majority => "unknown",
        None => "free",
    };
    let mode = held.as_ref().map(|held| {
        if held.is_shared {
            "shared"
        } else {
            "exclusive"
        }
    });
    let owners = held
        .as_ref()
        .map_or_else(Vec::new, |held| held.owners.clone());
    let token = held.as_ref().map(|held| held.token);
    Reply::Map(vec![
        (Reply::Word("state"), Reply::Word(state)),
        (Reply::Word("mode"), mode.map_or(Reply::Nil, Reply::Word)),
        (
            Reply::Word("owners"),
            Reply::Array(owners.into_iter().map(Reply::Bulk).collect()),
        ),
        (
            Reply::Word("token"),
            token.flatten().map_or(Reply::Nil, Reply::token),
        ),
        (
            Reply::Word("ttl"),
            Reply::Integer(held.map_or(-2, |held| held.ttl)),
        ),
        (Reply::Word("reachable"), Reply::count(reachable)),
        (Reply::Word("majority"), Reply::count(majority)),
        (
            Reply::Word("nodes"),
            Reply::Array(nodes.iter().map(describe_node).collect()),
        ),
    ])
}

/// What a majority agrees on: the same token for a lock that one holds alone, the same owners for one
/// that is shared.
fn agreed(nodes: &[NodeInfo], majority: usize) -> Option<LockInfo> {
    let held: Vec<&LockInfo> = nodes
        .iter()
        .filter_map(|node| node.lock.as_ref().ok())
        .filter(|lock| lock.is_held)
        .collect();
    if let Some(first) = held.iter().find(|lock| {
        !lock.is_shared && held.iter().filter(|other| same_hold(lock, other)).count() >= majority
    }) {
        let mut ttls: Vec<i64> = held
            .iter()
            .filter(|other| same_hold(first, other))
            .map(|lock| lock.ttl)
            .collect();
        ttls.sort_unstable_by(|a, b| b.cmp(a));
        return Some(LockInfo {
            ttl: ttls.get(majority.saturating_sub(1)).copied().unwrap_or(-2),
            ..(*first).clone()
        });
    }
    let mut owners: Vec<Vec<u8>> = held
        .iter()
        .filter(|lock| lock.is_shared)
        .flat_map(|lock| lock.owners.iter().cloned())
        .collect();
    owners.sort_unstable();
    let owners: Vec<Vec<u8>> = owners
        .chunk_by(|a, b| a == b)
        .filter(|same| same.len() >= majority)
        .filter_map(|same| same.first().cloned())
        .collect();
    if owners.is_empty() {
        return None;
    }
    let mut ttls: Vec<i64> = held
        .iter()
        .filter(|lock| lock.is_shared)
        .map(|lock| lock.ttl)
        .collect();
    ttls.sort_unstable_by(|a, b| b.cmp(a));
    let tokens = held.iter().filter(|lock| lock.is_shared);
    Some(LockInfo {
        is_held: true,
        is_shared: true,
        owners,
        token: tokens.filter_map(|lock| lock.token).max(),
        ttl: ttls.get(majority.saturating_sub(1)).copied().unwrap_or(-2),
    })
}

/// The most nodes on which somebody has one and the same hold.
fn most_alike(nodes: &[NodeInfo]) -> usize {
    let held: Vec<&LockInfo> = nodes
        .iter()
        .filter_map(|node| node.lock.as_ref().ok())
        .filter(|lock| lock.is_held)
        .collect();
    let alike = held.iter().map(|lock| {
        if lock.is_shared {
            let shares = |owner| held.iter().filter(move |lock| lock.owners.contains(owner));
            lock.owners.iter().map(|owner| shares(owner).count()).max()
        } else {
            Some(held.iter().filter(|other| same_hold(lock, other)).count())
        }
    });
    alike.flatten().max().unwrap_or(0)
}

fn same_hold(one: &LockInfo, other: &LockInfo) -> bool {
    let key = |lock: &LockInfo| -> (bool, Option<Token>) { (lock.is_shared, lock.token) };
    key(one) == key(other) && one.owners == other.owners
}

/// What one node says.
fn describe_node(node: &NodeInfo) -> Reply {
    let lock = node.lock.as_ref().ok();
    let token = lock.and_then(|lock| lock.token);
    let owners = lock.map_or_else(Vec::new, |lock| lock.owners.clone());
    Reply::Map(vec![
        (
            Reply::Word("node"),
            Reply::Bulk(node.address.clone().into_bytes()),
        ),
        (
            Reply::Word("error"),
            node.lock
                .as_ref()
                .err()
                .map_or(Reply::Nil, |error| Reply::Bulk(error.clone().into_bytes())),
        ),
        (
            Reply::Word("latency-us"),
            Reply::unsigned(u64::try_from(node.latency.as_micros()).unwrap_or(u64::MAX)),
        ),
        (
            Reply::Word("owners"),
            Reply::Array(owners.into_iter().map(Reply::Bulk).collect()),
        ),
        (Reply::Word("token"), token.map_or(Reply::Nil, Reply::token)),
        (
            Reply::Word("ttl"),
            lock.map_or(Reply::Nil, |lock| Reply::Integer(lock.ttl)),
        ),
    ])
}
