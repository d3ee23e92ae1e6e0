//! The marks by which operator actions and approvals keep their meaning after a restore to another API server. Every
//! run that becomes idle checks them (`idle`), so the histories with a fault at every effect do as well.

use std::collections::BTreeMap;

use jiff::Timestamp;
use starling_api::{ActionType, COUNTS_FOR, COUNTS_FOR_NONE, RolloutStatus, SyncGroupStatus};
use starling_core::ids::RolloutNumber;
use starling_core::rollout::operator::{self, RolloutSubject};

use crate::basic;
use crate::block_on;
use crate::idle::{End, run_until_idle};
use crate::invariants::Violation;
use crate::machine::Machine;
use crate::order::Order;
use crate::scenario::violation_of;
use crate::world::{Api, GROUP, World};

/// The rollout that actions and approvals must name.
pub(crate) fn subject(rollout: &RolloutStatus) -> RolloutSubject<'_> {
    RolloutSubject {
        group: GROUP,
        since: Timestamp::UNIX_EPOCH,
        rollout: RolloutNumber::of(rollout),
        started_at: &rollout.start_time,
        digest: None,
    }
}

/// The marks that actions and approvals lack, by the name of the object.
fn missing(api: &Api, status: &SyncGroupStatus) -> BTreeMap<String, BTreeMap<String, String>> {
    let Some(rollout) = &status.rollout else {
        return BTreeMap::new();
    };
    let of = subject(rollout);
    let mut missing = BTreeMap::new();
    for action in &api.actions {
        let marks = operator::marks(of, RolloutNumber::new(action.spec.rollout), action);
        missing.extend(action.metadata.name.clone().zip(marks));
    }
    for approval in &api.approvals {
        let marks = operator::marks(of, RolloutNumber::new(approval.spec.rollout), approval);
        missing.extend(approval.metadata.name.clone().zip(marks));
    }
    missing
}

/// Returns the names of the objects that lack a mark in a status.
pub(crate) fn unmarked(api: &Api, status: &SyncGroupStatus) -> Vec<String> {
    missing(api, status).into_keys().collect()
}

impl World {
    /// Marks an action or approval, as of a status that the controller knows.
    pub(crate) fn mark(&mut self, name: &str, known: &SyncGroupStatus) {
        let Some(marks) = missing(&self.api, known).remove(name) else {
            return;
        };
        // A pass that begins a rollout marks what counted for the previous one, so only one number is compared.
        let number = |status: &SyncGroupStatus| status.rollout.as_ref().map(|rollout| rollout.id);
        let is_same = number(known) == number(&self.api.status);
        if is_same && missing(&self.api, &self.api.status).get(name) != Some(&marks) {
            let object = name.to_owned();
            self.violations.push(Violation::WrongMark { object });
        }
        self.writes += 1;
        let actions = self.api.actions.iter_mut().map(|action| &mut action.metadata);
        let approvals = self
            .api
            .approvals
            .iter_mut()
            .map(|approval| &mut approval.metadata);
        let mut of_name = actions
            .chain(approvals)
            .filter(|meta| meta.name.as_deref() == Some(name));
        if let Some(meta) = of_name.next() {
            meta.annotations.get_or_insert_default().extend(marks);
        }
    }
}

/// A person approves the stages of two releases, and asks for a retry in between.
async fn history(machine: &mut Machine) -> Result<Vec<End>, String> {
    let first = run_until_idle(machine, true).await?;
    machine.world.add_action(ActionType::Retry, None, None);
    machine.world.offer_new();
    let second = run_until_idle(machine, true).await?;
    Ok(vec![first, second])
}

/// The marks of all actions and approvals.
fn marks_of(api: &Api) -> Vec<Option<String>> {
    let actions = api.actions.iter().map(|action| &action.metadata);
    let objects = actions.chain(api.approvals.iter().map(|approval| &approval.metadata));
    let mark = |annotations: &BTreeMap<String, String>| annotations.get(COUNTS_FOR).cloned();
    objects
        .map(|meta| meta.annotations.as_ref().and_then(mark))
        .collect()
}

#[test]
fn every_action_and_approval_is_marked_with_the_start_of_its_rollout() {
    block_on(async {
        let mut machine = Machine::start(basic::world(), Order::Correct).await;
        history(&mut machine).await.unwrap();
        let marks = marks_of(&machine.world.api);
        let rolls = |mark: &Option<String>| mark.as_ref().is_some_and(|mark| mark != COUNTS_FOR_NONE);
        assert!(marks.len() >= 3 && marks.iter().all(rolls), "{marks:?}");
    });
}

#[test]
fn an_action_without_a_mark_is_found() {
    let violations = block_on(violation_of(Order::NothingMarked, basic::world(), history));
    assert!(
        violations
            .iter()
            .any(|found| matches!(found, Violation::NotMarked { .. })),
        "{violations:?}"
    );
}
