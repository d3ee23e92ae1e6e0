//! `starling release-restore`: shows what a management cluster that was set back would write, and lets it continue
//! (ADR 40).
//!
//! The plan compares the Syncs as they are now with the members, in dry runs, with the caller's permissions. The
//! release covers the lost writes that the plan has met, and no others: a member that is met later holds the
//! installation again.

mod compare;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use starling_api::{Cluster, Source, SyncGroup, SyncResource};
use starling_core::preview::Overview;
use starling_core::restore::{KnownWrites, RestoreFinding};

use self::compare::Comparison;
use super::workspace::Workspace;
use super::{CHANGES, CONCURRENCY, ToolOptions, dry_run, print};
use crate::cli::caller::{Caller, CallerArguments};
use crate::cli::lists::Namespaced;
use crate::cli::{kube_errors, output};
use crate::controller::hub::{Hub, InstallationRecord, installation_key};
use crate::controller::object_key::ObjectKey;
use crate::read_model::restore::{LostWrite, RestorePlan};

/// Number of times that the release is written again after another process wrote in between.
const TRIES: usize = 8;

/// Options of `release-restore`.
#[derive(Debug, Args)]
pub(in crate::cli) struct RestoreArguments {
    /// Digest of the plan to release. Default: show the plan
    #[arg(long, value_name = "DIGEST")]
    plan: Option<String>,
    #[command(flatten)]
    tools: ToolOptions,
    #[command(flatten)]
    caller: CallerArguments,
}

/// Returns the plan as a page.
fn text(plan: &RestorePlan) -> String {
    let mut page = String::new();
    if plan.lost.is_empty() {
        page.push_str("no cluster that was reached has writes that the management cluster does not know\n");
    } else {
        page.push_str("writes that the management cluster does not know:\n");
    }
    for LostWrite { cluster, of, number } in &plan.lost {
        let _ = writeln!(page, "  {cluster}: {of} ({number})");
    }
    page.push_str("\nafter the release, the Syncs as they are now would be applied: ");
    print::push_overview(&mut page, &plan.overview);
    page
}

/// The objects of the management cluster.
struct Restored {
    clusters: BTreeMap<ObjectKey, Cluster>,
    sources: BTreeMap<ObjectKey, Source>,
    groups: BTreeMap<ObjectKey, SyncGroup>,
    syncs: BTreeMap<ObjectKey, Vec<SyncResource>>,
}

/// Shows the plan, or releases it.
///
/// # Errors
/// If the plan cannot be computed, or is not the one with the digest.
pub(in crate::cli) async fn release_restore(arguments: RestoreArguments) -> anyhow::Result<ExitCode> {
    let caller = Caller::sign_in(&arguments.caller).await?;
    let hub = Hub::new(caller.client.clone());
    let record = read(&hub).await?;
    let Some(finding) = record.finding()? else {
        output::print("no restore of the management cluster was detected\n");
        return Ok(ExitCode::SUCCESS);
    };
    let restored = Restored::read(&caller).await?;
    let workspace = Workspace::prepare(&caller, &arguments.tools).await?;
    let plan = plan(&workspace, &restored, &record.known()?, &arguments.tools).await;
    let digest = plan.digest();
    match arguments.plan {
        None => {
            output::print(&format!("{finding}\n\n{}\nplan digest: {digest}\n", text(&plan)));
            Ok(ExitCode::from(CHANGES))
        }
        Some(given) if given == digest => {
            release(&hub, &plan, &finding).await?;
            output::print("released; the controller continues within seconds\n");
            Ok(ExitCode::SUCCESS)
        }
        Some(given) => bail!("--plan {given}: the plan is now {digest}; show it without --plan"),
    }
}

async fn read(hub: &Hub) -> anyhow::Result<InstallationRecord> {
    let record = hub.installation_record().await?;
    record.with_context(|| {
        let key = installation_key();
        format!("ConfigMap {key} does not exist: no controller has run with this management cluster")
    })
}

/// Ends the hold. The numbers that the plan has met are known from now on, and so is that of the finding: the
/// controller tells by it that a person has released the finding, and that it was not lost with another restore.
async fn release(hub: &Hub, plan: &RestorePlan, finding: &RestoreFinding) -> anyhow::Result<()> {
    for _ in 0..TRIES {
        let record = read(hub).await?;
        let mut known = record.known()?;
        let met = plan.lost.iter().map(|lost| &lost.number);
        known.release(met.chain([&finding.number]).cloned());
        if hub.write_installation(&record, &known, None).await?.is_some() {
            return Ok(());
        }
    }
    bail!("ConfigMap starling-system/starling-installation is written by other processes; try again")
}

impl Restored {
    async fn read(caller: &Caller) -> anyhow::Result<Self> {
        let mut syncs: BTreeMap<ObjectKey, Vec<SyncResource>> = BTreeMap::new();
        for sync in all::<SyncResource>(caller).await?.into_values() {
            let namespace = sync.namespace().unwrap_or_default();
            let cluster = ObjectKey::new(&namespace, &sync.spec.cluster_ref.name);
            syncs.entry(cluster).or_default().push(sync);
        }
        Ok(Self {
            clusters: all(caller).await?,
            sources: all(caller).await?,
            groups: all(caller).await?,
            syncs,
        })
    }
}

/// Lists the objects of all namespaces: a release is for the whole installation.
async fn all<K: Namespaced>(caller: &Caller) -> anyhow::Result<BTreeMap<ObjectKey, K>> {
    let api: Api<K> = Api::all(caller.client.clone());
    let found = api
        .list(&ListParams::default())
        .await
        .map_err(kube_errors::request);
    let found = found.with_context(|| format!("list {} of all namespaces", K::plural(&())))?;
    Ok(found
        .items
        .into_iter()
        .map(|object| (ObjectKey::of(&object), object))
        .collect())
}

async fn plan(
    workspace: &Workspace,
    restored: &Restored,
    known: &KnownWrites,
    tools: &ToolOptions,
) -> RestorePlan {
    let of_syncs: BTreeSet<&ObjectKey> = restored.clusters.keys().chain(restored.syncs.keys()).collect();
    let clusters = of_syncs.into_iter().map(|key| {
        async move {
            let mut comparison = Comparison::new(workspace, restored, known, tools);
            comparison.compare(key).await;
            (key.to_string(), comparison.preview, comparison.lost)
        }
        .boxed()
    });
    let clusters: Vec<BoxFuture<'_, _>> = clusters.collect();
    let mut comparisons = futures::stream::iter(clusters).buffer_unordered(CONCURRENCY);
    let (mut previews, mut lost) = (BTreeMap::new(), Vec::new());
    while let Some((cluster, preview, writes)) = comparisons.next().await {
        previews.insert(cluster, preview);
        lost.extend(writes);
    }
    lost.sort();
    RestorePlan {
        lost,
        overview: Overview::of(previews),
    }
}
