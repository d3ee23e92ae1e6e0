//! Single faults at fixed times, each of which once showed a fault of the controller.

use std::time::Duration;

use serde_json::json;

use crate::extras::Extras;
use crate::script::{Event, MEMBERS, Script, member};
use crate::staged::Staged;
use crate::user::{GROUP, OTHER};
use crate::{problems, world};

/// Runs events at these seconds, and requires that the judge finds nothing.
fn scene(events: &[(u64, Event)], staged: Option<Staged>, extras: Option<Extras>) {
    let at = |(at, event): &(u64, Event)| (Duration::from_secs(*at), event.clone());
    let script = Script {
        events: events.iter().map(at).collect(),
        staged,
        extras,
        release_delay: 0,
    };
    let run = world::run(1, &script).unwrap();
    assert_eq!(problems(&run, &script).unwrap(), Vec::<String>::new());
}

/// Groups that delete nothing, except the objects of an entry that is removed.
fn extras() -> Extras {
    Extras {
        group: json!({"maxUnselected": "100%"}),
        entry: json!({"deletionPolicy": "Delete"}),
        starts_with_entry: true,
        has_definition: false,
        made_before: Vec::new(),
        approval_delay: 0,
    }
}

/// A cluster that was set back to before its namespace existed: the namespace counted as in sync, and the attempts to
/// write the objects in it failed for ever, because no drift check comes between two attempts.
#[test]
fn a_member_that_lost_its_namespace_gets_all_objects_of_the_next_revision() {
    let cluster = member(0);
    let backup = Event::Backup {
        cluster: cluster.clone(),
    };
    let set_back = Event::SetBack {
        cluster: cluster.clone(),
        bump: false,
    };
    let events = [
        (0, backup),
        (20, Event::Push),
        (20, set_back),
        (22, Event::Serve { cluster }),
        (60, Event::Push),
    ];
    scene(&events, None, None);
}

/// A cluster that was in another group for a while: its objects had the label of the entry there, whose Sync was gone,
/// and counted as those of another installation.
#[test]
fn a_cluster_that_returns_to_its_group_gets_its_objects_back() {
    let transfer = |group| Event::Transfer {
        cluster: member(0),
        group,
    };
    let events = [
        (15, Event::Push),
        (30, transfer(OTHER)),
        (60, transfer(GROUP)),
        (90, Event::Push),
    ];
    scene(&events, None, Some(extras()));
}

/// An entry that is in the group again while a release without it rolls out: the release went on to delete its Syncs,
/// and the next one created them again.
#[test]
fn an_entry_that_has_returned_is_not_removed() {
    let staged = Staged {
        strategy: json!({"maxConcurrency": 1, "minSuccessTime": "4s", "onNewRevision": "Finish"}),
        starts_without_stages: false,
        stages: vec!["canary"; MEMBERS],
        late_members: Vec::new(),
        is_bad: false,
        approval_delay: 0,
    };
    let events = [
        (90, Event::Entry { present: false }),
        (110, Event::Entry { present: true }),
        (300, Event::Push),
        (301, Event::Push),
    ];
    scene(&events, Some(staged), Some(extras()));
}
