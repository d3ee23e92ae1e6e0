use k8s_openapi::api::core::v1::ConfigMap;

use super::*;

fn object(name: &str, version: u64) -> ConfigMap {
    serde_json::from_value(serde_json::json!({
        "metadata": {"namespace": "ns", "name": name, "resourceVersion": version.to_string()}
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
    let asked = |meta: &mut ObjectMeta| {
        meta.generation = Some(2);
        meta.annotations = Some(BTreeMap::from([("asked".to_owned(), "now".to_owned())]));
    };
    assert_eq!(with(4, &asked), Some(true), "an annotation");
    assert_eq!(with(5, &asked), Some(false));
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
    assert!(cache.observe_event(Event::Apply(read("a", 9))).is_empty());
    assert!(cache.observe_event(Event::Apply(read("a", 10))).is_empty());
    assert_eq!(version_of(&cache, "a").as_deref(), Some("10"));
    assert_eq!(cache.observe_event(Event::Apply(read("a", 11))).len(), 1);
}

#[test]
fn a_late_answer_does_not_bring_back_what_was_deleted() {
    let cache = Cache::default();
    cache.observe_event(Event::Apply(read("a", 10)));
    assert_eq!(cache.observe_event(Event::Delete(read("a", 12))).len(), 1);
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
    cache.observe_event(Event::Init);
    cache.observe_event(Event::InitApply(read("b", 5)));
    cache.observe_event(Event::InitApply(read("c", 7)));
    assert!(!cache.is_synced());
    let changes = cache.observe_event(Event::InitDone);
    assert!(cache.is_synced());
    let gone: Vec<_> = changes
        .iter()
        .filter(|c| matches!(c, Change::Deleted(_)))
        .map(|c| c.object().name_any())
        .collect();
    assert_eq!(gone, ["a"]);
    assert_eq!(changes.len(), 2);
}

#[test]
fn what_was_written_during_a_list_stays_and_a_ghost_does_not() {
    let cache = Cache::default();
    cache.observe_write(object("ghost", 30));
    cache.observe_event(Event::Init);
    cache.observe_write(object("new", 31));
    cache.observe_event(Event::InitDone);
    assert_eq!(version_of(&cache, "ghost"), None);
    assert_eq!(version_of(&cache, "new").as_deref(), Some("31"));
}

/// An object that became unreadable must not look like one that was deleted.
#[test]
fn an_unreadable_object_stays_as_it_was() {
    let cache = Cache::default();
    cache.observe_event(Event::Apply(read("a", 5)));
    cache.observe_event(Event::Apply(unreadable("a")));
    cache.observe_event(Event::Init);
    cache.observe_event(Event::InitApply(unreadable("a")));
    cache.observe_event(Event::InitApply(unreadable("b")));
    assert!(cache.observe_event(Event::InitDone).is_empty());
    assert_eq!(version_of(&cache, "a").as_deref(), Some("5"));
    assert!(cache.is_unreadable(&ObjectKey::new("ns", "b")));
}

/// Any history, seen through a watch that is cut, goes on a little too early (so that it repeats events), and begins
/// anew with a list now and then: what is known in the end is what there is.
#[test]
fn t19_events_that_are_repeated_and_lists_in_between_end_in_the_same_state() {
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Move {
        /// Something happens: an object is written, or deleted.
        Put(usize),
        Delete(usize),
        /// The next event arrives.
        Deliver,
        /// The watch is cut and goes on from so many events before, back to the last list at most.
        Cut(usize),
        /// The watch is cut and everything is listed.
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
                    cache.observe_event(Event::Init);
                    for (name, version) in &truth {
                        cache.observe_event(Event::InitApply(read(name, *version)));
                    }
                    cache.observe_event(Event::InitDone);
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
