//! Deletions of objects on members, as the rules about deletions see them.

use jiff::{SignedDuration, Timestamp};
use starling_api::{CONFIRM, DELETION};

use super::counted::is_prune_granted;
use super::deletions::{had_begun, is_being_deleted, is_recreation};
use super::targets::attempt_limit;
use crate::judge::history::{Key, Verb, Write};
use crate::judge::hub::{earlier, span};
use crate::judge::member::{Member, is_own, owner, uid};
use crate::judge::render::annotation;
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::{Owner, SyncTimeline, World};

/// The begin of the deletion of an object by Starling.
pub(super) struct Deletion<'d> {
    pub(super) world: &'d World<'d>,
    pub(super) cluster: &'d str,
    pub(super) member: &'d Member<'d>,
    pub(super) write: &'d Write,
    /// The owner label of the object. If the object lost it, that of the inventory with the object.
    pub(super) label: String,
}

/// Returns the begun deletions on all members, by cluster and in order. Those of attempts that were in progress
/// when the management cluster was set back are left out: it no longer has what allowed them. What is written later
/// breaks [`Rule::AfterRestore`].
pub(super) fn deletions<'d>(world: &'d World<'_>) -> Vec<Deletion<'d>> {
    let mut found = Vec::new();
    for (&cluster, members) in &world.members {
        for member in members {
            let deletes = member.own_writes.iter().map(|own| own.write);
            let begun = deletes.filter(|write| write.verb != Verb::Write && !had_begun(member, write));
            found.extend(begun.map(|write| Deletion {
                world,
                cluster,
                member,
                write,
                label: label_of(member, write),
            }));
        }
    }
    found.retain(|deletion| !deletion.follows_restore());
    found
}

/// Returns the owner label of an object. If the object lost it, the inventory with the object tells its owner.
pub(super) fn label_of(member: &Member<'_>, write: &Write) -> String {
    let label = owner(&write.object);
    if !label.is_empty() {
        return label.to_owned();
    }
    let key = write.key();
    let inventories = member.inventories(write.at).into_iter();
    let mut lists = inventories.filter(|(_, listed, listed_uid)| {
        *listed == key && (listed_uid.is_empty() || listed_uid == uid(&write.object))
    });
    lists.next().map(|(of, ..)| of).unwrap_or_default()
}

impl<'d> Deletion<'d> {
    pub(super) fn key(&self) -> Key {
        self.write.key()
    }

    pub(super) fn at(&self) -> Timestamp {
        self.write.at
    }

    pub(super) fn uid(&self) -> &'d str {
        uid(&self.write.object)
    }

    pub(super) fn owner(&self) -> Option<&'d Owner> {
        self.world.owner(&self.label)
    }

    /// Returns the Syncs of the owner on the cluster.
    pub(super) fn timelines(&self) -> Vec<&'d SyncTimeline<'d>> {
        let owner = self.owner();
        owner.map_or_else(Vec::new, |owner| self.world.timelines(owner, self.cluster))
    }

    /// Whether the object goes because the Sync is being deleted with its objects, and not by a prune that was under
    /// way when that began.
    pub(super) fn is_end(&self) -> bool {
        let timelines = self.timelines();
        let ends = |timeline: &&SyncTimeline<'_>| is_being_deleted(timeline, self.write);
        timelines.iter().any(ends) && !timelines.iter().any(|timeline| self.is_still_pruned(timeline))
    }

    /// Whether an attempt that began before the deletion of the Sync may prune the object: the target lacks it, and the
    /// grant is for a target.
    fn is_still_pruned(&self, timeline: &SyncTimeline<'_>) -> bool {
        // The last target before the deletion of the Sync ended it.
        let mut targets = timeline.targets.iter();
        let Some(target) = targets.rfind(|target| target.at <= self.at()) else {
            return false;
        };
        let limit = attempt_limit(self.world, span(target.desired.template.timeout));
        let before = timeline.track.at(earlier(self.at(), limit));
        before.is_none_or(|before| before.object.metadata.deletion_timestamp.is_none())
            && timeline.track.at(self.at()).is_some_and(is_prune_granted)
            && target.renders(&self.key()).is_none()
    }

    /// Whether a target of the owner renders the object, so that it was deleted to be made anew.
    pub(super) fn is_recreation(&self) -> bool {
        let is_rendered = self.timelines().iter().any(|timeline| {
            let target = timeline.target_at(self.at());
            target.is_some_and(|target| target.renders(&self.key()).is_some())
        });
        is_rendered && !self.is_end() && is_recreation(self.member, self.write)
    }

    /// Whether an attempt may have decided this before the management cluster was set back.
    fn follows_restore(&self) -> bool {
        let from = earlier(self.at(), self.limit());
        let mut restores = self.world.history.hub_set_backs();
        restores.any(|back| back > from && back <= self.at())
    }

    /// Returns how long an attempt may continue with what it knew when it began.
    pub(super) fn limit(&self) -> SignedDuration {
        let timelines = self.timelines().into_iter();
        let targets = timelines.filter_map(|timeline| timeline.target_at(self.at()));
        let timeout = targets.map(|target| span(target.desired.template.timeout)).max();
        attempt_limit(self.world, timeout.unwrap_or(SignedDuration::ZERO))
    }

    /// Whether the deletion of the object deletes others: by its kind, or because an operator said so of the kind.
    pub(super) fn takes_others_along(&self) -> bool {
        let key = self.key();
        let known = [
            "Namespace",
            "CustomResourceDefinition",
            "PersistentVolume",
            "PersistentVolumeClaim",
        ];
        known.contains(&key.kind.as_str()) || self.is_confirmed_kind()
    }

    /// Whether an operator added the kind to those whose deletion deletes others.
    pub(super) fn is_confirmed_kind(&self) -> bool {
        let kind = (self.write.group.clone(), self.write.kind.clone());
        self.world.history.confirmed_kinds.contains(&kind)
    }

    /// Whether the object asks for an approval of its deletion.
    pub(super) fn asks_for_approval(&self) -> bool {
        annotation(&self.write.object, DELETION) == CONFIRM
    }

    /// Whether the object was there before Starling wrote it.
    pub(super) fn was_adopted(&self) -> bool {
        let versions = self.member.versions(&self.key()).iter();
        let mut same = versions.filter(|version| uid(&version.write.object) == self.uid());
        same.next().is_some_and(|first| !is_own(first.write))
    }

    pub(super) fn violation(&self, rule: Rule, message: impl Into<String>) -> Violation {
        Violation {
            rule,
            at: self.at(),
            cluster: Some(self.cluster.to_owned()),
            message: format!("{} was deleted {}", self.key(), message.into()),
        }
    }
}
