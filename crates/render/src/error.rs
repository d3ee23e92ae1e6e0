//! Errors of a render.

use std::path::PathBuf;
use std::time::Duration;

use starling_core::object::ObjectId;
use starling_core::scope::SameObject;

use super::yaml::YamlError;

/// Why a tree could not be rendered. No error quotes the content of a manifest, which may be a Secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RenderError {
    /// The turn was given to another tenant. Nothing is known of the build.
    #[error("another namespace waits for the turn")]
    TurnOver,
    /// The explicit program does not exist or cannot be run.
    #[error("{} is not an executable file", path.display())]
    ToolMissing {
        /// As given.
        path: PathBuf,
    },
    /// The tree needs kustomize and neither kustomize nor kubectl was found at start.
    #[error("{what} needs kustomize, and neither kustomize nor kubectl was found")]
    NoKustomize {
        /// A file of the tree, or a field of the Sync.
        what: String,
    },
    /// The path of the Sync is absolute, or leaves the tree.
    #[error("path {path:?} must be relative and stay inside the repository")]
    PathOutside {
        /// As given.
        path: String,
    },
    /// The path of the Sync is not in this revision, or is not a directory.
    #[error("directory {path:?} not found in this revision")]
    PathMissing {
        /// As given.
        path: String,
    },
    /// The target namespace is not a valid name.
    #[error("target namespace {namespace:?} is not a valid name")]
    BadNamespace {
        /// As given.
        namespace: String,
    },
    /// A kustomization has an entry that is not allowed.
    #[error("{file}: {field} entry {entry:?} {refusal}")]
    Refused {
        /// The file, relative to the tree.
        file: String,
        /// The field of the kustomization.
        field: String,
        /// The entry; shortened.
        entry: String,
        /// The reason.
        refusal: Refusal,
    },
    /// A directory contains more than one kustomization file.
    #[error("{directory} contains more than one kustomization file")]
    Ambiguous {
        /// The directory, relative to the tree.
        directory: String,
    },
    /// A file or the output is not the expected YAML.
    #[error("{origin}")]
    Yaml {
        /// A file relative to the tree, or the build's output.
        origin: String,
        /// The position and the problem.
        #[source]
        source: YamlError,
    },
    /// A document lacks a required field.
    #[error("{origin}: document {document} has no usable {missing}")]
    Incomplete {
        /// A file relative to the tree, or the build's output.
        origin: String,
        /// Counted from 1; empty documents are not counted.
        document: usize,
        /// The field.
        missing: &'static str,
    },
    /// Two documents describe the same object.
    #[error("{key} occurs twice")]
    Duplicate {
        /// The object.
        key: ObjectId,
    },
    /// Two manifests that are one object, since its kind is cluster-scoped.
    #[error(transparent)]
    SameObject(SameObject),
    /// An object that Starling itself keeps on a cluster.
    #[error("{key} is an object of Starling itself and cannot be applied from git; rename it")]
    OfStarling {
        /// The object.
        key: ObjectId,
    },
    /// An object with a label by which a platform grants rights.
    #[error(
        "{key} has the label {label}, which grants rights on the cluster; the operator decides with \
         --allow-controlled-label and --controlled-label of the controller"
    )]
    ControlledLabel {
        /// The object.
        key: ObjectId,
        /// The label.
        label: String,
    },
    /// A field that Starling has to set is not a mapping.
    #[error("{key}: {field} is not a mapping")]
    NotAMapping {
        /// The object.
        key: ObjectId,
        /// The field.
        field: &'static str,
    },
    /// An object is encrypted, and was not decrypted.
    #[error("{object}: {field} {problem}")]
    Encrypted {
        /// The object.
        object: String,
        /// The field: `sops`, `data[KEY]`.
        field: String,
        /// The problem.
        problem: DecryptProblem,
    },
    /// Something is larger than the limits allow.
    #[error("{what} exceeds the limit of {limit}")]
    TooLarge {
        /// Output, files, objects.
        what: &'static str,
        /// The limit; its unit follows from `what`.
        limit: usize,
    },
    /// A program took too long and was killed.
    #[error("{program} was stopped after {} s", limit.as_secs_f64())]
    TimedOut {
        /// kustomize, sops.
        program: &'static str,
        /// The limit.
        limit: Duration,
    },
    /// The build ran into the memory limit.
    #[error("kustomize needs more than {limit} bytes of memory")]
    OutOfMemory {
        /// The limit, in bytes.
        limit: u64,
    },
    /// The build failed; its output was dropped.
    #[error("kustomize failed ({status}): {stderr}")]
    Failed {
        /// Exit code or signal.
        status: String,
        /// Its error output: truncated, without control characters, quoted content and directories of this host.
        stderr: String,
    },
    /// A program could not be started or followed.
    #[error("{program} could not be run")]
    Process {
        /// kustomize, sops.
        program: &'static str,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// A file of the private tree could not be read or written.
    #[error("{file} cannot be read or written")]
    File {
        /// Relative to the tree.
        file: String,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// The renderer is being shut down.
    #[error("the render was abandoned at shutdown")]
    Abandoned,
}

/// Why an entry of a kustomization is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A URL or a git address: all rendered files must be in the revision.
    #[error("is remote")]
    Remote,
    /// Absolute, or outside of the repository after symbolic links are followed.
    #[error("points outside the repository")]
    Outside,
    /// The entry does not exist.
    #[error("does not exist in the repository")]
    Missing,
    /// Neither a regular file nor a directory, or a directory where a file is expected.
    #[error("is not a file of the expected type")]
    WrongType,
    /// Helm charts, functions and plugins run programs or fetch.
    #[error("would run a plugin, which is not allowed")]
    Plugin,
    /// An unknown field, which may read any file.
    #[error("is not a known field")]
    Unknown,
    /// A field of a directory with configurations of plugins that could change these configurations.
    #[error("is not allowed in a directory of generators, transformers or validators; list resources alone")]
    ChangesPlugins,
    /// Not of the type that kustomize expects.
    #[error("has the wrong type")]
    Malformed,
    /// A directory without a kustomization.
    #[error("is a directory without a kustomization")]
    NoKustomization,
}

/// Why an encrypted part of an object cannot be decrypted. Does not quote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecryptProblem {
    /// The Sync has no keys.
    #[error(
        "is encrypted with SOPS, but spec.decryption is not set; \
         set spec.decryption.secretRef to the Secret with the age keys"
    )]
    NoDecryption,
    /// Encrypted values without metadata of SOPS: a list or a patch was encrypted as a whole.
    #[error("is a value encrypted with SOPS without its metadata; encrypt each object by itself")]
    NoMetadata,
    /// No sops was found at start.
    #[error(
        "is encrypted with SOPS, and no sops was found; install it beside the controller, or name it with --sops"
    )]
    NoSops,
    /// There is no age recipient.
    #[error("is encrypted for no age recipient; other key services are not supported")]
    NoRecipient,
    /// None of the identities belongs to a recipient.
    #[error("cannot be decrypted: none of the identities belongs to one of its age recipients")]
    WrongKey,
    /// A value cannot be decrypted: it was changed, moved, or replaced by plain text.
    #[error(
        "cannot be decrypted: a value was changed after it was encrypted; leave what kustomize reads or sets \
         (apiVersion, kind, metadata) in plain text, with encrypted_regex: ^(data|stringData)$"
    )]
    Changed,
    /// sops failed otherwise.
    #[error("cannot be decrypted: sops failed")]
    Failed,
    /// The output of sops does not have the expected form.
    #[error("cannot be decrypted: sops returned an unexpected document")]
    Unexpected,
}
