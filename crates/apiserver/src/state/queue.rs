//! The work queue of the controllers.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::kinds::Resource;
use crate::kinds::tables::{DEFINITIONS, NAMESPACES};
use crate::object::finalizers::{FOREGROUND, ORPHAN};
use crate::rbac::CLUSTER_ROLES;
use crate::store::{Store, Stored, TableName};

/// A key of the queue: an object and the controller that reconciles it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// A namespace: the objects that every namespace has, or the content of a namespace that is being deleted.
    Namespace(Box<str>),
    /// The rules of all aggregated ClusterRoles.
    Aggregation,
    /// A CustomResourceDefinition: its conditions, or the custom resources of a definition that is being deleted.
    Definition(Box<str>),
    /// An owner whose deletion waits for its dependents.
    Owner {
        /// The table of the object.
        table: TableName,
        /// The key of the object.
        key: Box<str>,
    },
    /// A dependent whose owners may have been deleted.
    Dependent {
        /// The table of the object.
        table: TableName,
        /// The key of the object.
        key: Box<str>,
    },
    /// A Pod whose grace period ends.
    Expired {
        /// The table of the object.
        table: TableName,
        /// The key of the object.
        key: Box<str>,
    },
    /// A claim or volume that is being deleted and that no Pod uses.
    Unused {
        /// The table of the object.
        table: TableName,
        /// The key of the object.
        key: Box<str>,
    },
    /// A workload whose status is reported.
    Workload {
        /// The table of the object.
        table: TableName,
        /// The key of the object.
        key: Box<str>,
    },
}

/// The keys that are due, and those that are planned for a time.
#[derive(Debug, Default)]
pub struct Queue {
    ready: BTreeSet<Work>,
    planned: BTreeSet<(Timestamp, Work)>,
}

/// The tables of the workloads whose status the controllers report.
const WORKLOADS: [&str; 9] = [
    "deployments.apps",
    "replicasets.apps",
    "statefulsets.apps",
    "daemonsets.apps",
    "jobs.batch",
    "pods",
    "persistentvolumeclaims",
    "services",
    "replicationcontrollers",
];

impl Queue {
    /// Adds a key that is due now.
    pub fn push(&mut self, work: Work) {
        self.ready.insert(work);
    }

    /// Adds a key that is due at a time.
    pub fn plan(&mut self, at: Timestamp, work: Work) {
        self.planned.insert((at, work));
    }

    /// Adds all workloads.
    pub(crate) fn push_all_workloads(&mut self, store: &Store) {
        for table in WORKLOADS {
            for stored in store.list(table, crate::store::Range::default()) {
                self.push(Work::Workload {
                    table: table.into(),
                    key: stored.head.key(),
                });
            }
        }
    }

    /// Removes and returns a key that is due.
    pub(crate) fn take(&mut self, now: Timestamp) -> Option<Work> {
        if let Some(work) = self.ready.pop_first() {
            return Some(work);
        }
        if self.planned.first()?.0 > now {
            return None;
        }
        self.planned.pop_first().map(|(_, work)| work)
    }

    /// Returns when the next key is due: `Timestamp::MIN` for now, `None` for an empty queue.
    pub fn next(&self) -> Option<Timestamp> {
        if !self.ready.is_empty() {
            return Some(Timestamp::MIN);
        }
        self.planned.first().map(|(at, _)| *at)
    }

    /// Adds the objects that a write concerns.
    pub(crate) fn on_write(
        &mut self,
        resource: &Resource,
        stored: &Stored,
        previous: Option<&Stored>,
        _store: &Store,
    ) {
        let table = &resource.table;
        let head = &stored.head;
        let here = || (TableName::clone(table), head.key());
        match &**table {
            NAMESPACES => self.push(Work::Namespace(head.name.as_ref().into())),
            DEFINITIONS => self.push(Work::Definition(head.name.as_ref().into())),
            CLUSTER_ROLES => self.push(Work::Aggregation),
            name if WORKLOADS.contains(&name) => {
                let (table, key) = here();
                self.push(Work::Workload { table, key });
            }
            _ => {}
        }
        let owners_before = previous.map(|previous| &previous.head.owners);
        if !head.owners.is_empty() && owners_before != Some(&head.owners) {
            let (table, key) = here();
            self.push(Work::Dependent { table, key });
        }
        if let Some(at) = head.deleting {
            if head.has_finalizer(FOREGROUND) || head.has_finalizer(ORPHAN) {
                let (table, key) = here();
                self.push(Work::Owner { table, key });
            }
            if matches!(
                &**table,
                "persistentvolumeclaims" | "persistentvolumes" | "volumeattributesclasses.storage.k8s.io"
            ) {
                let (table, key) = here();
                self.push(Work::Unused { table, key });
            }
            if head.finalizers.is_empty() && **table == *"pods" {
                let (table, key) = here();
                self.plan(at, Work::Expired { table, key });
            }
        }
    }

    /// Adds the objects that a removal concerns.
    pub(crate) fn on_remove(&mut self, resource: &Resource, stored: &Stored, store: &Store) {
        let head = &stored.head;
        if *resource.table == *CLUSTER_ROLES {
            self.push(Work::Aggregation);
        }
        for (table, key) in store.dependents(&head.uid) {
            self.push(Work::Dependent { table, key });
        }
        if let Some(namespace) = store.get(NAMESPACES, &head.namespace) {
            let needed = matches!(
                (&*resource.table, &*head.name),
                ("serviceaccounts", "default") | ("configmaps", "kube-root-ca.crt")
            );
            if needed || namespace.head.deleting.is_some() {
                self.push(Work::Namespace(head.namespace.as_ref().into()));
            }
        }
        if let Some(definition) = &resource.custom
            && store
                .get(DEFINITIONS, &definition.name)
                .is_some_and(|definition| definition.head.deleting.is_some())
        {
            self.push(Work::Definition(definition.name.clone()));
        }
        for owner in head.owners.iter().filter(|owner| owner.blocks) {
            // The store indexes the few owners that wait for their dependents by UID.
            if let Some((table, key)) = store.find_finalizing(&owner.uid) {
                self.push(Work::Owner { table, key });
            }
        }
    }
}
