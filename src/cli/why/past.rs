//! The past, from the controller's journal.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};
use jiff::Timestamp;
use starling_api::SyncResource;
use starling_core::explain as core;
use starling_core::journal::past::{Said, at as looked_at, said};
use starling_core::journal::{Entry, Look};
use starling_core::plan::{Decision, EntryView, Progress};

use super::Subject;
use super::tell::{Held, Place, Told};
use crate::cli::caller::{Caller, CallerArguments};
use crate::cli::journal::{Recorded, names_of_groups};
use crate::cli::lists;

/// Answers, one for each group that it is about.
pub(super) async fn tell(
    subject: &Subject,
    at: Timestamp,
    data_dir: &Path,
    caller: &CallerArguments,
) -> anyhow::Result<Vec<Told>> {
    let namespace = &caller.namespace_unsigned()?;
    match subject {
        Subject::Group(group) => {
            let past = Past::read(data_dir, namespace, group, at).await?;
            let explained = past.with(|name, look| core::group(name, &look.input, &look.plan));
            Ok(vec![past.told(format!("syncgroup/{group}"), explained?, None)])
        }
        Subject::Cluster(cluster) => of_cluster(data_dir, namespace, cluster, at).await,
        Subject::Sync(name) => {
            // Whose it is stands nowhere else.
            let signed_in = Caller::sign_in(caller).await?;
            let sync: SyncResource = lists::one(&signed_in, name).await?;
            let group = sync.spec.group_ref.as_ref();
            let group =
                group.with_context(|| format!("Sync {name} is of no group: the journal tells of groups"))?;
            let past = Past::read(data_dir, &signed_in.namespace, &group.name, at).await?;
            let cluster = &sync.spec.cluster_ref.name;
            Ok(vec![past.of_cluster(format!("sync/{name}"), cluster)?])
        }
    }
}

async fn of_cluster(
    data_dir: &Path,
    namespace: &str,
    cluster: &str,
    at: Timestamp,
) -> anyhow::Result<Vec<Told>> {
    let mut told = Vec::new();
    for group in names_of_groups(data_dir, namespace).await? {
        // A group may have begun later, or never have selected it.
        let Ok(past) = Past::read(data_dir, namespace, &group, at).await else {
            continue;
        };
        if past.look.input.clusters.contains_key(cluster) {
            told.push(past.of_cluster(format!("cluster/{cluster}"), cluster)?);
        }
    }
    if told.is_empty() {
        bail!("no journal of namespace {namespace} tells of cluster {cluster} at {at}");
    }
    Ok(told)
}

/// How a group stood.
struct Past {
    namespace: String,
    group: String,
    at: Timestamp,
    recorded: Recorded,
    /// Number, rollout and time of the entry that says so.
    entry: (i64, i64, Timestamp),
    look: Look,
}

impl Past {
    async fn read(data_dir: &Path, namespace: &str, group: &str, at: Timestamp) -> anyhow::Result<Self> {
        let recorded = Recorded::read(data_dir, namespace, group).await?;
        let (entry, look) = looked_at(&recorded.journal.entries, at).with_context(|| {
            let first = recorded.journal.entries.first();
            match first {
                Some(first) => format!(
                    "the journal of {namespace}/{group} tells nothing of {at}: it begins at {}",
                    first.at
                ),
                None => format!("the journal of {namespace}/{group} is empty"),
            }
        })?;
        let Entry {
            seq,
            rollout,
            at: written,
            ..
        } = entry;
        Ok(Self {
            namespace: namespace.to_owned(),
            group: group.to_owned(),
            at,
            entry: (*seq, *rollout, *written),
            recorded,
            look,
        })
    }

    fn with<T>(&self, tell: impl FnOnce(&str, &Look) -> T) -> anyhow::Result<T> {
        Ok(tell(&self.group, &self.look))
    }

    fn of_cluster(&self, subject: String, cluster: &str) -> anyhow::Result<Told> {
        let Look { input, plan } = &self.look;
        let explained = core::cluster(&self.group, input, plan, cluster).with_context(|| {
            format!(
                "SyncGroup {} did not select cluster {cluster} at {}",
                self.group, self.at
            )
        })?;
        Ok(self.told(subject, explained, Some(cluster)))
    }

    fn told(&self, subject: String, explanation: core::Explanation, only: Option<&str>) -> Told {
        let (seq, rollout, written) = self.entry;
        let clusters = self.look.input.clusters.keys();
        let places = clusters.filter(|name| only.is_none_or(|only| only == *name));
        let words = said(&self.look).into_iter().map(|(what, word)| Said {
            what,
            word: word.clone(),
            until: None,
        });
        Told {
            subject,
            group: Some(format!("{}/{}", self.namespace, self.group)),
            at: self.at,
            rollout: Some(rollout),
            entry: Some((seq, written)),
            explanation,
            estimate: None,
            clusters: places.filter_map(|name| self.place(name)).collect(),
            words: words.collect(),
        }
    }

    fn place(&self, name: &str) -> Option<Place> {
        let view = self.look.input.clusters.get(name)?;
        let stage = self.look.plan.stages.get(view.stage);
        let entries = view.entries.iter();
        let entries: BTreeMap<String, Held> = entries
            .map(|(entry, view)| (entry.clone(), self.held(entry, view)))
            .collect();
        Some(Place {
            cluster: name.to_owned(),
            stage: stage.map(|stage| stage.name.clone()).unwrap_or_default(),
            decision: self.look.plan.decisions.get(name).map(word).unwrap_or_default(),
            entries,
        })
    }

    fn held(&self, entry: &str, view: &EntryView) -> Held {
        let Some(sync) = &view.observed else {
            return Held {
                revision: String::new(),
                state: "nothing".to_owned(),
            };
        };
        let revisions = self.recorded.revisions(&sync.release);
        let revision = revisions.and_then(|revisions| revisions.get(entry)).cloned();
        Held {
            // Of a rollout that is not kept any more only the digest is known.
            revision: revision.unwrap_or_else(|| sync.release.clone()),
            state: match &sync.progress {
                Progress::Working => "being applied".to_owned(),
                Progress::Failing { reason, .. } => format!("failing: {reason}"),
                Progress::Held(held) => match (held.healthy_since(), &held.trouble) {
                    (Some(since), _) => format!("healthy since {since}"),
                    (None, Some(trouble)) => format!("applied, not healthy: {}", trouble.reason),
                    (None, None) => "applied, not healthy".to_owned(),
                },
            },
        }
    }
}

fn word(decision: &Decision) -> String {
    match decision {
        Decision::Done => "done".to_owned(),
        Decision::Start { .. } => "start".to_owned(),
        Decision::InFlight { lost: true, .. } => "in flight, lost".to_owned(),
        Decision::InFlight { .. } => "in flight".to_owned(),
        Decision::Soaking { until } => format!("soaking until {until}"),
        Decision::Failed { reason, .. } => format!("failed: {}", reason.as_str()),
        Decision::Hold { reason, .. } => format!("held: {}", reason.as_str()),
    }
}
