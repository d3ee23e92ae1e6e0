//! An entry with `deletionPolicy: Delete` is taken out of a suspended group whose canary waits for an approval. Guards
//! against what once happened within a second on all clusters at once: its ConfigMap, its claim and its namespaces were
//! deleted, one of them a namespace that a person had made before, with a Secret of somebody else in it.

use anyhow::{Context, Result, ensure};
use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, PersistentVolumeClaim, Secret};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use starling_api::{
    FIELD_MANAGER, OWNER_LABEL, REQUESTED_AT, RolloutPhase, SyncGroup, SyncGroupStatus, SyncResource,
};
use starling_controlplane::Process;
use starling_testkit::fleet::{NAMESPACE, TIMEOUT};
use starling_testkit::{Fleet, FleetOptions, GitRepo, program, wait};

use crate::hub_move::{act, starling};
use crate::world::{blocked_by, config_map, is_ready};

const MEMBERS: [&str; 3] = ["m1", "m2", "m3"];
/// The member on which a person has made the namespace `team` before.
const ADOPTING: &str = "m2";
const GROUP: &str = "shop";
/// What the entry `tools` has: paths of its objects, in the order of their deletion.
const OBJECTS: [&str; 4] = [
    "/api/v1/namespaces/default/configmaps/tool",
    "/api/v1/namespaces/default/persistentvolumeclaims/data",
    "/api/v1/namespaces/made",
    "/api/v1/namespaces/team",
];

fn entry(name: &str) -> Value {
    // No controller binds the claim here.
    json!({"name": name, "sourceRef": {"name": GROUP}, "path": format!("./{name}"), "deletionPolicy": "Delete",
        "retryInterval": "1s", "wait": false})
}

fn strategy(windows: &Value) -> Value {
    let canary = json!({"name": "canary", "afterStageTasks": [{"type": "Approval"}],
        "clusterSelector": {"matchLabels": {"stage": "canary"}}});
    json!({"maxConcurrency": 1, "stages": [canary], "windows": windows})
}

fn commit(repo: &GitRepo) -> Result<String> {
    let namespace = |name: &str| {
        format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}, labels: {{of: tools}}}}\n")
    };
    let claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data, namespace: default}\nspec: \
                 {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}\n";
    let files = [
        ("app/settings.yaml", config_map("settings", "one")),
        ("tools/tool.yaml", config_map("tool", "one")),
        ("tools/data.yaml", claim.to_owned()),
        ("tools/made.yaml", namespace("made")),
        ("tools/team.yaml", namespace("team")),
    ];
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (*path, text.as_str())).collect();
    Ok(repo.commit(&files, "two entries")?)
}

struct World {
    /// The first field, so that it stops before its clusters.
    controller: Process,
    fleet: Fleet,
    /// UIDs of the namespace and the Secret that a person has made.
    foreign: (Option<String>, Option<String>),
}

impl World {
    /// Both entries are on all clusters.
    async fn start(repo: &GitRepo) -> Result<Self> {
        let fleet = Fleet::start(FleetOptions {
            members: MEMBERS.len(),
            proxied: true,
            // They end the namespaces.
            managers: MEMBERS.map(str::to_owned).to_vec(),
            ..FleetOptions::default()
        })
        .await?;
        let foreign = make_foreign(fleet.member(ADOPTING).await?).await?;
        let commit = commit(repo)?;
        let branch = json!({"branch": "main"});
        fleet.put_source(GROUP, &repo.url(), branch).await?;
        let controller = fleet.controller(program(), &[])?;
        for member in MEMBERS {
            let stage = if member == "m1" { "canary" } else { "others" };
            fleet.add_cluster(member, &[("stage", stage)]).await?;
            fleet.until(member, "Ready", is_ready).await?;
        }
        let spec = json!({"clusterSelector": {}, "syncs": [entry("app"), entry("tools")],
            "rolloutStrategy": strategy(&json!([]))});
        fleet.put_group(GROUP, spec).await?;
        fleet.group_status(GROUP, "the canary waits", is_waiting).await?;
        act(&fleet, &["approve", GROUP]).await?;
        fleet.rollout(GROUP, &commit, RolloutPhase::Succeeded).await?;
        for member in MEMBERS {
            // What the controller of claims would do when nothing uses the claim any more.
            let claims: Api<PersistentVolumeClaim> = Api::namespaced(fleet.member(member).await?, "default");
            let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
            claims.patch("data", &PatchParams::default(), &release).await?;
        }
        Ok(Self {
            controller,
            fleet,
            foreign,
        })
    }

    /// The DELETEs of objects that members have received, with their time and path, in order.
    fn deletions(&self) -> Result<Vec<(Timestamp, &'static str, String)>> {
        let mut found = Vec::new();
        for member in MEMBERS {
            for request in self.fleet.proxy(member)?.requests() {
                let is_inventory = request.path.contains("/starling-system/");
                let is_real = !request.query.contains("dryRun=All");
                if request.method == Method::DELETE && is_real && !is_inventory {
                    found.push((request.when, member, request.path));
                }
            }
        }
        found.sort();
        Ok(found)
    }

    async fn has_tools(&self, member: &str) -> Result<Vec<bool>> {
        let client = self.fleet.member(member).await?;
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), "default");
        let namespaces: Api<Namespace> = Api::all(client);
        Ok(vec![
            maps.get_opt("tool").await?.is_some(),
            claims.get_opt("data").await?.is_some(),
            namespaces.get_opt("made").await?.is_some(),
            namespaces.get_opt("team").await?.is_some(),
        ])
    }

    async fn until_tools(&self, member: &str, expected: [bool; 4]) -> Result<()> {
        wait::until(
            TIMEOUT,
            format!("the tools of {member}: {expected:?}"),
            async || {
                let found = self
                    .has_tools(member)
                    .await
                    .map_err(|error| format!("{error:#}"))?;
                (found == expected)
                    .then_some(())
                    .ok_or_else(|| format!("{found:?}"))
            },
        )
        .await
        .with_context(|| self.controller.log_tail(60).unwrap_or_default())?;
        Ok(())
    }

    async fn patch(&self, spec: Value) -> Result<Option<i64>> {
        let group: SyncGroup = self.fleet.patch(GROUP, json!({"spec": spec})).await?;
        Ok(group.metadata.generation)
    }

    /// Waits until the current group is blocked by a reason, and the Sync that stays on each cluster has been
    /// reconciled since. One whose entry was taken out answers no request.
    async fn until_blocked(&self, generation: Option<i64>, reason: &str) -> Result<()> {
        let blocked = |status: &SyncGroupStatus| {
            status.observed_generation == generation && blocked_by(status).contains(reason)
        };
        self.fleet.group_status(GROUP, reason, blocked).await?;
        for member in MEMBERS {
            let sync = format!("{GROUP}-app-{member}");
            let requested = json!({"metadata": {"annotations": {REQUESTED_AT: reason}}});
            self.fleet.patch::<SyncResource>(&sync, requested).await?;
            let handled = |sync: &SyncResource| {
                let status = sync.status.as_ref();
                status.is_some_and(|status| status.last_handled_reconcile_at == reason)
            };
            self.fleet.until(&sync, "the request is handled", handled).await?;
        }
        Ok(())
    }
}

/// A person makes a namespace, with a Secret of somebody else in it.
async fn make_foreign(client: Client) -> Result<(Option<String>, Option<String>)> {
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": "team"}}))?;
    let namespace = Api::all(client.clone())
        .create(&PostParams::default(), &namespace)
        .await?;
    let secret: Secret = serde_json::from_value(json!({"metadata": {"name": "foreign"}}))?;
    let secrets: Api<Secret> = Api::namespaced(client, "team");
    let secret = secrets.create(&PostParams::default(), &secret).await?;
    Ok((namespace.uid(), secret.uid()))
}

fn is_waiting(status: &SyncGroupStatus) -> bool {
    blocked_by(status).contains("AwaitingApproval")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_is_taken_out_of_a_suspended_group_waits_for_everything() -> Result<()> {
    let repo = GitRepo::init()?;
    let world = World::start(&repo).await?;
    let generation = world.patch(json!({"suspend": true})).await?;
    let is_suspended = |status: &SyncGroupStatus| status.observed_generation == generation;
    world.fleet.group_status(GROUP, "suspended", is_suspended).await?;
    let generation = world.patch(json!({"syncs": [entry("app")]})).await?;
    world.until_blocked(generation, "Suspended").await?;
    let closed = strategy(&json!([{"deny": "Mon-Sun 00:00-24:00"}]));
    let generation = world
        .patch(json!({"suspend": false, "rolloutStrategy": closed}))
        .await?;
    world.until_blocked(generation, "WindowClosed").await?;
    assert_eq!(
        world.deletions()?,
        [],
        "neither while suspended nor in a closed window"
    );
    for member in MEMBERS {
        assert_eq!(world.has_tools(member).await?, [true; 4], "{member}");
    }

    let opened = Timestamp::now();
    world
        .patch(json!({"rolloutStrategy": strategy(&json!([]))}))
        .await?;
    world.until_tools("m1", [false; 4]).await?;
    world
        .fleet
        .group_status(GROUP, "the canary waits", is_waiting)
        .await?;
    for member in &MEMBERS[1..] {
        assert_eq!(world.has_tools(member).await?, [true; 4], "{member}");
    }
    let approved = Timestamp::now();
    act(&world.fleet, &["approve", GROUP]).await?;
    world.until_tools("m3", [false; 4]).await?;
    world.until_tools(ADOPTING, [false, false, false, true]).await?;
    let removed = |status: &SyncGroupStatus| {
        let phase = status.rollout.as_ref().map(|rollout| rollout.phase);
        phase == Some(RolloutPhase::Succeeded) && status.clusters.updated == 3
    };
    world
        .fleet
        .group_status(GROUP, "the entry is gone", removed)
        .await?;

    the_deletions_are_in_order(&world, opened, approved)?;
    what_is_foreign_stays(&world).await?;
    the_journal_is_in_order(&world).await
}

/// Each cluster in its turn: the canary after the window has opened, the others after the approval, one after the
/// other, and on each of them the namespaces last.
fn the_deletions_are_in_order(world: &World, opened: Timestamp, approved: Timestamp) -> Result<()> {
    let all = world.deletions()?;
    let mut turns: Vec<&str> = all.iter().map(|(_, member, _)| *member).collect();
    turns.dedup();
    ensure!(turns.len() == 3 && turns[0] == "m1", "{all:#?}");
    for member in MEMBERS {
        let of_member: Vec<_> = all.iter().filter(|(_, of, _)| *of == member).collect();
        let after = if member == "m1" { opened } else { approved };
        ensure!(of_member.iter().all(|(when, ..)| *when > after), "{of_member:#?}");
        let mut paths: Vec<&str> = of_member.iter().map(|(_, _, path)| path.as_str()).collect();
        // A delete of an object that waits for its content may be repeated.
        paths.dedup();
        let is_namespace: Vec<bool> = paths.iter().map(|path| !path.contains("/default/")).collect();
        ensure!(is_namespace.is_sorted(), "{paths:#?}");
        paths.sort_unstable();
        paths.dedup();
        let expected = if member == ADOPTING {
            &OBJECTS[..3]
        } else {
            &OBJECTS[..]
        };
        assert_eq!(paths, expected, "{member}");
    }
    Ok(())
}

/// The namespace that a person has made keeps nothing of Starling, and its Secret is the one that was there.
async fn what_is_foreign_stays(world: &World) -> Result<()> {
    let client = world.fleet.member(ADOPTING).await?;
    let namespace = Api::<Namespace>::all(client.clone()).get("team").await?;
    let secret = Api::<Secret>::namespaced(client, "team").get("foreign").await?;
    assert_eq!((namespace.uid(), secret.uid()), world.foreign);
    assert_eq!(namespace.metadata.deletion_timestamp, None);
    assert!(!namespace.labels().contains_key(OWNER_LABEL), "{namespace:?}");
    assert!(!namespace.labels().contains_key("of"), "{namespace:?}");
    let managers = namespace.metadata.managed_fields.iter().flatten();
    let mut managers = managers.filter_map(|entry| entry.manager.as_deref());
    assert!(managers.all(|manager| manager != FIELD_MANAGER), "{namespace:?}");
    Ok(())
}

/// Every removal is a decision that the checker accepts.
async fn the_journal_is_in_order(world: &World) -> Result<()> {
    let folder = world.fleet.data_dir().to_string_lossy().into_owned();
    let arguments = [
        "verify",
        GROUP,
        "-n",
        NAMESPACE,
        "--data-dir",
        &folder,
        "-o",
        "json",
    ];
    let verified: Value = serde_json::from_str(&starling(&world.fleet, &arguments).await?)?;
    let journals = &verified["journals"];
    assert_eq!(journals.as_array().map(Vec::len), Some(1), "{verified:#}");
    assert_eq!(journals[0]["violations"], json!([]), "{verified:#}");
    Ok(())
}
