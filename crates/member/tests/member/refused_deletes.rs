//! A member that refuses to delete an object of a prune: what the object needs to go stays with it.

use http::{Method, StatusCode};
use serde_json::json;
use starling_core::apply::PruneBlocker;
use starling_member::MemberError;
use starling_testkit::{Fault, FaultProxy, Match};

use crate::pruning::Operated;
use crate::world::{World, connect_to};

/// As at the end of a Sync. The operator that runs the finalizers, and the definition, stay while an instance does, and
/// go once the refusal is over, without another approval.
#[tokio::test]
async fn a_refused_delete_in_a_prune_stops_what_comes_after_it() {
    let mut world = World::new("prune-refused").await;
    let operated = Operated::apply(&mut world, "prunerefused.example.test").await;
    operated.finalizers(&json!(null)).await;
    let proxy = FaultProxy::start(world.plane()).await.unwrap();
    world.member = connect_to(&proxy);
    let keep = [world.map("a", &json!({}))];
    let Some(PruneBlocker::Budget(held)) = world.apply(&keep).await.prune_blocker else {
        panic!("a definition is deleted without an approval");
    };
    world.approved = [held.digest].into_iter().collect();
    for code in [StatusCode::FORBIDDEN, StatusCode::INTERNAL_SERVER_ERROR] {
        let refusal = Match::method(Method::DELETE).path_ends_with("/gizmos/one");
        let refused = proxy.on(refusal, Fault::status(code));
        let outcome = world.apply(&keep).await;
        assert!(refused.fired() > 0, "{outcome:?}");
        assert!(outcome.deleted.is_empty(), "{outcome:?}");
        let failed: Vec<_> = outcome.failures.iter().map(|(key, _)| key).collect();
        assert_eq!(failed, [&operated.objects[1].key], "{outcome:?}");
        let terminates = |error: &MemberError| matches!(error, MemberError::Terminating { .. });
        assert!(
            !outcome.failures.iter().any(|(_, error)| terminates(error)),
            "{outcome:?}"
        );
        assert!(operated.has_operator(&world).await, "{code}");
        for object in &operated.objects {
            assert!(world.inventory().await.contains(&object.key), "{:?}", object.key);
        }
        let later = |path: &str| proxy.count(&Method::DELETE, path);
        assert_eq!(
            (
                later("/configmaps/operator"),
                later(&operated.objects[0].key.name)
            ),
            (0, 0)
        );
        proxy.remove(&refused);
    }
    world.apply_ok(&keep).await;
    assert_eq!(world.inventory_names().await, ["a"]);
}
