//! Good plans, and bad plans that are refused for what is wrong with them.
//!
//! A *mutation* changes a good plan or its input, and names the expected violation. The fleet of this file has one
//! stage and every kind of cluster; that of `stages` has three stages.

mod fleet;
mod removals;
mod retries;
mod stages;
mod windows;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use starling_api::{IntOrPercent, OnFailure, OnUnreachable};

use super::*;
use crate::clock_jumps::ClockJumps;
use crate::plan::stages::*;
use crate::plan::types::*;

const NEW: &str = "new";
const OLD: &str = "old";

fn t(seconds: i64) -> Timestamp {
    // A Tuesday at 22:13:20 UTC.
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

fn attribution() -> Attribution {
    Attribution {
        by: "jane@example.com".into(),
        reason: "so".into(),
        at: t(0),
    }
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
        stored_admitted_at: None,
        retried_for: None,
        target: Some(target.into()),
        release: target.into(),
        admitted_at: Some(t(0)),
        progress,
        suspended: false,
    }
}

fn entry(observed: Option<ObservedSync>) -> EntryView {
    EntryView {
        wanted: Ok(NEW.into()),
        known_good: Some(OLD.into()),
        observed,
    }
}

/// A cluster with one entry, in the first stage.
fn cluster(observed: ObservedSync) -> ClusterView {
    ClusterView {
        id: "uid".into(),
        reach: Reach::Ready,
        stage: 0,
        windows: Vec::new(),
        entries: [("app".into(), entry(Some(observed)))].into(),
    }
}

/// A cluster that holds the older release and is healthy.
fn idle() -> ClusterView {
    cluster(sync(OLD, Progress::healthy_since(t(-500))))
}

fn stage(name: &str, before: &[Gate], after: &[Gate]) -> StageRules {
    StageRules {
        name: name.into(),
        max_concurrency: None,
        max_unavailable: None,
        max_failures: None,
        before: before.to_vec(),
        after: after.to_vec(),
    }
}

/// A rollout of these clusters through these stages, with nothing recorded yet.
fn rollout(stages: Vec<StageRules>, clusters: BTreeMap<ClusterName, ClusterView>) -> PlanInput {
    PlanInput {
        installation_slots: None,
        leaving: BTreeMap::new(),
        returned: Default::default(),
        prunes: Default::default(),
        now: t(60),
        clock_jumps: ClockJumps::default(),
        strategy: Strategy {
            limits: RolloutLimits {
                max_concurrency: IntOrPercent::Int(4),
                max_unavailable: IntOrPercent::Percent(100),
                max_failures: IntOrPercent::Int(2),
                min_success_time: Duration::from_secs(100),
                progress_deadline: Duration::from_secs(900),
                jitter: Duration::ZERO,
            },
            on_failure: OnFailure::Pause,
            on_unreachable: OnUnreachable::Skip,
            windows: Vec::new(),
            stages,
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
        clusters,
    }
}

fn start(entries: &[&str]) -> Decision {
    Decision::Start {
        entries: entries.iter().map(|entry| (*entry).into()).collect(),
        to: AdmittedRelease::Release,
    }
}

fn start_known_good(entries: &[&str]) -> Decision {
    Decision::Start {
        entries: entries.iter().map(|entry| (*entry).into()).collect(),
        to: AdmittedRelease::LastKnownGood,
    }
}

fn hold(reason: HoldReason) -> Decision {
    Decision::Hold {
        reason,
        recheck_at: None,
    }
}

fn hold_until(reason: HoldReason, at: i64) -> Decision {
    Decision::Hold {
        reason,
        recheck_at: Some(t(at)),
    }
}

/// The record of a stage that opened as the rollout began.
fn opened() -> StageRecord {
    StageRecord {
        opened_at: Some(t(0)),
        ..StageRecord::default()
    }
}

/// A plan of a rollout in progress with one stage, which opened as the rollout began.
fn plan_of(decisions: BTreeMap<ClusterName, Decision>, tally: Tally, recheck_at: i64) -> Plan {
    Plan {
        removals: BTreeMap::new(),
        prunes: BTreeMap::new(),
        decisions,
        stages: vec![StagePlan {
            name: REST.into(),
            phase: StagePhase::Open,
            record: opened(),
            tally: Tally { slots: None, ..tally },
        }],
        tally,
        verdict: RolloutVerdict::InProgress,
        recheck_at: Some(t(recheck_at)),
    }
}

/// Returns the name of the variant, and of the stale part for a late next plan.
fn variant(violation: &Violation) -> String {
    let text = format!("{violation:?}");
    text.split([' ', '{']).next().unwrap_or_default().to_owned()
}

/// A change of a good input and its good plan.
type Mutation = fn(&mut PlanInput, &mut Plan);

/// Applies each mutation to a new copy, and expects the violation.
fn refused(good: fn() -> (PlanInput, Plan), mutations: &[(&str, Mutation, &str)]) {
    for (what, mutation, expected) in mutations {
        let (mut input, mut plan) = good();
        assert_eq!(check(&input, &plan), Ok(()), "before: {what}");
        mutation(&mut input, &mut plan);
        let found = check(&input, &plan);
        let actual = found.as_ref().map_or_else(variant, |()| "nothing".into());
        assert_eq!(actual, *expected, "{what}: {found:?}");
    }
}

/// Applies each change to a new copy, and expects that the plan is still good.
fn accepted(good: fn() -> (PlanInput, Plan), changes: &[(&str, Mutation)]) {
    for (what, change) in changes {
        let (mut input, mut plan) = good();
        change(&mut input, &mut plan);
        assert_eq!(check(&input, &plan), Ok(()), "{what}");
    }
}

fn decide(plan: &mut Plan, cluster: &str, decision: Decision) {
    plan.decisions.insert(cluster.into(), decision);
}

fn view<'a>(input: &'a mut PlanInput, cluster: &str) -> &'a mut ClusterView {
    input.clusters.get_mut(cluster).unwrap()
}

/// Returns the Sync of the first entry of a cluster.
fn observed<'a>(input: &'a mut PlanInput, cluster: &str) -> &'a mut ObservedSync {
    let mut entries = view(input, cluster).entries.values_mut();
    entries.next().unwrap().observed.as_mut().unwrap()
}
