//! Members remember the number of the last write, and nothing is written without one (ADR 40).

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use serde_json::json;
use starling_core::ids::{InstallationId, OwnerLabel};
use starling_core::object::RenderedObject;
use starling_core::restore::{KnownWrites, Timeline, WriteNumber};
use starling_member::{
    DeleteJob, DeleteOutcome, Member, MemberConfig, MemberError, MemberLimits, NoBudgets, NumberError,
    WriteNumbers,
};
use starling_testkit::{Fault, FaultProxy, Match, RequestInfo};

use crate::world::{World, connect_to, soon};

/// A management cluster with one timeline.
#[derive(Debug, Default)]
struct Hub {
    known: Mutex<KnownWrites>,
    unavailable: bool,
    /// That of the test, because tests share a member.
    installation: InstallationId,
    /// Another process counts now, in another timeline.
    is_restarted: AtomicBool,
    /// Another attempt has found that the management cluster was set back.
    refuses: AtomicBool,
}

impl WriteNumbers for Hub {
    fn installation(&self) -> &InstallationId {
        &self.installation
    }

    fn take(&self) -> BoxFuture<'_, Result<WriteNumber, NumberError>> {
        let taken = if self.unavailable {
            Err(NumberError::Hub("no connection".into()))
        } else {
            let timeline = if self.is_restarted.load(Ordering::SeqCst) {
                "b"
            } else {
                "a"
            };
            let before = self.known.lock().unwrap().take(&Timeline::new(timeline), 1);
            Ok(before.next())
        };
        async { taken }.boxed()
    }

    fn refusal(&self) -> Option<NumberError> {
        let refuses = self.refuses.load(Ordering::SeqCst);
        refuses.then(|| NumberError::SetBack("set back".into()))
    }

    fn check<'a>(&'a self, found: &'a WriteNumber) -> BoxFuture<'a, Result<(), NumberError>> {
        let known = self.known.lock().unwrap().knows(found);
        async move { known.then_some(()).ok_or(NumberError::SetBack("set back".into())) }.boxed()
    }
}

/// A member that is reached through a proxy, with a management cluster.
async fn world(test: &str, hub: Hub) -> (World, FaultProxy, Arc<Hub>) {
    let mut world = World::new(test).await;
    let proxy = FaultProxy::start(world.plane()).await.unwrap();
    let hub = Arc::new(Hub {
        installation: InstallationId::new(test),
        ..hub
    });
    world.member = connect_to(&proxy).numbered(hub.clone());
    (world, proxy, hub)
}

/// The writes of a world since the first `skipped` requests, without dry runs, as the last segments of their paths.
fn writes(proxy: &FaultProxy, skipped: usize) -> Vec<String> {
    let requests = proxy.requests();
    let writes = requests[skipped..]
        .iter()
        .filter(|request| request.method != http::Method::GET && !request.query.contains("dryRun=All"));
    writes
        .map(|request| request.path.rsplit('/').next().unwrap().to_owned())
        .collect()
}

fn maps(world: &World, value: &str) -> Vec<RenderedObject> {
    ["x", "y"]
        .iter()
        .map(|name| world.map(name, &json!({"value": value})))
        .collect()
}

async fn number(world: &World) -> String {
    let map = world.system_maps().get(&inventory(world)).await.unwrap();
    let text = map.data.unwrap().remove("inventory").unwrap();
    let header = text.lines().next().unwrap();
    let number = header.split(' ').find_map(|part| part.strip_prefix("hub="));
    number.unwrap_or_default().to_owned()
}

/// The number of a write.
fn taken(count: u64) -> String {
    KnownWrites::default()
        .take(&Timeline::new("a"), 0)
        .to_string()
        .replace("/0", &format!("/{count}"))
}

fn inventory(world: &World) -> String {
    format!("starling-inventory-{}", world.owner)
}

/// Guards against a write that the member does not remember if the process ends right after it.
#[tokio::test]
async fn the_number_is_on_the_member_before_the_first_object_is_written() {
    let (mut world, proxy, _) = world("before", Hub::default()).await;
    let first = maps(&world, "1");
    world.apply_ok(&first).await;
    assert_eq!(number(&world).await, taken(1));
    // The set of keys is the same, so that nothing but the number changes in the inventory.
    let seen = proxy.requests().len();
    let second = maps(&world, "2");
    world.apply_ok(&second).await;
    assert_eq!(number(&world).await, taken(2));
    let found = writes(&proxy, seen);
    assert_eq!(found.len(), 3, "{found:?}");
    assert_eq!(found[0], inventory(&world));
    // The process ends with the first object: the number is there.
    proxy.on(
        Match::writes().path_ends_with("/configmaps/x"),
        Fault::status(http::StatusCode::UNAUTHORIZED),
    );
    let third = maps(&world, "3");
    let outcome = world.apply(&third).await;
    assert!(outcome.interrupted.is_some(), "{outcome:?}");
    assert_eq!(number(&world).await, taken(3));
}

/// Guards against a storm of writes after an update, and after the loss of the ledger.
#[tokio::test]
async fn what_is_in_step_costs_no_number_and_no_write() {
    let mut world = World::new("instep").await;
    let objects = maps(&world, "1");
    // Written by an earlier version.
    world.apply_ok(&objects).await;
    assert_eq!(number(&world).await, "");
    let proxy = FaultProxy::start(world.plane()).await.unwrap();
    let hub = Arc::new(Hub::default());
    world.member = connect_to(&proxy).numbered(hub.clone());
    world.apply_ok(&objects).await;
    world.records.clear();
    world.apply_ok(&objects).await;
    let none: [String; 0] = [];
    assert_eq!(writes(&proxy, 0), none);
    assert_eq!(*hub.known.lock().unwrap(), KnownWrites::default());
}

/// Guards against a hub at an earlier state that patches back, prunes, or deletes the objects of a Sync.
#[tokio::test]
async fn a_member_that_remembers_more_is_not_written() {
    let (mut world, proxy, hub) = world("setback", Hub::default()).await;
    let day_1 = maps(&world, "1");
    world.apply_ok(&day_1).await;
    let backup = hub.known.lock().unwrap().clone();
    let mut day_7 = maps(&world, "2");
    day_7.push(world.map("z", &json!({"value": "2"})));
    world.apply_ok(&day_7).await;
    *hub.known.lock().unwrap() = backup;
    // Of other writes there may be many since.
    hub.known.lock().unwrap().take(&Timeline::new("b"), 1_000);

    let seen = proxy.requests().len();
    world.records.clear();
    let outcome = world.apply(&day_1).await;
    assert!(
        matches!(outcome.interrupted, Some(MemberError::SetBack { .. })),
        "{outcome:?}"
    );
    let deleted = world
        .member
        .delete(DeleteJob {
            owner: &world.owner,
            siblings: &BTreeSet::new(),
            owners: &Default::default(),
            budgets: &NoBudgets,
            confirm: &Default::default(),
            approval: Default::default(),
            deadline: soon(),
        })
        .await;
    assert!(
        matches!(deleted.interrupted, Some(MemberError::SetBack { .. })),
        "{deleted:?}"
    );
    let none: [String; 0] = [];
    assert_eq!(writes(&proxy, seen), none);

    let released = number(&world).await.parse().unwrap();
    hub.known.lock().unwrap().release([released]);
    world.apply_ok(&day_1).await;
    assert_eq!(world.value("x", "value").await.as_deref(), Some("1"));
    assert_eq!(world.value("z", "value").await, None);
}

/// Guards against a Sync that was removed since the backup, and that the restored hub applies again: its inventory, and
/// with it the number in it, is gone.
#[tokio::test]
async fn a_sync_that_was_removed_is_not_applied_again() {
    let (mut world, proxy, hub) = world("removed", Hub::default()).await;
    let objects = maps(&world, "1");
    world.apply_ok(&objects).await;
    let backup = hub.known.lock().unwrap().clone();
    let deleted = world
        .member
        .delete(DeleteJob {
            owner: &world.owner,
            siblings: &BTreeSet::new(),
            owners: &Default::default(),
            budgets: &NoBudgets,
            confirm: &Default::default(),
            approval: Default::default(),
            deadline: soon(),
        })
        .await;
    assert!(deleted.is_complete(), "{deleted:?}");
    let after = hub.known.lock().unwrap().clone();
    world.records.clear();

    *hub.known.lock().unwrap() = backup;
    let seen = proxy.requests().len();
    let outcome = world.apply(&objects).await;
    assert!(
        matches!(outcome.interrupted, Some(MemberError::SetBack { .. })),
        "{outcome:?}"
    );
    let none: [String; 0] = [];
    assert_eq!(writes(&proxy, seen), none);
    let removal = world
        .member
        .last_removal(&InstallationId::new("removed"), soon())
        .await
        .unwrap();
    assert_eq!(removal.unwrap().to_string(), taken(2));
    assert_eq!(
        world
            .member
            .last_removal(&InstallationId::new("other"), soon())
            .await
            .unwrap(),
        None
    );

    *hub.known.lock().unwrap() = after;
    world.apply_ok(&objects).await;
}

async fn delete(world: &World, owner: &OwnerLabel) -> DeleteOutcome {
    let job = DeleteJob {
        owner,
        siblings: &BTreeSet::new(),
        owners: &Default::default(),
        budgets: &NoBudgets,
        confirm: &Default::default(),
        approval: Default::default(),
        deadline: soon(),
    };
    world.member.delete(job).await
}

async fn removal(world: &World, installation: &str) -> String {
    let installation = InstallationId::new(installation);
    let removal = world.member.last_removal(&installation, soon()).await.unwrap();
    removal.unwrap().to_string()
}

/// Guards against a removal that hides the number of one that the management cluster does not know.
#[tokio::test]
async fn a_later_removal_does_not_hide_a_lost_one() {
    let (mut world, _proxy, hub) = world("hidden", Hub::default()).await;
    let objects = maps(&world, "1");
    world.apply_ok(&objects).await;
    let first = world.owner.clone();
    world.owner = OwnerLabel::new(format!("{}2", &first.as_str()[..31]));
    let other = vec![world.map("z", &json!({"value": "1"}))];
    world.records.clear();
    world.apply_ok(&other).await;
    let backup = hub.known.lock().unwrap().clone();
    assert!(delete(&world, &first).await.is_complete());
    assert_eq!(removal(&world, "hidden").await, taken(3));

    *hub.known.lock().unwrap() = backup;
    hub.is_restarted.store(true, Ordering::SeqCst);
    let deleted = delete(&world, &world.owner).await;
    assert!(
        matches!(deleted.interrupted, Some(MemberError::SetBack { .. })),
        "{deleted:?}"
    );
    assert_eq!(removal(&world, "hidden").await, taken(3));
}

/// Guards against removals at the same time of which the one with the lower number is written last.
#[tokio::test]
async fn of_two_removals_the_higher_number_stays() {
    let (mut world, proxy, _) = world("higher", Hub::default()).await;
    let first = world.owner.clone();
    let second = OwnerLabel::new(format!("{}2", &first.as_str()[..31]));
    for (owner, name) in [(&first, "x"), (&second, "y")] {
        world.owner.clone_from(owner);
        world.records.clear();
        let objects = vec![world.map(name, &json!({"value": "1"}))];
        world.apply_ok(&objects).await;
    }
    // The first one takes its number, and its write waits at the member while the second one is done.
    proxy.on(
        Match::writes().path_ends_with("/configmaps/x"),
        Fault::Latency(Duration::from_secs(2)),
    );
    let slow = delete(&world, &first);
    let fast = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        delete(&world, &second).await
    };
    let (slow, fast) = tokio::join!(slow, fast);
    assert!(slow.is_complete() && fast.is_complete(), "{slow:?} {fast:?}");
    assert_eq!(removal(&world, "higher").await, taken(4));
}

/// Guards against objects that were relinquished since the backup, edited by people, and taken back unnoticed.
#[tokio::test]
async fn objects_that_were_relinquish_remember_it() {
    let (mut world, proxy, hub) = world("letgo", Hub::default()).await;
    let objects = maps(&world, "1");
    world.apply_ok(&objects).await;
    let backup = hub.known.lock().unwrap().clone();
    world.member.record_release(&world.owner, soon()).await.unwrap();
    assert_eq!(number(&world).await, taken(2));
    world.edit("x", &json!({"data": {"value": "theirs"}})).await;

    *hub.known.lock().unwrap() = backup;
    let seen = proxy.requests().len();
    world.records.clear();
    let outcome = world.apply(&objects).await;
    assert!(
        matches!(outcome.interrupted, Some(MemberError::SetBack { .. })),
        "{outcome:?}"
    );
    let none: [String; 0] = [];
    assert_eq!(writes(&proxy, seen), none);
    // Where there are no objects, there is nothing to remember.
    world
        .member
        .record_release(&OwnerLabel::new("0".repeat(32)), soon())
        .await
        .unwrap();
    assert_eq!(writes(&proxy, seen), none);
}

/// Guards against gates and admissions of a management cluster that was set back, before a Sync is written: a check of
/// the member compares all numbers on it with one request.
#[tokio::test]
async fn a_check_compares_all_numbers_with_one_request() {
    let (mut world, proxy, hub) = world("check", Hub::default()).await;
    let owners = BTreeSet::from([world.owner.clone(), OwnerLabel::new("0".repeat(32))]);
    let check = async |owners: &BTreeSet<OwnerLabel>| world.member.check_numbers(owners, soon()).await;
    check(&owners).await.unwrap();
    let objects = maps(&world, "1");
    let backup = hub.known.lock().unwrap().clone();
    world.apply_ok(&objects).await;
    let check = async |owners: &BTreeSet<OwnerLabel>| world.member.check_numbers(owners, soon()).await;
    check(&owners).await.unwrap();

    let after = hub.known.lock().unwrap().clone();
    hub.known.lock().unwrap().clone_from(&backup);
    let seen = proxy.requests().len();
    let found = check(&owners).await.unwrap_err();
    assert!(matches!(found, MemberError::SetBack { .. }), "{found:?}");
    assert_eq!(proxy.requests().len() - seen, 1);
    // Another installation may write to the same member.
    check(&BTreeSet::new()).await.unwrap();
    // An account may read by name only.
    proxy.on(
        Match::method(http::Method::GET).path_ends_with("/configmaps"),
        Fault::status(http::StatusCode::FORBIDDEN),
    );
    let found = check(&owners).await.unwrap_err();
    assert!(matches!(found, MemberError::SetBack { .. }), "{found:?}");

    // A removal is found without its owner.
    hub.known.lock().unwrap().clone_from(&after);
    assert!(delete(&world, &world.owner).await.is_complete());
    *hub.known.lock().unwrap() = after;
    let found = check(&BTreeSet::new()).await.unwrap_err();
    assert!(matches!(found, MemberError::SetBack { .. }), "{found:?}");
}

/// Guards against writes that waited for the request limits while another attempt found the restore.
#[tokio::test]
async fn a_write_that_waited_for_the_limits_is_not_sent_after_a_finding() {
    let (mut world, proxy, hub) = world("waiting", Hub::default()).await;
    let first = maps(&world, "1");
    world.apply_ok(&first).await;
    // Both writes are allowed, and wait for the rate; the finding comes with the first one that is sent.
    let limits = MemberLimits {
        per_second: NonZeroU32::new(2).unwrap(),
        burst: NonZeroU32::MIN,
        ..MemberLimits::default()
    };
    let config = MemberConfig::from_kubeconfig(&proxy.kubeconfig_yaml()).unwrap();
    world.member = Member::connect(config, limits).unwrap().numbered(hub.clone());
    let finding = move |_, _: &RequestInfo| hub.refuses.store(true, Ordering::SeqCst);
    proxy.on(
        Match::writes().and(|request| !request.path.contains("starling-system")),
        Fault::hook(finding),
    );
    let seen = proxy.requests().len();
    let second = maps(&world, "2");
    let outcome = world.apply(&second).await;
    assert!(
        matches!(outcome.interrupted, Some(MemberError::SetBack { .. })),
        "{outcome:?}"
    );
    assert_eq!(writes(&proxy, seen).len(), 2, "the number, and one object");
}

/// Guards against the number of a change that was not made: a stale read showed a drift that does not exist, and the
/// member got the number of another process although nothing had changed.
#[tokio::test]
async fn a_repair_that_changes_nothing_costs_no_number_and_no_write() {
    let (mut world, proxy, hub) = world("norepair", Hub::default()).await;
    let objects = maps(&world, "1");
    world.apply_ok(&objects).await;
    let (seen, before) = (proxy.requests().len(), hub.known.lock().unwrap().clone());
    world.drifted.insert(world.map_key("x"));
    assert_eq!(world.apply_ok(&objects).await, ["unchanged x"]);
    let none: [String; 0] = [];
    assert_eq!(writes(&proxy, seen), none);
    assert_eq!(*hub.known.lock().unwrap(), before);
    // Nor does an interrupted attempt that left an object unconfirmed, if the object was written nevertheless.
    world.records.get_mut(&world.map_key("x")).unwrap().digest.clear();
    assert_eq!(world.apply_ok(&objects).await, ["unchanged x"]);
    assert_eq!(writes(&proxy, seen), none);
    // A drift that exists is repaired, with a number before it.
    world.edit("x", &json!({"data": {"value": "theirs"}})).await;
    world.drifted.insert(world.map_key("x"));
    assert_eq!(world.apply_ok(&objects).await, ["configured x"]);
    assert_eq!(writes(&proxy, seen), [inventory(&world), "x".to_owned()]);
    assert_eq!(number(&world).await, taken(2));
    assert_eq!(world.value("x", "value").await.as_deref(), Some("1"));
}

/// An account may be allowed to patch and not to read, and a webhook may refuse dry runs: the repair itself shows what
/// it does.
#[tokio::test]
async fn a_repair_that_cannot_be_compared_is_sent() {
    let (mut world, proxy, _) = world("blindrepair", Hub::default()).await;
    let objects = maps(&world, "1");
    world.apply_ok(&objects).await;
    for refused in [
        Match::method(http::Method::GET).path_ends_with("/configmaps/x"),
        Match::writes()
            .path_ends_with("/configmaps/x")
            .query_contains("dryRun=All"),
    ] {
        world.edit("x", &json!({"data": {"value": "theirs"}})).await;
        world.drifted.insert(world.map_key("x"));
        proxy.on(refused, Fault::status(http::StatusCode::FORBIDDEN));
        world.apply_ok(&objects).await;
        assert_eq!(world.value("x", "value").await.as_deref(), Some("1"));
    }
}

#[tokio::test]
async fn without_a_number_nothing_is_written() {
    let hub = Hub {
        unavailable: true,
        ..Hub::default()
    };
    let (mut world, proxy, _) = world("nonumber", hub).await;
    let objects = maps(&world, "1");
    let outcome = world.apply(&objects).await;
    assert!(
        matches!(outcome.interrupted, Some(MemberError::NoNumber { .. })),
        "{outcome:?}"
    );
    let none: [String; 0] = [];
    assert_eq!(writes(&proxy, 0), none);
}
