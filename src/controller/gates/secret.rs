//! The Secrets of gate tasks: the key that signs requests, credentials, and certificate authorities.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use k8s_openapi::ByteString;
use starling_core::gate::Evaluation;

use super::gate_task::GateTask;
use crate::controller::object_key::ObjectKey;

/// The values of a Secret. Has no `Debug`.
pub(super) struct Values {
    field: &'static str,
    name: String,
    values: BTreeMap<String, ByteString>,
}

/// Reads the Secret that `field` names. The Secret is read for each try, because it may be replaced while a gate waits.
/// A missing Secret is an error that ends when the Secret is created.
pub(super) async fn read(gate: &GateTask, field: &'static str, name: &str) -> Result<Values, Evaluation> {
    let key = ObjectKey::new(&gate.group.namespace, name);
    match gate.tools.hub.secret(&key).await {
        Ok(Some(secret)) => Ok(Values {
            field,
            name: name.to_owned(),
            values: secret.data.unwrap_or_default(),
        }),
        Ok(None) => Err(Evaluation::error(format!("{field}: Secret {name:?} not found"))),
        Err(error) => Err(Evaluation::error(crate::chain(&error))),
    }
}

impl Values {
    /// Returns the key that signs requests.
    pub(super) fn signing_key(&self) -> Result<&[u8], Evaluation> {
        match self.bytes("token") {
            Some(key) if !key.is_empty() => Ok(key),
            _ => Err(self.unusable("has no token")),
        }
    }

    /// Returns the value of the `Authorization` header; `None` if the Secret contains no credentials.
    pub(super) fn authorization(&self) -> Result<Option<String>, Evaluation> {
        match (
            self.text("username")?,
            self.text("password")?,
            self.text("bearerToken")?,
        ) {
            (None, None, None) => Ok(None),
            (None, None, Some(token)) => Ok(Some(format!("Bearer {token}"))),
            (Some(username), Some(password), None) => Ok(Some(format!(
                "Basic {}",
                BASE64.encode(format!("{username}:{password}"))
            ))),
            (Some(_), Some(_), Some(_)) => {
                Err(self.unusable("has username and password and bearerToken; one of them is needed"))
            }
            _ => Err(self.unusable("has one of username and password; both are needed")),
        }
    }

    /// Returns the trusted certificate authorities.
    pub(super) fn authorities(&self) -> Option<Vec<u8>> {
        self.values.get("ca.crt").map(|pem| pem.0.clone())
    }

    /// Replaces secret values in a text.
    pub(super) fn redact(&self, text: &str) -> String {
        let mut redacted = text.to_owned();
        for key in ["token", "password", "bearerToken"] {
            if let Some(value) = self.bytes(key).and_then(|value| std::str::from_utf8(value).ok())
                && !value.is_empty()
            {
                redacted = redacted.replace(value, "***");
            }
        }
        redacted
    }

    fn text(&self, key: &str) -> Result<Option<&str>, Evaluation> {
        let Some(bytes) = self.bytes(key) else {
            return Ok(None);
        };
        let text = std::str::from_utf8(bytes).map_err(|_| self.unusable("has a value that is not text"))?;
        Ok(Some(text))
    }

    /// Returns a value without trailing line breaks: `echo` appends one, and no credential ends in one.
    fn bytes(&self, key: &str) -> Option<&[u8]> {
        let mut bytes: &[u8] = &self.values.get(key)?.0;
        while let [rest @ .., b'\r' | b'\n'] = bytes {
            bytes = rest;
        }
        Some(bytes)
    }

    fn unusable(&self, problem: &str) -> Evaluation {
        Evaluation::error(format!("{}: Secret {:?} {problem}", self.field, self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(values: &[(&str, &str)]) -> Values {
        Values {
            field: "webhook.secretRef",
            name: "gates".into(),
            values: values
                .iter()
                .map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec())))
                .collect(),
        }
    }

    fn problem<T>(result: Result<T, Evaluation>) -> String {
        match result {
            Err(Evaluation::Error { message, .. }) => message,
            Err(other) => panic!("{other:?}"),
            Ok(_) => panic!("it is usable"),
        }
    }

    #[test]
    fn a_secret_signs_and_signs_in() {
        assert_eq!(
            values(&[("token", "hunter2\n")]).signing_key().unwrap(),
            b"hunter2"
        );
        let sign_in = |pairs: &[(&str, &str)]| values(pairs).authorization().unwrap();
        assert_eq!(sign_in(&[("ca.crt", "pem")]), None);
        assert_eq!(sign_in(&[("bearerToken", "t\r\n")]).as_deref(), Some("Bearer t"));
        assert_eq!(
            sign_in(&[("username", "u"), ("password", "p")]).as_deref(),
            Some("Basic dTpw")
        );
    }

    #[test]
    fn what_is_wrong_is_named_and_not_shown() {
        for pairs in [&[][..], &[("token", "\n")], &[("key", "hunter2")]] {
            let text = problem(values(pairs).signing_key());
            assert_eq!(text, "webhook.secretRef: Secret \"gates\" has no token");
        }
        for pairs in [
            &[("username", "hunter2")][..],
            &[
                ("username", "hunter2"),
                ("password", "hunter2"),
                ("bearerToken", "hunter2"),
            ],
            &[("username", "hunter2"), ("bearerToken", "hunter2")],
        ] {
            let text = problem(values(pairs).authorization());
            assert!(
                text.contains("Secret \"gates\" has") && !text.contains("hunter2"),
                "{text}"
            );
        }
        let redacted = values(&[("bearerToken", "hunter2\n")]).redact("no hunter2 here");
        assert_eq!(redacted, "no *** here");
    }
}
