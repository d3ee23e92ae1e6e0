//! Properties of the rollout planner: over random fleets, and over random histories of one fleet.

// clippy.toml lets tests unwrap, but does not count the functions that tests share.
#![allow(clippy::unwrap_used)]

mod arbitrary;
mod events;
mod history;
mod journal;
mod world;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use starling_api::OnFailure;
use starling_core::ids::{ClusterName, EntryName};
use starling_core::plan::check::check;
use starling_core::plan::{
    AdmittedRelease, ClusterView, Decision, Direction, EntryView, HoldReason, LeavingCause, ObservedSync,
    Plan, PlanInput, Progress, RemovalDecision, hold_reasons, in_flight_after, plan,
};

use arbitrary::{GOOD, NEW, input};

/// Returns a configuration with this number of cases, or with `PROPTEST_CASES`: a long run raises all properties at
/// once.
fn config(cases: u32) -> ProptestConfig {
    let requested = std::env::var("PROPTEST_CASES").ok();
    let cases = requested.map_or(cases, |requested| requested.parse().unwrap());
    ProptestConfig {
        cases,
        max_global_rejects: cases.saturating_mul(4),
        failure_persistence: None,
        // A case is a whole fleet or history: a little shrinking is enough.
        max_shrink_iters: 500,
        ..ProptestConfig::default()
    }
}

fn started(plan: &Plan) -> BTreeMap<&ClusterName, (&Vec<EntryName>, AdmittedRelease)> {
    plan.decisions
        .iter()
        .filter_map(|(name, decision)| match decision {
            Decision::Start { entries, to } => Some((name, (entries, *to))),
            _ => None,
        })
        .collect()
}

fn retried(plan: &Plan) -> BTreeMap<&ClusterName, (&Vec<EntryName>, Timestamp)> {
    plan.decisions
        .iter()
        .filter_map(|(name, decision)| match decision {
            Decision::Retry {
                entries,
                requested_at,
            } => Some((name, (entries, *requested_at))),
            _ => None,
        })
        .collect()
}

/// Returns the fleet after the plan was executed: its records are stored, and what it starts is admitted now and in
/// progress.
fn execute(input: &PlanInput, plan: &Plan) -> PlanInput {
    let mut after = input.clone();
    let begun = in_flight_after(input, plan).begun;
    after.installation_slots = input.installation_slots.map(|slots| slots - begun);
    let records = plan
        .stages
        .iter()
        .map(|stage| (stage.name.clone(), stage.record.clone()));
    after.rollout.stages.extend(records);
    for (name, decision) in &plan.removals {
        if *decision == RemovalDecision::Remove {
            after.leaving.get_mut(name).unwrap().removing_since = Some(input.now);
        }
    }
    for (name, decision) in &plan.prunes {
        if *decision == RemovalDecision::Remove {
            after.prunes.get_mut(name).unwrap().allowed_at = Some(input.now);
        }
    }
    for (name, (entries, requested_at)) in retried(plan) {
        let cluster = after.clusters.get_mut(name).unwrap();
        for entry in entries {
            let sync = cluster.entries.get_mut(entry).unwrap().observed.as_mut().unwrap();
            sync.admitted_at = Some(input.now);
            sync.progress = Progress::Working;
            sync.retried_for = Some(requested_at);
            input.rollout.release.clone_into(&mut sync.release);
        }
    }
    for (name, (entries, to)) in started(plan) {
        let cluster = after.clusters.get_mut(name).unwrap();
        for entry in entries {
            let entry = cluster.entries.get_mut(entry).unwrap();
            let (target, release) = match to {
                AdmittedRelease::Release => (entry.wanted.clone().ok(), input.rollout.release.clone()),
                AdmittedRelease::LastKnownGood => (entry.known_good.clone(), GOOD.into()),
            };
            entry.observed = Some(ObservedSync {
                stored_admitted_at: None,
                target,
                release,
                admitted_at: Some(input.now),
                progress: Progress::Working,
                retried_for: None,
                suspended: false,
            });
        }
    }
    after
}

/// Whether an entry has failed that blocks what is admitted now: it is of the current release or of the last known good
/// one, which are the ones that may be admitted, or its admission is later by its time; or it has a problem.
fn has_failed(input: &PlanInput, cluster: &ClusterView) -> bool {
    let admitted = cluster
        .entries
        .values()
        .filter_map(|entry| entry.observed.as_ref());
    admitted.into_iter().any(|sync| match &sync.progress {
        Progress::Failing { .. } => {
            [NEW, GOOD].contains(&&*sync.release) || sync.admitted_at >= Some(input.now)
        }
        Progress::Applied(applied) => applied.problem.is_some(),
        Progress::Working => false,
    })
}

proptest! {
    #![proptest_config(config(192))]

    #[test]
    fn every_plan_passes_the_checker(input in input()) {
        let plan = plan(&input);
        prop_assert_eq!(check(&input, &plan), Ok(()), "{:#?}", plan);
    }

    #[test]
    fn the_same_input_gives_the_same_plan(input in input()) {
        let mut again = input.clone();
        again.clusters = input.clusters.clone().into_iter().rev().collect();
        prop_assert_eq!(plan(&input), plan(&again));
    }

    /// The limits in short, independent of the check: counted from the decisions alone.
    #[test]
    fn a_plan_stays_within_its_limits(input in input()) {
        let plan = plan(&input);
        let (total, limits) = (input.clusters.len(), &input.strategy.limits);
        let slots = limits.max_concurrency.of_rounded_up(total).max(1);
        prop_assert_eq!(plan.decisions.len(), total);
        prop_assert_eq!(plan.stages.len() == 1 || input.rollout.direction != Direction::BackAtOnce, true);
        if started(&plan).is_empty() {
            return Ok(());
        }
        let operator = &input.operator;
        prop_assert!(!input.suspended && !input.membership_held);
        prop_assert!(operator.paused.is_none() && operator.aborted.is_none());
        let goes_on = input.strategy.on_failure == OnFailure::Continue
            && input.rollout.direction == Direction::Forward;
        // Skipped clusters do not count, unless this release was admitted there before their stage was skipped.
        let passed_over = |name: &ClusterName| {
            let cluster = &input.clusters[name];
            let with_stage = operator.skipped_stages.contains_key(&input.strategy.stages[cluster.stage].name);
            let mut syncs = cluster.entries.values().filter_map(|entry| entry.observed.as_ref());
            let is_here = syncs.any(|sync| sync.target.is_some() && sync.release == NEW);
            let at_once = input.rollout.direction == Direction::BackAtOnce;
            operator.skipped.contains_key(name) || (with_stage && !is_here && !at_once)
        };
        let failed = plan.decisions.iter().filter(|(name, decision)| {
            matches!(decision, Decision::Failed { .. }) && !passed_over(name)
        });
        let failed = failed.count();
        prop_assert!(goes_on || failed <= limits.max_failures.of_rounded_down(total), "{} failed", failed);
        let busy = |decision: &Decision| {
            matches!(decision, Decision::InFlight { .. } | Decision::Soaking { .. })
        };
        let busy = plan.decisions.values().filter(|decision| busy(decision)).count();
        let fresh = started(&plan).into_keys().filter(|name| {
            let mut syncs = input.clusters[*name].entries.values().filter_map(|entry| entry.observed.as_ref());
            !syncs.any(|sync| sync.release == NEW || sync.progress == Progress::Working)
        });
        // A cluster that is losing an entry has a slot already.
        let loses = |name: &ClusterName| {
            let mut leaving = input.leaving.values();
            leaving.any(|sync| sync.cluster == *name && sync.removing_since.is_some())
        };
        let fresh = fresh.filter(|name| !loses(name));
        let fresh = fresh.count();
        prop_assert!(fresh == 0 || busy + fresh <= slots, "{} beside {} of {}", fresh, busy, slots);
    }

    /// Only a cluster of a stage that is open, or was promoted, starts with the release.
    #[test]
    fn nothing_starts_in_a_stage_that_is_not_open(input in input()) {
        prop_assume!(input.rollout.direction != Direction::BackAtOnce);
        let plan = plan(&input);
        for (name, (_, to)) in started(&plan) {
            let record = &plan.stages[input.clusters[name].stage].record;
            let open = record.opened_at.is_some() || record.passed_at.is_some();
            prop_assert_eq!(open, to == AdmittedRelease::Release, "{}", name);
        }
    }

    /// Recorded times are kept: a record may only grow.
    #[test]
    fn a_record_is_never_lost(input in input()) {
        for stage in plan(&input).stages {
            let Some(old) = input.rollout.stages.get(&stage.name) else { continue };
            let kept = |old: Option<_>, new| old.is_none() || old == new;
            prop_assert!(kept(old.opened_at, stage.record.opened_at), "{:?}", stage);
            prop_assert!(kept(old.completed_at, stage.record.completed_at), "{:?}", stage);
            prop_assert!(kept(old.passed_at, stage.record.passed_at), "{:?}", stage);
        }
    }

    /// After a plan was executed, the next one starts nothing. Only a cluster whose other entries had failed before
    /// this plan completed its admission releases its slot at once: one other cluster may take it, and one may be
    /// admitted to this release in the slot that it has, because the release is done on one cluster more.
    #[test]
    fn planning_again_after_execution_starts_nothing(input in input()) {
        let first = plan(&input);
        let after = execute(&input, &first);
        let second = plan(&after);
        prop_assert_eq!(check(&after, &second), Ok(()));
        prop_assert!(retried(&second).keys().all(|name| !retried(&first).contains_key(*name)));
        // A retry removes a failure, which may let other clusters start.
        prop_assume!(retried(&first).is_empty());
        let starts = started(&second);
        let given_up = started(&first).into_keys().filter(|name| has_failed(&input, &input.clusters[*name])).count();
        prop_assert!(starts.len() <= 2 * given_up, "{:?}", starts);
        prop_assert!(starts.keys().all(|name| !started(&first).contains_key(*name)));
    }

    /// Without that exception: without failures, the next plan changes and records nothing.
    #[test]
    fn planning_again_after_execution_changes_nothing_if_nothing_failed(mut input in input()) {
        for cluster in input.clusters.values_mut() {
            let observed = |entry: &'_ mut EntryView| entry.observed.take();
            for entry in cluster.entries.values_mut() {
                entry.observed = observed(entry).map(|mut sync| {
                    match &mut sync.progress {
                        Progress::Failing { .. } => sync.progress = Progress::Working,
                        Progress::Applied(applied) => applied.problem = None,
                        Progress::Working => {}
                    }
                    sync
                });
            }
        }
        // A cluster past its deadline has failed nevertheless, and may be retried.
        input.operator.retries.clear();
        let first = plan(&input);
        let second = plan(&execute(&input, &first));
        prop_assert_eq!(started(&second), BTreeMap::new(), "after {:#?}", first);
        for (first, second) in first.stages.iter().zip(&second.stages) {
            prop_assert_eq!(&first.record, &second.record);
            prop_assert_eq!(&first.phase, &second.phase);
        }
    }

    /// The meaning of `recheck_at`, by the planner itself: until then, to the nanosecond, no decision and no stage
    /// changes.
    #[test]
    fn time_alone_changes_nothing_before_recheck(input in input()) {
        let mut input = execute(&input, &plan(&input));
        let settled = plan(&input);
        // The removal of an entry begins once the first plan is executed, if the cluster had no slot before.
        let removes = settled.decisions.values().any(|decision| matches!(decision, Decision::Remove { .. }));
        prop_assume!(!removes && started(&settled).is_empty() && retried(&settled).is_empty());
        let kept = execute(&input, &settled);
        let until = settled.recheck_at.unwrap_or(input.now + SignedDuration::from_hours(1000));
        input = kept;
        input.now = until - SignedDuration::from_nanos(1);
        let later = plan(&input);
        prop_assert_eq!(&later.decisions, &settled.decisions);
        for (later, settled) in later.stages.iter().zip(&settled.stages) {
            prop_assert_eq!(&later.phase, &settled.phase);
            prop_assert_eq!(&later.record, &settled.record);
        }
    }

    /// The first hold reason of a cluster is its decision, and time ends it as decided. Slots are the exception, since
    /// all clusters share them: a cluster waits for one only if nothing else holds it.
    #[test]
    fn the_first_hold_reason_is_the_decision(input in input()) {
        for (name, decision) in &plan(&input).decisions {
            let all = hold_reasons(&input, name);
            match decision {
                Decision::Hold {
                    reason: HoldReason::NoSlot
                        | HoldReason::TooManyUnavailable
                        | HoldReason::InstallationLimit,
                    ..
                } => {
                    prop_assert_eq!(all, [], "{} waits for a slot only", name);
                }
                Decision::Hold { reason, recheck_at } => {
                    prop_assert_eq!(all.first(), Some(&(reason.clone(), *recheck_at)), "{}", name);
                }
                _ => prop_assert_eq!(all, [], "nothing holds {}", name),
            }
        }
        prop_assert_eq!(hold_reasons(&input, "nobody"), []);
    }

    /// A suspended group reports the other hold reasons as well, and they are the same as without the suspension.
    #[test]
    fn a_suspended_group_reports_the_other_hold_reasons(input in input()) {
        let mut suspended = input.clone();
        suspended.suspended = true;
        for name in input.clusters.keys() {
            let (without, with) = (hold_reasons(&input, name), hold_reasons(&suspended, name));
            let is_suspended = matches!(plan(&suspended).decisions[name], Decision::Hold { reason: HoldReason::GroupSuspended, .. });
            if !is_suspended || input.suspended {
                prop_assert_eq!(&with, &without, "{}", name);
                continue;
            }
            prop_assert_eq!(&with[0], &(HoldReason::GroupSuspended, None));
            prop_assert_eq!(&with[1..], &without[..], "{}", name);
        }
    }

    /// Making the next plan at every `recheck_at` is enough: after any wait something follows, or nothing is left to
    /// wait for.
    #[test]
    fn the_times_of_next_plans_come_to_an_end(input in input()) {
        let mut input = input;
        for cluster in input.clusters.values_mut() {
            cluster.windows.clear();
        }
        for sync in input.leaving.values_mut() {
            if let LeavingCause::ClusterUnselected { windows, .. } | LeavingCause::GroupDeleted { windows, .. } =
                &mut sync.cause
            {
                windows.clear();
            }
        }
        let mut times = BTreeSet::new();
        for _ in 0..600 {
            let next = plan(&input);
            input = execute(&input, &next);
            let Some(at) = next.recheck_at else { return Ok(()) };
            prop_assert!(at > input.now && times.insert(at));
            input.now = at;
            // Each attempt ends, and what it prunes with it.
            input.prunes.retain(|_, request| request.allowed_at.is_none());
        }
        prop_assert!(false, "there is still a next plan");
    }
}
