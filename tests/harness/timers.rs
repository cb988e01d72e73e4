//! The timers of the system that a server has open.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::server::Server;

/// A timer of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timer {
    /// The time until it goes off; none when it is not set.
    pub(crate) left: Duration,
    /// How often it went off and nobody took note.
    pub(crate) unread: u64,
}

impl Server {
    /// The timers that the process has open, as Linux tells.
    pub(crate) fn timers(&self) -> Vec<Timer> {
        let process = Path::new("/proc").join(self.info_number("server", "process_id").to_string());
        fs::read_dir(process.join("fd"))
            .unwrap()
            .map(|entry| entry.unwrap())
            // Others may be closed meanwhile.
            .filter(|entry| {
                fs::read_link(entry.path()).is_ok_and(|to| *to == *"anon_inode:[timerfd]")
            })
            .map(|entry| {
                let about = process.join("fdinfo").join(entry.file_name());
                parse(&fs::read_to_string(about).unwrap())
            })
            .collect()
    }
}

/// Reads lines such as `ticks: 0` and `it_value: (1, 500)`, which are seconds and nanoseconds.
fn parse(about: &str) -> Timer {
    let field = |name: &str| {
        about
            .lines()
            .filter_map(|line| line.split_once(": "))
            .find_map(|(field, value)| (field == name).then_some(value))
            .unwrap_or_else(|| panic!("no `{name}` in\n{about}"))
    };
    let left = field("it_value").trim_matches(['(', ')']);
    let (seconds, nanos) = left.split_once(", ").unwrap();
    Timer {
        left: Duration::new(seconds.parse().unwrap(), nanos.parse().unwrap()),
        unread: field("ticks").parse().unwrap(),
    }
}
