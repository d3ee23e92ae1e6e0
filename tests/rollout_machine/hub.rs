//! The management API for the interpreter: the world, with a fault at any call.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use starling::controller::interpreter::GroupApi;
use starling_api::SyncGroupStatus;
use starling_core::ids::{ReleaseDigest, RolloutNumber, SyncName};
use starling_core::plan::LeavingCause;
use starling_core::rollout::{
    Admission, AdmissionRef, Decided, OpenGate, ReleaseSnapshot, Removal, StatusWrite,
};
use starling_ledger::Ledger;

use crate::faults::{Faults, Interrupted};
use crate::invariants::Violation;
use crate::marks;
use crate::memory::Memory;
use crate::order::Order;
use crate::world::{Api, GateKey, ID, World, Written, sync_name};

/// The management API during one pass.
pub(crate) struct Hub<'m> {
    pub(crate) world: &'m mut World,
    /// The cache, which has the result of a successful write immediately.
    pub(crate) cache: &'m mut Api,
    pub(crate) memory: &'m mut Memory,
    pub(crate) faults: &'m Faults,
    /// The ledger, for the invariants.
    pub(crate) ledger: &'m Ledger,
    pub(crate) decided: Option<&'m Decided>,
    pub(crate) order: Order,
    /// The status that the pass observed.
    pub(crate) known: SyncGroupStatus,
    /// Writes of the status in this pass.
    pub(crate) status_writes: usize,
}

impl GroupApi for Hub<'_> {
    type Error = Interrupted;

    fn may_continue(&self) -> Result<(), Interrupted> {
        Ok(())
    }

    fn sync_name(&self, cluster: &str, entry: &str) -> String {
        sync_name(entry, cluster)
    }

    async fn store_release(
        &mut self,
        _: RolloutNumber,
        snapshot: &Arc<ReleaseSnapshot>,
    ) -> Result<(), Interrupted> {
        let passage = self.faults.enter()?;
        self.world.store_release(&snapshot.digest);
        passage.leave()
    }

    async fn write_status(&mut self, write: &StatusWrite) -> Result<(), Interrupted> {
        self.status_writes += 1;
        if self.status_writes == 2 {
            self.world.violations.push(Violation::StatusTwice);
        }
        // Until the write is confirmed, the status is read again.
        self.memory.unconfirmed.status = true;
        let passage = self.faults.enter()?;
        self.world.write_status(&write.status, self.cache);
        passage.leave()?;
        self.memory.unconfirmed.status = false;
        self.memory.reported_at = Some(self.world.now);
        self.cache.status.clone_from(&write.status);
        Ok(())
    }

    fn settled(&mut self, admission: &AdmissionRef) {
        self.memory.settled.insert(admission.clone());
    }

    fn reopened(&mut self, admissions: &[Admission]) {
        let is_reopened = |settled: &AdmissionRef| {
            let same = |admission: &Admission| {
                (&admission.cluster, &admission.entry) == (&settled.cluster, &settled.entry)
            };
            admissions.iter().any(same)
        };
        self.memory.settled.retain(|settled| !is_reopened(settled));
    }

    fn evaluate_gates(&mut self, open: Vec<OpenGate>) {
        let Some(rollout) = self.decided.map(|decided| decided.rolling.rollout.id) else {
            self.memory.gates.evaluate(Vec::new(), self.world.now);
            return;
        };
        let key = |gate: OpenGate| GateKey {
            rollout,
            stage: gate.stage,
            side: gate.side,
            index: gate.index,
            begun_at: gate.begun_at,
        };
        let open: Vec<GateKey> = open.into_iter().map(key).collect();
        if self.order != Order::GatesInvented {
            self.world.evaluate_gates(&open);
        }
        self.memory.gates.evaluate(open, self.world.now);
    }

    async fn admit(&mut self, admissions: &[Admission]) -> Result<bool, Interrupted> {
        let mut all = true;
        for admission in admissions {
            match self.write_sync(admission).await {
                Ok(()) => {}
                Err(Interrupted::Failed) => all = false,
                Err(Interrupted::Crashed) => return Err(Interrupted::Crashed),
            }
        }
        Ok(all)
    }

    async fn confirm_removal(&mut self, removal: &Removal) -> Result<bool, Interrupted> {
        if self.order == Order::RemovalNotConfirmed {
            return Ok(true);
        }
        let passage = self.faults.enter()?;
        let is_selected = self.world.is_selected(&removal.cluster);
        passage.leave()?;
        Ok(!is_selected || removal.cause == LeavingCause::EntryRemoved)
    }

    async fn count_removals(&mut self, removals: &[Removal]) -> Result<(), Interrupted> {
        let passage = self.faults.enter()?;
        self.world.count_removals(removals);
        passage.leave()
    }

    async fn remove_sync(&mut self, removal: &Removal) -> Result<(), Interrupted> {
        let passage = self.faults.enter()?;
        let newest = self.newest_in_journal().await;
        self.world.remove_sync(removal, newest.as_ref(), self.cache);
        passage.leave()?;
        self.cache.take_sync(&self.world.api, &removal.cluster);
        Ok(())
    }

    fn removal_failed(&mut self, _: &Removal, _: Interrupted) {}

    fn removals_not_counted(&mut self, _: &[Removal], _: Interrupted) {}

    async fn allow_prunes(&mut self, syncs: &[SyncName]) {
        let newest = self.newest_in_journal().await;
        for sync in syncs {
            self.world.allow_prune(sync, newest.as_ref());
            if let Some(request) = self.memory.prunes.get_mut(sync) {
                request.allowed_at = Some(self.world.now);
            }
        }
    }

    async fn collect_garbage(&mut self, _: RolloutNumber, named: &BTreeSet<ReleaseDigest>) {
        // Remaining releases are deleted after the next rollout.
        if let Ok(passage) = self.faults.enter() {
            self.world.collect_garbage(named);
            let _ = passage.leave();
        }
    }

    async fn digest_release(&mut self) -> Option<Duration> {
        let rollout = &self.decided?.rolling.rollout;
        if self
            .memory
            .digested
            .as_ref()
            .is_some_and(|(id, _)| *id == rollout.id)
        {
            return None;
        }
        // A release that cannot be built is built again.
        let Ok(passage) = self.faults.enter() else {
            return Some(Duration::ZERO);
        };
        let digest = format!("digest of {}", rollout.release);
        let is_new = rollout.release_digest != digest;
        self.memory.digested = Some((rollout.id, digest));
        match passage.leave() {
            Ok(()) => is_new.then_some(Duration::ZERO),
            Err(_) => Some(Duration::ZERO),
        }
    }

    async fn write_marks(&mut self) -> Option<Duration> {
        let mut all = true;
        for name in marks::unmarked(self.cache, &self.known) {
            let Ok(passage) = self.faults.enter() else {
                all = false;
                continue;
            };
            self.world.mark(&name, &self.known);
            match passage.leave() {
                Ok(()) => {
                    self.cache.actions.clone_from(&self.world.api.actions);
                    self.cache.approvals.clone_from(&self.world.api.approvals);
                }
                Err(_) => all = false,
            }
        }
        (!all).then_some(Duration::ZERO)
    }
}

impl Hub<'_> {
    async fn write_sync(&mut self, admission: &Admission) -> Result<(), Interrupted> {
        let Admission {
            cluster,
            entry: _,
            release: _,
            rollout,
            target,
            revision: _,
            at,
            retried_for,
        } = admission;
        let written = Written {
            cluster: cluster.clone(),
            release: target.as_str().into(),
            rollout: rollout.get(),
            at: *at,
            retried_for: *retried_for,
        };
        self.memory.unconfirmed.syncs.insert(cluster.clone());
        let passage = self.faults.enter()?;
        let newest = self.newest_in_journal().await;
        let intents = self.ledger.admissions(&ID, *rollout).await.unwrap();
        self.world
            .write_sync(&written, &intents, newest.as_ref(), self.cache);
        passage.leave()?;
        self.memory.unconfirmed.syncs.remove(cluster);
        self.cache.take_sync(&self.world.api, cluster);
        Ok(())
    }
}
