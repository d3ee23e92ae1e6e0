//! Maps a kind to its resource: the plural, and whether it is namespaced.
//!
//! The built-in kinds of Kubernetes are in a table, so a set without custom resources needs no discovery. Other kinds
//! are discovered by group-version, once, and again at most once per attempt if a kind is missing, because its
//! definition may just have been applied.

use std::borrow::Cow;

use serde::Deserialize;
use starling_core::object::ObjectId;

use super::attempt::Attempt;
use super::call::{Call, JSON, Operation};
use super::error::MemberError;
use super::paths;
use super::resource::{Groups, Resource, builtin, group_of};
use super::transport::Member;

impl Member {
    /// Returns the resource of an object that is applied as `api_version`.
    pub(super) async fn resource(
        &self,
        key: &ObjectId,
        api_version: &str,
        attempt: &Attempt,
    ) -> Result<Resource, MemberError> {
        if let Some(builtin) = builtin(&key.group, &key.kind) {
            return Ok(Resource {
                group_version: Cow::Owned(api_version.to_owned()),
                ..builtin
            });
        }
        if let Some(known) = self.kinds().get(api_version, &key.kind) {
            return Ok(known);
        }
        self.fetch_kinds(api_version, attempt).await?;
        let unknown = || MemberError::UnknownKind {
            object: key.clone(),
            api_version: api_version.to_owned(),
        };
        self.kinds().get(api_version, &key.kind).ok_or_else(unknown)
    }

    /// Whether a kind is served in a version: as known, or by a discovery request that is sent even if this attempt has
    /// already sent one.
    pub(super) async fn serves(
        &self,
        api_version: &str,
        kind: &str,
        attempt: &Attempt,
    ) -> Result<bool, MemberError> {
        if self.is_known(api_version, kind) {
            return Ok(true);
        }
        attempt.fetched.lock().await.remove(api_version);
        self.fetch_kinds(api_version, attempt).await?;
        Ok(self.is_known(api_version, kind))
    }

    /// Whether a kind is known to be served in a version, without a request.
    pub(super) fn is_known(&self, api_version: &str, kind: &str) -> bool {
        let known = self.kinds().get(api_version, kind);
        known.is_some() || builtin(group_of(api_version), kind).is_some()
    }

    /// Returns the resource of a kind in any version that the member serves. `None` if none of the API groups of the
    /// member has the kind. Its definition may exist all the same: see [`Member::check_gone`].
    pub(super) async fn resource_unversioned(
        &self,
        group: &str,
        kind: &str,
        attempt: &Attempt,
    ) -> Result<Option<Resource>, MemberError> {
        if let Some(known) = builtin(group, kind).or_else(|| self.kinds().get_unversioned(group, kind)) {
            return Ok(Some(known));
        }
        let versions = if group.is_empty() {
            vec!["v1".to_owned()]
        } else {
            let groups = attempt
                .groups
                .get_or_try_init(|| self.fetch_groups(attempt))
                .await?;
            groups.get(group).cloned().unwrap_or_default()
        };
        for version in &versions {
            self.fetch_kinds(version, attempt).await?;
        }
        Ok(versions
            .iter()
            .find_map(|version| self.kinds().get(version, kind)))
    }

    /// Fetches the kinds of a group-version, unless this attempt has already done so.
    pub(super) async fn fetch_kinds(
        &self,
        group_version: &str,
        attempt: &Attempt,
    ) -> Result<(), MemberError> {
        #[derive(Deserialize)]
        struct ResourceList {
            resources: Vec<Item>,
        }
        #[derive(Deserialize)]
        struct Item {
            name: String,
            namespaced: bool,
            kind: String,
        }
        let mut fetched = attempt.fetched.lock().await;
        if fetched.contains(group_version) {
            return Ok(());
        }
        let operation = Operation::named("discover", group_version);
        let items = match self
            .send(Call::get(operation, paths::version(group_version), JSON), attempt)
            .await
        {
            Ok(response) => response.parse::<ResourceList>(operation)?.resources,
            // A group whose last definition was deleted is not served at all.
            Err(MemberError::NotFound { .. } | MemberError::NotServed { .. }) => Vec::new(),
            Err(error) => return Err(error),
        };
        let resources = items.into_iter().filter(|item| !item.name.contains('/'));
        self.kinds().put(
            group_version,
            resources
                .map(|item| (item.kind, (item.name, item.namespaced)))
                .collect(),
        );
        fetched.insert(group_version.to_owned());
        Ok(())
    }

    async fn fetch_groups(&self, attempt: &Attempt) -> Result<Groups, MemberError> {
        #[derive(Deserialize)]
        struct GroupList {
            groups: Vec<Group>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Group {
            name: String,
            versions: Vec<Version>,
            preferred_version: Option<Version>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Version {
            group_version: String,
        }
        let operation = Operation::named("discover", "the API groups");
        let response = self
            .send(Call::get(operation, "/apis".into(), JSON), attempt)
            .await?;
        let groups = response
            .parse::<GroupList>(operation)?
            .groups
            .into_iter()
            .map(|group| {
                let mut versions: Vec<_> = group
                    .preferred_version
                    .into_iter()
                    .chain(group.versions)
                    .map(|v| v.group_version)
                    .collect();
                let mut seen = std::collections::BTreeSet::new();
                versions.retain(|version| seen.insert(version.clone()));
                (group.name, versions)
            });
        Ok(groups.collect())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use starling_controlplane::{Assets, ControlPlanes, Options};
    use tokio::time::Instant;

    use super::*;
    use crate::{MemberConfig, MemberLimits, resource};

    /// A wrong row would send every object of its kind to a wrong path, so the table is compared with a real API
    /// server.
    #[tokio::test]
    async fn the_table_matches_an_api_server() {
        let planes = ControlPlanes::start(&Assets::find().unwrap(), &["kinds"], Options::default())
            .await
            .unwrap();
        let config = MemberConfig::from_kubeconfig(&planes.get("kinds").unwrap().kubeconfig_yaml()).unwrap();
        let member = Member::connect(config, MemberLimits::default()).unwrap();
        let attempt = Attempt::until(Instant::now() + Duration::from_secs(30));
        for row in &resource::BUILTIN {
            member.fetch_kinds(row.group_version, &attempt).await.unwrap();
            let served = member.kinds().get(row.group_version, row.kind);
            assert_eq!(
                served,
                builtin(group_of(row.group_version), row.kind),
                "{}",
                row.kind
            );
        }
    }

    /// A render clears the namespaces of these kinds, without a member: a kind that is missing here costs discovery,
    /// and one too many would send objects of a namespaced kind to a wrong path.
    #[tokio::test]
    async fn the_cluster_scoped_kinds_are_those_of_an_api_server() {
        let planes = ControlPlanes::start(&Assets::find().unwrap(), &["scopes"], Options::default())
            .await
            .unwrap();
        let config = MemberConfig::from_kubeconfig(&planes.get("scopes").unwrap().kubeconfig_yaml()).unwrap();
        let member = Member::connect(config, MemberLimits::default()).unwrap();
        let attempt = Attempt::until(Instant::now() + Duration::from_secs(30));
        let mut versions: Vec<String> = vec!["v1".into()];
        versions.extend(
            member
                .fetch_groups(&attempt)
                .await
                .unwrap()
                .into_values()
                .flatten(),
        );
        // Reviews and bindings are requests: nothing of them is stored.
        let stored =
            |kind: &str| !kind.ends_with("Review") && !["Binding", "ComponentStatus"].contains(&kind);
        let mut compared = 0;
        for version in &versions {
            member.fetch_kinds(version, &attempt).await.unwrap();
            for (kind, namespaced) in member.kinds().scopes(version) {
                if stored(&kind) {
                    let expected = starling_core::scope::is_cluster_scoped(group_of(version), &kind);
                    assert_eq!(!namespaced, expected, "{kind} in {version}");
                    compared += 1;
                }
            }
        }
        assert!(compared > 50, "{compared}");
    }
}
