//! `LOCK.DEBUG PANIC`
//!
//! Exists in debug builds only: tests prove with it that a bug in a command does not take the
//! server down.

use super::SINCE;
use super::args::{end, required};
use crate::server::{
    ArgKind, ArgSpec, Args, Command, Context, Error, Keys, Module, Printable, Reply, Spec,
};

/// Fails on purpose.
pub(crate) struct Debug;

impl Command for Debug {
    const SPEC: &'static Spec = &Spec {
        name: c"LOCK.DEBUG",
        summary: c"Panics on purpose, in debug builds",
        complexity: c"O(1)",
        since: SINCE,
        arity: 2,
        flags: c"admin",
        categories: "admin dangerous",
        tips: None,
        keys: Keys::None,
        args: &[ArgSpec::new(c"subcommand", ArgKind::Text)],
    };

    fn run(_ctx: Context<'_>, mut args: Args<'_>, _module: &mut Module) -> Result<Reply, Error> {
        let subcommand = required(&mut args)?.bytes();
        end(&mut args)?;
        assert!(
            !subcommand.eq_ignore_ascii_case(b"PANIC"),
            "on purpose, with a %s and a %n"
        );
        Err(Error::UnknownOption(Printable::new(subcommand)))
    }
}
