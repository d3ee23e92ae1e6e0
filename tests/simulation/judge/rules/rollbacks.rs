//! The release of the next rollout: a held release does not start by itself, and a rollback returns to the last known
//! good release.

use jiff::Timestamp;
use starling_api::{
    ActionType, ClusterCounts, OnFailure, RollbackType, RolloutAction, RolloutDirection, RolloutPhase,
    RolloutStatus, SyncGroup,
};

use crate::judge::actions::actions;
use crate::judge::hub::{Id, Track, Version, earlier};
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::World;

/// A rollback is requested by an operator in the previous rollout, or by `onFailure: Rollback`. It returns to the last
/// release that had succeeded on the group, unless the operator chose another one, and in the way that `rollback`
/// defines. A held release does not roll out unless an operator released it in the previous rollout.
///
/// Evidence: the first status of each rollout against the statuses before it, and the operator actions that existed
/// before. A release has succeeded if a status reports that while every reachable cluster had it, whatever
/// `lastKnownGood` is.
pub(super) fn rollbacks_are_requested(world: &World<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (id, track) in &world.hub.groups {
        let mut before: Option<(&RolloutStatus, &Version<SyncGroup>)> = None;
        for version in track.versions() {
            let status = version.object.status.as_ref();
            let Some(rollout) = status.and_then(|status| status.rollout.as_ref()) else {
                continue;
            };
            if before.is_some_and(|(before, _)| before.id >= rollout.id) {
                // The same rollout, or a status that was overwritten by an older one.
                if before.is_some_and(|(before, _)| before.id == rollout.id) {
                    before = Some((rollout, version));
                }
                continue;
            }
            if let Some((last, of)) = before {
                let beginning = RolloutStart {
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

/// The start of a rollout after another one.
struct RolloutStart<'w> {
    world: &'w World<'w>,
    id: &'w Id,
    track: &'w Track<SyncGroup>,
    version: &'w Version<SyncGroup>,
    rollout: &'w RolloutStatus,
    last: &'w RolloutStatus,
    of: &'w Version<SyncGroup>,
}

impl RolloutStart<'_> {
    fn from(&self) -> Timestamp {
        earlier(self.version.at, self.world.history.lag)
    }

    fn violations(&self) -> Vec<Violation> {
        let wrong = match self.rollout.direction {
            RolloutDirection::Forward => vec![self.restarts_held_release()],
            RolloutDirection::Back | RolloutDirection::BackAtOnce => {
                vec![
                    self.without_request(),
                    self.wrong_release(),
                    self.wrong_direction(),
                ]
            }
        };
        let wrong = wrong.into_iter().flatten();
        wrong
            .map(|(rule, message)| Violation {
                rule,
                at: self.version.at,
                cluster: None,
                message: format!("rollout {}: {message}", self.rollout.id),
            })
            .collect()
    }

    fn has_action(&self, is: impl Fn(&RolloutAction) -> bool) -> bool {
        let actions = actions(self.world.hub, self.id, self.last.id);
        let mut known = actions
            .iter()
            .filter(|action| action.may_be_known(self.from(), self.version.index));
        known.any(|action| is(action.object))
    }

    fn restarts_held_release(&self) -> Option<(Rule, String)> {
        let held = self.of.object.status.as_ref()?.held_release.as_ref()?;
        let released = self.has_action(|action| action.spec.action == ActionType::Release);
        (held.release == self.rollout.release && !released).then(|| {
            let message = format!(
                "held release {} starts again without an action that releases it",
                held.release
            );
            (Rule::HeldRelease, message)
        })
    }

    fn without_request(&self) -> Option<(Rule, String)> {
        let mut versions = self.track.during(self.from(), self.version.at);
        let by_itself =
            versions.any(|version| version.object.spec.rollout_strategy.on_failure == OnFailure::Rollback);
        let asked = by_itself || self.has_action(|action| action.spec.action == ActionType::Rollback);
        (!asked).then(|| (Rule::Rollback, "a rollback without a request".to_owned()))
    }

    fn wrong_release(&self) -> Option<(Rule, String)> {
        let named = self.has_action(|action| {
            action.spec.action == ActionType::Rollback && action.spec.revision.is_some()
        });
        let last_good = self.last_good();
        (!named && last_good != Some(self.rollout.release.as_str())).then(|| {
            let message = format!(
                "a rollback to {}, and the last success is {last_good:?}",
                self.rollout.release
            );
            (Rule::Rollback, message)
        })
    }

    /// Returns the last release that succeeded. A management cluster that was set back knows what its status says.
    fn last_good(&self) -> Option<&str> {
        let history = self.world.history;
        let is_of_hub =
            |(at, name): &&(Timestamp, String)| !history.members.contains_key(name) && *at <= self.version.at;
        if history.set_backs.iter().any(|back| is_of_hub(&back)) {
            let status = self.of.object.status.as_ref();
            let last = status.and_then(|status| status.last_known_good.as_ref());
            return last.map(|last| last.release.as_str());
        }
        let versions = self.track.versions().iter();
        let known = versions.filter(|version| version.index < self.version.index);
        let status = known.filter_map(|version| version.object.status.as_ref());
        status
            .filter(|status| is_on_all_clusters(status.clusters))
            .filter_map(|status| status.rollout.as_ref())
            .rfind(|rollout| rollout.phase == RolloutPhase::Succeeded)
            .map(|rollout| rollout.release.as_str())
    }

    fn wrong_direction(&self) -> Option<(Rule, String)> {
        let way = |version: &Version<SyncGroup>| match version.object.spec.rollout_strategy.rollback.type_ {
            RollbackType::Staged => RolloutDirection::Back,
            RollbackType::Immediate => RolloutDirection::BackAtOnce,
        };
        let mut versions = self.track.during(self.from(), self.version.at);
        let as_told = versions.any(|version| way(version) == self.rollout.direction);
        let message = format!(
            "its direction {:?} is not that of the strategy",
            self.rollout.direction
        );
        (!as_told).then_some((Rule::Rollback, message))
    }
}

/// Whether no cluster was skipped: every reachable cluster had the release.
fn is_on_all_clusters(clusters: ClusterCounts) -> bool {
    clusters.updated > 0 && clusters.updated + clusters.unreachable == clusters.total
}
