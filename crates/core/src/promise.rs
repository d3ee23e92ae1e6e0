//! Fields of the contract that promise what is not there yet (I10).
//!
//! A field that is set to something other than its default and not implemented makes its object
//! `Stalled, NotImplemented`, and nothing is rolled. What is implemented leaves this page; nothing else in the
//! code asks whether something is implemented.

use starling_api::{
    DeletionPolicy, OnFailure, OnNewRevision, OnUnreachable, RollbackType, RolloutStrategy, SourceSpec,
    SyncGroupSpec, SyncTemplate, referenced,
};

/// Paths of the Source's fields that are set and not implemented.
#[must_use]
pub fn of_source(spec: &SourceSpec) -> Vec<String> {
    let ssh = spec.url.starts_with("ssh://") || !spec.url.contains("://");
    let verify = spec
        .verify
        .as_ref()
        .is_some_and(|verify| !verify.secret_ref.name.is_empty());
    named([
        ("spec.url (ssh)", ssh),
        ("spec.verify", verify),
        (
            "spec.webhookSecretRef",
            referenced(spec.webhook_secret_ref.as_ref()).is_some(),
        ),
    ])
}

/// Paths of a Sync's fields that are set and not implemented; `prefix` is `spec`, or the entry's path.
#[must_use]
pub fn of_template(prefix: &str, template: &SyncTemplate) -> Vec<String> {
    named([
        ("serviceAccountName", !template.service_account_name.is_empty()),
        ("decryption", template.decryption.is_some()),
        (
            "deletionPolicy",
            template.deletion_policy != DeletionPolicy::Orphan,
        ),
    ])
    .into_iter()
    .map(|field| format!("{prefix}.{field}"))
    .collect()
}

/// Paths of the SyncGroup's fields that are set and not implemented, its entries' included.
#[must_use]
pub fn of_group(spec: &SyncGroupSpec) -> Vec<String> {
    let mut fields = named([
        (
            "spec.whenUnselected",
            spec.when_unselected != DeletionPolicy::Orphan,
        ),
        (
            "spec.deletionPolicy",
            spec.deletion_policy != DeletionPolicy::Orphan,
        ),
    ]);
    for entry in &spec.syncs {
        fields.extend(of_template(
            &format!("spec.syncs[{}]", entry.name),
            &entry.template,
        ));
    }
    fields.extend(of_strategy(&spec.rollout_strategy));
    fields
}

fn of_strategy(strategy: &RolloutStrategy) -> Vec<String> {
    let default = RolloutStrategy::default();
    // Every field by name: a new one does not compile until it is either implemented or listed here.
    let RolloutStrategy {
        max_concurrency: _,
        max_failures: _,
        progress_deadline: _,
        jitter: _,
        min_success_time,
        max_unavailable,
        on_new_revision,
        on_failure,
        on_unreachable,
        windows,
        stages,
        rollback,
    } = strategy;
    named([
        ("spec.rolloutStrategy.minSuccessTime", !min_success_time.is_zero()),
        (
            "spec.rolloutStrategy.maxUnavailable",
            *max_unavailable != default.max_unavailable,
        ),
        (
            "spec.rolloutStrategy.onNewRevision",
            *on_new_revision != OnNewRevision::Replace,
        ),
        ("spec.rolloutStrategy.onFailure", *on_failure != OnFailure::Pause),
        (
            "spec.rolloutStrategy.onUnreachable",
            *on_unreachable != OnUnreachable::Skip,
        ),
        ("spec.rolloutStrategy.windows", !windows.is_empty()),
        ("spec.rolloutStrategy.stages", !stages.is_empty()),
        (
            "spec.rolloutStrategy.rollback.type",
            rollback.type_ != RollbackType::Staged,
        ),
    ])
}

fn named<const N: usize>(fields: [(&str, bool); N]) -> Vec<String> {
    fields
        .into_iter()
        .filter(|(_, set)| *set)
        .map(|(field, _)| field.to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(
        clippy::needless_pass_by_value,
        reason = "reads like the literals it is given"
    )]
    fn group(strategy: serde_json::Value, entry: serde_json::Value) -> SyncGroupSpec {
        let mut sync = serde_json::json!({"name": "app", "sourceRef": {"name": "s"}});
        sync.as_object_mut()
            .unwrap()
            .extend(entry.as_object().unwrap().clone());
        serde_json::from_value(
            serde_json::json!({"clusterSelector": {}, "syncs": [sync], "rolloutStrategy": strategy}),
        )
        .unwrap()
    }

    #[test]
    fn defaults_promise_nothing() {
        let defaults = serde_json::to_value(RolloutStrategy::default()).unwrap();
        assert!(of_group(&group(defaults, serde_json::json!({}))).is_empty());
        assert!(
            of_group(&group(
                serde_json::json!({"maxConcurrency": 3, "jitter": "5s"}),
                serde_json::json!({})
            ))
            .is_empty()
        );
    }

    #[test]
    fn what_is_set_and_missing_is_named() {
        for (strategy, field) in [
            (
                serde_json::json!({"minSuccessTime": "1m"}),
                "spec.rolloutStrategy.minSuccessTime",
            ),
            (
                serde_json::json!({"maxUnavailable": "5%"}),
                "spec.rolloutStrategy.maxUnavailable",
            ),
            (
                serde_json::json!({"onNewRevision": "Finish"}),
                "spec.rolloutStrategy.onNewRevision",
            ),
            (
                serde_json::json!({"onFailure": "Rollback"}),
                "spec.rolloutStrategy.onFailure",
            ),
            (
                serde_json::json!({"onUnreachable": "Wait"}),
                "spec.rolloutStrategy.onUnreachable",
            ),
            (
                serde_json::json!({"windows": [{"allow": "Mon-Fri 09:00-16:00"}]}),
                "spec.rolloutStrategy.windows",
            ),
            (
                serde_json::json!({"stages": [{"name": "a"}]}),
                "spec.rolloutStrategy.stages",
            ),
            (
                serde_json::json!({"rollback": {"type": "Immediate"}}),
                "spec.rolloutStrategy.rollback.type",
            ),
        ] {
            assert_eq!(of_group(&group(strategy, serde_json::json!({}))), [field]);
        }
        for (entry, field) in [
            (
                serde_json::json!({"serviceAccountName": "x"}),
                "spec.syncs[app].serviceAccountName",
            ),
            (
                serde_json::json!({"decryption": {"provider": "sops", "secretRef": {"name": "age"}}}),
                "spec.syncs[app].decryption",
            ),
            (
                serde_json::json!({"deletionPolicy": "Delete"}),
                "spec.syncs[app].deletionPolicy",
            ),
        ] {
            assert_eq!(of_group(&group(serde_json::json!({}), entry)), [field]);
        }
    }

    #[test]
    fn a_source_by_ssh_with_signatures_and_webhooks_is_not_there_yet() {
        let spec = |json: serde_json::Value| -> SourceSpec { serde_json::from_value(json).unwrap() };
        let r = serde_json::json!({"branch": "main"});
        assert!(of_source(&spec(serde_json::json!({"url": "https://h/r", "ref": r}))).is_empty());
        for url in ["ssh://git@h/r", "git@h:r"] {
            assert_eq!(
                of_source(&spec(serde_json::json!({"url": url, "ref": r}))),
                ["spec.url (ssh)"]
            );
        }
        let unset = serde_json::json!({"url": "https://h/r", "ref": r, "verify": {"secretRef": {"name": ""}}, "webhookSecretRef": {"name": ""}});
        assert!(of_source(&spec(unset)).is_empty());
        let set = serde_json::json!({"url": "https://h/r", "ref": r, "verify": {"secretRef": {"name": "k"}}, "webhookSecretRef": {"name": "w"}});
        assert_eq!(of_source(&spec(set)), ["spec.verify", "spec.webhookSecretRef"]);
    }
}
