//! TLS to servers, and which certificates are trusted.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

/// Reads the system's certificate authorities. Blocks; what cannot be read is logged and left out.
pub(super) fn system_roots() -> RootCertStore {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "a certificate authority of the system cannot be read");
    }
    let mut roots = RootCertStore::empty();
    let (usable, unusable) = roots.add_parsable_certificates(found.certs);
    tracing::debug!(usable, unusable, "certificate authorities of the system loaded");
    roots
}

/// A client that trusts the system's authorities and those of a PEM bundle; `None` if the bundle has no
/// usable one.
pub(super) fn client(system: &RootCertStore, bundle: Option<&[u8]>) -> Option<Arc<ClientConfig>> {
    let mut roots = system.clone();
    let mut pinned = Vec::new();
    if let Some(pem) = bundle {
        pinned = CertificateDer::pem_slice_iter(pem)
            .collect::<Result<_, _>>()
            .ok()?;
        let (usable, _) = roots.add_parsable_certificates(pinned.iter().cloned());
        if usable == 0 {
            return None;
        }
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    // A system without authorities is no error: the bundle, or nobody, is trusted then.
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
        .ok()?;
    let mut config = builder
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Some(Arc::new(config))
}

/// The usual check, and one more way to pass it: to stand in the bundle oneself.
///
/// Servers that signed their own certificate often marked it as an authority, which the usual check refuses
/// in a server. It is known already, byte for byte; only its names are held against the host.
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
    ) -> Result<ServerCertVerified, Error> {
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
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
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
    fn a_bundle_without_certificates_is_no_bundle() {
        let nobody = RootCertStore::empty();
        for pem in [
            &b""[..],
            b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            b"text",
        ] {
            assert!(client(&nobody, Some(pem)).is_none());
        }
        assert!(client(&nobody, None).is_some());
    }
}
