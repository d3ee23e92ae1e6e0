//! Scripts of the planner: a fleet in a few characters, and what is decided.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use starling_api::{DeletionPolicy, IntOrPercent, OnFailure, OnUnreachable, RolloutPhase};

use super::*;
use crate::expand::ParameterError;
use crate::ids::ClusterName;

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

fn observed(target: &str, at: i64, progress: Progress) -> ObservedSync {
    ObservedSync {
        stored_admitted_at: None,
        retried_for: None,
        target: Some(target.into()),
        release: target.into(),
        admitted_at: Some(t(at)),
        progress,
        suspended: false,
    }
}

fn failing() -> Progress {
    Progress::Failing {
        reason: "ApplyFailed".into(),
        message: "m".into(),
        retry_at: None,
    }
}

fn held() -> Progress {
    Progress::healthy_since(t(0))
}

fn degraded() -> Progress {
    Progress::Applied(Applied {
        since: None,
        longest: Duration::ZERO,
        problem: Some(HealthProblem {
            reason: "HealthCheckFailed".into(),
            message: "Deployment shop/web: Available: 0/1".into(),
        }),
    })
}

/// A fleet of clusters with one entry, by a script of one character each: `.` never admitted, `o` at the old target,
/// `w` in progress with the old target, `W` in progress with the new target, `d` done, `f` failing, `u` unreachable at
/// the old target, `L` lost after the admission of the new target, `x` without a parameter, `D` done and no longer
/// healthy, `r` and `U` reachable and unreachable after its Sync gave the slot of its admission back.
fn fleet(script: &str) -> BTreeMap<ClusterName, ClusterView> {
    script
        .chars()
        .enumerate()
        .map(|(n, c)| {
            let observed = match c {
                '.' | 'x' => None,
                'o' | 'u' => Some(observed(OLD, 0, held())),
                'w' => Some(observed(OLD, 0, Progress::Working)),
                'r' | 'U' => Some(ObservedSync {
                    target: None,
                    ..observed(NEW, 0, Progress::Working)
                }),
                'W' | 'L' => Some(observed(NEW, 0, Progress::Working)),
                'd' => Some(observed(NEW, 0, held())),
                'f' => Some(observed(NEW, 0, failing())),
                'D' => Some(observed(NEW, 0, degraded())),
                other => panic!("no such cluster: {other}"),
            };
            let wanted = if c == 'x' {
                Err(UnresolvedTarget::parameter("no label"))
            } else {
                Ok(NEW.into())
            };
            let reach = if matches!(c, 'u' | 'L' | 'U') {
                unreachable()
            } else {
                Reach::Ready
            };
            let entry = EntryView {
                wanted,
                known_good: None,
                observed,
            };
            let entries = [("app".into(), entry)].into();
            (
                format!("c{n:03}").into(),
                ClusterView {
                    id: format!("uid-{n}"),
                    reach,
                    stage: 0,
                    windows: Vec::new(),
                    entries,
                },
            )
        })
        .collect()
}

pub(super) fn input(script: &str, max_concurrency: u32, max_failures: u32) -> PlanInput {
    PlanInput {
        installation_slots: None,
        leaving: BTreeMap::new(),
        returned: Default::default(),
        prunes: Default::default(),
        now: t(60),
        clock_jumps: ClockJumps::default(),
        strategy: Strategy {
            limits: RolloutLimits {
                max_concurrency: IntOrPercent::Int(max_concurrency),
                max_unavailable: IntOrPercent::Percent(100),
                max_failures: IntOrPercent::Int(max_failures),
                min_success_time: Duration::ZERO,
                progress_deadline: Duration::from_secs(900),
                jitter: Duration::ZERO,
            },
            on_failure: OnFailure::Pause,
            on_unreachable: OnUnreachable::Skip,
            windows: Vec::new(),
            stages: vec![StageRules {
                name: REST.into(),
                max_concurrency: None,
                max_unavailable: None,
                max_failures: None,
                before: Vec::new(),
                after: Vec::new(),
            }],
        },
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
        clusters: fleet(script),
    }
}

/// The plan in the characters of the script, plus `S` started, `n` no slot, `i` limit of the installation, `b` failure
/// limit, `j` jitter, `g` group
/// suspended or membership held, `l` lost and in flight, `!` failed at its deadline.
fn picture(plan: &Plan) -> String {
    plan.decisions
        .values()
        .map(|decision| match decision {
            Decision::Done => 'd',
            Decision::Start { .. } => 'S',
            Decision::Retry { .. } => 'R',
            Decision::Remove { .. } => 'M',
            Decision::Soaking { .. } => 's',
            Decision::InFlight { lost: false, .. } => 'W',
            Decision::InFlight { lost: true, .. } => 'l',
            Decision::Failed {
                reason: FailureReason::AttemptFailed { .. },
                ..
            } => 'f',
            Decision::Failed { .. } => '!',
            Decision::Hold { reason, .. } => match reason {
                HoldReason::NoSlot => 'n',
                HoldReason::InstallationLimit => 'i',
                HoldReason::TooManyFailures { .. } => 'b',
                HoldReason::Jitter => 'j',
                HoldReason::GroupSuspended | HoldReason::MembershipHeld => 'g',
                HoldReason::ClusterUnreachable { .. } => 'u',
                HoldReason::InvalidParameters { .. } => 'x',
                _ => 'h',
            },
        })
        .collect()
}

#[test]
fn scripts() {
    for (name, fleet, max_concurrency, max_failures, expected) in [
        (
            "a new group starts as many as there are slots",
            "....",
            2,
            0,
            "SSnn",
        ),
        ("slots that are taken are not given twice", "Woo", 1, 0, "Wnn"),
        ("a slot ends at done", "doo", 1, 0, "dSn"),
        (
            "what works on the old release goes on to the new one in its slot",
            "woo",
            1,
            0,
            "Snn",
        ),
        ("and is in flight meanwhile", "wo", 2, 0, "SS"),
        ("but on no more clusters than there are slots", "wwo", 1, 0, "Snn"),
        ("unreachable before admission takes no slot", "uo", 1, 0, "uS"),
        ("unreachable after admission keeps it", "Lo", 1, 0, "ln"),
        (
            "a failing cluster holds none, within the budget",
            "foo",
            1,
            1,
            "fSn",
        ),
        ("and stops the rest beyond it", "foo", 1, 0, "fbb"),
        ("a missing parameter holds its own cluster only", "xo", 1, 0, "xS"),
        (
            "what breaks after it was done stays done and costs neither slot nor budget",
            "DDo",
            1,
            0,
            "ddS",
        ),
        ("nothing to do", "ddd", 1, 0, "ddd"),
        ("nobody", "", 1, 0, ""),
        ("a bound of nothing is one", "oo", 0, 0, "Sn"),
    ] {
        let plan = plan(&input(fleet, max_concurrency, max_failures));
        assert_eq!(picture(&plan), expected, "{name}");
    }
}

/// A revision that cuts its clusters off stops; it does not go through the fleet.
#[test]
fn a_revision_that_cuts_its_clusters_off_stops() {
    for (max_concurrency, max_failures, lost) in [(2, 0, 2), (2, 1, 2), (2, 2, 4), (3, 4, 6), (1, 0, 1)] {
        let mut input = input(&"o".repeat(20), max_concurrency, max_failures);
        let mut cut_off = 0;
        // Each round ends when time alone changes something: at the deadline of the lost clusters.
        for _ in 0..30 {
            let plan = plan(&input);
            for (name, decision) in &plan.decisions {
                if matches!(decision, Decision::Start { .. }) {
                    cut_off += 1;
                    let cluster = input.clusters.get_mut(name).unwrap();
                    cluster.reach = unreachable();
                    cluster.entries.get_mut("app").unwrap().observed = Some(ObservedSync {
                        admitted_at: Some(input.now),
                        ..observed(NEW, 0, Progress::Working)
                    });
                }
            }
            match super::plan(&input).recheck_at {
                Some(at) => input.now = at,
                None => break,
            }
        }
        assert!(
            cut_off <= max_concurrency + max_failures,
            "{cut_off} of {max_concurrency}+{max_failures}"
        );
        assert_eq!(
            cut_off, lost,
            "{max_concurrency} at once, {max_failures} may fail"
        );
        assert_eq!(plan(&input).report(&input).phase, RolloutPhase::Paused);
    }
}

#[test]
fn a_cluster_that_was_lost_fails_at_its_deadline_and_frees_its_slot() {
    let mut input = input("Loo", 1, 1);
    assert_eq!(plan(&input).recheck_at, Some(t(900)));
    input.now = t(900);
    assert_eq!(picture(&plan(&input)), "!Sn");
}

#[test]
fn a_newer_release_does_not_wait_for_a_cluster_lost_on_the_older_one() {
    let mut input = input("wo", 1, 0);
    input.clusters.get_mut("c000").unwrap().reach = unreachable();
    assert_eq!(picture(&plan(&input)), "uS");
}

#[test]
fn entries_that_a_crash_left_out_are_admitted_in_the_same_slot() {
    let mut input = input("oo", 1, 0);
    let entries = &mut input.clusters.get_mut("c001").unwrap().entries;
    entries.insert(
        "crds".into(),
        EntryView {
            wanted: Ok(NEW.into()),
            known_good: None,
            observed: Some(observed(NEW, 30, Progress::Working)),
        },
    );
    let plan = plan(&input);
    assert_eq!(picture(&plan), "nS");
    assert_eq!(
        plan.decisions["c001"],
        Decision::Start {
            entries: vec!["app".into()],
            to: AdmittedRelease::Release,
        }
    );
}

#[test]
fn jitter_spreads_eligibility_over_its_length_and_takes_no_slot() {
    let mut input = input(&"o".repeat(200), 200, 0);
    input.strategy.limits.jitter = Duration::from_secs(100);
    input.now = t(50);
    let half = plan(&input);
    let started = picture(&half).matches('S').count();
    assert!(
        (60..140).contains(&started),
        "{started} of 200 after half of the jitter"
    );
    assert_eq!(picture(&half).matches('j').count(), 200 - started);
    let next = half.recheck_at.unwrap();
    assert!(next > input.now && next < t(50) + SignedDuration::from_secs(10));
    input.now = t(100);
    assert_eq!(picture(&plan(&input)).matches('S').count(), 200);
}

/// Guards against removed entries that stay forever: the only stage of a group has no record in status, and after an
/// operator had skipped it, jitter counted from the time of each plan.
#[test]
fn the_jitter_of_the_only_stage_ends_after_it_was_skipped() {
    let mut input = input("ddd", 3, 0);
    let old = |cluster: &ClusterName| LeavingSync {
        not_ready: false,
        cluster: cluster.clone(),
        entry: "old".into(),
        cause: LeavingCause::EntryRemoved,
        policy: DeletionPolicy::Delete,
        depends_on: BTreeSet::new(),
        removing_since: None,
        suspended: false,
        budget_until: None,
        approval: None,
    };
    let leaving = input
        .clusters
        .keys()
        .map(|cluster| (format!("old-{cluster}").into(), old(cluster)));
    input.leaving = leaving.collect();
    input.strategy.limits.jitter = Duration::from_secs(100);
    let attribution = Attribution {
        by: "jane".into(),
        reason: "so".into(),
        at: t(1),
    };
    input.operator.skipped_stages.insert(REST.into(), attribution);
    input.now = t(100);
    let removes = |decision: &Decision| matches!(decision, Decision::Remove { .. });
    let plan = plan(&input);
    assert!(plan.decisions.values().all(removes), "{:?}", plan.decisions);
}

/// What has begun on a skipped cluster is completed: the checker took the second removal for a start.
#[test]
fn a_skipped_cluster_loses_the_rest_of_what_it_began_to_lose() {
    let mut input = input("d", 1, 0);
    let cluster = input.clusters.keys().next().unwrap().clone();
    let view = input.clusters.get_mut(&cluster).unwrap();
    for entry in view.entries.values_mut() {
        // The same objects as in an earlier release, so nothing of this release was admitted there.
        entry.observed.as_mut().unwrap().release = "earlier".into();
    }
    let old = |entry: &str, removing_since| LeavingSync {
        not_ready: false,
        cluster: cluster.clone(),
        entry: entry.into(),
        cause: LeavingCause::EntryRemoved,
        policy: DeletionPolicy::Delete,
        depends_on: BTreeSet::new(),
        removing_since,
        suspended: false,
        budget_until: None,
        approval: None,
    };
    input.leaving = [
        ("first".into(), old("first", Some(t(90)))),
        ("second".into(), old("second", None)),
    ]
    .into();
    input.operator.skipped.insert(
        cluster.clone(),
        Attribution {
            by: "jane".into(),
            reason: "so".into(),
            at: t(95),
        },
    );
    input.now = t(100);
    let planned = plan(&input);
    assert!(
        matches!(planned.decisions[&cluster], Decision::Remove { .. }),
        "{:?}",
        planned.decisions
    );
    assert_eq!(check::check(&input, &planned), Ok(()));
}

#[test]
fn a_suspended_group_starts_nothing_and_started_clusters_stay_in_flight() {
    let mut input = input("Wof", 2, 5);
    input.suspended = true;
    assert_eq!(picture(&plan(&input)), "Wgf");
    assert_eq!(plan(&input).report(&input).phase, RolloutPhase::Paused);
}

/// T33: while too many clusters have left at once, nothing starts on the remaining ones.
#[test]
fn t33_a_group_whose_membership_is_held_starts_nothing() {
    let mut input = input("Wof", 2, 5);
    input.membership_held = true;
    let plan = plan(&input);
    assert_eq!(picture(&plan), "Wgf");
    let report = plan.report(&input);
    assert_eq!(report.phase, RolloutPhase::Paused);
    assert_eq!(report.blocked_by[0].reason, "MembershipHeld");
}

/// Success on the remaining clusters is not success on the whole group.
#[test]
fn t33_a_group_whose_membership_is_held_has_not_succeeded() {
    let mut input = input("ddd", 2, 5);
    assert_eq!(plan(&input).verdict, RolloutVerdict::Succeeded);
    input.membership_held = true;
    for clusters in [input.clusters.clone(), BTreeMap::new()] {
        input.clusters = clusters;
        let plan = plan(&input);
        assert_eq!(plan.verdict, RolloutVerdict::InProgress);
        let report = plan.report(&input);
        assert_eq!(report.phase, RolloutPhase::Paused);
        assert_eq!(report.blocked_by[0].reason, "MembershipHeld");
        let explanation = crate::explain::group("shop", &input, &plan, None);
        assert_eq!(explanation.blockers[0].reason, "MembershipHeld");
    }
}

/// A member that was lost before anything was written to it holds no slot, and gets one like the others when it is
/// back.
#[test]
fn tenant_a_slot_that_was_given_back_is_free() {
    for (script, expected) in [
        // Four dead members, of which three were admitted.
        ("UUUuoo", "uuuuSS"),
        ("LLLuoo", "llluSn"),
        ("rUUuWWWo", "nuuuWWWn"),
        ("rUUuddWW", "SuuuddWW"),
        ("UUUUdd", "uuuudd"),
    ] {
        let mut input = input(script, 3, 0);
        if script.starts_with('L') {
            input.strategy.limits.max_concurrency = IntOrPercent::Int(4);
        }
        let plan = plan(&input);
        assert_eq!(picture(&plan), expected, "{script}");
        check::check(&input, &plan).unwrap();
    }
    let input = input("UUUUdd", 3, 0);
    assert_eq!(plan(&input).verdict, RolloutVerdict::Succeeded);
}

/// The limit of the installation counts clusters that begin to be in flight, retries among them.
#[test]
fn tenant_the_slots_of_the_installation_limit_what_begins() {
    for (script, slots, expected) in [
        ("oooo", None, "SSSS"),
        ("oooo", Some(0), "iiii"),
        ("oooo", Some(3), "SSSi"),
        ("oooo", Some(9), "SSSS"),
        // These are in flight already: of this release, and of the one before.
        ("WWoo", Some(1), "WWSi"),
        ("wwoo", Some(1), "SSSi"),
        ("ddfu", Some(0), "ddfu"),
    ] {
        let mut input = input(script, 4, 4);
        input.installation_slots = slots;
        let plan = plan(&input);
        assert_eq!(picture(&plan), expected, "{script} {slots:?}");
        check::check(&input, &plan).unwrap();
        let after = in_flight_after(&input, &plan);
        let count = |of: &str| expected.chars().filter(|c| of.contains(*c)).count();
        assert_eq!(after.in_flight, count("SW"), "{script} {slots:?}");
        assert_eq!(after.waiting, count("i"), "{script} {slots:?}");
        assert_eq!(
            after.begun,
            count("S") - script.matches('w').count(),
            "{script} {slots:?}"
        );
    }
    let mut input = input("oo", 4, 4);
    input.installation_slots = Some(1);
    let report = plan(&input).report(&input);
    assert_eq!(report.blocked_by[0].reason, "InstallationLimit");
    let explanation = crate::explain::group("shop", &input, &plan(&input), None);
    assert_eq!(explanation.blockers[0].reason, "InstallationLimit");
}

#[test]
fn every_cluster_counts_once_and_blockers_are_named() {
    let input = input("dWLfuxooD", 2, 5);
    let report = plan(&input).report(&input);
    let counts = report.counts;
    assert_eq!(
        (
            counts.total,
            counts.updated,
            counts.progressing,
            counts.pending,
            counts.failed,
            counts.unreachable,
            counts.on_hold
        ),
        (9, 2, 2, 2, 1, 1, 1)
    );
    assert_eq!(report.degraded, 1);
    assert_eq!(report.blocked_by[0].reason, "NoSlot");
    assert_eq!(report.phase, RolloutPhase::Progressing);
    let troubled: Vec<_> = report
        .problems
        .iter()
        .map(|problem| (problem.cluster.as_str(), problem.reason.as_str()))
        .collect();
    assert_eq!(
        troubled,
        [
            ("c003", "ApplyFailed"),
            ("c008", "HealthCheckFailed"),
            ("c005", "InvalidParameters"),
            ("c002", "Unreachable"),
            ("c004", "Unreachable")
        ]
    );
}

/// Plan inputs are in the journal, where a parameter that cannot be resolved is its text.
#[test]
fn a_target_that_cannot_be_resolved_has_its_kind_in_the_journal() {
    let error = ParameterError::Unclosed { field: "path".into() };
    let text = error.to_string();
    let view = EntryView {
        wanted: Err(error.into()),
        known_good: None,
        observed: None,
    };
    let unreadable = EntryView {
        wanted: Err(UnresolvedTarget::UnreadableSync {
            sync: "shop-c1".into(),
        }),
        ..view.clone()
    };
    for (view, wanted) in [
        (view, serde_json::json!({"parameter": {"message": text}})),
        (
            unreadable,
            serde_json::json!({"unreadableSync": {"sync": "shop-c1"}}),
        ),
    ] {
        let journal = serde_json::json!({"wanted": {"Err": wanted}});
        assert_eq!(serde_json::to_value(&view).unwrap(), journal);
        assert_eq!(serde_json::from_value::<EntryView>(journal).unwrap(), view);
    }
}

/// A Sync that cannot be read had the reason of a wrong parameter, which no operator would find. It comes before a
/// wrong parameter, on whichever entry that is.
#[test]
fn a_sync_that_cannot_be_read_has_a_reason_of_its_own() {
    let mut input = input("d.", 1, 0);
    let entries = &mut input.clusters.get_mut("c001").unwrap().entries;
    let unreadable = EntryView {
        wanted: Err(UnresolvedTarget::UnreadableSync {
            sync: "shop-web-c001".into(),
        }),
        known_good: None,
        observed: None,
    };
    entries.insert("web".into(), unreadable);
    entries.get_mut("app").unwrap().wanted = Err(UnresolvedTarget::parameter("no label"));
    let plan = plan(&input);
    assert_eq!(
        plan.decisions["c001"],
        Decision::Hold {
            reason: HoldReason::SyncUnreadable {
                entry: "web".into(),
                sync: "shop-web-c001".into(),
            },
            recheck_at: None,
        }
    );
    assert_eq!(check::check(&input, &plan), Ok(()));
    let report = plan.report(&input);
    let problem = &report.problems[0];
    assert_eq!(
        (problem.cluster.as_str(), problem.reason.as_str()),
        ("c001", "SyncUnreadable")
    );
    assert!(
        problem.message.contains("Sync shop-web-c001 cannot be read"),
        "{}",
        problem.message
    );
    assert_eq!(report.counts.on_hold, 1);
    let explained = crate::explain::cluster("shop", &input, &plan, "c001").unwrap();
    assert_eq!(explained.blockers[0].reason, "SyncUnreadable");
    assert!(
        explained.next.contains("the controller is updated"),
        "{}",
        explained.next
    );
    let mut wrong = plan;
    let other = Decision::Hold {
        reason: HoldReason::InvalidParameters {
            entry: "app".into(),
            message: "no label".into(),
        },
        recheck_at: None,
    };
    wrong.decisions.insert("c001".into(), other);
    assert!(check::check(&input, &wrong).is_err());
}

/// The status of a group that stays Paused names the suspended cluster.
#[test]
fn a_suspended_cluster_is_named() {
    let mut input = input("do", 1, 0);
    input.clusters.get_mut("c001").unwrap().reach = Reach::Suspended;
    let report = plan(&input).report(&input);
    let named: Vec<_> = report
        .problems
        .iter()
        .map(|problem| (problem.cluster.as_str(), problem.reason.as_str()))
        .collect();
    assert_eq!(named, [("c001", "ClusterSuspended")]);
    assert_eq!(report.counts.on_hold, 1);
    let [blocker] = report.blocked_by.as_slice() else {
        panic!("{:?}", report.blocked_by)
    };
    assert_eq!((blocker.reason, blocker.recheck_at), ("ClusterSuspended", None));
    assert!(blocker.message.contains("such as c001"), "{}", blocker.message);
}

#[test]
fn a_rollout_has_succeeded_when_every_reachable_cluster_is_done() {
    for (fleet, phase) in [
        ("dd", RolloutPhase::Succeeded),
        ("du", RolloutPhase::Succeeded),
        ("dL", RolloutPhase::Progressing),
        ("df", RolloutPhase::Failed),
        ("dx", RolloutPhase::Paused),
        ("dD", RolloutPhase::Succeeded),
        ("", RolloutPhase::Succeeded),
    ] {
        let input = input(fleet, 1, 5);
        assert_eq!(plan(&input).report(&input).phase, phase, "{fleet}");
    }
}

/// One ready cluster with the entries `app` and `crds`, which both want the new target, and `others` clusters at the
/// old target.
fn two_entries(app: ObservedSync, crds: ObservedSync, others: usize) -> PlanInput {
    let mut input = input(&"o".repeat(1 + others), 1, 0);
    let entry = |observed| EntryView {
        wanted: Ok(NEW.into()),
        known_good: None,
        observed: Some(observed),
    };
    let cluster = input.clusters.get_mut("c000").unwrap();
    cluster.entries = [("app".into(), entry(app)), ("crds".into(), entry(crds))].into();
    input
}

/// At the new target since an older release, which this release leaves as it is.
fn unchanged(progress: Progress) -> ObservedSync {
    ObservedSync {
        retried_for: None,
        release: OLD.into(),
        ..observed(NEW, 0, progress)
    }
}

/// A failure that no longer counts because its cluster becomes unreachable would let the next cluster start.
#[test]
fn a_failure_stays_one_when_its_cluster_becomes_unreachable() {
    let mut input = input("fooo", 3, 0);
    assert_eq!(picture(&plan(&input)), "fbbb");
    input.clusters.get_mut("c000").unwrap().reach = unreachable();
    assert_eq!(picture(&plan(&input)), "fbbb");
}

/// Guards against a cluster that never gets what would repair it: the fix of `crds`, because the unchanged `app` failed
/// without it; or the rest of an interrupted admission.
#[test]
fn a_failing_entry_does_not_block_missing_entries() {
    let crds = Decision::Start {
        entries: vec!["crds".into()],
        to: AdmittedRelease::Release,
    };
    for app in [unchanged(failing()), observed(NEW, 0, failing())] {
        let input = two_entries(app, observed(OLD, -10, held()), 1);
        let plan = plan(&input);
        assert_eq!(picture(&plan), "Sn");
        assert_eq!(plan.decisions["c000"], crds);
    }
}

/// Otherwise the fix would go through the fleet: each cluster would release its slot at once because of its older
/// failure.
#[test]
fn an_older_failure_does_not_count_while_the_new_release_is_in_progress() {
    let mut input = two_entries(unchanged(failing()), observed(NEW, 50, Progress::Working), 1);
    input.strategy.limits.max_failures = IntOrPercent::Int(5);
    assert_eq!(picture(&plan(&input)), "Wn");
    let mut skewed = input.clone();
    let app = skewed.clusters.get_mut("c000").unwrap().entries.get_mut("app");
    app.unwrap().observed.as_mut().unwrap().admitted_at = Some(t(70));
    assert_eq!(picture(&plan(&skewed)), "Wn", "though a clock was ahead");
    let crds = input.clusters.get_mut("c000").unwrap().entries.get_mut("crds");
    crds.unwrap().observed = Some(observed(NEW, 50, held()));
    assert_eq!(picture(&plan(&input)), "fS");
}

/// The release does not matter: an entry that is in progress after a failure is in flight, and must not release its
/// slot and take it back later.
#[test]
fn an_older_failure_does_not_count_while_later_entries_are_in_progress() {
    let between = ObservedSync {
        release: "between".into(),
        ..observed(NEW, 40, Progress::Working)
    };
    let mut input = two_entries(unchanged(failing()), between, 1);
    input.strategy.limits.max_failures = IntOrPercent::Int(5);
    let base = EntryView {
        wanted: Ok(NEW.into()),
        known_good: None,
        observed: Some(observed(NEW, 50, held())),
    };
    let cluster = input.clusters.get_mut("c000").unwrap();
    cluster.entries.insert("base".into(), base);
    assert_eq!(picture(&plan(&input)), "Wn");
    input.now = t(950);
    assert_eq!(picture(&plan(&input)), "fS");
}

#[test]
fn a_cluster_lost_on_an_older_release_is_skipped_though_an_entry_is_unchanged() {
    let mut input = two_entries(unchanged(Progress::Working), observed(OLD, 0, held()), 1);
    input.clusters.get_mut("c000").unwrap().reach = unreachable();
    assert_eq!(picture(&plan(&input)), "uS");
}

#[test]
fn a_lost_cluster_keeps_its_slot_though_a_parameter_becomes_invalid() {
    let mut input = two_entries(
        observed(NEW, 0, Progress::Working),
        observed(NEW, 0, Progress::Working),
        1,
    );
    let cluster = input.clusters.get_mut("c000").unwrap();
    cluster.reach = unreachable();
    cluster.entries.get_mut("app").unwrap().wanted = Err(UnresolvedTarget::parameter("no label"));
    assert_eq!(picture(&plan(&input)), "ln");
    input.now = t(900);
    assert_eq!(picture(&plan(&input)), "!b");
}

/// Guards against a slot that older work has for ever, and against a new release that starts at once where the older
/// one makes no progress.
#[test]
fn older_work_has_its_slot_until_its_own_deadline() {
    let mut held = input("woo", 1, 0);
    let entry = held.clusters.get_mut("c000").unwrap().entries.get_mut("app");
    entry.unwrap().wanted = Err(UnresolvedTarget::parameter("no label"));
    let before = plan(&held);
    assert_eq!(picture(&before), "xnn");
    assert_eq!(before.recheck_at, Some(t(900)));
    held.now = t(900);
    assert_eq!(picture(&plan(&held)), "xSn");

    let mut hanging = input("wwwo", 1, 0);
    hanging.now = t(1000);
    assert_eq!(picture(&plan(&hanging)), "Snnn");
    assert_eq!(plan(&hanging).tally.in_flight, 0);
}

#[test]
fn the_deadline_counts_from_the_last_admission_of_a_cluster() {
    let input = two_entries(observed(NEW, 0, Progress::Working), observed(NEW, 40, held()), 0);
    let in_flight = Decision::InFlight {
        deadline: Some(t(940)),
        lost: false,
    };
    assert_eq!(plan(&input).decisions["c000"], in_flight);
}

/// A change of parameters is a start, not the rest of an admission.
#[test]
fn changed_parameters_wait_for_a_slot() {
    let mut input = input("Wddd", 1, 0);
    for cluster in input.clusters.values_mut().skip(1) {
        cluster.entries.get_mut("app").unwrap().wanted = Ok("other label".into());
    }
    assert_eq!(picture(&plan(&input)), "Wnnn");
}

/// In a closed window nothing starts, but an interrupted admission is completed.
#[test]
fn an_interrupted_admission_is_completed_in_a_closed_window() {
    let mut input = two_entries(observed(NEW, 0, Progress::Working), observed(OLD, -60, held()), 1);
    input.strategy.windows = vec![crate::window::Window {
        allow: false,
        days: [true; 7],
        ranges: vec![(0, 24 * 60)],
        zone: jiff::tz::TimeZone::UTC,
    }];
    for cluster in input.clusters.values_mut() {
        cluster.windows = vec![0];
    }
    let planned = plan(&input);
    assert!(
        matches!(planned.decisions["c000"], Decision::Start { .. }),
        "{planned:#?}"
    );
    for other in planned.decisions.values().skip(1) {
        let closed = matches!(
            other,
            Decision::Hold {
                reason: HoldReason::WindowClosed,
                ..
            }
        );
        assert!(closed, "{planned:#?}");
    }
    assert_eq!(check::check(&input, &planned), Ok(()));
}

/// Older work ends at its deadline, and the next plan is made then for what waits for it: a slot, or the availability
/// of the cluster.
#[test]
fn the_next_plan_is_at_the_end_of_older_work_that_blocks_a_cluster() {
    for unavailable in [100, 1] {
        let mut input = input("wo", if unavailable == 1 { 2 } else { 1 }, 0);
        input.strategy.limits.max_unavailable = IntOrPercent::Int(unavailable);
        // The clusters that work on the older release are not to be started themselves.
        input.clusters.get_mut("c000").unwrap().entries.insert(
            "crds".into(),
            EntryView {
                wanted: Err(UnresolvedTarget::parameter("no label")),
                known_good: None,
                observed: None,
            },
        );
        let planned = plan(&input);
        assert!(matches!(planned.decisions["c001"], Decision::Hold { .. }));
        assert_eq!(planned.recheck_at, Some(t(900)), "{planned:#?}");
        assert_eq!(check::check(&input, &planned), Ok(()));
    }
}

/// An unreachable cluster catches up later, whatever else blocks it.
#[test]
fn a_rollout_ends_though_an_unreachable_cluster_lacks_a_parameter() {
    let mut input = input("dx", 1, 0);
    assert_eq!(plan(&input).verdict, RolloutVerdict::InProgress);
    input.clusters.get_mut("c001").unwrap().reach = unreachable();
    assert_eq!(plan(&input).verdict, RolloutVerdict::Succeeded);
}

/// Failures in a skipped stage do not count, unless this release caused them.
#[test]
fn a_failure_in_a_skipped_stage_counts_only_if_this_release_was_admitted() {
    for (release, failed, verdict) in [
        (OLD, 0, RolloutVerdict::Succeeded),
        (NEW, 1, RolloutVerdict::InProgress),
    ] {
        let mut input = input("df", 1, 1);
        let entry = input
            .clusters
            .get_mut("c001")
            .unwrap()
            .entries
            .get_mut("app")
            .unwrap();
        entry.observed.as_mut().unwrap().release = release.into();
        let attribution = Attribution {
            by: "jane".into(),
            reason: "so".into(),
            at: t(0),
        };
        input.operator.skipped_stages.insert(REST.into(), attribution);
        let planned = plan(&input);
        assert_eq!(planned.tally.failed, failed, "{release}");
        assert_eq!(planned.verdict, verdict, "{release}");
        assert_eq!(check::check(&input, &planned), Ok(()));
    }
}

/// A group that is planned at a time when nothing has changed yet would spin; one that is planned too late stands
/// still.
#[test]
fn the_next_plan_is_when_time_changes_a_decision() {
    let windows = |allow: &str| {
        let window = serde_json::json!({"allow": allow});
        vec![crate::window::Window::new(&serde_json::from_value(window).unwrap()).unwrap()]
    };
    // Older work ends at its deadline, which releases a slot for waiting clusters and changes nothing for others.
    let mut leftover = input("wo", 1, 0);
    leftover.now = t(30);
    leftover.suspended = true;
    assert_eq!(plan(&leftover).recheck_at, None);
    leftover.suspended = false;
    leftover
        .clusters
        .get_mut("c000")
        .unwrap()
        .entries
        .get_mut("app")
        .unwrap()
        .wanted = Err(UnresolvedTarget::parameter("no label"));
    assert_eq!(picture(&plan(&leftover)), "xn");
    assert_eq!(plan(&leftover).recheck_at, Some(t(900)));
    // Clusters that only wait for an operator need no calendar. Windows that apply to no cluster are no wait either.
    let mut closed = input("oo", 2, 0);
    closed.strategy.windows = windows("Mon 09:00-10:00");
    assert_eq!(plan(&closed).recheck_at, None);
    for cluster in closed.clusters.values_mut() {
        cluster.windows = vec![0];
    }
    let opens = plan(&closed).recheck_at.expect("it opens");
    assert_eq!(picture(&plan(&closed)), "hh");
    closed.now = opens;
    assert_eq!(picture(&plan(&closed)), "SS");
    closed.now = t(60);
    closed.suspended = true;
    assert_eq!(plan(&closed).recheck_at, None);
}

/// The calendar of a window that does not open within the horizon ends: the next plan is made then.
#[test]
fn a_window_that_never_opens_is_planned_again_when_its_calendar_ends() {
    let mut closed = input("o", 1, 0);
    let never = serde_json::json!({"deny": "00:00-24:00"});
    let never = crate::window::Window::new(&serde_json::from_value(never).unwrap()).unwrap();
    closed.strategy.windows = vec![never];
    closed.clusters.get_mut("c000").unwrap().windows = vec![0];
    let first = plan(&closed).recheck_at.expect("the next plan has a time");
    assert!(first > closed.now + SignedDuration::from_hours(24), "{first}");
    closed.suspended = true;
    assert_eq!(plan(&closed).recheck_at, None);
}

#[test]
fn an_immediate_rollback_has_no_jitter() {
    let mut back = input("oooo", 4, 0);
    back.strategy.limits.jitter = Duration::from_secs(100_000);
    assert_ne!(picture(&plan(&back)), "SSSS");
    back.rollout.direction = Direction::BackAtOnce;
    assert_eq!(picture(&plan(&back)), "SSSS");
}

/// Interrupted admissions come first, then clusters that keep their slot, then the earlier stage.
#[test]
fn slots_go_to_interrupted_admissions_first() {
    let begun = |name: &str, input: &mut PlanInput| {
        let entry = EntryView {
            wanted: Ok(NEW.into()),
            known_good: None,
            observed: Some(observed(NEW, 30, Progress::Working)),
        };
        let entries = &mut input.clusters.get_mut(name).unwrap().entries;
        entries.insert("crds".into(), entry);
    };
    let mut last = input("ooo", 1, 0);
    begun("c002", &mut last);
    assert_eq!(picture(&plan(&last)), "nnS");
    let working = input("oow", 1, 0);
    assert_eq!(picture(&plan(&working)), "nnS");
    let mut both = input("owo", 2, 0);
    begun("c002", &mut both);
    assert_eq!(picture(&plan(&both)), "nSS");
}

/// A stage before the existing ones, with these gates before and after its clusters.
fn canary(before: Vec<Gate>, after: Vec<Gate>) -> StageRules {
    StageRules {
        name: "canary".into(),
        max_concurrency: None,
        max_unavailable: None,
        max_failures: None,
        before,
        after,
    }
}

/// Of the clusters that join a closed stage, one that has a part of the last known good release gets the rest before
/// others start.
#[test]
fn last_known_good_entries_are_completed_before_others_start() {
    const GOOD: &str = "good";
    let mut joined = input("..", 1, 0);
    let canary = canary(vec![Gate::Approval], Vec::new());
    joined.strategy.stages.insert(0, canary);
    for (name, cluster) in &mut joined.clusters {
        cluster.stage = 1;
        let entry = |observed| EntryView {
            wanted: Ok(NEW.into()),
            known_good: Some(GOOD.into()),
            observed,
        };
        let part = (name == "c001").then(|| observed(GOOD, 0, held()));
        cluster.entries = [("app".into(), entry(part)), ("crds".into(), entry(None))].into();
    }
    let plan = plan(&joined);
    assert_eq!(picture(&plan), "nS");
    let rest = Decision::Start {
        entries: vec!["crds".into()],
        to: AdmittedRelease::LastKnownGood,
    };
    assert_eq!(plan.decisions["c001"], rest);
}

/// A window for every cluster that does not open for days.
fn closed(mut input: PlanInput) -> PlanInput {
    let deny = serde_json::from_value(serde_json::json!({"deny": "00:00-24:00"})).unwrap();
    input.strategy.windows = vec![crate::window::Window::new(&deny).unwrap()];
    for cluster in input.clusters.values_mut() {
        cluster.windows = vec![0];
    }
    input
}

/// Only an interrupted admission is completed in a closed window, not a cluster that differs from its target for
/// another reason.
#[test]
fn an_interrupted_admission_is_recognised_by_its_times() {
    let ours = |at| observed(NEW, at, Progress::Working);
    // The older release was admitted before, at the same time, or after.
    for (older, expected) in [(29, 'S'), (30, 'h'), (31, 'h')] {
        let input = closed(two_entries(ours(30), observed(OLD, older, held()), 0));
        assert_eq!(picture(&plan(&input)), expected.to_string(), "{older}");
    }
    // An entry with the last known good release waited for the stage, whenever it received that release.
    let mut input = closed(two_entries(ours(30), observed("good", 40, held()), 0));
    let entries = &mut input.clusters.get_mut("c000").unwrap().entries;
    entries.get_mut("crds").unwrap().known_good = Some("good".into());
    assert_eq!(picture(&plan(&input)), "S");
}

/// The end of a soak changes the state of a cluster, even where no decision has that time.
#[test]
fn the_next_plan_is_at_the_end_of_a_soak_that_changes_a_state() {
    let soaking = observed(NEW, 30, Progress::healthy_since(t(50)));
    let mut begun = two_entries(soaking, observed(OLD, 0, held()), 0);
    begun.strategy.limits.min_success_time = Duration::from_secs(100);
    // Paused while its admission was interrupted: it counts as begun until then.
    let mut paused = begun.clone();
    paused.operator.paused = Some(Attribution {
        by: "jane".into(),
        reason: String::new(),
        at: t(0),
    });
    assert_eq!(picture(&plan(&paused)), "h");
    assert_eq!(plan(&paused).recheck_at, Some(t(150)));
    // Not probed since: it is lost until then.
    begun.clusters.get_mut("c000").unwrap().reach = Reach::Unprobed;
    assert_eq!(picture(&plan(&begun)), "l");
    assert_eq!(plan(&begun).recheck_at, Some(t(150)));
    begun.now = t(150);
    assert_eq!(picture(&plan(&begun)), "h");
    // A cluster that is done or has not begun waits for no soak.
    let mut done = input("o", 1, 0);
    done.operator = paused.operator;
    assert_eq!(plan(&done).recheck_at, None);
}

/// Set forward by an hour, the clock ended every soak, deadline and timed gate at once.
#[test]
fn a_clock_that_is_set_forward_ends_no_soak_deadline_or_timed_gate() {
    const HOUR: i64 = 3600;
    let jumped = |mut input: PlanInput, at: i64| {
        input.now = t(at + HOUR);
        input.clock_jumps.observe(t(100), t(100 + HOUR), Duration::ZERO);
        input
    };
    let mut soaking = input("o", 1, 0);
    soaking.strategy.limits.min_success_time = Duration::from_secs(100);
    let entries = &mut soaking.clusters.get_mut("c000").unwrap().entries;
    entries.get_mut("app").unwrap().observed = Some(observed(NEW, 30, Progress::healthy_since(t(50))));
    assert_eq!(picture(&plan(&jumped(soaking.clone(), 149))), "s");
    assert_eq!(
        plan(&jumped(soaking.clone(), 149)).recheck_at,
        Some(t(150 + HOUR))
    );
    assert_eq!(picture(&plan(&jumped(soaking, 150))), "d");

    let in_flight = input("W", 1, 0);
    let admitted = in_flight.clusters["c000"].entries["app"].observed.as_ref();
    let deadline = admitted.and_then(|sync| sync.admitted_at).unwrap().as_second() - t(0).as_second() + 900;
    assert_eq!(picture(&plan(&jumped(in_flight.clone(), deadline - 1))), "W");
    assert_eq!(picture(&plan(&jumped(in_flight, deadline))), "!");

    let wait = Gate::TimedWait(Duration::from_secs(50));
    let mut gated = input("d", 1, 0);
    gated.strategy.stages.insert(0, canary(Vec::new(), vec![wait]));
    let begun = GateRecord {
        gate: wait,
        begun_at: t(80),
        result: None,
    };
    let record = StageRecord {
        opened_at: Some(t(0)),
        completed_at: Some(t(80)),
        after: vec![begun],
        ..StageRecord::default()
    };
    gated.rollout.stages = [("canary".to_owned(), record)].into();
    let phase = |at| plan(&jumped(gated.clone(), at)).stages[0].phase.clone();
    let until = Some(t(130 + HOUR));
    assert_eq!(
        phase(129),
        StagePhase::Waiting(StageWait::Gate { gate: wait, until })
    );
    assert_eq!(phase(130), StagePhase::Passed);
}

/// While clusters are missing that vanished at once, a stage stays as it is: a gate that has begun is reported, no new
/// gate begins, and a complete stage does not pass.
#[test]
fn a_stage_does_not_advance_while_membership_is_held() {
    let wait = Gate::TimedWait(Duration::from_secs(50));
    let begun = |gate| GateRecord {
        gate,
        begun_at: t(10),
        result: None,
    };
    let phase = |now, after: Vec<GateRecord>, held| {
        let mut input = input("d", 1, 0);
        input.now = t(now);
        input.membership_held = held;
        let canary = canary(Vec::new(), vec![wait, Gate::Approval]);
        input.strategy.stages.insert(0, canary);
        let record = StageRecord {
            opened_at: Some(t(0)),
            completed_at: Some(t(10)),
            after,
            ..StageRecord::default()
        };
        input.rollout.stages = [("canary".to_owned(), record.clone())].into();
        let canary = plan(&input).stages[0].clone();
        assert_eq!(canary.record == record, held, "{now}");
        canary.phase
    };
    let waits = |gate, until| StagePhase::Waiting(StageWait::Gate { gate, until });
    assert_eq!(phase(59, vec![begun(wait)], true), waits(wait, Some(t(60))));
    assert_eq!(phase(60, vec![begun(wait)], true), StagePhase::Open);
    assert_eq!(
        phase(60, vec![begun(wait), begun(Gate::Approval)], true),
        waits(Gate::Approval, None)
    );
    // The strategy has another gate there now.
    assert_eq!(phase(60, vec![begun(Gate::Approval)], true), StagePhase::Open);
    assert_eq!(phase(60, vec![begun(wait)], false), waits(Gate::Approval, None));
}

/// The end of a TimedWait starts nothing while a cluster that joined is in progress. The next plan is made at that end,
/// and not again for it.
#[test]
fn the_next_plan_is_at_the_end_of_a_timed_wait_once() {
    let wait = Gate::TimedWait(Duration::from_secs(50));
    let mut joined = input("W", 1, 0);
    joined.strategy.stages.insert(0, canary(Vec::new(), vec![wait]));
    let record = StageRecord {
        opened_at: Some(t(0)),
        completed_at: Some(t(10)),
        after: vec![GateRecord {
            gate: wait,
            begun_at: t(10),
            result: None,
        }],
        ..StageRecord::default()
    };
    joined.rollout.stages = [("canary".to_owned(), record)].into();
    for (now, next) in [(59, 60), (60, 900), (61, 900)] {
        joined.now = t(now);
        assert_eq!(plan(&joined).recheck_at, Some(t(next)), "at {now}");
    }
}
