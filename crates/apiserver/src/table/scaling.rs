//! The cells of scales, autoscalers, disruption budgets and quotas.

use serde_json::{Value, json};

use super::text;
use super::view::{NONE, UNKNOWN, UNSET, View};

/// Returns the cells of a `Scale`.
pub(super) fn scale(view: &View<'_>) -> Vec<Value> {
    vec![
        view.name(),
        json!(view.number("spec.replicas")),
        json!(view.number("status.replicas")),
        view.age(),
    ]
}

pub(super) fn disruption_budget(view: &View<'_>) -> Vec<Value> {
    let amount = |path: &str| match view.at(path) {
        None => "N/A".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(number) => number.to_string(),
    };
    vec![
        view.name(),
        json!(amount("spec.minAvailable")),
        json!(amount("spec.maxUnavailable")),
        json!(view.number("status.disruptionsAllowed")),
        view.age(),
    ]
}

pub(super) fn quota(view: &View<'_>) -> Vec<Value> {
    let (mut requests, mut limits) = (Vec::new(), Vec::new());
    let hard = view.at("status.hard").and_then(Value::as_object);
    let used = view.at("status.used");
    for (name, most) in hard.into_iter().flatten() {
        let used = used.and_then(|used| used[name.as_str()].as_str()).unwrap_or("0");
        let cell = format!("{name}: {used}/{}", most.as_str().unwrap_or_default());
        if name.starts_with("limits.") {
            limits.push(cell);
        } else {
            requests.push(cell);
        }
    }
    vec![
        view.name(),
        json!(requests.join(", ")),
        json!(limits.join(", ")),
        view.age(),
    ]
}

pub(super) fn autoscaler(view: &View<'_>) -> Vec<Value> {
    let reference = format!(
        "{}/{}",
        view.text("spec.scaleTargetRef.kind"),
        view.text("spec.scaleTargetRef.name")
    );
    let statuses: Vec<View<'_>> = view.items("status.currentMetrics").collect();
    let metrics: Vec<String> = view
        .items("spec.metrics")
        .enumerate()
        .map(|(place, spec)| metric(&spec, statuses.get(place)))
        .collect();
    let metrics = if metrics.is_empty() {
        NONE.to_owned()
    } else {
        text::first(&metrics, 2, ", ")
    };
    let least = view
        .at("spec.minReplicas")
        .map_or(UNSET.to_owned(), Value::to_string);
    vec![
        view.name(),
        json!(reference),
        json!(metrics),
        json!(least),
        json!(view.number("spec.maxReplicas")),
        json!(view.number("status.currentReplicas")),
        view.age(),
    ]
}

/// Returns a metric of an autoscaler: its current and its target value.
fn metric(spec: &View<'_>, status: Option<&View<'_>>) -> String {
    let ty = spec.text("type");
    let field = match ty {
        "External" => "external",
        "Pods" => "pods",
        "Object" => "object",
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        _ => return "<unknown type>".to_owned(),
    };
    let target = |name: &str| spec.at(&format!("{field}.target.{name}"));
    let current = |name: &str| status.and_then(|status| status.at(&format!("{field}.current.{name}")));
    let quantity = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or("0").to_owned();
    let now = |name: &str| match (status, current(name)) {
        (Some(status), value) if status.at(field).is_some() => quantity(value),
        _ => UNKNOWN.to_owned(),
    };
    if matches!(ty, "Resource" | "ContainerResource") {
        let name = spec.text(&format!("{field}.name"));
        if let Some(wanted) = target("averageValue") {
            return format!("{name}: {}/{}", now("averageValue"), quantity(Some(wanted)));
        }
        let percent =
            |value: Option<&Value>, none: &str| value.map_or(none.to_owned(), |value| format!("{value}%"));
        let is = percent(current("averageUtilization"), UNKNOWN);
        return format!("{name}: {is}/{}", percent(target("averageUtilization"), "<auto>"));
    }
    match target("averageValue") {
        Some(wanted) if ty == "Pods" => format!("{}/{}", now("averageValue"), quantity(Some(wanted))),
        Some(wanted) => {
            let is = current("averageValue").map_or(UNKNOWN.to_owned(), |value| quantity(Some(value)));
            format!("{is}/{} (avg)", quantity(Some(wanted)))
        }
        None => format!("{}/{}", now("value"), quantity(target("value"))),
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn metrics_show_current_and_target_values() {
        let object = json!({
            "metadata": {"name": "a"},
            "spec": {"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "b"}, "metrics": [
                {"type": "Resource", "resource": {"name": "cpu", "target": {"averageUtilization": 80}}},
                {"type": "External", "external": {"target": {"averageValue": "5"}}},
                {"type": "Pods", "pods": {"target": {"averageValue": "1k"}}}]},
            "status": {"currentMetrics": [
                {"type": "Resource", "resource": {"current": {"averageUtilization": 12}}}]},
        });
        let cells = autoscaler(&View::new(&object, Timestamp::UNIX_EPOCH));
        assert_eq!(cells[1], "Deployment/b");
        assert_eq!(cells[2], "cpu: 12%/80%, <unknown>/5 (avg) + 1 more...");
        assert_eq!(cells[3], "<unset>");
    }
}
