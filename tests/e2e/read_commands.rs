//! Read-only commands: plan, wait, get and simulate.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use starling_api::{Cluster, RolloutPhase, SyncGroup, SyncGroupStatus, SyncResource};
use starling_testkit::Change;
use starling_testkit::fleet::{MANAGEMENT, NAMESPACE};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use crate::stages::is_in;
use crate::world::{MEMBERS, Scene, all, config_map, shared_scene};

/// Exit code, standard output, standard error.
type CommandResult = (i32, String, String);

/// The program with the permissions of the management cluster's kubeconfig.
fn program(scene: &Scene, arguments: &[&str]) -> Result<Command> {
    let kubeconfig = scene
        .fleet()
        .directory()
        .join(format!("{}.kubeconfig", scene.name));
    std::fs::write(&kubeconfig, scene.fleet().kubeconfig(MANAGEMENT)?)?;
    let mut command = Command::new(starling_testkit::program());
    command
        .args(arguments)
        .args(["-n", NAMESPACE, "--kubeconfig"])
        .arg(&kubeconfig);
    command.kill_on_drop(true).stdin(Stdio::null());
    Ok(command)
}

pub(crate) async fn run(scene: &Scene, arguments: &[&str]) -> Result<CommandResult> {
    let output = program(scene, arguments)?.output().await?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let code = output.status.code().context("killed by a signal")?;
    Ok((code, text(&output.stdout), text(&output.stderr)))
}

/// Returns a preview as JSON, and the exit code.
async fn preview(scene: &Scene, arguments: &[&str]) -> Result<(i32, Value)> {
    let (code, out, stderr) = run(
        scene,
        &[arguments, &["--allow-insecure-sources", "-o", "json"]].concat(),
    )
    .await?;
    let value = serde_json::from_str(&out).with_context(|| format!("{arguments:?}: {out}\n{stderr}"))?;
    Ok((code, value))
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

/// Returns action and name of each object of a distinct change, with its changed fields.
fn change_summary(distinct: &Value) -> Vec<String> {
    let objects = distinct["objects"].as_array().into_iter().flatten();
    objects
        .map(|object| {
            let fields = object["fields"].as_array().into_iter().flatten();
            let fields: Vec<String> = fields
                .map(|field| {
                    format!(
                        " {} {}>{}",
                        field["path"].as_str().unwrap_or_default(),
                        field["from"],
                        field["to"]
                    )
                })
                .collect();
            format!(
                "{} {}{}",
                object["action"].as_str().unwrap_or_default(),
                object["name"].as_str().unwrap_or_default(),
                fields.concat()
            )
        })
        .collect()
}

#[test]
fn a_plan_shows_the_changes_of_every_cluster_and_applies_none() -> Result<()> {
    shared_scene("planned", async |scene| {
        let first = scene.commit(&[("settings", "one"), ("old", "one")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene.group(json!({"maxConcurrency": "100%"}), json!({})).await?;
        scene.succeeded(&first).await?;

        let (code, plan) = preview(scene, &["plan", scene.name]).await?;
        assert_eq!(code, 0, "{plan:#}");
        assert_eq!(names(&plan["overview"]["unchanged"]), MEMBERS);
        assert!(
            plan["revisions"]["app"]
                .as_str()
                .is_some_and(|revision| revision.ends_with(&first))
        );

        // One cluster has a manual edit, and one is unreachable.
        let maps: Api<ConfigMap> = Api::namespaced(scene.fleet().member("m2").await?, "default");
        let by_hand = json!({"data": {"value": "by hand"}});
        let as_hand = PatchParams {
            field_manager: Some("hand".into()),
            ..PatchParams::default()
        };
        maps.patch(&scene.own("settings"), &as_hand, &Patch::Merge(&by_hand))
            .await?;
        let unreachable_cluster = scene.own("gone");
        scene
            .fleet()
            .add_unreachable(&unreachable_cluster, &[(scene.name, "yes")])
            .await?;

        // An unpushed change.
        let tree = tempfile::tempdir()?;
        let settings = config_map(&scene.own("settings"), "two");
        let secret = format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: {}, namespace: default}}\nstringData: {{password: hunter2}}\n",
            scene.own("secret")
        );
        let elsewhere = format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {0}}}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: inner, namespace: {0}}}\n",
            scene.own("space")
        );
        std::fs::create_dir(tree.path().join("app"))?;
        for (file, text) in [
            ("settings.yaml", &settings),
            ("secret.yaml", &secret),
            ("space.yaml", &elsewhere),
        ] {
            std::fs::write(tree.path().join("app").join(file), text)?;
        }
        let folder = tree.path().to_string_lossy().into_owned();
        let (code, plan) = preview(scene, &["plan", scene.name, "--path", &folder]).await?;
        assert_eq!(code, 2, "one could not be read: {plan:#}");
        let overview = &plan["overview"];
        assert_eq!(
            names(&overview["unknown"][0]["clusters"]),
            [unreachable_cluster.as_str()],
            "{overview:#}"
        );
        let changes = overview["changes"].as_array().context("changes")?;
        assert_eq!(changes.len(), 2, "{overview:#}");
        assert_eq!(names(&changes[0]["clusters"]), ["m1", "m3", "m4", "m5"]);
        assert_eq!(names(&changes[1]["clusters"]), ["m2"]);
        let expected = |from: &str| {
            vec![
                format!("Create {}", scene.own("space")),
                format!("Create {}", scene.own("secret")),
                format!("Update {} .data.value \"{from}\">\"two\"", scene.own("settings")),
                "Create inner".to_owned(),
                format!("Delete {}", scene.own("old")),
            ]
        };
        let mut actual = change_summary(&changes[0]);
        let mut wanted = expected("one");
        actual.sort();
        wanted.sort();
        assert_eq!(actual, wanted);
        let mut actual = change_summary(&changes[1]);
        let mut wanted = expected("by hand");
        actual.sort();
        wanted.sort();
        assert_eq!(actual, wanted);
        assert!(!plan.to_string().contains("hunter2"));
        scene.fleet().delete::<Cluster>(&unreachable_cluster).await?;

        // One cluster, in the output for users.
        let (code, text, stderr) = run(
            scene,
            &[
                "diff",
                scene.name,
                "m2",
                "--path",
                &folder,
                "--allow-insecure-sources",
            ],
        )
        .await?;
        assert_eq!(code, 1, "{stderr}");
        assert!(text.contains("1 cluster: 1 distinct change on 1"), "{text}");
        assert!(
            text.contains("~ ConfigMap default/planned-settings (app)"),
            "{text}"
        );
        assert!(text.contains(r#".data.value: "by hand" -> "two""#), "{text}");
        assert!(text.contains("- ConfigMap default/planned-old (app)"), "{text}");

        // An object that the API server would refuse is reported in advance.
        let broken = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {}, namespace: default}}\ndata: {{\"not a key\": x}}\n",
            scene.own("settings")
        );
        let next = scene.repo.commit_to(
            "next",
            &[Change::Write("app/settings.yaml", broken.as_bytes())],
            "broken",
        )?;
        let (code, plan) = preview(scene, &["plan", scene.name, "--revision", "next"]).await?;
        assert_eq!(code, 2);
        let failing = &plan["overview"]["failing"][0];
        assert_eq!(names(&failing["clusters"]), MEMBERS, "{plan:#}");
        assert!(
            failing["failures"][0]["message"]
                .as_str()
                .is_some_and(|change_summary| change_summary.contains("not a key")),
            "{plan:#}"
        );
        assert!(
            plan["revisions"]["app"]
                .as_str()
                .is_some_and(|revision| revision == format!("next@sha1:{next}"))
        );

        // An empty folder would delete nothing and fail, and the preview reports it.
        let bare = tempfile::tempdir()?;
        std::fs::create_dir(bare.path().join("app"))?;
        std::fs::write(bare.path().join("app/README.md"), "What runs here.")?;
        let folder = bare.path().to_string_lossy().into_owned();
        let (code, plan) = preview(scene, &["plan", scene.name, "--path", &folder]).await?;
        assert_eq!(code, 2, "{plan:#}");
        let failing = &plan["overview"]["failing"][0];
        assert_eq!(names(&failing["clusters"]), MEMBERS, "{plan:#}");
        assert!(
            failing["failures"][0]["message"]
                .as_str()
                .is_some_and(|change_summary| change_summary.starts_with("EmptyRender: ")),
            "{plan:#}"
        );

        // A label that grants rights is refused as the controller would, by the settings that it published.
        let privileged = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": scene.own("privileged"),
            "labels": {"pod-security.kubernetes.io/enforce": "privileged"}}});
        std::fs::write(bare.path().join("app/namespace.yaml"), privileged.to_string())?;
        let (code, plan) = preview(scene, &["plan", scene.name, "--path", &folder]).await?;
        assert_eq!(code, 2, "{plan:#}");
        let message = &plan["overview"]["failing"][0]["failures"][0]["message"];
        assert!(
            message
                .as_str()
                .is_some_and(|message| message.contains("--allow-controlled-label")),
            "{plan:#}"
        );

        // Without changes, there is no failure.
        let idle = scene.own("idle");
        scene
            .fleet()
            .add_unreachable(&idle, &[(scene.name, "yes")])
            .await?;
        scene
            .fleet()
            .patch::<Cluster>(&idle, json!({"spec": {"suspend": true}}))
            .await?;
        let (code, plan) = preview(scene, &["plan", scene.name, "--timeout", "1m"]).await?;
        assert_eq!(code, 1, "m2 was edited by hand: {plan:#}");
        assert_eq!(names(&plan["overview"]["suspended"]), [idle.as_str()], "{plan:#}");
        scene.fleet().delete::<Cluster>(&idle).await?;

        // No change was applied.
        assert_eq!(scene.value("m1", "settings").await?.as_deref(), Some("one"));
        assert_eq!(scene.value("m2", "settings").await?.as_deref(), Some("by hand"));
        assert_eq!(scene.value("m1", "old").await?.as_deref(), Some("one"));
        let (code, _, stderr) = run(scene, &["plan", "nobody"]).await?;
        assert_eq!(code, 2);
        assert!(stderr.contains("SyncGroup fleet/nobody"), "{stderr}");
        Ok(())
    })
}

#[test]
fn a_plan_prints_the_digest_for_an_approval() -> Result<()> {
    shared_scene("digested", async |scene| {
        let first = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS[..2]).await?;
        let stage = json!({"name": "canary", "clusterSelector": scene.selector(), "afterStageTasks": [{"type": "Approval"}]});
        scene
            .group(
                json!({"stages": [stage]}),
                json!({"substitute": {"NAME": "$(cluster.name)"}}),
            )
            .await?;
        let status = scene
            .status("it waits", |status| {
                is_in(status, &first, "canary", "AwaitingApproval")
                    && status
                        .rollout
                        .as_ref()
                        .is_some_and(|rollout| !rollout.release_digest.is_empty())
            })
            .await?;
        let digest = status.rollout.context("a rollout")?.release_digest;
        let (_, plan) = preview(scene, &["plan", scene.name]).await?;
        assert_eq!(plan["releaseDigest"], json!(digest));
        // The same content from a folder has the same digest; other content has another one.
        let tree = tempfile::tempdir()?;
        std::fs::create_dir(tree.path().join("app"))?;
        let settings = tree.path().join("app/settings.yaml");
        let folder = tree.path().to_string_lossy().into_owned();
        std::fs::write(&settings, config_map(&scene.own("settings"), "one"))?;
        let (_, plan) = preview(scene, &["plan", scene.name, "--path", &folder]).await?;
        assert_eq!(plan["releaseDigest"], json!(digest));
        std::fs::write(&settings, config_map(&scene.own("settings"), "two"))?;
        let (_, plan) = preview(scene, &["plan", scene.name, "--path", &folder]).await?;
        assert_ne!(plan["releaseDigest"], json!(digest));
        let result = run(
            scene,
            &[
                "approve",
                scene.name,
                "--digest",
                &digest,
                "--reason",
                "read the plan",
            ],
        )
        .await?;
        assert_eq!(result.0, 0, "{result:?}");
        scene.succeeded(&first).await?;
        Ok(())
    })
}

/// An approval covers the reviewed content only: a cluster with another folder was not part of the review.
#[test]
fn a_cluster_with_another_folder_invalidates_an_approval() -> Result<()> {
    shared_scene("voided", async |scene| {
        let map = |value: &str| config_map(&scene.own("settings"), value);
        let files = [
            ("app/settings.yaml", map("one")),
            ("other/settings.yaml", map("other")),
        ];
        let files = files.each_ref().map(|(path, text)| (*path, text.as_str()));
        let commit = scene.repo.commit(&files, "two folders")?;
        scene.follow_main().await?;
        for (member, folder) in [("m1", "app"), ("m2", "app"), ("m3", "other")] {
            scene.label(member, "folder", Some(folder)).await?;
        }
        scene.select(&MEMBERS[..2]).await?;
        let stage = json!({"name": "canary", "clusterSelector": scene.selector(), "afterStageTasks": [{"type": "Approval"}]});
        let path = json!({"path": "./$(cluster.labels.folder)"});
        scene.group(json!({"stages": [stage]}), path).await?;
        let waits = |status: &SyncGroupStatus, not: &str| {
            let rollout = status.rollout.as_ref();
            let digest = rollout.map_or("", |rollout| rollout.release_digest.as_str());
            is_in(status, &commit, "canary", "AwaitingApproval") && !digest.is_empty() && digest != not
        };
        let status = scene.status("it waits", |status| waits(status, "")).await?;
        let first = status.rollout.context("a rollout")?.release_digest;
        scene.select(&MEMBERS[2..3]).await?;
        let status = scene
            .status("another digest", |status| waits(status, &first))
            .await?;
        let second = status.rollout.context("a rollout")?.release_digest;
        let (_, plan) = preview(scene, &["plan", scene.name]).await?;
        assert_eq!(plan["releaseDigest"], json!(second));
        let approve = |digest| {
            [
                "approve",
                scene.name,
                "--digest",
                digest,
                "--reason",
                "read the plan",
            ]
        };
        let (code, _, stderr) = run(scene, &approve(&first)).await?;
        assert!(code != 0 && stderr.contains(&second), "{stderr}");
        let result = run(scene, &approve(&second)).await?;
        assert_eq!(result.0, 0, "{result:?}");
        scene.succeeded(&commit).await?;
        scene.until_value("m3", "settings", Some("other")).await
    })
}

#[test]
fn a_pipeline_waits_for_its_revision() -> Result<()> {
    shared_scene("awaited", async |scene| {
        let first = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        let strategy = json!({"maxConcurrency": 2, "maxFailures": 0});
        // The wait starts before there is a rollout.
        scene.group(strategy, json!({"retryInterval": "1h"})).await?;
        let waited = run(
            scene,
            &["wait", scene.name, "--revision", &first, "--timeout", "120"],
        )
        .await?;
        assert_eq!(waited.0, 0, "{waited:?}");
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("one", 5));
        let short = run(scene, &["wait", scene.name, "--revision", &first[..8]]).await?;
        assert_eq!(short.0, 0, "{short:?}");
        let timed_out = run(scene, &["wait", scene.name, "--revision", "v9", "--timeout", "1"]).await?;
        assert_eq!(timed_out.0, 3, "{timed_out:?}");
        let missing_group = run(scene, &["wait", "nobody", "--revision", "v9"]).await?;
        assert_eq!(missing_group.0, 2, "{missing_group:?}");

        let broken = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {}, namespace: default}}\ndata: {{\"not a key\": x}}\n",
            scene.own("settings")
        );
        let second = scene.repo.commit(&[("app/settings.yaml", &broken)], "broken")?;
        let failed = run(
            scene,
            &["wait", scene.name, "--revision", &second, "--timeout", "120"],
        )
        .await?;
        assert_eq!(failed.0, 1, "{failed:?}");
        assert!(failed.2.contains("TooManyFailures"), "{failed:?}");
        Ok(())
    })
}

#[test]
fn groups_clusters_and_syncs_are_shown() -> Result<()> {
    shared_scene("shown", async |scene| {
        let first = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene.label("m1", &scene.own("stage"), Some("canary")).await?;
        let stage = json!({"name": "canary", "clusterSelector": {"matchLabels": {scene.own("stage"): "canary"}},
            "afterStageTasks": [{"type": "TimedWait", "waitTime": "1s"}]});
        scene
            .group(
                json!({"maxConcurrency": 2, "maxFailures": 0, "stages": [stage]}),
                json!({}),
            )
            .await?;
        scene.succeeded(&first).await?;

        let (code, out, _) = run(scene, &["get", "groups", scene.name]).await?;
        assert_eq!(code, 0);
        let row: Vec<&str> = out.lines().nth(1).context("a row")?.split_whitespace().collect();
        assert_eq!(
            row[..4],
            [scene.name, "Succeeded", &format!("main@{}", &first[..8]), "-"],
            "{out}"
        );
        assert!(row.contains(&"5/5"), "{out}");
        let (_, out, _) = run(scene, &["get", "sg", scene.name, "-o", "json"]).await?;
        let group: Value = serde_json::from_str(&out)?;
        assert_eq!(group["metadata"]["name"], scene.name);
        let (_, out, _) = run(
            scene,
            &[
                "get",
                "clusters",
                "-l",
                &format!("{}=yes", scene.name),
                "-o",
                "name",
            ],
        )
        .await?;
        let lines: Vec<String> = MEMBERS
            .iter()
            .map(|name| format!("cluster.starling.dev/{name}"))
            .collect();
        assert_eq!(out.lines().collect::<Vec<_>>(), lines);
        let (_, out, _) = run(scene, &["get", "syncs", &scene.sync_name("m1"), "-o", "wide"]).await?;
        assert!(out.contains("shown/app") && out.contains("NEXT RETRY"), "{out}");
        let (_, out, _) = run(scene, &["get", "syncs", &scene.sync_name("m1"), "-o", "yaml"]).await?;
        let sync: Value = serde_saphyr::from_str(&out)?;
        assert_eq!(sync["spec"]["clusterRef"]["name"], "m1");
        let (code, _, stderr) = run(scene, &["get", "groups", "nobody"]).await?;
        assert_eq!(code, 1);
        assert!(stderr.contains("SyncGroup nobody"), "{stderr}");

        let (_, out, _) = run(scene, &["tree", scene.name]).await?;
        for line in [
            "├─ Source shown",
            "├─ stage canary  Succeeded, 1/1 done",
            "└─ other clusters (no stage)  Succeeded, 4/4 done",
            "Sync shown-app-m3 (app)",
        ] {
            assert!(out.contains(line), "{line}: {out}");
        }

        let simulated = async |more: &[&str]| -> Result<Value> {
            let (code, out, stderr) =
                run(scene, &[&["simulate", scene.name, "-o", "json"], more].concat()).await?;
            ensure!(code == 0, "{stderr}");
            Ok(serde_json::from_str(&out)?)
        };
        let good = simulated(&["--takes", "1m"]).await?;
        assert_eq!(good["end"]["outcome"], "Succeeded", "{good:#}");
        // The canary, one second, and the other four in pairs.
        let span = |forecast: &Value| -> Result<i64> {
            let at = |field: &str| -> Result<jiff::Timestamp> {
                Ok(forecast[field].as_str().unwrap_or_default().parse()?)
            };
            Ok(at("ended")?.duration_since(at("started")?).as_secs())
        };
        assert_eq!(span(&good)?, 60 + 1 + 2 * 60, "{good:#}");
        assert_eq!(good["peakConcurrency"], 2);
        let bad = simulated(&["--fail", "100%"]).await?;
        assert_eq!(bad["end"]["outcome"], "Stopped", "{bad:#}");
        assert_eq!(bad["recorded"], 5, "every cluster has a time of the last rollout");
        let down = simulated(&["--down", &format!("{}=canary", scene.own("stage"))]).await?;
        assert_eq!(
            down["end"]["outcome"], "Waits",
            "a canary that nobody saw is none: {down:#}"
        );
        Ok(())
    })
}

#[test]
fn watch_prints_changes_as_they_occur() -> Result<()> {
    shared_scene("watched", async |scene| {
        let first = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS[..1]).await?;
        scene.group(json!({}), json!({})).await?;
        scene.succeeded(&first).await?;
        let mut command = program(scene, &["get", "groups", scene.name, "--watch"])?;
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(child.stdout.take().context("its output")?).lines();
        let mut until = async |text: &str| -> Result<String> {
            let found = async {
                while let Some(line) = lines.next_line().await? {
                    if line.contains(text) {
                        return Ok(line);
                    }
                }
                anyhow::bail!("it ended before {text}")
            };
            tokio::time::timeout(Duration::from_secs(60), found)
                .await
                .with_context(|| text.to_owned())?
        };
        until("PHASE").await?;
        until(&first[..8]).await?;
        let second = scene.commit(&[("settings", "two")])?;
        until(&second[..8]).await?;
        until("Succeeded").await?;
        child.kill().await?;
        scene
            .fleet()
            .rollout(scene.name, &second, RolloutPhase::Succeeded)
            .await?;
        Ok(())
    })
}

/// Before the push, `plan` tells what the controller will hold, with the digest that the Syncs will have; `why` and
/// `simulate` tell it of what is held.
#[test]
fn a_plan_tells_which_deletions_wait_for_which_approval() -> Result<()> {
    shared_scene("foretold", async |scene| {
        let commit = scene.commit(&[("a", "one"), ("b", "one"), ("c", "one")])?;
        scene.follow_main().await?;
        scene.select(&["m1", "m2"]).await?;
        scene
            .group(
                json!({"maxConcurrency": 2, "maxFailures": 2}),
                json!({"retryInterval": "1s"}),
            )
            .await?;
        scene.succeeded(&commit).await?;
        let suspend = |suspend: bool, objects: u32| json!({"spec": {"suspend": suspend, "deletionBudget": {"objects": objects}}});
        scene
            .fleet()
            .patch::<SyncGroup>(scene.name, suspend(true, 3))
            .await?;
        scene
            .repo
            .remove(&["app/a.yaml", "app/b.yaml"], "without a and b")?;
        let plan = async || -> Result<String> {
            let arguments = [
                "plan",
                scene.name,
                "--allow-insecure-sources",
                "--revision",
                "main",
            ];
            let (_, out, error) = run(scene, &arguments).await?;
            Ok(format!("{out}{error}"))
        };
        // Both clusters together exceed the budget of the group.
        let text = plan().await?;
        assert!(text.contains("removes 2 objects on 1 cluster (m1)"), "{text}");
        assert!(text.contains("would fail on 1 cluster (m2)"), "{text}");
        assert!(
            text.contains("the SyncGroup allows 3 objects within 1h: 2 were deleted"),
            "{text}"
        );

        let confirm =
            Patch::Merge(json!({"metadata": {"annotations": {"starling.dev/deletion": "Confirm"}}}));
        for member in ["m1", "m2"] {
            let maps: Api<ConfigMap> = Api::namespaced(scene.fleet().member(member).await?, "default");
            maps.patch(&scene.own("a"), &PatchParams::default(), &confirm)
                .await?;
        }
        let text = plan().await?;
        let line = text
            .lines()
            .find(|line| line.contains("DeletionHeld: 2 of 3 objects"))
            .with_context(|| text.clone())?;
        assert!(
            line.contains("foretold-a") || line.contains(&scene.own("a")),
            "{line}"
        );
        let digest = line
            .split_once("--digest ")
            .and_then(|(_, rest)| rest.split(' ').next())
            .context("a digest")?;
        scene
            .fleet()
            .patch::<SyncGroup>(scene.name, suspend(false, 3))
            .await?;
        let held = |sync: &SyncResource| {
            let hold = sync
                .status
                .as_ref()
                .and_then(|status| status.held_deletions.as_ref());
            hold.is_some_and(|hold| hold.digest == digest)
        };
        for member in ["m1", "m2"] {
            scene
                .sync(member, "holds the list that the plan told", held)
                .await?;
        }
        for command in ["why", "simulate", "plan"] {
            let arguments = match command {
                "plan" => vec!["plan", scene.name, "--allow-insecure-sources"],
                other => vec![other, scene.name],
            };
            let (_, out, error) = run(scene, &arguments).await?;
            let line = out
                .lines()
                .find(|line| line.starts_with("holds the removal of 4 objects on 2 clusters"));
            let line = line.with_context(|| format!("{command}: {out}{error}"))?;
            assert!(line.contains(digest), "{command}: {line}");
        }
        Ok(())
    })
}
