//! Deadlocks: owners that wait for one another in a circle.
//!
//! An owner that waits for a lock waits for whoever holds it. A request that would close a circle
//! of such waits can only end by a lease lapsing, so it is told at once and does not wait.
//!
//! Owners are the nodes, whatever connections they use: an owner should be one thread of work.

use super::queue::{LockName, WaitTable};
use super::record::{Owner, OwnerBuf};
use std::collections::BTreeSet;

/// One step of a circle: `owner` waits for `lock`, which the owner of the next step holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) owner: OwnerBuf,
    pub(crate) lock: LockName,
}

/// The circle that `asker` would close by waiting for `lock`, from its own wait on; `None` when
/// there is none. `holder_of` says who holds a lock.
///
/// O(w) in the waits of the owners that can be reached, which is usually none: a holder seldom
/// waits.
pub(crate) fn circle<C>(
    table: &WaitTable<C>,
    asker: Owner<'_>,
    lock: LockName,
    mut holder_of: impl FnMut(&LockName) -> Option<OwnerBuf>,
) -> Option<Vec<Step>> {
    // Each entry of the path is a wait whose lock is yet to be followed, with the length of the
    // path that leads to it: a depth-first search without recursion.
    let mut pending = vec![(
        0,
        Step {
            owner: OwnerBuf::from(asker),
            lock,
        },
    )];
    let mut path = Vec::new();
    let mut seen = BTreeSet::new();
    while let Some((depth, wait)) = pending.pop() {
        path.truncate(depth);
        let holder = holder_of(&wait.lock);
        path.push(wait);
        let Some(holder) = holder else {
            continue;
        };
        if holder.as_owner() == asker {
            return Some(path);
        }
        if seen.insert(holder.clone()) {
            pending.extend(table.waits_of(&holder).map(|lock| {
                (
                    path.len(),
                    Step {
                        owner: holder.clone(),
                        lock: lock.clone(),
                    },
                )
            }));
        }
    }
    None
}
