//! Which release rolls next: what was rolled back from does not come back by itself, and the way back leads to what was good.

use jiff::Timestamp;
use starling_api::{
    ActionType, ClusterCounts, OnFailure, RollbackType, RolloutAction, RolloutDirection, RolloutPhase,
    RolloutStatus, SyncGroup,
};

use crate::judge::hub::{Id, Track, Version, earlier};
use crate::judge::violation::{Rule, Violation};
use crate::judge::words::actions;
use crate::judge::world::World;

/// A rollout that goes back is asked for: by a person, in the rollout before it, or by `onFailure: Rollback`. It goes to the last
/// release that had succeeded on the group, unless the person named another one, and the way that `rollback` says. A release
/// that is held does not roll forward unless a person let it go in the rollout before.
///
/// Evidence: the first status of each rollout against those before it, and the words that were there before. What had succeeded is
/// what a status called that while every cluster that could be reached had it, whatever `lastKnownGood` says.
pub(super) fn rollouts_go_where_they_may(world: &World<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (id, track) in &world.hub.groups {
        let mut before: Option<(&RolloutStatus, &Version<SyncGroup>)> = None;
        for version in track.versions() {
            let status = version.object.status.as_ref();
            let Some(rollout) = status.and_then(|status| status.rollout.as_ref()) else {
                continue;
            };
            if before.is_some_and(|(before, _)| before.id >= rollout.id) {
                // The same, or a status that was written over by an older one.
                if before.is_some_and(|(before, _)| before.id == rollout.id) {
                    before = Some((rollout, version));
                }
                continue;
            }
            if let Some((last, of)) = before {
                let beginning = Beginning {
                    world,
                    id,
                    track,
                    version,
                    rollout,
                    last,
                    of,
                };
                found.extend(beginning.violations());
            }
            before = Some((rollout, version));
        }
    }
    found
}

/// A rollout that begins after another one.
struct Beginning<'w> {
    world: &'w World<'w>,
    id: &'w Id,
    track: &'w Track<SyncGroup>,
    version: &'w Version<SyncGroup>,
    rollout: &'w RolloutStatus,
    last: &'w RolloutStatus,
    of: &'w Version<SyncGroup>,
}

impl Beginning<'_> {
    fn from(&self) -> Timestamp {
        earlier(self.version.at, self.world.history.lag)
    }

    fn violations(&self) -> Vec<Violation> {
        let wrong = match self.rollout.direction {
            RolloutDirection::Forward => vec![self.comes_back()],
            RolloutDirection::Back | RolloutDirection::BackAtOnce => {
                vec![
                    self.nobody_asked(),
                    self.goes_elsewhere(),
                    self.goes_another_way(),
                ]
            }
        };
        let wrong = wrong.into_iter().flatten();
        wrong
            .map(|(rule, words)| Violation {
                rule,
                at: self.version.at,
                cluster: None,
                words: format!("rollout {}: {words}", self.rollout.id),
            })
            .collect()
    }

    fn was_said(&self, is: impl Fn(&RolloutAction) -> bool) -> bool {
        let words = actions(self.world.hub, self.id, self.last.id);
        let mut known = words
            .iter()
            .filter(|said| said.may_be_known(self.from(), self.version.index));
        known.any(|said| is(said.what))
    }

    fn comes_back(&self) -> Option<(Rule, String)> {
        let held = self.of.object.status.as_ref()?.held_release.as_ref()?;
        let let_go = self.was_said(|action| action.spec.action == ActionType::Release);
        (held.release == self.rollout.release && !let_go).then(|| {
            let words = format!(
                "{} rolls again, which is held, and nobody let it go",
                held.release
            );
            (Rule::Held, words)
        })
    }

    fn nobody_asked(&self) -> Option<(Rule, String)> {
        let mut versions = self.track.during(self.from(), self.version.at);
        let by_itself =
            versions.any(|version| version.object.spec.rollout_strategy.on_failure == OnFailure::Rollback);
        let asked = by_itself || self.was_said(|action| action.spec.action == ActionType::Rollback);
        (!asked).then(|| (Rule::Back, "it goes back, and nobody asked for that".to_owned()))
    }

    fn goes_elsewhere(&self) -> Option<(Rule, String)> {
        let named = self
            .was_said(|action| action.spec.action == ActionType::Rollback && action.spec.revision.is_some());
        let good = self.good();
        (!named && good != Some(self.rollout.release.as_str())).then(|| {
            let words = format!(
                "it goes back to {}, and what had succeeded last is {good:?}",
                self.rollout.release
            );
            (Rule::Back, words)
        })
    }

    /// The release that had succeeded last.
    fn good(&self) -> Option<&str> {
        let versions = self.track.versions().iter();
        let known = versions.filter(|version| version.index < self.version.index);
        let status = known.filter_map(|version| version.object.status.as_ref());
        status
            .filter(|status| is_on_the_whole_group(status.clusters))
            .filter_map(|status| status.rollout.as_ref())
            .rfind(|rollout| rollout.phase == RolloutPhase::Succeeded)
            .map(|rollout| rollout.release.as_str())
    }

    fn goes_another_way(&self) -> Option<(Rule, String)> {
        let way = |version: &Version<SyncGroup>| match version.object.spec.rollout_strategy.rollback.type_ {
            RollbackType::Staged => RolloutDirection::Back,
            RollbackType::Immediate => RolloutDirection::BackAtOnce,
        };
        let mut versions = self.track.during(self.from(), self.version.at);
        let as_told = versions.any(|version| way(version) == self.rollout.direction);
        let words = format!(
            "it goes {:?}, which the strategy does not say",
            self.rollout.direction
        );
        (!as_told).then_some((Rule::Back, words))
    }
}

/// Nobody was passed over: every cluster held it, but for those that could not be reached.
fn is_on_the_whole_group(clusters: ClusterCounts) -> bool {
    clusters.updated > 0 && clusters.updated + clusters.unreachable == clusters.total
}
