-- The journal of rollouts: one row per plan that changed something, written before the plan is executed. The entries of a group are a
-- chain: each carries a hash over itself and the hash before it (ADR 33).
CREATE TABLE journal (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    group_uid TEXT    NOT NULL,                 -- metadata.uid of the SyncGroup
    seq       INTEGER NOT NULL,                 -- within the group: 1, 2, 3, without a gap
    namespace TEXT    NOT NULL,                 -- of the SyncGroup
    name      TEXT    NOT NULL,                 -- of the SyncGroup
    rollout   INTEGER NOT NULL,                 -- status.rollout.id
    at        INTEGER NOT NULL,                 -- when the plan was made
    entry     TEXT    NOT NULL,                 -- JSON: what the planner was told and what it said, or what changed of that
    hash      TEXT    NOT NULL,                 -- SHA-256 of all of the above but id, and of the hash before
    UNIQUE (group_uid, seq)
) STRICT;

CREATE TRIGGER journal_is_append_only BEFORE UPDATE ON journal
BEGIN
    SELECT raise(ABORT, 'the journal is append-only');
END;

-- One row per run of entries of one rollout: what retention takes off, oldest first and always whole.
CREATE TABLE journal_rollouts (
    group_uid TEXT    NOT NULL,
    first_seq INTEGER NOT NULL,
    rollout   INTEGER NOT NULL,
    last_seq  INTEGER NOT NULL,
    last_id   INTEGER NOT NULL,                 -- of journal: which run was written to last
    whole_seq INTEGER NOT NULL,                 -- the newest entry that needs none before it
    bytes     INTEGER NOT NULL,                 -- of its entries
    PRIMARY KEY (group_uid, first_seq)
) STRICT, WITHOUT ROWID;

-- Both ends of the chain of a group: what is taken off at either of them afterwards is missed.
CREATE TABLE journal_chains (
    group_uid TEXT    NOT NULL PRIMARY KEY,
    namespace TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    cut_seq   INTEGER NOT NULL,                 -- the last entry that retention took off; 0: none
    cut_hash  TEXT    NOT NULL,
    last_seq  INTEGER NOT NULL,                 -- the newest entry
    last_hash TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
