//! What the program refuses, and what it says.

use std::net::TcpListener;

use anyhow::Result;
use tokio::process::Command;

use crate::world::{PROGRAM, World};

async fn complaint(world: &World, arguments: &[&str]) -> Result<String> {
    let output = Command::new(PROGRAM)
        .args(["server", "--data-dir"])
        .arg(world.data())
        .args(arguments)
        .output()
        .await?;
    assert!(!output.status.success(), "{output:?}");
    Ok(String::from_utf8(output.stderr)?)
}

#[tokio::test]
async fn a_folder_in_use_an_address_that_is_taken_and_names_that_are_none() -> Result<()> {
    let mut world = World::new()?;
    world.start(&["--no-controller"]).await?;
    let said = complaint(&world, &["--embedded"]).await?;
    assert!(
        said.contains("in use by another process: end it, or name another folder"),
        "{said}"
    );
    world.stop().await?;

    let said = complaint(&world, &["--embedded", "--cluster", "No_Name"]).await?;
    assert!(
        said.contains("--cluster No_Name") && said.contains("lowercase"),
        "{said}"
    );
    let said = complaint(&world, &["--embedded", "--listen", "0.0.0.0:0"]).await?;
    assert!(
        said.contains("--listen 0.0.0.0:0") && said.contains("connect to"),
        "{said}"
    );
    let said = complaint(&world, &[]).await?;
    assert!(said.contains("--embedded"), "{said}");

    // Somebody else has its port.
    let kubeconfig = std::fs::read_to_string(world.kubeconfig())?;
    let (_, rest) = kubeconfig.split_once("https://127.0.0.1:").unwrap_or_default();
    let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
    let taken = TcpListener::bind(("127.0.0.1", port.parse()?))?;
    let said = complaint(&world, &["--embedded", "--no-controller"]).await?;
    assert!(said.contains(&port) && said.contains("--listen"), "{said}");
    drop(taken);
    assert_eq!(std::fs::read_to_string(world.kubeconfig())?, kubeconfig);
    world.start(&["--no-controller"]).await?;
    assert_eq!(std::fs::read_to_string(world.kubeconfig())?, kubeconfig);
    world.stop().await
}
