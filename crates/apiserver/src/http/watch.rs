//! Watches over HTTP: a stream of events that reads from the log when the connection has room.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::Response;
use serde_json::json;
use tokio::sync::watch::Receiver;
use tokio::time::Instant;

use super::body::{Body, Broken};
use super::encode::whole;
use super::negotiate::Shape;
use super::request::Call;
use super::response::{too_many, with_type};
use super::table;
use crate::faults::{Effect, RequestFacts};
use crate::kinds::Form;
use crate::schema;
use crate::server::{Clock, Cluster, WatchPermit};
use crate::status::Status;
use crate::verbs::{Event, EventBody, Service, Target, WatchOptions, Watching, watch_error};

/// The interval of bookmarks.
const BOOKMARKS_EVERY: Duration = Duration::from_secs(60);
/// The duration of a watch without `timeoutSeconds`; Kubernetes chooses between 30 and 60 minutes.
const DEFAULT_DURATION: Duration = Duration::from_secs(45 * 60);

/// When a user with too many watches is asked to come again, in seconds.
const RETRY_AFTER_SECONDS: u32 = 5;

/// The time that a connection has to send its pending data before a fault closes it.
const FLUSH: Duration = Duration::from_millis(20);

/// A running watch.
struct Stream {
    cluster: Arc<Cluster>,
    target: Target,
    shape: Shape,
    /// The encoder of events as tables.
    tables: table::Events,
    clock: Arc<dyn Clock>,
    watching: Watching,
    /// The initial events.
    first: Vec<Event>,
    changes: Receiver<u64>,
    closed: Receiver<bool>,
    ends: Instant,
    bookmark: Option<Instant>,
    /// A fault, and the number of events before it.
    fault: Option<(u32, Effect)>,
    /// The properties of the request, for faults that begin later.
    facts: RequestFacts,
    over: bool,
    _permit: WatchPermit,
}

/// Handles a watch.
pub(super) fn answer(call: &Call, target: Target, effects: &[Effect]) -> Result<Response<Body>, Status> {
    let options = call.params.watch()?;
    let Some(permit) = call.cluster.watches().open(&call.user.name) else {
        return Ok(too_many(RETRY_AFTER_SECONDS));
    };
    let (begun, changes) = {
        let mut state = call.cluster.state();
        let changes = state.store.signal(&target.resource.table);
        (Watching::begin(&state, &target, &options)?, changes)
    };
    let (watching, first) = begun;
    let lasts = call
        .params
        .timeout_seconds()
        .map_or(DEFAULT_DURATION, Duration::from_secs);
    let now = Instant::now();
    let stream = Stream {
        closed: call.cluster.closed(),
        cluster: Arc::clone(&call.cluster),
        target,
        shape: call.accept.shape,
        tables: table::Events::new(table::include(&call.params)?),
        clock: Arc::clone(&call.shared.options.clock),
        watching,
        first,
        changes,
        ends: now + lasts,
        bookmark: bookmark_at(&options, now),
        fault: fault(effects),
        facts: call.facts.clone(),
        over: false,
        _permit: permit,
    };
    let events = futures::stream::unfold(stream, |mut stream| async move {
        let next = stream.next().await?;
        Some((next, stream))
    });
    Ok(with_type(200, "application/json", Body::stream(events)))
}

fn bookmark_at(options: &WatchOptions, now: Instant) -> Option<Instant> {
    options.bookmarks.then(|| now + BOOKMARKS_EVERY)
}

fn fault(effects: &[Effect]) -> Option<(u32, Effect)> {
    effects.iter().find_map(|effect| match effect {
        Effect::CutWatch(after) | Effect::ExpireWatch(after) => Some((*after, effect.clone())),
        _ => None,
    })
}

impl Stream {
    /// Returns the next chunk of the response; `None` at its end.
    async fn next(&mut self) -> Option<Result<Bytes, Broken>> {
        if self.over || self.freeze().await {
            return None;
        }
        let first = std::mem::take(&mut self.first);
        if !first.is_empty() {
            return self.send(first).await;
        }
        loop {
            if let Some((0, effect)) = &self.fault {
                self.over = true;
                return match effect {
                    Effect::CutWatch(_) => {
                        // Closing the connection discards pending data, so the sent events have to leave it first.
                        tokio::time::sleep(FLUSH).await;
                        Some(Err(Broken("the watch is cut")))
                    }
                    _ => {
                        let gone = Status::expired(format!(
                            "too old resource version: {} (injected fault)",
                            self.watching.revision()
                        ));
                        Some(Ok(self.write(&[watch_error(gone)])))
                    }
                };
            }
            self.changes.mark_unchanged();
            let (events, all, service) = {
                let state = self.cluster.state();
                let service = self.watching.service(&state);
                if service == Service::Changed {
                    return None;
                }
                let (events, all) = self.watching.next(&state);
                (events, all, service)
            };
            if !events.is_empty() {
                return self.send(events).await;
            }
            if !all {
                continue;
            }
            if service == Service::Gone {
                return None;
            }
            let until = self
                .bookmark
                .map_or(self.ends, |bookmark| bookmark.min(self.ends));
            let timer = tokio::select! {
                biased;
                _ = self.closed.wait_for(|closed| *closed) => return None,
                changed = self.changes.changed() => {
                    if changed.is_err() {
                        return None;
                    }
                    false
                }
                () = tokio::time::sleep_until(until) => true,
            };
            if self.freeze().await {
                return None;
            }
            if timer {
                if Instant::now() >= self.ends {
                    return None;
                }
                self.bookmark = Some(Instant::now() + BOOKMARKS_EVERY);
                self.cluster.durable().await.ok()?;
                let event = Event {
                    kind: "BOOKMARK",
                    body: EventBody::Bookmark(self.watching.revision(), false),
                };
                return Some(Ok(self.write(&[event])));
            }
        }
    }

    /// Waits forever if a fault freezes the watch; returns true once the cluster has been removed.
    async fn freeze(&mut self) -> bool {
        let frozen = self.cluster.faults().freezes(&self.facts);
        if frozen {
            let _ = self.closed.wait_for(|closed| *closed).await;
        }
        frozen
    }

    /// Encodes events, up to the number that a fault allows.
    async fn send(&mut self, mut events: Vec<Event>) -> Option<Result<Bytes, Broken>> {
        self.cluster.durable().await.ok()?;
        if let Some((left, _)) = &mut self.fault {
            let count = u32::try_from(events.len()).unwrap_or(u32::MAX);
            if count > *left {
                events.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            }
            *left = left.saturating_sub(count);
        }
        self.over = events
            .iter()
            .any(|event| matches!(event.body, EventBody::Error(_)));
        Some(Ok(self.write(&events)))
    }

    fn write(&mut self, events: &[Event]) -> Bytes {
        let mut out = Vec::new();
        for event in events {
            out.extend_from_slice(b"{\"type\":\"");
            out.extend_from_slice(event.kind.as_bytes());
            out.extend_from_slice(b"\",\"object\":");
            match &event.body {
                EventBody::Object(stored) => match self.shape {
                    Shape::Whole => out.extend_from_slice(&whole(&self.target, stored)),
                    Shape::Metadata => stored.write_metadata(&mut out),
                    Shape::Table => {
                        self.tables
                            .object(&mut out, &self.target, stored, self.clock.now());
                    }
                },
                EventBody::Bookmark(revision, end) => {
                    let bookmark = self.bookmark(*revision, *end);
                    match self.shape {
                        Shape::Table => {
                            self.tables
                                .bookmark(&mut out, &self.target, &bookmark, self.clock.now());
                        }
                        _ => out.extend_from_slice(bookmark.to_string().as_bytes()),
                    }
                }
                EventBody::Error(status) => {
                    out.extend_from_slice(status.to_value().to_string().as_bytes());
                }
            }
            out.extend_from_slice(b"}\n");
        }
        out.into()
    }

    fn bookmark(&self, revision: u64, end: bool) -> serde_json::Value {
        // A bookmark of a built-in kind shows the fields that the kind always writes.
        let mut object = match (self.shape, &self.target.version.form) {
            (Shape::Metadata, _) => json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata"}),
            (_, Form::Builtin(_)) => {
                schema::builtin(&self.target.version.api_version, &self.target.resource.kind)
                    .map_or_else(|| json!({}), |builtin| builtin.empty)
            }
            _ => json!({
                "apiVersion": self.target.version.api_version,
                "kind": self.target.resource.kind,
            }),
        };
        object["metadata"] = json!({"resourceVersion": revision.to_string()});
        if end {
            object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        object
    }
}
