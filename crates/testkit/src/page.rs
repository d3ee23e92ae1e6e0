//! One HTTP request without a client library, for endpoints of the program.

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Returns the status and the body of a page; `address` is a host with a port.
///
/// # Errors
/// If nothing listens there, or the response is not HTTP.
pub async fn get(address: &str, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    let (head, body) = response.split_once("\r\n\r\n").context("no HTTP response")?;
    let code = head.split(' ').nth(1).context("no status")?;
    Ok((code.parse()?, body.to_owned()))
}
