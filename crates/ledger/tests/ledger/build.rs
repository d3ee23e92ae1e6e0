//! Test values, and a test of every method.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use jiff::Timestamp;
use starling_core::apply::{ManagementState, Record};
use starling_core::ids::{ClusterId, GroupId, OwnerLabel, RolloutNumber};
use starling_core::object::ObjectId;
use starling_ledger::{
    Admission, AdmissionKey, AdmissionOutcome, Attempt, AttemptEnd, AttemptOutcome, Due, Ledger, LedgerError,
    NewEntry, ObjectCounts, Opened, QueueKey, Rollout, RolloutOutcome,
};

pub(crate) async fn open(folder: &Path) -> (Ledger, Opened) {
    Ledger::open(folder).await.unwrap()
}

/// A time, with microseconds that must survive.
pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_microsecond(1_700_000_000_000_000 + second * 1_000_000 + 123_456).unwrap()
}

pub(crate) fn group(id: &str) -> GroupId {
    GroupId::new(id)
}

pub(crate) fn number(rollout: i64) -> RolloutNumber {
    RolloutNumber::new(rollout)
}

pub(crate) fn cluster(id: &str) -> ClusterId {
    ClusterId::new(id)
}

pub(crate) fn owner(label: &str) -> OwnerLabel {
    OwnerLabel::new(label)
}

pub(crate) fn mk_rollout(group: &str, id: i64) -> Rollout {
    Rollout {
        group_id: group.into(),
        id: number(id),
        namespace: "shop".into(),
        name: "web".into(),
        release: format!("sha256:{id}").into(),
        revisions: BTreeMap::from([("app".into(), "main@sha1:abc".into())]),
        started_at: at(0),
        previous: None,
    }
}

pub(crate) fn mk_admission(rollout: i64, cluster: &str, target: &str) -> Admission {
    Admission {
        key: AdmissionKey {
            group_id: "group-1".into(),
            rollout: number(rollout),
            entry: "app".into(),
            cluster: cluster.into(),
            target: target.into(),
        },
        sync_namespace: "shop".into(),
        sync_name: format!("web-{cluster}").into(),
        revision: "main@sha1:abc".into(),
        admitted_at: at(1),
    }
}

/// The name of the group is its UID.
pub(crate) fn mk_entry(group: &str, rollout: i64) -> NewEntry {
    NewEntry {
        group_id: group.into(),
        namespace: "shop".into(),
        name: group.into(),
        rollout: number(rollout),
        at: at(rollout),
        body: format!("{{\"rollout\":{rollout}}}"),
        is_whole: true,
    }
}

pub(crate) fn mk_attempt(sync_id: &str, number: u32) -> Attempt {
    Attempt {
        sync_id: sync_id.into(),
        namespace: "shop".into(),
        name: "web-eu1".into(),
        cluster: "eu1".into(),
        target: "sha256:t".into(),
        revision: "main@sha1:abc".into(),
        number,
        started_at: at(i64::from(number)),
    }
}

pub(crate) fn mk_end(outcome: AttemptOutcome) -> AttemptEnd {
    AttemptEnd {
        outcome,
        reason: "ReconciliationSucceeded".into(),
        message: "all is well".into(),
        counts: ObjectCounts {
            created: 1,
            configured: 2,
            unchanged: 3,
            deleted: 4,
            failed: 5,
        },
        ended_at: at(100),
    }
}

pub(crate) fn mk_queue_key(name: &str) -> QueueKey {
    QueueKey {
        kind: "Sync".into(),
        namespace: "shop".into(),
        name: name.into(),
    }
}

pub(crate) fn mk_object(name: &str) -> ObjectId {
    ObjectId {
        group: "apps".into(),
        kind: "Deployment".into(),
        namespace: "shop".into(),
        name: name.into(),
    }
}

pub(crate) fn mk_record(text: &str) -> Record {
    Record {
        digest: format!("sha256:{text}"),
        resource_version: text.into(),
        fields_digest: format!("sha256:fields-{text}"),
        fields_time: format!("time-{text}"),
        uid: format!("uid-{text}").into(),
        management: ManagementState {
            released: text.into(),
            ..ManagementState::default()
        },
    }
}

/// Writes to and reads from every table, the way the controller does, and checks what it reads.
pub(crate) async fn exercise(ledger: &Ledger, tag: &str) -> Result<(), LedgerError> {
    ledger.set_meta("replica", tag).await?;
    assert_eq!(ledger.meta("replica").await?.as_deref(), Some(tag));

    let rollout = mk_rollout(tag, 1);
    assert!(ledger.begin_rollout(&rollout).await?);
    let mut admission = mk_admission(1, "eu1", tag);
    admission.key.group_id = group(tag);
    ledger.record_admissions(std::slice::from_ref(&admission)).await?;
    assert_eq!(
        ledger.open_admissions(&group(tag)).await?,
        std::slice::from_ref(&admission)
    );

    let id = ledger.begin_attempt(&mk_attempt(tag, 1)).await?;
    assert!(
        ledger
            .finish_attempt(id, &mk_end(AttemptOutcome::Succeeded))
            .await?
    );
    assert_eq!(ledger.attempts(tag).await?.len(), 1);
    ledger.close_interrupted(at(200)).await?;

    let objects = BTreeMap::from([(mk_object(tag), mk_record(tag))]);
    ledger
        .save_records(
            &cluster("cluster-1"),
            &owner(tag),
            &objects,
            &BTreeSet::from([mk_object("gone")]),
        )
        .await?;
    assert_eq!(
        ledger
            .load_records(&cluster("cluster-1"), &owner(tag))
            .await?
            .objects,
        objects
    );

    let due = Due {
        key: mk_queue_key(tag),
        at: at(5),
    };
    ledger.save_due(std::slice::from_ref(&due)).await?;
    assert!(ledger.load_queue().await?.contains(&due));
    ledger.remove_due(&[due.key]).await?;

    ledger.append_journal(&mk_entry(tag, 1)).await?;
    assert_eq!(ledger.journal_tail(&group(tag)).await?.len(), 1);

    assert!(
        ledger
            .settle_admission(&admission.key, AdmissionOutcome::Applied, "", at(6))
            .await?
    );
    assert!(
        ledger
            .end_rollout(&group(tag), number(1), RolloutOutcome::Succeeded, at(7))
            .await?
    );
    assert_eq!(ledger.rollouts(&group(tag)).await?[0].rollout, rollout);
    Ok(())
}
