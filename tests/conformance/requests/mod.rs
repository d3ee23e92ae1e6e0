//! Sends the same requests to a real kube-apiserver and to the embedded one, and compares the responses.
//!
//! `cases/*.http` are files of steps, see [`script`], and `cases/bare/*.http` those for servers without controllers;
//! `random` generates sequences of them. Values that the servers generate (UIDs, revisions, times, addresses) are
//! normalised.

pub(crate) mod normal;
mod random;
pub(crate) mod script;
mod selectors;
pub(crate) mod side;

use std::collections::BTreeMap;
use std::path::Path;

use kube::Client;
use starling_apiserver::controllers::{Controllers, Health};
use starling_apiserver::listen::Listening;
use starling_apiserver::rbac::AuthorizationMode;
use starling_apiserver::server::{Options, Server};
use starling_controlplane::{Assets, ControlPlanes};

use script::{End, Step};
use side::{Response, Side, client};

pub(crate) fn differences(
    step: &Step,
    real: &Response,
    embedded: &Response,
    normal: &mut normal::Pair,
) -> Vec<String> {
    let mut differences = Vec::new();
    if let End::Until(..) = step.end {
        if real.code != embedded.code {
            differences.push(format!(
                "in the end code {} and here {}",
                real.code, embedded.code
            ));
        }
        // Assigns names to new values.
        normal.both(&real.body, &embedded.body);
        return differences;
    }
    if real.code != embedded.code {
        differences.push(format!("code {} and here {}", real.code, embedded.code));
    }
    let (mut wanted, mut found) = normal.both(&real.body, &embedded.body);
    if step.code_only {
        wanted = wanted["reason"].clone();
        found = found["reason"].clone();
    } else if real.warnings != embedded.warnings {
        differences.push(format!(
            "warnings {:?} and here {:?}",
            real.warnings, embedded.warnings
        ));
    }
    normal::diff("", &wanted, &found, &mut differences);
    differences
}

/// A real control plane; with the controllers that the embedded server has too, or with none.
pub(crate) async fn real(controllers: bool) -> (ControlPlanes, Client) {
    let options = starling_controlplane::Options {
        controller_manager_for: controllers.then(|| "real".to_owned()).into_iter().collect(),
        ..starling_controlplane::Options::default()
    };
    let planes = ControlPlanes::start(&Assets::find().unwrap(), &["real"], options)
        .await
        .unwrap();
    let client = client(&planes.get("real").unwrap().kubeconfig_yaml()).await;
    (planes, client)
}

/// An embedded server without workload controllers, which the real controller manager of these tests does not run
/// either.
pub(crate) async fn embedded(controllers: Controllers) -> (Server, Listening) {
    let server = Server::start(options(controllers)).unwrap();
    let listening = server.listen(([127, 0, 0, 1], 0).into()).await.unwrap();
    (server, listening)
}

/// The options of an embedded server.
pub(crate) fn options(controllers: Controllers) -> Options {
    Options {
        health: Health::Unattended,
        controllers,
        authorization: AuthorizationMode::Rbac,
        ..Options::default()
    }
}

/// Sends a step to both servers; returns the differences of their responses.
pub(crate) async fn run(
    step: &Step,
    wanted: &mut Side,
    found: &mut Side,
    normal: &mut normal::Pair,
) -> Vec<String> {
    let (wanted, found) = tokio::join!(wanted.response(step), found.response(step));
    differences(step, &wanted, &found, normal)
}

/// Returns the scripts of a folder below `cases`, by name.
fn scripts(folder: &str) -> BTreeMap<String, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("conformance/requests/cases")
        .join(folder);
    let only = std::env::var("COMPARE_ONLY").unwrap_or_default();
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if path.is_file() && name.contains(&only) {
            files.insert(name, std::fs::read_to_string(&path).unwrap());
        }
    }
    assert!(!files.is_empty() || !only.is_empty(), "no cases");
    files
}

/// Runs scripts on both servers, each in an embedded cluster of its own; returns how many steps it compared.
async fn compare(
    files: &BTreeMap<String, String>,
    real: &Client,
    server: &Server,
    controllers: bool,
) -> usize {
    let (mut steps_done, mut failures) = (0, Vec::new());
    for (name, text) in files {
        let cluster = server.create_cluster(name).unwrap();
        let mut wanted = Side::new(real, controllers);
        let mut found = Side::new(&client(&cluster.kubeconfig()).await, controllers);
        let mut normal = normal::Pair::default();
        for step in script::read(text) {
            let differences = run(&step, &mut wanted, &mut found, &mut normal).await;
            steps_done += 1;
            if !differences.is_empty() {
                failures.push(format!(
                    "{name}.http:{} {} {}\n    {}",
                    step.line,
                    step.method,
                    step.path,
                    differences.join("\n    ")
                ));
            }
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {steps_done} steps differ (the real server's value stands first):\n{}",
        failures.len(),
        failures.join("\n")
    );
    steps_done
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_servers_respond_alike() {
    let files = scripts("");
    let (_planes, real) = real(true).await;
    let (server, _listening) = embedded(Controllers::all()).await;
    let steps = compare(&files, &real, &server, true).await;
    eprintln!("{steps} steps in {} files compared", files.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_servers_respond_alike_without_controllers() {
    let files = scripts("bare");
    let (_planes, real) = real(false).await;
    let (server, _listening) = embedded(Controllers::none()).await;
    let steps = compare(&files, &real, &server, false).await;
    eprintln!("{steps} steps in {} files compared", files.len());
}
