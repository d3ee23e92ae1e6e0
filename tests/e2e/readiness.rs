//! `/readyz`: which cache is out of date and since when, and a ledger that refuses writes.

use anyhow::{Result, ensure};
use http::{Method, StatusCode};
use jiff::Timestamp;
use serde_json::json;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection};
use starling_api::SyncGroup;
use starling_controlplane::free_port;
use starling_testkit::fleet::{MANAGEMENT, TIMEOUT};
use starling_testkit::{Fault, Fleet, FleetOptions, GitRepo, Match, Process, page, program, wait};

use crate::world::config_map;

/// A management cluster, and a controller with its health endpoint.
struct Started {
    controller: Process,
    address: String,
    fleet: Fleet,
}

impl Started {
    async fn start() -> Result<Self> {
        let fleet = Fleet::start(FleetOptions {
            proxied: true,
            ..FleetOptions::default()
        })
        .await?;
        let address = format!("127.0.0.1:{}", free_port()?);
        let controller = fleet.controller_at(program(), &address, &[])?;
        let started = Self {
            controller,
            address,
            fleet,
        };
        started.until(200).await?;
        Ok(started)
    }

    /// Waits until `/readyz` responds with a status, and returns the body.
    async fn until(&self, code: u16) -> Result<String> {
        let check = async || match page::get(&self.address, "/readyz").await {
            Ok((found, body)) if found == code => Ok(body),
            Ok((found, body)) => Err(format!("{found}: {body}")),
            Err(error) => Err(format!("{error:#}")),
        };
        Ok(wait::until(TIMEOUT, format!("/readyz responds {code}"), check).await?)
    }
}

/// Guards against a cache that is frozen forever while the controller is ready.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_without_a_response_is_reported_and_repeated() -> Result<()> {
    let started = Started::start().await?;
    let fleet = &started.fleet;
    for (name, tier) in [("a1", "a"), ("b1", "b"), ("b2", "b")] {
        fleet.add_unreachable(name, &[("tier", tier)]).await?;
    }
    let repo = GitRepo::init()?;
    repo.commit(&[("app/map.yaml", &config_map("settings", "v1"))], "first")?;
    fleet
        .put_source("s", &repo.url(), json!({"branch": "main"}))
        .await?;
    let entry = json!({"name": "app", "sourceRef": {"name": "s"}, "path": "./app"});
    let spec = json!({"clusterSelector": {"matchLabels": {"tier": "a"}}, "syncs": [entry]});
    fleet.put_group("g", spec).await?;
    fleet
        .group_status("g", "selects a", |status| status.clusters.total == 1)
        .await?;

    // The server has no more events for the watch of groups, and the lists that have to follow get no response.
    let hub = fleet.proxy(MANAGEMENT)?;
    let groups = || Match::method(Method::GET).path_ends_with("/syncgroups");
    hub.on(
        groups().query_contains("watch=true").times(1),
        Fault::status(StatusCode::GONE),
    );
    let lists = groups().and(|request| !request.is_watch()).times(2);
    let lists = hub.on(lists, Fault::BlackHole);
    let cut = Timestamp::now();
    hub.cut_connections();
    let selector = json!({"spec": {"clusterSelector": {"matchLabels": {"tier": "b"}}}});
    fleet.patch::<SyncGroup>("g", selector).await?;

    let body = started.until(503).await?;
    let since = body
        .strip_prefix("SyncGroup: out of date since ")
        .map(str::trim_end);
    let since = since.and_then(|since| since.parse::<Timestamp>().ok());
    ensure!(
        since.is_some_and(|since| cut.duration_since(since).as_secs().abs() <= 2),
        "cut at {cut}: {body}"
    );
    let (alive, _) = page::get(&started.address, "/healthz").await?;
    assert_eq!(alive, 200);
    started.until(200).await?;
    assert_eq!(lists.fired(), 2);
    fleet
        .group_status("g", "selects b", |status| status.clusters.total == 2)
        .await?;
    ensure!(
        started.controller.exit_status()?.is_none(),
        "it was not restarted"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_that_is_locked_is_reported_until_it_accepts_writes() -> Result<()> {
    let started = Started::start().await?;
    let ledger = started.fleet.data_dir().join("ledger.db");
    let mut other: SqliteConnection = SqliteConnectOptions::new().filename(ledger).connect().await?;
    let lock = other.begin_with("BEGIN IMMEDIATE").await?;
    let body = started.until(503).await?;
    assert!(body.starts_with("ledger: refuses writes since "), "{body}");
    assert!(body.contains("database is locked"), "{body}");
    lock.rollback().await?;
    started.until(200).await?;
    Ok(())
}
