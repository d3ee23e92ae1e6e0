//! `starling verify`: replays the journal of a group through the independent checker.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use serde_json::json;
use starling_core::journal::{Flaw, Verdict, verify};

use super::caller::CallerArguments;
use super::journal::journals;
use super::output::Form;
use crate::ledger::GroupJournal;

/// All of it holds.
const SOUND: u8 = 0;
/// A violation was found.
const VIOLATED: u8 = 1;
/// It cannot be told: no ledger, no journal, no such rollout.
const PROBLEM: u8 = 2;

/// What is verified.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 everything holds, 1 a violation was found, 2 it cannot be told (no ledger, no journal or no such \
                  rollout, or one that cannot be read)."
)]
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
    /// How it is printed
    #[arg(long, short, value_enum, default_value_t)]
    output: Form,
    #[command(flatten)]
    caller: CallerArguments,
}

pub(super) fn exit_code(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        super::complain(&error);
        ExitCode::from(PROBLEM)
    })
}

pub(super) async fn run(arguments: VerifyArguments) -> anyhow::Result<ExitCode> {
    let VerifyArguments {
        group,
        rollout,
        data_dir,
        output,
        caller,
    } = arguments;
    let namespace = caller.namespace_unsigned()?;
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
    let flaws: usize = verified.iter().map(|(_, verdict)| verdict.flaws.len()).sum();
    if flaws == 0 {
        return Ok(ExitCode::from(SOUND));
    }
    let ending = if flaws == 1 { "" } else { "s" };
    super::say(&format!(
        "the journal of {namespace}/{group} does not hold: {flaws} violation{ending}"
    ));
    Ok(ExitCode::from(VIOLATED))
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
        "newestHash": journal.chain.newest.hash,
        "entries": verdict.entries,
        "admissions": verdict.starts,
        "violations": flaws,
    })
}

#[cfg(test)]
mod tests {
    use starling_core::journal::{Chain, End};

    use super::*;

    #[test]
    fn the_newest_entry_is_named_with_its_hash() {
        let journal = GroupJournal {
            group_uid: "u".into(),
            chain: Chain {
                cut: End::beginning(),
                newest: End {
                    seq: 7,
                    hash: "ab12".into(),
                },
            },
            entries: Vec::new(),
        };
        let verdict = verify(&journal.chain, &journal.entries, None);
        let told = in_json(&journal, &verdict);
        assert_eq!(
            (&told["newest"], &told["newestHash"]),
            (&json!(7), &json!("ab12"))
        );
    }
}
