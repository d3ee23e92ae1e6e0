//! Addresses that are never connected to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Metadata servers of clouds that are not link-local: AWS (IPv6), Alibaba, Azure, Oracle. They return credentials of
/// the machine that Starling runs on.
const METADATA_V6: [Ipv6Addr; 1] = [Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)];
const METADATA_V4: [Ipv4Addr; 3] = [
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(168, 63, 129, 16),
    Ipv4Addr::new(192, 0, 0, 192),
];

/// Reports whether the address is a link-local address (where clouds have their metadata servers), another metadata
/// server, or an address without a host. Nothing is ever sent there, whatever a name or a kubeconfig says.
///
/// Loopback and private networks are allowed, since clusters are there.
#[must_use]
pub fn is_forbidden(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            v4.is_link_local()
                || v4.is_unspecified()
                || v4.is_broadcast()
                || v4.is_multicast()
                || v4.octets()[0] == 0
                || METADATA_V4.contains(&v4)
        }
        IpAddr::V6(v6) => {
            v6.is_unspecified()
                || v6.is_multicast()
                || v6.is_unicast_link_local()
                || METADATA_V6.contains(&v6)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forbidden_addresses_are_recognised_in_every_spelling() {
        for address in [
            "0.0.0.0",
            "0.1.2.3",
            "169.254.169.254",
            "169.254.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "::",
            "fe80::1",
            "ff02::1",
            "fd00:ec2::254",
            "::ffff:169.254.169.254",
        ] {
            assert!(is_forbidden(address.parse().unwrap()), "{address}");
        }
        for address in [
            "127.0.0.1",
            "::1",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "140.82.121.4",
            "2606:50c0::1",
            "fd12::1",
            "::ffff:10.0.0.1",
        ] {
            assert!(!is_forbidden(address.parse().unwrap()), "{address}");
        }
    }
}
