//! Whether the admission policies of `deploy/manifests` are in force. While they are not, nobody knows who created an
//! approval or an operator action: it counts, and its `by` is shown as unverified.

use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::{Resource, ResourceExt};
use serde_json::Value;
use starling_api::conditions::POLICY_MISSING;
use starling_api::{FIRST_CREATED_AT, UNVERIFIED_BY};
use starling_core::admission_policy::{LivePolicyObject, Policies, PolicyObject};

use super::hub::{Hub, HubError};

/// The manifests with the policies.
const MANIFESTS: &str = include_str!("../../deploy/manifests/30-people.yaml");

/// The state of the policies as last read.
#[derive(Debug, Default)]
pub struct AdmissionPolicies {
    /// The state, and when it was first seen; `None`: an operator ignores the policies, so every `by` counts as
    /// verified.
    state: Mutex<Option<(Policies, Timestamp)>>,
}

impl AdmissionPolicies {
    /// Returns why the policies are not in force.
    #[must_use]
    pub fn missing(&self) -> Option<String> {
        match &*self.state() {
            Some((Policies::Missing { why }, _)) => Some(why.clone()),
            Some((Policies::InForce { .. }, _)) | None => None,
        }
    }

    /// Returns whether `by` of an object is not verified, and the object does not say so yet. What the controller has
    /// seen before was judged then, and its creation time changes with a restore to another API server. But who creates
    /// an object can write the mark of that too, so while the policies are missing, it counts for older objects only.
    #[must_use]
    pub fn is_unverified<K: ResourceExt>(&self, object: &K) -> bool {
        let Some((state, seen_at)) = &*self.state() else {
            return false;
        };
        let created_at = object
            .creation_timestamp()
            .map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        let has = |mark: &str| object.annotations().contains_key(mark);
        let is_judged = has(FIRST_CREATED_AT)
            && match state {
                Policies::InForce { .. } => true,
                Policies::Missing { .. } => created_at < *seen_at,
            };
        !has(UNVERIFIED_BY) && !is_judged && !state.admitted(created_at)
    }

    /// Reads the policies. Returns whether the state has changed. If the API server does not answer, the last state
    /// stays; if it refuses, nothing is known about the policies, which counts as missing.
    pub(super) async fn check(&self, hub: &Hub, now: Timestamp) -> bool {
        let state = match read(hub).await {
            Ok(state) => state,
            Err(error) if error.is_refused() || self.state().is_none() => Policies::Missing {
                why: crate::chain(&error),
            },
            Err(error) => {
                tracing::warn!(error = %crate::chain(&error), "admission policies not read");
                return false;
            }
        };
        let mut known = self.state();
        if known.as_ref().is_some_and(|(known, _)| *known == state) {
            return false;
        }
        match &state {
            Policies::InForce { .. } => tracing::info!("admission policies in force"),
            Policies::Missing { why } => {
                tracing::warn!(reason = POLICY_MISSING, %why, "admission policies not in force; `by` of approvals and operator actions is not verified");
            }
        }
        // API servers date objects in whole seconds.
        let seen_at = Timestamp::from_second(now.as_second()).unwrap_or(now);
        *known = Some((state, seen_at));
        true
    }

    fn state(&self) -> std::sync::MutexGuard<'_, Option<(Policies, Timestamp)>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn read(hub: &Hub) -> Result<Policies, HubError> {
    let mut objects = Vec::new();
    for (kind, name, shipped) in shipped() {
        let live = if kind == ValidatingAdmissionPolicy::kind(&()) {
            let found = hub.find_in_cluster::<ValidatingAdmissionPolicy>(&name).await?;
            found.map(|found| live(&found, &found.spec))
        } else {
            let found = hub
                .find_in_cluster::<ValidatingAdmissionPolicyBinding>(&name)
                .await?;
            found.map(|found| live(&found, &found.spec))
        };
        objects.push((shipped, live));
    }
    Ok(Policies::of(
        objects.iter().map(|(shipped, live)| (shipped, live.as_ref())),
    ))
}

fn live<K: ResourceExt>(object: &K, spec: &impl serde::Serialize) -> LivePolicyObject {
    LivePolicyObject {
        spec: serde_json::to_value(spec).unwrap_or_default(),
        created_at: object.creation_timestamp().map_or(Timestamp::MAX, |time| time.0),
        is_deleting: object.meta().deletion_timestamp.is_some(),
    }
}

/// Returns the kind, the name and the object of each policy and binding that Starling ships.
fn shipped() -> Vec<(String, String, PolicyObject)> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(MANIFESTS).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let policies = documents.into_iter().filter(|document| {
        let kind = document["kind"].as_str().unwrap_or_default();
        kind.starts_with(&*ValidatingAdmissionPolicy::kind(&()))
    });
    policies
        .map(|mut document| {
            let (kind, name) = (text(&document["kind"]), text(&document["metadata"]["name"]));
            let object = PolicyObject {
                what: format!("{kind} {name}"),
                spec: document["spec"].take(),
            };
            (kind, name, object)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use starling_api::RolloutAction;

    use super::*;
    use crate::controller::hub::testing;

    #[test]
    fn each_policy_is_shipped_with_its_binding() {
        let shipped = shipped();
        let names = |kind: &str| -> Vec<String> {
            let of_kind = shipped.iter().filter(|(of, _, _)| of == kind);
            of_kind.map(|(_, name, _)| name.clone()).collect()
        };
        let policies = names("ValidatingAdmissionPolicy");
        assert!(!policies.is_empty());
        assert_eq!(policies, names("ValidatingAdmissionPolicyBinding"));
        assert!(shipped.iter().all(|(_, _, object)| object.spec.is_object()));
    }

    #[tokio::test]
    async fn tenant_policies_that_cannot_be_read_verify_nothing_and_an_outage_changes_nothing() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let (since, lost_at) = (at(1_767_225_600), at(1_767_225_700));
        let action = |second, annotations: Value| -> RolloutAction {
            serde_json::from_value(serde_json::json!({
                "apiVersion": "starling.dev/v1alpha1", "kind": "RolloutAction",
                "metadata": {"name": "a", "creationTimestamp": at(second).to_string(), "annotations": annotations},
                "spec": {"group": "g", "rollout": 1, "action": "Pause", "by": "admin", "reason": "r"},
            }))
            .unwrap()
        };
        let seen = || serde_json::json!({FIRST_CREATED_AT: "2020-01-01T00:00:00Z"});
        let new = |second| action(second, Value::Null);
        let policies = AdmissionPolicies::default();
        assert!(!policies.is_unverified(&new(1_767_225_650)), "not checked");
        let in_force = testing::responding(move |parts, _| {
            let name = testing::name(parts);
            let kind = if parts.uri.path().contains("bindings") {
                "ValidatingAdmissionPolicyBinding"
            } else {
                "ValidatingAdmissionPolicy"
            };
            let shipped = shipped();
            let found = shipped.iter().find(|(of, known, _)| of == kind && known == name);
            let spec = found.map(|(_, _, object)| object.spec.clone());
            let metadata = serde_json::json!({"name": name, "creationTimestamp": since.to_string()});
            (
                200,
                serde_json::json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
                    "metadata": metadata, "spec": spec}),
            )
        });
        assert!(policies.check(&in_force, lost_at).await);
        assert!(!policies.is_unverified(&new(1_767_225_650)) && policies.missing().is_none());
        assert!(
            policies.is_unverified(&new(1_767_225_599)),
            "from before the policies"
        );
        assert!(!policies.is_unverified(&action(1_767_225_599, seen())));
        let away = testing::responding(|parts, _| testing::failure(parts, 500, "InternalError"));
        assert!(!policies.check(&away, lost_at).await);
        assert!(!policies.is_unverified(&new(1_767_225_650)));
        for (code, reason) in [(403, "Forbidden"), (404, "NotFound")] {
            policies.check(&in_force, lost_at).await;
            let hub = testing::responding(move |parts, _| testing::failure(parts, code, reason));
            assert!(policies.check(&hub, lost_at).await);
            assert!(policies.missing().is_some());
            assert!(policies.is_unverified(&new(1_767_225_800)));
            assert!(
                !policies.is_unverified(&action(1_767_225_650, seen())),
                "it was judged"
            );
            assert!(
                policies.is_unverified(&action(1_767_225_800, seen())),
                "a forged mark"
            );
            let told = serde_json::json!({UNVERIFIED_BY: "true"});
            assert!(
                !policies.is_unverified(&action(1_767_225_800, told)),
                "it says so"
            );
        }
    }
}
