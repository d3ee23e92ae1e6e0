//! One management cluster, members, and one controller, shared by all tests; a namespace and a kubeconfig each.
//!
//! A test that needs the controller to work on a member has a member of its own: two Clusters that lead to one member are
//! a conflict of identities.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, LazyLock, Weak};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, Secret, ServiceAccount};
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::ApiResource;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use starling_api::conditions::{self, Condition};
use starling_api::{Cluster, REQUESTED_AT};
use starling_controlplane::{Process, client_from_kubeconfig};
use starling_testkit::fleet::{MANAGEMENT, PATIENCE};
use starling_testkit::{Fleet, FleetOptions, wait};
use tokio::process::Command;
use tokio::runtime::Runtime;
use tokio::sync::Mutex;

use crate::PROGRAM;
use crate::sign_in::ClientAuthority;

#[expect(clippy::expect_used, reason = "without a runtime there is nothing to test")]
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime"));
static WORLD: LazyLock<Mutex<Weak<World>>> = LazyLock::new(Default::default);

/// Contexts of the members and their control planes. Tests that compare all of a member, or have the controller work on
/// it, have it for themselves; `shared` is for the others.
pub(crate) const MEMBERS: [(&str, &str); 5] = [
    ("happy", "m1"),
    ("renewed", "m2"),
    ("shared", "m3"),
    ("hub-2", "m4"),
    ("dry", "m5"),
];

pub(crate) struct World {
    /// The first field, so that it ends before the clusters that it works on.
    _controller: Process,
    pub(crate) fleet: Fleet,
    pub(crate) authority: ClientAuthority,
}

impl World {
    async fn shared() -> Result<Arc<Self>> {
        let mut known = WORLD.lock().await;
        if let Some(world) = known.upgrade() {
            return Ok(world);
        }
        let authority = ClientAuthority::new()?;
        let fleet = Fleet::start(FleetOptions {
            members: MEMBERS.len(),
            audit: true,
            apiserver_flags: vec![authority.flag()],
            ..FleetOptions::default()
        })
        .await?;
        // A definition is established a moment before its objects can be listed.
        wait::until(PATIENCE, "Clusters are served", async || {
            fleet
                .api::<Cluster>()
                .list(&ListParams::default())
                .await
                .map(|_| ())
        })
        .await?;
        let controller = fleet.controller(PROGRAM, &[])?;
        let world = Arc::new(Self {
            _controller: controller,
            fleet,
            authority,
        });
        *known = Arc::downgrade(&world);
        Ok(world)
    }
}

/// Runs a test in a namespace of its own.
pub(crate) fn scene(namespace: &'static str, test: impl AsyncFnOnce(&Scene) -> Result<()>) -> Result<()> {
    RUNTIME.block_on(async {
        let world = World::shared().await?;
        let scene = Scene {
            folder: tempfile::tempdir()?,
            world,
            namespace,
        };
        make_namespace(scene.world.fleet.hub(), namespace).await?;
        scene.write_kubeconfig("config", &scene.kubeconfig()?)?;
        test(&scene).await
    })
}

pub(crate) async fn make_namespace(client: &Client, name: &str) -> Result<()> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    let api: Api<Namespace> = Api::all(client.clone());
    api.patch(
        name,
        &PatchParams::apply("tests").force(),
        &Patch::Apply(namespace),
    )
    .await?;
    Ok(())
}

/// What a call of the program printed.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) ok: bool,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    /// The last word of a call that failed; before it there is the log.
    pub(crate) fn last(&self) -> &str {
        self.err.lines().last().unwrap_or_default()
    }
}

pub(crate) struct Scene {
    pub(crate) world: Arc<World>,
    pub(crate) namespace: &'static str,
    folder: tempfile::TempDir,
}

impl Scene {
    pub(crate) fn fleet(&self) -> &Fleet {
        &self.world.fleet
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The control plane behind a context.
    pub(crate) fn plane_of(context: &str) -> &str {
        MEMBERS
            .iter()
            .find(|(name, _)| *name == context)
            .map_or(MANAGEMENT, |(_, plane)| plane)
    }

    /// A client of an administrator.
    pub(crate) async fn member(&self, context: &str) -> Result<Client> {
        self.fleet().member(Self::plane_of(context)).await
    }

    /// A kubeconfig with all clusters, as an administrator has it: the management cluster is the current context.
    pub(crate) fn kubeconfig(&self) -> Result<Value> {
        let mut all = json!({"apiVersion": "v1", "kind": "Config", "current-context": "hub",
            "clusters": [], "users": [], "contexts": []});
        for context in ["hub"].into_iter().chain(MEMBERS.map(|(name, _)| name)) {
            let plane = self.fleet().plane(Self::plane_of(context))?;
            let one: Value = serde_saphyr::from_str(&plane.kubeconfig_yaml())?;
            for (list, body) in [("clusters", "cluster"), ("users", "user")] {
                let entry = json!({"name": context, body: one[list][0][body]});
                all[list].as_array_mut().context("a list")?.push(entry);
            }
            let entry = json!({"name": context, "context": {"cluster": context, "user": context}});
            all["contexts"].as_array_mut().context("a list")?.push(entry);
        }
        Ok(all)
    }

    pub(crate) fn write_kubeconfig(&self, name: &str, content: &Value) -> Result<PathBuf> {
        let path = self.folder().join(name);
        std::fs::write(&path, serde_saphyr::to_string(content)?)?;
        Ok(path)
    }

    /// Calls the program with the scene's kubeconfig.
    pub(crate) async fn starling(&self, arguments: &[&str]) -> Result<Said> {
        self.starling_with("config", arguments).await
    }

    /// Calls the program; `kubeconfig` is what the environment says, relative to the scene's folder.
    pub(crate) async fn starling_with(&self, kubeconfig: &str, arguments: &[&str]) -> Result<Said> {
        let files: Vec<PathBuf> = kubeconfig
            .split(':')
            .map(|file| self.folder().join(file))
            .collect();
        let output = Command::new(PROGRAM)
            .args(["--log-filter", "trace"])
            .args(arguments)
            .env("KUBECONFIG", std::env::join_paths(files)?)
            .env("HOME", self.folder())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await?;
        let said = Said {
            ok: output.status.success(),
            out: String::from_utf8(output.stdout)?,
            err: String::from_utf8(output.stderr)?,
        };
        self.no_token_in(&said).await?;
        Ok(said)
    }

    /// Adds a member to the scene's namespace and demands success.
    pub(crate) async fn add(&self, context: &str, name: &str, more: &[&str]) -> Result<String> {
        let said = self.try_add(context, name, more).await?;
        ensure!(said.ok, "{}\n{}", said.out, said.last());
        Ok(said.out)
    }

    /// Adds a member to the scene's namespace.
    pub(crate) async fn try_add(&self, context: &str, name: &str, more: &[&str]) -> Result<Said> {
        let arguments = [
            &["cluster", "add", context, "--name", name, "-n", self.namespace],
            more,
        ]
        .concat();
        self.starling(&arguments).await
    }

    /// Neither a token that is in a Secret of a Cluster nor one of an administrator is ever printed or logged.
    async fn no_token_in(&self, said: &Said) -> Result<()> {
        let mut tokens = vec![self.world.authority.exec_token().to_owned()];
        for plane in self.fleet().planes().iter() {
            tokens.push(plane.token().reveal().to_owned());
        }
        let secrets: Api<Secret> = Api::all(self.fleet().hub().clone());
        for secret in secrets.list(&ListParams::default()).await? {
            let text = secret
                .data
                .unwrap_or_default()
                .remove("value")
                .unwrap_or_default();
            let kubeconfig: Value = serde_saphyr::from_str(&String::from_utf8(text.0)?).unwrap_or_default();
            tokens.extend(
                kubeconfig["users"][0]["user"]["token"]
                    .as_str()
                    .map(str::to_owned),
            );
        }
        for token in tokens.iter().filter(|token| !token.is_empty()) {
            ensure!(
                !said.out.contains(token),
                "the output holds a token: {}",
                said.out
            );
            ensure!(!said.err.contains(token), "the log holds a token: {}", said.err);
        }
        Ok(())
    }

    pub(crate) async fn cluster(&self, name: &str) -> Result<Cluster> {
        let api: Api<Cluster> = Api::namespaced(self.fleet().hub().clone(), self.namespace);
        Ok(api.get(name).await?)
    }

    /// Waits until a Cluster has a condition that satisfies a predicate, and returns it.
    pub(crate) async fn condition(
        &self,
        name: &str,
        type_: &str,
        what: &str,
        satisfied: impl Fn(Option<&Condition>) -> bool,
    ) -> Result<Option<Condition>> {
        let found = wait::until(PATIENCE, format!("Cluster {name}: {what}"), async || {
            let cluster = self.cluster(name).await.map_err(|e| format!("{e:#}"))?;
            let found = cluster.status.unwrap_or_default().conditions;
            let condition = conditions::find(&found, type_).cloned();
            if satisfied(condition.as_ref()) {
                Ok(condition)
            } else {
                Err(format!("{found:#?}"))
            }
        })
        .await?;
        Ok(found)
    }

    pub(crate) async fn is_ready(&self, name: &str) -> Result<()> {
        self.condition(name, conditions::READY, "Ready", |ready| {
            ready.is_some_and(|c| c.status == "True")
        })
        .await?;
        Ok(())
    }

    /// Asks the controller for a look at a Cluster and waits until it was taken.
    pub(crate) async fn look_at(&self, name: &str) -> Result<()> {
        let asked = jiff::Timestamp::now().to_string();
        let patch = json!({"metadata": {"annotations": {REQUESTED_AT: asked}}});
        let api: Api<Cluster> = Api::namespaced(self.fleet().hub().clone(), self.namespace);
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        wait::until(PATIENCE, format!("a look at Cluster {name}"), async || {
            let cluster = self.cluster(name).await.map_err(|e| format!("{e:#}"))?;
            let handled = cluster.status.unwrap_or_default().last_handled_reconcile_at;
            if handled == asked { Ok(()) } else { Err(handled) }
        })
        .await?;
        Ok(())
    }

    pub(crate) async fn secret(&self, name: &str) -> Result<Secret> {
        let api: Api<Secret> = Api::namespaced(self.fleet().hub().clone(), self.namespace);
        Ok(api.get(&format!("{name}-kubeconfig")).await?)
    }

    /// The kubeconfig that the Secret of a Cluster holds.
    pub(crate) async fn stored_kubeconfig(&self, name: &str) -> Result<String> {
        let secret = self.secret(name).await?;
        let value = secret.data.unwrap_or_default().remove("value").context("value")?;
        Ok(String::from_utf8(value.0)?)
    }

    /// A client with the credentials that the Secret of a Cluster holds.
    pub(crate) async fn as_starling(&self, name: &str) -> Result<Client> {
        Ok(client_from_kubeconfig(name, &self.stored_kubeconfig(name).await?).await?)
    }

    /// The accounts on a member that were made for Clusters of this scene, of whatever management cluster.
    pub(crate) async fn accounts_on(&self, context: &str) -> Result<Vec<String>> {
        accounts_of(&self.member(context).await?, self.namespace).await
    }

    /// The name of Starling's account for a Cluster of this scene.
    pub(crate) async fn account(&self, name: &str) -> Result<String> {
        let secret = self.secret(name).await?;
        let account = secret
            .annotations()
            .get(starling_api::TOKEN_SERVICE_ACCOUNT)
            .context("the account")?;
        Ok(account.trim_start_matches("starling-system/").to_owned())
    }
}

/// The accounts on a member that were made for Clusters of a namespace.
pub(crate) async fn accounts_of(member: &Client, namespace: &str) -> Result<Vec<String>> {
    let api: Api<ServiceAccount> = Api::namespaced(member.clone(), "starling-system");
    let told = format!("Cluster {namespace}/");
    let ours = |account: &ServiceAccount| {
        let text = account.annotations().get("kubernetes.io/description");
        text.is_some_and(|text| text.contains(&told))
    };
    let all = api.list(&ListParams::default()).await?;
    Ok(all
        .iter()
        .filter(|account| ours(account))
        .map(ResourceExt::name_any)
        .collect())
}

/// Every object of a cluster that can be listed, by kind, namespace and name, with its version. What the servers
/// themselves keep writing is left out.
pub(crate) async fn snapshot(client: &Client) -> Result<BTreeMap<String, String>> {
    let mut objects = BTreeMap::new();
    let discovery = kube::Discovery::new(client.clone()).run().await?;
    for group in discovery.groups() {
        for (resource, capabilities) in group.recommended_resources() {
            if !capabilities.supports_operation("list")
                || ["Lease", "Event"].contains(&resource.kind.as_str())
            {
                continue;
            }
            for (key, version) in list(client, &resource).await? {
                objects.insert(key, version);
            }
        }
    }
    ensure!(objects.len() > 50, "a snapshot of everything: {objects:?}");
    Ok(objects)
}

async fn list(client: &Client, resource: &ApiResource) -> Result<Vec<(String, String)>> {
    let api: Api<kube::core::DynamicObject> = Api::all_with(client.clone(), resource);
    // An API server that has just learned of a kind answers 429 until its cache of it is filled.
    let found = wait::until(
        PATIENCE,
        format!("{} can be listed", resource.plural),
        async || {
            let list = api.list_metadata(&ListParams::default()).await;
            list.map_err(|error| error.to_string())
        },
    )
    .await?;
    Ok(found
        .into_iter()
        .map(|object| {
            let key = format!(
                "{}/{} {}/{}",
                resource.group,
                resource.kind,
                object.namespace().unwrap_or_default(),
                object.name_any()
            );
            (key, object.resource_version().unwrap_or_default())
        })
        .collect())
}
