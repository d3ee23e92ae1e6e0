//! The rules. Each is a function of its own, and says what is evidence for it.

mod bounds;
mod claims;
mod converged;
mod deletions;
mod ends;
mod listed;
mod order;
mod quiet;
mod reasons;
mod slots;
mod stages;
mod steering;
mod suspended;

use super::violation::Violation;
use super::world::World;

/// Finds what breaks a rule.
type Check = fn(&World<'_>) -> Vec<Violation>;

/// All of them.
pub(crate) const ALL: [Check; 17] = [
    claims::claims_are_true,
    claims::health_is_of_what_is_held,
    claims::groups_claim_what_their_clusters_do,
    ends::everything_admitted_ends,
    ends::everything_pushed_is_rolled,
    order::writes_follow_targets,
    order::admissions_follow_the_source,
    listed::what_is_written_is_listed_before,
    bounds::admissions_keep_the_bounds,
    stages::stages_earn_it,
    steering::rollouts_go_where_they_may,
    converged::others_converge,
    converged::neighbours_are_applied_and_the_bad_one_is_named,
    deletions::deletes_have_a_reason,
    reasons::waits_are_explained,
    suspended::nothing_is_written_while_suspended,
    quiet::nothing_is_written_at_rest,
];
