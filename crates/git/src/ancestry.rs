//! The relation of two commits in the history of a mirror.
//!
//! libgit2 answers the same question without a limit, and its walk cannot be stopped.

use std::collections::{BinaryHeap, HashMap};

use git2::{Oid, Repository};

use super::interrupt::Interrupt;

/// The relation of a commit to an older one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ancestry {
    /// The commit is the older one, or descends from it.
    Descendant,
    /// The commit is an ancestor of the "older" one.
    Ancestor,
    /// Neither descends from the other.
    Diverged,
    /// The mirror lacks one of the commits.
    Missing,
    /// Their histories differ by more commits than the walk may visit, or the walk took too long.
    TooLong,
}

/// The starts that a commit is reachable from, as bits.
type Reach = u8;
const FROM_OLDER: Reach = 1;
const FROM_NEWER: Reach = 2;
const FROM_BOTH: Reach = FROM_OLDER | FROM_NEWER;

/// Determines the relation of `newer` to `older`, both of which exist.
///
/// Visits the commits that only one of the two contains, and few others: as long as the histories join soon, the length
/// of the whole history does not matter.
pub(super) fn relation(
    repo: &Repository,
    older: Oid,
    newer: Oid,
    max_commits: usize,
    interrupt: &Interrupt,
) -> Result<Ancestry, git2::Error> {
    if older == newer {
        return Ok(Ancestry::Descendant);
    }
    let mut walk = Walk::new(repo);
    walk.reach(older, FROM_OLDER)?;
    walk.reach(newer, FROM_NEWER)?;
    let mut visited = 0;
    // A commit that both reach leads to neither start: history has no cycles.
    while walk.undecided > 0 {
        if visited == max_commits || interrupt.stopped().is_some() {
            return Ok(Ancestry::TooLong);
        }
        visited += 1;
        walk.visit_newest()?;
        if walk.is_reached(older, FROM_NEWER) {
            return Ok(Ancestry::Descendant);
        }
        if walk.is_reached(newer, FROM_OLDER) {
            return Ok(Ancestry::Ancestor);
        }
    }
    Ok(Ancestry::Diverged)
}

/// A walk from two commits to their ancestors, in the order of time, the newest first.
struct Walk<'r> {
    repo: &'r Repository,
    known: HashMap<Oid, State>,
    queue: BinaryHeap<(i64, Oid)>,
    /// The number of queued commits that only one of the starts reaches.
    undecided: usize,
}

/// The state of a commit in a walk.
#[derive(Clone, Copy, Default)]
struct State {
    reach: Reach,
    queued: bool,
}

impl<'r> Walk<'r> {
    fn new(repo: &'r Repository) -> Self {
        Self {
            repo,
            known: HashMap::new(),
            queue: BinaryHeap::new(),
            undecided: 0,
        }
    }

    fn is_reached(&self, commit: Oid, from: Reach) -> bool {
        self.known
            .get(&commit)
            .is_some_and(|state| state.reach & from == from)
    }

    /// Records that a commit is reachable, and queues it if that is news.
    fn reach(&mut self, commit: Oid, from: Reach) -> Result<(), git2::Error> {
        let State { reach, queued } = self.known.get(&commit).copied().unwrap_or_default();
        let now = reach | from;
        if now == reach {
            return Ok(());
        }
        if !queued {
            let time = self.repo.find_commit(commit)?.time().seconds();
            self.queue.push((time, commit));
        }
        let was_undecided = queued && reach != FROM_BOTH;
        self.undecided = self.undecided + usize::from(now != FROM_BOTH) - usize::from(was_undecided);
        let state = State {
            reach: now,
            queued: true,
        };
        self.known.insert(commit, state);
        Ok(())
    }

    /// Takes the newest commit from the queue, and passes its reach on to its parents.
    fn visit_newest(&mut self) -> Result<(), git2::Error> {
        let Some((_, commit)) = self.queue.pop() else {
            return Ok(());
        };
        let Some(state) = self.known.get_mut(&commit) else {
            return Ok(());
        };
        state.queued = false;
        let reach = state.reach;
        if reach != FROM_BOTH {
            self.undecided -= 1;
        }
        for parent in self.repo.find_commit(commit)?.parent_ids() {
            self.reach(parent, reach)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use git2::{Signature, Time};
    use proptest::prelude::*;

    use super::*;

    const UNLIMITED: usize = usize::MAX;

    fn mk_repo() -> (tempfile::TempDir, Repository) {
        let folder = tempfile::tempdir().unwrap();
        let repo = Repository::init_bare(folder.path()).unwrap();
        (folder, repo)
    }

    /// Commits an empty tree, `minute` minutes after the epoch.
    fn commit(repo: &Repository, minute: i64, parents: &[Oid]) -> Oid {
        let who = Signature::new("Ann", "ann@example.org", &Time::new(60 * minute, 0)).unwrap();
        let empty = repo.treebuilder(None).unwrap().write().unwrap();
        let tree = repo.find_tree(empty).unwrap();
        let parents: Vec<_> = parents.iter().map(|id| repo.find_commit(*id).unwrap()).collect();
        let parents: Vec<_> = parents.iter().collect();
        repo.commit(None, &who, &who, "change", &tree, &parents).unwrap()
    }

    fn chain(repo: &Repository, from: Oid, minutes: std::ops::Range<i64>) -> Vec<Oid> {
        let mut all = vec![from];
        for minute in minutes {
            all.push(commit(repo, minute, &all[all.len() - 1..]));
        }
        all
    }

    fn relation_within(repo: &Repository, older: Oid, newer: Oid, max_commits: usize) -> Ancestry {
        let interrupt = Interrupt::new(Duration::from_secs(3600));
        relation(repo, older, newer, max_commits, &interrupt).unwrap()
    }

    #[test]
    fn a_long_history_before_both_commits_is_not_walked() {
        let (_folder, repo) = mk_repo();
        let all = chain(&repo, commit(&repo, 0, &[]), 1..100);
        let fork = commit(&repo, 100, &[all[97]]);
        for (older, newer, expected) in [
            (all[98], all[99], Ancestry::Descendant),
            (all[99], all[98], Ancestry::Ancestor),
            (all[99], fork, Ancestry::Diverged),
            (all[99], all[99], Ancestry::Descendant),
        ] {
            assert_eq!(relation_within(&repo, older, newer, 5), expected);
        }
    }

    #[test]
    fn a_walk_beyond_its_limits_has_no_answer() {
        let (_folder, repo) = mk_repo();
        let all = chain(&repo, commit(&repo, 0, &[]), 1..50);
        for (older, newer) in [(all[0], all[49]), (all[49], all[0])] {
            assert_eq!(relation_within(&repo, older, newer, 10), Ancestry::TooLong);
            let stopped = Interrupt::new(Duration::ZERO);
            assert_eq!(
                relation(&repo, older, newer, UNLIMITED, &stopped).unwrap(),
                Ancestry::TooLong
            );
        }
        assert_eq!(
            relation_within(&repo, all[0], all[49], UNLIMITED),
            Ancestry::Descendant
        );
    }

    /// A history: for each commit, its time and its parents among the earlier ones.
    fn mk_history() -> impl Strategy<Value = Vec<(i64, Vec<prop::sample::Index>)>> {
        let commit = (
            0..20_i64,
            prop::collection::vec(any::<prop::sample::Index>(), 0..3),
        );
        prop::collection::vec(commit, 2..20)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        /// Commit times may be wrong: they affect only the length of the walk.
        #[test]
        fn the_relation_is_that_of_libgit2(history in mk_history(), a: prop::sample::Index, b: prop::sample::Index) {
            let (_folder, repo) = mk_repo();
            let mut all: Vec<Oid> = Vec::new();
            for (n, (minute, parents)) in history.into_iter().enumerate() {
                let mut parents: Vec<Oid> = parents.iter().filter(|_| n > 0).map(|index| all[index.index(n)]).collect();
                parents.dedup();
                // Without the number, two commits may be the same.
                all.push(commit(&repo, minute * 1_000 + i64::try_from(n).unwrap(), &parents));
            }
            let (older, newer) = (all[a.index(all.len())], all[b.index(all.len())]);
            let expected = if older == newer || repo.graph_descendant_of(newer, older).unwrap() {
                Ancestry::Descendant
            } else if repo.graph_descendant_of(older, newer).unwrap() {
                Ancestry::Ancestor
            } else {
                Ancestry::Diverged
            };
            prop_assert_eq!(relation_within(&repo, older, newer, UNLIMITED), expected);
        }
    }
}
