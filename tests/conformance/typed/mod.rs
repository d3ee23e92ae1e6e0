//! Runs a client that is written in Go with controller-runtime, `tests/typed`, against a real kube-apiserver and the
//! embedded one, and compares what it saw.

mod fields;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::LazyLock;
use std::time::Duration;

use serde_json::Value;
use starling_apiserver::controllers::Controllers;
use starling_apiserver::listen::Listening;
use starling_apiserver::server::Server;
use starling_controlplane::ControlPlanes;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::requests::{embedded, normal, real};

/// Longer than the limit that the program sets itself.
const LIMIT: Duration = Duration::from_secs(5 * 60);

/// The methods that every path gets.
const PATHS: &str = include_str!("paths.txt");

/// The paths that are read in every form that a client may accept.
const READ: &str = "
    /healthz
    /readyz/ping
    /openapi/v3
    /api/v1/namespaces/kube-system
    /api/v1/namespaces/nothing
    /api/v1/namespaces?
    /api/v1/namespaces/default/configmaps?
    /apis/apiextensions.k8s.io/v1/customresourcedefinitions/stacks.typed.dev
    /apis/typed.dev/v1/namespaces/default/stacks?
    /apis/typed.dev/v1/namespaces/default/stacks/nothing
";

/// The program, built once for all tests.
static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("typed/build.sh");
    let status = std::process::Command::new("bash").arg(&script).status().unwrap();
    assert!(status.success(), "{}: {status}", script.display());
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"));
    target.join("typed/bin/typed")
});

/// Both servers, and the kubeconfig for each.
struct Both {
    folder: tempfile::TempDir,
    _planes: ControlPlanes,
    _server: (Server, Listening),
}

impl Both {
    async fn start(controllers: bool) -> Self {
        let chosen = if controllers {
            Controllers::all()
        } else {
            Controllers::none()
        };
        let ((planes, _), server) = tokio::join!(real(controllers), embedded(chosen));
        let folder = tempfile::tempdir().unwrap();
        let cluster = server.0.create_cluster("typed").unwrap();
        std::fs::write(folder.path().join("embedded"), cluster.kubeconfig()).unwrap();
        let kubeconfig = planes.get("real").unwrap().kubeconfig_yaml();
        std::fs::write(folder.path().join("real"), kubeconfig).unwrap();
        Self {
            folder,
            _planes: planes,
            _server: server,
        }
    }

    /// Runs a command of the program against both; returns what it printed.
    async fn run(&self, command: &str, input: &str) -> (Value, Value) {
        tokio::join!(
            self.of("real", command, input),
            self.of("embedded", command, input)
        )
    }

    async fn of(&self, name: &str, command: &str, input: &str) -> Value {
        let mut child = Command::new(&*PROGRAM)
            .arg(command)
            .env("KUBECONFIG", self.folder.path().join(name))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(input.as_bytes())
            .await
            .unwrap();
        let output = tokio::time::timeout(LIMIT, child.wait_with_output())
            .await
            .unwrap()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{command} on the {name} server: {errors}"
        );
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

/// Fails if the program saw different things; returns those of the embedded server.
fn assert_same(what: &str, (real, embedded): &(Value, Value)) {
    let (wanted, found) = normal::Pair::default().both(real, embedded);
    let mut differences = Vec::new();
    normal::diff("", &wanted, &found, &mut differences);
    assert!(
        differences.is_empty(),
        "{what}: {} differences (the real server's value stands first):\n{}",
        differences.len(),
        differences.join("\n")
    );
}

/// A controller runs the same against both servers without controllers, as test suites of projects in Go run it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_in_go_runs_alike_on_both_bare_servers() {
    let both = Both::start(false).await;
    let seen = both.run("controller", "").await;
    let count = |field: &str| seen.1[field].as_array().map_or(0, Vec::len);
    eprintln!(
        "{} steps and {} objects compared",
        count("steps"),
        count("objects")
    );
    assert!(count("steps") > 40 && count("objects") > 30);
    assert_same("the controller", &by_object(seen));

    let seen = both.run("accepts", READ).await;
    eprintln!("{} responses compared", seen.1.as_array().map_or(0, Vec::len));
    assert_same("forms", &by_form(seen));

    let seen = both.run("methods", PATHS).await;
    eprintln!("{} answers compared", seen.1.as_array().map_or(0, Vec::len));
    assert_same("methods", &by_request(seen));
}

/// Names each object by its kind and name, so that a missing one is seen as such.
fn by_object(seen: (Value, Value)) -> (Value, Value) {
    let named = |mut world: Value| {
        let mut objects = serde_json::Map::new();
        for object in world["objects"].as_array().into_iter().flatten() {
            let name = match &object["metadata"]["name"] {
                Value::String(name) => name.clone(),
                _ => format!("{} {}", object["involvedObject"], object["message"]),
            };
            // The owners come first, so that their UIDs are known where others name them.
            let owner = if object["kind"] == "Stack" { 0 } else { 1 };
            let name = format!("{owner} {} {} {name}", object["apiVersion"], object["kind"]);
            let count = objects.keys().filter(|other| other.starts_with(&name)).count();
            objects.insert(format!("{name} {count}"), object.clone());
        }
        world["objects"] = Value::Object(objects);
        world
    };
    (named(seen.0), named(seen.1))
}

/// Names each response by its path and what the client accepts.
fn by_form(seen: (Value, Value)) -> (Value, Value) {
    let named = |responses: Value| {
        let responses = responses.as_array().cloned().unwrap_or_default();
        let name = |response: &Value| format!("{} as {}", response["path"], response["accept"]);
        responses
            .into_iter()
            .map(|response| (name(&response), response))
            .collect()
    };
    (Value::Object(named(seen.0)), Value::Object(named(seen.1)))
}

/// Names each answer by its request, so that a difference says where it is.
fn by_request(seen: (Value, Value)) -> (Value, Value) {
    let named = |answers: Value| {
        let answers = answers.as_array().cloned().unwrap_or_default();
        answers
            .into_iter()
            .map(|answer| {
                let text = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
                let name = format!("{} {} {}", text("method"), text("path"), text("protocol"));
                (name, answer)
            })
            .collect()
    };
    (Value::Object(named(seen.0)), Value::Object(named(seen.1)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_in_go_runs_alike_on_both_servers_with_controllers() {
    let both = Both::start(true).await;
    assert_same("the controller", &by_object(both.run("controller", "").await));
}
