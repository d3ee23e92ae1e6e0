//! `starling cluster add`: creates a Cluster from a context of the caller's kubeconfig.
//!
//! Read both clusters → refuse a conflict → on the member: ServiceAccount, RBAC, token → test the token → on the
//! management cluster: Secret, Cluster. The command checks everything before it writes, and every write is idempotent:
//! an interrupted run can be repeated.

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
use super::super::duration::duration;
use super::super::kube_errors::NotServed;
use super::super::value::{InvalidValue, dns_name};
use super::grants::{Account, Grant};
use super::manifest::{Manifest, within};
use super::plan::{ClusterName, Existing};
use starling_member::{Endpoint, IssuedToken, Member, MemberError, MemberLimits};

/// Timeout until a member applies new RBAC. Its authorizer watches them, which takes milliseconds.
const RIGHTS_KNOWN: Duration = Duration::from_secs(15);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(250);

/// Options of `cluster add`.
#[derive(Debug, Args)]
pub(super) struct AddArguments {
    /// Context of the member cluster, with permission to grant RBAC there
    #[arg(value_name = "CONTEXT")]
    context: String,
    /// Name of the Cluster to create
    #[arg(long, value_name = "NAME")]
    name: String,
    /// Namespace of the Cluster on the management cluster
    #[arg(long, short, value_name = "NS")]
    namespace: String,
    /// Labels of the Cluster, separated by commas. Default: the labels of an earlier run, or none
    #[arg(long, value_name = "KEY=VALUE,…", value_delimiter = ',', value_parser = label)]
    labels: Vec<(String, String)>,
    /// Print the objects without creating them
    #[arg(long)]
    dry_run: bool,
    /// Kubeconfig with CONTEXT. Default: KUBECONFIG, then ~/.kube/config
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Kubeconfig of the management cluster. Default: the kubeconfig with CONTEXT
    #[arg(long, value_name = "FILE")]
    hub_kubeconfig: Option<PathBuf>,
    /// Context of the management cluster. Default: the current context
    #[arg(long, value_name = "CONTEXT")]
    hub_context: Option<String>,
    /// Address at which the controller reaches the member. Default: the server of CONTEXT
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Existing ClusterRole of the member to bind, such as cluster-admin. Default: a role that may apply any object
    #[arg(long, value_name = "CLUSTERROLE", conflicts_with = "impersonate_only")]
    role: Option<String>,
    /// Grant only the permission to impersonate ServiceAccounts of the member in the namespace of the Cluster, which
    /// Syncs name
    #[arg(long)]
    impersonate_only: bool,
    /// With --impersonate-only: the ServiceAccounts that may be impersonated, separated by commas. Default: all of the
    /// namespace
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', requires = "impersonate_only", value_parser = dns_name)]
    impersonate_accounts: Vec<String>,
    /// Lifetime of the token; the controller renews it in the second half
    #[arg(long, value_name = "DURATION", default_value = "720h", value_parser = lifetime)]
    token_lifetime: starling_api::Duration,
}

fn label(text: &str) -> Result<(String, String), InvalidValue> {
    let (key, value) = text
        .split_once('=')
        .ok_or_else(|| InvalidValue::new("expected KEY=VALUE"))?;
    if key.is_empty() {
        return Err(InvalidValue::new("empty key; expected KEY=VALUE"));
    }
    Ok((key.to_owned(), value.to_owned()))
}

fn lifetime(text: &str) -> Result<starling_api::Duration, InvalidValue> {
    let lifetime = duration(text)?;
    if lifetime < SHORTEST_LIFETIME {
        return Err(InvalidValue::new("API servers issue tokens for 10m or longer"));
    }
    Ok(lifetime.into())
}

/// The member or the management cluster: its name for errors, and its client.
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
    // The token is tested from this machine, where only the address of the context is known to work.
    let local_endpoint = member.endpoint(None)?;

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
            (None, true) => Grant::ImpersonateOnly {
                namespace: arguments.namespace.clone(),
                accounts: arguments.impersonate_accounts.clone(),
            },
            (None, false) => Grant::Everything,
        },
        arguments,
    };
    Box::pin(adding.add(&endpoint, &local_endpoint)).await
}

/// One run, signed in to both clusters.
struct Adding {
    arguments: AddArguments,
    member: Side,
    hub: Side,
    grant: Grant,
}

impl Adding {
    async fn add(&self, endpoint: &Endpoint, local_endpoint: &Endpoint) -> anyhow::Result<()> {
        let (hub_id, member_id) = (self.hub.identity().await?, self.member.identity().await?);
        let named = ClusterName {
            namespace: &self.arguments.namespace,
            name: &self.arguments.name,
        };
        let found = self.read_existing(named).await?;
        if let Some(conflict) = found.conflict(named, &member_id) {
            bail!(conflict);
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
        let shown = named.secret_manifest(&self.expected_annotations(&name), &endpoint.redacted());
        self.check(&[&shown, &cluster], &account).await?;
        if access::is_loopback(&endpoint.server) {
            print_warning(&format!(
                "{} is a loopback address; a controller on another machine needs --server",
                endpoint.server
            ));
        }
        if self.arguments.dry_run {
            return self.print(&account, &shown, &cluster).await;
        }
        let (token, issued_at) = self.grant(&account, local_endpoint).await?;
        let lease = self.lease(&name, issued_at, token.expires_at());
        let text = endpoint.with_token(&token)?.to_kubeconfig();
        let secret = named.secret_manifest(&lease.annotations(), text.reveal());
        for manifest in [&secret, &cluster] {
            self.hub.make(manifest).await?;
        }
        self.print_result(named, &lease);
        Ok(())
    }

    /// Reads the existing objects on the management cluster.
    async fn read_existing(&self, named: ClusterName<'_>) -> anyhow::Result<Existing> {
        let clusters: Api<Cluster> = Api::namespaced(self.hub.client.clone(), named.namespace);
        let clusters = within(clusters.list(&ListParams::default()))
            .await
            .map_err(|error| match error.is::<NotServed>() {
                true => {
                    error.context("CustomResourceDefinitions are not installed; run: kubectl apply -f crds/")
                }
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
        Ok(Existing {
            clusters: clusters.items,
            secret: secret.map(|secret| secret.metadata.annotations.unwrap_or_default()),
        })
    }

    /// Checks on both clusters, in a dry run, that the objects will be accepted.
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
                    "--role: ClusterRole {role:?} not found on {}; create it first",
                    self.member.name
                );
            }
        }
        Ok(())
    }

    /// Creates the account with its RBAC on the member and requests a token that works. Returns the token and the time
    /// of the request.
    async fn grant(
        &self,
        account: &Account<'_>,
        local_endpoint: &Endpoint,
    ) -> anyhow::Result<(IssuedToken, Timestamp)> {
        if let Some(binding) = self.other_role(account).await? {
            binding
                .delete(&self.member.client)
                .await
                .with_context(|| format!("on {}", self.member.name))?;
            print_line(&format!("{} deleted", binding.name()));
        }
        self.end_other_impersonation(account).await?;
        for manifest in account.manifests() {
            self.member.make(&manifest).await?;
        }
        let issued_at = Timestamp::now();
        let token = self.request(account.name).await?;
        let config = local_endpoint.with_token(&token)?;
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
                            "the new token of serviceaccount/{} does not work on {}; the management cluster is unchanged",
                            account.name, self.member.name
                        )
                    });
                }
            }
        }
    }

    /// Deletes the right to impersonate of an earlier run with another choice.
    async fn end_other_impersonation(&self, account: &Account<'_>) -> anyhow::Result<()> {
        if matches!(account.grant, Grant::ImpersonateOnly { .. }) {
            return Ok(());
        }
        let binding = account.impersonation_binding(&self.arguments.namespace);
        let deleted = binding.delete(&self.member.client).await;
        if deleted.with_context(|| format!("on {}", self.member.name))? {
            print_line(&format!("{} deleted", binding.name()));
        }
        Ok(())
    }

    /// The binding of an earlier run to another role.
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
            .and_then(|issued| issued.status.context("the response has no token"))
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

    /// The annotations of the Secret that are known before the token.
    fn expected_annotations(&self, account: &str) -> BTreeMap<String, String> {
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
        print_line(&format!("# On {}: {}.", self.member.name, self.grant.explained()));
        if let Some(binding) = self.other_role(account).await? {
            print_line(&format!("# {} would be deleted.", binding.name()));
        }
        for manifest in account.manifests() {
            print_line(&format!("---\n{}", manifest.yaml()?.trim_end()));
        }
        print_line(&format!(
            "# On {}. The token and its times are not known in a dry run.",
            self.hub.name
        ));
        for manifest in [secret, cluster] {
            print_line(&format!("---\n{}", manifest.yaml()?.trim_end()));
        }
        Ok(())
    }

    fn print_result(&self, named: ClusterName<'_>, lease: &TokenLease) {
        let context = self
            .arguments
            .hub_context
            .as_ref()
            .map(|context| format!("--context {context} "))
            .unwrap_or_default();
        print_line(&format!(
            "\nOn {}: {}.\nThe token expires at {}; the controller renews it.\nNext: kubectl {context}get cluster {} -n {}",
            self.member.name,
            self.grant.explained(),
            lease.expires_at,
            named.name,
            named.namespace
        ));
    }
}

impl Side {
    /// The cluster ID: the UID of the namespace `kube-system`.
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
        print_line(&format!("{} {done}", manifest.name()));
        Ok(())
    }
}

#[expect(clippy::print_stdout, reason = "the output of this command")]
fn print_line(line: &str) {
    println!("{line}");
}

#[expect(
    clippy::print_stderr,
    reason = "not part of the output: --dry-run prints YAML"
)]
fn print_warning(line: &str) {
    eprintln!("warning: {line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_labels_and_lifetimes_say_what_is_expected() {
        assert_eq!(label("region=eu"), Ok(("region".into(), "eu".into())));
        assert_eq!(label("empty="), Ok(("empty".into(), String::new())));
        for wrong in ["region", "=eu"] {
            assert!(
                label(wrong).is_err_and(|error| error.to_string().contains("KEY=VALUE")),
                "{wrong}"
            );
        }
        assert!(lifetime("10m").is_ok());
        for wrong in ["9m59s", "a month", ""] {
            assert!(lifetime(wrong).is_err(), "{wrong}");
        }
    }
}
