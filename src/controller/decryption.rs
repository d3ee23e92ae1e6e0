//! The keys of a Sync's encrypted manifests, from the Secret that it names.

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use starling_api::{Decryption, DecryptionProvider};
use starling_render::{Identities, IdentityError};

use super::hub::{Hub, HubError};
use super::object_key::ObjectKey;

/// What the keys of a Secret that hold age identities end in, as Flux has them.
const SUFFIX: &str = ".agekey";

/// Why there are no keys.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// No Secret is named.
    #[error("spec.decryption.secretRef.name is empty; name a Secret with age identities")]
    Unnamed,
    /// The Secret does not exist.
    #[error("spec.decryption.secretRef: Secret {name:?} not found")]
    Missing {
        /// Its name.
        name: String,
    },
    /// The Secret has no key of the right name.
    #[error(
        "spec.decryption.secretRef: Secret {name:?} has no key that ends in {SUFFIX} and holds an age identity"
    )]
    Empty {
        /// Its name.
        name: String,
    },
    /// One of the keys holds something else.
    #[error("spec.decryption.secretRef: Secret {name:?}, key {key:?}")]
    Malformed {
        /// Its name.
        name: String,
        /// The key.
        key: String,
        /// Which line.
        #[source]
        source: IdentityError,
    },
    /// The Secret could not be read.
    #[error(transparent)]
    Hub(#[from] HubError),
}

/// Keys, and which version of which Secret they are from.
#[derive(Debug)]
pub struct Keys {
    /// What opens manifests.
    pub identities: Identities,
    /// UID and resourceVersion of the Secret: what was opened with other keys is not shown to whom has these. No digest
    /// of the keys, which would be something to try guesses on.
    pub made_from: String,
}

impl Keys {
    /// Reads the Secret that a Sync of `namespace` names.
    ///
    /// # Errors
    /// [`KeysError`].
    pub async fn read(hub: &Hub, namespace: &str, decryption: &Decryption) -> Result<Self, KeysError> {
        // One so far; another one is a decision here.
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
        assert!(text.contains("\"a.agekey\": line 1 is no age identity"), "{text}");
        assert!(!text.contains("hunter2"));
    }
}
