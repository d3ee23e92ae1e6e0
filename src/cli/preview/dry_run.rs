//! The dry run on each cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use indicatif::{ProgressBar, ProgressStyle};
use jiff::Timestamp;
use kube::ResourceExt;
use starling_api::{Cluster, ConflictPolicy, PendingDeletions, SyncEntry, SyncTemplate};
use starling_core::account::AccountRules;
use starling_core::apply::{ApprovedDeletions, Grace, HeldDeletions, PruneBlocker, SiblingObjects};
use starling_core::deletion_approval::Approvals;
use starling_core::deletion_budget::{BudgetClock, BudgetLimits, Earlier};
use starling_core::deletion_grant::Granted;
use starling_core::deletion_hold;
use starling_core::expand::{self, ClusterFacts};
use starling_core::ids::{OwnerLabel, ReleaseDigest};
use starling_core::object::{GroupKind, ObjectId};
use starling_core::plural::counted;
use starling_core::preview::{ClusterPreview, ObjectChange};
use starling_core::scope::aliases;
use starling_core::target::{self, Owner};
use tokio::time::Instant;

use super::CONCURRENCY;
use super::group::GroupScope;
use super::revision::ResolvedRevision;
use super::workspace::Workspace;
use crate::controller::credentials::Credentials;
use crate::controller::manifests::Rendered;
use starling_member::{Member, Network, OtherOwner, PreviewJob, Siblings};

/// An entry that is built for a cluster.
struct Part<'a> {
    entry: &'a SyncEntry,
    template: SyncTemplate,
    owner: OwnerLabel,
    rendered: Arc<Rendered>,
}

/// Previews these clusters, a few at a time.
pub(super) async fn of_all(
    workspace: &Workspace,
    scope: &GroupScope,
    revisions: &BTreeMap<String, ResolvedRevision>,
    clusters: &BTreeMap<String, Cluster>,
    limit: Duration,
) -> anyhow::Result<BTreeMap<String, ClusterPreview>> {
    // On standard error, and only in a terminal.
    let style = ProgressStyle::with_template("{pos} of {len} clusters previewed")?;
    let progress = ProgressBar::new(u64::try_from(clusters.len())?).with_style(style);
    let previews = clusters.iter().map(|(name, cluster)| {
        let progress = progress.clone();
        async move {
            let preview = of_cluster(workspace, scope, revisions, cluster, limit).await;
            progress.inc(1);
            (name.clone(), preview)
        }
        .boxed()
    });
    let previews: Vec<BoxFuture<'_, _>> = previews.collect();
    let previews = futures::stream::iter(previews)
        .buffer_unordered(CONCURRENCY)
        .collect()
        .await;
    progress.finish_and_clear();
    Ok(previews)
}

async fn of_cluster(
    workspace: &Workspace,
    scope: &GroupScope,
    revisions: &BTreeMap<String, ResolvedRevision>,
    cluster: &Cluster,
    limit: Duration,
) -> ClusterPreview {
    let mut preview = ClusterPreview::default();
    // A rollout does not touch a suspended cluster, so that is not a failure.
    if cluster.spec.suspend {
        preview.suspended = true;
        return preview;
    }
    let member = match connect(workspace, cluster).await {
        Ok(member) => member,
        Err(error) => {
            preview.fail_unknown("", crate::chain(error.as_ref()));
            return preview;
        }
    };
    let parts = parts(workspace, scope, revisions, cluster, &mut preview).await;
    let release = release(scope, revisions);
    for part in &parts {
        let until = Instant::now() + limit;
        let dry_run = DryRun {
            cluster,
            member: &member,
            parts: &parts,
            release: &release,
            scope,
            confirm: &workspace.confirm,
            accounts: &workspace.accounts,
            deadline: until,
        };
        dry_run.of_part(part, &mut preview).await;
    }
    preview
}

/// Returns the release that these revisions form, as it replaces the objects that are deleted.
pub(super) fn release(scope: &GroupScope, revisions: &BTreeMap<String, ResolvedRevision>) -> ReleaseDigest {
    let entries = scope.group.spec.syncs.iter();
    let entries: Vec<target::ReleaseEntry<'_>> = entries
        .map(|entry| {
            let revision = revisions.get(&entry.name).map_or("", |revision| &revision.text);
            (entry.name.as_str(), revision, &entry.template)
        })
        .collect();
    target::of_release(&entries)
}

pub(super) async fn connect(workspace: &Workspace, cluster: &Cluster) -> anyhow::Result<Member> {
    let credentials = Credentials::read(&workspace.hub, cluster).await?;
    Ok(credentials.connect(&Network::system())?)
}

/// Builds the entries of the group for a cluster; an entry that cannot be built is a failure.
async fn parts<'a>(
    workspace: &Workspace,
    scope: &'a GroupScope,
    revisions: &BTreeMap<String, ResolvedRevision>,
    cluster: &Cluster,
    preview: &mut ClusterPreview,
) -> Vec<Part<'a>> {
    let (namespace, group) = (
        scope.group.namespace().unwrap_or_default(),
        scope.group.name_any(),
    );
    let mut parts = Vec::new();
    for entry in &scope.group.spec.syncs {
        let template = match expand::resolve(&entry.template, &ClusterFacts::of(cluster)) {
            Ok(template) => template,
            Err(error) => {
                preview.fail(&entry.name, error.to_string());
                continue;
            }
        };
        let Some(at) = workspace.at(scope, revisions, &entry.name) else {
            continue;
        };
        let of = Owner::Entry {
            group: &group,
            entry: &entry.name,
        };
        let owner = target::owner(&workspace.installation, &namespace, of);
        match workspace.builder().render(&at, &template, &owner).await {
            Ok(rendered) => parts.push(Part {
                entry,
                template,
                owner,
                rendered,
            }),
            Err(error) => preview.fail(&entry.name, crate::chain(&error)),
        }
    }
    parts
}

/// The dry run of the entries of a cluster.
#[derive(Clone, Copy)]
struct DryRun<'a> {
    cluster: &'a Cluster,
    member: &'a Member,
    /// All entries of the cluster.
    parts: &'a [Part<'a>],
    /// The previewed release, which replaces the objects that are deleted.
    release: &'a str,
    scope: &'a GroupScope,
    /// The kinds that the controller adds to those whose deletion requires an approval.
    confirm: &'a BTreeSet<GroupKind>,
    accounts: &'a AccountRules,
    deadline: Instant,
}

impl DryRun<'_> {
    async fn of_part(self, part: &Part<'_>, preview: &mut ClusterPreview) {
        let Self {
            cluster,
            member,
            parts,
            release,
            scope,
            confirm,
            accounts,
            deadline,
        } = self;
        let name = part.entry.name.as_str();
        let account = match accounts.account(&part.template.service_account_name) {
            Ok(account) => account,
            Err(error) => return preview.fail(name, error.to_string()),
        };
        let namespace = cluster.namespace().unwrap_or_default();
        let member = if account.is_empty() {
            member.clone()
        } else {
            match member.impersonating(&namespace, account) {
                Ok(member) => member,
                Err(error) => {
                    return preview.fail(name, format!("serviceAccountName: {}", crate::chain(&error)));
                }
            }
        };
        let others: Vec<&Part<'_>> = parts.iter().filter(|other| other.entry.name != name).collect();
        let objects = others.iter().flat_map(|other| &other.rendered.set.objects);
        let siblings = Others(objects.flat_map(|object| aliases(&object.key)).collect());
        for object in &part.rendered.set.objects {
            if siblings.0.contains(&object.key) {
                preview.fail(
                    name,
                    format!(
                        "{}: another entry of the group renders this object, too",
                        object.key
                    ),
                );
            }
        }
        let on = (cluster.name_any(), name.to_owned());
        let sync = scope.syncs.get(&on);
        let approved = scope.approvals(sync).digests();
        let deletions = sync.and_then(|sync| sync.status.as_ref()?.deletions.as_ref());
        let (granted, now) = (Granted::default(), Timestamp::now());
        let window = BudgetLimits::of_sync(None).window;
        let group_owners = others.iter().map(|other| other.owner.clone()).collect();
        let found = member
            .preview(PreviewJob {
                owner: &part.owner,
                desired: &part.rendered.set,
                prune: part.template.prune,
                allow_empty: part.template.allow_empty,
                conflicts_override: part.template.conflicts == ConflictPolicy::Override,
                recreate: part.template.force,
                siblings: &siblings,
                handed_over_by: &group_owners,
                approval: ApprovedDeletions {
                    subject: scope.subject(name, release),
                    digests: &approved,
                },
                confirm,
                earlier: Earlier::of(deletions, window, &granted, BudgetClock::from(now)),
                grace: Grace {
                    length: part.template.prune_grace.as_std(),
                    now,
                    ..Grace::none()
                },
                deadline,
            })
            .await;
        preview
            .changes
            .extend(found.changes.into_iter().map(|(key, change)| ObjectChange {
                entry: name.to_owned(),
                key,
                change,
            }));
        for (_, error) in &found.failures {
            preview.fail(name, crate::chain(error));
        }
        if let Some(error) = &found.interrupted {
            preview.fail_unknown(name, crate::chain(error));
        }
        if let Some(pending) = &found.pending {
            report_pending(preview, name, part.template.prune_grace, pending);
        }
        if let Some(blocker) = &found.prune_blocker {
            report_blocker(preview, name, &scope.arguments(), blocker);
            report_void(preview, name, &scope.approvals(sync), blocker);
        }
    }
}

/// Reports objects that would be deleted after a grace.
pub(super) fn report_pending(
    preview: &mut ClusterPreview,
    entry: &str,
    grace: starling_api::Duration,
    pending: &PendingDeletions,
) {
    preview.notes.push(format!(
        "{entry}: {} no longer in git and would be deleted after {grace}: {}",
        counted(pending.count, "object is", "objects are"),
        pending.objects.join(", ")
    ));
}

/// Reports why prune is skipped. It is a failure where the Sync would not become ready, which fails the cluster in the
/// rollout. `subject` are the arguments of `starling approve-deletions` that name what is approved.
pub(super) fn report_blocker(
    preview: &mut ClusterPreview,
    entry: &str,
    subject: &str,
    blocker: &PruneBlocker,
) {
    match blocker {
        PruneBlocker::Off => preview.notes.push(format!(
            "{entry}: objects that are no longer in git stay: prune is off"
        )),
        PruneBlocker::EmptyRender => preview.fail(
            entry,
            "EmptyRender: the build has no objects, so nothing is deleted; set allowEmpty to delete all objects"
                .to_owned(),
        ),
        PruneBlocker::HandOverUnknown(why) => preview.fail(
            entry,
            format!("HandOverUnknown: prune skipped, another Sync may own these objects: {why}"),
        ),
        PruneBlocker::Stopped(why) => preview.notes.push(format!("{subject}: prune waits: {why}")),
        PruneBlocker::NotGone(objects) => {
            preview.notes.push(format!("{subject}: prune waits for finalizers: {objects}"));
        }
        PruneBlocker::NotCounted(why) => preview.fail(entry, format!("DeletionsNotCounted: {why}")),
        PruneBlocker::Budget(held) => preview.fail(entry, held_deletions(subject, held)),
    }
}

/// Reports why approvals of held deletions approve nothing: they are used up, or of another list.
fn report_void(preview: &mut ClusterPreview, entry: &str, approvals: &Approvals, blocker: &PruneBlocker) {
    let PruneBlocker::Budget(held) = blocker else {
        return;
    };
    let remarks = approvals.about(&held.digest).remarks(&[&*held.digest].into());
    if !remarks.is_empty() {
        preview.notes.push(format!("{entry}: {remarks}"));
    }
}

/// Deletions that need an approval, with the objects as far as they are known by name.
fn held_deletions(subject: &str, held: &HeldDeletions) -> String {
    let hold = deletion_hold::of(held);
    let message = deletion_hold::message(subject, &hold);
    format!("DeletionHeld: {message}: {}", deletion_hold::objects(&hold))
}

/// The objects of the other entries of the group on the same cluster.
#[derive(Debug)]
struct Others(BTreeSet<ObjectId>);

impl Siblings for Others {
    fn objects(&self) -> BoxFuture<'_, SiblingObjects> {
        let keys = self.0.clone();
        async { SiblingObjects::Known(keys) }.boxed()
    }

    // Only an apply asks. The preview of one has its own list.
    fn has_given_up(&self, _owner: &str) -> bool {
        false
    }

    // Only the names of Syncs that are being deleted would differ.
    fn owners(&self) -> BTreeMap<OwnerLabel, OtherOwner> {
        BTreeMap::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocker_that_fails_the_cluster_is_a_failure_and_others_are_notes() {
        let reported = |blocker| {
            let mut preview = ClusterPreview::default();
            report_blocker(&mut preview, "app", "group shop", &blocker);
            let failures = preview.failures.iter().map(|failure| failure.message.clone());
            (failures.collect::<Vec<_>>(), preview.notes)
        };
        let (failures, notes) = reported(PruneBlocker::Off);
        assert!(
            failures.is_empty() && notes[0].contains("prune is off"),
            "{notes:?}"
        );
        for (blocker, reason) in [
            (PruneBlocker::EmptyRender, "EmptyRender: "),
            (
                PruneBlocker::HandOverUnknown("no answer".into()),
                "HandOverUnknown: ",
            ),
        ] {
            let (failures, notes) = reported(blocker);
            assert!(
                failures[0].starts_with(reason) && notes.is_empty(),
                "{failures:?}"
            );
        }
        let space = ObjectId {
            group: String::new(),
            kind: "Namespace".into(),
            namespace: String::new(),
            name: "shop".into(),
        };
        let (failures, _) = reported(PruneBlocker::Budget(HeldDeletions {
            digest: "sha256:1".into(),
            deletions: 3,
            of: 20,
            objects: vec![space],
            excess: None,
        }));
        assert_eq!(
            failures,
            [
                "DeletionHeld: 3 of 20 objects are no longer in git and would be deleted; to approve: starling \
                 approve-deletions group shop --digest sha256:1 --reason \"…\": Namespace shop, 2 more"
            ]
        );
    }
}
