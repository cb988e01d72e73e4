//! What `README*.md`, `docs/*.md` and `examples/*.md` show is what happens.
//!
//! Every fenced block has a language that says what is done with it. There is none that is just
//! shown, and one that is not in this list fails:
//!
//! - `redis`: a session, played on every server; see [`play`]. `redis resp3`: by RESP3 clients.
//!   `redis quorum`: by RESP3 clients of three servers that are the nodes of a quorum.
//! - `diagram`: a command that is sent, with an arrow to each argument; see [`check_diagram`].
//! - `conf`: lines of a configuration that every server starts with.
//! - `sh`: lines that are known to [`Shell`].
//! - `sql`: tables that are created, and writes that must keep out who has a lower token.
//! - `syntax`: what `LOCK.HELP` says.
//! - `tree`: files and folders that exist.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::{Flavour, Raw, Reply, Server, Words, on_every_server};

/// A page of the documentation.
struct Page {
    /// Where it is, seen from the root of the project.
    path: PathBuf,
    text: String,
}

/// A fenced block of a page.
struct Block {
    /// For the message of a failure.
    place: String,
    language: String,
    lines: Vec<String>,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All pages, by name.
fn pages() -> Vec<Page> {
    let is_page = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "md");
    let names = |folder: &str| -> Vec<PathBuf> {
        fs::read_dir(root().join(folder))
            .unwrap()
            .map(|entry| Path::new(folder).join(entry.unwrap().file_name()))
            .filter(is_page)
            .collect()
    };
    let mut paths = names("");
    paths.retain(|path| path.to_str().unwrap().starts_with("README"));
    paths.extend(names("docs"));
    paths.extend(names("examples"));
    paths.sort();
    paths
        .into_iter()
        .map(|path| Page {
            text: fs::read_to_string(root().join(&path)).unwrap(),
            path,
        })
        .collect()
}

/// The page with this path.
fn page(path: &str) -> Page {
    let mut pages = pages();
    pages.retain(|page| page.path == Path::new(path));
    pages.pop().unwrap_or_else(|| panic!("no page {path}"))
}

impl Page {
    /// All fenced blocks. A block that is indented, or a fence of another kind, would escape, so
    /// there must be none.
    fn blocks(&self) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        let mut is_open = false;
        for (number, line) in (1..).zip(self.text.lines()) {
            let place = format!("{}:{number}", self.path.display());
            match line.strip_prefix("```") {
                Some("") if is_open => is_open = false,
                Some(language) if !is_open => {
                    is_open = true;
                    blocks.push(Block {
                        place,
                        language: language.to_owned(),
                        lines: Vec::new(),
                    });
                }
                None if is_open => blocks.last_mut().unwrap().lines.push(line.to_owned()),
                None => assert!(
                    !line.starts_with("    ")
                        && !line.contains('\t')
                        && !line.trim_start().starts_with("```")
                        && !line.trim_start().starts_with("~~~"),
                    "{place}: a block must be fenced, by three backticks at the start of a line"
                ),
                Some(_) => panic!("{place}: a fence inside of a block"),
            }
        }
        assert!(
            !is_open,
            "{}: the last block has no end",
            self.path.display()
        );
        blocks
    }
}

/// The blocks in this language, over all pages.
fn blocks_in(language: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = pages().iter().flat_map(Page::blocks).collect();
    blocks.retain(|block| block.language == language);
    blocks
}

/// The text of a command in words, as `redis-cli` splits it: `"..."` is one word and may contain
/// backslashes before quotes.
fn split(command: &str) -> Words {
    let mut words: Vec<Vec<u8>> = Vec::new();
    let mut chars = command.chars().peekable();
    while let Some(first) = chars.find(|char| *char != ' ') {
        let mut word = String::new();
        if first == '"' {
            while let Some(char) = chars.next().filter(|char| *char != '"') {
                word.push(if char == '\\' {
                    chars.next().unwrap()
                } else {
                    char
                });
            }
        } else {
            word.push(first);
            while let Some(char) = chars.next_if(|char| *char != ' ') {
                word.push(char);
            }
        }
        words.push(word.into_bytes());
    }
    Words(words)
}

/// A reply as `redis-cli --no-raw` shows it, without spaces at the end of a line.
fn show(reply: &Reply, indent: &str) -> String {
    match reply {
        Reply::Simple(text) => text.clone(),
        Reply::Error(text) => format!("(error) {text}"),
        Reply::Int(number) => format!("(integer) {number}"),
        Reply::Bulk(bytes) => format!("\"{}\"", bytes.escape_ascii()),
        Reply::NilBulk | Reply::NilArray | Reply::Null => "(nil)".to_owned(),
        Reply::Array(items) | Reply::Push(items) => {
            let lines = items.iter().map(|item| (item, None)).collect();
            show_lines(lines, ")", "(empty array)", indent)
        }
        Reply::Map(pairs) => {
            let lines = pairs.iter().map(|(name, value)| (name, Some(value)));
            show_lines(lines.collect(), "#", "(empty hash)", indent)
        }
        other => panic!("no way to show {other:?}"),
    }
}

fn show_lines(
    items: Vec<(&Reply, Option<&Reply>)>,
    separator: &str,
    empty: &str,
    indent: &str,
) -> String {
    if items.is_empty() {
        return empty.to_owned();
    }
    let width = items.len().to_string().len();
    let inner = format!("{indent}{}", " ".repeat(width + 2));
    let lines: Vec<String> = (1..)
        .zip(items)
        .map(|(number, (item, value))| {
            let indent = if number == 1 { "" } else { indent };
            let mut line = format!("{indent}{number:width$}{separator} {}", show(item, &inner));
            if let Some(value) = value {
                let value = show(value, &inner);
                line += " =>";
                // What is longer than a line begins below its name.
                if value.contains('\n') {
                    line.push('\n');
                    line += &inner;
                } else {
                    line.push(' ');
                }
                line += &value;
            }
            line
        })
        .collect();
    lines.join("\n")
}

/// What `<name>` stands for in the lines of a session.
#[derive(Default)]
struct Names(HashMap<String, String>);

impl Names {
    /// Splits a line at its first `<name>`.
    fn first_in(line: &str) -> Option<(&str, &str, &str)> {
        let (before, rest) = line.split_once('<')?;
        let (name, after) = rest.split_once('>')?;
        let is_name = |char: char| char.is_ascii_lowercase() || char == '-';
        (!name.is_empty() && name.chars().all(is_name)).then_some((before, name, after))
    }

    /// A line with every name replaced by what it stands for.
    fn fill_in(&self, line: &str) -> String {
        match Self::first_in(line) {
            None => line.to_owned(),
            Some((before, name, after)) => {
                let value = self.0.get(name);
                let value = value.unwrap_or_else(|| panic!("<{name}> stands for nothing yet"));
                format!("{before}{value}{}", self.fill_in(after))
            }
        }
    }

    /// Whether a line is what was expected. A name that is new stands for what is found there from
    /// now on: letters, digits and some signs, up to what follows in the expected line.
    fn accept(&mut self, expected: &str, found: &str) -> bool {
        let Some((before, name, after)) = Self::first_in(expected) else {
            return match expected.strip_suffix("...") {
                Some(start) => found.starts_with(start),
                None => expected == found,
            };
        };
        let Some(rest) = found.strip_prefix(before) else {
            return false;
        };
        let is_value = |char: char| char.is_ascii_alphanumeric() || "-_.:".contains(char);
        let length = match self.0.get(name) {
            Some(value) if rest.starts_with(value.as_str()) => value.len(),
            Some(_) => return false,
            None => rest.find(|char| !is_value(char)).unwrap_or(rest.len()),
        };
        let (value, rest) = rest.split_at(length);
        self.0.insert(name.to_owned(), value.to_owned());
        !value.is_empty() && self.accept(after, rest)
    }
}

/// What a line of a session says.
enum Line<'a> {
    /// `> COMMAND`, or `alice> COMMAND` for one of several clients.
    Command(&'a str, &'a str),
    /// `alice: REPLY`: what a client that waited, or that listens, gets at last.
    Late(&'a str, &'a str),
    /// The whole or a part of a reply.
    Reply(&'a str),
}

impl<'a> Line<'a> {
    fn read(line: &'a str) -> Self {
        let is_client = |name: &str| name.chars().all(|char| char.is_ascii_lowercase());
        match (line.split_once("> "), line.split_once(": ")) {
            (Some((client, command)), _) if is_client(client) => Self::Command(client, command),
            (_, Some((client, reply))) if is_client(client) => Self::Late(client, reply),
            _ => Self::Reply(line),
        }
    }
}

/// So many servers that are the nodes of a quorum. What they grant is on their disks, so they vote at
/// once. A busy machine has time to answer.
fn quorum_of(count: usize, flavour: Flavour) -> Vec<Server> {
    let start = |_| {
        let server = Server::build(flavour).aof();
        server.config("lock.quorum-node-timeout", "3000").start()
    };
    let servers: Vec<Server> = (0..count).map(start).collect();
    let addresses: Vec<String> = servers
        .iter()
        .map(|server| format!("127.0.0.1:{}", server.port()))
        .collect();
    let nodes = addresses.join(",");
    for server in &servers {
        let reply = server.call(("CONFIG", "SET", "lock.quorum-nodes", nodes.as_str()));
        assert_eq!(reply, "OK");
    }
    servers
}

/// The servers of a session and who is connected to them.
struct Scene<'a> {
    is_resp3: bool,
    /// `None` for one that was shut down.
    servers: Vec<Option<Server>>,
    /// The server of each client: of several, the next for each client that is new.
    places: HashMap<&'a str, usize>,
    clients: BTreeMap<&'a str, Raw>,
}

impl<'a> Scene<'a> {
    fn new(language: &str, flavour: Flavour) -> Self {
        let servers = match language {
            "redis quorum" => quorum_of(3, flavour),
            _ => vec![Server::start(flavour)],
        };
        Self {
            is_resp3: language != "redis",
            servers: servers.into_iter().map(Some).collect(),
            places: HashMap::new(),
            clients: BTreeMap::new(),
        }
    }

    /// The place of a client's server.
    fn place(&mut self, name: &'a str) -> usize {
        let next = self.places.len() % self.servers.len();
        *self.places.entry(name).or_insert(next)
    }

    fn client(&mut self, name: &'a str) -> &mut Raw {
        let place = self.place(name);
        let server = self.servers[place].as_ref();
        let is_resp3 = self.is_resp3;
        self.clients.entry(name).or_insert_with(|| {
            let server = server.expect("a server that is up");
            if is_resp3 {
                server.raw_resp3()
            } else {
                server.raw()
            }
        })
    }
}

/// Plays a session on a server of its own, or on three, and compares every reply.
///
/// - `> COMMAND` is sent; the lines up to the next command are the reply, as `redis-cli --no-raw`
///   shows it. With several clients each has a name: `alice> COMMAND`.
/// - `(waits)` in place of a reply: there is none yet. It stands below, as `alice: REPLY`.
/// - `alice: (hung up)`: the server ends the connection. As the reply to a command: and itself.
/// - `<name>` in a reply stands for something that differs each time, and then for the same in all
///   that follows, commands too.
/// - `...` at the end of a line stands for the rest of it, where servers word it differently.
/// - Lines that begin with `# ` are comments.
///
/// All replies are shown: when the session ends, none is left.
fn play(block: &Block, flavour: Flavour) {
    let mut scene = Scene::new(&block.language, flavour);
    let mut waiting: Vec<&str> = Vec::new();
    let mut names = Names::default();
    let is_text = |line: &&String| !line.is_empty() && !line.starts_with("# ");
    let mut lines = block
        .lines
        .iter()
        .filter(is_text)
        .map(|line| Line::read(line))
        .peekable();
    while let Some(line) = lines.next() {
        let (name, command, mut expected) = match line {
            Line::Command(name, command) => (name, Some(command), Vec::new()),
            Line::Late(name, reply) => (name, None, vec![reply]),
            Line::Reply(line) => panic!("{}: {line} answers no command", block.place),
        };
        while let Some(Line::Reply(line)) = lines.next_if(|line| matches!(line, Line::Reply(_))) {
            expected.push(line);
        }
        let command = command.map(|command| names.fill_in(command));
        let place = scene.place(name);
        let client = scene.client(name);
        if let Some(command) = &command {
            client.send(split(command));
        }
        if expected == ["(hung up)"] {
            scene.clients.remove(name).unwrap().wait_until_closed();
            if command.is_some() {
                scene.servers[place].take().unwrap().wait_for_end();
            }
            continue;
        }
        if command.is_some() && expected == ["(waits)"] {
            waiting.push(name);
            let here = waiting
                .iter()
                .filter(|waiter| scene.places[*waiter] == place);
            let here = here.count() as u64;
            scene.servers[place]
                .as_ref()
                .unwrap()
                .wait_for_blocked(here);
            continue;
        }
        let reply = client.read();
        waiting.retain(|waiter| *waiter != name);
        let is_info = command
            .as_deref()
            .is_some_and(|command| command.starts_with("INFO "));
        let found = if is_info {
            reply.as_text().replace('\r', "")
        } else {
            show(&reply, "")
        };
        let found: Vec<&str> = found
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with("# "))
            .collect();
        let is_same = expected.len() == found.len()
            && expected
                .iter()
                .zip(&found)
                .all(|(expected, found)| names.accept(expected, found));
        assert!(
            is_same,
            "{}: {}\nexpected:\n{}\nfound:\n{}",
            block.place,
            command.as_deref().unwrap_or("a late reply"),
            expected.join("\n"),
            found.join("\n")
        );
    }
    // Whatever was on its way is there once the servers have answered this.
    for server in scene.servers.iter().flatten() {
        server.call("PING");
    }
    for (name, client) in &mut scene.clients {
        assert!(
            !client.has_reply(),
            "{}: `{name}` has got a reply that is not shown",
            block.place
        );
    }
}

/// The commands of this module, each with its syntax and its summary, without the one that only
/// builds for tests have.
fn help(server: &Server) -> Vec<(String, String)> {
    let lines = server.call("LOCK.HELP");
    let lines = lines
        .items()
        .iter()
        .map(|line| line.as_text().split_once(": ").unwrap());
    lines
        .filter(|(syntax, _)| !syntax.starts_with("LOCK.DEBUG"))
        .map(|(syntax, summary)| (syntax.to_owned(), summary.to_owned()))
        .collect()
}

/// The name of a command, which is its first word.
fn name_of(command: &str) -> &str {
    command.split(' ').next().unwrap()
}

/// The arguments in a syntax, each option as one: `key`, `BLOCK timeout`, `SHARED | LIMIT n`, and
/// `key ...` for more of the same.
fn arguments(syntax: &str) -> Vec<String> {
    let mut arguments: Vec<String> = Vec::new();
    let mut is_option = false;
    for word in syntax.split(' ').skip(1) {
        let text = word.trim_matches(['[', ']']);
        if is_option {
            let option = arguments.last_mut().unwrap();
            // `[arg [arg ...]]` is `arg ...` too.
            if option != text {
                *option = format!("{option} {text}");
            }
        } else {
            arguments.push(text.to_owned());
        }
        is_option = (is_option || word.starts_with('[')) && !word.ends_with(']');
    }
    arguments
}

/// Checks that each argument of the command in the first line has an arrow and a label, below one
/// another from the last argument to the first: `└── BLOCK timeout  what it is for`.
fn check_diagram(block: &Block, syntax: &str) {
    let command = &block.lines[0];
    let arguments = arguments(syntax);
    let labels = block.lines.iter().skip(2).map(|line| {
        let (_, label) = line
            .split_once("─ ")
            .unwrap_or_else(|| panic!("{}: {line}", block.place));
        label.split("  ").next().unwrap().to_owned()
    });
    assert!(
        labels.eq(arguments.iter().rev().cloned()),
        "{}: the labels are not those of {syntax}",
        block.place
    );
    let arrows = block.lines.get(1).map_or("", String::as_str);
    let columns: Vec<usize> = (0..)
        .zip(arrows.chars())
        .filter(|(_, char)| *char == '▲')
        .map(|(column, _)| column)
        .collect();
    let mut words = command
        .split(' ')
        .scan(0, |start, word| {
            let this = *start;
            *start += word.len() + 1;
            Some((this, word))
        })
        .skip(1);
    let mut starts = Vec::new();
    for (index, argument) in arguments.iter().enumerate() {
        let (start, word) = words.next().unwrap();
        starts.push(start);
        if argument.ends_with(" ...") {
            // One word stands for all of them, or all that is left of the command.
            if index + 1 == arguments.len() {
                words.by_ref().for_each(drop);
            }
            continue;
        }
        let is_option = |choice: &&str| name_of(choice).chars().all(|c| c.is_ascii_uppercase());
        let mut choices = argument.split(" | ").filter(is_option).peekable();
        if choices.peek().is_none() {
            continue;
        }
        let choice = choices.find(|choice| name_of(choice) == word);
        let choice = choice.unwrap_or_else(|| panic!("{}: no {argument}: {word}", block.place));
        if choice.contains(' ') {
            words.next();
        }
    }
    assert_eq!(words.next(), None, "{}", block.place);
    assert_eq!(columns, starts, "{}: the arrows", block.place);
    for (row, line) in block.lines.iter().skip(2).rev().enumerate() {
        let corner = line.chars().position(|char| char == '└');
        assert_eq!(corner, columns.get(row).copied(), "{}: {line}", block.place);
    }
}

/// What the lines of a `sh` block do: on a server, or nothing but to be there.
struct Shell {
    server: Option<Server>,
    flavour: Flavour,
}

impl Shell {
    /// Checks a line, and does it if it is about a server. The library is the one under test
    /// wherever a line says that it is.
    fn run(&mut self, line: &str) -> Result<(), String> {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["make"] => Ok(()),
            ["make", target] => {
                let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
                let rule = format!("{target}: ");
                let is_rule = |line: &str| line.starts_with(&rule) || line == rule.trim_end();
                exists(makefile.lines().any(is_rule), target)
            }
            ["redis-server", "--loadmodule", library, arguments @ ..] => {
                exists(library.ends_with("/libredis_lock.so"), library)?;
                let server = Server::build(self.flavour).module_args(arguments).start();
                self.server = Some(server);
                Ok(())
            }
            ["redis-cli", "MODULE", "LOAD", library, arguments @ ..] => {
                exists(library.ends_with("/libredis_lock.so"), library)?;
                let server = self
                    .server
                    .get_or_insert_with(|| Server::start(self.flavour));
                let path = library_of(server);
                server.call("MODULE UNLOAD lock");
                let mut command = vec!["MODULE", "LOAD", &path];
                command.extend(arguments);
                let reply = server.call(command);
                exists(reply == "OK", &show(&reply, ""))
            }
            _ => Err(format!("no line that a test knows: {line}")),
        }
    }
}

fn exists(is_there: bool, what: &str) -> Result<(), String> {
    is_there
        .then_some(())
        .ok_or_else(|| format!("not there: {what}"))
}

/// The path of the module that a server has loaded.
fn library_of(server: &Server) -> String {
    let modules = server.call("MODULE LIST");
    let modules = modules.items().iter();
    let module = modules
        .clone()
        .find(|module| *module.field("name") == "lock")
        .unwrap();
    module.field("path").as_text().to_owned()
}

/// Lines of a configuration, without comments.
fn settings<'a>(lines: impl IntoIterator<Item = &'a str>) -> Vec<(&'a str, &'a str)> {
    lines
        .into_iter()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            line.split_once(' ')
                .unwrap_or_else(|| panic!("no value: {line}"))
        })
        .collect()
}

/// Starts a server with these lines and asks it for the settings. The path of the library, the
/// port and the folder are those of the test.
fn start_with(lines: &[(&str, &str)], flavour: Flavour) {
    let mut builder = Server::build(flavour);
    for (name, value) in lines {
        match *name {
            "loadmodule" => {
                let mut words = value.split(' ');
                assert!(words.next().unwrap().ends_with("/libredis_lock.so"));
                builder = builder.module_args(&words.collect::<Vec<_>>());
            }
            "port" | "bind" => {}
            name => builder = builder.config(name, value.trim_matches('"')),
        }
    }
    let server = builder.start();
    for (name, value) in lines {
        if !["loadmodule", "port", "bind", "notify-keyspace-events"].contains(name) {
            let reply = server.call(("CONFIG", "GET", *name));
            assert_eq!(*reply.field(name), value.trim_matches('"'), "{name}");
        }
    }
}

on_every_server! {
    fn sessions_go_as_they_are_shown(flavour) {
        let mut blocks = blocks_in("redis");
        blocks.extend(blocks_in("redis resp3"));
        blocks.extend(blocks_in("redis quorum"));
        assert!(!blocks.is_empty());
        for block in blocks {
            play(&block, flavour);
        }
    }

    /// The README explains each argument of each command, in the order of `LOCK.HELP`, and a page
    /// after it those of the commands that servers send to one another. Each is sent to a server where
    /// nothing is locked, so there is no token that a guard could find. The server is a quorum of one.
    fn every_command_has_a_diagram(flavour) {
        let server = quorum_of(1, flavour).pop().unwrap();
        let diagrams = blocks_in("diagram");
        let (internal, mut help): (Vec<_>, Vec<_>) = help(&server)
            .into_iter()
            .partition(|(_, summary)| summary.ends_with(", for coordinators"));
        assert_eq!(internal.len(), 6);
        help.extend(internal);
        assert_eq!(diagrams.len(), help.len());
        for (block, (syntax, _)) in diagrams.iter().zip(help) {
            let command = &block.lines[0];
            assert_eq!(name_of(command), name_of(&syntax), "{}", block.place);
            if command.contains(' ') || syntax.contains(' ') {
                check_diagram(block, &syntax);
            }
            server.call("FLUSHALL");
            let reply = server.call(command);
            let expected = (name_of(command) == "LOCK.GUARD").then_some("NOTHELD");
            assert_eq!(reply.error_code(), expected, "{}: {reply:?}", block.place);
        }
    }

    /// The reference says of each command what the server says of it.
    fn the_reference_is_complete(flavour) {
        let server = Server::start(flavour);
        let help = help(&server);
        let shown = blocks_in("syntax").into_iter().flat_map(|block| block.lines);
        assert!(shown.eq(help.iter().map(|(syntax, _)| syntax.clone())), "{help:?}");

        let text = page("docs/commands.md").text;
        for (syntax, summary) in help {
            let name = name_of(&syntax);
            let (_, section) = text
                .split_once(&format!("\n## {name}\n"))
                .unwrap_or_else(|| panic!("no section {name}"));
            let section = section.split("\n## ").next().unwrap();
            assert!(section.contains(&format!("{summary}.")), "{name}: {summary}");

            let docs = server.call(("COMMAND", "DOCS", name));
            let complexity = docs.items()[1].field("complexity").as_text().to_owned();
            let row = format!("| complexity | {complexity} |");
            assert!(section.contains(&row), "{name}: {row}");

            let info = server.call(("COMMAND", "INFO", name));
            let categories: Vec<String> = info.items()[0].items()[6]
                .items()
                .iter()
                .map(|category| format!("`{}`", category.as_text()))
                .collect();
            // Redis 7.0 has none for commands of modules.
            assert_eq!(categories.is_empty(), !flavour.at_least_7_2());
            let row = format!("| ACL categories | {} |", categories.join(" "));
            assert!(categories.is_empty() || section.contains(&row), "{name}: {row}");
        }
    }

    /// The operating guide says what each setting and each figure is.
    fn the_operating_guide_is_complete(flavour) {
        let server = Server::start(flavour);
        let text = page("docs/operations.md").text;

        let settings = server.call("CONFIG GET lock.*");
        assert!(!settings.items().is_empty());
        for setting in settings.items().chunks(2) {
            let default = match setting[1].as_text() {
                "" => "empty",
                value => value,
            };
            let row = format!("| `{}` | {default} |", setting[0].as_text());
            assert!(text.contains(&row), "{row}");
        }

        let figures = server.info("lock");
        assert!(!figures.is_empty());
        for figure in figures.keys() {
            let name = figure.strip_prefix("lock_").unwrap();
            // The percentiles share a row and the start of their names.
            let end = name.strip_prefix("wait_ms").filter(|end| *end != "_p50");
            let name = format!("`{}`", end.unwrap_or(name));
            assert!(text.contains(&name), "{figure}");
        }
    }

    fn configurations_start_a_server(flavour) {
        for block in blocks_in("conf") {
            start_with(&settings(block.lines.iter().map(String::as_str)), flavour);
        }
    }

    /// With the lines that are commented out: one that costs time, and those of a quorum.
    fn the_example_configuration_starts_a_server(flavour) {
        let text = fs::read_to_string(root().join("redis.conf.example")).unwrap();
        let text = text.replace("# notify-", "notify-").replace("# lock.", "lock.");
        start_with(&settings(text.lines()), flavour);
    }

    fn shell_lines_work(flavour) {
        for block in blocks_in("sh") {
            let mut shell = Shell { server: None, flavour };
            for line in &block.lines {
                let outcome = shell.run(line);
                outcome.unwrap_or_else(|problem| panic!("{}: {problem}", block.place));
            }
        }
    }
}

#[test]
fn every_block_is_checked() {
    const KNOWN: [&str; 9] = [
        "conf",
        "diagram",
        "redis",
        "redis quorum",
        "redis resp3",
        "sh",
        "sql",
        "syntax",
        "tree",
    ];
    for block in pages().iter().flat_map(Page::blocks) {
        assert!(
            KNOWN.contains(&block.language.as_str()),
            "{}: nothing is done with `{}`",
            block.place,
            block.language
        );
    }
}

/// What the README says that `make run` plays is what it plays.
#[test]
fn the_tour_is_the_one_that_is_shown() {
    let tour = fs::read_to_string(root().join("scripts/tour")).unwrap();
    let played: Vec<&str> = tour
        .lines()
        .filter(|line| line.trim_start().starts_with(['"', '\'']))
        .filter_map(|line| line.find(" LOCK.").map(|start| &line[start + 1..]))
        .collect();
    assert!(!played.is_empty());
    let shown = |block: &Block| {
        let commands = block
            .lines
            .iter()
            .filter_map(|line| line.strip_prefix("> "));
        commands.eq(played.iter().copied())
    };
    assert!(page("README.md").blocks().iter().any(shown), "{played:?}");
}

#[test]
fn trees_show_what_is_there() {
    for block in blocks_in("tree") {
        for line in &block.lines {
            let path = line.split(' ').next().unwrap();
            assert!(root().join(path).exists(), "{}: {path}", block.place);
        }
    }
}

/// Links to pages and headings of this project.
#[test]
fn links_lead_somewhere() {
    let anchors = |text: &str| -> Vec<String> {
        text.lines()
            .filter(|line| line.starts_with('#'))
            .map(|line| {
                let heading = line.trim_start_matches(['#', ' ']).to_lowercase();
                let is_kept = |char: &char| char.is_alphanumeric() || " -_".contains(*char);
                heading
                    .chars()
                    .filter(is_kept)
                    .collect::<String>()
                    .replace(' ', "-")
            })
            .collect()
    };
    for page in pages() {
        let links = page
            .text
            .split("](")
            .skip(1)
            .map(|rest| rest.split(')').next().unwrap());
        for link in links.filter(|link| !link.starts_with("https://")) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() {
                root().join(&page.path)
            } else {
                root().join(&page.path).parent().unwrap().join(path)
            };
            assert!(target.exists(), "{}: {link}", page.path.display());
            if !anchor.is_empty() {
                let text = fs::read_to_string(target).unwrap();
                assert!(
                    anchors(&text).contains(&anchor.to_owned()),
                    "{}: {link}",
                    page.path.display()
                );
            }
        }
    }
}

/// Every statement is run by the database that comes with `python3`. One that writes under a
/// `:token` is run three times: by a holder, by the one before it, whose write is late, and by the
/// holder once more.
#[test]
fn a_database_that_checks_tokens_keeps_late_writers_out() {
    const PROGRAM: &str = r#"
import sqlite3, sys
sql, database = sys.stdin.read(), sqlite3.connect(":memory:")
def run(statement, token):
    return database.execute(statement, {"id": 17, "state": "paid", "token": token}).rowcount
statement, writes = "", 0
for line in sql.splitlines():
    statement += line + "\n"
    if not sqlite3.complete_statement(statement):
        continue
    if ":token" in statement:
        rows, writes = [run(statement, token) for token in (34, 33, 34)], writes + 1
        assert rows == [1, 0, 1], f"{statement}{rows}"
        database.execute("UPDATE orders SET fence = 0")
    else:
        database.execute(statement)
    statement = ""
assert writes and not statement.strip(), "no write, or half a statement"
"#;
    for page in pages() {
        let blocks = page
            .blocks()
            .into_iter()
            .filter(|block| block.language == "sql");
        let sql: Vec<String> = blocks.flat_map(|block| block.lines).collect();
        if sql.is_empty() {
            continue;
        }
        let mut python = Command::new("python3")
            .args(["-c", PROGRAM])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("python3, which also fetches the servers");
        let mut input = python.stdin.take().unwrap();
        input.write_all(sql.join("\n").as_bytes()).unwrap();
        drop(input);
        let output = python.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{}: {}",
            page.path.display(),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
