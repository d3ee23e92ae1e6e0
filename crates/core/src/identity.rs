//! The identity of a group, which outlives its object (ADR 44).
//!
//! A restore to another API server gives every object a new UID and a new creation time. What refers to a group from
//! outside of its object therefore uses the identity in its status, which a restore keeps, and which a new group with
//! the same name lacks.

use jiff::Timestamp;
use kube_core::ResourceExt as _;
use starling_api::{GroupIdentity, SyncGroup};

use crate::ids::{GroupId, InstallationId, Uid};
use crate::target::group_id;

/// Returns the identity of a group: that in its status, or that of its object. A status that was copied from another
/// group, or that is from another installation, has no identity of this group.
#[must_use]
pub fn of_group(installation: &InstallationId, group: &SyncGroup) -> GroupIdentity {
    let (namespace, name) = (group.namespace().unwrap_or_default(), group.name_any());
    let id = |uid: &str| group_id(installation, &namespace, &name, &Uid::new(uid)).into_string();
    let known = group.status.as_ref().and_then(|status| status.identity.as_ref());
    if let Some(known) = known.filter(|known| known.id == id(&known.uid)) {
        return known.clone();
    }
    let uid = group.uid().unwrap_or_default();
    GroupIdentity {
        id: id(&uid),
        uid,
        creation_time: created(group).to_string(),
    }
}

/// Returns the ID of a group; see [`of_group`].
#[must_use]
pub fn id_of(installation: &InstallationId, group: &SyncGroup) -> GroupId {
    GroupId::new(of_group(installation, group).id)
}

/// Returns the identity in the status of a group, for readers that do not know the installation.
#[must_use]
pub fn known_id(group: &SyncGroup) -> Option<GroupId> {
    let identity = group.status.as_ref()?.identity.as_ref()?;
    Some(GroupId::new(identity.id.as_str())).filter(|id| !id.is_empty())
}

/// Returns the creation time of the object that first had the identity of a group.
#[must_use]
pub fn created_at(group: &SyncGroup) -> Timestamp {
    let known = group.status.as_ref().and_then(|status| status.identity.as_ref());
    let first = known.and_then(|known| known.creation_time.parse().ok());
    first.unwrap_or_else(|| created(group))
}

fn created(group: &SyncGroup) -> Timestamp {
    let time = group.creation_timestamp();
    time.map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn group(name: &str, uid: &str, created: &str, status: &Value) -> SyncGroup {
        serde_json::from_value(json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup",
            "metadata": {"namespace": "fleet", "name": name, "uid": uid, "creationTimestamp": created},
            "spec": {"clusterSelector": {}}, "status": status,
        }))
        .unwrap()
    }

    const DAY_1: &str = "2026-01-01T00:00:00Z";
    const DAY_7: &str = "2026-01-07T00:00:00Z";

    #[test]
    fn a_restore_to_another_api_server_keeps_the_identity() {
        let first = of_group(&InstallationId::new("i"), &group("shop", "u1", DAY_1, &json!({})));
        assert_eq!((first.uid.as_str(), first.id.len()), ("u1", 32));
        let restored = group("shop", "u2", DAY_7, &json!({"identity": first}));
        assert_eq!(of_group(&InstallationId::new("i"), &restored), first);
        assert_eq!(created_at(&restored).to_string(), DAY_1);
        let again = group(
            "shop",
            "u3",
            DAY_7,
            &json!({"identity": of_group(&InstallationId::new("i"), &restored)}),
        );
        assert_eq!(
            of_group(&InstallationId::new("i"), &again),
            first,
            "restored twice"
        );
    }

    #[test]
    fn another_group_has_another_identity() {
        let first = of_group(&InstallationId::new("i"), &group("shop", "u1", DAY_1, &json!({})));
        let recreated = of_group(&InstallationId::new("i"), &group("shop", "u2", DAY_7, &json!({})));
        assert_ne!(recreated.id, first.id, "deleted and created again");
        assert_eq!(recreated.creation_time, DAY_7);
        // The status was copied with the object.
        let copied = of_group(
            &InstallationId::new("i"),
            &group("web", "u3", DAY_7, &json!({"identity": first})),
        );
        assert_ne!(copied.id, first.id, "another name");
        assert_eq!(copied.uid, "u3");
        let elsewhere = of_group(
            &InstallationId::new("j"),
            &group("shop", "u1", DAY_1, &json!({"identity": first})),
        );
        assert_ne!(elsewhere.id, first.id, "another installation");
    }
}
