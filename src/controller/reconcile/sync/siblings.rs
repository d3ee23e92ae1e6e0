//! The objects that siblings render on the same cluster: an object that moves from one Sync to another is handed over
//! and not deleted.
//!
//! The Syncs of one namespace on one cluster are siblings. Their objects are those that they render. The rendered sets
//! are shared with their own attempts, and are requested only if an object left a render.
//!
//! Syncs of the same group are at the same release in the end, so that what they will render is known; a sibling of the
//! group that cannot be rendered stops a prune. Other groups roll out on their own: an object is handed over to them if
//! they render it now, in their rollout, at the head of their Source, or at the commit of this Sync, if they follow the
//! same branch and have not seen it yet. In a prune, one that is broken in git is skipped, because the mistake of one
//! group must not stop the others. One that cannot be rendered for now (a lost commit, a timeout) stops the deletion
//! until it can.
//!
//! When a Sync ends, more is at stake, and nothing else waits for it: a cluster moves to another group, or a group gets
//! another name, with all objects and their data. So the groups and the cluster are read from the management cluster,
//! and the end waits while an entry of another group that selects the cluster cannot be rendered at all: its Source has
//! no revision yet, a label for a parameter is missing, or its first commit is broken.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use kube::ResourceExt;
use kube::api::ListParams;
use starling_api::{Cluster, GroupRef, RELEASE, SyncEntry, SyncGroup, SyncResource, SyncSpec};
use starling_core::apply::SiblingObjects;
use starling_core::expand::{self, ClusterFacts, ParameterError, SelectorError};
use starling_core::identity;
use starling_core::ignore::IgnoreRules;
use starling_core::object::ObjectId;
use starling_core::release::rolled_revision;
use starling_core::rollout::ReleaseSnapshot;
use starling_core::scope::aliases;
use starling_core::target::{self, Owner};

use super::super::group_state;
use super::observe::{SyncSnapshot, is_unselected};
use super::owners;
use super::render::{Render, SyncRenderError, render};
use super::resolve::resolve;
use crate::controller::caches::release_snapshots::ReleaseOwner;
use crate::controller::context::SyncContext;
use crate::controller::hub::HubError;
use crate::controller::object_key::ObjectKey;
use starling_core::ids::OwnerLabel;
use starling_member::{OtherOwner, Siblings};

/// The siblings of one Sync.
pub(super) struct SiblingsOf<'a> {
    pub(super) context: SyncContext<'a>,
    pub(super) observed: &'a SyncSnapshot,
}

impl fmt::Debug for SiblingsOf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SiblingsOf({})", self.observed.key)
    }
}

/// A sibling with its current or its upcoming spec.
struct Sibling {
    name: SiblingName,
    /// The spec with resolved parameters.
    spec: SyncSpec,
    owner: OwnerLabel,
    /// Whether a prune may go on if the sibling cannot be rendered.
    optional: bool,
}

/// The name of a sibling in messages.
#[derive(Clone, Debug)]
pub(super) enum SiblingName {
    /// An entry of the same group.
    Entry(String),
    /// An entry of another group: the group and the entry.
    OtherEntry(String, String),
    /// A Sync of the same namespace.
    Sync(String),
}

impl fmt::Display for SiblingName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Entry(name) => write!(f, "entry {name}"),
            Self::OtherEntry(group, entry) => write!(f, "entry {entry} of SyncGroup {group}"),
            Self::Sync(name) => write!(f, "Sync {name}"),
        }
    }
}

/// The error of a render of a sibling.
#[derive(Debug, thiserror::Error)]
pub(super) enum SiblingError {
    /// A parameter of the sibling cannot be resolved for this cluster.
    #[error("{sibling}")]
    Parameter {
        sibling: SiblingName,
        #[source]
        source: ParameterError,
    },
    /// The Source of the sibling has no revision yet, or does not exist.
    #[error("{sibling}: Source {source_name} has no revision")]
    NoRevision {
        sibling: SiblingName,
        source_name: String,
    },
    /// The selector of another group is invalid.
    #[error("SyncGroup {group} may select the cluster: its clusterSelector is invalid")]
    Selector {
        group: String,
        #[source]
        source: SelectorError,
    },
    /// The management cluster does not tell which other groups there are.
    #[error("cannot read the SyncGroups and their releases")]
    Unread(#[from] HubError),
    /// The release of the group is not stored any more.
    #[error("SyncGroup {group} rolls back to release {release}, which is not stored any more")]
    NoRelease { group: String, release: String },
    /// The sibling cannot be rendered.
    #[error("cannot render {sibling}")]
    Build {
        sibling: SiblingName,
        #[source]
        source: SyncRenderError,
    },
}

impl Siblings for SiblingsOf<'_> {
    fn objects(&self) -> BoxFuture<'_, SiblingObjects> {
        async {
            match self.upcoming_objects().await {
                Ok(keys) => SiblingObjects::Known(keys),
                Err(error) => SiblingObjects::Unknown(crate::chain(&error)),
            }
        }
        .boxed()
    }

    fn has_given_up(&self, owner: &str) -> bool {
        owners::has_given_up(self.context, self.observed, owner)
    }

    fn owners(&self) -> BTreeMap<OwnerLabel, OtherOwner> {
        owners::all(self.context, self.observed)
    }
}

impl SiblingsOf<'_> {
    /// Returns the objects of the current siblings, for the end of this Sync. Existing siblings that are broken in git
    /// are skipped: objects that a sibling has applied carry its label and are safe.
    ///
    /// # Errors
    /// [`SiblingError`]: the objects of a sibling are unknown for now.
    pub(super) async fn current_objects(&self) -> Result<BTreeSet<ObjectId>, SiblingError> {
        let mut keys = BTreeSet::new();
        for sibling in self.current() {
            match self.keys(&sibling).await {
                Ok(objects) => keys.extend(objects),
                Err(error) if error.is_permanent() => {
                    let (sync, error) = (&self.observed.key, crate::chain(&error));
                    tracing::warn!(%sync, sibling = %sibling.name, %error, "cannot render another Sync of the cluster");
                }
                Err(source) => {
                    let sibling = sibling.name;
                    return Err(SiblingError::Build { sibling, source });
                }
            }
        }
        self.unresolved(|other| !other.template.suspend)?;
        let (hub, namespace) = (self.context.hub, &self.observed.key.namespace);
        let Some(cluster) = hub.find::<Cluster>(&self.observed.cluster_key()).await? else {
            return Ok(keys);
        };
        let groups: Vec<SyncGroup> = hub.list(namespace, &ListParams::default()).await?;
        for entry in self.of_other_groups(&groups, &cluster) {
            keys.extend(self.objects_of_any(entry?).await?);
        }
        Ok(keys)
    }

    /// Checks that what these existing Syncs without a group render can be determined.
    fn unresolved(&self, counts: impl Fn(&SyncSpec) -> bool) -> Result<(), SiblingError> {
        let key = self.observed.cluster_key();
        for sync in self.context.objects.syncs.indexed(&key) {
            let is_other = sync.spec.group_ref.is_none()
                && sync.name_any() != self.observed.key.name
                && sync.metadata.deletion_timestamp.is_none()
                && counts(&sync.spec);
            if !is_other {
                continue;
            }
            let sibling = SiblingName::Sync(sync.name_any());
            let source_name = sync.spec.template.source_ref.name.clone();
            if let Err(source) = resolve(&sync.spec, self.observed.cluster.as_deref()) {
                return Err(SiblingError::Parameter { sibling, source });
            }
            if sync.spec.revision.is_empty() && self.source_revision(&source_name).is_none() {
                return Err(SiblingError::NoRevision { sibling, source_name });
            }
        }
        Ok(())
    }

    /// Returns the objects of an entry at any of its revisions.
    ///
    /// # Errors
    /// [`SiblingError`]: it cannot be rendered for now, or at none of them.
    async fn objects_of_any(&self, revisions: Vec<Sibling>) -> Result<Vec<ObjectId>, SiblingError> {
        let (mut keys, mut is_known, mut broken) = (Vec::new(), false, None);
        for sibling in revisions {
            match self.keys(&sibling).await {
                Ok(objects) => {
                    keys.extend(objects);
                    is_known = true;
                }
                Err(_) if sibling.optional => {}
                Err(source) => {
                    let is_permanent = source.is_permanent();
                    let sibling = sibling.name;
                    let error = SiblingError::Build { sibling, source };
                    if !is_permanent {
                        return Err(error);
                    }
                    broken = Some(error);
                }
            }
        }
        broken.filter(|_| !is_known).map_or(Ok(keys), Err)
    }

    /// Returns the objects that a Sync of another group will render at a revision; `None`: that is not known.
    pub(super) async fn of_release(
        &self,
        other: &SyncSnapshot,
        revision: &str,
    ) -> Option<BTreeSet<ObjectId>> {
        let (of, group) = (other.object.spec.group_ref.as_ref()?, other.group.as_ref()?);
        let entry = group.spec.syncs.iter().find(|entry| entry.name == of.entry)?;
        let sibling = self.entry(&of.name, entry, revision, other.cluster.as_ref()?);
        let keys = self.keys(&sibling.ok()?).await.ok()?;
        Some(keys.into_iter().collect())
    }

    /// Returns the objects of the current and the upcoming siblings.
    async fn upcoming_objects(&self) -> Result<BTreeSet<ObjectId>, SiblingError> {
        let mut keys = BTreeSet::new();
        for sibling in self.upcoming().await? {
            match self.keys(&sibling).await {
                Ok(objects) => keys.extend(objects),
                Err(error) if sibling.optional && error.is_permanent() => {}
                Err(source) => {
                    return Err(SiblingError::Build {
                        sibling: sibling.name,
                        source,
                    });
                }
            }
        }
        Ok(keys)
    }

    /// Returns all siblings with their specs in the release of this Sync.
    async fn upcoming(&self) -> Result<Vec<Sibling>, SiblingError> {
        let observed = self.observed;
        let (Some(of), Some(group), Some(cluster)) = (
            &observed.object.spec.group_ref,
            &observed.group,
            &observed.cluster,
        ) else {
            self.unresolved(|other| !self.is_unrelated(other))?;
            let current = self.current().into_iter();
            return Ok(current.chain(self.known_of_other_groups()).collect());
        };
        let mut siblings = self.wanted(of, group, cluster).await?;
        siblings.extend(self.known_of_other_groups());
        let current = self.current().into_iter();
        let (others, own) = current.partition::<Vec<_>, _>(|sibling| sibling.optional);
        siblings.extend(others);
        // If this Sync is at another release than the group (a newer one, or an older one while it waits), the current
        // specs count too.
        let release = group
            .status
            .as_ref()
            .and_then(|status| status.rollout.as_ref())
            .map(|rollout| rollout.release.as_str());
        if observed.object.annotations().get(RELEASE).map(String::as_str) != release {
            siblings.extend(own);
        }
        Ok(siblings)
    }

    /// Returns the other entries of the release of the group. Its spec may have others: a rollback goes back to entries
    /// that were removed since, or had another path.
    async fn wanted(
        &self,
        of: &GroupRef,
        group: &SyncGroup,
        cluster: &Cluster,
    ) -> Result<Vec<Sibling>, SiblingError> {
        let rollout = group.status.as_ref().and_then(|status| status.rollout.as_ref());
        let release = self.release_of(group).await?;
        let entries = release
            .as_ref()
            .map_or(&group.spec.syncs, |release| &release.entries);
        let entries = entries.iter().filter(|entry| entry.name != of.entry);
        let siblings = entries.map(|entry| {
            let revision = rollout.and_then(|rollout| rolled_revision(rollout, &entry.name));
            self.entry(&of.name, entry, revision.unwrap_or_default(), cluster)
        });
        siblings.collect()
    }

    /// Returns the release that a group rolls back to; `None`: it rolls forward, as its spec says.
    async fn release_of(&self, group: &SyncGroup) -> Result<Option<Arc<ReleaseSnapshot>>, SiblingError> {
        let rollout = group.status.as_ref().and_then(|status| status.rollout.as_ref());
        let Some(rollout) = rollout.filter(|rollout| !rollout.direction.is_forward()) else {
            return Ok(None);
        };
        let (hub, id) = (
            self.context.hub,
            identity::id_of(self.context.installation, group),
        );
        let owner = ReleaseOwner { group, id: &id };
        let release = self
            .context
            .release_snapshots
            .load(hub, owner, &rollout.release)
            .await?;
        release.map(Some).ok_or_else(|| SiblingError::NoRelease {
            group: group.name_any(),
            release: rollout.release.clone(),
        })
    }

    /// Returns the entries of the other groups, as far as the caches know them and they can be rendered.
    fn known_of_other_groups(&self) -> Vec<Sibling> {
        let Some(cluster) = &self.observed.cluster else {
            return Vec::new();
        };
        let groups = self
            .context
            .objects
            .groups
            .in_namespace(&self.observed.key.namespace);
        let entries = self.of_other_groups(groups.iter().map(|group| &**group), cluster);
        let known = entries.into_iter().filter_map(Result::ok).flatten();
        known
            .map(|sibling| Sibling {
                optional: true,
                ..sibling
            })
            .collect()
    }

    /// Returns the entries of the other groups that select the cluster, each at all revisions that it has or will have:
    /// in its rollout, at the head of its Source, where a rollout will lead it, and at the commit of this Sync, if its
    /// Source follows the same branch. The last one is optional: the Source may not have it yet.
    fn of_other_groups<'g>(
        &self,
        groups: impl IntoIterator<Item = &'g SyncGroup>,
        cluster: &Cluster,
    ) -> Vec<Result<Vec<Sibling>, SiblingError>> {
        let own = self.observed.group_key();
        let others = groups
            .into_iter()
            .filter(|group| own.as_ref() != Some(&ObjectKey::of(*group)));
        others
            .flat_map(|group| match group_state::selects(group, cluster) {
                Ok(false) => Vec::new(),
                Ok(true) => {
                    let entries = group.spec.syncs.iter();
                    entries
                        .map(|entry| self.of_other_entry(group, entry, cluster))
                        .collect()
                }
                Err(source) => vec![Err(SiblingError::Selector {
                    group: group.name_any(),
                    source,
                })],
            })
            .collect()
    }

    fn of_other_entry(
        &self,
        group: &SyncGroup,
        entry: &SyncEntry,
        cluster: &Cluster,
    ) -> Result<Vec<Sibling>, SiblingError> {
        let (name, source) = (group.name_any(), &entry.template.source_ref.name);
        let sibling = SiblingName::OtherEntry(name.clone(), entry.name.clone());
        let rollout = group.status.as_ref().and_then(|status| status.rollout.as_ref());
        let rolled = rollout.and_then(|rollout| rolled_revision(rollout, &entry.name));
        let head = self.source_revision(source);
        let revisions: BTreeSet<&str> = rolled.into_iter().chain(head.as_deref()).collect();
        let own = self.observed.object.spec.revision.as_str();
        let is_new = !own.is_empty() && !revisions.contains(own) && self.follows_own_branch(source);
        if revisions.is_empty() && !is_new {
            return Err(SiblingError::NoRevision {
                sibling,
                source_name: source.clone(),
            });
        }
        let at = |revision: &str, optional: bool| {
            let found = self.entry(&name, entry, revision, cluster);
            let found = found.map_err(|error| match error {
                SiblingError::Parameter { source, .. } => SiblingError::Parameter {
                    sibling: sibling.clone(),
                    source,
                },
                other => other,
            })?;
            Ok(Sibling {
                name: sibling.clone(),
                optional,
                ..found
            })
        };
        let is_alone = revisions.is_empty();
        let known = revisions.into_iter().map(|revision| at(revision, false));
        known.chain(is_new.then(|| at(own, !is_alone))).collect()
    }

    /// Whether a Source is another one of the same branch, tag or range of the same repository.
    fn follows_own_branch(&self, source: &str) -> bool {
        let own = &self.observed.object.spec.template.source_ref.name;
        let sources = &self.context.objects.sources;
        let get = |name: &str| sources.get(&ObjectKey::new(&self.observed.key.namespace, name));
        source != own
            && get(own).zip(get(source)).is_some_and(|(own, other)| {
                own.spec.url == other.spec.url && own.spec.reference == other.spec.reference
            })
    }

    /// Returns the Sync of an entry at a revision.
    fn entry(
        &self,
        group: &str,
        entry: &SyncEntry,
        revision: &str,
        cluster: &Cluster,
    ) -> Result<Sibling, SiblingError> {
        let template = expand::resolve(&entry.template, &ClusterFacts::of(cluster)).map_err(|source| {
            SiblingError::Parameter {
                sibling: SiblingName::Entry(entry.name.clone()),
                source,
            }
        })?;
        Ok(Sibling {
            name: SiblingName::Entry(entry.name.clone()),
            owner: self.owner(Owner::Entry {
                group,
                entry: &entry.name,
            }),
            spec: SyncSpec {
                group_ref: Some(GroupRef {
                    name: group.to_owned(),
                    entry: entry.name.clone(),
                }),
                cluster_ref: self.observed.object.spec.cluster_ref.clone(),
                revision: revision.to_owned(),
                deletion_budget: None,
                template,
            },
            optional: false,
        })
    }

    /// Returns the existing siblings with their own specs. Siblings that are being deleted or that leave their group,
    /// or whose group is being deleted, keep no object.
    fn current(&self) -> Vec<Sibling> {
        let owners = owners::all(self.context, self.observed);
        let goes = |sibling: &Sibling| owners.get(&sibling.owner).is_some_and(|other| other.goes);
        self.context
            .objects
            .syncs
            .indexed(&self.observed.cluster_key())
            .into_iter()
            .filter(|sync| {
                sync.name_any() != self.observed.key.name
                    && sync.metadata.deletion_timestamp.is_none()
                    && !self.leaves(sync)
            })
            .filter_map(|sync| self.sibling_of(&sync))
            .filter(|sibling| !goes(sibling))
            .collect()
    }

    fn leaves(&self, sync: &SyncResource) -> bool {
        let Some(of) = &sync.spec.group_ref else {
            return false;
        };
        let key = ObjectKey::new(&self.observed.key.namespace, &of.name);
        let group = self.context.objects.groups.get(&key);
        group.is_some_and(|group| is_unselected(&group, &sync.spec.cluster_ref.name))
    }

    fn sibling_of(&self, sync: &SyncResource) -> Option<Sibling> {
        let name = sync.name_any();
        let owner = match &sync.spec.group_ref {
            Some(GroupRef { name, entry }) => Owner::Entry { group: name, entry },
            None => Owner::Alone { sync: &name },
        };
        let owner = self.owner(owner);
        let mut spec = match &sync.spec.group_ref {
            Some(_) => Cow::Borrowed(&sync.spec),
            None => resolve(&sync.spec, Some(self.observed.cluster.as_deref()?)).ok()?,
        }
        .into_owned();
        if spec.group_ref.is_none() && spec.revision.is_empty() {
            spec.revision = self.source_revision(&spec.template.source_ref.name)?;
        }
        (!spec.revision.is_empty()).then_some(Sibling {
            name: SiblingName::Sync(name),
            optional: self.is_unrelated(&spec),
            spec,
            owner,
        })
    }

    fn source_revision(&self, source: &str) -> Option<String> {
        let key = ObjectKey::new(&self.observed.key.namespace, source);
        let source = self.context.objects.sources.get(&key)?;
        let revision = source.status.as_ref()?.revision.clone();
        (!revision.is_empty()).then_some(revision)
    }

    fn owner(&self, owner: Owner<'_>) -> OwnerLabel {
        target::owner(self.context.installation, &self.observed.key.namespace, owner)
    }

    /// Reports whether a Sync belongs to another group or, without a group, to another Source: it cannot have taken
    /// over an object in the same release or commit.
    fn is_unrelated(&self, sibling: &SyncSpec) -> bool {
        let own = &self.observed.object.spec;
        let group = |spec: &SyncSpec| spec.group_ref.as_ref().map(|of| of.name.clone());
        if group(own) != group(sibling) {
            return true;
        }
        own.group_ref.is_none() && own.template.source_ref != sibling.template.source_ref
    }

    /// Returns the objects that a sibling renders, with every ID that they may have on the member.
    async fn keys(&self, sibling: &Sibling) -> Result<Vec<ObjectId>, SyncRenderError> {
        if sibling.spec.revision.is_empty() {
            return Ok(Vec::new());
        }
        let namespace = &self.observed.key.namespace;
        let template = &sibling.spec.template;
        let source = ObjectKey::new(namespace, &template.source_ref.name);
        let source = self.context.objects.sources.get(&source);
        let job = Render {
            namespace,
            template,
            source: source.as_deref(),
            revision: &sibling.spec.revision,
            owner: &sibling.owner,
            // Rules that cannot be parsed ignore no field. The set of objects does not depend on them.
            ignore: &IgnoreRules::new(&template.ignore).unwrap_or_default(),
        };
        let rendered = Box::pin(render(self.context, &job)).await?;
        let objects = rendered.set.objects.iter();
        Ok(objects.flat_map(|object| aliases(&object.key)).collect())
    }
}
