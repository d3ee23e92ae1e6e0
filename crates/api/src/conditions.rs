//! Conditions: their types, and how one is set without losing its transition time.

use jiff::Timestamp;
pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// The object does what its spec says, as of the condition's `observedGeneration`.
pub const READY: &str = "Ready";
/// Work is under way. Present only while true (abnormal-true, as kstatus reads it).
pub const RECONCILING: &str = "Reconciling";
/// Nothing will change until somebody edits something. Present only while true.
pub const STALLED: &str = "Stalled";
/// A rollout is under way.
pub const PROGRESSING: &str = "Progressing";
/// Two Clusters lead to the same cluster. Present only while true.
pub const IDENTITY_CONFLICT: &str = "IdentityConflict";
/// The token of a cluster could not be renewed and ends soon, or has ended. Present only while true.
pub const CREDENTIALS_EXPIRING: &str = "CredentialsExpiring";
/// A plain folder was read without kustomize, because none is at hand. Present only while true.
pub const RENDERED_PLAIN: &str = "RenderedPlain";
/// All applied objects are healthy, as kstatus reads them. Present on a Sync with `wait`.
pub const HEALTHY: &str = "Healthy";
/// Objects that left the render are not deleted until a person approves. Present only while true.
pub const DELETION_HELD: &str = "DeletionHeld";
/// Too many clusters left a group at once; nothing follows from that until a person approves. Present only while true.
pub const MEMBERSHIP_HELD: &str = "MembershipHeld";
/// Several stages select the same cluster; it belongs to the first. Present only while true.
pub const STAGES_OVERLAP: &str = "StagesOverlap";
/// Clusters of a SyncGroup with stages that none of them selects. Present only while there are any.
pub const IMPLICIT_STAGE: &str = "ImplicitStage";
/// Somebody on the member keeps undoing what is applied. Present only while true.
pub const CONTESTED: &str = "Contested";

/// Longest message of a condition or problem, in bytes.
pub const MESSAGE_LIMIT: usize = 512;

/// The three values of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// It cannot be told now.
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

/// What a reconciler says about one condition; the transition time is not its business.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionUpdate {
    /// Its type, one of the constants of this module.
    pub type_: &'static str,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// One CamelCase word.
    pub reason: String,
    /// For people; cut at [`MESSAGE_LIMIT`].
    pub message: String,
}

/// The condition of one type, if present.
#[must_use]
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == type_)
}

/// Whether a condition is present and `True` for this generation or a later one.
#[must_use]
pub fn is_true(conditions: &[Condition], type_: &str, generation: i64) -> bool {
    find(conditions, type_)
        .is_some_and(|c| c.status == "True" && c.observed_generation.unwrap_or(0) >= generation)
}

/// The conditions after `updates`: what is not named is gone, what kept its status keeps its transition time.
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

/// At most `limit` bytes of `text`, cut between characters, with an ellipsis where something is missing.
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
