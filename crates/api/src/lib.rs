//! The kinds of `starling.dev/v1alpha1`: types, schemas and names, nothing else.
//!
//! The schemas in `crds/` are generated from these types (`starling crds`); the descriptions of fields are their
//! doc comments.

// The schema derive writes `pub` items into private scopes, and clippy takes two printer columns of one type for a
// repeated attribute.
#![allow(unreachable_pub, clippy::duplicated_attributes)]

mod cluster;
pub mod conditions;
mod constants;
mod deletion;
mod deletion_approval;
mod duration;
mod limit;
mod reference;
mod rollout;
mod schema;
mod source;
mod strategy;
mod sync;
mod sync_group;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube_core::CustomResourceExt;

pub use cluster::*;
pub use constants::*;
pub use deletion::*;
pub use deletion_approval::*;
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
    let mut definitions = vec![
        Source::crd(),
        Cluster::crd(),
        SyncResource::crd(),
        SyncGroup::crd(),
        RolloutApproval::crd(),
        RolloutAction::crd(),
        DeletionApproval::crd(),
    ];
    for version in definitions
        .iter_mut()
        .flat_map(|definition| &mut definition.spec.versions)
    {
        let schema = version.schema.as_mut();
        if let Some(schema) = schema.and_then(|schema| schema.open_api_v3_schema.as_mut()) {
            unwrap_descriptions(schema);
        }
    }
    definitions
}

/// Puts each paragraph of a description on one line: `kubectl explain` wraps lines itself, and those of a doc
/// comment end where the source code does.
fn unwrap_descriptions(schema: &mut JSONSchemaProps) {
    if let Some(description) = &mut schema.description {
        let paragraphs = description
            .split("\n\n")
            .map(|paragraph| paragraph.replace('\n', " "));
        *description = paragraphs.collect::<Vec<_>>().join("\n\n");
    }
    for property in schema
        .properties
        .iter_mut()
        .flat_map(|properties| properties.values_mut())
    {
        unwrap_descriptions(property);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        unwrap_descriptions(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        unwrap_descriptions(values);
    }
}
