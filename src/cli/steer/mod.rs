//! `starling pause`, `resume`, `abort`, `retry`, `skip`, `promote`, `rollback`, `release` and `approve`: what a person says to a
//! rollout. Each writes one object with the person's own rights; nothing else is touched, and the object says for ever who
//! asked for what, and why.

mod say;

use clap::Args;

use super::caller::CallerArguments;
use starling_api::ActionType;

/// What every word needs.
#[derive(Clone, Debug, Args)]
pub(super) struct Word {
    /// The SyncGroup
    #[arg(value_name = "GROUP")]
    group: String,
    /// Why; it is kept with the rollout
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// The rollout, by its number; without it the one under way
    #[arg(long, value_name = "ID")]
    rollout: Option<i64>,
    #[command(flatten)]
    caller: CallerArguments,
}

/// `pause`, `resume`, `abort`, `release`.
#[derive(Debug, Args)]
pub(super) struct PlainArguments {
    #[command(flatten)]
    word: Word,
}

/// `retry`.
#[derive(Debug, Args)]
pub(super) struct RetryArguments {
    #[command(flatten)]
    word: Word,
    /// Only this cluster
    #[arg(long, value_name = "CLUSTER", conflicts_with = "stage")]
    cluster: Option<String>,
    /// Only this stage: its clusters, and its tasks
    #[arg(long, value_name = "STAGE")]
    stage: Option<String>,
}

/// `skip`.
#[derive(Debug, Args)]
#[group(id = "what", required = true, multiple = false, args = ["cluster", "stage"])]
pub(super) struct SkipArguments {
    #[command(flatten)]
    word: Word,
    /// This cluster
    #[arg(long, value_name = "CLUSTER")]
    cluster: Option<String>,
    /// This stage, with its clusters
    #[arg(long, value_name = "STAGE")]
    stage: Option<String>,
}

/// `promote`.
#[derive(Debug, Args)]
pub(super) struct PromoteArguments {
    #[command(flatten)]
    word: Word,
    /// The stage; without it the one that the rollout is in
    #[arg(long, value_name = "STAGE")]
    stage: Option<String>,
}

/// `rollback`.
#[derive(Debug, Args)]
pub(super) struct RollbackArguments {
    #[command(flatten)]
    word: Word,
    /// To the newest release with this revision (`v1.4.2`, a commit or the beginning of one); without it to the last release
    /// that succeeded on the whole group
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,
}

/// `approve`.
#[derive(Debug, Args)]
pub(super) struct ApproveArguments {
    #[command(flatten)]
    word: Word,
    /// The stage; without it the one that waits for an approval
    #[arg(long, value_name = "STAGE")]
    stage: Option<String>,
    /// What is approved, as `starling plan` printed it; without it what the rollout renders to now
    #[arg(long, value_name = "SHA256", value_parser = digest)]
    digest: Option<String>,
}

/// What `starling plan` prints, in full: a part of it would approve nothing.
fn digest(text: &str) -> Result<String, String> {
    let hex = text.strip_prefix("sha256:").unwrap_or_default();
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if hex.len() == 64 && hex.bytes().all(is_digit) {
        Ok(text.to_owned())
    } else {
        Err("give the whole of it, as `starling plan` prints it: sha256: and 64 hex digits".to_owned())
    }
}

pub(super) async fn plain(action: ActionType, arguments: PlainArguments) -> anyhow::Result<()> {
    say::act(action, &arguments.word, say::Scope::default()).await
}

pub(super) async fn retry(arguments: RetryArguments) -> anyhow::Result<()> {
    let scope = say::Scope {
        cluster: arguments.cluster,
        stage: arguments.stage,
        ..say::Scope::default()
    };
    say::act(ActionType::Retry, &arguments.word, scope).await
}

pub(super) async fn skip(arguments: SkipArguments) -> anyhow::Result<()> {
    let scope = say::Scope {
        cluster: arguments.cluster,
        stage: arguments.stage,
        ..say::Scope::default()
    };
    say::act(ActionType::Skip, &arguments.word, scope).await
}

pub(super) async fn promote(arguments: PromoteArguments) -> anyhow::Result<()> {
    let scope = say::Scope {
        stage: arguments.stage,
        ..say::Scope::default()
    };
    say::act(ActionType::Promote, &arguments.word, scope).await
}

pub(super) async fn rollback(arguments: RollbackArguments) -> anyhow::Result<()> {
    let scope = say::Scope {
        revision: arguments.revision,
        ..say::Scope::default()
    };
    say::act(ActionType::Rollback, &arguments.word, scope).await
}

pub(super) async fn approve(arguments: ApproveArguments) -> anyhow::Result<()> {
    say::approve(&arguments.word, arguments.stage, arguments.digest).await
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
