//! Executes the effects of the rollout machine on a simulated group.

use super::World;
use crate::plan::OperatorInput;
use crate::rollout::{Action, Admission, Transition};

impl World {
    /// Executes the effects of a transition. Returns whether another pass has to follow at this time.
    pub(super) fn carry_out(&mut self, transition: &mut Transition) -> bool {
        let mut again = transition.again;
        // In the controller a request remains until its rollout ends; here it is served once.
        self.request = None;
        if transition.began.is_some() {
            self.operator = OperatorInput::default();
            self.approvals.clear();
            self.gate_results.clear();
        }
        for effect in std::mem::take(&mut transition.effects) {
            match effect.action {
                Action::WriteStatus(write) => {
                    again |= write.durable.is_some();
                    self.status = write.status;
                    self.gate_results.clear();
                }
                Action::Admit(admissions) => {
                    again = true;
                    for admission in &admissions {
                        self.admit(admission);
                    }
                }
                // There is no ledger and no journal, gates have given results, and every release remains.
                Action::AppendJournal { .. }
                | Action::StoreRelease { .. }
                | Action::RecordRollout(_)
                | Action::EndRollout { .. }
                | Action::EvaluateGates(_)
                | Action::SettleAdmission { .. }
                | Action::RecordAdmissions(_)
                | Action::RemoveSyncs(_)
                | Action::CollectGarbage { .. }
                | Action::DigestRelease => {}
            }
        }
        again
    }

    fn admit(&mut self, admission: &Admission) {
        if let Some(member) = self.members.get_mut(&admission.cluster) {
            member.admit(&admission.target, self.now);
            if let Some(sync) = &mut member.observed {
                sync.retried_for = admission.retried_for;
            }
            member.live(self.now);
        }
    }
}
