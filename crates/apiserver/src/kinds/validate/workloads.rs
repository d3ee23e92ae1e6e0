//! The validation of Deployments, StatefulSets, DaemonSets and ReplicaSets.

use serde_json::{Value, json};

use super::{not_negative, pods};
use crate::object::selector::{is_empty_selector, selects};
use crate::status::Cause;

/// Checks the `spec` of a workload, in the order of its kind.
pub(super) fn check(kind: &str, spec: &Value, causes: &mut Vec<Cause>) {
    if kind == "StatefulSet" {
        management(spec, causes);
    }
    not_negative(spec, "replicas", "spec", causes);
    if kind != "Deployment" {
        not_negative(spec, "minReadySeconds", "spec", causes);
    }
    template(kind, spec, causes);
    if kind == "Deployment" {
        strategy(&spec["strategy"], causes);
        not_negative(spec, "minReadySeconds", "spec", causes);
    }
    not_negative(spec, "revisionHistoryLimit", "spec", causes);
    if kind == "Deployment" {
        deadline(spec, causes);
    }
}

/// Checks the selector, and that it matches the labels of the template.
fn template(kind: &str, spec: &Value, causes: &mut Vec<Cause>) {
    let selector = &spec["selector"];
    let labels = &spec["template"]["metadata"]["labels"];
    if selector.is_null() {
        causes.push(Cause::required("spec.selector", ""));
    } else if is_empty_selector(selector) {
        let why = format!("empty selector is invalid for {}", kind.to_lowercase());
        causes.push(Cause::invalid("spec.selector", selector, why));
    }
    let label = |name: &str| labels.get(name).and_then(Value::as_str);
    if selector.is_null() || selects(selector, label) != Ok(true) {
        causes.push(Cause::invalid(
            "spec.template.metadata.labels",
            labels,
            "`selector` does not match template `labels`",
        ));
    }
    crate::object::metadata::check_labels(labels, "spec.template.labels", causes);
    pods::spec(&spec["template"]["spec"], "spec.template.spec", causes);
    let restart = &spec["template"]["spec"]["restartPolicy"];
    if let Some(policy) = restart.as_str().filter(|policy| *policy != "Always") {
        causes.push(Cause::not_supported_text(
            "spec.template.spec.restartPolicy",
            policy,
            &["Always"],
        ));
    }
}

/// Checks the strategy of a Deployment.
fn strategy(strategy: &Value, causes: &mut Vec<Cause>) {
    let rolling = &strategy["rollingUpdate"];
    match strategy["type"].as_str().unwrap_or_default() {
        "Recreate" => {
            if !rolling.is_null() {
                causes.push(Cause::forbidden(
                    "spec.strategy.rollingUpdate",
                    "may not be specified when strategy `type` is 'Recreate'",
                ));
            }
        }
        "RollingUpdate" => {
            if amount(&rolling["maxUnavailable"]) == 0 && amount(&rolling["maxSurge"]) == 0 {
                causes.push(Cause::invalid(
                    "spec.strategy.rollingUpdate.maxUnavailable",
                    &rolling["maxUnavailable"],
                    "may not be 0 when `maxSurge` is 0",
                ));
            }
        }
        other => {
            // Kubernetes shows its internal form of the object.
            let shown = if rolling.is_null() {
                "null".to_owned()
            } else {
                let (unavailable, surge) = (&rolling["maxUnavailable"], &rolling["maxSurge"]);
                format!("{{\"MaxUnavailable\":{unavailable},\"MaxSurge\":{surge}}}")
            };
            causes.push(Cause {
                reason: "FieldValueNotSupported",
                field: "spec.strategy".to_owned(),
                message: format!(
                    "Unsupported value: {{\"Type\":{},\"RollingUpdate\":{shown}}}: supported values: \"Recreate\", \"RollingUpdate\"",
                    json!(other)
                ),
            });
        }
    }
}

/// Returns an integer or a percentage as a number.
fn amount(value: &Value) -> i64 {
    let percents = value.as_str().and_then(|text| text.strip_suffix('%'));
    value
        .as_i64()
        .or_else(|| percents?.parse().ok())
        .unwrap_or_default()
}

fn deadline(spec: &Value, causes: &mut Vec<Cause>) {
    let ready = spec["minReadySeconds"].as_i64().unwrap_or_default();
    not_negative(spec, "progressDeadlineSeconds", "spec", causes);
    let deadline = &spec["progressDeadlineSeconds"];
    if deadline.as_i64().is_some_and(|seconds| seconds <= ready) {
        causes.push(Cause::invalid(
            "spec.progressDeadlineSeconds",
            deadline,
            "must be greater than minReadySeconds",
        ));
    }
}

/// Checks the Pod management and update strategy of a StatefulSet.
fn management(spec: &Value, causes: &mut Vec<Cause>) {
    let policy = &spec["podManagementPolicy"];
    if !["OrderedReady", "Parallel"].iter().any(|known| policy == known) {
        causes.push(Cause::invalid(
            "spec.podManagementPolicy",
            policy,
            "must be 'OrderedReady' or 'Parallel'",
        ));
    }
    let strategy = &spec["updateStrategy"];
    let rolling = &strategy["rollingUpdate"];
    // Kubernetes shows its internal form of the object.
    let shown = if rolling.is_null() {
        "null".to_owned()
    } else {
        let partition = rolling["partition"].as_i64().unwrap_or_default();
        format!(
            "{{\"Partition\":{partition},\"MaxUnavailable\":{}}}",
            rolling["maxUnavailable"]
        )
    };
    match strategy["type"].as_str().unwrap_or_default() {
        "OnDelete" if !rolling.is_null() => causes.push(Cause::invalid_shown(
            "spec.updateStrategy.rollingUpdate",
            &shown,
            "only allowed for updateStrategy 'RollingUpdate'",
        )),
        "OnDelete" => {}
        "RollingUpdate" => not_negative(rolling, "partition", "spec.updateStrategy.rollingUpdate", causes),
        other => causes.push(Cause::invalid_shown(
            "spec.updateStrategy",
            &format!("{{\"Type\":{},\"RollingUpdate\":{shown}}}", json!(other)),
            "must be 'RollingUpdate' or 'OnDelete'",
        )),
    }
}
