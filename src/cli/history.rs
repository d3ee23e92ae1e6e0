//! `starling history`: the rollouts of a group, what became of them, and what people said to them.
//!
//! With `--data-dir` the journal tells, else the objects on the management cluster do: the newest rollout stands in the group's
//! status, the releases of some before it are kept as ControllerRevisions, and words of people are objects until somebody deletes them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::ResourceExt;
use serde::Serialize;
use starling_api::{ActionType, RolloutAction, RolloutApproval, RolloutDirection, SyncGroup};
use starling_core::journal::past::{self, Past, Said};
use starling_core::plan::{Direction, Word};

use super::caller::{Caller, CallerArguments};
use super::journal::Recorded;
use super::lists;
use super::output::{self, Form, Table};
use crate::controller::releases;
use crate::ledger::{RolloutOutcome, RolloutRecord};

/// Whose history.
#[derive(Debug, Args)]
pub(super) struct HistoryArguments {
    /// The SyncGroup
    #[arg(value_name = "GROUP")]
    group: String,
    /// Folder of the controller, or of `starling server`: its journal knows more than the objects that are there now
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// How it is printed
    #[arg(long, short, value_enum, default_value_t)]
    output: Form,
    #[command(flatten)]
    caller: CallerArguments,
}

/// A rollout of the past. What is not known is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    rollout: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<Timestamp>,
    outcome: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    direction: String,
    /// Clusters that held it, and all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    clusters: Option<(usize, usize)>,
    revisions: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    failed: BTreeMap<String, String>,
    words: Vec<Said>,
    /// The journal knows only what came after this.
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded_from: Option<Timestamp>,
}

pub(super) async fn run(arguments: HistoryArguments) -> anyhow::Result<()> {
    let HistoryArguments {
        group,
        data_dir,
        output,
        caller,
    } = arguments;
    let rows = match data_dir {
        Some(data_dir) => {
            let recorded = Recorded::read(&data_dir, &caller.namespace_unsigned()?, &group).await?;
            of_journal(&past::rollouts(&recorded.journal.entries), &recorded.rollouts)
        }
        None => of_objects(&Caller::sign_in(&caller).await?, &group).await?,
    };
    print(&rows, output)
}

fn print(rows: &[Row], form: Form) -> anyhow::Result<()> {
    match form {
        Form::Json => output::print_value(&rows, false)?,
        Form::Text => output::print(&in_words(rows)),
    }
    Ok(())
}

fn in_words(rows: &[Row]) -> String {
    let mut table = Table::new(&["ROLLOUT", "STARTED", "TOOK", "OUTCOME", "CLUSTERS", "REVISIONS"]);
    for row in rows {
        table.push(columns(row));
    }
    let lined_up = table.text();
    let mut lines = lined_up.lines();
    let mut text = format!("{}\n", lines.next().unwrap_or_default());
    for (row, line) in rows.iter().zip(lines) {
        text.push_str(line);
        text.push('\n');
        for remark in remarks(row) {
            text.push_str("          ");
            text.push_str(&remark);
            text.push('\n');
        }
    }
    text
}

fn columns(row: &Row) -> Vec<String> {
    let took = row.started_at.zip(row.ended_at);
    let took = took.map(|(began, ended)| said_duration(ended.duration_since(began)));
    let revisions = row.revisions.iter();
    let revisions: Vec<String> = revisions
        .map(|(entry, revision)| format!("{entry}={revision}"))
        .collect();
    let outcome = match row.direction.as_str() {
        "" | "forward" => row.outcome.clone(),
        direction => format!("{} ({direction})", row.outcome),
    };
    vec![
        row.rollout.to_string(),
        row.started_at.map_or_else(unknown, |at| at.to_string()),
        took.unwrap_or_else(unknown),
        outcome,
        row.clusters
            .map_or_else(unknown, |(done, total)| format!("{done}/{total}")),
        revisions.join(","),
    ]
}

fn unknown() -> String {
    "-".to_owned()
}

/// What is told of a rollout beside its row.
fn remarks(row: &Row) -> Vec<String> {
    let words = row.words.iter().map(|said| {
        let Word { by, reason, at } = &said.word;
        let until = said
            .until
            .map_or_else(String::new, |until| format!(", until {until}"));
        let why = if reason.is_empty() {
            String::new()
        } else {
            format!(": {reason}")
        };
        format!("{at}{until}  {} by {by}{why}", said.what)
    });
    let failed = row
        .failed
        .iter()
        .map(|(cluster, why)| format!("{cluster} failed: {why}"));
    let late = row
        .recorded_from
        .map(|from| format!("nothing is recorded before {from}"));
    late.into_iter().chain(words).chain(failed).collect()
}

/// To the second; what is shorter is told as it is.
fn said_duration(span: SignedDuration) -> String {
    let whole = SignedDuration::from_secs(span.as_secs());
    let told = if whole.is_zero() { span } else { whole };
    format!("{told:#}").replace(' ', "")
}

fn direction(direction: Direction) -> String {
    match direction {
        Direction::Forward => "forward",
        Direction::Back => "back",
        Direction::BackAtOnce => "back at once",
    }
    .to_owned()
}

/// What the journal tells, with what the ledger's own table knows of the revisions and the ends.
fn of_journal(pasts: &[Past], records: &[RolloutRecord]) -> Vec<Row> {
    let mut rows: BTreeMap<i64, Row> = BTreeMap::new();
    for past in pasts {
        let late = past.recorded_from.duration_since(past.started_at) > LATE;
        rows.insert(
            past.rollout,
            Row {
                rollout: past.rollout,
                started_at: Some(past.started_at),
                ended_at: past.ended_at,
                outcome: past.outcome.clone(),
                direction: direction(past.direction),
                clusters: Some((past.done, past.total)),
                failed: past.failed.clone(),
                words: past.words.clone(),
                recorded_from: late.then_some(past.recorded_from),
                ..Row::default()
            },
        );
    }
    for record in records {
        let Ok(id) = record.rollout.id.parse::<i64>() else {
            continue;
        };
        let row = rows.entry(id).or_default();
        row.rollout = id;
        row.revisions.clone_from(&record.rollout.revisions);
        row.started_at = row.started_at.or(Some(record.rollout.started_at));
        if let Some((outcome, at)) = record.end {
            row.outcome = ended(outcome, &row.outcome);
            row.ended_at = Some(at);
        }
    }
    rows.into_values().rev().collect()
}

/// A rollout whose first entry came later than this after its beginning was not recorded from the beginning: a look that writes
/// the status and then the journal takes far less.
const LATE: SignedDuration = SignedDuration::from_secs(60);

fn ended(outcome: RolloutOutcome, last: &str) -> String {
    match outcome {
        RolloutOutcome::Succeeded => "succeeded".to_owned(),
        RolloutOutcome::Failed => "failed".to_owned(),
        RolloutOutcome::Abandoned => "abandoned".to_owned(),
        // One that had come to its end before says more.
        RolloutOutcome::Superseded if last.is_empty() || last == "rolls" => "superseded".to_owned(),
        RolloutOutcome::Superseded => format!("{last}; superseded"),
    }
}

/// What the objects on the management cluster tell.
async fn of_objects(caller: &Caller, name: &str) -> anyhow::Result<Vec<Row>> {
    let group = lists::group(caller, name).await?;
    let actions: Vec<RolloutAction> = lists::all(caller).await?;
    let approvals: Vec<RolloutApproval> = lists::all(caller).await?;
    // Not everybody who may look at groups may look at these; the newest rollout is known without them.
    let kept = lists::releases(caller, &group).await.unwrap_or_else(|why| {
        super::say(&format!("releases before this one cannot be listed: {why:#}"));
        Vec::new()
    });
    Ok(rows_of(&group, &kept, &actions, &approvals))
}

fn rows_of(
    group: &SyncGroup,
    kept: &[ControllerRevision],
    actions: &[RolloutAction],
    approvals: &[RolloutApproval],
) -> Vec<Row> {
    let mut rows: BTreeMap<i64, Row> = BTreeMap::new();
    for revision in started(group, kept) {
        let row = rows.entry(revision.revision).or_default();
        row.started_at = revision.creation_timestamp().map(|time| time.0);
        row.outcome = "over".to_owned();
        for entry in releases::revisions_of(revision).unwrap_or_default() {
            row.revisions.insert(entry.sync, entry.revision);
        }
    }
    let name = group.name_any();
    for action in actions.iter().filter(|action| action.spec.group == name) {
        let spec = &action.spec;
        let word = word(&spec.by, &spec.reason, action);
        let said = said(what_of(spec), word);
        rows.entry(spec.rollout).or_default().words.push(said);
    }
    for approval in approvals.iter().filter(|approval| approval.spec.group == name) {
        let spec = &approval.spec;
        let word = word(&spec.by, &spec.reason, approval);
        let said = said(format!("approve stage {}", spec.stage), word);
        rows.entry(spec.rollout).or_default().words.push(said);
    }
    if let Some(rollout) = group.status.as_ref().and_then(|status| status.rollout.as_ref()) {
        // What lies beyond the one under way is kept for later, and has not begun.
        rows.retain(|id, _| *id <= rollout.id);
        let row = rows.entry(rollout.id).or_default();
        let clusters = group.status.as_ref().map(|status| &status.clusters);
        row.clusters = clusters.map(|counts| (counts.updated as usize, counts.total as usize));
        row.started_at = rollout.start_time.parse().ok();
        row.outcome = format!("{:?}", rollout.phase).to_lowercase();
        row.direction = direction(match rollout.direction {
            RolloutDirection::Forward => Direction::Forward,
            RolloutDirection::Back => Direction::Back,
            RolloutDirection::BackAtOnce => Direction::BackAtOnce,
        });
        row.revisions = rollout
            .revisions
            .iter()
            .map(|entry| (entry.sync.clone(), entry.revision.clone()))
            .collect();
    }
    for (id, row) in &mut rows {
        row.rollout = *id;
        row.words.sort_by_key(|said| said.word.at);
    }
    rows.into_values().rev().collect()
}

/// The releases of a group that rolled, one for each number. A release that waits for its turn is kept under the number of the
/// rollout that it waits for: those that wait now are known from the status, and of one number the first was kept when it began.
fn started<'a>(
    group: &SyncGroup,
    kept: &'a [ControllerRevision],
) -> impl Iterator<Item = &'a ControllerRevision> {
    let waiting = group.status.iter().flat_map(|status| &status.queue);
    let waiting: Vec<&str> = waiting.map(|release| release.release.as_str()).collect();
    let mut first: BTreeMap<i64, &ControllerRevision> = BTreeMap::new();
    for revision in kept {
        let digest = revision.data.as_ref().and_then(|data| data.0["digest"].as_str());
        if !lists::is_of(group, revision) || digest.is_some_and(|digest| waiting.contains(&digest)) {
            continue;
        }
        let known = first.entry(revision.revision).or_insert(revision);
        if revision.creation_timestamp() < known.creation_timestamp() {
            *known = revision;
        }
    }
    first.into_values()
}

fn said(what: String, word: Word) -> Said {
    Said {
        what,
        word,
        until: None,
    }
}

fn word<K: ResourceExt>(by: &str, reason: &str, object: &K) -> Word {
    Word {
        by: by.to_owned(),
        reason: reason.to_owned(),
        at: object
            .creation_timestamp()
            .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
    }
}

fn what_of(spec: &starling_api::RolloutActionSpec) -> String {
    let verb = match spec.action {
        ActionType::Pause => "pause",
        ActionType::Resume => "resume",
        ActionType::Abort => "abort",
        ActionType::Retry => "retry",
        ActionType::Skip => "skip",
        ActionType::Promote => "promote",
        ActionType::Rollback => "rollback",
        ActionType::Release => "release",
    };
    let of = |kind: &str, name: &Option<String>| match name {
        Some(name) => format!(" {kind} {name}"),
        None => String::new(),
    };
    format!(
        "{verb}{}{}{}",
        of("cluster", &spec.cluster),
        of("stage", &spec.stage),
        of("to", &spec.revision)
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn t(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn row(rollout: i64) -> Row {
        Row {
            rollout,
            started_at: Some(t(0)),
            ended_at: Some(t(724)),
            outcome: "succeeded".into(),
            direction: "forward".into(),
            clusters: Some((4, 4)),
            revisions: [("app".to_owned(), "main@sha1:abc".to_owned())].into(),
            ..Row::default()
        }
    }

    #[test]
    fn a_rollout_is_a_line_with_what_people_said_below_it() {
        let mut newer = row(12);
        newer.outcome = "rolls".into();
        (newer.ended_at, newer.direction) = (None, "back".into());
        newer.words.push(said(
            "pause".into(),
            Word {
                by: "jane".into(),
                reason: "lunch".into(),
                at: t(60),
            },
        ));
        newer.words[0].until = Some(t(70));
        newer.failed.insert("eu-1".into(), "ApplyFailed: refused".into());
        assert_eq!(
            in_words(&[newer, row(2)]),
            "ROLLOUT   STARTED                TOOK    OUTCOME        CLUSTERS   REVISIONS\n\
             12        2027-01-15T08:00:00Z   -       rolls (back)   4/4        app=main@sha1:abc\n          \
             2027-01-15T08:01:00Z, until 2027-01-15T08:01:10Z  pause by jane: lunch\n          \
             eu-1 failed: ApplyFailed: refused\n\
             2         2027-01-15T08:00:00Z   12m4s   succeeded      4/4        app=main@sha1:abc\n"
        );
    }

    #[test]
    fn releases_that_wait_are_not_told_of_and_the_way_is_told_in_words() {
        let release =
            |digest: &str| json!({"release": digest, "revisions": [{"sync": "app", "revision": digest}]});
        let group: SyncGroup = serde_json::from_value(json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup",
            "metadata": {"name": "shop", "uid": "u"}, "spec": {"clusterSelector": {}},
            "status": {"queue": [release("queued")], "rollout": {
                "id": 3, "phase": "RollingBack", "direction": "BackAtOnce", "startTime": "2026-11-21T11:00:00Z",
                "revisions": [{"sync": "app", "revision": "good"}],
            }},
        }))
        .unwrap();
        let kept = |digest: &str, rollout: i64, minute: i64, uid: &str| -> ControllerRevision {
            serde_json::from_value(json!({
                "metadata": {
                    "name": digest, "creationTimestamp": format!("2026-11-21T10:0{minute}:00Z"),
                    "ownerReferences": [{"apiVersion": "v1", "kind": "SyncGroup", "name": "shop", "uid": uid}],
                },
                "revision": rollout,
                "data": {"digest": digest, "revisions": [{"sync": "app", "revision": digest}], "entries": []},
            }))
            .unwrap()
        };
        let kept = [
            kept("later", 2, 5, "u"),
            kept("first", 2, 1, "u"),
            kept("queued", 1, 0, "u"),
            kept("of another", 1, 0, "x"),
        ];
        let rows = rows_of(&group, &kept, &[], &[]);
        let told: Vec<(i64, &str)> = rows
            .iter()
            .map(|row| (row.rollout, row.revisions["app"].as_str()))
            .collect();
        assert_eq!(told, [(3, "good"), (2, "first")]);
        assert_eq!(columns(&rows[0])[3], "rollingback (back at once)");
    }

    #[test]
    fn an_outcome_is_the_end_with_what_led_to_it() {
        for (outcome, last, expected) in [
            (RolloutOutcome::Succeeded, "succeeded", "succeeded"),
            (RolloutOutcome::Superseded, "rolls", "superseded"),
            (
                RolloutOutcome::Superseded,
                "given up by jane",
                "given up by jane; superseded",
            ),
            (
                RolloutOutcome::Failed,
                "goes back: 2 clusters failed, 0 may",
                "failed",
            ),
        ] {
            assert_eq!(ended(outcome, last), expected);
        }
    }
}
