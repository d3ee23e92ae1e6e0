-- Groups and Syncs are known by identities that a restore to another API server keeps: a group by its owner hash and the object that
-- first had the name, a Sync by its name. Both columns had UIDs. What was written under a UID stays readable, and nothing continues it.
UPDATE rollouts SET ended_at = started_at, outcome = 'abandoned' WHERE ended_at IS NULL;
UPDATE admissions SET ended_at = admitted_at, outcome = 'left' WHERE outcome IS NULL;
ALTER TABLE rollouts RENAME COLUMN group_uid TO group_id;
ALTER TABLE admissions RENAME COLUMN group_uid TO group_id;
ALTER TABLE attempts RENAME COLUMN sync_uid TO sync_id;
ALTER TABLE journal RENAME COLUMN group_uid TO group_id;
ALTER TABLE journal_rollouts RENAME COLUMN group_uid TO group_id;
ALTER TABLE journal_chains RENAME COLUMN group_uid TO group_id;
