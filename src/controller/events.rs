//! Kubernetes events: what a person should hear of once, and would look for at the object.
//!
//! They are written on a change, never on every look. They are a courtesy: one that cannot be written is logged, and nothing
//! depends on it. What must be known is in conditions.

use std::fmt;
use std::time::Duration;

use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource};
use starling_api::conditions::cut;

/// What the controller was doing: all of it is one thing.
const ACTION: &str = "Reconcile";
/// Limit of one event: a slow management cluster must not hold up what the event is about.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Longest note that the API takes is 1 kB.
const NOTE_LIMIT: usize = 1000;

/// Writes events.
pub struct Events {
    recorder: Recorder,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

impl Events {
    /// Events of this process on the management cluster behind `client`.
    #[must_use]
    pub fn new(client: Client) -> Self {
        let reporter = Reporter {
            controller: "starling.dev/controller".into(),
            instance: None,
        };
        Self {
            recorder: Recorder::new(client, reporter),
        }
    }

    /// Something went as it should.
    pub async fn normal<K: Resource<DynamicType = ()>>(&self, of: &K, reason: &str, note: String) {
        self.write(of, EventType::Normal, reason, note).await;
    }

    /// Something that a person may want to act on.
    pub async fn warning<K: Resource<DynamicType = ()>>(&self, of: &K, reason: &str, note: String) {
        self.write(of, EventType::Warning, reason, note).await;
    }

    async fn write<K: Resource<DynamicType = ()>>(
        &self,
        of: &K,
        type_: EventType,
        reason: &str,
        note: String,
    ) {
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(cut(&note, NOTE_LIMIT)),
            action: ACTION.into(),
            secondary: None,
        };
        let object = of.object_ref(&());
        let error = match tokio::time::timeout(TIMEOUT, self.recorder.publish(&event, &object)).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => crate::chain(&error),
            Err(_) => format!("no answer within {TIMEOUT:?}"),
        };
        let name = object.name.unwrap_or_default();
        tracing::warn!(object = %name, reason, %note, %error, "event not written");
    }
}
