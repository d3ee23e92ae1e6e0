//! The cache of origins: the address and credentials of each Source, from its spec and Secret.

use k8s_openapi::api::core::v1::Secret;
use starling_api::{Source, referenced};
use starling_git::{Credential, RepoAccess, RepoUrl, UrlError};

use crate::controller::artifacts::Origin;
use crate::controller::hub::{Hub, HubError};
use crate::controller::keyed::{Keyed, per_object};
use crate::controller::object_key::ObjectKey;

/// The error of the address or the credentials of a Source.
#[derive(Debug, thiserror::Error)]
pub enum OriginError {
    /// The URL is not acceptable.
    #[error("spec.url")]
    Url(#[from] UrlError),
    /// The Secret does not exist.
    #[error("spec.secretRef: Secret {name:?} not found")]
    SecretMissing {
        /// Name of the Secret.
        name: String,
    },
    /// The Secret has no supported keys, or only one key of a pair.
    #[error("spec.secretRef: Secret {name:?} {problem}")]
    SecretUnusable {
        /// Name of the Secret.
        name: String,
        /// The problem with the keys of the Secret.
        problem: &'static str,
    },
    /// The Secret cannot be read.
    #[error(transparent)]
    Hub(#[from] HubError),
}

/// The known origins, so that an attempt does not read the Secret again.
#[derive(Debug, Default)]
pub struct OriginCache {
    known: Keyed<CachedOrigin>,
}

/// An origin, and the generation of the Source that it is for.
#[derive(Clone, Debug)]
struct CachedOrigin {
    generation: Option<i64>,
    origin: Origin,
}

per_object!(OriginCache, known);

impl OriginCache {
    /// Reads the Secret and replaces the origin of a Source.
    ///
    /// # Errors
    /// [`OriginError`].
    pub async fn refresh(
        &self,
        hub: &Hub,
        source: &Source,
        allow_insecure: bool,
    ) -> Result<Origin, OriginError> {
        let key = ObjectKey::of(source);
        let url = RepoUrl::parse(&source.spec.url, allow_insecure)?;
        let access = match referenced(source.spec.secret_ref.as_ref()) {
            None => RepoAccess::new(url, Credential::None),
            Some(name) => {
                let secret_key = ObjectKey::new(&key.namespace, name);
                let secret = hub.secret(&secret_key).await?;
                let secret = secret.ok_or_else(|| OriginError::SecretMissing {
                    name: name.to_owned(),
                })?;
                with_secret(url, name, &secret)?.with_secret(secret_key.to_string())
            }
        };
        let origin = Origin::Git(access.with_reader(key.to_string()));
        self.set(source, origin.clone());
        Ok(origin)
    }

    /// Sets the origin of a Source, independent of its spec.
    pub fn set(&self, source: &Source, origin: Origin) {
        let generation = source.metadata.generation;
        self.known
            .set(&ObjectKey::of(source), CachedOrigin { generation, origin });
    }

    /// Returns the known origin for this generation of the Source, or reads the Secret.
    ///
    /// # Errors
    /// [`OriginError`].
    pub async fn get(&self, hub: &Hub, source: &Source, allow_insecure: bool) -> Result<Origin, OriginError> {
        let known = self.known.get(&ObjectKey::of(source));
        match known {
            Some(known) if known.generation == source.metadata.generation => Ok(known.origin),
            Some(_) | None => self.refresh(hub, source, allow_insecure).await,
        }
    }
}

/// Returns the store key of the origin of a Source, as [`Origin::store_key`], without its credentials; `None` if the
/// address is invalid.
#[must_use]
pub fn store_key(source: &Source, allow_insecure: bool) -> Option<String> {
    let namespace = ObjectKey::of(source).namespace;
    let secret = referenced(source.spec.secret_ref.as_ref());
    let secret = secret.map(|name| ObjectKey::new(namespace, name).to_string());
    let url = RepoUrl::parse(&source.spec.url, allow_insecure).ok()?;
    Some(url.mirror_key(secret.as_deref()))
}

fn with_secret(url: RepoUrl, name: &str, secret: &Secret) -> Result<RepoAccess, OriginError> {
    let unusable = |problem| OriginError::SecretUnusable {
        name: name.to_owned(),
        problem,
    };
    let text = |key: &str| -> Result<Option<String>, OriginError> {
        let Some(bytes) = secret.data.as_ref().and_then(|data| data.get(key)) else {
            return Ok(None);
        };
        // `echo` appends a line break; no credential ends in one.
        String::from_utf8(bytes.0.clone())
            .map(|text| Some(text.trim_end_matches(['\r', '\n']).to_owned()))
            .map_err(|_| unusable("has a value that is not text"))
    };
    let credential = match (text("username")?, text("password")?, text("bearerToken")?) {
        (None, None, Some(token)) => Credential::Bearer(token),
        (Some(username), Some(password), None) => Credential::Basic { username, password },
        (None, None, None) => Credential::None,
        (Some(_), None, _) | (None, Some(_), _) => {
            return Err(unusable("has one of username and password; both are needed"));
        }
        (Some(_), Some(_), Some(_)) => {
            return Err(unusable(
                "has username and password and bearerToken; one of them is needed",
            ));
        }
    };
    let access = RepoAccess::new(url, credential);
    match secret.data.as_ref().and_then(|data| data.get("ca.crt")) {
        Some(pem) => Ok(access.with_ca_pem(pem.0.clone())),
        None => Ok(access),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use serde_json::json;

    use super::*;
    use crate::controller::hub::testing::responding;

    fn secret(keys: &[(&str, &str)]) -> Secret {
        let data = keys
            .iter()
            .map(|(k, v)| ((*k).to_owned(), ByteString(v.as_bytes().to_vec())))
            .collect();
        Secret {
            data: Some(data),
            ..Secret::default()
        }
    }

    fn access(keys: &[(&str, &str)]) -> Result<RepoAccess, OriginError> {
        with_secret(
            RepoUrl::parse("https://example.com/r.git", false).unwrap(),
            "s",
            &secret(keys),
        )
    }

    #[test]
    fn keys_of_the_contract_are_understood() {
        let url = || RepoUrl::parse("https://example.com/r.git", false).unwrap();
        let basic = Credential::Basic {
            username: "u".into(),
            password: "p".into(),
        };
        assert!(
            access(&[("username", "u\n"), ("password", "p\r\n")]).unwrap() == RepoAccess::new(url(), basic)
        );
        assert!(
            access(&[("bearerToken", "t")]).unwrap()
                == RepoAccess::new(url(), Credential::Bearer("t".into()))
        );
        let trusting = RepoAccess::new(url(), Credential::None).with_ca_pem(b"pem".to_vec());
        assert!(access(&[("ca.crt", "pem")]).unwrap() == trusting);
    }

    /// Housekeeping computes the keys from the specs. If they were not those of the origins, it would delete all
    /// mirrors.
    #[tokio::test]
    async fn the_key_of_an_origin_is_that_of_its_spec_whatever_its_secret_contains() {
        let source = |secret: &str| -> Source {
            serde_json::from_value(json!({
                "apiVersion": "starling.dev/v1alpha1", "kind": "Source",
                "metadata": {"name": "app", "namespace": "shop"},
                "spec": {"url": "https://git.example/app.git/", "ref": {"branch": "main"}, "secretRef": {"name": secret}},
            }))
            .unwrap()
        };
        let mut keys = std::collections::BTreeSet::new();
        for secret in ["git", "other", ""] {
            for token in ["one", "two"] {
                let hub = responding(move |_, _| {
                    let metadata = json!({"name": secret, "namespace": "shop"});
                    (
                        200,
                        json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata,
                        "data": {"bearerToken": ByteString(token.into())}}),
                    )
                });
                let source = source(secret);
                let origin = OriginCache::default()
                    .refresh(&hub, &source, false)
                    .await
                    .unwrap();
                assert_eq!(Some(origin.store_key()), store_key(&source, false));
                assert_eq!(origin.reader(), "shop/app");
                keys.insert(origin.store_key());
            }
        }
        assert_eq!(keys.len(), 3, "one for each name");
        let mut invalid = source("git");
        invalid.spec.url = "http://git.example/app.git".to_owned();
        assert_eq!(store_key(&invalid, false), None);
    }

    #[test]
    fn half_a_credential_is_refused_without_showing_it() {
        for keys in [
            &[("username", "hunter2")][..],
            &[("password", "hunter2")],
            &[
                ("username", "hunter2"),
                ("password", "hunter2"),
                ("bearerToken", "hunter2"),
            ],
        ] {
            let error = access(keys).unwrap_err();
            assert!(matches!(error, OriginError::SecretUnusable { .. }));
            assert!(!format!("{error} {error:?}").contains("hunter2"));
        }
    }
}
