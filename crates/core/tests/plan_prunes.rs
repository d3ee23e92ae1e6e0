//! Prunes after the attempt that the group admitted: in an open stage, in a window and in a slot.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};
use starling_api::RolloutStrategy;
use starling_core::clock_jumps::ClockJumps;
use starling_core::ids::SyncName;
use starling_core::plan::check::{Violation, check};
use starling_core::plan::{
    Attribution, ClusterView, Decision, Direction, EntryView, LeavingCause, LeavingSync, ObservedSync,
    OperatorInput, Plan, PlanInput, Progress, PruneRequest, Reach, ReadStrategy, RemovalDecision,
    RemovalHold, RolloutView, plan,
};

const NEW: &str = "new";

fn t(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn cluster(stage: usize, progress: Progress) -> ClusterView {
    let observed = ObservedSync {
        stored_admitted_at: None,
        target: Some(NEW.into()),
        release: NEW.into(),
        admitted_at: Some(t(0)),
        progress,
        retried_for: None,
        suspended: false,
    };
    ClusterView {
        id: String::new(),
        reach: Reach::Ready,
        stage,
        windows: Vec::new(),
        entries: BTreeMap::from([(
            "app".into(),
            EntryView {
                wanted: Ok(NEW.into()),
                known_good: None,
                observed: Some(observed),
            },
        )]),
    }
}

/// A fleet of four clusters, all of which request a prune.
struct Fleet {
    input: PlanInput,
}

fn sync(cluster: &str) -> SyncName {
    format!("web-app-{cluster}").into()
}

impl Fleet {
    /// All clusters are on the release.
    fn new(strategy: Value) -> Self {
        let strategy: RolloutStrategy = serde_json::from_value(strategy).unwrap();
        let names = ["a", "b", "c", "d"];
        let request = |name: &str| PruneRequest {
            cluster: name.into(),
            allowed_at: None,
            begun: false,
        };
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
            clusters: names
                .map(|name| (name.into(), cluster(0, Progress::healthy_since(t(10)))))
                .into(),
            leaving: BTreeMap::new(),
            returned: Default::default(),
            prunes: names.map(|name| (sync(name), request(name))).into(),
        };
        Self { input }
    }

    fn plan(&self) -> Plan {
        let planned = plan(&self.input);
        assert_eq!(check(&self.input, &planned), Ok(()), "{planned:#?}");
        planned
    }

    /// Returns the clusters whose prunes the next plan allows.
    fn allowed(&self) -> String {
        self.with(RemovalDecision::Remove)
    }

    fn with(&self, decision: RemovalDecision) -> String {
        let prunes = self.plan().prunes.into_iter();
        let found = prunes.filter(|(_, found)| *found == decision);
        let names = found.map(|(name, _)| self.input.prunes[&name].cluster.to_string());
        names.collect::<Vec<_>>().join(" ")
    }

    /// Executes the next plan.
    fn execute(&mut self) -> Plan {
        let planned = self.plan();
        for stage in &planned.stages {
            let record = stage.record.clone();
            self.input.rollout.stages.insert(stage.name.clone(), record);
        }
        for (name, decision) in &planned.prunes {
            if *decision == RemovalDecision::Remove {
                self.input.prunes.get_mut(name).unwrap().allowed_at = Some(self.input.now);
            }
        }
        planned
    }

    fn hold(&self, cluster: &str) -> (RemovalHold, Option<Timestamp>) {
        match self.plan().prunes[&sync(cluster)] {
            RemovalDecision::Hold { reason, recheck_at } => (reason, recheck_at),
            other => panic!("{cluster}: {other:?}"),
        }
    }
}

/// Guards against the end of a grace on all clusters at once.
#[test]
fn prunes_take_the_slots_that_the_rollout_leaves() {
    let mut fleet = Fleet::new(json!({"maxConcurrency": 2}));
    assert_eq!(fleet.allowed(), "a b");
    let (reason, recheck_at) = fleet.hold("c");
    assert_eq!(reason, RemovalHold::NoSlot);
    assert!(recheck_at > Some(t(100)), "if the prunes never end");
    let _ = fleet.execute();
    assert_eq!(fleet.allowed(), "");
    assert_eq!(fleet.with(RemovalDecision::Removing), "a b");
    fleet.input.prunes.remove(&sync("a")).unwrap();
    assert_eq!(fleet.allowed(), "c");
    // A cluster in flight has a slot already, and the others do without it.
    fleet
        .input
        .clusters
        .insert("d".into(), cluster(0, Progress::Working));
    assert_eq!(fleet.allowed(), "d");
    assert_eq!(fleet.hold("c").0, RemovalHold::NoSlot);
}

#[test]
fn a_prune_that_does_not_end_gives_its_slot_back() {
    let mut fleet = Fleet::new(json!({"maxConcurrency": 1, "progressDeadline": "10m"}));
    let _ = fleet.execute();
    assert_eq!(fleet.with(RemovalDecision::Removing), "a");
    let until = fleet.hold("b").1.unwrap();
    assert_eq!(until, t(700));
    fleet.input.now = until;
    assert_eq!(fleet.allowed(), "a", "asked for again");
}

#[test]
fn a_prune_waits_for_what_a_start_waits_for() {
    let strategy = || json!({"maxConcurrency": 4});
    let by = Attribution {
        by: "jane".into(),
        reason: String::new(),
        at: t(0),
    };
    let held = |change: &dyn Fn(&mut PlanInput)| {
        let mut fleet = Fleet::new(strategy());
        change(&mut fleet.input);
        (fleet.allowed(), fleet.hold("a").0)
    };
    let none = |reason| (String::new(), reason);
    assert_eq!(
        held(&|input| input.suspended = true),
        none(RemovalHold::GroupSuspended)
    );
    assert_eq!(
        held(&|input| input.operator.paused = Some(by.clone())),
        none(RemovalHold::Paused)
    );
    assert_eq!(
        held(&|input| input.membership_held = true),
        none(RemovalHold::MembershipHeld)
    );
    let others = || "b c d".to_owned();
    let away = held(&|input| input.clusters.get_mut("a").unwrap().reach = Reach::Suspended);
    assert_eq!(away, (others(), RemovalHold::ClusterNotReady));
    let left = held(&|input| drop(input.clusters.remove("a")));
    assert_eq!(left, (others(), RemovalHold::ClusterNotReady));
}

/// Guards against a prune that was stopped by an abort and goes on with the next plan. What a cluster that left loses
/// is no part of the aborted release.
#[test]
fn a_prune_of_an_aborted_rollout_waits_for_the_next_one() {
    let mut fleet = Fleet::new(json!({"maxConcurrency": 4}));
    fleet.input.operator.aborted = Some(Attribution {
        by: "jane".into(),
        reason: String::new(),
        at: t(50),
    });
    let _ = fleet.input.clusters.remove("d").unwrap();
    let left = LeavingSync {
        cluster: "d".into(),
        entry: "app".into(),
        cause: LeavingCause::ClusterUnselected {
            settles_at: t(0),
            stage: 0,
            windows: Vec::new(),
        },
        policy: starling_api::DeletionPolicy::Delete,
        depends_on: Default::default(),
        removing_since: Some(t(-5000)),
        suspended: false,
        not_ready: false,
        budget_until: None,
        approval: None,
    };
    fleet.input.leaving.insert(sync("d"), left);
    assert_eq!(fleet.allowed(), "d");
    assert_eq!(fleet.hold("a"), (RemovalHold::Aborted, None));
    fleet.input.prunes.get_mut(&sync("a")).unwrap().allowed_at = Some(t(90));
    assert_eq!(fleet.with(RemovalDecision::Removing), "a", "it has begun");
    fleet.input.operator.aborted = None;
    assert_eq!(fleet.allowed(), "b c d");
}

/// A release of yesterday has something to prune on all clusters, and that of today waits in its canary.
#[test]
fn prunes_follow_the_stages_of_the_rollout() {
    let mut fleet = Fleet::new(json!({
        "maxConcurrency": 4,
        "stages": [{"name": "canary", "clusterSelector": {}, "afterStageTasks": [{"type": "Approval"}]}],
    }));
    for name in ["c", "d"] {
        fleet.input.clusters.get_mut(name).unwrap().stage = 1;
    }
    assert_eq!(fleet.allowed(), "a b");
    assert_eq!(fleet.hold("c").0, RemovalHold::StageNotOpen);
    let _ = fleet.execute();
    fleet.input.prunes.remove(&sync("a")).unwrap();
    let approval = Attribution {
        by: "jane".into(),
        reason: String::new(),
        at: t(50),
    };
    fleet.input.rollout.approvals.insert("canary".into(), approval);
    assert_eq!(fleet.allowed(), "c d");
}

#[test]
fn a_prune_waits_for_its_window() {
    let mut fleet = Fleet::new(json!({
        "maxConcurrency": 4,
        // t(100) is a Friday, 08:01 in UTC.
        "windows": [{"allow": "Mon-Fri 09:00-16:00"}],
    }));
    for cluster in fleet.input.clusters.values_mut() {
        cluster.windows = vec![0];
    }
    // An immediate rollback does not wait; what is taken away besides does.
    let closed = fleet.input.now;
    for direction in [Direction::BackAtOnce, Direction::Forward] {
        (fleet.input.rollout.direction, fleet.input.now) = (direction, closed);
        let (reason, opens) = fleet.hold("a");
        assert_eq!(reason, RemovalHold::WindowClosed, "{direction:?}");
        fleet.input.now = opens.unwrap();
        assert_eq!(fleet.allowed(), "a b c d", "{direction:?}");
    }
}

/// Every wrong decision about a prune is found by the check.
#[test]
fn a_wrong_decision_about_a_prune_is_found() {
    let fleet = || Fleet::new(json!({"maxConcurrency": 2}));
    let found = |fleet: &Fleet, change: &dyn Fn(&mut Plan)| {
        let mut planned = fleet.plan();
        change(&mut planned);
        check(&fleet.input, &planned).unwrap_err()
    };
    let hold = |reason| RemovalDecision::Hold {
        reason,
        recheck_at: None,
    };
    let remove = RemovalDecision::Remove;
    assert_eq!(
        found(&fleet(), &|plan| {
            let _ = plan.prunes.remove(&sync("a"));
        }),
        Violation::PruneUndecided { sync: sync("a") }
    );
    assert_eq!(
        found(&fleet(), &|plan| {
            let _ = plan.prunes.insert(sync("z"), remove);
        }),
        Violation::PruneNotRequested { sync: sync("z") }
    );
    assert_eq!(
        found(&fleet(), &|plan| {
            let _ = plan.prunes.insert(sync("c"), remove);
        }),
        Violation::TooManyPrune { after: 3, bound: 2 }
    );
    assert_eq!(
        found(&fleet(), &|plan| {
            let _ = plan.prunes.insert(sync("a"), hold(RemovalHold::NoSlot));
        }),
        Violation::PruneIdleSlot { sync: sync("a") }
    );
    let suspended = Fleet {
        input: PlanInput {
            installation_slots: None,
            suspended: true,
            ..fleet().input
        },
    };
    assert_eq!(
        found(&suspended, &|plan| {
            let _ = plan.prunes.insert(sync("a"), remove);
        }),
        Violation::WrongPrune {
            sync: sync("a"),
            actual: remove,
            expected: hold(RemovalHold::GroupSuspended),
        }
    );
    let mut begun = fleet();
    let _ = begun.execute();
    assert_eq!(
        found(&begun, &|plan| {
            let _ = plan.prunes.insert(sync("a"), remove);
        }),
        Violation::WrongPrune {
            sync: sync("a"),
            actual: remove,
            expected: RemovalDecision::Removing,
        }
    );
}

/// A removal of a cluster that left and a prune share the slots.
#[test]
fn a_cluster_that_leaves_and_a_prune_share_the_slots() {
    let mut fleet = Fleet::new(json!({"maxConcurrency": 2}));
    let left = LeavingSync {
        cluster: "x".into(),
        entry: "app".into(),
        cause: LeavingCause::ClusterUnselected {
            settles_at: t(0),
            stage: 0,
            windows: Vec::new(),
        },
        policy: starling_api::DeletionPolicy::Delete,
        depends_on: Default::default(),
        removing_since: None,
        suspended: false,
        not_ready: false,
        budget_until: None,
        approval: None,
    };
    fleet.input.leaving.insert("web-app-x".into(), left);
    assert_eq!(fleet.allowed(), "a");
    assert_eq!(fleet.plan().removals["web-app-x"], RemovalDecision::Remove);
    let planned = fleet.execute();
    assert!(
        planned
            .decisions
            .values()
            .all(|decision| *decision == Decision::Done)
    );
    fleet.input.leaving.clear();
    assert_eq!(fleet.allowed(), "b");
}
