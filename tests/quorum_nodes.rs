//! What a node of a quorum does with the messages of a coordinator: the table of the round, message
//! by message, late ones and repeated ones, and a node that may have forgotten what it granted.

use std::ops::RangeInclusive;

use crate::harness::{
    Flavour, Reply, Server, Words, module_path, on_every_server, unix_micros, unix_millis,
    wait_for, wait_until,
};
use crate::sharing::{deadline_of, holders, members};
use crate::waiters::{LONG, wait_in};

/// Longer than [`LONG`], so that it is seen which of both lasts.
const LONGER: i64 = 4 * LONG;

/// A server that votes at once: what it has granted is on its disk.
fn node(flavour: Flavour) -> Server {
    let node = Server::build(flavour).aof().start();
    assert_eq!(node.call("CONFIG SET lock.quorum-max-ttl 1000000000"), "OK");
    node
}

/// Both modes, as the word that a message ends with.
const MODES: [&str; 2] = ["", "SHARED"];

/// Asks for `k`.
fn vote(node: &Server, owner: &str, ttl: i64, token: i64, attempt: u64, mode: &str) -> Reply {
    node.call(format!(
        "LOCK.QVOTE k {owner} {ttl} {token} {attempt} {mode}"
    ))
}

/// Tells the token of `k`.
fn settle(node: &Server, owner: &str, attempt: u64, from: i64, to: i64, mode: &str) -> Reply {
    node.call(format!(
        "LOCK.QSETTLE k {owner} {LONG} {attempt} {from} {to} {mode}"
    ))
}

/// The token by which `owner` holds `k`, and when its lease ends.
fn hold(node: &Server, owner: &str) -> Option<(i64, i64)> {
    let info = node.call("LOCK.INFO k");
    let mut grants = info.field("grants").items().iter();
    let grant = grants.find(|grant| *grant.field("owner") == *owner)?;
    let deadline = if node.call("TYPE k") == "zset" {
        deadline_of(node, owner)
    } else {
        node.deadline("k")
    };
    Some((grant.field("token").as_int(), deadline))
}

/// A token far enough above all that this node has seen, and far from a day ahead.
fn proposal() -> i64 {
    unix_micros() + 3_600_000_000
}

/// Runs an action that gives a lease of `ttl`, and returns when that can end.
fn leased(ttl: i64, action: impl FnOnce() -> Reply) -> (Reply, RangeInclusive<i64>) {
    let before = unix_millis();
    let reply = action();
    (reply, before + ttl..=unix_millis() + ttl)
}

on_every_server! {
    fn a_vote_grants_a_free_lock_under_the_proposed_token_or_a_higher_one(flavour) {
        let node = node(flavour);
        for mode in MODES {
            node.call("DEL k");
            let token = proposal();
            let (granted, deadlines) = leased(LONG, || vote(&node, "o", LONG, token, 7, mode));
            assert_eq!(granted, token, "{mode}");
            let (stored, deadline) = hold(&node, "o").unwrap();
            assert_eq!(stored, token);
            assert!(deadlines.contains(&deadline), "{deadline} is not in {deadlines:?}");
            // What is proposed below it is raised above it.
            let second = node.call(("LOCK.QVOTE", "other", "o", LONG, token - 5, 7));
            assert_eq!(second, token + 1, "{mode}");
            let third = node.call("LOCK.ACQUIRE third o 100000").as_int();
            assert_eq!(third, token + 2, "{mode}");
            node.call("DEL other third");
        }
    }

    fn the_attempt_is_stored_as_a_request_id(flavour) {
        let node = node(flavour);
        let token = proposal();
        assert_eq!(vote(&node, "o", LONG, token, u64::MAX, ""), token);
        let record = format!("lk1r:{token}:1:18:q:ffffffffffffffff:o");
        assert_eq!(node.call("GET k"), record.as_str());
        node.call("DEL k");
        assert_eq!(vote(&node, "o", LONG, token, 0, "SHARED"), token + 1);
        let members = members(&node, "k");
        assert_eq!(members[&b"r:18:q:0000000000000000:o"[..]], -(token + 1));
        assert_eq!(members.len(), 4);
    }

    fn a_repeated_vote_gets_its_token_again_and_never_a_shorter_lease(flavour) {
        let node = node(flavour);
        for mode in MODES {
            node.call("DEL k");
            let token = vote(&node, "o", LONG, 5, 7, mode).as_int();
            let (again, deadlines) =
                leased(LONGER, || vote(&node, "o", LONGER, token + 100, 7, mode));
            assert_eq!(again, token, "{mode}");
            let (stored, deadline) = hold(&node, "o").unwrap();
            assert_eq!(stored, token);
            assert!(deadlines.contains(&deadline), "{mode}");
            assert_eq!(vote(&node, "o", 1, 5, 7, mode), token);
            assert_eq!(hold(&node, "o"), Some((token, deadline)), "{mode}");
        }
    }

    fn a_vote_is_refused_when_somebody_else_has_the_lock(flavour) {
        let node = node(flavour);
        for (taken, modes) in [
            ("LOCK.QVOTE k o 100000 5 7", &MODES[..]),
            ("LOCK.QVOTE k x 100000 5 8", &MODES),
            ("LOCK.ACQUIRE k o 100000", &MODES),
            ("LOCK.ACQUIRE k o 100000 REQID 8", &MODES),
            ("LOCK.QVOTE k x 100000 5 8 SHARED", &MODES[..1]),
            // The owner has a share of another attempt, or of none.
            ("LOCK.QVOTE k o 100000 5 7 SHARED", &MODES),
            ("LOCK.ACQUIRE k o 100000 SHARED", &MODES),
            ("SET k o", &MODES),
            ("HSET k o 1", &MODES),
        ] {
            for mode in modes {
                node.call("DEL k");
                node.call(taken);
                let mut witness = node.witness();
                assert!(vote(&node, "o", LONG, proposal(), 8, mode).is_nil(), "{mode} {taken}");
                witness.saw_nothing(taken);
            }
        }
        node.call("DEL k");
        node.call("RPUSH k o");
        assert_eq!(vote(&node, "o", LONG, 5, 8, "").error_code(), Some("WRONGTYPE"));
    }

    fn shares_of_several_attempts_stand_side_by_side(flavour) {
        let node = node(flavour);
        let first = vote(&node, "a", LONG, proposal(), 1, "SHARED").as_int();
        let second = vote(&node, "b", LONG, 5, 2, "SHARED").as_int();
        assert_eq!(second, first + 1);
        assert_eq!(holders(&node, "k"), [b"a", b"b"]);
        // A quorum can give both the same token; each has its own members all the same.
        assert_eq!(settle(&node, "b", 2, second, first, "SHARED"), first);
        assert_eq!(hold(&node, "a").unwrap().0, first);
        assert_eq!(hold(&node, "b").unwrap().0, first);
        let before = members(&node, "k");
        assert_eq!(node.call("LOCK.QUNVOTE k a 1"), 1);
        let mut left = before;
        left.retain(|member, _| !member.ends_with(b"a"));
        assert_eq!(members(&node, "k"), left);
        let renewed = node.call(format!("LOCK.QEXTEND k b {LONG} TOKEN {first}"));
        let expected = vec![Reply::Int(first), Reply::bulk("2"), Reply::bulk("shared")];
        assert_eq!(renewed, Reply::Array(expected));
        assert_eq!(node.call("LOCK.RELEASE k b"), 1);
        assert_eq!(node.call("EXISTS k"), 0);
    }

    fn settling_replaces_the_token_once(flavour) {
        let node = node(flavour);
        for mode in MODES {
            node.call("DEL k");
            let token = vote(&node, "o", LONG, proposal(), 7, mode).as_int();
            for (from, to) in [(token, token + 50), (token + 50, token - 50)] {
                assert_eq!(settle(&node, "o", 7, from, to, mode), to, "{mode}");
                assert_eq!(hold(&node, "o").unwrap().0, to, "{mode}");
                // Again, and under that token already.
                assert_eq!(settle(&node, "o", 7, from, to, mode), to, "{mode}");
            }
            let stored = node.snapshot();
            // Late ones: what they replace has been replaced.
            for (from, to) in [(token, token + 50), (token + 50, token), (token + 1, token + 2)] {
                assert!(settle(&node, "o", 7, from, to, mode).is_nil(), "{mode}");
            }
            for (owner, attempt) in [("o", 8), ("x", 7)] {
                let refused = settle(&node, owner, attempt, token - 50, token, mode);
                assert!(refused.is_nil(), "{mode} {owner} {attempt}");
            }
            let other = if mode.is_empty() { "SHARED" } else { "" };
            assert!(settle(&node, "o", 7, token - 50, token, other).is_nil(), "{mode}");
            assert_eq!(node.snapshot(), stored, "{mode}");
            // The token was seen, also the one that was replaced by a lower one.
            let next = node.call(("LOCK.QVOTE", "next", "o", LONG, 5, 9)).as_int();
            assert_eq!(next, token + 51, "{mode}");
            node.call("DEL next");
            // A free lock is not granted by it.
            node.call("DEL k");
            assert!(settle(&node, "o", 7, token, token, mode).is_nil(), "{mode}");
            assert_eq!(node.call("EXISTS k"), 0);
        }
    }

    fn settling_never_makes_a_lease_shorter(flavour) {
        let node = node(flavour);
        for mode in MODES {
            node.call("DEL k");
            let token = vote(&node, "o", LONGER, proposal(), 7, mode).as_int();
            let (_, deadline) = hold(&node, "o").unwrap();
            assert_eq!(settle(&node, "o", 7, token, token + 1, mode), token + 1);
            assert_eq!(hold(&node, "o"), Some((token + 1, deadline)), "{mode}");
            let request = format!("LOCK.QSETTLE k o {} 7 {token} {} {mode}", 2 * LONGER, token + 1);
            let (settled, deadlines) = leased(2 * LONGER, || node.call(request));
            assert_eq!(settled, token + 1);
            let (_, deadline) = hold(&node, "o").unwrap();
            assert!(deadlines.contains(&deadline), "{mode}");
        }
    }

    fn taking_a_vote_back_ends_what_the_attempt_holds(flavour) {
        let node = node(flavour);
        for (attempt, mode) in (7..).zip(MODES) {
            node.call("DEL k");
            vote(&node, "o", LONG, 5, attempt, mode);
            let mut witness = node.witness();
            for other in ["o 2", "x 2", &format!("x {attempt}")] {
                assert_eq!(node.call(format!("LOCK.QUNVOTE k {other}")), 0, "{mode} {other}");
            }
            witness.saw_nothing("votes of others");
            let unvote = format!("LOCK.QUNVOTE k o {attempt}");
            assert_eq!(node.call(&unvote), 1, "{mode}");
            assert_eq!(node.call("EXISTS k"), 0, "{mode}");
            assert_eq!(node.call(&unvote), 0, "{mode}");
        }
        // All holds of it.
        vote(&node, "o", LONG, 5, 9, "");
        node.call(("LOCK.RACQUIRE", "k", "o", LONG));
        node.call(("LOCK.RACQUIRE", "k", "o", LONG));
        assert_eq!(node.call("LOCK.QUNVOTE k o 9"), 1);
        assert_eq!(node.call("EXISTS k"), 0);
        // None that no attempt brought about.
        for taken in [
            "LOCK.ACQUIRE k o 100000",
            "LOCK.ACQUIRE k o 100000 REQID 7",
            "LOCK.ACQUIRE k o 100000 SHARED REQID 7",
            "SET k o",
            "HSET k o 1",
        ] {
            node.call("DEL k");
            node.call(taken);
            assert_eq!(node.call("LOCK.QUNVOTE k o 7"), 0, "{taken}");
            assert_eq!(node.call("EXISTS k"), 1, "{taken}");
        }
    }

    fn ending_a_hold_tells_the_attempt_and_ends_all_of_it(flavour) {
        let node = node(flavour);
        let mut attempt = u64::MAX;
        for mode in MODES {
            for with_token in [false, true] {
                let token = vote(&node, "o", LONG, 5, attempt, mode).as_int();
                if mode.is_empty() {
                    node.call(("LOCK.RACQUIRE", "k", "o", LONG));
                } else {
                    vote(&node, "p", LONG, 5, attempt - 1, mode);
                }
                let mut witness = node.witness();
                for other in ["x".to_owned(), format!("o TOKEN {}", token + 1)] {
                    assert_eq!(node.call(format!("LOCK.QEND k {other}")), 0, "{mode} {other}");
                }
                witness.saw_nothing("holds of others");
                let words = if with_token { format!("TOKEN {token}") } else { String::new() };
                let ended = node.call(format!("LOCK.QEND k o {words}"));
                assert_eq!(ended, Reply::bulk(attempt.to_string()), "{mode}");
                assert!(hold(&node, "o").is_none(), "{mode}");
                if !mode.is_empty() {
                    assert_eq!(node.call("LOCK.QEND k p"), Reply::bulk((attempt - 1).to_string()));
                }
                assert_eq!(node.call("EXISTS k"), 0, "{mode}");
                assert_eq!(node.call("LOCK.QEND k o"), -1, "{mode}");
                attempt -= 2;
            }
        }
        // None that no attempt brought about.
        for taken in [
            "LOCK.ACQUIRE k o 100000",
            "LOCK.ACQUIRE k o 100000 REQID 7",
            "LOCK.ACQUIRE k o 100000 SHARED",
            "SET k o",
            "HSET k o 1",
        ] {
            node.call("DEL k");
            node.call(taken);
            let mut witness = node.witness();
            assert_eq!(node.call("LOCK.QEND k o"), 0, "{taken}");
            witness.saw_nothing(taken);
        }
        node.call("DEL k");
        node.call("RPUSH k o");
        assert_eq!(node.call("LOCK.QEND k o").error_code(), Some("WRONGTYPE"));
    }

    /// Messages of an attempt can arrive after what ends it.
    fn an_attempt_that_has_ended_is_granted_nothing_more(flavour) {
        let node = node(flavour);
        let mut attempt = 0;
        for mode in MODES {
            for end in ["LOCK.QUNVOTE k o $attempt", "LOCK.QEND k o"] {
                for votes_first in [true, false] {
                    attempt += 1;
                    let end = end.replace("$attempt", &attempt.to_string());
                    let is_ended = votes_first || end.contains("QUNVOTE");
                    if votes_first {
                        assert!(vote(&node, "o", LONG, 5, attempt, mode).as_int() > 0);
                    }
                    node.call(&end);
                    assert_eq!(node.call("EXISTS k"), 0, "{end}");
                    let mut witness = node.witness();
                    let at = unix_millis();
                    let relock = format!("LOCK.QRELOCK k o {LONG} 5 {attempt} {at} {LONG} {mode}");
                    if is_ended {
                        assert!(vote(&node, "o", LONG, 5, attempt, mode).is_nil(), "{end}");
                        assert!(node.call(relock).is_nil(), "{end}");
                        witness.saw_nothing(&end);
                    } else {
                        // Nothing was there to tell by which attempt.
                        assert_eq!(node.call(relock), 5, "{end}");
                        node.call("DEL k");
                    }
                    // Another one of the same owner is.
                    attempt += 1;
                    assert!(vote(&node, "o", LONG, 5, attempt, mode).as_int() > 0, "{end}");
                    node.call("DEL k");
                }
            }
        }
    }

    fn extending_renews_what_an_attempt_holds(flavour) {
        let node = node(flavour);
        for mode in MODES {
            for attempt in [0, 7, u64::MAX] {
                node.call("DEL k");
                let token = vote(&node, "o", LONG, proposal(), attempt, mode).as_int();
                let shown = if mode.is_empty() { "exclusive" } else { "shared" };
                let expected = Reply::Array(vec![
                    Reply::Int(token),
                    Reply::bulk(attempt.to_string()),
                    Reply::bulk(shown),
                ]);
                for words in [String::new(), format!("TOKEN {token}")] {
                    let request = format!("LOCK.QEXTEND k o {LONGER} {words}");
                    let (renewed, deadlines) = leased(LONGER, || node.call(request));
                    assert_eq!(renewed, expected, "{mode}");
                    let (_, deadline) = hold(&node, "o").unwrap();
                    assert!(deadlines.contains(&deadline), "{mode}");
                }
                // Never shorter.
                let before = hold(&node, "o");
                assert_eq!(node.call("LOCK.QEXTEND k o 1"), expected, "{mode}");
                assert_eq!(hold(&node, "o"), before, "{mode}");
                let mut witness = node.witness();
                for other in ["x 100000".to_owned(), format!("o 100000 TOKEN {}", token + 1)] {
                    assert_eq!(node.call(format!("LOCK.QEXTEND k {other}")), 0, "{mode} {other}");
                }
                witness.saw_nothing("renewals of others");
            }
        }
    }

    fn a_hold_that_no_attempt_brought_about_is_not_extended(flavour) {
        let node = node(flavour);
        for taken in [
            "LOCK.ACQUIRE k o 100000",
            "LOCK.ACQUIRE k o 100000 REQID 7",
            "LOCK.ACQUIRE k o 100000 REQID q:7",
            "LOCK.ACQUIRE k o 100000 REQID q:000000000000000G",
            "LOCK.ACQUIRE k o 100000 SHARED",
            "LOCK.ACQUIRE k o 100000 SHARED REQID 7",
            "SET k o",
            "HSET k o 1",
        ] {
            node.call("DEL k");
            node.call(taken);
            let mut witness = node.witness();
            assert_eq!(node.call("LOCK.QEXTEND k o 200000"), 0, "{taken}");
            witness.saw_nothing(taken);
        }
    }

    fn extending_a_free_lock_tells_the_time_of_the_node(flavour) {
        let node = node(flavour);
        let before = unix_millis();
        let reply = node.call("LOCK.QEXTEND k o 100000");
        let after = unix_millis();
        let [Reply::Int(-1), Reply::Int(at)] = reply.items() else {
            panic!("{reply:?}");
        };
        assert!((before..=after).contains(at), "{at} is not in {before}..={after}");
        assert_eq!(node.call("EXISTS k"), 0);
    }

    fn relocking_grants_a_free_lock_as_it_was(flavour) {
        let node = node(flavour);
        for mode in MODES {
            node.call("DEL k");
            let highest = node.call("LOCK.ACQUIRE other o 100000").as_int();
            node.call("DEL other");
            // Lower than what the node has seen, or higher.
            for token in [highest - 1_000, highest + 3_600_000_000] {
                node.call("DEL k");
                let no_lock = node.call(("LOCK.QEXTEND", "k", "o", LONG));
                let at = no_lock.items()[1].as_int();
                let request = format!("LOCK.QRELOCK k o {LONG} {token} 7 {at} {LONG} {mode}");
                let (granted, deadlines) = leased(LONG, || node.call(&request));
                assert_eq!(granted, token, "{mode}");
                let (stored, deadline) = hold(&node, "o").unwrap();
                assert_eq!(stored, token, "{mode}");
                assert!(deadlines.contains(&deadline), "{mode}");
                // It is not free any more, be it by the same message.
                assert!(node.call(&request).is_nil(), "{mode}");
                let renewed = node.call(format!("LOCK.QEXTEND k o {LONG} TOKEN {token}"));
                assert_eq!(*renewed.items()[1].as_text(), *"7", "{mode}");
            }
            node.call("DEL k");
            let next = node.call(("LOCK.QVOTE", "next", "o", LONG, 5, 9)).as_int();
            assert!(next > highest + 3_600_000_000, "{mode}: the token was seen");
            node.call("DEL next");
        }
    }

    fn a_late_relock_is_refused(flavour) {
        let node = node(flavour);
        for mode in MODES {
            node.call("FLUSHALL");
            let mut witness = node.witness();
            let now = unix_millis();
            for (at, within) in [
                (now - 2, 1),
                (now - LONG - 1, LONG),
                (0, now - 1),
                // Of a clock that has been set back since.
                (now + LONGER, LONG),
                (i64::MAX, LONG),
            ] {
                let request = format!("LOCK.QRELOCK k o {LONG} 5 7 {at} {within} {mode}");
                assert!(node.call(request).is_nil(), "{mode} {at} {within}");
            }
            witness.saw_nothing("late messages");
            let wide = i64::MAX;
            let request = format!("LOCK.QRELOCK k o {LONG} 5 7 0 {wide} {mode}");
            assert_eq!(node.call(request), 5, "{mode}");
        }
    }

    fn a_relock_takes_nothing_from_anybody(flavour) {
        let node = node(flavour);
        for (taken, mode) in [
            ("LOCK.QVOTE k x 100000 5 8", ""),
            ("LOCK.QVOTE k x 100000 5 8", "SHARED"),
            ("LOCK.QVOTE k x 100000 5 8 SHARED", ""),
            ("LOCK.QVOTE k o 100000 5 8", ""),
            ("LOCK.QVOTE k o 100000 5 8 SHARED", "SHARED"),
            ("LOCK.ACQUIRE k o 100000", ""),
            ("SET k o", ""),
        ] {
            node.call("DEL k");
            node.call(taken);
            let at = unix_millis();
            let mut witness = node.witness();
            let reply = node.call(format!("LOCK.QRELOCK k o {LONG} 5 7 {at} {LONG} {mode}"));
            assert!(reply.is_nil(), "{taken} {mode}");
            witness.saw_nothing(taken);
        }
        node.call("DEL k");
        node.call("LOCK.QVOTE k x 100000 5 8 SHARED");
        let at = unix_millis();
        let reply = node.call(format!("LOCK.QRELOCK k o {LONG} 5 7 {at} {LONG} SHARED"));
        assert_eq!(reply, 5, "there is room beside another share");
        assert_eq!(holders(&node, "k"), [b"o", b"x"]);
    }

    /// Late messages of one attempt, when another owner has had the lock.
    fn late_messages_bring_nothing_back(flavour) {
        let node = node(flavour);
        for (attempt, mode) in (1..).zip(MODES) {
            node.call("DEL k");
            let token = vote(&node, "a", LONG, proposal(), attempt, mode).as_int();
            assert_eq!(settle(&node, "a", attempt, token, token + 10, mode), token + 10);
            node.call("DEL k");
            // Free again: a late settle grants nothing, a late vote gets a new token.
            assert!(settle(&node, "a", attempt, token, token + 10, mode).is_nil(), "{mode}");
            assert_eq!(vote(&node, "a", LONG, token, attempt, mode), token + 11, "{mode}");
            assert!(settle(&node, "a", attempt, token, token + 10, mode).is_nil(), "{mode}");
            let unvote = format!("LOCK.QUNVOTE k a {attempt}");
            assert_eq!(node.call(&unvote), 1, "{mode}");
            // Another owner has it.
            let next = vote(&node, "b", LONG, 5, 9, "").as_int();
            assert_eq!(next, token + 12);
            let stored = node.snapshot();
            assert!(vote(&node, "a", LONG, token, attempt, mode).is_nil(), "{mode}");
            assert!(settle(&node, "a", attempt, token, token + 10, mode).is_nil(), "{mode}");
            assert_eq!(node.call(&unvote), 0, "{mode}");
            assert_eq!(node.call("LOCK.QEXTEND k a 100000"), 0, "{mode}");
            assert_eq!(node.snapshot(), stored, "{mode}");
        }
    }

    fn a_lapsed_hold_is_free(flavour) {
        let node = node(flavour);
        for (attempt, mode) in (10..).zip(MODES) {
            node.call("DEL k");
            let token = vote(&node, "a", 1, proposal(), attempt, mode).as_int();
            // A share that lasts keeps the key of one that lapses.
            if !mode.is_empty() {
                vote(&node, "c", LONG, 5, 3, mode);
            }
            wait_until("the hold to lapse", || hold(&node, "a").is_none());
            assert!(settle(&node, "a", attempt, token, token + 1, mode).is_nil(), "{mode}");
            assert_eq!(node.call(format!("LOCK.QUNVOTE k a {attempt}")), 0, "{mode}");
            assert!(vote(&node, "b", LONG, 5, 2, mode).as_int() > token, "{mode}");
        }
    }

    fn who_waits_for_the_lock_of_a_node_is_served_first(flavour) {
        let node = node(flavour);
        for (attempt, end) in [
            (7, "LOCK.QUNVOTE k o 7"),
            (2, "LOCK.QEND k o"),
            (3, "LOCK.RELEASE k o"),
        ] {
            vote(&node, "o", LONG, 5, attempt, "");
            let mut waiter = node.raw();
            wait_in(&node, &mut waiter, "w", 0);
            assert!(vote(&node, "x", LONG, 5, 8, "").is_nil());
            assert!(node.call(end).error_code().is_none(), "{end}");
            assert!(waiter.read().as_int() > 0, "{end}");
            assert!(vote(&node, "x", LONG, 5, 8, "").is_nil());
            assert_eq!(node.call("LOCK.RELEASE k w"), 1);
        }
        // A share that comes later does not overtake one who wants the lock alone.
        vote(&node, "o", LONG, 5, 9, "SHARED");
        let mut waiter = node.raw();
        wait_in(&node, &mut waiter, "w", 0);
        assert!(vote(&node, "x", LONG, 5, 8, "SHARED").is_nil());
        let at = unix_millis();
        let relock = format!("LOCK.QRELOCK k x {LONG} 5 8 {at} {LONG} SHARED");
        assert!(node.call(relock).is_nil());
        assert_eq!(node.call("LOCK.QUNVOTE k o 9"), 1);
        assert!(waiter.read().as_int() > 0);
    }

    /// Who waits looks again when the lease ends that lasts longest.
    fn a_longer_lease_is_waited_for(flavour) {
        let node = node(flavour);
        let token = vote(&node, "o", LONG, 5, 7, "").as_int();
        let mut waiter = node.raw();
        wait_in(&node, &mut waiter, "w", 0);
        assert_eq!(settle(&node, "o", 7, token, token + 1, ""), token + 1);
        assert!(!waiter.has_reply());
        // Only the owner's own renewal makes a lease shorter.
        assert_eq!(node.call("LOCK.RENEW k o 20"), 1);
        assert!(waiter.read().as_int() > token);
    }

    fn what_a_node_writes_are_plain_commands(flavour) {
        let node = node(flavour);
        let bare = Server::build(flavour).without_module().start();
        let mut stream = node.replication_stream();
        let mut events = node.events();
        let token = proposal();
        let (low, high) = (token - 10, token + 10);
        let now = unix_millis();
        let at_any_time = format!("{now} 100000000");
        let steps = [
            (format!("LOCK.QVOTE k o {LONG} {token} 7"), "SET k * PXAT *",
                &["set", "expire", "lock.acquired"][..]),
            (format!("LOCK.QVOTE k o {LONG} {token} 7"), "PEXPIREAT k *",
                &["expire", "lock.renewed"]),
            (format!("LOCK.QSETTLE k o {LONG} 7 {token} {high}"), "SET k * PXAT *",
                &["set", "expire", "lock.renewed"]),
            (format!("LOCK.QSETTLE k o {LONG} 7 {token} {high}"), "PEXPIREAT k *",
                &["expire", "lock.renewed"]),
            (format!("LOCK.QSETTLE k o {LONG} 7 {token} {low}"), "", &[]),
            (format!("LOCK.QVOTE k o {LONG} {token} 8"), "", &[]),
            (format!("LOCK.QEXTEND k o {LONG}"), "PEXPIREAT k *", &["expire", "lock.renewed"]),
            (format!("LOCK.QEXTEND k x {LONG}"), "", &[]),
            ("LOCK.QUNVOTE k o 5".to_owned(), "", &[]),
            ("LOCK.QUNVOTE k o 7".to_owned(), "DEL k", &["lock.released", "del"]),
            (format!("LOCK.QVOTE k o {LONG} {token} 7"), "", &[]),
            (format!("LOCK.QEXTEND k o {LONG}"), "", &[]),
            ("LOCK.QEND k o".to_owned(), "", &[]),
            (format!("LOCK.QSETTLE k o {LONG} 7 {token} {high}"), "", &[]),
            (format!("LOCK.QRELOCK k o {LONG} {low} 9 1 1"), "", &[]),
            (format!("LOCK.QRELOCK k o {LONG} {low} 9 {at_any_time}"), "SET k * PXAT *",
                &["set", "expire", "lock.acquired"]),
            ("LOCK.QEND k o".to_owned(), "DEL k", &["lock.released", "del"]),
            (format!("LOCK.QVOTE k o {LONG} {token} 6 SHARED"),
                "MULTI, ZADD k 0 lk1s * o:o * t:o * r:18:q:0000000000000006:o, PEXPIREAT k *, EXEC",
                &["zadd", "expire", "lock.acquired"]),
            (format!("LOCK.QRELOCK k p 1000 {low} 8 {at_any_time} SHARED"),
                "ZADD k * o:p * t:p * r:18:q:0000000000000008:p", &["zadd", "lock.acquired"]),
            (format!("LOCK.QSETTLE k p 1000 8 {low} {high} SHARED"),
                "ZADD k * o:p * t:p * r:18:q:0000000000000008:p", &["zadd", "lock.renewed"]),
            ("LOCK.QEXTEND k p 2000".to_owned(), "ZADD k * o:p", &["zadd", "lock.renewed"]),
            ("LOCK.QEND k p".to_owned(), "ZREM k r:18:q:0000000000000008:p t:p o:p",
                &["lock.released", "zrem"]),
            ("LOCK.QUNVOTE k o 6".to_owned(), "DEL k", &["lock.released", "del"]),
        ];
        for (command, expected, expected_events) in steps {
            let reply = node.call(&command);
            assert_eq!(reply.error_code(), None, "{command}: {reply:?}");
            let writes = stream.writes(&node);
            let patterns: Vec<&str> = expected.split(", ").filter(|part| !part.is_empty()).collect();
            let fits = writes.len() == patterns.len()
                && writes.iter().zip(&patterns).all(|(write, pattern)| write.matches(pattern));
            assert!(fits, "{command}: {writes:?}");
            let seen: Vec<String> =
                events.so_far().iter().map(|event: &Words| event.text(1).to_owned()).collect();
            assert_eq!(seen, expected_events, "{command}");
            for write in &writes {
                bare.call(write);
            }
            assert_eq!(bare.snapshot(), node.snapshot(), "{command}");
        }
    }

    fn a_node_that_may_have_forgotten_does_not_vote(flavour) {
        let node = Server::start(flavour);
        let at = unix_millis();
        let requests = [
            "LOCK.QVOTE k o 50000 5 7".to_owned(),
            "LOCK.QSETTLE k o 50000 7 5 6".to_owned(),
            format!("LOCK.QRELOCK k o 50000 5 7 {at} 50000"),
        ];
        let mut witness = node.witness();
        for request in &requests {
            for mode in MODES {
                let refused = node.call(format!("{request} {mode}"));
                assert_eq!(refused.error_code(), Some("NOVOTE"), "{request}");
            }
        }
        witness.saw_nothing("a node that does not vote");
        // Other commands go on.
        assert!(node.call("LOCK.ACQUIRE other o 100000").as_int() > 0);
        assert_eq!(node.call("LOCK.QUNVOTE k o 7"), 0);
        assert_eq!(node.call("LOCK.QEXTEND k o 50000").items()[0], -1);
    }

    fn a_node_votes_when_the_longest_ttl_is_over(flavour) {
        let node = Server::build(flavour).module_args(&["quorum-max-ttl", "300"]).start();
        let (before, token) = wait_for("the node to vote", || {
            let before = unix_micros();
            match node.call("LOCK.QVOTE k o 300 5 7") {
                Reply::Int(token) => Some((before, token)),
                refused => {
                    assert_eq!(refused.error_code(), Some("NOVOTE"));
                    None
                }
            }
        });
        // It begins with its clock as the highest token.
        assert!(token > before, "{token} is not after {before}");
        // Once it votes, it does so for ever.
        assert_eq!(node.call("CONFIG SET lock.quorum-max-ttl 100000000"), "OK");
        node.call("DEL k");
        assert!(vote(&node, "o", LONG, 5, 7, "").as_int() > 0);
    }

    fn a_killed_node_without_a_safe_file_waits(flavour) {
        let setting = "lock.quorum-max-ttl";
        let node = Server::build(flavour)
            .aof()
            .config("appendfsync", "everysec")
            .config(setting, "1")
            .start();
        wait_until("the node to vote", || vote(&node, "o", 1, 5, 7, "").error_code().is_none());
        assert_eq!(node.call(("CONFIG", "SET", setting, 50_000)), "OK");
        assert_eq!(node.call("CONFIG REWRITE"), "OK");
        let node = node.kill().start();
        assert_eq!(vote(&node, "o", 1, 5, 7, "").error_code(), Some("NOVOTE"));
        // What is set now says nothing of what was on disk before.
        assert_eq!(node.call("CONFIG SET appendfsync always"), "OK");
        assert_eq!(vote(&node, "o", 1, 5, 7, "").error_code(), Some("NOVOTE"));
        // The time counts, and may be set.
        assert_eq!(node.call(("CONFIG", "SET", setting, 1)), "OK");
        wait_until("the node to vote", || vote(&node, "o", 1, 5, 7, "").error_code().is_none());
    }

    fn a_killed_node_with_a_safe_file_remembers_and_votes_at_once(flavour) {
        let node = node(flavour);
        let token = vote(&node, "o", LONG, proposal(), 7, "").as_int();
        assert_eq!(settle(&node, "o", 7, token, token + 10, ""), token + 10);
        node.call("LOCK.QVOTE shared a 50000 5 8 SHARED");
        let stored = node.snapshot();
        let node = node.kill().start();
        assert_eq!(node.snapshot(), stored);
        assert_eq!(node.call("CONFIG SET lock.quorum-max-ttl 1000000000"), "OK");
        assert_eq!(vote(&node, "o", LONG, 5, 7, ""), token + 10);
        assert!(vote(&node, "x", LONG, 5, 8, "").is_nil());
        let before = unix_micros();
        let renewed = node.call(format!("LOCK.QEXTEND k o {LONG} TOKEN {}", token + 10));
        assert_eq!(renewed.items()[0], token + 10);
        assert_eq!(node.call("LOCK.QUNVOTE k o 7"), 1);
        // A record that it has come by raises the tokens to come.
        assert_eq!(vote(&node, "x", LONG, 5, 8, ""), token + 11);
        assert!(token > before, "the proposal was ahead of the clock");
    }

    /// The file is not as safe as it says while it is written anew.
    fn a_file_that_is_not_always_safe_does_not_count(flavour) {
        for (name, value) in [
            ("no-appendfsync-on-rewrite", "yes"),
            ("appendfsync", "everysec"),
            ("appendfsync", "no"),
            ("appendonly", "no"),
        ] {
            let node = Server::build(flavour).aof().config(name, value).start();
            let refused = vote(&node, "o", 1, 5, 7, "");
            assert_eq!(refused.error_code(), Some("NOVOTE"), "{name} {value}");
        }
    }

    /// What it has is what its primary sent it, and its own votes of before are gone.
    fn a_promoted_replica_waits(flavour) {
        let primary = node(flavour);
        let token = vote(&primary, "o", LONG, 5, 7, "").as_int();
        let replica = Server::build(flavour).aof().replica_of(&primary).start();
        let setting = "lock.quorum-max-ttl";
        assert_eq!(replica.call(("CONFIG", "SET", setting, 1_000_000)), "OK");
        wait_until("the replica to have the vote", || hold(&replica, "o").is_some());
        let refused = replica.call("LOCK.QVOTE other o 50000 5 8");
        assert_eq!(refused.error_code(), Some("READONLY"));
        assert_eq!(replica.call("REPLICAOF NO ONE"), "OK");
        let mut witness = replica.witness();
        for request in ["LOCK.QVOTE other o 50000 5 8", "LOCK.QSETTLE k o 50000 7 5 6"] {
            assert_eq!(replica.call(request).error_code(), Some("NOVOTE"), "{request}");
        }
        witness.saw_nothing("a promoted replica");
        // What it has is renewed and ended.
        assert_eq!(replica.call("LOCK.QEXTEND k o 50000").items()[0], token);
        assert_eq!(replica.call("LOCK.QEND k o"), Reply::bulk("7"));
        assert_eq!(replica.call(("CONFIG", "SET", setting, 1)), "OK");
        let (before, granted) = wait_for("the node to vote", || {
            let before = unix_micros();
            match replica.call("LOCK.QVOTE other o 1 5 8") {
                Reply::Int(token) => Some((before, token)),
                _ => None,
            }
        });
        assert!(granted > before, "{granted} is not after {before}");
        // One that has voted does not when it is promoted another time.
        assert_eq!(replica.call(("CONFIG", "SET", setting, 1_000_000)), "OK");
        for role in ["127.0.0.1 1", "NO ONE"] {
            assert_eq!(replica.call(format!("REPLICAOF {role}")), "OK");
        }
        let refused = replica.call("LOCK.QVOTE other o 50000 5 8");
        assert_eq!(refused.error_code(), Some("NOVOTE"));
    }

    fn a_module_that_is_loaded_into_a_running_server_votes_at_once(flavour) {
        let node = Server::build(flavour).without_module().start();
        wait_until("the server to have run for a while", || {
            node.info_number("server", "uptime_in_seconds") >= 3
        });
        let path = module_path();
        let path = path.to_str().unwrap();
        assert_eq!(node.call(("MODULE", "LOAD", path, "quorum-max-ttl", 1_000)), "OK");
        let before = unix_micros();
        assert!(vote(&node, "o", 1_000, 5, 7, "").as_int() > before);
    }

    fn a_ttl_longer_than_a_restarted_node_waits_is_refused(flavour) {
        let node = node(flavour);
        assert_eq!(node.call("CONFIG SET lock.quorum-max-ttl 1000"), "OK");
        let mut witness = node.witness();
        let error = "ERR ttl is longer than lock.quorum-max-ttl allows";
        let at = unix_millis();
        for command in [
            "LOCK.QVOTE k o 1001 5 7".to_owned(),
            "LOCK.QVOTE k o 9007199254740991 5 7 SHARED".to_owned(),
            "LOCK.QSETTLE k o 1001 7 5 5".to_owned(),
            "LOCK.QEXTEND k o 1001".to_owned(),
            format!("LOCK.QRELOCK k o 1001 5 7 {at} 100000"),
        ] {
            assert_eq!(node.call(&command), Reply::Error(error.to_owned()), "{command}");
        }
        witness.saw_nothing("a ttl that is too long");
        assert!(vote(&node, "o", 1_000, 5, 7, "").as_int() > 0);
    }

    fn a_token_of_a_wrong_clock_is_refused(flavour) {
        let node = node(flavour);
        let day = 86_400_000_000;
        let token = vote(&node, "o", LONG, 5, 7, "").as_int();
        let mut witness = node.witness();
        let (ahead, at) = (unix_micros() + 2 * day, unix_millis());
        for (command, name) in [
            (format!("LOCK.QVOTE free o {LONG} {ahead} 7"), "token"),
            (format!("LOCK.QSETTLE k o {LONG} 7 {token} {ahead}"), "to"),
            (format!("LOCK.QRELOCK free o {LONG} {ahead} 7 {at} {LONG}"), "token"),
        ] {
            let error = format!("ERR {name} is ahead of the clock of this server by more than a day");
            assert_eq!(node.call(&command), Reply::Error(error), "{command}");
        }
        witness.saw_nothing("tokens of a wrong clock");
        assert_eq!(node.call(("LOCK.QVOTE", "free", "o", LONG, unix_micros() + day / 2, 7)).error_code(), None);
    }

    fn wrong_arguments_are_named(flavour) {
        let node = node(flavour);
        let mut witness = node.witness();
        let no_integer = |name: &str| format!("ERR {name} is not an integer or out of range");
        let positive = |name: &str| format!("ERR {name} must be positive");
        let negative = |name: &str| format!("ERR {name} is negative");
        let commands = [
            "LOCK.QVOTE k o $ttl $token $attempt",
            "LOCK.QSETTLE k o $ttl $attempt $from $to",
            "LOCK.QUNVOTE k o $attempt",
            "LOCK.QEXTEND k o $ttl",
            "LOCK.QRELOCK k o $ttl $token $attempt $at $within",
        ];
        let right = [
            ("$ttl", "1000"), ("$token", "5"), ("$attempt", "7"), ("$from", "5"), ("$to", "6"),
            ("$at", "5"), ("$within", "5"),
        ];
        for (place, name) in right.map(|(place, _)| (place, &place[1..])) {
            for value in [
                "x", "1.5", "01", "+1", "0x1", "-", "1e3", "18446744073709551616",
                "9223372036854775808", "-1", "0",
            ] {
                let error = match (name, value) {
                    ("attempt", "9223372036854775808" | "0")
                    | ("at" | "within", "0") => continue,
                    ("ttl" | "token" | "from" | "to", "-1" | "0") => positive(name),
                    (_, "-1") => negative(name),
                    _ => no_integer(name),
                };
                for command in commands.iter().filter(|command| command.split(' ').any(|word| word == place)) {
                    let words: Vec<&str> = command
                        .split(' ')
                        .map(|word| {
                            if word == place {
                                return value;
                            }
                            let right = right.iter().find(|(place, _)| *place == word);
                            right.map_or(word, |(_, value)| value)
                        })
                        .collect();
                    assert_eq!(node.call(&words), Reply::Error(error.clone()), "{words:?}");
                }
            }
        }
        witness.saw_nothing("wrong arguments");
    }
}
