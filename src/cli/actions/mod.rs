//! `starling pause`, `resume`, `abort`, `retry`, `skip`, `promote`, `rollback`, `release`, `approve` and
//! `approve-deletions`: operator actions.
//!
//! Each command creates one RolloutAction, RolloutApproval or DeletionApproval with the permissions of the caller and
//! changes nothing else. The object records who requested what, and why.

mod create;
mod deletions;

use clap::{Args, ValueEnum};

use super::caller::CallerArguments;
use super::value::InvalidValue;
use starling_api::ActionType;

/// Options of every operator action.
#[derive(Clone, Debug, Args)]
pub(super) struct ActionArguments {
    /// Name of the SyncGroup
    #[arg(value_name = "GROUP")]
    group: String,
    /// Reason; it is recorded with the action
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Number of the rollout. The action is refused if this rollout is no longer in effect. Default: the current
    /// rollout
    #[arg(long, value_name = "ID")]
    rollout: Option<i64>,
    #[command(flatten)]
    caller: CallerArguments,
}

/// Options of `pause`, `resume`, `abort` and `release`.
#[derive(Debug, Args)]
pub(super) struct PlainArguments {
    #[command(flatten)]
    common: ActionArguments,
}

/// Options of `retry`.
#[derive(Debug, Args)]
pub(super) struct RetryArguments {
    #[command(flatten)]
    common: ActionArguments,
    /// Retry only this cluster. Default: all failed clusters
    #[arg(long, value_name = "CLUSTER", conflicts_with = "stage")]
    cluster: Option<String>,
    /// Retry only this stage: its failed clusters and its failed tasks. Default: all stages
    #[arg(long, value_name = "STAGE")]
    stage: Option<String>,
}

/// Options of `skip`.
#[derive(Debug, Args)]
#[group(id = "what", required = true, multiple = false, args = ["cluster", "stage"])]
pub(super) struct SkipArguments {
    #[command(flatten)]
    common: ActionArguments,
    /// Cluster to skip
    #[arg(long, value_name = "CLUSTER")]
    cluster: Option<String>,
    /// Stage to skip, with its clusters
    #[arg(long, value_name = "STAGE")]
    stage: Option<String>,
}

/// Options of `promote`.
#[derive(Debug, Args)]
pub(super) struct PromoteArguments {
    #[command(flatten)]
    common: ActionArguments,
    /// Stage to promote. Default: the current stage
    #[arg(long, value_name = "STAGE")]
    stage: Option<String>,
}

/// Options of `rollback`.
#[derive(Debug, Args)]
pub(super) struct RollbackArguments {
    #[command(flatten)]
    common: ActionArguments,
    /// Revision to roll back to: the newest release with this tag, commit or commit prefix. Default: the last release
    /// that succeeded on the whole group
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,
}

/// Options of `approve`.
#[derive(Debug, Args)]
pub(super) struct ApproveArguments {
    #[command(flatten)]
    common: ActionArguments,
    /// Stage to approve. Default: the stage that waits for an approval
    #[arg(long, value_name = "STAGE")]
    stage: Option<String>,
    /// Release digest to approve, as `starling plan` prints it. Default: the current release digest of the rollout
    #[arg(long, value_name = "SHA256", value_parser = digest)]
    digest: Option<String>,
}

/// Options of `approve-deletions`.
#[derive(Debug, Args)]
pub(super) struct ApproveDeletionsArguments {
    /// Kind of the object whose deletions are approved
    #[arg(value_name = "KIND", value_enum)]
    kind: DeletionSubject,
    /// Name of the SyncGroup or the Sync
    #[arg(value_name = "NAME")]
    name: String,
    /// Digest of the list, as in the conditions DeletionHeld and MembershipHeld and in the output of `starling why` and
    /// `starling plan`
    #[arg(long, value_name = "SHA256", value_parser = digest)]
    digest: String,
    /// Reason; it is recorded with the approval
    #[arg(long, value_name = "TEXT")]
    reason: String,
    #[command(flatten)]
    caller: CallerArguments,
}

/// The kind of object whose deletions an approval is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum DeletionSubject {
    /// A SyncGroup: all of its Syncs that would delete the list, and the clusters that leave
    Group,
    /// A Sync
    Sync,
}

/// Parses a digest. A prefix would approve nothing.
fn digest(text: &str) -> Result<String, InvalidValue> {
    let hex = text.strip_prefix("sha256:").unwrap_or_default();
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if hex.len() == 64 && hex.bytes().all(is_digit) {
        Ok(text.to_owned())
    } else {
        Err(InvalidValue::new(
            "expected the full digest as `starling plan` prints it: sha256: and 64 hex digits",
        ))
    }
}

pub(super) async fn plain(action: ActionType, arguments: PlainArguments) -> anyhow::Result<()> {
    create::act(action, &arguments.common, create::ActionSubject::default()).await
}

pub(super) async fn retry(arguments: RetryArguments) -> anyhow::Result<()> {
    let subject = create::ActionSubject {
        cluster: arguments.cluster,
        stage: arguments.stage,
        ..create::ActionSubject::default()
    };
    create::act(ActionType::Retry, &arguments.common, subject).await
}

pub(super) async fn skip(arguments: SkipArguments) -> anyhow::Result<()> {
    let subject = create::ActionSubject {
        cluster: arguments.cluster,
        stage: arguments.stage,
        ..create::ActionSubject::default()
    };
    create::act(ActionType::Skip, &arguments.common, subject).await
}

pub(super) async fn promote(arguments: PromoteArguments) -> anyhow::Result<()> {
    let subject = create::ActionSubject {
        stage: arguments.stage,
        ..create::ActionSubject::default()
    };
    create::act(ActionType::Promote, &arguments.common, subject).await
}

pub(super) async fn rollback(arguments: RollbackArguments) -> anyhow::Result<()> {
    let subject = create::ActionSubject {
        revision: arguments.revision,
        ..create::ActionSubject::default()
    };
    create::act(ActionType::Rollback, &arguments.common, subject).await
}

pub(super) async fn approve(arguments: ApproveArguments) -> anyhow::Result<()> {
    create::approve(&arguments.common, arguments.stage, arguments.digest).await
}

pub(super) async fn approve_deletions(arguments: ApproveDeletionsArguments) -> anyhow::Result<()> {
    deletions::approve(arguments).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_given_in_full() {
        let whole = format!("sha256:{}", "0a".repeat(32));
        assert_eq!(digest(&whole), Ok(whole.clone()));
        for text in ["", "sha256:", &whole[..40], &whole[7..], &whole.to_uppercase()] {
            assert!(digest(text).is_err(), "{text}");
        }
    }
}
