//! `starling undelete`: keeps objects whose deletion is pending because of `pruneGrace`.

use anyhow::{Context, bail};
use clap::Args;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use starling_api::{PendingDeletions, SyncGroup, SyncGroupStatus, SyncResource, UNDELETE};
use starling_core::plural::counted;

use super::caller::{Caller, CallerArguments};
use super::kube_errors;
use super::lists::{self, Namespaced};
use crate::read_model::explanation::ExplainedObject;

/// Options of `undelete`.
#[derive(Debug, Args)]
pub(super) struct UndeleteArguments {
    /// Subject whose pending deletions to cancel: GROUP (on all clusters where they are pending now) or sync/NAME
    #[arg(value_name = "SUBJECT")]
    subject: ExplainedObject,
    #[command(flatten)]
    caller: CallerArguments,
}

pub(super) async fn run(arguments: UndeleteArguments) -> anyhow::Result<()> {
    let UndeleteArguments { subject, caller } = arguments;
    let caller = Caller::sign_in(&caller).await?;
    match subject {
        ExplainedObject::Cluster(_) => {
            bail!("a cluster has no pending deletions of its own; give GROUP or sync/NAME")
        }
        ExplainedObject::Sync(name) => {
            let sync: SyncResource = lists::one(&caller, &name).await?;
            keep::<SyncResource>(&caller, &name, &[sync]).await
        }
        ExplainedObject::Group(name) => {
            let group = lists::group(&caller, &name).await?;
            let of = lists::objects_of(&caller, group).await?;
            let later = later(of.group.status.as_ref());
            let syncs: Vec<SyncResource> = of.syncs.into_values().collect();
            keep::<SyncGroup>(&caller, &name, &syncs).await?;
            print_later(later);
            Ok(())
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
        .filter(|(_, pending)| pending.count > 0)
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
            "{kind} {}/{name} has no pending deletions; to recreate a deleted object, add it to git again",
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
            "{} on cluster {}: {}",
            sync.name_any(),
            sync.spec.cluster_ref.name,
            kept(pending)
        );
    }
}

/// Returns what happens on the clusters that the rollout has not reached; `None`: it has reached all.
fn later(status: Option<&SyncGroupStatus>) -> Option<String> {
    let clusters = &status?.clusters;
    let others = clusters.total.saturating_sub(clusters.updated);
    (others > 0).then(|| {
        format!(
            "{} not up to date yet: objects that leave git there later are deleted after their grace, unless the \
             commit is reverted or this command is run again",
            counted(others, "cluster is", "clusters are")
        )
    })
}

#[expect(clippy::print_stdout, reason = "the output of this command")]
fn print_later(later: Option<String>) {
    if let Some(line) = later {
        println!("{line}");
    }
}

/// Returns what happens to the objects of a Sync. Its status names at most ten of them.
fn kept(pending: &PendingDeletions) -> String {
    let named = u32::try_from(pending.objects.len()).unwrap_or(u32::MAX);
    let more = match pending.count.saturating_sub(named) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "keeping {}, which Starling will no longer manage: {}{more}",
        counted(pending.count, "object", "objects"),
        pending.objects.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_objects_are_counted_and_at_most_ten_are_named() {
        let pending = |count, objects: &[&str]| PendingDeletions {
            count,
            objects: objects.iter().map(ToString::to_string).collect(),
            ..PendingDeletions::default()
        };
        assert_eq!(
            kept(&pending(1, &["ConfigMap a/b"])),
            "keeping 1 object, which Starling will no longer manage: ConfigMap a/b"
        );
        assert_eq!(
            kept(&pending(12, &["ConfigMap a/b", "Secret a/c"])),
            "keeping 12 objects, which Starling will no longer manage: ConfigMap a/b, Secret a/c and 10 more"
        );
    }

    #[test]
    fn clusters_that_get_the_release_later_are_named() {
        let status = |total, updated| {
            let clusters = json!({"total": total, "updated": updated, "progressing": 0, "pending": 0, "failed": 0,
                "unreachable": 0, "held": 0});
            serde_json::from_value::<SyncGroupStatus>(json!({"clusters": clusters})).unwrap()
        };
        assert_eq!(later(None), None);
        assert_eq!(later(Some(&status(3, 3))), None);
        let text = later(Some(&status(3, 1))).unwrap();
        assert!(text.starts_with("2 clusters are not up to date yet"), "{text}");
    }
}
