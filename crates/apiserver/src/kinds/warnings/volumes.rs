//! The volumes of a Pod.

use serde_json::Value;

use super::{items, storage};

/// Checks all volumes of a Pod or template, at a path with a dot at its end.
pub(super) fn check(at: &str, spec: &Value, out: &mut Vec<String>) {
    for (place, volume) in items(&spec["volumes"]) {
        let path = format!("{at}spec.volumes[{place}]");
        plugins(&path, volume, out);
    }
    for (_, volume) in items(&spec["volumes"]) {
        overlaps(volume, out);
    }
}

fn plugins(path: &str, volume: &Value, out: &mut Vec<String>) {
    storage::plugin(volume, path, "photonPersistentDisk", out);
    if !volume["gitRepo"].is_null() {
        out.push(format!(
            "{path}.gitRepo: deprecated in v1.11, and disabled by default in v1.33+"
        ));
    }
    storage::plugin(volume, path, "scaleIO", out);
    for plugin in ["flocker", "storageos", "quobyte", "glusterfs"] {
        storage::plugin(volume, path, plugin, out);
    }
    let claim = &volume["ephemeral"]["volumeClaimTemplate"];
    storage::claim_spec(
        &format!("{path}.ephemeral.volumeClaimTemplate.spec"),
        &claim["spec"],
        out,
    );
    storage::plugin(volume, path, "cephfs", out);
    storage::plugin(volume, path, "rbd", out);
}

/// A path of a volume, and what is there.
#[derive(PartialEq)]
struct File {
    path: String,
    source: String,
}

impl File {
    fn new(path: &Value, source: &str) -> Self {
        Self {
            path: path.as_str().unwrap_or_default().trim_end_matches('/').to_owned(),
            source: source.to_owned(),
        }
    }

    fn shown(&self) -> String {
        if self.source.is_empty() {
            format!("{:?}", self.path)
        } else {
            format!("{:?} ({})", self.path, self.source)
        }
    }

    /// Reports whether both cannot be in one volume: they are the same, or one is a directory of the other.
    fn overlaps(&self, other: &Self) -> bool {
        let (one, two) = (format!("{}/", self.path), format!("{}/", other.path));
        !self.path.is_empty() && !other.path.is_empty() && (one.starts_with(&two) || two.starts_with(&one))
    }
}

/// Says which paths of a volume are in conflict.
fn overlaps(volume: &Value, out: &mut Vec<String>) {
    let name = volume["name"].as_str().unwrap_or_default();
    let kinds = [
        ("configMap", "ConfigMap", "name"),
        ("secret", "Secret", "secretName"),
    ];
    for (field, kind, of) in kinds {
        let source = &volume[field];
        let of = source[of].as_str().unwrap_or_default();
        let about = format!("volume {name:?} ({kind} {of:?})");
        conflicts(&about, &files(&source["items"], ""), out);
    }
    let about = format!("volume {name:?} (DownwardAPI)");
    conflicts(&about, &files(&volume["downwardAPI"]["items"], ""), out);
    let mut all = Vec::new();
    for (_, source) in items(&volume["projected"]["sources"]) {
        if source.as_object().is_none_or(serde_json::Map::is_empty) {
            out.push(format!("volume {name:?} (Projected) has no sources provided"));
        }
        all.extend(projected(source));
    }
    conflicts(&format!("volume {name:?} (Projected)"), &all, out);
}

fn files(list: &Value, source: &str) -> Vec<File> {
    items(list)
        .map(|(_, item)| File::new(&item["path"], source))
        .collect()
}

/// Returns the files of one source of a projected volume.
fn projected(source: &Value) -> Vec<File> {
    let named = |of: &Value| of["name"].as_str().unwrap_or_default().to_owned();
    let (map, secret) = (&source["configMap"], &source["secret"]);
    if map["items"].is_array() {
        return files(&map["items"], &format!("ConfigMap {:?}", named(map)));
    }
    if secret["items"].is_array() {
        return files(&secret["items"], &format!("Secret {:?}", named(secret)));
    }
    if source["downwardAPI"]["items"].is_array() {
        return files(&source["downwardAPI"]["items"], "DownwardAPI");
    }
    if source["serviceAccountToken"].is_object() {
        let path = &source["serviceAccountToken"]["path"];
        return vec![File::new(path, "ServiceAccountToken")];
    }
    let bundle = &source["clusterTrustBundle"];
    if bundle.is_object() {
        let name = bundle["name"].as_str().or(bundle["signerName"].as_str());
        let source = format!("ClusterTrustBundle {:?}", name.unwrap_or_default());
        return vec![File::new(&bundle["path"], &source)];
    }
    Vec::new()
}

fn conflicts(about: &str, files: &[File], out: &mut Vec<String>) {
    for (place, file) in files.iter().enumerate() {
        for other in files.iter().take(place).filter(|other| file.overlaps(other)) {
            out.push(format!(
                "{about}: overlapping paths: {} with {}",
                file.shown(),
                other.shown()
            ));
        }
    }
}
