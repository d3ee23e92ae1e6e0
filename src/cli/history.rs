//! `starling history`: prints the rollouts of a group with their operator actions.

use std::path::PathBuf;

use clap::Args;
use jiff::SignedDuration;
use starling_api::{RolloutAction, RolloutApproval, Source};
use starling_core::journal::past;
use starling_core::plan::Attribution;
use starling_core::plural::counted;

use super::caller::{Caller, CallerArguments};
use super::lists;
use super::output::{self, Form, Table};
use crate::read_model::Recorded;
use crate::read_model::history::{self, RolloutKind, RolloutSummary};

/// Options of `history`.
#[derive(Debug, Args)]
pub(super) struct HistoryArguments {
    /// Name of the SyncGroup
    #[arg(value_name = "GROUP")]
    group: String,
    /// Data directory of the controller or of `starling server`. Its journal goes back further. Default: read the
    /// API objects
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: Form,
    #[command(flatten)]
    caller: CallerArguments,
}

pub(super) async fn run(arguments: HistoryArguments) -> anyhow::Result<()> {
    let HistoryArguments {
        group,
        data_dir,
        output,
        caller,
    } = arguments;
    let rollouts = match data_dir {
        Some(data_dir) => {
            let recorded = Recorded::read(&data_dir, &caller.namespace_unsigned()?, &group).await?;
            history::from_journal(&past::rollouts(&recorded.journal.entries), &recorded.rollouts)
        }
        None => read_objects(&Caller::sign_in(&caller).await?, &group).await?,
    };
    match output {
        Form::Json => output::print_value(&rollouts, false),
        Form::Text => {
            output::print(&text(&rollouts));
            Ok(())
        }
    }
}

/// Reads the history of a group from the objects on the management cluster.
pub(super) async fn read_objects(caller: &Caller, name: &str) -> anyhow::Result<Vec<RolloutSummary>> {
    let group = lists::group(caller, name).await?;
    let actions: Vec<RolloutAction> = lists::all(caller).await?;
    let approvals: Vec<RolloutApproval> = lists::all(caller).await?;
    // The caller may lack permission to list releases; the current rollout is known without them.
    let kept = lists::releases(caller, &group).await.unwrap_or_else(|why| {
        super::print_notice(&format!("cannot list earlier releases: {why:#}"));
        Vec::new()
    });
    let sources: Vec<Source> = lists::all(caller).await?;
    Ok(history::from_objects(
        &group, &kept, &actions, &approvals, &sources,
    ))
}

/// A table of the rollouts, with the remarks of each below its row.
fn text(rollouts: &[RolloutSummary]) -> String {
    let mut table = Table::new(&["ROLLOUT", "STARTED", "TOOK", "OUTCOME", "CLUSTERS", "REVISIONS"]);
    for rollout in rollouts {
        table.push(columns(rollout));
    }
    let table = table.text();
    let mut lines = table.lines();
    let mut text = format!("{}\n", lines.next().unwrap_or_default());
    for (rollout, line) in rollouts.iter().zip(lines) {
        text.push_str(line);
        text.push('\n');
        for remark in remarks(rollout) {
            text.push_str("          ");
            text.push_str(&remark);
            text.push('\n');
        }
    }
    text
}

fn columns(rollout: &RolloutSummary) -> Vec<String> {
    let took = rollout.started_at.zip(rollout.ended_at);
    let took = took.map(|(start, end)| seconds(end.duration_since(start)));
    let revisions = rollout.revisions.iter();
    let revisions: Vec<String> = revisions
        .map(|(entry, revision)| format!("{entry}={revision}"))
        .collect();
    let outcome = capitalized(&rollout.outcome.to_string());
    let outcome = match rollout.direction {
        None | Some(RolloutKind::Forward) => outcome,
        Some(RolloutKind::Rollback) => format!("{outcome} (rollback)"),
        Some(RolloutKind::ImmediateRollback) => format!("{outcome} (immediate rollback)"),
    };
    let clusters = rollout.clusters;
    vec![
        rollout.rollout.to_string(),
        rollout.started_at.map_or_else(unknown, |at| at.to_string()),
        took.unwrap_or_else(unknown),
        outcome,
        clusters.map_or_else(unknown, |clusters| {
            format!("{}/{}", clusters.done, clusters.total)
        }),
        revisions.join(","),
    ]
}

/// Returns an outcome as a column of states shows it: `Superseded`, like a phase in status.
fn capitalized(outcome: &str) -> String {
    let mut letters = outcome.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

fn unknown() -> String {
    "-".to_owned()
}

/// The lines below the row of a rollout: operator actions, failed clusters, lost revisions, and where the journal
/// begins.
fn remarks(rollout: &RolloutSummary) -> Vec<String> {
    let actions = rollout.actions.iter().map(|action| {
        let Attribution { by, reason, at } = &action.attribution;
        let until = action
            .until
            .map_or_else(String::new, |until| format!(", until {until}"));
        let why = if reason.is_empty() {
            String::new()
        } else {
            format!(": {reason}")
        };
        format!("{at}{until}  {} by {by}{why}", action.what)
    });
    let failed = rollout
        .failed
        .iter()
        .map(|(cluster, why)| format!("cluster {cluster} failed: {why}"));
    let late = rollout
        .recorded_from
        .map(|from| format!("recorded from {from} on"));
    let lost = (!rollout.lost.is_empty())
        .then(|| format!("no rollback possible: {}", history::lost_text(&rollout.lost)));
    let deletion = rollout.group_deletion.iter().map(|deletion| {
        let removed = counted(deletion.removed.len(), "Sync", "Syncs");
        format!("{}  the group is deleted: {removed} removed", deletion.began_at)
    });
    late.into_iter()
        .chain(actions)
        .chain(failed)
        .chain(lost)
        .chain(deletion)
        .collect()
}

/// A duration to the second; a shorter one is printed as it is.
fn seconds(duration: SignedDuration) -> String {
    let whole = SignedDuration::from_secs(duration.as_secs());
    let printed = if whole.is_zero() { duration } else { whole };
    format!("{printed:#}").replace(' ', "")
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use starling_core::journal::past::RecordedAction;

    use super::*;
    use crate::read_model::history::{ClusterProgress, SummaryOutcome};

    fn t(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn row(rollout: i64) -> RolloutSummary {
        RolloutSummary {
            rollout,
            started_at: Some(t(0)),
            ended_at: Some(t(724)),
            outcome: SummaryOutcome::Succeeded,
            direction: Some(RolloutKind::Forward),
            clusters: Some(ClusterProgress { done: 4, total: 4 }),
            revisions: [("app".to_owned(), "main@sha1:abc".to_owned())].into(),
            ..RolloutSummary::default()
        }
    }

    #[test]
    fn a_rollout_is_a_row_with_its_operator_actions_below() {
        let mut newer = row(12);
        newer.outcome = SummaryOutcome::InProgress;
        (newer.ended_at, newer.direction) = (None, Some(RolloutKind::Rollback));
        newer.actions.push(RecordedAction {
            what: "pause".into(),
            attribution: Attribution {
                by: "jane".into(),
                reason: "lunch".into(),
                at: t(60),
            },
            until: Some(t(70)),
        });
        newer.failed.insert("eu-1".into(), "ApplyFailed: refused".into());
        newer.lost.insert("app".into(), "main@sha1:abc".into());
        newer.lost.insert("web".into(), "main@sha1:def".into());
        assert_eq!(
            text(&[newer, row(2)]),
            "ROLLOUT   STARTED                TOOK    OUTCOME                  CLUSTERS   REVISIONS\n\
             12        2027-01-15T08:00:00Z   -       In progress (rollback)   4/4        app=main@sha1:abc\n          \
             2027-01-15T08:01:00Z, until 2027-01-15T08:01:10Z  pause by jane: lunch\n          \
             cluster eu-1 failed: ApplyFailed: refused\n          \
             no rollback possible: main@sha1:abc of entry app, main@sha1:def of entry web are neither in the repository \
             nor in the mirror\n\
             2         2027-01-15T08:00:00Z   12m4s   Succeeded                4/4        app=main@sha1:abc\n"
        );
    }
}
