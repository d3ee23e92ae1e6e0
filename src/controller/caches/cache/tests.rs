use k8s_openapi::api::core::v1::ConfigMap;

use super::super::deletions::DELETION_KEPT;
use super::*;

fn object(name: &str, version: u64) -> ConfigMap {
    versioned(name, &version.to_string())
}

fn versioned(name: &str, version: &str) -> ConfigMap {
    serde_json::from_value(serde_json::json!({
        "metadata": {"namespace": "ns", "name": name, "resourceVersion": version}
    }))
    .unwrap()
}

fn read(name: &str, version: u64) -> DeserializeGuard<ConfigMap> {
    DeserializeGuard(Ok(object(name, version)))
}

fn unreadable(name: &str) -> DeserializeGuard<ConfigMap> {
    let metadata = object(name, 9).metadata;
    DeserializeGuard(Err(InvalidObject {
        error: "no".into(),
        metadata,
    }))
}

#[test]
fn an_answer_that_holds_an_edit_of_somebody_else_is_no_mere_report() {
    let cache: Cache<ConfigMap> = Cache::default();
    let with = |version: u64, change: &dyn Fn(&mut ObjectMeta)| {
        let mut object = object("a", version);
        change(&mut object.metadata);
        cache.observe_write(object).map(|change| change.is_edit())
    };
    let generation = |of: i64| move |meta: &mut ObjectMeta| meta.generation = Some(of);
    assert_eq!(with(1, &generation(1)), Some(true), "it is new");
    assert_eq!(with(2, &generation(1)), Some(false));
    assert_eq!(with(3, &generation(2)), Some(true), "an edited spec");
    let requested = |meta: &mut ObjectMeta| {
        meta.generation = Some(2);
        meta.annotations = Some(BTreeMap::from([("requested".to_owned(), "now".to_owned())]));
    };
    assert_eq!(with(4, &requested), Some(true), "an annotation");
    assert_eq!(with(5, &requested), Some(false));
    assert_eq!(with(4, &generation(3)), None, "old news");
}

fn version_of(cache: &Cache<ConfigMap>, name: &str) -> Option<String> {
    cache
        .get(&ObjectKey::new("ns", name))
        .and_then(|o| o.resource_version())
}

#[test]
fn a_lagging_watch_does_not_undo_what_we_wrote() {
    let cache = Cache::default();
    assert!(cache.observe_write(object("a", 10)).is_some());
    assert!(cache.observe_event(Event::Apply(read("a", 9))).is_none());
    assert!(cache.observe_event(Event::Apply(read("a", 10))).is_none());
    assert_eq!(version_of(&cache, "a").as_deref(), Some("10"));
    assert!(cache.observe_event(Event::Apply(read("a", 11))).is_some());
}

#[test]
fn a_late_answer_does_not_bring_back_what_was_deleted() {
    let cache = Cache::default();
    cache.observe_event(Event::Apply(read("a", 10)));
    assert!(cache.observe_event(Event::Delete(read("a", 12))).is_some());
    assert!(cache.observe_write(object("a", 11)).is_none());
    assert_eq!(version_of(&cache, "a"), None);
    assert!(cache.observe_write(object("a", 13)).is_some());
}

#[test]
fn a_new_list_tells_what_is_gone() {
    let cache = Cache::default();
    for name in ["a", "b"] {
        cache.observe_event(Event::Apply(read(name, 5)));
    }
    cache.begin_list();
    cache.receive(read("b", 5));
    cache.receive(read("c", 7));
    assert!(!cache.is_synced());
    let changes = cache.complete_list("7").changes;
    assert!(cache.is_synced());
    let gone: Vec<_> = changes
        .iter()
        .filter(|c| matches!(c, Change::Deleted(_)))
        .map(|c| c.object().name_any())
        .collect();
    assert_eq!(gone, ["a"]);
    assert_eq!(changes.len(), 2);
}

/// Lists, with writes of this process in between, and returns whether the management cluster was set back.
fn relist(
    cache: &Cache<ConfigMap>,
    listed: &[(&str, u64)],
    written: &[(&str, u64)],
    version: u64,
) -> Replaced<ConfigMap> {
    cache.begin_list();
    for (name, version) in listed {
        cache.receive(read(name, *version));
    }
    for (name, version) in written {
        cache.observe_write(object(name, *version));
    }
    cache.complete_list(&version.to_string())
}

/// Guards against a restored object that counts only after a restart: a list replaced only what was older.
#[test]
fn a_list_replaces_what_was_known_except_what_was_written_since_it_began() {
    type Objects<'a> = &'a [(&'a str, u64)];
    struct Case<'a> {
        what: &'a str,
        known: Objects<'a>,
        listed: Objects<'a>,
        written: Objects<'a>,
        version: u64,
        then: Objects<'a>,
        changed: &'a [&'a str],
        was_set_back: bool,
    }
    let cases = [
        Case {
            what: "nothing has changed",
            known: &[("a", 5), ("b", 9)],
            listed: &[("a", 5), ("b", 9)],
            written: &[],
            version: 12,
            then: &[("a", 5), ("b", 9)],
            changed: &[],
            was_set_back: false,
        },
        Case {
            what: "one is newer, one is gone, one is new",
            known: &[("a", 5), ("b", 9)],
            listed: &[("a", 10), ("c", 11)],
            written: &[],
            version: 12,
            then: &[("a", 10), ("c", 11)],
            changed: &["a", "b", "c"],
            was_set_back: false,
        },
        Case {
            what: "set back: all counts as changed, an equal version too",
            known: &[("a", 50), ("b", 9), ("c", 51)],
            listed: &[("a", 7), ("b", 9)],
            written: &[],
            version: 12,
            then: &[("a", 7), ("b", 9)],
            changed: &["a", "b", "c"],
            was_set_back: true,
        },
        Case {
            what: "set back, and the revision goes on with a larger one: an object is older than it was",
            known: &[("a", 50), ("b", 9)],
            listed: &[("a", 7), ("b", 9)],
            written: &[],
            version: 1000,
            then: &[("a", 7), ("b", 9)],
            changed: &["a", "b"],
            was_set_back: true,
        },
        Case {
            what: "written after the list: newer than it",
            known: &[("a", 5)],
            listed: &[("a", 5)],
            written: &[("a", 13), ("new", 14)],
            version: 12,
            then: &[("a", 13), ("new", 14)],
            changed: &[],
            was_set_back: false,
        },
        Case {
            what: "written before the list was read: listed, or deleted since",
            known: &[("a", 5)],
            listed: &[("a", 12)],
            written: &[("a", 11), ("new", 10)],
            version: 12,
            then: &[("a", 12)],
            changed: &["a", "new"],
            was_set_back: false,
        },
        Case {
            what: "set back, and written since then: the write is older than what was known",
            known: &[("a", 50), ("b", 60)],
            listed: &[("a", 7), ("b", 8)],
            written: &[("a", 13), ("a", 14)],
            version: 12,
            then: &[("a", 14), ("b", 8)],
            changed: &["a", "b"],
            was_set_back: true,
        },
    ];
    for case in cases {
        let cache = Cache::default();
        for (name, version) in case.known {
            cache.observe_event(Event::Apply(read(name, *version)));
        }
        let replaced = relist(&cache, case.listed, case.written, case.version);
        let now = cache.select(|_| true);
        let now: Vec<_> = now
            .iter()
            .map(|object| (object.name_any(), object.resource_version().unwrap()))
            .collect();
        let then: Vec<_> = case
            .then
            .iter()
            .map(|(name, version)| ((*name).to_owned(), version.to_string()))
            .collect();
        assert_eq!(now, then, "{}", case.what);
        let changed: BTreeSet<_> = replaced
            .changes
            .iter()
            .map(|change| change.object().name_any())
            .collect();
        let expected: BTreeSet<_> = case.changed.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(changed, expected, "{}", case.what);
        assert_eq!(replaced.was_set_back, case.was_set_back, "{}", case.what);
        // From here on the watch is followed.
        assert!(
            cache.observe_event(Event::Apply(read("a", 15))).is_some(),
            "{}",
            case.what
        );
    }
}

/// Guards against a restored object whose writes by this process are dropped for minutes as those of a deleted one.
#[test]
fn an_object_that_is_back_is_not_deleted() {
    for listed in [true, false] {
        let cache = Cache::default();
        let guarded = |version: u64| DeserializeGuard(Ok(with_uid(version, "u1")));
        cache.observe_event(Event::Apply(guarded(50)));
        cache.observe_event(Event::Delete(guarded(51)));
        cache.begin_list();
        if listed {
            cache.receive(guarded(5));
        }
        cache.complete_list("6");
        if !listed {
            cache.observe_event(Event::Apply(guarded(5)));
        }
        assert!(
            cache.observe_write(with_uid(7, "u1")).is_some(),
            "listed: {listed}"
        );
    }
}

#[test]
fn an_object_that_was_deleted_during_a_list_is_not_kept() {
    let cache = Cache::default();
    cache.begin_list();
    cache.observe_write(object("a", 13));
    cache.observe_delete(&ObjectKey::new("ns", "a"));
    cache.complete_list("12");
    assert_eq!(version_of(&cache, "a"), None);
}

#[test]
fn a_list_that_is_begun_again_forgets_the_first() {
    let cache = Cache::default();
    cache.begin_list();
    cache.receive(read("a", 5));
    relist(&cache, &[("b", 6)], &[], 7);
    assert_eq!(version_of(&cache, "a"), None);
    assert_eq!(version_of(&cache, "b").as_deref(), Some("6"));
}

/// Guards against a gap in the cache: an object that was deleted and created again was missing until the watch caught
/// up.
#[test]
fn a_lagging_deletion_does_not_remove_the_object_that_was_created_since() {
    let cache = Cache::default();
    cache.observe_event(Event::Apply(read("a", 5)));
    cache.observe_delete(&ObjectKey::new("ns", "a"));
    assert!(cache.observe_write(object("a", 8)).is_some());
    assert!(cache.observe_event(Event::Delete(read("a", 7))).is_none());
    assert_eq!(version_of(&cache, "a").as_deref(), Some("8"));
    assert!(cache.observe_event(Event::Delete(read("a", 8))).is_some());
    assert_eq!(version_of(&cache, "a"), None);
}

/// Guards against a leak of the names of all deleted objects: a watch that is never interrupted lists only once.
#[tokio::test(start_paused = true)]
async fn a_deletion_is_remembered_for_as_long_as_an_answer_may_take() {
    let cache = Cache::default();
    let delete = |name: &str, version: u64| cache.observe_event(Event::Delete(read(name, version)));
    delete("a", 5);
    tokio::time::advance(DELETION_KEPT / 2).await;
    delete("b", 6);
    delete("a", 7);
    tokio::time::advance(DELETION_KEPT / 2).await;
    delete("c", 8);
    assert!(cache.observe_write(object("a", 6)).is_none());
    assert!(cache.observe_write(object("b", 5)).is_none());
    tokio::time::advance(DELETION_KEPT).await;
    delete("d", 9);
    assert_eq!(cache.read().deletions.len(), 1);
}

fn with_uid(version: u64, uid: &str) -> ConfigMap {
    let mut object = object("a", version);
    object.metadata.uid = Some(uid.to_owned());
    object
}

/// Guards against a deleted object in the cache: the response to a write before the deletion arrived after the list
/// without the object, and no event would have removed the object.
#[test]
fn a_late_answer_does_not_bring_back_what_a_list_lacks() {
    let cache = Cache::default();
    let relist = || {
        cache.begin_list();
        cache.complete_list("4").changes
    };
    cache.observe_event(Event::Apply(DeserializeGuard(Ok(with_uid(4, "u1")))));
    assert_eq!(relist().len(), 1);
    assert!(cache.observe_write(with_uid(5, "u1")).is_none());
    // A new object with the same name is accepted, even if a restored server restarts its versions.
    assert!(cache.observe_write(with_uid(3, "u2")).is_some());
    cache.observe_event(Event::Delete(DeserializeGuard(Ok(with_uid(8, "u2")))));
    relist();
    assert!(
        cache.observe_write(with_uid(7, "u2")).is_none(),
        "deleted before the list"
    );
    let restored = with_uid(6, "u2");
    let event = Event::Apply(DeserializeGuard(Ok(restored)));
    assert!(cache.observe_event(event).is_some());
}

/// Pairs of versions: numbers beyond 64 bits, and text that is not a number.
const BEYOND_64_BITS: [&str; 2] = ["18446744073709551616", "18446744073709551617"];
const UNORDERED: [[&str; 2]; 4] = [["a9", "a1"], ["a1", "a9"], ["9", "a1"], ["a1", "9"]];

/// Guards against a cache that no longer changes: of two versions without an order, the second was never newer.
#[test]
fn the_watch_is_followed_whatever_the_form_of_versions() {
    for [first, second] in UNORDERED.into_iter().chain([BEYOND_64_BITS]) {
        let guarded = |version: &str| DeserializeGuard(Ok(versioned("a", version)));
        let cache = Cache::default();
        assert!(cache.observe_event(Event::Apply(guarded(first))).is_some());
        assert!(
            cache.observe_event(Event::Apply(guarded(first))).is_none(),
            "{first} again"
        );
        let changes = cache.observe_event(Event::Apply(guarded(second)));
        assert!(changes.is_some(), "{first} {second}");
        assert_eq!(version_of(&cache, "a").as_deref(), Some(second));

        let cache = Cache::default();
        cache.observe_event(Event::Delete(guarded(first)));
        let changes = cache.observe_event(Event::Apply(guarded(second)));
        assert!(changes.is_some(), "created again: {first} {second}");

        let cache = Cache::default();
        cache.observe_event(Event::Apply(guarded(first)));
        assert!(cache.observe_event(Event::Delete(guarded(second))).is_some());

        let cache = Cache::default();
        cache.observe_event(Event::Apply(guarded(first)));
        cache.begin_list();
        cache.receive(guarded(second));
        let changes = cache.complete_list(second).changes;
        assert_eq!(changes.len(), 1, "listed: {first} {second}");
        assert_eq!(version_of(&cache, "a").as_deref(), Some(second));
    }
}

/// The response may be older than the state from the watch, and would stay until the next event.
#[test]
fn an_answer_that_cannot_be_ordered_does_not_replace_what_is_known() {
    for [first, second] in UNORDERED {
        let cache = Cache::default();
        assert!(
            cache.observe_write(versioned("a", first)).is_some(),
            "nothing is known"
        );
        assert!(cache.observe_write(versioned("a", second)).is_none());
        assert_eq!(version_of(&cache, "a").as_deref(), Some(first));
        cache.observe_event(Event::Delete(DeserializeGuard(Ok(versioned("a", first)))));
        assert!(cache.observe_write(versioned("a", second)).is_none(), "deleted");
    }
    let [older, newer] = BEYOND_64_BITS;
    let cache = Cache::default();
    cache.observe_write(versioned("a", newer));
    assert!(cache.observe_write(versioned("a", older)).is_none());
    cache.observe_event(Event::Apply(DeserializeGuard(Ok(versioned("a", older)))));
    assert_eq!(version_of(&cache, "a").as_deref(), Some(newer));
}

/// An object that becomes unreadable must not appear to be deleted.
#[test]
fn an_unreadable_object_stays_as_it_was() {
    let cache = Cache::default();
    cache.observe_event(Event::Apply(read("a", 5)));
    cache.observe_event(Event::Apply(unreadable("a")));
    for version in ["9", "3"] {
        cache.begin_list();
        cache.receive(unreadable("a"));
        cache.receive(unreadable("b"));
        let replaced = cache.complete_list(version);
        assert!(replaced.changes.is_empty() && !replaced.was_set_back, "{version}");
    }
    assert_eq!(version_of(&cache, "a").as_deref(), Some("5"));
    assert!(cache.is_unreadable(&ObjectKey::new("ns", "b")));
}

/// For any history, and a watch that is interrupted, resumes a little early (so that events repeat) and sometimes lists
/// again: the final state of the cache is the final state of the server.
#[test]
fn t19_events_that_are_repeated_and_lists_in_between_end_in_the_same_state() {
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Move {
        /// A change on the server: an object is written or deleted.
        Put(usize),
        Delete(usize),
        /// The next event is delivered.
        Deliver,
        /// The watch is interrupted and resumes this number of events earlier, at most at the last list.
        Cut(usize),
        /// The watch is interrupted and lists all objects.
        Relist,
    }
    const NAMES: [&str; 3] = ["a", "b", "c"];
    let moves = prop_oneof![
        3 => (0..NAMES.len()).prop_map(Move::Put),
        2 => (0..NAMES.len()).prop_map(Move::Delete),
        4 => Just(Move::Deliver),
        1 => (0..6usize).prop_map(Move::Cut),
        1 => Just(Move::Relist),
    ];
    proptest!(ProptestConfig::with_cases(256), |(moves in proptest::collection::vec(moves, 0..60))| {
        let cache = Cache::default();
        let mut truth: BTreeMap<&str, u64> = BTreeMap::new();
        let mut history: Vec<(bool, &str, u64)> = Vec::new();
        let (mut listed, mut next) = (0, 0);
        let deliver = |(put, name, version): (bool, &str, u64)| {
            cache.observe_event(if put {
                Event::Apply(read(name, version))
            } else {
                Event::Delete(read(name, version))
            });
        };
        for step in moves {
            let version = history.len() as u64 + 1;
            match step {
                Move::Put(n) => {
                    truth.insert(NAMES[n], version);
                    history.push((true, NAMES[n], version));
                }
                Move::Delete(n) => {
                    if truth.remove(NAMES[n]).is_some() {
                        history.push((false, NAMES[n], version));
                    }
                }
                Move::Deliver if next < history.len() => {
                    deliver(history[next]);
                    next += 1;
                }
                Move::Deliver => {}
                Move::Cut(back) => next = next.saturating_sub(back).max(listed),
                Move::Relist => {
                    cache.begin_list();
                    for (name, version) in &truth {
                        cache.receive(read(name, *version));
                    }
                    cache.complete_list(&history.len().to_string());
                    (listed, next) = (history.len(), history.len());
                }
            }
        }
        history[next..].iter().copied().for_each(deliver);
        for name in NAMES {
            let known = version_of(&cache, name);
            prop_assert_eq!(known, truth.get(name).map(ToString::to_string), "{}", name);
        }
    });
}
