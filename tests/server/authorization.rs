//! `--authorization-mode`: roles and bindings decide unless the operator allows everything.

use anyhow::Result;

use crate::world::World;

#[tokio::test]
async fn tenant_roles_decide_unless_the_operator_allows_everything() -> Result<()> {
    const ACCOUNT: &str = "system:serviceaccount:default:default";
    let mut world = World::new()?;
    let secrets = ["get", "secrets", "-n", "default", "-o", "name"];
    let edge = ["--context", "edge"];
    world.start(&["--no-controller", "--cluster", "edge"]).await?;
    // The administrator of each cluster is a member of `system:masters`.
    let all = world.kubectl(&["auth", "can-i", "--list"], "").await?;
    assert!(all.contains("[*]"), "{all}");
    let token = [&edge[..], &["create", "token", "default", "-n", "default"]].concat();
    let token = world.kubectl(&token, "").await?;
    let token = token.trim();
    let by_token = [&edge[..], &["--token", token], &secrets].concat();
    let by_name = [&edge[..], &["--as", ACCOUNT], &secrets].concat();
    for arguments in [&by_token, &by_name] {
        let error = world.kubectl(arguments, "").await.unwrap_err().to_string();
        let words = format!("secrets is forbidden: User \"{ACCOUNT}\" cannot list resource \"secrets\"");
        assert!(error.contains(&words), "{error}");
    }
    let account = "--serviceaccount=default:default";
    let binding = [
        "create",
        "rolebinding",
        "viewers",
        "--clusterrole=admin",
        account,
        "-n",
        "default",
    ];
    world.kubectl(&[&edge[..], &binding].concat(), "").await?;
    world.kubectl(&by_token, "").await?;
    let delete = ["delete", "rolebinding", "viewers", "-n", "default"];
    world.kubectl(&[&edge[..], &delete].concat(), "").await?;
    world.stop().await?;

    world
        .start(&["--no-controller", "--authorization-mode", "AlwaysAllow"])
        .await?;
    world.kubectl(&by_token, "").await?;
    world.kubectl(&by_name, "").await?;
    world.stop().await
}
