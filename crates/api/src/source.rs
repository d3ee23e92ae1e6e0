//! Source: a git repository and the policy that picks its revision.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::Condition;
use crate::{Duration, LocalRef, schema};

/// A git repository and the policy that picks one revision of it.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "starling.dev",
    version = "v1alpha1",
    kind = "Source",
    namespaced,
    status = "SourceStatus",
    shortname = "src",
    category = "starling",
    derive = "PartialEq",
    printcolumn(
        name = "READY",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "REVISION", type_ = "string", json_path = ".status.revision"),
    printcolumn(
        name = "STATUS",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message"
    ),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "URL", type_ = "string", json_path = ".spec.url", priority = 1),
    doc = "A git repository and the policy that picks one revision of it"
)]
#[serde(rename_all = "camelCase")]
pub struct SourceSpec {
    /// Where the repository is: https://, ssh://, git@host:path; http:// and file:// only where the
    /// controller runs with --allow-insecure-sources. No credentials in it.
    #[x_kube(validation = Rule::new("self.matches('^(https|http|ssh|file)://[^ ]+$') || self.matches('^[a-z0-9_.-]+@[^ :/]+:[^ ]+$')").message("url must be https://…, ssh://…, git@host:path, or with --allow-insecure-sources http://… or file://…"))]
    #[schemars(length(max = 2048))]
    pub url: String,
    /// Which revision: exactly one of branch, semver, tag, commit.
    #[serde(rename = "ref")]
    pub reference: SourceRef,
    /// How often the repository is asked; a webhook or `starling.dev/requested-at` makes it immediate.
    #[serde(default = "default_interval")]
    pub interval: Duration,
    /// Limit of one request to the repository.
    #[serde(default = "default_timeout")]
    pub timeout: Duration,
    /// Ask no more; what is known stays.
    #[serde(default)]
    pub suspend: bool,
    /// Secret with username and password, or bearerToken, or identity and known_hosts; ca.crt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<LocalRef>,
    /// History rewritten or a tag moved: go along, or hold the last revision. Default: Follow for branch,
    /// Hold for tag and semver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_rewrite: Option<OnRewrite>,
    /// With semver: may the resolved version go down, as when a tag was deleted.
    #[serde(default)]
    pub allow_downgrade: bool,
    /// Lines in the syntax of .gitignore; a .sourceignore file in the repository counts too.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ignore: String,
    /// Signatures that are required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<Verify>,
    /// Secret with key `token` for the webhook receiver; without it the receiver answers 404.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_secret_ref: Option<LocalRef>,
}

/// The policy: exactly one of its fields.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("[has(self.branch), has(self.semver), has(self.tag), has(self.commit)].filter(x, x).size() == 1").message("ref must have exactly one of branch, semver, tag, commit"))]
#[serde(rename_all = "camelCase")]
pub struct SourceRef {
    /// Head of this branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    pub branch: Option<String>,
    /// Highest tag of this range, as Masterminds/semver reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    pub semver: Option<String>,
    /// This tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    pub tag: Option<String>,
    /// This commit, all hex digits of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9a-f]{40}([0-9a-f]{24})?$"))]
    pub commit: Option<String>,
}

/// What to do when history was rewritten or a tag was moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnRewrite {
    /// Take the new commit.
    Follow,
    /// Keep the last one and say so.
    Hold,
}

/// Which signatures are required, and by whom.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Verify {
    /// What must be signed.
    #[serde(default)]
    pub mode: VerifyMode,
    /// Secret with GPG or SSH public keys.
    #[serde(default)]
    pub secret_ref: LocalRef,
}

/// What must be signed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VerifyMode {
    /// The commit.
    #[default]
    #[serde(rename = "HEAD")]
    Head,
    /// The annotated tag.
    Tag,
    /// Both.
    #[serde(rename = "TagAndHEAD")]
    TagAndHead,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SourceStatus {
    /// Generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The last good revision, `main@sha1:…` or `v1.4.2@sha1:…`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub revision: String,
    /// When `revision` was first seen, RFC 3339: Sources that move together form one release.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub revision_time: String,
    /// URL and policy that `revision` belongs to, as a digest: another repository's history is not a rewrite.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub revision_origin: String,
    /// The last value of `starling.dev/requested-at` that was acted upon.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_handled_reconcile_at: String,
    /// Ready, Reconciling, Stalled, Verified.
    #[serde(default)]
    #[schemars(with = "Vec<schema::Condition>", extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

fn default_interval() -> Duration {
    Duration::from_secs(60)
}

fn default_timeout() -> Duration {
    Duration::from_secs(60)
}
