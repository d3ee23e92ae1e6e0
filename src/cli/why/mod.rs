//! `starling why`: explains what blocks a group, a cluster or a Sync, now or at an earlier time.

mod print;

use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::Args;
use jiff::Timestamp;
use starling_api::{Cluster, Source, SyncResource};

use super::caller::{Caller, CallerArguments};
use super::history;
use super::lists;
use super::output::Form;
use super::value::InvalidValue;
use crate::controller::hub::Hub;
use crate::read_model::explanation::{
    ExplainedObject, LostRelease, NamespaceObjects, Past, Present, SubjectExplanation,
};

/// Options of `why`.
#[derive(Debug, Args)]
pub(super) struct WhyArguments {
    /// Subject to explain: GROUP, sync/NAME or cluster/NAME
    #[arg(value_name = "SUBJECT")]
    subject: ExplainedObject,
    /// Time to explain, such as 2026-11-21T16:00:00Z; requires --data-dir. Default: now
    #[arg(long, value_name = "TIME", requires = "data_dir", value_parser = time)]
    at: Option<Timestamp>,
    /// Data directory of the controller or of `starling server`, with the journal of past states and durations.
    /// Default: no journal
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: Form,
    #[command(flatten)]
    caller: CallerArguments,
}

fn time(text: &str) -> Result<Timestamp, InvalidValue> {
    text.parse().map_err(|_| {
        InvalidValue::new(
            "expected a time with an offset, such as 2026-11-21T16:00:00Z or 2026-11-21T17:00:00+01:00",
        )
    })
}

pub(super) async fn run(arguments: WhyArguments) -> anyhow::Result<()> {
    let WhyArguments {
        subject,
        at,
        data_dir,
        output,
        caller,
    } = arguments;
    let explanations = match (at, data_dir) {
        (Some(at), Some(data_dir)) => past(&subject, at, &data_dir, &caller).await?,
        (Some(_), None) => bail!("--at requires --data-dir: past states are in the controller's journal"),
        (None, data_dir) => Box::pin(present(&subject, data_dir, &caller)).await?,
    };
    print::print(&explanations, output)
}

async fn present(
    subject: &ExplainedObject,
    data_dir: Option<PathBuf>,
    caller: &CallerArguments,
) -> anyhow::Result<Vec<SubjectExplanation>> {
    let caller = Caller::sign_in(caller).await?;
    let sources: Vec<Source> = lists::all(&caller).await?;
    let mut statuses = sources.iter().filter_map(|source| source.status.as_ref());
    let is_any_lost = statuses.any(|status| !status.lost_revisions.is_empty());
    let objects = NamespaceObjects {
        namespace: caller.namespace.clone(),
        groups: lists::all(&caller).await?,
        sources,
        clusters: lists::all(&caller).await?,
        syncs: lists::all(&caller).await?,
        approvals: lists::all(&caller).await?,
        actions: lists::all(&caller).await?,
        deletion_approvals: lists::all(&caller).await?,
    };
    let present = Present::new(objects, Hub::new(caller.client.clone()), data_dir);
    Ok(match subject {
        ExplainedObject::Group(name) => {
            let mut explained = present.group(name).await?;
            if is_any_lost {
                explained.lost = LostRelease::of(&history::read_objects(&caller, name).await?);
            }
            vec![explained]
        }
        ExplainedObject::Cluster(name) => {
            present
                .cluster(&lists::one::<Cluster>(&caller, name).await?)
                .await?
        }
        ExplainedObject::Sync(name) => vec![
            present
                .sync(&lists::one::<SyncResource>(&caller, name).await?)
                .await?,
        ],
    })
}

async fn past(
    subject: &ExplainedObject,
    at: Timestamp,
    directory: &Path,
    caller: &CallerArguments,
) -> anyhow::Result<Vec<SubjectExplanation>> {
    let namespace = &caller.namespace_unsigned()?;
    let past = Past {
        directory,
        namespace,
        at,
    };
    Ok(match subject {
        ExplainedObject::Group(name) => vec![past.group(name).await?],
        ExplainedObject::Cluster(name) => past.cluster(name).await?,
        ExplainedObject::Sync(name) => {
            // Only the Sync itself says to which group it belongs.
            let caller = Caller::sign_in(caller).await?;
            let sync = lists::one::<SyncResource>(&caller, name).await?;
            let namespace = &caller.namespace;
            vec![Past { namespace, ..past }.sync(&sync).await?]
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_needs_an_offset() {
        assert!(time("yesterday").is_err() && time("2026-11-21T16:00:00").is_err());
        assert!(time("2026-11-21T17:00:00+01:00").is_ok());
    }
}
