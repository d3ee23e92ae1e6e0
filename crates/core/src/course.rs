//! Which release a group rolls next: what the Sources offer, what was good before, or what rolls already.
//!
//! The rules, in their order:
//! 1. What a person asks to go back to comes first, then what the strategy goes back to when a rollout failed. Either way
//!    the release that is left behind is *held*: it does not start again until something newer is offered or a person
//!    lets it go. So going back never loops. A wish that is fulfilled, or cannot be, keeps nothing newer back: it stands as
//!    long as its rollout does, which would be for ever.
//! 2. What is offered and rolls already, or is held, changes nothing.
//! 3. Something newer takes over at once (`Replace`), or when the rollout under way is over (`Finish`: the newest then;
//!    `Queue`: each in its turn). One that is stopped by its failures, or was given up, is over, and so is one of which nothing
//!    goes on by itself any more ([`Plan::is_over`](crate::plan::Plan::is_over)): what comes next may be what mends it.
//! 4. What waited before something that has begun, or was gone back from, has lost its turn ([`overtaken`]).

use starling_api::{OnNewRevision, RollbackType};

use crate::plan::{Direction, Verdict};

/// What the next release depends on. Releases are named by their digests.
#[derive(Clone, Debug)]
pub struct CourseInput<'a> {
    /// What the Sources offer with the group's templates.
    pub offered: &'a str,
    /// What rolls.
    pub current: Option<Current<'a>>,
    /// What is not to start again.
    pub held: Option<&'a str>,
    /// The last release that succeeded on the whole group.
    pub known_good: Option<&'a str>,
    /// Where a person asked to go, if that was not done yet.
    pub asked: Option<Asked<'a>>,
    /// What happens to something newer.
    pub on_new_revision: OnNewRevision,
    /// How to go back.
    pub rollback: RollbackType,
    /// Releases that wait for their turn, the oldest first.
    pub queue: &'a [String],
}

/// The rollout under way.
#[derive(Clone, Copy, Debug)]
pub struct Current<'a> {
    /// Its release.
    pub release: &'a str,
    /// What its plan says of it now.
    pub verdict: &'a Verdict,
    /// Whether what comes next has to wait for it no longer.
    pub is_over: bool,
}

/// Where a person asked to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked<'a> {
    /// Back to this release; `None`: to the last known good one.
    Back(Option<&'a str>),
    /// To what is held: let it go.
    Release,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Course {
    /// Go on with what rolls.
    Keep,
    /// Go on, and remember that this waits for its turn.
    Enqueue {
        /// The release that is offered.
        release: String,
    },
    /// Begin a rollout.
    Start {
        /// Of this release.
        release: String,
        /// Which way.
        direction: Direction,
        /// What is not to start again from now on.
        hold: Option<String>,
        /// Why.
        reason: Reason,
    },
    /// Somebody or something wants to go back, and there is nothing to go back to.
    NothingToGoBackTo,
}

/// Why a rollout begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It was offered.
    Offered,
    /// The one before it failed.
    Failed,
    /// A person asked for it.
    Asked,
}

/// Releases that may wait for their turn. A repository that gets commits faster than they can be rolled would otherwise fill
/// the group's status; above it, the newest that waits is replaced.
pub const QUEUE: usize = 20;

/// Decides what rolls next.
pub fn course(input: &CourseInput<'_>) -> Course {
    match input.asked.map(|asked| as_asked(input, asked)) {
        None | Some(Course::Keep) => by_itself(input),
        // What comes next may be what the person misses.
        Some(Course::NothingToGoBackTo) => match by_itself(input) {
            Course::Keep => Course::NothingToGoBackTo,
            course => course,
        },
        Some(course) => course,
    }
}

/// What rolls next where nobody asked for anything.
fn by_itself(input: &CourseInput<'_>) -> Course {
    let Some(current) = input.current else {
        return start(input.offered, Reason::Offered);
    };
    let failed = matches!(current.verdict, Verdict::RollBack(_));
    if failed && let Some(good) = input.known_good.filter(|good| *good != current.release) {
        return back(input, good, current.release, Reason::Failed);
    }
    let over = current.is_over;
    let is_new = input.offered != current.release && Some(input.offered) != input.held;
    match input.on_new_revision {
        OnNewRevision::Replace if is_new => start(input.offered, Reason::Offered),
        OnNewRevision::Finish if is_new && over => start(input.offered, Reason::Offered),
        OnNewRevision::Queue => in_turn(input, over, is_new),
        OnNewRevision::Replace | OnNewRevision::Finish if failed => Course::NothingToGoBackTo,
        OnNewRevision::Replace | OnNewRevision::Finish => Course::Keep,
    }
}

/// What a person asked for; [`Course::Keep`] where that is so already.
fn as_asked(input: &CourseInput<'_>, asked: Asked<'_>) -> Course {
    let current = input.current.map(|current| current.release);
    match asked {
        Asked::Release => match input.held {
            Some(held) if held == input.offered && current != Some(held) => start(held, Reason::Asked),
            // Something else is offered by now, which needs nobody's leave.
            _ => Course::Keep,
        },
        Asked::Back(to) => match to.or(input.known_good) {
            None => Course::NothingToGoBackTo,
            Some(to) if current == Some(to) => Course::Keep,
            Some(to) => back(input, to, input.offered, Reason::Asked),
        },
    }
}

fn in_turn(input: &CourseInput<'_>, over: bool, is_new: bool) -> Course {
    let waits = input.queue.last().is_some_and(|last| last == input.offered);
    // What was gone back from while it waited has lost its turn.
    let mut turns = input
        .queue
        .iter()
        .filter(|next| Some(next.as_str()) != input.held);
    match (over, turns.next()) {
        (true, Some(next)) => start(next, Reason::Offered),
        (true, None) if is_new => start(input.offered, Reason::Offered),
        (false, _) if is_new && !waits => Course::Enqueue {
            release: input.offered.to_owned(),
        },
        _ => Course::Keep,
    }
}

fn start(release: &str, reason: Reason) -> Course {
    Course::Start {
        release: release.to_owned(),
        direction: Direction::Forward,
        hold: None,
        reason,
    }
}

fn back(input: &CourseInput<'_>, to: &str, from: &str, reason: Reason) -> Course {
    Course::Start {
        release: to.to_owned(),
        direction: match input.rollback {
            RollbackType::Staged => Direction::Back,
            RollbackType::Immediate => Direction::BackAtOnce,
        },
        // To go back to what is offered holds nothing.
        hold: (from != to).then(|| from.to_owned()),
        reason,
    }
}

/// How many releases at the front of the queue lose their turn when a rollout begins: those that were offered before it, or
/// before the one that is gone back from. Their turn would lead back, by itself, to what has been left behind.
#[must_use]
pub fn overtaken(
    queue: &[String],
    offered: &str,
    release: &str,
    direction: Direction,
    held: Option<&str>,
) -> usize {
    let (newest, place) = match direction {
        Direction::Forward => (release, queue.iter().position(|waiting| waiting == release)),
        Direction::Back | Direction::BackAtOnce => {
            // Going back to what is offered holds nothing, and leaves everything behind that came before it.
            let left = held.unwrap_or(offered);
            (left, queue.iter().rposition(|waiting| waiting == left))
        }
    };
    match place {
        Some(place) => place + 1,
        // It is newer than whatever waits, and did not have to.
        None if newest == offered => queue.len(),
        // What rolled, and failed, is older.
        None => 0,
    }
}

/// The queue once `release` waits in it, too.
#[must_use]
pub fn enqueue(queue: &[String], release: &str) -> Vec<String> {
    let mut queue: Vec<String> = queue.to_vec();
    queue.truncate(QUEUE - 1);
    queue.push(release.to_owned());
    queue
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
        verdict: Verdict,
        /// Though it rolls.
        over: bool,
        held: Option<&'static str>,
        known_good: Option<&'static str>,
        asked: Option<Asked<'static>>,
        on_new_revision: OnNewRevision,
        queue: &'static [&'static str],
    }

    impl Case {
        fn course(&self) -> Course {
            let queue: Vec<String> = self.queue.iter().map(|&text| text.to_owned()).collect();
            course(&CourseInput {
                offered: self.offered,
                current: Some(Current {
                    release: self.current,
                    verdict: &self.verdict,
                    is_over: self.over || self.verdict != Verdict::Rolls,
                }),
                held: self.held,
                known_good: self.known_good,
                asked: self.asked,
                on_new_revision: self.on_new_revision,
                rollback: RollbackType::Staged,
                queue: &queue,
            })
        }
    }

    fn case(offered: &'static str, verdict: Verdict, on_new_revision: OnNewRevision) -> Case {
        Case {
            offered,
            current: "r2",
            verdict,
            over: false,
            held: None,
            known_good: Some("r1"),
            asked: None,
            on_new_revision,
            queue: &[],
        }
    }

    fn forward(release: &str) -> Course {
        start(release, Reason::Offered)
    }

    fn backward(release: &str, hold: &str, reason: Reason) -> Course {
        Course::Start {
            release: release.into(),
            direction: Direction::Back,
            hold: Some(hold.into()),
            reason,
        }
    }

    #[test]
    fn a_newer_release_takes_over_waits_or_queues() {
        use OnNewRevision::{Finish, Queue, Replace};
        for (policy, verdict, expected) in [
            (Replace, Verdict::Rolls, forward("r3")),
            (Finish, Verdict::Rolls, Course::Keep),
            (Finish, Verdict::Through, forward("r3")),
            (Finish, Verdict::Stopped(failed()), forward("r3")),
            (Queue, Verdict::Rolls, Course::Enqueue { release: "r3".into() }),
            (Queue, Verdict::Through, forward("r3")),
            (Queue, Verdict::Stopped(failed()), forward("r3")),
        ] {
            assert_eq!(
                case("r3", verdict.clone(), policy).course(),
                expected,
                "{policy:?} {verdict:?}"
            );
        }
        for policy in [Replace, Finish, Queue] {
            assert_eq!(case("r2", Verdict::Rolls, policy).course(), Course::Keep);
            assert_eq!(case("r2", Verdict::Through, policy).course(), Course::Keep);
        }
    }

    /// Guards against a group that stands still for ever: one cluster that failed within the budget keeps a rollout from being
    /// through, and what mends it waited for just that.
    #[test]
    fn what_is_not_through_and_does_not_go_on_keeps_nothing_back() {
        use OnNewRevision::{Finish, Queue};
        for policy in [Finish, Queue] {
            let mut case = case("r3", Verdict::Rolls, policy);
            case.over = true;
            assert_eq!(case.course(), forward("r3"), "{policy:?}");
            case.offered = "r2";
            assert_eq!(case.course(), Course::Keep, "{policy:?}");
        }
    }

    #[test]
    fn what_waited_before_something_that_began_or_was_left_has_lost_its_turn() {
        use Direction::{Back, BackAtOnce, Forward};
        let queue: Vec<String> = ["r3", "r4", "r5"].map(str::to_owned).into();
        for (offered, release, direction, held, left) in [
            // In its turn.
            ("r5", "r3", Forward, None, &queue[1..]),
            ("r5", "r5", Forward, None, &[]),
            // The policy was another one for a while, or a person let go what was held.
            ("r6", "r6", Forward, None, &[]),
            // A person went back: from what is offered, whether that waited yet or not.
            ("r5", "r1", Back, Some("r5"), &[]),
            ("r6", "r1", BackAtOnce, Some("r6"), &[]),
            // What failed is older than all that waits.
            ("r5", "r1", Back, Some("r2"), &queue[..]),
            // The branch was set back to what was good, and a person followed it.
            ("r1", "r1", Back, None, &[]),
        ] {
            let dropped = overtaken(&queue, offered, release, direction, held);
            assert_eq!(
                &queue[dropped..],
                left,
                "{offered} {release} {direction:?} {held:?}"
            );
        }
        // The branch went to and fro: the first of two is the one whose turn it is, the last the one that is left.
        let queue: Vec<String> = ["r3", "r4", "r3"].map(str::to_owned).into();
        assert_eq!(overtaken(&queue, "r3", "r3", Forward, None), 1);
        assert_eq!(overtaken(&queue, "r3", "r1", Back, Some("r3")), 3);
    }

    #[test]
    fn each_in_the_queue_gets_its_turn_and_none_twice() {
        let mut case = case("r4", Verdict::Rolls, OnNewRevision::Queue);
        case.queue = &["r3"];
        assert_eq!(case.course(), Course::Enqueue { release: "r4".into() });
        case.queue = &["r3", "r4"];
        assert_eq!(case.course(), Course::Keep);
        case.verdict = Verdict::Through;
        assert_eq!(case.course(), forward("r3"));
        let full: Vec<String> = (0..QUEUE).map(|n| n.to_string()).collect();
        let queue = enqueue(&full, "new");
        assert_eq!((queue.len(), queue[QUEUE - 1].as_str()), (QUEUE, "new"));
    }

    #[test]
    fn a_failed_rollout_goes_back_holds_what_failed_and_does_not_loop() {
        let failing = Verdict::RollBack(failed());
        let mut case = case("r2", failing.clone(), OnNewRevision::Replace);
        assert_eq!(case.course(), backward("r1", "r2", Reason::Failed));
        // Rolled back: the branch still offers what failed.
        (case.current, case.held, case.verdict) = ("r1", Some("r2"), Verdict::Through);
        assert_eq!(case.course(), Course::Keep);
        // Also while that is under way, and where it fails itself.
        case.verdict = Verdict::Stopped(failed());
        assert_eq!(case.course(), Course::Keep);
        // A fix is pushed.
        case.offered = "r3";
        assert_eq!(case.course(), forward("r3"));
        // The commit is reverted: what rolls is offered again.
        case.offered = "r1";
        assert_eq!(case.course(), Course::Keep);
        // Nothing was good before.
        (case.current, case.offered, case.held, case.verdict) = ("r2", "r2", None, failing);
        case.known_good = None;
        assert_eq!(case.course(), Course::NothingToGoBackTo);
        case.known_good = Some("r2");
        assert_eq!(case.course(), Course::NothingToGoBackTo);
    }

    /// A person goes back while the newest waits for its turn: that is held, and its turn does not come by itself.
    #[test]
    fn what_is_held_has_no_turn() {
        let mut case = case("r3", Verdict::Rolls, OnNewRevision::Queue);
        case.queue = &["r3"];
        case.asked = Some(Asked::Back(None));
        assert_eq!(case.course(), backward("r1", "r3", Reason::Asked));
        (case.current, case.held, case.asked) = ("r1", Some("r3"), None);
        for verdict in [Verdict::Rolls, Verdict::Through, Verdict::Stopped(failed())] {
            case.verdict = verdict;
            assert_eq!(case.course(), Course::Keep, "{:?}", case.verdict);
        }
        // What waits behind it is newer and was never left.
        (case.queue, case.offered) = (&["r3", "r4"], "r4");
        assert_eq!(case.course(), forward("r4"));
    }

    /// What waits may be the fix, but the strategy said to go back first.
    #[test]
    fn going_back_comes_before_what_waits() {
        let case = case("r3", Verdict::RollBack(failed()), OnNewRevision::Finish);
        assert_eq!(case.course(), backward("r1", "r2", Reason::Failed));
    }

    #[test]
    fn people_go_back_and_let_go() {
        let mut case = case("r2", Verdict::Rolls, OnNewRevision::Replace);
        case.asked = Some(Asked::Back(None));
        assert_eq!(case.course(), backward("r1", "r2", Reason::Asked));
        case.asked = Some(Asked::Back(Some("r0")));
        assert_eq!(case.course(), backward("r0", "r2", Reason::Asked));
        case.asked = Some(Asked::Back(Some("r2")));
        assert_eq!(case.course(), Course::Keep);
        (case.known_good, case.asked) = (None, Some(Asked::Back(None)));
        assert_eq!(case.course(), Course::NothingToGoBackTo);
        (case.current, case.held, case.asked) = ("r1", Some("r2"), Some(Asked::Release));
        assert_eq!(case.course(), start("r2", Reason::Asked));
        case.offered = "r3";
        assert_eq!(case.course(), forward("r3"), "r3 starts without leave");
    }

    /// A word stands as long as its rollout is the last one: it must not keep the next one from ever coming.
    #[test]
    fn what_people_asked_for_in_vain_keeps_nothing_newer_back() {
        let mut case = case("r3", Verdict::Through, OnNewRevision::Replace);
        for (known_good, held, asked) in [
            // The rollout that was to go back has succeeded meanwhile.
            (Some("r2"), None, Asked::Back(None)),
            (Some("r2"), None, Asked::Back(Some("r2"))),
            (None, None, Asked::Back(None)),
            (Some("r2"), None, Asked::Release),
            (Some("r2"), Some("r1"), Asked::Release),
        ] {
            (case.known_good, case.held, case.asked) = (known_good, held, Some(asked));
            case.offered = "r3";
            assert_eq!(case.course(), forward("r3"), "{asked:?}");
            case.offered = "r2";
            let stays = match known_good {
                Some(_) => Course::Keep,
                None => Course::NothingToGoBackTo,
            };
            assert_eq!(case.course(), stays, "{asked:?}");
        }
    }

    #[test]
    fn the_first_release_starts() {
        let verdict = Verdict::Rolls;
        let mut input = CourseInput {
            offered: "r1",
            current: None,
            held: None,
            known_good: None,
            asked: None,
            on_new_revision: OnNewRevision::Finish,
            rollback: RollbackType::Immediate,
            queue: &[],
        };
        assert_eq!(course(&input), forward("r1"));
        input.current = Some(Current {
            release: "r1",
            verdict: &verdict,
            is_over: false,
        });
        assert_eq!(course(&input), Course::Keep);
    }
}
