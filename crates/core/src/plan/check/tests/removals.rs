//! Syncs of clusters that left the group, and of entries that left its spec.

use starling_api::DeletionPolicy;

use super::*;
use crate::plan::leaving::{LeavingCause, LeavingSync, RemovalDecision, RemovalHold};

fn leaving(cluster: &str, entry: &str, cause: LeavingCause) -> LeavingSync {
    LeavingSync {
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
    }
}

fn unselected(settles_at: i64) -> LeavingCause {
    LeavingCause::ClusterUnselected {
        settles_at: t(settles_at),
        stage: 0,
        windows: Vec::new(),
    }
}

fn held(reason: RemovalHold, recheck_at: Option<i64>) -> RemovalDecision {
    RemovalDecision::Hold {
        reason,
        recheck_at: recheck_at.map(t),
    }
}

fn remove(plan: &mut Plan, name: &str, decision: RemovalDecision) {
    plan.removals.insert(name.into(), decision);
}

fn sync_of<'a>(input: &'a mut PlanInput, name: &str) -> &'a mut LeavingSync {
    input.leaving.get_mut(name).unwrap()
}

/// Entry `old` left `busy` and `done`; the group no longer selects `gone` and `left`, `left` since a shorter time.
fn good() -> (PlanInput, Plan) {
    let clusters = [
        ("busy", cluster(sync(NEW, Progress::Working))),
        ("done", cluster(sync(NEW, Progress::healthy_since(t(-40))))),
    ];
    let clusters = clusters.map(|(name, view)| (name.into(), view)).into();
    let mut input = rollout(vec![stage(REST, &[], &[])], clusters);
    let syncs = [
        ("busy-old", leaving("busy", "old", LeavingCause::EntryRemoved)),
        ("done-old", leaving("done", "old", LeavingCause::EntryRemoved)),
        ("gone-app", leaving("gone", "app", unselected(60))),
        ("left-app", leaving("left", "app", unselected(90))),
    ];
    input.leaving = syncs.map(|(name, sync)| (name.into(), sync)).into();
    input.rollout.stages.insert(REST.into(), opened());
    let tally = Tally {
        total: 2,
        done: 0,
        slots: Some(4),
        in_flight: 1,
        failed: 0,
        failures_allowed: 2,
        unavailable: 1,
        unavailable_allowed: 2,
    };
    let busy = Decision::InFlight {
        deadline: Some(t(900)),
        lost: false,
    };
    let done = Decision::Remove {
        entries: vec!["old".into()],
    };
    let removals = [
        ("busy-old", held(RemovalHold::ClusterNotDone, None)),
        ("done-old", RemovalDecision::Remove),
        ("gone-app", RemovalDecision::Remove),
        ("left-app", held(RemovalHold::Settling, Some(90))),
    ];
    let decisions = [("busy".into(), busy), ("done".into(), done)];
    let plan = Plan {
        removals: removals.map(|(name, decision)| (name.into(), decision)).into(),
        ..plan_of(decisions.into(), tally, 90)
    };
    (input, plan)
}

/// Nothing is removed from `done`, which is done then.
fn is_done(plan: &mut Plan) {
    decide(plan, "done", Decision::Done);
    plan.tally.done = 1;
    plan.stages[0].tally.done = 1;
}

/// Whatever holds the group holds `done` and the removals of both of its entries.
fn wait(plan: &mut Plan, reason: HoldReason, of_cluster: RemovalHold, of_entry: RemovalHold) {
    decide(plan, "done", hold(reason));
    remove(plan, "done-old", held(of_entry, None));
    remove(plan, "gone-app", held(of_cluster, None));
}

#[test]
fn good_removals_pass() {
    accepted(
        good,
        &[
            ("as it is", |_, _| {}),
            ("next plan sooner", |_, p| p.recheck_at = Some(t(61))),
            ("too many clusters left", |i, p| {
                i.membership_held = true;
                let held = held(RemovalHold::MembershipHeld, None);
                p.removals.values_mut().for_each(|decision| *decision = held);
                decide(p, "done", hold(HoldReason::MembershipHeld));
            }),
            ("the group is suspended", |i, p| {
                i.suspended = true;
                let (of_cluster, of_entry) = (RemovalHold::GroupSuspended, RemovalHold::ClusterWaits);
                wait(p, HoldReason::GroupSuspended, of_cluster, of_entry);
            }),
            ("the rollout is paused", |i, p| {
                i.operator.paused = Some(attribution());
                let (of_cluster, of_entry) = (RemovalHold::Paused, RemovalHold::ClusterWaits);
                wait(p, HoldReason::Paused(attribution()), of_cluster, of_entry);
            }),
            ("the Syncs are suspended", |i, p| {
                sync_of(i, "done-old").suspended = true;
                sync_of(i, "gone-app").suspended = true;
                let reason = HoldReason::SyncSuspended { entry: "old".into() };
                let (of_cluster, of_entry) = (RemovalHold::SyncSuspended, RemovalHold::ClusterWaits);
                wait(p, reason, of_cluster, of_entry);
            }),
            ("the removals have begun", |i, p| {
                sync_of(i, "done-old").removing_since = Some(t(30));
                sync_of(i, "gone-app").removing_since = Some(t(30));
                let losing = Decision::InFlight {
                    deadline: Some(t(930)),
                    lost: false,
                };
                decide(p, "done", losing);
                for tally in [&mut p.tally, &mut p.stages[0].tally] {
                    (tally.in_flight, tally.unavailable) = (2, 2);
                }
                remove(p, "done-old", RemovalDecision::Removing);
                remove(p, "gone-app", RemovalDecision::Removing);
            }),
            ("no slot is left for the cluster that left", |i, p| {
                i.strategy.limits.max_concurrency = IntOrPercent::Int(2);
                p.tally.slots = Some(2);
                remove(p, "gone-app", held(RemovalHold::NoSlot, None));
            }),
            ("the deletion budget is used up", |i, p| {
                sync_of(i, "gone-app").budget_until = Some(t(80));
                remove(p, "gone-app", held(RemovalHold::DeletionBudget, Some(80)));
                p.recheck_at = Some(t(80));
            }),
            ("the cluster is not ready", |i, p| {
                sync_of(i, "gone-app").not_ready = true;
                remove(p, "gone-app", held(RemovalHold::ClusterNotReady, None));
            }),
            ("objects stay on a cluster that is not ready", |i, _| {
                let sync = sync_of(i, "gone-app");
                (sync.not_ready, sync.policy) = (true, DeletionPolicy::Orphan);
            }),
            ("an entry of a cluster that is not selected", |i, p| {
                sync_of(i, "done-old").cluster = "gone".into();
                remove(p, "done-old", held(RemovalHold::ClusterNotDone, None));
                is_done(p);
            }),
            ("nothing leaves", |i, p| {
                i.leaving.clear();
                p.removals.clear();
                p.recheck_at = Some(t(900));
                is_done(p);
            }),
        ],
    );
}

#[test]
fn every_sync_that_leaves_is_decided_and_no_other() {
    refused(
        good,
        &[
            (
                "undecided",
                |_, p| {
                    p.removals.remove("gone-app");
                },
                "RemovalUndecided",
            ),
            (
                "held, and undecided",
                |_, p| {
                    p.removals.remove("left-app");
                },
                "RemovalUndecided",
            ),
            (
                "wanted",
                |_, p| remove(p, "done-app", RemovalDecision::Remove),
                "RemovesWanted",
            ),
            (
                "of a selected cluster",
                |i, _| sync_of(i, "gone-app").cluster = "done".into(),
                "RemovesWanted",
            ),
            (
                "of an entry that is there",
                |i, p| {
                    sync_of(i, "done-old").entry = "app".into();
                    let entries = vec!["app".into()];
                    decide(p, "done", Decision::Remove { entries });
                },
                "RemovesWanted",
            ),
        ],
    );
}

#[test]
fn entries_are_removed_like_entries_are_started() {
    refused(
        good,
        &[
            ("done", |_, p| decide(p, "done", Decision::Done), "NotDone"),
            ("suspended", |i, _| i.suspended = true, "StartsWhileSuspended"),
            (
                "paused",
                |i, _| i.operator.paused = Some(attribution()),
                "StartsWhilePaused",
            ),
            (
                "aborted",
                |i, _| i.operator.aborted = Some(attribution()),
                "StartsWhileAborted",
            ),
            (
                "skipped",
                |i, _| {
                    view(i, "done")
                        .entries
                        .get_mut("app")
                        .unwrap()
                        .observed
                        .as_mut()
                        .unwrap()
                        .release = OLD.into();
                    i.operator.skipped.insert("done".into(), attribution());
                },
                "StartsSkipped",
            ),
            (
                "unreachable",
                |i, _| view(i, "done").reach = unreachable(),
                "StartsUnready",
            ),
            (
                "its Sync is suspended",
                |i, _| sync_of(i, "done-old").suspended = true,
                "StartsSuspendedSync",
            ),
            (
                "the others are in progress",
                |_, p| {
                    let entries = vec!["old".into()];
                    decide(p, "busy", Decision::Remove { entries });
                },
                "RemovesTooEarly",
            ),
            (
                "another entry",
                |_, p| {
                    let entries = vec!["other".into()];
                    decide(p, "done", Decision::Remove { entries });
                },
                "WrongRemovedEntries",
            ),
            (
                "begun before",
                |i, _| sync_of(i, "done-old").removing_since = Some(t(30)),
                "WrongRemovedEntries",
            ),
            (
                "idle",
                |_, p| decide(p, "done", hold(HoldReason::NoSlot)),
                "IdleSlot",
            ),
        ],
    );
}

#[test]
fn a_sync_is_removed_when_no_reason_holds_it_and_not_before() {
    refused(
        good,
        &[
            (
                "too many clusters left",
                |i, p| {
                    i.membership_held = true;
                    decide(p, "done", hold(HoldReason::MembershipHeld));
                    remove(p, "busy-old", held(RemovalHold::MembershipHeld, None));
                },
                "WrongRemoval",
            ),
            (
                "removed by an automatic rollback without an approval",
                |i, _| sync_of(i, "done-old").approval = Some("sha256:d".into()),
                "RemovesTooEarly",
            ),
            (
                "held for an approval that is not needed",
                |_, p| remove(p, "busy-old", held(RemovalHold::AutomaticRollback, None)),
                "WrongRemoval",
            ),
            (
                "held for clusters that are there",
                |_, p| remove(p, "gone-app", held(RemovalHold::MembershipHeld, None)),
                "WrongRemoval",
            ),
            (
                "unsettled",
                |_, p| remove(p, "left-app", RemovalDecision::Remove),
                "WrongRemoval",
            ),
            (
                "settled",
                |_, p| remove(p, "gone-app", held(RemovalHold::Settling, Some(90))),
                "WrongRemoval",
            ),
            (
                "settles at another time",
                |_, p| remove(p, "left-app", held(RemovalHold::Settling, Some(95))),
                "WrongRemoval",
            ),
            (
                "a suspended Sync",
                |i, _| sync_of(i, "gone-app").suspended = true,
                "WrongRemoval",
            ),
            (
                "in a suspended group",
                |i, p| {
                    i.suspended = true;
                    decide(p, "done", hold(HoldReason::GroupSuspended));
                    remove(p, "done-old", held(RemovalHold::ClusterWaits, None));
                },
                "WrongRemoval",
            ),
            (
                "in a paused rollout",
                |i, p| {
                    i.operator.paused = Some(attribution());
                    decide(p, "done", hold(HoldReason::Paused(attribution())));
                    remove(p, "done-old", held(RemovalHold::ClusterWaits, None));
                },
                "WrongRemoval",
            ),
            (
                "begun before",
                |i, _| sync_of(i, "gone-app").removing_since = Some(t(30)),
                "WrongRemoval",
            ),
            (
                "no slot",
                |i, p| {
                    i.strategy.limits.max_concurrency = IntOrPercent::Int(2);
                    p.tally.slots = Some(2);
                },
                "TooManyLeave",
            ),
            (
                "on a cluster that is not ready",
                |i, _| sync_of(i, "gone-app").not_ready = true,
                "WrongRemoval",
            ),
            (
                "held for a cluster that is ready",
                |_, p| remove(p, "gone-app", held(RemovalHold::ClusterNotReady, None)),
                "WrongRemoval",
            ),
            (
                "the deletion budget is used up",
                |i, _| sync_of(i, "gone-app").budget_until = Some(t(80)),
                "WrongRemoval",
            ),
            (
                "the deletion budget allows it",
                |i, p| {
                    sync_of(i, "gone-app").budget_until = Some(t(60));
                    remove(p, "gone-app", held(RemovalHold::DeletionBudget, Some(60)));
                },
                "WrongRemoval",
            ),
            (
                "the deletion budget allows it at another time",
                |i, p| {
                    sync_of(i, "gone-app").budget_until = Some(t(80));
                    remove(p, "gone-app", held(RemovalHold::DeletionBudget, Some(85)));
                },
                "WrongRemoval",
            ),
            (
                "a slot",
                |_, p| remove(p, "gone-app", held(RemovalHold::NoSlot, None)),
                "RemovalIdleSlot",
            ),
            (
                "its cluster is not done",
                |_, p| remove(p, "busy-old", RemovalDecision::Remove),
                "WrongRemoval",
            ),
            (
                "its cluster loses it",
                |_, p| remove(p, "done-old", held(RemovalHold::ClusterNotDone, None)),
                "WrongRemoval",
            ),
        ],
    );
}

#[test]
fn the_next_plan_is_when_time_allows_a_removal() {
    refused(
        good,
        &[
            ("late", |_, p| p.recheck_at = Some(t(91)), "RecheckAfterDecision"),
            (
                "with the rest",
                |_, p| p.recheck_at = Some(t(900)),
                "RecheckAfterDecision",
            ),
            ("never", |_, p| p.recheck_at = None, "RecheckAfterDecision"),
        ],
    );
}
