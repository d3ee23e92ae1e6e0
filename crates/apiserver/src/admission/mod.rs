//! Admission by ValidatingAdmissionPolicies, as in Kubernetes 1.35 (KEP-3488).
//!
//! A policy that a binding names is evaluated for the requests that both match: after all other checks of the object,
//! before it is stored, for dry runs and for writes that change nothing too. [`Admission`] holds the policies with
//! compiled expressions; the state of a cluster keeps it up to date. This module decides, without the state: `verbs`
//! gathers what a policy looks at.

mod authorizer;
mod evaluate;
mod expression;
mod facts;
mod matching;
mod policy;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::store::{Range, Store, Stored};
pub(crate) use authorizer::Authorizer;
pub(crate) use evaluate::{Denial, Values, evaluate, to_cel};
pub(crate) use facts::{Facts, Operation, Resource};
pub(crate) use matching::MatchResources;
pub(crate) use policy::check as check_policy;
pub(crate) use policy::{Action, Binding, FailurePolicy, ParamKind, ParamRef, Policy};

/// The table of policies.
const POLICIES: &str = "validatingadmissionpolicies.admissionregistration.k8s.io";
/// The table of their bindings.
const BINDINGS: &str = "validatingadmissionpolicybindings.admissionregistration.k8s.io";

/// The policies and bindings of a cluster, in the form that decisions need.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    policies: BTreeMap<Box<str>, Arc<Policy>>,
    bindings: BTreeMap<Box<str>, Binding>,
}

impl Admission {
    /// Reads the policies and bindings of a store.
    pub(crate) fn of(store: &Store) -> Self {
        let mut admission = Self::default();
        for table in [POLICIES, BINDINGS] {
            for stored in store.list(table, Range::default()) {
                admission.put(table, stored);
            }
        }
        admission
    }

    /// Takes over an object that was written; other tables are ignored.
    pub(crate) fn put(&mut self, table: &str, stored: &Stored) {
        let name = stored.head.name.as_ref();
        match table {
            POLICIES => {
                let policy = Policy::of(name, &stored.read());
                self.policies.insert(name.into(), Arc::new(policy));
            }
            BINDINGS => {
                self.bindings.insert(name.into(), Binding::of(&stored.read()));
            }
            _ => {}
        }
    }

    /// Forgets an object that was removed.
    pub(crate) fn remove(&mut self, table: &str, stored: &Stored) {
        match table {
            POLICIES => drop(self.policies.remove(&*stored.head.name)),
            BINDINGS => drop(self.bindings.remove(&*stored.head.name)),
            _ => {}
        }
    }

    /// Returns whether no policy is in force, so that a request needs no admission.
    pub(crate) fn is_empty(&self) -> bool {
        self.bindings.is_empty() || self.policies.is_empty()
    }

    /// Returns the policies by name, each with its bindings.
    pub(crate) fn in_force(&self) -> impl Iterator<Item = (&Arc<Policy>, Vec<(&str, &Binding)>)> {
        self.policies.values().filter_map(|policy| {
            let bindings: Vec<_> = { self.bindings.iter() }
                .filter(|(_, binding)| binding.policy_name == policy.name)
                .map(|(name, binding)| (&**name, binding))
                .collect();
            (!bindings.is_empty()).then_some((policy, bindings))
        })
    }
}
