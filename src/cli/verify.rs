//! `starling verify`: verifies the journal of a group with the independent checker.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;

use super::caller::CallerArguments;
use super::output::{self, Form};
use crate::read_model::journals;
use crate::read_model::verification::{JournalVerification, Verification, Violation};

/// The journal is valid.
const VALID: u8 = 0;
/// Violations were found.
const INVALID: u8 = 1;
/// Unknown: no ledger, no journal, no such rollout.
const PROBLEM: u8 = 2;

/// Options of `verify`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 valid; 1 violations found; 2 unknown: no ledger, no journal, no such rollout, or unreadable."
)]
pub(super) struct VerifyArguments {
    /// Name of the SyncGroup
    #[arg(value_name = "GROUP")]
    group: String,
    /// Verify only the plans of this rollout; the hash chain is always verified as a whole. Default: all rollouts
    #[arg(long, value_name = "ID")]
    rollout: Option<i64>,
    /// Data directory of the controller or of `starling server`; the controller may be running
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: Form,
    #[command(flatten)]
    caller: CallerArguments,
}

pub(super) fn exit_code(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        super::print_error(&error);
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
    let journals = journals(&data_dir, &namespace, &group).await?;
    let name = format!("{namespace}/{group}");
    let verified = Verification::of(name, &journals, rollout);
    if let Some(rollout) = rollout
        && verified.entries() == 0
    {
        bail!(
            "the journal of {} has no entry of rollout {rollout}",
            verified.group
        );
    }
    match output {
        Form::Json => output::print_value(&verified, false)?,
        Form::Text => output::print(&text(&verified)),
    }
    let violations = verified.violations();
    if violations == 0 {
        return Ok(ExitCode::from(VALID));
    }
    let plural = if violations == 1 { "" } else { "s" };
    super::print_notice(&format!(
        "journal of {} is invalid: {violations} violation{plural}",
        verified.group
    ));
    Ok(ExitCode::from(INVALID))
}

/// A line for each violation, and for each journal without one.
fn text(verified: &Verification) -> String {
    let mut text = String::new();
    for journal in &verified.journals {
        for violation in &journal.violations {
            text.push_str(&violation_text(violation));
            text.push('\n');
        }
        if journal.violations.is_empty() {
            text.push_str(&valid_text(&verified.group, journal));
            text.push('\n');
        }
    }
    text
}

fn valid_text(group: &str, journal: &JournalVerification) -> String {
    let expired = match journal.cut_until {
        0 => String::new(),
        last => format!("; entries 1 to {last} have expired"),
    };
    format!(
        "{group}: {} entries and {} admissions verified: the hash chain is intact, and no plan violates a rule{expired}",
        journal.entries, journal.admissions
    )
}

fn violation_text(violation: &Violation) -> String {
    let Violation {
        at,
        entry,
        rollout,
        message,
    } = violation;
    match (rollout, at) {
        (Some(rollout), Some(at)) => format!("entry {entry} (rollout {rollout}, {at}): {message}"),
        _ => message.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_violation_names_its_entry_and_a_missing_entry_names_itself() {
        let mut violation = Violation {
            at: "2026-11-20T10:00:00Z".parse().ok(),
            entry: 7,
            rollout: Some(3),
            message: "the hash does not match".into(),
        };
        assert_eq!(
            violation_text(&violation),
            "entry 7 (rollout 3, 2026-11-20T10:00:00Z): the hash does not match"
        );
        (violation.at, violation.rollout) = (None, None);
        assert_eq!(violation_text(&violation), "the hash does not match");
    }
}
