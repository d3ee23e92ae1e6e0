//! Cells of what runs.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::look::{Look, NONE, UNSET};
use super::text;

fn replicas(look: &Look<'_>, paths: &[&str]) -> Vec<Value> {
    let mut cells = vec![look.name()];
    cells.extend(paths.iter().map(|path| json!(look.number(path))));
    cells
}

const CONTAINERS: &str = "spec.template.spec.containers";

pub(super) fn deployment(look: &Look<'_>) -> Vec<Value> {
    let ready = format!(
        "{}/{}",
        look.number("status.readyReplicas"),
        look.number("spec.replicas")
    );
    let [names, images] = text::containers(look, CONTAINERS);
    vec![
        look.name(),
        json!(ready),
        json!(look.number("status.updatedReplicas")),
        json!(look.number("status.availableReplicas")),
        look.age(),
        names,
        images,
        json!(text::selector(look.at("spec.selector"))),
    ]
}

const REPLICAS: [&str; 3] = ["spec.replicas", "status.replicas", "status.readyReplicas"];

pub(super) fn replica_set(look: &Look<'_>) -> Vec<Value> {
    let mut cells = replicas(look, &REPLICAS);
    cells.push(look.age());
    cells.extend(text::containers(look, CONTAINERS));
    cells.push(json!(text::selector_or_none(look.at("spec.selector"))));
    cells
}

pub(super) fn replication_controller(look: &Look<'_>) -> Vec<Value> {
    let mut cells = replicas(look, &REPLICAS);
    cells.push(look.age());
    cells.extend(text::containers(look, CONTAINERS));
    cells.push(json!(text::labels(look.at("spec.selector"))));
    cells
}

pub(super) fn stateful_set(look: &Look<'_>) -> Vec<Value> {
    let ready = format!(
        "{}/{}",
        look.number("status.readyReplicas"),
        look.number("spec.replicas")
    );
    let [names, images] = text::containers(look, CONTAINERS);
    vec![look.name(), json!(ready), look.age(), names, images]
}

pub(super) fn daemon_set(look: &Look<'_>) -> Vec<Value> {
    let mut cells = replicas(
        look,
        &[
            "status.desiredNumberScheduled",
            "status.currentNumberScheduled",
            "status.numberReady",
            "status.updatedNumberScheduled",
            "status.numberAvailable",
        ],
    );
    cells.push(json!(text::labels(look.at("spec.template.spec.nodeSelector"))));
    cells.push(look.age());
    cells.extend(text::containers(look, CONTAINERS));
    cells.push(json!(text::selector_or_none(look.at("spec.selector"))));
    cells
}

pub(super) fn controller_revision(look: &Look<'_>) -> Vec<Value> {
    let mut owners = look.items("metadata.ownerReferences");
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
        look.name(),
        json!(controller),
        json!(look.number("revision")),
        look.age(),
    ]
}

pub(super) fn pod_template(look: &Look<'_>) -> Vec<Value> {
    let [names, images] = text::containers(look, "template.spec.containers");
    vec![
        look.name(),
        names,
        images,
        json!(text::labels(look.at("template.metadata.labels"))),
    ]
}

pub(super) fn job(look: &Look<'_>) -> Vec<Value> {
    let done = look.number("status.succeeded");
    let completions = match (look.at("spec.completions"), look.number("spec.parallelism")) {
        (Some(wanted), _) => format!("{done}/{wanted}"),
        (None, at_once) if at_once > 1 => format!("{done}/1 of {at_once}"),
        (None, _) => format!("{done}/1"),
    };
    let took = match (look.time("status.startTime"), look.time("status.completionTime")) {
        (None, _) => String::new(),
        (Some(from), None) => look.ago(from),
        (Some(from), Some(to)) => super::human(to.duration_since(from)),
    };
    let is = |ty: &str| look.condition("status.conditions", ty) == Some("True");
    let status = match () {
        () if is("Complete") => "Complete",
        () if is("Failed") => "Failed",
        () if look.is_deleted() => "Terminating",
        () if is("Suspended") => "Suspended",
        () if is("FailureTarget") => "FailureTarget",
        () if is("SuccessCriteriaMet") => "SuccessCriteriaMet",
        () => "Running",
    };
    let [names, images] = text::containers(look, CONTAINERS);
    vec![
        look.name(),
        json!(status),
        json!(completions),
        json!(took),
        look.age(),
        names,
        images,
        json!(text::selector_or_none(look.at("spec.selector"))),
    ]
}

pub(super) fn cron_job(look: &Look<'_>) -> Vec<Value> {
    let last = match look.at("status.lastScheduleTime") {
        Some(_) => look.since("status.lastScheduleTime"),
        None => NONE.to_owned(),
    };
    let suspend = match look.at("spec.suspend") {
        Some(Value::Bool(true)) => "True",
        Some(_) => "False",
        None => UNSET,
    };
    let [names, images] = text::containers(look, "spec.jobTemplate.spec.template.spec.containers");
    vec![
        look.name(),
        json!(look.text("spec.schedule")),
        json!(
            look.at("spec.timeZone")
                .map_or(NONE, |zone| zone.as_str().unwrap_or_default())
        ),
        json!(suspend),
        json!(look.count("status.active")),
        json!(last),
        look.age(),
        names,
        images,
        json!(text::selector_or_none(look.at("spec.jobTemplate.spec.selector"))),
    ]
}

/// What is known of the containers of a Pod once all have been looked at.
struct PodState {
    reason: String,
    ready: usize,
    total: usize,
    restarts: i64,
    restarted: Option<Timestamp>,
}

pub(super) fn pod(look: &Look<'_>) -> Vec<Value> {
    let state = pod_state(look);
    let restarts = match state.restarted {
        Some(at) if state.restarts != 0 => format!("{} ({} ago)", state.restarts, look.ago(at)),
        _ => state.restarts.to_string(),
    };
    let address = look.items("status.podIPs").next();
    let address = address.map_or(NONE, |one| one.text_or("ip", NONE));
    vec![
        look.name(),
        json!(format!("{}/{}", state.ready, state.total)),
        json!(state.reason),
        json!(restarts),
        look.age(),
        json!(address),
        json!(look.text_or("spec.nodeName", NONE)),
        json!(look.text_or("status.nominatedNodeName", NONE)),
        json!(readiness_gates(look)),
    ]
}

fn readiness_gates(look: &Look<'_>) -> String {
    let gates = look.items("spec.readinessGates");
    if gates.len() == 0 {
        return NONE.to_owned();
    }
    let all = gates.len();
    let open = gates
        .filter(|gate| look.condition("status.conditions", gate.text("conditionType")) == Some("True"))
        .count();
    format!("{open}/{all}")
}

/// Whether an init container goes on beside the others.
fn is_sidecar(container: &Look<'_>) -> bool {
    container.text("restartPolicy") == "Always"
}

fn pod_state(look: &Look<'_>) -> PodState {
    let gated = look.items("status.conditions").any(|condition| {
        condition.text("type") == "PodScheduled" && condition.text("reason") == "SchedulingGated"
    });
    let reason = match gated {
        true => "SchedulingGated",
        false => look.text_or("status.reason", look.text("status.phase")),
    };
    let sidecars = look.items("spec.initContainers").filter(is_sidecar).count();
    let mut state = PodState {
        reason: reason.to_owned(),
        ready: 0,
        total: look.items("spec.containers").len() + sidecars,
        restarts: 0,
        restarted: None,
    };
    let mut of_sidecars = (0, None);
    let initializing = init_containers(look, &mut state, &mut of_sidecars);
    if !initializing || look.condition("status.conditions", "Initialized") == Some("True") {
        (state.restarts, state.restarted) = of_sidecars;
        containers(look, &mut state);
    }
    if look.is_deleted() {
        if look.text("status.reason") == "NodeLost" {
            "Unknown".clone_into(&mut state.reason);
        } else if !matches!(look.text("status.phase"), "Succeeded" | "Failed") {
            "Terminating".clone_into(&mut state.reason);
        }
    }
    state
}

/// When the container ended the last time.
fn last_end(container: &Look<'_>) -> Option<Timestamp> {
    container.time("lastState.terminated.finishedAt")
}

/// Looks at init containers up to the first that is not done; says whether there is one.
fn init_containers(
    look: &Look<'_>,
    state: &mut PodState,
    of_sidecars: &mut (i64, Option<Timestamp>),
) -> bool {
    for (place, container) in look.items("status.initContainerStatuses").enumerate() {
        let sidecar = look
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
            () => format!("Init:{place}/{}", look.items("spec.initContainers").len()),
        };
        return true;
    }
    false
}

/// Why a container ended.
fn end_reason(container: &Look<'_>) -> String {
    let number = |field: &str| container.number(&format!("state.terminated.{field}"));
    match container.text("state.terminated.reason") {
        "" if number("signal") != 0 => format!("Signal:{}", number("signal")),
        "" => format!("ExitCode:{}", number("exitCode")),
        reason => reason.to_owned(),
    }
}

fn containers(look: &Look<'_>, state: &mut PodState) {
    let mut running = false;
    let mut failed = None;
    for container in look.items("status.containerStatuses").rev() {
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
    let is_ready = look
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
        let cells = pod(&Look::new(&object, now));
        cells[1..5]
            .iter()
            .map(|cell| cell.as_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn pods_say_what_their_containers_do() {
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
                ["0/3", "Init:ExitCode:3", "2 (10s ago)", "2m"],
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
