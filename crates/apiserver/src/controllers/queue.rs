//! What the controllers have to look at.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::kinds::Resource;
use crate::store::{Store, Stored, TableName};
use crate::verbs::{FOREGROUND, NAMESPACES, ORPHAN};

/// Something to look at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// A namespace: what it needs while it lives, and its content when it goes.
    Namespace(Box<str>),
    /// A CustomResourceDefinition: its conditions, and its objects when it goes.
    Definition(Box<str>),
    /// An object whose deletion waits for its dependents.
    Owner {
        /// Its table.
        table: TableName,
        /// Its key.
        key: Box<str>,
    },
    /// An object whose owners may be gone.
    Dependent {
        /// Its table.
        table: TableName,
        /// Its key.
        key: Box<str>,
    },
    /// An object whose period of grace is over.
    Expired {
        /// Its table.
        table: TableName,
        /// Its key.
        key: Box<str>,
    },
    /// A claim or a volume that is being deleted, which no Pod uses.
    Unused {
        /// Its table.
        table: TableName,
        /// Its key.
        key: Box<str>,
    },
    /// An object that becomes healthy.
    Workload {
        /// Its table.
        table: TableName,
        /// Its key.
        key: Box<str>,
    },
}

/// Work that is due, and work that is planned.
#[derive(Debug, Default)]
pub struct Queue {
    ready: BTreeSet<Work>,
    planned: BTreeSet<(Timestamp, Work)>,
}

/// The table of definitions.
pub(crate) const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";

/// Tables whose objects become healthy.
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
    /// Adds work that is due.
    pub fn push(&mut self, work: Work) {
        self.ready.insert(work);
    }

    /// Plans work.
    pub fn plan(&mut self, at: Timestamp, work: Work) {
        self.planned.insert((at, work));
    }

    /// Adds all objects that become healthy.
    pub(crate) fn all_workloads(&mut self, store: &Store) {
        for table in WORKLOADS {
            for stored in store.list(table, crate::store::Range::default()) {
                self.push(Work::Workload {
                    table: table.into(),
                    key: stored.head.key(),
                });
            }
        }
    }

    /// Takes work that is due.
    pub(super) fn take(&mut self, now: Timestamp) -> Option<Work> {
        if let Some(work) = self.ready.pop_first() {
            return Some(work);
        }
        if self.planned.first()?.0 > now {
            return None;
        }
        self.planned.pop_first().map(|(_, work)| work)
    }

    /// When there is something to do; the beginning of time for at once.
    pub fn next(&self) -> Option<Timestamp> {
        if !self.ready.is_empty() {
            return Some(Timestamp::MIN);
        }
        self.planned.first().map(|(at, _)| *at)
    }

    /// Notes a write.
    pub(crate) fn written(
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
            if matches!(&**table, "persistentvolumeclaims" | "persistentvolumes") {
                let (table, key) = here();
                self.push(Work::Unused { table, key });
            }
            if head.finalizers.is_empty() && **table == *"pods" {
                let (table, key) = here();
                self.plan(at, Work::Expired { table, key });
            }
        }
    }

    /// Notes a removal.
    pub(crate) fn removed(&mut self, resource: &Resource, stored: &Stored, store: &Store) {
        let head = &stored.head;
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
            // Where the owner is kept is found by who is waiting: there are few.
            if let Some((table, key)) = store.find_uid_deleting(&owner.uid) {
                self.push(Work::Owner { table, key });
            }
        }
    }
}
