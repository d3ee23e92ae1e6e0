//! Why something is not done yet: what stands in its way, in order; what ends that; and when it may be done.
//!
//! All of it follows from what the planner is told. So it can be asked of the present, of a moment that the journal tells of, and
//! of a fleet that nobody has.

mod forecast;
mod obstacle;

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

pub use forecast::{Durations, Estimate, estimate_cluster, estimate_group, took};
use obstacle::{Teller, rank};

use crate::plan::{
    Decision, HoldReason, Plan, PlanInput, StagePhase, StageWait, Verdict, everything_in_the_way,
};

/// Clusters that are named where there are many; the rest is counted.
const NAMED: usize = 5;

/// Why a cluster or a group is as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// How it stands, in a sentence.
    pub state: String,
    /// What stands in its way: all of it has to go, and it goes in this order. Empty: nothing does.
    pub chain: Vec<Link>,
    /// What happens next, or has to, so that it goes on; empty: there is nothing to go on with.
    pub next: String,
    /// When that is, where time brings it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_at: Option<Timestamp>,
}

/// Something that stands in the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Link {
    /// The word for it, as in status.
    pub reason: String,
    /// For people.
    pub text: String,
    /// When time takes it away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// What takes it away.
    pub ends_with: String,
}

/// Why a cluster is as it is; `None`: the group does not select it.
#[must_use]
pub fn cluster(group: &str, input: &PlanInput, plan: &Plan, name: &str) -> Option<Explanation> {
    let view = input.clusters.get(name)?;
    let decision = plan.decisions.get(name)?;
    let teller = Teller { group, input, plan };
    let plain = |state: String, next: &str, next_at| Explanation {
        state,
        chain: Vec::new(),
        next: next.to_owned(),
        next_at,
    };
    Some(match decision {
        Decision::Done => plain("holds this release".to_owned(), "", None),
        Decision::Start { entries, .. } => {
            let entries = entries.join(", ");
            plain(
                format!("is started now, with {entries}"),
                "it is healthy with it",
                None,
            )
        }
        Decision::InFlight { deadline, lost } => {
            let lost = if *lost {
                ", and cannot be reached since"
            } else {
                ""
            };
            let limit = deadline.map_or_else(String::new, |at| format!("; it counts as failed at {at}"));
            plain(
                format!("is being brought to this release{lost}{limit}"),
                "it is healthy with it",
                None,
            )
        }
        Decision::Soaking { until } => plain(
            format!("is healthy with this release, and has to stay so until {until}"),
            "its soak ends",
            Some(*until),
        ),
        Decision::Failed { reason, retry_at } => Explanation {
            state: "failed".to_owned(),
            chain: vec![Link {
                reason: reason.as_str().to_owned(),
                text: reason.to_string(),
                until: None,
                ends_with: format!(
                    "its Sync succeeds with a further attempt, or a new revision comes; at once: {}",
                    command("retry", &[group, "--cluster", name])
                ),
            }],
            next: "its Sync tries again".to_owned(),
            next_at: *retry_at,
        },
        Decision::Hold { reason, recheck_at } => {
            let mut chain: Vec<Link> = everything_in_the_way(input, name)
                .iter()
                .map(|(reason, until)| teller.link(reason, *until, Some((name, view))))
                .collect();
            if chain.is_empty() {
                chain.push(teller.link(reason, *recheck_at, Some((name, view))));
            }
            chain.extend(teller.afterwards(reason, view));
            waiting("waits to be started", chain)
        }
    })
}

fn waiting(state: &str, chain: Vec<Link>) -> Explanation {
    let first = chain.first();
    Explanation {
        state: state.to_owned(),
        next: first.map(|link| link.ends_with.clone()).unwrap_or_default(),
        next_at: first.and_then(|link| link.until),
        chain,
    }
}

/// Why a group is as it is.
#[must_use]
pub fn group(group: &str, input: &PlanInput, plan: &Plan) -> Explanation {
    let teller = Teller { group, input, plan };
    let report = plan.report(input);
    let stage = match report.stage.as_str() {
        stage if !stage.is_empty() && plan.stages.len() > 1 => format!(", in stage {stage}"),
        _ => String::new(),
    };
    let counts = report.counts;
    let mut state = format!(
        "{:?}{stage}: {} of {} clusters hold this release",
        report.phase, counts.updated, counts.total
    );
    for (count, what) in [
        (counts.progressing, "in flight"),
        (counts.pending, "waiting"),
        (counts.failed, "failed"),
        (counts.unreachable, "unreachable"),
        (counts.held, "held by something of their own"),
    ] {
        if count > 0 {
            state.push_str(&format!(", {count} {what}"));
        }
    }
    if plan.verdict == Verdict::Through {
        return Explanation {
            state,
            chain: Vec::new(),
            next: String::new(),
            next_at: None,
        };
    }
    let mut chain = obstacles(&teller);
    if chain.is_empty() {
        chain.extend(work_under_way(&teller));
    }
    if chain.is_empty() && input.membership_held {
        chain.push(teller.link(&HoldReason::MembershipHeld, None, None));
    }
    let mut told = waiting("", chain);
    told.state = state;
    told
}

/// What keeps clusters of the group back, each once, with how many it is about.
fn obstacles(teller: &Teller<'_>) -> Vec<Link> {
    let mut waiting: BTreeMap<usize, (&HoldReason, Vec<&str>, Option<Timestamp>)> = BTreeMap::new();
    for (name, decision) in &teller.plan.decisions {
        if let Decision::Hold { reason, recheck_at } = decision {
            let known = waiting.entry(rank(reason)).or_insert((reason, Vec::new(), None));
            known.1.push(name);
            known.2 = [known.2, *recheck_at].into_iter().flatten().min();
        }
    }
    // What concerns single clusters does not keep the group: it comes last.
    let (own, shared): (Vec<_>, Vec<_>) = waiting.into_values().partition(|(reason, ..)| is_own(reason));
    let told = shared.into_iter().chain(own).map(|(reason, clusters, until)| {
        let example = clusters.first().and_then(|name| {
            let view = teller.input.clusters.get(*name)?;
            Some((*name, view))
        });
        let mut link = teller.link(reason, until, example);
        link.text = format!("{} ({})", link.text, names(&clusters));
        link
    });
    told.collect()
}

/// Whether it keeps one cluster back, and no other.
fn is_own(reason: &HoldReason) -> bool {
    matches!(
        reason,
        HoldReason::Skipped(_)
            | HoldReason::ClusterSuspended
            | HoldReason::SyncSuspended { .. }
            | HoldReason::InvalidParameters { .. }
            | HoldReason::ClusterNotProbed
            | HoldReason::ClusterUnreachable { .. }
    )
}

/// What the group waits for where nobody waits to be started: the stage's gate, or those at work.
fn work_under_way(teller: &Teller<'_>) -> Option<Link> {
    let stage = teller.plan.current_stage()?;
    if let StagePhase::Waiting(wait) = &stage.phase
        && !matches!(wait, StageWait::Clusters { .. })
    {
        return Some(teller.stage_waits(stage, wait));
    }
    let of = |wanted: fn(&Decision) -> bool| {
        let found = teller
            .plan
            .decisions
            .iter()
            .filter(|(_, decision)| wanted(decision));
        found.map(|(name, _)| name.as_str()).collect::<Vec<_>>()
    };
    let working = of(|decision| {
        matches!(
            decision,
            Decision::Start { .. } | Decision::InFlight { .. } | Decision::Soaking { .. }
        )
    });
    if !working.is_empty() {
        return Some(Link {
            reason: "Progressing".to_owned(),
            text: format!("clusters are being brought to this release: {}", names(&working)),
            until: None,
            ends_with: "they are healthy with it".to_owned(),
        });
    }
    let failed = of(|decision| matches!(decision, Decision::Failed { .. }));
    (!failed.is_empty()).then(|| Link {
        reason: "Failed".to_owned(),
        text: format!("clusters failed: {}", names(&failed)),
        until: None,
        ends_with: format!(
            "their Syncs succeed with a further attempt, or a new revision comes; at once: {}",
            command("retry", &[teller.group])
        ),
    })
}

/// A command to copy, whole but for the reason, which every word of a person needs. It names no namespace: none is known here, so it
/// is meant for where the question was asked.
fn command(verb: &str, arguments: &[&str]) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let arguments = arguments.iter().map(|argument| {
        if argument.bytes().all(is_plain) {
            (*argument).to_owned()
        } else {
            // The stage of the rest is `*`, which a shell takes for the files of its folder.
            format!("'{argument}'")
        }
    });
    let arguments: Vec<String> = arguments.collect();
    format!("starling {verb} {} --reason \"…\"", arguments.join(" "))
}

/// Some names, and how many more there are.
fn names(clusters: &[&str]) -> String {
    let mut named = clusters
        .iter()
        .take(NAMED)
        .copied()
        .collect::<Vec<_>>()
        .join(", ");
    if clusters.len() > NAMED {
        named.push_str(&format!(" and {} more", clusters.len() - NAMED));
    }
    named
}

#[cfg(test)]
mod tests;
