//! Operator actions and approvals of a rollout, with the time spans in which the controller must have known them or may
//! have known them.

use jiff::Timestamp;
use starling_api::{ActionType, RolloutAction, RolloutApproval};

use super::history::Verb;
use super::hub::{Hub, Id, Track};

/// An action or approval with the span in which it existed.
#[derive(Debug)]
pub(crate) struct ActionSpan<'h, T> {
    pub(crate) object: &'h T,
    pub(crate) created: (Timestamp, usize),
    deleted: Option<(Timestamp, usize)>,
}

impl<T> ActionSpan<'_, T> {
    /// Whether it existed during a whole span.
    pub(crate) fn existed(&self, from: Timestamp, to: Timestamp) -> bool {
        self.created.0 <= from && self.deleted.is_none_or(|(deleted, _)| deleted > to)
    }

    /// Whether it existed at some time from `from` on and before a write.
    pub(crate) fn may_be_known(&self, from: Timestamp, index: usize) -> bool {
        self.created.1 < index && self.deleted.is_none_or(|(deleted, _)| deleted >= from)
    }
}

fn span<T>(track: &Track<T>) -> Option<ActionSpan<'_, T>> {
    let first = track.versions().first()?;
    let deleted = track
        .versions()
        .iter()
        .find(|version| version.verb != Verb::Write);
    Some(ActionSpan {
        object: &first.object,
        created: (first.at, first.index),
        deleted: deleted.map(|version| (version.at, version.index)),
    })
}

/// Returns the actions of a rollout, in the order of their creation.
pub(crate) fn actions<'h>(hub: &'h Hub, group: &Id, rollout: i64) -> Vec<ActionSpan<'h, RolloutAction>> {
    let in_namespace = hub
        .actions
        .iter()
        .filter(|(id, _)| id.namespace == group.namespace);
    let span = in_namespace.filter_map(|(_, track)| span(track));
    let mut all: Vec<_> = span
        .filter(|span| span.object.spec.group == group.name && span.object.spec.rollout == rollout)
        .collect();
    all.sort_by_key(|span| span.created.1);
    all
}

/// Returns the approvals of a stage of a rollout.
pub(crate) fn approvals<'h>(
    hub: &'h Hub,
    group: &'h Id,
    rollout: i64,
    stage: &'h str,
) -> impl Iterator<Item = ActionSpan<'h, RolloutApproval>> {
    let in_namespace = hub
        .approvals
        .iter()
        .filter(|(id, _)| id.namespace == group.namespace);
    let span = in_namespace.filter_map(|(_, track)| span(track));
    span.filter(move |span| {
        let spec = &span.object.spec;
        spec.group == group.name && spec.rollout == rollout && spec.stage == stage
    })
}

/// Whether a rollout was paused during a whole span.
pub(crate) fn is_paused(actions: &[ActionSpan<'_, RolloutAction>], from: Timestamp, to: Timestamp) -> bool {
    let of = |type_: ActionType| {
        actions
            .iter()
            .filter(move |span| span.object.spec.action == type_)
    };
    let paused = of(ActionType::Pause).rfind(|span| span.existed(from, to));
    paused.is_some_and(|pause| {
        // A Resume cancels the pauses before it, as long as it exists.
        !of(ActionType::Resume).any(|resume| resume.created.1 > pause.created.1 && resume.created.0 <= to)
    })
}

/// Whether the rollout was aborted during a whole span.
pub(crate) fn is_aborted(actions: &[ActionSpan<'_, RolloutAction>], from: Timestamp, to: Timestamp) -> bool {
    let mut aborts = actions
        .iter()
        .filter(|span| span.object.spec.action == ActionType::Abort);
    aborts.any(|span| span.existed(from, to))
}

/// Whether an action skips a cluster, or a stage.
pub(crate) fn skips(action: &RolloutAction, cluster: Option<&str>, stage: Option<&str>) -> bool {
    let spec = &action.spec;
    let of_cluster = spec.cluster.is_some() && spec.cluster.as_deref() == cluster;
    let of_stage = spec.cluster.is_none() && spec.stage.is_some() && spec.stage.as_deref() == stage;
    spec.action == ActionType::Skip && (of_cluster || of_stage)
}
