//! Reads the objects whose health counts, and says how they are. Nothing is written.

use std::collections::{BTreeMap, BTreeSet};

use futures::FutureExt as _;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use starling_api::OWNER_LABEL;
use starling_api::conditions::MESSAGE_LIMIT;
use starling_core::health::{self, Health, Status};
use starling_core::object::ObjectKey;
use tokio::time::Instant;

use super::attempt::Attempt;
use super::call::{Call, JSON, What};
use super::error::MemberError;
use super::kinds::Resource;
use super::lane::Lane;
use super::metadata::ListMetadata;
use super::paths;
use super::transport::Member;

/// Objects of one kind up to which each is asked for by itself. For a list the server looks at every object of the
/// kind, whoever owns it.
const FEW: usize = 3;
/// Objects on one page: complete ones are ten times as large as their metadata.
const PAGE: usize = 100;
/// How often a list is begun anew after it expired between two pages.
const RESTARTS: usize = 2;

/// What a look at the health of objects found.
#[derive(Debug, Default)]
pub struct HealthReport {
    /// The objects that were asked for, but those of `failures`.
    pub seen: BTreeMap<ObjectKey, Seen>,
    /// Kinds (`group`, `kind`) that could not be looked at: nothing is known of their objects.
    pub failures: Vec<((String, String), MemberError)>,
    /// Why the look ended early, if it did.
    pub interrupted: Option<MemberError>,
}

/// One object as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// How it is.
    pub health: Health,
    /// In which version; empty for one that is not there.
    pub resource_version: String,
}

/// The parts of an object that tell which one it is.
#[derive(Deserialize)]
struct Head {
    metadata: HeadMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HeadMetadata {
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    resource_version: String,
}

/// A page of complete objects, of which only the wanted ones are parsed.
#[derive(Deserialize)]
struct Page<'a> {
    #[serde(default)]
    metadata: ListMetadata,
    #[serde(borrow)]
    items: Vec<&'a RawValue>,
}

impl Member {
    /// Reads `objects`, which `owner` has on the member, and judges each by itself: one paged list for each kind, or one
    /// request for each object where there are few of a kind.
    pub async fn read_health(
        &self,
        owner: &str,
        objects: &BTreeSet<ObjectKey>,
        now: Timestamp,
        deadline: Instant,
    ) -> HealthReport {
        let attempt = Attempt::until(deadline);
        let mut kinds: BTreeMap<(&str, &str), BTreeSet<&ObjectKey>> = BTreeMap::new();
        for key in objects {
            kinds.entry((&key.group, &key.kind)).or_default().insert(key);
        }
        let mut lane = Lane::new(self.limits().concurrency);
        for (kind, wanted) in &kinds {
            let look = self.read_health_of_kind(owner, *kind, wanted, now, &attempt);
            lane.begin(*kind, look.boxed()).await;
        }
        let tried = lane.finish().await;
        let mut report = HealthReport {
            interrupted: tried.end,
            ..HealthReport::default()
        };
        for ((group, kind), result) in tried.results {
            match result {
                Ok(seen) => report.seen.extend(seen),
                Err(error) => report.failures.push(((group.to_owned(), kind.to_owned()), error)),
            }
        }
        report.failures.sort_by(|a, b| a.0.cmp(&b.0));
        report
    }

    async fn read_health_of_kind(
        &self,
        owner: &str,
        (group, kind): (&str, &str),
        wanted: &BTreeSet<&ObjectKey>,
        now: Timestamp,
        attempt: &Attempt,
    ) -> Result<BTreeMap<ObjectKey, Seen>, MemberError> {
        let Some(resource) = self.resource_unversioned(group, kind, attempt).await? else {
            return Ok(wanted
                .iter()
                .map(|key| ((*key).clone(), Seen::absent()))
                .collect());
        };
        let mut seen = BTreeMap::new();
        if wanted.len() > FEW {
            let mut restarts = 0;
            seen = loop {
                match self
                    .list_health(owner, kind, &resource, wanted, now, attempt)
                    .await
                {
                    Err(MemberError::Expired { .. }) if restarts < RESTARTS => restarts += 1,
                    Err(error @ MemberError::NotServed { .. }) => {
                        self.kinds().forget(&resource.group_version);
                        return Err(error);
                    }
                    other => break other?,
                }
            };
        }
        // What the list did not hold may have lost the label, or was made between two pages.
        for key in wanted {
            if !seen.contains_key(*key) {
                let one = self.get_health(&resource, key, now, attempt).await?;
                seen.insert((*key).clone(), one);
            }
        }
        Ok(seen)
    }

    /// Reads pages until all wanted objects were seen or there is no further page.
    async fn list_health(
        &self,
        owner: &str,
        kind: &str,
        resource: &Resource,
        wanted: &BTreeSet<&ObjectKey>,
        now: Timestamp,
        attempt: &Attempt,
    ) -> Result<BTreeMap<ObjectKey, Seen>, MemberError> {
        let what = What::kind("list", kind);
        let selector = paths::escaped(&format!("{OWNER_LABEL}={owner}"));
        let first = format!(
            "{}?limit={PAGE}&labelSelector={selector}",
            paths::collection(resource)
        );
        let by_name: BTreeMap<(&str, &str), &ObjectKey> = wanted
            .iter()
            .map(|key| ((key.namespace.as_str(), key.name.as_str()), *key))
            .collect();
        let (mut seen, mut next) = (BTreeMap::new(), String::new());
        loop {
            let path = if next.is_empty() {
                first.clone()
            } else {
                format!("{first}&continue={}", paths::escaped(&next))
            };
            let answer = self.send(Call::get(what, path, JSON), attempt).await?;
            let page: Page<'_> = answer.parse(what)?;
            for item in &page.items {
                // An object that cannot be read is left to a request of its own, whose error names it.
                let Ok(Head { metadata }) = serde_json::from_str::<Head>(item.get()) else {
                    continue;
                };
                if let Some(&key) = by_name.get(&(metadata.namespace.as_str(), metadata.name.as_str())) {
                    seen.insert(key.clone(), self.judge(key, item.get(), metadata, now));
                }
            }
            next = page.metadata.next;
            // An empty page that promises more would be asked for until the deadline.
            if next.is_empty() || page.items.is_empty() || seen.len() == wanted.len() {
                return Ok(seen);
            }
        }
    }

    async fn get_health(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        now: Timestamp,
        attempt: &Attempt,
    ) -> Result<Seen, MemberError> {
        let what = What::object("get", key);
        let path = paths::object(resource, key)?;
        match self.send(Call::get(what, path, JSON), attempt).await {
            Ok(answer) => {
                let object: &RawValue = answer.parse(what)?;
                let Head { metadata } = answer.parse(what)?;
                Ok(self.judge(key, object.get(), metadata, now))
            }
            Err(MemberError::NotFound { .. }) => Ok(Seen::absent()),
            Err(error) => Err(error),
        }
    }

    fn judge(&self, key: &ObjectKey, text: &str, metadata: HeadMetadata, now: Timestamp) -> Seen {
        let health = match serde_json::from_str::<Value>(text) {
            Ok(object) => health::of(key, &object, now),
            Err(_) => Health::new(Status::Unknown, "the object cannot be read"),
        };
        Seen {
            // These are words of the member, or of whoever writes the status there.
            health: Health::new(
                health.status,
                self.redactor().clean(&health.message, MESSAGE_LIMIT),
            ),
            resource_version: metadata.resource_version,
        }
    }
}

impl Seen {
    fn absent() -> Self {
        Self {
            health: Health::new(Status::NotFound, "the object is not there"),
            resource_version: String::new(),
        }
    }
}
