//! `starling plan` and `starling diff`: preview a rollout with a server-side dry run on the members.
//!
//! The command uses the caller's permissions: it reads the group, its Clusters and their Secrets, fetches and builds
//! the commit on this machine, and each member computes the difference in a dry run. Nothing is written.

mod budget;
mod dry_run;
mod group;
mod print;
mod restore;
mod revision;
mod workspace;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use jiff::Timestamp;
use starling_core::preview::Overview;

use self::group::GroupScope;
pub(super) use self::restore::{RestoreArguments, release_restore};
use self::workspace::Workspace;
use super::caller::{Caller, CallerArguments};
use super::duration::duration_or_seconds;
use super::output::{self, Form};
use super::value::InvalidValue;
use crate::read_model::preview::{PreviewReport, PreviewResult};
use crate::read_model::removals;

/// Clusters that are previewed concurrently.
const CONCURRENCY: usize = 16;
/// The range of the timeout of a cluster.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(3_600);

/// Options of `plan` and `diff`.
#[derive(Clone, Debug, Args)]
pub(super) struct PreviewOptions {
    /// Branch, tag or commit to preview; SOURCE=REVISION if the group has several Sources. Default: the latest revision
    /// of each Source
    #[arg(long, value_name = "REVISION", conflicts_with = "path")]
    revision: Vec<String>,
    /// Local directory to preview instead of the repository; SOURCE=DIR if the group has several Sources
    #[arg(long, value_name = "DIR")]
    path: Vec<String>,
    #[command(flatten)]
    tools: ToolOptions,
    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: Form,
    #[command(flatten)]
    caller: CallerArguments,
}

/// Options of everything that builds manifests and previews them.
#[derive(Clone, Debug, Args)]
struct ToolOptions {
    /// Allow Sources with http:// and file:// URLs
    #[arg(long)]
    allow_insecure_sources: bool,
    /// Path of kustomize. Default: kustomize on PATH, then `kubectl kustomize`
    #[arg(long, value_name = "FILE")]
    kustomize: Option<PathBuf>,
    /// Path of sops. Default: sops on PATH
    #[arg(long, value_name = "FILE")]
    sops: Option<PathBuf>,
    /// Timeout of each cluster, such as 90s, 2m or a number of seconds
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = timeout)]
    timeout: Duration,
}

/// Options of `plan`.
#[derive(Debug, Args)]
pub(super) struct PlanArguments {
    /// Name of the SyncGroup
    #[arg(value_name = "GROUP")]
    group: String,
    #[command(flatten)]
    options: PreviewOptions,
}

/// Options of `diff`.
#[derive(Debug, Args)]
pub(super) struct DiffArguments {
    /// Name of the SyncGroup
    #[arg(value_name = "GROUP")]
    group: String,
    /// Name of the Cluster
    #[arg(value_name = "CLUSTER")]
    cluster: String,
    #[command(flatten)]
    options: PreviewOptions,
}

/// Exit codes as of `kubectl diff`: 0 no differences, 1 differences, above 1 an error.
const CHANGES: u8 = 1;
/// A cluster would fail, or could not be previewed.
const INCOMPLETE: u8 = 2;

/// An error is not a difference: scripts tell them apart by the exit code.
pub(super) fn exit_code(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        super::print_error(&error);
        ExitCode::from(INCOMPLETE)
    })
}

pub(super) async fn plan(arguments: PlanArguments) -> anyhow::Result<ExitCode> {
    let PlanArguments { group, options } = arguments;
    preview(&group, None, &options).await
}

pub(super) async fn diff(arguments: DiffArguments) -> anyhow::Result<ExitCode> {
    let DiffArguments {
        group,
        cluster,
        options,
    } = arguments;
    preview(&group, Some(&cluster), &options).await
}

async fn preview(group: &str, only: Option<&str>, options: &PreviewOptions) -> anyhow::Result<ExitCode> {
    let caller = Caller::sign_in(&options.caller).await?;
    let scope = GroupScope::read(&caller, group).await?;
    let clusters = match only {
        None => scope.clusters.clone(),
        Some(name) => {
            let cluster = scope.clusters.get(name).with_context(|| {
                format!(
                    "SyncGroup {group} does not select Cluster {name:?}; it selects {} other clusters",
                    scope.clusters.len()
                )
            })?;
            BTreeMap::from([(name.to_owned(), cluster.clone())])
        }
    };
    let workspace = Workspace::open(&caller, &scope, options).await?;
    let revisions = workspace.revisions(&scope, options).await?;
    let digest = workspace.digest(&scope, &revisions).await;
    let mut previews =
        dry_run::of_all(&workspace, &scope, &revisions, &clusters, options.tools.timeout).await?;
    let release = dry_run::release(&scope, &revisions);
    budget::hold(&scope, &release, Timestamp::now(), &mut previews);
    budget::note_installation(&mut previews);
    if let Some(why) = &scope.unknown_approvals {
        let notes = previews.values_mut().map(|preview| &mut preview.notes);
        notes.for_each(|notes| notes.push(format!("approvals of deletions are not known: {why}")));
    }
    let overview = Overview::of(previews);
    let mut removals = removals::of_preview(&overview);
    removals.extend(scope.removals(only));
    let report = PreviewReport {
        group: group.to_owned(),
        namespace: caller.namespace,
        revisions: revisions
            .into_iter()
            .map(|(entry, revision)| (entry, revision.text))
            .collect(),
        release_digest: digest.as_ref().ok().cloned(),
        release_digest_error: digest.err().map(|error| error.to_string()),
        removals,
        overview,
    };
    match options.output {
        // As a value, so that the keys are sorted.
        Form::Json => output::print_value(&serde_json::to_value(&report)?, false)?,
        Form::Text => output::print(&print::text(&report)),
    }
    Ok(ExitCode::from(match report.result() {
        PreviewResult::NoChanges => 0,
        PreviewResult::Changes => CHANGES,
        PreviewResult::Incomplete => INCOMPLETE,
    }))
}

/// Parses the timeout of a cluster.
fn timeout(text: &str) -> Result<Duration, InvalidValue> {
    let limit = duration_or_seconds(text)?;
    if (SHORTEST..=LONGEST).contains(&limit) {
        Ok(limit)
    } else {
        Err(InvalidValue::new("expected a timeout from 1s to 1h"))
    }
}

/// Parses values by Source: `NAME=VALUE` for one of several Sources, or a value for the only one.
fn by_source(given: &[String], sources: &[&str], flag: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for text in given {
        let named = text.split_once('=').filter(|(name, _)| sources.contains(name));
        let (name, value) = match (named, sources) {
            (Some((name, value)), _) => (name, value),
            (None, [only]) => (*only, text.as_str()),
            (None, _) => bail!(
                "{flag} {text}: the group has several Sources; give SOURCE={} with one of {}",
                if flag == "--path" { "DIR" } else { "REVISION" },
                sources.join(", ")
            ),
        };
        if found.insert(name.to_owned(), value.to_owned()).is_some() {
            bail!("{flag} is given twice for Source {name}");
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(given: &[&str], sources: &[&str]) -> Result<Vec<(String, String)>, String> {
        let given: Vec<String> = given.iter().map(|text| (*text).to_owned()).collect();
        by_source(&given, sources, "--revision")
            .map(|found| found.into_iter().collect())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_timeout_is_a_duration_or_a_number_of_seconds() {
        for (text, seconds) in [("90", 90), ("90s", 90), ("2m", 120), ("1h", 3_600)] {
            assert_eq!(timeout(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["0", "0s", "61m", "soon", "-1", ""] {
            assert!(timeout(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_value_is_for_the_only_source_or_for_the_one_that_is_named() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(of(&["v1"], &["shop"]), Ok(vec![pair("shop", "v1")]));
        // The name of a branch may contain `=`.
        assert_eq!(of(&["a=b"], &["shop"]), Ok(vec![pair("shop", "a=b")]));
        assert_eq!(of(&["shop=v1"], &["shop"]), Ok(vec![pair("shop", "v1")]));
        assert_eq!(
            of(&["b=v2", "a=v1"], &["a", "b"]),
            Ok(vec![pair("a", "v1"), pair("b", "v2")])
        );
        let error = of(&["v1"], &["a", "b"]).unwrap_err();
        assert!(error.contains("SOURCE=REVISION with one of a, b"), "{error}");
        let error = of(&["a=v1", "a=v2"], &["a", "b"]).unwrap_err();
        assert!(error.contains("twice"), "{error}");
    }
}
