//! Watches that stay open while definitions change. Both servers end a watch when the schema behind it changes, so that
//! its client begins again and meets every object by the definition of now; a label of the definition ends nothing.

use std::time::Duration;

use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Both, GROUP, Written};
use crate::requests::normal;
use crate::requests::side::Side;

/// How long an event or the end of a watch may take. A kube-apiserver ends a watch some seconds after the change.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A watch of all objects of a kind, on both servers.
pub(super) struct Open {
    plural: String,
    version: String,
    wanted: Events,
    found: Events,
}

/// The events of a watch on one server.
struct Events {
    body: Body,
    bytes: Vec<u8>,
    is_over: bool,
}

impl Events {
    async fn open(side: &Side, path: &str) -> Self {
        let response = side.get(path).await;
        assert_eq!(response.status(), 200, "{path}");
        Self {
            body: response.into_body(),
            bytes: Vec::new(),
            is_over: false,
        }
    }

    /// Reads this many events; fewer if the watch ends before them, or nothing arrives for too long.
    async fn take(&mut self, count: usize) -> Vec<Value> {
        let deadline = Instant::now() + TIMEOUT;
        let mut events = Vec::new();
        while events.len() < count {
            if let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.bytes.drain(..=end).collect();
                events.push(serde_json::from_slice(&line).unwrap());
                continue;
            }
            match tokio::time::timeout_at(deadline, self.body.frame()).await {
                Ok(Some(Ok(frame))) => self
                    .bytes
                    .extend_from_slice(frame.data_ref().map_or(&[][..], |data| data)),
                Ok(_) => {
                    self.is_over = true;
                    break;
                }
                Err(_) => break,
            }
        }
        events
    }
}

/// What a watch showed: its events in the order of the names, and whether it has ended.
fn shown(mut events: Vec<Value>, is_over: bool) -> Value {
    events.sort_by_key(|event| event["object"]["metadata"]["name"].to_string());
    json!({"events": events, "ended": is_over})
}

impl Both {
    /// Opens a watch of each kind, which shows all objects first.
    pub(super) async fn watch(&mut self, objects: &[Written], version: &str) -> Vec<Open> {
        let mut open = Vec::new();
        for plural in plurals(objects) {
            let path = format!("/apis/{GROUP}/{version}/namespaces/default/{plural}?watch=1");
            let mut watch = Open {
                wanted: Events::open(&self.wanted, &path).await,
                found: Events::open(&self.found, &path).await,
                plural,
                version: version.to_owned(),
            };
            let count = count(objects, &watch.plural);
            self.compare(&mut watch, count, "first").await;
            open.push(watch);
        }
        open
    }

    /// Labels each object, and compares the event of each.
    pub(super) async fn label(&mut self, open: &mut [Open], objects: &[Written], version: &str, label: &str) {
        let steps: Vec<String> = objects
            .iter()
            .map(|object| {
                let path = object.path(version);
                format!("PATCH-MERGE {path}?fieldManager=person {{\"metadata\":{{\"labels\":{{\"seen\":\"{label}\"}}}}}}")
            })
            .collect();
        self.run(&steps).await;
        for watch in open {
            let count = count(objects, &watch.plural);
            self.compare(watch, count, label).await;
        }
    }

    /// Compares how watches end.
    pub(super) async fn end(&mut self, open: Vec<Open>) {
        for mut watch in open {
            self.compare(&mut watch, usize::MAX, "end").await;
            assert!(
                watch.wanted.is_over && watch.found.is_over,
                "a watch of {} goes on with the schema of before",
                watch.plural
            );
        }
    }

    async fn compare(&mut self, watch: &mut Open, count: usize, what: &str) {
        let (wanted, found) = tokio::join!(watch.wanted.take(count), watch.found.take(count));
        let events = (wanted.len(), found.len());
        if count != usize::MAX {
            assert_eq!(
                events,
                (count, count),
                "{what}: events of {} in {} there and here",
                watch.plural,
                watch.version
            );
        }
        self.watched += found.len();
        let wanted = shown(wanted, watch.wanted.is_over);
        let found = shown(found, watch.found.is_over);
        let (wanted, found) = self.normal.both(&wanted, &found);
        let mut differences = Vec::new();
        normal::diff("", &wanted, &found, &mut differences);
        if !differences.is_empty() {
            self.differences.push(format!(
                "watch of {} in {}, {what}\n    {}",
                watch.plural,
                watch.version,
                differences.join("\n    ")
            ));
        }
    }
}

/// Returns the kinds of objects.
fn plurals(objects: &[Written]) -> Vec<String> {
    let mut plurals: Vec<String> = objects.iter().map(|object| object.plural.clone()).collect();
    plurals.sort();
    plurals.dedup();
    plurals
}

fn count(objects: &[Written], plural: &str) -> usize {
    objects.iter().filter(|object| object.plural == plural).count()
}
