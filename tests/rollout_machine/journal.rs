//! The journal as one more effect: what is about to be done is written down before, and the whole of it holds in the end.

use starling::ledger::{LedgerView, NewEntry};
use starling_core::journal::{Body, Draft, Look, Recorder, resume, verify};
use starling_core::plan::{Decision, To};

use crate::law::Broken;
use crate::machine::{Decided, Machine, Step};
use crate::world::{ENTRY, GROUP, UID, Written};

impl Machine {
    /// Knows what the journal says last: from the look before, or from the ledger where that did not come so far as to write
    /// its entry.
    pub(crate) async fn resume_journal(&mut self) {
        if self.recorder.is_none() {
            let tail = self.ledger.journal_tail(UID).await.unwrap();
            self.recorder = Some(resume(&tail).unwrap());
        }
    }

    /// What a plan is news for.
    fn draft(&self, decided: &Decided) -> Option<Draft> {
        let recorder = self.recorder.as_ref().cloned().unwrap_or_else(Recorder::default);
        recorder
            .draft(decided.rollout().id, &decided.input, &decided.plan)
            .unwrap()
    }

    /// Writes down what a look found, if that is news.
    pub(crate) async fn write_journal(&mut self, decided: &Decided) -> Step<()> {
        let Some(draft) = self.draft(decided) else {
            return Ok(());
        };
        let entry = NewEntry {
            group_uid: UID.into(),
            namespace: "fleet".into(),
            name: GROUP.into(),
            rollout: decided.rollout().id,
            at: draft.at,
            body: draft.body.clone(),
            is_whole: draft.is_whole,
        };
        // Until it is known that it was written, the ledger is asked.
        let mut recorder = self.recorder.take().unwrap_or_default();
        let passage = self.faults.enter()?;
        self.ledger.append_journal(&entry).await.unwrap();
        passage.leave()?;
        recorder.wrote(draft);
        self.recorder = Some(recorder);
        Ok(())
    }

    /// A Sync is about to be written: the newest entry is of its rollout, and starts its cluster with just that.
    pub(crate) async fn check_is_in_journal(&mut self, written: &Written) {
        let mut newest: Option<(i64, Look)> = None;
        for entry in self.ledger.journal_tail(UID).await.unwrap() {
            let body = Body::read(&entry.body).unwrap();
            let look = Look::after(newest.map(|(_, look)| look), body).unwrap();
            newest = Some((entry.rollout, look));
        }
        let told = newest.is_some_and(|(rollout, look)| {
            let Some(Decision::Start { to, .. }) = look.plan.decisions.get(&written.cluster) else {
                return false;
            };
            let good = || {
                look.input
                    .clusters
                    .get(&written.cluster)?
                    .entries
                    .get(ENTRY)?
                    .known_good
                    .as_ref()
            };
            let release = match to {
                To::Release => Some(&look.input.rollout.release),
                To::LastKnownGood => good(),
            };
            rollout == written.rollout && release == Some(&written.release)
        });
        if !told {
            let cluster = written.cluster.clone();
            self.world.broken.push(Broken::NotInJournal { cluster });
        }
    }

    /// What `starling verify` would say of it all.
    pub(crate) async fn check_journal(&mut self) {
        let mut view = LedgerView::open(self.folder.path()).await.unwrap();
        let journals = view.journals("fleet", GROUP).await.unwrap();
        let nothing_rolled = self.world.rollout().is_none();
        assert!(nothing_rolled || journals.iter().any(|journal| !journal.entries.is_empty()));
        for journal in journals {
            let verdict = verify(&journal.chain, &journal.entries, None);
            let flaws = verdict.flaws.iter();
            self.world
                .broken
                .extend(flaws.map(|flaw| Broken::Journal(format!("{}: {}", flaw.seq, flaw.what))));
        }
    }
}
