//! The module under test.

use std::env;
use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The library to load: what `REDIS_LOCK_MODULE` names, or the one that cargo built in the same
/// profile as the tests.
pub(crate) fn module_path() -> PathBuf {
    if let Some(path) = env::var_os("REDIS_LOCK_MODULE") {
        return fs::canonicalize(path).expect("the library that REDIS_LOCK_MODULE names");
    }
    // The tests are `<profile>/deps/servers-<hash>`.
    let tests = env::current_exe().expect("the path of the tests");
    let profile = tests.ancestors().nth(2).expect("the folder of the profile");
    let library = profile.join(format!("{DLL_PREFIX}redis_lock{DLL_SUFFIX}"));
    if let Err(problem) = check(&library) {
        panic!("{problem}: run `cargo build` with the profile of the tests, as `make test` does");
    }
    library
}

/// Looks whether the library is there and not older than its sources, because `cargo test` builds
/// the tests but not a library that only servers load.
fn check(library: &Path) -> Result<(), String> {
    let built = modified(library).ok_or_else(|| format!("no module at {}", library.display()))?;
    // Cargo lists the sources beside the library: `<library>: <source> <source> ...`.
    let list = fs::read_to_string(library.with_extension("d")).unwrap_or_default();
    let newer = list
        .split_whitespace()
        .skip(1)
        .find(|source| modified(Path::new(source)).is_some_and(|changed| changed > built));
    match newer {
        Some(source) => Err(format!("the module is older than {source}")),
        None => Ok(()),
    }
}

/// When a file was written.
fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|file| file.modified()).ok()
}
