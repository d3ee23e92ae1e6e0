//! The verification of the journal of a group.

use jiff::Timestamp;
use serde::Serialize;
use starling_core::ids::{GroupId, RolloutNumber};
use starling_core::journal::{Flaw, VerifyResult, verify};

use starling_ledger::GroupJournal;

/// The verified journals of a group. A group that was deleted and created again has one for each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verification {
    /// The group, as `NAMESPACE/NAME`.
    pub group: String,
    /// The journals, that of the newest group last.
    pub journals: Vec<JournalVerification>,
}

/// A verified journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JournalVerification {
    /// Number of admissions in the verified entries.
    pub admissions: usize,
    /// Number of the last expired entry; 0: the journal is complete.
    pub cut_until: i64,
    /// Number of verified entries.
    pub entries: usize,
    /// Identity of the group (`status.identity.id`).
    pub group_id: GroupId,
    /// Number of the newest entry.
    pub newest: i64,
    /// Hash of the newest entry.
    pub newest_hash: String,
    /// The violations, in the order of the entries.
    pub violations: Vec<Violation>,
}

/// A violation in an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Violation {
    /// Time at which the entry was written; `None`: the entry is missing.
    pub at: Option<Timestamp>,
    /// Number of the entry.
    pub entry: i64,
    /// Number of the rollout; `None`: the entry is missing.
    pub rollout: Option<i64>,
    /// Description of the violation.
    #[serde(rename = "violation")]
    pub message: String,
}

impl Verification {
    /// Verifies journals: the hash chain as a whole, and the plans of all rollouts or of one.
    #[must_use]
    pub fn of(group: String, journals: &[GroupJournal], rollout: Option<i64>) -> Self {
        let journals = journals.iter();
        let verified = journals.map(|journal| {
            let verdict = verify(&journal.chain, &journal.entries, rollout.map(RolloutNumber::new));
            JournalVerification::of(journal, &verdict)
        });
        Self {
            group,
            journals: verified.collect(),
        }
    }

    /// Number of verified entries.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.journals.iter().map(|journal| journal.entries).sum()
    }

    /// Number of violations.
    #[must_use]
    pub fn violations(&self) -> usize {
        self.journals.iter().map(|journal| journal.violations.len()).sum()
    }
}

impl JournalVerification {
    fn of(journal: &GroupJournal, verdict: &VerifyResult) -> Self {
        Self {
            admissions: verdict.starts,
            cut_until: journal.chain.cut.seq,
            entries: verdict.entries,
            group_id: journal.group_id.clone(),
            newest: journal.chain.newest.seq,
            newest_hash: journal.chain.newest.hash.clone(),
            violations: verdict.flaws.iter().map(Violation::of).collect(),
        }
    }
}

impl Violation {
    fn of(flaw: &Flaw) -> Self {
        Self {
            at: flaw.entry.map(|(_, at)| at),
            entry: flaw.seq,
            rollout: flaw.entry.map(|(rollout, _)| rollout.get()),
            message: flaw.kind.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use starling_core::journal::{Chain, ChainEnd};

    use super::*;

    /// Programs read this form.
    #[test]
    fn the_json_form_is_stable() {
        let journal = GroupJournal {
            group_id: "u".into(),
            chain: Chain {
                cut: ChainEnd::beginning(),
                newest: ChainEnd {
                    seq: 7,
                    hash: "ab12".into(),
                },
            },
            entries: Vec::new(),
        };
        let mut verified = Verification::of("shop/web".into(), &[journal], None);
        verified.journals[0].violations = vec![Violation {
            at: None,
            entry: 3,
            rollout: None,
            message: "missing".into(),
        }];
        assert_eq!(
            serde_json::to_string(&verified).unwrap(),
            r#"{"group":"shop/web","journals":[{"admissions":0,"cutUntil":0,"entries":0,"groupId":"u","newest":7,"newestHash":"ab12","violations":[{"at":null,"entry":3,"rollout":null,"violation":"missing"}]}]}"#
        );
    }
}
