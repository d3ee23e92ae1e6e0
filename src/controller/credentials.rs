//! Creates clients of members from the Secrets that their Clusters name.

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use starling_api::{Cluster, ClusterSpec};
use starling_member::{KubeconfigError, Member, MemberConfig, MemberError, MemberLimits, Network};

use super::hub::{Hub, HubError};
use crate::controller::object_key::ObjectKey;

/// Keys that are tried if the Cluster names none. Flux and Cluster API use the same keys.
const KEYS: [&str; 3] = ["value", "value.yaml", "kubeconfig"];

/// The error of the creation of a client.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The Cluster names no Secret.
    #[error("spec.kubeConfig.secretRef.name is empty; name a Secret with a kubeconfig")]
    Unnamed,
    /// The Secret does not exist.
    #[error("spec.kubeConfig.secretRef: Secret {name:?} not found")]
    Missing {
        /// Name of the Secret.
        name: String,
    },
    /// The Secret has none of the keys.
    #[error("Secret {name:?} has no key {tried}")]
    NoKey {
        /// Name of the Secret.
        name: String,
        /// The keys that were tried.
        tried: String,
    },
    /// The value of the key is not text.
    #[error("Secret {name:?}, key {key:?}: the kubeconfig is not text")]
    NotText {
        /// Name of the Secret.
        name: String,
        /// The key.
        key: String,
    },
    /// The value of the key is not a valid kubeconfig.
    #[error("Secret {name:?}, key {key:?}")]
    Kubeconfig {
        /// Name of the Secret.
        name: String,
        /// The key.
        key: String,
        /// The problem with the kubeconfig.
        #[source]
        source: KubeconfigError,
    },
    /// No client can be created from the kubeconfig.
    #[error("Secret {name:?}, key {key:?}")]
    Client {
        /// Name of the Secret.
        name: String,
        /// The key.
        key: String,
        /// The error of the client.
        #[source]
        source: MemberError,
    },
    /// The Secret cannot be read.
    #[error(transparent)]
    Hub(#[from] HubError),
}

/// The Secret of a Cluster, and its key with the kubeconfig.
pub struct Credentials {
    secret: Secret,
    key: String,
}

impl Credentials {
    /// Reads the Secret that a Cluster names.
    ///
    /// # Errors
    /// [`CredentialsError`].
    pub async fn read(hub: &Hub, cluster: &Cluster) -> Result<Self, CredentialsError> {
        let name = cluster.spec.kube_config.secret_ref.name.as_str();
        if name.is_empty() {
            return Err(CredentialsError::Unnamed);
        }
        let namespace = cluster.namespace().unwrap_or_default();
        let secret = hub.secret(&ObjectKey::new(&namespace, name)).await?;
        let secret = secret.ok_or_else(|| CredentialsError::Missing {
            name: name.to_owned(),
        })?;
        let key = key_in(&cluster.spec, &secret)?.to_owned();
        Ok(Self { secret, key })
    }

    /// Returns the Secret.
    #[must_use]
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Returns the identity of the credentials. It changes with the Secret, its version and the key, and the client is
    /// then replaced.
    #[must_use]
    pub fn made_from(&self) -> String {
        made_from(&self.secret, &self.key)
    }

    /// Creates a client of the member.
    ///
    /// # Errors
    /// [`CredentialsError`].
    pub fn connect(&self, network: &Network) -> Result<Member, CredentialsError> {
        let (name, key) = (self.secret.name_any(), self.key.clone());
        let bytes = self.secret.data.as_ref().and_then(|data| data.get(&self.key));
        let bytes = bytes.map(|value| value.0.as_slice()).unwrap_or_default();
        let Ok(text) = std::str::from_utf8(bytes) else {
            return Err(CredentialsError::NotText { name, key });
        };
        let config = match MemberConfig::from_kubeconfig(text) {
            Ok(config) => config,
            Err(source) => return Err(CredentialsError::Kubeconfig { name, key, source }),
        };
        Member::connect_over(config, MemberLimits::default(), network)
            .map_err(|source| CredentialsError::Client { name, key, source })
    }
}

/// Returns [`Credentials::made_from`] for a Secret that was read in another way.
#[must_use]
pub fn made_from(secret: &Secret, key: &str) -> String {
    format!(
        "{}/{}/{key}",
        secret.uid().unwrap_or_default(),
        secret.resource_version().unwrap_or_default()
    )
}

fn key_in<'a>(spec: &'a ClusterSpec, secret: &Secret) -> Result<&'a str, CredentialsError> {
    let has = |key: &str| secret.data.as_ref().is_some_and(|data| data.contains_key(key));
    let wanted = spec.kube_config.secret_ref.key.as_str();
    let found = if wanted.is_empty() {
        KEYS.into_iter().find(|key| has(key))
    } else {
        Some(wanted).filter(|key| has(key))
    };
    found.ok_or_else(|| CredentialsError::NoKey {
        name: spec.kube_config.secret_ref.name.clone(),
        tried: if wanted.is_empty() {
            KEYS.join(", ")
        } else {
            wanted.to_owned()
        },
    })
}
