//! Whether a journal holds: the chain, every plan in it by the opinion of the independent checker, and what each plan was told by
//! what was decided before.

use jiff::Timestamp;

use super::chain::{Broken, Chain, check_chain};
use super::sequel::{Gap, Sequel};
use super::{Body, Entry, Look, NotReadable, Whole};
use crate::plan::Decision;
use crate::plan::check::{Violation, check};

/// What was found in a journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Verdict {
    /// Entries that were read.
    pub entries: usize,
    /// Decisions to start a cluster in them.
    pub starts: usize,
    /// What is wrong, in the order of the entries.
    pub flaws: Vec<Flaw>,
}

/// Something that is wrong with an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// The entry.
    pub seq: i64,
    /// Its rollout, and when it was written; `None`: it is not there.
    pub entry: Option<(i64, Timestamp)>,
    /// What is wrong.
    pub what: What,
}

/// What may be wrong with an entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum What {
    /// It does not fit into the chain.
    #[error("{0}")]
    Chain(#[from] Broken),
    /// It cannot be read.
    #[error("{0}")]
    Unreadable(#[from] NotReadable),
    /// Its plan breaks a rule.
    #[error("the plan breaks a rule: {0}")]
    Rule(#[from] Violation),
    /// What its plan was told does not follow on the entries before it.
    #[error("{0}")]
    Gap(#[from] Gap),
    /// The number of its rollout is lower than that of the entry before.
    #[error("it is of rollout {rollout}, after an entry of rollout {before}")]
    Backwards {
        /// Its rollout.
        rollout: i64,
        /// That of the entry before.
        before: i64,
    },
    /// What it says about its time is not when it says that it was made.
    #[error("it is dated {at}, and its plan was made at {now}")]
    Time {
        /// By the entry.
        at: Timestamp,
        /// By what the planner was told.
        now: Timestamp,
    },
}

/// Checks the entries of a group, in the order in which they are kept. `only`: of what is found, and of the plans, those of one rollout
/// count.
pub fn verify(chain: &Chain, entries: &[Entry], only: Option<i64>) -> Verdict {
    let counts = |rollout: i64| only.is_none_or(|only| only == rollout);
    let mut verdict = Verdict::default();
    for broken in check_chain(chain, entries) {
        let seq = broken.seq();
        let entry = entries.iter().find(|entry| entry.seq == seq);
        if entry.is_none_or(|entry| counts(entry.rollout)) {
            verdict.push(seq, entry, broken.into());
        }
    }
    let mut before: Option<(&Entry, Look)> = None;
    let mut lost = false;
    let (mut sequel, mut newest) = (Sequel::default(), i64::MIN);
    for entry in entries {
        if entry.rollout < newest && counts(entry.rollout) {
            let (rollout, before) = (entry.rollout, newest);
            verdict.push(entry.seq, Some(entry), What::Backwards { rollout, before });
        }
        let is_first = entry.rollout > newest;
        newest = newest.max(entry.rollout);
        // A change is against the entry before it, of the same rollout.
        let fits = |known: &Entry| known.rollout == entry.rollout && known.seq + 1 == entry.seq;
        let known = before
            .take()
            .filter(|(known, _)| fits(known))
            .map(|(_, look)| look);
        let body = Body::read(&entry.body);
        let goes_on = matches!(
            &body,
            Ok(Body::Change(_)
                | Body::Whole(Whole {
                    beginning_lost: false,
                    ..
                }))
        );
        let told = known.clone().filter(|_| goes_on);
        let look = body.and_then(|body| Look::after(known, body));
        if told.is_none() {
            sequel.begin(is_first && goes_on);
        }
        let gaps = look
            .as_ref()
            .map_or_else(|_| Vec::new(), |look| sequel.next(told.as_ref(), look));
        if counts(entry.rollout) {
            for gap in gaps {
                verdict.push(entry.seq, Some(entry), gap.into());
            }
            verdict.entries += 1;
            match &look {
                Ok(look) => verdict.judge(entry, look),
                // What follows an entry that is lost is lost with it, up to the next whole one: that is one flaw.
                Err(NotReadable::NoWhole) if lost => {}
                Err(error) => verdict.push(entry.seq, Some(entry), error.clone().into()),
            }
        }
        lost = look.is_err();
        before = look.ok().map(|look| (entry, look));
    }
    verdict.flaws.sort_by_key(|flaw| flaw.seq);
    verdict
}

impl Verdict {
    fn push(&mut self, seq: i64, entry: Option<&Entry>, what: What) {
        self.flaws.push(Flaw {
            seq,
            entry: entry.map(|entry| (entry.rollout, entry.at)),
            what,
        });
    }

    fn judge(&mut self, entry: &Entry, look: &Look) {
        let decisions = look.plan.decisions.values();
        self.starts += decisions
            .filter(|decision| matches!(decision, Decision::Start { .. }))
            .count();
        if entry.at.as_microsecond() != look.input.now.as_microsecond() {
            let what = What::Time {
                at: entry.at,
                now: look.input.now,
            };
            self.push(entry.seq, Some(entry), what);
        }
        if let Err(violation) = check(&look.input, &look.plan) {
            self.push(entry.seq, Some(entry), violation.into());
        }
    }
}
