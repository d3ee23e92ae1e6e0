//! What one tenant writes stops at this tenant.

use anyhow::Result;
use serde_json::{Value, json};
use starling_testkit::fleet::TIMEOUT;
use starling_testkit::wait;

use crate::world::{MEMBERS, all, shared_scene};

/// Loops within loops over ten elements each: ten to the power of the depth.
fn nested(depth: usize) -> String {
    (0..depth).fold("value > 0.0".to_owned(), |body, level| {
        format!("[0,1,2,3,4,5,6,7,8,9].all(v{level}, {body})")
    })
}

fn group_with_test(selector: &Value, source: &str, test: &str) -> Value {
    let metric = json!({"url": "http://prometheus:9090", "query": "up", "test": test});
    let stage = json!({"name": "canary", "clusterSelector": {},
        "afterStageTasks": [{"type": "Metric", "metric": metric}]});
    json!({"clusterSelector": selector, "rolloutStrategy": {"stages": [stage]},
        "syncs": [{"name": "app", "sourceRef": {"name": source}, "path": "./app"}]})
}

#[test]
fn tenant_cel_an_endless_expression_stops_only_its_own_group() -> Result<()> {
    shared_scene("greedy", async |scene| {
        let commit = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        let name = |number: usize| scene.own(&format!("test{number}"));
        // As many as there are workers for groups, and more.
        for number in 0..12 {
            let spec = group_with_test(&scene.selector(), "greedy", &nested(10));
            scene.fleet().put_group(&name(number), spec).await?;
        }
        scene.select(&MEMBERS).await?;
        scene.group(json!({"maxConcurrency": "100%"}), json!({})).await?;
        scene.succeeded(&commit).await?;
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("one", 5));
        for number in 0..12 {
            wait::until(TIMEOUT, format!("{} is stalled", name(number)), async || {
                let status = scene
                    .fleet()
                    .group_status(&name(number), "it has a status", |_| true)
                    .await;
                let conditions = status
                    .map(|status| status.conditions)
                    .map_err(|error| error.to_string())?;
                let stalled = conditions.iter().find(|condition| condition.type_ == "Stalled");
                match stalled {
                    Some(condition) if condition.reason == "InvalidSpec" => Ok(condition.message.clone()),
                    _ => Err(format!("{conditions:?}")),
                }
            })
            .await
            .map(|message| {
                let prefix =
                    "spec.rolloutStrategy.stages[canary].afterStageTasks[0]: metric.test: the expression ";
                // On a machine that is slow enough, the limit of time is reached first.
                let limit = message.strip_prefix(prefix);
                let limits = ["costs more than 5000000 units", "takes longer than 5s"];
                assert!(limit.is_some_and(|limit| limits.contains(&limit)), "{message}");
            })?;
        }
        Ok(())
    })
}
