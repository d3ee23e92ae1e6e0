//! Opens connections to servers, and to no address that cannot be a server's.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use starling_core::address::is_forbidden;
use thiserror::Error;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use url::Host;

use super::rules::AddressRules;

/// The head start of one address family before the other family is tried in parallel. RFC 8305 proposes 250 ms; this is
/// the value of hyper's connector.
const HEAD_START: Duration = Duration::from_millis(300);

/// The way from this process to a server. An egress proxy would be another variant, and [`Dialler::dial`] the only
/// place that uses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Egress {
    /// A direct connection.
    #[default]
    Direct,
}

/// The addresses that connections may go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All except link-local addresses, metadata servers, and addresses that are no host's. Loopback is allowed.
    Servers,
    /// As `Servers`, without loopback. Private networks are allowed.
    Remote,
}

impl Reach {
    fn allows(self, address: IpAddr) -> bool {
        match self {
            Self::Servers => !is_forbidden(address),
            Self::Remote => !is_forbidden(address) && !address.to_canonical().is_loopback(),
        }
    }
}

/// The time to wait until a server accepts a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectTimeout {
    /// The time for each address.
    Each(Duration),
    /// The time for all addresses of a family together; each address gets an equal share.
    All(Duration),
}

/// Why there is no connection.
#[derive(Debug, Error)]
pub enum DialError {
    /// The name cannot be resolved.
    #[error("dns error")]
    Resolve(#[source] io::Error),
    /// No address accepted a connection.
    #[error("tcp connect error")]
    Connect(#[source] io::Error),
    /// The name has only addresses that may not be connected to; this is the first.
    #[error("the server resolves to {0}, which is link-local, a metadata server or not a host address")]
    ForbiddenAddress(IpAddr),
    /// The name has only addresses that the lists of the operator exclude; this is the first.
    #[error("the server resolves to {0}, which the operator of Starling does not allow")]
    DeniedAddress(IpAddr),
}

/// Opens connections.
#[derive(Clone, Debug)]
pub struct Dialler {
    egress: Egress,
    reach: Reach,
    rules: AddressRules,
    connect_timeout: ConnectTimeout,
}

impl Dialler {
    /// Creates a dialler. Nothing is connected yet.
    #[must_use]
    pub fn new(egress: Egress, reach: Reach, rules: AddressRules, connect_timeout: ConnectTimeout) -> Self {
        Self {
            egress,
            reach,
            rules,
            connect_timeout,
        }
    }

    /// Checks a host that is written as an address.
    ///
    /// # Errors
    /// [`DialError::ForbiddenAddress`] or [`DialError::DeniedAddress`] if that address may not be connected to.
    pub fn check(&self, host: &Host<String>) -> Result<(), DialError> {
        literal(host)
            .and_then(|address| self.refusal(address))
            .map_or(Ok(()), Err)
    }

    /// Returns why an address may not be connected to.
    fn refusal(&self, address: IpAddr) -> Option<DialError> {
        if !self.reach.allows(address) {
            return Some(DialError::ForbiddenAddress(address));
        }
        (!self.rules.allow(address)).then_some(DialError::DeniedAddress(address))
    }

    /// Connects to the first address of `host` that accepts the connection.
    ///
    /// The addresses are checked after the name is resolved and before they are dialled: a name that changes its
    /// addresses gains nothing. If the server has addresses of both families and the first family is slow, the second
    /// family is tried in parallel. A family without a route costs only that head start.
    ///
    /// # Errors
    /// [`DialError`]; for several addresses, the error of the first one.
    pub async fn dial(&self, host: &Host<String>, port: u16) -> Result<TcpStream, DialError> {
        match self.egress {
            Egress::Direct => self.directly(host, port).await,
        }
    }

    async fn directly(&self, host: &Host<String>, port: u16) -> Result<TcpStream, DialError> {
        let found = resolve(host, port).await.map_err(DialError::Resolve)?;
        let (allowed, refused): (Vec<_>, Vec<_>) = found
            .into_iter()
            .partition(|address| self.refusal(address.ip()).is_none());
        let refusal = refused.first().and_then(|address| self.refusal(address.ip()));
        if let (true, Some(refusal)) = (allowed.is_empty(), refusal) {
            return Err(refusal);
        }
        let first_family = allowed.first().map(SocketAddr::is_ipv4);
        let (first, second): (Vec<_>, Vec<_>) = allowed
            .into_iter()
            .partition(|address| Some(address.is_ipv4()) == first_family);
        let stream = self.either(&first, &second).await.map_err(DialError::Connect)?;
        // Each request is written at once, so Nagle's algorithm would only add delay.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }

    async fn either(&self, first: &[SocketAddr], second: &[SocketAddr]) -> io::Result<TcpStream> {
        let mut by_first = pin!(self.sequentially(first));
        if second.is_empty() {
            return by_first.await;
        }
        match timeout(HEAD_START, &mut by_first).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => return self.sequentially(second).await.map_err(|_| error),
            Err(_) => {}
        }
        let mut by_second = pin!(self.sequentially(second));
        tokio::select! {
            biased;
            done = &mut by_first => match done {
                Ok(stream) => Ok(stream),
                Err(error) => by_second.await.map_err(|_| error),
            },
            done = &mut by_second => match done {
                Ok(stream) => Ok(stream),
                Err(_) => by_first.await,
            },
        }
    }

    async fn sequentially(&self, addresses: &[SocketAddr]) -> io::Result<TcpStream> {
        let count = u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
        let each = match self.connect_timeout {
            ConnectTimeout::Each(each) => each,
            ConnectTimeout::All(all) => all / count,
        };
        let mut first = None;
        for address in addresses {
            let error = match timeout(each, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => error,
                Err(_) => io::ErrorKind::TimedOut.into(),
            };
            first.get_or_insert(error);
        }
        Err(first.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into()))
    }
}

/// Parses the host of a URL, in which an IPv6 address is in brackets.
#[must_use]
pub fn host(text: &str) -> Host<String> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    match bare.parse() {
        Ok(IpAddr::V4(address)) => Host::Ipv4(address),
        Ok(IpAddr::V6(address)) => Host::Ipv6(address),
        Err(_) => Host::Domain(text.to_owned()),
    }
}

fn literal(host: &Host<String>) -> Option<IpAddr> {
    match host {
        Host::Ipv4(address) => Some((*address).into()),
        Host::Ipv6(address) => Some((*address).into()),
        Host::Domain(_) => None,
    }
}

async fn resolve(host: &Host<String>, port: u16) -> io::Result<Vec<SocketAddr>> {
    match host {
        Host::Ipv4(address) => Ok(vec![(*address, port).into()]),
        Host::Ipv6(address) => Ok(vec![(*address, port).into()]),
        Host::Domain(name) => Ok(lookup_host((name.as_str(), port)).await?.collect()),
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::rules::{AddressLists, Purpose};

    const WAIT: Duration = Duration::from_secs(5);

    fn dialler(reach: Reach) -> Dialler {
        Dialler::new(
            Egress::Direct,
            reach,
            AddressRules::default(),
            ConnectTimeout::All(WAIT),
        )
    }

    #[test]
    fn local_addresses_are_recognised_in_every_notation() {
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
        for text in local {
            let address: IpAddr = text.parse().unwrap();
            assert!(!Reach::Remote.allows(address), "{text}");
            assert_eq!(Reach::Servers.allows(address), address.is_loopback(), "{text}");
        }
        for public in [
            "10.0.0.1",
            "192.168.1.1",
            "140.82.121.4",
            "2606:50c0::1",
            "fd12::1",
        ] {
            assert!(Reach::Remote.allows(public.parse().unwrap()), "{public}");
        }
    }

    #[test]
    fn literal_addresses_are_parsed_in_every_form_of_a_url() {
        for (text, address) in [
            ("169.254.169.254", Some("169.254.169.254")),
            ("[fe80::1]", Some("fe80::1")),
            ("[::ffff:169.254.1.1]", Some("::ffff:169.254.1.1")),
            ("169.254.169.254.example.com", None),
        ] {
            let expected: Option<IpAddr> = address.map(|text| text.parse().unwrap());
            assert_eq!(literal(&host(text)), expected, "{text}");
            let checked = dialler(Reach::Servers).check(&host(text));
            assert_eq!(checked.is_err(), expected.is_some(), "{text}");
        }
    }

    /// The resolver of the system parses such a name as an address.
    #[tokio::test]
    async fn a_name_that_resolves_to_a_forbidden_address_is_refused() {
        for name in ["169.254.169.254", "0.0.0.0"] {
            let error = dialler(Reach::Servers)
                .dial(&Host::Domain(name.to_owned()), 1)
                .await
                .unwrap_err();
            assert!(
                matches!(error, DialError::ForbiddenAddress(_)),
                "{name}: {error:?}"
            );
            assert!(error.to_string().contains(name), "{error}");
        }
        let found = resolve(&Host::Domain("localhost".to_owned()), 1).await.unwrap();
        assert!(!found.is_empty() && found.iter().all(|address| address.ip().is_loopback()));
    }

    /// A listener accepts, so only the lists refuse.
    #[tokio::test]
    async fn addresses_that_the_operator_does_not_allow_are_not_dialled() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let lists = |allowed: &[&str], denied: &[&str]| {
            let read = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect();
            AddressLists {
                allowed: read(allowed),
                denied: read(denied),
            }
        };
        let cases = [
            (lists(&[], &[]), true),
            (lists(&["members=127.0.0.0/8"], &[]), true),
            (lists(&["members=10.0.0.0/8"], &[]), false),
            (lists(&["git=10.0.0.0/8"], &["gates=127.0.0.0/8"]), true),
            (lists(&["127.0.0.0/8"], &["127.0.0.1"]), false),
        ];
        for (lists, expected) in cases {
            let rules = lists.rules(Purpose::Members);
            let dialler = Dialler::new(Egress::Direct, Reach::Servers, rules, ConnectTimeout::All(WAIT));
            for name in [host("127.0.0.1"), Host::Domain("127.0.0.1".to_owned())] {
                let dialled = dialler.dial(&name, port).await;
                assert_eq!(dialled.is_ok(), expected, "{lists:?} {name}");
                let is_denied = matches!(dialled, Err(DialError::DeniedAddress(_)));
                assert_eq!(is_denied, !expected, "{lists:?} {name}");
            }
            assert_eq!(dialler.check(&host("127.0.0.1")).is_ok(), expected, "{lists:?}");
        }
    }

    #[tokio::test]
    async fn the_first_address_that_accepts_is_connected_to() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let open = listener.local_addr().unwrap();
        let closed = TcpListener::bind("127.0.0.1:0")
            .await
            .unwrap()
            .local_addr()
            .unwrap();
        let dialler = dialler(Reach::Servers);
        for (first, second) in [
            (vec![open], vec![]),
            (vec![closed, open], vec![]),
            (vec![closed], vec![open]),
            (vec![open], vec![closed]),
        ] {
            let stream = dialler.either(&first, &second).await.unwrap();
            assert_eq!(stream.peer_addr().unwrap(), open, "{first:?} {second:?}");
        }
        let error = dialler.either(&[closed], &[closed]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let error = dialler.either(&[], &[]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
    }
}
