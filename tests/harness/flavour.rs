//! The servers that the module supports, and a test on each of them.

use std::env;
use std::path::{Path, PathBuf};

/// A server that tests run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// The last Redis before 7.2: the smallest module API that is supported.
    Redis70,
    /// A current Redis.
    Redis82,
    /// The older Valkey, which opens modules with a symbol scope of their own.
    Valkey81,
    /// A current Valkey.
    Valkey91,
    /// Too old for the module, and not in [`Flavour::ALL`]: one test shows that it refuses.
    Redis62,
}

impl Flavour {
    /// Every supported server.
    pub(crate) const ALL: [Self; 4] =
        [Self::Redis70, Self::Redis82, Self::Valkey81, Self::Valkey91];

    /// The name of its folder among the fetched servers.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Redis70 => "redis-7.0.15",
            Self::Redis82 => "redis-8.2.3",
            Self::Valkey81 => "valkey-8.1.8",
            Self::Valkey91 => "valkey-9.1.2",
            Self::Redis62 => "redis-6.2.14",
        }
    }

    /// Whether it is Redis and not Valkey.
    pub(crate) fn is_redis(self) -> bool {
        match self {
            Self::Redis62 | Self::Redis70 | Self::Redis82 => true,
            Self::Valkey81 | Self::Valkey91 => false,
        }
    }

    /// Whether its module API is that of Redis 7.2 or newer, as that of every Valkey is.
    pub(crate) fn at_least_7_2(self) -> bool {
        !matches!(self, Self::Redis62 | Self::Redis70)
    }

    /// Its executable. A server that was not fetched fails the test; it never skips it.
    pub(crate) fn binary(self) -> PathBuf {
        let servers = env::var_os("REDIS_LOCK_SERVERS").map_or_else(
            || Path::new(env!("CARGO_MANIFEST_DIR")).join(".servers"),
            PathBuf::from,
        );
        find_server(&servers, self.name()).unwrap_or_else(|missing| panic!("{missing}"))
    }
}

/// The executable of the server `name` in the folder `servers`, or a line that says how to get it.
pub(crate) fn find_server(servers: &Path, name: &str) -> Result<PathBuf, String> {
    let binary = servers.join(name).join("server");
    if binary.is_file() {
        Ok(binary)
    } else {
        Err(format!(
            "no server at {}: `make servers` fetches it",
            binary.display()
        ))
    }
}

/// Makes one test per supported server out of each function:
///
/// ```text
/// on_every_server! {
///     /// What must hold, in a sentence.
///     fn a_free_lock_is_granted(flavour) {
///         let server = Server::start(flavour);
///         ...
///     }
/// }
/// ```
///
/// These are the tests `a_free_lock_is_granted::redis_7_0`, `::redis_8_2`, `::valkey_8_1` and
/// `::valkey_9_1`. The parameter is a [`Flavour`].
macro_rules! on_every_server {
    ($($(#[$attribute:meta])* fn $name:ident($flavour:ident) $body:block)+) => {$(
        $(#[$attribute])*
        fn $name($flavour: $crate::harness::Flavour) $body

        mod $name {
            use $crate::harness::Flavour;

            #[test]
            fn redis_7_0() {
                super::$name(Flavour::Redis70);
            }

            #[test]
            fn redis_8_2() {
                super::$name(Flavour::Redis82);
            }

            #[test]
            fn valkey_8_1() {
                super::$name(Flavour::Valkey81);
            }

            #[test]
            fn valkey_9_1() {
                super::$name(Flavour::Valkey91);
            }
        }
    )+};
}
pub(crate) use on_every_server;
