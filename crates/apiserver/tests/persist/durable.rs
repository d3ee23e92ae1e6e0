//! Answers wait for the disk.

use futures::{AsyncBufReadExt as _, TryStreamExt as _};
use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnection;

use crate::world::{Running, client, file, must, send};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Returns the revision of an object in the file.
async fn on_disk(file: &mut SqliteConnection, key: &str) -> Option<i64> {
    sqlx::query_scalar("SELECT revision FROM objects WHERE resource = 'configmaps' AND key = ?1")
        .bind(key)
        .fetch_optional(file)
        .await
        .unwrap()
}

fn revision(object: &Value) -> i64 {
    object["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap()
}

/// Many clients write concurrently, and check the file after each response. Others read and watch these writes, and
/// check the file after each response or event.
#[tokio::test(flavor = "multi_thread")]
async fn everything_answered_read_or_watched_is_on_the_disk() {
    let directory = tempfile::tempdir().unwrap();
    let running = Running::begin(directory.path()).await;
    let cluster = running.server.create_cluster("a").unwrap();
    let client = client(&cluster.kubeconfig()).await;

    let watcher = {
        let (client, path) = (client.clone(), directory.path().to_owned());
        let request = http::Request::get(format!(
            "{CONFIG_MAPS}?watch=1&resourceVersion={}",
            cluster.revision()
        ))
        .body(Vec::new())
        .unwrap();
        let lines = client.request_stream(request).await.unwrap();
        tokio::spawn(async move {
            let mut file = file(&path).await;
            let mut lines = Box::pin(lines).lines();
            let mut seen = 0;
            while seen < 8 * 20 {
                let line = lines.try_next().await.unwrap().unwrap();
                let event: Value = serde_json::from_str(&line).unwrap();
                let name = event["object"]["metadata"]["name"].as_str().unwrap();
                if name == "kube-root-ca.crt" {
                    continue;
                }
                let found = on_disk(&mut file, &format!("default/{name}")).await;
                assert!(found >= Some(revision(&event["object"])), "{found:?} {event}");
                seen += 1;
            }
        })
    };
    let writers: Vec<_> = (0..8)
        .map(|writer| {
            let (client, path) = (client.clone(), directory.path().to_owned());
            tokio::spawn(async move {
                let mut file = file(&path).await;
                let (name, neighbour) = (format!("w{writer}"), format!("w{}", (writer + 1) % 8));
                for round in 0..20 {
                    let object = json!({"metadata": {"name": name}, "data": {"round": round.to_string()}});
                    let written = match round {
                        0 => must(&client, "POST", CONFIG_MAPS, object).await,
                        _ => must(&client, "PUT", &format!("{CONFIG_MAPS}/{name}"), object).await,
                    };
                    let found = on_disk(&mut file, &format!("default/{name}")).await;
                    assert_eq!(found, Some(revision(&written)));
                    let read = send(&client, "GET", &format!("{CONFIG_MAPS}/{neighbour}"), Value::Null).await;
                    if read.code == 200 {
                        let found = on_disk(&mut file, &format!("default/{neighbour}")).await;
                        assert!(found >= Some(revision(&read.body)), "{found:?} {read:?}");
                    }
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    watcher.await.unwrap();
}

/// While the disk fails, no write succeeds, no client sees one, and further writes are rejected before they change
/// anything. The server recovers with the disk.
#[tokio::test(flavor = "multi_thread")]
async fn an_uncommitted_write_is_neither_answered_nor_visible() {
    let directory = tempfile::tempdir().unwrap();
    let running = Running::begin(directory.path()).await;
    let cluster = running.server.create_cluster("a").unwrap();
    let other = running.server.create_cluster("b").unwrap();
    let client_of_other = client(&other.kubeconfig()).await;
    let client = client(&cluster.kubeconfig()).await;
    let object = |name: &str| json!({"metadata": {"name": name}});
    must(&client, "POST", CONFIG_MAPS, object("before")).await;

    let mut vandal = file(directory.path()).await;
    // Stands for a full disk.
    sqlx::raw_sql("CREATE TRIGGER full BEFORE INSERT ON objects BEGIN SELECT RAISE(ABORT, 'no space'); END")
        .execute(&mut vandal)
        .await
        .unwrap();
    let revision = cluster.revision();
    let answer = send(&client, "POST", CONFIG_MAPS, object("lost")).await;
    assert_eq!(answer.code, 500, "{answer:?}");
    let message = answer.body["message"].as_str().unwrap();
    assert!(
        message.contains("not written to disk") && message.contains("no space"),
        "{message}"
    );
    assert_eq!(cluster.revision(), revision + 1, "it is in memory");

    let read = send(&client, "GET", &format!("{CONFIG_MAPS}/lost"), Value::Null).await;
    assert_eq!(read.code, 500, "nobody sees it: {read:?}");
    let refused = send(&client, "POST", CONFIG_MAPS, object("refused")).await;
    assert_eq!(refused.code, 500, "{refused:?}");
    assert_eq!(cluster.revision(), revision + 1, "nothing was changed");
    assert_eq!(on_disk(&mut vandal, "default/lost").await, None);
    let read = send(&client, "GET", CONFIG_MAPS, Value::Null).await;
    assert_eq!(read.code, 500, "nobody sees it in a list: {read:?}");
    // Committed objects can be read, of this cluster too.
    must(&client, "GET", &format!("{CONFIG_MAPS}/before"), Value::Null).await;
    must(
        &client,
        "GET",
        "/api/v1/namespaces/kube-system/configmaps",
        Value::Null,
    )
    .await;
    must(&client, "GET", "/api/v1/namespaces", Value::Null).await;
    must(&client_of_other, "GET", CONFIG_MAPS, Value::Null).await;

    sqlx::raw_sql("DROP TRIGGER full")
        .execute(&mut vandal)
        .await
        .unwrap();
    let start = std::time::Instant::now();
    while running.server.durable().await.is_err() {
        assert!(start.elapsed() < crate::world::TIMEOUT, "it is not tried again");
        tokio::task::yield_now().await;
    }
    assert!(on_disk(&mut vandal, "default/lost").await.is_some());
    must(&client, "GET", &format!("{CONFIG_MAPS}/lost"), Value::Null).await;
    must(&client, "POST", CONFIG_MAPS, object("after")).await;
    assert_eq!(
        on_disk(&mut vandal, "default/after").await,
        i64::try_from(cluster.revision()).ok()
    );
}

/// Guards a write after the file was closed: no client sees it, nor does the server after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_after_closing_fails() {
    let directory = tempfile::tempdir().unwrap();
    let running = Running::begin(directory.path()).await;
    let cluster = running.server.create_cluster("a").unwrap();
    let client = client(&cluster.kubeconfig()).await;
    must(
        &client,
        "POST",
        CONFIG_MAPS,
        json!({"metadata": {"name": "before"}}),
    )
    .await;
    running.server.close().await;
    let answer = send(
        &client,
        "POST",
        CONFIG_MAPS,
        json!({"metadata": {"name": "after"}}),
    )
    .await;
    assert_eq!(answer.code, 500, "{answer:?}");
    assert!(running.server.create_cluster("b").is_ok(), "it is in memory");
    assert!(running.server.durable().await.is_err(), "and not on the disk");
    drop((cluster, running));
    let running = Running::begin(directory.path()).await;
    assert_eq!(running.server.clusters(), ["a"]);
    let cluster = running.server.cluster("a").unwrap();
    assert!(cluster.stored("configmaps", "default/before").is_some());
    assert!(cluster.stored("configmaps", "default/after").is_none());
}
