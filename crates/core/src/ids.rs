//! Identifiers and names that cross functions. Each one has a type, so that none is passed for another. Each one can be
//! read as its text; a text becomes an identifier only where its kind is named.
//!
//! All of them are serialised as the plain text or number: the types change no stored form.
//!
//! ```compile_fail
//! use starling_core::ids::{ClusterId, OwnerLabel};
//!
//! fn records(cluster: &ClusterId, owner: &OwnerLabel) {}
//!
//! let (cluster, owner) = (ClusterId::new("c"), OwnerLabel::new("o"));
//! records(&owner, &cluster);
//! ```

use std::borrow::Borrow;
use std::fmt;
use std::num::ParseIntError;
use std::ops::Deref;
use std::str::FromStr;

use kube_core::ResourceExt;
use serde::{Deserialize, Serialize};
use starling_api::{Cluster, RolloutStatus};

/// Declares an identifier that is a text.
macro_rules! text_id {
    ($(#[$about:meta])* $id:ident) => {
        $(#[$about])*
        #[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $id(String);

        /// The text in quotation marks, as messages show it.
        impl fmt::Debug for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl $id {
            /// Creates the identifier from its text.
            #[must_use]
            pub fn new(text: impl Into<String>) -> Self {
                Self(text.into())
            }

            /// Returns the text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// Reports whether the identifier is not known.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.0.is_empty()
            }

            /// Returns the text, for a place that stores it.
            #[must_use]
            pub fn into_string(self) -> String {
                self.0
            }

        }

        impl From<&str> for $id {
            fn from(text: &str) -> Self {
                Self::new(text)
            }
        }

        impl From<String> for $id {
            fn from(text: String) -> Self {
                Self(text)
            }
        }

        impl From<&String> for $id {
            fn from(text: &String) -> Self {
                Self(text.clone())
            }
        }

        impl From<$id> for String {
            fn from(id: $id) -> Self {
                id.0
            }
        }

        impl From<&$id> for String {
            fn from(id: &$id) -> Self {
                id.0.clone()
            }
        }

        impl Deref for $id {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $id {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $id {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl PartialEq<str> for $id {
            fn eq(&self, text: &str) -> bool {
                self.0 == text
            }
        }

        impl PartialEq<&str> for $id {
            fn eq(&self, text: &&str) -> bool {
                self.0 == *text
            }
        }

        impl PartialEq<String> for $id {
            fn eq(&self, text: &String) -> bool {
                self.0 == *text
            }
        }

        impl PartialEq<$id> for str {
            fn eq(&self, id: &$id) -> bool {
                self == id.0
            }
        }

        impl PartialEq<$id> for &str {
            fn eq(&self, id: &$id) -> bool {
                **self == *id.0
            }
        }

        impl PartialEq<$id> for String {
            fn eq(&self, id: &$id) -> bool {
                *self == id.0
            }
        }

        impl fmt::Display for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_id! {
    /// The UID of an object of the management cluster; empty for an object that the API server has not stored.
    Uid
}

text_id! {
    /// The ID of a member: the UID of its `kube-system` namespace. Empty while no probe has read it.
    ClusterId
}

text_id! {
    /// The value of the owner label of a Sync's objects ([`crate::target::owner`]).
    OwnerLabel
}

text_id! {
    /// The ID of a group, which outlives its object (`status.identity.id`; [`crate::identity`]). Empty for a group
    /// without an identity.
    GroupId
}

text_id! {
    /// The name of a Cluster, within the namespace of what refers to it.
    ClusterName
}

text_id! {
    /// The name of an entry in `spec.syncs` of its group.
    EntryName
}

text_id! {
    /// The name of a Sync, within the namespace of its group.
    SyncName
}

text_id! {
    /// The digest of what one Sync has to apply ([`crate::target::of_sync`]).
    TargetDigest
}

text_id! {
    /// The digest of a release over all its entries ([`crate::target::of_release`]).
    ReleaseDigest
}

text_id! {
    /// The ID of an installation, which is stored in the management cluster and is part of every owner label.
    InstallationId
}

impl Uid {
    /// Returns the UID of an object.
    #[must_use]
    pub fn of<K: ResourceExt>(object: &K) -> Self {
        Self(object.uid().unwrap_or_default())
    }
}

impl ClusterId {
    /// Returns the ID in the status of a Cluster.
    #[must_use]
    pub fn of(cluster: &Cluster) -> Self {
        Self::new(
            cluster
                .status
                .as_ref()
                .map_or("", |status| status.cluster_id.as_str()),
        )
    }
}

/// The number of a rollout within its group (`status.rollout.id`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RolloutNumber(i64);

impl RolloutNumber {
    /// Creates the number, as status has it.
    #[must_use]
    pub const fn new(number: i64) -> Self {
        Self(number)
    }

    /// Returns the number of a rollout in status.
    #[must_use]
    pub const fn of(rollout: &RolloutStatus) -> Self {
        Self(rollout.id)
    }

    /// Returns the number, as status has it.
    #[must_use]
    pub const fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for RolloutNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for RolloutNumber {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        text.parse().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages quote names with `{:?}`.
    #[test]
    fn the_debug_form_is_that_of_the_text() {
        assert_eq!(format!("{:?}", EntryName::new("web")), format!("{:?}", "web"));
    }

    /// The journal, the ledger and status store identifiers: a type must not change what is stored.
    #[test]
    fn identifiers_are_serialised_as_plain_values() {
        let text = serde_json::to_string(&(GroupId::new("g"), RolloutNumber::new(7))).unwrap();
        assert_eq!(text, r#"["g",7]"#);
        let read: (GroupId, RolloutNumber) = serde_json::from_str(&text).unwrap();
        assert_eq!(read, (GroupId::new("g"), RolloutNumber::new(7)));
        assert_eq!("7".parse(), Ok(RolloutNumber::new(7)));
        assert!("seven".parse::<RolloutNumber>().is_err());
    }
}
