//! Verifies a journal: the chain, every plan by the independent check, and the input of every plan by the earlier
//! decisions.

use jiff::Timestamp;

use super::chain::{Broken, Chain, check_chain};
use super::continuity::{Continuity, Gap};
use super::{Body, JournalEntry, NotReadable, RecordedPlan, Whole};
use crate::ids::RolloutNumber;
use crate::plan::check::{Violation, check};

/// The result of verifying a journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct VerifyResult {
    /// Entries that were read.
    pub entries: usize,
    /// Decisions to start a cluster in these entries.
    pub starts: usize,
    /// The flaws, in the order of the entries.
    pub flaws: Vec<Flaw>,
}

/// A flaw of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// The entry.
    pub seq: i64,
    /// The rollout of the entry, and when it was written; `None`: the entry is missing.
    pub entry: Option<(RolloutNumber, Timestamp)>,
    /// The flaw.
    pub kind: FlawKind,
}

/// The kind of a flaw.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlawKind {
    /// The entry breaks the chain.
    #[error("{0}")]
    Chain(#[from] Broken),
    /// The entry cannot be read.
    #[error("{0}")]
    Unreadable(#[from] NotReadable),
    /// The plan of the entry breaks a rule.
    #[error("the plan breaks a rule: {0}")]
    Rule(#[from] Violation),
    /// The input of its plan does not follow from the previous entries.
    #[error("{0}")]
    Gap(#[from] Gap),
    /// The number of its rollout is lower than that of the previous entry, and the entry does not say that the
    /// management cluster was set back.
    #[error("it is of rollout {rollout}, after an entry of rollout {before}")]
    Backwards {
        /// The rollout of the entry.
        rollout: RolloutNumber,
        /// The rollout of the previous entry.
        before: RolloutNumber,
    },
    /// The time of the entry is not that of its plan.
    #[error("it is dated {at}, and its plan was made at {now}")]
    Time {
        /// The time of the entry.
        at: Timestamp,
        /// The time of the plan.
        now: Timestamp,
    },
}

/// Verifies the entries of a group in stored order. `only`: report the flaws and count the plans of this rollout only.
pub fn verify(chain: &Chain, entries: &[JournalEntry], only: Option<RolloutNumber>) -> VerifyResult {
    let counts = |rollout: RolloutNumber| only.is_none_or(|only| only == rollout);
    let mut verdict = VerifyResult::default();
    for broken in check_chain(chain, entries) {
        let seq = broken.seq();
        let entry = entries.iter().find(|entry| entry.seq == seq);
        if entry.is_none_or(|entry| counts(entry.rollout)) {
            verdict.push(seq, entry, broken.into());
        }
    }
    let mut before: Option<(&JournalEntry, RecordedPlan)> = None;
    let mut lost = false;
    let (mut continuity, mut newest) = (Continuity::default(), None);
    for entry in entries {
        let rollout = entry.rollout;
        let body = Body::read(&entry.body);
        let is_new_beginning = matches!(&body, Ok(Body::Whole(whole)) if whole.beginning_lost);
        if let Some(before) =
            newest.filter(|newest| rollout < *newest && !is_new_beginning && counts(rollout))
        {
            verdict.push(entry.seq, Some(entry), FlawKind::Backwards { rollout, before });
        }
        let is_first = newest.is_none_or(|newest| rollout > newest);
        newest = if is_new_beginning {
            Some(rollout)
        } else {
            newest.max(Some(rollout))
        };
        // A change applies to the previous entry, of the same rollout.
        let fits = |known: &JournalEntry| known.rollout == entry.rollout && known.seq + 1 == entry.seq;
        let known = before
            .take()
            .filter(|(known, _)| fits(known))
            .map(|(_, recorded)| recorded);
        let goes_on = matches!(
            &body,
            Ok(Body::Change(_)
                | Body::Whole(Whole {
                    beginning_lost: false,
                    ..
                }))
        );
        let previous = known.clone().filter(|_| goes_on);
        let recorded = body.and_then(|body| RecordedPlan::after(known, body));
        if previous.is_none() {
            continuity.begin(is_first && goes_on);
        }
        let gaps = recorded.as_ref().map_or_else(
            |_| Vec::new(),
            |recorded| continuity.next(previous.as_ref(), recorded),
        );
        if counts(entry.rollout) {
            for gap in gaps {
                verdict.push(entry.seq, Some(entry), gap.into());
            }
            verdict.entries += 1;
            match &recorded {
                Ok(recorded) => verdict.check_plan(entry, recorded),
                // Entries after an unreadable one are unreadable up to the next whole entry: that is one flaw.
                Err(NotReadable::NoWhole) if lost => {}
                Err(error) => verdict.push(entry.seq, Some(entry), error.clone().into()),
            }
        }
        lost = recorded.is_err();
        before = recorded.ok().map(|recorded| (entry, recorded));
    }
    verdict.flaws.sort_by_key(|flaw| flaw.seq);
    verdict
}

impl VerifyResult {
    fn push(&mut self, seq: i64, entry: Option<&JournalEntry>, kind: FlawKind) {
        self.flaws.push(Flaw {
            seq,
            entry: entry.map(|entry| (entry.rollout, entry.at)),
            kind,
        });
    }

    fn check_plan(&mut self, entry: &JournalEntry, recorded: &RecordedPlan) {
        let decisions = recorded.plan.decisions.values();
        self.starts += decisions.filter(|decision| decision.begins_work()).count();
        if entry.at.as_microsecond() != recorded.input.now.as_microsecond() {
            let what = FlawKind::Time {
                at: entry.at,
                now: recorded.input.now,
            };
            self.push(entry.seq, Some(entry), what);
        }
        if let Err(violation) = check(&recorded.input, &recorded.plan) {
            self.push(entry.seq, Some(entry), violation.into());
        }
    }
}
