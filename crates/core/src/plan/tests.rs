//! Golden scripts of the planner: a few lines of fleet, and what is decided.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use starling_api::{IntOrPercent, OnFailure, OnUnreachable, RolloutPhase};

use super::*;

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
    Progress::Held(Held {
        since: None,
        longest: Duration::ZERO,
        trouble: Some(Trouble {
            reason: "HealthCheckFailed".into(),
            message: "Deployment shop/web: Available: 0/1".into(),
        }),
    })
}

/// A fleet of clusters with one entry, by a script of one character each:
/// `.` never admitted, `o` holds the old target, `w` works on the old one, `W` works on the new one,
/// `d` done, `f` failing, `u` unreachable at the old one, `L` lost on the way to the new one,
/// `x` a parameter missing, `D` done and not healthy any more.
fn fleet(script: &str) -> BTreeMap<String, ClusterView> {
    script
        .chars()
        .enumerate()
        .map(|(n, c)| {
            let observed = match c {
                '.' | 'x' => None,
                'o' | 'u' => Some(observed(OLD, 0, held())),
                'w' => Some(observed(OLD, 0, Progress::Working)),
                'W' | 'L' => Some(observed(NEW, 0, Progress::Working)),
                'd' => Some(observed(NEW, 0, held())),
                'f' => Some(observed(NEW, 0, failing())),
                'D' => Some(observed(NEW, 0, degraded())),
                other => panic!("no such cluster: {other}"),
            };
            let wanted = if c == 'x' {
                Err("no label".to_owned())
            } else {
                Ok(NEW.to_owned())
            };
            let reach = if matches!(c, 'u' | 'L') {
                unreachable()
            } else {
                Reach::Ready
            };
            let entry = EntryView {
                wanted,
                known_good: None,
                observed,
            };
            let entries = [("app".to_owned(), entry)].into();
            (
                format!("c{n:03}"),
                ClusterView {
                    uid: format!("uid-{n}"),
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
        now: t(60),
        strategy: Strategy {
            limits: Limits {
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
        steering: Steering::default(),
        suspended: false,
        membership_held: false,
        clusters: fleet(script),
    }
}

/// The plan in the characters of the script, plus `S` started, `n` no slot, `b` failure budget, `j` jitter,
/// `g` group suspended or its members held, `l` lost and in flight, `!` failed by deadline.
fn picture(plan: &Plan) -> String {
    plan.decisions
        .values()
        .map(|decision| match decision {
            Decision::Done => 'd',
            Decision::Start { .. } => 'S',
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

/// The guard of the whole design: a revision that cuts its cluster off must not march through the fleet.
#[test]
fn a_revision_that_cuts_its_clusters_off_stops() {
    for (max_concurrency, max_failures, lost) in [(2, 0, 2), (2, 1, 2), (2, 2, 4), (3, 4, 6), (1, 0, 1)] {
        let mut input = input(&"o".repeat(20), max_concurrency, max_failures);
        let mut cut_off = 0;
        // Each round ends when time alone changes something: the deadline of those that were lost.
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
fn entries_that_a_crash_left_out_are_admitted_in_the_slot_that_is_held() {
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
            to: To::Release,
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

#[test]
fn a_suspended_group_starts_nothing_and_what_has_started_stays_in_flight() {
    let mut input = input("Wof", 2, 5);
    input.suspended = true;
    assert_eq!(picture(&plan(&input)), "Wgf");
    assert_eq!(plan(&input).report(&input).phase, RolloutPhase::Paused);
}

/// T33: while too many clusters have left at once, nothing more starts on those that stay.
#[test]
fn t33_a_group_whose_members_are_held_starts_nothing() {
    let mut input = input("Wof", 2, 5);
    input.membership_held = true;
    let plan = plan(&input);
    assert_eq!(picture(&plan), "Wgf");
    let report = plan.report(&input);
    assert_eq!(report.phase, RolloutPhase::Paused);
    assert_eq!(report.blocked_by[0].0, "MembershipHeld");
}

/// What succeeded on those that are left has not succeeded on the whole group.
#[test]
fn t33_a_group_whose_members_are_held_is_not_through() {
    let mut input = input("ddd", 2, 5);
    assert_eq!(plan(&input).verdict, Verdict::Through);
    input.membership_held = true;
    for clusters in [input.clusters.clone(), BTreeMap::new()] {
        input.clusters = clusters;
        let plan = plan(&input);
        assert_eq!(plan.verdict, Verdict::Rolls);
        let report = plan.report(&input);
        assert_eq!(report.phase, RolloutPhase::Paused);
        assert_eq!(report.blocked_by[0].0, "MembershipHeld");
        let told = crate::explain::group("shop", &input, &plan);
        assert_eq!(told.chain[0].reason, "MembershipHeld");
    }
}

#[test]
fn every_cluster_counts_once_and_what_blocks_is_named() {
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
            counts.held
        ),
        (9, 2, 2, 2, 1, 1, 1)
    );
    assert_eq!(report.degraded, 1);
    assert_eq!(report.blocked_by[0].0, "NoSlot");
    assert_eq!(report.phase, RolloutPhase::Progressing);
    let troubled: Vec<_> = report
        .problems
        .iter()
        .map(|(name, reason, ..)| (name.as_str(), reason.as_str()))
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

/// Whoever wonders why a group stays Paused finds the cluster that somebody suspended.
#[test]
fn a_suspended_cluster_is_named() {
    let mut input = input("do", 1, 0);
    input.clusters.get_mut("c001").unwrap().reach = Reach::Suspended;
    let report = plan(&input).report(&input);
    let named: Vec<_> = report
        .problems
        .iter()
        .map(|(name, reason, ..)| (name.as_str(), reason.as_str()))
        .collect();
    assert_eq!(named, [("c001", "ClusterSuspended")]);
    assert_eq!(report.counts.held, 1);
    let [(reason, message, None)] = report.blocked_by.as_slice() else {
        panic!("{:?}", report.blocked_by)
    };
    assert_eq!(*reason, "ClusterSuspended");
    assert!(message.contains("such as c001"), "{message}");
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

/// One ready cluster with the entries `app` and `crds`, both wanted at the new target, and as many others at the
/// old one as `others` says.
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

/// At the new target since an older release, which this one leaves as it is.
fn unchanged(progress: Progress) -> ObservedSync {
    ObservedSync {
        release: OLD.into(),
        ..observed(NEW, 0, progress)
    }
}

/// Guards against a budget that was given back by losing sight of the cluster that had used it up.
#[test]
fn a_failure_stays_one_when_its_cluster_becomes_unreachable() {
    let mut input = input("fooo", 3, 0);
    assert_eq!(picture(&plan(&input)), "fbbb");
    input.clusters.get_mut("c000").unwrap().reach = unreachable();
    assert_eq!(picture(&plan(&input)), "fbbb");
}

/// Guards against a cluster that never got what would have repaired it: the fix of `crds`, because `app`, which
/// no one changed, had failed for want of it; or the rest of an admission that a crash had cut short.
#[test]
fn a_failing_entry_does_not_keep_the_missing_ones_out() {
    let crds = Decision::Start {
        entries: vec!["crds".into()],
        to: To::Release,
    };
    for app in [unchanged(failing()), observed(NEW, 0, failing())] {
        let input = two_entries(app, observed(OLD, -10, held()), 1);
        let plan = plan(&input);
        assert_eq!(picture(&plan), "Sn");
        assert_eq!(plan.decisions["c000"], crds);
    }
}

/// Else the fix would march: each cluster that gets it would give up its slot at once for its older failure.
#[test]
fn an_older_failure_waits_for_what_the_new_release_brings() {
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

/// Whichever release brought it: what is at work after a failure is in flight, and must not give its slot up and
/// take it back later.
#[test]
fn an_older_failure_waits_for_what_came_after_it() {
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
    cluster.entries.get_mut("app").unwrap().wanted = Err("no label".into());
    assert_eq!(picture(&plan(&input)), "ln");
    input.now = t(900);
    assert_eq!(picture(&plan(&input)), "!b");
}

/// Guards against a slot that is held for ever by work that nobody judges any more, and against a new release that
/// starts at once wherever the old one hangs.
#[test]
fn older_work_holds_its_slot_until_its_own_deadline() {
    let mut held = input("woo", 1, 0);
    let entry = held.clusters.get_mut("c000").unwrap().entries.get_mut("app");
    entry.unwrap().wanted = Err("no label".into());
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

/// A change of parameters is a start like any other, not the rest of an admission.
#[test]
fn changed_parameters_wait_for_a_slot() {
    let mut input = input("Wddd", 1, 0);
    for cluster in input.clusters.values_mut().skip(1) {
        cluster.entries.get_mut("app").unwrap().wanted = Ok("other label".into());
    }
    assert_eq!(picture(&plan(&input)), "Wnnn");
}

/// A closed window lets nothing start, but what was cut short between two entries has started, and finishes.
#[test]
fn what_a_crash_cut_short_finishes_in_a_closed_window() {
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

/// Work on an older release ends at its deadline, and what waited for that is looked at again then: for a slot, and for the
/// cluster to be available.
#[test]
fn the_end_of_older_work_wakes_who_waits_for_room() {
    for unavailable in [100, 1] {
        let mut input = input("wo", if unavailable == 1 { 2 } else { 1 }, 0);
        input.strategy.limits.max_unavailable = IntOrPercent::Int(unavailable);
        // What works on the older release is not to be started itself.
        input.clusters.get_mut("c000").unwrap().entries.insert(
            "crds".into(),
            EntryView {
                wanted: Err("no label".into()),
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

/// A cluster that cannot be reached is caught up with later, whatever else is wrong with it.
#[test]
fn a_rollout_ends_though_an_unreachable_cluster_lacks_a_parameter() {
    let mut input = input("dx", 1, 0);
    assert_eq!(plan(&input).verdict, Verdict::Rolls);
    input.clusters.get_mut("c001").unwrap().reach = unreachable();
    assert_eq!(plan(&input).verdict, Verdict::Through);
}

/// A stage that was passed over takes its clusters' failures out of the budget, unless this release brought them.
#[test]
fn what_fails_in_a_stage_that_was_passed_over_counts_only_if_this_release_came_there() {
    for (release, failed, verdict) in [(OLD, 0, Verdict::Through), (NEW, 1, Verdict::Rolls)] {
        let mut input = input("df", 1, 1);
        let entry = input
            .clusters
            .get_mut("c001")
            .unwrap()
            .entries
            .get_mut("app")
            .unwrap();
        entry.observed.as_mut().unwrap().release = release.into();
        let word = Word {
            by: "jane".into(),
            reason: "so".into(),
            at: t(0),
        };
        input.steering.skipped_stages.insert(REST.into(), word);
        let planned = plan(&input);
        assert_eq!(planned.tally.failed, failed, "{release}");
        assert_eq!(planned.verdict, verdict, "{release}");
        assert_eq!(check::check(&input, &planned), Ok(()));
    }
}

/// A group that is told to try again at a time at which nothing has changed yet would spin; one that is told too late stands still.
#[test]
fn the_next_look_is_when_time_changes_something_for_somebody() {
    let windows = |allow: &str| {
        let window = serde_json::json!({"allow": allow});
        vec![crate::window::Window::new(&serde_json::from_value(window).unwrap()).unwrap()]
    };
    // Work on the older release ends at its deadline, which gives room to whoever waits for it, and is nothing to others.
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
        .wanted = Err("no label".into());
    assert_eq!(picture(&plan(&leftover)), "xn");
    assert_eq!(plan(&leftover).recheck_at, Some(t(900)));
    // Who waits for nothing but people looks at no calendar. What is about nobody is no wait either.
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

/// The calendar of a window that does not open as far as is looked ahead ends: then it is looked at again.
#[test]
fn a_window_that_never_opens_is_looked_at_when_its_calendar_ends() {
    let mut closed = input("o", 1, 0);
    let never = serde_json::json!({"deny": "00:00-24:00"});
    let never = crate::window::Window::new(&serde_json::from_value(never).unwrap()).unwrap();
    closed.strategy.windows = vec![never];
    closed.clusters.get_mut("c000").unwrap().windows = vec![0];
    let first = plan(&closed).recheck_at.expect("it is looked at again");
    assert!(first > closed.now + SignedDuration::from_hours(24), "{first}");
    closed.suspended = true;
    assert_eq!(plan(&closed).recheck_at, None);
}

#[test]
fn on_the_way_back_at_once_nobody_waits_for_jitter() {
    let mut back = input("oooo", 4, 0);
    back.strategy.limits.jitter = Duration::from_secs(100_000);
    assert_ne!(picture(&plan(&back)), "SSSS");
    back.rollout.direction = Direction::BackAtOnce;
    assert_eq!(picture(&plan(&back)), "SSSS");
}

/// What was begun comes first, then what goes on in the slot that it has, then the earlier stage.
#[test]
fn slots_go_to_what_was_begun_first() {
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

/// A stage to put before those that there are, with such gates before and after its clusters.
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

/// Of clusters that join behind a closed stage the one that has a part of the last known good release gets the rest before others begin.
#[test]
fn what_was_good_is_completed_before_it_is_begun() {
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
        to: To::LastKnownGood,
    };
    assert_eq!(plan.decisions["c001"], rest);
}

/// A window about every cluster that does not open for days.
fn closed(mut input: PlanInput) -> PlanInput {
    let deny = serde_json::from_value(serde_json::json!({"deny": "00:00-24:00"})).unwrap();
    input.strategy.windows = vec![crate::window::Window::new(&deny).unwrap()];
    for cluster in input.clusters.values_mut() {
        cluster.windows = vec![0];
    }
    input
}

/// Only what was begun goes on through a closed window: an admission that was cut short, not one that misses its target for another
/// reason.
#[test]
fn what_was_begun_is_known_by_its_admissions() {
    let ours = |at| observed(NEW, at, Progress::Working);
    // The older release came before, at the same time, or after.
    for (older, expected) in [(29, 'S'), (30, 'h'), (31, 'h')] {
        let input = closed(two_entries(ours(30), observed(OLD, older, held()), 0));
        assert_eq!(picture(&plan(&input)), expected.to_string(), "{older}");
    }
    // What holds the last known good release waited with it for the stage, whenever it got that.
    let mut input = closed(two_entries(ours(30), observed("good", 40, held()), 0));
    let entries = &mut input.clusters.get_mut("c000").unwrap().entries;
    entries.get_mut("crds").unwrap().known_good = Some("good".into());
    assert_eq!(picture(&plan(&input)), "S");
}

/// A soak that ends changes what a cluster is, also where no decision carries its time.
#[test]
fn the_end_of_a_soak_is_looked_at_where_it_matters_by_itself() {
    let soaking = observed(NEW, 30, Progress::healthy_since(t(50)));
    let mut begun = two_entries(soaking, observed(OLD, 0, held()), 0);
    begun.strategy.limits.min_success_time = Duration::from_secs(100);
    // Paused while its admission was cut short: it counts as begun until then.
    let mut paused = begun.clone();
    paused.steering.paused = Some(Word {
        by: "jane".into(),
        reason: String::new(),
        at: t(0),
    });
    assert_eq!(picture(&plan(&paused)), "h");
    assert_eq!(plan(&paused).recheck_at, Some(t(150)));
    // Not probed since: it is lost on the way until then.
    begun.clusters.get_mut("c000").unwrap().reach = Reach::Unprobed;
    assert_eq!(picture(&plan(&begun)), "l");
    assert_eq!(plan(&begun).recheck_at, Some(t(150)));
    begun.now = t(150);
    assert_eq!(picture(&plan(&begun)), "h");
    // What is done or has not begun waits for no soak.
    let mut done = input("o", 1, 0);
    done.steering = paused.steering;
    assert_eq!(plan(&done).recheck_at, None);
}

/// While clusters are missing that vanished all at once, a stage is where it was: a gate that has begun is told and none begins, and
/// what is over does not pass.
#[test]
fn a_stage_stays_where_it_is_while_members_are_held() {
    let wait = Gate::TimedWait(Duration::from_secs(50));
    let begun = |gate| GateRecord {
        gate,
        begun_at: t(10),
        found: None,
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
    // Another gate stands there by now.
    assert_eq!(phase(60, vec![begun(Gate::Approval)], true), StagePhase::Open);
    assert_eq!(phase(60, vec![begun(wait)], false), waits(Gate::Approval, None));
}

/// A wait of a stage that is over lets nobody go while a cluster that joined is at work. It is looked at when it ends, and not again.
#[test]
fn the_end_of_a_wait_is_looked_at_once() {
    let wait = Gate::TimedWait(Duration::from_secs(50));
    let mut joined = input("W", 1, 0);
    joined.strategy.stages.insert(0, canary(Vec::new(), vec![wait]));
    let record = StageRecord {
        opened_at: Some(t(0)),
        completed_at: Some(t(10)),
        after: vec![GateRecord {
            gate: wait,
            begun_at: t(10),
            found: None,
        }],
        ..StageRecord::default()
    };
    joined.rollout.stages = [("canary".to_owned(), record)].into();
    for (now, next) in [(59, 60), (60, 900), (61, 900)] {
        joined.now = t(now);
        assert_eq!(plan(&joined).recheck_at, Some(t(next)), "at {now}");
    }
}
