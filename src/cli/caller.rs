//! The caller's own access to the management cluster, for commands that speak for a person.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::{Api, Client};

use super::access::{self, Access};
use super::explain;

/// Which management cluster, and which namespace of it.
#[derive(Clone, Debug, Args)]
pub(super) struct CallerArguments {
    /// Kubeconfig of the management cluster; without it KUBECONFIG, or the one of the home folder
    #[arg(long, value_name = "FILE", global = true)]
    kubeconfig: Option<PathBuf>,
    /// Context of the management cluster; without it the current one
    #[arg(long, value_name = "CONTEXT", global = true)]
    context: Option<String>,
    /// Namespace; without it the one of the context, or `default`
    #[arg(long, short, value_name = "NS", global = true)]
    namespace: Option<String>,
}

impl CallerArguments {
    /// The context that is meant.
    fn access(&self) -> anyhow::Result<Access> {
        let kubeconfig = access::read(self.kubeconfig.as_deref())?;
        Access::of(kubeconfig, self.context.clone(), "--context")
    }

    /// The namespace that is meant, for what is read without signing in: there need not be a kubeconfig where the controller's
    /// folder is. One that is named has to be right.
    ///
    /// # Errors
    /// If a kubeconfig or a context is named that cannot be read.
    pub(super) fn namespace_unsigned(&self) -> anyhow::Result<String> {
        if let Some(namespace) = &self.namespace {
            return Ok(namespace.clone());
        }
        let namespace = match self.access() {
            Ok(access) => access.namespace().map(str::to_owned),
            Err(error) if self.kubeconfig.is_some() || self.context.is_some() => return Err(error),
            Err(_) => None,
        };
        Ok(namespace.unwrap_or_else(|| "default".to_owned()))
    }
}

/// A person who is signed in.
pub(super) struct Caller {
    /// The management cluster, with the person's own rights.
    pub(super) client: Client,
    /// The namespace that is meant.
    pub(super) namespace: String,
}

impl Caller {
    /// Signs in.
    pub(super) async fn sign_in(arguments: &CallerArguments) -> anyhow::Result<Self> {
        let client = arguments.access()?.client().await?;
        let namespace = arguments
            .namespace
            .clone()
            .unwrap_or_else(|| client.default_namespace().to_owned());
        Ok(Self { client, namespace })
    }

    /// Who the management cluster says that this is.
    pub(super) async fn name(&self) -> anyhow::Result<String> {
        let api: Api<SelfSubjectReview> = Api::all(self.client.clone());
        let answer = api
            .create(&PostParams::default(), &SelfSubjectReview::default())
            .await
            .map_err(explain::request)
            .context("ask the management cluster who this is")?;
        answer
            .status
            .and_then(|status| status.user_info?.username)
            .context("the management cluster does not say who this is")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_sign_in_the_namespace_is_the_one_that_is_named_or_that_of_the_context() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config");
        let context = |name: &str, namespace: &str| {
            format!("{{name: {name}, context: {{cluster: c, user: u{namespace}}}}}")
        };
        let text = format!(
            "contexts: [{}, {}]\ncurrent-context: a\n",
            context("a", ", namespace: fleet"),
            context("b", "")
        );
        std::fs::write(&file, text).unwrap();
        let of = |named: Option<&str>, context: Option<&str>| CallerArguments {
            kubeconfig: Some(file.clone()),
            context: context.map(str::to_owned),
            namespace: named.map(str::to_owned),
        };
        for (named, context, expected) in [
            (Some("other"), Some("missing"), "other"),
            (None, None, "fleet"),
            (None, Some("b"), "default"),
        ] {
            assert_eq!(of(named, context).namespace_unsigned().unwrap(), expected);
        }
        assert!(of(None, Some("missing")).namespace_unsigned().is_err());
    }
}
