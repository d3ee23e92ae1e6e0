//! The entries that the release no longer has, on the clusters that still have their Syncs.
//!
//! A removed entry is a part of the release like the others: a cluster is done without it only. The cluster loses it
//! after the entries of the release are done there, since one of them may take over its objects, and it takes a slot,
//! an open stage and an open window for that, as a start does.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::classifier::Classifier;
use super::leaving::{LeavingCause, LeavingSync};
use super::state::{Class, Failed};
use super::types::{FailureReason, HoldReason, PlanInput, Reach};
use crate::ids::EntryName;

/// The Syncs of removed entries, by cluster.
pub(super) struct RemovedEntries<'a>(BTreeMap<&'a str, Vec<&'a LeavingSync>>);

impl<'a> RemovedEntries<'a> {
    pub(super) fn of(input: &'a PlanInput) -> Self {
        let mut removed: BTreeMap<&str, Vec<&LeavingSync>> = BTreeMap::new();
        for sync in input.leaving.values() {
            // The release of an automatic rollback is complete without a removal that waits for a person.
            if sync.cause == LeavingCause::EntryRemoved && !sync.awaits_approval() {
                removed.entry(&sync.cluster).or_default().push(sync);
            }
        }
        Self(removed)
    }

    pub(super) fn on(&self, cluster: &str) -> &[&'a LeavingSync] {
        self.0.get(cluster).map_or(&[], Vec::as_slice)
    }
}

/// Returns the entries whose removal has not begun.
pub(super) fn removable<'a>(removed: &[&'a LeavingSync]) -> Vec<&'a EntryName> {
    let removable = removed.iter().filter(|sync| sync.removing_since.is_none());
    removable.map(|sync| &sync.entry).collect()
}

impl Classifier<'_, '_> {
    /// Returns the class of a cluster on which all entries of the release are done.
    pub(super) fn class_without_missing(&self) -> Class {
        if self.removed.is_empty() {
            return Class::Done;
        }
        if let Some(reason) = self.suspended() {
            return Class::Hold(reason);
        }
        let waiting = self.removed.iter().filter(|sync| sync.removing_since.is_none());
        if let Some(sync) = waiting.clone().find(|sync| sync.suspended) {
            return Class::Hold(HoldReason::SyncSuspended {
                entry: sync.entry.clone(),
            });
        }
        let begun = self.removing_since().is_some();
        let lost = self.cluster.reach != Reach::Ready;
        match (self.not_ready(), begun) {
            (None, _) if waiting.count() > 0 => Class::Startable { begun },
            (Some(reason), false) => Class::Hold(reason),
            // A Sync whose removal has begun is removed as soon as its cluster can be reached.
            _ => match self.removing_until() {
                Some(deadline) => Class::InFlight {
                    deadline: Some(deadline),
                    lost,
                },
                None => Class::Failed(Failed {
                    reason: if lost {
                        FailureReason::LostAfterAdmission
                    } else {
                        FailureReason::ProgressDeadlineExceeded
                    },
                    retry_at: None,
                }),
            },
        }
    }

    /// Returns until when the cluster is in flight because it loses entries; `None`: it is not.
    pub(super) fn removing_until(&self) -> Option<Timestamp> {
        self.deadline(self.removing_since())
            .filter(|deadline| *deadline > self.input.now)
    }

    fn removing_since(&self) -> Option<Timestamp> {
        self.removed.iter().filter_map(|sync| sync.removing_since).max()
    }
}
