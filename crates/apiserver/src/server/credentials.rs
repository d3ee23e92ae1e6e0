//! Keys, certificates and tokens.

use std::collections::BTreeMap;
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

use crate::rbac::{PRIVILEGED_GROUP, Who};

/// Why keys or certificates could not be created.
#[derive(Debug, Error)]
pub enum CredentialError {
    /// A certificate could not be created.
    #[error("cannot create the certificate")]
    Certificate(#[from] rcgen::Error),
    /// The TLS configuration is invalid.
    #[error("TLS configuration")]
    Tls(#[from] rustls::Error),
    /// The system returned no random bytes.
    #[error("the system returned no random bytes")]
    Random,
    /// The private key has an unsupported format.
    #[error("private key: {0}")]
    Key(&'static str),
}

/// The certificate authority of a server, and the server certificate that it signed.
pub struct Authority {
    ca: Arc<str>,
    tls: Arc<ServerConfig>,
}

impl Authority {
    /// Creates an authority and a certificate for this machine and the given names.
    pub(super) fn new(names: &[String]) -> Result<Self, CredentialError> {
        let (certificate, key) = Self::make()?;
        Self::known(&certificate, &key, names)
    }

    /// Creates an authority; returns its certificate and its key, as PEM.
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

    /// Loads an authority and signs a new server certificate.
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
        // Tickets resume sessions without any state on the server, which may have thousands of clients.
        tls.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new()?;
        Ok(Self {
            ca: ca.into(),
            tls: Arc::new(tls),
        })
    }

    /// Returns the certificate of the authority, as PEM.
    pub fn ca_pem(&self) -> Arc<str> {
        Arc::clone(&self.ca)
    }

    /// Returns the TLS configuration of the server.
    pub fn tls(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.tls)
    }
}

/// The user who sent a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct User {
    /// The user name.
    pub name: String,
    /// The groups.
    pub groups: Vec<String>,
    /// The UID; only service accounts have one.
    pub uid: String,
    /// What else is known about the user.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// Returns the user for authorization.
    pub(crate) fn who(&self) -> Who<'_> {
        Who {
            name: &self.name,
            groups: &self.groups,
        }
    }

    /// Returns the administrator of a cluster.
    pub(crate) fn admin() -> Self {
        Self {
            name: "kubernetes-admin".to_owned(),
            groups: vec![PRIVILEGED_GROUP.to_owned(), "system:authenticated".to_owned()],
            ..Self::default()
        }
    }

    /// Returns the anonymous user.
    pub(crate) fn anonymous() -> Self {
        Self {
            name: "system:anonymous".to_owned(),
            groups: vec!["system:unauthenticated".to_owned()],
            ..Self::default()
        }
    }

    /// Returns a service account as a user.
    pub(crate) fn account(namespace: &str, name: &str, uid: &str) -> Self {
        Self {
            name: format!("system:serviceaccount:{namespace}:{name}"),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated".to_owned(),
            ],
            uid: uid.to_owned(),
            ..Self::default()
        }
    }
}

/// The key of all tokens. Its `Debug` output is empty.
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

    /// Returns a keyed digest; hashed twice, since a single digest allows length extension.
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

    /// Returns the token of a cluster's administrator.
    pub(crate) fn cluster_token(&self, scope: &str) -> String {
        self.token(&format!("cluster/{scope}"))
    }

    /// Returns the token for `/admin`.
    pub(crate) fn admin_token(&self) -> String {
        self.token("admin")
    }

    /// Creates the token of a service account.
    pub(crate) fn account_token(&self, scope: &str, claims: &Value) -> String {
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let header = json!({"alg": "HS256", "kid": "starling-embedded"});
        let signed = format!("{}.{}", encode(&header), encode(claims));
        let seal = self.seal(&format!("account/{scope}/{signed}"));
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(seal))
    }

    /// Returns the claims of a service account's token; `None` if the token is invalid or expired.
    pub(crate) fn account_claims(&self, scope: &str, token: &str, now: Timestamp) -> Option<Value> {
        let (signed, seal) = token.rsplit_once('.')?;
        let expected = self.seal(&format!("account/{scope}/{signed}"));
        if !constant_time_eq(&URL_SAFE_NO_PAD.decode(seal).ok()?, &expected) {
            return None;
        }
        let claims = URL_SAFE_NO_PAD.decode(signed.split_once('.')?.1).ok()?;
        let claims: Value = serde_json::from_slice(&claims).ok()?;
        (claims["exp"].as_i64()? > now.as_second()).then_some(claims)
    }
}

/// Returns the scope of the tokens of a cluster; `removals` is the number of earlier clusters of its name. Without any,
/// it is the name.
pub(super) fn token_scope(name: &str, removals: u64) -> Box<str> {
    if removals == 0 {
        name.into()
    } else {
        // No name of a cluster has this character.
        format!("{name}#{removals}").into()
    }
}

/// Returns random bytes from the system's generator.
pub(super) fn random<const N: usize>() -> Result<[u8; N], CredentialError> {
    let mut bytes = [0; N];
    rustls::crypto::aws_lc_rs::default_provider()
        .secure_random
        .fill(&mut bytes)
        .map_err(|_| CredentialError::Random)?;
    Ok(bytes)
}

/// Compares in constant time.
pub(crate) fn constant_time_eq(left: &[u8], right: &[u8]) -> bool {
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
    fn tokens_are_valid_in_their_cluster_until_they_expire() {
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
