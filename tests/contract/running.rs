//! One fleet with the running program, shared by the tests that need no separate fleet.

use std::future::Future;
use std::sync::{Arc, LazyLock, Weak};

use anyhow::{Context, Result};
use starling_testkit::fleet::MANAGEMENT;
use starling_testkit::{Fleet, FleetOptions, Process, program};
use tokio::runtime::Runtime;
use tokio::sync::Mutex;

use crate::kubectl::Kubectl;

/// A client is tied to its runtime, so tests that share a fleet share the runtime too.
static RUNTIME: LazyLock<std::io::Result<Runtime>> = LazyLock::new(Runtime::new);
/// The fleet while a test uses it; the last test stops it.
static RUNNING: Mutex<Weak<Running>> = Mutex::const_new(Weak::new());

/// A fleet with one registered member `m1` and the running program.
pub(crate) struct Running {
    /// Dropped before the fleet.
    pub(crate) controller: Process,
    pub(crate) fleet: Fleet,
    pub(crate) kubectl: Kubectl,
}

/// Runs a test on the shared fleet.
pub(crate) fn on_the_fleet<F>(test: impl FnOnce(Arc<Running>) -> F) -> Result<()>
where
    F: Future<Output = Result<()>>,
{
    let runtime = RUNTIME.as_ref().context("a runtime")?;
    runtime.block_on(async {
        let running = running().await?;
        test(running).await
    })
}

async fn running() -> Result<Arc<Running>> {
    let mut known = RUNNING.lock().await;
    if let Some(running) = known.upgrade() {
        return Ok(running);
    }
    let fleet = Fleet::start(FleetOptions {
        members: 1,
        ..FleetOptions::default()
    })
    .await?;
    fleet.add_cluster("m1", &[("name", "m1")]).await?;
    let kubectl = Kubectl::new(fleet.planes().assets(), &*fleet.plane(MANAGEMENT)?);
    let controller = fleet.controller(program(), &[])?;
    let running = Arc::new(Running {
        controller,
        fleet,
        kubectl,
    });
    *known = Arc::downgrade(&running);
    Ok(running)
}

/// A manifest with one ConfigMap.
pub(crate) fn config_map(name: &str, value: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: default}}\ndata: {{value: \"{value}\"}}\n"
    )
}
