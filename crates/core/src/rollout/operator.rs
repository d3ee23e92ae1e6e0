//! Actions and approvals of operators: from RolloutActions and RolloutApprovals to the input of the machine.
//!
//! The objects are the state. Nothing is consumed: an action applies as long as its object exists, in the order in
//! which the objects were created. To delete the object undoes the action.

use jiff::Timestamp;
use kube_core::ResourceExt;
use starling_api::{
    ActionType, COUNTS_FOR, COUNTS_FOR_NONE, FIRST_CREATED_AT, RolloutAction, RolloutApproval, UNVERIFIED_BY,
};
use std::collections::BTreeMap;

use crate::ids::{ClusterName, RolloutNumber};
use crate::plan::{Attribution, OperatorInput, Retry};
use crate::resource_version::Numbered;

/// The rollout that actions and approvals must name.
#[derive(Clone, Copy, Debug)]
pub struct RolloutSubject<'a> {
    /// Name of the SyncGroup.
    pub group: &'a str,
    /// The creation time of the group ([`crate::identity::created_at`]). Its rollouts are numbered from 1, so an older
    /// action belongs to a former group of that name.
    pub since: Timestamp,
    /// `status.rollout.id`.
    pub rollout: RolloutNumber,
    /// `status.rollout.startTime`. A group that was set back uses numbers again; no two rollouts start at one time.
    pub started_at: &'a str,
    /// The release digest; `None`: it is not known yet, so no approval is valid.
    pub digest: Option<&'a str>,
}

/// The actions and approvals of one rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperatorActions {
    /// The input of the planner.
    pub input: OperatorInput,
    /// Approved stages.
    pub approvals: BTreeMap<String, Attribution>,
    /// The last request to roll back.
    pub rollback: Option<RollbackRequest>,
    /// The last request to start the held release.
    pub release: Option<Attribution>,
}

/// An operator's request to roll back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RollbackRequest {
    /// The revision to roll back to; `None`: the last known good release.
    pub revision: Option<String>,
    /// The author, the reason and the time.
    pub attribution: Attribution,
}

/// Folds actions and approvals into the input of the machine.
#[must_use]
pub fn operator_actions<'a>(
    of: RolloutSubject<'_>,
    actions: impl IntoIterator<Item = &'a RolloutAction>,
    approvals: impl IntoIterator<Item = &'a RolloutApproval>,
) -> OperatorActions {
    let mut requested = OperatorActions::default();
    let actions = actions
        .into_iter()
        .filter(|action| {
            action.spec.group == of.group && RolloutNumber::new(action.spec.rollout) == of.rollout
        })
        .filter(|action| counts_for(of, *action))
        .filter(|action| action.metadata.deletion_timestamp.is_none());
    for action in in_order(actions) {
        requested.take(action);
    }
    let valid = approvals.into_iter().filter(|approval| is_valid(of, approval));
    for approval in in_order(valid) {
        // Of several approvals, the first one counts: it opened the gate.
        let stage = requested.approvals.entry(approval.spec.stage.clone());
        stage.or_insert_with(|| Attribution {
            by: attributed(&approval.spec.by, approval),
            reason: approval.spec.reason.clone(),
            at: at(approval),
        });
    }
    requested
}

/// Whether an approval is for this release in this rollout. A newer release or rollout makes it void.
#[must_use]
pub fn is_valid(of: RolloutSubject<'_>, approval: &RolloutApproval) -> bool {
    approval.spec.group == of.group
        && RolloutNumber::new(approval.spec.rollout) == of.rollout
        && counts_for(of, approval)
        && of.digest == Some(approval.spec.release_digest.as_str())
        && approval.metadata.deletion_timestamp.is_none()
}

/// Whether an object of this group and number was written for this rollout. Once the controller has marked the object,
/// the mark decides; until then its creation time does.
fn counts_for<K: kube_core::Resource>(of: RolloutSubject<'_>, object: &K) -> bool {
    match object.annotations().get(COUNTS_FOR) {
        Some(started_at) => started_at == of.started_at,
        None => at(object) >= of.since,
    }
}

/// Returns the annotations that mark an object of the group as written for this rollout, or for another one of its
/// number; `None`: it is marked, or its rollout is yet to come. The creation time changes with a restore to another
/// API server, and the numbers of rollouts may begin again; the marks do not change.
#[must_use]
pub fn marks<K: kube_core::Resource>(
    of: RolloutSubject<'_>,
    rollout: RolloutNumber,
    object: &K,
) -> Option<BTreeMap<String, String>> {
    if rollout > of.rollout || of.started_at.is_empty() || object.annotations().contains_key(COUNTS_FOR) {
        return None;
    }
    let counts = rollout == of.rollout && counts_for(of, object);
    let started_at = if counts { of.started_at } else { COUNTS_FOR_NONE };
    Some(BTreeMap::from([
        (COUNTS_FOR.to_owned(), started_at.to_owned()),
        (FIRST_CREATED_AT.to_owned(), at(object).to_string()),
    ]))
}

/// Returns the time at which an action or approval was created: a restore to another API server keeps that of an object
/// that the controller had marked.
#[must_use]
pub fn at<K: kube_core::Resource>(object: &K) -> Timestamp {
    let marked = object.annotations().get(FIRST_CREATED_AT);
    let made = object.meta().creation_timestamp.as_ref();
    marked
        .and_then(|time| time.parse().ok())
        .unwrap_or_else(|| made.map_or(Timestamp::UNIX_EPOCH, |time| time.0))
}

/// Returns the user who created an object, as far as that is known. `spec.by` is what an admission policy has verified,
/// or what anybody wrote.
#[must_use]
pub fn attributed<K: kube_core::Resource>(by: &str, object: &K) -> String {
    if object.annotations().contains_key(UNVERIFIED_BY) {
        format!("{by} (unverified)")
    } else {
        by.to_owned()
    }
}

/// Sorts objects by creation. API servers date objects in whole seconds. Of two objects of one second, the later one
/// has the higher resource version. If the versions cannot be ordered, the names decide, so that every pass decides the
/// same.
fn in_order<'a, K: kube_core::Resource>(objects: impl Iterator<Item = &'a K>) -> Vec<&'a K> {
    let mut objects: Vec<&K> = objects.collect();
    objects.sort_by(|one, other| {
        let key = |object: &'a K| (at(object), Numbered::parse(version(object)));
        key(one)
            .cmp(&key(other))
            .then_with(|| one.name_any().cmp(&other.name_any()))
    });
    objects
}

fn version<K: kube_core::Resource>(object: &K) -> &str {
    object.meta().resource_version.as_deref().unwrap_or_default()
}

impl OperatorActions {
    fn take(&mut self, action: &RolloutAction) {
        let spec = &action.spec;
        let attribution = Attribution {
            by: attributed(&spec.by, action),
            reason: spec.reason.clone(),
            at: at(action),
        };
        let input = &mut self.input;
        match spec.action {
            ActionType::Pause => input.paused = Some(attribution),
            ActionType::Resume => input.paused = None,
            ActionType::Abort => input.aborted = Some(attribution),
            ActionType::Retry => input.retries.push(Retry {
                cluster: spec.cluster.as_ref().map(ClusterName::from),
                stage: spec.stage.clone(),
                attribution,
            }),
            ActionType::Skip => match (&spec.cluster, &spec.stage) {
                (Some(cluster), _) => {
                    input.skipped.insert(cluster.into(), attribution);
                }
                (None, Some(stage)) => {
                    input.skipped_stages.insert(stage.clone(), attribution);
                }
                // The schema rejects a skip without a cluster and a stage.
                (None, None) => {}
            },
            ActionType::Promote => {
                if let Some(stage) = &spec.stage {
                    input.promoted.insert(stage.clone(), attribution);
                }
            }
            ActionType::Rollback => {
                self.rollback = Some(RollbackRequest {
                    revision: spec.revision.clone(),
                    attribution,
                });
            }
            ActionType::Release => self.release = Some(attribution),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use starling_api::{RolloutActionSpec, RolloutApprovalSpec};

    const SUBJECT: RolloutSubject<'_> = RolloutSubject {
        group: "shop",
        since: Timestamp::UNIX_EPOCH,
        rollout: RolloutNumber::new(7),
        started_at: "2026-01-01T00:00:00.5Z",
        digest: Some("sha256:a"),
    };

    fn t(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn action(seconds: i64, action: ActionType, cluster: Option<&str>, stage: Option<&str>) -> RolloutAction {
        let mut made = RolloutAction::new(
            &format!("a-{seconds}"),
            RolloutActionSpec {
                group: "shop".into(),
                rollout: 7,
                action,
                cluster: cluster.map(str::to_owned),
                stage: stage.map(str::to_owned),
                revision: None,
                by: "jane".into(),
                reason: "why not".into(),
            },
        );
        made.metadata.creation_timestamp = Some(Time(t(seconds)));
        made
    }

    fn approval(seconds: i64, rollout: i64, digest: &str) -> RolloutApproval {
        let mut made = RolloutApproval::new(
            &format!("p-{seconds}"),
            RolloutApprovalSpec {
                group: "shop".into(),
                rollout,
                stage: "canary".into(),
                release_digest: digest.into(),
                by: format!("user-{seconds}"),
                reason: String::new(),
            },
        );
        made.metadata.creation_timestamp = Some(Time(t(seconds)));
        made
    }

    #[test]
    fn actions_apply_in_the_order_of_their_creation() {
        let (pause, resume) = (
            action(1, ActionType::Pause, None, None),
            action(2, ActionType::Resume, None, None),
        );
        let again = action(3, ActionType::Pause, None, None);
        assert_eq!(
            operator_actions(SUBJECT, [&resume, &pause], []).input.paused,
            None
        );
        assert_eq!(
            operator_actions(SUBJECT, [&again, &resume, &pause], [])
                .input
                .paused
                .unwrap()
                .at,
            t(3)
        );
        assert_eq!(
            operator_actions(SUBJECT, [&pause], []).input.paused.unwrap().by,
            "jane"
        );
    }

    /// A group that was deleted and created again numbers its rollouts from 1.
    #[test]
    fn actions_for_a_former_group_of_that_name_have_no_effect() {
        let (pause, good) = (
            action(5, ActionType::Pause, None, None),
            approval(5, 7, "sha256:a"),
        );
        for (since, counts) in [(4, true), (5, true), (6, false)] {
            let of = RolloutSubject {
                since: t(since),
                ..SUBJECT
            };
            let requested = operator_actions(of, [&pause], [&good]);
            assert_eq!(requested.input.paused.is_some(), counts, "{since}");
            assert_eq!(requested.approvals.contains_key("canary"), counts, "{since}");
        }
    }

    fn marked(mut action: RolloutAction, of: RolloutSubject<'_>) -> RolloutAction {
        let marks = marks(of, RolloutNumber::new(action.spec.rollout), &action).unwrap();
        action.metadata.annotations = Some(marks);
        action
    }

    /// A restore creates actions anew: in any order, before or after their group.
    #[test]
    fn a_restore_to_another_api_server_keeps_actions_and_their_order() {
        let restored = |mut action: RolloutAction, seconds: i64| {
            action.metadata.creation_timestamp = Some(Time(t(seconds)));
            action
        };
        let pause = restored(marked(action(5, ActionType::Pause, None, None), SUBJECT), 101);
        let resume = restored(marked(action(6, ActionType::Resume, None, None), SUBJECT), 100);
        let retry = restored(
            marked(action(7, ActionType::Retry, Some("eu-8"), None), SUBJECT),
            102,
        );
        let of = RolloutSubject {
            since: t(110),
            ..SUBJECT
        };
        let requested = operator_actions(of, [&pause, &resume, &retry], []);
        assert_eq!(requested.input.paused, None, "resumed after the pause");
        assert_eq!(
            requested.input.retries[0].attribution.at,
            t(7),
            "the retry that was answered, and no new one"
        );
        assert_eq!(operator_actions(of, [&pause], []).input.paused.unwrap().at, t(5));
    }

    /// A group that was set back, or that is new, uses numbers again.
    #[test]
    fn actions_for_another_rollout_of_this_number_have_no_effect() {
        let pause = marked(action(5, ActionType::Pause, None, None), SUBJECT);
        let mut good = approval(5, 7, "sha256:a");
        good.metadata.annotations = marks(SUBJECT, SUBJECT.rollout, &good);
        let again = RolloutSubject {
            started_at: "2026-01-02T00:00:00.5Z",
            ..SUBJECT
        };
        assert!(
            operator_actions(SUBJECT, [&pause], [&good])
                .input
                .paused
                .is_some()
        );
        assert!(is_valid(SUBJECT, &good));
        assert_eq!(
            operator_actions(again, [&pause], [&good]),
            OperatorActions::default()
        );
    }

    /// Without the mark, a restore would make an action of a former group younger than the group.
    #[test]
    fn what_does_not_count_is_marked_too() {
        let of = RolloutSubject {
            since: t(6),
            ..SUBJECT
        };
        let former = marked(action(5, ActionType::Pause, None, None), of);
        let mut past = action(7, ActionType::Pause, None, None);
        past.spec.rollout = 6;
        for mut old in [former, marked(past, of)] {
            old.metadata.creation_timestamp = Some(Time(t(100)));
            old.spec.rollout = 7;
            assert_eq!(operator_actions(of, [&old], []), OperatorActions::default());
        }
        let mut coming = action(7, ActionType::Pause, None, None);
        coming.spec.rollout = 8;
        assert_eq!(
            marks(of, RolloutNumber::new(8), &coming),
            None,
            "its rollout has not started"
        );
        let none = RolloutSubject {
            started_at: "",
            ..SUBJECT
        };
        assert_eq!(
            marks(none, none.rollout, &action(7, ActionType::Pause, None, None)),
            None
        );
    }

    #[test]
    fn of_two_actions_of_one_second_the_later_one_counts() {
        let of = |version: &str, revision: &str| {
            let mut made = action(1, ActionType::Rollback, None, None);
            made.metadata.name = Some(format!("a-{revision}"));
            made.metadata.resource_version = Some(version.into());
            made.spec.revision = Some(revision.into());
            made
        };
        for (first, second) in [
            // Nine comes before ten, whatever their names.
            ("9", "10"),
            ("18446744073709551615", "18446744073709551616"),
            ("18446744073709551616", "18446744073709551617"),
        ] {
            let (typo, meant) = (of(first, "v9"), of(second, "v1"));
            for both in [[&typo, &meant], [&meant, &typo]] {
                let RollbackRequest { revision, .. } = operator_actions(SUBJECT, both, []).rollback.unwrap();
                assert_eq!(revision.as_deref(), Some("v1"), "{first} {second}");
            }
        }
    }

    #[test]
    fn without_an_order_of_versions_the_names_decide() {
        let of = |version: &str, revision: &str| {
            let mut made = action(1, ActionType::Rollback, None, None);
            made.metadata.name = Some(format!("a-{revision}"));
            made.metadata.resource_version = Some(version.into());
            made.spec.revision = Some(revision.into());
            made
        };
        let (first, second) = (of("x9", "v1"), of("x1", "v9"));
        for both in [[&first, &second], [&second, &first]] {
            let RollbackRequest { revision, .. } = operator_actions(SUBJECT, both, []).rollback.unwrap();
            assert_eq!(revision.as_deref(), Some("v9"));
        }
    }

    #[test]
    fn each_action_has_its_effect() {
        let actions = [
            action(1, ActionType::Skip, Some("eu-7"), None),
            action(2, ActionType::Skip, None, Some("eu")),
            action(3, ActionType::Promote, None, Some("canary")),
            action(4, ActionType::Abort, None, None),
            action(5, ActionType::Retry, Some("eu-8"), None),
            action(6, ActionType::Rollback, None, None),
            action(7, ActionType::Release, None, None),
        ];
        let requested = operator_actions(SUBJECT, &actions, []);
        let skipped: Vec<_> = requested.input.skipped.keys().collect();
        assert_eq!(skipped, ["eu-7"]);
        let keys = |by_name: &BTreeMap<String, Attribution>| by_name.keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&requested.input.skipped_stages), ["eu"]);
        assert_eq!(keys(&requested.input.promoted), ["canary"]);
        assert_eq!(requested.input.aborted.unwrap().at, t(4));
        assert_eq!(requested.input.retries.len(), 1);
        assert_eq!(requested.input.retries[0].cluster.as_deref(), Some("eu-8"));
        assert_eq!(requested.rollback.unwrap().revision, None);
        assert_eq!(requested.release.unwrap().at, t(7));
    }

    #[test]
    fn actions_on_another_rollout_or_being_deleted_do_not_count() {
        let mut other = action(1, ActionType::Pause, None, None);
        other.spec.rollout = 6;
        let mut another = action(1, ActionType::Pause, None, None);
        another.spec.group = "other".into();
        let mut going = action(1, ActionType::Pause, None, None);
        going.metadata.deletion_timestamp = Some(Time(t(2)));
        assert_eq!(
            operator_actions(SUBJECT, [&other, &another, &going], []),
            OperatorActions::default()
        );
    }

    #[test]
    fn an_approval_is_for_this_release_in_this_rollout() {
        let good = approval(5, 7, "sha256:a");
        for (approval, valid) in [
            (&good, true),
            (&approval(1, 6, "sha256:a"), false),
            (&approval(1, 8, "sha256:a"), false),
            (&approval(1, 7, "sha256:b"), false),
        ] {
            assert_eq!(is_valid(SUBJECT, approval), valid);
            assert_eq!(
                operator_actions(SUBJECT, [], [approval])
                    .approvals
                    .contains_key("canary"),
                valid
            );
        }
        assert!(
            !is_valid(
                RolloutSubject {
                    digest: None,
                    ..SUBJECT
                },
                &good
            ),
            "nothing is approved before its digest is known"
        );
        let earlier = approval(4, 7, "sha256:a");
        assert_eq!(
            operator_actions(SUBJECT, [], [&good, &earlier]).approvals["canary"].by,
            "user-4"
        );
    }

    #[test]
    fn of_two_approvals_of_one_second_the_earlier_one_opened_the_gate() {
        let of = |version: &str, by: &str| {
            let mut made = approval(5, 7, "sha256:a");
            made.metadata.resource_version = Some(version.into());
            made.spec.by = by.into();
            made
        };
        let (first, second) = (of("9", "jane"), of("10", "joe"));
        for both in [[&first, &second], [&second, &first]] {
            assert_eq!(operator_actions(SUBJECT, [], both).approvals["canary"].by, "jane");
        }
    }
}
