//! Drift checks: finds objects that were changed or deleted on the member, from their metadata alone. Sends no write.

use std::collections::{BTreeMap, BTreeSet};

use futures::FutureExt as _;
use starling_api::OWNER_LABEL;
use starling_core::apply::Record;
use starling_core::fields::FieldSet;
use starling_core::health::counts;
use starling_core::ids::OwnerLabel;
use starling_core::object::{GroupKind, ObjectId};
use tokio::time::Instant;

use super::attempt::Attempt;
use super::batch::Batch;
use super::call::{Call, METADATA, METADATA_LIST, Operation};
use super::error::MemberError;
use super::metadata::{Manager, Metadata, Partial, PartialList};
use super::paths;
use super::resource::Resource;
use super::transport::Member;

/// Objects on one page of a list, as kubectl asks for.
const PAGE: usize = 500;
/// Pages of one list at most: 100,000 objects, five times what a render may have.
const PAGES: usize = 200;
/// How often a list is restarted after it expired between two pages.
const RESTARTS: usize = 2;
/// Lists of a drift check that justify one more connection. A drift check is not urgent, and the last one was minutes
/// ago, so each connection has to be opened: its TLS costs both sides more than a list, and takes two round trips where
/// a list takes one.
const LISTS_EACH: usize = 6;
/// Maximum concurrent lists.
const LISTS: usize = 2;

/// The result of a drift check.
#[derive(Debug, Default)]
pub struct DriftReport {
    /// Objects that were changed, deleted, replaced, or lost the owner label.
    pub drifted: BTreeSet<ObjectId>,
    /// `resourceVersion` of each listed object whose health counts: if the version changed, the health may have
    /// changed.
    pub versions: BTreeMap<ObjectId, String>,
    /// Objects with the annotation that disables reconciliation. They are in none of the other lists.
    pub left_alone: BTreeSet<ObjectId>,
    /// Objects with the label of another owner, and that owner.
    pub foreign: BTreeMap<ObjectId, OwnerLabel>,
    /// Objects that Starling has applied for the owner, and that have no record: a member that was set back to a state
    /// from before a prune has them again, and their lines in the inventory.
    pub unrecorded: BTreeSet<ObjectId>,
    /// For each drifted object that still exists: the fields that Starling applied, and the other field managers.
    pub managers: BTreeMap<ObjectId, (FieldSet, Vec<Manager>)>,
    /// Kinds (`group`, `kind`) that could not be read: nothing is known about their objects.
    pub failures: Vec<(GroupKind, MemberError)>,
    /// Why the check ended early, if it did.
    pub interrupted: Option<MemberError>,
}

impl DriftReport {
    fn add(&mut self, key: &ObjectId, finding: Finding) {
        match finding {
            Finding::Drifted(managers) => {
                self.drifted.insert(key.clone());
                self.managers
                    .extend(managers.map(|managers| (key.clone(), managers)));
            }
            Finding::LeftAlone => drop(self.left_alone.insert(key.clone())),
            Finding::Foreign(owner) => drop(self.foreign.insert(key.clone(), owner)),
        }
    }
}

/// How an object differs from its record.
enum Finding {
    Drifted(Option<(FieldSet, Vec<Manager>)>),
    LeftAlone,
    Foreign(OwnerLabel),
}

/// The result for the objects of one kind.
#[derive(Default)]
struct Findings<'a> {
    /// Objects that are not in step.
    differing: Vec<(&'a ObjectId, Finding)>,
    /// [`DriftReport::versions`].
    versions: Vec<(&'a ObjectId, String)>,
    /// [`DriftReport::unrecorded`].
    unrecorded: Vec<ObjectId>,
}

impl Findings<'_> {
    fn join(&mut self, mut more: Self) {
        self.differing.append(&mut more.differing);
        self.versions.append(&mut more.versions);
        self.unrecorded.append(&mut more.unrecorded);
    }
}

/// The records of one kind, ordered by namespace and name.
type Known<'a> = [(&'a ObjectId, &'a Record)];

/// The findings, and the records of objects that the list did not contain.
type Compared<'a> = (Findings<'a>, Vec<(&'a ObjectId, &'a Record)>);

impl Member {
    /// Compares the objects of an owner on the member with the records: one paged list of metadata for each kind,
    /// cluster-wide (or for each namespace, if the cluster-wide list is forbidden), and one request for each object
    /// that is missing from the list.
    pub async fn find_drift(
        &self,
        owner: &OwnerLabel,
        records: &BTreeMap<ObjectId, Record>,
        deadline: Instant,
    ) -> DriftReport {
        let attempt = Attempt::until(deadline);
        let mut kinds: BTreeMap<GroupKind, Vec<(&ObjectId, &Record)>> = BTreeMap::new();
        for (key, record) in records {
            kinds.entry(key.group_kind()).or_default().push((key, record));
        }
        let at_once = kinds.len().div_ceil(LISTS_EACH).min(LISTS);
        let mut batch = Batch::new(self.limits().concurrency.min(at_once));
        for (kind, known) in &kinds {
            let find = self.find_drift_of_kind(owner, kind, known, &attempt);
            batch.begin(kind, find.boxed()).await;
        }
        let finished = batch.finish().await;
        let mut report = DriftReport {
            interrupted: finished.end,
            ..DriftReport::default()
        };
        for (kind, result) in finished.results {
            match result {
                Ok(Findings {
                    differing,
                    versions,
                    unrecorded,
                }) => {
                    report.unrecorded.extend(unrecorded);
                    let versions = versions.into_iter().map(|(key, version)| (key.clone(), version));
                    report.versions.extend(versions);
                    differing
                        .into_iter()
                        .for_each(|(key, finding)| report.add(key, finding));
                }
                Err(error) => report.failures.push((kind.clone(), error)),
            }
        }
        report.failures.sort_by(|a, b| a.0.cmp(&b.0));
        report
    }

    async fn find_drift_of_kind<'a>(
        &self,
        owner: &OwnerLabel,
        GroupKind { group, kind }: &GroupKind,
        known: &Known<'a>,
        attempt: &Attempt,
    ) -> Result<Findings<'a>, MemberError> {
        let Some(resource) = self.resource_unversioned(group, kind, attempt).await? else {
            let gone = known.iter().map(|(key, _)| (*key, Finding::Drifted(None)));
            return Ok(Findings {
                differing: gone.collect(),
                ..Findings::default()
            });
        };
        let (mut findings, missing) = match self
            .list_restarting(owner, kind, &resource, None, known, attempt)
            .await
        {
            // An account may have access to its namespaces only.
            Err(MemberError::Forbidden { .. }) if resource.namespaced => {
                self.list_namespaces(owner, kind, &resource, known, attempt)
                    .await?
            }
            other => other?,
        };
        for (key, record) in missing {
            let finding = self.check_object(owner, &resource, key, record, attempt).await?;
            findings.differing.extend(finding.map(|finding| (key, finding)));
        }
        Ok(findings)
    }

    /// Lists each namespace that has objects of the owner.
    async fn list_namespaces<'a>(
        &self,
        owner: &OwnerLabel,
        kind: &str,
        resource: &Resource,
        known: &Known<'a>,
        attempt: &Attempt,
    ) -> Result<Compared<'a>, MemberError> {
        let (mut findings, mut missing) = (Findings::default(), Vec::new());
        // The records are ordered by namespace.
        for known in known.chunk_by(|(one, _), (next, _)| one.namespace == next.namespace) {
            let namespace = known.first().map(|(key, _)| key.namespace.as_str());
            let compared = self
                .list_restarting(owner, kind, resource, namespace, known, attempt)
                .await?;
            findings.join(compared.0);
            missing.extend(compared.1);
        }
        Ok((findings, missing))
    }

    /// Lists, and restarts if the list expired between two pages: parts of two lists would miss objects between them.
    async fn list_restarting<'a>(
        &self,
        owner: &OwnerLabel,
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

    /// Reads all pages. Returns the findings, and the records of objects that the list does not contain.
    async fn list_drift<'a>(
        &self,
        owner: &OwnerLabel,
        kind: &str,
        resource: &Resource,
        namespace: Option<&str>,
        known: &Known<'a>,
        attempt: &Attempt,
    ) -> Result<Compared<'a>, MemberError> {
        let operation = Operation::kind("list", kind);
        let selector = paths::escaped(&format!("{OWNER_LABEL}={owner}"));
        let collection = paths::collection(resource, namespace);
        let first = format!("{collection}?limit={PAGE}&labelSelector={selector}");
        let (mut listed, mut next) = (vec![false; known.len()], String::new());
        let mut findings = Findings::default();
        let group = known.first().map_or("", |(key, _)| key.group.as_str());
        for _ in 0..PAGES {
            let path = if next.is_empty() {
                first.clone()
            } else {
                format!("{first}&continue={}", paths::escaped(&next))
            };
            let response = self
                .send(Call::get(operation, path, METADATA_LIST), attempt)
                .await?;
            let page: PartialList<'_> = response.parse(operation)?;
            for Partial { metadata } in page.items() {
                let Some(index) = position(known, metadata) else {
                    // Controllers copy labels, and not entries of Starling.
                    if metadata.is_applied() {
                        findings.unrecorded.push(ObjectId {
                            group: group.to_owned(),
                            kind: kind.to_owned(),
                            namespace: metadata.namespace.clone(),
                            name: metadata.name.clone(),
                        });
                    }
                    continue;
                };
                // Each object counts once: a member may list one object a thousand times.
                if std::mem::replace(&mut listed[index], true) {
                    continue;
                }
                let (key, record) = known[index];
                let finding = finding(owner, metadata, record);
                findings.differing.extend(finding.map(|finding| (key, finding)));
                if counts(&key.group, &key.kind) {
                    findings.versions.push((key, metadata.resource_version.clone()));
                }
            }
            let empty = page.items().is_empty();
            next = page.metadata.next;
            // An empty page with a continue token would be requested until the deadline.
            if next.is_empty() || empty {
                let missing = known.iter().zip(listed).filter(|(_, listed)| !listed);
                return Ok((findings, missing.map(|(known, _)| *known).collect()));
            }
        }
        Err(MemberError::Garbage {
            request: operation.to_string(),
            problem: format!("the list has more than {PAGES} pages"),
        })
    }

    /// Reads one object that the list did not contain: it is deleted, has lost the label, or was created between two
    /// pages.
    async fn check_object(
        &self,
        owner: &OwnerLabel,
        resource: &Resource,
        key: &ObjectId,
        record: &Record,
        attempt: &Attempt,
    ) -> Result<Option<Finding>, MemberError> {
        let operation = Operation::object("get", key);
        match self
            .send(
                Call::get(operation, paths::object(resource, key)?, METADATA),
                attempt,
            )
            .await
        {
            Ok(response) => {
                let metadata = response.parse::<Partial<'_>>(operation)?.metadata;
                Ok(finding(owner, &metadata, record))
            }
            Err(MemberError::NotFound { .. }) => Ok(Some(Finding::Drifted(None))),
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

/// Compares an object with its record; `None` if it is in step.
fn finding(owner: &OwnerLabel, metadata: &Metadata<'_>, record: &Record) -> Option<Finding> {
    if metadata.is_left_alone() {
        return Some(Finding::LeftAlone);
    }
    match metadata.live().owner {
        Some(label) if label != owner.as_str() => return Some(Finding::Foreign(OwnerLabel::new(label))),
        Some(_) => {}
        None => return Some(drifted(metadata)),
    }
    // The object was excluded from reconciliation, or owned by another owner, until now: what changed meanwhile is not
    // known.
    let returned = record.management.left_alone || !record.management.owner.is_empty();
    (returned || differs(metadata, record)).then(|| drifted(metadata))
}

fn drifted(metadata: &Metadata<'_>) -> Finding {
    Finding::Drifted(Some((metadata.our_fields(), metadata.managers())))
}

/// Whether another manager took a field that Starling applied, the object was replaced, or it was applied again under
/// the name of Starling, by this Starling without a known response or by somebody else.
///
/// An equal `resourceVersion` spares only the digest. It is no proof of an equal object: a member that was set back
/// gives the same versions again, to other objects.
fn differs(metadata: &Metadata<'_>, record: &Record) -> bool {
    let is_another = metadata.uid != record.uid || metadata.fields_time() != record.fields_time;
    if metadata.resource_version == record.resource_version {
        // Records of earlier versions have no time.
        return is_another && !record.fields_time.is_empty();
    }
    is_another || record.digest.is_empty() || metadata.fields_digest() != record.fields_digest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Guards against a member that was set back and gave a version again: an equal version ended the comparison.
    #[test]
    fn an_equal_version_is_no_proof_of_an_equal_object() {
        let of = |uid: &str, version: &str, time: &str| {
            json!({"metadata": {"name": "web", "uid": uid, "resourceVersion": version, "managedFields": [
                {"manager": "starling", "operation": "Apply", "time": time, "fieldsV1": {"f:data": {}}},
            ]}})
            .to_string()
        };
        let (first, second) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:07Z");
        let known = of("a", "5", first);
        let known: Partial<'_> = serde_json::from_str(&known).unwrap();
        let record = known.metadata.record("sha256:d");
        let timeless = Record {
            fields_time: String::new(),
            ..record.clone()
        };
        for (uid, version, time, expected) in [
            ("a", "5", first, false),
            ("a", "6", first, false),
            ("a", "5", second, true),
            ("b", "5", first, true),
            ("a", "6", second, true),
        ] {
            let text = of(uid, version, time);
            let found: Partial<'_> = serde_json::from_str(&text).unwrap();
            assert_eq!(
                differs(&found.metadata, &record),
                expected,
                "{uid} {version} {time}"
            );
        }
        assert!(
            !differs(&known.metadata, &timeless),
            "a record of an earlier version"
        );
    }
}
