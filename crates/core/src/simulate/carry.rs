//! Executes the effects of the rollout machine on a model: a simulated group, or the fleet of an estimate.

use starling_api::SyncGroupStatus;

use super::World;
use crate::plan::{ObservedSync, OperatorInput, Progress};
use crate::rollout::{Action, Admission, Removal, Transition};

/// A model that the effects of the rollout machine change. There is no ledger and no journal, gates give results by
/// themselves, and every release is stored.
pub(crate) trait Model {
    /// Writes the status of the group.
    fn write_status(&mut self, status: SyncGroupStatus);

    /// Admits an entry on a cluster.
    fn admit(&mut self, admission: &Admission);

    /// Removes a Sync.
    fn remove(&mut self, removal: &Removal);
}

/// Executes the effects of a transition, in order. Returns whether another pass has to follow at this time.
pub(crate) fn carry_out(model: &mut impl Model, transition: &mut Transition) -> bool {
    let mut again = transition.again;
    for effect in std::mem::take(&mut transition.effects) {
        match effect.action {
            Action::WriteStatus(write) => {
                again |= write.durable.is_some();
                model.write_status(write.status);
            }
            Action::Admit(admissions) => {
                again = true;
                for admission in &admissions {
                    model.admit(admission);
                }
            }
            Action::RemoveSyncs(removals) => {
                again = true;
                for removal in &removals {
                    model.remove(removal);
                }
            }
            Action::AppendJournal { .. }
            | Action::StoreRelease { .. }
            | Action::RecordRollout(_)
            | Action::EndRollout { .. }
            | Action::EvaluateGates(_)
            | Action::SettleAdmission { .. }
            | Action::RecordAdmissions(_)
            | Action::CollectGarbage { .. }
            | Action::DigestRelease
            | Action::AllowPrunes(_)
            | Action::WriteMarks => {}
        }
    }
    again
}

/// Returns the Sync of an entry as it is observed directly after its admission.
pub(crate) fn admitted(admission: &Admission) -> ObservedSync {
    ObservedSync {
        stored_admitted_at: None,
        target: Some(admission.target.clone()),
        release: admission.release.clone(),
        admitted_at: Some(admission.at),
        progress: Progress::Working,
        retried_for: admission.retried_for,
        suspended: false,
    }
}

impl World {
    /// Executes the effects of a transition. Returns whether another pass has to follow at this time.
    pub(super) fn carry_out(&mut self, transition: &mut Transition) -> bool {
        // In the controller a request remains until its rollout ends. Here it is served once, and remains only while
        // the machine defers the next rollout to report a success first.
        let is_deferred = transition.again && transition.began.is_none();
        if !is_deferred {
            self.request = None;
        }
        if transition.began.is_some() {
            self.operator = OperatorInput::default();
            self.approvals.clear();
            self.gate_results.clear();
        }
        carry_out(self, transition)
    }
}

impl Model for World {
    fn write_status(&mut self, status: SyncGroupStatus) {
        self.status = status;
        self.gate_results.clear();
    }

    fn admit(&mut self, admission: &Admission) {
        if let Some(member) = self.members.get_mut(admission.cluster.as_str()) {
            member.observed = Some(admitted(admission));
            member.live(self.now);
        }
    }

    /// Clusters that leave a simulated group are removed with their Syncs.
    fn remove(&mut self, _: &Removal) {}
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::super::{Happened, SimulatedMember};
    use super::*;
    use crate::plan::{Direction, ReadStrategy};
    use crate::rollout::next::Cause;
    use crate::simulate::Fate;

    /// The success of the rollback is not reported yet when an operator releases the held release. The machine reports
    /// it first, and begins the release in the next pass.
    #[test]
    fn a_request_that_the_machine_defers_is_served_in_the_next_pass() {
        let strategy = serde_json::json!({"maxFailures": 0, "onFailure": "Rollback"});
        let strategy = ReadStrategy::new(&serde_json::from_value(strategy).unwrap()).unwrap();
        let mut member = SimulatedMember::new("a", BTreeMap::new(), Duration::from_secs(60));
        member.fates.insert("v2".into(), Fate::Fails);
        member.fates.insert("v1".into(), Fate::Hangs);
        let begin = "2026-11-21T12:00:00Z".parse().unwrap();
        let mut world = World::new(begin, strategy, [("a".to_owned(), member)].into(), "v2");
        world.set_known_good(Some("v1"));
        world.run("2026-11-21T12:01:30Z".parse().unwrap());
        let rollout = world.status.rollout.clone().unwrap();
        assert_eq!((rollout.release.as_str(), rollout.automatic), ("v1", true));
        world.members.get_mut("a").unwrap().heal(world.now);
        world.request_release();
        let began = Happened::Began {
            release: "v2".into(),
            direction: Direction::Forward,
            cause: Cause::Requested,
        };
        let happened = world.settle();
        assert!(happened.contains(&began), "{happened:?}");
    }
}
