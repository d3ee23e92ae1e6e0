//! Gates of stages that somebody else decides, carried out.
//!
//! A look at a group (`reconcile::sync_group::gates`) says which of its gates have begun and are open; each has one task here, which
//! asks until something is found, keeps that, and wakes the group. The next look takes what was found into the plan and writes it
//! to status; only then it is forgotten here. A crash before that has the effect carried out again, with the same
//! `Idempotency-Key` and the same name of the Job.

mod errand;
mod job;
mod metric;
mod secret;
mod webhook;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use starling_api::{StageStatus, TaskStatus};
use starling_core::gate::webhook::Question;
use starling_core::gate::{GateId, Side, Task};
use starling_core::plan::{Finding, Gate, GateRecord, StageRecord};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use self::errand::Errand;
use super::cache::ObjectKey;
use super::context::Context;

/// Requests of gates at the same time, over all groups. Each takes seconds at most, and there are minutes between two of one gate.
const AT_ONCE: usize = 32;

/// A gate that has begun and of which nothing was found yet.
#[derive(Clone, Debug)]
pub struct Open {
    /// Which.
    pub id: GateId,
    /// What the strategy has there.
    pub task: Arc<Task>,
    /// What a webhook is told.
    pub question: Question,
}

/// The gates that are being carried out, and what was found of those that nobody has written down yet.
#[derive(Debug)]
pub struct Gates {
    known: Mutex<HashMap<ObjectKey, BTreeMap<GateId, Entry>>>,
    requests: Semaphore,
}

impl Default for Gates {
    fn default() -> Self {
        Self {
            known: Mutex::default(),
            requests: Semaphore::new(AT_ONCE),
        }
    }
}

#[derive(Debug)]
struct Entry {
    task: Arc<Task>,
    /// What the last try came to.
    said: String,
    found: Option<Finding>,
    /// Nobody waits for it any more.
    ended: CancellationToken,
    handle: AbortHandle,
}

impl Gates {
    /// Lays what was found over what status remembers.
    pub fn lay_over(
        &self,
        group: &ObjectKey,
        uid: &str,
        rollout: i64,
        stages: &mut BTreeMap<String, StageRecord>,
    ) {
        let known = self.lock();
        let Some(gates) = known.get(group) else { return };
        for (id, entry) in gates {
            let (Some(found), true) = (&entry.found, id.group_uid == uid && id.rollout == rollout) else {
                continue;
            };
            let Some(record) = stages.get_mut(&id.stage) else {
                continue;
            };
            if let Some(record) = record_of(record, id) {
                record.found.get_or_insert_with(|| found.clone());
            }
        }
    }

    /// Says of the tasks that are open what their last try came to.
    pub fn tell(&self, group: &ObjectKey, uid: &str, rollout: i64, stages: &mut [StageStatus]) {
        let known = self.lock();
        let Some(gates) = known.get(group) else { return };
        for (id, entry) in gates {
            if id.group_uid != uid || id.rollout != rollout {
                continue;
            }
            let stage = stages.iter_mut().find(|stage| stage.name == id.stage);
            let task = stage.and_then(|stage| status_of(stage, id));
            if let Some(task) = task.filter(|task| task.result.is_none()) {
                task.message.clone_from(&entry.said);
            }
        }
    }

    /// Makes `open` what is carried out of a group: what is new begins, what was edited begins anew, and what nobody waits for any
    /// more ends.
    pub fn carry_out(&self, context: &Context, group: &ObjectKey, owner: &OwnerReference, open: Vec<Open>) {
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
        for Open { id, task, question } in open {
            match gates.get(&id) {
                Some(entry) if entry.found.is_some() || entry.task == task => continue,
                // Of a Job that was made the new task finds that it is there. It is not deleted, as nobody says that it ended.
                Some(entry) => entry.handle.abort(),
                None => {}
            }
            let ended = CancellationToken::new();
            let errand = Errand {
                id: id.clone(),
                group: group.clone(),
                owner: owner.clone(),
                task: task.clone(),
                question,
                hub: context.hub.clone(),
                web: context.web.clone(),
                clock: context.clock.clone(),
                gates: context.gates.clone(),
                groups: context.queues.groups.clone(),
            };
            tracing::info!(%group, rollout = id.rollout, stage = id.stage, list = id.side.list(), task = id.index, kind = ?task.effect.kind(), "a task of a stage begins");
            let handle = tokio::spawn(errand.run(ended.clone())).abort_handle();
            let entry = Entry {
                task,
                said: String::new(),
                found: None,
                ended,
                handle,
            };
            gates.insert(id, entry);
        }
        if gates.is_empty() {
            known.remove(group);
        }
    }

    /// Ends what is carried out of a group that is gone.
    pub fn forget(&self, group: &ObjectKey) {
        for entry in self
            .lock()
            .remove(group)
            .into_iter()
            .flatten()
            .map(|(_, entry)| entry)
        {
            entry.ended.cancel();
        }
    }

    /// Ends everything where it is, as a crash would: the next start goes on.
    pub fn stop(&self) {
        for (_, gates) in self.lock().drain() {
            for entry in gates.into_values() {
                entry.handle.abort();
            }
        }
    }

    /// Keeps what the last try of a gate came to. Returns whether that is new.
    fn say(&self, group: &ObjectKey, id: &GateId, said: &str) -> bool {
        let mut known = self.lock();
        let entry = known.get_mut(group).and_then(|gates| gates.get_mut(id));
        entry.is_some_and(|entry| {
            let is_new = entry.said != said;
            said.clone_into(&mut entry.said);
            is_new
        })
    }

    /// Keeps what was found of a gate.
    fn find(&self, group: &ObjectKey, id: &GateId, found: Finding) {
        let mut known = self.lock();
        if let Some(entry) = known.get_mut(group).and_then(|gates| gates.get_mut(id)) {
            entry.found = Some(found);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, BTreeMap<GateId, Entry>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
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
