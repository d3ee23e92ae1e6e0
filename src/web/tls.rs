//! TLS to servers that users name.

use std::io;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{Server, WebError};

/// The system's certificate authorities; what cannot be read is logged and left out.
pub(super) async fn system_roots() -> RootCertStore {
    let read = || {
        let found = rustls_native_certs::load_native_certs();
        for error in &found.errors {
            tracing::warn!(%error, "a certificate authority of the system cannot be read");
        }
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(found.certs);
        roots
    };
    // It ends unless it panics; then nobody is trusted but whom a Secret names.
    tokio::task::spawn_blocking(read)
        .await
        .unwrap_or_else(|_| RootCertStore::empty())
}

/// Encrypts a connection to a server that can prove its name to the system's authorities, or to those of a PEM bundle.
pub(super) async fn encrypt(
    stream: TcpStream,
    server: &Server,
    system: &RootCertStore,
    bundle: Option<&[u8]>,
) -> Result<TlsStream<TcpStream>, WebError> {
    let failed = |source| WebError::Connect {
        host: server.authority.clone(),
        source,
    };
    let mut roots = system.clone();
    if let Some(pem) = bundle {
        let found: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(pem)
            .collect::<Result<_, _>>()
            .map_err(|_| WebError::Authorities)?;
        let (usable, _) = roots.add_parsable_certificates(found);
        if usable == 0 {
            return Err(WebError::Authorities);
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(io::Error::other(error)))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = server.host.to_string();
    let name = ServerName::try_from(name.trim_matches(['[', ']']).to_owned())
        .map_err(|_| WebError::Url("its host is no name that a certificate can have"))?;
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .map_err(failed)
}
