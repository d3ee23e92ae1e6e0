//! The cells of volumes, claims and the kinds of `storage.k8s.io`.

use serde_json::{Value, json};

use super::view::{NONE, UNSET, View};

/// Returns the cells of a kind of `storage.k8s.io`.
pub(super) fn of(kind: &str, view: &View<'_>) -> Vec<Value> {
    match kind {
        "StorageClass" => class(view),
        "VolumeAttributesClass" => vec![view.name(), json!(view.text("driverName")), view.age()],
        "VolumeAttachment" => vec![
            view.name(),
            json!(view.text("spec.attacher")),
            json!(view.text("spec.source.persistentVolumeName")),
            json!(view.text("spec.nodeName")),
            json!(view.flag("status.attached")),
            view.age(),
        ],
        "CSINode" => vec![view.name(), json!(view.count("spec.drivers")), view.age()],
        "CSIDriver" => driver(view),
        _ => vec![view.name(), json!(view.text("metadata.creationTimestamp"))],
    }
}

fn class(view: &View<'_>) -> Vec<Value> {
    let annotations = view.at("metadata.annotations");
    let is_default = [
        "storageclass.kubernetes.io/is-default-class",
        "storageclass.beta.kubernetes.io/is-default-class",
    ]
    .iter()
    .any(|name| annotations.is_some_and(|annotations| annotations[*name] == "true"));
    let name = view.text("metadata.name");
    let name = if is_default {
        format!("{name} (default)")
    } else {
        name.to_owned()
    };
    vec![
        json!(name),
        json!(view.text("provisioner")),
        json!(view.text_or("reclaimPolicy", "Delete")),
        json!(view.text_or("volumeBindingMode", "Immediate")),
        json!(view.flag("allowVolumeExpansion")),
        view.age(),
    ]
}

fn driver(view: &View<'_>) -> Vec<Value> {
    let requests = match view.at("spec.tokenRequests") {
        None => UNSET.to_owned(),
        Some(_) => {
            let all: Vec<&str> = view
                .items("spec.tokenRequests")
                .map(|one| one.text("audience"))
                .collect();
            all.join(",")
        }
    };
    let modes = view.texts("spec.volumeLifecycleModes").join(",");
    vec![
        view.name(),
        json!(view.at("spec.attachRequired").is_none_or(|flag| flag == true)),
        json!(view.flag("spec.podInfoOnMount")),
        json!(view.flag("spec.storageCapacity")),
        json!(requests),
        json!(view.flag("spec.requiresRepublish")),
        json!(if modes.is_empty() { NONE } else { &modes }),
        view.age(),
    ]
}

/// Returns access modes by their short names.
fn access_modes(view: &View<'_>, path: &str) -> String {
    let given = view.texts(path);
    let known = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let short: Vec<&str> = known
        .iter()
        .filter(|(name, _)| given.contains(name))
        .map(|(_, short)| *short)
        .collect();
    short.join(",")
}

fn storage_class<'a>(view: &View<'a>) -> &'a str {
    let annotated = view
        .at("metadata.annotations")
        .and_then(|annotations| annotations.get("volume.beta.kubernetes.io/storage-class"));
    match annotated.and_then(Value::as_str) {
        Some(class) => class,
        None => view.text("spec.storageClassName"),
    }
}

fn phase<'a>(view: &View<'a>) -> &'a str {
    if view.is_deleted() {
        "Terminating"
    } else {
        view.text("status.phase")
    }
}

pub(super) fn volume(view: &View<'_>) -> Vec<Value> {
    let claim = match view.at("spec.claimRef") {
        None => String::new(),
        Some(_) => format!(
            "{}/{}",
            view.text("spec.claimRef.namespace"),
            view.text("spec.claimRef.name")
        ),
    };
    vec![
        view.name(),
        json!(view.quantity("spec.capacity.storage")),
        json!(access_modes(view, "spec.accessModes")),
        json!(view.text("spec.persistentVolumeReclaimPolicy")),
        json!(phase(view)),
        json!(claim),
        json!(storage_class(view)),
        json!(view.text_or("spec.volumeAttributesClassName", UNSET)),
        json!(view.text("status.reason")),
        view.age(),
        json!(view.text_or("spec.volumeMode", UNSET)),
    ]
}

pub(super) fn claim(view: &View<'_>) -> Vec<Value> {
    let volume = view.text("spec.volumeName");
    let (capacity, modes) = match volume {
        "" => ("", String::new()),
        _ => (
            view.quantity("status.capacity.storage"),
            access_modes(view, "status.accessModes"),
        ),
    };
    vec![
        view.name(),
        json!(phase(view)),
        json!(volume),
        json!(capacity),
        json!(modes),
        json!(storage_class(view)),
        json!(view.text_or("spec.volumeAttributesClassName", UNSET)),
        view.age(),
        json!(view.text_or("spec.volumeMode", UNSET)),
    ]
}
