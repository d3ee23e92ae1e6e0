//! Fields of the API that are not implemented yet (I10).
//!
//! A field that is not implemented and set to a value other than its default makes its object
//! `Stalled, NotImplemented`, and the object is not reconciled. A field leaves this module when it is implemented; no
//! other module asks whether a field is implemented.

use starling_api::{RolloutStrategy, SourceSpec, StageTaskType, SyncGroupSpec, SyncTemplate, referenced};

/// Returns the paths of the fields of a Source that are set and not implemented.
#[must_use]
pub fn of_source(spec: &SourceSpec) -> Vec<String> {
    let ssh = spec.url.starts_with("ssh://") || !spec.url.contains("://");
    // Whoever sets it expects that unsigned revisions are refused, with or without the name of a Secret.
    let verify = spec.verify.is_some();
    named([
        ("spec.url (ssh)", ssh),
        ("spec.verify", verify),
        (
            "spec.webhookSecretRef",
            referenced(spec.webhook_secret_ref.as_ref()).is_some(),
        ),
    ])
}

/// Returns the paths of the fields of a Sync that are set and not implemented; `prefix` is `spec`, or the path of the
/// entry.
#[must_use]
pub fn of_template(prefix: &str, template: &SyncTemplate) -> Vec<String> {
    // Every field by name: a new field does not compile until it is implemented or listed below.
    let SyncTemplate {
        source_ref: _,
        path: _,
        target_namespace: _,
        substitute: _,
        prune: _,
        prune_grace: _,
        allow_empty: _,
        wait: _,
        timeout: _,
        interval: _,
        retry_interval: _,
        force: _,
        conflicts: _,
        ignore: _,
        depends_on: _,
        service_account_name: _,
        decryption: _,
        deletion_policy: _,
        suspend: _,
    } = template;
    named([])
        .into_iter()
        .map(|field| format!("{prefix}.{field}"))
        .collect()
}

/// Returns the paths of the fields of a SyncGroup and of its entries that are set and not implemented.
#[must_use]
pub fn of_group(spec: &SyncGroupSpec) -> Vec<String> {
    let mut fields = Vec::new();
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
    // Every field by name: a new field does not compile until it is implemented or listed here.
    let RolloutStrategy {
        max_concurrency: _,
        max_failures: _,
        progress_deadline: _,
        jitter: _,
        min_success_time: _,
        max_unavailable: _,
        on_new_revision: _,
        on_failure: _,
        on_unreachable: _,
        windows: _,
        stages,
        rollback: _,
    } = strategy;
    let mut fields = Vec::new();
    for stage in stages {
        let tasks = [
            ("beforeStageTasks", &stage.before_stage_tasks),
            ("afterStageTasks", &stage.after_stage_tasks),
        ];
        for (list, tasks) in tasks {
            let missing = tasks.iter().filter(|task| !is_implemented(task.type_));
            fields.extend(missing.map(|task| {
                format!(
                    "spec.rolloutStrategy.stages[{}].{list} of type {:?}",
                    stage.name, task.type_
                )
            }));
        }
    }
    fields
}

/// Reports whether a type of task is implemented. A new type does not compile until it is added here.
fn is_implemented(task: StageTaskType) -> bool {
    match task {
        StageTaskType::TimedWait
        | StageTaskType::Approval
        | StageTaskType::Webhook
        | StageTaskType::Metric
        | StageTaskType::Job => true,
    }
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
    fn defaults_are_implemented() {
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
    fn implemented_fields_are_not_reported() {
        let waits = serde_json::json!({"stages": [{"name": "a", "beforeStageTasks": [{"type": "TimedWait", "waitTime": "1h"}, {"type": "Approval"}],
                "afterStageTasks": [{"type": "Webhook"}, {"type": "Metric"}, {"type": "Job"}]}],
            "windows": [{"allow": "Mon-Fri 09:00-16:00"}], "rollback": {"type": "Immediate"}, "onFailure": "Rollback"});
        assert!(of_group(&group(waits, serde_json::json!({}))).is_empty());
        let entry = serde_json::json!({"deletionPolicy": "Delete", "decryption": {"provider": "sops", "secretRef": {"name": "age"}}});
        assert!(of_group(&group(serde_json::json!({}), entry)).is_empty());
    }

    #[test]
    fn tenant_ssh_signatures_and_webhooks_of_a_source_are_not_implemented() {
        let spec = |json: serde_json::Value| -> SourceSpec { serde_json::from_value(json).unwrap() };
        let r = serde_json::json!({"branch": "main"});
        assert!(of_source(&spec(serde_json::json!({"url": "https://h/r", "ref": r}))).is_empty());
        for url in ["ssh://git@h/r", "git@h:r"] {
            assert_eq!(
                of_source(&spec(serde_json::json!({"url": url, "ref": r}))),
                ["spec.url (ssh)"]
            );
        }
        let unset = serde_json::json!({"url": "https://h/r", "ref": r, "webhookSecretRef": {"name": ""}});
        assert!(of_source(&spec(unset)).is_empty());
        // Guards against a mode without keys that verifies nothing.
        for verify in [
            serde_json::json!({"mode": "HEAD"}),
            serde_json::json!({"secretRef": {"name": ""}}),
        ] {
            let unsigned = serde_json::json!({"url": "https://h/r", "ref": r, "verify": verify});
            assert_eq!(of_source(&spec(unsigned)), ["spec.verify"]);
        }
        let set = serde_json::json!({"url": "https://h/r", "ref": r, "verify": {"secretRef": {"name": "k"}}, "webhookSecretRef": {"name": "w"}});
        assert_eq!(of_source(&spec(set)), ["spec.verify", "spec.webhookSecretRef"]);
    }
}
