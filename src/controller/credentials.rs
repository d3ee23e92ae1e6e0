//! Clients of members, from the Secrets that their Clusters name.

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use starling_api::{Cluster, ClusterSpec};
use starling_member::{KubeconfigError, Member, MemberConfig, MemberError, MemberLimits, Network};

use super::cache::ObjectKey;
use super::hub::{Hub, HubError};

/// Keys of the Secret that are tried where the Cluster names none, as Flux and Cluster API have them.
const KEYS: [&str; 3] = ["value", "value.yaml", "kubeconfig"];

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The Cluster names no Secret.
    #[error("spec.kubeConfig.secretRef.name is empty; name a Secret with a kubeconfig")]
    Unnamed,
    /// The Secret does not exist.
    #[error("spec.kubeConfig.secretRef: Secret {name:?} not found")]
    Missing {
        /// Its name.
        name: String,
    },
    /// The Secret has none of the keys.
    #[error("Secret {name:?} has no key {tried}")]
    NoKey {
        /// Its name.
        name: String,
        /// The keys that were tried.
        tried: String,
    },
    /// What the key holds is not text.
    #[error("Secret {name:?}, key {key:?}: the kubeconfig is not text")]
    NotText {
        /// Name of the Secret.
        name: String,
        /// The key.
        key: String,
    },
    /// What the key holds is not acceptable.
    #[error("Secret {name:?}, key {key:?}")]
    Kubeconfig {
        /// Name of the Secret.
        name: String,
        /// The key.
        key: String,
        /// What is wrong with it.
        #[source]
        source: KubeconfigError,
    },
    /// No client can be made of it.
    #[error("Secret {name:?}, key {key:?}")]
    Client {
        /// Name of the Secret.
        name: String,
        /// The key.
        key: String,
        /// Why.
        #[source]
        source: MemberError,
    },
    /// The Secret could not be read.
    #[error(transparent)]
    Hub(#[from] HubError),
}

/// The Secret of a Cluster, and the key of it that holds the kubeconfig.
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

    /// The Secret.
    #[must_use]
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// What a client of these is made from: another Secret, another version of it or another key give another one.
    #[must_use]
    pub fn made_from(&self) -> String {
        made_from(&self.secret, &self.key)
    }

    /// A client of the member.
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

/// As [`Credentials::made_from`], of a Secret that was read otherwise.
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
