//! Handwritten histories: a group `shop` with one entry `app` over clusters `a`, `b`, …, and its writes, one second
//! apart. Each step writes what Starling would write; a test omits a step, repeats a step, or writes something else.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use starling_api::{ADMITTED_AT, RETRIED_FOR};

use crate::judge::{History, Plan, Push, Verb, Write};

/// Namespace of all CRs.
const NAMESPACE: &str = "fleet";
/// URL of the repository.
pub(super) const URL: &str = "https://git.example/shop";
/// The label of the one owner.
const OWNER: &str = "0123456789abcdef0123456789abcdef";
/// The label of another owner.
pub(super) const OTHER_OWNER: &str = "fedcba9876543210fedcba9876543210";
/// The name of its inventory.
const INVENTORY: &str = "starling-inventory-0123456789abcdef0123456789abcdef";

/// The ConfigMaps of the first three commits.
pub(super) const ONE: &[(&str, &str)] = &[("settings", "1"), ("motd", "hello")];
pub(super) const TWO: &[(&str, &str)] = &[("settings", "2"), ("motd", "hello")];
pub(super) const THREE: &[(&str, &str)] = &[("settings", "3"), ("motd", "hello")];

/// A history that is being written.
pub(super) struct Script {
    now: Timestamp,
    version: u64,
    history: History,
    /// The current CRs, by kind and name.
    hub: BTreeMap<(String, String), Value>,
    /// The current objects of the members, by cluster, kind and name.
    members: BTreeMap<(String, String, String), Value>,
    /// Each commit's ConfigMaps, by name.
    commits: BTreeMap<String, BTreeMap<String, String>>,
}

impl Script {
    /// Creates ready clusters, a Source, and a group with a concurrency of two and no allowed failure.
    pub(super) fn over(clusters: &[&str]) -> Self {
        let mut script = Self {
            now: "2026-01-01T12:00:00Z".parse().unwrap(),
            version: 1,
            history: History {
                lag: SignedDuration::from_secs(2),
                live: SignedDuration::from_secs(5),
                ..History::default()
            },
            hub: BTreeMap::new(),
            members: BTreeMap::new(),
            commits: BTreeMap::new(),
        };
        script.history.git.insert(URL.into(), Vec::new());
        for cluster in clusters {
            script.add_cluster(cluster);
        }
        script.edit("Source", "shop", "kubectl", |source| {
            source["spec"] = json!({"url": URL, "ref": {"branch": "main"}});
        });
        script.edit("SyncGroup", "shop", "kubectl", |group| {
            group["spec"] = json!({
                "clusterSelector": {"matchLabels": {"fleet": "yes"}}, "unselectedGrace": "0s",
                "syncs": [{"name": "app", "sourceRef": {"name": "shop"}, "path": "./app", "timeout": "10s"}],
                "rolloutStrategy": {"maxConcurrency": 2, "maxFailures": 0, "progressDeadline": "10m"},
            });
        });
        script
    }

    pub(super) fn add_cluster(&mut self, cluster: &str) {
        self.edit("Cluster", cluster, "kubectl", |object| {
            object["metadata"]["labels"] = json!({"fleet": "yes"});
            object["spec"] = json!({"kubeConfig": {"secretRef": {"name": cluster}}});
        });
        self.set_reachable(cluster, true);
        let namespace =
            json!({"kind": "Namespace", "metadata": {"name": "kube-system", "uid": format!("id-{cluster}")}});
        self.write_object(cluster, "system", namespace);
    }

    /// Advances the time.
    pub(super) fn wait(&mut self, seconds: i64) {
        self.now = self.now.checked_add(SignedDuration::from_secs(seconds)).unwrap();
    }

    /// Writes a CR: `change` edits the last version. The generation counts changes of the spec.
    pub(super) fn edit(&mut self, kind: &str, name: &str, manager: &str, change: impl FnOnce(&mut Value)) {
        self.wait(1);
        let before = self.hub.get(&(kind.into(), name.into())).cloned();
        let mut object = before.clone().unwrap_or_else(|| {
            json!({"apiVersion": "starling.dev/v1alpha1", "kind": kind, "metadata": {
                "namespace": NAMESPACE, "name": name, "uid": format!("{kind}-{name}"), "generation": 1}})
        });
        change(&mut object);
        if let Some(before) = before
            && before["spec"] != object["spec"]
        {
            object["metadata"]["generation"] =
                (before["metadata"]["generation"].as_i64().unwrap() + 1).into();
        }
        self.hub.insert((kind.into(), name.into()), object.clone());
        let write = self.new_write(Verb::Write, "starling.dev", manager, object);
        self.history.hub.push(write);
    }

    /// Labels a cluster as an operator.
    pub(super) fn label(&mut self, cluster: &str, label: &str, value: &str) {
        self.edit("Cluster", cluster, "kubectl", |cluster| {
            cluster["metadata"]["labels"][label] = value.into();
        });
    }

    /// Changes the strategy of the group as an operator; the default of `progressDeadline` is ten minutes.
    pub(super) fn set_strategy(&mut self, mut strategy: Value) {
        if strategy["progressDeadline"].is_null() {
            strategy["progressDeadline"] = "10m".into();
        }
        self.edit("SyncGroup", "shop", "kubectl", |group| {
            group["spec"]["rolloutStrategy"] = strategy;
        });
    }

    /// Returns the current version of a CR.
    pub(super) fn cr(&self, kind: &str, name: &str) -> Value {
        self.hub[&(kind.to_owned(), name.to_owned())].clone()
    }

    /// Deletes a CR; with `begins` the deletion waits for finalizers.
    pub(super) fn delete_cr(&mut self, kind: &str, name: &str, manager: &str, begins: bool) {
        self.wait(1);
        let mut object = self.cr(kind, name);
        object["metadata"]["deletionTimestamp"] = self.now.to_string().into();
        let verb = if begins {
            self.hub.insert((kind.into(), name.into()), object.clone());
            Verb::DeleteBegins
        } else {
            self.hub.remove(&(kind.into(), name.into()));
            Verb::Delete
        };
        let write = self.new_write(verb, "starling.dev", manager, object);
        self.history.hub.push(write);
    }

    fn new_write(&mut self, verb: Verb, group: &str, manager: &str, mut object: Value) -> Write {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let text = |pointer: &str| {
            object
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        Write {
            at: self.now,
            verb,
            group: group.to_owned(),
            kind: text("/kind"),
            namespace: text("/metadata/namespace"),
            name: text("/metadata/name"),
            manager: manager.to_owned(),
            resource_version: self.version,
            object,
        }
    }

    /// Writes an object of a member.
    pub(super) fn write_object(&mut self, cluster: &str, manager: &str, mut object: Value) {
        self.wait(1);
        let (kind, name) = (
            object["kind"].as_str().unwrap().to_owned(),
            object["metadata"]["name"].as_str().unwrap().to_owned(),
        );
        if object["metadata"]["uid"].is_null() {
            let place = (cluster.to_owned(), kind.clone(), name.clone());
            let existing = self
                .members
                .get(&place)
                .map(|existing| existing["metadata"]["uid"].clone());
            object["metadata"]["uid"] = existing.unwrap_or_else(|| format!("uid-{}", self.version).into());
        }
        self.members
            .insert((cluster.into(), kind.clone(), name), object.clone());
        let group = api_group(&kind);
        let write = self.new_write(Verb::Write, group, manager, object);
        self.history
            .members
            .entry(cluster.into())
            .or_default()
            .push(write);
    }

    /// Removes an object of a member. The controller counts it before.
    pub(super) fn remove(&mut self, cluster: &str, manager: &str, kind: &str, name: &str) {
        if manager == "starling" {
            self.count(cluster);
        }
        self.remove_uncounted(cluster, manager, kind, name);
    }

    /// Grants the deletion of one more object.
    fn count(&mut self, cluster: &str) {
        let Some(sync) = self.hub.get(&("Sync".to_owned(), sync(cluster))) else {
            return;
        };
        let ends =
            !sync["metadata"]["deletionTimestamp"].is_null() && sync["spec"]["deletionPolicy"] == "Delete";
        let target = if ends { "deletion" } else { "target" };
        let granted = &sync["status"]["deletions"]["grant"];
        let objects = granted["objects"]
            .as_u64()
            .filter(|_| granted["target"] == target);
        self.grant(cluster, target, objects.unwrap_or_default() + 1);
    }

    /// Writes a grant of deletions.
    pub(super) fn grant(&mut self, cluster: &str, target: &str, objects: u64) {
        self.edit("Sync", &sync(cluster), "starling-deletions", |sync| {
            sync["status"]["deletions"] =
                json!({"counts": [], "grant": {"target": target, "objects": objects}});
        });
    }

    /// Removes an object of a member.
    pub(super) fn remove_uncounted(&mut self, cluster: &str, manager: &str, kind: &str, name: &str) {
        self.wait(1);
        let object = self
            .members
            .remove(&(cluster.into(), kind.into(), name.into()))
            .unwrap();
        let write = self.new_write(Verb::Delete, api_group(kind), manager, object);
        self.history.members.get_mut(cluster).unwrap().push(write);
    }

    /// Returns the current version of a member's object.
    pub(super) fn live(&self, cluster: &str, kind: &str, name: &str) -> Value {
        self.members[&(cluster.to_owned(), kind.to_owned(), name.to_owned())].clone()
    }

    /// Pushes a commit with these ConfigMaps in the folder `app`.
    pub(super) fn push(&mut self, commit: &str, maps: &[(&str, &str)]) {
        self.wait(1);
        let maps: BTreeMap<String, String> = maps
            .iter()
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
            .collect();
        let objects = maps.iter().map(|(name, value)| rendered(name, value)).collect();
        self.commits.insert(commit.into(), maps);
        self.push_objects(commit, objects);
    }

    /// Pushes a commit with these objects in the folder `app`.
    pub(super) fn push_objects(&mut self, commit: &str, objects: Vec<Value>) {
        let push = Push {
            at: self.now,
            reference: "refs/heads/main".into(),
            commit: commit.into(),
            objects: BTreeMap::from([("app".to_owned(), objects)]),
        };
        self.history.git.get_mut(URL).unwrap().push(push);
    }

    /// Adds another folder to the last commit.
    pub(super) fn push_folder(&mut self, folder: &str, objects: Vec<Value>) {
        let push = self.history.git.get_mut(URL).unwrap().last_mut().unwrap();
        push.objects.insert(folder.into(), objects);
    }

    /// Sets the revision of the Source to a commit.
    pub(super) fn observe(&mut self, commit: &str) {
        self.edit("Source", "shop", "starling", |source| {
            source["status"] = json!({"revision": revision(commit), "conditions": [condition("Ready", "True", "Succeeded")]});
        });
    }

    /// Starts the rollout of a commit, and updates the group's status.
    pub(super) fn start(&mut self, commit: &str) {
        let at = self.now.to_string();
        self.edit("SyncGroup", "shop", "starling", |group| {
            let id = group["status"]["rollout"]["id"].as_i64().unwrap_or_default() + 1;
            group["status"]["rollout"] = json!({"id": id, "release": format!("sha256:release-{commit}-{id}"), "startTime": at,
                "revisions": [{"sync": "app", "revision": revision(commit)}], "phase": "Pending", "blockedBy": []});
            group["status"]["clusters"] = json!({});
            group["status"]["problems"] = json!([]);
        });
        self.report();
    }

    /// Pushes, observes and starts a commit.
    pub(super) fn roll(&mut self, commit: &str, maps: &[(&str, &str)]) {
        self.push(commit, maps);
        self.observe(commit);
        self.start(commit);
    }

    /// Admits a commit on a cluster, with the annotations of the current rollout.
    pub(super) fn admit(&mut self, cluster: &str, commit: &str) {
        let release = self.release();
        self.admit_release(cluster, commit, &release);
    }

    /// Cluster `a` leaves while the others get the second commit, and is admitted to the third one as soon as it
    /// returns.
    pub(super) fn leave_and_return_for_the_third_commit(&mut self) {
        self.label("a", "fleet", "no");
        self.wait(5);
        self.admit("b", "c2");
        self.admit("c", "c2");
        self.roll("c3", THREE);
        self.label("a", "fleet", "yes");
        self.admit("a", "c3");
    }

    /// Admits a commit on a cluster at a time of the controller's clock.
    pub(super) fn admit_by_clock(&mut self, cluster: &str, commit: &str) {
        let at = self.now.checked_add(SignedDuration::from_secs(1)).unwrap();
        let (shown, _) = self.history.clock.shown(at, at);
        let release = self.release();
        self.admit_with(cluster, commit, &release, |annotations| {
            annotations[ADMITTED_AT] = shown.to_string().into();
        });
    }

    /// Admits a commit on a cluster again, because an operator requested a retry.
    pub(super) fn retry(&mut self, cluster: &str, commit: &str) {
        let at = self.now.to_string();
        let release = self.release();
        self.admit_with(cluster, commit, &release, |annotations| {
            annotations[RETRIED_FOR] = at.into();
        });
    }

    fn release(&self) -> String {
        let release = &self.cr("SyncGroup", "shop")["status"]["rollout"]["release"];
        release.as_str().unwrap().to_owned()
    }

    /// Admits a commit on a cluster with another release than the current rollout's.
    pub(super) fn admit_release(&mut self, cluster: &str, commit: &str, release: &str) {
        self.admit_with(cluster, commit, release, |_| {});
    }

    fn admit_with(&mut self, cluster: &str, commit: &str, release: &str, annotate: impl FnOnce(&mut Value)) {
        let group = self.cr("SyncGroup", "shop");
        let mut spec = group["spec"]["syncs"][0].clone();
        spec.as_object_mut().unwrap().remove("name");
        spec["groupRef"] = json!({"name": "shop", "entry": "app"});
        spec["clusterRef"] = json!({"name": cluster});
        spec["revision"] = revision(commit).into();
        let rollout = group["status"]["rollout"].clone();
        let at = self
            .now
            .checked_add(SignedDuration::from_secs(1))
            .unwrap()
            .to_string();
        self.edit("Sync", &sync(cluster), "starling-group", |sync| {
            if let Some(suspend) = sync["spec"].get("suspend") {
                spec["suspend"] = suspend.clone();
            }
            sync["spec"] = spec;
            sync["metadata"]["annotations"] = json!({"starling.dev/rollout": rollout["id"].to_string(),
                "starling.dev/release": release, "starling.dev/admitted-at": at});
            annotate(&mut sync["metadata"]["annotations"]);
        });
    }

    /// Applies a commit on a member: writes the union to the inventory, writes changed objects, prunes, and writes the
    /// new inventory.
    pub(super) fn write(&mut self, cluster: &str, commit: &str) {
        self.claim(cluster, commit);
        for (name, value) in self.commits[commit].clone() {
            self.apply_map(cluster, &name, &value);
        }
        let desired = self.commits[commit].clone();
        for name in self
            .maps_on(cluster)
            .iter()
            .filter(|name| !desired.contains_key(*name))
        {
            self.remove(cluster, "starling", "ConfigMap", name);
        }
        self.update_inventory(cluster);
    }

    /// Lists the current and the new objects in the inventory.
    pub(super) fn claim(&mut self, cluster: &str, commit: &str) {
        let mut names: Vec<String> = self.maps_on(cluster);
        names.extend(self.commits[commit].keys().cloned());
        names.sort();
        names.dedup();
        self.write_inventory(cluster, &names);
    }

    /// Lists the current objects in the inventory.
    pub(super) fn update_inventory(&mut self, cluster: &str) {
        let names = self.maps_on(cluster);
        self.write_inventory(cluster, &names);
    }

    /// Writes the inventory, if its content changes.
    pub(super) fn write_inventory(&mut self, cluster: &str, names: &[String]) {
        let mut text = String::from("starling-inventory/1 shards=1\n");
        for name in names {
            let live = self
                .members
                .get(&(cluster.into(), "ConfigMap".into(), name.clone()));
            let uid = live
                .and_then(|live| live["metadata"]["uid"].as_str())
                .unwrap_or_default();
            text += &format!("\tConfigMap\tdefault\t{name}\t{uid}\n");
        }
        let place = (cluster.to_owned(), "ConfigMap".to_owned(), INVENTORY.to_owned());
        if self
            .members
            .get(&place)
            .is_some_and(|existing| existing["data"]["inventory"] == *text)
        {
            return;
        }
        let map = json!({"kind": "ConfigMap", "metadata": {"namespace": "starling-system", "name": INVENTORY},
            "data": {"inventory": text}});
        self.write_object(cluster, "starling", map);
    }

    /// Writes the inventory of another owner, with ConfigMaps that are claimed.
    pub(super) fn write_inventory_of(&mut self, owner: &str, cluster: &str, names: &[&str]) {
        let lines: Vec<String> = { names.iter() }
            .map(|name| format!("\tConfigMap\tdefault\t{name}\t"))
            .collect();
        self.write_inventory_lines(owner, cluster, &lines);
    }

    /// Writes the inventory of an owner with these lines.
    pub(super) fn write_inventory_lines(&mut self, owner: &str, cluster: &str, lines: &[String]) {
        let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let name = format!("starling-inventory-{owner}");
        let map = json!({"kind": "ConfigMap", "metadata": {"namespace": "starling-system", "name": name},
            "data": {"inventory": format!("starling-inventory/1 shards=1\n{lines}")}});
        self.write_object(cluster, "starling", map);
    }

    /// Adds a line to the inventory.
    pub(super) fn add_inventory_line(&mut self, cluster: &str, line: &str) {
        let mut map = self.live(cluster, "ConfigMap", INVENTORY);
        let text = map["data"]["inventory"].as_str().unwrap().to_owned();
        map["data"]["inventory"] = format!("{text}{line}\n").into();
        self.write_object(cluster, "starling", map);
    }

    /// Writes one ConfigMap as Starling does, if it changes.
    pub(super) fn apply_map(&mut self, cluster: &str, name: &str, value: &str) {
        let place = (cluster.to_owned(), "ConfigMap".to_owned(), name.to_owned());
        let existing = self
            .members
            .get(&place)
            .is_some_and(|live| live["data"]["value"] == *value);
        if !existing {
            self.write_object(cluster, "starling", labelled(rendered(name, value)));
        }
    }

    fn maps_on(&self, cluster: &str) -> Vec<String> {
        let maps = self.members.iter().filter(|((of, kind, _), object)| {
            of == cluster
                && kind == "ConfigMap"
                && object["metadata"]["labels"]["starling.dev/owner"] == OWNER
        });
        maps.map(|((_, _, name), _)| name.clone()).collect()
    }

    /// Writes the Sync's status: the target of the spec is applied and healthy.
    pub(super) fn report_applied(&mut self, cluster: &str) {
        self.report_applied_unhealthy(cluster);
        let since = self.now.to_string();
        self.edit("Sync", &sync(cluster), "starling", |sync| {
            sync["status"]["healthySince"] = since.into();
            sync["status"]["lastHealthyTarget"] = sync["status"]["lastAppliedTarget"].clone();
            sync["status"]["conditions"] = json!([
                condition("Ready", "True", "Succeeded"),
                condition("Healthy", "True", "Succeeded")
            ]);
        });
    }

    /// Writes the Sync's status: the target of the spec is applied; its health is not yet known.
    pub(super) fn report_applied_unhealthy(&mut self, cluster: &str) {
        let at = self.now.to_string();
        self.edit("Sync", &sync(cluster), "starling", |sync| {
            let (target, revision) = (digest(sync), sync["spec"]["revision"].clone());
            sync["status"] = json!({"observedGeneration": sync["metadata"]["generation"],
                "lastAttemptedTarget": target, "lastAttemptedRevision": revision,
                "lastAppliedTarget": target, "lastAppliedRevision": revision,
                "lastAppliedClusterID": format!("id-{cluster}"), "lastAppliedTime": at,
                "conditions": [condition("Ready", "False", "Progressing")]});
        });
    }

    /// Writes the Sync's status: the last attempt failed.
    pub(super) fn report_failure(&mut self, cluster: &str, problems: &[&str]) {
        let again = self
            .now
            .checked_add(SignedDuration::from_secs(30))
            .unwrap()
            .to_string();
        let problems: Vec<Value> = problems
            .iter()
            .map(|object| json!({"object": object, "reason": "Invalid"}))
            .collect();
        self.edit("Sync", &sync(cluster), "starling", |sync| {
            let (target, revision) = (digest(sync), sync["spec"]["revision"].clone());
            let mut status = sync["status"].take();
            if status.is_null() {
                status = json!({});
            }
            let attempts = status["attempts"].as_i64().unwrap_or_default() + 1;
            status["observedGeneration"] = sync["metadata"]["generation"].clone();
            status["lastAttemptedTarget"] = target.into();
            status["lastAttemptedRevision"] = revision;
            if let Some(request) = sync["metadata"]["annotations"].get(RETRIED_FOR) {
                status["lastHandledReconcileAt"] = request.clone();
            }
            status["attempts"] = attempts.into();
            status["nextAttemptTime"] = again.into();
            status["problems"] = problems.into();
            status["conditions"] = json!([condition("Ready", "False", "Invalid")]);
            sync["status"] = status;
        });
    }

    /// Admits, writes and reports a commit on a cluster.
    pub(super) fn roll_out_to(&mut self, cluster: &str, commit: &str) {
        self.admit(cluster, commit);
        self.write(cluster, commit);
        self.report_applied(cluster);
    }

    /// Admits the entry `more`, which renders nothing, in the pass that admitted the entry `app` last.
    pub(super) fn admit_more(&mut self, cluster: &str, commit: &str) {
        let group = self.cr("SyncGroup", "shop");
        let mut spec = group["spec"]["syncs"][1].clone();
        spec.as_object_mut().unwrap().remove("name");
        spec["groupRef"] = json!({"name": "shop", "entry": "more"});
        spec["clusterRef"] = json!({"name": cluster});
        spec["revision"] = revision(commit).into();
        let annotations = self.cr("Sync", &sync(cluster))["metadata"]["annotations"].clone();
        let name = format!("shop-more-{cluster}");
        self.edit("Sync", &name, "starling-group", |sync| {
            sync["spec"] = spec;
            sync["metadata"]["annotations"] = annotations;
        });
    }

    /// Admits the entry `more`, and reports it as applied.
    pub(super) fn roll_out_more(&mut self, cluster: &str, commit: &str) {
        self.admit_more(cluster, commit);
        let name = format!("shop-more-{cluster}");
        let at = self.now.to_string();
        self.edit("Sync", &name, "starling", |sync| {
            let (target, revision) = (digest(sync), sync["spec"]["revision"].clone());
            sync["status"] = json!({"observedGeneration": sync["metadata"]["generation"],
                "lastAttemptedTarget": target, "lastAttemptedRevision": revision,
                "lastAppliedTarget": target, "lastAppliedRevision": revision,
                "lastAppliedClusterID": format!("id-{cluster}"), "lastAppliedTime": at,
                "lastHealthyTarget": target, "conditions": [condition("Ready", "True", "Succeeded")]});
        });
    }

    /// Updates the group's status from its current Syncs.
    pub(super) fn report(&mut self) {
        let clusters: Vec<String> = self
            .hub
            .iter()
            .filter(|((kind, _), object)| kind == "Cluster" && object["metadata"]["labels"]["fleet"] == "yes")
            .map(|((_, name), _)| name.clone())
            .collect();
        let rolled = self.cr("SyncGroup", "shop")["status"]["rollout"]["revisions"][0]["revision"].clone();
        let (mut updated, mut failed, mut waiting, mut unreachable) = (0, 0, 0, 0);
        let mut problems = Vec::new();
        for cluster in &clusters {
            let sync = self.hub.get(&("Sync".to_owned(), sync(cluster)));
            let is_admitted = sync.is_some_and(|sync| sync["spec"]["revision"] == rolled);
            let is_applied = sync.is_some_and(|sync| {
                sync["status"]["lastAppliedRevision"] == rolled
                    && sync["status"]["lastHealthyTarget"] == sync["status"]["lastAppliedTarget"]
            });
            let reachable = self.cr("Cluster", cluster)["status"]["conditions"][0]["status"] == "True";
            if is_admitted && is_applied {
                updated += 1;
            } else if is_admitted
                && sync.is_some_and(|sync| sync["status"]["attempts"].as_i64().unwrap_or_default() > 0)
            {
                failed += 1;
                problems.push(json!({"cluster": cluster, "reason": "Invalid", "message": "refused"}));
            } else if !reachable {
                unreachable += 1;
                problems.push(json!({"cluster": cluster, "reason": "Unreachable", "message": "no answer"}));
            } else if !is_admitted {
                waiting += 1;
            }
        }
        let phase = match (updated + unreachable == clusters.len(), failed) {
            (true, 0) => "Succeeded",
            (false, 1..) => "Paused",
            _ => "Progressing",
        };
        let since = self.now.to_string();
        let reason = if failed > 0 { "TooManyFailures" } else { "NoSlot" };
        let blocked = if waiting > 0 {
            json!([{"reason": reason, "message": "wait", "since": since}])
        } else {
            json!([])
        };
        self.edit("SyncGroup", "shop", "starling", |group| {
            group["status"]["clusters"] = json!({"total": clusters.len(), "updated": updated, "failed": failed,
                "unreachable": unreachable, "pending": waiting});
            group["status"]["rollout"]["phase"] = phase.into();
            group["status"]["rollout"]["blockedBy"] = blocked;
            group["status"]["problems"] = problems.into();
        });
    }

    /// Creates an operator action for the current rollout.
    pub(super) fn add_action(&mut self, action: &str, more: &Value) {
        let rollout = self.cr("SyncGroup", "shop")["status"]["rollout"]["id"].clone();
        let name = format!("word-{}", self.version);
        self.edit("RolloutAction", &name, "jane", |object| {
            object["spec"] = json!({"group": "shop", "rollout": rollout, "action": action, "by": "jane", "reason": "why not"});
            for (field, value) in more.as_object().into_iter().flatten() {
                object["spec"][field] = value.clone();
            }
        });
    }

    /// Approves a stage as an operator.
    pub(super) fn approve(&mut self, rollout: i64, stage: &str, digest: &str) {
        let name = format!("word-{}", self.version);
        self.edit("RolloutApproval", &name, "jane", |object| {
            object["spec"] = json!({"group": "shop", "rollout": rollout, "stage": stage, "releaseDigest": digest, "by": "jane"});
        });
    }

    /// Sets a time of a stage to now, by its index: `startTime`, `completionTime`, `passTime`.
    pub(super) fn stage(&mut self, place: usize, what: &str) {
        let at = self.after_a_second();
        self.edit_stages(|stages| stages[place][what] = at.into());
    }

    /// Adds a gate task to the status of a stage.
    pub(super) fn task(&mut self, place: usize, field: &str, mut task: Value) {
        task["startTime"] = self.after_a_second().into();
        self.edit_stages(|stages| match stages[place][field].as_array_mut() {
            Some(tasks) => tasks.push(task),
            None => stages[place][field] = json!([task]),
        });
    }

    fn after_a_second(&self) -> String {
        let at = self.now.checked_add(SignedDuration::from_secs(1));
        at.unwrap().to_string()
    }

    fn edit_stages(&mut self, change: impl FnOnce(&mut Value)) {
        let labels: Vec<Value> = { self.hub.iter() }
            .filter(|((kind, _), _)| kind == "Cluster")
            .map(|(_, cluster)| cluster["metadata"]["labels"]["stage"].clone())
            .collect();
        self.edit("SyncGroup", "shop", "starling", |group| {
            let mut names: Vec<Value> = {
                group["spec"]["rolloutStrategy"]["stages"]
                    .as_array()
                    .unwrap()
                    .iter()
            }
            .map(|stage| stage["name"].clone())
            .collect();
            let named = |label: &&Value| names.contains(label);
            let rest = labels.len() - labels.iter().filter(named).count();
            let stages = &mut group["status"]["rollout"]["stages"];
            if stages.is_null() {
                let count = |name: &Value| labels.iter().filter(|label| *label == name).count();
                let mut all: Vec<Value> = { names.drain(..) }
                    .map(|name| json!({"total": count(&name), "name": name}))
                    .collect();
                all.push(json!({"name": "*", "total": rest}));
                *stages = all.into();
            }
            change(stages);
        });
    }

    /// Records a plan of the group that removes these Syncs.
    pub(super) fn plan(&mut self, removes: &[&str]) {
        self.plan_with(removes, &[]);
    }

    /// Records a plan of the group that removes some Syncs, and allows others to prune.
    pub(super) fn plan_with(&mut self, removes: &[&str], prunes: &[&str]) {
        self.wait(1);
        self.history.plans.push(Plan {
            at: self.now,
            namespace: NAMESPACE.into(),
            group: "shop".into(),
            removes: removes.iter().map(|sync| (*sync).to_owned()).collect(),
            prunes: prunes.iter().map(|sync| (*sync).to_owned()).collect(),
        });
    }

    /// Approves a list of deletions as an operator, for `{"group": …}` or `{"sync": …}`. Returns the record of its use.
    pub(super) fn approve_deletions(&mut self, of: &Value, digest: &str) -> Value {
        let name = format!("word-{}", self.version);
        self.edit("DeletionApproval", &name, "jane", |object| {
            object["spec"] = json!({"digest": digest, "by": "jane"});
            for (field, value) in of.as_object().into_iter().flatten() {
                object["spec"][field] = value.clone();
            }
        });
        let uid = format!("DeletionApproval-{name}");
        json!({"name": name, "uid": uid, "digest": digest, "time": self.now.to_string()})
    }

    /// Annotates the group with a digest as an operator. Returns the record of its use.
    pub(super) fn annotate_group(&mut self, annotation: &str, digest: &str) -> Value {
        self.edit("SyncGroup", "shop", "kubectl", |group| {
            group["metadata"]["annotations"] = json!({annotation: digest});
        });
        json!({"name": annotation, "uid": "SyncGroup-shop", "digest": digest, "time": self.now.to_string()})
    }

    /// Writes the grant of an approved list, with the record of its approval.
    pub(super) fn grant_approved(&mut self, cluster: &str, used: &Value, target: &str, objects: u64) {
        self.edit("Sync", &sync(cluster), "starling-deletions", |sync| {
            sync["status"]["deletions"] =
                json!({"counts": [], "grant": {"target": target, "objects": objects}, "used": [used]});
        });
    }

    /// Adds to the kinds whose deletion deletes others.
    pub(super) fn confirm_kind(&mut self, group: &str, kind: &str) {
        let kind = (group.to_owned(), kind.to_owned());
        self.history.confirmed_kinds.insert(kind);
    }

    /// Puts a cluster back to an earlier state; the caller writes what was restored.
    pub(super) fn set_back(&mut self, cluster: &str) {
        self.wait(1);
        self.history.set_backs.push((self.now, cluster.to_owned()));
        self.wait(-1);
    }

    /// Writes the numbers of writes that the management cluster knows.
    pub(super) fn know_writes(&mut self, manager: &str, writes: &Value) {
        self.wait(1);
        let map = json!({"kind": "ConfigMap", "data": {"writes": writes.to_string()},
            "metadata": {"namespace": "starling-system", "name": "starling-installation"}});
        let write = self.new_write(Verb::Write, "", manager, map);
        self.history.hub.push(write);
    }

    /// Stores that the management cluster was set back, or that a person released it.
    pub(super) fn store_finding(&mut self, found: bool) {
        self.wait(1);
        let finding = if found {
            json!({"restoreDetected": "{}"})
        } else {
            json!({})
        };
        let map = json!({"kind": "ConfigMap", "data": finding,
            "metadata": {"namespace": "starling-system", "name": "starling-installation"}});
        let write = self.new_write(Verb::Write, "", if found { "starling" } else { "jane" }, map);
        self.history.hub.push(write);
    }

    /// Writes the number of a write into the inventory.
    pub(super) fn number(&mut self, cluster: &str, number: &str) {
        let mut map = self.live(cluster, "ConfigMap", INVENTORY);
        let text = map["data"]["inventory"].as_str().unwrap().to_owned();
        let (first, rest) = text.split_once('\n').unwrap();
        let version = first.split(' ').next().unwrap();
        map["data"]["inventory"] = format!("{version} hub={number}\n{rest}").into();
        self.write_object(cluster, "starling", map);
    }

    /// Lets the clock of the controller jump.
    pub(super) fn jump(&mut self, seconds: i64) {
        let by = SignedDuration::from_secs(seconds);
        self.history.clock.jump(self.now, by);
    }

    /// Writes whether a cluster is reachable into its Cluster.
    pub(super) fn set_reachable(&mut self, cluster: &str, yes: bool) {
        let ready = if yes {
            condition("Ready", "True", "Succeeded")
        } else {
            condition("Ready", "Unknown", "Unreachable")
        };
        self.edit("Cluster", cluster, "starling", |object| {
            object["status"] = json!({"clusterID": format!("id-{cluster}"), "conditions": [ready]});
        });
    }

    /// Stops the controller for a time.
    pub(super) fn stop_controller(&mut self, seconds: i64) {
        let from = self.now;
        self.wait(seconds);
        self.history.away.push((from, self.now));
    }

    /// Lets the time pass that everything needs to become idle.
    pub(super) fn settle(&mut self) {
        self.wait(60);
        self.history.idle_since = Some(self.now);
        self.wait(600);
    }

    /// Returns the history up to now.
    pub(super) fn end(&self) -> History {
        History {
            ended: self.now,
            ..self.history.clone()
        }
    }
}

/// Returns the name of a cluster's Sync.
pub(super) fn sync(cluster: &str) -> String {
    format!("shop-app-{cluster}")
}

/// Returns the revision of a commit.
pub(super) fn revision(commit: &str) -> String {
    format!("main@sha1:{commit}")
}

/// Returns a ConfigMap as it is in git.
pub(super) fn rendered(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "default", "name": name}, "data": {"value": value}})
}

/// Returns an object as Starling writes it.
pub(super) fn labelled(object: Value) -> Value {
    labelled_by(OWNER, object)
}

/// Returns an object as Starling writes it for an owner.
pub(super) fn labelled_by(owner: &str, mut object: Value) -> Value {
    object["metadata"]["labels"] = json!({"starling.dev/owner": owner});
    object
}

fn api_group(kind: &str) -> &'static str {
    match kind {
        "Deployment" | "DaemonSet" => "apps",
        "CustomResourceDefinition" => "apiextensions.k8s.io",
        "Backup" => "example.com",
        _ => "",
    }
}

/// Returns a condition.
pub(super) fn condition(of: &str, status: &str, reason: &str) -> Value {
    json!({"type": of, "status": status, "reason": reason, "message": reason, "lastTransitionTime": "2026-01-01T12:00:00Z"})
}

/// Returns the target of a Sync. The judge does not know how a target is computed.
pub(super) fn digest(sync: &Value) -> String {
    let mut spec = sync["spec"].clone();
    for field in ["suspend", "groupRef", "clusterRef"] {
        spec.as_object_mut().unwrap().remove(field);
    }
    format!("sha256:{spec}")
}
