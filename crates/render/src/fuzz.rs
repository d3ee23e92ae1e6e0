//! What is in git, mutated: whatever it is, the end is a result.

use std::collections::BTreeMap;

use starling_core::ids::OwnerLabel;
use starling_core::secret_values::SecretValues;

use crate::check::check;
use crate::files::Folder;
use crate::tree::Tree;
use crate::{Manifests, finish, manifest, yaml};

/// Manifests with values of a cluster, down to the rendered set.
#[test]
fn tenant_fuzz_manifests() {
    starling_fuzz::inputs!("manifests", |input| {
        let Ok(documents) = yaml::read_within(input, 100, 10_000) else {
            return;
        };
        let Ok(objects) = manifest::objects(documents, "a file", 100) else {
            return;
        };
        let manifests = Manifests {
            objects,
            plain: true,
            opened: SecretValues::default(),
        };
        let values = [("name", "eu-1"), ("label", "${name}")];
        let values: BTreeMap<String, String> = values
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        let _ = finish(&manifests, &values, &OwnerLabel::new("o"));
    });
}

/// The check of a kustomization before kustomize reads it.
#[test]
fn tenant_fuzz_kustomizations() {
    starling_fuzz::inputs!("kustomizations", |input| {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().join("base");
        std::fs::create_dir(&base).unwrap();
        std::fs::write(base.join("kustomization.yaml"), "resources: [map.yaml]\n").unwrap();
        std::fs::write(base.join("map.yaml"), "kind: ConfigMap\n").unwrap();
        let app = directory.path().join("app");
        std::fs::create_dir(&app).unwrap();
        std::fs::write(app.join("kustomization.yaml"), input).unwrap();
        let folder = Folder::open(directory.path()).unwrap();
        let tree = Tree::new(&folder);
        let _ = tree
            .directory("app")
            .and_then(|app| check(&tree, &[app]).map(drop));
    });
}
