//! Which server certificates are trusted.
//!
//! libgit2 checks against the system's authorities. A repository may name further ones; libgit2 can take those only for
//! the whole process and by `unsafe` code, so a certificate is first held against them here, and libgit2's own verdict
//! decides otherwise. libgit2 hands over the server's own certificate without the chain: intermediates have to be in
//! the bundle, which is the usual form of one.

use std::sync::Arc;

use git2::CertificateCheckStatus;
use git2::cert::Cert;
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::client::verify_server_name;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;

/// Certificate authorities of one repository.
#[derive(Debug, Clone)]
pub(super) struct Trust {
    certificates: Vec<CertificateDer<'static>>,
    verifier: Arc<WebPkiServerVerifier>,
}

impl Trust {
    /// Reads a PEM bundle; `None` if it holds no usable certificate.
    pub(super) fn from_pem(pem: &[u8]) -> Option<Self> {
        let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
            .collect::<Result<_, _>>()
            .ok()?;
        let mut roots = RootCertStore::empty();
        let (usable, _) = roots.add_parsable_certificates(certificates.iter().cloned());
        if usable == 0 {
            return None;
        }
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .ok()?;
        Some(Self {
            certificates,
            verifier,
        })
    }

    /// Whether the bundle vouches for this certificate and this host, now.
    ///
    /// A certificate that itself stands in the bundle (servers that signed their own) is known already; only its names
    /// are held against the host, since there is nobody else who could vouch for it.
    pub(super) fn vouches_for(&self, certificate: &[u8], host: &str) -> bool {
        let Ok(name) = ServerName::try_from(host) else {
            return false;
        };
        let certificate = CertificateDer::from(certificate);
        let pinned = self.certificates.contains(&certificate)
            && ParsedCertificate::try_from(&certificate)
                .is_ok_and(|parsed| verify_server_name(&parsed, &name).is_ok());
        pinned
            || self
                .verifier
                .verify_server_cert(&certificate, &self.certificates, &name, &[], UnixTime::now())
                .is_ok()
    }
}

/// The answer to libgit2: accepted if the bundle vouches for it, otherwise what libgit2 found itself. Never "accept all".
pub(super) fn check(trust: Option<&Trust>, certificate: &Cert<'_>, host: &str) -> CertificateCheckStatus {
    let vouched = trust
        .zip(certificate.as_x509())
        .is_some_and(|(trust, x509)| trust.vouches_for(x509.data(), host));
    if vouched {
        CertificateCheckStatus::CertificateOk
    } else {
        CertificateCheckStatus::CertificatePassthrough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_without_certificates_is_no_bundle() {
        for pem in [
            &b""[..],
            b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            b"text",
        ] {
            assert!(Trust::from_pem(pem).is_none());
        }
    }
}
