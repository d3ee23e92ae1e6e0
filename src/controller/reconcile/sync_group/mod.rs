//! The SyncGroup loop: one Sync per entry and selected cluster, rolled at the pace that the group declares.
//!
//! observe (caches) → validate → which release rolls (core) → expand and plan (core) → admit → report. The state of
//! all Syncs and of this status *is* the state of the rollout: an activation carries no data, and the first
//! activation after a crash goes on from there. A new release is written to status before its first admission, so
//! that what was admitted always finds the rollout it belongs to.

mod admit;
mod doubt;
mod finalize;
mod gates;
mod held;
mod journal;
mod leave;
mod observe;
mod outlook;
mod release;
mod rendered;
mod report;
mod retry;
mod steer;
mod tidy;
mod view;

use std::time::Duration;

use starling_core::course::Course;
use starling_core::journal::{Draft, Recorder};
use starling_core::plan::{Plan, PlanInput, Report, left_over, overlap, plan};
use starling_core::steering::Asked;

use self::observe::{Group, Seen};
pub use self::outlook::{NoOutlook, Outlook, Seeing, outlook};
use self::release::{Beginning, Offered, Rolling};
use self::steer::Wish;
use super::ReconcileError;
use crate::controller::cache::ObjectKey;
use crate::controller::context::{Context, Next};
use crate::controller::targets::Known;
use crate::ledger::LedgerError;

/// Releases that one look may begin.
const STEPS: usize = 3;
/// Wait after an admission that the management cluster did not take.
const RETRY: Duration = Duration::from_secs(1);

/// Looks at one SyncGroup.
///
/// # Errors
/// [`ReconcileError`] where an intent could not be recorded or the status not be written.
pub async fn reconcile(context: &Context, key: &ObjectKey) -> Result<Next, ReconcileError> {
    doubt::clear_up(context, key).await?;
    let looked = look(context, key).await;
    if matches!(looked, Err(ReconcileError::Hub(_))) {
        context.unsure.add_group(key);
    }
    looked
}

async fn look(context: &Context, key: &ObjectKey) -> Result<Next, ReconcileError> {
    // Absence means something only in a complete list: nothing is concluded before there is one.
    let Some(group) = context.groups.get(key) else {
        context.reports.forget(key);
        context.selections.forget(key);
        context.gates.forget(key);
        context.journals.forget(key);
        drop(context.targets.take(key));
        return Ok(Next::OnEvent);
    };
    if group.metadata.deletion_timestamp.is_some() {
        context.gates.forget(key);
        return finalize::finalize(context, group).await;
    }
    finalize::ensure(context, &group).await?;
    let group = match observe::observe(Seen::by(context), group) {
        Ok(group) => group,
        Err(finding) => {
            report::blocked(context, &finding).await?;
            return Ok(Next::OnEvent);
        }
    };
    let offered = release::offered(context.now(), &group);
    let leaving = leave::observe(context, &group);
    let mut known = context.targets.take(key);
    let mut recorder = journal::recorder(context, &group).await?;
    let membership_held = leaving.held.is_some();
    let decided = decide(
        context,
        &group,
        &offered,
        membership_held,
        (&mut known, &mut recorder),
    )
    .await;
    context.targets.put(key, known);
    let Some(decided) = decided? else {
        return Ok(Next::OnEvent);
    };
    // Time is counted from what is remembered of the stages, so that comes before anything is admitted. So does the journal:
    // nothing is done of which it does not say why.
    let mut decided = report::keep_stages(context, &group, decided).await?;
    let draft = decided.draft.take();
    journal::write(context, &group, &decided.rolling, &mut recorder, draft).await?;
    journal::keep(context, &group, recorder);
    let Decided {
        rolling, plan, asked, ..
    } = &decided;
    gates::carry_out(context, &group, rolling, plan);
    let admitted = admit::admit(context, &group, rolling, plan).await?;
    let retried = retry::retry(context, &group, rolling, plan, asked, membership_held).await;
    let left = leave::release(context, &group, rolling, &leaving, plan).await?;
    let reported = report::report(context, &group, &decided, leaving.held.as_ref()).await?;
    let unknown = rendered::ensure(context, &group, &decided, membership_held).await?;
    Ok(soonest([
        plan.recheck_at.map(|at| Next::at(at, context.now())),
        offered.settles_at.map(|at| Next::at(at, context.now())),
        steer::retry_counts_at(&asked.retries, context.now()).map(|at| Next::at(at, context.now())),
        (!(admitted && retried)).then_some(Next::After(RETRY)),
        left,
        reported,
        unknown,
    ]))
}

/// What rolls, and what happens next.
struct Decided {
    rolling: Rolling,
    asked: Asked,
    plan: Plan,
    /// What status tells of it.
    said: Report,
    /// What the journal is to tell of it, if that is news.
    draft: Option<Draft>,
    /// What people are told of clusters that several stages select.
    overlap: Option<String>,
    /// And of those that none selects.
    left_over: Option<String>,
}

/// What would happen next, if nothing else is to roll.
struct Planned {
    rolling: Rolling,
    asked: Asked,
    input: PlanInput,
    plan: Plan,
}

/// Which release rolls, and its plan. Another release than the one in status is begun here. `None`: there is nothing to
/// roll.
async fn decide(
    context: &Context,
    group: &Group,
    offered: &Offered,
    membership_held: bool,
    (known, recorder): (&mut Known, &mut Recorder),
) -> Result<Option<Decided>, ReconcileError> {
    let mut current = release::current((&context.releases, &context.hub), group, offered).await?;
    // A failed rollout is left, what is offered is begun: never more than a few steps.
    for _ in 0..STEPS {
        let planned = current.map(|rolling| {
            let asked = steer::asked(group, &rolling);
            let input = view::plan_input(
                &context.gates,
                group,
                &rolling,
                &asked,
                membership_held,
                known,
                context.now(),
            );
            let plan = plan(&input);
            Planned {
                rolling,
                asked,
                input,
                plan,
            }
        });
        let wish = match &planned {
            Some(planned) => steer::wish(context, group, &planned.asked).await?,
            None => None,
        };
        let begun = match release::course(group, offered, planned.as_ref(), wish.as_ref()) {
            Course::Keep => {
                let stuck = wish.as_ref().and_then(Wish::unknown);
                return planned
                    .map(|planned| planned.decided(stuck, known, recorder))
                    .transpose()
                    .map_err(ReconcileError::from);
            }
            Course::NothingToGoBackTo => {
                let stuck = "no release has succeeded on the whole group yet".to_owned();
                return planned
                    .map(|planned| planned.decided(Some(stuck), known, recorder))
                    .transpose()
                    .map_err(ReconcileError::from);
            }
            Course::Enqueue { .. } => {
                let Some(planned) = planned else {
                    return Ok(None);
                };
                let decided = planned.decided(None, known, recorder)?;
                let rolling = release::enqueue(context, group, offered, decided.rolling).await?;
                return Ok(Some(Decided { rolling, ..decided }));
            }
            Course::Start {
                release,
                direction,
                hold,
                reason,
            } => {
                let beginning = Beginning {
                    release: &release,
                    direction,
                    hold,
                    reason,
                };
                if let Some(planned) = &planned {
                    // How it stood when it was left.
                    let draft = planned.draft(recorder)?;
                    journal::write(context, group, &planned.rolling, recorder, draft).await?;
                }
                let before = planned.as_ref().map(|planned| &planned.rolling);
                release::begin(context, group, offered, before, beginning).await?
            }
        };
        if begun.is_none() {
            let stuck = "the release to go to is not kept any more".to_owned();
            return planned
                .map(|planned| planned.decided(Some(stuck), known, recorder))
                .transpose()
                .map_err(ReconcileError::from);
        }
        current = begun;
    }
    Ok(None)
}

impl Planned {
    /// What the journal is to tell of it.
    fn draft(&self, recorder: &Recorder) -> Result<Option<Draft>, LedgerError> {
        let draft = recorder.draft(self.rolling.rollout.id, &self.input, &self.plan);
        draft.map_err(|source| LedgerError::Encode {
            subject: "an entry of the journal",
            source,
        })
    }

    /// This is what happens. `stuck`: somebody or something wants to go back and cannot, and why.
    fn decided(
        self,
        stuck: Option<String>,
        known: &mut Known,
        recorder: &Recorder,
    ) -> Result<Decided, LedgerError> {
        let draft = self.draft(recorder)?;
        let mut said = self.plan.report(&self.input);
        if let Some(why) = stuck {
            said.blocked_by.push(("NothingToGoBackTo", why, None));
        }
        let overlap = overlap(&self.input.strategy, &known.overlaps);
        let left_over = left_over(&self.input.strategy, &self.input.clusters);
        known.views.put_back(self.input.clusters);
        Ok(Decided {
            rolling: self.rolling,
            asked: self.asked,
            plan: self.plan,
            said,
            overlap,
            left_over,
            draft,
        })
    }
}

fn soonest<const N: usize>(wishes: [Option<Next>; N]) -> Next {
    let waits = wishes.into_iter().flatten().filter_map(|next| match next {
        Next::After(wait) | Next::Retry(wait) => Some(wait),
        Next::OnEvent => None,
    });
    waits.min().map_or(Next::OnEvent, Next::After)
}
