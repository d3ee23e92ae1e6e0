//! The deletion of a group: its removals are planned, checked and recorded like those of a rollout.

use std::collections::BTreeMap;

use jiff::Timestamp;
use starling_api::RolloutStatus;

use super::effect::{Epoch, Removal};
use super::finish::{allowed_prunes, removals};
use crate::clock_jumps::ClockJumps;
use crate::ids::{RolloutNumber, SyncName};
use crate::journal::{Draft, Recorder};
use crate::plan::{
    Direction, LeavingSync, OperatorInput, Plan, PlanInput, PruneRequest, RolloutView, Strategy, plan, record,
};

/// A group that is being deleted.
#[derive(Clone, Debug)]
pub struct DeletedGroup<'a> {
    /// The current time.
    pub now: Timestamp,
    /// The jumps of the clock.
    pub clock_jumps: &'a ClockJumps,
    /// The leadership under which the removals are decided.
    pub epoch: Epoch,
    /// The strategy in force.
    pub strategy: &'a Strategy,
    /// The last rollout; `None`: none has begun.
    pub rollout: Option<&'a RolloutStatus>,
    /// The requests of operators.
    pub operator: OperatorInput,
    /// Whether the group is suspended.
    pub suspended: bool,
    /// Its Syncs, by name.
    pub leaving: BTreeMap<SyncName, LeavingSync>,
    /// The Syncs that have to delete something after their removal gave its slot back.
    pub late: BTreeMap<SyncName, PruneRequest>,
}

/// The removals of a group that is being deleted.
#[derive(Clone, Debug)]
#[must_use]
pub struct PlannedDeletion {
    /// The leadership under which it was decided.
    pub epoch: Epoch,
    /// The input of the plan.
    pub input: PlanInput,
    /// The plan.
    pub plan: Plan,
    /// The rollout that the journal names: the last one.
    pub rollout: RolloutNumber,
    /// The entry of the journal, which precedes the removals; `None`: the newest entry says the same.
    pub entry: Option<Draft>,
    /// The Syncs to remove, in this order.
    pub removals: Vec<Removal>,
    /// The Syncs that may delete after their removal gave its slot back.
    pub allowed: Vec<SyncName>,
}

/// Returns the removals that follow. `recorder`: the head of the journal of the group.
///
/// # Errors
/// If the plan cannot be encoded for the journal.
pub fn plan_deletion(
    group: DeletedGroup<'_>,
    recorder: &Recorder,
) -> Result<PlannedDeletion, serde_json::Error> {
    let (rollout, epoch) = (
        group.rollout.map(RolloutNumber::of).unwrap_or_default(),
        group.epoch,
    );
    let input = group.into_input();
    let plan = plan(&input);
    Ok(PlannedDeletion {
        epoch,
        rollout,
        entry: recorder.draft(rollout, &input, &plan)?,
        removals: removals(&input, &plan),
        allowed: allowed_prunes(&plan),
        input,
        plan,
    })
}

impl DeletedGroup<'_> {
    fn into_input(self) -> PlanInput {
        let none = RolloutStatus::default();
        let rollout = self.rollout.unwrap_or(&none);
        let mut stages = record::recorded(rollout);
        record::replace_future_times(&mut stages, self.now);
        PlanInput {
            installation_slots: None,
            now: self.now,
            clock_jumps: self.clock_jumps.clone(),
            strategy: self.strategy.clone(),
            rollout: RolloutView {
                release: rollout.release.clone().into(),
                direction: Direction::from(rollout.direction),
                started_at: record::believed_start(&rollout.start_time, self.now),
                stages,
                // No gate judges a removal of a deleted group.
                approvals: BTreeMap::new(),
            },
            operator: self.operator,
            deleting: true,
            suspended: self.suspended,
            membership_held: false,
            clusters: BTreeMap::new(),
            leaving: self.leaving,
            returned: Default::default(),
            prunes: self.late,
        }
    }
}
