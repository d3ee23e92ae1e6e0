//! Gate tasks: webhooks, metrics and Jobs that a stage waits for.
//!
//! A reconcile of a group (`reconcile::sync_group::gates`) passes the open gates. Each open gate has one task, which
//! tries until it has a result, stores the result, and enqueues the group. The next reconcile adds the result to the
//! plan and writes it to status; only then the result is dropped here. After a crash before that, the task runs again
//! with the same `Idempotency-Key` and the same name of the Job.

mod gate_task;
mod job;
mod metric;
mod secret;
mod task;
pub mod testing;
mod webhook;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, MutexGuard};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use starling_api::{StageStatus, TaskStatus};
use starling_core::gate::webhook::GateRequest;
use starling_core::gate::{GateId, Side, Task};
use starling_core::ids::{GroupId, RolloutNumber};
use starling_core::plan::{Gate, GateRecord, GateResult, StageRecord};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use self::gate_task::GateTask;
use super::hub::Hub;
use super::keyed::{Keyed, PerObject};
use super::ports::Web;
use super::workqueue::Workqueue;
use crate::controller::object_key::ObjectKey;
use starling_net::clock::Clock;
use starling_net::tenant_pool::TenantPool;

/// Maximum number of concurrent requests of gates over all groups; a namespace has at most half of them. A request
/// takes seconds at most, and minutes pass between two requests of one gate, but a server may drip.
const MAX_CONCURRENT_REQUESTS: usize = 32;

/// A gate that has begun and has no result.
#[derive(Clone, Debug)]
pub struct Open {
    /// The identity of the gate.
    pub id: GateId,
    /// The task in the strategy.
    pub task: Arc<Task>,
    /// The body of a request to a webhook.
    pub request: GateRequest,
}

/// The adapters that gate tasks use.
#[derive(Clone)]
pub struct GateTools {
    /// The management cluster, for Secrets and Jobs.
    pub hub: Hub,
    /// The HTTP client.
    pub web: Arc<dyn Web>,
    /// The clock.
    pub clock: Clock,
    /// The store of results.
    pub gates: Arc<GateTasks>,
    /// The work queue of groups.
    pub groups: Arc<Workqueue>,
}

/// The running gate tasks, and the results that are not in status yet.
#[derive(Debug)]
pub struct GateTasks {
    known: Keyed<BTreeMap<GateId, Entry>>,
    requests: TenantPool,
}

impl Default for GateTasks {
    fn default() -> Self {
        Self {
            known: Keyed::default(),
            requests: TenantPool::new(MAX_CONCURRENT_REQUESTS),
        }
    }
}

#[derive(Debug)]
struct Entry {
    task: Arc<Task>,
    /// The message of the last try.
    message: String,
    result: Option<GateResult>,
    /// Cancelled when the gate is no longer open.
    ended: CancellationToken,
    handle: AbortHandle,
}

impl GateTasks {
    /// Adds the stored results to the records that were read from status.
    pub fn add_results(
        &self,
        group: &ObjectKey,
        group_id: &GroupId,
        rollout: RolloutNumber,
        stages: &mut BTreeMap<String, StageRecord>,
    ) {
        let known = self.lock();
        let Some(gates) = known.get(group) else { return };
        for (id, entry) in gates {
            let (Some(result), true) = (&entry.result, id.group_id == *group_id && id.rollout == rollout)
            else {
                continue;
            };
            let Some(record) = stages.get_mut(&id.stage) else {
                continue;
            };
            if let Some(record) = record_of(record, id) {
                record.result.get_or_insert_with(|| result.clone());
            }
        }
    }

    /// Writes the message of the last try of each open task into its status.
    pub fn report(
        &self,
        group: &ObjectKey,
        group_id: &GroupId,
        rollout: RolloutNumber,
        stages: &mut [StageStatus],
    ) {
        let known = self.lock();
        let Some(gates) = known.get(group) else { return };
        for (id, entry) in gates {
            if id.group_id != *group_id || id.rollout != rollout {
                continue;
            }
            let stage = stages.iter_mut().find(|stage| stage.name == id.stage);
            let task = stage.and_then(|stage| status_of(stage, id));
            if let Some(task) = task.filter(|task| task.result.is_none()) {
                task.message.clone_from(&entry.message);
            }
        }
    }

    /// Runs a task for each gate in `open` of a group, and no other: starts tasks of new gates, restarts tasks of
    /// edited gates, and ends tasks of gates that are no longer open.
    pub fn run(&self, tools: &GateTools, group: &ObjectKey, owner: &OwnerReference, open: Vec<Open>) {
        let mut known = self.lock();
        let wanted: BTreeSet<&GateId> = open.iter().map(|open| &open.id).collect();
        let gates = known.entry(group.clone()).or_default();
        gates.retain(|id, entry| {
            let stays = wanted.contains(id);
            if !stays {
                entry.ended.cancel();
            }
            stays
        });
        for Open { id, task, request } in open {
            match gates.get(&id) {
                Some(entry) if entry.result.is_some() || entry.task == task => continue,
                // The new task finds the Job of the earlier task. The Job is not deleted because its gate is still
                // open.
                Some(entry) => entry.handle.abort(),
                None => {}
            }
            let ended = CancellationToken::new();
            let gate = GateTask {
                id: id.clone(),
                group: group.clone(),
                owner: owner.clone(),
                task: task.clone(),
                request,
                tools: tools.clone(),
            };
            tracing::info!(%group, rollout = id.rollout.get(), stage = id.stage, list = id.side.list(), task = id.index, kind = ?task.effect.kind(), "gate task started");
            let handle = tokio::spawn(task::run(gate, ended.clone())).abort_handle();
            let entry = Entry {
                task,
                message: String::new(),
                result: None,
                ended,
                handle,
            };
            gates.insert(id, entry);
        }
        if gates.is_empty() {
            known.remove(group);
        }
    }

    /// Ends the tasks of a deleted group.
    pub fn forget(&self, group: &ObjectKey) {
        let gates = self.known.take(group);
        gates
            .into_iter()
            .flatten()
            .for_each(|(_, entry)| entry.ended.cancel());
    }

    /// Aborts every task, as a crash would. The next start runs them again.
    pub fn stop(&self) {
        // In the order of names: a simulation that is repeated takes the same course.
        let known: BTreeMap<ObjectKey, _> = self.lock().drain().collect();
        for entry in known.into_values().flat_map(BTreeMap::into_values) {
            entry.handle.abort();
        }
    }

    /// Stores the message of the last try of a gate. Returns whether the message is new.
    fn keep_message(&self, group: &ObjectKey, id: &GateId, message: &str) -> bool {
        let mut known = self.lock();
        let entry = known.get_mut(group).and_then(|gates| gates.get_mut(id));
        entry.is_some_and(|entry| {
            let is_new = entry.message != message;
            message.clone_into(&mut entry.message);
            is_new
        })
    }

    /// Stores the result of a gate.
    fn keep_result(&self, group: &ObjectKey, id: &GateId, result: GateResult) {
        let mut known = self.lock();
        if let Some(entry) = known.get_mut(group).and_then(|gates| gates.get_mut(id)) {
            entry.result = Some(result);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, BTreeMap<GateId, Entry>>> {
        self.known.lock()
    }
}

impl PerObject for GateTasks {
    fn forget(&self, group: &ObjectKey) {
        Self::forget(self, group);
    }

    fn retain(&self, keep: &dyn Fn(&ObjectKey) -> bool) {
        self.lock().retain(|group, gates| {
            let stays = keep(group);
            if !stays {
                gates.values().for_each(|entry| entry.ended.cancel());
            }
            stays
        });
    }

    #[cfg(test)]
    fn keys(&self) -> BTreeSet<ObjectKey> {
        self.known.keys()
    }
}

fn record_of<'r>(record: &'r mut StageRecord, id: &GateId) -> Option<&'r mut GateRecord> {
    let list = match id.side {
        Side::Before => &mut record.before,
        Side::After => &mut record.after,
    };
    let gate = list.get_mut(id.index)?;
    (matches!(gate.gate, Gate::Effect(_)) && gate.begun_at == id.begun_at).then_some(gate)
}

fn status_of<'s>(stage: &'s mut StageStatus, id: &GateId) -> Option<&'s mut TaskStatus> {
    let list = match id.side {
        Side::Before => &mut stage.before_stage_tasks,
        Side::After => &mut stage.after_stage_tasks,
    };
    list.get_mut(id.index)
}

#[cfg(test)]
mod tests;
