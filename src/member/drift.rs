//! Finds objects that were changed or deleted on the member, from metadata alone. Nothing is written.

use std::collections::{BTreeMap, BTreeSet};

use futures::FutureExt as _;
use starling_api::OWNER_LABEL;
use starling_core::apply::Record;
use starling_core::health::counts;
use starling_core::object::ObjectKey;
use tokio::time::Instant;

use super::attempt::Attempt;
use super::call::{Call, METADATA, METADATA_LIST, What};
use super::error::MemberError;
use super::kinds::Resource;
use super::lane::Lane;
use super::metadata::{Metadata, Partial, PartialList};
use super::paths;
use super::transport::Member;

/// Objects on one page of a list, as kubectl asks for.
const PAGE: usize = 500;
/// How often a list is begun anew after it expired between two pages.
const RESTARTS: usize = 2;

/// What a search for drift found.
#[derive(Debug, Default)]
pub struct DriftReport {
    /// Objects that were changed, deleted, replaced, or lost the owner label.
    pub drifted: BTreeSet<ObjectKey>,
    /// `resourceVersion` of each listed object whose health counts: where it moved, the health may have.
    pub versions: BTreeMap<ObjectKey, String>,
    /// Kinds (`group`, `kind`) that could not be looked at: nothing is known of their objects.
    pub failures: Vec<((String, String), MemberError)>,
    /// Why the search ended early, if it did.
    pub interrupted: Option<MemberError>,
}

/// The records of one kind, ordered by namespace and name.
type Known<'a> = [(&'a ObjectKey, &'a Record)];

/// What was found of one kind.
#[derive(Default)]
struct Found {
    drifted: Vec<ObjectKey>,
    versions: Vec<(ObjectKey, String)>,
}

impl Member {
    /// Compares what an owner has on the member with the records: one paged list of metadata for each kind, cluster-wide, and
    /// one request for each object that is missing from it.
    pub async fn find_drift(
        &self,
        owner: &str,
        records: &BTreeMap<ObjectKey, Record>,
        deadline: Instant,
    ) -> DriftReport {
        let attempt = Attempt::until(deadline);
        let mut kinds: BTreeMap<(&str, &str), Vec<(&ObjectKey, &Record)>> = BTreeMap::new();
        for (key, record) in records {
            kinds
                .entry((&key.group, &key.kind))
                .or_default()
                .push((key, record));
        }
        let mut lane = Lane::new(self.limits().concurrency);
        for (kind, known) in &kinds {
            lane.begin(
                *kind,
                self.find_drift_of_kind(owner, *kind, known, &attempt).boxed(),
            )
            .await;
        }
        let tried = lane.finish().await;
        let mut report = DriftReport {
            interrupted: tried.end,
            ..DriftReport::default()
        };
        for ((group, kind), result) in tried.results {
            match result {
                Ok(found) => {
                    report.drifted.extend(found.drifted);
                    report.versions.extend(found.versions);
                }
                Err(error) => report.failures.push(((group.to_owned(), kind.to_owned()), error)),
            }
        }
        report.failures.sort_by(|a, b| a.0.cmp(&b.0));
        report
    }

    async fn find_drift_of_kind(
        &self,
        owner: &str,
        (group, kind): (&str, &str),
        known: &Known<'_>,
        attempt: &Attempt,
    ) -> Result<Found, MemberError> {
        let Some(resource) = self.resource_unversioned(group, kind, attempt).await? else {
            return Ok(Found {
                drifted: known.iter().map(|(key, _)| (*key).clone()).collect(),
                ..Found::default()
            });
        };
        let mut restarts = 0;
        let (mut found, missing) = loop {
            match self.list_drift(owner, kind, &resource, known, attempt).await {
                Err(MemberError::Expired { .. }) if restarts < RESTARTS => restarts += 1,
                Err(error @ MemberError::NotServed { .. }) => {
                    self.kinds().forget(&resource.group_version);
                    return Err(error);
                }
                other => break other?,
            }
        };
        for (key, record) in missing {
            if self.has_drifted(owner, &resource, key, record, attempt).await? {
                found.drifted.push(key.clone());
            }
        }
        Ok(found)
    }

    /// Reads all pages. Returns what has drifted, and what the list does not hold.
    async fn list_drift<'a>(
        &self,
        owner: &str,
        kind: &str,
        resource: &Resource,
        known: &Known<'a>,
        attempt: &Attempt,
    ) -> Result<(Found, Vec<(&'a ObjectKey, &'a Record)>), MemberError> {
        let what = What::kind("list", kind);
        let selector = paths::escaped(&format!("{OWNER_LABEL}={owner}"));
        let first = format!(
            "{}?limit={PAGE}&labelSelector={selector}",
            paths::collection(resource)
        );
        let (mut listed, mut found, mut next) = (vec![false; known.len()], Found::default(), String::new());
        loop {
            let path = if next.is_empty() {
                first.clone()
            } else {
                format!("{first}&continue={}", paths::escaped(&next))
            };
            let answer = self.send(Call::get(what, path, METADATA_LIST), attempt).await?;
            let page: PartialList<'_> = answer.parse(what)?;
            for Partial { metadata } in &page.items {
                let Some(index) = position(known, metadata) else {
                    continue;
                };
                let (key, record) = known[index];
                listed[index] = true;
                if differs(metadata, record) {
                    found.drifted.push(key.clone());
                }
                if counts(&key.group, &key.kind) {
                    found
                        .versions
                        .push((key.clone(), metadata.resource_version.clone()));
                }
            }
            next = page.metadata.next;
            // An empty page that promises more would be asked for until the deadline.
            if next.is_empty() || page.items.is_empty() {
                let missing = known.iter().zip(listed).filter(|(_, listed)| !listed);
                return Ok((found, missing.map(|(known, _)| *known).collect()));
            }
        }
    }

    /// Looks at one object that the list did not hold: deleted, without the label, or made between two pages.
    async fn has_drifted(
        &self,
        owner: &str,
        resource: &Resource,
        key: &ObjectKey,
        record: &Record,
        attempt: &Attempt,
    ) -> Result<bool, MemberError> {
        let what = What::object("get", key);
        match self
            .send(Call::get(what, paths::object(resource, key)?, METADATA), attempt)
            .await
        {
            Ok(answer) => {
                let metadata = answer.parse::<Partial<'_>>(what)?.metadata;
                Ok(metadata.live().owner != Some(owner) || differs(&metadata, record))
            }
            Err(MemberError::NotFound { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }
}

fn position(known: &Known<'_>, metadata: &Metadata<'_>) -> Option<usize> {
    let listed = (metadata.namespace.as_str(), metadata.name.as_str());
    known
        .binary_search_by(|(key, _)| (key.namespace.as_str(), key.name.as_str()).cmp(&listed))
        .ok()
}

/// Whether somebody took a field of ours, or the object is another one. An unchanged `resourceVersion` answers both.
fn differs(metadata: &Metadata<'_>, record: &Record) -> bool {
    metadata.resource_version != record.resource_version
        && (metadata.uid != record.uid || metadata.fields_digest() != record.fields_digest)
}
