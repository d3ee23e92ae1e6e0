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
    }
}

fn unselected(settles_at: i64) -> LeavingCause {
    LeavingCause::ClusterUnselected {
        settles_at: t(settles_at),
    }
}

fn held(reason: RemovalHold, recheck_at: Option<i64>) -> RemovalDecision {
    RemovalDecision::Hold {
        reason,
        recheck_at: recheck_at.map(t),
    }
}

fn remove(plan: &mut Plan, name: &str, decision: RemovalDecision) {
    plan.removals.insert(name.to_owned(), decision);
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
    let clusters = clusters.map(|(name, view)| (name.to_owned(), view)).into();
    let mut input = rollout(vec![stage(REST, &[], &[])], clusters);
    let syncs = [
        ("busy-old", leaving("busy", "old", LeavingCause::EntryRemoved)),
        ("done-old", leaving("done", "old", LeavingCause::EntryRemoved)),
        ("gone-app", leaving("gone", "app", unselected(60))),
        ("left-app", leaving("left", "app", unselected(90))),
    ];
    input.leaving = syncs.map(|(name, sync)| (name.to_owned(), sync)).into();
    input.rollout.stages.insert(REST.into(), opened());
    let tally = Tally {
        total: 2,
        done: 1,
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
    let removals = [
        ("busy-old", held(RemovalHold::ClusterNotDone, None)),
        ("done-old", RemovalDecision::Remove),
        ("gone-app", RemovalDecision::Remove),
        ("left-app", held(RemovalHold::Settling, Some(90))),
    ];
    let decisions = [("busy".to_owned(), busy), ("done".to_owned(), Decision::Done)];
    let plan = Plan {
        removals: removals
            .map(|(name, decision)| (name.to_owned(), decision))
            .into(),
        ..plan_of(decisions.into(), tally, 90)
    };
    (input, plan)
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
            }),
            ("an entry of a cluster that is not selected", |i, p| {
                sync_of(i, "done-old").cluster = "gone".into();
                remove(p, "done-old", held(RemovalHold::ClusterNotDone, None));
            }),
            ("nothing leaves", |i, p| {
                i.leaving.clear();
                p.removals.clear();
                p.recheck_at = Some(t(900));
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
                |i, _| sync_of(i, "done-old").entry = "app".into(),
                "RemovesWanted",
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
                    remove(p, "busy-old", held(RemovalHold::MembershipHeld, None));
                },
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
                "its cluster is not done",
                |_, p| remove(p, "busy-old", RemovalDecision::Remove),
                "WrongRemoval",
            ),
            (
                "its cluster is done",
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
