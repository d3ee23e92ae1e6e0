//! Gates that have begun, for tests.

#![cfg(test)]

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use starling_core::gate::webhook::{Clusters, GateRequest};
use starling_core::gate::{Effect, GateId, Side, Task};
use starling_core::ids::{GroupId, RolloutNumber};

use super::Open;
use crate::controller::object_key::ObjectKey;

/// Returns a gate before the stage `canary` of a group, by its place in the list.
pub fn open(group: &ObjectKey, index: usize, effect: Effect, begun_at: Timestamp) -> Open {
    let (rollout, stage) = (RolloutNumber::new(1), "canary".to_owned());
    let task = Task {
        effect,
        timeout: Duration::from_secs(3600),
        interval: Duration::from_secs(60),
    };
    Open {
        id: GateId {
            group_id: GroupId::default(),
            rollout,
            stage: stage.clone(),
            side: Side::Before,
            index,
            begun_at,
        },
        task: Arc::new(task),
        request: GateRequest {
            namespace: group.namespace.to_string(),
            group: group.name.to_string(),
            rollout,
            release: String::new(),
            revisions: Vec::new(),
            direction: starling_api::RolloutDirection::Forward,
            stage,
            list: Side::Before.list(),
            task: index,
            start_time: String::new(),
            clusters: Clusters::default(),
        },
    }
}
