//! Waits until the CustomResourceDefinitions of a render are established, before objects of their kinds are applied.
//!
//! Only a needed definition is awaited: not a definition without objects of its kind in the set, and not one whose kind
//! the member is known to serve.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use starling_core::apply::ApplyStep;
use starling_core::object::{GroupKind, ObjectId, RenderedObject, RenderedSet};

use super::attempt::Attempt;
use super::call::{Call, JSON, Operation};
use super::error::MemberError;
use super::outcome::{ApplyOutcome, Change};
use super::paths;
use super::transport::Member;
use super::wait::Pauses;

/// The definitions that objects of the set need, by group and kind.
pub(super) struct Definitions<'a> {
    needed: BTreeMap<GroupKind, &'a RenderedObject>,
    /// Kinds that are known to be served.
    established: BTreeSet<GroupKind>,
    /// Kinds that were not served in time, and why.
    missing: BTreeMap<GroupKind, String>,
    /// One time limit for all definitions.
    pauses: Option<Pauses>,
}

/// A CustomResourceDefinition: the kind that it defines.
#[derive(Deserialize)]
pub(super) struct Definition {
    spec: DefinitionSpec,
}

impl Definition {
    pub(super) fn kind(self) -> GroupKind {
        GroupKind {
            group: self.spec.group,
            kind: self.spec.names.kind,
        }
    }

    /// The kind, and whether it is namespaced; a definition without a valid scope is refused by the member.
    fn scope(self) -> Option<(GroupKind, bool)> {
        let namespaced = match self.spec.scope.as_str() {
            "Namespaced" => true,
            "Cluster" => false,
            _ => return None,
        };
        Some((self.kind(), namespaced))
    }
}

#[derive(Deserialize)]
struct DefinitionSpec {
    group: String,
    names: Names,
    #[serde(default)]
    scope: String,
}

#[derive(Deserialize)]
struct Names {
    kind: String,
}

/// A CustomResourceDefinition, as read from the member.
#[derive(Deserialize)]
struct Live {
    #[serde(default)]
    status: LiveStatus,
}

#[derive(Default, Deserialize)]
struct LiveStatus {
    /// `null` until the controllers of the member have processed the definition.
    #[serde(default)]
    conditions: Option<Vec<LiveCondition>>,
}

#[derive(Deserialize)]
struct LiveCondition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    #[serde(default)]
    message: String,
}

/// The state of a definition.
#[derive(Debug, PartialEq, Eq)]
enum Progress {
    Established,
    /// Not established yet, and why.
    Waiting(String),
    /// Never established without a change by a user.
    Refused(String),
}

impl<'a> Definitions<'a> {
    /// Returns the definitions of `desired` whose kinds occur in `steps`.
    pub(super) fn needed<'s>(desired: &'a RenderedSet, steps: impl Iterator<Item = &'s ApplyStep<'a>>) -> Self
    where
        'a: 's,
    {
        let kinds: BTreeSet<GroupKind> = steps.map(|step| step.object.key.group_kind()).collect();
        let needed = definitions(desired).filter(|(kind, _)| kinds.contains(kind));
        Self {
            needed: needed.collect(),
            established: BTreeSet::new(),
            missing: BTreeMap::new(),
            pauses: None,
        }
    }

    /// Returns the definition that a step has to wait for.
    fn awaited(&self, step: &ApplyStep<'_>) -> Option<&'a RenderedObject> {
        let kind = step.object.key.group_kind();
        (!self.established.contains(&kind))
            .then(|| self.needed.get(&kind).copied())
            .flatten()
    }
}

/// Returns the definitions of a set with the kind that each defines.
fn definitions(desired: &RenderedSet) -> impl Iterator<Item = (GroupKind, &RenderedObject)> {
    parsed(desired).map(|(definition, object)| (definition.kind(), object))
}

fn parsed(desired: &RenderedSet) -> impl Iterator<Item = (Definition, &RenderedObject)> {
    let definitions = desired.objects.iter().filter(|object| is_definition(&object.key));
    definitions.filter_map(|object| Some((serde_json::from_slice(&object.body).ok()?, object)))
}

/// Returns the kinds that the definitions of a set define, and whether each is namespaced.
pub(super) fn defined_scopes(desired: &RenderedSet) -> BTreeMap<GroupKind, bool> {
    let scopes = parsed(desired).filter_map(|(definition, _)| definition.scope());
    scopes.collect()
}

/// Returns the kinds that the definitions of a set define.
pub(super) fn defined_kinds(desired: &RenderedSet) -> BTreeSet<GroupKind> {
    definitions(desired).map(|(kind, _)| kind).collect()
}

impl Member {
    /// Splits the steps of a phase into those that can be applied immediately and those that wait for a definition.
    pub(super) fn partition<'s, 'a>(
        &self,
        definitions: &Definitions<'a>,
        steps: &'s [ApplyStep<'a>],
        outcome: &ApplyOutcome,
    ) -> (Vec<&'s ApplyStep<'a>>, Vec<&'s ApplyStep<'a>>) {
        steps.iter().partition(|step| {
            let Some(definition) = definitions.awaited(step) else {
                return true;
            };
            let served = self.is_known(&step.object.api_version, &step.object.key.kind);
            !was_written(outcome, &definition.key) && served
        })
    }

    /// Waits for the definitions of these steps. Returns the steps that can be applied now. A step whose definition is
    /// not established in time becomes a failure that names the definition.
    pub(super) async fn await_definitions<'s, 'a>(
        &self,
        definitions: &mut Definitions<'a>,
        steps: Vec<&'s ApplyStep<'a>>,
        attempt: &Attempt,
        outcome: &mut ApplyOutcome,
    ) -> Result<Vec<&'s ApplyStep<'a>>, MemberError> {
        let mut ready = Vec::new();
        for step in steps {
            let Some(definition) = definitions.awaited(step) else {
                ready.push(step);
                continue;
            };
            let kind = step.object.key.group_kind();
            let failed = outcome.failures.iter().any(|(key, _)| *key == definition.key);
            if !failed && !definitions.missing.contains_key(&kind) {
                let pauses = definitions.pauses.get_or_insert_with(|| Pauses::within(attempt));
                match self.await_definition(definition, step, pauses, attempt).await? {
                    None => drop(definitions.established.insert(kind.clone())),
                    Some(problem) => drop(definitions.missing.insert(kind.clone(), problem)),
                }
            }
            match definitions.missing.get(&kind) {
                Some(problem) => outcome.failures.push((
                    step.object.key.clone(),
                    MemberError::NotEstablished {
                        object: step.object.key.clone(),
                        definition: definition.key.name.clone(),
                        problem: problem.clone(),
                    },
                )),
                // If the apply of the definition failed, an earlier version of it may still serve the kind.
                None => ready.push(step),
            }
        }
        Ok(ready)
    }

    /// Waits until a definition is established and its kind is served. Returns the problem if the time is up.
    async fn await_definition(
        &self,
        definition: &RenderedObject,
        step: &ApplyStep<'_>,
        pauses: &mut Pauses,
        attempt: &Attempt,
    ) -> Result<Option<String>, MemberError> {
        let object = step.object;
        loop {
            let progress = match self.progress(definition, attempt).await {
                Err(error) if error.ends_attempt() => return Err(error),
                // A user with write access to definitions may lack read access.
                Err(error) => return Ok(Some(format!("cannot be read: {}", starling_net::chain(&error)))),
                Ok(progress) => progress,
            };
            let problem = match progress {
                Progress::Refused(problem) => return Ok(Some(problem)),
                Progress::Waiting(problem) => problem,
                Progress::Established
                    if self
                        .serves(&object.api_version, &object.key.kind, attempt)
                        .await? =>
                {
                    return Ok(None);
                }
                Progress::Established => {
                    format!(
                        "is established, and {} in {} is not served",
                        object.key.kind, object.api_version
                    )
                }
            };
            if !pauses.pause().await {
                return Ok(Some(problem));
            }
        }
    }

    async fn progress(
        &self,
        definition: &RenderedObject,
        attempt: &Attempt,
    ) -> Result<Progress, MemberError> {
        let resource = self
            .resource(&definition.key, &definition.api_version, attempt)
            .await?;
        let path = paths::object(&resource, &definition.key)?;
        let operation = Operation::object("get", &definition.key);
        match self.send(Call::get(operation, path, JSON), attempt).await {
            Ok(response) => {
                let conditions = response.parse::<Live>(operation)?.status.conditions;
                Ok(progress_of(&conditions.unwrap_or_default()))
            }
            Err(MemberError::NotFound { .. }) => Ok(Progress::Waiting("is gone".into())),
            Err(error) => Err(error),
        }
    }
}

fn progress_of(conditions: &[LiveCondition]) -> Progress {
    let find = |type_: &str| conditions.iter().find(|condition| condition.type_ == type_);
    match (find("NamesAccepted"), find("Established")) {
        (Some(names), _) if names.status == "False" => {
            Progress::Refused(format!("has names that conflict: {}", names.message))
        }
        (_, Some(established)) if established.status == "True" => Progress::Established,
        (_, Some(established)) => Progress::Waiting(format!("is not established: {}", established.message)),
        (_, None) => Progress::Waiting("is not established".into()),
    }
}

fn is_definition(key: &ObjectId) -> bool {
    key.group == "apiextensions.k8s.io" && key.kind == "CustomResourceDefinition"
}

fn was_written(outcome: &ApplyOutcome, key: &ObjectId) -> bool {
    let written = |change| matches!(change, Change::Created | Change::Configured);
    outcome
        .applied
        .iter()
        .any(|applied| applied.key == *key && written(applied.change))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(type_: &str, status: &str, message: &str) -> LiveCondition {
        LiveCondition {
            type_: type_.into(),
            status: status.into(),
            message: message.into(),
        }
    }

    #[test]
    fn a_definition_with_conflicting_names_is_not_awaited() {
        let waiting = |text: &str| Progress::Waiting(text.into());
        for (conditions, expected) in [
            (vec![], waiting("is not established")),
            (
                vec![
                    condition("NamesAccepted", "True", "no conflicts found"),
                    condition("Established", "False", "installing"),
                ],
                waiting("is not established: installing"),
            ),
            (
                vec![
                    condition("NamesAccepted", "True", ""),
                    condition("Established", "True", ""),
                ],
                Progress::Established,
            ),
            (
                vec![
                    condition("NamesAccepted", "False", "\"Widget\" is already in use"),
                    condition("Established", "False", "not all names are accepted"),
                ],
                Progress::Refused("has names that conflict: \"Widget\" is already in use".into()),
            ),
        ] {
            assert_eq!(progress_of(&conditions), expected);
        }
    }
}
