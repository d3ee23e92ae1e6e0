//! Makes a history fair: faults stop, attempts finish in the end, and operators do what the rollout waits for.

use starling_api::OnUnreachable;
use starling_core::plan::{
    Decision, Direction, HoldReason, Plan, Progress, Reach, StagePhase, StageWait, plan,
};

use super::World;
use super::member::is_applied;
use crate::arbitrary::attribution;

impl World {
    /// Ends suspensions and holds, and makes every cluster reachable that has something of this release, or that the
    /// rollout waits for.
    pub(crate) fn faults_stop(&mut self, stay_broken: bool) {
        self.group_suspended = false;
        self.unblock();
        let (now, waits) = (self.now, self.strategy.on_unreachable == OnUnreachable::Wait);
        for member in self.members.values_mut() {
            member.resume();
            member.heal(now);
            member.windows.clear();
            if member.reach == Reach::Unprobed || waits {
                member.reach = Reach::Ready;
            }
            if !stay_broken {
                member.label.get_or_insert(0);
            }
        }
        let decisions = plan(&self.input()).decisions;
        for (name, member) in &mut self.members {
            let may_stay_away = matches!(
                decisions[name],
                Decision::Hold {
                    reason: HoldReason::ClusterUnreachable { .. },
                    ..
                }
            );
            if !may_stay_away {
                member.reach = Reach::Ready;
            }
        }
    }

    /// Makes what is left of an older release healthy: a rollout forward may have to wait for that (`maxUnavailable`).
    /// A rollback must not, except for clusters that it cannot start because a parameter is missing: their targets
    /// become healthy, or an operator would have to skip them.
    pub(crate) fn the_past_recovers(&mut self) -> bool {
        let (now, mut recovers) = (self.now, false);
        let forward = self.rollout.direction == Direction::Forward;
        let release = &self.rollout.release;
        for member in self.members.values_mut() {
            let (ready, broken) = (member.reach == Reach::Ready, member.label.is_none());
            for sync in member.syncs.values_mut() {
                let is_past = forward && sync.release != *release;
                if ready && (broken || is_past) && !is_applied(&sync.progress) {
                    sync.progress = Progress::healthy_since(now);
                    recovers = true;
                }
            }
        }
        recovers
    }

    /// Makes one of the clusters healthy that are admitted with all their entries and not done. No other progress is
    /// fair to expect: an entry may need one that is not admitted yet.
    pub(crate) fn one_finishes(&mut self, pick: u8) -> bool {
        let (now, input) = (self.now, self.input());
        let finished = self.pick(pick, |(name, member)| {
            let complete = input.clusters[name].entries.values().all(|entry| {
                let target = entry.observed.as_ref().and_then(|sync| sync.target.as_ref());
                entry.wanted.as_ref().ok() == target && target.is_some()
            });
            let healthy = member.syncs.values().all(|sync| is_applied(&sync.progress));
            complete && !healthy && member.reach == Reach::Ready
        });
        finished.is_some_and(|(_, member)| {
            member.turn(
                |progress| !is_applied(progress),
                &Progress::healthy_since(now),
                usize::MAX,
            );
            true
        })
    }

    /// Does everything that the plan waits for operators to do: approves, reports results, and promotes unproven
    /// stages.
    pub(crate) fn people_act(&mut self, plan: &Plan) {
        self.finish_gates(true);
        for stage in &plan.stages {
            self.rollout.approvals.insert(stage.name.clone(), attribution(0));
            if stage.phase == StagePhase::Waiting(StageWait::Unproven) {
                self.operator.promoted.insert(stage.name.clone(), attribution(0));
            }
        }
    }
}
