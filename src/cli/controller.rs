//! `starling controller`: runs the controller of one management cluster.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use jiff::Timestamp;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use starling_core::account::AccountRules;
use starling_core::apply::budget::read_kind;
use starling_core::controlled_label::{ControlledLabel, LabelLists, LabelRules};
use starling_core::deletion_budget::BudgetLimits;
use starling_core::gate::job::JobAccounts;
use starling_core::object::GroupKind;
use starling_net::rules::{AddressLists, ListedNetwork};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::value::{dns_name, label_key};
use super::{hub, kube_errors};
use crate::controller::deletion_budgets::DeletionSettings;
use crate::controller::rights::Rights;
use crate::controller::{Controller, Readiness, Settings};
use crate::server;

/// Options of `controller`.
#[derive(Debug, Args)]
pub(super) struct ControllerArguments {
    /// Kubeconfig of the management cluster. Default: the in-cluster configuration
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Directory of the ledger and the git mirrors
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Address that serves /healthz and /readyz
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:8080")]
    listen: SocketAddr,
    /// Treat `by` of approvals and operator actions as verified without the admission policies of deploy/manifests
    #[arg(long)]
    ignore_admission_policies: bool,
    #[command(flatten)]
    work: WorkArguments,
}

/// Options of the controller, for every kind of management cluster.
#[derive(Debug, Args)]
pub(super) struct WorkArguments {
    /// Reconcile only this namespace. Default: all namespaces
    #[arg(long, value_name = "NS")]
    namespace: Option<String>,
    /// Allow Sources with http:// and file:// URLs
    #[arg(long)]
    allow_insecure_sources: bool,
    /// Maximum number of Syncs that are reconciled concurrently. One that takes longer than 10s no longer counts
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
    concurrency: u16,
    /// Maximum number of clusters that are in flight at once, over all SyncGroups. While several namespaces have
    /// SyncGroups, one of them has at most half of it. Default: no limit besides maxConcurrency of each SyncGroup
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_clusters_in_flight: Option<u32>,
    /// Path of kustomize. Default: kustomize on PATH, then `kubectl kustomize`
    #[arg(long, value_name = "FILE")]
    kustomize: Option<PathBuf>,
    /// Path of sops. Default: sops on PATH
    #[arg(long, value_name = "FILE")]
    sops: Option<PathBuf>,
    /// Maximum deletions of the whole installation within a window, such as objects=500,clusters=20,window=1h. Default:
    /// no limit besides the budgets of SyncGroups and Syncs
    #[arg(long, value_name = "LIMITS")]
    deletion_budget: Option<BudgetLimits>,
    /// Kind whose deletion requires an approval, because it deletes other objects, such as
    /// cluster.x-k8s.io/Cluster; repeatable. Namespaces, CustomResourceDefinitions, PersistentVolumes and
    /// PersistentVolumeClaims always require one
    #[arg(long, value_name = "GROUP/KIND", value_parser = read_kind)]
    confirm_deletion_of: Vec<GroupKind>,
    /// Network that connections may go to, such as 10.0.0.0/8; repeatable. A prefix git=, members= or gates= limits
    /// the rule to these connections. Default: all, except link-local addresses and metadata servers, which are always
    /// refused
    #[arg(long, value_name = "NETWORK")]
    allowed_addresses: Vec<ListedNetwork>,
    /// Network that no connection may go to, even if it is allowed, in the format of --allowed-addresses; repeatable
    #[arg(long, value_name = "NETWORK")]
    denied_addresses: Vec<ListedNetwork>,
    /// ServiceAccount that Job gates of SyncGroups may run as, in the namespace of their group; repeatable. Default:
    /// none, so Job gates are refused
    #[arg(long, value_name = "NAME", value_parser = dns_name)]
    job_gate_service_account: Vec<String>,
    /// ServiceAccount on the member of Syncs without a serviceAccountName, in the namespace of the Sync. Default: the
    /// user of the kubeconfig
    #[arg(long, value_name = "NAME", value_parser = dns_name)]
    default_service_account: Option<String>,
    /// Label that manifests may carry although it grants rights on the cluster, such as
    /// pod-security.kubernetes.io/enforce; repeatable. Default: this label with a value other than `restricted`, and
    /// rbac.authorization.k8s.io/aggregate-to-… of ClusterRoles, are refused
    #[arg(long, value_name = "LABEL")]
    allow_controlled_label: Vec<ControlledLabel>,
    /// Label that no object in git may carry, with whatever value, because the platform grants rights by it;
    /// repeatable
    #[arg(long, value_name = "LABEL", value_parser = label_key)]
    controlled_label: Vec<String>,
    /// Refuse Syncs without a serviceAccountName, unless --default-service-account is set
    #[arg(long)]
    require_service_account: bool,
}

impl WorkArguments {
    pub(super) fn settings(self, data_dir: PathBuf) -> Settings {
        Settings {
            namespace: self.namespace,
            data_dir,
            allow_insecure_sources: self.allow_insecure_sources,
            concurrency: self.concurrency.into(),
            max_clusters_in_flight: self
                .max_clusters_in_flight
                .map(|limit| usize::try_from(limit).unwrap_or(usize::MAX)),
            kustomize: self.kustomize,
            sops: self.sops,
            deletions: DeletionSettings {
                budget: self.deletion_budget,
                confirm: self.confirm_deletion_of.into_iter().collect(),
            },
            addresses: AddressLists {
                allowed: self.allowed_addresses,
                denied: self.denied_addresses,
            },
            rights: Rights {
                job_accounts: JobAccounts(self.job_gate_service_account.into_iter().collect()),
                accounts: AccountRules {
                    default: self.default_service_account.unwrap_or_default(),
                    required: self.require_service_account,
                },
                labels: LabelRules::Listed(LabelLists {
                    allowed: self.allow_controlled_label.into_iter().collect(),
                    added: self.controlled_label.into_iter().collect(),
                }),
                // The embedded management cluster has no policies.
                check_policies: false,
            },
        }
    }
}

pub(super) async fn run(arguments: ControllerArguments) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let listener = TcpListener::bind(arguments.listen)
        .await
        .with_context(|| format!("--listen {}", arguments.listen))?;
    let (readiness, stop) = (Readiness::default(), CancellationToken::new());
    let reported = readiness.clone();
    let reasons = move || {
        let (now, reasons) = (Timestamp::now(), reported.reasons());
        reasons.iter().map(|reason| reason.describe(now)).collect()
    };
    let serving = tokio::spawn(server::serve(listener, reasons, stop.clone()));

    let client = hub_client(arguments.kubeconfig).await?;
    let mut settings = arguments.work.settings(arguments.data_dir);
    settings.rights.check_policies = !arguments.ignore_admission_policies;
    // A signal also ends a start that waits for the management cluster.
    let controller = tokio::select! {
        started = Controller::start(client, settings, readiness) => started?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    controller.stop().await;
    stop.cancel();
    serving.await??;
    Ok(())
}

/// The client of the management cluster.
pub(super) async fn hub_client(kubeconfig: Option<PathBuf>) -> anyhow::Result<Client> {
    let Some(path) = kubeconfig else {
        let config = Config::incluster().context("no --kubeconfig, and no in-cluster configuration")?;
        return hub::client_of(config).map_err(kube_errors::request);
    };
    let made = match Kubeconfig::read_from(&path) {
        Ok(read) => Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await,
        Err(error) => Err(error),
    };
    made.map_err(|error| kube_errors::kubeconfig(&error))
        .and_then(|config| hub::client_of(config).map_err(kube_errors::request))
        .with_context(|| format!("--kubeconfig {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_limits_and_kinds_are_refused_with_an_example() {
        use clap::FromArgMatches as _;
        let parse = |arguments: &[&str]| {
            let command = WorkArguments::augment_args(clap::Command::new("controller"));
            let matches = command.try_get_matches_from([&["controller"], arguments].concat())?;
            WorkArguments::from_arg_matches(&matches)
        };
        let valid = parse(&[
            "--deletion-budget=objects=500,window=2h",
            "--confirm-deletion-of=cluster.x-k8s.io/Cluster",
            "--confirm-deletion-of=core/Secret",
        ]);
        let settings = valid.unwrap().settings("/data".into()).deletions;
        assert_eq!((settings.confirm.len(), settings.budget.is_some()), (2, true));
        for (argument, example) in [
            ("--deletion-budget=objects", "objects=500,clusters=20,window=1h"),
            ("--confirm-deletion-of=Cluster", "cluster.x-k8s.io/Cluster"),
            ("--allowed-addresses=pods=10.0.0.0/8", "members="),
            ("--denied-addresses=10.0.0.0/40", "10.0.0.0/8"),
            ("--job-gate-service-account=a:b", "deployer"),
            ("--default-service-account=", "deployer"),
            (
                "--allow-controlled-label=app",
                "pod-security.kubernetes.io/enforce",
            ),
            ("--controlled-label=a/b/c", "field.cattle.io/projectId"),
            ("--controlled-label=-a", "field.cattle.io/projectId"),
        ] {
            let error = parse(&[argument]).unwrap_err().to_string();
            assert!(error.contains(example), "{error}");
        }
    }

    #[tokio::test]
    async fn an_invalid_kubeconfig_is_named_and_not_quoted() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("hub");
        for (text, expected) in [
            ("users:\n- name: a\n  user: {token: [s3cret}\n", "line 3"),
            ("users: [{name: a, user: {token: s3cret}}]\n", "current context"),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = hub_client(Some(file.clone())).await.err().unwrap();
            let error = format!("{error:#}");
            assert!(
                error.starts_with(&format!("--kubeconfig {}: ", file.display())),
                "{error}"
            );
            assert!(error.contains(expected) && !error.contains("s3cret"), "{error}");
        }
    }
}
