//! A namespace or a definition is not deleted while an object in it stays.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use starling_api::OWNER_LABEL;
use starling_core::apply::PruneBlocker;
use starling_core::ids::OwnerLabel;
use starling_core::inventory::Origin;
use starling_core::object::{ObjectId, RenderedObject};
use starling_member::{MemberError, OtherOwner};

use crate::ordering::{definition, instance};
use crate::world::World;

/// A Sync with a namespace of its own, which it created, and a Secret in it.
struct Housed {
    world: World,
    inner: String,
    objects: Vec<RenderedObject>,
}

impl Housed {
    async fn apply(test: &str) -> Self {
        let mut world = World::new(test).await;
        let inner = format!("{}-inner", world.namespace);
        let objects = vec![
            world.rendered("v1", "Namespace", "", &inner, json!({})),
            world.rendered("v1", "Secret", &inner, "ours", json!({})),
        ];
        world.apply_ok(&objects).await;
        Self {
            world,
            inner,
            objects,
        }
    }

    fn namespace(&self) -> &ObjectId {
        &self.objects[0].key
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.world.other.clone(), &self.inner)
    }

    async fn annotate(&self, name: &str, annotations: Value) {
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        self.secrets()
            .patch(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    /// Returns whether the namespace is there to stay: it is not being deleted, and belongs to nobody.
    async fn namespace_stays(&self) -> bool {
        let namespace = self.live_namespace().await;
        let labels = namespace.metadata.labels.unwrap_or_default();
        namespace.metadata.deletion_timestamp.is_none() && !labels.contains_key(OWNER_LABEL)
    }

    async fn live_namespace(&self) -> Namespace {
        let namespaces: Api<Namespace> = Api::all(self.world.other.clone());
        namespaces.get(&self.inner).await.unwrap()
    }

    /// A second Sync that applies objects in the namespace of the first.
    async fn lodger(&self, test: &str, objects: impl Fn(&World) -> Vec<RenderedObject>) -> World {
        let mut lodger = World::new(test).await;
        lodger.conflicts_override = true;
        let objects = objects(&lodger);
        lodger.apply_ok(&objects).await;
        lodger
    }
}

#[tokio::test]
async fn a_namespace_with_a_protected_object_stays_when_its_sync_is_deleted() {
    let housed = Housed::apply("keep-protected").await;
    housed
        .annotate("ours", json!({"starling.dev/prune": "disabled"}))
        .await;
    let outcome = housed.world.delete(&BTreeSet::new()).await;
    assert!(outcome.is_complete(), "{outcome:?}");
    assert_eq!(outcome.relinquished, [housed.namespace().clone()], "{outcome:?}");
    assert!(housed.namespace_stays().await);
    assert!(housed.secrets().get_opt("ours").await.unwrap().is_some());
    assert!(housed.world.inventory().await.is_empty());
}

/// The object that stays leaves the inventory in the first attempt, and only a later one gets to the namespace.
#[tokio::test]
async fn an_attempt_remembers_why_a_namespace_stays() {
    let mut housed = Housed::apply("keep-later").await;
    let map = housed
        .world
        .rendered("v1", "ConfigMap", &housed.inner, "slow", json!({}));
    let objects = [housed.objects.clone(), vec![map]].concat();
    housed.world.apply_ok(&objects).await;
    housed
        .annotate("ours", json!({"starling.dev/prune": "disabled"}))
        .await;
    let maps: Api<k8s_openapi::api::core::v1::ConfigMap> =
        Api::namespaced(housed.world.other.clone(), &housed.inner);
    let finalizers = async |finalizers: Value| {
        let patch = Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
        maps.patch("slow", &PatchParams::default(), &patch).await.unwrap();
    };
    finalizers(json!(["example.test/hold"])).await;
    let outcome = housed.world.delete(&BTreeSet::new()).await;
    assert_eq!(outcome.terminating.len(), 1, "{outcome:?}");
    assert!(!housed.world.inventory().await.contains(&housed.objects[1].key));
    // A person ends the protection after the object was given up: it is nobody's, and still there.
    housed.annotate("ours", json!({"starling.dev/prune": null})).await;
    finalizers(json!(null)).await;
    let outcome = housed.world.delete(&BTreeSet::new()).await;
    assert!(outcome.is_complete(), "{outcome:?}");
    assert!(housed.namespace_stays().await);
}

#[tokio::test]
async fn a_namespace_with_an_adopted_volume_claim_stays() {
    let mut housed = Housed::apply("keep-adopted").await;
    let spec =
        json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let mut body = spec.clone();
    body["apiVersion"] = "v1".into();
    body["kind"] = "PersistentVolumeClaim".into();
    body["metadata"] = json!({"name": "data"});
    let claims: Api<k8s_openapi::api::core::v1::PersistentVolumeClaim> =
        Api::namespaced(housed.world.other.clone(), &housed.inner);
    let claim = serde_json::from_value(body).unwrap();
    claims.create(&PostParams::default(), &claim).await.unwrap();
    let rendered = housed
        .world
        .rendered("v1", "PersistentVolumeClaim", &housed.inner, "data", spec);
    let objects = [housed.objects.clone(), vec![rendered]].concat();
    housed.world.apply_ok(&objects).await;
    let outcome = housed.world.delete(&BTreeSet::new()).await;
    assert!(outcome.is_complete(), "{outcome:?}");
    assert!(housed.namespace_stays().await);
    let data = claims.get("data").await.unwrap();
    assert!(data.metadata.deletion_timestamp.is_none());
}

/// The other Sync took an object over, or has one of its own there: the management cluster of this one does not even
/// have to know it.
#[tokio::test]
async fn a_namespace_with_an_object_of_another_owner_stays() {
    for (test, name) in [("keep-handed-over", "ours"), ("keep-foreign", "theirs")] {
        let housed = Housed::apply(test).await;
        let lodger = housed
            .lodger(&format!("{test}-b"), |lodger| {
                vec![lodger.rendered("v1", "Secret", &housed.inner, name, json!({}))]
            })
            .await;
        let outcome = housed.world.delete(&BTreeSet::new()).await;
        assert!(outcome.is_complete(), "{outcome:?}");
        assert!(housed.namespace_stays().await, "{test}");
        let secret = housed.secrets().get(name).await.unwrap();
        assert_eq!(
            secret.metadata.labels.unwrap()[OWNER_LABEL],
            lodger.owner.as_str()
        );
    }
}

/// What the other Sync had there is gone: its inventory, which it has not read since, keeps nothing.
#[tokio::test]
async fn a_stale_line_of_another_inventory_keeps_no_namespace() {
    let housed = Housed::apply("keep-stale").await;
    housed
        .lodger("keep-stale-b", |lodger| {
            vec![lodger.rendered("v1", "Secret", &housed.inner, "theirs", json!({}))]
        })
        .await;
    let params = Default::default();
    housed.secrets().delete("theirs", &params).await.unwrap();
    let outcome = housed.world.delete(&BTreeSet::new()).await;
    assert_eq!(outcome.terminating, [housed.namespace().clone()], "{outcome:?}");
}

/// The other Sync deletes its objects by its own rules, in its order and after its approvals.
#[tokio::test]
async fn a_namespace_waits_for_a_sync_that_deletes_its_objects_in_it() {
    let mut housed = Housed::apply("keep-leaving").await;
    let lodger = housed
        .lodger("keep-leaving-b", |lodger| {
            vec![lodger.rendered("v1", "Secret", &housed.inner, "theirs", json!({}))]
        })
        .await;
    let other = OtherOwner {
        name: "Sync fleet/lodger".into(),
        goes: true,
    };
    housed.world.owners = [(lodger.owner.clone(), other)].into();
    let outcome = housed.world.delete(&BTreeSet::new()).await;
    let [(key, error @ MemberError::InUse { .. })] = outcome.failures.as_slice() else {
        panic!("{outcome:?}");
    };
    assert_eq!(key, housed.namespace());
    assert!(error.to_string().contains("Sync fleet/lodger"), "{error}");
    assert!(outcome.deleted.contains(&housed.objects[1].key));
    assert!(
        housed
            .live_namespace()
            .await
            .metadata
            .deletion_timestamp
            .is_none()
    );
    assert!(lodger.delete(&BTreeSet::new()).await.is_complete());
    let outcome = housed.world.delete(&BTreeSet::new()).await;
    assert_eq!(outcome.terminating, [housed.namespace().clone()], "{outcome:?}");
}

/// The namespace leaves the render, and with it one of two objects. It needs no approval: it is not deleted.
#[tokio::test]
async fn a_prune_gives_up_a_namespace_with_objects_that_stay() {
    for (test, annotation) in [("prune-rendered", "none"), ("prune-protected", "disabled")] {
        let mut housed = Housed::apply(test).await;
        let (inner, world) = (housed.inner.clone(), &mut housed.world);
        let (other, map) = (
            world.rendered("v1", "Secret", &inner, "other", json!({})),
            world.map("a", &json!({})),
        );
        let objects = [housed.objects.clone(), vec![other.clone(), map.clone()]].concat();
        world.apply_ok(&objects).await;
        housed
            .annotate("other", json!({"starling.dev/prune": annotation}))
            .await;
        let left = match annotation {
            "none" => vec![other, map],
            _ => vec![map],
        };
        let outcome = housed.world.apply(&left).await;
        assert!(
            outcome.is_complete() && outcome.prune_blocker.is_none(),
            "{outcome:?}"
        );
        assert_eq!(outcome.relinquished, [housed.namespace().clone()]);
        assert!(housed.namespace_stays().await, "{test}");
        assert!(housed.secrets().get_opt("other").await.unwrap().is_some());
        assert!(housed.secrets().get_opt("ours").await.unwrap().is_none());
        assert!(!housed.world.inventory().await.contains(housed.namespace()));
    }
}

/// Guards against a rule that keeps every namespace: without anything in it that stays, it needs an approval and goes.
#[tokio::test]
async fn a_prune_of_a_namespace_without_other_objects_needs_an_approval() {
    let mut housed = Housed::apply("prune-whole").await;
    let map = [housed.world.map("a", &json!({}))];
    let outcome = housed.world.apply(&map).await;
    let Some(PruneBlocker::Budget(held)) = outcome.prune_blocker else {
        panic!("{outcome:?}");
    };
    housed.world.approved = [held.digest].into_iter().collect();
    let outcome = housed.world.apply(&map).await;
    assert_eq!(outcome.terminating, [housed.namespace().clone()], "{outcome:?}");
}

#[tokio::test]
async fn a_definition_with_an_instance_that_stays_is_kept_and_others_of_its_group_are_not() {
    let mut world = World::new("keep-definition").await;
    let group = "keepdefinition.example.test";
    let used = definition(&world, group, "gizmos", "gizmo", "Gizmo");
    let unused = definition(&world, group, "widgets", "widget", "Widget");
    let gizmo = instance(&world, group, "Gizmo");
    world
        .apply_ok(&[used.clone(), unused.clone(), gizmo.clone()])
        .await;
    let outcome = world.delete(&[gizmo.key.clone()].into()).await;
    assert!(outcome.failures.is_empty(), "{outcome:?}");
    assert_eq!(
        outcome.relinquished,
        std::slice::from_ref(&used.key),
        "{outcome:?}"
    );
    let definitions: Api<CustomResourceDefinition> = Api::all(world.other.clone());
    let left = definitions.get(&used.key.name).await.unwrap();
    assert!(left.metadata.deletion_timestamp.is_none());
    let gone = definitions.get_opt(&unused.key.name).await.unwrap();
    assert!(gone.is_none_or(|gone| gone.metadata.deletion_timestamp.is_some()));
}

/// The former owner has dropped its record of the object already, so that nobody names it.
#[tokio::test]
async fn an_object_that_is_handed_over_keeps_its_origin_if_nobody_names_the_former_owner() {
    let mut world = World::new("origin-unnamed").await;
    let theirs = world.create_map("theirs", &json!({})).await;
    assert!(!theirs.is_empty());
    let render = |world: &World| [world.map("ours", &json!({})), world.map("theirs", &json!({}))];
    let objects = render(&world);
    world.apply_ok(&objects).await;
    let next = OwnerLabel::new("fedcba9876543210fedcba9876543210");
    let first = std::mem::replace(&mut world.owner, next);
    let known = OtherOwner {
        name: "Sync fleet/first".into(),
        goes: false,
    };
    world.owners = [(first, known)].into();
    world.restarted();
    world.conflicts_override = true;
    let objects = render(&world);
    world.apply_ok(&objects).await;
    let entries = world.inventory().await;
    let origins: Vec<Origin> = entries.entries().map(|entry| entry.listed.origin).collect();
    assert_eq!(origins, [Origin::Created, Origin::Adopted]);
}

/// Another version wrote the inventory of another owner. Only what it mentions waits for it.
#[tokio::test]
async fn an_inventory_that_cannot_be_read_keeps_the_namespaces_that_it_mentions() {
    let mentioned = Housed::apply("keep-mentioned").await;
    let other = Housed::apply("keep-other").await;
    let name = "starling-inventory-fedcba98765432100123456789abcdef";
    let text = format!("starling-inventory/9 shards=1\n?{}?\n", mentioned.inner);
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"inventory": text},
        "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "starling"}}});
    let maps = mentioned.world.system_maps();
    let map = serde_json::from_value(map).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
    let outcome = mentioned.world.delete(&BTreeSet::new()).await;
    assert!(
        matches!(&outcome.interrupted, Some(MemberError::Inventory { name: found, .. }) if found == name),
        "{outcome:?}"
    );
    assert!(outcome.deleted.is_empty(), "{outcome:?}");
    let outcome = other.world.delete(&BTreeSet::new()).await;
    assert_eq!(
        outcome.terminating,
        std::slice::from_ref(other.namespace()),
        "{outcome:?}"
    );
    maps.delete(name, &Default::default()).await.unwrap();
}
