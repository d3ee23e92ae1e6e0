//! Certificate authorities, keys and tokens of temporary control planes.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, KeyPair, KeyUsagePurpose,
};

/// An error of keys and certificates.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PkiError {
    /// A key or a certificate could not be generated.
    #[error("cannot make the {what} of {name}")]
    Certificate {
        /// Key or certificate.
        what: &'static str,
        /// Its subject.
        name: String,
        /// The cause.
        #[source]
        source: rcgen::Error,
    },
    /// The operating system returned no random bytes.
    #[error("no random bytes")]
    Random(#[source] io::Error),
}

/// A certificate authority for servers on the loopback address.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its private key, both as PEM. Debug prints neither.
#[derive(Clone)]
pub struct Identity {
    /// The certificate.
    pub certificate_pem: String,
    /// The private key (PKCS#8).
    pub key_pem: String,
}

/// A bearer token. Debug doesn't print it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Authority {
    /// Creates an authority with its own key.
    ///
    /// # Errors
    /// [`PkiError::Certificate`] if the key or the certificate cannot be generated.
    pub fn new(name: &str) -> Result<Self, PkiError> {
        let failed = |source| PkiError::Certificate {
            what: "authority",
            name: name.to_owned(),
            source,
        };
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(&format!("{name} authority"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().map_err(failed)?;
        let issuer = CertifiedIssuer::self_signed(params, key).map_err(failed)?;
        Ok(Self { issuer })
    }

    /// Returns the certificate of the authority as PEM, which clients trust.
    pub fn ca_pem(&self) -> String {
        self.issuer.pem()
    }

    /// Issues a server certificate for 127.0.0.1, localhost and further names or addresses.
    ///
    /// # Errors
    /// [`PkiError::Certificate`] if a name is malformed or the certificate cannot be generated.
    pub fn issue(&self, name: &str, more_names: &[&str]) -> Result<Identity, PkiError> {
        let failed = |source| PkiError::Certificate {
            what: "certificate",
            name: name.to_owned(),
            source,
        };
        let names: Vec<String> = ["127.0.0.1", "localhost"]
            .iter()
            .chain(more_names)
            .map(|name| (*name).to_owned())
            .collect();
        let mut params = CertificateParams::new(names).map_err(failed)?;
        params.distinguished_name = common_name(name);
        params.use_authority_key_identifier_extension = true;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?;
        Ok(Identity {
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
        })
    }
}

impl Token {
    /// Generates a token of 128 random bits.
    ///
    /// # Errors
    /// [`PkiError::Random`] if the operating system gives no random bytes.
    pub fn random() -> Result<Self, PkiError> {
        let bytes: [u8; 16] = random_bytes().map_err(PkiError::Random)?;
        Ok(Self(hex::encode(bytes)))
    }

    /// Wraps a known token.
    pub fn new(token: impl Into<String>) -> Self {
        Self(token.into())
    }

    /// Returns the token itself, for a header or a kubeconfig.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authority(..)")
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity(..)")
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The key pair that signs and verifies service account tokens, as PEM.
pub(crate) struct SigningKeys {
    pub(crate) private_pem: String,
    pub(crate) public_pem: String,
}

impl SigningKeys {
    pub(crate) fn new(name: &str) -> Result<Self, PkiError> {
        let key = KeyPair::generate().map_err(|source| PkiError::Certificate {
            what: "service account key",
            name: name.to_owned(),
            source,
        })?;
        Ok(Self {
            private_pem: key.serialize_pem(),
            public_pem: key.public_key_pem(),
        })
    }
}

/// Reads random bytes from the operating system.
pub(crate) fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_prints_no_secret() {
        let token = Token::random().unwrap();
        assert_eq!(token.reveal().len(), 32);
        assert!(!format!("{token:?}").contains(token.reveal()));
        assert_ne!(token, Token::random().unwrap());
        let identity = Authority::new("a").unwrap().issue("a", &[]).unwrap();
        assert!(!format!("{identity:?}").contains("PRIVATE"));
        assert!(identity.key_pem.contains("PRIVATE KEY"));
    }
}
