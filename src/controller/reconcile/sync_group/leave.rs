//! Syncs that the group no longer wants.
//!
//! A cluster leaves if its labels no longer match or its Cluster is deleted; an entry leaves if it is removed from the
//! group. The plan decides when a Sync is removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;
use starling_api::{Cluster, DeletionPolicy, Deletions, SyncResource, UnselectedClusters};
use starling_core::clock_jumps::ClockJumps;
use starling_core::deletion_approval::ENDING;
use starling_core::deletion_budget::{self, BudgetClock, BudgetLimits, Left};
use starling_core::deletion_forecast::{DeletionForecast, ObjectTotals};
use starling_core::deletion_grant::objects_after;
use starling_core::ids::{ClusterName, SyncName};
use starling_core::membership::{
    Deselection, HeldDeselection, Members, MembersOf, deselection, deselection_digest, unselected_since,
    unselected_status,
};
use starling_core::plan::{LeavingCause, LeavingSync, Place, Reach};
use starling_core::rollout::{Removal, Rolling};

use super::super::cluster::reach;
use super::super::group_state::is_abandoned;
use super::super::sync::depends_on;
use super::observe::Group;
use crate::controller::cache::Cache;
use crate::controller::caches::removal_times::RemovalTimes;
use crate::controller::context::GroupContext;
use crate::controller::deletion_budgets::BudgetContext;
use crate::controller::hub::HubError;
use crate::controller::live_approvals;
use crate::controller::object_key::ObjectKey;
use crate::controller::removal::is_decided;
use crate::controller::waits;

/// The clusters that are about to leave.
#[derive(Default)]
pub(super) struct Leaving {
    clusters: BTreeSet<ClusterName>,
    /// Too many clusters at once: no cluster leaves, and no more clusters start.
    pub(super) held: Option<HeldDeselection>,
    /// The time at which the set of leaving clusters has not changed for long enough.
    settles_at: Timestamp,
    /// Since when each cluster with Syncs is not selected.
    since: BTreeMap<ClusterName, Timestamp>,
    /// When the removals of the Syncs that are being deleted began, by the name of the Sync.
    removing: BTreeMap<SyncName, Timestamp>,
    clock_jumps: ClockJumps,
    /// True if the list of Clusters is complete: absence from an incomplete list means nothing.
    is_known: bool,
    /// The stages and windows of the clusters with Syncs that the group does not select, by name.
    places: BTreeMap<ClusterName, Place>,
    /// The entries whose objects stay ([`kept_entries`]).
    pub(super) kept: Vec<String>,
    /// Those of these clusters that exist and are not ready. One that is gone has nothing to wait for.
    away: BTreeSet<ClusterName>,
}

impl Leaving {
    /// Finds the clusters that are about to leave, in complete lists. Only the controller has observed since when the
    /// set has not changed; the time is a few seconds.
    pub(super) fn in_lists(group: &Group, clusters: &Cache<Cluster>, now: Timestamp) -> Self {
        Self {
            settles_at: now,
            removing: removing(group, &RemovalTimes::default(), now),
            is_known: true,
            kept: kept_entries(group),
            ..Self::deselected(group, clusters, now.into())
        }
    }

    fn deselected(group: &Group, known: &Cache<Cluster>, clock: BudgetClock<'_>) -> Self {
        let unselected = unselected(group);
        // In most cases no cluster leaves.
        if unselected.is_empty() {
            return Self::default();
        }
        let (clusters, held) = match deselected(group, clock) {
            Deselection::Free(clusters) | Deselection::Approved(clusters) => (clusters, None),
            Deselection::Held(held) => (BTreeSet::new(), Some(held)),
        };
        let place = |name: &str| {
            let cluster = known.get(&ObjectKey::new(&group.key.namespace, name));
            let place = cluster.map(|cluster| group.strategy.place(cluster.labels()));
            (name.into(), place.unwrap_or_else(|| group.strategy.last_place()))
        };
        let is_away = |name: &&&str| {
            let cluster = known.get(&ObjectKey::new(&group.key.namespace, **name));
            cluster.is_some_and(|cluster| reach(&cluster) != Reach::Ready)
        };
        let away = unselected.iter().filter(|name| is_away(name));
        let away = away.map(|name| ClusterName::from(*name)).collect();
        let lost = held
            .as_ref()
            .map_or(&clusters, |held: &HeldDeselection| &held.lost);
        Self {
            since: unselected_since(recorded(group), lost, clock.now),
            away,
            clusters,
            held,
            places: unselected.into_iter().map(place).collect(),
            ..Self::default()
        }
    }

    /// Returns the clusters that are not selected, as status records them. In an incomplete list, every cluster may be
    /// missing.
    pub(super) fn status(&self, group: &Group) -> Vec<UnselectedClusters> {
        if self.is_known {
            return unselected_status(&self.since);
        }
        recorded(group).to_vec()
    }

    fn unselected(&self, group: &Group, cluster: &str) -> LeavingCause {
        let place = self.places.get(cluster).cloned();
        let Place { stage, windows, .. } = place.unwrap_or_else(|| group.strategy.last_place());
        let since = self.since.get(cluster).copied();
        let grace = group.object.spec.unselected_grace.as_std();
        let grace_ends = since.map(|since| self.clock_jumps.due(since, grace).unwrap_or(Timestamp::MAX));
        LeavingCause::ClusterUnselected {
            settles_at: grace_ends.map_or(self.settles_at, |ends| ends.max(self.settles_at)),
            stage,
            windows,
        }
    }
}

fn recorded(group: &Group) -> &[UnselectedClusters] {
    let status = group.object.status.as_ref();
    status.map_or(&[], |status| &status.unselected)
}

/// Returns the clusters with Syncs of the group that the group does not select.
fn unselected(group: &Group) -> Vec<&str> {
    let mut selected = group.clusters.keys().map(ClusterName::as_str).peekable();
    let clusters = group.syncs.clusters().map(|(cluster, _)| cluster);
    let unselected = clusters.filter(|cluster| {
        while selected.next_if(|name| name < cluster).is_some() {}
        selected.next_if(|name| name == cluster).is_none()
    });
    unselected.collect()
}

/// Finds the clusters that are about to leave.
pub(super) fn observe(
    context: GroupContext<'_>,
    group: &Group,
    now: Timestamp,
    clock_jumps: &ClockJumps,
) -> Leaving {
    let clock = BudgetClock {
        now,
        jumps: clock_jumps,
    };
    let leaving = Leaving::deselected(group, &context.objects.clusters, clock);
    let lost = leaving.held.as_ref().map_or(&leaving.clusters, |held| &held.lost);
    let pending = &context.caches.pending_deselections;
    let since = pending.since(&group.key, lost, now);
    let times = &context.caches.removal_times;
    times.observe(&group.key, group.syncs.values().map(|sync| &**sync), now);
    Leaving {
        removing: removing(group, times, now),
        settles_at: waits::from(since, waits::DESELECTION_SETTLE),
        is_known: context.objects.clusters.is_synced(),
        clock_jumps: clock_jumps.clone(),
        kept: kept_entries(group),
        ..leaving
    }
}

/// Returns when the removals of the Syncs that are being deleted began.
fn removing(group: &Group, times: &RemovalTimes, now: Timestamp) -> BTreeMap<SyncName, Timestamp> {
    let since =
        |sync: &Arc<SyncResource>| Some((sync.name_any().into(), times.since(&group.key, sync, now)?));
    group.syncs.values().filter_map(since).collect()
}

/// Returns the clusters that left within the window of the deletion budget. Those whose objects stay do not
/// count.
fn recently_left(group: &Group, clock: BudgetClock<'_>) -> Left {
    let spec = &group.object.spec;
    if spec.when_unselected == DeletionPolicy::Orphan {
        return Left::default();
    }
    let status = group.object.status.as_ref();
    let deletions = status.and_then(|status| status.deletions.as_ref());
    let window = BudgetLimits::of_group(spec.deletion_budget).window;
    let counts = deletions.map_or(&[][..], |deletions| &deletions.counts);
    deletion_budget::left(window, counts, clock)
}

/// Returns the clusters whose leave is counted or approved, and under way.
fn going(group: &Group) -> BTreeSet<ClusterName> {
    let status = group.object.status.as_ref();
    let deletions = status.and_then(|status| status.deletions.as_ref());
    deletions.map_or_else(BTreeSet::new, |deletions| {
        deletions.leaving.iter().map(ClusterName::from).collect()
    })
}

/// Forgets the counted and approved clusters that have left or are selected again, and used approvals that no longer
/// exist. Repairs the counts of the group.
///
/// # Errors
/// [`HubError`].
pub(super) async fn forget(context: GroupContext<'_>, group: &Group) -> Result<(), HubError> {
    context
        .budgets
        .repair(budget_context(context), &group.object)
        .await?;
    let approvals = group.deletion_approvals();
    let used = match &group.object.status {
        // Of a group that is created again, or that has lost its status: an approval that it has already was given
        // before, and nobody knows whether it was used.
        None => Some(approvals.used_before(context.clock.now())).filter(|used| !used.is_empty()),
        Some(_) => approvals.forgotten(),
    };
    if going(group).is_empty() && used.is_none() {
        return Ok(());
    }
    let lost = unselected(group).into_iter().map(ClusterName::from).collect();
    context
        .budgets
        .forget_left(budget_context(context), &group.key, &lost, used)
        .await
}

fn members_of<'a>(group: &'a Group, identities: &'a BTreeMap<ClusterName, String>) -> MembersOf<'a> {
    MembersOf {
        namespace: &group.key.namespace,
        name: &group.key.name,
        identities,
    }
}

/// Returns the identities of the members that the Syncs of the group were applied to, by cluster. The Cluster may be
/// gone.
fn identities(group: &Group) -> BTreeMap<ClusterName, String> {
    let known = group.syncs.iter().filter_map(|(cluster, _, sync)| {
        let id = &sync.status.as_ref()?.last_applied_cluster_id;
        (!id.is_empty()).then(|| (cluster.into(), id.clone()))
    });
    known.collect()
}

fn deselected(group: &Group, clock: BudgetClock<'_>) -> Deselection {
    let previous = group
        .syncs
        .iter()
        .filter(|(.., sync)| !is_decided(sync))
        .map(|(cluster, ..)| cluster.into())
        .collect();
    let selected = group.clusters.keys().cloned().collect();
    deselection(Members {
        previous: &previous,
        selected: &selected,
        unknown: &group.unreadable,
        allowed: group.object.spec.max_unselected,
        recent: recently_left(group, clock),
        going: &going(group),
        group: members_of(group, &identities(group)),
        approved: &group.deletion_approvals().digests(),
    })
}

/// Returns the Syncs that the group no longer wants during `rolling`, by name.
pub(super) fn leaving(
    group: &Group,
    leaving: &Leaving,
    rolling: &Rolling,
    now: Timestamp,
) -> BTreeMap<SyncName, LeavingSync> {
    let is_lost = |cluster: &str| {
        leaving
            .held
            .as_ref()
            .is_some_and(|held| held.lost.contains(cluster))
    };
    let untils = budget_untils(group, leaving, now);
    let syncs = group.syncs.iter();
    syncs
        .filter_map(|(cluster, entry, sync)| {
            let began = || leaving.removing.get(sync.name_any().as_str()).copied();
            let removing_since = is_decided(sync).then(began).flatten();
            // Its last removal is still under way.
            let is_leaving = || removing_since.is_some() && leaving.places.contains_key(cluster);
            let (cause, policy) = if leaving.clusters.contains(cluster) || is_lost(cluster) || is_leaving() {
                if !leaving.is_known {
                    return None;
                }
                let cause = leaving.unselected(group, cluster);
                (cause, group.object.spec.when_unselected)
            } else if rolling.snapshot.entry(entry).is_none() {
                if removing_since.is_none() && has_returned(group, rolling, entry) {
                    return None;
                }
                let policy = match leaving.kept.iter().any(|kept| kept == entry) {
                    true => DeletionPolicy::Orphan,
                    false => sync.spec.template.deletion_policy,
                };
                (LeavingCause::EntryRemoved, policy)
            } else {
                return None;
            };
            let loses =
                matches!(cause, LeavingCause::ClusterUnselected { .. }) && policy == DeletionPolicy::Delete;
            let not_ready = loses && leaving.away.contains(cluster) && !is_abandoned(sync);
            let budget_until = match removing_since {
                None if loses && !not_ready => untils.get(cluster).copied(),
                _ => None,
            };
            let leaving = LeavingSync {
                cluster: cluster.into(),
                entry: entry.into(),
                cause,
                policy,
                depends_on: depends_on(sync).into_iter().map(SyncName::from).collect(),
                removing_since,
                suspended: sync.spec.template.suspend,
                not_ready,
                budget_until,
                approval: None,
            };
            Some((sync.name_any().into(), leaving))
        })
        .collect()
}

/// Returns the entries with Syncs that delete their objects although the entry says, or said when it was in the spec,
/// that they stay. A release brings the policy of an entry to its Syncs, and none may have come in between.
fn kept_entries(group: &Group) -> Vec<String> {
    let deletes = |sync: &SyncResource| sync.spec.template.deletion_policy == DeletionPolicy::Delete;
    let entries: BTreeSet<&str> = { group.syncs.iter() }
        .filter(|(.., sync)| deletes(sync))
        .map(|(_, entry, _)| entry)
        .collect();
    let object = &group.object;
    let is_recorded = |entry: &str| {
        let status = object.status.as_ref();
        status.is_some_and(|status| status.kept_entries.iter().any(|kept| kept == entry))
    };
    let stays = |entry: &&str| {
        let wanted = object.spec.syncs.iter().find(|one| one.name == *entry);
        wanted.map_or_else(
            || is_recorded(entry),
            |wanted| wanted.template.deletion_policy == DeletionPolicy::Orphan,
        )
    };
    entries.into_iter().filter(stays).map(str::to_owned).collect()
}

/// Returns the names of the Syncs of entries that `rolling` lacks and that are in the group again. One of them may be
/// about to release its objects: somebody deleted it, or a process died before it marked the removal.
pub(super) fn returned(group: &Group, leaving: &Leaving, rolling: &Rolling) -> BTreeSet<SyncName> {
    let mut entries = group.object.spec.syncs.iter();
    if entries.all(|entry| rolling.snapshot.entry(&entry.name).is_some()) {
        return BTreeSet::new();
    }
    let is_leaving = |cluster: &str| {
        let lost = leaving.held.as_ref().map_or(&leaving.clusters, |held| &held.lost);
        lost.contains(cluster)
    };
    let is_back = |(cluster, entry, sync): &(&str, &str, &Arc<SyncResource>)| {
        !is_leaving(cluster)
            && !is_decided(sync)
            && rolling.snapshot.entry(entry).is_none()
            && has_returned(group, rolling, entry)
    };
    let syncs = group.syncs.iter().filter(is_back);
    syncs.map(|(.., sync)| sync.name_any().into()).collect()
}

/// Reports whether an entry that the release lacks is in the group again: the next release has it, and would create
/// what this one deletes. A rollback takes an entry away although the group has it.
fn has_returned(group: &Group, rolling: &Rolling, entry: &str) -> bool {
    let is_wanted = group.object.spec.syncs.iter().any(|one| one.name == entry);
    is_wanted && rolling.rollout.direction.is_forward()
}

/// Returns when the deletion budget of the group allows to delete the objects of the clusters that leave, by cluster.
/// The others may go now, or not without an approval. An approval is of a list, which the inventory of each Sync has:
/// the Sync asks for it. Clusters that leave in one pass are judged together, after the Syncs that are being deleted
/// and have not asked yet.
fn budget_untils(group: &Group, leaving: &Leaving, now: Timestamp) -> BTreeMap<ClusterName, Timestamp> {
    let lost = leaving.held.as_ref().map_or(&leaving.clusters, |held| &held.lost);
    if lost.is_empty() || group.object.spec.when_unselected != DeletionPolicy::Delete {
        return BTreeMap::new();
    }
    let clock = BudgetClock {
        now,
        jumps: &leaving.clock_jumps,
    };
    let limits = BudgetLimits::of_group(group.object.spec.deletion_budget);
    let status = group.object.status.as_ref();
    let counted = status.and_then(|status| status.deletions.as_ref());
    let counted = counted.map_or(&[][..], |deletions| &deletions.counts);
    let syncs = group.syncs.iter();
    let of = ObjectTotals::of(syncs.map(|(cluster, _, sync)| (cluster, sync.status.as_ref())));
    let mut forecast = DeletionForecast::new(limits, counted, of, clock);
    let is_new = |cluster: &str| {
        let mut syncs = group.syncs.on(cluster);
        !syncs.any(|sync| deletion_budget::has_deleted(recorded_by(sync), limits.window, clock))
    };
    for (cluster, _, sync) in group.syncs.iter() {
        let is_asking = is_decided(sync)
            && sync.spec.template.deletion_policy == DeletionPolicy::Delete
            && !is_granted_end(sync);
        if is_asking {
            forecast.lose(cluster, objects_of(sync), is_new(cluster));
        }
    }
    // Those that may leave first are asked first.
    let mut order: Vec<(Option<&Timestamp>, &ClusterName)> = lost
        .iter()
        .map(|cluster| (leaving.since.get(cluster), cluster))
        .collect();
    order.sort();
    let until = |(_, cluster): (_, &ClusterName)| {
        let is_away = leaving.away.contains(cluster);
        let is_staying = |sync: &&Arc<SyncResource>| !is_decided(sync) && (!is_away || is_abandoned(sync));
        let staying = group.syncs.on(cluster).filter(is_staying);
        let objects = staying.map(|sync| objects_of(sync)).sum();
        let until = forecast.lose(cluster, objects, is_new(cluster))?;
        Some((cluster.clone(), until))
    };
    order.into_iter().filter_map(until).collect()
}

fn recorded_by(sync: &SyncResource) -> Option<&Deletions> {
    sync.status.as_ref()?.deletions.as_ref()
}

fn inventory(sync: &SyncResource) -> usize {
    let status = sync.status.as_ref();
    status.map_or(0, |status| status.inventory.objects as usize)
}

/// Returns the number of objects of a Sync without those whose deletion is in progress.
fn objects_of(sync: &SyncResource) -> usize {
    objects_after(inventory(sync), recorded_by(sync))
}

/// Reports whether the objects of a Sync that is being deleted were counted or approved.
fn is_granted_end(sync: &SyncResource) -> bool {
    let grant = recorded_by(sync).and_then(|deletions| deletions.grant.as_ref());
    grant.is_some_and(|grant| grant.target == ENDING)
}

/// Counts the clusters that leave the selection and lose their objects, before the first of their Syncs is deleted. At
/// the time of the pass, so that an approval is judged as the plan judged it.
///
/// # Errors
/// [`HubError`].
pub(super) async fn count(
    context: GroupContext<'_>,
    group: &Group,
    removals: &[Removal],
    now: Timestamp,
) -> Result<(), HubError> {
    let current = context.objects.groups.get(&group.key);
    let status = current.as_ref().and_then(|group| group.status.as_ref());
    let deletions = status.and_then(|status| status.deletions.as_ref());
    // Counted before, or approved with all others. That one of its Syncs is being deleted says nothing: it may be of an
    // entry that was removed, whose objects hang on a finalizer.
    let is_counted = |cluster: &ClusterName| {
        deletions.is_some_and(|deletions| deletions.leaving.iter().any(|left| cluster == left))
    };
    let counts = |removal: &&Removal| {
        removal.cause != LeavingCause::EntryRemoved && removal.policy != DeletionPolicy::Orphan
    };
    let clusters = removals.iter().filter(counts).map(|removal| &removal.cluster);
    let clusters = clusters.filter(|cluster| !is_counted(cluster));
    let clusters: BTreeSet<ClusterName> = clusters.cloned().collect();
    if clusters.is_empty() {
        return Ok(());
    }
    let jumps = context.clock.jumps();
    let clock = BudgetClock { now, jumps: &jumps };
    let approved = match deselected(group, clock) {
        Deselection::Approved(clusters) => {
            let digest = deselection_digest(members_of(group, &identities(group)), &clusters);
            let used = group.deletion_approvals().used_after(&digest, now);
            let before = deletions.map_or(&[][..], |deletions| &*deletions.used);
            let of = live_approvals::Subject {
                group: Some(group.key.clone()),
                sync: None,
            };
            if !live_approvals::are_there(context.hub, &of, before, &used).await? {
                return Err(HubError::ApprovalTakenBack {
                    group: group.key.to_string(),
                });
            }
            Some((clusters, used))
        }
        Deselection::Free(_) | Deselection::Held(_) => None,
    };
    context
        .budgets
        .count_left(budget_context(context), &group.key, &clusters, approved)
        .await
}

fn budget_context(context: GroupContext<'_>) -> BudgetContext<'_> {
    BudgetContext {
        hub: context.hub,
        objects: context.objects,
        handlers: context.handlers,
        clock: context.clock,
        now: context.clock.now(),
    }
}
