//! The caller's access to the management cluster, for commands that run with the caller's rights.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::{Api, Client};

use super::access::{self, Access};
use super::kube_errors;

/// Options that select the management cluster and the namespace.
#[derive(Clone, Debug, Args)]
pub(super) struct CallerArguments {
    /// Kubeconfig of the management cluster. Default: KUBECONFIG, then ~/.kube/config
    #[arg(long, value_name = "FILE", global = true, help_heading = "Management cluster")]
    kubeconfig: Option<PathBuf>,
    /// Context of the management cluster. Default: the current context
    #[arg(
        long,
        value_name = "CONTEXT",
        global = true,
        help_heading = "Management cluster"
    )]
    context: Option<String>,
    /// Namespace of the objects. Default: the namespace of the context, then `default`
    #[arg(
        long,
        short,
        value_name = "NS",
        global = true,
        help_heading = "Management cluster"
    )]
    namespace: Option<String>,
}

impl CallerArguments {
    /// The selected context.
    fn access(&self) -> anyhow::Result<Access> {
        let kubeconfig = access::read(self.kubeconfig.as_deref())?;
        Access::of(kubeconfig, self.context.clone(), "--context")
    }

    /// The namespace, for commands that read without signing in: the machine with the data directory need not have a
    /// kubeconfig. A kubeconfig or context that is given has to be valid.
    ///
    /// # Errors
    /// If a given kubeconfig or context cannot be read.
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

/// A signed-in caller.
pub(super) struct Caller {
    /// Client of the management cluster, with the caller's rights.
    pub(super) client: Client,
    /// The selected namespace.
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

    /// The caller's username, as the management cluster knows it.
    pub(super) async fn name(&self) -> anyhow::Result<String> {
        let api: Api<SelfSubjectReview> = Api::all(self.client.clone());
        let answer = api
            .create(&PostParams::default(), &SelfSubjectReview::default())
            .await
            .map_err(kube_errors::request)
            .context("create SelfSubjectReview on the management cluster")?;
        answer
            .status
            .and_then(|status| status.user_info?.username)
            .context("SelfSubjectReview: the management cluster returned no username")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_sign_in_the_namespace_is_the_given_one_or_that_of_the_context() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config");
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
