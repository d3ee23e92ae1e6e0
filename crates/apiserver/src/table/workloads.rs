//! The cells of workloads.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::text;
use super::view::{NONE, UNSET, View};

fn replicas(view: &View<'_>, paths: &[&str]) -> Vec<Value> {
    let mut cells = vec![view.name()];
    cells.extend(paths.iter().map(|path| json!(view.number(path))));
    cells
}

const CONTAINERS: &str = "spec.template.spec.containers";

pub(super) fn deployment(view: &View<'_>) -> Vec<Value> {
    let ready = format!(
        "{}/{}",
        view.number("status.readyReplicas"),
        view.number("spec.replicas")
    );
    let [names, images] = text::containers(view, CONTAINERS);
    vec![
        view.name(),
        json!(ready),
        json!(view.number("status.updatedReplicas")),
        json!(view.number("status.availableReplicas")),
        view.age(),
        names,
        images,
        json!(text::selector(view.at("spec.selector"))),
    ]
}

const REPLICAS: [&str; 3] = ["spec.replicas", "status.replicas", "status.readyReplicas"];

pub(super) fn replica_set(view: &View<'_>) -> Vec<Value> {
    let mut cells = replicas(view, &REPLICAS);
    cells.push(view.age());
    cells.extend(text::containers(view, CONTAINERS));
    cells.push(json!(text::selector_or_none(view.at("spec.selector"))));
    cells
}

pub(super) fn replication_controller(view: &View<'_>) -> Vec<Value> {
    let mut cells = replicas(view, &REPLICAS);
    cells.push(view.age());
    cells.extend(text::containers(view, CONTAINERS));
    cells.push(json!(text::labels(view.at("spec.selector"))));
    cells
}

pub(super) fn stateful_set(view: &View<'_>) -> Vec<Value> {
    let ready = format!(
        "{}/{}",
        view.number("status.readyReplicas"),
        view.number("spec.replicas")
    );
    let [names, images] = text::containers(view, CONTAINERS);
    vec![view.name(), json!(ready), view.age(), names, images]
}

pub(super) fn daemon_set(view: &View<'_>) -> Vec<Value> {
    let mut cells = replicas(
        view,
        &[
            "status.desiredNumberScheduled",
            "status.currentNumberScheduled",
            "status.numberReady",
            "status.updatedNumberScheduled",
            "status.numberAvailable",
        ],
    );
    cells.push(json!(text::labels(view.at("spec.template.spec.nodeSelector"))));
    cells.push(view.age());
    cells.extend(text::containers(view, CONTAINERS));
    cells.push(json!(text::selector_or_none(view.at("spec.selector"))));
    cells
}

pub(super) fn controller_revision(view: &View<'_>) -> Vec<Value> {
    let mut owners = view.items("metadata.ownerReferences");
    let controller = owners.find(|owner| owner.flag("controller"));
    let controller = controller.map_or(NONE.to_owned(), |owner| {
        let group = owner
            .text("apiVersion")
            .rsplit_once('/')
            .map_or("", |(group, _)| group);
        let kind = crate::status::qualified(owner.text("kind"), group).to_lowercase();
        format!("{kind}/{}", owner.text("name"))
    });
    vec![
        view.name(),
        json!(controller),
        json!(view.number("revision")),
        view.age(),
    ]
}

pub(super) fn pod_template(view: &View<'_>) -> Vec<Value> {
    let [names, images] = text::containers(view, "template.spec.containers");
    vec![
        view.name(),
        names,
        images,
        json!(text::labels(view.at("template.metadata.labels"))),
    ]
}

pub(super) fn job(view: &View<'_>) -> Vec<Value> {
    let done = view.number("status.succeeded");
    let completions = match (view.at("spec.completions"), view.number("spec.parallelism")) {
        (Some(wanted), _) => format!("{done}/{wanted}"),
        (None, at_once) if at_once > 1 => format!("{done}/1 of {at_once}"),
        (None, _) => format!("{done}/1"),
    };
    let took = match (view.time("status.startTime"), view.time("status.completionTime")) {
        (None, _) => String::new(),
        (Some(from), None) => view.age_since(from),
        (Some(from), Some(to)) => super::human(to.duration_since(from)),
    };
    let is = |ty: &str| view.condition("status.conditions", ty) == Some("True");
    let status = match () {
        () if is("Complete") => "Complete",
        () if is("Failed") => "Failed",
        () if view.is_deleted() => "Terminating",
        () if is("Suspended") => "Suspended",
        () if is("FailureTarget") => "FailureTarget",
        () if is("SuccessCriteriaMet") => "SuccessCriteriaMet",
        () => "Running",
    };
    let [names, images] = text::containers(view, CONTAINERS);
    vec![
        view.name(),
        json!(status),
        json!(completions),
        json!(took),
        view.age(),
        names,
        images,
        json!(text::selector_or_none(view.at("spec.selector"))),
    ]
}

pub(super) fn cron_job(view: &View<'_>) -> Vec<Value> {
    let last = match view.at("status.lastScheduleTime") {
        Some(_) => view.age_at("status.lastScheduleTime"),
        None => NONE.to_owned(),
    };
    let suspend = match view.at("spec.suspend") {
        Some(Value::Bool(true)) => "True",
        Some(_) => "False",
        None => UNSET,
    };
    let [names, images] = text::containers(view, "spec.jobTemplate.spec.template.spec.containers");
    vec![
        view.name(),
        json!(view.text("spec.schedule")),
        json!(
            view.at("spec.timeZone")
                .map_or(NONE, |zone| zone.as_str().unwrap_or_default())
        ),
        json!(suspend),
        json!(view.count("status.active")),
        json!(last),
        view.age(),
        names,
        images,
        json!(text::selector_or_none(view.at("spec.jobTemplate.spec.selector"))),
    ]
}

/// The summary of the containers of a Pod.
struct PodState {
    reason: String,
    ready: usize,
    total: usize,
    restarts: i64,
    restarted: Option<Timestamp>,
}

pub(super) fn pod(view: &View<'_>) -> Vec<Value> {
    let state = pod_state(view);
    let restarts = match state.restarted {
        Some(at) if state.restarts != 0 => format!("{} ({} age_since)", state.restarts, view.age_since(at)),
        _ => state.restarts.to_string(),
    };
    let address = view.items("status.podIPs").next();
    let address = address.map_or(NONE, |one| one.text_or("ip", NONE));
    vec![
        view.name(),
        json!(format!("{}/{}", state.ready, state.total)),
        json!(state.reason),
        json!(restarts),
        view.age(),
        json!(address),
        json!(view.text_or("spec.nodeName", NONE)),
        json!(view.text_or("status.nominatedNodeName", NONE)),
        json!(readiness_gates(view)),
    ]
}

fn readiness_gates(view: &View<'_>) -> String {
    let gates = view.items("spec.readinessGates");
    if gates.len() == 0 {
        return NONE.to_owned();
    }
    let all = gates.len();
    let open = gates
        .filter(|gate| view.condition("status.conditions", gate.text("conditionType")) == Some("True"))
        .count();
    format!("{open}/{all}")
}

/// Returns whether an init container is a sidecar.
fn is_sidecar(container: &View<'_>) -> bool {
    container.text("restartPolicy") == "Always"
}

fn pod_state(view: &View<'_>) -> PodState {
    let gated = view.items("status.conditions").any(|condition| {
        condition.text("type") == "PodScheduled" && condition.text("reason") == "SchedulingGated"
    });
    let reason = match gated {
        true => "SchedulingGated",
        false => view.text_or("status.reason", view.text("status.phase")),
    };
    let sidecars = view.items("spec.initContainers").filter(is_sidecar).count();
    let mut state = PodState {
        reason: reason.to_owned(),
        ready: 0,
        total: view.items("spec.containers").len() + sidecars,
        restarts: 0,
        restarted: None,
    };
    let mut of_sidecars = (0, None);
    let initializing = init_containers(view, &mut state, &mut of_sidecars);
    if !initializing || view.condition("status.conditions", "Initialized") == Some("True") {
        (state.restarts, state.restarted) = of_sidecars;
        containers(view, &mut state);
    }
    if view.is_deleted() {
        if view.text("status.reason") == "NodeLost" {
            "Unknown".clone_into(&mut state.reason);
        } else if !matches!(view.text("status.phase"), "Succeeded" | "Failed") {
            "Terminating".clone_into(&mut state.reason);
        }
    }
    state
}

/// Returns when the container last terminated.
fn last_end(container: &View<'_>) -> Option<Timestamp> {
    container.time("lastState.terminated.finishedAt")
}

/// Summarises the init containers up to the first that is not done; returns whether there is one.
fn init_containers(
    view: &View<'_>,
    state: &mut PodState,
    of_sidecars: &mut (i64, Option<Timestamp>),
) -> bool {
    for (place, container) in view.items("status.initContainerStatuses").enumerate() {
        let sidecar = view
            .items("spec.initContainers")
            .any(|spec| spec.text("name") == container.text("name") && is_sidecar(&spec));
        let restarts = container.number("restartCount");
        state.restarts += restarts;
        state.restarted = state.restarted.max(last_end(&container));
        if sidecar {
            of_sidecars.0 += restarts;
            of_sidecars.1 = of_sidecars.1.max(last_end(&container));
        }
        let ended = container.at("state.terminated").is_some();
        let waiting = container.text("state.waiting.reason");
        if ended && container.number("state.terminated.exitCode") == 0 {
            continue;
        }
        if sidecar && container.flag("started") {
            state.ready += usize::from(container.flag("ready"));
            continue;
        }
        state.reason = match () {
            () if ended => format!("Init:{}", end_reason(&container)),
            () if !waiting.is_empty() && waiting != "PodInitializing" => format!("Init:{waiting}"),
            () => format!("Init:{place}/{}", view.items("spec.initContainers").len()),
        };
        return true;
    }
    false
}

/// Returns why a container terminated.
fn end_reason(container: &View<'_>) -> String {
    let number = |field: &str| container.number(&format!("state.terminated.{field}"));
    match container.text("state.terminated.reason") {
        "" if number("signal") != 0 => format!("Signal:{}", number("signal")),
        "" => format!("ExitCode:{}", number("exitCode")),
        reason => reason.to_owned(),
    }
}

fn containers(view: &View<'_>, state: &mut PodState) {
    let mut running = false;
    let mut failed = None;
    for container in view.items("status.containerStatuses").rev() {
        state.restarts += container.number("restartCount");
        state.restarted = state.restarted.max(last_end(&container));
        let waiting = container.text("state.waiting.reason");
        if !waiting.is_empty() {
            waiting.clone_into(&mut state.reason);
        } else if container.at("state.terminated").is_some() {
            state.reason = end_reason(&container);
            if container.number("state.terminated.exitCode") != 0 {
                failed = Some(state.reason.clone());
            }
        } else if container.flag("ready") && container.at("state.running").is_some() {
            running = true;
            state.ready += 1;
        }
    }
    if state.reason != "Completed" {
        return;
    }
    let is_ready = view
        .items("status.conditions")
        .any(|one| one.text("type") == "Ready" && one.text("status") == "True");
    match failed {
        _ if running && is_ready => "Running".clone_into(&mut state.reason),
        Some(reason) => state.reason = reason,
        None if running => "NotReady".clone_into(&mut state.reason),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(status: &Value, deleted: bool) -> Vec<String> {
        let mut object = json!({
            "metadata": {"name": "a", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {
                "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
                "containers": [{"name": "c"}, {"name": "d"}],
            },
            "status": status,
        });
        if deleted {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:01:00Z");
        }
        let now = "2026-01-01T00:02:00Z".parse().unwrap();
        let cells = pod(&View::new(&object, now));
        cells[1..5]
            .iter()
            .map(|cell| cell.as_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn pod_cells_summarise_the_containers() {
        let running = json!({"ready": true, "state": {"running": {}}});
        let sidecar = json!({"name": "s", "started": true, "ready": true, "state": {"running": {}}});
        let done = json!({"name": "i", "state": {"terminated": {"exitCode": 0}}});
        for (status, expected) in [
            (json!({"phase": "Pending"}), ["0/3", "Pending", "0", "2m"]),
            (
                json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}]}),
                ["0/3", "SchedulingGated", "0", "2m"],
            ),
            (
                json!({"phase": "Running", "initContainerStatuses": [done, sidecar],
                       "containerStatuses": [running, running]}),
                ["3/3", "Running", "0", "2m"],
            ),
            (
                json!({"phase": "Pending", "initContainerStatuses": [
                    {"name": "i", "restartCount": 2, "state": {"terminated": {"exitCode": 3}},
                     "lastState": {"terminated": {"finishedAt": "2026-01-01T00:01:50Z"}}}]}),
                ["0/3", "Init:ExitCode:3", "2 (10s age_since)", "2m"],
            ),
            (
                json!({"phase": "Pending", "initContainerStatuses": [
                    {"name": "i", "state": {"waiting": {"reason": "PodInitializing"}}}]}),
                ["0/3", "Init:0/2", "0", "2m"],
            ),
            (
                json!({"phase": "Running", "containerStatuses": [
                    {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 4}, running]}),
                ["1/3", "CrashLoopBackOff", "4", "2m"],
            ),
            (
                json!({"phase": "Succeeded", "containerStatuses": [
                    {"state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}]}),
                ["0/3", "Completed", "0", "2m"],
            ),
            (
                json!({"phase": "Running", "containerStatuses": [
                    {"state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}, running]}),
                ["1/3", "NotReady", "0", "2m"],
            ),
        ] {
            assert_eq!(cells(&status, false), expected, "{status}");
        }
        assert_eq!(cells(&json!({"phase": "Running"}), true)[1], "Terminating");
        assert_eq!(cells(&json!({"phase": "Failed"}), true)[1], "Failed");
    }
}
