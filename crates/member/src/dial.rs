//! Dials one member, and restricts which addresses are connected to.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures::FutureExt as _;
use http::Uri;
use rustls::ClientConfig;
use rustls::client::Resumption;
use starling_net::dial::{ConnectTimeout, Dialler, Egress, Reach, host};
use starling_net::tls::{self, Trust};

use super::connections::Connections;
use super::error::BoxError;
use super::kubeconfig::MemberConfig;
use super::limits::MemberLimits;
use super::network::{Dial, Network, Stream};

/// TLS sessions that may be resumed. A member is one server, for which rustls keeps eight tickets with any value up to
/// this one. The default of rustls is a cache for 32 servers, 17 KiB for each member.
const SESSIONS: usize = 8;

/// The default port of `https`.
const PORT: u16 = 443;

/// The connection pools of a member.
pub(super) struct Clients {
    /// For all requests but probes.
    pub(super) work: Connections,
    /// For probes, so that exhausted request limits do not delay them.
    pub(super) probes: Connections,
}

impl Clients {
    /// Creates the pools. Every option is set here and none is inferred: no proxy, no environment, no files, no
    /// redirects, no compression. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// If TLS cannot be set up with these certificates, or the address is one that is never connected to.
    pub(super) fn new(
        config: &MemberConfig,
        limits: &MemberLimits,
        network: &Network,
    ) -> Result<Self, BoxError> {
        let dialler = Dialler::new(
            Egress::Direct,
            Reach::Servers,
            network.addresses().clone(),
            ConnectTimeout::All(limits.connect),
        );
        // A literal address that is never connected to is an error in the kubeconfig, so it is reported before any
        // request.
        dialler.check(&host(config.server.host().unwrap_or_default()))?;
        let dial = match network.dial() {
            Some(dial) => dial,
            None => over_tls(config, dialler)?,
        };
        Ok(Self {
            work: Connections::new(dial.clone(), limits.connect),
            probes: Connections::new(dial, limits.connect),
        })
    }
}

/// Dials over the system's network with TLS.
fn over_tls(config: &MemberConfig, dialler: Dialler) -> Result<Dial, BoxError> {
    let client = Arc::new(client(config)?);
    let server = config.server.host().unwrap_or_default();
    let name = tls::server_name(config.tls_server_name.as_deref().unwrap_or(server))?;
    Ok(Arc::new(move |uri: Uri| {
        let (client, name, dialler) = (Arc::clone(&client), name.clone(), dialler.clone());
        async move {
            let server = host(uri.host().unwrap_or_default());
            let stream = dialler.dial(&server, uri.port_u16().unwrap_or(PORT)).await?;
            Ok(Stream::new(tls::encrypt(stream, name, client).await?))
        }
        .boxed()
    }))
}

fn client(config: &MemberConfig) -> Result<ClientConfig, BoxError> {
    let trust = match &config.certificate_authority {
        Some(certificates) => Trust::only(certificates)?,
        None => Trust::system()?,
    };
    let identity = match &config.identity {
        Some(identity) => {
            let certificate = BASE64.decode(&identity.certificate)?;
            let key = BASE64.decode(&identity.key.0)?;
            Some(tls::Identity::from_pem(&certificate, &key)?)
        }
        None => None,
    };
    let mut client = tls::client(trust, identity)?;
    client.resumption = Resumption::in_memory_sessions(SESSIONS);
    Ok(client)
}
