//! An operator's lists of addresses: which may be connected to, and which may not.

use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use ipnet::IpNet;
use starling_core::address::forms;
use thiserror::Error;

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The repository of a Source.
    Git,
    /// The API server of a Cluster.
    Members,
    /// The server of a gate.
    Gates,
}

/// A network in a list, for one purpose or for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedNetwork {
    purpose: Option<Purpose>,
    network: IpNet,
}

/// A network that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "expected a network such as 10.0.0.0/8 or fd00::/8, or one for a purpose: git=, members= or gates=10.0.0.0/8"
)]
pub struct InvalidNetwork;

impl FromStr for ListedNetwork {
    type Err = InvalidNetwork;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (purpose, network) = match text.split_once('=') {
            None => (None, text),
            Some(("git", network)) => (Some(Purpose::Git), network),
            Some(("members", network)) => (Some(Purpose::Members), network),
            Some(("gates", network)) => (Some(Purpose::Gates), network),
            Some(_) => return Err(InvalidNetwork),
        };
        let single = || network.parse::<IpAddr>().map(IpNet::from);
        let network = network
            .parse()
            .or_else(|_| single())
            .map_err(|_| InvalidNetwork)?;
        Ok(Self { purpose, network })
    }
}

/// The lists of an operator. Without lists, every address may be connected to that [`super::dial::Reach`] allows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressLists {
    /// If there is a network for a purpose, only addresses in such networks may be connected to for it.
    pub allowed: Vec<ListedNetwork>,
    /// Addresses in these networks are never connected to.
    pub denied: Vec<ListedNetwork>,
}

impl AddressLists {
    /// Returns the rules for one purpose.
    #[must_use]
    pub fn rules(&self, purpose: Purpose) -> AddressRules {
        let of = |list: &[ListedNetwork]| {
            let about = list
                .iter()
                .filter(|one| one.purpose.is_none_or(|about| about == purpose));
            about.map(|one| one.network).collect()
        };
        AddressRules {
            allowed: of(&self.allowed),
            denied: of(&self.denied),
        }
    }
}

/// The rules for the connections of one purpose.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressRules {
    allowed: Arc<[IpNet]>,
    denied: Arc<[IpNet]>,
}

impl AddressRules {
    /// Reports whether the lists allow an address. A gateway may translate an IPv6 address to the IPv4 address within
    /// it: a denied network denies both, and an allowed network allows only what it has itself.
    #[must_use]
    pub fn allow(&self, address: IpAddr) -> bool {
        let forms = forms(address);
        let is_in =
            |networks: &[IpNet], address: &IpAddr| networks.iter().any(|network| network.contains(address));
        let is_denied = forms.iter().any(|form| is_in(&self.denied, form));
        let is_listed =
            self.allowed.is_empty() || forms.first().is_some_and(|form| is_in(&self.allowed, form));
        !is_denied && is_listed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(allowed: &[&str], denied: &[&str]) -> AddressLists {
        let read = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect();
        AddressLists {
            allowed: read(allowed),
            denied: read(denied),
        }
    }

    #[test]
    fn a_network_is_for_one_purpose_or_for_all() {
        for text in ["10.0.0.0/8", "git=10.1.2.3", "members=fd00::/8", "gates=::1"] {
            assert!(text.parse::<ListedNetwork>().is_ok(), "{text}");
        }
        for text in ["", "10.0.0.0/33", "example.com", "web=10.0.0.0/8", "git="] {
            assert!(text.parse::<ListedNetwork>().is_err(), "{text}");
        }
    }

    #[test]
    fn lists_allow_and_deny_networks_for_a_purpose() {
        let lists = lists(
            &["members=10.0.0.0/8", "members=fd12::/16"],
            &["10.9.0.0/16", "git=192.168.0.0/16"],
        );
        let cases = [
            (Purpose::Members, "10.1.2.3", true),
            (Purpose::Members, "::ffff:10.1.2.3", true),
            (Purpose::Members, "fd12::1", true),
            (Purpose::Members, "10.9.2.3", false),
            (Purpose::Members, "11.1.2.3", false),
            // The translated form of an allowed address is an address of its own.
            (Purpose::Members, "64:ff9b::10.1.2.3", false),
            (Purpose::Git, "11.1.2.3", true),
            (Purpose::Git, "10.9.2.3", false),
            (Purpose::Git, "64:ff9b::10.9.2.3", false),
            (Purpose::Git, "192.168.1.1", false),
            (Purpose::Gates, "192.168.1.1", true),
            (Purpose::Gates, "10.9.1.1", false),
        ];
        for (purpose, address, expected) in cases {
            let allowed = lists.rules(purpose).allow(address.parse().unwrap());
            assert_eq!(allowed, expected, "{purpose:?} {address}");
        }
        assert!(
            AddressLists::default()
                .rules(Purpose::Git)
                .allow("11.1.2.3".parse().unwrap())
        );
    }
}
