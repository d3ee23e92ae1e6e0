//! Free ports on the loopback address.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::pki::random_bytes;

/// The first port of the range. All ports are below the range of outgoing connections on Linux (32768 and up), so that
/// no connection takes the port of a server that is going to be restarted, and below the node ports of Kubernetes
/// (30000 and up).
const FIRST: u32 = 16_000;
const SPAN: u32 = 14_000;

/// Finds a free port on 127.0.0.1.
///
/// A port is returned once per process. Another process may take the port before it is used, so the caller has to retry
/// with another port in that case.
///
/// # Errors
/// The last error of binding if every port of the range is in use, or if the operating system returns no random bytes.
pub fn free_port() -> io::Result<u16> {
    static START: OnceLock<u32> = OnceLock::new();
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = match START.get() {
        Some(start) => *start,
        // Each process starts at a random port, because concurrent tests would otherwise compete for the same ports.
        None => {
            let seed = u32::from_le_bytes(random_bytes()?);
            *START.get_or_init(|| seed % SPAN)
        }
    };
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..SPAN {
        let offset = (start + NEXT.fetch_add(1, Ordering::Relaxed) % SPAN) % SPAN;
        let Ok(port) = u16::try_from(FIRST + offset) else {
            continue;
        };
        match try_bind(port) {
            Ok(()) => return Ok(port),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Listens briefly to check whether the port is free.
fn try_bind(port: u16) -> io::Result<()> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map(drop)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ports_differ_and_are_in_their_range() {
        let ports: Vec<u16> = (0..200).map(|_| free_port().unwrap()).collect();
        assert_eq!(ports.iter().collect::<HashSet<_>>().len(), ports.len());
        assert!(
            ports.iter().all(|port| (16_000..30_000).contains(port)),
            "{ports:?}"
        );
    }

    #[test]
    fn a_port_with_a_listener_is_not_free() {
        let used = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert!(try_bind(used.local_addr().unwrap().port()).is_err());
    }
}
