//! The switchboard of faults: what a cluster does wrong on purpose.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::random::Random;

/// Which requests a fault is about. What is empty means any.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Match {
    /// Verbs as Kubernetes names them: get, list, watch, create, update, patch, delete, deletecollection; empty for
    /// requests that are about no resource.
    pub verbs: Vec<String>,
    /// Plurals of resources, with a slash and the subresource if it is about one: `deployments`, `deployments/status`.
    pub resources: Vec<String>,
    /// Namespaces.
    pub namespaces: Vec<String>,
    /// Names.
    pub names: Vec<String>,
}

/// What happens to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// It begins later.
    Latency(Duration),
    /// 429 with `Retry-After` in seconds.
    TooMany(u32),
    /// An error of the server, such as 500 or 503.
    Error(u16),
    /// The connection is closed before the request is looked at.
    Refuse,
    /// The request is done; the connection is closed in place of an answer.
    LoseAnswer,
    /// The request is done; the connection is closed in the middle of the answer.
    CutAnswer,
    /// Nothing ever comes.
    BlackHole,
    /// The answer is no JSON.
    Garbage,
    /// A read shows the state of so many writes ago, as far as it is still known.
    Stale(u64),
    /// A watch ends after so many events.
    CutWatch(u32),
    /// A watch tells 410 after so many events.
    ExpireWatch(u32),
}

/// A fault.
#[derive(Debug, Clone)]
pub struct Fault {
    /// Which requests.
    pub requests: Match,
    /// What happens to them.
    pub effect: Effect,
    /// To how many of them; none for all.
    pub times: Option<u32>,
    /// To one in so many of them, by lot; 0 and 1 for each.
    pub one_in: u32,
}

impl Fault {
    /// A fault of each request.
    pub fn always(effect: Effect) -> Self {
        Self {
            requests: Match::default(),
            effect,
            times: None,
            one_in: 1,
        }
    }

    /// Limits it to verbs.
    #[must_use]
    pub fn on(mut self, verbs: &[&str]) -> Self {
        self.requests.verbs = verbs.iter().map(|verb| (*verb).to_owned()).collect();
        self
    }

    /// Limits it to resources.
    #[must_use]
    pub fn of(mut self, resources: &[&str]) -> Self {
        self.requests.resources = resources.iter().map(|one| (*one).to_owned()).collect();
        self
    }

    /// Limits it to names.
    #[must_use]
    pub fn named(mut self, names: &[&str]) -> Self {
        self.requests.names = names.iter().map(|one| (*one).to_owned()).collect();
        self
    }

    /// Limits it to a number of requests.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = Some(times);
        self
    }

    /// Leaves it to chance.
    #[must_use]
    pub fn one_in(mut self, count: u32) -> Self {
        self.one_in = count;
        self
    }
}

/// Names a fault that has been set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultId(u64);

/// What a request is, to the switchboard.
#[derive(Debug, Clone, Default)]
pub struct RequestFacts {
    /// The verb; empty for a request that is about no resource.
    pub verb: &'static str,
    /// The resource, with its subresource.
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
    /// Whether there is any fault, so that a cluster without pays nothing.
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

    /// Sets a fault, in addition to those that are set.
    pub fn add(&self, fault: Fault) -> FaultId {
        let id = FaultId(self.next.fetch_add(1, Ordering::Relaxed));
        self.set().faults.push((id, fault));
        self.any.store(true, Ordering::Release);
        id
    }

    /// Takes a fault away.
    pub fn remove(&self, id: FaultId) {
        self.set().faults.retain(|(other, _)| *other != id);
    }

    /// Takes all faults away.
    pub fn clear(&self) {
        self.set().faults.clear();
        self.any.store(false, Ordering::Release);
    }

    /// To how many requests something has happened.
    pub fn hits(&self) -> u64 {
        self.set().hits
    }

    /// What happens to a request.
    pub(crate) fn effects(&self, facts: &RequestFacts) -> Vec<Effect> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut set = self.set();
        let Set { faults, random, hits } = &mut *set;
        let mut effects = Vec::new();
        for (_, fault) in faults.iter_mut() {
            if !fault.requests.fits(facts) || fault.times == Some(0) {
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
    fn a_fault_hits_what_it_is_about_as_often_as_it_is_told() {
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
