//! Deadlocks: owners that wait for one another in a circle.
//!
//! An owner that waits for a lock waits for those who hold it, and for those who stand before it in
//! the queue. A request that would close a circle of such waits can only end by a lease lapsing, so
//! it is told at once and does not wait.
//!
//! Owners are the nodes, whatever connections they use: an owner should be one thread of work. An
//! owner is stuck when it waits for others that are stuck, as many of them as keep it from its lock:
//!
//! * of those who hold it, any one, if the lock or the request is exclusive; of permits with a limit
//!   of n, as many as n, since with fewer there will be room ([`WaitTable::stuck_behind`]);
//! * of those who stand before it, any one that wants several locks. The others wait for the same
//!   holders, so nothing is found by following them. Only the nearest is followed, who waits for the
//!   next one and for those holders in turn: a queue costs as many steps as it has places. What the
//!   asker waits for already does not wait for what it asks for now.
//!
//! All owners who wait are taken to be stuck until it is found that they can go on, because enough
//! of those they wait for can. A request is a deadlock when its owner is stuck in the end, and would
//! not be if it went on by itself: who only waits for others that are in a circle waits with them.
//! To wait for a lock that one holds is the shortest circle.
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

/// That one owner waits for others; or what a shared lock that many wait for is to all of them alike.
struct Edge {
    /// The number of the one who waits, or of the lock.
    from: usize,
    /// `None` for a lock: the step is that of the one who waits for it.
    step: Option<Step>,
    /// The numbers of the others, or of the lock alone.
    to: Vec<usize>,
    /// How many of them have to be stuck for it to be stuck.
    needed: usize,
}

/// Owners that can be reached from the asker, by numbers. So are shared locks that others wait for:
/// otherwise there would be as many edges as those who wait times those who hold.
#[derive(Default)]
struct Graph {
    numbers: HashMap<OwnerBuf, usize>,
    /// Each lock by how many of its holders have to be stuck.
    locks: HashMap<(LockName, usize), usize>,
    edges: Vec<Edge>,
    /// For each number, the edges from it.
    edges_from: Vec<Vec<usize>>,
    /// For each number, the edges to it.
    edges_to: Vec<Vec<usize>>,
}

/// The number of the asker.
const ASKER: usize = 0;

impl Graph {
    /// The number of an owner, and whether it is a new one.
    fn number(&mut self, owner: &OwnerBuf) -> (usize, bool) {
        let next = self.edges_from.len();
        let number = *self.numbers.entry(owner.clone()).or_insert(next);
        self.add_number(number, next)
    }

    /// The number of a lock of which so many holders have to be stuck, and whether it is a new one.
    fn number_of_lock(&mut self, lock: &LockName, needed: usize) -> (usize, bool) {
        let next = self.edges_from.len();
        let number = *self.locks.entry((lock.clone(), needed)).or_insert(next);
        self.add_number(number, next)
    }

    /// Makes room for a number if it is the next one.
    fn add_number(&mut self, number: usize, next: usize) -> (usize, bool) {
        if number == next {
            self.edges_from.push(Vec::new());
            self.edges_to.push(Vec::new());
        }
        (number, number == next)
    }

    /// Whether a number is that of a lock.
    fn is_lock(&self, node: usize) -> bool {
        let edge = self.edges_from.get(node).and_then(|edges| edges.first());
        edge.and_then(|index| self.edges.get(*index))
            .is_some_and(|edge| edge.step.is_none())
    }

    /// Adds an edge.
    fn add(&mut self, edge: Edge) {
        let index = self.edges.len();
        if let Some(edges) = self.edges_from.get_mut(edge.from) {
            edges.push(index);
        }
        for node in &edge.to {
            if let Some(edges) = self.edges_to.get_mut(*node) {
                edges.push(index);
            }
        }
        self.edges.push(edge);
    }

    /// The edges by which owners are stuck. `can_go_on` says whether the asker goes on whatever it
    /// waits for.
    ///
    /// Whoever has no such edge can go on, and those who wait for it have one less to wait for: that
    /// is followed until nothing changes. O(edges).
    fn stuck(&self, can_go_on: bool) -> Vec<bool> {
        // Of each edge, how many of those it leads to are stuck; of each owner, how many edges keep
        // it.
        let mut stuck: Vec<usize> = self.edges.iter().map(|edge| edge.to.len()).collect();
        let keeps = |stuck: &[usize], index: usize| {
            let edge = self.edges.get(index).map_or(usize::MAX, |edge| edge.needed);
            stuck.get(index).is_some_and(|stuck| *stuck >= edge)
        };
        let mut kept: Vec<usize> = self
            .edges_from
            .iter()
            .map(|edges| edges.iter().filter(|index| keeps(&stuck, **index)).count())
            .collect();
        if let Some(kept) = kept.get_mut(ASKER).filter(|_| can_go_on) {
            *kept = 0;
        }
        let mut free: Vec<usize> = (0..kept.len())
            .filter(|node| kept.get(*node) == Some(&0))
            .collect();
        while let Some(node) = free.pop() {
            for &index in self.edges_to.get(node).into_iter().flatten() {
                let kept_before = keeps(&stuck, index);
                if let Some(stuck) = stuck.get_mut(index) {
                    *stuck -= 1;
                }
                let from = self.edges.get(index).map_or(ASKER, |edge| edge.from);
                if !kept_before || keeps(&stuck, index) || from == ASKER && can_go_on {
                    continue;
                }
                if let Some(kept) = kept.get_mut(from) {
                    *kept -= 1;
                    if *kept == 0 {
                        free.push(from);
                    }
                }
            }
        }
        (0..self.edges.len())
            .map(|index| keeps(&stuck, index))
            .collect()
    }

    /// The shortest circle through the asker, if the asker is stuck in one.
    fn circle(&self) -> Option<Vec<Step>> {
        let own = self.edges_from.get(ASKER)?;
        // Who waits for what it holds itself waits for ever, whatever others do.
        let mut edges = own.iter().filter_map(|index| self.edges.get(*index));
        if let Some(edge) = edges.find(|edge| edge.to.contains(&ASKER)) {
            return Some(edge.step.iter().cloned().collect());
        }
        let is_kept = |edges: &[bool]| own.iter().any(|index| edges.get(*index) == Some(&true));
        let edges = self.stuck(false);
        if !is_kept(&edges) || is_kept(&self.stuck(true)) {
            return None;
        }
        // From the asker along the edges that keep somebody, until one leads to the asker. Those to
        // holders go first, because they say more than those to others in the queue.
        let mut came_by: HashMap<usize, usize> = HashMap::new();
        let mut pending = VecDeque::from([ASKER]);
        while let Some(node) = pending.pop_front() {
            let from = self.edges_from.get(node)?;
            let is_behind = |index: &&usize| {
                let step = self.edges.get(**index).and_then(|edge| edge.step.as_ref());
                step.is_some_and(|step| step.is_behind)
            };
            let (behind, held): (Vec<usize>, Vec<usize>) = from.iter().partition(is_behind);
            // The next one on top.
            let mut to_follow: Vec<usize> = held.into_iter().chain(behind).rev().collect();
            while let Some(index) = to_follow.pop() {
                let Some(edge) = self
                    .edges
                    .get(index)
                    .filter(|_| edges.get(index) == Some(&true))
                else {
                    continue;
                };
                if edge.to.contains(&ASKER) {
                    return self.path(index, &came_by);
                }
                for to in &edge.to {
                    let Entry::Vacant(entry) = came_by.entry(*to) else {
                        continue;
                    };
                    entry.insert(index);
                    if self.is_lock(*to) {
                        to_follow.extend(self.edges_from.get(*to).into_iter().flatten());
                    } else {
                        pending.push_back(*to);
                    }
                }
            }
        }
        None
    }

    /// The steps from the asker to an edge, that one included.
    fn path(&self, last: usize, came_by: &HashMap<usize, usize>) -> Option<Vec<Step>> {
        let mut path = VecDeque::new();
        let mut edge = self.edges.get(last)?;
        loop {
            if let Some(step) = &edge.step {
                path.push_front(step.clone());
            }
            if edge.from == ASKER {
                return Some(path.into());
            }
            edge = self.edges.get(*came_by.get(&edge.from)?)?;
        }
    }
}

/// The circle that `asker` would close by waiting for `locks`, from its own wait on; `None` when
/// there is none.
///
/// O(w) in the waits that can be reached from the holders, which are usually none: a holder seldom
/// waits. For each lock among them that is shared, also O(min(h, v)), h being its holders and v the
/// waits for all other locks; and that once for each limit that is waited with.
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
    let mut search = Search {
        table,
        pending: locks
            .iter()
            .map(|lock| Wait {
                owner: asker.clone(),
                node: ASKER,
                lock: lock.clone(),
                place: None,
                mode,
            })
            .collect(),
        asker,
        graph,
    };
    while let Some(wait) = search.pending.pop() {
        search.follow(&wait, keys);
    }
    search.graph.circle()
}

/// A search for a circle.
struct Search<'t, C> {
    table: &'t WaitTable<C>,
    asker: OwnerBuf,
    graph: Graph,
    /// Waits that are yet to be looked at.
    pending: Vec<Wait>,
}

impl<C> Search<'_, C> {
    /// Adds what one owner waits for.
    fn follow(&mut self, wait: &Wait, keys: &mut impl Keys) {
        let ahead: Vec<OwnerBuf> = self
            .table
            .nearest_several_before(&wait.lock, wait.place, &[&wait.owner, &self.asker])
            .cloned()
            .into_iter()
            .collect();
        if wait.place.is_none() || ahead.is_empty() {
            self.follow_to_holders(wait, keys);
        }
        if !ahead.is_empty() {
            let to = self.numbers(ahead);
            self.add(wait, true, to, 1);
        }
    }

    /// Adds that an owner waits for those who hold a lock, as far as they could be stuck.
    fn follow_to_holders(&mut self, wait: &Wait, keys: &mut impl Keys) {
        let lock = &wait.lock;
        let count = match keys.holders(lock) {
            Holders::Nobody => return,
            Holders::One(owner) => {
                let to = self.numbers(vec![owner]);
                return self.add(wait, false, to, 1);
            }
            Holders::Sharing(count) => count,
        };
        let needed = self.table.stuck_behind(lock, wait.place, wait.mode);
        if wait.node == ASKER {
            let own = keys.sharing_among(lock, &mut iter::once(&self.asker));
            let (needed, sharing) = if own.is_empty() {
                (needed, self.sharing(lock, count, keys))
            } else {
                // It waits for its own share, whatever others do.
                (1, own)
            };
            let to = self.numbers(sharing);
            return self.add(wait, false, to, needed);
        }
        let (node, is_new) = self.graph.number_of_lock(lock, needed);
        self.add(wait, false, vec![node], 1);
        if is_new {
            let sharing = self.sharing(lock, count, keys);
            let to = self.numbers(sharing);
            self.graph.add(Edge {
                from: node,
                step: None,
                to,
                needed,
            });
        }
    }

    /// Those of about `count` who share a lock that could be stuck: the asker, and whoever waits for
    /// another lock.
    fn sharing(&self, lock: &LockName, count: usize, keys: &mut impl Keys) -> Vec<OwnerBuf> {
        let (table, asker) = (self.table, &self.asker);
        let mut sharing = keys.sharing_among(lock, &mut iter::once(asker));
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
        sharing
    }

    /// The numbers of owners. What those wait for who are new is to be looked at.
    fn numbers(&mut self, owners: Vec<OwnerBuf>) -> Vec<usize> {
        let table = self.table;
        let mut numbers = Vec::with_capacity(owners.len());
        for owner in owners {
            let (node, is_new) = self.graph.number(&owner);
            numbers.push(node);
            if is_new {
                self.pending
                    .extend(table.waits_of(&owner).filter_map(|(lock, place)| {
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
        numbers
    }

    /// Adds that an owner waits for others.
    fn add(&mut self, wait: &Wait, is_behind: bool, to: Vec<usize>, needed: usize) {
        self.graph.add(Edge {
            from: wait.node,
            step: Some(Step {
                owner: wait.owner.clone(),
                lock: wait.lock.clone(),
                is_behind,
            }),
            to,
            needed,
        });
    }
}
