//! Reads the keys of a Sync's encrypted manifests from the Secret that the Sync names.

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use starling_api::{Decryption, DecryptionProvider};
use starling_render::{Identities, IdentityError};

use super::hub::{Hub, HubError};
use crate::controller::object_key::ObjectKey;

/// The suffix of the Secret's keys with age identities, as in Flux.
const SUFFIX: &str = ".agekey";

/// The error of the read of the keys.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// No Secret is named.
    #[error("spec.decryption.secretRef.name is empty; name a Secret with age identities")]
    Unnamed,
    /// The Secret does not exist.
    #[error("spec.decryption.secretRef: Secret {name:?} not found")]
    Missing {
        /// Name of the Secret.
        name: String,
    },
    /// The Secret has no key with this suffix.
    #[error(
        "spec.decryption.secretRef: Secret {name:?} has no key that ends in {SUFFIX} and holds an age identity"
    )]
    Empty {
        /// Name of the Secret.
        name: String,
    },
    /// The value of a key is not an age identity.
    #[error("spec.decryption.secretRef: Secret {name:?}, key {key:?}")]
    Malformed {
        /// Name of the Secret.
        name: String,
        /// The key.
        key: String,
        /// The error, with the line.
        #[source]
        source: IdentityError,
    },
    /// The Secret cannot be read.
    #[error(transparent)]
    Hub(#[from] HubError),
}

/// The keys, and the version of the Secret that has them.
#[derive(Debug)]
pub struct Keys {
    /// The identities that decrypt manifests.
    pub identities: Identities,
    /// UID and resourceVersion of the Secret: content that was decrypted with other keys must not be returned for these
    /// keys. A digest of the keys would allow guesses.
    pub made_from: String,
}

impl Keys {
    /// Reads the Secret that a Sync of `namespace` names.
    ///
    /// # Errors
    /// [`KeysError`].
    pub async fn read(hub: &Hub, namespace: &str, decryption: &Decryption) -> Result<Self, KeysError> {
        // The only provider. A second one does not compile without a decision here.
        let DecryptionProvider::Sops = decryption.provider;
        let name = decryption.secret_ref.name.as_str();
        if name.is_empty() {
            return Err(KeysError::Unnamed);
        }
        let secret = hub.secret(&ObjectKey::new(namespace, name)).await?;
        let secret = secret.ok_or_else(|| KeysError::Missing {
            name: name.to_owned(),
        })?;
        of_secret(name, &secret)
    }
}

fn of_secret(name: &str, secret: &Secret) -> Result<Keys, KeysError> {
    let mut identities = Identities::default();
    for (key, value) in secret
        .data
        .iter()
        .flatten()
        .filter(|(key, _)| key.ends_with(SUFFIX))
    {
        identities.add(&value.0).map_err(|source| KeysError::Malformed {
            name: name.to_owned(),
            key: key.clone(),
            source,
        })?;
    }
    if identities.is_empty() {
        return Err(KeysError::Empty {
            name: name.to_owned(),
        });
    }
    let made_from = format!(
        "{}/{}",
        secret.uid().unwrap_or_default(),
        secret.resource_version().unwrap_or_default()
    );
    Ok(Keys {
        identities,
        made_from,
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    fn secret(keys: &[(&str, &str)]) -> Secret {
        let data = keys
            .iter()
            .map(|(k, v)| ((*k).to_owned(), ByteString(v.as_bytes().to_vec())))
            .collect();
        let mut secret = Secret {
            data: Some(data),
            ..Secret::default()
        };
        secret.metadata.uid = Some("u".into());
        secret.metadata.resource_version = Some("7".into());
        secret
    }

    #[test]
    fn every_key_file_counts_and_nothing_else() {
        let keys = of_secret(
            "age",
            &secret(&[
                ("a.agekey", "AGE-SECRET-KEY-1A"),
                ("b.agekey", "# b\nAGE-SECRET-KEY-1B\n"),
                ("readme", "not a key"),
            ]),
        );
        let mut both = Identities::default();
        both.add(b"AGE-SECRET-KEY-1A\nAGE-SECRET-KEY-1B").unwrap();
        let keys = keys.unwrap();
        assert!(keys.identities == both);
        assert_eq!(keys.made_from, "u/7");
        assert!(!format!("{keys:?}").contains("AGE-SECRET"));
    }

    #[test]
    fn what_is_wrong_is_named_and_not_shown() {
        let none = of_secret("age", &secret(&[("key", "AGE-SECRET-KEY-1A")])).unwrap_err();
        assert!(none.to_string().contains("no key that ends in .agekey"));
        let wrong = of_secret("age", &secret(&[("a.agekey", "hunter2")])).unwrap_err();
        let text = crate::chain(&wrong);
        assert!(
            text.contains("\"a.agekey\": line 1 is not an age identity"),
            "{text}"
        );
        assert!(!text.contains("hunter2"));
    }
}
