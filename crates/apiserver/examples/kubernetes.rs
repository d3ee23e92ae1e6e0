//! Starts a real control plane with a controller manager, to look up its behaviour; prints the path of its
//! kubeconfig.
//!
//! `cargo run -p starling-apiserver --example kubernetes -- FOLDER`; Ctrl-C ends it.

#![expect(clippy::print_stdout, reason = "a program for a terminal")]

use starling_controlplane::{Assets, ControlPlanes, Options};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args().nth(1).map(std::path::PathBuf::from);
    let options = Options {
        dir,
        controller_manager_for: vec!["real".to_owned()],
        ..Options::default()
    };
    let planes = ControlPlanes::start(&Assets::find()?, &["real"], options).await?;
    println!("{}", planes.get("real")?.kubeconfig_path().display());
    tokio::signal::ctrl_c().await?;
    Ok(())
}
