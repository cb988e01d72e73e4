//! Server processes.

use std::net::Ipv4Addr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tempfile::TempDir;

use super::aof;
use super::builder::ServerBuilder;
use super::flavour::Flavour;
use super::process::{Process, log_tail, read_log};
use super::raw::Raw;
use super::reply::Reply;
use super::wait::{deadline, scaled, wait_at_most, wait_until};
use super::words::{ToWords, Words};

/// How long a server may take until it answers.
const READY: Duration = Duration::from_secs(20);

/// A running server. It is killed, and its directory removed, when it goes out of scope.
///
/// A test fails, with the server's log, when the server does not answer any more at the end of it.
/// The log also comes with any other failure.
pub(crate) struct Server {
    // Before `home`, so that the process ends before its directory is removed.
    process: Process,
    home: Home,
    /// The connection of [`Server::call`].
    connection: Mutex<Raw>,
}

/// A server that has ended, with its directory: it can be started again.
pub(crate) struct Stopped {
    pub(super) home: Home,
    status: ExitStatus,
}

/// What stays of a server when its process ends.
pub(super) struct Home {
    pub(super) flavour: Flavour,
    pub(super) port: u16,
    /// Whether the server is ready only when it has its first copy from a primary.
    pub(super) is_replica: bool,
    pub(super) overwrites_freed: bool,
    pub(super) dir: TempDir,
}

impl Home {
    /// Starts the process and waits until it answers. When it ends by itself instead, what is left
    /// of it comes back.
    pub(super) fn launch(self) -> Result<Server, Self> {
        let mut process = Process::spawn(&self);
        let ready = wait_at_most(scaled(READY), || match process.ended() {
            Some(_) => Some(None),
            None => process.connect().map(Some),
        });
        match ready {
            Some(Some(connection)) => {
                let server = Server {
                    process,
                    home: self,
                    connection: Mutex::new(connection),
                };
                if server.home.is_replica {
                    wait_until("the replica's first synchronisation", || server.is_linked());
                }
                Ok(server)
            }
            Some(None) => {
                process.finish();
                Err(self)
            }
            None => panic!("the server did not answer within {:?}", scaled(READY)),
        }
    }

    /// Whether the server ended because another process has its port.
    pub(super) fn found_its_port_taken(&self) -> bool {
        self.log().contains("Address already in use")
    }

    /// Where the server logs.
    pub(super) fn log_path(&self) -> PathBuf {
        self.dir.path().join("server.log")
    }

    /// The whole log.
    pub(super) fn log(&self) -> String {
        read_log(&self.log_path())
    }
}

impl Stopped {
    /// Starts the server again: same directory, same port, same configuration.
    pub(crate) fn start(self) -> Server {
        self.home.launch().unwrap_or_else(|home| {
            panic!("the server did not start again\n{}", log_tail(&home.log()))
        })
    }

    /// How the process ended.
    pub(crate) fn status(&self) -> ExitStatus {
        self.status
    }

    /// The directory that the server worked in.
    pub(crate) fn dir(&self) -> &Path {
        self.home.dir.path()
    }

    /// The whole log so far, that of earlier starts included.
    pub(crate) fn log(&self) -> String {
        self.home.log()
    }

    /// All commands in the append only file. See [`ServerBuilder::aof`].
    pub(crate) fn aof_commands(&self) -> Vec<Words> {
        aof::commands(self.dir())
    }
}

impl Server {
    /// A server with the module, started.
    pub(crate) fn start(flavour: Flavour) -> Self {
        Self::build(flavour).start()
    }

    /// A server with the module, to be configured before it starts.
    pub(crate) fn build(flavour: Flavour) -> ServerBuilder {
        ServerBuilder::new(flavour)
    }

    /// Which server it is.
    pub(crate) fn flavour(&self) -> Flavour {
        self.home.flavour
    }

    /// The port that it listens on.
    pub(crate) fn port(&self) -> u16 {
        self.home.port
    }

    /// The number of its process.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The directory that it works in.
    pub(crate) fn dir(&self) -> &Path {
        self.home.dir.path()
    }

    /// The whole log so far, that of earlier starts included.
    pub(crate) fn log(&self) -> String {
        self.home.log()
    }

    /// Kills the process, as `kill -9` does.
    pub(crate) fn kill(mut self) -> Stopped {
        let status = self.process.kill();
        let stopped = self.stopped(status);
        // Anything else means that the server had ended before.
        assert_eq!(status.signal(), Some(9), "{}", log_tail(&stopped.log()));
        stopped
    }

    /// Ends the server in the orderly way. Before that it saves all keys to its RDB file.
    pub(crate) fn shutdown(mut self) -> Stopped {
        self.process.request_shutdown("SHUTDOWN SAVE").unwrap();
        let status = self.process.wait();
        let stopped = self.stopped(status);
        assert!(
            status.success(),
            "the server ended with {status}\n{}",
            log_tail(&stopped.log())
        );
        stopped
    }

    /// Ends the server in the orderly way and starts it again; all keys are kept.
    pub(crate) fn restart(self) -> Self {
        self.shutdown().start()
    }

    /// Waits until the process ends by itself, after something that a test did.
    pub(crate) fn wait_for_end(mut self) -> Stopped {
        let status = self.process.wait();
        self.stopped(status)
    }

    /// What is left when the process has ended.
    fn stopped(self, status: ExitStatus) -> Stopped {
        self.process.finish();
        Stopped {
            home: self.home,
            status,
        }
    }

    /// A connection of the `redis` crate.
    pub(crate) fn client(&self) -> redis::Connection {
        let client = redis::Client::open((Ipv4Addr::LOCALHOST.to_string(), self.port())).unwrap();
        let connection = client.get_connection().expect("a connection");
        connection.set_read_timeout(Some(deadline())).unwrap();
        connection
    }

    /// A connection in RESP2.
    pub(crate) fn raw(&self) -> Raw {
        Raw::connect(self.port()).expect("a connection")
    }

    /// A connection in RESP3.
    pub(crate) fn raw_resp3(&self) -> Raw {
        let mut connection = self.raw();
        connection.call("HELLO 3");
        connection
    }

    /// Sends a command over the server's own connection, on database 0, and reads the reply. See
    /// [`ToWords`] for what a command can be.
    pub(crate) fn call(&self, command: impl ToWords) -> Reply {
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .call(command)
    }
}
