//! Records and the queue compared with maps in memory, for any sequence of calls and restarts.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;
use starling_core::apply::{ManagementState, Record};
use starling_core::ids::{ClusterId, OwnerLabel};
use starling_core::object::ObjectId;
use starling_ledger::{Due, Existing, Ledger, QueueKey};
use tempfile::TempDir;

#[derive(Clone, Debug)]
enum Step {
    SaveDue(Vec<(QueueKey, i64)>),
    RemoveDue(Vec<QueueKey>),
    SaveRecords(
        ClusterId,
        OwnerLabel,
        BTreeMap<ObjectId, Record>,
        BTreeSet<ObjectId>,
    ),
    KeepClusters(BTreeSet<ClusterId>),
    Restart,
}

#[derive(Default)]
struct Model {
    queue: BTreeMap<QueueKey, i64>,
    records: BTreeMap<(ClusterId, OwnerLabel), BTreeMap<ObjectId, Record>>,
}

/// Few values, so that keys collide; unusual ones, to test quoting.
fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        Just("a".to_owned()),
        Just("b'; --".to_owned()),
        Just("\"ü\\🐦\n".to_owned()),
        Just("7".to_owned()),
        Just("null".to_owned()),
    ]
}

fn cluster() -> impl Strategy<Value = ClusterId> {
    word().prop_map(ClusterId::new)
}

fn owner() -> impl Strategy<Value = OwnerLabel> {
    word().prop_map(OwnerLabel::new)
}

fn queue_key() -> impl Strategy<Value = QueueKey> {
    (word(), word(), word()).prop_map(|(kind, namespace, name)| QueueKey {
        kind,
        namespace,
        name,
    })
}

fn object_key() -> impl Strategy<Value = ObjectId> {
    (word(), word(), word(), word()).prop_map(|(group, kind, namespace, name)| ObjectId {
        group,
        kind,
        namespace,
        name,
    })
}

fn record() -> impl Strategy<Value = Record> {
    let management =
        (any::<bool>(), owner(), word()).prop_map(|(left_alone, owner, released)| ManagementState {
            left_alone,
            owner,
            released,
        });
    (".{0,80}", "[0-9]{0,20}", word(), word(), management).prop_map(
        |(digest, resource_version, fields_digest, uid, management)| Record {
            digest,
            resource_version,
            fields_time: fields_digest.clone(),
            fields_digest,
            uid: uid.into(),
            management,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    // Times that jiff can hold, before and after 1970.
    let micros = -62_000_000_000_000_000_i64..250_000_000_000_000_000;
    prop_oneof![
        3 => vec((queue_key(), micros), 0..6).prop_map(Step::SaveDue),
        2 => vec(queue_key(), 0..4).prop_map(Step::RemoveDue),
        4 => (cluster(), owner(), btree_map(object_key(), record(), 0..8), btree_set(object_key(), 0..6))
            .prop_map(|(cluster, owner, upserts, deletes)| Step::SaveRecords(cluster, owner, upserts, deletes)),
        1 => btree_set(cluster(), 0..3).prop_map(Step::KeepClusters),
        1 => Just(Step::Restart),
    ]
}

impl Model {
    fn apply(&mut self, step: &Step) {
        match step {
            Step::SaveDue(entries) => self.queue.extend(entries.iter().cloned()),
            Step::RemoveDue(keys) => self.queue.retain(|key, _| !keys.contains(key)),
            Step::SaveRecords(cluster, owner, upserts, deletes) => {
                let known = self.records.entry((cluster.clone(), owner.clone())).or_default();
                known.retain(|key, _| !deletes.contains(key));
                known.extend(upserts.clone());
            }
            Step::KeepClusters(clusters) => {
                for ((cluster, _), records) in &mut self.records {
                    if !clusters.contains(cluster) {
                        records.clear();
                    }
                }
            }
            Step::Restart => {}
        }
    }

    async fn check(&self, ledger: &Ledger) {
        let mut queue: Vec<_> = self.queue.iter().map(|(key, at)| due(key, *at)).collect();
        queue.sort_by(|a, b| (a.at, &a.key).cmp(&(b.at, &b.key)));
        assert_eq!(ledger.load_queue().await.unwrap(), queue);
        for ((cluster, owner), records) in &self.records {
            assert_eq!(
                &ledger.load_records(cluster, owner).await.unwrap().objects,
                records,
                "{owner:?} on {cluster:?}"
            );
        }
    }
}

fn due(key: &QueueKey, micros: i64) -> Due {
    Due {
        key: key.clone(),
        at: jiff::Timestamp::from_microsecond(micros).unwrap(),
    }
}

async fn perform(ledger: Ledger, folder: &TempDir, step: &Step) -> Ledger {
    match step {
        Step::SaveDue(entries) => {
            let entries: Vec<_> = entries.iter().map(|(key, at)| due(key, *at)).collect();
            ledger.save_due(&entries).await.unwrap();
        }
        Step::RemoveDue(keys) => ledger.remove_due(keys).await.unwrap(),
        Step::SaveRecords(cluster, owner, upserts, deletes) => {
            ledger
                .save_records(cluster, owner, upserts, deletes)
                .await
                .unwrap();
        }
        Step::KeepClusters(clusters) => {
            let existing = Existing {
                clusters: clusters.clone(),
                ..Existing::default()
            };
            ledger
                .forget_deleted(&existing, Timestamp::UNIX_EPOCH)
                .await
                .unwrap();
        }
        Step::Restart => {
            ledger.close().await;
            return Ledger::open(folder.path()).await.unwrap().0;
        }
    }
    ledger
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn records_and_queue_behave_like_maps(steps in vec(step(), 1..20)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let folder = TempDir::new().unwrap();
            let mut ledger = Ledger::open(folder.path()).await.unwrap().0;
            let mut model = Model::default();
            for step in &steps {
                ledger = perform(ledger, &folder, step).await;
                model.apply(step);
                model.check(&ledger).await;
            }
            ledger.close().await;
        });
    }
}
