//! The objects that every cluster has.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Cluster, ServerError};
use crate::kinds::{FIRST_ADDRESS, Resource};
use crate::object::head;
use crate::rbac::{self, AuthorizationMode, Bootstrap, Reconciled, own_groups, reconciled};
use crate::status::Status;
use crate::verbs::{self, DeleteOptions, Target, Validation, Write};
use crate::write::NO_EXTRA;

/// The namespaces that every cluster has.
const NAMESPACES: [&str; 4] = ["kube-system", "kube-public", "default", "kube-node-lease"];

impl Cluster {
    /// Creates the objects that a new cluster has.
    pub(super) fn bootstrap(&self, mode: AuthorizationMode, now: Timestamp) -> Result<(), ServerError> {
        let service = json!({
            "metadata": {"name": "kubernetes", "labels": {"component": "apiserver", "provider": "kubernetes"}},
            "spec": {"clusterIP": FIRST_ADDRESS.to_string(), "ports": [
                {"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}]},
        });
        for namespace in NAMESPACES {
            let object = json!({"metadata": {"name": namespace}});
            self.create("", "namespaces", "", object, now)?;
        }
        self.create("", "services", "default", service, now)?;
        self.state().addresses.given = 1;
        if mode == AuthorizationMode::Rbac {
            self.bootstrap_policy(now)?;
        }
        // The objects of the first namespaces exist before the first request.
        while self.step(now).is_some_and(|next| next <= now) {}
        Ok(())
    }

    /// Enforces RBAC, and creates or extends the roles and bindings that every cluster has.
    pub(super) fn bootstrap_policy(&self, now: Timestamp) -> Result<(), ServerError> {
        self.state().enforce_rbac();
        for wanted in Bootstrap::all() {
            let stored = {
                let state = self.state();
                let table = format!("{}.{}", wanted.plural, rbac::GROUP);
                let stored = state
                    .store
                    .get(&table, &head::key(&wanted.namespace, &wanted.name));
                stored.map(|stored| stored.read())
            };
            let Some(stored) = stored else {
                self.create_policy(wanted, now)?;
                continue;
            };
            match reconciled(&stored, &wanted.object) {
                Reconciled::Keep => {}
                Reconciled::Update(object) => self.write_policy(
                    wanted,
                    |state, target, write| verbs::update(state, target, object, &[], write).map(|_| ()),
                    now,
                )?,
                Reconciled::Recreate => {
                    self.write_policy(
                        wanted,
                        |state, target, write| {
                            verbs::delete(state, target, &DeleteOptions::default(), write).map(|_| ())
                        },
                        now,
                    )?;
                    self.create_policy(wanted, now)?;
                }
            }
        }
        Ok(())
    }

    fn create_policy(&self, wanted: &Bootstrap, now: Timestamp) -> Result<(), ServerError> {
        self.create(
            rbac::GROUP,
            wanted.plural,
            &wanted.namespace,
            wanted.object.clone(),
            now,
        )
    }

    fn write_policy(
        &self,
        wanted: &Bootstrap,
        verb: impl FnOnce(&mut crate::state::State, &Target, &Write<'_>) -> Result<(), Status>,
        now: Timestamp,
    ) -> Result<(), ServerError> {
        let mut target = self.endpoint(rbac::GROUP, wanted.plural, &wanted.namespace)?;
        target.name.clone_from(&wanted.name);
        verb(&mut self.state(), &target, &own_write(now)).map_err(|status| self.refused(status.to_string()))
    }

    fn create(
        &self,
        group: &str,
        plural: &str,
        namespace: &str,
        object: Value,
        now: Timestamp,
    ) -> Result<(), ServerError> {
        let target = self.endpoint(group, plural, namespace)?;
        verbs::create(&mut self.state(), &target, object, &[], &own_write(now))
            .map(|_| ())
            .map_err(|status| self.refused(status.to_string()))
    }

    fn endpoint(&self, group: &str, plural: &str, namespace: &str) -> Result<Target, ServerError> {
        let resource: Arc<Resource> = { self.state().registry.get(group, plural) }
            .ok_or_else(|| self.refused(format!("{plural} are not served")))?;
        let version = resource.versions.first().map(Arc::clone);
        Ok(Target {
            version: version.ok_or_else(|| self.refused("no version".to_owned()))?,
            resource,
            namespace: namespace.to_owned(),
            name: String::new(),
            subresource: String::new(),
        })
    }

    fn refused(&self, why: String) -> ServerError {
        ServerError::Bootstrap {
            name: self.name().to_owned(),
            why,
        }
    }
}

fn own_write(now: Timestamp) -> Write<'static> {
    Write {
        manager: "kube-apiserver",
        user: "system:apiserver",
        uid: "",
        groups: own_groups(),
        extra: &NO_EXTRA,
        dry_run: false,
        validation: Validation::Strict,
        force: false,
        now,
        subresource: "",
    }
}
