//! The present, from the objects on the management cluster.

use std::path::Path;

use anyhow::{Context, bail};
use jiff::Timestamp;
use kube::ResourceExt;
use kube::core::SelectorExt as _;
use starling_api::conditions::READY;
use starling_api::{Cluster, RolloutAction, RolloutApproval, SyncGroup, SyncResource};
use starling_core::expand;
use starling_core::explain::{self as core, Durations, Explanation, Link};
use starling_core::journal::past;
use starling_core::plan::plan;

use super::Subject;
use super::tell::Told;
use crate::cli::caller::{Caller, CallerArguments};
use crate::cli::journal::Recorded;
use crate::cli::lists;
use crate::controller::hub::Hub;
use crate::controller::reconcile::sync_group::{NoOutlook, Outlook, Seeing, outlook};

/// Answers, one for each group that it is about.
pub(super) async fn tell(
    subject: &Subject,
    data_dir: Option<&Path>,
    caller: &CallerArguments,
) -> anyhow::Result<Vec<Told>> {
    let caller = Caller::sign_in(caller).await?;
    let groups: Vec<SyncGroup> = lists::all(&caller).await?;
    let desk = Desk {
        seeing: Seeing::of(
            lists::all(&caller).await?,
            lists::all::<Cluster>(&caller).await?,
            lists::all(&caller).await?,
            lists::all::<RolloutApproval>(&caller).await?,
            lists::all::<RolloutAction>(&caller).await?,
        ),
        hub: Hub::new(caller.client.clone()),
        now: Timestamp::now(),
        data_dir,
        caller,
    };
    let found = |name: &str| groups.iter().find(|group| group.name_any() == name).cloned();
    match subject {
        Subject::Group(name) => match found(name) {
            Some(group) => Ok(vec![desk.of_group(group, None).await?]),
            None => bail!("there is no SyncGroup {}/{name}", desk.caller.namespace),
        },
        Subject::Cluster(name) => desk.of_cluster(groups, name).await,
        Subject::Sync(name) => {
            let sync = lists::one::<SyncResource>(&desk.caller, name).await?;
            let group = sync.spec.group_ref.as_ref().and_then(|of| found(&of.name));
            Ok(vec![match group {
                Some(group) => desk.of_sync(group, &sync).await?,
                None => alone(&sync, desk.now),
            }])
        }
    }
}

/// What an answer is made of.
struct Desk<'a> {
    caller: Caller,
    hub: Hub,
    seeing: Seeing,
    now: Timestamp,
    data_dir: Option<&'a Path>,
}

impl Desk<'_> {
    async fn of_group(&self, group: SyncGroup, cluster: Option<&str>) -> anyhow::Result<Told> {
        let name = group.name_any();
        let mut told = Told {
            subject: cluster.map_or_else(
                || format!("syncgroup/{name}"),
                |cluster| format!("cluster/{cluster}"),
            ),
            group: Some(format!("{}/{name}", self.caller.namespace)),
            at: self.now,
            rollout: None,
            entry: None,
            explanation: Explanation {
                state: String::new(),
                chain: Vec::new(),
                next: String::new(),
                next_at: None,
            },
            estimate: None,
            clusters: Vec::new(),
            words: Vec::new(),
        };
        let Outlook { rollout, input } = match outlook(&self.hub, &self.seeing, group, self.now).await {
            Ok(outlook) => outlook,
            Err(NoOutlook::Hub(error)) => return Err(error.into()),
            Err(why) => {
                told.explanation.state = format!("cannot be rolled: {why}");
                return Ok(told);
            }
        };
        told.rollout = Some(rollout.id);
        let durations = self.durations(&name, &input.clusters).await?;
        let plan = plan(&input);
        match cluster {
            None => {
                told.explanation = core::group(&name, &input, &plan);
                told.estimate = Some(core::estimate_group(&input, &durations));
            }
            Some(cluster) => {
                told.explanation = core::cluster(&name, &input, &plan, cluster)
                    .with_context(|| format!("SyncGroup {name} does not select cluster {cluster}"))?;
                told.estimate = Some(core::estimate_cluster(&input, &durations, cluster));
            }
        }
        Ok(told)
    }

    /// Of every group that selects it.
    async fn of_cluster(&self, groups: Vec<SyncGroup>, name: &str) -> anyhow::Result<Vec<Told>> {
        let cluster = lists::one::<Cluster>(&self.caller, name).await?;
        let mut told = Vec::new();
        for group in groups {
            if selects(&group, &cluster) {
                told.push(self.of_group(group, Some(name)).await?);
            }
        }
        if told.is_empty() {
            bail!(
                "no SyncGroup of namespace {} selects cluster {name}",
                self.caller.namespace
            );
        }
        Ok(told)
    }

    /// What its group says of its cluster; and, where the group is done with it, what the Sync says of itself.
    async fn of_sync(&self, group: SyncGroup, sync: &SyncResource) -> anyhow::Result<Told> {
        let cluster = &sync.spec.cluster_ref.name;
        let own = alone(sync, self.now);
        // A Sync whose cluster is gone, or not selected any more, is about to leave: its group tells nothing of it.
        let clusters: Vec<Cluster> = lists::all(&self.caller).await?;
        let known = clusters.iter().find(|known| known.name_any() == *cluster);
        if !known.is_some_and(|known| selects(&group, known)) {
            return Ok(own);
        }
        let mut told = self.of_group(group, Some(cluster)).await?;
        told.explanation.state = format!("cluster {cluster} {}", told.explanation.state);
        told.explanation.chain.extend(own.explanation.chain);
        told.subject = own.subject;
        Ok(told)
    }

    /// What can be seen now, and what is recorded.
    async fn durations(
        &self,
        group: &str,
        clusters: &std::collections::BTreeMap<String, starling_core::plan::ClusterView>,
    ) -> anyhow::Result<Durations> {
        let mut durations = match self.data_dir {
            Some(data_dir) => {
                let recorded = Recorded::read(data_dir, &self.caller.namespace, group).await?;
                past::durations(&recorded.journal.entries)
            }
            None => Durations::default(),
        };
        durations.learn(clusters);
        Ok(durations)
    }
}

fn selects(group: &SyncGroup, cluster: &Cluster) -> bool {
    let selector = expand::selector(&group.spec.cluster_selector);
    selector.is_ok_and(|selector| selector.matches(cluster.labels()))
}

/// What a Sync says of itself.
fn alone(sync: &SyncResource, now: Timestamp) -> Told {
    let conditions = sync.status.iter().flat_map(|status| &status.conditions);
    let ready = conditions.into_iter().find(|condition| condition.type_ == READY);
    let (state, chain) = match ready {
        None => ("has not been looked at yet".to_owned(), Vec::new()),
        Some(ready) if ready.status == "True" => (format!("is in step: {}", ready.message), Vec::new()),
        Some(ready) => {
            let link = Link {
                reason: ready.reason.clone(),
                text: format!("the Sync says: {}", ready.message),
                until: None,
                ends_with: "a further attempt succeeds".to_owned(),
            };
            ("is not in step".to_owned(), vec![link])
        }
    };
    let next = chain
        .first()
        .map(|link| link.ends_with.clone())
        .unwrap_or_default();
    Told {
        subject: format!("sync/{}", sync.name_any()),
        group: None,
        at: now,
        rollout: None,
        entry: None,
        explanation: Explanation {
            state,
            chain,
            next,
            next_at: None,
        },
        estimate: None,
        clusters: Vec::new(),
        words: Vec::new(),
    }
}
