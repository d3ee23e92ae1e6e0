//! Compares all field selectors of all resources: whether a resource has the field, and the message if not.

use std::collections::BTreeMap;

use futures::StreamExt as _;
use serde_json::Value;
use starling_apiserver::controllers::Controllers;

use super::script;
use super::side::{Side, client};
use super::{differences, embedded, normal, real};

/// Every field that some resource of Kubernetes 1.35 can be selected by, and some that none can.
const FIELDS: [&str; 43] = [
    "action",
    "data",
    "involvedObject.apiVersion",
    "involvedObject.fieldPath",
    "involvedObject.kind",
    "involvedObject.name",
    "involvedObject.namespace",
    "involvedObject.resourceVersion",
    "involvedObject.uid",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "name",
    "reason",
    "regarding.apiVersion",
    "regarding.fieldPath",
    "regarding.kind",
    "regarding.name",
    "regarding.namespace",
    "regarding.resourceVersion",
    "regarding.uid",
    "reportingComponent",
    "reportingController",
    "source",
    "spec.clusterIP",
    "spec.holderIdentity",
    "spec.host",
    "spec.hostNetwork",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.signerName",
    "spec.type",
    "spec.unschedulable",
    "status.nominatedNodeName",
    "status.phase",
    "status.podIP",
    "status.podIPs",
    "status.replicas",
    "status.successful",
    "type",
];

/// Returns the paths of the lists that a server offers.
async fn lists(side: &mut Side) -> Vec<String> {
    let mut versions = vec!["/api/v1".to_owned()];
    let groups = side.response(&script::step(0, "GET /apis")).await.body;
    for group in groups["groups"].as_array().into_iter().flatten() {
        for version in group["versions"].as_array().into_iter().flatten() {
            versions.push(format!("/apis/{}", version["groupVersion"].as_str().unwrap()));
        }
    }
    let mut paths = Vec::new();
    for version in versions {
        let found = side
            .response(&script::step(0, &format!("GET {version}")))
            .await
            .body;
        for resource in found["resources"].as_array().into_iter().flatten() {
            let lists = resource["verbs"]
                .as_array()
                .is_some_and(|verbs| verbs.iter().any(|verb| verb == "list"));
            if lists {
                paths.push(format!("{version}/{}", resource["name"].as_str().unwrap()));
            }
        }
    }
    paths
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_servers_have_the_same_field_selectors() {
    let (_planes, real) = real(false).await;
    let (server, _listening) = embedded(Controllers::none()).await;
    let cluster = server.create_cluster("selectors").unwrap();
    let found = client(&cluster.kubeconfig()).await;
    let paths = lists(&mut Side::new(&found, false)).await;
    let steps = paths
        .iter()
        .flat_map(|path| FIELDS.map(|field| format!("GET {path}?limit=1&fieldSelector={field}%3Dx")));
    let compared: Vec<(String, Vec<String>)> = futures::stream::iter(steps)
        .map(|line| {
            let (mut wanted, mut found) = (Side::new(&real, false), Side::new(&found, false));
            async move {
                let step = script::step(0, &line);
                let (wanted, found) = tokio::join!(wanted.response(&step), found.response(&step));
                // Which objects there are is for the scripts.
                let differences = match (wanted.code, found.code) {
                    (200, 200) => Vec::new(),
                    _ => differences(&step, &wanted, &found, &mut normal::Pair::default()),
                };
                (line, differences)
            }
        })
        .buffered(4)
        .collect()
        .await;
    let count = compared.len();
    let wrong: BTreeMap<String, Value> = (compared.into_iter())
        .filter(|(_, differences)| !differences.is_empty())
        .map(|(line, differences)| (line, differences.join("; ").into()))
        .collect();
    eprintln!("{count} selectors of {} resources compared", paths.len());
    assert!(count > 2000, "{count}");
    assert!(wrong.is_empty(), "{} selectors differ: {wrong:#?}", wrong.len());
}
