//! The switchboard of faults: errors that a cluster makes on purpose.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::random::Random;

/// The requests that a fault applies to. An empty field matches every request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Match {
    /// The Kubernetes verbs: get, list, watch, create, update, patch, delete, deletecollection; empty for requests
    /// for no resource.
    pub verbs: Vec<String>,
    /// The plural names of resources, with a slash and the subresource for those: `deployments`,
    /// `deployments/status`.
    pub resources: Vec<String>,
    /// The namespaces.
    pub namespaces: Vec<String>,
    /// The names of objects.
    pub names: Vec<String>,
}

/// The effect of a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Delays the request.
    Latency(Duration),
    /// Answers 429 with `Retry-After` in seconds.
    TooMany(u32),
    /// Answers with a server error, such as 500 or 503.
    Error(u16),
    /// Closes the connection before the request is handled.
    Refuse,
    /// Handles the request and closes the connection instead of responding.
    LoseResponse,
    /// Handles the request and closes the connection in the middle of the response.
    CutAnswer,
    /// Never responds.
    BlackHole,
    /// Answers with invalid JSON.
    Garbage,
    /// Shows a read the state of this many writes ago, as far as the log reaches.
    Stale(u64),
    /// Ends a watch after this many events.
    CutWatch(u32),
    /// Sends a watch a 410 event after this many events.
    ExpireWatch(u32),
    /// Sends a watch nothing any more and never ends it, as over a half-open connection. Open watches that have
    /// something to send freeze as well, and stay frozen after the fault ends. `times` and `one_in` do not apply.
    FreezeWatch,
}

/// A fault of a cluster.
#[derive(Debug, Clone)]
pub struct Fault {
    /// The requests that the fault applies to.
    pub requests: Match,
    /// The effect on them.
    pub effect: Effect,
    /// The number of requests that the fault affects; `None` for all.
    pub times: Option<u32>,
    /// Affects one in this many requests at random; 0 and 1 affect every request.
    pub one_in: u32,
}

impl Fault {
    /// Returns a fault that affects every request.
    pub fn always(effect: Effect) -> Self {
        Self {
            requests: Match::default(),
            effect,
            times: None,
            one_in: 1,
        }
    }

    /// Limits the fault to verbs.
    #[must_use]
    pub fn on(mut self, verbs: &[&str]) -> Self {
        self.requests.verbs = verbs.iter().map(|verb| (*verb).to_owned()).collect();
        self
    }

    /// Limits the fault to resources.
    #[must_use]
    pub fn of(mut self, resources: &[&str]) -> Self {
        self.requests.resources = resources.iter().map(|one| (*one).to_owned()).collect();
        self
    }

    /// Limits the fault to names.
    #[must_use]
    pub fn named(mut self, names: &[&str]) -> Self {
        self.requests.names = names.iter().map(|one| (*one).to_owned()).collect();
        self
    }

    /// Limits the fault to a number of requests.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = Some(times);
        self
    }

    /// Limits the fault to one in `count` requests, at random.
    #[must_use]
    pub fn one_in(mut self, count: u32) -> Self {
        self.one_in = count;
        self
    }
}

/// The ID of a fault that has been added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultId(u64);

/// The properties of a request by which faults select it.
#[derive(Debug, Clone, Default)]
pub struct RequestFacts {
    /// The verb; empty for a request for no resource.
    pub verb: &'static str,
    /// The resource with its subresource.
    pub resource: String,
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl Match {
    fn fits(&self, facts: &RequestFacts) -> bool {
        let among = |list: &[String], text: &str| list.is_empty() || list.iter().any(|one| one == text);
        among(&self.verbs, facts.verb)
            && among(&self.resources, &facts.resource)
            && among(&self.namespaces, &facts.namespace)
            && among(&self.names, &facts.name)
    }
}

/// The faults of a cluster.
#[derive(Debug)]
pub struct Switchboard {
    /// Whether there is any fault, so that a cluster without faults takes no lock.
    any: AtomicBool,
    next: AtomicU64,
    set: Mutex<Set>,
}

#[derive(Debug)]
struct Set {
    faults: Vec<(FaultId, Fault)>,
    random: Random,
    hits: u64,
}

impl Switchboard {
    pub(crate) fn new(random: Random) -> Self {
        Self {
            any: AtomicBool::new(false),
            next: AtomicU64::new(0),
            set: Mutex::new(Set {
                faults: Vec::new(),
                random,
                hits: 0,
            }),
        }
    }

    fn set(&self) -> MutexGuard<'_, Set> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a fault.
    pub fn add(&self, fault: Fault) -> FaultId {
        let id = FaultId(self.next.fetch_add(1, Ordering::Relaxed));
        self.set().faults.push((id, fault));
        self.any.store(true, Ordering::Release);
        id
    }

    /// Removes a fault.
    pub fn remove(&self, id: FaultId) {
        self.set().faults.retain(|(other, _)| *other != id);
    }

    /// Removes all faults.
    pub fn clear(&self) {
        self.set().faults.clear();
        self.any.store(false, Ordering::Release);
    }

    /// Returns the number of requests that a fault has affected.
    pub fn hits(&self) -> u64 {
        self.set().hits
    }

    /// Returns whether watches with these properties send nothing now.
    pub(crate) fn freezes(&self, facts: &RequestFacts) -> bool {
        let is_frozen = |fault: &Fault| fault.effect == Effect::FreezeWatch && fault.requests.fits(facts);
        self.any.load(Ordering::Acquire) && self.set().faults.iter().any(|(_, fault)| is_frozen(fault))
    }

    /// Returns the effects of the faults on a request.
    pub(crate) fn effects(&self, facts: &RequestFacts) -> Vec<Effect> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut set = self.set();
        let Set { faults, random, hits } = &mut *set;
        let mut effects = Vec::new();
        for (_, fault) in faults.iter_mut() {
            let is_for_request = fault.effect != Effect::FreezeWatch;
            if !is_for_request || !fault.requests.fits(facts) || fault.times == Some(0) {
                continue;
            }
            if fault.one_in > 1 && random.below(u64::from(fault.one_in)) != 0 {
                continue;
            }
            if let Some(times) = &mut fault.times {
                *times -= 1;
            }
            effects.push(fault.effect.clone());
        }
        faults.retain(|(_, fault)| fault.times != Some(0));
        if !effects.is_empty() {
            *hits += 1;
        }
        effects
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_affects_matching_requests_as_often_as_configured() {
        let board = Switchboard::new(Random::new(1));
        let facts = RequestFacts {
            verb: "patch",
            resource: "deployments".to_owned(),
            namespace: "default".to_owned(),
            name: "web".to_owned(),
        };
        assert!(board.effects(&facts).is_empty());
        board.add(
            Fault::always(Effect::Refuse)
                .on(&["patch"])
                .of(&["deployments"])
                .times(2),
        );
        board.add(Fault::always(Effect::BlackHole).on(&["get"]));
        assert_eq!(board.effects(&facts), [Effect::Refuse]);
        assert_eq!(board.effects(&facts), [Effect::Refuse]);
        assert!(board.effects(&facts).is_empty());
        assert_eq!(board.hits(), 2);
        board.add(Fault::always(Effect::TooMany(1)).one_in(4));
        let hit = (0..400).filter(|_| !board.effects(&facts).is_empty()).count();
        assert!((50..150).contains(&hit), "{hit}");
    }
}
