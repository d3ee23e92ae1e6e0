//! `starling install`: prints the definitions and manifests of an installation, with rights for named namespaces.

use anyhow::ensure;
use clap::Args;
use serde_json::{Value, json};
use starling_api::SYSTEM_NAMESPACE;
use starling_core::account::AccountRules;

use super::value::dns_name;

/// The manifests of `deploy/manifests`, in the order in which they are applied.
const MANIFESTS: [&str; 4] = [
    include_str!("../../deploy/manifests/00-namespace.yaml"),
    include_str!("../../deploy/manifests/10-rbac.yaml"),
    include_str!("../../deploy/manifests/20-controller.yaml"),
    include_str!("../../deploy/manifests/30-people.yaml"),
];
/// The last argument of the controller in the manifests. Further arguments follow it.
const LAST_ARGUMENT: &str = "        - --listen=0.0.0.0:8080\n";
/// The ServiceAccount of the controller.
const ACCOUNT: &str = "starling";

/// Options of `install`.
#[derive(Debug, Args)]
pub(super) struct InstallArguments {
    /// Namespaces with Clusters, Sources and SyncGroups, separated by commas: the controller may read their Secrets
    /// and no others
    #[arg(long, value_name = "NS,…", value_delimiter = ',', required = true, value_parser = dns_name)]
    namespaces: Vec<String>,
    /// Omit the permission to write renewed tokens of members into the Secrets of these namespaces
    #[arg(long)]
    no_token_renewal: bool,
    /// ServiceAccount that Job gates of SyncGroups may run as, in the namespace of their group; repeatable. Default:
    /// none, so Job gates are refused
    #[arg(long, value_name = "NAME", value_parser = dns_name)]
    job_gate_service_account: Vec<String>,
    /// ServiceAccount on the member of Syncs without a serviceAccountName. Default: the user of the kubeconfig
    #[arg(long, value_name = "NAME", value_parser = dns_name)]
    default_service_account: Option<String>,
    /// Refuse Syncs without a serviceAccountName, unless --default-service-account is set
    #[arg(long)]
    require_service_account: bool,
    /// Omit the CustomResourceDefinitions
    #[arg(long)]
    no_crds: bool,
}

#[expect(clippy::print_stdout, reason = "the output of this command")]
pub(super) fn run(arguments: &InstallArguments) -> anyhow::Result<()> {
    if !arguments.no_crds {
        for definition in starling_api::definitions() {
            print!("---\n{}", serde_saphyr::to_string(&definition)?);
        }
    }
    for manifest in manifests(arguments)? {
        print!("---\n{manifest}");
    }
    Ok(())
}

/// Returns the manifests, each with one or more documents.
fn manifests(arguments: &InstallArguments) -> anyhow::Result<Vec<String>> {
    let more: String = controller_arguments(arguments)
        .iter()
        .map(|argument| format!("        - {argument}\n"))
        .collect();
    let mut manifests: Vec<String> = MANIFESTS
        .iter()
        .map(|text| text.replace(LAST_ARGUMENT, &format!("{LAST_ARGUMENT}{more}")))
        .collect();
    ensure!(
        more.is_empty() || manifests.iter().any(|text| text.contains(&more)),
        "the manifests of this program have no place for arguments"
    );
    for namespace in &arguments.namespaces {
        for role in roles(arguments) {
            manifests.push(serde_saphyr::to_string(&binding(namespace, role))?);
        }
    }
    Ok(manifests)
}

fn controller_arguments(arguments: &InstallArguments) -> Vec<String> {
    let AccountRules { default, required } = AccountRules {
        default: arguments.default_service_account.clone().unwrap_or_default(),
        required: arguments.require_service_account,
    };
    let jobs = arguments.job_gate_service_account.iter();
    let mut more: Vec<String> = jobs
        .map(|account| format!("--job-gate-service-account={account}"))
        .collect();
    if !default.is_empty() {
        more.push(format!("--default-service-account={default}"));
    }
    if required {
        more.push("--require-service-account".to_owned());
    }
    more
}

/// Returns the roles that the controller gets in each namespace.
fn roles(arguments: &InstallArguments) -> Vec<&'static str> {
    let mut roles = vec!["starling-credentials"];
    if !arguments.no_token_renewal {
        roles.push("starling-token-renewal");
    }
    if !arguments.job_gate_service_account.is_empty() {
        roles.push("starling-job-gates");
    }
    roles
}

fn binding(namespace: &str, role: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": role, "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": SYSTEM_NAMESPACE}],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(more: &[&str]) -> String {
        use clap::FromArgMatches as _;
        let command = InstallArguments::augment_args(clap::Command::new("install"));
        let matches = command.get_matches_from([&["install", "--namespaces=fleet,shop"], more].concat());
        manifests(&InstallArguments::from_arg_matches(&matches).unwrap())
            .unwrap()
            .join("---\n")
    }

    fn bindings(text: &str) -> Vec<String> {
        let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
        let bindings = documents.iter().filter(|document| {
            document["kind"] == "RoleBinding" && document["metadata"]["namespace"] != SYSTEM_NAMESPACE
        });
        bindings
            .map(|binding| {
                let text = |value: &Value| value.as_str().unwrap().to_owned();
                format!(
                    "{} in {}",
                    text(&binding["roleRef"]["name"]),
                    text(&binding["metadata"]["namespace"])
                )
            })
            .collect()
    }

    #[test]
    fn tenant_secrets_are_readable_in_the_named_namespaces_only() {
        let expected = |roles: &[&str]| -> Vec<String> {
            ["fleet", "shop"]
                .iter()
                .flat_map(|namespace| roles.iter().map(move |role| format!("{role} in {namespace}")))
                .collect()
        };
        let usual = printed(&[]);
        assert_eq!(
            bindings(&usual),
            expected(&["starling-credentials", "starling-token-renewal"])
        );
        assert!(!usual.contains("service-account="), "{usual}");
        assert_eq!(
            bindings(&printed(&["--no-token-renewal"])),
            expected(&["starling-credentials"])
        );
    }

    #[test]
    fn tenant_jobs_get_their_role_with_their_account() {
        let text = printed(&["--job-gate-service-account=smoke", "--require-service-account"]);
        assert!(
            bindings(&text).contains(&"starling-job-gates in shop".to_owned()),
            "{text}"
        );
        for argument in [
            "- --job-gate-service-account=smoke\n",
            "- --require-service-account\n",
        ] {
            assert!(text.contains(argument), "{text}");
        }
    }
}
