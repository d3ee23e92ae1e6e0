//! `starling verify`: replays the journal of a group through the independent checker.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use serde_json::json;
use starling_core::journal::{Flaw, Verdict, verify};

use super::journal::journals;
use super::output::Form;
use crate::ledger::GroupJournal;

/// What is verified.
#[derive(Debug, Args)]
pub(super) struct VerifyArguments {
    /// The SyncGroup
    #[arg(value_name = "GROUP")]
    group: String,
    /// Only this rollout, by its number; the chain is checked as a whole in any case
    #[arg(long, value_name = "ID")]
    rollout: Option<i64>,
    /// Folder of the controller, or of `starling server`; it may be at work
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Namespace of the group
    #[arg(long, short, value_name = "NS", default_value = "default")]
    namespace: String,
    /// How it is printed
    #[arg(long, short, value_enum, default_value_t)]
    output: Form,
}

pub(super) async fn run(arguments: VerifyArguments) -> anyhow::Result<()> {
    let VerifyArguments {
        group,
        rollout,
        data_dir,
        namespace,
        output,
    } = arguments;
    let (view, journals) = journals(&data_dir, &namespace, &group).await?;
    view.close().await;
    if journals.is_empty() {
        bail!(
            "the ledger in {} has no journal of SyncGroup {namespace}/{group}",
            data_dir.display()
        );
    }
    let verified: Vec<(&GroupJournal, Verdict)> = journals
        .iter()
        .map(|journal| (journal, verify(&journal.chain, &journal.entries, rollout)))
        .collect();
    if let Some(rollout) = rollout
        && verified.iter().all(|(_, verdict)| verdict.entries == 0)
    {
        bail!("the journal of {namespace}/{group} has no entry of rollout {rollout}");
    }
    print(&format!("{namespace}/{group}"), &verified, output);
    match verified.iter().map(|(_, verdict)| verdict.flaws.len()).sum() {
        0 => Ok(()),
        1 => bail!("the journal of {namespace}/{group} does not hold: 1 violation"),
        flaws => bail!("the journal of {namespace}/{group} does not hold: {flaws} violations"),
    }
}

#[expect(clippy::print_stdout, reason = "the output of this command")]
fn print(group: &str, verified: &[(&GroupJournal, Verdict)], form: Form) {
    if form == Form::Json {
        let all: Vec<_> = verified
            .iter()
            .map(|(journal, verdict)| in_json(journal, verdict))
            .collect();
        println!("{:#}", json!({ "group": group, "journals": all }));
        return;
    }
    for (journal, verdict) in verified {
        for flaw in &verdict.flaws {
            println!("{}", in_words(flaw));
        }
        if verdict.flaws.is_empty() {
            println!("{}", praise(group, journal, verdict));
        }
    }
}

fn praise(group: &str, journal: &GroupJournal, verdict: &Verdict) -> String {
    let cut = match journal.chain.cut.seq {
        0 => String::new(),
        cut => format!("; entries 1 to {cut} were old enough to be cut off"),
    };
    format!(
        "{group}: {} entries with {} admissions hold: the chain fits, and no plan breaks a rule{cut}",
        verdict.entries, verdict.starts
    )
}

fn in_words(flaw: &Flaw) -> String {
    match &flaw.entry {
        Some((rollout, at)) => format!("entry {} (rollout {rollout}, {at}): {}", flaw.seq, flaw.what),
        None => flaw.what.to_string(),
    }
}

fn in_json(journal: &GroupJournal, verdict: &Verdict) -> serde_json::Value {
    let flaws: Vec<_> = verdict
        .flaws
        .iter()
        .map(|flaw| {
            json!({
                "entry": flaw.seq,
                "rollout": flaw.entry.map(|(rollout, _)| rollout),
                "at": flaw.entry.map(|(_, at)| at),
                "violation": flaw.what.to_string(),
            })
        })
        .collect();
    json!({
        "groupUid": journal.group_uid,
        "cutUntil": journal.chain.cut.seq,
        "newest": journal.chain.newest.seq,
        "entries": verdict.entries,
        "admissions": verdict.starts,
        "violations": flaws,
    })
}
