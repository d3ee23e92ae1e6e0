//! The newest entry of the journal of each group.

use starling_api::{RolloutStatus, SyncGroup};
use starling_core::ids::GroupId;
use starling_core::journal::Recorder;

use crate::controller::keyed::{Keyed, per_object};
use crate::controller::object_key::ObjectKey;

/// The newest entry of each group's journal. At most one worker reconciles a group at a time, so each entry has one
/// user.
#[derive(Debug, Default)]
pub struct JournalHeads(Keyed<Head>);

per_object!(JournalHeads, 0);

/// The newest entry of a journal.
#[derive(Debug)]
struct Head {
    /// Identity of the group: another group with the same name has another journal.
    id: GroupId,
    /// The rollout in the status of the group that this process has seen or written last. Nobody else writes it, so
    /// another one is of another past.
    rollout: Option<RolloutStatus>,
    /// The recorder, unless a pass has it, or a write failed.
    recorder: Option<Recorder>,
}

impl JournalHeads {
    /// Takes the recorder of a group for a pass. Returns `None` if the ledger has to be read: this process has not
    /// written to the journal, a write failed, the recorder is of another group with this name, or the status has a
    /// rollout that this process has not written: the management cluster was set back, or another process worked on
    /// it.
    #[must_use]
    pub fn take(&self, key: &ObjectKey, id: &GroupId, group: &SyncGroup) -> Option<Recorder> {
        let head = Head {
            id: id.clone(),
            rollout: rollout_of(group),
            recorder: None,
        };
        let mut all = self.0.lock();
        let rollout = head.rollout.clone();
        let known = all.insert(key.clone(), head)?;
        let continues = known.id == *id && known.rollout == rollout;
        known.recorder.filter(|_| continues)
    }

    /// Records that this process has written a status of the group.
    pub fn wrote(&self, key: &ObjectKey, written: &SyncGroup) {
        if let Some(head) = self.0.lock().get_mut(key) {
            head.rollout = rollout_of(written);
        }
    }

    /// Keeps the recorder for the next pass, unless the heads were dropped during this one.
    pub fn put(&self, key: &ObjectKey, recorder: Recorder) {
        if let Some(head) = self.0.lock().get_mut(key) {
            head.recorder = Some(recorder);
        }
    }
}

fn rollout_of(group: &SyncGroup) -> Option<RolloutStatus> {
    group.status.as_ref()?.rollout.clone()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn group(rollout: i64) -> SyncGroup {
        let spec = json!({"clusterSelector": {}, "syncs": []});
        let rollout = json!({"id": rollout, "phase": "Succeeded", "release": "", "revisions": [], "startTime": "",
            "blockedBy": []});
        let object = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup", "metadata": {"name": "shop"},
            "spec": spec, "status": {"rollout": rollout}});
        serde_json::from_value(object).unwrap()
    }

    fn known() -> (JournalHeads, ObjectKey, GroupId) {
        let (heads, key, id) = (
            JournalHeads::default(),
            ObjectKey::new("fleet", "shop"),
            GroupId::new("uid"),
        );
        assert!(heads.take(&key, &id, &group(1)).is_none(), "nothing was written");
        heads.wrote(&key, &group(2));
        heads.put(&key, Recorder::default());
        (heads, key, id)
    }

    #[test]
    fn the_journal_goes_on_after_the_status_that_this_process_wrote() {
        let (heads, key, id) = known();
        assert!(heads.take(&key, &id, &group(2)).is_some());
        assert!(
            heads.take(&key, &id, &group(2)).is_none(),
            "the pass before has not returned it"
        );
    }

    /// The management cluster was set back while the process ran: its journal went on after entries of the lost past,
    /// without a word about them.
    #[test]
    fn a_rollout_that_this_process_did_not_write_is_of_another_past() {
        let (heads, key, id) = known();
        assert!(heads.take(&key, &id, &group(1)).is_none());
    }

    #[test]
    fn heads_that_were_dropped_during_a_pass_stay_dropped() {
        let (heads, key, id) = known();
        let recorder = heads.take(&key, &id, &group(2)).unwrap();
        heads.0.forget(&key);
        heads.put(&key, recorder);
        assert!(heads.take(&key, &id, &group(2)).is_none());
    }
}
