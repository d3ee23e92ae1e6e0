//! Runs the same commands of the real `kubectl` with a real control plane and with the embedded one, and compares their
//! output.
//!
//! `scripts/*.sh` are files with one command per line, run by `sh` in a copy of `files`; each file continues from the
//! state of the previous one. The prefix `UNTIL TEXT ;` repeats a command until it prints the text, to wait for
//! controllers. Values that the servers generate are normalised (`normal`). `accepted.txt` contains the accepted
//! differences with their reasons; an entry without a difference fails the test.
//!
//! `KUBECTL_ONLY=NAME` runs one file, and ignores unused entries of `accepted.txt`.

mod accepted;
mod normal;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use normal::Normal;
use starling_apiserver::controllers::Health;
use starling_apiserver::rbac::AuthorizationMode;
use starling_apiserver::server::{Options, Server};
use starling_controlplane::{Assets, ControlPlanes, DEFAULT_CONTROLLERS};
use tokio::process::Command;

/// The controllers that the embedded server replaces, in addition to those of every control plane.
const WORKLOADS: [&str; 7] = [
    "deployment-controller",
    "replicaset-controller",
    "statefulset-controller",
    "daemonset-controller",
    "job-controller",
    "cronjob-controller",
    "persistentvolumeclaim-protection-controller",
];

/// A line of a script.
#[derive(Debug, Clone)]
struct Step {
    file: String,
    line: usize,
    command: String,
    /// The text that has to be printed before the output is compared.
    until: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
struct Output {
    code: i32,
    printed: String,
    stderr: String,
}

/// A cluster with its own folder.
struct Side {
    folder: tempfile::TempDir,
    path: String,
    normal: Normal,
}

impl Side {
    fn new(kubeconfig: &str, kubectl: &Path, normal: Normal) -> Self {
        let folder = tempfile::tempdir().unwrap();
        copy(&here().join("files"), &folder.path().join("work"));
        std::fs::write(folder.path().join("kubeconfig"), kubeconfig).unwrap();
        let programs = kubectl.parent().unwrap().display().to_string();
        let path = format!("{programs}:{}", std::env::var("PATH").unwrap_or_default());
        Self { folder, path, normal }
    }

    async fn run_once(&self, command: &str) -> Output {
        let output = Command::new("sh")
            .args(["-c", command])
            .current_dir(self.folder.path().join("work"))
            .env("PATH", &self.path)
            .env("KUBECONFIG", self.folder.path().join("kubeconfig"))
            .env("HOME", self.folder.path())
            .env("EDITOR", "sh ./edit.sh")
            .env("TZ", "UTC")
            .stdin(Stdio::null())
            .output()
            .await
            .unwrap();
        let text = |bytes: &[u8]| self.normal.text(&String::from_utf8_lossy(bytes));
        Output {
            code: output.status.code().unwrap_or(-1),
            printed: text(&output.stdout),
            stderr: text(&output.stderr),
        }
    }

    /// Runs a step, repeatedly if it waits for a text.
    async fn run(&self, step: &Step) -> Output {
        let Some(text) = &step.until else {
            return self.run_once(&step.command).await;
        };
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        loop {
            let output = self.run_once(&step.command).await;
            let all = format!("{}\n{}", output.printed, output.stderr);
            if all.contains(text.as_str()) || tokio::time::Instant::now() > deadline {
                return output;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance/kubectl")
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn scripts(only: &str) -> Vec<Step> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(here().join("scripts"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    let mut steps = Vec::new();
    for path in paths {
        let file = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if !file.contains(only) {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for (place, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (until, command) = match line.strip_prefix("UNTIL ") {
                Some(rest) => {
                    let (text, command) = rest.split_once(" ; ").expect("UNTIL TEXT ; COMMAND");
                    (Some(text.to_owned()), command)
                }
                None => (None, line),
            };
            steps.push(Step {
                file: file.clone(),
                line: place + 1,
                command: command.to_owned(),
                until,
            });
        }
    }
    steps
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_prints_the_same_of_both_servers() {
    let options = starling_controlplane::Options {
        controller_manager_for: vec!["same".to_owned()],
        controllers: DEFAULT_CONTROLLERS
            .iter()
            .chain(&WORKLOADS)
            .map(|name| (*name).to_owned())
            .collect(),
        ..starling_controlplane::Options::default()
    };
    let assets = Assets::find().unwrap();
    let planes = ControlPlanes::start(&assets, &["same"], options).await.unwrap();
    let plane = planes.get("same").unwrap();
    let server = Server::start(Options {
        // A control plane without nodes runs no workloads.
        health: Health::Never,
        authorization: AuthorizationMode::Rbac,
        ..Options::default()
    })
    .unwrap();
    let _listening = server.listen(([127, 0, 0, 1], 0).into()).await.unwrap();
    let cluster = server.create_cluster("same").unwrap();
    let kubeconfig = cluster.kubeconfig();
    let url = kubeconfig
        .lines()
        .find_map(|line| line.trim().strip_prefix("server: "))
        .unwrap()
        .trim_matches('"');
    let real = Side::new(
        &plane.kubeconfig_yaml(),
        assets.kubectl(),
        Normal::new(plane.url()),
    );
    let embedded = Side::new(&kubeconfig, assets.kubectl(), Normal::new(url));

    let only = std::env::var("KUBECTL_ONLY").unwrap_or_default();
    let steps = scripts(&only);
    assert!(!steps.is_empty(), "no scripts");
    let mut accepted = accepted::Accepted::read(&here().join("accepted.txt"));
    let mut failures = Vec::new();
    for step in &steps {
        let (wanted, found) = tokio::join!(real.run(step), embedded.run(step));
        if wanted == found {
            continue;
        }
        let lines = difference(&wanted, &found);
        if !accepted.is_accepted(&step.command, &lines) {
            failures.push(format!(
                "{}.sh:{}\n{}\n    {}\n",
                step.file,
                step.line,
                step.command,
                lines.join("\n    ")
            ));
        }
    }
    eprintln!("{} commands, {} differ as accepted", steps.len(), accepted.used());
    assert!(
        failures.is_empty(),
        "{} of {} commands print something else:\n{}",
        failures.len(),
        steps.len(),
        failures.join("\n")
    );
    if only.is_empty() {
        accepted.check();
    }
}

/// Returns the lines that only one of two outputs has.
fn difference(wanted: &Output, found: &Output) -> Vec<String> {
    let mut out = Vec::new();
    if wanted.code != found.code {
        out.push(format!("code {} and here {}", wanted.code, found.code));
    }
    for (left, right) in [(&wanted.printed, &found.printed), (&wanted.stderr, &found.stderr)] {
        let (left_lines, right_lines): (Vec<&str>, Vec<&str>) =
            (left.lines().collect(), right.lines().collect());
        let missing = left_lines.iter().filter(|line| !right_lines.contains(line));
        let added = right_lines.iter().filter(|line| !left_lines.contains(line));
        let before = out.len();
        out.extend(missing.map(|line| format!("- {line}")));
        out.extend(added.map(|line| format!("+ {line}")));
        if left != right && out.len() == before {
            out.push("the same lines in another order, or another number of them".to_owned());
        }
    }
    out
}
