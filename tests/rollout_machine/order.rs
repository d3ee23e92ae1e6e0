//! Controllers with missing effects or a wrong order of effects, each of which an invariant must detect.

use starling_api::SyncGroupStatus;
use starling_core::rollout::{Action, Effect, Outcome, StatusWrite};

/// The order of effects: that of the machine, or one that violates an invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Correct,
    SyncBeforeIntent,
    /// The times of stages are written to the status after the admissions.
    StageAfterAdmission,
    /// The journal entry is written after its effects.
    JournalLast,
    /// A failed write is treated as not done, unless a watch delivers it.
    NotReadAgain,
    /// The status is written once more at the end.
    StatusTwice,
    /// Releases are deleted before the status stops naming them.
    GarbageFirst,
    /// A success is recorded as superseded.
    SuccessForgotten,
    /// The admission of a removed Sync is not ended.
    RemovalNotSettled,
    /// A Sync is removed because a cache lacks its cluster.
    RemovalNotConfirmed,
    /// Clusters that left together are removed without an approval.
    MembershipNotHeld,
    /// No release is ever stored.
    NothingStored,
    /// Gates pass without being evaluated.
    GatesInvented,
    /// Actions and approvals are not marked with their rollout.
    NothingMarked,
}

impl Order {
    /// Returns the effects of a pass in the order of this controller.
    pub(crate) fn of(self, effects: Vec<Effect>) -> Vec<Effect> {
        match self {
            Self::Correct
            | Self::NotReadAgain
            | Self::RemovalNotConfirmed
            | Self::RemovalNotSettled
            | Self::GatesInvented
            | Self::MembershipNotHeld => effects,
            Self::NothingStored => effects
                .into_iter()
                .filter(|effect| !matches!(effect.action, Action::StoreRelease { .. }))
                .collect(),
            Self::NothingMarked => effects
                .into_iter()
                .filter(|effect| !matches!(effect.action, Action::WriteMarks))
                .collect(),
            Self::SyncBeforeIntent => last(effects, |action| matches!(action, Action::RecordAdmissions(_))),
            Self::JournalLast => last(effects, |action| matches!(action, Action::AppendJournal { .. })),
            Self::StageAfterAdmission => stages_last(effects),
            Self::StatusTwice => status_twice(effects),
            Self::GarbageFirst => {
                let is_garbage = |effect: &Effect| matches!(effect.action, Action::CollectGarbage { .. });
                let (garbage, others): (Vec<_>, Vec<_>) = effects.into_iter().partition(is_garbage);
                garbage.into_iter().chain(others).collect()
            }
            Self::SuccessForgotten => each(effects, |action| match action {
                Action::RecordRollout(intent) => {
                    intent.previous = intent.previous.map(|_| Outcome::Superseded);
                }
                Action::EndRollout { outcome, .. } => *outcome = Outcome::Superseded,
                _ => {}
            }),
        }
    }
}

fn each(mut effects: Vec<Effect>, change: impl Fn(&mut Action)) -> Vec<Effect> {
    effects.iter_mut().for_each(|effect| change(&mut effect.action));
    effects
}

fn last(effects: Vec<Effect>, is_late: impl Fn(&Action) -> bool) -> Vec<Effect> {
    let (late, others): (Vec<_>, Vec<_>) = effects.into_iter().partition(|effect| is_late(&effect.action));
    others.into_iter().chain(late).collect()
}

/// The first status of a pass lacks the stages, and a second one has them.
fn stages_last(mut effects: Vec<Effect>) -> Vec<Effect> {
    let Some(whole) = written(&effects) else {
        return effects;
    };
    for effect in &mut effects {
        if let Action::WriteStatus(write) = &mut effect.action
            && let Some(rollout) = &mut write.status.rollout
        {
            rollout.stages.clear();
        }
    }
    and_status(effects, whole)
}

fn status_twice(effects: Vec<Effect>) -> Vec<Effect> {
    match written(&effects) {
        Some(status) => and_status(effects, status),
        None => effects,
    }
}

fn written(effects: &[Effect]) -> Option<SyncGroupStatus> {
    effects.iter().find_map(|effect| match &effect.action {
        Action::WriteStatus(write) => Some(write.status.clone()),
        _ => None,
    })
}

fn and_status(mut effects: Vec<Effect>, status: SyncGroupStatus) -> Vec<Effect> {
    let epoch = effects.first().map(|effect| effect.epoch).unwrap_or_default();
    let action = Action::WriteStatus(Box::new(StatusWrite {
        status,
        durable: None,
    }));
    effects.push(Effect { epoch, action });
    effects
}
