//! The embedded API server with the real kubectl.

use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::world::World;

/// The kubectl binary and its kubeconfig.
struct Kubectl {
    program: std::path::PathBuf,
    directory: tempfile::TempDir,
}

impl Kubectl {
    fn new(kubeconfig: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("kubeconfig"), kubeconfig).unwrap();
        let assets = starling_controlplane::Assets::find().unwrap();
        Self {
            program: assets.kube_apiserver().with_file_name("kubectl"),
            directory,
        }
    }

    /// Runs a command with an input; returns success, stdout and stderr.
    fn run(&self, line: &str, input: &str) -> (bool, String, String) {
        let mut child = Command::new(&self.program)
            .args(line.split_whitespace())
            .env("KUBECONFIG", self.directory.path().join("kubeconfig"))
            .env("HOME", self.directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.success(), text(output.stdout), text(output.stderr))
    }

    fn good(&self, line: &str, input: &str) -> String {
        let (good, out, complaints) = self.run(line, input);
        assert!(good, "kubectl {line}\n{out}\n{complaints}");
        out
    }

    fn bad(&self, line: &str, input: &str) -> String {
        let (good, out, complaints) = self.run(line, input);
        assert!(!good, "kubectl {line} should fail\n{out}");
        complaints
    }
}

const WEB: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: web, image: "nginx:1", ports: [{containerPort: 80}]}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, labels: {app: web}}
data: {colour: red}
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_works_without_flags() {
    let world = World::new().await;
    let (cluster, _client) = world.cluster("a").await;
    let kubectl = Kubectl::new(&cluster.kubeconfig());
    tokio::task::spawn_blocking(move || {
        kubectl.good("version", "");
        assert!(kubectl.good("api-resources", "").contains("deployments"));
        assert!(kubectl.good("get namespaces", "").contains("kube-system"));
        // Typed creates send protobuf.
        kubectl.good("create namespace shop", "");
        kubectl.good("create configmap made -n shop --from-literal=a=b", "");
        kubectl.good("create secret generic made -n shop --from-literal=a=b", "");
        kubectl.good("create deployment made -n shop --image=nginx:1 --replicas=2 --port=80", "");
        kubectl.good("create service clusterip made -n shop --tcp=80:8080", "");
        kubectl.good("create job made -n shop --image=busybox:1 -- true", "");
        kubectl.good("create role made -n shop --verb=get,list --resource=pods,deployments.apps", "");
        kubectl.good("create rolebinding made -n shop --role=made --serviceaccount=shop:default", "");
        kubectl.good("create quota made -n shop --hard=cpu=1,memory=1Gi", "");
        kubectl.good("create ingress made -n shop --rule=a.example/*=made:80", "");
        kubectl.good("create cronjob made -n shop --image=busybox:1 --schedule=@hourly", "");
        assert_eq!(kubectl.good("get configmap made -n shop -o jsonpath={.data.a}", ""), "b");
        assert_eq!(kubectl.good("get quota made -n shop -o jsonpath={.spec.hard.memory}", ""), "1Gi");
        assert!(kubectl.good("create token default -n shop", "").split('.').count() == 3);

        assert!(kubectl.good("apply -n shop -f -", WEB).contains("deployment.apps/web created"));
        assert!(kubectl.good("apply -n shop -f -", WEB).contains("configmap/settings unchanged"));
        let blue = WEB.replace("red", "blue");
        assert!(kubectl.good("apply -n shop -f -", &blue).contains("configmap/settings configured"));
        assert!(kubectl.good("apply --server-side --force-conflicts -n shop -f -", WEB).contains("serverside-applied"));
        kubectl.good("rollout status deployment/web -n shop --timeout=30s", "");
        kubectl.good("wait --for=condition=available deployment/web -n shop --timeout=30s", "");
        kubectl.good("wait --for=condition=complete job/made -n shop --timeout=30s", "");
        kubectl.good("label configmap settings -n shop tier=front", "");
        kubectl.good("annotate configmap settings -n shop note=x", "");
        kubectl.good("scale deployment web -n shop --replicas=5", "");
        kubectl.good("set image deployment/web -n shop web=nginx:2", "");
        kubectl.good("patch deployment web -n shop --type=json -p [{\"op\":\"replace\",\"path\":\"/spec/replicas\",\"value\":4}]", "");
        kubectl.good("patch configmap settings -n shop --type=merge -p {\"data\":{\"more\":\"1\"}}", "");
        kubectl.good("patch deployment web -n shop -p {\"spec\":{\"template\":{\"spec\":{\"containers\":[{\"name\":\"side\",\"image\":\"busybox:1\"}]}}}}", "");
        assert_eq!(
            kubectl.good("get deployment web -n shop -o jsonpath={.spec.replicas},{.spec.template.spec.containers[*].image}", ""),
            "4,busybox:1 nginx:2"
        );
        assert_eq!(kubectl.good("get all,cm -n shop -l app=web -o name", ""), "deployment.apps/web\nconfigmap/settings\n");
        assert!(kubectl.good("describe deployment web -n shop", "").contains("nginx:2"));
        assert!(kubectl.good("auth can-i create pods", "").contains("yes"));
        assert!(kubectl.good("auth whoami -o jsonpath={.status.userInfo.username}", "").contains("kubernetes-admin"));
        assert!(kubectl.bad("create configmap made -n shop", "").contains("already exists"));
        assert!(kubectl.bad("get configmap none -n shop", "").contains("NotFound"));
        let typo = WEB.replace("replicas:", "replica:");
        assert!(kubectl.bad("apply -n shop -f -", &typo).contains("unknown field \"spec.replica\""));
        kubectl.good("delete -n shop -f -", WEB);
        kubectl.good("delete namespace shop --timeout=30s", "");
        assert!(kubectl.bad("get namespace shop", "").contains("NotFound"));
    })
    .await
    .unwrap();
}

/// A client that knows only host, port and token, as in a Pod, means the cluster of its token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paths_without_a_cluster_are_those_of_the_cluster_of_the_token() {
    let world = World::new().await;
    let (cluster, _client) = world.cluster("a").await;
    let (_other, _client) = world.cluster("b").await;
    let own = Kubectl::new(&cluster.kubeconfig());
    let bare = cluster.kubeconfig().replace("/clusters/a", "");
    let strangers = Kubectl::new(&bare.replace(&cluster.token(), "wrong"));
    let kubectl = Kubectl::new(&bare);
    let administrator = cluster.token();
    tokio::task::spawn_blocking(move || {
        own.good("create configmap -n default only-here --from-literal=a=b", "");
        for (path, part) in [
            ("/openapi/v3", "apis/apps/v1"),
            ("/openapi/v3/apis/apps/v1", "deployments"),
            ("/openapi/v2", "swagger"),
            ("/api", "APIVersions"),
            ("/apis/apps/v1", "APIResourceList"),
            ("/version", "gitVersion"),
            ("/readyz", "ok"),
            ("/api/v1/namespaces/default/configmaps/only-here", "only-here"),
        ] {
            for kubectl in [&own, &kubectl] {
                let raw = kubectl.good(&format!("get --raw {path}"), "");
                assert!(raw.contains(part), "{path}: {raw}");
            }
        }
        assert!(
            kubectl
                .good("explain deployment.spec.replicas", "")
                .contains("replicas")
        );
        let with_path = kubectl.good(
            "get --raw /clusters/a/api/v1/namespaces/default/configmaps/only-here",
            "",
        );
        assert!(with_path.contains("only-here"));
        let token = kubectl.good("create token default -n default", "");
        let of_pod = Kubectl::new(&bare.replace(&administrator, token.trim()));
        assert_eq!(
            of_pod.good("get configmap only-here -n default -o jsonpath={.data.a}", ""),
            "b"
        );
        assert!(
            strangers
                .bad("get --raw /openapi/v3", "")
                .contains("Unauthorized")
        );
        assert!(strangers.good("get --raw /readyz", "").contains("ok"));
    })
    .await
    .unwrap();
}
