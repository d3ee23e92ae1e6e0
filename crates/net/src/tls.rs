//! TLS to servers: the trusted certificates, and the client certificate.

use std::io;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Why TLS cannot be set up. No text quotes the input.
#[derive(Debug, Error)]
pub enum TlsError {
    /// The bundle is not PEM, or has no usable certificate.
    #[error("no certificate authority can be read")]
    Bundle,
    /// The trust store of the system is empty.
    #[error("this machine trusts no certificate authority")]
    EmptyTrustStore,
    /// A certificate authority is not usable.
    #[error("failed to add a root certificate")]
    Root(#[source] rustls::Error),
    /// The client certificate or its key is not PEM.
    #[error("the client certificate or its key cannot be read")]
    Identity(#[source] pem::Error),
    /// The key is not usable, or does not belong to the certificate.
    #[error("invalid private key")]
    Key(#[source] rustls::Error),
    /// The TLS library rejects the protocol versions.
    #[error("TLS cannot be set up")]
    Protocol(#[source] rustls::Error),
}

/// Loads the certificate authorities of the system. Blocks. Unreadable certificates are logged and skipped.
#[must_use]
pub fn system_roots() -> RootCertStore {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "a certificate authority of the system cannot be read");
    }
    let mut roots = RootCertStore::empty();
    let (usable, unusable) = roots.add_parsable_certificates(found.certs);
    tracing::debug!(usable, unusable, "certificate authorities of the system loaded");
    roots
}

/// The certificates that a client trusts.
#[derive(Clone, Debug)]
pub struct Trust {
    roots: RootCertStore,
    pinned: Vec<CertificateDer<'static>>,
}

impl Trust {
    /// Trusts the authorities of the system. Blocks.
    ///
    /// # Errors
    /// [`TlsError::EmptyTrustStore`].
    pub fn system() -> Result<Self, TlsError> {
        let roots = system_roots();
        if roots.is_empty() {
            return Err(TlsError::EmptyTrustStore);
        }
        Ok(Self {
            roots,
            pinned: Vec::new(),
        })
    }

    /// Trusts these authorities (DER) and no others.
    ///
    /// # Errors
    /// [`TlsError::Root`].
    pub fn only(certificates: &[Vec<u8>]) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        for der in certificates {
            roots
                .add(CertificateDer::from(der.clone()))
                .map_err(TlsError::Root)?;
        }
        Ok(Self {
            roots,
            pinned: Vec::new(),
        })
    }

    /// Trusts the authorities of the system and those of a PEM bundle.
    ///
    /// # Errors
    /// [`TlsError::Bundle`].
    pub fn with_bundle(system: &RootCertStore, bundle: Option<&[u8]>) -> Result<Self, TlsError> {
        let mut trust = Self::pinning(system, bundle)?;
        trust.pinned.clear();
        Ok(trust)
    }

    /// As [`Self::with_bundle`]; also trusts a server whose own certificate is in the bundle.
    ///
    /// # Errors
    /// [`TlsError::Bundle`].
    pub fn pinning(system: &RootCertStore, bundle: Option<&[u8]>) -> Result<Self, TlsError> {
        let mut roots = system.clone();
        let mut pinned = Vec::new();
        if let Some(pem) = bundle {
            pinned = CertificateDer::pem_slice_iter(pem)
                .collect::<Result<_, _>>()
                .map_err(|_| TlsError::Bundle)?;
            let (usable, _) = roots.add_parsable_certificates(pinned.iter().cloned());
            if usable == 0 {
                return Err(TlsError::Bundle);
            }
        }
        Ok(Self { roots, pinned })
    }
}

/// A client certificate with its chain and key. Has no `Debug`: the key is a secret.
pub struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Parses a certificate and its key, both PEM.
    ///
    /// # Errors
    /// [`TlsError::Identity`].
    pub fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        let chain = CertificateDer::pem_slice_iter(certificate).collect::<Result<_, _>>();
        Ok(Self {
            chain: chain.map_err(TlsError::Identity)?,
            key: PrivateKeyDer::from_pem_slice(key).map_err(TlsError::Identity)?,
        })
    }
}

/// Creates the configuration of a client, with or without a client certificate.
///
/// # Errors
/// [`TlsError::Key`] if the client certificate is not usable.
pub fn client(trust: Trust, identity: Option<Identity>) -> Result<ClientConfig, TlsError> {
    let Trust { roots, pinned } = trust;
    let provider = Arc::new(aws_lc_rs::default_provider());
    // An empty store is no error: then only pinned certificates are trusted.
    let roots = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .build()
        .ok();
    let verifier = Verifier {
        pinned,
        roots,
        provider: Arc::clone(&provider),
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Protocol)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    match identity {
        Some(Identity { chain, key }) => builder.with_client_auth_cert(chain, key).map_err(TlsError::Key),
        None => Ok(builder.with_no_client_auth()),
    }
}

/// Parses the name that the certificate of a server must have: a host as in a URL, or a DNS name.
///
/// # Errors
/// If no certificate can have this name.
pub fn server_name(host: &str) -> Result<ServerName<'static>, InvalidDnsNameError> {
    let name = host.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(name.to_owned())
}

/// Performs the TLS handshake on a connection.
///
/// # Errors
/// If the handshake fails.
pub async fn encrypt(
    stream: TcpStream,
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
) -> io::Result<TlsStream<TcpStream>> {
    TlsConnector::from(config).connect(name, stream).await
}

/// The usual verification, which a pinned certificate passes as well.
///
/// Self-signed certificates of servers are often marked as authorities, which the usual verification refuses for a
/// server. A pinned certificate is known byte for byte, so only its names are verified.
#[derive(Debug)]
struct Verifier {
    pinned: Vec<CertificateDer<'static>>,
    roots: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.pinned.contains(certificate) {
            verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
            return Ok(ServerCertVerified::assertion());
        }
        match &self.roots {
            Some(roots) => roots.verify_server_cert(certificate, intermediates, name, ocsp, now),
            None => Err(CertificateError::UnknownIssuer.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_without_certificates_is_refused() {
        let no_roots = RootCertStore::empty();
        for pem in [
            &b""[..],
            b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            b"text",
        ] {
            assert!(matches!(
                Trust::pinning(&no_roots, Some(pem)),
                Err(TlsError::Bundle)
            ));
            assert!(matches!(
                Trust::with_bundle(&no_roots, Some(pem)),
                Err(TlsError::Bundle)
            ));
        }
        assert!(client(Trust::pinning(&no_roots, None).unwrap(), None).is_ok());
    }

    #[test]
    fn an_identity_needs_a_certificate_and_its_key() {
        let make = || rcgen::generate_simple_self_signed(vec!["me".to_owned()]).unwrap();
        let (own, other) = (make(), make());
        let trust = || Trust::only(&[own.cert.der().to_vec()]).unwrap();
        let identity = |key: &rcgen::CertifiedKey<rcgen::KeyPair>| {
            Identity::from_pem(
                own.cert.pem().as_bytes(),
                key.signing_key.serialize_pem().as_bytes(),
            )
            .unwrap()
        };
        assert!(client(trust(), Some(identity(&own))).is_ok());
        let error = client(trust(), Some(identity(&other))).unwrap_err();
        assert!(matches!(error, TlsError::Key(_)), "{error}");
        let error = Identity::from_pem(b"", b"s3cret").err().unwrap();
        assert!(!error.to_string().contains("s3cret"));
        assert!(matches!(Trust::only(&[b"none".to_vec()]), Err(TlsError::Root(_))));
    }
}
