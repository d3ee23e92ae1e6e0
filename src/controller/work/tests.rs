use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use kube::core::{DeserializeGuard, Selector};
use serde_json::{Value, json};
use starling_api::{Source, SyncGroup, SyncResource};
use starling_core::apply::OwnAttempt;
use starling_core::breaker::Contact;
use starling_core::gate::Effect;
use starling_core::ids::{ClusterId, GroupId, InstallationId, RolloutNumber};
use starling_core::journal::Recorder;

use super::super::artifacts::{ArtifactStores, Origin};
use super::super::cache::Event;
use super::super::caches::connections::Connection;
use super::super::caches::drift_states::DriftState;
use super::super::caches::health::SyncHealth;
use super::super::caches::pins::Search;
use super::super::caches::plan_memo::PlanMemo;
use super::super::caches::waiting_syncs::Awaited;
use super::super::event_handlers::ChangedBy;
use super::super::gates::{self, GateTools};
use super::super::hub::testing;
use super::super::ledger_retention;
use super::super::ports::Ports;
use super::super::run::{Settings, assemble, may_delete};
use super::super::tree_renderer::TreeRenderer;
use super::*;
use crate::controller::caches::identity_proofs::Subject;
use starling_core::restore::RestoreFinding;
use starling_core::revision::Revision;
use starling_core::rollout::{AdmissionRef, ReleaseSnapshot};
use starling_git::{Credential, GitLimits, GitStore, RepoAccess, RepoUrl};
use starling_ledger::{Admission, AdmissionKey, Ledger};
use starling_member::{Member, MemberConfig, MemberLimits, Network};
use starling_net::clock::Clock;
use starling_net::web::Web;
use starling_render::{BuildTool, RenderLimits, Renderer};

const KUBECONFIG: &str = "
apiVersion: v1
kind: Config
current-context: only
contexts: [{name: only, context: {cluster: edge, user: admin}}]
clusters: [{name: edge, cluster: {server: 'https://edge.example:6443'}}]
users: [{name: admin, user: {token: t}}]
";

/// Returns the context of the loops, on a management cluster without objects.
async fn context(directory: &Path) -> Context {
    let artifacts = ArtifactStores {
        git: GitStore::new(directory.join("git"), GitLimits::default()),
    };
    let renderer = Renderer::new(BuildTool::None, RenderLimits::default());
    let ports = Ports {
        clock: Clock::system(),
        network: Network::system(),
        ledger: Arc::new(Ledger::open(directory).await.unwrap().0),
        manifest_builder: Arc::new(TreeRenderer::new(artifacts.clone(), renderer, Default::default())),
        artifacts: Arc::new(artifacts),
        web: Arc::new(Web::default()),
    };
    let settings = Settings {
        namespace: None,
        data_dir: directory.to_owned(),
        allow_insecure_sources: false,
        max_clusters_in_flight: None,
        concurrency: 1,
        kustomize: None,
        sops: None,
        deletions: Default::default(),
        addresses: Default::default(),
        rights: Default::default(),
    };
    assemble(
        ports,
        testing::empty(),
        InstallationId::new("installation"),
        &settings,
    )
}

fn object<K: serde::de::DeserializeOwned>(kind: &str, name: &str, spec: &Value) -> K {
    let metadata =
        json!({"namespace": "ns", "name": name, "uid": format!("{kind}-{name}"), "resourceVersion": "1"});
    let object =
        json!({"apiVersion": "starling.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec});
    serde_json::from_value(object).unwrap()
}

/// Passes an event of the watch to the caches, with an object of each kind.
fn observe(context: &Context, name: &str, gone: bool) {
    macro_rules! observe {
        ($cache:ident, $kind:literal, $spec:expr) => {
            let object = DeserializeGuard(Ok(object($kind, name, &$spec)));
            let event = if gone {
                Event::Delete(object)
            } else {
                Event::Apply(object)
            };
            let change = context.objects.$cache.observe_event(event);
            assert!(change.is_some(), "{}", $kind);
        };
    }
    let secret = json!({"kubeConfig": {"secretRef": {"name": "s"}}});
    observe!(
        sources,
        "Source",
        json!({"url": "https://git.example.com/a.git", "ref": {"branch": "main"}})
    );
    observe!(clusters, "Cluster", secret);
    observe!(
        syncs,
        "Sync",
        json!({"clusterRef": {"name": name}, "sourceRef": {"name": name}})
    );
    observe!(groups, "SyncGroup", json!({"clusterSelector": {}}));
}

/// Adds an entry for the objects with this name to every cache.
fn fill(context: &Context, name: &str) {
    let (key, now) = (ObjectKey::new("ns", name), context.now());

    let source = context.objects.sources.get(&key).unwrap();
    let url = RepoUrl::parse(&source.spec.url, false).unwrap();
    context
        .caches
        .source
        .origins
        .set(&source, Origin::Git(RepoAccess::new(url, Credential::None)));
    let revision = format!("main@sha1:{}", "1".repeat(40));
    let revision: Revision = revision.parse().unwrap();
    let pins = &context.caches.source.pins;
    pins.record(&key, revision.clone());
    pins.set_needed(&key, [revision.clone()].into());
    let search = Search {
        latest: revision,
        absent: BTreeSet::new(),
    };
    pins.record_search(&key, search, true);

    let config = MemberConfig::from_kubeconfig(KUBECONFIG).unwrap();
    let connection = Connection {
        member: Member::connect_over(config, MemberLimits::default(), &context.adapters.network).unwrap(),
        made_from: String::new(),
        lease: Ok(None),
        identity: Mutex::default(),
    };
    context.caches.cluster.connections.put(&key, Arc::new(connection));
    context.caches.cluster.availability.lost(&key, Contact::Probe);
    context.caches.cluster.token_renewals.set(&key, now);
    context.caches.cluster.number_checks.tried(&key, true);
    let about = Subject {
        other: key.clone(),
        made_from: Default::default(),
    };
    let proofs = &context.caches.cluster.identity_proofs;
    proofs.set(&key, about, starling_core::identity_claim::Proof::Same);

    context.caches.sync.deadlines.set(&key, now);
    context
        .caches
        .sync
        .waiting
        .wait(&Awaited::sync("ns", "never-made"), &key);
    context.caches.sync.health.set(&key, SyncHealth::default());
    context.caches.sync.drift.set(&key, DriftState::default());
    let attempt = OwnAttempt {
        previous: None,
        at: now,
    };
    context.caches.sync.attempts.set(&key, attempt);
    context.caches.sync.mark_retries.set(&key, now);
    context
        .caches
        .sync
        .reported_approvals
        .set(&key, "told".to_owned());
    context.caches.sync.unproven_admissions.set(&key, "t".to_owned());
    context.caches.sync.returned_admissions.set(&key, now.to_string());
    let _ = context.caches.group.in_flight.begin(&key, 1);
    let of_group = json!({"clusterRef": {"name": name}, "groupRef": {"name": name, "entry": "app"},
        "sourceRef": {"name": name}});
    let prunes = &context.caches.group.prune_requests;
    let _ = prunes.request(&key, &object("Sync", name, &of_group));
    context.caches.group.removal_times.observe(&key, [], now);

    let group = context.objects.groups.get(&key).unwrap();
    let effect = Effect::Webhook {
        url: "https://hook.example.com".to_owned(),
        secret: "s".to_owned(),
    };
    let open = gates::testing::open(&key, 0, effect, now);
    let tools = GateTools {
        hub: context.hub.clone(),
        web: context.adapters.web.clone(),
        clock: context.clock.clone(),
        gates: context.caches.group.gate_tasks.clone(),
        groups: context.queues.groups.clone(),
    };
    context
        .caches
        .group
        .gate_tasks
        .run(&tools, &key, &Default::default(), vec![open]);
    let snapshot = ReleaseSnapshot {
        digest: "sha256:a".into(),
        revisions: Vec::new(),
        entries: Vec::new(),
    };
    context
        .caches
        .group
        .release_snapshots
        .remember(&group, Arc::new(snapshot));
    context.caches.group.status_times.set(&key, now);
    context.caches.group.mark_retries.set(&key, now);
    context
        .caches
        .group
        .reported_approvals
        .set(&key, "told".to_owned());
    let _ = context
        .caches
        .group
        .selections
        .get(&context.objects.clusters, &group, &Selector::default());
    context.caches.group.plan_memos.put(&key, PlanMemo::default());
    let heads = &context.caches.group.journal_heads;
    let _ = heads.take(&key, &GroupId::new("uid"), &group);
    heads.put(&key, Recorder::default());
    let _ = context
        .caches
        .group
        .pending_deselections
        .since(&key, &BTreeSet::from(["c".into()]), now);
    context.caches.group.unconfirmed_writes.add_group(&key);
    context.caches.group.awaited_syncs.set(&key, true);
    context.caches.group.metric_tests.set(&key, Arc::default());
    let admission = AdmissionRef {
        cluster: "c".into(),
        entry: "app".into(),
        rollout: RolloutNumber::new(1),
        target: "t".into(),
    };
    context
        .caches
        .group
        .settled_admissions
        .add(&key, &GroupId::new("uid"), &admission);
}

/// Returns the objects with an entry, for each cache.
fn kept(context: &Context) -> Vec<(Loop, BTreeSet<String>)> {
    let names = |keys: BTreeSet<ObjectKey>| keys.into_iter().map(|key| key.name).collect();
    let caches = |of| {
        context
            .caches
            .of(of)
            .into_iter()
            .map(move |cache| (of, names(cache.keys())))
    };
    Loop::ALL.into_iter().flat_map(caches).collect()
}

fn each_has(context: &Context, expected: &[&str]) {
    let expected: BTreeSet<String> = expected.iter().map(ToString::to_string).collect();
    for (number, (of, names)) in kept(context).into_iter().enumerate() {
        assert_eq!(names, expected, "cache {number}, of {of:?}");
    }
}

/// Guards against a process that grows with every object that ever existed: releases, deselections, renewals and waits
/// were never dropped.
#[tokio::test]
async fn what_is_gone_leaves_every_cache() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let directory = tempfile::tempdir().unwrap();
    let context = context(directory.path()).await;
    for name in ["gone", "stays"] {
        observe(&context, name, false);
        fill(&context, name);
    }
    each_has(&context, &["gone", "stays"]);

    observe(&context, "gone", true);
    let gone = ObjectKey::new("ns", "gone");
    for of in Loop::ALL {
        assert_eq!(reconcile(of, &context, &gone).await.unwrap(), Next::OnEvent);
    }
    each_has(&context, &["stays"]);

    // The last attempt on the cluster ends only now.
    context.caches.cluster.availability.lost(&gone, Contact::Work);
    context.caches.forget_gone(&context.objects);
    each_has(&context, &["stays"]);
}

/// A Cluster that the last process has left as Ready.
fn ready_cluster(context: &Context, name: &str) {
    let cluster = serde_json::from_value(json!({
        "apiVersion": "starling.dev/v1alpha1", "kind": "Cluster",
        "metadata": {"name": name, "namespace": "ns", "uid": format!("Cluster-{name}"), "resourceVersion": "2"},
        "spec": {"kubeConfig": {"secretRef": {"name": "s"}}},
        "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "R", "message": "m",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
    }));
    drop(context.objects.clusters.observe_write(cluster.unwrap()));
}

/// Guards against a gate that is asked again after a restore of the management cluster, because a group was reconciled
/// before any member was checked.
#[tokio::test]
async fn a_group_waits_until_its_members_were_checked() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let directory = tempfile::tempdir().unwrap();
    let context = context(directory.path()).await;
    observe(&context, "a", false);
    ready_cluster(&context, "a");
    let key = ObjectKey::new("ns", "a");
    let waits = Some(Next::After(crate::controller::waits::NUMBER_CHECK));
    assert_eq!(reconcile(Loop::SyncGroup, &context, &key).await.ok(), waits);
    context.caches.cluster.number_checks.tried(&key, true);
    assert_ne!(reconcile(Loop::SyncGroup, &context, &key).await.ok(), waits);
}

/// Guards against rollouts, gates and attempts of a mixture of both pasts: the lists of a restored management cluster
/// come one after the other.
#[tokio::test]
async fn nothing_goes_on_while_the_management_cluster_may_have_been_set_back() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let directory = tempfile::tempdir().unwrap();
    let context = context(directory.path()).await;
    observe(&context, "a", false);
    let key = ObjectKey::new("ns", "a");
    context.writes.suspicions().raise_by_a_list();
    for of in [Loop::SyncGroup, Loop::Sync] {
        let waits = Some(Next::After(crate::controller::waits::NUMBER_CHECK));
        assert_eq!(reconcile(of, &context, &key).await.ok(), waits, "{of:?}");
    }
}

/// Guards against objects that are deleted on another member: a Secret led the Cluster there, and the identity that a
/// snapshot has is of the member before.
#[tokio::test]
async fn a_connection_is_used_for_the_member_that_was_probed_only() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let directory = tempfile::tempdir().unwrap();
    let context = context(directory.path()).await;
    observe(&context, "a", false);
    fill(&context, "a");
    let (key, connections) = (ObjectKey::new("ns", "a"), &context.caches.cluster.connections);
    let [before, after] = ["before", "after"].map(ClusterId::new);
    let connection = connections.get(&key).unwrap();
    assert!(!connection.leads_to(&before), "not probed");
    assert!(connections.probed(&key, &before) && !connections.probed(&key, &before));
    assert!(connection.leads_to(&before) && !connection.leads_to(&after));
    assert!(connections.probed(&key, &after));
    assert!(connection.leads_to(&after) && !connection.leads_to(&before));
}

/// Guards against a management cluster that is set back, and whose Sources and releases of the backup end the mirrors
/// and pins of what came since.
#[tokio::test]
async fn nothing_that_seems_unused_is_deleted_while_the_installation_is_held() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let directory = tempfile::tempdir().unwrap();
    let context = context(directory.path()).await;
    ready_cluster(&context, "eu");
    assert!(!may_delete(&context), "the member was not looked at");
    context
        .caches
        .cluster
        .number_checks
        .tried(&ObjectKey::new("ns", "eu"), true);
    assert!(may_delete(&context));
    context.writes.suspicions().raise_by_a_list();
    assert!(
        !may_delete(&context),
        "a list was older, and the count is not read yet"
    );
    let finding = RestoreFinding {
        number: "a/7".parse().unwrap(),
        witness: "Cluster ns/eu".to_owned(),
        time: context.now(),
    };
    context.writes.hold(finding, true);
    assert!(!may_delete(&context));
}

/// After the management cluster was set back, another edit of a group may get the generation of a lost one.
#[tokio::test]
async fn what_was_computed_for_a_generation_ends_when_the_management_cluster_is_set_back() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let directory = tempfile::tempdir().unwrap();
    let context = context(directory.path()).await;
    observe(&context, "a", false);
    fill(&context, "a");
    let before = kept(&context);

    let group = context.objects.groups.get(&ObjectKey::new("ns", "a")).unwrap();
    let selected = |selector: Selector| {
        let selections = &context.caches.group.selections;
        selections.get(&context.objects.clusters, &group, &selector).len()
    };
    let none = || Selector::from_iter([("tier".to_owned(), "none".to_owned())]);
    assert_eq!(
        (selected(Selector::default()), selected(none())),
        (1, 1),
        "one generation"
    );
    context.caches.forget_computed();
    assert_eq!(selected(none()), 0);

    context.caches.forget_computed();
    let after = kept(&context);
    let forgotten = before
        .iter()
        .zip(&after)
        .filter(|(before, after)| before != after);
    let forgotten: Vec<Loop> = forgotten.map(|((of, _), _)| *of).collect();
    let expected = [
        Loop::Source,
        Loop::Sync,
        Loop::Sync,
        Loop::Sync,
        Loop::Sync,
        Loop::SyncGroup,
        Loop::SyncGroup,
        Loop::SyncGroup,
        Loop::SyncGroup,
    ];
    assert_eq!(
        forgotten, expected,
        "origins, deadlines, health, attempts, returned admissions, releases, selections, memos, journals"
    );
}

/// A group that is being deleted with this policy, with one Sync, on a cluster that does not exist, and an admission.
/// The management cluster refuses deletions while the switch says so.
async fn deleted_group(folder: &std::path::Path, policy: &str) -> (Context, GroupId, Arc<AtomicBool>) {
    let mut context = context(folder).await;
    let group = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup",
        "metadata": {"namespace": "ns", "name": "web", "uid": "u-web", "resourceVersion": "5", "generation": 1,
            "creationTimestamp": "2026-11-01T00:00:00Z", "deletionTimestamp": "2026-11-02T00:00:00Z",
            "finalizers": [starling_api::FINALIZER]},
        "spec": {"clusterSelector": {}, "deletionPolicy": policy, "syncs": []}});
    let sync = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "Sync",
        "metadata": {"namespace": "ns", "name": "web-app-c", "uid": "u-sync", "resourceVersion": "4",
            "annotations": {starling_api::ROLLOUT: "1"},
            "ownerReferences": [{"apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup", "name": "web",
                "uid": "u-web"}],
            "finalizers": if policy == "Delete" { vec![starling_api::FINALIZER] } else { Vec::new() }},
        "spec": {"clusterRef": {"name": "c"}, "groupRef": {"name": "web", "entry": "app"}, "deletionPolicy": policy,
            "sourceRef": {"name": "s"}, "revision": "main@sha1:1111111111111111111111111111111111111111"}});
    let (answered, listed) = (group.clone(), sync.clone());
    let refuses = Arc::new(AtomicBool::new(true));
    let refused = refuses.clone();
    context.hub = testing::responding(move |parts, _| {
        let path = parts.uri.path();
        if parts.method == "DELETE" {
            let gone = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
            return if refused.load(Ordering::SeqCst) {
                testing::failure(parts, 500, "InternalError")
            } else {
                (200, gone)
            };
        }
        if path.contains("/syncgroups/web") {
            return (200, answered.clone());
        }
        if path.ends_with("/syncs") {
            let list = json!({"kind": "SyncList", "apiVersion": "starling.dev/v1alpha1", "metadata": {},
                "items": [listed]});
            return (200, list);
        }
        let kind = if path.contains("customresourcedefinitions") {
            json!({"kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1",
                "metadata": {"name": testing::name(parts)},
                "spec": {"group": "starling.dev", "names": {"kind": "Sync", "plural": "syncs"},
                    "scope": "Namespaced", "versions": []}})
        } else {
            json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": testing::name(parts)}})
        };
        (200, kind)
    });
    let group: SyncGroup = serde_json::from_value(group).unwrap();
    let sync: SyncResource = serde_json::from_value(sync).unwrap();
    let id = starling_core::identity::id_of(&context.installation, &group);
    let admission = Admission {
        key: AdmissionKey {
            group_id: id.clone(),
            rollout: RolloutNumber::new(1),
            entry: "app".into(),
            cluster: "c".into(),
            target: "a target that the Sync does not name any more".into(),
        },
        sync_namespace: "ns".into(),
        sync_name: "web-app-c".into(),
        revision: "main@sha1:1111111111111111111111111111111111111111".into(),
        admitted_at: context.now(),
    };
    let ledger = context.adapters.ledger.clone();
    ledger.record_admissions(&[admission]).await.unwrap();
    let groups = &context.objects.groups;
    groups.observe_event(Event::Apply(DeserializeGuard(Ok(group))));
    let syncs = &context.objects.syncs;
    syncs.observe_event(Event::Apply(DeserializeGuard(Ok(sync))));
    (context, id, refuses)
}

/// A Sync that cannot be removed may still be applied, and only the first end of an admission counts.
#[tokio::test]
async fn a_sync_of_a_deleted_group_that_cannot_be_removed_keeps_its_admission() {
    let folder = tempfile::tempdir().unwrap();
    let (context, id, refuses) = deleted_group(folder.path(), "Orphan").await;
    let key = ObjectKey::new("ns", "web");
    for (open, refusing) in [(1, true), (0, false)] {
        refuses.store(refusing, Ordering::SeqCst);
        let _ = reconcile(Loop::SyncGroup, &context, &key).await;
        let admissions = context.adapters.ledger.open_admissions(&id).await.unwrap();
        assert_eq!(admissions.len(), open, "{refusing}");
    }
}

/// Guards against a deleted group that waits for a cluster that does not exist to become reachable, and against a
/// removal that the journal does not have.
#[tokio::test]
async fn a_deleted_group_removes_the_sync_of_a_cluster_that_is_gone_and_records_that() {
    let folder = tempfile::tempdir().unwrap();
    let (context, id, refuses) = deleted_group(folder.path(), "Delete").await;
    refuses.store(false, Ordering::SeqCst);
    let _ = reconcile(Loop::SyncGroup, &context, &ObjectKey::new("ns", "web")).await;
    let ledger = &context.adapters.ledger;
    assert_eq!(ledger.open_admissions(&id).await.unwrap().len(), 0);
    let entries = ledger.journal_tail(&id).await.unwrap();
    let recorded = starling_core::journal::past::rollouts(&entries);
    let deletion = recorded[0].group_deletion.as_ref().unwrap();
    assert_eq!(
        deletion
            .removed
            .keys()
            .map(|sync| sync.as_str())
            .collect::<Vec<_>>(),
        ["web-app-c"]
    );
}

/// Guards against a group that stays as it was while the disk is full, and only a line in a log says so.
#[tokio::test]
async fn tenant_a_ledger_that_accepts_nothing_is_reported_by_the_group() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let folder = tempfile::tempdir().unwrap();
    let mut context = context(folder.path()).await;
    let group = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup",
        "metadata": {"namespace": "ns", "name": "web", "uid": "u-web", "resourceVersion": "5", "generation": 1},
        "spec": {"clusterSelector": {}, "syncs": [{"name": "app", "sourceRef": {"name": "s"}}]},
        "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Succeeded", "message": "all is well",
            "lastTransitionTime": "2026-11-01T00:00:00Z", "observedGeneration": 1}], "observedGeneration": 1}});
    let (answered, written) = (group.clone(), Arc::new(std::sync::Mutex::new(String::new())));
    let seen = written.clone();
    context.hub = testing::responding(move |parts, body| {
        if parts.uri.path().ends_with("/syncgroups/web/status") {
            *seen.lock().unwrap() = String::from_utf8_lossy(body).into_owned();
        }
        (200, answered.clone())
    });
    let source = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "Source",
        "metadata": {"namespace": "ns", "name": "s", "uid": "u-s", "resourceVersion": "4", "generation": 1},
        "spec": {"url": "https://git.example.com/a.git", "ref": {"branch": "main"}},
        "status": {"revision": "main@sha1:1111111111111111111111111111111111111111", "observedGeneration": 1}});
    let source: Source = serde_json::from_value(source).unwrap();
    let sources = &context.objects.sources;
    sources.observe_event(Event::Apply(DeserializeGuard(Ok(source))));
    let object: SyncGroup = serde_json::from_value(group).unwrap();
    let groups = &context.objects.groups;
    groups.observe_event(Event::Apply(DeserializeGuard(Ok(object))));
    context.adapters.ledger.close().await;
    let result = reconcile(Loop::SyncGroup, &context, &ObjectKey::new("ns", "web")).await;
    assert!(result.is_err(), "tried again: {written:?}");
    let written = written.lock().unwrap().clone();
    assert!(
        written.contains("LedgerUnavailable") && written.contains("the ledger is closed"),
        "{written}"
    );
    assert!(!written.contains("all is well"), "{written}");
}

/// Guards against deletions in the ledger by a list that is not complete.
#[tokio::test]
async fn tenant_nothing_is_forgotten_while_it_is_not_certain_what_exists() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let folder = tempfile::tempdir().unwrap();
    let context = context(folder.path()).await;
    observe(&context, "a", false);
    assert!(
        ledger_retention::existing(&context).is_none(),
        "no list is complete"
    );
    macro_rules! complete {
        ($($cache:ident),*) => { $(
            context.objects.$cache.begin_list();
            drop(context.objects.$cache.complete_list("9"));
        )* };
    }
    complete!(groups, clusters);
    assert!(
        ledger_retention::existing(&context).is_none(),
        "the Syncs are missing"
    );
    complete!(syncs);
    assert!(ledger_retention::existing(&context).is_some());
}

/// Writes the group `shop` with these entries, and a rollout of others.
fn write_group(context: &Context, version: u32, entries: &[&str], rolls: &[&str], by: ChangedBy) {
    let entries: Vec<Value> = { entries.iter() }
        .map(|name| json!({"name": name, "sourceRef": {"name": "s"}}))
        .collect();
    let rolls: Vec<Value> = { rolls.iter() }
        .map(|name| json!({"sync": name, "revision": "main@sha1:a"}))
        .collect();
    let group = serde_json::from_value(json!({
        "apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup",
        "metadata": {"name": "shop", "namespace": "ns", "uid": "SyncGroup-shop",
            "resourceVersion": version.to_string()},
        "spec": {"clusterSelector": {}, "syncs": entries},
        "status": {"rollout": {"id": version, "revisions": rolls}},
    }));
    let change = context.objects.groups.observe_write(group.unwrap()).unwrap();
    context.event_handlers().on_group(&change, by);
}

/// Guards against a Sync that is never reconciled again: its entry was removed when it was due, and returned before the
/// group deleted the Sync. The group does not write it, since its target is the same.
#[tokio::test]
async fn a_sync_is_reconciled_again_when_its_entry_returns() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let directory = tempfile::tempdir().unwrap();
    let context = context(directory.path()).await;
    let spec = json!({"clusterRef": {"name": "a"}, "sourceRef": {"name": "s"},
        "groupRef": {"name": "shop", "entry": "extra"}});
    let sync = object("Sync", "shop-extra-a", &spec);
    drop(context.objects.syncs.observe_write(sync));
    let key = ObjectKey::new("ns", "shop-extra-a");
    let is_enqueued = || context.queues.syncs.len() == (1, 0);
    // The entry returns to the spec; a rollback returns it to the release that rolls out.
    let returns: [(&[&str], &[&str], ChangedBy); 2] = [
        (&["app", "extra"], &["app"], ChangedBy::Others),
        (&["app"], &["app", "extra"], ChangedBy::Reconciler),
    ];
    for (version, (entries, rolls, by)) in (1..).step_by(3).zip(returns) {
        write_group(&context, version, &["app"], &["app"], ChangedBy::Others);
        assert_eq!(
            reconcile(Loop::Sync, &context, &key).await.unwrap(),
            Next::OnEvent
        );
        write_group(&context, version + 1, &["app"], &["app"], ChangedBy::Reconciler);
        assert_eq!(context.queues.syncs.len(), (0, 0), "the entry has not returned");
        write_group(&context, version + 2, entries, rolls, by);
        assert!(is_enqueued(), "{entries:?} {rolls:?}");
        let taken = context.queues.syncs.next().await;
        context.queues.syncs.done(&taken);
    }
}

/// Whatever waits in one namespace (a member that is not there, a server that drips, a build for a release) leaves
/// workers to the others.
#[tokio::test]
async fn tenant_every_loop_leaves_workers_to_other_namespaces() {
    let directory = tempfile::tempdir().unwrap();
    let context = context(directory.path()).await;
    for name in ["one", "two"] {
        observe(&context, name, false);
    }
    let in_other = |kind: &str| {
        json!({"apiVersion": "starling.dev/v1alpha1", "kind": kind, "metadata": {
            "namespace": "other", "name": "one", "uid": kind, "resourceVersion": "1"}})
    };
    macro_rules! add {
        ($cache:ident, $kind:literal, $spec:expr) => {
            let mut object = in_other($kind);
            object["spec"] = $spec;
            let object = DeserializeGuard(Ok(serde_json::from_value(object).unwrap()));
            assert!(
                context
                    .objects
                    .$cache
                    .observe_event(Event::Apply(object))
                    .is_some()
            );
        };
    }
    add!(
        sources,
        "Source",
        json!({"url": "https://git.example.com/a.git", "ref": {"branch": "main"}})
    );
    add!(
        clusters,
        "Cluster",
        json!({"kubeConfig": {"secretRef": {"name": "s"}}})
    );
    add!(
        syncs,
        "Sync",
        json!({"clusterRef": {"name": "one"}, "sourceRef": {"name": "one"}})
    );
    add!(groups, "SyncGroup", json!({"clusterSelector": {}}));
    for of in [Loop::Source, Loop::Cluster, Loop::SyncGroup] {
        let queue = of.queue(&context.queues);
        for number in 0..100 {
            queue.add(ObjectKey::new("ns", format!("{number}")));
        }
        queue.add(ObjectKey::new("other", "one"));
        let mut taken = Vec::new();
        while let Some(key) = queue.next().now_or_never() {
            taken.push(key);
        }
        assert!(taken.contains(&ObjectKey::new("other", "one")), "{of:?}");
        assert!((2..=17).contains(&taken.len()), "{of:?}: {}", taken.len());
    }
}
