//! The store against a naive model: one map per revision.

#![expect(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its own functions too"
)]

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use starling_apiserver::store::{ChangeKind, History, Range, Store, TableName};

/// An operation on the store.
#[derive(Debug, Clone)]
enum Step {
    Put { namespace: u8, name: u8, value: u8 },
    Remove { namespace: u8, name: u8 },
    Compact { back: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..3u8, 0..4u8, 0..3u8).prop_map(|(namespace, name, value)| Step::Put { namespace, name, value }),
        3 => (0..3u8, 0..4u8).prop_map(|(namespace, name)| Step::Remove { namespace, name }),
        1 => (0..20u64).prop_map(|back| Step::Compact { back }),
    ]
}

/// Names of which one is a prefix of another, since lists are in the order of keys.
fn names(namespace: u8, name: u8) -> (String, String) {
    let namespace = ["a", "a-b", "b"][usize::from(namespace)];
    let name = ["x", "x.y", "y", "z"][usize::from(name)];
    (namespace.to_owned(), name.to_owned())
}

/// The value and revision of each object by key.
type Snapshot = BTreeMap<String, (u8, u64)>;

fn seen(stored: &starling_apiserver::store::Stored) -> (String, (u8, u64)) {
    let object = stored.read();
    let value = u8::try_from(object["value"].as_u64().unwrap()).unwrap();
    assert_eq!(object["metadata"]["resourceVersion"], stored.revision.to_string());
    (stored.head.key().into(), (value, stored.revision))
}

fn object(namespace: &str, name: &str, value: u8) -> Value {
    json!({"metadata": {"namespace": namespace, "name": name, "uid": format!("{namespace}/{name}"),
        "labels": {"value": value.to_string()}}, "value": value})
}

fn within(snapshot: &Snapshot, range: &Range<'_>) -> Vec<(String, (u8, u64))> {
    let prefix = range
        .namespace
        .map(|namespace| format!("{namespace}/"))
        .unwrap_or_default();
    snapshot
        .iter()
        .filter(|(key, _)| key.starts_with(&prefix) && key.as_str() >= range.start)
        .map(|(key, value)| (key.clone(), *value))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Lists at current and past revisions, with and without a range, and the events of watches match the model;
    /// reading compacted revisions fails.
    #[test]
    fn the_store_follows_the_model(steps in prop::collection::vec(step(), 1..60), changes in 1..80usize) {
        let history = History { changes, bytes: usize::MAX };
        let mut store = Store::new(0, history);
        let table: TableName = "things".into();
        let mut model: Vec<Snapshot> = vec![Snapshot::new()];
        let mut forgotten = 0;
        for step in steps {
            let mut now = model.last().unwrap().clone();
            match step {
                Step::Put { namespace, name, value } => {
                    let (namespace, name) = names(namespace, name);
                    let stored = store.put(&table, &mut object(&namespace, &name, value));
                    now.insert(format!("{namespace}/{name}"), (value, stored.revision));
                    model.push(now);
                }
                Step::Remove { namespace, name } => {
                    let (namespace, name) = names(namespace, name);
                    let key = format!("{namespace}/{name}");
                    let removed = store.remove(&table, &key);
                    prop_assert_eq!(removed.is_some(), now.remove(&key).is_some());
                    if removed.is_some() {
                        model.push(now);
                    }
                }
                Step::Compact { back } => {
                    let revision = store.revision().saturating_sub(back);
                    store.compact(revision);
                    forgotten = forgotten.max(revision);
                }
            }
            prop_assert_eq!(store.revision(), model.len() as u64 - 1);
        }
        let newest = store.revision();
        let known_from = forgotten.max(newest.saturating_sub(changes as u64));
        for (revision, snapshot) in (0..).zip(&model) {
            for range in [
                Range::default(),
                Range { namespace: Some("a"), start: "" },
                Range { namespace: None, start: "a-b/x.y" },
                Range { namespace: Some("b"), start: "b/y" },
            ] {
                let listed = store.list_at("things", range, revision);
                if revision < known_from {
                    prop_assert!(listed.is_err(), "{} of {}", revision, newest);
                    continue;
                }
                let listed: Vec<_> = listed.unwrap().iter().map(|stored| seen(stored)).collect();
                prop_assert_eq!(listed, within(snapshot, &range));
            }
            if revision < known_from {
                prop_assert!(store.changes("things", revision, usize::MAX).is_err());
                continue;
            }
            for key in ["a/x", "a-b/z", "b/y"] {
                let found = store.get_at("things", key, revision).unwrap().map(|stored| seen(&stored).1);
                prop_assert_eq!(found, snapshot.get(key).copied());
            }
            // A watch from any revision on reaches the current state, also one with a selector.
            let all = follow(&store, revision, snapshot, |_| true);
            prop_assert_eq!(&all, model.last().unwrap());
            let sees = |value: u8| value == 1;
            let mut some = snapshot.clone();
            some.retain(|_, (value, _)| sees(*value));
            let mut wanted = model.last().unwrap().clone();
            wanted.retain(|_, (value, _)| sees(*value));
            prop_assert_eq!(follow(&store, revision, &some, sees), wanted);
        }
        let listed: Vec<_> = store.list("things", Range::default()).map(|stored| seen(stored)).collect();
        prop_assert_eq!(listed, within(model.last().unwrap(), &Range::default()));
    }
}

/// Applies the events of a watch to a snapshot, and checks that each event type fits.
fn follow(store: &Store, from: u64, begin: &Snapshot, sees: impl Fn(u8) -> bool) -> Snapshot {
    let mut state = begin.clone();
    let mut last = from;
    for change in store.changes("things", from, usize::MAX).unwrap() {
        assert!(change.revision > last, "in order");
        last = change.revision;
        let value_of = |stored: &starling_apiserver::store::Stored| seen(stored).1.0;
        let Some(kind) = change.kind_for(|stored| sees(value_of(stored))) else {
            continue;
        };
        let (key, value) = seen(&change.object);
        match kind {
            ChangeKind::Added => assert!(state.insert(key, value).is_none(), "new"),
            ChangeKind::Modified => assert!(state.insert(key, value).is_some(), "known"),
            ChangeKind::Deleted => assert!(state.remove(&key).is_some(), "known"),
        }
    }
    state
}

#[test]
fn dependents_are_found_by_the_uid_of_their_owner() {
    let mut store = Store::new(0, History::default());
    let table: TableName = "things".into();
    let owner = |uid: &str| json!({"apiVersion": "v1", "kind": "Thing", "name": "o", "uid": uid});
    let mut child = object("a", "x", 1);
    child["metadata"]["ownerReferences"] = json!([owner("1"), owner("2")]);
    store.put(&table, &mut child);
    let here = vec![(Arc::clone(&table), "a/x".into())];
    assert_eq!(store.dependents("1"), here);
    assert_eq!(store.dependents("2"), here);
    child["metadata"]["ownerReferences"] = json!([owner("2")]);
    store.put(&table, &mut child);
    assert_eq!(store.dependents("1"), []);
    store.remove(&table, "a/x");
    assert_eq!(store.dependents("2"), []);
}

#[test]
fn the_history_is_limited_in_bytes_too() {
    let mut store = Store::new(
        0,
        History {
            changes: 1000,
            bytes: 10_000,
        },
    );
    let table: TableName = "things".into();
    for number in 0..100 {
        let mut large = object("a", "x", 1);
        large["text"] = json!(format!("{number}").repeat(500));
        store.put(&table, &mut large);
    }
    assert!(store.changes("things", 0, 1).is_err());
    assert!(store.changes("things", 95, 10).is_ok());
}

/// Guards against a simulation that depends on the hash seeds of a process: after a compaction, the watches that end
/// reconnect in the order in which they were woken.
#[tokio::test]
async fn watches_are_woken_in_the_order_of_their_tables() {
    let tables: Vec<String> = (0..40).map(|number| format!("table{number:02}")).collect();
    for _ in 0..3 {
        let mut store = Store::new(1, History::default());
        let woken = Arc::new(std::sync::Mutex::new(Vec::new()));
        let mut watches = tokio::task::JoinSet::new();
        for table in tables.iter().rev() {
            let mut signal = store.signal(&TableName::from(table.as_str()));
            let (woken, table) = (Arc::clone(&woken), table.clone());
            watches.spawn(async move {
                signal.changed().await.unwrap();
                woken.lock().unwrap().push(table);
            });
        }
        tokio::task::yield_now().await;
        store.wake_all();
        watches.join_all().await;
        assert_eq!(*woken.lock().unwrap(), tables);
    }
}
