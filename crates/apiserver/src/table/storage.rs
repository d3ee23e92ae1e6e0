//! Cells of volumes and what belongs to them.

use serde_json::{Value, json};

use super::look::{Look, NONE, UNSET};

/// Kinds of `storage.k8s.io`.
pub(super) fn of(kind: &str, look: &Look<'_>) -> Vec<Value> {
    match kind {
        "StorageClass" => class(look),
        "VolumeAttributesClass" => vec![look.name(), json!(look.text("driverName")), look.age()],
        "VolumeAttachment" => vec![
            look.name(),
            json!(look.text("spec.attacher")),
            json!(look.text("spec.source.persistentVolumeName")),
            json!(look.text("spec.nodeName")),
            json!(look.flag("status.attached")),
            look.age(),
        ],
        "CSINode" => vec![look.name(), json!(look.count("spec.drivers")), look.age()],
        "CSIDriver" => driver(look),
        _ => vec![look.name(), json!(look.text("metadata.creationTimestamp"))],
    }
}

fn class(look: &Look<'_>) -> Vec<Value> {
    let annotations = look.at("metadata.annotations");
    let is_default = [
        "storageclass.kubernetes.io/is-default-class",
        "storageclass.beta.kubernetes.io/is-default-class",
    ]
    .iter()
    .any(|name| annotations.is_some_and(|annotations| annotations[*name] == "true"));
    let name = look.text("metadata.name");
    let name = if is_default {
        format!("{name} (default)")
    } else {
        name.to_owned()
    };
    vec![
        json!(name),
        json!(look.text("provisioner")),
        json!(look.text_or("reclaimPolicy", "Delete")),
        json!(look.text_or("volumeBindingMode", "Immediate")),
        json!(look.flag("allowVolumeExpansion")),
        look.age(),
    ]
}

fn driver(look: &Look<'_>) -> Vec<Value> {
    let requests = match look.at("spec.tokenRequests") {
        None => UNSET.to_owned(),
        Some(_) => {
            let all: Vec<&str> = look
                .items("spec.tokenRequests")
                .map(|one| one.text("audience"))
                .collect();
            all.join(",")
        }
    };
    let modes = look.texts("spec.volumeLifecycleModes").join(",");
    vec![
        look.name(),
        json!(look.at("spec.attachRequired").is_none_or(|flag| flag == true)),
        json!(look.flag("spec.podInfoOnMount")),
        json!(look.flag("spec.storageCapacity")),
        json!(requests),
        json!(look.flag("spec.requiresRepublish")),
        json!(if modes.is_empty() { NONE } else { &modes }),
        look.age(),
    ]
}

/// Access modes by their short names.
fn access_modes(look: &Look<'_>, path: &str) -> String {
    let given = look.texts(path);
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

fn storage_class<'a>(look: &Look<'a>) -> &'a str {
    let annotated = look
        .at("metadata.annotations")
        .and_then(|annotations| annotations.get("volume.beta.kubernetes.io/storage-class"));
    match annotated.and_then(Value::as_str) {
        Some(class) => class,
        None => look.text("spec.storageClassName"),
    }
}

fn phase<'a>(look: &Look<'a>) -> &'a str {
    if look.is_deleted() {
        "Terminating"
    } else {
        look.text("status.phase")
    }
}

pub(super) fn volume(look: &Look<'_>) -> Vec<Value> {
    let claim = match look.at("spec.claimRef") {
        None => String::new(),
        Some(_) => format!(
            "{}/{}",
            look.text("spec.claimRef.namespace"),
            look.text("spec.claimRef.name")
        ),
    };
    vec![
        look.name(),
        json!(look.quantity("spec.capacity.storage")),
        json!(access_modes(look, "spec.accessModes")),
        json!(look.text("spec.persistentVolumeReclaimPolicy")),
        json!(phase(look)),
        json!(claim),
        json!(storage_class(look)),
        json!(look.text_or("spec.volumeAttributesClassName", UNSET)),
        json!(look.text("status.reason")),
        look.age(),
        json!(look.text_or("spec.volumeMode", UNSET)),
    ]
}

pub(super) fn claim(look: &Look<'_>) -> Vec<Value> {
    let volume = look.text("spec.volumeName");
    let (capacity, modes) = match volume {
        "" => ("", String::new()),
        _ => (
            look.quantity("status.capacity.storage"),
            access_modes(look, "status.accessModes"),
        ),
    };
    vec![
        look.name(),
        json!(phase(look)),
        json!(volume),
        json!(capacity),
        json!(modes),
        json!(storage_class(look)),
        json!(look.text_or("spec.volumeAttributesClassName", UNSET)),
        look.age(),
        json!(look.text_or("spec.volumeMode", UNSET)),
    ]
}
