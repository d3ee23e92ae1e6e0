//! Opening a connection, and to no address that is nobody's.

use std::io;
use std::net::SocketAddr;

use starling_core::address::is_nobodys;
use tokio::net::{TcpStream, lookup_host};
use url::Host;

use super::{Server, WebError};

/// Connects to the first address that takes it. Addresses are looked at after the name was resolved and before they are dialled, so
/// that a name that changes its answer gains nothing. The time of the whole request bounds this, too.
pub(super) async fn dial(server: &Server) -> Result<TcpStream, WebError> {
    let failed = |source| WebError::Connect {
        host: server.authority.clone(),
        source,
    };
    let found: Vec<SocketAddr> = match &server.host {
        Host::Ipv4(address) => vec![(*address, server.port).into()],
        Host::Ipv6(address) => vec![(*address, server.port).into()],
        Host::Domain(name) => lookup_host((name.as_str(), server.port))
            .await
            .map_err(failed)?
            .collect(),
    };
    let mut last = failed(io::ErrorKind::AddrNotAvailable.into());
    for address in found {
        if is_nobodys(address.ip()) {
            last = WebError::Nobodys(address.ip());
            continue;
        }
        match TcpStream::connect(address).await {
            Ok(stream) => {
                // The request is written whole; waiting for more to send only adds delay.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(error) => last = failed(error),
        }
    }
    Err(last)
}
