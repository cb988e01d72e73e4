//! Servers under valgrind, to find what the module does wrong with memory.
//!
//! With `REDIS_LOCK_VALGRIND=1` in the environment every server of every test runs so. What
//! valgrind finds in the server itself is not the module's business and fails nothing.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Whether servers run under valgrind.
pub(super) fn is_on() -> bool {
    env::var_os("REDIS_LOCK_VALGRIND").is_some_and(|value| value == "1")
}

/// The command that runs `binary` under valgrind, with a report per process in `dir`. The report
/// alone tells what was found, not the exit status: a server's own leaks must fail nothing.
pub(super) fn command(binary: &Path, dir: &Path) -> Command {
    let mut command = Command::new("valgrind");
    command
        .arg("--leak-check=full")
        .arg("--errors-for-leak-kinds=definite")
        .arg("--show-leak-kinds=definite")
        // A server forks to save its keys; the copy has nothing new to report.
        .arg("--child-silent-after-fork=yes")
        // So that frames of the module have names also after it was unloaded.
        .arg("--keep-debuginfo=yes")
        // A command passes through the server before it comes to the module.
        .arg("--num-callers=40")
        // The process number, because a server that is started again has a second report.
        .arg(format!("--log-file={}/valgrind.%p.log", dir.display()))
        .arg(binary);
    command
}

/// What the reports in `dir` say about the module.
pub(super) fn errors_in(dir: &Path) -> Vec<String> {
    let mut errors = Vec::new();
    for file in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = file.file_name();
        if name.to_string_lossy().starts_with("valgrind.") {
            let report = fs::read(file.path()).unwrap_or_default();
            errors.extend(module_errors(&String::from_utf8_lossy(&report)));
        }
    }
    errors
}

/// The errors of a report that have a frame of the module in them.
pub(crate) fn module_errors(report: &str) -> Vec<String> {
    let mut errors = vec![String::new()];
    for line in report.lines() {
        // `==<process>== <text>`, with an empty text between two errors.
        let text = line.split_once("== ").map_or("", |(_, text)| text);
        if text.is_empty() {
            errors.push(String::new());
        } else if let Some(error) = errors.last_mut() {
            error.push_str(text);
            error.push('\n');
        }
    }
    errors.retain(|error| error.lines().any(is_frame_of_module));
    errors
}

/// Whether a line names code of the module: by its file or, where there are debug symbols, by a
/// Rust source, since the servers have none.
fn is_frame_of_module(line: &str) -> bool {
    let is_frame = line.trim_start().starts_with("at 0x") || line.trim_start().starts_with("by 0x");
    is_frame
        && (line.contains("libredis_lock")
            || line.contains("redis_lock::")
            || line.contains(".rs:"))
}
