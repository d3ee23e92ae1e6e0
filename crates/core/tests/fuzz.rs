//! What others write, mutated: whatever it is, the end is a result.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use starling_api::{
    Cluster, DeletionApproval, RolloutAction, RolloutApproval, Source, SyncGroup, SyncResource, Window,
};
use starling_core::clock_jumps::ClockJumps;
use starling_core::deletion_approval::{Approval, Approvals};
use starling_core::deletion_budget::{BudgetLimits, DeletionRequest, decide, has_deleted};
use starling_core::deletion_grant::Granted;
use starling_core::expand::{ClusterFacts, resolve};
use starling_core::ids::{ClusterId, InstallationId, RolloutNumber};
use starling_core::inventory::{Inventory, format};
use starling_core::journal::{Body, RecordedPlan};
use starling_core::plan::check::check;
use starling_core::plan::{ReadStrategy, plan, record};
use starling_core::progress::{Admitted, progress};
use starling_core::range::{Range, parse_version};
use starling_core::request::Requests;
use starling_core::revision::{RefPolicy, Revision, resolve as resolve_ref};
use starling_core::rollout::operator::{RolloutSubject, operator_actions};
use starling_core::{identity, window};

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

#[test]
fn tenant_fuzz_ranges_and_versions() {
    starling_fuzz::inputs!("ranges", |input| {
        let text = String::from_utf8_lossy(input);
        let (range, version) = text.split_once('\n').unwrap_or((&text, "v1.2.3"));
        let version = parse_version(version.trim());
        if let (Ok(range), Some(version)) = (Range::parse(range), version) {
            let _ = range.matches(&version);
        }
    });
}

/// Lines of a commit and a ref, as a git server offers them. The first line is what a Source asks for.
#[test]
fn tenant_fuzz_refs() {
    starling_fuzz::inputs!("refs", |input| {
        let text = String::from_utf8_lossy(input);
        let (asked, refs) = text.split_once('\n').unwrap_or((&text, ""));
        let refs: BTreeMap<String, String> = refs
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(commit, name)| (name.to_owned(), commit.to_owned()))
            .collect();
        let policies = [
            RefPolicy::branch(asked),
            RefPolicy::tag(asked),
            RefPolicy::semver(asked),
            RefPolicy::commit(asked),
        ];
        for policy in policies.into_iter().flatten() {
            if let Ok(revision) = resolve_ref(&policy, &refs) {
                let read: Revision = revision.to_string().parse().unwrap();
                assert_eq!(read, revision);
            }
        }
    });
}

/// Another writer may change an inventory on a member.
#[test]
fn tenant_fuzz_inventories() {
    starling_fuzz::inputs!("inventory", |input| {
        let text = String::from_utf8_lossy(input);
        let _ = format::parse_number(&text);
        let Ok(shard) = format::parse(&text) else { return };
        let written = format::encode(&shard.entries, 900_000);
        let shards = written.iter().map(|text| format::parse(text).unwrap().entries);
        let read = shards.fold(Inventory::new(), |all, shard| all.union(&shard));
        assert_eq!(read.digest(), shard.entries.digest());
    });
}

/// Whoever may write the status of an object may write anything that its schema allows, and more with an older schema.
#[test]
fn tenant_fuzz_objects_and_their_status() {
    starling_fuzz::inputs!("status", |input| {
        let Ok(object) = serde_json::from_slice::<Value>(input) else {
            return;
        };
        of_group(&object);
        of_sync(&object);
        let cluster: Option<Cluster> = read(&object);
        if let Some(cluster) = cluster {
            let _ = (ClusterFacts::of(&cluster), ClusterId::of(&cluster));
        }
        let source: Option<Source> = read(&object);
        if let Some(source) = source {
            let status = source.status.unwrap_or_default();
            let _ = status.revision.parse::<Revision>();
        }
    });
}

fn read<T: serde::de::DeserializeOwned>(object: &Value) -> Option<T> {
    serde_json::from_value(object.clone()).ok()
}

fn of_group(object: &Value) {
    let Some(group) = read::<SyncGroup>(object) else {
        return;
    };
    let _ = (identity::created_at(&group), identity::known_id(&group));
    let _ = identity::of_group(&InstallationId::new("i"), &group);
    let strategy = ReadStrategy::new(&group.spec.rollout_strategy);
    if let Ok(strategy) = &strategy {
        let _ = strategy.place(&BTreeMap::new());
    }
    let status = group.status.clone().unwrap_or_default();
    if let Some(rollout) = &status.rollout {
        let _ = record::recorded(rollout);
        let action: Option<RolloutAction> = read(object);
        let approval: Option<RolloutApproval> = read(object);
        let subject = RolloutSubject {
            group: "web",
            since: identity::created_at(&group),
            rollout: RolloutNumber::of(rollout),
            started_at: &rollout.start_time,
            digest: None,
        };
        let _ = operator_actions(subject, &action, &approval);
    }
    let limits = BudgetLimits::of_group(group.spec.deletion_budget);
    let deletions = status.deletions.unwrap_or_default();
    let request = DeletionRequest {
        objects: 3,
        cluster: "eu-1",
        is_new_cluster: true,
        of_objects: 9,
        of_clusters: 2,
        ..DeletionRequest::default()
    };
    let _ = decide(&limits, &deletions.counts, request, now());
    let approval: Option<DeletionApproval> = read(object);
    let approvals = approval.iter().map(Approval::of_object);
    let _ = Approvals::new(approvals, Some(&deletions.used), Some(now())).digests();
}

fn of_sync(object: &Value) {
    let Some(sync) = read::<SyncResource>(object) else {
        return;
    };
    let status = sync.status.clone().unwrap_or_default();
    let cluster_id = ClusterId::new(status.last_applied_cluster_id.as_str());
    let admitted = Admitted::of(&sync, &status.last_applied_target, &cluster_id);
    let _ = progress(&status, &admitted);
    let granted = Granted::of(status.deletions.as_ref(), &status.last_applied_target);
    let _ = (granted, Requests::of(&sync, None, None).are_open(&status));
    let limits = BudgetLimits::of_sync(sync.spec.deletion_budget);
    let _ = has_deleted(status.deletions.as_ref(), limits.window, now().into());
    let grace = Duration::from_secs(60);
    let pending = status.pending_deletions.as_ref();
    let _ = starling_core::apply::grace::due(pending, grace, &ClockJumps::default(), now());
    let facts = ClusterFacts::default();
    let _ = resolve(&sync.spec.template, &facts);
}

/// One entry per line: `allow`, `deny` and the time zone of a window, separated by semicolons.
#[test]
fn tenant_fuzz_windows() {
    starling_fuzz::inputs!("windows", |input| {
        let text = String::from_utf8_lossy(input);
        let mut parts = text.split(';');
        let mut next = || parts.next().unwrap_or_default().to_owned();
        let spec = Window {
            allow: next(),
            deny: next(),
            time_zone: next(),
            cluster_selector: None,
        };
        let Ok(read) = window::Window::new(&spec) else {
            return;
        };
        let calendar = window::Calendar::of(&read, now());
        let opening = window::combined(&[&calendar], now());
        assert!(opening.changes_at.is_none_or(|at| at > now()));
    });
}

/// A ledger is a file that others may write: a body is read, planned again and checked.
#[test]
fn tenant_fuzz_journals() {
    starling_fuzz::inputs!("journal", |input| {
        let Ok(body) = Body::read(&String::from_utf8_lossy(input)) else {
            return;
        };
        let Ok(recorded) = RecordedPlan::after(None, body) else {
            return;
        };
        let _ = check(&recorded.input, &recorded.plan);
        let _ = plan(&recorded.input);
    });
}
