//! Approvals of deletions: which of them apply to a Sync or a group, which are used up, and which name no list
//! (ADR 43).
//!
//! An approval is a DeletionApproval or a digest in an annotation. Each approves one list once: it is recorded as used
//! before the first delete, and what is interrupted continues under a grant, without the approval.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use kube_core::ResourceExt;
use starling_api::{APPROVE_DELETIONS, DeletionApproval, FIRST_CREATED_AT, UsedApproval};

use crate::apply::ApprovedDigests;
use crate::ids::Uid;
use crate::rollout::operator;

/// The number of approvals that a message names. The others are counted.
const NAMED: usize = 3;
/// How long an approval that approves nothing is told.
const NEW: SignedDuration = SignedDuration::from_hours(1);
/// The target of deletions without a replacement: the Sync is deleted.
pub const ENDING: &str = "deletion";

/// The digests of an annotation that count. People who approve more at once create objects.
const DIGESTS: usize = 50;
/// The records of used DeletionApprovals: as many as fit into some 30 kB. Those of older ones are one record.
const RECORDS: usize = 100;
/// The name of the record of all DeletionApprovals that were first created until its time. No object can have it.
const OLDER: &str = "*";

/// One digest that a person approved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Approval {
    /// The name of the DeletionApproval, or of the annotation.
    pub name: String,
    /// The UID of the DeletionApproval, or of the annotated object.
    pub uid: Uid,
    /// The digest.
    pub digest: String,
    /// When the DeletionApproval was first created; `None` for an annotation.
    pub created: Option<Timestamp>,
    /// Whether the controller recorded this time on the DeletionApproval: a restored one has another UID.
    pub is_marked: bool,
    /// Whether it is for all Syncs of a group, of which others may have the list.
    pub is_shared: bool,
}

impl Approval {
    /// Returns the digest of a DeletionApproval.
    #[must_use]
    pub fn of_object(object: &DeletionApproval) -> Self {
        Self {
            name: object.name_any(),
            uid: object.uid().unwrap_or_default().into(),
            digest: object.spec.digest.clone(),
            created: Some(operator::at(object)),
            is_marked: object.annotations().contains_key(FIRST_CREATED_AT),
            is_shared: object.spec.group.is_some(),
        }
    }

    /// Returns the digests in an annotation: clusters of one group may lose different objects, so there may be several,
    /// separated by commas or spaces.
    #[must_use]
    pub fn of_annotation(name: &str, value: &str, uid: &str, is_shared: bool) -> Vec<Self> {
        let of = |digest: &str| Self {
            name: name.to_owned(),
            uid: uid.into(),
            digest: digest.to_owned(),
            created: None,
            is_marked: false,
            is_shared,
        };
        ApprovedDigests::in_annotation(value)
            .take(DIGESTS)
            .map(of)
            .collect()
    }

    /// Returns the digests in the annotation of a Sync or a group.
    #[must_use]
    pub fn annotated<K: ResourceExt>(object: &K, is_shared: bool) -> Vec<Self> {
        let Some(value) = object.annotations().get(APPROVE_DELETIONS) else {
            return Vec::new();
        };
        let uid = object.uid().unwrap_or_default();
        Self::of_annotation(APPROVE_DELETIONS, value, &uid, is_shared)
    }

    /// Reports whether a record is of this approval. A restore to another API server changes UIDs: of an annotation,
    /// the kind of its object identifies it, and of a marked DeletionApproval, the time at which it was first created.
    #[must_use]
    pub fn is(&self, used: &UsedApproval) -> bool {
        if (&self.name, &self.digest) != (&used.name, &used.digest) {
            return false;
        }
        let is_restored = match self.created {
            None => used.kind == self.kind(),
            Some(created) => {
                self.is_marked && used.kind == self.kind() && used.created == created.to_string()
            }
        };
        self.uid == used.uid || is_restored
    }

    fn kind(&self) -> &'static str {
        match (self.created, self.is_shared) {
            (Some(_), _) => "DeletionApproval",
            (None, true) => "SyncGroup",
            (None, false) => "Sync",
        }
    }

    fn used_at(&self, time: String) -> UsedApproval {
        UsedApproval {
            name: self.name.clone(),
            kind: self.kind().to_owned(),
            uid: self.uid.clone().into(),
            created: self
                .created
                .map(|created| created.to_string())
                .unwrap_or_default(),
            digest: self.digest.clone(),
            time,
        }
    }

    /// `DeletionApproval shop-1`, `annotation starling.dev/approve-deletions`.
    fn subject(&self) -> String {
        match self.created {
            Some(_) => format!("DeletionApproval {}", self.name),
            None => format!("annotation {}", self.name),
        }
    }
}

/// Returns the annotation that records when an approval was created; `None`: it has one.
#[must_use]
pub fn marks(object: &DeletionApproval) -> Option<BTreeMap<String, String>> {
    let is_marked = object.annotations().contains_key(FIRST_CREATED_AT);
    let time = operator::at(object).to_string();
    (!is_marked).then(|| BTreeMap::from([(FIRST_CREATED_AT.to_owned(), time)]))
}

/// The approvals that apply to one Sync or group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Approvals {
    known: Vec<Approval>,
    used: Vec<UsedApproval>,
    /// When the Sync or group was created. A DeletionApproval that is older is of a former one of that name.
    since: Option<Timestamp>,
}

impl Approvals {
    /// Combines the approvals that exist with those that status records as used.
    #[must_use]
    pub fn new(
        known: impl IntoIterator<Item = Approval>,
        used: Option<&[UsedApproval]>,
        since: Option<Timestamp>,
    ) -> Self {
        Self {
            known: known.into_iter().collect(),
            used: used.unwrap_or_default().to_vec(),
            since,
        }
    }

    /// Reports whether no approval exists, used up or not.
    #[must_use]
    pub fn are_none(&self) -> bool {
        self.known.is_empty()
    }

    /// Reports whether a list of this digest is approved, and the approval is not used up.
    #[must_use]
    pub fn approve(&self, digest: &str) -> bool {
        self.valid(digest).next().is_some()
    }

    /// Returns the digests of valid approvals.
    #[must_use]
    pub fn digests(&self) -> ApprovedDigests {
        let valid = self.known.iter().filter(|approval| self.is_valid(approval));
        valid.map(|approval| approval.digest.clone()).collect()
    }

    /// Returns the record of used approvals after a list of this digest is carried out, without those that no longer
    /// exist. All approvals of the list are used up together.
    #[must_use]
    pub fn used_after(&self, digest: &str, now: Timestamp) -> Vec<UsedApproval> {
        let added = self
            .valid(digest)
            .map(|approval| approval.used_at(now.to_string()));
        let mut used: Vec<UsedApproval> = self.remaining().cloned().collect();
        used.extend(added);
        bounded(used)
    }

    /// Returns the record of used approvals before the first pass over a Sync: what exists by then was made before the
    /// Sync, and is no approval of what the Sync deletes. An annotation has no time, and API servers date objects in
    /// whole seconds.
    #[must_use]
    pub fn used_before(&self, now: Timestamp) -> Vec<UsedApproval> {
        let older = self.known.iter().filter(|approval| self.is_valid(approval));
        let added = older.map(|approval| approval.used_at(now.to_string()));
        bounded(self.remaining().cloned().chain(added).collect())
    }

    /// Returns the record of used approvals if it has some that no longer exist. Once an annotation was removed, it may
    /// be set again, and is a new approval.
    #[must_use]
    pub fn forgotten(&self) -> Option<Vec<UsedApproval>> {
        let remaining: Vec<UsedApproval> = self.remaining().cloned().collect();
        (remaining.len() < self.used.len()).then_some(remaining)
    }

    /// Returns these approvals without those of the group that are of another list, which another Sync may have.
    #[must_use]
    pub fn about(&self, digest: &str) -> Self {
        let mut about = self.clone();
        about
            .known
            .retain(|approval| !approval.is_shared || approval.digest == digest);
        about
    }

    /// Returns these approvals with more records of used ones: those of the Syncs of a group.
    #[must_use]
    pub fn also_used(mut self, used: impl IntoIterator<Item = UsedApproval>) -> Self {
        self.used.extend(used);
        self
    }

    /// Returns these approvals without some of them.
    #[must_use]
    pub fn without(mut self, is_out: impl Fn(&Approval) -> bool) -> Self {
        self.known.retain(|approval| !is_out(approval));
        self
    }

    /// Returns why approvals approve none of the held lists, in sentences for people; empty if there are none of them.
    #[must_use]
    pub fn remarks(&self, held: &BTreeSet<&str>) -> String {
        let void = self
            .known
            .iter()
            .filter_map(|approval| self.remark(approval, held));
        bounded_list(&void.collect::<Vec<String>>(), "more approve nothing")
    }

    /// Returns what the valid approvals are of, in sentences for people, where no list is held: a person may have
    /// mistaken a digest, or have approved too early. Without DeletionApprovals that are older than an hour, whose
    /// lists may be long gone; empty if there are none.
    #[must_use]
    pub fn unmatched(&self, now: Timestamp) -> String {
        let is_new = |approval: &&Approval| {
            let age = approval.created.map(|created| now.duration_since(created));
            age.is_none_or(|age| age <= NEW) && self.is_valid(approval)
        };
        let of = |approval: &Approval| format!("{} approves {}", approval.subject(), approval.digest);
        let named: Vec<String> = self.known.iter().filter(is_new).map(of).collect();
        bounded_list(&named, "more approve others")
    }

    fn remark(&self, approval: &Approval, held: &BTreeSet<&str>) -> Option<String> {
        let Approval { digest, .. } = approval;
        let (subject, is_held) = (approval.subject(), held.contains(&**digest));
        if let Some(used) = self.record(approval) {
            return is_held.then(|| format!("{subject} was used up at {}", used.time));
        }
        if !is_held {
            return Some(format!(
                "{subject} approves {digest}, which is not the digest of this list"
            ));
        }
        (!self.is_valid(approval))
            .then(|| format!("{subject} is older than what it is for, or than approvals that are used up"))
    }

    fn valid<'a>(&'a self, digest: &'a str) -> impl Iterator<Item = &'a Approval> {
        let is_of = move |approval: &&Approval| approval.digest == digest && self.is_valid(approval);
        self.known.iter().filter(is_of)
    }

    fn is_valid(&self, approval: &Approval) -> bool {
        let is_older = approval.created.is_some_and(|created| Some(created) < self.since);
        let is_covered = self.used.iter().any(|used| covers(used, approval.created));
        !is_older && !is_covered && self.record(approval).is_none()
    }

    fn record(&self, approval: &Approval) -> Option<&UsedApproval> {
        self.used.iter().find(|used| approval.is(used))
    }

    fn remaining(&self) -> impl Iterator<Item = &UsedApproval> {
        let is_known =
            |used: &&UsedApproval| used.name == OLDER || self.known.iter().any(|approval| approval.is(used));
        self.used.iter().filter(is_known)
    }
}

/// Joins the first sentences of a list, and counts the others.
fn bounded_list(sentences: &[String], others: &str) -> String {
    let named = &sentences[..sentences.len().min(NAMED)];
    let more = match sentences.len() - named.len() {
        0 => String::new(),
        more => format!("; {more} {others}"),
    };
    format!("{}{more}", named.join("; "))
}

/// Reports whether a record is of all DeletionApprovals that were created by then.
fn covers(used: &UsedApproval, created: Option<Timestamp>) -> bool {
    let until = used.created.parse::<Timestamp>().ok();
    used.name == OLDER && created.is_some_and(|created| until.is_some_and(|until| created <= until))
}

/// Returns the records without the oldest DeletionApprovals, of which there are too many for a status. One record takes
/// their place, under which everything that is as old counts as used: also an approval that is not used yet, which a
/// person has to give again.
fn bounded(used: Vec<UsedApproval>) -> Vec<UsedApproval> {
    let created = |used: &UsedApproval| used.created.parse::<Timestamp>().ok();
    let (mut objects, mut kept): (Vec<_>, Vec<_>) = used
        .into_iter()
        .partition(|used| used.name != OLDER && created(used).is_some());
    let excess = objects.len().saturating_sub(RECORDS);
    if excess == 0 {
        kept.extend(objects);
        return kept;
    }
    objects.sort_by_key(created);
    let newer = objects.split_off(excess);
    let older = objects
        .iter()
        .chain(kept.iter().filter(|used| used.name == OLDER));
    let last = older.max_by_key(|used| created(used)).cloned();
    kept.retain(|used| used.name != OLDER);
    kept.extend(last.map(|last| UsedApproval {
        name: OLDER.to_owned(),
        uid: String::new(),
        digest: String::new(),
        ..last
    }));
    kept.extend(newer);
    kept
}

#[cfg(test)]
mod tests {
    use starling_api::DeletionApprovalSpec;

    use super::*;

    fn t(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn object(name: &str, digest: &str, created: Timestamp) -> Approval {
        Approval::of_object(&approval(name, digest, created))
    }

    fn approval(name: &str, digest: &str, created: Timestamp) -> DeletionApproval {
        let spec = DeletionApprovalSpec {
            group: Some("shop".into()),
            sync: None,
            digest: digest.into(),
            by: "ann".into(),
            reason: String::new(),
        };
        let mut object = DeletionApproval::new(name, spec);
        object.metadata.uid = Some(format!("uid-{name}"));
        object.metadata.creation_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(created));
        object
    }

    fn annotation(value: &str) -> Vec<Approval> {
        Approval::of_annotation("starling.dev/approve-deletions", value, "uid-shop", true)
    }

    fn digests(value: &str) -> ApprovedDigests {
        ApprovedDigests::of_annotation(value)
    }

    fn with(known: &[Approval], used: &[UsedApproval]) -> Approvals {
        Approvals::new(known.to_vec(), Some(used), Some(t(0)))
    }

    /// Guards against an approval that approves the same list for ever.
    #[test]
    fn an_approval_is_used_up_once_it_is_carried_out() {
        for known in [vec![object("a", "d1", t(5))], annotation("d1")] {
            let fresh = with(&known, &[]);
            assert!(fresh.approve("d1") && !fresh.approve("d2") && !fresh.approve(""));
            assert_eq!(fresh.digests(), digests("d1"));
            let used = fresh.used_after("d1", t(9));
            assert_eq!(used.len(), 1);
            let after = with(&known, &used);
            assert!(!after.approve("d1"));
            assert_eq!((after.digests(), after.forgotten()), (digests(""), None));
            assert_eq!(after.used_after("d1", t(10)), used, "recorded once");
        }
    }

    #[test]
    fn another_object_approves_the_same_list_again() {
        let first = object("a", "d1", t(5));
        let used = with(std::slice::from_ref(&first), &[]).used_after("d1", t(9));
        let both = with(&[first, object("b", "d1", t(20))], &used);
        assert!(both.approve("d1"));
        assert_eq!(both.used_after("d1", t(21)).len(), 2);
        // An object of the same name has another UID.
        let mut again = object("a", "d1", t(20));
        again.uid = "another".into();
        assert!(with(&[again], &used).approve("d1"));
    }

    #[test]
    fn an_annotation_approves_again_after_it_was_removed_and_set() {
        let used = with(&annotation("d1, d2"), &[]).used_after("d1", t(9));
        let rest = with(&annotation("d1 d2"), &used);
        assert!(rest.approve("d2") && !rest.approve("d1"));
        assert_eq!(with(&annotation("d2"), &used).forgotten(), Some(Vec::new()));
        assert!(with(&annotation("d1"), &[]).approve("d1"));
        // An approval of another object is another one.
        let other = Approval::of_annotation("starling.dev/approve-deletions", "d1", "uid-of-sync", false);
        assert!(with(&other, &used).approve("d1"));
    }

    /// The record is in status, and people approve for years.
    #[test]
    fn the_record_is_bounded_and_no_used_approval_counts_again() {
        let all: Vec<Approval> = (0..300)
            .map(|n| object(&format!("a-{n}"), &format!("d{n}"), t(n)))
            .collect();
        let mut used: Vec<UsedApproval> = Vec::new();
        for (n, approval) in all.iter().enumerate() {
            let known = with(&all[..=n], &used);
            assert!(known.approve(&approval.digest), "{n}");
            used = known.used_after(&approval.digest, t(1000));
            assert!(used.len() <= RECORDS + 1, "{}", used.len());
        }
        let known = with(&all, &used);
        assert_eq!(
            (known.digests(), known.forgotten()),
            (ApprovedDigests::default(), None)
        );
        let restored = with(&all, &used).used_before(t(2000));
        assert_eq!(restored, used, "nothing is new");
        // One that was not used, and is as old as those that are forgotten.
        let late = |second| object("late", "late", t(second));
        assert!(!with(&[late(100)], &used).approve("late"));
        assert!(
            with(&[late(100)], &used)
                .remarks(&["late"].into())
                .contains("used up")
        );
        assert!(with(&[late(250)], &used).approve("late"));
        assert!(with(&annotation("late"), &used).approve("late"));
    }

    #[test]
    fn an_annotation_approves_a_limited_number_of_lists() {
        let value: Vec<String> = (0..300).map(|n| format!("d{n}")).collect();
        let known = annotation(&value.join(","));
        assert_eq!(known.len(), DIGESTS);
        assert!(with(&known, &[]).approve("d49") && !with(&known, &[]).approve("d50"));
    }

    /// A restore to another API server keeps status and annotations, and changes UIDs and creation times.
    #[test]
    fn what_is_used_up_stays_used_up_after_a_restore() {
        let restored = |mut approval: Approval| {
            approval.uid = "restored".into();
            approval
        };
        for known in [annotation("d1"), Approval::of_annotation("a", "d1", "s", false)] {
            let used = with(&known, &[]).used_after("d1", t(9));
            let after: Vec<Approval> = known.into_iter().map(restored).collect();
            let after = with(&after, &used);
            assert!(!after.approve("d1"));
            assert_eq!(after.forgotten(), None);
        }
        let mut first = approval("a", "d1", t(5));
        let marks = marks(&first).unwrap();
        first.metadata.annotations = Some(marks);
        assert_eq!(super::marks(&first), None);
        let used = with(&[Approval::of_object(&first)], &[]).used_after("d1", t(9));
        first.metadata.uid = Some("restored".into());
        first.metadata.creation_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(t(100)));
        assert!(!with(&[Approval::of_object(&first)], &used).approve("d1"));
        // Another one of that name, and one that is not marked yet.
        assert!(with(&[object("a", "d1", t(100))].map(restored), &used).approve("d1"));
        assert!(with(&[object("a", "d1", t(5))].map(restored), &used).approve("d1"));
        // The digests of a group and of a Sync are annotations of the same name.
        let group = with(&annotation("d1"), &[]).used_after("d1", t(9));
        let own = Approval::of_annotation("starling.dev/approve-deletions", "d1", "restored", false);
        assert!(with(&own, &group).approve("d1"));
    }

    /// A Sync that is deleted takes its record with it, and the Sync that is created later has the same name.
    #[test]
    fn an_approval_is_of_no_sync_that_is_created_later() {
        for (created, valid) in [(-1, false), (0, true), (1, true)] {
            let known = [object("a", "d1", t(created))];
            let approvals = with(&known, &[]);
            assert_eq!(approvals.approve("d1"), valid, "{created}");
            let remarks = approvals.remarks(&["d1"].into());
            assert_eq!(remarks.contains("is older than"), !valid, "{remarks}");
        }
        // An approval that exists before the first pass is older, whatever its second.
        let mut known = annotation("d1 d2");
        known.extend([object("a", "d3", t(0)), object("b", "d4", t(-1))]);
        let used = with(&known, &[]).used_before(t(1));
        assert_eq!(used.len(), 3);
        assert_eq!(with(&known, &used).digests(), digests(""));
        assert_eq!(with(&known, &used).used_before(t(2)), used);
        known.push(object("c", "d3", t(0)));
        assert_eq!(with(&known, &used).digests(), digests("d3"));
    }

    #[test]
    fn a_wrong_digest_and_a_used_approval_are_reported() {
        let known = [object("wrong", "d9", t(5)), object("spent", "d1", t(5))];
        let used = with(&known, &[]).used_after("d1", t(9));
        let approvals = with(&known, &used);
        assert_eq!(
            approvals.remarks(&["d1"].into()),
            format!(
                "DeletionApproval wrong approves d9, which is not the digest of this list; \
                 DeletionApproval spent was used up at {}",
                t(9)
            )
        );
        // An approval that was carried out is no mistake while another list waits.
        assert!(!approvals.remarks(&["d2"].into()).contains("spent"));
        assert_eq!(with(&known, &[]).remarks(&["d1", "d9"].into()), "");
        let many: Vec<Approval> = annotation("d1 d2 d3 d4 d5");
        let remarks = with(&many, &[]).remarks(&["d0"].into());
        assert!(remarks.ends_with("; 2 more approve nothing"), "{remarks}");
        assert!(remarks.starts_with("annotation starling.dev/approve-deletions approves d1"));
        let about = with(&many, &[]).about("d3").remarks(&["d3"].into());
        assert_eq!(about, "", "the others may be of other Syncs");
    }

    /// Guards against a mistaken digest that nobody is told of, because nothing is held at this time.
    #[test]
    fn an_approval_of_nothing_is_reported_while_it_is_new() {
        let known = [object("early", "d1", t(5)), object("spent", "d2", t(5))];
        let used = with(&known, &[]).used_after("d2", t(9));
        let approvals = with(&known, &used);
        assert_eq!(approvals.unmatched(t(10)), "DeletionApproval early approves d1");
        assert_eq!(
            approvals.unmatched(t(5 + 3600)),
            "DeletionApproval early approves d1"
        );
        assert_eq!(approvals.unmatched(t(6 + 3600)), "");
        assert_eq!(approvals.without(|one| one.digest == "d1").unmatched(t(10)), "");
        let many: Vec<Approval> = annotation("d1 d2 d3 d4");
        let text = with(&many, &[]).unmatched(t(9_999_999));
        assert!(text.ends_with("approves d3; 1 more approve others"), "{text}");
    }
}
