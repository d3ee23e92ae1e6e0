//! `starling cluster add`: from a context of the caller's kubeconfig to a Cluster that the controller works on.
//!
//! read both sides → object, if something is in the way → on the member: account, rights, token → try the token → on
//! the management cluster: Secret, Cluster. Nothing is written before all has been looked at, and every write can be
//! repeated: a run that ended half-way is run again.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use starling_api::{Cluster, SYSTEM_NAMESPACE, TOKEN_EXPIRES_AT, TOKEN_ISSUED_AT};
use starling_core::token::{SHORTEST_LIFETIME, TokenLease, account_name};
use tokio::time::Instant;

use super::super::access::{self, Access};
use super::super::explain::NotServed;
use super::grants::{Account, Grant};
use super::manifest::{Manifest, within};
use super::plan::{Found, Named};
use crate::member::{Endpoint, IssuedToken, Member, MemberError, MemberLimits};

/// How long a member may take until it knows rights that were just given. Its authorizer watches them: milliseconds.
const RIGHTS_KNOWN: Duration = Duration::from_secs(15);
/// Pause between two tries of that.
const PAUSE: Duration = Duration::from_millis(250);

/// What is added, and how.
#[derive(Debug, Args)]
pub(super) struct AddArguments {
    /// Context of the kubeconfig that leads to the member, with rights to give rights there
    #[arg(value_name = "CONTEXT")]
    context: String,
    /// Name of the Cluster
    #[arg(long, value_name = "NAME")]
    name: String,
    /// Namespace of the Cluster on the management cluster
    #[arg(long, short, value_name = "NS")]
    namespace: String,
    /// Labels of the Cluster
    #[arg(long, value_name = "KEY=VALUE,…", value_delimiter = ',', value_parser = label)]
    labels: Vec<(String, String)>,
    /// Print what would be made, and make nothing
    #[arg(long)]
    dry_run: bool,
    /// Kubeconfig with CONTEXT; without it KUBECONFIG, or the one of the home folder
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Kubeconfig of the management cluster; without it the one with CONTEXT
    #[arg(long, value_name = "FILE")]
    hub_kubeconfig: Option<PathBuf>,
    /// Context of the management cluster; without it the current one
    #[arg(long, value_name = "CONTEXT")]
    hub_context: Option<String>,
    /// Address at which the controller reaches the member; without it the one of CONTEXT
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Bind a ClusterRole that the member has, such as cluster-admin, instead of the right to apply any object
    #[arg(long, value_name = "CLUSTERROLE", conflicts_with = "impersonate_only")]
    role: Option<String>,
    /// Give no rights but to act as the ServiceAccounts that Syncs name
    #[arg(long)]
    impersonate_only: bool,
    /// Lifetime of the token that is asked for; the controller renews it in the second half of it
    #[arg(long, value_name = "DURATION", default_value = "720h", value_parser = lifetime)]
    token_lifetime: starling_api::Duration,
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE")?;
    if key.is_empty() {
        return Err("the key is empty; write KEY=VALUE".into());
    }
    Ok((key.to_owned(), value.to_owned()))
}

fn lifetime(text: &str) -> Result<starling_api::Duration, String> {
    let lifetime: starling_api::Duration = text.parse().map_err(|error| format!("{error}"))?;
    if lifetime.as_std() < SHORTEST_LIFETIME {
        return Err("API servers give no token for less than 10m".into());
    }
    Ok(lifetime)
}

/// One side: whose it is, for errors, and its client.
struct Side {
    name: String,
    client: Client,
}

pub(super) async fn run(arguments: AddArguments) -> anyhow::Result<()> {
    let kubeconfig = access::read(arguments.kubeconfig.as_deref())?;
    let hub_kubeconfig = match &arguments.hub_kubeconfig {
        Some(path) => access::read(Some(path))?,
        None => kubeconfig.clone(),
    };
    let member = Access::of(kubeconfig, Some(arguments.context.clone()), "--context")?;
    let hub = Access::of(hub_kubeconfig, arguments.hub_context.clone(), "--hub-context")
        .context("the management cluster")?;
    let endpoint = member.endpoint(arguments.server.as_deref())?;
    // The token is tried from here, where only the address of the context is known to work.
    let from_here = member.endpoint(None)?;

    let adding = Adding {
        member: Side {
            name: format!("the member (context {:?})", member.context),
            client: member.client().await?,
        },
        hub: Side {
            name: format!("the management cluster (context {:?})", hub.context),
            client: hub.client().await?,
        },
        grant: match (&arguments.role, arguments.impersonate_only) {
            (Some(role), _) => Grant::Role(role.clone()),
            (None, true) => Grant::ImpersonateOnly,
            (None, false) => Grant::Everything,
        },
        arguments,
    };
    Box::pin(adding.add(&endpoint, &from_here)).await
}

/// One run, both sides signed in.
struct Adding {
    arguments: AddArguments,
    member: Side,
    hub: Side,
    grant: Grant,
}

impl Adding {
    async fn add(&self, endpoint: &Endpoint, from_here: &Endpoint) -> anyhow::Result<()> {
        let (hub_id, member_id) = (self.hub.identity().await?, self.member.identity().await?);
        let named = Named {
            namespace: &self.arguments.namespace,
            name: &self.arguments.name,
        };
        let found = self.look(named).await?;
        if let Some(objection) = found.objection(named, &member_id) {
            bail!(objection);
        }
        let name = account_name(&hub_id, named.namespace, named.name);
        let whose = format!(
            "Starling: Cluster {}/{} of the management cluster {hub_id}",
            named.namespace, named.name
        );
        let account = Account {
            name: &name,
            whose: &whose,
            grant: &self.grant,
        };
        let cluster = named.cluster_manifest(&found.labels(named, &self.arguments.labels));
        let shown = named.secret_manifest(&self.foreseen(&name), &endpoint.redacted());
        self.check(&[&shown, &cluster], &account).await?;
        if access::is_loopback(&endpoint.server) {
            warn(&format!(
                "{} is this machine, whoever reads it; a controller elsewhere needs --server",
                endpoint.server
            ));
        }
        if self.arguments.dry_run {
            return self.print(&account, &shown, &cluster).await;
        }
        let (token, issued_at) = self.give(&account, from_here).await?;
        let lease = self.lease(&name, issued_at, token.expires_at());
        let text = endpoint.with_token(&token)?.to_kubeconfig();
        let secret = named.secret_manifest(&lease.annotations(), text.reveal());
        for manifest in [&secret, &cluster] {
            self.hub.make(manifest).await?;
        }
        self.tell(named, &lease);
        Ok(())
    }

    /// What the management cluster has.
    async fn look(&self, named: Named<'_>) -> anyhow::Result<Found> {
        let clusters: Api<Cluster> = Api::namespaced(self.hub.client.clone(), named.namespace);
        let clusters = within(clusters.list(&ListParams::default()))
            .await
            .map_err(|error| match error.is::<NotServed>() {
                true => error.context("the definitions are not installed; kubectl apply -f crds/"),
                false => error,
            })
            .with_context(|| {
                format!(
                    "list Clusters of namespace {:?} on {}",
                    named.namespace, self.hub.name
                )
            })?;
        let secrets: Api<Secret> = Api::namespaced(self.hub.client.clone(), named.namespace);
        let secret = within(secrets.get_metadata_opt(&named.secret()))
            .await
            .with_context(|| format!("read secret/{} on {}", named.secret(), self.hub.name))?;
        Ok(Found {
            clusters: clusters.items,
            secret: secret.map(|secret| secret.metadata.annotations.unwrap_or_default()),
        })
    }

    /// Asks both sides whether they will take what is to come, as far as that can be asked without writing.
    async fn check(&self, on_hub: &[&Manifest], account: &Account<'_>) -> anyhow::Result<()> {
        for manifest in on_hub {
            manifest
                .check(&self.hub.client)
                .await
                .with_context(|| format!("on {}, namespace {:?}", self.hub.name, self.arguments.namespace))?;
        }
        if let Grant::Role(role) = account.grant {
            let roles: Api<ClusterRole> = Api::all(self.member.client.clone());
            let known = within(roles.get_metadata_opt(role))
                .await
                .with_context(|| format!("read clusterrole/{role} on {}", self.member.name))?;
            if known.is_none() {
                bail!(
                    "--role: {} has no ClusterRole {role:?}; make it there first",
                    self.member.name
                );
            }
        }
        Ok(())
    }

    /// Makes the account with its rights on the member and gets a token for it that works; says when it was asked for.
    async fn give(
        &self,
        account: &Account<'_>,
        from_here: &Endpoint,
    ) -> anyhow::Result<(IssuedToken, Timestamp)> {
        if let Some(binding) = self.other_role(account).await? {
            binding
                .delete(&self.member.client)
                .await
                .with_context(|| format!("on {}", self.member.name))?;
            say(&format!("{} deleted", binding.name()));
        }
        for manifest in account.manifests() {
            self.member.make(&manifest).await?;
        }
        let issued_at = Timestamp::now();
        let token = self.request(account.name).await?;
        let config = from_here.with_token(&token)?;
        let member = Member::connect(config, MemberLimits::default())?;
        let until = Instant::now() + RIGHTS_KNOWN;
        loop {
            match member.probe(until).await {
                Ok(_) => return Ok((token, issued_at)),
                Err(MemberError::Forbidden { .. } | MemberError::Unauthorized { .. })
                    if Instant::now() < until =>
                {
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => {
                    return Err(error).with_context(|| {
                        format!(
                            "the new token of serviceaccount/{} does not work on {}; nothing was written to the management cluster",
                            account.name, self.member.name
                        )
                    });
                }
            }
        }
    }

    /// The binding to a role that an earlier run has chosen and this one has not.
    async fn other_role(&self, account: &Account<'_>) -> anyhow::Result<Option<Manifest>> {
        let name = account.chosen_role_name();
        let bindings: Api<ClusterRoleBinding> = Api::all(self.member.client.clone());
        let present = within(bindings.get_opt(&name))
            .await
            .with_context(|| format!("read clusterrolebinding/{name} on {}", self.member.name))?;
        let bound = present.map(|binding| binding.role_ref.name);
        Ok(bound
            .filter(|bound| !matches!(account.grant, Grant::Role(role) if role == bound))
            .map(|bound| account.chosen_role(&bound)))
    }

    async fn request(&self, account: &str) -> anyhow::Result<IssuedToken> {
        let seconds = self.arguments.token_lifetime.as_std().as_secs();
        let request = TokenRequest {
            spec: TokenRequestSpec {
                expiration_seconds: Some(i64::try_from(seconds).unwrap_or(i64::MAX)),
                ..TokenRequestSpec::default()
            },
            ..TokenRequest::default()
        };
        let accounts: Api<ServiceAccount> = Api::namespaced(self.member.client.clone(), SYSTEM_NAMESPACE);
        let issued = within(accounts.create_token_request(account, &PostParams::default(), &request)).await;
        issued
            .and_then(|issued| issued.status.context("the answer holds no token"))
            .map(|status| IssuedToken::new(status.token, status.expiration_timestamp.0))
            .with_context(|| {
                format!(
                    "request a token of serviceaccount/{account} on {}",
                    self.member.name
                )
            })
    }

    fn lease(&self, account: &str, issued_at: Timestamp, expires_at: Timestamp) -> TokenLease {
        TokenLease {
            namespace: SYSTEM_NAMESPACE.to_owned(),
            name: account.to_owned(),
            lifetime: self.arguments.token_lifetime,
            issued_at,
            expires_at,
        }
    }

    /// What the Secret will be annotated with, as far as it is known before there is a token.
    fn foreseen(&self, account: &str) -> BTreeMap<String, String> {
        let mut annotations = self.lease(account, Timestamp::MIN, Timestamp::MIN).annotations();
        annotations.retain(|key, _| key != TOKEN_ISSUED_AT && key != TOKEN_EXPIRES_AT);
        annotations
    }

    async fn print(
        &self,
        account: &Account<'_>,
        secret: &Manifest,
        cluster: &Manifest,
    ) -> anyhow::Result<()> {
        say(&format!("# On {}: {}.", self.member.name, self.grant.explained()));
        if let Some(binding) = self.other_role(account).await? {
            say(&format!("# {} would be deleted.", binding.name()));
        }
        for manifest in account.manifests() {
            say(&format!("---\n{}", manifest.yaml()?.trim_end()));
        }
        say(&format!(
            "# On {}. The token, and the times of its issue and its end, are known when this is done.",
            self.hub.name
        ));
        for manifest in [secret, cluster] {
            say(&format!("---\n{}", manifest.yaml()?.trim_end()));
        }
        Ok(())
    }

    fn tell(&self, named: Named<'_>, lease: &TokenLease) {
        let context = self
            .arguments
            .hub_context
            .as_ref()
            .map(|context| format!("--context {context} "))
            .unwrap_or_default();
        say(&format!(
            "\nOn {}: {}.\nThe token ends at {}; the controller renews it.\nNext: kubectl {context}get cluster {} -n {}",
            self.member.name,
            self.grant.explained(),
            lease.expires_at,
            named.name,
            named.namespace
        ));
    }
}

impl Side {
    /// The UID of the cluster's `kube-system`, which is what a cluster is known by.
    async fn identity(&self) -> anyhow::Result<String> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let namespace = within(api.get_metadata("kube-system"))
            .await
            .with_context(|| format!("read namespace/kube-system on {}", self.name))?;
        namespace
            .uid()
            .with_context(|| format!("{}: namespace/kube-system has no UID", self.name))
    }

    async fn make(&self, manifest: &Manifest) -> anyhow::Result<()> {
        let done = manifest
            .apply(&self.client)
            .await
            .with_context(|| format!("on {}", self.name))?;
        say(&format!("{} {done}", manifest.name()));
        Ok(())
    }
}

#[expect(clippy::print_stdout, reason = "the output of this command")]
fn say(line: &str) {
    println!("{line}");
}

#[expect(
    clippy::print_stderr,
    reason = "not part of the output: --dry-run prints YAML"
)]
fn warn(line: &str) {
    eprintln!("warning: {line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_lifetimes_say_what_would_be_right() {
        assert_eq!(label("region=eu"), Ok(("region".into(), "eu".into())));
        assert_eq!(label("empty="), Ok(("empty".into(), String::new())));
        for wrong in ["region", "=eu"] {
            assert!(
                label(wrong).is_err_and(|error| error.contains("KEY=VALUE")),
                "{wrong}"
            );
        }
        assert!(lifetime("10m").is_ok());
        for wrong in ["9m59s", "a month", ""] {
            assert!(lifetime(wrong).is_err(), "{wrong}");
        }
    }
}
