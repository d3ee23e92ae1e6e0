//! Addresses that are never connected to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Metadata servers of clouds that are not link-local: Alibaba, Azure, Oracle. They return credentials of the machine
/// that Starling runs on.
const METADATA_V4: [Ipv4Addr; 3] = [
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(168, 63, 129, 16),
    Ipv4Addr::new(192, 0, 0, 192),
];
/// The networks of metadata servers in IPv6, with the number of their bits: the services of AWS (metadata at
/// `fd00:ec2::254`, credentials of EKS pods at `fd00:ec2::23`), and the metadata of GCP, OCI and Scaleway.
const METADATA_V6: [(Ipv6Addr, u32); 4] = [
    (Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254), 128),
    (Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe), 128),
    (Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42), 128),
];

/// Reports whether the address is a link-local address (where clouds have their metadata servers), another metadata
/// server, or an address without a host. Nothing is ever sent there, whatever a name or a kubeconfig says. A gateway
/// that translates IPv6 to IPv4 leads to the same servers, so the IPv4 address within an IPv6 address counts, too.
///
/// Loopback and private networks are allowed, since clusters are there.
#[must_use]
pub fn is_forbidden(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            is_metadata(v4)
                || v4.is_unspecified()
                || v4.is_broadcast()
                || v4.is_multicast()
                || v4.octets()[0] == 0
        }
        IpAddr::V6(v6) => {
            let within = |(network, bits): &(Ipv6Addr, u32)| {
                (v6.to_bits() ^ network.to_bits())
                    .checked_shr(128 - bits)
                    .unwrap_or(0)
                    == 0
            };
            v6.is_unspecified()
                || v6.is_multicast()
                || v6.is_unicast_link_local()
                || METADATA_V6.iter().any(within)
                || embedded(v6).into_iter().any(is_metadata)
        }
    }
}

fn is_metadata(v4: Ipv4Addr) -> bool {
    v4.is_link_local() || METADATA_V4.contains(&v4)
}

/// Returns the address itself, and the IPv4 addresses that a gateway may translate it to.
#[must_use]
pub fn forms(address: IpAddr) -> Vec<IpAddr> {
    let address = address.to_canonical();
    let mut forms = vec![address];
    if let IpAddr::V6(v6) = address {
        forms.extend(embedded(v6).into_iter().map(IpAddr::V4));
    }
    forms
}

/// Returns the IPv4 addresses within an IPv6 address: NAT64 (RFC 6052, and the local prefix of RFC 8215, in which the
/// place of the address depends on the length of the prefix), 6to4 (RFC 3056), Teredo (RFC 4380), ISATAP (RFC 5214),
/// and the forms of RFC 2765 and RFC 4291.
fn embedded(v6: Ipv6Addr) -> Vec<Ipv4Addr> {
    let octets = v6.octets();
    let at = |places: [usize; 4]| Ipv4Addr::from(places.map(|place| octets[place]));
    let last = at([12, 13, 14, 15]);
    match v6.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, _, _] => vec![last],
        // The octet 8 is not part of an address (RFC 6052, 2.2).
        [0x64, 0xff9b, 1, ..] => vec![at([6, 7, 9, 10]), at([7, 9, 10, 11]), at([9, 10, 11, 12]), last],
        [0x2002, ..] => vec![at([2, 3, 4, 5])],
        [0x2001, 0, ..] => vec![at([4, 5, 6, 7]), Ipv4Addr::from_bits(!last.to_bits())],
        [0, 0, 0, 0, 0, 0, high, _] if high != 0 => vec![last],
        [0, 0, 0, 0, 0xffff, 0, _, _] => vec![last],
        [_, _, _, _, 0 | 0x200, 0x5efe, _, _] => vec![last],
        _ => Vec::new(),
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
            // Metadata of EKS pods, GCP, OCI and Scaleway.
            "fd00:ec2::23",
            "fd00:ec2:0:1::9",
            "fd20:ce::254",
            "fd00:c1::a9fe:a9fe",
            "fd00:42::42",
            // NAT64, with the well-known prefix and with local ones of 48, 56, 64 and 96 bits.
            "64:ff9b::169.254.169.254",
            "64:ff9b::100.100.100.200",
            "64:ff9b:1:a9fe:a9:fe00::",
            "64:ff9b:1:00a9:fe:a9fe::",
            "64:ff9b:1::a9:fea9:fe00:0",
            "64:ff9b:1::169.254.169.254",
            // 6to4, Teredo (as server and as client), ISATAP, SIIT, and the form that is compatible with IPv4.
            "2002:a9fe:a9fe::1",
            "2001:0:a9fe:a9fe::1",
            "2001::5601:5601",
            "2001:db8::5efe:169.254.169.254",
            "2001:db8::200:5efe:169.254.169.254",
            "::ffff:0:169.254.169.254",
            "::169.254.169.254",
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
            "64:ff9b::140.82.121.4",
            "64:ff9b:1::10.0.0.1",
            "2002:8c52:7904::1",
            "2001:db8::1",
            "fd20:ce::255",
        ] {
            assert!(!is_forbidden(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn the_forms_of_an_address_are_those_that_gateways_translate_it_to() {
        let forms = |text: &str| super::forms(text.parse().unwrap());
        assert_eq!(forms("::ffff:10.0.0.1"), ["10.0.0.1".parse::<IpAddr>().unwrap()]);
        assert!(forms("64:ff9b::10.0.0.1").contains(&"10.0.0.1".parse().unwrap()));
        assert_eq!(forms("2606:50c0::1").len(), 1);
    }
}
