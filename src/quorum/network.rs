//! The coordinator and its connections to the nodes of one setting.

use super::coordinator::{Coordinator, Done, Job, Number, Outgoing, Tag};
use super::link::{Host, Letter, Link, Login, Sent};
use super::settings::Settings;
use crate::lock::time::{SteadyMicros, UnixMicros};
use redis::{Arg, Cmd, Value};
use std::os::fd::RawFd;
use std::rc::Rc;

/// See the [module](self).
pub(crate) struct Network {
    coordinator: Coordinator,
    links: Vec<Link<Tag>>,
    /// Messages to the server itself, which it carries out without a connection.
    own: Vec<Own>,
}

/// A message to the server that this runs in.
pub(crate) struct Own {
    tag: Tag,
    command: Rc<Cmd>,
}

impl Own {
    /// The words of the command.
    pub(crate) fn words(&self) -> impl Iterator<Item = &[u8]> {
        self.command.args_iter().map(|word| match word {
            Arg::Simple(word) => word,
            _ => &[],
        })
    }
}

impl Network {
    /// `None` when there are no nodes. `proposed` is that of the network that it replaces.
    pub(crate) fn new(settings: &Settings, host: &Rc<dyn Host>, proposed: u64) -> Option<Self> {
        let coordinator = Coordinator::new(settings, proposed)?;
        let login = Rc::new(Login::new(settings));
        let links = settings
            .nodes
            .iter()
            .map(|address| Link::new(address.clone(), Rc::clone(&login), Rc::clone(host)))
            .collect();
        Some(Self {
            coordinator,
            links,
            own: Vec::new(),
        })
    }

    /// The highest token that was proposed.
    pub(crate) fn proposed(&self) -> u64 {
        self.coordinator.proposed()
    }

    /// Whether nothing is under way, and nothing has to be waited for to drop this.
    pub(crate) fn is_idle(&self) -> bool {
        self.coordinator.is_idle() && self.links.iter().all(Link::can_be_dropped)
    }

    /// Begins a request. What this server itself is asked has to be carried out right after that, see
    /// [`take_own`](Self::take_own).
    pub(crate) fn ask(&mut self, number: Number, job: Job, now: SteadyMicros, wall: UnixMicros) {
        self.coordinator.ask(number, job, now, wall);
        for outgoing in self.coordinator.take_outgoing() {
            let link = self.links.get(outgoing.tag.node);
            if link.is_some_and(Link::is_here_and_idle) {
                let Outgoing { tag, command, .. } = outgoing;
                self.own.push(Own { tag, command });
            } else {
                self.send(outgoing, now);
            }
        }
    }

    /// What this server itself is asked, in the order in which it is to be carried out.
    pub(crate) fn take_own(&mut self) -> Vec<Own> {
        std::mem::take(&mut self.own)
    }

    /// What came of a message to this server itself; the error is that which it was answered.
    pub(crate) fn own_answered(
        &mut self,
        own: &Own,
        answer: Result<Value, String>,
        now: SteadyMicros,
    ) {
        let sent = answer.map_or_else(Sent::Failed, Sent::Answered);
        self.coordinator.answered(own.tag, sent, now);
        self.exchange(now);
    }

    /// The client of a request is gone before it was told.
    pub(crate) fn client_gone(&mut self, number: Number, now: SteadyMicros) {
        self.coordinator.client_gone(number, now);
        self.exchange(now);
    }

    /// The client of a request was told what became of it.
    pub(crate) fn client_told(&mut self, number: Number) {
        self.coordinator.client_told(number);
    }

    /// A descriptor is ready. False when it is none of these connections.
    pub(crate) fn ready(&mut self, fd: RawFd, now: SteadyMicros) -> bool {
        let mut links = self.links.iter_mut();
        let Some(link) = links.find(|link| link.fd() == Some(fd)) else {
            return false;
        };
        link.ready(now);
        self.exchange(now);
        true
    }

    /// Does what is due.
    pub(crate) fn pass(&mut self, now: SteadyMicros, wall: UnixMicros) {
        // An answer that has arrived is in time, even if the server did not come to read it.
        for link in &mut self.links {
            link.ready(now);
            link.pass(now);
        }
        self.exchange(now);
        self.coordinator.pass(now, wall);
        self.exchange(now);
    }

    /// Sends what there is to send, as far as the connections take it.
    pub(crate) fn flush(&mut self, now: SteadyMicros) {
        for link in &mut self.links {
            link.flush(now);
        }
        self.exchange(now);
    }

    /// When to call [`pass`](Self::pass).
    pub(crate) fn next_wake(&self) -> Option<SteadyMicros> {
        self.links
            .iter()
            .filter_map(Link::next_wake)
            .chain(self.coordinator.next_wake())
            .min()
    }

    /// What clients are to be told since this was asked before.
    pub(crate) fn take_done(&mut self) -> Vec<Done> {
        self.coordinator.take_done()
    }

    /// Passes on what has been answered and what follows from it.
    fn exchange(&mut self, now: SteadyMicros) {
        loop {
            for link in &mut self.links {
                for (tag, sent) in link.take_answers() {
                    self.coordinator.answered(tag, sent, now);
                }
            }
            let outgoing = self.coordinator.take_outgoing();
            if outgoing.is_empty() {
                return;
            }
            for outgoing in outgoing {
                self.send(outgoing, now);
            }
        }
    }

    fn send(&mut self, outgoing: Outgoing, now: SteadyMicros) {
        let Some(link) = self.links.get_mut(outgoing.tag.node) else {
            return;
        };
        link.send(
            Letter {
                tag: outgoing.tag,
                command: outgoing.command,
                may_repeat: outgoing.may_repeat,
            },
            now,
        );
    }
}
