//! Deadlocks: owners that wait for one another in a circle.
//!
//! An owner that waits for a lock waits for those who hold it, and for those who stand before it in
//! the queue. A request that would close a circle of such waits can only end by a lease lapsing, so
//! it is told at once and does not wait.
//!
//! Owners are the nodes, whatever connections they use: an owner should be one thread of work. An
//! owner is stuck unless it waits for nothing, or only for what owners who are not stuck can give. A
//! request is a deadlock when it makes a circle of stuck owners, of whom each has enough of them to
//! wait for to be kept from its lock for ever:
//!
//! * of those who hold it, any one, if the lock or the request is exclusive; of permits with a limit
//!   of n, as many as n, since with fewer there will be room ([`WaitTable::stuck_behind`]);
//! * of those who stand before it, any one that wants several locks. The others wait for the same
//!   holders, so nothing is found by following them. Only the nearest is followed, who waits for the
//!   next one and for those holders in turn: a queue costs as many steps as it has places. What the
//!   asker waits for already does not wait for what it asks for now.
//!
//! What is reported is a deadlock, given what the queues and keys say. Not every deadlock is
//! reported: one that comes about by a grant, and not by a request, is not looked for.

use super::queue::{LockName, Ticket, WaitTable};
use super::record::{Owner, OwnerBuf};
use super::rules::Mode;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::iter;

/// One step of a circle: `owner` waits for `lock`, which the owner of the next step holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) owner: OwnerBuf,
    pub(crate) lock: LockName,
    /// Whether the owner of the next step does not hold the lock but stands before this one.
    pub(crate) is_behind: bool,
}

/// Who holds a lock.
pub(crate) enum Holders {
    Nobody,
    /// One owner, alone.
    One(OwnerBuf),
    /// About so many owners, side by side.
    Sharing(usize),
}

/// What the keys of locks say.
pub(crate) trait Keys {
    /// Who holds a lock.
    fn holders(&mut self, lock: &LockName) -> Holders;

    /// Those of `owners` that have a share of a lock.
    fn sharing_among(
        &mut self,
        lock: &LockName,
        owners: &mut dyn Iterator<Item = &OwnerBuf>,
    ) -> Vec<OwnerBuf>;

    /// All that have a share of a lock.
    fn sharing(&mut self, lock: &LockName) -> Vec<OwnerBuf>;
}

/// One wait of one owner that is yet to be looked at.
struct Wait {
    owner: OwnerBuf,
    /// The number of the owner.
    node: usize,
    lock: LockName,
    /// Its place in the queue; `None`: it is about to get one at the end.
    place: Option<Ticket>,
    mode: Mode,
}

/// That one owner waits for others.
struct Edge {
    /// The number of the one who waits.
    from: usize,
    step: Step,
    /// The numbers of the others.
    to: Vec<usize>,
    /// How many of the others have to be stuck for it to be stuck.
    needed: usize,
    /// How many of them are, as far as is known.
    stuck: usize,
}

impl Edge {
    /// Whether it keeps the one who waits from going on.
    fn holds(&self) -> bool {
        self.stuck >= self.needed
    }
}

/// An owner that can be reached from the asker.
#[derive(Default)]
struct Node {
    /// The edges from it.
    waits: Vec<usize>,
    /// The edges to it.
    waited_for: Vec<usize>,
    /// How many of the edges from it hold.
    holding: usize,
}

/// Owners that can be reached from the asker, by numbers.
#[derive(Default)]
struct Graph {
    numbers: HashMap<OwnerBuf, usize>,
    nodes: Vec<Node>,
    edges: Vec<Edge>,
}

/// The number of the asker.
const ASKER: usize = 0;

impl Graph {
    /// The number of an owner, and whether it is a new one.
    fn number(&mut self, owner: &OwnerBuf) -> (usize, bool) {
        let next = self.numbers.len();
        let number = *self.numbers.entry(owner.clone()).or_insert(next);
        if number == next {
            self.nodes.push(Node::default());
        }
        (number, number == next)
    }

    /// Adds an edge. At first all owners count as stuck.
    fn add(&mut self, from: usize, step: Step, needed: usize, to: Vec<usize>) {
        let index = self.edges.len();
        for node in &to {
            if let Some(node) = self.nodes.get_mut(*node) {
                node.waited_for.push(index);
            }
        }
        if let Some(node) = self.nodes.get_mut(from) {
            node.waits.push(index);
            node.holding += 1;
        }
        self.edges.push(Edge {
            from,
            step,
            needed,
            stuck: to.len(),
            to,
        });
    }

    /// The shortest circle through the asker of those who are stuck.
    fn circle(mut self) -> Option<Vec<Step>> {
        self.find_free()?;
        // The edge by which each owner was found.
        let mut found_by: HashMap<usize, usize> = HashMap::new();
        let mut found = VecDeque::from([ASKER]);
        while let Some(number) = found.pop_front() {
            for &index in &self.nodes.get(number)?.waits {
                let edge = self.edges.get(index)?;
                if !edge.holds() {
                    continue;
                }
                for &to in &edge.to {
                    if to == ASKER {
                        return self.path(index, &found_by);
                    }
                    if self.nodes.get(to)?.holding == 0 {
                        continue;
                    }
                    if let Entry::Vacant(entry) = found_by.entry(to) {
                        entry.insert(index);
                        found.push_back(to);
                    }
                }
            }
        }
        None
    }

    /// Finds all that are not stuck: those who wait for nothing, and those who wait only for what
    /// such owners can give. `None` when the asker is one of them.
    fn find_free(&mut self) -> Option<()> {
        let mut free: Vec<usize> = (0..self.nodes.len())
            .filter(|&number| self.nodes.get(number).is_some_and(|node| node.holding == 0))
            .collect();
        while let Some(number) = free.pop() {
            if number == ASKER {
                return None;
            }
            for index in std::mem::take(&mut self.nodes.get_mut(number)?.waited_for) {
                let edge = self.edges.get_mut(index)?;
                let held = edge.holds();
                edge.stuck -= 1;
                if held && !edge.holds() {
                    let node = self.nodes.get_mut(edge.from)?;
                    node.holding -= 1;
                    if node.holding == 0 {
                        free.push(edge.from);
                    }
                }
            }
        }
        Some(())
    }

    /// The steps from the asker to an edge that leads back to the asker.
    fn path(&self, last: usize, found_by: &HashMap<usize, usize>) -> Option<Vec<Step>> {
        let mut path = Vec::new();
        let mut edge = self.edges.get(last)?;
        loop {
            path.push(edge.step.clone());
            if edge.from == ASKER {
                path.reverse();
                return Some(path);
            }
            edge = self.edges.get(*found_by.get(&edge.from)?)?;
        }
    }
}

/// The circle that `asker` would close by waiting for `locks`, from its own wait on; `None` when
/// there is none.
///
/// O(w) in the waits that can be reached from the holders, which are usually none: a holder seldom
/// waits. For a lock that is shared, also O(min(h, v)), h being its holders and v the waits for all
/// other locks.
pub(crate) fn circle<C>(
    table: &WaitTable<C>,
    asker: Owner<'_>,
    locks: &[LockName],
    mode: Mode,
    keys: &mut impl Keys,
) -> Option<Vec<Step>> {
    let asker = OwnerBuf::from(asker);
    let mut graph = Graph::default();
    graph.number(&asker);
    let mut pending: VecDeque<Wait> = locks
        .iter()
        .map(|lock| Wait {
            owner: asker.clone(),
            node: ASKER,
            lock: lock.clone(),
            place: None,
            mode,
        })
        .collect();
    while let Some(wait) = pending.pop_front() {
        let ahead: Vec<OwnerBuf> = table
            .nearest_several_before(&wait.lock, wait.place, &[&wait.owner, &asker])
            .cloned()
            .into_iter()
            .collect();
        let (needed, holders) = if wait.place.is_some() && !ahead.is_empty() {
            (1, Vec::new())
        } else {
            stuck_holders(table, &asker, &wait, keys)
        };
        for (is_behind, needed, owners) in [(false, needed, holders), (true, 1, ahead)] {
            // With fewer there is room, whatever they do.
            if owners.len() < needed {
                continue;
            }
            let mut to = Vec::new();
            for owner in owners {
                let (node, is_new) = graph.number(&owner);
                to.push(node);
                if is_new {
                    pending.extend(table.waits_of(&owner).filter_map(|(lock, place)| {
                        Some(Wait {
                            owner: owner.clone(),
                            node,
                            lock: lock.clone(),
                            place: Some(place),
                            mode: table.mode_of(place)?,
                        })
                    }));
                }
            }
            let step = Step {
                owner: wait.owner.clone(),
                lock: wait.lock.clone(),
                is_behind,
            };
            graph.add(wait.node, step, needed, to);
        }
    }
    graph.circle()
}

/// Those who hold a lock that somebody waits for, as far as they could be stuck, and how many of
/// them have to be.
fn stuck_holders<C>(
    table: &WaitTable<C>,
    asker: &OwnerBuf,
    wait: &Wait,
    keys: &mut impl Keys,
) -> (usize, Vec<OwnerBuf>) {
    let lock = &wait.lock;
    match keys.holders(lock) {
        Holders::Nobody => (1, Vec::new()),
        Holders::One(owner) => (1, vec![owner]),
        Holders::Sharing(count) => {
            let mut sharing = keys.sharing_among(lock, &mut iter::once(asker));
            if !sharing.is_empty() && wait.owner == *asker {
                // It waits for its own share, whatever others do.
                return (1, sharing);
            }
            if table.places_elsewhere(lock) <= count {
                sharing.extend(keys.sharing_among(
                    lock,
                    &mut table.owners_elsewhere(lock).filter(|owner| *owner != asker),
                ));
            } else {
                sharing.extend(keys.sharing(lock).into_iter().filter(|owner| {
                    owner != asker && table.waits_of(owner).any(|(other, _)| other != lock)
                }));
            }
            (table.stuck_behind(lock, wait.mode), sharing)
        }
    }
}
