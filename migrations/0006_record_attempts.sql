-- Which attempt the rows of an owner in applied_objects belong to. They count only if the status of the Sync reports the same one: a
-- ledger that was put back, or that another replica has outrun, tells what the member held once (ADR 39).
CREATE TABLE record_attempts (
    cluster_id   TEXT    NOT NULL,
    owner        TEXT    NOT NULL,
    attempted_at INTEGER NOT NULL,              -- status.lastAttemptTime
    PRIMARY KEY (cluster_id, owner)
) STRICT, WITHOUT ROWID;
