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
    /// The namespace that was named, or `default`: for what is read without a management cluster.
    pub(super) fn namespace_or_default(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
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
        let kubeconfig = access::read(arguments.kubeconfig.as_deref())?;
        let access = Access::of(kubeconfig, arguments.context.clone())?;
        let client = access.client().await?;
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
