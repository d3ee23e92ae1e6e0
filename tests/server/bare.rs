//! `--controllers`: which controllers of Kubernetes run in the clusters, across restarts.

use anyhow::Result;
use starling_testkit::wait;

use crate::world::{TIMEOUT, World};

const WEB: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: default}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: web}]}
";

#[tokio::test]
async fn controllers_that_do_not_run_leave_objects_until_a_restart_with_them() -> Result<()> {
    let mut world = World::new()?;
    world
        .start(&["--no-controller", "--controllers", "none", "--cluster", "edge"])
        .await?;
    let edge = ["--context", "edge"];
    let kubectl =
        async |arguments: &[&str], input: &str| world.kubectl(&[&edge, arguments].concat(), input).await;
    kubectl(&["create", "namespace", "shop"], "").await?;
    kubectl(&["create", "configmap", "kept", "-n", "shop"], "").await?;
    kubectl(&["apply", "-f", "-"], WEB).await?;
    kubectl(&["delete", "namespace", "shop", "--wait=false"], "").await?;
    let names = kubectl(&["get", "serviceaccounts,configmaps", "-A", "-o", "name"], "").await?;
    assert_eq!(names, "configmap/kept\n");
    let status = kubectl(&["get", "deployment", "web", "-o", "jsonpath={.status}"], "").await?;
    assert_eq!(status, "{}");
    let phase = "jsonpath={.status.phase} {.spec.finalizers}";
    let namespace = kubectl(&["get", "namespace", "shop", "-o", phase], "").await?;
    assert_eq!(namespace, r#"Terminating ["kubernetes"]"#);
    world.stop().await?;

    world.start(&["--no-controller"]).await?;
    let check = async || {
        let all = world
            .kubectl(
                &[&edge[..], &["get", "namespaces,configmaps", "-A", "-o", "name"]].concat(),
                "",
            )
            .await
            .map_err(|error| error.to_string())?;
        let web = world
            .kubectl(
                &[
                    &edge[..],
                    &[
                        "get",
                        "deployment",
                        "web",
                        "-o",
                        "jsonpath={.status.readyReplicas}",
                    ],
                ]
                .concat(),
                "",
            )
            .await
            .map_err(|error| error.to_string())?;
        if web == "1" && !all.contains("shop") && all.contains("kube-root-ca.crt") {
            Ok(())
        } else {
            Err(format!("{web} {all}"))
        }
    };
    wait::until(TIMEOUT, "the controllers have caught up", check).await?;
    world.stop().await
}
