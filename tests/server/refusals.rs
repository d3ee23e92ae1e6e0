//! Calls that the program refuses, and its errors.

use std::net::TcpListener;

use anyhow::Result;
use starling_testkit::program;
use tokio::process::Command;

use crate::world::World;

async fn error_of(world: &World, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program())
        .args(["server", "--data-dir"])
        .arg(world.data())
        .args(arguments)
        .output()
        .await?;
    assert!(!output.status.success(), "{output:?}");
    Ok(String::from_utf8(output.stderr)?)
}

#[tokio::test]
async fn folders_in_use_used_ports_and_invalid_names_are_refused() -> Result<()> {
    let mut world = World::new()?;
    world.start(&["--no-controller"]).await?;
    let stdout = error_of(&world, &["--embedded"]).await?;
    assert!(
        stdout.contains("in use by another process: end it, or name another directory"),
        "{stdout}"
    );
    world.stop().await?;

    let stdout = error_of(&world, &["--embedded", "--cluster", "No_Name"]).await?;
    assert!(
        stdout.contains("--cluster No_Name") && stdout.contains("lowercase"),
        "{stdout}"
    );
    let stdout = error_of(&world, &["--embedded", "--listen", "0.0.0.0:0"]).await?;
    assert!(
        stdout.contains("--listen 0.0.0.0:0") && stdout.contains("connect to"),
        "{stdout}"
    );
    // Any machine of the network would be served. The address is of a documentation network: nothing binds it.
    let stdout = error_of(&world, &["--embedded", "--listen", "192.0.2.1:0"]).await?;
    assert!(
        stdout.contains("--listen 192.0.2.1:0") && stdout.contains("--allow-public"),
        "{stdout}"
    );
    let stdout = error_of(
        &world,
        &["--embedded", "--allow-public", "--listen", "192.0.2.1:0"],
    )
    .await?;
    assert!(!stdout.contains("--allow-public"), "{stdout}");
    let stdout = error_of(&world, &["--embedded", "--controllers", "namespace,deployments"]).await?;
    assert!(
        stdout.contains("--controllers")
            && stdout.contains(r#"no controller "deployments""#)
            && stdout
                .contains("all, none, or a list of namespace, serviceaccount, clusterrole-aggregation, garbage-collector, workloads"),
        "{stdout}"
    );
    let stdout = error_of(&world, &["--embedded", "--authorization-mode", "Webhook"]).await?;
    assert!(
        stdout.contains(r#"no authorization mode "Webhook"; give RBAC or AlwaysAllow"#),
        "{stdout}"
    );
    let stdout = error_of(&world, &[]).await?;
    assert!(stdout.contains("--embedded"), "{stdout}");

    // Another process uses its port.
    let kubeconfig = std::fs::read_to_string(world.kubeconfig())?;
    let (_, rest) = kubeconfig.split_once("https://127.0.0.1:").unwrap_or_default();
    let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
    let used_port = TcpListener::bind(("127.0.0.1", port.parse()?))?;
    let stdout = error_of(&world, &["--embedded", "--no-controller"]).await?;
    assert!(stdout.contains(&port) && stdout.contains("--listen"), "{stdout}");
    drop(used_port);
    assert_eq!(std::fs::read_to_string(world.kubeconfig())?, kubeconfig);
    world.start(&["--no-controller"]).await?;
    assert_eq!(std::fs::read_to_string(world.kubeconfig())?, kubeconfig);
    world.stop().await
}

/// The server, its controller and the commands that ask it connect to this machine, where a proxy has nothing to do.
#[tokio::test]
async fn a_proxy_in_the_environment_is_not_used_for_this_machine() -> Result<()> {
    let mut world = World::new()?;
    let proxy = [("HTTPS_PROXY", "http://127.0.0.1:9")];
    world.launch_with(&[], &proxy)?;
    world.serves().await?;
    let output = Command::new(program())
        .args(["get", "clusters"])
        .env("KUBECONFIG", world.kubeconfig())
        .env("HOME", world.path())
        .envs(proxy)
        .output()
        .await?;
    assert!(output.status.success(), "{output:?}");
    world.stop().await
}
