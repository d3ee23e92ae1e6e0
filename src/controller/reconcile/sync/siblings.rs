//! What the other Syncs of the same owner hold, or are about to hold, on the same cluster: an object that moves from one
//! to another is handed over and not deleted.
//!
//! The Syncs of one group on one cluster are siblings, and so are the Syncs of one namespace that have no group. What they
//! hold is what they render: the sets are shared with their own attempts, and are asked for only where something left a
//! render.

use std::collections::BTreeSet;
use std::fmt;

use futures::FutureExt;
use futures::future::BoxFuture;
use kube::ResourceExt;
use starling_api::{Cluster, GroupRef, RELEASE, SyncGroup, SyncResource, SyncSpec};
use starling_core::apply::Elsewhere;
use starling_core::depend::Dependencies;
use starling_core::expand::{self, ClusterFacts};
use starling_core::ignore::IgnoreRules;
use starling_core::object::ObjectKey;
use starling_core::release::rolled_revision;
use starling_core::step::Wanted;
use starling_core::target::{self, Owner};

use super::attempt;
use super::observe::Observed;
use crate::controller::cache;
use crate::controller::context::Context;
use crate::member::Siblings;

/// The siblings of one Sync.
pub(super) struct SiblingsOf<'a> {
    pub(super) context: &'a Context,
    pub(super) observed: &'a Observed,
}

impl fmt::Debug for SiblingsOf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SiblingsOf({})", self.observed.key)
    }
}

/// A Sync as it is, or as it is about to be.
struct Sibling {
    /// For people.
    name: String,
    spec: SyncSpec,
    /// The owner label's value.
    owner: String,
}

impl Siblings for SiblingsOf<'_> {
    fn hold(&self) -> BoxFuture<'_, Elsewhere> {
        async {
            let siblings = match self.about_to_be() {
                Ok(siblings) => siblings,
                Err(unknown) => return Elsewhere::Unknown(unknown),
            };
            let mut keys = BTreeSet::new();
            for sibling in siblings {
                match self.keys(&sibling).await {
                    Ok(held) => keys.extend(held),
                    // What follows another Source cannot have taken something over in the same commit; one bad Sync must
                    // not keep its neighbours from pruning.
                    Err(_) if self.is_stranger(&sibling) => {}
                    Err(message) => {
                        return Elsewhere::Unknown(format!(
                            "what {} holds is not known: {message}",
                            sibling.name
                        ));
                    }
                }
            }
            Elsewhere::Known(keys)
        }
        .boxed()
    }
}

impl SiblingsOf<'_> {
    /// What the siblings hold now, as far as that can be told: for a deletion, which is asked for by itself and must not
    /// wait for a neighbour's mistakes. What a sibling has taken carries its label and is safe anyway.
    pub(super) async fn held_now(&self) -> BTreeSet<ObjectKey> {
        let mut keys = BTreeSet::new();
        for sibling in self.as_they_are() {
            match self.keys(&sibling).await {
                Ok(held) => keys.extend(held),
                Err(message) => {
                    tracing::warn!(sync = %self.observed.key, sibling = %sibling.name, %message, "what a sibling holds is not known");
                }
            }
        }
        keys
    }

    /// All siblings as the release that this Sync belongs to wants them.
    fn about_to_be(&self) -> Result<Vec<Sibling>, String> {
        let Some(of) = &self.observed.spec.group_ref else {
            return Ok(self.as_they_are());
        };
        let key = cache::ObjectKey::new(&self.observed.key.namespace, &of.name);
        let (Some(group), Some(cluster)) = (self.context.groups.get(&key), &self.observed.cluster) else {
            return Ok(self.as_they_are());
        };
        let mut siblings = self.wanted(of, &group, cluster)?;
        // Of another release than the group's present one (a newer one is on its way, or this one is): both count.
        let release = group
            .status
            .as_ref()
            .and_then(|status| status.rollout.as_ref())
            .map(|rollout| rollout.release.as_str());
        if self.observed.sync.annotations().get(RELEASE).map(String::as_str) != release {
            siblings.extend(self.as_they_are());
        }
        Ok(siblings)
    }

    fn wanted(&self, of: &GroupRef, group: &SyncGroup, cluster: &Cluster) -> Result<Vec<Sibling>, String> {
        let rollout = group.status.as_ref().and_then(|status| status.rollout.as_ref());
        let mut siblings = Vec::new();
        for entry in group.spec.syncs.iter().filter(|entry| entry.name != of.entry) {
            let template = expand::resolve(&entry.template, &ClusterFacts::of(cluster))
                .map_err(|error| format!("entry {}: {error}", entry.name))?;
            let revision = rollout.and_then(|rollout| rolled_revision(rollout, &entry.name));
            siblings.push(Sibling {
                name: format!("entry {}", entry.name),
                owner: self.owner(Owner::Entry {
                    group: &of.name,
                    entry: &entry.name,
                }),
                spec: SyncSpec {
                    group_ref: Some(GroupRef {
                        name: of.name.clone(),
                        entry: entry.name.clone(),
                    }),
                    cluster_ref: self.observed.spec.cluster_ref.clone(),
                    revision: revision.unwrap_or_default().to_owned(),
                    template,
                },
            });
        }
        Ok(siblings)
    }

    /// The siblings that there are, by their own specs; those that are being deleted hold nothing.
    fn as_they_are(&self) -> Vec<Sibling> {
        let own = &self.observed.spec;
        let group = |spec: &SyncSpec| spec.group_ref.as_ref().map(|of| of.name.clone());
        self.context
            .syncs
            .indexed(&attempt::cluster_key(self.observed))
            .into_iter()
            .filter(|sync| {
                sync.name_any() != self.observed.key.name
                    && sync.metadata.deletion_timestamp.is_none()
                    && group(&sync.spec) == group(own)
            })
            .filter_map(|sync| self.as_it_is(&sync))
            .collect()
    }

    fn as_it_is(&self, sync: &SyncResource) -> Option<Sibling> {
        let name = sync.name_any();
        let mut spec = sync.spec.clone();
        let owner = match &spec.group_ref {
            Some(GroupRef { name, entry }) => Owner::Entry { group: name, entry },
            None => Owner::Alone { sync: &name },
        };
        let owner = self.owner(owner);
        if spec.group_ref.is_none() {
            let cluster = self.observed.cluster.as_deref()?;
            spec.template = expand::resolve(&spec.template, &ClusterFacts::of(cluster)).ok()?;
            if spec.revision.is_empty() {
                spec.revision = self.offered(&spec)?;
            }
        }
        (!spec.revision.is_empty()).then(|| Sibling {
            name: format!("Sync {name}"),
            spec,
            owner,
        })
    }

    fn offered(&self, spec: &SyncSpec) -> Option<String> {
        let key = cache::ObjectKey::new(&self.observed.key.namespace, &spec.template.source_ref.name);
        let source = self.context.sources.get(&key)?;
        let revision = source.status.as_ref()?.revision.clone();
        (!revision.is_empty()).then_some(revision)
    }

    fn owner(&self, owner: Owner<'_>) -> String {
        target::owner(&self.context.installation, &self.observed.key.namespace, owner)
    }

    fn is_stranger(&self, sibling: &Sibling) -> bool {
        let own = &self.observed.spec;
        own.group_ref.is_none() && own.template.source_ref != sibling.spec.template.source_ref
    }

    /// The objects that a sibling renders.
    async fn keys(&self, sibling: &Sibling) -> Result<Vec<ObjectKey>, String> {
        if sibling.spec.revision.is_empty() {
            return Ok(Vec::new());
        }
        let Observed {
            key,
            sync,
            cluster,
            connection,
            ..
        } = self.observed;
        let source = cache::ObjectKey::new(&key.namespace, &sibling.spec.template.source_ref.name);
        let wanted = Wanted {
            revision: sibling.spec.revision.clone(),
            target: String::new(),
        };
        let seen = Observed {
            key: key.clone(),
            sync: sync.clone(),
            spec: sibling.spec.clone(),
            status: starling_api::SyncStatus::default(),
            not_implemented: Vec::new(),
            invalid: None,
            ignore: IgnoreRules::new(&sibling.spec.template.ignore).unwrap_or_default(),
            dependencies: Dependencies::Done,
            source: self.context.sources.get(&source),
            cluster: cluster.clone(),
            connection: connection.clone(),
            owner: sibling.owner.clone(),
        };
        let rendered = Box::pin(attempt::render(self.context, &seen, &wanted)).await;
        let rendered = rendered.map_err(|(_, message)| message)?;
        Ok(rendered
            .set
            .objects
            .iter()
            .map(|object| object.key.clone())
            .collect())
    }
}
