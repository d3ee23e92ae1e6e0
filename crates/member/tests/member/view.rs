//! The state of one Sync, for a member that is not a real API server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use bytes::Bytes;
use serde_json::json;
use starling_api::OWNER_LABEL;
use starling_core::apply::ApprovedDeletions;
use starling_core::apply::Record;
use starling_core::digest;
use starling_core::ids::OwnerLabel;
use starling_core::object::{Directives, ObjectId, RenderedObject, RenderedSet};
use starling_member::{ApplyJob, ApplyOutcome, DriftReport, Member, NoBudgets, NoSiblings};

use crate::world::{key, soon};

static OWNER: LazyLock<OwnerLabel> = LazyLock::new(|| OwnerLabel::new("0f"));

/// The state that the controller keeps between two attempts.
pub(crate) struct View {
    member: Member,
    pub(crate) records: BTreeMap<ObjectId, Record>,
    pub(crate) drifted: BTreeSet<ObjectId>,
}

impl View {
    pub(crate) fn new(member: Member) -> Self {
        Self {
            member,
            records: BTreeMap::new(),
            drifted: BTreeSet::new(),
        }
    }

    /// Applies ConfigMaps of the namespace `shop`, prunes others, and keeps the resulting records.
    pub(crate) async fn apply(&mut self, names: &[&str]) -> ApplyOutcome {
        let desired = RenderedSet {
            digest: String::new(),
            objects: names.iter().map(|name| map(name)).collect(),
            secrets: Default::default(),
        };
        let outcome = self
            .member
            .apply(ApplyJob {
                owner: &OWNER,
                desired: &desired,
                records: &self.records,
                drifted: &self.drifted,
                compare: false,
                former: &Default::default(),
                kept: &BTreeMap::new(),
                prune: true,
                allow_empty: false,
                conflicts_override: false,
                recreate: false,
                siblings: &NoSiblings,
                earlier: Default::default(),
                budgets: &NoBudgets,
                confirm: &Default::default(),
                grace: starling_core::apply::Grace::none(),
                approval: ApprovedDeletions::default(),
                deadline: soon(),
            })
            .await;
        for applied in &outcome.applied {
            self.records.insert(applied.key.clone(), applied.record.clone());
            self.drifted.remove(&applied.key);
        }
        for key in outcome.deleted.iter().chain(&outcome.released) {
            self.records.remove(key);
        }
        outcome
    }

    pub(crate) async fn find_drift(&self) -> DriftReport {
        self.member.find_drift(&OWNER, &self.records, soon()).await
    }
}

fn map(name: &str) -> RenderedObject {
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "shop", "labels": {OWNER_LABEL: *OWNER}}, "data": {"k": "v"}});
    let body = Bytes::from(body.to_string());
    RenderedObject {
        key: key("", "ConfigMap", "shop", name),
        api_version: "v1".into(),
        digest: digest::of_bytes(&body),
        body,
        directives: Directives::default(),
    }
}
