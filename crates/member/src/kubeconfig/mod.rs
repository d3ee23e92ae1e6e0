//! Reads a kubeconfig, strictly.
//!
//! A kubeconfig comes from a Secret that a tenant may have written, and many of its fields run programs, read files,
//! disable verification or impersonate other users. The fields are therefore an allow-list: any other field is refused,
//! with its path. No error contains a value, because any value may be a credential.

#[cfg(test)]
mod tests;
mod write;

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Map, Value};
use thiserror::Error;

use super::secret::Hidden;

pub use self::write::{Endpoint, KubeconfigText};

/// Maximum bytes of a kubeconfig: the size limit of a Secret.
const SIZE_LIMIT: usize = 1024 * 1024;

/// The address and credentials of one member. Debug shows the address only.
#[derive(Clone)]
pub struct MemberConfig {
    /// `https`, host, port and an optional path.
    pub(super) server: http::Uri,
    /// The certificate authorities (DER) of the member; `None` means those of the system.
    pub(super) certificate_authority: Option<Vec<Vec<u8>>>,
    /// The name in the certificate of the member, if it is not the host.
    pub(super) tls_server_name: Option<String>,
    /// Sent as `Authorization: Bearer`.
    pub(super) token: Option<Hidden>,
    /// Presented in the TLS handshake.
    pub(super) identity: Option<Identity>,
}

/// A client certificate and its key, both PEM in base64.
#[derive(Clone)]
pub(super) struct Identity {
    pub(super) certificate: String,
    pub(super) key: Hidden,
}

impl fmt::Debug for MemberConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemberConfig")
            .field("server", &self.server.to_string())
            .finish_non_exhaustive()
    }
}

/// Why a kubeconfig is refused. Paths read like `users[admin].exec`.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum KubeconfigError {
    /// More than a Secret can hold.
    #[error("the kubeconfig has {bytes} bytes, at most {SIZE_LIMIT} are read")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// Not YAML. The message of the parser is omitted, because it quotes the text.
    #[error("the kubeconfig is not valid YAML (line {line}, column {column})")]
    Yaml {
        /// Counted from 1; 0 if not known.
        line: u64,
        /// Counted from 1; 0 if not known.
        column: u64,
    },
    /// A field has the wrong type.
    #[error("{path} must be {expected}")]
    Type {
        /// The field.
        path: String,
        /// The required form.
        expected: &'static str,
    },
    /// A required field is missing.
    #[error("{path} is missing")]
    Missing {
        /// The field.
        path: String,
    },
    /// Two entries of the same name.
    #[error("{path} occurs more than once")]
    Duplicate {
        /// The entry.
        path: String,
    },
    /// No `current-context`, and not exactly one context.
    #[error("current-context is not set and there are {count} contexts, not one")]
    Ambiguous {
        /// The number of contexts.
        count: usize,
    },
    /// A field that is not on the allow-list.
    #[error("{path} is not allowed: {reason}")]
    Refused {
        /// The field.
        path: String,
        /// Why.
        reason: &'static str,
    },
    /// A field whose value is not usable.
    #[error("{path} {problem}")]
    Invalid {
        /// The field.
        path: String,
        /// The error in it.
        problem: &'static str,
    },
}

impl MemberConfig {
    /// Reads one context of a kubeconfig: `current-context`, or the only one. Other contexts, clusters and users are
    /// neither used nor checked. The namespace of the context is ignored.
    ///
    /// # Errors
    /// [`KubeconfigError`], without values.
    pub fn from_kubeconfig(text: &str) -> Result<Self, KubeconfigError> {
        if text.len() > SIZE_LIMIT {
            return Err(KubeconfigError::TooLarge { bytes: text.len() });
        }
        let root = match serde_saphyr::from_str::<Value>(text) {
            Ok(Value::Object(root)) => root,
            Ok(_) => return Err(wrong_type("the kubeconfig".into(), "a mapping")),
            Err(error) => {
                let location = error.location();
                return Err(KubeconfigError::Yaml {
                    line: location.map_or(0, |at| at.line()),
                    column: location.map_or(0, |at| at.column()),
                });
            }
        };
        let context = context(&root)?;
        let cluster = Section::named(&root, "clusters", "cluster", &context.required("cluster")?)?;
        let user = Section::named(&root, "users", "user", &context.required("user")?)?;
        cluster.check_fields(&CLUSTER_FIELDS)?;
        user.check_fields(&USER_FIELDS)?;
        let config = Self {
            server: server(&cluster)?,
            certificate_authority: certificate_authority(&cluster)?,
            tls_server_name: cluster.text("tls-server-name")?,
            token: token(&user)?,
            identity: identity(&user)?,
        };
        if config.token.is_none() && config.identity.is_none() {
            return Err(KubeconfigError::Missing {
                path: user.field("token"),
            });
        }
        Ok(config)
    }

    /// The address of the API server; contains no credentials.
    #[must_use]
    pub fn server(&self) -> String {
        self.server.to_string()
    }
}

/// How a field of a cluster or user is treated.
#[derive(Clone, Copy)]
enum Rule {
    /// Read elsewhere, or ignored.
    Allowed,
    /// Allowed only as `false`, which is the default.
    OnlyFalse(&'static str),
    /// Refused, with the reason.
    Refused(&'static str),
}

const UNKNOWN: &str = "the field is not known";
const READS_FILE: &str = "it names a file; put the content into the -data field";
const RUNS_PROGRAM: &str = "it runs a program";
const IMPERSONATES: &str = "Starling acts as the user of the kubeconfig only";
const BASIC: &str = "API servers do not take passwords; use a token or a client certificate";

const CLUSTER_FIELDS: [(&str, Rule); 8] = [
    ("server", Rule::Allowed),
    ("certificate-authority-data", Rule::Allowed),
    ("tls-server-name", Rule::Allowed),
    ("extensions", Rule::Allowed),
    ("disable-compression", Rule::Allowed),
    ("certificate-authority", Rule::Refused(READS_FILE)),
    (
        "proxy-url",
        Rule::Refused("connections go to the server directly"),
    ),
    (
        "insecure-skip-tls-verify",
        Rule::OnlyFalse("the member's certificate is always verified"),
    ),
];

const USER_FIELDS: [(&str, Rule); 16] = [
    ("token", Rule::Allowed),
    ("client-certificate-data", Rule::Allowed),
    ("client-key-data", Rule::Allowed),
    ("extensions", Rule::Allowed),
    ("exec", Rule::Refused(RUNS_PROGRAM)),
    ("auth-provider", Rule::Refused(RUNS_PROGRAM)),
    ("tokenFile", Rule::Refused("it names a file; use token")),
    ("client-certificate", Rule::Refused(READS_FILE)),
    ("client-key", Rule::Refused(READS_FILE)),
    ("as", Rule::Refused(IMPERSONATES)),
    ("as-uid", Rule::Refused(IMPERSONATES)),
    ("as-groups", Rule::Refused(IMPERSONATES)),
    ("as-user-extra", Rule::Refused(IMPERSONATES)),
    ("as-extra", Rule::Refused(IMPERSONATES)),
    ("username", Rule::Refused(BASIC)),
    ("password", Rule::Refused(BASIC)),
];

/// A mapping inside the kubeconfig, with its path for errors.
struct Section<'a> {
    path: String,
    fields: &'a Map<String, Value>,
}

impl<'a> Section<'a> {
    /// The body of the entry called `name` in one of the three lists of a kubeconfig.
    fn named(
        root: &'a Map<String, Value>,
        list: &'static str,
        body: &'static str,
        name: &str,
    ) -> Result<Self, KubeconfigError> {
        let path = format!("{list}[{}]", printable(name));
        let mut found =
            entries(root, list)?.filter(|entry| entry.get("name").and_then(Value::as_str) == Some(name));
        let entry = found
            .next()
            .ok_or_else(|| KubeconfigError::Missing { path: path.clone() })?;
        if found.next().is_some() {
            return Err(KubeconfigError::Duplicate { path });
        }
        match entry.get(body) {
            Some(Value::Object(fields)) => Ok(Self { path, fields }),
            None | Some(Value::Null) => Err(KubeconfigError::Missing {
                path: format!("{path}.{body}"),
            }),
            Some(_) => Err(wrong_type(format!("{path}.{body}"), "a mapping")),
        }
    }

    fn field(&self, name: &str) -> String {
        format!("{}.{}", self.path, printable(name))
    }

    /// Refuses every field that has a value and is not allowed.
    fn check_fields(&self, rules: &[(&str, Rule)]) -> Result<(), KubeconfigError> {
        for (name, value) in self.fields.iter().filter(|(_, value)| !value.is_null()) {
            let rule = rules
                .iter()
                .find(|(known, _)| known == name)
                .map(|(_, rule)| *rule);
            let reason = match rule {
                Some(Rule::Allowed) => continue,
                Some(Rule::OnlyFalse(_)) if *value == Value::Bool(false) => continue,
                Some(Rule::OnlyFalse(reason) | Rule::Refused(reason)) => reason,
                None => UNKNOWN,
            };
            return Err(KubeconfigError::Refused {
                path: self.field(name),
                reason,
            });
        }
        Ok(())
    }

    /// A text field; `None` if it is absent, null or empty.
    fn text(&self, name: &str) -> Result<Option<String>, KubeconfigError> {
        match self.fields.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) if text.is_empty() => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(wrong_type(self.field(name), "a string")),
        }
    }

    fn required(&self, name: &str) -> Result<String, KubeconfigError> {
        self.text(name)?.ok_or_else(|| KubeconfigError::Missing {
            path: self.field(name),
        })
    }

    /// A field with PEM in base64. Line breaks are skipped, as by the decoder of Go.
    fn pem(&self, name: &str) -> Result<Option<Vec<u8>>, KubeconfigError> {
        let Some(mut text) = self.text(name)? else {
            return Ok(None);
        };
        text.retain(|character| !matches!(character, '\r' | '\n'));
        let decoded = BASE64
            .decode(text.trim())
            .map_err(|_| self.invalid(name, "is not base64"))?;
        Ok(Some(decoded))
    }

    fn invalid(&self, name: &str, problem: &'static str) -> KubeconfigError {
        KubeconfigError::Invalid {
            path: self.field(name),
            problem,
        }
    }
}

fn entries<'a>(
    root: &'a Map<String, Value>,
    list: &'static str,
) -> Result<impl Iterator<Item = &'a Map<String, Value>>, KubeconfigError> {
    let items = match root.get(list) {
        None | Some(Value::Null) => &[],
        Some(Value::Array(items)) => items.as_slice(),
        Some(_) => return Err(wrong_type(list.into(), "a list")),
    };
    if !items.iter().all(Value::is_object) {
        return Err(wrong_type(format!("each entry of {list}"), "a mapping"));
    }
    Ok(items.iter().filter_map(Value::as_object))
}

fn context(root: &Map<String, Value>) -> Result<Section<'_>, KubeconfigError> {
    let top = Section {
        path: "kubeconfig".into(),
        fields: root,
    };
    let name = match top.text("current-context")? {
        Some(name) => name,
        None => {
            let names: Vec<_> = entries(root, "contexts")?.collect();
            let [only] = names.as_slice() else {
                return Err(KubeconfigError::Ambiguous { count: names.len() });
            };
            only.get("name")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        }
    };
    Section::named(root, "contexts", "context", &name)
}

fn server(cluster: &Section<'_>) -> Result<http::Uri, KubeconfigError> {
    let text = cluster.required("server")?;
    let invalid = |problem| cluster.invalid("server", problem);
    if text
        .chars()
        .any(|character| character.is_whitespace() || character.is_control() || character == '\\')
    {
        return Err(invalid(
            "contains white space, a control character or a backslash",
        ));
    }
    let url = url::Url::parse(&text).map_err(|_| invalid("is not a URL"))?;
    if url.scheme() != "https" {
        return Err(invalid("must start with https://"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(invalid("must not contain a user or password"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(invalid("must not contain a query or fragment"));
    }
    if url.host_str().is_none_or(str::is_empty) || url.port() == Some(0) {
        return Err(invalid("has no host, or port 0"));
    }
    url.as_str()
        .trim_end_matches('/')
        .parse()
        .map_err(|_| invalid("is not a URL"))
}

fn certificate_authority(cluster: &Section<'_>) -> Result<Option<Vec<Vec<u8>>>, KubeconfigError> {
    const FIELD: &str = "certificate-authority-data";
    let Some(pem) = cluster.pem(FIELD)? else {
        return Ok(None);
    };
    let certificates = CertificateDer::pem_slice_iter(&pem)
        .map(|certificate| certificate.map(|der| der.to_vec()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| cluster.invalid(FIELD, "is not PEM"))?;
    if certificates.is_empty() {
        return Err(cluster.invalid(FIELD, "contains no certificate"));
    }
    Ok(Some(certificates))
}

fn token(user: &Section<'_>) -> Result<Option<Hidden>, KubeconfigError> {
    let Some(token) = user.text("token")? else {
        return Ok(None);
    };
    // A line break after a token is a common mistake and never part of the token.
    let token = token.trim_end_matches(['\r', '\n']);
    if token.is_empty() || !token.chars().all(|character| character.is_ascii_graphic()) {
        return Err(user.invalid("token", "contains characters that no token has"));
    }
    Ok(Some(Hidden(token.to_owned())))
}

fn identity(user: &Section<'_>) -> Result<Option<Identity>, KubeconfigError> {
    const CERTIFICATE: &str = "client-certificate-data";
    const KEY: &str = "client-key-data";
    let (certificate, key) = match (user.pem(CERTIFICATE)?, user.pem(KEY)?) {
        (None, None) => return Ok(None),
        (Some(_), None) => {
            return Err(KubeconfigError::Missing {
                path: user.field(KEY),
            });
        }
        (None, Some(_)) => {
            return Err(KubeconfigError::Missing {
                path: user.field(CERTIFICATE),
            });
        }
        (Some(certificate), Some(key)) => (certificate, key),
    };
    CertificateDer::from_pem_slice(&certificate)
        .map_err(|_| user.invalid(CERTIFICATE, "contains no certificate in PEM"))?;
    PrivateKeyDer::from_pem_slice(&key).map_err(|_| user.invalid(KEY, "contains no private key in PEM"))?;
    Ok(Some(Identity {
        certificate: BASE64.encode(certificate),
        key: Hidden(BASE64.encode(key)),
    }))
}

fn wrong_type(path: String, expected: &'static str) -> KubeconfigError {
    KubeconfigError::Type { path, expected }
}

/// A name as it may occur in an error text: another user wrote it.
fn printable(name: &str) -> String {
    name.chars()
        .filter(|character| !character.is_control())
        .take(63)
        .collect()
}
