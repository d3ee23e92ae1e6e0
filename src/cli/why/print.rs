//! Prints explanations.

use jiff::Timestamp;
use starling_core::explain::Estimate;

use crate::cli::output::{self, Form, Table};
use crate::cli::removals;
use crate::read_model::explanation::{ClusterState, SubjectExplanation};
use crate::read_model::history;

pub(super) fn print(explanations: &[SubjectExplanation], form: Form) -> anyhow::Result<()> {
    match form {
        Form::Json => output::print_value(&explanations, false)?,
        Form::Text => {
            let texts: Vec<String> = explanations.iter().map(text_of).collect();
            output::print(&texts.join("\n"));
        }
    }
    Ok(())
}

fn text_of(explained: &SubjectExplanation) -> String {
    let mut text = headline(explained);
    let blockers = explained.explanation.blockers.iter().enumerate();
    for (place, blocker) in blockers {
        let then = if place == 0 { "" } else { "then " };
        text.push_str(&format!(
            "  {}. {then}{} [{}]\n",
            place + 1,
            blocker.text,
            blocker.reason
        ));
        text.push_str(&format!("     until {}\n", blocker.ends_with));
    }
    if explained.explanation.blockers.is_empty() && !explained.explanation.next.is_empty() {
        text.push_str(&format!("Next: {}\n", explained.explanation.next));
    }
    if let Some(at) = explained.explanation.next_at {
        text.push_str(&format!("Next event: {at}\n"));
    }
    text.push_str(&removals::text(&explained.removals));
    if let Some(estimate) = &explained.estimate {
        text.push_str(&eta(estimate, explained.at));
    }
    if !explained.clusters.is_empty() {
        text.push_str(&cluster_table(&explained.clusters).text());
    }
    for action in &explained.actions {
        let attribution = &action.attribution;
        let why = if attribution.reason.is_empty() {
            String::new()
        } else {
            format!(": {}", attribution.reason)
        };
        text.push_str(&format!(
            "{}  {} by {}{why}\n",
            attribution.at, action.what, attribution.by
        ));
    }
    for release in &explained.lost {
        text.push_str(&format!(
            "No rollback to rollout {}: {}\n",
            release.rollout,
            history::lost_text(&release.revisions)
        ));
    }
    text
}

fn headline(explained: &SubjectExplanation) -> String {
    let of = match (&explained.group, explained.rollout) {
        (Some(group), Some(rollout)) => format!(", rollout {rollout} of {group}"),
        (Some(group), None) => format!(", of {group}"),
        (None, _) => String::new(),
    };
    let when = match explained.entry {
        Some(entry) => format!(
            " at {} (journal entry {}, written {})",
            explained.at, entry.number, entry.written_at
        ),
        None => String::new(),
    };
    format!(
        "{}{of}{when}: {}\n",
        explained.subject, explained.explanation.state
    )
}

fn eta(estimate: &Estimate, now: Timestamp) -> String {
    match estimate {
        Estimate::At { done_at, .. } if *done_at <= now => String::new(),
        Estimate::At {
            starts_at,
            done_at,
            recorded,
        } => {
            let starts = starts_at.map_or_else(String::new, |at| format!("starts about {at}, "));
            format!("ETA: {starts}done about {done_at} (from {recorded} recorded durations)\n")
        }
        Estimate::Unknown { why } => format!("No ETA: {why}\n"),
    }
}

fn cluster_table(clusters: &[ClusterState]) -> Table {
    let mut table = Table::new(&["CLUSTER", "STAGE", "ENTRY", "REVISION", "STATE", "DECISION"]);
    for state in clusters {
        for (name, entry) in &state.entries {
            let row = [
                state.cluster.as_str(),
                &state.stage,
                name,
                &entry.revision,
                &entry.state,
                &state.decision,
            ];
            table.push(row.map(str::to_owned).to_vec());
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use starling_api::DeletionPolicy;
    use starling_core::explain::{ExplainedBlocker, Explanation};
    use starling_core::journal::past::RecordedAction;
    use starling_core::plan::Attribution;

    use super::*;
    use crate::read_model::explanation::{EntryReference, EntryState, LostRelease};
    use crate::read_model::removals::{PlannedRemoval, RemovalCause};

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn an_explanation_is_a_state_its_blockers_and_an_eta() {
        let blocker = |reason: &str, text: &str, ends_with: &str| ExplainedBlocker {
            reason: reason.into(),
            text: text.into(),
            until: None,
            ends_with: ends_with.into(),
        };
        let mut explained = SubjectExplanation {
            subject: "cluster/b".into(),
            group: Some("shop/web".into()),
            at: time("2026-11-20T10:00:00Z"),
            rollout: Some(3),
            entry: None,
            explanation: Explanation {
                state: "waits to start".into(),
                blockers: vec![
                    blocker("WindowClosed", "the window is closed", "the window opens"),
                    blocker("NoSlot", "a slot: 1 of 1 in use now", "a slot is free"),
                ],
                next: "the window opens".into(),
                next_at: Some(time("2026-11-20T15:00:00Z")),
            },
            removals: vec![PlannedRemoval {
                cause: RemovalCause::EntryRemoved { entry: "old".into() },
                policy: DeletionPolicy::Delete,
                objects: 12,
                clusters: vec!["b".into()],
            }],
            estimate: Some(Estimate::At {
                starts_at: Some(time("2026-11-20T15:00:00Z")),
                done_at: time("2026-11-20T15:01:00Z"),
                recorded: 3,
            }),
            clusters: Vec::new(),
            actions: Vec::new(),
            lost: Vec::new(),
        };
        assert_eq!(
            text_of(&explained),
            "cluster/b, rollout 3 of shop/web: waits to start\n  \
             1. the window is closed [WindowClosed]\n     \
             until the window opens\n  \
             2. then a slot: 1 of 1 in use now [NoSlot]\n     \
             until a slot is free\n\
             Next event: 2026-11-20T15:00:00Z\n\
             removes 12 objects on 1 cluster (b): the group no longer has entry old\n\
             ETA: starts about 2026-11-20T15:00:00Z, done about 2026-11-20T15:01:00Z (from 3 recorded durations)\n"
        );
        explained.entry = Some(EntryReference {
            number: 7,
            written_at: time("2026-11-20T09:59:00Z"),
        });
        (
            explained.explanation.blockers,
            explained.explanation.next,
            explained.explanation.next_at,
        ) = (Vec::new(), "the soak ends".into(), None);
        explained.estimate = None;
        explained.removals.clear();
        explained.clusters.push(ClusterState {
            cluster: "b".into(),
            stage: "*".into(),
            decision: "done".into(),
            entries: [(
                "app".into(),
                EntryState {
                    revision: "v1".into(),
                    state: "none".into(),
                },
            )]
            .into(),
        });
        explained.actions.push(RecordedAction {
            what: "approve stage canary".into(),
            attribution: Attribution {
                by: "jane".into(),
                reason: String::new(),
                at: time("2026-11-20T09:00:00Z"),
            },
            until: None,
        });
        explained.lost.push(LostRelease {
            rollout: 2,
            revisions: [("app".to_owned(), "v0".to_owned())].into(),
        });
        assert_eq!(
            text_of(&explained),
            "cluster/b, rollout 3 of shop/web at 2026-11-20T10:00:00Z (journal entry 7, written 2026-11-20T09:59:00Z): waits to start\n\
             Next: the soak ends\n\
             CLUSTER   STAGE   ENTRY   REVISION   STATE   DECISION\n\
             b         *       app     v1         none    done\n\
             2026-11-20T09:00:00Z  approve stage canary by jane\n\
             No rollback to rollout 2: v0 of entry app is neither in the repository nor in the mirror\n"
        );
    }
}
