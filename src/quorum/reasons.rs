//! Why a request found no quorum, in words for its client. Pure.

use super::round::{Counts, Nodes};
use std::fmt::Write;

/// The longest reason of one node that is told, and the longest text of all, in characters.
const LONGEST: (usize, usize) = (120, 1_000);

/// What a node has to do with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// Where it listens.
    pub(crate) address: String,
    /// What it answered, or why it did not.
    pub(crate) reason: String,
}

/// How many nodes did what they were asked for, how many have to, and what became of the others.
/// Texts of nodes have what cannot be printed escaped, and are cut off when they are long.
pub(crate) fn describe(counts: Counts, troubles: &[Trouble]) -> String {
    let Counts {
        agreed, refused, ..
    } = counts;
    let all = counts.all();
    let majority = Nodes::new(all).map_or(all, Nodes::majority);
    let mut text =
        format!("{agreed} of {all} nodes agreed, {refused} refused, {majority} are needed");
    if agreed >= majority {
        text.push_str(", in less time than the ttl");
    }
    let mut separator = ": ";
    for (index, trouble) in troubles.iter().enumerate() {
        let (earlier, rest) = troubles.split_at(index);
        let is_same = |other: &&Trouble| other.reason == trouble.reason;
        if earlier.iter().any(|other| is_same(&other)) {
            continue;
        }
        text.push_str(separator);
        let addresses = rest
            .iter()
            .filter(is_same)
            .map(|other| other.address.as_str());
        text.push_str(&addresses.collect::<Vec<_>>().join(", "));
        text.push(' ');
        text.push_str(&printable(&trouble.reason, LONGEST.0));
        separator = "; ";
    }
    printable(&text, LONGEST.1)
}

/// So many characters of a text, or fewer and three dots, with everything escaped that cannot be
/// printed.
fn printable(text: &str, longest: usize) -> String {
    let mut shown = String::new();
    for (count, letter) in text.chars().enumerate() {
        if count == longest {
            shown.push_str("...");
            break;
        }
        if letter.is_control() {
            // A string takes all that is written to it.
            let _ = write!(shown, "{}", letter.escape_default());
        } else {
            shown.push(letter);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trouble(address: &str, reason: &str) -> Trouble {
        Trouble {
            address: address.to_owned(),
            reason: reason.to_owned(),
        }
    }

    fn described(agreed: usize, troubles: &[Trouble]) -> String {
        let counts = Counts {
            agreed,
            refused: 1,
            failed: 4 - agreed,
            ..Counts::default()
        };
        describe(counts, troubles)
    }

    #[test]
    fn nodes_with_the_same_reason_stand_together() {
        let troubles = [
            trouble("a:1", "timed out"),
            trouble("b:2", "LOADING not yet"),
            trouble("c:3", "timed out"),
        ];
        assert_eq!(
            described(1, &troubles),
            "1 of 5 nodes agreed, 1 refused, 3 are needed: a:1, c:3 timed out; b:2 LOADING not yet"
        );
        assert_eq!(
            described(3, &[]),
            "3 of 5 nodes agreed, 1 refused, 3 are needed, in less time than the ttl"
        );
    }

    #[test]
    fn what_nodes_say_breaks_no_line_and_is_not_long() {
        let text = described(0, &[trouble("a:1", "ERR a\r\nb\0\u{7f}é")]);
        assert!(text.ends_with(r"a:1 ERR a\r\nb\u{0}\u{7f}é"), "{text}");
        let long = "x".repeat(10_000);
        let text = described(0, &[trouble("a:1", &long), trouble("b:1", "short")]);
        assert!(text.ends_with("x...; b:1 short"), "{text}");
        let many: Vec<Trouble> = (0..15)
            .map(|port| trouble(&long, &format!("{port}{long}")))
            .collect();
        assert_eq!(described(0, &many).len(), 1_003);
    }
}
