//! Compares one cluster with the restored management cluster: which of its writes the management cluster does not know,
//! and what its Syncs would change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::Context;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::Timestamp;
use kube::ResourceExt;
use starling_api::{Cluster, ConflictPolicy, DeletionPolicy, RELEASE, SyncResource, SyncTemplate};
use starling_core::apply::ApprovedDeletions;
use starling_core::apply::{Grace, SiblingObjects};
use starling_core::deletion_budget::Earlier;
use starling_core::deletion_subject::{ApprovalScope, ApprovalSubject, DeletionCause};
use starling_core::expand::{self, ClusterFacts};
use starling_core::ids::OwnerLabel;
use starling_core::object::ObjectId;
use starling_core::preview::{ClusterPreview, ObjectChange, PreviewChange};
use starling_core::restore::{KnownWrites, WriteNumber};
use starling_core::revision::Revision;
use starling_core::scope::aliases;
use starling_core::target::{self, Owner};
use starling_member::{Member, MemberError, OtherOwner, PreviewJob, Siblings};
use tokio::time::Instant;

use super::{Restored, ToolOptions, Workspace, dry_run};
use crate::cli::lists;
use crate::controller::artifacts::reference;
use crate::controller::builds::EntryAt;
use crate::controller::manifests::Rendered;
use crate::controller::object_key::ObjectKey;
use crate::read_model::restore::LostWrite;

/// The comparison of one cluster with the restored management cluster.
pub(super) struct Comparison<'a> {
    workspace: &'a Workspace,
    restored: &'a Restored,
    known: &'a KnownWrites,
    tools: &'a ToolOptions,
    /// The changes.
    pub(super) preview: ClusterPreview,
    /// The writes that the management cluster does not know.
    pub(super) lost: Vec<LostWrite>,
}

/// The end of a Sync.
struct SyncRemoval {
    why: &'static str,
    /// The changes of its objects.
    policy: DeletionPolicy,
}

/// A Sync that would be applied.
struct Part {
    name: String,
    namespace: String,
    owner: OwnerLabel,
    template: SyncTemplate,
    rendered: Arc<Rendered>,
    /// The target that replaces the objects that are deleted, as in the digest of an approval.
    target: String,
    /// The arguments of `starling approve-deletions` that name what is approved.
    subject: String,
    /// The group, or none, and the entry, or the Sync.
    group: String,
    own: String,
    /// The identity of the member.
    cluster: String,
}

impl<'a> Comparison<'a> {
    pub(super) fn new(
        workspace: &'a Workspace,
        restored: &'a Restored,
        known: &'a KnownWrites,
        tools: &'a ToolOptions,
    ) -> Self {
        Self {
            workspace,
            restored,
            known,
            tools,
            preview: ClusterPreview::default(),
            lost: Vec::new(),
        }
    }
}

impl Comparison<'_> {
    /// Compares one cluster.
    pub(super) async fn compare(&mut self, key: &ObjectKey) {
        let syncs = self.restored.syncs.get(key).map_or(&[][..], Vec::as_slice);
        let Some(cluster) = self.restored.clusters.get(key) else {
            self.preview.notes.push("the Cluster does not exist".to_owned());
            return;
        };
        if cluster.spec.suspend {
            self.preview.suspended = true;
            return;
        }
        let member = match dry_run::connect(self.workspace, cluster).await {
            Ok(member) => member,
            Err(error) => return self.preview.fail_unknown("", crate::chain(error.as_ref())),
        };
        let deadline = Instant::now() + self.tools.timeout;
        let removal = member.last_removal(&self.workspace.installation, deadline);
        self.record(key, "", "a Sync was removed".to_owned(), removal.await);
        for (name, owner) in self.owners(key, cluster, syncs) {
            let deadline = Instant::now() + self.tools.timeout;
            let found = member.last_write(&owner, deadline).await;
            self.record(key, &name, name.clone(), found);
        }
        let (removed, stay): (Vec<_>, Vec<_>) = syncs
            .iter()
            .map(|sync| (sync, self.removal(cluster, sync)))
            .partition(|(_, removal)| removal.is_some());
        let mut parts = Vec::new();
        for (sync, _) in stay {
            parts.extend(self.part(cluster, sync).await);
        }
        for part in &parts {
            self.dry_run(&member, part, &parts).await;
        }
        for (sync, removal) in removed {
            if let Some(removal) = removal {
                self.remove(&member, sync, &removal, &parts).await;
            }
        }
    }

    /// Returns why a Sync would be removed, and what becomes of its objects; `None` if it stays. The release of a
    /// restored group that has lost a cluster or an entry removes them, stage by stage.
    fn removal(&self, cluster: &Cluster, sync: &SyncResource) -> Option<SyncRemoval> {
        let namespace = sync.namespace().unwrap_or_default();
        let own_policy = sync.spec.template.deletion_policy;
        let of = |why, policy| Some(SyncRemoval { why, policy });
        let is_deleted = sync.metadata.deletion_timestamp.is_some();
        let deleted = of("the Sync is being deleted", own_policy).filter(|_| is_deleted);
        let Some(group_ref) = &sync.spec.group_ref else {
            return deleted;
        };
        let group_key = ObjectKey::new(&namespace, &group_ref.name);
        let Some(group) = self.restored.groups.get(&group_key) else {
            return deleted;
        };
        if group.metadata.deletion_timestamp.is_some() {
            return of("the SyncGroup is being deleted", group.spec.deletion_policy);
        }
        // An invalid selector removes nothing.
        let selector = expand::selector(&group.spec.cluster_selector);
        if selector.is_ok_and(|selector| !lists::is_selected(&selector, cluster)) {
            return of(
                "the SyncGroup does not select the cluster",
                group.spec.when_unselected,
            );
        }
        if !group.spec.syncs.iter().any(|entry| entry.name == group_ref.entry) {
            return of("the SyncGroup has no such entry", own_policy);
        }
        deleted
    }

    /// Adds the objects that go with a Sync: those in its inventory, unless another Sync on the cluster renders them.
    async fn remove(&mut self, member: &Member, sync: &SyncResource, removal: &SyncRemoval, parts: &[Part]) {
        let (name, SyncRemoval { why, policy }) = (name(sync), removal);
        if sync.spec.template.suspend {
            let note = format!("{name}: {why}; the Sync is suspended, so its objects stay");
            return self.preview.notes.push(note);
        }
        let deadline = Instant::now() + self.tools.timeout;
        let inventory = match member.read_inventory(&self.owner(sync), deadline).await {
            Ok(inventory) => inventory,
            Err(error) => return self.preview.fail_unknown(&name, crate::chain(&error)),
        };
        if *policy == DeletionPolicy::Orphan {
            let objects = inventory.len();
            let note = format!("{name}: {why}; its {objects} objects stay, and are no longer managed");
            return self.preview.notes.push(note);
        }
        self.preview.notes.push(format!("{name}: {why}"));
        let rendered: BTreeSet<&ObjectId> = parts
            .iter()
            .flat_map(|part| part.rendered.set.objects.iter().map(|object| &object.key))
            .collect();
        let gone = inventory.iter().filter(|(key, _)| !rendered.contains(key));
        let changes = gone.map(|(key, _)| ObjectChange {
            entry: name.clone(),
            key: key.clone(),
            change: PreviewChange::Delete,
        });
        self.preview.changes.extend(changes);
    }

    /// Records a number that was read, if the management cluster does not know it.
    fn record(
        &mut self,
        key: &ObjectKey,
        name: &str,
        of: String,
        found: Result<Option<WriteNumber>, MemberError>,
    ) {
        match found {
            Ok(Some(number)) if !self.known.knows(&number) => self.lost.push(LostWrite {
                cluster: key.to_string(),
                of,
                number,
            }),
            Ok(_) => {}
            Err(error) => self.preview.fail_unknown(name, crate::chain(&error)),
        }
    }

    /// Returns the names and the owners of the Syncs on a cluster, and of those that groups would create: a cluster or
    /// an entry from after the backup has no Sync yet.
    fn owners(
        &self,
        key: &ObjectKey,
        cluster: &Cluster,
        syncs: &[SyncResource],
    ) -> BTreeMap<String, OwnerLabel> {
        let mut owners: BTreeMap<String, OwnerLabel> =
            syncs.iter().map(|sync| (name(sync), self.owner(sync))).collect();
        for group in self.restored.groups.values() {
            let selector = expand::selector(&group.spec.cluster_selector);
            let selects = selector.is_ok_and(|selector| lists::is_selected(&selector, cluster));
            if group.namespace().unwrap_or_default() != key.namespace || !selects {
                continue;
            }
            for entry in &group.spec.syncs {
                let of = Owner::Entry {
                    group: &group.name_any(),
                    entry: &entry.name,
                };
                let owner = target::owner(&self.workspace.installation, &key.namespace, of);
                owners.insert(format!("{}/{}", group.name_any(), entry.name), owner);
            }
        }
        owners
    }

    fn owner(&self, sync: &SyncResource) -> OwnerLabel {
        let (namespace, own) = (sync.namespace().unwrap_or_default(), sync.name_any());
        let owner = match &sync.spec.group_ref {
            Some(of) => Owner::Entry {
                group: &of.name,
                entry: &of.entry,
            },
            None => Owner::Alone { sync: &own },
        };
        target::owner(&self.workspace.installation, &namespace, owner)
    }

    /// Builds what a Sync would apply; `None` if it would apply nothing.
    async fn part(&mut self, cluster: &Cluster, sync: &SyncResource) -> Option<Part> {
        let name = name(sync);
        if let Some(note) = Self::is_not_applied(sync) {
            self.preview.notes.push(format!("{name}: {note}"));
            return None;
        }
        match self.build(cluster, sync).await {
            Ok(built) => {
                let (template, rendered, target) = built?;
                let (of, identity) = (sync.spec.group_ref.as_ref(), cluster.status.as_ref());
                Some(Part {
                    target,
                    subject: subject(sync),
                    group: of.map_or_else(String::new, |of| of.name.clone()),
                    own: of.map_or_else(|| sync.name_any(), |of| of.entry.clone()),
                    cluster: identity.map_or_else(String::new, |status| status.cluster_id.clone()),
                    name,
                    namespace: sync.namespace().unwrap_or_default(),
                    owner: self.owner(sync),
                    template,
                    rendered,
                })
            }
            Err(error) => {
                self.preview.fail(&name, crate::chain(error.as_ref()));
                None
            }
        }
    }

    /// Why a Sync would not be applied.
    fn is_not_applied(sync: &SyncResource) -> Option<&'static str> {
        sync.spec.template.suspend.then_some("the Sync is suspended")
    }

    /// Renders a Sync; `None` while it has no revision.
    async fn build(
        &self,
        cluster: &Cluster,
        sync: &SyncResource,
    ) -> anyhow::Result<Option<(SyncTemplate, Arc<Rendered>, String)>> {
        let namespace = sync.namespace().unwrap_or_default();
        let template = match &sync.spec.group_ref {
            Some(_) => sync.spec.template.clone(),
            None => expand::resolve(&sync.spec.template, &ClusterFacts::of(cluster))?,
        };
        let named = &template.source_ref.name;
        let source = self.restored.sources.get(&ObjectKey::new(&namespace, named));
        let source = source.with_context(|| format!("Source {namespace}/{named} not found"))?;
        let latest = source.status.as_ref().map(|status| status.revision.as_str());
        let revision = match (sync.spec.revision.as_str(), &sync.spec.group_ref) {
            ("", Some(_)) => return Ok(None),
            ("", None) => latest.unwrap_or_default(),
            (revision, _) => revision,
        };
        if revision.is_empty() {
            return Ok(None);
        }
        let parsed: Revision = revision.parse()?;
        let own = sync.name_any();
        let at = EntryAt {
            name: &own,
            source,
            revision,
            reference: reference(source, &parsed),
        };
        let owner = self.owner(sync);
        let rendered = self.workspace.builder().render(&at, &template, &owner).await?;
        let release = sync.annotations().get(RELEASE).cloned();
        let target = release.unwrap_or_else(|| target::of_sync(revision, &template).into_string());
        Ok(Some((template, rendered, target)))
    }

    async fn dry_run(&mut self, member: &Member, part: &Part, parts: &[Part]) {
        let Part {
            name,
            namespace,
            owner,
            template,
            rendered,
            target,
            subject,
            group,
            own,
            cluster,
        } = part;
        let scope = ApprovalScope {
            namespace,
            group,
            name: own,
        };
        let account = match self.workspace.accounts.account(&template.service_account_name) {
            Ok(account) => account,
            Err(error) => return self.preview.fail(name, error.to_string()),
        };
        let member = match account {
            "" => Ok(member.clone()),
            account => member.impersonating(namespace, account),
        };
        let member = match member {
            Ok(member) => member,
            Err(error) => return self.preview.fail(name, crate::chain(&error)),
        };
        let others = || parts.iter().filter(|other| other.owner != *owner);
        let objects = others().flat_map(|other| &other.rendered.set.objects);
        let siblings = OtherSyncs(objects.flat_map(|object| aliases(&object.key)).collect());
        let owners = others().map(|other| other.owner.clone()).collect();
        let found = member
            .preview(PreviewJob {
                owner,
                desired: &rendered.set,
                prune: template.prune,
                allow_empty: template.allow_empty,
                conflicts_override: template.conflicts == ConflictPolicy::Override,
                recreate: template.force,
                siblings: &siblings,
                handed_over_by: &owners,
                approval: ApprovedDeletions {
                    subject: ApprovalSubject::new(scope, DeletionCause::Prune, target, cluster),
                    ..ApprovedDeletions::default()
                },
                confirm: &self.workspace.confirm,
                earlier: Earlier::default(),
                grace: Grace {
                    length: template.prune_grace.as_std(),
                    now: Timestamp::now(),
                    ..Grace::none()
                },
                deadline: Instant::now() + self.tools.timeout,
            })
            .await;
        let changes = found.changes.into_iter().map(|(key, change)| ObjectChange {
            entry: name.clone(),
            key,
            change,
        });
        self.preview.changes.extend(changes);
        for (_, error) in &found.failures {
            self.preview.fail(name, crate::chain(error));
        }
        if let Some(error) = &found.interrupted {
            self.preview.fail_unknown(name, crate::chain(error));
        }
        if let Some(pending) = &found.pending {
            dry_run::report_pending(&mut self.preview, name, template.prune_grace, pending);
        }
        if let Some(blocker) = &found.prune_blocker {
            dry_run::report_blocker(&mut self.preview, name, subject, blocker);
        }
    }
}

/// The name that Syncs of an entry have in common, so that clusters with equal changes are shown together.
fn subject(sync: &SyncResource) -> String {
    let namespace = sync.namespace().unwrap_or_default();
    match &sync.spec.group_ref {
        Some(of) => format!("group {} -n {namespace}", of.name),
        None => format!("sync {} -n {namespace}", sync.name_any()),
    }
}

fn name(sync: &SyncResource) -> String {
    match &sync.spec.group_ref {
        Some(of) => format!("{}/{}", of.name, of.entry),
        None => format!("Sync {}", sync.name_any()),
    }
}

/// The objects of the other Syncs on the same cluster.
#[derive(Debug)]
struct OtherSyncs(BTreeSet<ObjectId>);

impl Siblings for OtherSyncs {
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
