//! Keys, certificates and tokens.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use thiserror::Error;

/// Why keys or certificates could not be made.
#[derive(Debug, Error)]
pub enum CredentialError {
    /// Of rcgen.
    #[error("certificate")]
    Certificate(#[from] rcgen::Error),
    /// Of rustls.
    #[error("TLS configuration")]
    Tls(#[from] rustls::Error),
    /// The system gives no random bytes.
    #[error("the system gives no random bytes")]
    Random,
    /// The key has a form that rustls does not take.
    #[error("private key: {0}")]
    Key(&'static str),
}

/// The authority of a server, and the certificate that it signed for it.
pub struct Authority {
    ca: Arc<str>,
    tls: Arc<ServerConfig>,
}

impl Authority {
    /// Makes an authority and a certificate for this machine and further names.
    pub(super) fn new(names: &[String]) -> Result<Self, CredentialError> {
        let (certificate, key) = Self::make()?;
        Self::known(&certificate, &key, names)
    }

    /// Makes an authority: its certificate and its key, as PEM.
    pub(super) fn make() -> Result<(String, String), CredentialError> {
        let key = KeyPair::generate()?;
        let certificate = Self::params().self_signed(&key)?;
        Ok((certificate.pem(), key.serialize_pem()))
    }

    fn params() -> CertificateParams {
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, "starling embedded authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params
    }

    /// Lets an authority that was made before sign a new certificate.
    pub(super) fn known(ca: &str, key: &str, names: &[String]) -> Result<Self, CredentialError> {
        let issuer = Issuer::new(Self::params(), KeyPair::from_pem(key)?);

        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, "kube-apiserver");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.subject_alt_names = vec![
            SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            SanType::IpAddress(IpAddr::V6(Ipv6Addr::LOCALHOST)),
            SanType::DnsName("localhost".try_into()?),
        ];
        for name in names {
            params.subject_alt_names.push(match name.parse() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(name.as_str().try_into()?),
            });
        }
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &issuer)?;
        let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(CredentialError::Key)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)?;
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // Whoever comes back need not begin anew, and nothing is kept for those who do not: clients may be thousands.
        tls.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new()?;
        Ok(Self {
            ca: ca.into(),
            tls: Arc::new(tls),
        })
    }

    /// Its certificate, as PEM.
    pub fn ca_pem(&self) -> Arc<str> {
        Arc::clone(&self.ca)
    }

    /// How the server speaks TLS.
    pub fn tls(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.tls)
    }
}

/// Who sends a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The name.
    pub name: String,
    /// The groups.
    pub groups: Vec<String>,
    /// The UID, of a service account.
    pub uid: String,
}

impl User {
    /// The user of a cluster's own token.
    pub(crate) fn admin() -> Self {
        Self {
            name: "kubernetes-admin".to_owned(),
            groups: vec!["system:masters".to_owned(), "system:authenticated".to_owned()],
            uid: String::new(),
        }
    }

    /// Nobody.
    pub(crate) fn anonymous() -> Self {
        Self {
            name: "system:anonymous".to_owned(),
            groups: vec!["system:unauthenticated".to_owned()],
            uid: String::new(),
        }
    }

    /// A service account.
    pub(crate) fn account(namespace: &str, name: &str, uid: &str) -> Self {
        Self {
            name: format!("system:serviceaccount:{namespace}:{name}"),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated".to_owned(),
            ],
            uid: uid.to_owned(),
        }
    }
}

/// What tokens are made of. It prints nothing.
#[derive(Clone)]
pub(crate) struct Secret([u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    pub(super) fn new(given: Option<[u8; 32]>) -> Result<Self, CredentialError> {
        given.map_or_else(random, Ok).map(Self)
    }

    /// A keyed digest; twice, as a digest alone can be prolonged.
    fn seal(&self, text: &str) -> [u8; 32] {
        let inner = Sha256::new().chain_update(self.0).chain_update(text).finalize();
        Sha256::new()
            .chain_update(self.0)
            .chain_update(inner)
            .finalize()
            .into()
    }

    fn token(&self, purpose: &str) -> String {
        URL_SAFE_NO_PAD.encode(self.seal(purpose))
    }

    /// The token of a cluster's administrator.
    pub(crate) fn cluster_token(&self, cluster: &str) -> String {
        self.token(&format!("cluster/{cluster}"))
    }

    /// The token for `/admin`.
    pub(crate) fn admin_token(&self) -> String {
        self.token("admin")
    }

    /// Makes the token of a service account.
    pub(crate) fn account_token(&self, cluster: &str, claims: &Value) -> String {
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let header = json!({"alg": "HS256", "kid": "starling-embedded"});
        let signed = format!("{}.{}", encode(&header), encode(claims));
        let seal = self.seal(&format!("account/{cluster}/{signed}"));
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(seal))
    }

    /// The claims of a service account's token; none if it is not one of ours, or has expired.
    pub(crate) fn account_claims(&self, cluster: &str, token: &str, now: Timestamp) -> Option<Value> {
        let (signed, seal) = token.rsplit_once('.')?;
        let expected = self.seal(&format!("account/{cluster}/{signed}"));
        if !same(&URL_SAFE_NO_PAD.decode(seal).ok()?, &expected) {
            return None;
        }
        let claims = URL_SAFE_NO_PAD.decode(signed.split_once('.')?.1).ok()?;
        let claims: Value = serde_json::from_slice(&claims).ok()?;
        (claims["exp"].as_i64()? > now.as_second()).then_some(claims)
    }
}

/// Random bytes of the system's generator.
pub(super) fn random<const N: usize>() -> Result<[u8; N], CredentialError> {
    let mut bytes = [0; N];
    rustls::crypto::aws_lc_rs::default_provider()
        .secure_random
        .fill(&mut bytes)
        .map_err(|_| CredentialError::Random)?;
    Ok(bytes)
}

/// Compares without telling by the time it takes where the difference is.
pub(crate) fn same(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len()
        && left
            .iter()
            .zip(right)
            .fold(0, |sum, (left, right)| sum | (left ^ right))
            == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_known_by_their_cluster_until_they_expire() {
        let secret = Secret([7; 32]);
        let token = secret.account_token("a", &json!({"sub": "x", "exp": 100}));
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(secret.account_claims("a", &token, at(99)).unwrap()["sub"], "x");
        assert!(secret.account_claims("a", &token, at(100)).is_none());
        assert!(secret.account_claims("b", &token, at(99)).is_none());
        assert!(secret.account_claims("a", &format!("{token}A"), at(99)).is_none());
        assert_ne!(secret.cluster_token("a"), secret.cluster_token("b"));
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }
}
