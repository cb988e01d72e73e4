//! The answer to `LOCK.QINFO`.

use super::reply::Reply;
use crate::quorum::info::{NodeInfo, State, state};
use crate::quorum::round::Nodes;

/// What a majority holds, and what each node says. `ttl` follows `PTTL`.
pub(super) fn describe(nodes: &[NodeInfo], quorum: Nodes) -> Reply {
    let (state, held) = match state(nodes, quorum) {
        State::Held(lock) => ("held", Some(lock)),
        State::Free => ("free", None),
        State::Unknown => ("unknown", None),
    };
    let mode = held.as_ref().map(|held| {
        if held.is_shared {
            "shared"
        } else {
            "exclusive"
        }
    });
    let token = held.as_ref().and_then(|held| held.token);
    let ttl = held.as_ref().map_or(-2, |held| held.ttl);
    let owners = held.map_or_else(Vec::new, |held| held.owners);
    let reachable = nodes.iter().filter(|node| node.lock.is_ok()).count();
    Reply::Map(vec![
        (Reply::Word("state"), Reply::Word(state)),
        (Reply::Word("mode"), mode.map_or(Reply::Nil, Reply::Word)),
        (
            Reply::Word("owners"),
            Reply::Array(owners.into_iter().map(Reply::Bulk).collect()),
        ),
        (Reply::Word("token"), token.map_or(Reply::Nil, Reply::token)),
        (Reply::Word("ttl"), Reply::Integer(ttl)),
        (Reply::Word("reachable"), Reply::count(reachable)),
        (Reply::Word("majority"), Reply::count(quorum.majority())),
        (
            Reply::Word("nodes"),
            Reply::Array(nodes.iter().map(describe_node).collect()),
        ),
    ])
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
