//! No write while suspended, without a slot, or after a restore.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use starling_api::conditions::{self, RESTORE_DETECTED};
use starling_api::{
    DELETIONS_MANAGER, FIELD_MANAGER, GROUP_MANAGER, INSTALLATION, INVENTORY_PREFIX, SYSTEM_NAMESPACE,
    SyncGroup,
};

use super::deletion::label_of;
use super::targets::attempt_limit;
use crate::judge::history::{Verb, Write};
use crate::judge::hub::{Id, after, earlier, span};
use crate::judge::member::{Member, text};
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::{SyncTimeline, World};

/// A write of Starling to an object of a Sync.
struct OwnWrite<'w> {
    world: &'w World<'w>,
    cluster: &'w str,
    member: &'w Member<'w>,
    write: &'w Write,
    label: String,
}

fn own_writes<'w>(world: &'w World<'_>) -> impl Iterator<Item = OwnWrite<'w>> {
    let members = world.members.iter();
    let members = members.flat_map(|(&cluster, members)| members.iter().map(move |member| (cluster, member)));
    members.flat_map(move |(cluster, member)| {
        member.own_writes.iter().map(move |own| OwnWrite {
            world,
            cluster,
            member,
            write: own.write,
            label: label_of(member, own.write),
        })
    })
}

impl<'w> OwnWrite<'w> {
    fn timelines(&self) -> Vec<&'w SyncTimeline<'w>> {
        let owner = self.world.owner(&self.label);
        owner.map_or_else(Vec::new, |owner| self.world.timelines(owner, self.cluster))
    }

    /// Returns how long an attempt may continue with what it knew when it began.
    fn limit(&self) -> SignedDuration {
        let timelines = self.timelines().into_iter();
        let targets = timelines.filter_map(|timeline| timeline.target_at(self.write.at));
        let timeout = targets.map(|target| span(target.desired.template.timeout)).max();
        attempt_limit(self.world, timeout.unwrap_or(SignedDuration::ZERO))
    }

    fn violation(&self, rule: Rule, what: &str) -> Violation {
        Violation {
            rule,
            at: self.write.at,
            cluster: Some(self.cluster.to_owned()),
            message: format!("{} was written {what}", self.write.key()),
        }
    }
}

/// Nothing is written to a member whose Cluster is suspended, or by a suspended Sync.
///
/// Evidence: Starling's writes, against the spec of the Cluster, and of the Sync of the object. A running attempt is
/// not stopped, so a suspension counts from `timeout` after the controller must have known of it.
pub(super) fn nothing_is_written_while_suspended(world: &World<'_>) -> Vec<Violation> {
    let suspended = own_writes(world).filter(|own| {
        let (from, at) = (earlier(own.write.at, own.limit()), own.write.at);
        let track = world.hub.cluster(own.cluster);
        let by_cluster = track.is_some_and(|track| track.always(from, at, |cluster| cluster.spec.suspend));
        let mut timelines = own.timelines().into_iter();
        by_cluster
            || timelines.any(|timeline| timeline.track.always(from, at, |sync| sync.spec.template.suspend))
    });
    suspended
        .map(|own| own.violation(Rule::Suspended, "while suspended"))
        .collect()
}

/// Nothing is written to a member for an admission whose slot its Sync gave back, before it is admitted again.
///
/// Evidence: Starling's writes, against the status and the annotation of the Sync. No attempt is under way when the
/// slot is given back. A management cluster that is set back forgets that.
pub(super) fn nothing_is_written_without_a_slot(world: &World<'_>) -> Vec<Violation> {
    let returned = own_writes(world).filter(|own| {
        own.timelines().into_iter().any(|timeline| {
            // What the end of a Sync deletes is of no admission.
            let sync = timeline.track.at(own.write.at);
            if sync.is_none_or(|sync| sync.object.metadata.deletion_timestamp.is_some()) {
                return false;
            }
            let target = timeline.target_at(own.write.at);
            let returned = target.and_then(|target| target.returned);
            returned.is_some_and(|(at, _)| at < own.write.at && !hub_was_set_back(world, at, own.write.at))
        })
    });
    returned
        .map(|own| own.violation(Rule::WithoutSlot, "after its slot was given back"))
        .collect()
}

fn hub_was_set_back(world: &World<'_>, from: Timestamp, to: Timestamp) -> bool {
    let history = world.history;
    let mut set_backs = history.set_backs.iter();
    set_backs.any(|(at, name)| !history.members.contains_key(name) && from <= *at && *at <= to)
}

/// After a restore of the management cluster no object is written on a member, until a person releases it.
///
/// Evidence: the condition `RestoreDetected` of the group of the Sync. And whether or not anything is reported: a
/// management cluster that was set back, and an inventory on the member with the number of a write that it does not
/// know any more. Only a person can add the number again. An attempt under way is not stopped.
pub(super) fn nothing_is_written_after_a_restore(world: &World<'_>) -> Vec<Violation> {
    let held = own_writes(world).filter(|own| is_reported(own) || is_unknown(own));
    held.map(|own| own.violation(Rule::AfterRestore, "after a restore"))
        .collect()
}

/// After a restore of the management cluster no cluster is admitted, and no rollout begins, until a person releases it.
///
/// Evidence: the condition `RestoreDetected` of the group, and the finding in the ConfigMap of the installation, in the
/// version just before the write. A group makes one pass at a time, so none that began before the report follows it.
pub(super) fn nothing_is_decided_after_a_restore(world: &World<'_>) -> Vec<Violation> {
    let hub = &world.history.hub;
    let mut violations = Vec::new();
    let mut is_found = false;
    for (index, write) in hub.iter().enumerate() {
        let decides = is_found && is_starling(&write.manager) && decides_while_reported(world, index, write);
        if decides {
            violations.push(Violation {
                rule: Rule::AfterRestore,
                at: write.at,
                cluster: None,
                message: format!("{} {} was written after a restore", write.kind, write.name),
            });
        }
        if let Some(map) = installation(std::iter::once(write)).next() {
            is_found = map.verb != Verb::Delete && !text(&map.object, "/data/restoreDetected").is_empty();
        }
    }
    violations
}

/// Whether a write admits a cluster, or begins a rollout, while the group reports a restore.
fn decides_while_reported(world: &World<'_>, index: usize, write: &Write) -> bool {
    let group_of = |name: &str| {
        let group = world.hub.groups.get(&Id::new(&write.namespace, name))?;
        group.before(index).map(|version| &version.object)
    };
    match write.kind.as_str() {
        "Sync" if write.manager == GROUP_MANAGER => {
            group_of(text(&write.object, "/spec/groupRef/name")).is_some_and(is_set_back)
        }
        "SyncGroup" => group_of(&write.name).is_some_and(|before| {
            let begun = before.status.as_ref().and_then(|status| status.rollout.as_ref());
            let begun = begun.map(|rollout| rollout.start_time.as_str());
            let begins = write.object.pointer("/status/rollout/startTime");
            is_set_back(before) && begins.and_then(Value::as_str) != begun
        }),
        _ => false,
    }
}

fn is_reported(own: &OwnWrite<'_>) -> bool {
    let from = earlier(own.write.at, own.limit());
    own.timelines().iter().any(|timeline| {
        let groups = timeline.owner_group();
        let groups = groups.and_then(|(namespace, name)| own.world.hub.groups.get(&Id::new(namespace, name)));
        groups.is_some_and(|groups| groups.always(from, own.write.at, is_set_back))
    })
}

/// Whether a group reports that the management cluster was set back.
pub(super) fn is_set_back(group: &SyncGroup) -> bool {
    let status = group.status.as_ref();
    let found = status.and_then(|status| conditions::find(&status.conditions, RESTORE_DETECTED));
    found.is_some_and(|condition| condition.status == "True")
}

/// Whether the inventory had the number of a write that the management cluster lost, and no person released it.
fn is_unknown(own: &OwnWrite<'_>) -> bool {
    let history = own.world.history;
    let set_backs = history.set_backs.iter();
    let of_hub = set_backs.filter(|(_, name)| !history.members.contains_key(name));
    { of_hub }.any(|(back, _)| {
        let is_later = own.write.at > after(*back, own.limit());
        // A member that was set back itself may have lost the number.
        let set_backs = &history.set_backs;
        let is_later = is_later
            && !{ set_backs.iter() }
                .any(|(at, name)| name == own.cluster && at > back && *at <= own.write.at);
        let number = number_on(own.member, &own.label, *back);
        is_later
            && number.is_some_and(|number| {
                let knows = |map: Option<&Write>| map.is_some_and(|map| knows(&map.object, &number));
                let at_restore = installation(history.hub.iter().filter(|write| write.at <= *back)).last();
                let later = history
                    .hub
                    .iter()
                    .filter(|write| write.at > *back && write.at <= own.write.at);
                let is_released = |write: &&Write| {
                    let mut releases = history.releases.iter();
                    !is_starling(&write.manager) || releases.any(|at| at > back && *at <= write.at)
                };
                let mut by_others = installation(later).filter(is_released);
                !knows(at_restore) && !by_others.any(|map| knows(Some(map)))
            })
    })
}

/// Returns the versions of the ConfigMap with the numbers of writes.
fn installation<'h>(writes: impl Iterator<Item = &'h Write>) -> impl Iterator<Item = &'h Write> {
    writes.filter(|write| {
        (write.kind.as_str(), write.namespace.as_str(), write.name.as_str())
            == ("ConfigMap", SYSTEM_NAMESPACE, INSTALLATION)
    })
}

fn is_starling(manager: &str) -> bool {
    [FIELD_MANAGER, GROUP_MANAGER, DELETIONS_MANAGER].contains(&manager)
}

/// Returns the number of the last write in an inventory at a moment.
fn number_on(member: &Member<'_>, label: &str, at: Timestamp) -> Option<(String, u64)> {
    let name = format!("{INVENTORY_PREFIX}{label}");
    let mut maps = member
        .objects
        .iter()
        .filter(|(key, _)| key.namespace == SYSTEM_NAMESPACE && key.kind == "ConfigMap" && key.name == name);
    let (_, versions) = maps.next()?;
    let known = versions.partition_point(|version| version.write.at <= at);
    let last = versions[..known].last().filter(|last| !last.is_gone())?;
    let first = text(&last.write.object, "/data/inventory").lines().next()?;
    let number = first.split(' ').find_map(|word| word.strip_prefix("hub="))?;
    let (timeline, number) = number.split_once('/')?;
    Some((timeline.to_owned(), number.parse().ok()?))
}

/// Whether the ConfigMap has a number of a timeline: it was taken, or released.
fn knows(map: &Value, (timeline, number): &(String, u64)) -> bool {
    let known: Value = serde_json::from_str(text(map, "/data/writes")).unwrap_or_default();
    let taken = known["taken"][timeline].as_u64();
    let released: BTreeMap<String, Vec<(u64, u64)>> =
        serde_json::from_value(known["released"].clone()).unwrap_or_default();
    let mut ranges = released.get(timeline).into_iter().flatten();
    taken.is_some_and(|taken| *number <= taken)
        || ranges.any(|(first, last)| (first..=last).contains(&number))
}
