//! How a server is to be started.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::iter;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};

use tempfile::TempDir;

use super::flavour::Flavour;
use super::module::module_path;
use super::process::log_tail;
use super::server::{Home, Server, Stopped};

/// A server that is not started yet. See [`Server::build`].
pub(crate) struct ServerBuilder {
    flavour: Flavour,
    settings: Vec<(String, String)>,
    /// The arguments of the module, or nothing for a server without it.
    module: Option<Vec<String>>,
    dir: Option<TempDir>,
    overwrites_freed: bool,
}

impl ServerBuilder {
    /// The settings that all tests want.
    pub(super) fn new(flavour: Flavour) -> Self {
        let mut builder = Self {
            flavour,
            settings: Vec::new(),
            module: None,
            dir: None,
            overwrites_freed: false,
        }
        .module_args(&[]);
        let mut settings = vec![
            ("bind", "127.0.0.1"),
            ("daemonize", "no"),
            ("loglevel", "notice"),
            ("save", ""),
            ("appendonly", "no"),
            // A replica gets its first copy at once.
            ("repl-diskless-sync-delay", "0"),
        ];
        if flavour != Flavour::Redis62 {
            settings.extend([
                ("enable-debug-command", "yes"),
                ("enable-module-command", "yes"),
                // Not to wait for replicas that are gone.
                ("shutdown-timeout", "0"),
            ]);
        }
        for (name, value) in settings {
            builder = builder.config(name, value);
        }
        builder
    }

    /// A line of the configuration, in the words of `redis.conf`; the last one for a name counts.
    pub(crate) fn config(mut self, name: &str, value: &str) -> Self {
        self.settings.retain(|(other, _)| other != name);
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The arguments on the `loadmodule` line.
    pub(crate) fn module_args(mut self, args: &[&str]) -> Self {
        self.module = Some(args.iter().map(|arg| (*arg).to_owned()).collect());
        self
    }

    /// A server that does not load the module.
    pub(crate) fn without_module(mut self) -> Self {
        self.module = None;
        self
    }

    /// With an append only file that has each command when it is answered, and only commands.
    pub(crate) fn aof(self) -> Self {
        self.config("appendonly", "yes")
            .config("appendfsync", "always")
            .config("aof-use-rdb-preamble", "no")
    }

    /// With an allocator that overwrites memory when it is freed, so that what is used after that does
    /// not look right by chance.
    pub(crate) fn overwriting_freed_memory(mut self) -> Self {
        self.overwrites_freed = true;
        self
    }

    /// A replica of `primary`. It is started when it is in sync.
    pub(crate) fn replica_of(self, primary: &Server) -> Self {
        let address = format!("{} {}", Ipv4Addr::LOCALHOST, primary.port());
        self.config("replicaof", &address)
    }

    /// In the directory of another server, with all that this one has stored.
    pub(crate) fn dir_of(mut self, stopped: Stopped) -> Self {
        self.dir = Some(stopped.home.dir);
        self
    }

    /// Starts the server on a free port.
    pub(crate) fn start(self) -> Server {
        self.start_on(free_ports())
    }

    /// Starts the server on the first of these ports that nobody has taken.
    pub(crate) fn start_on(self, ports: impl IntoIterator<Item = u16>) -> Server {
        self.try_start_on(ports).unwrap_or_else(|home| {
            panic!(
                "the server ended before it was ready\n{}",
                log_tail(&home.log())
            )
        })
    }

    /// Starts the server, which must end by itself before it is ready, and returns its log.
    pub(crate) fn start_refused(self) -> String {
        match self.try_start_on(free_ports()) {
            Ok(_) => panic!("the server started"),
            Err(home) => home.log(),
        }
    }

    /// Starts the server on the first of these ports that nobody has taken. When it ends by itself
    /// instead, what is left of it comes back.
    fn try_start_on(mut self, ports: impl IntoIterator<Item = u16>) -> Result<Server, Home> {
        let mut dir = self.take_dir();
        for port in ports {
            match self.prepare(dir, port).launch() {
                Err(home) if home.found_its_port_taken() => dir = home.dir,
                result => return result,
            }
        }
        panic!("no free port for the server");
    }

    /// The directory to start in.
    fn take_dir(&mut self) -> TempDir {
        self.dir.take().unwrap_or_else(|| {
            tempfile::Builder::new()
                .prefix("redis-lock-")
                .tempdir()
                .expect("a temporary directory")
        })
    }

    /// Writes the configuration file and removes the log of an earlier start.
    fn prepare(&self, dir: TempDir, port: u16) -> Home {
        let mut lines = vec![format!("port {port}")];
        for (name, value) in &self.settings {
            let value = if value.is_empty() { "\"\"" } else { value };
            lines.push(format!("{name} {value}"));
        }
        if let Some(args) = &self.module {
            lines.push(format!(
                "loadmodule \"{}\" {}",
                module_path().display(),
                args.join(" ")
            ));
        }
        lines.push(String::new());
        fs::write(dir.path().join("server.conf"), lines.join("\n")).expect("a configuration file");
        let home = Home {
            flavour: self.flavour,
            port,
            overwrites_freed: self.overwrites_freed,
            is_replica: self.settings.iter().any(|(name, _)| name == "replicaof"),
            dir,
        };
        // There is none for a new directory.
        let _ = fs::remove_file(home.log_path());
        home
    }
}

/// Ports to try, one after the other.
fn free_ports() -> impl Iterator<Item = u16> {
    iter::repeat_with(free_port).take(20)
}

/// A port below those that systems give to outgoing connections, so that it is still free when a
/// server is started on it again. No two calls give the same port.
pub(crate) fn free_port() -> u16 {
    const FIRST: u16 = 12_000;
    const COUNT: u16 = 20_000;
    static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| {
        // Anywhere, so that test runs that work side by side seldom meet.
        let random = RandomState::new().hash_one(0);
        AtomicU16::new(u16::try_from(random % u64::from(COUNT)).unwrap())
    });
    (0..COUNT)
        .map(|_| FIRST + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT)
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .expect("a free port")
}
