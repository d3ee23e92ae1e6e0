//! Bad plans, each refused for what is wrong with it, and good ones.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::*;
use crate::plan::{EntryView, Limits, ObservedSync, Progress, plan};

const NEW: &str = "new";
const OLD: &str = "old";

fn t(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + seconds).unwrap()
}

fn unreachable() -> Reach {
    Reach::Unreachable {
        reason: "Unreachable".into(),
        message: "no answer".into(),
        since: t(0),
    }
}

fn sync(target: &str, progress: Progress) -> ObservedSync {
    ObservedSync {
        target: Some(target.into()),
        release: target.into(),
        admitted_at: Some(t(0)),
        progress,
        suspended: false,
    }
}

fn failing() -> Progress {
    Progress::Failing {
        reason: "ApplyFailed".into(),
        message: "m".into(),
        retry_at: Some(t(90)),
    }
}

fn cluster(observed: ObservedSync) -> ClusterView {
    let entry = EntryView {
        wanted: Ok(NEW.into()),
        observed: Some(observed),
    };
    ClusterView {
        uid: "uid".into(),
        reach: Reach::Ready,
        entries: [("app".to_owned(), entry)].into(),
    }
}

/// A fleet in which everything is under way at once, with three slots for the two clusters in flight, and one
/// failure of two allowed; `idle` starts.
fn input() -> PlanInput {
    let mut clusters: BTreeMap<String, ClusterView> = [
        ("done", sync(NEW, Progress::Done)),
        ("working", sync(NEW, Progress::Working)),
        ("lost", sync(NEW, Progress::Working)),
        ("failing", sync(NEW, failing())),
        ("idle", sync(OLD, Progress::Done)),
        ("next", sync(OLD, Progress::Done)),
        ("away", sync(OLD, Progress::Done)),
        ("invalid", sync(OLD, Progress::Done)),
        ("suspended", sync(OLD, Progress::Done)),
    ]
    .into_iter()
    .map(|(name, observed)| (name.to_owned(), cluster(observed)))
    .collect();
    for name in ["lost", "away"] {
        clusters.get_mut(name).unwrap().reach = unreachable();
    }
    let entry = |clusters: &mut BTreeMap<String, ClusterView>, name: &str, change: fn(&mut EntryView)| {
        change(clusters.get_mut(name).unwrap().entries.get_mut("app").unwrap());
    };
    entry(&mut clusters, "invalid", |entry| {
        entry.wanted = Err("no label".into());
    });
    entry(&mut clusters, "suspended", |entry| {
        entry.observed.as_mut().unwrap().suspended = true;
    });
    let second = clusters["idle"].entries["app"].clone();
    clusters
        .get_mut("idle")
        .unwrap()
        .entries
        .insert("crds".into(), second);
    PlanInput {
        now: t(60),
        limits: Limits {
            max_concurrency: IntOrPercent::Int(3),
            max_failures: IntOrPercent::Int(2),
            progress_deadline: Duration::from_secs(900),
            jitter: Duration::ZERO,
        },
        suspended: false,
        membership_held: false,
        release: NEW.into(),
        started_at: t(0),
        clusters,
    }
}

fn start(entries: &[&str]) -> Decision {
    Decision::Start {
        entries: entries.iter().map(|entry| (*entry).to_owned()).collect(),
    }
}

fn hold(reason: HoldReason) -> Decision {
    Decision::Hold {
        reason,
        recheck_at: None,
    }
}

fn in_flight(deadline: i64, lost: bool) -> Decision {
    Decision::InFlight {
        deadline: Some(t(deadline)),
        lost,
    }
}

fn attempt_failed(retry: i64) -> Decision {
    Decision::Failed {
        reason: FailureReason::AttemptFailed {
            reason: "ApplyFailed".into(),
            message: "m".into(),
        },
        retry_at: Some(t(retry)),
    }
}

/// The right answer to [`input`], by hand.
fn good() -> Plan {
    let decisions = [
        ("done", Decision::Done),
        ("working", in_flight(900, false)),
        ("lost", in_flight(900, true)),
        ("failing", attempt_failed(90)),
        ("idle", start(&["app", "crds"])),
        ("next", hold(HoldReason::NoSlot)),
        (
            "away",
            hold(HoldReason::ClusterUnreachable {
                reason: "Unreachable".into(),
                message: "no answer".into(),
                since: t(0),
            }),
        ),
        (
            "invalid",
            hold(HoldReason::InvalidParameters {
                entry: "app".into(),
                message: "no label".into(),
            }),
        ),
        (
            "suspended",
            hold(HoldReason::SyncSuspended { entry: "app".into() }),
        ),
    ];
    Plan {
        decisions: decisions
            .map(|(name, decision)| (name.to_owned(), decision))
            .into(),
        tally: Tally {
            slots: 3,
            in_flight: 2,
            failed: 1,
            failures_allowed: 2,
        },
        recheck_at: Some(t(900)),
    }
}

/// The name of a variant.
fn variant(violation: &Violation) -> String {
    let text = format!("{violation:?}");
    text.split([' ', '{']).next().unwrap_or_default().to_owned()
}

#[test]
fn a_good_plan_passes() {
    assert_eq!(check(&input(), &good()), Ok(()));
}

/// Which of two clusters gets a slot is the planner's affair.
#[test]
fn another_good_plan_passes() {
    let mut other = good();
    other.decisions.insert("idle".into(), hold(HoldReason::NoSlot));
    other.decisions.insert("next".into(), start(&["app"]));
    assert_eq!(check(&input(), &other), Ok(()));
}

#[test]
fn the_planners_own_answer_passes() {
    for now in [60, 899, 900, 901] {
        let input = PlanInput {
            now: t(now),
            ..input()
        };
        assert_eq!(check(&input, &plan(&input)), Ok(()), "at {now}");
    }
}

#[test]
fn a_plan_with_one_wrong_decision_is_refused_for_it() {
    let jitter = Decision::Hold {
        reason: HoldReason::Jitter,
        recheck_at: Some(t(0)),
    };
    let rechecked = Decision::Hold {
        reason: HoldReason::NoSlot,
        recheck_at: Some(t(70)),
    };
    let overdue = Decision::Failed {
        reason: FailureReason::ProgressDeadlineExceeded,
        retry_at: None,
    };
    let unprobed = || hold(HoldReason::ClusterNotProbed);
    for (cluster, decision, expected) in [
        ("idle", Decision::Done, "NotDone"),
        ("working", Decision::Done, "NotDone"),
        ("failing", Decision::Done, "NotDone"),
        ("invalid", Decision::Done, "NotDone"),
        ("done", in_flight(900, false), "DoneUnnoticed"),
        ("done", hold(HoldReason::NoSlot), "DoneUnnoticed"),
        ("done", attempt_failed(90), "DoneUnnoticed"),
        ("idle", start(&[]), "StartsNothing"),
        ("idle", start(&["app", "crds", "dns"]), "StartsUnknownEntry"),
        ("idle", start(&["app", "app", "crds"]), "StartsEntryTwice"),
        ("idle", start(&["app"]), "LeavesEntryOut"),
        ("done", start(&["app"]), "StartsEntryAgain"),
        ("working", start(&["app"]), "StartsEntryAgain"),
        ("failing", start(&["app"]), "StartsEntryAgain"),
        ("away", start(&["app"]), "StartsUnready"),
        ("invalid", start(&["app"]), "StartsInvalid"),
        ("suspended", start(&["app"]), "StartsSuspendedSync"),
        ("next", start(&["app"]), "TooManyInFlight"),
        ("idle", in_flight(900, false), "NothingUnderWay"),
        ("away", in_flight(900, true), "NothingUnderWay"),
        ("failing", in_flight(900, false), "FailureUnnoticed"),
        ("failing", hold(HoldReason::NoSlot), "FailureUnnoticed"),
        ("working", in_flight(901, false), "WrongDeadline"),
        (
            "working",
            Decision::InFlight {
                deadline: None,
                lost: false,
            },
            "WrongDeadline",
        ),
        ("working", in_flight(900, true), "WrongLost"),
        ("lost", in_flight(900, false), "WrongLost"),
        ("lost", hold(HoldReason::ClusterNotProbed), "UnderWayUnnoticed"),
        ("working", hold(HoldReason::NoSlot), "UnderWayUnnoticed"),
        ("working", overdue.clone(), "NothingFailed"),
        ("lost", overdue.clone(), "NothingFailed"),
        ("idle", attempt_failed(90), "NothingFailed"),
        ("failing", overdue, "WrongFailure"),
        ("failing", attempt_failed(91), "WrongFailure"),
        ("next", unprobed(), "WrongHold"),
        ("next", hold(HoldReason::ClusterSuspended), "WrongHold"),
        ("next", hold(HoldReason::GroupSuspended), "WrongHold"),
        ("next", hold(HoldReason::TooManyFailures), "WrongHold"),
        ("next", jitter, "WrongHold"),
        ("away", unprobed(), "WrongHold"),
        ("away", hold(HoldReason::NoSlot), "WrongHold"),
        ("invalid", hold(HoldReason::NoSlot), "WrongHold"),
        (
            "invalid",
            hold(HoldReason::SyncSuspended { entry: "app".into() }),
            "WrongHold",
        ),
        (
            "suspended",
            hold(HoldReason::SyncSuspended { entry: "dns".into() }),
            "WrongHold",
        ),
        ("next", rechecked, "WrongHoldRecheck"),
        ("idle", hold(HoldReason::NoSlot), "IdleSlot"),
    ] {
        let mut plan = good();
        plan.decisions.insert(cluster.to_owned(), decision.clone());
        let violation = check(&input(), &plan).unwrap_err();
        assert_eq!(variant(&violation), expected, "{cluster}: {decision:?}");
    }
}

#[test]
fn a_plan_for_other_clusters_is_refused() {
    let mut fewer = good();
    fewer.decisions.remove("next");
    let mut more = good();
    more.decisions.insert("nobody".into(), Decision::Done);
    let [next, nobody] = ["next", "nobody"].map(str::to_owned);
    assert_eq!(
        check(&input(), &fewer),
        Err(Violation::Undecided { cluster: next })
    );
    assert_eq!(
        check(&input(), &more),
        Err(Violation::NotSelected { cluster: nobody })
    );
}

type Change = fn(&mut PlanInput);

/// The plan that was good is not if something else is true of the group.
#[test]
fn a_plan_for_another_group_is_refused() {
    let changes: [(Change, &str); 9] = [
        (|input| input.suspended = true, "StartsWhileSuspended"),
        (|input| input.membership_held = true, "StartsWhileMembershipHeld"),
        (
            |input| input.limits.max_failures = IntOrPercent::Percent(5),
            "StartsBeyondBudget",
        ),
        (
            |input| {
                input.limits.jitter = Duration::from_secs(3600);
                input.started_at = t(60);
            },
            "StartsBeforeJitter",
        ),
        (
            |input| input.limits.max_concurrency = IntOrPercent::Int(2),
            "TooManyInFlight",
        ),
        (
            |input| input.limits.max_concurrency = IntOrPercent::Percent(34),
            "IdleSlot",
        ),
        (
            |input| input.limits.max_failures = IntOrPercent::Percent(34),
            "WrongTally",
        ),
        (
            |input| {
                input.limits.progress_deadline = Duration::from_secs(60);
                input.limits.max_failures = IntOrPercent::Int(9);
            },
            "FailureUnnoticed",
        ),
        (
            |input| input.limits.progress_deadline = Duration::from_secs(901),
            "WrongDeadline",
        ),
    ];
    for (change, expected) in changes {
        let mut input = input();
        change(&mut input);
        let violation = check(&input, &good()).unwrap_err();
        assert_eq!(variant(&violation), expected);
    }
}

#[test]
fn wrong_counts_are_refused() {
    let tally = good().tally;
    for said in [
        Tally { slots: 4, ..tally },
        Tally {
            in_flight: 3,
            ..tally
        },
        Tally { failed: 0, ..tally },
        Tally {
            failures_allowed: 1,
            ..tally
        },
    ] {
        let plan = Plan {
            tally: said,
            ..good()
        };
        let expected = tally;
        assert_eq!(
            check(&input(), &plan),
            Err(Violation::WrongTally { said, expected })
        );
    }
}

#[test]
fn a_wrong_time_to_look_again_is_refused() {
    for (recheck_at, expected) in [
        (Some(t(60)), "RecheckPast"),
        (Some(t(-1)), "RecheckPast"),
        (Some(t(899)), "RecheckEarly"),
        (Some(t(901)), "RecheckLate"),
        (None, "RecheckLate"),
    ] {
        let plan = Plan { recheck_at, ..good() };
        let violation = check(&input(), &plan).unwrap_err();
        assert_eq!(variant(&violation), expected, "{recheck_at:?}");
    }
}

/// Work on an older release that nobody judges ends at its own deadline, and the slot that waits for it with it.
#[test]
fn the_end_of_older_work_is_a_time_to_look_again() {
    let mut input = input();
    let older = input
        .clusters
        .get_mut("invalid")
        .unwrap()
        .entries
        .get_mut("app")
        .unwrap();
    older.observed = Some(ObservedSync {
        admitted_at: Some(t(-300)),
        ..sync(OLD, Progress::Working)
    });
    let mut plan = good();
    plan.tally.in_flight = 3;
    plan.decisions.insert("idle".into(), hold(HoldReason::NoSlot));
    assert_eq!(variant(&check(&input, &plan).unwrap_err()), "RecheckLate");
    plan.recheck_at = Some(t(600));
    assert_eq!(check(&input, &plan), Ok(()));
}

/// More clusters than slots are at work on the older release. All of them have a slot, but the new one must not
/// have all of them.
#[test]
fn a_release_that_spreads_wider_than_the_slots_is_refused() {
    let mut input = input();
    for name in ["idle", "next"] {
        let cluster = input.clusters.get_mut(name).unwrap();
        cluster.entries.remove("crds");
        cluster.entries.get_mut("app").unwrap().observed = Some(sync(OLD, Progress::Working));
    }
    let mut plan = good();
    plan.tally.in_flight = 4;
    plan.decisions.insert("idle".into(), start(&["app"]));
    assert_eq!(check(&input, &plan), Ok(()));
    plan.decisions.insert("next".into(), start(&["app"]));
    assert_eq!(
        check(&input, &plan),
        Err(Violation::ReleaseTooWide { after: 4, bound: 3 })
    );
}

/// A cluster that was lost holds its slot to its deadline, and has failed from then on.
#[test]
fn a_lost_cluster_must_fail_at_its_deadline() {
    let mut input = input();
    input.now = t(900);
    input.limits.max_failures = IntOrPercent::Int(9);
    let late = check(&input, &good()).unwrap_err();
    assert_eq!(variant(&late), "FailureUnnoticed");
    let expected = Decision::Failed {
        reason: FailureReason::LostAfterAdmission,
        retry_at: None,
    };
    assert_eq!(plan(&input).decisions["lost"], expected);
    assert_eq!(check(&input, &plan(&input)), Ok(()));
}
