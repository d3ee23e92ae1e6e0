//! Writes a kubeconfig that [`MemberConfig::from_kubeconfig`] accepts.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::json;

use super::super::secret::{Hidden, IssuedToken};
use super::{KubeconfigError, MemberConfig};

/// Name of the one cluster, user and context of a written kubeconfig.
const ENTRY: &str = "starling";
/// The placeholder of a token in a kubeconfig that is shown or checked.
const REDACTED: &str = "REDACTED";

/// The address of a member, and how its identity is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its address, `https://…`.
    pub server: String,
    /// The certificate authorities, in PEM.
    pub certificate_authority: Vec<u8>,
    /// The name in its certificate, if it is not the host.
    pub tls_server_name: Option<String>,
}

/// A kubeconfig with a token in it. Debug does not print it.
pub struct KubeconfigText(String);

impl KubeconfigText {
    /// Returns the text, for a Secret.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl Endpoint {
    /// Returns the kubeconfig for this endpoint with a placeholder instead of the token.
    #[must_use]
    pub fn redacted(&self) -> String {
        self.text(REDACTED)
    }

    /// Returns the configuration of a client that uses `token`.
    ///
    /// # Errors
    /// [`KubeconfigError`] as for any kubeconfig: the address or the certificates are not usable.
    pub fn with_token(&self, token: &IssuedToken) -> Result<MemberConfig, KubeconfigError> {
        MemberConfig::from_kubeconfig(&self.text(token.reveal()))
    }

    /// Checks whether a client can be created for this endpoint, whatever the token.
    ///
    /// # Errors
    /// [`KubeconfigError`] names the field that is not usable.
    pub fn check(&self) -> Result<(), KubeconfigError> {
        MemberConfig::from_kubeconfig(&self.redacted()).map(|_| ())
    }

    fn text(&self, token: &str) -> String {
        let mut cluster = json!({
            "server": self.server,
            "certificate-authority-data": BASE64.encode(&self.certificate_authority),
        });
        if let Some(name) = &self.tls_server_name {
            cluster["tls-server-name"] = name.as_str().into();
        }
        text(&cluster, token)
    }
}

impl MemberConfig {
    /// Returns a kubeconfig for the same member with another token as the only credential.
    ///
    /// # Errors
    /// [`KubeconfigError`] if the token has invalid characters.
    pub fn renewed(&self, token: &IssuedToken) -> Result<KubeconfigText, KubeconfigError> {
        let text = Self {
            token: Some(Hidden(token.reveal().to_owned())),
            ..self.clone()
        }
        .to_kubeconfig();
        Self::from_kubeconfig(text.reveal())?;
        Ok(text)
    }

    /// Returns the kubeconfig of a member that authenticates with a token.
    #[must_use]
    pub fn to_kubeconfig(&self) -> KubeconfigText {
        let mut cluster = json!({"server": self.server()});
        if let Some(certificates) = &self.certificate_authority {
            let pem: String = certificates.iter().map(|der| pem(der)).collect();
            cluster["certificate-authority-data"] = BASE64.encode(pem).into();
        }
        if let Some(name) = &self.tls_server_name {
            cluster["tls-server-name"] = name.as_str().into();
        }
        let token = self.token.as_ref().map_or("", |token| token.0.as_str());
        KubeconfigText(text(&cluster, token))
    }
}

impl fmt::Debug for KubeconfigText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KubeconfigText(..)")
    }
}

fn text(cluster: &serde_json::Value, token: &str) -> String {
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": ENTRY, "cluster": cluster}],
        "users": [{"name": ENTRY, "user": {"token": token}}],
        "contexts": [{"name": ENTRY, "context": {"cluster": ENTRY, "user": ENTRY}}],
        "current-context": ENTRY,
    });
    // A mapping of strings always serialises; JSON would be read as well.
    serde_saphyr::to_string(&kubeconfig).unwrap_or_else(|_| kubeconfig.to_string())
}

/// One certificate as PEM.
fn pem(der: &[u8]) -> String {
    let encoded = BASE64.encode(der);
    let lines: Vec<&str> = encoded
        .as_bytes()
        .chunks(64)
        .filter_map(|line| std::str::from_utf8(line).ok())
        .collect();
    format!(
        "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
        lines.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use starling_controlplane::Authority;

    use super::*;

    fn endpoint() -> Endpoint {
        Endpoint {
            server: "https://eu-1.example.com:6443".into(),
            certificate_authority: Authority::new("a").unwrap().ca_pem().into_bytes(),
            tls_server_name: Some("kubernetes.default".into()),
        }
    }

    fn issued(token: &str) -> IssuedToken {
        IssuedToken::new(token.to_owned(), jiff::Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_written_kubeconfig_is_read_again() {
        let config = endpoint().with_token(&issued("first")).unwrap();
        let renewed = config.renewed(&issued("second")).unwrap();
        let again = MemberConfig::from_kubeconfig(renewed.reveal()).unwrap();
        assert_eq!(again.server, config.server);
        assert_eq!(again.certificate_authority, config.certificate_authority);
        assert!(again.certificate_authority.is_some_and(|found| found.len() == 1));
        assert_eq!(again.tls_server_name.as_deref(), Some("kubernetes.default"));
        assert_eq!(again.token.map(|token| token.0).as_deref(), Some("second"));
        assert!(!renewed.reveal().contains("first"));
    }

    /// A member may respond with any text; an invalid token must not be written to the Secret.
    #[test]
    fn an_invalid_token_is_refused() {
        let config = endpoint().with_token(&issued("first")).unwrap();
        for token in ["", "a b", "a\nclient-key-data: x", "ä"] {
            let error = config.renewed(&issued(token)).expect_err(token);
            assert!(
                !format!("{error}{error:?}").contains("client-key-data: x"),
                "{error}"
            );
        }
    }

    #[test]
    fn an_unusable_endpoint_is_refused_and_no_token_is_printed() {
        let bad = Endpoint {
            server: "http://plain.example.com".into(),
            ..endpoint()
        };
        assert!(
            bad.check()
                .unwrap_err()
                .to_string()
                .contains("server must start with https://")
        );
        let no_certificates = Endpoint {
            certificate_authority: b"none".to_vec(),
            ..endpoint()
        };
        assert!(
            no_certificates
                .check()
                .unwrap_err()
                .to_string()
                .contains("certificate-authority-data")
        );
        endpoint().check().unwrap();
        let config = endpoint().with_token(&issued("s3cret")).unwrap();
        let text = config.to_kubeconfig();
        assert!(!format!("{text:?} {config:?} {:?}", issued("s3cret")).contains("s3cret"));
        assert!(!endpoint().redacted().contains("s3cret"));
    }
}
