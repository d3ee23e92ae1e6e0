//! What makes a history fair: faults stop, work finishes in the end, and people do what is waited for.

use starling_api::OnUnreachable;
use starling_core::plan::{
    Decision, Direction, HoldReason, Plan, Progress, Reach, StagePhase, StageWait, plan,
};

use super::World;
use super::member::is_held;
use crate::arbitrary::word;

impl World {
    /// Nothing is suspended or held any more, and every cluster is back that has something of this release on it, or
    /// that is waited for.
    pub(crate) fn faults_stop(&mut self, stay_broken: bool) {
        self.group_suspended = false;
        self.go_on();
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

    /// What is left of an older release becomes healthy as well: a release that goes forward may have to wait for
    /// that (`maxUnavailable`). A way back must not, but for clusters that it cannot touch because their parameters are not
    /// mended: what they hold becomes healthy, or somebody would have to pass them over.
    pub(crate) fn the_past_recovers(&mut self) -> bool {
        let (now, mut recovers) = (self.now, false);
        let forward = self.rollout.direction == Direction::Forward;
        let release = &self.rollout.release;
        for member in self.members.values_mut() {
            let (ready, broken) = (member.reach == Reach::Ready, member.label.is_none());
            for sync in member.syncs.values_mut() {
                let is_past = forward && sync.release != *release;
                if ready && (broken || is_past) && !is_held(&sync.progress) {
                    sync.progress = Progress::healthy_since(now);
                    recovers = true;
                }
            }
        }
        recovers
    }

    /// One of the clusters that are admitted with all their entries, and not done, is healthy now. No other
    /// progress is fair to expect: an entry may need one that is not admitted yet.
    pub(crate) fn one_finishes(&mut self, pick: u8) -> bool {
        let (now, input) = (self.now, self.input());
        let finished = self.pick(pick, |(name, member)| {
            let complete = input.clusters[name].entries.values().all(|entry| {
                let target = entry.observed.as_ref().and_then(|sync| sync.target.as_ref());
                entry.wanted.as_ref().ok() == target && target.is_some()
            });
            let healthy = member.syncs.values().all(|sync| is_held(&sync.progress));
            complete && !healthy && member.reach == Reach::Ready
        });
        finished.is_some_and(|(_, member)| {
            member.turn(
                |progress| !is_held(progress),
                &Progress::healthy_since(now),
                usize::MAX,
            );
            true
        })
    }

    /// Everybody does what the plan waits for people to do: approves, finds out, and looks at what proves nothing.
    pub(crate) fn people_act(&mut self, plan: &Plan) {
        self.find(true);
        for stage in &plan.stages {
            self.rollout.approvals.insert(stage.name.clone(), word(0));
            if stage.phase == StagePhase::Waiting(StageWait::Unproven) {
                self.steering.promoted.insert(stage.name.clone(), word(0));
            }
        }
    }
}
