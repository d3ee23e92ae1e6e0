//! Limits of repositories and servers.

use std::time::Duration;

use starling_net::rules::AddressRules;

/// Limits of a [`super::GitStore`]. The defaults fit any repository that a git host accepts without special
/// arrangements.
#[derive(Debug, Clone)]
pub struct GitLimits {
    /// Maximum concurrent calls to servers. A mirror has at most one fetch, so a slow server uses one of them, and the
    /// readers of one namespace use at most half.
    pub network_jobs: usize,
    /// Maximum concurrent calls that only read or write mirrors. They are counted separately, so that slow servers
    /// never delay an export, and the readers of one namespace use at most half. Joins of packs are counted apart.
    pub local_jobs: usize,
    /// The time that a call that only uses the local disk may take, including the wait for its start.
    pub local_timeout: Duration,
    /// The time that a walk through history may take, including the wait for its start.
    pub ancestry_timeout: Duration,
    /// Commits a walk through history may visit.
    pub max_ancestry_commits: usize,
    /// The time that one address of a server may take to accept a connection.
    pub connect_timeout: Duration,
    /// Bytes one fetch may receive.
    pub max_transfer_bytes: u64,
    /// Bytes the list of refs may have.
    pub max_listing_bytes: u64,
    /// Heads and tags a repository may have.
    pub max_refs: usize,
    /// The limits of the content of one pack.
    pub pack: PackLimits,
    /// Packs a mirror may have before they are joined into one. Each fetch adds a pack, and each look-up searches all
    /// of them.
    pub max_packs: usize,
    /// Bytes the packs of a mirror may have before a fetch: the mirror has this, and one fetch, at most.
    pub max_mirror_bytes: u64,
    /// The time that joining packs may take, including the wait for its start.
    pub joining_timeout: Duration,
    /// The addresses of servers that the operator allows.
    pub addresses: AddressRules,
    /// Bounds of one exported tree.
    pub export: ExportLimits,
}

impl Default for GitLimits {
    fn default() -> Self {
        Self {
            network_jobs: 8,
            local_jobs: 4,
            local_timeout: Duration::from_secs(120),
            // Twenty times what `max_ancestry_commits` take on an idle machine.
            ancestry_timeout: Duration::from_secs(30),
            // A branch advances, and a rewrite replaces, fewer between two polls. libgit2 keeps about 800 bytes of each
            // during the walk: 40 MB.
            max_ancestry_commits: 50_000,
            // Three SYN retries of Linux (1 + 2 + 4 s) and some room.
            connect_timeout: Duration::from_secs(10),
            // GitHub advises repositories below 1 GB, history included.
            max_transfer_bytes: 1 << 30,
            // A line has 50 bytes and a name: room for `max_refs` names of 250 bytes.
            max_listing_bytes: 32 << 20,
            max_refs: 100_000,
            pack: PackLimits::default(),
            // git's own `gc.autoPackLimit`.
            max_packs: 50,
            // Twice the largest fetch.
            max_mirror_bytes: 2 << 30,
            joining_timeout: Duration::from_secs(300),
            addresses: AddressRules::default(),
            export: ExportLimits::default(),
        }
    }
}

/// Maximum bytes of the tree object of one directory: a hundred thousand entries with names of 100 bytes.
pub(super) const MAX_DIRECTORY_BYTES: u64 = 16 << 20;

/// Bounds of one pack. libgit2 needs memory for each of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackLimits {
    /// Objects of one pack. libgit2 keeps about 200 bytes of each while it stores the pack.
    pub max_objects: u32,
    /// Bytes of one object, decompressed.
    pub max_object_bytes: u64,
    /// Bytes of one commit, and of one annotated tag.
    pub max_commit_bytes: u64,
    /// Bytes of the list of one directory.
    pub max_directory_bytes: u64,
}

impl Default for PackLimits {
    fn default() -> Self {
        Self {
            // Twice what the history of Kubernetes has; 400 MB.
            max_objects: 2_000_000,
            // More than the size above which GitHub refuses a push.
            max_object_bytes: 128 << 20,
            // A message is text that somebody wrote, and an octopus merge has tens of parents.
            max_commit_bytes: 4 << 20,
            max_directory_bytes: MAX_DIRECTORY_BYTES,
        }
    }
}

/// Bounds of one exported tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportLimits {
    /// Entries of all trees together, ignored ones included.
    pub max_entries: u64,
    /// Bytes of one file.
    pub max_file_bytes: u64,
    /// Bytes of all files together.
    pub max_total_bytes: u64,
    /// Directories within directories.
    pub max_depth: usize,
}

impl Default for ExportLimits {
    fn default() -> Self {
        Self {
            // A little more than the Linux kernel's tree has; the largest configuration repositories stay
            // well below.
            max_entries: 100_000,
            // The size above which GitHub refuses a push.
            max_file_bytes: 100 << 20,
            // Half of what a whole repository may transfer; several exports exist at the same time.
            max_total_bytes: 512 << 20,
            // Names of 40 characters then fill PATH_MAX (4096).
            max_depth: 100,
        }
    }
}
