//! Source: a git repository and the policy that selects its revision.

use kube_derive::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::Condition;
use crate::duration::{HOUR, YEAR, at_most};
use crate::{Duration, LocalRef, schema};

/// Desired state of a Source.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[kube(
    crates(kube_core = "::kube_core"),
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
    doc = "Source is a git repository and a policy that selects one revision of it."
)]
#[serde(rename_all = "camelCase")]
pub struct SourceSpec {
    /// URL of the repository: https://, ssh:// or git@host:path. The schemes http:// and file:// require the
    /// controller flag --allow-insecure-sources. The URL must not contain credentials.
    #[x_kube(validation = Rule::new("self.matches('^(https|http|ssh|file)://[^ ]+$') || self.matches('^[a-z0-9_.-]+@[^ :/]+:[^ ]+$')").message("url must be https://…, ssh://…, git@host:path, or with --allow-insecure-sources http://… or file://…"))]
    #[schemars(length(max = 2048))]
    pub url: String,
    /// Policy that selects the revision. Exactly one of branch, semver, tag and commit must be set.
    #[serde(rename = "ref")]
    pub reference: SourceRef,
    /// Interval at which the repository is checked for a new revision. A webhook or the annotation
    /// `starling.dev/requested-at` triggers a check at once. Defaults to 1m.
    #[serde(default = "default_interval")]
    #[schemars(extend("x-kubernetes-validations" = at_most(YEAR)))]
    pub interval: Duration,
    /// Timeout of one request to the repository. Defaults to 1m.
    #[serde(default = "default_timeout")]
    #[schemars(extend("x-kubernetes-validations" = at_most(HOUR)))]
    pub timeout: Duration,
    /// Whether to stop checking the repository. While true, the last revision stays in use. Defaults to
    /// false.
    #[serde(default)]
    pub suspend: bool,
    /// Secret with the credentials of the repository: either `username` and `password`, or `bearerToken`, or
    /// `identity` and `known_hosts`; optionally `ca.crt`. Defaults to no credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<LocalRef>,
    /// What to do when the history of the branch was rewritten or the tag was moved. Follow uses the new
    /// commit; Hold keeps the last revision and reports the change. Defaults to Follow for a branch, and to
    /// Hold for a tag or semver range. A branch that goes back to an ancestor is no rewrite: see
    /// allowDowngrade.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_rewrite: Option<OnRewrite>,
    /// Whether the revision may go back: a semver range to a lower version than before, for example after a
    /// tag was deleted, and a branch to an ancestor of the last commit, for example after it was reset.
    /// Defaults to false.
    #[serde(default)]
    pub allow_downgrade: bool,
    /// Patterns of files to exclude, one per line, in the syntax of .gitignore. A .sourceignore file in the
    /// repository applies as well.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ignore: String,
    /// Signatures that a revision must have. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<Verify>,
    /// Secret whose key `token` authenticates requests to the webhook receiver. If not set, the receiver
    /// responds with 404.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_secret_ref: Option<LocalRef>,
}

/// Policy that selects the revision of a Source. Exactly one field must be set.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[x_kube(validation = Rule::new("[has(self.branch), has(self.semver), has(self.tag), has(self.commit)].filter(x, x).size() == 1").message("exactly one of branch, semver, tag and commit is required for ref"))]
#[serde(rename_all = "camelCase")]
pub struct SourceRef {
    /// Branch whose head is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    pub branch: Option<String>,
    /// Semantic version range. The highest matching tag is used. The syntax is that of Masterminds/semver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    pub semver: Option<String>,
    /// Tag to use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    pub tag: Option<String>,
    /// Commit to use, as a full SHA-1 or SHA-256 hash in lower-case hex digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9a-f]{40}([0-9a-f]{24})?$"))]
    pub commit: Option<String>,
}

/// What to do when the history of the branch was rewritten or the tag was moved. Follow uses the new commit;
/// Hold keeps the last revision and reports the change. Defaults to Follow for a branch, and to Hold for a
/// tag or semver range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnRewrite {
    /// Use the new commit.
    Follow,
    /// Keep the last revision and report the change.
    Hold,
}

/// Requirements on the signatures of a revision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Verify {
    /// Object whose signature is required: HEAD for the commit, Tag for the annotated tag, TagAndHEAD for
    /// both. Defaults to HEAD.
    #[serde(default)]
    pub mode: VerifyMode,
    /// Secret with the trusted GPG or SSH public keys.
    #[serde(default)]
    pub secret_ref: LocalRef,
}

/// Git object whose signature is required.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VerifyMode {
    /// The commit.
    #[default]
    #[serde(rename = "HEAD")]
    Head,
    /// The annotated tag.
    Tag,
    /// The commit and the annotated tag.
    #[serde(rename = "TagAndHEAD")]
    TagAndHead,
}

/// Observed state of a Source.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SourceStatus {
    /// Generation of the spec that the controller observed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Latest revision of the Source, as `main@sha1:<commit>` or `v1.4.2@sha1:<commit>`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub revision: String,
    /// Time at which the current revision was first observed, in RFC 3339 format. Sources whose revisions
    /// change at about the same time form one release.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub revision_time: String,
    /// Digest of the URL and the policy that the revision was resolved from. A change of either is a new
    /// origin, not a rewritten history.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub revision_origin: String,
    /// Revisions of stored releases that are neither in the repository nor in the mirror. No rollback to their
    /// releases is possible.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub lost_revisions: Vec<String>,
    /// Heads of the branch that were replaced when its history was rewritten, newest first. A server that shows one of
    /// them again lags, so the Source does not follow it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub replaced_revisions: Vec<String>,
    /// Value of the annotation `starling.dev/requested-at` that the controller handled last.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_handled_reconcile_at: String,
    /// Conditions of the Source. Known types are Ready, Reconciling, Stalled and Verified.
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
