//! What a permit costs by how many are held: `cargo bench --bench permits [-- SERVER...]`.
//!
//! One run on one server measures, interleaved over several rounds, with 1, 100 and 10,000 permits
//! of one lock held: a `LOCK.ACQUIRE ... LIMIT` that is granted, and the `LOCK.RELEASE` of it, by
//! the time that the server spends in each, from `INFO commandstats`. Every answer is checked.
//!
//! Machines differ and are shared: only figures of one run can be compared. The growth over 100
//! permits is such a ratio; the smallest number shows what making and deleting the set costs.

#![allow(
    missing_docs,
    dead_code,
    unused_imports,
    unused_macros,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout
)]

#[path = "../tests/harness/mod.rs"]
mod harness;

use harness::{Flavour, Server};

/// How many permits are held; the growth is that over the second.
const HELD: [usize; 3] = [1, 100, 10_000];
/// How often all of them are measured in turn.
const ROUNDS: usize = 5;
/// Acquires and releases that one round measures.
const PAIRS: usize = 4_000;

fn main() {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with('-'))
        .collect();
    for flavour in Flavour::ALL {
        if wanted.is_empty() || wanted.iter().any(|name| name == flavour.name()) {
            println!("{}", flavour.name());
            measure(&Server::start(flavour));
        }
    }
}

fn measure(server: &Server) {
    for held in HELD {
        let acquires = (0..held).map(|owner| acquire(held, &format!("holder-{owner}")));
        for reply in server.raw().pipeline(acquires) {
            assert!(reply.as_int() > 0);
        }
    }
    let mut times = HELD.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (held, times) in HELD.into_iter().zip(&mut times) {
            times.push(pair(server, held));
        }
    }
    let medians = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    });
    for (held, median) in HELD.into_iter().zip(medians) {
        println!(
            "  {held:>6} permits held: acquire and release {median:.2} µs, growth {:.2}",
            median / medians[1]
        );
    }
}

fn acquire(held: usize, owner: &str) -> String {
    format!(
        "LOCK.ACQUIRE bench-{held} {owner} 600000 LIMIT {}",
        held + 1
    )
}

/// Microseconds that the server spends on an acquire and a release while so many permits are held.
fn pair(server: &Server, held: usize) -> f64 {
    assert_eq!(server.call("CONFIG RESETSTAT"), "OK");
    let mut client = server.raw();
    let pair = [
        acquire(held, "one-more"),
        format!("LOCK.RELEASE bench-{held} one-more"),
    ];
    for _ in 0..PAIRS / 100 {
        let replies = client.pipeline(std::iter::repeat_n(&pair, 100).flatten());
        for answers in replies.chunks(2) {
            assert!(answers[0].as_int() > 0);
            assert_eq!(answers[1], 1);
        }
    }
    let stats = server.info("commandstats");
    let usec: f64 = stats
        .iter()
        .filter(|(name, _)| {
            let name = name.to_lowercase();
            name == "cmdstat_lock.acquire" || name == "cmdstat_lock.release"
        })
        .map(|(_, value)| {
            let usec = value.split(',').find_map(|word| word.strip_prefix("usec="));
            usec.expect("a time").parse::<f64>().expect("a number")
        })
        .sum();
    usec / f64::from(u32::try_from(PAIRS).expect("a small number"))
}
