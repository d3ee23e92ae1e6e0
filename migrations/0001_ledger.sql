-- The ledger of one replica. Append-only: this file never changes once released; the next change is 0002.
--
-- Times are INTEGER microseconds since 1970 UTC: they sort and compare without parsing, and Kubernetes' MicroTime is no finer.
-- `seq` and `id` columns are AUTOINCREMENT: what was recorded later has the greater number, even if the clock went back.
-- No table references another: a ledger that was lost in the middle of a rollout must accept what follows without its beginning.
-- No column may hold a body, a rendered value or a credential.

-- Single values: which replica wrote here, when it was last opened.
CREATE TABLE meta (
    key   TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- One row per rollout of a SyncGroup. The newest 20 of a group are kept, and every one that has not ended.
CREATE TABLE rollouts (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    group_uid  TEXT    NOT NULL,                -- metadata.uid of the SyncGroup
    id         TEXT    NOT NULL,                -- rollout ID, as in the annotation starling.dev/rollout
    namespace  TEXT    NOT NULL,                -- of the SyncGroup
    name       TEXT    NOT NULL,                -- of the SyncGroup
    release    TEXT    NOT NULL,                -- digest of the release that is rolled
    revisions  TEXT    NOT NULL CHECK (json_valid(revisions)), -- object: entry -> revision
    started_at INTEGER NOT NULL,
    ended_at   INTEGER,                         -- NULL: still rolling
    outcome    TEXT,                            -- succeeded, superseded, failed, abandoned; NULL: still rolling
    UNIQUE (group_uid, id),
    CHECK ((ended_at IS NULL) = (outcome IS NULL))
) STRICT;

-- One row per target that was admitted to a cluster: the intent, written before the effect. Each ends exactly once.
CREATE TABLE admissions (
    seq            INTEGER PRIMARY KEY AUTOINCREMENT,
    group_uid      TEXT    NOT NULL,
    rollout        TEXT    NOT NULL,
    entry          TEXT    NOT NULL,            -- name of the entry in spec.syncs
    cluster        TEXT    NOT NULL,
    target         TEXT    NOT NULL,            -- digest of commit, template and parameters
    sync_namespace TEXT    NOT NULL,
    sync_name      TEXT    NOT NULL,
    revision       TEXT    NOT NULL,
    admitted_at    INTEGER NOT NULL,
    outcome        TEXT,                        -- applied, superseded, failed, left; NULL: in flight
    reason         TEXT    NOT NULL DEFAULT '', -- for people; empty: nothing to add to the outcome
    ended_at       INTEGER,
    UNIQUE (group_uid, rollout, entry, cluster, target),
    CHECK ((ended_at IS NULL) = (outcome IS NULL)),
    CHECK (outcome IS NOT 'failed' OR reason <> '')
) STRICT;

-- The newest admission of an entry on a cluster.
CREATE INDEX admissions_slot ON admissions (group_uid, entry, cluster, seq);

-- What is in flight: few rows among many.
CREATE INDEX admissions_open ON admissions (group_uid) WHERE outcome IS NULL;

-- One row per attempt to bring a cluster to a target: written when it starts, completed when it ends. The newest 20 of a Sync are kept.
CREATE TABLE attempts (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    sync_uid   TEXT    NOT NULL,                -- metadata.uid of the Sync
    namespace  TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    cluster    TEXT    NOT NULL,
    target     TEXT    NOT NULL,
    revision   TEXT    NOT NULL,
    number     INTEGER NOT NULL,                -- 1 for the first attempt at this target
    started_at INTEGER NOT NULL,
    ended_at   INTEGER,                         -- NULL: under way, or the process died
    outcome    TEXT,                            -- succeeded, failed, superseded, interrupted; NULL as ended_at
    reason     TEXT    NOT NULL DEFAULT '',     -- condition reason
    message    TEXT    NOT NULL DEFAULT '',     -- for people, at most 512 bytes
    created    INTEGER NOT NULL DEFAULT 0,      -- objects by what was done to them
    configured INTEGER NOT NULL DEFAULT 0,
    unchanged  INTEGER NOT NULL DEFAULT 0,
    deleted    INTEGER NOT NULL DEFAULT 0,
    failed     INTEGER NOT NULL DEFAULT 0,
    CHECK ((ended_at IS NULL) = (outcome IS NULL)),
    CHECK (length(CAST(message AS BLOB)) <= 512)
) STRICT;

-- The history of a Sync, newest last.
CREATE INDEX attempts_history ON attempts (sync_uid, id);

-- What a crash left open.
CREATE INDEX attempts_open ON attempts (id) WHERE outcome IS NULL;

-- What is remembered of each object after it was applied: a cache that spares requests. The inventory on the member is the truth.
CREATE TABLE applied_objects (
    cluster_id       TEXT NOT NULL,             -- UID of the member's namespace kube-system
    owner            TEXT NOT NULL,             -- value of the label starling.dev/owner
    obj_group        TEXT NOT NULL,             -- empty: the core group
    kind             TEXT NOT NULL,
    namespace        TEXT NOT NULL,             -- empty: cluster-scoped
    name             TEXT NOT NULL,
    digest           TEXT NOT NULL,             -- of the bytes that were applied
    resource_version TEXT NOT NULL,             -- as answered to the apply
    fields_digest    TEXT NOT NULL,             -- of our managedFields entry after the apply
    uid              TEXT NOT NULL,             -- metadata.uid on the member
    PRIMARY KEY (cluster_id, owner, obj_group, kind, namespace, name)
) STRICT, WITHOUT ROWID;

-- When each object of the management cluster is to be looked at next.
CREATE TABLE queue (
    kind      TEXT    NOT NULL,
    namespace TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    due_at    INTEGER NOT NULL,
    PRIMARY KEY (kind, namespace, name)
) STRICT, WITHOUT ROWID;
