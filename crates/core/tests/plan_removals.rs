//! Removals in turn: a removed entry leaves the clusters like a release reaches them, and clusters that left lose their
//! objects one after the other.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use starling_api::{DeletionPolicy, RolloutStrategy};
use starling_core::clock_jumps::ClockJumps;
use starling_core::ids::SyncName;
use starling_core::plan::check::check;
use starling_core::plan::{
    Attribution, ClusterView, Decision, Direction, EntryView, FailureReason, HoldReason, LeavingCause,
    LeavingSync, ObservedSync, OperatorInput, Plan, PlanInput, Progress, PruneRequest, Reach, ReadStrategy,
    RemovalDecision, RemovalHold, RolloutVerdict, RolloutView, plan,
};

const NEW: &str = "new";

fn t(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

/// A fleet on which every entry of the release is done, and two more clusters that left.
struct Fleet {
    input: PlanInput,
}

impl Fleet {
    fn new(strategy: Value) -> Self {
        let strategy: RolloutStrategy = serde_json::from_value(strategy).unwrap();
        let clusters = ["a", "b", "c"].map(|name| (name.into(), done(name)));
        let syncs = ["a", "b", "c"].map(|cluster| leaving(cluster, "old", LeavingCause::EntryRemoved));
        let left = ["x", "y"].map(|cluster| {
            let cause = LeavingCause::ClusterUnselected {
                settles_at: t(0),
                stage: 0,
                windows: Vec::new(),
            };
            leaving(cluster, "app", cause)
        });
        let input = PlanInput {
            installation_slots: None,
            now: t(100),
            clock_jumps: ClockJumps::default(),
            strategy: ReadStrategy::new(&strategy).unwrap().strategy,
            rollout: RolloutView {
                release: NEW.into(),
                direction: Direction::Forward,
                started_at: t(0),
                stages: BTreeMap::new(),
                approvals: BTreeMap::new(),
            },
            operator: OperatorInput::default(),
            deleting: false,
            suspended: false,
            membership_held: false,
            clusters: clusters.into(),
            leaving: syncs.into_iter().chain(left).collect(),
            returned: Default::default(),
            prunes: Default::default(),
        };
        Self { input }
    }

    fn plan(&self) -> Plan {
        let planned = plan(&self.input);
        assert_eq!(check(&self.input, &planned), Ok(()), "{planned:#?}");
        planned
    }

    /// Executes a plan: what it removes is being removed from now on. Returns the names of the Syncs.
    fn remove(&mut self) -> Vec<SyncName> {
        let planned = self.plan();
        for stage in planned.stages {
            self.input.rollout.stages.insert(stage.name, stage.record);
        }
        let removals = planned.removals.into_iter();
        let removed = removals.filter(|(_, decision)| *decision == RemovalDecision::Remove);
        let removed: Vec<SyncName> = removed.map(|(name, _)| name).collect();
        for name in &removed {
            let sync = self.input.leaving.get_mut(name).unwrap();
            sync.removing_since = Some(self.input.now);
        }
        removed
    }

    fn is_gone(&mut self, name: &str) {
        self.input.leaving.remove(name).unwrap();
    }

    fn hold(&self, name: &str) -> RemovalHold {
        match self.plan().removals[name] {
            RemovalDecision::Hold { reason, .. } => reason,
            other => panic!("{name}: {other:?}"),
        }
    }
}

fn done(name: &str) -> ClusterView {
    let observed = ObservedSync {
        stored_admitted_at: None,
        target: Some(NEW.into()),
        release: NEW.into(),
        admitted_at: Some(t(0)),
        progress: Progress::healthy_since(t(10)),
        retried_for: None,
        suspended: false,
    };
    let entry = EntryView {
        wanted: Ok(NEW.into()),
        known_good: None,
        observed: Some(observed),
    };
    ClusterView {
        id: name.to_owned(),
        reach: Reach::Ready,
        stage: 0,
        windows: Vec::new(),
        entries: [("app".into(), entry)].into(),
    }
}

fn leaving(cluster: &str, entry: &str, cause: LeavingCause) -> (SyncName, LeavingSync) {
    let sync = LeavingSync {
        cluster: cluster.into(),
        entry: entry.into(),
        cause,
        policy: DeletionPolicy::Delete,
        depends_on: BTreeSet::new(),
        removing_since: None,
        suspended: false,
        not_ready: false,
        budget_until: None,
        approval: None,
    };
    (format!("web-{entry}-{cluster}").into(), sync)
}

/// Guards against an operator that goes while its instances stay, whose finalizers nobody runs then: the Sync of the
/// instances is suspended on a cluster that left.
#[test]
fn what_a_suspended_sync_depends_on_stays_with_it() {
    let mut fleet = Fleet::new(json!({"maxConcurrency": "100%"}));
    let unselected = || LeavingCause::ClusterUnselected {
        settles_at: t(0),
        stage: 0,
        windows: Vec::new(),
    };
    for entry in ["crds", "operator", "instances"] {
        fleet.input.leaving.extend([leaving("x", entry, unselected())]);
    }
    for (entry, on) in [("instances", "operator"), ("operator", "crds")] {
        let sync = fleet.input.leaving.get_mut(&*format!("web-{entry}-x")).unwrap();
        sync.depends_on = [format!("web-{on}-x").into()].into();
        sync.suspended = entry == "instances";
    }
    fleet.input.leaving.retain(|_, sync| sync.cause == unselected());
    assert_eq!(fleet.remove(), ["web-app-x", "web-app-y"]);
    assert_eq!(fleet.hold("web-instances-x"), RemovalHold::SyncSuspended);
    assert_eq!(fleet.hold("web-operator-x"), RemovalHold::DependentStays);
    assert_eq!(fleet.hold("web-crds-x"), RemovalHold::DependentStays);
    fleet.input.leaving.get_mut("web-instances-x").unwrap().suspended = false;
    assert_eq!(
        fleet.remove(),
        ["web-crds-x", "web-instances-x", "web-operator-x"]
    );
}

/// The objects of a suspended Sync of a deleted group stay with those of what it depends on. It goes last, so that a
/// plan that comes after a failed request still knows that.
#[test]
fn a_suspended_sync_of_a_deleted_group_goes_after_what_it_depends_on() {
    let mut fleet = deleted_group(json!({"maxConcurrency": "100%"}));
    let cause = fleet.sync("web-app-a").cause.clone();
    fleet.input.leaving.clear();
    for entry in ["crds", "operator", "instances"] {
        fleet.input.leaving.extend([leaving("a", entry, cause.clone())]);
    }
    for (entry, on) in [("instances", "operator"), ("operator", "crds")] {
        let sync = fleet.sync(&format!("web-{entry}-a"));
        sync.depends_on = [format!("web-{on}-a").into()].into();
        sync.suspended = entry == "instances";
    }
    for sync in fleet.input.leaving.values_mut() {
        sync.policy = DeletionPolicy::Orphan;
    }
    assert_eq!(fleet.hold("web-instances-a"), RemovalHold::SyncSuspended);
    assert_eq!(fleet.remove(), ["web-crds-a", "web-operator-a"]);
    // The request for one of them failed.
    fleet.sync("web-operator-a").removing_since = None;
    assert_eq!(fleet.hold("web-instances-a"), RemovalHold::SyncSuspended);
    assert_eq!(fleet.remove(), ["web-operator-a"]);
    assert_eq!(fleet.remove(), ["web-instances-a"]);
}

/// Guards against a group that is never gone: the entries of its spec have no cycle, but its Syncs are of two releases.
#[test]
fn suspended_syncs_of_a_deleted_group_that_need_each_other_do_not_wait() {
    let mut fleet = deleted_group(json!({"maxConcurrency": "100%"}));
    let cause = fleet.sync("web-app-a").cause.clone();
    fleet.input.leaving.clear();
    for (entry, on) in [("one", "two"), ("two", "one"), ("three", "two")] {
        fleet.input.leaving.extend([leaving("a", entry, cause.clone())]);
        let sync = fleet.sync(&format!("web-{entry}-a"));
        sync.depends_on = [format!("web-{on}-a").into()].into();
        (sync.suspended, sync.policy) = (true, DeletionPolicy::Orphan);
    }
    assert_eq!(fleet.hold("web-three-a"), RemovalHold::SyncSuspended);
    assert_eq!(fleet.remove(), ["web-one-a", "web-two-a"]);
    assert_eq!(fleet.remove(), ["web-three-a"]);
}

#[test]
fn clusters_lose_an_entry_and_leave_in_slots() {
    let mut fleet = Fleet::new(json!({"maxConcurrency": 2}));
    assert_eq!(fleet.remove(), ["web-old-a", "web-old-b"]);
    assert_eq!(fleet.remove(), Vec::<String>::new());
    assert_eq!(fleet.hold("web-old-c"), RemovalHold::ClusterWaits);
    assert_eq!(fleet.hold("web-app-x"), RemovalHold::NoSlot);
    fleet.is_gone("web-old-a");
    assert_eq!(fleet.remove(), ["web-old-c"]);
    fleet.is_gone("web-old-b");
    assert_eq!(fleet.remove(), ["web-app-x"]);
    assert_eq!(fleet.plan().verdict, RolloutVerdict::InProgress);
    fleet.is_gone("web-old-c");
    assert_eq!(fleet.plan().verdict, RolloutVerdict::Succeeded);
    assert_eq!(fleet.remove(), ["web-app-y"]);
}

#[test]
fn nothing_is_removed_while_the_group_is_suspended_or_the_rollout_paused() {
    let by = Attribution {
        by: "jane".to_owned(),
        reason: String::new(),
        at: t(0),
    };
    let mut suspended = Fleet::new(json!({"maxConcurrency": 9}));
    suspended.input.suspended = true;
    let mut paused = Fleet::new(json!({"maxConcurrency": 9}));
    paused.input.operator.paused = Some(by);
    for (mut fleet, reason) in [
        (suspended, RemovalHold::GroupSuspended),
        (paused, RemovalHold::Paused),
    ] {
        assert_eq!(fleet.remove(), Vec::<String>::new(), "{reason:?}");
        assert_eq!(fleet.hold("web-app-x"), reason);
        // Objects that stay are not lost, but nothing is written meanwhile either.
        let sync = fleet.input.leaving.get_mut("web-app-x").unwrap();
        sync.policy = DeletionPolicy::Orphan;
        assert_eq!(fleet.hold("web-app-x"), reason);
    }
}

#[test]
fn a_cluster_whose_objects_stay_needs_no_slot() {
    let mut fleet = Fleet::new(json!({"maxConcurrency": 1}));
    for name in ["web-app-x", "web-app-y"] {
        fleet.input.leaving.get_mut(name).unwrap().policy = DeletionPolicy::Orphan;
    }
    assert_eq!(fleet.remove(), ["web-app-x", "web-app-y", "web-old-a"]);
}

/// Guards against a removed entry that goes everywhere at once because no target has changed.
#[test]
fn a_stage_that_waits_for_an_approval_keeps_the_entry_in_later_stages() {
    let stages = json!([{"name": "canary", "clusterSelector": {},
        "afterStageTasks": [{"type": "Approval"}]}]);
    let mut fleet = Fleet::new(json!({"maxConcurrency": 9, "stages": stages}));
    for name in ["b", "c"] {
        fleet.input.clusters.get_mut(name).unwrap().stage = 1;
    }
    for name in ["web-app-x", "web-app-y"] {
        if let LeavingCause::ClusterUnselected { stage, .. } =
            &mut fleet.input.leaving.get_mut(name).unwrap().cause
        {
            *stage = 1;
        }
    }
    assert_eq!(fleet.remove(), ["web-old-a"]);
    fleet.is_gone("web-old-a");
    assert_eq!(fleet.remove(), Vec::<String>::new());
    assert_eq!(fleet.hold("web-app-x"), RemovalHold::StageNotOpen);
    let waits = &fleet.plan().decisions["b"];
    assert!(
        matches!(
            waits,
            Decision::Hold {
                reason: HoldReason::StageWaits { .. },
                ..
            }
        ),
        "{waits:?}"
    );
}

#[test]
fn a_removal_that_does_not_end_fails_its_cluster_at_the_deadline() {
    let mut fleet = Fleet::new(json!({"maxConcurrency": 1, "maxFailures": 0, "progressDeadline": "5m"}));
    assert_eq!(fleet.remove(), ["web-old-a"]);
    assert_eq!(fleet.plan().recheck_at, Some(t(400)));
    fleet.input.now = t(400);
    let planned = fleet.plan();
    let failed = Decision::Failed {
        reason: FailureReason::ProgressDeadlineExceeded,
        retry_at: None,
    };
    assert_eq!(planned.decisions["a"], failed);
    assert!(
        matches!(planned.verdict, RolloutVerdict::Stopped(_)),
        "{planned:#?}"
    );
    assert_eq!(fleet.hold("web-old-b"), RemovalHold::ClusterWaits);
    // A cluster that left does not wait for clusters that failed.
    assert_eq!(fleet.remove(), ["web-app-x"]);
    fleet.input.now = t(400) + Duration::from_secs(300);
    assert_eq!(fleet.remove(), ["web-app-y"]);
}

/// Guards against an automatic rollback that takes away what the failed release brought.
#[test]
fn what_an_automatic_rollback_lacks_stays_until_a_person_approves() {
    let mut fleet = Fleet::new(json!({"maxConcurrency": 9}));
    let is_old = |sync: &&mut LeavingSync| sync.cause == LeavingCause::EntryRemoved;
    let all = fleet.input.leaving.values_mut();
    all.filter(is_old)
        .for_each(|sync| sync.approval = Some("sha256:d".into()));
    // The rollout is complete without it: what it rolls back must not wait for a person.
    assert_eq!(fleet.plan().verdict, RolloutVerdict::Succeeded);
    assert_eq!(fleet.hold("web-old-a"), RemovalHold::AutomaticRollback);
    assert_eq!(fleet.remove(), ["web-app-x", "web-app-y"]);
    let all = fleet.input.leaving.values_mut();
    all.filter(is_old).for_each(|sync| sync.approval = None);
    assert_eq!(fleet.remove(), ["web-old-a", "web-old-b", "web-old-c"]);
    // An approval that is taken back does not stop what has begun.
    fleet.input.leaving.get_mut("web-old-a").unwrap().approval = Some("sha256:d".into());
    assert_eq!(fleet.plan().removals["web-old-a"], RemovalDecision::Removing);
}

/// Guards against a removal that begins on a cluster that nobody reaches: it kept a slot until `progressDeadline`, and
/// its objects went whenever the cluster returned.
#[test]
fn a_cluster_that_is_not_ready_is_held_without_a_slot_and_leaves_when_it_returns() {
    let mut fleet = Fleet::new(json!({"maxConcurrency": 1}));
    fleet
        .input
        .leaving
        .retain(|_, sync| sync.cause != LeavingCause::EntryRemoved);
    fleet.input.leaving.get_mut("web-app-x").unwrap().not_ready = true;
    assert_eq!(fleet.hold("web-app-x"), RemovalHold::ClusterNotReady);
    let problems = fleet.plan().report(&fleet.input).problems;
    let named: Vec<_> = problems
        .iter()
        .map(|problem| (&*problem.cluster, &*problem.reason))
        .collect();
    assert_eq!(named, [("x", "ClusterNotReady")]);
    assert_eq!(fleet.remove(), ["web-app-y"]);
    fleet.is_gone("web-app-y");
    assert_eq!(fleet.remove(), Vec::<String>::new());
    fleet.input.leaving.get_mut("web-app-x").unwrap().not_ready = false;
    assert_eq!(fleet.remove(), ["web-app-x"]);
}

#[test]
fn objects_that_stay_wait_for_no_cluster() {
    let mut fleet = Fleet::new(json!({"maxConcurrency": 9}));
    let sync = fleet.input.leaving.get_mut("web-app-x").unwrap();
    (sync.not_ready, sync.policy) = (true, DeletionPolicy::Orphan);
    assert!(fleet.remove().contains(&"web-app-x".into()));
}

/// A group of five clusters that is being deleted, `a` and `b` in the first of two stages.
fn deleted_group(strategy: Value) -> Fleet {
    let mut fleet = Fleet::new(strategy);
    fleet.input.deleting = true;
    fleet.input.clusters.clear();
    let syncs = [("a", 0), ("b", 0), ("c", 1), ("d", 1), ("e", 1)].map(|(cluster, stage)| {
        let windows = Vec::new();
        leaving(cluster, "app", LeavingCause::GroupDeleted { stage, windows })
    });
    fleet.input.leaving = syncs.into();
    fleet
}

fn staged() -> Value {
    json!({"maxConcurrency": 2, "progressDeadline": "5m", "stages": [{"name": "canary", "clusterSelector": {}}]})
}

impl Fleet {
    fn sync(&mut self, name: &str) -> &mut LeavingSync {
        self.input.leaving.get_mut(name).unwrap()
    }
}

#[test]
fn clusters_of_a_deleted_group_go_in_the_order_of_stages_and_in_slots() {
    let mut fleet = deleted_group(staged());
    assert_eq!(fleet.remove(), ["web-app-a", "web-app-b"]);
    assert_eq!(fleet.hold("web-app-c"), RemovalHold::StageNotOpen);
    fleet.is_gone("web-app-a");
    assert_eq!(
        fleet.remove(),
        Vec::<String>::new(),
        "b is still in the stage before"
    );
    fleet.is_gone("web-app-b");
    assert_eq!(fleet.remove(), ["web-app-c", "web-app-d"]);
    assert_eq!(fleet.hold("web-app-e"), RemovalHold::NoSlot);
    fleet.is_gone("web-app-c");
    assert_eq!(fleet.remove(), ["web-app-e"]);
}

#[test]
fn a_cluster_of_a_deleted_group_that_does_not_end_or_is_not_ready_stops_no_stage() {
    let mut fleet = deleted_group(staged());
    assert_eq!(fleet.remove(), ["web-app-a", "web-app-b"]);
    assert_eq!(fleet.plan().recheck_at, Some(t(400)));
    fleet.input.now = t(400);
    assert_eq!(fleet.remove(), ["web-app-c", "web-app-d"]);
    let mut fleet = deleted_group(staged());
    for name in ["web-app-a", "web-app-b"] {
        fleet.sync(name).not_ready = true;
    }
    assert_eq!(fleet.remove(), ["web-app-c", "web-app-d"]);
    for name in ["web-app-c", "web-app-d", "web-app-e"] {
        fleet.is_gone(name);
    }
    assert_eq!(fleet.remove(), Vec::<String>::new());
    assert_eq!(fleet.hold("web-app-a"), RemovalHold::ClusterNotReady);
    // A person abandoned the objects.
    fleet.sync("web-app-a").not_ready = false;
    assert_eq!(fleet.remove(), ["web-app-a"]);
}

#[test]
fn an_interrupted_removal_of_a_deleted_group_is_completed_in_its_slot() {
    let mut fleet = deleted_group(staged());
    let cause = fleet.sync("web-app-b").cause.clone();
    fleet.input.leaving.extend([leaving("b", "base", cause)]);
    for name in ["web-app-a", "web-app-b"] {
        fleet.sync(name).removing_since = Some(t(100));
    }
    assert_eq!(fleet.remove(), ["web-base-b"]);
}

#[test]
fn a_deleted_group_that_is_suspended_or_paused_deletes_nothing_and_orphans_everything() {
    let mut suspended = deleted_group(staged());
    suspended.input.suspended = true;
    let mut paused = deleted_group(staged());
    paused.input.operator.paused = Some(Attribution {
        by: "jane".to_owned(),
        reason: String::new(),
        at: t(0),
    });
    for (mut fleet, reason) in [
        (suspended, RemovalHold::GroupSuspended),
        (paused, RemovalHold::Paused),
    ] {
        assert_eq!(fleet.remove(), Vec::<String>::new());
        assert_eq!(fleet.hold("web-app-a"), reason);
        for sync in fleet.input.leaving.values_mut() {
            sync.policy = DeletionPolicy::Orphan;
        }
        assert_eq!(fleet.remove().len(), 5);
    }
}

/// The clock was set forward by an hour, and back again: no slot is free because of that.
#[test]
fn a_clock_that_jumps_frees_no_slot_of_a_deleted_group() {
    let mut fleet = deleted_group(staged());
    assert_eq!(fleet.remove(), ["web-app-a", "web-app-b"]);
    fleet.input.clock_jumps.observe(t(105), t(3705), Duration::ZERO);
    fleet.input.now = t(3710);
    assert_eq!(fleet.hold("web-app-c"), RemovalHold::StageNotOpen);
    assert_eq!(fleet.plan().recheck_at, Some(t(4000)));
}

#[test]
fn a_closed_window_delays_its_clusters_of_a_deleted_group_only() {
    // 1,800,000,000 is a Friday at 08:00 UTC.
    let mut fleet = deleted_group(json!({"maxConcurrency": 9, "windows": [
        {"deny": "Fri 07:00-09:00", "timeZone": "UTC"}]}));
    for sync in fleet.input.leaving.values_mut() {
        let windows = if sync.cluster == "c" { vec![0] } else { Vec::new() };
        sync.cause = LeavingCause::GroupDeleted { stage: 0, windows };
    }
    assert_eq!(
        fleet.remove(),
        ["web-app-a", "web-app-b", "web-app-d", "web-app-e"]
    );
    assert_eq!(fleet.hold("web-app-c"), RemovalHold::WindowClosed);
    // At 09:00.
    assert_eq!(fleet.plan().recheck_at, Some(t(3600)));
}

impl Fleet {
    /// A removal gave its slot back long ago, and now it may delete: it was approved, or its cluster has returned.
    fn is_late(&mut self, name: &str) {
        let sync = self.sync(name);
        sync.removing_since = Some(t(-9000));
        let request = PruneRequest {
            cluster: sync.cluster.clone(),
            allowed_at: None,
            begun: false,
        };
        self.input.prunes.insert(name.into(), request);
    }

    /// Executes a plan: what it allows is in progress from now on. Returns the names of the Syncs.
    fn allow(&mut self) -> Vec<SyncName> {
        let planned = self.plan();
        let allowed = planned.prunes.into_iter();
        let allowed = allowed.filter(|(_, decision)| *decision == RemovalDecision::Remove);
        let allowed: Vec<SyncName> = allowed.map(|(name, _)| name).collect();
        for name in &allowed {
            self.input.prunes.get_mut(name).unwrap().allowed_at = Some(self.input.now);
        }
        allowed
    }

    fn late_hold(&self, name: &str) -> RemovalHold {
        match self.plan().prunes[name] {
            RemovalDecision::Hold { reason, .. } => reason,
            other => panic!("{name}: {other:?}"),
        }
    }

    fn has_ended(&mut self, name: &str) {
        self.is_gone(name);
        self.input.prunes.remove(name).unwrap();
    }
}

/// All clusters of a deleted group were held, and one approval lets all of them delete.
#[test]
fn late_removals_of_a_deleted_group_go_in_the_order_of_stages_and_in_slots() {
    let mut fleet = deleted_group(staged());
    for name in ["web-app-a", "web-app-b", "web-app-c", "web-app-d", "web-app-e"] {
        fleet.is_late(name);
    }
    assert_eq!(fleet.allow(), ["web-app-a", "web-app-b"]);
    assert_eq!(fleet.late_hold("web-app-c"), RemovalHold::StageNotOpen);
    fleet.has_ended("web-app-a");
    assert_eq!(
        fleet.allow(),
        Vec::<String>::new(),
        "b is still in the stage before"
    );
    fleet.has_ended("web-app-b");
    assert_eq!(fleet.allow(), ["web-app-c", "web-app-d"]);
    assert_eq!(fleet.late_hold("web-app-e"), RemovalHold::NoSlot);
    // What has begun is completed, and gives its slot back as a removal does.
    for name in ["web-app-c", "web-app-d"] {
        fleet.input.prunes.get_mut(name).unwrap().begun = true;
    }
    fleet.input.now = t(400);
    assert_eq!(fleet.allow(), ["web-app-e"]);
    assert_eq!(fleet.plan().prunes["web-app-c"], RemovalDecision::Removing);
}

#[test]
fn a_late_removal_of_a_deleted_group_shares_slots_and_stages_with_those_that_begin() {
    let mut fleet = deleted_group(staged());
    fleet.is_late("web-app-c");
    assert_eq!(fleet.remove(), ["web-app-a", "web-app-b"]);
    assert_eq!(fleet.late_hold("web-app-c"), RemovalHold::StageNotOpen);
    fleet.is_gone("web-app-a");
    fleet.is_gone("web-app-b");
    assert_eq!(fleet.remove(), ["web-app-d", "web-app-e"]);
    assert_eq!(fleet.late_hold("web-app-c"), RemovalHold::NoSlot);
    fleet.is_gone("web-app-d");
    assert_eq!(fleet.allow(), ["web-app-c"]);
    let cause = fleet.sync("web-app-c").cause.clone();
    fleet.input.leaving.extend([leaving("f", "app", cause)]);
    assert_eq!(fleet.hold("web-app-f"), RemovalHold::NoSlot);
    // A stage that comes late is before the others again.
    fleet.has_ended("web-app-c");
    fleet.is_gone("web-app-e");
    let cause = LeavingCause::GroupDeleted {
        stage: 0,
        windows: Vec::new(),
    };
    fleet.input.leaving.extend([leaving("a", "app", cause)]);
    fleet.is_late("web-app-a");
    assert_eq!(fleet.allow(), ["web-app-a"]);
    assert_eq!(fleet.hold("web-app-f"), RemovalHold::StageNotOpen);
}

#[test]
fn a_late_removal_of_a_deleted_group_waits_for_what_a_removal_waits_for() {
    let late = || {
        let mut fleet = deleted_group(json!({"windows": [{"deny": "Fri 07:00-09:00", "timeZone": "UTC"}]}));
        fleet.is_late("web-app-a");
        fleet
    };
    let mut fleet = late();
    fleet.input.suspended = true;
    assert_eq!(fleet.late_hold("web-app-a"), RemovalHold::GroupSuspended);
    let mut fleet = late();
    fleet.input.operator.paused = Some(Attribution {
        by: "jane".to_owned(),
        reason: String::new(),
        at: t(0),
    });
    assert_eq!(fleet.late_hold("web-app-a"), RemovalHold::Paused);
    let mut fleet = late();
    fleet.sync("web-app-a").not_ready = true;
    assert_eq!(fleet.late_hold("web-app-a"), RemovalHold::ClusterNotReady);
    let mut fleet = late();
    fleet.input.leaving.retain(|name, _| *name == "web-app-a");
    let windows = vec![0];
    fleet.sync("web-app-a").cause = LeavingCause::GroupDeleted { stage: 0, windows };
    assert_eq!(fleet.late_hold("web-app-a"), RemovalHold::WindowClosed);
    assert_eq!(fleet.plan().recheck_at, Some(t(3600)));
    fleet.input.now = t(3600);
    assert_eq!(fleet.allow(), ["web-app-a"]);
    // A prune of a Sync that stays until its own removal.
    let mut fleet = late();
    fleet.sync("web-app-a").removing_since = None;
    assert_eq!(fleet.late_hold("web-app-a"), RemovalHold::ClusterNotReady);
    // A deleted group has no release that an abort could concern.
    let mut fleet = late();
    fleet.input.strategy.windows.clear();
    fleet.input.operator.aborted = Some(Attribution {
        by: "jane".to_owned(),
        reason: String::new(),
        at: t(0),
    });
    assert_eq!(fleet.allow(), ["web-app-a"]);
    fleet.is_late("web-app-b");
    fleet.input.leaving.retain(|name, _| *name != "web-app-b");
    assert_eq!(fleet.late_hold("web-app-b"), RemovalHold::ClusterNotReady);
}

/// An entry was removed and clusters left, and all of them were held.
#[test]
fn late_removals_of_entries_and_of_clusters_that_left_share_the_slots() {
    let mut fleet = Fleet::new(json!({"maxConcurrency": 2, "progressDeadline": "5m"}));
    fleet.remove();
    for name in ["web-app-x", "web-app-y", "web-old-a"] {
        fleet.is_late(name);
    }
    fleet
        .input
        .leaving
        .retain(|name, _| *name != "web-old-b" && *name != "web-old-c");
    fleet.input.now = t(500);
    assert_eq!(fleet.allow(), ["web-app-x", "web-app-y"]);
    assert_eq!(fleet.late_hold("web-old-a"), RemovalHold::NoSlot);
    fleet.has_ended("web-app-x");
    assert_eq!(fleet.allow(), ["web-old-a"]);
}

#[test]
fn a_late_removal_of_a_cluster_that_left_waits_for_its_stage_and_its_window() {
    let mut fleet = Fleet::new(
        json!({"windows": [{"deny": "Fri 07:00-09:00", "timeZone": "UTC"}],
        "stages": [{"name": "canary", "clusterSelector": {}, "afterStageTasks": [{"type": "Approval"}]}]}),
    );
    fleet.input.leaving.retain(|name, _| *name == "web-app-x");
    fleet.is_late("web-app-x");
    let cause = |stage, windows| LeavingCause::ClusterUnselected {
        settles_at: t(0),
        stage,
        windows,
    };
    fleet.remove();
    fleet.sync("web-app-x").cause = cause(1, Vec::new());
    assert_eq!(fleet.late_hold("web-app-x"), RemovalHold::StageNotOpen);
    fleet.sync("web-app-x").cause = cause(0, vec![0]);
    assert_eq!(fleet.late_hold("web-app-x"), RemovalHold::WindowClosed);
    fleet.sync("web-app-x").cause = cause(0, Vec::new());
    assert_eq!(fleet.allow(), ["web-app-x"]);
}

/// A cluster that left is not a part of the rollback, and nobody is in a hurry to delete from it.
#[test]
fn a_cluster_that_left_waits_for_its_window_in_an_immediate_rollback_too() {
    let windows = json!({"windows": [{"deny": "Fri 07:00-09:00", "timeZone": "UTC"}]});
    for direction in [Direction::Forward, Direction::Back, Direction::BackAtOnce] {
        let mut fleet = Fleet::new(windows.clone());
        fleet.input.rollout.direction = direction;
        fleet.input.leaving.retain(|name, _| *name == "web-app-x");
        fleet.sync("web-app-x").cause = LeavingCause::ClusterUnselected {
            settles_at: t(0),
            stage: 0,
            windows: vec![0],
        };
        assert_eq!(
            fleet.hold("web-app-x"),
            RemovalHold::WindowClosed,
            "{direction:?}"
        );
        fleet.input.now = t(3600);
        assert_eq!(fleet.remove(), ["web-app-x"], "{direction:?}");
    }
}
