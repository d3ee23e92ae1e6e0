//! Chooses the next release of a group: the offer of its Sources, the last known good release, or the current release.
//!
//! The rules, in order of precedence:
//! 1. An operator's rollback comes first, then the rollback of a failed rollout. Both *hold* the release that they
//!    replace: it does not start again until a newer release is offered or an operator releases it, so a rollback never
//!    loops. A request that is fulfilled, or cannot be, does not block newer releases: it applies for as long as its
//!    rollout is the current one, which has no limit.
//! 2. An offer that is the current release, or is held, changes nothing.
//! 3. A newer release replaces the rollout at once (`Replace`) or when the rollout is over (`Finish`: the newest
//!    release then; `Queue`: each release in turn). A rollout is over when failures stop it, when an operator aborts
//!    it, and when nothing of it proceeds by itself any more ([`Plan::is_over`](crate::plan::Plan::is_over)): the next
//!    release may be the fix.
//! 4. A queued release loses its turn when a newer release starts or is rolled back ([`overtaken`]), and when the
//!    Sources go back to a release that was offered before it ([`standing`]).

use crate::ids::ReleaseDigest;
use starling_api::{OnNewRevision, RollbackType};

use crate::plan::{Direction, RolloutVerdict};

/// The input of the choice. Releases are named by their digests.
#[derive(Clone, Debug)]
pub struct Candidates<'a> {
    /// The release that the Sources offer, with the templates of the group.
    pub offered: &'a str,
    /// The rollout in status.
    pub current: Option<Current<'a>>,
    /// The release that must not start again by itself.
    pub held: Option<&'a str>,
    /// The last release that succeeded on the whole group.
    pub known_good: Option<&'a str>,
    /// The request of an operator in the current rollout.
    pub requested: Option<RequestedRelease<'a>>,
    /// The policy for a newer release.
    pub on_new_revision: OnNewRevision,
    /// The type of a rollback.
    pub rollback: RollbackType,
    /// Releases that wait for their turn, oldest first.
    pub queue: &'a [String],
}

/// The rollout in status.
#[derive(Clone, Copy, Debug)]
pub struct Current<'a> {
    /// Its release.
    pub release: &'a str,
    /// The verdict of its plan.
    pub verdict: &'a RolloutVerdict,
    /// Whether the next release no longer waits for it.
    pub is_over: bool,
}

/// An operator's request for another release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestedRelease<'a> {
    /// Roll back to this release; `None`: to the last known good one.
    RollBack(Option<&'a str>),
    /// Start the held release after all.
    ResumeHeld,
}

/// The choice.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Next {
    /// Keep the current rollout.
    Keep,
    /// Keep the current rollout and queue the offered release.
    Enqueue {
        /// The offered release.
        release: ReleaseDigest,
    },
    /// Start another rollout.
    Start {
        /// Its release.
        release: ReleaseDigest,
        /// Its direction.
        direction: Direction,
        /// The release that is held from now on.
        hold: Option<String>,
        /// The cause.
        cause: Cause,
    },
    /// Keep the current rollout: a rollback is due, but there is no release to roll back to.
    NothingToRollBackTo,
}

/// The cause of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The Sources offer its release.
    Offered,
    /// The previous rollout failed.
    Failed,
    /// An operator requested it.
    Requested,
}

/// Releases that may wait for their turn. A repository that gets commits faster than they roll out would otherwise fill
/// the group's status; beyond this length, the newest queued release is replaced.
pub const QUEUE: usize = 20;

/// Chooses the next release.
pub fn next_release(input: &Candidates<'_>) -> Next {
    match input.requested.map(|request| as_requested(input, request)) {
        None | Some(Next::Keep) => by_itself(input),
        // A newer release may be the fix that the operator misses.
        Some(Next::NothingToRollBackTo) => match by_itself(input) {
            Next::Keep => Next::NothingToRollBackTo,
            next => next,
        },
        Some(next) => next,
    }
}

/// Returns the choice without a request.
fn by_itself(input: &Candidates<'_>) -> Next {
    let Some(current) = input.current else {
        return start(input.offered, Cause::Offered);
    };
    let failed = matches!(current.verdict, RolloutVerdict::RollBack(_));
    if failed && let Some(good) = input.known_good.filter(|good| *good != current.release) {
        return back(input, good, current.release, Cause::Failed);
    }
    let over = current.is_over;
    let is_new = input.offered != current.release && Some(input.offered) != input.held;
    match input.on_new_revision {
        OnNewRevision::Replace if is_new => start(input.offered, Cause::Offered),
        OnNewRevision::Finish if is_new && over => start(input.offered, Cause::Offered),
        OnNewRevision::Queue => match in_turn(input, over, is_new) {
            Next::Keep if failed => Next::NothingToRollBackTo,
            next => next,
        },
        OnNewRevision::Replace | OnNewRevision::Finish if failed => Next::NothingToRollBackTo,
        OnNewRevision::Replace | OnNewRevision::Finish => Next::Keep,
    }
}

/// Returns the choice by the request of an operator; [`Next::Keep`] if it is fulfilled already.
fn as_requested(input: &Candidates<'_>, request: RequestedRelease<'_>) -> Next {
    let current = input.current.map(|current| current.release);
    match request {
        RequestedRelease::ResumeHeld => match input.held {
            Some(held) if held == input.offered && current != Some(held) => start(held, Cause::Requested),
            // The Sources offer a newer release, which needs no permission.
            _ => Next::Keep,
        },
        RequestedRelease::RollBack(to) => match to.or(input.known_good) {
            None => Next::NothingToRollBackTo,
            Some(to) if current == Some(to) => Next::Keep,
            Some(to) => back(input, to, input.offered, Cause::Requested),
        },
    }
}

fn in_turn(input: &Candidates<'_>, over: bool, is_new: bool) -> Next {
    let waits = input.queue.last().is_some_and(|last| last == input.offered);
    // A release that was rolled back while it waited has lost its turn.
    let mut turns = input
        .queue
        .iter()
        .filter(|next| Some(next.as_str()) != input.held);
    match (over, turns.next()) {
        (true, Some(next)) => start(next, Cause::Offered),
        (true, None) if is_new => start(input.offered, Cause::Offered),
        (false, _) if is_new && !waits => Next::Enqueue {
            release: input.offered.into(),
        },
        _ => Next::Keep,
    }
}

fn start(release: &str, cause: Cause) -> Next {
    Next::Start {
        release: release.into(),
        direction: Direction::Forward,
        hold: None,
        cause,
    }
}

fn back(input: &Candidates<'_>, to: &str, from: &str, cause: Cause) -> Next {
    Next::Start {
        release: to.into(),
        direction: match input.rollback {
            RollbackType::Staged => Direction::Back,
            RollbackType::Immediate => Direction::BackAtOnce,
        },
        // A rollback to what is offered holds nothing.
        hold: (from != to).then(|| from.to_owned()),
        cause,
    }
}

/// Returns how many releases at the front of the queue stand. The Sources may go back to the current release or to a
/// queued one, as when a branch is reset: what was queued after it was taken back, and must not roll out.
#[must_use]
pub fn standing<'q>(
    queue: impl ExactSizeIterator<Item = &'q str>,
    offered: &str,
    current: Option<&str>,
) -> usize {
    let all = queue.len();
    if current == Some(offered) {
        return 0;
    }
    let place = { queue }.position(|waiting| waiting == offered);
    place.map_or(all, |place| place + 1)
}

/// Returns how many releases at the front of the queue lose their turn when a rollout begins: those that were offered
/// before its release or, in a rollback, before the replaced release. Their turn would start an older release by
/// itself. `offered`: the release that the Sources offer; `None`: a newer one settles, so the queued releases are older
/// than the next offer, but not older than the replaced release.
#[must_use]
pub fn overtaken(
    queue: &[String],
    offered: Option<&str>,
    release: &str,
    direction: Direction,
    held: Option<&str>,
) -> usize {
    let (newest, place) = match direction {
        Direction::Forward => (release, queue.iter().position(|waiting| waiting == release)),
        Direction::Back | Direction::BackAtOnce => {
            // A rollback to what is offered holds nothing, and overtakes everything that was offered before it.
            let left = held.or(offered).unwrap_or_default();
            (left, queue.iter().rposition(|waiting| waiting == left))
        }
    };
    match place {
        Some(place) => place + 1,
        // The release is newer than every queued one, and was never queued.
        None if Some(newest) == offered => queue.len(),
        // The replaced release is older than every queued one.
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Stop;

    fn failed() -> Stop {
        Stop::TooManyFailures {
            stage: None,
            failed: 1,
            allowed: 0,
        }
    }

    struct Case {
        offered: &'static str,
        current: &'static str,
        verdict: RolloutVerdict,
        /// Whether the rollout is over although it is in progress.
        over: bool,
        held: Option<&'static str>,
        known_good: Option<&'static str>,
        requested: Option<RequestedRelease<'static>>,
        on_new_revision: OnNewRevision,
        queue: &'static [&'static str],
    }

    impl Case {
        fn next(&self) -> Next {
            let queue: Vec<String> = self.queue.iter().map(|&text| text.to_owned()).collect();
            next_release(&Candidates {
                offered: self.offered,
                current: Some(Current {
                    release: self.current,
                    verdict: &self.verdict,
                    is_over: self.over || self.verdict != RolloutVerdict::InProgress,
                }),
                held: self.held,
                known_good: self.known_good,
                requested: self.requested,
                on_new_revision: self.on_new_revision,
                rollback: RollbackType::Staged,
                queue: &queue,
            })
        }
    }

    fn case(offered: &'static str, verdict: RolloutVerdict, on_new_revision: OnNewRevision) -> Case {
        Case {
            offered,
            current: "r2",
            verdict,
            over: false,
            held: None,
            known_good: Some("r1"),
            requested: None,
            on_new_revision,
            queue: &[],
        }
    }

    fn forward(release: &str) -> Next {
        start(release, Cause::Offered)
    }

    fn backward(release: &str, hold: &str, cause: Cause) -> Next {
        Next::Start {
            release: release.into(),
            direction: Direction::Back,
            hold: Some(hold.into()),
            cause,
        }
    }

    #[test]
    fn a_newer_release_replaces_the_rollout_waits_or_queues() {
        use OnNewRevision::{Finish, Queue, Replace};
        for (policy, verdict, expected) in [
            (Replace, RolloutVerdict::InProgress, forward("r3")),
            (Finish, RolloutVerdict::InProgress, Next::Keep),
            (Finish, RolloutVerdict::Succeeded, forward("r3")),
            (Finish, RolloutVerdict::Stopped(failed()), forward("r3")),
            (
                Queue,
                RolloutVerdict::InProgress,
                Next::Enqueue { release: "r3".into() },
            ),
            (Queue, RolloutVerdict::Succeeded, forward("r3")),
            (Queue, RolloutVerdict::Stopped(failed()), forward("r3")),
        ] {
            assert_eq!(
                case("r3", verdict.clone(), policy).next(),
                expected,
                "{policy:?} {verdict:?}"
            );
        }
        for policy in [Replace, Finish, Queue] {
            assert_eq!(case("r2", RolloutVerdict::InProgress, policy).next(), Next::Keep);
            assert_eq!(case("r2", RolloutVerdict::Succeeded, policy).next(), Next::Keep);
        }
    }

    /// Guards against a deadlock: one cluster that failed within the limit keeps a rollout in progress, and the release
    /// with the fix waited for the end of that rollout.
    #[test]
    fn a_rollout_that_does_not_proceed_does_not_block_newer_releases() {
        use OnNewRevision::{Finish, Queue};
        for policy in [Finish, Queue] {
            let mut case = case("r3", RolloutVerdict::InProgress, policy);
            case.over = true;
            assert_eq!(case.next(), forward("r3"), "{policy:?}");
            case.offered = "r2";
            assert_eq!(case.next(), Next::Keep, "{policy:?}");
        }
    }

    #[test]
    fn releases_queued_before_a_started_or_replaced_release_lose_their_turn() {
        use Direction::{Back, BackAtOnce, Forward};
        let queue: Vec<String> = ["r3", "r4", "r5"].map(str::to_owned).into();
        for (offered, release, direction, held, left) in [
            // In its turn.
            ("r5", "r3", Forward, None, &queue[1..]),
            ("r5", "r5", Forward, None, &[]),
            // The policy was another one for a while, or an operator released the held release.
            ("r6", "r6", Forward, None, &[]),
            // An operator rolled back from the offered release, whether it was queued or not.
            ("r5", "r1", Back, Some("r5"), &[]),
            ("r6", "r1", BackAtOnce, Some("r6"), &[]),
            // The failed release is older than every queued one.
            ("r5", "r1", Back, Some("r2"), &queue[..]),
            // The branch was reset to the last known good release, and an operator rolled back to it.
            ("r1", "r1", Back, None, &[]),
        ] {
            let dropped = overtaken(&queue, Some(offered), release, direction, held);
            assert_eq!(
                &queue[dropped..],
                left,
                "{offered} {release} {direction:?} {held:?}"
            );
        }
        // Queued by an earlier version, when the branch moved back and forth: the first of two entries is the next in
        // turn, the last is the replaced one.
        let queue: Vec<String> = ["r3", "r4", "r3"].map(str::to_owned).into();
        assert_eq!(overtaken(&queue, Some("r3"), "r3", Forward, None), 1);
        assert_eq!(overtaken(&queue, Some("r3"), "r1", Back, Some("r3")), 3);
    }

    /// Guards against a commit that is taken back while it waits, and rolls out all the same.
    #[test]
    fn what_was_queued_after_the_offered_release_was_taken_back() {
        for (offered, queue, left) in [
            ("r4", &["r3", "r4"][..], 2),
            ("r3", &["r3", "r4"], 1),
            // The current release.
            ("r2", &["r3", "r4"], 0),
            // A new release.
            ("r5", &["r3", "r4"], 2),
            ("r5", &[], 0),
        ] {
            let stands = standing(queue.iter().copied(), offered, Some("r2"));
            assert_eq!(stands, left, "{offered} {queue:?}");
        }
    }

    #[test]
    fn each_queued_release_gets_one_turn() {
        let mut case = case("r4", RolloutVerdict::InProgress, OnNewRevision::Queue);
        case.queue = &["r3"];
        assert_eq!(case.next(), Next::Enqueue { release: "r4".into() });
        case.queue = &["r3", "r4"];
        assert_eq!(case.next(), Next::Keep);
        case.verdict = RolloutVerdict::Succeeded;
        assert_eq!(case.next(), forward("r3"));
    }

    #[test]
    fn a_failed_rollout_is_rolled_back_once_and_its_release_is_held() {
        let failing = RolloutVerdict::RollBack(failed());
        let mut case = case("r2", failing.clone(), OnNewRevision::Replace);
        assert_eq!(case.next(), backward("r1", "r2", Cause::Failed));
        // Rolled back: the branch still offers the failed release.
        (case.current, case.held, case.verdict) = ("r1", Some("r2"), RolloutVerdict::Succeeded);
        assert_eq!(case.next(), Next::Keep);
        // Also while the rollback is in progress, and if it fails.
        case.verdict = RolloutVerdict::Stopped(failed());
        assert_eq!(case.next(), Next::Keep);
        // A fix is pushed.
        case.offered = "r3";
        assert_eq!(case.next(), forward("r3"));
        // The commit is reverted: the current release is offered again.
        case.offered = "r1";
        assert_eq!(case.next(), Next::Keep);
        // There is no last known good release.
        (case.current, case.offered, case.held, case.verdict) = ("r2", "r2", None, failing);
        case.known_good = None;
        assert_eq!(case.next(), Next::NothingToRollBackTo);
        case.known_good = Some("r2");
        assert_eq!(case.next(), Next::NothingToRollBackTo);
    }

    /// An operator rolls back while the newest release is queued: that release is held, and gets no turn by itself.
    #[test]
    fn a_held_release_has_no_turn() {
        let mut case = case("r3", RolloutVerdict::InProgress, OnNewRevision::Queue);
        case.queue = &["r3"];
        case.requested = Some(RequestedRelease::RollBack(None));
        assert_eq!(case.next(), backward("r1", "r3", Cause::Requested));
        (case.current, case.held, case.requested) = ("r1", Some("r3"), None);
        for verdict in [
            RolloutVerdict::InProgress,
            RolloutVerdict::Succeeded,
            RolloutVerdict::Stopped(failed()),
        ] {
            case.verdict = verdict;
            assert_eq!(case.next(), Next::Keep, "{:?}", case.verdict);
        }
        // The release queued after it is newer and was never replaced.
        (case.queue, case.offered) = (&["r3", "r4"], "r4");
        assert_eq!(case.next(), forward("r4"));
    }

    /// The queued release may be the fix, but the strategy requires a rollback first.
    #[test]
    fn a_rollback_comes_before_the_queue() {
        let case = case("r3", RolloutVerdict::RollBack(failed()), OnNewRevision::Finish);
        assert_eq!(case.next(), backward("r1", "r2", Cause::Failed));
    }

    #[test]
    fn operators_roll_back_and_release() {
        let mut case = case("r2", RolloutVerdict::InProgress, OnNewRevision::Replace);
        case.requested = Some(RequestedRelease::RollBack(None));
        assert_eq!(case.next(), backward("r1", "r2", Cause::Requested));
        case.requested = Some(RequestedRelease::RollBack(Some("r0")));
        assert_eq!(case.next(), backward("r0", "r2", Cause::Requested));
        case.requested = Some(RequestedRelease::RollBack(Some("r2")));
        assert_eq!(case.next(), Next::Keep);
        (case.known_good, case.requested) = (None, Some(RequestedRelease::RollBack(None)));
        assert_eq!(case.next(), Next::NothingToRollBackTo);
        (case.current, case.held, case.requested) = ("r1", Some("r2"), Some(RequestedRelease::ResumeHeld));
        assert_eq!(case.next(), start("r2", Cause::Requested));
        case.offered = "r3";
        assert_eq!(case.next(), forward("r3"), "r3 starts without permission");
    }

    /// A request applies for as long as its rollout is the current one: it must not block the next release for ever.
    #[test]
    fn a_request_that_cannot_be_fulfilled_does_not_block_newer_releases() {
        let mut case = case("r3", RolloutVerdict::Succeeded, OnNewRevision::Replace);
        for (known_good, held, request) in [
            // The rollout to roll back has succeeded meanwhile.
            (Some("r2"), None, RequestedRelease::RollBack(None)),
            (Some("r2"), None, RequestedRelease::RollBack(Some("r2"))),
            (None, None, RequestedRelease::RollBack(None)),
            (Some("r2"), None, RequestedRelease::ResumeHeld),
            (Some("r2"), Some("r1"), RequestedRelease::ResumeHeld),
        ] {
            (case.known_good, case.held, case.requested) = (known_good, held, Some(request));
            case.offered = "r3";
            assert_eq!(case.next(), forward("r3"), "{request:?}");
            case.offered = "r2";
            let stays = match known_good {
                Some(_) => Next::Keep,
                None => Next::NothingToRollBackTo,
            };
            assert_eq!(case.next(), stays, "{request:?}");
        }
    }

    #[test]
    fn the_first_release_starts() {
        let verdict = RolloutVerdict::InProgress;
        let mut input = Candidates {
            offered: "r1",
            current: None,
            held: None,
            known_good: None,
            requested: None,
            on_new_revision: OnNewRevision::Finish,
            rollback: RollbackType::Immediate,
            queue: &[],
        };
        assert_eq!(next_release(&input), forward("r1"));
        input.current = Some(Current {
            release: "r1",
            verdict: &verdict,
            is_over: false,
        });
        assert_eq!(next_release(&input), Next::Keep);
    }
}
