//! Tables for [`step`]: for hand-made observations, which effects in which order, and which status.

mod begin;
mod keep;
mod kept;
mod lost;
mod once;
mod random;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use starling_api::conditions::ConditionUpdate;
use starling_api::{
    DeletionPolicy, EntryRevision, HeldRelease, OnNewRevision, ReleaseStatus, RollbackType, RolloutPhase,
    RolloutStatus, StageStatus, SyncEntry, SyncGroupStatus,
};

use super::operator::{OperatorActions, RollbackRequest};
use super::*;
use crate::clock_jumps::ClockJumps;
use crate::ids::{ClusterName, ReleaseDigest, RolloutNumber, SyncName};
use crate::journal::Recorder;
use crate::plan::{
    Attribution, ClusterView, EntryView, GateResult, LeavingCause, LeavingSync, ObservedSync, PlanInput,
    Progress, Reach, ReadStrategy, StageRecord,
};

const EPOCH: Epoch = Epoch(7);
const ENTRY: &str = "app";

fn t(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn attribution(at: i64) -> Attribution {
    Attribution {
        by: "jane".into(),
        reason: "so".into(),
        at: t(at),
    }
}

fn snapshot(release: &str) -> Arc<ReleaseSnapshot> {
    let entry = serde_json::json!({"name": ENTRY, "sourceRef": {"name": "s"}, "path": "./x"});
    let entry: SyncEntry = serde_json::from_value(entry).unwrap();
    Arc::new(ReleaseSnapshot {
        digest: release.into(),
        revisions: revisions(release),
        entries: vec![entry],
    })
}

fn revisions(release: &str) -> Vec<EntryRevision> {
    vec![EntryRevision {
        sync: ENTRY.into(),
        revision: format!("main@sha1:{release}"),
    }]
}

fn named(release: &str) -> ReleaseStatus {
    ReleaseStatus {
        release: release.into(),
        revisions: revisions(release),
    }
}

/// A Sync that was admitted to a release at a time. The target of a release is its name.
fn sync(release: &str, at: i64, progress: Progress) -> ObservedSync {
    ObservedSync {
        stored_admitted_at: None,
        target: Some(release.into()),
        release: release.into(),
        admitted_at: Some(t(at)),
        progress,
        retried_for: None,
        suspended: false,
    }
}

fn healthy(release: &str) -> ObservedSync {
    sync(release, -100, Progress::healthy_since(t(-90)))
}

fn working(release: &str) -> ObservedSync {
    sync(release, -10, Progress::Working)
}

fn failing(release: &str) -> ObservedSync {
    let progress = Progress::Failing {
        reason: "ApplyFailed".into(),
        message: "refused".into(),
        retry_at: None,
    };
    sync(release, -10, progress)
}

/// Fixed observations of a group. Counts the clusters that are lent.
#[derive(Clone, Debug, Default)]
struct Fake {
    /// The place of each cluster's stage, and its Sync.
    clusters: BTreeMap<ClusterName, (usize, Option<ObservedSync>)>,
    unreachable: BTreeSet<ClusterName>,
    leaving: BTreeMap<SyncName, LeavingSync>,
    /// The operator actions on the rollout with this number.
    actions: (i64, OperatorActions),
    gate_results: BTreeMap<String, GateResult>,
    digest: Option<String>,
    /// Releases that the process does not know to be stored.
    not_stored: BTreeSet<String>,
    /// Admissions that the process has settled.
    settled: BTreeSet<AdmissionRef>,
    /// The digests of approved removals.
    approved: BTreeSet<String>,
    /// Whether an object lacks the mark of its rollout.
    unmarked: bool,
    lent: usize,
    given_back: usize,
    /// The digest for which the last approvals were read.
    approvals_of: RefCell<String>,
}

impl Observations for Fake {
    fn operator_actions(&self, rollout: &RolloutStatus) -> OperatorActions {
        self.approvals_of.borrow_mut().clone_from(&rollout.release_digest);
        let (of, actions) = &self.actions;
        if *of == rollout.id {
            actions.clone()
        } else {
            OperatorActions::default()
        }
    }

    fn gate_results(&self, _: RolloutNumber, stages: &mut BTreeMap<String, StageRecord>) {
        for (name, result) in &self.gate_results {
            let last = stages.get_mut(name).and_then(|record| record.after.last_mut());
            if let Some(last) = last {
                last.result.get_or_insert_with(|| result.clone());
            }
        }
    }

    fn gate_messages(&self, _: RolloutNumber, _: &mut [StageStatus]) {}

    fn release_digest(&self, _: &Rolling) -> Option<String> {
        assert!(
            self.lent > self.given_back,
            "the clusters of the pass are not observed"
        );
        self.digest.clone()
    }

    fn is_settled(&self, admission: &AdmissionRef) -> bool {
        self.settled.contains(admission)
    }

    fn is_stored(&self, release: &str) -> bool {
        !self.not_stored.contains(release)
    }

    fn clusters(&mut self, rolling: &Rolling) -> BTreeMap<ClusterName, ClusterView> {
        self.lent += 1;
        let clusters = self.clusters.iter().map(|(name, (stage, observed))| {
            let entry = EntryView {
                wanted: Ok(rolling.snapshot.digest.as_str().into()),
                known_good: rolling
                    .known_good
                    .as_ref()
                    .map(|good| good.digest.as_str().into()),
                observed: observed.clone(),
            };
            let away = Reach::Unreachable {
                reason: "Unreachable".into(),
                message: "no answer".into(),
                since: t(-200),
            };
            let view = ClusterView {
                id: name.to_string(),
                reach: if self.unreachable.contains(name) {
                    away
                } else {
                    Reach::Ready
                },
                stage: *stage,
                windows: Vec::new(),
                entries: [(ENTRY.into(), entry)].into(),
            };
            (name.clone(), view)
        });
        clusters.collect()
    }

    fn give_back(&mut self, clusters: BTreeMap<ClusterName, ClusterView>) {
        assert!(
            clusters.keys().eq(self.clusters.keys()),
            "other clusters came back"
        );
        self.given_back += 1;
    }

    fn leaving(&self, _: &Rolling) -> BTreeMap<SyncName, LeavingSync> {
        self.leaving.clone()
    }

    fn approves_removals(&self, digest: &str) -> bool {
        self.approved.contains(digest)
    }

    fn awaits_marks(&self, _: &SyncGroupStatus) -> bool {
        self.unmarked
    }

    fn admission(&self, cluster: &str, entry: &str) -> Option<AdmissionRef> {
        let sync = self.clusters.get(cluster)?.1.as_ref()?;
        Some(AdmissionRef {
            cluster: cluster.into(),
            entry: entry.into(),
            rollout: RolloutNumber::new(1),
            target: sync.target.clone()?,
        })
    }

    fn conditions(&self, _: &PlanInput) -> Vec<ConditionUpdate> {
        Vec::new()
    }
}

/// A group, with the whole input of the machine.
#[derive(Clone, Debug)]
struct Case {
    now: Timestamp,
    status: SyncGroupStatus,
    strategy: ReadStrategy,
    on_new_revision: OnNewRevision,
    rollback: RollbackType,
    suspended: bool,
    membership_held: bool,
    offer: Offer,
    reported_at: Option<Timestamp>,
    recorder: Option<Recorder>,
    /// Releases that are no longer stored; all others are.
    lost: BTreeSet<String>,
    observed: Fake,
    /// The needs of the last step.
    needs: Vec<Need>,
}

fn strategy(json: serde_json::Value) -> ReadStrategy {
    ReadStrategy::new(&serde_json::from_value(json).unwrap()).unwrap()
}

/// Returns a group without a rollout that is offered `r1`, with a journal and one slot.
fn fresh(clusters: &[&str]) -> Case {
    let clusters = clusters.iter().map(|name| ((*name).into(), (0, None)));
    Case {
        now: t(0),
        status: SyncGroupStatus::default(),
        strategy: strategy(serde_json::json!({"maxConcurrency": 1})),
        on_new_revision: OnNewRevision::Replace,
        rollback: RollbackType::Staged,
        suspended: false,
        membership_held: false,
        offer: offer("r1"),
        reported_at: None,
        recorder: Some(Recorder::default()),
        lost: BTreeSet::new(),
        observed: Fake {
            clusters: clusters.collect(),
            ..Fake::default()
        },
        needs: Vec::new(),
    }
}

/// Returns a group whose rollout 1 is of `release`, with one Sync on each of its clusters.
fn rolling(release: &str, clusters: &[(&str, ObservedSync)]) -> Case {
    let mut case = fresh(&[]);
    for (name, observed) in clusters {
        let cluster = (0, Some(observed.clone()));
        case.observed.clusters.insert((*name).into(), cluster);
    }
    case.offer = offer(release);
    case.status.rollout = Some(RolloutStatus {
        id: 1,
        release: release.into(),
        revisions: revisions(release),
        phase: RolloutPhase::Progressing,
        start_time: t(-100).to_string(),
        ..RolloutStatus::default()
    });
    case
}

fn offer(release: &str) -> Offer {
    Offer {
        release: release.into(),
        snapshot: Some(snapshot(release)),
        settles_at: None,
    }
}

impl Case {
    /// Steps with the releases that are loaded, whatever is missing.
    fn step_with(&mut self, loaded: &Loaded) -> Result<Transition, StepError> {
        let facts = Facts {
            now: self.now,
            clock_jumps: &ClockJumps::default(),
            epoch: EPOCH,
            strategy: &self.strategy,
            on_new_revision: self.on_new_revision,
            rollback: self.rollback,
            suspended: self.suspended,
            membership_held: self.membership_held,
            unselected: &[],
            kept_entries: &[],
            offer: &self.offer,
            identity: None,
            generation: Some(3),
            requested_at: None,
            reported_at: self.reported_at,
        };
        let known = Known {
            status: &self.status,
            loaded,
            recorder: self.recorder.as_ref(),
        };
        step(known, &facts, &mut self.observed)
    }

    /// Loads the needs of the machine until it has stepped. A revision stands for the release of that name.
    fn step(&mut self) -> Transition {
        let mut loaded = Loaded::default();
        self.needs.clear();
        loop {
            let need = match self.step_with(&loaded) {
                Ok(transition) => {
                    assert_eq!(self.observed.lent, self.observed.given_back, "all came back");
                    return transition;
                }
                Err(StepError::Needs(need)) => need,
                Err(error) => panic!("{error}"),
            };
            assert_eq!(self.observed.lent, self.observed.given_back, "{need:?}");
            assert!(!self.needs.contains(&need), "{need:?} was loaded");
            self.needs.push(need.clone());
            let is_stored = |release: &str| !self.lost.contains(release);
            match need {
                Need::Release(digest) => {
                    let found = is_stored(&digest).then(|| snapshot(&digest));
                    loaded.take_release(digest, found);
                }
                Need::Revision(revision) => {
                    let found = is_stored(&revision).then(|| revision.as_str().into());
                    loaded.take_revision(revision, found);
                }
            }
        }
    }

    /// Steps and executes the effects: status is written, and Syncs work from then on.
    fn pass(&mut self) -> Transition {
        let transition = self.step();
        for effect in &transition.effects {
            match &effect.action {
                Action::WriteStatus(write) => {
                    self.status = write.status.clone();
                    self.reported_at = Some(self.now);
                }
                Action::AppendJournal { draft, .. } => {
                    let recorder = self.recorder.as_mut().expect("a journal is kept");
                    recorder.wrote((**draft).clone());
                }
                Action::SettleAdmission { admission, .. } => {
                    self.observed.settled.insert(admission.clone());
                }
                Action::Admit(admissions) => {
                    for admission in admissions {
                        let of = |settled: &AdmissionRef| {
                            (&settled.cluster, &settled.entry) == (&admission.cluster, &admission.entry)
                        };
                        self.observed.settled.retain(|settled| !of(settled));
                        let cluster = self.observed.clusters.get_mut(&admission.cluster).unwrap();
                        cluster.1 = Some(ObservedSync {
                            stored_admitted_at: None,
                            target: Some(admission.target.clone()),
                            release: admission.release.clone(),
                            admitted_at: Some(admission.at),
                            progress: Progress::Working,
                            retried_for: admission.retried_for,
                            suspended: false,
                        });
                    }
                }
                Action::RemoveSyncs(removals) => {
                    for removal in removals {
                        self.observed.leaving.remove(&removal.sync);
                    }
                }
                Action::StoreRelease { snapshot, .. } => drop(self.lost.remove(snapshot.digest.as_str())),
                _ => {}
            }
        }
        transition
    }

    /// The release of the rollout in status, and its number.
    fn current(&self) -> (i64, &str) {
        let rollout = self.status.rollout.as_ref().unwrap();
        (rollout.id, &rollout.release)
    }

    /// An operator requests a rollback of rollout 1, to a revision or to the last known good release.
    fn request_rollback(&mut self, to: Option<&str>) {
        self.observed.actions = (
            1,
            OperatorActions {
                rollback: Some(RollbackRequest {
                    revision: to.map(str::to_owned),
                    attribution: attribution(-5),
                }),
                ..OperatorActions::default()
            },
        );
    }
}

/// Returns the writes of a transition, in order.
fn writes(transition: &Transition) -> Vec<String> {
    transition.effects.iter().map(label).collect()
}

fn label(effect: &Effect) -> String {
    assert_eq!(effect.epoch, EPOCH);
    let clusters = |admissions: &[Admission]| {
        let clusters: Vec<&str> = admissions
            .iter()
            .map(|admission| admission.cluster.as_str())
            .collect();
        clusters.join(" ")
    };
    match &effect.action {
        Action::AppendJournal { rollout, .. } => format!("append journal {rollout}"),
        Action::StoreRelease { snapshot, .. } => format!("store {}", snapshot.digest),
        Action::RecordRollout(intent) => match intent.previous {
            Some(previous) => format!("record rollout {} after {previous:?}", intent.id),
            None => format!("record rollout {}", intent.id),
        },
        Action::WriteStatus(write) => match write.durable {
            Some(why) => format!("write status, durable: {why:?}"),
            None => "write status".to_owned(),
        },
        Action::EndRollout { rollout, outcome } => format!("end rollout {rollout} {outcome:?}"),
        Action::EvaluateGates(_) => "evaluate gates".to_owned(),
        Action::SettleAdmission { admission, reason } => format!("settle {} {reason}", admission.cluster),
        Action::RecordAdmissions(admissions) => format!("record admissions {}", clusters(admissions)),
        Action::Admit(admissions) => format!("admit {}", clusters(admissions)),
        Action::RemoveSyncs(removals) => {
            let names: Vec<&str> = removals.iter().map(|removal| removal.sync.as_str()).collect();
            format!("remove {}", names.join(" "))
        }
        Action::CollectGarbage { named, .. } => {
            let named: Vec<&str> = named.iter().map(ReleaseDigest::as_str).collect();
            format!("forget all but {}", named.join(" "))
        }
        Action::DigestRelease => "digest release".to_owned(),
        Action::AllowPrunes(syncs) => format!("allow prunes {}", syncs.join(" ")),
        Action::WriteMarks => "write marks".to_owned(),
    }
}
