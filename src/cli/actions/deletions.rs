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
    let holds = if is_named(&group, digest) {
        Some(true)
    } else {
        syncs.map(holds)
    };
    Ok(Subject {
        owner: group.owner_ref(&()),
        holds,
    })
}

/// Reports whether the status of a group names the digest: of clusters that leave, or of entries that a rollback
/// removes.
fn is_named(group: &SyncGroup, digest: &str) -> bool {
    let Some(status) = &group.status else {
        return false;
    };
    let conditions = status.conditions.iter().map(|condition| &condition.message);
    let rollout = status.rollout.iter();
    let blockers = rollout.flat_map(|rollout| &rollout.blocked_by);
    let mut messages = conditions.chain(blockers.map(|blocker| &blocker.message));
    messages.any(|message| message.contains(&format!("--digest {digest}")))
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
