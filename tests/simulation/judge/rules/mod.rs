//! The rules. Each is one function, and its comment defines the evidence.

mod approvals;
mod budget;
mod claims;
mod completion;
mod contents;
mod converged;
mod counted;
mod deletion;
mod deletions;
mod hand_over;
mod idle_writes;
mod inventory;
mod limits;
mod order;
mod reasons;
mod removals;
mod rollbacks;
mod slots;
mod stages;
mod stopped;
mod suspended;
mod targets;
mod unplanned;
mod windows;

use super::violation::Violation;
use super::world::World;

/// Returns the violations of a rule.
type Check = fn(&World<'_>) -> Vec<Violation>;

/// All rules.
pub(crate) const ALL: [Check; 32] = [
    claims::claims_are_true,
    claims::health_is_of_the_applied_target,
    claims::groups_report_their_clusters,
    completion::everything_admitted_finishes,
    completion::everything_pushed_is_rolled_out,
    targets::writes_follow_targets,
    targets::admissions_follow_the_source,
    inventory::objects_are_listed_before_they_are_written,
    limits::admissions_respect_the_limits,
    stages::stages_open_and_pass_in_order,
    rollbacks::rollbacks_are_requested,
    converged::others_converge,
    converged::other_objects_are_applied_and_failures_are_named,
    deletions::deletions_have_a_reason,
    counted::deletions_are_counted,
    removals::removals_wait,
    order::objects_go_in_order,
    contents::containers_stay_with_their_contents,
    unplanned::removals_are_planned,
    unplanned::prunes_are_planned,
    unplanned::removals_are_read_live,
    approvals::deletions_are_approved,
    budget::budgets_hold,
    hand_over::objects_are_handed_over,
    reasons::waits_are_explained,
    stopped::nothing_goes_while_its_group_is_stopped,
    stopped::nothing_goes_late_in_a_closed_window,
    suspended::nothing_is_written_while_suspended,
    suspended::nothing_is_written_without_a_slot,
    suspended::nothing_is_written_after_a_restore,
    suspended::nothing_is_decided_after_a_restore,
    idle_writes::nothing_is_written_while_idle,
];
