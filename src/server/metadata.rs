//! What a command says of itself: `COMMAND DOCS`, `COMMAND INFO`, key specs, ACL categories.

use super::api::{OK, api};
use super::context::Context;
use redis_module::raw;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt;
use std::ptr;

/// The description of one command.
pub(crate) struct Spec {
    pub(crate) name: &'static CStr,
    /// One line without a full stop.
    pub(crate) summary: &'static CStr,
    pub(crate) complexity: &'static CStr,
    /// The version of this module that had it first.
    pub(crate) since: &'static CStr,
    /// Number of arguments with the name; negative when there may be more.
    pub(crate) arity: c_int,
    /// Flags as the server names them, separated by spaces.
    pub(crate) flags: &'static CStr,
    /// The server's own ACL categories, separated by spaces; [`CATEGORY`] is added.
    pub(crate) categories: &'static str,
    /// Hints for clients and proxies, separated by spaces.
    pub(crate) tips: Option<&'static CStr>,
    pub(crate) keys: Keys,
    pub(crate) args: &'static [ArgSpec],
}

/// The ACL category of all commands of this module.
pub(crate) const CATEGORY: &CStr = c"lock";

/// Which arguments of a command are keys, and what happens to them. Where it takes the arguments to
/// tell, the command has the flag `getkeys-api`, see [`super::key_positions`].
#[derive(Clone, Copy)]
pub(crate) enum Keys {
    /// None.
    None,
    /// The first argument.
    First(KeyUse),
    /// As many as the first argument says, after it. The server asks for those too, because what it
    /// tells of a guarded command's keys is not by the description of the command.
    Numbered(KeyUse),
    /// The first argument, which is looked at, and the keys of the command that stands behind it.
    FirstAndGuarded,
}

/// What a command does to its key.
#[derive(Clone, Copy)]
pub(crate) enum KeyUse {
    /// Looks at it.
    Read,
    /// Creates it, or changes what it holds.
    Insert,
    /// Changes it, where it exists.
    Update,
    /// Changes or deletes it.
    Delete,
}

impl KeyUse {
    /// As the server's functions take it.
    pub(super) fn flags(self) -> u32 {
        match self {
            Self::Read => raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS,
            Self::Insert => {
                raw::REDISMODULE_CMD_KEY_RW
                    | raw::REDISMODULE_CMD_KEY_ACCESS
                    | raw::REDISMODULE_CMD_KEY_INSERT
            }
            Self::Update => {
                raw::REDISMODULE_CMD_KEY_RW
                    | raw::REDISMODULE_CMD_KEY_ACCESS
                    | raw::REDISMODULE_CMD_KEY_UPDATE
            }
            Self::Delete => {
                raw::REDISMODULE_CMD_KEY_RW
                    | raw::REDISMODULE_CMD_KEY_ACCESS
                    | raw::REDISMODULE_CMD_KEY_DELETE
            }
        }
    }
}

/// The description of one argument.
pub(crate) struct ArgSpec {
    pub(crate) name: &'static CStr,
    pub(crate) kind: ArgKind,
    /// The word that introduces it.
    pub(crate) token: Option<&'static CStr>,
    pub(crate) optional: bool,
    /// Whether there may be several.
    pub(crate) multiple: bool,
    /// What a [`ArgKind::OneOf`] is one of.
    pub(crate) choices: &'static [ArgSpec],
}

/// What an argument is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArgKind {
    Key,
    Text,
    Integer,
    /// A word that stands for itself.
    Word,
    /// One of several others.
    OneOf,
}

impl ArgSpec {
    /// A mandatory argument.
    pub(crate) const fn new(name: &'static CStr, kind: ArgKind) -> Self {
        Self {
            name,
            kind,
            token: None,
            optional: false,
            multiple: false,
            choices: &[],
        }
    }

    /// One argument or more.
    pub(crate) const fn several(name: &'static CStr, kind: ArgKind) -> Self {
        Self {
            multiple: true,
            ..Self::new(name, kind)
        }
    }

    /// Any number of arguments.
    pub(crate) const fn rest(name: &'static CStr, kind: ArgKind) -> Self {
        Self {
            optional: true,
            ..Self::several(name, kind)
        }
    }

    /// The same argument, as one of several choices.
    pub(crate) const fn choice(self) -> Self {
        Self {
            optional: false,
            ..self
        }
    }

    /// An option that is a word alone.
    pub(crate) const fn word(token: &'static CStr, name: &'static CStr) -> Self {
        Self::option(token, name, ArgKind::Word)
    }

    /// An option: a word and its value.
    pub(crate) const fn option(token: &'static CStr, name: &'static CStr, kind: ArgKind) -> Self {
        Self {
            token: Some(token),
            optional: true,
            ..Self::new(name, kind)
        }
    }

    /// One of several options, or none. What it is one of is not optional in itself.
    pub(crate) const fn one_of(name: &'static CStr, choices: &'static [ArgSpec]) -> Self {
        Self {
            optional: true,
            choices,
            ..Self::new(name, ArgKind::OneOf)
        }
    }
}

/// The command as one writes it: `LOCK.RELEASE key owner [TOKEN token]`.
impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name.to_string_lossy())?;
        self.args.iter().try_for_each(|arg| write!(f, " {arg}"))
    }
}

impl fmt::Display for ArgSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, close) = if self.optional { ("[", "]") } else { ("", "") };
        write!(f, "{open}{}", self.bare())?;
        if self.multiple {
            write!(f, " [{} ...]", self.bare())?;
        }
        f.write_str(close)
    }
}

impl ArgSpec {
    /// Its words, without what says how often it may be there.
    fn bare(&self) -> String {
        if self.kind == ArgKind::OneOf {
            let choices: Vec<String> = self.choices.iter().map(Self::bare).collect();
            return choices.join(" | ");
        }
        let words = [
            self.token,
            (self.kind != ArgKind::Word).then_some(self.name),
        ];
        let words: Vec<_> = words
            .into_iter()
            .flatten()
            .map(CStr::to_string_lossy)
            .collect();
        words.join(" ")
    }
}

/// Adds the ACL category of this module where the server has categories of modules. A server that
/// had the module loaded before has the category still, since it cannot remove one.
pub(super) fn add_category(ctx: Context<'_>) {
    // SAFETY: reading a pointer that the server set while loading the module, and calling it with
    // the context of that module and a name that ends with a NUL.
    unsafe {
        if let Some(add) = raw::RedisModule_AddACLCategory {
            add(ctx.as_raw(), CATEGORY.as_ptr());
        }
    }
}

/// Registers a command with all that is to be known of it.
pub(super) fn register(
    ctx: Context<'_>,
    spec: &Spec,
    handler: raw::RedisModuleCmdFunc,
) -> Result<(), String> {
    let failed = |step: &str| format!("{step} of {:?} was refused by the server", spec.name);
    let (first_key, last_key, key_step) = match spec.keys {
        Keys::First(_) | Keys::FirstAndGuarded => (1, 1, 1),
        Keys::None | Keys::Numbered(_) => (0, 0, 0),
    };
    // SAFETY: the context is that of the module being loaded; name and flags end with a NUL; the
    // handler has the signature of a command.
    let created = unsafe {
        api!(RedisModule_CreateCommand(
            ctx.as_raw(),
            spec.name.as_ptr(),
            handler,
            spec.flags.as_ptr(),
            first_key,
            last_key,
            key_step
        ))
    };
    if created != OK {
        return Err(failed("the registration"));
    }
    // SAFETY: the command was created just now, in this context.
    let command = unsafe { api!(RedisModule_GetCommand(ctx.as_raw(), spec.name.as_ptr())) };
    if command.is_null() {
        return Err(failed("the registration"));
    }
    describe(command, spec).ok_or_else(|| failed("the description"))?;
    categorise(command, spec).ok_or_else(|| failed("the ACL category"))
}

/// Hands over what `COMMAND DOCS` shows. The server copies all of it.
fn describe(command: *mut raw::RedisModuleCommand, spec: &Spec) -> Option<()> {
    let version = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };
    let mut keys: Vec<raw::RedisModuleCommandKeySpec> = key_spec(spec.keys).into_iter().collect();
    // SAFETY: these are structs of integers and pointers. Zeroes are valid in all of them, and an
    // element of zeroes is how the server knows the end of a list.
    keys.push(unsafe { std::mem::zeroed() });
    let mut choices: Vec<_> = spec.args.iter().map(|arg| arg_specs(arg.choices)).collect();
    let mut args = arg_specs(spec.args);
    for (arg, choices) in args.iter_mut().zip(&mut choices) {
        if choices.len() > 1 {
            arg.subargs = choices.as_mut_ptr();
        }
    }
    let info = raw::RedisModuleCommandInfo {
        version: &raw const version,
        summary: spec.summary.as_ptr(),
        complexity: spec.complexity.as_ptr(),
        since: spec.since.as_ptr(),
        history: ptr::null_mut(),
        tips: pointer(spec.tips),
        arity: spec.arity,
        key_specs: keys.as_mut_ptr(),
        args: args.as_mut_ptr(),
    };
    // SAFETY: the command is registered; all that `info` points to lives until after the call, and
    // its lists end with an element of zeroes.
    (unsafe { api!(RedisModule_SetCommandInfo(command, &raw const info)) } == OK).then_some(())
}

/// Sets the ACL categories where the server lets modules do so.
fn categorise(command: *mut raw::RedisModuleCommand, spec: &Spec) -> Option<()> {
    // SAFETY: reading a pointer that the server set while loading the module.
    let Some(set) = (unsafe { raw::RedisModule_SetCommandACLCategories }) else {
        return Some(());
    };
    let own = [spec.categories.as_bytes(), b" ", CATEGORY.to_bytes()].concat();
    // A server without categories of modules refuses the first list.
    [own, spec.categories.as_bytes().to_vec()]
        .into_iter()
        .filter_map(|names| CString::new(names).ok())
        // SAFETY: the command is registered and the names end with a NUL.
        .any(|names| unsafe { set(command, names.as_ptr()) } == OK)
        .then_some(())
}

/// Where a command's keys stand.
fn key_spec(keys: Keys) -> Option<raw::RedisModuleCommandKeySpec> {
    let usage = match keys {
        Keys::None => return None,
        Keys::First(usage) | Keys::Numbered(usage) => usage,
        Keys::FirstAndGuarded => KeyUse::Read,
    };
    // SAFETY: a struct of integers, pointers and unions of such: zeroes are valid.
    let mut spec: raw::RedisModuleCommandKeySpec = unsafe { std::mem::zeroed() };
    spec.flags = usage.flags().into();
    spec.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    spec.bs.index.pos = 1;
    if matches!(keys, Keys::Numbered(_)) {
        spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_KEYNUM;
        spec.fk.keynum = raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_2 {
            keynumidx: 0,
            firstkey: 1,
            keystep: 1,
        };
        return Some(spec);
    }
    if matches!(keys, Keys::FirstAndGuarded) {
        spec.flags |= u64::from(raw::REDISMODULE_CMD_KEY_INCOMPLETE);
    }
    spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
    spec.fk.range = raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_1 {
        lastkey: 0,
        keystep: 1,
        limit: 0,
    };
    Some(spec)
}

/// Arguments, and the element of zeroes after them.
fn arg_specs(args: &[ArgSpec]) -> Vec<raw::RedisModuleCommandArg> {
    args.iter()
        .map(arg_spec)
        // SAFETY: a struct of integers and pointers: zeroes are valid.
        .chain([unsafe { std::mem::zeroed() }])
        .collect()
}

fn arg_spec(arg: &ArgSpec) -> raw::RedisModuleCommandArg {
    let kind = match arg.kind {
        ArgKind::Key => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY,
        ArgKind::Text => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
        ArgKind::Word => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN,
        ArgKind::Integer => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
        ArgKind::OneOf => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF,
    };
    let mut flags = raw::REDISMODULE_CMD_ARG_NONE;
    if arg.optional {
        flags |= raw::REDISMODULE_CMD_ARG_OPTIONAL;
    }
    if arg.multiple {
        flags |= raw::REDISMODULE_CMD_ARG_MULTIPLE;
    }
    raw::RedisModuleCommandArg {
        name: arg.name.as_ptr(),
        type_: kind,
        key_spec_index: if arg.kind == ArgKind::Key { 0 } else { -1 },
        token: pointer(arg.token),
        summary: ptr::null(),
        since: ptr::null(),
        flags: flags.cast_signed(),
        deprecated_since: ptr::null(),
        subargs: ptr::null_mut(),
        display_text: ptr::null(),
    }
}

fn pointer(text: Option<&'static CStr>) -> *const c_char {
    text.map_or(ptr::null(), CStr::as_ptr)
}
