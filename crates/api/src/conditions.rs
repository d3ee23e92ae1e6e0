//! Conditions: their types, and an update that keeps transition times.

use jiff::{SignedDuration, Timestamp};
pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// The object has reached the state that its spec describes, as of the condition's `observedGeneration`.
pub const READY: &str = "Ready";
/// The controller is working on the object. Present only while true (abnormal-true, as in kstatus).
pub const RECONCILING: &str = "Reconciling";
/// The object cannot make progress until somebody edits an object or a Secret. Present only while true.
pub const STALLED: &str = "Stalled";
/// A rollout is in progress.
pub const PROGRESSING: &str = "Progressing";
/// Two Clusters report the same identity. Present only while true.
pub const IDENTITY_CONFLICT: &str = "IdentityConflict";
/// The token of a member could not be renewed, and expires soon or has expired. Present only while true.
pub const CREDENTIALS_EXPIRING: &str = "CredentialsExpiring";
/// A plain directory was built without kustomize, because no kustomize is available. Present only while true.
pub const RENDERED_PLAIN: &str = "RenderedPlain";
/// The revision has submodules, whose files are not read. Present only while true.
pub const SUBMODULES_IGNORED: &str = "SubmodulesIgnored";
/// All applied objects are healthy by the rules of kstatus. Present on a Sync with `wait`.
pub const HEALTHY: &str = "Healthy";
/// Objects that are no longer in git are not deleted until an operator approves it. Present only while true.
pub const DELETION_HELD: &str = "DeletionHeld";
/// Too many clusters left a group at once. Nothing follows from it until an operator approves it. Present
/// only while true.
pub const MEMBERSHIP_HELD: &str = "MembershipHeld";
/// Several stages select the same cluster; it belongs to the first of them. Present only while true.
pub const STAGES_OVERLAP: &str = "StagesOverlap";
/// No stage selects some clusters of a SyncGroup that has stages; they form the implicit last stage. Present
/// only while true.
pub const IMPLICIT_STAGE: &str = "ImplicitStage";
/// Another writer on the member keeps changing what Starling restores (a drift fight). Present only while
/// true.
pub const CONTESTED: &str = "Contested";

/// The management cluster was set back to an earlier state. Nothing is written to any cluster until a person releases
/// it. Present only while true.
pub const RESTORE_DETECTED: &str = "RestoreDetected";

/// The admission policies that verify `spec.by` of approvals and operator actions are missing or changed. Present only
/// while true, on groups with approvals or operator actions.
pub const POLICY_MISSING: &str = "PolicyMissing";

/// Maximum length of the message of a condition or problem, in bytes.
pub const MESSAGE_LIMIT: usize = 512;

/// The status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// The condition holds.
    True,
    /// The condition does not hold.
    False,
    /// The status cannot be determined now.
    Unknown,
}

impl ConditionStatus {
    /// As the API writes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// The state of one condition as a reconciler reports it. [`merge`] adds the transition time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionUpdate {
    /// Type of the condition, one of the constants of this module.
    pub type_: &'static str,
    /// Status of the condition.
    pub status: ConditionStatus,
    /// Reason in CamelCase.
    pub reason: String,
    /// Human-readable message; cut at [`MESSAGE_LIMIT`].
    pub message: String,
}

/// Returns the condition of one type, if present.
#[must_use]
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == type_)
}

/// Returns whether a condition is present and `True` for this generation or a later one.
#[must_use]
pub fn is_true(conditions: &[Condition], type_: &str, generation: i64) -> bool {
    find(conditions, type_)
        .is_some_and(|c| c.status == "True" && c.observed_generation.unwrap_or(0) >= generation)
}

/// A stored time that lies ahead by less stays, and is waited for: a clock that is set back and forth by minutes would
/// otherwise shorten a wait.
const STEP: SignedDuration = SignedDuration::from_mins(10);

/// Reports whether a stored time that cannot lie ahead does so by far: a clock that was wrong wrote it, and waits would
/// count from it.
#[must_use]
pub fn is_far_ahead(stored: Timestamp, now: Timestamp) -> bool {
    stored.duration_since(now) > STEP
}

/// Returns the conditions after an update. A condition that `updates` does not name is removed; one that
/// keeps its status keeps its transition time, unless that lies far ahead: timeouts would count from it.
#[must_use]
pub fn merge(
    before: &[Condition],
    updates: Vec<ConditionUpdate>,
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    // The API keeps seconds; a finer time here would look like a change at every comparison.
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    updates
        .into_iter()
        .map(|update| {
            let status = update.status.as_str();
            let since = find(before, update.type_)
                .filter(|old| old.status == status)
                .filter(|old| !is_far_ahead(old.last_transition_time.0, now))
                .map_or(Time(now), |old| old.last_transition_time.clone());
            Condition {
                type_: update.type_.to_owned(),
                status: status.to_owned(),
                reason: update.reason,
                message: cut(&update.message, MESSAGE_LIMIT),
                observed_generation: generation,
                last_transition_time: since,
            }
        })
        .collect()
}

/// Cuts `text` to at most `limit` bytes, between characters, with an ellipsis where something is missing.
#[must_use]
pub fn cut(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(limit.saturating_sub('…'.len_utf8()));
    format!("{}…", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(status: ConditionStatus, message: &str) -> Vec<ConditionUpdate> {
        vec![ConditionUpdate {
            type_: READY,
            status,
            reason: "R".into(),
            message: message.into(),
        }]
    }

    #[test]
    fn transition_time_moves_only_with_the_status() {
        let t0: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let t1: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let first = merge(&[], update(ConditionStatus::False, "a"), Some(1), t0);
        let second = merge(&first, update(ConditionStatus::False, "b"), Some(2), t1);
        assert_eq!(second[0].last_transition_time, Time(t0));
        assert_eq!(second[0].message, "b");
        assert_eq!(second[0].observed_generation, Some(2));
        let third = merge(&second, update(ConditionStatus::True, "b"), Some(2), t1);
        assert_eq!(third[0].last_transition_time, Time(t1));
        // It was written a year ahead.
        let year = t0 + SignedDuration::from_hours(24 * 365);
        let ahead = merge(&[], update(ConditionStatus::False, "a"), Some(1), year);
        let again = merge(&ahead, update(ConditionStatus::False, "a"), Some(1), t1);
        assert_eq!(again[0].last_transition_time, Time(t1));
    }

    #[test]
    fn a_condition_that_is_not_named_is_gone() {
        let t0 = Timestamp::UNIX_EPOCH;
        let stalled = ConditionUpdate {
            type_: STALLED,
            ..update(ConditionStatus::True, "").remove(0)
        };
        let first = merge(&[], vec![stalled], None, t0);
        assert!(merge(&first, vec![], None, t0).is_empty());
    }

    #[test]
    fn an_old_generation_is_not_true() {
        let conditions = merge(
            &[],
            update(ConditionStatus::True, ""),
            Some(3),
            Timestamp::UNIX_EPOCH,
        );
        assert!(is_true(&conditions, READY, 3));
        assert!(!is_true(&conditions, READY, 4));
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let long = "ä".repeat(600);
        let short = cut(&long, MESSAGE_LIMIT);
        assert!(short.len() <= MESSAGE_LIMIT && short.ends_with('…'));
    }
}
