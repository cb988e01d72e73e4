//! The process of a server, which ends with the test.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use super::raw::Raw;
use super::server::Home;
use super::valgrind;
use super::wait::{deadline, scaled, wait_at_most, wait_for};
use super::words::ToWords;

/// How long a server that is starting may take for an answer before it is asked anew.
const PROBE: Duration = Duration::from_millis(500);

/// How many lines of its log a failing test shows.
const LOG_LINES: usize = 200;

/// The process of a server.
pub(super) struct Process {
    child: Child,
    port: u16,
    dir: PathBuf,
    log: PathBuf,
    /// Whether it has ended in a way that the test wanted.
    over: bool,
}

impl Process {
    /// Starts the server that `home` describes.
    pub(super) fn spawn(home: &Home) -> Self {
        let dir = home.dir.path();
        let binary = home.flavour.binary();
        let log = File::options()
            .create(true)
            .append(true)
            .open(home.log_path())
            .expect("a log file");
        let mut command = if valgrind::is_on() {
            valgrind::command(&binary, dir)
        } else {
            Command::new(binary)
        };
        if home.overwrites_freed {
            // Of jemalloc, as servers build it and as Debian does, and of the C library.
            command.env("JE_MALLOC_CONF", "junk:true");
            command.env("MALLOC_CONF", "junk:true");
            command.env("MALLOC_PERTURB_", "165");
        }
        // Without a `logfile` the log goes to the standard output, and so does what is said before
        // the server has read its configuration.
        let child = command
            .arg("server.conf")
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log file"))
            .stderr(log)
            .spawn()
            .expect("a server process");
        Self {
            child,
            port: home.port,
            dir: dir.to_owned(),
            log: home.log_path(),
            over: false,
        }
    }

    /// The number of the process.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// How the process ended, if it has.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a process to ask")
    }

    /// A connection, if the server is ready; not one to another process that has taken the port.
    pub(super) fn connect(&self) -> Option<Raw> {
        let mut connection = Raw::connect(self.port).ok()?;
        connection.expect_replies_within(scaled(PROBE)).ok()?;
        connection.try_send(&"PING".to_words()).ok()?;
        if connection.try_read().ok()? != "PONG" {
            return None;
        }
        connection.try_send(&"INFO server".to_words()).ok()?;
        let info = connection.try_read().ok()?;
        let own = format!("process_id:{}", self.child.id());
        connection.expect_replies_within(deadline()).ok()?;
        info.as_text()
            .lines()
            .any(|line| line == own)
            .then_some(connection)
    }

    /// Whether the server still answers, whatever it says.
    fn is_alive(&self) -> bool {
        Raw::connect(self.port).is_ok_and(|mut connection| {
            connection.try_send(&"PING".to_words()).is_ok() && connection.try_read().is_ok()
        })
    }

    /// Looks, at the end of a test that has passed so far, whether all is well with the server.
    fn check(&mut self) -> Result<(), String> {
        if !self.is_alive() {
            // A process that crashes hangs up a little before it is gone.
            return Err(match wait_at_most(deadline(), || self.ended()) {
                Some(status) => format!("the server ended with {status} during the test"),
                None => "the server does not answer any more".to_owned(),
            });
        }
        if valgrind::is_on() {
            // Valgrind looks for leaks when the server ends by itself.
            self.request_shutdown("SHUTDOWN NOSAVE")?;
            wait_at_most(deadline(), || self.ended()).ok_or("the server does not shut down")?;
        }
        Ok(())
    }

    /// Kills the process, if it still runs, and waits until it is gone.
    pub(super) fn kill(&mut self) -> ExitStatus {
        // An error means that it has ended already.
        let _ = self.child.kill();
        self.child.wait().expect("a process to wait for")
    }

    /// Asks the server to end. It answers only when it does not.
    pub(super) fn request_shutdown(&self, command: &str) -> Result<(), String> {
        if let Ok(mut connection) = Raw::connect(self.port)
            && connection.try_send(&command.to_words()).is_ok()
            && let Ok(refusal) = connection.try_read()
        {
            return Err(format!("the server does not shut down: {refusal:?}"));
        }
        Ok(())
    }

    /// Waits until the process ends.
    pub(super) fn wait(&mut self) -> ExitStatus {
        wait_for("the server's end", || self.ended())
    }

    /// Takes note that the process has ended in a way that the test wanted.
    pub(super) fn finish(mut self) {
        self.over = true;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let failing = thread::panicking();
        let mut health = Ok(());
        if !self.over {
            if !failing {
                health = self.check();
            }
            self.kill();
        }
        let log = log_tail(&read_log(&self.log));
        if failing {
            show(&log);
            return;
        }
        if let Err(problem) = health {
            panic!("{problem}\n{log}");
        }
        let errors = valgrind::errors_in(&self.dir);
        assert!(
            errors.is_empty(),
            "valgrind found errors in the module:\n\n{}",
            errors.join("\n")
        );
    }
}

/// Writes to the output of a failing test.
#[allow(
    clippy::print_stderr,
    reason = "it is where the test harness collects what a test says"
)]
fn show(log: &str) {
    eprintln!("{log}");
}

/// What a server has logged.
pub(super) fn read_log(path: &Path) -> String {
    let log = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&log).into_owned()
}

/// The last lines of a log, under a heading; or those from the report of a crash on, because that
/// ends with many lines that say little.
pub(super) fn log_tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let start = lines
        .iter()
        .position(|line| line.contains("BUG REPORT START"))
        .unwrap_or(lines.len())
        .min(lines.len().saturating_sub(LOG_LINES));
    let end = lines.len().min(start + LOG_LINES);
    format!(
        "--- the server's log\n{}\n---",
        lines[start..end].join("\n")
    )
}
