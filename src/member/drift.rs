//! Finds objects that were changed or deleted on the member, from metadata alone. Nothing is written.

use std::collections::{BTreeMap, BTreeSet};

use futures::FutureExt as _;
use starling_api::OWNER_LABEL;
use starling_core::apply::Record;
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
/// Pages of one list at most: 100,000 objects, five times what a render may have.
const PAGES: usize = 200;
/// How often a list is begun anew after it expired between two pages.
const RESTARTS: usize = 2;

/// What a search for drift found.
#[derive(Debug, Default)]
pub struct DriftReport {
    /// Objects that were changed, deleted, replaced, or lost the owner label.
    pub drifted: BTreeSet<ObjectKey>,
    /// Kinds (`group`, `kind`) that could not be looked at: nothing is known of their objects.
    pub failures: Vec<((String, String), MemberError)>,
    /// Why the search ended early, if it did.
    pub interrupted: Option<MemberError>,
}

/// The records of one kind, ordered by namespace and name.
type Known<'a> = [(&'a ObjectKey, &'a Record)];

/// What has drifted, and what a list did not hold.
type Compared<'a> = (Vec<ObjectKey>, Vec<(&'a ObjectKey, &'a Record)>);

impl Member {
    /// Compares what an owner has on the member with the records: one paged list of metadata for each kind, cluster-wide (or
    /// for each namespace, where that is forbidden), and one request for each object that is missing from it.
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
                Ok(drifted) => report.drifted.extend(drifted),
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
    ) -> Result<Vec<ObjectKey>, MemberError> {
        let Some(resource) = self.resource_unversioned(group, kind, attempt).await? else {
            return Ok(known.iter().map(|(key, _)| (*key).clone()).collect());
        };
        let (mut drifted, missing) = match self.list_anew(owner, kind, &resource, None, known, attempt).await
        {
            // An account may have rights in its namespaces alone.
            Err(MemberError::Forbidden { .. }) if resource.namespaced => {
                self.list_namespaces(owner, kind, &resource, known, attempt)
                    .await?
            }
            other => other?,
        };
        for (key, record) in missing {
            if self.has_drifted(owner, &resource, key, record, attempt).await? {
                drifted.push(key.clone());
            }
        }
        Ok(drifted)
    }

    /// One list for each namespace that has objects of ours.
    async fn list_namespaces<'a>(
        &self,
        owner: &str,
        kind: &str,
        resource: &Resource,
        known: &Known<'a>,
        attempt: &Attempt,
    ) -> Result<Compared<'a>, MemberError> {
        let (mut drifted, mut missing) = (Vec::new(), Vec::new());
        // They are ordered by namespace.
        for known in known.chunk_by(|(one, _), (next, _)| one.namespace == next.namespace) {
            let namespace = known.first().map(|(key, _)| key.namespace.as_str());
            let compared = self
                .list_anew(owner, kind, resource, namespace, known, attempt)
                .await?;
            drifted.extend(compared.0);
            missing.extend(compared.1);
        }
        Ok((drifted, missing))
    }

    /// Lists, and begins anew where a list expired between two pages: half of one list and half of another would make
    /// what lies between them disappear.
    async fn list_anew<'a>(
        &self,
        owner: &str,
        kind: &str,
        resource: &Resource,
        namespace: Option<&str>,
        known: &Known<'a>,
        attempt: &Attempt,
    ) -> Result<Compared<'a>, MemberError> {
        let mut restarts = 0;
        loop {
            match self
                .list_drift(owner, kind, resource, namespace, known, attempt)
                .await
            {
                Err(MemberError::Expired { .. }) if restarts < RESTARTS => restarts += 1,
                Err(error @ MemberError::NotServed { .. }) => {
                    self.kinds().forget(&resource.group_version);
                    return Err(error);
                }
                other => return other,
            }
        }
    }

    /// Reads all pages. Returns what has drifted, and what the list does not hold.
    async fn list_drift<'a>(
        &self,
        owner: &str,
        kind: &str,
        resource: &Resource,
        namespace: Option<&str>,
        known: &Known<'a>,
        attempt: &Attempt,
    ) -> Result<Compared<'a>, MemberError> {
        let what = What::kind("list", kind);
        let selector = paths::escaped(&format!("{OWNER_LABEL}={owner}"));
        let collection = paths::collection(resource, namespace);
        let first = format!("{collection}?limit={PAGE}&labelSelector={selector}");
        let (mut listed, mut drifted, mut next) = (vec![false; known.len()], Vec::new(), String::new());
        for _ in 0..PAGES {
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
                // Once each: a member may list one object a thousand times.
                if !std::mem::replace(&mut listed[index], true) && differs(metadata, known[index].1) {
                    drifted.push(known[index].0.clone());
                }
            }
            next = page.metadata.next;
            // An empty page that promises more would be asked for until the deadline.
            if next.is_empty() || page.items.is_empty() {
                let missing = known.iter().zip(listed).filter(|(_, listed)| !listed);
                return Ok((drifted, missing.map(|(known, _)| *known).collect()));
            }
        }
        Err(MemberError::Garbage {
            request: what.to_string(),
            problem: format!("a list without an end: more than {PAGES} pages"),
        })
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
