//! The append only file, read as the commands that it has.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;

use super::reply::Reply;
use super::words::Words;

/// All commands in the append only files of the server in `dir`, the oldest first.
///
/// Since Redis 7.0 there are several files, and a manifest that names them in order. All of them
/// must be commands: [`super::ServerBuilder::aof`] sees to it that none starts with an RDB.
pub(super) fn commands(dir: &Path) -> Vec<Words> {
    let folder = dir.join("appendonlydir");
    let manifest =
        fs::read_to_string(folder.join("appendonly.aof.manifest")).expect("an AOF manifest");
    let mut commands = Vec::new();
    for line in manifest.lines() {
        // `file <name> seq <number> type <b, i or h>`, where `h` is history that nobody loads.
        let fields: Vec<&str> = line.split(' ').collect();
        let ["file", name, "seq", _, "type", kind, ..] = fields[..] else {
            panic!("not a line of an AOF manifest: {line}");
        };
        if kind != "h" {
            let mut file = BufReader::new(File::open(folder.join(name)).expect("an AOF file"));
            while !file.fill_buf().expect("a readable AOF file").is_empty() {
                let command =
                    Reply::read(&mut file).unwrap_or_else(|error| panic!("{name}: {error}"));
                commands.push(command.to_words());
            }
        }
    }
    commands
}
