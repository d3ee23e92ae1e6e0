//! A group as anybody sees it who may list its objects: what the planner is told of it now. Nothing is written.

use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;
use starling_api::conditions::MEMBERSHIP_HELD;
use starling_api::{Cluster, RolloutAction, RolloutApproval, RolloutStatus, Source, SyncGroup, SyncResource};
use starling_core::plan::PlanInput;

use super::observe::{Seen, observe};
use super::{release, steer, view};
use crate::controller::cache::Cache;
use crate::controller::gates::Gates;
use crate::controller::hub::{Hub, HubError};
use crate::controller::objects::{cluster_of, group_of_action, group_of_approval};
use crate::controller::releases::Releases;
use crate::controller::roster::Syncs;
use crate::controller::selection::Selections;
use crate::controller::targets::Known;

/// The objects of a namespace.
#[derive(Debug)]
pub struct Seeing {
    sources: Cache<Source>,
    clusters: Cache<Cluster>,
    syncs: Arc<Syncs>,
    approvals: Cache<RolloutApproval>,
    actions: Cache<RolloutAction>,
    selections: Selections,
}

/// A group that rolls something.
#[derive(Debug)]
pub struct Outlook {
    /// As in status.
    pub rollout: RolloutStatus,
    /// What the planner is told.
    pub input: PlanInput,
}

/// Why there is nothing to tell the planner.
#[derive(Debug, thiserror::Error)]
pub enum NoOutlook {
    /// The group cannot be rolled as it is.
    #[error("{reason}: {message}")]
    Blocked {
        /// One CamelCase word.
        reason: &'static str,
        /// For people.
        message: String,
    },
    /// Nothing rolled yet.
    #[error("no rollout has begun yet; the controller begins one as soon as it looks at the group")]
    NotBegun,
    /// The management cluster does not give something.
    #[error(transparent)]
    Hub(#[from] HubError),
}

impl Seeing {
    /// From lists of a namespace.
    #[must_use]
    pub fn of(
        sources: Vec<Source>,
        clusters: Vec<Cluster>,
        syncs: Vec<SyncResource>,
        approvals: Vec<RolloutApproval>,
        actions: Vec<RolloutAction>,
    ) -> Self {
        let seeing = Self {
            sources: Cache::default(),
            clusters: Cache::default(),
            syncs: Arc::new(Cache::indexed_by(cluster_of)),
            approvals: Cache::indexed_by(group_of_approval),
            actions: Cache::indexed_by(group_of_action),
            selections: Selections::default(),
        };
        for source in sources {
            seeing.sources.observe_write(source);
        }
        for cluster in clusters {
            seeing.clusters.observe_write(cluster);
        }
        for sync in syncs {
            seeing.syncs.observe_write(sync);
        }
        for approval in approvals {
            seeing.approvals.observe_write(approval);
        }
        for action in actions {
            seeing.actions.observe_write(action);
        }
        seeing
    }
}

/// What the planner is told of a group now. Releases that are not those of today are read from the management cluster.
///
/// # Errors
/// [`NoOutlook`].
pub async fn outlook(
    hub: &Hub,
    seeing: &Seeing,
    group: SyncGroup,
    now: Timestamp,
) -> Result<Outlook, NoOutlook> {
    let seen = Seen {
        sources: &seeing.sources,
        clusters: &seeing.clusters,
        syncs: &seeing.syncs,
        approvals: &seeing.approvals,
        actions: &seeing.actions,
        selections: &seeing.selections,
    };
    let group = observe(seen, Arc::new(group)).map_err(|blocked| NoOutlook::Blocked {
        reason: blocked.reason,
        message: blocked.message,
    })?;
    let offered = release::offered(now, &group);
    let releases = Releases::default();
    let rolling = release::current((&releases, hub), &group, &offered)
        .await?
        .ok_or(NoOutlook::NotBegun)?;
    let asked = steer::asked(&group, &rolling);
    // The controller holds it since it saw the clusters leave, which nobody else did.
    let conditions = group.object.status.iter().flat_map(|status| &status.conditions);
    let held = conditions
        .filter(|condition| condition.type_ == MEMBERSHIP_HELD)
        .any(|condition| condition.status == "True");
    // What was found of a gate and is not in status yet, only the controller knows.
    let gates = Gates::default();
    let input = view::plan_input(&gates, &group, &rolling, &asked, held, &mut Known::default(), now);
    tracing::debug!(group = %group.object.name_any(), clusters = input.clusters.len(), "seen");
    Ok(Outlook {
        rollout: rolling.rollout,
        input,
    })
}
