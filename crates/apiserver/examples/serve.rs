//! Serves virtual clusters until Ctrl-C, and writes a kubeconfig for each to a directory.
//!
//! `cargo run -p starling-apiserver --example serve -- FOLDER NAME...`

#![expect(clippy::print_stdout, reason = "a program for a terminal")]

use std::path::PathBuf;

use starling_apiserver::server::{Options, Server};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let directory = PathBuf::from(args.next().ok_or("which directory?")?);
    std::fs::create_dir_all(&directory)?;
    let server = Server::start(Options::default())?;
    let listening = server.listen(([127, 0, 0, 1], 0).into()).await?;
    for name in args {
        let cluster = server.create_cluster(&name)?;
        let path = directory.join(&name);
        std::fs::write(&path, cluster.kubeconfig())?;
        println!("{}", path.display());
    }
    tokio::signal::ctrl_c().await?;
    drop(listening);
    Ok(())
}
