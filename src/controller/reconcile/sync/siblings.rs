//! The objects that siblings render on the same cluster: an object that moves from one Sync to another is handed over
//! and not deleted.
//!
//! The Syncs of one group on one cluster are siblings, and so are the Syncs of one namespace without a group. Their
//! objects are those that they render. The rendered sets are shared with their own attempts, and
//! are requested only if an object left a render.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use futures::FutureExt;
use futures::future::BoxFuture;
use kube::ResourceExt;
use starling_api::{Cluster, GroupRef, RELEASE, SyncGroup, SyncResource, SyncSpec};
use starling_core::apply::SiblingObjects;
use starling_core::expand::{self, ClusterFacts, ParameterError};
use starling_core::ignore::IgnoreRules;
use starling_core::object::ObjectId;
use starling_core::release::rolled_revision;
use starling_core::target::Owner;

use super::super::names::OwnerLabel;
use super::observe::Observed;
use super::render::{Render, SyncRenderError, render};
use super::resolve::resolve;
use crate::controller::cache::ObjectKey;
use crate::controller::context::SyncContext;
use starling_member::Siblings;

/// The siblings of one Sync.
pub(super) struct SiblingsOf<'a> {
    pub(super) context: SyncContext<'a>,
    pub(super) observed: &'a Observed,
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
}

/// The name of a sibling in messages.
#[derive(Clone, Debug)]
enum SiblingName {
    /// An entry of the same group.
    Entry(String),
    /// A Sync of the same namespace.
    Sync(String),
}

impl fmt::Display for SiblingName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Entry(name) => write!(f, "entry {name}"),
            Self::Sync(name) => write!(f, "Sync {name}"),
        }
    }
}

/// The error of a render of a sibling.
#[derive(Debug, thiserror::Error)]
enum SiblingError {
    /// A parameter of the entry cannot be resolved for this cluster.
    #[error("entry {entry}")]
    Parameter {
        entry: String,
        #[source]
        source: ParameterError,
    },
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
}

impl SiblingsOf<'_> {
    /// Returns the objects of the current siblings. Siblings that cannot be rendered are skipped: a deletion must not
    /// wait for the mistakes of another Sync, and objects that a sibling has applied carry its label and are safe.
    pub(super) async fn current_objects(&self) -> BTreeSet<ObjectId> {
        let mut keys = BTreeSet::new();
        for sibling in self.current() {
            match self.keys(&sibling).await {
                Ok(objects) => keys.extend(objects),
                Err(error) => {
                    let (sync, error) = (&self.observed.key, crate::chain(&error));
                    tracing::warn!(%sync, sibling = %sibling.name, %error, "cannot render a sibling");
                }
            }
        }
        keys
    }

    /// Returns the objects of the current and the upcoming siblings.
    async fn upcoming_objects(&self) -> Result<BTreeSet<ObjectId>, SiblingError> {
        let mut keys = BTreeSet::new();
        for sibling in self.upcoming()? {
            match self.keys(&sibling).await {
                Ok(objects) => keys.extend(objects),
                // A Sync of another Source cannot have taken over an object in the same commit. One faulty Sync must
                // not prevent the others from pruning.
                Err(_) if self.is_unrelated(&sibling) => {}
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
    fn upcoming(&self) -> Result<Vec<Sibling>, SiblingError> {
        let observed = self.observed;
        let (Some(of), Some(key)) = (&observed.object.spec.group_ref, observed.group_key()) else {
            return Ok(self.current());
        };
        let (Some(group), Some(cluster)) = (self.context.objects.groups.get(&key), &observed.cluster) else {
            return Ok(self.current());
        };
        let mut siblings = self.wanted(of, &group, cluster)?;
        // If this Sync is at another release than the group (a newer one, or an older one while it waits), the current
        // specs count too.
        let release = group
            .status
            .as_ref()
            .and_then(|status| status.rollout.as_ref())
            .map(|rollout| rollout.release.as_str());
        if observed.object.annotations().get(RELEASE).map(String::as_str) != release {
            siblings.extend(self.current());
        }
        Ok(siblings)
    }

    fn wanted(
        &self,
        of: &GroupRef,
        group: &SyncGroup,
        cluster: &Cluster,
    ) -> Result<Vec<Sibling>, SiblingError> {
        let rollout = group.status.as_ref().and_then(|status| status.rollout.as_ref());
        let facts = ClusterFacts::of(cluster);
        let mut siblings = Vec::new();
        for entry in group.spec.syncs.iter().filter(|entry| entry.name != of.entry) {
            let template =
                expand::resolve(&entry.template, &facts).map_err(|source| SiblingError::Parameter {
                    entry: entry.name.clone(),
                    source,
                })?;
            let revision = rollout.and_then(|rollout| rolled_revision(rollout, &entry.name));
            siblings.push(Sibling {
                name: SiblingName::Entry(entry.name.clone()),
                owner: self.owner(Owner::Entry {
                    group: &of.name,
                    entry: &entry.name,
                }),
                spec: SyncSpec {
                    group_ref: Some(GroupRef {
                        name: of.name.clone(),
                        entry: entry.name.clone(),
                    }),
                    cluster_ref: self.observed.object.spec.cluster_ref.clone(),
                    revision: revision.unwrap_or_default().to_owned(),
                    template,
                },
            });
        }
        Ok(siblings)
    }

    /// Returns the existing siblings with their own specs. Siblings that are being deleted have no objects.
    fn current(&self) -> Vec<Sibling> {
        let own = &self.observed.object.spec;
        let group = |spec: &SyncSpec| spec.group_ref.as_ref().map(|of| of.name.clone());
        self.context
            .objects
            .syncs
            .indexed(&self.observed.cluster_key())
            .into_iter()
            .filter(|sync| {
                sync.name_any() != self.observed.key.name
                    && sync.metadata.deletion_timestamp.is_none()
                    && group(&sync.spec) == group(own)
            })
            .filter_map(|sync| self.sibling_of(&sync))
            .collect()
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
            spec.revision = self.source_revision(&spec)?;
        }
        (!spec.revision.is_empty()).then_some(Sibling {
            name: SiblingName::Sync(name),
            spec,
            owner,
        })
    }

    fn source_revision(&self, spec: &SyncSpec) -> Option<String> {
        let key = ObjectKey::new(&self.observed.key.namespace, &spec.template.source_ref.name);
        let source = self.context.objects.sources.get(&key)?;
        let revision = source.status.as_ref()?.revision.clone();
        (!revision.is_empty()).then_some(revision)
    }

    fn owner(&self, owner: Owner<'_>) -> OwnerLabel {
        OwnerLabel::new(self.context.installation, &self.observed.key.namespace, owner)
    }

    fn is_unrelated(&self, sibling: &Sibling) -> bool {
        let own = &self.observed.object.spec;
        own.group_ref.is_none() && own.template.source_ref != sibling.spec.template.source_ref
    }

    /// Returns the objects that a sibling renders.
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
        Ok(objects.map(|object| object.key.clone()).collect())
    }
}
