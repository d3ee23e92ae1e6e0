//! Compares which requests admission policies deny, and with which words: those that `deploy/` ships (`shipped.txt`),
//! and policies made for this test (`cases.txt`, `refused.txt`).
//!
//! Each line is a code and a step in the format of [`script`]. Both servers must respond with this code, and alike. A
//! real server needs a moment until a policy is in force, so a step is repeated until they do, or for [`SETTLES`].
//! Steps that pass change nothing (`dryRun`), or what no later step depends on.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::rbac::{Both, SETTLES};
use crate::requests::script::{self, Step};
use crate::requests::side::Response;

const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// The kinds of custom resources by their plural names; their bodies must have one.
const KINDS: [(&str, &str); 4] = [
    ("syncs", "Sync"),
    ("syncgroups", "SyncGroup"),
    ("rolloutactions", "RolloutAction"),
    ("rolloutapprovals", "RolloutApproval"),
];

/// Adds the version and the kind to an object of Starling's.
fn typed(plural: &str, mut object: Value) -> Value {
    let (_, kind) = { KINDS.iter() }.find(|(of, _)| *of == plural).expect("a kind");
    object["apiVersion"] = json!("starling.dev/v1alpha1");
    object["kind"] = json!(kind);
    object
}

/// A step and how both servers must respond.
struct Expected {
    code: u16,
    /// Whether the response has a warning.
    warned: bool,
    step: Step,
    text: String,
}

impl Expected {
    /// Reads `CODE[w] STEP`; `!` at the beginning compares code and reason only.
    fn read(line: usize, text: &str) -> Self {
        let (mark, rest) = match text.strip_prefix('!') {
            Some(rest) => ("!", rest),
            None => ("", text),
        };
        let (code, step) = rest.split_once(' ').unwrap();
        let number = code.strip_suffix('w');
        Self {
            code: number.unwrap_or(code).parse().expect("a code"),
            warned: number.is_some(),
            step: script::step(line, &format!("{mark}{step}")),
            text: text.to_owned(),
        }
    }

    fn is_met_by(&self, response: &Response) -> bool {
        response.code == self.code && response.warnings.is_empty() != self.warned
    }
}

/// What went wrong, and how long further steps may wait for a real server.
struct Run {
    both: Both,
    failures: Vec<String>,
    patience: Duration,
    steps: usize,
}

impl Run {
    async fn start() -> Self {
        Self {
            both: Both::start().await,
            failures: Vec::new(),
            patience: SETTLES * 4,
            steps: 0,
        }
    }

    /// Sends a step until both respond as expected.
    async fn expect(&mut self, expected: &Expected) {
        let began = Instant::now();
        let deadline = began + SETTLES.min(self.patience);
        self.steps += 1;
        loop {
            let (real, embedded, differences) = self.both.once(&expected.step).await;
            if differences.is_empty() && expected.is_met_by(&real) && expected.is_met_by(&embedded) {
                return;
            }
            if Instant::now() > deadline {
                self.patience = self.patience.saturating_sub(began.elapsed());
                self.failures.push(format!(
                    "line {} {}\n    real {} {:?}, embedded {} {:?}: {}\n    {}",
                    expected.step.line,
                    expected.text,
                    real.code,
                    real.warnings,
                    embedded.code,
                    embedded.warnings,
                    embedded.body["message"],
                    differences.join("\n    ")
                ));
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Creates an object on both. A real server needs no moment for that.
    async fn create(&mut self, path: &str, object: &Value) {
        let step = script::step(0, &format!("POST {path} {object}"));
        let (real, embedded, differences) = self.both.once(&step).await;
        assert!(
            differences.is_empty() && (real.code, embedded.code) == (201, 201),
            "{path} {object}: {} and {}: {differences:?}",
            real.body,
            embedded.body
        );
    }

    async fn until(&mut self, path: &str, text: &str) {
        let step = script::step(0, &format!("UNTIL {path} 200 {text}"));
        let (real, embedded, _) = self.both.once(&step).await;
        assert_eq!((real.code, embedded.code), (200, 200), "{path}");
    }

    /// Creates a namespace and waits for what controllers create in it, which policies could deny.
    async fn namespace(&mut self, name: &str, labels: &Value) {
        let namespace = json!({"metadata": {"name": name, "labels": labels}});
        self.create("/api/v1/namespaces", &namespace).await;
        let path = format!("/api/v1/namespaces/{name}");
        self.until(&format!("{path}/serviceaccounts/default"), "").await;
        self.until(&format!("{path}/configmaps/kube-root-ca.crt"), "")
            .await;
    }

    /// Creates a ClusterRole and binds it to subjects, such as `{"kind": "User", "name": "ann"}`.
    async fn grant(&mut self, name: &str, rule: &Value, subject: &Value) {
        let role = json!({"metadata": {"name": name}, "rules": [rule]});
        self.create(&format!("{RBAC}/clusterroles"), &role).await;
        self.bind("clusterrolebindings", name, subject).await;
    }

    async fn bind(&mut self, path: &str, role: &str, subject: &Value) {
        let mut subject = subject.clone();
        subject["apiGroup"] = json!("rbac.authorization.k8s.io");
        let binding = json!({
            "metadata": {"name": role},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [subject],
        });
        self.create(&format!("{RBAC}/{path}"), &binding).await;
    }

    fn end(self) {
        assert!(
            self.failures.is_empty(),
            "{} of {} steps differ (the real server's value stands first):\n{}",
            self.failures.len(),
            self.steps,
            self.failures.join("\n")
        );
    }
}

/// The lines of a file with their numbers, without comments.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    { text.lines().enumerate() }
        .map(|(number, line)| (number + 1, line.trim()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn read(path: &Path) -> Vec<Value> {
    serde_saphyr::from_multiple(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn user(name: &str) -> Value {
    json!({"kind": "User", "name": name})
}

fn group(name: &str) -> Value {
    json!({"kind": "Group", "name": name})
}

/// Loads the definitions and the manifests, and creates what the steps change.
async fn install(run: &mut Run) {
    for entry in std::fs::read_dir(repository().join("crds")).unwrap() {
        for definition in read(&entry.unwrap().path()) {
            let name = definition["metadata"]["name"].as_str().unwrap();
            let step = script::step(0, &format!("POST {DEFINITIONS} {definition}"));
            let (real, embedded, _) = run.both.once(&step).await;
            assert_eq!((real.code, embedded.code), (201, 201), "{name}");
            let plural = name.split_once('.').unwrap().0;
            run.until(&format!("/apis/starling.dev/v1alpha1/{plural}"), "")
                .await;
        }
    }
    run.namespace("team", &json!({})).await;
    let api = "/apis/starling.dev/v1alpha1/namespaces/team";
    let entry = json!({"name": "app", "sourceRef": {"name": "s"}});
    let tasks = json!([{"name": "all", "beforeStageTasks": [{"type": "Approval"}]}]);
    for (name, stages) in [("gated", tasks), ("open", json!([{"name": "all"}]))] {
        let spec = json!({"clusterSelector": {}, "syncs": [entry], "rolloutStrategy": {"stages": stages}});
        let object = typed("syncgroups", json!({"metadata": {"name": name}, "spec": spec}));
        run.create(&format!("{api}/syncgroups"), &object).await;
    }
    let spec = json!({"clusterRef": {"name": "c"}, "sourceRef": {"name": "s"}, "revision": "main@sha1:1"});
    let mut of_group = spec.clone();
    of_group["groupRef"] = json!({"name": "gated", "entry": "app"});
    let annotated = json!({"name": "approved", "annotations": {"starling.dev/approve-deletions": "d"}});
    for (metadata, spec) in [
        (json!({"name": "alone"}), &spec),
        (json!({"name": "of-group"}), &of_group),
        (annotated, &spec),
    ] {
        let object = typed("syncs", json!({"metadata": metadata, "spec": spec}));
        run.create(&format!("{api}/syncs"), &object).await;
    }
    for mut object in read(&repository().join("deploy/manifests/30-people.yaml")) {
        let path = match object["kind"].as_str().unwrap() {
            "ClusterRole" => format!("{RBAC}/clusterroles"),
            "ValidatingAdmissionPolicy" => POLICIES.to_owned(),
            "ValidatingAdmissionPolicyBinding" => BINDINGS.to_owned(),
            other => panic!("no path for {other}"),
        };
        object["metadata"]["labels"] = json!({"test": "policies"});
        run.create(&path, &object).await;
    }
    let writes = json!({"apiGroups": ["starling.dev"], "verbs": ["*"],
        "resources": ["syncs", "syncs/status", "syncgroups", "rolloutactions"]});
    run.grant("members", &writes, &group("members")).await;
    run.bind("namespaces/team/rolebindings", "starling-approver", &user("ann"))
        .await;
    // To apply is to patch.
    let patches =
        json!({"apiGroups": ["starling.dev"], "verbs": ["patch"], "resources": ["rolloutapprovals"]});
    run.grant("patches", &patches, &user("ann")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenant_shipped_policies_deny_the_same_requests_on_both_servers() {
    let mut run = Run::start().await;
    install(&mut run).await;
    for (number, line) in lines(include_str!("shipped.txt")) {
        let line = line.replace("{api}", "/apis/starling.dev/v1alpha1/namespaces/team");
        let mut expected = Expected::read(number, &line);
        let step = &mut expected.step;
        if step.method == "POST" {
            let path = step.path.split('?').next().unwrap();
            let plural = path.rsplit('/').next().unwrap();
            step.body = typed(plural, serde_json::from_str(&step.body).unwrap()).to_string();
        }
        run.expect(&expected).await;
    }
    run.end();
}

/// A policy of `cases.txt`.
#[derive(Default)]
struct Case {
    name: String,
    labels: Value,
    policy: Value,
    binding: Value,
    steps: Vec<Expected>,
}

fn cases(text: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for (number, line) in lines(text) {
        if let Some(name) = line.strip_prefix("== ") {
            cases.push(Case {
                name: name.to_owned(),
                labels: json!({}),
                binding: json!({}),
                ..Case::default()
            });
            continue;
        }
        let case = cases.last_mut().unwrap();
        let body = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        match line.split_once(' ').unwrap() {
            ("labels", rest) => case.labels = body(rest),
            ("policy", rest) => case.policy = body(rest),
            ("binding", rest) => case.binding = body(rest),
            _ => {
                let line = line
                    .replace("{ns}", &format!("/api/v1/namespaces/{}", case.name))
                    .replace("{namespace}", &format!("/namespaces/{}", case.name));
                case.steps.push(Expected::read(number, &line));
            }
        }
    }
    cases
}

impl Case {
    /// Creates the namespace and what is in it.
    async fn prepare(&self, run: &mut Run) {
        run.namespace(&self.name, &self.labels).await;
        let path = format!("/api/v1/namespaces/{}/configmaps", self.name);
        for (name, labels, x) in [
            ("one", json!({"app": "x"}), "1"),
            ("two", json!({"app": "y"}), "2"),
        ] {
            let object = json!({"metadata": {"name": name, "labels": labels}, "data": {"x": x}});
            run.create(&path, &object).await;
        }
        let template = json!({"metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"name": "a", "image": "a"}]}});
        let spec = json!({"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template});
        let path = format!("/apis/apps/v1/namespaces/{}/deployments", self.name);
        let deployment = json!({"metadata": {"name": "web"}, "spec": spec});
        run.create(&path, &deployment).await;
    }

    /// Creates the policy, and its binding for the namespace.
    async fn install(&self, run: &mut Run) {
        let config_maps = json!({"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
            "operations": ["*"], "resources": ["configmaps"]}]});
        let mut policy = json!({"metadata": {"name": self.name}, "spec": self.policy});
        if policy["spec"]["matchConstraints"].is_null() {
            policy["spec"]["matchConstraints"] = config_maps;
        }
        run.create(POLICIES, &policy).await;
        let own = json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self.name}}});
        let mut spec = json!({"policyName": self.name, "validationActions": ["Deny"], "matchResources": own});
        for (field, value) in self.binding.as_object().unwrap() {
            spec[field] = value.clone();
        }
        let binding = json!({"metadata": {"name": self.name}, "spec": spec});
        run.create(BINDINGS, &binding).await;
    }
}

/// Roles of those who send the steps.
async fn grant_roles(run: &mut Run) {
    let rule = |group: &str, resource: &str, verbs: &[&str]| json!({"apiGroups": [group], "resources": [resource], "verbs": verbs});
    let writes = rule("", "configmaps", &["get", "create", "update", "patch"]);
    run.grant("test-writers", &writes, &user("walt")).await;
    let reads = rule("", "secrets", &["get"]);
    run.grant("test-keys", &reads, &group("keys")).await;
    let deletes = rule("", "configmaps", &["delete"]);
    run.grant("test-deleters", &deletes, &group("deleters")).await;
    let paths = json!({"nonResourceURLs": ["/metrics"], "verbs": ["get"]});
    run.grant("test-paths", &paths, &group("paths")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_servers_evaluate_policies_alike() {
    let mut run = Run::start().await;
    grant_roles(&mut run).await;
    let only = std::env::var("COMPARE_ONLY").unwrap_or_default();
    let cases: Vec<_> = { cases(include_str!("cases.txt")).into_iter() }
        .filter(|case| case.name.contains(&only))
        .collect();
    for case in &cases {
        case.prepare(&mut run).await;
    }
    for case in &cases {
        case.install(&mut run).await;
    }
    for step in cases.iter().flat_map(|case| &case.steps) {
        run.expect(step).await;
    }
    run.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_servers_refuse_the_same_policies() {
    let mut run = Run::start().await;
    for (number, line) in lines(include_str!("refused.txt")) {
        let (code, validation) = line.split_once(' ').unwrap();
        let validation: Value = serde_json::from_str(validation).unwrap();
        let rule =
            json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["pods"]});
        let spec = json!({"matchConstraints": {"resourceRules": [rule]}, "validations": [validation]});
        let policy = json!({"metadata": {"name": format!("p{number}")}, "spec": spec});
        let text = format!("{code} POST {POLICIES}?dryRun=All {policy}");
        run.expect(&Expected::read(number, &text)).await;
    }
    run.end();
}
