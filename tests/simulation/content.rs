//! The content of the repository at each revision, and the expected content of a member.

use serde_json::{Value, json};
use starling_apiserver::server::ClusterHandle;

use crate::fakes::git::Tree;

/// The folder that is rolled out.
pub(crate) const FOLDER: &str = "deploy";
/// Number of revisions.
pub(crate) const REVISIONS: usize = 3;

/// Returns the tree of a revision, counted from 1: a namespace, a ConfigMap, a Deployment; the second revision has one
/// more object than the others, and if it is bad, another object that no member accepts.
pub(crate) fn tree(revision: usize, is_bad: bool) -> Tree {
    let mut objects = vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}),
        setting("settings", revision),
        json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "shop", "annotations": {"revision": revision.to_string()}},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}},
                "template": {"metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [{"name": "web", "image": format!("shop:{revision}")}]}}}}),
    ];
    if revision == 2 {
        objects.push(setting("second", revision));
    }
    if revision == 2 && is_bad {
        objects.push(json!({"apiVersion": "shop.example.com/v1", "kind": "Mistake",
            "metadata": {"name": "mistake", "namespace": "shop"}}));
    }
    [(FOLDER.to_owned(), objects)].into()
}

fn setting(name: &str, revision: usize) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "shop"},
        "data": {"revision": revision.to_string(), "cluster": "${CLUSTER}"}})
}

/// Returns the first difference of a member from the newest revision; `None`: the newest revision is applied.
pub(crate) fn missing(member: &ClusterHandle) -> Option<String> {
    let newest = REVISIONS.to_string();
    let read = |table: &str, key: &str| member.stored(table, key).map(|stored| stored.read());
    let settings = read("configmaps", "shop/settings");
    let Some(settings) = settings else {
        return Some("shop/settings is not there".to_owned());
    };
    if settings["data"] != json!({"revision": newest, "cluster": member.name()}) {
        return Some(format!("shop/settings holds {}", settings["data"]));
    }
    let Some(web) = read("deployments.apps", "shop/web") else {
        return Some("shop/web is not there".to_owned());
    };
    let image = &web["spec"]["template"]["spec"]["containers"][0]["image"];
    if *image != format!("shop:{newest}") {
        return Some(format!("shop/web runs {image}"));
    }
    if read("configmaps", "shop/second").is_some() {
        return Some("shop/second is still there".to_owned());
    }
    None
}
