//! A paged list whose resource version is compacted between two pages.

use http::{Method, StatusCode};
use serde_json::json;
use starling_member::{Member, MemberConfig, MemberLimits};
use starling_testkit::{Fault, FaultProxy, Match, Stage};

use crate::world::World;

fn lists(proxy: &FaultProxy) -> Vec<String> {
    let requests = proxy.requests().into_iter();
    requests
        .filter(|request| request.method == Method::GET && request.query.contains("labelSelector"))
        .map(|request| request.query)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn t18_a_list_that_expires_between_two_pages_is_restarted_and_a_missed_delete_is_noticed() {
    let mut world = World::new("expiring").await;
    let objects: Vec<_> = (0..600)
        .map(|n| world.map(&format!("p{n:03}"), &json!({"k": "1"})))
        .collect();
    world.apply_ok(&objects).await;
    let proxy = FaultProxy::start(world.plane()).await.unwrap();
    let config = MemberConfig::from_kubeconfig(&proxy.kubeconfig_yaml()).unwrap();
    world.member = Member::connect(config, MemberLimits::default()).unwrap();

    // While the first page is in transit, one object of that page and one of the next are deleted, and the history is
    // compacted.
    let (first, listed) = tokio::sync::oneshot::channel();
    let first = std::sync::Mutex::new(Some(first));
    let first_page = Match::any().query_contains("labelSelector").times(1);
    proxy.on(
        first_page,
        Fault::hook(move |stage, _| {
            if stage == Stage::After
                && let Some(first) = first.lock().unwrap().take()
            {
                first.send(()).unwrap();
            }
        }),
    );
    let delay = proxy.on(
        Match::any().query_contains("continue=").times(1),
        Fault::Latency(std::time::Duration::from_secs(3)),
    );
    let expired = proxy.on(
        Match::any().query_contains("continue=").times(1),
        Fault::status(StatusCode::GONE),
    );
    let delete_and_compact = async {
        listed.await.unwrap();
        world.delete_map("p000").await;
        world.delete_map("p599").await;
        world.compact().await;
    };
    let (report, ()) = tokio::join!(world.find_drift(), delete_and_compact);
    assert_eq!((delay.fired(), expired.fired()), (1, 1));
    let found: Vec<_> = report.drifted.iter().map(|key| key.name.as_str()).collect();
    assert_eq!(found, ["p000", "p599"], "{report:?}");
    let queries = lists(&proxy);
    let continued: Vec<_> = queries.iter().map(|query| query.contains("continue=")).collect();
    assert_eq!(continued, [false, true, false, true], "from the beginning");
    assert!(
        proxy
            .requests()
            .iter()
            .all(|request| request.method == Method::GET)
    );

    // Only the lost objects are written.
    world.drifted = report.drifted;
    assert_eq!(world.apply_ok(&objects).await, ["created p000", "created p599"]);
    let writes = proxy
        .requests()
        .iter()
        .filter(|request| request.method != Method::GET)
        .count();
    assert_eq!(writes, 3, "two objects, and the inventory with their new UIDs");
}
