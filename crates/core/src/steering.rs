//! What people asked of a rollout: from the objects that say so to what the engine is told.
//!
//! The objects are the state. Nothing is consumed: as long as an action is there it counts, in the order in which they
//! were made, and taking one away takes it back.

use jiff::Timestamp;
use kube::ResourceExt;
use starling_api::{ActionType, RolloutAction, RolloutApproval};
use std::collections::BTreeMap;

use crate::plan::{Steering, Word};

/// Which rollout is meant: of which group, by its number, and what it renders to.
#[derive(Clone, Copy, Debug)]
pub struct Of<'a> {
    /// Name of the SyncGroup.
    pub group: &'a str,
    /// When the group was made. Numbers of rollouts begin anew with it: an older word is about another group of that name.
    pub since: Timestamp,
    /// `status.rollout.id`.
    pub rollout: i64,
    /// Digest of what the release renders to; `None`: not known yet, so nothing is approved.
    pub digest: Option<&'a str>,
}

/// What people asked of one rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// What the planner is told.
    pub steering: Steering,
    /// Approved stages.
    pub approvals: BTreeMap<String, Word>,
    /// Go back: to a revision, or to what was good. The last one that was asked for.
    pub rollback: Option<(Option<String>, Word)>,
    /// Let go what is held.
    pub release: Option<Word>,
    /// Failures before these times are to be tried again: of the whole rollout (neither), of a stage, of a cluster.
    pub retries: Vec<Retry>,
}

/// What is to be tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Only this cluster.
    pub cluster: Option<String>,
    /// Only this stage, with its tasks.
    pub stage: Option<String>,
    /// Who asked, why and when.
    pub word: Word,
}

/// Folds what people said into what the engine is told.
#[must_use]
pub fn asked<'a>(
    of: Of<'_>,
    actions: impl IntoIterator<Item = &'a RolloutAction>,
    approvals: impl IntoIterator<Item = &'a RolloutApproval>,
) -> Asked {
    let mut asked = Asked::default();
    let actions = actions
        .into_iter()
        .filter(|action| action.spec.group == of.group && action.spec.rollout == of.rollout)
        .filter(|action| at(*action) >= of.since)
        .filter(|action| action.metadata.deletion_timestamp.is_none());
    for action in in_their_order(actions) {
        asked.take(action);
    }
    let valid = approvals.into_iter().filter(|approval| is_valid(of, approval));
    for approval in in_their_order(valid) {
        // Of several the first counts: it is the one that opened the gate.
        let stage = asked.approvals.entry(approval.spec.stage.clone());
        stage.or_insert_with(|| Word {
            by: approval.spec.by.clone(),
            reason: approval.spec.reason.clone(),
            at: at(approval),
        });
    }
    asked
}

/// Whether an approval is one of this very release in this very rollout: whatever is newer voids it.
#[must_use]
pub fn is_valid(of: Of<'_>, approval: &RolloutApproval) -> bool {
    approval.spec.group == of.group
        && approval.spec.rollout == of.rollout
        && at(approval) >= of.since
        && of.digest == Some(approval.spec.release_digest.as_str())
        && approval.metadata.deletion_timestamp.is_none()
}

fn at<K: kube::Resource>(object: &K) -> Timestamp {
    let made = object.meta().creation_timestamp.as_ref();
    made.map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}

/// API servers date objects in whole seconds; of two of one second the later one has the higher version (KEP-5504).
fn in_their_order<'a, K: kube::Resource>(objects: impl Iterator<Item = &'a K>) -> Vec<&'a K> {
    let mut objects: Vec<&K> = objects.collect();
    objects.sort_by_key(|object| (at(*object), version(*object), object.name_any()));
    objects
}

fn version<K: kube::Resource>(object: &K) -> u64 {
    let version = object.meta().resource_version.as_deref();
    version.and_then(|text| text.parse().ok()).unwrap_or_default()
}

impl Asked {
    fn take(&mut self, action: &RolloutAction) {
        let spec = &action.spec;
        let word = Word {
            by: spec.by.clone(),
            reason: spec.reason.clone(),
            at: at(action),
        };
        let steering = &mut self.steering;
        match spec.action {
            ActionType::Pause => steering.paused = Some(word),
            ActionType::Resume => steering.paused = None,
            ActionType::Abort => steering.aborted = Some(word),
            ActionType::Retry => self.retries.push(Retry {
                cluster: spec.cluster.clone(),
                stage: spec.stage.clone(),
                word,
            }),
            ActionType::Skip => match (&spec.cluster, &spec.stage) {
                (Some(cluster), _) => {
                    steering.skipped.insert(cluster.clone(), word);
                }
                (None, Some(stage)) => {
                    steering.skipped_stages.insert(stage.clone(), word);
                }
                // The schema refuses it.
                (None, None) => {}
            },
            ActionType::Promote => {
                if let Some(stage) = &spec.stage {
                    steering.promoted.insert(stage.clone(), word);
                }
            }
            ActionType::Rollback => self.rollback = Some((spec.revision.clone(), word)),
            ActionType::Release => self.release = Some(word),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use starling_api::{RolloutActionSpec, RolloutApprovalSpec};

    const OF: Of<'_> = Of {
        group: "shop",
        since: Timestamp::UNIX_EPOCH,
        rollout: 7,
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
    fn actions_count_in_the_order_in_which_they_were_made() {
        let (pause, resume) = (
            action(1, ActionType::Pause, None, None),
            action(2, ActionType::Resume, None, None),
        );
        let again = action(3, ActionType::Pause, None, None);
        assert_eq!(asked(OF, [&resume, &pause], []).steering.paused, None);
        assert_eq!(
            asked(OF, [&again, &resume, &pause], [])
                .steering
                .paused
                .unwrap()
                .at,
            t(3)
        );
        assert_eq!(asked(OF, [&pause], []).steering.paused.unwrap().by, "jane");
    }

    /// A group that was deleted and made anew counts its rollouts from one again.
    #[test]
    fn words_to_a_former_group_of_that_name_count_for_nothing() {
        let (pause, good) = (
            action(5, ActionType::Pause, None, None),
            approval(5, 7, "sha256:a"),
        );
        for (since, counts) in [(4, true), (5, true), (6, false)] {
            let of = Of {
                since: t(since),
                ..OF
            };
            let asked = asked(of, [&pause], [&good]);
            assert_eq!(asked.steering.paused.is_some(), counts, "{since}");
            assert_eq!(asked.approvals.contains_key("canary"), counts, "{since}");
        }
    }

    #[test]
    fn of_one_second_the_one_that_was_made_later_counts() {
        let of = |version: &str, revision: &str| {
            let mut made = action(1, ActionType::Rollback, None, None);
            made.metadata.name = Some(format!("a-{revision}"));
            made.metadata.resource_version = Some(version.into());
            made.spec.revision = Some(revision.into());
            made
        };
        // Nine comes before ten, whatever they are called.
        let (typo, meant) = (of("9", "v9"), of("10", "v1"));
        for both in [[&typo, &meant], [&meant, &typo]] {
            let (revision, _) = asked(OF, both, []).rollback.unwrap();
            assert_eq!(revision.as_deref(), Some("v1"));
        }
    }

    #[test]
    fn each_action_says_what_it_says() {
        let actions = [
            action(1, ActionType::Skip, Some("eu-7"), None),
            action(2, ActionType::Skip, None, Some("eu")),
            action(3, ActionType::Promote, None, Some("canary")),
            action(4, ActionType::Abort, None, None),
            action(5, ActionType::Retry, Some("eu-8"), None),
            action(6, ActionType::Rollback, None, None),
            action(7, ActionType::Release, None, None),
        ];
        let asked = asked(OF, &actions, []);
        let keys = |words: &BTreeMap<String, Word>| words.keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&asked.steering.skipped), ["eu-7"]);
        assert_eq!(keys(&asked.steering.skipped_stages), ["eu"]);
        assert_eq!(keys(&asked.steering.promoted), ["canary"]);
        assert_eq!(asked.steering.aborted.unwrap().at, t(4));
        assert_eq!(asked.retries.len(), 1);
        assert_eq!(asked.retries[0].cluster.as_deref(), Some("eu-8"));
        assert_eq!(asked.rollback.unwrap().0, None);
        assert_eq!(asked.release.unwrap().at, t(7));
    }

    #[test]
    fn what_was_asked_of_another_rollout_or_is_taken_back_does_not_count() {
        let mut other = action(1, ActionType::Pause, None, None);
        other.spec.rollout = 6;
        let mut another = action(1, ActionType::Pause, None, None);
        another.spec.group = "other".into();
        let mut going = action(1, ActionType::Pause, None, None);
        going.metadata.deletion_timestamp = Some(Time(t(2)));
        assert_eq!(asked(OF, [&other, &another, &going], []), Asked::default());
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
            assert_eq!(is_valid(OF, approval), valid);
            assert_eq!(asked(OF, [], [approval]).approvals.contains_key("canary"), valid);
        }
        assert!(
            !is_valid(Of { digest: None, ..OF }, &good),
            "nothing is approved before it is known what it is"
        );
        let earlier = approval(4, 7, "sha256:a");
        assert_eq!(asked(OF, [], [&good, &earlier]).approvals["canary"].by, "user-4");
    }

    #[test]
    fn of_approvals_of_one_second_the_one_that_was_made_earlier_opened_the_gate() {
        let of = |version: &str, by: &str| {
            let mut made = approval(5, 7, "sha256:a");
            made.metadata.resource_version = Some(version.into());
            made.spec.by = by.into();
            made
        };
        let (first, second) = (of("9", "jane"), of("10", "joe"));
        for both in [[&first, &second], [&second, &first]] {
            assert_eq!(asked(OF, [], both).approvals["canary"].by, "jane");
        }
    }
}
