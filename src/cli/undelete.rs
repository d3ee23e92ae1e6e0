//! `starling undelete`: keeps objects that are no longer in git and wait for `pruneGrace`.

use anyhow::{Context, bail};
use clap::Args;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use starling_api::{PendingDeletions, SyncGroup, SyncResource, UNDELETE};

use super::caller::{Caller, CallerArguments};
use super::kube_errors;
use super::lists::{self, Namespaced};
use crate::read_model::explanation::Subject;

/// Options of `undelete`.
#[derive(Debug, Args)]
pub(super) struct UndeleteArguments {
    /// Objects to keep: those of GROUP on all clusters, or those of sync/NAME
    #[arg(value_name = "SUBJECT")]
    subject: Subject,
    #[command(flatten)]
    caller: CallerArguments,
}

pub(super) async fn run(arguments: UndeleteArguments) -> anyhow::Result<()> {
    let UndeleteArguments { subject, caller } = arguments;
    let caller = Caller::sign_in(&caller).await?;
    match subject {
        Subject::Cluster(_) => {
            bail!("a cluster has no pending deletions of its own; give GROUP or sync/NAME")
        }
        Subject::Sync(name) => {
            let sync: SyncResource = lists::one(&caller, &name).await?;
            keep::<SyncResource>(&caller, &name, &[sync]).await
        }
        Subject::Group(name) => {
            let group = lists::group(&caller, &name).await?;
            let of = lists::objects_of(&caller, group).await?;
            let syncs: Vec<SyncResource> = of.syncs.into_values().collect();
            keep::<SyncGroup>(&caller, &name, &syncs).await
        }
    }
}

/// Sets the annotation to the last time at which an object of these Syncs left git. Objects that leave git later are
/// not kept.
async fn keep<K: Namespaced>(caller: &Caller, name: &str, syncs: &[SyncResource]) -> anyhow::Result<()> {
    let kind = K::kind(&());
    let pending: Vec<(&SyncResource, &PendingDeletions)> = syncs
        .iter()
        .filter_map(|sync| Some((sync, sync.status.as_ref()?.pending_deletions.as_ref()?)))
        .collect();
    let mut until = None;
    for (sync, pending) in &pending {
        let time: jiff::Timestamp = pending.last_time.parse().with_context(|| {
            format!(
                "Sync {}/{}: status.pendingDeletions.lastTime {:?} is not a time",
                caller.namespace,
                sync.name_any(),
                pending.last_time
            )
        })?;
        until = until.max(Some(time));
    }
    let Some(until) = until else {
        bail!(
            "{kind} {}/{name} has no deletions that are pending; objects that were deleted are recreated by a commit",
            caller.namespace
        );
    };
    let api: Api<K> = Api::namespaced(caller.client.clone(), &caller.namespace);
    let patch = json!({"metadata": {"annotations": {UNDELETE: until.to_string()}}});
    let patched = api
        .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await;
    patched
        .map_err(kube_errors::request)
        .with_context(|| format!("annotate {kind} {}/{name}", caller.namespace))?;
    print_kept(&pending);
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the output of this command")]
fn print_kept(pending: &[(&SyncResource, &PendingDeletions)]) {
    for (sync, pending) in pending {
        println!(
            "{} on cluster {}: keeps {} objects, which Starling no longer manages: {}",
            sync.name_any(),
            sync.spec.cluster_ref.name,
            pending.count,
            pending.objects.join(", ")
        );
    }
}
