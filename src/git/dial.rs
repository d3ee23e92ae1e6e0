//! Opening a connection to a server, and to no address that is not a server's.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use starling_core::address::is_nobodys;
use tokio::net::{TcpStream, lookup_host};
use url::Host;

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum DialError {
    /// The name has no address, or none accepted a connection.
    Io(io::Error),
    /// The name leads to a local address.
    Local(IpAddr),
}

/// Connects to the first address of `host` that answers within `each`.
///
/// Addresses are checked here, after the name was resolved and before they are dialled, so that a name that
/// changes its answer gains nothing.
pub(super) async fn dial(
    host: &Host<String>,
    port: u16,
    local_allowed: bool,
    each: Duration,
) -> Result<TcpStream, DialError> {
    let found: Vec<SocketAddr> = match host {
        Host::Ipv4(address) => vec![(*address, port).into()],
        Host::Ipv6(address) => vec![(*address, port).into()],
        Host::Domain(name) => lookup_host((name.as_str(), port))
            .await
            .map_err(DialError::Io)?
            .collect(),
    };
    let mut last = DialError::Io(io::ErrorKind::AddrNotAvailable.into());
    for address in found {
        if !local_allowed && is_local(address.ip()) {
            last = DialError::Local(address.ip());
            continue;
        }
        match tokio::time::timeout(each, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // Requests are written whole; waiting for more to send only adds delay.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => last = DialError::Io(error),
            Err(_) => last = DialError::Io(io::ErrorKind::TimedOut.into()),
        }
    }
    Err(last)
}

/// Loopback, and addresses at which nobody's server is. Private networks are not among them: git servers live there.
fn is_local(address: IpAddr) -> bool {
    address.to_canonical().is_loopback() || is_nobodys(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_addresses_are_recognised_in_every_spelling() {
        let local = [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "0.1.2.3",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "ff02::1",
            "fd00:ec2::254",
            "::ffff:169.254.169.254",
        ];
        for address in local {
            assert!(is_local(address.parse().unwrap()), "{address}");
        }
        for public in [
            "10.0.0.1",
            "192.168.1.1",
            "140.82.121.4",
            "2606:50c0::1",
            "fd12::1",
        ] {
            assert!(!is_local(public.parse().unwrap()), "{public}");
        }
    }
}
