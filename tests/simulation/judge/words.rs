//! What people had said to a rollout by a moment: what the controller must have known, and what it may have known.

use jiff::Timestamp;
use starling_api::{ActionType, RolloutAction, RolloutApproval};

use super::history::Verb;
use super::hub::{Hub, Id, Track};

/// Something that was said, from when to when.
#[derive(Debug)]
pub(crate) struct Said<'h, T> {
    pub(crate) what: &'h T,
    pub(crate) made: (Timestamp, usize),
    gone: Option<(Timestamp, usize)>,
}

impl<T> Said<'_, T> {
    /// Whether it was there all the time of a span.
    pub(crate) fn stood(&self, from: Timestamp, to: Timestamp) -> bool {
        self.made.0 <= from && self.gone.is_none_or(|(gone, _)| gone > to)
    }

    /// Whether it was there at some moment from `from` on and before a write.
    pub(crate) fn may_be_known(&self, from: Timestamp, index: usize) -> bool {
        self.made.1 < index && self.gone.is_none_or(|(gone, _)| gone >= from)
    }
}

fn said<T>(track: &Track<T>) -> Option<Said<'_, T>> {
    let first = track.versions().first()?;
    let gone = track
        .versions()
        .iter()
        .find(|version| version.verb != Verb::Write);
    Some(Said {
        what: &first.object,
        made: (first.at, first.index),
        gone: gone.map(|version| (version.at, version.index)),
    })
}

/// All that was asked of a rollout, in the order in which it was.
pub(crate) fn actions<'h>(hub: &'h Hub, group: &Id, rollout: i64) -> Vec<Said<'h, RolloutAction>> {
    let ours = hub
        .actions
        .iter()
        .filter(|(id, _)| id.namespace == group.namespace);
    let said = ours.filter_map(|(_, track)| said(track));
    let mut all: Vec<_> = said
        .filter(|said| said.what.spec.group == group.name && said.what.spec.rollout == rollout)
        .collect();
    all.sort_by_key(|said| said.made.1);
    all
}

/// The approvals of a stage of a rollout.
pub(crate) fn approvals<'h>(
    hub: &'h Hub,
    group: &'h Id,
    rollout: i64,
    stage: &'h str,
) -> impl Iterator<Item = Said<'h, RolloutApproval>> {
    let ours = hub
        .approvals
        .iter()
        .filter(|(id, _)| id.namespace == group.namespace);
    let said = ours.filter_map(|(_, track)| said(track));
    said.filter(move |said| {
        let spec = &said.what.spec;
        spec.group == group.name && spec.rollout == rollout && spec.stage == stage
    })
}

/// Whether a rollout was paused all the time of a span.
pub(crate) fn is_paused(actions: &[Said<'_, RolloutAction>], from: Timestamp, to: Timestamp) -> bool {
    let of = |type_: ActionType| actions.iter().filter(move |said| said.what.spec.action == type_);
    let paused = of(ActionType::Pause).rfind(|said| said.stood(from, to));
    paused.is_some_and(|pause| {
        // A Resume takes back the pauses before it, as long as it is there.
        !of(ActionType::Resume).any(|resume| resume.made.1 > pause.made.1 && resume.made.0 <= to)
    })
}

/// Whether somebody had given the rollout up all the time of a span.
pub(crate) fn is_aborted(actions: &[Said<'_, RolloutAction>], from: Timestamp, to: Timestamp) -> bool {
    let mut aborts = actions
        .iter()
        .filter(|said| said.what.spec.action == ActionType::Abort);
    aborts.any(|said| said.stood(from, to))
}

/// Whether an action passes over a cluster, or a stage.
pub(crate) fn skips(action: &RolloutAction, cluster: Option<&str>, stage: Option<&str>) -> bool {
    let spec = &action.spec;
    let of_cluster = spec.cluster.is_some() && spec.cluster.as_deref() == cluster;
    let of_stage = spec.cluster.is_none() && spec.stage.is_some() && spec.stage.as_deref() == stage;
    spec.action == ActionType::Skip && (of_cluster || of_stage)
}
