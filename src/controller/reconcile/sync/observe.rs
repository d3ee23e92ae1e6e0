//! What one look at a Sync knows, from the caches alone.

use std::sync::Arc;

use starling_api::{Cluster, GroupRef, Source, SyncResource, SyncSpec, SyncStatus};
use starling_core::depend::Dependencies;
use starling_core::expand::{self, ClusterFacts};
use starling_core::ignore::IgnoreRules;
use starling_core::promise;
use starling_core::step::ClusterState;
use starling_core::target::{self, Owner};

use super::super::cluster::reach;
use super::super::unanswered;
use super::dependencies;
use crate::controller::cache::ObjectKey;
use crate::controller::context::Context;
use crate::controller::members::Connection;

/// A Sync and what it depends on.
pub(super) struct Observed {
    pub(super) key: ObjectKey,
    pub(super) sync: Arc<SyncResource>,
    /// Its spec, `$(cluster.*)` resolved where it has no group to do that.
    pub(super) spec: SyncSpec,
    pub(super) status: SyncStatus,
    /// Fields that promise what is not there, or parameters that cannot be resolved.
    pub(super) not_implemented: Vec<String>,
    pub(super) invalid: Option<Invalid>,
    /// Fields that are left to others; empty where `invalid` is about them.
    pub(super) ignore: IgnoreRules,
    pub(super) source: Option<Arc<Source>>,
    pub(super) cluster: Option<Arc<Cluster>>,
    pub(super) connection: Option<Arc<Connection>>,
    pub(super) dependencies: Dependencies,
    /// The owner label's value.
    pub(super) owner: String,
}

/// A part of the spec that makes no sense.
pub(super) struct Invalid {
    /// Reason of the condition.
    pub(super) reason: &'static str,
    /// Names the field.
    pub(super) message: String,
}

pub(super) fn observe(context: &Context, key: &ObjectKey) -> Option<Observed> {
    let sync = context.syncs.get(key)?;
    let cluster_key = ObjectKey::new(&key.namespace, &sync.spec.cluster_ref.name);
    let source_key = ObjectKey::new(&key.namespace, &sync.spec.template.source_ref.name);
    let cluster = context.clusters.get(&cluster_key);
    let (spec, invalid) = resolved(&sync.spec, cluster.as_deref());
    let ignore = IgnoreRules::new(&spec.template.ignore);
    let invalid = invalid.or_else(|| {
        let error = ignore.as_ref().err()?;
        Some(Invalid {
            reason: "InvalidSpec",
            message: format!("spec.{error}"),
        })
    });
    let owner = match &sync.spec.group_ref {
        Some(GroupRef { name, entry }) => Owner::Entry { group: name, entry },
        None => Owner::Alone { sync: &key.name },
    };
    Some(Observed {
        owner: target::owner(&context.installation, &key.namespace, owner),
        status: sync.status.clone().unwrap_or_default(),
        not_implemented: promise::of_template("spec", &spec.template),
        dependencies: dependencies::observe(context, key, &sync),
        source: context.sources.get(&source_key),
        connection: context.members.get(&cluster_key),
        key: key.clone(),
        cluster,
        spec,
        invalid,
        ignore: ignore.unwrap_or_default(),
        sync,
    })
}

/// A Sync alone has its `$(cluster.*)` resolved here; a group resolved its Syncs' when it admitted them.
pub(super) fn resolved(spec: &SyncSpec, cluster: Option<&Cluster>) -> (SyncSpec, Option<Invalid>) {
    let (Some(cluster), None) = (cluster, &spec.group_ref) else {
        return (spec.clone(), None);
    };
    match expand::resolve(&spec.template, &ClusterFacts::of(cluster)) {
        Ok(template) => (
            SyncSpec {
                template,
                ..spec.clone()
            },
            None,
        ),
        Err(error) => {
            let invalid = Invalid {
                reason: "InvalidParameters",
                message: format!("spec.{error}"),
            };
            (spec.clone(), Some(invalid))
        }
    }
}

impl Observed {
    pub(super) fn generation(&self) -> i64 {
        self.sync.metadata.generation.unwrap_or(0)
    }

    pub(super) fn requested(&self) -> bool {
        unanswered(&*self.sync, &self.status.last_handled_reconcile_at).is_some()
    }

    pub(super) fn source_revision(&self) -> Option<&str> {
        let status = self.source.as_ref()?.status.as_ref()?;
        Some(status.revision.as_str()).filter(|revision| !revision.is_empty())
    }

    /// Digest of what shall be held; `None` while there is no revision.
    pub(super) fn wanted_target(&self) -> Option<String> {
        let revision = match (&self.spec.group_ref, self.spec.revision.as_str()) {
            (None, "") => self.source_revision()?,
            (Some(_), "") => return None,
            (_, revision) => revision,
        };
        Some(target::of_sync(revision, &self.spec.template))
    }

    /// Reach and identity of the cluster. Without a connection of this process it counts as not probed, whatever an
    /// earlier process wrote into its status: the Cluster loop makes one and wakes this Sync.
    pub(super) fn cluster_state(&self) -> Option<ClusterState<'_>> {
        let cluster = self.cluster.as_ref()?;
        let id = cluster
            .status
            .as_ref()
            .map_or("", |status| status.cluster_id.as_str());
        let reach = match reach(cluster) {
            starling_core::plan::Reach::Ready if self.connection.is_none() => {
                starling_core::plan::Reach::Unprobed
            }
            reach => reach,
        };
        Some(ClusterState { reach, id })
    }

    pub(super) fn cluster_id(&self) -> &str {
        let status = self.cluster.as_ref().and_then(|cluster| cluster.status.as_ref());
        status.map_or("", |status| status.cluster_id.as_str())
    }
}
