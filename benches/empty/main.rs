//! An empty API server: how long it takes to start, and how much memory it has at rest. The embedded one runs beside a
//! kube-apiserver with its etcd: `cargo bench --bench empty`.
//!
//! `-- --rounds N` changes the number of rounds, `--program FILE` measures another build of `starling`.

#![expect(clippy::print_stdout, reason = "a measurement prints what it found")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use starling_controlplane::{Assets, ControlPlanes, Launch, Options, Process};

/// Limit of a start.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Pause between two requests to a server that does not respond yet.
const POLL: Duration = Duration::from_millis(2);
/// The servers are left alone for this long before their memory is read.
const REST: Duration = Duration::from_secs(5);

/// One start.
struct Start {
    /// From the start of the first process to the response to a list of namespaces.
    seconds: f64,
    /// Resident memory of all processes, in MiB.
    memory: f64,
}

#[tokio::main]
async fn main() -> Result<()> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let (mut rounds, mut program) = (5, PathBuf::from(env!("CARGO_BIN_EXE_starling")));
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        match name.as_str() {
            "--rounds" => rounds = arguments.next().context("--rounds N")?.parse()?,
            "--program" => program = arguments.next().context("--program FILE")?.into(),
            // What cargo adds.
            _ => {}
        }
    }
    let (mut embedded, mut real) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        embedded.push(embedded_server(&program).await?);
        real.push(kube_apiserver().await?);
    }
    println!("| server | ready s | at rest MiB |\n|---|--:|--:|");
    print("`starling server --embedded`, one cluster", &mut embedded);
    print("kube-apiserver and etcd", &mut real);
    Ok(())
}

/// Prints medians.
fn print(name: &str, starts: &mut [Start]) {
    let middle = starts.len() / 2;
    starts.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let seconds = starts.get(middle).map_or(f64::NAN, |start| start.seconds);
    starts.sort_by(|a, b| a.memory.total_cmp(&b.memory));
    let memory = starts.get(middle).map_or(f64::NAN, |start| start.memory);
    println!("| {name} | {seconds:.2} | {memory:.0} |");
}

async fn embedded_server(program: &Path) -> Result<Start> {
    let folder = tempfile::tempdir()?;
    let start = Instant::now();
    let launch = Launch::new("server", program, folder.path().join("log"))
        .args([
            "server",
            "--embedded",
            "--no-controller",
            "--controllers",
            "none",
            "--data-dir",
        ])
        .arg(folder.path().join("data"));
    let process = Process::start(&launch)?;
    let file = folder.path().join("data/kubeconfig");
    let kubeconfig = loop {
        ensure!(start.elapsed() < TIMEOUT, "{}", process.log_tail(20)?);
        match Kubeconfig::read_from(&file) {
            Ok(kubeconfig) => break kubeconfig,
            Err(_) => tokio::time::sleep(POLL).await,
        }
    };
    lists(kubeconfig, start).await?;
    let seconds = start.elapsed().as_secs_f64();
    tokio::time::sleep(REST).await;
    let memory = memory(process.pid())?;
    process.stop(TIMEOUT).await?;
    Ok(Start { seconds, memory })
}

async fn kube_apiserver() -> Result<Start> {
    let start = Instant::now();
    let planes = ControlPlanes::start(&Assets::find()?, &["real"], Options::default()).await?;
    let plane = planes.get("real")?;
    lists(Kubeconfig::from_yaml(&plane.kubeconfig_yaml())?, start).await?;
    let seconds = start.elapsed().as_secs_f64();
    tokio::time::sleep(REST).await;
    let memory = memory(plane.server().pid())? + memory(planes.etcd().pid())?;
    Ok(Start { seconds, memory })
}

/// Waits until a server responds to a list.
async fn lists(kubeconfig: Kubeconfig, start: Instant) -> Result<()> {
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config)?;
    let namespaces = kube::Api::<k8s_openapi::api::core::v1::Namespace>::all(client);
    while let Err(error) = namespaces.list(&kube::api::ListParams::default()).await {
        ensure!(start.elapsed() < TIMEOUT, "{error}");
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// Returns the resident memory of a process, in MiB.
fn memory(pid: i32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024.0)
}
