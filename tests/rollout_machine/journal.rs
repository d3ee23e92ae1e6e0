//! The journal as an effect: each entry precedes its effects, and the whole chain is valid in the end.

use starling_core::journal::{Body, RecordedPlan, verify};
use starling_ledger::{Ledger, LedgerView};

use crate::hub::Hub;
use crate::invariants::Violation;
use crate::machine::Machine;
use crate::world::{GROUP, ID};

/// Returns the newest entry of the journal, with its rollout.
async fn newest(ledger: &Ledger) -> Option<(i64, RecordedPlan)> {
    let mut newest: Option<(i64, RecordedPlan)> = None;
    for entry in ledger.journal_tail(&ID).await.unwrap() {
        let body = Body::read(&entry.body).unwrap();
        let recorded = RecordedPlan::after(newest.map(|(_, recorded)| recorded), body).unwrap();
        newest = Some((entry.rollout.get(), recorded));
    }
    newest
}

impl Hub<'_> {
    /// Returns the newest entry of the journal.
    pub(crate) async fn newest_in_journal(&self) -> Option<(i64, RecordedPlan)> {
        newest(self.ledger).await
    }
}

impl Machine {
    /// Verifies the journal as `starling verify` does.
    pub(crate) async fn check_journal(&mut self) {
        let mut view = LedgerView::open(self.folder.path()).await.unwrap();
        let journals = view.journals("fleet", GROUP).await.unwrap();
        let nothing_rolled = self.world.rollout().is_none();
        assert!(nothing_rolled || journals.iter().any(|journal| !journal.entries.is_empty()));
        for journal in journals {
            let verdict = verify(&journal.chain, &journal.entries, None);
            let flaws = verdict.flaws.iter();
            self.world
                .violations
                .extend(flaws.map(|flaw| Violation::Journal(format!("{}: {}", flaw.seq, flaw.kind))));
        }
    }
}
