//! Health checks: reads the objects whose health counts, and evaluates each. Sends no write.

use std::collections::{BTreeMap, BTreeSet};

use futures::FutureExt as _;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use starling_api::OWNER_LABEL;
use starling_api::conditions::MESSAGE_LIMIT;
use starling_core::health::{self, Health, Status};
use starling_core::ids::OwnerLabel;
use starling_core::object::{GroupKind, ObjectId};
use tokio::time::Instant;

use super::attempt::Attempt;
use super::batch::Batch;
use super::call::{Call, JSON, Operation};
use super::error::MemberError;
use super::metadata::ListMetadata;
use super::paths;
use super::resource::Resource;
use super::transport::Member;

/// Up to this number of objects of one kind, each is read by its own request. For a list, the server reads every object
/// of the kind, whatever its owner.
const FEW: usize = 3;
/// Objects on one page: a complete object is ten times as large as its metadata.
const PAGE: usize = 100;
/// Pages of one list at most: 100,000 objects, five times what a render may have.
const PAGES: usize = 1000;
/// How often a list is restarted after it expired between two pages.
const RESTARTS: usize = 2;

/// The result of a health check.
#[derive(Debug, Default)]
pub struct HealthReport {
    /// The requested objects without those of `failures`.
    pub objects: BTreeMap<ObjectId, ObjectHealth>,
    /// Kinds that could not be read: nothing is known about their objects.
    pub failures: Vec<(GroupKind, MemberError)>,
    /// Why the check ended early, if it did.
    pub interrupted: Option<MemberError>,
}

/// The health of one object at one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectHealth {
    /// Its health.
    pub health: Health,
    /// The version that was read; empty if the object does not exist.
    pub resource_version: String,
}

/// The fields of an object that identify it.
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
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
}

impl HeadMetadata {
    /// Whether the object has the label of another owner: it was handed over, or taken.
    fn is_of_another(&self, owner: &OwnerLabel) -> bool {
        let label = { self.labels.as_ref() }.and_then(|labels| labels.get(OWNER_LABEL));
        label.is_some_and(|label| label != owner.as_str())
    }
}

/// The parameters of a list of one kind.
struct List<'a> {
    owner: &'a OwnerLabel,
    kind: &'a str,
    resource: &'a Resource,
    now: Timestamp,
}

/// A page of complete objects, of which only the requested ones are parsed.
#[derive(Deserialize)]
struct Page<'a> {
    #[serde(default)]
    metadata: ListMetadata,
    /// `null` if an API server has nothing to list; without the field, the response is not a list.
    #[serde(borrow, deserialize_with = "Option::deserialize")]
    items: Option<Vec<&'a RawValue>>,
}

impl Member {
    /// Reads `objects`, which `owner` applied to the member, and evaluates each by itself: one paged list for each
    /// kind, or one request for each object if a kind has few. The health of an object that has the label of another
    /// owner is unknown.
    pub async fn read_health(
        &self,
        owner: &OwnerLabel,
        objects: &BTreeSet<ObjectId>,
        now: Timestamp,
        deadline: Instant,
    ) -> HealthReport {
        let attempt = Attempt::until(deadline);
        let mut kinds: BTreeMap<GroupKind, BTreeSet<&ObjectId>> = BTreeMap::new();
        for key in objects {
            kinds.entry(key.group_kind()).or_default().insert(key);
        }
        let mut batch = Batch::new(self.limits().concurrency);
        for (kind, wanted) in &kinds {
            let read = self.read_health_of_kind(owner, kind, wanted, now, &attempt);
            batch.begin(kind, read.boxed()).await;
        }
        let finished = batch.finish().await;
        let mut report = HealthReport {
            interrupted: finished.end,
            ..HealthReport::default()
        };
        for (kind, result) in finished.results {
            match result {
                Ok(objects) => report.objects.extend(objects),
                Err(error) => report.failures.push((kind.clone(), error)),
            }
        }
        report.failures.sort_by(|a, b| a.0.cmp(&b.0));
        report
    }

    async fn read_health_of_kind(
        &self,
        owner: &OwnerLabel,
        GroupKind { group, kind }: &GroupKind,
        wanted: &BTreeSet<&ObjectId>,
        now: Timestamp,
        attempt: &Attempt,
    ) -> Result<BTreeMap<ObjectId, ObjectHealth>, MemberError> {
        let Some(resource) = self.resource_unversioned(group, kind, attempt).await? else {
            return Ok(wanted
                .iter()
                .map(|key| ((*key).clone(), ObjectHealth::absent()))
                .collect());
        };
        let mut objects = BTreeMap::new();
        if wanted.len() > FEW {
            let list = List {
                owner,
                kind,
                resource: &resource,
                now,
            };
            objects = match self.list_health_restarting(&list, None, wanted, attempt).await {
                // An account may have access to its namespaces only.
                Err(MemberError::Forbidden { .. }) if resource.namespaced => {
                    self.list_health_of_namespaces(&list, wanted, attempt).await?
                }
                other => other?,
            };
        }
        // An object that the list did not contain may have lost the label, or was created between two pages.
        for key in wanted {
            if !objects.contains_key(*key) {
                let one = self.get_health(owner, &resource, key, now, attempt).await?;
                objects.insert((*key).clone(), one);
            }
        }
        Ok(objects)
    }

    /// Lists each namespace that has requested objects.
    async fn list_health_of_namespaces(
        &self,
        list: &List<'_>,
        wanted: &BTreeSet<&ObjectId>,
        attempt: &Attempt,
    ) -> Result<BTreeMap<ObjectId, ObjectHealth>, MemberError> {
        let mut namespaces: BTreeMap<&str, BTreeSet<&ObjectId>> = BTreeMap::new();
        for key in wanted {
            namespaces.entry(&key.namespace).or_default().insert(key);
        }
        let mut objects = BTreeMap::new();
        for (namespace, wanted) in &namespaces {
            objects.extend(
                self.list_health_restarting(list, Some(namespace), wanted, attempt)
                    .await?,
            );
        }
        Ok(objects)
    }

    /// Lists, and restarts if the list expired between two pages.
    async fn list_health_restarting(
        &self,
        list: &List<'_>,
        namespace: Option<&str>,
        wanted: &BTreeSet<&ObjectId>,
        attempt: &Attempt,
    ) -> Result<BTreeMap<ObjectId, ObjectHealth>, MemberError> {
        let mut restarts = 0;
        loop {
            match self.list_health(list, namespace, wanted, attempt).await {
                Err(MemberError::Expired { .. }) if restarts < RESTARTS => restarts += 1,
                Err(error @ MemberError::NotServed { .. }) => {
                    self.kinds().forget(&list.resource.group_version);
                    return Err(error);
                }
                other => return other,
            }
        }
    }

    /// Reads pages until all requested objects were read or there is no further page.
    async fn list_health(
        &self,
        list: &List<'_>,
        namespace: Option<&str>,
        wanted: &BTreeSet<&ObjectId>,
        attempt: &Attempt,
    ) -> Result<BTreeMap<ObjectId, ObjectHealth>, MemberError> {
        let operation = Operation::kind("list", list.kind);
        let selector = paths::escaped(&format!("{OWNER_LABEL}={}", list.owner));
        let collection = paths::collection(list.resource, namespace);
        let first = format!("{collection}?limit={PAGE}&labelSelector={selector}");
        let by_name: BTreeMap<(&str, &str), &ObjectId> = wanted
            .iter()
            .map(|key| ((key.namespace.as_str(), key.name.as_str()), *key))
            .collect();
        let (mut objects, mut next) = (BTreeMap::new(), String::new());
        for _ in 0..PAGES {
            let path = if next.is_empty() {
                first.clone()
            } else {
                format!("{first}&continue={}", paths::escaped(&next))
            };
            let response = self.send(Call::get(operation, path, JSON), attempt).await?;
            let page: Page<'_> = response.parse(operation)?;
            let items = page.items.unwrap_or_default();
            for item in &items {
                // An object that cannot be parsed is requested again by itself, so that the error names it.
                let Ok(Head { metadata }) = serde_json::from_str::<Head>(item.get()) else {
                    continue;
                };
                if let Some(&key) = by_name.get(&(metadata.namespace.as_str(), metadata.name.as_str())) {
                    objects.insert(key.clone(), self.evaluate(key, item.get(), metadata, list.now));
                }
            }
            next = page.metadata.next;
            // An empty page with a continue token would be requested until the deadline.
            if next.is_empty() || items.is_empty() || objects.len() == wanted.len() {
                return Ok(objects);
            }
        }
        Err(MemberError::Garbage {
            request: operation.to_string(),
            problem: format!("the list has more than {PAGES} pages"),
        })
    }

    async fn get_health(
        &self,
        owner: &OwnerLabel,
        resource: &Resource,
        key: &ObjectId,
        now: Timestamp,
        attempt: &Attempt,
    ) -> Result<ObjectHealth, MemberError> {
        let operation = Operation::object("get", key);
        let path = paths::object(resource, key)?;
        match self.send(Call::get(operation, path, JSON), attempt).await {
            Ok(response) => {
                let object: &RawValue = response.parse(operation)?;
                let Head { metadata } = response.parse(operation)?;
                if metadata.is_of_another(owner) {
                    return Ok(ObjectHealth::of_another(metadata.resource_version));
                }
                Ok(self.evaluate(key, object.get(), metadata, now))
            }
            Err(MemberError::NotFound { .. }) => Ok(ObjectHealth::absent()),
            Err(error) => Err(error),
        }
    }

    fn evaluate(&self, key: &ObjectId, text: &str, metadata: HeadMetadata, now: Timestamp) -> ObjectHealth {
        let health = match serde_json::from_str::<Value>(text) {
            Ok(object) => health::of(key, &object, now),
            Err(_) => Health::new(Status::Unknown, "the object cannot be read"),
        };
        ObjectHealth {
            // The message is written by the member, or by a controller that writes the status there.
            health: Health::new(
                health.status,
                self.redactor().clean(&health.message, MESSAGE_LIMIT),
            ),
            resource_version: metadata.resource_version,
        }
    }
}

impl ObjectHealth {
    fn absent() -> Self {
        Self {
            health: Health::new(Status::NotFound, "the object does not exist"),
            resource_version: String::new(),
        }
    }

    /// What another Sync wrote says nothing about what this one applied.
    fn of_another(resource_version: String) -> Self {
        Self {
            health: Health::new(Status::Unknown, "it belongs to another Sync by now"),
            resource_version,
        }
    }
}
