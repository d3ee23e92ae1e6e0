//! Writes Kubernetes events.
//!
//! An event is written after a change, never by every reconcile. A failed write is logged, and nothing depends on it:
//! conditions contain everything that must be known.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::controller::waits;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde_json::json;
use starling_api::conditions::cut;
use starling_core::digest::hash64;
use starling_core::ids::Uid;
use starling_net::clock::Clock;

/// The reporting controller of each event.
const REPORTER: &str = "starling.dev/controller";
/// The action of each event.
const ACTION: &str = "Reconcile";
/// Maximum length of a note. The API accepts 1 kB.
const NOTE_LIMIT: usize = 1000;
/// Time within which a repeated event is counted as a series, as in client-go.
const SERIES: SignedDuration = SignedDuration::from_mins(6);

/// The recorder of events. kube's recorder is not used because it reads the clock of the system.
pub struct Events {
    client: Client,
    clock: Clock,
    reported: Mutex<HashMap<Report, Series>>,
}

/// The identity of an event: the object and the reported text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Report {
    uid: Uid,
    type_: &'static str,
    reason: String,
    note: String,
}

/// An event, with the number and the time of its repetitions.
#[derive(Clone, Debug)]
struct Series {
    name: String,
    count: i32,
    last: Timestamp,
}

impl Events {
    /// Creates a recorder for the management cluster behind `client`.
    #[must_use]
    pub fn new(client: Client, clock: Clock) -> Self {
        Self {
            client,
            clock,
            reported: Mutex::default(),
        }
    }

    /// Records that an operation succeeded.
    pub async fn normal<K: Resource<DynamicType = ()>>(&self, of: &K, reason: &str, note: String) {
        self.write(of, "Normal", reason, note).await;
    }

    /// Records a condition that may require an action of a person.
    pub async fn warning<K: Resource<DynamicType = ()>>(&self, of: &K, reason: &str, note: String) {
        self.write(of, "Warning", reason, note).await;
    }

    async fn write<K: Resource<DynamicType = ()>>(
        &self,
        of: &K,
        type_: &'static str,
        reason: &str,
        note: String,
    ) {
        let report = Report {
            uid: of.meta().uid.clone().unwrap_or_default().into(),
            type_,
            reason: reason.to_owned(),
            note: cut(&note, NOTE_LIMIT),
        };
        let error = match tokio::time::timeout(waits::EVENT_TIMEOUT, self.publish(of, &report)).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => crate::chain(&error),
            Err(_) => format!("no response within {:?}", waits::EVENT_TIMEOUT),
        };
        let name = of.meta().name.clone().unwrap_or_default();
        tracing::warn!(object = %name, reason, %note, %error, "event not written");
    }

    async fn publish<K: Resource<DynamicType = ()>>(&self, of: &K, report: &Report) -> kube::Result<()> {
        let now = self.clock.now();
        let regarding = of.object_ref(&());
        let namespace = regarding.namespace.as_deref().unwrap_or("default");
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let series = match self.before(report, now) {
            Some(before) => {
                let series = Series {
                    count: before.count.saturating_add(1),
                    last: now,
                    ..before
                };
                let again = EventSeries {
                    count: series.count,
                    last_observed_time: MicroTime(now),
                };
                let patch = json!({"series": again});
                api.patch(&series.name, &PatchParams::default(), &Patch::Merge(&patch))
                    .await?;
                series
            }
            None => {
                let name = regarding.name.as_deref().unwrap_or_default();
                let number = hash64(&[
                    &report.uid,
                    report.type_,
                    &report.reason,
                    &report.note,
                    &now.to_string(),
                ]);
                let series = Series {
                    name: format!("{name}.{number:016x}"),
                    count: 1,
                    last: now,
                };
                let event = Event {
                    action: Some(ACTION.to_owned()),
                    event_time: Some(MicroTime(now)),
                    metadata: ObjectMeta {
                        namespace: Some(namespace.to_owned()),
                        name: Some(series.name.clone()),
                        ..ObjectMeta::default()
                    },
                    note: Some(report.note.clone()),
                    reason: Some(report.reason.clone()),
                    regarding: Some(regarding.clone()),
                    reporting_controller: Some(REPORTER.to_owned()),
                    reporting_instance: Some(REPORTER.to_owned()),
                    type_: Some(report.type_.to_owned()),
                    ..Event::default()
                };
                api.create(&PostParams::default(), &event).await?;
                series
            }
        };
        self.lock().insert(report.clone(), series);
        Ok(())
    }

    /// Returns the series of the same event, if the event was reported recently.
    fn before(&self, report: &Report, now: Timestamp) -> Option<Series> {
        let mut known = self.lock();
        known.retain(|_, series| now.duration_since(series.last) < SERIES);
        known.get(report).cloned()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Report, Series>> {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
