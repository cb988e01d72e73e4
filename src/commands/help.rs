//! `LOCK.HELP`

use super::SINCE;
use super::args::end;
use crate::COMMANDS;
use crate::server::{Args, Command, Context, Error, Keys, Module, Reply, Spec};

/// Lists the commands.
pub(crate) struct Help;

impl Command for Help {
    const SPEC: &'static Spec = &Spec {
        name: c"LOCK.HELP",
        summary: c"Shows one line for each lock command",
        complexity: c"O(N) where N is the number of lock commands",
        since: SINCE,
        arity: 1,
        flags: c"readonly fast allow-loading allow-stale",
        categories: "read fast",
        tips: None,
        keys: Keys::None,
        args: &[],
    };

    fn run(_ctx: Context<'_>, mut args: Args<'_>, _module: &mut Module) -> Result<Reply, Error> {
        end(&mut args)?;
        let line = |spec: &Spec| {
            Reply::Bulk(format!("{spec}: {}", spec.summary.to_string_lossy()).into_bytes())
        };
        Ok(Reply::Array(
            COMMANDS.iter().map(|entry| line(entry.spec)).collect(),
        ))
    }
}
