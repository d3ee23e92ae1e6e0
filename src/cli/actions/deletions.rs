//! Creates an approval of deletions.

use anyhow::Context;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::PostParams;
use kube::{Api, Resource, ResourceExt};
use starling_api::{DeletionApproval, DeletionApprovalSpec, SyncGroup, SyncResource};

use super::{ApproveDeletionsArguments, DeletionSubject};
use crate::cli::caller::Caller;
use crate::cli::{kube_errors, lists, print_notice};

/// Maximum length of `generateName`: the API server appends a suffix.
const PREFIX: usize = 230;

/// The subject of an approval: its owner reference, and whether it has a held list of this digest; `None`: unknown,
/// since the caller cannot list its Syncs.
struct Subject {
    owner: Option<OwnerReference>,
    holds: Option<bool>,
}

/// Creates a DeletionApproval. A digest that no list has now may be of one that is about to be held: `starling plan`
/// prints it before the push.
pub(super) async fn approve(arguments: ApproveDeletionsArguments) -> anyhow::Result<()> {
    let ApproveDeletionsArguments {
        kind,
        name,
        digest,
        reason,
        caller,
    } = arguments;
    let caller = Caller::sign_in(&caller).await?;
    let subject = match kind {
        DeletionSubject::Group => of_group(&caller, &name, &digest).await?,
        DeletionSubject::Sync => of_sync(&lists::one(&caller, &name).await?, &digest),
    };
    let named = |is: DeletionSubject| (kind == is).then(|| name.clone());
    let spec = DeletionApprovalSpec {
        group: named(DeletionSubject::Group),
        sync: named(DeletionSubject::Sync),
        digest,
        by: caller.name().await?,
        reason,
    };
    let mut object = DeletionApproval::new("", spec);
    let prefix: String = name.chars().take(PREFIX).collect();
    object.metadata = ObjectMeta {
        generate_name: Some(format!("{prefix}-deletions-")),
        namespace: Some(caller.namespace.clone()),
        // Deleted with what it is for.
        owner_references: subject.owner.map(|owner| vec![owner]),
        ..ObjectMeta::default()
    };
    let api: Api<DeletionApproval> = Api::namespaced(caller.client.clone(), &caller.namespace);
    let made = api.create(&PostParams::default(), &object).await;
    let made = made
        .map_err(kube_errors::request)
        .context("create DeletionApproval")?;
    print_created(&caller.namespace, &name, &made);
    if subject.holds == Some(false) {
        print_notice("no list with this digest is held now; the approval has no effect on other lists");
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the output of this command")]
fn print_created(namespace: &str, name: &str, made: &DeletionApproval) {
    let DeletionApprovalSpec { digest, by, .. } = &made.spec;
    println!(
        "{namespace}/{name}: approve deletions {digest}, by {by} (deletionapproval/{})",
        made.name_any()
    );
}

async fn of_group(caller: &Caller, name: &str, digest: &str) -> anyhow::Result<Subject> {
    let group = lists::group(caller, name).await?;
    let is_of_group = |sync: &&SyncResource| sync.spec.group_ref.as_ref().is_some_and(|of| of.name == name);
    let holds = |syncs: Vec<SyncResource>| {
        let mut held = syncs.iter().filter(is_of_group).filter_map(held_by);
        held.any(|held| held == digest)
    };
    let syncs = lists::all(caller).await.ok();
    let holds = if is_held(&group, digest) {
        Some(true)
    } else {
        syncs.map(holds)
    };
    Ok(Subject {
        owner: group.owner_ref(&()),
        holds,
    })
}

/// Reports whether the group holds a list with the digest: of clusters that leave, or of entries that a rollback lacks.
fn is_held(group: &SyncGroup, digest: &str) -> bool {
    let status = group.status.iter();
    let mut holds = status.flat_map(|status| &status.held_deletions);
    holds.any(|hold| hold.digest == digest)
}

fn of_sync(sync: &SyncResource, digest: &str) -> Subject {
    Subject {
        owner: sync.owner_ref(&()),
        holds: Some(held_by(sync) == Some(digest)),
    }
}

fn held_by(sync: &SyncResource) -> Option<&str> {
    let hold = sync.status.as_ref()?.held_deletions.as_ref()?;
    Some(&hold.digest)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Guards against an answer that is read out of a message: its words may change, and a message is cut.
    #[test]
    fn a_group_holds_the_lists_in_its_status_whatever_its_messages_say() {
        let group: SyncGroup = serde_json::from_value(json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup", "metadata": {"name": "shop"},
            "spec": {"clusterSelector": {}},
            "status": {
                "heldDeletions": [{"cause": "Deselection", "digest": "sha256:a"}],
                "conditions": [{
                    "type": "MembershipHeld", "status": "True", "reason": "ApprovalNeeded",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                    "message": "an earlier list: starling approve-deletions group shop --digest sha256:b",
                }],
            },
        }))
        .unwrap();
        assert!(is_held(&group, "sha256:a"));
        assert!(!is_held(&group, "sha256:b"));
    }
}
