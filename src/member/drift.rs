//! Finds objects that were changed or deleted on the member, from metadata alone. Nothing is written.

use std::collections::{BTreeMap, BTreeSet};

use futures::FutureExt as _;
use starling_api::OWNER_LABEL;
use starling_core::apply::Record;
use starling_core::fields::FieldSet;
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
/// Pages of one list at most: 100,000 objects, five times what a render may have.
const PAGES: usize = 200;
/// How often a list is begun anew after it expired between two pages.
const RESTARTS: usize = 2;
/// Lists of a look for which a connection is worth it. Nobody waits for them, and since the last look was minutes ago each
/// connection has to be made: its TLS costs both sides more than a list, and takes two round trips where a list takes one.
const LISTS_EACH: usize = 6;
/// Lists at the same time, however many there are.
const LISTS: usize = 2;

/// What a search for drift found.
#[derive(Debug, Default)]
pub struct DriftReport {
    /// Objects that were changed, deleted, replaced, or lost the owner label.
    pub drifted: BTreeSet<ObjectKey>,
    /// `resourceVersion` of each listed object whose health counts: where it moved, the health may have.
    pub versions: BTreeMap<ObjectKey, String>,
    /// Objects that somebody asks to leave alone; they are in none of the other lists.
    pub left_alone: BTreeSet<ObjectKey>,
    /// Objects that carry the label of another owner, and which.
    pub foreign: BTreeMap<ObjectKey, String>,
    /// Of the drifted objects that still exist: who holds which fields, Starling's own apart.
    pub managers: BTreeMap<ObjectKey, (FieldSet, Vec<Manager>)>,
    /// Kinds (`group`, `kind`) that could not be looked at: nothing is known of their objects.
    pub failures: Vec<((String, String), MemberError)>,
    /// Why the search ended early, if it did.
    pub interrupted: Option<MemberError>,
}

/// A field manager of an object on the member, and what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manager {
    /// Its name, such as `kubectl-edit`.
    pub name: String,
    /// Its fields.
    pub fields: FieldSet,
}

impl DriftReport {
    fn add(&mut self, key: &ObjectKey, finding: Finding) {
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

/// What there is to say of an object that is not simply in step.
enum Finding {
    Drifted(Option<(FieldSet, Vec<Manager>)>),
    LeftAlone,
    Foreign(String),
}

/// What was found out about the objects of one kind.
#[derive(Default)]
struct Findings<'a> {
    /// Of those that are not simply in step.
    remarkable: Vec<(&'a ObjectKey, Finding)>,
    /// [`DriftReport::versions`].
    versions: Vec<(&'a ObjectKey, String)>,
}

impl Findings<'_> {
    fn join(&mut self, mut more: Self) {
        self.remarkable.append(&mut more.remarkable);
        self.versions.append(&mut more.versions);
    }
}

/// The records of one kind, ordered by namespace and name.
type Known<'a> = [(&'a ObjectKey, &'a Record)];

/// What was found, and what a list did not hold.
type Compared<'a> = (Findings<'a>, Vec<(&'a ObjectKey, &'a Record)>);

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
        let at_once = kinds.len().div_ceil(LISTS_EACH).min(LISTS);
        let mut lane = Lane::new(self.limits().concurrency.min(at_once));
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
                Ok(Findings { remarkable, versions }) => {
                    let versions = versions.into_iter().map(|(key, version)| (key.clone(), version));
                    report.versions.extend(versions);
                    remarkable
                        .into_iter()
                        .for_each(|(key, finding)| report.add(key, finding));
                }
                Err(error) => report.failures.push(((group.to_owned(), kind.to_owned()), error)),
            }
        }
        report.failures.sort_by(|a, b| a.0.cmp(&b.0));
        report
    }

    async fn find_drift_of_kind<'a>(
        &self,
        owner: &str,
        (group, kind): (&str, &str),
        known: &Known<'a>,
        attempt: &Attempt,
    ) -> Result<Findings<'a>, MemberError> {
        let Some(resource) = self.resource_unversioned(group, kind, attempt).await? else {
            let gone = known.iter().map(|(key, _)| (*key, Finding::Drifted(None)));
            return Ok(Findings {
                remarkable: gone.collect(),
                ..Findings::default()
            });
        };
        let (mut findings, missing) = match self.list_anew(owner, kind, &resource, None, known, attempt).await
        {
            // An account may have rights in its namespaces alone.
            Err(MemberError::Forbidden { .. }) if resource.namespaced => {
                self.list_namespaces(owner, kind, &resource, known, attempt)
                    .await?
            }
            other => other?,
        };
        for (key, record) in missing {
            let finding = self.look_at(owner, &resource, key, record, attempt).await?;
            findings.remarkable.extend(finding.map(|finding| (key, finding)));
        }
        Ok(findings)
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
        let (mut findings, mut missing) = (Findings::default(), Vec::new());
        // They are ordered by namespace.
        for known in known.chunk_by(|(one, _), (next, _)| one.namespace == next.namespace) {
            let namespace = known.first().map(|(key, _)| key.namespace.as_str());
            let compared = self
                .list_anew(owner, kind, resource, namespace, known, attempt)
                .await?;
            findings.join(compared.0);
            missing.extend(compared.1);
        }
        Ok((findings, missing))
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

    /// Reads all pages. Returns what was found, and what the list does not hold.
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
        let (mut listed, mut next) = (vec![false; known.len()], String::new());
        let mut findings = Findings::default();
        for _ in 0..PAGES {
            let path = if next.is_empty() {
                first.clone()
            } else {
                format!("{first}&continue={}", paths::escaped(&next))
            };
            let answer = self.send(Call::get(what, path, METADATA_LIST), attempt).await?;
            let page: PartialList<'_> = answer.parse(what)?;
            for Partial { metadata } in page.items() {
                let Some(index) = position(known, metadata) else {
                    continue;
                };
                // Once each: a member may list one object a thousand times.
                if std::mem::replace(&mut listed[index], true) {
                    continue;
                }
                let (key, record) = known[index];
                let finding = finding(owner, metadata, record);
                findings.remarkable.extend(finding.map(|finding| (key, finding)));
                if counts(&key.group, &key.kind) {
                    findings.versions.push((key, metadata.resource_version.clone()));
                }
            }
            let empty = page.items().is_empty();
            next = page.metadata.next;
            // An empty page that promises more would be asked for until the deadline.
            if next.is_empty() || empty {
                let missing = known.iter().zip(listed).filter(|(_, listed)| !listed);
                return Ok((findings, missing.map(|(known, _)| *known).collect()));
            }
        }
        Err(MemberError::Garbage {
            request: what.to_string(),
            problem: format!("a list without an end: more than {PAGES} pages"),
        })
    }

    /// Looks at one object that the list did not hold: deleted, without the label, or made between two pages.
    async fn look_at(
        &self,
        owner: &str,
        resource: &Resource,
        key: &ObjectKey,
        record: &Record,
        attempt: &Attempt,
    ) -> Result<Option<Finding>, MemberError> {
        let what = What::object("get", key);
        match self
            .send(Call::get(what, paths::object(resource, key)?, METADATA), attempt)
            .await
        {
            Ok(answer) => {
                let metadata = answer.parse::<Partial<'_>>(what)?.metadata;
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

/// What there is to say of an object; `None` if it is in step.
fn finding(owner: &str, metadata: &Metadata<'_>, record: &Record) -> Option<Finding> {
    if metadata.is_left_alone() {
        return Some(Finding::LeftAlone);
    }
    match metadata.live().owner {
        Some(label) if label != owner => return Some(Finding::Foreign(label.to_owned())),
        Some(_) => {}
        None => return Some(drifted(metadata)),
    }
    // What it was left alone for, or given away for, is over: what has changed since is not known.
    let returned = record.terms.left_alone || !record.terms.owner.is_empty();
    (returned || differs(metadata, record)).then(|| drifted(metadata))
}

fn drifted(metadata: &Metadata<'_>) -> Finding {
    Finding::Drifted(Some((metadata.our_fields(), metadata.managers())))
}

/// Whether somebody took a field of ours, or the object is another one. An unchanged `resourceVersion` answers both.
fn differs(metadata: &Metadata<'_>, record: &Record) -> bool {
    metadata.resource_version != record.resource_version
        && (metadata.uid != record.uid || metadata.fields_digest() != record.fields_digest)
}
