//! The kinds of `starling.dev/v1alpha1`: types, schemas and names, nothing else.
//!
//! The schemas in `crds/` are generated from here (`starling crds`).

// The schema derive writes `pub` items into private scopes, and clippy takes two printer columns of one type for a
// repeated attribute.
#![allow(unreachable_pub, clippy::duplicated_attributes)]

mod cluster;
pub mod conditions;
mod constants;
mod duration;
mod limit;
mod reference;
mod rollout;
mod schema;
mod source;
mod strategy;
mod sync;
mod sync_group;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

pub use cluster::*;
pub use constants::*;
pub use duration::*;
pub use limit::*;
pub use reference::*;
pub use rollout::*;
pub use source::*;
pub use strategy::*;
pub use sync::*;
pub use sync_group::*;

/// All definitions, in the order in which they are documented.
#[must_use]
pub fn definitions() -> Vec<CustomResourceDefinition> {
    vec![
        Source::crd(),
        Cluster::crd(),
        SyncResource::crd(),
        SyncGroup::crd(),
        RolloutApproval::crd(),
        RolloutAction::crd(),
    ]
}
