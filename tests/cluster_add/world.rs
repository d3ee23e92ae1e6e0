//! One management cluster, members, and one controller, shared by all tests; a namespace and a kubeconfig each.
//!
//! A test that needs the controller to work on a member has its own member: two Clusters with the same member are a
//! conflict of identities.

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
use starling_testkit::fleet::{MANAGEMENT, TIMEOUT};
use starling_testkit::{Fleet, FleetOptions, program, wait};
use tokio::process::Command;
use tokio::runtime::Runtime;
use tokio::sync::Mutex;

use crate::sign_in::ClientAuthority;

#[expect(clippy::expect_used, reason = "without a runtime there is nothing to test")]
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime"));
static WORLD: LazyLock<Mutex<Weak<World>>> = LazyLock::new(Default::default);

/// Contexts of the members and their control planes. Tests that compare all objects of a member, or need the controller
/// to work on it, have their own; `shared` is for the others.
pub(crate) const MEMBERS: [(&str, &str); 5] = [
    ("happy", "m1"),
    ("renewed", "m2"),
    ("shared", "m3"),
    ("hub-2", "m4"),
    ("dry", "m5"),
];

pub(crate) struct World {
    /// The first field, so that the controller stops before its clusters.
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
        wait::until(TIMEOUT, "Clusters are served", async || {
            fleet
                .api::<Cluster>()
                .list(&ListParams::default())
                .await
                .map(|_| ())
        })
        .await?;
        let controller = fleet.controller(program(), &[])?;
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

/// The output of a call of the program.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) ok: bool,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl CommandOutput {
    /// Returns the error line of a failed call. Log lines may be before and after it.
    pub(crate) fn last(&self) -> &str {
        let words = self.err.lines().rfind(|line| line.starts_with("starling: "));
        words.unwrap_or(&self.err)
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

    pub(crate) fn directory(&self) -> &Path {
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

    /// Returns a kubeconfig of an administrator with all clusters; the management cluster is the current context.
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
        let path = self.directory().join(name);
        std::fs::write(&path, serde_saphyr::to_string(content)?)?;
        Ok(path)
    }

    /// Calls the program with the scene's kubeconfig.
    pub(crate) async fn starling(&self, arguments: &[&str]) -> Result<CommandOutput> {
        self.starling_with("config", arguments).await
    }

    /// Calls the program; `kubeconfig` is the value of the environment variable, relative to the folder of the scene.
    pub(crate) async fn starling_with(&self, kubeconfig: &str, arguments: &[&str]) -> Result<CommandOutput> {
        let files: Vec<PathBuf> = kubeconfig
            .split(':')
            .map(|file| self.directory().join(file))
            .collect();
        let output = Command::new(program())
            .args(["--log-filter", "trace"])
            .args(arguments)
            .env("KUBECONFIG", std::env::join_paths(files)?)
            .env("HOME", self.directory())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await?;
        let output = CommandOutput {
            ok: output.status.success(),
            out: String::from_utf8(output.stdout)?,
            err: String::from_utf8(output.stderr)?,
        };
        self.no_token_in(&output).await?;
        Ok(output)
    }

    /// Adds a member to the scene's namespace and asserts success.
    pub(crate) async fn add(&self, context: &str, name: &str, more: &[&str]) -> Result<String> {
        let output = self.try_add(context, name, more).await?;
        ensure!(output.ok, "{}\n{}", output.out, output.last());
        Ok(output.out)
    }

    /// Adds a member to the scene's namespace.
    pub(crate) async fn try_add(&self, context: &str, name: &str, more: &[&str]) -> Result<CommandOutput> {
        let arguments = [
            &["cluster", "add", context, "--name", name, "-n", self.namespace],
            more,
        ]
        .concat();
        self.starling(&arguments).await
    }

    /// Asserts that neither the token of a Cluster nor one of an administrator is printed or logged.
    async fn no_token_in(&self, output: &CommandOutput) -> Result<()> {
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
                !output.out.contains(token),
                "the output holds a token: {}",
                output.out
            );
            ensure!(
                !output.err.contains(token),
                "the log holds a token: {}",
                output.err
            );
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
        let found = wait::until(TIMEOUT, format!("Cluster {name}: {what}"), async || {
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

    /// Requests a reconcile of a Cluster and waits until it is done.
    pub(crate) async fn reconcile(&self, name: &str) -> Result<()> {
        let requested = jiff::Timestamp::now().to_string();
        let patch = json!({"metadata": {"annotations": {REQUESTED_AT: requested}}});
        let api: Api<Cluster> = Api::namespaced(self.fleet().hub().clone(), self.namespace);
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        wait::until(TIMEOUT, format!("a reconcile of Cluster {name}"), async || {
            let cluster = self.cluster(name).await.map_err(|e| format!("{e:#}"))?;
            let handled = cluster.status.unwrap_or_default().last_handled_reconcile_at;
            if handled == requested {
                Ok(())
            } else {
                Err(handled)
            }
        })
        .await?;
        Ok(())
    }

    pub(crate) async fn secret(&self, name: &str) -> Result<Secret> {
        let api: Api<Secret> = Api::namespaced(self.fleet().hub().clone(), self.namespace);
        Ok(api.get(&format!("{name}-kubeconfig")).await?)
    }

    /// The kubeconfig in the Secret of a Cluster.
    pub(crate) async fn stored_kubeconfig(&self, name: &str) -> Result<String> {
        let secret = self.secret(name).await?;
        let value = secret.data.unwrap_or_default().remove("value").context("value")?;
        Ok(String::from_utf8(value.0)?)
    }

    /// A client with the credentials in the Secret of a Cluster.
    pub(crate) async fn as_starling(&self, name: &str) -> Result<Client> {
        Ok(client_from_kubeconfig(name, &self.stored_kubeconfig(name).await?).await?)
    }

    /// The accounts on a member for Clusters of this scene, in any management cluster.
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

/// The accounts on a member for Clusters of a namespace.
pub(crate) async fn accounts_of(member: &Client, namespace: &str) -> Result<Vec<String>> {
    let api: Api<ServiceAccount> = Api::namespaced(member.clone(), "starling-system");
    let expected = format!("Cluster {namespace}/");
    let matching = |account: &ServiceAccount| {
        let text = account.annotations().get("kubernetes.io/description");
        text.is_some_and(|text| text.contains(&expected))
    };
    let all = api.list(&ListParams::default()).await?;
    Ok(all
        .iter()
        .filter(|account| matching(account))
        .map(ResourceExt::name_any)
        .collect())
}

/// Returns every object of a cluster that can be listed, by kind, namespace and name, with its version, without objects
/// that the servers themselves write continuously.
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
    // An API server responds with 429 for a new kind until its cache is filled.
    let found = wait::until(
        TIMEOUT,
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
