//! Validates Syncs. Pure: attempts and checks take a [`ValidSync`], and only this module creates one.

use std::borrow::Cow;

use starling_api::SyncSpec;
use starling_core::account::{AccountRequired, AccountRules};
use starling_core::expand::ParameterError;
use starling_core::ignore::{IgnoreError, IgnoreRules};
use starling_core::unimplemented;

use super::super::not_implemented;
use super::observe::SyncSnapshot;
use super::resolve::resolve;

/// The reason of a Sync without a ServiceAccount, where the operator requires one.
pub(super) const SERVICE_ACCOUNT_REQUIRED: &str = "ServiceAccountRequired";

/// A Sync that can be applied: not suspended, no unimplemented fields, all parameters resolved.
pub(super) struct ValidSync<'a> {
    pub(super) observed: &'a SyncSnapshot,
    /// The spec with resolved `$(cluster.*)` parameters.
    pub(super) spec: Cow<'a, SyncSpec>,
    /// Rules for fields that are not applied.
    pub(super) ignore: IgnoreRules,
}

/// The reason why a Sync is not applied until the Sync or its Cluster is edited.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SyncBlocked {
    /// `suspend`.
    #[error("suspended: nothing is applied")]
    Suspended,
    /// Fields of the contract that are not implemented (I10).
    #[error("{}", not_implemented(.0))]
    NotImplemented(Vec<String>),
    /// A parameter that cannot be resolved for this cluster.
    #[error("spec.{0}")]
    Parameter(ParameterError),
    /// The Sync names no account, and the operator requires one.
    #[error("spec.{0}")]
    Account(AccountRequired),
    /// An element of `ignore` that cannot be parsed.
    #[error("spec.{0}")]
    Ignore(IgnoreError),
}

impl SyncBlocked {
    /// Returns the reason of Ready.
    pub(super) const fn reason(&self) -> &'static str {
        match self {
            Self::Suspended => "Suspended",
            Self::NotImplemented(_) => "NotImplemented",
            Self::Parameter(_) => "InvalidParameters",
            Self::Account(_) => SERVICE_ACCOUNT_REQUIRED,
            Self::Ignore(_) => "InvalidSpec",
        }
    }
}

/// Validates the observations.
///
/// # Errors
/// The first [`SyncBlocked`], in the order of the variants.
pub(super) fn validate<'a>(
    observed: &'a SyncSnapshot,
    accounts: &AccountRules,
) -> Result<ValidSync<'a>, SyncBlocked> {
    let spec = &observed.object.spec;
    if spec.template.suspend {
        return Err(SyncBlocked::Suspended);
    }
    let unimplemented = unimplemented::of_template("spec", &spec.template);
    if !unimplemented.is_empty() {
        return Err(SyncBlocked::NotImplemented(unimplemented));
    }
    let spec = resolve(spec, observed.cluster.as_deref()).map_err(SyncBlocked::Parameter)?;
    accounts
        .account(&spec.template.service_account_name)
        .map_err(SyncBlocked::Account)?;
    let ignore = IgnoreRules::new(&spec.template.ignore).map_err(SyncBlocked::Ignore)?;
    Ok(ValidSync {
        observed,
        spec,
        ignore,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};
    use starling_api::SyncResource;
    use starling_core::depend::Dependencies;
    use starling_core::target::{self, Owner};

    use super::*;
    use crate::controller::object_key::ObjectKey;
    use starling_core::ids::{ClusterId, InstallationId};

    /// Returns the Sync `shop/web` with these fields of spec, on the Cluster `eu` with the label `region=eu`.
    #[expect(clippy::needless_pass_by_value, reason = "reads like the literal it is given")]
    pub(in super::super) fn mk_observed(spec: Value) -> SyncSnapshot {
        let mut base = json!({"clusterRef": {"name": "eu"}, "sourceRef": {"name": "s"}});
        base.as_object_mut()
            .unwrap()
            .extend(spec.as_object().unwrap().clone());
        let object: SyncResource = serde_json::from_value(json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "Sync",
            "metadata": {"name": "web", "namespace": "shop", "generation": 1, "uid": "u"}, "spec": base,
        }))
        .unwrap();
        let cluster = serde_json::from_value(json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "Cluster",
            "metadata": {"name": "eu", "namespace": "shop", "labels": {"region": "eu"}},
            "spec": {"kubeConfig": {"secretRef": {"name": "s"}}},
        }))
        .unwrap();
        SyncSnapshot {
            key: ObjectKey::new("shop", "web"),
            object: Arc::new(object),
            status: starling_api::SyncStatus::default(),
            source: None,
            cluster: Some(Arc::new(cluster)),
            group: None,
            cluster_id: ClusterId::new("id"),
            connection: None,
            awaits_first_probe: false,
            dependencies: Dependencies::Done,
            owner: target::owner(
                &InstallationId::new("installation"),
                "shop",
                Owner::Alone { sync: "web" },
            ),
            approvals: starling_core::deletion_approval::Approvals::default(),
            stop: None,
        }
    }

    fn blocked(spec: Value) -> Option<SyncBlocked> {
        validate(&mk_observed(spec), &AccountRules::default()).err()
    }

    #[test]
    fn suspension_comes_before_what_is_invalid() {
        let unresolved = json!({"path": "$(cluster.labels.tier)"});
        let suspended = json!({"path": "$(cluster.labels.tier)", "suspend": true});
        assert_eq!(blocked(suspended), Some(SyncBlocked::Suspended));
        let found = blocked(unresolved).unwrap();
        assert_eq!(found.reason(), "InvalidParameters");
        assert!(
            found
                .to_string()
                .starts_with("spec.path: cluster eu has no label \"tier\""),
            "{found}"
        );
    }

    #[test]
    fn a_field_that_is_not_implemented_is_named() {
        let blocked = SyncBlocked::NotImplemented(vec!["spec.force".into()]);
        assert_eq!(blocked.reason(), "NotImplemented");
        assert!(blocked.to_string().contains("spec.force"), "{blocked}");
    }

    #[test]
    fn tenant_a_sync_without_an_account_is_refused_where_one_is_required() {
        let rules = AccountRules {
            required: true,
            ..AccountRules::default()
        };
        let observed = mk_observed(json!({}));
        let found = validate(&observed, &rules).err().unwrap();
        assert_eq!(found.reason(), "ServiceAccountRequired");
        assert!(found.to_string().contains("--require-service-account"), "{found}");
        let observed = mk_observed(json!({"serviceAccountName": "deployer"}));
        assert!(validate(&observed, &rules).is_ok());
    }

    #[test]
    fn an_ignore_rule_that_does_not_parse_is_invalid() {
        let found = blocked(json!({"ignore": [{"paths": ["replicas"]}]})).unwrap();
        assert_eq!(found.reason(), "InvalidSpec");
        assert!(
            found.to_string().starts_with("spec.ignore[0].paths[0]: "),
            "{found}"
        );
    }

    #[test]
    fn a_valid_sync_has_its_parameters_resolved() {
        let observed = mk_observed(json!({"path": "clusters/$(cluster.labels.region)"}));
        let valid =
            validate(&observed, &AccountRules::default()).unwrap_or_else(|blocked| panic!("{blocked}"));
        assert_eq!(valid.spec.template.path, "clusters/eu");
        assert_eq!(
            observed.object.spec.template.path,
            "clusters/$(cluster.labels.region)"
        );
    }
}
